//! Differences between snapshots, against a comparison of all files.

use std::collections::{BTreeMap, BTreeSet};

use base::rt::sim::Rng;
use base::{ErrorKind, ObjectId};
use cenote::create::NewKind;
use cenote::{Dataset, DiffChange, DiffEntry};
use dmu::Io;
use sim::posix::ops::{Scale, both, draw, is_possible};
use sim::posix::tree::Tree;
use zpl::rw::{Caller, New, Rename, SetAttrs, WritePosition};
use zpl::{Attrs, FileSystem, FileType};

use super::{DATASET, MB, PosixFixture, list};

/// A file with all its paths.
#[derive(Clone, Debug)]
struct Known {
    attrs: Attrs,
    paths: BTreeSet<String>,
}

/// All files, by object.
fn files(fs: &FileSystem) -> BTreeMap<u64, Known> {
    let mut out: BTreeMap<u64, Known> = BTreeMap::new();
    let mut todo = vec![(fs.root(), String::new())];
    while let Some((id, path)) = todo.pop() {
        let attrs = fs.attrs(id, Io::WAIT).unwrap();
        let shown = if path.is_empty() { "/".to_owned() } else { path.clone() };
        let known = out.entry(id.0).or_insert(Known { attrs, paths: BTreeSet::new() });
        known.paths.insert(shown);
        if attrs.kind == FileType::Dir {
            for name in list(fs, id) {
                let child = fs.lookup(id, name.as_bytes(), Io::WAIT).unwrap();
                todo.push((child.id, format!("{path}/{name}")));
            }
        }
    }
    out
}

fn dataset(rig: &PosixFixture, snap: &str) -> Dataset {
    rig.pool.dataset(&format!("{DATASET}@{snap}")).unwrap()
}

fn take(rig: &PosixFixture, snap: &str) -> BTreeMap<u64, Known> {
    rig.pool.snapshot(&[format!("{DATASET}@{snap}")], &[], None).unwrap();
    files(&dataset(rig, snap).open_fs().unwrap())
}

/// The entries, without those of hidden directories of extended attributes.
fn diff(rig: &PosixFixture, from: &str, to: &str) -> Vec<DiffEntry> {
    let mut out = Vec::new();
    let visit = &mut |entry| {
        out.push(entry);
        Ok(())
    };
    dataset(rig, to).diff(&dataset(rig, from), visit).unwrap();
    out.retain(|e| !text(&e.path).contains("<xattrdir>"));
    out
}

fn text(path: &[u8]) -> String {
    String::from_utf8(path.to_vec()).unwrap()
}

/// Whether a path that was told is one of a file's; the directory of one that lost a link
/// need not be known.
fn is_of(path: &[u8], file: &Known) -> bool {
    let path = text(path);
    file.paths.contains(&path) || path == format!("/???<object#{}>", file.attrs.id.0)
}

/// Compares the entries with both sets of files.
fn check(told: &[DiffEntry], old: &BTreeMap<u64, Known>, new: &BTreeMap<u64, Known>, what: &str) {
    let mut left = told.iter();
    let ids: BTreeSet<u64> = old.keys().chain(new.keys()).copied().collect();
    for id in ids {
        let (a, b) = (old.get(&id), new.get(&id));
        let same = a.zip(b).filter(|(a, b)| {
            a.attrs.generation == b.attrs.generation && a.attrs.kind == b.attrs.kind
        });
        let Some((a, b)) = same else {
            if let Some(a) = a {
                let entry = left.next().unwrap_or_else(|| panic!("{what}: {id} is gone"));
                assert_eq!(entry.change, DiffChange::Removed, "{what}: {id}: {entry:?}");
                assert!(is_of(&entry.path, a), "{what}: {id}: {entry:?}, {a:?}");
            }
            if let Some(b) = b {
                let entry = left.next().unwrap_or_else(|| panic!("{what}: {id} is new"));
                assert_eq!(entry.change, DiffChange::Added, "{what}: {id}: {entry:?}");
                assert!(is_of(&entry.path, b), "{what}: {id}: {entry:?}, {b:?}");
                assert_eq!(entry.kind, b.attrs.kind);
            }
            continue;
        };
        let links = i64::from(b.attrs.nlink) - i64::from(a.attrs.nlink);
        let links = if b.attrs.kind == FileType::Dir { 0 } else { links };
        if a.attrs.ctime == b.attrs.ctime && links == 0 {
            continue;
        }
        let entry = left.next().unwrap_or_else(|| panic!("{what}: {id} changed"));
        let ctime = (b.attrs.ctime.seconds, b.attrs.ctime.nanoseconds);
        assert_eq!(entry.ctime, ctime, "{what}: {id}: {entry:?}");
        match (entry.change, &entry.new_path) {
            (DiffChange::Modified { links: told }, None) => {
                assert_eq!(told, links, "{what}: {id}");
                assert!(is_of(&entry.path, b), "{what}: {id}: {entry:?}, {b:?}");
                let unknown = text(&entry.path).starts_with("/???");
                let several = a.paths.len() > 1 || b.paths.len() > 1;
                let stayed = a.paths == b.paths || several || unknown;
                assert!(stayed, "{what}: {id} was renamed: {entry:?}");
            }
            (DiffChange::Renamed, Some(path)) => {
                assert!(is_of(&entry.path, a) && is_of(path, b), "{what}: {id}: {entry:?}");
                assert!(links == 0 && entry.path != *path, "{what}: {id}: {entry:?}");
            }
            _ => panic!("{what}: {id}: {entry:?}"),
        }
    }
    assert_eq!(left.next(), None, "{what}");
}

/// Random changes between snapshots, and each pair of snapshots compared.
#[test]
fn differences_are_those_of_all_files() {
    let draid = NewKind::Draid { nparity: 1, ndata: Some(2), nspares: 1 };
    let runs = [
        (1u64, &[("recordsize", 16 << 10), ("xattr", 2)][..], NewKind::Raidz { nparity: 1 }, 3, 12),
        (2, &[("recordsize", 128 << 10), ("xattr", 1), ("dnodesize", 1024)], draid, 5, 9),
    ];
    testkit::side_by_side(&runs, |(seed, props, kind, disks, ashift)| {
        let seed = *seed;
        let rig = PosixFixture::on("diff", 256 * MB, (kind.clone(), *disks, *ashift));
        rig.set(props);
        let mut rng = Rng::new(seed);
        let scale = Scale { write: 20 << 10, file: 60 << 10, xattr: 2000, names: 60, split: true };
        let mut tree = Tree::new(rig.root());
        let mut states = Vec::new();
        for round in 0..6 {
            for _ in 0..120 {
                let op = draw(&mut rng, &tree, &scale);
                if !is_possible(&tree, &op) {
                    continue;
                }
                if let Some(next) = both(&rig.fs, &tree, &op).unwrap() {
                    tree = next;
                }
            }
            states.push(take(&rig, &format!("s{round}")));
        }
        for (b, new) in states.iter().enumerate() {
            for (a, old) in states.iter().enumerate().take(b) {
                let told = diff(&rig, &format!("s{a}"), &format!("s{b}"));
                assert!(!told.is_empty(), "nothing changed");
                check(&told, old, new, &format!("seed {seed}, s{a} to s{b}"));
            }
        }
        rig.finish();
    });
}

/// What each kind of change is shown as.
#[test]
fn changes_have_their_signs() {
    let rig = PosixFixture::new("diffsigns", 128 * MB);
    let (fs, top, by) = (&rig.fs, rig.root(), Caller::root());
    let (dir, gone) = (rig.dir(top, "dir"), rig.file(top, "gone"));
    let (moved, linked, same) =
        (rig.file(dir, "moved"), rig.file(top, "linked"), rig.file(top, "same"));
    let modes = rig.file(top, "modes");
    let again = rig.file(top, "again");
    for id in [gone, moved, linked, same] {
        rig.write(id, 0, b"content");
    }
    take(&rig, "a");
    let set = SetAttrs { mode: Some(0o600), ..SetAttrs::default() };
    fs.set_attrs(&by, modes, &set).unwrap();
    fs.rename(&by, (dir, b"moved"), (top, b"moved away"), Rename::Plain).unwrap();
    fs.link(&by, linked, dir, b"second").unwrap();
    fs.unlink(&by, top, b"gone").unwrap();
    fs.write(&by, again, WritePosition::End, b"more").unwrap();
    let new = fs.make(&by, dir, b"new", &New::dir(0o755)).unwrap().id;
    take(&rig, "b");
    let lines = |from: &str, to: &str| {
        let mut all: Vec<String> = diff(&rig, from, to)
            .iter()
            .map(|e| {
                let to = e.new_path.as_ref().map(|p| format!(" -> {}", text(p)));
                let path = format!("{}{}", text(&e.path), to.unwrap_or_default());
                match e.change {
                    DiffChange::Added => format!("+ {path}"),
                    DiffChange::Removed => format!("- {path}"),
                    DiffChange::Renamed => format!("R {path}"),
                    DiffChange::Modified { links: 0 } => format!("M {path}"),
                    DiffChange::Modified { links } => format!("M {path} ({links:+})"),
                }
            })
            .collect();
        all.sort();
        all
    };
    let wanted = [
        "+ /dir/new",
        "- /gone",
        "M /",
        "M /again",
        "M /dir",
        "M /dir/second (+1)",
        "M /modes",
        "R /dir/moved -> /moved away",
    ];
    assert_eq!(lines("a", "b"), wanted);
    fs.unlink(&by, dir, b"second").unwrap();
    fs.rmdir(&by, dir, b"new").unwrap();
    take(&rig, "c");
    let told = lines("b", "c");
    assert!(told.contains(&"- /dir/new".to_owned()), "{told:?}");
    assert!(told.iter().any(|l| l.ends_with("(-1)")), "{told:?}");
    assert_eq!(rig.attrs(linked).nlink, 1);
    assert_eq!(fs.attrs(new, Io::WAIT).err().map(|e| e.kind()), Some(ErrorKind::NotFound));
    // Backwards, with itself, of what is no snapshot.
    let refused =
        |to: Dataset, from: Dataset| to.diff(&from, &mut |_| Ok(())).err().map(|e| e.kind());
    let snap = |name: &str| dataset(&rig, name);
    assert_eq!(refused(snap("a"), snap("b")), Some(ErrorKind::CrossDevice));
    assert_eq!(refused(snap("a"), snap("a")), Some(ErrorKind::CrossDevice));
    let head = || rig.pool.dataset(DATASET).unwrap();
    assert_eq!(refused(head(), snap("a")), Some(ErrorKind::Invalid));
    assert_eq!(refused(snap("a"), head()), Some(ErrorKind::Invalid));
    // A clone, against its origin.
    rig.pool.clone_snapshot(&format!("{DATASET}@a"), "tank/clone", &[], None).unwrap();
    let clone = rig.pool.dataset("tank/clone").unwrap().open_fs().unwrap();
    clone.make(&by, clone.root(), b"only in the clone", &New::file(0o644)).unwrap();
    clone.sync_all().unwrap();
    drop(clone);
    rig.pool.snapshot(&["tank/clone@x".to_owned()], &[], None).unwrap();
    let mut told = Vec::new();
    let later = rig.pool.dataset("tank/clone@x").unwrap();
    later
        .diff(&snap("a"), &mut |e| {
            told.push((e.change, text(&e.path)));
            Ok(())
        })
        .unwrap();
    told.sort_by(|a, b| a.1.cmp(&b.1));
    let wanted = [
        (DiffChange::Modified { links: 0 }, "/".to_owned()),
        (DiffChange::Added, "/only in the clone".to_owned()),
    ];
    assert_eq!(told, wanted);
    assert_eq!(refused(later, snap("b")), Some(ErrorKind::CrossDevice));
    assert_ne!(moved, ObjectId(0));
    rig.finish();
}

/// A change in a large tree is found without the rest of the tree.
#[test]
fn what_did_not_change_is_not_read() {
    let rig = PosixFixture::new("diffcost", 256 * MB);
    let (fs, top, by) = (&rig.fs, rig.root(), Caller::root());
    for n in 0..20 {
        let dir = rig.dir(top, &format!("d{n}"));
        for f in 0..200 {
            fs.make(&by, dir, format!("f{f}").as_bytes(), &New::file(0o644)).unwrap();
        }
    }
    let snap = |name: &str| rig.pool.snapshot(&[format!("{DATASET}@{name}")], &[], None).unwrap();
    snap("a");
    let id = fs.walk(b"d7/f77", Io::WAIT).unwrap();
    rig.write(id, 0, b"x");
    snap("b");
    let rig = rig.again();
    let (from, to) = (dataset(&rig, "a"), dataset(&rig, "b"));
    let reads = || {
        let status = rig.pool.status().unwrap();
        status.root.io.reads().ops
    };
    let before = reads();
    let mut told = Vec::new();
    to.diff(&from, &mut |e| {
        told.push(text(&e.path));
        Ok(())
    })
    .unwrap();
    assert_eq!(told, ["/d7/f77"]);
    let cost = reads() - before;
    // 4,000 dnodes are in 125 blocks.
    assert!(cost < 60, "{cost} reads");
    // They keep the pool open.
    drop((from, to));
    rig.end();
}
