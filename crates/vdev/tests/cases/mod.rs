//! Every kind of vdev under test, with blocks to write to it.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "helpers of tests")]

use std::sync::Arc;

use base::rt::{self, Condvar, Mutex};
use base::{Buf, Guid, Psize, Result, Txg, VdevId};
use device::{Device, FaultDevice, MemDevice};
use vdev::{
    Aux, DraidParams, ReadReq, Spec, State, Tree, VdevKind, Verdict, WritePriority, WriteReport,
    WriteReq,
};

pub(crate) const TOP: VdevId = VdevId(0);
/// Guids of the leaves start here.
pub(crate) const LEAF: u64 = 100;

pub(crate) struct TestLeaf {
    pub(crate) mem: Arc<MemDevice>,
    pub(crate) fault: Arc<FaultDevice>,
}

/// One kind of vdev under test.
pub(crate) struct VdevCase {
    pub(crate) name: String,
    pub(crate) spec: Spec,
    pub(crate) leaves: Vec<TestLeaf>,
    /// Number of leaves that may be lost together, whichever they are.
    pub(crate) tolerated: usize,
    /// First leaf that is part of each block's redundancy (not a spare).
    pub(crate) first: u64,
    /// The births of the blocks.
    pub(crate) births: Vec<u64>,
}

pub(crate) fn leaf_spec(index: usize, id: usize) -> Spec {
    Spec::new(VdevKind::File, id as u64, Guid(LEAF + index as u64))
}

pub(crate) fn leaf_specs(count: usize) -> Vec<Spec> {
    (0..count).map(|i| leaf_spec(i, i)).collect()
}

pub(crate) fn case(
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

pub(crate) fn raidz(nparity: u8, width: usize, ashift: u32) -> VdevCase {
    let kind = VdevKind::Raidz { nparity, expand_txgs: vec![], reflow: None };
    case(&format!("raidz{nparity} of {width}"), kind, leaf_specs(width), ashift, nparity.into())
}

pub(crate) fn draid_params() -> DraidParams {
    DraidParams { ndata: 3, nparity: 2, nspares: 2, ngroups: 1, failure_group: 0 }
}

/// A dRAID whose first child is gone, with distributed spares standing in.
pub(crate) fn draid_with_spare() -> VdevCase {
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

pub(crate) fn cases() -> Vec<VdevCase> {
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
    pub(crate) fn tree(&self) -> Arc<Tree> {
        Tree::build(&self.spec, &|leaf| -> Result<Arc<dyn Device>> {
            let index = (leaf.guid.0 - LEAF) as usize;
            Ok(self.leaves[index].fault.clone())
        })
        .unwrap()
    }

    /// The tree without some leaves.
    pub(crate) fn without(&self, tree: &Tree, lost: &[usize]) -> Arc<Tree> {
        let verdict = |&i: &usize| Verdict {
            guid: Guid(LEAF + i as u64),
            state: State::Unavail,
            aux: Aux::OpenFailed("gone".to_owned()),
        };
        let _ = self;
        tree.with_verdicts(&lost.iter().map(verdict).collect::<Vec<_>>())
    }

    /// All sets of as many leaves as may be lost.
    pub(crate) fn losses(&self) -> Vec<Vec<usize>> {
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
pub(crate) struct TestRng(pub u64);

impl TestRng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

#[derive(Clone)]
pub(crate) struct TestBlock {
    pub(crate) offset: u64,
    pub(crate) birth: Txg,
    pub(crate) data: Buf,
}

/// Blocks that do not overlap, some next to each other, spread over the vdev.
pub(crate) fn blocks(tree: &Tree, case: &VdevCase, rng: &mut TestRng) -> Vec<TestBlock> {
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
pub(crate) struct Reports {
    got: Mutex<Vec<(usize, WriteReport)>>,
    more: Condvar,
}

impl Reports {
    pub(crate) fn wait(&self, count: usize) -> Vec<(usize, WriteReport)> {
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
pub(crate) fn write_all(tree: &Arc<Tree>, blocks: &[TestBlock]) -> Vec<WriteReport> {
    let reports = Arc::new(Reports::default());
    rt::fan_out(3, |thread| {
        let mine: Vec<usize> = (thread..blocks.len()).step_by(3).collect();
        for batch in mine.chunks(1 + 4 * thread) {
            tree.write_all(batch.iter().map(|&i| request(&blocks[i], i, &reports)).collect());
        }
    });
    reports.wait(blocks.len()).into_iter().map(|r| r.1).collect()
}

pub(crate) fn request(
    block: &TestBlock,
    i: usize,
    reports: &Arc<Reports>,
) -> (WriteReq, vdev::WriteCallback) {
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

pub(crate) fn check(tree: &Tree, block: &TestBlock, what: &str) {
    let psize = Psize(block.data.len() as u64);
    let req = ReadReq::new(TOP, block.offset, psize, block.birth);
    let got = tree.read(&req, &|bytes| *bytes == *block.data);
    assert!(got.is_ok_and(|got| got == block.data), "{what}: block at {:#x}", block.offset);
}
