//! Blocks that moved are scrubbed and resilvered like all others, those of snapshots as well.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::Guid;
use cenote::{Pool, ScanRequest, ScanState};
use common::history::{MoverHistory, MoverShape, contents, shapes};
use common::*;
use device::{Device, FileDevice, OpenOptions};
use mover::MoveLimits;
use spa::engine::{AttachMode, NewMember};
use spa::write::topology::{LeafFacts, NewKind, NewVdev, build_member};
use testkit::{Scratch, eventually, side_by_side};

/// Replaces the disk `old` by the new file `new`.
fn replace(pool: &Pool, old: &Path, new: &Path) {
    let w = pool.writer().unwrap();
    let size = std::fs::metadata(old).unwrap().len();
    std::fs::File::create(new).unwrap().set_len(size).unwrap();
    let options = OpenOptions { write: true, ..OpenOptions::default() };
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(new, &options).unwrap());
    let facts = |_: &Path| Ok(LeafFacts::of(&*device, false));
    let config = w.published().config;
    let taken: Vec<Guid> = config.vdev_tree.walk().map(|v| v.guid).collect();
    let vdev = NewVdev::new(NewKind::File(new.to_owned()));
    let (vdev, facts) = build_member(&vdev, w.txgs().open_txg(), taken, &facts).unwrap();
    let tree = w.zio().tree();
    let leaf = tree.leaves().find(|(_, leaf)| leaf.path() == old.to_str()).unwrap().1.guid();
    drop(tree);
    let device = Some(Arc::clone(&device));
    let new = NewMember { vdev, device, facts: Some(facts), ashift: None, sequential: false };
    w.attach(leaf, new, AttachMode::Replace, None).unwrap();
    eventually("the old disk leaves", || {
        w.published().config.vdev_tree.walk().all(|v| v.guid != leaf)
    });
}

fn scrubbed(pool: &Pool) -> (u64, u64) {
    pool.scan(ScanRequest::Scrub, None).unwrap();
    let over = || {
        let scan = pool.status().unwrap().scan;
        scan.is_some_and(|scan| scan.state == ScanState::Finished)
    };
    // It begins a moment later.
    base::rt::sleep(Duration::from_millis(10));
    eventually("the scrub ends", over);
    let scan = pool.status().unwrap().scan.unwrap();
    (scan.errors, scan.processed)
}

/// All data of the files on a disk is overwritten.
fn spoil(disk: &Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).open(disk).unwrap();
    let size = file.metadata().unwrap().len();
    for at in (4 << 20..size - (1 << 20)).step_by(1 << 20) {
        file.write_all_at(&vec![7; 1 << 20], at).unwrap();
    }
}

/// A scrub and a resilver left out the moved blocks that a snapshot had: they were written later
/// than the snapshot, and so they seemed to belong to something newer. A disk that replaced
/// another one did not get them, and a scrub said that nothing was wrong.
fn replaced(shape: &MoverShape) {
    let scratch = Scratch::new(&format!("replaced-{}", shape.name()));
    let dir = scratch.path();
    let pool = shape.make_of(dir, 160 << 20);
    let mut history = MoverHistory::new(5 + shape.ashift);
    (0..4).for_each(|_| history.write(&pool));
    history.snapshot(&pool);
    (0..30).for_each(|_| history.step(&pool));
    let report = empty_some(&pool, 2, &MoveLimits::default());
    assert!(report.moved > 20, "{shape:?}: {report:?}");
    let files = contents(&pool, history.made);
    let disk = |n: usize| dir.join(format!("disk{n}"));
    // What is wrong on a disk is found and repaired.
    pool.sync().unwrap();
    spoil(&disk(0));
    let (errors, repaired) = scrubbed(&pool);
    assert!(errors == 0 && repaired > 256 << 10, "{shape:?}: {repaired} bytes repaired");
    assert_eq!(scrubbed(&pool), (0, 0), "{shape:?}");
    replace(&pool, &disk(1), &dir.join("new"));
    assert_eq!(scrubbed(&pool), (0, 0), "{shape:?}");
    pool.export().unwrap();
    drop(pool);
    // The disk that was spoiled and the new one are needed now.
    std::fs::remove_file(disk(1)).unwrap();
    let lost = match shape.kind {
        "raidz1" => 1,
        "raidz2" => 2,
        _ => shape.disks - 2,
    };
    (2..2 + lost.min(shape.disks - 2)).for_each(|n| std::fs::remove_file(disk(n)).unwrap());
    let pool = testkit::import_from(&testkit::engine(), dir, &testkit::readonly()).unwrap();
    assert!(contents(&pool, history.made) == files, "{shape:?}");
}

#[test]
fn moved_blocks_are_resilvered() {
    let kinds = [("mirror", 2), ("mirror", 3), ("raidz1", 3), ("raidz2", 5)];
    let chosen = |shape: &MoverShape| kinds.contains(&(shape.kind, shape.disks));
    side_by_side(&shapes().into_iter().filter(chosen).collect::<Vec<_>>(), replaced);
}
