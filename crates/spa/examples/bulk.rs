//! A quick look at the engine's write speed: `bulk FILE MiB WHAT [THREADS]` makes a pool
//! in FILE (which must be large enough) and writes to it.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use base::Txg;
use device::{Device, Engine, EngineKind, FileDevice, OpenOptions};
use dmu::{ObjectSpec, ObjsetProps};
use ondisk::ObjType;
use ondisk::objset::ObjsetType;
use spa::engine::create::{CreateSpec, create};
use spa::engine::{Writer, WriterOptions};
use spa::write::topology::{BuildOptions, LeafFacts, NewKind, NewVdev, build};

fn make(files: &[PathBuf], raidz: u32) -> Arc<Writer> {
    let engine = Engine::new(EngineKind::Auto, 64).unwrap();
    let options = OpenOptions { write: true, engine: Some(engine), ..OpenOptions::default() };
    let open: BTreeMap<PathBuf, Arc<dyn Device>> = files
        .iter()
        .map(|p| (p.clone(), Arc::new(FileDevice::open(p, &options).unwrap()) as Arc<dyn Device>))
        .collect();
    let facts = |p: &Path| Ok(LeafFacts::of(&*open[p], false));
    let leaves: Vec<NewVdev> =
        files.iter().map(|p| NewVdev::new(NewKind::File(p.clone()))).collect();
    let vdevs = match raidz {
        0 => leaves,
        n => vec![NewVdev::new(NewKind::Raidz { nparity: n as u8 as _ }).with_children(leaves)],
    };
    let options = BuildOptions { create_txg: Txg(4), ashift: Some(12), ..BuildOptions::default() };
    let built = build(&vdevs, options, [], &facts).unwrap();
    let mut devices = BTreeMap::new();
    for (top, _) in &built.tops {
        for leaf in top.leaves() {
            let path = PathBuf::from(leaf.path.as_ref().unwrap().to_str().unwrap());
            devices.insert(leaf.guid, Arc::clone(&open[&path]));
        }
    }
    let spec = CreateSpec {
        name: "bulk".into(),
        version: ondisk::uberblock::VERSION_FEATURES,
        tops: built.tops,
        devices,
        features: dsl::write::features::maintained().collect(),
        pool_props: Vec::new(),
        root_props: Vec::new(),
        comment: None,
        compatibility: None,
        hostid: 0,
        hostname: None,
        root: Box::new(|_, _| Ok(())),
        root_kind: ObjsetType::Zfs,
        options: WriterOptions {
            limits: Some(txg::Limits::for_memory(24 << 30)),
            ..WriterOptions::default()
        },
    };
    create(spec, &Arc::new(zio::BlockCache::of(1 << 30).unwrap())).unwrap()
}

fn noise(seed: u64, out: &mut [u8], compressible: bool) {
    let mut x = seed | 1;
    for (i, chunk) in out.chunks_exact_mut(8).enumerate() {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let word = if compressible && i % 4 != 0 { i as u64 / 64 } else { x };
        chunk.copy_from_slice(&word.to_le_bytes());
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let files: Vec<PathBuf> = args[1].split(',').map(PathBuf::from).collect();
    let mib: u64 = args[2].parse().unwrap();
    let what = args[3].as_str();
    let threads: usize = args.get(4).map_or(1, |t| t.parse().unwrap());
    let raidz = args.get(5).map_or(0, |t| t.parse().unwrap());
    let w = make(&files, raidz);
    let root = dsl::DslDir::root(w.mos(), "bulk").unwrap().head().unwrap().unwrap();
    let os = w.open_head(root.object(), ObjsetProps::default()).unwrap();
    let record = if what == "random" { 8 << 10 } else { 128 << 10 };
    let spec = ObjectSpec {
        object_type: ObjType::PLAIN_FILE_CONTENTS,
        block_size: record,
        ..ObjectSpec::default()
    };
    let tx = w.begin(0, false).unwrap();
    let id = os.allocate(&tx, &spec).unwrap();
    drop(tx);
    let blocks = (mib << 20) / u64::from(record);
    let mut patterns = vec![vec![0u8; record as usize]; 64];
    for (i, p) in patterns.iter_mut().enumerate() {
        noise(i as u64 * 77 + 5, p, what == "lz4");
    }
    let run = |random: bool, rounds: u64| {
        let began = Instant::now();
        std::thread::scope(|s| {
            for t in 0..threads as u64 {
                let (w, os, patterns) = (&w, &os, &patterns);
                s.spawn(move || {
                    let mut x = t * 7919 + 13;
                    for i in (t..rounds).step_by(threads) {
                        x ^= x << 13;
                        x ^= x >> 7;
                        x ^= x << 17;
                        let at = if random { x % blocks } else { i };
                        let tx = w.begin_wait(u64::from(record), false).unwrap();
                        let data = &patterns[(i % 64) as usize];
                        os.write(&tx, id, at * u64::from(record), data).unwrap();
                    }
                });
            }
        });
        let written = began.elapsed();
        w.sync().unwrap();
        (written, began.elapsed())
    };
    let (written, all) = run(false, blocks);
    let rate = |n: u64, t: std::time::Duration| n as f64 / t.as_secs_f64();
    println!("sequential: {:.0} MiB/s ({written:?} + sync = {all:?})", rate(mib, all));
    for _ in 0..3 {
        let n = if what == "random" { 400_000 } else { blocks };
        let (_, all) = run(what == "random", n);
        println!(
            "again: {:.0} writes/s {:.0} MiB/s",
            rate(n, all),
            rate((n * u64::from(record)) >> 20, all)
        );
    }
    w.stop();
}
