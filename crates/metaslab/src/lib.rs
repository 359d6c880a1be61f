//! Free space: which bytes of a pool are free, and which of them to use.
//!
//! # Theory
//! Every top-level vdev is divided into metaslabs. [`Space`] holds them in classes
//! and hands out addresses; it does no I/O. The sync thread asks what to write of
//! each metaslab's space map and of the group's log, and tells when it is written
//! and when the group is durable (chapter 05 §4-6). For one group T:
//!
//! 1. pass 1: [`Space::choose_flushes`]; for each [`Space::prepare_flush`], write,
//!    [`Space::written`]; then remove logs below [`Space::min_unflushed`];
//! 2. each pass: [`Space::free`] for what died, then for each of
//!    [`Space::take_dirty`] [`Space::prepare_write`], write, [`Space::written`];
//! 3. [`Space::before_commit`], uberblock, [`Space::synced`].
//!
//! Chapter numbers mean the format's chapter 05 unless another is named.
//!
//! # Invariants
//! * No byte is handed out twice before it is freed, and none that the durable
//!   uberblock references: what T frees is handed out after T is durable, and, but
//!   for a pool that is nearly full, two groups later (§6).
//! * What is written replays to what is allocated, at each uberblock.
//! * A range never crosses a metaslab.
//! * Nothing read from a disk makes it panic: contradictions are `Corrupt`.
//!
//! # Policy, and departures from OpenZFS
//! * *Within a metaslab* ([`Metaslab`]): four cursors by size instead of 64 by
//!   alignment. Compressed records have all kinds of alignment, and one file's
//!   blocks shall follow each other. A block goes to its cursor if it fits; then
//!   first fit from there on. If the largest hole is below 128 KiB, it is best fit
//!   for *sixteen* blocks, and the next blocks follow in that hole: random writes on
//!   a fragmented pool still go out in runs that the queue merges, where plain best
//!   fit scatters them block by block. Below 4 % free it is best fit, to keep holes
//!   for large blocks.
//! * *Among metaslabs*: by the class of the largest free range, as OpenZFS does, but
//!   a loaded one with room for sixteen blocks and 1 MiB is always taken, and an
//!   unloaded one must be better by two classes: loading is what makes writing to a
//!   full pool slow (§12.7). The active one is kept until an allocation fails, or
//!   until a group ends and it is worse by three classes than another loaded one;
//!   never in the middle of a group.
//! * *Among vdevs*: a turn is 2 MiB for each data disk, times the vdev's share of
//!   the class's free space, so vdevs become full together; queues are not asked.
//! * *Copies* beyond the first have metaslabs of their own where there are enough:
//!   metadata stays together and out of the way of data.
//! * *Flushing*: see [`flush`].
//! * *Intent logs* without vdevs of their own: a vdev of more than 64 metaslabs keeps the
//!   one for them that is emptiest when the pool is opened, as OpenZFS does; but others
//!   may use it when nothing else is left, so it counts as ordinary space.
//! * No thresholds on whole vdevs yet.
//!
//! # Locks
//! The layout (shared by everything but adding and removing vdevs), then one
//! metaslab, or one of the lists `dirty` and `done`; never two of these at once, but
//! `done` before a metaslab in [`Space::before_commit`]. An allocation takes the
//! layout shared and its metaslab for the time of a few tree steps.

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

pub use flush::{FlushLimits, LogFact};
pub use range_tree::{RangeTree, Seg};
pub use slab::{Metaslab, MsDesc};
pub use space::{LoadPlan, Space};
pub use stats::{Fragmentation, Totals, slop};
pub use sync::{Batch, MapFacts, MapWrite};

/// What a top-level vdev's space is for (§12.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Class {
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
pub const CLASSES: [Class; 4] = [Class::Normal, Class::Log, Class::Special, Class::Dedup];

impl Class {
    /// Where blocks of this class may go, in order. Nothing but intent logs goes to
    /// log vdevs.
    pub fn fallbacks(self) -> &'static [Class] {
        match self {
            Class::Normal => &[Class::Normal],
            Class::Log => &[Class::Log, Class::Normal],
            Class::Special => &[Class::Special, Class::Normal],
            Class::Dedup => &[Class::Dedup, Class::Special, Class::Normal],
        }
    }
}

/// A metaslab of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MsKey {
    /// Its top-level vdev.
    pub vdev: VdevId,
    /// Its number there.
    pub ms: u64,
}

/// What the pool says of a top-level vdev when it is opened.
#[derive(Clone, Debug, Default)]
pub struct VdevDesc {
    /// Its id.
    pub vdev: VdevId,
    /// What it is for.
    pub class: Class,
    /// Allocatable bytes.
    pub asize: u64,
    /// log2 of its sector size.
    pub ashift: u32,
    /// log2 of a metaslab's size, as recorded.
    pub ms_shift: u32,
    /// Offsets are multiples of it: a dRAID's group width in bytes; else 0.
    pub align: u64,
    /// Disks' worth of data in it: the rotor's measure.
    pub data_disks: u64,
    /// Whether it gives space.
    pub allocating: bool,
    /// Its metaslabs in order.
    pub metaslabs: Vec<MsDesc>,
}

/// A block that needs space.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Stored bytes of the block, before parity.
    pub psize: u64,
    /// Addresses, 1 to 3: on different vdevs where possible.
    pub copies: u8,
    /// Where it belongs.
    pub class: Class,
    /// The group that writes it.
    pub txg: Txg,
    /// Blocks with the same hint stay together: a number of the object, say.
    pub hint: u64,
    /// A part of a gang block: every metaslab comes into question.
    pub gang_child: bool,
    /// Used last: a vdev where an attempt failed.
    pub avoid: Option<VdevId>,
}

/// Why there is no space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// This metaslab of this vdev must be loaded first.
    Load(VdevId, u64),
    /// Nothing fits.
    NoSpace,
}

/// Makes large blocks gang blocks although there is room: a **test instrument**, off
/// unless a test turns it on. What it makes is as good as any gang block.
#[derive(Debug, Default)]
pub struct ForceGanging {
    /// Blocks of more stored bytes than this.
    pub larger_than: AtomicU64,
    /// One in so many of them; 0 for none.
    pub one_in: AtomicU64,
    /// The members of gangs as well, all of them, down to that size.
    pub members: AtomicBool,
    asked: AtomicU64,
}

impl ForceGanging {
    /// Whether this block is to be one.
    pub(crate) fn hits(&self, want: &Want) -> bool {
        let one_in = self.one_in.load(Ordering::Relaxed);
        if one_in == 0 || want.psize <= self.larger_than.load(Ordering::Relaxed) {
            return false;
        }
        if want.gang_child {
            return self.members.load(Ordering::Relaxed);
        }
        self.asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(one_in)
    }
}

/// Bugs to plant: **test instruments**, for showing that the simulator finds what it
/// is there for. Always compiled, all off, and nothing but tests turns them on.
#[derive(Debug, Default)]
pub struct Plant {
    /// What a pass frees is handed out at once, in the same group.
    pub reuse_same_group: AtomicBool,
    /// What a group frees is handed out right before its uberblock, not after.
    pub reuse_before_commit: AtomicBool,
    /// The last range of each list of allocations is not written.
    pub lose_alloc_entry: AtomicBool,
}
