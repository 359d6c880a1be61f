//! Vdevs become smaller: what is at their end moves, snapshots stay shared, and nothing but the places
//! of blocks changes; also canceled, across exports, and larger again; and what is refused.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{ErrorKind, VdevId};
use cenote::{MoveState, Pool, PropData};
use common::history::{DISK, MoverHistory, NAME, contents};
use common::tops::*;
use common::*;
use metaslab::MsKey;
use mover::MoveLimits;
use mover::evacuate::{Evacuation, EvacuationStep};
use spa::engine::Writer;
use testkit::{Rng, Scratch, eventually, side_by_side};

/// The new size of devices.
const SIZE: u64 = 320 << 20;

/// A history of which a part is at the ends of the vdevs.
fn spread_history(pool: &Pool, seed: u64) -> MoverHistory {
    let mut history = MoverHistory::new(seed);
    (0..25).for_each(|_| history.step(pool));
    pool.sync().unwrap();
    let w = pool.writer().unwrap();
    let mut low: Vec<MsKey> = Vec::new();
    for (vdev, _) in w.space().vdevs() {
        let all = w.space().metaslabs(vdev).unwrap();
        low.extend(all.iter().take(all.len() * 3 / 4).map(|ms| ms.key));
    }
    low.iter().for_each(|key| w.space().disable(*key, true).unwrap());
    (0..30).for_each(|_| history.step(pool));
    (0..6).for_each(|_| history.write(pool));
    pool.sync().unwrap();
    low.iter().for_each(|key| w.space().disable(*key, false).unwrap());
    (0..5).for_each(|_| history.step(pool));
    pool.sync().unwrap();
    history
}

fn shrink(pool: &Pool, id: u32, size: u64) -> cenote::Result<()> {
    pool.shrink_vdev(&top_guid(pool, id).0.to_string(), size, Some("zpool shrink"))
}

fn asize(w: &Writer, id: u32) -> u64 {
    let config = w.published().config;
    let top = config.vdev_tree.children.iter().find(|v| v.id == id).unwrap();
    top.top.as_ref().unwrap().asize
}

fn becomes_smaller(shape: &TopsShape) {
    let scratch = Scratch::new(&format!("shrink-{}", shape.name()));
    let dir = scratch.path();
    let pool = shape.make(dir);
    let mut history = spread_history(&pool, 3 + shape.ashift);
    let w = pool.writer().unwrap();
    let (vdev, guid) = (VdevId(shape.leaves), top_guid(&pool, shape.leaves));
    let (old, count) = (asize(w, shape.leaves), w.space().metaslabs(vdev).unwrap().len());
    let plan = w.check_shrink(guid, SIZE, true).unwrap().unwrap();
    assert!(w.emptying_left(plan.range).unwrap() > 1 << 20, "{shape:?}");
    let before = invariants(&pool, history.made);
    assert!(pool.estimate_shrink(&guid.0.to_string(), SIZE).unwrap() > 1 << 20);
    shrink(&pool, shape.leaves, SIZE).unwrap();
    let record = ended(&pool);
    assert_eq!(record.state, MoveState::Complete, "{shape:?}: {record:?}");
    assert!(record.moved > 0 && record.kept == 0, "{shape:?}: {record:?}");
    assert_eq!(asize(w, shape.leaves), plan.asize, "{shape:?}");
    let left = w.space().metaslabs(vdev).unwrap().len();
    assert!(left as u64 == plan.metaslabs && left < count, "{shape:?}: {left} of {count}");
    // A txg may be in between.
    eventually("the sums are right", || w.space().check().is_ok());
    rules(&pool);
    assert!(invariants(&pool, history.made) == before, "{shape:?}");
    let again = shrink(&pool, shape.leaves, SIZE).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Invalid);
    (0..15).for_each(|_| history.step(&pool));
    let before = contents(&pool, history.made);
    pool.export().unwrap();
    drop(pool);
    whole(dir, &format!("{shape:?}"));
    zdb(dir, NAME);
    // It grows again.
    let pool = import(dir);
    let w = pool.writer().unwrap();
    assert_eq!(asize(w, shape.leaves), plan.asize, "{shape:?}");
    let config = w.published().config;
    let top = config.vdev_tree.children.iter().find(|v| v.id == shape.leaves).unwrap();
    w.expand(top.leaves().next().unwrap().guid, None).unwrap();
    assert_eq!(asize(w, shape.leaves), old, "{shape:?}");
    assert_eq!(w.space().metaslabs(vdev).unwrap().len(), count, "{shape:?}");
    assert!(contents(&pool, history.made) == before, "{shape:?}");
    (0..15).for_each(|_| history.step(&pool));
    pool.export().unwrap();
    drop(pool);
    whole(dir, &format!("grown {shape:?}"));
    zdb(dir, NAME);
    let pool = import(dir);
    destroy_all(&pool, &mut Rng::new(3));
    pool.export().unwrap();
    drop(pool);
    whole(dir, &format!("emptied {shape:?}"));
}

#[test]
fn vdevs_of_all_kinds_become_smaller() {
    let shapes = [
        shape(&[(0, 1)], 9, 0),
        shape(&[(0, 1), (0, 1)], 12, 1),
        shape(&[(0, 2)], 12, 0),
        shape(&[(0, 3)], 9, 0),
        shape(&[(1, 3)], 9, 0),
        shape(&[(1, 3)], 12, 0),
        shape(&[(2, 5), (1, 3)], 12, 0),
    ];
    side_by_side(&shapes, becomes_smaller);
}

/// A shrinking that is canceled leaves all of the vdev in use; one that is exported goes on by
/// itself.
#[test]
fn a_shrinking_is_canceled_and_continued() {
    let scratch = Scratch::new("shrink-continued");
    let dir = scratch.path();
    let pool = shape(&[(1, 3)], 12, 0).make(dir);
    let mut history = spread_history(&pool, 5);
    history.snapshot(&pool);
    pool.sync().unwrap();
    let before = invariants(&pool, history.made);
    let room = pool.writer().unwrap().allocatable(false);
    assert_eq!(pool.cancel_shrink(None).unwrap_err().kind(), ErrorKind::NotFound);
    shrink(&pool, 0, SIZE).unwrap();
    assert!(pool.cancel_removal(None).is_err() && pool.cancel_defrag(None).is_err());
    let snap = pool.dataset(history.snapshots.last().unwrap()).unwrap();
    let w = pool.writer().unwrap();
    let used = w.use_snapshots(&[(snap.object(), snap.guid())]).unwrap();
    let canceled = pool.cancel_shrink(Some("zpool shrink -s")).is_ok();
    drop((used, snap));
    if canceled {
        assert_eq!(pool.move_job().unwrap().record.state, MoveState::Canceled);
        eventually("what moved is free", || {
            w.touch();
            w.sync().unwrap();
            w.allocatable(false) + (1 << 20) > room
        });
        assert!(invariants(&pool, history.made) == before);
        shrink(&pool, 0, SIZE).unwrap();
    }
    pool.export().unwrap();
    drop(pool);
    whole(dir, "in the middle");
    zdb(dir, NAME);
    let pool = import(dir);
    assert_eq!(ended(&pool).state, MoveState::Complete);
    assert!(invariants(&pool, history.made) == before);
    pool.export().unwrap();
    drop(pool);
    whole(dir, "continued");
    zdb(dir, NAME);
}

/// What cannot be done is refused, with the reason, and nothing changes.
#[test]
fn refusals() {
    let scratch = Scratch::new("shrink-refused");
    let pool = shape(&[(0, 1), (1, 3)], 12, 1).make(scratch.path());
    let refusal = |size: u64| {
        let refused = shrink(&pool, 1, size).unwrap_err();
        refused.message().to_owned()
    };
    assert!(refusal(DISK * 2).contains("the vdev is smaller than that"));
    assert!(refusal(DISK).contains("has this size already"));
    assert!(refusal(1 << 20).contains("the size is too small"));
    pool.take_checkpoint(None).unwrap();
    assert!(refusal(SIZE).contains("checkpoint"));
    pool.writer().unwrap().discard_checkpoint(None).unwrap();
    eventually("the checkpoint is gone", || {
        pool.sync().unwrap();
        pool.writer().unwrap().check_relocation().is_ok()
    });
    let names = [("dedup".to_owned(), PropData::Num(1))];
    pool.create_filesystem(&format!("{NAME}/dedup"), &names, None).unwrap();
    assert_eq!(pool.move_job(), None);
    pool.export().unwrap();
}

/// A metaslab that is not empty, and logged changes of it, are found.
#[test]
fn planted_bugs_are_found() {
    side_by_side(&["none", "left", "unflushed"], |what| {
        let scratch = Scratch::new(&format!("shrink-planted-{what}"));
        let dir = scratch.path();
        let pool = shape(&[(1, 3)], 12, 0).make(dir);
        let _history = spread_history(&pool, 8);
        let w = Arc::clone(pool.writer().unwrap());
        let (plants, guid) = (w.emptying_plants(), top_guid(&pool, 0));
        let range = w.check_shrink(guid, SIZE, true).unwrap().unwrap().range;
        plants.left_mos_block.store(*what == "left", Relaxed);
        let mut work = Evacuation::begin(&w, range, MoveLimits::default()).unwrap();
        let empty = loop {
            match work.step(&w).unwrap() {
                EvacuationStep::More(..) => {}
                EvacuationStep::Empty => break true,
                EvacuationStep::Stuck(_) => break false,
            }
        };
        if *what == "left" {
            assert!(!empty);
            assert_eq!(w.end_shrink(guid, SIZE).unwrap_err().kind(), ErrorKind::Busy);
            drop((work, w));
            pool.export().unwrap();
            return;
        }
        plants.unflushed_cut.store(*what == "unflushed", Relaxed);
        w.end_shrink(guid, SIZE).unwrap();
        drop(work);
        // A power cut, so that logged changes are not flushed.
        w.stop();
        drop((w, pool));
        let found = problems(dir);
        assert_eq!(found.is_some(), *what != "none", "{what}: {found:?}");
    });
}
