//! Snapshots, clones, promotions, rollbacks, renames, holds and bookmarks, with power cuts at
//! every event.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

mod zdb;

use std::collections::BTreeSet;

use sim::{Layout, Recorded, Setup, Workload};

/// Crash points in `make test`, and in `make nightly`.
const POINTS: u64 = 2_500;
const NIGHTLY_POINTS: u64 = 400_000;
/// Every operation.
const ALL: [&str; 17] = [
    "bookmark",
    "clone",
    "create",
    "destroy",
    "destroy -d",
    "destroy -r",
    "destroy bookmark",
    "destroy snapshot",
    "hold",
    "promote",
    "release",
    "rename",
    "rename snapshot",
    "rollback",
    "rollback -r",
    "snapshot",
    "sync",
];

fn nightly() -> bool {
    std::env::var_os("CENOTE_NIGHTLY").is_some()
}

fn setup(seed: u64) -> Setup {
    let layouts = [
        Layout::Single,
        Layout::Mirror,
        Layout::Raidz,
        Layout::Draid,
        Layout::Classes,
        Layout::Raidz2,
        Layout::Wide(3, 5),
    ];
    let layout = layouts[seed as usize % layouts.len()];
    let (workload, ops) = (Workload::Lineage, 24);
    Setup { layout, workload, ops, fault: None, plant: None, ..Setup::varied(seed) }
}

/// Crashes at about `count` points of a run, and at all of them in `make nightly`.
fn crash(recorded: &Recorded, count: usize, more: u64) -> (u64, u64) {
    let events = recorded.disks.crash_points().len();
    let stride = if nightly() { 1 } else { (events / count).max(1) };
    let tally = recorded.crash_everywhere(stride, more, base::rt::parallelism());
    if let Some(failure) = tally.failure {
        panic!("{failure}");
    }
    (tally.points, tally.images)
}

#[test]
fn every_crash_point_of_lineages() {
    let due = if nightly() { NIGHTLY_POINTS } else { POINTS };
    let (mut points, mut images, mut seed) = (0, 0, 0);
    let mut done = BTreeSet::from(["sync"]);
    while points < due || done.len() < ALL.len() {
        seed += 1;
        let recorded = sim::record(&setup(seed));
        done.extend(recorded.done.iter().copied());
        let found = crash(&recorded, 160, 1);
        points += found.0;
        images += found.1;
        assert!(seed < 200 || nightly(), "{done:?}");
    }
    println!("SIMULATED lineages: {seed} runs, {points} crash points, {images} images");
    assert_eq!(done.into_iter().collect::<Vec<_>>(), ALL);
}

/// A crashed pool is imported for writing, its lineages are changed further, and it crashes
/// again. zdb finds no error in either.
#[test]
fn lineages_go_on_after_a_crash() {
    let (first, runs) = if nightly() { (1, 200) } else { (301, 4) };
    let (mut points, mut images, mut shown) = (0, 0, 0);
    for seed in first..first + runs {
        let recorded = sim::record(&setup(seed));
        let events = recorded.disks.crash_points();
        let at = events[events.len() * (1 + seed as usize % 3) / 4];
        let Some(next) = recorded.go_on(at, seed % 2).unwrap() else { continue };
        let found = crash(&next, 50, 0);
        points += found.0;
        images += found.1;
        if shown < 2 || nightly() {
            shown += usize::from(zdb::finds_whole(&next.disks.current(), "lineage"));
        }
    }
    println!("SIMULATED lineages, again: {points} crash points, {images} images, zdb: {shown}");
    assert!(points > 50, "{points}");
}
