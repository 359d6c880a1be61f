//! Destruction: many snapshots in batches; clones by their livelists.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cenote::create::{NewKind, PoolSetting};
use cenote::inspect::dsl::write::{MosRead, features};
use cenote::{NewObject, ObjectId, Objects, Pool, PropData, SnapshotHold};
use testkit::{Scratch, engine, import_from};

use crate::{DiskFiles, MB, judge, kind, make, noise, request, writing};

fn snapshots(pool: &Pool, of: &str) -> Vec<String> {
    let all = pool.dataset(of).unwrap().snapshots().unwrap();
    all.iter().map(|s| s.name().to_owned()).collect()
}

fn txg(pool: &Pool) -> u64 {
    pool.writer().unwrap().txgs().synced_txg().0
}

/// A file system with `count` snapshots, each with a block of its own.
fn with_snapshots(pool: &Pool, name: &str, count: usize) -> Vec<String> {
    let objects = pool.create_filesystem(name, &[], None).unwrap().open_rw().unwrap();
    let id = objects.create(&NewObject::default()).unwrap();
    let all: Vec<String> = (0..count).map(|i| format!("{name}@{i:02}")).collect();
    for (i, snap) in all.iter().enumerate() {
        objects.write(id, 0, &noise(i as u64, 20_000)).unwrap();
        pool.snapshot(std::slice::from_ref(snap), &[], None).unwrap();
    }
    all
}

#[test]
fn many_snapshots_are_destroyed_in_batches() {
    let disks = DiskFiles::new("destroying-batches", 1, 128 * MB);
    let engine = engine();
    let pool = make(&engine, vec![disks.leaf(0)]);
    let writer = Arc::clone(pool.writer().unwrap());
    writer.plants.destroyed_at_once.store(2, Relaxed);
    let all = with_snapshots(&pool, "tank/a", 12);

    // One that cannot be destroyed keeps all of them, however late it comes.
    let hold = [SnapshotHold { snapshot: all[8].clone(), tag: "keep".into() }];
    pool.hold(&hold, None).unwrap();
    let refused = pool.destroy_snapshots(&all[..9], false, None).unwrap_err();
    assert_eq!(refused.location().dataset.as_deref(), Some(all[8].as_str()));
    assert_eq!(kind(refused).1, "dataset is busy");
    assert_eq!(snapshots(&pool, "tank/a"), all);
    pool.release(&hold, None).unwrap();

    // Two in a txg; a name that is given twice counts once.
    let before = txg(&pool);
    let names = [&all[1..8], &all[3..4]].concat();
    pool.destroy_snapshots(&names, false, Some("zfs destroy tank/a@01%07")).unwrap();
    assert!(txg(&pool) >= before + 4);
    assert_eq!(snapshots(&pool, "tank/a"), [&all[..1], &all[8..]].concat());

    // A whole subtree: snapshots first, then what depended on them.
    pool.clone_snapshot(&all[9], "tank/a/clone", &[], None).unwrap();
    with_snapshots(&pool, "tank/a/clone/b", 5);
    let before = txg(&pool);
    pool.destroy_dataset("tank/a", true, Some("zfs destroy -r tank/a")).unwrap();
    assert!(txg(&pool) >= before + 6);
    assert!(pool.dataset("tank/a").is_err());
    pool.export().unwrap();
    drop((writer, pool));
    judge(&engine, &disks.path());
    let text = crate::zdb_text(&disks.path(), &["-h", "tank"]);
    for line in ["zfs destroy tank/a@01%07", "zfs destroy -r tank/a"] {
        assert!(text.as_ref().is_none_or(|t| t.matches(line).count() == 1), "{line}: {text:?}");
    }
}

/// Others change what is left between two batches, and are answered meanwhile.
#[test]
fn others_go_on_while_snapshots_are_destroyed() {
    let disks = DiskFiles::new("destroying-others", 1, 128 * MB);
    let engine = engine();
    let pool = make(&engine, vec![disks.leaf(0)]);
    let writer = Arc::clone(pool.writer().unwrap());
    writer.plants.destroyed_at_once.store(1, Relaxed);
    let all = with_snapshots(&pool, "tank/a", 30);
    let last = all[29].clone();
    let done = std::thread::scope(|scope| {
        let destroys = scope.spawn(|| pool.destroy_snapshots(&all, false, None));
        testkit::eventually("nothing is destroyed", || snapshots(&pool, "tank/a").len() < 30);
        let hold = [SnapshotHold { snapshot: last.clone(), tag: "mine".into() }];
        let held = pool.hold(&hold, None).is_ok();
        (held, destroys.join().unwrap())
    });
    match done {
        (true, refused) => {
            let refused = refused.unwrap_err();
            assert_eq!(refused.location().dataset.as_deref(), Some(last.as_str()));
            assert_eq!(kind(refused).1, "dataset is busy");
            assert_eq!(snapshots(&pool, "tank/a").last(), Some(&last));
        }
        // The hold came too late.
        (false, done) => {
            done.unwrap();
            assert!(snapshots(&pool, "tank/a").is_empty());
        }
    }
    pool.export().unwrap();
    drop((writer, pool));
    judge(&engine, &disks.path());
}

/// Livelists in use or being deleted.
fn livelists(pool: &Pool) -> u64 {
    let mos: &dyn MosRead = pool.writer().unwrap().mos();
    features::count(mos, "com.delphix:livelist").unwrap().unwrap_or(0)
}

fn freeing(pool: &Pool) -> bool {
    let mos: &dyn MosRead = pool.writer().unwrap().mos();
    mos.directory("com.delphix:deleted_clones").unwrap().is_some()
}

/// Short sublists, and lists that are kept while anything is shared.
fn keep_lists(pool: &Pool) {
    let lineage = &pool.writer().unwrap().plants.lineage;
    lineage.sublist_max.store(1 + 30, Relaxed);
    lineage.shared_min.store(1, Relaxed);
}

fn overwrite(objects: &Objects, ids: &[ObjectId], round: u64) {
    for (i, id) in ids.iter().enumerate().filter(|(i, _)| !(*i as u64 + round).is_multiple_of(3)) {
        objects.write(*id, round * 20_000, &noise(round + i as u64, 150_000)).unwrap();
    }
    objects.sync().unwrap();
}

/// A clone is written, snapshotted, its files removed; then destroyed, by its list.
fn clone_story(pool: &Pool) {
    keep_lists(pool);
    let a = pool.create_filesystem("tank/a", &[], None).unwrap().open_rw().unwrap();
    let ids: Vec<ObjectId> = (0..12)
        .map(|i| {
            let id = a.create(&NewObject::default()).unwrap();
            a.write(id, 0, &noise(100 + i, 400_000)).unwrap();
            id
        })
        .collect();
    pool.snapshot(&["tank/a@s".into()], &[], None).unwrap();
    for name in ["tank/c", "tank/d", "tank/e"] {
        pool.clone_snapshot("tank/a@s", name, &[], None).unwrap();
    }
    assert_eq!(livelists(pool), 3);
    let c = pool.dataset("tank/c").unwrap().open_rw().unwrap();
    overwrite(&c, &ids[..6], 0);
    pool.snapshot(&["tank/c@own".into()], &[], None).unwrap();
    for round in 1..6 {
        overwrite(&c, &ids[..6], round);
    }
    c.remove(ids[1]).unwrap();
    let d = pool.dataset("tank/d").unwrap().open_rw().unwrap();
    overwrite(&d, &ids[..4], 7);
    pool.export().unwrap();
}

#[test]
fn clones_are_destroyed_by_their_livelists() {
    let raidz = |nparity| NewKind::Raidz { nparity };
    let draid = NewKind::Draid { nparity: 1, ndata: Some(2), nspares: 1 };
    let shapes = [
        ("single", None, 1, 9),
        ("mirror", Some(NewKind::Mirror), 2, 12),
        ("raidz1", Some(raidz(1)), 3, 12),
        ("raidz3", Some(raidz(3)), 6, 9),
        ("draid", Some(draid), 7, 12),
    ];
    testkit::side_by_side(&shapes, |(name, group, width, ashift)| {
        let disks = DiskFiles::new(&format!("destroying-livelists-{name}"), *width, 192 * MB);
        let vdevs = match group {
            Some(kind) => vec![disks.group(kind.clone(), 0..*width)],
            None => vec![disks.leaf(0)],
        };
        let engine = engine();
        let settings = vec![PoolSetting::Stored("ashift", *ashift)];
        let pool = engine.create_pool(&request(vdevs, settings)).unwrap().unwrap();
        clone_story(&pool);
        drop(pool);
        judge(&engine, &disks.path());

        let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
        keep_lists(&pool);
        assert_eq!(livelists(&pool), 3);
        // The content goes, the list with it; promotion ends one, too.
        pool.snapshot(&["tank/e@own".into()], &[], None).unwrap();
        pool.rollback("tank/e@own", None).unwrap();
        assert_eq!(livelists(&pool), 2);
        // Nothing is freed until the power is cut.
        pool.writer().unwrap().plants.freed_at_once.store(1, Relaxed);
        pool.destroy_dataset("tank/c", true, None).unwrap();
        assert!(freeing(&pool) && pool.dataset("tank/c").is_err());
        assert_eq!(livelists(&pool), 2);
        let cut = cut(&disks, *width, name);
        resume(cut.path());
        // A few blocks in each txg.
        let before = txg(&pool);
        pool.writer().unwrap().plants.freed_at_once.store(1 + 5, Relaxed);
        testkit::eventually("the clone is not freed", || {
            pool.sync().unwrap();
            !freeing(&pool)
        });
        assert!(txg(&pool) > before + 2);
        assert_eq!(livelists(&pool), 1);
        pool.promote("tank/d", None).unwrap();
        assert_eq!(livelists(&pool), 0);
        pool.export().unwrap();
        drop(pool);
        judge(&engine, &disks.path());
    });
}

/// The disks as a power cut leaves them now.
fn cut(disks: &DiskFiles, count: usize, name: &str) -> Scratch {
    let scratch = Scratch::new(&format!("destroying-cut-{name}"));
    for disk in (0..count).map(|i| format!("d{i}")) {
        testkit::copy_file(&disks.path().join(&disk), &scratch.path().join(&disk));
    }
    scratch
}

/// The next import deletes what is queued.
fn resume(dir: &Path) {
    let engine = engine();
    judge(&engine, dir);
    let pool = import_from(&engine, dir, &writing()).unwrap();
    testkit::eventually("the clone is not freed", || {
        pool.sync().unwrap();
        !freeing(&pool)
    });
    pool.export().unwrap();
    drop(pool);
    judge(&engine, dir);
}

/// A clone that shares little has no livelist, and a pool without the feature never has one.
#[test]
fn a_livelist_goes_when_little_is_shared() {
    let disks = DiskFiles::new("destroying-little", 1, 128 * MB);
    let engine = engine();
    let pool = make(&engine, vec![disks.leaf(0)]);
    let a = pool.create_filesystem("tank/a", &[], None).unwrap().open_rw().unwrap();
    let id = a.create(&NewObject::default()).unwrap();
    a.write(id, 0, &noise(1, 1_000_000)).unwrap();
    pool.snapshot(&["tank/a@s".into()], &[], None).unwrap();
    let c = pool.clone_snapshot("tank/a@s", "tank/c", &[], None).unwrap().open_rw().unwrap();
    c.write(id, 0, &noise(2, 100_000)).unwrap();
    pool.sync().unwrap();
    assert_eq!(livelists(&pool), 1);
    c.write(id, 0, &noise(3, 500_000)).unwrap();
    pool.sync().unwrap();
    assert_eq!(livelists(&pool), 0);
    pool.destroy_dataset("tank/c", false, None).unwrap();
    pool.export().unwrap();
    drop((a, c, pool));
    judge(&engine, &disks.path());
}

/// A list that OpenZFS wrote is kept up, and the clone destroyed by it.
#[test]
fn livelists_of_openzfs_go_on() {
    let Some(golden) = testkit::golden("snaps") else { return };
    let scratch = Scratch::new("destroying-golden");
    golden.unpack(scratch.path());
    let engine = engine();
    let pool = import_from(&engine, scratch.path(), &writing()).unwrap();
    keep_lists(&pool);
    assert_eq!(livelists(&pool), 1);
    let objects = pool.dataset("snaps/renamed").unwrap().open_rw().unwrap();
    let id = objects.create(&NewObject::default()).unwrap();
    for i in 0..20 {
        objects.write(id, i * 10_000, &noise(i, 60_000)).unwrap();
        objects.sync().unwrap();
    }
    assert_eq!(livelists(&pool), 1);
    pool.export().unwrap();
    drop((objects, pool));
    judge(&engine, scratch.path());
    let pool = import_from(&engine, scratch.path(), &writing()).unwrap();
    pool.destroy_dataset("snaps/renamed", true, None).unwrap();
    testkit::eventually("the clone is not freed", || {
        pool.sync().unwrap();
        livelists(&pool) == 0
    });
    pool.export().unwrap();
    drop(pool);
    judge(&engine, scratch.path());
}

/// A full pool still lets everything go.
#[test]
fn a_full_pool_lets_datasets_go() {
    let disks = DiskFiles::new("destroying-full", 1, 96 * MB);
    let engine = engine();
    let pool = make(&engine, vec![disks.leaf(0)]);
    pool.writer().unwrap().plants.slop.store(3 * MB, Relaxed);
    let a = pool.create_filesystem("tank/a", &[], None).unwrap().open_rw().unwrap();
    pool.create_volume("tank/v", 8 * MB, None, &[], None).unwrap();
    let id = a.create(&NewObject::default()).unwrap();
    a.write(id, 0, &noise(1, 4_000_000)).unwrap();
    pool.snapshot(&["tank/a@s".into(), "tank/v@s".into()], &[], None).unwrap();
    pool.clone_snapshot("tank/a@s", "tank/c", &[], None).unwrap();
    pool.clone_snapshot("tank/a@s", "tank/d", &[], None).unwrap();
    let c = pool.dataset("tank/c").unwrap().open_rw().unwrap();
    let mut at = 0;
    while at < 120 * MB && c.write(id, at, &noise(at, 500_000)).is_ok() {
        at += 500_000;
    }
    assert!(at > 40 * MB && at < 96 * MB, "{at}");
    let _full = c.sync();
    let reserve = [("refreservation".to_owned(), PropData::Num(64 * MB))];
    let refused = pool.set_props("tank/v", &reserve, None).unwrap_err();
    assert_eq!(refused.kind(), cenote::ErrorKind::NoSpace);
    // What takes no space, or gives some back.
    let hold = [SnapshotHold { snapshot: "tank/a@s".into(), tag: "full".into() }];
    pool.hold(&hold, None).unwrap();
    pool.release(&hold, None).unwrap();
    pool.rename_dataset("tank/v", "tank/w", None).unwrap();
    pool.promote("tank/d", None).unwrap();
    pool.promote("tank/a", None).unwrap();
    pool.rollback("tank/w@s", None).unwrap();
    pool.destroy_dataset("tank/w", true, None).unwrap();
    pool.destroy_dataset("tank/c", false, None).unwrap();
    pool.destroy_dataset("tank/d", false, None).unwrap();
    pool.destroy_snapshots(&["tank/a@s".into()], false, None).unwrap();
    testkit::eventually("no space comes back", || {
        pool.sync().unwrap();
        a.write(id, 8_000_000, &noise(3, 20_000_000)).is_ok()
    });
    pool.export().unwrap();
    drop((a, c, pool));
    judge(&engine, &disks.path());
}
