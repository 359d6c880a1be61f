//! The power fails at any event while a vdev is emptied and leaves the pool: the pool is whole,
//! nothing leaks, and every dataset and snapshot has the content that it always had.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

#[path = "../../spa/tests/common/pools.rs"]
#[allow(dead_code, unreachable_pub)]
mod pools;

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use base::VdevId;
use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting};
use cenote::inspect::spa::audit::{AuditOptions, Verify};
use common::history::{MoverHistory, NAME};
use common::object_contents;
use device::sim::{SimConfig, SimDisks};
use mover::MoveLimits;
use mover::evacuate::{Evacuation, EvacuationStep};
use pools::{image_of, leaves, open, writing};
use spa::engine::WriterOptions;
use testkit::Scratch;

/// Bytes of a simulated disk.
const SIMULATED: u64 = 80 << 20;
/// Reserved instead of the slop, which would be half of so small a pool.
const SLOP: u64 = 16 << 20;
const LIMITS: MoveLimits = MoveLimits { batch_bytes: 1 << 20, batch_blocks: 128 };
/// Two raidz1 of this many disks.
const DISKS: usize = 3;
/// The vdev that leaves.
const LEAVES: VdevId = VdevId(0);

#[test]
fn a_crash_at_any_event_loses_nothing() {
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let (mut crashes, holes, whole) = (0, AtomicUsize::new(0), AtomicUsize::new(0));
    for (n, ashift) in [9, 12].into_iter().enumerate() {
        let scratch = Scratch::new(&format!("remove-crash-{ashift}"));
        let disk = |n: usize| scratch.path().join(format!("disk{n}"));
        let top = |from: usize| {
            let file = |n: usize| {
                std::fs::File::create(disk(n)).unwrap().set_len(SIMULATED).unwrap();
                NewVdev::new(NewKind::File(disk(n)))
            };
            let disks = (from..from + DISKS).map(file).collect();
            NewVdev::new(NewKind::Raidz { nparity: 1 }).with_children(disks)
        };
        let request = CreateRequest {
            force: Force::ALL,
            settings: vec![PoolSetting::Stored("ashift", ashift)],
            ..CreateRequest::new(NAME, vec![top(0), top(DISKS)])
        };
        let pool = testkit::engine().create_pool(&request).unwrap().unwrap();
        pool.writer().unwrap().plants.slop.store(SLOP, Relaxed);
        let mut history = MoverHistory::new(41 + n as u64);
        for _ in 0..3 {
            (0..2).for_each(|_| history.write(&pool));
            history.snapshot(&pool);
            history.unlink(&pool);
        }
        pool.export().unwrap();
        drop(pool);
        let images = (0..2 * DISKS).map(|n| image_of(&disk(n))).collect();
        let disks = SimDisks::new(SimConfig::new(9 + n as u64), images);
        let spa = open(&leaves(&disks), &writing());
        let (expected, _) = object_contents(&spa);
        let options = WriterOptions { threads: 1, ..WriterOptions::default() };
        let w = spa.start_writer(options).unwrap();
        w.plants.slop.store(SLOP, Relaxed);
        let guid = w.published().config.vdev_tree.children[LEAVES.0 as usize].guid;
        let mut work = Evacuation::begin(&w, LEAVES, LIMITS).unwrap();
        let mut steps = 0;
        while work.step(&w).unwrap() != EvacuationStep::Empty {
            steps += 1;
            assert!(steps < 1000);
        }
        w.end_emptied_removal(guid).unwrap();
        (0..2).for_each(|_| {
            w.touch();
            w.sync().unwrap();
        });
        w.stop();
        drop((w, spa));
        let all = disks.crash_points();
        let wanted = if nightly { all.len() } else { 32 };
        let points: Vec<(u64, u64)> = all
            .iter()
            .rev()
            .step_by((all.len() / wanted).max(1))
            .chain(all.iter().rev().take(12))
            .enumerate()
            .map(|(i, event)| (*event, i as u64 % 3))
            .collect();
        crashes += points.len();
        testkit::side_by_side(&points, |&(event, seed)| {
            let quiet = SimConfig { record: false, ..SimConfig::new(1) };
            let after = SimDisks::new(quiet, disks.crash_image(event, seed).unwrap());
            let spa = open(&leaves(&after), &testkit::readonly());
            let options =
                AuditOptions { threads: 2, verify: Verify::All, ..AuditOptions::default() };
            let report = spa.audit(options, &()).unwrap();
            let what = format!("{ashift} {event}:{seed}");
            assert!(report.is_clean() && report.leaked == 0, "{what}: {:#?}", report.problems);
            let (found, _) = object_contents(&spa);
            assert_eq!(found, expected, "{what}");
            let gone = spa.config().vdev_tree.find(guid).is_none();
            if gone { &holes } else { &whole }.fetch_add(1, Relaxed);
        });
    }
    let (holes, whole) = (holes.into_inner(), whole.into_inner());
    println!("SIMULATED removal without a mapping: {crashes} crashes, {holes} after the end");
    assert!(holes > 0 && whole > 20, "{holes} {whole}");
}
