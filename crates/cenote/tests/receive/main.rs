//! Streams are received into pools of every kind, whole, damaged and cut off; OpenZFS's zdb finds
//! no error in the result.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(clippy::disallowed_methods, reason = "zdb runs as a process")]

mod correct;
mod extras;
mod golden;
mod history;
mod hostile;
mod lineages;
mod made;
mod raw;
mod records;
mod redaction;
mod refusals;
mod resume;
mod round_trips;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting};
use cenote::inspect::{dsl, spa};
use cenote::stream::{Object, StreamReader, StreamRecord};
use cenote::{
    Engine, Error, ImportOptions, Pool, ReceiveNames, ReceiveOptions, ReceivedStream, Result,
    SendOptions,
};
use testkit::{Scratch, import_from};

const MB: u64 = 1 << 20;
const PLAIN: SendOptions =
    SendOptions { large_blocks: false, embedded: false, compressed: false, raw: false };
const ALL: SendOptions =
    SendOptions { large_blocks: true, embedded: true, compressed: true, ..PLAIN };
const LARGE: SendOptions = SendOptions { large_blocks: true, ..PLAIN };

/// A pool on files of its own, `tank` unless named otherwise.
struct TestPool {
    scratch: Scratch,
    engine: Arc<Engine>,
    pool: Arc<Pool>,
}

fn writing() -> ImportOptions {
    ImportOptions { force: true, ..ImportOptions::default() }
}

impl TestPool {
    /// Of one vdev of this kind over `width` disks.
    fn of(name: &str, kind: Option<NewKind>, width: usize, ashift: u64) -> TestPool {
        let scratch = Scratch::new(&format!("receive-{name}"));
        let leaf = |i: usize| {
            let path = scratch.path().join(format!("d{i}"));
            std::fs::File::create(&path).unwrap().set_len(512 * MB).unwrap();
            NewVdev::new(NewKind::File(path))
        };
        let leaves: Vec<NewVdev> = (0..width).map(leaf).collect();
        let vdevs = match kind {
            Some(kind) => vec![NewVdev::new(kind).with_children(leaves)],
            None => leaves,
        };
        let engine = testkit::engine();
        let settings =
            vec![PoolSetting::Stored("ashift", ashift), PoolSetting::Stored("failmode", 1)];
        let request =
            CreateRequest { force: Force::ALL, settings, ..CreateRequest::new("tank", vdevs) };
        let pool = engine.create_pool(&request).unwrap().unwrap();
        TestPool { scratch, engine, pool }
    }

    fn new(name: &str) -> TestPool {
        TestPool::of(name, None, 1, 12)
    }

    /// A golden pool, to be read.
    fn golden(name: &str) -> Option<TestPool> {
        TestPool::golden_with(name, &testkit::readonly())
    }

    fn golden_with(name: &str, options: &ImportOptions) -> Option<TestPool> {
        let of = testkit::golden(name)?;
        let scratch = Scratch::new(&format!("receive-of-{name}"));
        of.unpack(scratch.path());
        let engine = testkit::engine();
        let pool = import_from(&engine, scratch.path(), options).unwrap();
        Some(TestPool { scratch, engine, pool })
    }

    /// The pool as it is after a crash at this moment.
    fn crashed(self) -> TestPool {
        let image = self.image();
        self.pool.give_up();
        TestPool::imported(image)
    }

    /// A copy of the disks.
    fn image(&self) -> Scratch {
        let copy = Scratch::new("receive-image");
        for entry in std::fs::read_dir(self.scratch.path()).unwrap() {
            let path = entry.unwrap().path();
            testkit::copy_file(&path, &copy.path().join(path.file_name().unwrap()));
        }
        copy
    }

    fn imported(scratch: Scratch) -> TestPool {
        let engine = testkit::engine();
        let pool = import_from(&engine, scratch.path(), &writing()).unwrap();
        TestPool { scratch, engine, pool }
    }

    fn receive(&self, target: &str, stream: &[u8]) -> Result<Vec<ReceivedStream>> {
        self.receive_with(target, &ReceiveOptions::default(), stream)
    }

    fn forced(&self, target: &str, stream: &[u8]) -> Result<Vec<ReceivedStream>> {
        let options = ReceiveOptions { force: true, ..ReceiveOptions::default() };
        self.receive_with(target, &options, stream)
    }

    fn receive_with(
        &self,
        target: &str,
        options: &ReceiveOptions,
        stream: &[u8],
    ) -> Result<Vec<ReceivedStream>> {
        self.pool.receive(target, ReceiveNames::Whole, options, stream)
    }

    fn snapshot(&self, name: &str) {
        self.pool.snapshot(&[name.to_owned()], &[], None).unwrap();
    }

    /// Names of all datasets and snapshots, hidden ones included, with guids and sizes.
    fn datasets(&self) -> Vec<(String, u64, u64)> {
        let root = self.pool.spa().root_dir().unwrap();
        let mut out = Vec::new();
        root.walk_all(&mut |dir| {
            let Some(head) = dir.head()? else { return Ok(()) };
            if dir.name().contains('$') {
                return Ok(());
            }
            for snap in head.snapshots()? {
                out.push((snap.name().to_owned(), snap.phys().guid, snap.phys().referenced_bytes));
            }
            out.push((head.name().to_owned(), head.phys().guid, head.phys().referenced_bytes));
            Ok(())
        })
        .unwrap();
        out
    }

    /// Exports the pool and judges it.
    fn judged(self) {
        self.judged_by(&["-bcc"]);
    }

    /// The same; zdb looks at every object as well.
    fn examined(self) {
        self.judged_by(&["-bcc", "-dddd"]);
    }

    fn judged_by(self, looks: &[&str]) {
        let TestPool { scratch, engine, pool } = self;
        let name = pool.name().to_owned();
        pool.export().unwrap();
        drop(pool);
        judge(&engine, scratch.path(), &name, looks);
    }
}

/// The stream of a snapshot.
fn sent(pool: &Pool, name: &str, from: Option<&str>, options: SendOptions) -> Vec<u8> {
    let mut out = Vec::new();
    let from = from.map(|from| pool.dataset(from).unwrap());
    let dataset = pool.dataset(name).unwrap();
    dataset.send(from.as_ref(), options, &mut out, &mut |_| true).unwrap();
    out
}

/// An object as a stream shows it: its record without what depends on the pool, its bonus, the
/// digests of its blocks that are not zero, and that of its spill block.
type SentObject = (Object, Vec<u8>, BTreeMap<u64, u64>, Option<u64>);

/// What a snapshot contains, by object: equal for equal contents, whatever the pool.
fn content(pool: &Pool, name: &str) -> BTreeMap<u64, SentObject> {
    content_of(&sent(pool, name, None, LARGE))
}

/// What a stream of plain blocks contains.
fn content_of(bytes: &[u8]) -> BTreeMap<u64, SentObject> {
    let mut reader = StreamReader::new(bytes);
    let mut out: BTreeMap<u64, SentObject> = BTreeMap::new();
    while let Some(read) = reader.next_record().unwrap() {
        match read.record {
            StreamRecord::Object(r) => {
                let key = r.object;
                let record = Object { to_guid: 0, ..r };
                out.insert(key, (record, read.payload.to_vec(), BTreeMap::new(), None));
            }
            StreamRecord::Write(r) if read.payload.iter().any(|b| *b != 0) => {
                // The last block of a file may be sent without its zeros.
                let end = read.payload.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
                let digest = digest(&read.payload[..end]);
                out.get_mut(&r.object).unwrap().2.insert(r.offset, digest);
            }
            StreamRecord::Spill(r) => {
                out.get_mut(&r.object).unwrap().3 = Some(digest(read.payload));
            }
            _ => {}
        }
    }
    out
}

/// Panics with the first difference of two snapshots.
fn assert_same(a: (&Pool, &str), b: (&Pool, &str)) {
    let (left, right) = (content(a.0, a.1), content(b.0, b.1));
    if left == right {
        return;
    }
    for (id, of) in &left {
        let other = right.get(id);
        assert!(other == Some(of), "{} and {}: object {id}: {of:?} {other:?}", a.1, b.1);
    }
    let more: Vec<&u64> = right.keys().filter(|id| !left.contains_key(id)).collect();
    panic!("{} and {}: objects {more:?} only in the latter", a.1, b.1);
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
    let mut rng = testkit::Rng::new(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&rng.number().to_le_bytes());
    }
    out.truncate(len);
    out
}

/// The kinds of vdevs, with their widths.
fn kinds() -> Vec<(&'static str, Option<NewKind>, usize)> {
    let draid = NewKind::Draid { nparity: 1, ndata: Some(2), nspares: 1 };
    vec![
        ("single", None, 1),
        ("mirror", Some(NewKind::Mirror), 2),
        ("raidz1", Some(NewKind::Raidz { nparity: 1 }), 3),
        ("raidz2", Some(NewKind::Raidz { nparity: 2 }), 4),
        ("raidz3", Some(NewKind::Raidz { nparity: 3 }), 5),
        ("draid", Some(draid), 4),
    ]
}

/// The exported pool's own rules are satisfied, its audit is clean, and zdb finds no error.
fn judge(engine: &Engine, dir: &Path, name: &str, looks: &[&str]) {
    let pool = import_from(engine, dir, &testkit::readonly()).unwrap();
    let tree = pool.spa().zio().tree();
    let ratio = |id| tree.deflate_ratio(base::VdevId(id)).unwrap_or(512);
    let ratios = dsl::write::Ratios::new((0..8).map(ratio).collect());
    let wrong = dsl::write::check(pool.spa().mos(), &ratios).unwrap();
    assert!(wrong.is_empty(), "{wrong:?}");
    let options =
        spa::audit::AuditOptions { verify: spa::audit::Verify::All, leaks: true, threads: 4 };
    let report = pool.spa().audit(options, &()).unwrap();
    assert!(report.is_clean(), "{report:?}");
    drop((tree, pool));
    for args in looks.iter().map(|look| [*look, name]) {
        let out = Command::new("zdb").args(["-e", "-p"]).arg(dir).args(args).output();
        let Ok(out) = out else {
            testkit::skip(testkit::Need::Zdb, "zdb is not installed");
            return;
        };
        let text = String::from_utf8_lossy(&out.stdout).into_owned()
            + &String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "zdb {args:?}: {text}");
        assert!(args[0] != "-bcc" || text.contains("No leaks"), "{text}");
        for bad in ["ERROR", "mismatch", "leaked", "incorrect", "ASSERT"] {
            assert!(args[0] == "-bcc" || !text.contains(bad), "zdb {args:?}: {bad}: {text}");
        }
    }
}

fn text(e: &Error) -> &str {
    e.message()
}
