//! TRIM and initializing: the free space of each leaf gets the pattern, is discarded, and nothing
//! else; states and places survive an export; `zdb` judges what is left.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use std::path::Path;
use std::sync::Arc;

use base::{ErrorKind, Guid, ObjectId};
use common::shapes::{
    PoolShape, content, open_with, overwrite, read, remove, shapes, write_new, write_with,
};
use common::{head_of, zdb};
use dsl::stored::Stored;
use ondisk::config::PoolState;
use spa::ImportOptions;
use spa::audit::{AuditOptions, Verify};
use spa::engine::{FreeSpaceTuning, JobKind, JobRecord, JobState, PoolChange, Writer};

const LEN: usize = 300_000;
const PATTERN: u64 = 0xdead_beef_dead_beee;

fn leaves(w: &Writer) -> Vec<Guid> {
    w.published().config.vdev_tree.leaves().map(|leaf| leaf.guid).collect()
}

/// Every range counts, however small.
fn tune(w: &Writer) {
    let all = FreeSpaceTuning { trim_min: 512, trim_batch: 1, ..FreeSpaceTuning::default() };
    w.set_free_space_tuning(all);
}

fn run(w: &Writer, kind: JobKind) {
    for leaf in leaves(w) {
        w.start_job(leaf, kind, JobRecord::default(), None).unwrap();
    }
    for leaf in leaves(w) {
        let state = || w.job_status(leaf, kind).record.state;
        testkit::eventually("the end of a job", || state() != JobState::Active);
        assert_eq!(state(), JobState::Complete);
        let status = w.job_status(leaf, kind);
        assert!(status.done == status.total && status.record.action_time > 0, "{status:?}");
    }
}

/// Words of the devices that hold the pattern, in bytes.
fn patterned(dir: &Path) -> u64 {
    let mut found = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        let words = bytes.chunks_exact(8).filter(|word| **word == PATTERN.to_ne_bytes());
        found += 8 * words.count() as u64;
    }
    found
}

/// Bytes that the files occupy in their file system.
fn occupied(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = std::fs::read_dir(dir).unwrap();
    files.map(|entry| entry.unwrap().metadata().unwrap().blocks() * 512).sum()
}

fn export(w: Arc<Writer>) {
    w.export(PoolState::Exported).unwrap();
}

fn audit(dir: &Path, options: &ImportOptions) {
    let spa = open_with(dir, &ImportOptions { readonly: true, ..options.clone() }).unwrap();
    let how = AuditOptions { verify: Verify::All, leaks: true, threads: 2 };
    let report = spa.audit(how, &()).unwrap();
    assert!(report.is_clean() && report.leaked == 0, "{:?}", report.problems);
}

/// Each state to which an import may go back is complete.
fn audit_all_in_reach(dir: &Path) {
    audit(dir, &ImportOptions::default());
    let newest = open_with(dir, &ImportOptions { readonly: true, ..ImportOptions::default() });
    let newest = newest.unwrap().uberblock().txg;
    for back in 1..3 {
        audit(dir, &ImportOptions { txg: Some(base::Txg(newest.0 - back)), ..Default::default() });
    }
}

fn files(w: &Arc<Writer>, pool: &str, range: std::ops::Range<u64>) -> Vec<ObjectId> {
    let os = head_of(w, pool);
    let ids = range.map(|file| write_new(w, &os, &content(file, 1, LEN))).collect();
    w.sync().unwrap();
    ids
}

fn verify(w: &Arc<Writer>, pool: &str, ids: &[ObjectId], kept: impl Fn(u64) -> bool) {
    let os = head_of(w, pool);
    for (file, id) in (0..).zip(ids).filter(|(file, _)| kept(*file)) {
        assert!(read(&os, *id, LEN).unwrap() == content(file, 1, LEN), "file {file}");
    }
}

fn filled_and_discarded(shape: &PoolShape) {
    let pool = shape.pool();
    let (d, w) = shape.make("trim", 80 << 20);
    tune(&w);
    let ids = files(&w, &pool, 0..20);
    let os = head_of(&w, &pool);
    ids.iter().skip(1).step_by(2).for_each(|id| remove(&w, &os, *id));
    for _ in 0..4 {
        w.sync().unwrap();
    }
    drop(os);
    run(&w, JobKind::Initialize);
    let free: u64 =
        leaves(&w).into_iter().map(|leaf| w.job_status(leaf, JobKind::Initialize).total).sum();
    let full = patterned(&d.dir);
    // Blocks that were freed in the meantime, and parts of dRAID's stripes, have none.
    let enough = full <= free + (4 << 20) && full >= free / 100 * 94;
    assert!(enough, "{pool}: {full} of {free} bytes");
    verify(&w, &pool, &ids, |file| file % 2 == 0);
    let os = head_of(&w, &pool);
    let more: Vec<ObjectId> = (50..54).map(|f| write_new(&w, &os, &content(f, 1, LEN))).collect();
    w.sync().unwrap();
    let before = occupied(&d.dir);
    run(&w, JobKind::Trim);
    let (left, after) = (patterned(&d.dir), occupied(&d.dir));
    assert!(left <= full / 100, "{left} of {full} bytes were not discarded");
    assert!(before - after >= full / 100 * 90, "{before} {after} {full}");
    verify(&w, &pool, &ids, |file| file % 2 == 0);
    for (file, id) in (50..).zip(more) {
        assert!(read(&os, id, LEN).unwrap() == content(file, 1, LEN));
    }
    drop(os);
    export(w);
    audit_all_in_reach(&d.dir);
    zdb(&d, &pool);
    std::fs::remove_dir_all(&d.dir).unwrap();
}

#[test]
fn every_kind_of_vdev_is_filled_and_discarded() {
    testkit::side_by_side(&shapes(), filled_and_discarded);
}

/// After an import all free space is allocatable, but the states before the import need some of
/// it: a trim waits until no import goes back to them.
#[test]
fn a_trim_right_after_an_import_spares_older_states() {
    for (name, disks) in [("single", 1), ("mirror", 2), ("raidz1", 3), ("draid1", 6)] {
        let shape = PoolShape { name, disks, ashift: 9 };
        let pool = shape.pool();
        let (d, w) = shape.make("trim-early", 80 << 20);
        let ids = files(&w, &pool, 0..12);
        rewrite(&w, &pool, &ids, 2..6);
        // As after a power failure: the pool is not exported.
        drop(w);
        let w = write_with(&d.dir, &ImportOptions::default());
        tune(&w);
        run(&w, JobKind::Trim);
        w.stop();
        drop(w);
        audit_all_in_reach(&d.dir);
        std::fs::remove_dir_all(&d.dir).unwrap();
    }
}

/// The checks above find a trim of blocks that were freed two txgs ago.
#[test]
fn a_trim_of_deferred_space_is_found() {
    if !base::planted::AVAILABLE {
        return;
    }
    let shape = PoolShape { name: "single", disks: 1, ashift: 9 };
    let pool = shape.pool();
    let (d, w) = shape.make("trim-plant", 80 << 20);
    tune(&w);
    let ids = files(&w, &pool, 0..12);
    w.space().plant.trim_deferred.store(true, std::sync::atomic::Ordering::Relaxed);
    rewrite(&w, &pool, &ids, 2..6);
    let leaf = leaves(&w)[0];
    w.start_job(leaf, JobKind::Trim, JobRecord::default(), None).unwrap();
    let status = || w.job_status(leaf, JobKind::Trim);
    testkit::eventually("the trim", || status().done == status().total);
    w.stop();
    drop(w);
    let newest = open_with(&d.dir, &ImportOptions { readonly: true, ..Default::default() });
    let newest = newest.unwrap().uberblock().txg;
    let lost = (1..3).any(|back| {
        let txg = Some(base::Txg(newest.0 - back));
        let options = ImportOptions { readonly: true, txg, ..Default::default() };
        let audited = open_with(&d.dir, &options).and_then(|spa| {
            let how = AuditOptions { verify: Verify::All, leaks: false, threads: 2 };
            Ok(spa.audit(how, &())?.unreadable)
        });
        audited.map_or(true, |blocks| blocks > 0)
    });
    assert!(lost, "the planted bug was not found");
    std::fs::remove_dir_all(&d.dir).unwrap();
}

fn rewrite(w: &Arc<Writer>, pool: &str, ids: &[ObjectId], versions: std::ops::Range<u64>) {
    let os = head_of(w, pool);
    for version in versions {
        for id in ids {
            overwrite(w, &os, *id, &content(9, version, LEN));
        }
        w.sync().unwrap();
    }
}

/// A job that is suspended, or active, is so after an export, at its place.
#[test]
fn places_and_states_survive_an_export() {
    let shapes = [("single", 1), ("mirror", 2), ("raidz1", 3), ("draid1", 6)];
    let all: Vec<_> = JobKind::ALL.into_iter().flat_map(|k| shapes.map(|s| (k, s))).collect();
    testkit::side_by_side(&all, |&(kind, (name, disks))| {
        survives(kind, &PoolShape { name, disks, ashift: 12 });
    });
}

fn survives(kind: JobKind, shape: &PoolShape) {
    let pool = shape.pool();
    let (d, w) = shape.make(&format!("trim-{kind:?}"), 80 << 20);
    tune(&w);
    let ids = files(&w, &pool, 0..6);
    let leaf = leaves(&w)[0];
    let status = |w: &Writer| w.job_status(leaf, kind);
    assert_eq!(status(&w).record, JobRecord::default());
    let none = w.suspend_job(leaf, kind, None).unwrap_err();
    let words = match kind {
        JobKind::Trim => "there is no active trim",
        JobKind::Initialize => "there is no active initialization",
    };
    assert_eq!((none.kind(), none.message()), (ErrorKind::NotFound, words));
    // With such a rate the job waits between its steps. That of an initialization is not stored.
    let wanted = JobRecord { rate: 1 << 20, ..JobRecord::default() };
    let stored_rate = if kind == JobKind::Trim { wanted.rate } else { 0 };
    w.start_job(leaf, kind, wanted, None).unwrap();
    let again = w.start_job(leaf, kind, wanted, None).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Busy);
    testkit::eventually("progress", || status(&w).record.offset > 0);
    w.suspend_job(leaf, kind, None).unwrap();
    let suspended = status(&w);
    assert_eq!(suspended.record.state, JobState::Suspended);
    assert_eq!(suspended.record.rate, wanted.rate);
    assert!(suspended.record.offset > 0 && suspended.done <= suspended.total, "{suspended:?}");
    assert!(suspended.done < suspended.total);
    let suspended = JobRecord { rate: stored_rate, ..suspended.record };
    export(w);
    let readonly = ImportOptions { readonly: true, ..ImportOptions::default() };
    let stored = open_with(&d.dir, &readonly).unwrap().job_statuses().unwrap();
    let stored: Vec<_> = stored.into_iter().filter(|(l, k, _)| (*l, *k) == (leaf, kind)).collect();
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0].2.record, suspended);
    let w = write_with(&d.dir, &ImportOptions::default());
    tune(&w);
    assert_eq!(status(&w).record, suspended);
    w.start_job(leaf, kind, wanted, None).unwrap();
    let resumed = status(&w).record;
    assert!(resumed.offset >= suspended.offset, "{resumed:?}");
    if resumed.state == JobState::Active {
        let moved = || status(&w).record.offset > suspended.offset;
        testkit::eventually("more progress", || {
            moved() || status(&w).record.state == JobState::Complete
        });
    }
    let before = status(&w).record;
    export(w);
    zdb(&d, &pool);
    // The import continues it without a word.
    let w = write_with(&d.dir, &ImportOptions::default());
    tune(&w);
    if before.state == JobState::Active && kind == JobKind::Trim {
        let moved = || status(&w).record.offset > before.offset;
        testkit::eventually("progress after the import", || {
            moved() || status(&w).done == status(&w).total
        });
        w.cancel_job(leaf, kind, None).unwrap();
        assert_eq!(status(&w).record.state, JobState::Canceled);
    } else {
        testkit::eventually("the end", || status(&w).record.state == JobState::Complete);
    }
    // From the start, without a limit.
    w.start_job(leaf, kind, JobRecord::default(), None).unwrap();
    testkit::eventually("the end", || status(&w).record.state == JobState::Complete);
    assert_eq!(status(&w).record.rate, 0);
    if kind == JobKind::Initialize {
        w.forget_job(leaf, kind, None).unwrap();
        assert_eq!(status(&w).record, JobRecord::default());
    }
    verify(&w, &pool, &ids, |_| true);
    export(w);
    let stored = open_with(&d.dir, &readonly).unwrap().job_statuses().unwrap();
    assert_eq!(stored.len(), usize::from(kind == JobKind::Trim));
    audit_all_in_reach(&d.dir);
    zdb(&d, &pool);
    std::fs::remove_dir_all(&d.dir).unwrap();
}

#[test]
fn what_cannot_be_done_is_refused() {
    let shape = PoolShape { name: "mirror", disks: 2, ashift: 12 };
    let (d, w) = shape.make("trim-refused", 80 << 20);
    let leaf = leaves(&w)[0];
    let secure = JobRecord { secure: true, ..JobRecord::default() };
    let refused = w.start_job(leaf, JobKind::Trim, secure, None).unwrap_err();
    let words = "trim operations are not supported by this device";
    assert_eq!((refused.kind(), refused.message()), (ErrorKind::Unsupported, words));
    let unknown = w.start_job(Guid(77), JobKind::Trim, JobRecord::default(), None).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    let top = w.published().config.vdev_tree.children[0].guid;
    let inner = w.start_job(top, JobKind::Initialize, JobRecord::default(), None).unwrap_err();
    assert_eq!(inner.kind(), ErrorKind::NotFound);
    for kind in JobKind::ALL {
        assert_eq!(w.cancel_job(leaf, kind, None).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(w.job_status(leaf, kind).record, JobRecord::default());
    }
    export(w);
    zdb(&d, &shape.pool());
    std::fs::remove_dir_all(&d.dir).unwrap();
}

/// What is freed while `autotrim` is on leaves holes, and a checkpoint's blocks do not.
#[test]
fn autotrim_discards_what_is_freed_and_not_what_a_checkpoint_keeps() {
    for (name, disks) in [("single", 1), ("mirror", 2), ("raidz2", 5), ("draid1", 6)] {
        let shape = PoolShape { name, disks, ashift: 12 };
        let pool = shape.pool();
        let (d, w) = shape.make("autotrim", 128 << 20);
        tune(&w);
        let on = PoolChange::Prop("autotrim".to_owned(), Some(Stored::Number(1)));
        w.set_pool(vec![on], None).unwrap();
        let ids = files(&w, &pool, 0..40);
        let os = head_of(&w, &pool);
        w.take_checkpoint(None).unwrap();
        let full = occupied(&d.dir);
        ids[..20].iter().for_each(|id| remove(&w, &os, *id));
        (0..8).for_each(|_| drop(files(&w, &pool, 90..91)));
        let kept = occupied(&d.dir);
        assert!(kept + (1 << 20) > full, "{kept} {full}: the checkpoint keeps it");
        w.discard_checkpoint(None).unwrap();
        testkit::eventually("the discard", || {
            w.sync().unwrap();
            w.checkpoint_status().is_none()
        });
        let freed = 20 * LEN as u64 / 10 * 8;
        let mut more = 0;
        testkit::eventually("holes", || {
            more += 1;
            // A pool that is written goes on; an idle one waits.
            drop(files(&w, &pool, 91..92));
            occupied(&d.dir) < kept + more * 700_000 - freed
        });
        verify(&w, &pool, &ids, |file| file >= 20);
        drop(os);
        export(w);
        audit_all_in_reach(&d.dir);
        zdb(&d, &pool);
        std::fs::remove_dir_all(&d.dir).unwrap();
    }
}
