//! Every golden pool reads as its manifest says.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use cenote::{Engine, EngineConfig, ImportOptions, Pool, Search};
use std::path::Path;
use std::sync::Arc;
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
    let mut differences = Vec::new();
    let mut verified = 0;
    for (name, manifest) in golden.manifests() {
        let dataset = pool.dataset(&name).unwrap();
        if dataset.is_locked() {
            assert_eq!(dataset.open_fs().err().unwrap().kind(), cenote::ErrorKind::Locked);
            continue;
        }
        // Read-only, the intent log stays unreplayed.
        if golden.name == "dirtyzil" {
            continue;
        }
        let fs = dataset.open_fs().unwrap();
        let found = verify(&fs, &manifest, true);
        differences.extend(found.into_iter().map(|d| format!("{name}: {d}")));
        verified += manifest.len();
    }
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
