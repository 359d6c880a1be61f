//! The intent log of one object set: what was promised before its group is on disk.
//!
//! # Theory
//! Whoever changes a file system gives [`Log`] a record of it within the transaction
//! ([`Log::name`], [`Log::object`], [`Log::write`]). Records wait in memory, by group
//! (`pending`): those of names in one list, those of one object's content in a list of that
//! object. When the group is on disk they are forgotten: a log that nobody commits costs
//! no I/O. [`Log::commit`] takes all records of names and those of the given object, in the
//! order in which things were done, and writes them to the chain.
//!
//! The chain (`chain`, chapter 06 §16 to §18) is a list of blocks, each of which names the
//! next before it is written itself. Its last block, the *stub*, is allocated and not
//! written yet. A commit fills the stub and as many blocks more as it takes, allocates the
//! next stub, writes them all at once and flushes the vdevs that it wrote to. The header in
//! the object set block moves on with the groups ([`Log::sync`]).
//!
//! **Commits share.** One committer at a time writes; those who come meanwhile make up the
//! next *batch*, which one of them writes for all. So the blocks of the next batch fill
//! while the present one is on its way, one flush serves everybody who waited, and nobody
//! waits for company: alone, a commit begins at once.
//!
//! **Sizes** (`size`). The stub is allocated before anybody knows what will go into it: its
//! size is foretold from the last eight batches. What does not fit goes on in further
//! blocks, whose sizes are known. A block that is larger than what is in it costs space, and
//! no writing.
//!
//! # States
//! A block is *open* (the stub), *issued*, and *flushed*: then everything in it is on the
//! devices, and all blocks before it, too. A chain is *empty*, *running*, *broken* (a batch
//! could not be written), or *closing*. A log being replayed has a header, which says how
//! far replay came, and no chain to write to.
//!
//! # Invariants
//! * Order: the records of the chain are in the order of [`Log::name`] and the others; a
//!   batch has every record of names that came before it, and of each object either all
//!   records or none. So nothing in the chain depends on what is missing in it, but for what
//!   is in a group that is on disk.
//! * A commit returns well only when every record that it is for is on the devices behind a
//!   chain of flushed blocks from the durable header, or in a group that is on disk.
//! * The group in which a block was allocated does not end before the block that names it is
//!   flushed (the batch holds the group open): what the space maps say is allocated can be
//!   found, after any crash.
//! * [`Log::sync`] of group T frees a block only if it is flushed, was allocated in T or
//!   before, and holds records of T or before.
//! * What has no record ([`Log::barrier`]) is never followed in the chain by anything that
//!   came after it: until its group is on disk, commits wait for groups.
//!
//! # Crash argument
//! Group L is the last on disk. Its header names a block B; all blocks before B held
//! records of L and older groups alone. From B on, blocks are there up to the first one that
//! was not written, or not wholly: its verifier is wrong. A batch's blocks are named by one
//! another, so what is found is all batches that were flushed, in order, and perhaps a
//! beginning of the one under way. Records of groups up to L are skipped: they are in L.
//! The others are replayed upon L, each in the order in which it was done. A record that
//! says what to write may hold newer bytes than were written then: those of a later write,
//! which was under way and now is done early.
//!
//! When a batch cannot be written (`broken`), its committers wait for the groups of their
//! records, and the chain is given up in the group that the batch held open: neither header
//! nor space maps of any later group know of it.
//!
//! # Replay
//! Whoever replays says so ([`Log::begin_replay`]), and then does again what each record
//! says. What would be a new record is the note that this one is done, in the same
//! transaction; [`Log::sync`] puts the last one of its group into the header. So replay that
//! is cut short resumes exactly.
//!
//! # Departures from OpenZFS
//! * No state between groups and devices but the batch: blocks of two batches are never
//!   under way at the same time. There is no timeout to wait for company.
//! * Writes are always logged with their data: up to 8 KiB it is copied when written, if the
//!   file system's commits are frequent; else it is fetched at the commit, and a mass of
//!   writes that nobody syncs is not copied for nothing. Records with pointers (indirect writes) are replayed, and
//!   not written.
//! * Changes without a record wait for their group: extended attributes, flags, projects,
//!   ACLs, whiteouts, names for files that had none.
//! * A chain that is not in use is not kept over an export.
//!
//! Lock order: `turn`, `pending`, `chain`, `sizes` and the statistics: no two at a time, and none of them
//! during I/O, a wait, or a call of [`Store`] (but [`Store::synced_txg`]) or [`Source`]. A batch takes
//! locks of files ([`Source::read`]) before it holds a group, never after.

mod chain;
mod log;
mod pending;
mod size;
mod stats;

use base::{Buf, Dva, ObjectId, Result, Txg, VdevId};

pub use chain::Moved;
pub use log::{Log, Mode};
pub use size::{BLOCK_MAX, BLOCK_MIN, Plan, Sizes};
pub use stats::{Blocks, Stats, on_behalf_of, totals};

/// A group that is kept open until the drop.
pub struct Hold {
    /// Which.
    pub txg: Txg,
    _guard: Box<dyn std::any::Any + Send>,
}

impl Hold {
    /// Of group `txg`, as long as `guard` lives.
    pub fn new(txg: Txg, guard: impl std::any::Any + Send) -> Hold {
        Hold { txg, _guard: Box::new(guard) }
    }
}

/// A block of the chain to be written.
#[derive(Clone, Debug)]
pub struct LogWrite {
    /// Where, with the space that it has.
    pub dva: Dva,
    /// The group in which it was allocated.
    pub birth: Txg,
    /// The whole block.
    pub data: Buf,
    /// Bytes from its start that matter; what is behind them may be left unwritten where
    /// the block's place does not depend on its size.
    pub used: usize,
}

/// The pool beneath a log.
pub trait Store: Send + Sync {
    /// Holds the open group.
    ///
    /// # Errors
    /// That of a suspension.
    fn hold(&self) -> Result<Hold>;

    /// Space for a block of `size` bytes, in a group that is held.
    ///
    /// # Errors
    /// `NoSpace`; those of reading space maps.
    fn allocate(&self, txg: Txg, size: u64) -> Result<Dva>;

    /// Gives back space that was allocated in a group that is still held.
    fn unallocate(&self, txg: Txg, dva: Dva);

    /// Writes blocks, and waits until the devices have taken them.
    ///
    /// # Errors
    /// When one of them is not written well enough to be read.
    fn write(&self, blocks: Vec<LogWrite>) -> Result<()>;

    /// Makes durable what was written to these vdevs.
    ///
    /// # Errors
    /// When a device could not.
    fn flush(&self, vdevs: &[VdevId]) -> Result<()>;

    /// Whether a vdev is for logs alone.
    fn is_log(&self, vdev: VdevId) -> bool {
        let _ = vdev;
        false
    }

    /// The last group on disk.
    fn synced_txg(&self) -> Txg;

    /// Waits until the group is on disk, and has it written soon.
    ///
    /// # Errors
    /// That of a suspension.
    fn wait_synced(&self, txg: Txg) -> Result<()>;

    /// The header changes in this group, which is held: it must be written.
    fn dirty(&self, txg: Txg);

    /// A random number.
    fn random(&self) -> u64;
}

/// Content of files as it is now.
pub trait Source {
    /// `len` bytes of a file from `offset` on, none of them of a change that is half done;
    /// fewer if the file ends before. `None` if there is no such file any more.
    ///
    /// # Errors
    /// Those of reading.
    fn read(&self, object: ObjectId, offset: u64, len: u64) -> Result<Option<Vec<u8>>>;
}
