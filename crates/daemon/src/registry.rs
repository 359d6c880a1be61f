//! The pools that the daemon has, with the state of each.
//!
//! # Theory
//! A [`Slot`] is a pool's entry in the list, from the moment its name is reserved. It is a
//! state machine:
//!
//! ```text
//!   (none) -- import --> Importing --+--> Open <--> Closing -- exported, destroyed --> (none)
//!   (none) -- create --> Creating ---+
//!   any of them -- given up by force --> (none)
//! ```
//!
//! Reserving a name (and a guid) and changing a phase take the registry's lock for an instant.
//! The slow part of each transition runs outside of it, under the slot's own lock
//! ([`PoolLock`]): one thread at a time changes a pool, and threads that change other pools are
//! never blocked. Reading a pool's state needs no pool lock. A suspended pool is `Open`, or
//! still `Importing` if its first txg could not be written. It can be inspected, cleared and
//! given up in any phase ([`Slot::pool`]).
//!
//! Force does not wait for a pool lock whose holder hangs. It gives the pool up
//! ([`cenote::Pool::give_up`]), which ends the holder's waits with errors, and removes the slot
//! from the list. The holder finds its slot gone and changes nothing more.
//!
//! # Invariants
//! * Names in the list are unique, and so are the guids that are known.
//! * Only the holder of the slot's pool lock changes its phase; force may also remove the slot.
//! * Nothing blocks under the registry's lock or under `PoolLock::holder`: no call of the
//!   engine, no file but the list of pools ([`super::state`]), no drop of a pool.
//!
//! Lock order: pool locks, by name where several are taken → registry → a slot's `inner`.
//! `PoolLock::holder` is a leaf.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::rt::{self, Condvar, Instant, Mutex, RwLock};
use base::{Error, ErrorKind, Result};
use cenote::{Opening, Pool};
use proto::ImportArgs;

use super::state::Listener;

/// How often a waiting request checks that its client is still connected.
const CLIENT_CHECK: Duration = Duration::from_millis(250);
/// A device that keeps an operation for this long is reported as silent.
pub(super) const SILENT: Duration = Duration::from_secs(2);

/// The phase of a pool's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its devices are being opened, or its first txg is being written.
    Importing,
    /// It is being created.
    Creating,
    /// It can be used.
    Open,
    /// It is being exported or destroyed.
    Closing,
}

impl Phase {
    /// The word that lists show instead of a state; none for a pool in use.
    pub(super) fn word(self) -> Option<&'static str> {
        match self {
            Phase::Importing => Some("IMPORTING"),
            Phase::Creating => Some("CREATING"),
            Phase::Open => None,
            Phase::Closing => Some("EXPORTING"),
        }
    }
}

struct SlotState {
    args: ImportArgs,
    /// Not yet known of a pool that is being created.
    guid: Option<u64>,
    phase: Phase,
    pool: Option<Arc<Pool>>,
    /// Removed from the list.
    gone: bool,
}

/// A pool's entry in the list.
pub(super) struct Slot {
    name: String,
    opening: Arc<Opening>,
    lock: PoolLock,
    inner: Mutex<SlotState>,
    /// An earlier daemon had it imported.
    again: bool,
    /// Inspections that were abandoned and have not returned.
    stuck: Mutex<usize>,
}

/// Abandoned inspections of one pool at which further ones are refused.
const STUCK_MAX: usize = 4;

impl Slot {
    pub(super) fn new(name: &str, args: ImportArgs, phase: Phase, again: bool) -> Arc<Slot> {
        let guid = Some(args.guid).filter(|g| *g != 0);
        Arc::new(Slot {
            name: name.to_owned(),
            opening: Opening::new(),
            lock: PoolLock::default(),
            inner: Mutex::new(SlotState { args, guid, phase, pool: None, gone: false }),
            again,
            stuck: Mutex::new(0),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn opening(&self) -> &Arc<Opening> {
        &self.opening
    }

    /// Whether an earlier daemon had it imported.
    pub(super) fn is_again(&self) -> bool {
        self.again
    }

    pub(super) fn phase(&self) -> Phase {
        self.inner.lock().phase
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.inner.lock().phase = phase;
    }

    pub(super) fn args(&self) -> ImportArgs {
        self.inner.lock().args.clone()
    }

    pub(super) fn change_args(&self, f: impl FnOnce(&mut ImportArgs)) {
        f(&mut self.inner.lock().args);
    }

    /// Its guid, if it is known.
    pub(super) fn guid(&self) -> Option<u64> {
        match self.pool() {
            Some(pool) => Some(pool.guid().0),
            None => self.inner.lock().guid,
        }
    }

    /// The pool, once it exists; its first txg may not be on disk yet.
    pub(super) fn pool(&self) -> Option<Arc<Pool>> {
        let pool = self.inner.lock().pool.clone();
        pool.or_else(|| self.opening.pool())
    }

    /// Makes the pool usable. False if the slot was removed meanwhile.
    pub(super) fn open(&self, pool: Arc<Pool>) -> bool {
        let mut inner = self.inner.lock();
        if inner.gone {
            drop(inner);
            super::watched::drop_in_background(pool);
            return false;
        }
        inner.args.guid = pool.guid().0;
        (inner.phase, inner.pool) = (Phase::Open, Some(pool));
        true
    }

    /// Whether the slot was removed from the list, by force or because the pool was closed.
    pub(super) fn is_gone(&self) -> bool {
        self.inner.lock().gone
    }

    fn mark_gone(&self) -> Option<Arc<Pool>> {
        let mut inner = self.inner.lock();
        inner.gone = true;
        inner.pool.take()
    }

    /// The device that has been silent for [`SILENT`] or longer, and since when.
    pub(super) fn silence(&self) -> Option<(String, Duration)> {
        self.opening.silence().filter(|s| s.1 >= SILENT)
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.pool().is_some_and(|p| p.is_suspended())
    }

    /// Gives the pool up, whatever its phase.
    pub(super) fn give_up(&self) {
        if let Some(pool) = self.pool() {
            pool.give_up();
        }
        self.opening.give_up();
    }

    /// Permission to inspect the pool on a thread that may have to be abandoned; none while too
    /// many such threads hang.
    pub(super) fn inspection_permit(self: &Arc<Self>) -> Option<InspectionPermit> {
        let mut stuck = self.stuck.lock();
        if *stuck >= STUCK_MAX {
            return None;
        }
        *stuck += 1;
        Some(InspectionPermit(Arc::clone(self)))
    }
}

/// An inspection of a pool; dropping it ends its count.
pub(super) struct InspectionPermit(Arc<Slot>);

impl Drop for InspectionPermit {
    fn drop(&mut self) {
        *self.0.stuck.lock() -= 1;
    }
}

/// Gives one thread at a time the right to change a pool.
#[derive(Default)]
struct PoolLock {
    holder: Mutex<Option<(String, Instant)>>,
    free: Condvar,
}

/// Holds a pool's lock until it is dropped.
pub(super) struct PoolLockGuard(Arc<Slot>);

impl PoolLockGuard {
    /// The pool's slot.
    pub(super) fn slot(&self) -> &Arc<Slot> {
        &self.0
    }
}

impl Drop for PoolLockGuard {
    fn drop(&mut self) {
        *self.0.lock.holder.lock() = None;
        self.0.lock.free.notify_one();
    }
}

fn no_such_pool(name: &str) -> Error {
    Error::not_found(format!("cannot open '{name}': no such pool"))
}

impl Slot {
    /// Takes the pool's lock for the operation `what`, waiting for at most `time`.
    pub(super) fn try_lock_within(
        self: &Arc<Self>,
        what: &str,
        time: Duration,
    ) -> Option<PoolLockGuard> {
        let begin = rt::now();
        let mut holder = self.lock.holder.lock();
        while holder.is_some() {
            let left = time.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return None;
            }
            self.lock.free.wait_timeout(&mut holder, left);
        }
        *holder = Some((what.to_owned(), rt::now()));
        Some(PoolLockGuard(Arc::clone(self)))
    }

    /// The operation that holds the pool's lock, and for how long it has held it.
    pub(super) fn lock_holder(&self) -> Option<(String, Duration)> {
        let holder = self.lock.holder.lock();
        holder.as_ref().map(|(what, since)| (what.clone(), since.elapsed()))
    }

    /// Takes the pool's lock; reports the operation that holds it to the client meanwhile.
    ///
    /// # Errors
    /// `NotFound` if the pool is gone, `Interrupted` if the client is; `Io` if the pool is
    /// suspended, because the holder may wait for the end of the suspension.
    pub(super) fn lock_pool(
        self: &Arc<Self>,
        what: &str,
        to: &mut (impl Listener + ?Sized),
    ) -> Result<PoolLockGuard> {
        loop {
            if let Some(lock) = self.try_lock_within(what, CLIENT_CHECK) {
                return match self.is_gone() {
                    true => Err(no_such_pool(&self.name)),
                    false => Ok(lock),
                };
            }
            if to.is_gone() {
                return Err(Error::new(ErrorKind::Interrupted, "the client is gone"));
            }
            if self.is_gone() {
                return Err(no_such_pool(&self.name));
            }
            if self.is_suspended() {
                return Err(super::suspended::error());
            }
            if let Some((held, time)) = self.lock_holder() {
                let line = format!("'{}': {held}, for {} s", self.name, time.as_secs());
                to.progress(&line, 0, 0);
            }
        }
    }
}

/// All slots, by name.
#[derive(Default)]
pub(super) struct Registry {
    slots: RwLock<BTreeMap<String, Arc<Slot>>>,
}

impl Registry {
    /// Reserves the slot's name and guid.
    ///
    /// # Errors
    /// The slot that has one of them.
    pub(super) fn insert(&self, slot: &Arc<Slot>) -> std::result::Result<(), Arc<Slot>> {
        let guid = slot.guid();
        let others = self.all();
        // Guids are read outside of the lock; a name that is inserted meanwhile is found under
        // it.
        if let Some(other) = others.iter().find(|o| guid.is_some() && o.guid() == guid) {
            return Err(Arc::clone(other));
        }
        let mut slots = self.slots.write();
        if let Some(other) = slots.get(slot.name()) {
            return Err(Arc::clone(other));
        }
        slots.insert(slot.name().to_owned(), Arc::clone(slot));
        Ok(())
    }

    /// Removes a slot and returns its pool. Another slot that has its name by now stays.
    pub(super) fn remove(&self, slot: &Arc<Slot>) -> Option<Arc<Pool>> {
        let mut slots = self.slots.write();
        if slots.get(slot.name()).is_some_and(|s| Arc::ptr_eq(s, slot)) {
            slots.remove(slot.name());
        }
        drop(slots);
        slot.mark_gone()
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<Slot>> {
        self.slots.read().get(name).cloned()
    }

    /// A slot by name.
    ///
    /// # Errors
    /// `NotFound`, with the user's whole message.
    pub(super) fn find(&self, name: &str) -> Result<Arc<Slot>> {
        self.get(name).ok_or_else(|| no_such_pool(name))
    }

    /// All slots, by name.
    pub(super) fn all(&self) -> Vec<Arc<Slot>> {
        self.slots.read().values().cloned().collect()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.slots.read().keys().cloned().collect()
    }

    /// Locks several pools, in the order of their names. Names that do not exist are left out;
    /// opening them later fails with the right message.
    ///
    /// # Errors
    /// As [`Slot::lock_pool`].
    pub(super) fn lock_pools<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
        what: &str,
        to: &mut (impl Listener + ?Sized),
    ) -> Result<Vec<PoolLockGuard>> {
        let names: BTreeSet<&str> = names.collect();
        let slots = names.into_iter().filter_map(|name| self.get(name));
        slots.map(|slot| slot.lock_pool(what, to)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::Log;
    use super::*;

    fn slot(name: &str, guid: u64) -> Arc<Slot> {
        Slot::new(name, ImportArgs { guid, ..ImportArgs::default() }, Phase::Importing, false)
    }

    #[test]
    fn names_and_guids_are_taken_once() {
        let registry = Registry::default();
        let (a, same_name, same_guid) = (slot("a", 1), slot("a", 2), slot("b", 1));
        registry.insert(&a).map_err(|s| s.name.clone()).unwrap();
        assert_eq!(registry.insert(&same_name).unwrap_err().name(), "a");
        assert_eq!(registry.insert(&same_guid).unwrap_err().name(), "a");
        assert!(registry.insert(&slot("b", 0)).is_ok() && registry.insert(&slot("c", 0)).is_ok());
        assert!(!a.is_gone() && registry.remove(&a).is_none() && a.is_gone());
        registry.insert(&same_name).map_err(|s| s.name.clone()).unwrap();
        // Another slot has the name by now.
        registry.remove(&a);
        assert_eq!(registry.names(), ["a", "b", "c"]);
        assert_eq!(registry.find("d").err().unwrap().message(), "cannot open 'd': no such pool");
    }

    /// An import that could not write its first txg held a lock that every other command
    /// needed.
    #[test]
    fn a_lock_that_hangs_does_not_block_other_pools() {
        let registry = Registry::default();
        let (a, b) = (slot("a", 1), slot("b", 2));
        assert!(registry.insert(&a).is_ok() && registry.insert(&b).is_ok());
        let held = a.lock_pool("importing", &mut Log).unwrap();
        assert!(a.try_lock_within("x", Duration::ZERO).is_none());
        assert_eq!(a.lock_holder().unwrap().0, "importing");
        let locks = registry.lock_pools(["b", "nope", "b"].into_iter(), "y", &mut Log).unwrap();
        assert_eq!((locks.len(), locks[0].slot().name()), (1, "b"));
        // Removed by force: a thread that waits for the lock gets an error, and the holder
        // notices.
        let waiting = Arc::clone(&a);
        let waiting = rt::spawn("waits", move || waiting.lock_pool("z", &mut Log).err().unwrap());
        registry.remove(&a);
        assert_eq!(waiting.unwrap().join().unwrap().kind(), ErrorKind::NotFound);
        assert!(held.slot().is_gone());
        drop(held);
        assert!(a.try_lock_within("x", Duration::ZERO).is_some());
        assert!(a.give_up_is_seen());
    }

    impl Slot {
        fn give_up_is_seen(&self) -> bool {
            self.give_up();
            self.opening.is_given_up()
        }
    }

    #[test]
    fn inspections_are_counted() {
        let a = slot("a", 1);
        let permits: Vec<_> = (0..STUCK_MAX).map(|_| a.inspection_permit().unwrap()).collect();
        assert!(a.inspection_permit().is_none());
        drop(permits);
        assert!(a.inspection_permit().is_some());
    }
}
