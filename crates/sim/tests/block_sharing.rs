//! Blocks that are cloned and deduplicated while a device is removed or a RAID-Z vdev expanded,
//! with power cuts at every event.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

mod zdb;

use std::collections::BTreeSet;

use sim::{Layout, Setup, Workload};

/// Crash points in `make test`, and in `make nightly`.
const POINTS: u64 = 60;
const NIGHTLY_POINTS: u64 = 8_000;
/// Crash points of one run in `make test`, and after it has gone on.
const POINTS_RUN: usize = 10;
const POINTS_AGAIN: usize = 4;

fn nightly() -> bool {
    std::env::var_os("CENOTE_NIGHTLY").is_some()
}

fn setup(seed: u64) -> Setup {
    let layout = Layout::RESHAPED[seed as usize % Layout::RESHAPED.len()];
    Setup { layout, workload: Workload::BlockSharing, ops: 24, ..Setup::varied(seed) }
}

/// What must have been done at least once.
const WORKS: [&str; 4] = ["clone blocks", "expand", "remove", "share blocks"];

/// Every `stride`th event is a crash point, so that there are about `points`.
fn stride(events: usize, points: usize) -> usize {
    if nightly() { 1 + events / 500 } else { (events / points).max(1) }
}

/// Each audit compares every count and every entry with the pointers, through the mapping of a
/// removed device. A crashed pool is imported for writing, the removal or expansion ends beside
/// further changes, and it crashes again.
#[test]
fn every_crash_point_while_vdevs_change() {
    let due = if nightly() { NIGHTLY_POINTS } else { POINTS };
    let (mut points, mut images, mut seed, mut again, mut shown) = (0, 0, 0, 0, 0);
    let mut done = BTreeSet::new();
    while points < due || again < 4 || !WORKS.iter().all(|work| done.contains(work)) {
        seed += 1;
        let recorded = sim::record(&setup(seed));
        done.extend(recorded.done.iter().copied());
        let events = recorded.disks.crash_points();
        let stride_run = stride(events.len(), POINTS_RUN);
        let tally = recorded.crash_everywhere(stride_run, 0, base::rt::parallelism());
        if let Some(failure) = tally.failure {
            panic!("{failure}");
        }
        points += tally.points;
        images += tally.images;
        let at = events[events.len() * (1 + seed as usize % 3) / 4];
        if let Some(next) = recorded.go_on(at, seed % 2).unwrap() {
            let events = next.disks.crash_points().len();
            let stride_again = stride(events, POINTS_AGAIN);
            let tally = next.crash_everywhere(stride_again, 0, base::rt::parallelism());
            if let Some(failure) = tally.failure {
                panic!("{failure}");
            }
            again += 1;
            points += tally.points;
            // zdb 2.3 aborts where counts of clones are numbers, and knows no entries in logs.
            if seed % 4 == 2 && (shown < 1 || nightly()) {
                shown += usize::from(zdb::finds_whole(&next.disks.current(), "block-sharing"));
            }
        }
        assert!(seed < 60 || nightly(), "{done:?}");
    }
    println!(
        "SIMULATED shared blocks while vdevs change: {seed} runs, {points} crash points, {images} \
         images, {again} go on, zdb: {shown}"
    );
}
