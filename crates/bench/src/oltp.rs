//! A database's workload: pages read and written at random, with commits between them.
//!
//! # Theory
//! Clients read and write pages of one file through a mount without the kernel's page cache, so
//! that the engine and its devices are measured. Each round has three parts, each after an
//! import and so with an empty cache:
//!
//! * `reads`: every page at most once. The figure is the device's bytes for each requested
//!   byte: 1 plus the block pointers if records have the size of pages; 16 if a record is 128
//!   KiB and a page 8. A prefetcher that took random reads for a stream would show here.
//! * `writes`: pages that are not in memory, with commits. The figure is the engine's reads for
//!   them: only block pointers if a record is a page, else each record.
//! * `transactions`: two pages read and one written, and a commit after some of these: an
//!   `O_DSYNC` write, or `fsync`.
//!
//! Processor time is that of this process: the clients, the mount, the engine.
//!
//! `--depths` adds a table of random reads by many threads in process, without the mount, with
//! one fixed queue depth of the device after the other and with the adaptive one, in rounds
//! whose order rotates; ratios are computed within a round.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::rt::{self, Mutex};
use base::{Error, Result};
use cenote::Io;
use rustix::fs::OFlags;

use super::args::opt;
use super::frame::{Cell, ReportTable};
use super::sample::{SampleContent, Scatter, XorShift, median};
use super::sync::{Figures, p99};
use super::sync_pool::{DATASET, SyncPool};
use super::tidy::{self, Mounted, Scratch};
use super::write_pool::cpu;
use super::{Bench, BenchResult, Run, Stop};

pub(super) const BENCH: Bench = Bench {
    name: "oltp",
    about: "random pages read and written through a mount, with commits",
    words: "",
    options: &[&[
        opt("--dir", "DIR", "where the image is made ($TMPDIR)"),
        opt("--file", "SIZE", "bytes of the file (512M)"),
        opt("--arc", "SIZE", "the cache's limit (128M)"),
        opt("--page", "SIZE", "bytes of a page (8K)"),
        opt("--records", "LIST", "record sizes (8K,128K)"),
        opt("--clients", "N", "threads that ask (8)"),
        opt("--reads", "N", "pages read before one is written (2)"),
        opt("--commit", "N", "writes between two fsyncs of a client; 0: all O_DSYNC (0)"),
        opt("--count", "N", "pages or transactions of a part (8000)"),
        opt("--rounds", "N", "rounds (3)"),
        opt("--depths", "LIST", "also random reads by depth of the queue: 1,4,16,..."),
        opt("--time", "TIME", "of one depth in one round (0.5)"),
    ]],
    run,
};

/// Name of the file.
const FILE: &str = "table";
/// Bytes of a write while the file is made.
const LARGE: usize = 1 << 20;
/// Threads that read for the table of depths.
const READERS: usize = 64;

struct OltpSetup {
    dir: PathBuf,
    file: u64,
    arc: u64,
    page: u64,
    clients: usize,
    reads: u64,
    commit: u64,
    count: u64,
    rounds: u64,
}

/// The numbers of an option, or the default.
fn list(run: &Run, name: &str, otherwise: &str) -> BenchResult<Vec<u64>> {
    let text = run.args.text(name).unwrap_or(otherwise);
    let one = |word| cenote::props::parse_size(word).ok().filter(|n| *n > 0);
    let all: Option<Vec<u64>> = text.split(',').map(one).collect();
    all.ok_or_else(|| Stop::usage(format!("{name}: '{text}' is no list of numbers")))
}

fn run(run: &mut Run) -> BenchResult<()> {
    let args = &run.args;
    args.no_rest()?;
    let dir = args.text("--dir").map_or_else(std::env::temp_dir, PathBuf::from);
    let scratch = Scratch::new(&dir)?;
    let set = OltpSetup {
        dir: scratch.path().to_owned(),
        file: args.size("--file", 512 << 20, 4 << 20..=1 << 40)?.next_multiple_of(1 << 20),
        arc: args.size("--arc", 128 << 20, 1 << 20..=1 << 40)?,
        page: args.size("--page", 8 << 10, 512..=1 << 20)?,
        clients: args.count("--clients", 8, 1..=1024)? as usize,
        reads: args.count("--reads", 2, 0..=1000)?,
        commit: args.count("--commit", 0, 0..=1 << 30)?,
        count: args.count("--count", 8000, 16..=1 << 40)?,
        rounds: args.count("--rounds", 3, 1..=1000)?,
    };
    let time = args.time("--time", Duration::from_millis(500))?;
    let records = list(run, "--records", "8K,128K")?;
    let depths = match run.args.text("--depths") {
        Some(_) => list(run, "--depths", "")?,
        None => Vec::new(),
    };
    if let Some(bad) =
        records.iter().find(|r| !r.is_power_of_two() || !(512..=16 << 20).contains(*r))
    {
        return Err(Stop::usage(format!("--records: {bad} is no record size")));
    }
    run.report.set("file", Cell::Bytes(set.file));
    run.report.set("arc", Cell::Bytes(set.arc));
    run.report.set("page", Cell::Bytes(set.page));
    run.report.set("clients", Cell::Count(set.clients as u64));
    run.report.set("reads for a write", Cell::Count(set.reads));
    run.report.set("writes for a commit", Cell::Count(set.commit.max(1)));
    for record in records {
        fill(run, &set, record)?;
        rounds(run, &set, record)?;
        if !depths.is_empty() {
            by_depth(run, &set, record, &depths, time)?;
        }
    }
    Ok(())
}

fn failed(e: std::io::Error) -> Error {
    Error::io("the mount failed", e)
}

/// Makes a pool whose file is written once; nothing of it is in memory afterwards.
fn fill(run: &mut Run, set: &OltpSetup, record: u64) -> BenchResult<()> {
    let bench_pool = SyncPool::new(&set.dir, set.file * 3 + (512 << 20), record)?;
    let file = bench_pool.file(FILE)?;
    let (content, mut data) = (SampleContent::noise(1), vec![0; LARGE]);
    for at in (0..set.file).step_by(LARGE) {
        run.step("making the file, MiB", at >> 20, set.file >> 20)?;
        content.fill(at, &mut data);
        bench_pool.write(file, at, &data)?;
    }
    bench_pool.writer()?.sync()?;
    Ok(())
}

/// Counters of the devices and the cache.
#[derive(Clone, Copy, Debug, Default)]
struct OltpCounts {
    read: u64,
    written: u64,
    /// Device reads that served several requests, and all device reads.
    merged: u64,
    reads: u64,
    /// Blocks of data, and of metadata, that were not in memory.
    data: u64,
    metadata: u64,
    cpu: Duration,
}

impl OltpCounts {
    fn of(bench_pool: &SyncPool) -> Result<OltpCounts> {
        let mut counts = OltpCounts { cpu: cpu(), ..OltpCounts::default() };
        let tree = bench_pool.writer()?.zio().tree();
        for (id, leaf) in tree.leaves() {
            if let Some(device) = leaf.device() {
                let stats = device.stats().snapshot();
                counts.read += stats.bytes_read;
                counts.written += stats.bytes_written;
                counts.reads += stats.reads;
            }
            let classes = tree.io_detail(id).by_class;
            let merged = |class: usize| classes[class].merged.iter().sum::<u64>();
            counts.merged += merged(0) + merged(2);
        }
        let stats = bench_pool.engine.arc_stats();
        counts.data = stats.demand_data.misses + stats.prefetch_data.misses;
        counts.metadata = stats.demand_metadata.misses + stats.prefetch_metadata.misses;
        Ok(counts)
    }

    fn since(self, before: OltpCounts) -> OltpCounts {
        OltpCounts {
            read: self.read - before.read,
            written: self.written - before.written,
            merged: self.merged - before.merged,
            reads: self.reads - before.reads,
            data: self.data - before.data,
            metadata: self.metadata - before.metadata,
            cpu: self.cpu.saturating_sub(before.cpu),
        }
    }
}

/// The parts of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OltpPart {
    Reads,
    Writes,
    Transactions,
}

/// The result of a part.
struct PartResult {
    each: Vec<Duration>,
    time: Duration,
    counts: OltpCounts,
}

/// A client's file, and its way of committing.
struct OltpClient<'a> {
    set: &'a OltpSetup,
    file: File,
    unsynced: u64,
    page: Vec<u8>,
}

impl OltpClient<'_> {
    fn read(&mut self, page: u64) -> std::io::Result<()> {
        self.file.read_exact_at(&mut self.page, page * self.set.page)
    }

    fn write(&mut self, page: u64) -> std::io::Result<()> {
        self.page[..8].copy_from_slice(&page.to_le_bytes());
        self.file.write_all_at(&self.page, page * self.set.page)?;
        self.unsynced += 1;
        if self.set.commit > 0 && self.unsynced >= self.set.commit {
            self.commit()?;
        }
        Ok(())
    }

    fn commit(&mut self) -> std::io::Result<()> {
        self.unsynced = 0;
        self.file.sync_data()
    }
}

/// Imports the pool with an empty cache, mounts it, and runs one part with all clients.
fn part(set: &OltpSetup, part: OltpPart, seed: u64) -> BenchResult<PartResult> {
    let bench_pool = SyncPool::import_with(&set.dir, Some(set.arc))?;
    let mounted = Mounted::new(&bench_pool.pool.dataset(DATASET)?, &set.dir, true)?;
    let path = mounted.path().join(FILE);
    let (pages, next) = (set.file / set.page, AtomicU64::new(0));
    let scatter = Scatter::new(pages);
    let each = Mutex::new(Vec::with_capacity(set.count as usize));
    let error = Mutex::new(None);
    let work = |t: usize| -> std::io::Result<()> {
        let sync = if set.commit == 0 { OFlags::DSYNC.bits() as i32 } else { 0 };
        let file = OpenOptions::new().read(true).write(true).custom_flags(sync).open(&path)?;
        let mut client =
            OltpClient { set, file, unsynced: 0, page: vec![t as u8; set.page as usize] };
        let (mut rng, mut own) = (XorShift::new(seed * 1024 + t as u64), Vec::new());
        while !tidy::interrupted() {
            let n = next.fetch_add(1, Relaxed);
            if n >= set.count {
                break;
            }
            let began = rt::now();
            match part {
                // Different pages in each round, but each at most once.
                OltpPart::Reads => {
                    client.read(scatter.position_of((n + seed * set.count) % pages))?
                }
                OltpPart::Writes => {
                    client.write(scatter.position_of((n + seed * set.count) % pages))?
                }
                OltpPart::Transactions => {
                    (0..set.reads).try_for_each(|_| client.read(rng.below(pages)))?;
                    client.write(rng.below(pages))?;
                }
            }
            own.push(began.elapsed());
        }
        if client.unsynced > 0 {
            client.commit()?;
        }
        each.lock().append(&mut own);
        Ok(())
    };
    let (before, began) = (OltpCounts::of(&bench_pool)?, rt::now());
    rt::fan_out(set.clients, |t| {
        if let Err(e) = work(t) {
            error.lock().get_or_insert(e);
        }
    });
    let time = began.elapsed();
    if let Some(e) = error.into_inner() {
        return Err(failed(e).into());
    }
    // Writes the txgs that are still dirty: their bytes belong to the part.
    bench_pool.writer()?.sync()?;
    let counts = OltpCounts::of(&bench_pool)?.since(before);
    drop(mounted);
    Ok(PartResult { each: each.into_inner(), time, counts })
}

fn rounds(run: &mut Run, set: &OltpSetup, record: u64) -> BenchResult<()> {
    let mut f = Figures::default();
    let pages = (set.count.min(set.file / set.page)) as f64;
    let bytes = pages * set.page as f64;
    for round in 0..set.rounds {
        run.step(&format!("records of {}", cenote::props::nicebytes(record)), round, set.rounds)?;
        let result = part(set, OltpPart::Reads, round)?;
        let c = result.counts;
        f.add("reads: pages/s", result.each.len() as f64 / result.time.as_secs_f64());
        f.add("reads: device bytes a byte", c.read as f64 / bytes);
        f.add("reads: device operations a page", c.reads as f64 / pages);
        f.add("reads: operations merged, %", 100.0 * c.merged as f64 / (c.reads as f64).max(1.0));
        let result = part(set, OltpPart::Writes, round)?;
        let c = result.counts;
        f.add("writes: pages/s", result.each.len() as f64 / result.time.as_secs_f64());
        f.add("writes: data blocks read a write", c.data as f64 / pages);
        f.add("writes: metadata blocks read a write", c.metadata as f64 / pages);
        f.add("writes: device bytes a byte", c.written as f64 / bytes);
        let mut result = part(set, OltpPart::Transactions, round)?;
        let (c, n) = (result.counts, result.each.len() as f64);
        let wrote = n * set.page as f64;
        f.add("transactions/s", n / result.time.as_secs_f64());
        f.add("p99, ms", p99(&mut result.each));
        f.add("CPU a transaction, us", c.cpu.as_secs_f64() * 1e6 / n);
        let requested = (wrote * set.reads as f64).max(1.0);
        f.add("device bytes read a byte read", c.read as f64 / requested);
        f.add("device bytes written a byte written", c.written as f64 / wrote);
    }
    if record == set.page {
        let read = f.median("reads: device bytes a byte");
        run.report.at_most("record is page: device bytes a byte read", read, 1.15);
        let caused = f.median("writes: data blocks read a write");
        run.report.at_most("record is page: data blocks read a write", caused, 0.0);
    }
    f.end(name_of(record), run);
    Ok(())
}

/// Names of columns are static.
fn name_of(record: u64) -> &'static str {
    const NAMES: [&str; 16] = [
        "records 512",
        "records 1K",
        "records 2K",
        "records 4K",
        "records 8K",
        "records 16K",
        "records 32K",
        "records 64K",
        "records 128K",
        "records 256K",
        "records 512K",
        "records 1M",
        "records 2M",
        "records 4M",
        "records 8M",
        "records 16M",
    ];
    NAMES.get((record.ilog2() as usize).saturating_sub(9)).copied().unwrap_or("records")
}

/// Reads a second by many threads, over some time.
fn reads(bench_pool: &SyncPool, set: &OltpSetup, time: Duration, seed: u64) -> BenchResult<f64> {
    let id = bench_pool.fs.walk(FILE.as_bytes(), Io::WAIT)?;
    let file = bench_pool.fs.open_file(id, Io::WAIT)?;
    let (done, error) = (AtomicU64::new(0), Mutex::new(None));
    let began = rt::now();
    rt::fan_out(READERS, |t| {
        let mut rng = XorShift::new(seed * READERS as u64 + t as u64);
        let mut page = vec![0; set.page as usize];
        while began.elapsed() < time && !tidy::interrupted() {
            let at = rng.below(set.file / set.page) * set.page;
            match file.read_at(at, &mut page, Io::WAIT) {
                Ok(_) => done.fetch_add(1, Relaxed),
                Err(e) => {
                    error.lock().get_or_insert(e);
                    return;
                }
            };
        }
    });
    match error.into_inner() {
        Some(e) => Err(e.into()),
        None => Ok(done.load(Relaxed) as f64 / began.elapsed().as_secs_f64()),
    }
}

/// Sets the queue's depth; `None` makes it adaptive.
fn set_depth(bench_pool: &SyncPool, depth: Option<u64>) -> Result<()> {
    let set = |name: &str, value: &str| cenote::tune::find(name)?.set(&bench_pool.engine, value);
    set("zfs_vdev_adaptive_depth", if depth.is_none() { "on" } else { "off" })?;
    // At its default value the class is adaptive again.
    let depth = depth.unwrap_or(10).to_string();
    set("zfs_vdev_sync_read_max_active", &depth)
}

fn by_depth(
    run: &mut Run,
    set: &OltpSetup,
    record: u64,
    depths: &[u64],
    time: Duration,
) -> BenchResult<()> {
    let bench_pool = SyncPool::import_with(&set.dir, Some(set.arc.min(set.file / 8).max(1 << 20)))?;
    let mut all: Vec<Option<u64>> = depths.iter().map(|d| Some(*d)).collect();
    all.push(None);
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); all.len()];
    // Loads the block pointers into memory, and lets the queue find its first depth.
    set_depth(&bench_pool, None)?;
    reads(&bench_pool, set, 3 * time, 0)?;
    for round in 0..set.rounds {
        for i in 0..all.len() {
            let n = (i + round as usize) % all.len();
            run.step("depths", round, set.rounds)?;
            set_depth(&bench_pool, all[n])?;
            rates[n].push(reads(&bench_pool, set, time, 1 + round)?);
        }
    }
    let mut table = ReportTable::new(
        "depths",
        &[
            ("record", "RECORD"),
            ("depth", "DEPTH"),
            ("reads_per_second", "READS/S"),
            ("own", "OWN / THIS"),
        ],
    );
    let own = rates.last().cloned().unwrap_or_default();
    let mut best: (f64, f64) = (0.0, f64::NAN);
    for (depth, rates) in all.iter().zip(&rates) {
        let ratio = median(own.iter().zip(rates).map(|(own, this)| own / this));
        let rate = median(rates.iter().copied());
        if let (Some(_), Some(rate), Some(ratio)) = (depth, rate, ratio)
            && rate > best.0
        {
            best = (rate, ratio);
        }
        let depth = depth.map_or_else(|| "own".to_owned(), |d| d.to_string());
        table.rows.push(vec![
            Cell::Bytes(record),
            depth.as_str().into(),
            Cell::real(rate),
            Cell::real(ratio),
        ]);
    }
    let found = bench_pool.writer()?.zio().tree().queue_depths();
    let found: Vec<String> = found.iter().map(|(_, d)| d[0].1.to_string()).collect();
    run.report.notes.push(format!("depth found for reads: {}", found.join(", ")));
    run.report.at_least(format!("{}: own depth / best fixed", name_of(record)), best.1, 0.95);
    run.report.tables.push(table);
    Ok(())
}
