//! Clones, holds and bookmarks; promotion, rollback and renames.

use std::path::Path;

use cenote::inspect::dsl;
use cenote::{
    Dataset, Engine, ErrorKind, NewBookmark, NewObject, ObjectId, Objects, Pool, PropData,
    SnapshotHold,
};
use testkit::{engine, import_from};

use crate::{DiskFiles, MB, judge, kind, make, noise, writing, zdb_text};

fn text(pool: &Pool, name: &str, prop: &str) -> String {
    match pool.dataset(name).unwrap().prop(prop).unwrap().map(|v| v.value) {
        Some(PropData::Str(s)) => s,
        Some(PropData::Num(n)) => n.to_string(),
        Some(PropData::None) | None => "-".into(),
    }
}

fn refusal<T>(done: cenote::Result<T>) -> (ErrorKind, String) {
    kind(done.map(|_| ()).unwrap_err())
}

fn hold(snapshot: &str, tag: &str) -> Vec<SnapshotHold> {
    vec![SnapshotHold { snapshot: snapshot.into(), tag: tag.into() }]
}

fn mark(source: &str, name: &str) -> Vec<NewBookmark> {
    vec![NewBookmark { source: source.into(), name: name.into() }]
}

fn snap(pool: &Pool, name: &str) {
    pool.snapshot(&[name.to_owned()], &[], None).unwrap();
}

/// A file's content in a dataset.
fn read(dataset: &Dataset, id: ObjectId) -> Vec<u8> {
    let fs = dataset.open_rw().unwrap();
    fs.read_vec(id, 0, 1 << 24).unwrap()
}

fn new_object(objects: &Objects, data: &[u8]) -> ObjectId {
    let id = objects.create(&NewObject::default()).unwrap();
    objects.write(id, 0, data).unwrap();
    id
}

#[test]
fn clones_holds_and_bookmarks() {
    let disks = DiskFiles::new("changes-clones", 1, 256 * MB);
    let engine = engine();
    let pool = make(&engine, vec![disks.leaf(0)]);
    pool.create_filesystem("tank/a", &[], None).unwrap();
    pool.create_volume("tank/v", 8 * MB, None, &[], None).unwrap();
    let a = pool.dataset("tank/a").unwrap().open_rw().unwrap();
    let v = pool.dataset("tank/v").unwrap().open_rw().unwrap();
    let (first, second) = (noise(1, 1_000_000), noise(2, 1_000_000));
    let id = new_object(&a, &first);
    v.write(ObjectId(1), 0, &first).unwrap();
    pool.snapshot(&["tank/a@s".into(), "tank/v@s".into()], &[], None).unwrap();
    a.write(id, 0, &second).unwrap();

    // A clone has the snapshot's content, and goes its own way.
    let props = [("atime".to_owned(), PropData::Num(0))];
    let made = pool.clone_snapshot("tank/a@s", "tank/c", &props, Some("zfs clone")).unwrap();
    assert_eq!(read(&made, id), first);
    let c = made.open_rw().unwrap();
    c.write(id, 500_000, &second[..10_000]).unwrap();
    let mut mixed = first.clone();
    mixed[500_000..510_000].copy_from_slice(&second[..10_000]);
    assert_eq!(c.read_vec(id, 0, 1 << 24).unwrap(), mixed);
    assert_eq!(read(&pool.dataset("tank/a").unwrap(), id), second);
    pool.clone_snapshot("tank/v@s", "tank/c/w", &[], None).unwrap();
    let w = pool.dataset("tank/c/w").unwrap();
    assert_eq!(w.kind(), cenote::DatasetKind::Volume);
    assert_eq!(w.open_rw().unwrap().read_vec(ObjectId(1), 0, 1_000_000).unwrap(), first);
    assert_eq!(
        (text(&pool, "tank/c", "origin"), text(&pool, "tank/a", "origin")),
        ("tank/a@s".into(), "-".into())
    );
    assert_eq!(text(&pool, "tank/a@s", "clones"), "tank/c");
    assert_eq!(text(&pool, "tank/c", "atime"), "0");
    let clone = |from: &str, to: &str| refusal(pool.clone_snapshot(from, to, &[], None));
    assert_eq!(clone("tank/a@s", "tank/c").1, "dataset already exists");
    assert_eq!(clone("tank/a@s", "tank/x/y").1, "parent does not exist");
    assert_eq!(clone("tank/a@s", "tank/v/y").1, "parent is not a filesystem");
    assert_eq!(clone("tank/a@x", "tank/y").1, "dataset does not exist");
    assert_eq!(
        refusal(pool.destroy_dataset("tank/a", true, None)).1,
        "filesystem has dependent clones"
    );

    // Bookmarks of a snapshot and of a bookmark; they outlive both.
    pool.bookmark(&mark("tank/a@s", "tank/a#b"), Some("zfs bookmark")).unwrap();
    pool.bookmark(&mark("tank/a#b", "tank/a#copy"), None).unwrap();
    assert_eq!(text(&pool, "tank/a#copy", "guid"), text(&pool, "tank/a@s", "guid"));
    let again = refusal(pool.bookmark(&mark("tank/a@s", "tank/a#b"), None));
    assert_eq!(again, (ErrorKind::Exists, "bookmark exists".into()));
    assert_eq!(
        refusal(pool.bookmark(&mark("tank/a@s", "tank/c#b"), None)).1,
        "source is not an ancestor of the new bookmark's dataset"
    );
    assert_eq!(refusal(pool.bookmark(&mark("tank/a#no", "tank/a#x"), None)).0, ErrorKind::NotFound);
    let long = format!("tank/a#{}", "x".repeat(250));
    let too_long = refusal(pool.bookmark(&mark("tank/a@s", &long), None));
    assert_eq!(too_long.0, ErrorKind::NameTooLong);

    // A held snapshot stays; its destruction is deferred until the last hold and clone go.
    pool.hold(&hold("tank/a@s", "keep"), Some("zfs hold keep tank/a@s")).unwrap();
    pool.hold(&hold("tank/a@s", "two"), None).unwrap();
    assert_eq!(
        refusal(pool.hold(&hold("tank/a@s", "two"), None)).1,
        "tag already exists on this dataset"
    );
    assert_eq!(
        refusal(pool.release(&hold("tank/a@s", "no"), None)).1,
        "no such tag on this dataset"
    );
    assert_eq!(text(&pool, "tank/a@s", "userrefs"), "2");
    let tags = pool.dataset("tank/a@s").unwrap().holds().unwrap();
    assert_eq!(tags.iter().map(|t| t.0.as_str()).collect::<Vec<_>>(), ["keep", "two"]);
    let gone = ["tank/a@s".to_owned()];
    assert_eq!(refusal(pool.destroy_snapshots(&gone, false, None)).1, "dataset is busy");
    pool.destroy_snapshots(&gone, true, None).unwrap();
    assert_eq!(text(&pool, "tank/a@s", "defer_destroy"), "1");
    pool.release(&hold("tank/a@s", "keep"), None).unwrap();
    pool.export().unwrap();
    drop((a, v, c, w, made, pool));
    judge(&engine, &disks.path());

    let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
    assert_eq!(read(&pool.dataset("tank/c").unwrap(), id), mixed);
    pool.release(&hold("tank/a@s", "two"), None).unwrap();
    assert!(pool.dataset("tank/a@s").is_ok(), "its clone needs it");
    pool.destroy_dataset("tank/c", true, None).unwrap();
    assert!(pool.dataset("tank/a@s").is_err(), "the last clone was destroyed");
    assert_eq!(pool.dataset("tank/a").unwrap().bookmarks().unwrap().len(), 2);
    pool.destroy_bookmarks(&["tank/a#b".into()], None).unwrap();
    assert_eq!(refusal(pool.destroy_bookmarks(&["tank/a#b".into()], None)).0, ErrorKind::NotFound);
    assert_eq!(read(&pool.dataset("tank/a").unwrap(), id), second);
    pool.export().unwrap();
    drop(pool);
    judge(&engine, &disks.path());
    if let Some(text) = zdb_text(&disks.path(), &["-h", "tank"]) {
        assert!(text.contains("zfs hold keep tank/a@s"), "{text}");
    }
}

#[test]
fn renames() {
    let disks = DiskFiles::new("changes-renames", 1, 256 * MB);
    let engine = engine();
    let pool = make(&engine, vec![disks.leaf(0)]);
    for name in ["tank/a", "tank/a/b", "tank/n"] {
        pool.create_filesystem(name, &[], None).unwrap();
    }
    pool.create_volume("tank/v", 8 * MB, None, &[], None).unwrap();
    let set = |name: &str, prop: &str, n: u64| {
        pool.set_props(name, &[(prop.to_owned(), PropData::Num(n))], None).unwrap();
    };
    set("tank/n", "recordsize", 16 << 10);
    set("tank/a", "reservation", 20 * MB);
    set("tank/n", "snapshot_limit", 4);
    let b = pool.dataset("tank/a/b").unwrap().open_rw().unwrap();
    let fs = pool.dataset("tank/a/b").unwrap().open_fs().unwrap();
    let (first, second) = (noise(1, 1_000_000), noise(2, 300_000));
    let id = new_object(&b, &first);
    pool.snapshot(&["tank/a@s".into(), "tank/a/b@s".into()], &[], None).unwrap();
    b.write(id, 0, &second).unwrap();
    let used = |name: &str| text(&pool, name, "used").parse::<u64>().unwrap();
    pool.sync().unwrap();
    let before = used("tank");

    let rename = |from: &str, to: &str| pool.rename_dataset(from, to, None);
    assert_eq!(refusal(rename("tank/a", "tank/n")).1, "dataset already exists");
    assert_eq!(refusal(rename("tank/a", "tank/x/y")).1, "parent does not exist");
    assert_eq!(refusal(rename("tank/a", "tank/v/y")).1, "parent is not a filesystem");
    assert_eq!(refusal(rename("tank/a", "tank/a/b/c")).0, ErrorKind::Invalid);
    assert_eq!(refusal(rename("tank/no", "tank/y")).0, ErrorKind::NotFound);
    assert_eq!(refusal(rename("tank", "tank/y")).0, ErrorKind::Invalid);
    let long = format!("tank/{}", "x".repeat(250));
    assert_eq!(refusal(rename("tank/a", &long)).0, ErrorKind::NameTooLong, "names below");
    let fits = format!("tank/{}", "x".repeat(246));
    rename("tank/a", &fits).unwrap();
    rename(&fits, "tank/a").unwrap();

    // Open datasets stay open, and follow the properties of the new place.
    rename("tank/a", "tank/n/a2").unwrap();
    assert!(pool.dataset("tank/a").is_err() && pool.dataset("tank/a/b@s").is_err());
    assert_eq!(b.record_size().unwrap(), 16 << 10);
    b.write(id, 500_000, &second).unwrap();
    let mut now = first.clone();
    now[..300_000].copy_from_slice(&second);
    now[500_000..800_000].copy_from_slice(&second);
    let moved = pool.dataset("tank/n/a2/b").unwrap();
    assert_eq!(read(&moved, id), now);
    assert!(fs.attrs(fs.root(), cenote::Io::WAIT).is_ok());
    assert!(used("tank/n") >= 20 * MB, "the reservation moved");
    assert_eq!(text(&pool, "tank/n", "snapshot_count"), "2");
    pool.sync().unwrap();
    assert!(used("tank") >= before && used("tank") < before + 3 * MB);
    rename("tank/v", "tank/n/a2/w").unwrap();

    let all = pool.rename_snapshot("tank/n/a2", ("s", "t"), true, Some("zfs rename -r")).unwrap();
    assert_eq!(all.len(), 2);
    assert!(pool.dataset("tank/n/a2/b@t").is_ok() && pool.dataset("tank/n/a2@s").is_err());
    snap(&pool, "tank/n/a2/b@s");
    let again = pool.rename_snapshot("tank/n/a2", ("t", "s"), true, None);
    assert_eq!(refusal(again).1, "dataset already exists");
    assert!(pool.dataset("tank/n/a2@t").is_ok(), "all or none");
    assert_eq!(
        refusal(pool.rename_snapshot("tank/n", ("t", "s"), false, None)).0,
        ErrorKind::NotFound
    );
    snap(&pool, "tank/n@x");
    pool.create_filesystem("tank/out", &[], None).unwrap();
    snap(&pool, "tank/out@x");
    let full = refusal(rename("tank/out", "tank/n/in"));
    assert_eq!(full.1, "snapshot limit of 'tank/n' is reached (4)");
    set("tank/n", "quota", 25 * MB);
    set("tank/n", "snapshot_limit", 10);
    set("tank/out", "reservation", 10 * MB);
    assert_eq!(refusal(rename("tank/out", "tank/n/in")).1, "out of space");
    set("tank/out", "reservation", 0);
    rename("tank/out", "tank/n/in").unwrap();
    pool.export().unwrap();
    drop((b, fs, moved, pool));
    judge(&engine, &disks.path());
    let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
    assert_eq!(read(&pool.dataset("tank/n/a2/b").unwrap(), id), now);
    pool.destroy_dataset("tank/n", true, None).unwrap();
    pool.export().unwrap();
    drop(pool);
    judge(&engine, &disks.path());
}

#[test]
fn rollbacks() {
    let disks = DiskFiles::new("changes-rollbacks", 1, 256 * MB);
    let engine = engine();
    let pool = make(&engine, vec![disks.leaf(0)]);
    let fs = pool.create_filesystem("tank/a", &[], None).unwrap();
    pool.create_filesystem("tank/a/b", &[], None).unwrap();
    let volume = pool.create_volume("tank/v", 8 * MB, None, &[], None).unwrap();
    let (first, second) = (noise(1, 2_000_000), noise(2, 2_000_000));
    let a = fs.open_rw().unwrap();
    let id = new_object(&a, &first);
    let v = volume.open_rw().unwrap();
    v.write(ObjectId(1), 0, &first).unwrap();
    pool.snapshot(&["tank/a@s".into(), "tank/v@s".into()], &[], None).unwrap();
    a.write(id, 1_000, &second).unwrap();
    let extra = new_object(&a, &second);
    v.write(ObjectId(1), 0, &second).unwrap();
    pool.bookmark(&mark("tank/a@s", "tank/a#b"), None).unwrap();
    snap(&pool, "tank/a@t");
    let newer = (ErrorKind::Exists, "more recent snapshots or bookmarks exist".to_owned());
    assert_eq!(refusal(pool.rollback("tank/a@s", None)), newer);
    pool.bookmark(&mark("tank/a@t", "tank/a#late"), None).unwrap();
    pool.destroy_snapshots(&["tank/a@t".into()], false, None).unwrap();
    assert_eq!(refusal(pool.rollback("tank/a@s", None)), newer, "the bookmark is newer");
    pool.destroy_bookmarks(&["tank/a#late".into()], None).unwrap();
    assert_eq!(refusal(pool.rollback("tank/a@no", None)).0, ErrorKind::NotFound);

    // Also of what no txg has yet; open handles end.
    let open = fs.open_fs().unwrap();
    a.write(id, 0, &second[..5_000]).unwrap();
    pool.rollback("tank/a@s", Some("zfs rollback tank/a@s")).unwrap();
    assert_eq!(a.write(id, 0, b"x").unwrap_err().kind(), ErrorKind::NotFound);
    let again = fs.open_rw().unwrap();
    assert_eq!(again.read_vec(id, 0, 1 << 24).unwrap(), first);
    assert!(again.read_vec(extra, 0, 100).is_err(), "it was made after the snapshot");
    let reopened = fs.open_fs().unwrap();
    assert!(reopened.attrs(reopened.root(), cenote::Io::WAIT).is_ok());
    again.write(id, 0, &second[..1_000]).unwrap();
    pool.rollback("tank/v@s", None).unwrap();
    let w = volume.open_rw().unwrap();
    assert_eq!(w.read_vec(ObjectId(1), 0, 2_000_000).unwrap(), first);
    assert_eq!(text(&pool, "tank/v@s", "used"), "0");
    assert_eq!(text(&pool, "tank/v", "written"), "0");
    pool.export().unwrap();
    drop((a, v, w, again, reopened, open, fs, volume, pool));
    judge(&engine, &disks.path());
    let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
    let mut now = first.clone();
    now[..1_000].copy_from_slice(&second[..1_000]);
    assert_eq!(read(&pool.dataset("tank/a").unwrap(), id), now);
    // Room that the refreservation needs again, and refquota.
    let set = |name: &str, prop: &str, n: u64| {
        pool.set_props(name, &[(prop.to_owned(), PropData::Num(n))], None).unwrap();
    };
    set("tank/a", "refreservation", 10 * MB);
    pool.rollback("tank/a@s", None).unwrap();
    assert_eq!(read(&pool.dataset("tank/a").unwrap(), id), first);
    set("tank/a", "refreservation", 0);
    let c = pool.dataset("tank/a").unwrap().open_rw().unwrap();
    c.truncate(id, 0).unwrap();
    pool.sync().unwrap();
    set("tank/a", "refquota", MB);
    assert_eq!(refusal(pool.rollback("tank/a@s", None)).1, "disk quota exceeded");
    pool.destroy_dataset("tank/a", true, None).unwrap();
    pool.destroy_dataset("tank/v", true, None).unwrap();
    pool.export().unwrap();
    drop((c, pool));
    judge(&engine, &disks.path());
}

#[test]
fn promotions() {
    let disks = DiskFiles::new("changes-promotions", 1, 256 * MB);
    let engine = engine();
    let pool = make(&engine, vec![disks.leaf(0)]);
    pool.create_filesystem("tank/a", &[], None).unwrap();
    let a = pool.dataset("tank/a").unwrap().open_rw().unwrap();
    let (first, second) = (noise(1, 1_000_000), noise(2, 1_000_000));
    let id = new_object(&a, &first);
    snap(&pool, "tank/a@1");
    a.write(id, 0, &second[..200_000]).unwrap();
    snap(&pool, "tank/a@2");
    pool.bookmark(&mark("tank/a@1", "tank/a#one"), None).unwrap();
    pool.bookmark(&mark("tank/a@2", "tank/a#two"), None).unwrap();
    a.write(id, 300_000, &second[..200_000]).unwrap();
    snap(&pool, "tank/a@3");
    pool.clone_snapshot("tank/a@2", "tank/c", &[], None).unwrap();
    pool.clone_snapshot("tank/a@1", "tank/d", &[], None).unwrap();
    let c = pool.dataset("tank/c").unwrap().open_rw().unwrap();
    c.write(id, 600_000, &second[..200_000]).unwrap();
    snap(&pool, "tank/c@1");
    let not = (ErrorKind::Invalid, "not a cloned filesystem".to_owned());
    assert_eq!(refusal(pool.promote("tank/a", None)), not);
    let clash = pool.promote("tank/c", None).unwrap_err();
    assert_eq!(clash.location().dataset.as_deref(), Some("tank/c@1"));
    assert_eq!(clash.kind(), ErrorKind::Exists);
    pool.rename_snapshot("tank/c", ("1", "own"), false, None).unwrap();
    c.write(id, 0, &second[..10_000]).unwrap();
    let contents = |name: &str| read(&pool.dataset(name).unwrap(), id);
    let before = (contents("tank/a"), contents("tank/c"), contents("tank/d"));
    pool.sync().unwrap();
    let sum = text(&pool, "tank", "used");
    pool.promote("tank/c", Some("zfs promote tank/c")).unwrap();
    assert_eq!(before, (contents("tank/a"), contents("tank/c"), contents("tank/d")));
    assert!(
        text(&pool, "tank", "used").parse::<u64>().unwrap() <= sum.parse::<u64>().unwrap() + MB
    );
    assert_eq!(text(&pool, "tank/a", "origin"), "tank/c@2");
    assert_eq!(text(&pool, "tank/c", "origin"), "-");
    assert_eq!(text(&pool, "tank/d", "origin"), "tank/c@1");
    let names = |name: &str| -> Vec<String> {
        let d = pool.dataset(name).unwrap();
        let all = d.snapshots().unwrap().into_iter().chain(d.bookmarks().unwrap());
        all.map(|s| s.name().to_owned()).collect()
    };
    assert_eq!(names("tank/a"), ["tank/a@3"]);
    assert_eq!(names("tank/c"), ["tank/c@1", "tank/c@2", "tank/c@own", "tank/c#one", "tank/c#two"]);
    c.write(id, 0, &second[..20_000]).unwrap();
    a.write(id, 0, &second[..20_000]).unwrap();
    pool.export().unwrap();
    drop((a, c, pool));
    judge(&engine, &disks.path());
    let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
    // The former origin can go now; its clone of the other snapshot is promoted on its own.
    pool.destroy_dataset("tank/a", true, None).unwrap();
    pool.promote("tank/d", None).unwrap();
    assert_eq!(text(&pool, "tank/c", "origin"), "tank/d@1");
    assert_eq!(read(&pool.dataset("tank/d").unwrap(), id), first);
    pool.rollback("tank/c@own", None).unwrap();
    pool.destroy_dataset("tank/c", true, None).unwrap();
    pool.destroy_snapshots(&["tank/d@1".into()], false, None).unwrap();
    pool.export().unwrap();
    drop(pool);
    judge(&engine, &disks.path());
}

/// The counters of an open dataset had its name from before.
#[test]
fn counters_have_the_name_after_a_rename() {
    let disks = DiskFiles::new("changes-counters", 1, 128 * MB);
    let engine = engine();
    let pool = make(&engine, vec![disks.leaf(0)]);
    let open: Vec<_> = ["tank/a", "tank/a/b", "tank/ab"]
        .map(|name| pool.create_filesystem(name, &[], None).unwrap().open_fs().unwrap())
        .into();
    let names = || {
        let all = engine.kstats().all(|path| path.contains("/objset-"));
        let name = |k: &kstat::Kstat| k.get("dataset_name").map(|v| format!("{v:?}"));
        let mut names: Vec<String> = all.iter().filter_map(|(_, k)| name(k)).collect();
        names.sort();
        names.into_iter().map(|n| n.replace("Str(", "").replace(')', "")).collect::<Vec<_>>()
    };
    assert_eq!(names(), ["\"tank/a\"", "\"tank/a/b\"", "\"tank/ab\""]);
    pool.rename_dataset("tank/a", "tank/z", None).unwrap();
    assert_eq!(names(), ["\"tank/ab\"", "\"tank/z\"", "\"tank/z/b\""]);
    drop(open);
    pool.export().unwrap();
}

/// Pools that OpenZFS wrote, with snapshots, clones, bookmarks and delegations, are changed in
/// every way.
#[test]
fn golden_pools_are_changed() {
    let all = ["snaps", "clones12", "bookmarked", "delegated"];
    let golden: Vec<_> = all.iter().filter_map(|name| testkit::golden(name)).collect();
    testkit::side_by_side(&golden, |golden| {
        let scratch = testkit::Scratch::new(&format!("changes-golden-{}", golden.name));
        golden.unpack(scratch.path());
        let engine = engine();
        let pool = import_from(&engine, scratch.path(), &writing()).unwrap();
        change_all(&pool, "cenote1");
        pool.export().unwrap();
        drop(pool);
        judge_golden(&engine, scratch.path());
        let pool = import_from(&engine, scratch.path(), &writing()).unwrap();
        change_all(&pool, "cenote2");
        let root = pool.name().to_owned();
        for child in pool.root().unwrap().children().unwrap() {
            // OpenZFS left clones across them, and holds.
            if let Err(e) = pool.destroy_dataset(child.name(), true, None) {
                assert!(matches!(e.kind(), ErrorKind::Exists | ErrorKind::Busy), "{root}: {e}");
            }
        }
        pool.export().unwrap();
        drop(pool);
        judge_golden(&engine, scratch.path());
    });
}

/// As [`judge`], as far as OpenZFS's zdb goes with these pools: `zdb -d` does not end in pool
/// `bookmarked`, and takes the permissions of `delegated` for leaks, changed or not.
fn judge_golden(engine: &Engine, dir: &Path) {
    let pool = import_from(engine, dir, &testkit::readonly()).unwrap();
    let wrong = dsl::write::check(pool.spa().mos(), &dsl::write::Ratios::default()).unwrap();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let name = pool.name().to_owned();
    drop(pool);
    let Some(text) = zdb_text(dir, &["-bcc", &name]) else { return };
    assert!(text.contains("No leaks"), "{text}");
    let sound = ["snaps", "clones12"];
    for look in ["-d", "-m"].into_iter().filter(|look| *look == "-m" || sound.contains(&&*name)) {
        let Some(text) = zdb_text(dir, &[look, &name]) else { return };
        assert!(!text.contains("mismatch") && !text.contains("leaked"), "{text}");
    }
}

fn change_all(pool: &Pool, tag: &str) {
    let root = pool.name().to_owned();
    let mut heads: Vec<String> = Vec::new();
    pool.for_each_dataset(&mut |d| {
        heads.push(d.name().to_owned());
        Ok(())
    })
    .unwrap();
    // Every change is a txg; those of the first datasets are of every kind.
    heads.truncate(5);
    let snaps: Vec<String> = heads.iter().map(|h| format!("{h}@{tag}")).collect();
    pool.snapshot(&snaps, &[], None).unwrap();
    for (i, (head, snap)) in heads.iter().zip(&snaps).enumerate() {
        let (clone, new) = (format!("{root}/{tag}c{i}"), format!("{root}/{tag}r{i}"));
        pool.clone_snapshot(snap, &clone, &[], None).unwrap();
        pool.hold(&hold(snap, "mine"), None).unwrap();
        pool.bookmark(&mark(snap, &format!("{head}#{tag}")), None).unwrap();
        pool.destroy_snapshots(std::slice::from_ref(snap), true, None).unwrap();
        pool.promote(&clone, None).unwrap();
        assert_eq!(text(pool, head, "origin"), format!("{clone}@{tag}"));
        assert!(pool.dataset(&format!("{clone}#{tag}")).is_ok());
        pool.rename_dataset(&clone, &new, None).unwrap();
        pool.release(&hold(&format!("{new}@{tag}"), "mine"), None).unwrap();
        assert_eq!(text(pool, &format!("{new}@{tag}"), "defer_destroy"), "1");
        let later = format!("{new}@later");
        snap_and_write(pool, &new, &later);
        pool.rollback(&later, None).unwrap();
        pool.rename_snapshot(&new, ("later", &format!("{tag}l")), false, None).unwrap();
    }
    // Back again, so that all clones go.
    for (i, head) in heads.iter().enumerate() {
        pool.promote(head, None).unwrap();
        let copy = format!("{head}#{tag}copy");
        pool.bookmark(&mark(&format!("{head}#{tag}"), &copy), None).unwrap();
        pool.destroy_bookmarks(&[copy], None).unwrap();
        pool.destroy_dataset(&format!("{root}/{tag}r{i}"), true, None).unwrap();
        assert!(pool.dataset(&format!("{head}@{tag}")).is_err(), "it was deferred");
    }
}

fn snap_and_write(pool: &Pool, name: &str, snapshot: &str) {
    snap(pool, snapshot);
    let rw = pool.dataset(name).unwrap().open_rw().unwrap();
    new_object(&rw, &noise(9, 50_000));
}
