//! Pools whose disks fail one after the other while they are used and their power is cut.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use base::Result;
use base::rt::{JoinHandle, spawn};
use cenote::create::{NewKind, PoolSetting, Role};
use cenote::files::{Caller, New, WritePosition};
use cenote::inspect::spa::engine::{FreeSpaceTuning, JobState, ScanLimits};
use cenote::{
    AttachMode, AttachRequest, Engine, ErrorKind, JobAction, JobKind, NewDevice, ObjectId, Objects,
    Pool, PoolState, ScanRequest, ScanState, VdevState, VdevStatus,
};
use device::Fault;
use testkit::{Disk, Rng, import_from};
use txg::FailMode;

use crate::diagnosis::{Daemon, Disks, disk, faulty_engine, leaf};
use crate::topology::{resilver, wait_settled};
use crate::{DiskFiles, MB, noise, request, writing, zdb_text};

/// Objects of the load.
const OBJECTS: usize = 96;

fn content(id: u64, version: u64) -> Vec<u8> {
    match version {
        0 => Vec::new(),
        version => noise(version, 600 + (id as usize * 7919) % 120_000),
    }
}

/// The versions that each object may have after a power cut: the last one that is on disk, and
/// all since then. The last one is the present one; `None`: there is no such object.
#[derive(Clone, Default)]
pub(crate) struct ObjectVersions(BTreeMap<u64, Vec<Option<u64>>>);

impl ObjectVersions {
    fn add(&mut self, id: ObjectId, version: Option<u64>) {
        self.0.entry(id.0).or_insert_with(|| vec![None]).push(version);
    }

    fn synced(&mut self) {
        self.0.values_mut().for_each(|versions| drop(versions.drain(..versions.len() - 1)));
        self.0.retain(|_, versions| versions[0].is_some());
    }

    fn present(&self) -> Vec<(u64, u64)> {
        let last = |(id, versions): (&u64, &Vec<_>)| Some((*id, (*versions.last()?)?));
        self.0.iter().filter_map(last).collect()
    }

    /// Compares what is there with what may be there, which is the only possibility then.
    fn check(&mut self, objects: &Objects, what: &str) {
        for (&id, versions) in &mut self.0 {
            let found = match objects.size(ObjectId(id)) {
                Ok(size) => Some(objects.read_vec(ObjectId(id), 0, size as usize).unwrap()),
                Err(e) if e.kind() == ErrorKind::NotFound => None,
                Err(e) => panic!("{what}: object {id}: {e}"),
            };
            let is = |v: &&Option<u64>| found == v.map(|version| content(id, version));
            let version = versions.iter().rev().find(is);
            let version = *version.unwrap_or_else(|| panic!("{what}: object {id} {versions:?}"));
            *versions = vec![version];
        }
        self.0.retain(|_, versions| versions[0].is_some());
    }
}

/// A thread that creates, overwrites, removes and reads objects until it is stopped, or gets an
/// error.
pub(crate) struct ObjectLoad {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<ObjectVersions>,
}

impl ObjectLoad {
    pub(crate) fn start(pool: &Pool, versions: ObjectVersions, seed: u64) -> ObjectLoad {
        let objects = pool.root().unwrap().open_rw().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = move || {
            let (mut versions, mut rng, mut next) = (versions, Rng::new(seed), seed << 32);
            while !stopped.load(Relaxed) {
                next += 1;
                if change(&objects, &mut versions, &mut rng, next).is_err() {
                    break;
                }
            }
            versions
        };
        ObjectLoad { stop, thread: spawn("load", work).unwrap() }
    }

    /// After an error of the pool.
    fn failed(self) -> ObjectVersions {
        self.thread.join().unwrap()
    }

    pub(crate) fn stop(self) -> ObjectVersions {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap()
    }
}

/// One change, or a read.
fn change(
    objects: &Objects,
    versions: &mut ObjectVersions,
    rng: &mut Rng,
    next: u64,
) -> Result<()> {
    let present = versions.present();
    let chosen = present.get(rng.index(present.len().max(1))).copied();
    match (rng.below(8), chosen) {
        (0 | 1, _) if present.len() < OBJECTS => {
            let id = objects.create(&Default::default())?;
            versions.add(id, Some(0));
            versions.add(id, Some(next));
            objects.write(id, 0, &content(id.0, next))
        }
        (2 | 3, Some((id, _))) => {
            versions.add(ObjectId(id), Some(next));
            objects.write(ObjectId(id), 0, &content(id, next))
        }
        (4, Some((id, _))) if present.len() > OBJECTS / 3 => {
            versions.add(ObjectId(id), None);
            objects.remove(ObjectId(id))
        }
        (5, _) => {
            objects.sync()?;
            versions.synced();
            Ok(())
        }
        (_, Some((id, version))) => {
            let wanted = content(id, version);
            let found = objects.read_vec(ObjectId(id), 0, wanted.len())?;
            assert!(found == wanted, "object {id}, version {version}");
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A kind of top-level vdev that survives the loss of two disks.
#[derive(Clone, Debug)]
struct CareLayout {
    name: &'static str,
    kind: NewKind,
    width: usize,
    ashift: u64,
}

impl CareLayout {
    fn is_draid(&self) -> bool {
        matches!(self.kind, NewKind::Draid { .. })
    }
}

fn layouts() -> Vec<CareLayout> {
    let kinds = [
        ("raidz2", NewKind::Raidz { nparity: 2 }, 6),
        ("mirror", NewKind::Mirror, 3),
        ("draid2", NewKind::Draid { nparity: 2, ndata: Some(2), nspares: 1 }, 6),
    ];
    let of = |(name, kind, width): (&'static str, NewKind, usize)| {
        [9, 12].map(|ashift| CareLayout { name, kind: kind.clone(), width, ashift })
    };
    kinds.into_iter().flat_map(of).collect()
}

/// What repairs the disks does not get past this much of its work; 0: it does.
pub(crate) fn hold(pool: &Pool, bytes: u64) {
    let writer = pool.writer().unwrap();
    let checkpoint = Duration::ZERO;
    let slice_blocks = 16;
    writer.set_scan_limits(ScanLimits { slice_blocks, checkpoint, ..ScanLimits::default() });
    writer.plants.scan.hold_after.store(bytes, Relaxed);
    writer.plants.rebuild.hold_at.store(bytes, Relaxed);
}

/// A resilver of either kind has begun, and has not ended.
fn is_in_the_middle(pool: &Pool) -> bool {
    let writer = pool.writer().unwrap();
    let scans = writer.running_scan_progress().is_some_and(|scan| scan.issued > 0);
    scans || writer.is_rebuilding()
}

fn scrub(pool: &Pool) -> cenote::ScanStatus {
    pool.scan(ScanRequest::Scrub, None).unwrap();
    let writer = pool.writer().unwrap();
    testkit::eventually("the end of the scrub", || writer.running_scan().is_none());
    pool.status().unwrap().scan.unwrap()
}

fn unwell(vdev: &VdevStatus) -> bool {
    let errors = vdev.read_errors + vdev.write_errors + vdev.checksum_errors;
    vdev.state() != VdevState::Online || errors > 0 || vdev.children.iter().any(unwell)
}

/// What the user had: a pool in use. A disk is pulled, and a spare steps in; another disk loses all
/// its data; a third one is replaced; and the power is cut in the middle of it. In the end
/// every file is right, and the pool is as it was.
#[test]
fn a_pool_survives_its_disks() {
    testkit::side_by_side(&layouts(), |layout| {
        let what = format!("{} ashift {}", layout.name, layout.ashift);
        let width = layout.width;
        let disks = DiskFiles::new(&format!("care-{}", layout.name), width + 2, 160 * MB);
        let (engine, opened) = faulty_engine();
        let mut vdevs = vec![disks.group(layout.kind.clone(), 0..width)];
        if !layout.is_draid() {
            vdevs.push(disks.leaf(width).for_role(Role::Spare));
        }
        let settings = vec![PoolSetting::Stored("ashift", layout.ashift)];
        let pool = engine.create_pool(&request(vdevs, settings)).unwrap().unwrap();
        let mut load = ObjectLoad::start(&pool, ObjectVersions::default(), 1);
        load = after_load(&pool, load, 2, 3 * MB);
        hold(&pool, MB);
        fail_and_call_spare(&engine, &pool, &opened, &what);
        let name = |i: usize| disks.path().join(format!("d{i}"));
        Disk::new(name(1)).zero_data();
        engine.drop_cache();
        testkit::eventually("a resilver", || is_in_the_middle(&pool));
        let replacement = AttachRequest {
            old: name(2).display().to_string(),
            new: Some(NewDevice::Path(NewKind::File(name(width + 1)))),
            mode: AttachMode::Replace,
            sequential: layout.is_draid(),
            force: false,
            ashift: None,
            command: None,
        };
        engine.attach(&pool, &replacement).unwrap();
        assert!(is_in_the_middle(&pool), "{what}");
        // The power is cut.
        pool.writer().unwrap().abandon();
        let mut versions = load.failed();
        pool.writer().unwrap().stop();
        drop((pool, engine, opened));

        let (engine, _) = faulty_engine();
        let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
        let objects = pool.root().unwrap().open_rw().unwrap();
        versions.check(&objects, &format!("{what}: after the power cut"));
        let load = ObjectLoad::start(&pool, versions, 3);
        // The first disk is put in again.
        engine.online(&pool, &name(0).display().to_string(), false, None).unwrap();
        resilver(&pool);
        wait_settled(&pool, &what);
        let repaired = scrub(&pool);
        assert_eq!(repaired.errors, 0, "{what}: {repaired:?}");
        resilver(&pool);
        wait_settled(&pool, &what);
        engine.clear(&pool, None, None).unwrap();
        let clean = scrub(&pool);
        assert_eq!((clean.processed, clean.errors), (0, 0), "{what}: {clean:?}");
        let mut versions = load.stop();
        let status = pool.status().unwrap();
        assert!(!unwell(&status.root), "{what}: {:?}", status.root);
        assert_eq!(pool.writer().unwrap().published().config.vdev_tree.leaves().count(), width);
        let spares = pool.writer().unwrap().spares().unwrap();
        assert!(spares.len() == 1 && !spares[0].1, "{what}: {spares:?}");
        assert_eq!(status.error_count, 0, "{what}");
        engine.drop_cache();
        versions.check(&objects, &format!("{what}: in the end"));
        drop(objects);
        pool.export().unwrap();
        drop(pool);
        if let Some(text) = zdb_text(&disks.path(), &["-bcc", "tank"]) {
            assert!(text.contains("No leaks"), "{what}: {text}");
        }
    });
}

/// Lets a load go on until the pool has this much.
fn after_load(pool: &Pool, load: ObjectLoad, seed: u64, bytes: u64) -> ObjectLoad {
    let writer = pool.writer().unwrap();
    let allocated = || writer.space().vdev_totals(base::VdevId(0)).unwrap().allocated;
    testkit::eventually("content", || allocated() > bytes);
    ObjectLoad::start(pool, load.stop(), seed)
}

/// The first disk does not answer any more: it is faulted, and a spare takes its place.
fn fail_and_call_spare(engine: &Engine, pool: &Pool, opened: &Disks, what: &str) {
    let mut daemon = Daemon::new(engine, pool);
    daemon.follow();
    let first = disk(opened, "/d0");
    first.inject(Fault::FailReads(0..u64::MAX));
    first.inject(Fault::FailWrites(0..u64::MAX));
    let state = || leaf(&pool.status().unwrap().root, "d0").unwrap().state();
    testkit::eventually("the fault of the disk", || {
        pool.writer().unwrap().sync().unwrap();
        daemon.follow();
        state() == VdevState::Faulted
    });
    let called = engine.look_after_devices().lines;
    assert_eq!(called.len(), 1, "{what}: {called:?}");
}

/// What the user had: the devices failed during `zpool export`. The export said so, and the pool
/// stayed imported. After `zpool clear` nothing went on: the scrub, the trim and autotrim were
/// stopped for good, `fsync` waited for txgs, and `failmode=wait` had become `continue`. And
/// the labels said "exported", so that another host could have imported the pool.
#[test]
fn a_pool_that_was_not_exported_goes_on() {
    testkit::side_by_side(&[(9, true), (12, true), (12, false)], |&(ashift, busy)| {
        let what = format!("ashift {ashift}, busy {busy}");
        let disks = DiskFiles::new("care-export", 2, 128 * MB);
        let (engine, opened) = faulty_engine();
        let mut create = request(vec![disks.group(NewKind::Mirror, 0..2)], Vec::new());
        create.settings = vec![PoolSetting::Stored("ashift", ashift)];
        let pool = engine.create_pool(&create).unwrap().unwrap();
        let writer = pool.writer().unwrap();
        let objects = pool.root().unwrap().open_rw().unwrap();
        for n in 0..40 {
            let id = objects.create(&Default::default()).unwrap();
            objects.write(id, 0, &noise(n, 90_000)).unwrap();
        }
        objects.sync().unwrap();
        let first = pool.status().unwrap().root.children[0].children[0].guid;
        let trim = || writer.job_status(first, JobKind::Trim).record;
        let start = JobAction::Start { rate: 1 << 20, secure: false };
        if busy {
            pool.set(&PoolSetting::Stored("autotrim", 1), None).unwrap();
            let tuning =
                FreeSpaceTuning { trim_batch: 1, trim_min: 512, ..FreeSpaceTuning::default() };
            writer.set_free_space_tuning(tuning);
            pool.on_free_space(JobKind::Trim, start, &[], None).unwrap();
            hold(&pool, 64 << 10);
            pool.scan(ScanRequest::Scrub, None).unwrap();
            testkit::eventually("a scrub", || is_in_the_middle(&pool));
        }
        let fs = pool.root().unwrap().open_fs().unwrap();
        let file = fs.make(&Caller::root(), fs.root(), b"file", &New::file(0o644)).unwrap().id;
        let logs = |bytes: &[u8]| {
            let blocks = || -> u64 {
                writer.all_logs().values().map(|log| log.stats().normal.count.load(Relaxed)).sum()
            };
            let before = blocks();
            fs.write(&Caller::root(), file, WritePosition::Offset(0), bytes).unwrap();
            fs.fsync(file).unwrap();
            blocks() > before
        };
        // The first one begins the chain; a txg that ends in between needs no log.
        testkit::eventually("a log block", || logs(b"logged"));
        // Only what the export itself writes is left.
        writer.sync().unwrap();
        let both = [disk(&opened, "/d0"), disk(&opened, "/d1")];
        both.iter().for_each(|disk| disk.inject(Fault::FailWrites(0..u64::MAX)));
        let refused = pool.export().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Io, "{what}: {refused}");
        assert!(pool.is_suspended(), "{what}");
        both.iter().for_each(|disk| disk.heal());
        engine.clear(&pool, None, None).unwrap();
        objects.sync().unwrap();

        assert_eq!(writer.txgs().failmode(), FailMode::Wait, "{what}");
        assert_eq!(writer.published().config.state, PoolState::Active, "{what}");
        let state = |n: usize| Disk::new(disks.path().join(format!("d{n}"))).label(0).unwrap();
        assert_eq!([0, 1].map(|n| state(n).u64("state")), [Some(0); 2], "{what}");
        testkit::eventually("a log block after the export", || logs(b"logged"));
        if busy {
            hold(&pool, 0);
            let scanned = || pool.status().unwrap().scan.unwrap();
            testkit::eventually("the scrub", || scanned().state == ScanState::Finished);
            assert_eq!(scanned().errors, 0, "{what}");
            let at = trim().offset;
            // On a busy machine it may have ended before.
            let is_over = || trim().state == JobState::Complete;
            testkit::eventually("the trim", || trim().offset > at || is_over());
            let cancelled = pool.on_free_space(JobKind::Trim, JobAction::Cancel, &[], None);
            assert!(cancelled.is_ok() || is_over(), "{what}");
            objects.list().unwrap().iter().for_each(|id| objects.remove(*id).unwrap());
            testkit::eventually("autotrim", || {
                writer.touch();
                writer.sync().unwrap();
                writer.space().collected().is_empty()
            });
        }
        drop((fs, objects, both));
        pool.export().unwrap();
        assert_eq!([0, 1].map(|n| state(n).u64("state")), [Some(1); 2], "{what}");
        drop(pool);
        let pool = import_from(&engine, &disks.path(), &testkit::readonly()).unwrap();
        let fs = pool.root().unwrap().open_fs().unwrap();
        let read = fs.read(file, 0, 6, cenote::Io::WAIT).unwrap();
        assert!(read.iter().flat_map(|part| part.iter()).eq(b"logged"), "{what}");
        drop((fs, pool));
        if let Some(text) = zdb_text(&disks.path(), &["-bcc", "tank"]) {
            assert!(text.contains("No leaks"), "{what}: {text}");
        }
    });
}

/// The thread of a scrub that could not go on (the pool was suspended) kept the pool open for up to a
/// second at a time; an engine that was dropped still had its devices open, and locked.
#[test]
fn a_scrub_that_waits_does_not_keep_the_pool_open() {
    let disks = DiskFiles::new("care-waits", 1, 128 * MB);
    let engine = testkit::engine();
    let pool = engine.create_pool(&request(vec![disks.leaf(0)], Vec::new())).unwrap().unwrap();
    let objects = pool.root().unwrap().open_rw().unwrap();
    let id = objects.create(&Default::default()).unwrap();
    objects.write(id, 0, &noise(1, 100_000)).unwrap();
    objects.sync().unwrap();
    let writer = pool.writer().unwrap();
    // Other threads may have one for a moment, too.
    let least = || {
        let counts = (0..20).map(|_| {
            base::rt::sleep(Duration::from_millis(5));
            Arc::strong_count(writer)
        });
        counts.min().unwrap_or(0)
    };
    let references = least();
    hold(&pool, 1);
    pool.scan(ScanRequest::Scrub, None).unwrap();
    testkit::eventually("a scrub that waits", || is_in_the_middle(&pool));
    // Once is chance; the thread looks at its state once a second.
    let mut seen = 0;
    testkit::eventually("a thread without the pool", || {
        seen = if Arc::strong_count(writer) <= references { seen + 1 } else { 0 };
        seen == 5
    });
    hold(&pool, 0);
    drop(objects);
    pool.export().unwrap();
}
