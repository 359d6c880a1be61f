//! Blocks for which there is no contiguous extent.

use std::collections::HashSet;
use std::sync::Arc;

use base::rt::Mutex;
use base::{Asize, Dva, Error, ErrorKind, Guid, Psize, Result, Txg, VdevId};
use codec::checksum::Checksum;
use codec::checksum::embedded::verify_embedded;
use codec::compress::Compression;
use device::{Device, MemDevice};
use ondisk::blkptr::{BlkPtr, Block};
use ondisk::{Endian, ObjType};
use proptest::prelude::*;
use vdev::{LABEL_START, Spec, Tree, VdevKind};

use super::fixture::*;
use crate::write::submit::{DvaWrite, Sink, WriteDone};
use crate::write::{BlockLayout, Gangs, Outcome, SpaceSource, Want, Write, WriteProps, Writes};
use crate::{BlockCache, Io, Zio};

/// Extents of the given numbers of sectors each, far apart.
///
/// They used to be 128 KiB apart. Two of 34 sectors of 4 KiB overlapped, and data
/// written to one was lost at the other.
fn islands(sizes: &[u64], ashift: u32) -> Vec<(u64, u64)> {
    let at = |i: usize| (i as u64) << 18;
    assert!(sizes.iter().all(|n| n << ashift < at(1)), "islands overlap");
    sizes.iter().enumerate().map(|(i, n)| (at(i), at(i) + (n << ashift))).collect()
}

fn depth(zio: &Zio, block: &Block) -> usize {
    if !block.is_gang() {
        return 0;
    }
    let members = zio.gang_members(block, block.dva()).unwrap();
    1 + members.iter().map(|m| depth(zio, m)).max().unwrap_or(0)
}

/// Checks chapter 02 §9: pointers of members, sums of sizes, one asize for the whole
/// tree.
fn check_gang(zio: &Zio, leader: &Block) {
    check_pointer(zio, &BlkPtr::Block(*leader));
    if !leader.is_gang() {
        return;
    }
    let members = zio.gang_members(leader, leader.dva()).unwrap();
    assert_eq!(members.iter().map(|m| m.psize.0).sum::<u64>(), leader.psize.0);
    for (i, dva) in leader.dvas().enumerate() {
        let header = zio.tree().asize(dva.vdev, Psize(512), leader.head.birth).unwrap().0;
        let below: u64 = members.iter().filter_map(|m| m.dvas().nth(i)).map(|d| d.asize.0).sum();
        assert_eq!(dva.asize.0, header + below);
    }
    for m in &members {
        assert_eq!((m.head.object_type, m.head.level, m.fill), (ObjType::NONE, 0, 0));
        assert_eq!((m.compression, m.checksum), (2, leader.checksum));
        assert_eq!((m.head.lsize.0, m.head.birth), (m.psize.0, leader.head.birth));
        assert!(m.dvas().len() <= leader.dvas().len());
        check_gang(zio, m);
    }
}

fn freed(zio: &Zio, block: &Block) -> HashSet<(u32, u64, u64)> {
    let dvas = zio.dvas_to_free(block).unwrap();
    let set: HashSet<_> = dvas.iter().map(|d| (d.vdev.0, d.offset, d.asize.0)).collect();
    assert_eq!(set.len(), dvas.len(), "freed twice");
    set
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn a_block_without_a_contiguous_extent_is_scattered(
        sectors in 2u64..256,
        sizes in prop::collection::vec(1u64..40, 3..200),
        copies in 1u8..=3,
        header_copies in 1u8..=3,
        vdevs in 1usize..4,
        wide: bool,
        seed: u64,
        compress: bool,
        dead in prop::option::of(0u32..4),
    ) {
        let ashift = if wide { 12 } else { 9 };
        let pool = ZioFixture::fragmented(vec![islands(&sizes, ashift); vdevs], ashift);
        let data = if compress { words(sectors as usize * 512, seed) } else { noise(sectors as usize * 512, seed) };
        let alg = if compress { Compression::Lz4 } else { Compression::Off };
        let mut props = props(alg, Checksum::Blake3, copies);
        props.header_copies = header_copies;
        let w = Write { object_type: ObjType::SA, ..file(&data, &props) };
        let before = pool.space.taken();
        prop_assert!(before.is_empty());
        let placed = match pool.zio.place(pool.zio.prepare(&w).unwrap()) {
            Ok(placed) => placed,
            Err(e) => {
                prop_assert_eq!(e.kind(), ErrorKind::NoSpace);
                prop_assert!(pool.space.taken().is_empty(), "space is lost");
                return Ok(());
            }
        };
        if let Some(vdev) = dead {
            pool.disks.fate(vdev, WriteFate::Fails);
        }
        let writes = Writes::new(&pool.zio);
        let (bp, outcome) = (placed.bp, placed.outcome);
        let Some(block) = bp.as_block() else { return Ok(()) };
        prop_assert_eq!(block.is_gang(), outcome == Outcome::Gang);
        pool.disks.hold();
        pool.zio.submit(placed, &writes);
        // Readable, and its members known, before any write reached a disk.
        pool.zio.cache().clear();
        prop_assert!(*pool.zio.read(&bp, Io::WAIT).unwrap() == *data);
        prop_assert_eq!(freed(&pool.zio, block), pool.space.taken());
        pool.disks.serve(false);
        let lost = writes.wait();
        prop_assert_eq!(pool.zio.in_flight.len(), 0);
        prop_assert!(lost.iter().all(|l| Some(l.dva.vdev.0) == dead));

        let reader = pool.reader(ashift);
        reader.set_salt(&SALT);
        if lost.iter().all(|l| l.readable) {
            prop_assert!(*reader.read(&bp, Io::SCAN).unwrap() == *data);
            prop_assert_eq!(freed(&reader, block), pool.space.taken());
        } else {
            prop_assert!(reader.read(&bp, Io::SCAN).is_err());
        }
        if lost.is_empty() {
            check_gang(&reader, block);
            let checked = reader.check_copies(block);
            prop_assert_eq!((checked.faults.len(), checked.damaged), (0, 0));
        }
    }
}

#[test]
fn gangs_are_nested_as_deep_as_it_takes_and_no_deeper() {
    // 128 KiB in pieces of 4 KiB: 3 members of 3 members of 3 of 4.6 KiB, each of which
    // takes two pieces.
    let pool = ZioFixture::fragmented(vec![islands(&[8; 400], 9)], 9);
    let data = noise(131_072, 7);
    let props = plain(1);
    let bp = pool.write(&file(&data, &props));
    let block = bp.as_block().unwrap();
    let reader = pool.reader(9);
    assert_eq!(*reader.read(&bp, Io::SCAN).unwrap(), *data);
    assert!(depth(&reader, block) >= 3);
    check_gang(&reader, block);
    assert_eq!(freed(&reader, block), pool.space.taken());

    // Single sectors: 16 MiB would need more levels than a reader follows.
    let pool = ZioFixture::fragmented(vec![islands(&[1; 500], 9)], 9);
    let huge = noise(16 << 20, 8);
    let w = file(&huge, &props);
    let failed = pool.zio.place(pool.zio.prepare(&w).unwrap()).err().unwrap();
    assert_eq!(failed.kind(), ErrorKind::NoSpace);
    assert!(pool.space.taken().is_empty());
    // A block that is not written is released.
    let some = noise(8192, 9);
    let placed = pool.zio.place(pool.zio.prepare(&file(&some, &props)).unwrap()).unwrap();
    assert_eq!(placed.outcome, Outcome::Gang);
    assert!(!pool.space.taken().is_empty());
    pool.zio.unplace(placed);
    assert!(pool.space.taken().is_empty());
}

/// A pool in which 128 KiB could only be allocated in pieces never finished a txg,
/// because each pass gave its gang blocks new addresses.
#[test]
fn a_gang_of_this_group_is_rewritten_where_it_is() {
    let pool = ZioFixture::fragmented(vec![islands(&[8; 400], 9); 2], 9);
    let (one, two) = (noise(131_072, 1), noise(131_072, 2));
    let props = WriteProps { header_copies: 3, ..plain(2) };
    let gangs = Gangs::new();
    let kept = |w: Write<'_>| pool.write(&Write { gangs: Some(&gangs), ..w });
    let first = kept(file(&one, &props));
    let taken = pool.space.taken();
    assert!(depth(&pool.zio, first.as_block().unwrap()) >= 2);
    let again = Write { in_place: true, old: &first, ..file(&two, &props) };
    let second = kept(again);
    assert_eq!(pool.space.taken(), taken);
    let dvas = |bp: &BlkPtr| bp.as_block().unwrap().dvas().collect::<Vec<_>>();
    assert_eq!(dvas(&first), dvas(&second));
    assert_eq!(*pool.zio.read(&second, Io::MEMORY).unwrap(), *two);
    // Every header has the new checksums, in all its copies.
    let reader = pool.reader(9);
    assert_eq!(*reader.read(&second, Io::SCAN).unwrap(), *two);
    check_gang(&reader, second.as_block().unwrap());
    assert_eq!(freed(&reader, second.as_block().unwrap()), taken);
    let checked = reader.check_copies(second.as_block().unwrap());
    assert_eq!((checked.faults.len(), checked.damaged), (0, 0));

    // Another size, another number of copies, or a tree that was not kept: new
    // addresses.
    let short = noise(65_536, 3);
    let fresh = |w: Write<'_>| {
        let placed = pool.zio.place(pool.zio.prepare(&w).unwrap()).unwrap();
        assert_eq!(placed.outcome, Outcome::Gang);
        pool.zio.unplace(placed);
    };
    let base = Write { gangs: Some(&gangs), old: &second, ..again };
    fresh(Write { data: &short, ..base });
    fresh(Write { props: &WriteProps { header_copies: 3, ..plain(1) }, ..base });
    fresh(Write { gangs: None, ..base });
    fresh(Write { gangs: Some(&Gangs::new()), ..base });
    fresh(Write { in_place: false, ..base });
}

/// A raidz1 of four at id 6, as in the worked example of chapter 02 §9.
fn raidz() -> Arc<Zio> {
    let leaf = |i: u64| Spec::new(VdevKind::File, i, Guid(100 + i));
    let raidz = VdevKind::Raidz { nparity: 1, expand_txgs: Vec::new(), reflow: None };
    let top = Spec::new(raidz, 6, Guid(9))
        .with_children((0..4).map(leaf).collect())
        .with_space(9, 4 * (64 << 20));
    let holes = (0..6).map(|i| Spec::new(VdevKind::Hole, i, Guid(0)));
    let root = Spec::new(VdevKind::Root, 0, Guid(1)).with_children(holes.chain([top]).collect());
    let tree = Tree::build(&root, &|leaf| {
        let device: Arc<dyn Device> = Arc::new(MemDevice::new(format!("{:?}", leaf.guid), DISK));
        Ok(device)
    })
    .unwrap();
    Arc::new(Zio::new(tree, Arc::new(BlockCache::of(64 << 20).unwrap())))
}

/// One vdev that refuses the listed sizes, once each.
struct Refusing {
    tree: Arc<Tree>,
    refused: Mutex<Vec<u64>>,
    next: Mutex<u64>,
}

impl SpaceSource for Refusing {
    fn allocate(&self, want: &Want) -> Result<Vec<Dva>> {
        let mut refused = self.refused.lock();
        if let Some(i) = refused.iter().position(|&n| n == want.psize) {
            refused.remove(i);
            return Err(Error::new(ErrorKind::NoSpace, "refused"));
        }
        let asize = self.tree.asize(VdevId(6), Psize(want.psize), want.txg)?;
        let mut next = self.next.lock();
        let offset = *next;
        *next += asize.0;
        Ok(vec![Dva { vdev: VdevId(6), offset, asize, gang: false }])
    }

    fn unallocate(&self, _: Txg, _: &[Dva]) {}

    fn is_allocated(&self, _: Dva) -> bool {
        true
    }

    fn limits(&self) -> (u64, u64) {
        (512, 512)
    }
}

#[derive(Default)]
struct Capture(Mutex<Vec<DvaWrite>>);

impl Sink for Capture {
    fn write(self: Arc<Self>, write: DvaWrite, done: WriteDone) {
        self.0.lock().push(write);
        done(Ok(()), false);
    }
}

#[test]
fn the_worked_example_of_the_specification() {
    let zio = raidz();
    let space = Refusing {
        tree: zio.tree(),
        refused: Mutex::new(vec![1_048_576, 349_696]),
        next: Mutex::new(0x6b_cc00),
    };
    zio.set_space(Arc::new(space));
    let sink = Arc::new(Capture::default());
    zio.set_sink(Arc::clone(&sink) as _);
    let data = noise(1 << 20, 3);
    let props = WriteProps { header_copies: 1, ..plain(1) };
    let w = Write { txg: Txg(242), ..file(&data, &props) };
    let placed = zio.place(zio.prepare(&w).unwrap()).unwrap();
    assert!(matches!(placed.parts, Some((_, BlockLayout::Gang(_)))));
    let bp = placed.bp;
    let leader = *bp.as_block().unwrap();
    assert_eq!(leader.dva().to_string(), "<6:6bcc00:156400>");
    let writes = Writes::new(&zio);
    zio.submit(placed, &writes);
    assert!(writes.wait().is_empty());

    let written = sink.0.lock();
    let at = |offset: u64| &written.iter().find(|w| w.dva.offset == offset).unwrap().data;
    let members = |header: &[u8]| -> Vec<Block> {
        let nth = |i| *BlkPtr::parse_nth(header, i, Endian::Little).unwrap().as_block().unwrap();
        (0..3).map(nth).collect()
    };
    let header = at(0x6b_cc00);
    assert_eq!(header.len(), 512);
    assert!(header[384..472].iter().all(|&b| b == 0));
    verify_embedded(Checksum::GangHeader, header, 472, [6, 0x6b_cc00, 242, 0]).unwrap();
    let outer = members(header);
    let sizes = |m: &[Block]| m.iter().map(|m| (m.psize.0, m.dva().asize)).collect::<Vec<_>>();
    let (big, mid, small) = (Asize(467_968), Asize(466_944), Asize(465_920));
    assert_eq!(sizes(&outer), [(349_696, big), (349_696, mid), (349_184, small)]);
    assert_eq!(outer.iter().map(Block::is_gang).collect::<Vec<_>>(), [true, false, false]);
    let first = outer[0].dva();
    let inner = at(first.offset);
    verify_embedded(Checksum::GangHeader, inner, 472, [6, first.offset, 242, 0]).unwrap();
    assert!(members(inner).iter().all(|m| m.dva().asize == Asize(155_648)));
    let whole: Vec<u8> = members(inner)
        .iter()
        .chain(&outer[1..])
        .flat_map(|m| at(m.dva().offset).to_vec())
        .collect();
    assert!(whole == *data);
    assert_eq!(written.len(), 7);
}

#[test]
fn space_that_does_not_fit_is_noticed() {
    struct UnfitSpace(Arc<Tree>, u8);
    impl SpaceSource for UnfitSpace {
        fn allocate(&self, want: &Want) -> Result<Vec<Dva>> {
            let asize = self.0.asize(VdevId(0), Psize(want.psize), want.txg)?;
            let good = Dva { vdev: VdevId(0), offset: 0, asize, gang: false };
            Ok(vec![match self.1 {
                0 => Dva { asize: Asize(asize.0 - 512), ..good },
                1 => Dva { vdev: VdevId(7), ..good },
                2 => Dva { gang: true, ..good },
                _ => Dva { offset: 100, ..good },
            }])
        }
        fn unallocate(&self, _: Txg, dvas: &[Dva]) {
            assert_eq!(dvas.len(), 1);
        }
        fn is_allocated(&self, _: Dva) -> bool {
            true
        }
        fn limits(&self) -> (u64, u64) {
            (512, 512)
        }
    }
    for how in 0..4 {
        let pool = ZioFixture::new(1, 9);
        pool.zio.set_space(Arc::new(UnfitSpace(pool.zio.tree(), how)));
        let (data, props) = (noise(2048, 1), plain(1));
        let ready = pool.zio.prepare(&file(&data, &props)).unwrap();
        assert!(base::bug::is_met(|| pool.zio.place(ready)));
    }
}

#[test]
fn a_gang_without_a_readable_header_is_not_freed() {
    let pool = ZioFixture::fragmented(vec![islands(&[8; 40], 9)], 9);
    let (data, mut props) = (noise(16_384, 1), plain(1));
    props.header_copies = 2;
    let bp = pool.write(&file(&data, &props));
    let block = bp.as_block().unwrap();
    assert_eq!(block.dvas().len(), 2);
    let reader = pool.reader(9);
    for (i, dva) in block.dvas().enumerate() {
        assert_eq!(freed(&reader, block), pool.space.taken(), "{i} headers are bad");
        pool.disks.disks[0].poke(LABEL_START + dva.offset, &[0xff; 512]).unwrap();
    }
    assert!(reader.dvas_to_free(block).is_err());
}

/// The last check before a device gets a block.
#[test]
fn a_block_at_a_free_address_is_not_written() {
    let pool = ZioFixture::new(1, 9);
    let (data, props) = (noise(2048, 1), plain(1));
    let ready = pool.zio.prepare(&file(&data, &props)).unwrap();
    let placed = pool.zio.place(ready).unwrap();
    let dva = placed.bp.as_block().unwrap().dva();
    pool.space.unallocate(T, &[dva]);
    let writes = Writes::new(&pool.zio);
    let refused = || {
        pool.zio.submit(placed, &writes);
        writes.wait().pop().map_or(Ok(()), |lost| Err(lost.error))
    };
    assert!(base::bug::is_met(refused));
    let there = pool.disks.disks[0].peek(LABEL_START + dva.offset, 2048).unwrap();
    assert!(there.iter().all(|byte| *byte == 0));
}
