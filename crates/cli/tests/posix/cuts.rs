//! Power cuts under SQLite. The pool's disk is a file of a small file system of the test's
//! own, which records every write and every flush that the daemon makes. A cut takes any
//! moment of that record: what a completed flush covers is there, of the rest any writes
//! are, some of them torn between sectors. Each such disk is imported, and SQLite must find
//! its database whole, with every transaction whose commit had returned.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::Buf;
use fuse::{
    Attr, BlockingMode, Config, Data, DirSink, Errno, FOREVER, Filesystem, LookupEntry,
    MountOptions, Opened, ROOT_ID, ReadArgs, Request, Session, SetAttr, UnmountOptions, WriteArgs,
};
use testkit::{Rng, Scratch};

use super::common::{Sandbox, can_mount, judge_disks};
use super::{has, noise, run};

const MIB: u64 = 128;
const SECTOR: usize = 512;
const DISK: u64 = 2;
/// Rows of the table: later transactions replace what earlier ones wrote.
const ROWS: u64 = 10;

/// What a disk was told, in the order in which it answered.
enum CutEvent {
    Write(u64, Buf),
    /// All events before this one are durable.
    Flush(usize),
}

/// One file, its record beside it.
struct Recorder {
    file: File,
    log: Mutex<Vec<CutEvent>>,
}

impl Recorder {
    fn now(&self) -> usize {
        self.log.lock().unwrap().len()
    }

    fn attr(node: u64) -> Attr {
        let (mode, size) = if node == DISK { (0o100_600, MIB << 20) } else { (0o040_700, 0) };
        Attr { ino: node, nlink: 1, blksize: 4096, mode, size, ..Attr::default() }
    }

    fn entry(node: u64) -> LookupEntry {
        let attr = Recorder::attr(node);
        LookupEntry { node, generation: 0, attr, entry_ttl: FOREVER, attr_ttl: FOREVER }
    }
}

impl Filesystem for Recorder {
    fn lookup(
        &self,
        _: &Request,
        _: BlockingMode,
        _: u64,
        name: &[u8],
    ) -> fuse::Result<LookupEntry> {
        match name {
            b"disk" => Ok(Recorder::entry(DISK)),
            b"." | b".." => Ok(Recorder::entry(ROOT_ID)),
            _ => Err(Errno::ENOENT),
        }
    }

    fn getattr(
        &self,
        _: &Request,
        _: BlockingMode,
        node: u64,
        _: Option<u64>,
    ) -> fuse::Result<(Attr, Duration)> {
        Ok((Recorder::attr(node), FOREVER))
    }

    fn setattr(&self, _: &Request, node: u64, _: &SetAttr) -> fuse::Result<(Attr, Duration)> {
        Ok((Recorder::attr(node), FOREVER))
    }

    fn open(&self, _: &Request, _: BlockingMode, _: u64, _: u32) -> fuse::Result<Opened> {
        Ok(Opened { direct_io: true, parallel_direct_writes: true, ..Opened::default() })
    }

    fn read(&self, _: &Request, _: BlockingMode, args: &ReadArgs) -> fuse::Result<Data> {
        let left = (MIB << 20).saturating_sub(args.offset);
        let mut bytes = vec![0; left.min(u64::from(args.size)) as usize];
        self.file.read_exact_at(&mut bytes, args.offset).map_err(|_| Errno::EIO)?;
        Ok(Data::copy_of(&bytes))
    }

    fn write(&self, _: &Request, args: &WriteArgs, data: Buf) -> fuse::Result<u32> {
        self.file.write_all_at(&data, args.offset).map_err(|_| Errno::EIO)?;
        let len = data.len() as u32;
        self.log.lock().unwrap().push(CutEvent::Write(args.offset, Buf::copy_of(&data)));
        Ok(len)
    }

    fn fsync(&self, _: &Request, _: u64, _: u64, _: bool) -> fuse::Result<()> {
        let mut log = self.log.lock().unwrap();
        let all = log.len();
        log.push(CutEvent::Flush(all));
        Ok(())
    }

    fn readdir(
        &self,
        _: &Request,
        _: BlockingMode,
        _: u64,
        _: u64,
        offset: u64,
        sink: &mut DirSink,
    ) -> fuse::Result<()> {
        let names: [(u64, u32, &[u8]); 3] =
            [(ROOT_ID, 0o040_000, b"."), (ROOT_ID, 0o040_000, b".."), (DISK, 0o100_000, b"disk")];
        for (next, (ino, mode, name)) in (1..).zip(names) {
            if next > offset && !sink.add(ino, next, mode, name) {
                break;
            }
        }
        Ok(())
    }
}

/// A transaction: a row, and the number of transactions.
fn transaction(n: u64) -> String {
    let row = row(n);
    format!(
        "BEGIN; INSERT OR REPLACE INTO t VALUES({}, {n}, X'{row}'); \
         UPDATE count SET n = n + 1; COMMIT; SELECT n FROM count;\n",
        n % ROWS
    )
}

fn row(n: u64) -> String {
    let bytes = noise(n, 100 + (n * 37 % 50) as usize * 60);
    bytes.iter().map(|b| format!("{b:02X}")).collect()
}

/// Has SQLite run `count` transactions; where in the record each commit had returned.
fn commit(disk: &Recorder, db: &Path, pragmas: &str, count: u64) -> Vec<usize> {
    let mut child = Command::new("sqlite3")
        .args(["-batch", "-bail"])
        .arg(db)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut from = BufReader::new(from).lines();
    let begin = format!(
        "{pragmas} CREATE TABLE t(id INTEGER PRIMARY KEY, n INTEGER, b BLOB); \
         CREATE TABLE count(n INTEGER); INSERT INTO count VALUES(0); SELECT 'ready';\n"
    );
    to.write_all(begin.as_bytes()).unwrap();
    while from.next().unwrap().unwrap() != "ready" {}
    let mut acknowledged = vec![disk.now()];
    for n in 1..=count {
        to.write_all(transaction(n).as_bytes()).unwrap();
        assert_eq!(from.next().unwrap().unwrap(), n.to_string());
        acknowledged.push(disk.now());
    }
    // No orderly end: closing the last connection would check-point and tidy up.
    child.kill().unwrap();
    child.wait().unwrap();
    acknowledged
}

/// What the database holds: the number of transactions; that they are whole is checked.
fn check(db: &Path, what: &str) -> u64 {
    let ask = "PRAGMA integrity_check; SELECT n FROM count; SELECT n, hex(b) FROM t ORDER BY n;";
    let said = run("sqlite3", &["-batch", "-bail", db.to_str().unwrap(), ask], None);
    assert_eq!(said.code, 0, "{what}: {}", said.err);
    let mut lines = said.out.lines();
    assert_eq!(lines.next(), Some("ok"), "{what}: {}", said.out);
    let count: u64 = lines.next().unwrap().parse().unwrap();
    let first = count.saturating_sub(ROWS) + 1;
    for n in first..=count {
        assert_eq!(lines.next(), Some(format!("{n}|{}", row(n)).as_str()), "{what}: row {n}");
    }
    assert_eq!(lines.next(), None, "{what}");
    count
}

/// Writes what a cut leaves of a write: all, nothing, or some of its sectors.
fn leave(image: &File, at: u64, bytes: &[u8], rng: &mut Rng, mood: u64) {
    let torn = match mood {
        0 => return,
        1 => false,
        _ => match rng.below(4) {
            0 => return,
            1 => true,
            _ => false,
        },
    };
    for (i, sector) in bytes.chunks(SECTOR).enumerate() {
        if !torn || rng.below(2) == 0 {
            image.write_all_at(sector, at + (i * SECTOR) as u64).unwrap();
        }
    }
}

/// Runs SQLite once, then cuts its record `cuts` times.
fn cut(name: &str, pragmas: &str, cuts: usize, seed: u64) {
    let s = Sandbox::new(&format!("posix-cuts-{name}"));
    let scratch = Scratch::new(&format!("cuts-disk-{name}"));
    let made = |path: &Path| {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
        let file = file.unwrap();
        file.set_len(MIB << 20).unwrap();
        file
    };
    let disk =
        Arc::new(Recorder { file: made(&scratch.path().join("now")), log: Mutex::default() });
    let at = scratch.path().join("mnt");
    std::fs::create_dir(&at).unwrap();
    let options = MountOptions { fsname: "recorder".into(), ..MountOptions::default() };
    let session = Session::mount(disk.clone(), &at, &options, &Config::default()).unwrap();
    let (mountpoint, path) = (format!("mountpoint={}", s.text("mnt")), at.join("disk"));
    s.ok(&["zpool", "create", "-O", &mountpoint, "tank", path.to_str().unwrap()]);
    let acknowledged = commit(&disk, &s.path("mnt/db"), pragmas, 12 + 6 * cuts as u64);
    s.ok(&["zpool", "export", "tank"]);
    s.stop();
    session.unmount(UnmountOptions::default()).unwrap();

    // The cuts in order: what is durable grows from one to the next.
    let log = disk.log.lock().unwrap();
    let (first, last) = (acknowledged[0], acknowledged[acknowledged.len() - 1]);
    let mut rng = Rng::new(seed);
    let mut moments: Vec<usize> = (0..cuts).map(|_| first + rng.index(last - first + 1)).collect();
    moments.sort_unstable();
    let base = made(&scratch.path().join("base"));
    let (mut durable, mut flushed, mut seen, mut lost) = (0, 0, 0, 0);
    let checker = Sandbox::new(&format!("posix-cut-{name}"));
    let image = checker.dir("disks").join("disk");
    for (turn, &moment) in moments.iter().enumerate() {
        for event in &log[seen..moment] {
            if let CutEvent::Flush(all) = event {
                flushed = *all;
            }
        }
        seen = moment;
        for event in &log[durable..flushed] {
            if let CutEvent::Write(at, bytes) = event {
                base.write_all_at(bytes, *at).unwrap();
            }
        }
        durable = flushed;
        testkit::copy_file(&scratch.path().join("base"), &image);
        let after = File::options().write(true).open(&image).unwrap();
        let mood = rng.below(4);
        for event in &log[durable..moment] {
            if let CutEvent::Write(at, bytes) = event {
                leave(&after, *at, bytes, &mut rng, mood);
                lost += 1;
            }
        }
        drop(after);
        let what = format!("{name}, seed {seed}, cut {turn} of {cuts}, at {moment}");
        let (disks, root) = (checker.text("disks"), checker.text("root"));
        checker.ok(&["zpool", "import", "-R", &root, "-d", &disks, "tank"]);
        let db = checker.path("root").join(s.text("mnt/db").trim_start_matches('/'));
        let found = check(&db, &what);
        let due = acknowledged.iter().rposition(|&at| at <= moment).unwrap() as u64;
        let begun = (due + 1).min(acknowledged.len() as u64 - 1);
        assert!(due <= found && found <= begun, "{what}: {found} instead of {due} transactions");
        checker.ok(&["zpool", "export", "tank"]);
        if turn % 8 == 0 {
            judge_disks(&checker);
        }
    }
    println!(
        "{name}: {cuts} cuts, {} transactions, {} events, {lost} writes not flushed",
        acknowledged.len() - 1,
        log.len()
    );
    checker.stop();
}

/// `CENOTE_CUTS` says how many cuts each of four kinds of journal gets (without it, two get
/// few), `CENOTE_SEED` which.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |n| n.parse().unwrap())
}

#[test]
fn sqlite_loses_no_transaction() {
    if !can_mount("power cuts under SQLite") || !has("sqlite3") {
        return;
    }
    let (cuts, seed) = (number("CENOTE_CUTS", 2) as usize, number("CENOTE_SEED", 1));
    let modes = [
        ("wal", "PRAGMA journal_mode=wal; PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=20;"),
        // FULL does not sync the directory after the journal's removal, so that a power
        // cut may take the last transaction back, on any file system; EXTRA does.
        ("delete", "PRAGMA journal_mode=delete; PRAGMA synchronous=EXTRA;"),
        ("persist", "PRAGMA journal_mode=persist; PRAGMA synchronous=FULL;"),
        ("truncate", "PRAGMA journal_mode=truncate; PRAGMA synchronous=FULL;"),
    ];
    let kinds = if std::env::var_os("CENOTE_CUTS").is_some() { 4 } else { 2 };
    for (name, pragmas) in &modes[..kinds] {
        cut(name, pragmas, cuts, seed);
    }
}
