//! Making, linking, removing and moving names.

use base::{ErrorKind, ObjectId};
use dmu::Io;
use zpl::rw::{Caller, New, Rename, SetAttrs, SetHow};
use zpl::{Device, FileType};

use super::{MB, PosixFixture, kind};

fn root() -> Caller {
    Caller::root()
}

#[test]
fn files_of_every_kind() {
    let rig = PosixFixture::new("kinds", 128 * MB);
    let (fs, top) = (&rig.fs, rig.root());
    let new =
        |kind| New { kind, mode: 0o640, device: Device { major: 8, minor: 300 }, target: b"" };
    for (name, kind) in [
        ("file", FileType::Regular),
        ("fifo", FileType::Fifo),
        ("char", FileType::Char),
        ("block", FileType::Block),
        ("socket", FileType::Socket),
        ("dir", FileType::Dir),
    ] {
        let a = fs.make(&root(), top, name.as_bytes(), &new(kind)).unwrap();
        assert_eq!((a.kind, a.mode & 0o7777, a.parent), (kind, 0o640, top));
        let device = matches!(kind, FileType::Char | FileType::Block);
        assert_eq!(a.device.is_some(), device, "{name}");
        assert!(!device || a.device == Some(Device { major: 8, minor: 300 }));
        let found = fs.lookup(top, name.as_bytes(), Io::MEMORY).unwrap();
        assert_eq!((found.id, found.kind), (a.id, kind));
    }
    for len in [1, 100, 136, 137, 1000, 4095] {
        let target = vec![b'x'; len];
        let name = format!("link{len}");
        let a = fs.make(&root(), top, name.as_bytes(), &New::symlink(&target)).unwrap();
        assert_eq!((a.kind, a.size, a.mode), (FileType::Symlink, len as u64, 0o120_777));
        assert_eq!(fs.readlink(a.id, Io::WAIT).unwrap(), target);
    }
    assert_eq!(
        kind(fs.make(&root(), top, b"l", &New::symlink(&[b'x'; 4096]))),
        ErrorKind::NameTooLong
    );
    assert_eq!(kind(fs.make(&root(), top, b"file", &New::file(0))), ErrorKind::Exists);
    assert_eq!(kind(fs.make(&root(), top, &[b'n'; 256], &New::file(0))), ErrorKind::NameTooLong);
    let long = [b'n'; 255];
    let id = fs.make(&root(), top, &long, &New::file(0)).unwrap().id;
    assert_eq!(kind(fs.make(&root(), id, b"x", &New::file(0))), ErrorKind::NotDir);
    assert_eq!(rig.attrs(top).size, 2 + 6 + 6 + 1);
    assert_eq!(rig.attrs(top).nlink, 3);
    let rig = rig.again();
    assert_eq!(
        rig.fs.readlink(rig.fs.walk(b"link4095", Io::WAIT).unwrap(), Io::WAIT).unwrap().len(),
        4095
    );
    assert_eq!(rig.list(top).len(), 13);
    rig.finish();
}

#[test]
fn links_are_counted() {
    let rig = PosixFixture::new("links", 128 * MB);
    let (fs, top) = (&rig.fs, rig.root());
    let (a, d) = (rig.file(top, "a"), rig.dir(top, "d"));
    assert_eq!(fs.link(&root(), a, d, b"b").unwrap().nlink, 2);
    assert_eq!(rig.attrs(a).parent, d);
    assert_eq!(kind(fs.link(&root(), a, d, b"b")), ErrorKind::Exists);
    assert_eq!(kind(fs.link(&root(), d, top, b"e")), ErrorKind::NotPermitted);
    assert_eq!(kind(fs.unlink(&root(), top, b"d")), ErrorKind::IsDir);
    assert_eq!(kind(fs.rmdir(&root(), top, b"a")), ErrorKind::NotDir);
    assert_eq!(kind(fs.rmdir(&root(), top, b"d")), ErrorKind::NotEmpty);
    assert_eq!(fs.unlink(&root(), top, b"a").unwrap(), a);
    assert_eq!(rig.attrs(a).nlink, 1);
    assert_eq!(fs.unlink(&root(), d, b"b").unwrap(), a);
    assert_eq!(kind(fs.attrs(a, Io::WAIT)), ErrorKind::NotFound);
    assert_eq!(kind(fs.unlink(&root(), d, b"b")), ErrorKind::NotFound);
    assert_eq!(fs.rmdir(&root(), top, b"d").unwrap(), d);
    assert_eq!(kind(fs.make(&root(), d, b"x", &New::file(0))), ErrorKind::NotFound);
    let t = rig.attrs(top);
    assert_eq!((t.size, t.nlink), (2, 2));
    rig.finish();
}

#[test]
fn moves() {
    let rig = PosixFixture::new("moves", 128 * MB);
    let (fs, top) = (&rig.fs, rig.root());
    let mv = |from: (ObjectId, &str), to: (ObjectId, &str), how| {
        fs.rename(&root(), (from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()), how)
    };
    let (d, e) = (rig.dir(top, "d"), rig.dir(top, "e"));
    let (a, b) = (rig.file(top, "a"), rig.file(d, "b"));
    mv((top, "a"), (top, "a2"), Rename::Plain).unwrap();
    assert_eq!(rig.list(top), ["a2", "d", "e"]);
    assert_eq!(kind(mv((top, "a2"), (d, "b"), Rename::NoReplace)), ErrorKind::Exists);
    mv((top, "a2"), (d, "b"), Rename::Plain).unwrap();
    assert_eq!(kind(fs.attrs(b, Io::WAIT)), ErrorKind::NotFound);
    assert_eq!((rig.attrs(a).parent, rig.list(d)), (d, vec!["b".to_owned()]));
    assert_eq!(kind(mv((d, "b"), (top, "e"), Rename::Plain)), ErrorKind::IsDir);
    assert_eq!(kind(mv((top, "e"), (d, "b"), Rename::Plain)), ErrorKind::NotDir);
    assert_eq!(kind(mv((top, "e"), (top, "d"), Rename::Plain)), ErrorKind::NotEmpty);
    // Directories below themselves.
    let f = rig.dir(d, "f");
    assert_eq!(kind(mv((top, "d"), (f, "x"), Rename::Plain)), ErrorKind::Invalid);
    assert_eq!(kind(mv((top, "d"), (d, "x"), Rename::Plain)), ErrorKind::Invalid);
    mv((d, "f"), (e, "f"), Rename::Plain).unwrap();
    assert_eq!(fs.lookup(f, b"..", Io::WAIT).unwrap().id, e);
    assert_eq!((rig.attrs(d).nlink, rig.attrs(e).nlink), (2, 3));
    assert_eq!(kind(mv((top, "e"), (f, "x"), Rename::Exchange)), ErrorKind::NotFound);
    mv((d, "b"), (top, "e"), Rename::Exchange).unwrap();
    assert_eq!((rig.attrs(d).nlink, rig.attrs(top).nlink), (3, 3));
    assert_eq!(fs.lookup(d, b"b", Io::WAIT).unwrap().id, e);
    assert_eq!(fs.lookup(top, b"e", Io::WAIT).unwrap().kind, FileType::Regular);
    assert_eq!(kind(mv((top, "d"), (e, "f"), Rename::Exchange)), ErrorKind::Invalid);
    mv((top, "e"), (d, "w"), Rename::Whiteout).unwrap();
    let white = fs.lookup(top, b"e", Io::WAIT).unwrap();
    let w = rig.attrs(white.id);
    assert_eq!((w.kind, w.device, w.mode), (FileType::Char, Some(Device::default()), 0o020_000));
    mv((d, "w"), (d, "w2"), Rename::Whiteout).unwrap();
    assert_eq!(rig.list(d), ["b", "w", "w2"]);
    let t = rig.attrs(d);
    assert_eq!((t.size, t.nlink), (5, 3));
    // Two names of one file.
    fs.link(&root(), a, d, b"w3").unwrap();
    mv((d, "w2"), (d, "w3"), Rename::Plain).unwrap();
    assert_eq!(rig.attrs(a).nlink, 2);
    let rig = rig.again();
    assert_eq!(rig.list(d), ["b", "w", "w2", "w3"]);
    rig.finish();
}

#[test]
fn directories_grow_and_shrink() {
    let rig = PosixFixture::new("grow", 256 * MB);
    let top = rig.root();
    let d = rig.dir(top, "d");
    let name = |i: usize| format!("a file with a rather long name, number {i}");
    let long = |i: usize| format!("{}{i}", "n".repeat(200));
    for i in 0..3000 {
        rig.file(d, &name(i));
    }
    rig.sync();
    for i in 0..200 {
        rig.file(d, &long(i));
    }
    assert_eq!(rig.attrs(d).size, 3202);
    assert_eq!(rig.list(d).len(), 3200);
    let rig = rig.again();
    let fs = &rig.fs;
    for i in 0..3000 {
        fs.unlink(&root(), d, name(i).as_bytes()).unwrap();
    }
    assert_eq!(rig.list(d).len(), 200);
    for i in 0..200 {
        fs.unlink(&root(), d, long(i).as_bytes()).unwrap();
    }
    fs.rmdir(&root(), top, b"d").unwrap();
    rig.finish();
}

#[test]
fn names_that_differ_in_case_or_form() {
    // Insensitive, formD.
    let rig = PosixFixture::with(
        "case",
        128 * MB,
        5000,
        &[("casesensitivity", 1), ("normalization", 0x10)],
    );
    let (fs, top) = (&rig.fs, rig.root());
    let a = rig.file(top, "Caf\u{e9}");
    assert_eq!(fs.lookup(top, "CAFE\u{301}".as_bytes(), Io::WAIT).unwrap().id, a);
    assert_eq!(
        kind(fs.make(&root(), top, "cafe\u{301}".as_bytes(), &New::file(0))),
        ErrorKind::Exists
    );
    assert_eq!(kind(fs.make(&root(), top, b"\xff", &New::file(0))), ErrorKind::NotUnicode);
    let mv = |from: &str, to: &str| {
        fs.rename(&root(), (top, from.as_bytes()), (top, to.as_bytes()), Rename::Plain)
    };
    mv("caf\u{e9}", "CAF\u{c9}").unwrap();
    assert_eq!(rig.list(top), ["CAF\u{c9}"]);
    let b = rig.file(top, "other");
    mv("OTHER", "caf\u{e9}").unwrap();
    assert_eq!(rig.list(top), ["caf\u{e9}"]);
    assert_eq!(fs.lookup(top, b"CAFE\xcc\x81", Io::WAIT).unwrap().id, b);
    assert_eq!(kind(fs.attrs(a, Io::WAIT)), ErrorKind::NotFound);
    fs.unlink(&root(), top, "CAF\u{c9}".as_bytes()).unwrap();
    assert_eq!(rig.attrs(top).size, 2);
    rig.finish();
}

#[test]
fn old_file_systems() {
    let rig = PosixFixture::with("old", 128 * MB, 15, &[]);
    let (fs, top) = (&rig.fs, rig.root());
    assert_eq!(fs.props().version, 4);
    let (a, d) = (rig.file(top, "a"), rig.dir(top, "d"));
    rig.write(a, 0, &[7; 300_000]);
    for len in [3, 56, 57, 4000] {
        let target = vec![b't'; len];
        let id =
            fs.make(&root(), d, format!("l{len}").as_bytes(), &New::symlink(&target)).unwrap().id;
        assert_eq!(fs.readlink(id, Io::WAIT).unwrap(), target);
    }
    let set = SetAttrs { mode: Some(0o4070), uid: Some(7), ..SetAttrs::default() };
    let now = fs.set_attrs(&root(), a, &set).unwrap();
    assert_eq!((now.mode, now.uid), (0o104_070, 7));
    fs.set_xattr(&root(), a, b"user.x", b"value", SetHow::Any).unwrap();
    assert_eq!(fs.get_xattr(a, b"user.x", Io::WAIT).unwrap().unwrap(), b"value");
    fs.rename(&root(), (top, b"a"), (d, b"a"), Rename::Plain).unwrap();
    let rig = rig.again();
    assert_eq!(rig.read(a), vec![7; 300_000]);
    assert_eq!(rig.fs.get_xattr(a, b"user.x", Io::WAIT).unwrap().unwrap(), b"value");
    assert_eq!(rig.list(d), ["a", "l3", "l4000", "l56", "l57"]);
    rig.fs.unlink(&root(), d, b"a").unwrap();
    rig.finish();
}

/// Peak memory of this process, MiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// Tens of thousands of names (or `CENOTE_NAMES`): found, listed in pages while others are
/// added and removed, and removed again; the directory's blocks are freed with the last of
/// them.
#[test]
fn very_many_names() {
    let many = std::env::var("CENOTE_NAMES").ok().map(|n| n.parse::<u64>().unwrap());
    let names = many.unwrap_or(60_000);
    let start = std::time::Instant::now();
    let told = |what: &str| {
        println!("{what}: {:.1} s, {} MiB at most", start.elapsed().as_secs_f64(), peak());
    };
    let rig = PosixFixture::new("many", 512 * MB + names * 600);
    let (of, dir) = (rig.dir(rig.root(), "of"), rig.dir(rig.root(), "dir"));
    let files: Vec<_> = (0..100).map(|n| rig.file(of, &format!("f{n}"))).collect();
    let name = |n: u64| format!("entry-{n:08}");
    let fs = &rig.fs;
    for n in 0..names {
        fs.link(&root(), files[n as usize % 100], dir, name(n).as_bytes()).unwrap();
    }
    assert_eq!(rig.attrs(dir).size, names + 2);
    told("linked");
    let rig = rig.again();
    let fs = &rig.fs;
    told("imported again");
    // A name that exists all the time is listed exactly once, whatever else changes.
    let (mut seen, mut cookie, mut round) = (vec![false; names as usize], Some(0), 0);
    while let Some(at) = cookie {
        let page = fs.readdir(dir, at, Io::WAIT).unwrap();
        for e in &page.entries {
            let Some(n) = e.name.strip_prefix(b"entry-") else { continue };
            let n: usize = std::str::from_utf8(n).unwrap().parse().unwrap();
            assert!(!std::mem::replace(&mut seen[n], true), "{n} twice");
        }
        cookie = page.next;
        for n in round * 7..round * 7 + 7 {
            fs.link(&root(), files[0], dir, format!("new-{n}").as_bytes()).unwrap();
            if n % 2 == 0 {
                fs.unlink(&root(), dir, format!("new-{n}").as_bytes()).unwrap();
            }
        }
        round += 1;
    }
    assert!(seen.into_iter().all(|s| s));
    told("listed");
    for n in (0..names).step_by(997) {
        let found = fs.lookup(dir, name(n).as_bytes(), Io::WAIT).unwrap();
        assert_eq!(found.id, files[n as usize % 100]);
    }
    assert_eq!(kind(fs.lookup(dir, b"entry", Io::WAIT)), ErrorKind::NotFound);
    assert_eq!(kind(fs.rmdir(&root(), rig.root(), b"dir")), ErrorKind::NotEmpty);
    told("looked up");
    if many.is_some() {
        for n in (0..names).step_by(10) {
            fs.unlink(&root(), dir, name(n).as_bytes()).unwrap();
        }
        told("removed every tenth");
        rig.end();
        told("exported and judged");
        return;
    }
    for name in rig.list(dir) {
        fs.unlink(&root(), dir, name.as_bytes()).unwrap();
    }
    assert_eq!(rig.attrs(dir).size, 2);
    assert!(files.iter().all(|f| rig.attrs(*f).nlink == 1));
    fs.rmdir(&root(), rig.root(), b"dir").unwrap();
    rig.finish();
}
