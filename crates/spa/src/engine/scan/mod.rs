//! Scrub and resilver: every block of the pool is read, verified and repaired
//! (chapter 04 §17).
//!
//! # Theory
//! A thread of low priority alternates between two phases. It gathers block pointers from the
//! trees of all datasets ([`gather`]) into a queue sorted by place ([`queue`]), and reads what
//! the queue has in device order ([`issue`]). A scrub reads everything up to the txg in which
//! it began. A resilver reads what was born in the txgs that some leaf misses, and writes it to
//! that leaf. Both compare every copy and every parity column, and repair all that is wrong.
//!
//! The sync thread stores the state in the MOS ([`sync`]). The stored position is one before
//! which everything was *read*, not only gathered: a checkpoint, at which the queue was empty.
//! After a crash or an import the scan continues there.
//!
//! # States
//! ```text
//! (none) -- begin --> running <-- pause, resume --> paused
//!   running -- everything is read --> ready -- its txg --> finished
//!   running, paused -- stop, a resilver is needed --> canceled
//! ```
//! The state is in [`ScanRun`] and, from the end of the txg on, in the MOS. `ready` is in memory
//! alone: a scan that is ready when the power fails is read again from its last checkpoint.
//!
//! # Invariants
//! * All that lies before the stored position was read, verified, and repaired on the leaves
//!   that were there, before the txg that stores it.
//! * A leaf forgets what it missed only if it was readable from the beginning of the scan to
//!   its end, also across imports: each txg that is written while a scan runs is added to what
//!   an unreadable leaf misses, as a txg after the scan's last one.
//! * What a step of an earlier scan found out is not added to the scan that runs: each scan has
//!   a serial number.
//! * The thread exists while a scan runs that is not paused. It has no reference to the pool
//!   while it waits.
//!
//! # Memory
//! The queue takes at most [`ScanLimits::memory`], by default 1/32 of the cache's limit. Beside
//! it are the batches of the threads: at most 16 times 4 MiB of content, with their parity.
//!
//! # Departures from OpenZFS
//! * A resilver of RAID-Z has the order of devices and verifies, too.
//! * A checkpoint is made every [`CHECKPOINT`], not every two hours.
//!
//! Lock order: `thread` → `run` → `error_scrub`; the queue's lock is a leaf.

mod errors;
mod gather;
mod issue;
mod queue;
mod sync;

pub use errors::ErrorScrubProgress;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::planted::{BugSwitch, TestValue};
use base::rt::{Condvar, Instant, JoinHandle, Mutex, raise_niceness, spawn};
use base::{Error, ErrorKind, Guid, Result, Txg};
use dmu::traverse::Bookmark;
use dsl::write::features::is_enabled;
use dsl::write::scan::{NO_DATASET, ScanEvent, ScanPosition};
use ondisk::blkptr::Block;
use ondisk::scan::{Scan, ScanFunc, ScanState};
use vdev::ScanLeaves;
use zio::ErrorEntry;

use super::Writer;
use super::resilver_request::{RESILVER_DEFER, ResilverWish};
use super::tasks::{Command, TaskCx};
use queue::ScanQueue;

/// The nice value of a scan's threads, relative to threads with waiting callers.
const NICE: u8 = 5;
/// Time between two checkpoints of a running scan.
const CHECKPOINT: Duration = Duration::from_secs(120);
/// How long the thread waits for a change before it looks again.
const WAIT: Duration = Duration::from_secs(1);
/// Flag of a stored scan: paused.
pub const PAUSED: u64 = 2;
/// Txgs after which a dataset that does not exist is given up.
const ABSENT_TXGS: u64 = 3;
/// Errors that wait for the next txg; more are counted only.
const ERRORS_MAX: usize = 4096;

/// Limits of a scan.
#[derive(Clone, Debug)]
pub struct ScanLimits {
    /// Bytes of memory of the queue; 0 stands for 1/32 of the cache's limit.
    pub memory: usize,
    /// Time that one slice of gathering takes at most.
    pub slice: Duration,
    /// Pointers that one slice gathers at most.
    pub slice_blocks: usize,
    /// Time between checkpoints.
    pub checkpoint: Duration,
    /// Entries of the error log that an error scrub reads at once; at least 1.
    pub error_batch: usize,
}

impl Default for ScanLimits {
    fn default() -> Self {
        let (slice, checkpoint) = (gather::SLICE, CHECKPOINT);
        ScanLimits {
            memory: 0,
            slice,
            slice_blocks: usize::MAX,
            checkpoint,
            error_batch: errors::BATCH,
        }
    }
}

/// Planted bugs of the scan ([`base::planted`]).
#[derive(Debug, Default)]
pub struct ScanPlants {
    /// A block in 16 is left out.
    pub skip_blocks: BugSwitch,
    /// A walk that stopped continues behind the block at which it stopped.
    pub one_too_far: BugSwitch,
    /// Leaves that were away for a moment count as repaired.
    pub excise_all: BugSwitch,
    /// A scan that has read this many bytes waits; 0: none does; `u64::MAX`: before it reads
    /// (a small one reads all in one step). Not a bug.
    pub hold_after: TestValue,
    /// An error scrub that has examined this many entries waits; 0: none does. Not a bug.
    pub hold_errors_after: TestValue,
}

impl ScanPlants {
    fn skips(&self, block: &Block) -> bool {
        self.skip_blocks.load(Relaxed) && (block.dva().offset >> 12).is_multiple_of(16)
    }

    fn holds(&self, run: &ScanRun) -> bool {
        let after = self.hold_after.load(Relaxed);
        after == u64::MAX || (after != 0 && run.issued >= after)
    }

    fn holds_errors(&self, examined: u64) -> bool {
        let after = self.hold_errors_after.load(Relaxed);
        after != 0 && examined >= after
    }

    fn one_too_far(&self, at: Bookmark) -> Bookmark {
        match self.one_too_far.load(Relaxed) {
            true => Bookmark { blkid: at.blkid + 1, ..at },
            false => at,
        }
    }
}

/// A request of `zpool scrub` or `zpool resilver`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanRequest {
    /// Begin a scrub, or continue a paused one.
    Scrub,
    /// Begin a scrub of what was born since the last one.
    ScrubFromLast,
    /// Begin an error scrub: the blocks of the error log are read again; or continue a paused
    /// one.
    ScrubErrors,
    /// Pause the scrub or error scrub.
    Pause,
    /// Stop the scrub or error scrub.
    Stop,
    /// Begin a resilver from its beginning.
    Resilver,
}

/// The state of the last or current scan, for `zpool status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanProgress {
    /// As it is stored, with the present counts.
    pub scan: Scan,
    /// Bytes read, or found to need no read.
    pub issued: u64,
    /// Seconds since 1970 when this pool began or resumed it; 0 if it does not run.
    pub pass_start: u64,
    /// Bytes examined and read since then.
    pub pass_examined: u64,
    /// Bytes read since then.
    pub pass_issued: u64,
    /// Seconds since 1970 of the pause; 0 if it is not paused.
    pub paused: u64,
    /// Seconds of pauses since `pass_start`.
    pub spent_paused: u64,
}

/// The scan that runs or is paused.
pub(super) struct ScanRun {
    /// The number of the scan, among those since the pool was opened.
    serial: u64,
    /// As it is stored.
    scan: Scan,
    /// Where the walk is.
    position: ScanPosition,
    /// The position in the MOS.
    stored: ScanPosition,
    /// A position to be stored: everything before it was read.
    checkpoint: Option<ScanPosition>,
    /// Changes of the graph since the slice that is walked began.
    events: Vec<ScanEvent>,
    /// The first txg whose trees may be walked.
    first: Txg,
    /// The leaves that can be repaired completely.
    leaves: ScanLeaves,
    /// Something could not be scanned, or was not repaired.
    incomplete: bool,
    /// Everything was read.
    ready: bool,
    /// Blocks that are lost, to be stored.
    lost: Vec<ErrorEntry>,
    /// The walk went on since the last checkpoint.
    gathered: bool,
    /// Numbers changed since they were stored.
    changed: bool,
    /// Another resilver is needed after this one.
    again: bool,
    /// A dataset that was to be visited and does not exist, and the txg that showed it.
    absent: Option<(u64, Txg)>,
    /// Bytes repaired, by leaf.
    by_leaf: BTreeMap<Guid, u64>,
    issued: u64,
    pass_start: u64,
    examined_before: u64,
    issued_before: u64,
    paused: u64,
    spent_paused: u64,
    checkpointed: Instant,
}

impl ScanRun {
    fn is_paused(&self) -> bool {
        self.scan.flags & PAUSED != 0
    }

    /// It has ended in a txg that may not be on disk yet.
    fn is_over(&self) -> bool {
        self.scan.state != ScanState::Scanning
    }

    /// Whether the thread has work.
    fn is_active(&self) -> bool {
        !self.is_paused() && !self.ready && !self.is_over()
    }

    fn apply(&mut self, event: ScanEvent) {
        self.position.apply(&event);
        self.stored.apply(&event);
        if let Some(checkpoint) = &mut self.checkpoint {
            checkpoint.apply(&event);
        }
        self.events.push(event);
    }
}

#[derive(Default)]
struct Thread {
    runs: bool,
    handle: Option<JoinHandle<()>>,
}

/// The scans of a pool.
pub(super) struct Scans {
    run: Mutex<Option<ScanRun>>,
    thread: Mutex<Thread>,
    /// Signalled when something changed for the thread.
    changed: Condvar,
    /// The thread is to look at the state.
    interrupt: AtomicBool,
    /// The pool is closed.
    stopped: AtomicBool,
    /// The last announced txg; 0: none since the pool was opened.
    newest: AtomicU64,
    queue: ScanQueue,
    limits: Mutex<ScanLimits>,
    writer: Mutex<Weak<Writer>>,
    error_scrub: Mutex<Option<errors::ErrorRun>>,
    /// Most bytes of memory that the queue had.
    memory_peak: AtomicU64,
}

impl Default for Scans {
    fn default() -> Self {
        Scans {
            run: Mutex::new(None),
            thread: Mutex::default(),
            changed: Condvar::new(),
            interrupt: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            newest: AtomicU64::new(0),
            queue: ScanQueue::new(16 << 20),
            limits: Mutex::new(ScanLimits::default()),
            writer: Mutex::new(Weak::new()),
            error_scrub: Mutex::new(None),
            memory_peak: AtomicU64::new(0),
        }
    }
}

impl Scans {
    pub(super) fn set_writer(&self, writer: &Arc<Writer>) {
        *self.writer.lock() = Arc::downgrade(writer);
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.load(Relaxed) || self.stopped.load(Relaxed)
    }

    /// The state changed: the thread looks at it as soon as it can.
    fn interrupt(&self) {
        self.interrupt.store(true, Relaxed);
        let _run = self.run.lock();
        self.changed.notify_all();
    }

    /// A block was freed in the txg that is being written.
    pub(super) fn freed(&self, txg: Txg, block: &Block) {
        self.queue.freed(txg, block);
    }

    /// A txg was announced.
    pub(super) fn announced(&self, txg: Txg) {
        self.queue.announced(txg);
        let _run = self.run.lock();
        self.newest.store(txg.0, Relaxed);
        self.changed.notify_all();
    }

    /// Waits until a txg after `since` is announced; for a second at most, or until the state
    /// changes.
    fn wait_announced(&self, since: Txg) {
        let mut run = self.run.lock();
        if self.newest.load(Relaxed) <= since.0 && !self.is_interrupted() {
            self.changed.wait_timeout(&mut run, WAIT);
        }
    }

    /// Waits for a change, for a second at most.
    fn wait_changed(&self) {
        let mut run = self.run.lock();
        if !self.is_interrupted() {
            self.changed.wait_timeout(&mut run, WAIT);
        }
    }

    /// Has the thread end as soon as it can.
    pub(super) fn begin_stop(&self) {
        self.stopped.store(true, Relaxed);
        self.interrupt();
    }

    /// The pool is not closed after all: a thread may run again.
    pub(super) fn allow(&self) {
        self.stopped.store(false, Relaxed);
    }

    /// Ends the thread, and waits until it has ended.
    pub(super) fn stop(&self) {
        self.begin_stop();
        let handle = self.thread.lock().handle.take();
        if let Some(handle) = handle {
            handle.join();
        }
    }
}

/// What the thread does next.
enum ScanStep {
    Again,
    /// A txg after this one must be announced first.
    Announced(Txg),
    /// The pool is suspended, or its MOS cannot be read.
    Wait,
    End,
}

fn scan_thread(pool: &Weak<Writer>, scans: &Scans) {
    // An error only means that other threads wait longer.
    let _as_before = raise_niceness(NICE);
    loop {
        let Some(writer) = pool.upgrade() else { return };
        let step = writer.scan_step();
        if let ScanStep::Announced(_) = step {
            writer.want_txg();
        }
        // The pool may be closed meanwhile.
        drop(writer);
        match step {
            ScanStep::Again => {}
            ScanStep::Announced(txg) => scans.wait_announced(txg),
            ScanStep::Wait => scans.wait_changed(),
            ScanStep::End => return,
        }
    }
}

impl Writer {
    /// Sets the limits of scans, from the next step on.
    pub fn set_scan_limits(&self, limits: ScanLimits) {
        *self.scans.limits.lock() = limits;
    }

    /// The last or current scan; `None` if there was none, or if it cannot be read.
    pub fn scan_progress(&self) -> Option<ScanProgress> {
        if let Some(running) = self.running_scan_progress() {
            return Some(running);
        }
        let scan = dsl::write::scan::load(&self.mos).ok().flatten()?;
        Some(ScanProgress {
            scan,
            issued: scan.examined.saturating_sub(scan.skipped),
            pass_start: 0,
            pass_examined: 0,
            pass_issued: 0,
            paused: 0,
            spent_paused: 0,
        })
    }

    /// The scan that runs or is paused.
    pub fn running_scan_progress(&self) -> Option<ScanProgress> {
        self.scans.run.lock().as_ref().map(|run| ScanProgress {
            scan: run.scan,
            issued: run.issued,
            pass_start: run.pass_start,
            pass_examined: run.scan.examined.saturating_sub(run.examined_before),
            pass_issued: run.issued.saturating_sub(run.issued_before),
            paused: run.paused,
            spent_paused: run.spent_paused,
        })
    }

    /// The kind of the scan that runs or is paused.
    pub fn running_scan(&self) -> Option<ScanFunc> {
        self.scans.run.lock().as_ref().map(|run| run.scan.func)
    }

    /// What `zpool status` says beside a leaf about scans (chapter 09 §4.3).
    pub fn scan_remark(&self, leaf: Guid) -> Option<&'static str> {
        let run = self.scans.run.lock();
        let run = run.as_ref().filter(|run| !run.is_over());
        let tree = self.zio.tree();
        let behind = tree.find(leaf).is_some_and(|node| node.is_behind());
        let deferred = tree.find(leaf).is_some_and(|node| node.is_deferred());
        match run.map(|run| (run.scan.func, run.by_leaf.contains_key(&leaf))) {
            Some((ScanFunc::Resilver, _)) if behind && !deferred => Some("(resilvering)"),
            Some((ScanFunc::Scrub, true)) => Some("(repairing)"),
            _ if behind && self.is_being_rebuilt(leaf) => Some("(resilvering)"),
            _ if behind => Some("(awaiting resilver)"),
            _ => None,
        }
    }

    /// The most memory that the queue of a scan took, in bytes.
    pub fn scan_memory_peak(&self) -> u64 {
        self.scans.memory_peak.load(Relaxed)
    }

    /// Begins, pauses, continues or stops a scan; the request is on disk afterwards.
    ///
    /// # Errors
    /// `Busy` if another scan is under way; `NotFound` if there is none to pause or stop;
    /// those of a suspension.
    pub fn scan(self: &Arc<Self>, request: ScanRequest, command: Option<Command>) -> Result<()> {
        if request == ScanRequest::Resilver {
            let log = move |cx: &mut TaskCx<'_>, ()| match &command {
                Some(command) => cx.log_command(command),
                None => Ok(()),
            };
            let check = |cx: &mut TaskCx<'_>| match is_enabled(cx.read(), RESILVER_DEFER)? {
                true => Ok(()),
                false => Err(Error::unsupported("this action requires the resilver_defer feature")),
            };
            self.sync_task(check, log)?;
            self.wish_resilver(ResilverWish::Restart);
            return Ok(());
        }
        let writer = Arc::clone(self);
        let act = move |cx: &mut TaskCx<'_>, ()| {
            if let Some(command) = &command {
                cx.log_command(command)?;
            }
            writer.act_on_scan(cx, request)
        };
        self.sync_task(move |cx| cx.writer.check_scan(request), act)?;
        Ok(())
    }

    fn check_scan(&self, request: ScanRequest) -> Result<()> {
        if self.check_error_scrub(request)? {
            return Ok(());
        }
        let run = self.scans.run.lock();
        let scrub = run.as_ref().filter(|run| run.scan.func == ScanFunc::Scrub);
        let none = || Error::not_found("there is no active scrub");
        match request {
            ScanRequest::Pause | ScanRequest::Stop => match scrub {
                None => Err(none()),
                Some(run) if run.is_paused() && request == ScanRequest::Pause => {
                    let text = "scrub is paused; use 'zpool scrub' to resume scrub";
                    Err(Error::new(ErrorKind::Busy, text))
                }
                Some(_) => Ok(()),
            },
            ScanRequest::Scrub | ScanRequest::ScrubFromLast | ScanRequest::ScrubErrors
                if self.is_rebuilding() =>
            {
                Err(Error::new(ErrorKind::Busy, "currently resilvering"))
            }
            ScanRequest::Scrub | ScanRequest::ScrubFromLast => match (&*run, scrub) {
                (None, _) => Ok(()),
                (_, Some(run)) if run.is_paused() => Ok(()),
                (_, Some(_)) => {
                    let text = "currently scrubbing; use 'zpool scrub -s' to cancel scrub";
                    Err(Error::new(ErrorKind::Busy, text))
                }
                (Some(_), None) => Err(Error::new(ErrorKind::Busy, "currently resilvering")),
            },
            ScanRequest::ScrubErrors => match &*run {
                None => Ok(()),
                Some(run) if run.scan.func == ScanFunc::Resilver => {
                    Err(Error::new(ErrorKind::Busy, "currently resilvering"))
                }
                Some(_) => {
                    let text = "currently scrubbing; use 'zpool scrub -s' to cancel scrub";
                    Err(Error::new(ErrorKind::Busy, text))
                }
            },
            ScanRequest::Resilver => Ok(()),
        }
    }

    /// After a txg: forgets a scan that has ended, lets one go on that runs, and completes the
    /// changes of the tree that waited for it.
    pub(super) fn after_scan(&self) {
        let ended = self.scans.run.lock().take_if(|run| run.is_over()).is_some();
        self.wake_scan();
        if ended {
            self.topology_settled();
        }
    }

    /// Starts the thread, if a scan runs and there is none.
    pub(super) fn wake_scan(&self) {
        let wanted = self.scans.run.lock().as_ref().is_some_and(ScanRun::is_active);
        if !(wanted || self.error_scrub_is_active()) || self.scans.is_closed() {
            return;
        }
        let mut thread = self.scans.thread.lock();
        if thread.runs {
            return;
        }
        let writer = Weak::clone(&self.scans.writer.lock());
        let scans = Arc::clone(&self.scans);
        // A thread that has ended needs no joining.
        thread.handle = spawn("scan", move || scan_thread(&writer, &scans)).ok();
        thread.runs = thread.handle.is_some();
    }

    fn scan_step(&self) -> ScanStep {
        let scans = &self.scans;
        scans.interrupt.store(false, Relaxed);
        let limits = scans.limits.lock().clone();
        let memory = match limits.memory {
            0 => self.zio.cache().config().arc_max / 32,
            bytes => bytes as u64,
        };
        scans.queue.set_limit(memory.max(1 << 20) as usize);
        if !scans.is_closed()
            && let Some(step) = self.error_scrub_step()
        {
            return step;
        }
        let state = {
            let mut thread = scans.thread.lock();
            let mut run = scans.run.lock();
            let runs = |run: &&mut ScanRun| run.is_active() && !scans.is_closed();
            let Some(run) = run.as_mut().filter(runs) else {
                // An error scrub may be wanted since the step began.
                if self.error_scrub_is_active() && !scans.is_closed() {
                    return ScanStep::Again;
                }
                thread.runs = false;
                return ScanStep::End;
            };
            if self.plants.scan.holds(run) {
                return ScanStep::Wait;
            }
            let due = run.gathered && run.checkpointed.elapsed() >= limits.checkpoint;
            // They are in the position, and what is read of the MOS from now on has them.
            run.events.clear();
            (run.serial, run.scan, run.position.clone(), run.first, due)
        };
        let (serial, scan, position, first, due) = state;
        if self.txgs.suspended().is_some() {
            return ScanStep::Wait;
        }
        let since = self.zio.healing_since().filter(|&since| since >= first);
        let Some(since) = since else {
            return ScanStep::Announced(Txg(first.0.saturating_sub(1)));
        };
        let peak = scans.queue.memory() as u64;
        scans.memory_peak.fetch_max(peak, Relaxed);
        if scans.queue.is_full() && !due {
            self.note_issued(serial, self.issue(false));
            return ScanStep::Again;
        }
        if position.is_end() || due {
            self.note_issued(serial, self.issue(true));
            if scans.is_interrupted() {
                return ScanStep::Again;
            }
            return self.note_checkpoint(serial);
        }
        scans.queue.begin_slice(since);
        let gather = || self.gather(serial, &scan, &position, since, &limits);
        let (slice, issued) = self.gather_beside_reads(gather);
        scans.queue.end_slice();
        let step = match slice {
            Ok(slice) => self.note_slice(serial, slice, since),
            Err(_) => ScanStep::Wait,
        };
        self.note_issued(serial, issued);
        step
    }

    /// Adds the result of a slice that walked a tree of `since` or later.
    fn note_slice(&self, serial: u64, slice: gather::Slice, since: Txg) -> ScanStep {
        let mut run = self.scans.run.lock();
        let Some(run) = of_serial(&mut run, serial) else { return ScanStep::Again };
        if let Some(mut position) = slice.position {
            for event in std::mem::take(&mut run.events) {
                position.apply(&event);
            }
            run.position = position;
        }
        run.scan.examined += slice.examined;
        run.scan.skipped += slice.skipped;
        run.incomplete |= slice.incomplete;
        (run.changed, run.gathered) = (true, true);
        note_lost(run, slice.errors);
        if !slice.no_dataset {
            run.absent = None;
            return ScanStep::Again;
        }
        // Its destruction is under way. Otherwise the graph is damaged.
        let dataset = run.position.bookmark.objset;
        match run.absent {
            Some((same, first)) if same == dataset && since.0 > first.0 + ABSENT_TXGS => {
                run.position.bookmark = ScanPosition::first_of(NO_DATASET);
                run.incomplete = true;
                run.scan.errors += 1;
                run.absent = None;
            }
            Some((same, _)) if same == dataset => {}
            _ => run.absent = Some((dataset, since)),
        }
        ScanStep::Announced(since)
    }

    fn note_issued(&self, serial: u64, issued: issue::Issued) {
        let mut run = self.scans.run.lock();
        let Some(run) = of_serial(&mut run, serial) else { return };
        let dropped = self.scans.queue.take_dropped();
        run.issued += issued.bytes;
        run.scan.skipped += dropped;
        run.scan.processed += issued.repaired;
        for (leaf, bytes) in issued.by_leaf {
            *run.by_leaf.entry(leaf).or_default() += bytes;
        }
        run.scan.errors += issued.unnamed;
        run.incomplete |= issued.unnamed > 0;
        run.changed = true;
        note_lost(run, issued.lost);
    }

    /// Everything that was gathered was read: the position can be stored.
    fn note_checkpoint(&self, serial: u64) -> ScanStep {
        {
            let mut run = self.scans.run.lock();
            let Some(run) = of_serial(&mut run, serial) else { return ScanStep::Again };
            if !self.scans.queue.is_empty() {
                return ScanStep::Again;
            }
            run.checkpoint = Some(run.position.clone());
            run.checkpointed = base::rt::now();
            run.gathered = false;
            run.ready = run.position.is_end();
        }
        self.want_txg();
        ScanStep::Again
    }

    /// Has a txg written, although it may have no other change.
    fn want_txg(&self) {
        let open = self.txgs.open_txg();
        self.txgs.dirty(open, 0);
        self.txgs.kick(open);
    }
}

/// The scan that runs, if it is the one with this number.
fn of_serial(run: &mut Option<ScanRun>, serial: u64) -> Option<&mut ScanRun> {
    run.as_mut().filter(|run| run.serial == serial)
}

fn note_lost(run: &mut ScanRun, lost: Vec<ErrorEntry>) {
    run.scan.errors += lost.len() as u64;
    let room = ERRORS_MAX.saturating_sub(run.lost.len());
    run.lost.extend(lost.into_iter().take(room));
}

impl Scans {
    fn is_closed(&self) -> bool {
        self.stopped.load(Relaxed)
    }
}
