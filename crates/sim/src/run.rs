//! One recorded run, crashed at every event.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::Txg;
use base::rt::Mutex;
use base::rt::sim::{Outcome, Rng, run_with};
use device::sim::{Action, Faults, Image, SimDisks};
use zio::BlockCache;

use crate::check::{Expect, judge};
use crate::driver::Driver;
use crate::everywhere::CrashPoints;
use crate::memo::{Manner, Memo};
use crate::mishap::Mishap;
use crate::model::Model;
use crate::ops::{OpPlan, plan};
use crate::pool::{CACHE, make};
use crate::setup::{DiskFault, PlantedBug, Setup, Workload};

/// A run that was recorded.
pub struct Recorded {
    /// Its setup.
    pub setup: Setup,
    /// Its operations.
    pub plan: OpPlan,
    /// The disks, with their log.
    pub disks: SimDisks,
    /// The expected content of the pool, txg by txg.
    pub model: Arc<Model>,
    /// A hash over the schedule.
    pub hash: u64,
    /// Scheduling steps.
    pub steps: u64,
    /// A failure during the run itself.
    pub failed: Option<String>,
    /// The disk with the faults.
    pub victim: Option<usize>,
    /// The pool was so full that frees were not deferred.
    pub full: bool,
    /// Events before the last operation began, in a plan of one thread.
    pub prelude: u64,
    /// Operations on lineages that were done, by kind.
    pub done: BTreeSet<&'static str>,
    /// The verdicts so far.
    pub memo: Memo,
}

/// A failure, and how to reproduce it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The run.
    pub setup: Setup,
    /// The crash: event and seed; `None` if the run itself failed.
    pub crash: Option<(u64, u64)>,
    /// The error.
    pub what: String,
    /// The operations.
    pub ops: Vec<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "seed {}: {}", self.setup.seed, self.what)?;
        for op in &self.ops {
            writeln!(f, "    {op}")?;
        }
        write!(f, "  again: {}", self.setup.command())?;
        match self.crash {
            Some((event, seed)) => write!(f, " --crash {event}:{seed}"),
            None => Ok(()),
        }
    }
}

/// The number of images of a run, and the findings.
#[derive(Debug, Default)]
pub struct CrashTally {
    /// Crash images judged.
    pub images: u64,
    /// Events after which the power failed.
    pub points: u64,
    /// Txgs found in them.
    pub txgs: u64,
    /// The first failure.
    pub failure: Option<Failure>,
}

/// Sets the engine's test instruments.
pub(crate) fn plant(setup: &Setup, driver: &mut Driver) {
    if let Some((larger_than, one_in)) = setup.ganging() {
        // A single sector cannot be split.
        let tree = driver.writer.zio().tree();
        let tops = tree.top_ids().filter_map(|id| tree.top(id).ok());
        let sector = tops.map(|top| 1 << top.ashift().min(24)).max().unwrap_or(512);
        let force = &driver.writer.space().force_ganging;
        force.larger_than.store(larger_than.max(sector), Relaxed);
        force.members.store(setup.gangs, Relaxed);
        force.one_in.store(one_in, Relaxed);
    }
    let plants = &driver.writer.plants;
    let space = &driver.writer.space().plant;
    let lineage = &plants.lineage;
    let refs = driver.writer.block_ref_plants();
    let dedup = driver.writer.dedup_plants();
    let moves = driver.writer.relocation_plants();
    let (removal, expansion) = (driver.writer.removal_plants(), driver.writer.expansion_plants());
    // The datasets are small: sublists of few blocks, and lists that are kept while anything
    // is shared.
    lineage.sublist_max.store(1 + 8 * (1 + setup.seed % 3), Relaxed);
    let kept = match setup.workload {
        Workload::Clones => !setup.seed.is_multiple_of(4),
        _ => setup.seed.is_multiple_of(2),
    };
    lineage.shared_min.store(if kept { 1 } else { 1 + 30 }, Relaxed);
    // Freeing takes several txgs, sometimes.
    if setup.workload.is_lineage() && setup.seed.is_multiple_of(3) {
        plants.freed_at_once.store(1 + 20, Relaxed);
    }
    if setup.workload.has_dedup() {
        crate::dedup::tune(setup, driver);
    }
    if setup.workload == Workload::Moves {
        crate::moves::tune(setup, driver);
    }
    if setup.workload == Workload::BlockSharing {
        crate::sharing::tune(setup, driver);
    }
    match setup.plant {
        None => {}
        Some(PlantedBug::ForgottenDeadlist) => lineage.forgotten_deadlist.store(true, Relaxed),
        Some(PlantedBug::ForgottenClones) => lineage.forgotten_clones.store(true, Relaxed),
        Some(PlantedBug::LeftBookmarks) => lineage.left_bookmarks.store(true, Relaxed),
        Some(PlantedBug::KeptBlocks) => lineage.kept_blocks.store(true, Relaxed),
        Some(PlantedBug::FreedOrigin) => lineage.freed_origin.store(true, Relaxed),
        Some(PlantedBug::DroppedHolds) => lineage.dropped_holds.store(true, Relaxed),
        Some(PlantedBug::ForgottenDeferral) => lineage.forgotten_deferral.store(true, Relaxed),
        Some(PlantedBug::LostEntry) => lineage.lost_entry.store(true, Relaxed),
        Some(PlantedBug::IgnoredFrees) => lineage.ignored_frees.store(true, Relaxed),
        Some(PlantedBug::KeptLivelist) => lineage.kept_livelist.store(true, Relaxed),
        Some(PlantedBug::LostDecrement) => refs.lost_decrement.store(true, Relaxed),
        Some(PlantedBug::LostIncrement) => refs.lost_increment.store(true, Relaxed),
        Some(PlantedBug::CountedLate) => refs.counted_late.store(true, Relaxed),
        Some(PlantedBug::DroppedPointer) => refs.dropped_pointer.store(true, Relaxed),
        Some(PlantedBug::DedupUnlogged) => dedup.unlogged_decrement.store(true, Relaxed),
        Some(PlantedBug::DedupStaleFlush) => dedup.stale_flush.store(true, Relaxed),
        Some(PlantedBug::DedupOldCheckpoint) => dedup.old_checkpoint.store(true, Relaxed),
        Some(PlantedBug::DedupLostRecords) => dedup.lost_records.store(true, Relaxed),
        Some(PlantedBug::DedupKeptNewborn) => dedup.kept_newborn.store(true, Relaxed),
        Some(PlantedBug::DedupLostDecrement) => dedup.lost_decrement.store(true, Relaxed),
        Some(PlantedBug::DedupLostIncrement) => dedup.lost_increment.store(true, Relaxed),
        Some(PlantedBug::DedupKeptEntry) => dedup.kept_entry.store(true, Relaxed),
        Some(PlantedBug::RemovalOffByOne) => removal.off_by_one.store(true, Relaxed),
        Some(PlantedBug::RemovalLostEntry) => removal.lost_entry.store(true, Relaxed),
        Some(PlantedBug::ExpansionSkippedRow) => expansion.skipped_row.store(true, Relaxed),
        Some(PlantedBug::MoveLeftEntry) => moves.left_entry.store(true, Relaxed),
        Some(PlantedBug::MoveLeftSnapshot) => moves.left_snapshot.store(true, Relaxed),
        Some(PlantedBug::MoveOldHeads) => moves.old_heads.store(true, Relaxed),
        Some(PlantedBug::MoveForgottenHandles) => moves.forgotten_handles.store(true, Relaxed),
        Some(PlantedBug::UberblockBeforeFlush) => {
            plants.commit.uberblock_before_flush.store(true, Relaxed)
        }
        Some(PlantedBug::LabelOrder) => plants.commit.labels_in_wrong_order.store(true, Relaxed),
        Some(PlantedBug::NoDefer) => plants.no_defer.store(true, Relaxed),
        Some(PlantedBug::ReuseSameTxg) => space.reuse_same_group.store(true, Relaxed),
        Some(PlantedBug::ReuseBeforeCommit) => space.reuse_before_commit.store(true, Relaxed),
        Some(PlantedBug::LoseEntry) => space.lose_alloc_entry.store(true, Relaxed),
        Some(PlantedBug::WrongTxg) => driver.plant_wrong_txg(),
        Some(PlantedBug::TrimDeferred) => space.trim_deferred.store(true, Relaxed),
        Some(PlantedBug::FreeKept) => {
            driver.writer.checkpoint_plants().free_kept.store(true, Relaxed)
        }
        Some(PlantedBug::ForgetRange) => {
            driver.writer.checkpoint_plants().forget_range.store(true, Relaxed)
        }
    }
}

/// Sets up the faults of a run; returns the disk that has them.
fn arrange(setup: &Setup, disks: &SimDisks) -> Option<usize> {
    let fault = setup.fault?;
    let mut rng = Rng::stream(setup.seed, 31);
    let disk = rng.below(disks.count() as u64) as usize;
    let start = disks.events() + rng.below(200);
    let often = 2 + rng.below(20);
    let mut faults = Faults::default();
    match fault {
        DiskFault::Drop => {
            disks.schedule(start, Action::Drop { disk });
            return Some(disk);
        }
        DiskFault::Away => {
            disks.schedule(start, Action::Drop { disk });
            disks.schedule(start + 1 + rng.below(300), Action::Return { disk });
            return Some(disk);
        }
        DiskFault::WriteErrors => faults.write_errors = often,
        DiskFault::FlushErrors => faults.flush_errors = often,
        DiskFault::ReadErrors => faults.read_errors = often,
        DiskFault::StaleReads => faults.stale_reads = often,
        DiskFault::Misdirected => faults.misdirected = often,
        DiskFault::LyingFlushes => faults.lying_flushes = often,
    }
    disks.schedule(start, Action::Faults { disk, faults });
    Some(disk)
}

/// Runs all operations of a plan; returns the events before one thread's last operation.
pub(crate) fn work(driver: &Arc<Driver>, plan: &OpPlan, disks: &SimDisks) -> Result<u64, String> {
    let began = Arc::new(AtomicU64::new(0));
    let failed: Arc<Mutex<Option<String>>> = Arc::default();
    let mut threads = Vec::new();
    for (t, ops) in plan.iter().cloned().enumerate() {
        let (driver, failed) = (Arc::clone(driver), Arc::clone(&failed));
        let (began, disks) = (Arc::clone(&began), disks.clone());
        let body = move || {
            let mut hand = driver.hand(t);
            for (number, op) in ops {
                began.store(disks.events(), Relaxed);
                if failed.lock().is_some() {
                    return;
                }
                if let Err(e) = driver.run(&mut hand, &op) {
                    failed.lock().get_or_insert(format!("operation {number}, {op:?}: {e}"));
                    return;
                }
            }
        };
        if plan.len() == 1 {
            body();
            break;
        }
        let thread = base::rt::spawn(&format!("worker-{t}"), body).map_err(|e| e.to_string())?;
        threads.push(thread);
    }
    for thread in threads {
        thread.join();
    }
    let failed = failed.lock().take();
    match failed {
        // Failing devices may end a pool; acknowledged changes must persist.
        Some(why) if !driver.faulty => Err(why),
        _ => Ok(began.load(Relaxed)),
    }
}

#[derive(Default)]
struct BodyResult {
    victim: Option<usize>,
    full: bool,
    prelude: u64,
    done: BTreeSet<&'static str>,
}

/// The body of a run, inside the schedule.
fn body(
    setup: &Setup,
    plan: &OpPlan,
    disks: &SimDisks,
    model: &Arc<Model>,
) -> Result<BodyResult, String> {
    let fine = |what: &str, e: base::Error| format!("{what}: {e}");
    let writer = make(setup, disks).map_err(|e| fine("making the pool", e))?;
    let mut driver = Driver::new(writer, disks, Arc::clone(model)).map_err(|e| fine("start", e))?;
    driver.add_root().map_err(|e| fine("root dataset", e))?;
    driver.share_objects().map_err(|e| fine("shared objects", e))?;
    driver.sync().map_err(|e| fine("first sync", e))?;
    plant(setup, &mut driver);
    driver.faulty = setup.fault.is_some();
    driver.lineage = setup.workload.is_lineage();
    driver.clones = setup.workload == Workload::Clones;
    driver.dedup = setup.workload.has_dedup().then_some(setup.seed);
    let victim = arrange(setup, disks);
    let driver = Arc::new(driver);
    let prelude = work(&driver, plan, disks)?;
    if setup.workload == Workload::BlockSharing && setup.seed % 4 != 3 {
        driver.end_reshaping().map_err(|e| fine("the end of a change of vdevs", e))?;
    }
    match driver.sync() {
        Err(e) if !driver.faulty => return Err(fine("last sync", e)),
        _ => {}
    }
    driver.writer.stop();
    let full = driver.writer.reused_at_once();
    let done = std::mem::take(&mut *driver.done.lock());
    Ok(BodyResult { victim, full, prelude, done })
}

/// Runs a setup and records it.
pub fn record(setup: &Setup) -> Recorded {
    record_plan(setup, plan(setup))
}

/// As [`record`], with these operations.
pub(crate) fn record_plan(setup: &Setup, plan: OpPlan) -> Recorded {
    let disks = SimDisks::blank(setup.disks(), setup.disk_count(), setup.disk_size());
    let model = Arc::new(Model::default());
    let (s, p, d, m) = (setup.clone(), plan.clone(), disks.clone(), Arc::clone(&model));
    let run = run_with(setup.schedule(), move || body(&s, &p, &d, &m));
    let (failed, ended) = match run.outcome {
        Outcome::Done(Ok(ended)) => (None, ended),
        Outcome::Done(Err(why)) => (Some(why), BodyResult::default()),
        Outcome::Halted => (Some("the run was halted".to_owned()), BodyResult::default()),
        Outcome::Deadlock(who) => (Some(format!("deadlock: {who}")), BodyResult::default()),
        Outcome::Panicked { thread, message } => {
            (Some(format!("thread {thread} panicked: {message}")), BodyResult::default())
        }
        Outcome::Limit(why) => (Some(format!("no end: {why}")), BodyResult::default()),
    };
    let (hash, steps) = (run.hash, run.steps);
    let BodyResult { victim, full, prelude, done } = ended;
    Recorded {
        setup: setup.clone(),
        plan,
        disks,
        model,
        hash,
        steps,
        failed,
        victim,
        full,
        prelude,
        done,
        memo: Memo::default(),
    }
}

impl Recorded {
    /// The operations, one per line.
    pub fn ops(&self) -> Vec<String> {
        let line = |t: usize, n: usize, op: &crate::ops::Op| format!("thread {t}, {n}: {op:?}");
        let of = |(t, ops): (usize, &Vec<(usize, crate::ops::Op)>)| {
            ops.iter().map(|(n, op)| line(t, *n, op)).collect::<Vec<_>>()
        };
        self.plan.iter().enumerate().flat_map(of).collect()
    }

    fn failure(&self, crash: Option<(u64, u64)>, what: String) -> Failure {
        Failure { setup: self.setup.clone(), crash, what, ops: self.ops() }
    }

    /// The mishap in the crash of that seed.
    pub fn mishap(&self, seed: u64) -> Mishap {
        Mishap::of(&self.setup, self.victim, seed)
    }

    /// The expectations after a crash at `event`.
    pub fn expect(&self, event: u64, seed: u64) -> Expect {
        let acknowledged = self.disks.marks(event).into_iter().max().map(Txg);
        let (fault, mishap) = (self.setup.fault, self.mishap(seed));
        let redundant = self.setup.layout.is_redundant();
        let missing = match (fault, self.victim) {
            (Some(DiskFault::Drop), Some(disk)) if redundant && event.is_multiple_of(2) => {
                Some(disk)
            }
            _ => mishap.missing(),
        };
        let first = self.disks.marks(u64::MAX).into_iter().min().map_or(Txg::ZERO, Txg);
        let damage = fault.is_some() || mishap.damages();
        let detect =
            !redundant && (mishap.damages() || fault.is_some_and(DiskFault::needs_redundancy));
        // Without redundancy, a disk may lose data after a successful flush, and an
        // unreadable uberblock counts as none.
        let bad = mishap.bad_sectors(seed);
        let forgets = detect && (bad.is_some() || fault.is_some_and(DiskFault::forgets));
        Expect {
            acknowledged: acknowledged.filter(|_| !forgets),
            manner: Manner { without: missing.into_iter().collect(), damage },
            bad,
            detect,
            // Vdevs that change keep no older txg.
            rewind: !damage && !self.full && self.setup.workload != Workload::BlockSharing,
            first,
        }
    }

    /// The disks after a crash.
    ///
    /// # Errors
    /// An event that is not in the log.
    pub fn image(&self, event: u64, seed: u64) -> Result<Vec<Image>, String> {
        let options = self.mishap(seed).options(self.disks.sector());
        let images = self.disks.crash_image_with(event, seed, &options);
        images.map_err(|e| e.to_string())
    }

    /// Crashes at one event and judges the result.
    ///
    /// # Errors
    /// The error found.
    pub fn crash(
        &self,
        event: u64,
        seed: u64,
        cache: &Arc<BlockCache>,
    ) -> Result<Option<Txg>, String> {
        let images = self.image(event, seed)?;
        judge(&images, &self.model, &self.expect(event, seed), cache, &self.memo)
    }

    /// Crashes at one event and judges the result from scratch.
    ///
    /// # Errors
    /// The error found.
    pub fn crash_once(&self, event: u64, seed: u64) -> Result<Option<Txg>, String> {
        let cache = BlockCache::of(CACHE).map_err(|e| e.to_string())?;
        self.crash(event, seed, &Arc::new(cache))
    }

    /// Crashes everywhere: at every event (or at every `stride`th), in the two extreme ways
    /// and `more` others, on `threads` threads; ends with the first failure.
    pub fn crash_everywhere(&self, stride: usize, more: u64, threads: usize) -> CrashTally {
        self.crash_from(0, stride, more, threads)
    }

    /// As [`Recorded::crash_everywhere`], from an event on.
    pub(crate) fn crash_from(
        &self,
        from: u64,
        stride: usize,
        more: u64,
        threads: usize,
    ) -> CrashTally {
        let mut tally = CrashTally::default();
        if let Some(why) = &self.failed {
            tally.failure = Some(self.failure(None, why.clone()));
            return tally;
        }
        let events = self.disks.crash_points();
        let later = events.into_iter().filter(|event| *event >= from);
        let points: Vec<u64> = later.step_by(stride.max(1)).collect();
        let (count, seed) = (points.len() as u64, self.setup.seed);
        let found = CrashPoints { points, seed, more, threads }
            .visit(|event, seed, cache| self.crash(event, seed, cache));
        tally.images = found.images;
        tally.points = count;
        tally.txgs = found.txgs;
        let wrong = found.wrong;
        tally.failure = wrong.map(|(event, seed, what)| self.failure(Some((event, seed)), what));
        tally
    }
}

/// Runs a setup and crashes it everywhere.
pub fn run(setup: &Setup, stride: usize, more: u64, threads: usize) -> CrashTally {
    record(setup).crash_everywhere(stride, more, threads)
}
