//! An imported pool.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};

use base::rt::{Mutex, RwLock};
use base::{Error, Guid, Result, Txg};
use dsl::FeatureState;
use ondisk::config::{PoolConfig, VdevType};
use ondisk::objset::ObjsetType;
use spa::engine::{CheckpointStatus, RebuildProgress, Writer};
use spa::space::PoolSpace;
use spa::status::{ImportReason, VdevClass, VdevState, VdevStatus};
use spa::{ImportOptions, Spa};
use zpl::WeakFileSystem;
use zvol::WeakVolume;

use crate::dataset::Dataset;
use crate::delegation::Actor;
use crate::engine::reason_of_status;
use crate::host::PoolHost;
use crate::opening::PoolLeaves;

/// A pool in use.
pub struct Pool {
    pub(crate) core: Arc<PoolCore>,
    /// The user for whom it is changed through this handle.
    pub(crate) actor: Option<Actor>,
}

/// The state that a pool and its datasets share.
pub(crate) struct PoolCore {
    pub(crate) spa: Spa,
    /// The source that opens its devices.
    pub(crate) leaves: PoolLeaves,
    pub(crate) load_guid: u64,
    /// The writable half, unless the pool can only be read.
    pub(crate) writer: Option<Arc<Writer>>,
    /// Why it can only be read, although writing was requested.
    pub(crate) read_only_because: Option<String>,
    space: OnceLock<Arc<PoolSpace>>,
    /// The last value read of a pool that is being written.
    last_space: Mutex<Option<Arc<PoolSpace>>>,
    origin: OnceLock<u64>,
    /// The engine's kstats, for an imported pool.
    pub(crate) kstats: Option<Arc<kstat::Registry>>,
    /// File systems and volumes that are open for writing, which follow changes of properties.
    pub(crate) hosts: Mutex<Vec<Weak<PoolHost>>>,
    /// File systems that are open for writing, by the object id of their heads. Its
    /// lock is held while one is opened.
    pub(crate) files: Mutex<BTreeMap<u64, WeakFileSystem>>,
    /// The same for volumes.
    pub(crate) volumes: Mutex<BTreeMap<u64, WeakVolume>>,
    /// Counters of open datasets, by object id.
    pub(crate) counters: Mutex<BTreeMap<u64, crate::kstats::DatasetCounters>>,
    /// Where events of this pool are posted.
    pub(crate) events: OnceLock<zevent::PoolSource>,
    /// The properties that are set on vdevs, once they were read.
    pub(crate) vdev_props: RwLock<Option<Arc<crate::VdevProps>>>,
    /// Cache devices that are not in use.
    pub(crate) cache_faults: crate::cache_devices::CacheFaults,
    /// The defragmentation.
    pub(crate) move_job: mover::job::MoveJob,
    /// Spares that did not fit, each with the leaf for which they were tried.
    pub(crate) spares_tried: Mutex<BTreeSet<(Guid, Guid)>>,
    pub(crate) closed: std::sync::atomic::AtomicBool,
}

impl PoolCore {
    /// The pool's writing half.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub(crate) fn writer(&self) -> Result<&Arc<Writer>> {
        self.writer.as_ref().ok_or_else(|| {
            let because = self.read_only_because.as_deref();
            let why = because.unwrap_or("the pool was imported read-only");
            Error::new(base::ErrorKind::ReadOnly, why).in_pool(self.spa.name())
        })
    }

    /// The configuration of the last synced txg.
    pub(crate) fn config(&self) -> Arc<PoolConfig> {
        match &self.writer {
            Some(writer) => writer.published().config,
            None => Arc::new(self.spa.config().clone()),
        }
    }

    /// The features that are enabled and active now.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub(crate) fn features(&self) -> Result<FeatureState> {
        match &self.writer {
            Some(_) => FeatureState::load(self.spa.mos()),
            None => Ok(self.spa.features().clone()),
        }
    }

    /// The host of a file system or volume open for writing; it follows changes of
    /// properties.
    ///
    /// # Errors
    /// `ReadOnly`; those of reading the MOS.
    pub(crate) fn host(
        &self,
        name: &str,
        head: u64,
        of: ObjsetType,
        log: Option<Arc<zil::Log>>,
    ) -> Result<Arc<PoolHost>> {
        let host = PoolHost::new(self.writer()?, name, head, of, log)?;
        let mut hosts = self.hosts.lock();
        hosts.retain(|h| h.strong_count() > 0);
        hosts.push(Arc::downgrade(&host));
        Ok(host)
    }

    /// Updates the open file systems after a change of properties.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub(crate) fn refresh_hosts(&self) -> Result<()> {
        let hosts: Vec<Arc<PoolHost>> =
            self.hosts.lock().iter().filter_map(Weak::upgrade).collect();
        for host in hosts {
            match host.refresh() {
                // A destroyed dataset has no properties any more.
                Err(e) if e.kind() == base::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Fixes names of datasets while it is held.
    pub(crate) fn names(&self) -> Option<base::rt::ReadGuard<'_, ()>> {
        self.writer.as_ref().map(|w| w.names())
    }

    /// The pool's own empty snapshot, of which ordinary datasets are clones; 0 in pools too
    /// old to have one.
    pub(crate) fn origin_snapshot(&self) -> Result<u64> {
        if let Some(&object) = self.origin.get() {
            return Ok(object);
        }
        let head = match self.spa.root_dir()?.child("$ORIGIN")? {
            Some(dir) => dir.head()?,
            None => None,
        };
        // An upgrade from version 10 makes it.
        let Some(head) = head else { return Ok(0) };
        Ok(*self.origin.get_or_init(|| head.phys().prev_snap_obj))
    }

    /// The pool's space, as the writer knows it; that of a read-only pool is read once, because it
    /// does not change.
    pub(crate) fn space(&self) -> Result<Arc<PoolSpace>> {
        if let Some(space) = self.space.get() {
            return Ok(Arc::clone(space));
        }
        if let Some(writer) = &self.writer {
            let space = Arc::new(writer.pool_space()?);
            *self.last_space.lock() = Some(Arc::clone(&space));
            return Ok(space);
        }
        let loaded = Arc::new(self.spa.load_space()?);
        Ok(Arc::clone(self.space.get_or_init(|| loaded)))
    }

    /// The pool's space at the last query, without access to any device.
    pub(crate) fn last_space(&self) -> Option<Arc<PoolSpace>> {
        self.space.get().cloned().or_else(|| self.last_space.lock().clone())
    }

    /// Bytes that deduplication and cloning save. Datasets are charged for every reference,
    /// so the pool appears larger by as much (chapter 05 §11.1).
    pub(crate) fn saved(&self) -> Result<u64> {
        Ok(self.dedup_tally()?.1.saturating_add(self.clone_tally()?.1))
    }

    /// Bytes of deduplicated blocks, and bytes that deduplication saves.
    pub(crate) fn dedup_tally(&self) -> Result<(u64, u64)> {
        if let Some(writer) = &self.writer {
            return Ok(writer.dedup_tally());
        }
        self.spa.dedup_tally()
    }

    /// Bytes of cloned blocks, and bytes that cloning saves.
    pub(crate) fn clone_tally(&self) -> Result<(u64, u64)> {
        if let Some(writer) = &self.writer {
            return Ok(writer.clone_tally());
        }
        let tables = self.spa.clone_tables()?;
        let sum = |of: fn(&ondisk::brt::BrtVdev) -> u64| {
            tables.iter().fold(0u64, |sum, (_, table)| sum.saturating_add(of(table)))
        };
        Ok((sum(|t| t.used_space), sum(|t| t.saved_space)))
    }
}

/// State of a scrub or resilver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanState {
    /// Running (or it was running when the pool was last written).
    Scanning,
    /// Done.
    Finished,
    /// Stopped.
    Canceled,
}

/// The last scrub or resilver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanStatus {
    /// It is a resilver, not a scrub.
    pub resilver: bool,
    /// State.
    pub state: ScanState,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970; 0 while running.
    pub end_time: u64,
    /// Bytes to examine.
    pub to_examine: u64,
    /// Bytes examined.
    pub examined: u64,
    /// Bytes repaired.
    pub processed: u64,
    /// Errors found.
    pub errors: u64,
    /// Bytes that need not be read.
    pub skipped: u64,
    /// Bytes read.
    pub issued: u64,
    /// Seconds since 1970 of the pause; 0 if it is not paused.
    pub paused: u64,
    /// Seconds since 1970 when it was begun or resumed; 0 if it does not run.
    pub pass_start: u64,
    /// Seconds of pauses since then.
    pub spent_paused: u64,
    /// Seconds for which it has run since it was begun or resumed; 0 if it does not run.
    pub pass_seconds: u64,
    /// Bytes examined in that time.
    pub pass_examined: u64,
    /// Bytes read in that time.
    pub pass_issued: u64,
}

/// The last error scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorScrubStatus {
    /// State.
    pub state: ScanState,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970; 0 while running.
    pub end_time: u64,
    /// Blocks of the error log.
    pub to_examine: u64,
    /// Blocks of it that were read.
    pub examined: u64,
    /// Blocks that are lost as before.
    pub errors: u64,
    /// Seconds since 1970 of the pause; 0 if it is not paused.
    pub paused: u64,
}

/// The data of `zpool status`.
#[derive(Clone, Debug)]
pub struct PoolStatus {
    /// Name.
    pub name: String,
    /// Guid.
    pub guid: Guid,
    /// The last txg that was synced.
    pub txg: Txg,
    /// State of the pool as a whole.
    pub health: VdevState,
    /// The reason if it is not healthy.
    pub reason: Option<ImportReason>,
    /// Its devices.
    pub root: VdevStatus,
    /// Cache devices and spares.
    pub aux: Vec<VdevStatus>,
    /// Last scrub or resilver, if there ever was one.
    pub scan: Option<ScanStatus>,
    /// A resilver begins by itself, in one of the next txgs or after the one that runs.
    pub resilver_pending: bool,
    /// The last or current sequential rebuild of each top-level vdev, with the vdev's name.
    pub rebuilds: Vec<(String, RebuildProgress)>,
    /// Last error scrub, if there was one since the last scrub began.
    pub error_scrub: Option<ErrorScrubStatus>,
    /// The checkpoint, if there is one or one is being discarded.
    pub checkpoint: Option<CheckpointStatus>,
    /// Known damaged files and metadata.
    pub error_count: u64,
    /// Nothing can be written any more.
    pub suspended: bool,
}

impl Pool {
    pub(crate) fn with_writer(
        spa: Spa,
        kstats: Option<Arc<kstat::Registry>>,
        writer: Option<Arc<Writer>>,
        read_only_because: Option<String>,
        leaves: PoolLeaves,
    ) -> Pool {
        let load_guid = base::rt::random_u64().unwrap_or(1);
        Pool {
            actor: None,
            core: Arc::new(PoolCore {
                spa,
                leaves,
                load_guid,
                writer,
                read_only_because,
                space: OnceLock::new(),
                last_space: Mutex::new(None),
                origin: OnceLock::new(),
                kstats,
                hosts: Mutex::new(Vec::new()),
                files: Mutex::new(BTreeMap::new()),
                volumes: Mutex::new(BTreeMap::new()),
                counters: Mutex::new(BTreeMap::new()),
                events: OnceLock::new(),
                vdev_props: RwLock::new(None),
                cache_faults: Mutex::default(),
                move_job: mover::job::MoveJob::default(),
                spares_tried: Mutex::default(),
                closed: false.into(),
            }),
        }
    }

    /// The name of the pool.
    pub fn name(&self) -> &str {
        self.core.spa.name()
    }

    /// Its guid.
    pub fn guid(&self) -> Guid {
        match &self.core.writer {
            Some(writer) => writer.published().config.pool_guid,
            None => self.core.spa.guid(),
        }
    }

    /// Whether it is imported read-only.
    pub fn is_readonly(&self) -> bool {
        self.core.writer.is_none()
    }

    /// Why the pool can only be read, although writing was requested.
    pub fn read_only_because(&self) -> Option<&str> {
        self.core.read_only_because.as_deref()
    }

    /// The pool's writing half.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub fn writer(&self) -> Result<&Arc<Writer>> {
        self.core.writer()
    }

    /// Writes all changes, marks the pool exported and stops writing. A read-only pool is
    /// unchanged.
    ///
    /// # Errors
    /// Those of the devices.
    pub fn export(&self) -> Result<()> {
        self.finish(ondisk::config::PoolState::Exported)
    }

    /// Writes all changes and stops writing. The pool stays marked as in use, to be
    /// imported again by this host.
    ///
    /// # Errors
    /// Those of the devices.
    pub fn close(&self) -> Result<()> {
        self.core.close_caches();
        let Some(writer) = &self.core.writer else { return Ok(()) };
        let done = writer.check_running().and_then(|()| writer.sync().map(|_| ()));
        writer.stop();
        done.map_err(|e| e.in_pool(self.name()))
    }

    /// As [`Pool::export`], but marked destroyed.
    ///
    /// # Errors
    /// As [`Pool::export`]; `ReadOnly`.
    pub fn destroy(&self) -> Result<()> {
        self.writer()?;
        self.finish(ondisk::config::PoolState::Destroyed)
    }

    fn finish(&self, state: ondisk::config::PoolState) -> Result<()> {
        if let Some(writer) = &self.core.writer {
            // A thread that a suspended pool holds up ends when the pool is given up.
            self.core.move_job.close(!self.is_suspended());
            writer.export(state).map_err(|e| {
                self.core.move_job.reopen(writer);
                e.in_pool(self.name())
            })?;
        }
        self.core.close_caches();
        let what = match state {
            ondisk::config::PoolState::Destroyed => "pool_destroy",
            _ => "pool_export",
        };
        self.sysevent(what, &nvlist::NvList::new());
        Ok(())
    }

    /// The directory that mountpoints are below.
    pub fn altroot(&self) -> Option<&Path> {
        self.core.spa.options().altroot.as_deref()
    }

    /// The options of its import.
    pub fn options(&self) -> &ImportOptions {
        self.core.spa.options()
    }

    /// The pool's internals (see [`crate::inspect`]).
    pub fn spa(&self) -> &Spa {
        &self.core.spa
    }

    /// Its state, devices and errors.
    ///
    /// # Errors
    /// Those of reading the pool's own records.
    pub fn status(&self) -> Result<PoolStatus> {
        let mut root = self.core.spa.vdev_status();
        let suspended = self.is_suspended();
        // Of a suspended pool only data in memory is reported.
        let known = |e: Error| if suspended { Ok(()) } else { Err(e) };
        self.add_space(&mut root).or_else(known)?;
        self.add_jobs(&mut root).or_else(known)?;
        let mut reason = reason_of_status(&root);
        let mut failing = false;
        root.for_each(&mut |v| {
            failing |=
                v.children.is_empty() && v.read_errors + v.write_errors + v.checksum_errors > 0;
        });
        if failing && reason.is_none() {
            reason = Some(ImportReason::FailingDevices);
        }
        if reason.is_none() && self.features_missing().or_else(|e| known(e).map(|()| false))? {
            reason = Some(ImportReason::FeaturesDisabled);
        }
        if let Some(writer) = &self.core.writer {
            add_remarks(&mut root, writer);
        }
        for top in &mut root.children {
            top.aux = top.aux.take().or_else(|| self.allocation_remark(top.id));
        }
        // Before the scan that it may become.
        let writer = self.core.writer.as_ref();
        let resilver_pending = writer.is_some_and(|w| w.resilver_is_pending());
        Ok(PoolStatus {
            name: self.name().to_owned(),
            guid: self.guid(),
            txg: self.core.config().txg,
            health: root.state(),
            reason,
            aux: self.core.aux_devices(),
            resilver_pending,
            scan: self.scan_status().or_else(|e| known(e).map(|()| None))?,
            rebuilds: self.rebuild_status(&root).or_else(|e| known(e).map(|()| Vec::new()))?,
            error_scrub: self.error_scrub_status().or_else(|e| known(e).map(|()| None))?,
            checkpoint: self.checkpoint_status().or_else(|e| known(e).map(|()| None))?,
            error_count: self.error_count().or_else(|e| known(e).map(|()| 0))?,
            suspended,
            root,
        })
    }

    /// As [`Pool::status`], from memory alone: without scans, errors and auxiliary devices.
    /// No device is accessed.
    pub fn status_from_memory(&self) -> PoolStatus {
        let mut root = self.core.spa.vdev_status();
        if let Some(space) = self.core.last_space() {
            fill_in(&mut root, &space, &self.core.spa.zio().tree());
        }
        PoolStatus {
            name: self.name().to_owned(),
            guid: self.guid(),
            txg: self.core.config().txg,
            health: root.state(),
            reason: reason_of_status(&root),
            aux: Vec::new(),
            resilver_pending: false,
            scan: None,
            rebuilds: Vec::new(),
            error_scrub: None,
            checkpoint: self.core.writer.as_ref().and_then(|w| w.checkpoint_status()),
            error_count: 0,
            suspended: self.is_suspended(),
            root,
        }
    }

    fn features_missing(&self) -> Result<bool> {
        use ondisk::features::{FEATURES, NO_UPGRADE};
        if self.version() != ondisk::uberblock::VERSION_FEATURES {
            return Ok(false);
        }
        // A set that cannot be read requests nothing.
        let Ok(requested) = self.requested_features() else { return Ok(false) };
        // For a writable pool, features that Cenote does not maintain do not count as
        // missing.
        if self.core.writer.is_some() {
            return Ok(!self.features_to_add()?.is_empty());
        }
        let features = self.core.features()?;
        Ok(FEATURES
            .iter()
            .filter(|f| !f.has(NO_UPGRADE) && f.is_readable() && requested.has(f.name()))
            .any(|f| features.state(f) == dsl::features::State::Disabled))
    }

    /// Fills in sizes and fragmentation of the root and its top-level vdevs.
    fn add_space(&self, root: &mut VdevStatus) -> Result<()> {
        fill_in(root, &*self.core.space()?, &self.core.spa.zio().tree());
        if let Ok(writer) = self.writer() {
            for (id, bytes) in writer.growth() {
                let tops = root.children.iter_mut();
                tops.filter(|top| top.id == u64::from(id.0)).for_each(|top| top.expandsize = bytes);
            }
        }
        Ok(())
    }

    fn scan_status(&self) -> Result<Option<ScanStatus>> {
        use ondisk::scan::{Scan, ScanFunc, ScanState as Phys};
        let running = self.core.writer.as_ref().and_then(|w| w.running_scan_progress());
        let scan = match running {
            Some(progress) => progress.scan,
            None => {
                let words = self.core.spa.mos().lookup_words("scan")?;
                let words = words.as_deref().and_then(|w| w.first_chunk());
                let Some(scan) = words.and_then(|w| Scan::from_words(w).ok()) else {
                    return Ok(None);
                };
                scan
            }
        };
        let pass = running.filter(|p| p.pass_start > 0);
        let now = base::rt::wall_clock().as_secs();
        let pass_seconds = pass.map_or(0, |p| {
            let end = if p.paused > 0 { p.paused } else { now };
            end.saturating_sub(p.pass_start).saturating_sub(p.spent_paused).max(1)
        });
        // The time of the pause is not stored.
        let is_paused = scan.state == Phys::Scanning && scan.flags & spa::engine::SCAN_PAUSED != 0;
        let stored_pause = if is_paused { scan.start_time } else { 0 };
        let state = match scan.state {
            Phys::Scanning => ScanState::Scanning,
            Phys::Finished => ScanState::Finished,
            Phys::Canceled => ScanState::Canceled,
            Phys::None | Phys::ErrorScrubbing => return Ok(None),
        };
        let resilver = match scan.func {
            ScanFunc::Resilver => true,
            ScanFunc::Scrub => false,
            ScanFunc::None | ScanFunc::ErrorScrub => return Ok(None),
        };
        Ok(Some(ScanStatus {
            resilver,
            state,
            start_time: scan.start_time,
            end_time: scan.end_time,
            to_examine: scan.to_examine,
            examined: scan.examined,
            processed: scan.processed,
            errors: scan.errors,
            skipped: scan.skipped,
            issued: running.map_or(scan.examined.saturating_sub(scan.skipped), |p| p.issued),
            paused: running.map_or(stored_pause, |p| p.paused),
            pass_start: pass.map_or(0, |p| p.pass_start),
            spent_paused: pass.map_or(0, |p| p.spent_paused),
            pass_seconds,
            pass_examined: pass.map_or(0, |p| p.pass_examined),
            pass_issued: pass.map_or(0, |p| p.pass_issued),
        }))
    }

    fn rebuild_status(&self, root: &VdevStatus) -> Result<Vec<(String, RebuildProgress)>> {
        let known = match &self.core.writer {
            Some(writer) => writer.rebuilds(),
            None => {
                let progress = |record| RebuildProgress {
                    record,
                    pass_ms: 0,
                    pass_scanned: 0,
                    pass_issued: 0,
                };
                let records = self.core.spa.rebuild_records()?;
                records.into_iter().map(|(vdev, record)| (vdev, progress(record))).collect()
            }
        };
        let named = |(vdev, progress): (base::VdevId, RebuildProgress)| {
            let top = root.children.iter().find(|top| top.id == u64::from(vdev.0))?;
            Some((top.name.clone(), progress))
        };
        Ok(known.into_iter().filter_map(named).collect())
    }

    fn error_scrub_status(&self) -> Result<Option<ErrorScrubStatus>> {
        use ondisk::scan::{ErrorScrub, ScanFunc, ScanState as Phys};
        let running = self.core.writer.as_ref().and_then(|w| w.running_error_scrub());
        let (scrub, paused) = match running {
            Some(progress) => (progress.scrub, progress.paused),
            None => {
                let words = self.core.spa.mos().lookup_words("error_scrub")?;
                let words = words.as_deref().and_then(|w| w.first_chunk());
                let Some(scrub) = words.and_then(|w| ErrorScrub::from_words(w).ok()) else {
                    return Ok(None);
                };
                // The time of the pause is not stored.
                (scrub, if scrub.paused { scrub.start_time } else { 0 })
            }
        };
        let state = match scrub.state {
            _ if scrub.func != ScanFunc::ErrorScrub => return Ok(None),
            Phys::None => return Ok(None),
            Phys::Scanning | Phys::ErrorScrubbing => ScanState::Scanning,
            Phys::Finished => ScanState::Finished,
            Phys::Canceled => ScanState::Canceled,
        };
        let ErrorScrub { start_time, end_time, to_examine, examined, errors, .. } = scrub;
        let paused = if state == ScanState::Scanning { paused } else { 0 };
        Ok(Some(ErrorScrubStatus {
            state,
            start_time,
            end_time,
            to_examine,
            examined,
            errors,
            paused,
        }))
    }

    /// Begins, pauses, continues or stops a scrub, or begins a resilver.
    ///
    /// # Errors
    /// `ReadOnly`; those of [`Writer::scan`].
    pub fn scan(&self, request: spa::engine::ScanRequest, command: Option<&str>) -> Result<()> {
        self.writer()?.scan(request, command.map(spa::engine::Command::new))
    }

    /// The root dataset.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn root(&self) -> Result<Dataset> {
        self.dataset(self.name())
    }

    /// A dataset, snapshot or bookmark by its full name.
    ///
    /// # Errors
    /// `NotFound`, and those of reading the MOS.
    pub fn dataset(&self, name: &str) -> Result<Dataset> {
        Dataset::find(&self.core, name)
    }

    /// Calls `f` with every file system and volume, parents first. The caller sorts the
    /// names.
    ///
    /// # Errors
    /// Those of reading the MOS, and those of `f`.
    pub fn for_each_dataset(&self, f: &mut dyn FnMut(Dataset) -> Result<()>) -> Result<()> {
        self.core.spa.root_dir()?.walk(&mut |dir| match dir.head()? {
            Some(head) => f(Dataset::of_head(&self.core, head)?),
            None => Err(Error::corrupt("a dataset has no content").in_dataset(dir.name())),
        })
    }
}

impl Pool {
    /// Why nothing is allocated from a top-level vdev, as OpenZFS says it.
    fn allocation_remark(&self, id: u64) -> Option<String> {
        let config = self.core.config();
        let top = config.vdev_tree.children.iter().find(|v| u64::from(v.id) == id);
        let top = top.filter(|v| v.kind != VdevType::Indirect)?;
        match top.top.as_ref()? {
            space if space.removing => Some("(removing)".to_owned()),
            space if space.non_allocating => Some("(non-allocating)".to_owned()),
            _ => None,
        }
    }
}

/// Adds to each leaf what a scan does to it.
fn add_remarks(vdev: &mut VdevStatus, writer: &Writer) {
    vdev.children.iter_mut().for_each(|child| add_remarks(child, writer));
    let none = vdev.aux.as_deref().is_none_or(|aux| aux == spa::status::OUT_OF_DATE);
    if vdev.children.is_empty() && none {
        vdev.aux = writer.scan_remark(vdev.guid).map(str::to_owned);
    }
}

fn fill_in(root: &mut VdevStatus, space: &PoolSpace, tree: &vdev::Tree) {
    root.size = space.size();
    root.allocated = space.allocated();
    root.fragmentation = space.fragmentation();
    for top in &mut root.children {
        let id = base::VdevId(top.id as u32);
        let Some(v) = space.vdev(id) else { continue };
        top.size = v.size();
        let ratio = tree.deflate_ratio(id).unwrap_or(512);
        top.def_space = (top.size >> 9).saturating_mul(ratio);
        root.def_space += top.def_space;
        top.allocated = v.allocated();
        top.fragmentation = v.fragmentation();
        top.checkpoint = v.checkpoint;
    }
}

impl PoolCore {
    /// Cache devices and spares, with what is known of them.
    pub(crate) fn aux_devices(&self) -> Vec<VdevStatus> {
        let mut all = aux_devices(&self.spa);
        for device in all.iter_mut().filter(|v| v.class == VdevClass::Cache) {
            self.describe_cache(device);
        }
        let config = self.config();
        for spare in all.iter_mut().filter(|v| v.class == VdevClass::Spare) {
            if config.vdev_tree.leaves().any(|leaf| leaf.guid == spare.guid) {
                spare.aux = Some(crate::topology::IN_USE.to_owned());
            }
        }
        all
    }
}

/// Cache devices and spares in the MOS's lists.
pub(crate) fn aux_devices(spa: &Spa) -> Vec<VdevStatus> {
    let mut out = Vec::new();
    for (key, class) in [("l2cache", VdevClass::Cache), ("spares", VdevClass::Spare)] {
        let listed = spa.mos().lookup(key).ok().flatten();
        let list = listed.and_then(|object| spa.mos().packed_nvlist(object).ok());
        let Some(list) = list else { continue };
        for device in ondisk::config::parse_aux_list(&list, key).unwrap_or_default() {
            let path = device.path.as_ref().and_then(|p| p.to_str()).unwrap_or_default();
            out.push(VdevStatus {
                guid: device.guid,
                kind: device.raw.str("type").unwrap_or("disk").to_owned(),
                name: path.to_owned(),
                path: Some(path.into()),
                class,
                state: Some(VdevState::Online),
                ..VdevStatus::default()
            });
        }
    }
    out
}
