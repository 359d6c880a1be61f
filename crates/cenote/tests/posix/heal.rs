//! Reads that find wrong bytes rewrite them with the right ones.

use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

use super::log::{essence, quiet};
use super::widths::make;
use super::*;
use base::Guid;

/// Labels and boot area at the beginning, labels at the end.
const FRONT: u64 = 4 << 20;
const BACK: u64 = 1 << 19;

/// Wipes a disk except its labels.
fn wipe(scratch: &Scratch, disk: usize) {
    let path = scratch.path().join(format!("d{disk}"));
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let mut tail = vec![0; BACK as usize];
    file.read_exact_at(&mut tail, size - BACK).unwrap();
    file.set_len(FRONT).unwrap();
    file.set_len(size).unwrap();
    file.write_all_at(&tail, size - BACK).unwrap();
}

/// Reads everything from the disks.
fn read_all(pool: &Pool, fs: &FileSystem) -> Vec<super::log::Essence> {
    let zio = pool.writer().unwrap().zio();
    zio.cache().clear();
    let all = essence(fs);
    zio.settle_healing();
    all
}

/// Errors of the leaves, of all kinds.
fn errors(pool: &Pool) -> u64 {
    let tree = pool.writer().unwrap().zio().tree();
    tree.leaves().map(|(_, n)| n.errors()).map(|e| e.read + e.write + e.cksum).sum()
}

fn fill(rig: &PosixFixture) {
    let dir = rig.dir(rig.root(), "dir");
    for i in 0..12u64 {
        let file = rig.file(if i % 2 == 0 { dir } else { rig.root() }, &format!("f{i}"));
        rig.write(file, 0, &noise(i, 1000 + (i * 37_777) as usize));
        // Compressible.
        rig.write(file, 500_000, &vec![i as u8 | 1; 40_000]);
    }
}

fn reopen(scratch: &Scratch) -> (Arc<Engine>, Arc<Pool>, Arc<FileSystem>) {
    let engine = testkit::engine();
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let pool = import_from(&engine, scratch.path(), &options).unwrap();
    quiet(&pool);
    let fs = open(&pool);
    (engine, pool, fs)
}

/// Writes a pool, wipes a disk, reads three times: errors are counted only the first time.
fn three_passes(which: usize, ashift: u64, disk: usize, gangs: bool, props: &[(&str, u64)]) {
    let Some((rig, name, disks)) = make("heal", which, ashift) else { panic!("no kind {which}") };
    rig.set(props);
    if gangs {
        let force = &rig.pool.writer().unwrap().space().force_ganging;
        force.larger_than.store(8192, Relaxed);
        force.one_in.store(2, Relaxed);
    }
    fill(&rig);
    rig.sync();
    let wanted = essence(&rig.fs);
    let PosixFixture { scratch, engine, pool, fs } = rig;
    drop(fs);
    pool.export().unwrap();
    drop((pool, engine));
    wipe(&scratch, disk);
    let (engine, pool, fs) = reopen(&scratch);
    let what = format!("{name} of {disks}, ashift {ashift}, disk {disk}, gangs {gangs}");
    let before = errors(&pool);
    let mut counts = Vec::new();
    // A read of a mirror uses one disk, so a pass finds only a part of the damage.
    let is_mirror = which == 22 || which == 24;
    let quiet_since = |counts: &[u64]| counts.windows(7).any(|w| w[0] == w[6]);
    while counts.len() < 3 || is_mirror && counts.len() < 80 && !quiet_since(&counts) {
        assert_eq!(read_all(&pool, &fs), wanted, "{what}");
        counts.push(errors(&pool));
    }
    if is_mirror {
        assert!(quiet_since(&counts), "{what}: {counts:?}");
        counts = vec![counts[counts.len() - 1]; 3];
    }
    let healed = pool.writer().unwrap().zio().heal_counts();
    assert!(counts[0] > before, "{what}: {counts:?}");
    assert_eq!(counts[1..], [counts[0]; 2], "{what}: {healed:?}");
    // Blocks of a whole number of rows begin on one disk. If that is this one, it has their
    // parity, which a read does not use: a few other blocks remain.
    assert!(healed.healed > 0 && healed.failed == 0, "{what}: {healed:?}");
    let tree = pool.writer().unwrap().zio().tree();
    let bytes: u64 = tree.leaves().map(|(_, n)| n.healed()).sum();
    assert_eq!(bytes, healed.bytes, "{what}");
    drop((fs, tree));
    pool.export().unwrap();
    drop((pool, engine));
    // The repair is on the disk: another import reads it.
    let (engine, pool, fs) = reopen(&scratch);
    let before = errors(&pool);
    assert_eq!(read_all(&pool, &fs), wanted, "{what}");
    assert!(errors(&pool) - before <= counts[0] / 2, "{what}: {before}, {}", errors(&pool));
    drop(fs);
    pool.export().unwrap();
    drop(pool);
    judge(&engine, &scratch);
}

/// Story: an administrator replaced a RAID-Z disk's file by a new, empty one, and read
/// everything three times. 480, 453 and 453 errors were counted, and `zpool status` said
/// that "an attempt was made to correct the error". None was made.
#[test]
fn a_second_read_finds_nothing_wrong_any_more() {
    // raidz1 of five.
    three_passes(2, 12, 1, false, &[]);
}

#[test]
fn every_kind_of_vdev_heals() {
    // raidz1 of 3 and 6, raidz2 of 5, raidz3 of 8, both dRAIDs, mirror, mirror beside raidz1.
    let kinds = [0, 3, 9, 18, 20, 21, 22, 24].into_iter().enumerate();
    let cases: Vec<_> = kinds.flat_map(|kind| [9, 12].map(|ashift| (kind, ashift))).collect();
    testkit::side_by_side(&cases, |&((n, which), ashift)| {
        three_passes(which, ashift, n % 3, n % 2 == usize::from(ashift == 9), &[]);
    });
}

/// Read-ahead reads small records together. Damage among them is found, counted and healed as
/// by single reads.
#[test]
fn small_records_heal() {
    // raidz1 of 5, raidz2 of 5, draid1, mirror. A record of 8 KiB does not reach every disk of
    // a dRAID.
    let cases = [(2, 12, 1), (9, 9, 1), (20, 12, 3), (22, 9, 1)];
    testkit::side_by_side(&cases, |&(which, ashift, disk)| {
        three_passes(which, ashift, disk, false, &[("recordsize", 8192)]);
    });
}

/// Of two addresses on different vdevs one is lost completely.
#[test]
fn another_address_heals() {
    for (ashift, gangs) in [(9, false), (12, false), (12, true)] {
        three_passes(23, ashift, 2, gangs, &[("copies", 2)]);
    }
}

#[test]
fn nothing_is_written_to_a_pool_that_is_read() {
    let (rig, _, disks) = make("heal-ro", 2, 12).unwrap();
    fill(&rig);
    rig.sync();
    let wanted = essence(&rig.fs);
    let PosixFixture { scratch, engine, pool, fs } = rig;
    drop(fs);
    pool.export().unwrap();
    drop((pool, engine));
    wipe(&scratch, 0);
    let content = || -> Vec<u64> {
        let read = |i| digest(&std::fs::read(scratch.path().join(format!("d{i}"))).unwrap());
        (0..disks).map(read).collect()
    };
    let before = content();
    let engine = testkit::engine();
    let pool = import_from(&engine, scratch.path(), &testkit::readonly()).unwrap();
    let fs = pool.dataset(DATASET).unwrap().open_fs().unwrap();
    assert_eq!(essence(&fs), wanted);
    drop(fs);
    pool.export().unwrap();
    assert_eq!(content(), before);
}

/// Snapshots do not change: their blocks are healed as long as they exist.
#[test]
fn snapshots_heal() {
    let (rig, _, _) = make("heal-snap", 2, 12).unwrap();
    fill(&rig);
    rig.sync();
    rig.pool.snapshot(&[format!("{DATASET}@s")], &[], None).unwrap();
    // Blocks that only the snapshot has.
    for name in list(&rig.fs, rig.root()).into_iter().filter(|n| n.starts_with('f')) {
        rig.fs.unlink(&Caller::root(), rig.root(), name.as_bytes()).unwrap();
    }
    let PosixFixture { scratch, engine, pool, fs } = rig;
    fs.sync_all().unwrap();
    drop(fs);
    pool.export().unwrap();
    drop((pool, engine));
    wipe(&scratch, 3);
    let (_engine, pool, fs) = reopen(&scratch);
    drop(fs);
    let snap = pool.dataset(&format!("{DATASET}@s")).unwrap().open_fs().unwrap();
    let first = read_all(&pool, &snap);
    let count = errors(&pool);
    assert_eq!(read_all(&pool, &snap), first);
    assert_eq!(errors(&pool), count, "{:?}", pool.writer().unwrap().zio().heal_counts());
    let leaf: Vec<Guid> = pool.writer().unwrap().zio().tree().failing();
    assert!(leaf.is_empty());
}
