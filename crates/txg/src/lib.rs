//! Transaction groups: how changes in memory become one consistent state on disk.
//!
//! # Theory
//! Every change belongs to a transaction group (chapter 05 §9.1). A writer *holds* the
//! open group while it changes memory ([`Txgs::hold`]); one sync thread takes group
//! after group ([`Txgs::next_to_sync`]), writes it, and says so ([`Txgs::synced`]).
//! A group is open, then quiescing (closed, its last holders finish), then syncing.
//! Closing a group opens the next one in the same step, so no holder waits for another.
//!
//! A hold is an addition to one of several counters, picked by the thread, and a second
//! look at the number of the open group: if it has changed, the addition is taken back
//! and the hold tried again. The closer changes the number first and reads the counters
//! afterwards; both are sequentially consistent, so that either the closer sees the
//! holder or the holder sees the new number ([`holds`]).
//!
//! Dirty bytes are counted by group and in all ([`Txgs::dirty`], [`Txgs::undirty`]).
//! They start groups early, delay writers on the curve of chapter 05 §10 as they
//! approach their limit, and stop them at it, first come first served
//! ([`Txgs::throttle`]).
//!
//! A group begins to sync when it has dirt and `timeout_s` passed, when its dirty bytes
//! exceed `dirty_sync_percent`, or when somebody asked for it. Otherwise the sync thread
//! sleeps: an idle pool writes nothing and wakes nobody.
//!
//! # Invariants
//! * Groups sync one after another, none is left out; at most three are alive: one open,
//!   one quiescing (or quiesced and waiting), one syncing. So a slot of the
//!   [`TXG_SLOTS`] is never shared.
//! * A group syncs only when nobody holds it, and nobody comes to hold it afterwards.
//! * Everything asked for before [`Txgs::stop`] is done or answered with an error;
//!   nobody waits for a thread that ended. Each callback runs once.
//! * A suspension loses nothing: the group is the sync thread's again after
//!   [`Txgs::resume`].
//! * Counters never fall below zero, whatever callers give back.
//!
//! # Duties of callers
//! Who holds a group calls neither [`Txgs::wait_synced`] nor [`Txgs::wait_open`] nor
//! [`Txgs::throttle`]: it would wait for itself. The sync thread calls none of them either,
//! nor [`Txgs::hold`]. Callbacks run in the sync thread and do not wait.
//!
//! # Departures from OpenZFS
//! * No quiesce thread: the sync thread closes the group that it wants. A kick or a
//!   [`Txgs::wait_open`] closes the open group at once, even while another syncs.
//! * A clean group does not sync at the timeout. When a pool was idle, the timeout counts
//!   from the first dirt, so that the first write after an hour finds company; no dirt
//!   waits longer than the timeout for its sync to begin.
//! * Writers blocked at the dirty limit pass in the order in which they came.
//! * Memory pressure on dirty data is the cache's (`arc::Cache::reserve`), bytes held for
//!   the intent log are the log's to limit.
//!
//! Lock order: the state's lock and the turnstile's are leaves, never held together;
//! callbacks run without either.

mod dirty;
pub mod fault;
mod history;
pub mod holds;
pub mod limits;
mod space;
mod state;
#[cfg(test)]
mod tests;
mod throttle;
mod txgs;

pub use history::{IoTotals, TxgRecord, TxgState};
pub use holds::Hold;
pub use limits::{DIRTY_DATA_MIN, Limits, SYNC_STEP, TXG_HISTORY_MAX, delay_ns};
pub use space::{SpaceReservation, worst_case_asize};
pub use state::{Callback, FailMode};
pub use throttle::ThrottleStats;
pub use txgs::Txgs;

/// Slots for what is kept by group: three are alive, one to spare (chapter 05 §9.1).
pub const TXG_SLOTS: usize = 4;
/// How far ahead of the open group somebody may wait: freed space comes back so many
/// groups later (chapter 05 §6).
pub const TXG_DEFER_SIZE: u64 = 2;
/// Groups since the last synced one that may be alive.
pub const TXG_CONCURRENT_STATES: u64 = 3;
/// The largest number that a pool may come with; what follows has room for all groups
/// that a machine can ever sync.
pub const TXG_LAST_MAX: u64 = 1 << 62;

/// The slot of a group.
pub(crate) fn slot(txg: u64) -> usize {
    (txg % TXG_SLOTS as u64) as usize
}
