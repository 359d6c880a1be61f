//! A raidz vdev while its sectors move to rows that are one sector wider, against a model:
//! blocks are written and freed between all steps, and everything is found by the tree in use and
//! by one that begins with what an uberblock says.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod cases;

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Buf, Guid, Psize, Result, Txg};
use device::Device;
use vdev::{BadCopy, BadKind, MovedRepair, ReadReq, RebuildSession, Reflow, Spec, Tree, VdevKind};

use cases::{LEAF, TOP, TestBlock, TestRng, VdevCase, case, check, leaf_specs, write_all};

const BIRTH: Txg = Txg(5);
struct ReflowModel {
    case: VdevCase,
    nparity: u8,
    ashift: u32,
    old: u64,
    /// Sectors that are used.
    sectors: u64,
    tree: Arc<Tree>,
    session: RebuildSession,
    blocks: BTreeMap<u64, TestBlock>,
    /// Ends of the blocks.
    ends: BTreeMap<u64, u64>,
    rng: TestRng,
    done: u64,
    durable: u64,
    view: u64,
}

impl ReflowModel {
    fn new(nparity: u8, old: u64, ashift: u32, seed: u64) -> ReflowModel {
        // Nothing is in the rows that the scratch phase moves.
        let first = (old * (old + 2)) << ashift;
        let reflow = Some(Reflow { offset: first, scratch_valid: false });
        let kind = VdevKind::Raidz { nparity, expand_txgs: vec![], reflow };
        let mut case =
            case("expanding", kind, leaf_specs(old as usize + 1), ashift, nparity.into());
        case.spec.children[0].asize = old << 22;
        let tree = case.tree();
        let session = tree.begin_rebuild();
        let (blocks, ends, rng) = (BTreeMap::new(), BTreeMap::new(), TestRng(seed));
        let (done, durable, view) = (first, first, first);
        let sectors = ((old << 22) >> ashift).min(6000);
        ReflowModel {
            case,
            nparity,
            ashift,
            old,
            sectors,
            tree,
            session,
            blocks,
            ends,
            rng,
            done,
            durable,
            view,
        }
    }

    /// Writes a block to free space.
    fn write(&mut self) {
        let psize = 1 + self.rng.below(24 << self.ashift);
        let asize = self.tree.asize(TOP, Psize(psize), BIRTH).unwrap().0;
        let first = self.old * (self.old + 2);
        let offset = (first + self.rng.below(self.sectors - first - 200)) << self.ashift;
        let before = self.ends.range(..offset + asize).next_back();
        if before.is_some_and(|(_, end)| *end > offset) {
            return;
        }
        let data: Vec<u8> = (0..psize).map(|_| self.rng.next() as u8).collect();
        let block = TestBlock { offset, birth: BIRTH, data: Buf::copy_of(&data) };
        assert!(write_all(&self.tree, std::slice::from_ref(&block))[0].result.is_ok());
        self.blocks.insert(offset, block);
        self.ends.insert(offset, offset + asize);
    }

    fn free(&mut self) {
        let at = self.rng.below(self.blocks.len().max(1) as u64) as usize;
        if let Some(offset) = self.blocks.keys().nth(at).copied() {
            self.blocks.remove(&offset);
            self.ends.remove(&offset);
        }
    }

    fn change(&mut self) {
        for _ in 0..self.rng.below(6) {
            match self.rng.below(4) {
                0 => self.free(),
                _ => self.write(),
            }
        }
    }

    /// Offset in sectors that no copy may reach, by chapter 08 §E.5.
    fn limit(&self) -> u64 {
        let u = self.view >> self.ashift;
        ((u + u / self.old - self.old) << self.ashift).min(self.sectors << self.ashift)
    }

    fn copy(&mut self) {
        let most = self.limit();
        if self.done >= most {
            return;
        }
        let from = self.done;
        let to = most.min(from + ((1 + self.rng.below(400)) << self.ashift));
        let lock = self.tree.lock_range(&self.session, TOP, (from, to));
        self.tree.set_reflow_copied(TOP, to).unwrap();
        let used = self.ends.iter().filter(|(start, end)| **start < to && **end > from);
        let ranges: Vec<(u64, u64)> =
            used.map(|(start, end)| ((*start).max(from), (*end).min(to))).collect();
        self.tree.copy_reflow(TOP, &ranges).unwrap();
        if self.rng.below(5) == 0 {
            // The step is given up.
            self.tree.set_reflow_copied(TOP, from).unwrap();
        } else {
            self.done = to;
        }
        drop(lock);
    }

    fn kind(&self, expand_txgs: Vec<Txg>, reflow: Option<Reflow>) -> VdevKind {
        VdevKind::Raidz { nparity: self.nparity, expand_txgs, reflow }
    }

    /// A tree that knows only what is on the devices.
    fn fresh(&self, kind: VdevKind) -> Arc<Tree> {
        let mut spec: Spec = self.case.spec.clone();
        spec.children[0].kind = kind;
        Tree::build(&spec, &|leaf| -> Result<Arc<dyn Device>> {
            let index = (leaf.guid.0 - LEAF) as usize;
            Ok(self.case.leaves[index].fault.clone())
        })
        .unwrap()
    }

    /// Everything is found, also without some children.
    fn verify(&mut self, what: &str) {
        let offset = self.durable;
        let imported = self.fresh(self.kind(vec![], Some(Reflow { offset, scratch_valid: false })));
        let losses = self.case.losses();
        let loss = &losses[self.rng.below(losses.len() as u64) as usize];
        for (whose, tree) in [("live", &self.tree), ("imported", &imported)] {
            let degraded = self.case.without(tree, loss);
            for block in self.blocks.values() {
                let at = format!("{what}, {whose}, offset {offset:#x}");
                check(tree, block, &at);
                check(&degraded, block, &format!("{at}, without {loss:?}"));
            }
        }
    }
}

/// The whole way, for several shapes.
#[test]
fn blocks_are_found_at_every_step() {
    let shapes = [(1, 2, 9), (1, 3, 12), (2, 3, 9), (2, 5, 9), (3, 4, 12), (3, 8, 9)];
    for (n, (nparity, old, ashift)) in shapes.into_iter().enumerate() {
        let mut m = ReflowModel::new(nparity, old, ashift, 7 + n as u64);
        (0..40).for_each(|_| m.write());
        let mut step = 0;
        while m.view < m.sectors << ashift {
            step += 1;
            assert!(step < 4000, "it does not end");
            m.change();
            m.copy();
            m.change();
            match m.rng.below(3) {
                0 => {}
                1 => m.durable = m.done,
                _ => {
                    let view = Reflow { offset: m.durable, scratch_valid: false };
                    m.tree.advance_reflow(TOP, view).unwrap();
                    m.view = m.durable;
                }
            }
            if step % 12 == 0 {
                m.verify(&format!("raidz{nparity} of {old}, ashift {ashift}, step {step}"));
            }
        }
        let everything = Reflow { offset: u64::MAX, scratch_valid: false };
        m.tree.advance_reflow(TOP, everything).unwrap();
        let wider = m.tree.with_expanded(TOP, &[Txg(100)]).unwrap();
        let imported = m.fresh(m.kind(vec![Txg(100)], None));
        for block in m.blocks.values() {
            check(&wider, block, "expanded");
            check(&m.tree, block, "an older snapshot");
            check(&imported, block, "expanded and imported");
        }
        assert_eq!(
            wider.asize(TOP, Psize(4096), Txg(100)).unwrap(),
            imported.asize(TOP, Psize(4096), Txg(100)).unwrap()
        );
    }
}

/// Bytes that a child lacks are written to where they are now and will be.
#[test]
fn repairs_follow_the_move() {
    for (nparity, old, ashift) in [(1, 3, 9), (2, 4, 12)] {
        let mut m = ReflowModel::new(nparity, old, ashift, 91);
        (0..60).for_each(|_| m.write());
        (0..4).for_each(|_| m.copy());
        m.durable = m.done;
        // One child forgets everything.
        let leaf = 1;
        m.case.leaves[leaf].mem.poke(vdev::LABEL_START, &vec![0x55; 4 << 20]).unwrap();
        let guid = Guid(LEAF + leaf as u64);
        let repair = |block: &TestBlock| {
            let psize = Psize(block.data.len() as u64);
            let req = ReadReq::new(TOP, block.offset, psize, block.birth);
            let found = m.tree.scrub(&req, &|bytes| *bytes == *block.data);
            let of_leaf: Vec<BadCopy> = found.report.bad;
            assert!(of_leaf.iter().all(|b| b.guid == guid && b.kind == BadKind::Checksum));
            let (vdev, offset, data) = (TOP, block.offset, block.data.clone());
            MovedRepair { vdev, offset, data, birth: BIRTH, bad: of_leaf }
        };
        let repairs: Vec<MovedRepair> = m.blocks.values().map(repair).collect();
        assert!(repairs.iter().any(|r| !r.bad.is_empty()));
        let done = m.tree.repair_moved(&repairs);
        assert!(done.total() > 0 && done.failed == 0);
        // At the place in memory, and at the one that the uberblock tells of. (What was copied of
        // blocks that are whole at the old place lies at the new one, too.)
        let view = Reflow { offset: m.view, scratch_valid: false };
        for tree in [Arc::clone(&m.tree), m.fresh(m.kind(vec![], Some(view)))] {
            for block in m.blocks.values() {
                let psize = Psize(block.data.len() as u64);
                let req = ReadReq::new(TOP, block.offset, psize, block.birth);
                let found = tree.scrub(&req, &|bytes| *bytes == *block.data);
                assert!(found.data.is_ok() && found.report.bad.is_empty());
            }
        }
    }
}
