//! `zpool rebalance --special` and `--from-special`: blocks change to the special class, and back.
//!
//! # Theory
//! What is written goes to special vdevs if it is metadata, or a data block not larger than
//! the property `special_small_blocks` of its dataset. What was written before there were special
//! vdevs, or before the property was set, is on normal ones ([`SpecialMove::To`]). It is found by
//! the same policy, snapshots included, and moves: first the metadata, as long as there is room, then
//! small data blocks, as long as a quarter of the special vdevs is free; that is left for
//! metadata to come.
//!
//! The way back ([`SpecialMove::From`]) takes everything of datasets on special vdevs. What is
//! written meanwhile goes there all the same, so only blocks born before the beginning are looked at.
//!
//! Blocks of pointers that are rewritten because of a batch go to its class as well. The property
//! of a block is that of the oldest dataset that has it.
//!
//! # Progress
//! A walk finds at most [`FOUND_MAX`] blocks that are still to be moved; those that stay are not
//! wanted again. A block that has moved is not wanted either, nor is one that was written
//! since the beginning. So each walk has less to find, and one that finds nothing is the last.
//!
//! # Invariants
//! * Memory is bounded by [`FOUND_MAX`] and [`KEPT_MAX`].
//! * Blocks of the MOS stay where they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::{Error, Result, Txg, VdevId};
use dmu::traverse::SPILL_BLKID;
use dsl::write::relocate::RelocatableDataset;
use metaslab::SpaceClass;
use ondisk::blkptr::{Block, BlockPlace};
use spa::engine::{BlockPosition, CopyTarget, Writer, is_immovable};

use crate::balance::vdevs_of;
use crate::find::{FindFlow, FoundBlocks, datasets, find_of};
use crate::job::{JobCx, MoveRecord, Next, Part, Planner};

/// Blocks that one walk finds.
const FOUND_MAX: u64 = 500_000;
/// Blocks that stay: more of them, and it is not worth going on.
const KEPT_MAX: usize = 1_000_000;
/// Bytes of a walk, at most.
const CHUNK_BYTES: u64 = 4 << 30;
/// The part of the special vdevs that is left to metadata: a quarter.
const RESERVE: u64 = 4;
/// The part that is left when metadata has moved.
const SLACK: u64 = 64;

/// The direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialMove {
    /// To the special class.
    To,
    /// Back to the normal one.
    From,
}

/// What a block is to the special class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Metadata,
    SmallData,
    OtherData,
}

/// What would move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecialEstimate {
    /// Allocated bytes of metadata.
    pub metadata: u64,
    /// Allocated bytes of data blocks.
    pub data: u64,
    /// Blocks that are never moved.
    pub immovable: u64,
    /// Bytes for which there is room, for metadata and for data.
    pub room: (u64, u64),
}

impl SpecialEstimate {
    /// Bytes that move as far as there is room.
    pub fn to_move(&self) -> u64 {
        let metadata = self.metadata.min(self.room.0);
        let data = self.data.min(self.room.1.saturating_sub(metadata));
        metadata.saturating_add(data)
    }
}

fn due(at: &BlockPosition, block: &Block, small: u64) -> Due {
    let of_type = block.head.object_type.is_metadata();
    match block.head.level > 0 || at.blkid == SPILL_BLKID || of_type {
        true => Due::Metadata,
        false if block.head.lsize.0 <= small => Due::SmallData,
        false => Due::OtherData,
    }
}

/// Refuses what would come to nothing.
///
/// # Errors
/// `Invalid` if there are no special vdevs, or no pair of vdevs between which blocks can move.
pub fn check(writer: &Writer) -> Result<()> {
    let (special, normal) =
        (vdevs_of(writer, SpaceClass::Special), vdevs_of(writer, SpaceClass::Normal));
    if special.is_empty() {
        return Err(Error::invalid("the pool has no special vdevs that are allocated from"));
    }
    let tree = writer.zio().tree();
    let ratio = |vdev: &VdevId| tree.deflate_ratio(*vdev).ok();
    match special.iter().any(|s| normal.iter().any(|n| ratio(n) == ratio(s))) {
        true => Ok(()),
        false => Err(Error::invalid(
            "no normal vdev counts allocated space as a special one does, so the accounting of \
             datasets would change (a raidz exchanges blocks only with its like)",
        )),
    }
}

/// What is looked for.
struct SpecialSearch {
    way: SpecialMove,
    special: BTreeSet<VdevId>,
    /// `special_small_blocks` by directory.
    small: BTreeMap<u64, u64>,
    /// The newest birth that is looked at.
    until: Txg,
}

impl SpecialSearch {
    fn new(writer: &Writer, way: SpecialMove, until: Txg) -> Result<SpecialSearch> {
        let of_class = |(vdev, class)| (class == SpaceClass::Special).then_some(vdev);
        let special = writer.space().vdevs().into_iter().filter_map(of_class).collect();
        let mut small = BTreeMap::new();
        for ds in datasets(writer)? {
            if let std::collections::btree_map::Entry::Vacant(new) = small.entry(ds.dir) {
                new.insert(writer.special_small_blocks(ds.dir)?);
            }
        }
        Ok(SpecialSearch { way, special, small, until })
    }

    /// Whether a block is in the other class than it is to be.
    fn wants(&self, ds: &RelocatableDataset, at: &BlockPosition, block: &Block) -> Option<Due> {
        let is_there = |dva: base::Dva| self.special.contains(&dva.vdev);
        let small = self.small.get(&ds.dir).copied().unwrap_or(0);
        let due = due(at, block, small);
        let wanted = match self.way {
            SpecialMove::To => due != Due::OtherData && !block.dvas().all(is_there),
            // Members of a gang may be there, and only its header says so.
            SpecialMove::From => block.is_gang() || block.dvas().any(is_there),
        };
        (wanted && block.head.birth <= self.until).then_some(due)
    }
}

/// Bytes that special vdevs may still take: metadata, and small data.
fn room(writer: &Writer, way: SpecialMove) -> (u64, u64) {
    if way == SpecialMove::From {
        return (u64::MAX, u64::MAX);
    }
    let all = writer.space().allocating_totals(SpaceClass::Special);
    let taken = all.allocated.saturating_add(all.deferred).saturating_add(all.reserved);
    let free = all.capacity.saturating_sub(taken);
    (free.saturating_sub(all.capacity / SLACK), free.saturating_sub(all.capacity / RESERVE))
}

fn asize(block: &Block) -> u64 {
    block.dvas().map(|dva| dva.asize.0).sum()
}

/// Estimates a move; nothing is changed.
///
/// # Errors
/// Those of reading the MOS.
pub fn estimate(writer: &Writer, way: SpecialMove) -> Result<SpecialEstimate> {
    let search = SpecialSearch::new(writer, way, writer.txgs().synced_txg())?;
    let [metadata, data, immovable] = [const { AtomicU64::new(0) }; 3];
    find_of(writer, None, &|ds, at, block| {
        if let Some(due) = search.wants(ds, at, block) {
            match due {
                _ if is_immovable(block) => immovable.fetch_add(1, Relaxed),
                Due::Metadata => metadata.fetch_add(asize(block), Relaxed),
                _ => data.fetch_add(asize(block), Relaxed),
            };
        }
        FindFlow::Descend
    })?;
    let [metadata, data, immovable] = [metadata, data, immovable].map(AtomicU64::into_inner);
    Ok(SpecialEstimate { metadata, data, immovable, room: room(writer, way) })
}

/// Chooses what moves.
pub(crate) struct SpecialPlanner {
    way: SpecialMove,
    search: Option<SpecialSearch>,
    /// The metadata has moved.
    data: bool,
    /// The blocks that are never moved were counted.
    counted: bool,
    kept: BTreeSet<BlockPlace>,
}

impl SpecialPlanner {
    pub(crate) fn new(way: SpecialMove) -> SpecialPlanner {
        SpecialPlanner { way, search: None, data: false, counted: false, kept: BTreeSet::new() }
    }

    /// The next blocks, at most `most` bytes of them.
    fn find(&self, writer: &Writer, search: &SpecialSearch, most: u64) -> Result<FoundBlocks> {
        let (count, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        find_of(writer, None, &|ds, at, block| {
            if count.load(Relaxed) >= FOUND_MAX || bytes.load(Relaxed) >= most {
                return FindFlow::Skip;
            }
            let turn = match search.wants(ds, at, block) {
                Some(Due::Metadata) => !self.data,
                Some(_) => self.data,
                None => false,
            };
            if !turn || self.kept.contains(&block.place()) {
                return FindFlow::Descend;
            }
            if !is_immovable(block) {
                count.fetch_add(1, Relaxed);
                bytes.fetch_add(asize(block), Relaxed);
            }
            FindFlow::Take
        })
    }
}

impl Planner for SpecialPlanner {
    fn estimate(&mut self, cx: &JobCx<'_>, _record: &MoveRecord) -> Result<u64> {
        Ok(estimate(cx.writer, self.way)?.to_move())
    }

    fn next(&mut self, cx: &JobCx<'_>, _record: &MoveRecord) -> Result<Next> {
        let writer = cx.writer;
        if self.search.is_none() {
            let until = writer.txgs().synced_txg();
            self.search = Some(SpecialSearch::new(writer, self.way, until)?);
        }
        let Some(search) = &self.search else { return Ok(Next::Look) };
        let (metadata, data) = room(writer, self.way);
        let room = if self.data { data } else { metadata };
        let found = match room > 0 && self.kept.len() <= KEPT_MAX {
            true => self.find(writer, search, room.min(CHUNK_BYTES))?,
            false => FoundBlocks::default(),
        };
        if !std::mem::replace(&mut self.counted, true) {
            cx.update(|record| record.kept += found.immovable);
        }
        if found.blocks.is_empty() {
            if self.data {
                return Ok(Next::Complete);
            }
            (self.data, self.counted) = (true, false);
            return Ok(Next::Look);
        }
        let class = match self.way {
            SpecialMove::To => SpaceClass::Special,
            SpecialMove::From => SpaceClass::Normal,
        };
        let vdevs = vdevs_of(writer, class).into_iter().collect();
        let to = Some(CopyTarget { class: Some(class), vdevs });
        Ok(Next::Part(Part { blocks: found.blocks.into(), to, ..Part::default() }))
    }

    fn moved(&mut self, cx: &JobCx<'_>, part: &Part) -> Result<()> {
        self.kept.extend(&part.kept);
        cx.store()
    }
}
