//! The calls that change an object's blocks.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use base::{Buf, BufMut, Error, ObjectId, Result, Txg};
use ondisk::{BlkPtr, Dnode};
use zio::{BlockChange, Io};

use super::clone::clone_io;
use super::content::BlockEdit;
use super::handle::{Delta, HandleState, Holes};
use super::policy::BlockKind;
use super::{BLOCK_MAX, to_little};
use crate::objset::Objset;
use crate::tx::Tx;

impl Objset {
    /// Writes `data` at byte `offset` of an object, in whole blocks of memory: a block
    /// written in part is read first.
    ///
    /// # Errors
    /// `NotFound`, those of reading, `Invalid` beyond 2^64 bytes, and behind the only block
    /// of an object whose block size is no power of two.
    pub fn write(self: &Arc<Self>, tx: &Tx, id: ObjectId, offset: u64, data: &[u8]) -> Result<()> {
        let bs = self.head(tx, id, |head| u64::from(head.block_size))?;
        let end = offset.checked_add(data.len() as u64);
        let end = end.ok_or_else(|| Error::invalid("write past 2^64").in_object(id))?;
        let mut at = offset;
        while at < end {
            let (blkid, skip) = (at / bs, (at % bs) as usize);
            let n = (bs - at % bs).min(end - at) as usize;
            let from = (at - offset) as usize;
            let piece = &data[from..from + n];
            if n as u64 == bs {
                self.put_block(tx, id, blkid, BufMut::copy_of(piece))?;
            } else {
                self.edit_block(tx, id, blkid, &mut |block| {
                    let fits = block.get_mut(skip..skip + n);
                    let part = fits.ok_or_else(|| base::bug!("a block shrank while written"))?;
                    part.copy_from_slice(piece);
                    Ok(())
                })?;
            }
            at += n as u64;
        }
        Ok(())
    }

    /// Replaces a whole data block.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` when `block` is not of the object's block size, or the object
    /// cannot have such a block.
    fn put_block(self: &Arc<Self>, tx: &Tx, id: ObjectId, blkid: u64, block: BufMut) -> Result<()> {
        self.live()?.check_plain()?;
        let planted = self.planted(tx)?;
        let tx = planted.as_ref().unwrap_or(tx);
        self.change_blocks(tx, id, |inner| inner.put(tx.txg(), blkid, block))
            .map_err(|e| e.at_block(0, blkid).in_object(id))
    }

    fn planted(&self, tx: &Tx) -> Result<Option<Tx>> {
        let plant = &self.live()?.plant_wrong_txg;
        let planted = plant.load(Relaxed) && !tx.is_syncing() && plant.take(SeqCst);
        Ok(planted.then(|| Tx::syncing(tx.txg().next()).with_outage(tx.io().outage)))
    }

    /// Changes the newest content of a data block in place. `edit` may be called more than
    /// once; it gets the content in little-endian order.
    ///
    /// # Errors
    /// `NotFound`, those of reading the block, and those of `edit`; then nothing changed if
    /// `edit` changed nothing.
    pub fn edit_block(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        blkid: u64,
        edit: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        self.edit_where(tx, id, blkid, Holes::Fill, &mut BlockEdit::Plain(edit))
    }

    /// As [`Objset::edit_block`], for an `edit` that checks a block whole before it changes it.
    /// `edit` is told whether the content is what an earlier such edit left in the same txg, in
    /// memory, without another change since: then it need not check it again. Content that comes
    /// from a disk never is.
    ///
    /// # Errors
    /// As [`Objset::edit_block`].
    pub fn edit_checked(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        blkid: u64,
        edit: &mut dyn FnMut(&mut [u8], bool) -> Result<()>,
    ) -> Result<()> {
        self.edit_where(tx, id, blkid, Holes::Fill, &mut BlockEdit::Checking(edit))
    }

    /// Has the transaction's txg write a data block anew: at another address, its content
    /// unchanged. A hole stays one, and so does a block that an unwritten txg freed.
    ///
    /// # Errors
    /// `NotFound`, those of reading the block.
    pub fn touch_block(self: &Arc<Self>, tx: &Tx, id: ObjectId, blkid: u64) -> Result<()> {
        let mut same = |_: &mut [u8]| Ok(());
        self.edit_where(tx, id, blkid, Holes::Keep, &mut BlockEdit::Plain(&mut same))
    }

    fn edit_where(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        blkid: u64,
        holes: Holes,
        edit: &mut BlockEdit<'_>,
    ) -> Result<()> {
        self.live()?.check_plain()?;
        let txg = tx.txg();
        self.with_base(tx, id, blkid, |inner, base| inner.edit(txg, blkid, base, holes, edit))
            .map_err(|e| e.at_block(0, blkid).in_object(id))
    }

    /// Calls `f`. If `f` needs the block's content on disk, reads it and calls `f` again.
    fn with_base(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        blkid: u64,
        mut f: impl FnMut(&mut HandleState, Option<&Buf>) -> Result<Option<Delta>>,
    ) -> Result<()> {
        let mut base: Option<(BaseOf, Result<Buf>)> = None;
        loop {
            let missing = self.with(tx, id, |inner| {
                // The content of another tree than the present one is useless, and that of
                // another clone.
                let now = match inner.cloned(tx.txg(), blkid) {
                    Some(bp) => BaseOf::Clone(bp),
                    None => BaseOf::Disk(inner.disk.clone()),
                };
                let of = base.take().filter(|(of, _)| of.is(&now));
                let base = of.map(|(_, base)| base).transpose()?;
                match f(inner, base.as_ref())? {
                    Some(delta) => {
                        self.count(inner, tx, &delta);
                        Ok(None)
                    }
                    None => Ok(Some(now)),
                }
            })?;
            let Some(of) = missing else { return Ok(()) };
            // Reading may wait, so no lock is held meanwhile.
            let content = match &of {
                BaseOf::Clone(bp) => self.clone_content(bp, tx.io()),
                BaseOf::Disk(disk) => self.base_block(id, disk.as_ref(), blkid, tx.io()),
            };
            let of_data = |dn: &Arc<Dnode>| !dn.object_type.is_metadata();
            let data = match &of {
                BaseOf::Clone(_) => true,
                BaseOf::Disk(disk) => disk.as_ref().is_some_and(of_data),
            };
            if data && content.as_ref().is_ok_and(|c| !c.is_empty()) {
                self.live()?.read_modify_writes.fetch_add(1, Relaxed);
            }
            base = Some((of, content));
        }
    }

    /// The content of a clone that is not written yet, in little-endian order.
    fn clone_content(&self, bp: &BlkPtr, io: Io) -> Result<Buf> {
        let buf = self.zio().read(bp, clone_io(io))?;
        to_little(bp.head().object_type, buf, bp.endian())
    }

    /// A block as it is in the tree of `disk`, in little-endian order; empty if it is a hole.
    fn base_block(
        self: &Arc<Self>,
        id: ObjectId,
        disk: Option<&Arc<Dnode>>,
        blkid: u64,
        io: Io,
    ) -> Result<Buf> {
        let Some(dn) = disk.filter(|dn| blkid <= dn.max_blkid) else { return Ok(Buf::zeros(0)) };
        let object = self.disk_object(id, Arc::clone(dn));
        let bp = object.disk_pointer(dn, 0, blkid, io)?;
        if bp.is_hole() {
            return Ok(Buf::zeros(0));
        }
        let buf = self.zio().read(&bp, io)?;
        to_little(dn.object_type, buf, bp.endian())
    }

    /// Has the transaction's txg write a block anew: at another address and with the present
    /// properties, its content unchanged. `content` is the block's newest content as
    /// [`crate::Object::read_little`] returns it, and it is no hole; the caller excludes changes
    /// of the block since it was read, and no txg newer than the transaction's has changed it.
    /// With `keep_birth` the new pointer keeps the logical birth of the old one (feature
    /// physical_rewrite). A block that an unwritten txg freed stays a hole.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn move_block(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        blkid: u64,
        content: &Buf,
        keep_birth: bool,
    ) -> Result<()> {
        let how = if keep_birth { BlockChange::MovedPhysically } else { BlockChange::Moved };
        self.change_blocks(tx, id, |inner| inner.move_block(tx.txg(), blkid, content, how))
            .map_err(|e| e.at_block(0, blkid).in_object(id))
    }

    /// Whether an embedded pointer to a data block of the object would become the same again,
    /// if its block was written with the present properties.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub fn stays_embedded(&self, of: &Dnode, bp: &BlkPtr) -> Result<bool> {
        let BlkPtr::Embedded(embedded) = bp else { return Ok(false) };
        let kind = BlockKind {
            object_type: of.object_type,
            level: 0,
            spill: false,
            size: embedded.head.lsize.0,
            checksum: of.checksum,
            compression: of.compression,
        };
        let props = self.live()?.props().for_block(&kind, true);
        Ok(props.embed && props.compression.id() == embedded.compression)
    }

    /// Frees `len` bytes from `offset` (`u64::MAX`: to the end): whole blocks become
    /// holes, the rest is zeroed (chapter 03 §11).
    ///
    /// # Errors
    /// `NotFound`, and those of reading the blocks at both ends.
    pub fn free_range(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let bs = self.head(tx, id, |head| u64::from(head.block_size))?;
        let last = self.last_block(tx, id)?;
        let end = offset.saturating_add(len);
        let to_end = end == u64::MAX || end / bs > last;
        if offset / bs > last || len == 0 {
            return Ok(());
        }
        let (first, past) = (offset.div_ceil(bs), end / bs);
        if first > past && !to_end {
            // The range is inside one block.
            let range = (offset % bs) as usize..(end % bs) as usize;
            return self.zero_part(tx, id, past, range);
        }
        if !offset.is_multiple_of(bs) {
            self.zero_part(tx, id, offset / bs, (offset % bs) as usize..bs as usize)?;
        }
        if !to_end && !end.is_multiple_of(bs) {
            self.zero_part(tx, id, past, 0..(end % bs) as usize)?;
        }
        if first >= past && !to_end {
            return Ok(());
        }
        self.free_blocks(tx, id, first, past, to_end)
    }

    /// The highest block of any txg from the transaction's on.
    pub(super) fn last_block(self: &Arc<Self>, tx: &Tx, id: ObjectId) -> Result<u64> {
        let own = self.head(tx, id, |head| head.max_blkid)?;
        let Some(handle) = self.live()?.find(id) else { return Ok(own) };
        let inner = handle.state.lock();
        let newer = inner.filled_slots().filter(|s| s.txg > tx.txg());
        Ok(newer.map(|s| s.head.max_blkid).fold(own, u64::max))
    }

    /// Zeroes a part of a block in the transaction's txg and in newer ones.
    fn zero_part(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        blkid: u64,
        range: Range<usize>,
    ) -> Result<()> {
        let mut zero = |block: &mut [u8]| {
            let end = range.end.min(block.len());
            block[range.start.min(end)..end].fill(0);
            Ok(())
        };
        self.edit_where(tx, id, blkid, Holes::Keep, &mut BlockEdit::Plain(&mut zero))
    }

    /// Frees data blocks `[first, past)`; with `truncate` all from `first` on, and the
    /// object ends there.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn free_blocks(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        first: u64,
        past: u64,
        truncate: bool,
    ) -> Result<()> {
        self.change_blocks(tx, id, |inner| inner.free(tx.txg(), first, past, truncate))
            .map_err(|e| e.in_object(id))
    }

    /// Changes the block size of an object that has one block at most. Its content stays,
    /// followed by zeros (chapter 03 §3.2). `indirect_shift` 0 keeps the present one.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` when there are more blocks or the size is impossible, those of
    /// reading block 0.
    pub fn set_block_size(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        size: u32,
        indirect_shift: u8,
    ) -> Result<()> {
        let shift = indirect_shift;
        let sizes = size != 0 && size.is_multiple_of(512) && size <= BLOCK_MAX;
        if !sizes || shift != 0 && !(12..=17).contains(&shift) {
            return Err(Error::invalid("no object has such a block size").in_object(id));
        }
        let same = self.head(tx, id, |head| {
            head.block_size == size && (shift == 0 || shift == head.indirect_shift)
        })?;
        if same {
            return Ok(());
        }
        self.live()?.check_plain()?;
        let txg: Txg = tx.txg();
        self.with_base(tx, id, 0, |inner, base| inner.resize(txg, size, shift, base))
            .map_err(|e| e.in_object(id))
    }
}

/// Where the content of a block comes from that no unwritten txg has in memory.
enum BaseOf {
    /// The tree on disk.
    Disk(Option<Arc<Dnode>>),
    /// A clone that is not written yet.
    Clone(BlkPtr),
}

impl BaseOf {
    fn is(&self, other: &BaseOf) -> bool {
        match (self, other) {
            (BaseOf::Disk(a), BaseOf::Disk(b)) => same(a, b),
            (BaseOf::Clone(a), BaseOf::Clone(b)) => a == b,
            _ => false,
        }
    }
}

fn same(a: &Option<Arc<Dnode>>, b: &Option<Arc<Dnode>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (None, None) => true,
        _ => false,
    }
}
