//! Raw streams: encrypted blocks as they are stored (chapter 07 §8.3, rule 2).
//!
//! # Theory
//! No key is needed. Dnode blocks have their cores in the clear, so the walk is that of any
//! stream; bonus areas and data go out as ciphertext, with the salt, IV and MAC of their block
//! pointers. The shape of each dnode goes along, because MACs depend on it.

use std::sync::Arc;

use base::{Buf, Error, ObjectId, Result};
use ondisk::blkptr::Block;
use ondisk::dnode::{DNODE_SIZE, Dnode};
use ondisk::{BlkPtr, Endian};
use zio::Zio;

use super::queue::{ReadSize, SendRecords, SendSink};
use super::walk::{DataBlock, SendWalk, Sent};
use crate::record::{Object, ObjectRange, Spill, StreamRecord, Write, record_flags};

/// Bytes of a dnode before its block pointers, and of a block pointer.
const CORE: usize = 64;
const BLKPTR: usize = 128;
/// Dnodes of a block.
const DNODES: u64 = 32;

/// The flag of content of the other byte order.
fn swapped(endian: Endian) -> u8 {
    if endian == Endian::Big { record_flags::RAW_BYTESWAP } else { 0 }
}

/// The block's bytes as stored.
fn stored(zio: &Zio, block: &Block) -> Result<Buf> {
    zio.read_physical(block).map_err(|faults| {
        let none = || Error::bug("a block without addresses");
        faults.into_iter().next().map_or_else(none, |fault| fault.error)
    })
}

/// A pointer of an encrypted dataset to a block.
pub(super) fn raw_block(bp: &BlkPtr) -> Result<&Block> {
    match bp {
        BlkPtr::Block(block) => Ok(block),
        _ => Err(Error::corrupt("an encrypted dataset has a block without a MAC")),
    }
}

impl<S: SendSink> SendWalk<S> {
    /// The parameters of a block of dnodes.
    pub(super) fn object_range(&self, first: u64, bp: &BlkPtr) -> Result<()> {
        let params = raw_block(bp)?.seal();
        let record = ObjectRange {
            first,
            slots: DNODES,
            to_guid: self.snapshot.guid,
            salt: params.salt,
            iv: params.iv,
            mac: params.mac,
            flags: swapped(bp.endian()),
        };
        self.sink.add(StreamRecord::ObjectRange(record), Buf::default())
    }

    /// Completes an object's record, and returns its bonus area, as stored: `block` has the
    /// dnode in that slot.
    pub(super) fn raw_object(
        &self,
        record: Object,
        dnode: &Dnode,
        (block, slot): (&Buf, u64),
    ) -> Result<(Object, Buf)> {
        let from = slot as usize * DNODE_SIZE + CORE + dnode.blkptrs.len() * BLKPTR;
        let spill = if dnode.spill.is_some() { BLKPTR } else { 0 };
        let end = (slot as usize + usize::from(dnode.slots)) * DNODE_SIZE - spill;
        let area = match dnode.bonus.is_empty() {
            true => Buf::default(),
            false if from <= end && end <= block.len() => block.slice(from..end),
            false => return Err(Error::corrupt("invalid dnode: bonus area")),
        };
        let record = Object {
            bonus_len: dnode.bonus.len() as u32,
            raw_bonus_len: area.len() as u32,
            indirect_shift: dnode.indirect_shift,
            levels: dnode.levels,
            pointers: dnode.blkptrs.len() as u8,
            max_block: dnode.max_blkid,
            ..record
        };
        Ok((record, area))
    }

    pub(super) fn raw_spill(&self, of: &Sent, bp: &BlkPtr, flags: u8) -> Result<()> {
        let (block, number) = (*raw_block(bp)?, of.number);
        let (zio, to_guid) = (Arc::clone(&self.snapshot.zio), self.snapshot.guid);
        let read = move || {
            let content = stored(&zio, &block).map_err(|e| e.in_object(ObjectId(number)))?;
            let params = block.seal();
            let record = Spill {
                object: number,
                length: block.head.lsize.0,
                to_guid,
                flags: flags | swapped(block.endian),
                compression: block.compression,
                compressed_size: block.psize.0,
                salt: params.salt,
                iv: params.iv,
                mac: params.mac,
                ..Spill::default()
            };
            Ok(vec![(StreamRecord::Spill(record), content)])
        };
        let size = ReadSize { records: 1, bytes: block.psize.0 };
        self.sink.add_read(size, Box::new(read))
    }
}

impl DataBlock {
    /// Reads the block of a raw stream.
    pub(super) fn read_raw(&self, zio: &Zio, bp: &BlkPtr) -> Result<SendRecords> {
        let block = raw_block(bp)?;
        let (content, params) = (stored(zio, block)?, block.seal());
        let record = self.record(bp, self.offset, block.head.lsize.0);
        let record = Write {
            flags: record.flags | swapped(block.endian),
            compression: block.compression,
            compressed_size: block.psize.0,
            salt: params.salt,
            iv: params.iv,
            mac: params.mac,
            ..record
        };
        Ok(vec![(StreamRecord::Write(record), content)])
    }
}
