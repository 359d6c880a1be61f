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
use base::{Error, ErrorKind, Result};
use dmu::Io;
use dmu::traverse::{Bookmark, Flow, Options, Visitor, traverse};
use dsl::write::relocate::{self, RelocatableDataset};
use ondisk::BlkPtr;
use ondisk::blkptr::Block;
use spa::engine::{BlockPosition, Writer, is_immovable};

/// Reads in flight.
const THREADS: usize = 16;
/// Attempts to list the datasets while some come and go.
const LIST_ATTEMPTS: usize = 8;

/// Blocks with their positions.
#[derive(Clone, Debug, Default)]
pub struct FoundBlocks {
    /// Those that can be moved, by position: files in order.
    pub blocks: Vec<(BlockPosition, Block)>,
    /// Those that are never moved: deduplicated ones, and those with the rewrite flag.
    pub immovable: u64,
}

/// What to do with a block that a walk visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindFlow {
    /// It is wanted; so may be what is below it.
    Take,
    /// Something below it may be wanted.
    Descend,
    /// Neither it nor what is below it is wanted.
    Skip,
}

/// Decides about a block at a position.
pub type Wanted<'a> = &'a (dyn Fn(&BlockPosition, &Block) -> FindFlow + Sync);

/// The same, by the dataset from which the block is seen first: the oldest that has it.
pub type WantedOf<'a> =
    &'a (dyn Fn(&RelocatableDataset, &BlockPosition, &Block) -> FindFlow + Sync);

struct Finder<'a> {
    ds: &'a RelocatableDataset,
    wanted: WantedOf<'a>,
    found: &'a Mutex<FoundBlocks>,
}

impl Visitor for Finder<'_> {
    fn visit(&self, bp: &BlkPtr, at: Bookmark) -> Result<Flow> {
        let BlkPtr::Block(block) = bp else { return Ok(Flow::Descend) };
        let Bookmark { object, level, blkid, .. } = at;
        let position = BlockPosition { lineage: self.ds.lineage, object, level, blkid };
        let flow = (self.wanted)(self.ds, &position, block);
        if flow == FindFlow::Take {
            let mut found = self.found.lock();
            if is_immovable(block) {
                found.immovable += 1;
            } else {
                found.blocks.push((position, *block));
            }
        }
        Ok(if flow == FindFlow::Skip { Flow::Skip } else { Flow::Descend })
    }

    fn unreadable(&self, _error: Error, _at: Bookmark) -> Result<()> {
        Ok(())
    }
}

/// All datasets, as the list of a moment. The MOS changes while it is read outside of a txg's
/// work: an object that one object named may be gone, or another one, when it is read.
///
/// # Errors
/// As [`relocate::datasets`].
pub(crate) fn datasets(writer: &Writer) -> Result<Vec<RelocatableDataset>> {
    for _ in 1..LIST_ATTEMPTS {
        match relocate::datasets(writer.mos()) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {}
            other => return other,
        }
    }
    relocate::datasets(writer.mos())
}

/// Finds the blocks of all datasets for which `wanted` returns true, but those of the MOS.
///
/// # Errors
/// Those of reading the MOS.
pub fn find(writer: &Writer, wanted: &(dyn Fn(&Block) -> bool + Sync)) -> Result<FoundBlocks> {
    let wanted = |_: &BlockPosition, block: &Block| match wanted(block) {
        true => FindFlow::Take,
        false => FindFlow::Descend,
    };
    find_in(writer, None, &wanted)
}

/// Finds the wanted blocks of all datasets, or of those of one lineage, but those of the MOS.
///
/// # Errors
/// Those of reading the MOS.
pub fn find_in(writer: &Writer, lineage: Option<u64>, wanted: Wanted<'_>) -> Result<FoundBlocks> {
    find_of(writer, lineage, &|_, at, block| wanted(at, block))
}

/// As [`find_in`], where the dataset matters.
///
/// # Errors
/// Those of reading the MOS.
pub fn find_of(writer: &Writer, lineage: Option<u64>, wanted: WantedOf<'_>) -> Result<FoundBlocks> {
    let found = Mutex::new(FoundBlocks::default());
    for ds in datasets(writer)? {
        if lineage.is_some_and(|lineage| ds.lineage != lineage) {
            continue;
        }
        let finder = Finder { ds: &ds, wanted, found: &found };
        let options = Options { min_txg: ds.prev_txg, threads: THREADS, io: Io::WAIT };
        traverse(writer.zio(), ds.object, &ds.root, &finder, options)?;
    }
    let mut found = found.into_inner();
    found.blocks.sort_unstable_by_key(|(at, block)| (*at, std::cmp::Reverse(block.head.birth)));
    Ok(found)
}
