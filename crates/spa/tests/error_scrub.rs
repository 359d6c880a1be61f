//! Error scrubs: they are paused, stopped, and go on after an import or a crash; what can be read
//! again leaves the error log, and nothing else does.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

mod common;

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use common::scans::*;
use common::shapes::*;
use common::*;
use dsl::write::MosRead;
use dsl::write::errlog::{self, LostBlock, StoredLog};
use ondisk::scan::{ErrorScrub, ScanFunc, ScanState};
use spa::ImportOptions;
use spa::engine::{ScanLimits, ScanRequest, Writer, WriterOptions};

/// Bytes of a block of the files.
const BLOCK: usize = 32 << 10;
/// Bytes of a file.
const LEN: usize = 3 * BLOCK;
/// Files of the pool, each of which loses a block.
const LOST: u64 = 8;

/// Bytes of the disks that were overwritten: disk, offset, and what was there.
type Saved = Vec<(usize, u64, Vec<u8>)>;

/// Overwrites the sectors of the second block of these files on all disks; parity stays.
fn lose(d: &FileDisks, shape: &PoolShape, files: std::ops::Range<u64>) -> Vec<Saved> {
    let sector = 1 << shape.ashift;
    let contents: Vec<Vec<u8>> = files.clone().map(|file| content(file, 0, LEN)).collect();
    let blocks = contents.iter().map(|bytes| &bytes[BLOCK..2 * BLOCK]).enumerate();
    // The first bytes of random sectors tell them apart.
    let head = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let wanted: HashMap<u64, (usize, &[u8])> = blocks
        .flat_map(|(n, block)| block.chunks(sector).map(move |bytes| (head(bytes), (n, bytes))))
        .collect();
    let mut saved = vec![Saved::new(); contents.len()];
    for (n, path) in d.paths.iter().enumerate() {
        let image = std::fs::read(path).unwrap();
        let disk = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        for (i, found) in image.chunks(sector).enumerate().filter(|(_, bytes)| head(bytes) != 0) {
            if let Some((file, _)) = wanted.get(&head(found)).filter(|(_, bytes)| *bytes == found) {
                let at = (i * sector) as u64;
                disk.write_all_at(&vec![0x5a; sector], at).unwrap();
                saved[*file].push((n, at, found.to_vec()));
            }
        }
    }
    for (saved, file) in saved.iter().zip(files) {
        assert!(saved.len() >= BLOCK / sector, "file {file} is on the disks");
    }
    saved
}

fn restore(d: &FileDisks, saved: &Saved) {
    for (disk, at, bytes) in saved {
        let disk = std::fs::OpenOptions::new().write(true).open(&d.paths[*disk]).unwrap();
        disk.write_all_at(bytes, *at).unwrap();
    }
}

/// Leaves the pool without an export.
fn crash(w: Arc<Writer>) {
    w.stop();
    drop(w);
}

fn known(w: &Writer) -> Vec<LostBlock> {
    let mos: &dyn MosRead = w.mos();
    let mut known = errlog::entries(mos, StoredLog::Last).unwrap();
    known.sort_unstable();
    known
}

fn stored(w: &Writer) -> ErrorScrub {
    let mos: &dyn MosRead = w.mos();
    dsl::write::scan::load_error_scrub(mos).unwrap().unwrap()
}

/// An import of the pool, whose error scrub holds when it has read this many blocks; 0: it does
/// not hold.
fn import(d: &FileDisks, hold_after: u64) -> Arc<Writer> {
    let spa = open_with(&d.dir, &ImportOptions::default()).unwrap();
    let beginning = spa.begin_writing(WriterOptions::default()).unwrap();
    steps(beginning.writer(), hold_after);
    beginning.finish().unwrap()
}

/// An error scrub takes one block after the other, up to this many.
fn steps(w: &Writer, hold_after: u64) {
    w.set_scan_limits(ScanLimits { error_batch: 1, ..ScanLimits::default() });
    w.plants.scan.hold_errors_after.store(hold_after, Relaxed);
}

fn refused(w: &Arc<Writer>, request: ScanRequest, text: &str) {
    assert_eq!(w.scan(request, None).unwrap_err().message(), text, "{request:?}");
}

/// Waits until the error scrub holds.
fn holds(w: &Writer, examined: u64, what: &str) {
    let now = || w.running_error_scrub().map(|s| s.scrub.examined);
    assert!(base::rt::poll(LIMIT, || now() == Some(examined)), "{what}: {:?}", now());
    w.sync().unwrap();
}

fn ended(w: &Writer, what: &str) -> ErrorScrub {
    assert!(base::rt::poll(LIMIT, || w.running_error_scrub().is_none()), "{what}");
    w.sync().unwrap();
    stored(w)
}

const RUNNING: &str = "currently error scrubbing; use 'zpool scrub -s' to cancel error scrub";
const PAUSED: &str = "error scrub is paused; use 'zpool scrub -e' to resume error scrub";

/// On every kind of vdev blocks are lost, and half of them come back. An error scrub that is
/// interrupted in all ways removes these from the log. A full scrub agrees.
#[test]
fn what_can_be_read_again_leaves_the_log() {
    testkit::side_by_side(&shapes(), |shape| {
        let what = format!("{shape:?}");
        let (d, w) = shape.make("errors", 72 * MB);
        let files = KnownFiles::make(&w, &shape.pool(), LOST, LEN);
        let ids: Vec<u64> = files.all.iter().map(|(id, _)| id.0).collect();
        drop(files);
        let saved = lose(&d, shape, 0..LOST);
        assert_eq!(scrub(&w, &what).scan.errors, LOST, "{what}");
        assert!(known(&w).iter().map(|b| (b.object, b.blkid)).eq(ids.iter().map(|&id| (id, 1))));
        let (back, gone): (Vec<_>, Vec<_>) =
            saved.iter().enumerate().partition(|(n, _)| n % 2 == 0);
        back.iter().for_each(|(_, saved)| restore(&d, saved));

        steps(&w, 3);
        w.scan(ScanRequest::ScrubErrors, None).unwrap();
        holds(&w, 3, &what);
        refused(&w, ScanRequest::ScrubErrors, RUNNING);
        refused(&w, ScanRequest::Scrub, RUNNING);
        w.scan(ScanRequest::Pause, None).unwrap();
        refused(&w, ScanRequest::Pause, PAUSED);
        refused(&w, ScanRequest::Scrub, PAUSED);
        let paused = stored(&w);
        assert_eq!((paused.func, paused.state), (ScanFunc::ErrorScrub, ScanState::ErrorScrubbing));
        assert_eq!((paused.to_examine, paused.examined), (LOST, 3), "{what}");
        assert_eq!((paused.errors, paused.paused, paused.end_time), (1, true, 0), "{what}");
        assert_eq!(known(&w).len() as u64, LOST - 2, "{what}");
        if shape.ashift == 9 {
            export(w)
        } else {
            crash(w)
        }

        // It stays paused, and goes on when that is requested.
        let w = import(&d, 5);
        let found = w.running_error_scrub().unwrap();
        assert_eq!(found.scrub, paused, "{what}");
        assert!(found.paused > 0, "{what}");
        w.scan(ScanRequest::ScrubErrors, None).unwrap();
        holds(&w, 5, &what);
        assert!(!stored(&w).paused, "{what}");
        crash(w);

        // One that ran when the pool was left goes on by itself.
        let w = import(&d, 0);
        let done = ended(&w, &what);
        assert_eq!((done.state, done.paused), (ScanState::Finished, false), "{what}");
        assert_eq!((done.to_examine, done.examined, done.errors), (LOST, LOST, LOST / 2));
        assert!(done.end_time >= done.start_time && done.start_time == paused.start_time);
        let left: Vec<u64> = gone.iter().map(|(n, _)| ids[*n]).collect();
        assert!(known(&w).iter().map(|b| b.object).eq(left.iter().copied()), "{what}");

        // Stopped, it leaves all it has not read again.
        gone.iter().take(1).for_each(|(_, saved)| restore(&d, saved));
        steps(&w, 2);
        w.scan(ScanRequest::ScrubErrors, None).unwrap();
        holds(&w, 2, &what);
        w.scan(ScanRequest::Stop, None).unwrap();
        let stopped = stored(&w);
        assert_eq!((stopped.state, stopped.examined), (ScanState::Canceled, 2), "{what}");
        refused(&w, ScanRequest::Stop, "there is no active scrub");
        let kept = known(&w);
        assert!(kept.iter().map(|b| b.object).eq(left.iter().skip(1).copied()), "{what}");

        // A scrub finds the same blocks, and forgets the error scrub.
        assert_eq!(scrub(&w, &what).scan.errors, kept.len() as u64, "{what}");
        assert_eq!(known(&w), kept, "{what}");
        assert_eq!(stored(&w).to_words(), [0; 9], "{what}");
        saved.iter().for_each(|saved| restore(&d, saved));
        w.scan(ScanRequest::ScrubErrors, None).unwrap();
        w.plants.scan.hold_errors_after.store(0, Relaxed);
        assert_eq!(ended(&w, &what).errors, 0, "{what}");
        assert_eq!(known(&w), [], "{what}");
        export(w);
        zdb(&d, &shape.pool());
        std::fs::remove_dir_all(&d.dir).unwrap();
    });
}

/// An empty log is read at once. A resilver that is needed takes the place of an error scrub.
#[test]
fn a_resilver_goes_first() {
    testkit::side_by_side(&redundant_shapes(), |shape| {
        let what = format!("{shape:?}");
        let (d, w) = shape.make("behind", 72 * MB);
        w.scan(ScanRequest::ScrubErrors, None).unwrap();
        let done = ended(&w, &what);
        assert_eq!((done.state, done.to_examine), (ScanState::Finished, 0), "{what}");
        let mut files = KnownFiles::make(&w, &shape.pool(), LOST, LEN);
        let saved = lose(&d, shape, 0..1).remove(0);
        assert_eq!(scrub(&w, &what).scan.errors, 1, "{what}");
        let (all, len) = (std::mem::take(&mut files.all), files.len);
        drop(files);
        export(w);
        take_away(&d, 0);
        let w = import(&d, 1);
        let mut files = KnownFiles::open(&w, &shape.pool(), &all, len);
        files.add(&w, 100..110);
        let all = std::mem::take(&mut files.all);
        drop(files);
        // It may end before it is paused.
        let paused = || {
            w.scan(ScanRequest::ScrubErrors, None).unwrap();
            let paused = w.scan(ScanRequest::Pause, None).is_ok();
            w.sync().unwrap();
            paused && stored(&w).state == ScanState::ErrorScrubbing
        };
        assert!((0..50).any(|_| paused()), "{what}");
        crash(w);
        bring_back(&d, 0);
        restore(&d, &saved);
        let w = import(&d, 0);
        let resilvers = || w.scan_progress().is_some_and(|p| p.scan.func == ScanFunc::Resilver);
        assert!(base::rt::poll(LIMIT, resilvers), "{what}");
        assert_eq!(w.running_error_scrub(), None, "{what}");
        // Another one may follow for what was born meanwhile.
        let complete = || w.running_scan().is_none() && !is_behind(&w, &d, 0);
        assert!(base::rt::poll(LIMIT, complete), "{what}");
        w.sync().unwrap();
        assert_eq!(stored(&w).state, ScanState::Canceled, "{what}");
        assert_eq!(scrub(&w, &what).scan.errors, 0, "{what}");
        KnownFiles::open(&w, &shape.pool(), &all, len).check(&what);
        export(w);
        zdb(&d, &shape.pool());
        std::fs::remove_dir_all(&d.dir).unwrap();
    });
}
