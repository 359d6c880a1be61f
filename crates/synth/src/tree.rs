//! An object's tree of blocks, built from its leaves upwards as they are written
//! (chapter 03 §3).
//!
//! # Invariants
//! * Pointers of one level arrive in order; an indirect block is returned as soon as it has
//!   its last pointer, so at most one per level is in memory.

use base::BufMut;
use ondisk::blkptr::{BLKPTR_SIZE, BlkPtr};
use ondisk::dnode::{Dnode, flags};
use ondisk::{Endian, ObjType};

/// log2 of the size of indirect blocks, and of the pointers in one.
const INDIRECT_SHIFT: u8 = 17;
const EPB_SHIFT: u32 = 10;

#[derive(Default)]
struct Level {
    block: Option<BufMut>,
    inside: usize,
    fill: u64,
    got: u64,
}

/// An indirect block to be written.
pub(crate) struct Indirect {
    pub(crate) level: u8,
    pub(crate) fill: u64,
    pub(crate) data: BufMut,
}

/// The result of adding a pointer.
pub(crate) enum TreeStep {
    /// More pointers of this level will follow.
    More,
    /// An indirect block is complete; its pointer will follow.
    Write(Indirect),
    /// The tree is complete.
    Complete,
}

/// A tree under construction.
pub(crate) struct TreeBuilder {
    pub(crate) object_type: ObjType,
    pub(crate) block_size: u32,
    blocks: u64,
    levels: u8,
    nblkptr: usize,
    roots: Vec<BlkPtr>,
    below: Vec<Level>,
    used: u64,
}

/// Bytes that a pointer's block takes on disk.
pub(crate) fn allocated(bp: &BlkPtr) -> u64 {
    bp.as_block().map_or(0, |b| b.dvas().map(|d| d.asize.0).sum())
}

impl TreeBuilder {
    /// A tree of `blocks` data blocks, with at least `levels` levels.
    pub(crate) fn new(
        object_type: ObjType,
        block_size: u32,
        blocks: u64,
        nblkptr: usize,
        levels: u8,
    ) -> TreeBuilder {
        let mut tree = TreeBuilder {
            object_type,
            block_size,
            blocks,
            levels: levels.max(1),
            nblkptr,
            roots: Vec::new(),
            below: Vec::new(),
            used: 0,
        };
        while tree.count(tree.levels - 1) > nblkptr as u64 {
            tree.levels += 1;
        }
        tree.below.resize_with(usize::from(tree.levels - 1), Level::default);
        tree
    }

    /// Blocks on a level.
    fn count(&self, level: u8) -> u64 {
        self.blocks.div_ceil(1 << (EPB_SHIFT * u32::from(level)))
    }

    /// Adds the next pointer of a level.
    pub(crate) fn feed(&mut self, level: u8, bp: BlkPtr) -> TreeStep {
        self.used += allocated(&bp);
        let count = self.count(level);
        let Some(at) = self.below.get_mut(usize::from(level)) else {
            self.roots.push(bp);
            return if self.roots.len() as u64 == count {
                TreeStep::Complete
            } else {
                TreeStep::More
            };
        };
        let block = at.block.get_or_insert_with(|| BufMut::zeroed(1 << INDIRECT_SHIFT));
        let start = at.inside * BLKPTR_SIZE;
        // Only redacted pointers cannot be encoded, and none are made here.
        if let (Some(to), Some(raw)) = (block.get_mut(start..start + BLKPTR_SIZE), bp.encode()) {
            to.copy_from_slice(&raw);
        }
        at.inside += 1;
        at.got += 1;
        at.fill += bp.fill();
        if at.inside < 1 << EPB_SHIFT && at.got < count {
            return TreeStep::More;
        }
        let fill = std::mem::take(&mut at.fill);
        at.inside = 0;
        match at.block.take() {
            Some(data) => TreeStep::Write(Indirect { level: level + 1, fill, data }),
            None => TreeStep::More,
        }
    }

    /// Whether the tree has no blocks.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Bytes allocated so far.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// The dnode of the complete tree.
    pub(crate) fn dnode(mut self, bonus_type: ObjType, bonus: Vec<u8>, accounted: bool) -> Dnode {
        self.roots.resize(self.nblkptr, BlkPtr::default());
        Dnode {
            object_type: self.object_type,
            indirect_shift: INDIRECT_SHIFT,
            levels: self.levels,
            bonus_type,
            checksum: 0,
            compression: 0,
            flags: flags::USED_BYTES | if accounted { flags::USERUSED_ACCOUNTED } else { 0 },
            data_block_size: self.block_size,
            slots: 1,
            max_blkid: self.blocks.saturating_sub(1),
            used: self.used,
            endian: Endian::Little,
            blkptrs: self.roots,
            bonus,
            spill: None,
        }
    }
}
