//! What packages say of snapshots; datasets that are being sent.

use cenote::inspect::spa::engine::SnapshotHold;
use cenote::{ErrorKind, NewObject, PackageOptions, PropData, ReceiveOptions};

use super::{ALL, TestPool, noise, text};

/// Holds and properties of snapshots come with a package.
#[test]
fn holds_and_properties_of_snapshots() {
    let of = TestPool::new("extras-src");
    of.pool.create_filesystem("tank/src", &[], None).unwrap();
    of.pool.create_filesystem("tank/src/below", &[], None).unwrap();
    let note = |text: &str| vec![("user:note".to_owned(), PropData::Str(text.to_owned()))];
    for (snap, text) in [("a", "first"), ("b", "second")] {
        let names = [format!("tank/src@{snap}"), format!("tank/src/below@{snap}")];
        of.pool.snapshot(&names, &note(text), None).unwrap();
    }
    let hold = |snapshot: &str, tag: &str| SnapshotHold {
        snapshot: snapshot.to_owned(),
        tag: tag.to_owned(),
    };
    let holds = [
        hold("tank/src@a", "backup"),
        hold("tank/src@a", "other"),
        hold("tank/src/below@b", "backup"),
    ];
    of.pool.hold(&holds, None).unwrap();
    let package = PackageOptions { recursive: true, holds: true, ..PackageOptions::default() };
    let plan = of.pool.dataset("tank/src@b").unwrap().plan_send(None, &package).unwrap();
    let mut bytes = Vec::new();
    plan.send(ALL, &mut bytes, &mut |_, _| true).unwrap();
    let to = TestPool::new("extras");
    to.receive("tank/with", &bytes).unwrap();
    let without = ReceiveOptions { ignore_holds: true, ..ReceiveOptions::default() };
    to.receive_with("tank/without", &without, &bytes).unwrap();
    let tags = |name: &str| -> Vec<String> {
        let held = to.pool.dataset(name).unwrap().holds().unwrap();
        held.into_iter().map(|(tag, _)| tag).collect()
    };
    assert_eq!(tags("tank/with@a"), ["backup", "other"]);
    assert_eq!(tags("tank/with/below@b"), ["backup"]);
    for name in ["with@b", "with/below@a", "without@a", "without/below@b"] {
        assert!(tags(&format!("tank/{name}")).is_empty(), "{name}");
    }
    let noted = |name: &str| to.pool.dataset(name).unwrap().prop("user:note").unwrap().unwrap();
    for (name, text) in [("with@a", "first"), ("with/below@b", "second"), ("without@b", "second")] {
        let found = noted(&format!("tank/{name}"));
        assert_eq!(found.value, PropData::Str(text.into()), "{name}");
        assert_eq!(found.source, cenote::Source::Received, "{name}");
    }
    let e = to.pool.destroy_snapshots(&["tank/with@a".into()], false, None).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
    to.judged();
}

/// A snapshot that is being sent, or that a stream is incremental to, is not destroyed meanwhile.
#[test]
fn snapshots_that_are_sent_stay() {
    let of = TestPool::new("busy");
    of.pool.create_filesystem("tank/src", &[], None).unwrap();
    let rw = of.pool.dataset("tank/src").unwrap().open_rw().unwrap();
    let id = rw.create(&NewObject::default()).unwrap();
    for snap in ["a", "b", "c"] {
        rw.write(id, 0, &noise(7, 100_000)).unwrap();
        of.snapshot(&format!("tank/src@{snap}"));
    }
    let (a, b) = (of.pool.dataset("tank/src@a").unwrap(), of.pool.dataset("tank/src@b").unwrap());
    let mut tried = 0;
    let mut try_all = || {
        tried += 1;
        if tried > 1 {
            return;
        }
        for snap in ["a", "b"] {
            let name = [format!("tank/src@{snap}")];
            for defer in [false, true] {
                let e = of.pool.destroy_snapshots(&name, defer, None).unwrap_err();
                assert_eq!((e.kind(), text(&e)), (ErrorKind::Busy, "dataset is busy"), "{snap}");
            }
        }
        let e = of.pool.destroy_dataset("tank/src", true, None).unwrap_err();
        assert_eq!((e.kind(), text(&e)), (ErrorKind::Busy, "dataset is busy"));
        // Another one may go, and names may change.
        of.pool.destroy_snapshots(&["tank/src@c".into()], false, None).unwrap();
    };
    let mut sink = Vec::new();
    b.send(Some(&a), ALL, &mut sink, &mut |_| {
        try_all();
        true
    })
    .unwrap();
    assert!(tried > 0);
    // One whose use has ended can be destroyed, also after an error.
    let e = b.send(Some(&a), ALL, &mut Vec::new(), &mut |_| false).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Interrupted, "{e}");
    let both = ["tank/src@a".to_owned(), "tank/src@b".to_owned()];
    of.pool.destroy_snapshots(&both, false, None).unwrap();
    let e = b.send(None, ALL, &mut Vec::new(), &mut |_| true).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    drop((a, b, rw));
    of.judged();
}

/// A file system or volume itself is sent, if nobody has it open. It cannot be opened for writing,
/// rolled back, received into or destroyed meanwhile.
#[test]
fn heads_that_are_sent_do_not_change() {
    let kinds = super::kinds();
    testkit::side_by_side(&[(0, 9), (1, 12), (kinds.len() - 1, 12)], |&(kind, ashift)| {
        let (name, kind, width) = kinds[kind].clone();
        let of = TestPool::of(&format!("head-{name}"), kind, width, ashift);
        of.pool.create_filesystem("tank/src", &[], None).unwrap();
        let rw = of.pool.dataset("tank/src").unwrap().open_rw().unwrap();
        let id = rw.create(&NewObject::default()).unwrap();
        rw.write(id, 0, &noise(7, 100_000)).unwrap();
        of.snapshot("tank/src@a");
        let a = of.pool.dataset("tank/src@a").unwrap();
        let incremental = {
            let to = TestPool::new("head-other");
            to.receive("tank/src", &super::sent(&of.pool, "tank/src@a", None, ALL)).unwrap();
            let rw = to.pool.dataset("tank/src").unwrap().open_rw().unwrap();
            rw.write(id, 0, &noise(9, 10)).unwrap();
            to.snapshot("tank/src@b");
            super::sent(&to.pool, "tank/src@b", Some("tank/src@a"), ALL)
        };
        rw.write(id, 50_000, &noise(8, 100_000)).unwrap();
        let head = of.pool.dataset("tank/src").unwrap();
        for from in [None, Some(&a)] {
            let e = head.send(from, ALL, &mut Vec::new(), &mut |_| true).unwrap_err();
            let words = "target is busy; if a filesystem, it must not be mounted";
            assert_eq!((e.kind(), text(&e)), (ErrorKind::Busy, words));
            let e = head.send_size(from, ALL).unwrap_err();
            assert_eq!((e.kind(), text(&e)), (ErrorKind::Busy, words));
        }
        // What was written last is in no txg on disk yet.
        drop(rw);
        let mut tried = false;
        let mut full = Vec::new();
        head.send(None, ALL, &mut full, &mut |_| {
            if std::mem::replace(&mut tried, true) {
                return true;
            }
            let busy = |what: &str, e: cenote::Error| {
                assert_eq!((e.kind(), text(&e)), (ErrorKind::Busy, "dataset is busy"), "{what}");
            };
            busy("objects", of.pool.dataset("tank/src").unwrap().open_rw().err().unwrap());
            busy("rollback", of.pool.rollback("tank/src@a", None).unwrap_err());
            busy("destroy", of.pool.destroy_dataset("tank/src", true, None).unwrap_err());
            busy("receive", of.forced("tank/src@b", &incremental).unwrap_err());
            // Readers, new snapshots and another stream are welcome.
            of.snapshot("tank/src@now");
            assert!(head.send_size(None, ALL).unwrap() > 200_000 / 2);
            true
        })
        .unwrap();
        assert!(tried);
        let now = super::sent(&of.pool, "tank/src@now", None, ALL);
        let records = |stream: &[u8]| -> Vec<_> {
            let list = super::hostile::pieces(stream);
            let of = |record: cenote::stream::StreamRecord| record.object().map(|id| (id, record));
            list.into_iter().filter_map(|(r, payload)| Some((of(r)?.0, payload))).collect()
        };
        assert_eq!(records(&full), records(&now));
        assert_eq!(full.len() as u64, head.send_size(None, ALL).unwrap());
        let mut changes = Vec::new();
        head.send(Some(&a), ALL, &mut changes, &mut |_| true).unwrap();
        let to = TestPool::new("head-copy");
        to.receive("tank/copy@x", &full).unwrap();
        super::assert_same((&of.pool, "tank/src@now"), (&to.pool, "tank/copy@x"));
        to.receive("tank/parts@a", &super::sent(&of.pool, "tank/src@a", None, ALL)).unwrap();
        to.receive("tank/parts@x", &changes).unwrap();
        super::assert_same((&of.pool, "tank/src@now"), (&to.pool, "tank/parts@x"));
        // After the use everything works again.
        of.pool.rollback("tank/src@now", None).unwrap();
        drop((a, head));
        of.pool.destroy_dataset("tank/src", true, None).unwrap();
        of.judged();
        to.judged();
    });
}
