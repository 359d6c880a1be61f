//! File systems under the simulator: POSIX operations, with crashes everywhere.
//!
//! # Theory
//! Threads work on a file system, each below a directory of its own, and each operation is
//! applied to a simple model, too ([`tree::Tree`]). The host records the txgs of an
//! operation's transactions. After a crash the tree must be in the state after the last
//! operation whose txgs are all in the pool. An operation with only some of its
//! transactions in the pool may have happened or not. A change for which `fsync` returned
//! must be there.
//!
//! Then the pool is imported for writing, the delete queue is emptied as by a mount, and
//! every object must be part of the tree: none has leaked. For each txg that some crash
//! leaves this is done once, and then the mount itself is crashed occasionally.
//!
//! # Invariants
//! * A seed decides everything.
//! * The model uses only the requests and the txg numbers.
//!
//! Lock order: the file system's; the locks of the recording are leaves.

pub mod ops;
pub mod tree;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use base::rt::sim::{Options, Rng, run_with};
use base::rt::{Mutex, plain};
use base::{Error, Result, Txg};
use device::sim::{Image, SimDisks};
use dmu::{Io, OutagePolicy, Tx};
use dsl::write::features;
use spa::engine::Writer;
use spa::{ImportOptions, Spa};
use zio::BlockCache;
use zpl::rw::{Caller, Host, HostSpace, New, RwProps, XattrForm};
use zpl::{FileSystem, Time};

use crate::check;
use crate::everywhere::CrashPoints;
use crate::fs::{dataset, ended, make_dataset, now, open_read, space, synced};
use crate::image::Tap;
use crate::memo::{Manner, Memo};
use crate::pool::{CACHE, SimLeaves, find, import, make};
use crate::setup::{Layout, Setup, Workload};
use ops::{PosixOp, Scale, both, compare, draw, is_possible, orphaned_objects};
use tree::{Id, Tree};

/// Operations of a thread.
const OPS: usize = 24;
/// Crashes in a row during a mount.
const CRASHED_MOUNTS: usize = 2;
/// Sizes that give some operations several txgs, and many operations one.
const SCALE: Scale =
    Scale { write: 48 << 10, file: 200 << 10, xattr: 6000, names: 14, split: false };

thread_local! {
    /// Txgs of the transactions that this thread has begun: the first and the last.
    static BEGUN_TXGS: Cell<Option<(Txg, Txg)>> = const { Cell::new(None) };
}

/// The pool's side of a file system.
struct SimHost {
    writer: Arc<Writer>,
    props: Arc<RwProps>,
}

impl Host for SimHost {
    fn begin(&self, bytes: u64, frees: bool, outage: OutagePolicy) -> Result<Tx> {
        let tx = self.writer.begin_wait(bytes, frees)?.with_outage(outage);
        let txg = tx.txg();
        BEGUN_TXGS.with(|g| g.set(Some((g.get().map_or(txg, |(first, _)| first), txg))));
        Ok(tx)
    }

    fn synced(&self, txg: Txg) -> Result<()> {
        synced(&self.writer, txg)
    }

    fn now(&self) -> Time {
        now()
    }

    fn props(&self) -> Arc<RwProps> {
        Arc::clone(&self.props)
    }

    fn space(&self, _: OutagePolicy) -> Result<HostSpace> {
        Ok(space(&self.writer))
    }

    fn check_physical_rewrite(&self) -> Result<()> {
        match features::is_enabled(self.writer.mos(), features::PHYSICAL_REWRITE)? {
            true => Ok(()),
            false => Err(Error::unsupported("feature physical_rewrite is not enabled")),
        }
    }
}

/// The tree after an operation.
#[derive(Clone)]
struct TreeState {
    /// Txgs of the operation's transactions.
    first: Txg,
    last: Txg,
    tree: Arc<Tree>,
}

/// A run that was recorded.
pub struct Recorded {
    /// Vdevs, disks, schedule.
    pub setup: Setup,
    /// The disks, with their log.
    pub disks: SimDisks,
    /// The first event after the file system was set up.
    pub start: u64,
    /// Each thread's trees.
    states: Vec<Vec<TreeState>>,
    /// The operations done.
    pub done: Vec<String>,
    /// A failure during the run itself.
    pub failed: Option<String>,
    memo: Memo,
    /// Txgs whose delete queue was emptied.
    emptied: plain::Mutex<BTreeSet<Txg>>,
}

/// A failure, and how to reproduce it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The run's seed.
    pub seed: u64,
    /// The crash: event and seed; `None` if the run itself failed.
    pub crash: Option<(u64, u64)>,
    /// The error.
    pub what: String,
    /// The operations.
    pub ops: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, crash {:?}: {}", self.seed, self.crash, self.what)?;
        self.ops.iter().try_for_each(|op| writeln!(f, "    {op}"))
    }
}

/// The number of images of a run, and the findings.
#[derive(Debug, Default)]
pub struct Tally {
    /// Crash images judged.
    pub images: u64,
    /// Events after which the power failed.
    pub points: u64,
    /// Txgs found in them.
    pub txgs: u64,
    /// The first failure.
    pub failure: Option<Failure>,
}

/// The setup of a seed.
pub fn setup(seed: u64) -> Setup {
    let mut rng = Rng::stream(seed, 61);
    Setup {
        layout: Layout::ALL[rng.below(Layout::ALL.len() as u64) as usize],
        threads: 1 + rng.below(3) as usize,
        workload: Workload::Mixed,
        ops: OPS,
        ..Setup::varied(seed)
    }
}

/// The dataset's properties for a seed.
fn props(seed: u64) -> RwProps {
    let mut rng = Rng::stream(seed, 62);
    let xattr = if rng.one_in(2) { XattrForm::Dir } else { XattrForm::Sa };
    RwProps { record_size: 4096 << rng.below(6), xattr, ..RwProps::default() }
}

fn open(writer: &Arc<Writer>, seed: u64) -> Result<Arc<FileSystem>> {
    let host = SimHost { writer: Arc::clone(writer), props: Arc::new(props(seed)) };
    FileSystem::open_rw(writer.open_dataset(&dataset())?, Arc::new(host), Io::WAIT)
}

/// Creates a pool, and a file system in it with a directory for each thread.
fn set_up(setup: &Setup, disks: &SimDisks) -> Result<(Arc<Writer>, Arc<FileSystem>, Vec<Tree>)> {
    let writer = make(setup, disks)?;
    make_dataset(&writer)?;
    let fs = open(&writer, setup.seed)?;
    let mut trees = Vec::new();
    for t in 0..setup.threads {
        let top = fs.make(&Caller::root(), fs.root(), format!("t{t}").as_bytes(), &New::dir(0o755));
        trees.push(Tree::new(top?.id));
    }
    let txg = writer.sync()?;
    disks.mark(txg.0);
    Ok((writer, fs, trees))
}

/// The operations of a thread.
#[derive(Default)]
struct ThreadLog {
    states: Vec<TreeState>,
    done: Vec<String>,
}

/// The file that an operation changes, if an `fsync` of that file covers the operation.
fn subject(op: &PosixOp) -> Option<Id> {
    match op {
        PosixOp::Write { id, .. }
        | PosixOp::Append { id, .. }
        | PosixOp::Truncate { id, .. }
        | PosixOp::Punch { id, .. }
        | PosixOp::SetMode { id, .. }
        | PosixOp::SetOwner { id, .. }
        | PosixOp::SetXattr { id, .. }
        | PosixOp::RemoveXattr { id, .. }
        | PosixOp::Link { id, .. } => Some(*id),
        _ => None,
    }
}

/// Runs a thread's operations in its directory.
fn work(
    fs: &FileSystem,
    disks: &SimDisks,
    setup: &Setup,
    thread: usize,
    tree: Tree,
) -> std::result::Result<ThreadLog, String> {
    let mut rng = Rng::stream(setup.seed, 200 + thread as u64);
    let mut now = TreeState { first: Txg::ZERO, last: Txg::ZERO, tree: Arc::new(tree) };
    let mut log = ThreadLog { states: vec![now.clone()], done: Vec::new() };
    let mut changed = BTreeMap::<Id, Txg>::new();
    while log.done.len() < setup.ops {
        let op = draw(&mut rng, &now.tree, &SCALE);
        if !is_possible(&now.tree, &op) {
            continue;
        }
        BEGUN_TXGS.with(|g| g.set(None));
        let next = both(fs, &now.tree, &op);
        let txgs = BEGUN_TXGS.with(Cell::take);
        let next = next.map_err(|e| format!("thread {thread}, {}: {e}", log.done.len()))?;
        let (first, last) = txgs.unwrap_or((now.last, now.last));
        log.done.push(format!("thread {thread}, {op:?}: {}, {txgs:?}", next.is_some()));
        let Some(next) = next else { continue };
        now = TreeState { first, last, tree: Arc::new(next) };
        log.states.push(now.clone());
        if let Some(id) = subject(&op) {
            changed.insert(id, last);
        }
        match op {
            PosixOp::Fsync { id } => changed.get(&id).into_iter().for_each(|txg| disks.mark(txg.0)),
            PosixOp::SyncAll => disks.mark(now.last.0),
            _ => {}
        }
    }
    Ok(log)
}

type PosixRun = (u64, Vec<ThreadLog>);

fn body(setup: &Setup, disks: &SimDisks) -> std::result::Result<PosixRun, String> {
    let ready = set_up(setup, disks).map_err(|e| format!("setting up: {e}"))?;
    let (writer, fs, trees) = ready;
    let start = disks.events();
    let logs: Arc<Mutex<BTreeMap<usize, std::result::Result<ThreadLog, String>>>> = Arc::default();
    let mut threads = Vec::new();
    for (t, tree) in trees.into_iter().enumerate() {
        let (fs, disks, setup, logs) =
            (Arc::clone(&fs), disks.clone(), setup.clone(), Arc::clone(&logs));
        let body = move || {
            let log = work(&fs, &disks, &setup, t, tree);
            logs.lock().insert(t, log);
        };
        let thread = base::rt::spawn(&format!("worker-{t}"), body).map_err(|e| e.to_string())?;
        threads.push(thread);
    }
    threads.into_iter().for_each(|t| {
        t.join();
    });
    let logs = std::mem::take(&mut *logs.lock());
    let logs = logs.into_values().collect::<std::result::Result<Vec<_>, _>>()?;
    for log in &logs {
        if let Some(last) = log.states.last() {
            compare(&fs, &last.tree, true).map_err(|e| format!("in the end: {e}"))?;
        }
    }
    let txg = writer.sync().map_err(|e| format!("last sync: {e}"))?;
    let newest = logs.iter().filter_map(|l| l.states.last()).map(|s| s.last).max();
    disks.mark(newest.unwrap_or(txg).0);
    drop(fs);
    writer.stop();
    Ok((start, logs))
}

/// Runs a seed and records it.
pub fn record(seed: u64) -> Recorded {
    record_as(setup(seed))
}

/// Runs a seed with other vdevs, threads or operations than those that follow from it.
pub fn record_as(setup: Setup) -> Recorded {
    let disks = SimDisks::blank(setup.disks(), setup.layout.disks(), setup.disk_size());
    let (s, d) = (setup.clone(), disks.clone());
    let run = run_with(setup.schedule(), move || body(&s, &d));
    let (failed, (start, logs)) = match ended(run.outcome) {
        Ok(done) => (None, done),
        Err(why) => (Some(why), PosixRun::default()),
    };
    let done = logs.iter().flat_map(|l| l.done.iter().cloned()).collect();
    let states = logs.into_iter().map(|l| l.states).collect();
    let (memo, emptied) = (Memo::default(), plain::Mutex::default());
    Recorded { setup, disks, start, states, done, failed, memo, emptied }
}

/// The trees that are allowed after a crash with `txg` as the last one.
fn allowed(states: &[TreeState], txg: Txg) -> Vec<Arc<Tree>> {
    let complete = states.partition_point(|s| s.last <= txg);
    let part = states[complete..].iter().take_while(|s| s.first <= txg).count();
    states[complete.saturating_sub(1)..complete + part]
        .iter()
        .map(|s| Arc::clone(&s.tree))
        .collect()
}

/// Compares a file system with the allowed trees of each thread; `empty`: the delete queue
/// must be empty.
fn judge_fs(
    fs: &FileSystem,
    trees: &[Vec<Arc<Tree>>],
    empty: bool,
) -> std::result::Result<(), String> {
    let mut known = BTreeSet::new();
    for trees in trees {
        let mut why = String::new();
        let found = trees.iter().find_map(|tree| match compare(fs, tree, false) {
            Ok(objects) => Some(objects),
            Err(e) => {
                why = format!("{why}; or {e}");
                None
            }
        });
        known.extend(found.ok_or_else(|| why.trim_start_matches("; or ").to_owned())?);
    }
    let (orphaned_objects, queued) =
        orphaned_objects(fs, &known).map_err(|e| format!("objects: {e}"))?;
    if !orphaned_objects.is_empty() {
        return Err(format!("objects without names: {orphaned_objects:?}"));
    }
    if empty && queued > 0 {
        return Err(format!("{queued} objects on the delete queue"));
    }
    Ok(())
}

/// Checks the pool's own rules, and its space.
fn judge_pool(spa: &Spa) -> std::result::Result<(), String> {
    let expect = check::Expect::default();
    check::audit(spa, &expect).and_then(|()| check::books(spa)).map_err(|bad| bad.to_string())
}

/// Imports the disks for writing, empties the delete queue, and judges the result.
fn mount(
    setup: &Setup,
    disks: &SimDisks,
    trees: &[Vec<Arc<Tree>>],
) -> std::result::Result<(), String> {
    let fail = |what: &str, e: &dyn fmt::Display| format!("{what}, after a crash: {e}");
    let leaves = SimLeaves::new(disks, &[]);
    let found = find(&leaves).map_err(|e| fail("looking for the pool", &e))?;
    let found = found.ok_or_else(|| "the pool is gone".to_owned())?;
    let cache = Arc::new(BlockCache::of(CACHE).map_err(|e| fail("cache", &e))?);
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let spa = Spa::open_in(&found, &options, &cache, &leaves)
        .map_err(|f| fail("import for writing", &f.error))?;
    let writer = spa.start_writer(setup.writer()).map_err(|e| fail("writing", &e))?;
    let fs = open(&writer, setup.seed).map_err(|e| fail("open", &e))?;
    fs.empty_delete_queue().map_err(|e| fail("emptying the delete queue", &e))?;
    writer.sync().map_err(|e| fail("sync", &e))?;
    judge_fs(&fs, trees, true).map_err(|e| fail("mounted", &e))?;
    drop(fs);
    writer.stop();
    let cache = Arc::new(BlockCache::of(CACHE).map_err(|e| fail("cache", &e))?);
    let spa = import(&leaves, &found, &cache, None).map_err(|e| fail("import", &e))?;
    let fs = open_read(&spa).map_err(|e| fail("reading", &e))?;
    judge_fs(&fs, trees, true).map_err(|e| fail("emptied", &e))?;
    judge_pool(&spa)
}

impl Recorded {
    fn trees(&self, txg: Txg) -> Vec<Vec<Arc<Tree>>> {
        self.states.iter().map(|s| allowed(s, txg)).collect()
    }

    /// Crashes at one event and judges the result; returns the txg found.
    ///
    /// # Errors
    /// The error found.
    pub fn crash(
        &self,
        event: u64,
        seed: u64,
        cache: &Arc<BlockCache>,
    ) -> std::result::Result<Txg, String> {
        let images = self.disks.crash_image(event, seed).map_err(|e| e.to_string())?;
        let acknowledged = self.disks.marks(event).into_iter().max().map_or(Txg::ZERO, Txg);
        let txg = self.judge(&images, cache)?;
        if txg < acknowledged {
            return Err(format!("txg {acknowledged} was acknowledged, but {txg} is the newest"));
        }
        Ok(txg)
    }

    fn judge(&self, images: &[Image], cache: &Arc<BlockCache>) -> std::result::Result<Txg, String> {
        let manner = Manner::default();
        if let Some(txg) = self.memo.import_verdict(images, &manner) {
            return Ok(txg);
        }
        let tap = Arc::new(Tap::default());
        let leaves = SimLeaves::of_images(images, &[], None, &tap);
        let found = find(&leaves).map_err(|e| format!("looking for the pool: {e}"))?;
        let found = found.ok_or_else(|| "there is no pool".to_owned())?;
        let spa = import(&leaves, &found, cache, None).map_err(|e| format!("import: {e}"))?;
        let (txg, root) = (spa.uberblock().txg, spa.uberblock().root_bp);
        let at = |e: String| format!("txg {txg}: {e}");
        let known = self.memo.body(images, &manner, txg, &root);
        if known.is_none() {
            let fs = open_read(&spa).map_err(|e| at(e.to_string()))?;
            judge_fs(&fs, &self.trees(txg), false).map_err(at)?;
            judge_pool(&spa).map_err(at)?;
        }
        let (in_labels, read) = check::split(images, tap.take());
        self.memo.keep(images, &manner, txg, root, in_labels, known.unwrap_or(read));
        drop(spa);
        if self.emptied.lock().insert(txg) {
            self.mount_again(images, txg).map_err(at)?;
        }
        Ok(txg)
    }

    /// Judges a mount of these images, also when the power fails during it.
    fn mount_again(&self, images: &[Image], txg: Txg) -> std::result::Result<(), String> {
        let trees = self.trees(txg);
        let disks = self.mount_once(images.to_vec(), &trees, self.setup.seed ^ txg.0 << 32)?;
        let mut rng = Rng::stream(self.setup.seed, 300 + txg.0);
        let points = disks.crash_points();
        for _ in 0..CRASHED_MOUNTS {
            let event = points[rng.below(points.len() as u64) as usize];
            let seed = rng.below(4);
            let at = |e: String| format!("mount crashed at {event}:{seed}: {e}");
            let images = disks.crash_image(event, seed).map_err(|e| at(e.to_string()))?;
            self.mount_once(images, &trees, rng.next_u64()).map_err(at)?;
        }
        Ok(())
    }

    fn mount_once(
        &self,
        images: Vec<Image>,
        trees: &[Vec<Arc<Tree>>],
        seed: u64,
    ) -> std::result::Result<SimDisks, String> {
        let disks = SimDisks::new(self.setup.disks(), images);
        let (setup, trees, d) = (self.setup.clone(), trees.to_vec(), disks.clone());
        let schedule = Options { max_steps: 50_000_000, ..Options::varied(seed) };
        ended(run_with(schedule, move || mount(&setup, &d, &trees)).outcome)?;
        Ok(disks)
    }

    /// As [`Recorded::crash`], with a cache of its own.
    ///
    /// # Errors
    /// The error found.
    pub fn crash_once(&self, event: u64, seed: u64) -> std::result::Result<Txg, String> {
        let cache = BlockCache::of(CACHE).map_err(|e| e.to_string())?;
        self.crash(event, seed, &Arc::new(cache))
    }

    /// Crashes after every `step`-th event since the file system was set up, in the two
    /// extreme ways and `more` others, on `threads` threads; ends with the first failure.
    pub fn crash_everywhere(&self, step: usize, more: u64, threads: usize) -> Tally {
        let mut tally = Tally::default();
        let failure = |crash, what| {
            let (seed, ops) = (self.setup.seed, self.done.clone());
            Some(Failure { seed, crash, what, ops })
        };
        if let Some(why) = &self.failed {
            tally.failure = failure(None, why.clone());
            return tally;
        }
        let points = self.disks.crash_points().into_iter().filter(|p| *p >= self.start);
        let points: Vec<u64> = points.step_by(step.max(1)).collect();
        let (count, seed) = (points.len() as u64, self.setup.seed);
        let found = CrashPoints { points, seed, more, threads }
            .visit(|event, seed, cache| self.crash(event, seed, cache).map(Some));
        tally.images = found.images;
        tally.points = count;
        tally.txgs = found.txgs;
        if let Some((event, seed, what)) = found.wrong {
            tally.failure = failure(Some((event, seed)), what);
        }
        tally
    }
}
