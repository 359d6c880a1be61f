//! The power fails at any event while blocks move: the pool is whole, nothing leaks, and every
//! dataset and snapshot has the content that it always had.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

#[path = "../../spa/tests/common/pools.rs"]
#[allow(dead_code, unreachable_pub)]
mod pools;

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use cenote::inspect::spa::audit::{AuditOptions, Verify};
use common::history::{MoverHistory, MoverShape};
use common::{full_metaslabs, object_contents};
use device::sim::{SimConfig, SimDisks};
use mover::{MoveLimits, empty_metaslab};
use pools::{image_of, leaves, open, writing};
use spa::engine::WriterOptions;
use testkit::Scratch;

/// Bytes of a simulated disk.
const SIMULATED: u64 = 80 << 20;
/// Reserved instead of the slop, which would be half of so small a pool.
const SLOP: u64 = 16 << 20;
const LIMITS: MoveLimits = MoveLimits { batch_bytes: 1 << 20, batch_blocks: 128 };

#[test]
fn a_crash_at_any_event_loses_nothing() {
    let shapes = [
        MoverShape { kind: "single", disks: 1, ashift: 9 },
        MoverShape { kind: "mirror", disks: 2, ashift: 12 },
        MoverShape { kind: "raidz1", disks: 3, ashift: 9 },
        MoverShape { kind: "raidz1", disks: 3, ashift: 12 },
    ];
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let (mut crashes, states) = (0, AtomicUsize::new(0));
    for (n, shape) in shapes.into_iter().enumerate() {
        let scratch = Scratch::new(&format!("mover-crash-{}", shape.name()));
        let pool = shape.make_of(scratch.path(), SIMULATED);
        pool.writer().unwrap().plants.slop.store(SLOP, Relaxed);
        let mut history = MoverHistory::new(31 + n as u64);
        for _ in 0..3 {
            (0..3).for_each(|_| history.write(&pool));
            history.snapshot(&pool);
            history.unlink(&pool);
        }
        pool.export().unwrap();
        drop(pool);
        let disk = |n: usize| image_of(&scratch.path().join(format!("disk{n}")));
        let images = (0..shape.disks).map(disk).collect();
        let disks = SimDisks::new(SimConfig::new(7 + n as u64), images);
        let spa = open(&leaves(&disks), &writing());
        let (expected, first) = object_contents(&spa);
        let options = WriterOptions { threads: 1, ..WriterOptions::default() };
        let w = spa.start_writer(options).unwrap();
        w.plants.slop.store(SLOP, Relaxed);
        let mut batches = 0;
        for key in full_metaslabs(&w).into_iter().take(2) {
            batches += empty_metaslab(&w, key, &LIMITS).unwrap().batches;
        }
        assert!(batches > 2, "{shape:?}: {batches}");
        (0..4).for_each(|_| {
            w.touch();
            w.sync().unwrap();
        });
        w.stop();
        drop((w, spa));
        let all = disks.crash_points();
        let wanted = if nightly { all.len() } else { 24 };
        let points: Vec<(u64, u64)> = all
            .iter()
            .step_by((all.len() / wanted).max(1))
            .enumerate()
            .map(|(i, event)| (*event, i as u64 % 3))
            .collect();
        crashes += points.len();
        let middle = AtomicUsize::new(0);
        testkit::side_by_side(&points, |&(event, seed)| {
            let quiet = SimConfig { record: false, ..SimConfig::new(1) };
            let after = SimDisks::new(quiet, disks.crash_image(event, seed).unwrap());
            let spa = open(&leaves(&after), &testkit::readonly());
            let options =
                AuditOptions { threads: 2, verify: Verify::All, ..AuditOptions::default() };
            let report = spa.audit(options, &()).unwrap();
            let what = format!("{shape:?} {event}:{seed}");
            assert!(report.is_clean() && report.leaked == 0, "{what}: {:#?}", report.problems);
            let (found, roots) = object_contents(&spa);
            assert_eq!(found, expected, "{what}");
            middle.fetch_add(usize::from(roots != first), Relaxed);
        });
        states.fetch_add(middle.into_inner(), Relaxed);
    }
    println!("SIMULATED relocation: {crashes} crashes");
    assert!(states.into_inner() > 20, "no crash in the middle");
}
