//! `zpool rebalance` on every kind of vdev: shares become equal, blocks change to the special class
//! and back; snapshots stay shared, and nothing but the places of blocks changes.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::VdevId;
use cenote::create::{AddRequest, Force, NewKind, NewVdev, Role};
use cenote::files::{Caller, New, WritePosition};
use cenote::inspect::spa::audit::AuditOptions;
use cenote::{
    DefragTargets, MoveState, MoveStatus, MoveWork, Pool, PropData, RebalanceKind, RebalancePlan,
};
use common::history::{MoverHistory, MoverShape, NAME, contents};
use common::*;
use metaslab::SpaceClass;
use mover::find;
use ondisk::blkptr::Block;
use spa::engine::{CopyTarget, RelocationBatch, TaskCx};
use testkit::{Rng, Scratch, eventually, side_by_side};

/// Thousandths by which shares may differ afterwards: blocks of the MOS do not move.
const CLOSE: u64 = 20;

fn shapes() -> Vec<MoverShape> {
    let kinds = [("single", 1), ("mirror", 2), ("raidz1", 3), ("raidz2", 4)];
    let both = |(kind, disks)| [9, 12].map(|ashift| MoverShape { kind, disks, ashift });
    kinds.into_iter().flat_map(both).collect()
}

/// Bytes of a disk: vdevs of all shapes are as large.
fn size_of(shape: &MoverShape) -> u64 {
    let copies = if shape.kind == "mirror" { 1 } else { shape.disks as u64 };
    (common::history::DISK / copies).next_multiple_of(16 << 20)
}

/// Adds a vdev of this shape, with a role.
fn add(pool: &Arc<Pool>, shape: &MoverShape, dir: &Path, role: Role) {
    let file = |n: usize| {
        let path = dir.join(format!("{role:?}{n}"));
        std::fs::File::create(&path).unwrap().set_len(size_of(shape)).unwrap();
        NewVdev::new(NewKind::File(path))
    };
    let all: Vec<NewVdev> = (0..shape.disks).map(file).collect();
    let group = |kind| vec![NewVdev::new(kind).with_children(all.clone()).for_role(role)];
    let vdevs = match shape.kind {
        "mirror" => group(NewKind::Mirror),
        "raidz1" => group(NewKind::Raidz { nparity: 1 }),
        "raidz2" => group(NewKind::Raidz { nparity: 2 }),
        _ => all.into_iter().map(|one| one.for_role(role)).collect(),
    };
    let ashift = u32::try_from(shape.ashift).ok();
    let request = AddRequest { vdevs, force: Force::ALL, dry_run: false, ashift, command: None };
    testkit::engine().add_vdevs(pool, &request).unwrap();
}

/// A pool with snapshots and clones.
fn filled(shape: &MoverShape, dir: &Path, seed: u64) -> (Arc<Pool>, MoverHistory) {
    let pool = shape.make_of(dir, size_of(shape));
    let mut history = MoverHistory::new(seed);
    for _ in 0..4 {
        (0..8).for_each(|_| history.write(&pool));
        history.snapshot(&pool);
        history.unlink(&pool);
        (0..6).for_each(|_| history.step(&pool));
    }
    pool.sync().unwrap();
    (pool, history)
}

fn over(pool: &Pool) -> MoveStatus {
    eventually("the rebalance ends", || {
        pool.move_job().is_some_and(|d| d.record.state != MoveState::Active)
    });
    pool.move_job().unwrap()
}

/// Used bytes of the vdevs.
fn used(pool: &Pool) -> Vec<(VdevId, SpaceClass, u64)> {
    let space = pool.writer().unwrap().space();
    let of = |(vdev, class)| (vdev, class, space.vdev_totals(vdev).unwrap().allocated);
    space.vdevs().into_iter().map(of).collect()
}

/// Everything that must stay as it is.
fn facts(pool: &Pool, history: &MoverHistory) -> impl PartialEq + use<> {
    (sums(pool), streams(pool), contents(pool, history.made))
}

/// Exports, and lets the audit and zdb judge; then everything is destroyed, and nothing leaks.
fn judged(pool: Arc<Pool>, dir: &Path, what: &str) {
    rules(&pool);
    pool.export().unwrap();
    drop(pool);
    whole(dir, what);
    zdb(dir, NAME);
    let pool = import(dir);
    destroy_all(&pool, &mut Rng::new(3));
    pool.export().unwrap();
    drop(pool);
    whole(dir, &format!("emptied: {what}"));
}

fn balanced(shape: &MoverShape) {
    let scratch = Scratch::new(&format!("rebalance-{}", shape.name()));
    let dir = scratch.path();
    let (pool, history) = filled(shape, dir, 11);
    let refused = pool.rebalance(RebalanceKind::Vdevs, None).unwrap_err();
    assert!(refused.message().contains("only one top-level vdev"), "{refused}");
    add(&pool, shape, dir, Role::Data);
    let before = facts(&pool, &history);
    let score = |pool: &Pool| pool.estimate_defrag(&DefragTargets::default()).unwrap().score;
    let order = score(&pool);
    let Ok(RebalancePlan::Vdevs(plan)) = pool.estimate_rebalance(RebalanceKind::Vdevs) else {
        panic!("{shape:?}: no plan")
    };
    assert_eq!(plan.len(), 2, "{plan:?}");
    assert!(plan[0].after < plan[0].used && plan[1].after > plan[1].used, "{plan:?}");
    pool.rebalance(RebalanceKind::Vdevs, Some("zpool rebalance tank")).unwrap();
    let record = over(&pool).record;
    assert_eq!((record.state, record.work), (MoveState::Complete, MoveWork::Rebalance));
    let now = used(&pool);
    let [(_, _, a), (_, _, b)] = now[..] else { panic!("{now:?}") };
    let apart = a.abs_diff(b) * 1000 / (a + b);
    println!("BALANCED {shape:?}: {a} {b}, {apart} thousandths, {record:?}");
    assert!(apart <= 100, "{shape:?}: {a} and {b}");
    assert!(facts(&pool, &history) == before, "{shape:?}");
    // What was read without jumps is so still. Pieces are cut where the parts end.
    let now = score(&pool);
    assert_eq!(now.steps, order.steps, "{shape:?}");
    assert!(now.in_sequence * 10 >= order.in_sequence * 9, "{shape:?}: {order:?} {now:?}");
    // Nothing more is gained.
    pool.rebalance(RebalanceKind::Vdevs, None).unwrap();
    let again = over(&pool).record;
    assert!(again.moved <= record.moved / 10, "{shape:?}: {again:?}");
    judged(pool, dir, &format!("{shape:?}"));
}

#[test]
fn shares_become_equal() {
    side_by_side(&shapes(), balanced);
}

/// Copies of small records, and of records of one file that are compressed to different sizes, lie
/// one behind the other as their blocks did. Copies were once apart by their stored sizes.
fn in_sequence(shape: &MoverShape) {
    let scratch = Scratch::new(&format!("sequence-{}", shape.name()));
    let dir = scratch.path();
    let pool = shape.make_of(dir, size_of(shape));
    let root = Caller::root();
    for size in [8usize << 10, 16 << 10, 128 << 10] {
        let name = format!("{NAME}/r{size}");
        // LZ4.
        let props = [("recordsize", size as u64), ("compression", 15)];
        let props = props.map(|(name, n)| (name.to_owned(), PropData::Num(n)));
        pool.create_filesystem(&name, &props, None).unwrap();
        let fs = pool.dataset(&name).unwrap().open_fs().unwrap();
        let mut rng = Rng::new(size as u64);
        for n in 0..12 {
            let file = format!("f{n}");
            let id = fs.make(&root, fs.root(), file.as_bytes(), &New::file(0o644)).unwrap().id;
            for at in (0..2 << 20).step_by(size) {
                let noise = rng.index(size);
                let mut data: Vec<u8> = (0..noise).map(|_| rng.number() as u8).collect();
                data.resize(size, 7);
                fs.write(&root, id, WritePosition::Offset(at), &data).unwrap();
            }
        }
        pool.sync().unwrap();
    }
    add(&pool, shape, dir, Role::Data);
    let score = |pool: &Pool| pool.estimate_defrag(&DefragTargets::default()).unwrap().score;
    let before = score(&pool);
    pool.rebalance(RebalanceKind::Vdevs, None).unwrap();
    let record = over(&pool).record;
    assert_eq!(record.state, MoveState::Complete);
    let now = score(&pool);
    println!("SEQUENCE {shape:?}: {before:?} {now:?}, {} bytes moved", record.moved);
    assert!(record.moved > 8 << 20 && before.steps > 4000, "{shape:?}: {before:?} {record:?}");
    assert_eq!(now.steps, before.steps, "{shape:?}");
    // Where the vdevs part, and where a metaslab ends.
    assert!(now.in_sequence + 20 >= before.in_sequence, "{shape:?}: {before:?} {now:?}");
    pool.export().unwrap();
    drop(pool);
    whole(dir, &format!("{shape:?}"));
    zdb(dir, NAME);
}

#[test]
fn records_of_all_sizes_stay_in_sequence() {
    side_by_side(&shapes(), in_sequence);
}

/// Metadata moves to special vdevs, then small files; and all of it back.
fn specialised(shape: &MoverShape) {
    let scratch = Scratch::new(&format!("special-{}", shape.name()));
    let dir = scratch.path();
    let (pool, history) = filled(shape, dir, 12);
    let refused = pool.rebalance(RebalanceKind::ToSpecial, None).unwrap_err();
    assert!(refused.message().contains("no special vdevs"), "{refused}");
    add(&pool, shape, dir, Role::Special);
    let small = [("special_small_blocks".to_owned(), PropData::Num(16 << 10))];
    pool.set_props(NAME, &small, None).unwrap();
    let before = facts(&pool, &history);
    let plan = |kind| match pool.estimate_rebalance(kind) {
        Ok(RebalancePlan::Special(plan)) => plan,
        other => panic!("{shape:?}: {other:?}"),
    };
    let first = plan(RebalanceKind::ToSpecial);
    assert!(first.metadata > 0 && first.data > 0, "{first:?}");
    pool.rebalance(RebalanceKind::ToSpecial, None).unwrap();
    let record = over(&pool).record;
    assert_eq!(record.state, MoveState::Complete);
    let left = plan(RebalanceKind::ToSpecial);
    println!("SPECIAL {shape:?}: {first:?} {left:?} {record:?}");
    assert!(left.to_move() * 20 <= first.to_move(), "{shape:?}: {left:?} of {first:?}");
    let special = |pool: &Pool| -> u64 {
        let all = used(pool).into_iter().filter(|(_, class, _)| *class == SpaceClass::Special);
        all.map(|(_, _, used)| used).sum()
    };
    assert!(special(&pool) >= first.to_move() / 2, "{shape:?}");
    assert!(facts(&pool, &history) == before, "{shape:?}");
    rules(&pool);
    pool.export().unwrap();
    drop(pool);
    whole(dir, &format!("special {shape:?}"));
    zdb(dir, NAME);
    let pool = import(dir);
    let before = facts(&pool, &history);
    let moves = |pool: &Pool| match pool.estimate_rebalance(RebalanceKind::FromSpecial) {
        Ok(RebalancePlan::Special(plan)) => plan.to_move(),
        other => panic!("{shape:?}: {other:?}"),
    };
    let full = moves(&pool);
    pool.rebalance(RebalanceKind::FromSpecial, None).unwrap();
    let record = over(&pool).record;
    assert_eq!((record.state, record.work), (MoveState::Complete, MoveWork::FromSpecial));
    // The MOS stays on special vdevs.
    let left = moves(&pool);
    assert!(full > 0 && left * 10 <= full, "{shape:?}: {left} of {full}");
    assert!(facts(&pool, &history) == before, "{shape:?}");
    judged(pool, dir, &format!("back {shape:?}"));
}

#[test]
fn blocks_change_to_the_special_class_and_back() {
    side_by_side(&shapes(), specialised);
}

/// Data blocks move to special vdevs only as long as a quarter of these is free; then it is over.
#[test]
fn a_quarter_of_the_special_vdevs_is_left_to_metadata() {
    let scratch = Scratch::new("special-full");
    let dir = scratch.path();
    let shape = MoverShape { kind: "single", disks: 1, ashift: 12 };
    let pool = shape.make(dir);
    let mut history = MoverHistory::new(16);
    (0..8).for_each(|_| history.write(&pool));
    let (fs, root) = (pool.dataset(NAME).unwrap().open_fs().unwrap(), Caller::root());
    let big = fs.make(&root, fs.root(), b"big", &New::file(0o644)).unwrap().id;
    let mut rng = Rng::new(17);
    for n in 0..60u64 {
        let data: Vec<u8> = (0..1 << 20).map(|_| rng.number() as u8).collect();
        fs.write(&root, big, WritePosition::Offset(n << 20), &data).unwrap();
    }
    pool.sync().unwrap();
    drop(fs);
    history.snapshot(&pool);
    let path = dir.join("small");
    std::fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let vdevs = vec![NewVdev::new(NewKind::File(path)).for_role(Role::Special)];
    let request =
        AddRequest { vdevs, force: Force::ALL, dry_run: false, ashift: Some(12), command: None };
    testkit::engine().add_vdevs(&pool, &request).unwrap();
    let all = [("special_small_blocks".to_owned(), PropData::Num(128 << 10))];
    pool.set_props(NAME, &all, None).unwrap();
    let before = facts(&pool, &history);
    let Ok(RebalancePlan::Special(plan)) = pool.estimate_rebalance(RebalanceKind::ToSpecial) else {
        panic!("no plan")
    };
    assert!(plan.data > plan.to_move(), "{plan:?}");
    pool.rebalance(RebalanceKind::ToSpecial, None).unwrap();
    let record = over(&pool).record;
    assert_eq!(record.state, MoveState::Complete);
    let totals = pool.writer().unwrap().space().class_totals(SpaceClass::Special);
    let share = totals.allocated * 100 / totals.capacity;
    println!("FULL {share} % {plan:?} {record:?}");
    assert!((50..=80).contains(&share), "{share}");
    assert!(facts(&pool, &history) == before);
    judged(pool, dir, "full");
}

/// Vdevs that count space differently exchange nothing, and the reason is told.
#[test]
fn unequal_vdevs_are_refused() {
    let scratch = Scratch::new("rebalance-unequal");
    let dir = scratch.path();
    let single = MoverShape { kind: "single", disks: 1, ashift: 12 };
    let raidz = MoverShape { kind: "raidz1", disks: 3, ashift: 12 };
    let (pool, history) = filled(&single, dir, 13);
    add(&pool, &raidz, dir, Role::Data);
    let files = contents(&pool, history.made);
    for kind in [RebalanceKind::Vdevs, RebalanceKind::ToSpecial] {
        let refused = pool.rebalance(kind, None).unwrap_err();
        let text = match kind {
            RebalanceKind::Vdevs => "count allocated space in the same way",
            _ => "no special vdevs",
        };
        assert!(refused.message().contains(text), "{refused}");
        assert!(pool.estimate_rebalance(kind).is_err());
    }
    assert!(pool.pause_rebalance(None).is_err() && pool.cancel_rebalance(None).is_err());
    assert_eq!(pool.move_job(), None);
    assert!(contents(&pool, history.made) == files);
    pool.export().unwrap();
}

/// What moves to a vdev that counts space differently stays, and a planted bug that moves it all the
/// same breaks the sums.
#[test]
fn copies_that_count_differently_are_found() {
    side_by_side(&[false, true], |planted| {
        let scratch = Scratch::new(&format!("rebalance-planted-{planted}"));
        let dir = scratch.path();
        let single = MoverShape { kind: "single", disks: 1, ashift: 9 };
        let (pool, _) = filled(&single, dir, 15);
        add(&pool, &MoverShape { kind: "raidz1", disks: 3, ashift: 9 }, dir, Role::Special);
        let w = Arc::clone(pool.writer().unwrap());
        w.relocation_plants().uncounted.store(*planted, Relaxed);
        let data = |block: &Block| block.head.level == 0 && !block.head.object_type.is_metadata();
        let mut blocks = find(&w, &data).unwrap().blocks;
        blocks.truncate(40);
        let to = CopyTarget { class: Some(SpaceClass::Special), vdevs: [VdevId(1)].into() };
        let batch = RelocationBatch { blocks, to: Some(to), ..RelocationBatch::default() };
        let done = w.relocate(batch).unwrap();
        assert_eq!(done.moved > 0, *planted, "{done:?}");
        let ratios = ratios(&w);
        let check = move |cx: &mut TaskCx<'_>| dsl::write::check(cx.read(), &ratios);
        let (wrong, _) = w.sync_task(|_| Ok(()), move |cx, ()| check(cx)).unwrap();
        drop(w);
        let exported = pool.export().is_ok();
        drop(pool);
        let sound = wrong.is_empty() && exported && {
            let pool = testkit::import_from(&testkit::engine(), dir, &testkit::readonly()).unwrap();
            pool.spa().audit(AuditOptions::default(), &()).unwrap().is_clean()
        };
        assert_eq!(sound, !planted, "{wrong:?}");
    });
}

/// A rebalance and a defragmentation exclude each other, and each has its own words to stop it.
#[test]
fn an_active_one_continues_after_an_export() {
    let scratch = Scratch::new("rebalance-continued");
    let dir = scratch.path();
    let shape = MoverShape { kind: "mirror", disks: 2, ashift: 12 };
    let (pool, history) = filled(&shape, dir, 14);
    add(&pool, &shape, dir, Role::Data);
    let files = contents(&pool, history.made);
    pool.rebalance(RebalanceKind::Vdevs, None).unwrap();
    assert!(pool.pause_defrag(None).is_err() && pool.cancel_defrag(None).is_err());
    pool.export().unwrap();
    drop(pool);
    let pool = import(dir);
    assert_eq!(over(&pool).record.state, MoveState::Complete);
    assert!(pool.cancel_rebalance(None).is_err(), "it is over");
    let Ok(RebalancePlan::Vdevs(plan)) = pool.estimate_rebalance(RebalanceKind::Vdevs) else {
        panic!("no plan")
    };
    let left = plan[0].used.abs_diff(plan[1].used) * 1000 / (plan[0].capacity + plan[1].capacity);
    assert!(left <= CLOSE, "{plan:?}");
    assert!(contents(&pool, history.made) == files);
    judged(pool, dir, "continued");
}
