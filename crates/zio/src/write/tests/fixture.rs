//! Devices in memory, an allocator with chosen extents, and a sink that fails, delays
//! and records writes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use base::rt::Mutex;
use base::{Asize, Buf, Dva, Error, ErrorKind, Guid, Psize, Result, Txg, VdevId};
use codec::checksum::Checksum;
use codec::compress::Compression;
use device::{Device, MemDevice};
use ondisk::ObjType;
use ondisk::blkptr::{BlkPtr, Block};
use vdev::{LABEL_START, Spec, Tree, VdevKind};

use crate::write::submit::{DvaWrite, Sink, WriteDone};
use crate::{BlockCache, OutagePolicy, SpaceSource, Want, Write, WriteProps, Writes, Zio};

pub(super) const DISK: usize = 80 << 20;
pub(super) const T: Txg = Txg(77);
pub(super) const SALT: [u8; 32] = [9; 32];

/// Free space by vdev: start and end of extents, and what is allocated.
#[derive(Default)]
struct Map {
    free: Vec<Vec<(u64, u64)>>,
    taken: BTreeMap<(u32, u64), u64>,
    next: usize,
}

/// First-fit allocator over extents that a test chooses.
pub(super) struct ExtentSpace {
    tree: Arc<Tree>,
    map: Mutex<Map>,
    pub(super) min: u64,
    pub(super) gcd: u64,
}

impl ExtentSpace {
    pub(super) fn new(tree: &Arc<Tree>, extents: Vec<Vec<(u64, u64)>>, min: u64) -> ExtentSpace {
        let map = Map { free: extents, ..Map::default() };
        ExtentSpace { tree: Arc::clone(tree), map: Mutex::new(map), min, gcd: min }
    }

    pub(super) fn taken(&self) -> HashSet<(u32, u64, u64)> {
        self.map.lock().taken.iter().map(|(&(v, o), &n)| (v, o, n)).collect()
    }

    fn take_one(map: &mut Map, vdev: usize, asize: u64) -> Option<Dva> {
        let extent = map.free[vdev].iter_mut().find(|(from, to)| to - from >= asize)?;
        let offset = extent.0;
        extent.0 += asize;
        assert!(map.taken.insert((vdev as u32, offset), asize).is_none(), "taken twice");
        Some(Dva { vdev: VdevId(vdev as u32), offset, asize: Asize(asize), gang: false })
    }

    fn give(map: &mut Map, dva: &Dva) {
        let at = (dva.vdev.0, dva.offset);
        assert_eq!(map.taken.remove(&at), Some(dva.asize.0), "{dva} was not taken so");
        let end = dva.offset + dva.asize.0;
        map.free[dva.vdev.0 as usize].push((dva.offset, end));
    }
}

impl SpaceSource for ExtentSpace {
    fn allocate(&self, want: &Want) -> Result<Vec<Dva>> {
        let map = &mut *self.map.lock();
        let n = map.free.len();
        let mut out: Vec<Dva> = Vec::new();
        let start = map.next;
        // Prefer other vdevs, then any.
        for i in 0..2 * n {
            let vdev = (start + i) % n;
            let used = out.iter().any(|d| d.vdev.0 as usize == vdev);
            if out.len() == usize::from(want.copies) || (used && i < n) {
                continue;
            }
            let asize = self.tree.asize(VdevId(vdev as u32), Psize(want.psize), want.txg)?.0;
            while out.len() < usize::from(want.copies) {
                let Some(dva) = ExtentSpace::take_one(map, vdev, asize) else { break };
                out.push(dva);
                if i < n {
                    break;
                }
            }
        }
        if out.len() == usize::from(want.copies) {
            map.next = (start + 1) % n;
            return Ok(out);
        }
        out.iter().for_each(|d| ExtentSpace::give(map, d));
        Err(Error::new(ErrorKind::NoSpace, "no extent is so large"))
    }

    fn unallocate(&self, txg: Txg, dvas: &[Dva]) {
        assert_eq!(txg, T);
        let map = &mut *self.map.lock();
        dvas.iter().for_each(|d| ExtentSpace::give(map, d));
    }

    fn is_allocated(&self, dva: Dva) -> bool {
        self.map.lock().taken.get(&(dva.vdev.0, dva.offset)) == Some(&dva.asize.0)
    }

    fn limits(&self) -> (u64, u64) {
        (self.min, self.gcd)
    }
}

/// How the sink handles a write.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum WriteFate {
    Fails,
    FailsOnce,
}

/// Writes to the disks, unless the test requests a failure.
pub(super) struct FaultySink {
    pub(super) disks: Vec<Arc<MemDevice>>,
    fates: Mutex<HashMap<u32, WriteFate>>,
    seen: Mutex<HashMap<(u32, u64), u32>>,
    /// While this is a list, writes are held in it.
    held: Mutex<Option<Vec<(DvaWrite, WriteDone)>>>,
    bytes: AtomicU64,
    pub(super) most: AtomicU64,
}

impl FaultySink {
    pub(super) fn fate(&self, vdev: u32, fate: WriteFate) {
        self.fates.lock().insert(vdev, fate);
    }

    pub(super) fn hold(&self) {
        *self.held.lock() = Some(Vec::new());
    }

    pub(super) fn held(&self) -> usize {
        self.held.lock().as_ref().map_or(0, Vec::len)
    }

    /// Completes held writes, the last one first; continues to hold new ones if `more`.
    pub(super) fn serve(&self, more: bool) {
        let held = std::mem::replace(&mut *self.held.lock(), more.then(Vec::new));
        for (write, done) in held.into_iter().flatten().rev() {
            self.finish(write, done);
        }
    }

    fn finish(&self, write: DvaWrite, done: WriteDone) {
        let DvaWrite { dva, data, .. } = write;
        let n = data.len() as u64;
        let times = {
            let mut seen = self.seen.lock();
            let times = seen.entry((dva.vdev.0, dva.offset)).or_default();
            *times += 1;
            *times
        };
        let fate = self.fates.lock().get(&dva.vdev.0).copied();
        let fails =
            fate == Some(WriteFate::Fails) || (fate == Some(WriteFate::FailsOnce) && times == 1);
        let result = if fails {
            Err(Error::new(ErrorKind::Io, "requested failure"))
        } else {
            self.disks[dva.vdev.0 as usize].poke(LABEL_START + dva.offset, &data)
        };
        drop(data);
        self.bytes.fetch_sub(n, SeqCst);
        done(result, false);
    }
}

impl Sink for FaultySink {
    fn write(self: Arc<Self>, write: DvaWrite, done: WriteDone) {
        let now = self.bytes.fetch_add(write.data.len() as u64, SeqCst) + write.data.len() as u64;
        self.most.fetch_max(now, SeqCst);
        let mut held = self.held.lock();
        match &mut *held {
            Some(list) => list.push((write, done)),
            None => {
                drop(held);
                self.finish(write, done);
            }
        }
    }
}

pub(super) struct ZioFixture {
    pub(super) zio: Arc<Zio>,
    pub(super) disks: Arc<FaultySink>,
    pub(super) space: Arc<ExtentSpace>,
}

fn zio_over(disks: &[Arc<MemDevice>], ashift: u32) -> Arc<Zio> {
    let leaf = |i: usize| {
        Spec::new(VdevKind::File, i as u64, Guid(2 + i as u64))
            .with_space(ashift, DISK as u64 - LABEL_START - (512 << 10))
    };
    let root =
        Spec::new(VdevKind::Root, 0, Guid(1)).with_children((0..disks.len()).map(leaf).collect());
    let devices = disks.to_vec();
    let tree = Tree::build(&root, &move |leaf| {
        let device: Arc<dyn Device> = Arc::clone(&devices[leaf.guid.0 as usize - 2]) as _;
        Ok(device)
    })
    .unwrap();
    let zio = Zio::new(tree, Arc::new(BlockCache::of(64 << 20).unwrap()));
    zio.set_salt(&SALT);
    Arc::new(zio)
}

impl ZioFixture {
    /// `n` single disks that are completely free.
    pub(super) fn new(n: usize, ashift: u32) -> ZioFixture {
        ZioFixture::fragmented(vec![vec![(0, 64 << 20)]; n], ashift)
    }

    /// Disks with these free extents.
    pub(super) fn fragmented(extents: Vec<Vec<(u64, u64)>>, ashift: u32) -> ZioFixture {
        let disks: Vec<_> = (0..extents.len())
            .map(|i| Arc::new(MemDevice::new(format!("disk{i}"), DISK)))
            .collect();
        let zio = zio_over(&disks, ashift);
        let space = Arc::new(ExtentSpace::new(&zio.tree(), extents, 1 << ashift));
        zio.set_space(Arc::clone(&space) as _);
        let disks = Arc::new(FaultySink {
            disks,
            fates: Mutex::default(),
            seen: Mutex::default(),
            held: Mutex::default(),
            bytes: AtomicU64::new(0),
            most: AtomicU64::new(0),
        });
        zio.set_sink(Arc::clone(&disks) as _);
        ZioFixture { zio, disks, space }
    }

    /// Another load of the same disks, with nothing in memory.
    pub(super) fn reader(&self, ashift: u32) -> Arc<Zio> {
        zio_over(&self.disks.disks, ashift)
    }

    /// Writes one block and waits for it.
    pub(super) fn write(&self, w: &Write<'_>) -> BlkPtr {
        let writes = Writes::new(&self.zio);
        let placed = self.zio.place(self.zio.prepare(w).unwrap()).unwrap();
        let bp = placed.bp;
        self.zio.submit(placed, &writes);
        let lost = writes.wait();
        assert!(lost.is_empty(), "{lost:?}");
        assert_eq!(self.zio.in_flight.len(), 0);
        bp
    }
}

pub(super) static NEVER: BlkPtr = BlkPtr::Hole(ondisk::blkptr::Hole {
    head: ondisk::blkptr::Head {
        object_type: ObjType::NONE,
        level: 0,
        lsize: base::Lsize(0),
        birth: Txg::ZERO,
    },
});

/// File data in txg [`T`], replacing nothing.
pub(super) fn file<'a>(data: &'a Buf, props: &'a WriteProps) -> Write<'a> {
    Write {
        object_type: ObjType::PLAIN_FILE_CONTENTS,
        level: 0,
        data,
        fill: 1,
        txg: T,
        props,
        old: &NEVER,
        change: crate::BlockChange::Content,
        in_place: false,
        gangs: None,
        hint: 0,
        packed: None,
        seal: None,
        in_run: false,
        cache: true,
        outage: OutagePolicy::Fail,
    }
}

pub(super) fn props(compression: Compression, checksum: Checksum, copies: u8) -> WriteProps {
    WriteProps { compression, checksum, copies, ..WriteProps::default() }
}

pub(super) fn plain(copies: u8) -> WriteProps {
    props(Compression::Off, Checksum::Fletcher4, copies)
}

pub(super) fn noise(len: usize, seed: u64) -> Buf {
    let mut x = seed | 1;
    let bytes: Vec<u8> = (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect();
    Buf::copy_of(&bytes)
}

/// Compresses to about half its size.
pub(super) fn words(len: usize, seed: u64) -> Buf {
    const WORDS: [&[u8; 8]; 8] = [
        b"checksum",
        b"metaslab",
        b"pointers",
        b"birth of",
        b" blocks ",
        b"ditto an",
        b"d gangs.",
        b"leaf vde",
    ];
    let mut bytes = noise(len, seed).to_vec();
    for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
        if i % 4 != 0 {
            word.copy_from_slice(WORDS[usize::from(word[0] & 7)]);
        }
    }
    Buf::copy_of(&bytes)
}

/// Checks the rules for readers (chapter 02 §2.6), and that the block is stored
/// accordingly.
pub(super) fn check_pointer(zio: &Zio, bp: &BlkPtr) {
    let raw = bp.encode().unwrap();
    assert_eq!(BlkPtr::parse(&raw, ondisk::Endian::Little).unwrap(), *bp);
    if let BlkPtr::Block(block) = bp {
        check_addresses(zio, block);
    }
}

fn check_addresses(zio: &Zio, block: &Block) {
    let tree = zio.tree();
    for dva in block.dvas() {
        let top = tree.top(dva.vdev).unwrap();
        assert!(dva.asize.0 > 0 && dva.asize.0.is_multiple_of(1 << top.ashift()));
        assert!(dva.offset.is_multiple_of(1 << top.ashift()));
        assert!(dva.offset < top.asize());
        assert_eq!(dva.gang, block.is_gang());
        if !dva.gang {
            assert_eq!(dva.asize, tree.asize(dva.vdev, block.psize, block.head.birth).unwrap());
        }
    }
}
