//! The state that one process shares among its pools.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc::pressure::{Action, Status};
use base::rt::Mutex;
use base::{Error, ErrorKind, Guid, Result};
use device::{Device, EngineKind};
use ondisk::config::PoolState;
use spa::engine::{ExpansionTuning, FreeSpaceTuning, RebuildTuning, RemovalTuning, ResilverTuning};
use spa::status::{ImportReason, VdevState, VdevStatus};
use spa::{ImportOptions, Search, Spa};

use crate::holder;
use crate::looks::Looks;
use crate::memory::{self, MemoryHooks, Monitor};
use crate::opening::{QUEUE_DEPTH, TakenNames};
use crate::pool::Pool;

/// How to set up an [`Engine`].
#[derive(Clone, Debug, Default)]
pub struct EngineConfig {
    /// Bytes of the block cache, from the start; `None` is up to half of memory, and
    /// an eighth at first.
    pub cache_bytes: Option<u64>,
    /// The cache's other tunables; `cache_bytes` overrides its `arc_max`.
    pub arc: arc::Config,
    /// The kind of device engine.
    pub engine: EngineKind,
    /// The root of the `/proc` and `/sys` from which the machine's memory is read, for
    /// tests; `None` is `/`.
    pub memory_root: Option<PathBuf>,
    /// Called each second, to return memory to the system that has been free for long; and
    /// with `true` when the machine lacks memory, after the cache shrank, to return all
    /// free memory.
    pub give_back: Option<fn(bool)>,
    /// Applied to every device of a pool as it is opened, for benches that record a pool's
    /// device operations; `None` adds nothing below a pool.
    pub device_wrapper: Option<DeviceWrapper>,
}

/// A function that puts a device of its own above a device of a pool.
#[derive(Clone)]
pub struct DeviceWrapper(Arc<WrapDevice>);

/// See [`DeviceWrapper`].
type WrapDevice = dyn Fn(Arc<dyn Device>) -> Arc<dyn Device> + Send + Sync;

impl DeviceWrapper {
    /// The wrapper that calls `wrap` once for each opened device. The returned device must
    /// complete each operation as the given one does, and return its counters.
    pub fn new(
        wrap: impl Fn(Arc<dyn Device>) -> Arc<dyn Device> + Send + Sync + 'static,
    ) -> DeviceWrapper {
        DeviceWrapper(Arc::new(wrap))
    }

    /// The device with the wrapper's above it.
    pub(crate) fn wrap(&self, device: Arc<dyn Device>) -> Arc<dyn Device> {
        (self.0)(device)
    }
}

impl std::fmt::Debug for DeviceWrapper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DeviceWrapper")
    }
}

/// The block cache of one process, and its pools.
pub struct Engine {
    cache: Arc<zio::BlockCache>,
    /// The cache devices of all pools.
    second_level: Arc<l2arc::SecondLevel>,
    /// The kind of device engine: each pool, and each search for pools, has one of its own.
    devices: EngineKind,
    device_wrapper: Option<DeviceWrapper>,
    names: Arc<TakenNames>,
    looks: Arc<Looks>,
    prefetch: Arc<zio::Prefetch>,
    kstats: Arc<kstat::Registry>,
    /// What happened to the pools.
    events: Arc<zevent::EventLog>,
    event_limits: Arc<crate::events::EventLimits>,
    /// The bounds that follow the machine; changed under its lock.
    pub(crate) automatic: Mutex<crate::tune::Automatic>,
    /// Limits for writing pools: throttle, and queues of the devices.
    writing: Mutex<Writing>,
    /// The configuration that the monitor follows.
    watched: Arc<Mutex<arc::Config>>,
    memory: Arc<Mutex<Status>>,
    memory_root: PathBuf,
    memory_warning: Option<String>,
    /// Declared behind everything that its hooks use.
    _monitor: Monitor,
}

/// Limits for all pools, including those imported later.
struct Writing {
    throttle: txg::Limits,
    /// The limit of dirty data follows the machine's memory.
    automatic: bool,
    queues: vdev::QueueLimits,
    sit_out: vdev::SitOutLimits,
    free_space: FreeSpaceTuning,
    resilver: ResilverTuning,
    rebuild: RebuildTuning,
    removal: RemovalTuning,
    expansion: ExpansionTuning,
}

/// The result of a scan.
#[derive(Debug, Default)]
pub struct Discovery {
    /// Pools, by name.
    pub pools: Vec<FoundPool>,
    /// Named paths that could not be read.
    pub problems: Vec<(PathBuf, Error)>,
}

/// A pool found by a scan, whether or not it can be imported.
#[derive(Clone, Debug)]
pub struct FoundPool {
    /// Name in its labels.
    pub name: String,
    /// Its guid.
    pub guid: Guid,
    /// Active, exported or destroyed.
    pub state: PoolState,
    /// Id of the host that last used it.
    pub hostid: Option<u64>,
    /// That host's name.
    pub hostname: Option<String>,
    /// Seconds since 1970 at its last sync; 0 if unknown.
    pub timestamp: u64,
    /// The pool's comment.
    pub comment: Option<String>,
    /// Pool version.
    pub version: u64,
    /// Its state after an import; `Unavail` when it cannot be imported.
    pub health: VdevState,
    /// The reason if it is not healthy.
    pub reason: Option<ImportReason>,
    /// The reason why it could not be inspected although it may be healthy: the process
    /// that has it open, or devices that do not answer.
    pub held_up: Option<String>,
    /// Unsupported features: name, description, whether read-only access works.
    pub unsupported: Vec<(String, String, bool)>,
    /// Its devices.
    pub vdevs: VdevStatus,
    /// Names of cache devices and spares, as far as known.
    pub aux: Vec<VdevStatus>,
    pub(crate) inner: spa::FoundPool,
}

impl Engine {
    /// Creates the cache and starts the memory monitor.
    ///
    /// # Errors
    /// When the memory's monitor cannot be started, or the requested device engine is not
    /// available.
    pub fn new(config: EngineConfig) -> Result<Arc<Engine>> {
        // Fails now rather than with the first pool.
        drop(device::Engine::new(config.engine, 1)?);
        let root = config.memory_root.clone().unwrap_or_else(|| PathBuf::from("/"));
        let (sample, memory_warning) = memory::probe(&root);
        let (mut least, mut most, mut c) = arc::pressure::default_sizes(sample.as_ref());
        if let Some(bytes) = config.cache_bytes {
            most = bytes.max(arc::config::ARC_MIN_FLOOR);
            (least, c) = (crate::tune::automatic_min(most, sample.as_ref()), most);
        }
        let sizes = arc::Config { arc_min: least, arc_max: most, ..config.arc };
        let second_level = l2arc::SecondLevel::new(most);
        let tier = Arc::clone(&second_level);
        let cache = Arc::new(zio::BlockCache::with_tier(sizes, c, tier)?);
        let watched = Arc::new(Mutex::new(sizes));
        let status = Arc::<Mutex<Status>>::default();
        let give_back = config.give_back;
        let hooks = Hooks { cache: Arc::clone(&cache), status: Arc::clone(&status), give_back };
        let engine = Arc::new(Engine {
            cache,
            second_level,
            devices: config.engine,
            device_wrapper: config.device_wrapper,
            names: Arc::default(),
            looks: Arc::default(),
            prefetch: zio::Prefetch::new(),
            kstats: Arc::new(kstat::Registry::new()),
            events: Arc::default(),
            event_limits: Arc::default(),
            automatic: Mutex::new(crate::tune::Automatic {
                max: config.cache_bytes.is_none(),
                min: true,
            }),
            writing: Mutex::new(Writing {
                throttle: txg::Limits::for_memory(sample.as_ref().map_or(4 << 30, |m| m.total)),
                automatic: true,
                queues: vdev::QueueLimits::default(),
                sit_out: vdev::SitOutLimits::default(),
                free_space: FreeSpaceTuning::default(),
                resilver: ResilverTuning::default(),
                rebuild: RebuildTuning::default(),
                removal: RemovalTuning::default(),
                expansion: ExpansionTuning::default(),
            }),
            _monitor: Monitor::start(root.clone(), Arc::clone(&watched), hooks)?,
            watched,
            memory: status,
            memory_root: root,
            memory_warning,
        });
        crate::kstats::register_engine(&engine)?;
        Ok(engine)
    }

    /// Limits of the write throttle.
    pub(crate) fn write_limits(&self) -> txg::Limits {
        self.writing.lock().throttle
    }

    pub(crate) fn dirty_is_automatic(&self) -> bool {
        self.writing.lock().automatic
    }

    pub(crate) fn set_write_limits(&self, f: impl FnOnce(&mut txg::Limits)) -> Result<()> {
        let limits = {
            let mut writing = self.writing.lock();
            f(&mut writing.throttle);
            writing.throttle
        };
        for writer in self.imported().iter().filter_map(|p| p.writer().ok()) {
            writer.txgs().set_limits(&limits);
        }
        Ok(())
    }

    /// Sets the limit of dirty data; 0 follows the machine's memory.
    pub(crate) fn set_dirty_data_max(&self, bytes: u64) -> Result<()> {
        let usual = txg::Limits::for_memory(self.memory_now().map_or(4 << 30, |m| m.total));
        self.writing.lock().automatic = bytes == 0;
        let max = if bytes == 0 { usual.dirty_data_max } else { bytes };
        self.set_write_limits(|l| l.dirty_data_max = max)
    }

    /// Limits of the devices' queues.
    pub fn queue_limits(&self) -> vdev::QueueLimits {
        self.writing.lock().queues
    }

    pub(crate) fn set_queue_limits(&self, f: impl FnOnce(&mut vdev::QueueLimits)) -> Result<()> {
        let limits = {
            let mut writing = self.writing.lock();
            f(&mut writing.queues);
            writing.queues
        };
        for pool in self.imported() {
            pool.spa().zio().tree().set_queue_limits(limits);
        }
        Ok(())
    }

    /// When slow leaves of parity vdevs sit out of reads.
    pub fn sit_out_limits(&self) -> vdev::SitOutLimits {
        self.writing.lock().sit_out
    }

    pub(crate) fn set_sit_out_limits(&self, f: impl FnOnce(&mut vdev::SitOutLimits)) {
        let limits = {
            let mut writing = self.writing.lock();
            f(&mut writing.sit_out);
            writing.sit_out
        };
        for pool in self.imported() {
            pool.spa().zio().tree().set_sit_out_limits(limits);
        }
    }

    /// Tunables of the work on free space.
    pub(crate) fn free_space_tuning(&self) -> FreeSpaceTuning {
        self.writing.lock().free_space
    }

    /// Tunables of sequential rebuilds.
    pub(crate) fn rebuild_tuning(&self) -> RebuildTuning {
        self.writing.lock().rebuild
    }

    pub(crate) fn set_rebuild_tuning(&self, f: impl FnOnce(&mut RebuildTuning)) {
        let tuning = {
            let mut writing = self.writing.lock();
            f(&mut writing.rebuild);
            writing.rebuild
        };
        for writer in self.imported().iter().filter_map(|p| p.writer().ok()) {
            writer.set_rebuild_tuning(tuning);
        }
    }

    /// Tunables of removals of vdevs.
    pub(crate) fn removal_tuning(&self) -> RemovalTuning {
        self.writing.lock().removal
    }

    pub(crate) fn set_removal_tuning(&self, f: impl FnOnce(&mut RemovalTuning)) {
        let tuning = {
            let mut writing = self.writing.lock();
            f(&mut writing.removal);
            writing.removal
        };
        for writer in self.imported().iter().filter_map(|p| p.writer().ok()) {
            writer.set_removal_tuning(tuning);
        }
    }

    /// Tunables of expansions of raidz vdevs.
    pub(crate) fn expansion_tuning(&self) -> ExpansionTuning {
        self.writing.lock().expansion
    }

    pub(crate) fn set_expansion_tuning(&self, f: impl FnOnce(&mut ExpansionTuning)) {
        let tuning = {
            let mut writing = self.writing.lock();
            f(&mut writing.expansion);
            writing.expansion
        };
        for writer in self.imported().iter().filter_map(|p| p.writer().ok()) {
            writer.set_expansion_tuning(tuning);
        }
    }

    pub(crate) fn set_free_space_tuning(&self, f: impl FnOnce(&mut FreeSpaceTuning)) {
        let tuning = {
            let mut writing = self.writing.lock();
            f(&mut writing.free_space);
            writing.free_space
        };
        for writer in self.imported().iter().filter_map(|p| p.writer().ok()) {
            writer.set_free_space_tuning(tuning);
        }
    }

    /// Tunables of resilvers.
    pub(crate) fn resilver_tuning(&self) -> ResilverTuning {
        self.writing.lock().resilver
    }

    pub(crate) fn set_resilver_tuning(&self, f: impl FnOnce(&mut ResilverTuning)) {
        let tuning = {
            let mut writing = self.writing.lock();
            f(&mut writing.resilver);
            writing.resilver
        };
        for writer in self.imported().iter().filter_map(|p| p.writer().ok()) {
            writer.set_resilver_tuning(tuning);
        }
    }

    /// The kstats of this engine and its pools.
    pub fn kstats(&self) -> &Arc<kstat::Registry> {
        &self.kstats
    }

    /// The events of this engine's pools.
    pub fn events(&self) -> &Arc<zevent::EventLog> {
        &self.events
    }

    /// How many events are posted in a second.
    pub(crate) fn event_limits(&self) -> &Arc<crate::events::EventLimits> {
        &self.event_limits
    }

    /// A device engine for one pool or one search, so that an operation that hangs does not
    /// affect others.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn devices(&self) -> Result<Arc<device::Engine>> {
        device::Engine::new(self.devices, QUEUE_DEPTH)
    }

    /// See [`EngineConfig::device_wrapper`].
    pub(crate) fn device_wrapper(&self) -> Option<DeviceWrapper> {
        self.device_wrapper.clone()
    }

    /// The names in use.
    pub(crate) fn names(&self) -> &Arc<TakenNames> {
        &self.names
    }

    /// The inspections of pools that searches have begun.
    pub(crate) fn looks(&self) -> &Arc<Looks> {
        &self.looks
    }

    /// The cache of all pools.
    pub(crate) fn block_cache(&self) -> &Arc<zio::BlockCache> {
        &self.cache
    }

    /// The cache devices of all pools.
    pub(crate) fn second_level(&self) -> &Arc<l2arc::SecondLevel> {
        &self.second_level
    }

    /// The imported pools.
    pub fn imported(&self) -> Vec<Arc<Pool>> {
        self.names.pools()
    }

    /// The prefetcher's counters.
    pub(crate) fn zfetch_stats(&self) -> crate::kstats::ZfetchStats {
        self.prefetch.stats()
    }

    /// The hit ratios expected at other sizes; empty while there are no samples.
    pub fn what_if(&self) -> [Vec<crate::kstats::WhatIfPoint>; 2] {
        self.cache.what_if()
    }

    /// A warning with the assumed size, if the machine's memory cannot be read.
    pub fn memory_warning(&self) -> Option<&str> {
        self.memory_warning.as_deref()
    }

    /// The machine's memory, if it can be read.
    pub(crate) fn memory_now(&self) -> Option<arc::MemorySample> {
        memory::probe(&self.memory_root).0
    }

    /// Counters and sizes of the block cache, and what the memory monitor saw last.
    pub fn arc_stats(&self) -> arc::ArcStats {
        let memory = *self.memory.lock();
        arc::ArcStats {
            memory_indirect_count: memory.shrinks,
            memory_all_bytes: memory.all,
            memory_free_bytes: memory.free,
            memory_available_bytes: memory.available,
            need_free: memory.need_free,
            sys_free: memory.sys_free,
            ..self.cache.arc_stats()
        }
    }

    /// The block cache's tunables.
    pub fn arc_config(&self) -> arc::Config {
        self.cache.config()
    }

    /// Changes the block cache's tunables, at once. Sizes that change no longer follow the
    /// machine.
    ///
    /// # Errors
    /// `Invalid` with the invalid tunable; nothing has changed then.
    pub(crate) fn set_arc_config(&self, config: arc::Config) -> Result<()> {
        let mut automatic = self.automatic.lock();
        let before = self.cache.config();
        self.configure(config)?;
        automatic.max &= before.arc_max == config.arc_max;
        automatic.min &= before.arc_min == config.arc_min;
        Ok(())
    }

    /// As [`Engine::set_arc_config`], for a caller that holds `automatic` and updates it.
    pub(crate) fn configure(&self, config: arc::Config) -> Result<()> {
        self.cache.configure(config)?;
        self.second_level.set_first_tier(config.arc_max);
        *self.watched.lock() = config;
        Ok(())
    }

    /// Changes the largest size of the block cache, at once.
    ///
    /// # Errors
    /// As [`Engine::set_arc_config`].
    pub fn set_arc_max(&self, bytes: u64) -> Result<()> {
        self.set_arc_config(arc::Config { arc_max: bytes, ..self.cache.config() })
    }

    /// Tunables and counters of prefetch, for all pools.
    pub fn prefetch(&self) -> &Arc<zio::Prefetch> {
        &self.prefetch
    }

    /// Drops every cached block (to measure cold reads).
    pub fn drop_cache(&self) {
        self.cache.clear();
    }

    /// Finds pools, and opens each for inspection as far as possible. A device that does
    /// not answer is reported after some seconds.
    ///
    /// # Errors
    /// `Limit` for too many candidates.
    pub fn discover(&self, search: &Search) -> Result<Discovery> {
        let found = spa::discover(search, &self.devices()?)?;
        let mut looks = Vec::new();
        for inner in found.pools {
            let (cache, devices) = (Arc::clone(&self.cache), self.devices()?);
            let slot = Arc::new(ProbeSlot::default());
            let (filled, own) = (Arc::clone(&slot), inner.clone());
            let look = self.looks.begin(own.guid);
            let work = move || {
                let found = look_at(own, &cache, &devices);
                // Its devices are closed.
                drop(look);
                filled.set(found);
            };
            base::rt::spawn("look", work)?;
            looks.push((inner, slot));
        }
        let begin = base::rt::now();
        let look = |(inner, slot): (spa::FoundPool, Arc<ProbeSlot>)| {
            let left = SILENCE_MAX.saturating_sub(begin.elapsed());
            slot.wait_for(left).unwrap_or_else(|| {
                let mut silent = FoundPool::unread(inner);
                silent.held_up = Some("its devices do not answer".to_owned());
                silent
            })
        };
        let pools = looks.into_iter().map(look).collect();
        Ok(Discovery { pools, problems: found.problems })
    }
}

/// How long the inspection of a pool may take without an answer.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// The result of a pool's inspection, for a caller that waits for a limited time.
#[derive(Default)]
struct ProbeSlot {
    found: Mutex<Option<FoundPool>>,
    filled: base::rt::Condvar,
}

impl ProbeSlot {
    fn set(&self, found: FoundPool) {
        *self.found.lock() = Some(found);
        self.filled.notify_all();
    }

    fn wait_for(&self, time: Duration) -> Option<FoundPool> {
        let begin = base::rt::now();
        let mut found = self.found.lock();
        loop {
            if let Some(found) = found.take() {
                return Some(found);
            }
            let left = time.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return None;
            }
            self.filled.wait_timeout(&mut found, left);
        }
    }
}

impl FoundPool {
    /// Whether another host had it last and did not export it.
    pub(crate) fn is_foreign(&self) -> bool {
        let other = self.hostid.unwrap_or(0) != spa::own_hostid() || self.hostid.is_none();
        self.state == PoolState::Active && other
    }

    /// From its labels alone.
    fn unread(inner: spa::FoundPool) -> FoundPool {
        FoundPool {
            name: inner.name.clone(),
            guid: inner.guid,
            state: inner.state,
            hostid: Some(inner.hostid).filter(|&h| h != 0),
            hostname: inner.hostname.clone(),
            timestamp: 0,
            comment: inner.comment.clone(),
            version: inner.version,
            health: VdevState::Unavail,
            reason: None,
            held_up: None,
            unsupported: Vec::new(),
            vdevs: VdevStatus::default(),
            aux: Vec::new(),
            inner,
        }
    }
}

fn look_at(
    inner: spa::FoundPool,
    cache: &Arc<zio::BlockCache>,
    devices: &Arc<device::Engine>,
) -> FoundPool {
    let options = ImportOptions { readonly: true, inspect: true, ..ImportOptions::default() };
    let opened = Spa::open(&inner, &options, cache, devices);
    let mut found = FoundPool::unread(inner);
    match opened {
        Ok(spa) => {
            found.timestamp = spa.uberblock().timestamp;
            found.vdevs = spa.vdev_status();
            found.health = found.vdevs.state();
            found.unsupported = words(spa.features().unsupported());
            found.aux = crate::pool::aux_devices(&spa);
            found.reason = reason_of_status(&found.vdevs);
            let blocks_writing = |u: &(String, String, bool)| u.2;
            if found.reason.is_none() && found.unsupported.iter().any(blocks_writing) {
                found.reason = Some(ImportReason::UnsupportedFeaturesWrite);
            }
        }
        Err(failure) => {
            found.reason = Some(reason_of_error(&failure.error, failure.vdevs.as_ref()));
            found.unsupported = words(failure.unsupported);
            found.vdevs = failure.vdevs.unwrap_or_default();
            found.held_up = holder::of(&found.inner);
        }
    }
    found.vdevs.name.clone_from(&found.name);
    let foreign = found.hostid.unwrap_or(0) != spa::own_hostid();
    if found.reason.is_none() && found.state == PoolState::Active && foreign {
        found.reason = Some(ImportReason::HostidMismatch);
    }
    found
}

fn words(list: Vec<dsl::features::Unsupported>) -> Vec<(String, String, bool)> {
    let active = list.into_iter().filter(|u| u.active);
    active.map(|u| (u.guid, u.description, u.read_only_ok)).collect()
}

/// Why an opened pool is not healthy.
pub(crate) fn reason_of_status(root: &VdevStatus) -> Option<ImportReason> {
    let (mut missing, mut corrupt, mut offline, mut faulted) = (false, false, false, false);
    root.for_each(&mut |v| {
        if !v.children.is_empty() || matches!(v.kind.as_str(), "hole" | "indirect") {
            return;
        }
        match (v.state(), v.aux.as_deref()) {
            (VdevState::Unavail, Some("corrupted data" | "invalid label")) => corrupt = true,
            (VdevState::Unavail | VdevState::Removed, _) => missing = true,
            (VdevState::Offline, _) => offline = true,
            (VdevState::Faulted, _) => faulted = true,
            _ => {}
        }
    });
    [
        (faulted, ImportReason::FaultedDevices),
        (missing, ImportReason::MissingDevices),
        (corrupt, ImportReason::CorruptLabels),
        (offline, ImportReason::OfflineDevices),
    ]
    .into_iter()
    .find_map(|(is, reason)| is.then_some(reason))
}

fn reason_of_error(error: &Error, vdevs: Option<&VdevStatus>) -> ImportReason {
    match error.kind() {
        ErrorKind::Unsupported => ImportReason::UnsupportedFeaturesRead,
        ErrorKind::DevicesMissing if error.message().contains("guid sum") => {
            ImportReason::BadGuidSum
        }
        ErrorKind::DevicesMissing if error.message().contains("log device") => ImportReason::BadLog,
        ErrorKind::DevicesMissing => match vdevs.and_then(reason_of_status) {
            Some(ImportReason::CorruptLabels) => ImportReason::CorruptLabelsNoReplicas,
            _ => ImportReason::MissingDevicesNoReplicas,
        },
        _ => match vdevs.and_then(reason_of_status) {
            Some(ImportReason::MissingDevices) => ImportReason::MissingDevicesNoReplicas,
            _ => ImportReason::CorruptPool,
        },
    }
}

/// The interface between cache and memory monitor.
struct Hooks {
    cache: Arc<zio::BlockCache>,
    status: Arc<Mutex<Status>>,
    give_back: Option<fn(bool)>,
}

impl MemoryHooks for Hooks {
    fn sizes(&mut self) -> (u64, u64) {
        (self.cache.size(), self.cache.target())
    }

    fn act(&mut self, action: Action, status: &Status) {
        *self.status.lock() = *status;
        match action {
            Action::Keep => {}
            Action::Grow => self.cache.set_no_grow(false),
            Action::NoGrow => self.cache.set_no_grow(true),
            Action::ShrinkTo(c) => {
                self.cache.set_no_grow(true);
                self.cache.set_target(c);
                // Free memory must not be kept for reuse now.
                base::buf::trim(0);
            }
        }
        if let Some(give_back) = self.give_back {
            give_back(matches!(action, Action::ShrinkTo(_)));
        }
    }
}
