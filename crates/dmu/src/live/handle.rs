//! One dirty object: the state of its dnode and blocks in each txg.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use base::rt::Mutex;
use base::{Buf, BufMut, Error, ErrorKind, Result, Txg};
use ondisk::dnode::DNODE_SIZE;
use ondisk::{BlkPtr, Dnode, ObjType};
use zio::{BlockChange, PackedForm};

use super::blocks::BlkidMap;
use super::content::{BlockEdit, DirtyContent, unpacked};
use super::early::EarlyBlock;
use super::ranges::BlockRanges;

/// Txgs that may have dirty data at a time: open, quiescing, syncing, and one to spare
/// (chapter 05).
pub(crate) const TXG_SLOTS: usize = 4;

/// The change of the spill block.
#[derive(Clone, Debug)]
pub(crate) enum Spill {
    /// Unchanged.
    Keep,
    /// Gets this content.
    Set(Buf),
    /// Gets this content of an encrypted dataset, in its stored form.
    Sealed(Buf, PackedForm),
    /// It is freed.
    Remove,
}

/// A dnode without its block tree: the part that a transaction changes at once.
#[derive(Clone, Debug)]
pub(crate) struct DnodeHead {
    /// False once the object was freed.
    pub(crate) allocated: bool,
    /// The txg frees all blocks that the object has on disk, and its tree begins anew, with
    /// one level ([`HandleState::reclaim`]).
    pub(crate) fresh: bool,
    /// Space below freed indirect blocks that cannot be read is leaked.
    pub(crate) leaks_unreadable: bool,
    pub(crate) object_type: ObjType,
    pub(crate) bonus_type: ObjType,
    pub(crate) bonus: Vec<u8>,
    pub(crate) block_size: u32,
    pub(crate) indirect_shift: u8,
    pub(crate) checksum: u8,
    pub(crate) compression: u8,
    pub(crate) slots: u8,
    pub(crate) nblkptr: u8,
    pub(crate) levels: u8,
    pub(crate) max_blkid: u64,
    pub(crate) spill: Spill,
    /// The whole bonus area of an object of a sealed object set, if the txg changes it
    /// ([`super::seal`]).
    pub(crate) area: Option<Arc<[u8]>>,
}

impl DnodeHead {
    /// # Errors
    /// `Unsupported` for a bonus in big-endian order that cannot be converted.
    pub(crate) fn of(dn: &Dnode) -> Result<DnodeHead> {
        Ok(DnodeHead {
            allocated: true,
            fresh: false,
            leaks_unreadable: false,
            object_type: dn.object_type,
            bonus_type: dn.bonus_type,
            bonus: super::to_little_bonus(dn)?,
            block_size: dn.data_block_size,
            indirect_shift: dn.indirect_shift,
            checksum: dn.checksum,
            compression: dn.compression,
            slots: dn.slots,
            nblkptr: dn.blkptrs.len() as u8,
            levels: dn.levels,
            max_blkid: dn.max_blkid,
            spill: Spill::Keep,
            area: None,
        })
    }

    /// Extends the tree to a block that was written.
    pub(crate) fn reach(&mut self, blkid: u64) {
        self.max_blkid = self.max_blkid.max(blkid);
        let epb_shift = u32::from(self.indirect_shift) - 7;
        let above = |levels: u8| blkid.checked_shr(epb_shift * u32::from(levels - 1)).unwrap_or(0);
        while above(self.levels) >= u64::from(self.nblkptr) {
            self.levels += 1;
        }
    }

    /// Whether the object may have this block (chapter 03 §2.3).
    pub(crate) fn check_block(&self, blkid: u64) -> Result<()> {
        let size = u64::from(self.block_size);
        if !self.allocated {
            return Err(Error::not_found("no such object"));
        }
        if blkid > 0 && !size.is_power_of_two() {
            return Err(Error::invalid("the only block of an object has an odd size"));
        }
        if blkid > (u64::MAX - (size - 1)) / size {
            return Err(Error::invalid("a block beyond 2^64 bytes"));
        }
        Ok(())
    }

    /// Whether a bonus of this length fits, beside a spill pointer or without.
    pub(crate) fn check_bonus(&self, len: usize, spill: bool) -> Result<()> {
        let pointers = usize::from(self.nblkptr) + usize::from(spill);
        let fits = 64 + 128 * pointers + len <= usize::from(self.slots) * DNODE_SIZE;
        fits.then_some(()).ok_or_else(|| Error::invalid("the bonus does not fit its dnode"))
    }
}

/// The changes that one txg makes to the object.
pub(crate) struct TxgSlot {
    pub(crate) txg: Txg,
    pub(crate) head: DnodeHead,
    /// Level-0 blocks written.
    pub(crate) data: BlkidMap<DirtyContent>,
    /// Blocks freed; those written afterwards are in `data`, too.
    pub(crate) freed: BlockRanges,
    /// Memory of `data`.
    pub(crate) bytes: u64,
    /// The part of `bytes` that the sync thread's own changes took. The throttle does not
    /// count it.
    pub(crate) unthrottled: i64,
    /// The txg is being written: nothing in the slot changes any more.
    pub(crate) frozen: bool,
    /// Blocks that are written already, as long as they have not changed since.
    pub(crate) early: BTreeMap<u64, EarlyBlock>,
    /// Pointers of such blocks that changed afterwards: to be freed.
    pub(crate) wasted: Vec<BlkPtr>,
    /// Blocks in `data` that only move: their content is that of the older state. An older
    /// txg's change of such a block reaches both, so the block still only moves.
    pub(crate) moved: BTreeMap<u64, BlockChange>,
    /// Blocks in `data` whose content is what a checking edit left ([`BlockEdit`]). Every other
    /// change of a block's content in the slot takes it out.
    checked: BTreeSet<u64>,
    /// Pointers of clones that were replaced or freed since: to be cancelled with the pool
    /// before the handle's lock is released.
    pub(crate) dropped_clones: Vec<BlkPtr>,
}

/// How an edit treats a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holes {
    /// It becomes a block of zeros, edited.
    Fill,
    /// It stays a hole: the edit only zeroes.
    Keep,
}

/// Changes of dirty memory, by txg.
#[derive(Default)]
pub(crate) struct Delta {
    /// In the transaction's txg.
    pub(crate) own: i64,
    /// Indirect blocks that the transaction's txg must now write in addition.
    pub(crate) nodes: u8,
    /// In newer txgs that an older txg's change affected as well.
    pub(crate) newer: Vec<(Txg, i64)>,
}

impl TxgSlot {
    pub(crate) fn new(txg: Txg, head: DnodeHead) -> TxgSlot {
        let (data, freed) = (BlkidMap::default(), BlockRanges::default());
        let (early, wasted, moved) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        let (bytes, unthrottled, frozen) = (0, 0, false);
        let (checked, dropped_clones) = (BTreeSet::new(), Vec::new());
        TxgSlot {
            txg,
            head,
            data,
            freed,
            bytes,
            unthrottled,
            frozen,
            early,
            wasted,
            moved,
            checked,
            dropped_clones,
        }
    }

    /// The block changes: its early pointer, if any, is wasted.
    pub(crate) fn invalidate_early(&mut self, blkid: u64) {
        if let Some(written) = self.early.remove(&blkid) {
            self.wasted.push(written.bp);
        }
    }

    /// Ends all change. Returns the pointers of blocks in `data` that are written already,
    /// and pointers to be freed.
    pub(crate) fn settle(&mut self, data: &[(u64, Buf)]) -> (BTreeMap<u64, BlkPtr>, Vec<BlkPtr>) {
        let (mut early, mut wasted) = (BTreeMap::new(), std::mem::take(&mut self.wasted));
        for (blkid, written) in std::mem::take(&mut self.early) {
            let at = data.binary_search_by_key(&blkid, |(b, _)| *b).ok();
            match at.and_then(|i| data.get(i)) {
                Some((_, content)) if written.is_of(content) => {
                    early.insert(blkid, written.bp);
                }
                _ => wasted.push(written.bp),
            }
        }
        (early, wasted)
    }

    /// The number of indirect blocks above `blkid` that are above no other written block of
    /// the txg.
    pub(crate) fn new_nodes(&self, blkid: u64) -> u8 {
        let epb_shift = u32::from(self.head.indirect_shift) - 7;
        let alone = |level: &u8| {
            let shift = epb_shift * u32::from(*level);
            let first = blkid.checked_shr(shift).unwrap_or(0).checked_shl(shift).unwrap_or(0);
            let span = 1u64.checked_shl(shift).map_or(u64::MAX, |n| n - 1);
            self.data.blkids(first..=first.saturating_add(span)).next().is_none()
        };
        (1..self.head.levels).take_while(alone).count() as u8
    }

    /// Makes `block` the content of a block; returns by how much memory grew.
    fn put(&mut self, blkid: u64, block: BufMut) -> i64 {
        self.put_content(blkid, DirtyContent::Open(block))
    }

    pub(super) fn put_content(&mut self, blkid: u64, content: DirtyContent) -> i64 {
        let size = content.memory();
        self.invalidate_early(blkid);
        self.moved.remove(&blkid);
        self.checked.remove(&blkid);
        let old = self.data.insert(blkid, content);
        let old = old.map_or(0, |content| self.dropped(&content));
        self.bytes = self.bytes + size - old;
        self.head.reach(blkid);
        size as i64 - old as i64
    }

    /// Notes that a content was dropped; returns the memory that it was counted for.
    fn dropped(&mut self, content: &DirtyContent) -> u64 {
        self.dropped_clones.extend(content.cloned());
        content.memory()
    }

    /// Drops the content of blocks in `[first, past)`; returns by how much memory grew.
    fn drop_blocks(&mut self, first: u64, past: u64) -> i64 {
        let mut dropped = 0;
        let written: Vec<u64> = self.early.range(first..past).map(|(&b, _)| b).collect();
        written.into_iter().for_each(|blkid| self.invalidate_early(blkid));
        self.moved.retain(|blkid, _| !(first..past).contains(blkid));
        self.checked.retain(|blkid| !(first..past).contains(blkid));
        if first == 0 && past == u64::MAX {
            dropped = self.bytes;
            let clones = self.data.iter_mut().filter_map(|(_, content)| content.cloned());
            self.dropped_clones.extend(clones);
            self.data.clear();
        } else {
            let ids: Vec<u64> = self.data.blkids(first..past).collect();
            for blkid in ids {
                let content = self.data.remove(blkid);
                dropped += content.map_or(0, |content| self.dropped(&content));
            }
        }
        self.bytes -= dropped;
        -(dropped as i64)
    }
}

/// The newest state of a block that differs from the disk.
pub(crate) enum Dirty {
    Data(Buf),
    Hole,
    /// That of the block to which this pointer leads.
    Cloned(BlkPtr),
}

pub(crate) struct HandleState {
    /// The dnode as the last written txg left it; `None` if it is not on disk.
    pub(crate) disk: Option<Arc<Dnode>>,
    /// Most objects are changed by one txg at a time.
    pub(crate) slots: [Option<Box<TxgSlot>>; TXG_SLOTS],
    /// The table dropped this handle: look the object up again.
    pub(crate) dead: bool,
    /// The dnode that readers got last, until the next change.
    pub(crate) merged: Option<Arc<Dnode>>,
    /// Counts the changes, real or possible, of the newest content.
    pub(crate) changes: u64,
    /// A value derived from the newest content, and the change count that it is valid for.
    pub(crate) memo: Option<(u64, Box<dyn Any + Send>)>,
}

/// One object with dirty state.
pub(crate) struct ObjectHandle {
    pub(crate) state: Mutex<HandleState>,
}

pub(crate) fn slot_of(txg: Txg) -> usize {
    txg.0 as usize % TXG_SLOTS
}

impl ObjectHandle {
    pub(crate) fn new(disk: Option<Arc<Dnode>>) -> ObjectHandle {
        ObjectHandle {
            state: Mutex::new(HandleState {
                disk,
                slots: std::array::from_fn(|_| None),
                dead: false,
                merged: None,
                changes: 0,
                memo: None,
            }),
        }
    }

    /// The end of the range of freed blocks that contains `at`, or `at` if none does.
    /// Blocks that the newest txgs wrote there are not considered.
    pub(crate) fn freed_until(&self, at: u64) -> u64 {
        let inner = self.state.lock();
        inner.filled_slots().map(|s| s.freed.end_of(at)).max().unwrap_or(at)
    }

    /// The first block at or after `from` that an unwritten txg freed.
    pub(crate) fn next_freed(&self, from: u64) -> Option<u64> {
        let inner = self.state.lock();
        inner.filled_slots().filter_map(|s| s.freed.next(from)).min()
    }

    /// The first block at or after `from` that an unwritten txg wrote.
    pub(crate) fn next_written(&self, from: u64) -> Option<u64> {
        let inner = self.state.lock();
        let first = |s: &TxgSlot| s.data.blkids(from..).next();
        inner.filled_slots().filter_map(first).min()
    }
}

impl HandleState {
    /// The txgs' slots, in no order.
    pub(crate) fn filled_slots(&self) -> impl Iterator<Item = &TxgSlot> {
        self.slots.iter().filter_map(Option::as_deref)
    }

    fn filled_slots_mut(&mut self) -> impl Iterator<Item = &mut TxgSlot> {
        self.slots.iter_mut().filter_map(Option::as_deref_mut)
    }

    /// The newest slot of a txg up to `txg`.
    pub(crate) fn newest(&self, txg: Txg) -> Option<&TxgSlot> {
        self.filled_slots().filter(|s| s.txg <= txg).max_by_key(|s| s.txg)
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    /// The state of a block after the txgs up to `txg`; `None` if none of them touched it.
    pub(crate) fn block(&mut self, txg: Txg, blkid: u64, range: Range<usize>) -> Option<Dirty> {
        let mut seen = None;
        loop {
            let wanted = |s: &&mut TxgSlot| s.txg <= txg && seen.is_none_or(|seen| s.txg < seen);
            let slot = self.filled_slots_mut().filter(wanted).max_by_key(|s| s.txg)?;
            seen = Some(slot.txg);
            if let Some(content) = slot.data.get_mut(blkid) {
                if let Some(bp) = content.cloned() {
                    return Some(Dirty::Cloned(bp));
                }
                // A block that grew since then reads as zeros behind its old end.
                if range.end <= content.len() {
                    return Some(Dirty::Data(content.part(range)));
                }
                let mut whole = BufMut::zeroed(range.end);
                let n = content.len();
                whole[..n].copy_from_slice(&content.part(0..n));
                return Some(Dirty::Data(whole.freeze().slice(range)));
            }
            if slot.freed.contains(blkid) || !slot.head.allocated {
                return Some(Dirty::Hole);
            }
        }
    }

    /// Whether the object has a spill block in `txg`.
    pub(crate) fn has_spill(&self, txg: Txg) -> bool {
        match self.spill(txg) {
            Some(Spill::Set(_) | Spill::Sealed(..)) => true,
            Some(Spill::Remove) => false,
            Some(Spill::Keep) | None => self.disk.as_ref().is_some_and(|d| d.spill.is_some()),
        }
    }

    /// The state of the spill block after the txgs up to `txg`; `None` if unchanged.
    pub(crate) fn spill(&self, txg: Txg) -> Option<&Spill> {
        let changed = |s: &&TxgSlot| s.txg <= txg && !matches!(s.head.spill, Spill::Keep);
        self.filled_slots().filter(changed).max_by_key(|s| s.txg).map(|s| &s.head.spill)
    }

    /// The slot of `txg`, made from the newest older state if there is none.
    pub(crate) fn slot(&mut self, txg: Txg) -> Result<&mut TxgSlot> {
        let at = slot_of(txg);
        match &self.slots[at] {
            Some(slot) if slot.txg != txg => {
                return Err(base::bug!("a txg begins before its slot is free"));
            }
            Some(slot) if slot.frozen => {
                return Err(base::bug!("the txg is being written already"));
            }
            Some(_) => {}
            None => {
                let older = self.newest(txg).map(|s| s.head.clone());
                let head = match (older, &self.disk) {
                    // The older txg itself makes its change of the spill block.
                    (Some(head), _) => DnodeHead { spill: Spill::Keep, fresh: false, ..head },
                    (None, Some(dn)) => DnodeHead::of(dn)?,
                    (None, None) => {
                        return Err(Error::new(ErrorKind::NotFound, "no such object"));
                    }
                };
                if !head.allocated {
                    return Err(Error::new(ErrorKind::NotFound, "no such object"));
                }
                self.slots[at] = Some(Box::new(TxgSlot::new(txg, head)));
            }
        }
        self.slots[at].as_deref_mut().ok_or_else(|| base::bug!("a slot vanished"))
    }

    fn newer(&mut self, txg: Txg) -> impl Iterator<Item = &mut TxgSlot> {
        self.filled_slots_mut().filter(move |s| s.txg > txg && s.head.allocated)
    }

    /// Applies `change` to the dnode in `txg` and in newer txgs.
    pub(crate) fn change(
        &mut self,
        txg: Txg,
        mut change: impl FnMut(&mut DnodeHead),
    ) -> Result<()> {
        let slot = self.slot(txg)?;
        if !slot.head.allocated {
            return Err(Error::not_found("no such object"));
        }
        change(&mut slot.head);
        self.newer(txg).for_each(|s| change(&mut s.head));
        Ok(())
    }

    /// Whether a newer txg has changed the object.
    pub(super) fn has_newer(&mut self, txg: Txg) -> bool {
        self.newer(txg).next().is_some()
    }

    /// Fails if a newer txg changed the block size, because the block ids of the two txgs
    /// then differ. A thread that changes the size excludes all others.
    fn check_newer(&mut self, txg: Txg, blkid: u64) -> Result<()> {
        let shape = |head: &DnodeHead| (head.block_size, head.indirect_shift);
        let own = shape(&self.slot(txg)?.head);
        if blkid > 0 && self.newer(txg).any(|s| shape(&s.head) != own) {
            return Err(Error::invalid("a newer txg changed the block size"));
        }
        Ok(())
    }

    /// Fails if a newer txg cloned the block: its content there is not in memory.
    fn check_newer_clone(&mut self, txg: Txg, blkid: u64) -> Result<()> {
        let cloned = |s: &mut TxgSlot| s.data.get_mut(blkid).is_some_and(|c| c.cloned().is_some());
        match self.newer(txg).any(cloned) {
            true => Err(Error::invalid("a newer txg cloned the block")),
            false => Ok(()),
        }
    }

    /// The slots of the object's txgs from `txg` on.
    pub(crate) fn from(&self, txg: Txg) -> impl Iterator<Item = &TxgSlot> {
        self.filled_slots().filter(move |s| s.txg >= txg && s.head.allocated)
    }

    /// Makes `block` the content of a block in the txg, and in newer txgs that have the
    /// block.
    pub(crate) fn put(&mut self, txg: Txg, blkid: u64, block: BufMut) -> Result<Delta> {
        let slot = self.slot(txg)?;
        slot.head.check_block(blkid)?;
        if block.len() != slot.head.block_size as usize {
            return Err(Error::invalid("a block of the wrong size"));
        }
        self.check_newer(txg, blkid)?;
        self.check_newer_clone(txg, blkid)?;
        self.changes += 1;
        let mut delta = Delta::default();
        for newer in self.newer(txg) {
            let n = block.len().min(newer.head.block_size as usize);
            let mut copy = |buf: &mut [u8]| {
                buf[..n].copy_from_slice(&block[..n]);
                Ok(())
            };
            let mut copy = BlockEdit::Plain(&mut copy);
            newer.edit_older(blkid, &mut delta, Holes::Fill, &mut copy)?;
        }
        let slot = self.slot(txg)?;
        delta.nodes = slot.new_nodes(blkid);
        delta.own = slot.put(blkid, block);
        Ok(delta)
    }

    /// As [`HandleState::put`], for content that is compressed already and that the caller
    /// unpacked once.
    pub(crate) fn put_packed(
        &mut self,
        txg: Txg,
        blkid: u64,
        bytes: &Buf,
        form: PackedForm,
    ) -> Result<Delta> {
        if self.newer(txg).next().is_some() {
            if form.seal.is_some() {
                return Err(Error::invalid("a newer txg changed the object"));
            }
            return self.put(txg, blkid, unpacked(bytes, form));
        }
        let slot = self.slot(txg)?;
        slot.head.check_block(blkid)?;
        if form.lsize != slot.head.block_size {
            return Err(Error::invalid("a block of the wrong size"));
        }
        let mut delta = Delta { nodes: slot.new_nodes(blkid), ..Delta::default() };
        delta.own = slot.put_content(blkid, DirtyContent::Packed(bytes.clone(), form));
        self.changes += 1;
        Ok(delta)
    }

    /// Gives the object another head in the txg: type, bonus, dnode size, and, if `fresh`,
    /// an empty tree of another shape. No newer txg has changed the object.
    pub(crate) fn reclaim(
        &mut self,
        txg: Txg,
        fresh: bool,
        change: impl FnOnce(&mut DnodeHead),
    ) -> Result<Delta> {
        if self.newer(txg).next().is_some() {
            return Err(Error::invalid("a newer txg changed the object"));
        }
        let delta = if fresh { self.free(txg, 0, u64::MAX, true)? } else { Delta::default() };
        self.changes += 1;
        let slot = self.slot(txg)?;
        change(&mut slot.head);
        if fresh {
            (slot.head.fresh, slot.head.levels, slot.head.max_blkid) = (true, 1, 0);
        }
        Ok(delta)
    }

    /// Edits a block; `base` is its content on disk. Returns `None` if that is needed
    /// first. `holes` says how a hole is treated, in this txg and in newer ones.
    pub(crate) fn edit(
        &mut self,
        txg: Txg,
        blkid: u64,
        base: Option<&Buf>,
        holes: Holes,
        edit: &mut BlockEdit<'_>,
    ) -> Result<Option<Delta>> {
        let slot = self.slot(txg)?;
        slot.head.check_block(blkid)?;
        self.check_newer(txg, blkid)?;
        self.check_newer_clone(txg, blkid)?;
        self.changes += 1;
        let slot = self.slot(txg)?;
        let size = slot.head.block_size as usize;
        slot.invalidate_early(blkid);
        slot.moved.remove(&blkid);
        // An edit that fails leaves it out.
        let checked = slot.checked.remove(&blkid);
        let mut delta = Delta::default();
        let own = slot.data.get_mut(blkid).filter(|content| content.cloned().is_none());
        match own.map(DirtyContent::open) {
            Some(Some(buf)) => {
                if edit.apply(buf, checked)? {
                    slot.checked.insert(blkid);
                }
            }
            Some(None) => return Err(base::bug!("a block is frozen too early")),
            None => {
                // The newest older state is the base; the changes of newer txgs are kept.
                let old = match self.block(txg, blkid, 0..size) {
                    Some(Dirty::Data(old)) => old,
                    Some(Dirty::Hole) => Buf::zeros(0),
                    Some(Dirty::Cloned(_)) => match base {
                        Some(base) => base.clone(),
                        None => return Ok(None),
                    },
                    None => match base {
                        Some(base) => base.clone(),
                        // A new object has nothing on disk.
                        None if self.disk.is_none() => Buf::zeros(0),
                        None => return Ok(None),
                    },
                };
                if holes == Holes::Fill || !old.is_empty() {
                    let n = old.len().min(size);
                    let mut fresh = BufMut::alloc(size);
                    fresh[..n].copy_from_slice(&old[..n]);
                    fresh[n..].fill(0);
                    let checked = edit.apply(&mut fresh, false)?;
                    let slot = self.slot(txg)?;
                    delta.nodes = slot.new_nodes(blkid);
                    delta.own = slot.put(blkid, fresh);
                    if checked {
                        slot.checked.insert(blkid);
                    }
                }
            }
        }
        for newer in self.newer(txg) {
            newer.edit_older(blkid, &mut delta, holes, edit)?;
        }
        Ok(Some(delta))
    }

    /// Makes a block dirty without a change of its content, so that the txg writes it anew.
    /// `content` is what the block holds where no unwritten txg has it; it is no hole on disk. A
    /// hole that an unwritten txg made stays one; a block that the txg writes in any case keeps the reason for which it is written.
    pub(crate) fn move_block(
        &mut self,
        txg: Txg,
        blkid: u64,
        content: &Buf,
        how: BlockChange,
    ) -> Result<Delta> {
        let mut delta = Delta::default();
        let slot = self.slot(txg)?;
        slot.head.check_block(blkid)?;
        let (size, last) = (slot.head.block_size as usize, slot.head.max_blkid);
        if slot.data.get_mut(blkid).is_some() {
            // What must look changed later stays so.
            if let Some(old) = slot.moved.get_mut(&blkid)
                && how == BlockChange::Moved
            {
                *old = how;
            }
            return Ok(delta);
        }
        let content = match self.block(txg, blkid, 0..size) {
            Some(Dirty::Data(content)) => content,
            Some(Dirty::Hole) => return Ok(delta),
            Some(Dirty::Cloned(_)) | None => content.clone(),
        };
        if blkid > last || content.len() != size {
            return Ok(delta);
        }
        let slot = self.slot(txg)?;
        delta.nodes = slot.new_nodes(blkid);
        delta.own = size as i64;
        // The buffer is the cache's, or an older txg's: a change of the block copies it.
        slot.data.insert(blkid, DirtyContent::Shared(content));
        slot.moved.insert(blkid, how);
        slot.bytes += size as u64;
        Ok(delta)
    }

    /// Frees blocks `[first, past)`; with `truncate` all from `first`.
    pub(crate) fn free(
        &mut self,
        txg: Txg,
        first: u64,
        past: u64,
        truncate: bool,
    ) -> Result<Delta> {
        let slot = self.slot(txg)?;
        if !slot.head.allocated {
            return Err(Error::not_found("no such object"));
        }
        let past = if truncate { u64::MAX } else { past };
        if !(truncate && first == 0) {
            self.check_newer(txg, past.saturating_sub(1))?;
        }
        self.changes += 1;
        let mut delta = Delta::default();
        if first < past {
            let slot = self.slot(txg)?;
            slot.freed.add(first, past);
            delta.own = slot.drop_blocks(first, past);
            for newer in self.newer(txg) {
                delta.newer.push((newer.txg, newer.drop_blocks(first, past)));
            }
        }
        if truncate {
            let last = first.saturating_sub(1);
            let cut = |head: &mut DnodeHead| head.max_blkid = head.max_blkid.min(last);
            cut(&mut self.slot(txg)?.head);
            self.newer(txg).for_each(|s| cut(&mut s.head));
        }
        Ok(delta)
    }

    /// Changes the block size. Block 0 keeps its content, which is `base` if only the disk
    /// has it.
    pub(crate) fn resize(
        &mut self,
        txg: Txg,
        size: u32,
        shift: u8,
        base: Option<&Buf>,
    ) -> Result<Option<Delta>> {
        let slot = self.slot(txg)?;
        let (old, levels) = (slot.head.block_size as usize, slot.head.levels);
        let several = |s: &TxgSlot| s.head.max_blkid > 0;
        if !slot.head.allocated {
            return Err(Error::not_found("no such object"));
        }
        if several(slot) || self.newer(txg).any(|s| several(s)) {
            return Err(Error::invalid("an object of several blocks keeps its block size"));
        }
        // The existing indirect blocks may have blocks of another size below them.
        if levels > 1 && (!size.is_power_of_two() || shift != 0) {
            return Err(Error::invalid("an object with indirect blocks keeps its shape"));
        }
        self.check_newer_clone(txg, 0)?;
        self.changes += 1;
        let content = match self.block(txg, 0, 0..old) {
            Some(Dirty::Data(buf)) => Some(buf),
            Some(Dirty::Hole) => None,
            Some(Dirty::Cloned(_)) => match base {
                Some(base) => Some(base.clone()),
                None => return Ok(None),
            },
            None => match base {
                None if self.disk.is_none() => None,
                None => return Ok(None),
                Some(base) if base.is_empty() => None,
                Some(base) => Some(base.clone()),
            },
        };
        self.change(txg, |head| {
            head.block_size = size;
            if shift != 0 {
                head.indirect_shift = shift;
            }
        })?;
        let mut delta = Delta::default();
        for newer in self.newer(txg) {
            if let Some(content) = newer.data.get_mut(0) {
                let (mut block, n) =
                    (BufMut::zeroed(size as usize), content.len().min(size as usize));
                block[..n].copy_from_slice(&content.part(0..n));
                delta.newer.push((newer.txg, newer.put(0, block)));
            }
        }
        if let Some(content) = content {
            let n = content.len().min(size as usize);
            let mut fresh = BufMut::alloc(size as usize);
            fresh[..n].copy_from_slice(&content[..n]);
            fresh[n..].fill(0);
            delta.own = self.slot(txg)?.put(0, fresh);
        }
        Ok(Some(delta))
    }
}

impl TxgSlot {
    /// Applies an older txg's change of a block to a newer txg's state of it.
    fn edit_older(
        &mut self,
        blkid: u64,
        delta: &mut Delta,
        holes: Holes,
        edit: &mut BlockEdit<'_>,
    ) -> Result<()> {
        if holes == Holes::Fill {
            self.head.reach(blkid);
        }
        self.invalidate_early(blkid);
        let checked = self.checked.remove(&blkid);
        if let Some(buf) = self.data.get_mut(blkid).and_then(DirtyContent::open) {
            if edit.apply(buf, checked)? {
                self.checked.insert(blkid);
            }
            return Ok(());
        }
        if self.freed.contains(blkid) && holes == Holes::Fill {
            let mut fresh = BufMut::zeroed(self.head.block_size as usize);
            edit.apply(&mut fresh, false)?;
            delta.newer.push((self.txg, self.put(blkid, fresh)));
        }
        Ok(())
    }
}
