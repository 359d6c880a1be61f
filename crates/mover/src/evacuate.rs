//! Emptying a vdev, or its end: what is there moves elsewhere, step by step.
//!
//! # Theory
//! [`spa::engine`]'s module `emptying` says what can be on a vdev and why nothing new comes to it.
//! An [`Evacuation`] goes round these phases:
//! 1. *Blocks of datasets* are found ([`find_in`]), at most [`FOUND_MAX`] in one walk, and move in
//!    batches.
//! 2. *The MOS* is walked until a walk finds nothing of it.
//! 3. *Waiting*: what was freed becomes free within a few txgs.
//!
//! If the vdev is empty then, it is over. If not, something was written, freed or moved in between,
//! and another round follows.
//!
//! # Progress
//! The bytes that are left on the vdev never grow. A round after which they are not less than
//! after the one before has found only what cannot be moved; [`ROUNDS_MAX`] of these in a
//! row, and the evacuation gives up and tells what is left ([`EvacuationRest`]). Within a
//! round each block is given to one batch, and a walk begins anew only if its predecessor moved
//! something. So it ends whatever others write.
//!
//! # The job
//! [`EmptyPlanner`] is the work of `zpool remove` in a pool with raidz, and of `zpool shrink`. For the
//! former the record of the job is
//! stored first, then the vdev is not allocated from. A job that ends without removing the vdev
//! has it allocated from again before its record says so. So a crash at any time finds a vdev that is
//! in use, an active job, or a hole; a job whose vdev is a hole is complete.
//!
//! `zpool defrag --unmap` empties the mappings of removed devices in the same way, one after the
//! other, those that were removed first in front. One that cannot be emptied is left alone, and the
//! job fails at its end.
//!
//! # Invariants
//! * Memory is bounded by [`FOUND_MAX`] and [`KEPT_MAX`].

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::{Error, ErrorKind, Guid, Result, Txg, VdevId};
use ondisk::blkptr::{Block, BlockPlace};
use spa::engine::{
    BlockPosition, EmptyRange, ExcludedSpace, Immovable, MosPlace, RelocationBatch,
    RelocationOutcome, Writer,
};

use crate::batch::{MoveLimits, batch_len};
use crate::find::{FindFlow, find_in};
use crate::job::{JobCx, MoveRecord, MoveWork, Next, Part, Planner};

/// Blocks that one walk finds.
const FOUND_MAX: u64 = 500_000;
/// Blocks that stay: more of them, and it is not worth going on.
const KEPT_MAX: usize = 1_000_000;
/// Rounds in a row without progress.
const ROUNDS_MAX: u32 = 3;
/// Walks over the MOS in one round.
const MOS_WALKS_MAX: u32 = 8;
/// Txgs after which everything that was freed is free.
const FREE_TXGS: u32 = 12;
/// Txgs in a row in which a batch finds too little space.
const CRAMPED_MAX: u32 = 32;

/// What cannot be moved away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvacuationRest {
    /// Gang blocks for which there was no place in one piece.
    pub gangs: u64,
    /// Blocks with an entry in the dedup tables, or that may have one.
    pub deduplicated: u64,
    /// Blocks that may be cloned.
    pub cloned: u64,
    /// Blocks that another program rewrote physically.
    pub rewritten: u64,
    /// Blocks for which there was no place that counts the same, or below a block of pointers that
    /// does not fit its old size any more.
    pub unplaced: u64,
    /// Bytes on the vdev, whatever they are.
    pub bytes: u64,
}

impl EvacuationRest {
    fn add_immovable(&mut self, more: &EvacuationRest) {
        self.deduplicated += more.deduplicated;
        self.cloned += more.cloned;
        self.rewritten += more.rewritten;
    }

    /// The blocks that no attempt could move.
    pub fn immovable(&self) -> u64 {
        self.deduplicated + self.cloned + self.rewritten
    }
}

impl std::fmt::Display for EvacuationRest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kinds = [
            (self.deduplicated, "deduplicated"),
            (self.cloned, "cloned"),
            (self.gangs, "gang"),
            (self.rewritten, "physically rewritten"),
            (self.unplaced, "unplaceable"),
        ];
        let mut parts = Vec::new();
        for (count, kind) in kinds.into_iter().filter(|(count, _)| *count > 0) {
            parts.push(format!("{count} {kind} block{}", if count == 1 { "" } else { "s" }));
        }
        match parts.is_empty() {
            true => write!(f, "{} bytes that belong to no block that was found", self.bytes),
            false => f.write_str(&parts.join(", ")),
        }
    }
}

/// What in a range is never moved, as of now. Nothing is changed.
///
/// # Errors
/// Those of reading the MOS.
pub fn survey(writer: &Writer, range: EmptyRange) -> Result<EvacuationRest> {
    let counts = [const { AtomicU64::new(0) }; 5];
    let wanted = |_: &BlockPosition, block: &Block| {
        if range.touches(block) || block.is_gang() {
            let kind = match writer.immovable(block) {
                None if block.is_gang() => 0,
                Some(Immovable::Deduplicated) => 1,
                Some(Immovable::Cloned) => 2,
                Some(Immovable::Rewritten) => 3,
                None if block.is_gang() => 0,
                None => 4,
            };
            if let Some(count) = counts.get(kind) {
                count.fetch_add(1, Relaxed);
            }
        }
        FindFlow::Descend
    };
    find_in(writer, None, &wanted)?;
    let [gangs, deduplicated, cloned, rewritten, unplaced] = counts.map(AtomicU64::into_inner);
    let bytes = writer.emptying_left(range)?;
    Ok(EvacuationRest { gangs, deduplicated, cloned, rewritten, unplaced, bytes })
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvacuationStep {
    /// It goes on. Allocated bytes that moved, without and of blocks of pointers and the MOS.
    More(u64, u64),
    /// Nothing is on the vdev.
    Empty,
    /// This much is on it, and cannot be moved.
    Stuck(EvacuationRest),
}

enum EvacuationPhase {
    Find,
    Move(VecDeque<(BlockPosition, Block)>),
    Mos(Option<MosPlace>),
    Wait(u32),
}

/// The evacuation of a vdev, or of its end, from which nothing is allocated.
pub struct Evacuation {
    range: EmptyRange,
    /// Keeps the end of a vdev from being allocated from.
    _excluded: Option<ExcludedSpace>,
    limits: MoveLimits,
    /// Gangs that are not newer may have members on the vdev.
    begun: Txg,
    phase: EvacuationPhase,
    kept: BTreeSet<BlockPlace>,
    /// Blocks that the walk over the MOS has found, and how many walks there were.
    mos: (u64, u32),
    /// Bytes left after the last round, and rounds without progress.
    least: u64,
    rounds: u32,
    cramped: u32,
}

impl Evacuation {
    /// Begins: nothing is allocated in the range any more ([`Writer::set_vdev_allocating`],
    /// [`Writer::exclude_range`]).
    ///
    /// # Errors
    /// As these.
    pub fn begin(writer: &Writer, range: EmptyRange, limits: MoveLimits) -> Result<Evacuation> {
        let mapped = writer.mapped_vdevs().contains(&range.vdev);
        let excluded = match range.is_whole() {
            // Nothing is allocated on a removed vdev.
            true if mapped => None,
            true => {
                writer.set_vdev_allocating(range.vdev, false, None)?;
                None
            }
            false => Some(writer.exclude_range(range)?),
        };
        Ok(Evacuation {
            range,
            _excluded: excluded,
            limits,
            begun: writer.txgs().synced_txg(),
            phase: EvacuationPhase::Find,
            kept: BTreeSet::new(),
            mos: (0, 0),
            least: u64::MAX,
            rounds: 0,
            cramped: 0,
        })
    }

    /// Does a small piece of the work.
    ///
    /// # Errors
    /// As [`Writer::relocate`]; the step can be repeated.
    pub fn step(&mut self, writer: &Writer) -> Result<EvacuationStep> {
        writer.note_emptying(self.range)?;
        match &mut self.phase {
            EvacuationPhase::Find => self.find(writer),
            EvacuationPhase::Move(list) if list.is_empty() => {
                self.phase = EvacuationPhase::Find;
                Ok(EvacuationStep::More(0, 0))
            }
            EvacuationPhase::Move(_) => self.move_some(writer),
            EvacuationPhase::Mos(from) => {
                let from = *from;
                self.leave_mos(writer, from)
            }
            EvacuationPhase::Wait(waited) => {
                let waited = *waited;
                self.wait(writer, waited)
            }
        }
    }

    fn find(&mut self, writer: &Writer) -> Result<EvacuationStep> {
        let taken = AtomicU64::new(0);
        let (range, kept, begun) = (self.range, &self.kept, self.begun);
        // Members of a gang may be there, and only its header says so. Its copy is no gang.
        let may_be_there = |block: &Block| {
            let gang = block.is_gang() && block.effective_physical_birth() <= begun;
            gang || range.touches(block)
        };
        let wanted = |_: &BlockPosition, block: &Block| {
            if taken.load(Relaxed) >= FOUND_MAX {
                return FindFlow::Skip;
            }
            let moves = may_be_there(block)
                && writer.immovable(block).is_none()
                && !kept.contains(&block.place());
            if moves {
                taken.fetch_add(1, Relaxed);
                return FindFlow::Take;
            }
            FindFlow::Descend
        };
        let found = find_in(writer, None, &wanted)?;
        self.phase = match found.blocks.is_empty() {
            true => {
                self.mos = (0, 0);
                EvacuationPhase::Mos(None)
            }
            false => EvacuationPhase::Move(found.blocks.into()),
        };
        Ok(EvacuationStep::More(0, 0))
    }

    fn move_some(&mut self, writer: &Writer) -> Result<EvacuationStep> {
        let EvacuationPhase::Move(list) = &mut self.phase else {
            return Ok(EvacuationStep::More(0, 0));
        };
        let count = batch_len(list.make_contiguous(), writer, &self.limits);
        let blocks: Vec<_> = list.range(..count).copied().collect();
        let batch = RelocationBatch { blocks, ..RelocationBatch::default() };
        let done: RelocationOutcome = match writer.relocate(batch) {
            Err(e) if e.kind() == ErrorKind::NoSpace => {
                // The space of earlier batches is free in a later txg.
                self.cramped += 1;
                if self.cramped > CRAMPED_MAX {
                    return Ok(EvacuationStep::Stuck(survey(writer, self.range)?));
                }
                writer.touch();
                writer.sync()?;
                return Ok(EvacuationStep::More(0, 0));
            }
            other => other?,
        };
        if done.incomplete {
            return Err(Error::busy("a device did not take all copies"));
        }
        self.cramped = 0;
        list.drain(..count);
        self.kept.extend(&done.kept);
        if self.kept.len() > KEPT_MAX {
            return Ok(EvacuationStep::Stuck(survey(writer, self.range)?));
        }
        Ok(EvacuationStep::More(done.moved_bytes, done.metadata_bytes))
    }

    fn leave_mos(&mut self, writer: &Writer, from: Option<MosPlace>) -> Result<EvacuationStep> {
        let step = writer.evacuate_mos(self.range, self.begun, from)?;
        self.mos.0 += step.found;
        self.phase = match step.next {
            Some(next) => EvacuationPhase::Mos(Some(next)),
            None if self.mos.0 == 0 || self.mos.1 >= MOS_WALKS_MAX => EvacuationPhase::Wait(0),
            None => {
                self.mos = (0, self.mos.1 + 1);
                EvacuationPhase::Mos(None)
            }
        };
        Ok(EvacuationStep::More(0, step.bytes))
    }

    fn wait(&mut self, writer: &Writer, waited: u32) -> Result<EvacuationStep> {
        let left = writer.emptying_left(self.range)?;
        if left == 0 {
            return Ok(EvacuationStep::Empty);
        }
        if waited < FREE_TXGS {
            writer.touch();
            writer.sync()?;
            self.phase = EvacuationPhase::Wait(waited + 1);
            return Ok(EvacuationStep::More(0, 0));
        }
        self.rounds = if left < self.least { 0 } else { self.rounds + 1 };
        self.least = left.min(self.least);
        if self.rounds >= ROUNDS_MAX {
            return Ok(EvacuationStep::Stuck(survey(writer, self.range)?));
        }
        // What stayed may have a place now.
        self.kept.clear();
        self.phase = EvacuationPhase::Find;
        Ok(EvacuationStep::More(0, 0))
    }
}

/// The top-level vdev with this guid, unless it has left the pool.
fn top_of(writer: &Writer, guid: Guid) -> Option<VdevId> {
    let config = writer.published().config;
    config.vdev_tree.children.iter().find(|top| top.guid == guid).map(|top| VdevId(top.id))
}

/// Refuses a job that would come to nothing. What it returns has the bytes that are to move.
///
/// # Errors
/// As [`Writer::check_emptied_removal`] and [`Writer::check_shrink`]; `Unsupported` if blocks there
/// are never moved.
pub fn check(writer: &Writer, work: MoveWork) -> Result<EvacuationRest> {
    let range = match work {
        MoveWork::Remove { vdev } => EmptyRange::whole(writer.check_emptied_removal(vdev, true)?),
        MoveWork::Shrink { vdev, size } => match writer.check_shrink(vdev, size, true)? {
            Some(plan) => plan.range,
            None => return Err(Error::invalid("the vdev has this size already")),
        },
        MoveWork::Unmap => {
            let bytes = writer.check_unmap()?;
            let mut all = EvacuationRest { bytes, ..EvacuationRest::default() };
            let mut hopeless = true;
            for vdev in writer.mapped_vdevs() {
                let rest = survey(writer, EmptyRange::whole(vdev))?;
                hopeless &= rest.immovable() > 0;
                all.add_immovable(&rest);
            }
            // Mappings without such blocks are erased; the others stay.
            return match hopeless {
                true => Err(Error::unsupported(format!("{all} cannot be moved"))),
                false => Ok(all),
            };
        }
        _ => return Err(Error::unsupported("such a job empties no vdev")),
    };
    let rest = EvacuationRest { unplaced: 0, gangs: 0, ..survey(writer, range)? };
    match rest.immovable() {
        0 => Ok(rest),
        _ => Err(Error::unsupported(format!("{rest} cannot be moved"))),
    }
}

/// What a job empties; `None` if it is gone.
fn range_of(writer: &Writer, work: MoveWork) -> Result<Option<EmptyRange>> {
    Ok(match work {
        MoveWork::Remove { vdev } => top_of(writer, vdev).map(EmptyRange::whole),
        MoveWork::Shrink { vdev, size } if top_of(writer, vdev).is_some() => {
            writer.check_shrink(vdev, size, false)?.map(|plan| plan.range)
        }
        _ => None,
    })
}

/// A vdev that is not removed is allocated from again.
///
/// # Errors
/// Those of a suspension.
pub(crate) fn release(writer: &Writer, work: MoveWork) -> Result<()> {
    match work {
        MoveWork::Remove { vdev } => match top_of(writer, vdev) {
            Some(id) => writer.set_vdev_allocating(id, true, None),
            None => Ok(()),
        },
        // The end of a vdev is excluded as long as its evacuation lives.
        _ => Ok(()),
    }
}

/// The removal of a vdev by moving its blocks, the cutting off of its end, or the emptying of
/// mappings.
pub(crate) struct EmptyPlanner {
    work: MoveWork,
    evacuation: Option<Evacuation>,
    /// Nothing is left there.
    empty: bool,
    /// Removed vdevs whose mappings could not be emptied.
    stuck: BTreeSet<VdevId>,
    /// Why not.
    rest: Option<String>,
}

impl EmptyPlanner {
    pub(crate) fn new(work: MoveWork) -> EmptyPlanner {
        EmptyPlanner { work, evacuation: None, empty: false, stuck: BTreeSet::new(), rest: None }
    }

    /// What is emptied next; `None` if all is gone.
    fn range(&self, writer: &Writer) -> Result<Option<EmptyRange>> {
        match self.work {
            MoveWork::Unmap => {
                let left = writer.mapped_vdevs();
                let next = left.into_iter().find(|vdev| !self.stuck.contains(vdev));
                Ok(next.map(EmptyRange::whole))
            }
            work => range_of(writer, work),
        }
    }

    /// One mapping stays; whether there are others to empty.
    fn leave_mapping(&mut self, cx: &JobCx<'_>, vdev: VdevId, why: String) -> Next {
        (self.evacuation, self.empty) = (None, false);
        self.stuck.insert(vdev);
        let why = format!("the mapping of removed device {vdev} stays: {why}");
        self.rest.get_or_insert(why);
        // It waits for nothing.
        cx.update(|_| {});
        Next::Look
    }

    /// All stays as it is.
    fn give_up(&mut self, cx: &JobCx<'_>, why: String) -> Result<Next> {
        self.evacuation = None;
        release(cx.writer, self.work)?;
        Ok(Next::Failed(why))
    }

    /// An error that would come again ends the job.
    fn judge(&mut self, cx: &JobCx<'_>, e: Error) -> Result<Next> {
        let vdev = self.evacuation.as_ref().map(|work| work.range.vdev);
        match (e.kind(), vdev) {
            (ErrorKind::Unsupported | ErrorKind::Invalid, Some(vdev))
                if self.work == MoveWork::Unmap =>
            {
                Ok(self.leave_mapping(cx, vdev, e.message().to_owned()))
            }
            (kind, _) => self.judge_kind(cx, kind, e),
        }
    }

    fn judge_kind(&mut self, cx: &JobCx<'_>, kind: ErrorKind, e: Error) -> Result<Next> {
        match kind {
            ErrorKind::Unsupported | ErrorKind::Invalid => self.give_up(cx, e.message().to_owned()),
            _ => Err(e),
        }
    }

    fn cut(&self, cx: &JobCx<'_>, range: Option<EmptyRange>) -> Result<()> {
        match self.work {
            MoveWork::Unmap => range.map_or(Ok(()), |range| cx.writer.end_unmap(range.vdev)),
            MoveWork::Remove { vdev } => cx.writer.end_emptied_removal(vdev),
            MoveWork::Shrink { vdev, size } => cx.writer.end_shrink(vdev, size),
            _ => Ok(()),
        }
    }

    fn work(&mut self, cx: &JobCx<'_>) -> Result<Next> {
        if self.empty {
            let range = self.evacuation.as_ref().map(|work| work.range);
            // An attempt of which only the answer failed has done it.
            let is_there = match self.work {
                MoveWork::Unmap => {
                    range.is_some_and(|range| cx.writer.mapped_vdevs().contains(&range.vdev))
                }
                work => range_of(cx.writer, work)?.is_some(),
            };
            if is_there {
                self.cut(cx, range)?;
            }
            (self.evacuation, self.empty) = (None, false);
            return Ok(match self.work {
                MoveWork::Unmap => Next::Look,
                _ => Next::Complete,
            });
        }
        let next = match &self.evacuation {
            Some(_) => None,
            None => self.range(cx.writer)?,
        };
        let evacuation = match &mut self.evacuation {
            Some(evacuation) => evacuation,
            none => {
                let Some(range) = next else {
                    return Ok(self.rest.take().map_or(Next::Complete, Next::Failed));
                };
                none.insert(Evacuation::begin(cx.writer, range, MoveLimits::default())?)
            }
        };
        match evacuation.step(cx.writer)? {
            EvacuationStep::More(moved, metadata) => {
                cx.update(|record| {
                    record.moved += moved;
                    record.metadata += metadata;
                });
                Ok(Next::Look)
            }
            EvacuationStep::Empty => {
                self.empty = true;
                Ok(Next::Look)
            }
            EvacuationStep::Stuck(rest) => {
                let vdev = evacuation.range.vdev;
                cx.update(|record| record.kept += rest.immovable() + rest.gangs + rest.unplaced);
                if self.work == MoveWork::Unmap {
                    return Ok(self.leave_mapping(cx, vdev, format!("{rest} could not be moved")));
                }
                self.give_up(cx, format!("{rest} could not be moved"))
            }
        }
    }
}

impl Planner for EmptyPlanner {
    fn estimate(&mut self, cx: &JobCx<'_>, _record: &MoveRecord) -> Result<u64> {
        if self.work == MoveWork::Unmap {
            let all = cx.writer.mapped_vdevs();
            return all.into_iter().map(|vdev| cx.writer.mapped_left(vdev)).sum();
        }
        let Some(range) = range_of(cx.writer, self.work)? else { return Ok(0) };
        cx.update(|record| record.position = (range.vdev.0.into(), 0));
        cx.writer.emptying_allocated(range)
    }

    fn next(&mut self, cx: &JobCx<'_>, _record: &MoveRecord) -> Result<Next> {
        self.work(cx).or_else(|e| self.judge(cx, e))
    }

    fn moved(&mut self, _cx: &JobCx<'_>, _part: &Part) -> Result<()> {
        Ok(())
    }
}
