//! The content of files.
//!
//! # Theory
//! A small file has one block. The block grows with the file up to the record size; a
//! larger file has several blocks of that size (chapter 06 §8). Growing the block takes the
//! file's lock exclusively. Other writes share the file, each with a lock on its range of
//! blocks.
//!
//! The bytes behind the end of a file in its last block are zeros, except after a replay of
//! whole blocks (`dirty_tail`).

use std::ops::Range;

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::{Object, Tx};
use ondisk::sa::ZplAttr;
use ondisk::znode::{
    FileType, Time, ZFS_APPENDONLY, ZFS_IMMUTABLE, ZFS_READONLY, ZFS_SPARSE, ZFS_XATTR,
};

use super::clone::{CloneSource, cloning_waits};
use super::journal::Record;
use super::locks::ObjectLockGuard;
use super::make::{DNODE_BLOCK, blocks_cost};
use super::node::{AttrOp, FileNode, Patch};
use super::queue::FREE_BLOCKS;
use super::types::{
    Caller, FILE_SIZE_MAX, Falloc, RwProps, SetAttrs, SetTime, WritePosition, WriteSummary, denied,
    too_large,
};
use crate::fs::FileSystem;

/// Bytes that one transaction writes at most, but at least one block.
pub(super) const WRITE_MAX: u64 = 1 << 20;
/// Bytes to which a write is divided when there is no space for more at once, but at least one
/// block.
const WRITE_LEAST: u64 = WRITE_MAX / 64;
/// Bytes that are read at a time for a copy.
const COPY_MAX: u64 = 1 << 20;
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o010;

/// Set-id bits that are cleared when a caller without privileges changes the content.
pub(crate) fn set_ids(mode: u32) -> u32 {
    mode & if mode & S_IXGRP != 0 { S_ISUID | S_ISGID } else { S_ISUID }
}

/// The block size to which a file of one block must grow before it ends at `end`; `None` if
/// it stays.
pub(crate) fn grown(object: &Object, size: u64, end: u64, record: u32, write: bool) -> Option<u32> {
    let dnode = object.dnode();
    let old = dnode.data_block_size;
    let one = dnode.max_blkid == 0 && size <= u64::from(old) && dnode.levels == 1;
    if !one || end <= u64::from(old) || (old.is_power_of_two() && old >= record) {
        return None;
    }
    // The block is larger than the present record size: it grows to a power of two, so that
    // there can be more blocks.
    let most = if old > record { old.next_power_of_two() } else { record };
    let needed = if write { size.max(end) } else { end };
    let wanted = needed.next_multiple_of(512).min(u64::from(most)) as u32;
    Some(wanted.max(old)).filter(|new| *new != old)
}

impl FileSystem {
    /// A regular file whose content may be changed.
    pub(crate) fn content(&self, id: ObjectId, append: bool) -> Result<FileNode> {
        let node = self.node(id)?;
        match node.attrs.kind {
            FileType::Regular => {}
            FileType::Dir => {
                return Err(Error::new(ErrorKind::IsDir, "is a directory").in_object(id));
            }
            _ => return Err(Error::invalid("not a regular file").in_object(id)),
        }
        if node.attrs.pflags & ZFS_XATTR != 0 && !self.is_replaying() {
            return Err(Error::invalid("an extended attribute").in_object(id));
        }
        let flags = self.enforced_flags(&node);
        if flags & (ZFS_IMMUTABLE | ZFS_READONLY) != 0 || !append && flags & ZFS_APPENDONLY != 0 {
            return Err(denied("the file's flags forbid it").in_object(id));
        }
        Ok(node)
    }

    /// As [`FileSystem::content`], for a write from `from` on. An append-only file may be
    /// changed behind its end.
    fn content_from(&self, id: ObjectId, from: u64) -> Result<FileNode> {
        let node = self.content(id, true)?;
        if self.enforced_flags(&node) & ZFS_APPENDONLY != 0 && from < node.attrs.size {
            return Err(denied("the file is only appended to").in_object(id));
        }
        Ok(node)
    }

    /// Writes `data`; the file grows as necessary. Clears set-id bits if the caller has no
    /// privileges. A write of more than 1 MiB takes several transactions, and so does a
    /// smaller one if a transaction for all of it could take more space than is left: the
    /// reservation for one is many times its bytes. When space runs out in between, the result
    /// says how much was written.
    ///
    /// # Errors
    /// `NotFound`; `IsDir`, `Invalid` for anything but a regular file; `TooLarge` from
    /// 2^63 - 1 on; `NotPermitted` by flags; `NoSpace`; `Quota`; `ReadOnly`; those of reading
    /// blocks that are changed in part.
    pub fn write(
        &self,
        by: &Caller,
        id: ObjectId,
        at: WritePosition,
        data: &[u8],
    ) -> Result<WriteSummary> {
        let done = self.write_at(by, id, at, data, None)?;
        self.commit_if_sync_always(by, id)?;
        Ok(done)
    }

    /// As [`FileSystem::write`] at an offset, and removes the extended attribute `drop_xattr`
    /// before the first byte is written.
    ///
    /// # Errors
    /// As [`FileSystem::write`], and those of [`FileSystem::remove_xattr`] except that the
    /// attribute does not exist or that attributes are not supported.
    pub fn write_without_xattr(
        &self,
        by: &Caller,
        id: ObjectId,
        offset: u64,
        data: &[u8],
        drop_xattr: &[u8],
    ) -> Result<WriteSummary> {
        let done = self.write_at(by, id, WritePosition::Offset(offset), data, Some(drop_xattr))?;
        self.commit_if_sync_always(by, id)?;
        Ok(done)
    }

    fn write_at(
        &self,
        by: &Caller,
        id: ObjectId,
        at: WritePosition,
        data: &[u8],
        mut drop_xattr: Option<&[u8]>,
    ) -> Result<WriteSummary> {
        let (rw, props) = self.rw()?;
        // An append takes the file's lock exclusively, because the end of the file must not
        // move.
        let alone = (at == WritePosition::End).then(|| rw.locks.exclusive(id));
        let offset = match at {
            WritePosition::Offset(offset) => offset,
            WritePosition::End => self.content(id, true)?.attrs.size,
        };
        let len = (data.len() as u64).min(FILE_SIZE_MAX.saturating_sub(offset));
        if len == 0 && !data.is_empty() {
            return Err(too_large(id));
        }
        let end = offset + len;
        let mut done = WriteSummary { offset, bytes: 0, size: 0 };
        let mut most = WRITE_MAX;
        while done.bytes < len {
            let from = offset + done.bytes;
            let rest = &data[done.bytes as usize..len as usize];
            let bare = drop_xattr.is_some();
            let written =
                self.write_piece(by, id, from, rest, end, &props, alone.is_some(), bare, most);
            match written {
                Err(e) if e.kind() == ErrorKind::NoSpace && most > WRITE_LEAST => most /= 8,
                Ok(Some((bytes, size))) => {
                    done.bytes += bytes;
                    done.size = size;
                    drop_xattr = None;
                }
                Ok(None) => self.drop_xattr(by, id, drop_xattr.take().unwrap_or_default())?,
                Err(_) if done.bytes > 0 => break,
                Err(e) => return Err(e),
            }
        }
        if len == 0 {
            done.size = self.content(id, true)?.attrs.size;
        }
        Ok(done)
    }

    /// Takes the lock for a write of `range`: exclusively if the file's block must grow.
    /// Returns the file as it is under the lock.
    fn lock_for(
        &self,
        id: ObjectId,
        range: Range<u64>,
        end: u64,
        record: u32,
    ) -> Result<(ObjectLockGuard<'_>, FileNode)> {
        let rw = self.rw_always()?;
        let grows = |object: &Object, size| grown(object, size, end, record, true).is_some();
        // The decision is provisional, because nothing is locked yet.
        let object = self.object(id, self.io())?;
        if !grows(&object, 0) {
            let block = object.block_size();
            let past = range.end.div_ceil(block).saturating_mul(block);
            let lock = rw.locks.range(id, range.start / block * block..past);
            let node = self.content_from(id, range.start)?;
            if node.object.block_size() == block && !grows(&node.object, node.attrs.size) {
                return Ok((lock, node));
            }
        }
        let lock = rw.locks.exclusive(id);
        Ok((lock, self.content_from(id, range.start)?))
    }

    /// Removes an extended attribute if it exists.
    ///
    /// # Errors
    /// Those of [`FileSystem::remove_xattr`] except that the attribute does not exist.
    pub fn drop_xattr(&self, by: &Caller, id: ObjectId, xattr: &[u8]) -> Result<()> {
        match self.remove_xattr(by, id, xattr).map_err(|e| (e.kind(), e)) {
            // With `xattr=off` extended attributes are invisible.
            Ok(()) | Err((ErrorKind::NoAttribute | ErrorKind::Unsupported, _)) => Ok(()),
            Err((_, e)) => Err(e),
        }
    }

    /// Writes the part that fits one transaction; returns how much, and the new size.
    /// Nothing is written if the file must be `bare` and may have extended attributes. It is at
    /// most `most` bytes, or one block.
    #[expect(clippy::too_many_arguments, reason = "a step of the loop in `write`")]
    pub(crate) fn write_piece(
        &self,
        by: &Caller,
        id: ObjectId,
        from: u64,
        rest: &[u8],
        end: u64,
        props: &RwProps,
        alone: bool,
        bare: bool,
        most: u64,
    ) -> Result<Option<(u64, u64)>> {
        let rw = self.rw_always()?;
        let record = props.record_size;
        let unit = most.max(u64::from(record));
        let to = (from / unit + 1).saturating_mul(unit).min(from + rest.len() as u64);
        let (mut _lock, mut node) = if alone {
            (None, self.content_from(id, from)?)
        } else {
            let (lock, node) = self.lock_for(id, from..to, end, record)?;
            (Some(lock), node)
        };
        if bare && node.attrs.may_have_xattrs {
            return Ok(None);
        }
        let mut tail = self.dirty_tail(&node, from)?;
        if tail.is_some() && !alone {
            drop(_lock.take());
            _lock = Some(rw.locks.exclusive(id));
            node = self.content_from(id, from)?;
            tail = self.dirty_tail(&node, from)?;
        }
        self.check_quota(&node)?;
        let size = node.attrs.size;
        let grows = grown(&node.object, size, end, record, true);
        let block = grows.map_or(node.object.block_size(), u64::from);
        // A file with blocks larger than the present record size: as many blocks as the
        // maximum allows.
        let most = (most / block).max(1).saturating_mul(block);
        let to = (from / most + 1).saturating_mul(most).min(to);
        let piece = &rest[..(to - from) as usize];
        let blocks = blocks_cost(to.div_ceil(block) - from / block, block);
        let now = rw.host.now();
        let last = tail.as_ref().map_or(0, |_| block);
        let tx = self.begin_tx(blocks + last + DNODE_BLOCK, false)?;
        self.clear_tail(&tx, id, tail)?;
        if let Some(block) = grows {
            let _turn = rw.seqlock.write(id);
            self.os().set_block_size(&tx, id, block, 0)?;
        }
        self.os().write(&tx, id, from, piece)?;
        self.patch(&tx, &node, &wrote(by, &node, to, now))?;
        let stripped = stripped(by, &node, now);
        self.log_written(&tx, &node, from, piece, stripped.as_ref(), to == end);
        Ok(Some((to - from, size.max(to))))
    }

    /// The range of bytes behind the file's end in its last block, before `to`, that may
    /// not be zeros: a replay of whole blocks, by Cenote or another implementation, may
    /// leave such bytes. A change that extends the file over them clears them first, with
    /// the file's lock held exclusively.
    pub(crate) fn dirty_tail(&self, node: &FileNode, to: u64) -> Result<Option<Range<u64>>> {
        let (size, block) = (node.attrs.size, node.object.block_size());
        let end = size.next_multiple_of(block).min(to);
        if end <= size {
            return Ok(None);
        }
        let part = (size % block) as usize..(size % block + (end - size)) as usize;
        let bytes = node.object.read_part(size / block, part, self.io())?;
        Ok(bytes.iter().any(|b| *b != 0).then_some(size..end))
    }

    /// Whether the last block of an object that holds a file of `size` bytes has anything but
    /// zeros behind the end.
    pub(crate) fn dirty_behind(&self, object: &Object, size: u64) -> Result<bool> {
        let block = object.block_size();
        let from = (size % block) as usize;
        if from == 0 {
            return Ok(false);
        }
        let bytes = object.read_part(size / block, from..block as usize, self.io())?;
        Ok(bytes.iter().any(|b| *b != 0))
    }

    pub(crate) fn clear_tail(&self, tx: &Tx, id: ObjectId, tail: Option<Range<u64>>) -> Result<()> {
        tail.map_or(Ok(()), |t| self.os().free_range(tx, id, t.start, t.end - t.start))
    }

    /// Changes the size; the caller holds the file's lock. `patch` has the consequences.
    pub(crate) fn resize(
        &self,
        node: &FileNode,
        to: u64,
        props: &RwProps,
        mut patch: Patch,
        also: impl FnOnce(&Tx, Patch) -> Result<()>,
        cost: u64,
    ) -> Result<()> {
        let rw = self.rw_always()?;
        let id = node.id;
        let block = node.object.block_size();
        let grows = (to > node.attrs.size)
            .then(|| grown(&node.object, node.attrs.size, to, props.record_size, false))
            .flatten();
        let shrinks = to < node.attrs.size;
        if shrinks {
            self.free_most(id, to.div_ceil(block), u64::MAX)?;
        }
        if to == 0 {
            patch.push(ZplAttr::Flags, AttrOp::AndNot(ZFS_SPARSE));
        }
        patch.push(ZplAttr::Size, AttrOp::Set(to));
        let tail = self.dirty_tail(node, to)?;
        let bytes = grows.map_or(block, u64::from) + DNODE_BLOCK + cost;
        let tx = self.begin_tx(bytes, shrinks)?;
        self.clear_tail(&tx, id, tail)?;
        if let Some(block) = grows {
            let _turn = rw.seqlock.write(id);
            self.os().set_block_size(&tx, id, block, 0)?;
        }
        // The size is changed first, so that readers see no intermediate zeros.
        also(&tx, patch)?;
        if shrinks {
            let _turn = rw.seqlock.write(id);
            self.os().free_range(&tx, id, to, u64::MAX)?;
        }
        self.log_truncated(&tx, node, to, 0);
        let txg = tx.txg();
        drop(tx);
        if shrinks {
            self.throttle_frees(txg, FREE_BLOCKS.min(node.object.dnode().max_blkid))
        } else {
            Ok(())
        }
    }

    /// Punches a hole or zeroes a range, as `what` says. Whole blocks are freed. A long
    /// range takes several transactions, and may be zeroed in part after a crash.
    ///
    /// # Errors
    /// As [`FileSystem::write`]; `Invalid` for an empty range.
    pub fn allocate(
        &self,
        by: &Caller,
        id: ObjectId,
        what: Falloc,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.allocate_in(by, id, what, offset, len)?;
        self.commit_if_sync_always(by, id)
    }

    fn allocate_in(
        &self,
        by: &Caller,
        id: ObjectId,
        what: Falloc,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let (rw, props) = self.rw()?;
        if len == 0 {
            return Err(Error::invalid("an empty range").in_object(id));
        }
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX);
        let end = end.ok_or_else(|| too_large(id))?;
        let _lock = rw.locks.exclusive(id);
        let node = self.content(id, false)?;
        let grows = matches!(what, Falloc::ZeroRange { keep_size: false }) && end > node.attrs.size;
        let inside = offset.min(node.attrs.size)..end.min(node.attrs.size);
        let now = rw.host.now();
        self.zero(&node, inside.clone())?;
        let mut patch = Patch::new().modified(now);
        if !by.privileged && set_ids(node.attrs.mode) != 0 {
            patch.push(ZplAttr::Mode, AttrOp::AndNot(u64::from(set_ids(node.attrs.mode))));
        }
        if grows {
            self.check_quota(&node)?;
            let node = self.content(id, false)?;
            let also = |tx: &Tx, p: Patch| {
                // Both changes, the zeros inside and the new end, and the mode.
                if !inside.is_empty() {
                    self.log_truncated(tx, &node, inside.start, inside.end - inside.start);
                }
                if let Some(record) = stripped(by, &node, now) {
                    self.log_attrs(tx, &node, record);
                }
                self.patch(tx, &node, &p)
            };
            return self.resize(&node, end, &props, patch, also, 0);
        }
        let tx = self.begin_tx(DNODE_BLOCK, true)?;
        self.patch(&tx, &node, &patch)?;
        if let Some(record) = stripped(by, &node, now) {
            self.log_attrs(&tx, &node, record);
        }
        if inside.is_empty() {
            let touched = SetAttrs { mtime: Some(SetTime::Set(now)), ..SetAttrs::default() };
            match Record::of(&touched, None, &node, now) {
                Some(record) => self.log_attrs(&tx, &node, record),
                None => self.log_nothing(&tx),
            }
        } else {
            self.log_truncated(&tx, &node, inside.start, inside.end - inside.start);
        }
        Ok(())
    }

    /// Zeroes a range inside the file; the caller holds its lock.
    pub(crate) fn zero(&self, node: &FileNode, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let block = node.object.block_size();
        let (first, past) = (range.start.div_ceil(block), range.end / block);
        self.free_most(node.id, first, past)?;
        let tx = self.begin_tx(2 * block + DNODE_BLOCK, true)?;
        self.os().free_range(&tx, node.id, range.start, range.end - range.start)?;
        self.touch(&tx, node.id);
        let txg = tx.txg();
        drop(tx);
        self.throttle_frees(txg, FREE_BLOCKS.min(past.saturating_sub(first)))
    }

    /// Copies up to `len` bytes between files, or between disjoint ranges of one file;
    /// holes stay holes. Whole blocks that are on disk are cloned instead, where both files
    /// have blocks of one size ([`FileSystem::clone_range`]). Returns the number of bytes
    /// copied.
    ///
    /// # Errors
    /// As [`FileSystem::write`] and [`FileSystem::read`]; `Invalid` for ranges that
    /// overlap.
    pub fn copy_range(
        &self,
        by: &Caller,
        from: (ObjectId, u64),
        to: (ObjectId, u64),
        len: u64,
    ) -> Result<u64> {
        self.copy_range_from(by, (self, from.0, from.1), to, len)
    }

    /// As [`FileSystem::copy_range`], from a file of a file system that may be another one: a
    /// snapshot, for example. Those of other pools share nothing.
    ///
    /// # Errors
    /// As [`FileSystem::copy_range`].
    pub fn copy_range_from(
        &self,
        by: &Caller,
        (fs, id, at): (&FileSystem, ObjectId, u64),
        to: (ObjectId, u64),
        len: u64,
    ) -> Result<u64> {
        self.rw()?;
        let (_, source) = fs.regular(id, self.io())?;
        let len = len.min(source.size.saturating_sub(at));
        let overlap = at < to.1.saturating_add(len) && to.1 < at.saturating_add(len);
        if self.is_same(fs) && id == to.0 && overlap {
            return Err(Error::invalid("the ranges overlap").in_object(id));
        }
        let mut done = 0;
        while done < len {
            let from = CloneSource { fs, id, offset: at + done };
            match self.copy_piece(by, &from, (to.0, to.1 + done), len - done) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Clones as much of a range to be copied as can be cloned at its beginning, now or, with
    /// [`cloning_waits`], after the next txg.
    fn clone_instead(
        &self,
        by: &Caller,
        from: &CloneSource<'_>,
        to: (ObjectId, u64),
        len: u64,
    ) -> Result<u64> {
        let (object, attrs) = from.fs.regular(from.id, self.io())?;
        let (block, at) = (object.block_size(), from.offset);
        let aligned = at.is_multiple_of(block) && to.1.is_multiple_of(block);
        // Without the rest of a block, unless the file ends there.
        let len = if at.saturating_add(len) >= attrs.size { len } else { len / block * block };
        let same_pool = std::sync::Arc::ptr_eq(self.os().zio(), from.fs.os().zio());
        if !aligned || len == 0 || !same_pool || !self.may_clone() {
            return Ok(0);
        }
        match self.clone_piece(by, from, to, len) {
            Ok(piece) if piece.awaits_txg() && cloning_waits() => {
                Ok(self.clone_range(by, (from.fs, from.id, at), to, len).unwrap_or(0))
            }
            Ok(piece) => {
                self.commit_if_sync_always(by, to.0)?;
                Ok(piece.bytes)
            }
            // The copy meets any other obstacle again.
            Err(_) => Ok(0),
        }
    }

    fn copy_piece(
        &self,
        by: &Caller,
        from: &CloneSource<'_>,
        (to, offset): (ObjectId, u64),
        len: u64,
    ) -> Result<u64> {
        let cloned = self.clone_instead(by, from, (to, offset), len)?;
        if cloned > 0 {
            return Ok(cloned);
        }
        let CloneSource { fs, id, offset: at } = *from;
        let Some(extent) = fs.extent(id, at, self.io())? else { return Ok(0) };
        let len = len.min(extent.len);
        if !extent.data {
            self.allocate(by, to, Falloc::ZeroRange { keep_size: false }, offset, len)?;
            return Ok(len);
        }
        // Up to a boundary of blocks.
        let step = COPY_MAX - offset % COPY_MAX;
        let pieces = fs.read(id, at, len.min(step) as usize, self.io())?;
        let data: Vec<u8> = pieces.iter().flat_map(|b| b.iter().copied()).collect();
        if data.is_empty() {
            return Ok(0);
        }
        Ok(self.write(by, to, WritePosition::Offset(offset), &data)?.bytes)
    }
}

/// The log record for set-id bits that a change of the content clears.
pub(super) fn stripped(by: &Caller, node: &FileNode, now: Time) -> Option<Record> {
    let mode = node.attrs.mode;
    let strips = !by.privileged && set_ids(mode) != 0;
    strips.then(|| Record::of_mode(node, mode & 0o7777 & !set_ids(mode), now)).flatten()
}

/// The changes of attributes by a write up to `end`.
pub(super) fn wrote(by: &Caller, node: &FileNode, end: u64, now: Time) -> Patch {
    let mut patch = Patch::new().modified(now).and(ZplAttr::Size, AttrOp::Max(end));
    if !by.privileged && set_ids(node.attrs.mode) != 0 {
        patch.push(ZplAttr::Mode, AttrOp::AndNot(u64::from(set_ids(node.attrs.mode))));
    }
    patch
}
