//! Dedup tables that are kept small: pruning, quota; and their prefetch.

use cenote::PruneRequest;
use ondisk::ddt::{Class, Entry};
use spa::audit::AuditOptions;
use spa::engine::PruneAmount;

use super::dedup::{BLOCK, ON, allocated, dedup_pool, settle, single, tally};
use super::log::cut;
use super::*;

/// Blocks of a file.
const COUNT: u64 = 60;

fn bytes(seed: u64, blocks: u64) -> Vec<u8> {
    noise(seed, (blocks * BLOCK) as usize)
}

fn make(rig: &PosixFixture, name: &str, seed: u64) -> ObjectId {
    let file = rig.file(rig.root(), name);
    rig.write(file, 0, &bytes(seed, COUNT));
    file
}

fn remove(rig: &PosixFixture, name: &str) {
    rig.fs.unlink(&Caller::root(), rig.root(), name.as_bytes()).unwrap();
}

/// The number of entries, those of the logs included.
fn entries(rig: &PosixFixture) -> u64 {
    rig.pool.spa().dedup_entries().unwrap().values().filter(|e| e.total_refcnt() > 0).count() as u64
}

fn is_whole(scratch: &Scratch, what: &str) {
    let engine = testkit::engine();
    let pool = import_from(&engine, scratch.path(), &testkit::readonly()).unwrap();
    let report = pool.spa().audit(AuditOptions::default(), &()).unwrap();
    assert!(report.is_clean(), "{what}: {:?}", report.problems);
}

/// On every kind of vdev, only entries with one reference are pruned, as many as were asked for.
/// Their blocks stay readable, and are freed as ordinary ones, also beside a snapshot; equal
/// content that is written again gets new blocks and entries.
#[test]
fn unique_entries_are_pruned() {
    let cases = [(0, 12), (8, 9), (15, 12), (22, 9)];
    testkit::side_by_side(&cases, |&(which, ashift)| {
        let (rig, name) = dedup_pool("prune", which, ashift, true, ON);
        let (shared, twin) = (make(&rig, "shared", 1), make(&rig, "twin", 1));
        let alone = make(&rig, "alone", 2);
        rig.sync();
        // Entries that are only in a log are pruned, too.
        let half = rig.pool.prune_dedup(PruneRequest::Percent(50), Some("zpool ddtprune")).unwrap();
        assert_eq!((half, entries(&rig)), (COUNT / 2, COUNT + COUNT / 2), "{name}");
        let young = make(&rig, "young", 3);
        rig.sync();
        // Nothing is a day old.
        assert_eq!(rig.pool.prune_dedup(PruneRequest::Days(1), None).unwrap(), 0, "{name}");
        let rig = rig.again();
        let all = rig.pool.prune_dedup(PruneRequest::Percent(100), None).unwrap();
        assert_eq!((all, entries(&rig)), (COUNT / 2 + COUNT, COUNT), "{name}");
        let (before, saved) = (allocated(&rig), tally(&rig).1);
        make(&rig, "again", 2);
        make(&rig, "more", 1);
        rig.sync();
        let grown = allocated(&rig) - before;
        assert!((COUNT * BLOCK..5 * COUNT * BLOCK).contains(&grown), "{name}: {grown}");
        let rig = rig.again();
        assert!(tally(&rig).1 > saved, "{name}: shared blocks are still counted");
        rig.pool.snapshot(&["tank/fs@s".to_owned()], &[], None).unwrap();
        assert!(rig.read(alone) == bytes(2, COUNT) && rig.read(young) == bytes(3, COUNT));
        assert!(rig.read(shared) == bytes(1, COUNT) && rig.read(twin) == bytes(1, COUNT));
        ["alone", "young", "shared"].iter().for_each(|file| remove(&rig, file));
        settle(&rig);
        rig.pool.destroy_snapshots(&["tank/fs@s".to_owned()], false, None).unwrap();
        settle(&rig);
        let rig = rig.again();
        assert_eq!(entries(&rig), 2 * COUNT, "{name}");
        let history = rig.pool.spa().history().unwrap();
        let logged = |line: &str| history.iter().any(|r| r.str("history command") == Some(line));
        assert!(logged("zpool ddtprune"), "{name}");
        rig.finish();
    });
}

/// The oldest entries go first, whatever their order in the ZAP.
#[test]
fn the_oldest_entries_are_pruned() {
    let rig = single("ages", true);
    make(&rig, "a", 1);
    let rig = rig.again();
    let table = rig.pool.spa().dedup_tables().unwrap().remove(0);
    let unique = table.classes.iter().find(|c| c.class == Class::Unique).unwrap().object;
    let old = |key: &ondisk::ddt::Key| key.words[0].is_multiple_of(3);
    let act = move |cx: &mut spa::engine::TaskCx<'_>, ()| {
        for entry in cx.writer.mos().for_sync().zap_entries(unique)? {
            let words = entry.name.as_chunks().0.iter().map(|w| u64::from_be_bytes(*w));
            let words: Vec<u64> = words.collect();
            let key = ondisk::ddt::Key::from_words(words.clone().try_into().unwrap());
            let Entry::Flat(mut flat) = Entry::decode(entry.value.as_bytes().unwrap(), true)?
            else {
                panic!("an entry of another form")
            };
            if old(&key) {
                flat.class_start = 1000 + key.words[0] % 7;
            }
            let value = ondisk::zap::ZapValue::from_bytes(&Entry::Flat(flat).encode()).unwrap();
            let os = cx.writer.mos().objset();
            dmu::zaps::update_words(os, cx.tx, ObjectId(unique), &words, &value)?;
        }
        Ok(())
    };
    rig.pool.writer().unwrap().sync_task(|_| Ok(()), act).unwrap();
    let left = || rig.pool.spa().dedup_entries().unwrap();
    let olds = left().keys().filter(|(_, key)| old(key)).count() as u64;
    assert!(olds > 3 && olds < COUNT);
    let writer = rig.pool.writer().unwrap();
    let oldest = left().keys().filter(|(_, k)| old(k) && k.words[0] % 7 <= 2).count() as u64;
    assert_eq!(writer.prune_dedup(PruneAmount::UpTo(1002), None).unwrap(), oldest);
    let percent = ((olds - oldest) * 100).div_ceil(COUNT - oldest) as u8;
    let gone = writer.prune_dedup(PruneAmount::Percent(percent), None).unwrap();
    assert!(gone >= olds - oldest && left().keys().all(|(_, key)| !old(key)), "{gone}");
    assert_eq!(writer.prune_dedup(PruneAmount::Percent(0), None).unwrap(), 0);
    assert_eq!(
        writer.prune_dedup(PruneAmount::UpTo(u64::MAX), None).unwrap(),
        COUNT - oldest - gone
    );
    settle(&rig);
    assert!(rig.pool.spa().dedup_tables().unwrap().is_empty());
    rig.finish();
}

/// What cannot be pruned is refused, and nothing changes: legacy tables, pools without the
/// feature, pools that are only read.
#[test]
fn other_tables_are_not_pruned() {
    let rig = single("legacy", false);
    make(&rig, "a", 1);
    rig.sync();
    let refused = rig.pool.prune_dedup(PruneRequest::Percent(100), None).unwrap_err();
    assert_eq!(refused.message(), "operation not supported on this type of pool");
    assert_eq!(entries(&rig), COUNT);
    rig.pool.writer().unwrap();
    let PosixFixture { scratch, engine, pool, fs } = rig.again();
    drop(fs);
    pool.export().unwrap();
    drop(pool);
    let pool = import_from(&engine, scratch.path(), &testkit::readonly()).unwrap();
    let refused = pool.prune_dedup(PruneRequest::Percent(100), None).unwrap_err();
    assert_eq!(refused.message(), "pool is read-only");
    // Without tables there is nothing to do.
    let rig = single("none", true);
    assert_eq!(rig.pool.prune_dedup(PruneRequest::Percent(100), None).unwrap(), 0);
}

/// A power cut after some of the entries went: the rest is as it was.
#[test]
fn a_power_cut_after_a_part_of_a_pruning() {
    let rig = single("prune-cut", true);
    make(&rig, "a", 1);
    rig.sync();
    rig.pool.prune_dedup(PruneRequest::Percent(40), None).unwrap();
    let image = cut(&rig, "prune-cut");
    is_whole(&image, "pruned");
    let engine = testkit::engine();
    let pool = super::log::import_with(&engine, &image, false).unwrap();
    let fs = open(&pool);
    let again = PosixFixture { scratch: image, engine, pool, fs };
    assert_eq!(entries(&again), COUNT * 6 / 10);
    remove(&again, "a");
    settle(&again);
    again.finish();
}

/// A block whose entry was pruned is cloned. The pointers die in any order, in one txg or several,
/// also in one with a new block of equal content, and the block reference table counts them to
/// the end.
#[test]
fn pruned_blocks_that_were_cloned_are_freed_with_the_last_pointer() {
    let orders: [&[&[&str]]; 4] = [
        &[&["a"], &["b"], &["c"]],
        &[&["c"], &["a"], &["b"]],
        &[&["a", "b", "c"]],
        &[&["b", "a"], &["c"]],
    ];
    let cases: Vec<_> = orders.iter().enumerate().collect();
    testkit::side_by_side(&cases, |(n, order)| {
        let rig = single(&format!("cloned-{n}"), true);
        let a = make(&rig, "a", 1);
        rig.sync();
        let writer = Arc::clone(rig.pool.writer().unwrap());
        assert_eq!(rig.pool.prune_dedup(PruneRequest::Percent(100), None).unwrap(), COUNT);
        settle(&rig);
        let before = allocated(&rig);
        let clones = ["b", "c"].map(|name| {
            let to = rig.file(rig.root(), name);
            let done = rig.fs.clone_range(&Caller::root(), (&rig.fs, a, 0), (to, 0), u64::MAX);
            assert_eq!(done.unwrap(), COUNT * BLOCK);
            to
        });
        rig.sync();
        assert!(allocated(&rig) - before < COUNT * BLOCK / 4, "the blocks were not cloned");
        assert_eq!(rig.pool.writer().unwrap().clone_tally().1, 2 * COUNT * BLOCK);
        // Equal content: other blocks, with entries.
        make(&rig, "equal", 1);
        drop(writer);
        let rig = rig.again();
        assert_eq!(entries(&rig), COUNT);
        for (i, names) in order.iter().enumerate() {
            names.iter().for_each(|name| remove(&rig, name));
            if i == 0 {
                // Counted by the dedup table, beside the cloned ones.
                make(&rig, "twin", 1);
            }
            settle(&rig);
            let left = order.iter().skip(i + 1).flat_map(|names| names.iter());
            for name in left {
                let id = rig.fs.lookup(rig.root(), name.as_bytes(), Io::WAIT).unwrap().id;
                assert!(rig.read(id) == bytes(1, COUNT), "{n}: {name}");
            }
            is_whole(&cut(&rig, &format!("cloned-{n}-{i}")), &format!("{n}: {i}"));
        }
        let _gone = clones;
        assert_eq!((rig.pool.writer().unwrap().clone_tally(), entries(&rig)), ((0, 0), COUNT));
        rig.end();
    });
}

/// A table that is full gets no new entries, also after an import; what it has is shared and
/// freed. Legacy and fast tables.
#[test]
fn a_full_table_gets_no_new_entries() {
    testkit::side_by_side(&[false, true], |&fast| {
        let rig = single("quota", fast);
        let quota = |rig: &PosixFixture, bytes: u64| {
            let setting = PoolSetting::Stored("dedup_table_quota", bytes);
            rig.pool.set(&setting, None).unwrap();
        };
        assert_eq!(rig.pool.writer().unwrap().dedup_limits().1, u64::MAX, "no dedup vdev");
        make(&rig, "first", 1);
        settle(&rig);
        // The estimate for an entry that no ZAP has is 512 bytes.
        let size = |rig: &PosixFixture| rig.pool.writer().unwrap().dedup_limits().0;
        assert!(size(&rig) > 0, "{fast}");
        quota(&rig, size(&rig) + 10 * 512);
        make(&rig, "second", 2);
        rig.sync();
        let full = entries(&rig);
        assert_eq!(full, COUNT + 10, "{fast}");
        // The ZAPs may take less than the estimate.
        quota(&rig, 1);
        let saved = tally(&rig).1;
        make(&rig, "twin", 1);
        // Each block once more; those without an entry are not shared.
        make(&rig, "third", 2);
        settle(&rig);
        let rig = rig.again();
        assert_eq!(entries(&rig), full, "{fast}");
        assert_eq!(tally(&rig).1 - saved, full * BLOCK, "{fast}");
        make(&rig, "fourth", 3);
        let rig = rig.again();
        assert_eq!(entries(&rig), full, "{fast}: after an import");
        quota(&rig, 0);
        make(&rig, "fifth", 4);
        rig.sync();
        assert_eq!(entries(&rig), full + COUNT, "{fast}: without a quota");
        quota(&rig, 1);
        for name in ["first", "twin", "second", "third", "fourth"] {
            remove(&rig, name);
        }
        settle(&rig);
        let rig = rig.again();
        assert_eq!(entries(&rig), COUNT, "{fast}");
        rig.finish();
    });
}

/// `auto` is the capacity of the dedup vdevs, those that are added included.
#[test]
fn the_automatic_quota_is_the_size_of_the_dedup_vdevs() {
    let scratch = Scratch::new("posix-dedup-auto");
    let disk = |name: &str| {
        let path = scratch.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(64 * MB).unwrap();
        NewVdev::new(NewKind::File(path))
    };
    let mut wanted = request(scratch.path().to_path_buf(), 5000);
    wanted.vdevs = vec![disk("d0"), disk("d1").for_role(cenote::create::Role::Dedup)];
    let engine = testkit::engine();
    let pool = engine.create_pool(&wanted).unwrap().unwrap();
    let limit = || pool.writer().unwrap().dedup_limits().1;
    let one = limit();
    assert!((40 * MB..=64 * MB).contains(&one), "{one}");
    let more = cenote::create::AddRequest {
        vdevs: vec![disk("d2").for_role(cenote::create::Role::Dedup)],
        force: Force::ALL,
        dry_run: false,
        ashift: None,
        command: None,
    };
    engine.add_vdevs(&pool, &more).unwrap();
    pool.writer().unwrap().touch();
    pool.sync().unwrap();
    assert_eq!(limit(), 2 * one);
    pool.set(&PoolSetting::Stored("dedup_table_quota", 5 * MB), None).unwrap();
    assert_eq!(limit(), 5 * MB);
    pool.set(&PoolSetting::Stored("dedup_table_quota", 0), None).unwrap();
    assert_eq!(limit(), u64::MAX);
    pool.set(&PoolSetting::Stored("dedup_table_quota", u64::MAX), None).unwrap();
    assert_eq!(limit(), 2 * one);
    pool.export().unwrap();
}

/// A prefetch brings the whole tables into the cache.
#[test]
fn tables_are_prefetched() {
    testkit::side_by_side(&[false, true], |&fast| {
        let rig = single("prefetch", fast);
        for i in 0..4 {
            make(&rig, &format!("f{i}"), i);
        }
        let rig = rig.again();
        let spa = rig.pool.spa();
        let before = spa.dedup_cached().unwrap();
        rig.pool.prefetch_dedup().unwrap();
        let after = spa.dedup_cached().unwrap();
        let whole: u64 = spa.dedup_tables().unwrap()[0].classes.iter().map(|c| c.in_core).sum();
        assert!(before < after && after == whole, "{fast}: {before} {after} {whole}");
        rig.finish();
    });
}
