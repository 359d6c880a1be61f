//! `zpool defrag`: files are laid out in order, and free space is joined, while the pool is used.
//!
//! # Theory
//! A pool has one defragmentation at a time. Its record ([`record`]) says what was asked for and
//! how far it is; a thread does the work as long as the record is active. [`plan`] chooses a part
//! of the work, whose blocks fit in memory, and the thread moves it batch by batch. A batch is one
//! txg ([`spa::engine::Writer::relocate`]). Where the pool does something else that excludes moves
//! (a scrub, a send, a missing device), the thread waits and says why.
//!
//! # States
//! Active → Paused, Canceled or Complete; Paused → Active, Canceled. A new defragmentation
//! replaces any record that is neither active nor paused. An import continues an active one.
//!
//! # Progress
//! Phases come in order, and each chooses a file or metaslab at most once, so a
//! defragmentation ends even if others write all the time. It also ends the phase of files when
//! what it laid out lies no better than before, several parts in a row: then free space is too
//! scattered to help.
//!
//! # Crash argument
//! That of a batch. The record may be older than the work; what was done is then looked at again,
//! and found done.
//!
//! # Lock order
//! `record` is held for moments, never while the pool is asked for anything.

mod plan;
mod record;

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::rt::{Condvar, JoinHandle, Mutex, spawn};
use base::{Error, Result};
use metaslab::MsKey;
use ondisk::blkptr::Block;
use spa::engine::{BlockPosition, Command, RelocationBatch, RelocationOutcome, Writer};

use crate::batch::{self, MoveLimits};
use crate::find::{FindFlow, find_in};

pub use plan::DefragEstimate;
pub use record::{DATASETS_MAX, DefragPhase, DefragRecord, DefragState, WHOLE_SCORE};

/// Files with a lower score are laid out, unless a request says otherwise; in thousandths.
pub const TARGET: u64 = 950;
/// Time between two tries while the pool is busy with something else.
const PAUSE: Duration = Duration::from_millis(500);
/// Parts in a row that end the phase of files if they gain nothing.
const GAINLESS_MAX: u32 = 3;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefragRequest {
    /// Files with a lower layout score are laid out; in thousandths.
    pub target: u64,
    /// The heads whose files are laid out; empty for all, and the free space.
    pub datasets: Vec<u64>,
}

impl DefragRequest {
    fn record(&self) -> DefragRecord {
        let phase = if self.datasets.is_empty() { DefragPhase::Space } else { DefragPhase::Files };
        DefragRecord {
            state: DefragState::Active,
            start: base::rt::wall_clock().as_secs(),
            end: 0,
            target: self.target.min(WHOLE_SCORE),
            phase,
            position: (0, 0),
            to_move: None,
            moved: 0,
            metadata: 0,
            files: 0,
            metaslabs: 0,
            kept: 0,
            steps: 0,
            in_sequence: 0,
            in_sequence_now: 0,
            datasets: self.datasets.clone(),
        }
    }
}

/// A defragmentation as `zpool status` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefragStatus {
    /// Its record.
    pub record: DefragRecord,
    /// Why it waits.
    pub waiting: Option<String>,
}

/// The present state.
#[derive(Default)]
struct DefragNow {
    record: Option<DefragRecord>,
    waiting: Option<String>,
}

#[derive(Default)]
struct Shared {
    now: Mutex<DefragNow>,
    changed: Condvar,
    stopping: AtomicBool,
}

impl Shared {
    /// Whether the thread must leave its work.
    fn is_stopped(&self) -> bool {
        let now = self.now.lock();
        let active = now.record.as_ref().is_some_and(|r| r.state == DefragState::Active);
        self.stopping.load(Relaxed) || !active
    }

    fn pause(&self, why: String) {
        let mut now = self.now.lock();
        now.waiting = Some(why);
        if !self.stopping.load(Relaxed) {
            self.changed.wait_timeout(&mut now, PAUSE);
        }
    }

    fn update(&self, f: impl FnOnce(&mut DefragRecord)) {
        let mut now = self.now.lock();
        now.waiting = None;
        if let Some(record) = now.record.as_mut() {
            f(record);
        }
    }

    fn record(&self) -> Option<DefragRecord> {
        self.now.lock().record.clone()
    }
}

/// The defragmentation of a pool.
#[derive(Default)]
pub struct Defragmenter {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Stores the record in a txg of its own, with the command that led to it.
fn store(writer: &Writer, record: &DefragRecord, command: Option<Command>) -> Result<()> {
    writer.store_directory_words(record::RECORD, &record.words(), command)
}

impl Defragmenter {
    /// Takes over the record of a pool that was opened for writing, and continues an active
    /// defragmentation. One whose record is damaged is forgotten.
    pub fn load(&self, writer: &Arc<Writer>) {
        let words = writer.mos().lookup_words(record::RECORD).ok().flatten();
        let Some(words) = words else { return };
        let Ok(record) = DefragRecord::from_words(&words) else { return };
        let active = record.state == DefragState::Active;
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
        *thread = spawn("defrag", move || run(&weak, &shared)).ok();
    }

    /// Begins a defragmentation, or continues a paused one as it was asked for.
    ///
    /// # Errors
    /// `Busy` if one runs, or as [`Writer::check_relocation`]; `Invalid` for too many datasets;
    /// those of the txg.
    pub fn start(
        &self,
        writer: &Arc<Writer>,
        request: &DefragRequest,
        command: Option<Command>,
    ) -> Result<()> {
        if request.datasets.len() > DATASETS_MAX {
            return Err(Error::invalid("too many datasets"));
        }
        writer.check_running()?;
        let old = self.shared.record();
        let new = match old {
            Some(old) if old.state == DefragState::Active => {
                return Err(Error::busy("it is already in progress"));
            }
            Some(old) if old.state == DefragState::Paused => {
                DefragRecord { state: DefragState::Active, end: 0, ..old }
            }
            _ => request.record(),
        };
        writer.check_relocation()?;
        store(writer, &new, command)?;
        {
            let mut now = self.shared.now.lock();
            if now.record.as_ref().is_some_and(|r| r.state == DefragState::Active) {
                return Err(Error::busy("it is already in progress"));
            }
            *now = DefragNow { record: Some(new), waiting: None };
        }
        self.begin_thread(writer);
        Ok(())
    }

    /// Pauses the defragmentation: the batch in progress is the last one.
    ///
    /// # Errors
    /// `NotFound` if none is active; those of the txg.
    pub fn pause(&self, writer: &Writer, command: Option<Command>) -> Result<()> {
        self.end(writer, DefragState::Paused, command)
    }

    /// Stops the defragmentation; what was moved stays moved.
    ///
    /// # Errors
    /// `NotFound` if none is active or paused; those of the txg.
    pub fn cancel(&self, writer: &Writer, command: Option<Command>) -> Result<()> {
        self.end(writer, DefragState::Canceled, command)
    }

    fn end(&self, writer: &Writer, to: DefragState, command: Option<Command>) -> Result<()> {
        writer.check_running()?;
        {
            let mut now = self.shared.now.lock();
            let record = now.record.as_mut().filter(|r| match r.state {
                DefragState::Active => true,
                DefragState::Paused => to != DefragState::Paused,
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
            Some(record) => store(writer, &record, command),
            None => Ok(()),
        }
    }

    /// The defragmentation under way, or the last one.
    pub fn status(&self) -> Option<DefragStatus> {
        let now = self.shared.now.lock();
        let record = now.record.clone()?;
        Some(DefragStatus { record, waiting: now.waiting.clone() })
    }

    /// What a defragmentation would do; nothing is changed.
    ///
    /// # Errors
    /// As [`Writer::check_relocation`]; those of reading the MOS.
    pub fn estimate(&self, writer: &Writer, request: &DefragRequest) -> Result<DefragEstimate> {
        writer.check_relocation()?;
        plan::estimate(writer, &request.record(), &|| false)
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

    /// Takes a [`Defragmenter::close`] back.
    pub fn reopen(&self, writer: &Arc<Writer>) {
        let active = self.shared.record().is_some_and(|r| r.state == DefragState::Active);
        match active {
            true => self.begin_thread(writer),
            false => self.shared.stopping.store(false, Relaxed),
        }
    }
}

/// The part of the work that the thread has in memory.
#[derive(Default)]
struct Part {
    /// Blocks that are still to be moved.
    blocks: VecDeque<(BlockPosition, Block)>,
    /// Metaslabs that are emptied.
    avoid: Vec<MsKey>,
    /// Files that are laid out, for the score afterwards.
    files: Option<(u64, BTreeSet<u64>)>,
    /// Blocks of these files in sequence before.
    in_sequence: u64,
    /// Where the next part of the files begins.
    next: Option<(u64, u64)>,
}

/// What the thread knows beside the record.
#[derive(Default)]
struct DefragProgress {
    part: Option<Part>,
    /// Metaslabs that were tried in this phase.
    tried: BTreeSet<MsKey>,
    /// Parts of files in a row that gained nothing.
    gainless: u32,
}

/// The body of the thread.
fn run(weak: &Weak<Writer>, shared: &Shared) {
    let mut progress = DefragProgress::default();
    while !shared.is_stopped() {
        let Some(writer) = weak.upgrade() else { return };
        match step(&writer, shared, &mut progress) {
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
fn step(writer: &Writer, shared: &Shared, progress: &mut DefragProgress) -> Result<()> {
    let Some(record) = shared.record() else { return Ok(()) };
    writer.check_running()?;
    writer.check_relocation()?;
    if record.to_move.is_none() {
        let all = plan::estimate(writer, &record, &|| shared.is_stopped())?;
        let bytes = all.file_bytes.saturating_add(all.metaslab_bytes);
        shared.update(|record| record.to_move = Some(bytes));
        return Ok(());
    }
    if let Some(part) = &mut progress.part {
        if part.blocks.is_empty() {
            return end_part(writer, shared, progress);
        }
        return move_some(writer, shared, part);
    }
    match record.phase {
        DefragPhase::Space | DefragPhase::SpaceAgain => begin_space(writer, shared, progress),
        DefragPhase::Files => begin_files(writer, shared, progress, &record),
        DefragPhase::Done => {
            shared.update(|record| {
                record.state = DefragState::Complete;
                record.end = base::rt::wall_clock().as_secs();
            });
            store_record(writer, shared)
        }
    }
}

fn store_record(writer: &Writer, shared: &Shared) -> Result<()> {
    shared.record().map_or(Ok(()), |record| store(writer, &record, None))
}

fn next_phase(writer: &Writer, shared: &Shared, progress: &mut DefragProgress) -> Result<()> {
    progress.tried.clear();
    shared.update(|record| {
        record.phase = match record.is_whole_pool() {
            true => record.phase.next(),
            false => DefragPhase::Done,
        };
        record.position = (0, 0);
    });
    store_record(writer, shared)
}

/// Chooses metaslabs and finds what is in them.
fn begin_space(writer: &Writer, shared: &Shared, progress: &mut DefragProgress) -> Result<()> {
    let group = plan::metaslab_group(writer, &progress.tried)?;
    if group.is_empty() {
        return next_phase(writer, shared, progress);
    }
    let inside = |_: &BlockPosition, block: &Block| {
        let within = |dva: base::Dva| {
            group.iter().any(|ms| {
                ms.key.vdev == dva.vdev && (ms.seg.start..ms.seg.end()).contains(&dva.offset)
            })
        };
        if block.dvas().any(within) { FindFlow::Take } else { FindFlow::Descend }
    };
    let mut found = find_in(writer, None, &inside)?;
    // In their present order: files that are in one piece stay so.
    found.blocks.sort_by_key(|(_, block)| (block.dva().vdev, block.dva().offset));
    progress.tried.extend(group.iter().map(|ms| ms.key));
    shared.update(|record| {
        record.kept += found.immovable;
        record.metaslabs += group.len() as u64;
    });
    progress.part = Some(Part {
        blocks: found.blocks.into(),
        avoid: group.iter().map(|ms| ms.key).collect(),
        ..Part::default()
    });
    Ok(())
}

/// Chooses files and finds their blocks.
fn begin_files(
    writer: &Writer,
    shared: &Shared,
    progress: &mut DefragProgress,
    record: &DefragRecord,
) -> Result<()> {
    let chunk = plan::files(writer, record)?;
    let good = chunk.looked_at.in_sequence - chunk.bad.in_sequence;
    shared.update(|record| {
        record.steps += chunk.looked_at.steps;
        record.in_sequence += chunk.looked_at.in_sequence;
        // Those that are laid out are counted afterwards.
        record.in_sequence_now += good;
        record.kept += chunk.immovable;
    });
    if chunk.next.is_none() && chunk.blocks.is_empty() {
        return next_phase(writer, shared, progress);
    }
    let files = chunk.files.map(|(ds, files)| (ds.object, files));
    progress.part = Some(Part {
        blocks: chunk.blocks.into(),
        avoid: Vec::new(),
        files,
        in_sequence: chunk.bad.in_sequence,
        next: chunk.next,
    });
    Ok(())
}

/// Moves a batch of the part.
fn move_some(writer: &Writer, shared: &Shared, part: &mut Part) -> Result<()> {
    let count = {
        let list = part.blocks.make_contiguous();
        batch::batch_len(list, writer, &MoveLimits::default())
    };
    let blocks: Vec<_> = part.blocks.range(..count).copied().collect();
    let done: RelocationOutcome =
        writer.relocate(RelocationBatch { blocks, avoid: part.avoid.clone() })?;
    if done.incomplete {
        return Err(Error::busy("a device did not take all copies"));
    }
    part.blocks.drain(..count);
    shared.update(|record| {
        record.moved += done.moved_bytes;
        record.metadata += done.metadata_bytes;
        record.kept += done.kept.len() as u64;
    });
    Ok(())
}

/// All blocks of a part were moved, or stay.
fn end_part(writer: &Writer, shared: &Shared, progress: &mut DefragProgress) -> Result<()> {
    let Some(part) = progress.part.take() else { return Ok(()) };
    let Some((head, files)) = part.files else { return store_record(writer, shared) };
    let now = plan::score_of(writer, head, &files)?;
    let gained = now.in_sequence > part.in_sequence;
    progress.gainless = if gained || files.is_empty() { 0 } else { progress.gainless + 1 };
    shared.update(|record| {
        record.in_sequence_now += now.in_sequence;
        record.files += files.len() as u64;
        record.position = part.next.unwrap_or(record.position);
    });
    if part.next.is_none() || progress.gainless >= GAINLESS_MAX {
        progress.gainless = 0;
        return next_phase(writer, shared, progress);
    }
    store_record(writer, shared)
}
