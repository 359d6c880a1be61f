//! Pools with one wrong field under right checksums, imported for writing and changed.
//!
//! # Theory
//! A pool with some of everything is made once. Each mutant is a copy of it with one field
//! changed (`testkit::mutate`). A child process imports it for writing and makes, renames,
//! removes, snapshots, destroys and exports. A child that panics, needs more than
//! [`MEMORY_KIB`] or does not end within [`PATIENCE`] is a finding. Afterwards another
//! child reads the pool. Data that was readable before the work, and was not touched by it,
//! must be unchanged, unless the field says what is allocated or free: the engine cannot
//! detect a wrong one (`zpool import --rebuild-space` repairs such pools).
//!
//! `CENOTE_MUTANTS` is the number of mutants (50; 2,000 with `CENOTE_NIGHTLY`),
//! `CENOTE_MUTANT` the seed of the first one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "children are processes")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::ObjectId;
use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting};
use cenote::inspect::zpl::rw::{Caller, New, Rename, WritePosition};
use cenote::{FileSystem, ImportOptions, Io, Pool, PropData};
use testkit::forge::Forge;
use testkit::{Disk, Rng, Scratch, import_from};

const MB: u64 = 1 << 20;
/// Time limit of a mutant's process.
const PATIENCE: Duration = Duration::from_secs(120);
/// Its memory limit, KiB.
const MEMORY_KIB: u64 = 512 << 10;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|s| s.parse().ok())
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let words = (0..len.div_ceil(8)).flat_map(|_| rng.number().to_le_bytes());
    words.take(len).collect()
}

fn digest(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

fn make(fs: &FileSystem, dir: ObjectId, name: &str, new: &New<'_>) -> cenote::Result<ObjectId> {
    Ok(fs.make(&Caller::root(), dir, name.as_bytes(), new)?.id)
}

fn write(fs: &FileSystem, id: ObjectId, data: &[u8]) -> cenote::Result<()> {
    fs.write(&Caller::root(), id, WritePosition::Offset(0), data).map(|_| ())
}

/// A pool with some of everything, and an intent log that waits to be replayed.
fn original(dir: &Path, failmode: u64) {
    let scratch = Scratch::new("mutants-original");
    let path = scratch.path().join("d0");
    std::fs::File::create(&path).unwrap().set_len(96 * MB).unwrap();
    let vdevs = vec![NewVdev::new(NewKind::File(path.clone()))];
    let settings = vec![PoolSetting::Stored("failmode", failmode)];
    let request =
        CreateRequest { force: Force::ALL, settings, ..CreateRequest::new("tank", vdevs) };
    let engine = testkit::engine();
    let pool = engine.create_pool(&request).unwrap().unwrap();
    for name in ["tank/a", "tank/b", "tank/b/c"] {
        pool.create_filesystem(name, &[], None).unwrap();
    }
    pool.create_volume("tank/v", 4 * MB, None, &[], None).unwrap();
    let note = [("user:note".to_owned(), PropData::Str("something".into()))];
    pool.set_props("tank/b", &note, None).unwrap();
    pool.set_props("tank/b", &[("quota".to_owned(), PropData::Num(64 * MB))], None).unwrap();
    for (i, name) in ["tank/a", "tank/b/c"].into_iter().enumerate() {
        let fs = pool.dataset(name).unwrap().open_fs().unwrap();
        let big = make(&fs, fs.root(), "big", &New::file(0o644)).unwrap();
        write(&fs, big, &noise(i as u64, MB as usize)).unwrap();
        let many = make(&fs, fs.root(), "many", &New::dir(0o755)).unwrap();
        for n in 0..150 {
            let id = make(&fs, many, &format!("file number {n}"), &New::file(0o600)).unwrap();
            write(&fs, id, &noise(n, 100 + n as usize * 7)).unwrap();
        }
        let deep = make(&fs, many, "deep", &New::dir(0o755)).unwrap();
        make(&fs, deep, "below", &New::dir(0o755)).unwrap();
        fs.set_xattr(&Caller::root(), big, b"user.colour", b"blue", Default::default()).unwrap();
        pool.writer().unwrap().sync().unwrap();
        pool.snapshot(&[format!("{name}@one")], &[], None).unwrap();
        write(&fs, big, &noise(50 + i as u64, 300 << 10)).unwrap();
        fs.unlink(&Caller::root(), many, b"file number 7").unwrap();
        pool.writer().unwrap().sync().unwrap();
        pool.snapshot(&[format!("{name}@two")], &[], None).unwrap();
        fs.unlink(&Caller::root(), many, b"file number 8").unwrap();
        pool.writer().unwrap().sync().unwrap();
    }
    let fs = pool.dataset("tank/a").unwrap().open_fs().unwrap();
    for n in 0..20 {
        let id = make(&fs, fs.root(), &format!("logged {n}"), &New::file(0o600)).unwrap();
        write(&fs, id, &noise(n, 3000)).unwrap();
        fs.fsync(id).unwrap();
    }
    // The power fails: the log was not replayed.
    testkit::copy_file(&path, &dir.join(format!("base{failmode}")));
}

/// The readable files, by dataset and path: digests of contents.
fn readable(pool: &Pool) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    let mut datasets = Vec::new();
    let _some = pool.for_each_dataset(&mut |dataset| {
        datasets.push(dataset);
        Ok(())
    });
    let snapshots: Vec<_> =
        datasets.iter().flat_map(|d| d.snapshots().unwrap_or_default()).collect();
    for dataset in datasets.iter().chain(&snapshots).take(100) {
        let Ok(fs) = dataset.open_fs() else { continue };
        let mut todo = vec![(fs.root(), dataset.name().to_owned(), 0)];
        while let Some((dir, path, depth)) = todo.pop() {
            let mut cookie = Some(0);
            while let Some(at) = cookie {
                let Ok(page) = fs.readdir(dir, at, Io::WAIT) else { break };
                for entry in &page.entries {
                    let name = String::from_utf8_lossy(&entry.name).into_owned();
                    if name == "." || name == ".." || name.starts_with("new") || out.len() > 5000 {
                        continue;
                    }
                    let path = format!("{path}/{name}");
                    let Ok(attrs) = fs.attrs(entry.id, Io::WAIT) else { continue };
                    match attrs.kind {
                        cenote::inspect::zpl::FileType::Dir if depth < 6 => {
                            todo.push((entry.id, path, depth + 1));
                        }
                        cenote::inspect::zpl::FileType::Regular if attrs.size <= 2 * MB => {
                            let pieces = fs.read(entry.id, 0, attrs.size as usize, Io::WAIT);
                            if let Ok(pieces) = pieces {
                                let bytes: Vec<u8> =
                                    pieces.iter().flat_map(|b| b.iter().copied()).collect();
                                out.insert(path, digest(&bytes));
                            }
                        }
                        _ => {}
                    }
                }
                cookie = page.next.filter(|next| *next != at);
            }
        }
    }
    out
}

/// Creates, writes, renames, removes, snapshots, destroys; errors are allowed.
fn work(pool: &Arc<Pool>) -> usize {
    let mut failed = 0;
    let mut note = |done: cenote::Result<()>| failed += usize::from(done.is_err());
    for name in ["tank/a", "tank/b", "tank/b/c"] {
        note((|| {
            let fs = pool.dataset(name)?.open_fs()?;
            let _ = fs.empty_delete_queue();
            let many = fs.lookup(fs.root(), b"many", Io::WAIT).map_or(fs.root(), |a| a.id);
            for dir in [fs.root(), many] {
                let id = make(&fs, dir, "new file", &New::file(0o644))?;
                write(&fs, id, &noise(3, 200_000))?;
                fs.fsync(id)?;
                let to: &[u8] = b"new name";
                fs.rename(&Caller::root(), (dir, b"new file"), (dir, to), Rename::Plain)?;
                make(&fs, dir, "new directory", &New::dir(0o755))?;
                let gone = make(&fs, dir, "new and gone", &New::file(0o644))?;
                write(&fs, gone, &noise(4, 50_000))?;
                fs.unlink(&Caller::root(), dir, b"new and gone")?;
            }
            Ok(())
        })());
        note(pool.writer().and_then(|w| w.sync().map(|_| ())));
        let snapshot = format!("{name}@new");
        note(pool.snapshot(std::slice::from_ref(&snapshot), &[], None));
        note(pool.destroy_snapshots(&[snapshot], false, None));
    }
    note(pool.create_filesystem("tank/new", &[], None).map(|_| ()));
    note(pool.set_props("tank/new", &[("user:x".to_owned(), PropData::Str("y".into()))], None));
    note(pool.destroy_dataset("tank/new", true, None));
    note(pool.create_filesystem("tank/b/new", &[], None).map(|_| ()));
    note(pool.destroy_dataset("tank/b/new", true, None));
    note(pool.status().map(|_| ()));
    failed
}

/// With failmode=wait a suspended pool makes its callers wait, as documented. The
/// administrator sees the suspension, and ends the wait.
fn administrator(pool: &Arc<Pool>, over: &Arc<AtomicBool>) {
    let (pool, over) = (Arc::clone(pool), Arc::clone(over));
    std::thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            // Looks until the case is over.
            std::thread::sleep(Duration::from_millis(50));
            if let Ok(writer) = pool.writer()
                && writer.txgs().suspended().is_some()
            {
                writer.txgs().set_failmode(txg::FailMode::Continue);
            }
        }
    });
}

/// Runs in a process of its own: `CENOTE_MUTANT_DIR` has the pool, `CENOTE_MUTANT_DO` the
/// action.
#[test]
fn child() {
    let Some(dir) = std::env::var_os("CENOTE_MUTANT_DIR").map(PathBuf::from) else { return };
    let told = std::env::var("CENOTE_MUTANT_DO").unwrap();
    std::panic::set_hook(Box::new(|info| {
        eprintln!("PANIC: {info}\n{}", std::backtrace::Backtrace::force_capture());
        std::process::abort();
    }));
    let engine = testkit::engine();
    if told == "read" {
        let list = match import_from(&engine, &dir, &testkit::readonly()) {
            Ok(pool) => readable(&pool),
            Err(e) => {
                println!("REFUSED: {e}");
                BTreeMap::new()
            }
        };
        let lines: Vec<String> = list.iter().map(|(k, v)| format!("{v:x} {k}")).collect();
        std::fs::write(dir.join("readable"), lines.join("\n")).unwrap();
    } else {
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        match import_from(&engine, &dir, &options) {
            Err(e) => println!("REFUSED: {e}"),
            Ok(pool) => {
                let over = Arc::new(AtomicBool::new(false));
                administrator(&pool, &over);
                let failed = work(&pool);
                let exported = pool.export();
                let readonly = pool.read_only_because().map(str::to_owned);
                println!("WORKED: {failed} failed, {readonly:?}, export {:?}", exported.err());
                over.store(true, Ordering::Relaxed);
            }
        }
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").trim().parse().unwrap();
    assert!(peak < MEMORY_KIB, "{peak} KiB of memory");
}

/// Runs a child; returns its output, or the failure.
fn run(dir: &Path, what: &str) -> Result<String, String> {
    let out = std::fs::File::create(dir.join("output")).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env("CENOTE_MUTANT_DIR", dir)
        .env("CENOTE_MUTANT_DO", what)
        .stdin(Stdio::null())
        .stdout(out.try_clone().unwrap())
        .stderr(out)
        .spawn()
        .unwrap();
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            let text = std::fs::read_to_string(dir.join("output")).unwrap_or_default();
            return Err(format!("{what}: takes more than {PATIENCE:?}: {text}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let bytes = std::fs::read(dir.join("output")).unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    if status.success() { Ok(text) } else { Err(format!("{what}: {status}: {text}")) }
}

fn list(dir: &Path) -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(dir.join("readable")).unwrap();
    let line = |l: &str| {
        let (hash, path) = l.split_once(' ').unwrap();
        (path.to_owned(), u64::from_str_radix(hash, 16).unwrap())
    };
    text.lines().filter(|l| l.contains(' ')).map(line).collect()
}

/// Whether a wrong value of this field may make the engine use allocated space, or free
/// another owner's blocks: the engine trusts such metadata.
fn decides_allocation(told: &str) -> bool {
    // Space maps, their headers, their arrays (type uint64) and lists of blocks; pointers,
    // which a later free trusts; log records, which name blocks.
    ["pointer", "space map", "SPACE_MAP", "bonus of type 7", "uint64 at", "bpobj", "log ", "ZAP"]
        .iter()
        .any(|word| told.contains(word))
}

struct MutantFinding {
    seed: u64,
    told: String,
    wrong: String,
}

/// The results of the imports of mutants.
#[derive(Debug, Default)]
struct MutantTally {
    refused: AtomicU64,
    read_only: AtomicU64,
    some_failed: AtomicU64,
    all_done: AtomicU64,
}

impl MutantTally {
    fn note(&self, said: &str) {
        let count = match said {
            _ if said.contains("REFUSED") => &self.refused,
            _ if said.contains("Some(") => &self.read_only,
            _ if said.contains(": 0 failed") || said.contains(": 1 failed") => &self.all_done,
            _ => &self.some_failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

fn one(seed: u64, base: &Path, tally: &MutantTally) -> Option<MutantFinding> {
    let scratch = Scratch::new(&format!("mutant-{seed}"));
    let dir = scratch.path();
    let path = dir.join("d0");
    // failmode=wait, or continue.
    testkit::copy_file(&base.join(format!("base{}", seed % 2)), &path);
    let mut forge = Forge::new(&Disk::new(&path), 0);
    let mut rng = Rng::new(seed);
    let told = (0..20).find_map(|_| testkit::mutate::mutate(&mut forge, &mut rng))?;
    drop(forge);
    if std::env::var_os("CENOTE_MUTANT_SAY").is_some() {
        eprintln!("{seed}: {told}");
    }
    let found = |wrong: String| Some(MutantFinding { seed, told: told.clone(), wrong });
    if let Err(wrong) = run(dir, "read") {
        return found(wrong);
    }
    let before = list(dir);
    let said = match run(dir, "work") {
        Ok(said) => said,
        Err(wrong) => return found(wrong),
    };
    tally.note(&said);
    if let Err(wrong) = run(dir, "read") {
        return found(wrong);
    }
    let after = list(dir);
    let replayed = |path: &str| path.contains("/logged ");
    let lost: Vec<_> =
        before.iter().filter(|(k, v)| after.get(*k) != Some(*v) && !replayed(k)).take(5).collect();
    if !lost.is_empty() && !decides_allocation(&told) {
        return found(format!("damaged what was whole: {lost:?}; {said}"));
    }
    None
}

#[test]
fn mutants_do_no_harm() {
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let count = number("CENOTE_MUTANTS").unwrap_or(if nightly { 2_000 } else { 50 });
    let first = number("CENOTE_MUTANT").unwrap_or(0);
    let base = Scratch::new("mutants");
    (0..2).for_each(|failmode| original(base.path(), failmode));
    let (next, tally) = (AtomicU64::new(first), MutantTally::default());
    let found = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    if let Some(one) = one(seed, base.path(), &tally) {
                        eprintln!("seed {}: {}\n{}", one.seed, one.told, one.wrong);
                        found.lock().unwrap().push(one);
                    }
                }
            });
        }
    });
    println!("MUTANTS: {count} from {first}: {tally:?}");
    let found = found.into_inner().unwrap();
    let first: Vec<String> =
        found.iter().map(|f| format!("seed {}: {}: {:.200}", f.seed, f.told, f.wrong)).collect();
    assert!(found.is_empty(), "{} of {count} mutants: {first:#?}", found.len());
}

/// Story: a wrong entry of a metaslab array gave two metaslabs one space map. Space
/// allocated in the first was free in the second, and a file was overwritten. Such a pool
/// is imported read-only.
#[test]
fn two_metaslabs_with_one_space_map() {
    let (base, tally) = (Scratch::new("mutants-array"), MutantTally::default());
    (0..2).for_each(|failmode| original(base.path(), failmode));
    assert!(one(1540, base.path(), &tally).is_none());
    assert_eq!(tally.read_only.load(Ordering::Relaxed), 1, "{tally:?}");
}
