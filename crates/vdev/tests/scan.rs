//! Scans of every kind of vdev: leaves that missed txgs, were wiped, fail or go away are
//! repaired, and what they miss afterwards is what could not be written.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use base::{Guid, Psize, Txg};
use device::Device;
use device::Fault;
use vdev::{BadCopy, BadKind, LABEL_START, ReadReq, Tree, TxgRanges};

mod cases;

use cases::{LEAF, TOP, TestBlock, TestRng, VdevCase, blocks, case, cases, check, write_all};

fn guid(leaf: usize) -> Guid {
    Guid(LEAF + leaf as u64)
}

/// Fills the data area of a leaf with bytes that are nobody's.
fn spoil(case: &VdevCase, leaf: usize) {
    let mem = &case.leaves[leaf].mem;
    let len = (device::Device::size(&**mem) - LABEL_START - (512 << 10)) as usize;
    mem.poke(LABEL_START, &vec![0xa5; len]).unwrap();
}

/// Scans blocks in batches; returns the bad copies with their births.
fn scan(tree: &Tree, blocks: &[TestBlock], what: &str) -> Vec<(BadCopy, Txg)> {
    let mut all = Vec::new();
    for batch in blocks.chunks(17) {
        let reqs: Vec<ReadReq> = batch
            .iter()
            .map(|b| ReadReq::new(TOP, b.offset, Psize(b.data.len() as u64), b.birth))
            .collect();
        let outcomes = tree.scan(&reqs, &|i, bytes| *bytes == *batch[i].data);
        for (outcome, block) in outcomes.into_iter().zip(batch) {
            assert!(outcome.data.is_ok_and(|d| d == block.data), "{what}: {:#x}", block.offset);
            all.extend(outcome.report.bad.into_iter().map(|bad| (bad, block.birth)));
        }
    }
    all
}

fn read_ops(case: &VdevCase, leaf: usize) -> u64 {
    case.leaves[leaf].mem.stats().snapshot().reads
}

/// Whether some block has bytes on a leaf.
fn has_blocks(case: &VdevCase, leaf: usize) -> bool {
    case.leaves[leaf].mem.stats().snapshot().writes > 0
}

/// Leaves of which copies are reported.
fn leaves_of(bad: &[(BadCopy, Txg)]) -> Vec<Guid> {
    let mut leaves: Vec<Guid> = bad.iter().map(|(copy, _)| copy.guid).collect();
    leaves.sort_unstable();
    leaves.dedup();
    leaves
}

#[test]
fn what_a_leaf_missed_is_written_to_it_unread() {
    let mut rng = TestRng(0x51ca_90ff_0123_4567);
    for case in cases() {
        let what = &case.name;
        let tree = case.tree();
        let blocks = blocks(&tree, &case, &mut rng);
        assert!(write_all(&tree, &blocks).iter().all(|r| r.result.is_ok()), "{what}");
        tree.take_missing();
        for behind in case.losses() {
            for &leaf in &behind {
                spoil(&case, leaf);
                assert!(tree.add_missing_range(guid(leaf), Txg(4), Txg(1000)));
            }
            let whole = tree.partial(TOP).unwrap();
            assert!(whole.contains(Txg(1000)) && !whole.contains(Txg(1001)), "{what}");
            assert_eq!(tree.resilver_range(), Some((Txg(3), Txg(1000))), "{what}");
            let leaves = tree.begin_scan();
            let before: Vec<u64> = behind.iter().map(|&l| read_ops(&case, l)).collect();
            let bad = scan(&tree, &blocks, what);
            assert!(bad.iter().all(|(copy, _)| copy.kind == BadKind::Stale), "{what}");
            let after: Vec<u64> = behind.iter().map(|&l| read_ops(&case, l)).collect();
            assert_eq!(before, after, "{what}: stale bytes were read");
            let done = tree.repair(&bad);
            assert_eq!(done.failed, 0, "{what}");
            let excised = tree.excise(&leaves, Txg(1000));
            assert_eq!(excised.len(), behind.len(), "{what}");
            assert_eq!(tree.take_missing().len(), behind.len(), "{what}: to be stored");
            // The leaves now serve as well as any other.
            assert!(scan(&tree, &blocks, what).is_empty(), "{what}");
            for lost in case.losses() {
                let damaged = case.without(&tree, &lost);
                blocks.iter().for_each(|block| check(&damaged, block, what));
            }
        }
    }
}

#[test]
fn wrong_bytes_of_any_leaves_are_found_and_repaired() {
    let mut rng = TestRng(0x7777_1111_abcd_ef01);
    for case in cases() {
        let what = &case.name;
        let tree = case.tree();
        let blocks = blocks(&tree, &case, &mut rng);
        assert!(write_all(&tree, &blocks).iter().all(|r| r.result.is_ok()), "{what}");
        for wrong in case.losses() {
            wrong.iter().for_each(|&leaf| spoil(&case, leaf));
            let bad = scan(&tree, &blocks, what);
            assert!(bad.iter().all(|(copy, _)| copy.kind == BadKind::Checksum), "{what}");
            // The blocks leave some leaves of a dRAID to the distributed spares.
            let used = wrong.iter().filter(|&&leaf| has_blocks(&case, leaf));
            let expected: Vec<Guid> = used.map(|&l| guid(l)).collect();
            assert_eq!(leaves_of(&bad), expected, "{what}");
            let done = tree.repair(&bad);
            assert_eq!((done.failed, done.bytes.len()), (0, expected.len()), "{what}");
            assert!(scan(&tree, &blocks, what).is_empty(), "{what}");
        }
    }
}

#[test]
fn a_repair_that_fails_stays_missing() {
    let mut rng = TestRng(0x0bad_cafe_1357_9bdf);
    for case in cases() {
        let what = &case.name;
        let tree = case.tree();
        let blocks = blocks(&tree, &case, &mut rng);
        assert!(write_all(&tree, &blocks).iter().all(|r| r.result.is_ok()), "{what}");
        let leaf = case.first as usize;
        tree.add_missing_range(guid(leaf), Txg(1), Txg(100));
        let leaves = tree.begin_scan();
        let bad = scan(&tree, &blocks, what);
        let births: Vec<(Txg, Txg)> = bad.iter().map(|&(_, birth)| (birth, birth)).collect();
        assert!(!bad.is_empty(), "{what}");
        case.leaves[leaf].fault.inject(Fault::FailWrites(0..u64::MAX));
        let done = tree.repair(&bad);
        case.leaves[leaf].fault.heal();
        assert_eq!((done.failed as usize, done.total()), (bad.len(), 0), "{what}");
        tree.excise(&leaves, Txg(100));
        let left = tree.find(guid(leaf)).unwrap().dtl();
        assert_eq!(*left, TxgRanges::new(births), "{what}");
        // The next scan completes it.
        tree.find(guid(leaf)).unwrap().clear_errors();
        let leaves = tree.begin_scan();
        let bad = scan(&tree, &blocks, what);
        assert_eq!(tree.repair(&bad).failed, 0, "{what}");
        tree.excise(&leaves, Txg(100));
        assert!(tree.find(guid(leaf)).unwrap().dtl().is_empty(), "{what}");
    }
}

#[test]
fn a_leaf_that_was_away_during_a_scan_keeps_what_it_misses() {
    for case in cases() {
        let what = &case.name;
        let tree = case.tree();
        let leaf = case.first as usize;
        tree.add_missing_range(guid(leaf), Txg(7), Txg(9));
        let leaves = tree.begin_scan();
        // It goes, and is back before the scan ends.
        drop(case.without(&tree, &[leaf]));
        assert!(tree.excise(&leaves, Txg(9)).is_empty(), "{what}");
        assert!(tree.find(guid(leaf)).unwrap().dtl().contains(Txg(8)), "{what}");
        let leaves = tree.begin_scan();
        assert_eq!(tree.excise(&leaves, Txg(8)), [guid(leaf)], "{what}");
        let left = tree.find(guid(leaf)).unwrap().dtl();
        assert_eq!(left.ranges(), [(Txg(9), Txg(9))], "{what}: the scan did not reach txg 9");
    }
}

#[test]
fn stale_bytes_are_the_last_resort() {
    // A leaf missed a txg by the log, but has the block after all; all other copies are gone.
    let case = case("mirror of 2", vdev::VdevKind::Mirror, cases::leaf_specs(2), 12, 1);
    let tree = case.tree();
    let data = base::Buf::copy_of(&[3; 8192]);
    let block = TestBlock { offset: 0, birth: Txg(5), data };
    assert!(write_all(&tree, std::slice::from_ref(&block))[0].result.is_ok());
    tree.add_missing_range(guid(0), Txg(5), Txg(5));
    spoil(&case, 1);
    let bad = scan(&tree, std::slice::from_ref(&block), "mirror");
    assert_eq!(leaves_of(&bad), [guid(1)]);
    assert_eq!(tree.repair(&bad).total(), 8192);
}

#[test]
fn neighbours_are_read_together() {
    let case = case("mirror of 2", vdev::VdevKind::Mirror, cases::leaf_specs(2), 12, 1);
    let tree: Arc<Tree> = case.tree();
    let block = |i: u64| TestBlock {
        offset: i << 13,
        data: base::Buf::copy_of(&[i as u8; 8192]),
        birth: Txg(5),
    };
    let blocks: Vec<TestBlock> = (0..16).map(block).collect();
    assert!(write_all(&tree, &blocks).iter().all(|r| r.result.is_ok()));
    let before = [read_ops(&case, 0), read_ops(&case, 1)];
    assert!(scan(&tree, &blocks, "mirror").is_empty());
    for (leaf, before) in before.into_iter().enumerate() {
        assert_eq!(read_ops(&case, leaf) - before, 1, "leaf {leaf}");
    }
}
