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

use super::args::{Args, opt};
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

/// The command line of a bench that moves all blocks of a pool.
pub(super) struct MoveOptions {
    /// Bytes of each device.
    pub(super) size: u64,
    fill: u64,
    /// The record size.
    pub(super) record: u64,
    /// The cache while the blocks move.
    pub(super) memory: u64,
    rounds: u64,
    /// Where the devices are.
    pub(super) dir: PathBuf,
}

impl MoveOptions {
    /// What the command line says; the devices have this size unless it names one.
    pub(super) fn read(args: &Args, size: u64, devices: u64) -> BenchResult<MoveOptions> {
        args.no_rest()?;
        let options = MoveOptions {
            size: args.size("--size", size, 64 << 20..=1 << 50)?,
            fill: args.count("--fill", 50, 1..=80)?,
            record: args.size("--record", 128 << 10, 4096..=1 << 20)?.next_power_of_two(),
            memory: args.size("--memory", 256 << 20, 8 << 20..=1 << 40)?,
            rounds: args.count("--rounds", 3, 1..=1000)?,
            dir: args.text("--device").map_or_else(std::env::temp_dir, PathBuf::from),
        };
        lab::check_space(&options.dir, options.size * devices)?;
        Ok(options)
    }

    /// Creates a file for a device.
    pub(super) fn device(&self, scratch: &Scratch, name: &str) -> Result<PathBuf> {
        let path = scratch.path().join(name);
        preallocate(&path, self.size)?;
        Ok(path)
    }

    /// Creates a pool of these vdevs and fills it as far as the options say.
    pub(super) fn make_pool(&self, run: &mut Run, vdevs: Vec<NewVdev>) -> BenchResult<()> {
        let engine = Engine::new(EngineConfig::default())?;
        let (running, dataset) = RunningPool::create_on(&engine, vdevs, true, self.record, false)?;
        let size = u128::from(dataset.available()?) * u128::from(self.fill) / 100;
        let fs = dataset.open_fs()?;
        fill(run, &running, &fs, u64::try_from(size).unwrap_or(u64::MAX), self.record)?;
        drop((fs, dataset));
        Ok(running.end(true)?)
    }

    /// Measures the rounds, and makes their table.
    pub(super) fn rounds(
        &self,
        run: &mut Run,
        what: &'static str,
        one: impl Fn(&mut Run, &MoveOptions, u64) -> BenchResult<Moved>,
    ) -> BenchResult<()> {
        let columns = [
            ("bytes", "BYTES"),
            ("copy_mb_s", "COPY MB/s"),
            ("move_mb_s", "MOVE MB/s"),
            ("ratio", "RATIO"),
            ("cpu_s", "CPU s"),
        ];
        let mut table = ReportTable::new("moves", &columns);
        let mut ratios = Vec::new();
        for round in 0..self.rounds {
            run.step("rounds", round, self.rounds)?;
            let Moved { bytes, plain, seconds, cpu } = one(run, self, round)?;
            let rate = |seconds: f64| Cell::Real(bytes as f64 / 1e6 / seconds.max(1e-9));
            let ratio = plain / seconds.max(1e-9);
            ratios.push(ratio);
            table.rows.push(vec![
                Cell::Bytes(bytes),
                rate(plain),
                rate(seconds),
                Cell::Real(ratio),
                Cell::Real(cpu),
            ]);
        }
        run.report.set("device", Cell::Bytes(self.size));
        run.report.set("record", Cell::Bytes(self.record));
        run.report.set(what, Cell::real(median(ratios)));
        run.report.tables.push(table);
        Ok(())
    }
}

/// What a round measured.
pub(super) struct Moved {
    pub(super) bytes: u64,
    /// Seconds of the plain copy.
    pub(super) plain: f64,
    /// Seconds of the move.
    pub(super) seconds: f64,
    /// Its seconds of processors.
    pub(super) cpu: f64,
}

fn run(run: &mut Run) -> BenchResult<()> {
    let options = MoveOptions::read(&run.args, 4 << 30, 3)?;
    options.rounds(run, "removal, share of a plain copy", one)
}

fn one(run: &mut Run, options: &MoveOptions, _: u64) -> BenchResult<Moved> {
    let scratch = Scratch::new(&options.dir)?;
    let device = |name: &str| options.device(&scratch, name);
    let (old, new, third) = (device("old.img")?, device("new.img")?, device("copy.img")?);
    options.make_pool(run, vec![NewVdev::new(NewKind::File(old.clone()))])?;
    let devices = [old.clone()];
    let ranges = allocated(ScrubVdev::Disk, &devices)?;
    let bytes = sum(&ranges);
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
    Ok(Moved { bytes, plain, seconds, cpu: used })
}

/// Writes a file of `size` bytes that do not compress.
fn fill(
    run: &mut Run,
    running: &RunningPool,
    fs: &FileSystem,
    size: u64,
    record: u64,
) -> BenchResult<()> {
    let (root, buffers) = (Caller::root(), patterns(&SampleContent::noise(5), record));
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
        let row = &rows(&json, "moves")[0];
        assert!(row["bytes"].as_u64().unwrap() > 8 << 20, "{json}");
        assert!(row["move_mb_s"].as_f64().unwrap() > 0.0, "{json}");
    }
}
