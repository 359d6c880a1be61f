//! ZAP changes against maps, vectors of the chapter, blocks of OpenZFS, faults and forged
//! content.

use std::collections::BTreeMap;

use base::ErrorKind;
use ondisk::Endian;
use ondisk::normalize::hash_name;
use ondisk::zap::{FatHeader, FatPhys, PointerLocation, ZapValue};
use ondisk::zapleaf::Leaf;
use proptest::prelude::*;

use super::tests_store::{Audit, AuditedEntry, Forger, MemStore, audit};
use super::{ZapLimits, ZapStore};
use crate::zap::Match;

const LE: Endian = Endian::Little;

fn num(v: u64) -> ZapValue {
    ZapValue::from_u64(v)
}

fn kind<T>(r: base::Result<T>) -> ErrorKind {
    r.err().unwrap().kind()
}

fn phys(store: &MemStore) -> FatPhys {
    FatHeader::parse(&store.read(0).unwrap(), LE).unwrap().phys
}

fn values(a: &Audit) -> BTreeMap<Vec<u8>, ZapValue> {
    a.entries.iter().map(|(n, s)| (n.clone(), s.value.clone())).collect()
}

/// A cheap generator: tests with many entries spend no time on randomness.
struct ZapRng(u64);

impl ZapRng {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }
}

/// Random operations against a map, with occasional audits.
fn churn(store: &MemStore, seed: u64, ops: u64, names: u64, audit_every: u64) -> Vec<FatPhys> {
    let zap = store.zap();
    let mut rng = ZapRng(seed);
    let mut model: BTreeMap<Vec<u8>, ZapValue> = values(&audit(store, false));
    let mut states = Vec::new();
    for op in 0..ops {
        let k = rng.next(names);
        let name = format!("file-{k}{}", "x".repeat((k % 23) as usize)).into_bytes();
        let value = match rng.next(8) {
            0 => ZapValue::from_bytes(&vec![7; rng.next(80) as usize]).unwrap(),
            1 => ZapValue::from_u16s(&[1, 2, 3]).unwrap(),
            2 => ZapValue::from_u64s(&[]).unwrap(),
            _ => num(rng.next(u64::MAX)),
        };
        // Additions prevail at first, removals later.
        let add = if op < ops * 2 / 3 { 6 } else { 1 };
        match rng.next(8) {
            o if o < add => match zap.add(&name, &value) {
                Ok(()) => assert!(model.insert(name, value).is_none()),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Exists, "{e}");
                    assert!(model.contains_key(&name));
                }
            },
            o if o < add + 1 => {
                zap.update(&name, &value).unwrap();
                model.insert(name, value);
            }
            _ => match model.remove(&name) {
                Some(_) => zap.remove(&name).unwrap(),
                None => assert_eq!(kind(zap.remove(&name)), ErrorKind::NotFound),
            },
        }
        if op % audit_every == 0 {
            let a = audit(store, false);
            assert_eq!(values(&a), model);
            states.extend(a.phys);
            for name in model.keys().take(5) {
                assert_eq!(zap.lookup(name).unwrap().as_ref(), model.get(name));
            }
        }
    }
    assert_eq!(values(&audit(store, false)), model);
    for (name, value) in &model {
        assert_eq!(zap.lookup(name).unwrap().as_ref(), Some(value));
        zap.remove(name).unwrap();
    }
    assert_eq!(audit(store, false).entries.len(), 0);
    states
}

#[test]
fn churn_in_every_block_size() {
    for shift in 9..=14 {
        let store = MemStore::new(1 << shift);
        store.zap().init_fat(0x1234_5679, 0, 0).unwrap();
        let states = churn(&store, 7 + shift, 6000, 4000, if shift < 11 { 97 } else { 331 });
        let end = phys(&store);
        assert_eq!((end.num_leafs, end.num_entries), (1, 0), "empty leaves were merged");
        if shift == 9 {
            assert!(states.iter().any(|p| p.zt_blks_copied > 0), "seen while growing");
            assert!(states.iter().any(|p| p.zt_numblks > 4));
            assert!(end.freeblk < states.iter().map(|p| p.freeblk).max().unwrap());
        }
    }
}

#[test]
fn churn_from_a_microzap() {
    let store = MemStore::new(512);
    store.zap().init(0x77, 2, 0).unwrap();
    churn(&store, 99, 9000, 5000, 211);
    assert_eq!(store.block_size().unwrap(), 16384);
}

#[test]
fn two_hundred_thousand_entries() {
    let store = MemStore::new(16384);
    let zap = store.zap();
    zap.init_fat(0x9_8765_4321, 0, 0).unwrap();
    // The hash is linear: consecutive numbers never collide.
    let name = |i: u64| format!("{:x}", i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).into_bytes();
    for i in 0..200_000 {
        zap.add(&name(i), &num(i)).unwrap();
    }
    let full = audit(&store, false);
    assert_eq!(full.entries.len(), 200_000);
    assert!(full.entries.values().any(|s| s.cd == 1), "28 bits collide");
    let p = full.phys.unwrap();
    assert!(p.zt_shift > 10 && p.num_leafs > 900, "{p:?}");
    let mut rng = ZapRng(5);
    for _ in 0..200_000 {
        let i = rng.next(200_000);
        match rng.next(3) {
            0 => match zap.add(&name(i), &num(i)) {
                Ok(()) => {}
                Err(e) => assert_eq!(e.kind(), ErrorKind::Exists),
            },
            1 => zap.update(&name(i), &num(i)).unwrap(),
            _ => match zap.remove(&name(i)) {
                Ok(()) => {}
                Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound),
            },
        }
    }
    let left = audit(&store, false).entries;
    for (name, seen) in &left {
        assert_eq!(seen.hash, full.entries[name].hash);
        zap.remove(name).unwrap();
    }
    assert_eq!((phys(&store).num_leafs, phys(&store).num_entries), (1, 0));
    audit(&store, false);
}

#[test]
fn an_addition_edits_two_blocks() {
    let store = MemStore::new(16384);
    let zap = store.zap();
    zap.init_fat(1, 0, 0).unwrap();
    store.edits.set(0);
    for i in 0..100u64 {
        zap.add(&i.to_string().into_bytes(), &num(i)).unwrap();
    }
    assert_eq!(store.edits.replace(0), 200);
    zap.update(b"7", &num(1)).unwrap();
    assert_eq!(store.edits.replace(0), 1, "a new value leaves the header alone");
}

/// §21.3: byte for byte.
#[test]
fn the_vector_of_a_microzap() {
    let store = MemStore::new(512);
    let zap = store.zap();
    zap.init(0x7185, 2, 0).unwrap();
    let names = ["Readme.TXT", "README.txt", "readme.txt", "café", "CAFÉ"];
    for (i, name) in (100..).zip(names) {
        zap.add(name.as_bytes(), &num(i)).unwrap();
    }
    let block = store.read(0).unwrap();
    for (i, (name, cd)) in names.iter().zip([0u8, 1, 2, 0, 1]).enumerate() {
        let e = &block[64 * (i + 1)..64 * (i + 2)];
        assert_eq!((e[0], e[8]), (100 + i as u8, cd));
        assert_eq!(&e[14..14 + name.len()], name.as_bytes());
    }
    assert_eq!(
        block[..24].to_vec(),
        [3, 0, 0, 0, 0, 0, 0, 0x80, 0x85, 0x71, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]
    );
    let a = audit(&store, false);
    assert_eq!(a.entries[&b"readme.txt"[..]].hash, 0x8d77_7000_0000_0000);
    assert_eq!(a.entries["café".as_bytes()].hash, 0x156d_deb0_0000_0000);
    let found = zap.lookup_as(b"rEADME.txt", Match::Normalize).unwrap().unwrap();
    assert_eq!((&found.name[..], found.cd), (&b"Readme.TXT"[..], 0));
}

/// §21.4: the collision differentiator that removal freed is taken again.
#[test]
fn the_vector_of_a_normalised_leaf() {
    for fat in [false, true] {
        let store = MemStore::new(if fat { 16384 } else { 512 });
        let zap = store.zap();
        if fat { zap.init_fat(0x1e347, 0x12, 0) } else { zap.init(0x1e347, 0x12, 0) }.unwrap();
        for (i, name) in (0..).zip(["Readme.TXT", "README.txt", "readme.txt", "café", "CAFÉ"]) {
            zap.add(name.as_bytes(), &num(i)).unwrap();
        }
        assert_eq!(kind(zap.add(b"Readme.TXT", &num(0))), ErrorKind::Exists);
        zap.remove(b"README.txt").unwrap();
        zap.add(b"ReadMe.txt", &num(9)).unwrap();
        let a = audit(&store, false);
        let at = |n: &str| (a.entries[n.as_bytes()].hash, a.entries[n.as_bytes()].cd);
        assert_eq!(at("ReadMe.txt").1, 1);
        assert_eq!(at("café"), (0x9379_0420_0000_0000, 0));
        assert_eq!(at("CAFÉ"), (0x9379_0420_0000_0000, 1));
        zap.remove_as(b"cafE\xcc\x81", Match::Normalize).unwrap();
        assert_eq!(zap.lookup("café".as_bytes()).unwrap(), None, "the lowest cd is removed");
        assert_eq!(zap.lookup("CAFÉ".as_bytes()).unwrap(), Some(num(4)));
    }
}

/// §21.4: the object directory's header and leaf.
#[test]
fn the_vector_of_a_fat_zap() {
    let store = MemStore::new(16384);
    let zap = store.zap();
    zap.init_fat(0x44523, 0, 0).unwrap();
    zap.add(b"config", &num(61)).unwrap();
    let salt: Vec<u8> = (0..32).collect();
    zap.add(b"org.illumos:checksum_salt", &ZapValue::from_bytes(&salt).unwrap()).unwrap();
    let header = store.read(0).unwrap();
    assert_eq!(header[..16], [1, 0, 0, 0, 0, 0, 0, 0x80, 0xab, 0xb2, 0x2a, 0xf5, 2, 0, 0, 0]);
    assert!(header[0x2000..].as_chunks::<8>().0.iter().all(|w| u64::from_le_bytes(*w) == 1));
    let leaf = store.read(1).unwrap();
    let leaf = Leaf::parse(&leaf, LE).unwrap();
    assert_eq!(usize::from(leaf.header().nfree), 638 - 3 - 5);
    let a = audit(&store, false);
    assert_eq!(a.entries[&b"config"[..]].hash, 0xf9e4_7b50_0000_0000);
    assert_eq!(a.entries[&b"org.illumos:checksum_salt"[..]].value.data, salt);
}

/// §21.5: as a directory grew under OpenZFS, from a microzap on.
#[test]
fn the_vector_of_splits() {
    for from_micro in [false, true] {
        let store = MemStore::new(if from_micro { 512 } else { 16384 });
        let zap = store.zap();
        if from_micro { zap.init(0x19a35b, 0, 0) } else { zap.init_fat(0x19a35b, 0, 0) }.unwrap();
        for i in 0..2050u64 {
            zap.add(format!("fzap-16-{i}").as_bytes(), &num(i)).unwrap();
        }
        let header = store.read(0).unwrap();
        let header = FatHeader::parse(&header, LE).unwrap();
        let p = header.phys;
        assert_eq!((p.zt_shift, p.freeblk, p.num_leafs, p.num_entries), (10, 17, 16, 0x802));
        let ids: Vec<u64> = (0..16)
            .map(|i| match header.pointer_at(i * 64).unwrap() {
                PointerLocation::Embedded(id) => id,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(ids, [1, 16, 7, 13, 4, 9, 6, 12, 2, 14, 8, 15, 3, 11, 5, 10]);
        let leaf = store.read(2).unwrap();
        let leaf = Leaf::parse(&leaf, LE).unwrap();
        assert_eq!((leaf.header().prefix, leaf.header().prefix_len), (8, 4));
        assert_eq!((leaf.header().nfree, leaf.header().nentries), (248, 130));
        audit(&store, false);
    }
}

#[test]
fn a_microzap_grows_and_turns_fat_with_its_cookies() {
    let store = MemStore::new(512);
    let zap = store.zap();
    zap.init(0x31ffb, 2, 0).unwrap();
    for i in 0..2047u64 {
        // Pairs that differ in case alone.
        let name = if i % 2 == 0 { format!("name{i}") } else { format!("NAME{}", i - 1) };
        zap.add(name.as_bytes(), &num(i)).unwrap();
        assert_eq!(u64::from(store.block_size().unwrap()), ((i + 2) * 64).next_multiple_of(512));
    }
    assert_eq!(zap.len().unwrap(), 2047);
    let before = audit(&store, false);
    assert!(before.phys.is_none());
    assert_eq!(kind(zap.add(b"name0", &num(0))), ErrorKind::Exists);
    assert!(audit(&store, false).phys.is_none(), "a refusal converts nothing");
    zap.add(b"one more", &num(1)).unwrap();
    let after = audit(&store, false);
    let p = after.phys.unwrap();
    assert_eq!((p.salt, p.normflags, p.num_entries), (0x31ffb, 2, 2048));
    for (name, seen) in &before.entries {
        assert_eq!(&after.entries[name], seen, "hash and cd are kept");
    }
    // Each of the other reasons to turn fat.
    let long = [b'a'; 50];
    for (name, value) in [
        (&long[..], num(1)),
        (b"x", ZapValue::from_u64s(&[1, 2]).unwrap()),
        (b"x", ZapValue::from_bytes(b"12345678").unwrap()),
    ] {
        let store = MemStore::new(1536);
        store.zap().init(5, 0, 0).unwrap();
        store.zap().add(b"first", &num(3)).unwrap();
        store.zap().update(name, &value).unwrap();
        let a = audit(&store, false);
        assert!(a.phys.is_some() && a.entries.len() == 2 && a.entries[name].value == value);
    }
    let store = MemStore::new(512);
    let small = store.zap_with(ZapLimits { micro_max: 1024, ..ZapLimits::default() });
    small.init(5, 0, 0).unwrap();
    for i in 0..16u64 {
        assert!(audit(&store, false).phys.is_none());
        small.add(format!("{i}").as_bytes(), &num(i)).unwrap();
    }
    assert!(audit(&store, false).phys.is_some());
}

#[test]
fn names_of_one_hash() {
    let forger = Forger::new(0x4d2);
    let hash = 0xabcd_ef10_0000_0000;
    let store = MemStore::new(512);
    let zap = store.zap();
    zap.init(0x4d2, 0, 0).unwrap();
    for i in 0..127 {
        zap.add(&forger.name(hash, i), &num(i)).unwrap();
    }
    let a = audit(&store, false);
    assert!(a.phys.is_none() && a.entries.values().all(|s| s.hash >> 36 == hash >> 36));
    zap.add(&forger.name(hash, 127), &num(127)).unwrap();
    assert!(audit(&store, false).phys.is_some(), "127 of one hash fit a leaf for sure");
    let full = (128..).find(|i| zap.add(&forger.name(hash, *i), &num(*i)).is_err()).unwrap();
    let leaves = phys(&store).num_leafs;
    assert_eq!(kind(zap.add(&forger.name(hash, full), &num(0))), ErrorKind::NoSpace);
    assert_eq!(phys(&store).num_leafs, leaves, "splits that cannot help are not tried");
    let a = audit(&store, false);
    let mut cds: Vec<u32> = a.entries.values().map(|s| s.cd).collect();
    cds.sort_unstable();
    assert!(cds.iter().copied().eq(0..full as u32));
    // A gap is filled again.
    zap.remove(&forger.name(hash, 40)).unwrap();
    zap.remove(&forger.name(hash, 30)).unwrap();
    zap.add(&forger.name(hash, 1000), &num(1)).unwrap();
    let a = audit(&store, false);
    let cd = a.entries[&forger.name(hash, 1000)].cd;
    assert!(a.entries.values().filter(|s| s.cd == cd).count() == 1 && cd < full as u32 - 1);
    zap.add(&forger.name(!hash, 1), &num(1)).unwrap();
}

/// Hashes that differ in late bits: leaf and table become deep, in steps and at once.
#[test]
fn tables_grow_when_a_split_cannot_wait() {
    let forger = Forger::new(0x4d3);
    let store = MemStore::new(512);
    let zap = store.zap();
    zap.init_fat(0x4d3, 0, 0).unwrap();
    // Six entries fill a leaf of 512 bytes; the 18th bit tells them apart.
    for i in 0..8u64 {
        let hash = 0x1234_0000_0000_0000 | (i % 2) << 46;
        zap.add(&forger.name(hash, i), &num(i)).unwrap();
        audit(&store, false);
    }
    let a = audit(&store, false);
    assert_eq!((a.deepest, a.entries.len()), (18, 8));
    let p = a.phys.unwrap();
    assert!(p.zt_shift >= 18 && p.zt_numblks == 1 << (p.zt_shift - 6), "{p:?}");
    // One shallow leaf covers the other half of the table: splitting it sets many pointers.
    for i in 0..40u64 {
        zap.add(&forger.name(i << 58 | 1 << 63, 100 + i), &num(i)).unwrap();
    }
    audit(&store, false);
}

/// A table that another writer left half-grown is usable, and growing continues.
#[test]
fn a_half_grown_table_is_continued() {
    let store = MemStore::new(512);
    let zap = store.zap();
    zap.init_fat(0x4d3, 0, 0).unwrap();
    let mut i = 0u64;
    while phys(&store).zt_blks_copied < 3 {
        zap.add(format!("n{i}").as_bytes(), &num(i)).unwrap();
        i += 1;
    }
    let p = phys(&store);
    // As OpenZFS may leave it: pointers of blocks still to be copied are stored too.
    for b in 2 * p.zt_blks_copied..2 * p.zt_numblks {
        let fill = &mut |b: &mut [u8]| {
            b.fill(1);
            Ok(())
        };
        store.edit(p.zt_nextblk + b, fill).unwrap();
    }
    zap.remove(b"n0").unwrap();
    assert_eq!(phys(&store).zt_blks_copied, p.zt_blks_copied, "removals copy nothing");
    while phys(&store).zt_nextblk != 0 {
        let copied = phys(&store).zt_blks_copied;
        zap.update(b"n1", &num(i)).unwrap();
        audit(&store, true);
        let now = phys(&store).zt_blks_copied;
        assert!(now == copied + 1 || phys(&store).zt_nextblk == 0);
    }
    assert_eq!(phys(&store).zt_shift, p.zt_shift + 1);
    assert_eq!(audit(&store, false).entries.len() as u64, i - 1);
}

#[test]
fn counting() {
    for fat in [false, true] {
        let store = MemStore::new(1024);
        let zap = store.zap();
        if fat { zap.init_fat(3, 0, 0) } else { zap.init(3, 0, 0) }.unwrap();
        assert_eq!(zap.increment(b"u1", 0).unwrap(), 0);
        assert_eq!(zap.len().unwrap(), 0);
        assert_eq!(zap.increment(b"u1", 512).unwrap(), 512);
        assert_eq!(zap.increment(b"u1", -12).unwrap(), 500);
        assert_eq!(zap.lookup(b"u1").unwrap(), Some(num(500)));
        assert_eq!(zap.increment(b"u1", -500).unwrap(), 0);
        assert!(zap.is_empty().unwrap());
        assert_eq!(zap.increment(b"u2", -1).unwrap(), u64::MAX);
        assert_eq!(zap.increment(b"u2", 2).unwrap(), 1);
        zap.update(b"u3", &ZapValue::from_bytes(b"abc").unwrap()).unwrap();
        assert_eq!(kind(zap.increment(b"u3", 1)), ErrorKind::Invalid);
        audit(&store, false);
    }
}

#[test]
fn refusals() {
    let store = MemStore::new(512);
    let zap = store.zap();
    assert_eq!(kind(zap.init(0, 0, 0)), ErrorKind::Invalid);
    assert_eq!(kind(zap.init(1, 0, 8)), ErrorKind::Invalid);
    assert_eq!(kind(MemStore::new(1536).zap().init_fat(1, 0, 0)), ErrorKind::Invalid);
    zap.init_fat(1, 0, 0).unwrap();
    assert_eq!(kind(zap.add(b"", &num(1))), ErrorKind::Invalid);
    assert_eq!(kind(zap.add(b"a\0b", &num(1))), ErrorKind::Invalid);
    assert_eq!(kind(zap.add(&[b'a'; 256], &num(1))), ErrorKind::NameTooLong);
    let big = ZapValue::from_bytes(&[1; 400]).unwrap();
    assert_eq!(kind(zap.add(b"big", &big)), ErrorKind::Limit);
    zap.add(b"big", &num(1)).unwrap();
    assert_eq!(kind(zap.update(b"big", &big)), ErrorKind::Limit);
    let odd = ZapValue { int_size: 3, num: 1, data: vec![0; 3] };
    assert_eq!(kind(zap.add(b"odd", &odd)), ErrorKind::Invalid);
    assert_eq!(kind(zap.remove_as(b"BIG", Match::Normalize)), ErrorKind::Unsupported);
    zap.add(&[b'a'; 255], &num(1)).unwrap();
    assert_eq!(audit(&store, false).entries.len(), 2);
    let store = MemStore::new(512);
    let long = store.zap_with(ZapLimits { name_max: 1023, ..ZapLimits::default() });
    long.init(1, 0x50, 0).unwrap();
    long.add(&[b'z'; 1023], &num(1)).unwrap();
    assert_eq!(long.lookup(&[b'z'; 1023]).unwrap(), Some(num(1)));
    assert_eq!(kind(long.add(&[b'z'; 1024], &num(1))), ErrorKind::NameTooLong);
}

/// A directory of a case-insensitive, formD file system as OpenZFS wrote it.
#[test]
fn blocks_that_openzfs_wrote_are_changed() {
    let header = &include_bytes!("../../../../fuzz/corpus/zap/ci-dir-0")[1..];
    let leaf = &include_bytes!("../../../../fuzz/corpus/zap/ci-dir-1")[1..];
    let store = MemStore::with_blocks(&[header, leaf]);
    let before = audit(&store, false).entries;
    assert_eq!(before.len(), 12);
    churn(&store.copy(), 3, 4000, 3000, 401);
    let zap = store.zap();
    for i in 0..1000u64 {
        zap.add(format!("Ångström {i}").as_bytes(), &num(i)).unwrap();
    }
    let after = audit(&store, false).entries;
    assert_eq!(after.len(), 1012);
    assert!(before.iter().all(|(name, seen)| after.get(name) == Some(seen)));
    assert!(zap.lookup_as("ångSTRÖM 77".as_bytes(), Match::Normalize).unwrap().is_some());
    let micro = &include_bytes!("../../../../fuzz/corpus/zap/ci-micro-0")[1..];
    let store = MemStore::with_blocks(&[micro]);
    churn(&store, 4, 3000, 2500, 101);
}

/// Name, ZAP and operation of a case.
type ZapCase = (&'static str, MemStore, Box<dyn Fn(&MemStore) -> base::Result<()>>);

fn cases() -> Vec<ZapCase> {
    let fat = |entries: u64| {
        let store = MemStore::new(512);
        store.zap().init_fat(0x99, 0, 0).unwrap();
        (0..entries).for_each(|i| store.zap().add(&name(i), &num(i)).unwrap());
        store
    };
    fn name(i: u64) -> Vec<u8> {
        format!("name-{i}").into_bytes()
    }
    let micro = MemStore::new(512);
    micro.zap().init(0x99, 0, 0).unwrap();
    (0..7).for_each(|i| micro.zap().add(&name(i), &num(i)).unwrap());
    let wide = MemStore::new(512);
    wide.zap().init(0x99, 0, 0).unwrap();
    (0..500).for_each(|i| wide.zap().add(&name(i), &num(i)).unwrap());
    let mut cases: Vec<ZapCase> = vec![
        ("grow a microzap", micro.copy(), Box::new(|s| s.zap().add(b"new", &num(1)))),
        ("remove", micro.copy(), Box::new(|s| s.zap().remove(b"name-3"))),
        ("convert", micro, Box::new(|s| s.zap().add(&[b'n'; 50], &num(1)))),
        ("convert 32 KiB", wide, Box::new(|s| s.zap().add(&[b'n'; 50], &num(1)))),
    ];
    for entries in [3, 4, 5, 6, 40, 41, 42, 43, 44, 45, 46, 47, 48, 400, 500, 600] {
        cases.push(("add", fat(entries), Box::new(|s| s.zap().add(b"new", &num(1)))));
        cases.push(("remove", fat(entries), Box::new(|s| s.zap().remove(b"name-1"))));
        let update =
            |s: &MemStore| s.zap().update(b"name-2", &ZapValue::from_bytes(&[5; 150]).unwrap());
        cases.push(("update", fat(entries), Box::new(update)));
    }
    // The last entry of a leaf is removed: leaves merge.
    let store = fat(60);
    for i in 0..58 {
        store.zap().remove(&name(i)).unwrap();
    }
    cases.push(("merge", store, Box::new(|s| s.zap().remove(b"name-58"))));
    let deep = MemStore::new(512);
    let forger = Forger::new(7);
    deep.zap().init_fat(7, 0, 0).unwrap();
    for i in 0..6u64 {
        deep.zap().add(&forger.name(0x1230_0000_0000_0000 | i << 50, i), &num(i)).unwrap();
    }
    let last = forger.name(0x1234_0000_0000_0000, 9);
    cases.push(("deep split", deep, Box::new(move |s| s.zap().add(&last, &num(1)))));
    cases
}

#[test]
fn a_failed_access_leaves_a_valid_zap() {
    let (mut failures, mut late) = (0, 0);
    for (what, store, op) in cases() {
        let before = audit(&store, false).entries;
        let done = store.copy();
        op(&done).unwrap();
        let after = audit(&done, false).entries;
        assert_ne!(before, after, "{what}");
        for n in 0.. {
            let broken = store.copy();
            broken.break_at(n, false);
            let result = op(&broken);
            if !broken.mend() {
                break;
            }
            // Blocks beyond the end may have been written.
            let now = audit(&broken, true).entries;
            match result {
                Err(e) => {
                    failures += 1;
                    assert_eq!(e.kind(), ErrorKind::NoSpace, "{what} {n}: {e}");
                    assert_eq!(now, before, "{what}, access {n}");
                }
                Ok(()) => {
                    late += 1;
                    assert_eq!(now, after, "{what}, access {n}");
                }
            }
            // The ZAP is still usable, with any blocks left behind.
            if op(&broken).is_err() {
                broken.zap().add(b"another", &num(1)).unwrap();
            }
            audit(&broken, true);
        }
    }
    assert!(failures > 200 && late > 20, "{failures} {late}");
}

/// Undoing fails as well: the old entries can still be found.
#[test]
fn a_device_that_dies_leaves_what_was_there() {
    for (what, store, op) in cases() {
        if what == "convert 32 KiB" {
            continue;
        }
        let before = audit(&store, false).entries;
        for n in 0.. {
            let broken = store.copy();
            broken.break_at(n, true);
            let result = op(&broken);
            if !broken.mend() {
                break;
            }
            for (name, AuditedEntry { value, .. }) in &before {
                let now = broken.zap().lookup(name).unwrap();
                // The entries of the operation may have changed.
                assert!(
                    now.as_ref() == Some(value) || result.is_ok() || name == b"name-2",
                    "{what}, access {n}: {}",
                    String::from_utf8_lossy(name)
                );
            }
        }
    }
}

fn arb_value() -> impl Strategy<Value = ZapValue> {
    prop_oneof![
        any::<u64>().prop_map(ZapValue::from_u64),
        prop::collection::vec(any::<u8>(), 0..60).prop_map(|v| ZapValue::from_bytes(&v).unwrap()),
        prop::collection::vec(any::<u64>(), 0..8).prop_map(|v| ZapValue::from_u64s(&v).unwrap()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn operations_against_a_map(
        shift in 9u32..15,
        fat in any::<bool>(),
        normflags in prop_oneof![Just(0u64), Just(2), Just(0x10), Just(0x52)],
        salt in 1u64..,
        ops in prop::collection::vec((0u8..5, "[a-cA-C]{1,3}|[a-c]{50,60}", arb_value()), 1..120),
    ) {
        let store = MemStore::new(1 << shift);
        let zap = store.zap();
        if fat { zap.init_fat(salt, normflags, 0) } else { zap.init(salt, normflags, 0) }.unwrap();
        let mut model: BTreeMap<Vec<u8>, ZapValue> = BTreeMap::new();
        let mut cookies: BTreeMap<Vec<u8>, (u64, u32)> = BTreeMap::new();
        for (op, name, value) in ops {
            let name = name.into_bytes();
            let there = model.contains_key(&name);
            match op {
                0 | 1 => match zap.add(&name, &value) {
                    Ok(()) => { prop_assert!(!there); model.insert(name, value); }
                    Err(e) if e.kind() == ErrorKind::NoSpace => {}
                    Err(e) => { prop_assert_eq!(e.kind(), ErrorKind::Exists); prop_assert!(there); }
                },
                2 => match zap.update(&name, &value) {
                    Ok(()) => { model.insert(name, value); }
                    Err(e) => prop_assert_eq!(e.kind(), ErrorKind::NoSpace),
                },
                3 => match zap.remove(&name) {
                    Ok(()) => { prop_assert!(model.remove(&name).is_some()); cookies.remove(&name); }
                    Err(e) => { prop_assert_eq!(e.kind(), ErrorKind::NotFound); prop_assert!(!there); }
                },
                _ if normflags != 0 => {
                    let found = zap.lookup_as(&name, Match::Normalize).unwrap();
                    let same = |n: &[u8]| hash_name(salt, n, normflags, 28)
                        == hash_name(salt, &name, normflags, 28);
                    prop_assert_eq!(found.is_some(), model.keys().any(|n| same(n)));
                }
                _ => {
                    let found = zap.lookup(&name).unwrap();
                    prop_assert_eq!(found.as_ref(), model.get(&name));
                }
            }
            let a = audit(&store, false);
            prop_assert_eq!(values(&a), model.clone());
            prop_assert_eq!(zap.len().unwrap(), model.len() as u64);
            for (name, seen) in a.entries {
                let at = *cookies.entry(name).or_insert((seen.hash, seen.cd));
                prop_assert_eq!(at, (seen.hash, seen.cd), "a cookie changed");
            }
        }
    }

    /// Damage in every block: an error or a wrong answer, never a panic or a hang.
    #[test]
    fn damaged_zaps_do_no_harm(
        which in 0usize..4,
        flips in prop::collection::vec(
            (any::<prop::sample::Index>(), 0usize..200, any::<u8>()), 1..10),
        names in prop::collection::vec((0u8..4, 0u64..60), 1..30),
    ) {
        let store = match which {
            0 => MemStore::new(1024),
            _ => MemStore::new(512),
        };
        let zap = store.zap();
        match which { 0 | 1 => zap.init(9, 2, 0), _ => zap.init_fat(9, 2, 0) }.unwrap();
        let entries = [14, 7, 5, 300][which];
        for i in 0..entries {
            zap.add(format!("name-{i}").as_bytes(), &num(i)).unwrap();
        }
        let ids: Vec<u64> = store.blocks.borrow().keys().copied().collect();
        for (block, at, v) in flips {
            let id = *block.get(&ids);
            store.edit(id, &mut |b| {
                let at = at % b.len();
                b[at] = v;
                Ok(())
            }).unwrap();
        }
        for (op, k) in names {
            let name = format!("name-{k}");
            let name = name.as_bytes();
            // Any result is accepted.
            let _ = match op {
                0 => zap.add(name, &num(1)),
                1 => zap.update(name, &ZapValue::from_bytes(&[1; 90]).unwrap()),
                2 => zap.remove(name),
                _ => zap.increment(name, 5).map(drop),
            };
        }
    }
}

/// Story: each addition of a name to a microzap hashed all entries, up to 2047. The index
/// is kept between changes ([`MemStore`] checks that it is valid) and dropped when another
/// caller changed the content.
#[test]
fn a_microzaps_index_is_kept_from_change_to_change() {
    let store = MemStore::new(512);
    store.zap().init(0x1e347, 0, 0).unwrap();
    let name = |n: u64| format!("name {n}").into_bytes();
    for n in 0..1000 {
        store.zap().add(&name(n), &ZapValue::from_u64(n)).unwrap();
        if n % 3 == 2 {
            store.zap().remove(&name(n - 1)).unwrap();
            assert_eq!(store.zap().remove(&name(n - 1)).unwrap_err().kind(), ErrorKind::NotFound);
            store.zap().update(&name(n), &ZapValue::from_u64(0)).unwrap();
            assert_eq!(kind(store.zap().add(&name(n), &ZapValue::from_u64(n))), ErrorKind::Exists);
        }
    }
    let calls = 1000 + 4 * 333;
    assert_eq!(store.recalled.get(), calls - 1, "the first call alone had to look");
    store.edit(0, &mut |_| Ok(())).unwrap();
    store.zap().remove(&name(0)).unwrap();
    assert_eq!(store.recalled.get(), calls - 1, "another caller may have changed something");
}
