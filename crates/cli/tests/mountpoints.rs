//! Where file systems are mounted: directories that come and go, other mount namespaces,
//! and datasets that cannot be mounted.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Sandbox, can_mount, is_root, judge, new_pool};
use testkit::Need;
use testkit::disk::Disk;
use testkit::forge::Forge;

/// A process in a mount namespace of its own, which has a copy of one mount.
struct Holder(Child);

impl Holder {
    /// Of the mount at a path; `None` where there is no `unshare`.
    fn new(at: &str) -> Option<Holder> {
        // Mounts of tests beside this one are let go of at once.
        let script = format!(
            "while read -r a b c d m rest; do case \"$rest\" in *' - fuse.zfs '*)
             [ \"$m\" = '{at}' ] || umount -l \"$m\" 2>/dev/null;; esac; done </proc/self/mountinfo
             echo ready; exec sleep 1000"
        );
        let child = Command::new("unshare")
            .args(["-m", "--propagation", "private", "sh", "-c", &script])
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            let what = "mounts in another mount namespace: unshare is not installed";
            testkit::skip(Need::Programs, what);
            return None;
        };
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Some(Holder(child))
    }

    /// A path as its namespace has it.
    fn path(&self, at: &Path) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.0.id())).join(at.strip_prefix("/").unwrap())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// `zfs unmount` failed, and so did whatever came after, where a container or a service with
/// mounts of its own had been started while the dataset was mounted: "its directory is free,
/// but it still shows elsewhere".
#[test]
fn another_namespace_holds_a_mount() {
    if !can_mount("mounts in another mount namespace") {
        return;
    }
    let s = Sandbox::new("holder");
    new_pool(&s, 128, &[]);
    let (at, file) = (s.text("mnt"), s.path("mnt/file"));
    std::fs::write(&file, "one").unwrap();
    let Some(holder) = Holder::new(&at) else { return };
    let there = holder.path(&file);
    s.ok(&["zfs", "unmount", "tank"]);
    assert!(!file.exists());
    assert_eq!(s.ok(&["zfs", "get", "-Ho", "value", "mounted", "tank"]), "no\n");
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "one");
    std::fs::write(&there, "two").unwrap();
    // Mounted again both show the same, also what is changed later.
    s.ok(&["zfs", "mount", "tank"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "two");
    std::fs::write(&file, "three").unwrap();
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "three");
    s.ok(&["zfs", "set", "atime=off", "tank"]);

    // The pool cannot go while a process has it open, and the command names that.
    let pid = holder.0.id();
    let told = s.fail(1, &["zpool", "export", "tank"]);
    let holds = format!("'tank' is held by process {pid} (sleep) in another mount namespace");
    assert!(told.contains(&holds) && told.contains("pool is busy"), "{told}");
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "three");
    s.ok(&["zfs", "mount", "tank"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "three");
    // By force it ends there, too.
    let mut open = std::fs::File::options().append(true).open(&there).unwrap();
    s.ok(&["zpool", "export", "-f", "tank"]);
    let gone = std::io::Write::write(&mut open, b"late").unwrap_err().raw_os_error();
    // ENOTCONN, ECONNABORTED or EIO.
    assert!(gone.is_some_and(|e| [107, 103, 5].contains(&e)), "{gone:?}");
    assert!(std::fs::read_to_string(&there).is_err());
    drop((open, holder));

    // Once the process has ended nothing is held.
    s.ok(&["zpool", "import", "-d", &s.text("disks"), "tank"]);
    let holder = Holder::new(&at).unwrap();
    let there = holder.path(&file);
    s.ok(&["zfs", "unmount", "tank"]);
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "three");
    s.ok(&["zfs", "unmount", "-f", "tank"]);
    assert!(std::fs::read_to_string(&there).is_err());
    s.ok(&["zfs", "mount", "tank"]);
    drop(holder);
    let holder = Holder::new(&at).unwrap();
    s.ok(&["zfs", "unmount", "tank"]);
    drop(holder);
    judge(&s);
}

/// Directories that were made to mount something on stayed behind after `destroy`, `export` and
/// a new `mountpoint`.
#[test]
fn directories_come_and_go() {
    if !can_mount("directories of mounts") {
        return;
    }
    let s = Sandbox::new("directories");
    new_pool(&s, 128, &[]);
    let there = |name: &str| s.path(name).exists();
    let mountpoint = |name: &str| format!("mountpoint={}", s.text(name));
    s.ok(&["zfs", "create", "-o", &mountpoint("deep/er/x"), "tank/x"]);
    assert!(there("deep/er/x"));
    s.ok(&["zfs", "unmount", "tank/x"]);
    common::eventually("the directory stays", || !there("deep"));
    s.ok(&["zfs", "mount", "tank/x"]);
    s.ok(&["zfs", "set", &mountpoint("other/x"), "tank/x"]);
    assert!(!there("deep") && there("other/x"));
    // Files that another user put there stay, and the directories above them.
    s.dir("other/mine");
    s.ok(&["zfs", "destroy", "tank/x"]);
    assert!(!there("other/x") && there("other/mine"));
    s.dir("old");
    s.ok(&["zfs", "create", "-o", &mountpoint("old"), "tank/old"]);
    s.ok(&["zfs", "destroy", "tank/old"]);
    assert!(there("old"), "it was there before");

    // A directory inside a dataset is content of that: it goes with the dataset mounted there,
    // not with the mount.
    s.ok(&["zfs", "create", "tank/a"]);
    s.ok(&["zfs", "create", "tank/b"]);
    s.ok(&["zfs", "unmount", "tank/a"]);
    assert!(there("mnt/a"));
    s.ok(&["zfs", "mount", "tank/a"]);
    s.ok(&["zpool", "export", "tank"]);
    assert!(!there("mnt"));
    s.ok(&["zpool", "import", "-d", &s.text("disks"), "tank"]);
    s.ok(&["zfs", "destroy", "tank/a"]);
    assert!(!there("mnt/a") && there("mnt/b"));
    // A daemon that died leaves the list to the next one.
    let pid = s.pid();
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    while common::is_alive(pid) {
        std::thread::yield_now();
    }
    // It imports the pool again beside its other work.
    while !s.ok(&["zfs", "mount"]).contains("tank/b") {
        std::thread::yield_now();
    }
    judge(&s);
    assert!(!there("mnt"));
    s.ok(&["zpool", "import", "-d", &s.text("disks"), "tank"]);
    assert!(there("mnt/b"));
    s.ok(&["zpool", "destroy", "tank"]);
    assert!(!there("mnt"));
}

/// Marks a dataset as one whose receive was interrupted.
fn interrupt(s: &Sandbox, object: u64) {
    /// Of the flags, in a dataset's record behind one block pointer of its dnode.
    const FLAGS: usize = 64 + 128 + 15 * 8;
    let disk = Disk::new(s.path("disks/disk"));
    let mut forge = Forge::new(&disk, 0);
    let block = forge
        .find(|n| {
            let p = &n.position;
            p.objset == 0 && p.object == 0 && p.level == 0 && p.blkid == object / 32
        })
        .unwrap();
    let mut content = forge.nodes[block].content.clone();
    content[(object % 32) as usize * 512 + FLAGS] |= 1;
    forge.change(block, content);
}

/// A pool with a dataset whose receive had been interrupted was imported with a complaint and
/// exit status 1, each time.
#[test]
fn an_interrupted_receive() {
    if !can_mount("a dataset whose receive was interrupted") {
        return;
    }
    let s = Sandbox::new("incomplete");
    new_pool(&s, 128, &[]);
    s.ok(&["zfs", "create", "tank/part"]);
    s.ok(&["zfs", "create", "tank/whole"]);
    let object = s.ok(&["zfs", "get", "-Hpo", "value", "objsetid", "tank/part"]);
    s.ok(&["zpool", "export", "tank"]);
    s.stop();
    interrupt(&s, object.trim().parse().unwrap());
    let disks = s.text("disks");
    // Only to be read: what was forged is in no space map.
    let said = s.say(&["zpool", "import", "-o", "readonly=on", "-d", &disks, "tank"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let mounts = s.ok(&["zfs", "mount"]);
    assert!(mounts.contains("tank/whole") && !mounts.contains("tank/part"), "{mounts}");
    assert_eq!(
        s.fail(1, &["zfs", "mount", "tank/part"]),
        "cannot mount 'tank/part': the dataset is incomplete: its receive was interrupted\n"
    );
    s.ok(&["zfs", "mount", "-a"]);
    s.ok(&["zpool", "export", "tank"]);
}

/// The same of a pool that OpenZFS left so.
#[test]
fn an_interrupted_receive_of_openzfs() {
    let Some(pool) = testkit::golden("partial") else { return };
    if !is_root("a dataset whose receive was interrupted") {
        return;
    }
    let s = Sandbox::new("partial");
    pool.unpack(&s.dir("disks"));
    let (disks, root) = (s.text("disks"), s.text("root"));
    for mode in ["readonly=on", "readonly=off"] {
        let import = ["zpool", "import", "-f", "-o", mode, "-R", &root, "-d", &disks, "partial"];
        let said = s.say(&import);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{mode}");
        assert!(!s.ok(&["zfs", "mount"]).contains("partial/newfs"));
        if mode == "readonly=off" {
            // Snapshots of all leave it out (chapter 09 §3).
            s.ok(&["zfs", "snapshot", "-r", "partial@now"]);
            let snaps = s.ok(&["zfs", "list", "-Ho", "name", "-t", "snapshot"]);
            let now: Vec<&str> = snaps.lines().filter(|n| n.ends_with("@now")).collect();
            assert_eq!(now, ["partial@now", "partial/dst@now", "partial/src@now"]);
        }
        s.ok(&["zpool", "export", "partial"]);
    }
}

/// A read-only import failed where the directory for a dataset was missing in the one above:
/// nothing can be made there, and nothing is wrong.
#[test]
fn a_missing_mountpoint_in_a_read_only_pool() {
    if !can_mount("a missing mountpoint in a read-only pool") {
        return;
    }
    let s = Sandbox::new("missing");
    new_pool(&s, 128, &[]);
    s.ok(&["zfs", "create", "-u", "tank/a"]);
    s.ok(&["zpool", "export", "tank"]);
    let disks = s.text("disks");
    let said = s.say(&["zpool", "import", "-o", "readonly=on", "-d", &disks, "tank"]);
    let at = s.text("mnt/a");
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.err.starts_with(&format!("cannot mount '{at}': failed to create mountpoint")));
    let mounts = s.ok(&["zfs", "mount"]);
    assert_eq!(mounts.lines().count(), 1, "{mounts}");
    // Asked for by name it is an error.
    assert!(s.fail(1, &["zfs", "mount", "tank/a"]).contains("failed to create mountpoint"));
    judge(&s);
}

/// There was no way to mount a dataset with `mountpoint=legacy`: "use mount(8)", which knew
/// nothing of Cenote.
#[test]
fn legacy_mounts() {
    if !can_mount("mounts by mount(8)") {
        return;
    }
    let s = Sandbox::new("legacy");
    new_pool(&s, 128, &[]);
    s.ok(&["zfs", "create", "-o", "mountpoint=legacy", "tank/l"]);
    let at = s.dir("at");
    let program = s.path("mount.cenote");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_cenote"), &program).unwrap();
    let mount = |args: &[&str]| {
        let mut command = Command::new(&program);
        common::said(&command.args(args).env("CENOTE_RUNTIME_DIR", s.path("run")).output().unwrap())
    };
    let here = at.to_str().unwrap();
    // As mount(8) calls it.
    let said = mount(&["tank/l", here, "-o", "rw,noatime,nofail,x-systemd.automount"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    std::fs::write(at.join("file"), "legacy").unwrap();
    assert_eq!(s.ok(&["zfs", "get", "-Ho", "value", "mounted", "tank/l"]), "yes\n");
    let again = mount(&["tank/l", here]);
    assert_eq!(again.code, 32, "{again:?}");
    assert!(again.err.contains("filesystem already mounted"));
    assert!(Command::new("umount").arg(&at).status().unwrap().success());
    // The daemon hears of it from the kernel.
    let mounted = || s.ok(&["zfs", "get", "-Ho", "value", "mounted", "tank/l"]);
    common::eventually("it is still mounted", || mounted() == "no\n");
    assert!(at.exists() && !at.join("file").exists());
    let said = mount(&["tank/l", here, "-r", "-s", "-o", "wild"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    assert!(std::fs::write(at.join("file"), "x").is_err());
    s.ok(&["zfs", "unmount", "tank/l"]);
    for (args, code, text) in [
        (&["tank/l", here, "-o", "wild"][..], 32, "invalid mount option 'wild'"),
        (&["tank", here], 32, "cannot be mounted using 'mount'.\nUse 'zfs set mountpoint=legacy'"),
        (&["tank/no", here], 32, "cannot open 'tank/no': dataset does not exist"),
        (&["tank/l", "/no/such"], 32, "/no/such: No such file or directory"),
        (&["tank/l", here, "-o", "remount,ro"], 32, "cannot remount 'tank/l'"),
        (&["tank/l"], 1, "usage: mount.cenote"),
    ] {
        let said = mount(args);
        assert_eq!(said.code, code, "{args:?}: {said:?}");
        assert!(said.err.contains(text), "{args:?}: {said:?}");
    }
    s.ok(&["zpool", "export", "tank"]);
    s.stop();

    // By mount(8) itself, and by a line of fstab, where the helper is in its place.
    std::fs::write(s.path("fstab"), format!("tank/l {here} cenote noatime,nofail 0 0\n")).unwrap();
    let script = format!(
        "set -e; mount -t tmpfs none /sbin; ln -s {program} /sbin/mount.cenote
         {cenote} zpool import -d {disks} tank
         mount -t cenote tank/l {here}; cat {here}/file; umount {here}
         mount -T {fstab} {here}; cat {here}/file
         grep -q ' {here} .*noatime.* - fuse.zfs tank/l ' /proc/self/mountinfo
         mount -T {fstab} -a; umount {here}
         {cenote} zpool export tank; {cenote} daemon stop",
        program = program.display(),
        cenote = env!("CARGO_BIN_EXE_cenote"),
        disks = s.text("disks"),
        fstab = s.text("fstab"),
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &script]);
    match command.env("CENOTE_RUNTIME_DIR", s.path("run")).output() {
        Ok(out) => {
            let said = common::said(&out);
            assert_eq!((said.code, said.out.as_str()), (0, "legacylegacy"), "{said:?}");
        }
        Err(_) => {
            testkit::skip(Need::Programs, "mounts by mount(8): unshare is not installed");
        }
    }
    common::judge_disks(&s);
}

/// The helper is where mount(8) looks for it.
#[test]
fn the_helper_is_installed() {
    let s = Sandbox::new("install");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/install.sh");
    for (prefix, link) in [("/usr", "usr/sbin"), ("/usr/local", "sbin")] {
        let dest = s.dir(&prefix.replace('/', "_"));
        let program = env!("CARGO_BIN_EXE_cenote");
        let run = Command::new("bash").args([script, program, prefix]).arg(&dest).output().unwrap();
        assert!(run.status.success(), "{run:?}");
        for name in ["mount.cenote", "mount.fuse.cenote"] {
            let to = std::fs::read_link(dest.join(link).join(name)).unwrap();
            assert_eq!(to, Path::new(prefix).join("bin/cenote"));
        }
        assert!(dest.join(&prefix[1..]).join("share/man/man8/mount.cenote.8.gz").exists());
    }
}
