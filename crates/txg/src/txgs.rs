//! The groups of one pool, for all threads.

use std::sync::Arc;
use std::time::Duration;

use base::rt::atomic::{AtomicU64, Ordering::SeqCst};
use base::rt::{self, MutexGuard};
use base::{Error, Result, Txg};

use crate::dirty::Dirty;
use crate::fault::{Fault, Faults};
use crate::history::{IoTotals, TxgRecord};
use crate::holds::{Core, Hold, Holds};
use crate::limits::{Limits, Live, delay_ns};
use crate::space::SpaceReservation;
use crate::state::{Callback, Dirt, Due, FailMode, Gate, Life, State};
use crate::throttle::{ThrottleStats, Turnstile};
use crate::{TXG_LAST_MAX, slot};

/// The transaction groups of a pool.
pub struct Txgs {
    core: Arc<Core>,
    holds: Holds,
    dirty: Dirty,
    space: SpaceReservation,
    limits: Live,
    /// The last group that somebody waits for, and the last on disk; written under the lock.
    awaited: AtomicU64,
    synced: AtomicU64,
    turnstile: Turnstile,
    stats: ThrottleStats,
}

impl Txgs {
    /// The groups of a pool whose last group on disk is `last_synced`; the next one opens.
    ///
    /// # Errors
    /// `Corrupt` if no pool can have come so far (above [`TXG_LAST_MAX`]).
    pub fn new(last_synced: Txg) -> Result<Txgs> {
        Txgs::with_faults(last_synced, Faults::NONE)
    }

    /// As [`Txgs::new`], with a bug for a model test to find.
    ///
    /// # Errors
    /// As [`Txgs::new`].
    #[doc(hidden)]
    pub fn with_faults(last_synced: Txg, faults: Faults) -> Result<Txgs> {
        if last_synced.0 > TXG_LAST_MAX {
            return Err(Error::corrupt(format!(
                "the pool claims to have synced transaction group {last_synced}, \
                 which no pool reaches"
            )));
        }
        let core = Core::new(State::new(last_synced.0), faults);
        Ok(Txgs {
            holds: Holds::new(&core),
            core,
            dirty: Dirty::default(),
            space: SpaceReservation::new(),
            limits: Live::new(&Limits::default()),
            awaited: AtomicU64::new(0),
            synced: AtomicU64::new(last_synced.0),
            turnstile: Turnstile::default(),
            stats: ThrottleStats::default(),
        })
    }

    // ------------------------------------------------------------------ holders

    /// Holds the open group. Waits while the pool is suspended and `failmode` is `wait`.
    ///
    /// # Errors
    /// That of the suspension when `failmode` is `continue`; `Interrupted` after
    /// [`Txgs::stop`]; that of [`Txgs::abandon`].
    pub fn hold(&self) -> Result<Hold> {
        self.holds.hold()
    }

    /// Counts bytes that became dirty in a group that the caller holds or syncs; 0 for a
    /// change that must be written and counts none.
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

    /// Bytes of a group that are dirty no more: written, or freed again. More than the
    /// group has count as all it has.
    pub fn undirty(&self, txg: Txg, bytes: u64) {
        self.dirty.sub(txg.0, bytes);
        self.make_room();
    }

    /// Called before [`Txgs::hold`] by who is about to dirty data: delays it as dirty data
    /// comes near its limit, and stops it there until there is less (chapter 05 §10.1).
    ///
    /// # Errors
    /// As [`Txgs::hold`], when it would have to wait for room.
    pub fn throttle(&self) -> Result<()> {
        let limits = self.limits.get();
        let dirty = self.dirty.total();
        if !self.turnstile.crowded()
            && dirty <= limits.delay_from()
            && dirty < limits.dirty_data_max
        {
            return Ok(());
        }
        let start = self.core.now();
        if self.turnstile.crowded() || dirty >= limits.dirty_data_max {
            self.stats.dirty_over_max.bump();
            let refused = || self.core.gate.load(SeqCst) == Gate::Refuse as u8;
            if !self.turnstile.pass(|| self.has_room(), refused) {
                return Err(self.core.state.lock().refusal());
            }
        }
        self.delay(start, delay_ns(self.dirty.total(), &self.limits.get()));
        Ok(())
    }

    /// The same for space: called before [`Txgs::hold`] by who is going to ask for a promise,
    /// when all together may have `limit`. The delay follows the curve of dirty memory, so
    /// that nobody has to wait for whole groups at the limit.
    pub fn throttle_space(&self, limit: u64) {
        let limits = Limits { dirty_data_max: limit.max(1), ..self.limits.get() };
        let inflight = self.space.inflight();
        // At the limit itself the promise is refused, and a group waited for.
        if inflight > limits.delay_from() && inflight < limit {
            self.delay(self.core.now(), delay_ns(inflight, &limits));
        }
    }

    /// Sleeps until the pool's next place on the curve.
    fn delay(&self, start: u64, delay: u64) {
        if delay == 0 {
            return;
        }
        let wakeup = self.turnstile.book(start, delay);
        let sleep = wakeup.saturating_sub(self.core.now());
        if sleep > 0 {
            self.stats.dirty_delay.bump();
            self.stats.delay_ns.add(sleep);
            rt::sleep(Duration::from_nanos(sleep));
        }
    }

    /// Runs `f` once: with `Ok` in the sync thread when the group is on disk (at once, if
    /// it is), with an error when it is certain that it never will be. `f` must not wait.
    pub fn on_synced(&self, txg: Txg, f: Callback) {
        let now = self.core.state.lock().register(txg.0, f);
        if let Some((f, told)) = now {
            f(told);
        }
    }

    // ------------------------------------------------------------------ waiters

    /// Waits until this group is on disk, and has it and those before it synced soon, as
    /// fast as the devices can ([`Txgs::pressure`]).
    ///
    /// # Errors
    /// `Invalid` for a group more than [`crate::TXG_DEFER_SIZE`] ahead of the open one; else
    /// as [`Txgs::hold`].
    pub fn wait_synced(&self, txg: Txg) -> Result<()> {
        self.wait_group(txg, true)
    }

    /// The same for a writer who is held up until the group made room: it is synced soon,
    /// but what others wait for goes before it.
    ///
    /// # Errors
    /// As [`Txgs::wait_synced`].
    pub fn wait_room(&self, txg: Txg) -> Result<()> {
        self.wait_group(txg, false)
    }

    fn wait_group(&self, txg: Txg, first: bool) -> Result<()> {
        let mut state = self.core.state.lock();
        if txg.0 > state.synced {
            state.admit(txg.0)?;
            if first {
                self.awaited.fetch_max(txg.0, SeqCst);
            }
            if state.asked < txg.0 {
                state.asked = txg.0;
                self.core.work.notify_all();
            }
        }
        self.wait_for(state, |state| state.synced >= txg.0)
    }

    /// Waits until this group is open, or was; closes those before it.
    ///
    /// # Errors
    /// As [`Txgs::wait_synced`].
    pub fn wait_open(&self, txg: Txg) -> Result<()> {
        let mut state = self.core.state.lock();
        if txg.0 > state.open {
            if state.life != Life::Running {
                return Err(state.refusal());
            }
            state.admit(txg.0)?;
            state.wanted = state.wanted.max(txg.0);
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
        mut state: MutexGuard<'_, State>,
        ready: impl Fn(&State) -> bool,
    ) -> Result<()> {
        loop {
            if ready(&state) {
                return Ok(());
            }
            if let Some(error) = state.vain() {
                return Err(error);
            }
            self.core.done.wait(&mut state);
        }
    }

    /// Has groups up to this one synced soon, and waits for nothing. An open group closes
    /// at once, unless another is closed and waits.
    pub fn kick(&self, txg: Txg) {
        let mut state = self.core.state.lock();
        if state.life != Life::Running {
            return;
        }
        state.asked = state.asked.max(txg.0.min(state.open));
        if txg.0 >= state.open && state.can_close() {
            self.close(&mut state);
        }
        self.core.work.notify_all();
    }

    // ------------------------------------------------------------------ the sync thread

    /// The next group to write: closed, and held by nobody. Waits until one is due. A group
    /// that was given and is not synced yet is given again, after a suspension. `None` at
    /// the end: after [`Txgs::stop`], when what was asked for is done or the pool is
    /// suspended; or after [`Txgs::abandon`]. Nothing syncs afterwards.
    pub fn next_to_sync(&self) -> Option<Txg> {
        let mut state = self.core.state.lock();
        loop {
            if state.life == Life::Ended {
                break;
            }
            if state.is_suspended() {
                if state.life == Life::Stopping {
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
                _ if state.life == Life::Stopping => break,
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

    /// Closes the open group and opens the next one.
    fn close(&self, state: &mut State) {
        let now = self.core.now();
        let closed = state.open;
        state.close(now);
        self.core.open.store(state.open, SeqCst);
        if self.core.drained(closed) {
            state.quiesced(now);
        }
        self.core.done.notify_all();
    }

    /// The closed group begins to sync; the next one closes if it is wanted.
    fn start(&self, state: &mut State, txg: u64) -> Txg {
        state.start(txg, self.core.now(), self.dirty.of(txg));
        if state.open < state.wanted {
            self.close(state);
        }
        Txg(txg)
    }

    /// The group that [`Txgs::next_to_sync`] gave is on disk: who waited for it goes on,
    /// then its callbacks run. A group that does not sync, or one of a pool that was
    /// abandoned, changes nothing.
    pub fn synced(&self, txg: Txg) {
        let mut state = self.core.state.lock();
        if state.syncing != Some(txg.0) || state.life == Life::Ended {
            return;
        }
        // Before the number moves: the slot's next group may open right afterwards.
        self.dirty.clear(txg.0);
        self.space.synced(txg);
        let keep = self.limits.get().txg_history;
        let callbacks = state.complete(txg.0, self.core.now(), keep);
        self.synced.store(txg.0, SeqCst);
        self.core.done.notify_all();
        drop(state);
        self.make_room();
        callbacks.into_iter().for_each(|f| f(Ok(())));
    }

    /// Writing cannot go on: waiters block or get the error, as `failmode` says, until
    /// [`Txgs::resume`].
    pub fn suspend(&self, error: Error) {
        self.change(|state| state.suspend(&error));
    }

    /// Writing may be tried again.
    pub fn resume(&self) {
        self.change(State::resume);
    }

    /// For the sync thread in the middle of a group: waits until the pool is resumed; false
    /// if it never will be, because of [`Txgs::stop`] or [`Txgs::abandon`].
    pub fn wait_resumed(&self) -> bool {
        let mut state = self.core.state.lock();
        loop {
            if state.life == Life::Ended {
                return false;
            }
            if !state.is_suspended() {
                return true;
            }
            if state.life == Life::Stopping {
                return false;
            }
            self.core.work.wait(&mut state);
        }
    }

    /// What becomes of waiters while the pool is suspended.
    pub fn set_failmode(&self, failmode: FailMode) {
        self.change(|state| state.failmode = failmode);
    }

    /// What [`Txgs::set_failmode`] set.
    pub fn failmode(&self) -> FailMode {
        self.core.state.lock().failmode
    }

    /// Why the pool is suspended, if it is.
    pub fn suspended(&self) -> Option<Error> {
        let state = self.core.state.lock();
        state.is_suspended().then(|| state.refusal())
    }

    /// Gives out no holds any more. The sync thread ends after what was asked for; dirt that
    /// nobody asked for stays unwritten, and its callbacks get an error.
    pub fn stop(&self) {
        self.change(|state| {
            if state.life == Life::Running {
                state.life = Life::Stopping;
            }
        });
    }

    /// The pool is lost: everybody who waits gets this error, and so does everybody who
    /// comes. The first error stays.
    pub fn abandon(&self, error: Error) {
        self.change(|state| state.lose(&error));
        self.end(self.core.state.lock());
    }

    /// Changes what the gate depends on, and has everybody look.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.core.state.lock();
        change(&mut state);
        self.core.gate.store(state.gate() as u8, SeqCst);
        self.core.work.notify_all();
        self.core.done.notify_all();
        drop(state);
        self.turnstile.wake_all();
    }

    /// Nothing syncs any more.
    fn end(&self, mut state: MutexGuard<'_, State>) {
        state.life = Life::Ended;
        self.core.gate.store(state.gate() as u8, SeqCst);
        let callbacks = state.abandon();
        self.core.work.notify_all();
        self.core.done.notify_all();
        drop(state);
        self.turnstile.wake_all();
        callbacks.into_iter().for_each(|(f, error)| f(Err(error)));
    }

    // ------------------------------------------------------------------ figures

    fn has_room(&self) -> bool {
        self.dirty.total() < self.limits.get().dirty_data_max
    }

    fn make_room(&self) {
        if self.has_room() && !self.core.faults.has(Fault::SilentRoom) {
            self.turnstile.wake();
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

    /// The open group.
    pub fn open_txg(&self) -> Txg {
        Txg(self.core.open.load(SeqCst))
    }

    /// The last group on disk.
    pub fn synced_txg(&self) -> Txg {
        Txg(self.core.state.lock().synced)
    }

    /// The group that is being written.
    pub fn syncing_txg(&self) -> Option<Txg> {
        self.core.state.lock().syncing.map(Txg)
    }

    /// Dirty bytes of all groups.
    pub fn dirty_total(&self) -> u64 {
        self.dirty.total()
    }

    /// Dirty bytes of all groups, percent of their limit, and whether somebody waits for a
    /// group that is not on disk (with [`Txgs::wait_synced`]). Takes no lock.
    pub fn pressure(&self) -> (u32, bool) {
        let max = self.limits.get().dirty_data_max.max(1);
        let percent = self.dirty.total().saturating_mul(100) / max;
        let awaited = self.awaited.load(SeqCst) > self.synced.load(SeqCst);
        (u32::try_from(percent).unwrap_or(u32::MAX), awaited)
    }

    /// Dirty bytes of one living group.
    pub fn dirty_of(&self, txg: Txg) -> u64 {
        self.dirty.of(txg.0)
    }

    /// The pool's promises of space; cleared as groups sync.
    pub fn space(&self) -> &SpaceReservation {
        &self.space
    }

    /// Writers that wait at the limit now.
    pub fn throttled(&self) -> u64 {
        self.turnstile.waiting()
    }

    /// How often writers were held back.
    pub fn throttle_stats(&self) -> &ThrottleStats {
        &self.stats
    }

    /// What the devices did for a living group, for [`Txgs::history`]; the sync thread says
    /// so before [`Txgs::synced`].
    pub fn set_io(&self, txg: Txg, io: IoTotals) {
        self.core.state.lock().set_io(txg, io);
    }

    /// The last synced groups and the living ones, oldest first: the kstat `txgs`.
    pub fn history(&self) -> Vec<TxgRecord> {
        self.core.state.lock().records(|txg| self.dirty.of(txg))
    }

    /// What the times of [`Txgs::history`] count from.
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
