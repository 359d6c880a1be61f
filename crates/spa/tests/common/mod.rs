//! Pools with only the writer, in files of the temporary directory.
#![allow(dead_code, unreachable_pub, clippy::disallowed_methods, clippy::unwrap_used, missing_docs)]

pub mod pools;
pub mod scans;
pub mod shapes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use base::Txg;
use device::{Device, Engine, EngineKind, FileDevice, OpenOptions};
use spa::engine::Writer;
use spa::engine::create::{CreateSpec, create};
use spa::write::topology::{BuildOptions, LeafFacts, NewKind, NewVdev, build};

pub struct FileDisks {
    pub dir: PathBuf,
    pub paths: Vec<PathBuf>,
}

pub fn disks(name: &str, n: usize, size: u64) -> FileDisks {
    let dir = std::env::temp_dir().join(format!("cenote-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let paths: Vec<PathBuf> = (0..n).map(|i| dir.join(format!("d{i}"))).collect();
    for p in &paths {
        std::fs::File::create(p).unwrap().set_len(size).unwrap();
    }
    FileDisks { dir, paths }
}

pub fn make(disks: &FileDisks, name: &str, vdevs: &[NewVdev], features: bool) -> Arc<Writer> {
    make_with(disks, name, vdevs, features, None)
}

pub fn make_with(
    disks: &FileDisks,
    name: &str,
    vdevs: &[NewVdev],
    features: bool,
    ashift: Option<u32>,
) -> Arc<Writer> {
    make_on(disks, name, vdevs, features, ashift, &|device| device)
}

/// As [`make_with`], on devices that `wrap` puts around the files.
pub fn make_on(
    disks: &FileDisks,
    name: &str,
    vdevs: &[NewVdev],
    features: bool,
    ashift: Option<u32>,
    wrap: &dyn Fn(Arc<dyn Device>) -> Arc<dyn Device>,
) -> Arc<Writer> {
    let engine = Engine::new(EngineKind::Threads, 8).unwrap();
    let mut open: BTreeMap<PathBuf, Arc<dyn Device>> = BTreeMap::new();
    let options = OpenOptions { write: true, engine: Some(engine), ..OpenOptions::default() };
    for p in &disks.paths {
        let d = FileDevice::open(p, &options).unwrap();
        open.insert(p.clone(), wrap(Arc::new(d)));
    }
    let facts = |p: &Path| Ok(LeafFacts::of(&*open[p], false));
    let options = BuildOptions { create_txg: Txg(4), ashift, ..BuildOptions::default() };
    let built = build(vdevs, options, [], &facts).unwrap();
    let mut devices = BTreeMap::new();
    for (top, _) in &built.tops {
        for leaf in top.leaves() {
            let path = PathBuf::from(leaf.path.as_ref().unwrap().to_str().unwrap());
            devices.insert(leaf.guid, Arc::clone(&open[&path]));
        }
    }
    let cache = Arc::new(zio::BlockCache::of(64 << 20).unwrap());
    let mut spec = CreateSpec::new(name, built.tops, devices);
    if !features {
        spec.features.clear();
    }
    if let Some(ashift) = ashift {
        spec.options.max_ashift = ashift;
    }
    create(spec, &cache).unwrap()
}

pub fn zdb(disks: &FileDisks, pool: &str) {
    if Command::new("zdb").arg("-?").output().is_err() {
        testkit::skip(testkit::Need::Zdb, "zdb is not installed");
        return;
    }
    let out = Command::new("zdb").args(["-e", "-p"]).arg(&disks.dir).args(["-bcc", pool]).output();
    let out = out.unwrap();
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("No leaks"), "{text}");
}

pub fn file(i: usize, disks: &FileDisks) -> NewVdev {
    NewVdev::new(NewKind::File(disks.paths[i].clone()))
}

pub fn head_of(w: &Arc<Writer>, pool: &str) -> Arc<dmu::Objset> {
    let root = dsl::DslDir::root(w.mos(), pool).unwrap().head().unwrap().unwrap();
    w.open_head(root.object(), dmu::ObjsetProps::default()).unwrap()
}

/// Adds a file as a top-level vdev.
pub fn add_file(w: &Arc<Writer>, disks: &FileDisks, name: &str, size: u64) {
    let path = disks.dir.join(name);
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    let options = OpenOptions { write: true, ..OpenOptions::default() };
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, &options).unwrap());
    let facts = |_: &Path| Ok(LeafFacts::of(&*device, false));
    let config = w.published().config;
    let next = config.vdev_tree.children.len() as u32;
    let options =
        BuildOptions { create_txg: w.published().uberblock.txg, first_id: next, ashift: None };
    let new = NewVdev::new(NewKind::File(path.clone()));
    let built = build(&[new], options, [], &facts).unwrap();
    let guid = built.tops[0].0.guid;
    w.add_vdevs(built, BTreeMap::from([(guid, Arc::clone(&device))]), None).unwrap();
}
