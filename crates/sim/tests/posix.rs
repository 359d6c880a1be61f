//! File systems are crashed everywhere: the result agrees with POSIX order and fsync.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

use sim::posix;

/// Crash points in `make test`, and in `make nightly`.
const POINTS: u64 = 4_000;
const NIGHTLY_POINTS: u64 = 200_000;

#[test]
fn every_crash_point_of_a_file_system() {
    let start = base::rt::now();
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let due = if nightly { NIGHTLY_POINTS } else { POINTS };
    let (mut points, mut images, mut groups, mut seed) = (0, 0, 0, 0);
    while points < due {
        seed += 1;
        let recorded = posix::record(seed);
        let tally = recorded.crash_everywhere(1, 1, base::rt::parallelism());
        if let Some(failure) = tally.failure {
            panic!("{failure}");
        }
        points += tally.points;
        images += tally.images;
        groups += tally.txgs;
    }
    println!(
        "SIMULATED posix: {seed} runs, {points} crash points, {images} images, {groups} groups, \
         {:.0} images a second",
        images as f64 / start.elapsed().as_secs_f64()
    );
}

#[test]
fn a_seed_decides_every_event() {
    for seed in [3, 8] {
        let (a, b) = (posix::record(seed), posix::record(seed));
        assert_eq!((a.failed, a.done), (b.failed, b.done), "seed {seed}");
        assert_eq!((a.start, a.disks.events()), (b.start, b.disks.events()), "seed {seed}");
    }
}
