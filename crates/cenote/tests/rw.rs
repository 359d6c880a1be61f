//! Golden pools that OpenZFS wrote are imported for writing, changed, exported, read
//! again; and OpenZFS's zdb is content with what is left.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(clippy::disallowed_methods, reason = "zdb runs as a process")]

use std::path::Path;
use std::process::Command;

use cenote::inspect::dmu::{ObjectSpec, ObjsetProps};
use cenote::inspect::ondisk::ObjType;
use cenote::{ErrorKind, ImportOptions, Pool, PoolState};
use testkit::{Scratch, discover, engine, golden_pools, import_from, readonly};

/// zdb 2.3.2 aborts on these (`block_cloning_endian`).
const ZDB_ABORTS: [&str; 2] = ["clonedblk", "expanded"];

fn writing() -> ImportOptions {
    ImportOptions { force: true, ..ImportOptions::default() }
}

fn zdb(dir: &Path, pool: &str) {
    if ZDB_ABORTS.contains(&pool) {
        return;
    }
    let run = Command::new("zdb").args(["-e", "-p"]).arg(dir).args(["-bcc", pool]).output();
    let Ok(out) = run else {
        eprintln!("SKIPPED: zdb is not installed");
        return;
    };
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("No leaks"), "{pool}: {text}");
}

/// Adds objects to a writable file system and frees one again.
fn change(pool: &Pool) -> bool {
    let writer = pool.writer().unwrap();
    let head = pool.spa().root_dir().unwrap().head().unwrap().unwrap();
    let Ok(os) = writer.open_head(head.object(), ObjsetProps::default()) else { return false };
    let spec =
        ObjectSpec { object_type: ObjType(25), block_size: 16 << 10, ..ObjectSpec::default() };
    let mut last = None;
    for round in 0..3u8 {
        let tx = match writer.begin_wait(1 << 20, false) {
            // A pool that is as full as it may be.
            Err(e) if e.kind() == ErrorKind::NoSpace => return false,
            tx => tx.unwrap(),
        };
        let id = os.allocate(&tx, &spec).unwrap();
        os.write(&tx, id, 12_345, &vec![round + 1; 200_000]).unwrap();
        if let Some(old) = last.replace(id) {
            os.free_object(&tx, old).unwrap();
        }
        drop(tx);
        writer.sync().unwrap();
    }
    let tx = writer.begin_wait(1 << 20, true).unwrap();
    os.free_object(&tx, last.unwrap()).unwrap();
    drop(tx);
    writer.sync().unwrap();
    true
}

#[test]
fn golden_pools_are_written() {
    let (mut written, mut refused) = (Vec::new(), Vec::new());
    for golden in golden_pools() {
        let scratch = Scratch::new(&format!("rw-{}", golden.name));
        golden.unpack(scratch.path());
        let engine = engine();
        let pool = match import_from(&engine, scratch.path(), &writing()) {
            Ok(pool) => pool,
            Err(e) => panic!("{}: {e}", golden.name),
        };
        let name = pool.name().to_owned();
        if let Some(why) = pool.read_only_because() {
            refused.push(format!("{name}: {why}"));
            continue;
        }
        let changed = change(&pool);
        pool.export().unwrap_or_else(|e| panic!("{name}: {e}"));
        drop(pool);
        let found = discover(&engine, scratch.path());
        assert_eq!(found[0].state, PoolState::Exported, "{name}");
        let pool = import_from(&engine, scratch.path(), &readonly()).unwrap();
        // What its log holds is replayed some other day.
        let manifests = if name == "dirtyzil" { Vec::new() } else { golden.manifests() };
        for (dataset, manifest) in manifests {
            let Ok(fs) = pool.dataset(&dataset).unwrap().open_fs() else { continue };
            let differences = testkit::verify(&fs, &manifest, true);
            assert!(differences.is_empty(), "{dataset}: {differences:#?}");
        }
        let report = pool.spa().audit(Default::default(), &()).unwrap();
        assert!(report.is_clean(), "{name}: {:?}", report.problems);
        drop(pool);
        zdb(scratch.path(), &name);
        written.push(format!("{name} (changed: {changed})"));
    }
    println!("written: {written:#?}\nread only: {refused:#?}");
    assert!(written.len() > 5, "{written:?}");
}
