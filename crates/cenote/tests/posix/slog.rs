//! Intent logs on vdevs of their own: added, used, missing, removed.

use super::log::{busy, check_all, essence, fsync_all, import_with, log_of, quiet};
use super::*;
use cenote::create::AddRequest;
use cenote::inspect::spa::write::topology::Role;
use std::sync::atomic::Ordering::Relaxed;

pub(super) fn leaf(scratch: &Scratch, name: &str) -> NewVdev {
    let path = scratch.path().join(name);
    std::fs::File::create(&path).unwrap().set_len(128 * MB).unwrap();
    NewVdev::new(NewKind::File(path))
}

/// A pool on `d0` with a log vdev, and its file system.
pub(super) fn rig(name: &str, logs: impl FnOnce(&Scratch) -> NewVdev) -> PosixFixture {
    let scratch = Scratch::new(&format!("posix-slog-{name}"));
    let mut wanted = request(scratch.path().to_path_buf(), 5000);
    wanted.vdevs = vec![leaf(&scratch, "d0"), logs(&scratch).for_role(Role::Log)];
    let engine = testkit::engine();
    let pool = engine.create_pool(&wanted).unwrap().unwrap();
    pool.create_filesystem(DATASET, &[], None).unwrap();
    let fs = open(&pool);
    PosixFixture { scratch, engine, pool, fs }
}

fn mirror(scratch: &Scratch) -> NewVdev {
    let two = vec![leaf(scratch, "l0"), leaf(scratch, "l1")];
    NewVdev::new(NewKind::Mirror).with_children(two)
}

/// The present content of the devices, except those in `without`.
pub(super) fn cut(rig: &PosixFixture, name: &str, without: &[&str]) -> Scratch {
    let scratch = Scratch::new(&format!("posix-slog-cut-{name}"));
    for file in ["d0", "l0", "l1"] {
        let from = rig.scratch.path().join(file);
        if from.exists() && !without.contains(&file) {
            testkit::copy_file(&from, &scratch.path().join(file));
        }
    }
    scratch
}

/// Blocks on log vdevs, and on normal ones.
fn blocks(pool: &Pool) -> (u64, u64) {
    let log = log_of(pool);
    let stats = log.stats();
    (stats.slog.count.load(Relaxed), stats.normal.count.load(Relaxed))
}

#[test]
fn blocks_go_to_the_log_vdev_and_a_missing_one_is_told() {
    let rig = rig("mirror", mirror);
    quiet(&rig.pool);
    let first = rig.file(rig.root(), "first");
    rig.fs.fsync(first).unwrap();
    rig.sync();
    let before = essence(&rig.fs);
    busy(&rig);
    fsync_all(&rig.fs);
    let (slog, normal) = blocks(&rig.pool);
    assert!(slog > 1 && normal == 0, "{slog} {normal}");
    let wanted = essence(&rig.fs);
    // One half of the mirror is enough.
    check_all(&cut(&rig, "half", &["l0"]), &wanted, false);
    check_all(&cut(&rig, "whole", &[]), &wanted, true);
    let lost = cut(&rig, "lost", &["l0", "l1"]);
    let engine = testkit::engine();
    let refused = import_with(&engine, &lost, false).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::DevicesMissing);
    assert!(refused.to_string().contains("-m"), "{refused}");
    let pool = import_with(&engine, &lost, true).unwrap();
    let fs = open(&pool);
    assert_eq!(essence(&fs), before, "what only the log had is lost, and nothing else");
    // The log continues without it, and it can be removed.
    let id = fs.lookup(fs.root(), b"first", Io::WAIT).unwrap().id;
    fs.write(&Caller::root(), id, WritePosition::Offset(0), b"without").unwrap();
    fs.fsync(id).unwrap();
    pool.remove_vdev("mirror-1", None).unwrap();
    let wanted = essence(&fs);
    drop(fs);
    pool.export().unwrap();
    drop(pool);
    check_all(&lost, &wanted, true);
    rig.finish();
}

#[test]
fn log_vdevs_are_added_and_removed_while_they_are_used() {
    let rig = rig("single", |s| leaf(s, "l0"));
    quiet(&rig.pool);
    let file = rig.file(rig.root(), "file");
    let mut at = 0;
    let mut commits = |n: u64| {
        for _ in 0..n {
            rig.write(file, at, &noise(at, 700));
            at += 700;
            rig.fs.fsync(file).unwrap();
        }
        blocks(&rig.pool)
    };
    assert!(commits(20).0 >= 18);
    assert_eq!(kind(rig.pool.remove_vdev("d0", None)), ErrorKind::NoSpace);
    assert_eq!(kind(rig.pool.remove_vdev("nothing", None)), ErrorKind::NotFound);
    rig.pool.remove_vdev("l0", Some("zpool remove tank l0")).unwrap();
    let before = blocks(&rig.pool);
    let after = commits(20);
    assert!(after.1 > before.1 + 15 && after.0 == before.0, "{before:?} {after:?}");
    // Its device belongs to no pool any more.
    let alone = cut(&rig, "alone", &["d0"]);
    assert_eq!(kind(import_with(&testkit::engine(), &alone, true)), ErrorKind::NotFound);
    let wanted = essence(&rig.fs);
    check_all(&cut(&rig, "removed", &["l0"]), &wanted, true);
    // The same device is added again, as another vdev.
    let add = AddRequest {
        vdevs: vec![mirror(&rig.scratch).for_role(Role::Log)],
        force: Force { in_use: false, replication: true, ashift: true },
        dry_run: false,
        ashift: None,
        command: None,
    };
    rig.engine.add_vdevs(&rig.pool, &add).unwrap();
    let before = blocks(&rig.pool);
    // The chain continues on its vdev until its next block.
    let after = commits(20);
    assert!(after.0 > before.0 + 15, "{before:?} {after:?}");
    let wanted = essence(&rig.fs);
    check_all(&cut(&rig, "again", &[]), &wanted, true);
    rig.finish();
}
