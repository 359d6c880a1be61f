//! One object: its blocks by level and block id, its bytes, its holes.

use std::ops::Range;
use std::sync::Arc;

use base::limits::BUF_SIZE_MAX;
use base::{Buf, Error, ErrorKind, ObjectId, Result};
use ondisk::{BlkPtr, Dnode, ObjType};
use zio::{Access, BATCH_BYTES, BATCHED_MAX, Caching, ErrorEntry, Io, Mode, Origin};

use crate::live::clone::clone_io;
use crate::live::handle::Dirty;
use crate::live::to_little;
use crate::objset::Objset;

/// Read-ahead reads blocks together in batches of at most this part of the bytes that it may
/// have in flight.
const BATCHES_MIN: u64 = 4;

/// An open object: a dnode as it was when it was opened.
#[derive(Clone, Debug)]
pub struct Object {
    os: Arc<Objset>,
    id: ObjectId,
    dnode: Arc<Dnode>,
}

/// A run of bytes that is data or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Whether it holds data.
    pub data: bool,
}

impl Object {
    pub(crate) fn new(os: Arc<Objset>, id: ObjectId, dnode: Arc<Dnode>) -> Object {
        Object { os, id, dnode }
    }

    /// Its object id.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Its dnode.
    pub fn dnode(&self) -> &Arc<Dnode> {
        &self.dnode
    }

    /// The object set it belongs to.
    pub fn objset(&self) -> &Arc<Objset> {
        &self.os
    }

    /// Its type.
    pub fn object_type(&self) -> ObjType {
        self.dnode.object_type
    }

    /// Bytes of a data block.
    pub fn block_size(&self) -> u64 {
        u64::from(self.dnode.data_block_size)
    }

    fn at_position(&self, error: Error, level: u8, blkid: u64) -> Error {
        error.at_block(level, blkid).in_object(self.id)
    }

    /// The error of a block of `dn` that could not be read. It is entered into the pool's
    /// error log, except in three cases: the read was a mere read-ahead, the device may
    /// come back in a moment, or the block no longer belongs to the object.
    fn unreadable(&self, error: Error, dn: &Dnode, bp: &BlkPtr, at: (u8, u64), io: Io) -> Error {
        let lost = match error.kind() {
            ErrorKind::Checksum | ErrorKind::Corrupt => true,
            ErrorKind::Io => !self.os.zio().is_suspended(),
            _ => false,
        };
        if bp.as_block().is_some()
            && lost
            && io.access == Access::Demand
            && self.tree(io).is_ok_and(|now| *now == *dn)
        {
            let (level, blkid) = at;
            let birth = bp.allocation_birth().0;
            let (objset, object) = (self.os.id(), self.id.0);
            self.os.zio().errors().add(ErrorEntry { objset, object, level, blkid, birth });
        }
        self.at_position(error, at.0, at.1)
    }

    /// The dnode whose tree is on disk now.
    fn tree(&self, io: Io) -> Result<Arc<Dnode>> {
        Ok(self.rooted(io)?.0)
    }

    /// The dnode whose tree is on disk now, and how to read by its pointers.
    fn rooted(&self, io: Io) -> Result<(Arc<Dnode>, Io)> {
        // Taken before the tree is fetched (`zio::Origin`).
        let (origin, io) = (self.os.origin(), io.in_tiers(self.os.tiers()));
        let io = if self.id.0 == 0 { self.os.dnode_io(io) } else { io };
        if !self.os.has_moved() {
            return Ok((Arc::clone(&self.dnode), io.by(origin)));
        }
        Ok(match self.os.disk_dnode(self.id, io)? {
            Some(dnode) => (dnode, io.by(origin)),
            // A new object has no tree yet: its own pointers are holes. The pointers of a
            // freed object are no longer in use.
            None => (Arc::clone(&self.dnode), io.by(Origin::Unknown)),
        })
    }

    /// The pointer to block `blkid` at `level` on disk; a hole beyond the tree.
    ///
    /// # Errors
    /// Those of reading the indirect blocks; `Corrupt` when a pointer does not have the
    /// level and size that its position demands.
    pub fn block_pointer(&self, level: u8, blkid: u64, io: Io) -> Result<BlkPtr> {
        let (dn, io) = self.rooted(io)?;
        self.disk_pointer(&dn, level, blkid, io)
    }

    /// As [`Object::block_pointer`], in the tree of `dn`.
    pub(crate) fn disk_pointer(&self, dn: &Dnode, level: u8, blkid: u64, io: Io) -> Result<BlkPtr> {
        let span = dn.epb_shift() * u32::from(level);
        let first = blkid.checked_shl(span).filter(|b| b >> span == blkid);
        let Some(first) = first.filter(|_| level < dn.levels) else { return Ok(BlkPtr::default()) };
        let Some(root) = dn.root_index(first) else { return Ok(BlkPtr::default()) };
        let mut bp = dn.blkptrs[root];
        let mut at = dn.levels - 1;
        check_pointer(&bp, dn, at).map_err(|e| self.at_position(e, at, dn.covering(first, at)))?;
        while at > level {
            if bp.is_hole() {
                return Ok(BlkPtr::default());
            }
            let parent = dn.covering(first, at);
            let bytes = self
                .os
                .zio()
                .read(&bp, io)
                .map_err(|e| self.unreadable(e, dn, &bp, (at, parent), io))?;
            at -= 1;
            let index = dn.covering(first, at) & ((1 << dn.epb_shift()) - 1);
            bp = BlkPtr::parse_nth(&bytes, index as usize, bp.endian())
                .map_err(|e| self.at_position(e, at, dn.covering(first, at)))?;
            check_pointer(&bp, dn, at)
                .map_err(|e| self.at_position(e, at, dn.covering(first, at)))?;
        }
        Ok(bp)
    }

    /// The content that unwritten txgs gave to a part of a block.
    fn dirty(&self, blkid: u64, range: Range<usize>, io: Io) -> Result<Option<Buf>> {
        let Some(live) = self.os.live_part() else { return Ok(None) };
        loop {
            let cloned = match live.block(self.id, blkid, range.clone()) {
                None => return Ok(None),
                Some(Dirty::Data(part)) => return Ok(Some(part)),
                Some(Dirty::Hole) => return Ok(Some(Buf::zeros(range.len()))),
                Some(Dirty::Cloned(bp)) => bp,
            };
            let io = clone_io(io.in_tiers(self.os.tiers()));
            match self.os.zio().read_range(&cloned, range.clone(), io) {
                Ok((part, _)) => return Ok(Some(part)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Err(e),
                // The block may have changed meanwhile, and its old content may be gone.
                Err(e) => match live.block(self.id, blkid, 0..0) {
                    Some(Dirty::Cloned(now)) if now == cloned => {
                        return Err(self.at_position(e, 0, blkid));
                    }
                    _ => {}
                },
            }
        }
    }

    /// Whether a block reads as zeros because it is not allocated.
    ///
    /// # Errors
    /// Those of reading the indirect blocks.
    pub fn is_hole(&self, blkid: u64, io: Io) -> Result<bool> {
        if let Some(live) = self.os.live_part()
            && let Some(dirty) = live.block(self.id, blkid, 0..0)
        {
            return Ok(matches!(dirty, Dirty::Hole));
        }
        let (dn, io) = self.rooted(io)?;
        Ok(blkid > dn.max_blkid || self.disk_pointer(&dn, 0, blkid, io)?.is_hole())
    }

    /// Byte order of a block's content.
    ///
    /// # Errors
    /// Those of reading the indirect blocks.
    pub fn block_endian(&self, blkid: u64, io: Io) -> Result<ondisk::Endian> {
        if let Some(live) = self.os.live_part()
            && let Some(dirty) = live.block(self.id, blkid, 0..0)
        {
            return Ok(match dirty {
                Dirty::Cloned(bp) => bp.endian(),
                Dirty::Data(_) | Dirty::Hole => ondisk::Endian::Little,
            });
        }
        Ok(self.block_pointer(0, blkid, io)?.endian())
    }

    /// A block in little-endian order, whatever the byte order of the host that wrote it.
    ///
    /// # Errors
    /// As [`Object::read_block`].
    pub fn read_little(&self, blkid: u64, io: Io) -> Result<Buf> {
        let endian = self.block_endian(blkid, io)?;
        to_little(self.object_type(), self.read_block(blkid, io)?, endian)
    }

    /// The content of data block `blkid`: always a whole block; zeros for holes and beyond
    /// the end.
    ///
    /// # Errors
    /// Those of [`zio::Zio::read`], with the block's position.
    pub fn read_block(&self, blkid: u64, io: Io) -> Result<Buf> {
        self.read_part(blkid, 0..self.dnode.data_block_size as usize, io)
    }

    /// Bytes `range` of data block `blkid`, without copying. A block in memory is found
    /// without walking the indirect blocks.
    ///
    /// # Errors
    /// As [`Object::read_block`]; `Corrupt` for a range beyond the block.
    pub fn read_part(&self, blkid: u64, range: Range<usize>, io: Io) -> Result<Buf> {
        if let Some(part) = self.dirty(blkid, range.clone(), io)? {
            return Ok(part);
        }
        let zio = self.os.zio();
        let hint_key = self.os.hint_key(self.id, blkid);
        if io.caching != Caching::Bypass
            && let Some(at) = zio.hints().get(hint_key)
            && let Some(part) = zio
                .read_slot(at, self.block_size(), range.clone(), io)
                .map_err(|e| self.at_position(e, 0, blkid))?
        {
            return Ok(part);
        }
        let epoch = zio.hints().epoch(hint_key);
        let (dn, io) = self.rooted(io)?;
        if blkid > dn.max_blkid {
            return Ok(Buf::zeros(range.len()));
        }
        let read = self.disk_pointer(&dn, 0, blkid, io).and_then(|bp| {
            if bp.is_hole() {
                return Ok((Buf::zeros(range.len()), None));
            }
            zio.read_range(&bp, range.clone(), io)
                .map_err(|e| self.unreadable(e, &dn, &bp, (0, blkid), io))
        });
        match read {
            Ok((part, Some(at))) => {
                zio.hints().put(hint_key, at, epoch);
                Ok(part)
            }
            Ok((part, None)) => Ok(part),
            // Txgs were written meanwhile, and the block's old address may hold another
            // block.
            Err(e) if e.kind() != ErrorKind::WouldBlock && !self.is_current(&dn, io) => {
                self.read_part(blkid, range, io)
            }
            Err(e) => Err(e),
        }
    }

    fn is_current(&self, dn: &Arc<Dnode>, io: Io) -> bool {
        self.tree(io).map_or(true, |now| now == *dn)
    }

    /// As [`Object::read_block`], with the block's byte order, for the parts of a list that
    /// the list's header declares written. A hole there is damage. Without this check a
    /// forged header could make a reader count to 2^64.
    ///
    /// # Errors
    /// Those of [`Object::read_block`]; `Corrupt` for a hole.
    pub fn read_written(&self, blkid: u64, io: Io) -> Result<(Buf, ondisk::Endian)> {
        if self.is_hole(blkid, io)? {
            return Err(self.at_position(Error::corrupt("a list has a hole"), 0, blkid));
        }
        Ok((self.read_block(blkid, io)?, self.block_endian(blkid, io)?))
    }

    /// Passes the bytes `[offset, end)` to `sink` as slices of blocks, without copying. Bytes
    /// behind the last block are zeros. Unless `before_wait` is `None`, each block is looked
    /// for in memory until one is not there; then `before_wait` is called, once.
    fn each_piece(
        &self,
        range: Range<u64>,
        io: Io,
        mut before_wait: Option<impl FnMut()>,
        mut sink: impl FnMut(Buf),
    ) -> Result<()> {
        let (bs, end) = (self.block_size(), range.end);
        let mut at = range.start;
        let may_wait = io.mode == Mode::MayWait && io.caching != Caching::Bypass;
        let mut from_memory = may_wait && (before_wait.is_some() || end.saturating_sub(at) > bs);
        while at < end {
            let (blkid, skip) = (at / bs, at % bs);
            let take = (bs - skip).min(end - at);
            let part = skip as usize..(skip + take) as usize;
            let first = if from_memory { io.from_memory() } else { io };
            let piece = match self.read_part(blkid, part.clone(), first) {
                Err(e) if from_memory && e.kind() == ErrorKind::WouldBlock => {
                    from_memory = false;
                    if let Some(hook) = &mut before_wait {
                        hook();
                    }
                    // The blocks that follow are read in the background meanwhile.
                    let next = (blkid + 1).saturating_mul(bs);
                    self.prefetch(next, end.saturating_sub(next), Io::PRESCIENT);
                    self.read_part(blkid, part, io)?
                }
                read => read?,
            };
            sink(piece);
            at += take;
        }
        Ok(())
    }

    /// Passes the bytes `[offset, offset+len)` of an object whose content is `size` bytes long
    /// to `sink`, as slices of blocks, without copying. The range is clipped to the content and
    /// to 64 MiB. The part behind the last block is one buffer of zeros, not one for each
    /// block.
    ///
    /// `before_wait` is called at most once, before the first block that is not in memory is
    /// read. It is not called if `io` forbids to wait or bypasses the cache.
    ///
    /// # Errors
    /// Those of [`Object::read_block`]; pieces may have been passed before.
    pub fn read_pieces(
        &self,
        size: u64,
        offset: u64,
        len: usize,
        io: Io,
        before_wait: impl FnMut(),
        mut sink: impl FnMut(Buf),
    ) -> Result<()> {
        let (stored, zeros) = self.split(size, offset, len);
        self.each_piece(offset..offset + stored, io, Some(before_wait), &mut sink)?;
        if zeros > 0 {
            sink(Buf::zeros(zeros));
        }
        Ok(())
    }

    /// As [`Object::read_pieces`], for readers without a predictor.
    ///
    /// # Errors
    /// Those of [`Object::read_block`].
    pub fn read_clipped(&self, size: u64, offset: u64, len: usize, io: Io) -> Result<Vec<Buf>> {
        let (stored, zeros) = self.split(size, offset, len);
        let mut out = Vec::with_capacity((stored / self.block_size()) as usize + 2);
        self.each_piece(offset..offset + stored, io, None::<fn()>, |piece| out.push(piece))?;
        if zeros > 0 {
            out.push(Buf::zeros(zeros));
        }
        Ok(out)
    }

    /// [`split_read`] of this object, whose content is `size` bytes long.
    fn split(&self, size: u64, offset: u64, len: usize) -> (u64, usize) {
        let blocks_end = (self.dnode.max_blkid + 1).saturating_mul(self.block_size());
        split_read(size, blocks_end, offset, len)
    }

    /// Reads the blocks of `[offset, offset+len)` into the cache in the background, as far
    /// as workers are free. `io` says how certain it is that the blocks are needed
    /// ([`Io::PREFETCH`], [`Io::PRESCIENT`]).
    pub fn prefetch(&self, offset: u64, len: u64, io: Io) {
        if len == 0 {
            return;
        }
        let first = offset / self.block_size();
        let last = (offset.saturating_add(len - 1) / self.block_size()).min(self.dnode.max_blkid);
        self.read_ahead(0, first..=last, io);
    }

    /// Starts background reads of blocks of one level into the cache. Small blocks are read
    /// several at a time, by one worker (`zio`'s read-ahead). Returns how many blocks were
    /// started, and the first one that was not: no worker was free, or too many bytes were in
    /// flight already and the blocks are not certain to be needed.
    pub(crate) fn read_ahead(
        &self,
        level: u8,
        blkids: impl Iterator<Item = u64>,
        io: Io,
    ) -> (u64, Option<u64>) {
        let zio = self.os.zio();
        let limit = zio.read_ahead_limit();
        let bytes = self.dnode.block_size(level);
        let each = match bytes <= BATCHED_MAX {
            true => (BATCH_BYTES.min(limit / BATCHES_MIN) / bytes.max(1)).max(1),
            false => 1,
        };
        let (mut started, mut blkids) = (0, blkids.peekable());
        while let Some(&first) = blkids.peek() {
            let batch: Vec<u64> = blkids.by_ref().take(each as usize).collect();
            let (blocks, bytes) = (batch.len() as u64, bytes.saturating_mul(batch.len() as u64));
            let permit = match io.access {
                Access::Prescient => None,
                _ => match zio.prefetch().permit(bytes, limit) {
                    None => return (started, Some(first)),
                    permit => permit,
                },
            };
            let object = self.clone();
            let job = move || {
                let _permit = permit;
                // The later reader of the block gets the error.
                let _ = object.read_batch(level, &batch, io);
            };
            if !zio.background().try_submit(job) {
                return (started, Some(first));
            }
            started += blocks;
        }
        (started, None)
    }

    /// Whether the block is in memory, or is a hole.
    pub(crate) fn in_memory(&self, blkid: u64, io: Io) -> bool {
        !self.read_block(blkid, io.from_memory()).is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
    }

    /// Reads blocks into the cache.
    fn read_batch(&self, level: u8, blkids: &[u64], io: Io) -> Result<()> {
        let (dn, io) = self.rooted(io)?;
        let mut bps = Vec::with_capacity(blkids.len());
        let read = self.disk_pointers(&dn, level, blkids, io, |bp| bps.push(bp));
        match bps[..] {
            [ref one] => drop(self.os.zio().read(one, io)?),
            _ => self.os.zio().read_ahead(&bps, io),
        }
        read
    }

    /// Passes the pointers of blocks of one level, without holes. The indirect block of
    /// neighbours is read once.
    fn disk_pointers(
        &self,
        dn: &Dnode,
        level: u8,
        blkids: &[u64],
        io: Io,
        mut sink: impl FnMut(BlkPtr),
    ) -> Result<()> {
        let mut parent: Option<(u64, Buf, ondisk::Endian)> = None;
        for &blkid in blkids {
            let above = blkid >> dn.epb_shift();
            let bp = match &parent {
                Some((of, bytes, endian)) if *of == above => {
                    let index = blkid & ((1 << dn.epb_shift()) - 1);
                    BlkPtr::parse_nth(bytes, index as usize, *endian)?
                }
                _ if blkids.len() > 1 && level + 1 < dn.levels => {
                    let bp = self.disk_pointer(dn, level + 1, above, io)?;
                    if bp.is_hole() {
                        continue;
                    }
                    parent = Some((above, self.os.zio().read(&bp, io)?, bp.endian()));
                    self.disk_pointer(dn, level, blkid, io)?
                }
                _ => self.disk_pointer(dn, level, blkid, io)?,
            };
            check_pointer(&bp, dn, level).map_err(|e| self.at_position(e, level, blkid))?;
            if !bp.is_hole() {
                sink(bp);
            }
        }
        Ok(())
    }

    /// Drops the blocks that lie wholly in `[offset, offset+len)` from the cache, because a
    /// cache above (the kernel's) has them. Only blocks with a known hint are found.
    pub(crate) fn evict_range(&self, offset: u64, len: u64) {
        let bs = self.block_size();
        let first = offset.div_ceil(bs);
        let end = (offset.saturating_add(len) / bs).min(self.dnode.max_blkid + 1);
        for blkid in first..end {
            match self.block_pointer(0, blkid, Io::MEMORY) {
                Ok(bp) => self.os.zio().hand_over(&bp),
                Err(_) => return,
            }
        }
    }

    /// Copies bytes from `offset` into `out`. Bytes behind the last block are zeros.
    ///
    /// # Errors
    /// Those of [`Object::read_block`]; `Invalid` for a range beyond 2^64.
    pub fn read_into(&self, offset: u64, out: &mut [u8], io: Io) -> Result<()> {
        let end = offset.checked_add(out.len() as u64);
        let end = end.ok_or_else(|| Error::invalid("read past 2^64"))?;
        let mut at = 0;
        self.each_piece(offset..end, io, None::<fn()>, |piece| {
            out[at..at + piece.len()].copy_from_slice(&piece);
            at += piece.len();
        })
    }

    /// The first data block at or after `from` that is not a hole.
    ///
    /// # Errors
    /// Those of reading the indirect blocks.
    pub fn next_data_block(&self, from: u64, io: Io) -> Result<Option<u64>> {
        self.next_block(from, false, io)
    }

    /// The first data block at or after `from`, and up to the last block, that is
    /// a hole.
    ///
    /// # Errors
    /// Those of reading the indirect blocks.
    pub fn next_hole_block(&self, from: u64, io: Io) -> Result<Option<u64>> {
        self.next_block(from, true, io)
    }

    fn next_block(&self, from: u64, want_hole: bool, io: Io) -> Result<Option<u64>> {
        let dirty = self.os.live_part().and_then(|live| live.find(self.id));
        let Some(handle) = dirty else { return self.next_on_disk(from, want_hole, io) };
        let last = self.dnode.max_blkid;
        let mut blkid = from;
        while blkid <= last {
            if self.is_hole(blkid, io)? == want_hole {
                return Ok(Some(blkid));
            }
            // The next block at which either the disk or memory may be of the kind wanted.
            let (memory, from) = if want_hole {
                (handle.next_freed(blkid + 1), blkid + 1)
            } else {
                (handle.next_written(blkid + 1), handle.freed_until(blkid).max(blkid + 1))
            };
            let disk = match self.next_on_disk(from, want_hole, io)? {
                // Only holes follow the blocks on disk.
                None if want_hole => Some(from.max(self.tree(io)?.max_blkid + 1)),
                disk => disk,
            };
            let Some(next) = memory.into_iter().chain(disk).min() else { return Ok(None) };
            blkid = next;
        }
        Ok(None)
    }

    fn next_on_disk(&self, from: u64, want_hole: bool, io: Io) -> Result<Option<u64>> {
        let (dn, io) = self.rooted(io)?;
        let mut blkid = from;
        while blkid <= dn.max_blkid {
            let (found, next) = self.scan_from(&dn, blkid, want_hole, io)?;
            if found {
                return Ok((next <= dn.max_blkid).then_some(next));
            }
            // `next` is past all blocks examined; zero means overflow.
            if next <= blkid {
                return Ok(None);
            }
            blkid = next;
        }
        Ok(None)
    }

    /// Searches the subtree around `blkid`: (true, block found) or (false, first block not
    /// searched).
    fn scan_from(&self, dn: &Dnode, blkid: u64, want_hole: bool, io: Io) -> Result<(bool, u64)> {
        let Some(root) = dn.root_index(blkid) else {
            return Ok((want_hole, if want_hole { blkid } else { 0 }));
        };
        let mut bp = dn.blkptrs[root];
        let mut level = dn.levels - 1;
        loop {
            check_pointer(&bp, dn, level)
                .map_err(|e| self.at_position(e, level, dn.covering(blkid, level)))?;
            let span_shift = dn.epb_shift() * u32::from(level);
            let past = || (dn.covering(blkid, level) + 1).checked_shl(span_shift).unwrap_or(0);
            let span = 1u64.checked_shl(span_shift).unwrap_or(u64::MAX);
            // The fill count shows that a full subtree of plain data has no hole.
            let full = dn.object_type != ObjType::DNODE && bp.fill() == span;
            match (bp.is_hole(), want_hole) {
                (true, true) => return Ok((true, blkid)),
                (true, false) => return Ok((false, past())),
                (false, true) if full => return Ok((false, past())),
                (false, false) if level == 0 => return Ok((true, blkid)),
                _ => {}
            }
            let parent = dn.covering(blkid, level);
            let bytes = self
                .os
                .zio()
                .read(&bp, io)
                .map_err(|e| self.unreadable(e, dn, &bp, (level, parent), io))?;
            level -= 1;
            let index = dn.covering(blkid, level) & ((1 << dn.epb_shift()) - 1);
            if level == 0 {
                let count = 1usize << dn.epb_shift();
                return self.scan_leaves(&bytes, &bp, blkid, index as usize..count, want_hole);
            }
            bp = BlkPtr::parse_nth(&bytes, index as usize, bp.endian())
                .map_err(|e| self.at_position(e, level, dn.covering(blkid, level)))?;
        }
    }

    /// Scans data pointers of one indirect block.
    fn scan_leaves(
        &self,
        bytes: &[u8],
        parent: &BlkPtr,
        blkid: u64,
        entries: Range<usize>,
        want_hole: bool,
    ) -> Result<(bool, u64)> {
        let Range { start: index, end: count } = entries;
        for i in index..count {
            let at = blkid + (i - index) as u64;
            let bp = BlkPtr::parse_nth(bytes, i, parent.endian())
                .map_err(|e| self.at_position(e, 0, at))?;
            if bp.is_hole() == want_hole {
                return Ok((true, at));
            }
        }
        Ok((false, blkid.saturating_add((count - index) as u64)))
    }

    /// The extent at `offset` within an object of `size` bytes, as far as it can be found
    /// cheaply; `None` at or behind the end.
    ///
    /// # Errors
    /// Those of reading the indirect blocks.
    pub fn extent_at(&self, offset: u64, size: u64, io: Io) -> Result<Option<Extent>> {
        if offset >= size {
            return Ok(None);
        }
        let bs = self.block_size();
        let blkid = offset / bs;
        let data_at = self.next_data_block(blkid, io)?;
        let (data, until) = match data_at {
            Some(b) if b == blkid => {
                (true, self.next_hole_block(blkid, io)?.map(|b| b.saturating_mul(bs)))
            }
            Some(b) => (false, Some(b.saturating_mul(bs))),
            None => (false, None),
        };
        // All bytes past the last block are a hole.
        let end_of_blocks = (self.dnode.max_blkid + 1).saturating_mul(bs);
        let until = match (data, until) {
            (true, None) => end_of_blocks,
            (_, u) => u.unwrap_or(size),
        };
        Ok(Some(Extent { offset, len: until.min(size) - offset, data }))
    }

    /// Whether there is a spill block.
    ///
    /// # Errors
    /// Those of reading the dnode.
    pub fn has_spill(&self, io: Io) -> Result<bool> {
        match self.os.live_part().and_then(|l| l.has_spill(self.id)) {
            Some(there) => Ok(there),
            None => Ok(self.tree(io)?.spill.is_some()),
        }
    }

    /// The spill block's content and byte order, if there is one.
    ///
    /// # Errors
    /// Those of [`zio::Zio::read`].
    pub fn spill(&self, io: Io) -> Result<Option<(Buf, ondisk::Endian)>> {
        if let Some(dirty) = self.os.live_part().and_then(|l| l.spill(self.id)) {
            return Ok(dirty.map(|buf| (buf, ondisk::Endian::Little)));
        }
        let (dn, io) = self.rooted(io)?;
        let Some(bp) = &dn.spill else { return Ok(None) };
        let buf = self.os.zio().read(bp, io).map_err(|e| e.in_object(self.id))?;
        Ok(Some((buf, bp.endian())))
    }
}

/// A pointer must carry the level and size that its position demands.
fn check_pointer(bp: &BlkPtr, dn: &Dnode, level: u8) -> Result<()> {
    let head = bp.head();
    if bp.is_hole() || (head.level == level && head.lsize.0 == dn.block_size(level)) {
        return Ok(());
    }
    // Nothing is read there, and its size says nothing (chapter 02 §2.3).
    if matches!(bp, BlkPtr::Redacted(_)) && head.level == level {
        return Ok(());
    }
    Err(Error::corrupt("block pointer of the wrong level or size for its position"))
}

/// How many of `len` bytes at `offset` are in blocks, and how many are behind the blocks
/// but inside the content.
fn split_read(size: u64, blocks_end: u64, offset: u64, len: usize) -> (u64, usize) {
    let len = size.saturating_sub(offset).min(len.min(BUF_SIZE_MAX) as u64);
    let stored = blocks_end.saturating_sub(offset).min(len);
    (stored, (len - stored) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against counting bytes one by one.
        #[test]
        fn reads_are_clipped(
            size in 0u64..64, end in 0u64..96, offset in 0u64..96, len in 0usize..96,
        ) {
            let bytes = (offset..offset + len as u64).filter(|b| *b < size);
            let (stored, zeros): (Vec<u64>, Vec<u64>) = bytes.partition(|b| *b < end);
            prop_assert_eq!(
                split_read(size, end, offset, len),
                (stored.len() as u64, zeros.len())
            );
        }
    }

    #[test]
    fn reads_at_the_far_end() {
        assert_eq!(split_read(1 << 62, u64::MAX, u64::MAX, usize::MAX), (0, 0));
        assert_eq!(split_read(1 << 62, 0, 0, usize::MAX), (0, BUF_SIZE_MAX));
    }
}
