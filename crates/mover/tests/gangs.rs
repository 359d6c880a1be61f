//! Gang blocks become plain blocks when they move, and count the same space.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use std::sync::atomic::Ordering::Relaxed;

use cenote::PropData;
use common::history::{MoverHistory, MoverShape, NAME, contents, shapes};
use common::*;
use mover::{FoundBlocks, find};
use spa::engine::{RelocationBatch, Writer};
use testkit::{Rng, Scratch, side_by_side};

/// Blocks of a batch.
const BATCH: usize = 100;

fn gangs(w: &Writer) -> FoundBlocks {
    find(w, &|block| block.is_gang()).unwrap()
}

fn one((shape, copies): &(MoverShape, u64)) {
    let what = format!("{shape:?}, {copies} copies");
    let scratch = Scratch::new(&format!("gangs-{}-{copies}", shape.name()));
    let dir = scratch.path();
    let pool = shape.make(dir);
    pool.set_props(NAME, &[("copies".to_owned(), PropData::Num(*copies))], None).unwrap();
    let w = pool.writer().unwrap();
    let ganging = &w.space().force_ganging;
    ganging.larger_than.store(8192, Relaxed);
    ganging.one_in.store(2, Relaxed);
    let mut history = MoverHistory::new(*copies);
    (0..4).for_each(|_| history.write(&pool));
    history.snapshot(&pool);
    (0..30).for_each(|_| history.step(&pool));
    w.sync().unwrap();
    ganging.larger_than.store(0, Relaxed);
    ganging.one_in.store(0, Relaxed);
    let before = (sums(&pool), streams(&pool), contents(&pool, history.made));
    let found = gangs(w).blocks;
    let data = |found: &[_]| {
        let is_data = |(at, _): &&(spa::engine::BlockPosition, _)| at.level == 0 && at.object > 0;
        found.iter().filter(is_data).count()
    };
    assert!(data(&found) > 10, "{what}: {} gangs", found.len());
    let (mut moved, mut kept) = (0, 0);
    for blocks in found.chunks(BATCH) {
        let done = w
            .relocate(RelocationBatch { blocks: blocks.to_vec(), ..RelocationBatch::default() })
            .unwrap();
        moved += done.moved;
        kept += done.kept.len();
        // What was freed can be allocated again.
        (0..3).for_each(|_| {
            w.touch();
            w.sync().unwrap();
        });
    }
    assert!(moved > 0, "{what}: {kept} gangs stayed");
    let left = gangs(w).blocks;
    assert_eq!(data(&left), 0, "{what}: {kept} stayed");
    println!("{what}: {} gangs, {} left", found.len(), left.len());
    rules(&pool);
    assert!((sums(&pool), streams(&pool), contents(&pool, history.made)) == before, "{what}");
    (0..10).for_each(|_| history.step(&pool));
    let files = contents(&pool, history.made);
    pool.export().unwrap();
    drop(pool);
    whole(dir, &what);
    zdb(dir, NAME);
    let pool = import(dir);
    assert_eq!(contents(&pool, history.made), files, "{what}");
    let _all = destroy_all(&pool, &mut Rng::new(3));
    pool.export().unwrap();
    drop(pool);
    whole(dir, &format!("emptied {what}"));
}

#[test]
fn gangs_become_plain_blocks() {
    let of = |shape: MoverShape| (1..=3).map(move |copies| (shape, copies));
    let all: Vec<(MoverShape, u64)> = shapes().into_iter().flat_map(of).collect();
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    // Each kind of vdev with some number of copies.
    let chosen = all.iter().enumerate().filter(|(n, _)| nightly || n % 4 == 0);
    side_by_side(&chosen.map(|(_, case)| *case).collect::<Vec<_>>(), one);
}
