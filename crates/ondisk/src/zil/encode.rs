//! Records, blocks and the header as Cenote writes them: little endian (chapter 06 §16,
//! §17).
//!
//! # Invariants
//! * A parsed record that is encoded and parsed again is equal.
//! * A sealed block is accepted by [`super::LogBlock::parse`] only under the pointer
//!   for which it was sealed.

use base::{Dva, Error, Lsize, ObjectId, Psize, Result, Txg};
use codec::checksum::Checksum;
use codec::checksum::embedded::compute_embedded;

use super::record::{CloneRange, Create, Names, RecordBody, SetAttr, Whiteout, Write, Xvattr};
use super::{CHAIN_SIZE, ECK_AT, LogPtr, NEXT_AT, NUSED_AT, WORDS_AT, ZILOG2_UNIT, ZilHeader};
use crate::blkptr::{BLKPTR_SIZE, BlkPtr, Block, COMPRESS_OFF, Head};
use crate::endian::Endian;
use crate::objset::ZIL_HEADER_SIZE;
use crate::objtype::ObjType;

/// Offset of a record's sequence number.
pub const RECORD_SEQ_AT: usize = 24;
/// Bytes of a TX_WRITE record before its data.
pub const WRITE_HEADER: usize = 192;

fn object(id: ObjectId, slots: u32) -> u64 {
    id.0 | u64::from(slots.saturating_sub(1)) << 56
}

/// Appends a record to a buffer.
struct RecordWriter<'a>(&'a mut Vec<u8>);

impl RecordWriter<'_> {
    fn words(&mut self, words: &[u64]) {
        self.0.extend(words.iter().flat_map(|w| w.to_le_bytes()));
    }

    fn string(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        self.0.push(0);
    }

    fn xvattr(&mut self, x: &Xvattr) {
        self.0.extend(3u32.to_le_bytes());
        self.0.extend(x.requested.iter().flat_map(|w| w.to_le_bytes()));
        self.words(&[x.values, x.crtime[0], x.crtime[1]]);
        self.0.extend(x.scanstamp);
    }

    fn create(&mut self, c: &Create<'_>) {
        self.words(&[c.directory.0, object(c.object, c.dnode_slots), c.mode, c.uid, c.gid]);
        self.words(&[c.generation, c.crtime[0], c.crtime[1], c.rdev]);
        if let Some((info, aces)) = &c.acl {
            let bytes = (aces.len() as u64).saturating_sub(8 * info.fuids);
            self.words(&[info.count, c.domains.len() as u64, info.fuids, bytes, info.flags]);
        }
        if let Some(x) = &c.xvattr {
            self.xvattr(x);
        }
        if let Some((_, aces)) = &c.acl {
            self.0.extend_from_slice(aces);
        }
        c.domains.iter().for_each(|d| self.string(d));
        self.string(c.name);
        if let Some(target) = c.target {
            self.string(target);
        }
    }

    fn write(&mut self, w: &Write<'_>) -> Option<()> {
        self.words(&[w.object.0, w.offset, w.length, 0]);
        self.0.extend(w.block.unwrap_or_default().encode()?);
        self.0.extend_from_slice(w.data.unwrap_or_default());
        Some(())
    }

    fn setattr(&mut self, s: &SetAttr<'_>) {
        self.words(&[s.object.0, s.mask, s.mode, s.uid, s.gid, s.size]);
        self.words(&[s.atime[0], s.atime[1], s.mtime[0], s.mtime[1]]);
        if let Some(x) = &s.xvattr {
            self.xvattr(x);
        }
        s.domains.iter().for_each(|d| self.string(d));
    }

    fn names(&mut self, n: &Names<'_>) {
        self.string(n.from);
        self.string(n.to);
    }

    fn whiteout(&mut self, n: &Names<'_>, w: &Whiteout) {
        self.words(&[n.from_dir.0, n.to_dir.0, object(w.object, w.dnode_slots), w.mode, w.uid]);
        self.words(&[w.gid, w.generation, w.crtime[0], w.crtime[1], w.rdev]);
        self.names(n);
    }

    fn clone_range(&mut self, c: &CloneRange<'_>) -> Option<()> {
        let pointers = c.pointers();
        self.words(&[c.object.0, c.offset, c.length, c.block_size, pointers.len() as u64]);
        for bp in pointers {
            self.0.extend(bp.ok()?.encode()?);
        }
        Some(())
    }
}

impl RecordBody<'_> {
    /// The whole record, of type `txtype`, as it is in a block: little-endian, padded
    /// to words. Its sequence number is 0 and is set when the record is placed
    /// ([`RECORD_SEQ_AT`]).
    ///
    /// # Errors
    /// `Invalid` for a type that does not match the body, or a pointer that cannot be
    /// stored.
    pub fn encode(&self, txtype: u8, txg: Txg) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(256);
        self.encode_into(&mut bytes, txtype, txg)?;
        Ok(bytes)
    }

    /// As [`RecordBody::encode`], appending to `bytes`, which an error leaves
    /// unchanged.
    ///
    /// # Errors
    /// As [`RecordBody::encode`].
    pub fn encode_into(&self, bytes: &mut Vec<u8>, txtype: u8, txg: Txg) -> Result<()> {
        let start = bytes.len();
        self.put(&mut RecordWriter(bytes), txtype, txg).inspect_err(|_| bytes.truncate(start))?;
        let len = (bytes.len() - start).next_multiple_of(8);
        bytes.resize(start + len, 0);
        bytes[start + 8..start + 16].copy_from_slice(&(len as u64).to_le_bytes());
        Ok(())
    }

    fn put(&self, out: &mut RecordWriter<'_>, txtype: u8, txg: Txg) -> Result<()> {
        let odd = || Error::invalid("a record of another type than its content");
        out.words(&[u64::from(txtype), 0, txg.0, 0]);
        match (self, txtype) {
            (RecordBody::Create(c), 1..=4 | 14..=19) => out.create(c),
            (RecordBody::Remove { directory, name }, 5 | 6) => {
                out.words(&[directory.0]);
                out.string(name);
            }
            (RecordBody::Link { directory, object, name }, 7) => {
                out.words(&[directory.0, object.0]);
                out.string(name);
            }
            (RecordBody::Rename(n), 8 | 22) => {
                out.words(&[n.from_dir.0, n.to_dir.0]);
                out.names(n);
            }
            (RecordBody::RenameWhiteout(n, w), 23) => out.whiteout(n, w),
            (RecordBody::Write(w), 9) | (RecordBody::Write2(w), 20) => {
                out.write(w).ok_or_else(odd)?
            }
            (RecordBody::Truncate { object, offset, length }, 10) => {
                out.words(&[object.0, *offset, *length]);
            }
            (RecordBody::SetAttr(s), 11) => out.setattr(s),
            (RecordBody::Acl { object, info, aces, .. }, 12) => {
                out.words(&[object.0, info.count]);
                out.0.extend_from_slice(aces);
            }
            (RecordBody::Acl { object, info, aces, domains }, 13) => {
                let bytes = (aces.len() as u64).saturating_sub(8 * info.fuids);
                out.words(&[object.0, info.count, domains.len() as u64, info.fuids, bytes]);
                out.words(&[info.flags]);
                out.0.extend_from_slice(aces);
                domains.iter().for_each(|d| out.string(d));
            }
            (RecordBody::SetSaXattr { object, name, value }, 21) => {
                out.words(&[object.0, value.map_or(0, <[u8]>::len) as u64]);
                out.string(name);
                out.0.extend_from_slice(value.unwrap_or_default());
            }
            (RecordBody::CloneRange(c), 24) => out.clone_range(c).ok_or_else(odd)?,
            _ => return Err(odd()),
        }
        Ok(())
    }
}

impl LogPtr {
    /// A pointer to a block of `size` bytes at `dva`, allocated in txg `birth`.
    pub fn to(dva: Dva, size: u64, birth: Txg, checksum: Checksum, verifier: [u64; 4]) -> LogPtr {
        let head = Head { object_type: ObjType::INTENT_LOG, level: 0, lsize: Lsize(size), birth };
        let mut block = Block::new(head, Psize(size), COMPRESS_OFF, &[dva]);
        block.checksum = checksum.id();
        block.fill = 0;
        block.words = verifier;
        LogPtr { bp: BlkPtr::Block(block), verifier }
    }

    /// The pointer with its verifier, as in blocks and the header; a hole has one, too.
    pub fn encode(&self) -> [u8; BLKPTR_SIZE] {
        let mut raw = self.bp.encode().unwrap_or([0; BLKPTR_SIZE]);
        for (chunk, word) in raw[WORDS_AT..].chunks_exact_mut(8).zip(self.verifier) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        raw
    }

    /// A pointer that ends the chain, or an empty pointer of a header.
    pub fn end(verifier: [u64; 4]) -> LogPtr {
        LogPtr { bp: BlkPtr::default(), verifier }
    }

    /// The verifier of the block after this one.
    pub fn next_verifier(&self) -> [u64; 4] {
        let [a, b, c, seq] = self.verifier;
        [a, b, c, seq.wrapping_add(1)]
    }
}

impl ZilHeader {
    /// The header's bytes in the object set block.
    pub fn encode(&self) -> [u8; ZIL_HEADER_SIZE] {
        let mut out = [0; ZIL_HEADER_SIZE];
        let mut put = |at: usize, word: u64| {
            out[at..at + 8].copy_from_slice(&word.to_le_bytes());
        };
        put(0, self.claim_txg.0);
        put(8, self.replay_seq);
        put(144, self.claim_blk_seq);
        put(152, self.flags);
        put(160, self.claim_lr_seq);
        out[16..16 + BLKPTR_SIZE].copy_from_slice(&self.log.encode());
        out
    }
}

/// Completes a block for the pointer `own`. `block` is the whole block, with `used`
/// bytes of records in place ([`records_at`]); `next` follows it. Returns the number of
/// bytes from the start that must be written; the rest may be anything.
///
/// # Errors
/// `Invalid` when they do not fit, or `own` is not a pointer to a log block.
pub fn seal(block: &mut [u8], used: usize, own: &LogPtr, next: &LogPtr) -> Result<usize> {
    let odd = || Error::invalid("this cannot be an intent log block");
    let checksum = own.bp.as_block().and_then(|b| Checksum::from_id(b.checksum));
    let checksum = checksum.ok_or_else(odd)?;
    let room = block.len().checked_sub(CHAIN_SIZE).ok_or_else(odd)?;
    if used > room || next.verifier != own.next_verifier() {
        return Err(odd());
    }
    let (at, nused) = match checksum {
        Checksum::Zilog2 => (0, CHAIN_SIZE + used),
        Checksum::Zilog => (room, used),
        _ => return Err(odd()),
    };
    let covered = match checksum {
        Checksum::Zilog2 => nused.next_multiple_of(ZILOG2_UNIT).min(block.len()),
        _ => block.len(),
    };
    let end = if at == 0 { covered } else { room };
    block[if at == 0 { nused } else { used }..end].fill(0);
    let chain = &mut block[at..at + CHAIN_SIZE];
    chain.fill(0);
    chain[NEXT_AT..NEXT_AT + BLKPTR_SIZE].copy_from_slice(&next.encode());
    chain[NUSED_AT..NUSED_AT + 8].copy_from_slice(&Endian::Little.bytes_of(nused as u64));
    compute_embedded(checksum, &mut block[..covered], at + ECK_AT, own.verifier)
        .map_err(|_| odd())?;
    Ok(covered)
}

/// Offset of the records in a block with this checksum.
pub fn records_at(checksum: Checksum) -> usize {
    if checksum == Checksum::Zilog2 { CHAIN_SIZE } else { 0 }
}
