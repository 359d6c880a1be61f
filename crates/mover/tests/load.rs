//! Blocks move while others write, read, take snapshots and destroy them.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use cenote::inspect::zpl::rw::{Caller, New, WritePosition};
use cenote::{FileSystem, Io, Pool, ScanRequest, ScanState};
use common::history::{MoverShape, NAME};
use common::*;
use mover::{MoveLimits, empty_metaslab};
use testkit::{Rng, Scratch, side_by_side};

const LIMITS: MoveLimits = MoveLimits { batch_bytes: 4 << 20, batch_blocks: 512 };
const WRITERS: u64 = 3;
/// Most steps of a writer.
const STEPS: usize = 400;
/// Snapshots that are taken.
const SNAPSHOTS: usize = 12;
/// Bytes of a file.
const FILE: usize = 1 << 20;

fn read(fs: &Arc<FileSystem>, name: &str) -> Vec<u8> {
    let id = fs.lookup(fs.root(), name.as_bytes(), Io::WAIT).unwrap().id;
    let file = fs.open_file(id, Io::WAIT).unwrap();
    let mut out = vec![0; FILE + 1];
    let n = file.read_at(0, &mut out, Io::WAIT).unwrap();
    out.truncate(n);
    out
}

/// Writes random parts of files of its own, and reads them back.
fn write_and_check(pool: &Pool, who: u64, end: &AtomicBool) -> BTreeMap<String, Vec<u8>> {
    let fs = pool.dataset(NAME).unwrap().open_fs().unwrap();
    let (mut rng, mut files) = (Rng::new(who), BTreeMap::new());
    let mut steps = 0;
    while steps < 30 || steps < STEPS && !end.load(Relaxed) {
        steps += 1;
        let name = format!("w{who}-{}", rng.below(4));
        let data = files.entry(name.clone()).or_insert_with(|| vec![0; FILE]);
        let root = fs.root();
        let id = match fs.lookup(root, name.as_bytes(), Io::WAIT) {
            Ok(node) => node.id,
            Err(_) => {
                let new = New::file(0o644);
                let id = fs.make(&Caller::root(), root, name.as_bytes(), &new).unwrap().id;
                fs.write(&Caller::root(), id, WritePosition::Offset(0), data).unwrap();
                id
            }
        };
        let at = rng.index(FILE);
        let len = (FILE - at).min(1 + rng.index(200_000));
        let mut word = rng.number();
        for byte in &mut data[at..at + len] {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (word >> 40) as u8;
        }
        let part = data[at..at + len].to_vec();
        fs.write(&Caller::root(), id, WritePosition::Offset(at as u64), &part).unwrap();
        assert!(read(&fs, &name) == *data, "{name} differs");
    }
    files
}

fn under_load(shape: &MoverShape) {
    let scratch = Scratch::new(&format!("mover-load-{}", shape.name()));
    let dir = scratch.path();
    let pool = shape.make(dir);
    let (end, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    let all: BTreeMap<String, Vec<u8>> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|who| {
                let (pool, end) = (&pool, &end);
                scope.spawn(move || write_and_check(pool, who, end))
            })
            .collect();
        let lineage = scope.spawn(|| {
            let (w, mut taken) = (pool.writer().unwrap(), Vec::new());
            for n in 0..SNAPSHOTS {
                let name = format!("{NAME}@s{n}");
                w.snapshot(std::slice::from_ref(&name), &[], None).unwrap();
                taken.push(name);
                // A reader of a snapshot whose blocks move.
                let of = pool.dataset(&taken[0]).unwrap().open_fs().unwrap();
                if of.lookup(of.root(), b"w0-0", Io::WAIT).is_ok() {
                    let (once, again) = (read(&of, "w0-0"), read(&of, "w0-0"));
                    assert!(once == again);
                }
                drop(of);
                if taken.len() > 4 {
                    let gone = taken.remove(n % 4);
                    w.destroy_snapshots(&[gone], false, None).unwrap();
                }
            }
        });
        let w = pool.writer().unwrap();
        while moved.load(Relaxed) < 100 {
            for key in full_metaslabs(w).into_iter().take(2) {
                let done = empty_metaslab(w, key, &LIMITS).unwrap();
                moved.fetch_add(done.moved, Relaxed);
            }
        }
        end.store(true, Relaxed);
        lineage.join().unwrap();
        writers.into_iter().flat_map(|w| w.join().unwrap()).collect()
    });
    rules(&pool);
    let fs = pool.dataset(NAME).unwrap().open_fs().unwrap();
    for (name, data) in &all {
        assert!(read(&fs, name) == *data, "{shape:?}: {name} differs");
    }
    drop(fs);
    pool.scan(ScanRequest::Scrub, None).unwrap();
    let over = || pool.status().unwrap().scan.is_some_and(|s| s.state == ScanState::Finished);
    testkit::eventually("the scrub ends", over);
    let scan = pool.status().unwrap().scan.unwrap();
    assert_eq!((scan.errors, scan.processed), (0, 0), "{shape:?}");
    println!("LOAD {shape:?}: {} blocks moved", moved.load(Relaxed));
    pool.export().unwrap();
    drop(pool);
    whole(dir, &format!("{shape:?}"));
    zdb(dir, NAME);
    let pool = import(dir);
    assert!(destroy_all(&pool, &mut Rng::new(3)));
    pool.export().unwrap();
    drop(pool);
    whole(dir, "emptied");
}

#[test]
fn writers_see_nothing_of_it() {
    let shapes = [
        MoverShape { kind: "mirror", disks: 2, ashift: 12 },
        MoverShape { kind: "raidz1", disks: 3, ashift: 9 },
    ];
    side_by_side(&shapes, under_load);
}
