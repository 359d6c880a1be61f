//! Changes acknowledged by fsync through the intent log are there after every power cut.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

use sim::Layout;
use sim::logs::{self, Plant};

/// Crash points in `make test`, and in `make nightly`.
const POINTS: u64 = 1400;
const NIGHTLY_POINTS: u64 = 40_000;

#[test]
fn every_promise_of_the_log_survives() {
    let start = base::rt::now();
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let (due, step) = if nightly { (NIGHTLY_POINTS, 1) } else { (POINTS, 3) };
    let (mut points, mut images, mut replays, mut seed) = (0, 0, 0, 0);
    while points < due {
        seed += 1;
        let recorded = logs::record(seed, Plant::Nothing);
        let tally = recorded.crash_everywhere(step, 1, base::rt::parallelism());
        assert!(tally.failure.is_none(), "{tally}");
        points += tally.points;
        images += tally.images;
        replays += tally.replays;
    }
    println!(
        "SIMULATED logs: {seed} runs, {points} crash points, {images} images, {replays} replays, {:.0} images a second",
        images as f64 / start.elapsed().as_secs_f64()
    );
}

#[test]
fn a_replay_that_is_cut_at_any_event_goes_on() {
    // Seeds with and without `logbias=throughput`, and with both forms of extended
    // attributes; one thread, so that all events are relevant cuts.
    let mut cuts = 0;
    for seed in [3, 10] {
        let recorded = logs::record_as(logs::small(seed), Plant::Nothing);
        cuts += recorded.replay_everywhere().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    println!("SIMULATED replays: {cuts} cuts");
    assert!(cuts > 100, "{cuts}");
}

#[test]
fn planted_bugs_are_found() {
    for plant in [Plant::NoFlush, Plant::ReplayTwice, Plant::Disorder] {
        let found = (1..=8).find_map(|seed| {
            logs::record(seed, plant).crash_everywhere(3, 1, base::rt::parallelism()).failure
        });
        println!("{plant:?}: {found:?}");
        assert!(found.is_some(), "{plant:?}");
    }
}

#[test]
fn log_vdevs_that_die_take_nothing_along() {
    for seed in 1..=6 {
        logs::logs_die(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// Story: in a pool of five disks, raidz1, `fsync` of a file of 5,000 bytes never returned.
/// The log block had two data columns, so a sector was skipped on the last disk, and the
/// zeros for it were the one write of that disk, which its queue dropped without completing
/// it.
#[test]
fn promises_are_kept_on_every_width() {
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let (seeds, step) = if nightly { (20, 7) } else { (1, 400) };
    let (mut points, mut images) = (0, 0);
    for seed in 1..=seeds {
        for (n, layout) in Layout::wide().into_iter().enumerate() {
            let setup = logs::wide(1000 * n as u64 + seed, layout);
            let recorded = logs::record_as(setup, Plant::Nothing);
            let tally = recorded.crash_everywhere(step, 1, base::rt::parallelism());
            assert!(tally.failure.is_none(), "{}: {tally}", layout.name());
            assert!(tally.points > 0, "{}: {tally}", layout.name());
            points += tally.points;
            images += tally.images;
        }
    }
    println!("SIMULATED logs on every width: {points} crash points, {images} images");
}

/// Story: a pool of nine disks, raidz3, lost its power while the disks flushed a log block
/// and the seven blocks of data that its records refer to. The log block could be rebuilt
/// from the disks that had flushed, the data could not: the log had no record, and was
/// kept, as an idle log. Its next block had never been in a txg on disk. Two txgs later the
/// chain led into free space, and zdb would have reported "block claim error".
#[test]
fn a_flush_that_some_disks_finished_leaves_a_log_in_order() {
    let layout = Layout::wide().into_iter().find(|l| l.name() == "raidz3-9").unwrap();
    let recorded = logs::record_as(logs::wide(19_001, layout), Plant::Nothing);
    let tally = recorded.crash_everywhere(2, 0, base::rt::parallelism());
    println!("SIMULATED a flush of nine disks: {tally}");
    assert!(tally.failure.is_none(), "{tally}");
    assert!(tally.points > 100, "{tally}");
}
