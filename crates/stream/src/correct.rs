//! Corrective receiving: damaged blocks of a snapshot are written again from a stream of it
//! (chapter 07 §13.7).
//!
//! # Theory
//! The snapshot exists, and does not change. For each WRITE of the stream the block at its place
//! is read. If nothing at its addresses has the right checksum, the stream's bytes are brought
//! into the form in which the block was stored: compressed by the function in the block pointer,
//! padded to its size. Only if that has the block pointer's checksum it is written to the block's
//! addresses, so a stream can do no harm, whatever it holds. zstd has many levels, and which one
//! it was is in the damaged block; so all of them are tried.
//!
//! A raw stream has encrypted blocks as they are stored; it needs no key.
//!
//! # Departures from OpenZFS
//! * A block that the stream cannot repair does not end the receive: what comes after it is
//!   repaired, too.

use std::io::Read;
use std::sync::Arc;

use base::{Buf, BufMut, Error, ErrorKind, ObjectId, Result};
use codec::compress::{Compression, ZstdLevel, compress, decompress};
use dmu::{Io, Object as DmuObject, Objset};
use ondisk::blkptr::{BlkPtr, Block, COMPRESS_OFF, Protection};
use ondisk::objtype::Byteswap;
use ondisk::{Endian, ObjType};
use zio::{ErrorEntry, Origin, Zio};

use super::reader::StreamReader;
use super::record::{Begin, Features, StreamRecord, Write};

/// What a corrective receive did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Corrected {
    /// Blocks that could not be read before, and can be now.
    pub blocks: Vec<ErrorEntry>,
    /// Bytes on disk of these, before parity.
    pub bytes: u64,
    /// Damaged blocks that the stream has, and that could not be repaired with it.
    pub failed: u64,
}

/// The most repaired blocks that are remembered.
const BLOCKS_MAX: usize = 1 << 16;

/// A snapshot that is repaired.
struct Correction<'a> {
    zio: &'a Arc<Zio>,
    objset: &'a Arc<Objset>,
    origin: Origin,
    raw: bool,
    endian: Endian,
    /// The object of the last WRITE.
    object: Option<DmuObject>,
    done: Corrected,
}

/// Reads the rest of a substream, up to and with its END, and repairs the blocks of a snapshot
/// with it. `objset` is the snapshot's, opened as stored. `is_stopped` is asked for each record.
///
/// # Errors
/// Those of reading the stream (`Checksum`, `Corrupt`, `Interrupted` if it is cut off, or
/// stopped).
pub fn correct_substream<R: Read>(
    reader: &mut StreamReader<R>,
    begin: &Begin,
    objset: &Arc<Objset>,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Corrected> {
    let none = || Error::corrupt("the snapshot has no content");
    let root = objset.root_bp();
    let place = root.as_block().ok_or_else(none)?.place();
    let features = begin.features();
    let mut correction = Correction {
        zio: objset.zio(),
        objset,
        origin: Origin::Root(objset.id(), place),
        raw: features.has(Features::RAW),
        endian: reader.endian(),
        object: None,
        done: Corrected::default(),
    };
    loop {
        let cut = || Error::new(ErrorKind::Interrupted, "the stream ends too early");
        let read = reader.next_record()?.ok_or_else(cut)?;
        if is_stopped() {
            return Err(Error::new(ErrorKind::Interrupted, "the receive was stopped"));
        }
        match read.record {
            StreamRecord::End(_) => return Ok(correction.done),
            StreamRecord::Write(r) => {
                read.record.check(features, begin.flags)?;
                let payload = Buf::copy_of(read.payload);
                correction.write(&r, &payload);
            }
            _ => {}
        }
    }
}

impl Correction<'_> {
    /// Repairs the block that a record has, if it is damaged. What is not found, or of another
    /// shape, is not this block.
    fn write(&mut self, r: &Write, payload: &Buf) {
        let Some((block, blkid)) = self.find(r) else { return };
        if self.zio.read_physical(&block).is_ok() {
            return;
        }
        let Some(good) = self.stored_form(&block, r, payload) else {
            self.done.failed += 1;
            return;
        };
        if !self.zio.correct(&block, &good, self.origin) {
            self.done.failed += 1;
            return;
        }
        self.done.bytes += block.psize.0;
        if self.done.blocks.len() < BLOCKS_MAX {
            let birth = BlkPtr::Block(block).allocation_birth().0;
            let (objset, object) = (self.objset.id(), r.object);
            self.done.blocks.push(ErrorEntry { objset, object, level: 0, blkid, birth });
        }
    }

    /// The block at a record's place.
    fn find(&mut self, r: &Write) -> Option<(Block, u64)> {
        if self.object.as_ref().is_none_or(|object| object.id().0 != r.object) {
            self.object = self.objset.object(ObjectId(r.object), Io::SCAN).ok();
        }
        let object = self.object.as_ref()?;
        let size = object.block_size();
        if r.logical_size != size || !r.offset.is_multiple_of(size) {
            return None;
        }
        let blkid = r.offset / size;
        match object.block_pointer(0, blkid, Io::WAIT).ok()? {
            BlkPtr::Block(block) if block.head.lsize.0 == size => Some((block, blkid)),
            _ => None,
        }
    }

    /// The bytes of the block as they were stored, if a record has its content.
    fn stored_form(&self, block: &Block, r: &Write, payload: &Buf) -> Option<Buf> {
        let size = block.psize.0 as usize;
        let right = |bytes: &Buf| self.zio.is_right(block, bytes);
        let fit = |bytes: &[u8]| -> Option<Buf> {
            let mut whole = BufMut::zeroed(size);
            whole.get_mut(..bytes.len())?.copy_from_slice(bytes);
            Some(whole.freeze()).filter(right)
        };
        let packed = r.compression != 0 && r.compression == block.compression;
        if packed && let Some(bytes) = fit(payload) {
            return Some(bytes);
        }
        if self.raw || block.protection != Protection::None {
            return None;
        }
        let plain = match r.compression {
            0 => payload.clone(),
            _ => {
                let mut whole = BufMut::alloc(r.logical_size as usize);
                decompress(r.compression, payload, &mut whole).ok()?;
                whole.freeze()
            }
        };
        let of = u8::try_from(r.object_type).map(ObjType).ok()?;
        if block.endian != self.endian && of.byteswap() != Byteswap::Uint8 {
            return None;
        }
        if block.compression == COMPRESS_OFF {
            return fit(&plain);
        }
        let mut out = BufMut::alloc(size);
        let mut packed = |alg: Compression| {
            let len = compress(alg, &plain, &mut out)?;
            fit(out.get(..len)?)
        };
        match Compression::from_id(block.compression)? {
            Compression::Zstd(_) => {
                ZstdLevel::all().find_map(|level| packed(Compression::Zstd(level)))
            }
            other => packed(other),
        }
    }
}
