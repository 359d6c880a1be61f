//! Snapshots, clones, promotions, rollbacks, renames, holds and bookmarks, with power cuts at
//! every event.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

mod zdb;

use std::collections::BTreeSet;

use sim::destruction::{DestroyTarget, Destruction};
use sim::{Layout, Recorded, Setup, Workload};

/// Crash points in `make test`, and in `make nightly`.
const POINTS: u64 = 1_200;
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

/// What the workload that is about clones must do.
const OF_CLONES: [&str; 4] = ["clone", "destroy by livelist", "rollback", "snapshot"];
/// Crash points of that workload.
const CLONE_POINTS: u64 = 50;
const NIGHTLY_CLONE_POINTS: u64 = 100_000;

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
        let found = crash(&recorded, 75, 1);
        points += found.0;
        images += found.1;
        assert!(seed < 200 || nightly(), "{done:?}");
    }
    println!("SIMULATED lineages: {seed} runs, {points} crash points, {images} images");
    assert_eq!(done.into_iter().collect::<Vec<_>>(), ALL);
}

/// Clones are written, rolled back and destroyed by their livelists, of which each is compared
/// with the tree of its clone.
#[test]
fn every_crash_point_of_clones() {
    let due = if nightly() { NIGHTLY_CLONE_POINTS } else { CLONE_POINTS };
    let (mut points, mut images, mut seed) = (0, 0, 0);
    let mut done = BTreeSet::new();
    while points < due || OF_CLONES.iter().any(|op| !done.contains(op)) {
        seed += 1;
        let recorded = sim::record(&Setup { workload: Workload::Clones, ..setup(seed) });
        done.extend(recorded.done.iter().copied());
        let found = crash(&recorded, 12, 0);
        points += found.0;
        images += found.1;
        assert!(seed < 100 || nightly(), "{done:?}");
    }
    println!("SIMULATED clones: {seed} runs, {points} crash points, {images} images");
}

/// A destruction takes several txgs. A crash at any point leaves the rest, nothing leaks, and
/// the same command destroys the rest.
#[test]
fn destructions_in_batches_are_ended_after_a_crash() {
    let runs = if nightly() { 60 } else { 2 };
    let (mut points, mut images, mut between, mut finished) = (0, 0, 0, 0);
    for seed in 1..=runs {
        let what = if seed % 2 == 0 { DestroyTarget::Tree } else { DestroyTarget::Snapshots };
        let run = Destruction::record(&setup(seed), what);
        let events = run.crash_points();
        let stride = if nightly() { 1 } else { (events.len() / 40).max(1) };
        let tally = run.crash(stride, 0, base::rt::parallelism());
        if let Some(failure) = tally.failure {
            panic!("{what:?}: {failure}");
        }
        (points, images) = (points + tally.points, images + tally.images);
        // Once for each txg that a crash leaves.
        let mut seen = BTreeSet::new();
        for (n, event) in events.iter().step_by(stride).enumerate() {
            let crash = n as u64 % 2;
            let there = run.recorded.crash_once(*event, crash).unwrap();
            if !there.is_some_and(|txg| seen.insert(txg) || nightly()) {
                continue;
            }
            let done = run.finish(*event, crash);
            let done = done.unwrap_or_else(|e| panic!("{what:?}, seed {seed}, {event}: {e}"));
            finished += u64::from(done.is_some_and(|(_, left)| left > 0));
        }
        let (_, all_but_last) = run.batches.split_last().unwrap();
        between += all_but_last.iter().filter(|txg| seen.contains(txg)).count();
    }
    println!(
        "SIMULATED destructions: {runs} runs, {points} crash points, {images} images, {between} \
         states between batches, {finished} ended by a second command"
    );
    assert!(between >= 4 && finished >= 4, "{between} {finished}");
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
