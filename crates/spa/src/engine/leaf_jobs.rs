//! Work on the free space of leaves that lasts: manual TRIM (`trim`) and initializing
//! (`initialize`), with progress that survives (chapter 05 §3.2).
//!
//! # Theory
//! A job belongs to a leaf and has a kind. Its record (state, time, place, options) is in the
//! ZAP of the leaf. A thread for each active job goes over the metaslabs of the leaf's top-level
//! vdev, in order. One step of it loads a metaslab, excludes it from allocation (`exclusion`),
//! takes some allocatable ranges, translates them to the leaf (`vdev::Tree::ranges_on`), carries
//! out the operations, waits for them, and ends the exclusion. Then the place moves behind them.
//! So the place in memory never is ahead of the work, and the one on disk is not ahead of that
//! in memory. After a crash or an export the thread begins at the stored place; what is repeated
//! is free space still.
//!
//! Ranges that become free behind the place are not visited: they belong to the next run, or
//! to `autotrim`.
//!
//! # States
//! none → *active* → *complete*, *canceled*, or *suspended* → *active* again at the same place.
//! Starting a job that is complete or canceled begins at 0. A change of state is made by a sync
//! task; the thread ends when it sees another state, or another run of its job. The end of the
//! work is queued as a task without a wait.
//!
//! # Why nothing is lost
//! Only allocatable ranges are touched, of a metaslab from which nothing is allocated
//! meanwhile (`metaslab::trim`). Such a range was freed in a txg that is two txgs older than the
//! newest uberblock (or, in a nearly full pool, in a durable one), and no checkpoint has it. After
//! an import all free space is allocatable, also that freed in the last txgs before it, so nothing
//! is touched before the second txg of the import. So no uberblock to which an import may go back
//! refers to what is touched. An idle pool writes no uberblocks: then the job itself asks for one.
//!
//! # Departures from OpenZFS
//! * Exclusions are short: they end with every step, and a rate limit waits between steps.
//! * A leaf that cannot be written keeps its thread, which looks again every [`ABSENT_PAUSE`].
//!
//! Lock order: `state`, then nothing. It is never held during I/O, a wait for a txg, or a call
//! of `metaslab`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::rt::{Condvar, JoinHandle, Mutex, spawn};
use base::{Error, ErrorKind, Guid, Result, Txg};
use dmu::OutagePolicy;
use dsl::write::MosRead;
use metaslab::{FreeSpace, MetaslabFree, MsKey};
use nvlist::NvList;
use vdev::{FreeSpaceOp, LABEL_START};

use super::job_record::{
    JobKind, JobRecord, JobState, JobStatus, leaf_zaps, place_on, progress, stored_jobs,
};
use super::sync::SyncPass;
use super::tasks::{Command, TaskCx};
use super::{SyncState, Writer};

/// Ranges of a metaslab that a step looks at.
const RANGES_OF_STEP: usize = 1024;
/// How long the thread of an absent leaf waits.
const ABSENT_PAUSE: Duration = Duration::from_secs(5);

#[derive(Default)]
struct LeafJob {
    record: JobRecord,
    /// Must be stored.
    dirty: bool,
    /// The number of the run; threads of earlier runs end.
    run: u64,
    /// Threads of this job.
    threads: Vec<JoinHandle<()>>,
}

/// Tunables of the work on free space (chapter 05 §3.2, §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpaceTuning {
    /// `zfs_trim_extent_bytes_max`: larger ranges are discarded in parts.
    pub trim_max: u64,
    /// `zfs_trim_extent_bytes_min`: smaller ranges are not discarded.
    pub trim_min: u64,
    /// `zfs_trim_metaslab_skip`: metaslabs that were never used are left out.
    pub trim_skip: bool,
    /// `zfs_trim_queue_limit`: discards in the queue of a leaf.
    pub trim_queue: u64,
    /// `zfs_trim_txg_batch`: txgs over which freed ranges are collected.
    pub trim_batch: u64,
    /// `zfs_spa_discard_memory_limit`: memory for the ranges of a checkpoint that a txg frees.
    pub discard_memory: u64,
    /// `zfs_condense_indirect_vdevs_enable`: mappings of removed vdevs are condensed.
    pub condense: bool,
    /// `zfs_condense_indirect_obsolete_pct`: when so much of a mapping became obsolete.
    pub condense_percent: u64,
    /// `zfs_condense_max_obsolete_bytes`: when an obsolete map is so long.
    pub condense_map_max: u64,
    /// `zfs_condense_min_mapping_bytes`: shorter mappings stay as they are.
    pub condense_mapping_min: u64,
    /// `zfs_initialize_value`.
    pub pattern: u64,
    /// `zfs_initialize_chunk_size`: bytes of one write.
    pub chunk: u64,
}

impl Default for FreeSpaceTuning {
    fn default() -> Self {
        FreeSpaceTuning {
            trim_max: 128 << 20,
            trim_min: 32 << 10,
            trim_skip: false,
            trim_queue: 10,
            trim_batch: 32,
            discard_memory: 16 << 20,
            condense: true,
            condense_percent: 25,
            condense_map_max: 1 << 30,
            condense_mapping_min: 128 << 10,
            pattern: 0xdead_beef_dead_beee,
            chunk: 1 << 20,
        }
    }
}

#[derive(Default)]
struct JobsState {
    jobs: BTreeMap<(Guid, JobKind), LeafJob>,
    tuning: FreeSpaceTuning,
}

/// The jobs of a pool.
#[derive(Default)]
pub(crate) struct LeafJobs {
    state: Mutex<JobsState>,
    /// A job's state changed, or the pool closes.
    changed: Condvar,
    stopping: AtomicBool,
    dirty: AtomicBool,
}

/// The place of a job's thread.
#[derive(Default)]
struct JobCursor {
    metaslabs: Vec<MetaslabFree>,
    next: usize,
    /// Offset of the vdev, within the metaslab.
    from: u64,
}

enum JobStep {
    /// There is more, after a pause.
    More(Duration),
    /// All is done.
    Done,
    /// The thread is not needed any more.
    Stop,
    /// Older uberblocks need some of the space: the next one must be written first.
    Early,
    /// The device does not do it.
    Fail,
}

impl LeafJobs {
    pub(super) fn tuning(&self) -> FreeSpaceTuning {
        self.state.lock().tuning
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Whether the next txg stores something.
    pub(super) fn is_dirty(&self) -> bool {
        self.dirty.load(Relaxed)
    }

    /// Ends all threads and waits for them, unless the pool is suspended: then they end when
    /// they can.
    pub(super) fn stop(&self, wait: bool) {
        self.stopping.store(true, Relaxed);
        let mut threads = Vec::new();
        for job in self.state.lock().jobs.values_mut() {
            threads.append(&mut job.threads);
        }
        self.changed.notify_all();
        if wait {
            threads.into_iter().for_each(|thread| {
                let _ended = thread.join();
            });
        }
    }

    /// Takes a stop back.
    pub(super) fn allow(&self) {
        self.stopping.store(false, Relaxed);
    }

    /// The record of a job, if this run of it is to go on.
    fn running(&self, leaf: Guid, kind: JobKind, run: u64) -> Option<(JobRecord, FreeSpaceTuning)> {
        if self.is_stopping() {
            return None;
        }
        let state = self.state.lock();
        let job = state.jobs.get(&(leaf, kind))?;
        let on = job.run == run && job.record.state == JobState::Active;
        on.then_some((job.record, state.tuning))
    }

    /// Waits as long as this run is to go on.
    pub(super) fn pause(&self, leaf: Guid, kind: JobKind, run: u64, duration: Duration) {
        let end = base::rt::now();
        let mut state = self.state.lock();
        loop {
            let job = state.jobs.get(&(leaf, kind));
            let on = job.is_some_and(|j| j.run == run && j.record.state == JobState::Active);
            let left = duration.saturating_sub(end.elapsed());
            if !on || self.is_stopping() || left.is_zero() {
                return;
            }
            self.changed.wait_timeout(&mut state, left);
        }
    }

    fn record(&self, leaf: Guid, kind: JobKind) -> JobRecord {
        let state = self.state.lock();
        state.jobs.get(&(leaf, kind)).map(|job| job.record).unwrap_or_default()
    }

    fn change(&self, leaf: Guid, kind: JobKind, f: impl FnOnce(&mut LeafJob)) {
        let mut state = self.state.lock();
        let job = state.jobs.entry((leaf, kind)).or_default();
        f(job);
        job.dirty = true;
        drop(state);
        self.dirty.store(true, Relaxed);
        self.changed.notify_all();
    }
}

impl Writer {
    /// Reads the jobs of an imported pool; their threads start with [`Writer::resume_jobs`].
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub(crate) fn load_jobs(&self, mos: &dyn MosRead) -> Result<()> {
        let known = stored_jobs(mos, &self.published().config)?;
        let mut state = self.jobs.state.lock();
        for (leaf, kind, record) in known {
            state.jobs.insert((leaf, kind), LeafJob { record, ..LeafJob::default() });
        }
        Ok(())
    }

    /// Starts the threads of active jobs that have none.
    pub(crate) fn resume_jobs(&self) {
        let active: Vec<(Guid, JobKind)> = {
            let state = self.jobs.state.lock();
            let idle =
                |job: &LeafJob| job.record.state == JobState::Active && job.threads.is_empty();
            state.jobs.iter().filter(|(_, job)| idle(job)).map(|(key, _)| *key).collect()
        };
        active.into_iter().for_each(|(leaf, kind)| self.run_job(leaf, kind));
    }

    /// Sets the tunables of the work on free space.
    pub fn set_free_space_tuning(&self, tuning: FreeSpaceTuning) {
        self.jobs.state.lock().tuning = tuning;
    }

    /// The tunables of the work on free space.
    pub fn free_space_tuning(&self) -> FreeSpaceTuning {
        self.jobs.tuning()
    }

    /// The job of a leaf; its default if it never ran.
    pub fn job_status(&self, leaf: Guid, kind: JobKind) -> JobStatus {
        let record = self.jobs.record(leaf, kind);
        if record.state == JobState::None {
            return JobStatus::default();
        }
        let tree = self.zio.tree();
        let top = tree.find(leaf).map(vdev::Node::top);
        let metaslabs = top.and_then(|top| self.space.metaslabs(top).ok()).unwrap_or_default();
        progress(&record, &tree, leaf, &metaslabs)
    }

    fn check_leaf(&self, leaf: Guid) -> Result<()> {
        let tree = self.zio.tree();
        match tree.find(leaf) {
            Some(node) if node.kind().is_device() && node.readable() => Ok(()),
            Some(node) if node.kind().is_device() => Err(Error::new(
                ErrorKind::DevicesMissing,
                "one or more devices is currently unavailable",
            )),
            _ => Err(Error::not_found("no such device in pool")),
        }
    }

    /// Starts the job of a leaf, or continues a suspended one; for a trim with the options of
    /// `wanted`.
    ///
    /// # Errors
    /// `Busy` if it runs; `NotFound` and `DevicesMissing` for the leaf; `Unsupported` for a
    /// device without discards, and for secure ones; those of a suspension.
    pub fn start_job(
        &self,
        leaf: Guid,
        kind: JobKind,
        wanted: JobRecord,
        command: Option<Command>,
    ) -> Result<()> {
        self.check_leaf(leaf)?;
        if kind == JobKind::Trim && (wanted.secure || !self.zio.tree().can_discard(leaf)) {
            return Err(Error::unsupported("trim operations are not supported by this device"));
        }
        let check = move |cx: &mut TaskCx<'_>| match cx.writer.jobs.record(leaf, kind).state {
            JobState::Active => Err(Error::busy(match kind {
                JobKind::Trim => "currently trimming",
                JobKind::Initialize => "currently initializing",
            })),
            _ => Ok(()),
        };
        let act = move |cx: &mut TaskCx<'_>, ()| {
            let now = cx.cx.now.0;
            let mut event = "start";
            cx.writer.jobs.change(leaf, kind, |job| {
                let continues = job.record.state == JobState::Suspended;
                event = if continues { "resume" } else { event };
                let offset = if continues { job.record.offset } else { 0 };
                job.run += 1;
                let (state, action_time) = (JobState::Active, now);
                job.record = JobRecord { state, action_time, offset, ..wanted };
            });
            cx.post_job(leaf, kind, event);
            cx.log_job(leaf, kind, "activated")?;
            command.map_or(Ok(()), |c| cx.log_command(&c))
        };
        self.sync_task(check, act)?;
        self.run_job(leaf, kind);
        Ok(())
    }

    /// Suspends the job of a leaf.
    ///
    /// # Errors
    /// `NotFound` if it does not run; those of a suspension of the pool.
    pub fn suspend_job(&self, leaf: Guid, kind: JobKind, command: Option<Command>) -> Result<()> {
        self.end_job(leaf, kind, JobState::Suspended, "suspended", command)
    }

    /// Gives the job of a leaf up.
    ///
    /// # Errors
    /// `NotFound` if it neither runs nor is suspended; those of a suspension of the pool.
    pub fn cancel_job(&self, leaf: Guid, kind: JobKind, command: Option<Command>) -> Result<()> {
        self.end_job(leaf, kind, JobState::Canceled, "canceled", command)
    }

    /// Removes the record of a leaf's job that does not run.
    ///
    /// # Errors
    /// `Busy` if it runs; those of a suspension of the pool.
    pub fn forget_job(&self, leaf: Guid, kind: JobKind, command: Option<Command>) -> Result<()> {
        let check = move |cx: &mut TaskCx<'_>| match cx.writer.jobs.record(leaf, kind).state {
            JobState::Active => Err(Error::busy("currently initializing")),
            _ => Ok(()),
        };
        let act = move |cx: &mut TaskCx<'_>, ()| {
            cx.writer.jobs.change(leaf, kind, |job| job.record = JobRecord::default());
            cx.log_job(leaf, kind, "uninitialized")?;
            command.map_or(Ok(()), |c| cx.log_command(&c))
        };
        self.sync_task(check, act).map(|_| ())
    }

    fn end_job(
        &self,
        leaf: Guid,
        kind: JobKind,
        to: JobState,
        word: &'static str,
        command: Option<Command>,
    ) -> Result<()> {
        let check = move |cx: &mut TaskCx<'_>| {
            let now = cx.writer.jobs.record(leaf, kind).state;
            let may =
                now == JobState::Active || (to == JobState::Canceled && now == JobState::Suspended);
            let none = match kind {
                JobKind::Trim => "there is no active trim",
                JobKind::Initialize => "there is no active initialization",
            };
            if may { Ok(()) } else { Err(Error::not_found(none)) }
        };
        let act = move |cx: &mut TaskCx<'_>, ()| {
            let now = cx.cx.now.0;
            cx.writer.jobs.change(leaf, kind, |job| {
                (job.record.state, job.record.action_time) = (to, now);
                job.run += 1;
            });
            cx.post_job(leaf, kind, if to == JobState::Suspended { "suspend" } else { "cancel" });
            cx.log_job(leaf, kind, word)?;
            command.map_or(Ok(()), |c| cx.log_command(&c))
        };
        self.sync_task(check, act)?;
        self.join_job(leaf, kind);
        Ok(())
    }

    /// Waits until the threads of earlier runs have ended.
    fn join_job(&self, leaf: Guid, kind: JobKind) {
        let threads = {
            let mut state = self.jobs.state.lock();
            let job = state.jobs.get_mut(&(leaf, kind));
            job.map(|job| std::mem::take(&mut job.threads)).unwrap_or_default()
        };
        threads.into_iter().for_each(|thread| {
            let _ended = thread.join();
        });
    }

    fn run_job(&self, leaf: Guid, kind: JobKind) {
        self.join_job(leaf, kind);
        let mut state = self.jobs.state.lock();
        let Some(job) = state.jobs.get_mut(&(leaf, kind)) else { return };
        if job.record.state != JobState::Active || self.jobs.is_stopping() {
            return;
        }
        let weak = self.me.get().cloned().unwrap_or_default();
        let (jobs, run) = (Arc::clone(&self.jobs), job.run);
        let name = match kind {
            JobKind::Trim => "vdev_trim",
            JobKind::Initialize => "vdev_initialize",
        };
        // Without a thread the job stays active, and the next import starts it.
        let thread = spawn(name, move || work(&weak, &jobs, leaf, kind, run));
        job.threads.extend(thread.ok());
    }

    /// One step of a job.
    fn job_step(&self, leaf: Guid, kind: JobKind, run: u64, cursor: &mut JobCursor) -> JobStep {
        let Some((record, tuning)) = self.jobs.running(leaf, kind, run) else {
            return JobStep::Stop;
        };
        let tree = self.zio.tree();
        let Some(node) = tree.find(leaf) else { return JobStep::Stop };
        if !node.readable() || node.device().is_none() {
            return JobStep::More(ABSENT_PAUSE);
        }
        let top = node.top();
        // Free space is about to be written, and blocks move.
        if tree.is_expanding(top) {
            return JobStep::More(ABSENT_PAUSE);
        }
        if cursor.next >= cursor.metaslabs.len() {
            let all = self.space.metaslabs(top).unwrap_or_default();
            if cursor.next >= all.len() {
                return JobStep::Done;
            }
            cursor.metaslabs = all;
        }
        let Some(ms) = cursor.metaslabs.get(cursor.next).copied() else { return JobStep::Done };
        let skip = kind == JobKind::Trim && !ms.was_used && (record.partial || tuning.trim_skip);
        let behind = place_on(&tree, leaf, ms.seg.start, ms.seg.len);
        if skip || behind.is_some_and(|(_, end)| end <= record.offset) {
            (cursor.next, cursor.from) = (cursor.next + 1, 0);
            return JobStep::More(Duration::ZERO);
        }
        match self.on_metaslab(leaf, kind, &tree, ms.key, cursor, (&record, &tuning)) {
            Ok(None) => JobStep::Early,
            Ok(Some(bytes)) => {
                let rate = record.rate;
                let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
                let pause = if rate == 0 { 0 } else { u64::try_from(nanos).unwrap_or(u64::MAX) };
                JobStep::More(Duration::from_nanos(pause))
            }
            // The leaf was closed meanwhile.
            Err(e) if e.kind() == ErrorKind::Io && self.check_leaf(leaf).is_err() => {
                JobStep::More(ABSENT_PAUSE)
            }
            Err(_) => JobStep::Fail,
        }
    }

    /// The newest uberblock that decides which free space may be touched; `None` if that is
    /// none yet.
    pub(super) fn newest_for_free_space(&self) -> Option<Txg> {
        let newest = self.published().uberblock.txg;
        (newest > self.first_txg).then_some(newest)
    }

    /// Has an uberblock written.
    fn write_uberblock(&self, leaf: Guid, kind: JobKind) -> Result<Txg> {
        // A record to be stored makes the txg one that writes something.
        self.jobs.change(leaf, kind, |_| ());
        self.sync()
    }

    /// Works on some ranges of a metaslab; returns the bytes; `None` if older uberblocks need
    /// some of it.
    fn on_metaslab(
        &self,
        leaf: Guid,
        kind: JobKind,
        tree: &vdev::Tree,
        key: MsKey,
        cursor: &mut JobCursor,
        (record, tuning): (&JobRecord, &FreeSpaceTuning),
    ) -> Result<Option<u64>> {
        let Some(newest) = self.newest_for_free_space() else { return Ok(None) };
        self.space_io.load(key, OutagePolicy::WaitPerFailmode)?;
        let exclusion = self.space_io.exclusions.exclude(&self.space, key)?;
        let ranges = match self.space.free_ranges(key, newest, cursor.from, RANGES_OF_STEP)? {
            FreeSpace::Ranges(ranges) => ranges,
            // The next step loads it again.
            FreeSpace::NotLoaded => return Ok(Some(0)),
            FreeSpace::NotDurable => return Ok(None),
        };
        let mut plan = match kind {
            JobKind::Trim => super::trim::plan(tuning, record.rate),
            JobKind::Initialize => super::initialize::plan(tuning),
        };
        let mut more = ranges.len() == RANGES_OF_STEP;
        for seg in &ranges {
            let mut full = false;
            for (at, len) in tree.ranges_on(leaf, seg.start, seg.len)? {
                let skip = (record.offset + LABEL_START).saturating_sub(at).min(len);
                full = !plan.add(at + skip, len - skip);
                if full {
                    break;
                }
            }
            // What is left of a range is found by the record's place.
            cursor.from = if full { seg.start } else { seg.end() };
            if full {
                more = true;
                break;
            }
        }
        let (ops, end, bytes) = plan.finish();
        if !ops.is_empty() {
            tree.on_free_space(leaf, ops)?;
        }
        drop(exclusion);
        if !more {
            (cursor.next, cursor.from) = (cursor.next + 1, 0);
        }
        if bytes > 0 {
            let hold = self.txgs.hold()?;
            self.jobs.change(leaf, kind, |job| {
                job.record.offset = job.record.offset.max(end - LABEL_START);
            });
            self.txgs.dirty(hold.txg(), 0);
        }
        Ok(Some(bytes))
    }

    /// The work of a run has ended.
    fn job_ended(&self, leaf: Guid, kind: JobKind, run: u64, to: JobState) {
        let act = move |cx: &mut TaskCx<'_>| {
            if cx.writer.jobs.running(leaf, kind, run).is_none() {
                return Ok(());
            }
            let now = cx.cx.now.0;
            cx.writer.jobs.change(leaf, kind, |job| {
                (job.record.state, job.record.action_time) = (to, now);
            });
            let whole = to == JobState::Complete;
            cx.post_job(leaf, kind, if whole { "finish" } else { "cancel" });
            cx.log_job(leaf, kind, if whole { "complete" } else { "canceled" })
        };
        // Without a txg the record stays active, and the next import continues the job.
        let _queued = self.post_task(act);
    }

    /// Stores the changed records in the ZAPs of their leaves.
    pub(super) fn store_jobs(&self, state: &SyncState, sync: &SyncPass<'_>) -> Result<()> {
        if !self.jobs.dirty.swap(false, Relaxed) {
            return Ok(());
        }
        let changed: Vec<(Guid, JobKind, JobRecord)> = {
            let mut jobs = self.jobs.state.lock();
            let take = |(&(leaf, kind), job): (&(Guid, JobKind), &mut LeafJob)| {
                std::mem::take(&mut job.dirty).then_some((leaf, kind, job.record))
            };
            jobs.jobs.iter_mut().filter_map(take).collect()
        };
        let zaps = leaf_zaps(&state.config);
        for (leaf, kind, record) in changed {
            // A leaf that left the pool, or a pool of a version without ZAPs.
            if let Some((_, zap)) = zaps.iter().find(|(guid, _)| *guid == leaf) {
                record.store(sync, *zap, kind)?;
            }
        }
        Ok(())
    }
}

impl TaskCx<'_> {
    /// Posts the event of a trim; an initialization has none (chapter 09 §5).
    fn post_job(&self, leaf: Guid, kind: JobKind, what: &str) {
        if kind != JobKind::Trim {
            return;
        }
        let mut values = NvList::new();
        if let Some(found) = self.state.config.vdev_tree.find(leaf) {
            let path = found.path.as_ref().and_then(|path| path.to_str());
            values.add_str("vdev_path", path.unwrap_or_default());
        }
        values.add_u64("vdev_guid", leaf.0);
        self.writer.sysevent(&format!("trim_{what}"), &values);
    }

    fn log_job(&self, leaf: Guid, kind: JobKind, word: &str) -> Result<()> {
        let found = self.state.config.vdev_tree.find(leaf);
        let path = found.and_then(|l| l.path.as_ref()?.to_str());
        let text = format!("vdev={} {word}", path.unwrap_or("?"));
        self.log_internal(kind.keys().name, None, &text)
    }
}

/// The body of a job's thread.
fn work(weak: &Weak<Writer>, jobs: &Arc<LeafJobs>, leaf: Guid, kind: JobKind, run: u64) {
    let mut cursor = JobCursor::default();
    loop {
        let Some(writer) = weak.upgrade() else { return };
        match writer.job_step(leaf, kind, run, &mut cursor) {
            JobStep::Stop => return,
            JobStep::Done => return writer.job_ended(leaf, kind, run, JobState::Complete),
            JobStep::Fail => return writer.job_ended(leaf, kind, run, JobState::Canceled),
            JobStep::Early if writer.write_uberblock(leaf, kind).is_ok() => {}
            JobStep::Early => {
                drop(writer);
                jobs.pause(leaf, kind, run, ABSENT_PAUSE);
            }
            JobStep::More(pause) => {
                drop(writer);
                if !pause.is_zero() {
                    jobs.pause(leaf, kind, run, pause);
                }
            }
        }
    }
}

/// The operations of a step, up to limits.
pub(super) struct FreeSpacePlan {
    /// Operations, and bytes, at most.
    pub(super) limits: (usize, u64),
    /// Bytes of one operation, at least and at most.
    pub(super) sizes: (u64, u64),
    /// The content; `None` for a discard.
    pub(super) fill: Option<base::Buf>,
    pub(super) ops: Vec<(u64, FreeSpaceOp)>,
    pub(super) end: u64,
    pub(super) bytes: u64,
}

impl FreeSpacePlan {
    /// Adds a range; false if the plan is full before its end.
    pub(super) fn add(&mut self, at: u64, len: u64) -> bool {
        if len < self.sizes.0.max(1) {
            return true;
        }
        let mut done = 0;
        while done < len {
            if self.ops.len() >= self.limits.0 || self.bytes >= self.limits.1 {
                return false;
            }
            let part = (len - done).min(self.sizes.1.max(1));
            let op = match &self.fill {
                None => FreeSpaceOp::Discard(part),
                Some(fill) => {
                    let whole = fill.slice(0..(part as usize).min(fill.len()));
                    FreeSpaceOp::Fill(vec![whole])
                }
            };
            self.ops.push((at + done, op));
            done += part;
            self.bytes += part;
            self.end = at + done;
        }
        true
    }

    fn finish(self) -> (Vec<(u64, FreeSpaceOp)>, u64, u64) {
        (self.ops, self.end.max(LABEL_START), self.bytes)
    }
}
