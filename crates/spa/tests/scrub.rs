//! Scrubs: damage on any kind of vdev is found at the right leaf and repaired.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use common::scans::*;
use common::shapes::*;
use common::*;
use dsl::write::MosRead;
use dsl::write::errlog::{self, StoredLog};
use ondisk::scan::{ScanFunc, ScanState};
use spa::ImportOptions;
use spa::engine::{ScanLimits, ScanRequest, Writer};

/// Limits with which even a small pool takes many slices and checkpoints.
fn small_steps() -> ScanLimits {
    ScanLimits {
        memory: 1 << 20,
        slice_blocks: 64,
        checkpoint: Duration::ZERO,
        ..ScanLimits::default()
    }
}

/// Also of gang blocks and their headers.
#[test]
fn damage_is_repaired_on_every_kind_of_vdev() {
    let cases = redundant_shapes().into_iter().flat_map(|shape| {
        let gangs = shape.name != "mirrors" && shape.name != "raidz1w5";
        [(shape, false), (shape, gangs)].into_iter().take(1 + usize::from(gangs))
    });
    testkit::side_by_side(&cases.collect::<Vec<_>>(), |(shape, gangs)| {
        let what = format!("{shape:?}, gangs {gangs}");
        let (d, w) = shape.make(if *gangs { "scrub-gangs" } else { "scrub" }, 96 * MB);
        let ganging = &w.space().force_ganging;
        if *gangs {
            ganging.larger_than.store(8192, Relaxed);
            ganging.one_in.store(2, Relaxed);
        }
        let files = KnownFiles::make(&w, &shape.pool(), 20, 200_000);
        ganging.larger_than.store(0, Relaxed);
        ganging.one_in.store(0, Relaxed);
        let is_gang = |(id, _): &(base::ObjectId, u64)| {
            let object = files.os.object(*id, dmu::Io::WAIT).unwrap();
            (0..6).any(|n| {
                let bp = object.block_pointer(0, n, dmu::Io::WAIT).unwrap();
                bp.as_block().is_some_and(|block| block.dva().gang)
            })
        };
        assert_eq!(files.all.iter().any(is_gang), *gangs, "{what}");
        // As many leaves as may be lost.
        let bad: Vec<usize> = (0..redundancy(shape)).map(|i| i * 2 % shape.disks).collect();
        bad.iter().for_each(|&leaf| damage(&d, leaf, 8192, 8192));
        let done = scrub(&w, &what);
        assert_eq!((done.scan.errors, done.scan.func), (0, ScanFunc::Scrub), "{what}");
        assert!(done.scan.processed > 0 && done.scan.examined > 0, "{what}: {done:?}");
        assert_eq!(done.scan.examined, done.issued + done.scan.skipped, "{what}: {done:?}");
        for (leaf, errors) in errors(&w, &d).into_iter().enumerate() {
            assert_eq!(errors > 0, bad.contains(&leaf), "{what}: {errors} errors of {leaf}");
        }
        clear_errors(&w);
        let again = scrub(&w, &what);
        assert_eq!((again.scan.processed, again.scan.errors), (0, 0), "{what}");
        assert!(errors(&w, &d).iter().all(|&n| n == 0), "{what}");
        let KnownFiles { os, all, len } = files;
        drop(os);
        export(w);
        zdb(&d, &shape.pool());
        // The repaired leaves are needed now: as many others lose everything.
        let others: Vec<usize> = (0..shape.disks).filter(|i| !bad.contains(i)).collect();
        others.iter().take(redundancy(shape)).for_each(|&leaf| damage(&d, leaf, 8192, 8192));
        let w = write_with(&d.dir, &ImportOptions::default());
        KnownFiles::open(&w, &shape.pool(), &all, len).check(&what);
        w.stop();
        std::fs::remove_dir_all(&d.dir).unwrap();
    });
}

/// Without redundancy a block is lost, and is noted, also across an import. When its file is gone,
/// a scrub is clean, and the note goes. Pools without features have the old form of the log.
#[test]
fn lost_blocks_are_noted_until_a_clean_scrub() {
    let singles = shapes().into_iter().filter(|s| redundancy(s) == 0);
    let cases: Vec<_> = singles.flat_map(|shape| [(shape, true), (shape, false)]).collect();
    testkit::side_by_side(&cases, |(shape, features)| {
        let what = format!("{shape:?}, features {features}");
        let test = if *features { "lost" } else { "lost-old" };
        let (d, w) = shape.make_with(test, 96 * MB, *features);
        let files = KnownFiles::make(&w, &shape.pool(), 10, 300_000);
        // The last stretch of file 3 on its disk.
        let os = files.os.object(files.all[3].0, dmu::Io::WAIT).unwrap();
        let bp = os.block_pointer(0, 2, dmu::Io::WAIT).unwrap();
        let dva = bp.as_block().unwrap().dva();
        let disk = &d.paths[dva.vdev.0 as usize];
        let file = std::fs::OpenOptions::new().write(true).open(disk).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 512], dva.offset + 4 * MB).unwrap();
        drop(os);
        let noted_in = |w: &Writer| {
            let mos: &dyn MosRead = w.mos();
            assert_eq!(errlog::is_by_head(mos).unwrap(), *features, "{what}");
            let of = |log| errlog::entries(mos, log).unwrap();
            (of(StoredLog::Last), of(StoredLog::Scrub).len())
        };
        let noted = || noted_in(&w);
        for _ in 0..2 {
            let done = scrub(&w, &what);
            assert_eq!((done.scan.errors, done.scan.processed), (1, 0), "{what}");
            let (last, found) = noted();
            assert_eq!((last.len(), found), (1, 0), "{what}");
            assert_eq!((last[0].object, last[0].blkid), (files.all[3].0.0, 2), "{what}");
            assert_eq!(last[0].birth != 0, *features, "{what}");
        }
        let before = noted();
        let KnownFiles { os, all, len } = files;
        drop(os);
        export(w);
        let w = write_with(&d.dir, &ImportOptions::default());
        let noted = || noted_in(&w);
        assert_eq!(noted(), before, "{what}: after an import");
        let files = KnownFiles::open(&w, &shape.pool(), &all, len);
        // An error scrub reads this block only, and it is lost as before.
        let error_scrub = || {
            w.scan(ScanRequest::ScrubErrors, None).unwrap();
            let ended = || {
                let mos: &dyn MosRead = w.mos();
                let scrub = dsl::write::scan::load_error_scrub(mos).unwrap();
                scrub.filter(|s| s.state == ScanState::Finished)
            };
            assert!(base::rt::poll(LIMIT, || ended().is_some()), "{what}");
            w.sync().unwrap();
            let scrub = ended().unwrap();
            (scrub.examined, scrub.errors)
        };
        assert_eq!(error_scrub(), (1, 1), "{what}");
        assert_eq!(noted().0.len(), 1, "{what}");
        remove(&w, &files.os, files.all[3].0);
        w.sync().unwrap();
        if shape.ashift == 9 {
            assert_eq!(error_scrub(), (1, 0), "{what}");
        } else {
            let done = scrub(&w, &what);
            assert_eq!(done.scan.errors, 0, "{what}");
        }
        assert_eq!(noted(), (vec![], 0), "{what}");
        drop(files);
        export(w);
        zdb(&d, &shape.pool());
        std::fs::remove_dir_all(&d.dir).unwrap();
    });
}

/// Blocks are freed, and their space is used again, snapshots come and go while a scrub with
/// many small steps runs. Nothing of that looks like damage.
#[test]
fn what_is_freed_meanwhile_is_no_damage() {
    testkit::side_by_side(&redundant_shapes(), |shape| {
        let what = format!("{shape:?}");
        let (d, w) = shape.make("busy", 128 * MB);
        w.set_scan_limits(small_steps());
        let files = KnownFiles::make(&w, &shape.pool(), 30, 150_000);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut kept: Vec<base::ObjectId> = Vec::new();
                let mut round = 0;
                while !stop.load(Relaxed) {
                    kept.push(write_new(&w, &files.os, &content(1000 + round, 0, 150_000)));
                    if kept.len() > 10 {
                        let id = kept.remove((round % 10) as usize);
                        remove(&w, &files.os, id);
                    }
                    round += 1;
                    let snap = |n: u64| vec![format!("{}@s{n}", shape.pool())];
                    if round % 7 == 0 {
                        w.snapshot(&snap(round), &[], None).unwrap();
                    }
                    if round % 7 == 3 && round > 20 {
                        w.destroy_snapshots(&snap(round - 10), false, None).unwrap();
                    }
                    if round % 3 == 0 {
                        w.sync().unwrap();
                    }
                }
            });
            for _ in 0..3 {
                let done = scrub(&w, &what);
                assert_eq!((done.scan.errors, done.scan.processed), (0, 0), "{what}: {done:?}");
            }
            stop.store(true, Relaxed);
        });
        assert!(errors(&w, &d).iter().all(|&n| n == 0), "{what}: {:?}", errors(&w, &d));
        files.check(&what);
        drop(files);
        export(w);
        zdb(&d, &shape.pool());
        std::fs::remove_dir_all(&d.dir).unwrap();
    });
}

/// Pauses as soon as the scrub has read something.
fn pause_in_the_middle(w: &Arc<Writer>) -> bool {
    w.scan(ScanRequest::Scrub, None).unwrap();
    base::rt::poll(LIMIT, || w.scan_progress().is_none_or(|p| p.scan.examined > 0));
    // It may have ended meanwhile.
    w.scan(ScanRequest::Pause, None).is_ok()
}

/// A scrub is paused, the pool is exported and imported, and the scrub continues where it was.
#[test]
fn a_paused_scrub_continues_after_an_import() {
    let paused = std::sync::atomic::AtomicUsize::new(0);
    let shapes = redundant_shapes();
    testkit::side_by_side(&shapes, |shape| {
        let what = format!("{shape:?}");
        let (d, w) = shape.make("paused", 128 * MB);
        w.set_scan_limits(small_steps());
        let files = KnownFiles::make(&w, &shape.pool(), 60, 200_000);
        damage(&d, 0, 4096, 16384);
        let is_paused = pause_in_the_middle(&w);
        paused.fetch_add(usize::from(is_paused), Relaxed);
        let KnownFiles { os, all, len } = files;
        drop(os);
        export(w);
        let w = write_with(&d.dir, &ImportOptions::default());
        w.set_scan_limits(small_steps());
        if is_paused {
            let found = w.scan_progress().unwrap();
            assert!(found.paused > 0 && found.scan.state == ScanState::Scanning, "{what}");
            assert!(w.scan(ScanRequest::Pause, None).is_err(), "{what}: it is paused");
            w.scan(ScanRequest::Scrub, None).unwrap();
        }
        assert_eq!(finished(&w, &what).scan.errors, 0, "{what}");
        clear_errors(&w);
        let again = scrub(&w, &what);
        assert_eq!((again.scan.processed, again.scan.errors), (0, 0), "{what}");
        KnownFiles::open(&w, &shape.pool(), &all, len).check(&what);
        export(w);
        zdb(&d, &shape.pool());
        std::fs::remove_dir_all(&d.dir).unwrap();
    });
    assert!(paused.load(Relaxed) > shapes.len() / 2, "most were paused in the middle");
}

/// `zpool scrub -s` and requests that make no sense.
#[test]
fn requests_of_a_scrub() {
    let shape = redundant_shapes()[0];
    let (d, w) = shape.make("requests", 96 * MB);
    let refused = |request, text: &str| {
        let e = w.scan(request, None).unwrap_err();
        assert_eq!(e.message(), text);
    };
    refused(ScanRequest::Stop, "there is no active scrub");
    refused(ScanRequest::Pause, "there is no active scrub");
    let files = KnownFiles::make(&w, &shape.pool(), 60, 200_000);
    w.set_scan_limits(small_steps());
    assert!(pause_in_the_middle(&w));
    refused(ScanRequest::Pause, "scrub is paused; use 'zpool scrub' to resume scrub");
    let before = w.scan_progress().unwrap().scan;
    w.scan(ScanRequest::Stop, None).unwrap();
    let stopped = w.scan_progress().unwrap().scan;
    assert_eq!((stopped.func, stopped.state), (ScanFunc::Scrub, ScanState::Canceled));
    assert_eq!((stopped.queue, stopped.start_time), (None, before.start_time));
    assert!(stopped.end_time > 0);
    // From the last scrub on: a stopped one does not count.
    let first = scrub(&w, "the first").scan;
    w.scan(ScanRequest::ScrubFromLast, None).unwrap();
    let second = finished(&w, "from the last").scan;
    assert_eq!((first.min_txg.0, second.min_txg), (0, first.max_txg));
    assert!(second.examined < first.examined, "{second:?}");
    drop(files);
    export(w);
    zdb(&d, &shape.pool());
    std::fs::remove_dir_all(&d.dir).unwrap();
}

/// The tests above find planted bugs: a scan that leaves blocks out, and one that continues
/// behind the block at which it stopped.
#[test]
fn planted_bugs_are_found() {
    let shape = redundant_shapes()[0];
    for bug in 0..3 {
        let (d, w) = shape.make(&format!("planted{bug}"), 128 * MB);
        let files = KnownFiles::make(&w, &shape.pool(), 60, 200_000);
        damage(&d, 0, 4096, 4096);
        let plants = &w.plants.scan;
        match bug {
            1 => plants.skip_blocks.store(true, Relaxed),
            2 => {
                w.set_scan_limits(small_steps());
                plants.one_too_far.store(true, Relaxed);
            }
            _ => {}
        }
        scrub(&w, "planted");
        plants.skip_blocks.store(false, Relaxed);
        plants.one_too_far.store(false, Relaxed);
        w.set_scan_limits(ScanLimits::default());
        let left = scrub(&w, "again").scan.processed;
        assert_eq!(left > 0, bug > 0, "bug {bug}: {left} bytes were left");
        drop(files);
        export(w);
        std::fs::remove_dir_all(&d.dir).unwrap();
    }
}
