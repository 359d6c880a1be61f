//! Random histories on every kind of vdev: blocks move while files are open, and all that can be
//! seen of the pool stays the same.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use common::history::{MoverHistory, MoverShape, NAME, contents, read, receive, shapes};
use common::*;
use mover::MoveLimits;
use testkit::{Scratch, side_by_side};

/// The file system that is received from the pool's first one.
const MIRROR: &str = "tank/mirror";

fn one(shape: &MoverShape, seed: u64, steps: usize) {
    let scratch = Scratch::new(&format!("mover-{}-{seed}", shape.name()));
    let dir = scratch.path();
    let _kept = KeptPool { dir, what: format!("{shape:?} {seed}") };
    let pool = shape.make(dir);
    let mut history = MoverHistory::new(seed);
    (0..4).for_each(|_| history.write(&pool));
    history.snapshot(&pool);
    (0..steps).for_each(|_| history.step(&pool));
    // One that later changes are received into.
    let base = format!("{NAME}@base");
    pool.snapshot(std::slice::from_ref(&base), &[], None).unwrap();
    receive(&pool, &base, None, MIRROR);
    let files = contents(&pool, history.made);
    let (before, sent) = (sums(&pool), streams(&pool));
    // Handles that are open while the blocks move.
    let head = pool.dataset(NAME).unwrap().open_fs().unwrap();
    let old = pool.dataset(&history.snapshots[0]).unwrap();
    let snapshot = old.open_fs().unwrap();
    let node = |fs: &std::sync::Arc<cenote::FileSystem>| {
        let name = (0..=history.made).map(|n| format!("f{n}")).find(|n| read(fs, n).is_some());
        name.map(|name| (read(fs, &name), name))
    };
    let (in_head, in_snapshot) = (node(&head), node(&snapshot));
    let batch_blocks = 16 + history.rng.index(200);
    let limits = MoveLimits { batch_bytes: 2 << 20, batch_blocks };
    let report = empty_some(&pool, 2, &limits);
    assert!(report.moved > 0 && report.metadata > 0, "{shape:?} {seed}: {report:?}");
    rules(&pool);
    assert_eq!(sums(&pool), before, "{shape:?} {seed}");
    // The old places are used again.
    for _ in 0..4 {
        pool.writer().unwrap().touch();
        pool.writer().unwrap().sync().unwrap();
    }
    pool.spa().zio().cache().clear();
    for (fs, file) in [(&head, &in_head), (&snapshot, &in_snapshot)] {
        if let Some((digest, name)) = file {
            assert_eq!(read(fs, name), *digest, "{shape:?} {seed}: {name}");
        }
    }
    assert_eq!(contents(&pool, history.made), files, "{shape:?} {seed}");
    assert_eq!(streams(&pool), sent, "{shape:?} {seed}");
    drop((head, snapshot, old));
    let last = format!("{NAME}@last");
    pool.snapshot(std::slice::from_ref(&last), &[], None).unwrap();
    receive(&pool, &last, Some(&base), MIRROR);
    let all = contents(&pool, history.made);
    let of = |name: &str| -> Vec<_> {
        all.iter().filter(|((ds, _), _)| ds == name).map(|((_, file), sum)| (file, sum)).collect()
    };
    assert_eq!(of(&format!("{MIRROR}@last")), of(&last), "{shape:?} {seed}");
    // The pool goes on, with the moved trees below its changes.
    (0..steps / 2).for_each(|_| history.step(&pool));
    rules(&pool);
    let files = contents(&pool, history.made);
    pool.export().unwrap();
    drop(pool);
    whole(dir, &format!("{shape:?} {seed}"));
    if seed == 0 {
        zdb(dir, NAME);
    }
    let pool = import(dir);
    assert_eq!(contents(&pool, history.made), files, "{shape:?} {seed}");
    // Where the root became a clone, the snapshots of its origin stay.
    let _all = destroy_all(&pool, &mut history.rng);
    pool.export().unwrap();
    drop(pool);
    whole(dir, &format!("emptied {shape:?} {seed}"));
}

/// One history on each kind of vdev with each size of sectors.
#[test]
fn every_kind_of_vdev() {
    side_by_side(&shapes(), |shape| one(shape, 0, 40));
}

/// Many histories, on small pools.
#[test]
fn many_histories() {
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let seeds: Vec<u64> = (1..if nightly { 1000 } else { 13 }).collect();
    let kinds = shapes();
    side_by_side(&seeds, |seed| one(&kinds[*seed as usize % kinds.len()], *seed, 50));
}
