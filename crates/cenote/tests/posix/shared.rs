//! Files that share blocks: cloned ranges against a model of contents, and the block reference
//! tables against the pointers that the audit finds, which is a naive count of references.

use std::collections::BTreeMap;

use dmu::{CloneOutcome, OutagePolicy, zaps};
use ondisk::brt::BrtVdev;
use ondisk::zap::ZapValue;
use spa::audit::{AuditOptions, Problem, Report};
use spa::engine::TaskCx;

use super::dedup::ON;
use super::log::{cut, synced};
use super::records::{ready, replayed, step_by_step};
use super::widths::make;
use super::*;
use dsl::write::destroy;

const BLOCK: u64 = 16 << 10;
/// Value of property `dedup`.
const OFF: u64 = 2;

fn clone(rig: &PosixFixture, from: (ObjectId, u64), to: (ObjectId, u64), len: u64) -> u64 {
    rig.fs.clone_range(&Caller::root(), (&rig.fs, from.0, from.1), to, len).unwrap()
}

/// Bytes of cloned blocks, and bytes that cloning saves.
fn tally(rig: &PosixFixture) -> (u64, u64) {
    rig.sync();
    rig.pool.writer().unwrap().clone_tally()
}

/// Frees of destroyed datasets are done in the background.
fn settle(rig: &PosixFixture) {
    for _ in 0..4 {
        rig.pool.writer().unwrap().touch();
        rig.sync();
    }
}

/// Exports a pool that a planted bug damaged, and audits it.
fn audit_of(rig: PosixFixture) -> Report {
    let PosixFixture { scratch, engine, pool, fs } = rig;
    drop(fs);
    pool.export().unwrap();
    drop(pool);
    let pool = import_from(&engine, scratch.path(), &testkit::readonly()).unwrap();
    pool.spa().audit(AuditOptions::default(), &()).unwrap()
}

/// Every kind of vdev, sector sizes of 512 and 4096 bytes: files are cloned, also into other
/// file systems, changed and deleted, across exports; each keeps its own content, and in the
/// end zdb finds no cloned block any more.
#[test]
fn clones_are_files_of_their_own_on_every_kind_of_vdev() {
    let cases = [(0, 12), (8, 9), (15, 12), (21, 12), (22, 9), (23, 12)];
    testkit::side_by_side(&cases, |&(which, ashift)| {
        let (rig, name, _) = make("shared", which, ashift).unwrap();
        rig.set(&[("recordsize", BLOCK), ("compression", 15)]);
        let a = rig.file(rig.root(), "a");
        let content = noise(which as u64, 40 * BLOCK as usize + 777);
        rig.write(a, 0, &content);
        rig.resize(a, 50 * BLOCK + 5);
        rig.write(a, 50 * BLOCK, b"tail!");
        let wanted = rig.read(a);
        rig.sync();
        let b = rig.file(rig.root(), "b");
        assert_eq!(clone(&rig, (a, 0), (b, 0), u64::MAX), wanted.len() as u64, "{name}");
        // It can be read before it is written, and cloned again afterwards.
        assert!(rig.read(b) == wanted, "{name}");
        let (used, saved) = tally(&rig);
        assert!(used >= 40 * BLOCK && saved == used, "{name}: {used} {saved}");
        rig.pool.create_filesystem("tank/other", &[], None).unwrap();
        let other = rig.pool.dataset("tank/other").unwrap().open_fs().unwrap();
        let by = Caller::root();
        let c = other.make(&by, other.root(), b"c", &New::file(0o600)).unwrap().id;
        let n = other.clone_range(&by, (&rig.fs, b, 0), (c, 0), u64::MAX).unwrap();
        assert_eq!((n, read(&other, c) == wanted), (wanted.len() as u64, true), "{name}");
        assert_eq!(tally(&rig), (used, 2 * saved), "{name}");
        // A change of a part reads the shared block, one of the whole does not.
        rig.write(b, 3 * BLOCK + 11, b"other");
        rig.write(b, 5 * BLOCK, &noise(7, BLOCK as usize));
        let changed = rig.read(b);
        assert!(rig.read(a) == wanted && read(&other, c) == wanted, "{name}");
        drop(other);
        let rig = rig.again();
        assert!(rig.read(a) == wanted && rig.read(b) == changed, "{name}");
        rig.fs.unlink(&by, rig.root(), b"a").unwrap();
        let rig = rig.again();
        assert!(rig.read(b) == changed, "{name}");
        rig.pool.destroy_dataset("tank/other", false, None).unwrap();
        settle(&rig);
        assert_eq!(tally(&rig), (0, 0), "{name}");
        rig.finish();
    });
}

/// What a block is shared with, and how, decides whether it can be cloned.
#[test]
fn only_whole_blocks_of_one_size_are_shared() {
    let rig = PosixFixture::with("shared-rules", 256 * MB, 5000, &[("recordsize", BLOCK)]);
    let by = Caller::root();
    let from = rig.file(rig.root(), "from");
    rig.write(from, 0, &noise(1, 4 * BLOCK as usize + 100));
    rig.sync();
    let to = rig.file(rig.root(), "to");
    let try_clone = |from, to, len| rig.fs.clone_range(&by, (&rig.fs, from, 0), to, len);
    rig.write(to, 0, &noise(2, 6 * BLOCK as usize));
    assert_eq!(kind(try_clone(from, (to, 5), BLOCK)), ErrorKind::Invalid);
    assert_eq!(kind(try_clone(from, (to, 0), BLOCK + 1)), ErrorKind::Invalid);
    // The target goes on behind the end of the source, inside its last block.
    assert_eq!(kind(try_clone(from, (to, BLOCK), u64::MAX)), ErrorKind::Invalid);
    assert_eq!(kind(try_clone(from, (from, 2 * BLOCK), 3 * BLOCK)), ErrorKind::Invalid);
    rig.set(&[("recordsize", 2 * BLOCK)]);
    let large = rig.file(rig.root(), "large");
    rig.write(large, 0, &noise(3, 6 * BLOCK as usize));
    rig.sync();
    assert_eq!(kind(try_clone(from, (large, 0), BLOCK)), ErrorKind::Invalid);
    // A copy does not care.
    let whole = rig.read(from);
    assert_eq!(rig.fs.copy_range(&by, (from, 0), (large, 3), u64::MAX).unwrap(), 4 * BLOCK + 100);
    assert!(rig.read(large)[3..][..whole.len()] == whole);
    assert_eq!(tally(&rig), (0, 0));
    // Whole blocks are cloned by a copy, and within one file.
    assert_eq!(rig.fs.copy_range(&by, (from, 0), (to, BLOCK), 3 * BLOCK).unwrap(), 3 * BLOCK);
    assert_eq!(clone(&rig, (from, 0), (from, 2 * BLOCK), BLOCK), BLOCK);
    let (used, saved) = tally(&rig);
    assert!(used > 0 && saved > used, "block 0 has three pointers: {used} {saved}");
    assert!(rig.read(to)[BLOCK as usize..][..3 * BLOCK as usize] == whole[..3 * BLOCK as usize]);
    // A new file takes the block size.
    let small = rig.file(rig.root(), "small");
    rig.write(small, 0, &noise(4, 3000));
    let twin = rig.file(rig.root(), "twin");
    assert_eq!(clone(&rig, (small, 0), (twin, 0), u64::MAX), 3000, "after its txg");
    assert!(rig.read(twin) == rig.read(small));
    // Dirty blocks are copied at once, and cloned after their txg.
    let fresh = rig.file(rig.root(), "fresh");
    rig.set(&[("recordsize", BLOCK)]);
    rig.write(fresh, 0, &noise(5, 2 * BLOCK as usize));
    let copy = rig.file(rig.root(), "copy");
    assert_eq!(rig.fs.copy_range(&by, (fresh, 0), (copy, 0), u64::MAX).unwrap(), 2 * BLOCK);
    assert!(rig.read(copy) == rig.read(fresh));
    let again = rig.file(rig.root(), "again");
    assert_eq!(clone(&rig, (fresh, 0), (again, 0), u64::MAX), 2 * BLOCK);
    assert!(rig.read(again) == rig.read(fresh));
    // Overwritten, truncated or deleted before it is written: nothing stays counted.
    let now = tally(&rig);
    for how in 0..4 {
        let file = rig.file(rig.root(), &format!("brief{how}"));
        assert_eq!(clone(&rig, (from, 0), (file, 0), 4 * BLOCK), 4 * BLOCK);
        match how {
            0 => rig.write(file, 0, &noise(6, 4 * BLOCK as usize)),
            1 => rig.resize(file, 0),
            2 => drop(clone(&rig, (to, 4 * BLOCK), (file, 0), 2 * BLOCK)),
            _ => {}
        }
        rig.fs.unlink(&by, rig.root(), format!("brief{how}").as_bytes()).unwrap();
        settle(&rig);
        assert_eq!(tally(&rig), now, "{how}");
    }
    rig.finish();
}

/// While a scan runs or is paused, copies share nothing.
#[test]
fn nothing_is_cloned_while_a_scrub_runs() {
    let rig = PosixFixture::with("shared-scrub", 64 * MB, 5000, &[("recordsize", BLOCK)]);
    let by = Caller::root();
    let from = rig.file(rig.root(), "from");
    rig.write(from, 0, &noise(1, 4 * BLOCK as usize));
    rig.sync();
    let copy = |rig: &PosixFixture, name: &str| {
        let to = rig.file(rig.root(), name);
        let refused = rig.fs.clone_range(&by, (&rig.fs, from, 0), (to, 0), u64::MAX);
        assert_eq!(rig.fs.copy_range(&by, (from, 0), (to, 0), u64::MAX).unwrap(), 4 * BLOCK);
        assert!(rig.read(to) == rig.read(from));
        (refused, tally(rig).1)
    };
    let writer = rig.pool.writer().unwrap();
    writer.scan(spa::engine::ScanRequest::Scrub, None).unwrap();
    writer.scan(spa::engine::ScanRequest::Pause, None).unwrap();
    let (refused, saved) = copy(&rig, "paused");
    assert_eq!((kind(refused), saved), (ErrorKind::Unsupported, 0));
    let rig = rig.again();
    let (refused, saved) = copy(&rig, "imported");
    assert_eq!((kind(refused), saved), (ErrorKind::Unsupported, 0));
    let writer = rig.pool.writer().unwrap();
    writer.scan(spa::engine::ScanRequest::Stop, None).unwrap();
    let (done, saved) = copy(&rig, "ended");
    assert!(done.unwrap() == 4 * BLOCK && saved > 0, "{saved}");
    rig.finish();
}

/// `zfs_bclone_wait_dirty`: a copy waits for the txg of what it copies, and shares it.
#[test]
fn a_copy_waits_for_dirty_blocks_if_it_is_told_to() {
    let rig = PosixFixture::with("shared-wait", 64 * MB, 5000, &[("recordsize", BLOCK)]);
    let (by, len) = (Caller::root(), 3 * BLOCK + 100);
    // Copies of other tests of the process wait, too, which changes nothing for them.
    let set = |value: &str| {
        cenote::tune::find("zfs_bclone_wait_dirty").unwrap().set(&rig.engine, value).unwrap();
    };
    let saved = |n: u64| {
        let file = |what: &str| rig.file(rig.root(), &format!("{what}{n}"));
        let (from, to) = (file("from"), file("to"));
        rig.write(from, 0, &noise(n, len as usize));
        assert_eq!(rig.fs.copy_range(&by, (from, 0), (to, 0), len).unwrap(), len);
        assert!(rig.read(to) == rig.read(from));
        tally(&rig).1
    };
    set("on");
    let waited = saved(1);
    set("off");
    assert!(waited >= 3 * BLOCK, "{waited}");
    rig.finish();
}

/// Quotas count a clone in full; the pool's capacity does not.
#[test]
fn a_clone_is_charged_and_takes_no_space() {
    let rig = PosixFixture::with("shared-quota", 256 * MB, 5000, &[("compression", 2)]);
    let by = Caller::root();
    let file = rig.file(rig.root(), "file");
    rig.write(file, 0, &noise(1, 40 << 20));
    rig.sync();
    let left = |rig: &PosixFixture| rig.pool.writer().unwrap().allocatable(false);
    let before = left(&rig);
    // Twice as much as the pool has room for.
    for i in 0..6 {
        let copy = rig.file(rig.root(), &format!("copy{i}"));
        assert_eq!(clone(&rig, (file, 0), (copy, 0), u64::MAX), 40 << 20, "{i}");
    }
    rig.sync();
    assert!(left(&rig) + (2 << 20) > before, "{} {before}", left(&rig));
    let referenced = match rig.pool.dataset(DATASET).unwrap().prop("referenced").unwrap() {
        Some(v) => v.value,
        None => panic!("a dataset without a size"),
    };
    assert!(matches!(referenced, PropData::Num(n) if n > 7 * (40 << 20)), "{referenced:?}");
    rig.set(&[("refquota", 300 << 20)]);
    rig.sync();
    let over = rig.file(rig.root(), "over");
    let refused = rig.fs.clone_range(&by, (&rig.fs, file, 0), (over, 0), u64::MAX);
    assert_eq!(kind(refused), ErrorKind::Quota);
    rig.finish();
}

/// One run of random changes: clones between files of two file systems, writes, truncations,
/// snapshots, clones of file systems, destructions, exports. Contents are those of a model,
/// and the audits between count every pointer.
/// With `dedup` on, some writes have equal content, and entries are pruned.
fn random_run(seed: u64, ops: usize, dedup: u64) {
    let case = [0, 22, 15, 21][seed as usize % 4];
    let (mut rig, name, _) = make(&format!("shared-{seed}-{dedup}"), case, 12).unwrap();
    let mut rng = Rng::new(seed);
    let by = Caller::root();
    rig.set(&[("recordsize", BLOCK), ("compression", 2), ("dedup", dedup)]);
    let props = numbers(&[("recordsize", BLOCK), ("dedup", dedup)]);
    rig.pool.create_filesystem("tank/b", &props, None).unwrap();
    let mut files: BTreeMap<(u8, u8), Vec<u8>> = BTreeMap::new();
    let mut other = rig.pool.dataset("tank/b").unwrap().open_fs().unwrap();
    let id_of = |fs: &FileSystem, file: u8| {
        let name = format!("f{file}");
        match fs.lookup(fs.root(), name.as_bytes(), Io::WAIT) {
            Ok(found) => found.id,
            Err(_) => fs.make(&by, fs.root(), name.as_bytes(), &New::file(0o644)).unwrap().id,
        }
    };
    let (mut snapshots, mut made) = (Vec::new(), 0);
    for op in 0..ops {
        let pick = |rng: &mut Rng| (rng.below(2) as u8, rng.below(5) as u8);
        let (a, b) = (pick(&mut rng), pick(&mut rng));
        let fs_of = |k: (u8, u8)| if k.0 == 0 { &rig.fs } else { &other };
        match rng.below(16) {
            0..=2 => {
                let equal = dedup == ON && rng.below(3) > 0;
                let (at, data) = match equal {
                    true => (rng.below(12) * BLOCK, noise(rng.below(5), BLOCK as usize)),
                    false => {
                        let at = rng.below(12 * BLOCK);
                        (at, noise(rng.number(), 1 + rng.index(3 * BLOCK as usize)))
                    }
                };
                let id = id_of(fs_of(a), a.1);
                fs_of(a).write(&by, id, WritePosition::Offset(at), &data).unwrap();
                let model = files.entry(a).or_default();
                model.resize(model.len().max(at as usize + data.len()), 0);
                model[at as usize..at as usize + data.len()].copy_from_slice(&data);
            }
            3..=8 => {
                let Some(source) = files.get(&a).cloned() else { continue };
                let from = rng.below(6) * BLOCK;
                let to = rng.below(6) * BLOCK;
                let len = (1 + rng.below(6)) * BLOCK;
                let (from_id, to_id) = (id_of(fs_of(a), a.1), id_of(fs_of(b), b.1));
                files.entry(b).or_default();
                let whole = (source.len() as u64).saturating_sub(from).min(len);
                let did = fs_of(b).clone_range(&by, (fs_of(a), from_id, from), (to_id, to), len);
                let n = match did {
                    Ok(n) => n as usize,
                    Err(e) => {
                        let fine = [ErrorKind::Invalid, ErrorKind::Unsupported];
                        assert!(fine.contains(&e.kind()), "{name}, {op}: {e}");
                        continue;
                    }
                };
                assert!(n as u64 <= whole, "{name}, {op}");
                let model = files.entry(b).or_default();
                if n > 0 {
                    model.resize(model.len().max(to as usize + n), 0);
                    let part = &source[from as usize..from as usize + n];
                    model[to as usize..to as usize + n].copy_from_slice(part);
                }
            }
            9 => {
                let Some(model) = files.get_mut(&a) else { continue };
                let size = rng.below(model.len() as u64 + BLOCK);
                let set = SetAttrs { size: Some(size), ..SetAttrs::default() };
                fs_of(a).set_attrs(&by, id_of(fs_of(a), a.1), &set).unwrap();
                model.resize(size as usize, 0);
            }
            10 => {
                if files.remove(&a).is_some() {
                    let fs = fs_of(a);
                    fs.unlink(&by, fs.root(), format!("f{}", a.1).as_bytes()).unwrap();
                }
            }
            11 => {
                let full = format!("{}@s{made}", if a.0 == 0 { DATASET } else { "tank/b" });
                made += 1;
                rig.pool.snapshot(std::slice::from_ref(&full), &[], None).unwrap();
                if rng.below(2) == 0 {
                    let clone = format!("tank/c{made}");
                    rig.pool.clone_snapshot(&full, &clone, &[], None).unwrap();
                    let fs = rig.pool.dataset(&clone).unwrap().open_fs().unwrap();
                    let id = id_of(&fs, a.1);
                    let _any =
                        fs.clone_range(&by, (fs_of(b), id_of(fs_of(b), b.1), 0), (id, 0), BLOCK);
                    files.entry(b).or_default();
                    fs.sync_all().unwrap();
                    drop(fs);
                    if rng.below(2) == 0 {
                        settle(&rig);
                    }
                    rig.pool.destroy_dataset(&clone, false, None).unwrap();
                }
                snapshots.push(full);
            }
            12 if !snapshots.is_empty() => {
                let gone = snapshots.swap_remove(rng.index(snapshots.len()));
                rig.pool.destroy_snapshots(&[gone], false, None).unwrap();
            }
            13 => rig.sync(),
            14 if rng.below(3) == 0 => {
                drop(other);
                rig = rig.again();
                other = rig.pool.dataset("tank/b").unwrap().open_fs().unwrap();
                other.empty_delete_queue().unwrap();
            }
            15 if dedup == ON && rng.below(3) == 0 => {
                let percent = cenote::PruneRequest::Percent(50);
                let _none = rig.pool.prune_dedup(percent, None).unwrap();
            }
            _ => {
                if let Some(model) = files.get(&a) {
                    assert!(read(fs_of(a), id_of(fs_of(a), a.1)) == *model, "{name}, {op}");
                }
            }
        }
    }
    for (key, model) in &files {
        let fs = if key.0 == 0 { &rig.fs } else { &other };
        assert!(read(fs, id_of(fs, key.1)) == *model, "{name}: {key:?}");
    }
    drop(other);
    let rig = rig.again();
    let other = rig.pool.dataset("tank/b").unwrap().open_fs().unwrap();
    for (key, model) in &files {
        let fs = if key.0 == 0 { &rig.fs } else { &other };
        assert!(read(fs, id_of(fs, key.1)) == *model, "{name}, again: {key:?}");
    }
    drop(other);
    match seed {
        0 => rig.end(),
        _ => drop(rig.again()),
    }
}

#[test]
fn contents_and_counts_agree_with_a_model() {
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let (seeds, ops) = if nightly { (40, 1500) } else { (4, 120) };
    let cases: Vec<_> = (0..seeds).flat_map(|seed| [(seed, OFF), (seed, ON)]).collect();
    testkit::side_by_side(&cases, |&(seed, dedup)| random_run(seed, ops, dedup));
}

/// The audit sees each planted bug of the counts, and names the block.
#[test]
fn the_audit_sees_wrong_counts() {
    let bugs: [fn(&spa::engine::BlockRefPlants) -> &base::planted::BugSwitch; 4] =
        [|p| &p.lost_decrement, |p| &p.lost_increment, |p| &p.no_table, |p| &p.counted_late];
    let numbered: Vec<_> = bugs.into_iter().enumerate().collect();
    testkit::side_by_side(&numbered, |(n, bug)| {
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        // Until clone and free are in one txg.
        let rig = loop {
            let name = format!("shared-bug{n}");
            let rig = PosixFixture::with(&name, 64 * MB, 5000, &[("recordsize", BLOCK)]);
            let from = rig.file(rig.root(), "from");
            rig.write(from, 0, &noise(1, 4 * BLOCK as usize));
            rig.sync();
            let to = rig.file(rig.root(), "to");
            let writer = rig.pool.writer().unwrap();
            let late = matches!(n, 1 | 3);
            bug(writer.block_ref_plants()).store(late, relaxed);
            let began = writer.txgs().open_txg();
            assert_eq!(clone(&rig, (from, 0), (to, 0), u64::MAX), 4 * BLOCK);
            if !late {
                rig.sync();
                bug(writer.block_ref_plants()).store(true, relaxed);
            }
            if *n != 1 {
                rig.fs.unlink(&Caller::root(), rig.root(), b"from").unwrap();
            }
            if !late || writer.txgs().open_txg() == began {
                rig.sync();
                break rig;
            }
        };
        let report = audit_of(rig);
        assert!(!report.space_is_clean(), "{n}");
        let seen = |p: &Problem| match n {
            0 => matches!(p, Problem::References(m) if m.counted == m.found + 1),
            1 => matches!(p, Problem::Claim { claim, .. } if claim.twice > 0),
            _ => {
                matches!(p, Problem::Claim { claim, .. } if claim.free > 0)
                    || matches!(p, Problem::References(m) if m.counted > m.found)
            }
        };
        assert!(report.problems.iter().any(seen), "{n}: {:?}", report.problems);
    });
}

/// What an fsync acknowledged survives a power cut before its txg, also when the source is gone,
/// and the blocks are shared again.
#[test]
fn a_clone_that_was_synced_survives_a_power_cut() {
    let (rig, _) = ready("shared-log", &[("recordsize", BLOCK), ("compression", 15)]);
    let from = rig.file(rig.root(), "from");
    rig.write(from, 0, &noise(1, 5 * BLOCK as usize + 100));
    rig.write(from, 9 * BLOCK, &noise(2, 700));
    // Its second block is in its pointer.
    let small = rig.file(rig.root(), "small");
    rig.write(small, 0, &noise(3, BLOCK as usize));
    rig.write(small, BLOCK, &vec![7; BLOCK as usize]);
    rig.write(small, 2 * BLOCK, &noise(4, BLOCK as usize));
    rig.sync();
    let (to, twin) = (rig.file(rig.root(), "to"), rig.file(rig.root(), "twin"));
    rig.sync();
    let before = synced(&rig.pool);
    assert_eq!(clone(&rig, (from, 0), (to, 0), u64::MAX), 9 * BLOCK + 700);
    rig.write(to, 2 * BLOCK + 5, b"behind the clone");
    assert_eq!(clone(&rig, (from, BLOCK), (to, 12 * BLOCK), 2 * BLOCK), 2 * BLOCK);
    assert_eq!(clone(&rig, (small, 0), (twin, 0), u64::MAX), 3 * BLOCK);
    rig.fs.fsync(to).unwrap();
    rig.fs.fsync(twin).unwrap();
    assert_eq!(synced(&rig.pool), before, "no txg was waited for");
    let (wanted, twins) = (rig.read(to), rig.read(twin));
    let whole = cut(&rig, "shared-log");
    let check = |fs: &FileSystem, wanted: &[u8]| {
        assert!(read(fs, to) == wanted && read(fs, twin) == twins);
    };
    replayed(&whole, |fs| check(fs, &wanted));
    let saved = |scratch: &Scratch| {
        let pool = import_from(&testkit::engine(), scratch.path(), &testkit::readonly()).unwrap();
        let tables = pool.spa().clone_tables().unwrap();
        tables.iter().map(|(_, table)| table.saved_space).sum::<u64>()
    };
    assert!(saved(&whole) >= 8 * BLOCK, "{}", saved(&whole));
    // The source is removed, and later changes are in the log.
    rig.fs.unlink(&Caller::root(), rig.root(), b"from").unwrap();
    rig.write(to, 3 * BLOCK + 5, b"in the log");
    rig.fs.fsync(to).unwrap();
    assert_eq!(synced(&rig.pool), before, "no txg was waited for");
    let wanted = rig.read(to);
    let alone = cut(&rig, "shared-log-alone");
    let steps = cut(&rig, "shared-log-steps");
    replayed(&alone, |fs| check(fs, &wanted));
    // Each block of `small`, and the block that `to` has twice.
    assert!((BLOCK..8 * BLOCK).contains(&saved(&alone)), "{}", saved(&alone));
    step_by_step(&steps, "shared-log");
    replayed(&steps, |fs| check(fs, &wanted));
    // The clone is replaced before its txg, and the source goes.
    rig.write(to, 0, &noise(9, 14 * BLOCK as usize));
    rig.fs.fsync(to).unwrap();
    let wanted = rig.read(to);
    let replaced = cut(&rig, "shared-log-replaced");
    replayed(&replaced, |fs| check(fs, &wanted));
    rig.finish();
}

/// A clone by a user without privilege strips set-id bits, also from the log.
#[test]
fn a_clone_in_the_log_strips_set_id_bits() {
    let (rig, _) = ready("shared-strip", &[("recordsize", BLOCK)]);
    let from = rig.file(rig.root(), "from");
    rig.write(from, 0, &noise(1, 2 * BLOCK as usize));
    let to = rig.file(rig.root(), "to");
    let set = SetAttrs { mode: Some(0o4777), ..SetAttrs::default() };
    rig.fs.set_attrs(&Caller::root(), to, &set).unwrap();
    rig.sync();
    let by = Caller { privileged: false, ..Caller::root() };
    rig.fs.clone_range(&by, (&rig.fs, from, 0), (to, 0), u64::MAX).unwrap();
    rig.fs.fsync(to).unwrap();
    let scratch = cut(&rig, "shared-strip");
    replayed(&scratch, |fs| {
        assert_eq!(fs.attrs(to, Io::WAIT).unwrap().mode & 0o7777, 0o777);
        assert!(read(fs, to) == noise(1, 2 * BLOCK as usize));
    });
    rig.finish();
}

/// A pool and the state that a power cut leaves of it: a txg destroyed a file system, and a
/// block of that was cloned in the txg behind it, before the destruction was processed. The
/// clone is lost.
pub(super) fn freed_before_its_clone(
    name: &str,
    forgotten: bool,
    dedup: u64,
) -> (PosixFixture, Scratch, ObjectId) {
    let props = [("recordsize", BLOCK), ("dedup", dedup)];
    loop {
        let rig = PosixFixture::with(name, 64 * MB, 5000, &props);
        let by = Caller::root();
        rig.pool.create_filesystem("tank/gone", &numbers(&props), None).unwrap();
        let gone = rig.pool.dataset("tank/gone").unwrap().open_fs().unwrap();
        let from = gone.make(&by, gone.root(), b"from", &New::file(0o644)).unwrap().id;
        gone.write(&by, from, WritePosition::Offset(0), &noise(1, 3 * BLOCK as usize)).unwrap();
        let to = rig.file(rig.root(), "to");
        rig.write(to, 0, &noise(2, 3 * BLOCK as usize));
        rig.sync();
        let writer = rig.pool.writer().unwrap();
        let plants = writer.block_ref_plants();
        plants.dropped_pointer.store(forgotten, std::sync::atomic::Ordering::Relaxed);
        let (source, target) = (Arc::clone(gone.objset()), Arc::clone(rig.fs.objset()));
        let act = move |cx: &mut TaskCx<'_>, ()| {
            let tx = cx.writer.begin_for(None, 64 << 10, false, OutagePolicy::WaitAlways)?;
            let synced = cx.writer.txgs().synced_txg();
            let block =
                |blkid| target.clone_block(&tx, (to, blkid), &source, (from, blkid), synced);
            let cloned = [block(0)?, block(2)?];
            let later = tx.txg();
            drop(tx);
            destroy::head(cx.cx, source.id(), cx.writer.zio())?;
            cx.drop_head(source.id());
            cx.free_in_background();
            Ok((cloned, later))
        };
        let ((cloned, later), txg) = writer.sync_task(|_| Ok(()), act).unwrap();
        assert_eq!(cloned.map(|(outcome, _)| outcome), [CloneOutcome::Cloned; 2]);
        assert_eq!(later, txg.next(), "the clones are of the txg behind");
        let crashed = cut(&rig, name);
        // Unless that txg is on disk already.
        if writer.txgs().synced_txg() == txg {
            return (rig, crashed, to);
        }
    }
}

/// No block that a clone keeps from the txg before is without a pointer, wherever the power
/// fails.
#[test]
fn a_block_that_is_freed_before_its_clone_is_written() {
    let (rig, crashed, to) = freed_before_its_clone("shared-late", false, OFF);
    let engine = testkit::engine();
    let leaked = |scratch: &Scratch| {
        let pool = import_from(&engine, scratch.path(), &testkit::readonly()).unwrap();
        pool.spa().audit(AuditOptions::default(), &()).unwrap().leaked
    };
    judge_with(&engine, &crashed);
    assert_eq!(leaked(&crashed), 0);
    let (theirs, own) = (noise(1, 3 * BLOCK as usize), noise(2, 3 * BLOCK as usize));
    replayed(&crashed, |fs| assert!(read(fs, to) == own));
    assert_eq!(leaked(&crashed), 0);
    // Without a power cut, the clone has the block alone.
    assert_eq!(tally(&rig), (0, 0));
    let block = BLOCK as usize;
    let wanted = [&theirs[..block], &own[block..2 * block], &theirs[2 * block..]].concat();
    assert!(rig.read(to) == wanted);
    rig.finish();
    // The audit would see it.
    let (_rig, crashed, _) = freed_before_its_clone("shared-forgotten", true, OFF);
    assert_eq!(leaked(&crashed), 2 * BLOCK);
}

/// Blocks of a snapshot are shared as long as it exists, and stay when it goes.
#[test]
fn a_snapshot_is_a_source_of_clones() {
    let rig = PosixFixture::with("shared-snapshot", 64 * MB, 5000, &[("recordsize", BLOCK)]);
    let by = Caller::root();
    let from = rig.file(rig.root(), "from");
    rig.write(from, 0, &noise(1, 4 * BLOCK as usize + 100));
    rig.sync();
    let wanted = rig.read(from);
    let take = |name: &str| rig.pool.snapshot(&[format!("{DATASET}@{name}")], &[], None).unwrap();
    let open =
        |name: &str| rig.pool.dataset(&format!("{DATASET}@{name}")).unwrap().open_fs().unwrap();
    take("one");
    rig.write(from, BLOCK, &noise(2, 2 * BLOCK as usize));
    rig.sync();
    take("two");
    rig.fs.unlink(&by, rig.root(), b"from").unwrap();
    rig.sync();
    let (one, two) = (open("one"), open("two"));
    let (a, b) = (rig.file(rig.root(), "a"), rig.file(rig.root(), "b"));
    let size = wanted.len() as u64;
    assert_eq!(rig.fs.clone_range(&by, (&one, from, 0), (a, 0), u64::MAX).unwrap(), size);
    assert_eq!(rig.fs.copy_range_from(&by, (&two, from, 0), (b, 0), u64::MAX).unwrap(), size);
    assert!(rig.read(a) == wanted && rig.read(b) == read(&two, from));
    let (used, saved) = tally(&rig);
    assert!(used >= 6 * BLOCK && saved >= 8 * BLOCK, "{used} {saved}");
    // The clone of a snapshot that is destroyed in the same txg.
    let c = rig.file(rig.root(), "c");
    assert_eq!(rig.fs.clone_range(&by, (&one, from, 0), (c, 0), u64::MAX).unwrap(), size);
    rig.pool.destroy_snapshots(&[format!("{DATASET}@one")], false, None).unwrap();
    settle(&rig);
    let late = rig.file(rig.root(), "late");
    let refused = rig.fs.clone_range(&by, (&one, from, 0), (late, 0), u64::MAX);
    assert_eq!(kind(refused), ErrorKind::Unsupported);
    assert!(rig.read(a) == wanted && rig.read(c) == wanted);
    // Its guid and object may be those of another one by now.
    take("three");
    assert_eq!(kind(rig.fs.clone_range(&by, (&one, from, 0), (late, 0), 1)), ErrorKind::Invalid);
    // With its last hold, and with its dataset's rollback.
    let name = [format!("{DATASET}@two")];
    let hold = cenote::SnapshotHold { snapshot: name[0].clone(), tag: "tag".to_owned() };
    rig.pool.hold(std::slice::from_ref(&hold), None).unwrap();
    rig.pool.destroy_snapshots(&name, true, None).unwrap();
    assert_eq!(rig.fs.clone_range(&by, (&two, from, 0), (late, 0), u64::MAX).unwrap(), size);
    rig.pool.release(&[hold], None).unwrap();
    settle(&rig);
    let refused = rig.fs.clone_range(&by, (&two, from, 0), (b, 0), u64::MAX);
    assert_eq!(kind(refused), ErrorKind::Unsupported);
    drop((one, two));
    let rig = rig.again();
    assert!(rig.read(a) == wanted && rig.read(c) == wanted && rig.read(b) == rig.read(late));
    rig.pool.destroy_snapshots(&[format!("{DATASET}@three")], false, None).unwrap();
    for name in [&b"a"[..], b"b", b"c", b"late"] {
        rig.fs.unlink(&by, rig.root(), name).unwrap();
    }
    settle(&rig);
    assert_eq!(tally(&rig), (0, 0));
    rig.finish();
}

/// Blocks of a snapshot are cloned in the txg behind the one that destroys it, before the
/// destruction is processed.
#[test]
fn a_snapshot_that_goes_before_its_clone_is_written() {
    loop {
        let rig =
            PosixFixture::with("shared-late-snapshot", 64 * MB, 5000, &[("recordsize", BLOCK)]);
        let by = Caller::root();
        let from = rig.file(rig.root(), "from");
        rig.write(from, 0, &noise(1, 3 * BLOCK as usize));
        let to = rig.file(rig.root(), "to");
        rig.write(to, 0, &noise(2, 3 * BLOCK as usize));
        rig.sync();
        rig.pool.snapshot(&[format!("{DATASET}@s")], &[], None).unwrap();
        rig.fs.unlink(&by, rig.root(), b"from").unwrap();
        rig.sync();
        let snapshot = rig.pool.dataset(&format!("{DATASET}@s")).unwrap().open_fs().unwrap();
        let (source, target) = (Arc::clone(snapshot.objset()), Arc::clone(rig.fs.objset()));
        let writer = rig.pool.writer().unwrap();
        let act = move |cx: &mut TaskCx<'_>, ()| {
            let tx = cx.writer.begin_for(None, 64 << 10, false, OutagePolicy::WaitAlways)?;
            let synced = cx.writer.txgs().synced_txg();
            let block =
                |blkid| target.clone_block(&tx, (to, blkid), &source, (from, blkid), synced);
            let cloned = [block(0)?.0, block(2)?.0];
            let later = tx.txg();
            drop(tx);
            destroy::snapshot(cx.cx, source.id(), false)?;
            cx.free_in_background();
            Ok((cloned, later))
        };
        let ((cloned, later), txg) = writer.sync_task(|_| Ok(()), act).unwrap();
        assert_eq!(cloned, [CloneOutcome::Cloned; 2]);
        assert_eq!(later, txg.next(), "the clones are of the txg behind");
        let crashed = cut(&rig, "shared-late-snapshot");
        // Unless that txg is on disk already.
        if writer.txgs().synced_txg() != txg {
            continue;
        }
        let engine = testkit::engine();
        judge(&engine, &crashed);
        let (theirs, own) = (noise(1, 3 * BLOCK as usize), noise(2, 3 * BLOCK as usize));
        replayed(&crashed, |fs| assert!(read(fs, to) == own));
        drop(snapshot);
        settle(&rig);
        let block = BLOCK as usize;
        let wanted = [&theirs[..block], &own[block..2 * block], &theirs[2 * block..]].concat();
        assert!(rig.read(to) == wanted);
        rig.finish();
        return;
    }
}

/// A change of the MOS that no writer makes, of the table in `object`.
type Forgery = fn(&mut TaskCx<'_>, u64, BrtVdev) -> base::Result<()>;

fn put(cx: &mut TaskCx<'_>, table: BrtVdev, key: &[u64], count: u64) -> base::Result<()> {
    let value = ZapValue::from_bytes(&count.to_le_bytes()).unwrap();
    zaps::update_words(cx.writer.mos().objset(), cx.tx, table.entries, key, &value)
}

fn header(cx: &mut TaskCx<'_>, object: u64, table: BrtVdev) -> base::Result<()> {
    cx.cx.mos.set_bonus(object, &table.encode())
}

/// Tables that no writer makes: the pool is only read, or the audit reports the count; nothing
/// panics, and no block in use is freed.
#[test]
fn hostile_tables_do_no_harm() {
    let forgeries: [(&str, Forgery); 10] = [
        ("an entry to nowhere", |cx, _, t| put(cx, t, &[1 << 60], 1)),
        ("two words", |cx, _, t| put(cx, t, &[512, 1], 1)),
        ("too many entries", |cx, object, t| {
            header(cx, object, BrtVdev { total_count: t.total_count + 1, ..t })
        }),
        ("endless counters", |cx, object, t| header(cx, object, BrtVdev { size: u64::MAX, ..t })),
        ("more counters", |cx, object, t| header(cx, object, BrtVdev { size: 1 << 23, ..t })),
        ("no range", |cx, object, t| header(cx, object, BrtVdev { range_size: 0, ..t })),
        ("the other order", |cx, object, t| header(cx, object, BrtVdev { byteorder: 1, ..t })),
        ("no entries", |cx, object, t| header(cx, object, BrtVdev { entries: ObjectId(0), ..t })),
        ("entries that are none", |cx, object, t| {
            header(cx, object, BrtVdev { entries: ObjectId(object), ..t })
        }),
        ("lost counters", |cx, object, _| {
            cx.cx.mos.edit_block(object, 0, &mut |data| {
                data.fill(0);
                Ok(())
            })
        }),
    ];
    testkit::side_by_side(&forgeries, |&(what, forge)| {
        let name = format!("shared-{}", what.replace(' ', "-"));
        let rig = PosixFixture::with(&name, 64 * MB, 5000, &[("recordsize", BLOCK)]);
        let (a, b) = (rig.file(rig.root(), "a"), rig.file(rig.root(), "b"));
        rig.write(a, 0, &noise(1, 3 * BLOCK as usize));
        rig.sync();
        assert_eq!(clone(&rig, (a, 0), (b, 0), u64::MAX), 3 * BLOCK);
        rig.sync();
        let PosixFixture { scratch, engine, pool, fs } = rig;
        drop(fs);
        let (_, table) = pool.spa().clone_tables().unwrap()[0];
        let object = pool.spa().mos().lookup("com.fudosecurity:brt:vdev:0").unwrap().unwrap();
        let act = move |cx: &mut TaskCx<'_>, ()| forge(cx, object, table);
        pool.writer().unwrap().sync_task(|_| Ok(()), act).unwrap();
        pool.export().unwrap();
        drop(pool);
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let pool = import_from(&engine, scratch.path(), &options).unwrap();
        let why = pool.read_only_because();
        assert!(why.is_some_and(|w| w.contains("block reference table")), "{what}: {why:?}");
        let fs = pool.dataset(DATASET).unwrap().open_fs().unwrap();
        assert!(read(&fs, a) == read(&fs, b), "{what}");
        // It may say that it cannot read the table.
        let _report = pool.spa().audit(AuditOptions::default(), &());
    });
}

/// A count of 2^63 only leaks: every file can be deleted, and the audit names the blocks.
#[test]
fn a_count_of_two_to_the_63_leaks_its_block() {
    let rig = PosixFixture::with("shared-count", 64 * MB, 5000, &[("recordsize", BLOCK)]);
    let (a, b) = (rig.file(rig.root(), "a"), rig.file(rig.root(), "b"));
    rig.write(a, 0, &noise(1, BLOCK as usize));
    rig.sync();
    assert_eq!(clone(&rig, (a, 0), (b, 0), u64::MAX), BLOCK);
    rig.sync();
    let object = rig.fs.objset().object(a, Io::WAIT).unwrap();
    let offset = object.block_pointer(0, 0, Io::WAIT).unwrap().as_block().unwrap().dva().offset;
    drop(object);
    let (_, table) = rig.pool.spa().clone_tables().unwrap()[0];
    let act = move |cx: &mut TaskCx<'_>, ()| put(cx, table, &[offset], 1 << 63);
    rig.pool.writer().unwrap().sync_task(|_| Ok(()), act).unwrap();
    for name in ["a", "b"] {
        rig.fs.unlink(&Caller::root(), rig.root(), name.as_bytes()).unwrap();
        rig.sync();
    }
    let report = audit_of(rig);
    let counted = report.problems.iter().find_map(|p| match p {
        Problem::References(m) => Some((m.offset, m.counted, m.found)),
        _ => None,
    });
    assert_eq!(counted, Some((offset, (1 << 63) - 1, 0)));
    assert_eq!(report.leaked, BLOCK);
}
