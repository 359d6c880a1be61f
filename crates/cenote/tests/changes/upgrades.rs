//! Pools get newer versions and more features while their datasets, in the old forms, live on.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use cenote::create::{CreateRequest, NewKind, NewVdev, PoolSetting};
use cenote::features::by_name;
use cenote::{Engine, ErrorKind, Pool, PropData};
use testkit::{Scratch, engine, import_from, side_by_side};

use crate::lineage::{LineageModel, sums};
use crate::{DiskFiles, MB, request, writing, zdb_text};

/// A pool, and the versions that it gets one after the other; `None`: features, too.
struct Way {
    name: &'static str,
    vdev: Option<NewKind>,
    width: usize,
    ashift: u64,
    /// Version 5000 begins with no feature, or with this one.
    from: u64,
    feature: Option<&'static str>,
    to: &'static [Option<u64>],
}

fn ways() -> Vec<Way> {
    let way = |name, vdev, width, ashift, from, to| Way {
        name,
        vdev,
        width,
        ashift,
        from,
        feature: None,
        to,
    };
    let raidz = |nparity| Some(NewKind::Raidz { nparity });
    let draid = NewKind::Draid { nparity: 1, ndata: Some(2), nspares: 1 };
    let mut ways = vec![
        way("10", Some(NewKind::Mirror), 2, 12, 10, &[Some(11), Some(26), None]),
        way("15", None, 1, 9, 15, &[Some(26), None]),
        way("25", Some(NewKind::Mirror), 2, 12, 25, &[Some(28), Some(5000), None]),
        way("23", raidz(1), 3, 12, 23, &[None]),
        Way { feature: Some("draid"), ..way("draid", Some(draid), 4, 9, 5000, &[None]) },
    ];
    if std::env::var_os("CENOTE_NIGHTLY").is_some() {
        ways.extend([
            way("10z", raidz(1), 3, 9, 10, &[None]),
            way("18", raidz(2), 4, 9, 18, &[Some(25), Some(26), Some(28), None]),
            way("28", raidz(3), 5, 12, 28, &[None]),
            way("plain", Some(NewKind::Mirror), 2, 9, 5000, &[None]),
            way("17", Some(NewKind::Mirror), 2, 12, 17, &[None]),
        ]);
    }
    ways
}

fn make(engine: &Engine, disks: &DiskFiles, way: &Way) -> Arc<Pool> {
    let vdev: NewVdev = match &way.vdev {
        Some(kind) => disks.group(kind.clone(), 0..way.width),
        None => disks.leaf(0),
    };
    let wanted = CreateRequest {
        version: way.from,
        features: way.feature.and_then(by_name).into_iter().collect(),
        ..request(vec![vdev], vec![PoolSetting::Stored("ashift", way.ashift)])
    };
    engine.create_pool(&wanted).unwrap().unwrap()
}

fn copy_files(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        testkit::copy_file(&path, &to.join(path.file_name().unwrap()));
    }
}

/// Copies the disks as a power cut leaves them.
fn copy(pool: &Pool, disks: &DiskFiles, to: &Path) {
    let txg = || pool.writer().unwrap().published().uberblock.txg;
    testkit::eventually("no txg ends during the copy", || {
        let before = txg();
        copy_files(&disks.path(), to);
        before == txg()
    });
}

/// Gives disks the configurations of the first and third labels of others: the power was cut
/// between the labels of the upgrade's txg and its uberblock.
fn tear(disks: &Path, later: &Path) {
    const PHYS: std::ops::Range<u64> = 16 << 10..128 << 10;
    for entry in std::fs::read_dir(disks).unwrap() {
        let path = entry.unwrap().path();
        let old = std::fs::File::options().write(true).open(&path).unwrap();
        let new = std::fs::File::open(later.join(path.file_name().unwrap())).unwrap();
        let size = new.metadata().unwrap().len();
        let mut bytes = vec![0; (PHYS.end - PHYS.start) as usize];
        for label in [0, size - (512 << 10)] {
            new.read_exact_at(&mut bytes, label + PHYS.start).unwrap();
            old.write_all_at(&bytes, label + PHYS.start).unwrap();
        }
    }
}

fn judge(dir: &Path) {
    side_by_side(&["-bcc", "-dddd"], |how| {
        let Some(text) = zdb_text(dir, &[how, "tank"]) else { return };
        if *how == "-bcc" {
            return assert!(text.contains("No leaks"), "{text}");
        }
        for bad in ["mismatch", "ailed", "leaked", "incorrect", "ASSERT"] {
            assert!(!text.contains(bad), "{how}: {bad}: {text}");
        }
    });
}

/// Upgrades a pool, and cuts the power before, within and after.
fn upgrade(pool: &Pool, disks: &DiskFiles, model: &mut LineageModel, to: Option<u64>, what: &str) {
    let (before, after) = (Scratch::new("upgrade-before"), Scratch::new("upgrade-after"));
    let from = pool.version();
    pool.sync().unwrap();
    copy(pool, disks, before.path());
    let done = pool.upgrade(to, Some("zpool upgrade")).unwrap();
    let version = to.unwrap_or(5000);
    assert_eq!((done.from, done.to, pool.version()), (from, version, version), "{what}");
    assert_eq!(done.features.is_empty(), to.is_some(), "{what}: {:?}", done.features);
    sums(pool);
    copy(pool, disks, after.path());
    tear(before.path(), after.path());
    for (dir, found) in [(before.path(), from), (after.path(), version)] {
        let engine = engine();
        let pool = import_from(&engine, dir, &writing()).unwrap();
        assert_eq!(pool.version(), found, "{what}");
        assert_eq!(pool.read_only_because(), None, "{what}");
        model.compare(&pool);
        pool.upgrade(to, None).unwrap();
        assert_eq!(pool.version(), version, "{what}");
        sums(&pool);
        pool.export().unwrap();
    }
    model.version = if to.is_none() { version } else { version.min(28) };
    model.compare(pool);
}

#[test]
fn lineages_across_upgrades() {
    let ops = if std::env::var_os("CENOTE_NIGHTLY").is_some() { 1000 } else { 30 };
    side_by_side(&ways(), |way| {
        let what = way.name;
        let disks = DiskFiles::new(&format!("upgrades-{what}"), way.width, 192 * MB);
        let engine = engine();
        let mut pool = make(&engine, &disks, way);
        let mut model = LineageModel::new(way.from ^ way.ashift << 20);
        model.version = way.from.min(28);
        let steps = |model: &mut LineageModel, pool: &Pool| {
            for _ in 0..ops {
                model.step(pool);
                sums(pool);
            }
        };
        steps(&mut model, &pool);
        for &to in way.to {
            upgrade(&pool, &disks, &mut model, to, &format!("{what} to {to:?}"));
            steps(&mut model, &pool);
            pool.export().unwrap();
            drop(pool);
            pool = import_from(&engine, &disks.path(), &writing()).unwrap();
            model.compare(&pool);
            // There is nothing more to do.
            let again = pool.upgrade(to, None).unwrap();
            assert!(again.from == again.to && again.features.is_empty(), "{what}: {again:?}");
        }
        let e = pool.set(&PoolSetting::Version(15), None).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid);
        pool.export().unwrap();
        drop(pool);
        // zdb is idle for most of its time.
        let kept = Scratch::new(&format!("upgrades-kept-{what}"));
        copy_files(&disks.path(), kept.path());
        std::thread::scope(|scope| {
            scope.spawn(|| judge(kept.path()));
            // All that was made in old forms goes.
            let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
            model.end(&pool);
            testkit::eventually("the blocks are freed", || {
                pool.sync().unwrap();
                pool.prop("freeing").unwrap().map(|v| v.value) == Some(PropData::Num(0))
            });
            sums(&pool);
            pool.export().unwrap();
            drop(pool);
            judge(&disks.path());
        });
    });
}
