//! Synchronous writes: their rate in comparison with `fio`, their cost in flushes, their
//! latency beside a sequential writer, and the time of a replay.
//!
//! # Theory
//! A cell is a word; without one all run. `fio` writes and syncs blocks one by one in a file
//! that was written before. In alternating rounds, one writer and eight writers write and
//! `fsync` blocks of the same size through the public library, in files that were also written
//! before. The ratio is computed within a round. Flushes are counted at the device; `fio` makes
//! one for each write.

use std::path::PathBuf;
use std::time::Duration;

use base::ObjectId;
use base::rt::{self, Mutex};

use super::args::opt;
use super::frame::{Cell, ReportTable};
use super::sample::median;
use super::sync_pool::{SyncCounts, SyncPool, fio, image};
use super::tidy::{self, Scratch};
use super::write_pool::{preallocate, rss};
use super::{Bench, BenchResult, Run, Stop};

pub(super) const BENCH: Bench = Bench {
    name: "sync",
    about: "synchronous writes and replays, beside fio's write and fdatasync",
    words: "[rate | bytes | beside | replay]...",
    options: &[&[
        opt("--dir", "DIR", "where the files are made ($TMPDIR)"),
        opt("--file", "SIZE", "bytes of the pool's file (4G)"),
        opt("--rounds", "N", "rounds (7)"),
        opt("--writes", "N", "writes of a round (2000)"),
        opt("--block", "SIZE", "bytes of a write (8K)"),
        opt("--stream", "SIZE", "bytes of the unsynced stream (1G)"),
        opt("--records", "N", "records that are replayed (1000000)"),
    ]],
    run,
};

type SyncCell = (&'static str, fn(&mut Run, &SyncSetup) -> BenchResult<()>);
const CELLS: [SyncCell; 4] =
    [("rate", rate), ("bytes", bytes), ("beside", beside), ("replay", replay)];
const COLUMNS: [(&str, &str); 5] = [
    ("figure", "FIGURE"),
    ("median", "MEDIAN"),
    ("least", "LEAST"),
    ("most", "MOST"),
    ("rounds", "ROUNDS"),
];
/// Number of writers in the second figure.
const MANY: usize = 8;
/// Records in a commit of the log that is replayed.
const BATCH: u64 = 1000;

struct SyncSetup {
    dir: PathBuf,
    file: u64,
    rounds: u64,
    writes: u64,
    block: u64,
    stream: u64,
    records: u64,
}

fn run(run: &mut Run) -> BenchResult<()> {
    let args = &run.args;
    let sizes = 64 << 20..=1 << 40;
    let dir = args.text("--dir").map_or_else(std::env::temp_dir, PathBuf::from);
    let scratch = Scratch::new(&dir)?;
    let set = SyncSetup {
        dir: scratch.path().to_owned(),
        file: args.size("--file", 4 << 30, sizes.clone())?,
        rounds: args.count("--rounds", 7, 1..=1000)?,
        writes: args.count("--writes", 2000, 100..=1 << 30)?,
        block: args.size("--block", 8 << 10, 512..=1 << 20)?,
        stream: args.size("--stream", 1 << 30, 1 << 20..=1 << 40)?,
        records: args.count("--records", 1_000_000, 1000..=1 << 30)?,
    };
    let words = run.args.rest.clone();
    if let Some(word) = words.iter().find(|w| !CELLS.iter().any(|c| c.0 == *w)) {
        return Err(Stop::usage(format!("unexpected word '{word}'")));
    }
    run.report.set("bytes of a write", Cell::Bytes(set.block));
    run.report.set("writes of a round", Cell::Count(set.writes));
    for (name, cell) in CELLS {
        if words.is_empty() || words.iter().any(|w| w == name) {
            cell(run, &set)?;
        }
    }
    Ok(())
}

/// Figures of several rounds.
#[derive(Default)]
pub(super) struct Figures {
    rows: Vec<(&'static str, Vec<f64>)>,
}

impl Figures {
    pub(super) fn add(&mut self, figure: &'static str, value: f64) {
        match self.rows.iter_mut().find(|r| r.0 == figure) {
            Some(row) => row.1.push(value),
            None => self.rows.push((figure, vec![value])),
        }
    }

    pub(super) fn median(&self, figure: &str) -> f64 {
        let row = self.rows.iter().find(|r| r.0 == figure);
        row.and_then(|r| median(r.1.iter().copied())).unwrap_or(f64::NAN)
    }

    pub(super) fn end(self, name: &'static str, run: &mut Run) {
        let mut table = ReportTable::new(name, &COLUMNS);
        for (figure, values) in self.rows {
            table.rows.push(vec![
                figure.into(),
                Cell::real(median(values.iter().copied())),
                Cell::Real(values.iter().copied().fold(f64::INFINITY, f64::min)),
                Cell::Real(values.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
                Cell::Count(values.len() as u64),
            ]);
        }
        run.report.tables.push(table);
    }
}

/// A file whose blocks were written once and are on disk.
fn written(bench_pool: &SyncPool, name: &str, blocks: u64, data: &[u8]) -> BenchResult<ObjectId> {
    let file = bench_pool.file(name)?;
    (0..blocks).try_for_each(|i| bench_pool.write(file, i * data.len() as u64, data))?;
    bench_pool.writer()?.sync()?;
    bench_pool.fs.fsync(file)?;
    Ok(file)
}

/// Writes and syncs blocks, each writer in its own file; returns the time for all of them.
fn durable(
    bench_pool: &SyncPool,
    files: &[ObjectId],
    count: u64,
    data: &[u8],
) -> BenchResult<Duration> {
    let failed = Mutex::new(None);
    let began = rt::now();
    rt::fan_out(files.len(), |t| {
        for i in 0..count {
            let done = bench_pool
                .write(files[t], i * data.len() as u64, data)
                .and_then(|()| bench_pool.fs.fsync(files[t]));
            if let Err(e) = done {
                failed.lock().get_or_insert(e);
            }
            if tidy::interrupted() {
                return;
            }
        }
    });
    let time = began.elapsed();
    failed.into_inner().map_or(Ok(time), |e| Err(e.into()))
}

fn block(set: &SyncSetup) -> Vec<u8> {
    (0..set.block).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 7) as u8).collect()
}

fn rate(run: &mut Run, set: &SyncSetup) -> BenchResult<()> {
    let data = block(set);
    let peer = set.dir.join("fio.img");
    let bytes = (set.writes * set.block).next_multiple_of(1 << 20);
    preallocate(&peer, bytes)?;
    let bench_pool = SyncPool::new(&set.dir, set.file, set.block)?;
    let each = set.writes / MANY as u64;
    let one = [written(&bench_pool, "one", set.writes, &data)?];
    let many: Vec<ObjectId> = (0..MANY)
        .map(|t| written(&bench_pool, &format!("many-{t}"), each, &data))
        .collect::<BenchResult<_>>()?;
    let mut f = Figures::default();
    for round in 0..set.rounds {
        run.step("rate", round, set.rounds)?;
        let disk = fio(&peer, bytes, set.block, set.writes);
        let counted = |files: &[ObjectId], count: u64| -> BenchResult<(f64, SyncCounts)> {
            let before = bench_pool.counts()?;
            let time = durable(&bench_pool, files, count, &data)?;
            let writes = count * files.len() as u64;
            Ok((writes as f64 / time.as_secs_f64(), bench_pool.counts()?.since(before)))
        };
        let (alone, counts) = counted(&one, set.writes)?;
        f.add("one writer, writes/s", alone);
        f.add("one writer, flushes a write", counts.flushes as f64 / set.writes as f64);
        if let Some(disk) = disk {
            f.add("fio, writes/s", disk);
            f.add("one writer / fio", alone / disk);
        }
        let (together, counts) = counted(&many, each)?;
        f.add("eight writers, writes/s", together);
        let writes = (each * MANY as u64) as f64;
        f.add("eight writers, flushes a write", counts.flushes as f64 / writes);
        f.add("eight writers / one", together / alone);
    }
    run.report.at_least("rate: one writer / fio", f.median("one writer / fio"), 0.9);
    run.report.at_least("rate: eight writers / one", f.median("eight writers / one"), 3.0);
    f.end("rate", run);
    Ok(())
}

fn bytes(run: &mut Run, set: &SyncSetup) -> BenchResult<()> {
    let data = block(set);
    let bench_pool = SyncPool::new(&set.dir, set.file, set.block)?;
    let file = written(&bench_pool, "file", set.writes, &data)?;
    let mut f = Figures::default();
    for round in 0..set.rounds {
        run.step("bytes", round, set.rounds)?;
        bench_pool.writer()?.sync()?;
        let before = bench_pool.counts()?;
        durable(&bench_pool, &[file], set.writes, &data)?;
        bench_pool.writer()?.sync()?;
        let delta = bench_pool.counts()?.since(before);
        let each = |n: u64| n as f64 / set.writes as f64;
        f.add("bytes on the log a write", each(delta.log));
        f.add("bytes on the device a write, with its group", each(delta.device));
        f.add("blocks a write", each(delta.blocks));
    }
    let most = (set.block + (4 << 10)) as f64;
    run.report.at_most("bytes: on the log a write", f.median("bytes on the log a write"), most);
    f.end("bytes", run);
    Ok(())
}

/// The 99th percentile, milliseconds.
pub(super) fn p99(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    let at = (times.len() * 99 / 100).min(times.len().saturating_sub(1));
    times.get(at).map_or(f64::NAN, |t| t.as_secs_f64() * 1e3)
}

fn beside(run: &mut Run, set: &SyncSetup) -> BenchResult<()> {
    let data = block(set);
    let bench_pool = SyncPool::new(&set.dir, set.file, 128 << 10)?;
    let file = written(&bench_pool, "file", set.writes, &data)?;
    let bulk = bench_pool.file("stream")?;
    let large = vec![5; 1 << 20];
    let mut f = Figures::default();
    for round in 0..set.rounds {
        run.step("beside", round, set.rounds)?;
        bench_pool.writer()?.sync()?;
        let timed = |i: u64| -> BenchResult<Duration> {
            bench_pool.write(file, i % set.writes * set.block, &data)?;
            let began = rt::now();
            bench_pool.fs.fsync(file)?;
            Ok(began.elapsed())
        };
        let mut quiet = (0..set.writes).map(timed).collect::<BenchResult<Vec<_>>>()?;
        let (going, failed) = (Mutex::new(true), Mutex::new(None));
        let times = Mutex::new(Vec::new());
        rt::fan_out(2, |t| {
            if t == 0 {
                let blocks = 0..set.stream >> 20;
                let done =
                    blocks.into_iter().try_for_each(|i| bench_pool.write(bulk, i << 20, &large));
                *going.lock() = false;
                if let Err(e) = done {
                    failed.lock().get_or_insert(Stop::from(e));
                }
                return;
            }
            // At least one, because a short stream may end before this thread runs.
            for i in 0.. {
                match timed(i) {
                    Ok(time) => times.lock().push(time),
                    Err(e) => {
                        failed.lock().get_or_insert(e);
                        return;
                    }
                }
                if !*going.lock() {
                    return;
                }
            }
        });
        if let Some(e) = failed.into_inner() {
            return Err(e);
        }
        let mut loud = times.into_inner();
        f.add("syncs beside the stream", loud.len() as f64);
        let (quiet, loud) = (p99(&mut quiet), p99(&mut loud));
        f.add("p99 alone, ms", quiet);
        f.add("p99 beside the stream, ms", loud);
        f.add("p99 beside / alone", loud / quiet);
    }
    run.report.at_most("beside: p99 beside / alone", f.median("p99 beside / alone"), 4.0);
    f.end("beside", run);
    Ok(())
}

fn replay(run: &mut Run, set: &SyncSetup) -> BenchResult<()> {
    let bench_pool = SyncPool::new(&set.dir, set.file, 128 << 10)?;
    let file = bench_pool.file("file")?;
    bench_pool.fs.fsync(file)?;
    bench_pool.writer()?.sync()?;
    bench_pool.no_txgs()?;
    let before = bench_pool.counts()?;
    let data = [3; 100];
    for i in 0..set.records {
        bench_pool.write(file, i * data.len() as u64, &data)?;
        if (i + 1).is_multiple_of(BATCH) || i + 1 == set.records {
            bench_pool.fs.fsync(file)?;
            run.step("replay: writing", i, set.records)?;
        }
    }
    let log = bench_pool.counts()?.since(before).log;
    // The disk now has the state after a power cut.
    let cut = Scratch::new(&set.dir)?;
    let failed = |e| base::Error::io("cannot copy the image", e);
    std::fs::copy(image(&set.dir), image(cut.path())).map_err(failed)?;
    drop(bench_pool);
    run.step("replay", 0, 0)?;
    let memory = rss();
    let most = Mutex::new(memory);
    let going = Mutex::new(true);
    let out = Mutex::new(None);
    rt::fan_out(2, |t| {
        if t == 0 {
            let began = rt::now();
            let bench_pool = SyncPool::import(cut.path());
            *out.lock() = Some(bench_pool.map(|bench_pool| (bench_pool, began.elapsed())));
            *going.lock() = false;
            return;
        }
        while *going.lock() {
            let now = rss();
            let mut most = most.lock();
            *most = now.max(*most);
            drop(most);
            rt::sleep(Duration::from_millis(5));
        }
    });
    let done = out.into_inner().ok_or_else(|| base::Error::bug("no replay"))?;
    let (bench_pool, time) = done?;
    let id = bench_pool.fs.lookup(bench_pool.fs.root(), b"file", cenote::Io::WAIT)?.id;
    let size = bench_pool.fs.attrs(id, cenote::Io::WAIT)?.size;
    if size != set.records * data.len() as u64 {
        return Err(base::Error::corrupt(format!("{size} bytes are there after the replay")).into());
    }
    let mut f = Figures::default();
    f.add("records", set.records as f64);
    f.add("bytes of the log", log as f64);
    f.add("seconds to import and replay", time.as_secs_f64());
    f.add("records a second", set.records as f64 / time.as_secs_f64());
    f.add("MiB of memory more", most.into_inner().saturating_sub(memory) as f64 / 1048576.0);
    f.end("replay", run);
    Ok(())
}
