//! Images are read back as specified, and every checker finds them consistent.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use cenote::inspect::zpl::SpaceKind;
use cenote::{
    Engine, EngineConfig, ErrorKind, FileSystem, ImportOptions, Io, ObjectId, Pool, PropData,
    Search,
};
use spa::audit::{AuditOptions, Verify};
use synth::{Builder, Compression, FileSpec, PoolSpec};
use testkit::Scratch;
use testkit::rng::Rng;

const ALL: AuditOptions = AuditOptions { verify: Verify::All, leaks: true, threads: 8 };

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

/// Runs zdb: no leaks, no errors. Skipped where it is not installed.
fn zdb(dir: &Path, pool: &str) {
    let run = |args: &[&str]| {
        let out = Command::new("zdb").args(["-e", "-p"]).arg(dir).args(args).arg(pool).output();
        let out = out.ok()?;
        let text = [out.stdout, out.stderr].concat();
        Some((out.status, String::from_utf8_lossy(&text).into_owned()))
    };
    let Some((status, text)) = run(&["-bcc"]) else {
        testkit::skip(testkit::Need::Zdb, "zdb is not installed");
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

/// The result of a walk: objects, and bytes by owner.
#[derive(Default)]
struct WalkTotals {
    count: usize,
    users: BTreeMap<u64, u64>,
    groups: BTreeMap<u64, u64>,
}

/// The specified tree.
#[derive(Default)]
struct TreeModel {
    files: BTreeMap<String, (FileSpec, Vec<u8>)>,
    dirs: BTreeMap<String, usize>,
}

impl TreeModel {
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

    /// Compares the file system with the specified tree.
    fn check(&self, fs: &FileSystem) {
        let mut found = WalkTotals::default();
        self.walk(fs, fs.root(), String::new(), &mut found);
        assert_eq!(found.count, self.files.len() + self.dirs.len().max(1));
        for (kind, used) in [(SpaceKind::User, found.users), (SpaceKind::Group, found.groups)] {
            let table = fs.userspace(kind, Io::WAIT).unwrap();
            let table: BTreeMap<u64, u64> = table.iter().map(|e| (e.id, e.used)).collect();
            assert_eq!(table, used, "{kind:?}");
        }
    }

    fn walk(&self, fs: &FileSystem, id: ObjectId, path: String, found: &mut WalkTotals) {
        found.count += 1;
        let attrs = fs.attrs(id, Io::WAIT).unwrap();
        // `blocks` includes the dnode's, as the accounts do.
        for (table, id) in [(&mut found.users, attrs.uid), (&mut found.groups, attrs.gid)] {
            *table.entry(id.into()).or_default() += attrs.blocks * 512;
        }
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
        assert!(path.is_empty() || self.dirs.contains_key(&path), "{path} was not specified");
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

fn judge(dir: &Path, name: &str, model: &TreeModel) {
    let pool = import(dir);
    let dataset = pool.root().unwrap();
    model.check(&dataset.open_fs().unwrap());
    let report = pool.spa().audit(ALL, &()).unwrap();
    assert!(report.is_clean(), "{name}: {:?}", report.problems);
    assert_eq!((report.leaked, report.bad_claims), (0, 0), "{name}");
    // The space used according to directories is the space allocated in space maps.
    let allocated = pool.spa().load_space().unwrap().allocated();
    assert_eq!(report.stats.total().asize, allocated, "{name}");
    assert_eq!(dataset.prop("used").unwrap().unwrap().value, PropData::Num(allocated), "{name}");
    drop((dataset, pool));
    zdb(dir, name);
}

fn random_tree(seed: u64, ashift: u32) {
    let name = format!("synthrandom{seed}");
    let scratch = Scratch::new(&name);
    let spec = PoolSpec { ashift, seed, ..PoolSpec::new(&name, 256 << 20) };
    let mut builder = Builder::create(&scratch.path().join("disk"), &spec).unwrap();
    let (mut model, mut rng) = (TreeModel::default(), Rng::new(seed));
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
    let mut model = TreeModel::default();
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
fn deep_trees_of_blocks_and_wide_pointer_tables() {
    let name = "synthdeep";
    let scratch = Scratch::new(name);
    let spec = PoolSpec { ashift: 9, ..PoolSpec::new(name, 1 << 30) };
    let mut builder = Builder::create(&scratch.path().join("disk"), &spec).unwrap();
    let (mut model, mut rng) = (TreeModel::default(), Rng::new(5));
    // Two levels of indirect blocks, some of them of holes alone.
    let mut bytes = content(&mut rng, (3 << 20) + 700);
    bytes.iter_mut().step_by(97).for_each(|b| *b = 3);
    bytes[512 << 10..1536 << 10].fill(0);
    let file = FileSpec { recordsize: 512, ..FileSpec::new(bytes.len() as u64) };
    model.file(&mut builder, "small records", file, bytes);
    let large = FileSpec { recordsize: 16 << 20, ..FileSpec::new((16 << 20) + 1) };
    let bytes = content(&mut rng, large.size as usize);
    model.file(&mut builder, "large records", large, bytes);
    model.file(&mut builder, "zeros", FileSpec::new(10 << 20), vec![0; 10 << 20]);
    // More leaves than the header block has pointers to.
    for i in 0..30_000 {
        let long = format!("wide/{i:0>250}");
        model.file(&mut builder, &long, FileSpec::new(0), Vec::new());
    }
    builder.finish().unwrap();
    judge(scratch.path(), name, &model);
}

#[test]
fn the_same_calls_give_the_same_image() {
    let scratch = Scratch::new("same");
    let path = scratch.path().join("disk");
    let spec = PoolSpec { time: 1_700_000_000, ..PoolSpec::new("synthsame", 64 << 20) };
    let make = || {
        let mut builder = Builder::create(&path, &spec).unwrap();
        let (mut model, mut rng) = (TreeModel::default(), Rng::new(6));
        for i in 0..200 {
            let size = rng.below(300_000);
            let bytes = content(&mut rng, size as usize);
            model.file(&mut builder, &format!("{}/{i}", i % 7), FileSpec::new(size), bytes);
        }
        builder.finish().unwrap();
        std::fs::read(&path).unwrap()
    };
    assert!(make() == make());
}

#[test]
fn what_cannot_be_is_refused() {
    let scratch = Scratch::new("refused");
    let path = scratch.path().join("disk");
    let good = PoolSpec::new("synthrefused", 64 << 20);
    for bad in [
        PoolSpec { name: "mirror".into(), ..good.clone() },
        PoolSpec { name: "1st".into(), ..good.clone() },
        PoolSpec { ashift: 17, ..good.clone() },
        PoolSpec { size: 1 << 20, ..good.clone() },
    ] {
        assert_eq!(Builder::create(&path, &bad).err().unwrap().kind(), ErrorKind::Invalid);
    }
    let mut builder = Builder::create(&path, &good).unwrap();
    let kind = |b: &mut Builder, path: &str, spec: &FileSpec| {
        b.file(path, spec, &mut |_, out| out.fill(1)).err().map(|e| e.kind())
    };
    let small = FileSpec::new(1);
    assert_eq!(kind(&mut builder, "a/b", &small), None);
    assert_eq!(kind(&mut builder, "a/b", &small), Some(ErrorKind::Exists));
    assert_eq!(kind(&mut builder, "a", &small), Some(ErrorKind::Exists));
    assert_eq!(kind(&mut builder, "a/b/c", &small), Some(ErrorKind::NotDir));
    assert_eq!(kind(&mut builder, "a/..", &small), Some(ErrorKind::Invalid));
    assert_eq!(kind(&mut builder, "", &small), Some(ErrorKind::Invalid));
    let long = "x".repeat(256);
    assert_eq!(kind(&mut builder, &long, &small), Some(ErrorKind::NameTooLong));
    let odd = FileSpec { recordsize: 1000, ..small.clone() };
    assert_eq!(kind(&mut builder, "odd", &odd), Some(ErrorKind::Invalid));
    // More than fits: an error now or in the end, and no pool.
    let huge = FileSpec { compression: Compression::Off, ..FileSpec::new(400 << 20) };
    let now = kind(&mut builder, "huge", &huge);
    let end = builder.finish().err().map(|e| e.kind());
    assert!(now == Some(ErrorKind::NoSpace) || end == Some(ErrorKind::NoSpace), "{now:?} {end:?}");
    assert!(end.is_some());
    let engine = Engine::new(EngineConfig::default()).unwrap();
    let search = Search { paths: vec![scratch.path().to_owned()], ..Search::default() };
    assert!(engine.discover(&search).unwrap().pools.is_empty());
}

#[test]
fn an_empty_pool() {
    let name = "synthempty";
    let scratch = Scratch::new(name);
    let spec = PoolSpec::new(name, 64 << 20);
    Builder::create(&scratch.path().join("disk"), &spec).unwrap().finish().unwrap();
    judge(scratch.path(), name, &TreeModel::default());
}
