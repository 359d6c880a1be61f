//! Cloning of data blocks: a block of one object becomes that of another, without being read
//! or written (chapter 08 §C.2).
//!
//! # Theory
//! The target's block is dirty, but instead of content its slot has the pointer that the txg
//! will write: a copy of the source's, with the logical birth of the txg and the source's
//! physical birth. A read follows that pointer; a change of a part reads the block and turns
//! it into ordinary dirty content; a change of the whole, and a free, just replace it. When
//! the txg is written, the pointer is put into the tree like that of an early block.
//!
//! The pool must know of the pointer before any free of the source's block is processed.
//! So [`zio::BlockRefs::add`] notes it when the transaction is made, and
//! [`zio::BlockRefs::cancel`] takes that back for a pointer that is not written after all.
//!
//! # The source
//! Its pointer comes from the tree on disk, so the block must be clean. The order of the
//! steps makes sure that the block still belongs to the source when it is noted:
//! 1. no unwritten txg has changed the source's block;
//! 2. the pointer is read;
//! 3. it is noted with the pool;
//! 4. still no unwritten txg has changed it, the tree is still the one of step 2, and the
//!    dataset may still be cloned from.
//!
//! A txg that frees the block, and was processed before step 3, has its change in a slot until
//! it is published, and publication replaces slot and tree under the lock of the handle. So
//! step 4 finds one or the other. A destruction or a rollback frees blocks without changing
//! them, and ends the clones of the dataset first ([`Objset::end_clones`]), which step 4 finds.
//! A free that is processed after step 3 finds the note. A snapshot's tree does not change; its
//! destruction sets a flag first ([`Objset::allow_clones`]).
//!
//! # Invariants
//! * Each pointer noted with the pool is in exactly one slot, or was cancelled.
//! * A slot with a cloned block is of the newest txg of its object. A change of the block in
//!   an older txg is refused (`HandleState::check_newer_clone`): it would have to change a part of
//!   a block whose content is not in memory.
//!
//! # Departures from OpenZFS
//! A block that is dirty cannot be cloned, also if it is a clone itself; the caller waits or
//! copies.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use base::{Error, ObjectId, Result, Txg};
use ondisk::BlkPtr;
use ondisk::blkptr::{Block, Protection};
use zio::Io;

use super::content::DirtyContent;
use super::handle::{Delta, Dirty, HandleState, TxgSlot};
use crate::objset::Objset;
use crate::tx::Tx;

/// Bytes of memory that a cloned block is counted for, in the throttle and the cache: its
/// place in a slot and in the list of the pool.
pub(crate) const CLONE_MEMORY: u64 = 1 << 10;

/// Whether a block was cloned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloneOutcome {
    /// It was.
    Cloned,
    /// The source's block is a hole; nothing was done.
    Hole,
    /// The source's block is not on disk yet. Once the present txgs are, it can be cloned.
    Dirty,
    /// The block cannot be shared: it is embedded or encrypted, or its size
    /// or object set does not permit it.
    Impossible,
}

/// The pointer to a clone of `block` that `txg` writes.
fn pointer_of(block: &Block, txg: Txg) -> Block {
    let mut copy = *block;
    (copy.physical_birth, copy.rewritten) = (block.effective_physical_birth(), false);
    copy.head.birth = txg;
    copy
}

impl Objset {
    /// Whether an unwritten txg has changed a block: it cannot be cloned yet.
    pub fn is_block_dirty(&self, id: ObjectId, blkid: u64) -> bool {
        self.live_part().is_some_and(|live| live.block(id, blkid, 0..0).is_some())
    }

    /// No block of this object set is cloned from now on: the caller is about to free blocks
    /// that no change of the object set frees.
    pub fn end_clones(&self) {
        if let Some(live) = self.live_part() {
            live.clones_ended.store(true, SeqCst);
        }
    }

    /// Makes a data block of `id` a clone of `blkid` of object `source` in `from`, an object
    /// set of the same pool that is open for writing, or that of a snapshot
    /// ([`Objset::allow_clones`]). The caller keeps others from changing
    /// both blocks meanwhile. `synced` is the last txg on disk: newer blocks are dirty. Returns
    /// the source's pointer as well, if it is on disk.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` when a newer txg has changed the target; those of reading the
    /// source's tree.
    pub fn clone_block(
        self: &Arc<Self>,
        tx: &Tx,
        (id, to): (ObjectId, u64),
        from: &Arc<Objset>,
        (source, blkid): (ObjectId, u64),
        synced: Txg,
    ) -> Result<(CloneOutcome, BlkPtr)> {
        let none = |outcome| Ok((outcome, BlkPtr::default()));
        self.live()?.check_plain()?;
        let same_pool = Arc::ptr_eq(self.zio(), from.zio());
        let live = from.live_part();
        let ended = || match live {
            Some(live) => live.is_destroyed() || live.clones_ended.load(SeqCst),
            None => from.has_ended_clones(),
        };
        if !same_pool || from.is_sealed() || live.is_none() && ended() {
            return none(CloneOutcome::Impossible);
        }
        let is_dirty = || live.is_some_and(|live| live.block(source, blkid, 0..0).is_some());
        if is_dirty() {
            return none(CloneOutcome::Dirty);
        }
        let io = tx.io();
        let object = from.object(source, io)?;
        let Some(dn) = from.disk_dnode(source, io)? else { return none(CloneOutcome::Dirty) };
        if blkid > dn.max_blkid {
            return none(CloneOutcome::Hole);
        }
        let bp = object.disk_pointer(&dn, 0, blkid, io)?;
        let block = match bp {
            BlkPtr::Hole(_) => return Ok((CloneOutcome::Hole, bp)),
            BlkPtr::Block(block) => block,
            BlkPtr::Embedded(_) | BlkPtr::Redacted(_) => return Ok((CloneOutcome::Impossible, bp)),
        };
        if !self.may_share(tx, id, &block)? {
            return Ok((CloneOutcome::Impossible, bp));
        }
        if block.effective_physical_birth() > synced {
            return Ok((CloneOutcome::Dirty, bp));
        }
        let Ok(refs) = self.zio().block_refs() else { return Ok((CloneOutcome::Impossible, bp)) };
        let copy = pointer_of(&block, tx.txg());
        if refs.add(tx.txg(), &copy).is_err() {
            return Ok((CloneOutcome::Impossible, bp));
        }
        let moved = is_dirty()
            || ended()
            || from.disk_dnode(source, io).map_or(true, |now| now.as_ref() != Some(&dn));
        let cloned = match moved {
            true => Ok(CloneOutcome::Dirty),
            false => self.put_counted(tx, (id, to), copy).map(|()| CloneOutcome::Cloned),
        };
        if !matches!(cloned, Ok(CloneOutcome::Cloned)) {
            refs.cancel(tx.txg(), &copy);
        }
        cloned.map(|outcome| (outcome, bp))
    }

    /// As [`Objset::clone_block`], with a block that stays allocated until the transaction's txg
    /// is on disk, because the caller has another reference to it; false if it cannot be shared.
    ///
    /// # Errors
    /// As [`Objset::clone_block`].
    pub fn clone_pointer(
        self: &Arc<Self>,
        tx: &Tx,
        (id, to): (ObjectId, u64),
        block: &Block,
    ) -> Result<bool> {
        self.live()?.check_plain()?;
        let Ok(refs) = self.zio().block_refs() else { return Ok(false) };
        let copy = pointer_of(block, tx.txg());
        if !self.may_share(tx, id, block)? || refs.add(tx.txg(), &copy).is_err() {
            return Ok(false);
        }
        let put = self.put_counted(tx, (id, to), copy);
        if put.is_err() {
            refs.cancel(tx.txg(), &copy);
        }
        put.map(|()| true)
    }

    /// Whether a block of an object may be a clone of `block`.
    fn may_share(self: &Arc<Self>, tx: &Tx, id: ObjectId, block: &Block) -> Result<bool> {
        let (size, object_type) =
            self.head(tx, id, |head| (u64::from(head.block_size), head.object_type))?;
        Ok(block.protection == Protection::None
            && block.head.level == 0
            && block.head.object_type == object_type
            && !object_type.is_metadata()
            && block.head.lsize.0 == size)
    }

    /// Puts a pointer that the pool has noted into the tree.
    fn put_counted(
        self: &Arc<Self>,
        tx: &Tx,
        (id, to): (ObjectId, u64),
        copy: Block,
    ) -> Result<()> {
        let bp = BlkPtr::Block(copy);
        self.with(tx, id, |inner| {
            let delta = inner.put_clone(tx.txg(), to, &bp)?;
            self.count_clone(inner, tx, &delta, &bp);
            Ok(())
        })
        .map_err(|e| e.at_block(0, to).in_object(id))
    }

    /// Reports a clone to the throttle and the ledger. It takes no space but that of its
    /// indirect blocks, and is charged to the dataset in full.
    fn count_clone(&self, inner: &mut HandleState, tx: &Tx, delta: &Delta, bp: &BlkPtr) {
        if let (Some(dirt), Some(block)) = (tx.dirt(), bp.as_block()) {
            let bytes = block.dvas().map(|dva| dva.asize.0).fold(0, u64::saturating_add);
            dirt.plan_clone(tx.txg(), bytes, delta.nodes);
        }
        self.count_memory(inner, tx, delta);
    }

    /// Tells the pool of cloned pointers that the object's txgs do not write after all.
    pub(super) fn cancel_clones(&self, inner: &mut HandleState) {
        for slot in inner.slots.iter_mut().flatten() {
            self.cancel_clones_of(slot);
        }
    }

    fn cancel_clones_of(&self, slot: &mut TxgSlot) {
        if slot.dropped_clones.is_empty() {
            return;
        }
        let Ok(refs) = self.zio().block_refs() else { return };
        for bp in slot.dropped_clones.drain(..) {
            if let BlkPtr::Block(block) = &bp {
                refs.cancel(slot.txg, block);
            }
        }
    }

    /// As [`Objset::cancel_clones`], for all of a slot that will not be written.
    pub(super) fn abandon_clones(&self, slot: &mut TxgSlot) {
        let clones = slot.data.iter_mut().filter_map(|(_, content)| content.cloned());
        slot.dropped_clones.extend(clones);
        self.cancel_clones_of(slot);
    }
}

impl HandleState {
    /// Makes a block a clone: `bp` is the pointer that the txg writes. No newer txg may have
    /// changed the object.
    fn put_clone(&mut self, txg: Txg, blkid: u64, bp: &BlkPtr) -> Result<Delta> {
        if self.has_newer(txg) {
            return Err(Error::invalid("a newer txg changed the object"));
        }
        let slot = self.slot(txg)?;
        slot.head.check_block(blkid)?;
        if bp.head().lsize.0 != u64::from(slot.head.block_size) {
            return Err(Error::invalid("a block of the wrong size"));
        }
        let mut delta = Delta { nodes: slot.new_nodes(blkid), ..Delta::default() };
        delta.own = slot.put_content(blkid, DirtyContent::Cloned(Box::new(*bp)));
        self.changes += 1;
        Ok(delta)
    }

    /// The pointer by which the newest state of a block up to `txg` is read, if that is a
    /// clone that is not written yet.
    pub(super) fn cloned(&mut self, txg: Txg, blkid: u64) -> Option<BlkPtr> {
        match self.block(txg, blkid, 0..0) {
            Some(Dirty::Cloned(bp)) => Some(bp),
            _ => None,
        }
    }
}

/// How reads of a clone that is not written yet are made: its pointer is in no tree.
pub(crate) fn clone_io(io: Io) -> Io {
    io.by(zio::Origin::Unknown)
}
