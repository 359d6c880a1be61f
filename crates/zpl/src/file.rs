//! The content of files and the targets of symbolic links.

use std::ops::Range;
use std::sync::Arc;

use base::{Buf, Error, ErrorKind, ObjectId, Result};
use dmu::{Caching, Copies, Extent, Io, Mode, Object};
use ondisk::objtype::ObjType;
use ondisk::sa::ZplAttr;
use ondisk::znode::FileType;

use crate::attrs::{Attrs, legacy};
use crate::fs::FileSystem;

/// Bytes of a target that a legacy znode may keep in a data block.
const TARGET_MAX: u64 = 65_535;

/// The target of [`FileSystem::seek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The next byte of data.
    Data,
    /// The next hole; the end of the file counts as one.
    Hole,
}

/// An open regular file: its object, its size and the predictor of its reader.
#[derive(Debug)]
pub struct File {
    object: Object,
    size: u64,
    zfetch: dmu::Zfetch,
    counters: Option<Arc<kstat::IoCounters>>,
}

impl File {
    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Its object.
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// Bytes from `offset`, at most `len`, up to the end of the block, without copying;
    /// empty at or behind the end.
    ///
    /// # Errors
    /// Those of reading.
    pub fn borrow(&self, offset: u64, len: usize, io: Io) -> Result<Buf> {
        if offset >= self.size {
            return Ok(Buf::default());
        }
        let bs = self.object.block_size();
        let skip = offset % bs;
        let take = (bs - skip).min(self.size - offset).min(len as u64);
        let range = skip as usize..(skip + take) as usize;
        let piece = self.read_ahead(offset, offset / bs, range, io)?;
        if let Some(counters) = &self.counters {
            counters.read(take);
        }
        Ok(piece)
    }

    /// [`Object::read_part`] with a report to the predictor. The report precedes a read
    /// that must wait for a device, so that prefetches overlap with it.
    fn read_ahead(&self, offset: u64, blkid: u64, range: Range<usize>, io: Io) -> Result<Buf> {
        if io.caching == Caching::Bypass {
            return self.object.read_part(blkid, range, io);
        }
        let len = range.len() as u64;
        match self.object.read_part(blkid, range.clone(), io.from_memory()) {
            Err(e) if e.kind() == ErrorKind::WouldBlock && io.mode == Mode::MayWait => {
                self.zfetch.advance(&self.object, offset, len, true, false);
                self.object.read_part(blkid, range, io)
            }
            read => {
                if read.is_ok() {
                    self.zfetch.advance(&self.object, offset, len, false, false);
                }
                read
            }
        }
    }

    /// Copies bytes from `offset` into `out`; returns how many there were.
    ///
    /// # Errors
    /// Those of reading.
    pub fn read_at(&self, offset: u64, out: &mut [u8], io: Io) -> Result<usize> {
        let io = Io { copies: Copies::Yes, ..io };
        let mut done = 0;
        while done < out.len() {
            let piece = self.borrow(offset.saturating_add(done as u64), out.len() - done, io)?;
            if piece.is_empty() {
                break;
            }
            out[done..done + piece.len()].copy_from_slice(&piece);
            done += piece.len();
        }
        Ok(done)
    }
}

impl FileSystem {
    /// Opens a regular file for many reads.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    pub fn open_file(&self, id: ObjectId, io: Io) -> Result<File> {
        let (object, attrs) = self.read_consistent(id, io, || self.regular(id, io))?;
        let (zfetch, counters) = (self.zfetch().open(), self.counters().cloned());
        Ok(File { object, size: attrs.size, zfetch, counters })
    }

    pub(crate) fn regular(&self, id: ObjectId, io: Io) -> Result<(Object, Attrs)> {
        let object = self.object(id, io)?;
        let attrs = self.attrs_of(&object, io)?;
        let kind = match (object.object_type(), attrs.kind) {
            (ObjType::PLAIN_FILE_CONTENTS, FileType::Regular) => return Ok((object, attrs)),
            (ObjType::DIRECTORY_CONTENTS, _) => ErrorKind::IsDir,
            _ => ErrorKind::Invalid,
        };
        Err(Error::new(kind, "not a regular file").in_object(id))
    }

    /// Bytes of a regular file from `offset`, clipped to its size, as slices of
    /// cached blocks. One call yields at most 64 MiB; nothing at or behind the end.
    ///
    /// # Errors
    /// `IsDir`; `Invalid` for other files without content; those of reading.
    pub fn read(&self, id: ObjectId, offset: u64, len: usize, io: Io) -> Result<Vec<Buf>> {
        self.read_consistent(id, io, || self.read_now(id, offset, len, io))
    }

    fn read_now(&self, id: ObjectId, offset: u64, len: usize, io: Io) -> Result<Vec<Buf>> {
        let (object, attrs) = self.regular(id, io)?;
        let passes = self.drops_behind() && io.caching == Caching::Keep;
        let io = if passes { Io { caching: Caching::Remember, ..io } } else { io };
        let inside = (len as u64).min(attrs.size.saturating_sub(offset));
        // A read that must wait is reported first, so that prefetches overlap with it. A
        // read from memory is made first, because it is repeated with waiting if it fails.
        let waits = io.mode == Mode::MayWait;
        let advance = || self.zfetch().advance(&object, offset, inside, waits, self.drops_behind());
        if waits {
            advance();
        }
        let pieces = object.read_clipped(attrs.size, offset, len, io)?;
        if !waits {
            advance();
        }
        if let Some(counters) = self.counters() {
            counters.read(pieces.iter().map(|p| p.len() as u64).sum());
        }
        Ok(pieces)
    }

    /// The data or hole extent that contains `offset`; `None` behind the end.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    pub fn extent(&self, id: ObjectId, offset: u64, io: Io) -> Result<Option<Extent>> {
        self.read_consistent(id, io, || {
            let (object, attrs) = self.regular(id, io)?;
            object.extent_at(offset, attrs.size, io)
        })
    }

    /// `lseek` with `SEEK_DATA` or `SEEK_HOLE`: the offset found, at or behind `offset`, in
    /// the granularity of blocks.
    ///
    /// # Errors
    /// `Missing` (its errno is `ENXIO`) when `offset` is not inside the file, or no data
    /// follows; else as [`FileSystem::read`].
    pub fn seek(&self, id: ObjectId, offset: u64, whence: Whence, io: Io) -> Result<u64> {
        self.read_consistent(id, io, || self.seek_now(id, offset, whence, io))
    }

    fn seek_now(&self, id: ObjectId, offset: u64, whence: Whence, io: Io) -> Result<u64> {
        let (object, attrs) = self.regular(id, io)?;
        let none = || Error::new(ErrorKind::PastEnd, "nothing there to seek").in_object(id);
        if offset >= attrs.size {
            return Err(none());
        }
        let bs = object.block_size();
        match whence {
            Whence::Data => {
                let block = object.next_data_block(offset / bs, io)?.ok_or_else(none)?;
                let at = block.saturating_mul(bs).max(offset);
                if at < attrs.size { Ok(at) } else { Err(none()) }
            }
            Whence::Hole => {
                let end = object.dnode().max_blkid.saturating_add(1);
                let block = object.next_hole_block(offset / bs, io)?.unwrap_or(end);
                Ok(block.saturating_mul(bs).max(offset).min(attrs.size))
            }
        }
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `Invalid` when the file is none, `Corrupt` when it lacks a target, those
    /// of reading.
    pub fn readlink(&self, id: ObjectId, io: Io) -> Result<Vec<u8>> {
        self.read_consistent(id, io, || self.readlink_now(id, io))
    }

    fn readlink_now(&self, id: ObjectId, io: Io) -> Result<Vec<u8>> {
        let object = self.object(id, io)?;
        let attrs = self.attrs_of(&object, io)?;
        if attrs.kind != FileType::Symlink {
            return Err(Error::invalid("not a symbolic link").in_object(id));
        }
        if let Some(znode) = legacy(&object)? {
            return match znode.symlink {
                Some(target) => Ok(target.into_vec()),
                None => target_in_block(&object, attrs.size, io),
            };
        }
        let target =
            self.with_attr(&object, ZplAttr::Symlink, io, |item| Ok(item.bytes.to_vec()))?;
        target.ok_or_else(|| Error::corrupt("symbolic link without a target").in_object(id))
    }
}

/// Before version 5 a target that does not fit behind the znode is in block 0
/// (chapter 06 §6).
fn target_in_block(object: &Object, size: u64, io: Io) -> Result<Vec<u8>> {
    if size > TARGET_MAX.min(object.block_size()) {
        return Err(Error::corrupt("symbolic link of odd length").in_object(object.id()));
    }
    let mut target = vec![0; size as usize];
    object.read_into(0, &mut target, io)?;
    Ok(target)
}
