//! The power fails at any event while a vdev is emptied and leaves the pool, while its end is cut off,
//! or while the mapping of a removed one is erased: the pool is whole, nothing leaks, and every dataset and snapshot has the content that it always
//! had.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

#[path = "../../spa/tests/common/pools.rs"]
#[allow(dead_code, unreachable_pub)]
mod pools;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use base::{Guid, VdevId};
use cenote::Pool;
use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting};
use cenote::inspect::spa::audit::{AuditOptions, Verify};
use common::history::{MoverHistory, NAME};
use common::object_contents;
use device::sim::{SimConfig, SimDisks};
use mover::MoveLimits;
use mover::evacuate::{Evacuation, EvacuationStep};
use pools::{image_of, leaves, open, writing};
use spa::Spa;
use spa::engine::{EmptyRange, WriterOptions};
use testkit::Scratch;

/// Bytes of a simulated disk.
const SIMULATED: u64 = 80 << 20;
/// Reserved instead of the slop, which would be half of so small a pool.
const SLOP: u64 = 16 << 20;
const LIMITS: MoveLimits = MoveLimits { batch_bytes: 1 << 20, batch_blocks: 128 };
/// Disks of a raidz1.
const DISKS: usize = 3;
/// The vdev that leaves or shrinks.
const VDEV: VdevId = VdevId(0);
/// The size of devices to which it shrinks.
const SMALLER: u64 = 64 << 20;

/// What the power cut interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Emptying {
    Removal,
    Shrinking,
    Unmapping,
}

/// A pool of raidz vdevs; for an unmapping, of single disks.
fn pool_of(dir: &Path, tops: usize, what: Emptying, ashift: u64) -> Arc<Pool> {
    let file = |n: usize| {
        let path = dir.join(format!("disk{n}"));
        std::fs::File::create(&path).unwrap().set_len(SIMULATED).unwrap();
        NewVdev::new(NewKind::File(path))
    };
    let top = |n: usize| {
        if what == Emptying::Unmapping {
            return file(n);
        }
        let disks = (n * DISKS..(n + 1) * DISKS).map(file).collect();
        NewVdev::new(NewKind::Raidz { nparity: 1 }).with_children(disks)
    };
    let request = CreateRequest {
        force: Force::ALL,
        settings: vec![PoolSetting::Stored("ashift", ashift)],
        ..CreateRequest::new(NAME, (0..tops).map(top).collect())
    };
    let pool = testkit::engine().create_pool(&request).unwrap().unwrap();
    pool.writer().unwrap().plants.slop.store(SLOP, Relaxed);
    pool
}

/// Whether the vdev has left, or is smaller.
fn is_over(spa: &Spa, guid: Guid, asize: u64) -> bool {
    let root = &spa.config().vdev_tree;
    root.find(guid).and_then(|v| v.top.as_ref()).is_none_or(|top| top.asize < asize)
}

fn crashes(what: Emptying, n: u64, ashift: u64) {
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let scratch = Scratch::new(&format!("remove-crash-{what:?}-{ashift}"));
    let (shrinks, unmaps) = (what == Emptying::Shrinking, what == Emptying::Unmapping);
    let tops = if shrinks { 1 } else { 2 };
    let pool = pool_of(scratch.path(), tops, what, ashift);
    let mut history = MoverHistory::new(41 + n);
    let space = Arc::clone(pool.writer().unwrap().space());
    let all = space.metaslabs(VDEV).unwrap();
    let low: Vec<_> = all.iter().take(all.len() * 3 / 4).map(|ms| ms.key).collect();
    for round in 0..3 {
        // A part of it is at the end.
        let high = shrinks && round == 1;
        low.iter().filter(|_| high).for_each(|key| space.disable(*key, true).unwrap());
        (0..2).for_each(|_| history.write(&pool));
        history.snapshot(&pool);
        history.unlink(&pool);
        pool.sync().unwrap();
        low.iter().filter(|_| high).for_each(|key| space.disable(*key, false).unwrap());
    }
    if unmaps {
        let guid = common::tops::top_guid(&pool, VDEV.0);
        pool.remove_vdev(&guid.0.to_string(), None).unwrap();
        let mapped = || !pool.writer().unwrap().mapped_vdevs().is_empty();
        testkit::eventually("the vdev has a mapping", mapped);
    }
    pool.export().unwrap();
    drop(pool);
    let image = |n: usize| image_of(&scratch.path().join(format!("disk{n}")));
    let images = match unmaps {
        // The other one has left the pool.
        true => vec![image(1)],
        false => (0..tops * DISKS).map(image).collect(),
    };
    let disks = SimDisks::new(SimConfig::new(9 + n), images);
    let spa = open(&leaves(&disks), &writing());
    let (expected, _) = object_contents(&spa);
    let options = WriterOptions { threads: 1, ..WriterOptions::default() };
    let w = spa.start_writer(options).unwrap();
    w.plants.slop.store(SLOP, Relaxed);
    let top = w.published().config.vdev_tree.children[VDEV.0 as usize].clone();
    let (guid, asize) = (top.guid, top.top.unwrap().asize);
    let range = match shrinks {
        true => w.check_shrink(guid, SMALLER, true).unwrap().unwrap().range,
        false => EmptyRange::whole(VDEV),
    };
    let mut work = Evacuation::begin(&w, range, LIMITS).unwrap();
    let mut steps = 0;
    while work.step(&w).unwrap() != EvacuationStep::Empty {
        steps += 1;
        assert!(steps < 1000);
    }
    match what {
        Emptying::Removal => w.end_emptied_removal(guid).unwrap(),
        Emptying::Shrinking => w.end_shrink(guid, SMALLER).unwrap(),
        Emptying::Unmapping => w.end_unmap(VDEV).unwrap(),
    }
    (0..2).for_each(|_| {
        w.touch();
        w.sync().unwrap();
    });
    w.stop();
    drop((work, w, spa));
    let all = disks.crash_points();
    let wanted = if nightly { all.len() } else { 28 };
    let points: Vec<(u64, u64)> = all
        .iter()
        .rev()
        .step_by((all.len() / wanted).max(1))
        .chain(all.iter().rev().take(12))
        .enumerate()
        .map(|(i, event)| (*event, i as u64 % 3))
        .collect();
    let (over, before) = (AtomicUsize::new(0), AtomicUsize::new(0));
    testkit::side_by_side(&points, |&(event, seed)| {
        let quiet = SimConfig { record: false, ..SimConfig::new(1) };
        let after = SimDisks::new(quiet, disks.crash_image(event, seed).unwrap());
        let spa = open(&leaves(&after), &testkit::readonly());
        let options = AuditOptions { threads: 2, verify: Verify::All, ..AuditOptions::default() };
        let report = spa.audit(options, &()).unwrap();
        let point = format!("{what:?} {ashift} {event}:{seed}");
        assert!(report.is_clean() && report.leaked == 0, "{point}: {:#?}", report.problems);
        let (found, _) = object_contents(&spa);
        assert_eq!(found, expected, "{point}");
        let count = if is_over(&spa, guid, asize) { &over } else { &before };
        count.fetch_add(1, Relaxed);
    });
    let (over, before) = (over.into_inner(), before.into_inner());
    println!("SIMULATED emptying: {} crashes, {over} after the end", points.len());
    assert!(over > 0 && before > 10, "{over} {before}");
}

#[test]
fn a_removal_is_cut_off_at_any_event() {
    crashes(Emptying::Removal, 0, 9);
    crashes(Emptying::Removal, 1, 12);
}

#[test]
fn a_shrinking_is_cut_off_at_any_event() {
    crashes(Emptying::Shrinking, 2, 9);
    crashes(Emptying::Shrinking, 3, 12);
}

#[test]
fn an_unmapping_is_cut_off_at_any_event() {
    crashes(Emptying::Unmapping, 4, 9);
    crashes(Emptying::Unmapping, 5, 12);
}
