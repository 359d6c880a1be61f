//! Names: opening, renaming, links, files without names.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, symlink};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, open, renameat_with};
use rustix::io::Errno;

use super::{World, errno, refused};

#[test]
fn files_are_opened() {
    let Some(w) = World::new("open", 256, &[]) else { return };
    let file = w.path("file");
    let mut first = OpenOptions::new().write(true).create_new(true).open(&file).unwrap();
    first.write_all(b"12345").unwrap();
    let exists = errno(OpenOptions::new().write(true).create_new(true).open(&file));
    assert_eq!(exists, libc::EEXIST);
    // Two writers that append never overwrite each other.
    let append = || OpenOptions::new().append(true).open(&file).unwrap();
    let (mut a, mut b) = (append(), append());
    for (n, w) in [(0, "a"), (1, "b"), (0, "c"), (1, "d")] {
        let to = if n == 0 { &mut a } else { &mut b };
        to.write_all(w.as_bytes()).unwrap();
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"12345abcd");
    drop(OpenOptions::new().write(true).truncate(true).open(&file).unwrap());
    assert_eq!((first.metadata().unwrap().len(), std::fs::read(&file).unwrap().len()), (0, 0));
    b.write_all(b"e").unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), b"e");

    std::fs::create_dir(w.path("dir")).unwrap();
    symlink("file", w.path("link")).unwrap();
    let with = |name: &str, flags| open(w.path(name), flags, Mode::empty());
    assert_eq!(refused(with("file", OFlags::DIRECTORY)), Errno::NOTDIR);
    assert_eq!(refused(with("dir", OFlags::WRONLY)), Errno::ISDIR);
    assert_eq!(refused(with("link", OFlags::NOFOLLOW)), Errno::LOOP);
    assert_eq!(refused(with("none", OFlags::RDONLY)), Errno::NOENT);
    assert_eq!(refused(with("file/x", OFlags::RDONLY)), Errno::NOTDIR);
    let long = "n".repeat(256);
    assert_eq!(refused(with(&long, OFlags::CREATE | OFlags::WRONLY)), Errno::NAMETOOLONG);
    // The umask counts, and a new file has its mode even if nobody may read it.
    let mode = OpenOptions::new().write(true).create_new(true).mode(0o000).open(w.path("closed"));
    assert_eq!(mode.unwrap().metadata().unwrap().mode() & 0o7777, 0);
    drop((first, a, b));
    w.again();
    assert_eq!(std::fs::read(&file).unwrap(), b"e");
    w.end();
}

#[test]
fn files_without_names() {
    let Some(w) = World::new("unnamed", 256, &[]) else { return };
    let inside = w.path("");
    let mut how = OpenOptions::new();
    how.read(true).write(true).custom_flags(libc::O_TMPFILE).mode(0o640);
    let mut tmp = how.open(&inside).unwrap();
    tmp.write_all(b"unnamed").unwrap();
    assert_eq!(tmp.metadata().unwrap().nlink(), 0);
    let by_fd = format!("/proc/self/fd/{}", tmp.as_raw_fd());
    let named = w.path("named");
    linkat(CWD, &*by_fd, CWD, &named, AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(std::fs::read(&named).unwrap(), b"unnamed");
    assert_eq!(std::fs::metadata(&named).unwrap().mode() & 0o7777, 0o640);
    // One that must not get a name gets none.
    let excl = libc::O_TMPFILE | libc::O_EXCL;
    let closed = OpenOptions::new().write(true).custom_flags(excl).mode(0o600).open(&inside);
    let by_fd = format!("/proc/self/fd/{}", closed.unwrap().as_raw_fd());
    assert!(linkat(CWD, &*by_fd, CWD, w.path("never"), AtFlags::SYMLINK_FOLLOW).is_err());

    // What is open lives without a name, readable and writable, large or small.
    let objects = || rustix::fs::statvfs(&inside).unwrap();
    let mut open = Vec::new();
    for (name, len) in [("small", 10), ("large", 24 << 20)] {
        let bytes = super::noise(7, len);
        super::put(&w.path(name), &bytes);
        let file = OpenOptions::new().read(true).write(true).open(w.path(name)).unwrap();
        std::fs::remove_file(w.path(name)).unwrap();
        assert_eq!(errno(File::open(w.path(name))), libc::ENOENT);
        assert_eq!(
            (file.metadata().unwrap().nlink(), file.metadata().unwrap().len()),
            (0, len as u64)
        );
        open.push((file, bytes));
    }
    // Their names are free.
    std::fs::write(w.path("small"), b"another").unwrap();
    for (file, bytes) in &mut open {
        let mut found = Vec::new();
        file.read_to_end(&mut found).unwrap();
        assert!(found == *bytes, "an open file lost its content");
        file.write_all(b"more").unwrap();
        file.set_len(5).unwrap();
    }
    drop(open);
    drop(tmp);
    std::fs::remove_dir_all(w.path("none")).unwrap_err();
    // A directory that is open goes, too, and takes nothing in any more.
    std::fs::create_dir(w.path("dir")).unwrap();
    let dir = File::open(w.path("dir")).unwrap();
    std::fs::remove_dir(w.path("dir")).unwrap();
    let into = rustix::fs::openat(&dir, "x", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU);
    assert_eq!(refused(into), Errno::NOENT);
    drop(dir);
    assert!(objects().f_files > objects().f_ffree);
    w.end();
}

#[test]
fn names_move() {
    let Some(w) = World::new("rename", 256, &[]) else { return };
    let put = |name: &str| std::fs::write(w.path(name), name).unwrap();
    let text = |name: &str| std::fs::read_to_string(w.path(name)).unwrap();
    let to = |a: &str, b: &str, how| renameat_with(CWD, w.path(a), CWD, w.path(b), how);
    let plain = RenameFlags::empty();
    put("a");
    put("b");
    assert_eq!(refused(to("a", "b", RenameFlags::NOREPLACE)), Errno::EXIST);
    assert_eq!((text("a"), text("b")), ("a".to_owned(), "b".to_owned()));
    to("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!((text("a"), text("b")), ("b".to_owned(), "a".to_owned()));
    assert_eq!(refused(to("a", "none", RenameFlags::EXCHANGE)), Errno::NOENT);
    to("a", "c", RenameFlags::NOREPLACE).unwrap();
    to("c", "w", RenameFlags::WHITEOUT).unwrap();
    let white = std::fs::metadata(w.path("c")).unwrap();
    assert!(white.file_type().is_char_device() && white.rdev() == 0);
    assert_eq!(text("w"), "b");
    let mixed = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE;
    assert_eq!(refused(to("w", "b", mixed)), Errno::INVAL);

    std::fs::create_dir_all(w.path("d/e")).unwrap();
    std::fs::create_dir(w.path("empty")).unwrap();
    assert_eq!(refused(to("d", "d/e/f", plain)), Errno::INVAL);
    assert_eq!(refused(to("d", "d/e/f", RenameFlags::EXCHANGE)), Errno::NOENT);
    assert_eq!(refused(to("w", "d", plain)), Errno::ISDIR);
    assert_eq!(refused(to("d", "w", plain)), Errno::NOTDIR);
    assert_eq!(refused(to("empty", "d", plain)), Errno::NOTEMPTY);
    to("d", "empty", plain).unwrap();
    assert_eq!(errno(std::fs::remove_dir(w.path("empty"))), libc::ENOTEMPTY);
    // A directory and a file may change places; link counts follow.
    to("empty", "w", RenameFlags::EXCHANGE).unwrap();
    assert!(w.path("w/e").is_dir());
    assert_eq!(text("empty"), "b");
    to("w/e", "e", plain).unwrap();
    assert_eq!(std::fs::metadata(w.path("w")).unwrap().nlink(), 2);
    assert_eq!(w.path("e/..").metadata().unwrap().ino(), w.path("").metadata().unwrap().ino());

    // Two names of one file: nothing happens.
    std::fs::hard_link(w.path("b"), w.path("b2")).unwrap();
    to("b", "b2", plain).unwrap();
    assert_eq!((text("b"), std::fs::metadata(w.path("b2")).unwrap().nlink()), ("a".to_owned(), 2));
    // What is open stays when another takes its name.
    let mut held = File::open(w.path("b")).unwrap();
    put("new");
    to("new", "b", plain).unwrap();
    let mut old = String::new();
    held.read_to_string(&mut old).unwrap();
    assert_eq!((old.as_str(), text("b").as_str(), text("b2").as_str()), ("a", "new", "a"));
    assert_eq!(held.metadata().unwrap().nlink(), 1);
    drop(held);
    // Out of the file system.
    let out = std::fs::rename(w.path("b"), w.s.path("outside"));
    assert_eq!(errno(out), libc::EXDEV);
    w.again();
    let names: BTreeSet<String> = std::fs::read_dir(w.path(""))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    let want = ["b", "b2", "c", "e", "empty", "w"];
    assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), want);
    w.end();
}

#[test]
fn long_names_and_many() {
    let Some(w) = World::new("long", 256, &[]) else { return };
    // A path of 4,095 bytes, component by component.
    let name = "x".repeat(250);
    std::fs::write(w.path(&"n".repeat(255)), b"").unwrap();
    let mut at = w.path("");
    while at.as_os_str().len() + 256 < 4095 {
        at.push(&name);
        std::fs::create_dir(&at).unwrap();
    }
    at.push("y".repeat(4095 - at.as_os_str().len() - 1));
    assert_eq!(at.as_os_str().len(), 4095);
    std::fs::write(&at, b"deep").unwrap();
    symlink("z".repeat(4095), w.path("link")).unwrap();
    // Entries come and go while the directory is listed.
    let many = w.path("many");
    std::fs::create_dir(&many).unwrap();
    for n in 0..6000 {
        std::fs::write(many.join(format!("file-{n}")), b"").unwrap();
    }
    let mut seen = BTreeSet::new();
    for (n, entry) in std::fs::read_dir(&many).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(seen.insert(name.clone()), "{name} twice");
        if n % 3 == 0 {
            std::fs::remove_file(many.join(&name)).unwrap();
            std::fs::write(many.join(format!("new-{n}")), b"").unwrap();
        }
    }
    assert_eq!(seen.iter().filter(|n| n.starts_with("file-")).count(), 6000);
    w.again();
    assert_eq!(std::fs::read(&at).unwrap(), b"deep");
    assert_eq!(std::fs::read_link(w.path("link")).unwrap().as_os_str().len(), 4095);
    assert_eq!(std::fs::read_dir(&many).unwrap().count(), 6000);
    std::fs::remove_dir_all(&many).unwrap();
    w.end();
}

#[test]
fn names_that_are_one() {
    let Some(w) = World::new("case", 256, &[]) else { return };
    w.zfs(&["create", "-o", "casesensitivity=insensitive", "tank/i"]);
    w.zfs(&["create", "-o", "normalization=formD", "tank/n"]);
    let (i, n) = (w.path("i"), w.path("n"));
    std::fs::write(i.join("Name"), b"1").unwrap();
    assert_eq!(std::fs::read(i.join("nAME")).unwrap(), b"1");
    let again = OpenOptions::new().write(true).create_new(true).open(i.join("NAME"));
    assert_eq!(errno(again), libc::EEXIST);
    std::fs::remove_file(i.join("name")).unwrap();
    for other in ["Name", "nAME", "name", "NAME"] {
        assert_eq!(errno(File::open(i.join(other))), libc::ENOENT, "{other}");
    }
    std::fs::write(i.join("other"), b"2").unwrap();
    std::fs::rename(i.join("Other"), i.join("last")).unwrap();
    let list: Vec<_> = std::fs::read_dir(&i).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(list, ["last"]);
    std::fs::write(n.join("caf\u{e9}"), b"3").unwrap();
    assert_eq!(std::fs::read(n.join("cafe\u{301}")).unwrap(), b"3");
    std::fs::remove_file(n.join("cafe\u{301}")).unwrap();
    assert_eq!(errno(File::open(n.join("caf\u{e9}"))), libc::ENOENT);
    // Normalisation comes with UTF-8, and both are inherited; what is below may differ.
    let get = |what: &str, of: &str| w.zfs(&["get", "-H", "-o", "value", what, of]);
    w.zfs(&["create", "tank/n/below"]);
    assert_eq!(get("utf8only,normalization", "tank/n/below"), "on\nformD\n");
    for dir in [n.clone(), n.join("below")] {
        let bad = dir.join(std::ffi::OsStr::from_bytes(b"\xff\xfe"));
        assert_eq!(errno(File::create(bad)), libc::EILSEQ);
    }
    let fixed = w.s.fail(1, &["zfs", "set", "utf8only=off", "tank/n"]);
    assert!(fixed.contains("readonly"), "{fixed}");

    // Mixed: as if the case mattered, since nobody can ask on Linux that it does not.
    w.zfs(&["create", "-o", "casesensitivity=mixed", "-o", "utf8only=on", "tank/m"]);
    assert_eq!(get("casesensitivity", "tank/m"), "mixed\n");
    let m = w.path("m");
    for (name, text) in [("Name", "1"), ("NAME", "2"), ("name", "3")] {
        std::fs::write(m.join(name), text).unwrap();
    }
    assert_eq!(errno(File::open(m.join("nAME"))), libc::ENOENT);
    std::fs::rename(m.join("NAME"), m.join("nAME")).unwrap();
    std::fs::remove_file(m.join("Name")).unwrap();
    w.zfs(&["unmount", "tank/m"]);
    w.zfs(&["mount", "tank/m"]);
    let text = |name: &str| std::fs::read_to_string(m.join(name)).unwrap();
    assert_eq!((text("nAME"), text("name")), ("2".to_owned(), "3".to_owned()));
    assert_eq!(errno(File::create(m.join(std::ffi::OsStr::from_bytes(b"a\xff")))), libc::EILSEQ);
    w.end();
}

/// `fstat` of a directory that was removed, or replaced by `rename`, while it was open
/// failed with `ESTALE` (xfstests' generic/035): nothing held it, as the kernel opens
/// directories without a word to the server.
#[test]
fn a_directory_removed_while_open() {
    use std::os::unix::fs::MetadataExt;
    let Some(w) = World::new("removed-dir", 256, &[]) else { return };
    let dir = |name: &str| {
        std::fs::create_dir(w.path(name)).unwrap();
        (std::fs::File::open(w.path(name)).unwrap(), std::fs::metadata(w.path(name)).unwrap())
    };
    let gone = |(open, before): &(std::fs::File, std::fs::Metadata)| {
        let now = open.metadata().unwrap();
        assert!(now.is_dir());
        assert_eq!((now.nlink(), now.ino(), now.mode()), (0, before.ino(), before.mode()));
    };
    let (removed, replaced, stays) = (dir("removed"), dir("replaced"), dir("stays"));
    std::fs::remove_dir(w.path("removed")).unwrap();
    gone(&removed);
    std::fs::rename(w.path("stays"), w.path("replaced")).unwrap();
    gone(&replaced);
    assert_eq!(stays.0.metadata().unwrap().nlink(), 2);
    // What could not be removed is as it was.
    std::fs::write(w.path("replaced/file"), b"x").unwrap();
    assert!(std::fs::remove_dir(w.path("replaced")).is_err());
    assert_eq!(stays.0.metadata().unwrap().nlink(), 2);
    // Numbers are used again: what is told is of the new ones.
    drop((removed, replaced, stays));
    for n in 0..300 {
        let name = format!("new-{n}");
        let (open, before) = dir(&name);
        assert_eq!(open.metadata().unwrap().ino(), before.ino());
        assert_eq!(before.nlink(), 2);
    }
    w.end();
}
