//! Resilvers: a leaf that was away gets what it missed, by itself.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use base::{Txg, VdevId};
use common::scans::*;
use common::shapes::*;
use common::*;
use dsl::write::features;
use ondisk::config::VdevType;
use ondisk::scan::{ScanFunc, ScanState};
use spa::ImportOptions;
use spa::engine::{
    AttachMode, Offline, ResilverTuning, ScanLimits, ScanRequest, Writer, WriterOptions,
};
use spa::leaves::Known;

fn import(d: &FileDisks) -> Arc<Writer> {
    import_with(d, |_| {})
}

/// Imports the pool; `prepare` is called before it asks for a resilver.
fn import_with(d: &FileDisks, prepare: impl FnOnce(&Writer)) -> Arc<Writer> {
    let spa = open_with(&d.dir, &ImportOptions::default()).unwrap();
    let beginning = spa.begin_writing(WriterOptions::default()).unwrap();
    prepare(beginning.writer());
    beginning.finish().unwrap()
}

/// The limits with which a scan takes many slices and checkpoints.
fn small_steps() -> ScanLimits {
    ScanLimits {
        memory: 1 << 20,
        slice_blocks: 16,
        checkpoint: Duration::ZERO,
        ..ScanLimits::default()
    }
}

/// A pool with content before, during and after the absence of its first disks, as many as
/// may be lost. They are back, and the pool is not imported.
struct Outage {
    d: FileDisks,
    all: Vec<(base::ObjectId, u64)>,
    len: usize,
    away: usize,
}

fn outage(test: &str, shape: &PoolShape) -> Outage {
    let (d, w) = shape.make(test, 96 * MB);
    let files = KnownFiles::make(&w, &shape.pool(), 10, 150_000);
    let KnownFiles { os, all, len } = files;
    drop(os);
    export(w);
    let away = redundancy(shape);
    (0..away).for_each(|leaf| take_away(&d, leaf));
    let w = import(&d);
    let mut files = KnownFiles::open(&w, &shape.pool(), &all, len);
    files.add(&w, 100..112);
    remove(&w, &files.os, files.all.remove(0).0);
    w.sync().unwrap();
    let KnownFiles { os, all, len } = files;
    drop(os);
    export(w);
    (0..away).for_each(|leaf| bring_back(&d, leaf));
    Outage { d, all, len, away }
}

impl Outage {
    /// The disks that were away hold everything: as many others lose all of their data.
    fn check(self, shape: &PoolShape, w: Arc<Writer>, what: &str) {
        clear_errors(&w);
        let scrub = scrub(&w, what).scan;
        assert_eq!((scrub.processed, scrub.errors), (0, 0), "{what}: {scrub:?}");
        assert!(errors(&w, &self.d).iter().all(|&n| n == 0), "{what}");
        export(w);
        zdb(&self.d, &shape.pool());
        (self.away..2 * self.away).for_each(|leaf| damage(&self.d, leaf, 8192, 8192));
        let w = import(&self.d);
        KnownFiles::open(&w, &shape.pool(), &self.all, self.len).check(what);
        w.stop();
        std::fs::remove_dir_all(&self.d.dir).unwrap();
    }
}

#[test]
fn a_leaf_that_returns_is_resilvered() {
    // Disks 2 and 3 of two mirrors are not each other's redundancy.
    let shapes: Vec<PoolShape> =
        redundant_shapes().into_iter().filter(|s| s.disks > 2 * redundancy(s) - 1).collect();
    testkit::side_by_side(&shapes, |shape| {
        let what = format!("{shape:?}");
        let out = outage("resilver", shape);
        let w = import(&out.d);
        let begun = base::rt::poll(LIMIT, || {
            w.scan_progress().is_some_and(|p| p.scan.func == ScanFunc::Resilver)
        });
        assert!(begun, "{what}");
        let done = finished(&w, &what).scan;
        assert_eq!((done.func, done.errors), (ScanFunc::Resilver, 0), "{what}");
        assert!(done.processed > 0 && done.min_txg.0 > 4, "{what}: {done:?}");
        assert!((0..out.away).all(|leaf| !is_behind(&w, &out.d, leaf)), "{what}");
        out.check(shape, w, &what);
    });
}

/// The pool is closed without an export again and again while the resilver takes small steps:
/// the resilver goes on, and ends.
#[test]
fn a_resilver_survives_crashes() {
    let shapes: Vec<PoolShape> = redundant_shapes()
        .into_iter()
        .filter(|s| s.ashift == 12 && s.disks > 2 * redundancy(s) - 1)
        .collect();
    testkit::side_by_side(&shapes, |shape| {
        let what = format!("{shape:?}");
        let out = outage("crashed", shape);
        for _ in 0..4 {
            let w = import(&out.d);
            w.set_scan_limits(small_steps());
            base::rt::poll(LIMIT, || {
                let progress = w.scan_progress();
                progress.is_some_and(|p| p.issued > 0 && p.scan.func == ScanFunc::Resilver)
            });
            // Nothing more is written: as after a crash.
            w.abandon();
            w.stop();
            drop(w);
        }
        let w = import(&out.d);
        base::rt::poll(LIMIT, || {
            w.scan_progress().is_some_and(|p| p.scan.func == ScanFunc::Resilver)
        });
        let done = finished(&w, &what).scan;
        assert_eq!((done.func, done.errors), (ScanFunc::Resilver, 0), "{what}");
        assert!((0..out.away).all(|leaf| !is_behind(&w, &out.d, leaf)), "{what}");
        out.check(shape, w, &what);
    });
}

/// A leaf that is away for a part of the resilver is not complete when it ends: its missing
/// txgs stay, and another resilver repairs it.
#[test]
fn a_leaf_that_was_away_during_the_scan_stays_behind() {
    let shape = PoolShape { name: "raidz2", disks: 5, ashift: 12 };
    for planted in [false, true] {
        let what = format!("planted {planted}");
        let out = outage("absent", &shape);
        // The second one is away again when the resilver begins, and returns in the middle.
        take_away(&out.d, 1);
        let w = import(&out.d);
        w.plants.scan.excise_all.store(planted, Relaxed);
        w.set_scan_limits(ScanLimits { slice_blocks: 4, ..small_steps() });
        base::rt::poll(LIMIT, || {
            let progress = w.scan_progress();
            progress.is_some_and(|p| p.issued > 0 && p.scan.func == ScanFunc::Resilver)
        });
        // What was read without the leaf is behind the stored position.
        w.sync().unwrap();
        w.abandon();
        w.stop();
        drop(w);
        bring_back(&out.d, 1);
        // However little was read, the resilver goes on.
        let tuning = ResilverTuning { defer_percent: 0, ..ResilverTuning::default() };
        let w = import_with(&out.d, |w| w.set_resilver_tuning(tuning));
        w.plants.scan.excise_all.store(planted, Relaxed);
        let resumed = w.scan_progress().unwrap().scan;
        if resumed.state != ScanState::Scanning {
            panic!("{what}: the resilver had ended already: {resumed:?}");
        }
        finished(&w, &what);
        let ended = || w.running_scan().is_none() && !is_behind(&w, &out.d, 1);
        assert!(base::rt::poll(LIMIT, ended), "{what}: no second resilver");
        if !planted {
            out.check(&shape, w, &what);
            continue;
        }
        let left = scrub(&w, &what).scan;
        assert!(left.processed > 0, "the planted bug leaves no damage: {left:?}");
        export(w);
        std::fs::remove_dir_all(&out.d.dir).unwrap();
    }
}

/// What comes while a resilver runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Late {
    /// Another device.
    New,
    /// A device that was offline.
    Back,
}

/// What happens to the pool while a resilver is deferred.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meanwhile {
    Nothing,
    Export,
    Crash,
    /// `zpool resilver`.
    Restart,
    /// The deferred leaf leaves.
    Detach,
}

/// A pool whose resilver is held in the middle, with a leaf that came later.
struct Deferral {
    d: FileDisks,
    /// `None` while it is not imported.
    w: Option<Arc<Writer>>,
    files: Vec<(base::ObjectId, u64)>,
    len: usize,
    /// The scan that ran before.
    scan: Txg,
    /// The leaf that is resilvered, and the late one.
    first: usize,
    late: usize,
}

fn hold(w: &Writer, percent: u64) {
    let bytes = w.space().vdev_totals(VdevId(0)).unwrap().allocated;
    w.plants.scan.hold_after.store((bytes * percent / 100).max(1), Relaxed);
}

/// The resilver that runs has read as much as it may.
fn held(w: &Writer, what: &str) {
    let after = w.plants.scan.hold_after.load(Relaxed);
    let there = || w.running_scan_progress().is_some_and(|p| p.issued >= after);
    assert!(base::rt::poll(LIMIT, there), "{what}: the resilver does not get that far");
}

/// So many that a request of a resilver was acted on.
fn pass_txgs(w: &Writer) {
    for _ in 0..3 {
        w.sync().unwrap();
    }
}

fn begin_late(test: &str, shape: &PoolShape, late: Late, percent: u64) -> Deferral {
    let what = format!("{shape:?} {late:?}");
    let (mut d, w) = shape.make(test, 96 * MB);
    let KnownFiles { os, mut all, len } = KnownFiles::make(&w, &shape.pool(), 40, 200_000);
    w.set_scan_limits(small_steps());
    hold(&w, percent);
    let first = attach_file(&w, &mut d, 0, AttachMode::Replace);
    held(&w, &what);
    let scan = scan_of(&w);
    let late = match late {
        Late::New if shape.name.starts_with("mirror") => {
            attach_file(&w, &mut d, 1, AttachMode::Attach)
        }
        Late::New => attach_file(&w, &mut d, 1, AttachMode::Replace),
        Late::Back => {
            let guid = guid_of(&w, &d, 1);
            let tree = w.zio().tree();
            let device = Arc::clone(tree.find(guid).unwrap().device().unwrap());
            w.offline(guid, Offline::default(), None).unwrap();
            let mut files = KnownFiles { os: Arc::clone(&os), all, len };
            files.add(&w, 200..204);
            all = files.all;
            w.online(guid, &Known(vec![(d.paths[1].clone(), device)]), None).unwrap();
            1
        }
    };
    pass_txgs(&w);
    drop(os);
    Deferral { d, w: Some(w), files: all, len, scan, first, late }
}

/// The last txg that the last or current scan visits: which scan it is.
fn scan_of(w: &Writer) -> Txg {
    w.scan_progress().unwrap().scan.max_txg
}

impl Deferral {
    fn w(&self) -> &Arc<Writer> {
        self.w.as_ref().unwrap()
    }

    fn is_marked(&self) -> bool {
        let guid = guid_of(self.w(), &self.d, self.late);
        self.w().published().config.vdev_tree.find(guid).unwrap().leaf.resilver_deferred
    }

    fn count(&self) -> Option<u64> {
        features::count(self.w().mos(), "com.datto:resilver_defer").unwrap()
    }

    fn remarks(&self) -> [Option<&'static str>; 2] {
        [self.first, self.late].map(|leaf| self.w().scan_remark(guid_of(self.w(), &self.d, leaf)))
    }

    fn check_deferred(&self, what: &str) {
        assert!(self.is_marked(), "{what}: the configuration does not say it");
        assert_eq!(self.count(), Some(1), "{what}");
        let remarks = [Some("(resilvering)"), Some("(awaiting resilver)")];
        assert_eq!(self.remarks(), remarks, "{what}");
        assert_eq!(scan_of(self.w()), self.scan, "{what}: the resilver began again");
    }

    fn reopen(&mut self, how: Meanwhile, what: &str) {
        let w = self.w.take().unwrap();
        if how == Meanwhile::Crash {
            w.abandon();
            w.stop();
            drop(w);
        } else {
            export(w);
        }
        self.w = Some(import_with(&self.d, |w| w.plants.scan.hold_after.store(1, Relaxed)));
        // Requests of the import change nothing.
        pass_txgs(self.w());
        self.check_deferred(what);
    }

    /// The scans end, all leaves are complete, and any that may be lost is not needed.
    fn finish(self, shape: &PoolShape, what: &str) {
        let Deferral { d, w, files, len, scan: _, first, late } = self;
        let w = w.unwrap();
        w.plants.scan.hold_after.store(0, Relaxed);
        w.set_scan_limits(ScanLimits::default());
        let replaced = |leaf: usize| d.paths[leaf].to_str().map(str::to_owned);
        let done = || {
            let tree = w.zio().tree();
            let config = w.published().config;
            let settled = !config.vdev_tree.walk().any(|v| v.kind == VdevType::Replacing);
            settled && w.running_scan().is_none() && !tree.nodes().any(|(_, n)| n.is_behind())
        };
        assert!(base::rt::poll(LIMIT, done), "{what}: the next resilver does not come");
        let config = w.published().config;
        assert!(!config.vdev_tree.walk().any(|v| v.leaf.resilver_deferred), "{what}");
        let clean = scrub(&w, what).scan;
        assert_eq!((clean.processed, clean.errors), (0, 0), "{what}: {clean:?}");
        let paths: Vec<String> =
            w.zio().tree().leaves().filter_map(|(_, n)| n.path().map(str::to_owned)).collect();
        export(w);
        zdb(&d, &shape.pool());
        // All that may be lost, except the new ones.
        let kept = [replaced(first), replaced(late)];
        let lost = paths.iter().filter(|p| !kept.contains(&Some((*p).clone())));
        let may =
            if shape.name.starts_with("mirror") { paths.len() - 1 } else { redundancy(shape) };
        for path in lost.take(may) {
            let leaf = d.paths.iter().position(|p| p.to_str() == Some(path)).unwrap();
            damage(&d, leaf, 8192, 8192);
        }
        // Discs that were replaced belong to no pool.
        let w = import(&d);
        KnownFiles::open(&w, &shape.pool(), &files, len).check(what);
        w.stop();
        std::fs::remove_dir_all(&d.dir).unwrap();
    }
}

/// A device that is attached, replaced or returns while a resilver runs waits for its end. The
/// pool remembers that over an export and a crash.
#[test]
fn a_later_leaf_is_deferred() {
    let kinds = [("mirror3", 3, Late::New), ("mirror3", 3, Late::Back), ("raidz2", 5, Late::New)];
    let kinds = kinds.into_iter().chain([("raidz2", 5, Late::Back)]);
    let manners = [
        (Meanwhile::Crash, 9),
        (Meanwhile::Crash, 12),
        (Meanwhile::Export, 9),
        (Meanwhile::Nothing, 12),
        (Meanwhile::Restart, 12),
    ];
    let of = |how: (Meanwhile, u32), (name, disks, late)| {
        (PoolShape { name, disks, ashift: how.1 }, late, how.0)
    };
    let cases: Vec<_> = kinds
        .flat_map(|kind| manners.map(|how| of(how, kind)))
        .chain([of((Meanwhile::Detach, 12), ("mirror3", 3, Late::New))])
        .collect();
    testkit::side_by_side(&cases, |&(shape, late, how)| {
        let what = format!("{shape:?} {late:?} {how:?}");
        let mut now = begin_late(&format!("defer{late:?}{how:?}"), &shape, late, 30);
        now.check_deferred(&what);
        match how {
            Meanwhile::Nothing => {}
            Meanwhile::Export | Meanwhile::Crash => now.reopen(how, &what),
            Meanwhile::Restart => {
                now.w().plants.scan.hold_after.store(1, Relaxed);
                now.w().scan(ScanRequest::Resilver, None).unwrap();
                pass_txgs(now.w());
                assert_eq!((now.is_marked(), now.count()), (false, Some(0)), "{what}");
                assert_eq!(now.remarks(), [Some("(resilvering)"); 2], "{what}");
                assert_ne!(scan_of(now.w()), now.scan, "{what}: it goes on");
                now.scan = scan_of(now.w());
            }
            Meanwhile::Detach => {
                let guid = guid_of(now.w(), &now.d, now.late);
                now.w().detach(guid, None).unwrap();
                assert_eq!(now.count(), Some(0), "{what}: no leaf is deferred any more");
                now.late = now.first;
            }
        }
        let w = Arc::clone(now.w());
        w.plants.scan.hold_after.store(0, Relaxed);
        let again = !matches!(how, Meanwhile::Restart | Meanwhile::Detach);
        // No leaf is deferred any more when the next resilver has begun.
        let ended = || {
            let other = (scan_of(&w) != now.scan) == again;
            w.running_scan().is_none() && other && now.count() == Some(0)
        };
        assert!(base::rt::poll(LIMIT, ended), "{what}: {:?} {:?}", w.scan_progress(), now.count());
        drop(w);
        now.finish(&shape, &what);
    });
}

/// The resilver begins again for all: without the feature, when it is to be ignored, and when
/// little was read.
#[test]
fn a_resilver_begins_again_for_a_later_leaf() {
    let shape = PoolShape { name: "raidz2", disks: 5, ashift: 12 };
    testkit::side_by_side(&[0, 1], |&case| {
        let what = format!("case {case}");
        let now = match case {
            0 => begin_late("early", &shape, Late::New, 0),
            _ => {
                let mut now = begin_late("ignored", &shape, Late::Back, 30);
                now.check_deferred(&what);
                let disable_defer = true;
                now.w().set_resilver_tuning(ResilverTuning { disable_defer, ..Default::default() });
                now.late = {
                    let w = Arc::clone(now.w());
                    attach_file(&w, &mut now.d, 2, AttachMode::Replace)
                };
                pass_txgs(now.w());
                now
            }
        };
        assert_eq!((now.is_marked(), now.count()), (false, Some(0)), "{what}");
        assert_eq!(now.remarks(), [Some("(resilvering)"); 2], "{what}");
        assert_ne!(scan_of(now.w()), now.scan, "{what}: it goes on");
        now.finish(&shape, &what);
    });
}

/// A pool on full thin storage had written one copy of some metadata, and no leaf had taken
/// another copy. Every leaf had missed the txg. Scans did not repair that copy: they left out the leaves
/// that had missed its txg. The resilver ended "with 6 errors", and the leaves stayed behind for
/// ever.
#[test]
fn a_copy_that_no_leaf_took_is_written_from_another() {
    testkit::side_by_side(&redundant_shapes(), |shape| {
        let what = format!("{shape:?}");
        let (d, w) = shape.make("no-leaf", 96 * MB);
        let files = KnownFiles::make(&w, &shape.pool(), 6, 300_000);
        let indirect = |(id, _): &(base::ObjectId, u64)| {
            let object = files.os.object(*id, dmu::Io::WAIT).unwrap();
            *object.block_pointer(1, 0, dmu::Io::WAIT).unwrap().as_block().unwrap()
        };
        let blocks: Vec<_> = files.all.iter().map(indirect).collect();
        for block in &blocks {
            let (dva, birth) = (block.dvas().nth(1).unwrap(), block.effective_physical_birth());
            let noise = base::Buf::copy_of(&vec![7; block.psize.0 as usize]);
            w.zio().tree().rewrite(dva.vdev, dva.offset, &noise, birth).unwrap();
            (0..shape.disks).for_each(|leaf| {
                let guid = guid_of(&w, &d, leaf);
                assert!(w.zio().tree().add_missing_range(guid, birth, birth));
            });
        }
        w.scan(ScanRequest::Resilver, None).unwrap();
        let begun = base::rt::poll(LIMIT, || w.scan_progress().is_some());
        assert!(begun, "{what}");
        let done = finished(&w, &what).scan;
        assert_eq!((done.func, done.errors), (ScanFunc::Resilver, 0), "{what}: {done:?}");
        w.sync().unwrap();
        let behind: Vec<usize> = (0..shape.disks).filter(|&l| is_behind(&w, &d, l)).collect();
        assert!(behind.is_empty(), "{what}: {behind:?} are still behind");
        clear_errors(&w);
        let done = scrub(&w, &what).scan;
        assert_eq!((done.errors, done.processed), (0, 0), "{what}: {done:?}");
        let KnownFiles { os, .. } = files;
        drop(os);
        export(w);
        zdb(&d, &shape.pool());
        std::fs::remove_dir_all(&d.dir).unwrap();
    });
}
