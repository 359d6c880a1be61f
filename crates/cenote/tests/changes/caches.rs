//! Cache devices: blocks come back from them, whatever happens to the devices.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};

use base::rt::{self, Mutex};
use cenote::VdevState;
use cenote::create::{AddRequest, Force, NewKind, NewVdev, PoolSetting, Role};
use cenote::{Engine, EngineConfig, ObjectId, Objects, Pool};
use device::{Device, Fault, FaultDevice};
use testkit::{Scratch, golden, import_from, verify};

use crate::{DiskFiles, MB, judge, noise, request, writing};

pub(crate) const BLOCK: usize = 128 << 10;
/// What has not happened by then does not happen.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

/// An engine with a small cache, and tunables for small devices.
pub(crate) fn small_engine(config: EngineConfig) -> Arc<Engine> {
    let engine = Engine::new(EngineConfig { cache_bytes: Some(8 << 20), ..config }).unwrap();
    for (name, value) in [
        ("l2arc_rebuild_blocks_min_l2size", "0"),
        ("l2arc_feed_secs", "3600"),
        ("l2arc_feed_again", "0"),
    ] {
        cenote::tune::find(name).unwrap().set(&engine, value).unwrap();
    }
    engine
}

pub(crate) fn cache(disks: &DiskFiles, i: usize) -> NewVdev {
    disks.leaf(i).for_role(Role::Cache)
}

/// Content that compresses for odd numbers.
pub(crate) fn content(n: u64) -> Vec<u8> {
    let mut bytes = noise(n + 1, BLOCK);
    if n % 2 == 1 {
        bytes[BLOCK / 3..].fill(n as u8);
    }
    bytes
}

pub(crate) fn fill(objects: &Objects, count: u64) -> Vec<ObjectId> {
    let make = |n| {
        let id = objects.create(&Default::default()).unwrap();
        objects.write(id, 0, &content(n)).unwrap();
        id
    };
    let ids = (0..count).map(make).collect();
    objects.sync().unwrap();
    ids
}

/// Reads and compares every object, and lets the feed write what left memory.
pub(crate) fn read_all(pool: &Pool, objects: &Objects, ids: &[ObjectId]) {
    for (n, id) in ids.iter().enumerate() {
        assert!(objects.read_vec(*id, 0, BLOCK).unwrap() == content(n as u64), "object {n}");
        if let Some(caches) = pool.spa().zio().cache_devices() {
            caches.drain();
        }
    }
}

/// Waits until the pool's cache devices are open and restored.
pub(crate) fn await_caches(pool: &Pool, count: usize) {
    let restored = || {
        let caches = pool.spa().zio().cache_devices();
        caches.is_some_and(|c| c.devices().len() == count && !c.is_rebuilding())
    };
    assert!(rt::poll(LIMIT, restored), "the cache devices are not open and restored");
}

pub(crate) fn l2(engine: &Engine) -> cenote::inspect::arc::stats::SecondTierStats {
    engine.arc_stats().l2
}

/// OpenZFS's zdb reads the device's header, and finds every log block that it counts.
fn judge_cache(path: &Path) {
    let Ok(out) = Command::new("zdb").arg("-l").arg(path).output() else {
        return testkit::skip(testkit::Need::Zdb, "zdb is not installed");
    };
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && text.contains("L2ARC device header"), "{text}");
    let count = |name: &str| {
        let at = text.find(name).unwrap_or_else(|| panic!("no {name}: {text}"));
        let digits = text[at + name.len()..].trim_start_matches([':', ' ', '\t']);
        digits.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let (said, found) = (count("lb_count_refcount"), count("log_blk_count"));
    assert!(said > 0 && said == found, "{text}");
}

/// Fills a pool, evicts it to the cache device, reads it back from there before and after
/// an export, and lets zdb judge the pool.
fn story(name: &str, disks: &DiskFiles, vdev: NewVdev, last: usize, ashift: u64) {
    let engine = small_engine(EngineConfig::default());
    let settings = vec![PoolSetting::Stored("ashift", ashift)];
    let pool =
        engine.create_pool(&request(vec![vdev, cache(disks, last)], settings)).unwrap().unwrap();
    await_caches(&pool, 1);
    let objects = pool.root().unwrap().open_rw().unwrap();
    let ids = fill(&objects, 320);
    read_all(&pool, &objects, &ids);
    let filled = l2(&engine);
    assert!(filled.asize > 8 * MB && filled.log_blk_count > 0, "{name}: {filled:?}");
    engine.drop_cache();
    read_all(&pool, &objects, &ids);
    let warm = l2(&engine);
    let hits = warm.hits - filled.hits;
    assert!(hits > 60, "{name}: {hits} hits: {warm:?}");
    assert_eq!((warm.cksum_bad, warm.io_error, warm.writes_error), (0, 0, 0), "{name}");
    // A freed block leaves the device.
    let blocks = warm.asize;
    objects.remove(ids[0]).unwrap();
    objects.sync().unwrap();
    assert!(l2(&engine).asize < blocks, "{name}");
    let status = pool.status().unwrap();
    assert_eq!(status.aux[0].state, Some(VdevState::Online));
    assert!(status.aux[0].allocated > 8 * MB && status.aux[0].io.reads().ops > 0, "{name}");
    pool.export().unwrap();
    drop((objects, pool));
    drop(engine);
    judge_cache(&disks.path().join(format!("d{last}")));
    let engine = small_engine(EngineConfig::default());
    let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
    await_caches(&pool, 1);
    let restored = l2(&engine);
    assert!(restored.rebuild_success == 1 && restored.rebuild_bufs > 60, "{name}: {restored:?}");
    let objects = pool.root().unwrap().open_rw().unwrap();
    for (n, id) in ids.iter().enumerate().skip(1) {
        assert!(objects.read_vec(*id, 0, BLOCK).unwrap() == content(n as u64), "object {n}");
    }
    let warm = l2(&engine);
    assert!(warm.hits > 60 && warm.cksum_bad == 0, "{name}: {warm:?}");
    pool.export().unwrap();
    drop((objects, pool));
    judge(&engine, &disks.path());
}

#[test]
fn blocks_come_back_before_and_after_an_export() {
    let raidz = NewKind::Raidz { nparity: 1 };
    let draid = NewKind::Draid { nparity: 1, ndata: Some(2), nspares: 1 };
    let kinds = [
        ("disk", None, 1),
        ("mirror", Some(NewKind::Mirror), 2),
        ("raidz", Some(raidz), 3),
        ("draid", Some(draid), 5),
    ];
    let cases: Vec<_> = kinds.iter().flat_map(|k| [(k, 9), (k, 12)]).collect();
    testkit::side_by_side(&cases, |((name, kind, width), ashift)| {
        let name = format!("caches-{name}{ashift}");
        let disks = DiskFiles::new(&name, width + 1, 128 * MB);
        let vdev = match kind {
            None => disks.leaf(0),
            Some(kind) => disks.group(kind.clone(), 0..*width),
        };
        story(&name, &disks, vdev, *width, *ashift);
    });
}

/// The devices, newest last; they are not kept open.
type FaultDevices = Arc<Mutex<Vec<Weak<FaultDevice>>>>;

/// Puts a [`FaultDevice`] above each cache device.
fn with_faults() -> (EngineConfig, FaultDevices) {
    let list = FaultDevices::default();
    let own = Arc::clone(&list);
    let wrap = move |device: Arc<dyn Device>| -> Arc<dyn Device> {
        if !device.describe().contains("/cache-") {
            return device;
        }
        let faulty = Arc::new(FaultDevice::new(device));
        own.lock().push(Arc::downgrade(&faulty));
        faulty
    };
    let device_wrapper = Some(cenote::DeviceWrapper::new(wrap));
    (EngineConfig { device_wrapper, ..EngineConfig::default() }, list)
}

pub(crate) fn cache_file(disks: &DiskFiles, name: &str) -> (NewVdev, PathBuf) {
    let path = disks.path().join(name);
    std::fs::File::create(&path).unwrap().set_len(128 * MB).unwrap();
    (NewVdev::new(NewKind::File(path.clone())).for_role(Role::Cache), path)
}

pub(crate) fn add(engine: &Engine, pool: &Arc<Pool>, vdev: NewVdev) {
    let request = AddRequest {
        vdevs: vec![vdev],
        force: Force::ALL,
        dry_run: false,
        ashift: None,
        command: Some("zpool add tank cache ...".into()),
    };
    engine.add_vdevs(pool, &request).unwrap();
}

/// Stops the readers.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// What the user did: read files while a cache device was added, lied, failed, was taken
/// offline and removed. No reader may notice.
#[test]
fn readers_notice_nothing_of_what_happens_to_cache_devices() {
    let disks = DiskFiles::new("caches-faults", 1, 128 * MB);
    let (config, devices) = with_faults();
    let engine = small_engine(config);
    cenote::tune::find("l2arc_policy").unwrap().set(&engine, "openzfs").unwrap();
    let pool = engine.create_pool(&request(vec![disks.leaf(0)], Vec::new())).unwrap().unwrap();
    let objects = pool.root().unwrap().open_rw().unwrap();
    let ids = fill(&objects, 240);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    read_all(&pool, &objects, &ids);
                }
            });
        }
        // Also when an assertion fails.
        let _end = StopAtEnd(&stop);
        let passes = |n: u64| {
            let from = engine.arc_stats().all().misses;
            let passed = || engine.arc_stats().all().misses >= from + n * 120;
            assert!(rt::poll(LIMIT, passed), "the readers stand still");
        };
        let (vdev, path) = cache_file(&disks, "cache-a");
        let name = path.to_str().unwrap();
        add(&engine, &pool, vdev);
        await_caches(&pool, 1);
        passes(2);
        assert!(l2(&engine).hits > 0);
        let device = || devices.lock().last().unwrap().upgrade().unwrap();
        // It lies.
        device().inject(Fault::Flip(5 << 20..100 << 20, 0x10));
        passes(1);
        assert!(l2(&engine).cksum_bad > 0);
        device().heal();
        engine.clear(&pool, Some(name), None).unwrap();
        passes(1);
        // It fails.
        device().inject(Fault::FailReads(0..u64::MAX));
        passes(1);
        device().inject(Fault::FailWrites(0..u64::MAX));
        passes(1);
        let status = pool.status().unwrap();
        assert_eq!(status.aux[0].state, Some(VdevState::Faulted), "{:?}", status.aux);
        device().heal();
        engine.clear(&pool, Some(name), None).unwrap();
        let hits = l2(&engine).hits;
        passes(2);
        assert!(l2(&engine).hits > hits, "a cleared device is used again");
        // It is taken offline and back, and another one joins it.
        let how = cenote::Offline { temporary: true, ..Default::default() };
        engine.offline(&pool, name, how, None).unwrap();
        assert_eq!(pool.status().unwrap().aux[0].state, Some(VdevState::Offline));
        assert!(engine.offline(&pool, "d0", how, None).is_err());
        engine.clear(&pool, Some(name), None).unwrap();
        assert_eq!(pool.status().unwrap().aux[0].state, Some(VdevState::Offline));
        passes(1);
        engine.online(&pool, name, false, None).unwrap();
        await_caches(&pool, 1);
        let (second, other) = cache_file(&disks, "cache-b");
        add(&engine, &pool, second);
        await_caches(&pool, 2);
        passes(1);
        pool.remove_vdev(name, None).unwrap();
        assert_eq!(pool.status().unwrap().aux.len(), 1);
        passes(1);
        pool.remove_vdev(other.to_str().unwrap(), None).unwrap();
        passes(1);
    });
    pool.export().unwrap();
    drop((objects, pool));
    judge(&engine, &disks.path());
}

/// What the user did: the machine's power failed while the cache device was written; and
/// the cache device was gone at the next import, and there again at the one after.
#[test]
fn a_crash_and_an_absent_device_cost_the_cache_only() {
    let disks = DiskFiles::new("caches-crash", 2, 128 * MB);
    let engine = small_engine(EngineConfig::default());
    let vdevs = vec![disks.leaf(0), cache(&disks, 1)];
    let pool = engine.create_pool(&request(vdevs, Vec::new())).unwrap().unwrap();
    await_caches(&pool, 1);
    let objects = pool.root().unwrap().open_rw().unwrap();
    let ids = fill(&objects, 240);
    read_all(&pool, &objects, &ids);
    // The pool on disk stays as it is now; then the writes of a log block are cut short.
    let logs = pool.spa().zio().cache_devices().unwrap().devices()[0].logs();
    pool.give_up();
    drop((objects, pool));
    let file = std::fs::File::options().write(true).open(disks.path().join("d1")).unwrap();
    let middle = 5 * MB + logs[0] / 2;
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 4096], middle).unwrap();
    let check = |caches: usize| {
        let engine = small_engine(EngineConfig::default());
        let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
        if caches > 0 {
            await_caches(&pool, caches);
        }
        let objects = pool.root().unwrap().open_rw().unwrap();
        read_all(&pool, &objects, &ids);
        let mut state = pool.status().unwrap().aux[0].state;
        rt::poll(LIMIT, || {
            state = pool.status().unwrap().aux[0].state;
            caches > 0 || state != Some(VdevState::Online)
        });
        let stats = l2(&engine);
        pool.export().unwrap();
        (state, stats)
    };
    let (_, after) = check(1);
    assert!(after.rebuild_success == 1 && after.hits > 0, "{after:?}");
    let away = disks.path().with_extension("away");
    std::fs::rename(disks.path().join("d1"), &away).unwrap();
    let (state, without) = check(0);
    assert_eq!((state, without.hits), (Some(VdevState::Unavail), 0));
    std::fs::rename(&away, disks.path().join("d1")).unwrap();
    let (state, back) = check(1);
    assert!(state == Some(VdevState::Online) && back.hits > 0, "{back:?}");
    judge(&engine, &disks.path());
}

/// A pool of OpenZFS's with 44 MB of blocks on its cache device: they are found and used.
#[test]
fn the_content_that_openzfs_cached_is_used() {
    let Some(golden) = golden("l2arc") else { return };
    let scratch = Scratch::new("l2arc-golden");
    golden.unpack(scratch.path());
    let engine = small_engine(EngineConfig::default());
    let pool = import_from(&engine, scratch.path(), &testkit::readonly()).unwrap();
    await_caches(&pool, 1);
    let restored = l2(&engine);
    // The counters of OpenZFS's own import of this pool.
    assert_eq!((restored.rebuild_success, restored.rebuild_log_blks), (1, 50), "{restored:?}");
    assert!(restored.rebuild_bufs >= 745, "{restored:?}");
    for (name, manifest) in golden.manifests() {
        let fs = pool.dataset(&name).unwrap().open_fs().unwrap();
        assert_eq!(verify(&fs, &manifest, true), Vec::<String>::new());
    }
    let used = l2(&engine);
    assert!(used.hits > 300 && used.cksum_bad == 0 && used.io_error == 0, "{used:?}");
}

/// Properties `primarycache` and `secondarycache` hold for the next read, and read-ahead
/// still works.
#[test]
fn cache_properties_are_obeyed_at_once() {
    let disks = DiskFiles::new("caches-props", 2, 128 * MB);
    let engine = small_engine(EngineConfig::default());
    cenote::tune::find("l2arc_policy").unwrap().set(&engine, "openzfs").unwrap();
    let vdevs = vec![disks.leaf(0), cache(&disks, 1)];
    let pool = engine.create_pool(&request(vdevs, Vec::new())).unwrap().unwrap();
    await_caches(&pool, 1);
    let objects = pool.root().unwrap().open_rw().unwrap();
    let set = |name: &str, value: u64| {
        let value = cenote::PropData::Num(value);
        pool.set_props("tank", &[(name.to_owned(), value)], None).unwrap();
    };
    set("secondarycache", 0);
    let ids = fill(&objects, 240);
    read_all(&pool, &objects, &ids);
    assert_eq!(l2(&engine).bufc_data_asize, 0, "secondarycache=none");
    set("secondarycache", 1);
    read_all(&pool, &objects, &ids);
    assert_eq!(l2(&engine).bufc_data_asize, 0, "secondarycache=metadata");
    set("secondarycache", 2);
    read_all(&pool, &objects, &ids);
    read_all(&pool, &objects, &ids);
    assert!(l2(&engine).bufc_data_asize > 8 * MB, "secondarycache=all");
    let misses = |n: usize| {
        let before = engine.arc_stats().all().misses;
        for _ in 0..3 {
            objects.read_vec(ids[n], 0, BLOCK).unwrap();
        }
        engine.arc_stats().all().misses - before
    };
    engine.drop_cache();
    misses(3);
    assert_eq!(misses(3), 0, "primarycache=all");
    for value in [0, 1] {
        set("primarycache", value);
        engine.drop_cache();
        misses(4);
        assert!(misses(4) >= 3, "primarycache={value}");
        // A block read in small pieces is read once from the disk.
        engine.drop_cache();
        let before = engine.arc_stats().all().misses;
        for at in (0..BLOCK as u64).step_by(4096) {
            objects.read_vec(ids[5], at, 4096).unwrap();
        }
        let pieces = engine.arc_stats().all().misses - before;
        assert!(pieces < 8, "{pieces} reads for one block in pieces, primarycache={value}");
    }
    set("primarycache", 2);
    misses(6);
    assert_eq!(misses(6), 0, "primarycache=all again");
    pool.export().unwrap();
    drop((objects, pool));
    judge(&engine, &disks.path());
}
