//! Gang blocks and ditto copies, built by hand on a memory device.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::sync::Arc;

use base::{Asize, Dva, ErrorKind, Guid, Psize, Txg, VdevId};
use codec::checksum::embedded::compute_embedded;
use codec::checksum::{Checksum, SaltTemplate, compute};
use device::{Device, MemDevice};
use ondisk::blkptr::{BLKPTR_SIZE, BlkPtr, Block};
use ondisk::{Endian, ObjType};
use vdev::{LABEL_START, Spec, Tree, VdevKind};
use zio::{BlockCache, Io, Zio};

const BIRTH: u64 = 77;
const ECK: usize = 40;
const SIZE: usize = 80 << 20;

struct GangFixture {
    disk: Arc<MemDevice>,
    zio: Zio,
    next: u64,
}

impl GangFixture {
    fn new() -> GangFixture {
        let disk = Arc::new(MemDevice::new("disk", SIZE));
        let leaf = Spec::new(VdevKind::File, 0, Guid(2))
            .with_space(9, SIZE as u64 - LABEL_START - (512 << 10));
        let root = Spec::new(VdevKind::Root, 0, Guid(1)).with_children(vec![leaf]);
        let device = Arc::clone(&disk);
        let tree = Tree::build(&root, &move |_| Ok(Arc::clone(&device) as _)).unwrap();
        GangFixture {
            disk,
            zio: Zio::new(tree, Arc::new(BlockCache::of(64 << 20).unwrap())),
            next: 0,
        }
    }

    fn alloc(&mut self, size: usize, gang: bool) -> Dva {
        let offset = self.next;
        self.next += size.next_multiple_of(512) as u64;
        Dva { vdev: VdevId(0), offset, asize: Asize(size.next_multiple_of(512) as u64), gang }
    }

    fn write(&self, dva: Dva, bytes: &[u8]) {
        self.disk.poke(LABEL_START + dva.offset, bytes).unwrap();
    }

    /// A plain block with this content.
    fn plain(&mut self, data: &[u8], copies: usize) -> Block {
        let dvas: Vec<Dva> = (0..copies).map(|_| self.alloc(data.len(), false)).collect();
        dvas.iter().for_each(|&d| self.write(d, data));
        block(data, &dvas)
    }

    /// A gang of these members, which together hold `data`.
    fn gang(&mut self, data: &[u8], members: &[Block]) -> Block {
        let dva = self.alloc(512, true);
        let mut header = vec![0; 512];
        for (slot, member) in header.chunks_exact_mut(BLKPTR_SIZE).zip(members) {
            slot.copy_from_slice(&BlkPtr::Block(*member).encode().unwrap());
        }
        let verifier = [0, dva.offset, BIRTH, 0];
        compute_embedded(Checksum::GangHeader, &mut header, 512 - ECK, verifier).unwrap();
        self.write(dva, &header);
        block(data, &[dva])
    }
}

fn block(data: &[u8], dvas: &[Dva]) -> Block {
    let sectors = (data.len() / 512 - 1) as u64;
    let words = compute(Checksum::Fletcher4, data, &SaltTemplate::new(&[0; 32]), false);
    let prop = sectors
        | sectors << 16
        | 2 << 32
        | u64::from(Checksum::Fletcher4.id()) << 40
        | u64::from(ObjType::PLAIN_FILE_CONTENTS.0) << 48
        | 1 << 63;
    let mut raw = [0u8; BLKPTR_SIZE];
    let mut put = |word: usize, value: u64| {
        raw[word * 8..word * 8 + 8].copy_from_slice(&value.to_le_bytes());
    };
    put(0, 1);
    put(6, prop);
    put(10, BIRTH);
    put(11, 1);
    (0..4).for_each(|i| put(12 + i, words[i]));
    let BlkPtr::Block(b) = BlkPtr::parse(&raw, Endian::Little).unwrap() else { panic!() };
    assert_eq!((b.head.birth, b.psize), (Txg(BIRTH), Psize(data.len() as u64)));
    b.with_dvas(dvas)
}

fn data(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed;
    (0..len)
        .map(|_| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (x >> 56) as u8
        })
        .collect()
}

#[test]
fn a_gang_of_a_gang_reads_whole() {
    let mut pool = GangFixture::new();
    let all = data(64 << 10, 1);
    let (a, rest) = all.split_at(24 << 10);
    let (b, c) = rest.split_at(512);
    let (c1, c2) = c.split_at(8 << 10);
    let inner = [pool.plain(c1, 1), pool.plain(c2, 2)];
    let members = [pool.plain(a, 2), pool.plain(b, 1), pool.gang(c, &inner)];
    let leader = pool.gang(&all, &members);
    assert!(leader.is_gang());
    let bp = BlkPtr::Block(leader);
    assert_eq!(pool.zio.read(&bp, Io::MEMORY).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(*pool.zio.read(&bp, Io::WAIT).unwrap(), *all);
    // Now from memory.
    assert_eq!(*pool.zio.read(&bp, Io::MEMORY).unwrap(), *all);

    // A damaged copy of a member is replaced by the other one.
    pool.write(members[0].dva(), &[0xff; 512]);
    assert_eq!(*pool.zio.read(&bp, Io::SCAN).unwrap(), *all);
    let errors = pool.zio.tree().find(Guid(2)).unwrap().errors();
    assert_eq!((errors.read, errors.cksum), (0, 1));

    // Without another copy, the whole block is lost, and the error says so.
    pool.write(members[1].dva(), &[0xff; 512]);
    assert_eq!(pool.zio.read(&bp, Io::SCAN).unwrap_err().kind(), ErrorKind::Checksum);
}

#[test]
fn a_gang_whose_members_do_not_add_up_is_refused() {
    let mut pool = GangFixture::new();
    let all = data(4096, 2);
    let members = [pool.plain(&all[..2048], 1), pool.plain(&all[2048..3584], 1)];
    let leader = BlkPtr::Block(pool.gang(&all, &members));
    assert_eq!(pool.zio.read(&leader, Io::WAIT).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_header_at_another_address_does_not_verify() {
    let mut pool = GangFixture::new();
    let all = data(1024, 3);
    let members = [pool.plain(&all, 1)];
    let leader = pool.gang(&all, &members);
    let header = pool.disk.peek(LABEL_START + leader.dva().offset, 512).unwrap();
    let elsewhere = pool.alloc(512, true);
    pool.write(elsewhere, &header);
    let moved = BlkPtr::Block(leader.with_dvas(&[elsewhere]));
    assert_eq!(pool.zio.read(&moved, Io::WAIT).unwrap_err().kind(), ErrorKind::Checksum);
}

#[test]
fn ditto_copies_stand_in_for_each_other() {
    let mut pool = GangFixture::new();
    let all = data(8192, 4);
    let b = pool.plain(&all, 3);
    for (i, dva) in b.dvas().enumerate() {
        assert_eq!(*pool.zio.read(&BlkPtr::Block(b), Io::SCAN).unwrap(), *all, "copy {i}");
        pool.write(dva, &data(8192, 99));
    }
    let error = pool.zio.read(&BlkPtr::Block(b), Io::SCAN).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Checksum);
    assert!(error.to_string().contains("none of the block's 3 copies"), "{error}");
}

/// A file's blocks: small ones one behind the other, a gang, a block with a damaged first copy,
/// a lost block, a large one and a hole.
fn file(pool: &mut GangFixture) -> Vec<(BlkPtr, Vec<u8>)> {
    let mut all: Vec<(BlkPtr, Vec<u8>)> = Vec::new();
    for i in 0..40 {
        let data = data(8192, 100 + i);
        let block = match i {
            11 => {
                let (a, b) = data.split_at(4096);
                let members = [pool.plain(a, 1), pool.plain(b, 1)];
                pool.gang(&data, &members)
            }
            17 | 18 => pool.plain(&data, 2),
            _ => pool.plain(&data, 1),
        };
        match i {
            17 => pool.write(block.dva(), &[0xff; 512]),
            23 => pool.write(block.dva(), &[0xee; 512]),
            _ => {}
        }
        all.push((BlkPtr::Block(block), data));
    }
    let large = data(128 << 10, 7);
    all.push((BlkPtr::Block(pool.plain(&large, 1)), large));
    all.push((BlkPtr::default(), Vec::new()));
    all
}

#[test]
fn blocks_read_ahead_together_are_those_read_alone() {
    let mut pool = GangFixture::new();
    let blocks = file(&mut pool);
    let bps: Vec<BlkPtr> = blocks.iter().map(|b| b.0).collect();
    let leaf_errors = |pool: &GangFixture| {
        let errors = pool.zio.tree().find(Guid(2)).unwrap().errors();
        let top = pool.zio.tree().top(VdevId(0)).unwrap().errors();
        (errors.read, errors.cksum, top.cksum)
    };
    // What single reads count.
    let mut alone = GangFixture::new();
    file(&mut alone);
    bps.iter().for_each(|bp| drop(alone.zio.read(bp, Io::PREFETCH)));
    let single = alone.disk.stats().snapshot().reads;

    pool.zio.read_ahead(&bps, Io::PREFETCH);
    assert_eq!(leaf_errors(&pool), leaf_errors(&alone), "each error is counted once");
    assert_ne!(leaf_errors(&pool).1, 0);
    let together = pool.disk.stats().snapshot().reads;
    assert!(together * 3 < single, "{together} of {single} requests");
    for (i, (bp, data)) in blocks.iter().enumerate() {
        if i == 23 {
            // Lost: nothing of it is kept, and its reader gets the error.
            assert_eq!(pool.zio.read(bp, Io::MEMORY).unwrap_err().kind(), ErrorKind::WouldBlock);
            assert_eq!(pool.zio.read(bp, Io::WAIT).unwrap_err().kind(), ErrorKind::Checksum);
        } else if !data.is_empty() {
            assert_eq!(*pool.zio.read(bp, Io::MEMORY).unwrap(), **data, "block {i}");
        }
    }
    // All are in memory now, except the lost one.
    let before = pool.disk.stats().snapshot().reads;
    let present: Vec<BlkPtr> = (0..bps.len()).filter(|i| *i != 23).map(|i| bps[i]).collect();
    pool.zio.read_ahead(&present, Io::PREFETCH);
    assert_eq!(pool.disk.stats().snapshot().reads, before);
}

/// Two threads read the same blocks ahead, and others read them: each block is read once.
#[test]
fn batches_of_the_same_blocks_do_not_read_twice() {
    let mut pool = GangFixture::new();
    let blocks: Vec<(BlkPtr, Vec<u8>)> = (0..128)
        .map(|i| data(8192, 500 + i))
        .map(|data| (BlkPtr::Block(pool.plain(&data, 1)), data))
        .collect();
    let bps: Vec<BlkPtr> = blocks.iter().map(|b| b.0).collect();
    base::rt::fan_out(4, |n| match n {
        0 => pool.zio.read_ahead(&bps, Io::PREFETCH),
        1 => bps.chunks(10).rev().for_each(|some| pool.zio.read_ahead(some, Io::PRESCIENT)),
        _ => {
            for (bp, data) in &blocks {
                assert_eq!(*pool.zio.read(bp, Io::WAIT).unwrap(), **data);
            }
        }
    });
    let read = pool.disk.stats().snapshot().bytes_read;
    assert_eq!(read, 128 * 8192, "no gap, and nothing twice");
    // Without a cache nothing is read ahead; from memory alone neither.
    let mut other = GangFixture::new();
    let bp = BlkPtr::Block(other.plain(&data(8192, 1), 1));
    other.zio.read_ahead(&[bp, bp], Io::MEMORY);
    assert_eq!(other.disk.stats().snapshot().reads, 0);
    other.zio.read_ahead(&[bp, bp], Io::PREFETCH);
    assert_eq!(other.disk.stats().snapshot().reads, 1);
}
