//! Changes that only a received stream makes (chapter 07 §13.4): objects that become other
//! objects in place, and blocks that are compressed already.
//!
//! # Theory
//! A stream describes an object that exists already, perhaps as another one of the same number.
//! Freeing the object and claiming its number again would take a txg in between. So the object
//! is *reclaimed*: its dnode gets another type, bonus and size, and, unless its data is kept, the
//! txg cuts the whole tree and begins a new one of one level
//! ([`super::handle::DnodeHead::fresh`]).
//!
//! A compressed block is held and written in its compressed form. It is unpacked once before it
//! is accepted, so that no unreadable block enters a pool.

use std::sync::Arc;

use base::{Buf, BufMut, Error, ErrorKind, ObjectId, Result};
use ondisk::ObjType;
use ondisk::dnode::{DNODES_PER_BLOCK, OBJECT_SHIFT_MAX};
use zio::PackedForm;

use super::alloc::{ObjectSpec, mask};
use super::handle::{Spill, slot_of};
use crate::objset::Objset;
use crate::tx::Tx;

/// The parts of an object on which it depends how a stream changes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectShape {
    /// Its type.
    pub object_type: ObjType,
    /// Type of the bonus.
    pub bonus_type: ObjType,
    /// The bonus, little-endian.
    pub bonus: Vec<u8>,
    /// Bytes of a data block.
    pub block_size: u32,
    /// Slots of the dnode.
    pub slots: u8,
    /// Pointers in the dnode.
    pub nblkptr: u8,
    /// log2 of an indirect block.
    pub indirect_shift: u8,
    /// Levels of the tree.
    pub levels: u8,
    /// The last block.
    pub max_blkid: u64,
}

/// What an object becomes.
#[derive(Clone, Debug)]
pub struct Reclaimed {
    /// Its new shape. The indirect block size is that of a new tree.
    pub spec: ObjectSpec,
    /// Checksum function of its data, 0 = the dataset's.
    pub checksum: u8,
    /// Compression function of its data, 0 = the dataset's.
    pub compression: u8,
    /// The data stays, and with it the block size. Otherwise all of it is freed.
    pub keeps_data: bool,
    /// The spill block stays, if there is one.
    pub keeps_spill: bool,
}

impl Objset {
    /// The shape of an object in the transaction's txg.
    ///
    /// # Errors
    /// `NotFound`; those of reading its dnode.
    pub fn shape(self: &Arc<Self>, tx: &Tx, id: ObjectId) -> Result<ObjectShape> {
        self.head(tx, id, |head| ObjectShape {
            object_type: head.object_type,
            bonus_type: head.bonus_type,
            bonus: head.bonus.clone(),
            block_size: head.block_size,
            slots: head.slots,
            nblkptr: head.nblkptr,
            indirect_shift: head.indirect_shift,
            levels: head.levels,
            max_blkid: head.max_blkid,
        })
    }

    /// Turns an object into another one of the same number. No newer txg has changed it.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for an impossible shape, for a bonus that does not fit, and when
    /// data is kept although its blocks have another size; `Exists` when a larger dnode would
    /// cover slots that are in use, or were freed by a txg that is not on disk; those of reading.
    pub fn reclaim(self: &Arc<Self>, tx: &Tx, id: ObjectId, new: &Reclaimed) -> Result<()> {
        let head = new.spec.head().map_err(|e| e.in_object(id))?;
        let old = self.shape(tx, id)?;
        let shrinks = head.nblkptr < old.nblkptr || head.block_size != old.block_size;
        if new.keeps_data && shrinks {
            let text = "an object that keeps its data keeps its blocks";
            return Err(Error::invalid(text).in_object(id));
        }
        if head.slots > old.slots {
            self.claim_slots(tx, id, old.slots, head.slots)?;
        }
        let txg = tx.txg();
        self.change_blocks(tx, id, |inner| {
            inner.slot(txg)?;
            let spill = new.keeps_spill && inner.has_spill(txg);
            head.check_bonus(head.bonus.len(), spill)?;
            let shape = inner.slots[slot_of(txg)].as_ref().map(|s| s.head.indirect_shift);
            inner.reclaim(txg, !new.keeps_data, |to| {
                let kept = new.keeps_data.then_some(shape).flatten();
                (to.object_type, to.bonus_type) = (head.object_type, head.bonus_type);
                to.bonus.clone_from(&head.bonus);
                (to.block_size, to.slots, to.nblkptr) = (head.block_size, head.slots, head.nblkptr);
                to.indirect_shift = kept.unwrap_or(head.indirect_shift);
                (to.checksum, to.compression) = (new.checksum, new.compression);
                if !new.keeps_spill {
                    to.spill = Spill::Remove;
                }
            })
        })
        .map_err(|e| e.in_object(id))
    }

    /// Takes the slots behind an object that it gets in addition.
    fn claim_slots(self: &Arc<Self>, tx: &Tx, id: ObjectId, had: u8, gets: u8) -> Result<()> {
        let (blkid, at) = (id.0 / DNODES_PER_BLOCK, id.0 % DNODES_PER_BLOCK);
        if id.0 >> OBJECT_SHIFT_MAX != 0 || at + u64::from(gets) > DNODES_PER_BLOCK {
            return Err(Error::invalid("a dnode must not cross its block").in_object(id));
        }
        let mut cursor = self.live()?.cursor.lock();
        let more = mask(at, gets) & !mask(at, had);
        if self.taken(blkid, tx.io())? & more != 0 {
            let text = "the dnode's slots are in use";
            return Err(Error::new(ErrorKind::Exists, text).in_object(id));
        }
        if let Some((b, taken)) = &mut cursor.block
            && *b == blkid
        {
            *taken |= more;
        }
        Ok(())
    }

    /// Sets how the data of an object is stored; 0 is the dataset's setting.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn set_functions(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        (checksum, compression): (u8, u8),
    ) -> Result<()> {
        self.change(tx, id, |head| (head.checksum, head.compression) = (checksum, compression))
    }

    /// Replaces a whole data block by content that is compressed already, and is stored so.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` for content that does not decompress to the size of `form`;
    /// `Invalid` when that is not the object's block size, or the object cannot have the block.
    pub fn write_packed(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        blkid: u64,
        bytes: &Buf,
        form: PackedForm,
    ) -> Result<()> {
        let locate = |e: Error| e.at_block(0, blkid).in_object(id);
        self.live()?.check_plain()?;
        let mut whole = BufMut::alloc(form.lsize as usize);
        codec::compress::decompress(form.compression, bytes, &mut whole).map_err(locate)?;
        drop(whole);
        self.change_blocks(tx, id, |inner| inner.put_packed(tx.txg(), blkid, bytes, form))
            .map_err(locate)
    }

    /// Makes whole data blocks ones whose content a redacted stream left out: reading them is an
    /// error.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` when the object cannot have the blocks; those of reading.
    pub fn redact_blocks(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        first: u64,
        count: u64,
    ) -> Result<()> {
        let lsize = self.head(tx, id, |head| head.block_size)?;
        let form = PackedForm { compression: 0, lsize, embedded: true, redacted: true, seal: None };
        for blkid in first..first.saturating_add(count) {
            let put = self.change_blocks(tx, id, |inner| {
                inner.put_packed(tx.txg(), blkid, &Buf::default(), form)
            });
            put.map_err(|e| e.at_block(0, blkid).in_object(id))?;
        }
        Ok(())
    }

    /// Frees `len` bytes from `offset`, as [`Objset::free_range`], but the object ends before
    /// `offset` only if `len` is `u64::MAX`: a hole at its end remains a part of it.
    ///
    /// # Errors
    /// As [`Objset::free_range`].
    pub fn free_part(self: &Arc<Self>, tx: &Tx, id: ObjectId, offset: u64, len: u64) -> Result<()> {
        let size = self.head(tx, id, |head| u64::from(head.block_size))?;
        if offset / size > self.last_block(tx, id)? || len == 0 {
            return Ok(());
        }
        let (first, to_end) = (offset / size, len == u64::MAX);
        let end = offset.saturating_add(len);
        if offset.is_multiple_of(size) && (to_end || end.is_multiple_of(size)) {
            return self.free_blocks(tx, id, first, end / size, to_end);
        }
        self.free_range(tx, id, offset, len)
    }
}
