//! Claiming an intent log with cloned blocks: the log anew, with their content.
//!
//! # Theory
//! `claim` says why. The old chain is walked once more, as far as it was accepted, and its
//! records go into a new chain, allocated in the group that claims: all of them as they are,
//! but for those of cloned ranges, which become one TX_WRITE after another with the bytes of
//! each block, and TX_TRUNCATE for holes (chapter 06 §17). They say the same: bytes at a place
//! of a file that may be gone by then, and how far the file reaches. Ranges that were cloned
//! in a group on disk are left out.
//!
//! The new chain goes to free space and is flushed; the header of the group points to it, says
//! that it is claimed, and how far. The old chain's blocks are freed in the same group; blocks
//! of writes that records point to stay where they are. So after any crash there is either the
//! old log, whole and unclaimed, or the new one, claimed: one that any implementation replays.
//!
//! A block is allocated when it is full, and written when its successor is allocated: its
//! size is what it holds, and no more than one is in memory.
//!
//! # Invariants
//! * Everything that the logs of the pool hold was marked allocated before: nothing of it is
//!   written over.
//! * The new chain has the records of the old one in their order, numbered anew from 1.

use std::sync::Arc;

use base::{BufMut, Dva, Error, ErrorKind, ObjectId, Result, Txg, VdevId};
use codec::checksum::Checksum;
use dmu::{Io, Objset};
use ondisk::objset::ZIL_HEADER_SIZE;
use ondisk::zil::{
    CHAIN_SIZE, CLAIM_LR_SEQ_VALID, CloneRange, LogPtr, RECORD_SEQ_AT, REPLAY_NEEDED, Record,
    RecordBody, WRITE_HEADER, Write, ZilHeader, records_at, seal,
};
use ondisk::{BlkPtr, Endian};
use zil::{BLOCK_MAX, BLOCK_MIN, LogWrite, Store};
use zio::Zio;

use super::Writer;
use super::claim::{CLONE_RANGE, Seen};
use super::log::PoolStore;
use crate::audit::log::{LogVisitor, log_header, walk_log};

/// Record types.
const TX_WRITE: u8 = 9;
const TX_TRUNCATE: u8 = 10;
/// Bytes of a block that is begun.
const ROOM: usize = BLOCK_MAX as usize - CHAIN_SIZE;
/// Data in what is left of a block that is worth a record.
const LEAST: usize = 512;
/// Bytes of cloned blocks that a log may hold: what a chain of 2^19 blocks can carry.
const BYTES_MAX: u64 = (1 << 19) * (BLOCK_MAX / 2);

/// A log in its new form.
pub(super) struct Uncloned {
    /// The header of the group that claims it.
    pub(super) header: [u8; ZIL_HEADER_SIZE],
    /// Blocks of the old chain.
    pub(super) old: Vec<BlkPtr>,
}

/// A block that is full, and allocated.
struct Full {
    own: LogPtr,
    dva: Dva,
    data: BufMut,
    used: usize,
}

/// The chain being written.
struct NewChain<'a> {
    store: &'a PoolStore,
    txg: Txg,
    /// Verifier of the next block.
    verifier: [u64; 4],
    /// Records of the block that is being filled.
    room: Vec<u8>,
    records: u64,
    first: Option<LogPtr>,
    full: Option<Full>,
    vdevs: Vec<VdevId>,
}

impl NewChain<'_> {
    /// A record with its number; one that does not fit begins a block.
    fn put(&mut self, mut record: Vec<u8>) -> Result<()> {
        if !self.room.is_empty() && self.room.len() + record.len() > ROOM {
            self.turn()?;
        }
        self.records += 1;
        let odd = || Error::bug("a record without its header");
        let seq = record.get_mut(RECORD_SEQ_AT..RECORD_SEQ_AT + 8).ok_or_else(odd)?;
        seq.copy_from_slice(&self.records.to_le_bytes());
        self.room.append(&mut record);
        Ok(())
    }

    /// Written bytes, in as many records as they take.
    fn write(
        &mut self,
        object: ObjectId,
        mut offset: u64,
        mut data: &[u8],
        txg: Txg,
    ) -> Result<()> {
        while !data.is_empty() {
            if ROOM - self.room.len().min(ROOM) < WRITE_HEADER + LEAST {
                self.turn()?;
            }
            let most = (ROOM - self.room.len() - WRITE_HEADER) / 8 * 8;
            let (piece, rest) = data.split_at(data.len().min(most));
            let length = piece.len() as u64;
            let write = Write { object, offset, length, block: None, data: Some(piece) };
            self.put(RecordBody::Write(write).encode(TX_WRITE, txg)?)?;
            offset += length;
            data = rest;
        }
        Ok(())
    }

    /// A record of cloned blocks as what it amounts to.
    fn copy(&mut self, zio: &Zio, clone: &CloneRange<'_>, txg: Txg) -> Result<()> {
        let object = clone.object;
        for piece in clone.pieces() {
            let (offset, length, bp) = piece?;
            if bp.is_hole() {
                let body = RecordBody::Truncate { object, offset, length };
                self.put(body.encode(TX_TRUNCATE, txg)?)?;
                continue;
            }
            let block = zio.read(&bp, Io::SCAN)?;
            let short = || Error::corrupt("a cloned block is shorter than its range");
            let data = usize::try_from(length).ok().and_then(|n| block.get(..n));
            let data = data.ok_or_else(short)?;
            self.write(object, offset, data, txg)?;
        }
        Ok(())
    }

    /// The block that was being filled gets its place, and the one before it is written.
    fn turn(&mut self) -> Result<()> {
        let records = std::mem::take(&mut self.room);
        let size = ((CHAIN_SIZE + records.len()) as u64).next_multiple_of(BLOCK_MIN);
        let dva = self.store.allocate(self.txg, size)?;
        let own = LogPtr::to(dva, size, self.txg, Checksum::Zilog2, self.verifier);
        self.verifier = own.next_verifier();
        let mut data = BufMut::zeroed(size as usize);
        let at = records_at(Checksum::Zilog2);
        let odd = || Error::bug("records that do not fit their block");
        data.get_mut(at..at + records.len()).ok_or_else(odd)?.copy_from_slice(&records);
        self.first.get_or_insert(own);
        let full = Full { own, dva, data, used: records.len() };
        match self.full.replace(full) {
            Some(before) => self.issue(before, &own),
            None => Ok(()),
        }
    }

    fn issue(&mut self, mut block: Full, next: &LogPtr) -> Result<()> {
        let used = seal(&mut block.data, block.used, &block.own, next)?;
        self.vdevs.push(block.dva.vdev);
        let data = block.data.freeze();
        self.store.write(vec![LogWrite { dva: block.dva, birth: self.txg, data, used }])
    }

    /// The last block is written, and all of them are flushed: the first one.
    fn end(mut self) -> Result<Option<LogPtr>> {
        if !self.room.is_empty() {
            self.turn()?;
        }
        if let Some(last) = self.full.take() {
            let end = LogPtr::end(last.own.next_verifier());
            self.issue(last, &end)?;
        }
        self.vdevs.sort_unstable();
        self.vdevs.dedup();
        self.store.flush(&self.vdevs)?;
        Ok(self.first)
    }

    /// Sequence of the last block.
    fn blocks(&self) -> u64 {
        let [_, _, _, next] = self.verifier;
        next - 1 + u64::from(!self.room.is_empty())
    }
}

/// The old chain, as it goes into the new one.
struct Copier<'a, 'b> {
    zio: &'a Zio,
    /// Records of older groups are on disk.
    first: Txg,
    chain: NewChain<'b>,
    old: Vec<BlkPtr>,
    /// The walk stops where the first one did, or fails.
    failed: Option<Error>,
    record_seq: u64,
    block_seq: u64,
}

impl Copier<'_, '_> {
    fn take(&mut self, record: &Record<'_>) -> Result<()> {
        if record.endian() != Endian::Little {
            let text = "an intent log of the other byte order has cloned blocks";
            return Err(Error::unsupported(text));
        }
        if record.header.txtype != CLONE_RANGE {
            return self.chain.put(record.bytes.to_vec());
        }
        match record.body()? {
            RecordBody::CloneRange(clone) if record.header.txg >= self.first => {
                self.chain.copy(self.zio, &clone, record.header.txg)
            }
            _ => Ok(()),
        }
    }
}

impl LogVisitor for Copier<'_, '_> {
    fn block(&mut self, ptr: &LogPtr) -> Result<bool> {
        self.old.push(ptr.bp);
        self.block_seq = ptr.seq();
        Ok(true)
    }

    fn record(&mut self, record: &Record<'_>, _encrypted: bool) -> Result<()> {
        self.record_seq = record.header.seq;
        self.take(record).map_err(|e| {
            let stop = Error::new(e.kind(), "the log cannot be copied");
            self.failed = Some(e);
            stop
        })
    }
}

impl Writer {
    /// Writes the log of a head anew, without cloned blocks; what is in it was marked
    /// allocated before.
    ///
    /// # Errors
    /// `NoSpace`, `Limit` when there is too much in it; `Unsupported` for the other byte order;
    /// those of reading the blocks, and of writing.
    pub(super) fn unclone(&self, os: &Arc<Objset>, seen: &Seen) -> Result<Uncloned> {
        let header = log_header(&os.phys())?;
        self.check_room(seen)?;
        let store = self.log_store(os.id());
        let chain = NewChain {
            store: &store,
            txg: seen.first,
            verifier: [store.random(), store.random(), os.id(), 1],
            room: Vec::new(),
            records: 0,
            first: None,
            full: None,
            vdevs: Vec::new(),
        };
        let (record_seq, block_seq) = (0, 0);
        let (first, failed) = (seen.first, None);
        let old = Vec::new();
        let mut copier =
            Copier { zio: &self.zio, first, chain, old, failed, record_seq, block_seq };
        // No farther than it was accepted.
        let claimed = ZilHeader {
            claim_txg: first,
            claim_blk_seq: seen.block_seq,
            claim_lr_seq: seen.record_seq,
            flags: CLAIM_LR_SEQ_VALID,
            ..header
        };
        let walked = walk_log(&self.zio, &claimed, &mut copier);
        if let Some(e) = copier.failed {
            return Err(e);
        }
        walked?;
        if (copier.record_seq, copier.block_seq) != (seen.record_seq, seen.block_seq) {
            let text = "a block of the log could not be read again";
            return Err(Error::new(ErrorKind::Io, text));
        }
        let (blocks, records) = (copier.chain.blocks(), copier.chain.records);
        let log = copier.chain.end()?;
        let header = match log {
            Some(log) => ZilHeader {
                claim_txg: first,
                replay_seq: 0,
                log,
                claim_blk_seq: blocks,
                flags: CLAIM_LR_SEQ_VALID | REPLAY_NEEDED,
                claim_lr_seq: records,
            }
            .encode(),
            None => [0; ZIL_HEADER_SIZE],
        };
        Ok(Uncloned { header, old: copier.old })
    }

    /// Room for the content in the log, and once more for it in the files.
    fn check_room(&self, seen: &Seen) -> Result<()> {
        if seen.clone_bytes > BYTES_MAX {
            return Err(Error::limit("there is too much of cloned blocks in an intent log"));
        }
        let normal = self.space.class_totals(metaslab::SpaceClass::Normal);
        let used = normal.allocated + metaslab::slop(normal.capacity, 0);
        if seen.clone_bytes.saturating_mul(2) > normal.capacity.saturating_sub(used) {
            let text = "the pool has no room for a copy of the cloned blocks in an intent log";
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        Ok(())
    }
}
