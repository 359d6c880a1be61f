//! Scrubs and resilvers of an aged pool, and what they cost other work.
//!
//! # Theory
//! A pool of one top-level vdev gets one file, whose records are then overwritten at random, or
//! many small files. Each round reads all that is allocated on the devices, in their order, by
//! plain direct reads of up to 1 MiB, sixteen at a time a device: the limit. Then the pool is
//! imported with an empty cache and scrubbed. Both rates are of the same bytes, those that the
//! space maps call allocated.
//!
//! The foreground is one thread that reads records at random places of the file, with a cache
//! that is small beside it, and one that overwrites a record and waits for `fsync`. Each is
//! measured alone and while a scrub runs that begins anew when it ends.
//!
//! A mirror and a RAID-Z vdev get a new device in place of the first one. The limit is the
//! longer one of two times: plain reads of the allocated ranges of all devices at once, because a
//! resilver verifies every copy that is there, and plain writes of them to a new device. Then the
//! device is taken away for ten txgs and comes back.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base::rt;
use base::{ErrorKind, Result};
use cenote::files::{Caller, WritePosition};
use cenote::{Engine, EngineConfig, ScanRequest};

use super::args::opt;
use super::frag_load::LatencyHistogram;
use super::frag_target::RunningPool;
use super::frame::{Cell, ReportTable};
use super::lab;
use super::sample::{XorShift, median};
use super::scrub_pool::{
    ScrubFiles, ScrubVdev, age, allocated, files_of, import, noise, outage, plain, read_one,
    replace, small_files, sum, wait,
};
use super::tidy::Scratch;
use super::write_pool::preallocate;
use super::{Bench, BenchResult, Run, Stop};

pub(super) const BENCH: Bench = Bench {
    name: "scrub",
    about: "scrubs and resilvers beside plain reads of the same bytes",
    words: "",
    options: &[&[
        opt("--vdev", "KIND", "disk, mirror (of two) or raidz (raidz1 of three) (disk)"),
        opt("--size", "SIZE", "bytes of each device (8G)"),
        opt("--fill", "PERCENT", "level (60)"),
        opt("--record", "SIZE", "record size (8K)"),
        opt("--small", "N", "so many files of up to 32 KiB instead of the level (0)"),
        opt("--memory", "SIZE", "the cache (256M)"),
        opt("--time", "TIME", "time of each measurement of the foreground (10)"),
        opt("--rounds", "N", "pairs of plain reads and scrubs (3)"),
        opt("--device", "DIR", "directory for the pool ($TMPDIR)"),
    ]],
    run,
};

/// Txgs that a device misses.
const OUTAGE: u64 = 10;

/// The command line.
struct ScrubOptions {
    kind: ScrubVdev,
    size: u64,
    fill: u64,
    record: u64,
    small: u64,
    memory: u64,
    time: Duration,
    rounds: u64,
}

fn run(run: &mut Run) -> BenchResult<()> {
    let args = &run.args;
    args.no_rest()?;
    let options = ScrubOptions {
        kind: match args.text("--vdev").unwrap_or("disk") {
            "disk" => ScrubVdev::Disk,
            "mirror" => ScrubVdev::Mirror,
            "raidz" => ScrubVdev::Raidz,
            other => return Err(Stop::usage(format!("--vdev: no kind '{other}'"))),
        },
        size: args.size("--size", 8 << 30, 64 << 20..=1 << 50)?,
        fill: args.count("--fill", 60, 1..=90)?,
        record: args.size("--record", 8 << 10, 4096..=1 << 20)?.next_power_of_two(),
        small: args.count("--small", 0, 0..=1 << 24)?,
        memory: args.size("--memory", 256 << 20, 8 << 20..=1 << 40)?,
        time: args.time("--time", Duration::from_secs(10))?,
        rounds: args.count("--rounds", 3, 1..=1000)?,
    };
    let dir = args.text("--device").map_or_else(std::env::temp_dir, PathBuf::from);
    let more = u64::from(options.kind != ScrubVdev::Disk);
    lab::check_space(&dir, options.size * (options.kind.width() + more))?;
    let scratch = Scratch::new(&dir)?;
    let device = |n: u64| -> Result<PathBuf> {
        let path = scratch.path().join(format!("disk{n}.img"));
        preallocate(&path, options.size)?;
        Ok(path)
    };
    let devices = (0..options.kind.width()).map(device).collect::<Result<Vec<_>>>()?;
    let files = make(run, &options, &devices)?;
    scrubs(run, &options, &devices)?;
    foreground(run, &options, &devices, &files)?;
    if options.kind != ScrubVdev::Disk {
        let new = device(options.kind.width())?;
        resilvers(run, &options, &devices, &new, &files)?;
    }
    Ok(())
}

/// Makes the pool and exports it.
fn make(run: &mut Run, options: &ScrubOptions, devices: &[PathBuf]) -> BenchResult<ScrubFiles> {
    let engine = Engine::new(EngineConfig::default())?;
    let record = if options.small > 0 { 128 << 10 } else { options.record };
    let vdevs = vec![options.kind.over(devices)];
    let (running, dataset) = RunningPool::create_on(&engine, vdevs, true, record, true)?;
    let available = u128::from(dataset.available()?) * u128::from(options.fill) / 100;
    let fs = dataset.open_fs()?;
    let files = match options.small {
        0 => {
            let size = u64::try_from(available).unwrap_or(u64::MAX) / record * record;
            age(run, &running, &fs, size, record)?
        }
        count => small_files(run, &running, &fs, count)?,
    };
    drop(fs);
    running.end(true)?;
    run.report.set("device", Cell::Bytes(options.size));
    run.report.set("record", Cell::Bytes(record));
    run.report.set("memory", Cell::Bytes(options.memory));
    Ok(files)
}

/// Plain reads and scrubs in turns.
fn scrubs(run: &mut Run, options: &ScrubOptions, devices: &[PathBuf]) -> BenchResult<()> {
    let ranges = allocated(options.kind, devices)?;
    let bytes = sum(&ranges) * devices.len() as u64;
    run.report.set("allocated", Cell::Bytes(bytes));
    let mut table = ReportTable::new(
        "scrubs",
        &[
            ("plain_mb_s", "PLAIN MB/s"),
            ("scrub_mb_s", "SCRUB MB/s"),
            ("ratio", "RATIO"),
            ("queue", "QUEUE"),
            ("cpu_s", "CPU s"),
        ],
    );
    let mut ratios = Vec::new();
    for round in 0..options.rounds {
        run.step("plain reads", round, options.rounds)?;
        let plain_rate = bytes as f64 / 1e6 / plain(devices, &ranges, false)?;
        let (running, _engine) = import(devices, options.memory, false)?;
        let cpu = super::write_pool::cpu();
        let writer = running.pool().writer()?;
        let began = rt::now();
        running.pool().scan(ScanRequest::Scrub, None)?;
        wait(run, "scrubbing", &mut || Ok(writer.running_scan().is_none()))?;
        let rate = bytes as f64 / 1e6 / began.elapsed().as_secs_f64();
        let errors = writer.scan_progress().map_or(1, |progress| progress.scan.errors);
        if errors > 0 {
            return Err(base::bug!("a scrub with {errors} errors").into());
        }
        ratios.push(rate / plain_rate);
        table.rows.push(vec![
            Cell::Real(plain_rate),
            Cell::Real(rate),
            Cell::Real(rate / plain_rate),
            Cell::Bytes(writer.scan_memory_peak()),
            Cell::Real(super::write_pool::cpu().saturating_sub(cpu).as_secs_f64()),
        ]);
        running.end(true)?;
    }
    run.report.set("scrub, share of plain reads", Cell::real(median(ratios)));
    run.report.tables.push(table);
    Ok(())
}

/// Runs `work` for some time; with `scrub`, while scrubs run.
fn latencies(
    run: &mut Run,
    running: &RunningPool,
    (what, time, scrub): (&str, Duration, bool),
    work: &mut dyn FnMut() -> Result<()>,
) -> BenchResult<LatencyHistogram> {
    let (mut times, writer) = (LatencyHistogram::default(), running.pool().writer()?);
    let began = rt::now();
    let mut looked = None;
    while began.elapsed() < time {
        let due = looked.is_none_or(|at: rt::Instant| at.elapsed() > Duration::from_millis(20));
        if due {
            run.step(what, began.elapsed().as_millis() as u64, time.as_millis() as u64)?;
            if scrub && writer.running_scan().is_none() {
                running.pool().scan(ScanRequest::Scrub, None)?;
            }
            looked = Some(rt::now());
        }
        let one = rt::now();
        work()?;
        times.add(u64::try_from(one.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    if scrub {
        match running.pool().scan(ScanRequest::Stop, None) {
            // It ended by itself.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            stopped => stopped?,
        }
    }
    Ok(times)
}

fn foreground(
    run: &mut Run,
    options: &ScrubOptions,
    devices: &[PathBuf],
    files: &ScrubFiles,
) -> BenchResult<()> {
    let mut table = ReportTable::new(
        "foreground",
        &[
            ("work", "WORK"),
            ("scrub", "SCRUB"),
            ("operations_per_second", "OPS/S"),
            ("p50_ms", "P50 ms"),
            ("p99_ms", "P99 ms"),
            ("longest_ms", "LONGEST ms"),
        ],
    );
    let (running, _engine) = import(devices, options.memory, false)?;
    let fs = files_of(&running)?;
    let record = if options.small > 0 { 4096 } else { options.record };
    let (mut random, data) = (XorShift::new(5), noise(record));
    for work in ["read", "fsync"] {
        for scrub in [false, true] {
            let times =
                latencies(run, &running, (work, options.time, scrub), &mut || match work {
                    "read" => read_one(&fs, files, record, &mut random),
                    _ => {
                        let id = files.ids[random.below(files.ids.len() as u64) as usize];
                        let at = random.below((files.size / record).max(1)) * record;
                        fs.write(&Caller::root(), id, WritePosition::Offset(at), &data)?;
                        fs.fsync(id)
                    }
                })?;
            let ms = |share| Cell::real(times.quantile(share).map(|s| s * 1e3));
            table.rows.push(vec![
                work.into(),
                (if scrub { "yes" } else { "no" }).into(),
                Cell::Real(times.count() as f64 / options.time.as_secs_f64()),
                ms(0.5),
                ms(0.99),
                Cell::Real(times.longest() * 1e3),
            ]);
        }
    }
    drop(fs);
    running.end(true)?;
    run.report.tables.push(table);
    Ok(())
}

/// A new device in place of the first, and an outage of the new one.
fn resilvers(
    run: &mut Run,
    options: &ScrubOptions,
    devices: &[PathBuf],
    new: &Path,
    files: &ScrubFiles,
) -> BenchResult<()> {
    let ranges = allocated(options.kind, devices)?;
    let bytes = sum(&ranges);
    run.step("plain reads and writes", 0, 0)?;
    // The new device is not a member yet: what is written to it does not matter.
    let read = plain(devices, &ranges, false)?;
    let write = plain(&[new.to_owned()], &ranges, true)?;
    let (running, engine) = import(devices, options.memory, false)?;
    let seconds = replace(run, &running, &engine, &devices[0], new)?;
    let (missed, back) =
        outage(run, &running, &engine, new, (files, options.record.min(files.size)), OUTAGE)?;
    running.end(true)?;
    let rate = |seconds: f64| bytes as f64 / 1e6 / seconds.max(1e-9);
    let limit = rate(read.max(write));
    let mut table = ReportTable::new(
        "resilvers",
        &[
            ("bytes", "BYTES"),
            ("plain_read_mb_s", "PLAIN READ MB/s"),
            ("plain_write_mb_s", "PLAIN WRITE MB/s"),
            ("resilver_mb_s", "RESILVER MB/s"),
            ("ratio", "RATIO"),
            ("missed", "MISSED"),
            ("back_s", "BACK s"),
        ],
    );
    table.rows.push(vec![
        Cell::Bytes(bytes),
        Cell::Real(rate(read)),
        Cell::Real(rate(write)),
        Cell::Real(rate(seconds)),
        Cell::Real(rate(seconds) / limit),
        Cell::Bytes(missed),
        Cell::Real(back),
    ]);
    run.report.tables.push(table);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Stop;
    use super::super::frag::tests::{json, rows};

    fn bench(extra: &[&str]) -> std::result::Result<serde_json::Value, String> {
        let scratch = testkit::Scratch::new("bench-scrub");
        let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
        let (dir, out) = (path(""), path("out.json"));
        let size = ["--size", "64M", "--fill", "30", "--time", "0.05", "--rounds", "1"];
        let place = ["--memory", "16M", "--device", &dir, "--json", &out];
        let words = size.iter().chain(&place).chain(extra).map(|w| (*w).to_owned());
        super::BENCH.start(&words.collect::<Vec<_>>()).map_err(Stop::text)?;
        Ok(json(std::path::Path::new(&out)))
    }

    #[test]
    fn every_kind_is_scrubbed_and_resilvered() {
        for (kind, leaves) in [("mirror", 2), ("raidz", 3)] {
            let json = bench(&["--vdev", kind]).unwrap();
            let allocated = json["settings"]["allocated"].as_u64().unwrap();
            // 30 % of what is left of 64 MiB a device.
            assert!(allocated > leaves * (4 << 20), "{json}");
            assert!(rows(&json, "scrubs")[0]["scrub_mb_s"].as_f64().unwrap() > 0.0, "{json}");
            assert_eq!(rows(&json, "foreground").len(), 4, "{json}");
            let resilver = &rows(&json, "resilvers")[0];
            assert!(resilver["bytes"].as_u64().unwrap() > 1 << 20, "{json}");
            assert_eq!(resilver["missed"].as_u64(), Some(10 * 512 * 8192), "{json}");
        }
    }

    #[test]
    fn small_files() {
        let json = bench(&["--small", "600"]).unwrap();
        let allocated = json["settings"]["allocated"].as_u64().unwrap();
        // 600 files of 16 KiB on average.
        assert!((6 << 20..20 << 20).contains(&allocated), "{json}");
    }

    #[test]
    fn unknown_kinds_are_refused() {
        assert_eq!(bench(&["--vdev", "tape"]).unwrap_err(), "--vdev: no kind 'tape'");
    }
}
