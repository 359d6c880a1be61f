//! Streams of OpenZFS: what is received equals the manifests of what was sent, and the snapshots
//! of the golden pools.

use cenote::{ErrorKind, Pool, PropData, ReceiveNames, ReceiveOptions};
use testkit::{ManifestEntry, golden, golden_streams, side_by_side, verify};

use super::{ALL, PLAIN, TestPool, assert_same, content_of, sent, writing};

fn stream(name: &str) -> Option<Vec<u8>> {
    golden_streams().into_iter().find(|(known, _)| known == name).map(|(_, bytes)| bytes)
}

fn manifest(pool: &str, dataset: &str) -> Option<Vec<ManifestEntry>> {
    golden(pool)?.manifests().into_iter().find(|(name, _)| name == dataset).map(|(_, of)| of)
}

fn assert_manifest(pool: &Pool, name: &str, manifest: &[ManifestEntry]) {
    let fs = pool.dataset(name).unwrap().open_fs().unwrap();
    let differences = verify(&fs, manifest, true);
    assert!(differences.is_empty(), "{name}: {differences:#?}");
}

/// A full stream, two incremental ones, and their retransmission.
#[test]
fn snapshots_of_openzfs() {
    let names = ["full", "incr", "frommark", "full-cLe"];
    let found: Vec<_> = names.into_iter().filter_map(stream).collect();
    let [full, incr, frommark, with_all] = &found[..] else { return };
    let Some(of) = TestPool::golden("snaps") else { return };
    side_by_side(&[full, with_all], |first| {
        let to = TestPool::new(if first.len() == full.len() { "full" } else { "cLe" });
        to.receive("tank/copy", first).unwrap();
        let one = manifest("snaps", "snaps/promoted@one").unwrap();
        assert_manifest(&to.pool, "tank/copy@one", &one);
        assert_same((&to.pool, "tank/copy@one"), (&of.pool, "snaps/promoted@one"));
        to.receive("tank/copy", incr).unwrap();
        let two = manifest("snaps", "snaps/promoted@two").unwrap();
        assert_manifest(&to.pool, "tank/copy@two", &two);
        assert_manifest(&to.pool, "tank/copy", &two);
        assert_manifest(&to.pool, "tank/copy@one", &one);
        assert_same((&to.pool, "tank/copy@two"), (&of.pool, "snaps/promoted@two"));
        // The bookmark is one of the first snapshot.
        let e = to.receive("tank/copy", frommark).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
        to.forced("tank/copy", frommark).unwrap();
        let three = manifest("snaps", "snaps/promoted@three").unwrap();
        assert_manifest(&to.pool, "tank/copy", &three);
        assert_same((&to.pool, "tank/copy@three"), (&of.pool, "snaps/promoted@three"));
        // The second snapshot was newer than the bookmark's.
        assert_eq!(
            to.pool.dataset("tank/copy@two").err().map(|e| e.kind()),
            Some(ErrorKind::NotFound)
        );
        let identity = |pool: &Pool, name: &str, prop: &str| {
            pool.dataset(name).unwrap().prop(prop).unwrap().unwrap().value
        };
        for prop in ["guid", "creation"] {
            assert_eq!(
                identity(&to.pool, "tank/copy@three", prop),
                identity(&of.pool, "snaps/promoted@three", prop)
            );
        }
        to.examined();
    });
}

/// Large blocks, a volume, a clone of a snapshot that is there.
#[test]
fn other_datasets_of_openzfs() {
    let Some(of) = TestPool::golden("streams") else { return };
    let to = TestPool::new("others");
    let mut received = 0;
    let whole = [
        ("large-Lec", "tank/large", "streams/large@a"),
        ("large-plain", "tank/plain", "streams/large@a"),
        ("volume", "tank/vol", "streams/vol@a"),
    ];
    for (name, target, source) in whole {
        let Some(bytes) = stream(name) else { continue };
        to.receive(target, &bytes).unwrap();
        if name != "large-plain" {
            assert_same((&to.pool, &format!("{target}@a")), (&of.pool, source));
        } else {
            // Its blocks were split.
            let ours = sent(&to.pool, &format!("{target}@a"), None, PLAIN);
            assert!(content_of(&ours) == content_of(&bytes));
        }
        received += 1;
    }
    let y = sent(&of.pool, "streams/t/y@1", None, ALL);
    to.receive("tank/y", &y).unwrap();
    if let Some(bytes) = stream("clone-from-origin") {
        to.receive("tank/cl", &bytes).unwrap();
        assert_same((&to.pool, "tank/cl@3"), (&of.pool, "streams/t/cl@3"));
        let origin = to.pool.dataset("tank/cl").unwrap().prop("origin").unwrap().unwrap().value;
        assert_eq!(origin, PropData::Str("tank/y@1".into()));
        received += 1;
    }
    assert!(received > 0);
    to.examined();
}

/// Packages: all snapshots since one, and a tree with a rename, a new dataset and a clone.
#[test]
fn packages_of_openzfs() {
    let Some(of) = TestPool::golden("streams") else { return };
    let to = TestPool::new("packages");
    let options = ReceiveOptions { force: true, ..ReceiveOptions::default() };
    let receive = |target: &str, names, bytes: &[u8]| {
        to.pool.receive(target, names, &options, bytes).unwrap()
    };
    if let Some(bytes) = stream("I13") {
        let first = sent(&of.pool, "streams/t/y@1", None, ALL);
        to.receive("tank/y", &first).unwrap();
        let got = receive("tank/y", ReceiveNames::Whole, &bytes);
        assert!(got.iter().any(|r| r.snapshot == "tank/y@3"), "{got:?}");
        for snap in ["2", "3"] {
            let name = format!("@{snap}");
            let (ours, theirs) = (format!("tank/y{name}"), format!("streams/t/y{name}"));
            assert_same((&to.pool, &ours), (&of.pool, &theirs));
        }
    }
    let (Some(first), Some(then)) = (stream("R1"), stream("RI13")) else { return };
    receive("tank/tree", ReceiveNames::Whole, &first);
    let got = receive("tank/tree", ReceiveNames::Whole, &then);
    assert!(!got.is_empty());
    for dataset in ["", "/y", "/z", "/cl"] {
        let (ours, theirs) = (format!("tank/tree{dataset}@3"), format!("streams/t{dataset}@3"));
        assert_same((&to.pool, &ours), (&of.pool, &theirs));
        if let Some(manifest) = manifest("streams", &format!("streams/t{dataset}")) {
            assert_manifest(&to.pool, &format!("tank/tree{dataset}@3"), &manifest);
        }
    }
    // Once more: everything is there.
    let again = receive("tank/tree", ReceiveNames::Whole, &then);
    assert!(again.iter().all(|r| r.skipped), "{again:?}");
    if let Some(bytes) = stream("props") {
        let got = to.pool.receive("tank/p", ReceiveNames::Whole, &options, bytes.as_slice());
        let snapshot = got.unwrap().pop().unwrap().snapshot;
        assert!(snapshot.starts_with("tank/p@"));
    }
    to.examined();
}

/// Receives that OpenZFS began and was interrupted in are completed with the streams that it sent
/// for their tokens.
#[test]
fn interrupted_receives_of_openzfs() {
    let (Some(newfs), Some(dst)) = (stream("resume-newfs"), stream("resume-dst")) else { return };
    let Some(to) = TestPool::golden_with("partial", &writing()) else { return };
    let tokens = golden("partial").unwrap().text("tokens.txt").unwrap();
    for (name, bytes, snapshot) in [("partial/newfs", &newfs, "one"), ("partial/dst", &dst, "two")]
    {
        let dataset = to.pool.dataset(name).unwrap();
        let token = dataset.resume_token().unwrap().unwrap().encode();
        let line = tokens.lines().find(|line| line.starts_with(name)).unwrap();
        let decoded = cenote::stream::ResumeToken::decode(line.split('\t').nth(2).unwrap());
        assert_eq!(cenote::stream::ResumeToken::decode(&token).unwrap(), decoded.unwrap());
        // Another stream does not continue it.
        let e = to.forced(name, if name.ends_with("dst") { &newfs } else { &dst }).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
        let got = to.receive(name, bytes).unwrap();
        let snapshot = got.first().map_or(snapshot, |r| r.snapshot.split('@').nth(1).unwrap());
        let (ours, theirs) = (format!("{name}@{snapshot}"), format!("partial/src@{snapshot}"));
        assert_same((&to.pool, &ours), (&to.pool, &theirs));
        assert_eq!(to.pool.dataset(name).unwrap().resume_token().unwrap(), None);
    }
    to.examined();
}
