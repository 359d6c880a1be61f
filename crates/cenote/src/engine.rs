//! What one process shares among its pools.

use std::path::PathBuf;
use std::sync::{Arc, Weak};

use arc::pressure::{Action, Status};
use base::rt::Mutex;
use base::{Error, ErrorKind, Guid, Result};
use device::EngineKind;
use ondisk::config::PoolState;
use spa::engine::{Writer, WriterOptions};
use spa::status::{ImportReason, VdevState, VdevStatus};
use spa::{ImportOptions, Search, Spa};

use crate::memory::{self, MemoryHooks, Monitor};
use crate::pool::Pool;

/// Operations kept with the kernel at once.
const QUEUE_DEPTH: usize = 128;

/// How to set up an [`Engine`].
#[derive(Clone, Debug, Default)]
pub struct EngineConfig {
    /// Bytes of the block cache, from the start; `None` is up to half of memory, and
    /// an eighth at first.
    pub cache_bytes: Option<u64>,
    /// The cache's other tunables; its `arc_max` gives way to `cache_bytes`.
    pub arc: arc::Config,
    /// What drives the devices.
    pub engine: EngineKind,
    /// Where the memory of the machine is read: the root of `/proc` and `/sys`, for
    /// tests; `None` is `/`.
    pub memory_root: Option<PathBuf>,
    /// Called each second: what has been free for long goes back to the system. And with
    /// `true` when the machine lacks memory, after the cache shrank: all that is free goes.
    pub give_back: Option<fn(bool)>,
}

/// The block cache and the device engine of one process, and the pools it has.
pub struct Engine {
    cache: Arc<zio::BlockCache>,
    engine: Arc<device::Engine>,
    pools: Mutex<Vec<Weak<Pool>>>,
    prefetch: Arc<zio::Prefetch>,
    kstats: Arc<kstat::Registry>,
    /// Which bounds follow the machine; changed under its lock.
    pub(crate) automatic: Mutex<crate::tune::Automatic>,
    /// How pools are written: throttle, and queues of the devices.
    writing: Mutex<Writing>,
    /// What the monitor follows, and what it saw last.
    watched: Arc<Mutex<arc::Config>>,
    memory: Arc<Mutex<Status>>,
    memory_root: PathBuf,
    memory_warning: Option<String>,
    /// Behind everything that its hooks use.
    _monitor: Monitor,
}

/// Limits that hold for all pools, those imported later too.
struct Writing {
    throttle: txg::Limits,
    /// The limit of dirty data follows the machine's memory.
    automatic: bool,
    queues: vdev::QueueLimits,
}

/// What a scan found.
#[derive(Debug, Default)]
pub struct Discovery {
    /// Pools, by name.
    pub pools: Vec<FoundPool>,
    /// Places that were named but could not be read.
    pub problems: Vec<(PathBuf, Error)>,
}

/// A pool that could be imported, or not.
#[derive(Clone, Debug)]
pub struct FoundPool {
    /// Name in its labels.
    pub name: String,
    /// Its guid.
    pub guid: Guid,
    /// Active, exported or destroyed.
    pub state: PoolState,
    /// Host that had it last.
    pub hostid: Option<u64>,
    /// That host's name.
    pub hostname: Option<String>,
    /// Seconds since 1970 at its last sync; 0 if that is not known.
    pub timestamp: u64,
    /// The pool's comment.
    pub comment: Option<String>,
    /// Pool version.
    pub version: u64,
    /// State it would have; `Unavail` when it cannot be imported.
    pub health: VdevState,
    /// Why it is not simply fine.
    pub reason: Option<ImportReason>,
    /// Features in the way: name, description, whether read-only access works.
    pub unsupported: Vec<(String, String, bool)>,
    /// Its devices.
    pub vdevs: VdevStatus,
    /// Names of cache devices and spares, as far as known.
    pub aux: Vec<VdevStatus>,
    inner: spa::FoundPool,
}

impl Engine {
    /// Sets up the cache and the device engine.
    ///
    /// # Errors
    /// When the device engine cannot be started.
    pub fn new(config: EngineConfig) -> Result<Arc<Engine>> {
        let root = config.memory_root.clone().unwrap_or_else(|| PathBuf::from("/"));
        let (sample, memory_warning) = memory::probe(&root);
        let (mut least, mut most, mut c) = arc::pressure::default_sizes(sample.as_ref());
        if let Some(bytes) = config.cache_bytes {
            most = bytes.max(arc::config::ARC_MIN_FLOOR);
            (least, c) = (crate::tune::automatic_min(most, sample.as_ref()), most);
        }
        let sizes = arc::Config { arc_min: least, arc_max: most, ..config.arc };
        let cache = Arc::new(zio::BlockCache::new(sizes, c)?);
        let watched = Arc::new(Mutex::new(sizes));
        let status = Arc::<Mutex<Status>>::default();
        let give_back = config.give_back;
        let hooks = Hooks { cache: Arc::clone(&cache), status: Arc::clone(&status), give_back };
        let engine = Arc::new(Engine {
            cache,
            engine: device::Engine::new(config.engine, QUEUE_DEPTH)?,
            pools: Mutex::new(Vec::new()),
            prefetch: zio::Prefetch::new(),
            kstats: Arc::new(kstat::Registry::new()),
            automatic: Mutex::new(crate::tune::Automatic {
                max: config.cache_bytes.is_none(),
                min: true,
            }),
            writing: Mutex::new(Writing {
                throttle: txg::Limits::for_memory(sample.as_ref().map_or(4 << 30, |m| m.total)),
                automatic: true,
                queues: vdev::QueueLimits::default(),
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
    pub fn write_limits(&self) -> txg::Limits {
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

    /// 0 follows the machine's memory.
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

    /// The kstats of this engine and its pools.
    pub fn kstats(&self) -> &Arc<kstat::Registry> {
        &self.kstats
    }

    /// What drives the devices.
    pub(crate) fn devices(&self) -> &Arc<device::Engine> {
        &self.engine
    }

    /// The cache of all pools.
    pub(crate) fn block_cache(&self) -> &Arc<zio::BlockCache> {
        &self.cache
    }

    /// The pools that are imported.
    pub(crate) fn imported(&self) -> Vec<Arc<Pool>> {
        self.pools.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// What the prefetcher counts.
    pub fn zfetch_stats(&self) -> crate::kstats::ZfetchStats {
        self.prefetch.stats()
    }

    /// The hit ratios expected at other sizes; empty while there is nothing to go by.
    pub fn what_if(&self) -> Vec<crate::kstats::WhatIfPoint> {
        self.cache.what_if()
    }

    /// What is assumed because the machine's memory cannot be read, if it cannot.
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

    /// Changes the block cache's tunables, at once. Sizes that change no longer
    /// follow the machine.
    ///
    /// # Errors
    /// `Invalid` naming what makes no sense; nothing has changed then.
    pub fn set_arc_config(&self, config: arc::Config) -> Result<()> {
        let mut automatic = self.automatic.lock();
        let before = self.cache.config();
        self.configure(config)?;
        automatic.max &= before.arc_max == config.arc_max;
        automatic.min &= before.arc_min == config.arc_min;
        Ok(())
    }

    /// As [`Engine::set_arc_config`], by who holds `automatic` and keeps it true.
    pub(crate) fn configure(&self, config: arc::Config) -> Result<()> {
        self.cache.configure(config)?;
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

    /// Tunables and counters of reading ahead, for all pools.
    pub fn prefetch(&self) -> &Arc<zio::Prefetch> {
        &self.prefetch
    }

    /// Forgets every cached block (to measure cold reads).
    pub fn drop_cache(&self) {
        self.cache.clear();
    }

    /// Finds pools, and looks at each as far as it can be opened.
    ///
    /// # Errors
    /// `Limit` for absurdly many candidates.
    pub fn discover(&self, search: &Search) -> Result<Discovery> {
        let found = spa::discover(search, &self.engine)?;
        let pools = found.pools.into_iter().map(|p| self.look_at(p)).collect();
        Ok(Discovery { pools, problems: found.problems })
    }

    fn look_at(&self, inner: spa::FoundPool) -> FoundPool {
        let options = ImportOptions { readonly: true, inspect: true, ..ImportOptions::default() };
        let opened = Spa::open(&inner, &options, &self.cache, &self.engine);
        let mut found = FoundPool {
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
            unsupported: Vec::new(),
            vdevs: VdevStatus::default(),
            aux: Vec::new(),
            inner,
        };
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
            }
        }
        found.vdevs.name.clone_from(&found.name);
        let foreign = found.hostid.unwrap_or(0) != spa::own_hostid();
        if found.reason.is_none() && found.state == PoolState::Active && foreign {
            found.reason = Some(ImportReason::HostidMismatch);
        }
        found
    }

    /// Imports a pool.
    ///
    /// # Errors
    /// `Exists` for a name or guid already imported, `Busy` when another host
    /// had it and `force` is not set, and those of [`Spa::open`].
    pub fn import(&self, pool: &FoundPool, options: &ImportOptions) -> Result<Arc<Pool>> {
        let name = options.new_name.as_deref().unwrap_or(&pool.name);
        let mut pools = self.pools.lock();
        pools.retain(|p| p.strong_count() > 0);
        for other in pools.iter().filter_map(Weak::upgrade) {
            if other.guid() == pool.guid || other.name() == name {
                let text = "a pool with that name already exists";
                return Err(Error::new(ErrorKind::Exists, text).in_pool(name));
            }
        }
        let foreign = pool.hostid.unwrap_or(0) != spa::own_hostid() || pool.hostid.is_none();
        if pool.state == PoolState::Active && foreign && !options.force {
            return Err(Error::busy("pool was previously in use from another system").in_pool(name));
        }
        let spa = Spa::open(&pool.inner, options, &self.cache, &self.engine)
            .map_err(|failure| failure.error)?;
        spa.zio().set_prefetch(Arc::clone(&self.prefetch));
        let (writer, because) = start_writer(&spa, options, self.write_limits())?;
        spa.zio().tree().set_queue_limits(self.queue_limits());
        let kstats = Some(Arc::clone(&self.kstats));
        let pool = Arc::new(Pool::with_writer(spa, kstats, writer, because));
        // A pool without kstats is better than none.
        let _absent = crate::kstats::register_pool(&pool.core);
        pools.push(Arc::downgrade(&pool));
        Ok(pool)
    }

    /// The earlier states of a pool that can be looked at or gone back to, newest first.
    ///
    /// # Errors
    /// Those of [`spa::look_back`].
    pub fn look_back(&self, pool: &FoundPool) -> Result<Vec<spa::Past>> {
        let leaves = spa::FileLeaves(Arc::clone(&self.engine));
        spa::look_back(&pool.inner, &ImportOptions::default(), &self.cache, &leaves)
    }

    /// Opens a pool only to look at it: no host check, devices still locked for
    /// reading.
    ///
    /// # Errors
    /// Those of [`Spa::open`].
    pub fn inspect(&self, pool: &FoundPool, options: &ImportOptions) -> Result<Arc<Pool>> {
        let options = ImportOptions { readonly: true, inspect: true, ..options.clone() };
        let spa = Spa::open(&pool.inner, &options, &self.cache, &self.engine)
            .map_err(|failure| failure.error)?;
        spa.zio().set_prefetch(Arc::clone(&self.prefetch));
        Ok(Arc::new(Pool::new(spa, None)))
    }
}

/// Starts writing, if that was asked for; why not, if the pool does not allow it.
fn start_writer(
    spa: &Spa,
    options: &ImportOptions,
    limits: txg::Limits,
) -> Result<(Option<Arc<Writer>>, Option<String>)> {
    if !options.writes() {
        return Ok((None, None));
    }
    let max_ashift = spa.zio().tree().nodes().map(|(_, n)| n.ashift()).max().unwrap_or(9);
    let limits = Some(limits);
    let writing = WriterOptions { max_ashift, limits, resumes: true, ..WriterOptions::default() };
    match spa.start_writer(writing) {
        Ok(writer) => Ok((Some(writer), None)),
        Err(e) if e.kind() == ErrorKind::ReadOnly => Ok((None, Some(e.message().to_owned()))),
        Err(e) => Err(e),
    }
}

fn words(list: Vec<dsl::features::Unsupported>) -> Vec<(String, String, bool)> {
    let active = list.into_iter().filter(|u| u.active);
    active.map(|u| (u.guid, u.description, u.read_only_ok)).collect()
}

/// Why a tree that opened is not simply fine.
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
        ErrorKind::Missing if error.message().contains("guid sum") => ImportReason::BadGuidSum,
        ErrorKind::Missing if error.message().contains("log device") => ImportReason::BadLog,
        ErrorKind::Missing => match vdevs.and_then(reason_of_status) {
            Some(ImportReason::CorruptLabels) => ImportReason::CorruptLabelsNoReplicas,
            _ => ImportReason::MissingDevicesNoReplicas,
        },
        _ => match vdevs.and_then(reason_of_status) {
            Some(ImportReason::MissingDevices) => ImportReason::MissingDevicesNoReplicas,
            _ => ImportReason::CorruptPool,
        },
    }
}

/// The cache as the memory monitor sees it.
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
                // What is free is not to be kept warm now.
                base::buf::trim(0);
            }
        }
        if let Some(give_back) = self.give_back {
            give_back(matches!(action, Action::ShrinkTo(_)));
        }
    }
}
