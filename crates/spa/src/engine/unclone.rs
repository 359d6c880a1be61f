//! Writing an intent log with cloned blocks anew, when it is claimed.
//!
//! # Theory
//! `claim` has the reasons. The old chain is walked once more, as far as it was accepted,
//! and its records are copied to a new chain, allocated in the txg that claims. Records are
//! copied unchanged, except those of cloned ranges. Ranges that were cloned in a txg on disk are
//! left out. The others stay, if the claim has references to all of their blocks. Otherwise
//! they become a sequence of TX_WRITE records with the bytes of each block, and TX_TRUNCATE for
//! holes (chapter 06 §17). They are equivalent: bytes at a position in a file that may be removed
//! by then, and the extent of the file.
//!
//! The new chain is written to free space and flushed. The header of the txg points to it,
//! and records that it is claimed, and how far. The old chain's blocks are freed in the
//! same txg; blocks of writes that records point to stay where they are. So after any crash
//! there is either the old log, complete and unclaimed, or the new one, claimed: one that
//! any implementation can replay.
//!
//! A block is allocated when it is full, and written when its successor is allocated. So
//! its size is that of its content, and no more than one block is in memory.
//!
//! # Invariants
//! * All blocks of the pool's logs were marked allocated before: none of them is
//!   overwritten.
//! * The new chain has the records of the old one in their order, renumbered from 1.

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
use super::claim::{CLONE_RANGE, LogFindings};
use super::log::PoolStore;
use crate::audit::log::{LogVisitor, log_header, walk_log};

/// Record types.
const TX_WRITE: u8 = 9;
const TX_TRUNCATE: u8 = 10;
/// Bytes of a block that is begun.
const ROOM: usize = BLOCK_MAX as usize - CHAIN_SIZE;
/// The smallest remaining space in a block that is used for a data record.
const LEAST: usize = 512;
/// Bytes of cloned blocks that a log may have: the capacity of a chain of 2^19 blocks.
const BYTES_MAX: u64 = (1 << 19) * (BLOCK_MAX / 2);

/// A log in its new form.
pub(super) struct Uncloned {
    /// The header of the txg that claims it.
    pub(super) header: [u8; ZIL_HEADER_SIZE],
    /// Blocks of the old chain.
    pub(super) old: Vec<BlkPtr>,
}

/// A block that is full, and allocated.
struct FullBlock {
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
    full: Option<FullBlock>,
    vdevs: Vec<VdevId>,
}

impl NewChain<'_> {
    /// Adds a record with its sequence number; one that does not fit begins a block.
    fn put(&mut self, mut record: Vec<u8>) -> Result<()> {
        if !self.room.is_empty() && self.room.len() + record.len() > ROOM {
            self.advance_block()?;
        }
        self.records += 1;
        let odd = || base::bug!("a record without its header");
        let seq = record.get_mut(RECORD_SEQ_AT..RECORD_SEQ_AT + 8).ok_or_else(odd)?;
        seq.copy_from_slice(&self.records.to_le_bytes());
        self.room.append(&mut record);
        Ok(())
    }

    /// Adds written bytes, in as many records as necessary.
    fn write(
        &mut self,
        object: ObjectId,
        mut offset: u64,
        mut data: &[u8],
        txg: Txg,
    ) -> Result<()> {
        while !data.is_empty() {
            if ROOM - self.room.len().min(ROOM) < WRITE_HEADER + LEAST {
                self.advance_block()?;
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

    /// Adds the equivalent of a record of cloned blocks.
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

    /// Allocates the block that was being filled, and writes the one before it.
    fn advance_block(&mut self) -> Result<()> {
        let records = std::mem::take(&mut self.room);
        let size = ((CHAIN_SIZE + records.len()) as u64).next_multiple_of(BLOCK_MIN);
        let dva = self.store.allocate(self.txg, size)?;
        let own = LogPtr::to(dva, size, self.txg, Checksum::Zilog2, self.verifier);
        self.verifier = own.next_verifier();
        let mut data = BufMut::zeroed(size as usize);
        let at = records_at(Checksum::Zilog2);
        let odd = || base::bug!("records that do not fit their block");
        data.get_mut(at..at + records.len()).ok_or_else(odd)?.copy_from_slice(&records);
        self.first.get_or_insert(own);
        let full = FullBlock { own, dva, data, used: records.len() };
        match self.full.replace(full) {
            Some(before) => self.issue(before, &own),
            None => Ok(()),
        }
    }

    fn issue(&mut self, mut block: FullBlock, next: &LogPtr) -> Result<()> {
        let used = seal(&mut block.data, block.used, &block.own, next)?;
        self.vdevs.push(block.dva.vdev);
        let data = block.data.freeze();
        self.store.write(vec![LogWrite { dva: block.dva, birth: self.txg, data, used }])
    }

    /// Writes the last block and flushes all of them; returns the first one.
    fn end(mut self) -> Result<Option<LogPtr>> {
        if !self.room.is_empty() {
            self.advance_block()?;
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

/// Copies the old chain to the new one.
struct Copier<'a, 'b> {
    zio: &'a Zio,
    /// Records of older txgs are on disk.
    first: Txg,
    chain: NewChain<'b>,
    old: Vec<BlkPtr>,
    /// Whether the claim refers to the cloned blocks.
    shares: bool,
    /// The error that ended the walk; otherwise it stops where the first walk did.
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
            RecordBody::CloneRange(clone) if record.header.txg >= self.first => match self.shares {
                true => self.chain.put(record.bytes.to_vec()),
                false => self.chain.copy(self.zio, &clone, record.header.txg),
            },
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
    /// Writes the log of a head anew: without the ranges whose clones are on disk, and, unless
    /// the claim `shares` the blocks of the others, with their content. The blocks of the log were
    /// marked allocated before.
    ///
    /// # Errors
    /// `NoSpace`, `Limit` when the log has too much content; `Unsupported` for the other
    /// byte order; those of reading the blocks, and of writing.
    pub(super) fn unclone(
        &self,
        os: &Arc<Objset>,
        seen: &LogFindings,
        shares: bool,
    ) -> Result<Uncloned> {
        let header = log_header(&os.phys())?;
        if !shares {
            self.check_room(seen)?;
        }
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
            Copier { zio: &self.zio, first, chain, old, shares, failed, record_seq, block_seq };
        // Only as far as it was accepted.
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

    /// Checks for space for the content in the log, and once more in the files.
    fn check_room(&self, seen: &LogFindings) -> Result<()> {
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
