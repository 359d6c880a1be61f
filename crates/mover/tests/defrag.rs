//! Defragmentation of pools on every kind of vdev: files are laid out, snapshots stay shared, and
//! nothing but the places of blocks changes; also paused, and across exports and crashes.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use std::path::Path;
use std::sync::Arc;

use base::VdevId;
use cenote::files::{Caller, New, WritePosition};
use cenote::{DefragTargets, Pool, PropData};
use common::history::{MoverShape, NAME, contents, shapes};
use common::*;
use mover::job::{MoveState, MoveStatus};
use testkit::{Rng, Scratch, eventually, side_by_side};

/// The file system with the files.
const DATA: &str = "tank/data";
/// Records of a file, and their size.
const RECORDS: u64 = 400;
const RECORD: u64 = 8192;

/// Two files whose records were overwritten in a random order, with a snapshot between the
/// rounds.
fn scattered(shape: &MoverShape, dir: &Path, seed: u64) -> Arc<Pool> {
    let pool = shape.make(dir);
    let props = [("recordsize".to_owned(), PropData::Num(RECORD))];
    pool.create_filesystem(DATA, &props, None).unwrap();
    let (fs, root) = (pool.dataset(DATA).unwrap().open_fs().unwrap(), Caller::root());
    let mut rng = Rng::new(seed);
    let files = ["f1", "f2"]
        .map(|name| fs.make(&root, fs.root(), name.as_bytes(), &New::file(0o644)).unwrap().id);
    for round in 0..5 {
        for _ in 0..if round == 0 { RECORDS } else { 120 } {
            let file = files[rng.index(2)];
            let at = rng.below(RECORDS) * RECORD;
            let data: Vec<u8> = (0..RECORD).map(|_| rng.number() as u8).collect();
            fs.write(&root, file, WritePosition::Offset(at), &data).unwrap();
            if rng.index(40) == 0 {
                pool.sync().unwrap();
            }
        }
        pool.sync().unwrap();
        pool.snapshot(&[format!("{DATA}@s{round}")], &[], None).unwrap();
    }
    pool
}

fn over(pool: &Pool) -> MoveStatus {
    eventually("the defragmentation ends", || {
        pool.move_job().is_some_and(|d| d.record.state != MoveState::Active)
    });
    pool.move_job().unwrap()
}

fn laid_out(shape: &MoverShape) {
    let scratch = Scratch::new(&format!("defrag-{}", shape.name()));
    let dir = scratch.path();
    let pool = scattered(shape, dir, 1);
    let estimate = pool.estimate_defrag(&DefragTargets::default()).unwrap();
    assert_eq!(estimate.files, 2, "{shape:?}: {estimate:?}");
    let before = (sums(&pool), streams(&pool), contents(&pool, 3));
    pool.defrag(&DefragTargets::default(), Some("zpool defrag tank")).unwrap();
    let record = over(&pool).record;
    assert_eq!(record.state, MoveState::Complete, "{shape:?}");
    assert_eq!(record.files, 2, "{shape:?}: {record:?}");
    assert!(record.in_sequence_now * 100 >= record.steps * 95, "{shape:?}: {record:?}");
    let after = pool.estimate_defrag(&DefragTargets::default()).unwrap();
    assert_eq!(after.files, 0, "{shape:?}: {after:?}");
    rules(&pool);
    assert!((sums(&pool), streams(&pool), contents(&pool, 3)) == before, "{shape:?}");
    pool.export().unwrap();
    drop(pool);
    whole(dir, &format!("{shape:?}"));
    zdb(dir, NAME);
    let pool = import(dir);
    assert_eq!(pool.move_job().unwrap().record, record);
    assert!(contents(&pool, 3) == before.2, "{shape:?}");
    destroy_all(&pool, &mut Rng::new(3));
    pool.export().unwrap();
    drop(pool);
    whole(dir, &format!("emptied {shape:?}"));
}

#[test]
fn files_are_laid_out() {
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let kinds = [("single", 1), ("mirror", 2), ("raidz1", 3), ("raidz2", 5), ("draid1", 6)];
    let all = shapes();
    let chosen = |shape: &&MoverShape| nightly || kinds.contains(&(shape.kind, shape.disks));
    side_by_side(&all.iter().filter(chosen).collect::<Vec<_>>(), |shape| laid_out(shape));
}

/// A scattered file that takes more than there is in large free ranges: what was laid out left
/// holes of one record each, into which the rest went, so that a pool that was 75 % full ended
/// with a layout score of 0.39. Now free space is joined between pieces of the file.
fn larger_than_the_free_ranges(shape: &MoverShape) {
    let scratch = Scratch::new(&format!("defrag-large-{}", shape.name()));
    let dir = scratch.path();
    let pool = shape.make_of(dir, if shape.kind == "raidz1" { 256 << 20 } else { 480 << 20 });
    let props = [("recordsize".to_owned(), PropData::Num(RECORD))];
    pool.create_filesystem(DATA, &props, None).unwrap();
    let (fs, root) = (pool.dataset(DATA).unwrap().open_fs().unwrap(), Caller::root());
    let [kept, gone] = [b"kept", b"gone"]
        .map(|name| fs.make(&root, fs.root(), name, &New::file(0o644)).unwrap().id);
    let mut rng = Rng::new(5);
    let mut order: Vec<u64> = (0..(192 << 20) / RECORD).collect();
    (1..order.len()).for_each(|i| order.swap(i, rng.index(i + 1)));
    for (n, record) in (0..).zip(order) {
        let data: Vec<u8> = (0..RECORD / 8).flat_map(|_| rng.number().to_le_bytes()).collect();
        fs.write(&root, kept, WritePosition::Offset(record * RECORD), &data).unwrap();
        if n % 2 == 0 {
            fs.write(&root, gone, WritePosition::Offset(n / 2 * RECORD), &data).unwrap();
        }
        if n % 40 == 0 {
            pool.sync().unwrap();
        }
    }
    pool.sync().unwrap();
    let allocated = || {
        let space = pool.writer().unwrap().space();
        space.vdev_totals(VdevId(0)).unwrap().allocated
    };
    let full = allocated();
    fs.unlink(&root, fs.root(), b"gone").unwrap();
    drop(fs);
    eventually("what was deleted is free", || {
        pool.sync().unwrap();
        allocated() < full / 100 * 70
    });
    let before = (sums(&pool), contents(&pool, 3));
    let all = DefragTargets::default();
    let score = pool.estimate_defrag(&all).unwrap().score;
    assert!(score.in_sequence * 10 < score.steps, "{shape:?}: {score:?}");
    pool.defrag(&all, None).unwrap();
    let record = over(&pool).record;
    let score = pool.estimate_defrag(&all).unwrap().score;
    println!("{shape:?}: {score:?} {record:?}");
    assert_eq!(record.state, MoveState::Complete, "{shape:?}");
    assert!(score.in_sequence * 100 >= score.steps * 95, "{shape:?}: {score:?} {record:?}");
    assert!((sums(&pool), contents(&pool, 3)) == before, "{shape:?}");
    pool.export().unwrap();
    drop(pool);
    whole(dir, &format!("{shape:?}"));
    zdb(dir, NAME);
}

#[test]
fn files_that_are_larger_than_the_free_ranges() {
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let all = [("single", 1, 9), ("raidz1", 3, 9), ("mirror", 2, 12), ("single", 1, 12)];
    let all = all.map(|(kind, disks, ashift)| MoverShape { kind, disks, ashift });
    side_by_side(if nightly { &all } else { &all[..2] }, larger_than_the_free_ranges);
}

/// A paused one stays paused over an export, and continues; an active one continues by itself, after
/// an export and after a crash. Refusals change nothing.
#[test]
fn it_is_paused_continued_and_stopped() {
    let scratch = Scratch::new("defrag-paused");
    let dir = scratch.path();
    let shape = MoverShape { kind: "mirror", disks: 2, ashift: 12 };
    let pool = scattered(&shape, dir, 2);
    let files = contents(&pool, 3);
    let all = DefragTargets::default();
    assert!(pool.pause_defrag(None).is_err() && pool.cancel_defrag(None).is_err());
    let wrong = DefragTargets { score: Some(1001), ..all.clone() };
    assert!(pool.defrag(&wrong, None).is_err());
    let snapshot = DefragTargets { datasets: vec![format!("{DATA}@s1")], ..all.clone() };
    assert!(pool.defrag(&snapshot, None).is_err());
    assert_eq!(pool.move_job(), None);
    // While a snapshot is sent it waits; so it can be paused before anything has moved.
    pool.defrag(&all, None).unwrap();
    let _maybe_over = pool.pause_defrag(None);
    let paused = pool.move_job().unwrap().record;
    pool.export().unwrap();
    drop(pool);
    let pool = import(dir);
    assert_eq!(pool.move_job().unwrap().record, paused);
    if paused.state == MoveState::Paused {
        pool.defrag(&all, None).unwrap();
        assert_eq!(pool.move_job().unwrap().record.start, paused.start);
    }
    // An export in the middle of it.
    pool.export().unwrap();
    drop(pool);
    let pool = import(dir);
    assert_eq!(over(&pool).record.state, MoveState::Complete);
    assert_eq!(pool.estimate_defrag(&all).unwrap().files, 0);
    assert!(pool.cancel_defrag(None).is_err(), "it is over");
    assert!(contents(&pool, 3) == files);
    rules(&pool);
    pool.export().unwrap();
    drop(pool);
    whole(dir, "continued");
    zdb(dir, NAME);
}

/// Only the files of the datasets that were named are laid out.
#[test]
fn datasets_can_be_named() {
    let scratch = Scratch::new("defrag-named");
    let dir = scratch.path();
    let shape = MoverShape { kind: "single", disks: 1, ashift: 9 };
    let pool = scattered(&shape, dir, 3);
    pool.create_filesystem(&format!("{NAME}/other"), &[], None).unwrap();
    let named = |name: String| DefragTargets { datasets: vec![name], score: Some(900) };
    let other = named(format!("{NAME}/other"));
    pool.defrag(&other, None).unwrap();
    let record = over(&pool).record;
    assert_eq!((record.files, record.metaslabs, record.moved), (0, 0, 0), "{record:?}");
    assert_eq!(pool.estimate_defrag(&other).unwrap().files, 0);
    assert_eq!(pool.estimate_defrag(&DefragTargets::default()).unwrap().files, 2);
    pool.defrag(&named(DATA.to_owned()), None).unwrap();
    let record = over(&pool).record;
    assert_eq!((record.files, record.metaslabs), (2, 0), "{record:?}");
    pool.export().unwrap();
}
