//! The vdev tree: mirror, raidz, draid, indirect, spare and replacing over devices.
//!
//! # Theory
//! [`Tree`] is an immutable snapshot (decision 6): a change builds a new one that
//! shares devices, counters and missing ranges with the old by guid, and each I/O
//! keeps the one it began with. A read ([`Tree::read`]) is planned into leaf
//! operations (raidz and dRAID maps, mirrors, indirection), executed in one batch, and
//! checked by the caller's `verify`; if that fails, everything that could help is
//! read and every tolerated combination is tried. Whatever the damage, bytes that
//! `verify` refused are never returned.
//!
//! A write ([`Tree::write`]) is laid out by the same maps (`place`), its parity computed
//! by the caller; each leaf's part goes into that leaf's queue, which sorts, merges and
//! keeps the device busy. Leaves that do not get their part are noted as missing the
//! block's transaction group.
//!
//! # Invariants
//! * Nothing here knows block pointers or labels: an address is (top-level vdev,
//!   byte offset), and the meaning of bytes is `verify`'s.
//! * Errors are counted at the leaf whose operation failed or whose bytes were
//!   proven wrong, at the top-level vdev if that cannot be told.
//! * Work for one read is bounded by [`limits`].
//!
//! Lock order: the locks of [`Tree`]'s nodes (missing ranges, mapping), of a write and
//! of a queue are leaf locks, never held during I/O or a completion.

mod draid;
mod draid_seeds;
mod heal;
mod indirect;
mod iostat;
mod map;
mod parity;
mod place;
mod plan;
mod queue;
mod read;
mod solve;
mod spec;
mod tree;
mod write;

pub use draid::DraidParams;
pub use heal::Healed;
pub use indirect::{IndirectEntry, IndirectMap, Segment};
pub use iostat::{ClassDetail, IoClass, IoCount, IoCounts, IoDetail, SIZE_BUCKETS, TIME_BUCKETS};
pub use queue::{ClassLimits, QueueLimits, WriteLoad, WritePriority};
pub use read::{BadCopy, BadKind, Priority, ReadOutcome, ReadReport, ReadReq};
pub use spec::{AllocClass, Kind, Persistent, Reflow, Spec};
pub use tree::{
    Aux, ErrorCounts, LABEL_END, LABEL_START, LeafSpec, Node, NodeId, Opener, State, Tree,
    TxgRanges, Verdict,
};
pub use write::{FAILING_WRITE_ERRORS, Tell, WriteReport, WriteReq};

/// Bounds on the work of one read, against hostile pools.
pub mod limits {
    /// Leaf pieces one read may touch.
    pub const CELLS_MAX: usize = 1 << 18;
    /// Steps of planning (nodes looked at) for one read.
    pub const PLAN_STEPS_MAX: usize = 1 << 20;
    /// Distributed spares standing in for each other.
    pub const SPARE_HOPS_MAX: usize = 8;
    /// Combinations of missing columns tried for one block.
    pub const COMBINATIONS_MAX: usize = 1 << 14;
    /// The least number of combinations, however large the block.
    pub const COMBINATIONS_MIN: usize = 4096;
    /// Combinations of copies tried for a block split by removals (chapter 02 §12).
    pub const SPLITS_MAX: usize = 4096;
    /// Different contents of one column or piece that are considered.
    pub const VERSIONS_MAX: usize = 16;
}
