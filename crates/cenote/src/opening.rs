//! Opening pools: reserved names and guids, a device engine per pool, and giving a pool up.
//!
//! # Theory
//! Opening a pool reads and writes its devices, and these may be full, slow or silent. So
//! nothing is held meanwhile that another pool needs. The registry's lock is taken to
//! reserve name and guid ([`TakenNames::reserve`]), and again to enter the pool or to
//! release the reservation. Each pool has a device engine of its own: an operation that
//! never ends only fills the queue of its pool.
//!
//! A caller that shows pools being opened makes an [`Opening`] first. The opening provides
//! the pool as soon as it exists, before the first txg is on disk: the pool can be listed,
//! cleared and given up then.
//!
//! # Giving up
//! [`Opening::give_up`] and [`Pool::give_up`] end every wait for a pool, whatever it waits
//! for. First the transaction groups are abandoned: threads that wait for a txg, for space
//! or for the end of a suspension get an error, and the sync thread begins no further txg.
//! Then the devices are cut off ([`device::Cutoff`]): threads that wait for a device get an
//! error, too. For the pool on disk that is a crash. An uberblock is written only after
//! everything that it refers to, and after the cutoff nothing is sent, so synced and logged
//! data is kept. A thread that the kernel holds in a system call is left behind; it only
//! gets errors when the call returns. The locks on the devices' files are released with the
//! last such call, so the pool cannot be reopened while a late write may still arrive.
//!
//! # Invariants
//! * Names and guids of pools that are open or being opened are unique, except for those
//!   that were given up.
//! * A pool that was given up before its writer began was never written to.
//!
//! Lock order: [`TakenNames`] and [`Opening::phase`] are leaf locks. No pool is dropped
//! under them, because a drop closes files.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::rt::Mutex;
use base::{Error, ErrorKind, Guid, Result};
use device::{CutDevice, Cutoff, Device, FileDevice};
use spa::engine::{Writer, WriterOptions};
use spa::leaves::{FileLeaves, Leaves, OpenLeaf, Purpose};
use spa::{Beginning, ImportOptions, Spa};

use crate::engine::{DeviceWrapper, Engine, FoundPool};
use crate::pool::Pool;

/// Operations of one pool in the kernel at once.
pub(crate) const QUEUE_DEPTH: usize = 128;

/// The names and guids in use.
#[derive(Default)]
pub(crate) struct TakenNames {
    list: Mutex<(u64, Vec<TakenPool>)>,
}

struct TakenPool {
    id: u64,
    name: String,
    /// A pool being created gets it later.
    guid: Option<Guid>,
    /// The pool; `None` while it is being opened.
    pool: Option<Weak<Pool>>,
    opening: Arc<Opening>,
}

impl TakenPool {
    /// Whether its name is free again, because the pool is closed or was given up.
    fn is_over(&self) -> bool {
        self.opening.cutoff.is_cut() || self.pool.as_ref().is_some_and(|p| p.strong_count() == 0)
    }
}

/// A name that is reserved until this is dropped, or for the lifetime of the pool entered.
pub(crate) struct Reserved {
    names: Arc<TakenNames>,
    id: u64,
    filled: bool,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if !self.filled {
            self.names.list.lock().1.retain(|t| t.id != self.id);
        }
    }
}

impl Reserved {
    fn fill(&mut self, guid: Guid, pool: &Arc<Pool>) {
        let mut list = self.names.list.lock();
        if let Some(taken) = list.1.iter_mut().find(|t| t.id == self.id) {
            (taken.guid, taken.pool) = (Some(guid), Some(Arc::downgrade(pool)));
        }
        self.filled = true;
    }
}

impl TakenNames {
    /// Reserves a name, and a guid if it is known.
    ///
    /// # Errors
    /// `Exists`.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        name: &str,
        guid: Option<Guid>,
        opening: &Arc<Opening>,
    ) -> Result<Reserved> {
        let exists = || Error::new(ErrorKind::Exists, "a pool with that name already exists");
        let mut list = self.list.lock();
        list.1.retain(|t| !t.is_over());
        if list.1.iter().any(|t| t.name == name || guid.is_some() && t.guid == guid) {
            return Err(exists().in_pool(name));
        }
        list.0 += 1;
        let (id, opening) = (list.0, Arc::clone(opening));
        list.1.push(TakenPool { id, name: name.to_owned(), guid, pool: None, opening });
        drop(list);
        let reserved = Reserved { names: Arc::clone(self), id, filled: false };
        // A pool's guid may have changed.
        if self.pools().iter().any(|p| Some(p.guid()) == guid) {
            return Err(exists().in_pool(name));
        }
        Ok(reserved)
    }

    /// The pools that are open, without those that were given up.
    pub(crate) fn pools(&self) -> Vec<Arc<Pool>> {
        let list = self.list.lock();
        let weak: Vec<Weak<Pool>> =
            list.1.iter().filter(|t| !t.is_over()).filter_map(|t| t.pool.clone()).collect();
        drop(list);
        weak.iter().filter_map(Weak::upgrade).collect()
    }
}

/// The state of a pool's opening.
enum OpeningPhase {
    Begun,
    /// Only the opening thread owns it, until the caller gets it.
    Ready(Weak<Pool>),
    GivenUp,
}

/// A pool being opened, which can be inspected and given up meanwhile.
pub struct Opening {
    cutoff: Arc<Cutoff>,
    phase: Mutex<OpeningPhase>,
}

impl Opening {
    /// For a pool that is to be opened.
    pub fn new() -> Arc<Opening> {
        let cutoff = Cutoff::new(QUEUE_DEPTH);
        Arc::new(Opening { cutoff, phase: Mutex::new(OpeningPhase::Begun) })
    }

    /// The pool, once it exists; its first txg need not be on disk.
    pub fn pool(&self) -> Option<Arc<Pool>> {
        match &*self.phase.lock() {
            OpeningPhase::Ready(pool) => pool.upgrade(),
            OpeningPhase::Begun | OpeningPhase::GivenUp => None,
        }
    }

    /// Gives the pool up: all waits for it end, and nothing is written any more.
    pub fn give_up(&self) {
        let before = std::mem::replace(&mut *self.phase.lock(), OpeningPhase::GivenUp);
        if let OpeningPhase::Ready(pool) = before
            && let Some(pool) = pool.upgrade()
        {
            pool.abandon_txgs();
        }
        self.cutoff.cut();
    }

    /// Whether it was given up.
    pub fn is_given_up(&self) -> bool {
        self.cutoff.is_cut()
    }

    /// The device with the oldest operation in flight, and how long it has taken.
    pub fn silence(&self) -> Option<(String, Duration)> {
        self.cutoff.oldest().map(|(device, time)| (device.to_string(), time))
    }

    /// A counter that grows whenever a device's operation begins or ends.
    pub fn activity(&self) -> u64 {
        self.cutoff.activity()
    }

    /// Publishes the pool, unless it was given up meanwhile.
    fn publish(&self, pool: &Arc<Pool>) -> Result<()> {
        let mut phase = self.phase.lock();
        if matches!(*phase, OpeningPhase::GivenUp) {
            drop(phase);
            pool.abandon_txgs();
            return Err(Error::new(ErrorKind::Interrupted, "the pool was given up"));
        }
        *phase = OpeningPhase::Ready(Arc::downgrade(pool));
        Ok(())
    }
}

/// Opens a pool's devices, on the pool's own engine, so that they can be given up.
pub(crate) struct PoolLeaves {
    files: FileLeaves,
    cutoff: Arc<Cutoff>,
    wrapper: Option<DeviceWrapper>,
}

impl PoolLeaves {
    /// Wraps an open file.
    pub(crate) fn wrap(&self, file: Arc<FileDevice>, path: &Path) -> Arc<dyn Device> {
        self.wrap_device(file, &path.display().to_string())
    }

    fn wrap_device(&self, device: Arc<dyn Device>, name: &str) -> Arc<dyn Device> {
        let device = match &self.wrapper {
            Some(wrapper) => wrapper.wrap(device),
            None => device,
        };
        Arc::new(CutDevice::new(device, name, &self.cutoff))
    }

    /// Whether the pool was given up.
    pub(crate) fn is_cut(&self) -> bool {
        self.cutoff.is_cut()
    }

    /// The device engine.
    pub(crate) fn engine(&self) -> &Arc<device::Engine> {
        &self.files.0
    }

    /// See [`Cutoff::watch`].
    pub(crate) fn watch(&self, path: &Path) -> Result<device::Watch> {
        self.cutoff.watch(&path.display().to_string())
    }
}

impl Leaves for PoolLeaves {
    fn open(&self, path: &Path, purpose: Purpose) -> Result<OpenLeaf> {
        let name = path.display().to_string();
        let watch = self.cutoff.watch(&name)?;
        let OpenLeaf { device, block_device } = self.files.open(path, purpose)?;
        drop(watch);
        Ok(OpenLeaf { device: self.wrap_device(device, &name), block_device })
    }
}

impl Engine {
    /// A source of leaves for one pool.
    pub(crate) fn leaves_for(&self, opening: &Opening) -> Result<PoolLeaves> {
        let cutoff = Arc::clone(&opening.cutoff);
        let (files, wrapper) = (FileLeaves(self.devices()?), self.device_wrapper());
        Ok(PoolLeaves { files, cutoff, wrapper })
    }

    /// Imports a pool.
    ///
    /// # Errors
    /// `Exists` for a name or guid already imported, `Busy` when another host had it and
    /// `force` is not set, those of [`Spa::open`], and that of a first txg that cannot be
    /// written: the pool is then unchanged.
    pub fn import(&self, pool: &FoundPool, options: &ImportOptions) -> Result<Arc<Pool>> {
        self.import_through(pool, options, &Opening::new())
    }

    /// As [`Engine::import`], with an [`Opening`] through which other threads can inspect
    /// it.
    ///
    /// # Errors
    /// As there; `Interrupted` or `Io` when it was given up.
    pub fn import_through(
        &self,
        pool: &FoundPool,
        options: &ImportOptions,
        opening: &Arc<Opening>,
    ) -> Result<Arc<Pool>> {
        let name = options.new_name.as_deref().unwrap_or(&pool.name);
        let reserved = self.names().reserve(name, Some(pool.guid), opening)?;
        self.import_reserved(pool, options, opening, reserved)
    }

    pub(crate) fn import_reserved(
        &self,
        pool: &FoundPool,
        options: &ImportOptions,
        opening: &Arc<Opening>,
        mut reserved: Reserved,
    ) -> Result<Arc<Pool>> {
        let name = options.new_name.as_deref().unwrap_or(&pool.name);
        if pool.is_foreign() && !options.force {
            return Err(Error::busy("pool was previously in use from another system").in_pool(name));
        }
        let leaves = self.leaves_for(opening)?;
        if options.writes() {
            self.looks().wait(pool.guid, &|| opening.is_given_up());
        }
        let spa = Spa::open_in(&pool.inner, options, self.block_cache(), &leaves)
            .map_err(|failure| failure.error)?;
        spa.zio().set_prefetch(Arc::clone(self.prefetch()));
        // Given up before writing began: nothing was written.
        if opening.is_given_up() {
            return Err(Error::new(ErrorKind::Interrupted, "the pool was given up"));
        }
        let (beginning, because) = begin_writing(&spa, options, self.write_limits())?;
        spa.zio().tree().set_queue_limits(self.queue_limits());
        spa.zio().tree().set_sit_out_limits(self.sit_out_limits());
        let writer = beginning.as_ref().map(|b| Arc::clone(b.writer()));
        if let Some(writer) = &writer {
            writer.set_free_space_tuning(self.free_space_tuning());
            writer.set_resilver_tuning(self.resilver_tuning());
            writer.set_rebuild_tuning(self.rebuild_tuning());
            writer.set_removal_tuning(self.removal_tuning());
            writer.set_expansion_tuning(self.expansion_tuning());
        }
        let kstats = Some(Arc::clone(self.kstats()));
        let opened = Arc::new(Pool::with_writer(spa, kstats, writer, because, leaves));
        crate::events::attach(self.events(), self.event_limits(), &opened);
        opened.apply_autosit();
        opening.publish(&opened)?;
        if let Some(beginning) = beginning
            && let Err(e) = beginning.finish()
        {
            opened.abandon_txgs();
            return Err(e.in_pool(name));
        }
        if let Some(writer) = &opened.core.writer {
            // Those that cannot be read stay, and cannot be used.
            let _left = writer.destroy_incomplete();
            opened.core.move_job.load(writer);
        }
        self.open_caches(&opened, &pool.inner);
        // A pool without kstats is better than none.
        let _absent = crate::kstats::register_pool(&opened.core);
        reserved.fill(pool.guid, &opened);
        opened.sysevent("pool_import", &nvlist::NvList::new());
        Ok(opened)
    }

    /// The earlier states of a pool that can be inspected or to which it can be rewound,
    /// newest first.
    ///
    /// # Errors
    /// Those of [`spa::look_back`].
    pub fn look_back(&self, pool: &FoundPool) -> Result<Vec<spa::Past>> {
        let leaves = self.leaves_for(&Opening::new())?;
        spa::look_back(&pool.inner, &ImportOptions::default(), self.block_cache(), &leaves)
    }

    /// Opens a pool only to inspect it: no host check, devices still locked for reading.
    ///
    /// # Errors
    /// Those of [`Spa::open`].
    pub fn inspect(&self, pool: &FoundPool, options: &ImportOptions) -> Result<Arc<Pool>> {
        let options = ImportOptions { readonly: true, inspect: true, ..options.clone() };
        let leaves = self.leaves_for(&Opening::new())?;
        let spa = Spa::open_in(&pool.inner, &options, self.block_cache(), &leaves)
            .map_err(|failure| failure.error)?;
        spa.zio().set_prefetch(Arc::clone(self.prefetch()));
        Ok(Arc::new(Pool::with_writer(spa, None, None, None, leaves)))
    }
}

/// Starts the writer, if that was requested; or returns the reason why the pool does not
/// allow it.
fn begin_writing(
    spa: &Spa,
    options: &ImportOptions,
    limits: txg::Limits,
) -> Result<(Option<Beginning>, Option<String>)> {
    if !options.writes() {
        return Ok((None, None));
    }
    let max_ashift = spa.zio().tree().nodes().map(|(_, n)| n.ashift()).max().unwrap_or(9);
    let limits = Some(limits);
    let writing = WriterOptions { max_ashift, limits, resumes: true, ..WriterOptions::default() };
    match spa.begin_writing(writing) {
        Ok(beginning) => Ok((Some(beginning), None)),
        Err(e) if e.kind() == ErrorKind::ReadOnly => Ok((None, Some(e.message().to_owned()))),
        Err(e) => Err(e),
    }
}

impl Pool {
    /// Ends every wait for the pool's txgs with an error.
    pub(crate) fn abandon_txgs(&self) {
        if let Some(writer) = &self.core.writer {
            Writer::abandon(writer);
        }
    }

    /// Gives the pool up: threads that wait for it or its devices get an error, and nothing
    /// is written any more. It is on disk as it was last synced, and can only be dropped.
    pub fn give_up(&self) {
        self.abandon_txgs();
        self.core.leaves.cutoff.cut();
        self.core.close_caches();
    }

    /// Whether it was given up.
    pub fn is_given_up(&self) -> bool {
        self.core.leaves.cutoff.is_cut()
    }

    /// The device with the oldest operation in flight, and how long it has taken.
    pub fn silence(&self) -> Option<(String, Duration)> {
        let oldest = self.core.leaves.cutoff.oldest();
        oldest.map(|(device, time)| (device.to_string(), time))
    }
}
