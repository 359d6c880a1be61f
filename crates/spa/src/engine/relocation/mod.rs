//! Relocation: blocks move to other places, with everything that points at them in all
//! snapshots, clones and heads, and stay shared (chapter 02 §2.5, §12).
//!
//! # Theory
//! A block pointer has two births. The logical one says when the content was written; space
//! accounting, deadlists, snapshots and sends go by it. The physical one says when these bytes were
//! put at this place; checksums of gangs, the width of a raidz, missing txgs and cache keys go by
//! that. A copy keeps both. With its logical birth it is the same block to every snapshot. Its
//! physical one must stay, too: a scan of OpenZFS (2.4.4, by experiment) leaves out what is
//! physically newer than the snapshot in which it finds it, so a disk that is replaced there would
//! not get the blocks of snapshots. It may stay, because every leaf has every copy (see below):
//! none of the txgs that a leaf misses now or later is older than the move. The width of a
//! raidz goes by it for the copy as for the block. No feature is needed. The rewrite flag stays 0:
//! with it, the *allocation* would count from the physical birth, and a head would free blocks that its
//! snapshots have.
//!
//! A *batch* is a set of blocks, each with a position: lineage, object, level, block id. Without
//! cloning and deduplication a block has one position, in all datasets of a lineage that have it,
//! because blocks come to be shared by copying roots alone. The positions are found in
//! advance, without any lock, and are only hints.
//!
//! # One txg
//! A batch is copied, switched and freed by one task in one txg:
//! 1. *Refuse* what makes it unsound or impossible ([`Writer::check_relocation`]).
//! 2. *Settle*: what the txg changed in datasets is written and published. From here on to the end
//!    of the task no tree of a dataset changes, because only this thread writes them.
//! 3. *Place* a copy of each block of the batch, whose bytes were read before.
//! 4. *Rewrite* ([`rewrite`]): from every root of the lineage down to the positions. A block of
//!    pointers with a pointer that changes gets a copy, too, with its logical birth; a table from
//!    places to copies makes that once for each block, however many trees share it. So
//!    equal pointers become equal ones, and what is shared stays shared.
//! 5. *Write* all copies, wait, and flush the devices. If a single leaf has not taken a
//!    single write, everything allocated is given back, and nothing has happened.
//! 6. *Switch*: the roots of heads and snapshots, the entries of deadlists; livelists are dropped;
//!    object sets that are open learn of their new trees ([`dmu::Objset::relocate`],
//!    [`zio::RootHolders`]); the old blocks are freed like any others.
//!
//! The alternative is to stage copies over many txgs, owned by a hidden dataset that a crash leaves
//! to be destroyed, and to switch in a last one. It allows larger batches. In exchange, heads change
//! meanwhile and must be caught up with, old blocks die while their copies live, and
//! a dataset in the pool has pointers that no other writer makes. A batch of one txg has none of
//! these states. It is limited to what a txg may take in time, and blocks of pointers above
//! scattered blocks are rewritten once for each batch.
//!
//! # Crash argument
//! That of every txg ([`super`]): copies are written to space that is free in the last durable
//! uberblock's maps, and what refers to them is in the same txg. A crash leaves the state before
//! the batch, in which the copies do not exist and their space is free, or the one after it. No
//! state in between is ever on disk, so there is nothing to clean up, for this program or any
//! other. The old blocks are freed in the txg, and not used again before two more are durable.
//!
//! # Copies must be on every leaf
//! A leaf that lacks a copy would not get it from a resilver, which leaves out the subtrees
//! whose logical births are older than what the leaf misses. So nothing is moved unless all leaves
//! are there and lack nothing, and nothing is switched unless every leaf has taken every copy,
//! and its cache was flushed.
//!
//! # No pointer may be left behind
//! What holds a pointer to an old place after the switch would read freed space:
//! * *Trees*: all roots are visited, hidden ones included, in the state that step 2 left.
//! * *Clones*: none is noted from before the last clones' txg is on disk until the batch is
//!   over ([`super::block_refs`]); blocks that the tables may count are skipped.
//! * *Dedup tables*: blocks with the bit are skipped.
//! * *Other addresses*: in pools with removed devices a block may have pointers with different
//!   addresses ([`home`]); all of them are switched.
//! * *Intent logs*: records refer to blocks of txgs that are not written yet, which are in no
//!   batch. Records of txgs that are on disk are not replayed.
//! * *Dirty state of later txgs* refers to blocks by ids. Its dnodes are replaced.
//! * *Destroyed datasets and lists of frees*: what is queued there is referred to by no root, so no
//!   position leads to it.
//! * *Readers*: one that has resolved an old pointer reads the old place, which has its bytes for two
//!   more txgs, as after an overwrite. After an error it looks whether the tree has changed, and
//!   begins again. Objects of snapshots that are open do the same from then on.
//! * *Streams that are sent* hold pointers for long: a batch is refused while a snapshot is in
//!   use, and so it is while a scan runs.
//!
//! # Accounting
//! A copy has as many addresses as its block, which count the same bytes, and the same stored
//! and logical size ([`zio::CopyPolicy`]). So no sum changes, in dnodes, datasets, directories or
//! lists. A block for which there are no such addresses, or a block of pointers that does not
//! compress to its old size, stays, and with it the blocks of the batch below it.
//! The copy of a gang is a plain block that takes as much space.
//! A batch may name the class and the vdevs of its copies ([`CopyTarget`]); the same holds.
//!
//! # Not moved
//! The MOS and space maps (dirtying them moves them), deduplicated and cloned blocks, and blocks
//! with the rewrite flag.
//!
//! # Beside others
//! Blocks are read at the priority of a scrub and written at that of a rebuild, so the batch yields
//! to what callers wait for, and makes its txg longer.
//!
//! # Space
//! A batch takes space before it gives as much back two txgs later: at most a quarter of the slop
//! or a sixteenth of the free space, and only while as much again is allocatable.
//!
//! Lock order: `heads` is held while a head's root is stored and its open object set changed, so
//! that who opens it finds the new root, or is found here.

mod home;
mod rewrite;
mod switch;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::planted::BugSwitch;
use base::rt::{Mutex, fan_out};
use base::{Buf, Dva, Error, Result, Txg, VdevId};
use dsl::write::relocate::{self, RelocatableDataset};
use dsl::write::{MosRead, features, remap};
use metaslab::{MsKey, Space, SpaceClass};
use ondisk::blkptr::{Block, BlockPlace};
use vdev::{AllocClass, WritePriority};
use zio::{Class, CopyPolicy, Placed, Writes};

use super::Writer;
use super::tasks::TaskCx;
pub(super) use home::Homes;

use home::BlockHome;
use rewrite::{Rewriter, Rewritten, has_pointers};

/// The part of the slop that a batch may take, or of the free space, whichever is more.
const SLOP_SHARE: u64 = 4;
const FREE_SHARE: u64 = 16;
/// Blocks are left out and the rest is tried again at most this often.
const ATTEMPTS: usize = 8;
/// Blocks read at once.
const READERS: usize = 8;

/// The position of a block in the trees of a lineage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockPosition {
    /// The lineage: [`RelocatableDataset::lineage`].
    pub lineage: u64,
    /// The object; 0 is the meta-dnode, and the last ids are those of the accounting.
    pub object: u64,
    /// Its level; [`dmu::traverse::ROOT_LEVEL`] for an object set's own block.
    pub level: i8,
    /// Block id; [`dmu::traverse::SPILL_BLKID`] for a spill block.
    pub blkid: u64,
}

/// Blocks to be moved.
#[derive(Clone, Debug, Default)]
pub struct RelocationBatch {
    /// The blocks, in the order in which they are to lie, each with its position.
    pub blocks: Vec<(BlockPosition, Block)>,
    /// Metaslabs from which no copy is allocated.
    pub avoid: Vec<MsKey>,
    /// Metaslabs from which copies of its blocks are allocated only when one of them has no place
    /// elsewhere, and then for the rest of the batch.
    pub spare: Vec<MsKey>,
    /// Where the copies are to lie, if not with their class and on any vdev of it.
    pub to: Option<CopyTarget>,
}

/// Where the copies of a batch are to lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyTarget {
    /// The class from which they are allocated instead of that of their old places. Blocks of
    /// pointers that are rewritten because of the batch go there, too, as far as they fit.
    pub class: Option<SpaceClass>,
    /// The vdevs that take copies of the blocks of the batch. A block with more addresses than
    /// there are such vdevs may use the others of the class as well, so that its copies stay
    /// on different ones.
    pub vdevs: BTreeSet<VdevId>,
}

/// What became of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelocationOutcome {
    /// The txg that switched it.
    pub txg: Txg,
    /// Blocks of the batch that were moved.
    pub moved: u64,
    /// Their allocated bytes.
    pub moved_bytes: u64,
    /// Blocks of pointers that were rewritten because of them.
    pub metadata: u64,
    /// Their allocated bytes.
    pub metadata_bytes: u64,
    /// Entries of deadlists that were switched.
    pub listed: u64,
    /// Roots of heads and snapshots that were switched.
    pub roots: u64,
    /// Blocks of the batch that nothing refers to any more.
    pub gone: u64,
    /// Blocks that stay where they are: cloned, without a place that counts the same, below
    /// a block of pointers that cannot be rewritten.
    pub kept: BTreeSet<BlockPlace>,
    /// Nothing was switched, because some leaf lacks a copy.
    pub incomplete: bool,
}

/// Planted bugs ([`base::planted`]).
#[derive(Debug, Default)]
pub struct RelocationPlants {
    /// One entry of a deadlist is not switched.
    pub left_entry: BugSwitch,
    /// One snapshot is not switched.
    pub left_snapshot: BugSwitch,
    /// Roots of heads are those of the search, not the present ones.
    pub old_heads: BugSwitch,
    /// The batch is switched although a leaf lacks copies.
    pub unchecked_leaves: BugSwitch,
    /// Blocks of pointers are rewritten for each tree, so equal pointers become unequal.
    pub unshared: BugSwitch,
    /// Open object sets do not learn of their new trees.
    pub forgotten_handles: BugSwitch,
    /// Clones may be made while blocks move.
    pub unstopped_clones: BugSwitch,
    /// Copies lie where a batch wants them although they count another size there.
    pub uncounted: BugSwitch,
    /// In pools with removed devices, a block is known by the address of one of its pointers.
    pub own_addresses: BugSwitch,
}

/// Keeps blocks from being cloned.
struct ClonesStopped<'a>(&'a Writer);

impl Drop for ClonesStopped<'_> {
    fn drop(&mut self) {
        self.0.block_refs.end_move();
    }
}

/// Metaslabs from which nothing is allocated as long as this lives.
struct AvoidedMetaslabs<'a>(&'a Space, Vec<MsKey>);

impl<'a> AvoidedMetaslabs<'a> {
    fn new(space: &'a Space, keys: &[MsKey]) -> Result<AvoidedMetaslabs<'a>> {
        let mut of = AvoidedMetaslabs(space, Vec::new());
        for &key in keys {
            space.disable(key, true)?;
            of.1.push(key);
        }
        Ok(of)
    }
}

impl Drop for AvoidedMetaslabs<'_> {
    fn drop(&mut self) {
        for &key in &self.1 {
            // It was there a moment ago.
            let _gone = self.0.disable(key, false);
        }
    }
}

/// A block of a batch, with its bytes as they are stored.
struct ReadBlock {
    at: BlockPosition,
    block: Block,
    /// `None` for a block of pointers, which is rewritten.
    stored: Option<Buf>,
}

/// The copies of a batch.
#[derive(Default)]
pub(super) struct CopyTable {
    homes: Homes,
    /// By the home of the old block: it, and its copy.
    copies: HashMap<BlockHome, (Block, Block)>,
    /// To be written.
    placed: Vec<Placed>,
}

impl CopyTable {
    /// The copy of a block, whichever of its pointers this is.
    fn copy_of(&self, old: &Block) -> Option<&Block> {
        self.copies.get(&self.homes.of(old)).map(|(_, new)| new)
    }

    fn asize(blocks: &[&Block]) -> u64 {
        blocks.iter().flat_map(|block| block.dvas()).map(|dva| dva.asize.0).sum()
    }
}

/// Whether a block is never moved, whatever its neighbours are.
pub fn is_immovable(block: &Block) -> bool {
    block.dedup || block.rewritten
}

fn class_of(class: AllocClass) -> Class {
    match class {
        AllocClass::Normal => Class::Normal,
        AllocClass::Special => Class::Special,
        AllocClass::Dedup => Class::Dedup,
        AllocClass::Log => Class::Log,
    }
}

fn target_class(class: SpaceClass) -> Class {
    match class {
        SpaceClass::Normal => Class::Normal,
        SpaceClass::Special => Class::Special,
        SpaceClass::Dedup => Class::Dedup,
        SpaceClass::Log => Class::Log,
    }
}

impl Writer {
    /// Planted bugs of relocations.
    pub fn relocation_plants(&self) -> &RelocationPlants {
        &self.plants.relocation
    }

    /// Whether blocks can be moved now.
    ///
    /// # Errors
    /// Those of a suspension, which leaves devices that lack something; `Busy`, with the reason: a
    /// checkpoint, a removal, an expansion, a scan, a receive, a snapshot in use, a leaf that is
    /// absent or lacks something.
    pub fn check_relocation(&self) -> Result<()> {
        self.check_running()?;
        self.checkpoint.refuse_any()?;
        let busy = |what: &str| Err(Error::busy(format!("blocks are not moved while {what}")));
        if self.removal.is_active() {
            return busy("a device is removed");
        }
        if self.expansion.is_active() {
            return busy("a raidz is expanded");
        }
        if self.running_scan().is_some() {
            return busy("a scrub or resilver runs");
        }
        if !self.receives.lock().is_empty() {
            return busy("a stream is received");
        }
        if !self.datasets_in_use.lock().is_empty() {
            return busy("a dataset is sent");
        }
        if !self.all_leaves_whole() && !self.plants.relocation.unchecked_leaves.load(Relaxed) {
            return busy("a device is absent or lacks data");
        }
        Ok(())
    }

    /// Refuses moves where remapped pointers could not be told: remapping a block that was rewritten
    /// physically changes its logical birth ([`home`]).
    pub(super) fn check_remapped(&self, mos: &dyn MosRead) -> Result<()> {
        let mapped = self.removed.any.load(Relaxed);
        match mapped && features::is_active(mos, features::PHYSICAL_REWRITE)? {
            true => Err(Error::busy(
                "blocks are not moved in a pool with removed devices and physically rewritten blocks",
            )),
            false => Ok(()),
        }
    }

    /// The mappings by which blocks are known.
    fn homes(&self) -> Homes {
        match self.plants.relocation.own_addresses.load(Relaxed) {
            true => Homes::default(),
            false => Homes::new(&self.zio.tree()),
        }
    }

    /// Whether a block may have clones, under any of its addresses.
    pub(super) fn may_be_cloned(&self, homes: &Homes, block: &Block) -> bool {
        match homes.is_plain() {
            true => self.block_refs.may_be_cloned(block),
            false => homes.addresses(block).into_iter().any(|at| self.block_refs.is_counted(at)),
        }
    }

    fn all_leaves_whole(&self) -> bool {
        let tree = self.zio.tree();
        tree.leaves().all(|(_, leaf)| leaf.readable() && leaf.dtl().is_empty())
    }

    /// The most bytes, parity included, that a batch may copy now.
    pub fn relocation_room(&self) -> u64 {
        let free = self.ledger.free(false);
        (self.ledger.slop() / SLOP_SHARE).max(free / FREE_SHARE).min(free / 2)
    }

    /// Moves the blocks of a batch to other places, with all that points at them, in one txg.
    /// What cannot be moved is kept and told.
    ///
    /// # Errors
    /// As [`Writer::check_relocation`]; `NoSpace`; those of reading, after which nothing has
    /// changed; those of a suspension.
    pub fn relocate(&self, batch: RelocationBatch) -> Result<RelocationOutcome> {
        self.check_relocation()?;
        let _stopped = (!self.plants.relocation.unstopped_clones.load(Relaxed)).then(|| {
            let noted = self.block_refs.begin_move();
            (ClonesStopped(self), noted)
        });
        if let Some((_, Some(noted))) = &_stopped {
            self.txgs.kick(*noted);
            self.txgs.wait_synced(*noted)?;
        }
        let plants = &self.plants.relocation;
        let seen_roots = match plants.old_heads.load(Relaxed) {
            true => relocate::datasets(&self.mos)?,
            false => Vec::new(),
        };
        let (blocks, unreadable) = self.read_blocks(&batch);
        let places = CopyPlaces { avoid: batch.avoid, spare: batch.spare, to: batch.to };
        let check = |cx: &mut TaskCx<'_>| {
            cx.writer.check_relocation()?;
            cx.writer.check_remapped(cx.read())?;
            let all = relocate::datasets(cx.read())?;
            if all.iter().any(|ds| ds.is_incomplete) {
                return Err(Error::busy("blocks are not moved while a receive is incomplete"));
            }
            Ok(())
        };
        let act = move |cx: &mut TaskCx<'_>, ()| {
            cx.settle()?;
            // An error here leaves nothing behind: the txg goes on without the batch.
            let staged = cx.wait_for_devices(|cx| cx.stage(&blocks, &places, &seen_roots));
            let (mut outcome, staged) = match staged {
                Ok(staged) => staged,
                Err(e) => return Ok(Err(e)),
            };
            outcome.txg = cx.cx.txg;
            if let Some(staged) = staged {
                cx.switch_batch(staged, &mut outcome)?;
            }
            Ok(Ok(outcome))
        };
        let mut outcome = self.sync_task(check, act)?.0?;
        outcome.kept.extend(unreadable);
        Ok(outcome)
    }

    /// Reads the blocks of a batch as they are stored; those that cannot be read are kept.
    fn read_blocks(&self, batch: &RelocationBatch) -> (Vec<ReadBlock>, Vec<BlockPlace>) {
        let next = base::rt::atomic::AtomicUsize::new(0);
        let done: Mutex<BTreeMap<usize, Option<Option<Buf>>>> = Mutex::default();
        fan_out(READERS.min(batch.blocks.len()).max(1), |_| {
            loop {
                let i = next.fetch_add(1, Relaxed);
                let Some((_, block)) = batch.blocks.get(i) else { return };
                let stored = match (is_immovable(block), has_pointers(block)) {
                    (true, _) => None,
                    (false, true) => Some(None),
                    (false, false) => self.zio.read_in_background(block).ok().map(Some),
                };
                done.lock().insert(i, stored);
            }
        });
        let (mut read, mut kept) = (Vec::new(), Vec::new());
        for (i, stored) in done.into_inner() {
            let Some(&(at, block)) = batch.blocks.get(i) else { continue };
            match stored {
                Some(stored) => read.push(ReadBlock { at, block, stored }),
                None => kept.push(block.place()),
            }
        }
        (read, kept)
    }
}

/// Where copies may lie.
struct CopyPlaces {
    avoid: Vec<MsKey>,
    spare: Vec<MsKey>,
    to: Option<CopyTarget>,
}

/// A batch that is written, to be switched.
pub(super) struct StagedBatch {
    table: CopyTable,
    rewritten: Rewritten,
    datasets: Vec<RelocatableDataset>,
    positions: BTreeMap<u64, Vec<BlockPosition>>,
}

impl TaskCx<'_> {
    /// Steps 3 to 5: copies of all blocks and of what points at them, on all leaves. `None` if
    /// there is nothing to switch, and then nothing is allocated.
    fn stage(
        &mut self,
        blocks: &[ReadBlock],
        places: &CopyPlaces,
        seen_roots: &[RelocatableDataset],
    ) -> Result<(RelocationOutcome, Option<StagedBatch>)> {
        let mut outcome = RelocationOutcome::default();
        let mut datasets = relocate::datasets(self.read())?;
        for old in seen_roots.iter().filter(|old| old.is_head) {
            for ds in datasets.iter_mut().filter(|ds| ds.object == old.object) {
                ds.root = old.root;
            }
        }
        let homes = self.writer.homes();
        if !homes.is_plain() {
            // What would be found in the middle of the switch.
            datasets.iter().try_for_each(|ds| remap::check(self.read(), ds.object))?;
        }
        let mut left = BTreeSet::new();
        for one in blocks {
            let cloned = self.writer.may_be_cloned(&homes, &one.block);
            if cloned || one.block.effective_physical_birth() >= self.cx.txg {
                left.insert(one.block.place());
            }
        }
        let mut positions: BTreeMap<u64, Vec<BlockPosition>> = BTreeMap::new();
        for one in blocks {
            positions.entry(one.at.lineage).or_default().push(one.at);
        }
        for list in positions.values_mut() {
            list.sort_unstable();
            list.dedup();
        }
        for _ in 0..ATTEMPTS {
            let tried = self.try_stage(blocks, places, &datasets, &positions, &left);
            match tried? {
                Ok((table, rewritten)) => {
                    outcome.kept = left;
                    return self.write_staged(
                        StagedBatch { table, rewritten, datasets, positions },
                        outcome,
                    );
                }
                Err(more) => left.extend(more),
            }
        }
        outcome.kept = blocks.iter().map(|one| one.block.place()).collect();
        Ok((outcome, None))
    }

    /// One attempt, without the blocks in `left`: the copies with their addresses, none of them
    /// written, or the blocks that must be left out as well.
    #[allow(clippy::type_complexity)]
    fn try_stage(
        &self,
        blocks: &[ReadBlock],
        places: &CopyPlaces,
        datasets: &[RelocatableDataset],
        positions: &BTreeMap<u64, Vec<BlockPosition>>,
        left: &BTreeSet<BlockPlace>,
    ) -> Result<std::result::Result<(CopyTable, Rewritten), BTreeSet<BlockPlace>>> {
        let zio = &self.writer.zio;
        let _avoided = AvoidedMetaslabs::new(&self.writer.space, &places.avoid)?;
        let homes = self.writer.homes();
        let chosen = blocks.iter().filter(|one| !left.contains(&one.block.place()));
        let chosen = chosen.map(|one| homes.of(&one.block)).collect();
        let target = places.to.as_ref();
        let mut copier = BlockCopier::new(self.writer, self.cx.txg, (target, chosen), &homes)?;
        let (mut failed, mut forced) = (BTreeSet::new(), HashSet::new());
        let mut spared = Some(AvoidedMetaslabs::new(&self.writer.space, &places.spare)?);
        for one in blocks.iter().filter(|one| !left.contains(&one.block.place())) {
            let Some(stored) = &one.stored else {
                forced.insert(homes.of(&one.block));
                continue;
            };
            let mut copied = copier.copy(&one.block, stored);
            if matches!(copied, Ok(false)) && spared.take().is_some() {
                copied = copier.copy(&one.block, stored);
            }
            match copied {
                Ok(true) => {}
                Ok(false) => {
                    failed.insert(one.block.place());
                }
                Err(e) => {
                    copier.give_up(zio);
                    return Err(e);
                }
            }
        }
        drop(spared);
        let unshared = self.writer.plants.relocation.unshared.load(Relaxed);
        let mut rewriter = Rewriter::new(copier, forced);
        for ds in datasets {
            let Some(positions) = positions.get(&ds.lineage) else { continue };
            if unshared {
                rewriter.forget_rewritten();
            }
            if let Err(e) = rewriter.root(ds, positions) {
                rewriter.into_copier().give_up(zio);
                return Err(e);
            }
        }
        let (copier, rewritten) = rewriter.finish();
        let stays = |one: &&ReadBlock| rewritten.failed.contains(&one.at);
        failed.extend(blocks.iter().filter(stays).map(|one| one.block.place()));
        if !rewritten.failed.is_empty() && failed.iter().all(|place| left.contains(place)) {
            copier.give_up(zio);
            return Err(base::bug!("what cannot be rewritten is above no block that moves"));
        }
        if failed.is_empty() {
            return Ok(Ok((copier.into_table(), rewritten)));
        }
        copier.give_up(zio);
        Ok(Err(failed))
    }

    /// Step 5: writes the copies and makes sure that every leaf has them.
    fn write_staged(
        &self,
        mut staged: StagedBatch,
        mut outcome: RelocationOutcome,
    ) -> Result<(RelocationOutcome, Option<StagedBatch>)> {
        let (writer, txg) = (self.writer, self.cx.txg);
        // Copies of blocks that nothing refers to any more are not needed.
        let (used, gone): (Vec<Placed>, Vec<Placed>) = std::mem::take(&mut staged.table.placed)
            .into_iter()
            .partition(|placed| placed.bp.as_block().is_some_and(|b| staged.rewritten.uses(b)));
        outcome.gone = gone.len() as u64;
        for placed in gone {
            writer.zio.unplace(placed);
        }
        let used_places: BTreeSet<BlockPlace> =
            used.iter().filter_map(|p| p.bp.as_block()).map(Block::place).collect();
        staged.table.copies.retain(|_, (_, new)| used_places.contains(&new.place()));
        if used.is_empty() {
            return Ok((outcome, None));
        }
        let dvas: Vec<Dva> =
            used.iter().filter_map(|p| p.bp.as_block()).flat_map(Block::dvas).collect();
        // Not as a txg's own writes, which are urgent when a thread waits for the txg.
        let writes = Writes::new(&writer.zio).with_priority(WritePriority::Rebuild);
        writer.zio.submit_all(used, &writes);
        let lost = writes.wait();
        let tops: BTreeSet<VdevId> = dvas.iter().map(|dva| dva.vdev).collect();
        let tops: Vec<VdevId> = tops.into_iter().collect();
        let flushed = writer.zio.tree().flush(&tops).into_iter().all(|(_, done)| done.is_ok());
        let whole =
            lost.is_empty() && writes.counts().partial == 0 && flushed && writer.all_leaves_whole();
        if !whole && !writer.plants.relocation.unchecked_leaves.load(Relaxed) {
            writer.space.unallocate(txg, &dvas);
            outcome.incomplete = true;
            return Ok((outcome, None));
        }
        Ok((outcome, Some(staged)))
    }
}

/// Allocates and prepares copies in the txg that is being written.
pub(super) struct BlockCopier<'a> {
    writer: &'a Writer,
    txg: Txg,
    table: CopyTable,
    /// Bytes that may still be allocated.
    room: u64,
    to: Option<&'a CopyTarget>,
    /// The blocks of the batch.
    chosen: HashSet<BlockHome>,
}

impl<'a> BlockCopier<'a> {
    fn new(
        writer: &'a Writer,
        txg: Txg,
        (to, chosen): (Option<&'a CopyTarget>, HashSet<BlockHome>),
        homes: &Homes,
    ) -> Result<BlockCopier<'a>> {
        let room = writer.relocation_room();
        if room == 0 {
            let text = "there is too little free space to move blocks";
            return Err(Error::new(base::ErrorKind::NoSpace, text));
        }
        let table = CopyTable { homes: homes.clone(), ..CopyTable::default() };
        Ok(BlockCopier { writer, txg, table, room, to, chosen })
    }

    fn with_policy<T>(&self, old: &Block, f: impl FnOnce(&CopyPolicy<'_>) -> T) -> Result<T> {
        let tree = self.writer.zio.tree();
        let own = class_of(tree.top(old.dva().vdev)?.class());
        let class = self.to.and_then(|to| to.class).map_or(own, target_class);
        let only = self.to.filter(|_| self.chosen.contains(&self.home_of(old))).map(|to| &to.vdevs);
        let few = only.is_some_and(|vdevs| vdevs.len() < old.dvas().len());
        let is_of_class = |vdev| tree.top(vdev).is_ok_and(|top| class_of(top.class()) == class);
        let takes = |vdev: VdevId| match only {
            Some(vdevs) => vdevs.contains(&vdev) || (few && is_of_class(vdev)),
            None => true,
        };
        let ratio = |vdev: VdevId| tree.deflate_ratio(vdev).unwrap_or(512);
        let dsize = |asize: u64, vdev: VdevId| (asize >> 9).saturating_mul(ratio(vdev));
        let (txg, uncounted) = (self.txg, self.writer.plants.relocation.uncounted.load(Relaxed));
        let fits = |dva: &Dva, vdev: VdevId| {
            let asize = tree.asize(vdev, old.psize, txg);
            let same =
                asize.is_ok_and(|asize| dsize(asize.0, vdev) == dsize(dva.asize.0, dva.vdev));
            (same || uncounted) && takes(vdev)
        };
        let sum = |dvas: &[Dva]| match uncounted {
            true => 0,
            false => dvas.iter().map(|dva| dsize(dva.asize.0, dva.vdev)).sum(),
        };
        let hint = u64::from(old.head.level);
        Ok(f(&CopyPolicy { txg, class, hint, dsize: &sum, takes: &takes, fits: &fits }))
    }

    /// Makes a copy of a block whose content stays; false if there is no place for it.
    fn copy(&mut self, old: &Block, stored: &Buf) -> Result<bool> {
        if self.table.copies.contains_key(&self.home_of(old)) {
            return Ok(true);
        }
        let zio = &self.writer.zio;
        let born = self.table.homes.with_birth(old);
        let placed = self.with_policy(old, |policy| {
            let prepared = zio.prepare_copy(&born, stored.clone(), policy)?;
            zio.place_copy(&born, prepared, policy)
        })??;
        self.keep(old, placed)
    }

    /// Makes a copy of a block of pointers with changed content. `None` if there is no place for
    /// it, or it does not fit.
    pub(super) fn change(&mut self, old: &Block, content: &Buf) -> Result<Option<Block>> {
        let zio = &self.writer.zio;
        if is_immovable(old) {
            return Ok(None);
        }
        let born = self.table.homes.with_birth(old);
        let placed = self.with_policy(old, |policy| {
            let Some(prepared) = zio.prepare_changed(&born, content, policy)? else {
                return Ok(None);
            };
            zio.place_copy(&born, prepared, policy)
        })??;
        Ok(match self.keep(old, placed)? {
            true => self.table.copy_of(old).copied(),
            false => None,
        })
    }

    fn keep(&mut self, old: &Block, placed: Option<Placed>) -> Result<bool> {
        let Some(placed) = placed else { return Ok(false) };
        let Some(&new) = placed.bp.as_block() else {
            return Err(base::bug!("the copy of a block is no block"));
        };
        let size = CopyTable::asize(&[&new]);
        if size > self.room {
            self.writer.zio.unplace(placed);
            return Ok(false);
        }
        self.room -= size;
        self.table.copies.insert(self.home_of(old), (*old, new));
        self.table.placed.push(placed);
        Ok(true)
    }

    /// The copy of a block.
    pub(super) fn copy_of(&self, old: &Block) -> Option<&Block> {
        self.table.copy_of(old)
    }

    /// The home of a block.
    pub(super) fn home_of(&self, block: &Block) -> BlockHome {
        self.table.homes.of(block)
    }

    /// The pipeline.
    pub(super) fn zio(&self) -> &'a Arc<zio::Zio> {
        &self.writer.zio
    }

    /// Gives back all that was allocated.
    fn give_up(self, zio: &zio::Zio) {
        self.table.placed.into_iter().for_each(|placed| zio.unplace(placed));
    }

    fn into_table(self) -> CopyTable {
        self.table
    }
}
