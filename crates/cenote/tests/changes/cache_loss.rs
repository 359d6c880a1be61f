//! Cache devices that fail beside pools that fail, and cache devices that stay offline.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::ErrorKind;
use base::rt::{self, Mutex};
use cenote::create::{CreateRequest, NewVdev, PoolSetting};
use cenote::{Engine, EngineConfig, Offline, OfflineMode, Pool, VdevState};
use device::{Caps, Device, DeviceStats, Fault, FaultDevice, Op};
use testkit::import_from;

use crate::caches::{
    BLOCK, add, await_caches, cache, cache_file, content, fill, l2, read_all, small_engine,
};
use crate::{DiskFiles, MB, judge, request, writing};

const FOR_GOOD: Offline = Offline { mode: OfflineMode::Offline, temporary: false };
const FOR_NOW: Offline = Offline { temporary: true, ..FOR_GOOD };

/// A device that stops answering when told to; what it swallowed fails when it is dropped.
struct SilentDevice {
    inner: Arc<dyn Device>,
    is_silent: AtomicBool,
    swallowed: Mutex<Vec<Op>>,
}

impl Device for SilentDevice {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn submit(&self, batch: Vec<Op>) {
        match self.is_silent.load(SeqCst) {
            true => self.swallowed.lock().extend(batch),
            false => self.inner.submit(batch),
        }
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn stats(&self) -> &DeviceStats {
        self.inner.stats()
    }
}

impl SilentDevice {
    /// Answers again, also what it swallowed.
    fn speak(&self) {
        self.is_silent.store(false, SeqCst);
        self.inner.submit(std::mem::take(&mut *self.swallowed.lock()));
    }
}

/// The devices that an engine opened: cache devices may be silent, others may fail. They are
/// not kept open.
#[derive(Clone, Default)]
struct FaultyDevices {
    caches: Arc<Mutex<Vec<Weak<SilentDevice>>>>,
    disks: Arc<Mutex<Vec<Weak<FaultDevice>>>>,
}

impl FaultyDevices {
    fn engine(&self) -> Arc<Engine> {
        let own = self.clone();
        let wrap = move |device: Arc<dyn Device>| -> Arc<dyn Device> {
            if device.describe().contains("/cache-") {
                let (is_silent, swallowed) = (AtomicBool::new(false), Mutex::default());
                let silent = Arc::new(SilentDevice { inner: device, is_silent, swallowed });
                own.caches.lock().push(Arc::downgrade(&silent));
                return silent;
            }
            let faulty = Arc::new(FaultDevice::new(device));
            own.disks.lock().push(Arc::downgrade(&faulty));
            faulty
        };
        let device_wrapper = Some(cenote::DeviceWrapper::new(wrap));
        let engine = small_engine(EngineConfig { device_wrapper, ..EngineConfig::default() });
        cenote::tune::find("l2arc_policy").unwrap().set(&engine, "openzfs").unwrap();
        engine
    }

    fn each_disk(&self, change: impl Fn(&FaultDevice)) {
        let disks: Vec<_> = self.disks.lock().iter().filter_map(Weak::upgrade).collect();
        disks.iter().for_each(|disk| change(disk));
    }

    fn hush(&self) {
        let caches: Vec<_> = self.caches.lock().iter().filter_map(Weak::upgrade).collect();
        caches.iter().for_each(|device| device.is_silent.store(true, SeqCst));
    }

    fn speak(&self) {
        let caches: Vec<_> = self.caches.lock().iter().filter_map(Weak::upgrade).collect();
        caches.iter().for_each(|device| device.speak());
    }
}

/// A pool that is suspended when its devices fail.
fn waiting_pool(vdevs: Vec<NewVdev>) -> CreateRequest {
    let settings = vec![PoolSetting::Stored("failmode", 0)];
    CreateRequest { settings, ..request(vdevs, Vec::new()) }
}

fn state(pool: &Pool) -> Option<VdevState> {
    pool.status().unwrap().aux[0].state
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..60_000 {
        if is_so() {
            return;
        }
        rt::sleep(Duration::from_millis(1));
    }
    panic!("{what} did not happen within a minute");
}

/// What the user did: pulled the cache device of a busy pool. The pool went on; nothing was
/// suspended, and nothing waited for the device.
#[test]
fn the_loss_of_a_cache_device_suspends_nothing() {
    let disks = DiskFiles::new("caches-loss", 2, 128 * MB);
    let opened = FaultyDevices::default();
    let engine = opened.engine();
    let mirror = disks.group(cenote::create::NewKind::Mirror, 0..2);
    let pool = engine.create_pool(&waiting_pool(vec![mirror])).unwrap().unwrap();
    let (vdev, path) = cache_file(&disks, "cache-a");
    add(&engine, &pool, vdev);
    await_caches(&pool, 1);
    let objects = pool.root().unwrap().open_rw().unwrap();
    let ids = fill(&objects, 200);
    read_all(&pool, &objects, &ids);
    read_all(&pool, &objects, &ids);
    assert!(l2(&engine).hits > 0);
    opened.hush();
    for round in 1..4u64 {
        read_all(&pool, &objects, &ids);
        objects.write(ids[0], 0, &content(0)).unwrap();
        objects.sync().unwrap();
        assert!(!pool.is_suspended(), "round {round}");
        assert_eq!(pool.status().unwrap().root.state(), VdevState::Online);
    }
    let lost = l2(&engine);
    // A few operations were given up, and then the device was left alone.
    assert!(lost.io_error + lost.writes_error > 0 && lost.io_error < 20, "{lost:?}");
    // It is removed while it is silent, and so is its file.
    std::fs::remove_file(&path).unwrap();
    pool.remove_vdev(path.to_str().unwrap(), None).unwrap();
    assert!(pool.status().unwrap().aux.is_empty());
    read_all(&pool, &objects, &ids);
    pool.export().unwrap();
    opened.speak();
    drop((objects, pool));
    judge(&engine, &disks.path());
}

/// What the user did: the pool's disk refused writes, the pool was suspended, and files were
/// read meanwhile. Cache devices served what they had; one that fell silent held nobody up,
/// and could be taken offline for the time being.
#[test]
fn cache_devices_beside_a_suspended_pool() {
    let disks = DiskFiles::new("caches-suspended", 1, 128 * MB);
    let opened = FaultyDevices::default();
    let engine = opened.engine();
    let pool = engine.create_pool(&waiting_pool(vec![disks.leaf(0)])).unwrap().unwrap();
    let (vdev, path) = cache_file(&disks, "cache-a");
    let name = path.to_str().unwrap();
    add(&engine, &pool, vdev);
    await_caches(&pool, 1);
    let objects = pool.root().unwrap().open_rw().unwrap();
    let ids = fill(&objects, 200);
    read_all(&pool, &objects, &ids);
    read_all(&pool, &objects, &ids);
    opened.each_disk(|disk| disk.inject(Fault::FailWrites(0..u64::MAX)));
    std::thread::scope(|scope| {
        let waiting =
            scope.spawn(|| objects.write(ids[0], 0, &content(0)).and_then(|()| objects.sync()));
        until("the suspension", || pool.is_suspended());
        let before = l2(&engine);
        read_all_but_first(&objects, &ids);
        assert!(l2(&engine).hits > before.hits, "the cache device serves");
        // It is not offline for good: that would be a write to the pool.
        let refused = engine.offline(&pool, name, FOR_GOOD, None).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert_eq!(refused.message(), "pool I/O is currently suspended");
        assert_eq!(state(&pool), Some(VdevState::Online));
        opened.hush();
        read_all_but_first(&objects, &ids);
        read_all_but_first(&objects, &ids);
        assert!(l2(&engine).io_error < before.io_error + 20);
        engine.offline(&pool, name, FOR_NOW, None).unwrap();
        assert_eq!(state(&pool), Some(VdevState::Offline));
        read_all_but_first(&objects, &ids);
        opened.speak();
        engine.online(&pool, name, false, None).unwrap();
        await_caches(&pool, 1);
        read_all_but_first(&objects, &ids);
        assert!(pool.is_suspended());
        opened.each_disk(FaultDevice::heal);
        engine.clear(&pool, None, None).unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert!(!pool.is_suspended());
    read_all(&pool, &objects, &ids);
    pool.export().unwrap();
    drop((objects, pool));
    judge(&engine, &disks.path());
}

fn read_all_but_first(objects: &cenote::Objects, ids: &[cenote::ObjectId]) {
    for (n, id) in ids.iter().enumerate().skip(1) {
        assert!(objects.read_vec(*id, 0, BLOCK).unwrap() == content(n as u64), "object {n}");
    }
}

/// What the user did: took a cache device offline that had made trouble, and restarted the
/// machine. The device was in use again.
#[test]
fn a_cache_device_that_was_taken_offline_stays_offline() {
    let disks = DiskFiles::new("caches-offline", 2, 128 * MB);
    let engine = small_engine(EngineConfig::default());
    let vdevs = vec![disks.leaf(0), cache(&disks, 1)];
    let pool = engine.create_pool(&request(vdevs, Vec::new())).unwrap().unwrap();
    await_caches(&pool, 1);
    let name = disks.path().join("d1").to_str().unwrap().to_owned();
    let objects = pool.root().unwrap().open_rw().unwrap();
    let ids = fill(&objects, 200);
    read_all(&pool, &objects, &ids);
    drop(objects);
    for bad in ["d9", ""] {
        let why = engine.offline(&pool, bad, FOR_GOOD, None).unwrap_err();
        assert_eq!((why.kind(), why.message()), (ErrorKind::NotFound, "no such device in pool"));
    }
    assert_eq!(engine.offline(&pool, "d0", FOR_GOOD, None).unwrap_err().kind(), ErrorKind::Busy);
    let again = |pool: Arc<Pool>| {
        pool.export().unwrap();
        drop(pool);
        import_from(&engine, &disks.path(), &writing()).unwrap()
    };
    // For the time being.
    engine.offline(&pool, &name, FOR_NOW, None).unwrap();
    assert_eq!(state(&pool), Some(VdevState::Offline));
    let pool = again(pool);
    await_caches(&pool, 1);
    assert_eq!(state(&pool), Some(VdevState::Online));
    // For good.
    engine.offline(&pool, &name, FOR_GOOD, Some("zpool offline tank d1")).unwrap();
    let mut pool = again(pool);
    for _ in 0..2 {
        assert_eq!(state(&pool), Some(VdevState::Offline));
        engine.clear(&pool, None, None).unwrap();
        assert_eq!(state(&pool), Some(VdevState::Offline));
        let caches = pool.spa().zio().cache_devices();
        assert!(caches.is_none_or(|caches| caches.devices().is_empty()));
        pool = again(pool);
    }
    // A pool that is only read cannot remember it.
    pool.export().unwrap();
    drop(pool);
    let pool = import_from(&engine, &disks.path(), &testkit::readonly()).unwrap();
    assert_eq!(state(&pool), Some(VdevState::Offline));
    assert!(engine.online(&pool, &name, false, None).is_err());
    assert_eq!(state(&pool), Some(VdevState::Offline));
    pool.export().unwrap();
    drop(pool);
    let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
    let bufs = l2(&engine).rebuild_bufs;
    engine.online(&pool, &name, false, Some("zpool online tank d1")).unwrap();
    await_caches(&pool, 1);
    assert_eq!(state(&pool), Some(VdevState::Online));
    assert!(l2(&engine).rebuild_bufs > bufs, "its content is back");
    let pool = again(pool);
    await_caches(&pool, 1);
    assert_eq!(state(&pool), Some(VdevState::Online));
    pool.export().unwrap();
    drop(pool);
    judge(&engine, &disks.path());
}
