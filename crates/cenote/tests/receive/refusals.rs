//! What is refused, in OpenZFS's words, and what the dataset's users see of a receive.

use cenote::files::Caller;
use cenote::inspect::dmu::Io;
use cenote::stream::{Features, StreamRecord};
use cenote::{
    ErrorKind, NewObject, PropData, ReceiveNames, ReceiveObserver, ReceiveOptions, Result,
};

use super::hostile::{assembled, pieces};
use super::{ALL, PLAIN, TestPool, assert_same, noise, sent, text};

/// A pool with `tank/src@a`, `@b` and `@c`.
fn source(name: &str) -> TestPool {
    let of = TestPool::new(name);
    of.pool.create_filesystem("tank/src", &[], None).unwrap();
    for (n, snap) in ["a", "b", "c"].into_iter().enumerate() {
        change(&of, "tank/src", n as u64);
        of.snapshot(&format!("tank/src@{snap}"));
    }
    of
}

fn change(of: &TestPool, name: &str, seed: u64) {
    let rw = of.pool.dataset(name).unwrap().open_rw().unwrap();
    let id = rw.create(&NewObject::default()).unwrap();
    rw.write(id, 0, &noise(seed, 50_000)).unwrap();
    rw.sync().unwrap();
}

#[test]
fn destinations_that_do_not_fit() {
    let of = source("fit-src");
    let to = TestPool::new("fit");
    let full = sent(&of.pool, "tank/src@a", None, ALL);
    let b = sent(&of.pool, "tank/src@b", Some("tank/src@a"), ALL);
    let c = sent(&of.pool, "tank/src@c", Some("tank/src@b"), ALL);
    let refused = |target: &str, force: bool, stream: &[u8], kind: ErrorKind, why: &str| {
        let before = to.datasets();
        let options = ReceiveOptions { force, ..ReceiveOptions::default() };
        let e = to.receive_with(target, &options, stream).unwrap_err();
        assert_eq!((e.kind(), text(&e)), (kind, why), "{target}");
        assert_eq!(to.datasets(), before, "{target}");
    };
    refused("tank/x", false, &b, ErrorKind::NotFound, "destination 'tank/x' does not exist");
    refused("tank/no/x", false, &full, ErrorKind::NotFound, "destination 'tank/no' does not exist");
    to.receive("tank/x", &full).unwrap();
    refused(
        "tank/x@other",
        false,
        &full,
        ErrorKind::Exists,
        "destination 'tank/x' exists\nmust specify -F to overwrite it",
    );
    refused(
        "tank/x@other",
        true,
        &full,
        ErrorKind::Exists,
        "destination has snapshots (eg. tank/x@a)\nmust destroy them to overwrite it",
    );
    refused("tank/x", false, &full, ErrorKind::Exists, "destination 'tank/x@a' exists");
    refused(
        "tank/x",
        false,
        &c,
        ErrorKind::CrossDevice,
        "most recent snapshot of tank/x does not\nmatch incremental source",
    );
    // Modified: refused, and discarded with force.
    change(&to, "tank/x", 77);
    refused(
        "tank/x",
        false,
        &b,
        ErrorKind::Busy,
        "destination tank/x has been modified\nsince most recent snapshot",
    );
    to.snapshot("tank/x@mine");
    to.pool.create_filesystem("tank/x/below", &[], None).unwrap();
    let hold = [cenote::SnapshotHold { snapshot: "tank/x@mine".into(), tag: "keep".into() }];
    to.pool.hold(&hold, None).unwrap();
    refused("tank/x", true, &b, ErrorKind::Busy, "snapshot 'tank/x@mine' is held");
    to.pool.release(&hold, None).unwrap();
    to.pool.clone_snapshot("tank/x@mine", "tank/clone", &[], None).unwrap();
    let why = "snapshot 'tank/x@mine' has dependent clones";
    refused("tank/x", true, &b, ErrorKind::Busy, why);
    to.pool.destroy_dataset("tank/clone", false, None).unwrap();
    to.forced("tank/x", &b).unwrap();
    assert!(to.pool.dataset("tank/x@mine").is_err());
    assert_same((&of.pool, "tank/src@b"), (&to.pool, "tank/x@b"));
    to.receive("tank/x", &c).unwrap();
    assert_same((&of.pool, "tank/src@c"), (&to.pool, "tank/x@c"));
    // A full stream replaces a dataset without snapshots.
    to.pool.create_filesystem("tank/old", &[], None).unwrap();
    change(&to, "tank/old", 5);
    to.forced("tank/old", &full).unwrap();
    assert_same((&of.pool, "tank/src@a"), (&to.pool, "tank/old@a"));
    // A clone of a snapshot that the caller names.
    let options = ReceiveOptions { origin: Some("tank/x@a".into()), ..ReceiveOptions::default() };
    to.receive_with("tank/cloned", &options, &b).unwrap();
    assert_same((&of.pool, "tank/src@b"), (&to.pool, "tank/cloned@b"));
    let whole = sent(&of.pool, "tank/src@c", None, PLAIN);
    to.receive_with("tank/whole", &options, &whole).unwrap();
    assert_same((&of.pool, "tank/src@c"), (&to.pool, "tank/whole@c"));
    to.judged();
}

#[test]
fn features_that_a_pool_lacks() {
    let of = source("features-src");
    let to = TestPool::new("features");
    let full = sent(&of.pool, "tank/src@a", None, ALL);
    let with = |features: u64| {
        let mut list = pieces(&full);
        let StreamRecord::Begin(begin) = &mut list[0].0 else { panic!() };
        begin.version_info |= features << 2;
        assembled(&list)
    };
    for (features, why) in [
        (1 << 40, "stream has unsupported feature"),
        (Features::DEDUP.0, "stream has unsupported feature"),
    ] {
        let e = to.receive("tank/x", &with(features)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(text(&e).starts_with(why), "{e}");
    }
    // A raw stream without keys.
    let e = to.receive("tank/x", &with(Features::RAW.0)).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::NotFound), "{e}");
    to.judged();
}

/// Quotas bound what comes, and a full pool what is there.
#[test]
fn space_that_is_missing() {
    let of = TestPool::new("space-src");
    of.pool.create_filesystem("tank/src", &[], None).unwrap();
    let rw = of.pool.dataset("tank/src").unwrap().open_rw().unwrap();
    let id = rw.create(&NewObject::default()).unwrap();
    of.snapshot("tank/src@a");
    rw.write(id, 0, &noise(1, 20 << 20)).unwrap();
    of.snapshot("tank/src@b");
    let (a, b) = (
        sent(&of.pool, "tank/src@a", None, ALL),
        sent(&of.pool, "tank/src@b", Some("tank/src@a"), ALL),
    );
    let to = TestPool::new("space");
    to.receive("tank/x", &a).unwrap();
    for prop in ["quota", "refquota"] {
        to.pool.set_props("tank/x", &[(prop.to_owned(), PropData::Num(4 << 20))], None).unwrap();
        let before = to.datasets();
        let e = to.receive("tank/x", &b).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Quota, "{prop}: {e}");
        assert_eq!(to.datasets(), before);
        to.pool.set_props("tank/x", &[(prop.to_owned(), PropData::Num(0))], None).unwrap();
    }
    to.receive("tank/x", &b).unwrap();
    to.judged();
}

/// Looks at the dataset between the records and the switch.
struct SwitchWatch<'a> {
    to: &'a TestPool,
    seen: bool,
    fails: bool,
    stops: bool,
    stream: &'a [u8],
}

impl ReceiveObserver for SwitchWatch<'_> {
    fn is_stopped(&self) -> bool {
        self.stops
    }

    fn switch(&mut self, dataset: &str, act: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        assert_eq!(dataset, "tank/moved");
        let fs = self.to.pool.dataset(dataset).unwrap().open_fs().unwrap();
        assert!(fs.lookup(fs.root(), b"old", Io::WAIT).is_ok());
        // A second receive into the same dataset.
        let e = self.to.receive(dataset, self.stream).unwrap_err();
        assert_eq!((e.kind(), text(&e)), (ErrorKind::Busy, "dataset is busy"));
        self.seen = true;
        if self.fails {
            return Err(cenote::Error::busy("the file system is in use"));
        }
        act()?;
        // The old handle never shows the new state.
        assert!(fs.lookup(fs.root(), b"new", Io::WAIT).is_err());
        let new = cenote::files::New::file(0o644);
        let e = fs.make(&Caller::root(), fs.root(), b"late", &new).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
        Ok(())
    }
}

/// The dataset is in use, and renamed, while it is received: users see the old state, then the
/// new one.
#[test]
fn readers_see_the_old_or_the_new_state() {
    let of = TestPool::new("readers-src");
    of.pool.create_filesystem("tank/src", &[], None).unwrap();
    let fs = of.pool.dataset("tank/src").unwrap().open_fs().unwrap();
    let make = |name: &[u8]| {
        fs.make(&Caller::root(), fs.root(), name, &cenote::files::New::file(0o644)).unwrap()
    };
    make(b"old");
    fs.sync_all().unwrap();
    of.snapshot("tank/src@a");
    make(b"new");
    fs.sync_all().unwrap();
    of.snapshot("tank/src@b");
    let to = TestPool::new("readers");
    to.receive("tank/dst", &sent(&of.pool, "tank/src@a", None, ALL)).unwrap();
    to.pool.rename_dataset("tank/dst", "tank/moved", None).unwrap();
    let b = sent(&of.pool, "tank/src@b", Some("tank/src@a"), ALL);
    let receive = |fails: bool, stops: bool| {
        let mut stream = cenote::IncomingStream::open(b.as_slice()).unwrap();
        let mut watch = SwitchWatch { to: &to, seen: false, fails, stops, stream: &b };
        let (names, options) = (ReceiveNames::Whole, ReceiveOptions::default());
        let done = to.pool.receive_stream(&mut stream, "tank/moved", names, &options, &mut watch);
        assert_eq!(watch.seen, !stops);
        done
    };
    assert_eq!(receive(true, false).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(receive(false, true).unwrap_err().kind(), ErrorKind::Interrupted);
    assert!(to.pool.dataset("tank/moved@b").is_err());
    receive(false, false).unwrap();
    let fs = to.pool.dataset("tank/moved").unwrap().open_fs().unwrap();
    for name in [&b"old"[..], b"new"] {
        assert!(fs.lookup(fs.root(), name, Io::WAIT).is_ok());
    }
    // It is written like any other.
    let new = cenote::files::New::file(0o644);
    fs.make(&Caller::root(), fs.root(), b"mine", &new).unwrap();
    drop(fs);
    to.judged();
}
