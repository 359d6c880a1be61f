//! Import and first write of a pool of many metaslabs with fragmented free space.
//!
//! # Theory
//! An import may read every space map, or only the maps from which it allocates. With thousands
//! of metaslabs that have been in use for years, the difference is seconds and gigabytes.
//!
//! The pool is a sparse file of which only the metadata is written. It begins small, so that its
//! metaslabs have the smallest size, 16 MiB, and grows to the wanted number by an expansion. A
//! file fills it in sequence to a level, and then the bench punches holes into the file, record
//! by record, each with a chance of one half. So every metaslab that the file reached has some
//! hundred free ranges. The records' bytes are a pattern that a device above the file recognises
//! and does not write ([`MetadataDevice`]): nothing reads them again.
//!
//! Then the pool is exported, and imported several times with an empty cache. The bench measures
//! the time of the import, the time from its begin until a first write was synced, what the
//! devices read for that, how much the resident memory of the process grew, and how many
//! metaslabs were loaded, with their free ranges. An export follows each round, so every round
//! begins with an exported pool.
//!
//! Resident memory contains the cache, whose share is shown beside it, and what the allocator of
//! the process keeps from earlier rounds: the first round is the one to look at.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::rt;
use base::{Error, Result};
use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting};
use cenote::files::{Caller, Falloc, New, WritePosition};
use cenote::inspect::device::{Caps, Completion, Device, DeviceStats, Io as DeviceIo, Op};
use cenote::{
    DeviceWrapper, Engine, EngineConfig, FileSystem, ImportOptions, Io, Pool, PropData, Search,
};

use super::args::opt;
use super::frame::{Cell, ReportTable};
use super::sample::{XorShift, median};
use super::tidy::Scratch;
use super::write_pool::rss;
use super::{Bench, BenchResult, Run};

pub(super) const BENCH: Bench = Bench {
    name: "metaslabs",
    about: "import and first write of a pool of many fragmented metaslabs",
    words: "",
    options: &[&[
        opt("--metaslabs", "N", "metaslabs of 16 MiB (2000)"),
        opt("--record", "SIZE", "record size (16K)"),
        opt("--fill", "PERCENT", "level before the holes (90)"),
        opt("--memory", "SIZE", "the cache (256M)"),
        opt("--rounds", "N", "imports (5)"),
        opt("--device", "DIR", "directory for the pool ($TMPDIR)"),
    ]],
    run,
};

const POOL: &str = "benchms";
const DATASET: &str = "benchms/fs";
const FILE: &[u8] = b"file";
/// log2 of the bytes of a sector, and of a metaslab.
const ASHIFT: u64 = 12;
const METASLAB: u64 = 16 << 20;
/// Bytes of the device at first: the largest one with metaslabs of that size has less than
/// sixteen times as many.
const FIRST_SIZE: u64 = 192 << 20;
/// Bytes of labels and what else is at the ends of a device.
const ENDS: u64 = 8 << 20;
/// Bytes of one write.
const PART: u64 = 1 << 20;
/// What each sector of a record consists of.
const PATTERN: [u8; 16] = *b"bench metaslabs\n";

/// The command line.
struct MetaslabsOptions {
    metaslabs: u64,
    record: u64,
    fill: u64,
    memory: u64,
    rounds: u64,
}

fn is_pattern(bytes: &[u8]) -> bool {
    bytes.starts_with(&PATTERN) && bytes.ends_with(&PATTERN)
}

/// A device that does not write buffers of [`PATTERN`].
struct MetadataDevice(Arc<dyn Device>);

impl MetadataDevice {
    /// Writes the other buffers.
    fn write(&self, offset: u64, bufs: &[base::Buf]) -> Result<usize> {
        let (mut at, mut sum) = (offset, 0);
        for buf in bufs {
            if !is_pattern(buf) {
                self.0.run(DeviceIo::Write { offset: at, bufs: vec![buf.clone()] }).result?;
            }
            at += buf.len() as u64;
            sum += buf.len();
        }
        Ok(sum)
    }

    fn has_pattern(io: &DeviceIo) -> bool {
        matches!(io, DeviceIo::Write { bufs, .. } if bufs.iter().any(|buf| is_pattern(buf)))
    }
}

impl Device for MetadataDevice {
    fn caps(&self) -> &Caps {
        self.0.caps()
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn refresh_size(&self) -> Result<u64> {
        self.0.refresh_size()
    }

    fn submit(&self, batch: Vec<Op>) {
        let (own, others): (Vec<Op>, Vec<Op>) =
            batch.into_iter().partition(|op| MetadataDevice::has_pattern(&op.io));
        if !others.is_empty() {
            self.0.submit(others);
        }
        for Op { io, done } in own {
            done(self.run(io));
        }
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn stats(&self) -> &DeviceStats {
        self.0.stats()
    }

    fn is_at(&self, path: &Path) -> bool {
        self.0.is_at(path)
    }

    fn run(&self, io: DeviceIo) -> Completion {
        match &io {
            DeviceIo::Write { offset, bufs } if MetadataDevice::has_pattern(&io) => {
                let result = self.write(*offset, bufs);
                Completion { io, result }
            }
            _ => self.0.run(io),
        }
    }
}

fn run(run: &mut Run) -> BenchResult<()> {
    let args = &run.args;
    args.no_rest()?;
    let options = MetaslabsOptions {
        metaslabs: args.count("--metaslabs", 2000, 12..=1 << 17)?,
        record: args.size("--record", 16 << 10, 512..=1 << 20)?.next_power_of_two(),
        fill: args.count("--fill", 90, 1..=95)?,
        memory: args.size("--memory", 256 << 20, 1 << 20..=1 << 40)?,
        rounds: args.count("--rounds", 5, 1..=1000)?,
    };
    let dir = args.text("--device").map_or_else(std::env::temp_dir, PathBuf::from);
    let scratch = Scratch::new(&dir)?;
    let image = scratch.path().join("metaslabs.img");
    make(run, &image, &options)?;
    let mut table = rounds_table();
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        run.step("importing", round, options.rounds)?;
        let measured = measure(&image, &options)?;
        table.rows.push(measured.row());
        rounds.push(measured);
    }
    run.report.set("metaslabs", Cell::Count(options.metaslabs));
    run.report.set("record", Cell::Bytes(options.record));
    run.report.set("memory", Cell::Bytes(options.memory));
    let import = median(rounds.iter().map(|r| milliseconds(r.import)));
    let first = median(rounds.iter().map(|r| milliseconds(r.first)));
    run.report.set("import, ms", Cell::real(import));
    run.report.set("first synced write, ms", Cell::real(first));
    run.report.tables.push(table);
    Ok(())
}

fn engine(memory: u64) -> Result<Arc<Engine>> {
    let wrap = |below: Arc<dyn Device>| -> Arc<dyn Device> { Arc::new(MetadataDevice(below)) };
    Engine::new(EngineConfig {
        cache_bytes: Some(memory),
        device_wrapper: Some(DeviceWrapper::new(wrap)),
        ..EngineConfig::default()
    })
}

/// Makes the pool, fragments it and exports it.
fn make(run: &mut Run, image: &Path, options: &MetaslabsOptions) -> BenchResult<()> {
    let failed = |e| Error::io("cannot make the image", e).on_path(image.to_string_lossy());
    let file = std::fs::File::create_new(image).map_err(failed)?;
    file.set_len(FIRST_SIZE).map_err(failed)?;
    let engine = engine(options.memory)?;
    let device = image.to_str().ok_or_else(|| Error::invalid("--device: no UTF-8"))?;
    let request = CreateRequest {
        force: Force::ALL,
        settings: vec![PoolSetting::Stored("ashift", ASHIFT)],
        ..CreateRequest::new(POOL, vec![NewVdev::new(NewKind::File(image.to_owned()))])
    };
    let pool = engine.create_pool(&request)?;
    let pool = pool.ok_or_else(|| Error::bug("a pool that was not made"))?;
    file.set_len(options.metaslabs * METASLAB + ENDS).map_err(failed)?;
    engine.online(&pool, device, true, None)?;
    pool.sync()?;
    // Off, so that the records have their size and are not taken for holes.
    let props = [("recordsize", options.record), ("compression", 2)];
    let props = props.map(|(name, n)| (name.to_owned(), PropData::Num(n)));
    let dataset = pool.create_filesystem(DATASET, &props, None)?;
    let (fs, root) = (dataset.open_fs()?, Caller::root());
    let id = fs.make(&root, fs.root(), FILE, &New::file(0o644))?.id;
    pool.sync()?;
    let available = u128::from(dataset.available()?) * u128::from(options.fill) / 100;
    let size = u64::try_from(available).unwrap_or(u64::MAX) / PART * PART;
    let part: Vec<u8> = PATTERN.iter().copied().cycle().take(PART as usize).collect();
    for at in (0..size).step_by(PART as usize) {
        run.step("filling the pool", at, size)?;
        fs.write(&root, id, WritePosition::Offset(at), &part)?;
    }
    pool.sync()?;
    let mut random = XorShift::new(11);
    for at in (0..size).step_by(options.record as usize) {
        run.step("punching holes", at, size)?;
        if random.next() & 1 == 0 {
            fs.allocate(&root, id, Falloc::PunchHole, at, options.record)?;
        }
    }
    drop(fs);
    // Freed space becomes free after two more txgs.
    (0..4).try_for_each(|_| pool.sync())?;
    let map = pool.space_map()?;
    let slabs = map.vdevs.iter().flat_map(|vdev| &vdev.metaslabs);
    let broken = slabs.filter(|ms| ms.fragmentation.is_some_and(|f| f > 0)).count();
    run.report.set("fragmented metaslabs", Cell::Count(broken as u64));
    pool.export()?;
    Ok(())
}

/// What one import cost.
struct ImportRound {
    /// Until the pool is imported, and until a first write was synced.
    import: Duration,
    first: Duration,
    /// Requests and bytes that the device read until then.
    reads: u64,
    read_bytes: u64,
    /// Growth of the resident memory after the import and after the write, and the cache.
    import_memory: u64,
    memory: u64,
    cache: u64,
    /// Metaslabs, those loaded after the import and after the write, and their free ranges.
    metaslabs: u64,
    import_loaded: u64,
    loaded: u64,
    ranges: u64,
}

fn measure(image: &Path, options: &MetaslabsOptions) -> Result<ImportRound> {
    let engine = engine(options.memory)?;
    let search = Search { paths: vec![image.to_owned()], ..Search::default() };
    let found = engine.discover(&search)?;
    let found = found.pools.iter().find(|pool| pool.name == POOL);
    let found = found.ok_or_else(|| Error::not_found("the pool is gone"))?;
    let (before, began) = (rss(), rt::now());
    let import_options = ImportOptions { force: true, ..ImportOptions::default() };
    let pool = engine.import(found, &import_options)?;
    let import = began.elapsed();
    let import_memory = rss().saturating_sub(before);
    let import_loaded = pool.writer()?.space().loaded().loaded as u64;
    let fs = pool.dataset(DATASET)?.open_fs()?;
    write_one(&fs, options)?;
    pool.sync()?;
    let first = began.elapsed();
    let memory = rss().saturating_sub(before);
    let loaded = pool.writer()?.space().loaded();
    let (reads, read_bytes) = device_reads(&pool)?;
    let round = ImportRound {
        import,
        first,
        reads,
        read_bytes,
        import_memory,
        memory,
        cache: engine.arc_stats().size,
        metaslabs: loaded.all as u64,
        import_loaded,
        loaded: loaded.loaded as u64,
        ranges: loaded.ranges as u64,
    };
    drop(fs);
    pool.export()?;
    Ok(round)
}

/// Overwrites the first record.
fn write_one(fs: &FileSystem, options: &MetaslabsOptions) -> Result<()> {
    let id = fs.lookup(fs.root(), FILE, Io::WAIT)?.id;
    let record: Vec<u8> = PATTERN.iter().copied().cycle().take(options.record as usize).collect();
    fs.write(&Caller::root(), id, WritePosition::Offset(0), &record).map(drop)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn device_reads(pool: &Pool) -> Result<(u64, u64)> {
    let tree = pool.writer()?.zio().tree();
    let devices = tree.leaves().filter_map(|(_, leaf)| leaf.device());
    let stats = devices.map(|d| d.stats().snapshot());
    Ok(stats.fold((0, 0), |sum, s| (sum.0 + s.reads, sum.1 + s.bytes_read)))
}

fn rounds_table() -> ReportTable {
    ReportTable::new(
        "imports",
        &[
            ("import_ms", "IMPORT ms"),
            ("first_write_ms", "FIRST WRITE ms"),
            ("reads", "READS"),
            ("read_bytes", "READ"),
            ("import_memory", "MEM IMPORT"),
            ("memory", "MEM WRITE"),
            ("cache", "CACHE"),
            ("metaslabs", "METASLABS"),
            ("import_loaded", "LOADED IMPORT"),
            ("loaded", "LOADED WRITE"),
            ("ranges", "RANGES"),
        ],
    )
}

impl ImportRound {
    fn row(&self) -> Vec<Cell> {
        vec![
            Cell::Real(milliseconds(self.import)),
            Cell::Real(milliseconds(self.first)),
            Cell::Count(self.reads),
            Cell::Bytes(self.read_bytes),
            Cell::Bytes(self.import_memory),
            Cell::Bytes(self.memory),
            Cell::Bytes(self.cache),
            Cell::Count(self.metaslabs),
            Cell::Count(self.import_loaded),
            Cell::Count(self.loaded),
            Cell::Count(self.ranges),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::Stop;
    use super::super::frag::tests::{json, rows};

    #[test]
    fn only_maps_in_use_are_loaded() {
        let scratch = testkit::Scratch::new("bench-metaslabs");
        let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
        let (dir, out) = (path(""), path("out.json"));
        let size = ["--metaslabs", "64", "--record", "128K", "--rounds", "4"];
        let place = ["--memory", "64M", "--device", &dir, "--json", &out];
        let words: Vec<String> = size.iter().chain(&place).map(|w| (*w).to_owned()).collect();
        super::BENCH.start(&words).map_err(Stop::text).unwrap();
        let json = json(std::path::Path::new(&out));
        let rows = rows(&json, "imports");
        assert_eq!(rows.len(), 4);
        for row in rows {
            let number = |key: &str| row[key].as_u64().unwrap();
            assert_eq!(number("metaslabs"), 64, "{json}");
            assert!(number("import_loaded") <= number("loaded"), "{json}");
            // Each import's first txg flushes all metaslabs; those without changes unread.
            assert!((1..32).contains(&number("loaded")), "{json}");
            assert!(number("ranges") > 0 && number("reads") > 0, "{json}");
        }
        assert!(json["settings"]["fragmented_metaslabs"].as_u64().unwrap() > 32, "{json}");
    }
}
