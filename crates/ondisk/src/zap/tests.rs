//! The vectors of chapter 03 §21, and property tests against naive models.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::leafmut::{FatBuilder, InsertOutcome, LeafMut, StoredKey};
use super::*;
use crate::fuzzing2::fuzz_zap;

const LE: Endian = Endian::Little;

#[test]
fn hashes_of_the_chapter() {
    assert_eq!(CRC[0][1], 0xb32e_4cbe_03a7_5f6f);
    assert_eq!(CRC[0][128], POLY);
    assert_eq!(CRC[0][255], 0xe0ad_a173_6467_3f59);
    for (salt, name, full) in [
        (1, "a", 0x9f81_69ba_49a5_4b33),
        (1, "config", 0x5233_8d71_0adc_3cbf),
        (1, "VERSION", 0x4139_f0ac_af56_a2d1),
        (1, "hello world", 0xb737_7fe7_3739_e906),
        (0x1234_5678_9abc_def1, "a", 0xb4e5_c2fb_fe2e_d5d5),
        (0x1234_5678_9abc_def1, "config", 0x21f9_8642_503b_6cf4),
        (0x1234_5678_9abc_def1, "VERSION", 0x95f7_ec8d_2336_8172),
    ] {
        assert_eq!(hash(salt, name.as_bytes(), 64), full, "{name}");
        assert_eq!(hash(salt, name.as_bytes(), 28), full >> 36 << 36, "{name}");
        assert_eq!(hash(salt, name.as_bytes(), 48), full >> 16 << 16, "{name}");
    }
    for (name, h) in [
        ("config", 0xf9e4_7b50_0000_0000),
        ("root_dataset", 0x0b6d_7920_0000_0000),
        ("features_for_read", 0x8057_0700_0000_0000),
        ("org.illumos:checksum_salt", 0x4a74_5fe0_0000_0000),
    ] {
        assert_eq!(hash(0x44523, name.as_bytes(), 28), h, "{name}");
    }
    assert_eq!(hash_words(1, &[0x0123_4567_89ab_cdef], 64), 0x3ff6_073c_d0e9_d7f6);
    assert_eq!(hash_words(1, &[1, 2, 3], 48), 0xaf78_17df_dcfb_0000);
    let ddt = FatPhys { salt: 0x28b87f, flags: 3, ..FatPhys::default() };
    let key = [
        0x7226_88b6_6aab_c489,
        0xef0c_4dca_b67c_b932,
        0x7fb6_c131_1834_4837,
        0xd49e_ec71_d6d8_b8d3,
        0x0000_0007_0002_01ff,
    ];
    assert_eq!(ddt.hash_words(&key), 0x0e99_5880_6976_0000);
    assert_eq!(crate::zapleaf::bucket_of(0x0e99_5880_6976_0000, 15, 0), 58);
    let pre_hashed = FatPhys { flags: 7, ..ddt };
    assert_eq!(pre_hashed.hash_words(&key), 0x7226_88b6_6aab_0000);
}

fn put(block: &mut [u8], at: usize, hex: &str) {
    for (i, byte) in hex.split_whitespace().enumerate() {
        block[at + i] = u8::from_str_radix(byte, 16).unwrap();
    }
}

/// §21.3.
fn micro_vector() -> Vec<u8> {
    let mut b = vec![0; 512];
    for (at, hex) in [
        (0x00, "03 00 00 00 00 00 00 80 85 71"),
        (0x10, "02"),
        (0x40, "64 00 00 00 00 00 00 00 00 00 00 00 00 00 52 65 61 64 6d 65 2e 54 58 54"),
        (0x80, "65 00 00 00 00 00 00 00 01 00 00 00 00 00 52 45 41 44 4d 45 2e 74 78 74"),
        (0xc0, "66 00 00 00 00 00 00 00 02 00 00 00 00 00 72 65 61 64 6d 65 2e 74 78 74"),
        (0x100, "67 00 00 00 00 00 00 00 00 00 00 00 00 00 63 61 66 c3 a9"),
        (0x140, "68 00 00 00 00 00 00 00 01 00 00 00 00 00 43 41 46 c3 89"),
    ] {
        put(&mut b, at, hex);
    }
    b
}

#[test]
fn microzap_of_the_chapter() {
    let block = micro_vector();
    let Ok(ZapBlock::Micro(zap)) = ZapBlock::parse(&block, LE) else { panic!("not recognised") };
    assert_eq!((zap.salt, zap.normflags, zap.slots()), (0x7185, 2, 7));
    assert_eq!(zap.find(b"README.txt").map(|e| (e.slot, e.value, e.cd)), Some((1, 101, 1)));
    assert_eq!(zap.find(b"readme.TXT"), None);
    let index = zap.index(|name| {
        let upper = String::from_utf8_lossy(name).to_uppercase();
        hash(zap.salt, upper.as_bytes(), 28)
    });
    let order: Vec<u64> =
        index.keys().iter().map(|k| zap.slot(k.slot as usize).unwrap().value).collect();
    assert_eq!(order, [103, 104, 100, 101, 102]);
    assert_eq!(index.with_hash(0x8d77_7000_0000_0000).len(), 3);
    assert_eq!(index.with_hash(0x156d_deb0_0000_0000).len(), 2);
    assert_eq!(index.free_cd(0x8d77_7000_0000_0000), 3);
    assert_eq!(index.free_cd(1 << 63), 0);
    assert_eq!(index.from(0x8d77_7000_0000_0000, 1).len(), 2);
}

#[test]
fn microzap_entries_with_value_zero_count() {
    let mut block = vec![0; 512];
    micro_init(&mut block, 0x31ffb, 0).unwrap();
    let names: [(usize, &[u8], u64); 5] = [
        (0, b"org.zfsonlinux:large_dnode", 0x9b51_f840_0000_0000),
        (1, b"org.open-zfs:large_blocks", 0xdabf_8210_0000_0000),
        (2, b"org.freebsd:zstd_compress", 0x7d95_a760_0000_0000),
        (4, b"org.illumos:skein", 0x3380_1110_0000_0000),
        (5, b"org.illumos:sha512", 0xac03_c4a0_0000_0000),
    ];
    for (slot, name, h) in names {
        micro_set(&mut block, slot, name, 0, 0).unwrap();
        assert_eq!(hash(0x31ffb, name, 28), h);
    }
    let zap = MicroZap::parse(&block, LE).unwrap();
    assert_eq!(zap.entries().map(|e| e.slot).collect::<Vec<_>>(), [0, 1, 2, 4, 5]);
    micro_clear(&mut block, 1).unwrap();
    assert!(MicroZap::parse(&block, LE).unwrap().slot(1).is_none());
    assert!(micro_set(&mut block, 7, b"x", 0, 0).is_err());
    assert!(micro_set(&mut block, 0, &[b'x'; 50], 0, 0).is_err());
    assert!(micro_set(&mut block, 0, b"", 0, 0).is_err());
}

#[test]
fn microzap_sizes_are_checked() {
    for len in [0, 511, 513, (1 << 20) + 512] {
        assert!(MicroZap::parse(&vec![0; len], LE).is_err());
        assert!(micro_init(&mut vec![0; len], 1, 0).is_err());
    }
    let mut odd = vec![0; 1536];
    micro_init(&mut odd, 1, 0).unwrap();
    assert_eq!(MicroZap::parse(&odd, LE).unwrap().slots(), 23);
}

/// §21.4: the chunks that the chapter shows of the leaf.
fn leaf_vector() -> Vec<u8> {
    let mut b = vec![0; 16384];
    b[48..0x430].fill(0xff);
    for (at, hex) in [
        (0x000, "00 00 00 00 00 00 00 80"),
        (0x018, "af 1e ab 02 18 02 1c 00 00 00 66 00"),
        (0x030 + 2 * 499, "12 00"),
        (0x030 + 2 * 0x94, "28 00"),
        (0x5e0, "fc 08 ff ff 13 00 07 00 14 00 01 00 00 00 00 00 00 00 00 00 50 7b e4 f9"),
        (0x5f8, "fb 63 6f 6e 66 69 67 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 ff ff"),
        (0x610, "fb 00 00 00 00 00 00 00 3d 00 00 00 00 00 00 00 00 00 00 00 00 00 ff ff"),
        (0x7f0, "fc 01 ff ff 29 00 1a 00 2b 00 20 00 00 00 00 00 00 00 00 00 e0 5f 74 4a"),
        (0x808, "fb 6f 72 67 2e 69 6c 6c 75 6d 6f 73 3a 63 68 65 63 6b 73 75 6d 5f 2a 00"),
        (0x820, "fb 73 61 6c 74 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 ff ff"),
        (0x838, "fb 57 c9 07 95 3e fb 13 91 76 c0 58 ea ea 2c 52 be fa 56 b9 24 01 2c 00"),
        (0x850, "fb c0 61 9e 21 62 9b 5e c6 b0 c6 33 00 00 00 00 00 00 00 00 00 00 ff ff"),
    ] {
        put(&mut b, at, hex);
    }
    b
}

#[test]
fn leaf_of_the_chapter() {
    let block = leaf_vector();
    let Ok(ZapBlock::Leaf(leaf)) = ZapBlock::parse(&block, LE) else { panic!("not recognised") };
    assert_eq!((leaf.header().nfree, leaf.header().nentries, leaf.chunks()), (536, 28, 638));
    assert_eq!(leaf.header().next_hash(), None);
    let config = leaf.lookup(0xf9e4_7b50_0000_0000, |e| e.name_is(b"config")).unwrap().unwrap();
    assert_eq!(config.name().unwrap(), b"config");
    assert_eq!(config.first_u64().unwrap(), 61);
    assert_eq!(config.value().unwrap().as_u64(), Some(61));
    for other in [&b"confi"[..], b"config2", b"configconfigconfigconfig", b"donfig"] {
        assert!(!config.name_is(other).unwrap());
    }
    let name = b"org.illumos:checksum_salt";
    let salt = leaf.lookup(0x4a74_5fe0_0000_0000, |e| e.name_is(name)).unwrap().unwrap();
    assert_eq!(salt.name().unwrap(), name);
    let value = salt.value().unwrap();
    assert_eq!((value.int_size, value.num), (1, 32));
    assert_eq!(value.as_bytes().unwrap()[20..23], [0x01, 0xc0, 0x61]);
    assert!(salt.first_u64().is_err() && value.as_u64().is_none() && value.u64s().is_none());
    assert!(leaf.lookup(0xf9e4_7b50_0000_0000, |_| Ok(false)).unwrap().is_none());
    assert!(leaf.verify(1).is_err(), "only a part of the chunks is there");
}

#[test]
fn cycles_are_corrupt() {
    let mut block = leaf_vector();
    put(&mut block, 0x5e2, "12 00"); // the entry follows itself
    let leaf = Leaf::parse(&block, LE).unwrap();
    assert!(leaf.entries().is_err());
    assert!(leaf.lookup(0xf9e4_7b50_0000_0000, |_| Ok(false)).is_err());
    let mut block = leaf_vector();
    put(&mut block, 0x5e6, "ff ff"); // 65535 bytes of name
    put(&mut block, 0x5f8 + 22, "13 00"); // in a chunk that follows itself
    let leaf = Leaf::parse(&block, LE).unwrap();
    assert!(leaf.entry(18).unwrap().name().is_err());
}

#[test]
fn values_of_other_widths() {
    let mut fat = FatBuilder::new(12, 0x44523, 0, 0).unwrap();
    let value = ZapValue::from_u16s(&[0x1122, 0x3344, 0x5566]).unwrap();
    assert_eq!(value.data, [0x11, 0x22, 0x33, 0x44, 0x55, 0x66]);
    let empty = ZapValue::from_u64s(&[]).unwrap();
    for (name, v) in [(&b"short"[..], &value), (b"empty", &empty)] {
        fat.add(fat.phys().hash_name(name), None, StoredKey::Name(name), v).unwrap();
    }
    let leaf = Leaf::parse(&fat.blocks()[1], LE).unwrap();
    let found = |name: &[u8]| {
        let h = fat.phys().hash_name(name);
        leaf.lookup(h, |e| e.name_is(name)).unwrap().unwrap().value().unwrap()
    };
    assert_eq!(found(b"short").u16s().unwrap(), [0x1122, 0x3344, 0x5566]);
    assert_eq!(found(b"empty"), empty);
    assert_eq!(found(b"empty").u64s().unwrap(), []);
    assert_eq!(ZapValue::from_bytes(b"a\0").unwrap().as_str_bytes(), Some(&b"a"[..]));
}

/// §14.3's table.
#[test]
fn leaf_geometry() {
    for (bs, hashes, at, chunks) in [
        (9, 16, 0x50, 18),
        (10, 32, 0x70, 38),
        (11, 64, 0xb0, 78),
        (12, 128, 0x130, 158),
        (13, 256, 0x230, 318),
        (14, 512, 0x430, 638),
        (15, 1024, 0x830, 1278),
        (16, 2048, 0x1030, 2558),
        (17, 4096, 0x2030, 5118),
    ] {
        assert_eq!(crate::zapleaf::buckets(bs), hashes);
        assert_eq!(crate::zapleaf::chunks_at(bs), at);
        assert_eq!(crate::zapleaf::chunk_count(bs), chunks);
        assert_eq!(at + chunks * 24, 1 << bs);
    }
    assert!(block_shift(256).is_err() && block_shift(1 << 18).is_err() && block_shift(0).is_err());
}

#[test]
fn a_fat_zap_splits_like_openzfs() {
    // §21.5: the same names, added in order, give the same leafs.
    let mut fat = FatBuilder::new(14, 0x19a35b, 0, 0).unwrap();
    for i in 0..2050u64 {
        let name = format!("fzap-16-{i}");
        let h = fat.phys().hash_name(name.as_bytes());
        fat.add(h, None, StoredKey::Name(name.as_bytes()), &ZapValue::from_u64(i)).unwrap();
    }
    let header = FatHeader::parse(&fat.blocks()[0], LE).unwrap();
    let phys = header.phys;
    assert_eq!((phys.zt_shift, phys.freeblk, phys.num_leafs), (10, 17, 16));
    assert_eq!(phys.num_entries, 0x802);
    let leafs: Vec<u64> = (0..16)
        .map(|i| match header.pointer_at(i * 64).unwrap() {
            PointerLocation::Embedded(id) => id,
            other => panic!("{other:?}"),
        })
        .collect();
    let leaf = Leaf::parse(&fat.blocks()[leafs[8] as usize], LE).unwrap();
    assert_eq!((leaf.header().prefix, leaf.header().prefix_len), (8, 4));
    assert_eq!((leaf.header().nfree, leaf.header().nentries), (248, 130));
    assert_eq!(phys.hash_name(b"fzap-16-59"), 0x802a_c7b0_0000_0000);
    assert_eq!(crate::zapleaf::bucket_of(0x802a_c7b0_0000_0000, 14, 4), 5);
    assert_eq!(
        header.pointer_location(0x802a_c7b0_0000_0000).unwrap(),
        PointerLocation::Embedded(leafs[8])
    );
    assert_eq!(leafs, [1, 16, 7, 13, 4, 9, 6, 12, 2, 14, 8, 15, 3, 11, 5, 10]);
}

#[test]
fn walking_leafs_by_prefix() {
    use crate::zapleaf::next_hash_after_leaf;
    assert_eq!(next_hash_after_leaf(0, 0), None);
    assert_eq!(next_hash_after_leaf(0, 1), Some(1 << 63));
    assert_eq!(next_hash_after_leaf(1, 1), None);
    assert_eq!(next_hash_after_leaf(8, 4), Some(9 << 60));
    assert_eq!(next_hash_after_leaf(15, 4), None);
}

#[test]
fn header_fields_are_checked() {
    let good = FatPhys::initial(14, 0x44523, 0, 0);
    let mut block = vec![0; 16384];
    leafmut::header_init(&mut block, &good).unwrap();
    assert_eq!(FatHeader::parse(&block, LE).unwrap().phys, good);
    let grown = FatPhys {
        zt_blk: 1882,
        zt_numblks: 2,
        zt_shift: 12,
        zt_nextblk: 3554,
        zt_blks_copied: 1,
        freeblk: 3558,
        num_leafs: 1900,
        ..good
    };
    grown.encode(&mut block).unwrap();
    let header = FatHeader::parse(&block, LE).unwrap();
    let at = header.pointer_location(0xfff0_0000_0000_0000).unwrap();
    assert_eq!(at, PointerLocation::External { blkid: 1883, index: 2047 });
    assert!(header.pointer_at(4096).is_err());
    assert_eq!(header.read_pointer(&3557u64.to_be_bytes(), 0, Endian::Big).unwrap(), 3557);
    assert!(header.read_pointer(&3558u64.to_le_bytes(), 0, LE).is_err());
    assert!(header.read_pointer(&[0; 8], 1, LE).is_err());
    for bad in [
        FatPhys { zt_shift: 11, ..grown },
        FatPhys { zt_shift: 64, ..grown },
        FatPhys { zt_numblks: 1 << 60, ..grown },
        FatPhys { zt_numblks: 3, ..grown },
        FatPhys { freeblk: 3557, ..grown },
        FatPhys { zt_blk: u64::MAX, ..grown },
        FatPhys { zt_blks_copied: 2, ..grown },
        FatPhys { zt_nextblk: 0, ..grown },
        FatPhys { num_leafs: 3558, ..grown },
        FatPhys { flags: 8, ..grown },
        FatPhys { zt_shift: 9, ..good },
        FatPhys { zt_blk: 5, ..good },
        FatPhys { freeblk: 0, ..good },
    ] {
        assert!(bad.encode(&mut block).is_err(), "{bad:?}");
    }
}

/// A run of the tests with few hash bits split seven leaves for an entry that did not
/// fit in the end, and left a header in block 0 that counted one leaf.
#[test]
fn a_refused_entry_leaves_a_header_with_every_leaf() {
    let mut fat = FatBuilder::new(10, 1, 2, 0).unwrap();
    let value = ZapValue::from_bytes(&[1; 300]).unwrap();
    let refused = (0u32..).find_map(|i| {
        let name = i.to_string();
        fat.add(1 << 36, None, StoredKey::Name(name.as_bytes()), &value).err()
    });
    assert_eq!(refused.unwrap().kind(), base::ErrorKind::NoSpace);
    assert!(fat.phys().num_leafs > 1);
    assert_eq!(walk(&fat, LE, fat.blocks()).len() as u64, fat.phys().num_entries);
}

#[test]
fn cookies() {
    let at = Cursor { hash: 0x8d77_7000_0000_0000, cd: 1 };
    assert_eq!(at.cookie(28), 0x18d7_7700);
    assert_eq!(Cursor::from_cookie(0x18d7_7700, 28), Some(at));
    let next = Cursor::after(at.hash, at.cd, 28).unwrap();
    assert_eq!(next.cookie(28), 0x28d7_7700);
    assert_eq!(Cursor::from_cookie(0, 28), Some(Cursor::default()));
    assert_eq!(Cursor::from_cookie(COOKIE_END, 28), None);
    assert_eq!(Cursor::from_cookie(COOKIE_END, 48), None);
    // The last differentiator has no cookie of its own; the next hash follows.
    let wrapped = Cursor::after(1 << 16, 0xfffe, 48).unwrap();
    assert_eq!(wrapped, Cursor { hash: 2 << 16, cd: 0 });
    assert_eq!(Cursor::after(!0 << 36, u32::MAX, 28), None);
}

#[test]
fn limits_of_entries() {
    let mut block = vec![0; 512];
    let mut leaf = LeafMut::init(&mut block, 0, 0, false, 1).unwrap();
    let big = ZapValue::from_bytes(&[1; 400]).unwrap();
    let error = leaf.insert(0, None, StoredKey::Name(b"x"), &big).unwrap_err();
    assert_eq!(error.kind(), base::ErrorKind::Limit);
    let odd = ZapValue { int_size: 3, num: 1, data: vec![0; 3] };
    assert!(leaf.insert(0, None, StoredKey::Name(b"x"), &odd).is_err());
    assert!(leaf.insert(0, None, StoredKey::Words(&[1]), &big).is_err());
    let fits = ZapValue::from_bytes(&[1; 16 * 21]).unwrap();
    assert_eq!(leaf.insert(0, None, StoredKey::Name(b"x"), &fits).unwrap(), InsertOutcome::Done(0));
    let one = ZapValue::from_u64(1);
    assert_eq!(leaf.insert(0, None, StoredKey::Name(b"y"), &one).unwrap(), InsertOutcome::Full);
    leaf.view().unwrap().verify(1).unwrap();
}

/// Every entry found by walking the leafs in prefix order.
fn walk(
    fat: &FatBuilder,
    endian: Endian,
    blocks: &[Vec<u8>],
) -> Vec<(u64, u32, Vec<u8>, ZapValue)> {
    let header = FatHeader::parse(&blocks[0], endian).unwrap();
    assert_eq!(header.phys, *fat.phys());
    let mut out = Vec::new();
    let mut next = Some(0);
    while let Some(hash) = next {
        let PointerLocation::Embedded(id) = header.pointer_location(hash).unwrap() else {
            panic!("embedded");
        };
        let leaf = Leaf::parse(&blocks[id as usize], endian).unwrap();
        leaf.verify(1).unwrap();
        for e in leaf.entries().unwrap() {
            out.push((e.hash, e.cd, e.name().unwrap(), e.value().unwrap()));
        }
        next = leaf.header().next_hash();
    }
    out
}

fn arb_value() -> impl Strategy<Value = ZapValue> {
    prop_oneof![
        any::<u64>().prop_map(ZapValue::from_u64),
        prop::collection::vec(any::<u8>(), 0..60).prop_map(|v| ZapValue::from_bytes(&v).unwrap()),
        prop::collection::vec(any::<u64>(), 0..8).prop_map(|v| ZapValue::from_u64s(&v).unwrap()),
    ]
}

/// Chapter 03 §15, byte by byte.
fn hash_slowly(salt: u64, name: &[u8]) -> u64 {
    name.iter().fold(salt, |h, b| (h >> 8) ^ CRC[0][usize::from(h as u8 ^ b)])
}

proptest! {
    #[test]
    fn hashing_in_words_is_hashing_in_bytes(
        salt in any::<u64>(),
        name in prop::collection::vec(any::<u8>(), 0..60),
        words in prop::collection::vec(any::<u64>(), 0..5),
    ) {
        prop_assert_eq!(hash(salt, &name, 64), hash_slowly(salt, &name));
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        prop_assert_eq!(hash_words(salt, &words, 64), hash_slowly(salt, &bytes));
    }

    /// Names end at a NUL or at the end of their field, and slots may contain anything.
    #[test]
    fn a_microzap_is_searched_as_if_entry_by_entry(
        slots in prop::collection::vec((prop::collection::vec(0u8..3, 50), 0usize..51, 0u32..3), 15),
        name in prop::collection::vec(0u8..3, 0..52),
        of in 0usize..15,
    ) {
        let mut block = vec![0; 1024];
        block[..8].copy_from_slice(&ZBT_MICRO.to_le_bytes());
        for ((bytes, len, cd), raw) in slots.iter().zip(block[MZ_HEADER..].chunks_mut(MZ_ENTRY)) {
            raw[8..12].copy_from_slice(&cd.to_le_bytes());
            raw[MZ_NAME_AT..MZ_NAME_AT + len].copy_from_slice(&bytes[..*len]);
        }
        let zap = MicroZap::parse(&block, LE).unwrap();
        let stored = zap.slot(of).map_or(Vec::new(), |e| e.name.to_vec());
        for name in [&name, &stored] {
            let first = zap.entries().find(|e| e.name == &name[..]);
            prop_assert_eq!(zap.find(name), first);
        }
        for from in [0, 1, zap.slots() / 2, zap.slots()] {
            let free = (from..zap.slots()).find(|&slot| zap.slot(slot).is_none());
            prop_assert_eq!(zap.free_slot(from), free);
        }
        prop_assert_eq!(zap.entries().count(), (0..zap.slots()).filter_map(|slot| zap.slot(slot)).count());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn fat_zap_against_a_map(
        entries in prop::collection::btree_map("[a-z]{1,40}", arb_value(), 0..150),
        bs in 10u32..13,
        salt in 1u64..,
        // Few hash bits, so that differentiators matter.
        coarse in any::<bool>(),
    ) {
        let mut fat = FatBuilder::new(bs, salt, 2, 0).unwrap();
        let mut model = BTreeMap::new();
        let hash_of = |name: &[u8]| hash(salt, name, if coarse { 6 } else { 28 });
        for (name, value) in &entries {
            let h = hash_of(name.as_bytes());
            match fat.add(h, None, StoredKey::Name(name.as_bytes()), value) {
                Ok(cd) => {
                    prop_assert!(model.insert((h, cd), (name.clone().into_bytes(), value.clone())).is_none());
                }
                // Entries of equal hash that overflow a leaf cannot be separated by a
                // split.
                Err(e) => { prop_assert_eq!(e.kind(), base::ErrorKind::NoSpace); break; }
            }
        }
        let expected: Vec<_> =
            model.iter().map(|((h, cd), (n, v))| (*h, *cd, n.clone(), v.clone())).collect();
        prop_assert_eq!(walk(&fat, LE, fat.blocks()), expected.clone());
        let foreign: Vec<Vec<u8>> = fat.blocks().iter().map(|b| {
            let mut b = b.clone();
            byteswap(&mut b, LE).unwrap();
            b
        }).collect();
        prop_assert_eq!(walk(&fat, Endian::Big, &foreign), expected);
        for (back, orig) in foreign.iter().zip(fat.blocks()) {
            let mut back = back.clone();
            byteswap(&mut back, Endian::Big).unwrap();
            prop_assert_eq!(&back, orig);
        }
    }

    #[test]
    fn leaf_edits_against_a_map(
        ops in prop::collection::vec((0u8..3, 0usize..12, arb_value()), 1..60),
    ) {
        let mut block = vec![0; 1024];
        let mut leaf = LeafMut::init(&mut block, 0, 0, true, 1).unwrap();
        let mut model: BTreeMap<usize, ZapValue> = BTreeMap::new();
        for (op, k, value) in ops {
            let name = format!("name-{k}-{}", "x".repeat(3 * k));
            let h = (k as u64 % 3) << 62;
            let found = leaf.view().unwrap().lookup(h, |e| e.name_is(name.as_bytes())).unwrap()
                .map(|e| (e.chunk, e.value().unwrap()));
            prop_assert_eq!(found.as_ref().map(|f| &f.1), model.get(&k));
            let done = match (op, &found) {
                (0, Some((chunk, _))) => { leaf.remove(*chunk).unwrap(); model.remove(&k); continue; }
                (_, Some((chunk, _))) => leaf.update(*chunk, &value).unwrap(),
                (0, None) => continue,
                (_, None) => leaf.insert(h, None, StoredKey::Name(name.as_bytes()), &value).unwrap(),
            };
            if done != InsertOutcome::Full {
                model.insert(k, value);
            }
            leaf.view().unwrap().verify(1).unwrap();
        }
        prop_assert_eq!(leaf.view().unwrap().entries().unwrap().len(), model.len());
    }

    #[test]
    fn mutated_blocks_do_no_harm(
        which in 0usize..4,
        big in any::<bool>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
    ) {
        let mut block = seeds()[which].clone();
        if big {
            // The incomplete vector has chunks of no type.
            let _ = byteswap(&mut block, LE);
        }
        for (at, v) in flips {
            let at = at.index(block.len());
            block[at] = v;
        }
        block.insert(0, u8::from(big));
        fuzz_zap(&block);
    }

    #[test]
    fn cookies_round_trip(hash in any::<u64>(), cd in 0u32..0xfffe, wide in any::<bool>()) {
        let bits = if wide { 48 } else { 28 };
        let at = Cursor { hash: mask(hash, bits), cd };
        prop_assert_eq!(Cursor::from_cookie(at.cookie(bits), bits), Some(at));
    }
}

/// One block of each form.
fn seeds() -> [Vec<u8>; 4] {
    let mut fat = FatBuilder::new(10, 0x44523, 0, 0).unwrap();
    for i in 0..9u64 {
        let name = format!("entry {i}");
        let h = fat.phys().hash_name(name.as_bytes());
        fat.add(h, None, StoredKey::Name(name.as_bytes()), &ZapValue::from_u64(i)).unwrap();
    }
    [micro_vector(), fat.blocks()[0].clone(), fat.blocks()[1].clone(), leaf_vector()]
}

/// A directory of a case-insensitive, formD file system, and the MOS directory,
/// as OpenZFS wrote them (fuzz seeds: one byte in front of the block).
#[test]
fn blocks_that_openzfs_wrote() {
    let dir = &include_bytes!("../../../../fuzz/corpus/zap/ci-dir-0")[1..];
    let Ok(ZapBlock::FatHeader(header)) = ZapBlock::parse(dir, LE) else { panic!("header") };
    let phys = header.phys;
    assert_eq!((phys.salt, phys.normflags, phys.num_entries), (0x73c_92f1, 0x12, 12));
    let leaf = &include_bytes!("../../../../fuzz/corpus/zap/ci-dir-1")[1..];
    let leaf = Leaf::parse(leaf, LE).unwrap();
    leaf.verify(1).unwrap();
    assert_eq!(leaf.header().flags, crate::zapleaf::ENTRIES_CDSORTED);
    let entries = leaf.entries().unwrap();
    assert_eq!(entries.len(), 12);
    for e in entries {
        let name = e.name().unwrap();
        let h = crate::normalize::hash_name(phys.salt, &name, phys.normflags, phys.hash_bits());
        assert_eq!(h, e.hash, "{}", String::from_utf8_lossy(&name));
        assert_eq!(header.pointer_location(h).unwrap(), PointerLocation::Embedded(1));
        let found = leaf.lookup(h, |e| e.name_is(&name)).unwrap().unwrap();
        assert_eq!(found.chunk, e.chunk);
    }
    let micro = &include_bytes!("../../../../fuzz/corpus/zap/ci-micro-0")[1..];
    let micro = MicroZap::parse(micro, LE).unwrap();
    assert_eq!(micro.normflags, 0x12);
    assert!(micro.entries().count() > 0);

    let mos = &include_bytes!("../../../../fuzz/corpus/zap/mos-directory-leaf")[1..];
    let mos = Leaf::parse(mos, LE).unwrap();
    mos.verify(1).unwrap();
    let root = hash(0x1589_03b3, b"root_dataset", 28);
    let config = hash(0x1589_03b3, b"config", 28);
    let hit = [(root, &b"root_dataset"[..]), (config, b"config")]
        .into_iter()
        .filter(|(h, _)| mos.header().covers(*h))
        .filter(|(h, name)| mos.lookup(*h, |e| e.name_is(name)).unwrap().is_some())
        .count();
    assert!(hit > 0);
    for e in mos.entries().unwrap() {
        assert_eq!(hash(0x1589_03b3, &e.name().unwrap(), 28), e.hash);
    }
}
