//! Blocks written through real vdev trees and read back, completely and with leaves
//! missing.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::sync::Arc;

use base::rt::Mutex;
use base::{Asize, Buf, Dva, Error, ErrorKind, Guid, Psize, Result, Txg, VdevId};
use codec::checksum::Checksum;
use codec::compress::Compression;
use device::{Device, Fault, FaultDevice, MemDevice};
use ondisk::blkptr::BlkPtr;
use ondisk::{Endian, ObjType};
use vdev::{LABEL_START, Spec, Tree, VdevKind};
use zio::{
    BlockCache, Io, OutagePolicy, Placed, SpaceSource, Want, Write, WriteProps, Writes, Zio,
    chunks_in_order,
};

const DISK: u64 = 80 << 20;
const T: Txg = Txg(9);
const FILE_DATA: ObjType = ObjType::PLAIN_FILE_CONTENTS;

fn tree(shape: &VdevKind, leaves: usize, ashift: u32, disks: &[Arc<dyn Device>]) -> Arc<Tree> {
    let leaf = |i: usize| Spec::new(VdevKind::File, i as u64, Guid(100 + i as u64));
    let space = leaves as u64 * (DISK - LABEL_START - (512 << 10));
    let (width, top) = match shape {
        VdevKind::File => (leaves as u64, leaf(0)),
        VdevKind::Mirror => (leaves as u64, Spec::new(shape.clone(), 0, Guid(9))),
        _ => (1, Spec::new(shape.clone(), 0, Guid(9))),
    };
    let top = match shape {
        VdevKind::File => top,
        _ => top.with_children((0..leaves).map(leaf).collect()),
    }
    .with_space(ashift, (space / width) & !((1 << 20) - 1));
    let root = Spec::new(VdevKind::Root, 0, Guid(1)).with_children(vec![top]);
    let disks = disks.to_vec();
    Tree::build(&root, &move |leaf| Ok(Arc::clone(&disks[leaf.guid.0 as usize - 100]))).unwrap()
}

/// First-fit allocator with extents of at most `island` bytes.
struct FirstFitSpace {
    tree: Arc<Tree>,
    island: u64,
    next: Mutex<u64>,
    min: u64,
}

impl SpaceSource for FirstFitSpace {
    fn allocate(&self, want: &Want) -> Result<Vec<Dva>> {
        let asize = self.tree.asize(VdevId(0), Psize(want.psize), want.txg)?;
        if asize.0 > self.island {
            return Err(Error::new(ErrorKind::NoSpace, "no place is so large"));
        }
        let mut next = self.next.lock();
        let place = |_| {
            let offset = *next;
            *next += asize.0;
            Dva { vdev: VdevId(0), offset, asize: Asize(asize.0), gang: false }
        };
        Ok((0..want.copies).map(place).collect())
    }

    fn unallocate(&self, _: Txg, _: &[Dva]) {}

    fn is_allocated(&self, dva: Dva) -> bool {
        dva.offset + dva.asize.0 <= *self.next.lock()
    }

    fn limits(&self) -> (u64, u64) {
        (self.min, self.min)
    }
}

struct TreeFixture {
    zio: Arc<Zio>,
    disks: Vec<Arc<FaultDevice>>,
    reader: Arc<Zio>,
}

impl TreeFixture {
    fn new(shape: &VdevKind, leaves: usize, ashift: u32, island: u64) -> TreeFixture {
        let disk = |i| {
            Arc::new(FaultDevice::new(Arc::new(MemDevice::new(format!("d{i}"), DISK as usize))))
        };
        let disks: Vec<_> = (0..leaves).map(disk).collect();
        let devices: Vec<Arc<dyn Device>> = disks.iter().map(|d| Arc::clone(d) as _).collect();
        let load = || {
            let cache = Arc::new(BlockCache::of(64 << 20).unwrap());
            Arc::new(Zio::new(tree(shape, leaves, ashift, &devices), cache))
        };
        let (zio, reader) = (load(), load());
        let space =
            FirstFitSpace { tree: zio.tree(), island, next: Mutex::new(0), min: 1 << ashift };
        zio.set_space(Arc::new(space));
        TreeFixture { zio, disks, reader }
    }

    /// Writes all blocks, four at a time.
    fn write(&self, blocks: &[Buf], props: &WriteProps, writes: &Writes) -> Vec<BlkPtr> {
        let never = BlkPtr::default();
        let placed = Mutex::new(Vec::new());
        let prepare = |i: usize| {
            self.zio.prepare(&Write {
                object_type: FILE_DATA,
                level: 0,
                data: &blocks[i],
                fill: 1,
                txg: T,
                props,
                old: &never,
                change: zio::BlockChange::Content,
                in_place: false,
                gangs: None,
                hint: 1,
                packed: None,
                seal: None,
                in_run: false,
                cache: i.is_multiple_of(2),
                outage: OutagePolicy::Fail,
            })
        };
        let place = |_, p| {
            let p = self.zio.place(p)?;
            placed.lock().push(p.bp);
            Ok(p)
        };
        let submit = |_, all: Vec<Placed>| {
            all.into_iter().for_each(|p| self.zio.submit(p, writes));
            Ok(())
        };
        chunks_in_order(4, blocks.len(), 16, prepare, place, submit).unwrap();
        placed.into_inner()
    }
}

fn blocks(n: u64) -> Vec<Buf> {
    let mut x = 88_172_645_463_325_252u64;
    let mut next = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let mut block = |i: u64| {
        let len = 512 * (1 + next() % if i.is_multiple_of(3) { 8 } else { 256 }) as usize;
        let mask = if i.is_multiple_of(2) { 0xff } else { 0x01 };
        Buf::copy_of(&(0..len).map(|_| next() as u8 & mask).collect::<Vec<u8>>())
    };
    (0..n).map(&mut block).collect()
}

fn raidz(nparity: u8) -> VdevKind {
    VdevKind::Raidz { nparity, expand_txgs: Vec::new(), reflow: None }
}

#[test]
fn every_kind_of_vdev_gives_back_what_was_written() {
    let shapes = [
        (VdevKind::File, 1, 0),
        (VdevKind::Mirror, 3, 2),
        (raidz(1), 4, 1),
        (raidz(2), 5, 2),
        (raidz(3), 6, 3),
    ];
    for (shape, leaves, spare) in shapes {
        for (ashift, island) in [(9, u64::MAX), (12, u64::MAX), (9, 24 << 10), (12, 96 << 10)] {
            let pool = TreeFixture::new(&shape, leaves, ashift, island);
            let data = blocks(48);
            let props = WriteProps {
                compression: Compression::Lz4,
                checksum: Checksum::Fletcher4,
                ..WriteProps::default()
            };
            let writes = Writes::new(&pool.zio);
            let bps = pool.write(&data, &props, &writes);
            let lost = writes.wait();
            assert!(lost.is_empty(), "{shape:?} {lost:?}");
            assert!(writes.counts().partial == 0 && writes.counts().retries == 0);
            let gangs = bps.iter().filter_map(BlkPtr::as_block).filter(|b| b.is_gang()).count();
            assert_eq!(gangs > 0, island < u64::MAX, "{shape:?} {ashift}");
            for (bp, data) in bps.iter().zip(&data) {
                let raw = bp.encode().unwrap();
                assert_eq!(BlkPtr::parse(&raw, Endian::Little).unwrap(), *bp);
                assert_eq!(*pool.zio.read(bp, Io::WAIT).unwrap(), **data);
                let Some(block) = bp.as_block() else { continue };
                let checked = pool.reader.check_copies(block);
                assert_eq!((checked.readable, checked.damaged), (block.dvas().len(), 0));
            }
            // As many leaves as redundancy allows are lost.
            pool.disks[..spare].iter().for_each(|d| d.inject(Fault::FailReads(0..u64::MAX)));
            for (bp, data) in bps.iter().zip(&data) {
                assert_eq!(*pool.reader.read(bp, Io::SCAN).unwrap(), **data);
            }
        }
    }
}

#[test]
fn leaves_that_fail_leave_degraded_or_lost_blocks() {
    let props = WriteProps { compression: Compression::Off, ..WriteProps::default() };
    for (shape, leaves, spare) in [(VdevKind::Mirror, 3, 2), (raidz(2), 5, 2)] {
        for dead in 0..=spare + 1 {
            let pool = TreeFixture::new(&shape, leaves, 9, u64::MAX);
            let data = blocks(20);
            pool.disks[..dead].iter().for_each(|d| d.inject(Fault::FailWrites(0..u64::MAX)));
            let writes = Writes::new(&pool.zio);
            let bps = pool.write(&data, &props, &writes);
            let lost = writes.wait();
            if dead > spare {
                // Short raidz blocks have no column on some leaves.
                assert!(!lost.is_empty() && lost.iter().all(|l| !l.readable));
                assert_eq!(writes.counts().retries, lost.len() as u64);
                continue;
            }
            assert!(lost.is_empty(), "{shape:?} {lost:?}");
            assert_eq!(writes.counts().partial > 0, dead > 0);
            // Blocks that failed read as if nothing had been written there.
            for (bp, data) in bps.iter().zip(&data) {
                assert_eq!(*pool.reader.read(bp, Io::SCAN).unwrap(), **data);
            }
        }
    }
}
