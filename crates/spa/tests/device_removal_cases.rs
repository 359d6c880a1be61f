//! Removals of data vdevs in pools that are not ordinary: special and dedup vdevs, gang blocks,
//! and a pool that fills up meanwhile. OpenZFS's zdb finds no error.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, missing_docs)]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{ErrorKind, Guid, VdevId};
use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting, Role};
use cenote::inspect::zpl::rw::{Caller, New, WritePosition};
use cenote::{Pool, PropData, RemovalTuning, ScanRequest, ScanState};
use common::pools::{ModelFiles, NAME, import, verify, whole, zdb};
use spa::engine::Writer;
use testkit::{Rng, Scratch};

/// Small steps and segments, so that there are many.
const SMALL: RemovalTuning =
    RemovalTuning { segment: 64 << 10, limit: 1 << 20, ignore_errors: false };

/// A pool of single disks (1) and mirrors, with their roles.
fn make(dir: &Path, tops: &[(usize, Role)], ashift: u64, size: u64) -> Arc<Pool> {
    let mut next = 0;
    let mut file = || {
        let path = dir.join(format!("disk{next}"));
        std::fs::File::create(&path).unwrap().set_len(size).unwrap();
        next += 1;
        NewVdev::new(NewKind::File(path))
    };
    let mut vdevs = Vec::new();
    for (disks, role) in tops {
        let vdev = match disks {
            1 => file(),
            n => NewVdev::new(NewKind::Mirror).with_children((0..*n).map(|_| file()).collect()),
        };
        vdevs.push(vdev.for_role(*role));
    }
    let request = CreateRequest {
        force: Force::ALL,
        settings: vec![PoolSetting::Stored("ashift", ashift)],
        ..CreateRequest::new(NAME, vdevs)
    };
    let pool = testkit::engine().create_pool(&request).unwrap().unwrap();
    pool.writer().unwrap().set_removal_tuning(SMALL);
    pool
}

fn top(w: &Writer, id: u32) -> Guid {
    let config = w.published().config;
    config.vdev_tree.children.iter().find(|v| v.id == id).unwrap().guid
}

fn allocated(w: &Writer, id: u32) -> u64 {
    w.space().vdev_totals(VdevId(id)).unwrap().allocated
}

/// Removes a vdev while files change.
fn remove_under_load(w: &Arc<Writer>, id: u32, files: &mut ModelFiles) {
    w.begin_vdev_removal(top(w, id), None).unwrap();
    while w.removal().is_some() {
        files.change();
        w.sync().unwrap();
    }
    w.sync().unwrap();
}

fn scrub(pool: &Pool) {
    pool.scan(ScanRequest::Scrub, None).unwrap();
    let over = || pool.status().unwrap().scan.is_some_and(|s| s.state == ScanState::Finished);
    testkit::eventually("the scrub ends", over);
    assert_eq!(pool.status().unwrap().scan.unwrap().errors, 0);
}

/// What the pool has at last is right, and everything can be freed.
fn judged(dir: &Path, pool: Arc<Pool>, mut files: ModelFiles, gone: &[usize]) {
    scrub(&pool);
    let content = std::mem::take(&mut files.content);
    drop(files);
    pool.export().unwrap();
    drop(pool);
    for n in gone {
        std::fs::remove_file(dir.join(format!("disk{n}"))).unwrap();
    }
    whole(dir, "removed");
    zdb(dir, NAME);
    let pool = import(dir);
    verify(&pool, NAME, &content);
    let mut files = ModelFiles::new(&pool, 5);
    files.content = content;
    while !files.content.is_empty() {
        files.unlink();
    }
    drop(files);
    pool.export().unwrap();
    drop(pool);
    whole(dir, "emptied");
}

/// Metadata, small blocks and dedup tables move to ordinary vdevs, and those that are written
/// later go there at once.
#[test]
fn special_and_dedup_vdevs_are_removed() {
    /// The vdevs, log2 of their sectors, and the disks that are not needed at the end.
    type Case = (&'static [(usize, Role)], u64, &'static [usize]);
    let cases: [Case; 3] = [
        (&[(1, Role::Data), (1, Role::Special)], 9, &[1]),
        (&[(2, Role::Data), (2, Role::Special), (1, Role::Dedup)], 12, &[2, 3, 4]),
        (&[(1, Role::Data), (2, Role::Dedup), (1, Role::Special), (1, Role::Data)], 9, &[1, 2, 3]),
    ];
    testkit::side_by_side(&cases, |&(tops, ashift, gone)| {
        let scratch = Scratch::new(&format!("removal-classes-{}-{ashift}", tops.len()));
        let dir = scratch.path();
        let pool = make(dir, tops, ashift, 512 << 20);
        let props = [("special_small_blocks", 32 << 10), ("dedup", 1), ("recordsize", 64 << 10)];
        let props: Vec<_> =
            props.iter().map(|(name, n)| ((*name).to_owned(), PropData::Num(*n))).collect();
        pool.set_props(NAME, &props, None).unwrap();
        let w = pool.writer().unwrap();
        let mut files = ModelFiles::new(&pool, 51 + ashift);
        for n in 0..40 {
            files.write();
            // Each third one twice, for the tables.
            if n % 3 == 0 {
                let (name, data) = files.content.last_key_value().unwrap();
                let (name, data) = (format!("{name}-again"), data.clone());
                let (by, root) = (Caller::root(), files.fs.root());
                let id = files.fs.make(&by, root, name.as_bytes(), &New::file(0o644)).unwrap().id;
                files.fs.write(&by, id, WritePosition::Offset(0), &data).unwrap();
                files.content.insert(name, data);
            }
        }
        pool.sync().unwrap();
        let classes = (0u32..).zip(tops).filter(|(_, (_, role))| *role != Role::Data);
        for (id, (_, role)) in classes {
            testkit::eventually(&format!("nothing is on the vdev for {role:?}"), || {
                w.touch();
                w.sync().unwrap();
                allocated(w, id) > 8 << 10
            });
            remove_under_load(w, id, &mut files);
        }
        (0..20).for_each(|_| files.change());
        judged(dir, pool, files, gone);
    });
}

/// All blocks of the vdev are gang blocks, whose headers and members move one by one; those that
/// are written meanwhile are some, too.
#[test]
fn gang_blocks_move() {
    testkit::side_by_side(&[(1, 9), (2, 12)], |&(disks, ashift)| {
        let scratch = Scratch::new(&format!("removal-gangs-{ashift}"));
        let dir = scratch.path();
        let pool = make(dir, &[(disks, Role::Data), (1, Role::Data)], ashift, 512 << 20);
        let w = pool.writer().unwrap();
        let force = &w.space().force_ganging;
        force.larger_than.store(16 << 10, Relaxed);
        force.one_in.store(1, Relaxed);
        let mut files = ModelFiles::new(&pool, 61 + ashift);
        (0..30).for_each(|_| files.write());
        pool.sync().unwrap();
        force.one_in.store(2, Relaxed);
        remove_under_load(w, 0, &mut files);
        let gone: Vec<usize> = (0..disks).collect();
        judged(dir, pool, files, &gone);
    });
}

/// The pool fills up while a vdev leaves it: writers learn that it is full, nothing is lost, and
/// the removal ends, now or when something was freed.
#[test]
fn a_pool_fills_up_meanwhile() {
    testkit::side_by_side(&[9u64, 12], |&ashift| {
        let scratch = Scratch::new(&format!("removal-full-{ashift}"));
        let dir = scratch.path();
        let pool = make(dir, &[(1, Role::Data), (1, Role::Data)], ashift, 320 << 20);
        let w = pool.writer().unwrap();
        let mut files = ModelFiles::new(&pool, 71 + ashift);
        (0..60).for_each(|_| files.write());
        pool.sync().unwrap();
        w.removal_plants().hold_after.store((1 << 20) + 1, Relaxed);
        w.begin_vdev_removal(top(w, 0), None).unwrap();
        let (by, root) = (Caller::root(), files.fs.root());
        let mut full = None;
        for n in 0..2000 {
            let name = format!("filler{n}");
            // Nothing here compresses.
            let mut rng = Rng::new(n + 1);
            let data: Vec<u8> = (0..90_000).flat_map(|_| rng.number().to_le_bytes()).collect();
            let made = files.fs.make(&by, root, name.as_bytes(), &New::file(0o644));
            let done =
                made.and_then(|made| files.fs.write(&by, made.id, WritePosition::Offset(0), &data));
            match done {
                // The last one may be a short write.
                Ok(done) => drop(files.content.insert(name, data[..done.bytes as usize].to_vec())),
                Err(e) => {
                    // What came of it is a part of the last file at most.
                    let _gone = files.fs.unlink(&by, root, name.as_bytes());
                    full = Some(e.kind());
                    break;
                }
            }
        }
        assert_eq!(full, Some(ErrorKind::NoSpace));
        w.removal_plants().hold_after.store(0, Relaxed);
        testkit::eventually("the removal ends in a full pool", || {
            w.touch();
            w.sync().unwrap();
            w.removal().is_none()
        });
        verify(&pool, NAME, &files.content);
        judged(dir, pool, files, &[0]);
    });
}
