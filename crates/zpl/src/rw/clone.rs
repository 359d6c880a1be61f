//! Cloning ranges of files: the target shares the blocks of the source (chapter 08 §C.2).
//!
//! # Theory
//! A clone of whole blocks reads and writes no data: each block of the target gets a pointer
//! to the block of the source ([`dmu::Objset::clone_block`]). Both files need blocks of one
//! size, and both offsets must be multiples of it. The range ends with a whole block, or with
//! the source, if the target does not go on behind it: then the bytes behind the end are
//! zeros in both. An empty target takes the source's block size.
//!
//! A piece of at most [`BLOCKS`] blocks is one transaction. Holes become holes, and blocks that
//! are embedded in their pointers are written anew, which takes no space. At a block
//! that cannot be shared the piece ends, and with a hint why: a block that is not on disk yet
//! can be cloned after its txg.
//!
//! The dataset is charged for each clone in full, as for a copy; the pool loses no space but
//! that of the pointers.
//!
//! # Invariants
//! * Source and target are locked from before the source is looked at until the transaction
//!   ends: the range of the source, so that it does not change meanwhile, and the whole
//!   target.
//!
//! # The intent log
//! A record (TX_CLONE_RANGE) has the pointers of the source's blocks, which are on disk. They lead
//! to their content for as long as the record counts, and the claim of the log keeps the blocks
//! until its end (`spa`'s `claim`). The replay shares the blocks again, if the file then has
//! blocks of their size, and copies them otherwise. It finds the file as it was when the record
//! was made, or with changes of later records in it, which follow.
//!
//! Lock order: the two files, in the order of their object sets and object ids → transaction.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::CloneOutcome;
use ondisk::BlkPtr;
use ondisk::zil::CloneRange;

use super::data::{stripped, wrote};
use super::locks::ObjectLockGuard;
use super::make::{DNODE_BLOCK, blocks_cost};
use super::node::FileNode;
use super::types::{Caller, FILE_SIZE_MAX, too_large};
use crate::fs::FileSystem;

/// Blocks that one transaction clones.
const BLOCKS: u64 = 512;
/// Bytes of indirect blocks that the pointers of one transaction may need at first; the rest is
/// accounted for as it becomes dirty.
const POINTER_BLOCKS: u64 = 128 << 10;
/// Most blocks of a record that are shared when it is replayed: more than one record of any writer
/// has (chapter 06 §17.2).
const REPLAYED_BLOCKS: usize = 1 << 10;
/// How often a call waits for the txg of one block before it gives up.
const WAITS: usize = 4;

static ENABLED: AtomicBool = AtomicBool::new(true);
static WAITS_FOR_DIRTY: AtomicBool = AtomicBool::new(false);

/// Whether blocks are cloned in pools that can have cloned blocks (`zfs_bclone_enabled`).
pub fn cloning_enabled() -> bool {
    ENABLED.load(Relaxed)
}

/// Sets [`cloning_enabled`] for all pools of the process.
pub fn set_cloning_enabled(enabled: bool) {
    ENABLED.store(enabled, Relaxed);
}

/// Whether a copy waits for the txgs of blocks that are not on disk yet, to clone them
/// (`zfs_bclone_wait_dirty`).
pub fn cloning_waits() -> bool {
    WAITS_FOR_DIRTY.load(Relaxed)
}

/// Sets [`cloning_waits`] for all pools of the process.
pub fn set_cloning_waits(waits: bool) {
    WAITS_FOR_DIRTY.store(waits, Relaxed);
}

/// How far a clone got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClonedPiece {
    /// Bytes that are cloned.
    pub(crate) bytes: u64,
    /// Why the next block was not.
    pub(crate) stopped: Option<CloneOutcome>,
}

impl ClonedPiece {
    const IMPOSSIBLE: ClonedPiece =
        ClonedPiece { bytes: 0, stopped: Some(CloneOutcome::Impossible) };

    /// Whether nothing could be cloned because the first block is not on disk yet.
    pub(crate) fn awaits_txg(&self) -> bool {
        self.bytes == 0 && self.stopped == Some(CloneOutcome::Dirty)
    }
}

/// A range of a file of a file system.
#[derive(Clone, Copy)]
pub(crate) struct CloneSource<'a> {
    pub(crate) fs: &'a FileSystem,
    pub(crate) id: ObjectId,
    pub(crate) offset: u64,
}

impl FileSystem {
    /// Makes bytes of a file those of another, of the same or another file system of the pool,
    /// by sharing blocks. Returns the number of bytes, which is less than `len` at the end of
    /// the source, and in front of a block that cannot be shared; the rest can be copied. Waits
    /// for the txg of blocks of the source that are not on disk yet.
    ///
    /// # Errors
    /// `Invalid` unless the range consists of whole blocks, in both files, of one size, and for
    /// overlapping ranges; `CrossDevice` for another pool; `Unsupported` if the first block
    /// cannot be shared or the pool's feature block_cloning is not enabled; those of
    /// [`FileSystem::write`].
    pub fn clone_range(
        &self,
        by: &Caller,
        from: (&FileSystem, ObjectId, u64),
        to: (ObjectId, u64),
        len: u64,
    ) -> Result<u64> {
        let (rw, _) = self.rw()?;
        if !self.may_clone() {
            let why = "the pool's feature block_cloning or the tunable zfs_bclone_enabled is off";
            return Err(Error::unsupported(why));
        }
        let source = CloneSource { fs: from.0, id: from.1, offset: from.2 };
        if !std::sync::Arc::ptr_eq(self.os().zio(), source.fs.os().zio()) {
            let why = "files of different pools cannot share blocks";
            return Err(Error::new(ErrorKind::CrossDevice, why));
        }
        let size = source.fs.regular(source.id, self.io())?.1.size;
        let len = len.min(size.saturating_sub(source.offset));
        self.check_apart(&source, to, len)?;
        let (mut done, mut waited) = (0, 0);
        while done < len {
            let at = CloneSource { offset: source.offset + done, ..source };
            let piece = match self.clone_piece(by, &at, (to.0, to.1 + done), len - done) {
                Err(_) if done > 0 => break,
                piece => piece?,
            };
            done += piece.bytes;
            match piece.stopped {
                _ if piece.bytes > 0 => waited = 0,
                Some(CloneOutcome::Dirty) if waited < WAITS => {
                    waited += 1;
                    rw.host.settle()?;
                }
                _ if done > 0 => break,
                Some(CloneOutcome::Dirty) => {
                    let why = "the file changes all the time";
                    return Err(Error::new(ErrorKind::WouldBlock, why).in_object(source.id));
                }
                _ => {
                    let why = "the blocks of the file cannot be shared with the other";
                    return Err(Error::unsupported(why).in_object(source.id));
                }
            }
        }
        self.commit_if_sync_always(by, to.0)?;
        Ok(done)
    }

    /// Whether blocks may be cloned.
    pub(crate) fn may_clone(&self) -> bool {
        cloning_enabled() && self.os().zio().block_refs().is_ok_and(|refs| refs.is_enabled())
    }

    /// Whether both are handles of one file system.
    pub(super) fn is_same(&self, other: &FileSystem) -> bool {
        std::sync::Arc::ptr_eq(self.os(), other.os())
    }

    fn check_apart(
        &self,
        source: &CloneSource<'_>,
        (id, offset): (ObjectId, u64),
        len: u64,
    ) -> Result<()> {
        let same = self.is_same(source.fs) && id == source.id;
        let (from, to) = (source.offset, offset);
        if same && from < to.saturating_add(len) && to < from.saturating_add(len) {
            return Err(Error::invalid("the ranges overlap").in_object(id));
        }
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX);
        end.map(drop).ok_or_else(|| too_large(id))
    }

    /// Locks the target, and the source if that is another file.
    fn lock_both<'a>(
        &'a self,
        source: &CloneSource<'a>,
        id: ObjectId,
        len: u64,
    ) -> Result<Vec<ObjectLockGuard<'a>>> {
        let own = self.rw_always()?;
        if self.is_same(source.fs) && id == source.id {
            return Ok(vec![own.locks.exclusive(id)]);
        }
        let range = source.offset..source.offset.saturating_add(len);
        let target = || own.locks.exclusive(id);
        // A snapshot does not change.
        let Some(theirs) = source.fs.rw_part() else { return Ok(vec![target()]) };
        let read = || theirs.locks.range(source.id, range.clone());
        let first = (source.fs.os().id(), source.id) < (self.os().id(), id);
        Ok(if first { vec![read(), target()] } else { vec![target(), read()] })
    }

    /// Clones the blocks that fit one transaction.
    ///
    /// # Errors
    /// As [`FileSystem::clone_range`].
    pub(crate) fn clone_piece(
        &self,
        by: &Caller,
        source: &CloneSource<'_>,
        (id, offset): (ObjectId, u64),
        len: u64,
    ) -> Result<ClonedPiece> {
        let (rw, _) = self.rw()?;
        let io = self.io();
        let block = source.fs.regular(source.id, io)?.0.block_size();
        let len = len.min(BLOCKS.saturating_mul(block));
        let _locks = self.lock_both(source, id, len.next_multiple_of(block))?;
        let (from, attrs) = source.fs.regular(source.id, io)?;
        let node = self.content(id, true)?;
        let len = len.min(attrs.size.saturating_sub(source.offset));
        if len == 0 || from.block_size() != block {
            return Ok(ClonedPiece { bytes: 0, stopped: Some(CloneOutcome::Dirty) });
        }
        let last = source.offset + len == attrs.size && offset + len >= node.attrs.size;
        let aligned = source.offset.is_multiple_of(block) && offset.is_multiple_of(block);
        let whole = len.is_multiple_of(block) || last;
        let grows = node.object.block_size() != block && Self::takes_block_size(&node);
        if !aligned || !whole || !grows && node.object.block_size() != block {
            let why = "only whole blocks of one size can be shared";
            return Err(Error::invalid(why).in_object(id));
        }
        if source.fs.os().is_block_dirty(source.id, source.offset / block) {
            return Ok(ClonedPiece { bytes: 0, stopped: Some(CloneOutcome::Dirty) });
        }
        // Bytes behind the end of the source must be zeros.
        if !len.is_multiple_of(block) && source.fs.dirty_behind(&from, attrs.size)? {
            return Ok(ClonedPiece::IMPOSSIBLE);
        }
        self.check_quota(&node)?;
        let tail = self.dirty_tail(&node, offset)?;
        let synced = rw.host.synced_txg();
        let room = DNODE_BLOCK + POINTER_BLOCKS + tail.as_ref().map_or(0, |_| block);
        let tx = rw.host.begin_clone(room, len.next_multiple_of(block), self.outage())?;
        self.clear_tail(&tx, id, tail)?;
        if grows {
            let size = u32::try_from(block).map_err(|_| Error::invalid("an impossible block"))?;
            let _turn = rw.seqlock.write(id);
            self.os().free_range(&tx, id, 0, u64::MAX)?;
            self.os().set_block_size(&tx, id, size, 0)?;
        }
        let (mut done, mut stopped, mut pointers) = (0, None, Vec::new());
        while done < len {
            let (theirs, own) = ((source.offset + done) / block, (offset + done) / block);
            let from_os = source.fs.os();
            let cloned =
                self.os().clone_block(&tx, (id, own), from_os, (source.id, theirs), synced);
            let cloned = cloned.and_then(|(outcome, bp)| {
                match (outcome, &bp) {
                    (CloneOutcome::Cloned, _) => {}
                    (CloneOutcome::Hole, _) => {
                        self.os().free_blocks(&tx, id, own, own + 1, false)?;
                    }
                    // A block that is in its pointer has nothing to share.
                    (CloneOutcome::Impossible, BlkPtr::Embedded(_)) => {
                        let data = from.read_little(theirs, io)?;
                        self.os().write(&tx, id, own.saturating_mul(block), &data)?;
                    }
                    _ => return Ok(Some(outcome)),
                }
                pointers.push(bp);
                Ok(None)
            });
            match cloned {
                Ok(None) => done = (done + block).min(len),
                Ok(Some(other)) => {
                    stopped = Some(other);
                    break;
                }
                // What was cloned so far is part of the file.
                Err(_) if done > 0 => {
                    stopped = Some(CloneOutcome::Impossible);
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        if done > 0 {
            let now = rw.host.now();
            self.patch(&tx, &node, &wrote(by, &node, offset + done, now))?;
            let stripped = stripped(by, &node, now);
            let range = ((offset, done), block);
            self.log_cloned(&tx, &node, range, &pointers, stripped.as_ref());
        } else if grows {
            self.log_nothing(&tx);
        }
        Ok(ClonedPiece { bytes: done, stopped })
    }

    /// Replays a record of a clone by sharing its blocks, which the claim of the log keeps. False
    /// if some cannot be shared: the caller copies all of them. It holds the lock of the whole
    /// file.
    ///
    /// # Errors
    /// As [`FileSystem::clone_range`].
    pub(crate) fn replay_shared(&self, clone: &CloneRange<'_>) -> Result<bool> {
        let rw = self.rw_always()?;
        let (id, block, end) = (clone.object, clone.block_size, clone.offset + clone.length);
        let node = self.content(id, true)?;
        let grows = node.object.block_size() != block && Self::takes_block_size(&node);
        let fits = clone.offset.is_multiple_of(block)
            && (clone.length.is_multiple_of(block) || end >= node.attrs.size)
            && (grows || node.object.block_size() == block)
            && clone.pointers().len() <= REPLAYED_BLOCKS;
        let size = u32::try_from(block).ok().filter(|_| fits && self.may_clone());
        let Some(size) = size else { return Ok(false) };
        let pieces: Vec<(u64, u64, BlkPtr)> = clone.pieces().collect::<Result<_>>()?;
        let whole = |bp: &BlkPtr| bp.is_hole() || bp.head().lsize.0 == block;
        if !pieces.iter().all(|(_, _, bp)| whole(bp)) {
            return Ok(false);
        }
        let embedded = |(_, _, bp): &&(u64, u64, BlkPtr)| matches!(bp, BlkPtr::Embedded(_));
        let written = pieces.iter().filter(embedded).count() as u64;
        let tail = self.dirty_tail(&node, clone.offset)?;
        let written = blocks_cost(written + tail.as_ref().map_or(0, |_| 1), block);
        let tx = self.begin_tx(DNODE_BLOCK + POINTER_BLOCKS + written, true)?;
        self.clear_tail(&tx, id, tail)?;
        if grows {
            let _turn = rw.seqlock.write(id);
            self.os().free_range(&tx, id, 0, u64::MAX)?;
            self.os().set_block_size(&tx, id, size, 0)?;
        }
        let mut pointers = Vec::with_capacity(pieces.len());
        for (offset, _, bp) in pieces {
            let to = offset / block;
            match &bp {
                BlkPtr::Block(b) if self.os().clone_pointer(&tx, (id, to), b)? => {}
                BlkPtr::Hole(_) => self.os().free_blocks(&tx, id, to, to + 1, false)?,
                BlkPtr::Embedded(_) => {
                    let data = self.os().zio().read(&bp, self.io())?;
                    self.os().write(&tx, id, offset, &data)?;
                }
                // The copy overwrites what is shared already.
                BlkPtr::Block(_) | BlkPtr::Redacted(_) => return Ok(false),
            }
            pointers.push(bp);
        }
        self.patch(&tx, &node, &wrote(&Caller::root(), &node, end, rw.host.now()))?;
        self.log_cloned(&tx, &node, ((clone.offset, clone.length), block), &pointers, None);
        Ok(true)
    }

    /// Whether an empty file may get blocks of another size.
    fn takes_block_size(node: &FileNode) -> bool {
        let dnode = node.object.dnode();
        node.attrs.size == 0 && dnode.max_blkid == 0 && dnode.levels == 1
    }
}
