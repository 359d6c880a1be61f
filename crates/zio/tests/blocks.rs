//! Gang blocks and ditto copies, built by hand on a memory device.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::sync::Arc;

use base::{Asize, Dva, ErrorKind, Guid, Psize, Txg, VdevId};
use codec::checksum::embedded::compute_embedded;
use codec::checksum::{Checksum, SaltTemplate, compute};
use device::MemDevice;
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
