//! Changes of the vdev tree under a workload, with crashes meanwhile.
//!
//! # Theory
//! Threads write to a pool while another one takes disks offline and back, attaches, detaches
//! and replaces them, also sequentially, and the writer resilvers what they miss. Then the power
//! fails after every event. Each time the pool must have the content of all txgs up to its
//! uberblock's, and the tree of before or after the change that was under way; a change that was
//! acknowledged stays. Some crashed pools are then opened for writing, and the resilver, which
//! begins or continues by itself, must end; after that every copy and column of every block must
//! be right. So a txg that a DTL lacks is found, and a block that the resilver skipped.
//!
//! # Invariants
//! * No scrub follows a sequential rebuild here: its copies are judged as they are.
//! * Only this module changes the tree during a run.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::rt::Mutex;
use base::rt::sim::{Options, Outcome, Rng, run_with};
use base::{Error, ErrorKind, Guid, Result, Txg};
use device::sim::{Image, SimDisks};
use ondisk::config::{PoolConfig, VdevConfig, VdevType};
use ondisk::scan::ScanState;
use spa::engine::{AttachMode, NewMember, Offline, OfflineMode, RebuildTuning, ScanLimits, Writer};
use spa::write::topology::{LeafFacts, NewKind, NewVdev, build_member};
use spa::{ImportOptions, Leaves, Purpose, Spa};
use zio::BlockCache;

use crate::check::{Expect, audit, judge};
use crate::driver::Driver;
use crate::everywhere::CrashPoints;
use crate::memo::{Manner, Memo};
use crate::model::Model;
use crate::ops::plan;
use crate::pool::{CACHE, SimLeaves, find, import, make, path_of};
use crate::run::CrashTally;
use crate::setup::{Layout, Setup};

/// Disks beside those of the layout.
const FREE_DISKS: usize = 2;
/// Changes of a run.
const CHANGES: usize = 8;
/// Time after which a resilver must have ended: it may be one of many.
const RECOVERY_MAX: Duration = Duration::from_secs(600);
/// Rebuilds take many steps, and no scrub repairs what they leave out.
const REBUILDS: RebuildTuning = RebuildTuning { segment: 64 << 10, limit: 64 << 10, scrub: false };
/// One crashed pool in so many is opened for writing, if a resilver was under way.
const REOPENED_RESILVER: u64 = 4;
/// One crashed pool in so many is opened for writing, if none was.
const REOPENED: u64 = 32;

/// A bug to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeBug {
    /// A new leaf does not miss what was planned before the txg that attaches it.
    ShortDtl,
    /// What a leaf misses is not stored.
    LostDtl,
    /// A leaf that is offline forgets the first txg that it misses.
    ForgottenRange,
    /// The resilver leaves out some blocks.
    SkippedBlocks,
    /// A walk of the resilver that was interrupted continues one block too far.
    OneTooFar,
    /// A leaf that was away during the resilver counts as repaired.
    ExcisedLeaf,
    /// A rebuild leaves a metaslab out.
    SkippedMetaslab,
}

/// The leaves of a pool's tree: kind of the parent, disk, and whether it is offline.
type TreeShape = Vec<(String, String, bool)>;

fn shape(config: &PoolConfig) -> TreeShape {
    fn below(vdev: &VdevConfig, out: &mut TreeShape) {
        for child in &vdev.children {
            let path = child.path.as_ref().and_then(|p| p.to_str());
            if let Some(path) = path.filter(|_| child.kind.is_leaf()) {
                let away = child.leaf.offline || child.leaf.faulted;
                out.push((vdev.kind.name().to_owned(), path.to_owned(), away));
            }
            below(child, out);
        }
    }
    let mut out = Vec::new();
    below(&config.vdev_tree, &mut out);
    out.sort();
    out
}

/// A change of the tree: the events around it, and the tree after it.
#[derive(Clone, Debug)]
struct Step {
    what: String,
    began: u64,
    ended: u64,
    after: TreeShape,
}

/// A recorded run.
pub struct TreeRun {
    setup: Setup,
    disks: SimDisks,
    model: Arc<Model>,
    steps: Vec<Step>,
    memo: Memo,
    /// Requests that were carried out, by kind.
    pub done: BTreeSet<&'static str>,
    /// Why the run itself failed.
    pub failed: Option<String>,
}

/// The scan's limits of a run. Slices are small, so that many crashes find a resilver at a stored
/// position. The time between checkpoints differs: what was gathered is read at once, after a
/// few txgs, or at the end.
fn scan_limits(seed: u64) -> ScanLimits {
    ScanLimits {
        memory: 1 << 20,
        slice_blocks: 4 + usize::try_from(seed % 5).unwrap_or(0) * 8,
        checkpoint: Duration::from_millis(*[0, 20, 2000].get(seed as usize % 3).unwrap_or(&0)),
        ..ScanLimits::default()
    }
}

fn is_settled(config: &PoolConfig) -> bool {
    !config.vdev_tree.walk().any(|v| v.kind == VdevType::Replacing)
}

/// The run of the changes.
struct TreeHand {
    writer: Arc<Writer>,
    disks: SimDisks,
    leaves: SimLeaves,
    rng: Rng,
    steps: Vec<Step>,
    done: BTreeSet<&'static str>,
}

impl TreeHand {
    fn config(&self) -> Arc<PoolConfig> {
        self.writer.published().config
    }

    /// Guids and paths of the leaves.
    fn members(&self) -> Vec<(Guid, String)> {
        let config = self.config();
        let path = |v: &VdevConfig| v.path.as_ref()?.to_str().map(str::to_owned);
        config.vdev_tree.leaves().filter_map(|v| Some((v.guid, path(v)?))).collect()
    }

    fn free_disk(&mut self) -> Option<usize> {
        let used: Vec<String> = self.members().into_iter().map(|m| m.1).collect();
        let free = |disk: &usize| !used.contains(&path_of(*disk).display().to_string());
        let free: Vec<usize> = (0..self.disks.count()).filter(free).collect();
        let at = self.rng.below(free.len().max(1) as u64) as usize;
        free.get(at).copied()
    }

    fn leaf(&mut self) -> Guid {
        let members = self.members();
        let at = self.rng.below(members.len().max(1) as u64) as usize;
        members.get(at).map_or(Guid(0), |m| m.0)
    }

    fn attach(&mut self, old: Guid, mode: AttachMode, sequential: bool) -> Result<()> {
        let Some(disk) = self.free_disk() else {
            return Err(Error::busy("no disk is free"));
        };
        let path = path_of(disk);
        let opened = self.leaves.open(&path, Purpose::Write)?.device;
        let facts = |_: &Path| Ok(LeafFacts::of(&*opened, false));
        let taken: Vec<Guid> = self.config().vdev_tree.walk().map(|v| v.guid).collect();
        let new = NewVdev::new(NewKind::File(path));
        let (vdev, facts) = build_member(&new, self.writer.txgs().open_txg(), taken, &facts)?;
        let new =
            NewMember { vdev, device: Some(opened), facts: Some(facts), ashift: None, sequential };
        self.writer.attach(old, new, mode, None)
    }

    /// Whether no leaf misses anything, and each replacement has ended.
    fn is_repaired(&self) -> bool {
        self.writer.zio().tree().resilver_range().is_none()
            && self.writer.running_scan().is_none()
            && !self.writer.is_rebuilding()
            && is_settled(&self.config())
    }

    /// Takes a leaf back, unless a replacement that ended meanwhile removed it.
    fn back(&self, leaf: Guid) -> Result<()> {
        match self.writer.online(leaf, &self.leaves, None) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Takes everything back that is away, and waits until the resilver has ended.
    fn recover(&mut self) -> Result<()> {
        let away = |v: &&VdevConfig| v.leaf.offline || v.leaf.faulted;
        let config = self.config();
        for leaf in config.vdev_tree.leaves().filter(away) {
            self.back(leaf.guid)?;
        }
        // A leaf that is away only in memory.
        for (guid, _) in self.members() {
            let tree = self.writer.zio().tree();
            if tree.find(guid).is_some_and(|node| !node.readable()) {
                self.back(guid)?;
            }
        }
        let began = base::rt::now();
        while !self.is_repaired() {
            if began.elapsed() > RECOVERY_MAX {
                let behind = self.writer.zio().tree().resilver_range();
                let scan = self.writer.scan_progress();
                let text = format!("the resilver does not end: {behind:?}, {scan:?}");
                return Err(Error::bug(text));
            }
            base::rt::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Makes one change; a request that is refused is no failure, and changes nothing.
    fn change(&mut self) -> Result<()> {
        let (began, before) = (self.disks.events(), shape(&self.config()));
        let leaf = self.leaf();
        let (replace, attach) = (AttachMode::Replace, AttachMode::Attach);
        let (what, done) = match self.rng.below(16) {
            0 | 1 => ("offline", self.writer.offline(leaf, Offline::default(), None)),
            2 => {
                let how = Offline { temporary: true, ..Offline::default() };
                ("offline -t", self.writer.offline(leaf, how, None))
            }
            3 => {
                let how = Offline { mode: OfflineMode::Fault, temporary: false };
                ("offline -f", self.writer.offline(leaf, how, None))
            }
            4 => ("online", self.writer.online(leaf, &self.leaves, None)),
            5 | 6 => ("replace", self.attach(leaf, replace, false)),
            7 | 8 => ("attach", self.attach(leaf, attach, false)),
            12 => ("replace -s", self.attach(leaf, replace, true)),
            13 => ("attach -s", self.attach(leaf, attach, true)),
            9 | 14 | 15 => ("detach", self.writer.detach(leaf, None)),
            _ => ("recover", self.recover()),
        };
        let after = shape(&self.config());
        match done {
            Ok(()) => drop(self.done.insert(what)),
            Err(e) if is_refusal(&e) => {
                if !is_or_becomes(&after, &before) {
                    let text = format!("{what} was refused ({e}), but changed the pool");
                    return Err(Error::bug(text));
                }
            }
            Err(e) => return Err(Error::new(e.kind(), format!("{what}: {e}"))),
        }
        let ended = self.disks.events();
        self.steps.push(Step { what: what.to_owned(), began, ended, after });
        Ok(())
    }
}

/// Whether a tree is another one, or what is left of it when replacements have ended: they end
/// by themselves, as soon as their resilver has.
fn is_or_becomes(found: &TreeShape, from: &TreeShape) -> bool {
    let replacing = |kind: &str| kind == "replacing";
    let came = |leaf: &(String, String, bool)| {
        from.iter().any(|f| f == leaf || f.1 == leaf.1 && f.2 == leaf.2 && replacing(&f.0))
    };
    found.iter().all(came) && from.iter().all(|f| replacing(&f.0) || found.contains(f))
}

fn is_refusal(e: &Error) -> bool {
    let kinds = [ErrorKind::Busy, ErrorKind::Unsupported, ErrorKind::Invalid, ErrorKind::NotFound];
    kinds.contains(&e.kind())
}

fn plant(writer: &Writer, bug: Option<TreeBug>) {
    let (tree, scan) = (&writer.plants.topology, &writer.plants.scan);
    let switch = match bug {
        None => return,
        Some(TreeBug::ShortDtl) => &tree.short_dtl,
        Some(TreeBug::LostDtl) => &tree.lost_dtl,
        Some(TreeBug::ForgottenRange) => &tree.forgotten_range,
        Some(TreeBug::SkippedBlocks) => &scan.skip_blocks,
        Some(TreeBug::OneTooFar) => &scan.one_too_far,
        Some(TreeBug::ExcisedLeaf) => &scan.excise_all,
        Some(TreeBug::SkippedMetaslab) => &writer.plants.rebuild.skip_some,
    };
    switch.store(true, Relaxed);
}

type BodyResult = (Vec<Step>, BTreeSet<&'static str>);

fn body(
    setup: &Setup,
    bug: Option<TreeBug>,
    disks: &SimDisks,
    model: &Arc<Model>,
) -> Result<BodyResult, String> {
    let fail = |what: &str, e: &dyn std::fmt::Display| format!("{what}: {e}");
    let writer = make(setup, disks).map_err(|e| fail("making the pool", &e))?;
    writer.set_scan_limits(scan_limits(setup.seed));
    plant(&writer, bug);
    writer.set_rebuild_tuning(REBUILDS);
    let driver = Driver::new(Arc::clone(&writer), disks, Arc::clone(model))
        .map_err(|e| fail("start", &e))?;
    driver.add_root().map_err(|e| fail("root dataset", &e))?;
    driver.share_objects().map_err(|e| fail("shared objects", &e))?;
    driver.sync().map_err(|e| fail("first sync", &e))?;
    let driver = Arc::new(driver);
    let (over, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let failed: Arc<Mutex<Option<String>>> = Arc::default();
    let mut threads = Vec::new();
    for (t, ops) in plan(setup).into_iter().enumerate() {
        let (driver, over) = (Arc::clone(&driver), Arc::clone(&over));
        let (failed, rounds) = (Arc::clone(&failed), Arc::clone(&rounds));
        let body = move || {
            let mut hand = driver.hand(t);
            for (number, op) in ops {
                if over.load(Relaxed) || failed.lock().is_some() {
                    return;
                }
                if let Err(e) = driver.run(&mut hand, &op) {
                    failed.lock().get_or_insert(format!("operation {number}, {op:?}: {e}"));
                }
                rounds.fetch_add(1, Relaxed);
            }
        };
        let thread = base::rt::spawn(&format!("worker-{t}"), body);
        threads.push(thread.map_err(|e| fail("thread", &e))?);
    }
    let first = Step {
        what: "create".to_owned(),
        began: 0,
        ended: disks.events(),
        after: shape(&writer.published().config),
    };
    let mut hand = TreeHand {
        writer: Arc::clone(&writer),
        disks: disks.clone(),
        leaves: SimLeaves::new(disks, &[]),
        rng: Rng::stream(setup.seed, 71),
        steps: vec![first],
        done: BTreeSet::new(),
    };
    for number in 0..CHANGES {
        hand.change().map_err(|e| fail(&format!("change {number}"), &e))?;
    }
    let began = disks.events();
    hand.recover().map_err(|e| fail("at the end", &e))?;
    hand.steps.push(Step {
        what: "recover".to_owned(),
        began,
        ended: disks.events(),
        after: shape(&writer.published().config),
    });
    over.store(true, Relaxed);
    for thread in threads {
        thread.join();
    }
    if let Some(why) = failed.lock().take() {
        return Err(why);
    }
    driver.sync().map_err(|e| fail("last sync", &e))?;
    writer.stop();
    Ok((hand.steps, hand.done))
}

/// The layouts whose trees are changed.
pub fn layouts() -> Vec<Layout> {
    let mut all = vec![Layout::Single, Layout::Mirror, Layout::Classes, Layout::Draid];
    all.extend([Layout::Wide(1, 3), Layout::Wide(2, 4), Layout::Wide(2, 5), Layout::Wide(3, 5)]);
    all.push(Layout::Mixed);
    all
}

/// Runs changes of the tree beside the workload of a setup, and records them.
pub fn record(setup: &Setup, bug: Option<TreeBug>) -> TreeRun {
    let count = setup.layout.disks() + FREE_DISKS;
    let disks = SimDisks::blank(setup.disks(), count, setup.disk_size());
    let model = Arc::new(Model::default());
    let (s, d, m) = (setup.clone(), disks.clone(), Arc::clone(&model));
    let run = run_with(setup.schedule(), move || body(&s, bug, &d, &m));
    let (failed, (steps, done)) = match run.outcome {
        Outcome::Done(Ok(ended)) => (None, ended),
        Outcome::Done(Err(why)) => (Some(why), BodyResult::default()),
        other => (Some(format!("{:?}", other.map(|_| ()))), BodyResult::default()),
    };
    TreeRun { setup: setup.clone(), disks, model, steps, memo: Memo::default(), done, failed }
}

/// Opens a crashed pool for writing, and resilvers it.
fn repaired(setup: &Setup, images: &[Image]) -> Result<Vec<Image>, String> {
    let disks = SimDisks::new(setup.disks(), images.to_vec());
    let (s, d) = (setup.clone(), disks.clone());
    let body = move || -> Result<(), String> {
        let leaves = SimLeaves::new(&d, &[]);
        let found = find(&leaves).map_err(|e| e.to_string())?.ok_or("the pool is gone")?;
        let cache = BlockCache::of(CACHE).map_err(|e| e.to_string())?;
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let spa = Spa::open_in(&found, &options, &Arc::new(cache), &leaves)
            .map_err(|failure| format!("import for writing: {}", failure.error))?;
        let writer = spa.start_writer(s.writer()).map_err(|e| format!("writing: {e}"))?;
        writer.set_scan_limits(scan_limits(s.seed));
        writer.set_rebuild_tuning(REBUILDS);
        let mut hand = TreeHand {
            writer: Arc::clone(&writer),
            disks: d.clone(),
            leaves,
            rng: Rng::stream(s.seed, 72),
            steps: Vec::new(),
            done: BTreeSet::new(),
        };
        hand.recover().map_err(|e| format!("resilver after a crash: {e}"))?;
        writer.stop();
        Ok(())
    };
    let schedule = Options { max_steps: 50_000_000, ..Options::varied(setup.seed) };
    match run_with(schedule, body).outcome {
        Outcome::Done(done) => done?,
        other => return Err(format!("after a crash: {:?}", other.map(|_| ()))),
    }
    Ok(disks.current())
}

impl TreeRun {
    /// The trees that a crash at an event may leave.
    fn allowed(&self, event: u64) -> Vec<&Step> {
        let last = self.steps.iter().rposition(|step| step.ended <= event);
        let mut out: Vec<&Step> = last.and_then(|at| self.steps.get(at)).into_iter().collect();
        out.extend(self.steps.iter().filter(|s| s.began <= event && event < s.ended));
        out
    }

    fn crash(&self, event: u64, seed: u64, cache: &Arc<BlockCache>) -> Result<Option<Txg>, String> {
        let images = self.disks.crash_image(event, seed).map_err(|e| e.to_string())?;
        let acknowledged = self.disks.marks(event).into_iter().max().map(Txg);
        let manner = Manner { without: Vec::new(), damage: true };
        let expect = Expect { acknowledged, manner, ..Expect::default() };
        let txg = judge(&images, &self.model, &expect, cache, &self.memo)?;
        if txg.is_none() {
            return Ok(None);
        }
        let every = match self.judge_tree(event, &images, cache)? {
            true => REOPENED_RESILVER,
            false => REOPENED,
        };
        // A way to crash of its own for each event, so that all of them occur.
        if event.wrapping_add(seed).is_multiple_of(every) {
            let images = repaired(&self.setup, &images)?;
            self.judge_copies(&images, cache)?;
        }
        Ok(txg)
    }

    /// Checks the tree; whether a resilver is under way.
    fn judge_tree(
        &self,
        event: u64,
        images: &[Image],
        cache: &Arc<BlockCache>,
    ) -> Result<bool, String> {
        let spa = open(images, cache)?;
        let scan = dsl::write::scan::load(spa.mos()).map_err(|e| format!("the scan: {e}"))?;
        let resilvers = scan.is_some_and(|s| s.state == ScanState::Scanning);
        let (found, allowed) = (shape(spa.config()), self.allowed(event));
        // "recover" consists of several changes.
        let several = allowed.iter().any(|s| s.what == "recover" && event < s.ended);
        if several
            || allowed.is_empty()
            || allowed.iter().any(|step| is_or_becomes(&found, &step.after))
        {
            return Ok(resilvers);
        }
        Err(format!("the tree is {found:?}, should be one of {allowed:?}"))
    }

    /// Every copy and column is right.
    fn judge_copies(&self, images: &[Image], cache: &Arc<BlockCache>) -> Result<(), String> {
        let spa = open(images, cache)?;
        audit(&spa, &Expect::default()).map_err(|bad| format!("after the resilver: {bad}"))
    }

    /// The disks after a crash.
    ///
    /// # Errors
    /// An event that is not in the log.
    pub fn image(&self, event: u64, seed: u64) -> Result<Vec<Image>, String> {
        self.disks.crash_image(event, seed).map_err(|e| e.to_string())
    }

    /// The disks at the end.
    pub fn current(&self) -> Vec<Image> {
        self.disks.current()
    }

    /// Crashes everywhere.
    ///
    /// # Errors
    /// The first error found.
    pub fn crash_everywhere(&self, stride: usize, threads: usize) -> Result<CrashTally, String> {
        let name = || format!("tree of {}", self.setup.command());
        if let Some(why) = &self.failed {
            return Err(format!("{}: {why}", name()));
        }
        let cache = Arc::new(BlockCache::of(CACHE).map_err(|e| e.to_string())?);
        self.judge_copies(&self.current(), &cache).map_err(|e| format!("{}: {e}", name()))?;
        let points: Vec<u64> =
            self.disks.crash_points().into_iter().step_by(stride.max(1)).collect();
        let count = points.len() as u64;
        let found = CrashPoints { points, seed: self.setup.seed, more: 0, threads }
            .visit(|event, seed, cache| self.crash(event, seed, cache));
        if let Some((event, seed, what)) = found.wrong {
            let steps = self.steps.iter().map(|s| format!("{}..{} {}", s.began, s.ended, s.what));
            let steps: Vec<String> = steps.collect();
            return Err(format!("{}, crash {event}:{seed}: {what}; {}", name(), steps.join(", ")));
        }
        Ok(CrashTally { images: found.images, points: count, txgs: found.txgs, failure: None })
    }
}

fn open(images: &[Image], cache: &Arc<BlockCache>) -> Result<Spa, String> {
    let leaves = SimLeaves::of_images(images, &[], None, &Arc::default());
    let found = find(&leaves).map_err(|e| e.to_string())?.ok_or("the pool is gone")?;
    import(&leaves, &found, cache, None).map_err(|e| format!("import: {e}"))
}
