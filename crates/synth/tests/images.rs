//! Images read back as they were asked for, and every judge finds them clean.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use cenote::{Engine, EngineConfig, FileSystem, ImportOptions, Io, ObjectId, Pool, Search};
use spa::audit::{Options, Verify};
use synth::{Builder, Compression, FileSpec, PoolSpec};
use testkit::Scratch;
use testkit::rng::Rng;

const ALL: Options = Options { verify: Verify::All, leaks: true, threads: 8 };

fn import(dir: &Path) -> Arc<Pool> {
    let config = EngineConfig { cache_bytes: Some(64 << 20), ..EngineConfig::default() };
    let engine = Engine::new(config).unwrap();
    let search = Search { paths: vec![dir.to_owned()], ..Search::default() };
    let found = engine.discover(&search).unwrap();
    assert_eq!(found.pools.len(), 1, "{found:?}");
    assert!(found.pools[0].reason.is_none(), "{:?}", found.pools[0]);
    let options = ImportOptions { readonly: true, ..ImportOptions::default() };
    engine.import(&found.pools[0], &options).unwrap()
}

/// What zdb says: no leaks, no complaints. Skipped where it is not installed.
fn zdb(dir: &Path, pool: &str) {
    let run = |args: &[&str]| {
        let out = Command::new("zdb").args(["-e", "-p"]).arg(dir).args(args).arg(pool).output();
        let out = out.ok()?;
        let text = [out.stdout, out.stderr].concat();
        Some((out.status, String::from_utf8_lossy(&text).into_owned()))
    };
    let Some((status, text)) = run(&["-bcc"]) else {
        println!("SKIPPED: zdb is not installed");
        return;
    };
    assert!(status.success(), "{status}: {text}");
    assert!(text.contains("No leaks"), "{text}");
    println!("ZDB {pool}: {}", text.lines().find(|l| l.contains("No leaks")).unwrap());
    let (status, text) = run(&["-dddd"]).unwrap();
    assert!(status.success(), "{status}: {text}");
    for complaint in ["mismatch", "leaked", "not allocated", "incorrect"] {
        assert!(!text.contains(complaint), "{complaint}: {text}");
    }
}

/// A tree as it was asked for.
#[derive(Default)]
struct Model {
    files: BTreeMap<String, (FileSpec, Vec<u8>)>,
    dirs: BTreeMap<String, usize>,
}

impl Model {
    fn parents(&mut self, path: &str) {
        let parts: Vec<&str> = path.split('/').collect();
        for n in 0..parts.len() {
            self.dirs.entry(parts[..n].join("/")).or_default();
        }
    }

    fn file(&mut self, builder: &mut Builder, path: &str, spec: FileSpec, content: Vec<u8>) {
        assert_eq!(content.len() as u64, spec.size);
        let mut fill = |at: u64, out: &mut [u8]| {
            out.copy_from_slice(&content[at as usize..at as usize + out.len()]);
        };
        builder.file(path, &spec, &mut fill).unwrap();
        self.parents(path);
        self.files.insert(path.to_owned(), (spec, content));
    }

    fn dir(&mut self, builder: &mut Builder, path: &str) {
        builder.dir(path).unwrap();
        self.parents(path);
        self.dirs.entry(path.to_owned()).or_default();
    }

    /// Compares the file system with what was asked for.
    fn check(&self, fs: &FileSystem) {
        let mut found = 0;
        self.walk(fs, fs.root(), String::new(), &mut found);
        assert_eq!(found, self.files.len() + self.dirs.len().max(1));
    }

    fn walk(&self, fs: &FileSystem, id: ObjectId, path: String, found: &mut usize) {
        *found += 1;
        let attrs = fs.attrs(id, Io::WAIT).unwrap();
        if let Some((spec, content)) = self.files.get(&path) {
            assert_eq!(attrs.mode, 0o100_000 | spec.mode, "{path}");
            assert_eq!((attrs.uid, attrs.gid), (spec.uid, spec.gid), "{path}");
            assert_eq!(attrs.size, spec.size, "{path}");
            assert_eq!(attrs.mtime.seconds, spec.mtime as i64, "{path}");
            let parts = fs.read(id, 0, content.len() + 10, Io::WAIT).unwrap();
            let bytes: Vec<u8> = parts.iter().flat_map(|b| b.iter().copied()).collect();
            assert!(bytes == *content, "{path} differs");
            return;
        }
        assert!(path.is_empty() || self.dirs.contains_key(&path), "{path} was not asked for");
        assert_eq!(attrs.mode, 0o040_755, "{path}");
        let (mut cookie, mut entries, mut subdirs) = (0, 0, 0);
        loop {
            let page = fs.readdir(id, cookie, Io::WAIT).unwrap();
            for entry in &page.entries {
                if entry.name == b"." || entry.name == b".." {
                    continue;
                }
                assert_eq!(fs.lookup(id, &entry.name, Io::WAIT).unwrap().id, entry.id);
                let name = std::str::from_utf8(&entry.name).unwrap();
                let below =
                    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
                entries += 1;
                subdirs += usize::from(self.dirs.contains_key(&below));
                self.walk(fs, entry.id, below, found);
            }
            match page.next {
                Some(next) => cookie = next,
                None => break,
            }
        }
        assert_eq!(attrs.size, entries + 2, "{path}");
        assert_eq!(attrs.nlink as usize, subdirs + 2, "{path}");
    }
}

/// Bytes that compress a little, and have holes.
fn content(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    let kind = rng.below(4);
    for part in out.chunks_mut(4096) {
        match kind {
            0 => {}
            1 => part.iter_mut().for_each(|b| *b = rng.number() as u8),
            2 => part.fill(rng.number() as u8),
            _ if rng.below(3) == 0 => {}
            _ => part.iter_mut().for_each(|b| *b = b'a' + (rng.number() % 7) as u8),
        }
    }
    out
}

fn judge(dir: &Path, name: &str, model: &Model) {
    let pool = import(dir);
    let dataset = pool.root().unwrap();
    model.check(&dataset.open_fs().unwrap());
    let report = pool.spa().audit(ALL, &()).unwrap();
    assert!(report.is_clean(), "{name}: {:?}", report.problems);
    assert_eq!((report.leaked, report.bad_claims), (0, 0), "{name}");
    drop(pool);
    zdb(dir, name);
}

fn random_tree(seed: u64, ashift: u32) {
    let name = format!("synthrandom{seed}");
    let scratch = Scratch::new(&name);
    let spec = PoolSpec { ashift, seed, ..PoolSpec::new(&name, 256 << 20) };
    let mut builder = Builder::create(&scratch.path().join("disk"), &spec).unwrap();
    let (mut model, mut rng) = (Model::default(), Rng::new(seed));
    for i in 0..60u64 {
        let recordsize = 512 << rng.below(if i % 20 == 0 { 13 } else { 9 });
        let blocks = rng.below(4) * u64::from(recordsize);
        let size = (blocks + [0, 1, 511, 512, 513][rng.index(5)]).saturating_sub(rng.below(3));
        let compression = [Compression::Off, Compression::Lz4][rng.index(2)];
        let file = FileSpec {
            recordsize,
            compression,
            mode: (rng.below(0o1000)) as u32,
            uid: rng.below(3) as u32 * 1000,
            gid: rng.below(2) as u32 * 70_000,
            mtime: rng.below(1 << 33),
            ..FileSpec::new(size)
        };
        let mut path = String::new();
        for _ in 0..rng.below(5) {
            path.push_str(&format!("d{}/", rng.below(3)));
        }
        path.push_str(&format!("file-{i}"));
        model.file(&mut builder, &path, file, content(&mut rng, size as usize));
    }
    builder.finish().unwrap();
    judge(scratch.path(), &name, &model);
}

#[test]
fn random_trees_of_every_sector_size() {
    for (seed, ashift) in [(1, 9), (2, 12), (3, 13), (4, 16)] {
        random_tree(seed, ashift);
    }
}

#[test]
fn directories_large_deep_and_empty() {
    let name = "synthdirs";
    let scratch = Scratch::new(name);
    let mut builder =
        Builder::create(&scratch.path().join("disk"), &PoolSpec::new(name, 256 << 20)).unwrap();
    let mut model = Model::default();
    model.dir(&mut builder, "empty/below");
    let deep = vec!["deep"; 200].join("/");
    model.dir(&mut builder, &deep);
    for i in 0..5000 {
        model.file(&mut builder, &format!("many/file number {i}"), FileSpec::new(0), Vec::new());
    }
    for i in 0..300 {
        let long = format!("long/{i:0>255}");
        model.file(&mut builder, &long, FileSpec::new(3), b"abc".to_vec());
    }
    for i in 0..1000 {
        model.dir(&mut builder, &format!("dirs/{i}/sub"));
    }
    builder.finish().unwrap();
    judge(scratch.path(), name, &model);
}

#[test]
fn an_empty_pool() {
    let name = "synthempty";
    let scratch = Scratch::new(name);
    let spec = PoolSpec::new(name, 64 << 20);
    Builder::create(&scratch.path().join("disk"), &spec).unwrap().finish().unwrap();
    judge(scratch.path(), name, &Model::default());
}
