//! The power fails at any event while blocks move to a vdev that was added: the pool is whole,
//! nothing leaks, every dataset and snapshot has the content that it always had, and the job is in a
//! state from which it continues.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

#[path = "../../spa/tests/common/pools.rs"]
#[allow(dead_code, unreachable_pub)]
mod pools;

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use cenote::create::{AddRequest, Force, NewKind, NewVdev, Role};
use cenote::inspect::spa::audit::{AuditOptions, Verify};
use cenote::{MoveState, MoveWork};
use common::history::{MoverHistory, MoverShape};
use common::object_contents;
use device::sim::{SimConfig, SimDisks};
use mover::job::{MoveJob, MoveRequest};
use pools::{image_of, leaves, open, writing};
use spa::engine::WriterOptions;
use testkit::{Scratch, eventually};

/// Bytes of a simulated disk.
const SIMULATED: u64 = 80 << 20;
/// Reserved instead of the slop, which would be half of so small a pool.
const SLOP: u64 = 16 << 20;

#[test]
fn a_crash_at_any_event_loses_nothing() {
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let works = [(MoveWork::Rebalance, Role::Data, 9), (MoveWork::ToSpecial, Role::Special, 12)];
    let (mut crashes, states) = (0, AtomicUsize::new(0));
    for (n, (work, role, ashift)) in works.into_iter().enumerate() {
        let scratch = Scratch::new(&format!("rebalance-crash-{ashift}"));
        let disk = |n: usize| scratch.path().join(format!("disk{n}"));
        let shape = MoverShape { kind: "single", disks: 1, ashift };
        let pool = shape.make_of(scratch.path(), SIMULATED);
        pool.writer().unwrap().plants.slop.store(SLOP, Relaxed);
        let mut history = MoverHistory::new(51 + n as u64);
        for _ in 0..3 {
            (0..12).for_each(|_| history.write(&pool));
            history.snapshot(&pool);
            history.unlink(&pool);
        }
        std::fs::File::create(disk(1)).unwrap().set_len(SIMULATED).unwrap();
        let request = AddRequest {
            vdevs: vec![NewVdev::new(NewKind::File(disk(1))).for_role(role)],
            force: Force::ALL,
            dry_run: false,
            ashift: u32::try_from(ashift).ok(),
            command: None,
        };
        testkit::engine().add_vdevs(&pool, &request).unwrap();
        pool.export().unwrap();
        drop(pool);
        let images = (0..2).map(|n| image_of(&disk(n))).collect();
        let disks = SimDisks::new(SimConfig::new(17 + n as u64), images);
        let spa = open(&leaves(&disks), &writing());
        let (expected, first) = object_contents(&spa);
        let options = WriterOptions { threads: 1, ..WriterOptions::default() };
        let w = spa.start_writer(options).unwrap();
        w.plants.slop.store(SLOP, Relaxed);
        let job = MoveJob::default();
        job.start(&w, &MoveRequest { work, ..MoveRequest::default() }, None).unwrap();
        eventually("the rebalance ends", || {
            job.status().is_some_and(|job| job.record.state != MoveState::Active)
        });
        let record = job.status().unwrap().record;
        assert_eq!(record.state, MoveState::Complete);
        assert!(record.moved + record.metadata > 0, "{record:?}");
        (0..4).for_each(|_| {
            w.touch();
            w.sync().unwrap();
        });
        job.close(true);
        w.stop();
        drop((w, spa));
        let all = disks.crash_points();
        let wanted = if nightly { all.len() } else { 40 };
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
            let what = format!("{work:?} {event}:{seed}");
            assert!(report.is_clean() && report.leaked == 0, "{what}: {:#?}", report.problems);
            let (found, roots) = object_contents(&spa);
            assert_eq!(found, expected, "{what}");
            middle.fetch_add(usize::from(roots != first), Relaxed);
        });
        states.fetch_add(middle.into_inner(), Relaxed);
    }
    println!("SIMULATED rebalance: {crashes} crashes");
    assert!(states.into_inner() > 10, "no crash after a batch");
}
