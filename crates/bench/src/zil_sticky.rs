//! The sizes of log blocks after a burst of large ones, which an old report saw never shrink.
//!
//! # Theory
//! Four steps: small synchronous writes; many writes without a sync; one sync of all of them;
//! small synchronous writes again. A log that takes the size of its next block from the
//! previous block uses large blocks for ever. Here the last eight bursts count: after at most
//! eight commits of the last step a block is the smallest that holds the record.

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use super::args::opt;
use super::frame::{Cell, ReportTable};
use super::sync_pool::SyncPool;
use super::tidy::Scratch;
use super::{Bench, Run, Stop};

pub(super) const BENCH: Bench = Bench {
    name: "zil-sticky",
    about: "sizes of log blocks before and after a mass of unsynced writes",
    words: "",
    options: &[&[
        opt("--dir", "DIR", "where the image is made ($TMPDIR)"),
        opt("--commits", "N", "small synchronous writes of a step (200)"),
        opt("--size", "SIZE", "bytes of each of these (128)"),
        opt("--mass", "SIZE", "bytes that nobody syncs (64M)"),
    ]],
    run,
};

/// Commits after which earlier bursts must have no effect.
const FORGOTTEN: usize = 8;
/// Bytes of the unsynced writes.
const LARGE: usize = 64 << 10;
const STEPS: [&str; 4] = ["small", "mass, unsynced", "sync of the mass", "small again"];

/// Blocks by log2 of their size.
fn sizes(bench_pool: &SyncPool) -> Vec<u64> {
    bench_pool.log.stats().by_size.iter().map(|n| n.load(Relaxed)).collect()
}

fn run(run: &mut Run) -> Result<(), Stop> {
    let args = &run.args;
    let dir = args.text("--dir").map_or_else(std::env::temp_dir, PathBuf::from);
    let commits = args.count("--commits", 200, 10..=1 << 20)?;
    let small = args.size("--size", 128, 1..=64 << 10)?;
    let mass = args.size("--mass", 64 << 20, 1 << 20..=1 << 33)?;
    let scratch = Scratch::new(&dir)?;
    let bench_pool = SyncPool::new(scratch.path(), (mass * 4).max(256 << 20), 128 << 10)?;
    bench_pool.no_txgs()?;
    let (file, bulk) = (bench_pool.file("small")?, bench_pool.file("mass")?);
    // The first commit makes the log, and waits for a txg.
    bench_pool.fs.fsync(file)?;
    let mut table = ReportTable::new(
        "blocks",
        &[("step", "STEP"), ("block_size", "BLOCK SIZE"), ("blocks", "BLOCKS")],
    );
    let (data, large) = (vec![7; small as usize], vec![9; LARGE]);
    let mut at = 0;
    // Counts blocks of the last step that are larger than necessary.
    let mut late = 0u64;
    let least = (small + 192 + 184).next_multiple_of(4096).next_power_of_two().ilog2() as usize;
    for (step, name) in STEPS.into_iter().enumerate() {
        run.step(name, step as u64, STEPS.len() as u64)?;
        let before = sizes(&bench_pool);
        match step {
            1 => (0..mass / LARGE as u64)
                .try_for_each(|i| bench_pool.write(bulk, i * LARGE as u64, &large))?,
            2 => bench_pool.fs.fsync(bulk)?,
            _ => {
                for i in 0..commits as usize {
                    let earlier = sizes(&bench_pool);
                    bench_pool.write(file, at, &data)?;
                    bench_pool.fs.fsync(file)?;
                    at += small;
                    let larger = |(power, n): (usize, &u64)| power > least && *n > earlier[power];
                    let larger = sizes(&bench_pool).iter().enumerate().any(larger);
                    late += u64::from(step == 3 && i >= FORGOTTEN && larger);
                }
            }
        }
        let delta: Vec<(usize, u64)> =
            sizes(&bench_pool).iter().zip(&before).map(|(n, b)| n - b).enumerate().collect();
        let used = delta.into_iter().filter(|(_, n)| *n > 0);
        let mut rows: Vec<Vec<Cell>> = used
            .map(|(power, n)| vec![name.into(), Cell::Bytes(1 << power), Cell::Count(n)])
            .collect();
        if rows.is_empty() {
            rows.push(vec![name.into(), Cell::Nothing, Cell::Count(0)]);
        }
        table.rows.append(&mut rows);
    }
    run.report.set("commits", Cell::Count(commits));
    run.report.set("bytes", Cell::Bytes(small));
    run.report.set("mass", Cell::Bytes(mass));
    run.report.tables.push(table);
    run.report.at_most("larger blocks than needed, from the ninth commit on", late as f64, 0.0);
    Ok(())
}
