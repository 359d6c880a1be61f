//! Pools as they are opened: names and guids that are taken, devices of their own, and
//! the way to give a pool up.
//!
//! # Theory
//! Opening a pool reads and writes its devices, and these may be full, slow or silent. So
//! nothing is held meanwhile that another pool needs: the registry's lock is taken to
//! reserve name and guid ([`Names::reserve`]), and again to fill in the pool or to give
//! the reservation back. Each pool has an engine of its own that drives its devices: an
//! operation that never ends fills the queue of its pool alone.
//!
//! A caller that shows pools being opened makes an [`Opening`] first. It leads to the pool
//! as soon as there is one, before the first group is on disk: the pool can be listed,
//! cleared and given up then.
//!
//! # Giving up
//! [`Opening::give_up`] and [`Pool::give_up`] end every wait for a pool, whatever it waits
//! for. First the transaction groups are abandoned: whoever waits for a group, for room
//! or for the end of a suspension gets an error, and the sync thread begins no further
//! group. Then the devices are cut ([`device::Cutoff`]): whoever waits for a device gets
//! an error too. For the pool on disk that is a crash: an uberblock is written only behind
//! everything that it leads to, and after the cut nothing is sent, so what was synced or
//! logged stays. A thread that the kernel holds in a system call is left behind; it finds
//! errors alone when it comes back. The locks on the devices' files go with the last such
//! call, so the pool cannot be opened anew while a late write may still come.
//!
//! # Invariants
//! * Of two pools that are open or being opened, names and guids differ, those that were
//!   given up aside.
//! * A pool that was given up before its writer began was never written to.
//!
//! Lock order: [`Names`] and [`Opening::phase`] are leaf locks. No pool is dropped under
//! them: a drop closes files.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::rt::Mutex;
use base::{Error, ErrorKind, Guid, Result};
use device::{CutDevice, Cutoff, FileDevice};
use spa::engine::{Writer, WriterOptions};
use spa::leaves::{FileLeaves, Leaves, OpenLeaf, Purpose};
use spa::{Beginning, ImportOptions, Spa};

use crate::engine::{Engine, FoundPool};
use crate::pool::Pool;

/// Operations of one pool kept with the kernel at once.
pub(crate) const QUEUE_DEPTH: usize = 128;

/// The names and guids that are taken.
#[derive(Default)]
pub(crate) struct Names {
    list: Mutex<(u64, Vec<Taken>)>,
}

struct Taken {
    id: u64,
    name: String,
    /// Of a pool that is made it comes later.
    guid: Option<Guid>,
    /// What is there of the pool; nothing while it is opened.
    pool: Option<Weak<Pool>>,
    opening: Arc<Opening>,
}

impl Taken {
    /// Whether its name is free again: the pool is closed, or was given up.
    fn is_over(&self) -> bool {
        self.opening.cutoff.is_cut() || self.pool.as_ref().is_some_and(|p| p.strong_count() == 0)
    }
}

/// A name that is taken until it is dropped, or for the life of the pool put there.
pub(crate) struct Reserved {
    names: Arc<Names>,
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

impl Names {
    /// Takes a name, and a guid if it is known.
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
        list.1.push(Taken { id, name: name.to_owned(), guid, pool: None, opening });
        drop(list);
        let reserved = Reserved { names: Arc::clone(self), id, filled: false };
        // A pool may have another guid by now.
        if self.pools().iter().any(|p| Some(p.guid()) == guid) {
            return Err(exists().in_pool(name));
        }
        Ok(reserved)
    }

    /// The pools that are open, those that were given up left out.
    pub(crate) fn pools(&self) -> Vec<Arc<Pool>> {
        let list = self.list.lock();
        let weak: Vec<Weak<Pool>> =
            list.1.iter().filter(|t| !t.is_over()).filter_map(|t| t.pool.clone()).collect();
        drop(list);
        weak.iter().filter_map(Weak::upgrade).collect()
    }
}

/// How far a pool's opening has come.
enum Phase {
    Begun,
    /// Until the caller has it, its opener alone keeps it.
    There(Weak<Pool>),
    GivenUp,
}

/// A pool being opened, to be looked at and given up meanwhile.
pub struct Opening {
    cutoff: Arc<Cutoff>,
    phase: Mutex<Phase>,
}

impl Opening {
    /// Of a pool that is to be opened.
    pub fn new() -> Arc<Opening> {
        let cutoff = Cutoff::new(QUEUE_DEPTH);
        Arc::new(Opening { cutoff, phase: Mutex::new(Phase::Begun) })
    }

    /// The pool, once it is there; its first group need not be on disk.
    pub fn pool(&self) -> Option<Arc<Pool>> {
        match &*self.phase.lock() {
            Phase::There(pool) => pool.upgrade(),
            Phase::Begun | Phase::GivenUp => None,
        }
    }

    /// Gives the pool up: nobody waits for it any more, and nothing is written.
    pub fn give_up(&self) {
        let before = std::mem::replace(&mut *self.phase.lock(), Phase::GivenUp);
        if let Phase::There(pool) = before
            && let Some(pool) = pool.upgrade()
        {
            pool.abandon_groups();
        }
        self.cutoff.cut();
    }

    /// Whether it was given up.
    pub fn is_given_up(&self) -> bool {
        self.cutoff.is_cut()
    }

    /// The device that has kept an operation longest, and for how long.
    pub fn silence(&self) -> Option<(String, Duration)> {
        self.cutoff.oldest().map(|(device, time)| (device.to_string(), time))
    }

    /// A number that grows whenever a device's operation begins or ends.
    pub fn activity(&self) -> u64 {
        self.cutoff.activity()
    }

    /// The pool is there, unless it was given up meanwhile.
    fn show(&self, pool: &Arc<Pool>) -> Result<()> {
        let mut phase = self.phase.lock();
        if matches!(*phase, Phase::GivenUp) {
            drop(phase);
            pool.abandon_groups();
            return Err(Error::new(ErrorKind::Interrupted, "the pool was given up"));
        }
        *phase = Phase::There(Arc::downgrade(pool));
        Ok(())
    }
}

/// Opens a pool's devices, on an engine of the pool's own, so that they can be given up.
pub(crate) struct PoolLeaves {
    files: FileLeaves,
    cutoff: Arc<Cutoff>,
}

impl PoolLeaves {
    /// Wraps an open file.
    pub(crate) fn wrap(&self, file: Arc<FileDevice>, path: &Path) -> Arc<dyn device::Device> {
        Arc::new(CutDevice::new(file, &path.display().to_string(), &self.cutoff))
    }

    /// What drives the devices.
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
        Ok(OpenLeaf { device: Arc::new(CutDevice::new(device, &name, &self.cutoff)), block_device })
    }
}

impl Engine {
    /// What opens a pool's devices.
    pub(crate) fn leaves_for(&self, opening: &Opening) -> Result<PoolLeaves> {
        let cutoff = Arc::clone(&opening.cutoff);
        Ok(PoolLeaves { files: FileLeaves(self.devices()?), cutoff })
    }

    /// Imports a pool.
    ///
    /// # Errors
    /// `Exists` for a name or guid already imported, `Busy` when another host
    /// had it and `force` is not set, those of [`Spa::open`], and that of a first group
    /// that cannot be written: the pool is as it was then.
    pub fn import(&self, pool: &FoundPool, options: &ImportOptions) -> Result<Arc<Pool>> {
        self.import_shown(pool, options, &Opening::new())
    }

    /// As [`Engine::import`], for others to look at.
    ///
    /// # Errors
    /// As there; `Interrupted` or `Io` when it was given up.
    pub fn import_shown(
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
        let spa = Spa::open_in(&pool.inner, options, self.block_cache(), &leaves)
            .map_err(|failure| failure.error)?;
        spa.zio().set_prefetch(Arc::clone(self.prefetch()));
        // Given up before that: nothing was written.
        if opening.is_given_up() {
            return Err(Error::new(ErrorKind::Interrupted, "the pool was given up"));
        }
        let (beginning, because) = begin_writing(&spa, options, self.write_limits())?;
        spa.zio().tree().set_queue_limits(self.queue_limits());
        let writer = beginning.as_ref().map(|b| Arc::clone(b.writer()));
        let kstats = Some(Arc::clone(self.kstats()));
        let opened = Arc::new(Pool::with_writer(spa, kstats, writer, because, leaves));
        opening.show(&opened)?;
        if let Some(beginning) = beginning
            && let Err(e) = beginning.finish()
        {
            opened.abandon_groups();
            return Err(e.in_pool(name));
        }
        // A pool without kstats is better than none.
        let _absent = crate::kstats::register_pool(&opened.core);
        reserved.fill(pool.guid, &opened);
        Ok(opened)
    }

    /// The earlier states of a pool that can be looked at or gone back to, newest first.
    ///
    /// # Errors
    /// Those of [`spa::look_back`].
    pub fn look_back(&self, pool: &FoundPool) -> Result<Vec<spa::Past>> {
        let leaves = self.leaves_for(&Opening::new())?;
        spa::look_back(&pool.inner, &ImportOptions::default(), self.block_cache(), &leaves)
    }

    /// Opens a pool only to look at it: no host check, devices still locked for
    /// reading.
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

/// Begins to write, if that was asked for; why not, if the pool does not allow it.
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
    /// Ends every wait for the pool's groups with an error.
    pub(crate) fn abandon_groups(&self) {
        if let Some(writer) = &self.core.writer {
            Writer::abandon(writer);
        }
    }

    /// Gives the pool up: whoever waits for it or its devices gets an error, and nothing
    /// is written any more. It is on disk as it was last synced, and can only be dropped.
    pub fn give_up(&self) {
        self.abandon_groups();
        self.core.leaves.cutoff.cut();
    }

    /// Whether it was given up.
    pub fn is_given_up(&self) -> bool {
        self.core.leaves.cutoff.is_cut()
    }

    /// The device that has kept an operation longest, and for how long.
    pub fn silence(&self) -> Option<(String, Duration)> {
        let oldest = self.core.leaves.cutoff.oldest();
        oldest.map(|(device, time)| (device.to_string(), time))
    }
}
