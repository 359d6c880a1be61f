//! Data vdevs are removed: their blocks move to the others while the pool is changed, a removal
//! is canceled, continued after an import and after a crash, and refused where it cannot be done.
//! OpenZFS's zdb finds no error, and the audit finds planted ones.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, missing_docs)]

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{ErrorKind, Guid, VdevId};
use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting};
use cenote::{Io, Offline, OfflineMode, Pool, RemovalTuning, ScanRequest, ScanState};
use common::pools::{
    ModelFiles, NAME, image_of, import, leaves, open, verify, whole, writing, zdb,
};
use device::sim::{SimConfig, SimDisks};
use spa::audit::{AuditOptions, Verify};
use spa::engine::{Writer, WriterOptions};
use testkit::{Scratch, import_from};

/// The files are sparse; a pool keeps 128 MiB of slop.
const DISK: u64 = 512 << 20;
/// Bytes of a simulated disk.
const SIMULATED: u64 = 80 << 20;

/// The kinds of the top-level vdevs: disks of a mirror, or 1. The first one is removed.
#[derive(Clone, Copy, Debug)]
struct RemovalShape {
    tops: &'static [usize],
    ashift: u64,
}

const SHAPES: [RemovalShape; 8] = {
    const fn of(tops: &'static [usize], ashift: u64) -> RemovalShape {
        RemovalShape { tops, ashift }
    }
    [
        of(&[1, 1], 9),
        of(&[1, 1], 12),
        of(&[2, 1], 9),
        of(&[2, 2], 12),
        of(&[1, 2], 12),
        of(&[3, 2, 1], 9),
        of(&[1, 1, 1], 12),
        of(&[2, 2, 2], 9),
    ]
};

impl RemovalShape {
    fn make(&self, dir: &Path) -> Arc<Pool> {
        self.make_of(dir, DISK)
    }

    fn make_of(&self, dir: &Path, size: u64) -> Arc<Pool> {
        self.make_with(&testkit::engine(), dir, size)
    }

    fn make_with(&self, engine: &cenote::Engine, dir: &Path, size: u64) -> Arc<Pool> {
        let mut next = 0;
        let mut file = || {
            let path = dir.join(format!("disk{next}"));
            std::fs::File::create(&path).unwrap().set_len(size).unwrap();
            next += 1;
            NewVdev::new(NewKind::File(path))
        };
        let vdev = |disks: &usize| match disks {
            1 => file(),
            n => {
                let leaves = (0..*n).map(|_| file()).collect();
                NewVdev::new(NewKind::Mirror).with_children(leaves)
            }
        };
        let vdevs = self.tops.iter().map(vdev).collect();
        let request = CreateRequest {
            force: Force::ALL,
            settings: vec![PoolSetting::Stored("ashift", self.ashift)],
            ..CreateRequest::new(NAME, vdevs)
        };
        engine.create_pool(&request).unwrap().unwrap()
    }
}

/// The guid of a top-level vdev.
fn top(pool: &Pool, id: u32) -> Guid {
    let config = pool.writer().unwrap().published().config;
    config.vdev_tree.children.iter().find(|v| v.id == id).unwrap().guid
}

/// The removal waits when this much is copied.
fn hold_after(w: &Writer, bytes: u64) {
    w.removal_plants().hold_after.store(bytes + 1, Relaxed);
}

fn hold_no_more(w: &Writer) {
    w.removal_plants().hold_after.store(0, Relaxed);
}

/// Small steps and segments, so that there are many.
const SMALL: RemovalTuning =
    RemovalTuning { segment: 64 << 10, limit: 1 << 20, ignore_errors: false };

fn remove(w: &Writer, guid: Guid) {
    w.begin_vdev_removal(guid, None).unwrap();
}

fn finished(w: &Writer) {
    testkit::eventually("the removal ends", || w.removal().is_none());
    // Its last txg may not be on disk yet.
    w.sync().unwrap();
}

fn record(pool: &Pool) -> [u64; 7] {
    let words = pool.spa().mos().lookup_words("com.delphix:removing").unwrap().unwrap();
    *words.first_chunk().unwrap()
}

/// Blocks move while files are written, changed and removed; snapshots keep what they had; the
/// next vdev is removed as well, with copies of the first on it; everything can be freed
/// in the end, and the devices are free.
#[test]
fn vdevs_of_all_kinds_are_removed() {
    let dirs: Vec<(RemovalShape, Scratch)> = SHAPES
        .into_iter()
        .map(|shape| {
            let name = format!("removal-{:?}-{}", shape.tops, shape.ashift);
            (shape, Scratch::new(&name.replace(['[', ']', ',', ' '], "")))
        })
        .collect();
    testkit::side_by_side(&dirs, |(shape, scratch)| {
        let dir = scratch.path();
        let pool = shape.make(dir);
        let w = pool.writer().unwrap();
        w.set_removal_tuning(SMALL);
        let mut files = ModelFiles::new(&pool, 3 + shape.ashift);
        (0..40).for_each(|_| files.write());
        (0..10).for_each(|_| files.unlink());
        w.snapshot(&[format!("{NAME}@before")], &[], None).unwrap();
        let before = files.content.clone();
        let removed = shape.tops.len() - 1;
        for vdev in 0..removed as u32 {
            let estimate = w.estimate_removal(top(&pool, vdev)).unwrap();
            assert!(estimate.to_copy > 1 << 20 && estimate.memory > 24, "{estimate:?}");
            remove(w, top(&pool, vdev));
            while w.removal().is_some() {
                files.change();
                w.sync().unwrap();
            }
            finished(w);
            let [state, of, prev, start, end, _, copied] = record(&pool);
            assert_eq!((state, of, prev), (2, vdev.into(), vdev.into()));
            assert!(start > 0 && end >= start && copied > 0);
            (0..5).for_each(|_| files.change());
        }
        pool.scan(ScanRequest::Scrub, None).unwrap();
        let over = || pool.status().unwrap().scan.is_some_and(|s| s.state == ScanState::Finished);
        testkit::eventually("the scrub ends", over);
        assert_eq!(pool.status().unwrap().scan.unwrap().errors, 0);
        let content = std::mem::take(&mut files.content);
        drop(files);
        pool.export().unwrap();
        drop(pool);
        // The devices of removed vdevs are not needed.
        let gone: usize = shape.tops[..removed].iter().sum();
        for n in 0..gone {
            std::fs::remove_file(dir.join(format!("disk{n}"))).unwrap();
        }
        let report = whole(dir, "removed");
        assert_eq!(report.indirect.len(), removed);
        zdb(dir, NAME);
        let pool = import(dir);
        verify(&pool, NAME, &content);
        verify(&pool, &format!("{NAME}@before"), &before);
        let mut files = ModelFiles::new(&pool, 5);
        files.content = content;
        files.made = 1000;
        (0..10).for_each(|_| files.change());
        verify(&pool, NAME, &files.content);
        while !files.content.is_empty() {
            files.unlink();
        }
        drop(files);
        pool.destroy_snapshots(&[format!("{NAME}@before")], false, None).unwrap();
        pool.export().unwrap();
        drop(pool);
        whole(dir, "emptied");
        if shape.tops.len() == 3 || std::env::var_os("CENOTE_NIGHTLY").is_some() {
            zdb(dir, NAME);
        }
    });
}

/// A removal that is canceled leaves nothing behind, and the vdev is used again.
#[test]
fn a_canceled_removal_leaves_nothing() {
    let shapes = [SHAPES[0], SHAPES[3], SHAPES[5]];
    testkit::side_by_side(&shapes, |shape| {
        let scratch = Scratch::new(&format!(
            "removal-canceled-{}",
            shape.tops.len() * 100 + shape.ashift as usize
        ));
        let dir = scratch.path();
        let pool = shape.make(dir);
        let w = pool.writer().unwrap();
        w.set_removal_tuning(SMALL);
        let mut files = ModelFiles::new(&pool, 11);
        (0..40).for_each(|_| files.write());
        pool.sync().unwrap();
        let allocated = w.space().vdev_totals(VdevId(0)).unwrap().allocated;
        hold_after(w, 2 << 20);
        remove(w, top(&pool, 0));
        testkit::eventually("much is copied", || {
            w.removal().is_some_and(|(_, r)| r.copied > 1 << 20)
        });
        (0..20).for_each(|_| files.change());
        w.sync().unwrap();
        let refused = w.begin_vdev_removal(top(&pool, 1), None).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        // As it is, OpenZFS's zdb and the audit find it whole.
        let [state, ..] = record(&pool);
        assert_eq!(state, 1);
        w.cancel_removal(None).unwrap();
        assert_eq!(w.cancel_removal(None).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(record(&pool)[0], 3);
        (0..20).for_each(|_| files.write());
        for _ in 0..4 {
            w.touch();
            w.sync().unwrap();
        }
        let again = w.space().vdev_totals(VdevId(0)).unwrap().allocated;
        assert!(again > allocated / 2, "it is allocated from again: {again} after {allocated}");
        let content = std::mem::take(&mut files.content);
        drop(files);
        pool.export().unwrap();
        drop(pool);
        let report = whole(dir, "canceled");
        assert!(report.indirect.is_empty());
        zdb(dir, NAME);
        // And it can be removed after all.
        let pool = import(dir);
        verify(&pool, NAME, &content);
        let w = pool.writer().unwrap();
        remove(w, top(&pool, 0));
        finished(w);
        verify(&pool, NAME, &content);
        pool.export().unwrap();
        drop(pool);
        assert_eq!(whole(dir, "removed").indirect.len(), 1);
        zdb(dir, NAME);
    });
}

/// An export in the middle of a removal: the pool is whole, and the next import goes on.
#[test]
fn a_removal_is_continued() {
    let shapes = [SHAPES[1], SHAPES[2]];
    testkit::side_by_side(&shapes, |shape| {
        let scratch = Scratch::new(&format!("removal-continued-{}", shape.ashift));
        let dir = scratch.path();
        let pool = shape.make(dir);
        let w = pool.writer().unwrap();
        w.set_removal_tuning(SMALL);
        let mut files = ModelFiles::new(&pool, 17);
        (0..40).for_each(|_| files.write());
        w.snapshot(&[format!("{NAME}@s")], &[], None).unwrap();
        let before = files.content.clone();
        hold_after(w, 2 << 20);
        remove(w, top(&pool, 0));
        testkit::eventually("some is copied", || {
            w.removal().is_some_and(|(_, r)| r.copied > 1 << 20)
        });
        (0..20).for_each(|_| files.change());
        let content = std::mem::take(&mut files.content);
        drop(files);
        pool.export().unwrap();
        drop(pool);
        whole(dir, "in the middle");
        zdb(dir, NAME);
        let pool = import(dir);
        let w = pool.writer().unwrap();
        let mut files = ModelFiles::new(&pool, 18);
        (files.content, files.made) = (content, 1000);
        while w.removal().is_some() {
            files.change();
            w.sync().unwrap();
        }
        verify(&pool, NAME, &files.content);
        verify(&pool, &format!("{NAME}@s"), &before);
        drop(files);
        pool.export().unwrap();
        drop(pool);
        whole(dir, "at the end");
        zdb(dir, NAME);
    });
}

/// Frees some objects of the root dataset, in a txg that may be any of those of the removal.
fn free_some(w: &Arc<Writer>, nth: usize) {
    let os = common::head_of(w, NAME);
    let (mut at, mut found) = (base::ObjectId(0), Vec::new());
    while let Some(id) = os.next_object(at, Io::WAIT).unwrap() {
        at = id;
        let object = os.object(id, Io::WAIT).unwrap();
        if object.object_type() == ondisk::ObjType::PLAIN_FILE_CONTENTS {
            found.push(id);
        }
    }
    let tx = w.begin_wait(0, true).unwrap();
    found.iter().skip(1).step_by(nth).for_each(|id| os.free_object(&tx, *id).unwrap());
}

/// Wherever the power fails, the pool is whole: before, during and after the removal, and after
/// its cancellation. From some of the moments the removal is continued to its end.
#[test]
fn a_crash_at_any_moment_loses_nothing() {
    let shapes = [SHAPES[0], SHAPES[4], SHAPES[3]];
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let (middle, continued) = (Default::default(), Default::default());
    let (middle, continued): (std::sync::atomic::AtomicUsize, std::sync::atomic::AtomicUsize) =
        (middle, continued);
    let mut crashes = 0;
    for (n, shape) in shapes.into_iter().enumerate() {
        let scratch = Scratch::new(&format!("removal-crash-{n}"));
        let pool = shape.make_of(scratch.path(), SIMULATED);
        let mut files = ModelFiles::new(&pool, 23 + n as u64);
        (0..16).for_each(|_| files.write());
        drop(files);
        pool.export().unwrap();
        drop(pool);
        let count: usize = shape.tops.iter().sum();
        let images =
            (0..count).map(|n| image_of(&scratch.path().join(format!("disk{n}")))).collect();
        let disks = SimDisks::new(SimConfig::new(7 + n as u64), images);
        let spa = open(&leaves(&disks), &writing());
        let options = WriterOptions { threads: 1, ..WriterOptions::default() };
        let w = spa.start_writer(options).unwrap();
        w.set_removal_tuning(SMALL);
        // Of so small a pool it would be half.
        w.plants.slop.store(4 << 20, Relaxed);
        let guid = |id: u32| {
            let config = w.published().config;
            config.vdev_tree.children.iter().find(|v| v.id == id).unwrap().guid
        };
        hold_after(&w, 1 << 20);
        remove(&w, guid(0));
        testkit::eventually("some is copied", || w.removal().is_some_and(|(_, r)| r.copied > 0));
        free_some(&w, 3);
        w.sync().unwrap();
        if n == 0 {
            w.cancel_removal(None).unwrap();
            remove(&w, guid(0));
        }
        hold_no_more(&w);
        while w.removal().is_some() {
            free_some(&w, 5);
            w.sync().unwrap();
        }
        w.touch();
        w.sync().unwrap();
        w.stop();
        let all = disks.crash_points();
        let wanted = if nightly { all.len() } else { 24 };
        let points: Vec<(u64, u64)> = all
            .iter()
            .step_by((all.len() / wanted).max(1))
            .enumerate()
            .map(|(i, event)| (*event, i as u64 % 3))
            .collect();
        crashes += points.len();
        testkit::side_by_side(&points, |&(event, seed)| {
            let quiet = || SimConfig { record: false, ..SimConfig::new(1) };
            let images = disks.crash_image(event, seed).unwrap();
            let audit = |disks: &SimDisks| {
                let spa = open(&leaves(disks), &testkit::readonly());
                let options = AuditOptions { threads: 2, ..AuditOptions::default() };
                let report = spa.audit(options, &()).unwrap();
                assert!(report.is_clean(), "{shape:?} {event}:{seed}: {:#?}", report.problems);
                spa.mos().lookup_words("com.delphix:removing").unwrap().map(|words| words[0])
            };
            let after = SimDisks::new(quiet(), images);
            if audit(&after) != Some(1) {
                return;
            }
            middle.fetch_add(1, Relaxed);
            if event % 4 != 0 {
                return;
            }
            let spa = open(&leaves(&after), &writing());
            let w = spa.start_writer(WriterOptions { threads: 1, ..WriterOptions::default() });
            let w = w.unwrap();
            w.plants.slop.store(4 << 20, Relaxed);
            finished(&w);
            w.stop();
            drop(spa);
            assert_eq!(audit(&after), Some(2), "{shape:?} {event}:{seed}");
            continued.fetch_add(1, Relaxed);
        });
    }
    println!("SIMULATED device_removal: {crashes} crashes");
    assert!(middle.into_inner() > 5 && continued.into_inner() > 0, "no crash in the middle");
}

/// Each planted bug is found.
#[test]
fn the_audit_finds_planted_bugs() {
    type PlantBug = fn(&Writer);
    let cases: [(&str, PlantBug); 4] = [
        ("an entry is lost", |w| w.removal_plants().lost_entry.store(true, Relaxed)),
        ("a free is forgotten", |w| w.removal_plants().forgotten_free.store(true, Relaxed)),
        ("copies are one sector off", |w| w.removal_plants().off_by_one.store(true, Relaxed)),
        ("deferred frees are copied", |w| w.removal_plants().deferred_frees.store(true, Relaxed)),
    ];
    testkit::side_by_side(&cases, |(what, plant)| {
        let scratch = Scratch::new(&format!("removal-{}", what.replace(' ', "-")));
        let dir = scratch.path();
        let pool = SHAPES[0].make(dir);
        let w = pool.writer().unwrap();
        w.set_removal_tuning(SMALL);
        let mut files = ModelFiles::new(&pool, 31);
        (0..40).for_each(|_| files.write());
        pool.sync().unwrap();
        (0..20).for_each(|_| files.unlink());
        plant(w);
        hold_after(w, 0);
        remove(w, top(&pool, 0));
        hold_no_more(w);
        // A lost entry may stop a free, and with it the pool.
        let mut steps = 0;
        while w.removal().is_some() && w.check_running().is_ok() && steps < 300 {
            steps += 1;
            if *what == "a free is forgotten" && !files.content.is_empty() {
                files.unlink();
            }
            w.touch();
            let _stopped = w.sync();
        }
        drop(files);
        let stopped = w.check_running().is_err();
        let _lost = pool.export();
        drop(pool);
        let pool = import_from(&testkit::engine(), dir, &testkit::readonly()).unwrap();
        let options = AuditOptions { verify: Verify::All, ..AuditOptions::default() };
        let report = pool.spa().audit(options, &()).unwrap();
        println!(
            "{what}: stopped {stopped}, leaked {}, {:?}",
            report.leaked,
            report.problems.first()
        );
        assert!(stopped || !report.is_clean() || report.leaked > 0, "{what}");
    });
}

/// A side of the mirror that gets the copies is away while they are made. When it is back it
/// gets them, too: after the removal, because until then no pointer leads to them. A side of
/// the mirror that is removed may be away as well.
#[test]
fn a_device_that_was_away_gets_its_copies() {
    let scratch = Scratch::new("removal-away");
    let dir = scratch.path();
    let engine = testkit::engine();
    let pool = SHAPES[3].make_with(&engine, dir, DISK);
    let w = pool.writer().unwrap();
    w.set_removal_tuning(SMALL);
    let mut files = ModelFiles::new(&pool, 47);
    (0..40).for_each(|_| files.write());
    let disk = |n: usize| dir.join(format!("disk{n}")).to_str().unwrap().to_owned();
    let away = Offline { mode: OfflineMode::Offline, temporary: true };
    hold_after(w, 1 << 20);
    remove(w, top(&pool, 0));
    testkit::eventually("some is copied", || w.removal().is_some_and(|(_, r)| r.copied > 1 << 20));
    engine.offline(&pool, &disk(0), away, None).unwrap();
    engine.offline(&pool, &disk(3), away, None).unwrap();
    hold_after(w, 3 << 20);
    testkit::eventually("more is copied", || w.removal().is_some_and(|(_, r)| r.copied > 3 << 20));
    engine.online(&pool, &disk(3), false, None).unwrap();
    (0..10).for_each(|_| files.change());
    pool.sync().unwrap();
    let remarks: Vec<_> = pool.status().unwrap().root.children.into_iter().map(|v| v.aux).collect();
    assert_eq!(remarks, [Some("(removing)".to_owned()), None]);
    let scan = || pool.status().unwrap().scan;
    assert!(scan().is_none(), "no resilver while the vdev is being removed");
    hold_no_more(w);
    finished(w);
    let over = || scan().is_some_and(|s| s.resilver && s.state == ScanState::Finished);
    testkit::eventually("the resilver ends", over);
    assert_eq!(scan().unwrap().errors, 0);
    let content = std::mem::take(&mut files.content);
    drop(files);
    pool.export().unwrap();
    drop(pool);
    // The side that was there all the time goes.
    std::fs::remove_file(disk(2)).unwrap();
    let pool = import(dir);
    verify(&pool, NAME, &content);
    pool.scan(ScanRequest::Scrub, None).unwrap();
    let over = || scan_of(&pool).is_some_and(|s| s.state == ScanState::Finished);
    testkit::eventually("the scrub ends", over);
    assert_eq!(scan_of(&pool).unwrap().errors, 0);
    pool.export().unwrap();
}

fn scan_of(pool: &Pool) -> Option<cenote::ScanStatus> {
    pool.status().unwrap().scan.filter(|s| !s.resilver)
}

/// The message of a refusal.
fn refused(w: &Writer, guid: Guid) -> (ErrorKind, String) {
    let e = w.begin_vdev_removal(guid, None).unwrap_err();
    (e.kind(), e.message().to_owned())
}

/// What cannot be removed stays as it is, with OpenZFS's words.
#[test]
fn what_cannot_be_removed_is_refused() {
    let scratch = Scratch::new("removal-refused");
    let dir = scratch.path();
    let pool = SHAPES[2].make(dir);
    let w = pool.writer().unwrap();
    let config = w.published().config;
    let child = config.vdev_tree.children[0].children[0].guid;
    let (kind, text) = refused(w, child);
    assert_eq!(
        (kind, &*text),
        (ErrorKind::Unsupported, "operation not supported on this type of pool")
    );
    assert_eq!(refused(w, Guid(77)), (ErrorKind::NotFound, "no such device in pool".to_owned()));
    // The rest has no room.
    let mut files = ModelFiles::new(&pool, 41);
    while w.allocatable(false) > 300 << 20 {
        (0..16).for_each(|_| files.write());
        pool.sync().unwrap();
    }
    assert_eq!(refused(w, top(&pool, 0)), (ErrorKind::NoSpace, "out of space".to_owned()));
    assert!(w.space().is_allocating(VdevId(0)), "it is used as before");
    while files.content.len() > 4 {
        files.unlink();
    }
    (0..4).for_each(|_| {
        w.touch();
        w.sync().unwrap();
    });
    pool.take_checkpoint(None).unwrap();
    let (kind, _) = refused(w, top(&pool, 0));
    assert_eq!(kind, ErrorKind::Busy, "a checkpoint");
    drop(files);
    pool.export().unwrap();
    drop(pool);
    zdb(dir, NAME);

    // RAID-Z.
    let scratch = Scratch::new("removal-raidz");
    let file = |n: usize| {
        let path = scratch.path().join(format!("disk{n}"));
        std::fs::File::create(&path).unwrap().set_len(DISK).unwrap();
        NewVdev::new(NewKind::File(path))
    };
    let raidz = |from: usize| {
        NewVdev::new(NewKind::Raidz { nparity: 1 })
            .with_children((from..from + 3).map(file).collect())
    };
    let request =
        CreateRequest { force: Force::ALL, ..CreateRequest::new(NAME, vec![raidz(0), raidz(3)]) };
    let pool = testkit::engine().create_pool(&request).unwrap().unwrap();
    let (kind, text) = refused(pool.writer().unwrap(), top(&pool, 1));
    assert_eq!(kind, ErrorKind::Invalid);
    assert_eq!(
        text,
        "invalid config; all top-level vdevs must have the same sector size and not be raidz."
    );
    pool.export().unwrap();
}

/// The copies in a mirror differ, and nothing here knows which is right: the removal is
/// canceled, and a scrub repairs them. Then it can be done.
#[test]
fn differing_copies_stop_a_removal() {
    let scratch = Scratch::new("removal-differs");
    let dir = scratch.path();
    let pool = SHAPES[2].make(dir);
    let mut files = ModelFiles::new(&pool, 43);
    (0..40).for_each(|_| files.write());
    let content = std::mem::take(&mut files.content);
    drop(files);
    pool.export().unwrap();
    drop(pool);
    let disk = std::fs::OpenOptions::new().write(true).open(dir.join("disk1")).unwrap();
    for at in (0..24u64).map(|n| (4 << 20) + (n << 20)) {
        disk.write_all_at(&[0x5a; 64 << 10], at).unwrap();
    }
    let pool = import(dir);
    let w = pool.writer().unwrap();
    remove(w, top(&pool, 0));
    finished(w);
    let [state, ..] = record(&pool);
    assert_eq!(state, 3, "it is canceled");
    let said = pool.spa().history().unwrap();
    let text = format!("{said:?}");
    assert!(text.contains("the copies in a mirror differ"), "{text}");
    pool.scan(ScanRequest::Scrub, None).unwrap();
    let over = || pool.status().unwrap().scan.is_some_and(|s| s.state == ScanState::Finished);
    testkit::eventually("the scrub ends", over);
    remove(w, top(&pool, 0));
    finished(w);
    assert_eq!(record(&pool)[0], 2);
    verify(&pool, NAME, &content);
    pool.export().unwrap();
    drop(pool);
    whole(dir, "removed");
    zdb(dir, NAME);
}
