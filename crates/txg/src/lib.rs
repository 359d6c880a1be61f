//! Transaction groups: how changes in memory become one consistent state on disk.
//!
//! # Theory
//! Every change belongs to a transaction group, or txg (chapter 05 §9.1). A writer
//! *holds* the open txg while it changes memory ([`Txgs::hold`]). One sync thread takes
//! one txg after the other ([`Txgs::next_to_sync`]), writes it, and reports that
//! ([`Txgs::synced`]). A txg is open, then quiescing (closed, its last holders finish),
//! then syncing. Closing a txg opens the next one in the same step, so no holder waits
//! for another.
//!
//! Taking a hold increments one of several counters, selected by the thread, and then
//! checks the number of the open txg again. If it has changed, the increment is undone
//! and the hold is retried. The closing thread changes the number first and reads the
//! counters afterwards. Both are sequentially consistent, so either the closing thread
//! sees the holder or the holder sees the new number ([`holds`]).
//!
//! Dirty bytes are counted for each txg and in total ([`Txgs::dirty`],
//! [`Txgs::undirty`]). They start txgs early, delay writers on the curve of chapter 05
//! §10 as they approach their limit, and block them at the limit, first come, first
//! served ([`Txgs::throttle`]).
//!
//! Space is reserved for each txg ([`SpaceReservation`]) and given back when it is on
//! disk. Reservations delay writers on the same curve ([`Txgs::throttle_space`]). A
//! writer that is delayed for space requests the open txg, because nothing but a txg on
//! disk makes room, and it continues as soon as one is.
//!
//! A txg begins to sync when it is dirty and `timeout_s` has passed, when its dirty
//! bytes exceed `dirty_sync_percent`, or when a thread requested it. Otherwise the sync
//! thread sleeps: an idle pool writes nothing and wakes no thread.
//!
//! # Invariants
//! * Txgs sync one after another, and none is left out. At most three are alive: one
//!   open, one quiescing (or quiesced and waiting), one syncing. So no slot of the
//!   [`TXG_SLOTS`] is shared.
//! * A txg syncs only when it has no holder, and it gets none afterwards.
//! * Every request made before [`Txgs::stop`] is completed or answered with an error;
//!   no thread waits for a thread that has ended.
//! * A suspension loses nothing: after [`Txgs::resume`] the sync thread gets the same
//!   txg again.
//! * Counters never fall below zero, even if callers subtract too much.
//!
//! # Duties of callers
//! A thread that holds a txg must not call [`Txgs::wait_synced`], [`Txgs::wait_open`]
//! or [`Txgs::throttle`], because it would wait for itself. The sync thread must not
//! call these either, nor [`Txgs::hold`].
//!
//! # Departures from OpenZFS
//! * There is no quiesce thread: the sync thread closes the txg that it needs. A kick
//!   or a [`Txgs::wait_open`] closes the open txg at once, even while another one
//!   syncs.
//! * A clean txg does not sync at the timeout. After an idle period the timeout counts
//!   from the first dirty byte, so that the first write after an hour is batched with
//!   later ones. No dirty data waits longer than the timeout for its sync to begin.
//! * Writers blocked at the dirty limit continue in the order of their arrival.
//! * Memory pressure on dirty data is handled by the cache (`arc::Cache::reserve`), and
//!   the intent log limits the bytes that it holds.
//!
//! Lock order: the lock of the state and that of the throttle queue are leaves, never
//! held together.

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
pub use limits::{DIRTY_DATA_MIN, Limits, TXG_HISTORY_MAX};
pub use space::{SpaceReservation, worst_case_asize};
pub use state::FailMode;
pub use throttle::ThrottleStats;
pub use txgs::Txgs;

/// Slots for per-txg state: three txgs are alive, one slot is spare (chapter 05 §9.1).
pub const TXG_SLOTS: usize = 4;
/// How far ahead of the open txg a thread may wait: freed space becomes allocatable
/// this many txgs later (chapter 05 §6).
pub(crate) const TXG_DEFER_SIZE: u64 = 2;
/// Txgs after the last synced one that may be alive.
pub(crate) const TXG_CONCURRENT_STATES: u64 = 3;
/// The largest txg number with which a pool may be opened. Above it there is room for
/// all txgs that a machine can ever sync.
pub(crate) const TXG_LAST_MAX: u64 = 1 << 62;

/// The slot of a txg.
pub(crate) fn slot(txg: u64) -> usize {
    (txg % TXG_SLOTS as u64) as usize
}
