//! Receives of streams, with power cuts at every event: the old state or the new one, and partial
//! states that resume to the same result.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

mod zdb;

use std::collections::BTreeSet;

use sim::receives::{ReceiveBug, ReceiveSetup, record};

/// Crash points.
const POINTS: u64 = 60_000;
/// Every kind of step.
const ALL: [&str; 6] = ["begin", "create", "cut off", "receive", "snapshot", "write"];

fn nightly() -> bool {
    std::env::var_os("CENOTE_NIGHTLY").is_some()
}

#[test]
fn every_crash_point_of_receives() {
    if !nightly() {
        println!("SKIPPED: nightly: receives under the simulator take minutes");
        return;
    }
    let (mut points, mut images, mut reopened, mut resumed, mut seed) = (0, 0, 0, 0, 0);
    let mut done = BTreeSet::new();
    while points < POINTS || done.len() < ALL.len() || resumed < 3 {
        seed += 1;
        let recorded = record(ReceiveSetup::varied(seed, None));
        done.extend(recorded.done());
        let tally = recorded.crash_everywhere(1, 1, base::rt::parallelism());
        if let Some((event, crash, what)) = tally.failure {
            let layout = recorded.setup.run.layout.name();
            panic!("seed {seed}, {layout}, crash {event}:{crash}: {what}");
        }
        points += tally.points;
        images += tally.images;
        reopened += tally.reopened;
        resumed += tally.resumed;
        if seed <= 2 || seed % 10 == 0 {
            zdb::finds_whole(&recorded.disks.current(), "receives");
        }
    }
    println!(
        "SIMULATED receives: {seed} runs, {points} crash points, {images} images, {reopened} \
         reopened, {resumed} resumed"
    );
    assert_eq!(done.into_iter().collect::<Vec<_>>(), ALL);
}

#[test]
fn planted_bugs_of_receives_are_found() {
    if !nightly() {
        println!("SKIPPED: nightly: receives under the simulator take minutes");
        return;
    }
    for plant in ReceiveBug::ALL {
        let found = (1..=40).find_map(|seed| {
            let recorded = record(ReceiveSetup::varied(seed, Some(plant)));
            let events = recorded.disks.crash_points().len();
            let step = (events / 150).max(1);
            let failure = recorded.crash_everywhere(step, 1, base::rt::parallelism()).failure;
            failure.map(|failure| (seed, failure))
        });
        println!("PLANTED {plant:?}: {found:?}");
        assert!(found.is_some(), "{plant:?}");
    }
}
