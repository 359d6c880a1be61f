//! Tests of each module, on a MOS in memory.

use std::cell::Cell;

use base::{Asize, Dva, ErrorKind, Lsize, Psize, Txg, VdevId};
use nvlist::NvList;
use ondisk::blkptr::{Block, Head};
use ondisk::bpobj::BpobjEntry;
use ondisk::features::by_name;
use ondisk::history::{HistoryHeader, Records};
use ondisk::{BlkPtr, Endian, ObjType};
use proptest::prelude::*;

use super::create::NewDataset;
use super::initial::{Initial, NewPool};
use super::mem::MemMos;
use super::props::{Change, Target};
use super::store::DIRECTORY;
use super::*;
use crate::stored::Stored;

struct MosFixture {
    mos: MemMos,
    ratios: Ratios,
    seed: Cell<u64>,
    txg: Cell<u64>,
}

impl MosFixture {
    fn new(features: &[&str]) -> (MosFixture, Initial) {
        let rig = MosFixture {
            mos: MemMos::default(),
            ratios: Ratios::default(),
            seed: Cell::new(9),
            txg: Cell::new(4),
        };
        let features: Vec<_> = features.iter().map(|n| by_name(n).unwrap()).collect();
        let spec = NewPool {
            version: ondisk::uberblock::VERSION_FEATURES,
            features: &features,
            dspace: 1 << 30,
            salt: [7; 32],
            pool_props: &[],
        };
        let initial = rig.sync(|cx| initial::create(cx, &spec)).unwrap();
        (rig, initial)
    }

    fn sync<T>(&self, f: impl FnOnce(&SyncCx<'_>) -> T) -> T {
        let random = || {
            self.seed.set(self.seed.get().wrapping_mul(6_364_136_223_846_793_005) | 1);
            self.seed.get()
        };
        f(&SyncCx::new(&self.mos, Txg(self.txg.get()), (1_700_000_000, 1), &self.ratios, &random))
    }

    fn read(&self) -> &dyn MosRead {
        &self.mos
    }

    fn check(&self) {
        let found = check(&self.mos, &self.ratios).unwrap();
        assert!(found.is_empty(), "{found:#?}");
    }
}

fn block(n: u64, birth: u64, sectors: u64) -> BlkPtr {
    let head = Head {
        object_type: ObjType::PLAIN_FILE_CONTENTS,
        level: 0,
        lsize: Lsize(16 << 10),
        birth: Txg(birth),
    };
    let dva = Dva { vdev: VdevId(0), offset: n << 20, asize: Asize(sectors << 9), gang: false };
    let mut b = Block::new(head, Psize(sectors << 9), 15, &[dva]);
    (b.checksum, b.words, b.fill) = (7, [n, 2, 3, 4], 5);
    BlkPtr::Block(b)
}

fn entries(range: std::ops::Range<u64>) -> Vec<BpobjEntry> {
    range.map(|n| BpobjEntry { bp: block(n, 5, n % 7 + 1), freed: false }).collect()
}

#[test]
fn entries_are_stored_without_what_freeing_does_not_need() {
    let (rig, _) = MosFixture::new(&[]);
    let BlkPtr::Block(plain) = block(1, 5, 8) else { panic!() };
    let (mut dedup, mut bare) = (plain, plain);
    dedup.dedup = true;
    (bare.words, bare.fill) = ([0; 4], 0);
    let dedup = BlkPtr::Block(dedup);
    let list = rig.sync(|cx| bpobj::create(cx, bpobj::BLOCK, 0)).unwrap();
    let all = [
        BpobjEntry { bp: BlkPtr::Block(plain), freed: false },
        BpobjEntry { bp: dedup, freed: true },
    ];
    let usage = rig.sync(|cx| bpobj::append(cx, list, &all)).unwrap();
    assert_eq!(usage, Usage::default(), "freed entries count negative");
    let mut found = Vec::new();
    bpobj::for_each(&rig.mos, list, &mut |e| {
        found.push(*e);
        Ok(())
    })
    .unwrap();
    assert_eq!(found[0], BpobjEntry { bp: BlkPtr::Block(bare), freed: false });
    // The lowest bit of the fill count marks a freed entry.
    let BlkPtr::Block(marked) = found[1].bp else { panic!() };
    assert_eq!((marked.words, marked.fill, found[1].freed), (plain.words, 1, true));
    let hole = [BpobjEntry { bp: BlkPtr::default(), freed: false }];
    assert!(rig.sync(|cx| base::bug::is_met(|| bpobj::append(cx, list, &hole))));
}

#[test]
fn embedded_entries_keep_their_properties_only() {
    let mut raw = [0u8; 128];
    for (word, value) in [(0, 0x1122u64), (6, 0x8013_008f_0e00_01ff), (10, 5), (13, 77)] {
        raw[word * 8..word * 8 + 8].copy_from_slice(&value.to_le_bytes());
    }
    let bp = BlkPtr::parse(&raw, Endian::Little).unwrap();
    assert!(matches!(bp, BlkPtr::Embedded(_)));
    let (rig, _) = MosFixture::new(&[]);
    let list = rig.sync(|cx| bpobj::create(cx, bpobj::BLOCK, 0)).unwrap();
    let usage = rig.sync(|cx| bpobj::append(cx, list, &[BpobjEntry { bp, freed: false }]));
    assert_eq!(usage.unwrap(), Usage::of(0, 0, 512));
    let (stored, _) = rig.read().read_block(list, 0).unwrap();
    let mut due = [0u8; 128];
    due[48..56].copy_from_slice(&raw[48..56]);
    due[80] = 5;
    assert_eq!(stored[..128], due);
}

#[test]
fn joined_lists_are_consumed_once_in_any_portions() {
    // Short, long (kept as lists of their own), and lists with lists.
    for (sizes, portion) in
        [(vec![3, 1500, 2, 0, 1100], 1), (vec![1024, 1025, 1, 2000], 700), (vec![0, 5], 1 << 20)]
    {
        let (rig, _) = MosFixture::new(&["empty_bpobj"]);
        let outer = rig.sync(|cx| bpobj::create(cx, bpobj::BLOCK, 0)).unwrap();
        let mut next = 0;
        for size in sizes {
            let size = if portion == 1 && size > 1000 { 1030 } else { size };
            let inner = rig.sync(|cx| bpobj::create(cx, bpobj::BLOCK, 0)).unwrap();
            let deep = rig.sync(|cx| bpobj::create(cx, bpobj::BLOCK, 0)).unwrap();
            let (all, more) = (entries(next..next + size), entries(next + size..next + 2 * size));
            next += 2 * size;
            rig.sync(|cx| bpobj::append(cx, inner, &all)).unwrap();
            rig.sync(|cx| bpobj::append(cx, deep, &more)).unwrap();
            rig.sync(|cx| bpobj::add_sublist(cx, inner, deep)).unwrap();
            rig.sync(|cx| bpobj::add_sublist(cx, outer, inner)).unwrap();
        }
        let empty = rig.sync(|cx| bpobj::create_empties(cx, 1)).unwrap()[0];
        rig.sync(|cx| bpobj::add_sublist(cx, outer, empty)).unwrap();
        assert_eq!(features::count(rig.read(), features::EMPTY_BPOBJ).unwrap(), Some(0));
        let mut seen = std::collections::BTreeSet::new();
        loop {
            let total = bpobj::usage(rig.read(), outer).unwrap();
            let mut sum = Usage::default();
            if portion > 1 || seen.len() % 500 == 0 {
                bpobj::for_each(&rig.mos, outer, &mut |e| {
                    sum += rig.ratios.space_of(&e.bp);
                    Ok(())
                })
                .unwrap();
                assert_eq!(sum, total);
            }
            let done = rig.sync(|cx| {
                bpobj::consume(cx, outer, portion, &mut |e| {
                    assert!(seen.insert(e.bp.as_block().unwrap().dva().offset));
                    Ok(())
                })
            });
            let done = done.unwrap();
            assert_eq!(bpobj::usage(rig.read(), outer).unwrap(), total - done.usage);
            if done.entries == 0 {
                break;
            }
        }
        assert_eq!(seen.len() as u64, next);
        let header = bpobj::header(rig.read(), outer).unwrap();
        assert!(header.is_empty() && header.subobjs == 0 && header.bytes == 0);
    }
}

#[test]
fn deadlists_move_whole_entries() {
    let (rig, _) = MosFixture::new(&["empty_bpobj"]);
    let list = rig.sync(|cx| {
        let list = deadlist::create(cx)?;
        [0, 1, 9, 13].iter().try_for_each(|key| deadlist::add_key(cx, list, *key))?;
        let all: Vec<_> = [(1, 9), (2, 10), (3, 13), (4, 14), (5, 99)]
            .map(|(n, birth)| BpobjEntry { bp: block(n, birth, n), freed: false })
            .to_vec();
        deadlist::insert(cx, list, &all)?;
        Ok::<_, base::Error>(list)
    });
    let list = list.unwrap();
    let used = |a, b| rig.sync(|cx| deadlist::range(cx, list, a, b)).unwrap().used >> 9;
    let all = [used(0, 1), used(1, 9), used(9, 13), used(13, u64::MAX), used(5, 5), used(9, 1)];
    assert_eq!(all, [0, 1, 5, 9, 0, 0]);
    assert_eq!(features::count(rig.read(), features::EMPTY_BPOBJ).unwrap(), Some(1));
    // The blocks of a removed key are added to the entry before; key 0 cannot be removed.
    rig.sync(|cx| deadlist::remove_key(cx, list, 13)).unwrap();
    assert_eq!(used(9, 10), 14);
    rig.sync(|cx| deadlist::remove_key(cx, list, 13)).unwrap();
    assert!(rig.sync(|cx| deadlist::remove_key(cx, list, 0)).is_err());
    let of = |list| DslDatasetPhys { deadlist_obj: list, ..DslDatasetPhys::default() };
    let copy = rig.sync(|cx| deadlist::clone_keys(cx, &of(list), 9)).unwrap();
    let keys: Vec<_> = deadlist::keys(rig.read(), copy).unwrap().into_keys().collect();
    assert_eq!(keys, [0, 1]);
    rig.sync(|cx| deadlist::merge(cx, copy, list)).unwrap();
    assert_eq!(deadlist::total(rig.read(), copy).unwrap().used >> 9, 15);
    assert!(rig.read().info(list).is_err());
    let born_too_early = [BpobjEntry { bp: block(7, 0, 1), freed: false }];
    assert!(rig.sync(|cx| deadlist::insert(cx, copy, &born_too_early)).is_err());
    let free = rig.read().required("free_bpobj").unwrap();
    let moved = rig.sync(|cx| deadlist::move_from(cx, copy, free, 1)).unwrap();
    assert_eq!((moved.used >> 9, bpobj::usage(rig.read(), free).unwrap()), (15, moved));
    rig.sync(|cx| deadlist::free(cx, copy)).unwrap();
    assert_eq!(features::count(rig.read(), features::EMPTY_BPOBJ).unwrap(), Some(0));
    assert_eq!(rig.read().directory("empty_bpobj").unwrap(), None);
}

/// The table of chapter 04 §8: 16 KiB records, snapshots at 9, 13, 17, s2 destroyed.
#[test]
fn destroying_a_snapshot_as_in_the_chapter() {
    const K: u64 = 1 << 10;
    let (rig, initial) = MosFixture::new(&["empty_bpobj"]);
    let root = rig.sync(|cx| {
        let mut delta = Delta::begin(cx.read(), initial.root_head, cx.ratios)?;
        let root = block(1000, 4, 8);
        delta.born(&root);
        delta.apply(cx, Some(&root))
    });
    root.unwrap();
    let head = initial.root_head;
    let mut live: Vec<BlkPtr> = Vec::new();
    let mut n = 0;
    // Records overwritten before each snapshot and after the last; a record is 16 KiB.
    let mut write = |txg: u64, range: std::ops::Range<usize>| {
        rig.txg.set(txg);
        rig.sync(|cx| {
            let mut delta = Delta::begin(cx.read(), head, cx.ratios).unwrap();
            for i in range {
                n += 1;
                let new = block(n, txg, 32);
                if let Some(old) = live.get(i).copied() {
                    delta.killed(&old);
                    live[i] = new;
                } else {
                    live.push(new);
                }
                delta.born(&new);
            }
            delta.apply(cx, None).unwrap();
        });
    };
    let snap = |txg, name: &str| {
        rig.txg.set(txg);
        rig.sync(|cx| snapshot::take(cx, head, name)).unwrap()
    };
    write(8, 0..16);
    let s1 = snap(9, "s1");
    write(12, 0..6);
    let s2 = snap(13, "s2");
    write(16, 0..5);
    let s3 = snap(17, "s3");
    write(18, 0..4);
    rig.check();
    let unique = |s| rig.read().dataset(s).unwrap().unique_bytes;
    let snaps = || {
        rig.read().dir(initial.root_dir).unwrap().used_breakdown
            [ondisk::dslphys::UsedKind::Snap as usize]
    };
    assert_eq!((unique(s1), unique(s2), unique(s3)), (96 * K, 80 * K, 64 * K));
    let before = snaps();
    rig.txg.set(20);
    rig.sync(|cx| destroy::snapshot(cx, s2, false)).unwrap();
    rig.check();
    assert_eq!(before - snaps(), 80 * K, "what was unique to s2 waits to be freed");
    let free = rig.read().required("free_bpobj").unwrap();
    assert_eq!(bpobj::usage(rig.read(), free).unwrap().used as u64, 80 * K);
    assert_eq!(rig.read().dataset(s1).unwrap().next_snap_obj, s3);
    assert_eq!(rig.read().dataset(s3).unwrap().prev_snap_obj, s1);
    let list = rig.read().dataset(s3).unwrap().deadlist_obj;
    assert_eq!(deadlist::keys(rig.read(), list).unwrap().into_keys().collect::<Vec<_>>(), [0, 1]);
}

/// A file system, its snapshot of txg 12, and a clone of that.
fn with_clone(rig: &MosFixture, root: u64) -> [create::Created; 2] {
    let make = |name: &str, origin| {
        let new = NewDataset { name, case_insensitive: false, origin };
        rig.sync(|cx| create::dataset(cx, root, &new)).unwrap()
    };
    rig.txg.set(10);
    let a = make("a", None);
    rig.txg.set(12);
    let snap = rig.sync(|cx| snapshot::take(cx, a.head, "s")).unwrap();
    rig.txg.set(14);
    [a, make("c", Some(snap))]
}

#[test]
fn errors_of_shared_blocks_move_with_a_promotion() {
    let (rig, initial) = MosFixture::new(&["head_errlog"]);
    let [a, c] = with_clone(&rig, initial.root_dir);
    let lost =
        |objset, blkid, birth| errlog::LostBlock { objset, object: 5, level: 0, blkid, birth };
    let all = [lost(a.head, 1, 11), lost(a.head, 2, 12), lost(a.head, 3, 13), lost(c.head, 4, 15)];
    let log = errlog::StoredLog::Last;
    rig.sync(|cx| errlog::add(cx, log, &all)).unwrap();
    let owners = || {
        let mut found = errlog::entries(&rig.mos, log).unwrap();
        found.sort_by_key(|l| l.blkid);
        found.into_iter().map(|l| l.objset).collect::<Vec<_>>()
    };
    assert_eq!(owners(), [a.head, a.head, a.head, c.head]);
    for (promoted, due) in [(c, [c, c, a, c]), (a, [a, a, a, c])] {
        rig.txg.set(rig.txg.get() + 1);
        rig.sync(|cx| promote::promote(cx, &promote::check(cx, promoted.head)?)).unwrap();
        assert_eq!(owners(), due.map(|d| d.head));
        rig.check();
    }
}

#[test]
fn livelists_are_divided_joined_and_freed() {
    let (rig, initial) = MosFixture::new(&["livelist", "empty_bpobj"]);
    let [_, c] = with_clone(&rig, initial.root_dir);
    let list = livelist::of_dir(rig.read(), c.dir).unwrap().unwrap();
    let entry = |n: u64, birth, freed| BpobjEntry { bp: block(n, birth, n % 5 + 1), freed };
    let plants = LineagePlants::default();
    plants.sublist_max.store(1 + 6, std::sync::atomic::Ordering::Relaxed);
    let with = |f: &dyn Fn(&SyncCx<'_>) -> Result<()>| {
        let random = || 7;
        let txg = Txg(rig.txg.get());
        f(&SyncCx::new(&rig.mos, txg, (0, 0), &rig.ratios, &random).with_plants(&plants)).unwrap();
    };
    let mut live = std::collections::BTreeMap::new();
    for txg in 20..80u64 {
        rig.txg.set(txg);
        // Twice in a txg; the block of the first time dies in the second. An address is
        // used again and again.
        let (lasting, brief) = (entry(txg, txg, false), entry(1, txg, false));
        with(&|cx| livelist::record(cx, c.dir, 1 << 40, &[lasting, brief], &[]));
        live.insert(txg, lasting);
        let mut killed = vec![entry(1, txg, true)];
        if txg % 4 != 0 {
            killed.extend(live.remove(&(txg - txg % 3)).map(|e| BpobjEntry { freed: true, ..e }));
        }
        with(&|cx| livelist::record(cx, c.dir, 1 << 40, &[], &killed));
    }
    let keys = deadlist::keys(rig.read(), list).unwrap();
    assert!(keys.len() > 3 && keys.len() < 20, "{keys:?}");
    let sum: Usage = live.values().map(|e| rig.ratios.space_of(&e.bp)).sum();
    assert_eq!(deadlist::total(rig.read(), list).unwrap(), sum);
    with(&|cx| livelist::queue(cx, c.dir, list));
    let (mut freed, mut out) = (Vec::new(), background::Progress::default());
    for budget in std::iter::repeat_n(2, 100) {
        let (mut left, mut blocks) = (budget, Vec::new());
        out.more = false;
        let random = || 7;
        let cx = SyncCx::new(&rig.mos, Txg(99), (0, 0), &rig.ratios, &random);
        livelist::step(&cx, &mut left, &mut out, &mut |bp| {
            blocks.push(bp.as_block().unwrap().dva().offset >> 20);
            Ok(())
        })
        .unwrap();
        assert!(blocks.len() <= 8, "{blocks:?}");
        freed.extend(blocks);
        if !out.more {
            break;
        }
    }
    freed.sort_unstable();
    assert_eq!(freed, live.into_keys().collect::<Vec<_>>());
    assert_eq!((out.usage, out.blocks), (sum, freed.len() as u64));
    assert!(rig.read().info(list).is_err());
    assert_eq!(rig.read().directory(livelist::QUEUE).unwrap(), None);
    assert_eq!(features::count(rig.read(), features::LIVELIST).unwrap(), Some(0));
    rig.check();
}

#[test]
fn features_bring_what_they_need_and_when_they_came() {
    let (rig, _) = MosFixture::new(&[]);
    let zap = |name: &str| rig.read().required(name).unwrap();
    let count = |guid: &str| features::count(rig.read(), guid).unwrap();
    rig.txg.set(77);
    let changed = rig.sync(|cx| {
        features::enable(cx, by_name("lz4_compress").unwrap()).unwrap();
        assert!(!cx.label_features_changed());
        features::enable(cx, by_name("large_microzap").unwrap()).unwrap();
        assert!(!cx.label_features_changed());
        assert!(cx.read().directory("feature_enabled_txg").unwrap().is_none());
        features::enable(cx, by_name("hole_birth").unwrap()).unwrap();
        cx.label_features_changed()
    });
    assert!(changed, "hole_birth is needed before the MOS can be read");
    assert_eq!(count("org.illumos:lz4_compress"), Some(1));
    assert_eq!(count(features::LARGE_BLOCKS), Some(0));
    assert_eq!(count("com.delphix:hole_birth"), Some(1));
    // enabled_txg itself and hole_birth.
    assert_eq!(count(features::ENABLED_TXG), Some(2));
    let txgs = rig.read().numbers(zap("feature_enabled_txg")).unwrap();
    assert!(txgs.iter().all(|(_, txg)| *txg == 77) && txgs.len() == 2);
    let texts = rig.mos.zap_entries(zap("feature_descriptions")).unwrap();
    assert_eq!(texts.len(), 6);
    assert!(texts.iter().all(|(_, t)| t.int_size == 1 && t.data.last() == Some(&0)));
    rig.sync(|cx| features::enable(cx, by_name("hole_birth").unwrap())).unwrap();
    assert_eq!(count(features::ENABLED_TXG), Some(2));
    // Counting a feature that is not enabled fails; a count below zero stays zero.
    assert!(rig.sync(|cx| features::add(cx, features::BOOKMARKS, 1)).is_err());
    assert_eq!(rig.sync(|cx| features::add(cx, features::LARGE_BLOCKS, -1)).unwrap(), 0);
    rig.check();
}

#[test]
fn a_new_pool_is_as_the_chapter_says() {
    let names: Vec<_> = features::maintained().map(|f| f.name()).collect();
    let (rig, initial) = MosFixture::new(&names);
    rig.check();
    let origin = links::origin_snapshot(rig.read()).unwrap().unwrap();
    let o = rig.read().dataset(origin).unwrap();
    assert_eq!((o.creation_txg.0, o.prev_snap_obj, o.num_children), (1, 0, 2));
    let root = rig.read().dataset(initial.root_head).unwrap();
    assert_eq!((root.creation_txg.0, root.prev_snap_txg.0, root.prev_snap_obj), (1, 1, origin));
    assert_eq!(deadlist::keys(rig.read(), root.deadlist_obj).unwrap().len(), 1);
    assert!(deadlist::keys(rig.read(), o.deadlist_obj).unwrap().is_empty());
    // The DSL was built before features were enabled.
    assert_eq!(features::count(rig.read(), features::EMPTY_BPOBJ).unwrap(), Some(0));
    let txgs = features::count(rig.read(), features::ENABLED_TXG).unwrap().unwrap();
    assert_eq!(txgs as usize, names.len() - 5);
    let salt = rig.mos.zap_lookup(DIRECTORY, b"org.illumos:checksum_salt").unwrap().unwrap();
    assert_eq!((salt.int_size, salt.num), (1, 32));
    assert!(features::obstacles(rig.read()).unwrap().is_empty());
}

#[test]
fn obstacles_are_named() {
    let (rig, _) = MosFixture::new(&["empty_bpobj"]);
    rig.sync(|cx| {
        features::enable(cx, by_name("fast_dedup").unwrap()).unwrap();
        assert!(features::obstacles(cx.read()).unwrap().is_empty(), "enabled is not in use");
        features::add(cx, "com.klarasystems:fast_dedup", 1).unwrap();
        let zap = cx.read().required("features_for_write").unwrap();
        cx.put_number(zap, "org.example:new", 3).unwrap();
    });
    let found = features::obstacles(rig.read()).unwrap();
    let mut what: Vec<_> = found.iter().map(|o| o.what.as_str()).collect();
    what.sort_unstable();
    let due = ["org.example:new"];
    assert_eq!(what, due);
}

#[test]
fn properties_follow_the_table() {
    let (rig, initial) = MosFixture::new(&["filesystem_limits", "zstd_compress"]);
    let dir = initial.root_dir;
    let zap = rig.read().dir(dir).unwrap().props_zapobj;
    let change = |name: &str, change: Change| {
        rig.sync(|cx| props::change(cx, Target::Dir(dir), name, &change)).unwrap();
    };
    let names = || {
        let all = rig.mos.zap_entries(zap).unwrap();
        all.into_iter().map(|(n, _)| String::from_utf8(n).unwrap()).collect::<Vec<_>>()
    };
    let number = |n| Change::Set(Stored::Number(n));
    change("redundant_metadata", number(2));
    assert_eq!(names(), ["redundant_metadata", "redundant_metadata$iuv"]);
    assert_eq!(rig.read().number(zap, "redundant_metadata").unwrap(), Some(0));
    change("redundant_metadata", number(1));
    assert_eq!(names(), ["redundant_metadata"]);
    change("redundant_metadata", Change::Inherit);
    assert!(names().is_empty());
    change("recordsize", Change::Receive(Stored::Number(1 << 20)));
    change("recordsize", Change::Inherit);
    assert_eq!(names(), ["$hasrecvd", "recordsize$inherit", "recordsize$recvd"]);
    assert_eq!(props::own(rig.read(), zap, "recordsize").unwrap(), None);
    change("recordsize", Change::Revert);
    let received = props::own(rig.read(), zap, "recordsize").unwrap();
    assert_eq!(received, Some(Stored::Number(1 << 20)));
    change("user:note", Change::Set(Stored::Text("hi".into())));
    let note = rig.mos.zap_lookup(zap, b"user:note").unwrap().unwrap();
    assert_eq!(note.data, b"hi\0");
    let long = Change::Set(Stored::Text("x".repeat(8192)));
    let refused = rig.sync(|cx| props::change(cx, Target::Dir(dir), "user:long", &long));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);

    change("quota", number(1 << 26));
    change("reservation", number(8 << 20));
    change("refreservation", number(1 << 20));
    let d = rig.read().dir(dir).unwrap();
    assert_eq!((d.quota, d.reserved, d.used_bytes), (1 << 26, 8 << 20, 1 << 20));
    change("refreservation", Change::Inherit);
    assert_eq!(rig.read().dir(dir).unwrap().used_bytes, 0);
    change("compression", number(16));
    assert_eq!(features::count(rig.read(), "org.freebsd:zstd_compress").unwrap(), Some(1));
    change("snapshot_limit", number(5));
    assert_eq!(features::count(rig.read(), features::FILESYSTEM_LIMITS).unwrap(), Some(1));
    rig.check();
}

#[test]
fn limits_count_what_comes_and_goes() {
    let (rig, initial) = MosFixture::new(&["filesystem_limits"]);
    let make = |parent, name: &str| {
        let new = NewDataset { name, case_insensitive: false, origin: None };
        rig.sync(|cx| create::dataset(cx, parent, &new)).unwrap()
    };
    rig.txg.set(5);
    let a = make(initial.root_dir, "a");
    rig.sync(|cx| snapshot::take(cx, a.head, "one")).unwrap();
    let limit = Change::Set(Stored::Number(9));
    let target = Target::Dir(initial.root_dir);
    rig.sync(|cx| props::change(cx, target, "filesystem_limit", &limit)).unwrap();
    let b = make(a.dir, "b");
    rig.txg.set(6);
    let snap = rig.sync(|cx| snapshot::take(cx, b.head, "two")).unwrap();
    let counts = |dir| {
        let get = |key| rig.read().attribute_u64(dir, key).unwrap().unwrap();
        (get("com.joyent:filesystem_count"), get("com.joyent:snapshot_count"))
    };
    assert_eq!([counts(initial.root_dir), counts(a.dir), counts(b.dir)], [(2, 2), (1, 2), (0, 1)]);
    rig.sync(|cx| destroy::snapshot(cx, snap, false)).unwrap();
    assert_eq!([counts(initial.root_dir), counts(a.dir), counts(b.dir)], [(2, 1), (1, 1), (0, 0)]);
    rig.check();
    let taken = NewDataset { name: "b", case_insensitive: false, origin: None };
    let refused = rig.sync(|cx| create::dataset(cx, a.dir, &taken)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Exists);
    for name in ["", ".", "..", "a/b", "a@b", "a#b", "ä"] {
        assert!(create::check_component(name).is_err(), "{name}");
    }
}

/// A directory's permissions as a plain table.
type PermissionModel = std::collections::BTreeMap<
    (delegation::Grantee, delegation::Reach),
    std::collections::BTreeSet<String>,
>;

/// What a user may do, by the words of chapter 04 §13; `tables` from the root down.
fn model_may(
    tables: &[PermissionModel],
    place: delegation::GrantPlace,
    who: delegation::Subject<'_>,
) -> std::collections::BTreeSet<String> {
    use delegation::{GrantPlace, Grantee, Reach};
    let mut out = std::collections::BTreeSet::new();
    for (level, table) in tables.iter().enumerate() {
        let own = level + 1 == tables.len();
        let mut here = std::collections::BTreeSet::new();
        for ((holder, reach), names) in table {
            let is_users = match holder {
                Grantee::User(id) => *id == who.uid,
                Grantee::Group(id) => who.groups.contains(id),
                Grantee::Everyone => true,
                Grantee::CreateTime | Grantee::Set(_) => false,
            };
            let counts = match (reach, own, place) {
                (Reach::Local, true, GrantPlace::Dataset | GrantPlace::Snapshot) => is_users,
                (Reach::Descendent, true, GrantPlace::Dataset) => false,
                (Reach::Descendent, ..) => is_users,
                _ => *holder == Grantee::CreateTime && place == GrantPlace::New,
            };
            if counts {
                here.extend(names.iter().cloned());
            }
        }
        // A set is what this directory and those above say.
        loop {
            let before = here.len();
            for name in here.clone().iter().filter(|n| n.starts_with('@')) {
                for above in &tables[..=level] {
                    let set = (Grantee::Set(name.clone()), Reach::Unspecified);
                    here.extend(above.get(&set).into_iter().flatten().cloned());
                }
            }
            if here.len() == before {
                break;
            }
        }
        out.extend(here);
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Permissions that come and go at three directories, against plain tables.
    #[test]
    fn permissions_are_those_of_the_tables(
        steps in prop::collection::vec(
            (0usize..3, 0u8..7, 0u8..3, prop::collection::btree_set(0u8..7, 1..4), 0u8..4),
            1..40,
        ),
        uid in 0u64..3,
    ) {
        use delegation::{DelegatedEntry, Grantee, GrantPlace, Reach, Subject};
        let (rig, initial) = MosFixture::new(&[]);
        let before = rig.mos.objects();
        let make = |parent, name: &str| {
            let new = NewDataset { name, case_insensitive: false, origin: None };
            rig.sync(|cx| create::dataset(cx, parent, &new)).unwrap().dir
        };
        rig.txg.set(5);
        let a = make(initial.root_dir, "a");
        let dirs = [initial.root_dir, a, make(a, "b")];
        let made = rig.mos.objects().len();
        prop_assert!(made > before.len());
        let mut tables: Vec<PermissionModel> = vec![PermissionModel::new(); 3];
        for (at, holder, reach, names, how) in steps {
            let holder = match holder {
                0 => Grantee::User(1),
                1 => Grantee::User(2),
                2 => Grantee::Group(1),
                3 => Grantee::Everyone,
                4 => Grantee::CreateTime,
                5 => Grantee::Set("@x".into()),
                _ => Grantee::Set("@y".into()),
            };
            let reach = match (&holder, reach) {
                (Grantee::CreateTime | Grantee::Set(_), _) => Reach::Unspecified,
                (_, 0) => Reach::Local,
                _ => Reach::Descendent,
            };
            let all = ["create", "send", "hold", "mount", "quota", "@x", "@y"];
            let names: std::collections::BTreeSet<String> =
                names.iter().map(|n| all[usize::from(*n)].to_owned()).collect();
            let key = (holder.clone(), reach);
            delegation::check(rig.read(), dirs[at], &holder, &names).unwrap();
            match how {
                0 | 1 => {
                    tables[at].entry(key).or_default().extend(names.iter().cloned());
                    let entry = DelegatedEntry { holder, reach, permissions: names };
                    rig.sync(|cx| delegation::allow(cx, dirs[at], &entry)).unwrap();
                }
                _ => {
                    let some = (how == 2).then_some(&names);
                    if let Some(have) = tables[at].get_mut(&key) {
                        have.retain(|n| some.is_some_and(|names| !names.contains(n)));
                        if have.is_empty() {
                            tables[at].remove(&key);
                        }
                    }
                    let whose = (&holder, reach);
                    rig.sync(|cx| delegation::unallow(cx, dirs[at], whose, some)).unwrap();
                }
            }
        }
        let groups = [uid];
        let who = Subject { uid, groups: &groups };
        for (at, dir) in dirs.iter().enumerate() {
            let stored: PermissionModel = delegation::entries(rig.read(), *dir)
                .unwrap()
                .into_iter()
                .map(|e| ((e.holder, e.reach), e.permissions))
                .collect();
            prop_assert_eq!(&stored, &tables[at]);
            for place in [GrantPlace::Dataset, GrantPlace::Snapshot, GrantPlace::Below, GrantPlace::New] {
                let may = delegation::effective(rig.read(), *dir, place, who).unwrap();
                prop_assert_eq!(may, model_may(&tables[..=at], place, who), "{:?} {}", place, at);
            }
        }
        // Who makes a dataset gets what the tables above say.
        let new = make(dirs[2], "new");
        rig.sync(|cx| delegation::created(cx, new, 9)).unwrap();
        let key = (Grantee::CreateTime, Reach::Unspecified);
        let wanted: std::collections::BTreeSet<String> =
            tables.iter().filter_map(|t| t.get(&key)).flatten().cloned().collect();
        let got: Vec<DelegatedEntry> = delegation::entries(rig.read(), new).unwrap();
        match got.as_slice() {
            [] => prop_assert!(wanted.is_empty()),
            [one] => {
                prop_assert_eq!((&one.holder, one.reach), (&Grantee::User(9), Reach::Local));
                prop_assert_eq!(&one.permissions, &wanted);
            }
            _ => prop_assert!(false, "{:?}", got),
        }
        // No object is left of what was taken back.
        for dir in dirs.iter().chain([&new]) {
            for entry in delegation::entries(rig.read(), *dir).unwrap() {
                let whose = (&entry.holder, entry.reach);
                rig.sync(|cx| delegation::unallow(cx, *dir, whose, None)).unwrap();
            }
            let table = rig.read().dir(*dir).unwrap().deleg_zapobj;
            if table != 0 {
                prop_assert!(rig.mos.zap_entries(table).unwrap().is_empty());
                rig.mos.free_object(table).unwrap();
            }
        }
        prop_assert_eq!(rig.mos.objects().len(), made + (made - before.len()) / 2);
        rig.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The ring against a plain list from which the oldest entries are dropped.
    #[test]
    fn history_keeps_the_newest(lens in prop::collection::vec(1usize..9000, 1..80)) {
        let (rig, initial) = MosFixture::new(&[]);
        let record = |key: &str, text: String| {
            let mut list = NvList::new();
            list.add_str(key, &text);
            list
        };
        let mut all = vec![record("history internal str", "before".into())];
        all.push(record("history command", "zpool create".into()));
        all.extend(lens.iter().enumerate().map(|(i, len)| {
            record("history command", format!("{i}{}", "x".repeat(*len)))
        }));
        for list in &all {
            rig.sync(|cx| history::append(cx, list)).unwrap();
        }
        let info = rig.mos.info(initial.history).unwrap();
        let h = HistoryHeader::parse(&info.bonus, Endian::Little).unwrap();
        let mut bytes = Vec::new();
        for range in h.extents() {
            for at in range {
                let (block, _) = rig.mos.read_block(initial.history, at / info.block_size).unwrap();
                bytes.push(block[(at % info.block_size) as usize]);
            }
        }
        let found: Vec<NvList> = Records::new(&bytes).map(Result::unwrap).collect();
        let lost = h.records_lost as usize;
        prop_assert_eq!(&found[..2], &all[..2]);
        prop_assert_eq!(&found[2..], &all[2 + lost..]);
        let written: usize = lens.iter().map(|l| l + 150).sum();
        prop_assert!(lost == 0 || written > 128 << 10);
    }
}

#[path = "remap_tests.rs"]
mod remap_tests;
