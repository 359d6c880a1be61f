//! The space allocator: which bytes of a pool are free, and which of them to use.
//!
//! # Theory
//! Every top-level vdev is divided into metaslabs. [`Space`] holds them in classes and
//! allocates addresses; it does no I/O. The sync thread asks it what to write to each
//! metaslab's space map and to the txg's log, and reports when that is written and when
//! the txg is durable (chapter 05 §4-6). The steps of one txg T:
//!
//! 1. pass 1: [`Space::choose_flushes`]; for each [`Space::prepare_flush`], write,
//!    [`Space::written`]; then remove logs below [`Space::min_unflushed`];
//! 2. each pass: [`Space::free`] for freed blocks, then for each of
//!    [`Space::take_dirty`] [`Space::prepare_write`], write, [`Space::written`];
//! 3. [`Space::before_commit`], uberblock, [`Space::synced`].
//!
//! Chapter numbers mean the format's chapter 05 unless another is named.
//!
//! # Invariants
//! * No byte is allocated twice before it is freed, and none that the durable uberblock
//!   references. Space freed in T is allocated only after T is durable and, except in a
//!   nearly full pool, two txgs later (§6).
//! * At each uberblock, replaying the written space maps gives the allocated space.
//! * A range never crosses a metaslab.
//! * Data read from a disk never causes a panic: contradictions are `Corrupt`.
//!
//! # Policy, and departures from OpenZFS
//! * *Uses* (`uses`): small data, large data and metadata have metaslabs of their own, as long
//!   as there is space elsewhere. Small data moves to the metaslab with the most free space, and
//!   fills its holes in one sweep in address order. The rest of this list is about the other two.
//!   docs/allocator.md has the reasons, the alternatives and their figures.
//! * *Within a metaslab* ([`Metaslab`]): four cursors by size instead of 64 by
//!   alignment. Compressed records have all kinds of alignment, and the blocks of one
//!   file should be adjacent. A block is placed at its cursor if it fits there;
//!   otherwise first fit continues from there. If the largest hole is smaller than 128
//!   KiB, the search is best fit for *sixteen* blocks, and the next blocks follow in
//!   that hole. So random writes on a fragmented pool still form runs that the queue
//!   merges, where plain best fit would scatter them block by block. Below 4 % free
//!   space the search is best fit, to keep holes for large blocks.
//! * *Among metaslabs*: by the size class of the largest free range, as in OpenZFS. But
//!   a loaded metaslab with room for sixteen blocks and 1 MiB is always used, and an
//!   unloaded one must be better by two classes, because loading is what makes writing
//!   to a full pool slow (§12.7). The active metaslab is kept until an allocation
//!   fails, or until a txg ends and it is worse by three classes than another loaded
//!   one; it never changes in the middle of a txg otherwise.
//! * *Among vdevs*: the rotor stays on a vdev for 2 MiB for each data disk, times the
//!   vdev's share of the class's free space, so that vdevs become full together. Queue
//!   lengths are not considered.
//! * *Copies* beyond the first use separate metaslabs where there are enough, so that
//!   metadata stays together and apart from data.
//! * *Flushing*: see [`flush`].
//! * *Intent logs* without log vdevs: a vdev of more than 64 metaslabs reserves for
//!   them the metaslab that is emptiest when the pool is opened, as in OpenZFS. But
//!   other blocks may use it when nothing else is left, so it counts as ordinary space.
//! * There are no thresholds on whole vdevs yet.
//!
//! # Locks
//! Order: the layout (shared, except for adding and removing vdevs), then one metaslab,
//! or one of the lists `dirty` and `done`. Two of these are never held at once, except
//! `done` before a metaslab in [`Space::before_commit`]. An allocation takes the layout
//! shared, and its metaslab for the duration of a few tree operations.

use base::planted::BugSwitch;
use base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use base::{Txg, VdevId};

mod alloc;
mod fit;
pub mod flush;
mod group;
pub mod range_tree;
mod rotor;
pub mod slab;
pub mod space;
pub mod stats;
pub mod sync;
pub mod trim;
mod used;
mod uses;

pub use flush::{FlushLimits, LogFact};
pub use range_tree::{RangeTree, Seg};
pub use slab::{Metaslab, MsDesc};
pub use space::{LoadPlan, LoadedMetaslabs, Space};
pub use stats::{Fragmentation, FreeHistogram, FreeSizes, MetaslabStatus, Totals, slop};
pub use sync::{Batch, MapFacts, MapWrite};
pub use trim::{FreeSpace, MetaslabFree};
pub use used::UsedSpace;

/// The allocation class of a top-level vdev's space (§12.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SpaceClass {
    /// Ordinary data and metadata.
    #[default]
    Normal,
    /// Intent logs.
    Log,
    /// Metadata and small blocks.
    Special,
    /// Dedup tables.
    Dedup,
}

/// Every class, in order of their numbers.
pub const CLASSES: [SpaceClass; 4] =
    [SpaceClass::Normal, SpaceClass::Log, SpaceClass::Special, SpaceClass::Dedup];

impl SpaceClass {
    /// The classes in which blocks of this class may be allocated, in order. Only
    /// intent logs use log vdevs.
    pub(crate) fn fallbacks(self) -> &'static [SpaceClass] {
        match self {
            SpaceClass::Normal => &[SpaceClass::Normal],
            SpaceClass::Log => &[SpaceClass::Log, SpaceClass::Normal],
            SpaceClass::Special => &[SpaceClass::Special, SpaceClass::Normal],
            SpaceClass::Dedup => &[SpaceClass::Dedup, SpaceClass::Special, SpaceClass::Normal],
        }
    }
}

/// Identifies a metaslab of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MsKey {
    /// Its top-level vdev.
    pub vdev: VdevId,
    /// Its index in the vdev.
    pub ms: u64,
}

/// The description of a top-level vdev when the pool is opened.
#[derive(Clone, Debug, Default)]
pub struct VdevDesc {
    /// Its id.
    pub vdev: VdevId,
    /// Its allocation class.
    pub class: SpaceClass,
    /// Allocatable bytes.
    pub asize: u64,
    /// log2 of its sector size.
    pub ashift: u32,
    /// log2 of a metaslab's size, as recorded.
    pub ms_shift: u32,
    /// Offsets are multiples of this: a dRAID's group width in bytes; otherwise 0.
    pub align: u64,
    /// Number of disks' worth of data: the weight in the rotor.
    pub data_disks: u64,
    /// Whether space may be allocated from it.
    pub allocating: bool,
    /// Its metaslabs in order.
    pub metaslabs: Vec<MsDesc>,
}

/// A request for space.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Stored bytes of the block, before parity.
    pub psize: u64,
    /// Bytes of the record before compression, if it is part of a run of records of one object
    /// that are placed one after the other; otherwise 0.
    pub record: u64,
    /// Number of addresses, 1 to 3, on different vdevs where possible.
    pub copies: u8,
    /// The allocation class.
    pub class: SpaceClass,
    /// The txg that writes the block.
    pub txg: Txg,
    /// Blocks with the same hint are placed together; for example, an object id.
    pub hint: u64,
    /// A block of metadata: an indirect block, or content of an object that only the
    /// format uses.
    pub metadata: bool,
    /// A part of a gang block: every metaslab is considered.
    pub gang_child: bool,
    /// A vdev to use last, because an attempt there failed.
    pub avoid: Option<VdevId>,
}

/// The reason why no space was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// This metaslab of this vdev must be loaded first.
    Load(VdevId, u64),
    /// Nothing fits.
    NoSpace,
}

/// Turns large blocks into gang blocks although there is room: a **test instrument**,
/// off unless a test turns it on. The result is as valid as any gang block.
#[derive(Debug, Default)]
pub struct ForceGanging {
    /// Only blocks with more stored bytes than this.
    pub larger_than: AtomicU64,
    /// One in this many of them; 0 for none.
    pub one_in: AtomicU64,
    /// All members of gangs as well, down to that size.
    pub members: AtomicBool,
    seen: AtomicU64,
}

impl ForceGanging {
    /// Whether this block is to become a gang block.
    pub(crate) fn hits(&self, want: &Want) -> bool {
        let one_in = self.one_in.load(Ordering::Relaxed);
        if one_in == 0 || want.psize <= self.larger_than.load(Ordering::Relaxed) {
            return false;
        }
        if want.gang_child {
            return self.members.load(Ordering::Relaxed);
        }
        self.seen.fetch_add(1, Ordering::Relaxed).is_multiple_of(one_in)
    }
}

/// Planted bugs, which show that the simulator finds such bugs ([`base::planted`]).
#[derive(Debug, Default)]
pub struct Plant {
    /// Space freed in a pass is allocatable at once, in the same txg.
    pub reuse_same_group: BugSwitch,
    /// Space freed in a txg is allocatable right before its uberblock, not after.
    pub reuse_before_commit: BugSwitch,
    /// The last range of each list of allocations is not written.
    pub lose_alloc_entry: BugSwitch,
    /// Space that was freed in the last two txgs is discarded like free space.
    pub trim_deferred: BugSwitch,
}
