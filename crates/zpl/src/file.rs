//! The content of files and the targets of symbolic links.
//!
//! # Theory of a read
//! A read returns the bytes of a range as pieces, in order: slices of cached or dirty blocks,
//! which are not copied, and buffers of zeros for holes. The range is clipped to the file's
//! size; a read at or behind the end has no pieces. There is one implementation,
//! `FileSystem::read_file`, and it does four things:
//!
//! * *Consistency.* It runs under the object's seqlock ([`crate::rw`]). A reader that saw a
//!   change of several steps drops its pieces and reads again.
//! * *Read-ahead.* Each read is reported once to the file's predictor ([`dmu::zfetch`]): before
//!   the first block that is not in memory is read, so that prefetches overlap with that read,
//!   else afterwards. A read from memory that is to be repeated with waiting is not reported,
//!   nor is one that bypasses the cache.
//! * *Blocks.* [`Object::read_pieces`] searches dirty data, the cache and the devices.
//! * *Statistics.* A read that succeeded is counted once, with its bytes.
//!
//! Its callers differ in what they know of the file and in what they do with the pieces.
//! [`FileSystem::read`] finds the object and its size anew for each read, uses the predictor of
//! that object id, and returns the pieces: mounts send them to the kernel. A [`File`] keeps the
//! object, the size and a predictor of its own. [`File::borrow`] returns one piece, and
//! [`File::read_at`] copies the pieces into a slice.

use std::borrow::Cow;
use std::sync::Arc;

use base::limits::BUF_SIZE_MAX;
use base::{Buf, Error, ErrorKind, ObjectId, Result};
use dmu::{Caching, Copies, Extent, Io, Object};
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

/// A regular file that was opened for many reads: its object and size as they were then, and
/// the predictor of its reader. A read shows the content of its time, clipped to this size. A
/// file that may be removed meanwhile has to be held ([`FileSystem::hold`]).
#[derive(Debug)]
pub struct File {
    fs: Arc<FileSystem>,
    object: Object,
    size: u64,
    zfetch: dmu::Zfetch,
}

impl File {
    /// Bytes of the file when it was opened.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Its object as it was when the file was opened.
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// Bytes from `offset`, at most `len`, up to the end of the block, without copying;
    /// empty at or behind the end.
    ///
    /// # Errors
    /// Those of reading.
    pub fn borrow(&self, offset: u64, len: usize, io: Io) -> Result<Buf> {
        let bs = self.object.block_size();
        let len = (bs - offset % bs).min(len as u64) as usize;
        self.fs.read_file(
            ReadSource::Open(self),
            offset,
            len,
            io,
            |_| Buf::default(),
            |first, piece| {
                // The blocks may be larger than those that the file was opened with, so that the
                // range has two pieces.
                if first.is_empty() {
                    *first = piece;
                }
            },
        )
    }

    /// Copies bytes from `offset` into `out`; returns how many there were.
    ///
    /// # Errors
    /// Those of reading.
    pub fn read_at(&self, offset: u64, out: &mut [u8], io: Io) -> Result<usize> {
        let io = Io { copies: Copies::Yes, ..io };
        let mut done = 0;
        // One read yields at most 64 MiB.
        while done < out.len() {
            let (at, rest) = (offset.saturating_add(done as u64), &mut out[done..]);
            let len = rest.len();
            let copied = self.fs.read_file(
                ReadSource::Open(self),
                at,
                len,
                io,
                |_| 0,
                |n, piece| {
                    rest[*n..*n + piece.len()].copy_from_slice(&piece);
                    *n += piece.len();
                },
            )?;
            done += copied;
            if copied < len.min(BUF_SIZE_MAX) {
                break;
            }
        }
        Ok(done)
    }

    /// The object, for a read that ends at byte `end`: opened again if the blocks end before,
    /// because the file may have got more blocks since.
    fn object_until(&self, end: u64, io: Io) -> Result<Cow<'_, Object>> {
        let blocks_end =
            (self.object.dnode().max_blkid + 1).saturating_mul(self.object.block_size());
        match end.min(self.size) > blocks_end {
            true => self.fs.object(self.object.id(), io).map(Cow::Owned),
            false => Ok(Cow::Borrowed(&self.object)),
        }
    }
}

/// The source of a read's object, size and predictor.
#[derive(Clone, Copy)]
enum ReadSource<'a> {
    /// Found by the object's id.
    Id(ObjectId),
    /// Those of an open file.
    Open(&'a File),
}

impl FileSystem {
    /// Opens a regular file for many reads.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    pub fn open_file(self: &Arc<Self>, id: ObjectId, io: Io) -> Result<File> {
        let (object, attrs) = self.read_consistent(id, io, || self.regular(id, io))?;
        let (fs, zfetch) = (Arc::clone(self), self.zfetch().open());
        Ok(File { fs, object, size: attrs.size, zfetch })
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
        let add = |pieces: &mut Vec<Buf>, piece| pieces.push(piece);
        self.read_file(ReadSource::Id(id), offset, len, io, Vec::with_capacity, add)
    }

    /// Reads the range (see the module head). Each attempt calls `start` with an upper bound of
    /// the number of pieces, and `add` with each piece; the result is that of the attempt that
    /// saw no change.
    fn read_file<T>(
        &self,
        reader: ReadSource<'_>,
        offset: u64,
        len: usize,
        io: Io,
        start: impl Fn(usize) -> T,
        mut add: impl FnMut(&mut T, Buf),
    ) -> Result<T> {
        let (id, drop_behind) = match reader {
            ReadSource::Id(id) => (id, self.drops_behind()),
            ReadSource::Open(file) => (file.object.id(), false),
        };
        let remembered = drop_behind && io.caching == Caching::Keep;
        let read_io = if remembered { Io { caching: Caching::Remember, ..io } } else { io };
        let (read, bytes) = self.read_consistent(id, io, || {
            let (object, size) = match reader {
                ReadSource::Id(id) => {
                    let (object, attrs) = self.regular(id, io)?;
                    (Cow::Owned(object), attrs.size)
                }
                ReadSource::Open(file) => {
                    (file.object_until(offset.saturating_add(len as u64), io)?, file.size)
                }
            };
            let inside = (len as u64).min(size.saturating_sub(offset));
            let report = |waits| match reader {
                ReadSource::Id(_) => {
                    self.zfetch().advance(&object, offset, inside, waits, drop_behind)
                }
                ReadSource::Open(file) => {
                    file.zfetch.advance(&object, offset, inside, waits, false)
                }
            };
            let mut reported = io.caching == Caching::Bypass;
            let before_wait = || {
                report(true);
                reported = true;
            };
            let mut read =
                start((inside.min(BUF_SIZE_MAX as u64) / object.block_size()) as usize + 2);
            let mut bytes = 0;
            object.read_pieces(size, offset, len, read_io, before_wait, |piece| {
                bytes += piece.len() as u64;
                add(&mut read, piece);
            })?;
            if !reported {
                report(false);
            }
            Ok((read, bytes))
        })?;
        if let Some(counters) = self.counters() {
            counters.read(bytes);
        }
        Ok(read)
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
