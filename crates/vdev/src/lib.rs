//! The vdev tree: mirror, raidz, draid, indirect, spare and replacing over devices.
//!
//! # Theory
//! [`Tree`] is an immutable snapshot (decision 6). A change builds a new snapshot that
//! shares devices, counters and missing ranges with the old one by guid. Each I/O keeps
//! the snapshot with which it began. A read ([`Tree::read`]) is planned into leaf
//! operations (raidz and dRAID maps, mirrors, indirection), executed in one batch, and
//! checked by the caller's `verify`. If that fails, everything that could help is read,
//! and every tolerated combination is tried. Bytes that `verify` refused are never
//! returned, whatever the damage. Read-ahead reads several small blocks in few operations
//! ([`Tree::read_together`]).
//!
//! A write ([`Tree::write`]) is laid out by the same maps (`write_plan`), and the caller's
//! thread computes its parity. Each leaf's part is added to that leaf's queue, which
//! sorts and merges requests and keeps the device busy. Leaves that do not get their
//! part are recorded as missing the block's transaction group.
//!
//! # Invariants
//! * Nothing here depends on block pointers or labels: an address is (top-level vdev,
//!   byte offset), and only `verify` interprets bytes.
//! * Errors are counted at the leaf whose operation failed or whose bytes were proven
//!   wrong, or at the top-level vdev if that leaf cannot be determined.
//! * The work for one read is bounded by [`limits`].
//!
//! Lock order: the locks of [`Tree`]'s nodes (missing ranges, mapping), of a write and
//! of a queue are leaf locks, never held during I/O or a completion.

mod age;
mod discard;
mod draid;
mod draid_seeds;
mod dtl;
mod heal;
mod indirect;
mod iostat;
mod map;
mod parity;
mod plan;
mod queue;
mod range_lock;
mod read;
mod rebuild;
mod reflow;
mod repair;
mod report;
mod sitout;
mod solve;
mod spec;
mod together;
mod tree;
mod write;
mod write_plan;

pub use discard::FreeSpaceOp;
pub use draid::DraidParams;
pub use dtl::{ScanLeaves, TxgRanges};
pub use heal::Healed;
pub use indirect::{IndirectEntry, IndirectMap, Segment};
pub use iostat::{ClassDetail, IoClass, IoCount, IoCounts, IoDetail};
pub use queue::{ClassLimits, QueueLimits, WriteLoad, WritePriority};
pub use range_lock::{LockedRanges, RebuildSession};
pub use read::{BadCopy, BadKind, Priority, ReadOutcome, ReadReport, ReadReq};
pub use rebuild::RebuildReport;
pub use repair::{MovedRepair, Repaired};
pub use report::{LeafReport, ReportKind, Reporter};
pub use sitout::SitOutLimits;
pub use spec::{AllocClass, Persistent, Reflow, Spec, VdevKind};
pub use together::ReadApart;
pub use tree::{
    Aux, ErrorCounts, LABEL_END, LABEL_START, LeafSpec, Node, NodeId, Opener, State, Tree, Verdict,
};
pub use write::{FAILING_WRITE_ERRORS, WriteCallback, WriteReport, WriteReq};

/// Bounds on the work of one read, as protection against hostile pools.
pub mod limits {
    /// Leaf pieces that one read may use.
    pub const CELLS_MAX: usize = 1 << 18;
    /// Planning steps (nodes visited) for one read.
    pub(crate) const PLAN_STEPS_MAX: usize = 1 << 20;
    /// Distributed spares that stand in for each other in a chain.
    pub(crate) const SPARE_HOPS_MAX: usize = 8;
    /// Combinations of missing columns tried for one block.
    pub(crate) const COMBINATIONS_MAX: usize = 1 << 14;
    /// The least number of combinations, however large the block.
    pub(crate) const COMBINATIONS_MIN: usize = 4096;
    /// Combinations of copies tried for a block split by removals (chapter 02 §12).
    pub const SPLITS_MAX: usize = 4096;
    /// Different contents of one column or piece that are tried.
    pub(crate) const VERSIONS_MAX: usize = 16;
}
