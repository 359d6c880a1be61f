//! Golden pools written by OpenZFS, and the manifests of their content.
//!
//! Small pools are in the repository (`tests/fixtures`). Larger ones are used if
//! `CENOTE_POOLS` names their directory, or if there is a directory `shared/pools` beside
//! the checkout.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, clippy::panic)]

pub mod disk;
pub mod exercise;
pub mod forge;
pub mod manifest;
pub mod mutate;
pub mod need;
pub mod rng;
pub mod scratch;
pub mod tree;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cenote::inspect::dsl::write::store::DIRECTORY;
use cenote::inspect::spa::engine::TaskCx;
use cenote::{Engine, EngineConfig, Error, FoundPool, ImportOptions, Pool, Result, Search};

pub use disk::Disk;
pub(crate) use manifest::read_manifest;
pub use manifest::{ManifestEntry, Tolerant, digest, verify, verify_tolerant};
pub use need::{Need, has_program, skip};
pub use rng::Rng;
pub use scratch::Scratch;

/// A golden pool.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Its name, also the pool's.
    pub name: String,
    /// The directory with its archive and manifests.
    pub dir: PathBuf,
}

/// The directory of the repository's fixtures.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures")
}

/// Directories with golden pools, the repository's first.
fn directories() -> Vec<PathBuf> {
    let mut dirs = vec![fixtures()];
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/pools");
    dirs.extend(std::env::var_os("CENOTE_POOLS").map(PathBuf::from));
    dirs.push(beside);
    dirs
}

/// Every available golden pool, by name.
///
/// # Panics
/// If there is none: the fixtures of the repository are always there.
pub fn golden_pools() -> Vec<Golden> {
    let mut pools: Vec<Golden> = Vec::new();
    for dir in directories() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            let file = entry.file_name().to_string_lossy().into_owned();
            let Some(name) = file.strip_suffix(".tar.zst") else { continue };
            if !pools.iter().any(|p| p.name == name) {
                pools.push(Golden { name: name.to_owned(), dir: dir.clone() });
            }
        }
    }
    assert!(!pools.is_empty(), "no golden pool in {:?}", directories());
    pools.sort_by(|a, b| a.name.cmp(&b.name));
    pools
}

/// Every available golden stream, unpacked, by name.
///
/// # Panics
/// If there is none: the fixtures of the repository are always there.
pub fn golden_streams() -> Vec<(String, Vec<u8>)> {
    let mut streams: Vec<(String, Vec<u8>)> = Vec::new();
    for entry in directories().iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten() {
        let entry = entry.unwrap();
        let file = entry.file_name().to_string_lossy().into_owned();
        let Some(name) = file.strip_suffix(".zsend.zst") else { continue };
        if !streams.iter().any(|(known, _)| known == name) {
            let packed = File::open(entry.path()).unwrap();
            streams.push((name.to_owned(), zstd::decode_all(packed).unwrap()));
        }
    }
    assert!(!streams.is_empty(), "no golden stream in {:?}", directories());
    streams.sort();
    streams
}

/// Calls `f` on each item, on eight threads. For tests that wait for zdb: it takes six
/// seconds a pool, whatever its size, and is idle for most of them.
pub fn side_by_side<T: Sync>(items: &[T], f: impl Fn(&T) + Sync) {
    let next = std::sync::atomic::AtomicUsize::new(0);
    // What a thread says when it fails is said in the test's name.
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    std::thread::scope(|scope| {
        for _ in 0..items.len().min(8) {
            let work = || {
                let take = || next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                while let Some(item) = items.get(take()) {
                    f(item);
                }
            };
            std::thread::Builder::new().name(name.clone()).spawn_scoped(scope, work).unwrap();
        }
    });
}

/// Polls until `f` holds; for conditions that time alone brings about.
///
/// # Panics
/// If it does not hold within two minutes.
pub fn eventually(what: &str, mut f: impl FnMut() -> bool) {
    let begin = base::rt::now();
    while !f() {
        assert!(begin.elapsed() < Duration::from_secs(120), "{what}: not within two minutes");
        base::rt::sleep(Duration::from_millis(20));
    }
}

/// One golden pool; `None` (and a printed line) when it is not available.
///
/// # Panics
/// If there is no golden pool at all, or `CENOTE_REQUIRE` lists `shared` and this one is not
/// available.
pub fn golden(name: &str) -> Option<Golden> {
    let found = golden_pools().into_iter().find(|p| p.name == name);
    if found.is_none() {
        skip(Need::Shared, &format!("golden pool {name} is not at hand (set CENOTE_POOLS)"));
    }
    found
}

impl Golden {
    /// Unpacks the pool's disks, sparse, into `dir`; their paths in order.
    pub fn unpack(&self, dir: &Path) -> Vec<PathBuf> {
        let file = File::open(self.dir.join(format!("{}.tar.zst", self.name))).unwrap();
        let mut archive = tar::Archive::new(zstd::Decoder::new(file).unwrap());
        let mut out = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().file_name().unwrap().to_owned();
            let path = dir.join(name);
            copy_sparse(&mut entry, &path);
            out.push(path);
        }
        out.sort();
        out
    }

    /// Its manifests: dataset name (with `@snapshot`), entries.
    pub fn manifests(&self) -> Vec<(String, Vec<ManifestEntry>)> {
        let mut out = Vec::new();
        for entry in std::fs::read_dir(&self.dir).unwrap().flatten() {
            let file = entry.file_name().to_string_lossy().into_owned();
            let Some(rest) = file.strip_prefix(&format!("{}.", self.name)) else { continue };
            let Some(dataset) = rest.strip_suffix(".jsonl.zst") else { continue };
            // The state of a checkpoint is no dataset of the pool.
            if dataset == "at-checkpoint" {
                continue;
            }
            out.push((dataset_name(dataset), read_manifest(&entry.path())));
        }
        let list = self.text("list.txt").unwrap_or_default();
        let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
        let all: Vec<String> = list.lines().skip(1).filter_map(first).collect();
        for (dataset, entries) in &mut out {
            manifest::cut_at_mountpoints(dataset, &all, entries);
        }
        out.sort_by(|a, b| a.0.cmp(&b.0));
        out
    }

    /// The manifest of the root file system as it was at the pool's checkpoint, when the pool
    /// had these datasets.
    pub fn manifest_at_checkpoint(&self, datasets: &[String]) -> Vec<ManifestEntry> {
        let mut entries =
            read_manifest(&self.dir.join(format!("{}.at-checkpoint.jsonl.zst", self.name)));
        manifest::cut_at_mountpoints(&self.name, datasets, &mut entries);
        entries
    }

    /// A text file that belongs to the pool (`list.txt`, `props.txt`, ...).
    pub fn text(&self, suffix: &str) -> Option<String> {
        std::fs::read_to_string(self.dir.join(format!("{}.{suffix}", self.name))).ok()
    }
}

/// Dots stand for slashes, `..zfs.snapshot.X` for a snapshot.
fn dataset_name(file: &str) -> String {
    match file.split_once("..zfs.snapshot.") {
        Some((fs, snap)) => format!("{}@{snap}", fs.replace('.', "/")),
        None => file.replace('.', "/"),
    }
}

fn copy_sparse(from: &mut impl Read, to: &Path) {
    let mut file = File::create(to).unwrap();
    let mut buf = vec![0u8; 1 << 16];
    let mut size = 0u64;
    loop {
        let mut filled = 0;
        while filled < buf.len() {
            match from.read(&mut buf[filled..]).unwrap() {
                0 => break,
                n => filled += n,
            }
        }
        if filled == 0 {
            break;
        }
        if buf[..filled].iter().any(|&b| b != 0) {
            file.seek(SeekFrom::Start(size)).unwrap();
            file.write_all(&buf[..filled]).unwrap();
        }
        size += filled as u64;
    }
    file.set_len(size).unwrap();
}

/// Copies a file keeping its holes.
pub fn copy_file(from: &Path, to: &Path) {
    use std::os::unix::fs::FileExt;
    let (source, target) = (File::open(from).unwrap(), File::create(to).unwrap());
    let size = source.metadata().unwrap().len();
    target.set_len(size).unwrap();
    for range in disk::extents(&source, 0..size) {
        let mut at = range.start;
        while at < range.end {
            let mut bytes = vec![0; (range.end - at).min(1 << 20) as usize];
            source.read_exact_at(&mut bytes, at).unwrap();
            target.write_all_at(&bytes, at).unwrap();
            at += bytes.len() as u64;
        }
    }
}

/// An engine with a small cache, for one test.
pub fn engine() -> Arc<Engine> {
    let config = EngineConfig { cache_bytes: Some(64 << 20), ..EngineConfig::default() };
    Engine::new(config).unwrap()
}

/// Pools found in a directory.
pub fn discover(engine: &Engine, dir: &Path) -> Vec<FoundPool> {
    let search = Search { paths: vec![dir.to_owned()], ..Search::default() };
    engine.discover(&search).unwrap().pools
}

/// Import options of tests: read-only, whichever host had the pool.
pub fn readonly() -> ImportOptions {
    ImportOptions { readonly: true, force: true, ..ImportOptions::default() }
}

/// Leaves the pool in a directory as software older than version 25 leaves one that it was
/// scrubbing: it can only be read.
///
/// # Panics
/// If it cannot be imported and written.
pub fn leave_old_scrub(dir: &Path) {
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let pool = import_from(&engine(), dir, &options).unwrap();
    let act = |cx: &mut TaskCx<'_>, ()| {
        if cx.read().zap_lookup(DIRECTORY, b"scan")?.is_some() {
            cx.cx.mos.zap_remove(DIRECTORY, b"scan")?;
        }
        cx.cx.put_number(DIRECTORY, "scrub_func", 1)
    };
    pool.writer().unwrap().sync_task(|_| Ok(()), act).unwrap();
    pool.export().unwrap();
}

/// Imports the only pool in a directory.
///
/// # Errors
/// `NotFound` without a pool there; those of importing.
pub fn import_from(engine: &Engine, dir: &Path, options: &ImportOptions) -> Result<Arc<Pool>> {
    let found = discover(engine, dir);
    match found.as_slice() {
        [pool] => engine.import(pool, options),
        [] => Err(Error::not_found("no pool")),
        _ => Err(Error::invalid("several pools")),
    }
}

#[cfg(test)]
mod tests {
    use super::need::required;
    use super::*;

    #[test]
    fn a_list_names_needs() {
        assert_eq!(required(""), Ok(Vec::new()));
        assert_eq!(required("zdb, fuse,root,"), Ok(vec![Need::Zdb, Need::Fuse, Need::Root]));
        assert!(Need::ALL.iter().all(|(word, need)| need.word() == *word));
        let e = required("zdb,zfs").unwrap_err();
        assert!(e.contains("'zfs'") && e.contains("zdb, ztest"), "{e}");
    }
}
