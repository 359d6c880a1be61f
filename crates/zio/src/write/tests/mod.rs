//! Blocks that were written are read back.

mod faults;
mod fixture;
mod gangs;

use base::{Buf, BufMut, Lsize, Psize, Txg};
use codec::checksum::Checksum;
use codec::compress::{Compression, ZstdLevel};
use ondisk::ObjType;
use ondisk::blkptr::{BlkPtr, COMPRESS_OFF};
use proptest::prelude::*;

use super::prepare::compressed_max;
use super::{Outcome, Write, WriteProps, Writes};
use crate::{Caching, Io};
use fixture::*;

const ALGS: [Compression; 8] = [
    Compression::Off,
    Compression::Empty,
    Compression::Lzjb,
    Compression::Gzip(1),
    Compression::Zle,
    Compression::Lz4,
    Compression::Zstd(ZstdLevel::DEFAULT),
    Compression::Zstd(ZstdLevel::FAST_DEFAULT),
];
const SUMS: [Checksum; 9] = [
    Checksum::Off,
    Checksum::NoParity,
    Checksum::Fletcher2,
    Checksum::Fletcher4,
    Checksum::Sha256,
    Checksum::Sha512,
    Checksum::Skein,
    Checksum::Edonr,
    Checksum::Blake3,
];

/// Content that compresses not at all, by half, almost completely, or only at its end.
fn content(kind: u8, len: usize, seed: u64) -> Buf {
    match kind {
        0 => noise(len, seed),
        1 => words(len, seed),
        2 => Buf::zeros(len),
        3 => {
            let mut one = BufMut::zeroed(len);
            one[seed as usize % len] = 1;
            one.freeze()
        }
        _ => {
            let mut half = BufMut::zeroed(len);
            half[..len / 3].copy_from_slice(&noise(len / 3, seed));
            half.freeze()
        }
    }
}

/// The rules of chapter 02 §4.1, implemented a second time: the form that the block
/// must have.
fn check_form(w: &Write<'_>, bp: &BlkPtr, (min, gcd): (u64, u64)) {
    let lsize = w.data.len();
    let zero = w.data.iter().all(|&b| b == 0);
    let alg = w.props.compression;
    if zero && alg != Compression::Off {
        assert!(bp.is_hole());
        return;
    }
    assert_eq!(bp.head().lsize, Lsize(lsize as u64));
    assert_eq!((bp.head().birth, bp.head().level), (T, w.level));
    let mut out = vec![0; lsize];
    let room = compressed_max(alg, lsize, (min, gcd));
    let c = codec::compress::compress(alg, w.data, &mut out[..room]);
    let may_embed =
        w.level == 0 && w.props.embed && !matches!(w.object_type, ObjType::DNODE | ObjType::OBJSET);
    let psize = match (c, bp) {
        _ if matches!(alg, Compression::Off | Compression::Empty) => lsize,
        (Some(c), BlkPtr::Embedded(e)) => {
            assert!(may_embed && c <= 112 && e.payload().len() == c);
            assert_eq!(e.compression, alg.id());
            return;
        }
        (Some(c), _) => {
            assert!(c > 112 || !may_embed);
            let rounded = (c as u64).next_multiple_of(gcd).max(min) as usize;
            rounded.min(lsize)
        }
        (None, _) => lsize,
    };
    let BlkPtr::Block(block) = bp else { panic!("{bp:?}") };
    assert_eq!(block.psize, Psize(psize as u64));
    let id = if psize == lsize { COMPRESS_OFF } else { alg.id() };
    assert_eq!((block.compression, block.checksum), (id, w.props.checksum.id()));
    assert_eq!((block.fill, block.physical_birth), (w.fill, Txg::ZERO));
    assert_eq!(block.dvas().len(), usize::from(w.props.copies));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn written_blocks_are_read_back(
        sectors in prop_oneof![1usize..20, 1usize..260],
        kind in 0u8..5,
        seed: u64,
        alg in 0usize..ALGS.len(),
        sum in 0usize..SUMS.len(),
        copies in 1u8..=3,
        wide: bool,
        level in prop_oneof![Just(0u8), 0u8..3],
        embed: bool,
        object_type in prop_oneof![
            Just(ObjType::PLAIN_FILE_CONTENTS), Just(ObjType::DNODE), Just(ObjType::OBJSET),
            Just(ObjType::DIRECTORY_CONTENTS)],
        cache: bool,
    ) {
        let ashift = if wide { 12 } else { 9 };
        let pool = ZioFixture::new(2, ashift);
        let data = content(kind, sectors * 512, seed);
        let props = WriteProps { embed, ..props(ALGS[alg], SUMS[sum], copies) };
        let w = Write { object_type, level, fill: 5, cache, ..file(&data, &props) };
        let bp = pool.write(&w);
        check_pointer(&pool.zio, &bp);
        check_form(&w, &bp, (1 << ashift, 1 << ashift));
        // From memory by the same pool; from the disk, every copy, by another load.
        if let BlkPtr::Block(_) = bp {
            let hit = pool.zio.read(&bp, Io::MEMORY);
            prop_assert_eq!(hit.is_ok(), cache);
            if let Ok(hit) = hit {
                prop_assert!(*hit == *data);
            }
        }
        let reader = pool.reader(ashift);
        reader.set_salt(&SALT);
        if bp.head().lsize.0 > 0 {
            prop_assert!(*reader.read(&bp, Io::SCAN).unwrap() == *data);
        }
        if let BlkPtr::Block(block) = &bp {
            let checked = reader.check_copies(block);
            prop_assert_eq!((checked.readable, checked.damaged), (usize::from(copies), 0));
            let mut freed = reader.dvas_to_free(block).unwrap();
            prop_assert_eq!(freed.len(), usize::from(copies));
            freed.retain(|d| !pool.space.taken().contains(&(d.vdev.0, d.offset, d.asize.0)));
            prop_assert!(freed.is_empty());
        } else {
            prop_assert!(pool.space.taken().is_empty());
        }
    }
}

/// The table of chapter 02 §4.1.
#[test]
fn limits_of_the_specification() {
    let rows = [
        (512, [112, 112, 112]),
        (1024, [512, 112, 112]),
        (4096, [3584, 112, 112]),
        (8192, [7168, 4096, 112]),
        (16384, [14336, 12288, 8192]),
        (131_072, [114_688; 3]),
        (1_048_576, [917_504; 3]),
    ];
    for (lsize, limits) in rows {
        for (gcd, d) in [512, 4096, 8192].into_iter().zip(limits) {
            assert_eq!(compressed_max(Compression::Lz4, lsize, (gcd, gcd)), d, "{lsize} {gcd}");
        }
    }
    assert_eq!(compressed_max(Compression::Zle, 4096, (4096, 4096)), 3584);
    // The smallest vdev determines whether to compress, all of them determine the
    // rounding.
    assert_eq!(compressed_max(Compression::Lz4, 4096, (1024, 512)), 3584);
    assert_eq!(compressed_max(Compression::Lz4, 1024, (1024, 512)), 112);
}

#[test]
fn holes_are_born_only_where_something_was() {
    let pool = ZioFixture::new(1, 9);
    let (zeros, some) = (Buf::zeros(4096), noise(4096, 1));
    let on = props(Compression::Lz4, Checksum::Fletcher4, 1);
    let write = |old: &BlkPtr, props: &WriteProps| {
        let w = Write { object_type: ObjType(26), txg: Txg(15), old, ..file(&zeros, props) };
        let placed = pool.zio.place(pool.zio.prepare(&w).unwrap()).unwrap();
        (placed.outcome, placed.bp.encode().unwrap())
    };
    let old = pool.write(&file(&some, &on));
    let taken = pool.space.taken();

    assert_eq!(write(&NEVER, &on), (Outcome::Hole, [0; 128]));
    let (outcome, raw) = write(&old, &on);
    // Chapter 03 §3.6, the example.
    assert_eq!(raw[0x30..0x38], [7, 0, 0, 0, 0, 0, 0x1a, 0]);
    assert_eq!(raw[0x50..0x58], [15, 0, 0, 0, 0, 0, 0, 0]);
    assert!(raw.iter().enumerate().all(|(i, &b)| b == 0 || [0x30, 0x36, 0x50].contains(&i)));
    assert_eq!(outcome, Outcome::Hole);
    // A hole with a birth keeps having one.
    let hole = BlkPtr::parse(&raw, ondisk::Endian::Little).unwrap();
    assert_eq!(write(&hole, &on).1, raw);
    // The pool does not have the feature yet.
    assert_eq!(write(&old, &WriteProps { hole_birth: false, ..on }).1, [0; 128]);
    assert_eq!(write(&old, &WriteProps { compression: Compression::Empty, ..on }).1, raw);
    assert_eq!(pool.space.taken(), taken);
    // Without compression, zeros are data.
    assert_eq!(write(&old, &plain(1)).0, Outcome::New);
    let bp = pool.write(&file(&zeros, &plain(2)));
    assert_eq!(*pool.reader(9).read(&bp, Io::SCAN).unwrap(), *zeros);
}

#[test]
fn a_micro_zap_is_embedded_as_in_the_specification() {
    // Chapter 02 §2.7: the decompressed example, written again.
    let pool = ZioFixture::new(1, 9);
    let words = "0000001721030001 0041807973010900 0f0200ffd9500000 0000000000000000";
    let digits: Vec<u8> =
        words.bytes().filter_map(|b| (b as char).to_digit(16)).map(|d| d as u8).collect();
    let payload: Vec<u8> = digits.chunks(2).map(|d| d[0] << 4 | d[1]).take(27).collect();
    let mut zap = BufMut::alloc(512);
    codec::compress::decompress(15, &payload, &mut zap).unwrap();
    let zap = zap.freeze();
    let on = props(Compression::Lz4, Checksum::Fletcher4, 3);
    let w = Write { object_type: ObjType(13), txg: Txg(112), ..file(&zap, &on) };
    let bp = pool.write(&w);
    let BlkPtr::Embedded(e) = bp else { panic!("{bp:?}") };
    assert_eq!((e.head.lsize, e.compression, e.payload().len()), (Lsize(512), 15, 27));
    assert_eq!(e.payload(), payload);
    let raw = bp.encode().unwrap();
    assert_eq!(u64::from_le_bytes(raw[48..56].try_into().unwrap()), 0x800d_008f_3400_01ff);
    assert_eq!(*pool.reader(9).read(&bp, Io::WAIT).unwrap(), *zap);
    assert!(pool.space.taken().is_empty());
}

#[test]
fn the_cache_has_the_state_after_a_read() {
    for (i, kind) in [0, 1, 4].into_iter().enumerate() {
        for object_type in [ObjType::PLAIN_FILE_CONTENTS, ObjType::DIRECTORY_CONTENTS] {
            let pool = ZioFixture::new(1, 12);
            let data = content(kind, 65_536, i as u64 + 3);
            let on = props(Compression::Lz4, Checksum::Fletcher4, 1);
            let bp = pool.write(&Write { object_type, ..file(&data, &on) });
            let reader = pool.reader(12);
            reader.read(&bp, Io::WAIT).unwrap();
            let block = bp.as_block().unwrap();
            let found = |zio: &crate::Zio| {
                let ask = arc::LookupRequest::demand(crate::read::kind_of(block));
                let found = zio.cache().peek(&zio.key(block), ask).unwrap();
                (found.tag(), found.lsize())
            };
            assert_eq!(found(&pool.zio), found(&reader));
            assert_eq!(pool.zio.cache().size(), reader.cache().size());
            assert_eq!(*pool.zio.read(&bp, Io::MEMORY).unwrap(), *data);
        }
    }
}

#[test]
fn uncompressed_content_is_not_copied() {
    let pool = ZioFixture::new(1, 9);
    let data = noise(131_072, 5);
    let props = props(Compression::Lz4, Checksum::Fletcher4, 2);
    let bp = pool.write(&file(&data, &props));
    let cached = pool.zio.read(&bp, Io::MEMORY).unwrap();
    assert_eq!(cached.as_ptr(), data.as_ptr());
}

#[test]
fn equal_content_keeps_its_pointer() {
    let pool = ZioFixture::new(2, 9);
    let (data, other) = (words(16_384, 1), words(16_384, 2));
    let strong = props(Compression::Lz4, Checksum::Sha256, 1);
    let old = pool.write(&file(&data, &strong));
    let outcome = |w: &Write<'_>| {
        let prepared = pool.zio.prepare(&Write { txg: Txg(80), ..*w }).unwrap();
        let same = prepared.is_same();
        let placed = pool.zio.place(prepared).unwrap();
        assert_eq!(same, placed.outcome == Outcome::Same);
        if same {
            assert_eq!(placed.bp, old);
        }
        placed.outcome
    };
    let base = Write { old: &old, ..file(&data, &strong) };
    assert_eq!(outcome(&base), Outcome::Same);
    assert_eq!(outcome(&Write { data: &other, ..base }), Outcome::New);
    for props in [
        WriteProps { copies: 2, ..strong },
        WriteProps { checksum: Checksum::Fletcher4, ..strong },
        WriteProps { compression: Compression::Off, ..strong },
        WriteProps { compression: Compression::Lzjb, ..strong },
    ] {
        assert_eq!(outcome(&Write { props: &props, ..base }), Outcome::New);
    }
    assert_eq!(outcome(&Write { object_type: ObjType::SA, ..base }), Outcome::New);
    // Fletcher checksums prove nothing.
    let weak = props(Compression::Lz4, Checksum::Fletcher4, 1);
    let old = pool.write(&file(&data, &weak));
    assert_eq!(outcome(&Write { old: &old, props: &weak, ..base }), Outcome::New);
}

#[test]
fn a_block_of_this_group_is_rewritten_where_it_is() {
    let pool = ZioFixture::new(2, 9);
    let (one, two, short) = (noise(8192, 1), noise(8192, 2), noise(4096, 3));
    let twice = plain(2);
    let first = pool.write(&file(&one, &twice));
    assert_eq!(*pool.zio.read(&first, Io::MEMORY).unwrap(), *one);
    let taken = pool.space.taken();
    let second = pool.write(&Write { in_place: true, old: &first, ..file(&two, &twice) });
    assert_eq!(pool.space.taken(), taken);
    let dvas = |bp: &BlkPtr| bp.as_block().unwrap().dvas().collect::<Vec<_>>();
    assert_eq!(dvas(&first), dvas(&second));
    assert_eq!(*pool.zio.read(&second, Io::MEMORY).unwrap(), *two);
    assert_eq!(*pool.reader(9).read(&second, Io::SCAN).unwrap(), *two);
    let checked = pool.reader(9).check_copies(second.as_block().unwrap());
    assert_eq!((checked.readable, checked.damaged), (2, 0));

    // Also without the cache, the old content must leave it.
    let third =
        pool.write(&Write { in_place: true, old: &second, cache: false, ..file(&one, &twice) });
    assert_eq!(dvas(&first), dvas(&third));
    assert!(pool.zio.read(&third, Io::MEMORY).is_err());
    let remember = Io { caching: Caching::Keep, ..Io::WAIT };
    assert_eq!(*pool.zio.read(&third, remember).unwrap(), *one);

    // Another size, number of copies or txg, or no permission: new addresses.
    let new = |w: &Write<'_>| {
        let placed = pool.zio.place(pool.zio.prepare(w).unwrap()).unwrap();
        assert_eq!(placed.outcome, Outcome::New);
        assert_ne!(placed.bp.as_block().unwrap().dva(), dvas(&first)[0]);
        pool.zio.unplace(placed);
    };
    let base = Write { in_place: true, old: &third, ..file(&two, &twice) };
    new(&Write { data: &short, ..base });
    new(&Write { in_place: false, ..base });
    new(&Write { props: &plain(1), ..base });
    let before = Write { txg: Txg(78), ..base };
    let placed = pool.zio.place(pool.zio.prepare(&before).unwrap()).unwrap();
    assert_eq!(placed.outcome, Outcome::New);
}

#[test]
fn impossible_requests_are_refused() {
    let pool = ZioFixture::new(1, 9);
    let data = noise(1024, 1);
    let good = plain(1);
    let refused = |w: &Write<'_>| {
        assert_eq!(pool.zio.prepare(w).err().unwrap().kind(), base::ErrorKind::Invalid);
    };
    refused(&file(&data.slice(0..700), &good));
    refused(&file(&Buf::zeros(0), &good));
    refused(&file(&Buf::zeros((16 << 20) + 512), &good));
    refused(&file(&data, &plain(0)));
    refused(&file(&data, &plain(4)));
    refused(&file(&data, &props(Compression::Off, Checksum::GangHeader, 1)));
    refused(&Write { level: 32, ..file(&data, &good) });
    refused(&Write { object_type: ObjType(54), ..file(&data, &good) });
    let reader = pool.reader(9);
    let w = file(&data, &good);
    assert_eq!(reader.prepare(&w).err().unwrap().kind(), base::ErrorKind::ReadOnly);
    assert_eq!(Writes::new(&reader).wait().len(), 0);
}
