//! What a cache device gives to a pool on slow disks, and what an import pays for it.
//!
//! # Theory
//! The pool is a file whose reads are delayed, the cache device is a file beside it that is
//! not. A file of a multiple of the memory is read at random places by several threads: without
//! a cache device, with one that has been filled, with one that is written at full
//! `l2arc_write_max` meanwhile, right after an export and an import, and after the power
//! failed. Memory is emptied before each phase.
//!
//! The import is timed with and without restoring the content, in turns, and so is the time
//! until all of it is restored. Pages of the files are dropped from the kernel's cache where
//! the machine permits that.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use base::rt;
use base::{Error, ObjectId, Result};
use cenote::create::{AddRequest, CreateRequest, Force, NewKind, NewVdev, PoolSetting, Role};
use cenote::files::{Caller, New, WritePosition};
use cenote::inspect::arc::stats::SecondTierStats;
use cenote::inspect::device::{Device, Fault, FaultDevice};
use cenote::{
    DeviceWrapper, Engine, EngineConfig, FileSystem, ImportOptions, Io, Pool, PropData, Search,
};

use super::args::opt;
use super::frame::{Cell, ReportTable};
use super::lab;
use super::sample::{SampleContent, XorShift, median};
use super::tidy::Scratch;
use super::{Bench, BenchResult, Run};

pub(super) const BENCH: Bench = Bench {
    name: "l2arc",
    about: "a slow pool with and without a cache device, and its imports",
    words: "",
    options: &[&[
        opt("--memory", "SIZE", "the cache in memory (64M)"),
        opt("--times", "N", "size of the file, as a multiple of the memory (4)"),
        opt("--record", "SIZE", "record size (16K)"),
        opt("--delay", "TIME", "how much longer each read of the pool takes (0.005)"),
        opt("--threads", "N", "readers (4)"),
        opt("--time", "TIME", "time of each phase (10)"),
        opt("--rounds", "N", "imports of each sort (3)"),
        opt("--device", "DIR", "directory for the pool and the cache device ($TMPDIR)"),
    ]],
    run,
};

const POOL: &str = "benchl2";
const DATASET: &str = "benchl2/fs";
/// Bytes that are written at once when the file is made.
const PART: usize = 1 << 20;
/// Passes over the file after which a cache device has what it will have.
const PASSES: u64 = 12;

/// The command line.
struct L2Options {
    memory: u64,
    size: u64,
    record: u64,
    delay: Duration,
    threads: u64,
    time: Duration,
    rounds: u64,
}

/// An open pool.
struct OpenPool {
    engine: Arc<Engine>,
    pool: Arc<Pool>,
    fs: Arc<FileSystem>,
}

/// Files and configuration of the pool.
struct SlowPool {
    scratch: Scratch,
    delay: Duration,
    memory: u64,
}

impl SlowPool {
    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// An engine for which all reads of the pool's file are slow if `slow`.
    fn engine(&self, slow: bool, rebuild: bool) -> Result<Arc<Engine>> {
        let (image, delay) = (self.path("pool.img").display().to_string(), self.delay);
        let wrap = move |device: Arc<dyn Device>| -> Arc<dyn Device> {
            if !slow || !device.describe().contains(&image) {
                return device;
            }
            let faulty = FaultDevice::new(device);
            faulty.inject(Fault::Delay(delay));
            Arc::new(faulty)
        };
        let engine = Engine::new(EngineConfig {
            cache_bytes: Some(self.memory),
            device_wrapper: Some(DeviceWrapper::new(wrap)),
            ..EngineConfig::default()
        })?;
        tune(&engine, "l2arc_rebuild_blocks_min_l2size", "0")?;
        tune(&engine, "l2arc_rebuild_enabled", if rebuild { "on" } else { "off" })?;
        Ok(engine)
    }

    fn vdev(&self, name: &str, size: u64) -> Result<NewVdev> {
        let path = self.path(name);
        let failed = |e| Error::io("cannot make the image", e).on_path(path.to_string_lossy());
        std::fs::File::create(&path).and_then(|f| f.set_len(size)).map_err(failed)?;
        Ok(NewVdev::new(NewKind::File(path)))
    }

    fn import(&self, slow: bool, rebuild: bool) -> Result<(OpenPool, Duration)> {
        let engine = self.engine(slow, rebuild)?;
        let search = Search { paths: vec![self.scratch.path().to_owned()], ..Search::default() };
        let found = engine.discover(&search)?;
        let found = found.pools.iter().find(|pool| pool.name == POOL);
        let found = found.ok_or_else(|| Error::not_found("the pool is gone"))?;
        let began = rt::now();
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let pool = engine.import(found, &options)?;
        let fs = pool.dataset(DATASET)?.open_fs()?;
        Ok((OpenPool { engine, pool, fs }, began.elapsed()))
    }
}

fn tune(engine: &Engine, name: &str, value: &str) -> Result<()> {
    let tunable = cenote::tune::find(name);
    tunable?.set(engine, value)
}

impl OpenPool {
    fn l2(&self) -> SecondTierStats {
        self.engine.arc_stats().l2
    }

    /// Waits for the restored content; the time that it took.
    fn rebuilt(&self) -> Duration {
        let began = rt::now();
        let caches = || self.pool.spa().zio().cache_devices();
        while caches().is_none_or(|c| c.devices().is_empty() || c.is_rebuilding()) {
            rt::sleep(Duration::from_micros(200));
        }
        began.elapsed()
    }

    fn export(self) -> Result<()> {
        drop(self.fs);
        self.pool.export()
    }
}

/// The figures of a phase.
#[derive(Clone, Copy, Debug, Default)]
struct PhaseFigures {
    rate: f64,
    /// Share of the reads beyond memory that the cache device answered.
    hits: Option<f64>,
    /// Nanoseconds.
    p50: u64,
    p99: u64,
    written: u64,
}

fn percentile(sorted: &[u64], percent: usize) -> u64 {
    sorted
        .get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0)
}

/// Reads records at random places for a while.
fn read_at_random(
    open: &OpenPool,
    id: ObjectId,
    options: &L2Options,
    run: &mut Run,
    what: &str,
) -> BenchResult<PhaseFigures> {
    open.engine.drop_cache();
    lab::drop_kernel_caches();
    let before = open.l2();
    let stop = AtomicBool::new(false);
    let began = rt::now();
    let reader = |thread: u64| -> Result<Vec<u64>> {
        let file = open.fs.open_file(id, Io::WAIT)?;
        let (mut rng, mut times) = (XorShift::new(77 + thread), Vec::new());
        let mut buffer = vec![0; options.record as usize];
        while !stop.load(Relaxed) {
            let at = rng.below(options.size / options.record) * options.record;
            let start = rt::now();
            file.read_at(at, &mut buffer, Io::WAIT)?;
            times.push(start.elapsed().as_nanos() as u64);
        }
        Ok(times)
    };
    let mut all = Vec::new();
    let mut failed = None;
    let milliseconds = options.time.as_millis() as u64;
    let waited = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.threads)
            .map(|thread| {
                let reader = &reader;
                scope.spawn(move || reader(thread))
            })
            .collect();
        let mut waited = Ok(());
        while began.elapsed() < options.time && waited.is_ok() {
            waited = run.step(what, began.elapsed().as_millis() as u64, milliseconds);
            rt::sleep(Duration::from_millis(20));
        }
        stop.store(true, Relaxed);
        for thread in threads {
            match thread.join() {
                Ok(Ok(times)) => all.extend(times),
                Ok(Err(e)) => failed = Some(e),
                Err(_) => failed = Some(Error::bug("a reader panicked")),
            }
        }
        waited
    });
    waited?;
    if let Some(e) = failed {
        return Err(e.into());
    }
    let (seconds, after) = (began.elapsed().as_secs_f64(), open.l2());
    all.sort_unstable();
    let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
    Ok(PhaseFigures {
        rate: all.len() as f64 / seconds.max(1e-9),
        hits: lab::ratio(hits, hits + misses),
        p50: percentile(&all, 50),
        p99: percentile(&all, 99),
        written: after.write_bytes - before.write_bytes,
    })
}

/// Reads the file in order, and calls `after_part` after each part.
fn read_through(
    open: &OpenPool,
    id: ObjectId,
    options: &L2Options,
    after_part: &dyn Fn(),
) -> Result<()> {
    let file = open.fs.open_file(id, Io::WAIT)?;
    let mut buffer = vec![0; PART];
    for at in (0..options.size).step_by(PART) {
        file.read_at(at, &mut buffer, Io::WAIT)?;
        after_part();
        if super::tidy::interrupted() {
            return Ok(());
        }
    }
    Ok(())
}

fn make(run: &mut Run, slow: &SlowPool, options: &L2Options) -> BenchResult<ObjectId> {
    let engine = slow.engine(false, true)?;
    let vdevs = vec![slow.vdev("pool.img", options.size * 5 / 4 + (512 << 20))?];
    let request = CreateRequest {
        force: Force::ALL,
        settings: vec![PoolSetting::Stored("ashift", 12)],
        ..CreateRequest::new(POOL, vdevs)
    };
    let pool = engine.create_pool(&request)?;
    let pool = pool.ok_or_else(|| Error::bug("a pool that was not made"))?;
    let props = [("recordsize", options.record), ("compression", 2)];
    let props = props.map(|(name, n)| (name.to_owned(), PropData::Num(n)));
    let fs = pool.create_filesystem(DATASET, &props, None)?.open_fs()?;
    let id = fs.make(&Caller::root(), fs.root(), b"data", &New::file(0o644))?.id;
    let (content, mut part) = (SampleContent::noise(5), vec![0; PART]);
    for at in (0..options.size).step_by(PART) {
        run.step("making the file", at, options.size)?;
        content.fill(at, &mut part);
        fs.write(&Caller::root(), id, WritePosition::Offset(at), &part)?;
    }
    pool.sync()?;
    drop(fs);
    pool.export()?;
    Ok(id)
}

/// Adds the cache device and lets it get the file.
fn fill(
    run: &mut Run,
    slow: &SlowPool,
    id: ObjectId,
    options: &L2Options,
) -> BenchResult<SecondTierStats> {
    let (open, _) = slow.import(false, true)?;
    let size = (options.size * 9 / 8 + (64 << 20)).next_multiple_of(1 << 20);
    let vdev = slow.vdev("cache.img", size)?.for_role(Role::Cache);
    let (vdevs, force) = (vec![vdev], Force::ALL);
    let add = AddRequest { vdevs, force, dry_run: false, ashift: None, command: None };
    open.engine.add_vdevs(&open.pool, &add)?;
    open.rebuilt();
    // What fills the device is not measured: as fast as it can.
    for (name, value) in
        [("l2arc_write_max", "1G"), ("l2arc_feed_min_ms", "1"), ("l2arc_noprefetch", "off")]
    {
        tune(&open.engine, name, value)?;
    }
    let caches = open.pool.spa().zio().cache_devices();
    let caches = caches.ok_or_else(|| Error::bug("the cache device was not added"))?;
    for pass in 0..PASSES {
        run.step("filling the cache device", pass, PASSES)?;
        read_through(&open, id, options, &|| caches.drain())?;
        if open.l2().asize >= options.size - options.size / 50 {
            break;
        }
    }
    let filled = open.l2();
    drop(caches);
    open.export()?;
    Ok(filled)
}

fn run(run: &mut Run) -> BenchResult<()> {
    let args = &run.args;
    args.no_rest()?;
    let memory = args.size("--memory", 64 << 20, 8 << 20..=1 << 40)?;
    let options = L2Options {
        memory,
        size: (memory * args.count("--times", 4, 1..=1024)?).next_multiple_of(PART as u64),
        record: args.size("--record", 16 << 10, 4096..=1 << 20)?.next_power_of_two(),
        delay: args.time("--delay", Duration::from_millis(5))?,
        threads: args.count("--threads", 4, 1..=256)?,
        time: args.time("--time", Duration::from_secs(10))?,
        rounds: args.count("--rounds", 3, 1..=1000)?,
    };
    let dir = args.text("--device").map_or_else(std::env::temp_dir, PathBuf::from);
    lab::check_space(Path::new(&dir), options.size * 3 + (1 << 30))?;
    let slow =
        SlowPool { scratch: Scratch::new(&dir)?, delay: options.delay, memory: options.memory };
    let id = make(run, &slow, &options)?;
    let mut phases = ReportTable::new(
        "phases",
        &[
            ("phase", "PHASE"),
            ("reads_per_second", "READS/S"),
            ("device_hits", "DEVICE HITS"),
            ("p50_us", "P50 US"),
            ("p99_us", "P99 US"),
            ("written", "WRITTEN"),
        ],
    );
    let mut note = |name: &str, f: PhaseFigures| {
        phases.rows.push(vec![
            name.into(),
            Cell::Real(f.rate),
            Cell::ratio(f.hits),
            Cell::Real(f.p50 as f64 / 1e3),
            Cell::Real(f.p99 as f64 / 1e3),
            Cell::Bytes(f.written),
        ]);
    };
    let (open, _) = slow.import(true, true)?;
    note("without", read_at_random(&open, id, &options, run, "without a cache device")?);
    open.export()?;
    let filled = fill(run, &slow, id, &options)?;
    let (open, _) = slow.import(true, true)?;
    open.rebuilt();
    note("with", read_at_random(&open, id, &options, run, "with a cache device")?);
    note("feeding", feeding(run, &open, id, &options)?);
    open.export()?;
    // At once: what the rebuild has not found yet is a miss.
    let (open, _) = slow.import(true, true)?;
    note("imported", read_at_random(&open, id, &options, run, "after an import")?);
    open.rebuilt();
    let held = open.l2();
    open.pool.give_up();
    drop(open);
    let (open, _) = slow.import(true, true)?;
    open.rebuilt();
    let kept = open.l2();
    note("after a crash", read_at_random(&open, id, &options, run, "after a crash")?);
    open.export()?;
    run.report.tables.push(phases);
    imports(run, &slow, &options)?;
    run.report.set("memory", Cell::Bytes(options.memory));
    run.report.set("file", Cell::Bytes(options.size));
    run.report.set("record", Cell::Bytes(options.record));
    run.report.set("delay_ms", Cell::Real(options.delay.as_secs_f64() * 1e3));
    run.report.set("threads", Cell::Count(options.threads));
    run.report.set("filled", Cell::Bytes(filled.asize));
    run.report.set("kept_after_crash", Cell::ratio(lab::ratio(kept.asize, held.asize)));
    Ok(())
}

/// The same reads while the device is written at full `l2arc_write_max`.
fn feeding(
    run: &mut Run,
    open: &OpenPool,
    id: ObjectId,
    options: &L2Options,
) -> BenchResult<PhaseFigures> {
    let caches = open.pool.spa().zio().cache_devices();
    let caches = caches.ok_or_else(|| Error::bug("the cache device is gone"))?;
    let devices = caches.devices();
    let device = devices.first().ok_or_else(|| Error::bug("the cache device is gone"))?;
    // Writes of the same size and pace as the feed's, to the space behind the ring's content.
    let (stop, tunables) = (AtomicBool::new(false), caches.tunables());
    let (raw, end) = (Arc::clone(device.device()), device.device().size() - (1 << 20));
    let writer = || {
        let block = base::Buf::zeros(1 << 20);
        while !stop.load(Relaxed) {
            let turn = rt::now();
            for n in 0..tunables.write_max >> 20 {
                if stop.load(Relaxed) {
                    return;
                }
                let room = (32 << 20).min(end / 4);
                let offset = (end - room + (n << 20) % room) & !4095;
                let io = cenote::inspect::device::Io::Write { offset, bufs: vec![block.clone()] };
                let _ended = raw.run(io);
            }
            let pause = Duration::from_secs(tunables.feed_secs);
            rt::sleep(pause.saturating_sub(turn.elapsed()).min(Duration::from_secs(1)));
        }
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(writer);
        let figures = read_at_random(open, id, options, run, "beside a feed");
        stop.store(true, Relaxed);
        let _ended = thread.join();
        figures
    })
}

/// Imports with and without restoring the content, in turns.
fn imports(run: &mut Run, slow: &SlowPool, options: &L2Options) -> BenchResult<()> {
    let mut table = ReportTable::new(
        "imports",
        &[
            ("content", "CONTENT"),
            ("usable_ms", "USABLE MS"),
            ("rebuilt_ms", "REBUILT MS"),
            ("blocks", "BLOCKS"),
            ("bytes", "BYTES"),
            ("index", "INDEX"),
            ("index_per_block", "INDEX/BLOCK"),
        ],
    );
    let mut times = [Vec::new(), Vec::new()];
    let mut rebuilt = Vec::new();
    let mut restored = SecondTierStats::default();
    for round in 0..options.rounds {
        // An import that does not restore empties the device, so it gets no device.
        for with in [false, true] {
            run.step("importing", 2 * round + u64::from(with), 2 * options.rounds)?;
            // In another directory: the import finds devices by their labels, not their names.
            let (cache, away) = (slow.path("cache.img"), slow.path("away/cache.img"));
            let failed = |e| Error::io("cannot rename the cache device", e);
            std::fs::create_dir_all(slow.path("away")).map_err(failed)?;
            if !with {
                std::fs::rename(&cache, &away).map_err(failed)?;
            }
            lab::drop_kernel_caches();
            let imported = slow.import(false, with);
            if !with {
                let (open, usable) = imported?;
                times[0].push(usable.as_secs_f64() * 1e3);
                open.export()?;
                std::fs::rename(&away, &cache).map_err(failed)?;
                continue;
            }
            let (open, usable) = imported?;
            times[1].push(usable.as_secs_f64() * 1e3);
            rebuilt.push((usable + open.rebuilt()).as_secs_f64() * 1e3);
            restored = open.l2();
            open.export()?;
        }
    }
    let [without, with] = times.map(median);
    table.rows.push(vec![
        "absent".into(),
        Cell::real(without),
        Cell::Nothing,
        Cell::Nothing,
        Cell::Nothing,
        Cell::Nothing,
        Cell::Nothing,
    ]);
    table.rows.push(vec![
        "restored".into(),
        Cell::real(with),
        Cell::real(median(rebuilt)),
        Cell::Count(restored.rebuild_bufs),
        Cell::Bytes(restored.rebuild_asize),
        Cell::Bytes(restored.hdr_size),
        Cell::real(lab::ratio(restored.hdr_size, restored.rebuild_bufs)),
    ]);
    run.report.tables.push(table);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Stop;
    use super::super::frag::tests::{json, rows};

    #[test]
    fn a_cache_device_serves_what_memory_cannot_hold() {
        let scratch = testkit::Scratch::new("bench-l2arc");
        let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
        let (dir, out) = (path(""), path("out.json"));
        let words = "--memory 8M --times 4 --record 128K --time 0.2 --rounds 1 --threads 2";
        let more = ["--device", &dir, "--json", &out];
        let words: Vec<String> =
            words.split(' ').chain(more).map(|word| (*word).to_owned()).collect();
        super::BENCH.start(&words).map_err(Stop::text).unwrap();
        let json = json(std::path::Path::new(&out));
        let phases = rows(&json, "phases");
        let names: Vec<_> = phases.iter().map(|r| r["phase"].as_str().unwrap()).collect();
        assert_eq!(names, ["without", "with", "feeding", "imported", "after a crash"]);
        assert!(phases[0]["device_hits"].is_null());
        assert!(phases[1]["device_hits"].as_f64().unwrap() > 0.5, "{json}");
        let imports = rows(&json, "imports");
        assert!(imports[1]["blocks"].as_u64().unwrap() > 100, "{json}");
        assert!(imports[1]["index_per_block"].as_f64().unwrap() > 0.0, "{json}");
    }
}
