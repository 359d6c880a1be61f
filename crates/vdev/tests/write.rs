//! Writes to every kind of vdev. The data is read back, also when as many leaves as
//! tolerated are lost or fail, and the reports list which leaf misses which txg.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use base::rt::{self, Condvar, Mutex};
use base::{Buf, Error, ErrorKind, Guid, Psize, Result, Txg, VdevId};
use device::{Device, Fault, FaultDevice, MemDevice};
use vdev::{
    Aux, DraidParams, LABEL_START, QueueLimits, ReadReq, Reflow, Spec, State, Tree, TxgRanges,
    VdevKind, Verdict, WritePriority, WriteReport, WriteReq,
};

const TOP: VdevId = VdevId(0);
/// Guids of the leaves start here.
const LEAF: u64 = 100;

struct TestLeaf {
    mem: Arc<MemDevice>,
    fault: Arc<FaultDevice>,
}

/// One kind of vdev under test.
struct VdevCase {
    name: String,
    spec: Spec,
    leaves: Vec<TestLeaf>,
    /// Number of leaves that may be lost together, whichever they are.
    tolerated: usize,
    /// First leaf that is part of each block's redundancy (not a spare).
    first: u64,
    /// The births of the blocks.
    births: Vec<u64>,
}

fn leaf_spec(index: usize, id: usize) -> Spec {
    Spec::new(VdevKind::File, id as u64, Guid(LEAF + index as u64))
}

fn leaf_specs(count: usize) -> Vec<Spec> {
    (0..count).map(|i| leaf_spec(i, i)).collect()
}

fn case(
    name: &str,
    kind: VdevKind,
    children: Vec<Spec>,
    ashift: u32,
    tolerated: usize,
) -> VdevCase {
    fn count(spec: &Spec) -> usize {
        let own = usize::from(spec.kind.is_device());
        own + spec.children.iter().map(count).sum::<usize>()
    }
    let (asize, size) = match &kind {
        // Two groups: their border is between the rows.
        VdevKind::Draid(p) => {
            (u64::from(p.ndata + p.nparity) << 25, (4 << 20) + (96 << 20) + (1 << 20))
        }
        VdevKind::Raidz { .. } => ((children.len() as u64) << 22, 9 << 20),
        _ => (4 << 20, 9 << 20),
    };
    let top = Spec::new(kind, 0, Guid(10)).with_children(children).with_space(ashift, asize);
    let leaf = |i| {
        let mem = Arc::new(MemDevice::new(format!("leaf {i}"), size));
        TestLeaf { fault: Arc::new(FaultDevice::new(mem.clone())), mem }
    };
    let leaves = (0..count(&top)).map(leaf).collect();
    let spec = Spec::new(VdevKind::Root, 0, Guid(1)).with_children(vec![top]);
    let name = format!("{name}, ashift {ashift}");
    VdevCase { name, spec, leaves, tolerated, first: 0, births: vec![5] }
}

fn raidz(nparity: u8, width: usize, ashift: u32) -> VdevCase {
    let kind = VdevKind::Raidz { nparity, expand_txgs: vec![], reflow: None };
    case(&format!("raidz{nparity} of {width}"), kind, leaf_specs(width), ashift, nparity.into())
}

fn draid_params() -> DraidParams {
    DraidParams { ndata: 3, nparity: 2, nspares: 2, ngroups: 1, failure_group: 0 }
}

/// A dRAID whose first child is gone, with distributed spares standing in.
fn draid_with_spare() -> VdevCase {
    let mut children = leaf_specs(7);
    let gone = children.remove(0);
    let kind = VdevKind::DraidSpare { draid: Guid(10), spare_id: 1 };
    let pair = vec![gone, Spec::new(kind, 1, Guid(51))];
    children.insert(0, Spec::new(VdevKind::Spare, 0, Guid(50)).with_children(pair));
    let mut case =
        case("draid2 with a spare in use", VdevKind::Draid(draid_params()), children, 12, 2);
    case.spec.children[0].children[0].children[0].persistent.offline = true;
    // The spare's bytes lie on another child, so losing that child costs two columns of
    // a block.
    case.tolerated = 1;
    case.first = 1;
    case
}

fn cases() -> Vec<VdevCase> {
    let mut cases = Vec::new();
    for ashift in [9, 12] {
        cases.push(case("mirror of 2", VdevKind::Mirror, leaf_specs(2), ashift, 1));
        cases.push(case("mirror of 3", VdevKind::Mirror, leaf_specs(3), ashift, 2));
        for (nparity, widths) in [(1, [2, 3, 5, 9]), (2, [3, 4, 6, 9]), (3, [4, 5, 7, 11])] {
            cases.extend(widths.into_iter().map(|width| raidz(nparity, width, ashift)));
        }
        let kind =
            VdevKind::Raidz { nparity: 1, expand_txgs: vec![Txg(10), Txg(20)], reflow: None };
        let mut expanded = case("raidz1 expanded from 3 to 5", kind, leaf_specs(5), ashift, 1);
        expanded.births = vec![5, 15, 25];
        cases.push(expanded);
        cases.push(case("draid2", VdevKind::Draid(draid_params()), leaf_specs(7), ashift, 2));
        for kind in [VdevKind::Replacing, VdevKind::Spare] {
            let pair = vec![leaf_spec(1, 0), leaf_spec(2, 1)];
            let name = format!("mirror with a {}", kind.name());
            let inner = Spec::new(kind.clone(), 1, Guid(50)).with_children(pair.clone());
            let children = vec![leaf_spec(0, 0), inner.clone()];
            cases.push(case(&name, VdevKind::Mirror, children, ashift, 2));
            let name = format!("raidz1 with a {}", kind.name());
            let kind = VdevKind::Raidz { nparity: 1, expand_txgs: vec![], reflow: None };
            let children = vec![leaf_spec(0, 0), inner, leaf_spec(3, 2), leaf_spec(4, 3)];
            cases.push(case(&name, kind, children, ashift, 1));
        }
    }
    cases.push(draid_with_spare());
    cases
}

impl VdevCase {
    fn tree(&self) -> Arc<Tree> {
        Tree::build(&self.spec, &|leaf| -> Result<Arc<dyn Device>> {
            let index = (leaf.guid.0 - LEAF) as usize;
            Ok(self.leaves[index].fault.clone())
        })
        .unwrap()
    }

    /// The tree without some leaves.
    fn without(&self, tree: &Tree, lost: &[usize]) -> Arc<Tree> {
        let verdict = |&i: &usize| Verdict {
            guid: Guid(LEAF + i as u64),
            state: State::Unavail,
            aux: Aux::OpenFailed("gone".to_owned()),
        };
        let _ = self;
        tree.with_verdicts(&lost.iter().map(verdict).collect::<Vec<_>>())
    }

    /// All sets of as many leaves as may be lost.
    fn losses(&self) -> Vec<Vec<usize>> {
        let (n, first) = (self.leaves.len(), self.first as usize);
        let all = first..n;
        (0..3)
            .flat_map(|stride| all.clone().map(move |i| (i, stride + 1)))
            .map(|(i, stride)| {
                let mut set: Vec<usize> = (0..self.tolerated)
                    .map(|k| first + (i - first + k * stride) % (n - first))
                    .collect();
                set.sort_unstable();
                set.dedup();
                set
            })
            .collect()
    }
}

/// A small pseudo-random generator.
struct TestRng(u64);

impl TestRng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

#[derive(Clone)]
struct TestBlock {
    offset: u64,
    birth: Txg,
    data: Buf,
}

/// Blocks that do not overlap, some next to each other, spread over the vdev.
fn blocks(tree: &Tree, case: &VdevCase, rng: &mut TestRng) -> Vec<TestBlock> {
    let top = tree.top(TOP).unwrap();
    let unit = tree.min_alloc(TOP).unwrap().0;
    let is_draid = matches!(top.kind(), VdevKind::Draid(_));
    let mut out = Vec::new();
    let mut at = if is_draid { (top.asize() / 2 / unit - 20) * unit } else { 0 };
    loop {
        let gap = if rng.below(3) == 0 { rng.below(40) } else { 0 };
        // One of the blocks is around the address bit that swaps the first columns of
        // raidz1.
        at += gap * unit;
        let psize = [1 + rng.below(2_000), 1 + rng.below(60_000), 4096][rng.below(3) as usize];
        let birth = Txg(case.births[rng.below(case.births.len() as u64) as usize]);
        let asize = tree.asize(TOP, Psize(psize), birth).unwrap().0;
        if at + asize > top.asize() || out.len() > 120 {
            return out;
        }
        let data: Vec<u8> = (0..psize).map(|_| rng.next() as u8).collect();
        out.push(TestBlock { offset: at, birth, data: Buf::copy_of(&data) });
        at += asize;
    }
}

/// Collects reports until all have arrived.
#[derive(Default)]
struct Reports {
    got: Mutex<Vec<(usize, WriteReport)>>,
    more: Condvar,
}

impl Reports {
    fn wait(&self, count: usize) -> Vec<(usize, WriteReport)> {
        let mut got = self.got.lock();
        while got.len() < count {
            self.more.wait(&mut got);
        }
        let mut got = std::mem::take(&mut *got);
        got.sort_by_key(|r| r.0);
        got
    }
}

/// Writes blocks from several threads, one by one and several at a time, and waits for
/// all; returns the reports in the order of the blocks.
fn write_all(tree: &Arc<Tree>, blocks: &[TestBlock]) -> Vec<WriteReport> {
    let reports = Arc::new(Reports::default());
    rt::fan_out(3, |thread| {
        let mine: Vec<usize> = (thread..blocks.len()).step_by(3).collect();
        for batch in mine.chunks(1 + 4 * thread) {
            tree.write_all(batch.iter().map(|&i| request(&blocks[i], i, &reports)).collect());
        }
    });
    reports.wait(blocks.len()).into_iter().map(|r| r.1).collect()
}

fn request(block: &TestBlock, i: usize, reports: &Arc<Reports>) -> (WriteReq, vdev::WriteCallback) {
    let reports = Arc::clone(reports);
    let req = WriteReq {
        vdev: TOP,
        offset: block.offset,
        data: block.data.clone(),
        birth: block.birth,
        priority: WritePriority::AsyncWrite,
    };
    let tell = move |report| {
        reports.got.lock().push((i, report));
        reports.more.notify_all();
    };
    (req, vdev::WriteCallback::new(tell))
}

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

fn check(tree: &Tree, block: &TestBlock, what: &str) {
    let psize = Psize(block.data.len() as u64);
    let req = ReadReq::new(TOP, block.offset, psize, block.birth);
    let got = tree.read(&req, &|bytes| *bytes == *block.data);
    assert!(got.is_ok_and(|got| got == block.data), "{what}: block at {:#x}", block.offset);
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
    let reflow = Some(Reflow { offset: 0, scratch_valid: false });
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
