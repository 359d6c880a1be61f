//! The checkpoint of a pool: taken, kept, discarded, returned to; `zdb` judges each state.
#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{ErrorKind, ObjectId};
use common::shapes::{
    PoolShape, content, open_with, overwrite, read, remove, shapes, write_new, write_with,
};
use common::{FileDisks, head_of, zdb};
use dmu::Objset;
use ondisk::config::PoolState;
use spa::ImportOptions;
use spa::audit::{AuditOptions, Verify};
use spa::engine::{CheckpointState, FreeSpaceTuning, Writer};

const FILES: u64 = 24;
const LEN: usize = 300_000;

/// Files as they were at the checkpoint and as they are now, by version; 0 is none.
struct KeptFiles {
    ids: Vec<ObjectId>,
    then: Vec<u64>,
    now: Vec<u64>,
}

fn verify(os: &Arc<Objset>, ids: &[ObjectId], versions: &[u64], what: &str) {
    for (file, (id, version)) in ids.iter().zip(versions).enumerate() {
        if *version == 0 {
            let gone = os.object(*id, dmu::Io::WAIT).err().map(|e| e.kind());
            assert_eq!(gone, Some(ErrorKind::NotFound), "{what}: file {file}");
            continue;
        }
        let found = read(os, *id, LEN).unwrap();
        assert!(found == content(file as u64, *version, LEN), "{what}: file {file}");
    }
}

/// Files, a checkpoint, and then changes that reuse all space that may be reused.
fn history(w: &Arc<Writer>, pool: &str) -> KeptFiles {
    let os = head_of(w, pool);
    let new = |file: u64, version| write_new(w, &os, &content(file, version, LEN));
    let mut ids: Vec<ObjectId> = (0..FILES).map(|file| new(file, 1)).collect();
    w.sync().unwrap();
    // Some blocks are freed before the checkpoint, and are not a part of it.
    (0..4).for_each(|file| overwrite(w, &os, ids[file as usize], &content(file, 2, LEN)));
    let mut then: Vec<u64> = (0..FILES).map(|file| if file < 4 { 2 } else { 1 }).collect();
    assert_eq!(w.checkpoint_status(), None);
    let taken = w.take_checkpoint(None).unwrap();
    // A txg without changes in between has no uberblock.
    assert!(taken.of < taken.txg, "{taken:?} must be of a txg before it");
    let mut now = then.clone();
    for file in 0..8u64 {
        overwrite(w, &os, ids[file as usize], &content(file, 3, LEN));
        now[file as usize] = 3;
    }
    for file in 8..16usize {
        remove(w, &os, ids[file]);
        now[file] = 0;
    }
    w.sync().unwrap();
    for round in 0..6u64 {
        for file in 0..8u64 {
            // Blocks that are born and die after the checkpoint.
            overwrite(w, &os, ids[file as usize], &content(file, 4 + round, LEN));
            now[file as usize] = 4 + round;
        }
        let id = new(FILES + round, 1);
        ids.push(id);
        now.push(1);
        then.push(0);
        w.sync().unwrap();
    }
    let status = w.checkpoint_status().unwrap();
    assert_eq!(status.state, CheckpointState::Exists);
    assert!(status.space >= 12 * LEN as u64, "{status:?}");
    KeptFiles { ids, then, now }
}

fn export(w: Arc<Writer>) {
    w.export(PoolState::Exported).unwrap();
}

/// `zdb` opens the checkpointed state, reads all of it, and finds no leak.
fn zdb_checkpoint(d: &FileDisks, pool: &str, there: bool) {
    let mut zdb = std::process::Command::new("zdb");
    let out = zdb.args(["-e", "-p"]).arg(&d.dir).args(["-k", "-bcc", pool]).output();
    let Ok(out) = out else { return };
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let whole = out.status.success() && text.contains("No leaks");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(whole, there, "{text} {said}");
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn audit(dir: &Path, options: &ImportOptions) {
    let spa = open_with(dir, options).unwrap();
    let how = AuditOptions { verify: Verify::All, leaks: true, threads: 2 };
    let report = spa.audit(how, &()).unwrap();
    assert!(report.is_clean() && report.leaked == 0, "{:?}", report.problems);
}

fn readonly(checkpoint: bool) -> ImportOptions {
    ImportOptions { readonly: true, checkpoint, ..ImportOptions::default() }
}

fn kept_and_discarded(shape: &PoolShape) {
    let pool = shape.pool();
    let (d, w) = shape.make("cp", 96 << 20);
    let files = history(&w, &pool);
    let refused = w.take_checkpoint(None).unwrap_err();
    assert_eq!((refused.kind(), refused.message()), (ErrorKind::Busy, "checkpoint exists"));
    let refused = w.reguid(base::Guid(77), None).unwrap_err();
    assert_eq!(refused.message(), "checkpoint exists");
    verify(&head_of(&w, &pool), &files.ids, &files.now, "now");
    export(w);
    zdb(&d, &pool);
    zdb_checkpoint(&d, &pool, true);
    for checkpoint in [false, true] {
        audit(&d.dir, &readonly(checkpoint));
    }
    // The checkpointed state is read, and nothing is written.
    let spa = open_with(&d.dir, &readonly(true)).unwrap();
    let root = spa.root_dir().unwrap().head().unwrap().unwrap();
    verify(&root.open_objset().unwrap().unwrap(), &files.ids, &files.then, "then");
    assert_eq!(spa.checkpoint_status().unwrap(), None);
    drop((root, spa));
    let rewound = d.dir.with_extension("rewound");
    let _ = std::fs::remove_dir_all(&rewound);
    copy(&d.dir, &rewound);
    // A pool with a checkpoint is written, and the checkpoint discarded in small steps.
    let w = write_with(&d.dir, &ImportOptions::default());
    let os = head_of(&w, &pool);
    let before = w.checkpoint_status().unwrap();
    assert_eq!(
        open_with(&rewound, &readonly(false)).unwrap().checkpoint_status().unwrap(),
        Some(before)
    );
    remove(&w, &os, files.ids[16]);
    w.sync().unwrap();
    assert!(w.checkpoint_status().unwrap().space > before.space, "16 died after the import");
    w.set_free_space_tuning(FreeSpaceTuning { discard_memory: 1, ..w.free_space_tuning() });
    w.checkpoint_plants().hold_discard.store(true, Relaxed);
    w.discard_checkpoint(None).unwrap();
    let status = w.checkpoint_status().unwrap();
    assert_eq!(status.state, CheckpointState::Discarding);
    let refused = w.discard_checkpoint(None).unwrap_err();
    assert_eq!(refused.message(), "currently discarding checkpoint");
    let refused = w.take_checkpoint(None).unwrap_err();
    assert_eq!(refused.message(), "currently discarding checkpoint");
    overwrite(&w, &os, files.ids[17], &content(17, 9, LEN));
    w.sync().unwrap();
    assert_eq!(w.checkpoint_status().map(|s| s.state), Some(CheckpointState::Discarding));
    // Some of the ranges become free before the export.
    w.checkpoint_plants().hold_discard.store(false, Relaxed);
    w.sync().unwrap();
    drop(os);
    export(w);
    // Each run of zdb takes a second; the audit finds the same.
    let judged = shape.ashift == 12;
    if judged {
        zdb(&d, &pool);
    }
    audit(&d.dir, &readonly(false));
    let spa = open_with(&d.dir, &readonly(true));
    let none = spa.err().unwrap();
    assert_eq!((none.kind(), none.message()), (ErrorKind::NotFound, "checkpoint does not exist"));
    // The import continues the discard.
    let w = write_with(&d.dir, &ImportOptions::default());
    for _ in 0..100 {
        if w.checkpoint_status().is_none() {
            break;
        }
        w.sync().unwrap();
    }
    assert_eq!(w.checkpoint_status(), None);
    let mut now = files.now.clone();
    (now[16], now[17]) = (0, 9);
    verify(&head_of(&w, &pool), &files.ids, &now, "after the discard");
    // The next checkpoint is as good as the first.
    w.take_checkpoint(None).unwrap();
    w.discard_checkpoint(None).unwrap();
    w.sync().unwrap();
    assert_eq!(w.checkpoint_status(), None);
    let none = w.discard_checkpoint(None).unwrap_err();
    assert_eq!(none.message(), "checkpoint does not exist");
    export(w);
    zdb(&d, &pool);
    if judged {
        zdb_checkpoint(&d, &pool, false);
    }
    // The copy returns to the checkpoint.
    let options = ImportOptions { checkpoint: true, ..ImportOptions::default() };
    let r = FileDisks { dir: rewound.clone(), paths: Vec::new() };
    let w = write_with(&rewound, &options);
    let os = head_of(&w, &pool);
    verify(&os, &files.ids, &files.then, "rewound");
    assert_eq!(w.checkpoint_status(), None);
    overwrite(&w, &os, files.ids[3], &content(3, 20, LEN));
    w.sync().unwrap();
    drop(os);
    export(w);
    if judged {
        zdb(&r, &pool);
    }
    let w = write_with(&rewound, &ImportOptions::default());
    let mut then = files.then.clone();
    then[3] = 20;
    verify(&head_of(&w, &pool), &files.ids, &then, "after the rewind");
    export(w);
    zdb(&r, &pool);
    std::fs::remove_dir_all(&rewound).unwrap();
    std::fs::remove_dir_all(&d.dir).unwrap();
}

#[test]
fn every_kind_of_vdev_keeps_a_checkpoint() {
    testkit::side_by_side(&shapes(), kept_and_discarded);
}

/// A vdev that was added after the checkpoint is not a part of the pool after the rewind.
#[test]
fn a_rewind_forgets_vdevs_that_were_added() {
    let shape = PoolShape { name: "mirror", disks: 2, ashift: 12 };
    let pool = shape.pool();
    let (d, w) = shape.make("cp-add", 96 << 20);
    let os = head_of(&w, &pool);
    let id = write_new(&w, &os, &content(1, 1, LEN));
    w.sync().unwrap();
    w.take_checkpoint(None).unwrap();
    drop(os);
    common::add_file(&w, &d, "extra", 96 << 20);
    let os = head_of(&w, &pool);
    for file in 0..40 {
        write_new(&w, &os, &content(file, 1, LEN));
    }
    overwrite(&w, &os, id, &content(1, 2, LEN));
    w.sync().unwrap();
    drop(os);
    export(w);
    zdb(&d, &pool);
    let w = write_with(&d.dir, &ImportOptions { checkpoint: true, ..ImportOptions::default() });
    assert_eq!(w.published().config.vdev_tree.children.len(), 1);
    assert!(read(&head_of(&w, &pool), id, LEN).unwrap() == content(1, 1, LEN));
    export(w);
    std::fs::remove_file(d.dir.join("extra")).unwrap();
    zdb(&d, &pool);
    std::fs::remove_dir_all(&d.dir).unwrap();
}

/// The checks above find the mistakes that they are made for.
#[test]
fn planted_bugs_are_found() {
    if !base::planted::AVAILABLE {
        return;
    }
    let shape = PoolShape { name: "single", disks: 1, ashift: 9 };
    let pool = shape.pool();
    let (d, w) = shape.make("cp-plant", 64 << 20);
    w.checkpoint_plants().free_kept.store(true, Relaxed);
    let os = head_of(&w, &pool);
    let ids: Vec<ObjectId> =
        (0..8).map(|file| write_new(&w, &os, &content(file, 1, LEN))).collect();
    w.sync().unwrap();
    w.take_checkpoint(None).unwrap();
    for round in 0..60 {
        ids.iter().for_each(|id| overwrite(&w, &os, *id, &content(9, round, LEN)));
        w.sync().unwrap();
    }
    drop(os);
    export(w);
    let lost = open_with(&d.dir, &readonly(true)).and_then(|spa| {
        let how = AuditOptions { verify: Verify::All, leaks: false, threads: 2 };
        Ok(spa.audit(how, &())?.unreadable)
    });
    assert!(lost.is_err() || lost.is_ok_and(|blocks| blocks > 0));
    std::fs::remove_dir_all(&d.dir).unwrap();

    let (d, w) = shape.make("cp-plant2", 64 << 20);
    let os = head_of(&w, &pool);
    let ids: Vec<ObjectId> =
        (0..8).map(|file| write_new(&w, &os, &content(file, 1, LEN))).collect();
    w.sync().unwrap();
    w.take_checkpoint(None).unwrap();
    ids.iter().for_each(|id| overwrite(&w, &os, *id, &content(9, 1, LEN)));
    w.sync().unwrap();
    w.checkpoint_plants().forget_range.store(true, Relaxed);
    w.discard_checkpoint(None).unwrap();
    for _ in 0..100 {
        if w.checkpoint_status().is_none() {
            break;
        }
        w.sync().unwrap();
    }
    drop(os);
    export(w);
    let spa = open_with(&d.dir, &readonly(false)).unwrap();
    let how = AuditOptions { verify: Verify::Metadata, leaks: true, threads: 2 };
    assert!(spa.audit(how, &()).unwrap().leaked > 0);
    drop(spa);
    std::fs::remove_dir_all(&d.dir).unwrap();
}
