//! Compares reads with a naive model. Blocks are laid out sector by sector as the chapter's row
//! map says, leaves are damaged, and the result of the read is compared.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use base::{Asize, Buf, Error, ErrorKind, Guid, Psize, Result, Txg, VdevId};
use device::{Device, Fault, FaultDevice, Io, MemDevice};
use proptest::prelude::*;
use vdev::{
    Aux, BadKind, DraidParams, IndirectEntry, IndirectMap, LABEL_START, Persistent, ReadReq,
    Reflow, Spec, State, Tree, TxgRanges, VdevKind, Verdict,
};

const TOP: VdevId = VdevId(0);

/// A leaf under test.
struct TestLeaf {
    mem: Arc<MemDevice>,
    fault: Arc<FaultDevice>,
}

fn leaves(count: usize, size: usize) -> Vec<TestLeaf> {
    let leaf = |i| {
        let mem = Arc::new(MemDevice::new(format!("leaf {i}"), size));
        let fault = Arc::new(FaultDevice::new(mem.clone()));
        TestLeaf { mem, fault }
    };
    (0..count).map(leaf).collect()
}

fn leaf_spec(index: usize) -> Spec {
    Spec::new(VdevKind::File, index as u64, Guid(100 + index as u64))
}

/// A root with one top-level vdev over `count` leaves.
fn pool(kind: VdevKind, count: usize, ashift: u32, asize: u64) -> Spec {
    let top = Spec::new(kind, 0, Guid(10))
        .with_children((0..count).map(leaf_spec).collect())
        .with_space(ashift, asize);
    Spec::new(VdevKind::Root, 0, Guid(1)).with_children(vec![top])
}

fn build(spec: &Spec, leaves: &[TestLeaf]) -> Arc<Tree> {
    Tree::build(spec, &|leaf| -> Result<Arc<dyn Device>> {
        let index = leaf.guid.0.checked_sub(100).map(|i| i as usize);
        match index.and_then(|i| leaves.get(i)) {
            Some(leaf) => Ok(leaf.fault.clone()),
            None => Err(Error::not_found("no such leaf")),
        }
    })
    .unwrap()
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

fn read(tree: &Tree, req: &ReadReq, expected: &[u8]) -> Result<Buf> {
    let right = hash(expected);
    tree.read(req, &|bytes| hash(bytes) == right)
}

fn mul2(x: u8) -> u8 {
    (x << 1) ^ if x & 0x80 != 0 { 0x1d } else { 0 }
}

/// P, Q, R of one row of sectors (chapter 02 §10.4).
fn parity_of(row: usize, data: &[Vec<u8>], sector: usize) -> Vec<u8> {
    let mut out = vec![0; sector];
    for column in data {
        for (x, d) in out.iter_mut().zip(column) {
            for _ in 0..row {
                *x = mul2(*x);
            }
            *x ^= d;
        }
    }
    out
}

/// One sector of one leaf: (child, device byte, bytes).
type Sector = (usize, u64, Vec<u8>);

/// A raidz block, sector by sector: each row of `logical` cells lies in linear sector order.
/// `place` returns the child and the device offset of a linear sector, given the sector at which
/// its row ends.
fn raidz_sectors(
    ashift: u32,
    nparity: usize,
    logical: usize,
    offset: u64,
    data: &[u8],
    place: &dyn Fn(u64, u64) -> (usize, u64),
) -> Vec<Sector> {
    let sector = 1usize << ashift;
    let mut padded = data.to_vec();
    padded.resize(data.len().next_multiple_of(sector), 0);
    let blocks: Vec<&[u8]> = padded.chunks(sector).collect();
    let width = logical - nparity;
    let rows = blocks.len().div_ceil(width);
    // Column heights: as even as possible, the taller ones first.
    let height = |c: usize| (blocks.len() + width - 1 - c) / width;
    let starts: Vec<usize> = (0..width).map(|c| (0..c).map(height).sum()).collect();
    let used = if rows == 1 { blocks.len() } else { width };
    let mut out = Vec::new();
    for row in 0..rows {
        let cell = |c: usize| {
            if row < height(c) { blocks[starts[c] + row].to_vec() } else { vec![0; sector] }
        };
        let cells: Vec<Vec<u8>> = (0..used).map(cell).collect();
        let first = (offset >> ashift) + (row * logical) as u64;
        let end = first + (nparity + used) as u64;
        let mut places: Vec<(usize, u64)> =
            (0..nparity + used).map(|c| place(first + c as u64, end)).collect();
        if nparity == 1 && offset & (1 << 20) != 0 {
            places.swap(0, 1);
        }
        for (j, &(child, at)) in places.iter().enumerate().take(nparity) {
            out.push((child, at, parity_of(j, &cells, sector)));
        }
        for (c, bytes) in cells.into_iter().enumerate().filter(|(c, _)| row < height(*c)) {
            let (child, at) = places[nparity + c];
            out.push((child, at, bytes));
        }
    }
    out
}

fn write(leaves: &[TestLeaf], sectors: &[Sector]) {
    for (child, at, bytes) in sectors {
        leaves[*child].mem.poke(*at, bytes).unwrap();
    }
}

/// Damage of a leaf.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// All its bytes flip bits.
    Flip,
    /// All its bytes read as zero.
    Zero,
    /// Reads fail.
    Fail,
    /// It cannot be opened.
    Drop,
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![Just(Damage::Flip), Just(Damage::Zero), Just(Damage::Fail), Just(Damage::Drop)]
}

fn inject(leaf: &TestLeaf, damage: Damage) {
    leaf.fault.inject(match damage {
        Damage::Flip => Fault::Flip(0..u64::MAX, 0x5a),
        Damage::Zero => Fault::Zero(0..u64::MAX),
        Damage::Fail => Fault::FailReads(0..u64::MAX),
        Damage::Drop => return,
    });
}

/// Builds a tree in which the leaves with `Damage::Drop` are missing.
fn build_damaged(spec: &Spec, leaves: &[TestLeaf], harm: &[(usize, Damage)]) -> Arc<Tree> {
    harm.iter().for_each(|(i, d)| inject(&leaves[*i], *d));
    let tree = build(spec, leaves);
    let dropped = harm.iter().filter(|h| matches!(h.1, Damage::Drop));
    let verdict = |h: &(usize, Damage)| Verdict {
        guid: Guid(100 + h.0 as u64),
        state: State::Unavail,
        aux: Aux::OpenFailed("gone".to_owned()),
    };
    tree.with_verdicts(&dropped.map(verdict).collect::<Vec<_>>())
}

/// Whether a leaf's sectors of the block differ from the right content.
fn differs(leaf: usize, sectors: &[Sector], harm: &[(usize, Damage)]) -> bool {
    let mut own = sectors.iter().filter(|s| s.0 == leaf);
    match harm.iter().find(|h| h.0 == leaf).map(|h| h.1) {
        Some(Damage::Flip) => own.next().is_some(),
        Some(Damage::Zero) => own.any(|s| s.2.iter().any(|&b| b != 0)),
        _ => false,
    }
}

/// Reads and scrubs a block from damaged leaves and checks the content, the counters and the list
/// of copies to repair.
fn check_tolerated(
    spec: &Spec,
    leaves: &[TestLeaf],
    harm: &[(usize, Damage)],
    sectors: &[Sector],
    req: &ReadReq,
    data: &[u8],
) -> Result<(), TestCaseError> {
    let tree = build_damaged(spec, leaves, harm);
    let got = read(&tree, req, data);
    prop_assert!(got.is_ok(), "{:?}", got);
    prop_assert_eq!(&got.unwrap()[..], data);
    for (i, _) in leaves.iter().enumerate() {
        if !harm.iter().any(|h| h.0 == i) {
            let errors = tree.find(Guid(100 + i as u64)).unwrap().errors();
            prop_assert_eq!((errors.read, errors.cksum), (0, 0), "leaf {} is sound", i);
        }
    }
    tree.nodes().for_each(|(_, n)| n.clear_errors());
    let right = hash(data);
    let outcome = tree.scrub(req, &|bytes| hash(bytes) == right);
    prop_assert!(outcome.data.is_ok(), "{:?}", outcome.data);
    for (i, leaf) in leaves.iter().enumerate() {
        let errors = tree.find(Guid(100 + i as u64)).unwrap().errors();
        prop_assert_eq!(errors.cksum > 0, differs(i, sectors, harm), "leaf {}", i);
        let failing = harm.iter().any(|h| h.0 == i && matches!(h.1, Damage::Fail));
        prop_assert_eq!(errors.read > 0, failing && sectors.iter().any(|s| s.0 == i));
        let advised: Vec<_> =
            outcome.report.bad.iter().filter(|b| b.guid.0 == 100 + i as u64).collect();
        prop_assert_eq!(advised.is_empty(), errors.cksum == 0 && errors.read == 0);
        for bad in advised {
            prop_assert_eq!(&leaf.mem.peek(bad.offset, bad.good.len()).unwrap()[..], &bad.good[..]);
        }
    }
    Ok(())
}

#[derive(Clone, Debug)]
struct RaidzCase {
    ashift: u32,
    nparity: usize,
    /// Children, the ones added by expansions included.
    width: usize,
    history: usize,
    /// Sectors of reflow offset relative to the block, and scratch state.
    reflow: Option<(u64, bool)>,
    birth: u64,
    start: u64,
    psize: usize,
    seed: u64,
    harm: Vec<Damage>,
    first: usize,
    stride: usize,
}

fn raidz_case() -> impl Strategy<Value = RaidzCase> {
    let shape = (prop_oneof![Just(9u32), Just(12)], 1usize..=3, 1usize..=5, 0usize..=2);
    let reflow = prop::option::weighted(0.3, (0u64..60, any::<bool>()));
    let block = (0u64..30, 0u64..700, 1usize..40_000, any::<u64>());
    let harm = (prop::collection::vec(damage(), 3), any::<usize>(), 1usize..4);
    (shape, reflow, block, harm).prop_map(|(shape, reflow, block, harm)| RaidzCase {
        ashift: shape.0,
        nparity: shape.1,
        width: shape.1 + shape.2 + shape.3 + usize::from(reflow.is_some()),
        history: shape.3,
        reflow,
        birth: block.0,
        start: block.1,
        psize: block.2,
        seed: block.3,
        harm: harm.0,
        first: harm.1,
        stride: harm.2,
    })
}

impl RaidzCase {
    fn spec(&self) -> Spec {
        let kind = VdevKind::Raidz {
            nparity: self.nparity as u8,
            expand_txgs: (1..=self.history).map(|i| Txg(10 * i as u64)).collect(),
            reflow: self.reflow.map(|_| self.reflow()),
        };
        pool(kind, self.width, self.ashift, (self.width as u64) << 22)
    }

    fn logical(&self) -> usize {
        let original = self.width - self.history - usize::from(self.reflow.is_some());
        original + (1..=self.history).filter(|i| 10 * *i as u64 <= self.birth).count()
    }

    fn offset(&self) -> u64 {
        // Around the 1 MiB bit, so that both sides of the swap rule occur.
        ((1 << 20) >> self.ashift).max(350) as u64 * (1 << self.ashift) - (350 << self.ashift)
            + (self.start << self.ashift)
    }

    fn reflow(&self) -> Reflow {
        let (after, scratch_valid) = self.reflow.unwrap_or((0, false));
        Reflow { offset: self.offset() + (after << self.ashift), scratch_valid }
    }

    fn sectors(&self, data: &[u8]) -> Vec<Sector> {
        let place = |x: u64, end: u64| {
            let old = self.reflow.is_some() && end << self.ashift > self.reflow().offset;
            let width = self.width as u64 - u64::from(old);
            let scratch = self.reflow.is_some_and(|r| r.1) && !old;
            let base = if scratch { 512 << 10 } else { LABEL_START };
            ((x % width) as usize, ((x / width) << self.ashift) + base)
        };
        raidz_sectors(self.ashift, self.nparity, self.logical(), self.offset(), data, &place)
    }

    /// `count` leaves to damage.
    fn harmed(&self, count: usize) -> Vec<(usize, Damage)> {
        let mut out: Vec<(usize, Damage)> = Vec::new();
        let mut at = self.first % self.width;
        for i in 0..count {
            while out.iter().any(|h| h.0 == at) {
                at = (at + 1) % self.width;
            }
            out.push((at, self.harm[i % 3]));
            at = (at + self.stride) % self.width;
        }
        out
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn raidz_survives_what_it_tolerates(case in raidz_case(), lost in 0usize..=3) {
        let data = content(case.seed, case.psize);
        let leaves = leaves(case.width, 6 << 20);
        let sectors = case.sectors(&data);
        write(&leaves, &sectors);
        let spec = case.spec();
        let psize = Psize(case.psize as u64);
        let req = ReadReq::new(TOP, case.offset(), psize, Txg(case.birth));
        let harm = case.harmed(lost.min(case.nparity));
        check_tolerated(&spec, &leaves, &harm, &sectors, &req, &data)?;
        // The model and the tree agree on the space that the block takes.
        let tree = build(&spec, &leaves);
        let asize = tree.asize(TOP, psize, Txg(case.birth)).unwrap();
        let used = (sectors.len() as u64).next_multiple_of(case.nparity as u64 + 1);
        prop_assert_eq!(asize, Asize(used << case.ashift));
    }

    #[test]
    fn raidz_never_invents_data(case in raidz_case(), extra in 1usize..=2) {
        let data = content(case.seed, case.psize);
        let leaves = leaves(case.width, 6 << 20);
        let sectors = case.sectors(&data);
        write(&leaves, &sectors);
        let harm = case.harmed((case.nparity + extra).min(case.width));
        let tree = build_damaged(&case.spec(), &leaves, &harm);
        let req =
            ReadReq::new(TOP, case.offset(), Psize(case.psize as u64), Txg(case.birth));
        match read(&tree, &req, &data) {
            Ok(got) => prop_assert_eq!(&got[..], &data[..]),
            Err(e) => prop_assert!(
                matches!(e.kind(), ErrorKind::Checksum | ErrorKind::Io), "{:?}", e),
        }
        // If every sector of a full row is lost, nothing can be found.
        let all: Vec<(usize, Damage)> = (0..case.width).map(|i| (i, Damage::Flip)).collect();
        leaves.iter().for_each(|l| l.fault.heal());
        let tree = build_damaged(&case.spec(), &leaves, &all);
        prop_assert_eq!(read(&tree, &req, &data).unwrap_err().kind(), ErrorKind::Checksum);
    }

    #[test]
    fn mirrors_survive_all_but_one(
        width in 2usize..=4,
        good in any::<usize>(),
        kinds in prop::collection::vec(damage(), 4),
        psize in 1usize..20_000,
        seed in any::<u64>(),
    ) {
        let leaves = leaves(width, 6 << 20);
        let data = content(seed, psize);
        let offset = 0x3000;
        let sectors: Vec<Sector> =
            (0..width).map(|i| (i, LABEL_START + offset, data.clone())).collect();
        write(&leaves, &sectors);
        let harm: Vec<(usize, Damage)> =
            (0..width).filter(|i| *i != good % width).map(|i| (i, kinds[i])).collect();
        let spec = pool(VdevKind::Mirror, width, 12, 1 << 20);
        let req = ReadReq::new(TOP, offset, Psize(psize as u64), Txg(1));
        check_tolerated(&spec, &leaves, &harm, &sectors, &req, &data)?;
    }

    #[test]
    fn draid_survives_what_it_tolerates(
        shape in prop_oneof![Just((4u32, 2u32, 2u32, 11u32, 3u32)), Just((1, 1, 0, 2, 1)), Just((3, 3, 1, 7, 1))],
        place in prop_oneof![Just(0u64), 0u64..5000, Just(u64::MAX)],
        psize in 1usize..120_000,
        seed in any::<u64>(),
        lost in 0usize..=3,
        harm in (prop::collection::vec(damage(), 3), any::<usize>()),
    ) {
        let (ndata, nparity, nspares, children, ngroups) = shape;
        let params = DraidParams { ndata, nparity, nspares, ngroups, failure_group: 0 };
        let width = u64::from(ndata + nparity);
        let group = width << 24;
        let stripe = width << 12;
        // At an address in group 0, or across its end.
        let offset = if place == u64::MAX { group - stripe } else { place * stripe };
        let leaves = leaves(children as usize, (4 << 20) + (64 << 20) + (1 << 20));
        let data = content(seed, psize);
        let sectors = draid_sectors(&params, children, offset, &data);
        write(&leaves, &sectors);
        let spec = pool(VdevKind::Draid(params), children as usize, 12, group * 2);
        let req = ReadReq::new(TOP, offset, Psize(psize as u64), Txg(1));
        let first = harm.1 % children as usize;
        let harm: Vec<(usize, Damage)> = (0..lost.min(nparity as usize))
            .map(|i| ((first + i) % children as usize, harm.0[i]))
            .collect();
        check_tolerated(&spec, &leaves, &harm, &sectors, &req, &data)?;
    }
}

/// The first permutations' rows, from the chapter's generator.
fn first_permutation(children: u32) -> Vec<usize> {
    match children {
        // Chapter 02 §11.2.
        2 => vec![0, 1],
        11 => vec![7, 8, 10, 6, 0, 2, 4, 3, 9, 5, 1],
        // From the generator with the list's seed.
        7 => {
            let (mut s0, mut s1) = (0xd_7a1d_5eed_u64, 0x3a65_d809_b4d1_b9d5_u64);
            let mut row: Vec<usize> = (0..7).collect();
            for j in (1..7).rev() {
                let r = s0.wrapping_add(s1).rotate_left(17).wrapping_add(s0);
                let t = s1 ^ s0;
                (s0, s1) = (s0.rotate_left(49) ^ t ^ (t << 21), t.rotate_left(28));
                row.swap(j, (r % (j as u64 + 1)) as usize);
            }
            row
        }
        _ => unreachable!("not a width of these tests"),
    }
}

/// A dRAID block in groups 0 and 1 of slice 0, sector by sector.
fn draid_sectors(params: &DraidParams, children: u32, offset: u64, data: &[u8]) -> Vec<Sector> {
    const ROW: u64 = 16 << 20;
    let (d, p) = (params.ndata as usize, params.nparity as usize);
    let width = d + p;
    let group = width as u64 * ROW;
    let disks = (children - params.nspares) as usize;
    let perm = first_permutation(children);
    let sector = 4096;
    let mut padded = data.to_vec();
    padded.resize(data.len().next_multiple_of(sector), 0);
    let room = ((group - offset % group) as usize / (width * sector)) * d * sector;
    let mut out = Vec::new();
    let (here, rest) = padded.split_at(room.min(padded.len()));
    let parts = [(offset, here), ((offset / group + 1) * group, rest)];
    for (offset, bytes) in parts.into_iter().filter(|p| !p.1.is_empty()) {
        let index = (offset / group) as usize;
        let blocks: Vec<&[u8]> = bytes.chunks(sector).collect();
        let rows = blocks.len().div_ceil(d);
        let height = |c: usize| (blocks.len() + d - 1 - c) / d;
        let starts: Vec<usize> = (0..d).map(|c| (0..c).map(height).sum()).collect();
        for row in 0..rows {
            let cells: Vec<Vec<u8>> = (0..d)
                .map(|c| {
                    let inside = row < height(c);
                    if inside { blocks[starts[c] + row].to_vec() } else { vec![0; sector] }
                })
                .collect();
            let at = (offset % group) / width as u64 + (row * sector) as u64;
            for i in 0..width {
                // Positions of all groups follow each other through the slice's rows.
                let linear = index * width + i;
                let slice_of_disks = (linear / disks) as u64;
                let child = if (index as u64) < u64::from(params.ngroups) {
                    perm[linear % disks]
                } else {
                    // The next slice: permutation 1 is row 0 shifted by one.
                    let linear = linear - params.ngroups as usize * width;
                    (perm[linear % disks] + 1) % children as usize
                };
                let content =
                    if i < p { parity_of(i, &cells, sector) } else { cells[i - p].clone() };
                out.push((child, LABEL_START + slice_of_disks * ROW + at, content));
            }
        }
    }
    out
}

#[test]
fn mirror_reads_run_on_all_sides() {
    let leaves = leaves(3, 6 << 20);
    let data = content(3, 8192);
    write(&leaves, &(0..3).map(|i| (i, LABEL_START, data.clone())).collect::<Vec<_>>());
    let tree = build(&pool(VdevKind::Mirror, 3, 12, 1 << 20), &leaves);
    let req = ReadReq::new(TOP, 0, Psize(8192), Txg(1));
    for _ in 0..30 {
        read(&tree, &req, &data).unwrap();
    }
    assert!(leaves.iter().all(|l| l.mem.stats().snapshot().reads == 10));
}

#[test]
fn a_leaf_that_missed_the_txg_is_read_last() {
    let leaves = leaves(2, 6 << 20);
    let data = content(4, 4096);
    write(&leaves, &[(1, LABEL_START, data.clone())]);
    let tree = build(&pool(VdevKind::Mirror, 2, 12, 1 << 20), &leaves);
    assert!(tree.set_dtl(Guid(100), TxgRanges::new(vec![(Txg(5), Txg(9))])));
    let req = ReadReq::new(TOP, 0, Psize(4096), Txg(7));
    for _ in 0..4 {
        read(&tree, &req, &data).unwrap();
    }
    assert_eq!(leaves[0].mem.stats().snapshot().reads, 0);
    // A scrub sees it, but does not count it as an error of the device.
    let outcome = tree.scrub(&req, &|b| b == data);
    assert_eq!(outcome.report.bad[0].kind, BadKind::Stale);
    assert_eq!(tree.find(Guid(100)).unwrap().errors().cksum, 0);
    // When it is the only copy left, and its bytes are right after all, it is used.
    write(&leaves, &[(0, LABEL_START, data.clone())]);
    let gone = Verdict { guid: Guid(101), state: State::Offline, aux: Aux::None };
    let tree = tree.with_verdicts(&[gone]);
    assert_eq!(tree.root().state(), State::Degraded);
    read(&tree, &req, &data).unwrap();
}

#[test]
fn stale_columns_are_reconstructed() {
    let case = RaidzCase {
        ashift: 9,
        nparity: 1,
        width: 4,
        history: 0,
        reflow: None,
        birth: 7,
        start: 3,
        psize: 6000,
        seed: 9,
        harm: vec![Damage::Zero; 3],
        first: 0,
        stride: 1,
    };
    let data = content(case.seed, case.psize);
    let leaves = leaves(4, 6 << 20);
    write(&leaves, &case.sectors(&data));
    leaves[2].fault.inject(Fault::Zero(0..u64::MAX));
    let tree = build(&case.spec(), &leaves);
    tree.set_dtl(Guid(102), TxgRanges::new(vec![(Txg(1), Txg(20))]));
    let req = ReadReq::new(TOP, case.offset(), Psize(6000), Txg(7));
    let outcome = tree.read_verbose(&req, &|b| b == data);
    assert_eq!(&outcome.data.unwrap()[..], &data[..]);
    assert!(!outcome.report.searched, "known damage costs no second round");
    assert_eq!(leaves[2].mem.stats().snapshot().reads, 0);
}

#[test]
fn split_blocks_try_all_combinations() {
    // Vdev 0 was removed; its bytes are on mirrors 1 and 2, half each.
    let leaves = leaves(4, 6 << 20);
    let mirror = |id: u64, first: usize| {
        Spec::new(VdevKind::Mirror, id, Guid(20 + id))
            .with_children(vec![leaf_spec(first), leaf_spec(first + 1)])
            .with_space(9, 1 << 20)
    };
    let removed = Spec::new(VdevKind::Indirect, 0, Guid(20)).with_space(9, 1 << 20);
    let children = vec![removed, mirror(1, 0), mirror(2, 2)];
    let spec = Spec::new(VdevKind::Root, 0, Guid(1)).with_children(children);
    let tree = build(&spec, &leaves);
    let req = ReadReq::new(TOP, 0x1000, Psize(4096), Txg(1));
    let data = content(8, 4096);
    assert_eq!(read(&tree, &req, &data).unwrap_err().kind(), ErrorKind::DevicesMissing);
    let entry = |src, dst_vdev, dst_offset| IndirectEntry { src, len: 2048, dst_vdev, dst_offset };
    let entries = vec![entry(0x1000, VdevId(1), 0x200), entry(0x1800, VdevId(2), 0x8000)];
    tree.set_indirect(TOP, Arc::new(IndirectMap::new(entries, vec![]).unwrap())).unwrap();
    let halves = |i: usize| if i < 2 { (0x200, &data[..2048]) } else { (0x8000, &data[2048..]) };
    for (i, leaf) in leaves.iter().enumerate() {
        let (at, bytes) = halves(i);
        leaf.mem.poke(LABEL_START + at, bytes).unwrap();
    }
    read(&tree, &req, &data).unwrap();
    // One bad copy of each half.
    for bad in [1, 2] {
        leaves[bad].fault.inject(Fault::Flip(LABEL_START..LABEL_START + (1 << 20), 1));
    }
    for _ in 0..4 {
        assert_eq!(&read(&tree, &req, &data).unwrap()[..], &data[..]);
    }
    let errors = |i: u64| tree.find(Guid(100 + i)).unwrap().errors().cksum > 0;
    assert_eq!([0, 1, 2, 3].map(errors), [false, true, true, false]);
    leaves[0].fault.inject(Fault::Zero(0..u64::MAX));
    assert_eq!(read(&tree, &req, &data).unwrap_err().kind(), ErrorKind::Checksum);
}

#[test]
fn moved_addresses_cannot_go_in_circles() {
    let removed = |id: u64| Spec::new(VdevKind::Indirect, id, Guid(20 + id)).with_space(9, 1 << 20);
    let spec = Spec::new(VdevKind::Root, 0, Guid(1)).with_children(vec![removed(0), removed(1)]);
    let tree = build(&spec, &[]);
    for (from, to) in [(0, 1), (1, 0)] {
        let entry = IndirectEntry { src: 0, len: 1 << 20, dst_vdev: VdevId(to), dst_offset: 0 };
        let map = IndirectMap::new(vec![entry], vec![]).unwrap();
        tree.set_indirect(VdevId(from), Arc::new(map)).unwrap();
    }
    let req = ReadReq::new(TOP, 0, Psize(512), Txg(1));
    assert_eq!(tree.read(&req, &|_| true).unwrap_err().kind(), ErrorKind::Limit);
}

#[test]
fn damage_that_a_reflow_spread_is_found() {
    // One child was bad before the expansion, so its sectors are now on every child.
    let data = content(21, 16_384);
    for (nparity, width, bad) in [(1, 5, 0), (1, 5, 2), (2, 6, 0), (2, 6, 3), (3, 7, 4)] {
        let case = RaidzCase {
            ashift: 9,
            nparity,
            width,
            history: 1,
            reflow: None,
            birth: 0,
            start: 17,
            psize: data.len(),
            seed: 21,
            harm: vec![Damage::Flip; 3],
            first: 0,
            stride: 1,
        };
        let leaves = leaves(width, 6 << 20);
        let sectors = case.sectors(&data);
        write(&leaves, &sectors);
        let linear = |s: &Sector| ((s.1 - LABEL_START) >> 9) * width as u64 + s.0 as u64;
        let spoilt: Vec<&Sector> =
            sectors.iter().filter(|s| linear(s) % (width as u64 - 1) == bad).collect();
        let hit: std::collections::BTreeSet<usize> = spoilt.iter().map(|s| s.0).collect();
        assert!(hit.len() > nparity, "more children than parity covers");
        for (child, at, bytes) in &spoilt {
            leaves[*child].mem.poke(*at, &bytes.iter().map(|b| !b).collect::<Vec<_>>()).unwrap();
        }
        let tree = build(&case.spec(), &leaves);
        let req = ReadReq::new(TOP, case.offset(), Psize(data.len() as u64), Txg(0));
        assert_eq!(&read(&tree, &req, &data).unwrap()[..], &data[..]);
        let outcome = tree.scrub(&req, &|b| b == data);
        assert_eq!(&outcome.data.unwrap()[..], &data[..]);
        assert_eq!(outcome.report.bad.len(), spoilt.len());
    }
}

#[test]
fn each_group_of_a_draid_block_tolerates_its_own() {
    let params = DraidParams { ndata: 4, nparity: 2, nspares: 2, ngroups: 3, failure_group: 0 };
    let leaves = leaves(11, (4 << 20) + (64 << 20) + (1 << 20));
    let data = content(6, 32_768);
    let offset = (6 << 24) - 6 * 4096;
    let sectors = draid_sectors(&params, 11, offset, &data);
    write(&leaves, &sectors);
    // Columns of group 0 on children 10 and 6, of group 1 on 9 and 7 (chapter 02 §11.3).
    let first = sectors.iter().take(6).filter(|s| [10, 6].contains(&s.0));
    let second = sectors.iter().skip(6).filter(|s| [9, 7].contains(&s.0));
    let spoilt: Vec<&Sector> = first.chain(second).collect();
    assert_eq!(spoilt.len(), 4);
    for (child, at, _) in &spoilt {
        leaves[*child].mem.poke(*at, &[0x77; 4096]).unwrap();
    }
    let tree = build(&pool(VdevKind::Draid(params), 11, 12, 1 << 28), &leaves);
    let req = ReadReq::new(TOP, offset, Psize(32_768), Txg(1));
    let outcome = tree.read_verbose(&req, &|b| b == data);
    assert_eq!(&outcome.data.unwrap()[..], &data[..]);
    let mut bad: Vec<u64> = outcome.report.bad.iter().map(|b| b.guid.0 - 100).collect();
    bad.sort_unstable();
    assert_eq!(bad, [6, 7, 9, 10]);
}

#[test]
fn spoilt_padding_is_found_and_does_no_harm() {
    let params = DraidParams { ndata: 4, nparity: 2, nspares: 2, ngroups: 3, failure_group: 0 };
    let leaves = leaves(11, (4 << 20) + (64 << 20) + (1 << 20));
    // Five sectors: the second row is data on child 10 and padding on 6, 0 and 2.
    let data = content(7, 20_480);
    write(&leaves, &draid_sectors(&params, 11, 0, &data));
    leaves[6].mem.poke(LABEL_START + 4096, &[0x11; 4096]).unwrap();
    // Both losses that parity covers are used up elsewhere.
    let spec = pool(VdevKind::Draid(params), 11, 12, 1 << 28);
    let tree = build_damaged(&spec, &leaves, &[(10, Damage::Drop), (0, Damage::Drop)]);
    let req = ReadReq::new(TOP, 0, Psize(20_480), Txg(1));
    let outcome = tree.scrub(&req, &|b| b == data);
    assert_eq!(&outcome.data.unwrap()[..], &data[..]);
    let bad: Vec<_> = outcome.report.bad.iter().map(|b| (b.guid, b.kind)).collect();
    assert_eq!(bad, [(Guid(106), BadKind::Checksum)]);
}

#[test]
fn a_distributed_spare_stands_in() {
    let params = DraidParams { ndata: 4, nparity: 2, nspares: 2, ngroups: 3, failure_group: 0 };
    let leaves = leaves(11, (4 << 20) + (64 << 20) + (1 << 20));
    let data = content(5, 16384);
    let mut sectors = draid_sectors(&params, 11, 0, &data);
    // Child 7 (the first parity column) and child 10 (the first data column) failed; spares 0 and
    // 1 are, in permutation 0, children 1 and 5.
    for (child, _, _) in &mut sectors {
        *child = match *child {
            7 => 1,
            10 => 5,
            child => child,
        };
    }
    write(&leaves, &sectors);
    let mut spec = pool(VdevKind::Draid(params), 11, 12, 1 << 30);
    for (spare, child) in [(0, 7usize), (1, 10)] {
        let mut failed = leaf_spec(child);
        failed.persistent = Persistent { faulted: true, ..Persistent::default() };
        let dspare = Spec::new(
            VdevKind::DraidSpare { draid: Guid(10), spare_id: spare },
            1,
            Guid(300 + u64::from(spare)),
        );
        let standing = Spec::new(VdevKind::Spare, child as u64, Guid(400 + child as u64));
        spec.children[0].children[child] = standing.with_children(vec![failed, dspare]);
    }
    let tree = build(&spec, &leaves);
    assert_eq!(tree.root().state(), State::Degraded);
    let req = ReadReq::new(TOP, 0, Psize(16384), Txg(1));
    // Two more failures are still tolerated, because the spares hold the columns.
    for lost in [6, 0] {
        leaves[lost].fault.inject(Fault::FailReads(0..u64::MAX));
    }
    let outcome = tree.scrub(&req, &|b| b == data);
    assert_eq!(&outcome.data.unwrap()[..], &data[..]);
    assert!(outcome.report.bad.iter().all(|b| b.kind == BadKind::Io));
    assert_eq!(leaves[5].mem.stats().snapshot().reads, 1);
}

#[test]
fn impossible_addresses_are_errors() {
    let leaves = leaves(2, 6 << 20);
    let mut spec = pool(VdevKind::Mirror, 2, 12, 1 << 20);
    spec.children.push(Spec::new(VdevKind::Hole, 1, Guid(0)));
    let tree = build(&spec, &leaves);
    let kind = |vdev, offset, psize| {
        let req = ReadReq::new(VdevId(vdev), offset, Psize(psize), Txg(1));
        tree.read(&req, &|_| true).map(|b| b.len()).map_err(|e| e.kind())
    };
    assert_eq!(kind(0, 0, 4096), Ok(4096));
    assert_eq!(kind(0, (1 << 20) - 4096, 100), Ok(100));
    for (vdev, offset, psize) in [
        (0, 1 << 20, 512),
        (0, (1 << 20) - 4096, 4097),
        (0, u64::MAX - 4095, 4096),
        (0, 512, 4096),
        (0, 0, 0),
        (0, 0, 17 << 20),
        (0, 0, u64::MAX),
        (1, 0, 512),
        (2, 0, 512),
        (u32::MAX, 0, 512),
    ] {
        assert_eq!(kind(vdev, offset, psize), Err(ErrorKind::Corrupt), "{vdev} {offset} {psize}");
    }
}

#[test]
fn one_bad_sector_costs_one_column() {
    // Reads of neighbouring cells are one operation; after a failure they are repeated one by
    // one.
    let case = RaidzCase {
        ashift: 9,
        nparity: 1,
        width: 5,
        history: 1,
        reflow: None,
        birth: 0,
        start: 0,
        psize: 20_000,
        seed: 77,
        harm: vec![Damage::Fail; 3],
        first: 0,
        stride: 1,
    };
    let data = content(case.seed, case.psize);
    let leaves = leaves(5, 6 << 20);
    let sectors = case.sectors(&data);
    write(&leaves, &sectors);
    let tree = build(&case.spec(), &leaves);
    let req = ReadReq::new(TOP, case.offset(), Psize(20_000), Txg(0));
    let outcome = tree.read_verbose(&req, &|b| b == data);
    assert_eq!(outcome.report.ios, 5, "one operation a leaf");
    let (child, at, _) = sectors.iter().rev().find(|s| s.0 == 2).unwrap();
    leaves[*child].fault.inject(Fault::FailReads(*at..*at + 1));
    let outcome = tree.read_verbose(&req, &|b| b == data);
    assert!(outcome.data.is_ok());
    let bad: Vec<_> = outcome.report.bad.iter().map(|b| (b.guid, b.offset, b.kind)).collect();
    assert_eq!(bad, [(Guid(102), *at, BadKind::Io)]);
    let io = Io::read(*at, 512);
    assert!(leaves[2].fault.run(io).result.is_err());
}
