//! Jobs that move blocks in the background while the pool is used: `zpool defrag` and its kin.
//!
//! # Theory
//! A pool has one job at a time. Its record ([`record`]) says what it is for and how far it is; a
//! thread does the work as long as the record is active. A [`Planner`] chooses a part of the
//! work, whose blocks fit in memory, and the thread moves it batch by batch. A batch is one txg
//! ([`spa::engine::Writer::relocate`]). Where the pool does something else that excludes moves
//! (a scrub, a send, a missing device), the thread waits and says why.
//!
//! # States
//! Active → Paused, Canceled, Failed or Complete; Paused → Active, Canceled. A new job replaces
//! any record that is neither active nor paused. An import continues an active one.
//!
//! # Progress
//! A planner chooses each place or file a bounded number of times, so a job ends even if others
//! write all the time.
//!
//! # Crash argument
//! That of a batch. The record may be older than the work; what was done is then looked at again,
//! and found done.
//!
//! # Lock order
//! `now` is held for moments, never while the pool is asked for anything.

mod record;

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::rt::{Condvar, JoinHandle, Mutex, spawn};
use base::{Error, Result};
use metaslab::MsKey;
use ondisk::blkptr::{Block, BlockPlace};
use spa::engine::{BlockPosition, Command, CopyTarget, RelocationBatch, Writer};

use crate::balance::BalancePlanner;
use crate::batch::{self, MoveLimits};
use crate::defrag::{self, DefragEstimate};
use crate::evacuate;
use crate::special::{SpecialMove, SpecialPlanner};

pub use record::{
    DATASETS_MAX, MovePhase, MoveRecord, MoveRequest, MoveState, MoveWork, WHOLE_SCORE,
};

/// Time between two tries while the pool is busy with something else.
const PAUSE: Duration = Duration::from_millis(500);

/// A job as `zpool status` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveStatus {
    /// Its record.
    pub record: MoveRecord,
    /// Why it waits, or why it failed.
    pub waiting: Option<String>,
}

/// The present state.
#[derive(Default)]
struct JobNow {
    record: Option<MoveRecord>,
    waiting: Option<String>,
}

#[derive(Default)]
struct Shared {
    now: Mutex<JobNow>,
    changed: Condvar,
    stopping: AtomicBool,
}

impl Shared {
    /// Whether the thread must leave its work.
    fn is_stopped(&self) -> bool {
        let now = self.now.lock();
        let active = now.record.as_ref().is_some_and(|r| r.state == MoveState::Active);
        self.stopping.load(Relaxed) || !active
    }

    fn pause(&self, why: String) {
        let mut now = self.now.lock();
        now.waiting = Some(why);
        if !self.stopping.load(Relaxed) {
            self.changed.wait_timeout(&mut now, PAUSE);
        }
    }

    fn record(&self) -> Option<MoveRecord> {
        self.now.lock().record.clone()
    }
}

/// What a planner works with: the pool, and the record of the job.
pub(crate) struct JobCx<'a> {
    /// The pool.
    pub(crate) writer: &'a Writer,
    shared: &'a Shared,
}

impl JobCx<'_> {
    /// Whether the job is to leave its work.
    pub(crate) fn is_stopped(&self) -> bool {
        self.shared.is_stopped()
    }

    /// Changes the record in memory.
    pub(crate) fn update(&self, f: impl FnOnce(&mut MoveRecord)) {
        let mut now = self.shared.now.lock();
        now.waiting = None;
        if let Some(record) = now.record.as_mut() {
            f(record);
        }
    }

    /// Stores the record.
    ///
    /// # Errors
    /// Those of the txg.
    pub(crate) fn store(&self) -> Result<()> {
        self.shared.record().map_or(Ok(()), |record| store(self.writer, &record, None))
    }
}

/// A part of the work that is in memory.
#[derive(Default)]
pub(crate) struct Part {
    /// Blocks that are still to be moved, in the order in which they are to lie.
    pub(crate) blocks: VecDeque<(BlockPosition, Block)>,
    /// Metaslabs that take no copies.
    pub(crate) avoid: Vec<MsKey>,
    /// Metaslabs that take copies only where the others have no room.
    pub(crate) spare: Vec<MsKey>,
    /// Where the copies are to lie.
    pub(crate) to: Option<CopyTarget>,
    /// Blocks that were to be moved, and stay.
    pub(crate) kept: BTreeSet<BlockPlace>,
    /// Files that are laid out, for the score afterwards: their head and objects.
    pub(crate) files: Option<(u64, BTreeSet<u64>)>,
    /// Blocks of these files in sequence before.
    pub(crate) in_sequence: u64,
    /// Where the next part of the files begins.
    pub(crate) next: Option<(u64, u64)>,
}

/// What comes next.
pub(crate) enum Next {
    /// Blocks to move.
    Part(Part),
    /// The planner looks again.
    Look,
    /// The job is over.
    Complete,
    /// The job cannot go on, for this reason.
    Failed(String),
}

/// Chooses what a job moves.
pub(crate) trait Planner {
    /// Bytes that are expected to move.
    ///
    /// # Errors
    /// Those of reading the pool; the job tries again.
    fn estimate(&mut self, cx: &JobCx<'_>, record: &MoveRecord) -> Result<u64>;

    /// Chooses the next part.
    ///
    /// # Errors
    /// As [`Planner::estimate`].
    fn next(&mut self, cx: &JobCx<'_>, record: &MoveRecord) -> Result<Next>;

    /// All blocks of a part were moved, or stay.
    ///
    /// # Errors
    /// As [`Planner::estimate`].
    fn moved(&mut self, cx: &JobCx<'_>, part: &Part) -> Result<()>;
}

fn planner(work: MoveWork) -> Result<Box<dyn Planner>> {
    match work {
        MoveWork::Defrag => Ok(Box::new(defrag::DefragPlanner::default())),
        MoveWork::Remove { .. } | MoveWork::Shrink { .. } | MoveWork::Unmap => {
            Ok(Box::new(evacuate::EmptyPlanner::new(work)))
        }
        MoveWork::Rebalance => Ok(Box::new(BalancePlanner::default())),
        MoveWork::ToSpecial => Ok(Box::new(SpecialPlanner::new(SpecialMove::To))),
        MoveWork::FromSpecial => Ok(Box::new(SpecialPlanner::new(SpecialMove::From))),
    }
}

/// The job of a pool.
#[derive(Default)]
pub struct MoveJob {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Stores the record in a txg of its own, with the command that led to it.
fn store(writer: &Writer, record: &MoveRecord, command: Option<Command>) -> Result<()> {
    writer.store_directory_words(record::RECORD, &record.words(), command)
}

impl MoveJob {
    /// Takes over the record of a pool that was opened for writing, and continues an active job.
    /// One whose record is damaged is forgotten.
    pub fn load(&self, writer: &Arc<Writer>) {
        let words = writer.mos().lookup_words(record::RECORD).ok().flatten();
        let Some(words) = words else { return };
        let Ok(record) = MoveRecord::from_words(&words) else { return };
        let active = record.state == MoveState::Active;
        self.shared.now.lock().record = Some(record);
        if active {
            self.begin_thread(writer);
        }
    }

    fn begin_thread(&self, writer: &Arc<Writer>) {
        let mut thread = self.thread.lock();
        self.shared.stopping.store(false, Relaxed);
        if let Some(ended) = thread.take() {
            // It was told to end.
            ended.join();
        }
        let (weak, shared) = (Arc::downgrade(writer), Arc::clone(&self.shared));
        // Without a thread it stays active, and continues at the next import.
        *thread = spawn("mover", move || run(&weak, &shared)).ok();
    }

    /// Begins a job, or continues a paused one of the same kind as it was asked for.
    ///
    /// # Errors
    /// `Busy` if one runs, or another one is paused, or as [`Writer::check_relocation`];
    /// `Invalid` for too many datasets; those of the txg.
    pub fn start(
        &self,
        writer: &Arc<Writer>,
        request: &MoveRequest,
        command: Option<Command>,
    ) -> Result<()> {
        if request.datasets.len() > DATASETS_MAX {
            return Err(Error::invalid("too many datasets"));
        }
        writer.check_running()?;
        let busy = |old: &MoveRecord| {
            let text = match (old.state, old.work == request.work) {
                (MoveState::Paused, _) => "another job that moves blocks is paused",
                (_, true) => "it is already in progress",
                (_, false) => "another job that moves blocks is in progress",
            };
            Err(Error::busy(text))
        };
        let new = match self.shared.record() {
            Some(old) if old.state == MoveState::Active => return busy(&old),
            Some(old) if old.state == MoveState::Paused => match old.work == request.work {
                true => MoveRecord { state: MoveState::Active, end: 0, ..old },
                false => return busy(&old),
            },
            _ => MoveRecord::begin(request, first_phase(request)),
        };
        writer.check_relocation()?;
        store(writer, &new, command)?;
        {
            let mut now = self.shared.now.lock();
            if let Some(old) = now.record.as_ref().filter(|r| r.state == MoveState::Active) {
                return busy(old);
            }
            *now = JobNow { record: Some(new), waiting: None };
        }
        self.begin_thread(writer);
        Ok(())
    }

    /// Pauses the job: the batch in progress is the last one.
    ///
    /// # Errors
    /// `NotFound` if none is active; those of the txg.
    pub fn pause(&self, writer: &Writer, command: Option<Command>) -> Result<()> {
        self.end(writer, MoveState::Paused, command)
    }

    /// Stops the job; what was moved stays moved.
    ///
    /// # Errors
    /// `NotFound` if none is active or paused; those of the txg.
    pub fn cancel(&self, writer: &Writer, command: Option<Command>) -> Result<()> {
        self.end(writer, MoveState::Canceled, command)
    }

    fn end(&self, writer: &Writer, to: MoveState, command: Option<Command>) -> Result<()> {
        writer.check_running()?;
        {
            let mut now = self.shared.now.lock();
            let record = now.record.as_mut().filter(|r| match r.state {
                MoveState::Active => true,
                MoveState::Paused => to != MoveState::Paused,
                _ => false,
            });
            let none = || Error::not_found("there is no active defragmentation");
            let record = record.ok_or_else(none)?;
            record.state = to;
            record.end = base::rt::wall_clock().as_secs();
            now.waiting = None;
            self.shared.changed.notify_all();
        }
        // The batch in progress is counted.
        if let Some(thread) = self.thread.lock().take() {
            thread.join();
        }
        match self.shared.record() {
            Some(record) => {
                // A crash in between finds the job active.
                if to == MoveState::Canceled {
                    evacuate::release(writer, record.work)?;
                }
                store(writer, &record, command)
            }
            None => Ok(()),
        }
    }

    /// The job under way, or the last one.
    pub fn status(&self) -> Option<MoveStatus> {
        let now = self.shared.now.lock();
        let record = now.record.clone()?;
        Some(MoveStatus { record, waiting: now.waiting.clone() })
    }

    /// What a defragmentation would do; nothing is changed.
    ///
    /// # Errors
    /// As [`Writer::check_relocation`]; those of reading the MOS.
    pub fn estimate(&self, writer: &Writer, request: &MoveRequest) -> Result<DefragEstimate> {
        writer.check_relocation()?;
        let record = MoveRecord::begin(request, first_phase(request));
        defrag::estimate(writer, &record, &|| false)
    }

    /// Ends the thread, and waits for it if `wait`: not for one that a suspended pool holds up.
    pub fn close(&self, wait: bool) {
        self.shared.stopping.store(true, Relaxed);
        self.shared.changed.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|_| wait) {
            thread.join();
        }
    }

    /// Takes a [`MoveJob::close`] back.
    pub fn reopen(&self, writer: &Arc<Writer>) {
        let active = self.shared.record().is_some_and(|r| r.state == MoveState::Active);
        match active {
            true => self.begin_thread(writer),
            false => self.shared.stopping.store(false, Relaxed),
        }
    }
}

fn first_phase(request: &MoveRequest) -> MovePhase {
    match request.work == MoveWork::Defrag && !request.datasets.is_empty() {
        true => MovePhase::Files,
        false => MovePhase::Space,
    }
}

/// What the thread knows beside the record.
struct JobProgress {
    planner: Box<dyn Planner>,
    part: Option<Part>,
}

/// The body of the thread.
fn run(weak: &Weak<Writer>, shared: &Shared) {
    let Some(work) = shared.record().map(|record| record.work) else { return };
    let mut progress = match planner(work) {
        Ok(planner) => JobProgress { planner, part: None },
        Err(e) => {
            let mut now = shared.now.lock();
            now.waiting = Some(e.message().to_owned());
            return;
        }
    };
    while !shared.is_stopped() {
        let Some(writer) = weak.upgrade() else { return };
        match step(&JobCx { writer: &writer, shared }, &mut progress) {
            Ok(()) => {}
            // The pool does something else, is short of space until later txgs, is suspended, or
            // its metadata cannot be read.
            Err(e) => {
                drop(writer);
                shared.pause(e.message().to_owned());
            }
        }
    }
}

/// Does a small piece of the work.
fn step(cx: &JobCx<'_>, progress: &mut JobProgress) -> Result<()> {
    let Some(record) = cx.shared.record() else { return Ok(()) };
    cx.writer.check_running()?;
    cx.writer.check_relocation()?;
    let planner = &mut progress.planner;
    if record.to_move.is_none() {
        let bytes = planner.estimate(cx, &record)?;
        cx.update(|record| record.to_move = Some(bytes));
        return Ok(());
    }
    match progress.part.as_mut() {
        Some(part) if !part.blocks.is_empty() => move_some(cx, part),
        Some(part) => {
            planner.moved(cx, part)?;
            progress.part = None;
            Ok(())
        }
        None => match planner.next(cx, &record)? {
            Next::Part(part) => {
                progress.part = Some(part);
                Ok(())
            }
            Next::Look => Ok(()),
            Next::Complete => end(cx, MoveState::Complete, None),
            Next::Failed(why) => end(cx, MoveState::Failed, Some(why)),
        },
    }
}

/// The job has come to its end, perhaps for a reason that is worth telling.
fn end(cx: &JobCx<'_>, to: MoveState, why: Option<String>) -> Result<()> {
    {
        let mut now = cx.shared.now.lock();
        // Unless it was stopped meanwhile.
        if let Some(record) = now.record.as_mut().filter(|r| r.state == MoveState::Active) {
            record.state = to;
            record.end = base::rt::wall_clock().as_secs();
            now.waiting = why;
        }
    }
    cx.store()
}

/// Moves a batch of the part.
fn move_some(cx: &JobCx<'_>, part: &mut Part) -> Result<()> {
    let count = {
        let list = part.blocks.make_contiguous();
        batch::batch_len(list, cx.writer, &MoveLimits::default())
    };
    let blocks: Vec<_> = part.blocks.range(..count).copied().collect();
    let (avoid, spare, to) = (part.avoid.clone(), part.spare.clone(), part.to.clone());
    let done = cx.writer.relocate(RelocationBatch { blocks, avoid, spare, to })?;
    if done.incomplete {
        return Err(Error::busy("a device did not take all copies"));
    }
    part.blocks.drain(..count);
    cx.update(|record| {
        record.moved += done.moved_bytes;
        record.metadata += done.metadata_bytes;
        record.kept += done.kept.len() as u64;
    });
    part.kept.extend(done.kept);
    Ok(())
}
