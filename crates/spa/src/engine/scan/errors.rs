//! The error scrub: the blocks of the stored error log are read again (chapter 04 §17.5).
//!
//! # Theory
//! Each entry of the log of known errors names a block of a head. The head and its snapshots
//! are searched for it. What is found goes through the queue, like blocks of a scrub, so it is
//! repaired where that has become possible, for instance because a device is back. Entries
//! whose blocks are right now, or that no dataset has any more, are removed.
//!
//! The thread takes the sorted entries in batches. After a batch the txg that is written next
//! removes what is right from the log and stores the counts. What is still lost stays in the log,
//! in front of all that was not read yet. So the number of lost blocks, which the stored state
//! has, is the place where an error scrub goes on after an import. An entry that another
//! reader adds in front meanwhile shifts that place by one: then a block is read once more, or
//! not at all, and stays a known error.
//!
//! # States
//! ```text
//! (none) -- begin --> running <-- pause, resume --> paused
//!   running -- all entries are read --> (none), finished
//!   running, paused -- stop, a resilver begins --> (none), canceled
//! ```
//! The state is in [`ErrorRun`], and in the MOS from the end of the txg on. One that ran when the
//! pool was closed, or when the power failed, goes on with the next import.
//!
//! # Invariants
//! * An error scrub and a scan never run at the same time: they share the queue.
//! * An entry is removed only if its block was read and is right in all datasets that have it, or
//!   if none has it.
//!
//! # Departures from OpenZFS
//! * The stored cursor is 0: another implementation that goes on reads all entries again.
//!
//! Lock order: `error_scrub` is a leaf.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use dmu::traverse::Bookmark;
use dmu::{Io, Objset};
use dsl::write::errlog::{self, LostBlock, StoredLog};
use dsl::write::scan as stored;
use dsl::write::{MosRead, SyncCx};
use nvlist::NvList;
use ondisk::BlkPtr;
use ondisk::dnode::OBJECT_SHIFT_MAX;
use ondisk::scan::{ErrorScrub, ScanFunc, ScanState};
use zio::Access;

use super::super::TaskCx;
use super::super::errlog::lost_block;
use super::queue::{QueuedAddress, ScanBlock};
use super::{ScanRequest, ScanStep, Writer};

/// Snapshots of one head that are searched for a block.
const SNAPSHOTS_MAX: usize = 256;
/// Entries that are read between two looks at requests.
pub(super) const BATCH: usize = 256;
/// Reads that make no entries of their own in the error log.
const LOOK: Io = Io { access: Access::Prescient, ..Io::WAIT };

const RUNNING: &str = "currently error scrubbing; use 'zpool scrub -s' to cancel error scrub";
const PAUSED: &str = "error scrub is paused; use 'zpool scrub -e' to resume error scrub";

/// The state of an error scrub, for `zpool status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorScrubProgress {
    /// As it is stored, with the present counts.
    pub scrub: ErrorScrub,
    /// Seconds since 1970 of the pause; 0 if it is not paused.
    pub paused: u64,
}

/// The error scrub that runs or is paused.
pub(super) struct ErrorRun {
    scrub: ErrorScrub,
    /// The number with which it adds to the queue.
    serial: u64,
    /// The first txg whose trees may be read.
    first: Txg,
    /// The entries, sorted, once they were read; those from `next` on are to be examined.
    entries: Option<Arc<Vec<LostBlock>>>,
    next: usize,
    /// Entries whose blocks are right, to be removed from the log.
    fixed: Vec<LostBlock>,
    /// Numbers changed since they were stored.
    changed: bool,
    /// Seconds since 1970 of the pause.
    paused: u64,
}

impl ErrorRun {
    fn is_active(&self) -> bool {
        !self.scrub.paused && !self.is_ready()
    }

    /// All entries were read.
    fn is_ready(&self) -> bool {
        self.entries.as_ref().is_some_and(|entries| self.next >= entries.len())
    }
}

/// A batch of entries that is to be read.
struct ErrorBatch {
    serial: u64,
    since: Txg,
    entries: Arc<Vec<LostBlock>>,
    range: std::ops::Range<usize>,
}

fn busy(text: &str) -> Error {
    Error::new(ErrorKind::Busy, text.to_owned())
}

impl Writer {
    /// The error scrub that runs or is paused.
    pub fn running_error_scrub(&self) -> Option<ErrorScrubProgress> {
        let run = self.scans.error_scrub.lock();
        run.as_ref().map(|run| ErrorScrubProgress { scrub: run.scrub, paused: run.paused })
    }

    /// Whether an error scrub runs or is paused.
    pub(in super::super) fn is_error_scrubbing(&self) -> bool {
        self.scans.error_scrub.lock().is_some()
    }

    /// Whether the thread has an error scrub to perform.
    pub(super) fn error_scrub_is_active(&self) -> bool {
        self.scans.error_scrub.lock().as_ref().is_some_and(ErrorRun::is_active)
    }

    /// Whether the txg has to store something of an error scrub.
    pub(super) fn error_scrub_has_work(&self) -> bool {
        self.scans.error_scrub.lock().as_ref().is_some_and(|run| run.changed)
    }

    /// Whether a request is possible beside the error scrub that there is; true if the request
    /// concerns the error scrub.
    pub(super) fn check_error_scrub(&self, request: ScanRequest) -> Result<bool> {
        let run = self.scans.error_scrub.lock();
        let Some(run) = &*run else { return Ok(false) };
        match (request, run.scrub.paused) {
            (ScanRequest::Stop, _) | (ScanRequest::Pause, false) => Ok(true),
            (ScanRequest::ScrubErrors, true) => Ok(true),
            (ScanRequest::Resilver, _) => Ok(false),
            (_, true) => Err(busy(PAUSED)),
            (_, false) => Err(busy(RUNNING)),
        }
    }

    /// Begins an error scrub, or continues the one that is paused.
    pub(super) fn begin_error_scrub(&self, cx: &TaskCx<'_>) -> Result<()> {
        let now = cx.cx.now.0;
        let resumed = {
            let mut run = self.scans.error_scrub.lock();
            run.as_mut().map(|run| {
                (run.scrub.paused, run.paused, run.changed) = (false, 0, true);
            })
        };
        if resumed.is_some() {
            self.sysevent("errorscrub_resume", &NvList::new());
            return Ok(());
        }
        let entries = errlog::entries(cx.read(), StoredLog::Last)?;
        let scrub = ErrorScrub {
            func: ScanFunc::ErrorScrub,
            state: ScanState::ErrorScrubbing,
            cursor: 0,
            start_time: now,
            end_time: 0,
            to_examine: entries.len() as u64,
            examined: 0,
            errors: 0,
            paused: false,
        };
        stored::store_error_scrub(cx.cx, &scrub)?;
        *self.scans.error_scrub.lock() = Some(self.error_run(scrub, cx.cx.txg, 0));
        self.sysevent("errorscrub_start", &NvList::new());
        Ok(())
    }

    fn error_run(&self, scrub: ErrorScrub, first: Txg, paused: u64) -> ErrorRun {
        ErrorRun {
            scrub,
            serial: self.scans.queue.open(),
            first,
            entries: None,
            // What is lost stays in front.
            next: usize::try_from(scrub.errors).unwrap_or(usize::MAX),
            fixed: Vec::new(),
            changed: false,
            paused,
        }
    }

    /// Takes up an error scrub that the pool was left with, if its state can be read.
    pub(super) fn resume_error_scrub(&self) {
        let Ok(Some(scrub)) = stored::load_error_scrub(&self.mos) else { return };
        if scrub.func != ScanFunc::ErrorScrub || scrub.state != ScanState::ErrorScrubbing {
            return;
        }
        let paused = if scrub.paused { base::rt::wall_clock().as_secs() } else { 0 };
        *self.scans.error_scrub.lock() = Some(self.error_run(scrub, Txg::ZERO, paused));
    }

    /// Pauses the error scrub.
    pub(super) fn pause_error_scrub(&self, cx: &TaskCx<'_>) {
        if let Some(run) = &mut *self.scans.error_scrub.lock() {
            (run.scrub.paused, run.paused, run.changed) = (true, cx.cx.now.0, true);
        }
        self.scans.interrupt.store(true, Relaxed);
        self.sysevent("errorscrub_paused", &NvList::new());
    }

    /// Ends the error scrub without a result, if there is one.
    pub(super) fn cancel_error_scrub(&self, cx: &SyncCx<'_>) -> Result<()> {
        let Some(run) = self.scans.error_scrub.lock().take() else { return Ok(()) };
        self.scans.queue.close();
        self.scans.interrupt.store(true, Relaxed);
        self.remove_fixed(cx, &run.fixed)?;
        self.end_error_scrub(cx, run.scrub, ScanState::Canceled)?;
        self.sysevent("errorscrub_abort", &NvList::new());
        Ok(())
    }

    fn end_error_scrub(&self, cx: &SyncCx<'_>, scrub: ErrorScrub, state: ScanState) -> Result<()> {
        let ended = ErrorScrub { state, end_time: cx.now.0, paused: false, ..scrub };
        stored::store_error_scrub(cx, &ended)
    }

    /// Removes blocks that were repaired from the logs of known errors.
    ///
    /// # Errors
    /// That of a suspension.
    pub fn forget_errors(&self, fixed: Vec<zio::ErrorEntry>) -> Result<()> {
        let fixed: Vec<LostBlock> = fixed.iter().map(lost_block).collect();
        if fixed.is_empty() {
            return Ok(());
        }
        let act = move |cx: &mut TaskCx<'_>, ()| {
            cx.writer.remove_fixed(cx.cx, &fixed)?;
            for block in &fixed {
                errlog::remove(cx.cx, StoredLog::Scrub, block)?;
            }
            Ok(())
        };
        self.sync_task(|_| Ok(()), act).map(drop)
    }

    /// Entries of the log are right: they are forgotten, in memory as well.
    fn remove_fixed(&self, cx: &SyncCx<'_>, fixed: &[LostBlock]) -> Result<()> {
        if fixed.is_empty() {
            return Ok(());
        }
        let fixed: BTreeSet<LostBlock> = fixed.iter().copied().collect();
        for entry in self.zio.errors().entries() {
            if fixed.contains(&lost_block(&entry)) {
                self.zio.errors().remove(&entry);
            }
        }
        for block in &fixed {
            errlog::remove(cx, StoredLog::Last, block)?;
        }
        Ok(())
    }

    /// A scrub begins: the result of the last error scrub is out of date.
    pub(super) fn forget_error_scrub(&self, cx: &SyncCx<'_>) -> Result<()> {
        if stored::load_error_scrub(cx.read()).ok().flatten().is_none() {
            return Ok(());
        }
        let none = ErrorScrub {
            func: ScanFunc::None,
            state: ScanState::None,
            cursor: 0,
            start_time: 0,
            end_time: 0,
            to_examine: 0,
            examined: 0,
            errors: 0,
            paused: false,
        };
        stored::store_error_scrub(cx, &none)
    }

    /// Stores the results of batches, and the end.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn sync_error_scrub(&self, cx: &TaskCx<'_>) -> Result<()> {
        let (scrub, fixed, over) = {
            let mut run = self.scans.error_scrub.lock();
            let Some(now) = run.as_mut().filter(|run| run.changed) else { return Ok(()) };
            now.changed = false;
            let (scrub, fixed) = (now.scrub, std::mem::take(&mut now.fixed));
            let over = now.is_ready();
            if over {
                *run = None;
            }
            (scrub, fixed, over)
        };
        self.remove_fixed(cx.cx, &fixed)?;
        if !over {
            return stored::store_error_scrub(cx.cx, &scrub);
        }
        self.scans.queue.close();
        self.end_error_scrub(cx.cx, scrub, ScanState::Finished)?;
        self.sysevent("errorscrub_finish", &NvList::new());
        Ok(())
    }

    /// Reads the next batch of the error scrub; `None` if there is no work.
    pub(super) fn error_scrub_step(&self) -> Option<ScanStep> {
        let batch_max = self.scans.limits.lock().error_batch.max(1);
        let batch = match self.next_error_batch(batch_max)? {
            Ok(batch) => batch,
            Err(step) => return Some(step),
        };
        let entries = batch.entries.get(batch.range.clone()).unwrap_or_default();
        self.scans.queue.begin_slice(batch.since);
        let mut unknown = BTreeSet::new();
        for block in entries {
            match self.pointers_of(block) {
                Ok(found) => {
                    let found = found.iter().flat_map(|bp| entries_of(bp, block));
                    self.scans.queue.add(batch.serial, found.collect::<Vec<_>>().into_iter());
                }
                // It cannot be told whether the block is right.
                Err(_) => {
                    unknown.insert(*block);
                }
            }
        }
        self.scans.queue.end_slice();
        let issued = self.issue(true);
        let complete = self.scans.queue.is_empty() && !self.scans.is_interrupted();
        let lost: Vec<LostBlock> = issued.lost.iter().map(lost_block).collect();
        let same = |a: &LostBlock, b: &LostBlock| {
            (a.objset, a.object, a.level, a.blkid) == (b.objset, b.object, b.level, b.blkid)
        };
        let is_lost = |block: &&LostBlock| {
            unknown.contains(*block) || lost.iter().any(|lost| same(lost, block))
        };
        let mut state = self.scans.error_scrub.lock();
        let run = state.as_mut().filter(|run| run.serial == batch.serial);
        // What was interrupted is read again.
        if let Some(run) = run.filter(|_| complete) {
            let is_fixed = |block: &&LostBlock| issued.unnamed == 0 && !is_lost(block);
            let fixed = entries.iter().filter(is_fixed).copied();
            let before = run.fixed.len();
            run.fixed.extend(fixed);
            let fixed = run.fixed.len() - before;
            run.scrub.examined += entries.len() as u64;
            run.scrub.errors += (entries.len() - fixed) as u64;
            run.next = batch.range.end;
            run.changed = true;
        }
        drop(state);
        if complete {
            self.want_txg();
        }
        Some(ScanStep::Again)
    }

    /// The next entries to read, or what must happen before; `None` if there is no work.
    fn next_error_batch(&self, max: usize) -> Option<std::result::Result<ErrorBatch, ScanStep>> {
        let suspended = self.txgs.suspended().is_some();
        let mut run = self.scans.error_scrub.lock();
        let run = run.as_mut().filter(|run| run.is_active())?;
        if suspended || self.plants.scan.holds_errors(run.scrub.examined) {
            return Some(Err(ScanStep::Wait));
        }
        let first = run.first;
        let Some(since) = self.zio.healing_since().filter(|&since| since >= first) else {
            return Some(Err(ScanStep::Announced(Txg(first.0.saturating_sub(1)))));
        };
        let mos: &dyn MosRead = &self.mos;
        let entries = match &run.entries {
            Some(entries) => Arc::clone(entries),
            None => {
                let Ok(mut entries) = errlog::entries(mos, StoredLog::Last) else {
                    return Some(Err(ScanStep::Wait));
                };
                entries.sort_unstable();
                Arc::clone(run.entries.insert(Arc::new(entries)))
            }
        };
        let from = run.next.min(entries.len());
        run.next = from;
        if run.is_ready() {
            // The txg that is written next ends it.
            run.changed = true;
            return Some(Err(ScanStep::Announced(since)));
        }
        let range = from..entries.len().min(from + max);
        Some(Ok(ErrorBatch { serial: run.serial, since, entries, range }))
    }

    /// The pointers to the block of an entry, in the head and its snapshots.
    fn pointers_of(&self, block: &LostBlock) -> Result<Vec<BlkPtr>> {
        if block.objset == 0 {
            return Ok(pointer_in(self.mos.objset(), block)?.into_iter().collect());
        }
        let mos: &dyn MosRead = &self.mos;
        let mut found = Vec::new();
        let mut dataset = block.objset;
        for _ in 0..SNAPSHOTS_MAX {
            let phys = match mos.dataset(dataset) {
                // It was destroyed.
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => break,
                other => other?,
            };
            if !phys.bp.is_hole() {
                let os = Objset::open(Arc::clone(&self.zio), dataset, phys.bp, LOOK)?;
                found.extend(pointer_in(&os, block)?);
            }
            let older = phys.prev_snap_txg.0 < block.birth || phys.prev_snap_obj == 0;
            if older || (block.birth == 0 && dataset == block.objset) {
                break;
            }
            dataset = phys.prev_snap_obj;
        }
        Ok(found)
    }
}

/// The pointer to the block of an entry; `None` if the object set does not have the block.
fn pointer_in(os: &Arc<Objset>, block: &LostBlock) -> Result<Option<BlkPtr>> {
    let Ok(level) = u8::try_from(block.level) else { return Ok(None) };
    let object = match block.object {
        0 => Ok(os.meta_object()),
        id if id >> OBJECT_SHIFT_MAX != 0 => match os.special(id as i64) {
            Some(object) => Ok(object),
            None => return Ok(None),
        },
        id => os.object(ObjectId(id), LOOK),
    };
    let bp = match object.and_then(|o| o.block_pointer(level, block.blkid, LOOK)) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let same = block.birth == 0 || bp.allocation_birth().0 == block.birth;
    Ok(Some(bp).filter(|bp| bp.as_block().is_some() && same))
}

fn entries_of(bp: &BlkPtr, lost: &LostBlock) -> Vec<QueuedAddress> {
    let Some(block) = bp.as_block() else { return Vec::new() };
    let at = Bookmark {
        objset: lost.objset,
        object: lost.object,
        level: i8::try_from(lost.level).unwrap_or(0),
        blkid: lost.blkid,
    };
    let block = Arc::new(ScanBlock { block: *block, at, log: None });
    let entry = |(i, dva)| QueuedAddress { block: Arc::clone(&block), dva, first: i == 0 };
    block.block.dvas().enumerate().map(entry).collect()
}
