//! Audits of the golden pools: none has a problem, all counts are those of zdb, and one
//! flipped bit is one finding.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use base::rt::Mutex;

use base::{Error, Result, Txg};
use cenote::{Engine, EngineConfig, ImportOptions, Pool, Search};
use dmu::traverse::{Bookmark, Flow, Options as WalkOptions, Visitor, traverse};
use ondisk::blkptr::Block;
use ondisk::{BlkPtr, ObjType};
use spa::audit::{AuditOptions, Problem, Verify};
use testkit::{Need, Scratch, golden, golden_pools, skip};

fn open(dir: &Path) -> Arc<Pool> {
    let config = EngineConfig { cache_bytes: Some(64 << 20), ..EngineConfig::default() };
    let engine = Engine::new(config).unwrap();
    let search = Search { paths: vec![dir.to_owned()], ..Search::default() };
    let found = engine.discover(&search).unwrap();
    assert_eq!(found.pools.len(), 1, "{:?}", found.pools);
    engine.inspect(&found.pools[0], &ImportOptions::default()).unwrap()
}

const ALL: AuditOptions = AuditOptions { verify: Verify::All, leaks: true, threads: 32 };

/// The counts of zdb: blocks, logical, physical and allocated bytes, deduped bytes. `None`
/// where it is not installed or cannot walk the pool.
fn zdb_counts(dir: &Path, name: &str) -> Option<[u64; 5]> {
    let run = Command::new("zdb").args(["-e", "-p"]).arg(dir).args(["-b", name]).output();
    let Ok(run) = run else {
        skip(Need::Zdb, &format!("counts of {name}: zdb is not installed"));
        return None;
    };
    let out = run.status.success().then_some(run)?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let number = |key: &str| {
        let line = text.lines().find_map(|l| l.trim().strip_prefix(key))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some([
        number("bp count:")?,
        number("bp logical:")?,
        number("bp physical:")?,
        number("bp allocated:")?,
        number("bp deduped:")?,
    ])
}

#[test]
fn golden_pools_are_clean_and_counted_as_zdb_counts_them() {
    let mut compared = 0;
    for golden in golden_pools() {
        let scratch = Scratch::new(&golden.name);
        golden.unpack(scratch.path());
        let report = open(scratch.path()).spa().audit(ALL, &()).unwrap();
        if golden.name == "errlog" {
            // Files in it are damaged, as its error log says; nothing else is.
            let unreadable = |p: &_| matches!(p, Problem::Unreadable { .. });
            assert!(!report.is_clean() && report.problems.iter().all(unreadable));
            continue;
        }
        assert!(report.is_clean(), "{}: {:?}", golden.name, report.problems);
        assert_eq!((report.leaked, report.bad_claims), (0, 0), "{}", golden.name);
        println!("AUDITED {}: clean", golden.name);
        let t = report.stats.total();
        let ours = [t.count, t.lsize, t.psize, t.asize, report.stats.dedup_asize];
        match zdb_counts(scratch.path(), &golden.name) {
            Some(theirs) => {
                compared += 1;
                assert_eq!(ours, theirs, "{}", golden.name);
            }
            None => println!("zdb does not count {}; Cenote: {ours:?}", golden.name),
        }
    }
    println!("COMPARED with zdb: {compared} pools");
}

/// Finds data blocks of files that have one address.
struct Find(Mutex<Vec<(Bookmark, Block)>>);

impl Visitor for Find {
    fn visit(&self, bp: &BlkPtr, at: Bookmark) -> Result<Flow> {
        if let BlkPtr::Block(b) = bp
            && b.head.level == 0
            && b.head.object_type == ObjType::PLAIN_FILE_CONTENTS
            && b.dvas().len() == 1
            && b.dva().vdev.0 == 0
        {
            self.0.lock().push((at, *b));
        }
        Ok(Flow::Descend)
    }

    fn unreadable(&self, error: Error, _at: Bookmark) -> Result<()> {
        Err(error)
    }
}

fn data_blocks(pool: &Pool) -> Vec<(Bookmark, Block)> {
    let head = pool.spa().root_dir().unwrap().head().unwrap().unwrap();
    let find = Find(Mutex::new(Vec::new()));
    let how = WalkOptions { min_txg: Txg::ZERO, ..WalkOptions::default() };
    traverse(pool.spa().zio(), head.object(), &head.phys().bp, &find, how).unwrap();
    let mut found = find.0.into_inner();
    found.sort_by_key(|(at, _)| *at);
    found
}

fn flip(disk: &PathBuf, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().read(true).write(true).open(disk).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

#[test]
fn a_flipped_bit_is_one_unreadable_block_or_one_damaged_copy() {
    for name in ["basic", "twomirrors"] {
        let Some(golden) = golden(name) else { continue };
        let scratch = Scratch::new(name);
        let disks = golden.unpack(scratch.path());
        let (at, block) = {
            let blocks = data_blocks(&open(scratch.path()));
            blocks[blocks.len() / 2]
        };
        // The first vdev's first disk; its data begins behind the labels.
        flip(&disks[0], (4 << 20) + block.dva().offset + 100);
        let report = open(scratch.path()).spa().audit(ALL, &()).unwrap();
        assert_eq!((report.leaked, report.bad_claims), (0, 0));
        if name == "basic" {
            assert_eq!(report.unreadable, 1);
            assert!(!report.is_clean());
            let [Problem::Unreadable { at: found, .. }] = &report.problems[..] else {
                panic!("{:?}", report.problems)
            };
            assert_eq!(*found, at);
            assert_eq!(report.errnos, [(52, 1)]);
        } else {
            assert_eq!((report.unreadable, report.damaged), (0, 1));
        }
        // Without verification of data the damage is not detected.
        let blind = AuditOptions { verify: Verify::Metadata, ..ALL };
        assert!(open(scratch.path()).spa().audit(blind, &()).unwrap().is_clean());
    }
}
