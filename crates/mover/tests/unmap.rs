//! Mappings of removed devices are erased: everything that needs them moves, snapshots stay shared,
//! the vdevs become holes; also where one mapping leads to the next, in pools whose pointers OpenZFS
//! has remapped, across exports; and what is refused.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{ErrorKind, VdevId};
use cenote::create::{AddRequest, CreateRequest, Force, NewKind, NewVdev, PoolSetting};
use cenote::files::{Caller, New, WritePosition};
use cenote::{Engine, MoveState, Pool};
use common::history::{MoverHistory, NAME, contents};
use common::tops::*;
use common::*;
use dsl::write::MosRead;
use dsl::write::features;
use ondisk::config::VdevType;
use ondisk::removal::JobState;
use testkit::{Rng, Scratch, eventually, side_by_side};

/// Removes a vdev with a mapping, and waits for the end.
fn remove(pool: &Pool, id: u32) {
    let guid = top_guid(pool, id);
    pool.remove_vdev(&guid.0.to_string(), None).unwrap();
    eventually("the removal ends", || {
        let removal = pool.removal().unwrap().unwrap();
        let mapped = pool.writer().unwrap().mapped_vdevs().contains(&VdevId(id));
        removal.vdev == Some(VdevId(id)) && removal.state == JobState::Finished && mapped
    });
}

/// Whether nothing in the pool tells of a removed device.
fn is_forgotten(pool: &Pool) -> bool {
    let w = pool.writer().unwrap();
    let mos: &dyn MosRead = w.mos();
    let tops = &w.published().config.vdev_tree.children;
    let uses = |guid| features::count(mos, guid).unwrap().unwrap_or(0);
    w.mapped_vdevs().is_empty()
        && tops.iter().all(|top| top.kind != VdevType::Indirect)
        && uses("com.delphix:device_removal") == 0
        && uses("com.delphix:obsolete_counts") == 0
        && pool.removal().unwrap().is_none()
}

fn erases_mappings(shape: &TopsShape) {
    let scratch = Scratch::new(&format!("unmap-{}", shape.name()));
    let dir = scratch.path();
    let pool = shape.make(dir);
    let mut history = MoverHistory::new(11 + shape.ashift);
    let steps = |history: &mut MoverHistory, n| (0..n).for_each(|_| history.step(&pool));
    steps(&mut history, 40);
    // The second mapping has what the first one leads to.
    remove(&pool, shape.leaves);
    steps(&mut history, 20);
    remove(&pool, shape.leaves + 1);
    steps(&mut history, 20);
    history.snapshot(&pool);
    pool.sync().unwrap();
    let w = Arc::clone(pool.writer().unwrap());
    let removed = [VdevId(shape.leaves), VdevId(shape.leaves + 1)];
    assert_eq!(w.mapped_vdevs(), removed, "the older one is the first");
    let left: u64 = removed.iter().map(|vdev| w.mapped_left(*vdev).unwrap()).sum();
    assert!(left > 1 << 18, "{shape:?}: {left}");
    let before = invariants(&pool, history.made);
    assert_eq!(pool.estimate_unmap().unwrap(), left);
    pool.unmap(Some("zpool defrag --unmap")).unwrap();
    let record = ended(&pool);
    assert_eq!(record.state, MoveState::Complete, "{shape:?}: {record:?}");
    assert!(record.moved > 0 && record.kept == 0, "{shape:?}: {record:?}");
    assert!(is_forgotten(&pool), "{shape:?}");
    assert_eq!(pool.unmap(None).unwrap_err().kind(), ErrorKind::Invalid, "there is none");
    rules(&pool);
    assert!(invariants(&pool, history.made) == before, "{shape:?}");
    (0..20).for_each(|_| history.step(&pool));
    let before = contents(&pool, history.made);
    drop(w);
    pool.export().unwrap();
    drop(pool);
    whole(dir, &format!("{shape:?}"));
    zdb(dir, NAME);
    let pool = import(dir);
    assert_eq!(pool.move_job().unwrap().record, record);
    assert!(is_forgotten(&pool) && contents(&pool, history.made) == before, "{shape:?}");
    destroy_all(&pool, &mut Rng::new(3));
    pool.export().unwrap();
    drop(pool);
    whole(dir, &format!("emptied {shape:?}"));
    zdb(dir, NAME);
}

#[test]
fn mappings_are_erased() {
    let shapes = [
        shape(&[(0, 1), (0, 1), (0, 1)], 9, 0),
        shape(&[(0, 1), (0, 1), (0, 1)], 12, 1),
        shape(&[(0, 2), (0, 2), (0, 2), (0, 1)], 9, 0),
        shape(&[(0, 3), (0, 1), (0, 2)], 12, 0),
    ];
    side_by_side(&shapes, erases_mappings);
}

/// OpenZFS refuses raidz in a pool with a mapping, and so do we; without one it can be added.
#[test]
fn raidz_can_be_added_afterwards() {
    let scratch = Scratch::new("unmap-added");
    let dir = scratch.path();
    let engine = testkit::engine();
    let pool = make_on(&engine, dir, None);
    let mut history = MoverHistory::new(23);
    (0..40).for_each(|_| history.step(&pool));
    remove(&pool, 0);
    let disk = |n: usize| {
        let path = dir.join(format!("more{n}"));
        std::fs::File::create(&path).unwrap().set_len(512 << 20).unwrap();
        NewVdev::new(NewKind::File(path))
    };
    let raidz = NewVdev::new(NewKind::Raidz { nparity: 1 });
    let request = AddRequest {
        vdevs: vec![raidz.with_children((0..3).map(disk).collect())],
        force: Force::ALL,
        dry_run: false,
        ashift: None,
        command: None,
    };
    assert!(engine.add_vdevs(&pool, &request).is_err());
    pool.unmap(None).unwrap();
    assert_eq!(ended(&pool).state, MoveState::Complete);
    engine.add_vdevs(&pool, &request).unwrap();
    (0..30).for_each(|_| history.step(&pool));
    let before = contents(&pool, history.made);
    pool.export().unwrap();
    drop(pool);
    whole(dir, "added");
    zdb(dir, NAME);
    assert!(contents(&import(dir), history.made) == before);
}

/// OpenZFS's pool: its mapping is erased, and the files stay what they were.
#[test]
fn a_pool_of_openzfs() {
    erases_golden("removed");
}

/// In this pool of OpenZFS 2.4.4, snapshots from before the removal have pointers to the removed
/// device, and heads and later snapshots have pointers that were remapped to the same blocks.
/// Blocks that moved for one of these pointers alone were freed under the others.
#[test]
fn pointers_that_openzfs_has_remapped() {
    erases_golden("remapped");
    let Some(golden) = testkit::golden("remapped") else { return };
    let scratch = Scratch::new("unmap-remapped-moved");
    let dir = scratch.path();
    golden.unpack(dir);
    let pool = import(dir);
    let before = (sums(&pool), streams(&pool));
    let limits = mover::MoveLimits { batch_bytes: 1 << 20, batch_blocks: 64 };
    let report = empty_some(&pool, 8, &limits);
    assert!(report.moved > 0, "{report:?}");
    assert!((sums(&pool), streams(&pool)) == before);
    pool.export().unwrap();
    drop(pool);
    whole(dir, "moved");
    zdb(dir, &golden.name);
    let pool = import(dir);
    destroy_all(&pool, &mut Rng::new(5));
    pool.export().unwrap();
    drop(pool);
    whole(dir, "emptied");
    zdb(dir, &golden.name);
}

/// A move that knows a block by one of its addresses frees it under its other pointers.
#[test]
fn a_block_is_known_by_all_its_addresses() {
    let Some(golden) = testkit::golden("remapped") else { return };
    side_by_side(&[false, true], |planted| {
        let scratch = Scratch::new(&format!("unmap-planted-{planted}"));
        let dir = scratch.path();
        golden.unpack(dir);
        let pool = import(dir);
        let w = Arc::clone(pool.writer().unwrap());
        w.relocation_plants().own_addresses.store(*planted, Relaxed);
        drop(w);
        pool.unmap(None).unwrap();
        eventually("the pool is suspended, or the job has ended", || {
            let job = pool.move_job().unwrap();
            pool.is_suspended() || job.record.state != MoveState::Active
        });
        let suspended = pool.is_suspended();
        match suspended {
            true => pool.give_up(),
            false => pool.export().unwrap(),
        }
        drop(pool);
        assert_eq!(suspended || problems(dir).is_some(), *planted);
    });
}

fn erases_golden(name: &str) {
    let Some(golden) = testkit::golden(name) else { return };
    let scratch = Scratch::new(&format!("unmap-golden-{name}"));
    let dir = scratch.path();
    golden.unpack(dir);
    let pool = import(dir);
    let name = pool.name().to_owned();
    let before = (sums(&pool), streams(&pool));
    pool.unmap(None).unwrap();
    let record = ended(&pool);
    assert_eq!(record.state, MoveState::Complete, "{record:?}");
    assert!(is_forgotten(&pool));
    rules(&pool);
    assert!((sums(&pool), streams(&pool)) == before);
    pool.export().unwrap();
    drop(pool);
    whole(dir, &name);
    zdb(dir, &name);
    let pool = import(dir);
    assert!(streams(&pool) == before.1);
    for (dataset, manifest) in golden.manifests() {
        let fs = pool.dataset(&dataset).unwrap().open_fs().unwrap();
        let differences = testkit::verify(&fs, &manifest, true);
        assert!(differences.is_empty(), "{differences:#?}");
    }
    destroy_all(&pool, &mut Rng::new(9));
    pool.export().unwrap();
    drop(pool);
    whole(dir, "emptied");
    zdb(dir, &name);
}

/// A pool of two disks, without this feature.
fn two_disks(dir: &Path, without: Option<&str>) -> Arc<Pool> {
    make_on(&testkit::engine(), dir, without)
}

fn make_on(engine: &Engine, dir: &Path, without: Option<&str>) -> Arc<Pool> {
    std::fs::create_dir_all(dir).unwrap();
    let disk = |n: usize| {
        let path = dir.join(format!("disk{n}"));
        std::fs::File::create(&path).unwrap().set_len(512 << 20).unwrap();
        NewVdev::new(NewKind::File(path))
    };
    let mut request = CreateRequest {
        force: Force::ALL,
        settings: vec![PoolSetting::Stored("ashift", 12), PoolSetting::Stored("failmode", 1)],
        ..CreateRequest::new(NAME, vec![disk(0), disk(1)])
    };
    request.features.retain(|feature| without != Some(feature.name()));
    engine.create_pool(&request).unwrap().unwrap()
}

/// A job that is paused, exported or canceled leaves a whole pool, and goes on.
#[test]
fn it_is_paused_and_continued() {
    let scratch = Scratch::new("unmap-paused");
    let dir = scratch.path();
    let pool = two_disks(dir, None);
    let mut history = MoverHistory::new(31);
    (0..40).for_each(|_| history.step(&pool));
    history.snapshot(&pool);
    remove(&pool, 0);
    let before = invariants(&pool, history.made);
    assert!(pool.cancel_defrag(None).is_err() && pool.pause_defrag(None).is_err());
    // It waits while a snapshot is in use.
    let snap = pool.dataset(history.snapshots.last().unwrap()).unwrap();
    let w = Arc::clone(pool.writer().unwrap());
    pool.unmap(None).unwrap();
    let used = w.use_snapshots(&[(snap.object(), snap.guid())]).unwrap();
    let paused = pool.pause_defrag(None).is_ok();
    drop((used, snap, w));
    pool.export().unwrap();
    drop(pool);
    whole(dir, "paused");
    zdb(dir, NAME);
    let pool = import(dir);
    assert!(invariants(&pool, history.made) == before);
    if paused {
        assert_eq!(pool.move_job().unwrap().record.state, MoveState::Paused);
        pool.unmap(None).unwrap();
    }
    pool.export().unwrap();
    drop(pool);
    let pool = import(dir);
    assert_eq!(ended(&pool).state, MoveState::Complete);
    assert!(is_forgotten(&pool) && invariants(&pool, history.made) == before);
    pool.export().unwrap();
    drop(pool);
    whole(dir, "continued");
    zdb(dir, NAME);
}

/// What cannot be done is refused, with the reason, and nothing changes.
#[test]
fn refusals() {
    let scratch = Scratch::new("unmap-refused");
    let root = Caller::root();
    let mut rng = Rng::new(8);
    let data: Vec<u8> = (0..8 << 20).map(|_| rng.number() as u8).collect();
    let fill = |pool: &Pool| {
        let fs = pool.dataset(NAME).unwrap().open_fs().unwrap();
        let file = fs.make(&root, fs.root(), b"f0", &New::file(0o644)).unwrap().id;
        fs.write(&root, file, WritePosition::Offset(0), &data).unwrap();
        pool.sync().unwrap();
        (fs, file)
    };
    let refused = |pool: &Pool, what: &str| pool.unmap(None).expect_err(what).message().to_owned();
    // Nothing was removed.
    let pool = two_disks(&scratch.path().join("none"), None);
    assert!(refused(&pool, "none").contains("no removed devices with a mapping"));
    pool.export().unwrap();
    // Frees are not recorded.
    let pool = two_disks(&scratch.path().join("unrecorded"), Some("obsolete_counts"));
    drop(fill(&pool));
    remove(&pool, 0);
    let text = refused(&pool, "unrecorded");
    assert!(text.contains("does not record what of a removed device is needed"), "{text}");
    assert_eq!(pool.move_job(), None);
    pool.export().unwrap();
    // Clones, which keep their addresses.
    let dir = scratch.path().join("cloned");
    let pool = two_disks(&dir, None);
    let (fs, file) = fill(&pool);
    let copy = fs.make(&root, fs.root(), b"f1", &New::file(0o644)).unwrap().id;
    let cloned = fs.clone_range(&root, (&fs, file, 0), (copy, 0), data.len() as u64).unwrap();
    assert_eq!(cloned, data.len() as u64);
    drop(fs);
    pool.sync().unwrap();
    remove(&pool, 0);
    let text = refused(&pool, "cloned");
    assert!(text.contains("cloned blocks cannot be moved"), "{text}");
    pool.take_checkpoint(None).unwrap();
    assert!(refused(&pool, "checkpoint").contains("checkpoint"));
    pool.export().unwrap();
}

/// A hole that is made while the mapping is needed is found.
#[test]
fn a_hole_that_is_made_too_early() {
    let scratch = Scratch::new("unmap-early");
    let dir = scratch.path();
    let pool = two_disks(dir, None);
    let mut history = MoverHistory::new(3);
    (0..20).for_each(|_| history.step(&pool));
    remove(&pool, 0);
    let w = Arc::clone(pool.writer().unwrap());
    assert_eq!(w.end_unmap(VdevId(0)).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(w.end_unmap(VdevId(1)).unwrap_err().kind(), ErrorKind::NotFound);
    w.emptying_plants().early_hole.store(true, Relaxed);
    w.end_unmap(VdevId(0)).unwrap();
    drop(w);
    let _suspended = pool.export();
    drop(pool);
    assert!(problems(dir).is_some());
}

/// A mapping that cloned blocks need stays, and the one that was made before it goes: the chain of
/// removed vdevs leaves it out.
#[test]
fn one_mapping_stays() {
    let scratch = Scratch::new("unmap-stays");
    let dir = scratch.path();
    let engine = testkit::engine();
    let disk = |n: usize| {
        let path = dir.join(format!("more{n}"));
        std::fs::File::create(&path).unwrap().set_len(512 << 20).unwrap();
        NewVdev::new(NewKind::File(path))
    };
    let request = CreateRequest {
        force: Force::ALL,
        settings: vec![PoolSetting::Stored("ashift", 12)],
        ..CreateRequest::new(NAME, vec![disk(0)])
    };
    let pool = engine.create_pool(&request).unwrap().unwrap();
    let (root, mut rng) = (Caller::root(), Rng::new(8));
    let data: Vec<u8> = (0..4 << 20).map(|_| rng.number() as u8).collect();
    let fs = pool.dataset(NAME).unwrap().open_fs().unwrap();
    let make = |name: &[u8]| fs.make(&root, fs.root(), name, &New::file(0o644)).unwrap().id;
    let (file, copy) = (make(b"f0"), make(b"f1"));
    fs.write(&root, file, WritePosition::Offset(0), &data).unwrap();
    pool.sync().unwrap();
    fs.clone_range(&root, (&fs, file, 0), (copy, 0), data.len() as u64).unwrap();
    pool.sync().unwrap();
    let request = AddRequest {
        vdevs: (1..4).map(disk).collect(),
        force: Force::ALL,
        dry_run: false,
        ashift: Some(12),
        command: None,
    };
    engine.add_vdevs(&pool, &request).unwrap();
    for n in 2..5 {
        let file = make(format!("f{n}").as_bytes());
        fs.write(&root, file, WritePosition::Offset(0), &data).unwrap();
    }
    pool.sync().unwrap();
    remove(&pool, 1);
    remove(&pool, 0);
    let w = Arc::clone(pool.writer().unwrap());
    assert_eq!(w.mapped_vdevs(), [VdevId(1), VdevId(0)]);
    pool.unmap(None).unwrap();
    assert_eq!(ended(&pool).state, MoveState::Failed);
    let why = pool.move_job().unwrap().waiting.unwrap();
    assert!(why.contains("mapping of removed device 0 stays") && why.contains("cloned"), "{why}");
    let check = |pool: &Pool| {
        let w = pool.writer().unwrap();
        assert_eq!(w.mapped_vdevs(), [VdevId(0)]);
        let tops = &w.published().config.vdev_tree.children;
        assert_eq!(tops[1].kind, VdevType::Hole);
        assert_eq!(tops[0].top.as_ref().unwrap().indirect.prev, None);
        let removal = pool.removal().unwrap().unwrap();
        assert_eq!((removal.vdev, removal.prev_indirect), (Some(VdevId(0)), Some(VdevId(0))));
    };
    check(&pool);
    let before = contents(&pool, 5);
    drop((fs, w));
    pool.export().unwrap();
    drop(pool);
    // zdb 2.3 aborts where counts of clones are numbers.
    whole(dir, "one mapping");
    let pool = import(dir);
    check(&pool);
    assert!(contents(&pool, 5) == before);
    // Without clones it goes as well.
    let fs = pool.dataset(NAME).unwrap().open_fs().unwrap();
    fs.unlink(&root, fs.root(), b"f1").unwrap();
    drop(fs);
    for _ in 0..3 {
        pool.writer().unwrap().touch();
        pool.sync().unwrap();
    }
    pool.unmap(None).unwrap();
    assert_eq!(ended(&pool).state, MoveState::Complete);
    assert!(is_forgotten(&pool));
    pool.export().unwrap();
    drop(pool);
    whole(dir, "no mapping");
}
