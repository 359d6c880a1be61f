//! Pools that OpenZFS left in the middle of a scrub or resilver, or with known errors: Cenote
//! finishes them.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use cenote::{Engine, ImportOptions, Pool};
use ondisk::scan::{ScanFunc, ScanState};
use spa::engine::ScanRequest;
use testkit::{Golden, Scratch, golden, import_from, verify};

const LIMIT: Duration = Duration::from_secs(300);

struct Copy {
    golden: Golden,
    scratch: Scratch,
    engine: Arc<Engine>,
}

impl Copy {
    fn of(name: &str) -> Option<Copy> {
        let golden = golden(name)?;
        let scratch = Scratch::new(&format!("scan-{name}"));
        golden.unpack(scratch.path());
        Some(Copy { golden, scratch, engine: testkit::engine() })
    }

    fn dir(&self) -> &Path {
        self.scratch.path()
    }

    fn import(&self) -> Arc<Pool> {
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        import_from(&self.engine, self.dir(), &options).unwrap()
    }

    /// Every file is as the manifest says, and zdb finds no error.
    fn judge(&self) {
        let pool = import_from(&self.engine, self.dir(), &testkit::readonly()).unwrap();
        for (name, manifest) in self.golden.manifests() {
            let fs = pool.dataset(&name).unwrap().open_fs().unwrap();
            let found = verify(&fs, &manifest, true);
            assert!(found.is_empty(), "{name}: {found:#?}");
        }
        drop(pool);
        self.zdb();
    }

    fn zdb(&self) {
        let mut zdb = Command::new("zdb");
        zdb.args(["-e", "-p"]).arg(self.dir()).args(["-bcc", &self.golden.name]);
        let Ok(out) = zdb.output() else {
            testkit::skip(testkit::Need::Zdb, "zdb is not installed");
            return;
        };
        let text = String::from_utf8_lossy(&out.stdout).into_owned()
            + &String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && text.contains("No leaks"), "{text}");
    }
}

/// Waits until no scan runs.
fn wait(pool: &Pool) {
    let writer = pool.writer().unwrap();
    assert!(base::rt::poll(LIMIT, || writer.running_scan().is_none()), "the scan does not end");
}

#[test]
fn a_scrub_that_openzfs_paused_is_finished() {
    let Some(copy) = Copy::of("scrubbing") else { return };
    let pool = copy.import();
    let writer = pool.writer().unwrap();
    let paused = writer.scan_progress().unwrap();
    assert_eq!((paused.scan.func, paused.scan.state), (ScanFunc::Scrub, ScanState::Scanning));
    assert!(paused.paused > 0 && paused.scan.examined > 0, "{paused:?}");
    pool.scan(ScanRequest::Scrub, Some("zpool scrub scrubbing")).unwrap();
    wait(&pool);
    let done = writer.scan_progress().unwrap().scan;
    assert_eq!((done.state, done.errors), (ScanState::Finished, 0), "{done:?}");
    assert!(done.processed > paused.scan.processed, "one side of the mirror is damaged: {done:?}");
    // Nothing is left to repair; what was read before the pause was repaired by OpenZFS.
    pool.scan(ScanRequest::Scrub, None).unwrap();
    wait(&pool);
    let again = writer.scan_progress().unwrap().scan;
    assert_eq!((again.processed, again.errors), (0, 0), "{again:?}");
    pool.export().unwrap();
    drop(pool);
    copy.judge();
}

/// Leaves with missing txgs.
fn behind(pool: &Pool) -> usize {
    let tree = pool.writer().unwrap().zio().tree();
    tree.leaves().filter(|(_, leaf)| leaf.is_behind()).count()
}

#[test]
fn a_resilver_that_openzfs_began_is_finished() {
    let Some(copy) = Copy::of("resilvering") else { return };
    let pool = copy.import();
    let writer = pool.writer().unwrap();
    wait(&pool);
    let done = writer.scan_progress().unwrap().scan;
    assert_eq!((done.func, done.state), (ScanFunc::Resilver, ScanState::Finished), "{done:?}");
    assert!(done.processed > 0 && done.errors == 0, "{done:?}");
    assert_eq!(behind(&pool), 0);
    scrub_is_clean(&pool);
    pool.export().unwrap();
    drop(pool);
    copy.judge();
}

/// A leaf that missed txgs, and one that a distributed spare stands in for: an import for writing
/// repairs what is there, and leaves the pool in order.
#[test]
fn devices_that_openzfs_left_behind_are_made_whole() {
    for name in ["outdated", "dspared"] {
        let Some(copy) = Copy::of(name) else { continue };
        let pool = copy.import();
        assert!(base::rt::poll(LIMIT, || behind(&pool) == 0), "{name}: a leaf is behind");
        wait(&pool);
        scrub_is_clean(&pool);
        pool.export().unwrap();
        drop(pool);
        copy.judge();
    }
}

/// A scrub finds nothing wrong anywhere.
fn scrub_is_clean(pool: &Pool) {
    pool.scan(ScanRequest::Scrub, None).unwrap();
    wait(pool);
    let writer = pool.writer().unwrap();
    let scrub = writer.scan_progress().unwrap().scan;
    assert_eq!((scrub.func, scrub.processed, scrub.errors), (ScanFunc::Scrub, 0, 0), "{scrub:?}");
    let tree = writer.zio().tree();
    assert!(tree.nodes().all(|(_, n)| n.errors().cksum == 0), "checksum errors");
}

#[test]
fn errors_that_openzfs_stored_are_found_again() {
    let Some(copy) = Copy::of("errlog") else { return };
    let pool = copy.import();
    let errors = |pool: &Pool| {
        let mut all = pool.data_errors().unwrap();
        all.sort_by_key(|e| (e.objset, e.object));
        all
    };
    let before = errors(&pool);
    assert_eq!(before.len(), 3, "two files, and one of them in a snapshot");
    // The blocks are lost: each scrub finds them again.
    for _ in 0..2 {
        pool.scan(ScanRequest::Scrub, None).unwrap();
        wait(&pool);
        let scrub = pool.writer().unwrap().scan_progress().unwrap().scan;
        assert_eq!(scrub.errors, 28, "as many as OpenZFS found: {scrub:?}");
        assert_eq!(errors(&pool), before);
    }
    pool.export().unwrap();
    drop(pool);
    let pool = copy.import();
    assert_eq!(errors(&pool), before, "they are on disk");
    pool.export().unwrap();
}
