//! Blocks read together against blocks read one by one: every kind of vdev, with damaged and
//! absent leaves; and the operations that it saves.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use base::{Buf, Guid, Psize, Txg};
use device::{Device, Fault};
use vdev::{DraidParams, ErrorCounts, IoClass, QueueLimits, ReadReq, Tree, VdevKind};

mod cases;

use cases::{
    LEAF, TOP, TestBlock, TestRng, VdevCase, blocks, case, cases, leaf_specs, raidz, write_all,
};

/// All cases, and a plain device.
fn all_cases() -> Vec<VdevCase> {
    let plain = |ashift| {
        let mut plain = case("mirror of 2", VdevKind::Mirror, leaf_specs(2), ashift, 0);
        plain.spec.children = vec![cases::leaf_spec(0, 0).with_space(ashift, 4 << 20)];
        plain.name = format!("plain, ashift {ashift}");
        plain.leaves.truncate(1);
        plain
    };
    let mut all = cases();
    all.extend([9, 12].map(plain));
    all
}

fn requests(blocks: &[TestBlock]) -> Vec<ReadReq> {
    let req = |b: &TestBlock| ReadReq::new(TOP, b.offset, Psize(b.data.len() as u64), b.birth);
    blocks.iter().map(req).collect()
}

/// Reads blocks together. Each must be delivered once and in order; returns which came.
fn together(tree: &Tree, blocks: &[TestBlock], what: &str) -> Vec<bool> {
    let mut came = Vec::new();
    let right = |i: usize, bytes: &[u8]| *bytes == *blocks[i].data;
    tree.read_together(&requests(blocks), &right, &mut |i, block| {
        assert_eq!(i, came.len(), "{what}: out of order");
        if let Ok(block) = &block {
            assert!(*block == blocks[i].data, "{what}: block at {:#x}", blocks[i].offset);
            assert!(!block.is_shared(), "{what}: keeps a device buffer");
        }
        came.push(block.is_ok());
    });
    assert_eq!(came.len(), blocks.len(), "{what}");
    came
}

fn errors(tree: &Tree, leaves: usize) -> Vec<ErrorCounts> {
    let leaf = |i: usize| tree.find(Guid(LEAF + i as u64)).unwrap().errors();
    let mut all: Vec<ErrorCounts> = (0..leaves).map(leaf).collect();
    all.push(tree.top(TOP).unwrap().errors());
    all
}

fn read_ops(case: &VdevCase) -> u64 {
    case.leaves.iter().map(|leaf| leaf.mem.stats().snapshot().reads).sum()
}

/// In any order, in batches of any size.
fn shuffled(blocks: &[TestBlock], rng: &mut TestRng) -> Vec<TestBlock> {
    let mut all = blocks.to_vec();
    for i in (1..all.len()).rev() {
        all.swap(i, rng.below(i as u64 + 1) as usize);
    }
    all
}

fn batches<'a>(blocks: &'a [TestBlock], rng: &mut TestRng) -> Vec<&'a [TestBlock]> {
    let (mut out, mut left) = (Vec::new(), blocks);
    while !left.is_empty() {
        let (batch, rest) = left.split_at(left.len().min(1 + rng.below(60) as usize));
        out.push(batch);
        left = rest;
    }
    out
}

#[test]
fn undamaged_blocks_all_come() {
    let mut rng = TestRng(0x1234_5678_9abc_def1);
    for case in all_cases() {
        let (what, tree) = (&case.name, case.tree());
        let blocks = blocks(&tree, &case, &mut rng);
        assert!(write_all(&tree, &blocks).iter().all(|r| r.result.is_ok()), "{what}");
        for order in [blocks.clone(), shuffled(&blocks, &mut rng)] {
            for batch in batches(&order, &mut rng) {
                assert!(together(&tree, batch, what).iter().all(|came| *came), "{what}");
            }
        }
        // The same block twice, and a list without any.
        let twice: Vec<TestBlock> = blocks.iter().chain(&blocks).cloned().collect();
        assert!(together(&tree, &twice, what).iter().all(|came| *came), "{what}");
        assert!(together(&tree, &[], what).is_empty());
        // Limits that the caller may set.
        for (aggregation_limit, read_gap_limit) in [(0, 0), (1, u64::MAX), (u64::MAX, u64::MAX)] {
            tree.set_queue_limits(QueueLimits {
                aggregation_limit,
                read_gap_limit,
                ..QueueLimits::default()
            });
            assert!(together(&tree, &blocks, what).iter().all(|came| *came), "{what}");
        }
    }
}

/// A block that does not come is one that a read by itself finds damaged (or refuses), and the
/// attempt counted no error.
#[test]
fn absent_and_damaged_leaves() {
    let mut rng = TestRng(0x0bad_5eed_0bad_5eed);
    for case in all_cases().into_iter().filter(|case| case.tolerated > 0) {
        let (what, tree) = (&case.name, case.tree());
        let blocks = blocks(&tree, &case, &mut rng);
        assert!(write_all(&tree, &blocks).iter().all(|r| r.result.is_ok()), "{what}");
        for lost in case.losses() {
            // Absent leaves are known to be absent: everything is reconstructed.
            let damaged = case.without(&tree, &lost);
            let before = errors(&damaged, case.leaves.len());
            assert!(together(&damaged, &blocks, what).iter().all(|came| *came), "{what}");
            assert_eq!(before, errors(&damaged, case.leaves.len()), "{what}");
        }
        for lost in case.losses().into_iter().take(4) {
            // Leaves that fail, and leaves with wrong bytes.
            for wrong in [false, true] {
                for &leaf in &lost {
                    let whole = 0..u64::MAX;
                    let fault =
                        if wrong { Fault::Flip(whole, 0x5a) } else { Fault::FailReads(whole) };
                    case.leaves[leaf].fault.inject(fault);
                }
                let tree = case.tree();
                let before = errors(&tree, case.leaves.len());
                let came = together(&tree, &blocks, what);
                assert_eq!(before, errors(&tree, case.leaves.len()), "{what}: counted");
                for ((block, came), req) in blocks.iter().zip(came).zip(requests(&blocks)) {
                    if wrong && !came {
                        // Also if the other side of a mirror is right.
                        let req = ReadReq { suspect: true, ..req };
                        let read = tree.read_verbose(&req, &|bytes| *bytes == *block.data);
                        assert!(read.data.is_ok() && !read.report.bad.is_empty(), "{what}");
                    }
                    let before = errors(&tree, case.leaves.len());
                    cases::check(&tree, block, what);
                    let found_damage = before != errors(&tree, case.leaves.len());
                    // Which child of a mirror is read is chosen anew each time.
                    let chooses = has_mirror(&case);
                    assert!(came != found_damage || chooses, "{what}: {:#x}", block.offset);
                }
                lost.iter().for_each(|&leaf| case.leaves[leaf].fault.heal());
            }
        }
    }
}

fn has_mirror(case: &VdevCase) -> bool {
    case.name.contains("mirror") || case.name.contains("spare") || case.name.contains("replacing")
}

#[test]
fn impossible_addresses_and_stale_copies_do_not_come() {
    let case = case("mirror of 2", VdevKind::Mirror, leaf_specs(2), 12, 1);
    let tree = case.tree();
    let block = |i: u64| {
        let data = Buf::copy_of(&[i as u8 + 1; 8192]);
        TestBlock { offset: i << 13, birth: Txg(5), data }
    };
    let mut blocks: Vec<TestBlock> = (0..9).map(block).collect();
    assert!(write_all(&tree, &blocks).iter().all(|r| r.result.is_ok()));
    blocks[3].offset = u64::MAX - 4095;
    blocks[5].offset = 777;
    let mut expected = vec![true; 9];
    (expected[3], expected[5]) = (false, false);
    assert_eq!(together(&tree, &blocks, "mirror"), expected);
    // Both leaves missed the txg by the log: only the ordinary read looks there.
    for leaf in 0..2 {
        tree.add_missing_range(Guid(LEAF + leaf), Txg(5), Txg(5));
    }
    assert_eq!(together(&tree, &blocks, "mirror"), [false; 9]);
    assert!(tree.read(&requests(&blocks)[0], &|bytes| *bytes == *blocks[0].data).is_ok());
}

/// Blocks of 8 KiB one after the other, as a file of such records has them.
fn run_of(tree: &Tree, count: u64, step: u64) -> Vec<TestBlock> {
    let asize = tree.asize(TOP, Psize(8192), Txg(5)).unwrap().0;
    let block = |i: u64| {
        let data = Buf::copy_of(&[i as u8 + 1; 8192]);
        TestBlock { offset: i * step * asize, birth: Txg(5), data }
    };
    (0..count).map(block).collect()
}

/// The operations that a run of 64 blocks costs.
fn cost(case: &VdevCase, step: u64) -> u64 {
    let tree: Arc<Tree> = case.tree();
    let blocks = run_of(&tree, 64, step);
    assert!(write_all(&tree, &blocks).iter().all(|r| r.result.is_ok()));
    let before = read_ops(case);
    assert!(together(&tree, &blocks, &case.name).iter().all(|came| *came));
    read_ops(case) - before
}

#[test]
fn neighbours_cost_one_operation_a_leaf() {
    for ashift in [9, 12] {
        let mirror = case("mirror of 3", VdevKind::Mirror, leaf_specs(3), ashift, 2);
        assert_eq!(cost(&mirror, 1), 1, "from one child");
        // Every other block: gaps are as large as blocks. Every fourth: larger.
        assert_eq!(cost(&mirror, 2), 1);
        assert_eq!(cost(&mirror, 4), 64);
        // Parity columns and skip sectors are read through.
        for (nparity, width) in [(1, 3), (1, 5), (2, 6)] {
            let ops = cost(&raidz(nparity, width, ashift), 1);
            assert!(ops <= 2 * width as u64, "raidz{nparity} of {width}, {ashift}: {ops}");
        }
        let params = DraidParams { ndata: 2, nparity: 1, nspares: 0, ngroups: 1, failure_group: 0 };
        let draid = case("draid1", VdevKind::Draid(params), leaf_specs(3), ashift, 1);
        let ops = cost(&draid, 1);
        assert!(ops <= 6, "draid1, {ashift}: {ops}");
    }
}

#[test]
fn the_limit_of_an_operation_is_kept_and_the_class_is_that_of_read_ahead() {
    let case = case("mirror of 2", VdevKind::Mirror, leaf_specs(2), 12, 1);
    let tree = case.tree();
    let blocks = run_of(&tree, 64, 1);
    assert!(write_all(&tree, &blocks).iter().all(|r| r.result.is_ok()));
    let limits = QueueLimits { aggregation_limit: 64 << 10, ..QueueLimits::default() };
    tree.set_queue_limits(limits);
    let before = read_ops(&case);
    assert!(together(&tree, &blocks, "mirror").iter().all(|came| *came));
    assert_eq!(read_ops(&case) - before, 8);
    let ahead = |leaf: u64| {
        let (id, _) = tree.leaves().find(|(_, l)| l.guid() == Guid(LEAF + leaf)).unwrap();
        tree.io(id).by_class[IoClass::AsyncRead as usize].ops
    };
    assert_eq!(ahead(0) + ahead(1), 8);
}
