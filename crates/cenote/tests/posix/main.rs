//! File systems are changed through the public library as POSIX specifies, and OpenZFS's
//! zdb finds no error in the result.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests have threads")]

mod attrs;
mod cloned_dedup;
mod clones;
mod data;
mod dedup;
mod dedup_filter;
mod dedup_prune;
mod diff;
mod full;
mod full_clones;
mod full_dedup;
mod heal;
mod idle;
mod indirect;
mod log;
mod names;
mod quotas;
mod random;
mod read_ahead;
mod records;
mod removal;
mod rewrite;
mod shared;
mod slog;
mod widths;
mod xattrs;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use base::{ErrorKind, ObjectId};
use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting};
use cenote::inspect::{dsl, spa};
use cenote::{Engine, ImportOptions, Pool, PropData};
use dmu::Io;
use testkit::{Rng, Scratch, import_from};
use zpl::rw::{Caller, New, SetAttrs, WritePosition};
use zpl::{Attrs, FileSystem};

const MB: u64 = 1 << 20;
const DATASET: &str = "tank/fs";

/// A pool on one file, and a file system in it.
struct PosixFixture {
    scratch: Scratch,
    engine: Arc<Engine>,
    pool: Arc<Pool>,
    fs: Arc<FileSystem>,
}

fn request(dir: PathBuf, version: u64) -> CreateRequest {
    let vdevs = vec![NewVdev::new(NewKind::File(dir.join("d0")))];
    let mut request = CreateRequest {
        version,
        force: Force::ALL,
        settings: vec![PoolSetting::Stored("failmode", 1)],
        command: Some("zpool create tank ...".into()),
        ..CreateRequest::new("tank", vdevs)
    };
    match version {
        // Newer than the default set, which OpenZFS 2.3 supports.
        5000 => request.features.extend(cenote::features::by_name("physical_rewrite")),
        _ => request.features.clear(),
    }
    request
}

fn numbers(props: &[(&str, u64)]) -> Vec<(String, PropData)> {
    props.iter().map(|(p, n)| ((*p).to_owned(), PropData::Num(*n))).collect()
}

impl PosixFixture {
    fn new(name: &str, size: u64) -> PosixFixture {
        PosixFixture::with(name, size, 5000, &[])
    }

    fn with(name: &str, size: u64, version: u64, props: &[(&str, u64)]) -> PosixFixture {
        let scratch = Scratch::new(&format!("posix-{name}"));
        let file = std::fs::File::create(scratch.path().join("d0")).unwrap();
        file.set_len(size).unwrap();
        let engine = testkit::engine();
        let request = request(scratch.path().to_path_buf(), version);
        let pool = engine.create_pool(&request).unwrap().unwrap();
        pool.create_filesystem(DATASET, &numbers(props), None).unwrap();
        let fs = open(&pool);
        PosixFixture { scratch, engine, pool, fs }
    }

    /// On a group of `count` disks of `size` bytes.
    fn on(name: &str, size: u64, (kind, count, ashift): (NewKind, usize, u64)) -> PosixFixture {
        let scratch = Scratch::new(&format!("posix-{name}-{count}"));
        let disk = |i: usize| {
            let path = scratch.path().join(format!("d{i}"));
            std::fs::File::create(&path).unwrap().set_len(size).unwrap();
            NewVdev::new(NewKind::File(path))
        };
        let group = NewVdev::new(kind).with_children((0..count).map(disk).collect());
        let mut wanted = request(scratch.path().to_path_buf(), 5000);
        wanted.vdevs = vec![group];
        wanted.settings.push(PoolSetting::Stored("ashift", ashift));
        let engine = testkit::engine();
        let pool = engine.create_pool(&wanted).unwrap().unwrap();
        pool.create_filesystem(DATASET, &[], None).unwrap();
        let fs = open(&pool);
        PosixFixture { scratch, engine, pool, fs }
    }

    fn set(&self, props: &[(&str, u64)]) {
        self.pool.set_props(DATASET, &numbers(props), None).unwrap();
    }

    fn root(&self) -> ObjectId {
        self.fs.root()
    }

    fn sync(&self) {
        self.pool.writer().unwrap().sync().unwrap();
    }

    /// Exports and imports the pool; it is audited in between.
    fn again(self) -> PosixFixture {
        let PosixFixture { scratch, engine, pool, fs } = self;
        fs.sync_all().unwrap();
        drop(fs);
        pool.export().unwrap();
        drop(pool);
        judge(&engine, &scratch);
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let pool = import_from(&engine, scratch.path(), &options).unwrap();
        let fs = open(&pool);
        PosixFixture { scratch, engine, pool, fs }
    }

    /// Exports the pool and checks it, without examining each file.
    fn end(self) {
        let PosixFixture { scratch, engine, pool, fs } = self;
        fs.sync_all().unwrap();
        drop(fs);
        pool.export().unwrap();
        drop(pool);
        judge(&engine, &scratch);
        let texts = zdb_texts(&scratch, &[&["-bcc", "tank"]]);
        assert!(texts.iter().all(|space| space.contains("No leaks")), "{texts:?}");
    }

    /// The last step of a test.
    fn finish(self) {
        let PosixFixture { scratch, engine, pool, fs } = self;
        fs.sync_all().unwrap();
        let before = walk(&fs);
        drop(fs);
        pool.export().unwrap();
        drop(pool);
        drop(engine);
        let engine = testkit::engine();
        let pool = import_from(&engine, scratch.path(), &testkit::readonly()).unwrap();
        let fs = pool.dataset(DATASET).unwrap().open_fs().unwrap();
        assert_eq!(walk(&fs), before);
        drop((fs, pool));
        judge_with(&engine, &scratch);
    }

    fn file(&self, dir: ObjectId, name: &str) -> ObjectId {
        self.fs.make(&Caller::root(), dir, name.as_bytes(), &New::file(0o644)).unwrap().id
    }

    fn dir(&self, dir: ObjectId, name: &str) -> ObjectId {
        self.fs.make(&Caller::root(), dir, name.as_bytes(), &New::dir(0o755)).unwrap().id
    }

    fn write(&self, id: ObjectId, at: u64, data: &[u8]) {
        let done = self.fs.write(&Caller::root(), id, WritePosition::Offset(at), data).unwrap();
        assert_eq!(done.bytes, data.len() as u64);
    }

    fn read(&self, id: ObjectId) -> Vec<u8> {
        read(&self.fs, id)
    }

    fn attrs(&self, id: ObjectId) -> Attrs {
        self.fs.attrs(id, Io::WAIT).unwrap()
    }

    fn resize(&self, id: ObjectId, size: u64) {
        let set = SetAttrs { size: Some(size), ..SetAttrs::default() };
        assert_eq!(self.fs.set_attrs(&Caller::root(), id, &set).unwrap().size, size);
    }

    fn list(&self, dir: ObjectId) -> Vec<String> {
        list(&self.fs, dir)
    }
}

fn read(fs: &FileSystem, id: ObjectId) -> Vec<u8> {
    let size = fs.attrs(id, Io::WAIT).unwrap().size as usize;
    let pieces = fs.read(id, 0, size, Io::WAIT).unwrap();
    pieces.iter().flat_map(|b| b.iter().copied()).collect()
}

/// Names in a directory, in order, without `.` and `..`.
fn list(fs: &FileSystem, dir: ObjectId) -> Vec<String> {
    let (mut names, mut cookie) = (Vec::new(), Some(0));
    while let Some(at) = cookie {
        let page = fs.readdir(dir, at, Io::WAIT).unwrap();
        let plain = page.entries.iter().filter(|e| e.name != b"." && e.name != b"..");
        names.extend(plain.map(|e| String::from_utf8(e.name.clone()).unwrap()));
        cookie = page.next;
    }
    names.sort();
    names
}

/// One file, as a walk finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeenFile {
    path: String,
    attrs: Attrs,
    content: u64,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// All files of a file system, without the contents of huge files.
fn walk(fs: &FileSystem) -> Vec<SeenFile> {
    let mut out = Vec::new();
    let mut todo = vec![(fs.root(), String::new())];
    while let Some((id, path)) = todo.pop() {
        let mut attrs = fs.attrs(id, Io::WAIT).unwrap();
        // Known only after it is written.
        attrs.blocks = 0;
        let content = match attrs.kind {
            zpl::FileType::Regular if attrs.size < 64 * MB => digest(&read(fs, id)),
            zpl::FileType::Symlink => digest(&fs.readlink(id, Io::WAIT).unwrap()),
            _ => 0,
        };
        let mut names = fs.list_xattrs(id, Io::WAIT).unwrap();
        names.sort();
        let value = |n: &Vec<u8>| fs.get_xattr(id, n, Io::WAIT).unwrap().unwrap();
        let xattrs = names.iter().map(|n| (n.clone(), value(n))).collect();
        if attrs.kind == zpl::FileType::Dir {
            for name in list(fs, id) {
                let child = fs.lookup(id, name.as_bytes(), Io::WAIT).unwrap();
                todo.push((child.id, format!("{path}/{name}")));
            }
        }
        out.push(SeenFile { path, attrs, content, xattrs });
    }
    out
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash =
            (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    hash ^ bytes.len() as u64
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&rng.number().to_le_bytes());
    }
    out.truncate(len);
    out
}

fn kind<T>(result: base::Result<T>) -> ErrorKind {
    result.err().expect("it must fail").kind()
}

fn open(pool: &Pool) -> Arc<FileSystem> {
    let fs = pool.dataset(DATASET).unwrap().open_fs().unwrap();
    fs.empty_delete_queue().unwrap();
    fs
}

/// The outputs of zdb, for each list of arguments; empty without zdb.
fn zdb_texts(scratch: &Scratch, runs: &[&[&str]]) -> Vec<String> {
    let start = |args: &&[&str]| {
        let mut zdb = Command::new("zdb");
        zdb.args(["-e", "-p"]).arg(scratch.path()).args(*args);
        zdb.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    let Ok(children) = runs.iter().map(start).collect::<Result<Vec<_>, _>>() else {
        testkit::skip(testkit::Need::Zdb, "zdb is not installed");
        return Vec::new();
    };
    let end = |(child, args): (Child, &&[&str])| {
        let out = child.wait_with_output().unwrap();
        let (text, more) = (String::from_utf8_lossy(&out.stdout), out.stderr);
        let text = text.into_owned() + &String::from_utf8_lossy(&more);
        assert!(out.status.success(), "zdb {args:?}: {text}");
        text
    };
    children.into_iter().zip(runs).map(end).collect()
}

/// The exported pool's own rules are satisfied, and its audit is clean.
fn judge(engine: &Engine, scratch: &Scratch) {
    let pool = import_from(engine, scratch.path(), &testkit::readonly()).unwrap();
    let tree = pool.spa().zio().tree();
    let ratio = |id| tree.deflate_ratio(base::VdevId(id)).unwrap_or(512);
    let ratios = dsl::write::Ratios::new((0..4).map(ratio).collect());
    let wrong = dsl::write::check(pool.spa().mos(), &ratios).unwrap();
    assert!(wrong.is_empty(), "{wrong:?}");
    let options =
        spa::audit::AuditOptions { verify: spa::audit::Verify::All, leaks: true, threads: 8 };
    let report = pool.spa().audit(options, &()).unwrap();
    assert!(report.is_clean(), "{report:?}");
    drop((tree, pool));
}

/// In addition zdb finds no error.
fn judge_with(engine: &Engine, scratch: &Scratch) {
    judge(engine, scratch);
    let texts = zdb_texts(scratch, &[&["-bcc", "tank"], &["-dddd", DATASET]]);
    let [space, objects] = &texts[..] else { return };
    assert!(space.contains("No leaks"), "{space}");
    for bad in ["ERROR", "failed", "leaked", "(null)", "mismatch", "ASSERT"] {
        assert!(!objects.contains(bad), "{bad}: {objects}");
    }
}
