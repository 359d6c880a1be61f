//! The engine makes a pool, writes it, and OpenZFS's zdb finds it whole.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use base::{ObjectId, Txg};
use device::{Device, Engine, EngineKind, FileDevice, OpenOptions};
use dmu::ObjectSpec;
use ondisk::ObjType;
use ondisk::objset::ObjsetType;
use spa::engine::create::{CreateSpec, create};
use spa::engine::{Writer, WriterOptions};
use spa::write::topology::{BuildOptions, LeafFacts, NewKind, NewVdev, build};

struct Disks {
    dir: PathBuf,
    paths: Vec<PathBuf>,
}

fn disks(name: &str, n: usize, size: u64) -> Disks {
    let dir = std::env::temp_dir().join(format!("cenote-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let paths: Vec<PathBuf> = (0..n).map(|i| dir.join(format!("d{i}"))).collect();
    for p in &paths {
        std::fs::File::create(p).unwrap().set_len(size).unwrap();
    }
    Disks { dir, paths }
}

fn make(disks: &Disks, name: &str, vdevs: &[NewVdev], features: bool) -> Arc<Writer> {
    let engine = Engine::new(EngineKind::Threads, 8).unwrap();
    let mut open: BTreeMap<PathBuf, Arc<dyn Device>> = BTreeMap::new();
    let options = OpenOptions { write: true, engine: Some(engine), ..OpenOptions::default() };
    for p in &disks.paths {
        let d = FileDevice::open(p, &options).unwrap();
        open.insert(p.clone(), Arc::new(d));
    }
    let facts = |p: &Path| Ok(LeafFacts::of(&*open[p], false));
    let options = BuildOptions { create_txg: Txg(4), ..BuildOptions::default() };
    let built = build(vdevs, options, [], &facts).unwrap();
    let mut devices = BTreeMap::new();
    for (top, _) in &built.tops {
        for leaf in top.leaves() {
            let path = PathBuf::from(leaf.path.as_ref().unwrap().to_str().unwrap());
            devices.insert(leaf.guid, Arc::clone(&open[&path]));
        }
    }
    let features = if features { dsl::write::features::maintained().collect() } else { vec![] };
    let cache = Arc::new(zio::BlockCache::of(64 << 20).unwrap());
    create(
        CreateSpec {
            name: name.into(),
            tops: built.tops,
            devices,
            features,
            pool_props: Vec::new(),
            root_props: Vec::new(),
            comment: None,
            compatibility: None,
            hostid: 0,
            hostname: None,
            root: Box::new(|_, _| Ok(())),
            root_kind: ObjsetType::Zfs,
            options: WriterOptions::default(),
        },
        &cache,
    )
    .unwrap()
}

fn zdb(disks: &Disks, pool: &str) {
    if Command::new("zdb").arg("-?").output().is_err() {
        eprintln!("SKIPPED: zdb is not installed");
        return;
    }
    let out = Command::new("zdb").args(["-e", "-p"]).arg(&disks.dir).args(["-bcc", pool]).output();
    let out = out.unwrap();
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("No leaks"), "{text}");
}

fn file(i: usize, disks: &Disks) -> NewVdev {
    NewVdev::new(NewKind::File(disks.paths[i].clone()))
}

#[test]
fn a_new_pool_is_whole() {
    let d = disks("new", 1, 256 << 20);
    let w = make(&d, "fresh", &[file(0, &d)], true);
    w.stop();
    drop(w);
    zdb(&d, "fresh");
    std::fs::remove_dir_all(&d.dir).unwrap();
}

#[test]
fn a_new_pool_without_features_is_whole() {
    let d = disks("plain", 1, 256 << 20);
    let w = make(&d, "plain", &[file(0, &d)], false);
    w.stop();
    drop(w);
    zdb(&d, "plain");
    std::fs::remove_dir_all(&d.dir).unwrap();
}

#[test]
fn objects_come_change_and_go() {
    let d = disks("objects", 1, 256 << 20);
    let w = make(&d, "objects", &[file(0, &d)], true);
    let root = dsl::DslDir::root(w.mos(), "objects").unwrap().head().unwrap().unwrap();
    let os = w.open_head(root.object(), dmu::ObjsetProps::default()).unwrap();
    let spec = ObjectSpec {
        object_type: ObjType::PLAIN_FILE_CONTENTS,
        block_size: 128 << 10,
        ..ObjectSpec::default()
    };
    let mut ids: Vec<ObjectId> = Vec::new();
    for round in 0..6u8 {
        let tx = w.begin(4 << 20, false).unwrap();
        let id = os.allocate(&tx, &spec).unwrap();
        let data: Vec<u8> = (0..1_000_000u32).map(|i| (i / 7) as u8 ^ round).collect();
        os.write(&tx, id, u64::from(round) * 50_000, &data).unwrap();
        if round == 3 {
            os.free_object(&tx, ids[0]).unwrap();
            os.free_range(&tx, ids[1], 200_000, 300_000).unwrap();
        }
        ids.push(id);
        drop(tx);
        w.sync().unwrap();
    }
    let mut out = vec![0; 1_000_000];
    let object = os.object(ids[5], dmu::Io::WAIT).unwrap();
    object.read_into(250_000, &mut out, dmu::Io::WAIT).unwrap();
    assert!(out.iter().enumerate().all(|(i, &b)| b == (i as u32 / 7) as u8 ^ 5));
    w.stop();
    drop((os, root));
    drop(w);
    zdb(&d, "objects");
    std::fs::remove_dir_all(&d.dir).unwrap();
}
