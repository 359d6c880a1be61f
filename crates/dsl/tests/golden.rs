//! The writing half of the DSL against pools that OpenZFS wrote: its checker finds no
//! violation in them, and its walk visits every block once, wherever it resumes.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use base::rt::Mutex;
use base::{Result, Txg};
use cenote::{ImportOptions, Pool};
use dmu::traverse::{Bookmark, Flow, Options, Visitor, traverse};
use dsl::DslDir;
use dsl::write::trees::{Trees, Walked};
use dsl::write::{Ratios, check, features};
use ondisk::BlkPtr;
use testkit::{Scratch, discover, engine, golden, golden_pools};

fn open(dir: &Path) -> Arc<Pool> {
    let engine = engine();
    let found = discover(&engine, dir);
    assert_eq!(found.len(), 1);
    engine.inspect(&found[0], &ImportOptions::default()).unwrap()
}

fn ratios(pool: &Pool) -> Ratios {
    let spa = pool.spa();
    if !spa.deflate() {
        return Ratios::default();
    }
    let tree = spa.zio().tree();
    let of = |id| tree.deflate_ratio(base::VdevId(id)).unwrap_or(512);
    Ratios::new((0..64).map(of).collect())
}

#[test]
fn every_sum_of_every_golden_pool_is_right() {
    let mut pools = 0;
    for golden in golden_pools() {
        let scratch = Scratch::new(&format!("sums-{}", golden.name));
        golden.unpack(scratch.path());
        let pool = open(scratch.path());
        let wrong = check(pool.spa().mos(), &ratios(&pool)).unwrap();
        let wrong: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        assert!(wrong.is_empty(), "{}: {wrong:#?}", golden.name);
        pools += 1;
    }
    assert!(pools > 10);
}

/// The structures in each pool that Cenote's writer does not maintain.
#[test]
fn pools_that_must_stay_read_only_are_known() {
    let what = |name: &str| {
        let golden = golden(name)?;
        let scratch = Scratch::new(&format!("obstacles-{name}"));
        golden.unpack(scratch.path());
        let found = features::obstacles(open(scratch.path()).spa().mos()).unwrap();
        Some(found.into_iter().map(|o| o.what).collect::<Vec<_>>())
    };
    let written = [
        "twomirrors",
        "snaps",
        "clonedblk",
        "dedup",
        "expanded",
        "graidz2w6",
        "kitchen",
        "removed",
    ];
    for name in written {
        assert!(what(name).is_none_or(|all| all.is_empty()), "{name}: {:?}", what(name));
    }
}

#[derive(Default)]
struct SeenPointers(Mutex<BTreeMap<(u64, i64, u64), BlkPtr>>);

impl Visitor for SeenPointers {
    fn visit(&self, bp: &BlkPtr, at: Bookmark) -> Result<Flow> {
        if !bp.is_hole() {
            let blkid = if at.level < 0 { 0 } else { at.blkid };
            self.0.lock().insert((at.object, i64::from(at.level), blkid), *bp);
        }
        Ok(Flow::Descend)
    }
}

#[test]
fn a_walk_shows_every_block_once_wherever_it_resumes() {
    let Some(golden) = golden("snaps") else { return };
    let scratch = Scratch::new("walk");
    golden.unpack(scratch.path());
    let pool = open(scratch.path());
    let (spa, mut datasets) = (pool.spa(), Vec::new());
    let root = DslDir::root(spa.mos(), "snaps").unwrap();
    root.walk(&mut |dir| {
        datasets.extend(dir.head()?);
        Ok(())
    })
    .unwrap();
    let mut walked = 0;
    for ds in datasets {
        let bp = ds.phys().bp;
        for min in [Txg::ZERO, ds.phys().prev_snap_txg] {
            let seen = SeenPointers::default();
            let options = Options { min_txg: min, ..Options::default() };
            traverse(spa.zio(), ds.object(), &bp, &seen, options).unwrap();
            let expected = seen.0.lock().clone();
            let mut order = Vec::new();
            let done = spa.zio().walk(&bp, min, None, &mut |bp, at| {
                order.push((at, *bp));
                true
            });
            assert!(matches!(done, Walked::All), "{done:?}");
            let found: BTreeMap<_, _> =
                order.iter().map(|(at, bp)| ((at.object, at.level, at.blkid), *bp)).collect();
            assert_eq!(found.len(), order.len(), "each block once");
            assert_eq!(found, expected, "{}", ds.name());
            walked += order.len();
            // Portions of every size, each resuming where the last one stopped.
            for portion in [1, 2, 3, 7, 50] {
                if order.len() > 600 && portion < 7 {
                    continue;
                }
                let (mut again, mut after) = (Vec::new(), None);
                loop {
                    let mut left = portion;
                    let done = spa.zio().walk(&bp, min, after.as_ref(), &mut |bp, at| {
                        again.push((at, *bp));
                        left -= 1;
                        left > 0
                    });
                    match done {
                        Walked::All => break,
                        Walked::Stopped => after = again.last().map(|(at, _)| *at),
                        Walked::Failed(e) => panic!("{e}"),
                    }
                }
                assert_eq!(again, order, "{} in portions of {portion}", ds.name());
            }
        }
    }
    assert!(walked > 100);
}

struct Panics;

impl Visitor for Panics {
    fn visit(&self, _: &BlkPtr, at: Bookmark) -> Result<Flow> {
        assert!(at.level != 0, "a visitor's own fault");
        Ok(Flow::Descend)
    }
}

/// Story: the other threads of a walk waited forever for one whose visitor had panicked.
#[test]
fn a_walk_ends_when_a_visitor_panics() {
    let Some(golden) = golden("snaps") else { return };
    let scratch = Scratch::new("walk-panic");
    golden.unpack(scratch.path());
    let pool = open(scratch.path());
    let head = DslDir::root(pool.spa().mos(), "snaps").unwrap().head().unwrap().unwrap();
    let options = Options { threads: 4, ..Options::default() };
    let walk = || traverse(pool.spa().zio(), head.object(), &head.phys().bp, &Panics, options);
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(walk));
    assert!(ended.is_err());
}
