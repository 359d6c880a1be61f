//! Deduplicated files: contents against a model, and the dedup tables against the pointers
//! that the audit finds, which is a naive count of references.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use base::planted::BugSwitch;
use cenote::PruneRequest;
use dmu::zaps;
use dsl::write::features;
use ondisk::ddt::{Entry, Flat, Key, LOG_BLOCK, LogHeader};
use ondisk::zap::ZapValue;
use spa::audit::{AuditOptions, Problem, Report};
use spa::engine::TaskCx;

use super::log::{cut, import_with, quiet};
use super::widths::make_with;
use super::*;

pub(super) const BLOCK: u64 = 16 << 10;
/// Blocks of a file.
const COUNT: u64 = 160;
/// Values of property `dedup`.
pub(super) const ON: u64 = 1;
const SHA512_VERIFY: u64 = 267;
const SKEIN: u64 = 12;
const EDONR_VERIFY: u64 = 269;
const BLAKE3_VERIFY: u64 = 270;

/// A pool of a kind, with tables of a form, and a deduplicated file system.
pub(super) fn dedup_pool(
    test: &str,
    which: usize,
    ashift: u64,
    fast: bool,
    value: u64,
) -> (PosixFixture, String) {
    let form = |wanted: &mut CreateRequest| {
        wanted.features.retain(|f| fast || f.name() != "fast_dedup");
    };
    let test = format!("dedup-{test}-{fast}");
    let (rig, name, _) = make_with(&test, which, ashift, &form).unwrap();
    rig.set(&[("recordsize", BLOCK), ("compression", 2), ("dedup", value)]);
    (rig, format!("{name}, fast: {fast}, {value}"))
}

/// The same on one disk, where sizes are not deflated.
pub(super) fn single(test: &str, fast: bool) -> PosixFixture {
    let scratch = Scratch::new(&format!("posix-dedup-{test}-{fast}"));
    let file = std::fs::File::create(scratch.path().join("d0")).unwrap();
    file.set_len(64 * MB).unwrap();
    let engine = testkit::engine();
    let mut wanted = request(scratch.path().to_path_buf(), 5000);
    wanted.features.retain(|f| fast || f.name() != "fast_dedup");
    let pool = engine.create_pool(&wanted).unwrap().unwrap();
    let props = [("recordsize", BLOCK), ("compression", 2), ("dedup", ON)];
    pool.create_filesystem(DATASET, &numbers(&props), None).unwrap();
    let fs = open(&pool);
    quiet(&pool);
    PosixFixture { scratch, engine, pool, fs }
}

/// Bytes of deduplicated blocks, and bytes that deduplication saves.
pub(super) fn tally(rig: &PosixFixture) -> (u64, u64) {
    rig.pool.writer().unwrap().dedup_tally()
}

pub(super) fn allocated(rig: &PosixFixture) -> u64 {
    let space = rig.pool.spa().load_space().unwrap();
    space.vdevs.iter().map(spa::space::VdevSpace::allocated).sum()
}

/// Frees of destroyed datasets are done in the background, as are the flushes of entries
/// without references.
pub(super) fn settle(rig: &PosixFixture) {
    for _ in 0..4 {
        rig.pool.writer().unwrap().touch();
        rig.sync();
    }
}

fn table_names(rig: &PosixFixture) -> Vec<String> {
    let all = rig.pool.spa().mos().directory().unwrap().entries().unwrap();
    let names = all.into_iter().map(|e| String::from_utf8(e.name).unwrap());
    names.filter(|n| n.starts_with("DDT-") && n != "DDT-statistics").collect()
}

/// Every kind of vdev, sector sizes of 512 and 4096 bytes, both forms of tables, checksums that
/// prove equality and those that do not: equal blocks are stored once, whichever file and txg
/// has them, and are freed with the last one.
#[test]
fn equal_blocks_are_stored_once_on_every_kind_of_vdev() {
    let cases = [
        (0, 12, true, ON),
        (8, 9, false, ON),
        (15, 12, true, SHA512_VERIFY),
        (21, 12, false, SKEIN),
        (22, 9, true, EDONR_VERIFY),
        (23, 12, false, BLAKE3_VERIFY),
    ];
    testkit::side_by_side(&cases, |&(which, ashift, fast, value)| {
        let (rig, name) = dedup_pool("kinds", which, ashift, fast, value);
        let by = Caller::root();
        let content = noise(which as u64, (COUNT * BLOCK) as usize);
        // In one txg.
        let a = rig.file(rig.root(), "a");
        rig.write(a, 0, &content);
        let b = rig.file(rig.root(), "b");
        rig.write(b, 0, &content);
        rig.sync();
        let before = allocated(&rig);
        // In a later one, in another file system.
        rig.pool.create_filesystem("tank/other", &numbers(&[("recordsize", BLOCK)]), None).unwrap();
        rig.pool.set_props("tank/other", &numbers(&[("dedup", value)]), None).unwrap();
        let other = rig.pool.dataset("tank/other").unwrap().open_fs().unwrap();
        let c = other.make(&by, other.root(), b"c", &New::file(0o600)).unwrap().id;
        other.write(&by, c, WritePosition::Offset(0), &content).unwrap();
        rig.sync();
        let grown = allocated(&rig).saturating_sub(before);
        assert!(grown < COUNT * BLOCK * 3 / 4, "{name}: {grown}");
        drop(other);
        let rig = rig.again();
        let (used, saved) = tally(&rig);
        // Deflation rounds.
        let least = (COUNT - 1) * BLOCK;
        assert!(used > least && saved == 2 * used, "{name}: {used} {saved}");
        let form = if fast { 1 } else { 0 };
        assert_eq!(table_names(&rig).iter().filter(|n| !n.contains("zap")).count(), form, "{name}");
        // A change makes a block of its own, and changing it back shares it again.
        rig.write(b, 3 * BLOCK, &noise(7, BLOCK as usize));
        rig.sync();
        let changed = rig.read(b);
        rig.write(b, 5 * BLOCK, &noise(8, BLOCK as usize));
        rig.sync();
        rig.write(b, 5 * BLOCK, &content[5 * BLOCK as usize..][..BLOCK as usize]);
        let rig = rig.again();
        assert!(rig.read(a) == content && rig.read(b) == changed, "{name}");
        assert_eq!(tally(&rig).1, saved - used / COUNT, "{name}");
        rig.fs.unlink(&by, rig.root(), b"a").unwrap();
        rig.pool.snapshot(&["tank/fs@s".to_owned()], &[], None).unwrap();
        rig.fs.unlink(&by, rig.root(), b"b").unwrap();
        let rig = rig.again();
        rig.pool.destroy_dataset("tank/other", false, None).unwrap();
        settle(&rig);
        let rig = rig.again();
        let (used, saved) = tally(&rig);
        assert!(used > least && saved == 0, "{name}: the snapshot has them: {used} {saved}");
        rig.pool.destroy_snapshots(&["tank/fs@s".to_owned()], false, None).unwrap();
        settle(&rig);
        let rig = rig.again();
        assert_eq!((tally(&rig), table_names(&rig)), ((0, 0), vec![]), "{name}");
        rig.finish();
    });
}

/// What a writer wants decides whether it shares a block.
#[test]
fn copies_sizes_and_compression_are_part_of_equality() {
    testkit::side_by_side(&[false, true], |&fast| {
        let rig = single("parts", fast);
        let content = noise(1, 8 * BLOCK as usize);
        let text = vec![b'x'; 8 * BLOCK as usize];
        let write = |name: &str, props: &[(&str, u64)], content: &[u8]| {
            rig.set(props);
            let file = rig.file(rig.root(), name);
            rig.write(file, 0, content);
            rig.sync();
        };
        write("one", &[("copies", 1)], &content);
        // A flat entry has one block, a legacy one another for each number of copies.
        write("two", &[("copies", 2)], &content);
        write("three", &[("copies", 2)], &content);
        write("large", &[("copies", 1), ("recordsize", 2 * BLOCK)], &content);
        write("packed", &[("compression", 15)], &text);
        write("again", &[], &text);
        write("plain", &[("compression", 2)], &text);
        // Zeros are a hole, whatever the compression.
        write("zeros", &[], &vec![0; 8 * BLOCK as usize]);
        write("off", &[("dedup", 2)], &content);
        let rig = rig.again();
        let (used, saved) = tally(&rig);
        let wanted = if fast { (16, 0) } else { (32, 16) };
        // Two files of four equal small blocks, and one of four equal large ones.
        let (packed, rest) = (used - (wanted.0 + 2) * BLOCK, saved - (wanted.1 + 6) * BLOCK);
        assert!(packed > 0 && packed < BLOCK, "{fast}: {used} {saved}");
        assert_eq!(rest, 7 * packed, "{fast}: {used} {saved}");
        rig.finish();
    });
}

/// One run of random changes of two deduplicated file systems whose blocks have few contents:
/// writes, truncations, snapshots, clones, destructions, exports. Files are those of a model,
/// and the audits between count every pointer.
fn random_run(seed: u64, ops: usize) {
    let fast = seed.is_multiple_of(2);
    let value = [ON, SHA512_VERIFY][seed as usize / 2 % 2];
    let case = [0, 22, 15, 21][seed as usize % 4];
    let (mut rig, name) = dedup_pool(&format!("random-{seed}"), case, 12, fast, value);
    let prunes = seed.is_multiple_of(4);
    let mut rng = Rng::new(seed);
    let by = Caller::root();
    let props = [("recordsize", BLOCK), ("compression", 2), ("dedup", value)];
    rig.pool.create_filesystem("tank/b", &numbers(&props), None).unwrap();
    let mut other = rig.pool.dataset("tank/b").unwrap().open_fs().unwrap();
    let mut files: BTreeMap<(u8, u8), Vec<u8>> = BTreeMap::new();
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
        let a = pick(&mut rng);
        let fs_of = |k: (u8, u8)| if k.0 == 0 { &rig.fs } else { &other };
        rig.pool.writer().unwrap().dedup_plants().batch.store(rng.below(5), Relaxed);
        match rng.below(16) {
            0..=6 => {
                let at = (rng.below(12) * BLOCK) as usize;
                let count = 1 + rng.index(4);
                let part = |rng: &mut Rng| noise(rng.below(6), BLOCK as usize);
                let data: Vec<u8> = (0..count).flat_map(|_| part(&mut rng)).collect();
                let data = &data[..data.len() - rng.index(2) * 100];
                let id = id_of(fs_of(a), a.1);
                fs_of(a).write(&by, id, WritePosition::Offset(at as u64), data).unwrap();
                let model = files.entry(a).or_default();
                model.resize(model.len().max(at + data.len()), 0);
                model[at..at + data.len()].copy_from_slice(data);
            }
            7 => {
                let Some(model) = files.get_mut(&a) else { continue };
                let size = rng.below(model.len() as u64 + BLOCK);
                let set = SetAttrs { size: Some(size), ..SetAttrs::default() };
                fs_of(a).set_attrs(&by, id_of(fs_of(a), a.1), &set).unwrap();
                model.resize(size as usize, 0);
            }
            8 => {
                if files.remove(&a).is_some() {
                    let fs = fs_of(a);
                    fs.unlink(&by, fs.root(), format!("f{}", a.1).as_bytes()).unwrap();
                }
            }
            9 => {
                let full = format!("{}@s{made}", if a.0 == 0 { DATASET } else { "tank/b" });
                made += 1;
                rig.pool.snapshot(std::slice::from_ref(&full), &[], None).unwrap();
                if rng.below(2) == 0 {
                    let clone = format!("tank/c{made}");
                    rig.pool.clone_snapshot(&full, &clone, &[], None).unwrap();
                    rig.pool.set_props(&clone, &numbers(&props), None).unwrap();
                    let fs = rig.pool.dataset(&clone).unwrap().open_fs().unwrap();
                    let id = id_of(&fs, a.1);
                    let data = noise(rng.below(6), 2 * BLOCK as usize);
                    fs.write(&by, id, WritePosition::Offset(0), &data).unwrap();
                    fs.sync_all().unwrap();
                    drop(fs);
                    if rng.below(2) == 0 {
                        settle(&rig);
                    }
                    rig.pool.destroy_dataset(&clone, false, None).unwrap();
                }
                snapshots.push(full);
            }
            10 if !snapshots.is_empty() => {
                let gone = snapshots.swap_remove(rng.index(snapshots.len()));
                rig.pool.destroy_snapshots(&[gone], false, None).unwrap();
            }
            11 | 12 => rig.sync(),
            14 if prunes && rng.below(3) == 0 => {
                let share = PruneRequest::Percent(rng.below(101) as u8);
                rig.pool.prune_dedup(share, None).unwrap();
            }
            13 if rng.below(3) == 0 => {
                drop(other);
                rig = rig.again();
                other = rig.pool.dataset("tank/b").unwrap().open_fs().unwrap();
                other.empty_delete_queue().unwrap();
            }
            _ => {
                if let Some(model) = files.get(&a) {
                    assert!(read(fs_of(a), id_of(fs_of(a), a.1)) == *model, "{name}, {op}");
                }
            }
        }
    }
    drop(other);
    let rig = rig.again();
    let other = rig.pool.dataset("tank/b").unwrap().open_fs().unwrap();
    for (key, model) in &files {
        let fs = if key.0 == 0 { &rig.fs } else { &other };
        assert!(read(fs, id_of(fs, key.1)) == *model, "{name}: {key:?}");
    }
    drop(other);
    match prunes {
        // zdb 2.3 finds entries by the checksum alone, and takes a pruned block for the newer one
        // of the same content.
        true => assert!(audit_of(rig).is_clean()),
        false => rig.end(),
    }
}

#[test]
fn random_changes_of_deduplicated_files() {
    let (seeds, ops) =
        if std::env::var_os("CENOTE_NIGHTLY").is_some() { (24, 600) } else { (4, 120) };
    let seeds: Vec<u64> = (0..seeds).collect();
    testkit::side_by_side(&seeds, |&seed| random_run(seed, ops));
}

/// Exports a pool that a planted bug damaged, and audits it.
pub(super) fn audit_of(rig: PosixFixture) -> Report {
    let PosixFixture { scratch, engine, pool, fs } = rig;
    drop(fs);
    pool.export().unwrap();
    drop(pool);
    let pool = import_from(&engine, scratch.path(), &testkit::readonly()).unwrap();
    pool.spa().audit(AuditOptions::default(), &()).unwrap()
}

/// Each planted bug leaves a pool in which the audit finds a problem.
#[test]
fn planted_bugs_are_found() {
    type Plant = fn(&spa::engine::DedupPlants) -> Option<&BugSwitch>;
    let plants: [(&str, Plant); 6] = [
        ("none", |_| None),
        ("no_table", |p| Some(&p.no_table)),
        ("lost_decrement", |p| Some(&p.lost_decrement)),
        ("lost_increment", |p| Some(&p.lost_increment)),
        ("kept_statistics", |p| Some(&p.kept_statistics)),
        ("kept_space", |p| Some(&p.kept_space)),
    ];
    let cases: Vec<_> = plants.iter().flat_map(|p| [(p, false), (p, true)]).collect();
    testkit::side_by_side(&cases, |((what, plant), fast)| {
        let rig = single(&format!("planted-{what}"), *fast);
        let content = noise(1, 8 * BLOCK as usize);
        for name in ["a", "b"] {
            let file = rig.file(rig.root(), name);
            rig.write(file, 0, &content);
            rig.sync();
        }
        let rig = rig.again();
        let writer = std::sync::Arc::clone(rig.pool.writer().unwrap());
        if let Some(bug) = plant(writer.dedup_plants()) {
            bug.store(true, Relaxed);
        }
        let file = rig.file(rig.root(), "c");
        rig.write(file, 0, &content);
        let alone = rig.file(rig.root(), "d");
        rig.write(alone, 0, &noise(2, BLOCK as usize));
        rig.sync();
        rig.fs.unlink(&Caller::root(), rig.root(), b"a").unwrap();
        rig.fs.unlink(&Caller::root(), rig.root(), b"d").unwrap();
        settle(&rig);
        drop(writer);
        let report = audit_of(rig);
        assert_eq!(report.is_clean(), *what == "none", "{what}, {fast}: {:?}", report.problems);
    });
}

/// The tables of a pool that OpenZFS wrote are kept up: files are overwritten, truncated and
/// deleted in random order, beside a snapshot and a clone that go later. In the end there is no
/// table any more.
#[test]
fn tables_of_openzfs_are_kept_up() {
    let Some(golden) = testkit::golden("dedup") else { return };
    let scratch = Scratch::new("posix-dedup-golden");
    golden.unpack(scratch.path());
    let engine = testkit::engine();
    let writing = ImportOptions { force: true, ..ImportOptions::default() };
    let (mut rng, by) = (Rng::new(30), Caller::root());
    for round in 0..7u8 {
        let pool = import_from(&engine, scratch.path(), &writing).unwrap();
        assert_eq!(pool.read_only_because(), None);
        let references = pool.spa().dedup_statistics().unwrap().referenced[0];
        // What is written is deduplicated, too.
        assert_eq!(references > 0, round < 5, "{round}: {references}");
        let writer = pool.writer().unwrap();
        writer.dedup_plants().batch.store(17, Relaxed);
        for name in ["dedup/d", "dedup/dv"] {
            let fs = pool.dataset(name).unwrap().open_fs().unwrap();
            fs.empty_delete_queue().unwrap();
            match round {
                0 => {
                    pool.snapshot(&[format!("{name}@s")], &[], None).unwrap();
                    pool.clone_snapshot(&format!("{name}@s"), &format!("{name}/c"), &[], None)
                        .unwrap();
                }
                1 | 2 => {
                    let files: Vec<_> = walk(&fs)
                        .into_iter()
                        .filter(|f| f.attrs.kind == zpl::FileType::Regular)
                        .collect();
                    for file in files {
                        if round == 1 && rng.below(2) == 0 {
                            continue;
                        }
                        let (dir, base) = file.path.rsplit_once('/').unwrap();
                        let parts = dir.split('/').filter(|part| !part.is_empty());
                        let dir = parts.fold(fs.root(), |dir, part| {
                            fs.lookup(dir, part.as_bytes(), Io::WAIT).unwrap().id
                        });
                        let id = fs.lookup(dir, base.as_bytes(), Io::WAIT).unwrap().id;
                        match rng.below(3) {
                            0 if round == 1 => {
                                let at = WritePosition::Offset(file.attrs.size / 2);
                                fs.write(&by, id, at, &[round; 3000]).unwrap();
                            }
                            1 if round == 1 => {
                                let size = Some(file.attrs.size / 3);
                                let set = SetAttrs { size, ..SetAttrs::default() };
                                fs.set_attrs(&by, id, &set).unwrap();
                            }
                            _ => drop(fs.unlink(&by, dir, base.as_bytes()).unwrap()),
                        }
                    }
                }
                3 => {
                    drop(fs);
                    pool.destroy_dataset(&format!("{name}/c"), false, None).unwrap();
                    continue;
                }
                4 => {
                    pool.destroy_snapshots(&[format!("{name}@s")], false, None).unwrap();
                }
                _ => {}
            }
            fs.sync_all().unwrap();
        }
        for _ in 0..3 {
            writer.touch();
            writer.sync().unwrap();
        }
        pool.export().unwrap();
        drop(pool);
        let pool = import_from(&engine, scratch.path(), &testkit::readonly()).unwrap();
        let report = pool.spa().audit(AuditOptions::default(), &()).unwrap();
        assert!(report.is_clean(), "{round}: {:?}", report.problems);
        drop(pool);
    }
    let texts = zdb_of(&scratch, "dedup", &[&["-bcc"], &["-DDDD"]]);
    assert!(texts.first().is_none_or(|text| text.contains("No leaks")), "{texts:?}");
}

fn zdb_of(scratch: &Scratch, pool: &str, runs: &[&[&str]]) -> Vec<String> {
    let with_name: Vec<Vec<&str>> = runs.iter().map(|r| [r, &[pool][..]].concat()).collect();
    let all: Vec<&[&str]> = with_name.iter().map(Vec::as_slice).collect();
    zdb_texts(scratch, &all)
}

/// A power cut while the logs of a fast table have entries: the state is complete, and the import
/// continues. (Entries without references make txgs follow each other, and a copy of the disks
/// would not be one state.)
#[test]
fn logs_survive_a_power_cut() {
    let rig = single("cut", true);
    let content: Vec<Vec<u8>> = (0..6).map(|i| noise(i, 20 * BLOCK as usize)).collect();
    for (i, content) in content.iter().enumerate() {
        for copy in ["a", "b"] {
            let file = rig.file(rig.root(), &format!("{copy}{i}"));
            rig.write(file, 0, content);
        }
        rig.sync();
    }
    for name in ["a0", "a1"] {
        rig.fs.unlink(&Caller::root(), rig.root(), name.as_bytes()).unwrap();
    }
    rig.sync();
    let image = cut(&rig, "dedup");
    assert!(audit_of(rig).is_clean());
    let engine = testkit::engine();
    let pool = import_from(&engine, image.path(), &testkit::readonly()).unwrap();
    let stored = pool.spa().dedup_statistics().unwrap().blocks[0];
    let entries = pool.spa().dedup_entries().unwrap();
    assert!(entries.len() as u64 > stored, "the logs are empty: {stored}");
    let report = pool.spa().audit(AuditOptions::default(), &()).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    drop(pool);
    let pool = import_with(&engine, &image, false).unwrap();
    let fs = pool.dataset(DATASET).unwrap().open_fs().unwrap();
    for (i, content) in content.iter().enumerate() {
        let id = fs.lookup(fs.root(), format!("b{i}").as_bytes(), Io::WAIT).unwrap().id;
        assert!(read(&fs, id) == *content, "{i}");
    }
    // Entries of the logs are found.
    let more = fs.make(&Caller::root(), fs.root(), b"more", &New::file(0o600)).unwrap().id;
    fs.write(&Caller::root(), more, WritePosition::Offset(0), &content[4]).unwrap();
    let rig = PosixFixture { scratch: image, engine, pool, fs };
    let rig = rig.again();
    let (used, saved) = tally(&rig);
    assert_eq!((used, saved), (6 * 20 * BLOCK, 5 * 20 * BLOCK), "three twice, one thrice");
    rig.finish();
}

/// A planted bug: the entries that a txg changed are not in the log. The audit of the state
/// after a power cut sees it; without a cut, the flush of the log writes what memory has.
#[test]
fn lost_records_are_found_after_a_power_cut() {
    let rig = single("lost", true);
    for name in ["a", "b"] {
        let file = rig.file(rig.root(), name);
        rig.write(file, 0, &noise(1, 3 * BLOCK as usize));
        rig.sync();
        rig.pool.writer().unwrap().dedup_plants().lost_records.store(true, Relaxed);
    }
    let image = cut(&rig, "dedup-lost");
    rig.finish();
    let engine = testkit::engine();
    let pool = import_from(&engine, image.path(), &testkit::readonly()).unwrap();
    let report = pool.spa().audit(AuditOptions::default(), &()).unwrap();
    assert!(!report.is_clean());
}

/// A change of the MOS that no writer makes; the numbers are the directory of the table, and
/// its ZAP of blocks with several references.
type Forgery = fn(&mut TaskCx<'_>, u64, u64) -> base::Result<()>;

fn name(cx: &mut TaskCx<'_>, zap: u64, name: &str, value: u64) -> base::Result<()> {
    cx.cx.put_number(zap, name, value)
}

fn header(cx: &mut TaskCx<'_>, dir: u64, log: u8, flushing: bool, blocks: u64) -> base::Result<()> {
    let first_txg = base::Txg(1);
    let length = blocks * LOG_BLOCK;
    let header = LogHeader { flushing, length, first_txg, checkpoint: None };
    let object = cx.cx.read().number(dir, &format!("DDT-log-sha256-{log}"))?.unwrap();
    cx.cx.mos.set_bonus(object, &header.encode())
}

/// A deduplicated file, twice, with a forged table; the pool is exported.
fn forged(what: &str, forge: Forgery) -> (Scratch, Arc<Engine>) {
    let rig = single(&what.replace(' ', "-"), true);
    for name in ["a", "b"] {
        let file = rig.file(rig.root(), name);
        rig.write(file, 0, &noise(1, 3 * BLOCK as usize));
    }
    let rig = rig.again();
    let PosixFixture { scratch, engine, pool, fs } = rig;
    drop(fs);
    let dir = pool.spa().mos().lookup("DDT-sha256").unwrap().unwrap();
    let zap = pool.spa().mos().zap(dir).unwrap();
    let zap = zap.lookup_u64("DDT-sha256-zap-duplicate").unwrap().unwrap();
    let act = move |cx: &mut TaskCx<'_>, ()| forge(cx, dir, zap);
    pool.writer().unwrap().sync_task(|_| Ok(()), act).unwrap();
    pool.export().unwrap();
    (scratch, engine)
}

/// Tables that no writer makes: the pool is only read, and nothing panics.
#[test]
fn hostile_tables_make_the_pool_read_only() {
    let forgeries: [(&str, Forgery); 13] = [
        ("endless log", |cx, dir, _| header(cx, dir, 0, false, 1 << 40)),
        ("log of holes", |cx, dir, _| header(cx, dir, 0, false, 1)),
        ("two active logs", |cx, dir, _| {
            header(cx, dir, 0, false, 1)?;
            header(cx, dir, 1, false, 1)
        }),
        ("one log", |cx, dir, _| cx.cx.mos.zap_remove(dir, b"DDT-log-sha256-1")),
        ("unknown form", |cx, dir, _| name(cx, dir, "flags", 7)),
        ("unknown version", |cx, dir, _| name(cx, dir, "version", 2)),
        ("one ZAP twice", |cx, dir, zap| name(cx, dir, "DDT-sha256-zap-unique", zap)),
        ("no ZAP", |cx, dir, _| name(cx, dir, "DDT-sha256-zap-unique", 1)),
        ("no object", |cx, dir, _| name(cx, dir, "DDT-sha256-zap-ditto", 1 << 40)),
        ("odd statistics", |cx, _, _| {
            let zap = cx.cx.read().required("DDT-statistics")?;
            name(cx, zap, "DDT-sha256-zap-duplicate", 7)
        }),
        ("both forms", |cx, _, zap| name(cx, 1, "DDT-sha256-zap-unique", zap)),
        ("unknown table", |cx, _, zap| name(cx, 1, "DDT-md5-zap-unique", zap)),
        ("miscounted", |cx, _, _| features::add(cx.cx, "com.klarasystems:fast_dedup", 1).map(drop)),
    ];
    testkit::side_by_side(&forgeries, |&(what, forge)| {
        let (scratch, engine) = forged(what, forge);
        let writing = ImportOptions { force: true, ..ImportOptions::default() };
        let pool = import_from(&engine, scratch.path(), &writing).unwrap();
        let why = pool.read_only_because();
        assert!(why.is_some_and(|w| w.contains("dedup")), "{what}: {why:?}");
        let fs = pool.dataset(DATASET).unwrap().open_fs().unwrap();
        for file in [b"a", b"b"] {
            let id = fs.lookup(fs.root(), file, Io::WAIT).unwrap().id;
            assert!(read(&fs, id) == noise(1, 3 * BLOCK as usize), "{what}");
        }
        // It may say that it cannot read the table.
        let _report = pool.spa().audit(AuditOptions::default(), &());
    });
}

/// Changes an entry of the table.
fn change(cx: &mut TaskCx<'_>, zap: u64, by: fn(&mut Key, &mut Flat)) -> base::Result<()> {
    let (os, zap_id) = (cx.writer.mos().objset(), ObjectId(zap));
    let first = cx.writer.mos().for_sync().zap_entries(zap)?.remove(0);
    let words: Vec<u64> = first.name.as_chunks().0.iter().map(|w| u64::from_be_bytes(*w)).collect();
    let Entry::Flat(mut flat) = Entry::decode(first.value.as_bytes().unwrap(), true)? else {
        panic!("an entry of another form")
    };
    let mut key = Key::from_words(words.try_into().unwrap());
    by(&mut key, &mut flat);
    let value = ZapValue::from_bytes(&Entry::Flat(flat).encode()).unwrap();
    zaps::update_words(os, cx.tx, zap_id, &key.to_words(), &value)
}

/// Wrong entries in a table of the right form: a count of 2^63, one that is too low, one for a
/// block that is elsewhere, a second one for the same block, one that is no entry. The audit
/// names the fault. A block is not freed twice: the pool suspends instead.
#[test]
fn wrong_entries_are_named() {
    let forgeries: [(&str, Forgery); 5] = [
        ("count of 2 to the 63", |cx, _, zap| change(cx, zap, |_, f| f.phys.refcnt = 1 << 63)),
        ("low count", |cx, _, zap| change(cx, zap, |_, f| f.phys.refcnt = 1)),
        ("elsewhere", |cx, _, zap| change(cx, zap, |_, f| f.phys.dvas[0][1] = 1 << 40)),
        ("second entry", |cx, _, zap| change(cx, zap, |k, _| k.words[1] ^= 1)),
        ("no entry", |cx, _, zap| {
            let (os, first) =
                (cx.writer.mos().objset(), cx.writer.mos().for_sync().zap_entries(zap)?.remove(0));
            let words: Vec<u64> =
                first.name.as_chunks().0.iter().map(|w| u64::from_be_bytes(*w)).collect();
            let value = ZapValue::from_bytes(&[0x83; 73]).unwrap();
            zaps::update_words(os, cx.tx, ObjectId(zap), &words, &value)
        }),
    ];
    testkit::side_by_side(&forgeries, |&(what, forge)| {
        let (scratch, engine) = forged(what, forge);
        let pool = import_from(&engine, scratch.path(), &testkit::readonly()).unwrap();
        let report = pool.spa().audit(AuditOptions::default(), &());
        let seen = |p: &Problem| match what {
            "count of 2 to the 63" => {
                matches!(p, Problem::References(m) if (m.counted, m.found) == (1 << 63, 2))
            }
            "low count" => matches!(p, Problem::Claim { references: true, .. }),
            _ => matches!(p, Problem::References(m) if m.found == 0),
        };
        match &report {
            Ok(report) => {
                assert!(report.problems.iter().any(seen), "{what}: {:?}", report.problems);
                let statistics = |p: &Problem| matches!(p, Problem::DedupTable(_));
                assert!(what == "elsewhere" || report.problems.iter().any(statistics), "{what}");
            }
            Err(e) => assert!(what == "no entry", "{what}: {e}"),
        }
        drop((report, pool));
        let writing = ImportOptions { force: true, ..ImportOptions::default() };
        let pool = import_from(&engine, scratch.path(), &writing).unwrap();
        assert_eq!(pool.read_only_because(), None, "{what}");
        let fs = pool.dataset(DATASET).unwrap().open_fs().unwrap();
        let by = Caller::root();
        let writer = pool.writer().unwrap();
        fs.unlink(&by, fs.root(), b"a").unwrap();
        let first = writer.sync();
        let second = match first {
            Ok(_) => {
                fs.unlink(&by, fs.root(), b"b").unwrap();
                (0..4).map(|_| (writer.touch(), writer.sync()).1).find(|s| s.is_err())
            }
            Err(_) => None,
        };
        let fails = ["low count", "elsewhere", "no entry"].contains(&what);
        assert_eq!(second.is_some() || writer.txgs().suspended().is_some(), fails, "{what}");
    });
}
