//! The engine creates and writes a pool, and OpenZFS's zdb finds no error.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use std::sync::Arc;

use base::ObjectId;
use common::*;
use dmu::ObjectSpec;
use ondisk::ObjType;
use spa::engine::Writer;
use spa::write::topology::{NewKind, NewVdev};

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
        let tx = w.begin_wait(4 << 20, false).unwrap();
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

/// Writes a megabyte in each of the blocks until the pool is full; then frees all of it.
fn fill_and_empty(w: &Arc<Writer>, os: &Arc<dmu::Objset>) -> usize {
    let spec = ObjectSpec {
        object_type: ObjType::PLAIN_FILE_CONTENTS,
        block_size: 128 << 10,
        ..ObjectSpec::default()
    };
    let mut ids = Vec::new();
    let data: Vec<u8> =
        (0..1u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let full = loop {
        let tx = match w.begin_wait(1 << 20, false) {
            Ok(tx) => tx,
            Err(e) => break e,
        };
        let id = os.allocate(&tx, &spec).unwrap();
        os.write(&tx, id, 0, &data).unwrap();
        ids.push(id);
        assert!(ids.len() < 100_000);
    };
    assert_eq!(full.kind(), base::ErrorKind::NoSpace, "{full}");
    w.sync().unwrap();
    for id in &ids {
        let tx = w.begin_wait(0, true).unwrap();
        os.free_object(&tx, *id).unwrap();
    }
    w.sync().unwrap();
    ids.len()
}

/// Story: hints kept referring to blocks of dnodes of earlier txgs. After some hundred txgs
/// a new space map got the object id of one in use, and the pool stopped with "no such
/// object". Only a pool that fills up showed it.
#[test]
fn a_full_pool_can_be_emptied() {
    let d = disks("full", 1, 200 << 20);
    let w = make(&d, "full", &[file(0, &d)], true);
    let os = head_of(&w, "full");
    let before = w.allocatable(false);
    let first = fill_and_empty(&w, &os);
    let again = fill_and_empty(&w, &os);
    println!("{first} and {again} MiB");
    assert!(first > 20 && again + 4 > first, "{first} {again}");
    for _ in 0..4 {
        w.sync().unwrap();
    }
    assert!(w.allocatable(false) + (4 << 20) > before);
    w.stop();
    drop((os, w));
    zdb(&d, "full");
    std::fs::remove_dir_all(&d.dir).unwrap();
}

#[test]
fn every_kind_of_vdev_is_written() {
    let raidz = |n, from, to, d: &FileDisks| {
        NewVdev::new(NewKind::Raidz { nparity: n })
            .with_children((from..to).map(|i| file(i, d)).collect())
    };
    let mirror = |from, to, d: &FileDisks| {
        NewVdev::new(NewKind::Mirror).with_children((from..to).map(|i| file(i, d)).collect())
    };
    let draid = |d: &FileDisks| {
        NewVdev::new(NewKind::Draid { nparity: 1, ndata: Some(3), nspares: 1 })
            .with_children((0..6).map(|i| file(i, d)).collect())
    };
    type Shape<'a> = (&'a str, usize, &'a dyn Fn(&FileDisks) -> Vec<NewVdev>);
    let shapes: [Shape<'_>; 7] = [
        ("stripe", 3, &|d| (0..3).map(|i| file(i, d)).collect()),
        ("mirror", 2, &|d| vec![mirror(0, 2, d)]),
        ("mirrors", 4, &|d| vec![mirror(0, 2, d), mirror(2, 4, d)]),
        ("raidz1", 3, &|d| vec![raidz(1, 0, 3, d)]),
        ("raidz2", 5, &|d| vec![raidz(2, 0, 5, d)]),
        ("raidz3", 8, &|d| vec![raidz(3, 0, 8, d)]),
        ("draid1", 6, &|d| vec![draid(d)]),
    ];
    for (name, n, shape) in shapes {
        let d = disks(name, n, 160 << 20);
        let w = make(&d, name, &shape(&d), true);
        let os = head_of(&w, name);
        let spec = ObjectSpec {
            object_type: ObjType::PLAIN_FILE_CONTENTS,
            block_size: 64 << 10,
            ..ObjectSpec::default()
        };
        for round in 0..3u64 {
            let tx = w.begin_wait(2 << 20, false).unwrap();
            for file in 0..8u64 {
                let id = os.allocate(&tx, &spec).unwrap();
                let data: Vec<u8> =
                    (0..300_000u64).map(|i| (i * i * (file + 3) + round) as u8).collect();
                os.write(&tx, id, file * 9999, &data).unwrap();
            }
            drop(tx);
            w.sync().unwrap();
        }
        w.export(ondisk::config::PoolState::Exported).unwrap();
        drop((os, w));
        zdb(&d, name);
        std::fs::remove_dir_all(&d.dir).unwrap();
    }
}
