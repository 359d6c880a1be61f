//! What the kernel leaves to the file system to check: names of extended attributes, flags of
//! files, projects, `.zfs` (`docs/security.md`).

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;

use super::{World, errno, has, refused, run};

const USER: u32 = 65534;
const OTHER: u32 = 1234;

/// Does something on a thread that is another user.
fn as_user<T: Send + 'static>(uid: u32, what: impl FnOnce() -> T + Send + 'static) -> T {
    let life = move || {
        let id = libc::c_long::from(uid);
        // SAFETY: plain numbers; they change the calling thread's identity alone.
        let rc = unsafe {
            libc::syscall(libc::SYS_setgroups, 0, 0)
                | libc::syscall(libc::SYS_setresgid, id, id, id)
                | libc::syscall(libc::SYS_setresuid, id, id, id)
        };
        assert_eq!(rc, 0);
        what()
    };
    std::thread::spawn(life).join().unwrap()
}

fn list(path: &Path) -> Vec<String> {
    let mut out = vec![0; 70_000];
    let n = listxattr(path, &mut out[..]).unwrap();
    out.truncate(n);
    let text = String::from_utf8(out).unwrap();
    let mut names: Vec<String> = text.split_terminator('\0').map(str::to_owned).collect();
    names.sort();
    names
}

/// Any user set, read and removed `system.*` attributes of root's files of mode 0600, and saw
/// the names of `trusted.*` ones.
#[test]
fn attributes_of_others() {
    let Some(w) = World::new("others", 256, &[]) else { return };
    let file = w.path("file");
    std::fs::write(&file, b"x").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let none = XattrFlags::empty();
    setxattr(&file, "trusted.t", b"1", none).unwrap();
    setxattr(&file, "security.s", b"1", none).unwrap();
    setxattr(&file, "user.u", b"1", none).unwrap();
    let all = ["security.s", "trusted.t", "user.u"];
    assert_eq!(list(&file), all);
    for uid in [0, USER] {
        for name in ["system.x", "system.nfs4_acl", "nonsense.x", "nonsense"] {
            let at = file.clone();
            let got = as_user(uid, move || {
                let set = setxattr(&at, name, b"1", none);
                let get = getxattr(&at, name, &mut [0; 9][..]).map(drop);
                (set, get, removexattr(&at, name))
            });
            // Unknown names are checked as content is, before the file system is asked.
            let (may, no) = (uid == 0 || name.starts_with("system."), Err(Errno::OPNOTSUPP));
            let refused = if may { no } else { Err(Errno::ACCESS) };
            assert_eq!(got, (refused, refused, refused), "{uid} {name}");
        }
    }
    let at = file.clone();
    let seen = as_user(USER, move || {
        let user = (setxattr(&at, "user.v", b"1", none), getxattr(&at, "user.u", &mut [0; 9][..]));
        assert_eq!(user, (Err(Errno::ACCESS), Err(Errno::ACCESS)));
        assert_eq!(setxattr(&at, "trusted.t", b"2", none), Err(Errno::PERM));
        assert_eq!(getxattr(&at, "trusted.t", &mut [0; 9][..]), Err(Errno::NODATA));
        assert_eq!(setxattr(&at, "security.s", b"2", none), Err(Errno::PERM));
        list(&at)
    });
    assert_eq!(seen, ["security.s", "user.u"]);
    w.again();
    assert_eq!(list(&file), all);
    w.end();
}

/// An access control list that gives a user the right to read, in Linux's form.
fn acl() -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    let none = u32::MAX;
    for (tag, perm, id) in
        [(1, 6, none), (2, 4, USER), (4, 4, none), (0x10, 4, none), (0x20, 4, none)]
    {
        out.extend_from_slice(&u16::to_le_bytes(tag));
        out.extend_from_slice(&u16::to_le_bytes(perm));
        out.extend_from_slice(&u32::to_le_bytes(id));
    }
    out
}

/// With `acltype=off` a stored list was shown by name and then refused; through a snapshot
/// it was given, too.
#[test]
fn stored_lists_where_there_are_none() {
    const NAME: &str = "system.posix_acl_access";
    let Some(w) = World::new("noacl", 256, &["-O", "acltype=posix"]) else { return };
    let file = w.path("file");
    std::fs::write(&file, b"x").unwrap();
    setxattr(&file, NAME, &acl(), XattrFlags::empty()).unwrap();
    w.zfs(&["snapshot", "tank@s"]);
    let old = w.path(".zfs/snapshot/s/file");
    for path in [&file, &old] {
        assert_eq!(list(path), [NAME]);
        assert_eq!(getxattr(path, NAME, &mut [0; 100][..]), Ok(acl().len()));
    }
    w.zfs(&["set", "acltype=off", "tank"]);
    for path in [&file, &old] {
        assert_eq!(list(path), Vec::<String>::new());
        assert_eq!(refused(getxattr(path, NAME, &mut [0; 100][..])), Errno::OPNOTSUPP);
    }
    w.zfs(&["set", "acltype=posix", "tank"]);
    assert_eq!(list(&file), [NAME]);
    w.end();
}

/// `.zfs` lacked `shares`, which OpenZFS shows beside `snapshot`.
#[test]
fn the_control_directory() {
    let Some(w) = World::new("ctldir", 256, &["-O", "snapdir=visible"]) else { return };
    let names = |path: &str| {
        let list = std::fs::read_dir(w.path(path)).unwrap();
        let mut names: Vec<String> =
            list.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(".zfs"), ["shares", "snapshot"]);
    assert_eq!(names(".zfs/shares"), Vec::<String>::new());
    let stat = |path: &str| std::fs::metadata(w.path(path)).unwrap();
    let shares = stat(".zfs/shares");
    assert_eq!((shares.ino(), shares.mode()), (0xffff_ffff_fffe, 0o040_555));
    assert_eq!(stat(".zfs/shares/..").ino(), stat(".zfs").ino());
    assert_eq!(stat(".zfs").nlink(), 4);
    assert_eq!(errno(std::fs::create_dir(w.path(".zfs/shares/x"))), libc::EROFS);
    assert_eq!(errno(std::fs::create_dir(w.path(".zfs/x"))), libc::EROFS);
    assert_eq!(errno(std::fs::metadata(w.path(".zfs/shares/x"))), libc::ENOENT);
    let flags = File::open(w.path(".zfs/shares")).unwrap();
    assert_eq!(errno(get_flags(&flags)), libc::ENOTTY);
    drop(flags);
    w.end();
}

const GET_FLAGS: u64 = 0x8008_6601;
const SET_FLAGS: u64 = 0x4008_6602;
const GET_FSX: u64 = 0x801c_581f;
const SET_FSX: u64 = 0x401c_5820;
const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;
const NODUMP: u32 = 0x40;
const NOATIME: u32 = 0x80;

/// An ioctl of a structure of at most eight words.
fn ioctl(file: &File, cmd: u64, arg: &mut [u32; 8]) -> std::io::Result<()> {
    // SAFETY: the kernel reads or writes at most 28 bytes of `arg`, which outlives the call.
    match unsafe { libc::ioctl(file.as_raw_fd(), cmd as _, arg.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn get_flags(file: &File) -> std::io::Result<u32> {
    let mut arg = [0; 8];
    ioctl(file, GET_FLAGS, &mut arg).map(|()| arg[0])
}

fn set_flags(path: &Path, flags: u32) -> std::io::Result<()> {
    ioctl(&File::open(path)?, SET_FLAGS, &mut [flags, 0, 0, 0, 0, 0, 0, 0])
}

#[test]
fn flags_of_files() {
    let Some(w) = World::new("flags", 256, &[]) else { return };
    std::fs::set_permissions(w.path(""), PermissionsExt::from_mode(0o777)).unwrap();
    let file = w.path("file");
    std::fs::write(&file, b"12345").unwrap();
    let flags = || get_flags(&File::open(&file).unwrap()).unwrap();
    assert_eq!(flags(), 0);
    set_flags(&file, IMMUTABLE | NODUMP).unwrap();
    let write = || OpenOptions::new().write(true).open(&file).map(drop);
    let append = || OpenOptions::new().append(true).open(&file);
    let check_immutable = || {
        assert_eq!(flags(), IMMUTABLE | NODUMP);
        assert_eq!(errno(write()), libc::EPERM);
        assert_eq!(errno(append()), libc::EPERM);
        assert_eq!(errno(std::fs::remove_file(&file)), libc::EPERM);
        assert_eq!(errno(std::fs::rename(&file, w.path("other"))), libc::EPERM);
        assert_eq!(errno(std::fs::hard_link(&file, w.path("other"))), libc::EPERM);
        assert_eq!(errno(chown(&file, Some(1), None)), libc::EPERM);
        let mode = PermissionsExt::from_mode(0o600);
        assert_eq!(errno(std::fs::set_permissions(&file, mode)), libc::EPERM);
        let none = XattrFlags::empty();
        assert_eq!(refused(setxattr(&file, "user.a", b"1", none)), Errno::PERM);
        assert_eq!(std::fs::read(&file).unwrap(), b"12345");
    };
    check_immutable();
    w.again();
    check_immutable();
    set_flags(&file, APPEND).unwrap();
    assert_eq!(errno(write()), libc::EPERM);
    append().unwrap().write_all(b"6").unwrap();
    append().unwrap().write_all(b"7").unwrap();
    assert_eq!(errno(append().unwrap().set_len(2)), libc::EPERM);
    assert_eq!(errno(std::fs::remove_file(&file)), libc::EPERM);
    assert_eq!(std::fs::read(&file).unwrap(), b"1234567");
    set_flags(&file, 0).unwrap();
    write().unwrap();
    assert_eq!(errno(set_flags(&file, NOATIME)), libc::EOPNOTSUPP);
    // An immutable directory keeps its names.
    std::fs::create_dir(w.path("dir")).unwrap();
    std::fs::write(w.path("dir/in"), b"x").unwrap();
    set_flags(&w.path("dir"), IMMUTABLE).unwrap();
    assert_eq!(errno(std::fs::write(w.path("dir/new"), b"x")), libc::EPERM);
    std::fs::write(w.path("dir/in"), b"y").unwrap();
    set_flags(&w.path("dir"), 0).unwrap();

    // Owners change what is theirs, but for the flags that bind root.
    chown(&file, Some(USER), Some(USER)).unwrap();
    let by = |uid, flags| {
        let at = file.clone();
        as_user(uid, move || set_flags(&at, flags).map_err(|e| e.raw_os_error().unwrap()))
    };
    assert_eq!(by(USER, NODUMP), Ok(()));
    assert_eq!(by(USER, NODUMP | IMMUTABLE), Err(libc::EPERM));
    assert_eq!(by(USER, APPEND), Err(libc::EPERM));
    assert_eq!(by(OTHER, 0), Err(libc::EPERM));
    assert_eq!(flags(), NODUMP);
    if has("lsattr") && has("chattr") {
        let at = file.to_str().unwrap();
        let said = run("chattr", &["=ia", at], None);
        assert_eq!((said.code, said.err.as_str()), (0, ""));
        let said = run("lsattr", &[at], None);
        let shown = said.out.split(' ').next().unwrap().replace('-', "");
        assert_eq!((said.code, shown.as_str()), (0, "ia"), "{said:?}");
        assert_eq!(flags(), IMMUTABLE | APPEND);
        assert_eq!(run("chattr", &["=", at], None).code, 0);
    }
    w.end();
}

#[test]
fn projects_of_files() {
    let Some(w) = World::new("projects", 256, &[]) else { return };
    let dir = w.path("dir");
    std::fs::create_dir(&dir).unwrap();
    let fsx = |path: &Path| {
        let mut arg = [0; 8];
        ioctl(&File::open(path).unwrap(), GET_FSX, &mut arg).map(|()| (arg[0], arg[3])).unwrap()
    };
    let set = |path: &Path, flags, project| {
        let mut arg = [flags, 0, 0, project, 0, 0, 0, 0];
        ioctl(&File::open(path).unwrap(), SET_FSX, &mut arg)
    };
    assert_eq!(fsx(&dir), (0, 0));
    set(&dir, 0x200, 42).unwrap();
    std::fs::write(dir.join("file"), b"x").unwrap();
    std::fs::create_dir(dir.join("sub")).unwrap();
    let check = || {
        assert_eq!(fsx(&dir), (0x200, 42));
        assert_eq!(fsx(&dir.join("file")).1, 42);
        assert_eq!(fsx(&dir.join("sub")), (0x200, 42));
    };
    check();
    w.again();
    check();
    // What is of another project does not come in by a name, and `mv` copies it.
    std::fs::write(w.path("file"), b"x").unwrap();
    assert_eq!(errno(std::fs::rename(w.path("file"), dir.join("moved"))), libc::EXDEV);
    set(&w.path("file"), 0, 42).unwrap();
    std::fs::rename(w.path("file"), dir.join("moved")).unwrap();
    assert_eq!(errno(set(&dir, 0x40, 42)), libc::EOPNOTSUPP);
    if has("lsattr") && has("chattr") {
        assert_eq!(run("chattr", &["-p", "7", dir.join("file").to_str().unwrap()], None).code, 0);
        assert_eq!(fsx(&dir.join("file")).1, 7);
        let said = run("lsattr", &["-pd", dir.to_str().unwrap()], None);
        let words: Vec<&str> = said.out.split_whitespace().collect();
        assert_eq!((words[0], words[1].replace('-', "").as_str()), ("42", "P"), "{said:?}");
    }
    w.zfs(&["snapshot", "tank@s"]);
    let old = w.path(".zfs/snapshot/s/dir");
    assert_eq!(fsx(&old), (0x200, 42));
    assert_eq!(errno(set(&old, 0, 1)), libc::EROFS);
    w.end();
}
