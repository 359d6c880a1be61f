//! Resilvers: a leaf that was away gets what it missed, by itself.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use common::scans::*;
use common::shapes::*;
use common::*;
use ondisk::scan::{ScanFunc, ScanState};
use spa::ImportOptions;
use spa::engine::{ScanLimits, Writer};

fn import(d: &FileDisks) -> Arc<Writer> {
    write_with(&d.dir, &ImportOptions::default())
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
        let w = import(&out.d);
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
