//! Finding blocks, and the position of each.
//!
//! # Theory
//! Each head and snapshot is walked from the creation of its previous snapshot on, because that
//! one has all older blocks of it. So each block is visited once, however many datasets
//! share it (chapter 04 §17). Its position is the same in all datasets of the lineage.
//!
//! The pool may be written meanwhile. A block that cannot be read because it was freed is left
//! out with all below it: what is not found is not moved.

use base::rt::Mutex;
use base::{Error, Result};
use dmu::Io;
use dmu::traverse::{Bookmark, Flow, Options, Visitor, traverse};
use dsl::write::relocate;
use ondisk::BlkPtr;
use ondisk::blkptr::Block;
use spa::engine::{BlockPosition, Writer, is_immovable};

/// Reads in flight.
const THREADS: usize = 16;

/// Blocks with their positions.
#[derive(Clone, Debug, Default)]
pub struct FoundBlocks {
    /// Those that can be moved, by position: files in order.
    pub blocks: Vec<(BlockPosition, Block)>,
    /// Those that are never moved: gangs, deduplicated ones, and those with the rewrite flag.
    pub immovable: u64,
}

struct Finder<'a> {
    lineage: u64,
    wanted: &'a (dyn Fn(&Block) -> bool + Sync),
    found: &'a Mutex<FoundBlocks>,
}

impl Visitor for Finder<'_> {
    fn visit(&self, bp: &BlkPtr, at: Bookmark) -> Result<Flow> {
        let BlkPtr::Block(block) = bp else { return Ok(Flow::Descend) };
        if (self.wanted)(block) {
            let mut found = self.found.lock();
            if is_immovable(block) {
                found.immovable += 1;
            } else {
                let Bookmark { object, level, blkid, .. } = at;
                let position = BlockPosition { lineage: self.lineage, object, level, blkid };
                found.blocks.push((position, *block));
            }
        }
        Ok(Flow::Descend)
    }

    fn unreadable(&self, _error: Error, _at: Bookmark) -> Result<()> {
        Ok(())
    }
}

/// Finds the blocks of all datasets for which `wanted` returns true, but those of the MOS.
///
/// # Errors
/// Those of reading the MOS.
pub fn find(writer: &Writer, wanted: &(dyn Fn(&Block) -> bool + Sync)) -> Result<FoundBlocks> {
    let found = Mutex::new(FoundBlocks::default());
    for ds in relocate::datasets(writer.mos())? {
        let finder = Finder { lineage: ds.lineage, wanted, found: &found };
        let options = Options { min_txg: ds.prev_txg, threads: THREADS, io: Io::WAIT };
        traverse(writer.zio(), ds.object, &ds.root, &finder, options)?;
    }
    let mut found = found.into_inner();
    found.blocks.sort_unstable_by_key(|(at, block)| (*at, std::cmp::Reverse(block.head.birth)));
    Ok(found)
}
