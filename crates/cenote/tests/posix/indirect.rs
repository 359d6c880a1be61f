//! Large writes are written to their final addresses when they are committed, and the log
//! refers to their blocks.

use super::log::{check_all, cut, essence, log_of, quiet, synced};
use super::*;
use std::sync::atomic::Ordering::SeqCst;
use zpl::rw::Falloc;

/// Records with pointers, and their bytes; and records with data.
fn forms(pool: &Pool) -> ([u64; 2], u64) {
    let log = log_of(pool);
    let [count, bytes] = &log.stats().indirect;
    let others = [&log.stats().copied, &log.stats().fetched];
    let others = others.iter().map(|[n, _]| n.load(SeqCst)).sum();
    ([count.load(SeqCst), bytes.load(SeqCst)], others)
}

/// Addresses of a file's blocks on disk.
fn places(pool: &Pool, id: ObjectId) -> Vec<String> {
    let os = pool.writer().unwrap().open_dataset(DATASET).unwrap();
    let object = os.object(id, Io::WAIT).unwrap();
    let place = |blkid| {
        let bp = object.block_pointer(0, blkid, Io::WAIT).unwrap();
        bp.as_block().map(|b| format!("{:x}", b.dva().offset)).unwrap_or_default()
    };
    (0..=object.dnode().max_blkid).map(place).collect()
}

#[test]
fn large_writes_are_written_once_and_named_by_the_log() {
    let rig = PosixFixture::new("indirect", 256 * MB);
    quiet(&rig.pool);
    let file = rig.file(rig.root(), "large");
    rig.fs.fsync(file).unwrap();
    let group = synced(&rig.pool);
    rig.write(file, 0, &noise(1, MB as usize));
    rig.fs.fsync(file).unwrap();
    assert_eq!(forms(&rig.pool), ([8, MB], 0));
    assert!(log_of(&rig.pool).stats().normal.used.load(SeqCst) < 4096);
    // A small change of a block that has its final address already; and a large one.
    rig.write(file, 1000, b"small");
    rig.write(file, 3 * 131_072, &noise(2, 131_072));
    rig.fs.fsync(file).unwrap();
    assert_eq!(forms(&rig.pool), ([9, MB + 131_072], 1));
    // These changes are not committed; a part of block 6 is freed.
    rig.write(file, 5 * 131_072, &noise(3, 131_072));
    rig.resize(file, 6 * 131_072 + 77_777);
    rig.write(file, 6 * 131_072 + 90_000, &noise(4, 60_000));
    rig.fs.fsync(file).unwrap();
    assert_eq!(synced(&rig.pool), group, "an fsync waited for a txg");
    let wanted = essence(&rig.fs);
    let scratch = cut(&rig, "indirect");
    let texts = zdb_texts(&scratch, &[&["-bcc", "tank"], &["-ivv", DATASET]]);
    if let [space, log] = &texts[..] {
        assert!(space.contains("No leaks"), "{space}");
        assert!(log.contains("TX_WRITE            len    192"), "{log}");
    }
    check_all(&scratch, &wanted, true);
    let named = |pool: &Pool| {
        let mut found = Vec::new();
        let writer = pool.writer().unwrap();
        let os = writer.read_dataset(DATASET).unwrap();
        let walk = &mut |record: &ondisk::zil::Record<'_>| {
            for bp in record.pointers()? {
                found.push(bp?.as_block().map(|b| format!("{:x}", b.dva().offset)).unwrap());
            }
            Ok(())
        };
        writer.for_each_record(&os, walk).unwrap();
        found
    };
    // The txg takes over the blocks that were not changed since.
    let scratch = cut(&rig, "indirect-2");
    rig.sync();
    let now = places(&rig.pool, file);
    let engine = testkit::engine();
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let other = import_from(&engine, scratch.path(), &options).unwrap();
    let logged = named(&other);
    drop(other);
    for (blkid, place) in now.iter().enumerate() {
        // Block 0 was changed since, and small parts of 6 and 7.
        let wanted = matches!(blkid, 1..=5);
        assert_eq!(logged.contains(place), wanted, "block {blkid}: {now:?}, {logged:?}");
    }
    rig.finish();
}

/// Synchronous work of all sorts on few files, with frequent power cuts.
fn random_work(name: &str, props: &[(&str, u64)], seed: u64) {
    let rig = PosixFixture::with(name, 192 * MB, 5000, props);
    quiet(&rig.pool);
    let root = rig.root();
    let files: Vec<ObjectId> = (0..3).map(|i| rig.file(root, &format!("f{i}"))).collect();
    rig.fs.fsync(files[0]).unwrap();
    let mut rng = Rng::new(seed);
    let mut cuts = Vec::new();
    for step in 0..60u64 {
        let id = files[rng.index(files.len())];
        match rng.below(10) {
            0 => rig.resize(id, rng.below(600_000)),
            1 => {
                let what = Falloc::ZeroRange { keep_size: rng.below(2) == 0 };
                let (at, len) = (rng.below(500_000), 1 + rng.below(200_000));
                rig.fs.allocate(&Caller::root(), id, what, at, len).unwrap();
            }
            2..=4 => rig.write(id, rng.below(500_000), &noise(step, 1 + rng.index(9000))),
            5 => rig.write(id, rng.below(500_000), &vec![0; 1 + rng.index(200_000)]),
            _ => {
                let at = if rng.below(2) == 0 { 65_536 * rng.below(8) } else { rng.below(500_000) };
                rig.write(id, at, &noise(step, 1 + rng.index(300_000)));
            }
        }
        if rng.below(3) == 0 {
            rig.fs.fsync(id).unwrap();
        }
        if rng.below(20) == 0 {
            rig.sync();
        }
        if step % 20 == 19 {
            files.iter().for_each(|id| rig.fs.fsync(*id).unwrap());
            cuts.push((cut(&rig, &format!("{name}-{step}")), essence(&rig.fs)));
        }
    }
    let [(scratch, _), ..] = &cuts[..] else { panic!("no cut") };
    let texts = zdb_texts(scratch, &[&["-bcc", "tank"]]);
    assert!(texts.iter().all(|t| t.contains("No leaks")), "{texts:?}");
    assert!(forms(&rig.pool).0[0] > 20, "{:?}", forms(&rig.pool));
    for (scratch, wanted) in &cuts {
        check_all(scratch, wanted, true);
    }
    rig.finish();
}

#[test]
fn random_large_writes_survive_every_cut() {
    random_work("indirect-random", &[], 5);
}

#[test]
fn random_work_for_throughput_survives_every_cut() {
    // Blocks of 32 KiB, not compressed: the cached blocks are the dirty ones.
    let props = [("logbias", 1), ("recordsize", 32 << 10), ("compression", 2)];
    random_work("indirect-bias", &props, 6);
}

#[test]
fn what_a_dataset_wrote_early_goes_with_it() {
    let rig = PosixFixture::new("indirect-gone", 128 * MB);
    quiet(&rig.pool);
    rig.pool.create_filesystem("tank/other", &numbers(&[("logbias", 1)]), None).unwrap();
    let other = rig.pool.dataset("tank/other").unwrap().open_fs().unwrap();
    let by = Caller::root();
    let made = other.make(&by, other.root(), b"x", &New::file(0o644)).unwrap();
    other.fsync(made.id).unwrap();
    for i in 0..4 {
        other.write(&by, made.id, WritePosition::Offset(0), &noise(i, 300_000)).unwrap();
        other.fsync(made.id).unwrap();
    }
    drop(other);
    rig.pool.destroy_dataset("tank/other", false, None).unwrap();
    // A file that is freed in the txg in which it was written.
    let file = rig.file(rig.root(), "file");
    rig.fs.fsync(file).unwrap();
    rig.write(file, 0, &noise(9, 500_000));
    rig.fs.fsync(file).unwrap();
    rig.fs.unlink(&by, rig.root(), b"file").unwrap();
    rig.sync();
    rig.finish();
}
