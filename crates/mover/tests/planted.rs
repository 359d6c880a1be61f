//! What is refused, and that planted bugs are found.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::planted::BugSwitch;
use base::{ErrorKind, VdevId};
use cenote::inspect::spa::audit::{AuditOptions, Verify};
use cenote::{Offline, Pool, ReceiveNames, ReceiveOptions, ScanRequest, ScanState, SendOptions};
use common::history::{MoverHistory, MoverShape, NAME, contents};
use common::*;
use mover::{MoveLimits, empty_metaslab};
use spa::engine::RelocationPlants;
use testkit::{Scratch, side_by_side};

const LIMITS: MoveLimits = MoveLimits { batch_bytes: 8 << 20, batch_blocks: 4096 };
const MIRROR: MoverShape = MoverShape { kind: "mirror", disks: 2, ashift: 12 };

/// A pool with snapshots and a clone that share blocks, some of which the head has no more.
fn shared(dir: &Path, seed: u64) -> (Arc<Pool>, MoverHistory) {
    let pool = MIRROR.make(dir);
    let mut history = MoverHistory::new(seed);
    for _ in 0..3 {
        (0..6).for_each(|_| history.write(&pool));
        history.snapshot(&pool);
        (0..2).for_each(|_| history.unlink(&pool));
    }
    pool.writer().unwrap().sync().unwrap();
    (pool, history)
}

/// What is found wrong with a pool after its blocks have moved.
fn faults(pool: Arc<Pool>, history: &mut MoverHistory, dir: &Path) -> Option<String> {
    let ended = pool.export();
    drop(pool);
    if let Err(e) = ended {
        return Some(e.to_string());
    }
    let audit = |when: &str| {
        let pool = testkit::import_from(&testkit::engine(), dir, &testkit::readonly()).unwrap();
        let options = AuditOptions { verify: Verify::All, ..AuditOptions::default() };
        let report = pool.spa().audit(options, &()).unwrap();
        let wrong = !report.is_clean() || report.leaked > 0 || report.damaged > 0;
        wrong.then(|| format!("{when}: {} leaked, {:?}", report.leaked, report.problems.first()))
    };
    if let Some(wrong) = audit("moved") {
        return Some(wrong);
    }
    let pool = import(dir);
    let _all = destroy_all(&pool, &mut history.rng);
    let ended = pool.export();
    drop(pool);
    match ended {
        Ok(()) => audit("emptied"),
        Err(e) => Some(e.to_string()),
    }
}

/// Each planted bug leaves something that the audit finds; without one there is nothing.
#[test]
fn planted_bugs_are_found() {
    type Plant = fn(&RelocationPlants) -> &BugSwitch;
    let cases: [(&str, Option<Plant>); 5] = [
        ("none", None),
        ("an entry of a deadlist is left", Some(|p| &p.left_entry)),
        ("a snapshot is left", Some(|p| &p.left_snapshot)),
        ("a head is rewritten as it was", Some(|p| &p.old_heads)),
        ("open trees are forgotten", Some(|p| &p.forgotten_handles)),
    ];
    side_by_side(&cases, |(what, plant)| {
        let scratch = Scratch::new(&format!("mover-planted-{}", what.replace(' ', "-")));
        let dir = scratch.path();
        let (pool, mut history) = shared(dir, 5);
        let w = Arc::clone(pool.writer().unwrap());
        if let Some(plant) = plant {
            plant(w.relocation_plants()).store(true, Relaxed);
        }
        // The head changes between the search and the txg of the batch.
        let open = pool.dataset(NAME).unwrap().open_fs().unwrap();
        history.write(&pool);
        let key = full_metaslabs(&w)[0];
        let done = empty_metaslab(&w, key, &LIMITS).map(|report| {
            assert!(report.moved > 0 && report.listed > 0, "{what}: {report:?}");
        });
        let wrote = done.and_then(|()| {
            (0..4).try_for_each(|_| history.try_write(&pool)).and_then(|()| pool.sync())
        });
        drop((open, w));
        let found = match wrote {
            Ok(()) => faults(pool, &mut history, dir),
            Err(e) => Some(e.to_string()),
        };
        assert_eq!(found.is_some(), plant.is_some(), "{what}: {found:?}");
    });
}

fn send(pool: &Pool, snap: &str, from: Option<&str>) -> Vec<u8> {
    let (snap, from) = (pool.dataset(snap).unwrap(), from.map(|f| pool.dataset(f).unwrap()));
    let mut out = Vec::new();
    snap.send(from.as_ref(), SendOptions::default(), &mut out, &mut |_| true).unwrap();
    out
}

/// A dataset that has not changed since its snapshot takes the next stream after its blocks have
/// moved; pointers that were equal must be equal.
#[test]
fn an_incremental_stream_is_received_by_what_was_moved() {
    side_by_side(&[false, true], |unshared| {
        let scratch = Scratch::new(&format!("mover-receive-{unshared}"));
        let (from, to) = (scratch.path().join("from"), scratch.path().join("to"));
        std::fs::create_dir_all(&from).unwrap();
        std::fs::create_dir_all(&to).unwrap();
        let source = MIRROR.make(&from);
        let mut history = MoverHistory::new(9);
        let w = source.writer().unwrap();
        (0..8).for_each(|_| history.write(&source));
        w.snapshot(&[format!("{NAME}@a")], &[], None).unwrap();
        (0..4).for_each(|_| history.write(&source));
        w.snapshot(&[format!("{NAME}@b")], &[], None).unwrap();
        let target = MoverShape { kind: "single", disks: 1, ashift: 9 }.make(&to);
        let first = send(&source, "tank@a", None);
        let (how, names) = (ReceiveOptions::default(), ReceiveNames::Whole);
        target.receive("tank/copy@a", names, &how, first.as_slice()).unwrap();
        let t = target.writer().unwrap();
        t.relocation_plants().unshared.store(*unshared, Relaxed);
        // The root of the head becomes newer than the snapshot, with the same tree.
        let head = target.dataset("tank/copy").unwrap().object();
        let os = t.open_head(head, dmu::ObjsetProps::default()).unwrap();
        os.set_zil_header([0; ondisk::objset::ZIL_HEADER_SIZE]).unwrap();
        t.touch();
        t.sync().unwrap();
        drop(os);
        let report = empty_some(&target, 2, &LIMITS);
        assert!(report.moved > 0);
        let second = send(&source, "tank@b", Some("tank@a"));
        let received = target.receive("tank/copy@b", names, &how, second.as_slice());
        if *unshared {
            assert_eq!(received.unwrap_err().kind(), ErrorKind::Busy);
            return;
        }
        received.unwrap();
        let all = contents(&target, history.made);
        let of = |name: &str| -> Vec<_> {
            all.iter().filter(|((ds, _), _)| ds == name).map(|((_, f), d)| (f, d)).collect()
        };
        assert!(!of("tank/copy@b").is_empty());
        let sent = contents(&source, history.made);
        let there: Vec<_> =
            sent.iter().filter(|((ds, _), _)| ds == "tank@b").map(|((_, f), d)| (f, d)).collect();
        assert_eq!(of("tank/copy@b"), there);
    });
}

/// Nothing is moved while a leaf is absent. If a bug does it all the same, the leaf misses the
/// txgs in which the blocks were written, because copies keep their births, and a resilver
/// brings them.
#[test]
fn nothing_moves_while_a_leaf_is_absent() {
    side_by_side(&[false, true], |planted| {
        let scratch = Scratch::new(&format!("mover-absent-{planted}"));
        let dir = scratch.path();
        let (pool, history) = shared(dir, 11);
        let engine = testkit::engine();
        let w = Arc::clone(pool.writer().unwrap());
        let files = contents(&pool, history.made);
        let leaf = dir.join("disk1").to_string_lossy().into_owned();
        engine.offline(&pool, &leaf, Offline::default(), None).unwrap();
        w.relocation_plants().unchecked_leaves.store(*planted, Relaxed);
        let key = full_metaslabs(&w)[0];
        let done = empty_metaslab(&w, key, &LIMITS);
        assert_eq!(
            done.as_ref().err().map(base::Error::kind),
            (!planted).then_some(ErrorKind::Busy)
        );
        engine.online(&pool, &leaf, false, None).unwrap();
        let whole = || {
            let tree = w.zio().tree();
            tree.leaves().all(|(_, leaf)| leaf.readable() && leaf.dtl().is_empty())
        };
        testkit::eventually("the resilver ends", || {
            w.sync().unwrap();
            whole() && w.running_scan().is_none()
        });
        pool.scan(ScanRequest::Scrub, None).unwrap();
        let over = || pool.status().unwrap().scan.is_some_and(|s| s.state == ScanState::Finished);
        testkit::eventually("the scrub ends", over);
        let repaired = pool.status().unwrap().scan.unwrap().processed;
        assert_eq!(repaired, 0, "planted: {planted}");
        assert_eq!(contents(&pool, history.made), files);
        pool.export().unwrap();
    });
}

/// What makes a batch unsound is refused, with the reason.
#[test]
fn refusals() {
    let scratch = Scratch::new("mover-refused");
    let (pool, _) = shared(scratch.path(), 3);
    let w = pool.writer().unwrap();
    let refusal = || {
        let e = w.check_relocation().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Busy);
        e.message().to_owned()
    };
    w.check_relocation().unwrap();
    pool.take_checkpoint(None).unwrap();
    assert!(refusal().contains("checkpoint"));
    w.discard_checkpoint(None).unwrap();
    testkit::eventually("the checkpoint is gone", || {
        w.sync().unwrap();
        w.check_relocation().is_ok()
    });
    let snap = pool.dataset(NAME).unwrap().snapshots().unwrap().remove(0);
    let used = w.use_snapshots(&[(snap.object(), snap.guid())]).unwrap();
    assert!(refusal().contains("sent"));
    drop(used);
    w.check_relocation().unwrap();
    let vdev = VdevId(0);
    assert!(w.space().metaslabs(vdev).unwrap().len() > 4);
    pool.export().unwrap();
}
