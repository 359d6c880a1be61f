//! Data acknowledged by fsync is in the intent log: the pool's file is copied as a power
//! cut would leave it, imported, and its log replayed.

use super::*;
use base::Txg;
use cenote::Dataset;
use zpl::rw::{Falloc, Host, HostSpace, Rename, RwProps, SetHow, SetTime};
use zpl::{FileType, Time};

/// Txgs are only written on request.
pub(super) fn quiet(pool: &Pool) {
    let txgs = pool.writer().unwrap().txgs();
    txgs.set_limits(&txg::Limits { timeout_s: 3600, ..txgs.limits() });
}

pub(super) fn synced(pool: &Pool) -> Txg {
    pool.writer().unwrap().txgs().synced_txg()
}

pub(super) fn log_of(pool: &Pool) -> Arc<zil::Log> {
    let writer = pool.writer().unwrap();
    writer.log(&writer.read_dataset(DATASET).unwrap()).unwrap().unwrap()
}

/// The present content of the pool's devices.
pub(super) fn cut(rig: &PosixFixture, name: &str) -> Scratch {
    let scratch = Scratch::new(&format!("posix-cut-{name}"));
    testkit::copy_file(&rig.scratch.path().join("d0"), &scratch.path().join("d0"));
    scratch
}

fn import(engine: &Engine, scratch: &Scratch) -> Arc<Pool> {
    import_with(engine, scratch, false).unwrap()
}

/// `missing_log`: without missing log vdevs.
pub(super) fn import_with(
    engine: &Engine,
    scratch: &Scratch,
    missing_log: bool,
) -> base::Result<Arc<Pool>> {
    let options = ImportOptions { force: true, missing_log, ..ImportOptions::default() };
    import_from(engine, scratch.path(), &options)
}

/// Flags, project, extended attributes.
type Extras = (u64, u64, Vec<(Vec<u8>, Vec<u8>)>);

/// The state that a replay restores: everything except times of modification, change and
/// access.
pub(super) type Essence = (String, u64, FileType, u32, u32, u32, u64, u32, u64, Time, u64, Extras);

pub(super) fn essence(fs: &FileSystem) -> Vec<Essence> {
    let one = |s: SeenFile| {
        let a = s.attrs;
        let id = a.id.0;
        (
            s.path,
            id,
            a.kind,
            a.mode,
            a.uid,
            a.gid,
            a.size,
            a.nlink,
            a.generation,
            a.crtime,
            s.content,
            (a.pflags, a.project, s.xattrs),
        )
    };
    let mut all: Vec<Essence> = walk(fs).into_iter().map(one).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// Imports a copy after a power cut, replays, compares, and checks the pool afterwards.
fn check_cut(scratch: &Scratch, wanted: &[Essence]) {
    check_all(scratch, wanted, true);
}

/// `whole`: no device is missing, so zdb can check it as well.
pub(super) fn check_all(scratch: &Scratch, wanted: &[Essence], whole: bool) {
    let engine = testkit::engine();
    let pool = import(&engine, scratch);
    // The log is replayed.
    pool.dataset(DATASET).unwrap().check_writable().unwrap();
    let fs = pool.dataset(DATASET).unwrap().open_fs().unwrap();
    assert_eq!(essence(&fs), wanted);
    fs.empty_delete_queue().unwrap();
    drop(fs);
    pool.export().unwrap();
    drop(pool);
    if whole { judge_with(&engine, scratch) } else { judge(&engine, scratch) }
}

/// Makes some of everything that has a record, and its prerequisites.
pub(super) fn busy(rig: &PosixFixture) {
    let (root, by, fs) = (rig.root(), Caller::root(), &rig.fs);
    let dir = rig.dir(root, "dir");
    let a = rig.file(root, "a");
    rig.write(a, 0, &noise(1, 5000));
    rig.write(a, 5000, &noise(2, 300_000));
    rig.write(a, 100, b"overwritten");
    let b = rig.file(dir, "b");
    rig.write(b, 70_000, b"behind a hole");
    fs.make(&by, root, b"link", &New::symlink(b"dir/b")).unwrap();
    let fifo = New { kind: FileType::Fifo, ..New::file(0o600) };
    fs.make(&Caller { uid: 5, gid: 7, ..Caller::root() }, dir, b"fifo", &fifo).unwrap();
    fs.link(&by, a, dir, b"second").unwrap();
    rig.resize(a, 200_001);
    rig.resize(b, 90_000);
    fs.allocate(&by, a, Falloc::PunchHole, 10_000, 150_000).unwrap();
    let set = SetAttrs {
        mode: Some(0o4711),
        uid: Some(12),
        gid: Some(13),
        mtime: Some(SetTime::Set(Time { seconds: 77, nanoseconds: 9 })),
        ..SetAttrs::default()
    };
    fs.set_attrs(&by, b, &set).unwrap();
    let c = rig.file(root, "c");
    rig.write(c, 0, b"goes");
    fs.unlink(&by, root, b"c").unwrap();
    let d = rig.file(root, "d");
    rig.write(d, 0, &noise(3, 20_000));
    fs.rename(&by, (root, b"d"), (dir, b"e"), Rename::Plain).unwrap();
    let f = rig.file(root, "f");
    rig.write(f, 0, b"replaces");
    fs.rename(&by, (root, b"f"), (dir, b"e"), Rename::Plain).unwrap();
    fs.rename(&by, (root, b"a"), (dir, b"b"), Rename::Exchange).unwrap();
    rig.dir(dir, "gone");
    fs.rmdir(&by, dir, b"gone").unwrap();
    for i in 0..200 {
        rig.file(dir, &format!("many-{i}"));
    }
}

/// Calls fsync for all files.
pub(super) fn fsync_all(fs: &FileSystem) {
    for seen in walk(fs) {
        fs.fsync(seen.attrs.id).unwrap();
    }
}

#[test]
fn fsynced_changes_survive_without_a_txg() {
    let rig = PosixFixture::new("log", 256 * MB);
    quiet(&rig.pool);
    let first = rig.file(rig.root(), "first");
    // The first fsync creates the log, and waits for a txg.
    rig.fs.fsync(first).unwrap();
    let before = synced(&rig.pool);
    busy(&rig);
    fsync_all(&rig.fs);
    assert_eq!(synced(&rig.pool), before, "an fsync waited for a txg");
    let stats = log_of(&rig.pool).stats().batches.load(std::sync::atomic::Ordering::SeqCst);
    assert!(stats > 0);
    let wanted = essence(&rig.fs);
    let scratch = cut(&rig, "all");
    let texts = zdb_texts(&scratch, &[&["-ivv", DATASET]]);
    for text in &texts {
        assert!(text.contains("TX_WRITE") && text.contains("TX_RENAME"), "{text}");
    }
    check_cut(&scratch, &wanted);
    // The pool that continued is consistent as well.
    rig.write(first, 0, b"later");
    rig.fs.fsync(first).unwrap();
    rig.finish();
}

/// A POSIX ACL in Linux's format: tag, permissions, id.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
        out.extend(id.to_le_bytes());
    }
    out
}

const NO_ID: u32 = u32::MAX;

/// Sets attributes of all sorts, none of which waits for a txg.
fn set_all_attributes(rig: &PosixFixture, large: usize) {
    let (root, by, fs) = (rig.root(), Caller::root(), &rig.fs);
    let file = rig.file(root, "flagged");
    let set = |id, name: &str, value: &[u8]| {
        fs.set_xattr(&by, id, name.as_bytes(), value, SetHow::Any).unwrap();
    };
    set(file, "user.first", b"1");
    set(file, "security.second", &noise(8, 300));
    set(file, "user.goes", &noise(9, 3000));
    set(file, "user.first", &noise(10, 700));
    set(file, "user.large", &noise(11, large));
    set(file, "user.large", &noise(12, large + 5));
    fs.remove_xattr(&by, file, b"user.goes").unwrap();
    let access = acl(&[(1, 6, NO_ID), (2, 4, 77), (4, 4, NO_ID), (16, 6, NO_ID), (32, 0, NO_ID)]);
    set(file, "system.posix_acl_access", &access);
    let chmod = SetAttrs { mode: Some(0o640), ..SetAttrs::default() };
    fs.set_attrs(&by, file, &chmod).unwrap();
    let own = SetAttrs { uid: Some(31), gid: Some(32), ..SetAttrs::default() };
    fs.set_attrs(&by, file, &own).unwrap();
    let flags = Some(ondisk::znode::ZFS_NODUMP | ondisk::znode::ZFS_HIDDEN);
    fs.set_attrs(&by, file, &SetAttrs { flags, project: Some(9), ..SetAttrs::default() }).unwrap();
    // Renamed, with a whiteout under the old name; and one without extended attributes.
    fs.rename(&by, (root, b"flagged"), (root, b"moved"), Rename::Whiteout).unwrap();
    // A change of the content clears set-id bits.
    let program = rig.file(root, "program");
    let mode = SetAttrs { mode: Some(0o4755), uid: Some(5), ..SetAttrs::default() };
    fs.set_attrs(&by, program, &mode).unwrap();
    let other_user = Caller { uid: 5, gid: 5, privileged: false, ..Caller::root() };
    fs.write(&other_user, program, WritePosition::Offset(0), b"not a program").unwrap();
    fs.allocate(&by, program, Falloc::ZeroRange { keep_size: false }, 4, 9000).unwrap();
    fs.allocate(&by, program, Falloc::ZeroRange { keep_size: true }, 20_000, 9).unwrap();
}

/// Files that inherit from a directory.
fn inherit(rig: &PosixFixture) {
    let (by, fs) = (Caller::root(), &rig.fs);
    let dir = rig.dir(rig.root(), "heir");
    let default = acl(&[(1, 7, NO_ID), (2, 5, 78), (4, 5, NO_ID), (16, 7, NO_ID), (32, 0, NO_ID)]);
    fs.set_xattr(&by, dir, b"system.posix_acl_default", &default, SetHow::Any).unwrap();
    let file = rig.file(dir, "file");
    rig.write(file, 0, b"inherits");
    rig.dir(dir, "dir");
}

#[test]
fn attributes_of_every_form_are_in_the_log() {
    // Among the system attributes, and in hidden directories.
    for (form, large) in [(2, 20_000), (1, 60_000)] {
        let props = [("xattr", form), ("acltype", 1)];
        let rig = PosixFixture::with(&format!("log-xattrs-{form}"), 192 * MB, 5000, &props);
        quiet(&rig.pool);
        let first = rig.file(rig.root(), "first");
        rig.fs.fsync(first).unwrap();
        let before = synced(&rig.pool);
        set_all_attributes(&rig, large);
        if form == 2 {
            inherit(&rig);
        }
        fsync_all(&rig.fs);
        assert_eq!(synced(&rig.pool), before, "an fsync waited for a txg");
        let wanted = essence(&rig.fs);
        let scratch = cut(&rig, &format!("xattrs-{form}"));
        let types = if form == 2 { "TX_SETSAXATTR" } else { "TX_MKXATTR" };
        for text in zdb_texts(&scratch, &[&["-ivv", DATASET]]) {
            assert!(text.contains(&format!("\t\t{types} ")), "{text}");
        }
        check_cut(&scratch, &wanted);
        rig.finish();
    }
}

/// The host of a file system whose log is replayed step by step.
struct Steps {
    writer: Arc<spa::engine::Writer>,
    log: Arc<zil::Log>,
}

impl Host for Steps {
    fn begin(&self, bytes: u64, frees: bool, outage: dmu::OutagePolicy) -> base::Result<dmu::Tx> {
        Ok(self.writer.begin_wait(bytes, frees)?.with_outage(outage))
    }
    fn synced(&self, txg: Txg) -> base::Result<()> {
        self.writer.txgs().wait_synced(txg)
    }
    fn log(&self) -> Option<Arc<zil::Log>> {
        Some(Arc::clone(&self.log))
    }
    fn now(&self) -> Time {
        Time { seconds: 1, nanoseconds: 0 }
    }
    fn props(&self) -> Arc<RwProps> {
        Arc::default()
    }
    fn space(&self, _: dmu::OutagePolicy) -> base::Result<HostSpace> {
        Ok(HostSpace::default())
    }
}

/// A file system whose log is to be replayed by hand.
pub(super) fn by_hand(pool: &Pool, os: &Arc<dmu::Objset>, log: &Arc<zil::Log>) -> Arc<FileSystem> {
    let writer = Arc::clone(pool.writer().unwrap());
    let host = Arc::new(Steps { writer, log: Arc::clone(log) });
    FileSystem::open_rw(Arc::clone(os), host, Io::WAIT).unwrap()
}

/// Replays `n` records, and stops like a crash, with a txg on disk or without.
pub(super) fn replay_some(pool: &Pool, n: usize, sync: bool) -> usize {
    let writer = Arc::clone(pool.writer().unwrap());
    let os = writer.read_dataset(DATASET).unwrap();
    let log = writer.log(&os).unwrap().unwrap();
    let fs = by_hand(pool, &os, &log);
    let mut done = 0;
    writer
        .for_each_record(&os, &mut |record| {
            if done < n {
                log.replaying(record.header.seq);
                fs.replay(record)?;
                log.replaying(0);
                done += 1;
            }
            Ok(())
        })
        .unwrap();
    if sync {
        writer.sync().unwrap();
    }
    done
}

#[test]
fn a_replay_that_is_cut_goes_on() {
    let rig = PosixFixture::new("log-cut", 256 * MB);
    quiet(&rig.pool);
    let first = rig.file(rig.root(), "first");
    rig.fs.fsync(first).unwrap();
    busy(&rig);
    fsync_all(&rig.fs);
    let wanted = essence(&rig.fs);
    let scratch = cut(&rig, "steps");
    let engine = testkit::engine();
    let mut left = true;
    let mut round = 0;
    while left {
        round += 1;
        let pool = import(&engine, &scratch);
        quiet(&pool);
        let steps = 7 * round;
        left = replay_some(&pool, steps, round % 3 != 0) == steps;
        // The pool stops in its present state; unrequested txgs are lost.
        let copy = Scratch::new(&format!("posix-cut-step-{round}"));
        testkit::copy_file(&scratch.path().join("d0"), &copy.path().join("d0"));
        drop(pool);
        testkit::copy_file(&copy.path().join("d0"), &scratch.path().join("d0"));
    }
    assert!(round > 3);
    check_cut(&scratch, &wanted);
    rig.finish();
}

#[test]
fn random_work_is_there_after_every_cut() {
    let rig = PosixFixture::new("log-random", 128 * MB);
    quiet(&rig.pool);
    let (root, by) = (rig.root(), Caller::root());
    let mut rng = Rng::new(77);
    let mut cuts = Vec::new();
    for step in 0..160 {
        let names: Vec<String> = list(&rig.fs, root);
        let name = format!("n{}", rng.below(12));
        let id = rig.fs.lookup(root, name.as_bytes(), Io::WAIT).ok().map(|f| f.id);
        match (rng.below(8), id) {
            (_, None) => drop(rig.file(root, &name)),
            (0, Some(_)) => drop(rig.fs.unlink(&by, root, name.as_bytes()).unwrap()),
            (1, Some(_)) => {
                let to = names[rng.index(names.len())].clone();
                rig.fs
                    .rename(&by, (root, name.as_bytes()), (root, to.as_bytes()), Rename::Plain)
                    .unwrap();
            }
            (2, Some(id)) => rig.resize(id, rng.below(60_000)),
            (3, Some(id)) => {
                let what = Falloc::ZeroRange { keep_size: rng.below(2) == 0 };
                rig.fs.allocate(&by, id, what, rng.below(60_000), 1 + rng.below(30_000)).unwrap();
            }
            (4, Some(id)) => {
                let value = noise(step, 50);
                rig.fs.set_xattr(&by, id, b"user.k", &value, SetHow::Any).unwrap();
            }
            (_, Some(id)) => {
                let len = 1 + rng.below(40_000) as usize;
                rig.write(id, rng.below(150_000), &noise(step, len));
            }
        }
        if rng.below(9) == 0 {
            rig.sync();
        }
        if step % 16 == 15 {
            fsync_all(&rig.fs);
            cuts.push((cut(&rig, &format!("random-{step}")), essence(&rig.fs)));
        }
    }
    for (scratch, wanted) in &cuts {
        let engine = testkit::engine();
        let pool = import(&engine, scratch);
        let fs = pool.dataset(DATASET).unwrap().open_fs().unwrap();
        assert_eq!(&essence(&fs), wanted);
        drop(fs);
        pool.export().unwrap();
        drop(pool);
        judge(&engine, scratch);
    }
    rig.finish();
}

fn dataset(pool: &Pool, name: &str) -> Dataset {
    pool.dataset(name).unwrap()
}

#[test]
fn property_sync_is_followed_and_chains_end_with_their_datasets() {
    let rig = PosixFixture::new("log-sync", 256 * MB);
    quiet(&rig.pool);
    let first = rig.file(rig.root(), "first");
    rig.fs.fsync(first).unwrap();
    rig.set(&[("sync", 2)]);
    let before = synced(&rig.pool);
    rig.write(first, 0, b"nobody waits");
    rig.fs.fsync(first).unwrap();
    assert_eq!(synced(&rig.pool), before);
    rig.set(&[("sync", 1)]);
    // Changes without records must be on disk first.
    rig.write(first, 0, b"all callers wait");
    let count = || log_of(&rig.pool).stats().batches.load(std::sync::atomic::Ordering::SeqCst);
    let (before, group) = (count(), synced(&rig.pool));
    rig.write(first, 0, b"all callers wait now");
    let second = rig.file(rig.root(), "second");
    assert_eq!((count(), synced(&rig.pool)), (before + 2, group));
    let wanted = essence(&rig.fs);
    let always = cut(&rig, "always");
    check_cut(&always, &wanted);
    // A snapshot contains nothing of the log; nor does a dataset destroyed while it is in
    // use.
    rig.pool.snapshot(&[format!("{DATASET}@s")], &[], None).unwrap();
    rig.write(second, 0, b"after the snapshot");
    rig.pool.create_filesystem("tank/other", &[], None).unwrap();
    let other = dataset(&rig.pool, "tank/other").open_fs().unwrap();
    let made = other.make(&Caller::root(), other.root(), b"x", &New::file(0o644)).unwrap();
    other.fsync(made.id).unwrap();
    other.write(&Caller::root(), made.id, WritePosition::Offset(0), &noise(5, 9000)).unwrap();
    other.fsync(made.id).unwrap();
    drop(other);
    rig.pool.destroy_dataset("tank/other", false, None).unwrap();
    let group = synced(&rig.pool);
    rig.write(second, 0, b"the log begins again");
    assert!(synced(&rig.pool) > group);
    rig.finish();
}

/// The pool in which OpenZFS left a log that was not replayed.
#[test]
fn a_log_of_openzfs_is_replayed() {
    let golden = testkit::golden("dirtyzil").unwrap();
    let scratch = Scratch::new("posix-dirtyzil");
    golden.unpack(scratch.path());
    let engine = testkit::engine();
    let pool = import(&engine, &scratch);
    for (name, manifest) in golden.manifests() {
        let fs = pool.dataset(&name).unwrap().open_fs().unwrap();
        assert!(fs.space().is_ok(), "{name}");
        let differences = testkit::verify(&fs, &manifest, false);
        assert!(differences.is_empty(), "{name}: {differences:#?}");
    }
    pool.export().unwrap();
    drop(pool);
    let pool = import_from(&engine, scratch.path(), &testkit::readonly()).unwrap();
    let report = pool.spa().audit(spa::audit::AuditOptions::default(), &()).unwrap();
    assert!(report.is_clean(), "{report:?}");
    drop(pool);
    for text in zdb_texts(&scratch, &[&["-bcc", "dirtyzil"]]) {
        assert!(text.contains("No leaks"), "{text}");
    }
}

#[test]
fn concurrent_fsyncs_survive_a_cut_at_any_time() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
    const WRITERS: usize = 6;
    let rig = PosixFixture::new("log-many", 256 * MB);
    quiet(&rig.pool);
    let files: Vec<ObjectId> =
        (0..WRITERS).map(|i| rig.file(rig.root(), &format!("f{i}"))).collect();
    rig.fs.fsync(files[0]).unwrap();
    let group = synced(&rig.pool);
    let content: Vec<Vec<u8>> = (0..WRITERS).map(|i| noise(i as u64, 4 << 20)).collect();
    let told: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let (mut cuts, commits) = (Vec::new(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for i in 0..WRITERS {
            let (rig, files, content, told, stop, commits) =
                (&rig, &files, &content, &told, &stop, &commits);
            scope.spawn(move || {
                let (mut rng, mut at) = (Rng::new(i as u64), 0);
                while !stop.load(SeqCst) && at + 20_000 < content[i].len() {
                    let n = 1 + rng.below(if i == 0 { 20_000 } else { 3000 }) as usize;
                    rig.write(files[i], at as u64, &content[i][at..at + n]);
                    at += n;
                    rig.fs.fsync(files[i]).unwrap();
                    commits.fetch_add(1, SeqCst);
                    told[i].store(at as u64, SeqCst);
                }
            });
        }
        for round in 1..=3u64 {
            while commits.load(SeqCst) < round * 60 {
                std::thread::yield_now();
            }
            let promised: Vec<u64> = told.iter().map(|t| t.load(SeqCst)).collect();
            cuts.push((cut(&rig, &format!("many-{round}")), promised));
        }
        stop.store(true, SeqCst);
    });
    assert_eq!(synced(&rig.pool), group);
    let batches = log_of(&rig.pool).stats().batches.load(SeqCst);
    assert!(batches < commits.load(SeqCst), "{batches} batches, {commits:?} commits");
    for (scratch, promised) in &cuts {
        let engine = testkit::engine();
        let pool = import(&engine, scratch);
        let fs = pool.dataset(DATASET).unwrap().open_fs().unwrap();
        for i in 0..WRITERS {
            let found = read(&fs, files[i]);
            assert!(
                found.len() as u64 >= promised[i],
                "file {i}: {} of {}",
                found.len(),
                promised[i]
            );
            assert!(found == content[i][..found.len()], "file {i}");
        }
        drop(fs);
        pool.export().unwrap();
        drop(pool);
        judge_with(&engine, scratch);
    }
    rig.finish();
}

/// A checkpoint is taken while a log is in use, and the log goes on. A return to the checkpoint
/// replays nothing that came after it, and the log's blocks of that time are free.
#[test]
fn a_return_to_a_checkpoint_replays_no_later_record() {
    let rig = PosixFixture::new("log-checkpoint", 256 * MB);
    let first = rig.file(rig.root(), "first");
    rig.fs.fsync(first).unwrap();
    busy(&rig);
    fsync_all(&rig.fs);
    quiet(&rig.pool);
    rig.pool.take_checkpoint(None).unwrap();
    let then = essence(&rig.fs);
    for round in 0..6u64 {
        // In the chain that the checkpoint knows, and after it.
        for i in 0..10u64 {
            rig.write(first, i * 9000, &noise(round * 100 + i, 9000));
            rig.fs.fsync(first).unwrap();
        }
        if round % 2 == 1 {
            rig.sync();
        }
    }
    rig.fs.unlink(&Caller::root(), rig.root(), b"link").unwrap();
    rig.fs.fsync(first).unwrap();
    let now = essence(&rig.fs);
    assert_ne!(now, then);
    let scratch = cut(&rig, "checkpoint-now");
    check_cut(&scratch, &now);
    let scratch = cut(&rig, "checkpoint-then");
    let engine = testkit::engine();
    let back = ImportOptions { force: true, checkpoint: true, ..ImportOptions::default() };
    let pool = import_from(&engine, scratch.path(), &back).unwrap();
    pool.dataset(DATASET).unwrap().check_writable().unwrap();
    let fs = pool.dataset(DATASET).unwrap().open_fs().unwrap();
    assert_eq!(essence(&fs), then);
    drop(fs);
    pool.export().unwrap();
    drop(pool);
    judge_with(&engine, &scratch);
    // A checkpoint that a power failure met is continued, and its blocks are freed.
    let scratch = cut(&rig, "checkpoint-discarded");
    let pool = import(&engine, &scratch);
    pool.dataset(DATASET).unwrap().check_writable().unwrap();
    pool.discard_checkpoint(None).unwrap();
    for _ in 0..100 {
        pool.sync().unwrap();
    }
    assert_eq!(pool.checkpoint_status().unwrap(), None);
    pool.export().unwrap();
    drop(pool);
    judge_with(&engine, &scratch);
    rig.finish();
}
