//! The state of the txgs, a state machine without threads or clock: what
//! [`crate::Txgs`] does under its lock.

use std::collections::VecDeque;

use base::{Error, ErrorKind, Result, Txg};

use crate::history::{Times, TxgRecord};
use crate::limits::{FAST_STEP_NS, Limits};
use crate::{TXG_CONCURRENT_STATES, TXG_DEFER_SIZE, TXG_SLOTS, slot};

/// What a suspended pool does to waiting threads (property `failmode`; the pool itself
/// handles `panic`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailMode {
    /// They wait until the pool is resumed.
    #[default]
    Wait,
    /// They get the error.
    Continue,
}

/// Whether holds are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Gate {
    Open,
    /// Not now: the pool is suspended.
    Wait,
    /// Never again.
    Refuse,
}

/// The phase of the pool's shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Lifecycle {
    #[default]
    Running,
    /// Existing requests are completed; no new ones are accepted.
    Stopping,
    Ended,
}

/// An error that several threads get.
struct StoredError {
    kind: ErrorKind,
    message: String,
}

impl StoredError {
    fn of(error: &Error) -> StoredError {
        StoredError { kind: error.kind(), message: error.to_string() }
    }

    fn error(&self) -> Error {
        Error::new(self.kind, self.message.clone())
    }
}

/// When the open txg is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Now,
    /// At this time, in nanoseconds since the epoch, unless an event comes first.
    At(u64),
    /// At the next event.
    Never,
}

/// The dirty data of a txg.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dirt {
    pub(crate) any: bool,
    pub(crate) bytes: u64,
}

/// The txgs. Times are nanoseconds since the epoch.
#[derive(Default)]
pub(crate) struct TxgsState {
    /// The open txg: always `synced` + 1 to `synced` + 3.
    pub(crate) open: u64,
    /// The txg that is quiescing, or quiesced and waiting.
    pub(crate) closed: Option<u64>,
    pub(crate) syncing: Option<u64>,
    pub(crate) synced: u64,
    /// A thread waits for txgs up to this one.
    pub(crate) requested: u64,
    /// A thread waits for this txg to open.
    pub(crate) wanted_open: u64,
    pub(crate) life: Lifecycle,
    pub(crate) failmode: FailMode,
    /// The error that suspended the pool.
    suspended: Option<StoredError>,
    /// The error that made the pool unusable.
    lost: Option<StoredError>,
    last_start: u64,
    first_dirt: Option<u64>,
    /// When the open txg last gained another [`Limits::sync_step`] of dirty bytes, and
    /// whether one such step arrived fast.
    last_step: Option<u64>,
    fast_step: bool,
    times: [Times; TXG_SLOTS],
    history: VecDeque<TxgRecord>,
}

impl TxgsState {
    pub(crate) fn new(last_synced: u64) -> TxgsState {
        TxgsState { synced: last_synced, open: last_synced + 1, ..TxgsState::default() }
    }

    pub(crate) fn gate(&self) -> Gate {
        match (&self.suspended, self.failmode) {
            _ if self.life != Lifecycle::Running || self.lost.is_some() => Gate::Refuse,
            (Some(_), FailMode::Continue) => Gate::Refuse,
            (Some(_), FailMode::Wait) => Gate::Wait,
            (None, _) => Gate::Open,
        }
    }

    /// The error with which a request is refused.
    pub(crate) fn refusal(&self) -> Error {
        let why = self.lost.as_ref().or(self.suspended.as_ref());
        why.map_or_else(
            || Error::new(ErrorKind::Interrupted, "the pool is being closed"),
            StoredError::error,
        )
    }

    pub(crate) fn suspend(&mut self, error: &Error) {
        self.suspended = Some(StoredError::of(error));
    }

    pub(crate) fn resume(&mut self) {
        self.suspended = None;
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.is_some()
    }

    pub(crate) fn lose(&mut self, error: &Error) {
        self.lost.get_or_insert_with(|| StoredError::of(error));
        self.life = Lifecycle::Ended;
    }

    /// Whether a thread may begin to wait for this txg.
    pub(crate) fn admit(&self, txg: u64) -> Result<()> {
        if self.life != Lifecycle::Running && txg > self.requested {
            return Err(self.refusal());
        }
        if txg > self.open + TXG_DEFER_SIZE {
            return Err(Error::invalid(format!(
                "transaction group {txg} is too far ahead of {}, the open one",
                self.open
            )));
        }
        Ok(())
    }

    /// The error for a thread whose wait can no longer succeed.
    pub(crate) fn wait_error(&self) -> Option<Error> {
        let stuck = self.is_suspended() && self.failmode == FailMode::Continue;
        (stuck || self.life == Lifecycle::Ended).then(|| self.refusal())
    }

    /// Records the first dirty data of the open txg, or another step of it (`stepped`).
    pub(crate) fn dirtied(&mut self, txg: u64, now: u64, stepped: bool) {
        if txg != self.open {
            return;
        }
        let first = *self.first_dirt.get_or_insert(now);
        if stepped {
            let last = self.last_step.replace(now).unwrap_or(first);
            self.fast_step |= now.saturating_sub(last) <= FAST_STEP_NS;
        }
    }

    /// When to close the open txg.
    pub(crate) fn due(&mut self, now: u64, dirt: Dirt, limits: &Limits) -> Due {
        if self.open <= self.requested || self.open < self.wanted_open {
            return Due::Now;
        }
        if !dirt.any || self.life != Lifecycle::Running {
            return Due::Never;
        }
        if self.fast_step || dirt.bytes >= limits.sync_from() {
            return Due::Now;
        }
        let timeout = limits.timeout_s.saturating_mul(1_000_000_000);
        let first = *self.first_dirt.get_or_insert(now);
        let regular = self.last_start.saturating_add(timeout);
        // After an idle period, the first dirty data waits for more.
        let when = if first > regular { first.saturating_add(timeout) } else { regular };
        if now >= when { Due::Now } else { Due::At(when) }
    }

    /// Whether the open txg can be closed: no other closed txg is waiting.
    pub(crate) fn can_close(&self) -> bool {
        self.closed.is_none() && self.life != Lifecycle::Ended
    }

    /// Closes the open txg and opens the next one.
    pub(crate) fn close(&mut self, now: u64) {
        debug_assert!(self.closed.is_none(), "a second txg would quiesce");
        self.times[slot(self.open)].closed = Some(now);
        self.closed = Some(self.open);
        self.open += 1;
        debug_assert!(self.open - self.synced <= TXG_CONCURRENT_STATES);
        (self.first_dirt, self.last_step, self.fast_step) = (None, None, false);
        self.times[slot(self.open)] = Times { birth: now, ..Times::default() };
    }

    /// Records that the closed txg has no holder any more.
    pub(crate) fn quiesced(&mut self, now: u64) {
        if let Some(txg) = self.closed {
            self.times[slot(txg)].quiesced.get_or_insert(now);
        }
    }

    /// Begins to sync the closed txg, which has no holders.
    pub(crate) fn start(&mut self, txg: u64, now: u64, ndirty: u64) {
        self.quiesced(now);
        self.closed = None;
        self.syncing = Some(txg);
        self.last_start = now;
        let times = &mut self.times[slot(txg)];
        times.started = Some(now);
        times.ndirty = ndirty;
    }

    /// Records that the syncing txg is on disk.
    pub(crate) fn complete(&mut self, txg: u64, now: u64, keep: u64) {
        self.syncing = None;
        self.synced = txg;
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        self.history.push_back(self.times[slot(txg)].record(txg, Some(now), 0));
        while self.history.len() > keep {
            self.history.pop_front();
        }
    }

    /// Records the device operations of a living txg.
    pub(crate) fn set_io(&mut self, txg: Txg, io: crate::IoTotals) {
        if txg.0 > self.synced && txg.0 <= self.open {
            self.times[slot(txg.0)].io = io;
        }
    }

    /// The remembered and the living txgs, oldest first.
    pub(crate) fn records(&self, dirty: impl Fn(u64) -> u64) -> Vec<TxgRecord> {
        let live = (self.synced + 1..=self.open)
            .map(|txg| self.times[slot(txg)].record(txg, None, dirty(txg)));
        self.history.iter().copied().chain(live).collect()
    }
}
