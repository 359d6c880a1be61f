//! Sequential rebuilds: leaves that miss something get their part of every range, from leaves
//! that miss nothing, beside writes of the same blocks.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use base::{Buf, ErrorKind, Guid, Psize, Txg};
use device::{Device, Fault};
use vdev::{LABEL_START, ReadReq, Tree, TxgRanges, VdevKind};

mod cases;

use cases::{
    LEAF, TOP, TestBlock, TestRng, VdevCase, blocks, case, cases, check, leaf_specs, raidz,
    write_all,
};

fn guid(leaf: usize) -> Guid {
    Guid(LEAF + leaf as u64)
}

/// Overwrites what a leaf has of the ranges.
fn spoil(case: &VdevCase, tree: &Tree, ranges: &[(u64, u64)], leaf: usize) {
    for &(offset, len) in ranges {
        for (at, len) in tree.ranges_on(guid(leaf), offset, len).unwrap() {
            case.leaves[leaf].mem.poke(at, &vec![0xa5; len as usize]).unwrap();
        }
    }
}

/// Has the leaf miss what it never had, as a new leaf does.
fn miss_all(tree: &Tree, leaf: usize) {
    assert!(tree.add_missing_range(guid(leaf), Txg(4), Txg(1000)));
}

fn ranges(tree: &Tree, blocks: &[TestBlock]) -> Vec<(u64, u64)> {
    let mut out: Vec<(u64, u64)> = Vec::new();
    for block in blocks {
        let len = tree.asize(TOP, Psize(block.data.len() as u64), block.birth).unwrap().0;
        match out.last_mut() {
            Some(last) if last.0 + last.1 == block.offset => last.1 += len,
            _ => out.push((block.offset, len)),
        }
    }
    out
}

/// Every copy and every parity column of every block is right.
fn all_right(tree: &Tree, blocks: &[TestBlock], what: &str) {
    for block in blocks {
        let req = ReadReq::new(TOP, block.offset, Psize(block.data.len() as u64), block.birth);
        let outcome = tree.scrub(&req, &|bytes| *bytes == *block.data);
        assert!(outcome.data.is_ok() && outcome.report.bad.is_empty(), "{what}: {outcome:?}");
    }
}

#[test]
fn leaves_get_what_they_lack_from_leaves_that_lack_nothing() {
    let mut rng = TestRng(0x7eb1_11d0_0000_0007);
    let mut rebuilt = 0;
    for case in cases() {
        let what = &case.name;
        let tree = case.tree();
        if !tree.can_rebuild(TOP) {
            continue;
        }
        let blocks = blocks(&tree, &case, &mut rng);
        assert!(write_all(&tree, &blocks).iter().all(|r| r.result.is_ok()), "{what}");
        let ranges = ranges(&tree, &blocks);
        let session = tree.begin_rebuild();
        let idle = tree.rebuild(&session, TOP, &ranges, 1 << 20).unwrap();
        assert!(case.first > 0 || idle.issued == 0, "{what}: nothing is behind: {idle:?}");
        for (n, behind) in case.losses().into_iter().enumerate() {
            let most = [1, 48 << 10, 1 << 24][n % 3];
            for &leaf in &behind {
                spoil(&case, &tree, &ranges, leaf);
                miss_all(&tree, leaf);
            }
            let before: Vec<u64> =
                case.leaves.iter().map(|l| l.mem.stats().snapshot().writes).collect();
            let reads: Vec<u64> =
                behind.iter().map(|&l| case.leaves[l].mem.stats().snapshot().reads).collect();
            let done = tree.rebuild(&session, TOP, &ranges, most).unwrap();
            assert_eq!((done.failed, done.without_source), (0, 0), "{what} {behind:?}");
            for (leaf, (state, before)) in case.leaves.iter().zip(before).enumerate() {
                let wrote = state.mem.stats().snapshot().writes - before;
                let bytes = done.written.get(&guid(leaf)).copied().unwrap_or(0);
                assert_eq!(wrote > 0, bytes > 0, "{what}: leaf {leaf}");
                assert!(bytes == 0 || behind.contains(&leaf), "{what}: leaf {leaf}");
            }
            for (&leaf, reads) in behind.iter().zip(reads) {
                let now = case.leaves[leaf].mem.stats().snapshot().reads;
                assert_eq!(now, reads, "{what}: a leaf that is behind is not read");
                assert!(tree.set_dtl(guid(leaf), TxgRanges::default()));
            }
            if case.first == 0 {
                all_right(&tree, &blocks, what);
            }
            // Only they are needed for one column each.
            let others: Vec<usize> = (case.first as usize..case.leaves.len())
                .filter(|leaf| !behind.contains(leaf))
                .take(case.tolerated)
                .collect();
            let damaged = case.without(&tree, &others);
            blocks.iter().for_each(|block| check(&damaged, block, what));
            rebuilt += 1;
        }
    }
    assert!(rebuilt > 30, "{rebuilt}");
}

#[test]
fn what_cannot_be_copied_is_reported() {
    let mirror = case("mirror of 2", VdevKind::Mirror, leaf_specs(2), 12, 1);
    let tree = mirror.tree();
    let mut rng = TestRng(99);
    let blocks = blocks(&tree, &mirror, &mut rng);
    assert!(write_all(&tree, &blocks).iter().all(|r| r.result.is_ok()));
    let ranges = ranges(&tree, &blocks);
    let session = tree.begin_rebuild();
    miss_all(&tree, 1);
    // The only source cannot be read, or the leaf not written.
    for (leaf, fault) in [
        (0, Fault::FailReads(LABEL_START..u64::MAX)),
        (1, Fault::FailWrites(LABEL_START..u64::MAX)),
    ] {
        mirror.leaves[leaf].fault.inject(fault);
        let done = tree.rebuild(&session, TOP, &ranges[..1], 1 << 20).unwrap();
        assert!(done.failed > 0 && done.total() == 0, "{done:?}");
        mirror.leaves[leaf].fault.heal();
    }
    // Each leaf lacks something.
    assert!(tree.add_missing_range(guid(0), Txg(7), Txg(7)));
    let none = tree.rebuild(&session, TOP, &ranges, 1 << 20).unwrap();
    assert!(none.without_source > 0 && none.total() == 0 && none.failed == 0, "{none:?}");
    assert!(tree.set_dtl(guid(0), TxgRanges::default()));
    let outside = (tree.top(TOP).unwrap().asize(), 4096);
    for wrong in [outside, (1, 4096), (0, 77), (u64::MAX, u64::MAX)] {
        let refused = tree.rebuild(&session, TOP, &[wrong], 1 << 20).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{wrong:?}");
    }
    let raidz = raidz(1, 3, 12);
    let tree = raidz.tree();
    assert!(!tree.can_rebuild(TOP));
    let refused = tree.rebuild(&tree.begin_rebuild(), TOP, &[(0, 4096)], 1 << 20).unwrap_err();
    assert_eq!(refused.message(), "only mirror and dRAID vdevs support sequential reconstruction");
}

/// Blocks are written again and again where a rebuild copies: no old bytes replace new ones.
#[test]
fn no_copy_replaces_a_block_that_is_written_meanwhile() {
    let mut rng = TestRng(0x0001_7eb1_11d0_0001);
    for case in cases() {
        let tree = case.tree();
        if !tree.can_rebuild(TOP) || case.first > 0 {
            continue;
        }
        let mut blocks = blocks(&tree, &case, &mut rng);
        assert!(write_all(&tree, &blocks).iter().all(|r| r.result.is_ok()), "{}", case.name);
        let ranges = ranges(&tree, &blocks);
        miss_all(&tree, 1);
        let over = Arc::new(AtomicBool::new(false));
        let copier = {
            let (tree, over) = (Arc::clone(&tree), Arc::clone(&over));
            base::rt::spawn("copy", move || {
                let session = tree.begin_rebuild();
                let mut rounds = 0;
                while !over.load(Relaxed) || rounds < 2 {
                    let done = tree.rebuild(&session, TOP, &ranges, 32 << 10).unwrap();
                    assert_eq!((done.failed, done.without_source), (0, 0));
                    rounds += 1;
                }
            })
            .unwrap()
        };
        for _ in 0..30 {
            for block in &mut blocks {
                let data: Vec<u8> = block.data.iter().map(|_| rng.next() as u8).collect();
                block.data = Buf::copy_of(&data);
            }
            assert!(write_all(&tree, &blocks).iter().all(|r| r.result.is_ok()), "{}", case.name);
        }
        over.store(true, Relaxed);
        assert!(copier.join().is_some());
        assert!(tree.set_dtl(guid(1), TxgRanges::default()));
        all_right(&tree, &blocks, &case.name);
    }
}
