//! Every crash point of some runs.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods)]

#[test]
fn seeds() {
    let from: u64 = std::env::var("SIM_SEED").ok().map_or(1, |s| s.parse().unwrap());
    let count: u64 = std::env::var("SIM_RUNS").ok().map_or(1, |s| s.parse().unwrap());
    for seed in from..from + count {
        let setup = sim::Setup::varied(seed);
        let start = std::time::Instant::now();
        let r = sim::record(&setup);
        let took = start.elapsed();
        println!(
            "{} steps {} events {} {took:?} {:?}",
            setup.command(),
            r.steps,
            r.disks.events(),
            r.failed
        );
        let start = std::time::Instant::now();
        let t = r.crash_everywhere(1, 1, 2);
        println!(
            "   {} images {} points {} groups {:?}",
            t.images,
            t.points,
            t.groups,
            start.elapsed()
        );
        if let Some(f) = t.failure {
            println!("{f}");
        }
    }
}
