//! The removal of a device, beside a plain copy of the same bytes.
//!
//! # Theory
//! A pool of one device gets a file; a second device of the same size is added, and the first
//! one is removed: all of its blocks move. The limit is a plain copy of what is allocated on the
//! first device, in its order, to a third file on the same disk: direct reads and writes of up to
//! 1 MiB, sixteen at a time, and a flush. Both are measured in each round, with a new pool. The
//! removal's time is that until the device is gone, with all of its txgs.

use std::path::PathBuf;

use base::rt;
use base::{Error, Result};
use cenote::create::{AddRequest, Force, NewKind, NewVdev};
use cenote::files::{Caller, New, WritePosition};
use cenote::{Engine, EngineConfig, FileSystem};

use super::args::opt;
use super::frag_target::{ASHIFT, RunningPool};
use super::frame::{Cell, ReportTable};
use super::lab;
use super::sample::{SampleContent, XorShift, median};
use super::scrub_pool::{ScrubVdev, allocated, copy, import, sum, wait};
use super::tidy::Scratch;
use super::write_pool::{cpu, patterns, preallocate};
use super::{Bench, BenchResult, Run};

pub(super) const BENCH: Bench = Bench {
    name: "removal",
    about: "the removal of a device beside a plain copy of the same bytes",
    words: "",
    options: &[&[
        opt("--size", "SIZE", "bytes of each device (4G)"),
        opt("--fill", "PERCENT", "level of the first device (50)"),
        opt("--record", "SIZE", "record size (128K)"),
        opt("--memory", "SIZE", "the cache (256M)"),
        opt("--rounds", "N", "pairs of copies and removals (3)"),
        opt("--device", "DIR", "directory for the pool ($TMPDIR)"),
    ]],
    run,
};

/// Bytes of a write while the file is filled.
const LARGE: u64 = 1 << 20;

/// The command line.
struct RemovalOptions {
    size: u64,
    fill: u64,
    record: u64,
    memory: u64,
    rounds: u64,
}

fn run(run: &mut Run) -> BenchResult<()> {
    let args = &run.args;
    args.no_rest()?;
    let options = RemovalOptions {
        size: args.size("--size", 4 << 30, 64 << 20..=1 << 50)?,
        fill: args.count("--fill", 50, 1..=80)?,
        record: args.size("--record", 128 << 10, 4096..=1 << 20)?.next_power_of_two(),
        memory: args.size("--memory", 256 << 20, 8 << 20..=1 << 40)?,
        rounds: args.count("--rounds", 3, 1..=1000)?,
    };
    let dir = args.text("--device").map_or_else(std::env::temp_dir, PathBuf::from);
    lab::check_space(&dir, options.size * 3)?;
    let mut table = ReportTable::new(
        "removals",
        &[
            ("bytes", "BYTES"),
            ("copy_mb_s", "COPY MB/s"),
            ("removal_mb_s", "REMOVAL MB/s"),
            ("ratio", "RATIO"),
            ("cpu_s", "CPU s"),
        ],
    );
    let mut ratios = Vec::new();
    for round in 0..options.rounds {
        let (row, ratio) = one(run, &options, &dir, round)?;
        table.rows.push(row);
        ratios.push(ratio);
    }
    run.report.set("device", Cell::Bytes(options.size));
    run.report.set("record", Cell::Bytes(options.record));
    run.report.set("removal, share of a plain copy", Cell::real(median(ratios)));
    run.report.tables.push(table);
    Ok(())
}

/// A row of the table, and the ratio of the rates.
fn one(
    run: &mut Run,
    options: &RemovalOptions,
    dir: &std::path::Path,
    round: u64,
) -> BenchResult<(Vec<Cell>, f64)> {
    let scratch = Scratch::new(dir)?;
    let device = |name: &str| -> Result<PathBuf> {
        let path = scratch.path().join(name);
        preallocate(&path, options.size)?;
        Ok(path)
    };
    let (old, new, third) = (device("old.img")?, device("new.img")?, device("copy.img")?);
    let engine = Engine::new(EngineConfig::default())?;
    let vdevs = vec![NewVdev::new(NewKind::File(old.clone()))];
    let (running, dataset) = RunningPool::create_on(&engine, vdevs, true, options.record, false)?;
    let size = u128::from(dataset.available()?) * u128::from(options.fill) / 100;
    let fs = dataset.open_fs()?;
    fill(run, &running, &fs, u64::try_from(size).unwrap_or(u64::MAX), options)?;
    drop((fs, dataset));
    running.end(true)?;
    let devices = [old.clone()];
    let ranges = allocated(ScrubVdev::Disk, &devices)?;
    let bytes = sum(&ranges);
    run.step("plain copies", round, options.rounds)?;
    let plain = copy((&old, &third), &ranges)?;
    let (running, engine) = import(&devices, options.memory, false)?;
    let pool = running.pool();
    let request = AddRequest {
        vdevs: vec![NewVdev::new(NewKind::File(new))],
        force: Force::ALL,
        dry_run: false,
        ashift: u32::try_from(ASHIFT).ok(),
        command: None,
    };
    engine.add_vdevs(pool, &request)?;
    let (used, began) = (cpu(), rt::now());
    pool.remove_vdev(&old.to_string_lossy(), None)?;
    wait(run, "removing a device", &mut || Ok(pool.writer()?.removal().is_none()))?;
    pool.sync()?;
    let seconds = began.elapsed().as_secs_f64();
    let used = cpu().saturating_sub(used).as_secs_f64();
    if pool.writer()?.published().config.vdev_tree.children.len() != 2 {
        return Err(Error::bug("a vdev that vanished").into());
    }
    running.end(true)?;
    let rate = |seconds: f64| bytes as f64 / 1e6 / seconds.max(1e-9);
    let ratio = plain / seconds.max(1e-9);
    let row = vec![
        Cell::Bytes(bytes),
        Cell::Real(rate(plain)),
        Cell::Real(rate(seconds)),
        Cell::Real(ratio),
        Cell::Real(used),
    ];
    Ok((row, ratio))
}

/// Writes a file of `size` bytes that do not compress.
fn fill(
    run: &mut Run,
    running: &RunningPool,
    fs: &FileSystem,
    size: u64,
    options: &RemovalOptions,
) -> BenchResult<()> {
    let (root, buffers) = (Caller::root(), patterns(&SampleContent::noise(5), options.record));
    let id = fs.make(&root, fs.root(), b"file", &New::file(0o644))?.id;
    let mut noise = XorShift::new(3);
    for at in (0..size).step_by(LARGE as usize) {
        run.step("filling the pool, MiB", at >> 20, size >> 20)?;
        let part = LARGE.min(size - at) as usize;
        let mut data = Vec::with_capacity(LARGE as usize);
        while data.len() < part {
            let from = data.len();
            data.extend_from_slice(&buffers[noise.below(buffers.len() as u64) as usize]);
            data[from..from + 8].copy_from_slice(&noise.next().to_le_bytes());
        }
        fs.write(&root, id, WritePosition::Offset(at), &data[..part])?;
    }
    running.pool().sync()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Stop;
    use super::super::frag::tests::{json, rows};

    #[test]
    fn all_blocks_move() {
        let scratch = testkit::Scratch::new("bench-removal");
        let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
        let (dir, out) = (path(""), path("out.json"));
        let words =
            ["--size", "256M", "--fill", "20", "--rounds", "1", "--device", &dir, "--json", &out];
        super::BENCH.start(&words.map(str::to_owned)).map_err(Stop::text).unwrap();
        let json = json(std::path::Path::new(&out));
        let row = &rows(&json, "removals")[0];
        assert!(row["bytes"].as_u64().unwrap() > 8 << 20, "{json}");
        assert!(row["removal_mb_s"].as_f64().unwrap() > 0.0, "{json}");
    }
}
