//! A scan in syncing context: its begin, its stored state, and its end.
//!
//! # Theory
//! Once in each txg, after the sync tasks, the sync thread brings the stored state up to date
//! ([`Writer::sync_scan`]). Changes of the dataset graph are applied first. A resilver that is
//! due begins. A checkpoint of the thread is stored, and a scan that is ready is finished:
//! leaves forget what they missed (chapter 05 §8), the error logs rotate (chapter 04 §18), and
//! what waited for the resilver goes on after the txg.
//!
//! # Crash argument
//! All repairs are written before the thread reports a checkpoint or the end, and the commit of
//! the txg that stores it flushes all vdevs before its first uberblock.

use base::{Guid, Result, Txg};
use dsl::write::scan::{self, ScanPosition};
use dsl::write::store::DIRECTORY;
use dsl::write::{MosRead, SyncCx};
use nvlist::NvList;
use ondisk::scan::{Scan, ScanFunc, ScanState};
use ondisk::zap::ZapValue;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use vdev::{ScanLeaves, Tree};
use zio::ErrorEntry;

use super::super::resilver_request::ResilverWish;
use super::super::tasks::TaskCx;
use super::super::{Writer, errlog};
use super::{PAUSED, ScanRequest, ScanRun};
use dsl::write::errlog::begin_scrub;

/// The stored form of a scan that has ended, the leaves that it has repaired completely, and
/// blocks that are lost.
type EndedRun = (Scan, Option<ScanLeaves>, Vec<ErrorEntry>);

const LAST_SCRUBBED: &[u8] = b"last_scrubbed_txg";

impl Writer {
    /// Takes up a scan that the pool was left with, if its state can be read.
    pub(in super::super) fn resume_scan(&self) {
        let mos: &dyn MosRead = &self.mos;
        // A damaged entry is as good as none: a scrub replaces it.
        let resumes = |scan: &Scan| {
            scan.state == ScanState::Scanning
                && matches!(scan.func, ScanFunc::Scrub | ScanFunc::Resilver)
        };
        let Some(scan) = scan::load(mos).ok().flatten().filter(resumes) else {
            return self.resume_error_scrub();
        };
        // Without a position it begins again.
        let position = scan::position(mos, &scan).unwrap_or_else(|_| ScanPosition::start());
        let now = base::rt::wall_clock().as_secs();
        let mut run = self.new_run(scan, position, Txg::ZERO, now);
        // A leaf that was away for a part of the scan misses a later txg than the scan visits.
        let tree = self.zio.tree();
        let last = |guid| tree.find(guid).and_then(|node| node.dtl().last());
        run.leaves.retain(|guid| {
            let deferred = tree.find(guid).is_some_and(|node| node.is_deferred());
            !deferred && last(guid).is_none_or(|last| last <= scan.max_txg)
        });
        // What the part before found is not known.
        run.incomplete = scan.errors > 0;
        if run.is_paused() {
            run.paused = now;
        }
        self.block_refs.stop_clones();
        *self.scans.run.lock() = Some(run);
    }

    /// A scan that is about to run; the queue is opened for it.
    fn new_run(&self, scan: Scan, position: ScanPosition, first: Txg, now: u64) -> ScanRun {
        let issued = scan.examined.saturating_sub(scan.skipped);
        ScanRun {
            serial: self.scans.queue.open(),
            scan,
            stored: position.clone(),
            position,
            checkpoint: None,
            events: Vec::new(),
            first,
            leaves: self.zio.tree().begin_scan(),
            incomplete: false,
            ready: false,
            lost: Vec::new(),
            gathered: false,
            changed: false,
            again: false,
            absent: None,
            by_leaf: BTreeMap::new(),
            issued,
            pass_start: now,
            examined_before: scan.examined,
            issued_before: issued,
            paused: 0,
            spent_paused: 0,
            checkpointed: base::rt::now(),
        }
    }

    /// Performs a request that was checked.
    pub(super) fn act_on_scan(&self, cx: &mut TaskCx<'_>, request: ScanRequest) -> Result<()> {
        let (now, txg) = (cx.cx.now.0, cx.cx.txg);
        match request {
            ScanRequest::Scrub | ScanRequest::ScrubFromLast => {
                if let Some(run) = &mut *self.scans.run.lock() {
                    run.scan.flags &= !PAUSED;
                    run.spent_paused += now.saturating_sub(run.paused);
                    run.paused = 0;
                    run.changed = true;
                    self.sysevent("scrub_resume", &NvList::new());
                    return Ok(());
                }
                let min = match request {
                    ScanRequest::ScrubFromLast => cx.read().directory("last_scrubbed_txg")?,
                    _ => None,
                };
                // A txg of the future comes from a pool that was rewound.
                let min = min.filter(|&min| min < txg.0).unwrap_or(0);
                self.begin_scan(cx.cx, ScanFunc::Scrub, Txg(min), txg)?;
                cx.log_internal("scan setup", None, &setup_text(1, min, txg.0))
            }
            ScanRequest::Pause if self.is_error_scrubbing() => {
                self.pause_error_scrub(cx);
                Ok(())
            }
            ScanRequest::Stop if self.is_error_scrubbing() => self.cancel_error_scrub(cx.cx),
            ScanRequest::Pause => {
                if let Some(run) = &mut *self.scans.run.lock() {
                    run.scan.flags |= PAUSED;
                    run.paused = now;
                    run.changed = true;
                }
                self.scans.interrupt.store(true, Relaxed);
                self.sysevent("scrub_paused", &NvList::new());
                cx.log_internal("scan paused", None, "")
            }
            ScanRequest::Stop => {
                self.cancel_scan(cx.cx)?;
                self.sysevent("scrub_abort", &NvList::new());
                cx.log_internal("scan cancelled", None, "")
            }
            ScanRequest::ScrubErrors => self.begin_error_scrub(cx),
            ScanRequest::Resilver => Ok(()),
        }
    }

    /// Begins a scan of what was born after `min` and up to `max`.
    fn begin_scan(&self, cx: &SyncCx<'_>, func: ScanFunc, min: Txg, max: Txg) -> Result<()> {
        let allocated = |v: &base::VdevId| self.space.vdev_totals(*v).map_or(0, |t| t.allocated);
        let to_examine = self.zio.tree().top_ids().map(|v| allocated(&v)).sum();
        let old = scan::load(cx.read()).ok().flatten();
        let mut scan = Scan {
            func,
            state: ScanState::Scanning,
            queue: old.and_then(|old| old.queue),
            min_txg: min,
            max_txg: max,
            cur_min_txg: min,
            cur_max_txg: max,
            start_time: cx.now.0,
            end_time: 0,
            to_examine,
            examined: 0,
            skipped: 0,
            processed: 0,
            errors: 0,
            ddt_class_max: 0,
            ddt_bookmark: [0; 4],
            bookmark: ScanPosition::start().bookmark,
            flags: 0,
        };
        let position = ScanPosition::start();
        // Blocks that were cloned before are found where they are now.
        let cloned = self.block_refs.stop_clones();
        let first = cloned.map_or(cx.txg, |cloned| cloned.max(cx.txg));
        let run = self.new_run(scan, position.clone(), first, cx.now.0);
        scan::store(cx, &mut scan, &position)?;
        if func == ScanFunc::Scrub {
            begin_scrub(cx)?;
            self.forget_error_scrub(cx)?;
        }
        *self.scans.run.lock() = Some(ScanRun { scan, ..run });
        self.scan_event(func, "start");
        Ok(())
    }

    fn scan_event(&self, func: ScanFunc, what: &str) {
        let name = if func == ScanFunc::Scrub { "scrub" } else { "resilver" };
        self.sysevent(&format!("{name}_{what}"), &NvList::new());
    }

    /// Ends the scan in memory, if there is one: nothing more is read, and the result is shown
    /// from now on.
    fn end_run(&self, state: ScanState, now: u64) -> Option<EndedRun> {
        let mut run = self.scans.run.lock();
        let run = run.as_mut().filter(|run| !run.is_over())?;
        run.scan.state = state;
        run.scan.end_time = now;
        run.scan.flags = 0;
        run.scan.queue = None;
        self.scans.queue.close();
        self.block_refs.allow_clones();
        let leaves = (!run.incomplete && run.scan.errors == 0).then(|| run.leaves.clone());
        Some((run.scan, leaves, std::mem::take(&mut run.lost)))
    }

    /// Ends the scan without a result.
    pub(in super::super) fn cancel_scan(&self, cx: &SyncCx<'_>) -> Result<()> {
        let ended = self.end_run(ScanState::Canceled, cx.now.0);
        self.scans.interrupt.store(true, Relaxed);
        let Some((mut scan, _, lost)) = ended else { return Ok(()) };
        scan.queue = scan::load(cx.read())?.and_then(|stored| stored.queue);
        errlog::add(cx, errlog::log_of(scan.func), &lost)?;
        scan::store(cx, &mut scan, &ScanPosition::at_end())
    }

    /// Brings the stored state up to date.
    ///
    /// # Errors
    /// Those of the store.
    pub(in super::super) fn sync_scan(&self, cx: &mut TaskCx<'_>) -> Result<()> {
        let txg = cx.cx.txg;
        let events = cx.cx.take_scan_events();
        if let Some(run) = &mut *self.scans.run.lock() {
            events.into_iter().for_each(|event| run.apply(event));
        }
        if let Some(request) = self.due_resilver_request() {
            // A thread that waits for the resilver must see the request or the scan.
            let begun = self.begin_resilver(cx, request.1);
            self.forget_resilver_request(request);
            begun?;
        }
        if self.wants_scrub_after_rebuild() {
            self.begin_scan(cx.cx, ScanFunc::Scrub, Txg::ZERO, txg)?;
            self.scrub_after_rebuild_begins();
            cx.log_internal("scan setup", None, &setup_text(1, 0, txg.0))?;
        }
        self.store_errors(cx.cx)?;
        self.sync_error_scrub(cx)?;
        self.mark_absent_leaves(txg);
        let taken = {
            let mut run = self.scans.run.lock();
            let Some(run) = run.as_mut().filter(|run| !run.is_over()) else { return Ok(()) };
            let checkpoint = run.checkpoint.take();
            // The graph may have changed since the thread had read everything.
            run.ready &= run.position.is_end();
            let finished = run.ready && checkpoint.is_some();
            let lost = std::mem::take(&mut run.lost);
            let changed = std::mem::take(&mut run.changed);
            if let Some(checkpoint) = &checkpoint {
                run.stored = checkpoint.clone();
            }
            (run.scan, checkpoint, finished, lost, changed)
        };
        let (mut scan, checkpoint, finished, lost, changed) = taken;
        errlog::add(cx.cx, errlog::log_of(scan.func), &lost)?;
        if finished {
            return self.finish_scan(cx);
        }
        let Some(stored) = scan::load(cx.read())? else { return Ok(()) };
        scan.queue = stored.queue;
        match checkpoint {
            Some(position) => scan::store(cx.cx, &mut scan, &position),
            None if changed => {
                scan.bookmark = stored.bookmark;
                scan::store_numbers(cx.cx, &scan)
            }
            None => Ok(()),
        }
    }

    /// Leaves that cannot be read while a scan runs miss repairs of it, and must not count as
    /// repaired when the scan ends after another import.
    fn mark_absent_leaves(&self, txg: Txg) {
        if self.scans.run.lock().is_none() || self.plants.scan.excise_all.load(Relaxed) {
            return;
        }
        let tree = self.zio.tree();
        for (_, node) in tree.leaves() {
            if !node.readable() && node.parent().is_some_and(|p| tree.node(p).parent().is_some()) {
                tree.add_missing(node.guid(), txg.next());
            }
        }
    }

    /// Has the running resilver, or the next one, repair late leaves; false if one must begin
    /// now.
    fn join_resilver(&self, cx: &mut TaskCx<'_>) -> Result<bool> {
        let (late, percent) = {
            let mut run = self.scans.run.lock();
            let is_resilver = |run: &&mut ScanRun| run.scan.func == ScanFunc::Resilver;
            let running = run.as_mut().filter(|run| !run.is_over());
            let Some(run) = running.filter(is_resilver) else { return Ok(false) };
            let done = run.issued.saturating_mul(100);
            (late_leaves(run, &self.zio.tree()), done.checked_div(run.scan.to_examine))
        };
        if late.is_empty() {
            return Ok(true);
        }
        if !self.defers_resilvers(cx, percent.unwrap_or(100))? {
            return Ok(false);
        }
        cx.defer_resilver(&late);
        if let Some(run) = &mut *self.scans.run.lock() {
            run.leaves.retain(|guid| !late.contains(&guid));
        }
        Ok(true)
    }

    fn begin_resilver(&self, cx: &mut TaskCx<'_>, wish: ResilverWish) -> Result<()> {
        if wish == ResilverWish::Repair && self.join_resilver(cx)? {
            return Ok(());
        }
        cx.end_deferral();
        let Some((min, max)) = self.zio.tree().resilver_range() else { return Ok(()) };
        self.cancel_scan(cx.cx)?;
        self.cancel_error_scrub(cx.cx)?;
        let max = max.min(cx.cx.txg);
        self.begin_scan(cx.cx, ScanFunc::Resilver, min, max)?;
        cx.log_internal("scan setup", None, &setup_text(2, min.0, max.0))
    }

    fn finish_scan(&self, cx: &mut TaskCx<'_>) -> Result<()> {
        let again = self.scans.run.lock().as_ref().is_some_and(|run| run.again);
        let ended = self.end_run(ScanState::Finished, cx.cx.now.0);
        let Some((mut scan, leaves, lost)) = ended else { return Ok(()) };
        errlog::add(cx.cx, errlog::log_of(scan.func), &lost)?;
        scan.queue = scan::load(cx.read())?.and_then(|stored| stored.queue);
        let tree = self.zio.tree();
        // The scan does not see the blocks of a checkpoint.
        let kept = self.checkpoint.has();
        if let Some(leaves) = leaves
            && !kept
        {
            let mut leaves = match self.plants.scan.excise_all.load(Relaxed) {
                true => tree.begin_scan(),
                false => leaves,
            };
            let first = |guid| tree.find(guid).and_then(|node| node.dtl().first());
            leaves.retain(|guid| first(guid).is_none_or(|first| scan.min_txg < first));
            tree.excise(&leaves, scan.max_txg);
        }
        scan::store(cx.cx, &mut scan, &ScanPosition::at_end())?;
        if scan.func == ScanFunc::Scrub {
            let max = ZapValue::from_u64(scan.max_txg.0);
            cx.cx.mos.zap_update(DIRECTORY, LAST_SCRUBBED, &max)?;
            self.rotate_errors(cx.cx)?;
        }
        if again || self.has_deferred(cx) {
            self.request_resilver();
        }
        self.scan_event(scan.func, "finish");
        let text = format!("errors={}", scan.errors);
        cx.log_internal("scan done", None, &text)
    }

    /// Whether the txg has to store something of a scan.
    pub(in super::super) fn scan_has_work(&self, txg: Txg) -> bool {
        let requested = self.resilver_waits(Txg::ZERO) && !self.resilver_waits(txg);
        let requested = (requested && !self.is_rebuilding()) || self.wants_scrub_after_rebuild();
        let run = self.scans.run.lock();
        let due = |run: &ScanRun| !run.is_over() && (run.checkpoint.is_some() || run.ready);
        requested || run.as_ref().is_some_and(due) || self.error_scrub_has_work()
    }
}

/// The leaves that a running resilver does not complete. One that it completes for now, and
/// that misses later txgs as well, needs another resilver.
fn late_leaves(run: &mut ScanRun, tree: &Tree) -> Vec<Guid> {
    let mut late = Vec::new();
    for (_, node) in tree.nodes().filter(|(_, node)| node.is_behind() && !node.is_deferred()) {
        let dtl = node.dtl();
        let begins_later = dtl.first().is_some_and(|first| run.scan.min_txg < first);
        if !run.leaves.had(node) || !begins_later {
            late.push(node.guid());
        } else if dtl.last().is_some_and(|last| last > run.scan.max_txg) {
            run.again = true;
        }
    }
    late
}

fn setup_text(func: u32, min: u64, max: u64) -> String {
    format!("func={func} mintxg={min} maxtxg={max}")
}
