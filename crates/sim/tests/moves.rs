//! Blocks that move beside changes of files, snapshots and clones, with power cuts at every
//! event.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

mod zdb;

use sim::{Layout, Setup, Workload};

/// Crash points in `make test`, and in `make nightly`.
const POINTS: u64 = 60;
const NIGHTLY_POINTS: u64 = 8_000;
/// Crash points of one run in `make test`, and after it has gone on.
const POINTS_RUN: usize = 12;
const POINTS_AGAIN: usize = 4;

fn nightly() -> bool {
    std::env::var_os("CENOTE_NIGHTLY").is_some()
}

fn setup(seed: u64) -> Setup {
    let layouts = [
        Layout::Mirror,
        Layout::Raidz,
        Layout::Stripe,
        Layout::Draid,
        Layout::Classes,
        Layout::Raidz2,
        Layout::Single,
        Layout::Wide(3, 5),
    ];
    let layout = layouts[seed as usize % layouts.len()];
    Setup { layout, workload: Workload::Moves, ops: 24, ..Setup::varied(seed) }
}

/// Every `stride`th event is a crash point, so that there are about `points`.
fn stride(events: usize, points: usize) -> usize {
    if nightly() { 1 + events / 500 } else { (events / points).max(1) }
}

/// A crashed pool is whole and has the content that it had; it is imported for writing, blocks
/// go on to move, and it crashes again.
#[test]
fn every_crash_point_while_blocks_move() {
    let due = if nightly() { NIGHTLY_POINTS } else { POINTS };
    let (mut points, mut images, mut seed, mut again, mut moves, mut shown) = (0, 0, 0, 0, 0, 0);
    while points < due || again < 3 || moves < 3 {
        seed += 1;
        let recorded = sim::record(&setup(seed));
        moves += u64::from(recorded.done.contains("move blocks"));
        let events = recorded.disks.crash_points();
        let stride_run = stride(events.len(), POINTS_RUN);
        let tally = recorded.crash_everywhere(stride_run, 1, base::rt::parallelism());
        if let Some(failure) = tally.failure {
            panic!("{failure}");
        }
        points += tally.points;
        images += tally.images;
        let at = events[events.len() * (1 + seed as usize % 3) / 4];
        if let Some(next) = recorded.go_on(at, seed % 2).unwrap() {
            let stride_again = stride(next.disks.crash_points().len(), POINTS_AGAIN);
            let tally = next.crash_everywhere(stride_again, 0, base::rt::parallelism());
            if let Some(failure) = tally.failure {
                panic!("{failure}");
            }
            again += 1;
            points += tally.points;
            if shown < 1 || nightly() {
                shown += usize::from(zdb::finds_whole(&next.disks.current(), "moves"));
            }
        }
        assert!(seed < 60 || nightly(), "{moves} runs moved blocks");
    }
    println!(
        "SIMULATED moves: {seed} runs, {moves} with moves, {points} crash points, {images} images, \
         {again} go on, zdb: {shown}"
    );
}
