//! Mishaps of the disks in a crash: each kind occurs, and damage without redundancy is
//! detected.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

use std::collections::BTreeSet;
use std::sync::Arc;

use base::Txg;
use base::rt::sim::Rng;
use device::sim::crash_seeds;
use sim::mishap::Mishap;
use sim::model::Act;
use sim::{Layout, Recorded, Setup, Workload, record};

fn setup(layout: Layout) -> Setup {
    Setup { layout, workload: Workload::Files, ..Setup::varied(3) }
}

/// Seeds of crashes, each with another mishap.
fn seeds(run: &Recorded, count: usize) -> Vec<(u64, Mishap)> {
    let mut rng = Rng::stream(7, 1);
    let all = (0..).map(|_| rng.next_u64()).map(|seed| (seed, run.mishap(seed)));
    all.filter(|(_, mishap)| mishap.damages()).take(count).collect()
}

#[test]
fn every_kind_of_mishap_happens_to_every_disk() {
    let run = record(&setup(Layout::Raidz));
    let mut seen = BTreeSet::new();
    for event in 0..400 {
        for seed in crash_seeds(1, event, 1) {
            let mishap = run.mishap(seed);
            assert!(seed > 1 || mishap == Mishap::Nothing);
            seen.insert(match mishap {
                Mishap::Nothing => ("nothing", 0),
                Mishap::Reordered => ("reordered", 0),
                Mishap::Misdirected { disk, .. } => ("misdirected", disk),
                Mishap::Missing { disk } => ("missing", disk),
                Mishap::BadSectors { disk, .. } => ("bad sectors", disk),
            });
        }
    }
    assert_eq!(seen.len(), 2 + 3 * 3, "{seen:?}");
    assert_eq!(run.expect(0, 0).manner.without, Vec::<usize>::new());
}

#[test]
fn redundancy_makes_up_for_a_mishap_and_a_single_disk_tells_of_it() {
    for layout in [Layout::Mirror, Layout::Raidz, Layout::Single] {
        let run = record(&setup(layout));
        let last = *run.disks.crash_points().last().unwrap();
        for (seed, mishap) in seeds(&run, 12) {
            let expect = run.expect(last, seed);
            assert_eq!(expect.detect, layout == Layout::Single, "{mishap:?}");
            run.crash_once(last, seed).unwrap_or_else(|e| panic!("{mishap:?}: {e}"));
        }
    }
}

/// Returned data is compared even if errors are allowed: the model is changed to expect
/// other content of an object, and no damage elsewhere hides the difference.
#[test]
fn damage_is_no_excuse_for_wrong_content() {
    for layout in [Layout::Mirror, Layout::Single] {
        let run = record(&setup(layout));
        let last = *run.disks.crash_points().last().unwrap();
        let group = run.crash_once(last, 0).unwrap().unwrap();
        let shared = *run.model.content(0, group).iter().find(|(_, o)| !o.zap).unwrap().0;
        let act = Act::Write { at: 1 << 30, data: Arc::new(vec![7; 512]) };
        run.model.note(Txg(group.0), 0, shared, act);
        let again = Recorded { memo: sim::memo::Memo::default(), ..run };
        let wrong = seeds(&again, 24).into_iter().filter(|(seed, _)| {
            let told = again.crash_once(last, *seed);
            told.is_err_and(|e| e.contains("are holes") || e.contains("other bytes"))
        });
        assert!(wrong.count() >= 8, "{layout:?}");
    }
}
