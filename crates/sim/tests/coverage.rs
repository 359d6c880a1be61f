//! The workloads create all structures that the crashes are meant to test.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

use base::Txg;
use device::sim::Event;
use sim::{Layout, Recorded, Setup, Workload, check, record};

/// Structures in the pools at the end of some runs.
#[derive(Debug, Default)]
struct PoolCensus {
    gangs: u64,
    spills: usize,
    long_zaps: usize,
    snapshots: usize,
    clones: usize,
    special: usize,
}

/// Writes to a disk outside its labels.
fn blocks_on(run: &Recorded, disk: usize) -> usize {
    let inside = 4 << 20..run.setup.disk_size() - (512 << 10);
    let block = |event: &Event| matches!(event, Event::Write { disk: d, offset, .. } if *d == disk && inside.contains(offset));
    run.disks.log().iter().filter(|e| block(e)).count()
}

#[test]
fn gangs_spills_and_classes() {
    let mut seen = PoolCensus::default();
    for seed in 1..=24 {
        let mut setup = Setup::varied(seed);
        setup.ops = 30;
        match seed % 4 {
            0 => setup.layout = Layout::Classes,
            1 => setup.workload = Workload::Full,
            _ => {}
        }
        let run = record(&setup);
        assert_eq!(run.failed, None, "{}", setup.command());
        let report = check::report(&run.disks.current()).unwrap();
        assert!(report.is_clean(), "{}: {:?}", setup.command(), report.problems);
        seen.gangs += report.stats.gangs;
        let state = run.model.state(Txg::MAX);
        for (ds, at) in state.heads.values() {
            let content = run.model.content(*ds, *at);
            seen.spills += content.values().filter(|o| o.spill.is_some()).count();
            seen.long_zaps += content.values().filter(|o| o.entries.len() > 100).count();
            let origin = run.model.dataset(*ds).and_then(|d| d.origin);
            seen.clones += usize::from(origin.is_some());
        }
        seen.snapshots += state.snaps.len();
        seen.special += if setup.layout == Layout::Classes { blocks_on(&run, 2) } else { 0 };
    }
    println!("SIMULATED coverage: {seen:?}");
    let all = [seen.spills, seen.long_zaps, seen.snapshots, seen.clones, seen.special];
    assert!(seen.gangs > 10 && all.iter().all(|n| *n > 0), "{seen:?}");
}
