//! Receives of streams, with power cuts at every event: the old state or the new one, and partial
//! states that resume to the same result.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

mod zdb;

use std::collections::BTreeSet;

use sim::receives::{ReceiveBug, ReceiveSetup, record};

/// Crash points in `make test`, and in `make nightly`.
const POINTS: u64 = 400;
const NIGHTLY_POINTS: u64 = 60_000;
/// Every kind of step.
const ALL: [&str; 6] = ["begin", "create", "cut off", "receive", "snapshot", "write"];

fn nightly() -> bool {
    std::env::var_os("CENOTE_NIGHTLY").is_some()
}

#[test]
fn every_crash_point_of_receives() {
    let due = if nightly() { NIGHTLY_POINTS } else { POINTS };
    let (mut points, mut images, mut reopened, mut resumed, mut seed) = (0, 0, 0, 0, 0);
    let mut done = BTreeSet::new();
    while points < due || done.len() < ALL.len() || resumed < 3 {
        seed += 1;
        let recorded = record(ReceiveSetup::varied(seed, None));
        done.extend(recorded.done());
        let events = recorded.disks.crash_points().len();
        let step = if nightly() { 1 } else { (events / 100).max(1) };
        let tally = recorded.crash_everywhere(step, 1, base::rt::parallelism());
        if let Some((event, crash, what)) = tally.failure {
            let layout = recorded.setup.run.layout.name();
            panic!("seed {seed}, {layout}, crash {event}:{crash}: {what}");
        }
        points += tally.points;
        images += tally.images;
        reopened += tally.reopened;
        resumed += tally.resumed;
        if seed <= 2 || nightly() && seed % 10 == 0 {
            zdb::finds_whole(&recorded.disks.current(), "receives");
        }
        assert!(seed < 60 || nightly(), "{done:?}, {resumed} resumed");
    }
    println!(
        "SIMULATED receives: {seed} runs, {points} crash points, {images} images, {reopened} \
         reopened, {resumed} resumed"
    );
    assert_eq!(done.into_iter().collect::<Vec<_>>(), ALL);
}

#[test]
fn planted_bugs_of_receives_are_found() {
    for plant in ReceiveBug::ALL {
        // A seed that is known to find the bug soon; `make nightly` begins with the first one.
        let first = match plant {
            _ if nightly() => 1,
            ReceiveBug::EarlySwitch => 1,
            ReceiveBug::PositionTooFar => 1,
            ReceiveBug::UnsyncedPosition => 1,
        };
        let found = (first..first + 40).find_map(|seed| {
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
