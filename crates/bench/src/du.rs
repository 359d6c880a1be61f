//! Repeated walks over more metadata than the cache may hold.
//!
//! # Theory
//! A loop over a set larger than the cache is the worst case: the next block is the one that
//! was evicted longest ago, and a plain ARC (or LRU) has no hit at all from one pass to the
//! next. Neighbours in a block do hit within a pass, which hides that. So besides the share of
//! lookups that hit, the table has a second one: the share of the blocks of a pass that came
//! from memory, computed from the misses of a first pass with an empty cache.
//!
//! The tree is walked once with room for all of it, which gives its size. Then the cache is
//! made so that the tree is 1.5 times as large (and once so that it fits). Each pass opens the
//! file system again, so that no parsed object is reused. Through a mount, the kernel's own
//! caches are dropped before each pass.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use base::{Error, ObjectId, Result, rt};
use cenote::files::FileType as FileKind;
use cenote::{ArcStats, PolicyKind};
use cenote::{FileSystem, Io};

use super::args::opt;
use super::chart::Shape;
use super::frame::{Cell, ReportTable};
use super::lab::{self, Disk, Lab, LabPool};
use super::sample::SampleContent;
use super::{Bench, Run, Stop, tidy};

pub(super) const BENCH: Bench = Bench {
    name: "du",
    about: "walks of a tree with more metadata than the cache may hold",
    words: "",
    options: &[
        &[
            opt("--files", "N", "files of the tree (100000)"),
            opt("--per-dir", "N", "files of a directory (200)"),
            opt("--arc", "SIZE", "the cache's limit (the tree's metadata / 1.5)"),
            opt("--walks", "N", "passes (3)"),
            opt("--stream", "", "also beside a stream of data"),
            opt("--data", "SIZE", "the file that is streamed (four times --files K)"),
            opt("--mount", "", "also through a mount, the kernel's caches dropped"),
            opt("--policy", "LIST", "default, arc (default,arc)"),
        ],
        lab::OPTIONS,
    ],
    run,
};

/// The ratio of the tree's metadata to the cache.
const TIMES: f64 = 1.5;
/// A cache in which the tree fits.
const ROOMY: u64 = 4 << 30;
/// Bytes of one read of the stream.
const STREAM: usize = 1 << 20;
/// Maximum depth of directories.
const DEPTH_MAX: usize = 64;

/// The environment of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WalkMode {
    Alone,
    Streamed,
    Mount,
    Fits,
}

impl WalkMode {
    fn word(self) -> &'static str {
        match self {
            WalkMode::Alone => "alone",
            WalkMode::Streamed => "beside a stream",
            WalkMode::Mount => "mount",
            WalkMode::Fits => "fits",
        }
    }
}

/// The figures of one pass.
#[derive(Clone, Copy, Debug, Default)]
struct Pass {
    entries: u64,
    rate: f64,
    lookups: Option<f64>,
    /// Metadata blocks that had to be read.
    misses: u64,
    disk: Disk,
    stream_mib: Option<f64>,
}

fn run(run: &mut Run) -> Result<(), Stop> {
    let args = &run.args;
    args.no_rest()?;
    let files = args.count("--files", 100_000, 1..=1 << 30)?;
    let per_dir = args.count("--per-dir", 200, 1..=1 << 20)?;
    let given = args.size("--arc", 0, 1 << 20..=1 << 40)?;
    let walks = args.count("--walks", 3, 2..=100)?;
    let data = args.size("--data", (files * 4096).max(64 << 20), 1 << 20..=1 << 40)?;
    let (stream, mount) = (args.flag("--stream"), args.flag("--mount"));
    let policies = lab::policies(args, "default,arc")?;
    let lab = Lab::new(run, data + files * 1024, |maker| {
        for n in 0..files.div_ceil(per_dir) {
            let count = per_dir.min(files - n * per_dir);
            maker.small_files(&format!("tree/{}/d{n}", n % 64), count)?;
        }
        maker.file("data", data, 128 << 10, &SampleContent::noise(1))
    })?;
    let metadata = measure(run, &lab)?;
    let arc = if given > 0 { given } else { ((metadata as f64 / TIMES) as u64).max(1 << 20) };
    run.report.set("files", Cell::Count(files));
    run.report.set("metadata", Cell::Bytes(metadata));
    run.report.set("arc", Cell::Bytes(arc));
    run.report.set("times the cache", Cell::Real(metadata as f64 / arc as f64));
    let mut ways = vec![WalkMode::Alone];
    ways.extend(stream.then_some(WalkMode::Streamed));
    if mount && lab::drop_kernel_caches() {
        ways.push(WalkMode::Mount);
    } else if mount {
        run.report.notes.push("mount: only root may drop the kernel's caches".to_owned());
    }
    ways.push(WalkMode::Fits);
    let mut table = table();
    let mut series = Vec::new();
    for way in ways {
        for &policy in &policies {
            let size = if way == WalkMode::Fits { ROOMY.max(4 * metadata) } else { arc };
            let passes = passes(run, &lab, (size, policy), way, walks)?;
            series.push((format!("{} {}", lab::word(policy), way.word()), shares(&passes)));
            add_rows(run, &mut table, way, policy, &passes);
        }
    }
    run.report.tables.push(table);
    let labels = (1..=walks).map(|n| format!("pass {n}")).collect();
    run.report.chart(Shape::Bars, "metadata blocks from memory", labels, series);
    Ok(())
}

/// Bytes that the tree takes in a cache with room for it, without copies that the cache could
/// drop.
fn measure(run: &mut Run, lab: &Lab) -> Result<u64, Stop> {
    let bench_pool = lab.open(ROOMY, PolicyKind::Default)?;
    let held = |bench_pool: &LabPool| {
        let stats = bench_pool.stats();
        stats.size.saturating_sub(stats.overhead_size)
    };
    let before = held(&bench_pool);
    let fs = bench_pool.fresh_fs()?;
    walk(run, &fs, "measuring the tree")?;
    Ok(held(&bench_pool).saturating_sub(before).max(1))
}

fn passes(
    run: &mut Run,
    lab: &Lab,
    (arc, policy): (u64, PolicyKind),
    way: WalkMode,
    walks: u64,
) -> Result<Vec<Pass>, Stop> {
    let bench_pool = lab.open(arc, policy)?;
    let mut passes = Vec::new();
    for n in 0..walks {
        let name = format!("{} {}, pass {} of {walks}", lab::word(policy), way.word(), n + 1);
        passes.push(pass(run, &bench_pool, way, &name)?);
    }
    Ok(passes)
}

fn pass(run: &mut Run, bench_pool: &LabPool, way: WalkMode, name: &str) -> Result<Pass, Stop> {
    let mounted = if way == WalkMode::Mount { Some(bench_pool.mount(false)?) } else { None };
    if mounted.is_some() {
        lab::drop_kernel_caches();
    }
    let stream = if way == WalkMode::Streamed { Some(bench_pool.file("data")?) } else { None };
    let (stop, streamed) = (AtomicBool::new(false), AtomicU64::new(0));
    let result = rt::Mutex::new(None);
    let fs = bench_pool.fresh_fs()?;
    let (stats, disk, begin) = (bench_pool.stats(), bench_pool.disk(), rt::now());
    let run = rt::Mutex::new(run);
    let failed = rt::Mutex::new(None);
    rt::fan_out(1 + usize::from(stream.is_some()), |thread| {
        if thread == 1 {
            if let Some(file) = &stream {
                let done = flow(file, &stop, &streamed);
                *failed.lock() = done.err();
            }
            return;
        }
        let run = &mut **run.lock();
        let walked = match &mounted {
            Some(mounted) => walk_host(run, mounted.path(), name),
            None => walk(run, &fs, name),
        };
        stop.store(true, Relaxed);
        *result.lock() = Some((walked, begin.elapsed()));
    });
    let seconds = |d: std::time::Duration| d.as_secs_f64().max(1e-9);
    let (walked, took) =
        result.into_inner().ok_or_else(|| Error::bug("the walk left no result"))?;
    let entries = walked?;
    if let Some(e) = failed.into_inner() {
        return Err(Stop::Failed(e));
    }
    let (after, now) = (bench_pool.stats(), bench_pool.disk());
    let demand = |s: &ArcStats| (s.demand_metadata.hits, s.demand_metadata.total());
    let misses = |s: &ArcStats| s.demand_metadata.misses + s.prefetch_metadata.misses;
    let mib = streamed.load(Relaxed) as f64 / f64::from(1 << 20);
    Ok(Pass {
        entries,
        rate: entries as f64 / seconds(took),
        lookups: lab::hit_ratio(demand(&stats), demand(&after)),
        misses: misses(&after).saturating_sub(misses(&stats)),
        disk: Disk { reads: now.reads - disk.reads, bytes: now.bytes - disk.bytes },
        stream_mib: stream.is_some().then(|| mib / seconds(took)),
    })
}

/// Reads a file repeatedly until it is stopped.
fn flow(file: &cenote::File, stop: &AtomicBool, bytes: &AtomicU64) -> Result<()> {
    let mut out = vec![0; STREAM];
    let mut at = 0;
    while !stop.load(Relaxed) && !tidy::interrupted() {
        let n = file.read_at(at, &mut out, Io::WAIT)?;
        bytes.fetch_add(n as u64, Relaxed);
        at = if n < STREAM { 0 } else { at + n as u64 };
    }
    Ok(())
}

/// Lists every directory and reads the attributes of every entry.
fn walk(run: &mut Run, fs: &FileSystem, name: &str) -> Result<u64, Stop> {
    let mut entries = 0;
    let mut todo: Vec<(ObjectId, usize)> = vec![(fs.root(), 0)];
    while let Some((dir, depth)) = todo.pop() {
        run.step(name, entries, 0)?;
        let mut cookie = 0;
        loop {
            let page = fs.readdir(dir, cookie, Io::WAIT)?;
            for entry in &page.entries {
                if matches!(entry.name.as_slice(), b"." | b"..") {
                    continue;
                }
                let attrs = fs.attrs(entry.id, Io::WAIT)?;
                entries += 1;
                if attrs.kind == FileKind::Dir && depth < DEPTH_MAX {
                    todo.push((entry.id, depth + 1));
                }
            }
            match page.next {
                Some(next) => cookie = next,
                None => break,
            }
        }
    }
    Ok(entries)
}

/// As [`walk`], through the kernel.
fn walk_host(run: &mut Run, root: &Path, name: &str) -> Result<u64, Stop> {
    let failed = |e| Stop::Failed(Error::io("cannot walk the mount", e));
    let mut entries = 0;
    let mut todo = vec![(root.to_owned(), 0)];
    while let Some((dir, depth)) = todo.pop() {
        run.step(name, entries, 0)?;
        for entry in std::fs::read_dir(&dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let attrs = entry.metadata().map_err(failed)?;
            entries += 1;
            if attrs.is_dir() && depth < DEPTH_MAX {
                todo.push((entry.path(), depth + 1));
            }
        }
    }
    Ok(entries)
}

/// The share of each pass's blocks that came from memory.
fn shares(passes: &[Pass]) -> Vec<f64> {
    let cold = passes.first().map_or(0, |p| p.misses);
    let share = |p: &Pass| lab::ratio(cold.saturating_sub(p.misses), cold).unwrap_or(f64::NAN);
    passes.iter().map(share).collect()
}

fn table() -> ReportTable {
    ReportTable::new(
        "passes",
        &[
            ("way", "WAY"),
            ("policy", "POLICY"),
            ("pass", "PASS"),
            ("entries", "ENTRIES"),
            ("entries_per_second", "ENTRIES/S"),
            ("lookup_hit_ratio", "LOOKUPS"),
            ("block_hit_ratio", "BLOCKS"),
            ("block_misses", "MISSES"),
            ("disk_reads", "DISK READS"),
            ("disk_bytes", "BYTES"),
            ("stream_mib_per_second", "STREAM MiB/s"),
        ],
    )
}

fn add_rows(
    run: &mut Run,
    table: &mut ReportTable,
    way: WalkMode,
    policy: PolicyKind,
    passes: &[Pass],
) {
    for (n, (pass, share)) in passes.iter().zip(shares(passes)).enumerate() {
        table.rows.push(vec![
            way.word().into(),
            lab::word(policy).into(),
            Cell::Count(n as u64 + 1),
            Cell::Count(pass.entries),
            Cell::Real(pass.rate),
            Cell::ratio(pass.lookups),
            Cell::ratio(Some(share)),
            Cell::Count(pass.misses),
            Cell::Count(pass.disk.reads),
            Cell::Bytes(pass.disk.bytes),
            Cell::real(pass.stream_mib),
        ]);
    }
    let later = || shares(passes).into_iter().skip(1);
    let name = format!("{} {}", lab::word(policy), way.word());
    if way == WalkMode::Fits {
        let most = passes.iter().skip(1).map(|p| p.disk.reads).max().unwrap_or(0);
        run.report.at_most(format!("{name}: disk reads from the second pass on"), most as f64, 0.0);
    } else if policy == PolicyKind::Default {
        // The reference policy is only for comparison, and has no target.
        let least = later().fold(f64::NAN, f64::min);
        let what = format!("{name}: metadata blocks from memory from the second pass on");
        run.report.at_least(what, least, 0.6);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_first_pass() {
        let pass = |misses| Pass { misses, ..Pass::default() };
        let all = shares(&[pass(100), pass(40), pass(150)]);
        assert_eq!(all, [0.0, 0.6, 0.0]);
        assert!(shares(&[pass(0)])[0].is_nan());
    }
}
