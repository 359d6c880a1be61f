//! The engine's writes, each figure compared with its limit.
//!
//! # Theory
//! A cell is a word; without one all run. The contenders run in alternating rounds within one
//! process. Ratios are computed within a round, and the medians of rates and ratios are
//! reported with their range. The pool is made again for each round, because `fio` writes to
//! the same files. Every figure ends with a sync.
//!
//! `fio` writes blocks of 128 KiB, 16 at a time, past the page cache; its data is
//! incompressible. The limit of compressible data is the encoder alone, on two threads, over
//! the same blocks, or the device. A stream before the measured one touches the memory, as in a
//! daemon that has run for a while.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use base::ObjectId;
use base::rt::{self, Mutex, fan_out};
use cenote::inspect::dsl::write::snapshot;
use cenote::{Engine, EngineConfig, ImportOptions, Search};
use codec::compress::{Compression, compress};

use super::args::opt;
use super::frame::{Cell, ReportTable};
use super::sample::{SampleContent, median};
use super::write_pool::{
    Job, POOL, WritePool, WritePoolSpec, WriteTimes, fio, patterns, preallocate, rss,
};
use super::{Bench, BenchResult, Run, Stop};

pub(super) const BENCH: Bench = Bench {
    name: "write",
    about: "what the engine writes, beside fio, the encoder and its limits",
    words: "[bulk | lz4 | raidz | random | blocks | snapshot | memory | crash]...",
    options: &[&[
        opt("--dir", "DIR", "where the files are; those that are there stay ($TMPDIR)"),
        opt("--file", "SIZE", "bytes of the one file of most cells (6G)"),
        opt("--size", "SIZE", "bytes that a round writes (1G)"),
        opt("--rounds", "N", "rounds (7)"),
        opt("--threads", "N", "writers of bulk data (2)"),
        opt("--writes", "N", "random writes of a round (200000)"),
        opt("--blocks", "N", "blocks of the cell 'blocks' (1000000)"),
        opt("--data", "SIZE", "data below the larger snapshot (10G)"),
    ]],
    run,
};

const MIB: f64 = 1048576.0;
const BULK: u64 = 128 << 10;
const SMALL: u64 = 8 << 10;
/// The data below snapshots shrinks to less than this fraction.
const THIN: u64 = 16;
/// A cell's name and the function that measures it.
type WriteCell = (&'static str, fn(&mut Run, &WriteSetup) -> BenchResult<()>);
const CELLS: [WriteCell; 8] = [
    ("bulk", bulk),
    ("lz4", lz4),
    ("raidz", raidz),
    ("random", random),
    ("blocks", blocks),
    ("snapshot", snapshots),
    ("memory", memory),
    ("crash", crash),
];
/// Columns of every table: a row is a figure over the rounds.
const COLUMNS: [(&str, &str); 5] = [
    ("figure", "FIGURE"),
    ("median", "MEDIAN"),
    ("least", "LEAST"),
    ("most", "MOST"),
    ("rounds", "ROUNDS"),
];

struct WriteSetup {
    dir: PathBuf,
    file: PathBuf,
    size: u64,
    rounds: u64,
    threads: usize,
    writes: u64,
    blocks: u64,
    data: u64,
}

impl WriteSetup {
    fn plan<'a>(&self, files: &'a [PathBuf]) -> WritePoolSpec<'a> {
        WritePoolSpec { files, parity: 0, cache: 1 << 30, dirty_max: None }
    }

    fn one(&self) -> Vec<PathBuf> {
        vec![self.file.clone()]
    }
}

fn run(run: &mut Run) -> BenchResult<()> {
    let args = &run.args;
    let sizes = 64 << 20..=1 << 40;
    let dir = args.text("--dir").map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = std::path::absolute(&dir).unwrap_or(dir);
    let file_size = args.size("--file", 6 << 30, sizes.clone())?;
    let set = WriteSetup {
        file: dir.join("w1.img"),
        dir,
        size: args.size("--size", 1 << 30, sizes.clone())?,
        rounds: args.count("--rounds", 7, 1..=1000)?,
        threads: args.count("--threads", 2, 1..=64)? as usize,
        writes: args.count("--writes", 200_000, 100..=1 << 40)?,
        blocks: args.count("--blocks", 1_000_000, 1000..=1 << 40)?,
        data: args.size("--data", 10 << 30, sizes)?,
    };
    if set.size.max(set.data / THIN) > file_size / 2 {
        return Err(Stop::usage("--file: must be twice what is written to it"));
    }
    let words = run.args.rest.clone();
    if let Some(word) = words.iter().find(|w| !CELLS.iter().any(|c| c.0 == *w)) {
        return Err(Stop::usage(format!("unexpected word '{word}'")));
    }
    run.step("making the file", 0, 0)?;
    preallocate(&set.file, file_size)?;
    run.report.set("data", Cell::Bytes(set.size));
    run.report.set("rounds", Cell::Count(set.rounds));
    run.report.set("writers", Cell::Count(set.threads as u64));
    for (name, cell) in CELLS {
        if words.is_empty() || words.iter().any(|w| w == name) {
            cell(run, &set)?;
        }
    }
    Ok(())
}

/// Figures of several rounds.
struct Figures {
    table: ReportTable,
    rows: Vec<(&'static str, Vec<f64>)>,
}

impl Figures {
    fn new(name: &'static str) -> Figures {
        Figures { table: ReportTable::new(name, &COLUMNS), rows: Vec::new() }
    }

    fn add(&mut self, figure: &'static str, value: f64) {
        match self.rows.iter_mut().find(|r| r.0 == figure) {
            Some(row) => row.1.push(value),
            None => self.rows.push((figure, vec![value])),
        }
    }

    fn median(&self, figure: &str) -> f64 {
        let row = self.rows.iter().find(|r| r.0 == figure);
        row.and_then(|r| median(r.1.iter().copied())).unwrap_or(f64::NAN)
    }

    fn end(mut self, run: &mut Run) {
        for (figure, values) in &self.rows {
            let most = |a: f64, b: &f64| a.max(*b);
            self.table.rows.push(vec![
                (*figure).into(),
                Cell::real(median(values.iter().copied())),
                Cell::Real(values.iter().copied().fold(f64::INFINITY, f64::min)),
                Cell::Real(values.iter().fold(f64::NEG_INFINITY, most)),
                Cell::Count(values.len() as u64),
            ]);
        }
        run.report.tables.push(self.table);
    }
}

/// Writes a new object of `size` bytes sequentially, and removes it after the measurement.
fn stream(
    bench_pool: &WritePool,
    size: u64,
    threads: usize,
    blocks: &[Vec<u8>],
) -> BenchResult<WriteTimes> {
    let (done, object) = put(bench_pool, size, threads, blocks)?;
    bench_pool.remove(object)?;
    // The space is free again two txgs later.
    for _ in 0..3 {
        bench_pool.writer.sync()?;
    }
    Ok(done)
}

/// As [`stream`], but keeps the object.
fn put(
    bench_pool: &WritePool,
    size: u64,
    threads: usize,
    blocks: &[Vec<u8>],
) -> BenchResult<(WriteTimes, ObjectId)> {
    let record = blocks.first().map_or(BULK, |b| b.len() as u64);
    let object = bench_pool.object(record)?;
    let count = size / record;
    let job = Job { object, record, count, among: None, threads, patterns: blocks };
    Ok((bench_pool.write(&job)?, object))
}

/// Touches the memory that a stream will use.
fn warm(bench_pool: &WritePool, set: &WriteSetup, blocks: &[Vec<u8>]) -> BenchResult<()> {
    stream(bench_pool, 2 * set.size, set.threads, blocks)?;
    Ok(())
}

fn bulk(run: &mut Run, set: &WriteSetup) -> BenchResult<()> {
    let blocks = patterns(&SampleContent::noise(1), BULK);
    let mut f = Figures::new("bulk");
    let files = set.one();
    for round in 0..set.rounds {
        run.step("bulk", round, set.rounds)?;
        let disk = fio(&set.file, set.size, BULK, 16, false);
        // Requests of the size and depth that the engine's queue makes of them.
        if let Some(merged) = fio(&set.file, set.size, 1 << 20, 10, false) {
            f.add("fio, 1 MiB, 10 deep, MiB/s", merged / MIB);
        }
        let bench_pool = WritePool::new(&set.plan(&files))?;
        let first = stream(&bench_pool, set.size, set.threads, &blocks)?;
        f.add("engine, memory touched for the first time, MiB/s", first.per_second(set.size) / MIB);
        stream(&bench_pool, set.size, set.threads, &blocks)?;
        let done = stream(&bench_pool, set.size, set.threads, &blocks)?;
        let rate = done.per_second(set.size);
        f.add("engine, MiB/s", rate / MIB);
        f.add("processor, ms a GiB", done.cpu.as_secs_f64() * 1e3 * 1024.0 * MIB / set.size as f64);
        if let Some(disk) = disk {
            f.add("fio, MiB/s", disk / MIB);
            f.add("engine / fio", rate / disk);
        }
        let one = stream(&bench_pool, set.size, 1, &blocks)?;
        f.add("engine, one writer, MiB/s", one.per_second(set.size) / MIB);
        let eight = stream(&bench_pool, set.size, 8, &blocks)?;
        f.add("engine, eight writers, MiB/s", eight.per_second(set.size) / MIB);
    }
    run.report.at_least("bulk: engine / fio", f.median("engine / fio"), 0.8);
    f.end(run);
    Ok(())
}

/// Bytes of input that two threads compress a second, and the share that remains.
fn encoder(blocks: &[Vec<u8>], size: u64) -> (f64, f64) {
    let kept = Mutex::new(0u64);
    let began = rt::now();
    fan_out(2, |_| {
        let mut out = vec![0; BULK as usize];
        let mut sum = 0;
        for i in 0..size / 2 / BULK {
            let block = &blocks[i as usize % blocks.len()];
            sum += compress(Compression::Lz4, block, &mut out).unwrap_or(block.len()) as u64;
        }
        *kept.lock() += sum;
    });
    let kept = kept.into_inner();
    (size as f64 / began.elapsed().as_secs_f64(), kept as f64 / size as f64)
}

fn lz4(run: &mut Run, set: &WriteSetup) -> BenchResult<()> {
    let blocks = patterns(&SampleContent::half(), BULK);
    let mut f = Figures::new("lz4");
    let files = set.one();
    for round in 0..set.rounds {
        run.step("lz4", round, set.rounds)?;
        let disk = fio(&set.file, set.size / 2, BULK, 16, false);
        let (alone, kept) = encoder(&blocks, set.size);
        let bench_pool = WritePool::new(&set.plan(&files))?;
        warm(&bench_pool, set, &blocks)?;
        let rate = stream(&bench_pool, set.size, set.threads, &blocks)?.per_second(set.size);
        let limit = disk.map_or(alone, |d| alone.min(d / kept));
        f.add("engine, MiB/s", rate / MIB);
        f.add("lz4 alone, two threads, MiB/s", alone / MIB);
        f.add("share that is stored", kept);
        if let Some(disk) = disk {
            f.add("fio / that share, MiB/s", disk / kept / MIB);
        }
        f.add("engine / lz4 alone", rate / alone);
        f.add("engine / the lesser limit", rate / limit);
    }
    run.report.at_least("lz4: engine / the limit", f.median("engine / the lesser limit"), 0.7);
    f.end(run);
    Ok(())
}

fn raidz(run: &mut Run, set: &WriteSetup) -> BenchResult<()> {
    let blocks = patterns(&SampleContent::noise(2), BULK);
    let files: Vec<PathBuf> = (1..=6).map(|n| set.dir.join(format!("w6-{n}.img"))).collect();
    for file in &files {
        run.step("making files", 0, 0)?;
        preallocate(file, set.size)?;
    }
    let single = set.one();
    let mut f = Figures::new("raidz");
    for round in 0..set.rounds {
        run.step("raidz2 of 6", round, set.rounds)?;
        let bench_pool = WritePool::new(&set.plan(&single))?;
        warm(&bench_pool, set, &blocks)?;
        let one = stream(&bench_pool, set.size, set.threads, &blocks)?.per_second(set.size);
        drop(bench_pool);
        let bench_pool = WritePool::new(&WritePoolSpec { parity: 2, ..set.plan(&files) })?;
        warm(&bench_pool, set, &blocks)?;
        let six = stream(&bench_pool, set.size, set.threads, &blocks)?.per_second(set.size);
        f.add("one disk, MiB/s", one / MIB);
        f.add("raidz2 of 6, MiB/s", six / MIB);
        f.add("raidz2 of 6 with parity, MiB/s", six * 1.5 / MIB);
        f.add("raidz2 / one disk net of parity", six * 1.5 / one);
    }
    let ratio = f.median("raidz2 / one disk net of parity");
    run.report.at_least("raidz2 of 6 / one disk, net of parity", ratio, 0.7);
    f.end(run);
    Ok(())
}

fn random(run: &mut Run, set: &WriteSetup) -> BenchResult<()> {
    let blocks = patterns(&SampleContent::noise(3), SMALL);
    let quarter = std::fs::metadata(&set.file).map_or(set.size, |m| m.len() / 4);
    let files = set.one();
    let bench_pool = WritePool::new(&set.plan(&files))?;
    let object = bench_pool.object(SMALL)?;
    let among = quarter / SMALL;
    let mut job =
        Job { object, record: SMALL, count: among, among: None, threads: 8, patterns: &blocks };
    run.step("random: filling", 0, 0)?;
    bench_pool.write(&job)?;
    (job.count, job.among) = (set.writes, Some(among));
    let mut f = Figures::new("random");
    for round in 0..set.rounds {
        run.step("random", round, set.rounds)?;
        let mut done = bench_pool.write(&job)?;
        f.add("overwrites of 8 KiB, a second", done.per_second(set.writes));
        let cpu = done.cpu.as_secs_f64() * 1e6 / set.writes as f64;
        f.add("processor, us a write", cpu);
        f.add("the processors' limit, a second", rt::parallelism() as f64 * 1e6 / cpu);
        f.add("processors used", done.cpu.as_secs_f64() / done.time.as_secs_f64());
        f.add("a write, p99, us", done.quantile(0.99).as_secs_f64() * 1e6);
        f.add("a write, longest, ms", done.quantile(1.0).as_secs_f64() * 1e3);
    }
    let rate = f.median("overwrites of 8 KiB, a second");
    run.report.at_least("random 8 KiB overwrites a second", rate, 50_000.0);
    f.end(run);
    Ok(())
}

fn blocks(run: &mut Run, set: &WriteSetup) -> BenchResult<()> {
    /// Blocks between two syncs: 1.3 GB.
    const BATCH: u64 = 40_000;
    let sizes: Vec<u64> = (0..8).map(|n| 1024 << n).collect();
    let content = SampleContent::noise(4);
    let all: Vec<_> = sizes.iter().map(|&s| patterns(&content, s)).collect();
    let files = set.one();
    let bench_pool = WritePool::new(&set.plan(&files))?;
    let (mut write, mut free) = (Duration::ZERO, Duration::ZERO);
    let (mut left, began) = (set.blocks, rt::now());
    while left > 0 {
        run.step("blocks", set.blocks - left, set.blocks)?;
        let batch = left.min(BATCH);
        let mut objects = Vec::new();
        for (&record, blocks) in sizes.iter().zip(&all) {
            let object = bench_pool.object(record)?;
            let (count, threads) = (batch / sizes.len() as u64, set.threads);
            let job = Job { object, record, count, among: None, threads, patterns: blocks };
            write += bench_pool.write(&job)?.cpu;
            objects.push(object);
        }
        let before = super::write_pool::cpu();
        objects.into_iter().try_for_each(|o| bench_pool.remove(o))?;
        bench_pool.writer.sync()?;
        free += super::write_pool::cpu().saturating_sub(before);
        left -= batch;
    }
    let n = set.blocks as f64;
    let mut f = Figures::new("blocks");
    f.add("blocks of 1 to 128 KiB", n);
    f.add("written and freed, blocks a second", n / began.elapsed().as_secs_f64());
    f.add("allocate and write, processor us a block", write.as_secs_f64() * 1e6 / n);
    f.add("free, processor us a block", free.as_secs_f64() * 1e6 / n);
    f.end(run);
    Ok(())
}

fn snapshots(run: &mut Run, set: &WriteSetup) -> BenchResult<()> {
    // The object has as many blocks and pointers as the data, but takes little space on disk.
    let mut blocks = patterns(&SampleContent::noise(5), BULK);
    blocks.iter_mut().for_each(|block| block[1024..].fill(0));
    let files = set.one();
    let bench_pool = WritePool::new(&set.plan(&files))?;
    let mut f = Figures::new("snapshot");
    let names = ["a tenth of the data, ms", "all of the data, ms"];
    for (part, name) in [set.data / 10, set.data - set.data / 10].into_iter().zip(names) {
        run.step("snapshots", 0, 0)?;
        put(&bench_pool, part, set.threads, &blocks)?;
        for round in 0..set.rounds {
            let (head, text) = (bench_pool.head, format!("{}-{round}", name.len()));
            let began = rt::now();
            bench_pool.writer.sync_task(
                |_| Ok(()),
                move |cx, ()| snapshot::take(cx.cx, head, &text).map(|_| ()),
            )?;
            f.add(name, began.elapsed().as_secs_f64() * 1e3);
        }
    }
    let ratio = f.median(names[1]) / f.median(names[0]);
    f.add("all / a tenth", ratio);
    run.report.at_most("snapshot: ten times the data / the data", ratio, 1.5);
    f.end(run);
    Ok(())
}

fn memory(run: &mut Run, set: &WriteSetup) -> BenchResult<()> {
    const LIMIT: u64 = 256 << 20;
    let blocks = patterns(&SampleContent::noise(6), BULK);
    let files = set.one();
    base::buf::trim(0);
    let before = rss();
    let bench_pool = WritePool::new(&WritePoolSpec {
        cache: LIMIT,
        dirty_max: Some(LIMIT),
        ..set.plan(&files)
    })?;
    let mut f = Figures::new("memory");
    f.add("before, MiB", before as f64 / MIB);
    f.add("arc_max + dirty_data_max, MiB", 2.0 * LIMIT as f64 / MIB);
    for round in 0..set.rounds {
        run.step("eight writers", round, set.rounds)?;
        let (over, most) = (AtomicBool::new(false), Mutex::new(0));
        let done = Mutex::new(None);
        fan_out(2, |n| {
            if n == 0 {
                *done.lock() = Some(stream(&bench_pool, set.size, 8, &blocks));
                over.store(true, Relaxed);
            }
            while n == 1 && !over.load(Relaxed) {
                let now = rss();
                let mut most = most.lock();
                *most = now.max(*most);
                drop(most);
                rt::sleep(Duration::from_millis(5));
            }
        });
        let mut done = done.into_inner().ok_or_else(|| base::Error::bug("nothing ran"))??;
        let taken = most.into_inner().saturating_sub(before);
        f.add("most RSS beyond that before, MiB", taken as f64 / MIB);
        f.add("a write of 128 KiB, median, us", done.quantile(0.5).as_secs_f64() * 1e6);
        f.add("a write, p99, ms", done.quantile(0.99).as_secs_f64() * 1e3);
        f.add("a write, longest, ms", done.quantile(1.0).as_secs_f64() * 1e3);
        f.add("MiB/s", done.per_second(set.size) / MIB);
    }
    let worst = |f: &Figures, name: &str| {
        let row = f.rows.iter().find(|r| r.0 == name);
        row.map_or(f64::NAN, |r| r.1.iter().copied().fold(0.0, f64::max))
    };
    let taken = worst(&f, "most RSS beyond that before, MiB");
    run.report.at_most("memory of eight writers, MiB", taken, 2.0 * LIMIT as f64 / MIB);
    let stall = worst(&f, "a write, longest, ms");
    run.report.at_most("longest write at the throttle, ms", stall, 1000.0);
    f.end(run);
    Ok(())
}

/// Leaves a pool without an export, with logged changes that are in no space map.
fn leave(set: &WriteSetup) -> BenchResult<()> {
    let blocks = patterns(&SampleContent::noise(7), SMALL);
    let files = set.one();
    let bench_pool = WritePool::new(&set.plan(&files))?;
    let object = bench_pool.object(SMALL)?;
    let among = (set.size / 2) / SMALL;
    let mut job =
        Job { object, record: SMALL, count: among, among: None, threads: 2, patterns: &blocks };
    bench_pool.write(&job)?;
    // The changes of one txg; space maps take over what was logged some txgs before.
    (job.among, job.count) = (Some(among), 14_000);
    bench_pool.write(&job)?;
    Ok(())
}

fn import(dir: &Path) -> BenchResult<(Duration, u64)> {
    let engine = Engine::new(EngineConfig { cache_bytes: Some(1 << 30), ..Default::default() })?;
    let search = Search { paths: vec![dir.to_owned()], ..Search::default() };
    let missing = || base::Error::not_found(format!("no pool named '{POOL}'"));
    let found = engine.discover(&search)?;
    let found = found.pools.iter().find(|p| p.name == POOL).ok_or_else(missing)?;
    let look = ImportOptions { readonly: true, force: true, ..ImportOptions::default() };
    let pool = engine.import(found, &look)?;
    let mut entries = 0;
    for (_, object) in pool.spa().load_space()?.logs {
        let params = cenote::inspect::ondisk::spacemap::Params::log();
        pool.spa().for_each_entry(object, params, &mut |_| {
            entries += 1;
            Ok(())
        })?;
    }
    drop(pool);
    drop(engine);
    let engine = Engine::new(EngineConfig { cache_bytes: Some(1 << 30), ..Default::default() })?;
    let began = rt::now();
    let found = engine.discover(&search)?;
    let found = found.pools.iter().find(|p| p.name == POOL).ok_or_else(missing)?;
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let pool = engine.import(found, &options)?;
    let time = began.elapsed();
    drop(pool);
    Ok((time, entries))
}

fn crash(run: &mut Run, set: &WriteSetup) -> BenchResult<()> {
    let mut f = Figures::new("crash");
    for round in 0..set.rounds {
        run.step("import after a crash", round, set.rounds)?;
        leave(set)?;
        let (time, entries) = import(&set.file)?;
        f.add("entries in logs", entries as f64);
        f.add("found, imported and written, ms", time.as_secs_f64() * 1e3);
    }
    f.end(run);
    Ok(())
}
