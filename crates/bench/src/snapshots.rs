//! Snapshots: the time of operations against size and number, and the destruction of many.
//!
//! # Theory
//! A snapshot, a clone, a rollback and the destruction of either are meant to cost the same
//! whatever the file system's size and however many snapshots it has. The bench makes a file
//! of each of two sizes, measures the operations with one snapshot, takes many, each after a
//! record was overwritten, and measures again. Each operation is durable when it returns, so
//! its time contains that of a txg on the device.
//!
//! Many file systems get many snapshots each; all are listed with `used`, after an import and
//! again.
//!
//! Then the bench lists the snapshots of one file system, and destroys them by one request, as a
//! range.
//! Meanwhile another thread reads and sets properties of another file system. The longest of
//! its calls, and the longest txg, tell whether the destruction holds others up.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use base::rt;
use base::{Error, Result};
use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting};
use cenote::files::{Caller, New, WritePosition};
use cenote::{Engine, EngineConfig, ImportOptions, Pool, PropData, Search};

use super::args::opt;
use super::frame::{Cell, ReportTable};
use super::sample::{SampleContent, XorShift, median};
use super::tidy::Scratch;
use super::{Bench, BenchResult, Run};

pub(super) const BENCH: Bench = Bench {
    name: "snapshots",
    about: "snapshots, clones and rollbacks by size and number",
    words: "",
    options: &[&[
        opt("--small", "SIZE", "the smaller file system (64M)"),
        opt("--large", "SIZE", "the larger one (512M)"),
        opt("--snapshots", "N", "snapshots beside which the operations are measured (1000)"),
        opt("--many", "N", "snapshots listed and destroyed (2000)"),
        opt("--rounds", "N", "rounds of the operations (7)"),
        opt("--filesystems", "N", "file systems whose snapshots are listed (100)"),
        opt("--each", "N", "snapshots of each of them (100)"),
        opt("--device", "DIR", "directory for the pool ($TMPDIR)"),
    ]],
    run,
};

const POOL: &str = "benchsnap";
/// The file system whose properties are read and set meanwhile.
const OTHER: &str = "benchsnap/other";
/// The parent of those whose snapshots are listed.
const LISTED: &str = "benchsnap/listed";
const FILE: &[u8] = b"file";
/// Bytes of a record.
const RECORD: u64 = 128 << 10;
/// Bytes of the pool beside the files.
const REST: u64 = 4 << 30;
/// Bytes for each pair of snapshots of a file system: a deadlist has a key for every snapshot
/// before it.
const PAIR: u64 = 128;
/// The operations, in the order of the columns.
const OPERATIONS: [&str; 5] = ["snapshot", "clone", "rollback", "destroy_clone", "destroy"];

/// The command line.
struct SnapshotsOptions {
    sizes: [u64; 2],
    snapshots: u64,
    many: u64,
    rounds: u64,
    filesystems: u64,
    each: u64,
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn run(run: &mut Run) -> BenchResult<()> {
    let args = &run.args;
    args.no_rest()?;
    let size = |name, usual| args.size(name, usual, RECORD..=1 << 40);
    let options = SnapshotsOptions {
        sizes: [size("--small", 64 << 20)?, size("--large", 512 << 20)?],
        snapshots: args.count("--snapshots", 1000, 1..=1 << 20)?,
        many: args.count("--many", 2000, 1..=1 << 20)?,
        rounds: args.count("--rounds", 7, 1..=1000)?,
        filesystems: args.count("--filesystems", 100, 1..=1 << 20)?,
        each: args.count("--each", 100, 1..=1 << 20)?,
    };
    let dir = args.text("--device").map_or_else(std::env::temp_dir, PathBuf::from);
    let scratch = Scratch::new(&dir)?;
    let image = scratch.path().join("snapshots.img");
    let engine = Engine::new(EngineConfig::default())?;
    let pool = make(&engine, &image, &options)?;
    pool.create_filesystem(OTHER, &[], None)?;
    operations(run, &pool, &options)?;
    prepare_listed(run, &pool, &options)?;
    pool.export()?;
    drop((pool, engine));
    let engine = Engine::new(EngineConfig::default())?;
    let search = Search { paths: vec![scratch.path().to_owned()], ..Search::default() };
    let found = engine.discover(&search)?;
    let found = found.pools.first().ok_or_else(|| Error::not_found("the bench's pool"))?;
    let pool = engine.import(found, &ImportOptions::default())?;
    listed(run, &pool, &options)?;
    many(run, &pool, &options)?;
    pool.export()?;
    Ok(())
}

fn make(engine: &Arc<Engine>, image: &Path, options: &SnapshotsOptions) -> Result<Arc<Pool>> {
    let failed = |e| Error::io("cannot make the image", e).on_path(image.to_string_lossy());
    let file = std::fs::File::create_new(image).map_err(failed)?;
    let pairs = options.many * options.many + options.filesystems * options.each * options.each;
    let size = 2 * options.sizes.iter().sum::<u64>() + REST + pairs * PAIR;
    file.set_len(size).map_err(failed)?;
    let request = CreateRequest {
        force: Force::ALL,
        settings: vec![PoolSetting::Stored("ashift", 12)],
        ..CreateRequest::new(POOL, vec![NewVdev::new(NewKind::File(image.to_owned()))])
    };
    engine.create_pool(&request)?.ok_or_else(|| Error::bug("a pool that was not made"))
}

/// A file system with a file of this size.
fn fill(run: &mut Run, pool: &Pool, name: &str, size: u64) -> BenchResult<()> {
    let props = [("recordsize".to_owned(), PropData::Num(RECORD))];
    let fs = pool.create_filesystem(name, &props, None)?.open_fs()?;
    let id = fs.make(&Caller::root(), fs.root(), FILE, &New::file(0o644))?.id;
    let (content, mut part) = (SampleContent::noise(3), vec![0; RECORD as usize]);
    for at in (0..size).step_by(RECORD as usize) {
        run.step("filling", at, size)?;
        content.fill(at, &mut part);
        fs.write(&Caller::root(), id, WritePosition::Offset(at), &part)?;
    }
    pool.sync()?;
    Ok(())
}

/// Overwrites a part of a record.
fn overwrite(pool: &Pool, name: &str, size: u64, random: &mut XorShift) -> Result<()> {
    let fs = pool.dataset(name)?.open_fs()?;
    let id = fs.lookup(fs.root(), FILE, cenote::Io::WAIT)?.id;
    let at = random.below(size / RECORD) * RECORD;
    let data = random.next().to_le_bytes().repeat(64);
    fs.write(&Caller::root(), id, WritePosition::Offset(at), &data).map(drop)
}

fn take(run: &mut Run, pool: &Pool, name: &str, size: u64, count: u64) -> BenchResult<()> {
    let mut random = XorShift::new(size ^ count);
    for n in 0..count {
        run.step("taking snapshots", n, count)?;
        overwrite(pool, name, size, &mut random)?;
        pool.snapshot(&[format!("{name}@many{n}")], &[], None)?;
    }
    Ok(())
}

/// One round of the operations; their times in milliseconds.
fn measure(pool: &Pool, name: &str, size: u64, random: &mut XorShift) -> Result<[f64; 5]> {
    let (snap, clone) = (format!("{name}@round"), format!("{POOL}/clone"));
    let timed = |call: &dyn Fn() -> Result<()>| {
        let began = rt::now();
        call()?;
        Ok::<f64, Error>(milliseconds(began.elapsed()))
    };
    overwrite(pool, name, size, random)?;
    let taken = timed(&|| pool.snapshot(std::slice::from_ref(&snap), &[], None))?;
    let cloned = timed(&|| pool.clone_snapshot(&snap, &clone, &[], None).map(drop))?;
    overwrite(pool, name, size, random)?;
    pool.sync()?;
    let back = timed(&|| pool.rollback(&snap, None))?;
    let clone_gone = timed(&|| pool.destroy_dataset(&clone, false, None))?;
    let gone = timed(&|| pool.destroy_snapshots(std::slice::from_ref(&snap), false, None))?;
    Ok([taken, cloned, back, clone_gone, gone])
}

fn operations(run: &mut Run, pool: &Pool, options: &SnapshotsOptions) -> BenchResult<()> {
    let columns = [
        ("size", "SIZE"),
        ("snapshots", "SNAPSHOTS"),
        ("snapshot_ms", "SNAPSHOT ms"),
        ("clone_ms", "CLONE ms"),
        ("rollback_ms", "ROLLBACK ms"),
        ("destroy_clone_ms", "DESTROY CLONE ms"),
        ("destroy_ms", "DESTROY ms"),
    ];
    let mut table = ReportTable::new("operations", &columns);
    let mut all: Vec<[f64; 5]> = Vec::new();
    for (n, size) in options.sizes.into_iter().enumerate() {
        let name = format!("{POOL}/fs{n}");
        fill(run, pool, &name, size)?;
        for count in [0, options.snapshots] {
            take(run, pool, &name, size, count)?;
            let mut random = XorShift::new(count + 5);
            let mut rounds = Vec::new();
            for round in 0..options.rounds {
                run.step("measuring", round, options.rounds)?;
                rounds.push(measure(pool, &name, size, &mut random)?);
            }
            let of = |at: usize| median(rounds.iter().map(|r| r[at])).unwrap_or(f64::NAN);
            let medians: [f64; 5] = std::array::from_fn(of);
            let cells = medians.iter().map(|ms| Cell::real(Some(*ms)));
            table
                .rows
                .push([Cell::Bytes(size), Cell::Count(count)].into_iter().chain(cells).collect());
            all.push(medians);
        }
        pool.destroy_dataset(&name, true, None)?;
    }
    // Flat: the most is at most twice the least.
    for (at, what) in OPERATIONS.into_iter().enumerate() {
        let values = || all.iter().map(|row| row[at]);
        let (most, least) = (values().fold(0.0, f64::max), values().fold(f64::MAX, f64::min));
        run.report.at_most(format!("{what}: slowest by fastest"), most / least, 2.0);
    }
    run.report.tables.push(table);
    Ok(())
}

/// The longest read, the longest change, and the number of both.
type OtherCalls = (Duration, Duration, u64);

/// Calls of another command until `over`.
fn others(pool: &Pool, over: &AtomicBool) -> Result<OtherCalls> {
    let (mut read, mut changed, mut calls) = (Duration::ZERO, Duration::ZERO, 0);
    while !over.load(SeqCst) || calls == 0 {
        let began = rt::now();
        let _used = pool.dataset(OTHER)?.prop("used")?;
        read = read.max(began.elapsed());
        let began = rt::now();
        let value = PropData::Num(calls % 2);
        pool.set_props(OTHER, &[("atime".to_owned(), value)], None)?;
        changed = changed.max(began.elapsed());
        calls += 1;
    }
    Ok((read, changed, calls))
}

/// Many file systems with many snapshots each.
fn prepare_listed(run: &mut Run, pool: &Pool, options: &SnapshotsOptions) -> BenchResult<()> {
    let of = options.filesystems;
    let names: Vec<String> = (0..of).map(|n| format!("{LISTED}/fs{n}")).collect();
    pool.create_filesystem(LISTED, &[], None)?;
    for (n, name) in names.iter().enumerate() {
        run.step("making file systems", n as u64, of)?;
        pool.create_filesystem(name, &[], None)?;
    }
    for n in 0..options.each {
        run.step("taking snapshots of all", n, options.each)?;
        let snapshots: Vec<String> = names.iter().map(|name| format!("{name}@{n}")).collect();
        pool.snapshot(&snapshots, &[], None)?;
    }
    Ok(())
}

/// Lists them with `used`.
fn listed(run: &mut Run, pool: &Pool, options: &SnapshotsOptions) -> BenchResult<()> {
    let columns = [("snapshots", "SNAPSHOTS"), ("first_ms", "FIRST ms"), ("again_ms", "AGAIN ms")];
    let mut table = ReportTable::new("listed", &columns);
    let mut times = [0.0; 2];
    let mut count = 0;
    for time in &mut times {
        count = 0;
        let began = rt::now();
        for fs in pool.dataset(LISTED)?.children()? {
            for snap in fs.snapshots()? {
                let _used = snap.prop("used")?;
                count += 1;
            }
        }
        *time = milliseconds(began.elapsed());
    }
    if count != options.filesystems * options.each {
        return Err(Error::bug("a snapshot is not listed").into());
    }
    let row = [Cell::Count(count)].into_iter().chain(times.map(Cell::Real));
    table.rows.push(row.collect());
    run.report.tables.push(table);
    let longest = times[0].max(times[1]);
    run.report.at_most("snapshots of all, ms for each 100", longest / count as f64 * 100.0, 1.0);
    Ok(())
}

fn many(run: &mut Run, pool: &Arc<Pool>, options: &SnapshotsOptions) -> BenchResult<()> {
    let (name, size) = (format!("{POOL}/many"), options.sizes[0]);
    fill(run, pool, &name, size)?;
    take(run, pool, &name, size, options.many)?;
    let began = rt::now();
    let (mut names, mut used) = (Vec::new(), 0u64);
    for snap in pool.dataset(&name)?.snapshots()? {
        if let Some(PropData::Num(n)) = snap.prop("used")?.map(|v| v.value) {
            used += n;
        }
        names.push(snap.name().to_owned());
    }
    let listed = began.elapsed();
    let first = pool.writer()?.txgs().synced_txg();
    let over = Arc::new(AtomicBool::new(false));
    let (shared, ended) = (Arc::clone(pool), Arc::clone(&over));
    let found: Arc<rt::Mutex<Option<Result<OtherCalls>>>> = Arc::default();
    let result = Arc::clone(&found);
    let thread = rt::spawn("bench-others", move || {
        *result.lock() = Some(others(&shared, &ended));
    })?;
    let began = rt::now();
    let done = pool.destroy_snapshots(&names, false, None);
    let destroyed = began.elapsed();
    over.store(true, SeqCst);
    thread.join();
    done?;
    let history = pool.writer()?.txgs().history();
    let longest = history.iter().filter(|txg| txg.txg > first.0).map(|txg| txg.stime).max();
    let longest = longest.unwrap_or(0) as f64 / 1e6;
    let others = found.lock().take().unwrap_or_else(|| Err(Error::bug("no other call")));
    let (read, changed, calls) = others?;
    let columns = [
        ("snapshots", "SNAPSHOTS"),
        ("used", "USED"),
        ("list_ms", "LIST ms"),
        ("destroy_ms", "DESTROY ms"),
        ("longest_txg_ms", "LONGEST TXG ms"),
        ("other_read_ms", "OTHER READ ms"),
        ("other_change_ms", "OTHER CHANGE ms"),
        ("other_calls", "OTHER CALLS"),
    ];
    let mut table = ReportTable::new("many", &columns);
    let (list, destroy) = (milliseconds(listed), milliseconds(destroyed));
    let (read, changed) = (milliseconds(read), milliseconds(changed));
    let times = [list, destroy, longest, read, changed].map(Cell::Real);
    let row = [Cell::Count(options.many), Cell::Bytes(used)].into_iter().chain(times);
    table.rows.push(row.chain([Cell::Count(calls)]).collect());
    run.report.tables.push(table);
    run.report.at_most("longest txg, ms", longest, 1000.0);
    run.report.at_most("another command's read, ms", read, 100.0);
    run.report.at_most(
        "snapshots listed, ms for each 100",
        list / options.many as f64 * 100.0,
        1.0,
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Stop;
    use super::super::frag::tests::{json, rows};

    #[test]
    fn every_figure_is_there() {
        let scratch = testkit::Scratch::new("bench-snapshots");
        let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
        let (dir, out) = (path(""), path("out.json"));
        let size = ["--small", "1M", "--large", "4M", "--snapshots", "5"];
        let more = ["--many", "20", "--rounds", "2", "--device", &dir, "--json", &out];
        let all = ["--filesystems", "3", "--each", "4"];
        let words: Vec<String> =
            size.iter().chain(&more).chain(&all).map(|w| (*w).to_owned()).collect();
        super::BENCH.start(&words).map_err(Stop::text).unwrap();
        let json = json(std::path::Path::new(&out));
        let operations = rows(&json, "operations");
        assert_eq!(operations.len(), 4);
        for row in operations {
            for key in ["snapshot_ms", "clone_ms", "rollback_ms", "destroy_clone_ms", "destroy_ms"]
            {
                assert!(row[key].as_f64().unwrap() > 0.0, "{key}: {json}");
            }
        }
        let listed = &rows(&json, "listed")[0];
        assert_eq!(listed["snapshots"], 12);
        assert!(listed["first_ms"].as_f64().unwrap() > 0.0, "{json}");
        let many = rows(&json, "many");
        let row = &many[0];
        assert_eq!(row["snapshots"], 20);
        // Each snapshot alone has what the next one replaced.
        assert!(row["used"].as_u64().unwrap() > 10 << 10, "{json}");
        assert!(row["longest_txg_ms"].as_f64().unwrap() > 0.0, "{json}");
        assert!(row["other_calls"].as_u64().unwrap() > 0, "{json}");
    }
}
