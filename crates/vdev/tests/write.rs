//! Writes to every kind of vdev. The data is read back, also when as many leaves as
//! tolerated are lost or fail, and the reports list which leaf misses which txg.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod cases;

use std::sync::Arc;

use base::{Buf, Error, ErrorKind, Guid, Psize, Result, Txg, VdevId};
use device::{Device, Fault};
use vdev::{
    LABEL_START, QueueLimits, ReadReq, Reflow, Tree, TxgRanges, VdevKind, WritePriority,
    WriteReport, WriteReq,
};

use cases::{
    LEAF, Reports, TOP, TestBlock, TestRng, VdevCase, blocks, case, cases, check, leaf_specs,
    raidz, request, write_all,
};

#[test]
fn neighbours_that_come_together_are_one_operation() {
    let case = case("mirror of 2", VdevKind::Mirror, leaf_specs(2), 12, 1);
    let tree = case.tree();
    let block =
        |i: u64| TestBlock { offset: i << 13, data: Buf::copy_of(&[i as u8; 8192]), birth: Txg(5) };
    // With a gap behind the sixteenth.
    let blocks: Vec<TestBlock> = (0..16).chain(17..20).map(block).collect();
    let reports = Arc::new(Reports::default());
    tree.write_all(blocks.iter().enumerate().map(|(i, b)| request(b, i, &reports)).collect());
    assert!(reports.wait(blocks.len()).iter().all(|(_, r)| r.result.is_ok()));
    for leaf in &case.leaves {
        assert_eq!(leaf.mem.stats().snapshot().writes, 2);
    }
    blocks.iter().for_each(|block| check(&tree, block, "mirror"));
}

#[test]
fn written_data_is_read_back_with_any_leaves_lost() {
    let mut rng = TestRng(0x1234_5678_9abc_def1);
    for case in cases() {
        let tree = case.tree();
        let blocks = blocks(&tree, &case, &mut rng);
        assert!(blocks.len() > 30, "{}", case.name);
        for report in write_all(&tree, &blocks) {
            assert!(report.result.is_ok(), "{}: {report:?}", case.name);
            let broken = case.first > 0;
            assert!(broken || report.failed.is_empty(), "{}: {report:?}", case.name);
        }
        assert!(tree.flush(&[TOP]).iter().all(|(_, r)| r.is_ok()));
        for block in &blocks {
            // Every copy, parity column and padding.
            let psize = Psize(block.data.len() as u64);
            let req = ReadReq::new(TOP, block.offset, psize, block.birth);
            let outcome = tree.scrub(&req, &|bytes| *bytes == *block.data);
            assert!(outcome.data.is_ok(), "{}: {:?}", case.name, outcome.data);
            assert!(outcome.report.bad.is_empty(), "{}: {:?}", case.name, outcome.report);
        }
        for lost in case.losses() {
            let damaged = case.without(&tree, &lost);
            for block in &blocks {
                check(&damaged, block, &format!("{} without {lost:?}", case.name));
            }
        }
    }
}

/// Whether a piece of a block reaches the leaf, determined by what a write changes on
/// it.
fn reached(case: &VdevCase, tree: &Arc<Tree>, block: &TestBlock, leaf: usize) -> bool {
    let before = case.leaves[leaf].mem.stats().snapshot().writes;
    assert!(write_all(tree, std::slice::from_ref(block))[0].result.is_ok());
    case.leaves[leaf].mem.stats().snapshot().writes > before
}

#[test]
fn failing_and_absent_leaves_miss_the_txg_and_cost_nothing_else() {
    let mut rng = TestRng(0x9e37_79b9_7f4a_7c15);
    for case in cases() {
        let blocks = blocks(&case.tree(), &case, &mut rng);
        let lost = case.losses().remove(rng.below(case.leaves.len() as u64 - case.first) as usize);
        for absent in [false, true] {
            let what = format!(
                "{} with {lost:?} {}",
                case.name,
                if absent { "absent" } else { "failing" }
            );
            let whole = case.tree();
            let touched: Vec<Vec<Guid>> = blocks
                .iter()
                .map(|b| {
                    let hit = |i: &&usize| reached(&case, &whole, b, **i);
                    lost.iter().filter(hit).map(|&i| Guid(LEAF + i as u64)).collect()
                })
                .collect();
            let tree = if absent { case.without(&case.tree(), &lost) } else { case.tree() };
            if !absent {
                lost.iter()
                    .for_each(|&i| case.leaves[i].fault.inject(Fault::FailWrites(0..u64::MAX)));
            }
            let reports = write_all(&tree, &blocks);
            lost.iter().for_each(|&i| case.leaves[i].fault.heal());
            for ((block, report), touched) in blocks.iter().zip(&reports).zip(&touched) {
                assert!(report.result.is_ok(), "{what}: {report:?}");
                let mut failed = report.failed.clone();
                failed.retain(|g| {
                    lost.contains(&((g.0.saturating_sub(LEAF)) as usize)) && g.0 >= LEAF
                });
                failed.sort_unstable();
                assert_eq!(&failed, touched, "{what}: block at {:#x}", block.offset);
            }
            for &i in &lost {
                let guid = Guid(LEAF + i as u64);
                let node = tree.find(guid).unwrap();
                let births: Vec<(Txg, Txg)> = blocks
                    .iter()
                    .zip(&touched)
                    .filter(|(_, t)| t.contains(&guid))
                    .map(|(b, _)| (b.birth, b.birth))
                    .collect();
                let hits = births.len() as u64;
                assert_eq!(*node.dtl(), TxgRanges::new(births), "{what}: leaf {i}");
                let errors = node.errors().write;
                assert!(if absent { errors == 0 } else { errors >= hits }, "{what}: {errors}");
                assert_eq!(tree.failing().contains(&guid), errors >= 10);
            }
            let missing = tree.take_missing();
            for &i in &lost {
                let guid = Guid(LEAF + i as u64);
                let dtl = tree.find(guid).unwrap().dtl();
                let reported = missing.iter().find(|m| m.0 == guid).map(|m| &m.1);
                assert_eq!(reported.is_some(), !dtl.ranges().is_empty(), "{what}");
                assert!(reported.is_none_or(|t| *t == *dtl));
            }
            assert!(tree.take_missing().is_empty(), "reported once");
            blocks.iter().for_each(|b| check(&tree, b, &what));
        }
    }
}

#[test]
fn a_block_on_too_few_leaves_is_not_written() {
    for case in [raidz(1, 4, 12), case("mirror", VdevKind::Mirror, leaf_specs(2), 12, 1)] {
        let tree = case.tree();
        let data = Buf::copy_of(&[7; 16 << 10]);
        let block = TestBlock { offset: 0, birth: Txg(9), data };
        for leaf in case.leaves.iter().take(2) {
            leaf.fault.inject(Fault::FailWrites(0..u64::MAX));
        }
        let report = write_all(&tree, &[block]).remove(0);
        let error = report.result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{}", case.name);
        assert!(error.location().vdev.is_some() && error.location().dva.is_some());
        assert_eq!(report.failed, [Guid(LEAF), Guid(LEAF + 1)], "{}", case.name);
        // No leaf is open.
        let none = case.without(&tree, &(0..case.leaves.len()).collect::<Vec<_>>());
        let block = TestBlock { offset: 0, birth: Txg(9), data: Buf::copy_of(&[7; 512]) };
        assert_eq!(
            write_all(&none, &[block])[0].result.as_ref().unwrap_err().kind(),
            ErrorKind::Io
        );
    }
}

#[test]
fn impossible_writes_are_refused() {
    let kind = |kind: ErrorKind, report: &WriteReport| {
        assert_eq!(report.result.as_ref().unwrap_err().kind(), kind);
        assert!(report.failed.is_empty());
    };
    let case = raidz(1, 3, 12);
    let tree = case.tree();
    let block = |offset, len| TestBlock { offset, birth: Txg(1), data: Buf::zeros(len) };
    let end = tree.top(TOP).unwrap().asize();
    kind(ErrorKind::Corrupt, &write_all(&tree, &[block(end - 4096, 4096)])[0]);
    kind(ErrorKind::Corrupt, &write_all(&tree, &[block(u64::MAX - 4095, 4096)])[0]);
    kind(ErrorKind::Corrupt, &write_all(&tree, &[block(512, 4096)])[0]);
    kind(ErrorKind::Corrupt, &write_all(&tree, &[block(0, 0)])[0]);
    kind(ErrorKind::Corrupt, &write_all(&tree, &[block(0, (16 << 20) + 1)])[0]);
    let reflow = Some(Reflow { offset: 0, scratch_valid: true });
    let growing = VdevKind::Raidz { nparity: 1, expand_txgs: vec![], reflow };
    let tree = self::case("growing", growing, leaf_specs(4), 12, 1).tree();
    kind(ErrorKind::Unsupported, &write_all(&tree, &[block(0, 4096)])[0]);
    for gone in [VdevKind::Indirect, VdevKind::Hole] {
        let tree = self::case("gone", gone, vec![], 12, 0).tree();
        kind(ErrorKind::Invalid, &write_all(&tree, &[block(0, 4096)])[0]);
    }
}

#[test]
fn the_tail_of_the_last_sector_is_zero_and_neighbours_stay() {
    let case = case("file", VdevKind::Mirror, leaf_specs(1), 12, 0);
    case.leaves[0].mem.poke(LABEL_START, &[0xee; 3 * 4096]).unwrap();
    let tree = case.tree();
    let data = Buf::copy_of(&[5; 5000]).slice(1000..2001);
    let report = write_all(&tree, &[TestBlock { offset: 4096, birth: Txg(1), data }]).remove(0);
    assert!(report.result.is_ok());
    let bytes = case.leaves[0].mem.peek(LABEL_START, 3 * 4096).unwrap();
    let expected =
        [vec![0xee; 4096], vec![5; 1001], vec![0; 4096 - 1001], vec![0xee; 4096]].concat();
    assert!(bytes == expected);
}

#[test]
fn labels_and_flushes_answer_for_each_leaf() {
    let case = raidz(2, 4, 12);
    let tree = case.without(&case.tree(), &[3]);
    case.leaves[1].fault.inject(Fault::FailWrites(0..1 << 20));
    case.leaves[2].fault.inject(Fault::FailFlush);
    let guid = |i: u64| Guid(LEAF + i);
    let data = Buf::copy_of(&[3; 8192]);
    let places = [(0, 0), (1, 0), (1, 2 << 20), (2, 8192), (3, 0), (77, 0)];
    let writes = places.iter().map(|&(i, at)| (guid(i), at, data.clone())).collect();
    let results = tree.write_leaves(writes);
    let kinds: Vec<_> =
        results.iter().map(|(g, r)| (*g, r.as_ref().err().map(Error::kind))).collect();
    let (io, unknown) = (Some(ErrorKind::Io), Some(ErrorKind::NotFound));
    let expected = [(0, None), (1, io), (1, None), (2, None), (3, io), (77, unknown)]
        .map(|(i, k)| (guid(i), k));
    assert_eq!(kinds, expected);
    assert_eq!(case.leaves[0].mem.peek(0, 8192).unwrap(), [3; 8192]);
    assert!(tree.take_missing().is_empty(), "labels belong to no txg");
    let flushed: Vec<_> = tree.flush(&[TOP]).into_iter().map(|(g, r)| (g, r.is_ok())).collect();
    assert_eq!(flushed, [(guid(0), true), (guid(1), true), (guid(2), false)]);
    assert_eq!(tree.find(guid(2)).unwrap().errors().write, 1);
    assert!(tree.flush(&[VdevId(1)]).is_empty());
    assert!(tree.add_missing(guid(2), Txg(8)) && !tree.add_missing(guid(77), Txg(8)));
    assert_eq!(tree.take_missing(), [(guid(2), TxgRanges::new(vec![(Txg(8), Txg(8))]))]);
}

#[test]
fn snapshots_share_queues_and_limits() {
    let case = raidz(1, 3, 9);
    let tree = case.tree();
    let limits = QueueLimits { read_gap_limit: 3, ..QueueLimits::default() };
    tree.set_queue_limits(limits);
    let next = Tree::build_from(Some(&tree), &case.spec, &|leaf| -> Result<Arc<dyn Device>> {
        Ok(case.leaves[(leaf.guid.0 - LEAF) as usize].fault.clone())
    })
    .unwrap();
    assert_eq!(next.queue_limits(), limits);
    case.leaves[0].fault.inject(Fault::FailWrites(0..u64::MAX));
    let block = TestBlock { offset: 0, birth: Txg(4), data: Buf::copy_of(&[1; 4096]) };
    assert_eq!(write_all(&next, &[block])[0].failed, [Guid(LEAF)]);
    assert_eq!(tree.take_missing().len(), 1, "snapshots share the missing txgs");
}

/// Log blocks of every number of sectors at every column, one by one and several
/// together, as the intent log writes them. Each is completed, and no request stays in
/// a queue.
#[test]
fn synchronous_writes_end_on_every_kind_and_width() {
    let mut cases = cases();
    for (nparity, width) in (1..=3u8).flat_map(|p| (3..=9).map(move |w| (p, w))) {
        if width > usize::from(nparity) {
            cases.extend([9, 12].map(|ashift| raidz(nparity, width, ashift)));
        }
    }
    for case in cases {
        let tree = case.tree();
        let top = tree.top(TOP).unwrap();
        let (unit, width) = (tree.min_alloc(TOP).unwrap().0, top.children().len().max(1) as u64);
        let sector = 1u64 << top.ashift();
        let birth = Txg(case.births[0]);
        let (mut at, mut written) = (0, Vec::new());
        for sectors in 1..=2 * width + 1 {
            for start in 0..width.min(5) {
                let data =
                    Buf::copy_of(&vec![(sectors + start) as u8 | 1; (sectors * sector) as usize]);
                let asize = tree.asize(TOP, Psize(data.len() as u64), birth).unwrap().0;
                // Neighbours, then a hole, so that zeros are written or dropped.
                at = if start % 2 == 0 { at + (start + 1) * unit } else { at };
                if at + asize > top.asize() {
                    at = 0;
                }
                written.push(TestBlock { offset: at, birth, data });
                at += asize;
            }
        }
        for chunk in [1, 3] {
            for blocks in written.chunks(chunk) {
                let reports = Arc::new(Reports::default());
                let awaited = |(i, block): (usize, &TestBlock)| {
                    let (req, tell) = request(block, i, &reports);
                    (WriteReq { priority: WritePriority::Awaited, ..req }, tell)
                };
                tree.write_all(blocks.iter().enumerate().map(awaited).collect());
                for (_, report) in reports.wait(blocks.len()) {
                    assert!(report.result.is_ok(), "{}: {report:?}", case.name);
                }
            }
        }
        // The flush waits for the requests in the queues.
        assert!(tree.flush(&[TOP]).iter().all(|f| f.1.is_ok()), "{}", case.name);
        for block in written.iter().rev().take(5) {
            let req = ReadReq::new(TOP, block.offset, Psize(block.data.len() as u64), birth);
            let read = tree.read(&req, &|bytes| *bytes == *block.data);
            assert!(read.is_ok(), "{}", case.name);
        }
    }
}

impl VdevCase {
    /// Wipes a leaf except its labels.
    fn wipe(&self, leaf: usize) {
        let mem = &self.leaves[leaf].mem;
        let len = (mem.size() - LABEL_START - (512 << 10)) as usize;
        mem.poke(LABEL_START, &vec![0; len]).unwrap();
    }
}

/// The outcome of a speculative scrub, which counts no errors.
fn speculative_scrub(tree: &Tree, block: &TestBlock) -> vdev::ReadOutcome {
    let psize = Psize(block.data.len() as u64);
    let req = ReadReq::new(TOP, block.offset, psize, block.birth);
    tree.scrub(&ReadReq { speculative: true, ..req }, &|bytes| *bytes == *block.data)
}

#[test]
fn wrong_bytes_are_written_anew() {
    let mut rng = TestRng(0x0f0f_1234_5678_9abc);
    for case in cases() {
        let tree = case.tree();
        let blocks = blocks(&tree, &case, &mut rng);
        assert!(write_all(&tree, &blocks).iter().all(|r| r.result.is_ok()), "{}", case.name);
        for lost in case.losses().into_iter().step_by(7).take(2) {
            lost.iter().for_each(|&leaf| case.wipe(leaf));
            let mut pieces = 0;
            for block in &blocks {
                let outcome = speculative_scrub(&tree, block);
                assert!(outcome.data.is_ok(), "{}, {lost:?}", case.name);
                let healed = tree.heal(&outcome.report.bad, block.birth);
                assert_eq!(healed.failed, 0, "{}, {lost:?}", case.name);
                pieces += healed.pieces;
            }
            assert!(pieces > 0, "{}, {lost:?}", case.name);
            for block in &blocks {
                let outcome = speculative_scrub(&tree, block);
                assert!(outcome.report.bad.is_empty(), "{}: {:?}", case.name, outcome.report);
            }
        }
        // No leaf has the block any more, and another address has it.
        (case.first as usize..case.leaves.len()).for_each(|leaf| case.wipe(leaf));
        for block in &blocks {
            assert!(speculative_scrub(&tree, block).data.is_err(), "{}", case.name);
            let healed = tree.rewrite(TOP, block.offset, &block.data, block.birth).unwrap();
            assert!(healed.pieces > 0 && healed.failed == 0, "{}: {healed:?}", case.name);
            let outcome = speculative_scrub(&tree, block);
            assert!(outcome.data.is_ok_and(|data| data == block.data), "{}", case.name);
            assert!(outcome.report.bad.is_empty(), "{}: {:?}", case.name, outcome.report);
        }
        let counts = tree.leaves().map(|(_, n)| n.errors());
        assert!(counts.map(|e| e.read + e.write + e.cksum).sum::<u64>() == 0, "{}", case.name);
    }
}

#[test]
fn a_leaf_that_fails_or_is_out_of_date_is_not_healed() {
    let case = raidz(1, 4, 12);
    let tree = case.tree();
    let block = TestBlock { offset: 0, birth: Txg(7), data: Buf::copy_of(&[7; 3 * 4096]) };
    assert!(write_all(&tree, std::slice::from_ref(&block))[0].result.is_ok());
    case.wipe(2);
    let bad = speculative_scrub(&tree, &block).report.bad;
    let leaf = Guid(LEAF + 2);
    assert!(bad.len() == 1 && bad[0].guid == leaf, "{bad:?}");
    let node = || tree.find(leaf).unwrap();
    case.leaves[2].fault.inject(Fault::FailWrites(0..u64::MAX));
    let healed = tree.heal(&bad, block.birth);
    assert_eq!((healed.pieces, healed.failed, node().errors().write), (0, 1, 1));
    // A leaf that always fails is not healed.
    for _ in 0..30 {
        tree.heal(&bad, block.birth);
    }
    assert_eq!(node().errors().write, vdev::FAILING_WRITE_ERRORS);
    case.leaves[2].fault.heal();
    node().clear_errors();
    // Data that a leaf missed is left to a resilver.
    assert!(tree.add_missing(leaf, block.birth));
    assert_eq!(tree.heal(&bad, block.birth), vdev::Healed::default());
    assert!(node().dtl().contains(block.birth));
    assert_eq!(tree.heal(&bad, Txg(8)).pieces, 1, "it missed only another txg");
    assert!(node().dtl().contains(block.birth), "healing does not change the missing txgs");
    assert_eq!(node().healed(), 4096);
}
