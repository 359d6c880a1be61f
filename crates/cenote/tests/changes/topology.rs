//! Devices are attached, detached, replaced and taken offline while the pool is used.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Result, Txg};
use cenote::create::{NewKind, NewVdev, PoolSetting, Role};
use cenote::inspect::ondisk::config::{VdevConfig, VdevType};
use cenote::inspect::vdev::TxgRanges;
use cenote::{
    AttachMode, AttachRequest, Engine, ErrorKind, NewDevice, ObjectId, Objects, Offline,
    OfflineMode, Pool,
};
use testkit::{Scratch, import_from};

use crate::{DiskFiles, MB, judge, kind, noise, request, writing};

pub(crate) const SIZE: usize = 100_000;

/// Waits until no leaf in use lacks anything: resilvers start by themselves.
pub(crate) fn resilver(pool: &Pool) {
    let writer = pool.writer().unwrap();
    testkit::eventually("the pool is resilvered", || {
        writer.sync().unwrap();
        let tree = writer.zio().tree();
        let behind = tree.leaves().any(|(_, n)| n.readable() && n.is_behind());
        !behind && writer.running_scan().is_none()
    });
    writer.topology_settled();
}

/// A pool with content that is known.
pub(crate) struct Rig {
    pub(crate) disks: DiskFiles,
    pub(crate) engine: Arc<Engine>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) objects: Objects,
    pub(crate) content: BTreeMap<u64, u64>,
    pub(crate) what: String,
}

impl Rig {
    pub(crate) fn new(
        what: &str,
        disks: usize,
        vdev: &dyn Fn(&DiskFiles) -> NewVdev,
        ashift: u64,
    ) -> Rig {
        let disks = DiskFiles::new(&format!("topology-{what}"), disks, 128 * MB);
        let settings = vec![PoolSetting::Stored("ashift", ashift)];
        let vdevs = vec![vdev(&disks)];
        Rig::on(disks, vdevs, settings, &format!("{what}, ashift {ashift}"))
    }

    /// A pool without content.
    pub(crate) fn on(
        disks: DiskFiles,
        vdevs: Vec<NewVdev>,
        settings: Vec<PoolSetting>,
        what: &str,
    ) -> Rig {
        let engine = testkit::engine();
        let pool = engine.create_pool(&request(vdevs, settings)).unwrap().unwrap();
        let objects = pool.root().unwrap().open_rw().unwrap();
        Rig { disks, engine, pool, objects, content: BTreeMap::new(), what: what.to_owned() }
    }

    /// Writes objects; they are on disk afterwards.
    pub(crate) fn fill(&mut self, seeds: std::ops::Range<u64>) {
        for seed in seeds {
            let id = self.objects.create(&Default::default()).unwrap();
            self.objects.write(id, 0, &noise(seed, SIZE)).unwrap();
            self.content.insert(id.0, seed);
        }
        self.objects.sync().unwrap();
    }

    /// Reads everything from the devices.
    pub(crate) fn check(&self, when: &str) {
        self.engine.drop_cache();
        for (&id, &seed) in &self.content {
            let read = self.objects.read_vec(ObjectId(id), 0, SIZE).unwrap();
            assert!(read == noise(seed, SIZE), "{} {when}: object {id}", self.what);
        }
    }

    pub(crate) fn name(&self, i: usize) -> String {
        self.disks.path().join(format!("d{i}")).display().to_string()
    }

    pub(crate) fn attach(&self, old: usize, new: Option<usize>, mode: AttachMode) -> Result<()> {
        let kind = |i| NewKind::File(self.disks.path().join(format!("d{i}")));
        let request = AttachRequest {
            old: self.name(old),
            new: new.map(|i| NewDevice::Path(kind(i))),
            mode,
            sequential: false,
            force: false,
            ashift: None,
            command: Some("zpool attach ...".into()),
        };
        self.engine.attach(&self.pool, &request)
    }

    /// Waits until nothing is being replaced.
    pub(crate) fn settled(&self) {
        wait_settled(&self.pool, &self.what);
    }

    /// A leaf that gets a part of what is written now.
    pub(crate) fn used_leaf(&mut self, n: usize) -> usize {
        for i in 0..n {
            self.engine.offline(&self.pool, &self.name(i), AWAY, None).unwrap();
            self.fill(100 + i as u64..102 + i as u64);
            let written = !self.dtl(i).ranges().is_empty();
            self.engine.online(&self.pool, &self.name(i), false, None).unwrap();
            if written {
                resilver(&self.pool);
                return i;
            }
        }
        panic!("{}: no leaf is written", self.what);
    }

    /// What a leaf lacks.
    pub(crate) fn dtl(&self, i: usize) -> TxgRanges {
        let (tree, name) = (self.pool.writer().unwrap().zio().tree(), self.name(i));
        let leaf = tree.leaves().find(|(_, n)| n.path() == Some(name.as_str())).unwrap().1;
        TxgRanges::clone(&leaf.dtl())
    }

    /// Whether a leaf lacks anything.
    pub(crate) fn behind(&self, i: usize) -> bool {
        let (tree, name) = (self.pool.writer().unwrap().zio().tree(), self.name(i));
        tree.leaves().any(|(_, n)| n.path() == Some(name.as_str()) && n.is_behind())
    }

    /// States of the leaves, and what they lack.
    pub(crate) fn missing(&self) -> Vec<String> {
        let tree = self.pool.writer().unwrap().zio().tree();
        tree.leaves().map(|(_, n)| format!("{:?} {:?}", n.state(), n.dtl().ranges())).collect()
    }

    pub(crate) fn leaves(&self) -> usize {
        self.pool.writer().unwrap().published().config.vdev_tree.leaves().count()
    }

    /// The content that a crash now leaves, as another import finds it.
    pub(crate) fn after_crash(&self, when: &str) {
        let copy = Scratch::new("topology-crash");
        let txg = || self.pool.writer().unwrap().published().uberblock.txg;
        // Files copied one after the other are a crash's if no txg ended meanwhile.
        testkit::eventually("no txg ends during the copy", || {
            let before = txg();
            for entry in std::fs::read_dir(self.disks.path()).unwrap() {
                let path = entry.unwrap().path();
                testkit::copy_file(&path, &copy.path().join(path.file_name().unwrap()));
            }
            before == txg()
        });
        let engine = testkit::engine();
        let pool = import_from(&engine, copy.path(), &writing()).unwrap();
        let objects = pool.root().unwrap().open_rw().unwrap();
        for (&id, &seed) in &self.content {
            let read = objects.read_vec(ObjectId(id), 0, SIZE).unwrap();
            assert!(read == noise(seed, SIZE), "{} crash {when}: object {id}", self.what);
        }
        drop(objects);
        resilver(&pool);
        pool.export().unwrap();
        drop(pool);
        judge(&engine, copy.path());
    }

    pub(crate) fn export(self) -> DiskFiles {
        let Rig { disks, engine, pool, objects, .. } = self;
        drop(objects);
        pool.export().unwrap();
        drop(pool);
        judge(&engine, &disks.path());
        disks
    }
}

/// Waits until nothing is being replaced, and no spare is to leave.
pub(crate) fn wait_settled(pool: &Pool, what: &str) {
    for _ in 0..2000 {
        let config = pool.writer().unwrap().published().config;
        let leaving = |v: &VdevConfig| {
            let unspare = v.children.first().is_some_and(|first| first.leaf.unspare);
            v.kind == VdevType::Replacing || v.kind == VdevType::Spare && unspare
        };
        if !config.vdev_tree.walk().any(leaving) {
            return;
        }
        base::rt::sleep(std::time::Duration::from_millis(5));
    }
    panic!("{what}: the replacement does not end");
}

fn shapes() -> Vec<(&'static str, usize, NewKind)> {
    vec![
        ("mirror2", 2, NewKind::Mirror),
        ("mirror3", 3, NewKind::Mirror),
        ("raidz1", 3, NewKind::Raidz { nparity: 1 }),
        ("raidz2", 5, NewKind::Raidz { nparity: 2 }),
        ("raidz3", 6, NewKind::Raidz { nparity: 3 }),
        ("draid1", 5, NewKind::Draid { nparity: 1, ndata: Some(2), nspares: 1 }),
    ]
}

fn every_shape(f: impl Fn(Rig, usize) + Sync) {
    let cases: Vec<_> = shapes().into_iter().flat_map(|s| [(s.clone(), 9), (s, 12)]).collect();
    testkit::side_by_side(&cases, |((what, n, kind), ashift)| {
        let vdev = |disks: &DiskFiles| disks.group(kind.clone(), 0..*n);
        f(Rig::new(what, n + 1, &vdev, *ashift), *n);
    });
}

pub(crate) const AWAY: Offline = Offline { mode: OfflineMode::Offline, temporary: false };

/// A leaf that was offline misses what was written meanwhile, also after a crash, and no more.
#[test]
fn an_offline_leaf_misses_what_was_written_meanwhile() {
    every_shape(|mut rig, n| {
        rig.fill(0..6);
        let leaf = rig.used_leaf(n);
        let (away, other) = (rig.name(leaf), rig.name((leaf + 1) % n));
        let first = rig.pool.writer().unwrap().sync().unwrap();
        rig.engine.offline(&rig.pool, &away, AWAY, Some("zpool offline ...")).unwrap();
        rig.fill(6..12);
        rig.check("offline");
        rig.after_crash("offline");
        assert!(!rig.dtl(leaf).ranges().is_empty(), "{}: {:?}", rig.what, rig.missing());
        rig.engine.online(&rig.pool, &away, false, Some("zpool online ...")).unwrap();
        let last = rig.pool.writer().unwrap().sync().unwrap();
        // A resilver may have begun, and may have ended.
        let within = |r: &(Txg, Txg)| first < r.0 && r.1 <= last;
        let missed = rig.dtl(leaf);
        assert!(missed.ranges().iter().all(within), "{}: {missed:?}, {first}, {last}", rig.what);
        rig.fill(12..18);
        let missed = rig.dtl(leaf);
        let what = "it is written again";
        assert!(missed.ranges().iter().all(within), "{}: {what}, {missed:?}, {last}", rig.what);
        rig.check("online again");
        rig.after_crash("online again");
        resilver(&rig.pool);
        assert!(!rig.behind(leaf), "{}: {:?}", rig.what, rig.missing());
        // Now another one may leave.
        rig.engine.offline(&rig.pool, &other, AWAY, None).unwrap();
        rig.check("the other one is offline");
        rig.engine.online(&rig.pool, &other, false, None).unwrap();
        resilver(&rig.pool);
        drop(rig.export());
    });
}

/// A leaf without which data would be lost stays; a temporary absence ends with the import.
#[test]
fn a_needed_leaf_stays() {
    let mut rig = Rig::new("needed", 2, &|d| d.group(NewKind::Mirror, 0..2), 12);
    rig.fill(0..3);
    let temporary = Offline { temporary: true, ..AWAY };
    rig.engine.offline(&rig.pool, &rig.name(0), temporary, None).unwrap();
    let refused = rig.engine.offline(&rig.pool, &rig.name(1), AWAY, None).unwrap_err();
    assert_eq!(kind(refused), (ErrorKind::Busy, "no valid replicas".into()));
    rig.fill(3..6);
    let unknown = rig.engine.offline(&rig.pool, "nothing", AWAY, None).unwrap_err();
    assert_eq!(kind(unknown), (ErrorKind::NotFound, "no such device in pool".into()));
    let disks = rig.export();
    let engine = testkit::engine();
    let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
    let tree = pool.writer().unwrap().zio().tree();
    assert!(tree.leaves().all(|(_, n)| n.readable()));
    drop(tree);
    // A device is not faulted while the other one lacks something.
    let fault = Offline { mode: OfflineMode::Fault, temporary: false };
    let [d0, d1] = ["d0", "d1"].map(|name| disks.path().join(name).display().to_string());
    resilver(&pool);
    engine.offline(&pool, &d0, temporary, None).unwrap();
    let refused = engine.offline(&pool, &d1, fault, None).unwrap_err();
    assert_eq!(kind(refused), (ErrorKind::Busy, "no valid replicas".into()));
    engine.online(&pool, &d0, false, None).unwrap();
    resilver(&pool);
    engine.offline(&pool, &d1, fault, None).unwrap();
    engine.clear(&pool, None, None).unwrap();
    resilver(&pool);
    pool.export().unwrap();
    drop(pool);
    judge(&engine, &disks.path());
}

/// A spare steps in for a faulted device; it goes back, or stays for good.
#[test]
fn spares_step_in() {
    let cases: Vec<_> =
        shapes().into_iter().flat_map(|s| [(s.clone(), 9, true), (s, 12, false)]).collect();
    testkit::side_by_side(&cases, |((what, n, shape), ashift, back)| {
        let distributed = matches!(shape, NewKind::Draid { .. });
        let disks = DiskFiles::new(&format!("spares-{what}"), n + 1, 128 * MB);
        let engine = testkit::engine();
        let mut vdevs = vec![disks.group(shape.clone(), 0..*n)];
        if !distributed {
            vdevs.push(disks.leaf(*n).for_role(Role::Spare));
        }
        let settings = vec![PoolSetting::Stored("ashift", *ashift)];
        let pool = engine.create_pool(&request(vdevs, settings)).unwrap().unwrap();
        let objects = pool.root().unwrap().open_rw().unwrap();
        let what = format!("spare of {what}, ashift {ashift}");
        let mut rig = Rig { disks, engine, pool, objects, content: BTreeMap::new(), what };
        rig.fill(0..6);
        let fault = Offline { mode: OfflineMode::Fault, temporary: false };
        assert!(rig.engine.call_spares().is_empty(), "{}", rig.what);
        rig.engine.offline(&rig.pool, &rig.name(0), fault, None).unwrap();
        let called = rig.engine.call_spares();
        assert_eq!(called.len(), 1, "{}: {called:?}", rig.what);
        assert!(rig.engine.call_spares().is_empty(), "{}: it has a spare", rig.what);
        rig.fill(6..12);
        rig.check("with a spare");
        rig.after_crash("with a spare");
        resilver(&rig.pool);
        rig.check("resilvered to the spare");
        if *back || distributed {
            rig.engine.online(&rig.pool, &rig.name(0), false, None).unwrap();
            resilver(&rig.pool);
            rig.settled();
            let spares = rig.pool.writer().unwrap().spares().unwrap();
            assert!(spares.len() == 1 && !spares[0].1, "{}: {spares:?}", rig.what);
        } else {
            rig.pool.detach_vdev(&rig.name(0), None).unwrap();
            assert!(rig.pool.writer().unwrap().spares().unwrap().is_empty(), "{}", rig.what);
        }
        rig.fill(12..15);
        rig.check("without a spare");
        drop(rig.export());
    });
}

/// What OpenZFS left half done is imported, finished and undamaged.
#[test]
fn pools_that_openzfs_left_half_done() {
    let names = ["replacing", "hotspare", "dspared", "outdated", "resilvering", "rebuilt"];
    testkit::side_by_side(&names, |name| {
        let Some(golden) = testkit::golden(name) else {
            return testkit::skip(testkit::Need::Shared, name);
        };
        let scratch = Scratch::new(name);
        golden.unpack(scratch.path());
        let engine = testkit::engine();
        let pool = import_from(&engine, scratch.path(), &writing()).unwrap();
        let compare = |when: &str| {
            for (dataset, manifest) in golden.manifests() {
                let fs = pool.dataset(&dataset).unwrap().open_fs().unwrap();
                let wrong = testkit::verify(&fs, &manifest, true);
                assert!(wrong.is_empty(), "{name} {when}: {wrong:?}");
            }
        };
        compare("imported");
        resilver(&pool);
        wait_settled(&pool, name);
        engine.drop_cache();
        compare("finished");
        pool.export().unwrap();
        drop(pool);
        judge(&engine, scratch.path());
    });
}

/// A device is replaced by another one while the pool is written, and then in its own place.
#[test]
fn devices_are_replaced() {
    every_shape(|mut rig, n| {
        rig.fill(0..6);
        let leaves = rig.leaves();
        rig.attach(1, Some(n), AttachMode::Replace).unwrap();
        rig.check("replacing");
        rig.after_crash("replacing");
        rig.fill(6..12);
        rig.check("replacing, written");
        resilver(&rig.pool);
        rig.settled();
        assert_eq!(rig.leaves(), leaves, "{}", rig.what);
        rig.check("replaced");
        rig.after_crash("replaced");
        // The old device belongs to no pool any more.
        rig.engine.offline(&rig.pool, &rig.name(0), AWAY, None).unwrap();
        rig.fill(12..14);
        let path = rig.disks.path().join("d0");
        std::fs::remove_file(&path).unwrap();
        std::fs::File::create(&path).unwrap().set_len(128 * MB).unwrap();
        rig.attach(0, None, AttachMode::Replace).unwrap();
        rig.fill(14..16);
        rig.check("replacing in place");
        resilver(&rig.pool);
        rig.settled();
        assert_eq!(rig.leaves(), leaves, "{}", rig.what);
        rig.check("replaced in place");
        drop(rig.export());
    });
}

/// A disk becomes a mirror of three and a disk again.
#[test]
fn mirrors_grow_and_shrink() {
    testkit::side_by_side(&[9, 12], |&ashift| {
        let mut rig = Rig::new("disk", 3, &|disks| disks.leaf(0), ashift);
        rig.fill(0..6);
        rig.attach(0, Some(1), AttachMode::Attach).unwrap();
        rig.fill(6..9);
        rig.check("attached");
        rig.after_crash("attached");
        // The new side lacks what is written without it.
        rig.engine.offline(&rig.pool, &rig.name(1), AWAY, None).unwrap();
        rig.fill(20..22);
        let refused = rig.pool.detach_vdev(&rig.name(0), None).unwrap_err();
        assert_eq!(kind(refused), (ErrorKind::Busy, "no valid replicas".into()));
        rig.engine.online(&rig.pool, &rig.name(1), false, None).unwrap();
        rig.attach(1, Some(2), AttachMode::Attach).unwrap();
        assert_eq!(rig.leaves(), 3);
        resilver(&rig.pool);
        rig.fill(9..12);
        rig.pool.detach_vdev(&rig.name(0), Some("zpool detach ...")).unwrap();
        rig.check("without the first");
        rig.after_crash("without the first");
        rig.pool.detach_vdev(&rig.name(1), None).unwrap();
        rig.fill(12..15);
        rig.check("one is left");
        rig.after_crash("one is left");
        let refused = rig.pool.detach_vdev(&rig.name(2), None).unwrap_err();
        let words = "only applicable to mirror and replacing vdevs";
        assert_eq!(kind(refused), (ErrorKind::Unsupported, words.into()));
        drop(rig.export());
    });
}
