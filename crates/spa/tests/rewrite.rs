//! OpenZFS's own blocks, written again by Cenote: every block of the golden pools is passed
//! through the write path to devices that compare each byte (data, parity, dRAID padding)
//! with the pool's devices at that offset.

#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::rt::{Mutex, OneShot};
use base::{Guid, ObjectId, Result, Txg, VdevId};
use cenote::{Engine, EngineConfig, ImportOptions, Pool, Search};
use device::{Caps, Device, DeviceStats, Io, MemDevice, Op, read_blocking};
use dmu::traverse::{Bookmark, Flow, Options as WalkOptions, Visitor, traverse};
use ondisk::{BlkPtr, ObjType};
use testkit::{Scratch, golden_pools};
use vdev::{ReadReq, Spec, Tree, VdevKind, WritePriority, WriteReq};

/// Approximate number of blocks tried of each pool.
const BLOCKS_OF_A_POOL: usize = 4000;

/// Compares all writes with the content of the golden device.
struct Comparer {
    golden: Arc<dyn Device>,
    caps: Caps,
    /// The device was absent for some txgs, and has older content.
    is_outdated: bool,
    equal: Arc<AtomicU64>,
    differ: Arc<Mutex<Vec<u64>>>,
}

impl Device for Comparer {
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn size(&self) -> u64 {
        self.golden.size()
    }
    fn submit(&self, batch: Vec<Op>) {
        for op in batch {
            let Io::Write { offset, bufs } = &op.io else { unreachable!("writes alone") };
            let ours = bufs.iter().flat_map(|b| b.iter().copied()).collect::<Vec<u8>>();
            let theirs = read_blocking(&*self.golden, *offset, ours.len()).unwrap();
            if *theirs == *ours {
                self.equal.fetch_add(ours.len() as u64, Relaxed);
            } else if !self.is_outdated {
                self.differ.lock().push(*offset);
            }
            let len = ours.len();
            op.complete(Ok(len));
        }
    }
    fn describe(&self) -> String {
        "comparer".to_owned()
    }
    fn stats(&self) -> &DeviceStats {
        self.golden.stats()
    }
}

fn open(dir: &Path) -> Arc<Pool> {
    let config = EngineConfig { cache_bytes: Some(64 << 20), ..EngineConfig::default() };
    let engine = Engine::new(config).unwrap();
    let search = Search { paths: vec![dir.to_owned()], ..Search::default() };
    let found = engine.discover(&search).unwrap();
    engine.inspect(&found.pools[0], &ImportOptions::default()).unwrap()
}

/// The specification from which the tree was built.
fn spec_of(tree: &Tree, node: &vdev::Node) -> Spec {
    let children = node.children().iter().map(|&c| spec_of(tree, tree.node(c))).collect();
    Spec::new(node.kind().clone(), node.id(), node.guid())
        .with_children(children)
        .with_space(node.ashift(), node.asize())
}

/// Collects blocks without damaged copies.
struct Collect<'a> {
    zio: &'a zio::Zio,
    found: Mutex<HashMap<(VdevId, u64), (u64, Txg)>>,
}

impl Visitor for Collect<'_> {
    fn visit(&self, bp: &BlkPtr, _at: Bookmark) -> Result<Flow> {
        if let BlkPtr::Block(block) = bp {
            let checked = self.zio.check_copies(block);
            if checked.damaged > 0 || !checked.faults.is_empty() {
                return Ok(Flow::Descend);
            }
            let mut found = self.found.lock();
            if found.len() > BLOCKS_OF_A_POOL {
                return Ok(Flow::Skip);
            }
            for dva in block.dvas().filter(|d| d.is_valid() && !d.gang) {
                let birth = block.effective_physical_birth();
                found.insert((dva.vdev, dva.offset), (block.psize.0, birth));
            }
        }
        Ok(Flow::Descend)
    }
}

/// Addresses, sizes and births of a pool's blocks.
fn blocks(pool: &Pool) -> HashMap<(VdevId, u64), (u64, Txg)> {
    let (zio, mos) = (pool.spa().zio(), pool.spa().mos());
    let collect = Collect { zio, found: Mutex::default() };
    let how = WalkOptions::default();
    traverse(zio, 0, &mos.objset().root_bp(), &collect, how).unwrap();
    let mut at = ObjectId(0);
    while let Some(id) = mos.objset().next_object(at, zio::Io::WAIT).unwrap() {
        at = id;
        let object = mos.objset().object(id, zio::Io::WAIT).unwrap();
        if object.dnode().bonus_type == ObjType::DSL_DATASET {
            let dataset = dsl::DslDataset::read_phys(mos, id.0).unwrap();
            traverse(zio, id.0, &dataset.bp, &collect, how).unwrap();
        }
    }
    collect.found.into_inner()
}

#[test]
fn blocks_of_openzfs_are_written_as_openzfs_wrote_them() {
    let mut pools = 0;
    for golden in golden_pools() {
        let scratch = Scratch::new(&format!("rewrite-{}", golden.name));
        golden.unpack(scratch.path());
        let pool = open(scratch.path());
        let source = pool.spa().zio().tree();
        let equal: HashMap<Guid, Arc<AtomicU64>> =
            source.leaves().map(|(_, leaf)| (leaf.guid(), Arc::default())).collect();
        let differ = Arc::new(Mutex::new(Vec::new()));
        let spec = spec_of(&source, source.root());
        let tree = Tree::build(&spec, &|leaf| -> Result<Arc<dyn Device>> {
            let found = source.find(leaf.guid).and_then(|n| n.device().cloned());
            let golden = found.ok_or_else(|| base::Error::not_found("it is gone"))?;
            let caps = MemDevice::new("caps", 512).caps().clone();
            let equal = Arc::clone(&equal[&leaf.guid]);
            let is_outdated =
                source.find(leaf.guid).is_some_and(|n| *n.dtl() != vdev::TxgRanges::default());
            let differ = Arc::clone(&differ);
            Ok(Arc::new(Comparer { golden, caps, is_outdated, equal, differ }))
        })
        .unwrap();
        let mut written = 0;
        for ((vdev, offset), (psize, birth)) in blocks(&pool) {
            if *source.top(vdev).unwrap().kind() == VdevKind::Indirect {
                continue;
            }
            let req = ReadReq::new(vdev, offset, base::Psize(psize), birth);
            let data = source.read(&req, &|_| true).unwrap();
            let slot = Arc::new(OneShot::new());
            let tell = Arc::clone(&slot);
            let priority = WritePriority::AsyncWrite;
            tree.write(WriteReq { vdev, offset, data, birth, priority }, move |r| tell.set(r));
            let report = slot.wait();
            assert!(report.result.is_ok(), "{}: {report:?}", golden.name);
            assert!(
                differ.lock().is_empty(),
                "{}: block {vdev}:{offset:x} of {psize} bytes, birth {birth}: {:?}",
                golden.name,
                *differ.lock()
            );
            written += 1;
        }
        let bytes: u64 = equal.values().map(|e| e.load(Relaxed)).sum();
        assert!(written > 0 && bytes > 0, "{}", golden.name);
        println!("REWRITTEN {}: {written} blocks, {bytes} bytes equal", golden.name);
        pools += 1;
    }
    assert!(pools > 0);
}
