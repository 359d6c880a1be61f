//! Cache devices under the simulator: whatever becomes of them, what is read is right.
//!
//! # Theory
//! A run is one of [`mod@crate::run`], with one or two cache devices beside the pool and a
//! block cache that is emptied into them before each operation. Their rings are small, and
//! are overwritten many times. Meanwhile the devices fail, disappear, come back, lie, and
//! are reopened. The operations must not notice, and at the end all content is read through
//! the cache devices and compared with the model.
//!
//! Then the power fails after every event, those of log blocks and headers among them. Each
//! time the pool is imported with its cache devices, which have what the crash left, or
//! something worse ([`CacheMishap`]). Their index is restored, and the pool is judged by
//! reading through them. A run can go on after a crash, on restored cache devices.
//!
//! # Invariants
//! * Every block that is read is right; everything else is a miss.
//! * In an index that began empty, no two blocks overlap on the pool: what is freed leaves
//!   the index before its space is used again.
//! * Cache devices that never failed and were closed in order give no wrong checksum, in
//!   the run and after it.
//! * Nothing is restored from another pool's or another device's content.
//!
//! # Departures
//! The devices have no labels and are not in the pool's list: opening them is tested in
//! `cenote`.
//!
//! Lock order: none is held.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use arc::SecondTier;
use arc::stats::SecondTierStats;
use base::rt::sim::{Options, Rng, run_with};
use base::rt::{Mutex, plain};
use base::{Guid, Txg};
use device::Device;
use device::sim::{Action, Faults, Image, SimDisks};
use l2arc::{CacheDevice, CachePool, DeviceSpec, SecondLevel, Tunables};
use spa::{ImportOptions, Spa};
use zio::{BlockCache, BlockKey};

use crate::cache_mishap::{CacheMishap, flip, forge, relabel};
use crate::check::{self, Expect, judge_with};
use crate::driver::Driver;
use crate::everywhere::CrashPoints;
use crate::fs::ended;
use crate::image::{ImageDevice, Tap};
use crate::memo::{Manner, Memo};
use crate::model::Model;
use crate::ops::plan;
use crate::pool::{CACHE, SimLeaves, find, make_with};
use crate::run::{plant, work};
use crate::setup::{Layout, Setup, Workload};

/// The guid of the first cache device; the next has the next one.
const GUID: u64 = 0xcace;
/// Bytes of a cache device: the least that may be in a pool.
const DEVICE_SIZE: u64 = 64 << 20;
/// Operations of a run that goes on after a crash.
const OPS_AFTER: usize = 8;
/// The first tier as the second knows it: it bounds the queue.
const FIRST_TIER: u64 = 256 << 20;

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePlant {
    /// None.
    Nothing,
    /// What a cache device returns is not verified.
    Unverified,
    /// A freed block stays in the index.
    KeepFreed,
    /// The rebuild accepts what the ring overwrote.
    OverwrittenLogs,
    /// The rebuild accepts another pool's or device's header.
    ForeignHeader,
}

impl CachePlant {
    /// All bugs.
    pub const ALL: [CachePlant; 4] = [
        CachePlant::Unverified,
        CachePlant::KeepFreed,
        CachePlant::OverwrittenLogs,
        CachePlant::ForeignHeader,
    ];
}

/// What happens to the cache devices during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Nothing,
    /// One disappears, for a while or for good.
    Drop {
        back: bool,
    },
    Faults(Faults),
}

/// A run with cache devices.
#[derive(Clone, Debug)]
pub struct CacheSetup {
    /// The pool, its workload and its schedule.
    pub run: Setup,
    /// Cache devices.
    pub count: usize,
    /// A bug.
    pub plant: CachePlant,
    /// log2 of the sector, of the pool and of the cache devices.
    ashift: u32,
    /// Bytes of the ring of a cache device.
    ring: u64,
    log_entries: u64,
    trouble: Trouble,
    /// How often a device is taken out of use and opened again.
    reopenings: u64,
}

impl CacheSetup {
    /// The run of a seed.
    pub fn varied(seed: u64, plant: CachePlant) -> CacheSetup {
        let mut rng = Rng::stream(seed, 70);
        let mut run = Setup::varied(seed);
        run.ops = 10 + rng.below(12) as usize;
        let ring = (256 << 10) * (1 + rng.below(6));
        let often = 2 + rng.below(20);
        let none = Faults::default();
        let trouble = match rng.below(12) {
            0 => Trouble::Drop { back: true },
            1 => Trouble::Drop { back: false },
            2 => Trouble::Faults(Faults { read_errors: often, ..none }),
            3 => Trouble::Faults(Faults { write_errors: often, ..none }),
            4 => Trouble::Faults(Faults { stale_reads: often, ..none }),
            5 => Trouble::Faults(Faults { misdirected: often, ..none }),
            _ => Trouble::Nothing,
        };
        CacheSetup {
            ashift: run.ashift(),
            run,
            count: 1 + rng.below(2) as usize,
            plant,
            ring,
            log_entries: 1 + rng.below(8),
            trouble,
            reopenings: rng.below(3),
        }
    }

    /// The same workload with other vdevs.
    pub fn on(self, layout: Layout) -> CacheSetup {
        CacheSetup { run: Setup { layout, ..self.run }, ..self }
    }

    /// The numbers of the cache devices among the disks.
    fn numbers(&self) -> std::ops::Range<usize> {
        let first = self.run.layout.disks();
        first..first + self.count
    }

    fn spec(&self, number: usize, pool: Guid) -> DeviceSpec {
        DeviceSpec {
            guid: Guid(GUID + number as u64),
            pool,
            ashift: self.ashift,
            rebuild_min: 0,
            log_entries: Some(self.log_entries),
            ring_max: Some(self.ring),
        }
    }

    fn open(
        &self,
        number: usize,
        pool: Guid,
        device: Arc<dyn Device>,
    ) -> base::Result<CacheDevice> {
        let opened = CacheDevice::new(self.spec(number, pool), "cache", device)?;
        let bugs = &opened.bugs;
        bugs.unverified.store(self.plant == CachePlant::Unverified, Relaxed);
        bugs.keep_freed.store(self.plant == CachePlant::KeepFreed, Relaxed);
        bugs.overwritten_logs.store(self.plant == CachePlant::OverwrittenLogs, Relaxed);
        bugs.foreign_header.store(self.plant == CachePlant::ForeignHeader, Relaxed);
        Ok(opened)
    }
}

fn level() -> Arc<SecondLevel> {
    let level = SecondLevel::new(FIRST_TIER);
    let eager = Tunables { rebuild_min: 0, feed_secs: 0, feed_min_ms: 1, ..Tunables::default() };
    level.set_tunables(eager);
    level
}

fn stats(level: &SecondLevel) -> SecondTierStats {
    SecondTier::<BlockKey>::stats(level)
}

/// The cache devices of a pool in a run.
struct Caches {
    setup: CacheSetup,
    disks: SimDisks,
    pool: Guid,
    level: Arc<SecondLevel>,
    devices: Arc<CachePool>,
    /// An index was restored: it may have blocks that were freed.
    restored: AtomicBool,
}

impl Caches {
    fn add(&self, number: usize, rebuild: bool) -> Result<(), String> {
        let device = self.disks.device(number).ok_or("no such disk")?;
        let opened = self.setup.open(number, self.pool, device).map_err(|e| e.to_string())?;
        self.devices.add(opened, rebuild).map_err(|e| e.to_string())?;
        if rebuild {
            self.restored.store(true, Relaxed);
        }
        Ok(())
    }

    fn settle(&self) {
        while self.devices.is_rebuilding() {
            base::rt::sleep(Duration::from_micros(100));
        }
    }

    /// Takes a device out of use and opens it again, or clears its errors.
    fn reopen(&self, rng: &mut Rng) -> Result<(), String> {
        let numbers: Vec<usize> = self.setup.numbers().collect();
        let number = numbers[rng.below(numbers.len() as u64) as usize];
        let guid = self.setup.spec(number, self.pool).guid;
        if rng.one_in(3) {
            if let Some(device) = self.devices.device(guid) {
                device.clear();
            }
            return Ok(());
        }
        if let Some(device) = self.devices.remove(guid) {
            // The feed may be writing to it.
            while Arc::strong_count(&device) > 1 {
                base::rt::sleep(Duration::from_micros(100));
            }
        }
        base::rt::sleep(Duration::from_micros(rng.below(3000)));
        self.add(number, true)
    }

    /// Arranges the failures of a device.
    fn arrange(&self) {
        let mut rng = Rng::stream(self.setup.run.seed, 74);
        let numbers: Vec<usize> = self.setup.numbers().collect();
        let disk = numbers[rng.below(numbers.len() as u64) as usize];
        let from = self.disks.events() + rng.below(200);
        match self.setup.trouble {
            Trouble::Nothing => {}
            Trouble::Drop { back } => {
                self.disks.schedule(from, Action::Drop { disk });
                if back {
                    let to = from + 1 + rng.below(150);
                    self.disks.schedule(to, Action::Return { disk });
                }
            }
            Trouble::Faults(faults) => self.disks.schedule(from, Action::Faults { disk, faults }),
        }
    }

    /// Reads all content through the cache devices, and checks the index.
    fn examine(&self, driver: &Driver, txg: Txg) -> Result<(), String> {
        let cache = driver.writer.zio().cache();
        cache.evict_all();
        self.devices.drain();
        // Waits for a turn of the feed's own thread.
        self.devices.feed();
        if !self.restored.load(Relaxed) {
            self.no_overlaps()?;
        }
        cache.clear();
        for (name, (ds, at)) in driver.model.state(txg).heads {
            let os = driver.head(ds).map_err(|e| format!("{name}: {e}"))?;
            check::objects(&os, &driver.model.content(ds, at), false)
                .map_err(|bad| format!("through the cache devices, txg {txg}: {name}: {bad}"))?;
        }
        let found = stats(&self.level);
        if self.setup.trouble == Trouble::Nothing && found.cksum_bad > 0 {
            return Err(format!("{} wrong checksums on sound cache devices", found.cksum_bad));
        }
        Ok(())
    }

    fn no_overlaps(&self) -> Result<(), String> {
        let devices = self.devices.devices();
        let blocks = devices.iter().flat_map(|device| device.blocks());
        let mut ranges: Vec<_> =
            blocks.map(|b| (b.id.vdev, b.id.offset, b.facts.psize, b.id.birth)).collect();
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            let [(vdev, offset, psize, birth), (other, next, _, later)] = [pair[0], pair[1]];
            if vdev == other && offset + psize > next {
                return Err(format!(
                    "the index has a freed block: {offset:#x} of vdev {vdev}, births {birth} and \
                     {later}"
                ));
            }
        }
        Ok(())
    }
}

/// What a run leaves besides its disks.
#[derive(Clone, Default)]
struct CacheRun {
    start: u64,
    pool: Guid,
    stats: SecondTierStats,
    model: Arc<Model>,
}

/// Runs the plan of a setup on a driver whose pool has the cache devices of `caches`.
fn perform(mut driver: Driver, caches: Caches) -> Result<SecondTierStats, String> {
    driver.evicts = true;
    let (setup, disks) = (caches.setup.clone(), caches.disks.clone());
    let driver = Arc::new(driver);
    let caches = Arc::new(caches);
    caches.arrange();
    let wrong: Arc<Mutex<Option<String>>> = Arc::default();
    let (own, found) = (Arc::clone(&caches), Arc::clone(&wrong));
    let keeper = move || {
        let mut rng = Rng::stream(own.setup.run.seed, 75);
        for _ in 0..own.setup.reopenings {
            base::rt::sleep(Duration::from_micros(rng.below(40_000)));
            if let Err(e) = own.reopen(&mut rng) {
                found.lock().get_or_insert(format!("opening a cache device again: {e}"));
            }
        }
    };
    let keeper = base::rt::spawn("keeper", keeper).map_err(|e| e.to_string())?;
    let worked = work(&driver, &plan(&setup.run), &disks);
    keeper.join();
    let examined = worked.and_then(|_| {
        let txg = driver.sync().map_err(|e| format!("last sync: {e}"))?;
        caches.settle();
        caches.examine(&driver, txg)
    });
    caches.devices.close();
    driver.writer.stop();
    let seen = stats(&caches.level);
    match wrong.lock().take() {
        Some(why) => Err(why),
        None => examined.map(|()| seen),
    }
}

fn body(setup: &CacheSetup, disks: &SimDisks, model: &Arc<Model>) -> Result<CacheRun, String> {
    let fail = |what: &str, e: base::Error| format!("{what}: {e}");
    let level = level();
    let cache = cache(&level).map_err(|e| fail("cache", e))?;
    let writer = make_with(&setup.run, disks, &cache).map_err(|e| fail("making the pool", e))?;
    let zio = Arc::clone(writer.zio());
    let pool = writer.published().config.pool_guid;
    let mut driver = Driver::new(writer, disks, Arc::clone(model)).map_err(|e| fail("start", e))?;
    driver.add_root().map_err(|e| fail("root dataset", e))?;
    driver.share_objects().map_err(|e| fail("shared objects", e))?;
    driver.sync().map_err(|e| fail("first sync", e))?;
    plant(&setup.run, &mut driver);
    let devices = zio.use_cache_devices(&level);
    let (setup, disks) = (setup.clone(), disks.clone());
    let start = disks.events();
    let caches = Caches { setup, disks, pool, level, devices, restored: false.into() };
    for number in caches.setup.numbers() {
        caches.add(number, false)?;
    }
    let stats = perform(driver, caches)?;
    Ok(CacheRun { start, pool, stats, model: Arc::clone(model) })
}

fn cache(level: &Arc<SecondLevel>) -> base::Result<Arc<BlockCache>> {
    let config = arc::Config::sized(1 << 20, CACHE);
    let tier = Arc::clone(level);
    BlockCache::with_tier(config, CACHE, tier).map(Arc::new)
}

/// The same after a crash: import, restored cache devices, more operations.
fn body_after(
    setup: &CacheSetup,
    disks: &SimDisks,
    old: &Model,
    without: Option<usize>,
) -> Result<CacheRun, String> {
    let fail = |what: &str, e: &dyn std::fmt::Display| format!("{what}, after a crash: {e}");
    let level = level();
    let cache = cache(&level).map_err(|e| fail("cache", &e))?;
    let numbers: Vec<usize> = setup.numbers().collect();
    let leaves = SimLeaves::new(disks, &numbers);
    let found = find(&leaves).map_err(|e| fail("looking for the pool", &e))?;
    let found = found.ok_or_else(|| "the pool is gone".to_owned())?;
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let spa = Spa::open_in(&found, &options, &cache, &leaves)
        .map_err(|f| fail("import for writing", &f.error))?;
    let (txg, pool) = (spa.uberblock().txg, spa.config().pool_guid);
    let model = Arc::new(old.after(txg));
    disks.mark(txg.0);
    let devices = spa.zio().use_cache_devices(&level);
    let (own, all) = (setup.clone(), disks.clone());
    let caches = Caches { setup: own, disks: all, pool, level, devices, restored: true.into() };
    for number in numbers.into_iter().filter(|n| Some(*n) != without) {
        caches.add(number, true)?;
    }
    let writer = spa.start_writer(setup.run.writer()).map_err(|e| fail("writing", &e))?;
    let mut driver =
        Driver::new(writer, disks, Arc::clone(&model)).map_err(|e| fail("start", &e))?;
    driver.prefix = "again-".to_owned();
    plant(&setup.run, &mut driver);
    let start = disks.events();
    let stats = perform_after(driver, caches, txg)?;
    Ok(CacheRun { start, pool, stats, model })
}

fn perform_after(mut driver: Driver, caches: Caches, txg: Txg) -> Result<SecondTierStats, String> {
    driver.evicts = true;
    let mut hand = driver.hand_of(txg);
    let mut done = Ok(());
    for (number, op) in plan(&caches.setup.run).iter().flatten() {
        if let Err(e) = driver.run(&mut hand, op) {
            done = Err(format!("operation {number} after a crash, {op:?}: {e}"));
            break;
        }
    }
    let done = done.and_then(|()| {
        let txg = driver.sync().map_err(|e| format!("last sync: {e}"))?;
        caches.settle();
        caches.examine(&driver, txg)
    });
    caches.devices.close();
    driver.writer.stop();
    done.map(|()| stats(&caches.level))
}

/// A run that was recorded.
pub struct RecordedCaches {
    /// Its setup.
    pub setup: CacheSetup,
    /// All disks, the cache devices behind those of the pool, with their log.
    pub disks: SimDisks,
    /// The first event after the cache devices were added.
    pub start: u64,
    /// A failure during the run itself.
    pub failed: Option<String>,
    /// The counters of the cache devices at its end.
    pub stats: SecondTierStats,
    /// The cache devices of another pool.
    foreign: Vec<Image>,
    pool: Guid,
    model: Arc<Model>,
    memo: Memo,
    /// The last event of a run that ended in order, on cache devices that began empty and
    /// never failed.
    orderly_end: Option<u64>,
    /// Sums over the crashes.
    tally: plain::Mutex<CacheTally>,
}

/// The findings of the crashes of a run.
#[derive(Clone, Debug, Default)]
pub struct CacheTally {
    /// Events after which the power failed.
    pub points: u64,
    /// Crash images judged.
    pub images: u64,
    /// Blocks restored, and blocks read from cache devices.
    pub restored: u64,
    /// Hits.
    pub hits: u64,
    /// Blocks with wrong checksums: misses.
    pub rejected: u64,
    /// The mishaps that happened.
    pub mishaps: BTreeSet<CacheMishap>,
    /// The first failure.
    pub failure: Option<String>,
}

impl CacheTally {
    /// Adds the findings of another run.
    pub fn add(&mut self, other: &CacheTally) {
        self.points += other.points;
        self.images += other.images;
        self.restored += other.restored;
        self.hits += other.hits;
        self.rejected += other.rejected;
        self.mishaps.extend(&other.mishaps);
        if self.failure.is_none() {
            self.failure.clone_from(&other.failure);
        }
    }
}

/// Runs a setup and records it. `foreign`: the cache devices of another pool.
pub fn record(setup: CacheSetup, foreign: &[Image]) -> RecordedCaches {
    let mut images = vec![Image::new(setup.run.disk_size()); setup.run.layout.disks()];
    images.resize_with(images.len() + setup.count, || Image::new(DEVICE_SIZE));
    let disks = SimDisks::new(setup.run.disks(), images);
    let model = Arc::new(Model::default());
    let (s, d, m) = (setup.clone(), disks.clone(), Arc::clone(&model));
    let run = run_with(setup.run.schedule(), move || body(&s, &d, &m));
    recorded(setup, disks, ended(run.outcome), foreign.to_vec(), false)
}

fn recorded(
    setup: CacheSetup,
    disks: SimDisks,
    ended: Result<CacheRun, String>,
    foreign: Vec<Image>,
    is_second: bool,
) -> RecordedCaches {
    let (run, failed) = match ended {
        Ok(run) => (run, None),
        Err(why) => (CacheRun::default(), Some(why)),
    };
    let CacheRun { start, pool, stats, model } = run;
    let (memo, tally) = (Memo::default(), plain::Mutex::default());
    let sound = !is_second && setup.trouble == Trouble::Nothing;
    let orderly_end = disks.crash_points().last().copied().filter(|_| sound);
    RecordedCaches {
        setup,
        disks,
        start,
        failed,
        stats,
        foreign,
        pool,
        model,
        memo,
        orderly_end,
        tally,
    }
}

/// The disks after a crash, as the import finds them.
struct CrashedDisks {
    images: Vec<Image>,
    mishap: CacheMishap,
    /// The device with the mishap.
    victim: usize,
}

impl CrashedDisks {
    fn missing(&self) -> Option<usize> {
        (self.mishap == CacheMishap::Missing).then_some(self.victim)
    }
}

impl RecordedCaches {
    /// The cache devices in the end.
    pub fn cache_images(&self) -> Vec<Image> {
        self.disks.current().split_off(self.setup.run.layout.disks())
    }

    fn crashed(&self, event: u64, seed: u64) -> Result<CrashedDisks, String> {
        let mut images = self.disks.crash_image(event, seed).map_err(|e| e.to_string())?;
        let mut rng = Rng::stream(seed, 76);
        let numbers: Vec<usize> = self.setup.numbers().collect();
        let victim = numbers[rng.below(numbers.len() as u64) as usize];
        let mut mishap = CacheMishap::of(seed);
        let ashift = self.setup.ashift;
        match mishap {
            CacheMishap::Nothing | CacheMishap::Missing => {}
            CacheMishap::Older => {
                let from = self.start.min(event);
                let earlier = from + rng.below(event - from + 1);
                let then = self.disks.crash_image(earlier, rng.next_u64());
                images[victim] = then.map_err(|e| e.to_string())?.swap_remove(victim);
            }
            CacheMishap::Exchanged if numbers.len() > 1 => images.swap(numbers[0], numbers[1]),
            CacheMishap::Foreign | CacheMishap::Forged | CacheMishap::Exchanged => {
                match self.foreign.first().cloned() {
                    Some(other) => {
                        let ours = std::mem::replace(&mut images[victim], other);
                        let guids = [self.pool, self.setup.spec(victim, self.pool).guid];
                        if mishap == CacheMishap::Forged {
                            forge(&mut images[victim], &ours, guids, ashift);
                        }
                    }
                    None => mishap = CacheMishap::Nothing,
                }
            }
            CacheMishap::Flipped => {
                flip(&mut images[victim], seed).map_err(|e| e.to_string())?;
            }
            CacheMishap::Relabelled => {
                if !relabel(&mut images[victim], ashift, seed) {
                    mishap = CacheMishap::Nothing;
                }
            }
        }
        Ok(CrashedDisks { images, mishap, victim })
    }

    /// Crashes at one event, imports the pool with its cache devices and judges it.
    ///
    /// # Errors
    /// The error found.
    pub fn crash(
        &self,
        event: u64,
        seed: u64,
        cache: &Arc<BlockCache>,
    ) -> Result<Option<Txg>, String> {
        let crashed = self.crashed(event, seed)?;
        let numbers: Vec<usize> = self.setup.numbers().collect();
        let mut without: Vec<usize> = numbers.clone();
        // Cache devices are no leaves of the pool. One that is absent is listed twice, so
        // that no verdict with it counts.
        without.extend(crashed.missing());
        let acknowledged = self.disks.marks(event).into_iter().max().map(Txg);
        let manner = Manner { without, damage: false };
        let expect = Expect { acknowledged, manner, ..Expect::default() };
        let level = level();
        let used: plain::Mutex<Option<Arc<CachePool>>> = plain::Mutex::default();
        let opened = |spa: &Spa, tap: &Arc<Tap>| {
            let devices = spa.zio().use_cache_devices(&level);
            *used.lock() = Some(Arc::clone(&devices));
            for &number in numbers.iter().filter(|n| crashed.missing() != Some(**n)) {
                let image = crashed.images[number].clone();
                let device = Arc::new(ImageDevice::new(number, image, Arc::clone(tap), None));
                let opened = self.setup.open(number, spa.config().pool_guid, device);
                let opened = opened.map_err(|e| e.to_string())?;
                devices.add(opened, true).map_err(|e| e.to_string())?;
            }
            while devices.is_rebuilding() {
                base::rt::sleep(Duration::from_micros(50));
            }
            let guid = self.setup.spec(crashed.victim, self.pool).guid;
            let found = devices.device(guid).map_or(0, |device| device.sums().blocks);
            match crashed.mishap.is_foreign() && found > 0 {
                true => Err(format!("{found} blocks were restored from another's content")),
                false => Ok(()),
            }
        };
        let in_order = seed == 1 && Some(event) == self.orderly_end;
        // An earlier verdict says nothing of wrong checksums.
        let fresh = Memo::default();
        let memo = if in_order { &fresh } else { &self.memo };
        let judged = judge_with(&crashed.images, &self.model, &expect, cache, memo, &opened);
        if let Some(devices) = used.lock().take() {
            devices.close();
        }
        let seen = stats(&level);
        {
            let mut tally = self.tally.lock();
            tally.restored += seen.rebuild_bufs;
            tally.hits += seen.hits;
            tally.rejected += seen.cksum_bad;
            tally.mishaps.insert(crashed.mishap);
        }
        let name = |what: String| format!("{:?}: {what}", crashed.mishap);
        let txg = judged.map_err(name)?;
        if in_order && seen.cksum_bad > 0 {
            return Err(format!("{} wrong checksums after an orderly end", seen.cksum_bad));
        }
        Ok(txg)
    }

    /// Crashes at every `stride`th event, and at the last, in the two extreme ways and
    /// `more` others, on `threads` threads.
    pub fn crash_everywhere(&self, stride: usize, more: u64, threads: usize) -> CacheTally {
        let name = |what: &str, crash: Option<(u64, u64)>| {
            format!("seed {}, {:?}, crash {crash:?}: {what}", self.setup.run.seed, self.setup)
        };
        if let Some(why) = &self.failed {
            return CacheTally { failure: Some(name(why, None)), ..CacheTally::default() };
        }
        let all: Vec<u64> = self.disks.crash_points();
        let last = all.last().copied();
        let later = all.into_iter().filter(|event| *event >= self.start);
        let mut points: Vec<u64> = later.step_by(stride.max(1)).collect();
        points.extend(last.filter(|last| points.last() != Some(last)));
        let (count, seed) = (points.len() as u64, self.setup.run.seed);
        let found = CrashPoints { points, seed, more, threads }
            .visit(|event, seed, cache| self.crash(event, seed, cache));
        let mut tally = self.tally.lock().clone();
        (tally.points, tally.images) = (count, found.images);
        tally.failure = found.wrong.map(|(event, seed, what)| name(&what, Some((event, seed))));
        tally
    }

    /// The run that continues after a crash, on restored cache devices.
    ///
    /// # Errors
    /// An event that is not in the log.
    pub fn go_on(&self, event: u64, seed: u64) -> Result<RecordedCaches, String> {
        let crashed = self.crashed(event, seed)?;
        let next = self.setup.run.seed.wrapping_mul(1_000_003).wrapping_add(event);
        let workload =
            Workload::ALL[Rng::stream(next, 15).below(Workload::ALL.len() as u64) as usize];
        let run =
            Setup { seed: next, workload, threads: 1, ops: OPS_AFTER, ..self.setup.run.clone() };
        let mut setup = CacheSetup { run, reopenings: 0, ..self.setup.clone() };
        setup.trouble = Trouble::Faults(Faults::default());
        let (missing, disks) =
            (crashed.missing(), SimDisks::new(setup.run.disks(), crashed.images));
        let (s, d, m) = (setup.clone(), disks.clone(), Arc::clone(&self.model));
        let schedule = Options { max_steps: 50_000_000, ..Options::varied(next) };
        let run = run_with(schedule, move || body_after(&s, &d, &m, missing));
        Ok(recorded(setup, disks, ended(run.outcome), self.foreign.clone(), true))
    }
}
