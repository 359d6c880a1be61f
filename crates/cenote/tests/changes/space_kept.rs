//! Pools that OpenZFS left with a checkpoint, or in the middle of work on their free space.

use cenote::{CheckpointState, JobAction, JobKind, JobStatus, PropData, VdevStatus};
use testkit::{Golden, discover, engine, golden, verify};

use super::*;

fn unpacked(name: &str, what: &str) -> Option<(Golden, Scratch)> {
    let golden = golden(name)?;
    let scratch = Scratch::new(&format!("{name}-{what}"));
    golden.unpack(scratch.path());
    Some((golden, scratch))
}

fn wait_for(what: &str, mut until: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if until() {
            return;
        }
        base::rt::sleep(std::time::Duration::from_millis(2));
    }
    panic!("no end of the wait for {what}");
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
    wait_for("the discard", || {
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
    wait_for("the initialization", || {
        job(&pool, 0, JobKind::Initialize).unwrap().record.state as u8 == 4
    });
    pool.on_free_space(JobKind::Trim, start, &names[1..], None).unwrap();
    wait_for("the trim", || job(&pool, 1, JobKind::Trim).unwrap().record.state as u8 == 4);
    same(&pool, &golden.manifests());
    pool.export().unwrap();
    drop(pool);
    judge(&engine, dir.path());
    let pool = import_from(&engine, dir.path(), &writing()).unwrap();
    assert_eq!(job(&pool, 0, JobKind::Initialize).unwrap().record.state as u8, 4);
    // All leaves of the pool, then one line for each that refuses.
    pool.on_free_space(JobKind::Trim, start, &[], None).unwrap();
    wait_for("both trims", || {
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
