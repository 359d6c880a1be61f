//! Pools that OpenZFS left with a checkpoint, or in the middle of work on their free space.

use cenote::inspect::spa::engine::ScanLimits;
use cenote::{AttachMode, CheckpointState, JobAction, JobKind, JobStatus, PropData, VdevStatus};
use testkit::{Golden, discover, engine, golden, verify};

use super::topology::{Rig, SIZE, resilver, wait_settled};
use super::*;

fn unpacked(name: &str, what: &str) -> Option<(Golden, Scratch)> {
    let golden = golden(name)?;
    let scratch = Scratch::new(&format!("{name}-{what}"));
    golden.unpack(scratch.path());
    Some((golden, scratch))
}

fn same(pool: &Pool, manifests: &[(String, Vec<testkit::ManifestEntry>)]) {
    assert!(!manifests.is_empty());
    for (dataset, manifest) in manifests {
        let fs = pool.dataset(dataset).unwrap().open_fs().unwrap();
        let differences = verify(&fs, manifest, true);
        assert!(differences.is_empty(), "{dataset}: {differences:#?}");
    }
}

/// The pool is as it was at the checkpoint.
fn as_it_was(pool: &Pool, golden: &Golden) {
    let mut names = Vec::new();
    let list = &mut |dataset: cenote::Dataset| {
        names.push(dataset.name().to_owned());
        Ok(())
    };
    pool.for_each_dataset(list).unwrap();
    assert!(names.contains(&format!("{}/old", golden.name)), "destroyed later: {names:?}");
    let names: Vec<String> = names.into_iter().filter(|n| !n.ends_with("/new")).collect();
    same(pool, &[(golden.name.clone(), golden.manifest_at_checkpoint(&names))]);
}

fn write_and_free(pool: &Pool) {
    pool.create_filesystem(&format!("{}/new", pool.name()), &[], None).unwrap();
    pool.sync().unwrap();
    pool.destroy_dataset(&format!("{}/new", pool.name()), true, None).unwrap();
    pool.sync().unwrap();
}

/// What `zpool status` and `zpool list` of OpenZFS say of the checkpoint.
fn as_openzfs_says(pool: &Pool, golden: &Golden) {
    assert!(golden.text("status.txt").unwrap().contains("consumes 248K\n"));
    // The groups until the export freed some more of the pool's own metadata.
    let more = (248 << 10)..(288 << 10);
    let status = pool.checkpoint_status().unwrap().unwrap();
    assert!(status.state == CheckpointState::Exists && more.contains(&status.space), "{status:?}");
    let prop = pool.prop("checkpoint").unwrap().unwrap();
    assert!(matches!(prop.value, PropData::Num(n) if n == status.space), "{prop:?}");
}

/// A checkpoint of OpenZFS's is kept while the pool is written, read, and discarded.
#[test]
fn a_golden_checkpoint_is_continued() {
    let Some((golden, dir)) = unpacked("checkpointed", "continued") else { return };
    let engine = engine();
    let pool = import_from(&engine, dir.path(), &testkit::readonly()).unwrap();
    as_openzfs_says(&pool, &golden);
    drop(pool);
    let pool = import_from(&engine, dir.path(), &writing()).unwrap();
    assert_eq!(pool.read_only_because(), None);
    let again = kind(pool.take_checkpoint(None).unwrap_err());
    assert_eq!(again, (ErrorKind::Busy, "checkpoint exists".to_owned()));
    write_and_free(&pool);
    same(&pool, &golden.manifests());
    pool.export().unwrap();
    drop(pool);
    judge(&engine, dir.path());
    let there = ImportOptions { checkpoint: true, ..testkit::readonly() };
    let pool = import_from(&engine, dir.path(), &there).unwrap();
    as_it_was(&pool, &golden);
    drop(pool);
    let pool = import_from(&engine, dir.path(), &writing()).unwrap();
    pool.discard_checkpoint(None).unwrap();
    testkit::eventually("the discard", || {
        pool.sync().unwrap();
        pool.checkpoint_status().unwrap().is_none()
    });
    same(&pool, &golden.manifests());
    let prop = pool.prop("checkpoint").unwrap().unwrap();
    assert!(matches!(prop.value, PropData::None), "{prop:?}");
    pool.export().unwrap();
    drop(pool);
    judge(&engine, dir.path());
    let gone = import_from(&engine, dir.path(), &there).err().unwrap();
    assert_eq!(kind(gone), (ErrorKind::NotFound, "checkpoint does not exist".to_owned()));
}

/// The pool returns to a checkpoint of OpenZFS's, for good.
#[test]
fn a_golden_checkpoint_is_returned_to() {
    let Some((golden, dir)) = unpacked("checkpointed", "rewound") else { return };
    let engine = engine();
    let options = ImportOptions { checkpoint: true, ..writing() };
    let pool = import_from(&engine, dir.path(), &options).unwrap();
    assert_eq!(pool.read_only_because(), None);
    as_it_was(&pool, &golden);
    assert_eq!(pool.checkpoint_status().unwrap(), None);
    write_and_free(&pool);
    pool.export().unwrap();
    drop(pool);
    judge(&engine, dir.path());
    assert_eq!(discover(&engine, dir.path()).len(), 1);
    let pool = import_from(&engine, dir.path(), &writing()).unwrap();
    as_it_was(&pool, &golden);
    // It can be checkpointed again.
    pool.take_checkpoint(None).unwrap();
    write_and_free(&pool);
    pool.export().unwrap();
    drop(pool);
    judge(&engine, dir.path());
}

fn job(pool: &Pool, disk: usize, kind: JobKind) -> Option<JobStatus> {
    let mut leaves = Vec::new();
    let status = pool.status().unwrap();
    status.root.for_each(&mut |v: &VdevStatus| {
        if v.children.is_empty() {
            leaves.push(if kind == JobKind::Trim { v.trim } else { v.initialize });
        }
    });
    leaves[disk]
}

/// A trim and an initialization that OpenZFS suspended are shown as it showed them, and go on
/// where it stopped.
#[test]
fn golden_work_on_free_space_is_finished() {
    let Some((golden, dir)) = unpacked("trimmed", "finished") else { return };
    let engine = engine();
    let shown = |pool: &Pool| {
        let percent = |job: JobStatus| job.done * 100 / job.total.max(1);
        let init = job(pool, 0, JobKind::Initialize).unwrap();
        let trim = job(pool, 1, JobKind::Trim).unwrap();
        assert_eq!((percent(init), percent(trim)), (1, 1), "{init:?} {trim:?}");
        for (job, words) in [(init, "initialized"), (trim, "trimmed")] {
            assert_eq!(job.record.state as u8, 3);
            let text = format!("(1% {words}, suspended, started at ");
            assert!(golden.text("status-it.txt").unwrap().contains(&text));
        }
        assert_eq!(job(pool, 0, JobKind::Trim), None);
        assert_eq!(job(pool, 1, JobKind::Initialize), None);
        (init.record, trim.record)
    };
    let pool = import_from(&engine, dir.path(), &testkit::readonly()).unwrap();
    let stored = shown(&pool);
    drop(pool);
    let pool = import_from(&engine, dir.path(), &writing()).unwrap();
    assert_eq!(shown(&pool), stored);
    let start = JobAction::Start { rate: 0, secure: false };
    let names: Vec<String> = {
        let mut names = Vec::new();
        pool.status().unwrap().root.for_each(&mut |v: &VdevStatus| {
            if v.children.is_empty() {
                names.push(v.name.clone());
            }
        });
        names
    };
    pool.on_free_space(JobKind::Initialize, start, &names[..1], None).unwrap();
    testkit::eventually("the initialization", || {
        job(&pool, 0, JobKind::Initialize).unwrap().record.state as u8 == 4
    });
    pool.on_free_space(JobKind::Trim, start, &names[1..], None).unwrap();
    testkit::eventually("the trim", || {
        job(&pool, 1, JobKind::Trim).unwrap().record.state as u8 == 4
    });
    same(&pool, &golden.manifests());
    pool.export().unwrap();
    drop(pool);
    judge(&engine, dir.path());
    let pool = import_from(&engine, dir.path(), &writing()).unwrap();
    assert_eq!(job(&pool, 0, JobKind::Initialize).unwrap().record.state as u8, 4);
    // All leaves of the pool, then one line for each that refuses.
    pool.on_free_space(JobKind::Trim, start, &[], None).unwrap();
    testkit::eventually("both trims", || {
        (0..2).all(|disk| job(&pool, disk, JobKind::Trim).unwrap().record.state as u8 == 4)
    });
    let none = pool.on_free_space(JobKind::Trim, JobAction::Cancel, &[], None).unwrap_err();
    let lines: Vec<String> = names
        .iter()
        .map(|n| format!("cannot cancel trimming '{n}': there is no active trim"))
        .collect();
    assert_eq!(kind(none), (ErrorKind::NotFound, lines.join("\n")));
    let unknown = ["nosuch".to_owned()];
    let none = pool.on_free_space(JobKind::Trim, start, &unknown, None).unwrap_err();
    assert_eq!(kind(none).1, "cannot trim 'nosuch': no such device in pool");
    pool.on_free_space(JobKind::Initialize, JobAction::Forget, &names[..1], None).unwrap();
    assert_eq!(job(&pool, 0, JobKind::Initialize), None);
    same(&pool, &golden.manifests());
    pool.export().unwrap();
    drop(pool);
    judge(&engine, dir.path());
}

/// Waits until no resilver runs.
fn scanned(pool: &Pool) {
    let writer = pool.writer().unwrap();
    // A request is due after the open txg.
    for _ in 0..3 {
        writer.sync().unwrap();
    }
    testkit::eventually("the resilver ends", || {
        writer.sync().unwrap();
        writer.running_scan().is_none()
    });
}

/// With a checkpoint no device joins or leaves, and nothing is written to one that was to join. A
/// successor that is resilvered meanwhile lacks the blocks of the checkpoint, so its predecessor
/// stays until the checkpoint is gone.
#[test]
fn a_checkpoint_keeps_the_devices() {
    testkit::side_by_side(&[9, 12], |&ashift| {
        let vdev = |d: &DiskFiles| d.group(NewKind::Mirror, 0..2);
        let mut rig = Rig::new("checkpoint", 4, &vdev, ashift);
        rig.fill(0..8);
        let writer = Arc::clone(rig.pool.writer().unwrap());
        // The resilver advances by one block in a txg.
        let slow = ScanLimits { slice_blocks: 1, ..ScanLimits::default() };
        writer.set_scan_limits(slow);
        rig.attach(1, Some(2), AttachMode::Replace).unwrap();
        rig.pool.take_checkpoint(None).unwrap();
        assert_eq!(rig.leaves(), 3);
        let then = rig.content.clone();
        rig.fill(8..10);
        let blank = std::fs::read(rig.name(3)).unwrap();
        let refused = |done: cenote::Result<()>| {
            let busy = (ErrorKind::Busy, "checkpoint exists".to_owned());
            assert_eq!(kind(done.unwrap_err()), busy);
        };
        refused(rig.attach(0, Some(3), AttachMode::Attach));
        refused(rig.attach(0, Some(3), AttachMode::Replace));
        refused(rig.pool.detach_vdev(&rig.name(1), None));
        assert!(std::fs::read(rig.name(3)).unwrap() == blank, "it was written");
        writer.set_scan_limits(ScanLimits::default());
        scanned(&rig.pool);
        assert_eq!(rig.leaves(), 3, "nothing has left");
        assert!(rig.behind(2), "blocks of the checkpoint were not copied");
        // A rewind finds the replacement, and finishes it.
        let copy = Scratch::new("checkpoint-rewound");
        let Rig { disks, engine, pool, objects, content, what } = rig;
        drop((objects, writer));
        pool.export().unwrap();
        drop(pool);
        for entry in std::fs::read_dir(disks.path()).unwrap() {
            let path = entry.unwrap().path();
            testkit::copy_file(&path, &copy.path().join(path.file_name().unwrap()));
        }
        let back = ImportOptions { checkpoint: true, ..writing() };
        let pool = import_from(&engine, copy.path(), &back).unwrap();
        let objects = pool.root().unwrap().open_rw().unwrap();
        for (&id, &seed) in &then {
            let read = objects.read_vec(cenote::ObjectId(id), 0, SIZE).unwrap();
            assert!(read == noise(seed, SIZE), "{what}: object {id} after the rewind");
        }
        drop(objects);
        resilver(&pool);
        wait_settled(&pool, &what);
        pool.export().unwrap();
        drop(pool);
        judge(&engine, copy.path());
        let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
        let objects = pool.root().unwrap().open_rw().unwrap();
        let rig = Rig { disks, engine, pool, objects, content, what };
        scanned(&rig.pool);
        assert!(rig.leaves() == 3 && rig.behind(2));
        rig.check("after the import");
        rig.pool.discard_checkpoint(None).unwrap();
        testkit::eventually("the discard", || {
            rig.pool.sync().unwrap();
            rig.pool.checkpoint_status().unwrap().is_none()
        });
        rig.settled();
        assert_eq!(rig.leaves(), 2);
        rig.check("after the discard");
        drop(rig.export());
    });
}
