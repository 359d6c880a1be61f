//! Devices that fail in their own ways: what the daemon's diagnosis makes of them, and that no
//! file suffers. The table of docs/compatibility.md ("Devices that fail") has these rows.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::rt::Mutex;
use cenote::create::{NewKind, NewVdev, PoolSetting};
use cenote::diagnosis::{Diagnosis, FaultAction};
use cenote::{Engine, EngineConfig, Guid, Pool, VdevState, VdevStatus};
use device::{Device, Fault, FaultDevice};

use crate::caches::{content, fill, read_all, small_engine};
use crate::{DiskFiles, MB, judge, request};

pub(crate) type Disks = Arc<Mutex<Vec<(String, Weak<FaultDevice>)>>>;

/// An engine whose devices can fail, by the names of their files.
pub(crate) fn faulty_engine() -> (Arc<Engine>, Disks) {
    let list = Disks::default();
    let own = Arc::clone(&list);
    let wrap = move |device: Arc<dyn Device>| -> Arc<dyn Device> {
        let (name, faulty) = (device.describe(), Arc::new(FaultDevice::new(device)));
        own.lock().push((name, Arc::downgrade(&faulty)));
        faulty
    };
    let device_wrapper = Some(cenote::DeviceWrapper::new(wrap));
    (small_engine(EngineConfig { device_wrapper, ..EngineConfig::default() }), list)
}

/// The device of a file, as it is open now.
pub(crate) fn disk(disks: &Disks, file: &str) -> Arc<FaultDevice> {
    let list = disks.lock();
    let named = list.iter().rev().filter(|(name, _)| name.contains(file));
    named.filter_map(|(_, device)| device.upgrade()).next().unwrap()
}

pub(crate) fn leaf(status: &VdevStatus, file: &str) -> Option<VdevStatus> {
    if status.children.is_empty() {
        return status.name.ends_with(file).then(|| status.clone());
    }
    status.children.iter().find_map(|child| leaf(child, file))
}

/// What the daemon's thread does: reads the events and acts on them.
pub(crate) struct Daemon<'a> {
    engine: &'a Engine,
    pool: &'a Pool,
    diagnosis: Diagnosis,
    last: u64,
    /// The classes of the events so far.
    classes: BTreeSet<String>,
}

impl<'a> Daemon<'a> {
    pub(crate) fn new(engine: &'a Engine, pool: &'a Pool) -> Daemon<'a> {
        let diagnosis = Diagnosis::default();
        Daemon { engine, pool, diagnosis, last: 0, classes: BTreeSet::new() }
    }

    pub(crate) fn follow(&mut self) {
        let batch = self.engine.events().read(self.last);
        self.last = batch.last;
        self.classes.extend(batch.events.iter().map(|event| event.subclass().to_owned()));
        let thresholds = |_, vdev| self.pool.thresholds(Guid(vdev));
        for verdict in self.diagnosis.read_all(&batch.events, &thresholds) {
            let done = match verdict.action {
                FaultAction::Fault => self.pool.fault_vdev(Guid(verdict.vdev)),
                FaultAction::Degrade { .. } => self.pool.degrade_vdev(Guid(verdict.vdev)),
            };
            done.unwrap();
        }
    }
}

/// A way to fail.
struct FailingDisk {
    name: &'static str,
    faults: Vec<Fault>,
    /// The state of the leaf in the end.
    state: VdevState,
    remark: Option<&'static str>,
    /// The class of the errors.
    class: &'static str,
}

fn failures() -> Vec<FailingDisk> {
    let too_many = Some("too many errors");
    // A hundredth of the device, spread over it.
    let wrong = (0..128).map(|n| Fault::Flip(n * MB + 300_000..n * MB + 310_000, 0x20)).collect();
    let (faulted, degraded) = (VdevState::Faulted, VdevState::Degraded);
    vec![
        FailingDisk {
            name: "wrong bytes in a hundredth of the reads",
            faults: wrong,
            state: degraded,
            remark: too_many,
            class: "checksum",
        },
        FailingDisk {
            name: "reads fail",
            faults: vec![Fault::FailReads(5 * MB..u64::MAX)],
            state: faulted,
            remark: too_many,
            class: "io",
        },
        FailingDisk {
            name: "writes fail",
            faults: vec![Fault::FailWrites(0..u64::MAX)],
            state: faulted,
            remark: too_many,
            class: "io",
        },
        FailingDisk {
            name: "the device shrank",
            // Its size was read when it was opened.
            faults: vec![Fault::FailReads(8 * MB..u64::MAX), Fault::FailWrites(8 * MB..u64::MAX)],
            state: faulted,
            remark: too_many,
            class: "io",
        },
        FailingDisk {
            name: "slow",
            faults: vec![Fault::Delay(Duration::from_millis(3))],
            state: degraded,
            remark: too_many,
            class: "delay",
        },
    ]
}

fn suffer(name: &str, kind: NewKind, width: usize, ashift: u64, failure: &FailingDisk) {
    let what = format!("{name}, ashift {ashift}, {}", failure.name);
    let disks = DiskFiles::new("diagnosis", width, 128 * MB);
    let (engine, opened) = faulty_engine();
    let vdev: NewVdev = disks.group(kind, 0..width);
    let settings = vec![PoolSetting::Stored("ashift", ashift)];
    let pool = engine.create_pool(&request(vec![vdev], settings)).unwrap().unwrap();
    let slow_ms = if failure.class == "delay" { "2" } else { "30000" };
    cenote::tune::find("zio_slow_io_ms").unwrap().set(&engine, slow_ms).unwrap();
    cenote::tune::find("zfs_slow_io_events_per_second").unwrap().set(&engine, "0").unwrap();
    let victim = disks.path().join("d1");
    let victim = victim.to_str().unwrap();
    // Without this, slow operations have no consequences.
    pool.set_vdev_prop(victim, "slow_io_n", "6", None).unwrap();
    pool.set_vdev_prop(victim, "slow_io_t", "600", None).unwrap();
    let objects = pool.root().unwrap().open_rw().unwrap();
    let ids = fill(&objects, 96);
    let mut daemon = Daemon::new(&engine, &pool);
    daemon.follow();
    failure.faults.iter().for_each(|fault| disk(&opened, "/d1").inject(fault.clone()));
    let state = || leaf(&pool.status().unwrap().root, "d1").unwrap();
    for round in 0..40u64 {
        read_all(&pool, &objects, &ids);
        objects.write(ids[(round % 7) as usize], 0, &content(round % 7)).unwrap();
        objects.sync().unwrap();
        daemon.follow();
        if state().state() == failure.state {
            break;
        }
    }
    // Another thread posts the events.
    for class in [failure.class, "statechange"] {
        testkit::eventually(&format!("{what}: {class} is posted"), || {
            daemon.follow();
            daemon.classes.contains(class)
        });
    }
    let found = state();
    assert_eq!(found.state(), failure.state, "{what}: {:?}", daemon.classes);
    assert_eq!(found.aux.as_deref(), failure.remark, "{what}");
    assert_eq!(pool.status().unwrap().root.state(), VdevState::Degraded, "{what}");
    assert_eq!(found.slow_ios > 0, failure.class == "delay", "{what}");
    assert!(!pool.is_suspended(), "{what}");
    read_all(&pool, &objects, &ids);
    // The device is repaired, and gets another chance.
    disk(&opened, "/d1").heal();
    engine.clear(&pool, Some(victim), None).unwrap();
    testkit::eventually("the repair is posted", || {
        daemon.follow();
        daemon.classes.contains("vdev_clear")
    });
    let cleared = state();
    let missed = cleared.aux.as_deref().is_some_and(|aux| aux.contains("resilver"));
    assert!(cleared.state() == VdevState::Online || missed, "{what}: {cleared:?}");
    read_all(&pool, &objects, &ids);
    pool.export().unwrap();
    drop((objects, pool));
    judge(&engine, &disks.path());
}

/// What the user had: a disk of a redundant pool that failed in one of five ways. The files
/// stayed right, the device's state and the events said what was wrong, and `zpool clear`
/// gave it another chance.
#[test]
fn devices_that_fail_are_told_apart() {
    let shapes = [
        ("mirror", NewKind::Mirror, 2),
        ("raidz1", NewKind::Raidz { nparity: 1 }, 3),
        ("raidz2", NewKind::Raidz { nparity: 2 }, 5),
    ];
    let failures = failures();
    let mut cases = Vec::new();
    for (n, (name, kind, width)) in shapes.iter().enumerate() {
        for (m, failure) in failures.iter().enumerate() {
            // Slowness has nothing to do with redundancy, and takes time.
            if failure.class == "delay" && n > 0 {
                continue;
            }
            let ashift = if (n + m) % 2 == 0 { 9 } else { 12 };
            cases.push((*name, kind, *width, ashift, failure));
        }
    }
    // Each waits for its devices and for events.
    testkit::side_by_side(&cases, |(name, kind, width, ashift, failure)| {
        suffer(name, (*kind).clone(), *width, *ashift, failure);
    });
}

/// A device that the pool cannot do without stays in use whatever its errors.
#[test]
fn the_last_copy_is_not_faulted() {
    let disks = DiskFiles::new("diagnosis-last", 1, 128 * MB);
    let (engine, _) = faulty_engine();
    let pool = engine.create_pool(&request(vec![disks.leaf(0)], Vec::new())).unwrap().unwrap();
    let guid = pool.status().unwrap().root.children[0].guid;
    assert!(!pool.fault_vdev(guid).unwrap());
    assert!(pool.degrade_vdev(guid).unwrap());
    assert!(!pool.degrade_vdev(guid).unwrap(), "it is so already");
    assert_eq!(pool.status().unwrap().root.state(), VdevState::Degraded);
    engine.clear(&pool, None, None).unwrap();
    assert_eq!(pool.status().unwrap().root.state(), VdevState::Online);
    pool.export().unwrap();
}
