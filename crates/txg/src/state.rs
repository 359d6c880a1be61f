//! The state of the groups, a machine without threads or clock: what [`crate::Txgs`]
//! does under its lock.

use std::collections::VecDeque;

use base::{Error, ErrorKind, Result, Txg};

use crate::history::{Times, TxgRecord};
use crate::limits::{HASTE, Limits};
use crate::{TXG_CONCURRENT_STATES, TXG_DEFER_SIZE, TXG_SLOTS, slot};

/// What runs when a group is on disk, or when it is certain that it never will be.
pub type Callback = Box<dyn FnOnce(Result<()>) + Send>;

/// What a suspended pool does to those who wait for it (property `failmode`; `panic` is
/// the pool's own affair).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailMode {
    /// They wait until it is resumed.
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
    /// Later: the pool is suspended.
    Wait,
    /// No.
    Refuse,
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Life {
    #[default]
    Running,
    /// What was asked for is done, and nothing else.
    Stopping,
    Ended,
}

/// An error that many get.
struct Failure {
    kind: ErrorKind,
    message: String,
}

impl Failure {
    fn of(error: &Error) -> Failure {
        Failure { kind: error.kind(), message: error.to_string() }
    }

    fn error(&self) -> Error {
        Error::new(self.kind, self.message.clone())
    }
}

/// When the open group is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Now,
    /// Then, in nanoseconds since the epoch, unless something happens.
    At(u64),
    /// When something happens.
    Never,
}

/// What of a group is dirty.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dirt {
    pub(crate) any: bool,
    pub(crate) bytes: u64,
}

/// The groups. Times are nanoseconds since the epoch.
#[derive(Default)]
pub(crate) struct State {
    /// The open group: always `synced` + 1 to `synced` + 3.
    pub(crate) open: u64,
    /// Quiescing, or quiesced and waiting.
    pub(crate) closed: Option<u64>,
    pub(crate) syncing: Option<u64>,
    pub(crate) synced: u64,
    /// Somebody waits for groups up to this one.
    pub(crate) asked: u64,
    /// Somebody waits for this group to open.
    pub(crate) wanted: u64,
    pub(crate) life: Life,
    pub(crate) failmode: FailMode,
    /// Why the pool is suspended.
    suspended: Option<Failure>,
    /// Why the pool is lost.
    lost: Option<Failure>,
    last_start: u64,
    first_dirt: Option<u64>,
    /// When the open group had another [`Limits::sync_step`] of dirty bytes, and whether one
    /// came fast.
    last_step: Option<u64>,
    hasty: bool,
    times: [Times; TXG_SLOTS],
    callbacks: [Vec<Callback>; TXG_SLOTS],
    history: VecDeque<TxgRecord>,
}

impl State {
    pub(crate) fn new(last_synced: u64) -> State {
        let mut state = State::default();
        state.synced = last_synced;
        state.open = last_synced + 1;
        state
    }

    pub(crate) fn gate(&self) -> Gate {
        match (&self.suspended, self.failmode) {
            _ if self.life != Life::Running || self.lost.is_some() => Gate::Refuse,
            (Some(_), FailMode::Continue) => Gate::Refuse,
            (Some(_), FailMode::Wait) => Gate::Wait,
            (None, _) => Gate::Open,
        }
    }

    /// Why something is refused.
    pub(crate) fn refusal(&self) -> Error {
        let why = self.lost.as_ref().or(self.suspended.as_ref());
        why.map_or_else(
            || Error::new(ErrorKind::Interrupted, "the pool is being closed"),
            Failure::error,
        )
    }

    pub(crate) fn suspend(&mut self, error: &Error) {
        self.suspended = Some(Failure::of(error));
    }

    pub(crate) fn resume(&mut self) {
        self.suspended = None;
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.is_some()
    }

    pub(crate) fn lose(&mut self, error: &Error) {
        self.lost.get_or_insert_with(|| Failure::of(error));
        self.life = Life::Ended;
    }

    /// Whether somebody may begin to wait for this group.
    pub(crate) fn admit(&self, txg: u64) -> Result<()> {
        if self.life != Life::Running && txg > self.asked {
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

    /// Why somebody waits in vain.
    pub(crate) fn vain(&self) -> Option<Error> {
        let stuck = self.is_suspended() && self.failmode == FailMode::Continue;
        (stuck || self.life == Life::Ended).then(|| self.refusal())
    }

    /// The first dirt of the open group came, or so much more (`stepped`).
    pub(crate) fn dirtied(&mut self, txg: u64, now: u64, stepped: bool) {
        if txg != self.open {
            return;
        }
        let first = *self.first_dirt.get_or_insert(now);
        if stepped {
            let last = self.last_step.replace(now).unwrap_or(first);
            self.hasty |= now.saturating_sub(last) <= HASTE;
        }
    }

    /// When to close the open group.
    pub(crate) fn due(&mut self, now: u64, dirt: Dirt, limits: &Limits) -> Due {
        if self.open <= self.asked || self.open < self.wanted {
            return Due::Now;
        }
        if !dirt.any || self.life != Life::Running {
            return Due::Never;
        }
        if self.hasty || dirt.bytes >= limits.sync_from() {
            return Due::Now;
        }
        let timeout = limits.timeout_s.saturating_mul(1_000_000_000);
        let first = *self.first_dirt.get_or_insert(now);
        let regular = self.last_start.saturating_add(timeout);
        // After idleness the first dirt waits for company.
        let when = if first > regular { first.saturating_add(timeout) } else { regular };
        if now >= when { Due::Now } else { Due::At(when) }
    }

    /// Whether the open group can be closed: none other is closed and waits.
    pub(crate) fn can_close(&self) -> bool {
        self.closed.is_none() && self.life != Life::Ended
    }

    /// Closes the open group and opens the next one.
    pub(crate) fn close(&mut self, now: u64) {
        debug_assert!(self.closed.is_none(), "a second group would quiesce");
        self.times[slot(self.open)].closed = Some(now);
        self.closed = Some(self.open);
        self.open += 1;
        debug_assert!(self.open - self.synced <= TXG_CONCURRENT_STATES);
        (self.first_dirt, self.last_step, self.hasty) = (None, None, false);
        self.times[slot(self.open)] = Times { birth: now, ..Times::default() };
    }

    /// Nobody holds the closed group any more.
    pub(crate) fn quiesced(&mut self, now: u64) {
        if let Some(txg) = self.closed {
            self.times[slot(txg)].quiesced.get_or_insert(now);
        }
    }

    /// The closed group, drained, begins to sync.
    pub(crate) fn start(&mut self, txg: u64, now: u64, ndirty: u64) {
        self.quiesced(now);
        self.closed = None;
        self.syncing = Some(txg);
        self.last_start = now;
        let times = &mut self.times[slot(txg)];
        times.started = Some(now);
        times.ndirty = ndirty;
    }

    /// The syncing group is on disk; its callbacks.
    pub(crate) fn complete(&mut self, txg: u64, now: u64, keep: u64) -> Vec<Callback> {
        self.syncing = None;
        self.synced = txg;
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        self.history.push_back(self.times[slot(txg)].record(txg, Some(now), 0));
        while self.history.len() > keep {
            self.history.pop_front();
        }
        std::mem::take(&mut self.callbacks[slot(txg)])
    }

    /// Keeps a callback for its group, or gives it back with what it is to be told.
    pub(crate) fn register(&mut self, txg: u64, f: Callback) -> Option<(Callback, Result<()>)> {
        if txg <= self.synced {
            return Some((f, Ok(())));
        }
        if self.life == Life::Ended {
            return Some((f, Err(self.refusal())));
        }
        if txg > self.open {
            return Some((f, Err(Error::invalid(format!("group {txg} is not open yet")))));
        }
        self.callbacks[slot(txg)].push(f);
        None
    }

    /// The callbacks of all groups, oldest first, and what they are told at the end.
    pub(crate) fn abandon(&mut self) -> Vec<(Callback, Error)> {
        let groups = self.synced + 1..=self.synced + TXG_SLOTS as u64;
        let all = groups.flat_map(|t| std::mem::take(&mut self.callbacks[slot(t)]));
        let all: Vec<Callback> = all.collect();
        all.into_iter().map(|f| (f, self.refusal())).collect()
    }

    /// What the devices did for a living group.
    pub(crate) fn set_io(&mut self, txg: Txg, io: crate::IoTotals) {
        if txg.0 > self.synced && txg.0 <= self.open {
            self.times[slot(txg.0)].io = io;
        }
    }

    /// The remembered and the living groups, oldest first.
    pub(crate) fn records(&self, dirty: impl Fn(u64) -> u64) -> Vec<TxgRecord> {
        let live = (self.synced + 1..=self.open)
            .map(|txg| self.times[slot(txg)].record(txg, None, dirty(txg)));
        self.history.iter().copied().chain(live).collect()
    }
}

impl Drop for State {
    /// Nobody is left to sync what callbacks wait for.
    fn drop(&mut self) {
        for (callback, error) in self.abandon() {
            callback(Err(error));
        }
    }
}
