//! The intent log (ZIL) of one object set. It makes changes durable before their txg is
//! on disk.
//!
//! # Theory
//! A thread that changes a file system gives [`Log`] a record of the change within the
//! transaction ([`Log::name`], [`Log::object`], [`Log::write`]). Records wait in
//! memory, by txg (`pending`): records of names in one list, records of an object's
//! content in a list of that object. When the txg is on disk they are dropped, so a log
//! without commits costs no I/O. [`Log::commit`] takes all records of names and those
//! of the given object, in the order of the changes, and writes them to the chain.
//!
//! The chain (`chain`, chapter 06 §16 to §18) is a list of blocks. Each block names the
//! next one, which is therefore allocated before the block is written. The last block,
//! the *stub*, is allocated but not written. A commit fills the stub and as many
//! further blocks as needed, allocates the next stub, writes all filled blocks
//! concurrently, and flushes the vdevs to which it wrote. The header in the object set
//! block advances with the txgs ([`Log::sync`]).
//!
//! **Group commit.** One committer at a time, the *leader*, writes. Threads that commit
//! meanwhile form the next *batch*, which one of them writes for all. So the next batch
//! collects records while the present one is in flight, and one flush serves all its
//! committers. No committer waits for others to join: a lone commit begins at once.
//!
//! **Sizes** (`size`). The stub is allocated before its content is known, so its size
//! is predicted from the last eight batches. Records that do not fit go to further
//! blocks, whose sizes are known. A block that is larger than its content costs space,
//! but no writing.
//!
//! # Forms of a write
//! Small data is *copied* when it is written; larger data is *fetched* at the commit. A
//! large write, and every write with `logbias=throughput`, is *indirect*: the commit
//! writes its blocks to their final places in the file ([`Source::early_blocks`]), and the
//! record contains the block's pointer. The txg then need not write them again
//! (`dmu::live::early`). If log vdevs take the data, latency has precedence: writes are
//! indirect only with `logbias=throughput`.
//!
//! A batch places each block once. Records of further writes of the same txg to the
//! block refer to it as already there (TX_WRITE2), as long as no other record of the
//! file is between them. In a replay such a record would undo what the block contains
//! of the later writes. Writes behind it carry their data. The first record of another
//! txg names the block again, because a replay skips the records of the older txg if
//! that is on disk. Records of volumes always name it ([`Source::has_write2`]).
//!
//! # States
//! A block is *open* (the stub), *issued*, or *flushed*: then it and all blocks before
//! it are on the devices. A chain is *empty*, *running*, *broken* (a batch could not be
//! written), or *closing*. A log that is being replayed has a header, which records the
//! progress of the replay, and no chain for new records.
//!
//! # Invariants
//! * Order: the records of the chain are in the order of the calls of [`Log::name`] and
//!   the other functions. A batch has every earlier record of names, and for each
//!   object either all records or none. So no record in the chain depends on one that
//!   is missing from it, except on records of a txg that is on disk.
//! * A commit returns successfully only when each of its records is on the devices in a
//!   chain of flushed blocks that starts at the durable header, or in a txg that is on
//!   disk.
//! * The txg in which a block was allocated does not end before the block that names it
//!   is flushed (the batch holds the txg open). So after any crash, the blocks that the
//!   space maps record as allocated can be found.
//! * [`Log::sync`] of txg T frees a block only if it is flushed, was allocated in T or
//!   before, and holds only records of T or before.
//! * A change without a record ([`Log::barrier`]) is never followed in the chain by a
//!   later change: until its txg is on disk, commits wait for txgs.
//!
//! # Crash argument
//! Txg L is the last on disk. Its header names a block B; all blocks before B held only
//! records of L and older txgs. From B on, the blocks exist up to the first one that
//! was not completely written, whose verifier is wrong. The blocks of a batch name one
//! another, so the replay finds all flushed batches, in order, and possibly the
//! beginning of the batch in flight. Records of txgs up to L are skipped, because they
//! are in L. The others are replayed upon L in the order of the changes. A record with
//! the data of a write may contain newer bytes than that write wrote, namely those of a
//! later write that was in flight; the replay then applies them early. The rest of an
//! indirect block may contain such bytes, too. If it contains bytes of a write that the
//! log lost, these lie at most behind the file's end, and code that extends the file
//! clears them.
//!
//! The blocks of indirect writes are on the devices before their batch is flushed. They
//! belong either to txgs that are not on disk, or to L. The former are claimed with the
//! chain, and a block that is not completely there ends the chain, like a block of the
//! chain itself. The latter belong to the file or are free, and the records that name
//! them belong to L and are skipped.
//!
//! When a batch cannot be written (`broken`), its committers wait for the txgs of their
//! records. The chain is abandoned in the txg that the batch held open, so neither the
//! header nor the space maps of a later txg refer to it.
//!
//! # Replay
//! The replaying code calls [`Log::begin_replay`] and then repeats the change of each
//! record. Instead of a new record, the transaction of the change notes that this
//! record is done. [`Log::sync`] stores the last such note of its txg in the header. So
//! an interrupted replay resumes exactly where it stopped.
//!
//! # Departures from OpenZFS
//! * There is no state between txgs and devices except the batch: blocks of two batches
//!   are never in flight at the same time, and there is no timeout to let commits
//!   gather.
//! * It is not known at the time of a write whether the caller will commit it. Up to 8
//!   KiB are copied then, if the file system's commits are frequent. Data of a mass of
//!   writes without commits is not copied.
//! * A batch of much data is written in pieces. If most of the pool's dirty data is in
//!   it, the commit waits for the txg instead, which writes the data once.
//! * An indirect write carries its data if its block cannot be placed: the block is
//!   dirty only in a closed txg, it is a hole without any record, or the pool is short
//!   of space.
//! * Changes without a record wait for their txg: names for files that had none, empty
//!   extended attributes among system attributes, inherited ACLs in hidden directories.
//! * The records of one change are in one block ([`Bundle`]).
//! * An unused chain is not kept across an export.
//!
//! Lock order: no two of `leader`, `pending`, `chain`, `sizes` and the statistics are
//! held at a time, and none of them during I/O, a wait, or a call of [`Store`] (except
//! [`Store::synced_txg`]) or [`Source`]. A batch takes locks of files
//! ([`Source::read`]) only while it holds no txg; [`EarlyBlocks`] takes none.

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
pub use stats::{Blocks, Stats, totals};

/// Keeps a txg open until it is dropped.
pub struct Hold {
    /// The txg.
    pub txg: Txg,
    _guard: Box<dyn std::any::Any + Send>,
}

impl Hold {
    /// A hold of `txg` that lasts as long as `guard`.
    pub fn new(txg: Txg, guard: impl std::any::Any + Send) -> Hold {
        Hold { txg, _guard: Box::new(guard) }
    }
}

/// A log block to be written.
#[derive(Clone, Debug)]
pub struct LogWrite {
    /// Its address, with the allocated size.
    pub dva: Dva,
    /// The txg in which it was allocated.
    pub birth: Txg,
    /// The whole block.
    pub data: Buf,
    /// Number of valid bytes from its start. The rest may be left unwritten if the
    /// layout of the block does not depend on its size.
    pub used: usize,
}

/// The pool, as the log uses it.
pub trait Store: Send + Sync {
    /// Takes a hold of the open txg.
    ///
    /// # Errors
    /// The error of a suspension.
    fn hold(&self) -> Result<Hold>;

    /// Allocates space for a block of `size` bytes in a held txg.
    ///
    /// # Errors
    /// `NoSpace`; errors of reading space maps.
    fn allocate(&self, txg: Txg, size: u64) -> Result<Dva>;

    /// Releases space that was allocated in a txg that is still held.
    fn unallocate(&self, txg: Txg, dva: Dva);

    /// Writes blocks, and waits until the devices have completed the writes.
    ///
    /// # Errors
    /// When one of them was not written well enough to be readable.
    fn write(&self, blocks: Vec<LogWrite>) -> Result<()>;

    /// Makes everything written to these vdevs durable.
    ///
    /// # Errors
    /// When the flush of a device failed.
    fn flush(&self, vdevs: &[VdevId]) -> Result<()>;

    /// Whether a vdev is a log vdev.
    fn is_log(&self, vdev: VdevId) -> bool {
        let _ = vdev;
        false
    }

    /// Whether there are log vdevs that take writes now.
    fn has_log_vdevs(&self) -> bool {
        false
    }

    /// Reserves space for `bytes` of data in a held txg; false if space is short.
    fn reserve(&self, txg: Txg, bytes: u64) -> bool {
        let _ = (txg, bytes);
        true
    }

    /// The last txg on disk.
    fn synced_txg(&self) -> Txg;

    /// Dirty bytes of all txgs that are not on disk, of the whole pool.
    fn dirty_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Waits until the txg is on disk, and requests that it is written soon.
    ///
    /// # Errors
    /// The error of a suspension.
    fn wait_synced(&self, txg: Txg) -> Result<()>;

    /// Records that the header changes in this held txg and must be written.
    fn dirty(&self, txg: Txg);

    /// A random number.
    fn random(&self) -> u64;
}

/// Access to the current content of files.
pub trait Source {
    /// `len` bytes of a file from `offset` on, without any half-done change; fewer if
    /// the file ends before. `None` if the file no longer exists.
    ///
    /// # Errors
    /// Errors of reading.
    fn read(&self, object: ObjectId, offset: u64, len: u64) -> Result<Option<Vec<u8>>>;

    /// The present block size of a file; `None` if the file no longer exists, or if its
    /// blocks must not be written early.
    fn block_size(&self, object: ObjectId) -> Option<u64> {
        let _ = object;
        None
    }

    /// Whether a replay knows records of writes whose block an earlier record of the txg has
    /// (TX_WRITE2). Volumes have none (chapter 06 §17.1): each record names its block.
    fn has_write2(&self) -> bool {
        true
    }

    /// Begins to write blocks of the held `txg` to their final places; `None` if that
    /// is not supported. Takes no lock of a file.
    fn early_blocks(&self, txg: Txg) -> Option<Box<dyn EarlyBlocks>> {
        let _ = txg;
        None
    }
}

/// Blocks of files that a batch writes to their final places. If it is dropped without
/// [`EarlyBlocks::keep`], the blocks are abandoned: the txg writes them as if they had not
/// been written.
pub trait EarlyBlocks {
    /// The block size of a file in the txg; `None` if the txg does not change the file.
    fn block_size(&self, object: ObjectId) -> Option<u64>;

    /// Begins to write a block with its present content. Returns its pointer, or `None`
    /// if it cannot be written early.
    ///
    /// # Errors
    /// `Bug`.
    fn block(&mut self, object: ObjectId, block: u64) -> Result<Option<BlkPtr>>;

    /// Waits until the devices have completed all writes. Returns the vdevs to flush.
    ///
    /// # Errors
    /// When one of them was not written well enough to be readable.
    fn wait(&mut self) -> Result<Vec<VdevId>>;

    /// Records that the vdevs were flushed.
    fn keep(self: Box<Self>);
}
