//! A slow leaf of a parity vdev sits out of reads: when it is found, that its columns come from
//! parity, and that it is read where the others do not suffice. Time is virtual.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod cases;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::rt::{Mutex, sim};
use base::{ErrorKind, Guid, Result};
use cases::{LEAF, TestBlock, TestRng, VdevCase, blocks, case, cases, check, write_all};
use device::{Caps, Device, DeviceStats, MemDevice, Op};
use vdev::{ReportKind, SitOutLimits, Tree, VdevKind};

/// A device whose reads take time, each by itself.
struct SlowDevice {
    mem: Arc<MemDevice>,
    micros: Arc<AtomicU64>,
}

impl Device for SlowDevice {
    fn caps(&self) -> &Caps {
        self.mem.caps()
    }
    fn size(&self) -> u64 {
        self.mem.size()
    }
    fn submit(&self, batch: Vec<Op>) {
        let (mem, wait) = (Arc::clone(&self.mem), Duration::from_micros(self.micros.load(Relaxed)));
        let work = move || {
            base::rt::sleep(wait);
            mem.submit(batch);
        };
        base::rt::spawn("slow device", work).unwrap();
    }
    fn describe(&self) -> String {
        self.mem.describe()
    }
    fn stats(&self) -> &DeviceStats {
        self.mem.stats()
    }
}

/// A vdev of such devices, with blocks on it.
struct SlowVdev {
    case: VdevCase,
    tree: Arc<Tree>,
    micros: Vec<Arc<AtomicU64>>,
    blocks: Vec<TestBlock>,
    /// Leaves that were reported.
    sat_out: Arc<Mutex<Vec<Guid>>>,
}

impl SlowVdev {
    /// All reads take a millisecond.
    fn new(case: VdevCase) -> SlowVdev {
        let micros: Vec<Arc<AtomicU64>> =
            case.leaves.iter().map(|_| Arc::new(AtomicU64::new(1000))).collect();
        let tree = Tree::build(&case.spec, &|leaf| -> Result<Arc<dyn Device>> {
            let index = (leaf.guid.0 - LEAF) as usize;
            let (mem, micros) = (Arc::clone(&case.leaves[index].mem), Arc::clone(&micros[index]));
            Ok(Arc::new(SlowDevice { mem, micros }))
        })
        .unwrap();
        let blocks = blocks(&tree, &case, &mut TestRng(0x2545_f491_4f6c_dd1d));
        assert!(write_all(&tree, &blocks).iter().all(|r| r.result.is_ok()), "{}", case.name);
        let sat_out = Arc::new(Mutex::new(Vec::new()));
        let reports = Arc::clone(&sat_out);
        tree.set_reporter(Box::new(move |report| {
            if report.kind == ReportKind::SitOut {
                reports.lock().push(report.guid);
            }
        }));
        SlowVdev { case, tree, micros, blocks, sat_out }
    }

    fn guid(leaf: usize) -> Guid {
        Guid(LEAF + leaf as u64)
    }

    fn sits_out(&self, leaf: usize) -> bool {
        self.tree.find(SlowVdev::guid(leaf)).unwrap().sits_out()
    }

    /// Reads everything, and returns the number of reads of each leaf.
    fn read_all(&self) -> Vec<u64> {
        let reads = || self.case.leaves.iter().map(|l| l.mem.stats().snapshot().reads);
        let before: Vec<u64> = reads().collect();
        self.blocks.iter().for_each(|block| check(&self.tree, block, &self.case.name));
        reads().zip(before).map(|(now, before)| now - before).collect()
    }
}

fn parity_cases() -> Vec<VdevCase> {
    let parity = |case: &VdevCase| {
        let top = &case.spec.children[0];
        matches!(top.kind, VdevKind::Raidz { .. } | VdevKind::Draid(_))
            && top.children.iter().all(|child| child.kind.is_device())
    };
    cases().into_iter().filter(parity).collect()
}

/// As many leaves as may be lost sit out, in several combinations: the others are read, and the
/// blocks are right. A leaf more is read again where it is needed.
#[test]
fn leaves_that_sit_out_are_replaced_by_parity() {
    for case in parity_cases() {
        let run = sim::run(1, move || {
            let vdev = SlowVdev::new(case);
            let name = &vdev.case.name;
            for lost in vdev.case.losses().into_iter().step_by(4) {
                let set = |leaf: usize, on| {
                    vdev.tree.set_sit_out(SlowVdev::guid(leaf), on).unwrap();
                };
                lost.iter().for_each(|&leaf| set(leaf, true));
                let reads = vdev.read_all();
                assert!(lost.iter().all(|&l| reads[l] == 0), "{name}: {lost:?}: {reads:?}");
                // All sit out, and nothing is lost.
                (0..reads.len()).for_each(|leaf| set(leaf, true));
                assert!(vdev.read_all().iter().any(|&n| n > 0), "{name}");
                (0..reads.len()).for_each(|leaf| set(leaf, false));
            }
            // A scrub reads all of them.
            vdev.tree.set_sit_out(SlowVdev::guid(0), true).unwrap();
            let before = vdev.case.leaves[0].mem.stats().snapshot().reads;
            for block in &vdev.blocks {
                let psize = base::Psize(block.data.len() as u64);
                let req = vdev::ReadReq::new(cases::TOP, block.offset, psize, block.birth);
                let found = vdev.tree.scrub(&req, &|bytes| *bytes == *block.data);
                assert!(found.data.is_ok() && found.report.bad.is_empty(), "{name}");
            }
            assert!(vdev.case.leaves[0].mem.stats().snapshot().reads > before, "{name}");
        });
        assert!(matches!(run.outcome, sim::Outcome::Done(())), "{:?}", run.outcome);
    }
}

/// With `autosit` the slow leaves sit out, no more than the vdev has parity, for as long as the
/// limit says; without it none does.
#[test]
fn slow_leaves_sit_out_by_themselves() {
    let wide = |case: &VdevCase| {
        case.leaves.len() > case.tolerated + 2 && case.spec.children[0].ashift == 12
    };
    for case in parity_cases().into_iter().filter(wide) {
        let run = sim::run(2, move || {
            let vdev = SlowVdev::new(case);
            let (name, parity) = (vdev.case.name.clone(), vdev.case.tolerated);
            let limits = SitOutLimits { secs: 36_000, check_ms: 1, ..SitOutLimits::default() };
            vdev.tree.set_sit_out_limits(limits);
            let slow = |leaf: usize, micros| vdev.micros[leaf].store(micros, Relaxed);
            let rounds = |count: usize| (0..count).for_each(|_| drop(vdev.read_all()));
            // The leaves that are read most often.
            let reads = vdev.read_all();
            let mut order: Vec<usize> = (0..reads.len()).collect();
            order.sort_by_key(|&leaf| std::cmp::Reverse(reads[leaf]));
            let [first, second] = [order[0], order[1]];
            slow(first, 20_000);
            rounds(6);
            assert!(!vdev.sits_out(first), "{name}: without autosit");
            vdev.tree.set_autosit(Guid(10), true).unwrap();
            let found = (0..60).any(|_| {
                rounds(1);
                vdev.sits_out(first)
            });
            assert!(found, "{name}");
            assert_eq!(*vdev.sat_out.lock(), [SlowVdev::guid(first)], "{name}");
            assert_eq!(vdev.read_all()[first], 0, "{name}");
            // A leaf that is a little slower stays.
            slow(second, 1900);
            rounds(6);
            assert!(!vdev.sits_out(second), "{name}");
            // Slow ones beyond parity stay, too.
            order.iter().take(parity + 1).for_each(|&leaf| slow(leaf, 200_000));
            rounds(12);
            let out = order.iter().filter(|&&leaf| vdev.sits_out(leaf)).count();
            assert!(out <= parity && vdev.sits_out(first), "{name}: {out}");
            // The time ends.
            order.iter().for_each(|&leaf| slow(leaf, 1000));
            base::rt::sleep(Duration::from_secs(36_001));
            assert!(!order.iter().any(|&leaf| vdev.sits_out(leaf)), "{name}");
            assert!(vdev.read_all()[first] > 0, "{name}");
        });
        assert!(matches!(run.outcome, sim::Outcome::Done(())), "{:?}", run.outcome);
    }
}

/// Other vdevs have neither property.
#[test]
fn only_parity_vdevs_have_it() {
    let mirror = case("mirror of 2", VdevKind::Mirror, cases::leaf_specs(2), 12, 1).tree();
    let raidz = cases::raidz(1, 3, 12).tree();
    for (tree, guid, autosit) in [
        (&mirror, Guid(LEAF), false),
        (&mirror, Guid(10), true),
        (&raidz, Guid(LEAF), true),
        (&raidz, Guid(10), false),
    ] {
        let refused = match autosit {
            true => tree.set_autosit(guid, true),
            false => tree.set_sit_out(guid, true),
        };
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
    }
    assert_eq!(raidz.set_autosit(Guid(9), true).unwrap_err().kind(), ErrorKind::NotFound);
}
