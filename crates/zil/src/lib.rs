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
//! # Forms of a write
//! Small data is *copied* when it is written; what is larger is *fetched* at the commit. A
//! large write, and every write with `logbias=throughput`, is *indirect*: its blocks are
//! written at the commit to where they will be in the file ([`Source::place`]), and the
//! record has the block's pointer. When the group comes it need not write them again
//! (`dmu::live::early`). Where log vdevs take the data, latency comes first: nothing is
//! indirect but with `logbias=throughput`.
//!
//! A batch places each block once; records of further writes of the same group to it say that
//! the block is there (TX_WRITE2), as long as nothing else of the file stands between them:
//! whatever does would undo, in the replay, what the block has of the later ones. What comes
//! behind it carries its data. The first record of another group names the block once more:
//! if the older group is on disk a replay skips what that has.
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
//! which was under way and now is done early. So may the rest of an indirect block; what it
//! has of a write that the log lost lies behind the file's end at most, and who extends the
//! file clears that.
//!
//! The blocks of indirect writes are on the devices before their batch is flushed. They
//! are of groups that are not on disk, or of L: those of the former are claimed with the
//! chain, and one that is not there wholly ends it, like a block of the chain; those of L are
//! the file's, or free, and the records that name them are of L and skipped.
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
//! * Whether a caller waits is not known when it writes: up to 8 KiB are copied then, if the
//!   file system's commits are frequent. A mass of writes that nobody syncs is not.
//! * A batch of much data is written in pieces; if most of what the pool has dirty is in it,
//!   the group is waited for instead, which writes the data once.
//! * An indirect write whose block cannot be placed (it is dirty in a closed group alone, a
//!   hole that the log knows nothing of, or the pool is short of space) carries its data.
//! * Changes without a record wait for their group: names for files that had none, empty
//!   extended attributes among system attributes, inherited ACLs in hidden directories.
//! * What is one change is in one block ([`Bundle`]), also where that takes several records.
//! * A chain that is not in use is not kept over an export.
//!
//! Lock order: `turn`, `pending`, `chain`, `sizes` and the statistics: no two at a time, and none of them
//! during I/O, a wait, or a call of [`Store`] (but [`Store::synced_txg`]) or [`Source`]. A batch takes
//! locks of files ([`Source::read`]) while it holds no group, never after; [`Place`] takes none.

mod chain;
mod fill;
mod forms;
mod log;
mod pending;
mod size;
mod stats;

use base::{Buf, Dva, ObjectId, Result, Txg, VdevId};
use ondisk::BlkPtr;

pub use chain::Moved;
pub use forms::{IMMEDIATE_WRITE, immediate_write, set_immediate_write};
pub use log::{Bundle, Log, Mode};
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

    /// Whether log vdevs take what is written now.
    fn has_log_vdevs(&self) -> bool {
        false
    }

    /// Promises space for `bytes` of data in a group that is held; false where it is short.
    fn reserve(&self, txg: Txg, bytes: u64) -> bool {
        let _ = (txg, bytes);
        true
    }

    /// The last group on disk.
    fn synced_txg(&self) -> Txg;

    /// Bytes of all groups that are not on disk yet, of everything in the pool.
    fn dirty_bytes(&self) -> u64 {
        u64::MAX
    }

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

    /// The size of a file's blocks now; `None` if there is no such file, or its blocks are
    /// not to be written to their places.
    fn block_size(&self, object: ObjectId) -> Option<u64> {
        let _ = object;
        None
    }

    /// Begins to write blocks of group `txg`, which is held, to their places; `None` where
    /// that is not done. No lock of a file is taken.
    fn place(&self, txg: Txg) -> Option<Box<dyn Place>> {
        let _ = txg;
        None
    }
}

/// Blocks of files that a batch writes to their places. Dropped without [`Place::keep`]
/// they are given up: the group writes them as if nothing had been.
pub trait Place {
    /// The size of a file's blocks in the group; `None` if the group does not change it.
    fn block_size(&self, object: ObjectId) -> Option<u64>;

    /// Begins to write a block as it is now: its pointer, or `None` if it cannot be done.
    ///
    /// # Errors
    /// `Bug`.
    fn block(&mut self, object: ObjectId, block: u64) -> Result<Option<BlkPtr>>;

    /// Waits until the devices have taken all of them: the vdevs to be flushed.
    ///
    /// # Errors
    /// When one of them is not written well enough to be read.
    fn wait(&mut self) -> Result<Vec<VdevId>>;

    /// They are flushed.
    fn keep(self: Box<Self>);
}
