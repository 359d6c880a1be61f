//! Throughput of random overwrites by fill level, and what they do to a pool's free space.
//!
//! # Theory
//! For each level a new pool (recordsize 8K) is filled in sequence with incompressible data and
//! then overwritten at random by several writers ([`frag_load`]). A level is
//! a share of the bytes that the empty file system can hold: capacity less slop. Steady state is
//! the mean of the last 50 samples, after each byte was overwritten twice on average; a level
//! that its time limit ends earlier is marked as not steady.
//!
//! A curve is a kind of pool, or a directory of another file system:
//!
//! * `overwrite`: one top-level vdev, compression on, calls of the library in this process;
//! * `fresh`: the same, but writers append to new files, so nothing is overwritten;
//! * `uncompressed`: compression off;
//! * `tops`: three top-level vdevs;
//! * `log`: a separate log device. The writes are not synchronous, so the log stays idle;
//! * `mount`: through a mount of this process, with the kernel's page cache;
//! * `--dir`: files of a mounted directory.
//!
//! Device figures are those of the pool's own devices. Those of a directory are from
//! `/proc/diskstats`, so they contain what else is written to that disk, and they are missing
//! where the directory's device is not listed there.
//!
//! With `--defrag`, each pool is defragmented after its level ([`frag_defrag`]).
//!
//! Overwrites are not synchronous. Levels smaller than the limit of dirty data (a tenth of
//! memory, or the kernel's `dirty_ratio`) are overwritten mostly in memory, which the write
//! amplification shows: it is far below 1. Figures of disks need `--size` above that.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base::Result;
use base::rt::{self, Instant};
use cenote::space_map::PoolMap;

use super::args::opt;
use super::frag_defrag::{self, FragDefrag};
use super::frag_load::{self, OverwriteLoad, OverwriteResult, OverwriteTarget, STEADY_SAMPLES};
use super::frag_report;
use super::frag_target::{DirFiles, FragPool, FragPoolSpec, FragSpace, POOL, named_dirs};
use super::frame::Cell;
use super::sample::SampleContent;
use super::tidy::Scratch;
use super::write_pool::{patterns, preallocate};
use super::{Bench, BenchResult, Run, Stop, lab};

pub(super) const BENCH: Bench = Bench {
    name: "fragmentation",
    about: "random overwrites of pools by fill level, with maps of metaslabs",
    words: "",
    options: &[&[
        opt("--device", "PATH", "directory for the pool, or a file or device to use ($TMPDIR)"),
        opt("--dir", "LIST", "[NAME=]DIR,...: mounted directories to overwrite, too"),
        opt("--size", "SIZE", "bytes of a pool, and that levels of --dir refer to (1G)"),
        opt("--fill", "LIST", "levels, percent (10,25,50,75,90)"),
        opt("--writers", "N", "threads that overwrite (8)"),
        opt("--minutes", "N", "longest time of a level (10)"),
        opt("--sample", "TIME", "time between two samples (1)"),
        opt(
            "--curves",
            "LIST",
            "of overwrite, fresh, uncompressed, tops, log, mount (all but mount)",
        ),
        opt("--memory", "SIZE", "limit of the pool's cache (as usual: half of the memory)"),
        opt(
            "--defrag",
            "TIME",
            "then defragment the pools, and overwrite for so long before and afterwards",
        ),
        opt("--figures", "DIR", "write each figure to a file: fig1.svg, fig3-CURVE.svg"),
    ]],
    run,
};

/// Bytes of a record and of an overwrite.
const RECORD: u64 = 8 << 10;
/// Files that are overwritten.
const FILES: usize = 4;
/// Top-level vdevs of the curve `tops`.
const TOPS: u64 = 3;
/// Smallest device of a pool.
const DEVICE_MIN: u64 = 64 << 20;
/// The curves of pools; those that need several devices are marked.
const CURVES: [(&str, bool); 6] = [
    ("overwrite", false),
    ("fresh", false),
    ("uncompressed", false),
    ("tops", true),
    ("log", true),
    ("mount", false),
];

/// What is overwritten.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FragCurve {
    Pool(&'static str),
    Dir(String, PathBuf),
}

impl FragCurve {
    /// Its name, if it is one of pools.
    fn of_pool(&self) -> Option<&'static str> {
        match self {
            FragCurve::Pool(name) => Some(name),
            FragCurve::Dir(..) => None,
        }
    }
}

/// Where the pools are.
pub(super) enum FragDevices {
    /// Files in a temporary directory.
    Own(Scratch),
    /// A file or block device, used whole.
    Given(PathBuf),
}

impl FragDevices {
    /// Makes a file of `size` bytes unless it is there.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn file(&self, name: &str, size: u64) -> Result<PathBuf> {
        match self {
            FragDevices::Own(dir) => {
                let path = dir.path().join(name);
                preallocate(&path, size.max(DEVICE_MIN))?;
                Ok(path)
            }
            FragDevices::Given(path) => Ok(path.clone()),
        }
    }

    /// The temporary directory.
    pub(super) fn own(&self) -> Option<&Path> {
        match self {
            FragDevices::Own(dir) => Some(dir.path()),
            FragDevices::Given(_) => None,
        }
    }
}

struct FragSetup {
    size: u64,
    fills: Vec<u64>,
    writers: usize,
    limit: Duration,
    interval: Duration,
    /// Limit of the pools' cache, bytes.
    cache_bytes: Option<u64>,
    /// Pools are defragmented; the time of the overwrites before and afterwards.
    defrag: Option<Duration>,
}

/// What was measured at one level of one curve.
pub(super) struct FragLevel {
    pub(super) curve: String,
    /// Percent.
    pub(super) fill: u64,
    pub(super) load: OverwriteLoad,
    pub(super) result: OverwriteResult,
    pub(super) pool: Option<FragPoolState>,
}

/// What only a pool in this process shows.
pub(super) struct FragPoolState {
    pub(super) before: PoolMap,
    pub(super) after: PoolMap,
    pub(super) space: FragSpace,
    /// Share of gang blocks among the blocks of the files, 0 to 1.
    pub(super) gangs: f64,
    /// Txgs that were synced during the run.
    pub(super) txgs: u64,
    pub(super) defrag: Option<FragDefrag>,
}

fn fills(text: &str) -> BenchResult<Vec<u64>> {
    let one = |word: &str| word.parse().ok().filter(|n| (1..=95).contains(n));
    let all: Option<Vec<u64>> = text.split(',').map(one).collect();
    all.ok_or_else(|| Stop::usage(format!("--fill: '{text}' is no list of percentages up to 95")))
}

/// The requested curves. Without `--curves`, all that the device permits, except `mount`; and
/// only directories, if there are some and no device was named.
fn curves(run: &Run, several: bool) -> BenchResult<Vec<FragCurve>> {
    let args = &run.args;
    let dirs = args.text("--dir");
    let mut out = Vec::new();
    if let Some(words) = args.text("--curves") {
        for word in words.split(',') {
            let known = CURVES.iter().find(|c| c.0 == word);
            let known = known.ok_or_else(|| Stop::usage(format!("--curves: no curve '{word}'")))?;
            if known.1 && !several {
                return Err(Stop::usage(format!("--curves: '{word}' needs a directory")));
            }
            out.push(FragCurve::Pool(known.0));
        }
    } else if dirs.is_none() || args.text("--device").is_some() {
        let usual = CURVES.iter().filter(|c| c.0 != "mount" && (several || !c.1));
        out.extend(usual.map(|c| FragCurve::Pool(c.0)));
    }
    let dirs = dirs.map(named_dirs).transpose()?.unwrap_or_default();
    out.extend(dirs.into_iter().map(|(name, dir)| FragCurve::Dir(name, dir)));
    Ok(out)
}

fn run(run: &mut Run) -> BenchResult<()> {
    let args = &run.args;
    args.no_rest()?;
    let device = args.text("--device").map_or_else(std::env::temp_dir, PathBuf::from);
    let several = device.is_dir();
    let minutes = args.real("--minutes", 10.0, 0.001..=100_000.0)?;
    let interval = args.time("--sample", Duration::from_secs(1))?;
    let set = FragSetup {
        size: args.size("--size", 1 << 30, DEVICE_MIN..=1 << 50)?,
        fills: fills(args.text("--fill").unwrap_or("10,25,50,75,90"))?,
        writers: args.count("--writers", 8, 1..=1024)? as usize,
        limit: Duration::from_secs_f64(minutes * 60.0),
        interval: interval.max(Duration::from_millis(1)),
        cache_bytes: match args.size("--memory", 0, 8 << 20..=1 << 50)? {
            0 => None,
            bytes => Some(bytes),
        },
        defrag: match args.flag("--defrag") {
            true => Some(args.time("--defrag", Duration::ZERO)?),
            false => None,
        },
    };
    if set.defrag.is_some_and(|time| time > set.limit) {
        return Err(Stop::usage("--defrag: longer than a level (--minutes)"));
    }
    let curves = curves(run, several)?;
    let pools: Vec<&str> = curves.iter().filter_map(FragCurve::of_pool).collect();
    let used_whole = !several && device.exists();
    let devices = if several {
        if !pools.is_empty() {
            // Images stay until the end, so that each is written once.
            let tops = if pools.contains(&"tops") { set.size + TOPS * DEVICE_MIN } else { 0 };
            let log = if pools.contains(&"log") { set.size / 8 + DEVICE_MIN } else { 0 };
            lab::check_space(&device, set.size + tops + log)?;
        }
        FragDevices::Own(Scratch::new(&device)?)
    } else {
        if !used_whole {
            run.step("making the file", 0, 0)?;
            let parent = device.parent().filter(|p| !p.as_os_str().is_empty());
            lab::check_space(parent.unwrap_or(Path::new(".")), set.size)?;
            preallocate(&device, set.size)?;
        }
        if !pools.is_empty() {
            run.report.notes.push(format!("{} has the exported pool {POOL}", device.display()));
        }
        FragDevices::Given(device)
    };
    if used_whole {
        run.report.notes.push("the device is used whole; --size is for --dir alone".to_owned());
    }
    run.report.set("size", Cell::Bytes(set.size));
    run.report.set("record", Cell::Bytes(RECORD));
    run.report.set("writers", Cell::Count(set.writers as u64));
    if let Some(bytes) = set.cache_bytes {
        run.report.set("memory", Cell::Bytes(bytes));
    }
    if let Some(time) = set.defrag {
        run.report.set("first seconds", Cell::Real(time.as_secs_f64()));
    }
    run.report.set("steady samples", Cell::Count(STEADY_SAMPLES as u64));
    let buffers = patterns(&SampleContent::noise(5), RECORD);
    let mut schedule = Schedule::new(curves.len() * set.fills.len());
    let mut levels = Vec::new();
    for curve in &curves {
        for &fill in &set.fills {
            let level = LevelRun { set: &set, fill, buffers: &buffers, schedule: &schedule };
            levels.push(match curve {
                FragCurve::Pool(name) => level.pool(run, name, &devices)?,
                FragCurve::Dir(name, dir) => level.dir(run, name, dir)?,
            });
            schedule.done += 1;
            schedule.pools += usize::from(curve.of_pool().is_some());
        }
    }
    frag_report::fill_in(&mut run.report, &levels);
    if let Some(dir) = run.args.text("--figures") {
        frag_report::write_figures(Path::new(dir), &run.report)?;
    }
    Ok(())
}

/// The progress over all levels.
struct Schedule {
    began: Instant,
    done: usize,
    all: usize,
    /// Pools made so far.
    pools: usize,
}

impl Schedule {
    fn new(all: usize) -> Schedule {
        Schedule { began: rt::now(), done: 0, all: all.max(1), pools: 0 }
    }

    /// Shows a level of which a share is done, and the time that is left.
    fn show(&self, run: &mut Run, name: &str, share: f64) -> BenchResult<()> {
        let all = (self.done as f64 + share.clamp(0.0, 1.0)) / self.all as f64;
        let text = match left(self.began.elapsed(), all) {
            Some(left) => format!("{name}, {left} left"),
            None => name.to_owned(),
        };
        run.step(&text, (all * 1000.0) as u64, 1000)
    }
}

/// The time left when a share is done, for people; `None` near the begin.
fn left(spent: Duration, share: f64) -> Option<String> {
    if share < 0.01 {
        return None;
    }
    let seconds = (spent.as_secs_f64() * (1.0 - share) / share).round() as u64;
    Some(match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        _ => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
    })
}

/// One level of a curve.
struct LevelRun<'a> {
    set: &'a FragSetup,
    fill: u64,
    buffers: &'a [Vec<u8>],
    schedule: &'a Schedule,
}

impl LevelRun<'_> {
    /// The load for a file system that can hold `available` bytes.
    fn load(&self, available: u64, fresh: bool) -> BenchResult<OverwriteLoad> {
        let part = |share: u64, parts: usize| {
            let bytes = u128::from(available) * u128::from(share) / 100 / parts as u128;
            u64::try_from(bytes).unwrap_or(u64::MAX) / RECORD * RECORD
        };
        let file_size = part(self.fill, FILES);
        // Half of what is free: the other half is freed and not yet allocatable.
        let append = fresh.then(|| part((100 - self.fill) / 2, self.set.writers));
        if file_size == 0 || append == Some(0) {
            return Err(Stop::usage("--size: too small for so many writers"));
        }
        let FragSetup { writers, limit, interval, .. } = *self.set;
        Ok(OverwriteLoad {
            files: FILES,
            file_size,
            record: RECORD,
            writers,
            limit,
            interval,
            append,
        })
    }

    fn measure(
        &self,
        run: &mut Run,
        name: &str,
        target: &dyn OverwriteTarget,
        load: &OverwriteLoad,
    ) -> BenchResult<OverwriteResult> {
        let report = |run: &mut Run, share: f64| self.schedule.show(run, name, share);
        frag_load::overwrite(run, target, load, self.buffers, &report)
    }

    fn pool(&self, run: &mut Run, curve: &str, devices: &FragDevices) -> BenchResult<FragLevel> {
        let name = format!("{curve}, {}%", self.fill);
        self.schedule.show(run, &name, 0.0)?;
        let size = self.set.size;
        let spec = FragPoolSpec {
            devices: match curve {
                "tops" => (0..TOPS)
                    .map(|n| devices.file(&format!("top{n}.img"), size / TOPS))
                    .collect::<Result<_>>()?,
                _ => vec![devices.file("frag.img", size)?],
            },
            log: match curve {
                "log" => Some(devices.file("log.img", size / 8)?),
                _ => None,
            },
            recordsize: RECORD,
            compression: curve != "uncompressed",
            // A file that was named has the pool of the level before.
            own: devices.own().is_some() || self.schedule.pools > 0,
            mount: (curve == "mount")
                .then(|| devices.own().map_or_else(std::env::temp_dir, Path::to_path_buf)),
            cache_bytes: self.set.cache_bytes,
        };
        let fresh = curve == "fresh";
        let extra = if fresh { self.set.writers } else { 0 };
        let target = FragPool::new(&spec, FILES + extra)?;
        let load = self.load(target.available, fresh)?;
        frag_load::fill(run, &name, &target, &load, self.buffers)?;
        let settled = |_| frag_defrag::free_ranges(target.pool());
        let fresh = self.set.defrag.map(settled).transpose()?;
        let (before, first) = (target.pool().space_map()?, target.synced_txg()?);
        let result = self.measure(run, &name, &target, &load)?;
        let txgs = target.synced_txg()?.0 - first.0;
        let (space, gangs) = (target.space()?, target.gangs(&load)?);
        let after = target.pool().space_map()?;
        let defrag = match self.set.defrag.zip(fresh) {
            Some((time, fresh)) => {
                let measure =
                    |run: &mut Run, load: &OverwriteLoad| self.measure(run, &name, &target, load);
                let (named, fresh) = ((name.as_str(), time), (fresh, &result));
                Some(frag_defrag::defragment(run, named, &target, &load, fresh, &measure)?)
            }
            None => None,
        };
        target.end(devices.own().is_none())?;
        let pool = Some(FragPoolState { before, after, space, gangs, txgs, defrag });
        Ok(FragLevel { curve: curve.to_owned(), fill: self.fill, load, result, pool })
    }

    fn dir(&self, run: &mut Run, curve: &str, dir: &Path) -> BenchResult<FragLevel> {
        let name = format!("{curve}, {}%", self.fill);
        self.schedule.show(run, &name, 0.0)?;
        let load = self.load(self.set.size, false)?;
        lab::check_space(dir, load.filled())?;
        let target = DirFiles::create(dir, FILES)?;
        frag_load::fill(run, &name, &target, &load, self.buffers)?;
        let result = self.measure(run, &name, &target, &load)?;
        Ok(FragLevel { curve: curve.to_owned(), fill: self.fill, load, result, pool: None })
    }
}

#[cfg(test)]
#[path = "frag_tests.rs"]
pub(super) mod tests;
