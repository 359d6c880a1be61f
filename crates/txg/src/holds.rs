//! Holds: who still changes memory under which group.
//!
//! # Theory
//! Counters in rows, one row for each thread that can run at once, one counter for each
//! slot. A thread counts in its row; a hold is given back to the row where it was
//! counted, whichever thread does it, and copies of it stay there. So once a group is
//! closed each counter of it only falls, and one pass that finds every row at zero
//! proves that nobody holds the group.
//!
//! A hold owns a handle of its row rather than of the whole: the reference count lies on
//! the row's own cache lines.

use std::sync::Arc;

use base::rt::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use base::rt::{self, Condvar, Mutex};
use base::{Result, Txg};

use crate::fault::{Fault, Faults};
use crate::state::{Gate, State};
use crate::{TXG_SLOTS, slot};

/// Most rows.
const ROWS_MAX: usize = 64;

/// A row of counters. Two cache lines, since processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Row([AtomicU64; TXG_SLOTS]);

/// What holders and the sync thread share.
pub(crate) struct Core {
    /// The open group; written under the lock.
    pub(crate) open: AtomicU64,
    /// [`Gate`], as a number; written under the lock.
    pub(crate) gate: AtomicU8,
    rows: Box<[Row]>,
    pub(crate) faults: Faults,
    /// Times are nanoseconds since then.
    pub(crate) epoch: rt::Instant,
    pub(crate) state: Mutex<State>,
    /// The sync thread waits here.
    pub(crate) work: Condvar,
    /// Everybody else waits here.
    pub(crate) done: Condvar,
}

impl Core {
    pub(crate) fn new(state: State, faults: Faults) -> Arc<Core> {
        let rows = rt::parallelism().next_power_of_two().min(ROWS_MAX);
        Arc::new(Core {
            open: AtomicU64::new(state.open),
            gate: AtomicU8::new(Gate::Open as u8),
            rows: (0..rows).map(|_| Row::default()).collect(),
            faults,
            epoch: rt::now(),
            state: Mutex::new(state),
            work: Condvar::new(),
            done: Condvar::new(),
        })
    }

    /// Nanoseconds since the groups were made.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whether nobody holds this closed group.
    pub(crate) fn drained(&self, txg: u64) -> bool {
        self.rows.iter().all(|row| row.0[slot(txg)].load(SeqCst) == 0)
    }

    fn count(&self, row: usize, txg: u64) {
        self.rows[row].0[slot(txg)].fetch_add(1, SeqCst);
    }

    /// Takes one off, and tells the sync thread if that was the last of a closed group.
    fn release(&self, row: usize, txg: u64) {
        let before = self.rows[row].0[slot(txg)].fetch_sub(1, SeqCst);
        if before != 1 || self.open.load(SeqCst) == txg || self.faults.has(Fault::SilentRelease) {
            return;
        }
        let now = self.now();
        let mut state = self.state.lock();
        if state.closed.is_some_and(|closed| self.drained(closed)) {
            state.quiesced(now);
        }
        self.work.notify_all();
    }
}

/// One row's way to the whole.
#[repr(align(128))]
struct Handle {
    core: Arc<Core>,
    row: usize,
}

/// The handles of all rows.
pub(crate) struct Holds {
    handles: Box<[Arc<Handle>]>,
}

impl Holds {
    pub(crate) fn new(core: &Arc<Core>) -> Holds {
        let handle = |row| Arc::new(Handle { core: Arc::clone(core), row });
        Holds { handles: (0..core.rows.len()).map(handle).collect() }
    }

    /// Holds the open group.
    pub(crate) fn hold(&self) -> Result<Hold> {
        // The number of rows is a power of two and not 0.
        let handle = &self.handles[rt::thread_index() & (self.handles.len() - 1)];
        let core = &*handle.core;
        loop {
            if core.gate.load(SeqCst) != Gate::Open as u8 {
                core.pass_gate()?;
            }
            let txg = core.open.load(SeqCst);
            core.count(handle.row, txg);
            if core.open.load(SeqCst) == txg || core.faults.has(Fault::NoRecheck) {
                return Ok(Hold { handle: Arc::clone(handle), txg });
            }
            core.release(handle.row, txg);
        }
    }
}

impl Core {
    /// Waits until holds are given again.
    fn pass_gate(&self) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            match state.gate() {
                Gate::Open => return Ok(()),
                Gate::Refuse => return Err(state.refusal()),
                Gate::Wait => self.done.wait(&mut state),
            }
        }
    }
}

/// Keeps a group from syncing until it is dropped. A copy holds the same group.
pub struct Hold {
    handle: Arc<Handle>,
    txg: u64,
}

impl Hold {
    /// The group.
    pub fn txg(&self) -> Txg {
        Txg(self.txg)
    }
}

impl Clone for Hold {
    /// Holds the same group once more, even if it is closed by now.
    fn clone(&self) -> Hold {
        self.handle.core.count(self.handle.row, self.txg);
        Hold { handle: Arc::clone(&self.handle), txg: self.txg }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.handle.core.release(self.handle.row, self.txg);
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hold({})", self.txg)
    }
}
