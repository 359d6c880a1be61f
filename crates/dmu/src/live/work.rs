//! One object while its txg is written: the new dnode, and the indirect blocks above the
//! changes.
//!
//! # Theory
//! Freed ranges are cut out of the tree first, then levels are added. Then pointers to the
//! written blocks are put in, level by level from below (chapter 03 §3, §10-11). Indirect
//! blocks that change are held as raw little-endian bytes; one whose pointers are all holes
//! becomes a hole itself.
//!
//! # Departures from OpenZFS
//! An indirect block that growing put above holes with births becomes a hole with a birth,
//! not 128 zero bytes: an incremental send would miss the frees there.
//!
//! # Invariants
//! * [`Work::used`] changes with every pointer, so it is the sum over the tree.
//! * Every replaced pointer is reported once, through [`super::sync::Events`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::Lsize;
use base::{Buf, BufMut, Error, ObjectId, Result, Txg};
use ondisk::blkptr::{BLKPTR_SIZE, BlkPtr, Head as BpHead, Hole, Seal};
use ondisk::dnode::flags;
use ondisk::{Dnode, Endian, ObjType};
use zio::{BlockChange, Io, PackedForm, Zio};

use super::handle::{DnodeHead, Spill};
use super::ranges::BlockRanges;
use super::sync::{Events, SyncCtx};

/// Offset of the logical birth in a pointer.
const BIRTH_AT: usize = 0x50;

/// An indirect block that changes.
pub(crate) struct IndirectNode {
    pub(crate) bytes: BufMut,
    pub(crate) old: BlkPtr,
}

/// An object being written.
pub(crate) struct Work {
    pub(crate) id: ObjectId,
    /// The dnode on disk.
    pub(crate) old: Option<Arc<Dnode>>,
    /// The new dnode.
    pub(crate) dn: Dnode,
    /// False: it was freed.
    pub(crate) allocated: bool,
    /// Space below freed indirect blocks that cannot be read is leaked.
    leaks_unreadable: bool,
    pub(crate) freed: BlockRanges,
    /// Level-0 blocks written, ascending.
    pub(crate) data: Vec<(u64, Buf)>,
    /// Pointers of those among `data` that are written already.
    pub(crate) early: BTreeMap<u64, BlkPtr>,
    /// Pointers to be freed to which nothing refers.
    pub(crate) wasted: Vec<BlkPtr>,
    /// Those among `data` that only move.
    pub(crate) moved: BTreeMap<u64, BlockChange>,
    /// The forms of those among `data` that are compressed already.
    pub(crate) packed: BTreeMap<u64, PackedForm>,
    /// The shape of the tree once the old one is cut ([`DnodeHead::fresh`]).
    fresh: Option<FreshTree>,
    pub(crate) spill: Spill,
    /// Levels that the tree gets at least.
    pub(crate) min_levels: u8,
    /// The whole bonus area, where the txg changes it.
    pub(crate) area: Option<Arc<[u8]>>,
    /// Parameters of blocks of encrypted dnodes.
    pub(crate) seals: BTreeMap<u64, Seal>,
    /// Fill counts of level-0 blocks, where they are not 1 (blocks of dnodes).
    pub(crate) fills: BTreeMap<u64, u64>,
    /// Changed indirect blocks by level and block id.
    pub(crate) nodes: BTreeMap<(u8, u64), IndirectNode>,
    used: i128,
}

/// The shape of a tree that begins anew.
struct FreshTree {
    block_size: u32,
    indirect_shift: u8,
    nblkptr: u8,
}

/// An indirect block that must be read.
pub(crate) struct NeededBlock {
    pub(crate) level: u8,
    pub(crate) blkid: u64,
    pub(crate) bp: BlkPtr,
}

impl Work {
    pub(crate) fn new(
        id: ObjectId,
        old: Option<Arc<Dnode>>,
        head: &DnodeHead,
        freed: BlockRanges,
        data: Vec<(u64, Buf)>,
    ) -> Work {
        let flags = old.as_ref().map_or(0, |d| d.flags);
        let mut dn = super::merged(head, old.as_deref(), flags);
        dn.max_blkid = head.max_blkid;
        let mut fresh = None;
        if let Some(old) = old.as_deref().filter(|_| head.fresh) {
            // The old tree is cut in its own shape.
            (dn.data_block_size, dn.indirect_shift) = (old.data_block_size, old.indirect_shift);
            fresh = Some(FreshTree {
                block_size: head.block_size,
                indirect_shift: head.indirect_shift,
                nblkptr: head.nblkptr,
            });
        } else if dn.blkptrs.len() < usize::from(head.nblkptr) {
            dn.blkptrs.resize(usize::from(head.nblkptr), BlkPtr::default());
        }
        let used = i128::from(dn.used);
        Work {
            id,
            old,
            dn,
            allocated: head.allocated,
            leaks_unreadable: head.leaks_unreadable,
            freed,
            data,
            early: BTreeMap::new(),
            wasted: Vec::new(),
            moved: BTreeMap::new(),
            packed: BTreeMap::new(),
            fresh,
            spill: head.spill.clone(),
            min_levels: 1,
            area: head.area.clone(),
            seals: BTreeMap::new(),
            fills: BTreeMap::new(),
            nodes: BTreeMap::new(),
            used,
        }
    }

    /// Completes the dnode with its space and returns.
    pub(crate) fn finish(&mut self) -> Result<()> {
        if self.leaks_unreadable && !self.allocated {
            self.used = 0;
        }
        self.dn.used = u64::try_from(self.used)
            .map_err(|_| Error::corrupt("an object frees more than it used").in_object(self.id))?;
        self.dn.flags |= flags::USED_BYTES;
        if !self.allocated && self.dn.used != 0 {
            return Err(Error::corrupt("a freed object still uses space").in_object(self.id));
        }
        Ok(())
    }

    pub(crate) fn replaced(&mut self, ctx: &SyncCtx<'_>, old: &BlkPtr, new: &BlkPtr) {
        self.used += i128::from(ctx.dsize(new)) - i128::from(ctx.dsize(old));
    }

    fn mask(&self) -> u64 {
        (1 << self.dn.epb_shift()) - 1
    }

    /// The current pointer to a block.
    pub(crate) fn pointer(&self, level: u8, blkid: u64) -> Result<BlkPtr> {
        if level + 1 >= self.dn.levels {
            let index = usize::try_from(blkid).unwrap_or(usize::MAX);
            let bp = self.dn.blkptrs.get(index);
            return bp.copied().ok_or_else(|| self.bug("a block beyond the tree"));
        }
        let parent = (level + 1, blkid >> self.dn.epb_shift());
        let node = self.nodes.get(&parent).ok_or_else(|| self.bug("a parent is not loaded"))?;
        BlkPtr::parse_nth(&node.bytes, (blkid & self.mask()) as usize, Endian::Little)
    }

    pub(crate) fn set_pointer(&mut self, level: u8, blkid: u64, bp: &BlkPtr) -> Result<()> {
        if level + 1 >= self.dn.levels {
            let index = usize::try_from(blkid).unwrap_or(usize::MAX);
            let Some(slot) = self.dn.blkptrs.get_mut(index) else {
                return Err(self.bug("a block beyond the tree"));
            };
            *slot = *bp;
            return Ok(());
        }
        let parent = (level + 1, blkid >> self.dn.epb_shift());
        let at = (blkid & self.mask()) as usize * BLKPTR_SIZE;
        let raw = bp.encode().ok_or_else(|| self.bug("a pointer that cannot be written"))?;
        let node = self.nodes.get_mut(&parent);
        let slot = node.and_then(|n| n.bytes.get_mut(at..at + BLKPTR_SIZE));
        slot.ok_or_else(|| base::bug!("a parent is not loaded"))?.copy_from_slice(&raw);
        Ok(())
    }

    pub(crate) fn bug(&self, what: &str) -> Error {
        base::bug!("{what}").in_object(self.id)
    }

    /// The hole that replaces `old` in the txg. It has a birth, unless there never was a
    /// block (§3.6).
    pub(crate) fn hole(&self, ctx: &SyncCtx<'_>, old: &BlkPtr, level: u8) -> BlkPtr {
        if old.birth() == Txg::ZERO { BlkPtr::default() } else { self.born_hole(ctx, level) }
    }

    /// The same for an indirect block that leads only to holes. One that was just added
    /// above older pointers has no birth, but the pointers that it replaces may have been
    /// blocks.
    pub(crate) fn node_hole(&self, ctx: &SyncCtx<'_>, node: &IndirectNode, level: u8) -> BlkPtr {
        let born = |bp: &[u8]| Endian::Little.u64(bp, BIRTH_AT).is_some_and(|birth| birth != 0);
        let any = node.bytes.chunks_exact(BLKPTR_SIZE).any(born);
        if any { self.born_hole(ctx, level) } else { self.hole(ctx, &node.old, level) }
    }

    fn born_hole(&self, ctx: &SyncCtx<'_>, level: u8) -> BlkPtr {
        if !ctx.hole_birth {
            return BlkPtr::default();
        }
        let head = BpHead {
            object_type: self.dn.object_type,
            level,
            lsize: Lsize(self.dn.block_size(level)),
            birth: ctx.txg,
        };
        BlkPtr::Hole(Hole { head })
    }

    /// An indirect block's bytes, little endian.
    fn read_node(&self, zio: &Zio, bp: &BlkPtr) -> Result<BufMut> {
        let buf = zio.read(bp, Io::SYNC).map_err(|e| e.in_object(self.id))?;
        Ok(little(&buf, bp.endian()))
    }

    /// A new indirect block below the hole `bp`. Holes below a hole with a birth have the
    /// same birth.
    fn node_below_hole(&self, bp: &BlkPtr, level: u8) -> Result<BufMut> {
        let mut bytes = BufMut::zeroed(1 << self.dn.indirect_shift);
        if bp.birth() == Txg::ZERO {
            return Ok(bytes);
        }
        let head = BpHead {
            object_type: self.dn.object_type,
            level: level - 1,
            lsize: Lsize(self.dn.block_size(level - 1)),
            birth: bp.birth(),
        };
        let raw = BlkPtr::Hole(Hole { head })
            .encode()
            .ok_or_else(|| self.bug("a hole that cannot be written"))?;
        for slot in bytes.chunks_exact_mut(BLKPTR_SIZE) {
            slot.copy_from_slice(&raw);
        }
        Ok(bytes)
    }

    /// Cuts the freed ranges out of the tree.
    pub(crate) fn cut(&mut self, ctx: &SyncCtx<'_>, events: &mut dyn Events) -> Result<()> {
        let freed: Vec<(u64, u64)> = self.freed.iter().collect();
        let Some(old) = self.old.clone() else { return Ok(()) };
        if old.data_block_size != self.dn.data_block_size {
            self.relabel_holes();
        }
        let top = old.levels - 1;
        for (first, past) in freed {
            let span = self.span(top);
            for index in 0..self.dn.blkptrs.len() {
                let start = (index as u64).saturating_mul(span);
                if start >= past || start.saturating_add(span) <= first {
                    continue;
                }
                let bp = self.dn.blkptrs[index];
                self.dn.blkptrs[index] =
                    self.cut_below(ctx, events, bp, top, index as u64, (first, past))?;
            }
        }
        if let Some(fresh) = self.fresh.take() {
            self.dn.levels = 1;
            self.dn.data_block_size = fresh.block_size;
            self.dn.indirect_shift = fresh.indirect_shift;
            self.dn.blkptrs = vec![BlkPtr::default(); usize::from(fresh.nblkptr)];
            self.nodes.clear();
        }
        Ok(())
    }

    /// The block size changed: sets the size in each hole to that of the block that it
    /// stands for.
    fn relabel_holes(&mut self) {
        let lsize = Lsize(self.dn.block_size(0));
        let top = self.dn.levels == 1;
        for bp in self.dn.blkptrs.iter_mut().filter(|_| top) {
            if let BlkPtr::Hole(hole) = bp
                && hole.head.birth != Txg::ZERO
            {
                hole.head.lsize = lsize;
            }
        }
    }

    /// Data blocks below a block of `level`.
    fn span(&self, level: u8) -> u64 {
        1u64.checked_shl(self.dn.epb_shift() * u32::from(level)).unwrap_or(u64::MAX)
    }

    fn kill(&mut self, ctx: &SyncCtx<'_>, events: &mut dyn Events, bp: &BlkPtr) -> Result<()> {
        self.replaced(ctx, bp, &BlkPtr::default());
        events.killed(bp)
    }

    /// Frees the blocks in `range` below the block `blkid` of `level`; returns its new
    /// pointer.
    fn cut_below(
        &mut self,
        ctx: &SyncCtx<'_>,
        events: &mut dyn Events,
        bp: BlkPtr,
        level: u8,
        blkid: u64,
        range: (u64, u64),
    ) -> Result<BlkPtr> {
        let loaded = self.nodes.contains_key(&(level, blkid));
        if bp.is_hole() && !loaded {
            return Ok(bp);
        }
        if level == 0 {
            self.kill(ctx, events, &bp)?;
            return Ok(self.hole(ctx, &bp, 0));
        }
        let span = self.span(level);
        let start = blkid.saturating_mul(span);
        let whole = range.0 <= start && start.saturating_add(span) <= range.1;
        let shift = self.dn.epb_shift();
        let below = self.span(level - 1);
        let mut changed = loaded;
        let mut bytes = match self.nodes.remove(&(level, blkid)) {
            Some(node) => node.bytes,
            None => match self.read_node(ctx.zio, &bp) {
                Err(_) if self.leaks_unreadable => {
                    self.kill(ctx, events, &bp)?;
                    return Ok(self.hole(ctx, &bp, level));
                }
                read => read?,
            },
        };
        for index in 0..1u64 << shift {
            let child = blkid << shift | index;
            let from = child.saturating_mul(below);
            if from >= range.1 || from.saturating_add(below) <= range.0 {
                continue;
            }
            let old = BlkPtr::parse_nth(&bytes, index as usize, Endian::Little)?;
            let new = self.cut_below(ctx, events, old, level - 1, child, range)?;
            if new == old {
                changed |= self.nodes.contains_key(&(level - 1, child));
                continue;
            }
            changed = true;
            let raw = new.encode().ok_or_else(|| self.bug("a pointer that cannot be written"))?;
            let at = index as usize * BLKPTR_SIZE;
            bytes[at..at + BLKPTR_SIZE].copy_from_slice(&raw);
        }
        if whole {
            if !bp.is_hole() {
                self.kill(ctx, events, &bp)?;
            }
            return Ok(self.hole(ctx, &bp, level));
        }
        if changed {
            self.nodes.insert((level, blkid), IndirectNode { bytes, old: bp });
        }
        Ok(bp)
    }

    /// Adds the levels that the highest block needs (§3.3).
    pub(crate) fn add_levels(&mut self) {
        let nblkptr = self.dn.blkptrs.len() as u64;
        let is_full = |dn: &Dnode| {
            nblkptr
                .checked_shl(dn.epb_shift() * u32::from(dn.levels - 1))
                .is_some_and(|capacity| capacity <= dn.max_blkid && capacity > 0)
        };
        while is_full(&self.dn) || self.dn.levels < self.min_levels {
            let level = self.dn.levels;
            let mut bytes = BufMut::zeroed(1 << self.dn.indirect_shift);
            for (slot, bp) in bytes.chunks_exact_mut(BLKPTR_SIZE).zip(&self.dn.blkptrs) {
                if let Some(raw) = bp.encode() {
                    slot.copy_from_slice(&raw);
                }
            }
            self.dn.blkptrs.iter_mut().for_each(|bp| *bp = BlkPtr::default());
            self.nodes.insert((level, 0), IndirectNode { bytes, old: BlkPtr::default() });
            self.dn.levels += 1;
        }
    }

    /// Indirect blocks of `level` above written blocks that are not loaded yet. Those below
    /// holes are made at once.
    pub(crate) fn wanted(&mut self, level: u8) -> Result<Vec<NeededBlock>> {
        if level + 1 > self.dn.levels || level == 0 || level >= self.dn.levels {
            return Ok(Vec::new());
        }
        let shift = self.dn.epb_shift() * u32::from(level);
        let covering = |b: u64| b.checked_shr(shift).unwrap_or(0);
        let data = self.data.iter().map(|(b, _)| covering(*b));
        // A node that is loaded needs its parents.
        let own = self.dn.epb_shift();
        let loaded = self
            .nodes
            .keys()
            .filter(|(l, _)| *l < level)
            .map(|(l, b)| b.checked_shr(own * u32::from(level - l)).unwrap_or(0));
        let ids: BTreeSet<u64> =
            data.chain(loaded).filter(|b| !self.nodes.contains_key(&(level, *b))).collect();
        let mut out = Vec::new();
        for blkid in ids {
            let bp = self.pointer(level, blkid)?;
            if bp.is_hole() {
                let bytes = self.node_below_hole(&bp, level)?;
                self.nodes.insert((level, blkid), IndirectNode { bytes, old: bp });
            } else {
                out.push(NeededBlock { level, blkid, bp });
            }
        }
        Ok(out)
    }

    pub(crate) fn loaded(&mut self, wanted: &NeededBlock, bytes: BufMut) {
        self.nodes.insert((wanted.level, wanted.blkid), IndirectNode { bytes, old: wanted.bp });
    }
}

/// A copy of an indirect block in little-endian order.
pub(crate) fn little(buf: &Buf, endian: Endian) -> BufMut {
    let mut bytes = BufMut::copy_of(buf);
    if endian == Endian::Big {
        ondisk::zap::swap_words(&mut bytes);
    }
    bytes
}

/// The fill count of an indirect block, or `None` if all its pointers are holes.
pub(crate) fn fill_of(bytes: &[u8]) -> Option<u64> {
    let mut fill = 0u64;
    let mut any = false;
    let word = |bp: &[u8], i: usize| Endian::Little.u64(bp, i * 8).unwrap_or(0);
    for bp in bytes.chunks_exact(BLKPTR_SIZE) {
        let props = word(bp, 6);
        if props >> 39 & 1 == 1 {
            (fill, any) = (fill + 1, true);
        } else if word(bp, 0) & 0xff_ffff != 0 {
            let encrypted = props >> 61 & 1 == 1 && props >> 56 & 0x1f == 0;
            let own = word(bp, 11);
            fill += if encrypted { own & 0xffff_ffff } else { own };
            any = true;
        }
    }
    any.then_some(fill)
}

/// The object type of pointers to an object's blocks.
pub(crate) fn spill_type(dn: &Dnode) -> ObjType {
    dn.bonus_type
}
