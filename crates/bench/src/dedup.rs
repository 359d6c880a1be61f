//! Deduplicated writes and frees beside ordinary ones, by the entries that the table has.
//!
//! # Theory
//! Two pools, each with an engine and a cache of its own. One has a dedup table, which is filled
//! with blocks of different content to each of the given sizes. The other deduplicates nothing.
//! At each size, rounds follow each other; each writes a file and frees it again:
//!
//! * `off`: in the pool without a table, with its usual checksum, and once more with sha256, which
//!   is what deduplication uses;
//! * `unique`: blocks that the table does not have; each makes an entry, and its free removes it;
//! * `duplicate`: blocks that the table has, chosen at random; each adds a reference.
//!
//! All write the same number of blocks, and no content twice except as `duplicate`. A rate is
//! that until a sync is over. A fast table moves its entries from logs into its ZAPs in later
//! txgs: further ones follow until the logs are empty, and what they cost beyond idle ones is in the
//! column of the logs. The cost beside `off` has it, too.
//!
//! The filling is a row of its own: it is long enough that the logs are flushed meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::rt;
use base::{Error, Result};
use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting};
use cenote::files::{Caller, New, WritePosition};
use cenote::{Engine, EngineConfig, FileSystem, Pool, PropData};

use super::args::opt;
use super::frag_target::RunningPool;
use super::frame::{Cell, ReportTable};
use super::lab;
use super::sample::{SampleContent, XorShift, median};
use super::tidy::Scratch;
use super::write_pool::{cpu, patterns, rss};
use super::{Bench, BenchResult, Run, Stop};

pub(super) const BENCH: Bench = Bench {
    name: "dedup",
    about: "deduplicated writes and frees by the entries of the table",
    words: "",
    options: &[&[
        opt("--entries", "LIST", "sizes of the table (10000,1000000,10000000)"),
        opt("--batch", "N", "blocks of a round, at most the table's entries (50000)"),
        opt("--rounds", "N", "rounds at each size (5)"),
        opt("--record", "SIZE", "record size (4K)"),
        opt("--memory", "SIZE", "the cache of each pool (256M)"),
        opt("--legacy", "", "a table without logs"),
        opt("--device", "DIR", "directory for the pools ($TMPDIR)"),
    ]],
    run,
};

/// Bytes of a write.
const LARGE: u64 = 1 << 20;
/// Blocks of a file while the table is filled.
const FILE_BLOCKS: u64 = 1 << 20;
/// Txgs between two looks at the logs.
const SYNCS: u64 = 16;
/// Txgs after which the logs must be empty.
const SYNCS_MAX: u64 = 20_000;
/// Bytes that an entry takes in the pool, with copies of the table's blocks.
const ENTRY_BYTES: u64 = 1024;
/// Bytes of a pool beside its data.
const SPARE: u64 = 1 << 30;

/// The command line.
struct DedupBenchOptions {
    entries: Vec<u64>,
    batch: u64,
    rounds: u64,
    record: u64,
    memory: u64,
    legacy: bool,
}

/// The cost of an operation of many blocks.
#[derive(Clone, Copy, Default)]
struct DedupCost {
    /// Until the sync is over.
    time: Duration,
    /// Of the processors, until then.
    cpu: Duration,
    /// Of the processors, for the logs.
    logs: Duration,
}

/// A file system under test.
struct DedupTarget {
    pool: Arc<Pool>,
    fs: Arc<FileSystem>,
    /// The pool has a dedup table.
    table: bool,
}

/// The costs of writing and of freeing, in each round.
#[derive(Default)]
struct DedupRounds {
    writes: Vec<DedupCost>,
    frees: Vec<DedupCost>,
}

/// The blocks: the content of each is a pattern with the block's number in it.
struct NumberedBlocks {
    patterns: Vec<Vec<u8>>,
    record: u64,
}

/// Kinds of blocks, in the order in which a round writes them: dedup, data.
const KINDS: [(&str, &str); 4] =
    [("off", "unique"), ("off,sha256", "unique"), ("on", "unique"), ("on", "duplicate")];

fn options(run: &Run) -> BenchResult<DedupBenchOptions> {
    let args = &run.args;
    args.no_rest()?;
    let list = args.text("--entries").unwrap_or("10000,1000000,10000000");
    let one = |word: &str| {
        let number = cenote::props::parse_size(word).map_err(|e| format!("--entries: {e}"))?;
        let fits = (1..=1 << 30).contains(&number);
        fits.then_some(number).ok_or_else(|| "--entries: must lie between 1 and 2^30".to_owned())
    };
    let mut entries = list.split(',').map(one).collect::<std::result::Result<Vec<_>, _>>();
    entries.iter_mut().for_each(|list| list.sort_unstable());
    Ok(DedupBenchOptions {
        entries: entries.map_err(Stop::Usage)?,
        batch: args.count("--batch", 50_000, 1..=1 << 24)?,
        rounds: args.count("--rounds", 5, 1..=1000)?,
        record: args.size("--record", 4096, 512..=1 << 20)?.next_power_of_two(),
        memory: args.size("--memory", 256 << 20, 8 << 20..=1 << 40)?,
        legacy: args.flag("--legacy"),
    })
}

fn run(run: &mut Run) -> BenchResult<()> {
    let options = options(run)?;
    let dir = run.args.text("--device").map_or_else(std::env::temp_dir, PathBuf::from);
    let most = options.entries.last().copied().unwrap_or(0);
    let of = |blocks: u64| (options.record * 9 / 8 + ENTRY_BYTES) * blocks + SPARE;
    let (table_size, off_size) = (of(most + 4 * options.batch), of(6 * options.batch));
    lab::check_space(&dir, most * (options.record * 9 / 8 + ENTRY_BYTES / 2))?;
    let scratch = Scratch::new(&dir)?;
    let image = |name: &str| scratch.path().join(name);
    let (off_pool, off) = make("benchoff", &image("off.img"), off_size, &options)?;
    let (on_pool, on) = make("benchon", &image("on.img"), table_size, &options)?;
    let file_system = |of: &Arc<Pool>, name: &str, props: [(&str, u64); 2]| {
        let all = props.into_iter().chain([("recordsize", options.record), ("compression", 2)]);
        let all: Vec<_> = all.map(|(name, n)| (name.to_owned(), PropData::Num(n))).collect();
        let fs = of.create_filesystem(&format!("{}/{name}", of.name()), &all, None)?.open_fs()?;
        let table = Arc::ptr_eq(of, &on);
        Ok::<_, Error>(DedupTarget { pool: Arc::clone(of), fs, table })
    };
    let plain = file_system(&off, "plain", [("checksum", 1), ("dedup", 2)])?;
    let hashed = file_system(&off, "hashed", [("checksum", 8), ("dedup", 2)])?;
    let shared = file_system(&on, "shared", [("checksum", 1), ("dedup", 1)])?;
    drop((off, on));
    let buffers = patterns(&SampleContent::noise(5), options.record.max(512));
    let blocks = NumberedBlocks { patterns: buffers, record: options.record };
    let columns = [
        ("entries", "ENTRIES"),
        ("dedup", "DEDUP"),
        ("data", "DATA"),
        ("writes_s", "WRITES/S"),
        ("write_cpu_us", "CPU us"),
        ("write_logs_us", "LOGS us"),
        ("frees_s", "FREES/S"),
        ("free_cpu_us", "CPU us"),
        ("free_logs_us", "LOGS us"),
    ];
    let mut table = ReportTable::new("rates", &columns);
    let mut memory = ReportTable::new(
        "tables",
        &[("entries", "ENTRIES"), ("on_disk", "ON DISK"), ("resident", "RESIDENT")],
    );
    let (mut filled, mut files) = (0, 0);
    // No number of a block of a round is one of the table's.
    let mut next = 1 << 40;
    for &entries in &options.entries {
        let began = (rt::now(), cpu());
        let first = filled;
        while filled < entries {
            let count = FILE_BLOCKS.min(entries - filled);
            let numbers = filled..filled + count;
            blocks.write(run, &shared, &format!("table{files}"), &mut { numbers })?;
            (filled, files) = (filled + count, files + 1);
        }
        shared.pool.sync()?;
        if filled > first {
            let mut cost = DedupCost::since(began, Duration::ZERO);
            cost.logs = shared.settle(run)?;
            let cells = cost.cells(filled - first);
            let head = [Cell::Count(entries), "on".into(), "filling".into()];
            table.rows.push(head.into_iter().chain(cells).chain(DedupCost::nothing()).collect());
        }
        let report = shared.pool.dedup_report()?;
        if report.entries != entries {
            let text = format!("{} entries instead of {entries}", report.entries);
            return Err(Error::bug(text).into());
        }
        let row = [Cell::Count(entries), Cell::Bytes(report.on_disk), Cell::Bytes(rss())];
        memory.rows.push(row.into());
        let targets = [&plain, &hashed, &shared, &shared];
        let rounds = measure(run, &options, &blocks, targets, (entries, &mut next))?;
        report_rounds(run, &mut table, entries, options.batch.min(entries), &rounds);
    }
    run.report.set("record", Cell::Bytes(options.record));
    run.report.set("the cache", Cell::Bytes(options.memory));
    run.report.set("blocks of a round", Cell::Count(options.batch));
    run.report.set("table", if options.legacy { "legacy" } else { "fast" }.into());
    run.report.tables.push(table);
    run.report.tables.push(memory);
    drop((plain, hashed, shared));
    off_pool.end(false)?;
    on_pool.end(false)?;
    Ok(())
}

fn make(
    name: &str,
    image: &Path,
    size: u64,
    options: &DedupBenchOptions,
) -> Result<(RunningPool, Arc<Pool>)> {
    let failed = |e| Error::io("cannot make the image", e).on_path(image.to_string_lossy());
    let file = std::fs::File::create_new(image).map_err(failed)?;
    file.set_len(size).map_err(failed)?;
    let config = EngineConfig { cache_bytes: Some(options.memory), ..EngineConfig::default() };
    let engine = Engine::new(config)?;
    let ashift = if options.record < 4096 { 9 } else { 12 };
    let mut request = CreateRequest {
        force: Force::ALL,
        settings: vec![PoolSetting::Stored("ashift", ashift)],
        ..CreateRequest::new(name, vec![NewVdev::new(NewKind::File(image.to_owned()))])
    };
    request.features.retain(|feature| !options.legacy || feature.name() != "fast_dedup");
    let pool = engine.create_pool(&request)?;
    let pool = pool.ok_or_else(|| Error::bug("a pool that was not made"))?;
    Ok((RunningPool::new(Arc::clone(&pool), engine), pool))
}

/// The rounds at one size of the table.
fn measure(
    run: &mut Run,
    options: &DedupBenchOptions,
    blocks: &NumberedBlocks,
    targets: [&DedupTarget; KINDS.len()],
    (entries, next): (u64, &mut u64),
) -> BenchResult<[DedupRounds; KINDS.len()]> {
    let (count, root) = (options.batch.min(entries), Caller::root());
    let mut all: [DedupRounds; KINDS.len()] = Default::default();
    let mut random = XorShift::new(entries);
    // Of the pool with the table.
    let idle = if options.legacy { Duration::ZERO } else { targets[2].idle()? };
    for round in 0..options.rounds {
        for ((target, (_, data)), to) in targets.iter().zip(KINDS).zip(&mut all) {
            run.step(&format!("{data} blocks, round"), round, options.rounds)?;
            // Beyond the first of each number in a file, a duplicate is of the same txg.
            let mut numbers: Vec<u64> = match data {
                "duplicate" => (0..count).map(|_| random.below(entries)).collect(),
                _ => (*next..*next + count).collect(),
            };
            *next += count;
            let began = (rt::now(), cpu());
            blocks.write(run, target, "round", &mut numbers.drain(..))?;
            target.pool.sync()?;
            let mut written = DedupCost::since(began, Duration::ZERO);
            written.logs = target.settle_beyond(run, idle)?;
            let began = (rt::now(), cpu());
            target.fs.unlink(&root, target.fs.root(), b"round")?;
            target.pool.sync()?;
            let mut freed = DedupCost::since(began, Duration::ZERO);
            freed.logs = target.settle_beyond(run, idle)?;
            to.writes.push(written);
            to.frees.push(freed);
        }
    }
    Ok(all)
}

/// Rows of the medians, and the costs beside `off`.
fn report_rounds(
    run: &mut Run,
    table: &mut ReportTable,
    entries: u64,
    count: u64,
    rounds: &[DedupRounds; KINDS.len()],
) {
    let off = rounds[0].writes.iter().map(DedupCost::whole).collect::<Vec<_>>();
    for ((dedup, data), of) in KINDS.into_iter().zip(rounds) {
        let head = [Cell::Count(entries), dedup.into(), data.into()];
        let (writes, frees) = (DedupCost::median(&of.writes), DedupCost::median(&of.frees));
        let cells = writes.cells(count).into_iter().chain(frees.cells(count));
        table.rows.push(head.into_iter().chain(cells).collect());
        if (dedup, data) == ("on", "unique") {
            let ratios = of.writes.iter().zip(&off).map(|(on, off)| on.whole() / off.max(1e-9));
            let ratio = median(ratios).unwrap_or(f64::NAN);
            let what = format!("CPU of unique writes by dedup=off, {entries} entries");
            run.report.at_most(what, ratio, 2.0);
        }
    }
}

impl DedupCost {
    /// What was spent since a time and a state of the processors' clock.
    fn since((time, before): (rt::Instant, Duration), logs: Duration) -> DedupCost {
        DedupCost { time: time.elapsed(), cpu: cpu().saturating_sub(before), logs }
    }

    /// Seconds of the processors, with those for the logs.
    fn whole(&self) -> f64 {
        (self.cpu + self.logs).as_secs_f64()
    }

    fn median(of: &[DedupCost]) -> DedupCost {
        let part = |get: fn(&DedupCost) -> Duration| {
            let seconds = median(of.iter().map(|cost| get(cost).as_secs_f64()));
            Duration::from_secs_f64(seconds.unwrap_or(0.0))
        };
        DedupCost { time: part(|c| c.time), cpu: part(|c| c.cpu), logs: part(|c| c.logs) }
    }

    /// Blocks in a second, and microseconds for each.
    fn cells(&self, blocks: u64) -> [Cell; 3] {
        let each = |time: Duration| Cell::Real(time.as_secs_f64() * 1e6 / blocks.max(1) as f64);
        let rate = blocks as f64 / self.time.as_secs_f64().max(1e-9);
        [Cell::Real(rate), each(self.cpu), each(self.logs)]
    }

    fn nothing() -> [Cell; 3] {
        [Cell::Nothing, Cell::Nothing, Cell::Nothing]
    }
}

impl DedupTarget {
    /// Processor time of [`SYNCS`] txgs without changes of files.
    fn idle(&self) -> Result<Duration> {
        let before = cpu();
        self.txgs()?;
        Ok(cpu().saturating_sub(before))
    }

    /// Txgs without changes of files.
    fn txgs(&self) -> Result<()> {
        let writer = self.pool.writer()?;
        (0..SYNCS).try_for_each(|_| {
            writer.touch();
            self.pool.sync()
        })
    }

    /// Writes txgs until the logs are empty; returns the processor time of that.
    fn settle(&self, run: &mut Run) -> BenchResult<Duration> {
        let idle = Duration::ZERO;
        self.settle_beyond(run, idle)
    }

    /// As [`DedupTarget::settle`], without what idle txgs cost.
    fn settle_beyond(&self, run: &mut Run, idle: Duration) -> BenchResult<Duration> {
        let mut used = Duration::ZERO;
        if !self.table {
            return Ok(used);
        }
        for n in (0..SYNCS_MAX).step_by(SYNCS as usize) {
            let tables = self.pool.spa().dedup_tables()?;
            if tables.iter().flat_map(|table| &table.logs).all(|log| log.entries.is_empty()) {
                return Ok(used);
            }
            run.step("flushing the logs, txgs", n, 0)?;
            let before = cpu();
            self.txgs()?;
            used += cpu().saturating_sub(before).saturating_sub(idle);
        }
        Err(Error::bug("the logs of the dedup table never become empty").into())
    }
}

impl NumberedBlocks {
    /// Writes a new file of the blocks of these numbers.
    fn write(
        &self,
        run: &mut Run,
        target: &DedupTarget,
        name: &str,
        numbers: &mut dyn Iterator<Item = u64>,
    ) -> BenchResult<()> {
        let (fs, root) = (&target.fs, Caller::root());
        let id = fs.make(&root, fs.root(), name.as_bytes(), &New::file(0o644))?.id;
        let (mut data, mut at) = (Vec::with_capacity(LARGE as usize), 0);
        loop {
            data.clear();
            for number in (&mut *numbers).take((LARGE / self.record) as usize) {
                let start = data.len();
                data.extend_from_slice(&self.patterns[number as usize % self.patterns.len()]);
                data[start..start + 8].copy_from_slice(&number.to_le_bytes());
            }
            if data.is_empty() {
                return Ok(());
            }
            run.step("writing, MiB", at >> 20, 0)?;
            let done = fs.write(&root, id, WritePosition::Offset(at), &data)?;
            if done.bytes != data.len() as u64 {
                return Err(Error::bug("a write of fewer bytes").into());
            }
            at += data.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Stop;
    use super::super::frag::tests::{json, rows};

    #[test]
    fn entries_come_and_go() {
        let scratch = testkit::Scratch::new("bench-dedup");
        let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
        let (dir, out) = (path(""), path("out.json"));
        for form in ["--memory=64M", "--legacy"] {
            let sizes = ["--entries", "3000,200", "--batch", "400", "--rounds", "1", form];
            let words = sizes.iter().copied().chain(["--device", &dir, "--json", &out]);
            let words: Vec<String> = words.map(str::to_owned).collect();
            super::BENCH.start(&words).map_err(Stop::text).unwrap();
            let json = json(std::path::Path::new(&out));
            let rates = rows(&json, "rates");
            // One row of the filling and one of each kind, at both sizes.
            assert_eq!(rates.len(), 10, "{json}");
            let entries: Vec<_> =
                rates.iter().map(|row| row["entries"].as_u64().unwrap()).collect();
            assert_eq!(entries, [200, 200, 200, 200, 200, 3000, 3000, 3000, 3000, 3000]);
            assert!(rates.iter().all(|row| row["writes_s"].as_f64().unwrap() > 0.0), "{json}");
            assert!(rows(&json, "tables")[1]["on_disk"].as_u64().unwrap() > 3000 * 16, "{json}");
        }
    }
}
