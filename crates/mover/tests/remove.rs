//! Vdevs with parity leave the pool without a mapping: everything on them moves, snapshots stay
//! shared, and nothing but the places of blocks changes; also canceled, and across exports; and what
//! is refused.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{ErrorKind, VdevId};
use cenote::files::{Caller, New, WritePosition};
use cenote::{MoveState, MoveWork, Pool, PropData};
use common::history::{MoverHistory, NAME, contents};
use common::tops::*;
use common::*;
use mover::evacuate::{Evacuation, EvacuationStep};
use mover::{MoveLimits, evacuate};
use spa::engine::EmptyRange;
use testkit::{Rng, Scratch, eventually, side_by_side};

fn remove(pool: &Pool, id: u32) -> cenote::Result<()> {
    pool.remove_vdev(&top_guid(pool, id).0.to_string(), Some("zpool remove"))
}

fn leaves_pool(shape: &TopsShape) {
    let scratch = Scratch::new(&format!("remove-{}", shape.name()));
    let dir = scratch.path();
    let pool = shape.make(dir);
    let mut history = MoverHistory::new(17 + shape.ashift);
    (0..60).for_each(|_| history.step(&pool));
    pool.sync().unwrap();
    let w = pool.writer().unwrap();
    let vdev = VdevId(shape.leaves);
    let on_it = w.space().vdev_totals(vdev).unwrap().allocated;
    assert!(on_it > 1 << 18, "{shape:?}: {on_it}");
    let before = invariants(&pool, history.made);
    let estimate = pool.estimate_removal(&top_guid(&pool, shape.leaves).0.to_string()).unwrap();
    assert!(estimate.to_copy > 1 << 18 && estimate.memory == 0, "{shape:?}: {estimate:?}");
    let guid = top_guid(&pool, shape.leaves);
    remove(&pool, shape.leaves).unwrap();
    let record = ended(&pool);
    assert_eq!(record.state, MoveState::Complete, "{shape:?}: {record:?}");
    assert!(record.moved > 0 && record.kept == 0, "{shape:?}: {record:?}");
    let config = w.published().config;
    assert!(config.vdev_tree.find(guid).is_none(), "{shape:?}");
    assert_eq!(config.vdev_tree.children.len(), shape.tops.len(), "a hole stays");
    rules(&pool);
    assert!(invariants(&pool, history.made) == before, "{shape:?}");
    (0..20).for_each(|_| history.step(&pool));
    let before = contents(&pool, history.made);
    pool.export().unwrap();
    drop(pool);
    whole(dir, &format!("{shape:?}"));
    zdb(dir, NAME);
    let pool = import(dir);
    assert_eq!(pool.move_job().unwrap().record, record);
    assert!(contents(&pool, history.made) == before, "{shape:?}");
    destroy_all(&pool, &mut Rng::new(3));
    pool.export().unwrap();
    drop(pool);
    whole(dir, &format!("emptied {shape:?}"));
    zdb(dir, NAME);
}

#[test]
fn vdevs_with_parity_leave_the_pool() {
    let shapes = [
        shape(&[(1, 3), (1, 3)], 9, 1),
        shape(&[(1, 3), (1, 3)], 12, 0),
        shape(&[(2, 5), (2, 5)], 9, 0),
        shape(&[(2, 5), (2, 5)], 12, 1),
        // Each address stays on vdevs of its kind.
        shape(&[(1, 3), (1, 3), (0, 2)], 12, 1),
        shape(&[(0, 2), (1, 3), (0, 2)], 9, 0),
        shape(&[(0, 1), (1, 4), (0, 1)], 12, 0),
    ];
    side_by_side(&shapes, leaves_pool);
}

/// A removal that is canceled leaves the vdev in use; one that is exported continues by itself.
#[test]
fn a_removal_is_canceled_and_continued() {
    let scratch = Scratch::new("remove-continued");
    let dir = scratch.path();
    let pool = shape(&[(1, 3), (1, 3)], 12, 1).make(dir);
    let mut history = MoverHistory::new(5);
    (0..40).for_each(|_| history.step(&pool));
    history.snapshot(&pool);
    pool.sync().unwrap();
    let before = invariants(&pool, history.made);
    assert!(pool.cancel_removal(None).is_err(), "there is none");
    remove(&pool, 1).unwrap();
    assert_eq!(remove(&pool, 1).unwrap_err().kind(), ErrorKind::Busy);
    assert!(pool.cancel_defrag(None).is_err() && pool.pause_defrag(None).is_err());
    let w = pool.writer().unwrap();
    // It waits while a snapshot is in use, unless it has ended by then.
    let snap = pool.dataset(history.snapshots.last().unwrap()).unwrap();
    let used = w.use_snapshots(&[(snap.object(), snap.guid())]).unwrap();
    let canceled = pool.cancel_removal(Some("zpool remove -s")).is_ok();
    drop((used, snap));
    if canceled {
        assert_eq!(pool.move_job().unwrap().record.state, MoveState::Canceled);
        assert!(w.space().is_allocating(VdevId(1)));
        let config = w.published().config;
        let space = config.vdev_tree.children[1].top.clone().unwrap();
        assert!(!space.non_allocating);
        assert!(invariants(&pool, history.made) == before);
        remove(&pool, 1).unwrap();
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
    let scratch = Scratch::new("remove-refused");
    let cases: [(&str, TopsShape, &str); 3] = [
        ("last", shape(&[(1, 3)], 12, 0), "no other vdev of the same kind"),
        ("kinds", shape(&[(1, 3), (2, 4)], 12, 1), "no other vdev of the same kind"),
        ("widths", shape(&[(1, 3), (1, 4)], 9, 0), "no other vdev of the same kind"),
    ];
    for (what, shape, text) in cases {
        let dir = scratch.path().join(what);
        std::fs::create_dir_all(&dir).unwrap();
        let pool = shape.make(&dir);
        let refused = remove(&pool, shape.leaves).expect_err(what);
        assert!(refused.message().contains(text), "{what}: {refused}");
        assert_eq!(pool.move_job(), None);
        pool.export().unwrap();
    }
    let dir = scratch.path().join("shared");
    std::fs::create_dir_all(&dir).unwrap();
    let pool = shape(&[(1, 3), (1, 3)], 12, 1).make(&dir);
    let refusal = || {
        let refused = remove(&pool, 1).unwrap_err();
        assert!(pool.writer().unwrap().space().is_allocating(VdevId(1)));
        refused.message().to_owned()
    };
    pool.take_checkpoint(None).unwrap();
    assert!(refusal().contains("checkpoint"));
    pool.writer().unwrap().discard_checkpoint(None).unwrap();
    eventually("the checkpoint is gone", || {
        pool.sync().unwrap();
        pool.writer().unwrap().check_relocation().is_ok()
    });
    // Equal blocks on both vdevs.
    let props = [("dedup".to_owned(), PropData::Num(1))];
    pool.create_filesystem(&format!("{NAME}/dedup"), &props, None).unwrap();
    let fs = pool.dataset(&format!("{NAME}/dedup")).unwrap().open_fs().unwrap();
    let root = Caller::root();
    let mut rng = Rng::new(4);
    for n in 0..2 {
        let name = format!("f{n}");
        let file = fs.make(&root, fs.root(), name.as_bytes(), &New::file(0o644)).unwrap().id;
        let data: Vec<u8> = (0..16 << 20).map(|_| rng.number() as u8).collect();
        fs.write(&root, file, WritePosition::Offset(0), &data).unwrap();
    }
    drop(fs);
    pool.sync().unwrap();
    let text = refusal();
    assert!(text.contains("deduplicated blocks cannot be moved"), "{text}");
    assert_eq!(pool.move_job(), None);
    pool.export().unwrap();
}

/// A block of the MOS that is left behind keeps the vdev in the pool; a hole that is made too early
/// is found.
#[test]
fn planted_bugs_are_found() {
    side_by_side(&["none", "left", "early"], |what| {
        let scratch = Scratch::new(&format!("remove-planted-{what}"));
        let dir = scratch.path();
        let pool = shape(&[(1, 3), (1, 3)], 12, 1).make(dir);
        let mut history = MoverHistory::new(8);
        (0..30).for_each(|_| history.step(&pool));
        pool.sync().unwrap();
        let w = Arc::clone(pool.writer().unwrap());
        let (plants, guid) = (w.emptying_plants(), top_guid(&pool, 1));
        plants.left_mos_block.store(*what == "left", Relaxed);
        let mut work =
            Evacuation::begin(&w, EmptyRange::whole(VdevId(1)), MoveLimits::default()).unwrap();
        let mut steps = 0;
        let end = loop {
            match work.step(&w).unwrap() {
                // Blocks of the MOS are still on it.
                EvacuationStep::More(..) if *what == "early" && steps == 2 => break None,
                EvacuationStep::More(..) => steps += 1,
                EvacuationStep::Empty => break Some(true),
                EvacuationStep::Stuck(rest) => {
                    assert!(rest.bytes > 0 && rest.immovable() == 0, "{rest:?}");
                    break Some(false);
                }
            }
        };
        assert_eq!(end, if *what == "early" { None } else { Some(*what == "none") });
        if *what != "none" {
            assert_eq!(w.end_emptied_removal(guid).unwrap_err().kind(), ErrorKind::Busy);
            plants.early_hole.store(true, Relaxed);
        }
        let done = w.end_emptied_removal(guid);
        drop(w);
        let _ended = pool.export();
        drop(pool);
        // What the txg itself frees there suspends the pool.
        let found = done.err().map(|e| e.to_string()).or_else(|| problems(dir));
        assert_eq!(found.is_some(), *what != "none", "{what}: {found:?}");
    });
}

/// Blocks that cannot be moved end a removal, and the vdev is in use again.
#[test]
fn a_removal_gives_up_what_it_cannot_move() {
    let scratch = Scratch::new("remove-stuck");
    let dir = scratch.path();
    let pool = shape(&[(1, 3), (1, 3)], 9, 1).make(dir);
    let mut history = MoverHistory::new(21);
    (0..30).for_each(|_| history.step(&pool));
    pool.sync().unwrap();
    let before = invariants(&pool, history.made);
    let w = pool.writer().unwrap();
    w.emptying_plants().left_mos_block.store(true, Relaxed);
    evacuate::check(w, MoveWork::Remove { vdev: top_guid(&pool, 1) }).unwrap();
    remove(&pool, 1).unwrap();
    let record = ended(&pool);
    assert_eq!(record.state, MoveState::Failed);
    assert!(pool.move_job().unwrap().waiting.unwrap().contains("could not be moved"));
    assert!(w.space().is_allocating(VdevId(1)));
    w.emptying_plants().left_mos_block.store(false, Relaxed);
    assert!(invariants(&pool, history.made) == before);
    remove(&pool, 1).unwrap();
    assert_eq!(ended(&pool).state, MoveState::Complete);
    pool.export().unwrap();
    drop(pool);
    whole(dir, "after all");
    zdb(dir, NAME);
}
