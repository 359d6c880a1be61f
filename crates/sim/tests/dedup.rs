//! Deduplicated blocks, with power cuts at every event.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

mod zdb;

use std::collections::BTreeSet;

use sim::{Layout, Setup, Workload};

/// Crash points in `make test`, and in `make nightly`.
const POINTS: u64 = 60;
const NIGHTLY_POINTS: u64 = 200_000;

fn nightly() -> bool {
    std::env::var_os("CENOTE_NIGHTLY").is_some()
}

fn setup(seed: u64) -> Setup {
    let layouts = [
        Layout::Mirror,
        Layout::Single,
        Layout::Raidz,
        Layout::Draid,
        Layout::Classes,
        Layout::Raidz2,
        Layout::Wide(3, 5),
        Layout::Stripe,
    ];
    let layout = layouts[seed as usize % layouts.len()];
    Setup { layout, workload: Workload::Dedup, ops: 24, ..Setup::varied(seed) }
}

/// Tables of both forms, with short logs: each audit compares every entry with the pointers. A
/// crashed pool is imported for writing, goes on, and crashes again; zdb finds no error in it.
#[test]
fn every_crash_point_of_deduplicated_blocks() {
    let due = if nightly() { NIGHTLY_POINTS } else { POINTS };
    let (mut points, mut images, mut seed, mut again, mut shown) = (0, 0, 0, 0, 0);
    let mut done = BTreeSet::new();
    while points < due || done.len() < 3 || again < 2 {
        seed += 1;
        let recorded = sim::record(&setup(seed));
        done.extend(recorded.done.iter().copied());
        let events = recorded.disks.crash_points();
        let stride = if nightly() { 1 } else { (events.len() / 12).max(1) };
        let tally = recorded.crash_everywhere(stride, 1, base::rt::parallelism());
        if let Some(failure) = tally.failure {
            panic!("{failure}");
        }
        points += tally.points;
        images += tally.images;
        let at = events[events.len() * (1 + seed as usize % 3) / 4];
        if let Some(next) = recorded.go_on(at, seed % 2).unwrap() {
            let events = next.disks.crash_points().len();
            let stride = if nightly() { 1 } else { (events / 6).max(1) };
            let tally = next.crash_everywhere(stride, 0, base::rt::parallelism());
            if let Some(failure) = tally.failure {
                panic!("{failure}");
            }
            again += 1;
            if shown < 1 || nightly() {
                shown += usize::from(zdb::finds_whole(&next.disks.current(), "dedup"));
            }
        }
        assert!(seed < 60 || nightly(), "{done:?}");
    }
    println!(
        "SIMULATED deduplication: {seed} runs, {points} crash points, {images} images, {again} \
         go on, zdb: {shown}"
    );
    assert_eq!(done.into_iter().collect::<Vec<_>>(), ["prune", "share blocks", "write blocks"]);
}
