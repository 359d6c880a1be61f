//! The walk over a snapshot: which records its stream has (chapter 07 §8.1 to §8.5).
//!
//! # Theory
//! Pre-order through the tree of the meta-dnode. Each block of dnodes that was born since the
//! source gives a record for each of its slots, and each object's blocks that were born since
//! follow its record. A subtree that is older is left out as a whole. A hole without a birth
//! says nothing about when it came to be, so it counts as new.

use std::sync::Arc;

use base::{Buf, Error, ObjectId, Result, Txg};
use codec::checksum::Checksum;
use dmu::Io;
use dmu::live::{to_little, to_little_bonus};
use ondisk::blkptr::{Block, Protection};
use ondisk::dnode::{DNODE_BLOCK_SIZE, DNODES_PER_BLOCK, Dnode, dnodes_in_block};
use ondisk::{BlkPtr, Endian, ObjType, ObjsetPhys};
use zio::Zio;

use super::queue::{ReadSize, SendRecords, SendSink};
use super::redact::RedactionList;
use super::{ResumePoint, SendSnapshot};
use crate::record::{
    Features, Free, FreeObjects, OLD_BLOCK_MAX, Object, Spill, StreamRecord, TO_THE_END, Write,
    WriteEmbedded, record_flags,
};

/// Function id of checksums that are off.
const CHECKSUM_OFF: u8 = 2;

pub(super) struct SendWalk<S> {
    pub(super) snapshot: SendSnapshot,
    pub(super) sink: S,
    /// Txg of the source.
    pub(super) min_txg: Txg,
    pub(super) features: Features,
    /// Blocks before this one, and dnodes before its object, are left out.
    pub(super) resume: Option<ResumePoint>,
    /// The last object; all if there is none.
    pub(super) until: Option<u64>,
    /// Blocks that are replaced by REDACT records.
    pub(super) redaction: Option<Arc<RedactionList>>,
    /// Blocks that the receiver lacks, however old they are.
    pub(super) lacking: Option<Arc<RedactionList>>,
}

/// An object whose blocks are sent.
pub(super) struct Sent {
    pub(super) number: u64,
    pub(super) dnode: Dnode,
}

/// What a data block becomes.
#[derive(Clone, Copy)]
pub(super) struct DataBlock {
    object: u64,
    object_type: ObjType,
    /// Bytes of a block of the object.
    size: u64,
    pub(super) offset: u64,
    to_guid: u64,
    features: Features,
}

impl<S: SendSink> SendWalk<S> {
    /// Finds all records but BEGIN and END.
    ///
    /// # Errors
    /// Those of reading metadata and of the sink.
    pub(super) fn walk(&self) -> Result<()> {
        let root = &self.snapshot.root;
        let lacks = self.lacking.as_ref().is_some_and(|list| !list.blocks().is_empty());
        if root.is_hole() || (root.birth() <= self.min_txg && !lacks) {
            return Ok(());
        }
        let block = self.read(root)?;
        let phys = ObjsetPhys::parse(&block, root.endian())?;
        let meta = Sent { number: 0, dnode: phys.meta_dnode };
        self.tree(&meta)
    }

    /// Metadata goes through the cache: it will be read again for the next snapshot.
    fn read(&self, bp: &BlkPtr) -> Result<Buf> {
        self.snapshot.zio.read(bp, Io::WAIT)
    }

    fn is_new(&self, bp: &BlkPtr) -> bool {
        bp.birth() > self.min_txg || (bp.is_hole() && bp.birth() == Txg::ZERO)
    }

    /// The first object that is sent.
    fn first_object(&self) -> u64 {
        self.resume.map_or(0, |point| point.object)
    }

    /// Whether all of these data blocks of an object were received.
    fn is_before_resume(&self, of: &Sent, first: u64, count: u64) -> bool {
        let Some(point) = self.resume.filter(|point| point.object == of.number) else {
            return false;
        };
        let next = point.offset / u64::from(of.dnode.data_block_size.max(1));
        first.saturating_add(count) <= next
    }

    fn tree(&self, of: &Sent) -> Result<()> {
        let level = of.dnode.levels.saturating_sub(1);
        for (i, bp) in of.dnode.blkptrs.iter().enumerate() {
            self.block(of, bp, level, i as u64)?;
        }
        Ok(())
    }

    /// Whether the receiver lacks one of these data blocks of an object.
    fn is_lacking(&self, of: &Sent, first: u64, count: u64) -> bool {
        let Some(list) = &self.lacking else { return false };
        match of.number {
            0 => {
                let objects = |blocks: u64| blocks.saturating_mul(DNODES_PER_BLOCK);
                list.has_object_in(objects(first), objects(count))
            }
            number => list.intersects(number, first, count),
        }
    }

    fn block(&self, of: &Sent, bp: &BlkPtr, level: u8, blkid: u64) -> Result<()> {
        // Data blocks below, and the number of the first one.
        let shift = of.dnode.epb_shift() * u32::from(level);
        let count = 1u64.checked_shl(shift).unwrap_or(u64::MAX);
        let Some(first) = blkid.checked_mul(count) else { return Ok(()) };
        if !self.is_new(bp) && !self.is_lacking(of, first, count) {
            return Ok(());
        }
        if of.number == 0 {
            return self.meta_block(of, bp, level, first, count);
        }
        if self.is_before_resume(of, first, count) {
            return Ok(());
        }
        let past = !of.dnode.object_type.is_metadata() && first > of.dnode.max_blkid;
        if past {
            // The record of the object's tail covers it.
            return Ok(());
        }
        if bp.is_hole() {
            return self.redacted_hole(of, first, count, self.is_new(bp));
        }
        match level {
            0 => self.data(of, bp, blkid),
            _ => self.indirect(of, bp, level, blkid),
        }
    }

    fn indirect(&self, of: &Sent, bp: &BlkPtr, level: u8, blkid: u64) -> Result<()> {
        let head = bp.head();
        if head.level != level || head.lsize.0 != of.dnode.block_size(level) {
            let e = Error::corrupt("block pointer of the wrong level or size for its position");
            return Err(e.in_object(ObjectId(of.number)).at_block(level, blkid));
        }
        let block = self.read(bp)?;
        let count = 1usize << of.dnode.epb_shift();
        let pointers: Result<Vec<BlkPtr>> =
            (0..count).map(|i| BlkPtr::parse_nth(&block, i, bp.endian())).collect();
        let pointers = pointers.map_err(|e| e.in_object(ObjectId(of.number)))?;
        if level > 1 || of.number == 0 {
            // The next blocks of metadata come while this thread waits for the first.
            let next: Vec<BlkPtr> =
                pointers.iter().filter(|bp| !bp.is_hole() && self.is_new(bp)).copied().collect();
            self.snapshot.zio.read_ahead(&next, Io::PRESCIENT);
        }
        for (i, child) in pointers.iter().enumerate() {
            self.block(of, child, level - 1, blkid * count as u64 + i as u64)?;
        }
        Ok(())
    }

    /// A block of the tree of the meta-dnode.
    fn meta_block(&self, of: &Sent, bp: &BlkPtr, level: u8, first: u64, count: u64) -> Result<()> {
        let end = DNODES_PER_BLOCK.saturating_mul(of.dnode.max_blkid.saturating_add(1));
        let object = first.saturating_mul(DNODES_PER_BLOCK);
        let behind = object.saturating_add(count.saturating_mul(DNODES_PER_BLOCK));
        let last = self.until.unwrap_or(u64::MAX);
        if behind <= self.first_object() || object > last {
            return Ok(());
        }
        let end = end.min(last.saturating_add(1));
        if bp.is_hole() {
            let count = count.saturating_mul(DNODES_PER_BLOCK).min(end.saturating_sub(object));
            // There is no object 0.
            let (object, count) =
                if object == 0 { (1, count.saturating_sub(1)) } else { (object, count) };
            return if count == 0 { Ok(()) } else { self.free_objects(object, count) };
        }
        if level > 0 {
            return self.indirect(of, bp, level, first / count);
        }
        if object >= end {
            return Ok(());
        }
        let block = match self.is_raw() {
            true => {
                self.object_range(object, bp)?;
                self.snapshot.zio.read_dnodes(bp, Io::WAIT)?
            }
            false => self.read(bp)?,
        };
        if block.len() != DNODE_BLOCK_SIZE {
            return Err(Error::corrupt("a block of dnodes has another size"));
        }
        // There is no object 0, and a resumed stream begins with its object.
        let mut next = u64::from(object == 0).max(self.first_object().saturating_sub(object));
        for (slot, dnode) in dnodes_in_block(&block, bp.endian()) {
            let number = object + slot;
            if number < self.first_object() {
                continue;
            }
            if number > last {
                break;
            }
            let dnode = dnode.map_err(|e| e.in_object(ObjectId(number)))?;
            if slot > next {
                self.free_objects(object + next, slot - next)?;
            }
            next = slot + u64::from(dnode.slots.max(1));
            self.object(&Sent { number, dnode }, (&block, slot))?;
        }
        let rest = DNODES_PER_BLOCK.min(end - object).saturating_sub(next);
        if rest > 0 { self.free_objects(object + next, rest) } else { Ok(()) }
    }

    fn free_objects(&self, first: u64, count: u64) -> Result<()> {
        let record = FreeObjects { first, count, to_guid: self.snapshot.guid };
        self.sink.add(StreamRecord::FreeObjects(record), Buf::default())
    }

    /// The encrypted blocks go out as they are stored.
    pub(super) fn is_raw(&self) -> bool {
        self.features.has(Features::RAW)
    }

    fn object(&self, of: &Sent, place: (&Buf, u64)) -> Result<()> {
        let dnode = &of.dnode;
        let size = u64::from(dnode.data_block_size);
        let sent =
            if self.features.has(Features::LARGE_BLOCKS) { size } else { size.min(OLD_BLOCK_MAX) };
        let record = Object {
            object: of.number,
            object_type: dnode.object_type.0.into(),
            bonus_type: dnode.bonus_type.0.into(),
            block_size: sent as u32,
            checksum: dnode.checksum,
            compress: dnode.compression,
            slots: dnode.slots,
            flags: if dnode.spill.is_some() { record_flags::OBJECT_SPILL } else { 0 },
            to_guid: self.snapshot.guid,
            ..Object::default()
        };
        let (record, bonus) = match self.is_raw() {
            true => self.raw_object(record, dnode, place)?,
            false => {
                let bonus = to_little_bonus(dnode);
                let mut bonus = bonus.map_err(|e| e.in_object(ObjectId(of.number)))?;
                let bonus_len = bonus.len() as u32;
                bonus.resize(bonus.len().next_multiple_of(8), 0);
                (Object { bonus_len, ..record }, Buf::copy_of(&bonus))
            }
        };
        self.sink.add(StreamRecord::Object(record), bonus)?;
        let tail = dnode.max_blkid.saturating_add(1).saturating_mul(size);
        self.free(of.number, tail, TO_THE_END)?;
        match &dnode.spill {
            Some(bp) if bp.birth() <= self.min_txg => {
                self.spill(of, bp, record_flags::SPILL_UNMODIFIED)?;
                self.tree(of)
            }
            Some(bp) => {
                self.tree(of)?;
                self.spill(of, bp, 0)
            }
            None => self.tree(of),
        }
    }

    fn free(&self, object: u64, offset: u64, length: u64) -> Result<()> {
        let record = Free { object, offset, length, to_guid: self.snapshot.guid };
        self.sink.add(StreamRecord::Free(record), Buf::default())
    }

    /// A hole, of which parts may be listed: they are left out as data is.
    fn redacted_hole(&self, of: &Sent, first: u64, count: u64, is_new: bool) -> Result<()> {
        let Some(list) = &self.redaction else { return self.hole(of, first, count) };
        let (mut at, last) = (first, first.saturating_add(count));
        for (listed, count) in list.runs_in(of.number, first, count) {
            if at < listed {
                self.hole(of, at, listed - at)?;
            }
            if is_new {
                self.redact(of, listed, count)?;
            }
            at = listed.saturating_add(count);
        }
        if at < last { self.hole(of, at, last - at) } else { Ok(()) }
    }

    fn redact(&self, of: &Sent, first: u64, count: u64) -> Result<()> {
        let size = u64::from(of.dnode.data_block_size);
        let range = first.checked_mul(size).zip(count.checked_mul(size));
        let Some((offset, length)) = range else { return Ok(()) };
        let to_guid = self.snapshot.guid;
        let record = Free { object: of.number, offset, length, to_guid };
        self.sink.add(StreamRecord::Redact(record), Buf::default())
    }

    fn hole(&self, of: &Sent, first: u64, count: u64) -> Result<()> {
        let size = u64::from(of.dnode.data_block_size);
        let Some(offset) = first.checked_mul(size) else { return Ok(()) };
        // A whole number of blocks, or everything.
        let length = count.checked_mul(size).filter(|length| offset.checked_add(*length).is_some());
        self.free(of.number, offset, length.unwrap_or(TO_THE_END))
    }

    fn spill(&self, of: &Sent, bp: &BlkPtr, flags: u8) -> Result<()> {
        if self.is_raw() {
            return self.raw_spill(of, bp, flags);
        }
        let (bp, number, to_guid) = (*bp, of.number, self.snapshot.guid);
        let (zio, bonus_type) = (Arc::clone(&self.snapshot.zio), of.dnode.bonus_type);
        let read = move || {
            let read = zio.read(&bp, Io::SCAN);
            let content = read.and_then(|plain| to_little(bonus_type, plain, bp.endian()));
            let content = content.map_err(|e| e.in_object(ObjectId(number)))?;
            let length = content.len() as u64;
            let record = Spill { object: number, length, to_guid, flags, ..Spill::default() };
            Ok(vec![(StreamRecord::Spill(record), content)])
        };
        let size = ReadSize { records: 1, bytes: bp.head().lsize.0 };
        self.sink.add_read(size, Box::new(read))
    }

    fn data(&self, of: &Sent, bp: &BlkPtr, blkid: u64) -> Result<()> {
        let size = u64::from(of.dnode.data_block_size);
        let Some(offset) = blkid.checked_mul(size) else { return Ok(()) };
        let listed = self.redaction.as_ref();
        let listed = listed.is_some_and(|list| list.intersects(of.number, blkid, 1));
        // What a redacted dataset lacks, its copies lack, too.
        if listed || matches!(bp, BlkPtr::Redacted(_)) {
            // What is old is lacking there already.
            return if self.is_new(bp) { self.redact(of, blkid, 1) } else { Ok(()) };
        }
        let block = DataBlock {
            object: of.number,
            object_type: of.dnode.object_type,
            size,
            offset,
            to_guid: self.snapshot.guid,
            features: self.features,
        };
        if let BlkPtr::Embedded(_) = bp
            && let Some((record, payload)) = block.embedded(bp)
        {
            return self.sink.add(record, payload);
        }
        let payload = block.payload(bp);
        let (bp, zio) = (*bp, Arc::clone(&self.snapshot.zio));
        let read = move || {
            block
                .read(&zio, &bp)
                .map_err(|e| e.in_object(ObjectId(block.object)).at_block(0, blkid))
        };
        self.sink.add_read(payload, Box::new(read))
    }
}

impl DataBlock {
    /// The record of an embedded block that stays so (§8.3, rule 1).
    fn embedded(&self, bp: &BlkPtr) -> Option<(StreamRecord, Buf)> {
        let BlkPtr::Embedded(embedded) = bp else { return None };
        let allowed = self.features.has(Features::EMBED_DATA)
            && self.features.allows(embedded.compression)
            && embedded.endian == Endian::Little;
        if !allowed {
            return None;
        }
        let payload = embedded.payload();
        let record = WriteEmbedded {
            object: self.object,
            offset: self.offset,
            length: self.size,
            to_guid: self.to_guid,
            compression: embedded.compression,
            embedded_type: 0,
            logical_size: embedded.head.lsize.0 as u32,
            physical_size: payload.len() as u32,
        };
        let mut padded = payload.to_vec();
        padded.resize(padded.len().next_multiple_of(8), 0);
        Some((StreamRecord::WriteEmbedded(record), Buf::copy_of(&padded)))
    }

    fn splits(&self) -> bool {
        self.size > OLD_BLOCK_MAX && !self.features.has(Features::LARGE_BLOCKS)
    }

    /// What [`DataBlock::read`] yields.
    fn payload(&self, bp: &BlkPtr) -> ReadSize {
        match bp {
            BlkPtr::Block(block) if self.is_raw() || self.stays_compressed(block) => {
                ReadSize { records: 1, bytes: block.psize.0 }
            }
            _ if self.splits() => {
                ReadSize { records: self.size.div_ceil(OLD_BLOCK_MAX), bytes: self.size }
            }
            _ => ReadSize { records: 1, bytes: self.size },
        }
    }

    fn is_raw(&self) -> bool {
        self.features.has(Features::RAW)
    }

    /// Reads the block: one record, or several of 128 KiB.
    fn read(&self, zio: &Zio, bp: &BlkPtr) -> Result<SendRecords> {
        if self.is_raw() {
            return self.read_raw(zio, bp);
        }
        if let BlkPtr::Block(block) = bp
            && self.stays_compressed(block)
        {
            let faults = match zio.read_physical(block) {
                Ok(stored) => {
                    let record = Write {
                        compression: block.compression,
                        compressed_size: block.psize.0,
                        ..self.record(bp, self.offset, self.size)
                    };
                    return Ok(vec![(StreamRecord::Write(record), stored)]);
                }
                Err(faults) => faults,
            };
            // The ordinary read reports what is wrong.
            drop(faults);
        }
        let plain = to_little(self.object_type, zio.read(bp, Io::SCAN)?, bp.endian())?;
        if !self.splits() {
            let record = self.record(bp, self.offset, self.size);
            return Ok(vec![(StreamRecord::Write(record), plain)]);
        }
        let piece = OLD_BLOCK_MAX as usize;
        let pieces = (0..plain.len()).step_by(piece).map(|at| {
            let content = plain.slice(at..plain.len().min(at + piece));
            let record = self.record(bp, self.offset + at as u64, content.len() as u64);
            (StreamRecord::Write(record), content)
        });
        Ok(pieces.collect())
    }

    /// §8.3, rule 3.
    fn stays_compressed(&self, block: &Block) -> bool {
        self.features.has(Features::COMPRESSED)
            && block.compression != ondisk::blkptr::COMPRESS_OFF
            && !self.object_type.is_metadata()
            && block.endian == Endian::Little
            && block.protection == Protection::None
            && self.features.allows(block.compression)
            && !self.splits()
    }

    /// A record with the key fields of its block pointer (§8.3, rule 6).
    pub(super) fn record(&self, bp: &BlkPtr, offset: u64, logical_size: u64) -> Write {
        let plain = Write {
            object: self.object,
            object_type: self.object_type.0.into(),
            offset,
            logical_size,
            to_guid: self.to_guid,
            checksum_type: CHECKSUM_OFF,
            ..Write::default()
        };
        let BlkPtr::Block(block) = bp else { return plain };
        let decrypted = block.protection == Protection::Encrypted && !self.is_raw();
        if self.splits() || decrypted {
            return plain;
        }
        let strong = Checksum::from_id(block.checksum).is_some_and(Checksum::is_dedup_strong);
        Write {
            checksum_type: block.checksum,
            flags: if strong { record_flags::CHECKSUM_DEDUP } else { 0 },
            key_checksum: block.words,
            key_prop: ((block.head.lsize.0 >> 9) - 1)
                | ((block.psize.0 >> 9) - 1) << 16
                | u64::from(block.compression) << 32
                | u64::from(block.protection != Protection::None) << 39,
            ..plain
        }
    }
}
