//! Devices that go and return, spares of several pools, and pools that are split.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use cenote::create::{NewKind, PoolSetting, Role};
use cenote::inspect::vdev::State;
use cenote::{
    AttachMode, Engine, ErrorKind, NewDevice, ObjectId, Offline, OfflineMode, Pool, SplitRequest,
};
use testkit::{Scratch, import_from};

use crate::topology::{AWAY, Rig, SIZE, resilver, wait_settled};
use crate::{DiskFiles, MB, judge, kind, noise, request, writing};

const FAULT: Offline = Offline { mode: OfflineMode::Fault, temporary: false };

fn state_of(pool: &Pool, path: &str) -> State {
    let tree = pool.writer().unwrap().zio().tree();
    tree.leaves().find(|(_, n)| n.path() == Some(path)).unwrap().1.state()
}

fn mirror(what: &str, disks: usize, ashift: u64) -> Rig {
    Rig::new(what, disks, &|d| d.group(NewKind::Mirror, 0..2), ashift)
}

/// The import read the end of each range as a part of it: after each import, a leaf missed one
/// txg more than before.
#[test]
fn an_import_leaves_what_a_leaf_misses() {
    let mut rig = mirror("stored-dtl", 2, 12);
    rig.fill(0..3);
    let d0 = rig.name(0);
    // No resilver ends before the export.
    rig.pool.writer().unwrap().plants.scan.hold_after.store(u64::MAX, Relaxed);
    rig.engine.offline(&rig.pool, &d0, AWAY, None).unwrap();
    rig.fill(3..6);
    rig.engine.online(&rig.pool, &d0, false, None).unwrap();
    rig.fill(6..8);
    let missed = rig.dtl(0);
    assert!(!missed.is_empty());
    let disks = rig.export();
    for _ in 0..2 {
        let engine = testkit::engine();
        let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
        let tree = pool.writer().unwrap().zio().tree();
        let (_, leaf) = tree.leaves().find(|(_, n)| n.path() == Some(d0.as_str())).unwrap();
        // Where the machine is fast, the resilver is over.
        let now = leaf.dtl();
        assert!(*now == missed || now.is_empty(), "{now:?}, not {missed:?}");
        drop(tree);
        pool.export().unwrap();
    }
}

/// `zpool reopen` cleared faults and error counts, as `zpool clear` does.
#[test]
fn a_faulted_device_stays_faulted_when_devices_are_opened_again() {
    let mut rig = mirror("reopen", 2, 9);
    rig.fill(0..3);
    let d0 = rig.name(0);
    rig.engine.offline(&rig.pool, &d0, FAULT, None).unwrap();
    rig.engine.reopen(&rig.pool).unwrap();
    rig.fill(3..5);
    assert_eq!(state_of(&rig.pool, &d0), State::Faulted);
    assert!(!rig.dtl(0).ranges().is_empty());
    rig.engine.clear(&rig.pool, Some(&d0), None).unwrap();
    assert_eq!(state_of(&rig.pool, &d0), State::Online);
    resilver(&rig.pool);
    // A diagnosis that lasts: the device is opened again, and stays degraded.
    let guid =
        rig.pool.writer().unwrap().published().config.vdev_tree.leaves().next().unwrap().guid;
    assert!(rig.pool.degrade_vdev(guid).unwrap());
    rig.engine.reopen(&rig.pool).unwrap();
    assert_eq!(state_of(&rig.pool, &d0), State::Degraded);
    // So it is by a change of the tree.
    rig.attach(1, None, AttachMode::Replace).unwrap_err();
    let d1 = rig.name(1);
    rig.engine.offline(&rig.pool, &d1, AWAY, None).unwrap();
    assert_eq!(state_of(&rig.pool, &d0), State::Degraded);
    rig.engine.online(&rig.pool, &d1, false, None).unwrap();
    resilver(&rig.pool);
    drop(rig.export());
}

/// Requests that are refused change nothing.
#[test]
fn refusals_change_nothing() {
    let mut rig = mirror("refused", 4, 12);
    rig.fill(0..3);
    std::fs::File::options().write(true).open(rig.name(3)).unwrap().set_len(70 * MB).unwrap();
    let labels = std::fs::read(rig.name(3)).unwrap();
    let before = rig.pool.writer().unwrap().published().config.vdev_tree.clone();
    let refused = |rig: &Rig, done: cenote::Result<()>, words: (ErrorKind, &str)| {
        let (error, text) = kind(done.unwrap_err());
        assert_eq!((error, text.as_str()), words);
        let now = rig.pool.writer().unwrap().published().config.vdev_tree.clone();
        assert_eq!(now.to_nvlist(), before.to_nvlist(), "{}", words.1);
    };
    let small = rig.attach(0, Some(3), AttachMode::Replace);
    refused(&rig, small, (ErrorKind::Invalid, "device is too small"));
    let small = rig.attach(0, Some(3), AttachMode::Attach);
    refused(&rig, small, (ErrorKind::Invalid, "device is too small"));
    assert!(std::fs::read(rig.name(3)).unwrap() == labels, "it was written");
    let none = rig.pool.detach_vdev("nothing", None);
    refused(&rig, none, (ErrorKind::NotFound, "no such device in pool"));
    let top = rig.pool.detach_vdev("mirror-0", None);
    let words = "only applicable to mirror and replacing vdevs";
    refused(&rig, top, (ErrorKind::Unsupported, words));
    let top = rig.engine.offline(&rig.pool, "mirror-0", AWAY, None);
    let words = "operation not supported on this type of pool";
    refused(&rig, top, (ErrorKind::Unsupported, words));
    // The only complete copy stays in use, and what it misses does not grow.
    rig.engine.offline(&rig.pool, &rig.name(0), AWAY, None).unwrap();
    rig.fill(3..5);
    rig.engine.online(&rig.pool, &rig.name(0), false, None).unwrap();
    let missed = rig.dtl(0);
    for _ in 0..2 {
        let (error, text) = kind(rig.pool.detach_vdev(&rig.name(1), None).unwrap_err());
        assert_eq!((error, text.as_str()), (ErrorKind::Busy, "no valid replicas"));
    }
    assert_eq!(state_of(&rig.pool, &rig.name(1)), State::Online);
    assert!(!rig.behind(1), "{:?}", rig.missing());
    assert_eq!(rig.dtl(0), missed);
    resilver(&rig.pool);
    drop(rig.export());
}

/// A device that was missing is taken back when it is there again; with `autoreplace` a blank one
/// in its place replaces it.
#[test]
fn devices_return_and_are_replaced_by_themselves() {
    testkit::side_by_side(&[(9, true), (12, true), (9, false), (12, false)], |&(ashift, blank)| {
        let mut rig = mirror(if blank { "blank" } else { "returns" }, 2, ashift);
        rig.fill(0..4);
        rig.pool.set(&PoolSetting::Stored("autoreplace", 1), None).unwrap();
        let (content, what, d1) = (rig.content.clone(), rig.what.clone(), rig.name(1));
        let disks = rig.export();
        let away = Scratch::new("topology-away");
        let kept = away.path().join("kept");
        std::fs::rename(&d1, &kept).unwrap();
        let engine = testkit::engine();
        let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
        let objects = pool.root().unwrap().open_rw().unwrap();
        let mut rig = Rig { disks, engine, pool, objects, content, what };
        rig.fill(4..8);
        let looked = rig.engine.look_after_devices();
        assert!(looked.missing && looked.lines.is_empty(), "{looked:?}");
        let tree = rig.pool.writer().unwrap().zio().tree();
        assert!(tree.leaves().any(|(_, n)| !n.dtl().ranges().is_empty()));
        drop(tree);
        match blank {
            true => std::fs::File::create(&d1).unwrap().set_len(128 * MB).unwrap(),
            false => std::fs::rename(&kept, &d1).unwrap(),
        }
        let looked = rig.engine.look_after_devices();
        assert_eq!(looked.lines.len(), 1, "{looked:?}");
        rig.fill(8..10);
        rig.check("is back");
        rig.after_crash("is back");
        resilver(&rig.pool);
        wait_settled(&rig.pool, &rig.what);
        assert_eq!(rig.leaves(), 2);
        assert!(!rig.engine.look_after_devices().missing);
        rig.engine.offline(&rig.pool, &rig.name(0), AWAY, None).unwrap();
        rig.check("from the device that is back");
        rig.engine.online(&rig.pool, &rig.name(0), false, None).unwrap();
        resilver(&rig.pool);
        drop(rig.export());
    });
}

/// A spare in the lists of two pools steps in for the one that needs it first; the other one gets
/// it when it is free again.
#[test]
fn pools_share_spares() {
    let (one, two) =
        (DiskFiles::new("sharing-one", 3, 128 * MB), DiskFiles::new("sharing-two", 2, 128 * MB));
    let engine = testkit::engine();
    let spare = one.leaf(2).for_role(Role::Spare);
    let make = |name: &str, disks: &DiskFiles| {
        let vdevs = vec![disks.group(NewKind::Mirror, 0..2), spare.clone()];
        let request =
            cenote::create::CreateRequest { name: name.into(), ..request(vdevs, Vec::new()) };
        engine.create_pool(&request).unwrap().unwrap()
    };
    let (a, b) = (make("one", &one), make("two", &two));
    let name = |disks: &DiskFiles, i| disks.path().join(format!("d{i}")).display().to_string();
    let guid = |pool: &Pool| pool.writer().unwrap().spares().unwrap()[0].0.guid;
    assert_eq!(guid(&a), guid(&b), "both know the spare by one guid");
    let again = cenote::create::AddRequest {
        vdevs: vec![spare.clone()],
        force: cenote::create::Force::ALL,
        dry_run: false,
        ashift: None,
        command: None,
    };
    assert_eq!(engine.add_vdevs(&a, &again).unwrap_err().kind(), ErrorKind::Busy);
    engine.offline(&a, &name(&one, 0), FAULT, None).unwrap();
    assert_eq!(engine.call_spares().len(), 1);
    engine.offline(&b, &name(&two, 0), FAULT, None).unwrap();
    assert!(engine.call_spares().is_empty(), "the spare is in use");
    let busy = cenote::AttachRequest {
        old: name(&two, 0),
        new: Some(NewDevice::Spare(name(&one, 2))),
        mode: AttachMode::Replace,
        sequential: false,
        force: false,
        ashift: None,
        command: None,
    };
    assert_eq!(engine.attach(&b, &busy).unwrap_err().kind(), ErrorKind::Busy);
    let removed = a.remove_vdev(&name(&one, 2), None).unwrap_err();
    assert_eq!(removed.kind(), ErrorKind::Busy, "a spare in use stays in the list");
    resilver(&a);
    a.detach_vdev(&name(&one, 2), None).unwrap();
    assert_eq!(engine.call_spares().len(), 1, "now the first pool needs it again, or the second");
    let used = |pool: &Pool| pool.writer().unwrap().spares().unwrap()[0].1;
    assert!(used(&a) != used(&b));
    let user = if used(&a) { &a } else { &b };
    resilver(user);
    let (other, disks) = if used(&a) { (&a, &one) } else { (&b, &two) };
    engine.online(other, &name(disks, 0), false, None).unwrap();
    resilver(other);
    wait_settled(other, "shared");
    assert!(!used(&a) && !used(&b));
    for (pool, disks) in [(a, &one), (b, &two)] {
        engine.online(&pool, &name(disks, 0), false, None).unwrap();
        resilver(&pool);
        pool.remove_vdev(&name(&one, 2), None).unwrap();
        assert!(pool.writer().unwrap().spares().unwrap().is_empty());
        pool.export().unwrap();
        drop(pool);
        judge(&engine, &disks.path());
    }
}

fn read_all(engine: &Engine, pool: &Pool, content: &BTreeMap<u64, u64>, what: &str) {
    engine.drop_cache();
    let objects = pool.root().unwrap().open_rw().unwrap();
    for (&id, &seed) in content {
        let read = objects.read_vec(ObjectId(id), 0, SIZE).unwrap();
        assert!(read == noise(seed, SIZE), "{what}: object {id}");
    }
}

fn split(new_name: &str, devices: &[String]) -> SplitRequest {
    SplitRequest {
        new_name: new_name.to_owned(),
        devices: devices.to_vec(),
        command: Some("zpool split ...".to_owned()),
        ..SplitRequest::default()
    }
}

/// A pool of mirrors becomes two pools with the same content, each of which goes on alone.
#[test]
fn pools_are_split() {
    testkit::side_by_side(&[9, 12], |&ashift| {
        let disks = DiskFiles::new("split", 8, 128 * MB);
        let engine = testkit::engine();
        let vdevs = vec![
            disks.group(NewKind::Mirror, 0..2),
            disks.group(NewKind::Mirror, 2..5),
            disks.group(NewKind::Mirror, 5..7).for_role(Role::Log),
            disks.leaf(7).for_role(Role::Spare),
        ];
        let settings = vec![PoolSetting::Stored("ashift", ashift)];
        let pool = engine.create_pool(&request(vdevs, settings)).unwrap().unwrap();
        let objects = pool.root().unwrap().open_rw().unwrap();
        let what = format!("split, ashift {ashift}");
        let mut rig = Rig { disks, engine, pool, objects, content: BTreeMap::new(), what };
        rig.fill(0..8);
        let before = rig.pool.writer().unwrap().published().config.vdev_tree.to_nvlist();
        let refused = |rig: &Rig, request: SplitRequest, words: (ErrorKind, &str)| {
            let (error, text) = kind(rig.engine.split(&rig.pool, &request).unwrap_err());
            assert_eq!((error, text.as_str()), words);
            let now = rig.pool.writer().unwrap().published().config.vdev_tree.to_nvlist();
            assert_eq!(now, before, "{}", words.1);
        };
        let two = [rig.name(2), rig.name(3)];
        refused(&rig, split("new", &two), (ErrorKind::Invalid, "invalid vdev configuration"));
        refused(&rig, split("tank", &[]), (ErrorKind::Exists, "pool already exists"));
        let none = [rig.name(5)];
        refused(&rig, split("new", &none), (ErrorKind::NotFound, "no such device in pool"));
        let dry = SplitRequest { dry_run: true, ..split("new", &[rig.name(2)]) };
        let plan = rig.engine.split(&rig.pool, &dry).unwrap();
        let paths: Vec<String> = plan.devices.iter().map(|d| d.1.display().to_string()).collect();
        assert_eq!(paths, [rig.name(1), rig.name(2)]);
        // A device that misses something is not taken.
        rig.engine.offline(&rig.pool, &rig.name(2), AWAY, None).unwrap();
        rig.fill(8..10);
        rig.engine.online(&rig.pool, &rig.name(2), false, None).unwrap();
        let behind = rig.engine.split(&rig.pool, &split("new", &[rig.name(2)])).unwrap_err();
        assert_eq!(kind(behind), (ErrorKind::Busy, "pool is busy".into()));
        resilver(&rig.pool);
        let settings = vec![PoolSetting::Comment("the other half".into())];
        let request = SplitRequest { settings, ..split("new", &[rig.name(2)]) };
        let content = rig.content.clone();
        let made = rig.engine.split(&rig.pool, &request).unwrap();
        // Both go on, each on its own devices.
        let apart = Scratch::new("topology-split");
        for i in [1, 2] {
            std::fs::rename(rig.name(i), apart.path().join(format!("d{i}"))).unwrap();
        }
        rig.fill(10..13);
        rig.check("the old pool");
        rig.after_crash("the old pool");
        let engine = testkit::engine();
        let new = import_from(&engine, apart.path(), &writing()).unwrap();
        assert_eq!((new.name(), new.guid()), ("new", made.guid));
        read_all(&engine, &new, &content, "the new pool");
        let config = new.writer().unwrap().published().config;
        assert_eq!(config.vdev_tree.leaves().count(), 2);
        assert_eq!(config.comment.as_ref().unwrap().to_str(), Some("the other half"));
        assert!(new.writer().unwrap().spares().unwrap().is_empty());
        let objects = new.root().unwrap().open_rw().unwrap();
        let id = objects.create(&Default::default()).unwrap();
        objects.write(id, 0, &noise(99, SIZE)).unwrap();
        objects.sync().unwrap();
        drop(objects);
        new.export().unwrap();
        drop((new, config));
        judge(&engine, apart.path());
        let tops = rig.pool.writer().unwrap().published().config.vdev_tree.children.len();
        assert_eq!(tops, 3);
        drop(rig.export());
    });
}

/// Only mirrors can be split.
#[test]
fn other_pools_are_not_split() {
    let shapes = [("raidz", NewKind::Raidz { nparity: 1 }), ("single", NewKind::Mirror)];
    for (name, shape) in shapes {
        let vdev = |d: &DiskFiles| match name {
            "single" => d.leaf(0),
            _ => d.group(shape.clone(), 0..3),
        };
        let mut rig = Rig::new(&format!("no-split-{name}"), 3, &vdev, 12);
        rig.fill(0..2);
        let words = "Source pool must be composed only of mirrors";
        let refused = rig.engine.split(&rig.pool, &split("new", &[])).unwrap_err();
        assert_eq!(kind(refused), (ErrorKind::Invalid, words.into()));
        drop(rig.export());
    }
}

/// A crash while a pool is split leaves the old pool whole, whatever became of the new one.
#[test]
fn a_crash_before_the_split_is_over_leaves_the_old_pool() {
    let mut rig = mirror("split-crash", 2, 12);
    rig.fill(0..4);
    let writer = std::sync::Arc::clone(rig.pool.writer().unwrap());
    let root = writer.published().config.vdev_tree.clone();
    let leaves = cenote::inspect::spa::engine::leaves_to_split(&root, &[]).unwrap();
    let devices = writer.begin_split(&leaves).unwrap();
    rig.fill(4..6);
    rig.after_crash("before the new pool is made");
    assert!(!rig.dtl(1).ranges().is_empty(), "{:?}", rig.missing());
    writer.cancel_split(&devices);
    drop((devices, writer));
    resilver(&rig.pool);
    rig.engine.split(&rig.pool, &split("new", &[])).unwrap();
    let away = Scratch::new("topology-split-off");
    std::fs::rename(rig.name(1), away.path().join("d1")).unwrap();
    rig.after_crash("after the split");
    let engine = testkit::engine();
    let new = import_from(&engine, Path::new(away.path()), &writing()).unwrap();
    read_all(&engine, &new, &rig.content, "the new pool");
    new.export().unwrap();
    drop(new);
    judge(&engine, away.path());
    drop(rig.export());
}
