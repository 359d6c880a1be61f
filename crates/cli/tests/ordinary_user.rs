//! An ordinary user imports a pool in files of their own and mounts it, through
//! `fusermount3`.

#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use common::{Said, Sandbox, can_mount, is_alive, mounts_below, said};
use testkit::golden;

/// Nobody.
const USER: u32 = 65534;

/// Runs a program as the ordinary user.
fn as_user(program: &Path, args: &[&str], runtime: &Path) -> Said {
    let mut command = Command::new(program);
    command.args(args).env("CENOTE_RUNTIME_DIR", runtime).uid(USER).gid(USER);
    said(&command.output().unwrap())
}

#[test]
fn an_ordinary_user_mounts_a_pool() {
    if !can_mount("mounts of an ordinary user") {
        return;
    }
    let helper = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&helper).any(|p| p.join("fusermount3").exists()) {
        println!("SKIPPED: mounts of an ordinary user: fusermount3 is not installed");
        return;
    }
    let Some(pool) = golden("clonedblk") else { return };
    let s = Sandbox::new("ordinary");
    let own = s.dir("own");
    let disks = pool.unpack(&s.dir("own/disks"));
    for path in disks.iter().chain([&own, &s.path("own/disks")]) {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    // The program lies where an ordinary user need not be able to look.
    let program = s.path("cenote");
    std::fs::copy(env!("CARGO_BIN_EXE_cenote"), &program).unwrap();
    let runtime = own.join("run");
    let run = |args: &[&str]| {
        let said = as_user(&program, args, &runtime);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{args:?}");
        said.out
    };
    let (dir, root) = (s.text("own/disks"), s.text("own/mnt"));
    run(&["zpool", "import", "-o", "readonly=on", "-R", &root, "-d", &dir, "clonedblk"]);
    let at = format!("{root}/clonedblk");
    assert_eq!(run(&["zfs", "mount"]), format!("{:<30}  {at}\n", "clonedblk"));
    let target = format!("{at}/links/target");
    let read = as_user(Path::new("/bin/cat"), &[&target], &runtime);
    assert_eq!((read.code, read.out.as_str()), (0, "hello"), "{}", read.err);
    // What the user may not read on disk stays closed in the mount.
    let closed = as_user(Path::new("/bin/cat"), &[&format!("{at}/modes/0")], &runtime);
    assert!(closed.err.contains("Permission denied"), "{closed:?}");
    // The mount is for that user alone.
    assert!(std::fs::read_dir(&at).is_err());
    run(&["zpool", "export", "clonedblk"]);
    let status = run(&["daemon", "status"]);
    let pid = status.lines().find_map(|l| l.trim().strip_prefix("pid: ")).unwrap();
    run(&["daemon", "stop"]);
    while is_alive(pid.parse().unwrap()) {
        std::thread::yield_now();
    }
    assert_eq!(mounts_below(s.path("own").as_path()), Vec::<String>::new());
}
