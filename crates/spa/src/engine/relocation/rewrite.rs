//! Rewriting of trees: from a root down to the positions of moved blocks, and up again with
//! copies of the blocks of pointers on the way.
//!
//! # Theory
//! A tree is descended only to the positions of the batch. A block of pointers is read once
//! for all trees that share it: the table of results has its copy, or that nothing below it
//! moves. Whether a position has the block of the batch is decided by the home of the
//! pointer ([`super::home`]), never by the position.
//!
//! # Invariants
//! * A block of pointers is copied after everything below it was decided.
//! * Pointers with one home get one copy, in all trees.
//! * Only the fields of pointers that lead to bytes change ([`relocate_pointer`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use base::{Buf, BufMut, Error, ObjectId, Result};
use dmu::traverse::SPILL_BLKID;
use dmu::{Io, OutagePolicy};
use dsl::write::relocate::RelocatableDataset;
use ondisk::blkptr::{BLKPTR_SIZE, Block, BlockPlace, relocate_pointer};
use ondisk::dnode::{CORE_SIZE, DNODE_SIZE, DNODES_PER_BLOCK, Dnode, dnodes_in_block};
use ondisk::objset::SPECIAL_DNODES_AT;
use ondisk::{BlkPtr, Endian, ObjType};

use super::home::BlockHome;
use super::{BlockCopier, BlockPosition};

/// The sync thread reads.
const REWRITE_IO: Io = Io::SYNC.with_outage(OutagePolicy::WaitAlways);

/// What was rewritten.
#[derive(Default)]
pub(super) struct Rewritten {
    /// Datasets with their new roots.
    pub(super) roots: Vec<(u64, Block)>,
    /// Positions whose blocks cannot move.
    pub(super) failed: BTreeSet<BlockPosition>,
    /// Places of copies that some tree refers to.
    used: HashSet<BlockPlace>,
}

impl Rewritten {
    /// Whether some tree refers to this copy.
    pub(super) fn uses(&self, copy: &Block) -> bool {
        self.used.contains(&copy.place())
    }
}

/// A block below a node that is wanted: its level and id.
type WantedBlock = (u8, u64);

/// The positions of a lineage, by object.
struct LineageWants {
    lineage: u64,
    objects: BTreeMap<u64, Vec<WantedBlock>>,
}

impl LineageWants {
    fn new(lineage: u64, positions: &[BlockPosition]) -> LineageWants {
        let mut objects: BTreeMap<u64, Vec<WantedBlock>> = BTreeMap::new();
        for at in positions {
            if let Ok(level) = u8::try_from(at.level) {
                objects.entry(at.object).or_default().push((level, at.blkid));
            }
        }
        // The meta-dnode leads to the dnodes of all other objects.
        let is_special = |object: u64| SPECIAL.iter().any(|(id, _)| *id == object);
        let plain = objects.keys().filter(|id| **id != 0 && !is_special(**id));
        let blocks: BTreeSet<u64> = plain.map(|id| id / DNODES_PER_BLOCK).collect();
        let meta = objects.entry(0).or_default();
        meta.extend(blocks.into_iter().map(|blkid| (0, blkid)));
        meta.sort_unstable();
        meta.dedup();
        LineageWants { lineage, objects }
    }
}

/// The objects of the accounting, and where their dnodes are in an object set's block.
const SPECIAL: [(u64, usize); 3] = [
    (u64::MAX, SPECIAL_DNODES_AT[0]),
    (u64::MAX - 1, SPECIAL_DNODES_AT[1]),
    (u64::MAX - 2, SPECIAL_DNODES_AT[2]),
];

/// A block of pointers, by its position.
struct NodeAt<'a> {
    object: u64,
    level: u8,
    blkid: u64,
    /// log2 of the pointers in an indirect block.
    epb_shift: u32,
    wanted: &'a [WantedBlock],
}

impl NodeAt<'_> {
    /// The wanted blocks below each child, by its block id.
    fn by_child(&self) -> BTreeMap<u64, Vec<WantedBlock>> {
        let mut out: BTreeMap<u64, Vec<WantedBlock>> = BTreeMap::new();
        for &(level, blkid) in self.wanted {
            if level < self.level
                && let Some(child) = ancestor(self.level - 1, self.epb_shift, (level, blkid))
            {
                out.entry(child).or_default().push((level, blkid));
            }
        }
        out
    }
}

/// The id of the block at `level` that is above a block, or is it.
fn ancestor(level: u8, epb_shift: u32, (of, blkid): WantedBlock) -> Option<u64> {
    let up = u32::from(level.checked_sub(of)?).checked_mul(epb_shift)?;
    Some(blkid.checked_shr(up).unwrap_or(0))
}

/// Rewrites the trees of a batch.
pub(super) struct Rewriter<'a> {
    copier: BlockCopier<'a>,
    /// Blocks of pointers that are in the batch themselves.
    forced: HashSet<BlockHome>,
    /// What became of each block of pointers that was visited.
    results: HashMap<BlockHome, Option<Block>>,
    out: Rewritten,
}

/// Whether a block has pointers.
pub(super) fn has_pointers(block: &Block) -> bool {
    block.head.level > 0 || matches!(block.head.object_type, ObjType::DNODE | ObjType::OBJSET)
}

impl<'a> Rewriter<'a> {
    pub(super) fn new(copier: BlockCopier<'a>, forced: HashSet<BlockHome>) -> Rewriter<'a> {
        Rewriter { copier, forced, results: HashMap::new(), out: Rewritten::default() }
    }

    /// Test instrument: forgets which blocks of pointers have copies.
    pub(super) fn forget_rewritten(&mut self) {
        self.results.clear();
    }

    pub(super) fn into_copier(self) -> BlockCopier<'a> {
        self.copier
    }

    pub(super) fn finish(self) -> (BlockCopier<'a>, Rewritten) {
        (self.copier, self.out)
    }

    /// Rewrites the tree of a dataset as far as the positions demand.
    pub(super) fn root(
        &mut self,
        ds: &RelocatableDataset,
        positions: &[BlockPosition],
    ) -> Result<()> {
        let BlkPtr::Block(old) = &ds.root else { return Ok(()) };
        let home = self.copier.home_of(old);
        let known = self.results.get(&home).copied();
        let new = match known {
            Some(new) => new,
            None => {
                let wants = LineageWants::new(ds.lineage, positions);
                let new = self
                    .objset(old, &wants, positions)
                    .map_err(|e| e.in_object(ObjectId(ds.object)))?;
                self.results.insert(home, new);
                new
            }
        };
        if let Some(new) = new {
            self.out.roots.push((ds.object, old.relocated(&new)));
        }
        Ok(())
    }

    fn objset(
        &mut self,
        old: &Block,
        wants: &LineageWants,
        positions: &[BlockPosition],
    ) -> Result<Option<Block>> {
        let content = self.copier.zio().read(&BlkPtr::Block(*old), REWRITE_IO)?;
        let mut bytes = BufMut::copy_of(&content);
        let mut changed = self.forced.contains(&self.copier.home_of(old));
        for (object, at) in std::iter::once((0, 0)).chain(SPECIAL) {
            let wanted = wants.objects.get(&object).map(Vec::as_slice).unwrap_or_default();
            let Some(slot) = bytes.get_mut(at..at + DNODE_SIZE) else { continue };
            if !wanted.is_empty() {
                changed |= self.dnode(slot, old.endian, object, wanted, wants)?;
            }
        }
        if !changed {
            return Ok(None);
        }
        let new = self.changed(old, bytes.freeze())?;
        if new.is_none() {
            self.out.failed.extend(positions);
        }
        Ok(new)
    }

    /// Rewrites the trees of a dnode, which is in `raw`; whether one of its pointers changed.
    fn dnode(
        &mut self,
        raw: &mut [u8],
        endian: Endian,
        object: u64,
        wanted: &[WantedBlock],
        wants: &LineageWants,
    ) -> Result<bool> {
        let Some(dn) = Dnode::parse(raw, endian)? else { return Ok(false) };
        let (top, epb_shift) = (dn.levels - 1, dn.epb_shift());
        let mut changed = false;
        for (i, bp) in dn.blkptrs.iter().enumerate() {
            let below = |w: &WantedBlock| {
                w.1 != SPILL_BLKID && ancestor(top, epb_shift, *w) == Some(i as u64)
            };
            let here: Vec<WantedBlock> = wanted.iter().copied().filter(below).collect();
            if here.is_empty() {
                continue;
            }
            let at = NodeAt { object, level: top, blkid: i as u64, epb_shift, wanted: &here };
            if let Some(new) = self.node(bp, &at, &dn, wants)? {
                let pointer = raw.get_mut(CORE_SIZE + i * BLKPTR_SIZE..).unwrap_or_default();
                relocate_pointer(pointer, endian, &new)?;
                changed = true;
            }
        }
        if let Some(BlkPtr::Block(spill)) = &dn.spill
            && wanted.contains(&(0, SPILL_BLKID))
            && let Some(new) = self.data(spill)
        {
            let at = usize::from(dn.slots) * DNODE_SIZE - BLKPTR_SIZE;
            relocate_pointer(raw.get_mut(at..).unwrap_or_default(), endian, &new)?;
            changed = true;
        }
        Ok(changed)
    }

    /// The copy of a block without pointers, if it is in the batch.
    fn data(&mut self, old: &Block) -> Option<Block> {
        // The bytes that were read are those of this pointer.
        let new = self.copier.copy_of(old).copied().filter(|new| new.words == old.words)?;
        self.out.used.insert(new.place());
        Some(new)
    }

    /// What becomes of the block at a position: its copy, or `None` if it stays.
    fn node(
        &mut self,
        bp: &BlkPtr,
        at: &NodeAt<'_>,
        dn: &Dnode,
        wants: &LineageWants,
    ) -> Result<Option<Block>> {
        let BlkPtr::Block(old) = bp else { return Ok(None) };
        let dnodes = at.level == 0 && at.object == 0;
        if at.level == 0 && !dnodes {
            return Ok(self.data(old));
        }
        let home = self.copier.home_of(old);
        if let Some(known) = self.results.get(&home) {
            return Ok(*known);
        }
        if old.head.level != at.level || old.head.lsize.0 != dn.block_size(at.level) {
            return Err(Error::corrupt("block pointer of the wrong level or size"));
        }
        let zio = self.copier.zio();
        let content = match dnodes {
            true => zio.read_dnodes(bp, REWRITE_IO)?,
            false => zio.read(bp, REWRITE_IO)?,
        };
        let mut bytes = BufMut::copy_of(&content);
        let mut changed = self.forced.contains(&self.copier.home_of(old));
        if dnodes {
            changed |= self.dnode_block(&content, &mut bytes, old.endian, at, wants)?;
        } else {
            for (child, wanted) in at.by_child() {
                let index = (child & ((1 << at.epb_shift) - 1)) as usize;
                let bp = BlkPtr::parse_nth(&content, index, old.endian)?;
                let below = NodeAt {
                    level: at.level - 1,
                    blkid: child,
                    wanted: &wanted,
                    object: at.object,
                    epb_shift: at.epb_shift,
                };
                if let Some(new) = self.node(&bp, &below, dn, wants)? {
                    let pointer = bytes.get_mut(index * BLKPTR_SIZE..).unwrap_or_default();
                    relocate_pointer(pointer, old.endian, &new)?;
                    changed = true;
                }
            }
        }
        let new = match changed {
            true => self.changed(old, bytes.freeze())?,
            false => None,
        };
        if changed && new.is_none() {
            self.fail(at, wants);
        }
        self.results.insert(home, new);
        Ok(new)
    }

    fn dnode_block(
        &mut self,
        content: &Buf,
        bytes: &mut [u8],
        endian: Endian,
        at: &NodeAt<'_>,
        wants: &LineageWants,
    ) -> Result<bool> {
        let first = at.blkid.saturating_mul(DNODES_PER_BLOCK);
        let mut changed = false;
        // Slots inside of large dnodes may have any bytes.
        for (slot, dnode) in dnodes_in_block(content, endian) {
            let object = first.saturating_add(slot);
            let Some(wanted) = wants.objects.get(&object).filter(|_| object != 0) else { continue };
            dnode.map_err(|e| e.in_object(ObjectId(object)))?;
            let raw = bytes.get_mut(slot as usize * DNODE_SIZE..).unwrap_or_default();
            changed |= self.dnode(raw, endian, object, wanted, wants)?;
        }
        Ok(changed)
    }

    fn changed(&mut self, old: &Block, content: Buf) -> Result<Option<Block>> {
        let new = self.copier.change(old, &content)?;
        if let Some(new) = &new {
            self.out.used.insert(new.place());
        }
        Ok(new)
    }

    /// A block of pointers cannot be rewritten: the blocks at the positions below it stay.
    fn fail(&mut self, at: &NodeAt<'_>, wants: &LineageWants) {
        let position = |object: u64, (level, blkid): WantedBlock| BlockPosition {
            lineage: wants.lineage,
            object,
            level: i8::try_from(level).unwrap_or(i8::MAX),
            blkid,
        };
        self.out.failed.extend(at.wanted.iter().map(|w| position(at.object, *w)));
        if at.object != 0 {
            return;
        }
        for (_, blkid) in at.wanted.iter().filter(|(level, _)| *level == 0) {
            let first = blkid.saturating_mul(DNODES_PER_BLOCK);
            let objects = first.max(1)..first.saturating_add(DNODES_PER_BLOCK);
            for (object, blocks) in wants.objects.range(objects) {
                self.out.failed.extend(blocks.iter().map(|w| position(*object, *w)));
            }
        }
    }
}
