//! A key-value store whose set of keys grows past the cache.
//!
//! # Theory
//! The workload of a report of 2013: reads of values by keys with Zipf's distribution, in a
//! cache of 16 MiB; 80.7 % of them hit at first, and 70.1 % after the set had grown. A key is a
//! record of one file; popular keys are spread over the file. Growth adds rare keys, so popular
//! keys stay popular and the hit ratio falls slowly. Every policy reads the same keys in the
//! same order, beginning with an empty cache.

use base::Error;
use cenote::Io;
use cenote::{ArcStats, PolicyKind};

use super::args::opt;
use super::chart::Shape;
use super::frame::{Cell, ReportTable};
use super::lab::{self, Lab};
use super::sample::{SampleContent, Scatter, XorShift, Zipf};
use super::{Bench, Run, Stop};

pub(super) const BENCH: Bench = Bench {
    name: "stress",
    about: "hits of a key-value store whose set grows past the cache",
    words: "",
    options: &[
        &[
            opt("--arc", "SIZE", "the cache's limit (16M)"),
            opt("--first", "SIZE", "the set at first (twice the cache)"),
            opt("--size", "SIZE", "the set at last (16 times the cache)"),
            opt("--steps", "N", "sizes of the set (7)"),
            opt("--reads", "N", "reads of a step (four for each key of the last set)"),
            opt("--record", "SIZE", "bytes of a value (8K)"),
            opt("--skew", "S", "Zipf exponent of the keys (0.99)"),
            opt("--policy", "LIST", "default, arc (default,arc)"),
            opt("--seed", "N", "of the keys (1)"),
        ],
        lab::OPTIONS,
    ],
    run,
};

/// Reads between two checks for signals.
const BATCH: u64 = 256;

struct StressSetup {
    record: u64,
    /// Keys of each step.
    steps: Vec<u64>,
    reads: u64,
    skew: f64,
    seed: u64,
}

/// A geometric series of sizes from the first to the last.
fn growth(first: u64, last: u64, steps: u64) -> Vec<u64> {
    let factor = last as f64 / first as f64;
    let size = |n: u64| {
        let share = if steps > 1 { n as f64 / (steps - 1) as f64 } else { 1.0 };
        ((first as f64 * factor.powf(share)).round() as u64).clamp(1, last)
    };
    (0..steps).map(size).collect()
}

fn run(run: &mut Run) -> Result<(), Stop> {
    let args = &run.args;
    args.no_rest()?;
    let sizes = 1 << 20..=1 << 40;
    let arc = args.size("--arc", 16 << 20, sizes.clone())?;
    let first = args.size("--first", 2 * arc, sizes.clone())?;
    let size = args.size("--size", 16 * arc, sizes)?;
    let record = args.size("--record", 8 << 10, 512..=1 << 20)?;
    if !record.is_power_of_two() {
        return Err(Stop::usage("--record: must be a power of two"));
    }
    if first > size {
        return Err(Stop::usage("--first: must not be more than --size"));
    }
    let keys = size / record;
    let set = StressSetup {
        record,
        steps: growth(first / record, keys, args.count("--steps", 7, 1..=100)?),
        reads: args.count("--reads", 4 * keys, 1..=1 << 40)?,
        skew: args.real("--skew", 0.99, 0.0..=3.0)?,
        seed: args.count("--seed", 1, 0..=u64::MAX)?,
    };
    let policies = lab::policies(args, "default,arc")?;
    let content = SampleContent::noise(set.seed);
    let lab = Lab::new(run, size, |maker| maker.file("keys", size, record as u32, &content))?;
    run.report.set("arc", Cell::Bytes(arc));
    run.report.set("record", Cell::Bytes(record));
    run.report.set("skew", Cell::Real(set.skew));
    run.report.set("reads a step", Cell::Count(set.reads));
    let mut table = ReportTable::new(
        "steps",
        &[
            ("policy", "POLICY"),
            ("step", "STEP"),
            ("keys", "KEYS"),
            ("bytes", "SET"),
            ("hit_ratio", "HITS"),
            ("all_hit_ratio", "WITH METADATA"),
            ("mru_ghost_hits", "MRU GHOST"),
            ("mfu_ghost_hits", "MFU GHOST"),
        ],
    );
    let mut lines = Vec::new();
    for &policy in &policies {
        let rows = steps(run, &set, &lab, arc, policy, &mut table)?;
        lines.push((lab::word(policy).to_owned(), rows));
    }
    run.report.tables.push(table);
    let find = |policy| {
        let at = policies.iter().position(|&p| p == policy)?;
        lines.get(at).map(|l: &(String, Vec<f64>)| l.1.clone())
    };
    if let (Some(ours), Some(arc)) = (find(PolicyKind::Default), find(PolicyKind::Arc)) {
        for (n, (a, b)) in ours.iter().zip(&arc).enumerate() {
            let what = format!("step {}: hits of default less those of arc, points", n + 1);
            run.report.at_least(what, (a - b) * 100.0, 0.0);
        }
    }
    let labels = set.steps.iter().map(|&k| cenote::props::nicebytes(k * record)).collect();
    run.report.chart(Shape::Lines, "hit ratio by size of the set", labels, lines);
    Ok(())
}

/// The steps with one policy: hit ratios of the data.
fn steps(
    run: &mut Run,
    set: &StressSetup,
    lab: &Lab,
    arc: u64,
    policy: PolicyKind,
    table: &mut ReportTable,
) -> Result<Vec<f64>, Stop> {
    let bench_pool = lab.open(arc, policy)?;
    let file = bench_pool.file("keys")?;
    let scatter = Scatter::new(file.size() / set.record);
    let mut rng = XorShift::new(set.seed);
    let mut ratios = Vec::new();
    let count = set.steps.len();
    for (n, &keys) in set.steps.iter().enumerate() {
        let zipf = Zipf::new(keys, set.skew);
        let before = bench_pool.stats();
        let name = format!("{}, step {} of {count}", lab::word(policy), n + 1);
        for read in 0..set.reads {
            if read.is_multiple_of(BATCH) {
                run.step(&name, read, set.reads)?;
            }
            let place = scatter.position_of(zipf.draw(&mut rng));
            let value = file.borrow(place * set.record, set.record as usize, Io::WAIT)?;
            if value.len() as u64 != set.record {
                return Err(Error::invalid("the file is shorter than it should be").into());
            }
        }
        let after = bench_pool.stats();
        let (data, all) = ratios_between(&before, &after);
        table.rows.push(vec![
            lab::word(policy).into(),
            Cell::Count(n as u64 + 1),
            Cell::Count(keys),
            Cell::Bytes(keys * set.record),
            Cell::ratio(data),
            Cell::ratio(all),
            Cell::Count(after.mru_ghost_hits.saturating_sub(before.mru_ghost_hits)),
            Cell::Count(after.mfu_ghost_hits.saturating_sub(before.mfu_ghost_hits)),
        ]);
        ratios.push(data.unwrap_or(f64::NAN));
    }
    Ok(ratios)
}

/// Hit ratios of demand reads of data, and of all kinds together.
fn ratios_between(x: &ArcStats, y: &ArcStats) -> (Option<f64>, Option<f64>) {
    let data = |s: &ArcStats| (s.demand_data.hits, s.demand_data.total());
    let all = |s: &ArcStats| (s.all().hits, s.all().total());
    (lab::hit_ratio(data(x), data(y)), lab::hit_ratio(all(x), all(y)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_grow_evenly() {
        assert_eq!(growth(100, 1600, 5), [100, 200, 400, 800, 1600]);
        assert_eq!(growth(7, 7, 3), [7, 7, 7]);
        assert_eq!(growth(1, 10, 1), [10]);
    }
}
