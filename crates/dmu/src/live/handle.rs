//! One dirty object: what each group makes of its dnode and of its blocks.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use base::rt::Mutex;
use base::{Buf, BufMut, Error, ErrorKind, Result, Txg};
use ondisk::dnode::DNODE_SIZE;
use ondisk::{BlkPtr, Dnode, ObjType};

use super::blocks::Blocks;
use super::early::Written;
use super::ranges::BlockRanges;

/// Groups that may have dirty data at a time: open, quiescing, syncing, and one to
/// spare (chapter 05).
pub(crate) const TXG_SLOTS: usize = 4;

/// What becomes of the spill block.
#[derive(Clone, Debug)]
pub(crate) enum Spill {
    /// Stays as it is on disk.
    Keep,
    /// Gets this content.
    Set(Buf),
    /// Goes.
    Remove,
}

/// A dnode without its tree: what a transaction changes at once.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// False once the object was freed.
    pub(crate) allocated: bool,
    /// What cannot be read below freed blocks is given up.
    pub(crate) gives_up: bool,
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
}

impl Head {
    /// # Errors
    /// `Unsupported` for a bonus that a big-endian host wrote and that cannot be turned.
    pub(crate) fn of(dn: &Dnode) -> Result<Head> {
        Ok(Head {
            allocated: true,
            gives_up: false,
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
        })
    }

    /// A block was written: the tree reaches so far.
    fn reach(&mut self, blkid: u64) {
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

    /// Whether a bonus so long fits, beside a spill pointer or without.
    pub(crate) fn check_bonus(&self, len: usize, spill: bool) -> Result<()> {
        let pointers = usize::from(self.nblkptr) + usize::from(spill);
        let fits = 64 + 128 * pointers + len <= usize::from(self.slots) * DNODE_SIZE;
        fits.then_some(()).ok_or_else(|| Error::invalid("the bonus does not fit its dnode"))
    }
}

/// A block's content in one group.
pub(crate) enum Content {
    /// Still changing.
    Open(BufMut),
    /// Still changing, and perhaps read: who changes it next copies if it still is.
    Shown(Buf),
    /// The group is being written: never changes again.
    Frozen(Buf),
}

impl Content {
    fn take(&mut self) -> Content {
        std::mem::replace(self, Content::Frozen(Buf::zeros(0)))
    }

    /// What it holds, to be read while it changes; nothing is copied.
    fn part(&mut self, range: Range<usize>) -> Buf {
        if range.is_empty() {
            return Buf::zeros(0);
        }
        if matches!(self, Content::Open(_))
            && let Content::Open(buf) = self.take()
        {
            *self = Content::Shown(buf.freeze());
        }
        match self {
            Content::Shown(buf) | Content::Frozen(buf) => buf.slice(range),
            Content::Open(_) => Buf::zeros(0),
        }
    }

    /// All that it holds, likewise.
    pub(crate) fn shown(&mut self) -> Buf {
        let len = self.len();
        self.part(0..len)
    }

    /// What it holds, to be changed; `None` once it is frozen.
    fn open(&mut self) -> Option<&mut BufMut> {
        if matches!(self, Content::Shown(_))
            && let Content::Shown(buf) = self.take()
        {
            let buf = buf.try_unfreeze().unwrap_or_else(|shared| BufMut::copy_of(&shared));
            *self = Content::Open(buf);
        }
        if let Content::Open(buf) = self { Some(buf) } else { None }
    }

    /// Ends all change.
    pub(crate) fn freeze(&mut self) -> Buf {
        let buf = match self.take() {
            Content::Open(buf) => buf.freeze(),
            Content::Shown(buf) | Content::Frozen(buf) => buf,
        };
        *self = Content::Frozen(buf.clone());
        buf
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Content::Open(buf) => buf.len(),
            Content::Shown(buf) | Content::Frozen(buf) => buf.len(),
        }
    }
}

/// What one group does to the object.
pub(crate) struct Slot {
    pub(crate) txg: Txg,
    pub(crate) head: Head,
    /// Level-0 blocks written.
    pub(crate) data: Blocks<Content>,
    /// Blocks freed; those written afterwards are in `data`, too.
    pub(crate) freed: BlockRanges,
    /// Memory of `data`.
    pub(crate) bytes: u64,
    /// What of it the sync thread's own changes took: the throttle does not know it.
    pub(crate) untold: i64,
    /// The group is being written: nothing in it changes any more.
    pub(crate) frozen: bool,
    /// Blocks that are written already, as long as they have not changed since.
    pub(crate) early: BTreeMap<u64, Written>,
    /// Places of such blocks that changed: to be freed.
    pub(crate) wasted: Vec<BlkPtr>,
}

/// What an edit makes of a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holes {
    /// A block of zeros, edited.
    Fill,
    /// It stays one: the edit only zeroes.
    Keep,
}

/// Dirty memory that came or went, by group.
#[derive(Default)]
pub(crate) struct Delta {
    /// In the transaction's group.
    pub(crate) own: i64,
    /// Indirect blocks that the transaction's group will write and did not before.
    pub(crate) nodes: u8,
    /// In newer groups, which an older group's change reached.
    pub(crate) newer: Vec<(Txg, i64)>,
}

impl Slot {
    pub(crate) fn new(txg: Txg, head: Head) -> Slot {
        let (data, freed) = (Blocks::default(), BlockRanges::default());
        let (early, wasted) = (BTreeMap::new(), Vec::new());
        Slot { txg, head, data, freed, bytes: 0, untold: 0, frozen: false, early, wasted }
    }

    /// The block changes: what was written of it is not it any more.
    pub(crate) fn disturb(&mut self, blkid: u64) {
        if let Some(written) = self.early.remove(&blkid) {
            self.wasted.push(written.bp);
        }
    }

    /// Ends all change: the places of blocks in `data` that are written already, and
    /// places to be freed.
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

    /// Indirect blocks above a block that no written block of the group has above it.
    pub(crate) fn new_nodes(&self, blkid: u64) -> u8 {
        let epb_shift = u32::from(self.head.indirect_shift) - 7;
        let alone = |level: &u8| {
            let shift = epb_shift * u32::from(*level);
            let first = blkid.checked_shr(shift).unwrap_or(0).checked_shl(shift).unwrap_or(0);
            let span = 1u64.checked_shl(shift).map_or(u64::MAX, |n| n - 1);
            self.data.numbers(first..=first.saturating_add(span)).next().is_none()
        };
        (1..self.head.levels).take_while(alone).count() as u8
    }

    /// Makes `block` the content of a block; by how much memory grew.
    fn put(&mut self, blkid: u64, block: BufMut) -> i64 {
        let size = block.len() as u64;
        self.disturb(blkid);
        let old = self.data.insert(blkid, Content::Open(block)).map_or(0, |c| c.len() as u64);
        self.bytes = self.bytes + size - old;
        self.head.reach(blkid);
        size as i64 - old as i64
    }

    /// Drops the content of blocks in `[first, past)`; by how much memory grew.
    fn drop_blocks(&mut self, first: u64, past: u64) -> i64 {
        let mut gone = 0;
        let written: Vec<u64> = self.early.range(first..past).map(|(&b, _)| b).collect();
        written.into_iter().for_each(|blkid| self.disturb(blkid));
        if first == 0 && past == u64::MAX {
            gone = self.bytes;
            self.data.clear();
        } else {
            let ids: Vec<u64> = self.data.numbers(first..past).collect();
            for blkid in ids {
                gone += self.data.remove(blkid).map_or(0, |c| c.len() as u64);
            }
        }
        self.bytes -= gone;
        -(gone as i64)
    }
}

/// The newest state of a block that is not (only) on disk.
pub(crate) enum Dirty {
    Data(Buf),
    Hole,
}

pub(crate) struct Inner {
    /// The dnode as the last written group left it; `None` if it is not on disk.
    pub(crate) disk: Option<Arc<Dnode>>,
    /// Most objects are changed by one group at a time.
    pub(crate) slots: [Option<Box<Slot>>; TXG_SLOTS],
    /// The table dropped this handle: find the object again.
    pub(crate) dead: bool,
    /// The dnode that readers were shown last, until something changes.
    pub(crate) shown: Option<Arc<Dnode>>,
    /// How often the newest content was changed, or perhaps was.
    pub(crate) changes: u64,
    /// What was made of the newest content, and after how many changes.
    pub(crate) memo: Option<(u64, Box<dyn Any + Send>)>,
}

/// One object with dirty state.
pub(crate) struct Handle {
    pub(crate) state: Mutex<Inner>,
}

pub(crate) fn slot_of(txg: Txg) -> usize {
    txg.0 as usize % TXG_SLOTS
}

impl Handle {
    pub(crate) fn new(disk: Option<Arc<Dnode>>) -> Handle {
        Handle {
            state: Mutex::new(Inner {
                disk,
                slots: std::array::from_fn(|_| None),
                dead: false,
                shown: None,
                changes: 0,
                memo: None,
            }),
        }
    }

    /// The end of the range of freed blocks that `at` is in, or `at` if it is in none: what
    /// the newest groups wrote there aside.
    pub(crate) fn freed_until(&self, at: u64) -> u64 {
        let inner = self.state.lock();
        inner.there().map(|s| s.freed.end_of(at)).max().unwrap_or(at)
    }

    /// The first block at or after `from` that an unwritten group freed.
    pub(crate) fn next_freed(&self, from: u64) -> Option<u64> {
        let inner = self.state.lock();
        inner.there().filter_map(|s| s.freed.next(from)).min()
    }

    /// The first block at or after `from` that an unwritten group wrote.
    pub(crate) fn next_written(&self, from: u64) -> Option<u64> {
        let inner = self.state.lock();
        let first = |s: &Slot| s.data.numbers(from..).next();
        inner.there().filter_map(first).min()
    }
}

impl Inner {
    /// The groups' slots, in no order.
    pub(crate) fn there(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter_map(Option::as_deref)
    }

    fn there_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.slots.iter_mut().filter_map(Option::as_deref_mut)
    }

    /// The newest group's slot up to `txg`.
    pub(crate) fn newest(&self, txg: Txg) -> Option<&Slot> {
        self.there().filter(|s| s.txg <= txg).max_by_key(|s| s.txg)
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    /// What groups up to `txg` made of a block; `None` if none touched it.
    pub(crate) fn block(&mut self, txg: Txg, blkid: u64, range: Range<usize>) -> Option<Dirty> {
        let mut seen = None;
        loop {
            let wanted = |s: &&mut Slot| s.txg <= txg && seen.is_none_or(|seen| s.txg < seen);
            let slot = self.there_mut().filter(wanted).max_by_key(|s| s.txg)?;
            seen = Some(slot.txg);
            if let Some(content) = slot.data.get_mut(blkid) {
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
            Some(Spill::Set(_)) => true,
            Some(Spill::Remove) => false,
            Some(Spill::Keep) | None => self.disk.as_ref().is_some_and(|d| d.spill.is_some()),
        }
    }

    /// What became of the spill block in groups up to `txg`; `None` if it stayed.
    pub(crate) fn spill(&self, txg: Txg) -> Option<&Spill> {
        let changed = |s: &&Slot| s.txg <= txg && !matches!(s.head.spill, Spill::Keep);
        self.there().filter(changed).max_by_key(|s| s.txg).map(|s| &s.head.spill)
    }

    /// The slot of `txg`, begun from the newest older state if need be.
    pub(crate) fn slot(&mut self, txg: Txg) -> Result<&mut Slot> {
        let at = slot_of(txg);
        match &self.slots[at] {
            Some(slot) if slot.txg != txg => {
                return Err(Error::bug("a group begins before its slot is free"));
            }
            Some(slot) if slot.frozen => {
                return Err(Error::bug("the group is being written already"));
            }
            Some(_) => {}
            None => {
                let older = self.newest(txg).map(|s| s.head.clone());
                let head = match (older, &self.disk) {
                    // What an older group does with the spill block, it does itself.
                    (Some(head), _) => Head { spill: Spill::Keep, ..head },
                    (None, Some(dn)) => Head::of(dn)?,
                    (None, None) => {
                        return Err(Error::new(ErrorKind::NotFound, "no such object"));
                    }
                };
                if !head.allocated {
                    return Err(Error::new(ErrorKind::NotFound, "no such object"));
                }
                self.slots[at] = Some(Box::new(Slot::new(txg, head)));
            }
        }
        self.slots[at].as_deref_mut().ok_or_else(|| Error::bug("a slot vanished"))
    }

    fn newer(&mut self, txg: Txg) -> impl Iterator<Item = &mut Slot> {
        self.there_mut().filter(move |s| s.txg > txg && s.head.allocated)
    }

    /// Applies `change` to the dnode in `txg` and in what newer groups made of it.
    pub(crate) fn change(&mut self, txg: Txg, mut change: impl FnMut(&mut Head)) -> Result<()> {
        let slot = self.slot(txg)?;
        if !slot.head.allocated {
            return Err(Error::not_found("no such object"));
        }
        change(&mut slot.head);
        self.newer(txg).for_each(|s| change(&mut s.head));
        Ok(())
    }

    /// A newer group that changed the block size knows the older one's blocks by other
    /// numbers: whoever changes the size excludes everybody else.
    fn check_newer(&mut self, txg: Txg, blkid: u64) -> Result<()> {
        let shape = |head: &Head| (head.block_size, head.indirect_shift);
        let own = shape(&self.slot(txg)?.head);
        if blkid > 0 && self.newer(txg).any(|s| shape(&s.head) != own) {
            return Err(Error::invalid("a newer group changed the block size"));
        }
        Ok(())
    }

    /// Groups from `txg` on that know the object.
    pub(crate) fn from(&self, txg: Txg) -> impl Iterator<Item = &Slot> {
        self.there().filter(move |s| s.txg >= txg && s.head.allocated)
    }

    /// Makes `block` the group's content of a block, and of newer groups that have it.
    pub(crate) fn put(&mut self, txg: Txg, blkid: u64, block: BufMut) -> Result<Delta> {
        let slot = self.slot(txg)?;
        slot.head.check_block(blkid)?;
        if block.len() != slot.head.block_size as usize {
            return Err(Error::invalid("a block of the wrong size"));
        }
        self.check_newer(txg, blkid)?;
        self.changes += 1;
        let mut delta = Delta::default();
        for newer in self.newer(txg) {
            let n = block.len().min(newer.head.block_size as usize);
            newer.also(blkid, &mut delta, Holes::Fill, &mut |buf| {
                buf[..n].copy_from_slice(&block[..n]);
                Ok(())
            })?;
        }
        let slot = self.slot(txg)?;
        delta.nodes = slot.new_nodes(blkid);
        delta.own = slot.put(blkid, block);
        Ok(delta)
    }

    /// Edits a block; `base` is what the disk has of it. `None` if that is needed first.
    /// `holes` says what becomes of a hole, in this group and in newer ones.
    pub(crate) fn edit(
        &mut self,
        txg: Txg,
        blkid: u64,
        base: Option<&Buf>,
        holes: Holes,
        edit: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<Option<Delta>> {
        let slot = self.slot(txg)?;
        slot.head.check_block(blkid)?;
        self.check_newer(txg, blkid)?;
        self.changes += 1;
        let slot = self.slot(txg)?;
        let size = slot.head.block_size as usize;
        slot.disturb(blkid);
        let mut delta = Delta::default();
        match slot.data.get_mut(blkid).map(Content::open) {
            Some(Some(buf)) => edit(buf)?,
            Some(None) => return Err(Error::bug("a block is frozen too early")),
            None => {
                // The newest older state is the base; what newer groups did stays theirs.
                let old = match self.block(txg, blkid, 0..size) {
                    Some(Dirty::Data(old)) => old,
                    Some(Dirty::Hole) => Buf::zeros(0),
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
                    edit(&mut fresh)?;
                    let slot = self.slot(txg)?;
                    delta.nodes = slot.new_nodes(blkid);
                    delta.own = slot.put(blkid, fresh);
                }
            }
        }
        for newer in self.newer(txg) {
            newer.also(blkid, &mut delta, holes, edit)?;
        }
        Ok(Some(delta))
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
            let cut = |head: &mut Head| head.max_blkid = head.max_blkid.min(last);
            cut(&mut self.slot(txg)?.head);
            self.newer(txg).for_each(|s| cut(&mut s.head));
        }
        Ok(delta)
    }

    /// Changes the block size; block 0 keeps its content, `base` if only the disk has it.
    pub(crate) fn resize(
        &mut self,
        txg: Txg,
        size: u32,
        shift: u8,
        base: Option<&Buf>,
    ) -> Result<Option<Delta>> {
        let slot = self.slot(txg)?;
        let (old, levels) = (slot.head.block_size as usize, slot.head.levels);
        let several = |s: &Slot| s.head.max_blkid > 0;
        if !slot.head.allocated {
            return Err(Error::not_found("no such object"));
        }
        if several(slot) || self.newer(txg).any(|s| several(s)) {
            return Err(Error::invalid("an object of several blocks keeps its block size"));
        }
        // Blocks of another size may be below indirect blocks that were there before.
        if levels > 1 && (!size.is_power_of_two() || shift != 0) {
            return Err(Error::invalid("an object with indirect blocks keeps its shape"));
        }
        self.changes += 1;
        let content = match self.block(txg, 0, 0..old) {
            Some(Dirty::Data(buf)) => Some(buf),
            Some(Dirty::Hole) => None,
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

impl Slot {
    /// An older group changes a block: this one's state of it changes likewise.
    fn also(
        &mut self,
        blkid: u64,
        delta: &mut Delta,
        holes: Holes,
        edit: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        if holes == Holes::Fill {
            self.head.reach(blkid);
        }
        self.disturb(blkid);
        if let Some(buf) = self.data.get_mut(blkid).and_then(Content::open) {
            return edit(buf);
        }
        if self.freed.contains(blkid) && holes == Holes::Fill {
            let mut fresh = BufMut::zeroed(self.head.block_size as usize);
            edit(&mut fresh)?;
            delta.newer.push((self.txg, self.put(blkid, fresh)));
        }
        Ok(())
    }
}
