//! Reads of aged files: what a history of changes costs a reader, and what a rewrite gains.
//!
//! # Theory
//! Three kinds of work age a tree (Conway and others, "File Systems Fated for Senescence?
//! Nonsense, Says Science!", FAST 2017, for the first):
//!
//! * `commits`: a source tree is changed by the checkouts of a thousand commits (`aged_history`),
//!   each followed by a sync;
//! * `rounds`: a tree of packages fills the file system to a level; in each of twelve rounds a
//!   third of the packages is replaced by new versions;
//! * `overwrite`: one file is written in sequence, and then overwritten at random with records
//!   of 8 KiB, the record size of its file system.
//!
//! Then the tree is read in three states: *aged*; *rewritten*, after each file was written anew
//! (`aged_tree::rewrite_file`); and *fresh*, a copy in a new pool (or directory). Each read is
//! cold: the pool is exported, and imported with an empty cache. A tree is read twice: a walk
//! that lists directories and reads attributes, as `du` does; and a walk that reads every byte,
//! as `grep -r` does. The one file of `overwrite` is read in sequence.
//!
//! Device figures are those of the pool's own devices: requests, their mean size, jumps of more
//! than 1 MiB, and the time that a disk with arms would need ([`super::frag_model`]). Requests
//! are those that reach the device, so they include the import's share of the metadata that a
//! read needs, and what prefetch reads ahead. Those of a directory are from `/proc/diskstats`,
//! so they contain what else is read from that disk.
//!
//! The layout score is that of `cenote::layout`: of each file by itself (`files`), and of the walk
//! over the whole tree (`tree`), which also counts the steps from file to file. Most files of a
//! source tree have one block, and therefore no score of their own. The dynamic score is that of
//! the requests: the share that begins where the one before ended.
//!
//! # Invariants
//! * Every read of a tree's files must find exactly the bytes that the history leaves; a
//!   different number ends the bench with an error.

use std::path::{Path, PathBuf};

use base::rt;
use base::{Error, Result};

use super::aged_history::{AgedChange, AgedContent, AgedTreeModel, GitHistory, SyntheticHistory};
use super::aged_report;
use super::aged_target::{AgedDir, AgedLayout, AgedPool, AgedTarget};
use super::aged_tree::rewrite_file;
use super::args::opt;
use super::frag::FragDevices;
use super::frag_model::ArmCounters;
use super::frag_report;
use super::frag_target::{FragPoolSpec, POOL, named_dirs};
use super::frame::Cell;
use super::lab::{self, Disk};
use super::sample::{SampleContent, XorShift};
use super::tidy::Scratch;
use super::write_pool::{patterns, preallocate};
use super::{Bench, BenchResult, Run, Stop};

pub(super) const BENCH: Bench = Bench {
    name: "aged",
    about: "cold reads of files that a history of changes has fragmented",
    words: "",
    options: &[&[
        opt("--work", "LIST", "of commits, rounds, overwrite (all)"),
        opt("--files", "N", "files of the tree of commits (3000)"),
        opt("--commits", "N", "commits (1000)"),
        opt("--git", "REPO", "commits of a git repository instead of synthetic ones"),
        opt("--fill", "PERCENT", "level of the tree of rounds (80)"),
        opt("--rounds", "N", "rounds (12)"),
        opt("--data", "SIZE", "the file of overwrite (a quarter of --size)"),
        opt("--turns", "N", "times that each byte of it is overwritten, on average (2)"),
        opt("--seed", "N", "of the history (1)"),
        opt("--device", "PATH", "directory for the pool, or a file or device to use ($TMPDIR)"),
        opt("--size", "SIZE", "bytes of a pool, and that --fill of --dir refers to (1G)"),
        opt("--mount", "", "through a mount of this process"),
        opt("--dir", "LIST", "[NAME=]DIR,...: mounted directories to use, too"),
        opt("--figures", "DIR", "write each figure to a file: fig1.svg"),
    ]],
    run,
};

/// Bytes of a record of `overwrite`.
const RECORD: u64 = 8 << 10;
/// The record size of trees: the default.
const TREE_RECORD: u64 = 128 << 10;
/// Bytes of one read of a file of a tree, and of the file of `overwrite`.
const TREE_READ: usize = 128 << 10;
const FILE_READ: usize = 1 << 20;
/// The file of `overwrite`.
const FILE: &str = "file";
/// The share of packages that a round replaces.
const ROUND_SHARE: f64 = 1.0 / 3.0;
/// While a tree is filled, the space is looked up so many times.
const FILL_STEPS: u64 = 200;
/// Smallest pool.
const SIZE_MIN: u64 = 64 << 20;

/// What ages a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AgedWork {
    Commits,
    Rounds,
    Overwrite,
}

impl AgedWork {
    const ALL: [AgedWork; 3] = [AgedWork::Commits, AgedWork::Rounds, AgedWork::Overwrite];

    pub(super) fn word(self) -> &'static str {
        match self {
            AgedWork::Commits => "commits",
            AgedWork::Rounds => "rounds",
            AgedWork::Overwrite => "overwrite",
        }
    }
}

/// The states in which a tree is read, in this order.
pub(super) const STATES: [&str; 3] = ["aged", "rewritten", "fresh"];

/// A read of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AgedRead {
    /// Attributes alone.
    Walk,
    /// Every byte, in the order of the directories.
    Grep,
    /// One file in sequence.
    Sequence,
}

impl AgedRead {
    pub(super) fn word(self) -> &'static str {
        match self {
            AgedRead::Walk => "walk",
            AgedRead::Grep => "grep",
            AgedRead::Sequence => "sequence",
        }
    }
}

/// The figures of one cold read.
pub(super) struct AgedPass {
    pub(super) work: AgedWork,
    /// `pool`, `mount`, or the name of a directory.
    pub(super) place: String,
    pub(super) state: &'static str,
    pub(super) read: AgedRead,
    /// Files and directories, or files alone where bytes are read.
    pub(super) entries: u64,
    /// Bytes of files read.
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    pub(super) device: Option<Disk>,
    pub(super) trace: Option<ArmCounters>,
}

/// The layout of a tree in one state.
pub(super) struct AgedLayoutRow {
    pub(super) work: AgedWork,
    pub(super) place: String,
    pub(super) state: &'static str,
    pub(super) layout: AgedLayout,
}

/// All measurements.
#[derive(Default)]
pub(super) struct AgedResults {
    pub(super) passes: Vec<AgedPass>,
    pub(super) layouts: Vec<AgedLayoutRow>,
}

struct AgedSetup {
    files: u64,
    commits: u64,
    git: Option<PathBuf>,
    fill: u64,
    rounds: u64,
    data: u64,
    turns: u64,
    seed: u64,
    size: u64,
    /// Content of the files of trees, and the records of `overwrite`.
    sample: SampleContent,
    records: Vec<Vec<u8>>,
}

/// Where the trees are.
enum AgedPlace {
    /// A pool, read through the library or a mount.
    Pool {
        mount: bool,
    },
    Dir(String, PathBuf),
}

impl AgedPlace {
    fn name(&self) -> &str {
        match self {
            AgedPlace::Pool { mount: false } => "pool",
            AgedPlace::Pool { mount: true } => "mount",
            AgedPlace::Dir(name, _) => name,
        }
    }
}

/// The names in a list of words.
fn works(text: &str) -> BenchResult<Vec<AgedWork>> {
    let one = |word: &str| {
        let known = AgedWork::ALL.into_iter().find(|w| w.word() == word);
        known.ok_or_else(|| Stop::usage(format!("--work: no work '{word}'")))
    };
    text.split(',').map(one).collect()
}

fn run(run: &mut Run) -> BenchResult<()> {
    let args = &run.args;
    args.no_rest()?;
    let works = works(args.text("--work").unwrap_or("commits,rounds,overwrite"))?;
    let size = args.size("--size", 1 << 30, SIZE_MIN..=1 << 50)?;
    let set = AgedSetup {
        files: args.count("--files", 3000, 1..=1 << 24)?,
        commits: args.count("--commits", 1000, 1..=1 << 24)?,
        git: args.text("--git").map(PathBuf::from),
        fill: args.count("--fill", 80, 1..=95)?,
        rounds: args.count("--rounds", 12, 0..=1 << 20)?,
        data: args.size("--data", size / 4, RECORD..=1 << 50)? / RECORD * RECORD,
        turns: args.count("--turns", 2, 0..=1000)?,
        seed: args.count("--seed", 1, 0..=u64::MAX)?,
        size,
        sample: SampleContent::half(),
        records: patterns(&SampleContent::noise(5), RECORD),
    };
    let dirs = args.text("--dir").map(named_dirs).transpose()?.unwrap_or_default();
    let device = args.text("--device").map_or_else(std::env::temp_dir, PathBuf::from);
    let with_pool = dirs.is_empty() || args.text("--device").is_some();
    let mount = args.flag("--mount");
    let mut places = Vec::new();
    if with_pool {
        places.push(AgedPlace::Pool { mount });
    }
    places.extend(dirs.into_iter().map(|(name, dir)| AgedPlace::Dir(name, dir)));
    let devices = devices(run, &device, set.size, with_pool)?;
    run.report.set("size", Cell::Bytes(set.size));
    if works.contains(&AgedWork::Commits) {
        run.report.set("commits", Cell::Count(set.commits));
    }
    if works.contains(&AgedWork::Rounds) {
        run.report.set("fill", Cell::Ratio(set.fill as f64 / 100.0));
        run.report.set("rounds", Cell::Count(set.rounds));
    }
    if works.contains(&AgedWork::Overwrite) {
        run.report.set("data", Cell::Bytes(set.data));
        run.report.set("turns", Cell::Count(set.turns));
    }
    run.report.set("seed", Cell::Count(set.seed));
    let mut results = AgedResults::default();
    let mut pools = 0;
    for work in works {
        for place in &places {
            let mut aging = Aging { set: &set, work, place, devices: &devices, pools };
            aging.measure(run, &mut results)?;
            pools = aging.pools;
        }
    }
    aged_report::fill_in(&mut run.report, &results);
    if let Some(dir) = run.args.text("--figures") {
        frag_report::write_figures(Path::new(dir), &run.report)?;
    }
    Ok(())
}

/// The device of the pools. A file that does not exist is made.
fn devices(run: &mut Run, path: &Path, size: u64, with_pool: bool) -> BenchResult<FragDevices> {
    if !with_pool {
        // Directories alone: it is not used.
        return Ok(FragDevices::Given(path.to_owned()));
    }
    if path.is_dir() {
        lab::check_space(path, size)?;
        return Ok(FragDevices::Own(Scratch::new(path)?));
    }
    if path.exists() {
        run.report.notes.push("the device is used whole; --size is for --dir alone".to_owned());
    } else {
        run.step("making the file", 0, 0)?;
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
        lab::check_space(parent.unwrap_or(Path::new(".")), size)?;
        preallocate(path, size)?;
    }
    run.report.notes.push(format!("{} has the exported pool {POOL}", path.display()));
    Ok(FragDevices::Given(path.to_owned()))
}

/// One kind of work at one place.
struct Aging<'a> {
    set: &'a AgedSetup,
    work: AgedWork,
    place: &'a AgedPlace,
    devices: &'a FragDevices,
    /// Pools made so far.
    pools: usize,
}

impl Aging<'_> {
    fn name(&self, what: &str) -> String {
        format!("{}, {}: {what}", self.work.word(), self.place.name())
    }

    /// A new empty target.
    fn target(&mut self) -> Result<AgedTarget> {
        let mount = match self.place {
            AgedPlace::Dir(_, dir) => return AgedDir::create(dir).map(AgedTarget::Dir),
            AgedPlace::Pool { mount } => *mount,
        };
        let own = self.devices.own();
        let spec = FragPoolSpec {
            devices: vec![self.devices.file("aged.img", self.set.size)?],
            log: None,
            recordsize: if self.work == AgedWork::Overwrite { RECORD } else { TREE_RECORD },
            compression: true,
            // A file that was named has the pool before this one.
            own: own.is_some() || self.pools > 0,
            mount: mount.then(|| own.map_or_else(std::env::temp_dir, Path::to_path_buf)),
            cache_bytes: None,
        };
        self.pools += 1;
        Ok(AgedTarget::Pool(Box::new(AgedPool::create(spec)?)))
    }

    /// Ages a tree, and reads it in its three states.
    fn measure(&mut self, run: &mut Run, results: &mut AgedResults) -> BenchResult<()> {
        let given = self.devices.own().is_none();
        let mut target = self.target()?;
        let mut model = AgedTreeModel::default();
        // Content of a git repository is read from here until the end.
        let clone = match (self.work, &self.set.git) {
            (AgedWork::Commits, Some(_)) => Some(Scratch::new(&std::env::temp_dir())?),
            _ => None,
        };
        match self.work {
            AgedWork::Commits => self.commits(run, &target, &mut model, clone.as_ref())?,
            AgedWork::Rounds => self.rounds(run, &target, &mut model)?,
            AgedWork::Overwrite => self.overwrite(run, &target, &mut model)?,
        }
        self.read(run, &mut target, STATES[0], &model, results)?;
        self.rewrite(run, &target, &model)?;
        self.read(run, &mut target, STATES[1], &model, results)?;
        target.end(false)?;
        let mut target = self.target()?;
        self.copy(run, &target, &model)?;
        self.read(run, &mut target, STATES[2], &model, results)?;
        target.end(given)?;
        Ok(())
    }

    /// Applies changes to a tree and its model.
    fn apply(
        &self,
        target: &AgedTarget,
        model: &mut AgedTreeModel,
        changes: &[AgedChange],
    ) -> BenchResult<()> {
        let (tree, mut data) = (target.tree()?, Vec::new());
        for change in changes {
            match change {
                AgedChange::Write(path, content) => {
                    content.load(&self.set.sample, &mut data)?;
                    tree.write_new(path, &data)?;
                }
                AgedChange::Remove(path) => tree.remove(path)?,
                AgedChange::Rename(from, to) => tree.rename(from, to)?,
            }
            if !model.apply(change) {
                return Err(Error::bug(format!("an impossible change: {change:?}")).into());
            }
        }
        Ok(())
    }

    fn commits(
        &self,
        run: &mut Run,
        target: &AgedTarget,
        model: &mut AgedTreeModel,
        clone: Option<&Scratch>,
    ) -> BenchResult<()> {
        let name = self.name("commits");
        let mut git = match (clone, &self.set.git) {
            (Some(clone), Some(repo)) => {
                Some(GitHistory::new(repo, &clone.path().join("clone"), self.set.commits)?)
            }
            _ => None,
        };
        let count = git.as_ref().map_or(self.set.commits, GitHistory::len);
        let mut synthetic = SyntheticHistory::new(self.set.seed, self.set.files);
        for n in 0..count {
            run.step(&name, n, count)?;
            let changes = match &mut git {
                Some(git) => git.commit(model)?.unwrap_or_default(),
                None => synthetic.commit(),
            };
            self.apply(target, model, &changes)?;
            target.sync()?;
        }
        Ok(())
    }

    fn rounds(
        &self,
        run: &mut Run,
        target: &AgedTarget,
        model: &mut AgedTreeModel,
    ) -> BenchResult<()> {
        let whole = target.available()?.unwrap_or(self.set.size);
        let wanted = u64::try_from(u128::from(whole) * u128::from(self.set.fill) / 100);
        let wanted = wanted.unwrap_or(u64::MAX);
        // Directories as of files of 16 KiB.
        let mut history = SyntheticHistory::new(self.set.seed, (wanted >> 14).max(1));
        let (mut used, mut written) = (0, 0);
        while used < wanted {
            run.step(&self.name("filling, MiB"), used >> 20, wanted >> 20)?;
            // The last steps become short, so that the level is not exceeded.
            let step = (wanted / FILL_STEPS).min((wanted - used) / 2).max(TREE_RECORD);
            let mut left = i64::try_from(step).unwrap_or(i64::MAX);
            while left > 0 {
                let change = history.add();
                if let AgedChange::Write(_, AgedContent::Sample { size, .. }) = &change {
                    written += size;
                    left -= size.cast_signed();
                }
                self.apply(target, model, &[change])?;
            }
            target.sync()?;
            used = match target.available()? {
                Some(available) => whole.saturating_sub(available),
                None => written,
            };
        }
        for round in 0..self.set.rounds {
            run.step(&self.name("rounds"), round, self.set.rounds)?;
            // Space that a version frees is available some txgs later.
            for part in history.upgrade(ROUND_SHARE).chunks(1000) {
                self.apply(target, model, part)?;
                run.step(&self.name("rounds"), round, self.set.rounds)?;
            }
            target.sync()?;
        }
        Ok(())
    }

    /// Writes the file of `overwrite` in sequence.
    fn fill(&self, run: &mut Run, target: &AgedTarget) -> BenchResult<()> {
        let tree = target.tree()?;
        let records = self.set.data / RECORD;
        tree.write_new(FILE, &[])?;
        let mut at = 0;
        while at < records {
            run.step(&self.name("filling, MiB"), (at * RECORD) >> 20, self.set.data >> 20)?;
            let end = (at + 1024).min(records);
            let record = |n: u64| (n * RECORD, self.record(n));
            tree.overwrite(FILE, &mut (at..end).map(record))?;
            at = end;
        }
        target.sync()?;
        Ok(())
    }

    fn record(&self, n: u64) -> &[u8] {
        &self.set.records[n as usize % self.set.records.len()]
    }

    fn overwrite(
        &self,
        run: &mut Run,
        target: &AgedTarget,
        model: &mut AgedTreeModel,
    ) -> BenchResult<()> {
        self.fill(run, target)?;
        let content = AgedContent::Sample { size: self.set.data, seed: 0 };
        model.apply(&AgedChange::Write(FILE.to_owned(), content));
        let records = self.set.data / RECORD;
        let writes = records * self.set.turns;
        let mut rng = XorShift::new(self.set.seed);
        let tree = target.tree()?;
        let mut done = 0;
        while done < writes {
            run.step(&self.name("overwriting"), done, writes)?;
            let end = (done + (records / 64).max(1)).min(writes);
            let random = |n: u64| (rng.below(records) * RECORD, self.record(n));
            tree.overwrite(FILE, &mut (done..end).map(random))?;
            target.sync()?;
            done = end;
        }
        Ok(())
    }

    /// Writes every file anew.
    fn rewrite(
        &self,
        run: &mut Run,
        target: &AgedTarget,
        model: &AgedTreeModel,
    ) -> BenchResult<()> {
        let tree = target.tree()?;
        let mut buffer = vec![0; FILE_READ];
        let total = model.0.len() as u64;
        for (n, path) in (0..).zip(model.0.keys()) {
            run.step(&self.name("rewriting"), n, total)?;
            rewrite_file(tree, path, &mut buffer)?;
        }
        target.sync()?;
        Ok(())
    }

    /// Writes the tree of the model.
    fn copy(&self, run: &mut Run, target: &AgedTarget, model: &AgedTreeModel) -> BenchResult<()> {
        if self.work == AgedWork::Overwrite {
            return self.fill(run, target);
        }
        let (tree, mut data) = (target.tree()?, Vec::new());
        let total = model.0.len() as u64;
        for (n, (path, content)) in (0..).zip(&model.0) {
            run.step(&self.name("copying"), n, total)?;
            content.load(&self.set.sample, &mut data)?;
            tree.write_new(path, &data)?;
        }
        target.sync()?;
        Ok(())
    }

    /// Reads the tree in one state, cold.
    fn read(
        &self,
        run: &mut Run,
        target: &mut AgedTarget,
        state: &'static str,
        model: &AgedTreeModel,
        results: &mut AgedResults,
    ) -> BenchResult<()> {
        let reads: &[AgedRead] = match self.work {
            AgedWork::Overwrite => &[AgedRead::Sequence],
            _ => &[AgedRead::Walk, AgedRead::Grep],
        };
        for &read in reads {
            run.step(&self.name(&format!("{state}, {}", read.word())), 0, 0)?;
            if !target.cold()? {
                let text = format!("{}: only root may drop the kernel's caches", self.place.name());
                if !run.report.notes.contains(&text) {
                    run.report.notes.push(text);
                }
            }
            let pass = self.pass(run, target, state, read)?;
            let files = model.0.len() as u64;
            let size = |content: &AgedContent| content.size();
            let bytes = model.0.values().map(size).sum::<Result<u64>>()?;
            if read != AgedRead::Walk && (pass.entries, pass.bytes) != (files, bytes) {
                let text = format!(
                    "{}: {} bytes in {} files were read of {bytes} bytes in {files} files",
                    self.name(state),
                    pass.bytes,
                    pass.entries
                );
                return Err(Error::corrupt(text).into());
            }
            results.passes.push(pass);
        }
        if let Some(layout) = target.layout()? {
            let (work, place) = (self.work, self.place.name().to_owned());
            results.layouts.push(AgedLayoutRow { work, place, state, layout });
        }
        Ok(())
    }

    fn pass(
        &self,
        run: &mut Run,
        target: &AgedTarget,
        state: &'static str,
        read: AgedRead,
    ) -> BenchResult<AgedPass> {
        let name = self.name(&format!("{state}, {}", read.word()));
        let tree = target.tree()?;
        let size = if read == AgedRead::Sequence { FILE_READ } else { TREE_READ };
        let mut buffer = vec![0; size];
        let (mut files, mut bytes) = (0, 0);
        // A signal ends the walk with an error that is not shown.
        let mut stopped = None;
        let (before, began) = (target.counters()?, rt::now());
        let walked = tree.walk(&mut |path, _| {
            files += 1;
            if let Err(stop) = run.step(&name, files, 0) {
                stopped = Some(stop);
                return Err(Error::bug("interrupted"));
            }
            if read != AgedRead::Walk {
                bytes += tree.read(path, &mut buffer, &mut |_| Ok(()))?;
            }
            Ok(())
        });
        let seconds = began.elapsed().as_secs_f64().max(1e-9);
        if let Some(stop) = stopped {
            return Err(stop);
        }
        let entries = walked?;
        let (device, trace) = target.counters()?.since(&before);
        Ok(AgedPass {
            work: self.work,
            place: self.place.name().to_owned(),
            state,
            read,
            entries: if read == AgedRead::Walk { entries } else { files },
            bytes,
            seconds,
            device,
            trace,
        })
    }
}

#[cfg(test)]
#[path = "aged_tests.rs"]
mod tests;
