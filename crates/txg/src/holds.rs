//! A hold keeps a txg open while its owner changes memory.
//!
//! # Theory
//! The counters are in rows, one row for each thread that can run at once, with one
//! counter for each txg slot. A thread counts in its row. A hold is released in the row
//! in which it was counted, whichever thread releases it, and copies of it are counted
//! there too. So once a txg is closed, each of its counters only falls, and one pass
//! that finds every row at zero proves that the txg has no holder.
//!
//! A hold owns a handle of its row rather than of the shared state, so the reference
//! count lies on the row's own cache lines.

use std::sync::Arc;

use base::rt::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use base::rt::{self, Condvar, Mutex};
use base::{Result, Txg};

use crate::fault::{Fault, PlantedFaults};
use crate::state::{Gate, TxgsState};
use crate::{TXG_SLOTS, slot};

/// Most rows.
const ROWS_MAX: usize = 64;

/// A row of counters. Two cache lines, because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct HoldCounters([AtomicU64; TXG_SLOTS]);

/// State shared by holders and the sync thread.
pub(crate) struct TxgCore {
    /// The open txg; written under the lock.
    pub(crate) open: AtomicU64,
    /// [`Gate`] as a number; written under the lock.
    pub(crate) gate: AtomicU8,
    rows: Box<[HoldCounters]>,
    pub(crate) faults: PlantedFaults,
    /// Start of the time scale; times are nanoseconds since then.
    pub(crate) epoch: rt::Instant,
    pub(crate) state: Mutex<TxgsState>,
    /// Wakes the sync thread.
    pub(crate) work: Condvar,
    /// Wakes all other threads.
    pub(crate) done: Condvar,
}

impl TxgCore {
    pub(crate) fn new(state: TxgsState, faults: PlantedFaults) -> Arc<TxgCore> {
        let rows = rt::parallelism().next_power_of_two().min(ROWS_MAX);
        Arc::new(TxgCore {
            open: AtomicU64::new(state.open),
            gate: AtomicU8::new(Gate::Open as u8),
            rows: (0..rows).map(|_| HoldCounters::default()).collect(),
            faults,
            epoch: rt::now(),
            state: Mutex::new(state),
            work: Condvar::new(),
            done: Condvar::new(),
        })
    }

    /// Nanoseconds since the state was created.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whether this closed txg has no holder.
    pub(crate) fn drained(&self, txg: u64) -> bool {
        self.rows.iter().all(|row| row.0[slot(txg)].load(SeqCst) == 0)
    }

    fn count(&self, row: usize, txg: u64) {
        self.rows[row].0[slot(txg)].fetch_add(1, SeqCst);
    }

    /// Subtracts one, and notifies the sync thread if that was the last holder of a
    /// closed txg.
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

/// One row's reference to the shared state.
#[repr(align(128))]
struct RowHandle {
    core: Arc<TxgCore>,
    row: usize,
}

/// The handles of all rows.
pub(crate) struct Holds {
    handles: Box<[Arc<RowHandle>]>,
}

impl Holds {
    pub(crate) fn new(core: &Arc<TxgCore>) -> Holds {
        let handle = |row| Arc::new(RowHandle { core: Arc::clone(core), row });
        Holds { handles: (0..core.rows.len()).map(handle).collect() }
    }

    /// Takes a hold of the open txg.
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

impl TxgCore {
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

/// Keeps a txg from syncing until it is dropped. A copy holds the same txg.
pub struct Hold {
    handle: Arc<RowHandle>,
    txg: u64,
}

impl Hold {
    /// The txg.
    pub fn txg(&self) -> Txg {
        Txg(self.txg)
    }
}

impl Clone for Hold {
    /// Takes another hold of the same txg, even if it is already closed.
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
