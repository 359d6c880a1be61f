//! After a crash the pool is written again, and OpenZFS's zdb finds no error.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

mod zdb;

use base::rt::sim::Rng;
use sim::{Recorded, Setup};

/// Some crashes of a run, in the middle of it.
fn some(recorded: &Recorded, count: usize) -> Vec<(u64, u64)> {
    let mut rng = Rng::stream(recorded.setup.seed, 41);
    let points = recorded.disks.crash_points();
    let from = points.len() / 2;
    let mut one = || points[from + rng.below((points.len() - from) as u64) as usize];
    (0..count).map(|i| (one(), i as u64 % 3)).collect()
}

#[test]
fn a_crashed_pool_is_written_again() {
    let runs = if std::env::var_os("CENOTE_NIGHTLY").is_some() { 200 } else { 5 };
    let (mut images, mut again) = (0, 0);
    for seed in 1..=runs {
        let recorded = sim::record(&Setup::varied(seed));
        for (event, crash) in some(&recorded, 3) {
            let Some(next) = recorded.go_on(event, crash).unwrap() else { continue };
            let tally = next.crash_everywhere(5, 0, base::rt::parallelism());
            if let Some(failure) = tally.failure {
                panic!("{} --crash {event}:{crash}, then {failure}", recorded.setup.command());
            }
            images += tally.images;
            again += 1;
        }
    }
    println!("SIMULATED again: {again} pools went on after a crash, {images} images");
    assert!(again > 0);
}

#[test]
fn zdb_finds_crashed_pools_whole() {
    let runs = if std::env::var_os("CENOTE_NIGHTLY").is_some() { 100 } else { 2 };
    let mut shown = 0;
    for seed in 1..=runs {
        let recorded = sim::record(&Setup::varied(seed));
        for (event, crash) in some(&recorded, 2) {
            if recorded.crash_once(event, crash).unwrap().is_none() {
                continue;
            }
            let images = recorded.image(event, crash).unwrap();
            shown += usize::from(zdb::finds_whole(&images, "after"));
        }
    }
    println!("SIMULATED zdb: {shown} crashed pools found whole");
}
