//! Volumes with their intent logs: what a flush covered survives every power cut, and a
//! rollback leaves nothing of what it took back.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

mod zdb;

use std::collections::BTreeSet;

use sim::Layout;
use sim::volumes::{RecordedVolumes, VolumePlant, VolumeSetup, VolumeTally, record};

/// Crash points in `make test`, and in `make nightly`.
const POINTS: u64 = 350;
const NIGHTLY_POINTS: u64 = 100_000;
/// Every operation.
const ALL: [&str; 10] = [
    "clone",
    "destroy",
    "destroy snapshot",
    "discard",
    "flush",
    "rollback",
    "size",
    "snapshot",
    "write",
    "zero",
];

fn nightly() -> bool {
    std::env::var_os("CENOTE_NIGHTLY").is_some()
}

/// Crashes at about `count` points of a run, and at all of them in `make nightly`.
fn crash(recorded: &RecordedVolumes, count: usize) -> VolumeTally {
    let events = recorded.disks.crash_points().iter().filter(|p| **p >= recorded.start).count();
    let step = if nightly() { 1 } else { (events / count).max(1) };
    let tally = recorded.crash_everywhere(step, 1, base::rt::parallelism());
    assert!(tally.failure.is_none(), "{}: {tally}", recorded.setup.run.layout.name());
    tally
}

#[test]
fn every_promise_of_a_volume_survives() {
    let due = if nightly() { NIGHTLY_POINTS } else { POINTS };
    let (mut points, mut images, mut replays, mut seed) = (0, 0, 0, 0);
    let mut done = BTreeSet::new();
    while points < due || done.len() < ALL.len() {
        seed += 1;
        let recorded = record(VolumeSetup::varied(seed, VolumePlant::Nothing));
        done.extend(recorded.done().iter().copied());
        let tally = crash(&recorded, 50);
        points += tally.points;
        images += tally.images;
        replays += tally.replays;
    }
    println!(
        "SIMULATED volumes: {seed} runs, {points} crash points, {images} images, {replays} replays"
    );
    assert_eq!(done.into_iter().collect::<Vec<_>>(), ALL);
}

#[test]
fn volumes_on_every_kind_of_vdev() {
    let layouts = [
        Layout::Single,
        Layout::Stripe,
        Layout::Mirror,
        Layout::Raidz,
        Layout::Raidz2,
        Layout::Wide(3, 5),
        Layout::Draid,
        Layout::Classes,
        Layout::Mixed,
    ];
    let (mut points, mut images) = (0, 0);
    for (n, layout) in layouts.into_iter().enumerate() {
        for ashift in [9, 12] {
            let recorded = record(VolumeSetup::fitting(500 + 10 * n as u64, layout, ashift));
            let tally = crash(&recorded, 8);
            assert!(tally.points > 0, "{}: {tally}", layout.name());
            points += tally.points;
            images += tally.images;
        }
    }
    println!("SIMULATED volumes on every vdev: {points} crash points, {images} images");
}

/// Searches from a seed on that is known to find the bug soon.
fn is_found(plant: VolumePlant, first: u64) {
    let found = (first..first + 60).find_map(|seed| {
        let recorded = record(VolumeSetup::varied(seed, plant));
        recorded.crash_everywhere(20, 1, base::rt::parallelism()).failure
    });
    println!("PLANTED {plant:?}: {found:?}");
    assert!(found.is_some(), "{plant:?}");
}

#[test]
fn a_flush_that_is_acknowledged_too_early_is_found() {
    is_found(VolumePlant::NoFlush, 3);
}

/// This bug shows in few runs: `make nightly` searches for one. No search has found it yet.
#[test]
fn late_discards_are_found() {
    if !nightly() {
        println!("SKIPPED: nightly: the search for late discards takes minutes");
        return;
    }
    is_found(VolumePlant::LateDiscards, 1);
}

#[test]
fn an_inherited_log_is_found() {
    is_found(VolumePlant::InheritedLog, 3);
}

#[test]
fn a_log_that_is_kept_is_found() {
    is_found(VolumePlant::KeptLog, 1);
}

#[test]
fn zdb_finds_replayed_volumes_whole() {
    let runs = if nightly() { 40 } else { 2 };
    let mut shown = 0;
    for seed in 1..=runs {
        let recorded = record(VolumeSetup::varied(seed, VolumePlant::Nothing));
        let points = recorded.disks.crash_points();
        let images = recorded.replayed(points[points.len() * 3 / 4], 1).unwrap();
        shown += usize::from(zdb::finds_whole(&images, "volumes"));
    }
    println!("SIMULATED zdb: {shown} pools with volumes found whole");
}
