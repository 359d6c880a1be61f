//! Attributes and rights: extended attributes, ACLs, modes, properties of mounts.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;

use super::{World, errno, has, noise, refused, run};

/// Nobody, and another.
const USER: u32 = 65534;
const OTHER: u32 = 1234;

fn value(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut out = vec![0; 70_000];
    let n = getxattr(path, name, &mut out[..])?;
    out.truncate(n);
    Ok(out)
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

#[test]
fn extended_attributes() {
    let Some(w) = World::new("xattr", 256, &[]) else { return };
    for form in ["sa", "dir"] {
        let set = format!("xattr={form}");
        w.zfs(&["create", "-o", &set, &format!("tank/{form}")]);
        let path = w.path(form).join("file");
        std::fs::write(&path, b"x").unwrap();
        let put = |name: &str, value: &[u8], how| setxattr(&path, name, value, how);
        put("user.a", b"1", XattrFlags::CREATE).unwrap();
        assert_eq!(refused(put("user.a", b"2", XattrFlags::CREATE)), Errno::EXIST);
        assert_eq!(refused(put("user.b", b"2", XattrFlags::REPLACE)), Errno::NODATA);
        put("user.a", b"", XattrFlags::REPLACE).unwrap();
        put("security.x", b"3", XattrFlags::empty()).unwrap();
        put("trusted.x", b"4", XattrFlags::empty()).unwrap();
        // Both small in the file's own attributes, and as large as they come.
        let large = noise(4, 64 << 10);
        for len in [100, 5000, 40_000, 64 << 10, 10] {
            put("user.grows", &large[..len], XattrFlags::empty()).unwrap();
            assert!(value(&path, "user.grows").unwrap() == large[..len], "{form} {len}");
        }
        for n in 0..100 {
            put(&format!("user.n{n}"), &large[n..2 * n], XattrFlags::empty()).unwrap();
        }
        for n in (0..100).step_by(2) {
            removexattr(&path, &*format!("user.n{n}")).unwrap();
        }
        assert_eq!(refused(removexattr(&path, "user.n0")), Errno::NODATA);
        // No such attributes on what is neither file nor directory.
        let link = w.path(form).join("link");
        symlink("file", &link).unwrap();
        let on_link = rustix::fs::lsetxattr(&link, "user.a", b"1", XattrFlags::empty());
        assert_eq!(refused(on_link), Errno::PERM);
        let check = || {
            assert_eq!(value(&path, "user.a").unwrap(), b"");
            assert_eq!(value(&path, "security.x").unwrap(), b"3");
            let mut want: Vec<String> = (1..100).step_by(2).map(|n| format!("user.n{n}")).collect();
            want.extend(["user.a", "user.grows", "security.x", "trusted.x"].map(str::to_owned));
            want.sort();
            assert_eq!(list(&path), want, "{form}");
            assert!(value(&path, "user.n99").unwrap() == large[99..198]);
        };
        check();
        w.zfs(&["unmount", &format!("tank/{form}")]);
        w.zfs(&["mount", &format!("tank/{form}")]);
        check();
    }
    w.zfs(&["set", "xattr=off", "tank/sa"]);
    let off = w.path("sa/file");
    assert_eq!(refused(setxattr(&off, "user.z", b"1", XattrFlags::empty())), Errno::OPNOTSUPP);
    w.end();
}

#[test]
fn access_control_lists() {
    let Some(w) = World::new("acl", 256, &["-O", "acltype=posixacl"]) else { return };
    if !has("setfacl") || !has("getfacl") {
        return;
    }
    let tool = |program: &str, args: &[&str]| {
        let said = run(program, args, None);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{program} {args:?}");
        said.out
    };
    let at = |name: &str| w.path(name).to_str().unwrap().to_owned();
    let acl = |name: &str| tool("getfacl", &["-cnpE", &at(name)]).trim().replace('\n', " ");
    let reads = |name: &str, user| run("/bin/cat", &[&at(name)], Some(user)).code == 0;
    std::fs::write(w.path("file"), b"secret").unwrap();
    std::fs::set_permissions(w.path("file"), PermissionsExt::from_mode(0o600)).unwrap();
    assert!(!reads("file", USER));
    tool("setfacl", &["-m", &format!("u:{USER}:r"), &at("file")]);
    assert!(reads("file", USER) && !reads("file", OTHER));
    assert_eq!(acl("file"), format!("user::rw- user:{USER}:r-- group::--- mask::r-- other::---"));
    // The mask is what chmod changes, and what the mode shows.
    assert_eq!(std::fs::metadata(w.path("file")).unwrap().mode() & 0o777, 0o640);
    std::fs::set_permissions(w.path("file"), PermissionsExt::from_mode(0o614)).unwrap();
    assert!(!reads("file", USER) && reads("file", OTHER));

    std::fs::create_dir(w.path("dir")).unwrap();
    tool("setfacl", &["-d", "-m", &format!("u:{USER}:rwx,g::r-x,o::-"), &at("dir")]);
    // What is made below has it, whatever the umask.
    let script = format!("umask 077; mkdir {0}/sub; echo x > {0}/sub/f", at("dir"));
    tool("/bin/sh", &["-c", &script]);
    let entries = format!("user::rwx user:{USER}:rwx group::r-x mask::rwx other::---");
    let defaults = format!(
        "default:user::rwx default:user:{USER}:rwx default:group::r-x default:mask::rwx \
         default:other::---"
    );
    assert_eq!(acl("dir/sub"), format!("{entries} {defaults}"));
    let below = format!("user::rw- user:{USER}:rwx group::r-x mask::rw- other::---");
    assert_eq!(acl("dir/sub/f"), below);
    w.again();
    assert_eq!(acl("dir/sub/f"), below);
    tool("setfacl", &["-b", &at("dir/sub")]);
    assert_eq!(acl("dir/sub"), "user::rwx group::r-x other::---");
    w.zfs(&["create", "-o", "acltype=off", "tank/off"]);
    std::fs::write(w.path("off/file"), b"").unwrap();
    assert_ne!(run("setfacl", &["-m", "u:1:r", &at("off/file")], None).code, 0);
    w.end();
}

#[test]
fn rights_and_owners() {
    let Some(w) = World::new("rights", 256, &[]) else { return };
    let file = w.path("file");
    let at = file.to_str().unwrap();
    let mode = || std::fs::metadata(&file).unwrap().mode() & 0o7777;
    let chmod = |bits| std::fs::set_permissions(&file, PermissionsExt::from_mode(bits)).unwrap();
    let sh = |script: &str, user| run("/bin/sh", &["-c", script], Some(user)).code == 0;
    std::fs::write(&file, b"x").unwrap();
    // Set-id bits go when another user writes, truncates or changes the owner.
    chmod(0o6777);
    assert!(sh(&format!("echo y >> {at}"), USER));
    assert_eq!(mode(), 0o777);
    chmod(0o6777);
    assert!(sh(&format!(": > {at}"), USER));
    assert_eq!(mode(), 0o777);
    chmod(0o6777);
    std::fs::write(&file, b"root keeps them").unwrap();
    assert_eq!(mode(), 0o6777);
    chown(&file, Some(USER), Some(USER)).unwrap();
    assert_eq!(mode(), 0o777);
    // Only who owns it changes its mode, only root its owner.
    assert!(sh(&format!("chmod 640 {at}"), USER) && !sh(&format!("chmod 666 {at}"), OTHER));
    assert!(!sh(&format!("chown {OTHER} {at}"), USER) && !sh(&format!("cat {at}"), OTHER));
    // Sticky directories, and those that give their group.
    let dir = w.path("dir");
    std::fs::create_dir(&dir).unwrap();
    chown(&dir, None, Some(OTHER)).unwrap();
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o3777)).unwrap();
    let d = dir.to_str().unwrap();
    assert!(sh(&format!("echo a > {d}/a; mkdir {d}/sub"), USER));
    let (a, sub) = (dir.join("a").metadata().unwrap(), dir.join("sub").metadata().unwrap());
    assert_eq!((a.uid(), a.gid(), sub.gid(), sub.mode() & 0o2000), (USER, OTHER, OTHER, 0o2000));
    assert!(!sh(&format!("rm -f {d}/a"), OTHER) && !sh(&format!("mv {d}/a {d}/b"), OTHER));
    assert!(sh(&format!("rm {d}/a"), USER));
    w.end();
}

#[test]
fn properties_of_mounts() {
    let Some(w) = World::new("props", 256, &[]) else { return };
    w.zfs(&["create", "tank/a"]);
    let (dir, tool) = (w.path("a"), w.path("a/tool"));
    std::fs::copy("/bin/true", &tool).unwrap();
    // A child that another test forked has the copy open for writing until it executes.
    let runs = || loop {
        match std::process::Command::new(&tool).status() {
            Err(e) if e.raw_os_error() == Some(libc::ETXTBSY) => std::thread::yield_now(),
            done => return done.map(|s| s.success()),
        }
    };
    let is_null = || File::open(w.path("a/null"));
    rustix::fs::mknodat(
        rustix::fs::CWD,
        w.path("a/null"),
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::RWXU,
        rustix::fs::makedev(1, 3),
    )
    .unwrap();
    assert!(runs().unwrap() && is_null().is_ok());
    w.zfs(&["set", "exec=off", "devices=off", "tank/a"]);
    assert_eq!((errno(runs()), errno(is_null())), (libc::EACCES, libc::EACCES));
    w.zfs(&["inherit", "exec", "tank/a"]);
    w.zfs(&["inherit", "devices", "tank/a"]);
    assert!(runs().unwrap() && is_null().is_ok());
    // A copy of `id` that is root's, run by another.
    std::fs::copy("/usr/bin/id", w.path("a/id")).unwrap();
    std::fs::set_permissions(w.path("a/id"), PermissionsExt::from_mode(0o4755)).unwrap();
    let euid = || run(w.path("a/id").to_str().unwrap(), &["-u"], Some(USER)).out;
    assert_eq!(euid(), "0\n");
    w.zfs(&["set", "setuid=off", "tank/a"]);
    assert_eq!(euid(), format!("{USER}\n"));

    // Nobody writes any more; who has it open for writing stops the change.
    let open = File::create(dir.join("open")).unwrap();
    let said = w.s.say(&["zfs", "set", "readonly=on", "tank/a"]);
    assert!(said.code == 0 || said.err.contains("busy"), "{said:?}");
    drop(open);
    w.zfs(&["set", "readonly=on", "tank/a"]);
    assert_eq!(errno(File::create(dir.join("new"))), libc::EROFS);
    assert_eq!(errno(std::fs::remove_file(&tool)), libc::EROFS);
    assert_eq!(errno(std::fs::rename(&tool, dir.join("x"))), libc::EROFS);
    assert!(runs().unwrap());
    w.zfs(&["set", "readonly=off", "tank/a"]);
    std::fs::write(dir.join("new"), b"x").unwrap();
    // Snapshots never change.
    w.zfs(&["snapshot", "tank/a@s"]);
    let old = w.path("a/.zfs/snapshot/s");
    std::fs::remove_file(&tool).unwrap();
    assert!(old.join("tool").exists());
    assert_eq!(errno(std::fs::remove_file(old.join("tool"))), libc::EROFS);
    assert_eq!(errno(File::create(old.join("x"))), libc::EROFS);
    assert_eq!(errno(File::create(w.path("a/.zfs/x"))), libc::EROFS);
    assert_eq!(errno(std::fs::create_dir(w.path("a/.zfs"))), libc::EEXIST);
    w.end();
}
