//! Defragmentation of a file that was overwritten at random between snapshots.
//!
//! # Theory
//! A file is written in order and read: that is the rate of a fresh copy. Then some of its
//! records are overwritten at random, again and again, with a snapshot before each round. The file
//! is read as it lies, the pool is defragmented, and the file is read once more. Each read is of
//! the whole file in order, after an import, so that the cache is empty.
//!
//! A second file is overwritten and read at random at a fixed rate, before the defragmentation and
//! during it: the longest of 99 % of these operations is what others feel. That costs the
//! defragmentation some of its rate.
//!
//! The limit of the rate is a plain copy of what is allocated on the device, in its order, as in the
//! bench of removals.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::rt::{self, Mutex};
use base::{Error, ObjectId, Result};
use cenote::create::{NewKind, NewVdev};
use cenote::files::{Caller, New, WritePosition};
use cenote::{
    DefragTargets, Engine, EngineConfig, FileSystem, Io, MoveRecord, MoveState, PropData,
};

use super::args::opt;
use super::frag_defrag;
use super::frag_load::LatencyHistogram;
use super::frag_target::{DATASET, RunningPool};
use super::frame::{Cell, ReportTable};
use super::lab;
use super::sample::{SampleContent, XorShift};
use super::scrub_pool::{ScrubVdev, allocated, copy, files_of, import, sum};
use super::tidy::Scratch;
use super::write_pool::{cpu, patterns, preallocate, rss};
use super::{Bench, BenchResult, Run};

pub(super) const BENCH: Bench = Bench {
    name: "defrag",
    about: "defragmentation of a file that was overwritten between snapshots",
    words: "",
    options: &[&[
        opt("--size", "SIZE", "bytes of the file (1G)"),
        opt("--record", "SIZE", "its record size (8K)"),
        opt("--snapshots", "N,...", "snapshots of each run (1,10,50)"),
        opt("--overwrite", "PERCENT", "records overwritten in all, of those of the file (200)"),
        opt("--memory", "SIZE", "the cache (256M)"),
        opt("--rounds", "N", "runs with each number of snapshots (3)"),
        opt("--rate", "N", "operations a second of others meanwhile (200; 0: none)"),
        opt("--device", "DIR", "directory for the pool ($TMPDIR)"),
    ]],
    run,
};

/// The file system with the file that others use.
const OTHER: &str = "benchf/other";
/// Bytes of a write or read in order.
const LARGE: u64 = 1 << 20;
/// Share of the file that others use.
const OTHERS: u64 = 8;
/// How long others are watched before the defragmentation.
const IDLE: Duration = Duration::from_secs(10);
/// Bytes of the pool beside the files.
const SPARE: u64 = 1 << 30;

/// The command line.
struct DefragBenchOptions {
    size: u64,
    record: u64,
    overwrite: u64,
    memory: u64,
    rate: u64,
    dir: PathBuf,
}

/// What a run measured.
struct DefragRun {
    record: MoveRecord,
    /// Layout score of all files before and after.
    scores: [f64; 2],
    /// Bytes a second of reads in order: fresh, as it lay, and afterwards.
    reads: [f64; 3],
    /// Allocated bytes before and after.
    used: [u64; 2],
    seconds: f64,
    cpu: f64,
    /// Bytes that the device wrote.
    written: u64,
    /// Growth of the process, at most.
    memory: u64,
    /// 99 % of others' operations, seconds: before and during.
    others: [Option<f64>; 2],
    /// Seconds of a plain copy of as many bytes as moved.
    plain: f64,
}

fn run(run: &mut Run) -> BenchResult<()> {
    let args = &run.args;
    args.no_rest()?;
    let options = DefragBenchOptions {
        size: args.size("--size", 1 << 30, 4 << 20..=1 << 40)? / LARGE * LARGE,
        record: args.size("--record", 8 << 10, 4096..=1 << 20)?.next_power_of_two(),
        overwrite: args.count("--overwrite", 200, 1..=10_000)?,
        memory: args.size("--memory", 256 << 20, 8 << 20..=1 << 40)?,
        rate: args.count("--rate", 200, 0..=1_000_000)?,
        dir: args.text("--device").map_or_else(std::env::temp_dir, PathBuf::from),
    };
    let rounds = args.count("--rounds", 3, 1..=1000)?;
    let text = args.text("--snapshots").unwrap_or("1,10,50");
    let numbers: Option<Vec<u64>> =
        text.split(',').map(|n| n.parse().ok().filter(|n| (1..=10_000).contains(n))).collect();
    let numbers = numbers.ok_or_else(|| Error::invalid(format!("no numbers: '{text}'")))?;
    lab::check_space(&options.dir, 2 * options.device())?;
    let columns = [
        ("snapshots", "SNAPS"),
        ("score_before", "SCORE"),
        ("score_after", "AFTER"),
        ("fresh_mb_s", "FRESH MB/s"),
        ("before_mb_s", "BEFORE MB/s"),
        ("after_mb_s", "AFTER MB/s"),
        ("after_of_fresh", "OF FRESH"),
        ("used_growth", "USED +"),
        ("moved", "MOVED"),
        ("move_mb_s", "MOVE MB/s"),
        ("of_copy", "OF COPY"),
        ("written_per_byte", "WRITTEN/BYTE"),
        ("cpu_s", "CPU s"),
        ("memory_per_million", "MEMORY/M"),
        ("others_before_ms", "P99 ms"),
        ("others_during_ms", "DURING ms"),
    ];
    let mut table = ReportTable::new("defragmentation", &columns);
    let all = rounds * numbers.len() as u64;
    for round in 0..rounds {
        for (n, snapshots) in numbers.iter().enumerate() {
            run.step("runs", round * numbers.len() as u64 + n as u64, all)?;
            let done = one(run, &options, *snapshots)?;
            table.rows.push(done.row(&options, *snapshots));
        }
    }
    run.report.set("file", Cell::Bytes(options.size));
    run.report.set("record", Cell::Bytes(options.record));
    run.report.set("overwritten, percent", Cell::Count(options.overwrite));
    run.report.tables.push(table);
    Ok(())
}

impl DefragBenchOptions {
    /// Bytes of the device: it has room for all versions of the records.
    fn device(&self) -> u64 {
        let versions = self.size + self.size / 100 * self.overwrite;
        (versions + versions / 3 + SPARE).next_multiple_of(1 << 20)
    }
}

impl DefragRun {
    fn row(&self, options: &DefragBenchOptions, snapshots: u64) -> Vec<Cell> {
        let [fresh, before, after] = self.reads;
        let moved = (self.record.moved + self.record.metadata).max(1) as f64;
        let blocks = (self.record.moved / options.record).max(1) as f64;
        let growth = self.used[1] as f64 / self.used[0].max(1) as f64 - 1.0;
        let milliseconds = |time: Option<f64>| Cell::real(time.map(|t| t * 1e3));
        vec![
            Cell::Count(snapshots),
            Cell::Real(self.scores[0]),
            Cell::Real(self.scores[1]),
            Cell::Real(fresh / 1e6),
            Cell::Real(before / 1e6),
            Cell::Real(after / 1e6),
            Cell::Real(after / fresh.max(1e-9)),
            Cell::Ratio(growth),
            Cell::Bytes(self.record.moved),
            Cell::Real(moved / 1e6 / self.seconds.max(1e-9)),
            Cell::Real(self.plain / self.seconds.max(1e-9)),
            Cell::Real(self.written as f64 / self.record.moved.max(1) as f64),
            Cell::Real(self.cpu),
            Cell::Bytes((self.memory as f64 / blocks * 1e6) as u64),
            milliseconds(self.others[0]),
            milliseconds(self.others[1]),
        ]
    }
}

/// The pool of a run, exported between its steps.
struct DefragBenchPool<'a> {
    options: &'a DefragBenchOptions,
    device: PathBuf,
    file: ObjectId,
    other: ObjectId,
    noise: XorShift,
    buffers: Vec<Vec<u8>>,
}

fn one(run: &mut Run, options: &DefragBenchOptions, snapshots: u64) -> BenchResult<DefragRun> {
    let scratch = Scratch::new(&options.dir)?;
    let path = |name: &str| scratch.path().join(name);
    let (device, target) = (path("defrag.img"), path("copy.img"));
    preallocate(&device, options.device())?;
    let mut pool = DefragBenchPool::make(run, options, device)?;
    let fresh = pool.read_all(run)?;
    pool.overwrite(run, snapshots)?;
    let before = pool.read_all(run)?;
    preallocate(&target, options.device())?;
    let ranges = allocated(ScrubVdev::Disk, std::slice::from_ref(&pool.device))?;
    let copied = copy((&pool.device, &target), &ranges)?;
    let mut done = pool.defragment(run)?;
    let after = pool.read_all(run)?;
    done.reads = [fresh, before, after];
    let moved = done.record.moved + done.record.metadata;
    done.plain = copied * moved as f64 / sum(&ranges).max(1) as f64;
    Ok(done)
}

impl<'a> DefragBenchPool<'a> {
    fn make(
        run: &mut Run,
        options: &'a DefragBenchOptions,
        device: PathBuf,
    ) -> BenchResult<DefragBenchPool<'a>> {
        let engine = Engine::new(EngineConfig::default())?;
        let vdevs = vec![NewVdev::new(NewKind::File(device.clone()))];
        let (running, dataset) =
            RunningPool::create_on(&engine, vdevs, true, options.record, false)?;
        // Without snapshots: what others overwrite is free.
        let props = [("recordsize".to_owned(), PropData::Num(options.record))];
        let more = running.pool().create_filesystem(OTHER, &props, None)?;
        let (systems, root) = ([more.open_fs()?, dataset.open_fs()?], Caller::root());
        let make = |fs: &FileSystem| fs.make(&root, fs.root(), b"file", &New::file(0o644));
        let [other, file] = [make(&systems[0])?.id, make(&systems[1])?.id];
        let buffers = patterns(&SampleContent::noise(5), options.record);
        let mut pool =
            DefragBenchPool { options, device, file, other, noise: XorShift::new(3), buffers };
        let files = [(other, options.size / OTHERS), (file, options.size)];
        for (fs, (id, size)) in systems.iter().zip(files) {
            for at in (0..size).step_by(LARGE as usize) {
                run.step("filling the pool, MiB", at >> 20, size >> 20)?;
                let records = LARGE / options.record;
                let data: Vec<u8> = (0..records).flat_map(|_| pool.next()).collect();
                fs.write(&root, id, WritePosition::Offset(at), &data)?;
            }
        }
        running.pool().sync()?;
        drop((systems, dataset, more));
        running.end(true)?;
        Ok(pool)
    }

    /// A record of new content.
    fn next(&mut self) -> Vec<u8> {
        let n = self.noise.next();
        let mut data = self.buffers[n as usize % self.buffers.len()].clone();
        data[..8].copy_from_slice(&n.to_le_bytes());
        data
    }

    fn import(&self) -> Result<RunningPool> {
        lab::drop_kernel_caches();
        Ok(import(std::slice::from_ref(&self.device), self.options.memory, false)?.0)
    }

    /// Bytes a second of a read of the file in order.
    fn read_all(&self, run: &mut Run) -> BenchResult<f64> {
        let running = self.import()?;
        let fs = files_of(&running)?;
        let file = fs.open_file(self.file, Io::WAIT)?;
        let mut buffer = vec![0; LARGE as usize];
        let began = rt::now();
        for at in (0..self.options.size).step_by(LARGE as usize) {
            run.step("reading, MiB", at >> 20, self.options.size >> 20)?;
            file.read_at(at, &mut buffer, Io::WAIT)?;
        }
        let seconds = began.elapsed().as_secs_f64();
        drop((file, fs));
        running.end(true)?;
        Ok(self.options.size as f64 / seconds.max(1e-9))
    }

    /// Overwrites records at random, with a snapshot before each round.
    fn overwrite(&mut self, run: &mut Run, snapshots: u64) -> BenchResult<()> {
        let running = self.import()?;
        let (fs, root) = (files_of(&running)?, Caller::root());
        let records = self.options.size / self.options.record;
        let each = records * self.options.overwrite / 100 / snapshots;
        for n in 0..snapshots {
            run.step("overwriting, snapshots", n, snapshots)?;
            running.pool().snapshot(&[format!("{DATASET}@s{n}")], &[], None)?;
            for _ in 0..each {
                let at = self.noise.below(records) * self.options.record;
                let data = self.next();
                fs.write(&root, self.file, WritePosition::Offset(at), &data)?;
            }
            running.pool().sync()?;
        }
        drop(fs);
        Ok(running.end(true)?)
    }

    /// Reads and overwrites records of the other file at random until the end.
    fn use_other(&self, fs: &Arc<FileSystem>, end: &AtomicBool) -> Result<LatencyHistogram> {
        let mut times = LatencyHistogram::default();
        let (options, root) = (self.options, Caller::root());
        if options.rate == 0 {
            return Ok(times);
        }
        let records = options.size / OTHERS / options.record;
        let (mut places, start) = (XorShift::new(17), rt::now());
        let interval = Duration::from_secs(1).as_nanos() as u64 / options.rate;
        let mut due = Duration::ZERO;
        let mut buffer = vec![0; options.record as usize];
        let file = fs.open_file(self.other, Io::WAIT)?;
        while !end.load(Relaxed) {
            let at = places.below(records.max(1)) * options.record;
            let began = rt::now();
            match places.below(4) {
                0 => fs.write(&root, self.other, WritePosition::Offset(at), &buffer).map(drop)?,
                _ => drop(file.read_at(at, &mut buffer, Io::WAIT)?),
            }
            times.add(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
            due += Duration::from_nanos(interval);
            rt::sleep(due.saturating_sub(start.elapsed()));
        }
        Ok(times)
    }

    /// Does some work while others use their file; how long their operations take.
    fn beside(
        &self,
        fs: &Arc<FileSystem>,
        work: impl Fn() -> BenchResult<()> + Sync,
    ) -> BenchResult<LatencyHistogram> {
        let end = AtomicBool::new(false);
        let (times, done) = (Mutex::new(Ok(LatencyHistogram::default())), Mutex::new(Ok(())));
        rt::fan_out(2, |n| match n {
            0 => *times.lock() = self.use_other(fs, &end),
            _ => {
                *done.lock() = work();
                end.store(true, Relaxed);
            }
        });
        done.into_inner()?;
        Ok(times.into_inner()?)
    }

    fn defragment(&self, run: &mut Run) -> BenchResult<DefragRun> {
        let running = self.import()?;
        let pool = running.pool();
        let fs = pool.dataset(OTHER)?.open_fs()?;
        let targets = DefragTargets::default();
        let score = |pool: &cenote::Pool| -> Result<f64> {
            let score = pool.estimate_defrag(&targets)?.score;
            Ok(score.in_sequence as f64 / score.steps.max(1) as f64)
        };
        let used = |pool: &cenote::Pool| -> Result<u64> {
            let space = pool.writer()?.space();
            let of = |(vdev, _)| space.vdev_totals(vdev).map(|totals| totals.allocated);
            space.vdevs().into_iter().map(of).sum()
        };
        // What others change is not the defragmentation's growth.
        let allocated_before = used(pool)?;
        let score_before = score(pool)?;
        let idle = self.beside(&fs, || {
            if self.options.rate > 0 {
                rt::sleep(IDLE);
            }
            Ok(())
        })?;
        pool.sync()?;
        let (counters, small) = (running.device_counters()?, rss());
        let (began, processor) = (rt::now(), cpu());
        pool.defrag(&targets, None)?;
        let memory = AtomicU64::new(0);
        let run = Mutex::new(run);
        let during = self.beside(&fs, || {
            while pool.move_job().is_some_and(|job| job.record.state == MoveState::Active) {
                let done = pool.move_job().map_or(0, |job| job.record.moved);
                run.lock().step("defragmenting, MiB", done >> 20, done >> 20)?;
                memory.fetch_max(rss().saturating_sub(small), Relaxed);
                rt::sleep(Duration::from_millis(50));
            }
            Ok(())
        })?;
        pool.sync()?;
        let seconds = began.elapsed().as_secs_f64();
        let processor = cpu().saturating_sub(processor).as_secs_f64();
        let written = running.device_counters()?.bytes_written - counters.bytes_written;
        let job = pool.move_job().filter(|job| job.record.state == MoveState::Complete);
        let job = job.ok_or_else(|| Error::bug("a defragmentation without an end"))?;
        // What it freed is free two txgs later.
        frag_defrag::settle(pool)?;
        let done = DefragRun {
            scores: [score_before, score(pool)?],
            reads: [0.0; 3],
            used: [allocated_before, used(pool)?],
            seconds,
            cpu: processor,
            written,
            memory: memory.into_inner(),
            others: [idle.quantile(0.99), during.quantile(0.99)],
            plain: 0.0,
            record: job.record,
        };
        drop(fs);
        running.end(true)?;
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Stop;
    use super::super::frag::tests::{json, rows};

    #[test]
    fn a_scattered_file_is_in_order_afterwards() {
        let scratch = testkit::Scratch::new("bench-defrag");
        let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
        let (dir, out) = (path(""), path("out.json"));
        let words = [
            "--size",
            "8M",
            "--snapshots",
            "3",
            "--rounds",
            "1",
            "--rate",
            "0",
            "--device",
            &dir,
            "--json",
            &out,
        ];
        super::BENCH.start(&words.map(str::to_owned)).map_err(Stop::text).unwrap();
        let json = json(Path::new(&out));
        let row = &rows(&json, "defragmentation")[0];
        let number = |name: &str| row[name].as_f64().unwrap();
        assert!(number("score_before") < 0.9 && number("score_after") > 0.95, "{json}");
        assert!(number("moved") >= 8e6 && number("used_growth") < 0.5, "{json}");
    }
}
