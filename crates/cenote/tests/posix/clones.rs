//! Logs with cloned ranges: claimed with references to the blocks, or as copies; replayed,
//! destroyed, refused.

use super::log::{cut, essence, import_with};
use super::records::{LABELS, forge, import, plant, ready, replayed, step_by_step, word};
use super::*;
use base::Txg;
use ondisk::zil::{CloneRange, Record, RecordBody, Records};
use ondisk::{BlkPtr, Endian};
use spa::audit::log::{LogVisitor, log_header, walk_log};

/// Pointers of a file's blocks, in the form of a record.
fn pointers(rig: &PosixFixture, name: &str, id: ObjectId, blocks: &[Option<u64>]) -> Vec<u8> {
    let os = rig.pool.writer().unwrap().read_dataset(name).unwrap();
    let object = os.object(id, Io::WAIT).unwrap();
    let one = |block: &Option<u64>| match block {
        Some(block) => object.block_pointer(0, *block, Io::WAIT).unwrap().encode().unwrap(),
        None => BlkPtr::default().encode().unwrap(),
    };
    blocks.iter().flat_map(one).collect()
}

const BLOCK: u64 = 131_072;

fn cloned<'a>(object: ObjectId, at: u64, length: u64, raw: &'a [u8]) -> (u8, RecordBody<'a>) {
    (24, RecordBody::CloneRange(CloneRange::new(object, (at, length), BLOCK, raw).unwrap()))
}

/// A pool with a file in another file system, blocks of which were cloned into `target`;
/// and the expected content of `target`.
fn with_clone(name: &str) -> (PosixFixture, ObjectId, ObjectId, Vec<u8>) {
    let (rig, target) = ready(name, &[("compression", 2)]);
    rig.pool.create_filesystem("tank/other", &numbers(&[("compression", 15)]), None).unwrap();
    let other = rig.pool.dataset("tank/other").unwrap().open_fs().unwrap();
    let by = Caller::root();
    let source = other.make(&by, other.root(), b"source", &New::file(0o644)).unwrap().id;
    let mut content = noise(1, 3 * BLOCK as usize);
    content[100_000..130_000].fill(7);
    other.write(&by, source, WritePosition::Offset(0), &content).unwrap();
    rig.write(target, 0, &noise(2, 3 * BLOCK as usize + 7000));
    rig.sync();
    let raw = pointers(&rig, "tank/other", source, &[Some(2), None, Some(0), Some(1)]);
    let block = |i: usize| &content[i * BLOCK as usize..(i + 1) * BLOCK as usize];
    let hole = vec![0; BLOCK as usize];
    let wanted = [block(2), &hole, block(0), &block(1)[..5000]].concat();
    let mut whole = noise(2, BLOCK as usize);
    whole.extend(&wanted);
    whole[3..8].copy_from_slice(b"after");
    // The records before and behind.
    let write = |offset: u64, data: &'static [u8]| {
        let length = data.len() as u64;
        let object = target;
        (
            9,
            RecordBody::Write(ondisk::zil::Write {
                object,
                offset,
                length,
                block: None,
                data: Some(data),
            }),
        )
    };
    let before = write(BLOCK + 3, b"is gone");
    let after = write(3, b"after");
    plant(&rig, &[before, cloned(target, BLOCK, 3 * BLOCK + 5000, &raw), after]);
    (rig, target, source, whole)
}

/// Bytes that cloning saves in a pool that is not imported.
fn saved(scratch: &Scratch) -> u64 {
    let pool = import_from(&testkit::engine(), scratch.path(), &testkit::readonly()).unwrap();
    let tables = pool.spa().clone_tables().unwrap();
    tables.iter().map(|(_, table)| table.saved_space).sum()
}

/// What `zdb -i` shows of the log, which was claimed and not replayed; the pool is in order.
fn claimed_log(engine: &Engine, scratch: &Scratch) -> Option<String> {
    import(engine, scratch).export().unwrap();
    judge(engine, scratch);
    let texts = zdb_texts(scratch, &[&["-bcc", "tank"], &["-ivv", DATASET]]);
    let [space, log] = &texts[..] else { return None };
    assert!(space.contains("No leaks"), "{space}");
    Some(log.clone())
}

fn has(log: &str, kind: &str) -> bool {
    log.contains(&format!("{kind:<20}len"))
}

#[test]
fn cloned_blocks_are_there_whatever_becomes_of_their_source() {
    let (rig, target, source, wanted) = with_clone("clone");
    let scratch = cut(&rig, "clone");
    let steps = cut(&rig, "clone-steps");
    for text in zdb_texts(&scratch, &[&["-ivv", DATASET]]) {
        assert!(text.contains("TX_CLONE_RANGE      len"), "{text}");
    }
    let engine = testkit::engine();
    // Claimed, and not replayed: any implementation can replay the log.
    if let Some(log) = claimed_log(&engine, &scratch) {
        assert!(has(&log, "TX_CLONE_RANGE") && !has(&log, "TX_TRUNCATE"), "{log}");
    }
    // Three blocks, one of which is smaller on disk.
    let shared = saved(&scratch);
    assert!((2 * BLOCK + 1..=3 * BLOCK).contains(&shared), "{shared}");
    let pool = import(&engine, &scratch);
    // The source is removed, and its space is used otherwise.
    let other = pool.dataset("tank/other").unwrap().open_fs().unwrap();
    let (by, root) = (Caller::root(), other.root());
    assert_eq!(other.lookup(root, b"source", Io::WAIT).unwrap().id, source);
    other.unlink(&by, root, b"source").unwrap();
    for i in 0..4 {
        pool.writer().unwrap().sync().unwrap();
        let name = format!("other-{i}");
        let id = other.make(&by, root, name.as_bytes(), &New::file(0o644)).unwrap().id;
        other.write(&by, id, WritePosition::Offset(0), &noise(50 + i, 16 << 20)).unwrap();
    }
    drop(other);
    pool.export().unwrap();
    drop(pool);
    replayed(&scratch, |fs| assert!(read(fs, target) == wanted));
    // Only the target has the blocks.
    assert_eq!(saved(&scratch), 0);
    step_by_step(&steps, "clone");
    replayed(&steps, |fs| assert!(read(fs, target) == wanted));
    assert_eq!(saved(&steps), shared);
    rig.finish();
}

/// A claimed log ends with its dataset, or with the content that it belongs to, and leaves no
/// reference behind.
#[test]
fn a_claimed_log_with_clones_is_destroyed_with_its_dataset() {
    let (rig, _, _, _) = with_clone("clone-destroyed");
    let scratch = cut(&rig, "clone-destroyed");
    let engine = testkit::engine();
    let pool = import(&engine, &scratch);
    let spa = pool.writer().unwrap();
    assert!(spa.clone_tally().1 > 0);
    // Also when the file system of the source is the first to go.
    pool.destroy_dataset("tank/other", false, None).unwrap();
    for _ in 0..3 {
        spa.touch();
        spa.sync().unwrap();
    }
    pool.destroy_dataset(DATASET, false, None).unwrap();
    for _ in 0..4 {
        spa.touch();
        spa.sync().unwrap();
    }
    assert_eq!(spa.clone_tally(), (0, 0));
    pool.export().unwrap();
    drop(pool);
    judge(&engine, &scratch);
    let texts = zdb_texts(&scratch, &[&["-bcc", "tank"]]);
    assert!(texts.iter().all(|space| space.contains("No leaks")), "{texts:?}");
    rig.finish();
}

/// Records of txgs on disk get no references: their blocks may be free.
#[test]
fn clones_of_txgs_on_disk_are_left_out_of_a_claimed_log() {
    let (rig, target) = ready("clone-old", &[("compression", 2)]);
    let source = rig.file(rig.root(), "source");
    let content = noise(4, 2 * BLOCK as usize);
    rig.write(source, 0, &content);
    rig.write(target, 0, &noise(2, 3 * BLOCK as usize));
    rig.sync();
    let raw = pointers(&rig, DATASET, source, &[Some(0), Some(1)]);
    let first = pointers(&rig, DATASET, source, &[Some(0)]);
    plant(&rig, &[cloned(target, BLOCK, 2 * BLOCK, &raw), cloned(target, 0, BLOCK, &first)]);
    let scratch = cut(&rig, "clone-old");
    // The first of them becomes one of a txg long ago, that of the longer record.
    forge(&rig, &scratch, |kind, r| {
        if kind == 24 && r.len() > 72 + 128 {
            word(r, 16, 5)
        }
    });
    let engine = testkit::engine();
    if let Some(log) = claimed_log(&engine, &scratch) {
        let records = log.lines().filter(|l| l.contains("TX_CLONE_RANGE      len")).count();
        assert_eq!(records, 1, "{log}");
    }
    assert_eq!(saved(&scratch), BLOCK);
    let (b, old) = (BLOCK as usize, noise(2, 3 * BLOCK as usize));
    let wanted = [&content[..b], &old[b..]].concat();
    replayed(&scratch, |fs| assert!(read(fs, target) == wanted));
    assert_eq!(saved(&scratch), BLOCK);
    rig.finish();
}

/// Blocks that cannot be counted are copied: freed ones, and any while a scan may have passed the
/// target.
#[test]
fn clones_that_cannot_be_counted_are_claimed_as_copies() {
    let cases = ["freed", "scan"];
    testkit::side_by_side(&cases, |&case| {
        let name = format!("clone-{case}");
        let (rig, target) = ready(&name, &[("compression", 2)]);
        let source = rig.file(rig.root(), "source");
        let content = noise(4, 2 * BLOCK as usize);
        rig.write(source, 0, &content);
        rig.sync();
        let raw = pointers(&rig, DATASET, source, &[Some(1), Some(0)]);
        if case == "freed" {
            rig.fs.unlink(&Caller::root(), rig.root(), b"source").unwrap();
            rig.fs.fsync(target).unwrap();
        } else {
            let writer = rig.pool.writer().unwrap();
            writer.scan(spa::engine::ScanRequest::Scrub, None).unwrap();
            writer.scan(spa::engine::ScanRequest::Pause, None).unwrap();
        }
        rig.sync();
        plant(&rig, &[cloned(target, 0, 2 * BLOCK, &raw)]);
        let scratch = cut(&rig, &name);
        let engine = testkit::engine();
        if let Some(log) = claimed_log(&engine, &scratch) {
            assert!(!has(&log, "TX_CLONE_RANGE"), "{log}");
        }
        assert_eq!(saved(&scratch), 0, "{case}");
        let b = BLOCK as usize;
        let wanted = [&content[b..], &content[..b]].concat();
        replayed(&scratch, |fs| assert!(read(fs, target) == wanted, "{case}"));
        rig.finish();
    });
}

/// A power cut before the txg of the claim: the old log must still be complete, whatever
/// was written of the new one.
#[test]
fn a_claim_of_clones_leaves_the_old_log_alone_until_its_txg() {
    use std::os::unix::fs::FileExt;
    let (rig, target, _, wanted) = with_clone("clone-claim");
    let before = cut(&rig, "clone-claim");
    let after = cut(&rig, "clone-claimed");
    let engine = testkit::engine();
    import(&engine, &after).export().unwrap();
    // All writes of the import and the export, except the labels at both ends.
    let open = |s: &Scratch| {
        let path = s.path().join("d0");
        std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap()
    };
    let (from, to) = (open(&after), open(&before));
    let size = from.metadata().unwrap().len();
    let mut piece = vec![0; 1 << 20];
    for at in (LABELS..size - LABELS).step_by(piece.len()) {
        from.read_exact_at(&mut piece, at).unwrap();
        to.write_all_at(&piece, at).unwrap();
    }
    replayed(&before, |fs| assert!(read(fs, target) == wanted));
    rig.finish();
}

#[test]
fn clones_that_cannot_be_copied_leave_the_pool_read_only() {
    let (rig, target, source, _) = with_clone("clone-refused");
    let wanted = essence(&rig.fs);
    let because = |scratch: &Scratch, why: &str| {
        let engine = testkit::engine();
        let pool = import_with(&engine, scratch, false).unwrap();
        let reason = pool.read_only_because().unwrap_or_default().to_owned();
        assert!(pool.is_readonly() && reason.contains(why), "{reason}");
        assert_eq!(essence(&pool.dataset(DATASET).unwrap().open_fs().unwrap()), wanted);
    };
    // A damaged source: no record is lost, and no content is invented.
    let scratch = cut(&rig, "clone-damaged");
    let os = rig.pool.writer().unwrap().read_dataset("tank/other").unwrap();
    let bp = os.object(source, Io::WAIT).unwrap().block_pointer(0, 1, Io::WAIT).unwrap();
    drop(os);
    let at = LABELS + bp.as_block().unwrap().dva().offset;
    let spoil = |scratch: &Scratch, bytes: &[u8]| {
        use std::os::unix::fs::FileExt;
        let path = scratch.path().join("d0");
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(bytes, at + 100).unwrap();
    };
    spoil(&scratch, &[0x55; 64]);
    because(&scratch, "cannot be claimed");
    // After the repair the import succeeds.
    let mut good = vec![0; 64];
    {
        use std::os::unix::fs::FileExt;
        let path = rig.scratch.path().join("d0");
        std::fs::File::open(path).unwrap().read_exact_at(&mut good, at + 100).unwrap();
    }
    spoil(&scratch, &good);
    replayed(&scratch, |fs| assert_eq!(fs.attrs(target, Io::WAIT).unwrap().size, 4 * BLOCK + 5000));
    // Pointers outside of any vdev, and invalid counts.
    let forged = |name: &str, change: fn(u8, &mut [u8])| {
        let scratch = cut(&rig, name);
        forge(&rig, &scratch, change);
        scratch
    };
    // A vdev that is not there: the first word of the first address.
    let nowhere = forged("clone-nowhere", |kind, r| {
        if kind == 24 {
            r[72 + 4] = 9
        }
    });
    because(&nowhere, "cannot be claimed");
    let beyond = forged("clone-beyond", |kind, r| {
        if kind == 24 {
            r[72 + 14] = 0x70
        }
    });
    because(&beyond, "cannot be claimed");
    // A malformed record ends the log: the records before it are valid.
    for (what, change) in [
        (
            "count",
            (|kind, r| {
                if kind == 24 {
                    word(r, 64, 1 << 60)
                }
            }) as fn(u8, &mut [u8]),
        ),
        ("born", |kind, r| {
            if kind == 24 {
                word(r, 72 + 80, 1 << 50)
            }
        }),
    ] {
        let scratch = forged(&format!("clone-{what}"), change);
        replayed(&scratch, |fs| {
            assert_eq!(&read(fs, target)[BLOCK as usize + 3..][..7], b"is gone");
        });
    }
    // A range that its pointers do not cover: its dataset keeps the log, and is only read.
    let scratch = forged("clone-range", |kind, r| {
        if kind == 24 {
            word(r, 48, 1)
        }
    });
    let engine = testkit::engine();
    for _ in 0..2 {
        let pool = import(&engine, &scratch);
        let dataset = pool.dataset(DATASET).unwrap();
        assert_eq!(kind(dataset.check_writable()), ErrorKind::ReadOnly);
        assert_eq!(essence(&dataset.open_fs().unwrap()), wanted);
        pool.export().unwrap();
    }
    rig.finish();
}

#[test]
fn a_pool_without_room_for_the_copy_is_read_only() {
    let (rig, _) = ready("clone-full", &[("compression", 2)]);
    let source = rig.file(rig.root(), "source");
    rig.write(source, 0, &noise(1, 8 << 20));
    rig.sync();
    let raw = pointers(&rig, DATASET, source, &(0..64).map(Some).collect::<Vec<_>>());
    // Cloned ten times; together they would fit, but not twice.
    let target = rig.file(rig.root(), "target");
    rig.sync();
    let all: Vec<_> = (0..10).map(|i| cloned(target, i * 64 * BLOCK, 64 * BLOCK, &raw)).collect();
    plant(&rig, &all);
    // References take no room.
    let scratch = cut(&rig, "clone-full");
    replayed(&scratch, |fs| {
        assert_eq!(fs.attrs(target, Io::WAIT).unwrap().size, 640 * BLOCK);
    });
    let writer = rig.pool.writer().unwrap();
    writer.scan(spa::engine::ScanRequest::Scrub, None).unwrap();
    writer.scan(spa::engine::ScanRequest::Pause, None).unwrap();
    plant(&rig, &all);
    let scratch = cut(&rig, "clone-full-scan");
    let engine = testkit::engine();
    let pool = import_with(&engine, &scratch, false).unwrap();
    assert!(pool.read_only_because().unwrap().contains("no room"));
    drop(pool);
    rig.finish();
}

/// A record of holes needs no reference, so it stays unchanged; the blocks of a record are shared
/// where the file has blocks of their size, and copied elsewhere.
#[test]
fn records_of_clones_are_replayed_as_they_are() {
    let (rig, target) = ready("clone-plain", &[("compression", 2)]);
    rig.write(target, 0, &noise(2, 3 * BLOCK as usize));
    let source = rig.file(rig.root(), "source");
    let content = noise(4, 2 * BLOCK as usize);
    rig.write(source, 0, &content);
    rig.sync();
    let holes = pointers(&rig, DATASET, source, &[None, None]);
    let (b, n) = (BLOCK as usize, noise(2, 3 * BLOCK as usize));
    plant(&rig, &[cloned(target, 2 * BLOCK, BLOCK + 9, &holes)]);
    let scratch = cut(&rig, "clone-holes");
    let engine = testkit::engine();
    import(&engine, &scratch).export().unwrap();
    for text in zdb_texts(&scratch, &[&["-ivv", DATASET]]) {
        assert!(text.contains("TX_CLONE_RANGE      len"), "{text}");
    }
    replayed(&scratch, |fs| {
        assert!(read(fs, target) == [&n[..2 * b], &vec![0; b + 9]].concat());
    });
    let raw = pointers(&rig, DATASET, source, &[Some(1), None, Some(0)]);
    let (txtype, body) = cloned(target, BLOCK, 2 * BLOCK + 777, &raw);
    let bytes = body.encode(txtype, Txg(1)).unwrap();
    let record: Record<'_> = Records::new(&bytes, Endian::Little).next().unwrap().unwrap();
    let wanted = [&n[..b], &content[b..], &vec![0; b], &content[..777]].concat();
    for _ in 0..2 {
        rig.fs.replay(&record).unwrap();
        assert!(rig.read(target) == wanted);
    }
    // Behind the end of a small file, with a hole at last.
    let small = rig.file(rig.root(), "small");
    rig.write(small, 0, b"small");
    let raw = pointers(&rig, DATASET, source, &[Some(0), None]);
    let (txtype, body) = cloned(small, BLOCK, 2 * BLOCK, &raw);
    let bytes = body.encode(txtype, Txg(1)).unwrap();
    let record = Records::new(&bytes, Endian::Little).next().unwrap().unwrap();
    rig.fs.replay(&record).unwrap();
    let mut wanted = b"small".to_vec();
    wanted.resize(b, 0);
    wanted.extend(&content[..b]);
    wanted.resize(3 * b, 0);
    assert!(rig.read(small) == wanted);
    rig.finish();
}

/// All pointers of a log's records.
#[derive(Default)]
struct LoggedBlocks(Vec<BlkPtr>);

impl LogVisitor for LoggedBlocks {
    fn block(&mut self, _: &ondisk::zil::LogPtr) -> base::Result<bool> {
        Ok(true)
    }
    fn record(&mut self, record: &Record<'_>, _: bool) -> base::Result<()> {
        record.pointers()?.try_for_each(|bp| bp.map(|bp| self.0.push(bp)))
    }
}

/// A block that two txgs wrote is named by a record of each.
#[test]
fn a_block_that_is_named_twice_is_claimed_once() {
    let (rig, file) = ready("named-twice", &[("compression", 2)]);
    rig.write(file, 0, &noise(8, 2 * BLOCK as usize));
    rig.fs.fsync(file).unwrap();
    let mut named = LoggedBlocks::default();
    {
        let os = rig.pool.writer().unwrap().read_dataset(DATASET).unwrap();
        walk_log(os.zio(), &log_header(&os.phys()).unwrap(), &mut named).unwrap();
    }
    let [first, _] = named.0[..] else { panic!("{:?}", named.0) };
    let write = ondisk::zil::Write {
        object: file,
        offset: 100,
        length: 50,
        block: Some(first),
        data: None,
    };
    plant(&rig, &[(9, RecordBody::Write(write))]);
    let wanted = essence(&rig.fs);
    let scratch = cut(&rig, "named-twice");
    let engine = testkit::engine();
    import(&engine, &scratch).export().unwrap();
    for text in zdb_texts(&scratch, &[&["-bcc", "tank"]]) {
        assert!(text.contains("No leaks"), "{text}");
    }
    judge(&engine, &scratch);
    replayed(&scratch, |fs| assert_eq!(essence(fs), wanted));
    rig.finish();
}

/// The file at a path below the root of a file system.
fn at_path(fs: &FileSystem, path: &str) -> ObjectId {
    let (dirs, name) = path.rsplit_once('/').unwrap_or(("", path));
    let mut at = fs.root();
    for dir in dirs.split('/').filter(|dir| !dir.is_empty()) {
        at = fs.lookup(at, dir.as_bytes(), Io::WAIT).unwrap().id;
    }
    fs.lookup(at, name.as_bytes(), Io::WAIT).unwrap().id
}

/// OpenZFS 2.4.4 cloned files with `cp --reflink`, and with `copy_file_range` from another file
/// system, and made each durable with `fsync`; then a source was removed, and the power failed
/// before the txg. The files are whole here, and what they share is shared.
#[test]
fn a_log_of_openzfs_with_clones_is_replayed() {
    let golden =
        testkit::Golden { name: "clonelog".to_owned(), dir: testkit::fixtures().join("logs") };
    let scratch = Scratch::new("posix-clonelog");
    golden.unpack(scratch.path());
    for log in zdb_texts(&scratch, &[&["-ivv", "clonelog"]]) {
        assert!(log.matches(&format!("{:<20}len", "TX_CLONE_RANGE")).count() >= 1, "{log}");
    }
    let engine = testkit::engine();
    let pool = import(&engine, &scratch);
    assert_eq!(pool.read_only_because(), None);
    let mut compared = 0;
    for line in golden.text("sums").unwrap().lines() {
        let (sum, path) = line.split_once("  ./").unwrap();
        let (dataset, path) = match path.strip_prefix("other/") {
            Some(path) => ("clonelog/other", path),
            None => ("clonelog", path),
        };
        let fs = pool.dataset(dataset).unwrap().open_fs().unwrap();
        let file = at_path(&fs, path);
        let size = fs.attrs(file, Io::WAIT).unwrap().size;
        assert_eq!(testkit::digest(&fs, file, size), sum, "{path}");
        compared += 1;
    }
    assert!(compared >= 8, "{compared}");
    pool.sync().unwrap();
    let (used, saved) = pool.writer().unwrap().clone_tally();
    assert!(used > 0 && saved > 0, "nothing is shared: {used} {saved}");
    pool.export().unwrap();
    drop(pool);
    let pool = import_from(&engine, scratch.path(), &testkit::readonly()).unwrap();
    let report = pool.spa().audit(spa::audit::AuditOptions::default(), &()).unwrap();
    assert!(report.is_clean() && report.leaked == 0, "{report:?}");
}
