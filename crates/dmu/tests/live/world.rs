//! An object set over a disk in memory, and the checks after each txg.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::rt::Mutex;
use base::{Asize, Dva, Error, Guid, ObjectId, Result, Txg, VdevId};
use device::{Device, MemDevice};
use dmu::{DirtyMeter, Events, Io, Objset, ObjsetProps, Pending, SyncCtx, Tx};
use ondisk::BlkPtr;
use ondisk::objset::ObjsetType;
use vdev::{Spec, Tree, VdevKind};
use zio::{BlockCache, SpaceSource, Want, Writes, Zio};

const DISK: u64 = 512 << 20;
/// Every block is charged at half its size.
pub const DEFLATE: u64 = 256;

/// The allocated addresses. Freed ones are reused two txgs later.
#[derive(Default)]
pub struct BlockSpace {
    state: Mutex<SpaceState>,
}

#[derive(Default)]
struct SpaceState {
    /// Start and end of allocated ranges.
    taken: BTreeMap<u64, u64>,
    freed: Vec<(Txg, Dva)>,
    at: u64,
    reuse: bool,
}

impl BlockSpace {
    fn free(&self, txg: Txg, dva: Dva) {
        let mut state = self.state.lock();
        assert_eq!(state.taken.get(&dva.offset), Some(&(dva.offset + dva.asize.0)), "{dva:?}");
        assert!(state.freed.iter().all(|(_, d)| d.offset != dva.offset), "freed twice: {dva:?}");
        state.freed.push((txg, dva));
    }

    /// The txg is on disk.
    fn synced(&self, txg: Txg) {
        let mut state = self.state.lock();
        let old = state.freed.extract_if(.., |(born, _)| born.0 + 2 <= txg.0);
        let old: Vec<(Txg, Dva)> = old.collect();
        for (_, dva) in old {
            state.taken.remove(&dva.offset);
        }
        if state.reuse {
            state.at = 0;
        }
    }

    /// The addresses allocated and not freed.
    fn places(&self) -> BTreeSet<u64> {
        let state = self.state.lock();
        let freed: BTreeSet<u64> = state.freed.iter().map(|(_, d)| d.offset).collect();
        state.taken.keys().copied().filter(|o| !freed.contains(o)).collect()
    }
}

impl SpaceSource for BlockSpace {
    fn allocate(&self, want: &Want) -> Result<Vec<Dva>> {
        let mut state = self.state.lock();
        let size = want.psize.next_multiple_of(512);
        let mut out = Vec::new();
        for _ in 0..want.copies {
            let mut at = state.at;
            // First fit behind the cursor.
            while let Some((_, &end)) = state.taken.range(..at + size).next_back() {
                if end <= at {
                    break;
                }
                at = end;
            }
            if at + size > DISK - (8 << 20) {
                return Err(Error::new(base::ErrorKind::NoSpace, "the disk is full"));
            }
            state.taken.insert(at, at + size);
            state.at = at + size;
            out.push(Dva { vdev: VdevId(0), offset: at, asize: Asize(size), gang: false });
        }
        Ok(out)
    }

    fn unallocate(&self, _: Txg, dvas: &[Dva]) {
        let mut state = self.state.lock();
        for dva in dvas {
            state.taken.remove(&dva.offset);
        }
    }

    fn is_allocated(&self, dva: Dva) -> bool {
        let state = self.state.lock();
        let taken = state.taken.range(..=dva.offset).next_back();
        taken.is_some_and(|(_, &end)| end >= dva.offset + dva.asize.0)
    }

    fn limits(&self) -> (u64, u64) {
        (512, 512)
    }
}

/// The identity of a block, whatever its content: rewriting in place changes nothing here.
pub fn key_of(bp: &BlkPtr) -> Option<Vec<u8>> {
    match bp {
        BlkPtr::Hole(_) => None,
        BlkPtr::Block(b) => {
            let mut key = format!("{:?} {}", b.head.birth, b.head.object_type.0);
            b.dvas().for_each(|d| key += &format!(" {}:{}", d.offset, d.asize.0));
            Some(key.into_bytes())
        }
        other => Some(other.encode().unwrap().to_vec()),
    }
}

/// The multiset of blocks that the object set refers to, according to the events.
pub struct Tracker {
    pub live: BTreeMap<Vec<u8>, u64>,
    space: Arc<BlockSpace>,
    pub txg: Txg,
}

impl Events for Tracker {
    fn born(&mut self, bp: &BlkPtr) -> Result<()> {
        assert_eq!(bp.allocation_birth(), self.txg, "born in another txg: {bp:?}");
        *self.live.entry(key_of(bp).unwrap()).or_default() += 1;
        Ok(())
    }

    fn killed(&mut self, bp: &BlkPtr) -> Result<()> {
        let key = key_of(bp).unwrap();
        let count = self.live.get_mut(&key).unwrap_or_else(|| panic!("killed unborn: {bp:?}"));
        *count -= 1;
        if *count == 0 {
            self.live.remove(&key);
        }
        if let Some(block) = bp.as_block() {
            block.dvas().for_each(|dva| self.space.free(self.txg, dva));
        }
        Ok(())
    }

    fn wasted(&mut self, bp: &BlkPtr) -> Result<()> {
        assert_eq!(bp.birth(), self.txg, "wasted in another txg: {bp:?}");
        if let Some(block) = bp.as_block() {
            block.dvas().for_each(|dva| self.space.free(self.txg, dva));
        }
        Ok(())
    }
}

/// Counts dirty bytes by txg.
#[derive(Default)]
pub struct DirtyCounts(Mutex<BTreeMap<u64, i64>>);

impl DirtyMeter for DirtyCounts {
    fn dirty(&self, txg: Txg, bytes: u64) {
        *self.0.lock().entry(txg.0).or_default() += bytes as i64;
    }

    fn clean(&self, txg: Txg, bytes: u64) {
        *self.0.lock().entry(txg.0).or_default() -= bytes as i64;
    }
}

pub struct ObjsetFixture {
    pub zio: Arc<Zio>,
    pub os: Arc<Objset>,
    pub space: Arc<BlockSpace>,
    pub dirt: Arc<DirtyCounts>,
    pub tracker: Mutex<Tracker>,
    disk: Arc<dyn Device>,
}

fn tree(disk: &Arc<dyn Device>) -> Arc<Tree> {
    let leaf = Spec::new(VdevKind::File, 0, Guid(100)).with_space(9, DISK - (8 << 20));
    let root = Spec::new(VdevKind::Root, 0, Guid(1)).with_children(vec![leaf]);
    let disk = Arc::clone(disk);
    Tree::build(&root, &move |_| Ok(Arc::clone(&disk))).unwrap()
}

impl ObjsetFixture {
    pub fn new(kind: ObjsetType, props: ObjsetProps, reuse: bool) -> ObjsetFixture {
        let disk: Arc<dyn Device> = Arc::new(MemDevice::new("disk".to_owned(), DISK as usize));
        let cache = Arc::new(BlockCache::of(64 << 20).unwrap());
        let zio = Arc::new(Zio::new(tree(&disk), cache));
        let space = Arc::new(BlockSpace::default());
        space.state.lock().reuse = reuse;
        zio.set_space(Arc::clone(&space) as _);
        let os = Objset::create(Arc::clone(&zio), 21, kind, props);
        let live = BTreeMap::new();
        let tracker = Tracker { live, space: Arc::clone(&space), txg: Txg(0) };
        ObjsetFixture { zio, os, space, dirt: Arc::default(), tracker: Mutex::new(tracker), disk }
    }

    pub fn tx(&self, txg: u64) -> Tx {
        Tx::open(Txg(txg), Arc::clone(&self.dirt) as _, ())
    }

    /// Reopens the object set from its pointer.
    pub fn reopen(&mut self) {
        let props = (*self.os.props().unwrap()).clone();
        let root = self.os.root_bp();
        self.os = Objset::open_live(Arc::clone(&self.zio), 21, root, props, Io::WAIT).unwrap();
    }

    pub fn sync(&self, txg: u64, writes: &Writes, in_place: bool) -> Option<Pending> {
        let ctx = SyncCtx {
            zio: &self.zio,
            writes,
            txg: Txg(txg),
            objset: 21,
            threads: 2,
            in_place,
            gangs: None,
            compress: true,
            hole_birth: self.os.props().unwrap().hole_birth,
            deflate: &[DEFLATE],
        };
        let mut tracker = self.tracker.lock();
        tracker.txg = Txg(txg);
        self.os.sync(&ctx, &mut *tracker).unwrap()
    }

    /// Ends a txg of one pass.
    pub fn commit(&self, txg: u64) {
        let writes = Writes::new(&self.zio);
        let pending = self.sync(txg, &writes, false);
        assert!(writes.wait().is_empty());
        self.end(txg, pending);
    }

    /// After all writes of a pass.
    pub fn end(&self, txg: u64, pending: Option<Pending>) {
        let Some(pending) = pending else { return };
        let clean = pending.publish() as i64;
        let mut dirt = self.dirt.0.lock();
        let dirty = dirt.remove(&txg).unwrap_or(0);
        assert_eq!(dirty, clean, "memory of txg {txg}");
        drop(dirt);
        assert!(!self.os.is_dirty(Txg(txg)));
    }

    /// The txg is committed; its frees are noted.
    pub fn synced(&self, txg: u64) {
        self.space.synced(Txg(txg));
    }

    /// Another load of the pool, with a cold cache.
    pub fn reader(&self) -> Arc<Objset> {
        let cache = Arc::new(BlockCache::of(64 << 20).unwrap());
        let zio = Arc::new(Zio::new(tree(&self.disk), cache));
        Objset::open(zio, 21, self.os.root_bp(), Io::WAIT).unwrap()
    }

    /// Compares with all blocks that the walk found: no leak, and no block twice.
    pub fn check_blocks(&self, reached: &BTreeMap<Vec<u8>, u64>) {
        let tracker = self.tracker.lock();
        for (key, n) in reached {
            let reported = tracker.live.get(key).copied().unwrap_or(0);
            assert_eq!(
                reported,
                *n,
                "reached, but not born so often: {}",
                String::from_utf8_lossy(key)
            );
        }
        for key in tracker.live.keys() {
            assert!(reached.contains_key(key), "leaked: {}", String::from_utf8_lossy(key));
        }
        drop(tracker);
    }

    /// The allocated addresses are those of the blocks reached.
    pub fn check_space(&self, places: &BTreeSet<u64>) {
        assert_eq!(&self.space.places(), places);
    }
}

pub fn dsize(bp: &BlkPtr) -> u64 {
    bp.as_block().map_or(0, |b| b.dvas().map(|d| (d.asize.0 >> 9) * DEFLATE).sum())
}

pub fn object(id: u64) -> ObjectId {
    ObjectId(id)
}
