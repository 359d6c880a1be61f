//! Pools are rewound to earlier txgs and crashed meanwhile; the discarded future is never
//! opened again.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use sim::{Layout, Setup, Workload};

#[test]
fn a_rewound_pool_never_meets_its_discarded_future() {
    let (runs, step) = if std::env::var_os("CENOTE_NIGHTLY").is_some() { (100, 3) } else { (3, 8) };
    let layouts = [Layout::Mirror, Layout::Raidz, Layout::Single];
    let (mut images, mut back) = (0, 0);
    for seed in 1..=runs {
        let layout = layouts[seed as usize % layouts.len()];
        let setup = Setup { layout, fault: None, plant: None, ..Setup::varied(seed) };
        let recorded = sim::record(&setup);
        for (steps, absent) in [(1, false), (2, true), (4, true)] {
            let Some(run) = recorded.go_back(steps, absent).unwrap() else { continue };
            let tally = run.crash_everywhere(step, base::rt::parallelism()).unwrap();
            images += tally.images;
            back += 1;
        }
    }
    println!("SIMULATED back: {back} pools went back, {images} images");
    assert!(back > 2 && images > 100, "{back}, {images}");
}

/// A pool that returns to its checkpoint, too, is in one of the two states, and the discarded
/// one never comes back.
#[test]
fn a_pool_returns_to_its_checkpoint() {
    let (runs, step) =
        if std::env::var_os("CENOTE_NIGHTLY").is_some() { (200, 3) } else { (8, 10) };
    let layouts = [Layout::Mirror, Layout::Raidz, Layout::Single, Layout::Draid];
    let (mut images, mut back) = (0, 0);
    for seed in 1..=runs {
        let layout = layouts[seed as usize % layouts.len()];
        let workload = Workload::Checkpoint;
        let setup =
            Setup { layout, workload, ops: 16, fault: None, plant: None, ..Setup::varied(seed) };
        let recorded = sim::record(&setup);
        let Some(run) = recorded.go_to_checkpoint(seed.is_multiple_of(2)).unwrap() else {
            continue;
        };
        let tally = run.crash_everywhere(step, base::rt::parallelism()).unwrap();
        images += tally.images;
        back += 1;
    }
    println!("SIMULATED checkpoints: {back} pools returned, {images} images");
    assert!(back > 2 && images > 100, "{back}, {images}");
}
