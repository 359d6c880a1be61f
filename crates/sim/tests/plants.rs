//! Planted bugs are found.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods)]

use sim::{Plant, Setup, Workload};

#[test]
fn each_planted_bug_is_found() {
    for plant in Plant::ALL {
        let start = std::time::Instant::now();
        let mut images = 0;
        let mut found = None;
        for seed in 1..60 {
            let setup = Setup {
                plant: Some(plant),
                workload: Workload::Churn,
                ops: 30,
                ..Setup::varied(seed)
            };
            let tally = sim::run(&setup, 3, 0, 2);
            images += tally.images;
            if let Some(failure) = tally.failure {
                found = Some(failure);
                break;
            }
            if start.elapsed().as_secs() > 20 {
                break;
            }
        }
        println!(
            "{}: {:?} after {images} images, {:?}",
            plant.name(),
            found.map(|f| (f.what.clone(), f.setup.command(), f.crash)),
            start.elapsed()
        );
    }
}
