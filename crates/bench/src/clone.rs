//! Cloned blocks: the time of a clone, and frees of cloned blocks beside those of others.
//!
//! # Theory
//! A clone of a file writes block pointers and counts references; it reads no data. Its time is
//! measured until the call returns, and until the sync after it is over, for two files: one of
//! noise, and one of content that is compressed. Their blocks are on disk before.
//!
//! A free of a cloned block lowers a count, and one of another block returns its space. Both are
//! measured in each round, with as many blocks, by removing a file and a sync: a copy that was
//! written, a clone, and the original of another clone. The clone that is left then has the last
//! references; its removal is the fourth kind.

use std::path::PathBuf;
use std::time::Duration;

use base::rt;
use base::{Error, ObjectId, Result};
use cenote::create::{NewKind, NewVdev};
use cenote::files::{Caller, New, WritePosition};
use cenote::{Dataset, Engine, EngineConfig, FileSystem, Pool, PropData};

use super::args::opt;
use super::frag_target::{POOL, RunningPool};
use super::frame::{Cell, ReportTable};
use super::lab;
use super::sample::{SampleContent, XorShift, median};
use super::tidy::Scratch;
use super::write_pool::cpu;
use super::{Bench, BenchResult, Run};

pub(super) const BENCH: Bench = Bench {
    name: "clone",
    about: "clones of a file, and frees of cloned blocks beside others",
    words: "",
    options: &[&[
        opt("--size", "SIZE", "bytes of the file that is cloned (1G)"),
        opt("--record", "SIZE", "its record size (128K)"),
        opt("--blocks", "N", "blocks that are freed (1000000)"),
        opt("--small", "SIZE", "their record size (4K)"),
        opt("--rounds", "N", "rounds of each measurement (5)"),
        opt("--memory", "SIZE", "the cache (256M)"),
        opt("--device", "DIR", "directory for the pool ($TMPDIR)"),
    ]],
    run,
};

/// Bytes of a write.
const LARGE: u64 = 1 << 20;
/// Bytes of the pool beside the files.
const SPARE: u64 = 2 << 30;
/// The time that a clone of 1 GiB in the usual records may take, milliseconds.
const CLONE_MS: f64 = 50.0;
/// Kinds of frees, in the order of a round.
const FREES: [&str; 4] = ["a copy", "a clone", "an original", "the last reference"];

/// The command line.
struct CloneBenchOptions {
    size: u64,
    record: u64,
    blocks: u64,
    small: u64,
    rounds: u64,
}

/// The pool with a dataset for each record size.
struct ClonePool {
    running: RunningPool,
    root: Caller,
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn run(run: &mut Run) -> BenchResult<()> {
    let args = &run.args;
    args.no_rest()?;
    let options = CloneBenchOptions {
        size: args.size("--size", 1 << 30, 1 << 20..=1 << 40)?,
        record: args.size("--record", 128 << 10, 4096..=1 << 20)?.next_power_of_two(),
        blocks: args.count("--blocks", 1_000_000, 1..=1 << 30)?,
        small: args.size("--small", 4096, 4096..=1 << 20)?.next_power_of_two(),
        rounds: args.count("--rounds", 5, 1..=1000)?,
    };
    let memory = args.size("--memory", 256 << 20, 8 << 20..=1 << 40)?;
    let dir = args.text("--device").map_or_else(std::env::temp_dir, PathBuf::from);
    let need = 2 * options.size + 3 * options.blocks * options.small;
    lab::check_space(&dir, need)?;
    let scratch = Scratch::new(&dir)?;
    let image = scratch.path().join("clone.img");
    let failed = |e| Error::io("cannot make the image", e).on_path(image.to_string_lossy());
    let file = std::fs::File::create_new(&image).map_err(failed)?;
    file.set_len(need + need / 4 + SPARE).map_err(failed)?;
    let config = EngineConfig { cache_bytes: Some(memory), ..EngineConfig::default() };
    let engine = Engine::new(config)?;
    let vdevs = vec![NewVdev::new(NewKind::File(image))];
    let (running, large) = RunningPool::create_on(&engine, vdevs, true, options.record, true)?;
    let pool = ClonePool { running, root: Caller::root() };
    run.report.set("size", Cell::Bytes(options.size));
    run.report.set("record", Cell::Bytes(options.record));
    run.report.set("blocks freed", Cell::Count(options.blocks));
    run.report.set("their size", Cell::Bytes(options.small));
    clones(run, &pool, &large, &options)?;
    drop(large);
    frees(run, &pool, &options)?;
    pool.running.end(false)?;
    Ok(())
}

/// Clones of a whole file.
fn clones(
    run: &mut Run,
    pool: &ClonePool,
    dataset: &Dataset,
    options: &CloneBenchOptions,
) -> BenchResult<()> {
    let fs = dataset.open_fs()?;
    let columns = [
        ("content", "CONTENT"),
        ("bytes", "BYTES"),
        ("clone_ms", "CLONE ms"),
        ("sync_ms", "SYNC ms"),
        ("cpu_ms", "CPU ms"),
    ];
    let mut table = ReportTable::new("clones", &columns);
    let kinds = [("noise", SampleContent::noise(5)), ("compressed", SampleContent::half())];
    let mut sources = Vec::new();
    for (name, content) in &kinds {
        sources.push(pool.fill(run, &fs, name, options.size, content)?);
    }
    pool.pool().sync()?;
    let mut all: [Vec<[f64; 3]>; 2] = Default::default();
    for round in 0..options.rounds {
        for (source, times) in sources.iter().zip(&mut all) {
            run.step("cloning, round", round, options.rounds)?;
            let (began, used) = (rt::now(), cpu());
            pool.clone_file(&fs, (*source, options.size), "clone")?;
            let cloned = began.elapsed();
            pool.pool().sync()?;
            let synced = began.elapsed().saturating_sub(cloned);
            let used = cpu().saturating_sub(used);
            times.push([cloned, synced, used].map(milliseconds));
            pool.remove(&fs, "clone")?;
        }
    }
    let gibibytes = options.size as f64 / f64::from(1 << 30);
    for ((name, _), times) in kinds.iter().zip(&all) {
        let of = |at: usize| median(times.iter().map(|t| t[at])).unwrap_or(f64::NAN);
        let head = [Cell::from(*name), Cell::Bytes(options.size)];
        table.rows.push(head.into_iter().chain([0, 1, 2].map(|n| Cell::Real(of(n)))).collect());
        let what = format!("clone of {name}, ms for 1 GiB");
        run.report.at_most(what, of(0) / gibibytes, CLONE_MS);
    }
    run.report.tables.push(table);
    for (name, _) in &kinds {
        pool.remove(&fs, name)?;
    }
    Ok(())
}

/// Frees of blocks of each kind.
fn frees(run: &mut Run, pool: &ClonePool, options: &CloneBenchOptions) -> BenchResult<()> {
    let props = [("recordsize", options.small), ("compression", 2)];
    let props = props.map(|(name, n)| (name.to_owned(), PropData::Num(n)));
    let dataset = pool.pool().create_filesystem(&format!("{POOL}/small"), &props, None)?;
    let fs = dataset.open_fs()?;
    let columns =
        [("blocks", "BLOCKS OF"), ("frees_s", "FREES/S"), ("cpu_us", "CPU us"), ("ratio", "RATIO")];
    let mut table = ReportTable::new("frees", &columns);
    let (size, content) = (options.blocks * options.small, SampleContent::noise(9));
    let mut all: [Vec<[f64; 2]>; FREES.len()] = Default::default();
    for round in 0..options.rounds {
        pool.fill(run, &fs, "copy", size, &content)?;
        let original = pool.fill(run, &fs, "original", size, &content)?;
        pool.pool().sync()?;
        for name in ["clone", "last"] {
            run.step("cloning, round", round, options.rounds)?;
            pool.clone_file(&fs, (original, size), name)?;
            pool.pool().sync()?;
        }
        for (name, times) in ["copy", "clone", "original", "last"].into_iter().zip(&mut all) {
            run.step("freeing, round", round, options.rounds)?;
            let (began, used) = (rt::now(), cpu());
            pool.remove(&fs, name)?;
            let (time, used) = (began.elapsed(), cpu().saturating_sub(used));
            let each = used.as_secs_f64() * 1e6 / options.blocks as f64;
            times.push([options.blocks as f64 / time.as_secs_f64().max(1e-9), each]);
        }
    }
    let copies: Vec<f64> = all[0].iter().map(|t| t[0]).collect();
    for (name, times) in FREES.into_iter().zip(&all) {
        let of = |at: usize| median(times.iter().map(|t| t[at])).unwrap_or(f64::NAN);
        let ratio = median(times.iter().zip(&copies).map(|(t, copy)| t[0] / copy));
        table.rows.push(vec![name.into(), Cell::Real(of(0)), Cell::Real(of(1)), Cell::real(ratio)]);
    }
    run.report.tables.push(table);
    Ok(())
}

impl ClonePool {
    fn pool(&self) -> &Pool {
        self.running.pool()
    }

    /// A new file of this content; each block is another one.
    fn fill(
        &self,
        run: &mut Run,
        fs: &FileSystem,
        name: &str,
        size: u64,
        content: &SampleContent,
    ) -> BenchResult<ObjectId> {
        let id = fs.make(&self.root, fs.root(), name.as_bytes(), &New::file(0o644))?.id;
        let (mut noise, mut data) = (XorShift::new(size), vec![0; LARGE as usize]);
        content.fill(0, &mut data);
        for at in (0..size).step_by(LARGE as usize) {
            run.step("filling the pool, MiB", at >> 20, size >> 20)?;
            let part = LARGE.min(size - at) as usize;
            for block in data.chunks_mut(4096) {
                block[..8].copy_from_slice(&noise.next().to_le_bytes());
            }
            fs.write(&self.root, id, WritePosition::Offset(at), &data[..part])?;
        }
        Ok(id)
    }

    /// A new file that shares all blocks of another.
    fn clone_file(&self, fs: &FileSystem, (id, size): (ObjectId, u64), name: &str) -> Result<()> {
        let new = fs.make(&self.root, fs.root(), name.as_bytes(), &New::file(0o644))?.id;
        let done = fs.clone_range(&self.root, (fs, id, 0), (new, 0), size)?;
        match done == size {
            true => Ok(()),
            false => Err(Error::bug(format!("only {done} bytes of {size} were cloned"))),
        }
    }

    /// Removes a file; its space is free, or its references are gone, when this returns.
    fn remove(&self, fs: &FileSystem, name: &str) -> Result<()> {
        fs.unlink(&self.root, fs.root(), name.as_bytes())?;
        self.pool().sync()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Stop;
    use super::super::frag::tests::{json, rows};

    #[test]
    fn clones_and_frees_are_measured() {
        let scratch = testkit::Scratch::new("bench-clone");
        let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
        let (dir, out) = (path(""), path("out.json"));
        let size = ["--size", "4M", "--blocks", "500", "--rounds", "2"];
        let words: Vec<String> = size
            .iter()
            .chain(&["--device", &dir, "--json", &out])
            .map(|w| (*w).to_owned())
            .collect();
        super::BENCH.start(&words).map_err(Stop::text).unwrap();
        let json = json(std::path::Path::new(&out));
        assert_eq!(rows(&json, "clones").len(), 2, "{json}");
        assert!(rows(&json, "clones").iter().all(|row| row["clone_ms"].as_f64().unwrap() > 0.0));
        let frees = rows(&json, "frees");
        let names: Vec<_> = frees.iter().map(|row| row["blocks"].as_str().unwrap()).collect();
        assert_eq!(names, ["a copy", "a clone", "an original", "the last reference"]);
        assert!(frees.iter().all(|row| row["frees_s"].as_f64().unwrap() > 0.0), "{json}");
        assert_eq!(frees[0]["ratio"], 1.0);
    }
}
