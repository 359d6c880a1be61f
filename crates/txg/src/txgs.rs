//! The txgs of one pool, as used by all threads.

use std::sync::Arc;
use std::time::Duration;

use base::rt::atomic::{AtomicU64, Ordering::SeqCst};
use base::rt::{self, MutexGuard};
use base::{Error, Result, Txg};

use crate::dirty::Dirty;
use crate::fault::{Fault, PlantedFaults};
use crate::history::{IoTotals, TxgRecord};
use crate::holds::{Hold, Holds, TxgCore};
use crate::limits::{AtomicLimits, Limits, delay_ns};
use crate::space::SpaceReservation;
use crate::state::{Dirt, Due, FailMode, Gate, Lifecycle, TxgsState};
use crate::throttle::{DelaySlots, ThrottleQueue, ThrottleStats};
use crate::{TXG_LAST_MAX, slot};

/// The transaction groups of a pool.
pub struct Txgs {
    core: Arc<TxgCore>,
    holds: Holds,
    dirty: Dirty,
    space: SpaceReservation,
    limits: AtomicLimits,
    /// The last txg that a thread waits for, and the last on disk; written under the
    /// lock.
    awaited: AtomicU64,
    synced: AtomicU64,
    /// The last txg given to [`Txgs::request`].
    early: AtomicU64,
    throttle_queue: ThrottleQueue,
    /// Slots of writers delayed for dirty data, and for space.
    dirty_slots: DelaySlots,
    space_slots: DelaySlots,
    stats: ThrottleStats,
}

impl Txgs {
    /// The txgs of a pool whose last txg on disk is `last_synced`; opens the next one.
    ///
    /// # Errors
    /// `Corrupt` if the number is too large for any pool (above [`TXG_LAST_MAX`]).
    pub fn new(last_synced: Txg) -> Result<Txgs> {
        Txgs::with_faults(last_synced, PlantedFaults::NONE)
    }

    /// As [`Txgs::new`], with a planted bug for a model test.
    ///
    /// # Errors
    /// As [`Txgs::new`].
    #[doc(hidden)]
    pub fn with_faults(last_synced: Txg, faults: PlantedFaults) -> Result<Txgs> {
        if last_synced.0 > TXG_LAST_MAX {
            return Err(Error::corrupt(format!(
                "the pool claims to have synced transaction group {last_synced}, \
                 which no pool reaches"
            )));
        }
        let core = TxgCore::new(TxgsState::new(last_synced.0), faults);
        Ok(Txgs {
            holds: Holds::new(&core),
            core,
            dirty: Dirty::default(),
            space: SpaceReservation::new(),
            limits: AtomicLimits::new(&Limits::default()),
            awaited: AtomicU64::new(0),
            synced: AtomicU64::new(last_synced.0),
            early: AtomicU64::new(0),
            throttle_queue: ThrottleQueue::default(),
            dirty_slots: DelaySlots::default(),
            space_slots: DelaySlots::default(),
            stats: ThrottleStats::default(),
        })
    }

    // ------------------------------------------------------------------ holders

    /// Takes a hold of the open txg. Waits while the pool is suspended and `failmode`
    /// is `wait`.
    ///
    /// # Errors
    /// The error of the suspension when `failmode` is `continue`; `Interrupted` after
    /// [`Txgs::stop`]; the error of [`Txgs::abandon`].
    pub fn hold(&self) -> Result<Hold> {
        self.holds.hold()
    }

    /// Counts bytes that became dirty in a txg that the caller holds or syncs. 0 stands
    /// for a change that must be written but has no bytes to count.
    pub fn dirty(&self, txg: Txg, bytes: u64) {
        let added = self.dirty.add(txg.0, bytes);
        let limits = self.limits.get();
        let (from, step) = (limits.sync_from(), limits.sync_step());
        let (before, after) = (added.before, added.before.saturating_add(bytes));
        let stepped = before / step != after / step;
        if added.first || stepped || before < from && after >= from {
            let now = self.core.now();
            let mut state = self.core.state.lock();
            state.dirtied(txg.0, now, stepped);
            self.core.work.notify_all();
        }
    }

    /// Subtracts bytes of a txg that are no longer dirty because they were written or
    /// freed again. Subtracts at most the bytes that the txg has.
    pub fn undirty(&self, txg: Txg, bytes: u64) {
        self.dirty.sub(txg.0, bytes);
        self.make_room();
    }

    /// Must be called before [`Txgs::hold`] by a thread that is about to dirty data.
    /// Delays the thread as dirty data approaches its limit, and blocks it at the limit
    /// until there is less (chapter 05 §10.1).
    ///
    /// # Errors
    /// As [`Txgs::hold`], if the call would have to wait for room.
    pub fn throttle(&self) -> Result<()> {
        let limits = self.limits.get();
        let dirty = self.dirty.total();
        if !self.throttle_queue.has_waiters()
            && dirty <= limits.delay_from()
            && dirty < limits.dirty_data_max
        {
            return Ok(());
        }
        let start = self.core.now();
        if self.throttle_queue.has_waiters() || dirty >= limits.dirty_data_max {
            self.stats.dirty_over_max.bump();
            let refused = || self.core.gate.load(SeqCst) == Gate::Refuse as u8;
            if !self.throttle_queue.pass(|| self.has_room(), refused) {
                return Err(self.core.state.lock().refusal());
            }
        }
        self.delay(start, delay_ns(self.dirty.total(), &self.limits.get()));
        Ok(())
    }

    /// The same for space: must be called before [`Txgs::hold`] by a thread that is
    /// going to reserve space, when all reservations together may have `limit` bytes.
    /// The delay follows the curve of dirty memory, so that threads need not wait for
    /// whole txgs at the limit. The fixed allowances of txgs
    /// ([`SpaceReservation::allowances`]) are no part of the curve: waiting does not
    /// shrink them.
    ///
    /// Dirty memory shrinks while a txg is written; reservations end only when it is on
    /// disk. So a delayed thread requests the open txg, and continues as soon as any txg
    /// is on disk, even if its delay is not over.
    pub fn throttle_space(&self, limit: u64) {
        // Before the reservations are read, so that a txg that ends them ends the delay.
        let synced = self.synced.load(SeqCst);
        let fixed = self.space.allowances();
        let limit = limit.saturating_sub(fixed);
        let limits = Limits { dirty_data_max: limit.max(1), ..self.limits.get() };
        let inflight = self.space.inflight().saturating_sub(fixed);
        // At the limit itself the reservation is refused, and the caller waits for a
        // txg.
        if inflight > limits.delay_from() && inflight < limit {
            self.delay_for_space(synced, delay_ns(inflight, &limits));
        }
    }

    /// Sleeps until the pool's next slot on the curve of dirty data.
    fn delay(&self, start: u64, delay: u64) {
        if delay == 0 {
            return;
        }
        let wakeup = self.dirty_slots.next(start, delay);
        let sleep = wakeup.saturating_sub(self.core.now());
        if sleep > 0 {
            self.count_delay(sleep);
            rt::sleep(Duration::from_nanos(sleep));
        }
    }

    /// Requests the open txg; waits until the next slot on the curve of space, or until a
    /// txg after `synced` is on disk.
    fn delay_for_space(&self, synced: u64, delay: u64) {
        if delay == 0 {
            return;
        }
        self.request(self.open_txg());
        let start = self.core.now();
        let mut state = self.core.state.lock();
        if state.synced != synced {
            return;
        }
        let wakeup = self.space_slots.next(start, delay);
        loop {
            let left = wakeup.saturating_sub(self.core.now());
            let writes = state.life == Lifecycle::Running && !state.is_suspended();
            if left == 0 || state.synced != synced || !writes {
                break;
            }
            self.core.done.wait_timeout(&mut state, Duration::from_nanos(left));
        }
        drop(state);
        self.count_delay(self.core.now().saturating_sub(start));
    }

    fn count_delay(&self, nanoseconds: u64) {
        self.stats.dirty_delay.bump();
        self.stats.delay_ns.add(nanoseconds);
    }

    // ------------------------------------------------------------------ waiters

    /// Waits until this txg is on disk. Until then it and earlier txgs are synced soon
    /// and as fast as the devices allow ([`Txgs::pressure`]).
    ///
    /// # Errors
    /// `Invalid` for a txg more than [`crate::TXG_DEFER_SIZE`] ahead of the open one;
    /// otherwise as [`Txgs::hold`].
    pub fn wait_synced(&self, txg: Txg) -> Result<()> {
        self.wait_txg(txg, true)
    }

    /// As [`Txgs::wait_synced`], for a writer that waits until the txg has made room:
    /// it is synced soon, but operations with waiting callers have precedence over it.
    ///
    /// # Errors
    /// As [`Txgs::wait_synced`].
    pub fn wait_room(&self, txg: Txg) -> Result<()> {
        self.wait_txg(txg, false)
    }

    fn wait_txg(&self, txg: Txg, first: bool) -> Result<()> {
        let mut state = self.core.state.lock();
        if txg.0 > state.synced {
            state.admit(txg.0)?;
            if first {
                self.awaited.fetch_max(txg.0, SeqCst);
            }
            if state.requested < txg.0 {
                state.requested = txg.0;
                self.core.work.notify_all();
            }
        }
        self.wait_for(state, |state| state.synced >= txg.0)
    }

    /// Waits until this txg is or was open; closes the earlier ones.
    ///
    /// # Errors
    /// As [`Txgs::wait_synced`].
    pub fn wait_open(&self, txg: Txg) -> Result<()> {
        let mut state = self.core.state.lock();
        if txg.0 > state.open {
            if state.life != Lifecycle::Running {
                return Err(state.refusal());
            }
            state.admit(txg.0)?;
            state.wanted_open = state.wanted_open.max(txg.0);
            if state.can_close() {
                self.close(&mut state);
            }
            self.core.work.notify_all();
        }
        self.wait_for(state, |state| state.open >= txg.0)
    }

    /// Waits while the pool is suspended.
    ///
    /// # Errors
    /// As [`Txgs::hold`].
    pub fn wait_running(&self) -> Result<()> {
        self.wait_for(self.core.state.lock(), |state| !state.is_suspended())
    }

    fn wait_for(
        &self,
        mut state: MutexGuard<'_, TxgsState>,
        ready: impl Fn(&TxgsState) -> bool,
    ) -> Result<()> {
        loop {
            if ready(&state) {
                return Ok(());
            }
            if let Some(error) = state.wait_error() {
                return Err(error);
            }
            self.core.done.wait(&mut state);
        }
    }

    /// Requests that txgs up to this one are synced soon, without waiting. An open txg
    /// closes at once, unless another closed one is waiting.
    pub fn kick(&self, txg: Txg) {
        let mut state = self.core.state.lock();
        if state.life != Lifecycle::Running {
            return;
        }
        state.requested = state.requested.max(txg.0.min(state.open));
        if txg.0 >= state.open && state.can_close() {
            self.close(&mut state);
        }
        self.core.work.notify_all();
    }

    /// Requests that txgs up to this one are synced as soon as the sync thread is free,
    /// without waiting; a txg that is open stays open until then. Only the first request
    /// for a txg takes a lock.
    pub fn request(&self, txg: Txg) {
        let txg = txg.min(self.open_txg());
        if self.early.fetch_max(txg.0, SeqCst) >= txg.0 {
            return;
        }
        let mut state = self.core.state.lock();
        if state.life == Lifecycle::Running && state.requested < txg.0 {
            state.requested = txg.0;
            self.core.work.notify_all();
        }
    }

    // ------------------------------------------------------------------ the sync thread

    /// The next txg to write: closed and without holders. Waits until one is due. After
    /// a suspension, a txg that was returned but not synced is returned again. Returns
    /// `None` at the end: after [`Txgs::stop`], when all requests are completed or the
    /// pool is suspended; or after [`Txgs::abandon`]. No txg syncs afterwards.
    pub fn next_to_sync(&self) -> Option<Txg> {
        let mut state = self.core.state.lock();
        loop {
            if state.life == Lifecycle::Ended {
                break;
            }
            if state.is_suspended() {
                if state.life == Lifecycle::Stopping {
                    break;
                }
                self.core.work.wait(&mut state);
                continue;
            }
            if let Some(txg) = state.syncing {
                return Some(Txg(txg));
            }
            if let Some(txg) = state.closed {
                if self.core.drained(txg) || self.core.faults.has(Fault::NoDrain) {
                    return Some(self.start(&mut state, txg));
                }
                self.core.work.wait(&mut state);
                continue;
            }
            let now = self.core.now();
            let open = state.open;
            let dirt = Dirt { any: self.dirty.touched(open), bytes: self.dirty.of(open) };
            match state.due(now, dirt, &self.limits.get()) {
                Due::Now => self.close(&mut state),
                _ if state.life == Lifecycle::Stopping => break,
                Due::Never => self.core.work.wait(&mut state),
                Due::At(when) => {
                    let left = Duration::from_nanos(when.saturating_sub(now));
                    self.core.work.wait_timeout(&mut state, left);
                }
            }
        }
        self.end(state);
        None
    }

    /// Closes the open txg and opens the next one.
    fn close(&self, state: &mut TxgsState) {
        let now = self.core.now();
        let closed = state.open;
        state.close(now);
        self.core.open.store(state.open, SeqCst);
        if self.core.drained(closed) {
            state.quiesced(now);
        }
        self.core.done.notify_all();
    }

    /// Begins to sync the closed txg; closes the next one if that was requested.
    fn start(&self, state: &mut TxgsState, txg: u64) -> Txg {
        state.start(txg, self.core.now(), self.dirty.of(txg));
        if state.open < state.wanted_open {
            self.close(state);
        }
        Txg(txg)
    }

    /// Reports that the txg returned by [`Txgs::next_to_sync`] is on disk. Its waiters
    /// continue. The call has no effect for a txg that is not
    /// syncing, or in an abandoned pool.
    pub fn synced(&self, txg: Txg) {
        let mut state = self.core.state.lock();
        if state.syncing != Some(txg.0) || state.life == Lifecycle::Ended {
            return;
        }
        // Before the number changes, because the slot's next txg may open right
        // afterwards.
        self.dirty.clear(txg.0);
        self.space.synced(txg);
        self.space_slots.reset();
        let keep = self.limits.get().txg_history;
        state.complete(txg.0, self.core.now(), keep);
        self.synced.store(txg.0, SeqCst);
        self.core.done.notify_all();
        drop(state);
        self.make_room();
    }

    /// Suspends the pool: until [`Txgs::resume`], waiters block or get the error, as
    /// `failmode` says.
    pub fn suspend(&self, error: Error) {
        self.change(|state| state.suspend(&error));
    }

    /// Allows writing again.
    pub fn resume(&self) {
        self.change(TxgsState::resume);
    }

    /// For the sync thread in the middle of a txg: waits until the pool is resumed.
    /// Returns false if it never will be, because of [`Txgs::stop`] or
    /// [`Txgs::abandon`].
    pub fn wait_resumed(&self) -> bool {
        let mut state = self.core.state.lock();
        loop {
            if state.life == Lifecycle::Ended {
                return false;
            }
            if !state.is_suspended() {
                return true;
            }
            if state.life == Lifecycle::Stopping {
                return false;
            }
            self.core.work.wait(&mut state);
        }
    }

    /// Sets what happens to waiters while the pool is suspended.
    pub fn set_failmode(&self, failmode: FailMode) {
        self.change(|state| state.failmode = failmode);
    }

    /// The value set by [`Txgs::set_failmode`].
    pub fn failmode(&self) -> FailMode {
        self.core.state.lock().failmode
    }

    /// The error that suspended the pool, if it is suspended.
    pub fn suspended(&self) -> Option<Error> {
        let state = self.core.state.lock();
        state.is_suspended().then(|| state.refusal())
    }

    /// Gives no more holds. The sync thread ends after completing all requests. Dirty
    /// data that was not requested stays unwritten.
    pub fn stop(&self) {
        self.change(|state| {
            if state.life == Lifecycle::Running {
                state.life = Lifecycle::Stopping;
            }
        });
    }

    /// Marks the pool as lost: every present and later waiter gets this error. Only the
    /// first error is kept.
    pub fn abandon(&self, error: Error) {
        self.change(|state| state.lose(&error));
        self.end(self.core.state.lock());
    }

    /// Changes state on which the gate depends, and wakes all waiters.
    fn change(&self, change: impl FnOnce(&mut TxgsState)) {
        let mut state = self.core.state.lock();
        change(&mut state);
        self.core.gate.store(state.gate() as u8, SeqCst);
        self.core.work.notify_all();
        self.core.done.notify_all();
        drop(state);
        self.throttle_queue.wake_all();
    }

    /// No txg syncs any more.
    fn end(&self, mut state: MutexGuard<'_, TxgsState>) {
        state.life = Lifecycle::Ended;
        self.core.gate.store(state.gate() as u8, SeqCst);
        self.core.work.notify_all();
        self.core.done.notify_all();
        drop(state);
        self.throttle_queue.wake_all();
    }

    // ------------------------------------------------------------------ figures

    fn has_room(&self) -> bool {
        self.dirty.total() < self.limits.get().dirty_data_max
    }

    fn make_room(&self) {
        if self.has_room() && !self.core.faults.has(Fault::SilentRoom) {
            self.throttle_queue.wake();
        }
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        self.limits.get()
    }

    /// Changes the limits; they apply at once. A `dirty_data_max` of 0 counts as 1.
    pub fn set_limits(&self, limits: &Limits) {
        self.limits.set(limits);
        let state = self.core.state.lock();
        self.core.work.notify_all();
        drop(state);
        self.make_room();
    }

    /// The open txg.
    pub fn open_txg(&self) -> Txg {
        Txg(self.core.open.load(SeqCst))
    }

    /// The last txg on disk.
    pub fn synced_txg(&self) -> Txg {
        Txg(self.core.state.lock().synced)
    }

    /// Dirty bytes of all txgs.
    pub fn dirty_total(&self) -> u64 {
        self.dirty.total()
    }

    /// Dirty bytes of all txgs in percent of their limit, and whether a thread waits
    /// for a txg that is not on disk (with [`Txgs::wait_synced`]). Takes no lock.
    pub fn pressure(&self) -> (u32, bool) {
        let max = self.limits.get().dirty_data_max.max(1);
        let percent = self.dirty.total().saturating_mul(100) / max;
        let awaited = self.awaited.load(SeqCst) > self.synced.load(SeqCst);
        (u32::try_from(percent).unwrap_or(u32::MAX), awaited)
    }

    /// The pool's space reservations; cleared as txgs sync.
    pub fn space(&self) -> &SpaceReservation {
        &self.space
    }

    /// Number of writers that wait at the limit now.
    pub fn throttled(&self) -> u64 {
        self.throttle_queue.waiting()
    }

    /// How often writers were delayed or blocked.
    #[cfg(test)]
    pub(crate) fn throttle_stats(&self) -> &ThrottleStats {
        &self.stats
    }

    /// Records the device operations of a living txg, for [`Txgs::history`]; the sync
    /// thread calls it before [`Txgs::synced`].
    pub fn set_io(&self, txg: Txg, io: IoTotals) {
        self.core.state.lock().set_io(txg, io);
    }

    /// The last synced txgs and the living ones, oldest first: the kstat `txgs`.
    pub fn history(&self) -> Vec<TxgRecord> {
        self.core.state.lock().records(|txg| self.dirty.of(txg))
    }

    /// The start of the time scale of [`Txgs::history`].
    pub fn epoch(&self) -> rt::Instant {
        self.core.epoch
    }
}

impl std::fmt::Debug for Txgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let open = self.open_txg();
        write!(f, "Txgs(open {open} in slot {}, dirty {})", slot(open.0), self.dirty_total())
    }
}
