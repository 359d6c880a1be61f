//! Disks are attached, detached, replaced and taken offline under load, with power cuts at every
//! event.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

use std::collections::BTreeSet;

use sim::tree::{TreeBug, layouts, record};
use sim::{Setup, Workload};

/// Runs of `make test`, with the seeds from 1 on.
const RUNS: u64 = 16;

fn setup(seed: u64) -> Setup {
    let all = layouts();
    let layout = all[seed as usize % all.len()];
    let workload = [Workload::Mixed, Workload::Files, Workload::Churn][seed as usize % 3];
    Setup { layout, workload, threads: 2, ops: 24, fault: None, ..Setup::varied(seed) }
}

#[test]
fn trees_change_under_load() {
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let (runs, step) = if nightly { (200, 15) } else { (RUNS, 60) };
    let (mut points, mut images, mut done) = (0, 0, BTreeSet::new());
    for seed in 1..=runs {
        let run = record(&setup(seed), None);
        let tally = run.crash_everywhere(step, base::rt::parallelism()).unwrap();
        points += tally.points;
        images += tally.images;
        done.extend(run.done);
    }
    println!("SIMULATED trees: {points} crash points, {images} images, {done:?}");
    // Few vdevs can be rebuilt sequentially, so one of the two must do.
    let sequential = [done.remove("attach -s"), done.remove("replace -s")];
    assert!(sequential.contains(&true), "no sequential rebuild");
    let all =
        ["attach", "detach", "offline", "offline -f", "offline -t", "online", "recover", "replace"];
    assert_eq!(done.into_iter().collect::<Vec<_>>(), all);
}

#[test]
fn planted_bugs_of_changing_trees_are_found() {
    let bugs = [
        TreeBug::ExcisedLeaf,
        TreeBug::OneTooFar,
        TreeBug::SkippedBlocks,
        TreeBug::ForgottenRange,
        TreeBug::LostDtl,
        TreeBug::ShortDtl,
        TreeBug::SkippedMetaslab,
    ];
    for bug in bugs {
        let find = |seed: u64| {
            let run = record(&setup(seed), Some(bug));
            Some((seed, run.crash_everywhere(20, base::rt::parallelism()).err()?))
        };
        // Seeds that are known to find the bug soon. The same seeds are right without a bug.
        let first = match bug {
            TreeBug::ExcisedLeaf => 10,
            TreeBug::SkippedMetaslab => 11,
            TreeBug::ShortDtl => 16,
            _ => 1,
        };
        let mut seeds = (first..=RUNS).chain(1..first);
        let Some((seed, found)) = seeds.find_map(find) else { panic!("no {bug:?}") };
        println!("PLANTED {bug:?}, seed {seed}: {}", found.chars().take(200).collect::<String>());
    }
}
