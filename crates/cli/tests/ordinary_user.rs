//! An ordinary user imports and makes pools in files of their own and mounts them, through
//! `fusermount3`.

#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Said, Sandbox, can_mount, is_alive, judge_disks, mounts_below, said};
use testkit::golden;

/// Nobody.
const USER: u32 = 65534;

/// One with programs, and a process of theirs.
struct User {
    s: Sandbox,
    program: PathBuf,
}

/// Whether mounts of ordinary users can be tried.
fn can_try(what: &str) -> bool {
    can_mount(what) && testkit::has_program(testkit::Need::Fuse, "fusermount3", what)
}

impl User {
    /// With an empty disk below `disks`.
    fn new(name: &str) -> User {
        let s = Sandbox::new(name);
        let disk = s.dir("disks").join("disk");
        std::fs::File::create(&disk).unwrap().set_len(192 << 20).unwrap();
        for path in [&disk, &s.path("disks"), &s.dir("own")] {
            chown(path, Some(1000), Some(1000)).unwrap();
        }
        // The program lies where an ordinary user need not be able to look.
        let program = s.path("cenote");
        std::fs::copy(env!("CARGO_BIN_EXE_cenote"), &program).unwrap();
        User { s, program }
    }

    fn command(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).env("CENOTE_RUNTIME_DIR", self.s.path("own/run"));
        command.env("PATH", "/usr/bin:/bin").uid(1000).gid(1000).current_dir(self.s.path("own"));
        command
    }

    fn say(&self, args: &[&str]) -> Said {
        said(&self.command(&self.program, args).output().unwrap())
    }

    /// It must succeed without a word of complaint.
    fn ok(&self, args: &[&str]) -> String {
        let said = self.say(args);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{args:?}");
        said.out
    }

    fn fail(&self, args: &[&str]) -> String {
        let said = self.say(args);
        assert_eq!(said.code, 1, "{args:?}: {said:?}");
        said.err
    }

    /// A line of the shell's, in the user's directory.
    fn sh(&self, line: &str) -> Said {
        said(&self.command(Path::new("/bin/sh"), &["-c", line]).output().unwrap())
    }

    fn does(&self, line: &str) -> String {
        let said = self.sh(line);
        assert_eq!(said.code, 0, "{line}: {said:?}");
        said.out
    }

    /// A process that has said a line and waits for one.
    fn start(&self, line: &str) -> Child {
        let mut command = self.command(Path::new("/bin/sh"), &["-c", line]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n");
        child
    }

    fn mounted(&self) -> String {
        let text = self.ok(&["zfs", "mount"]);
        let names: Vec<&str> = text.lines().filter_map(|l| l.split_whitespace().next()).collect();
        names.join(" ")
    }

    /// Exports everything, ends the daemon, and has `zdb` look at the disk.
    fn judge(&self) {
        self.ok(&["zpool", "export", "tank"]);
        self.stop();
        judge_disks(&self.s);
    }

    fn stop(&self) {
        let status = self.ok(&["daemon", "status"]);
        let pid = status.lines().find_map(|l| l.trim().strip_prefix("pid: ")).unwrap();
        self.ok(&["daemon", "stop"]);
        while is_alive(pid.parse().unwrap()) {
            std::thread::yield_now();
        }
        assert_eq!(mounts_below(&self.s.path("own")), Vec::<String>::new());
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _stopped = self.say(&["daemon", "stop", "-f"]);
        for dead in mounts_below(&self.s.path("own")).iter().rev() {
            let _gone = Command::new("umount").args(["-l", dead]).output();
        }
    }
}

/// A user's file systems below each other could not be mounted: "fusermount3 refused:
/// Permission denied", and every import of the pool ended with exit status 1.
#[test]
fn datasets_below_each_other() {
    if !can_try("an ordinary user's datasets below each other") {
        return;
    }
    let u = User::new("nested");
    let (disk, disks) = (u.s.text("disks/disk"), u.s.text("disks"));
    let mnt = u.s.text("own/mnt");
    u.ok(&["zpool", "create", "-m", &mnt, "tank", &disk]);
    u.does("echo top >mnt/top");
    u.ok(&["zfs", "create", "tank/a"]);
    u.ok(&["zfs", "create", "tank/a/b"]);
    let elsewhere = format!("mountpoint={}", u.s.text("own/elsewhere"));
    u.ok(&["zfs", "create", "-o", &elsewhere, "tank/other"]);
    assert_eq!(u.mounted(), "tank/other tank tank/a tank/a/b");
    assert_eq!(mounts_below(&u.s.path("own")).iter().filter(|m| !m.contains("/run/")).count(), 2);
    assert_eq!(u.ok(&["zfs", "get", "-Ho", "value", "mounted", "tank/a/b"]), "yes\n");

    // Each has its content, and no file has the numbers of another.
    u.does(
        "echo a >mnt/a/file; echo b >mnt/a/b/file; mkdir mnt/a/b/dir; ln mnt/a/b/file mnt/a/b/two",
    );
    assert_eq!(u.does("cat mnt/top mnt/a/file mnt/a/b/file mnt/a/b/two"), "top\na\nb\nb\n");
    let found = u.does("find mnt | sort");
    assert_eq!(
        found,
        "mnt\nmnt/a\nmnt/a/b\nmnt/a/b/dir\nmnt/a/b/file\nmnt/a/b/two\nmnt/a/file\nmnt/top\n"
    );
    let inodes = u.does("stat -c %i mnt mnt/a mnt/a/b mnt/top mnt/a/file mnt/a/b/file | sort -u");
    assert_eq!(inodes.lines().count(), 6, "{inodes}");
    assert_eq!(u.does("cd mnt/a/b/dir; cd ../..; pwd -P; cat file"), format!("{mnt}/a\na\n"));

    // Between datasets nothing is moved or linked, and what others are mounted on stays.
    assert!(u.sh("ln mnt/top mnt/a/top").err.contains("cross-device"), "a link across");
    u.does("mv mnt/top mnt/a/top && mv mnt/a/top mnt/top");
    for line in ["rmdir mnt/a", "mv mnt/a mnt/c", "mkdir mnt/c; mv -T mnt/c mnt/a"] {
        let told = u.sh(line).err;
        assert!(told.contains("busy"), "{line}: {told}");
    }
    u.does("rmdir mnt/c");

    // Quotas and `readonly` are each dataset's own.
    u.ok(&["zfs", "set", "quota=16M", "tank/a/b"]);
    let blocks = |at: &str| u.does(&format!("stat -f -c %b {at}")).trim().parse::<u64>().unwrap();
    assert!(blocks("mnt/a/b") < blocks("mnt/a") / 2);
    u.ok(&["zfs", "set", "readonly=on", "tank/a"]);
    assert!(u.sh("echo x >mnt/a/file").err.contains("Read-only"));
    assert!(u.sh("echo x >>mnt/a/b/file").err.contains("Read-only"));
    u.does("echo more >>mnt/top");
    u.ok(&["zfs", "set", "readonly=off", "tank/a"]);
    u.does("echo x >>mnt/a/b/file");
    u.ok(&["zfs", "snapshot", "tank/a/b@s"]);
    assert_eq!(u.does("cat mnt/a/b/.zfs/snapshot/s/file; ls mnt/a/b/.zfs/snapshot"), "b\nx\ns\n");

    // What is used stays, and works on.
    let busy = format!("cannot unmount '{mnt}/a/b': pool or dataset is busy\n");
    for line in ["cd mnt/a/b/dir; echo ready; read x", "exec 3<mnt/a/b/file; echo ready; read x"] {
        let mut used = u.start(line);
        assert_eq!(u.fail(&["zfs", "unmount", "tank/a/b"]), busy, "{line}");
        assert_eq!(u.does("cat mnt/a/b/file; ls -d mnt/a/b/dir"), "b\nx\nmnt/a/b/dir\n");
        drop(used.stdin.take());
        used.wait().unwrap();
    }
    let told = u.fail(&["zfs", "set", "canmount=off", "tank"]);
    assert!(told.contains("busy"), "others are mounted in it: {told}");
    u.ok(&["zfs", "set", "canmount=on", "tank"]);
    u.ok(&["zfs", "unmount", "tank/a/b"]);
    assert_eq!(u.does("ls mnt/a/b; ls -di mnt/a/b >/dev/null"), "");
    assert_eq!(u.mounted(), "tank/other tank tank/a");
    u.ok(&["zfs", "mount", "tank/a/b"]);
    assert_eq!(u.does("cat mnt/a/b/file"), "b\nx\n");
    // By force it goes, and what was open fails.
    let mut used = u.start("exec 3>>mnt/a/b/file; echo ready; read x; echo x >&3");
    u.ok(&["zfs", "unmount", "-f", "tank/a/b"]);
    assert_eq!(u.does("ls mnt/a/b"), "");
    drop(used.stdin.take());
    assert!(!used.wait().unwrap().success());
    u.ok(&["zfs", "mount", "tank/a/b"]);
    u.ok(&["zfs", "destroy", "-r", "tank/a/b"]);
    assert_eq!(u.does("ls mnt/a"), "file\n");

    // An import brings all of them back.
    u.ok(&["zfs", "create", "-p", "tank/a/c/d"]);
    u.does("echo d >mnt/a/c/d/file");
    u.ok(&["zpool", "export", "tank"]);
    assert_eq!(u.does("ls"), "run\n", "directories that were made are gone");
    u.ok(&["zpool", "import", "-d", &disks, "tank"]);
    assert_eq!(u.mounted(), "tank/other tank tank/a tank/a/c tank/a/c/d");
    assert_eq!(u.does("cat mnt/a/file mnt/a/c/d/file"), "a\nd\n");
    u.ok(&["zfs", "unmount", "tank"]);
    assert_eq!(u.mounted(), "");
    u.ok(&["zfs", "mount", "-a"]);
    assert_eq!(u.does("cat mnt/a/c/d/file"), "d\n");
    u.judge();
}

/// A user who made a pool without saying where to mount it was left with a pool that could not
/// be mounted, and exit status 1.
#[test]
fn a_new_pool_has_a_place_or_is_not_made() {
    if !can_try("an ordinary user's new pool") {
        return;
    }
    let u = User::new("newpool");
    let disk = u.s.text("disks/disk");
    let hint = "use '-m' option to provide a different default";
    for args in [&["zpool", "create", "tank", &disk][..], &["zpool", "create", "-n", "tank", &disk]]
    {
        assert_eq!(
            u.fail(args),
            format!("cannot create 'tank': mountpoint '/tank' : Permission denied\n{hint}\n")
        );
    }
    assert_eq!(u.ok(&["zpool", "list"]), "no pools available\n");
    let mut label = [1; 4096];
    std::os::unix::fs::FileExt::read_exact_at(
        &std::fs::File::open(&disk).unwrap(),
        &mut label,
        16 << 10,
    )
    .unwrap();
    assert!(label.iter().all(|b| *b == 0), "something was written");
    // Another user's directory, too.
    let theirs = u.s.dir("theirs");
    let at = theirs.to_str().unwrap();
    let told = u.fail(&["zpool", "create", "-m", at, "tank", &disk]);
    assert!(told.contains(&format!("mountpoint '{at}' : Permission denied")), "{told}");
    // What is not mounted needs no place.
    u.ok(&["zpool", "create", "-m", "none", "tank", &disk]);
    u.ok(&["zpool", "destroy", "tank"]);
    u.ok(&["zpool", "create", "-R", &u.s.text("own/root"), "tank", &disk]);
    u.does("echo x >root/tank/file");
    u.judge();
}

/// Overwrites what a file's blocks left on a disk; how many places that were.
fn deface(disk: &str, words: &[u8]) -> usize {
    let mut bytes = std::fs::read(disk).unwrap();
    let mut places = 0;
    for at in (0..bytes.len()).step_by(4096) {
        if bytes[at..at + 4096].windows(words.len()).any(|w| w == words) {
            bytes[at..at + 4096].fill(0xa5);
            places += 1;
        }
    }
    let file = std::fs::OpenOptions::new().write(true).open(disk).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
    places
}

/// A user's pool on parity: what is wrong on one disk is read and repaired, what no parity
/// gives is listed by its path. The repairs of both were tried with root's pools alone.
fn damage_on_parity(layout: &str, count: usize) {
    if !can_try("damage on an ordinary user's parity") {
        return;
    }
    let u = User::new(&format!("parity-{count}"));
    std::fs::remove_file(u.s.path("disks/disk")).unwrap();
    let disks: Vec<String> = (0..count).map(|i| u.s.text(&format!("disks/d{i}"))).collect();
    for disk in &disks {
        std::fs::File::create(disk).unwrap().set_len(80 << 20).unwrap();
        chown(disk, Some(1000), Some(1000)).unwrap();
    }
    let mnt = u.s.text("own/mnt");
    let mut create = vec!["zpool", "create", "-m", &mnt, "-o", "ashift=12"];
    create.extend(["-O", "compression=off", "tank", layout]);
    create.extend(disks.iter().map(String::as_str));
    u.ok(&create);
    let content = |words: &str| words.repeat(300_000 / words.len());
    let (hurt, lost) = ("CENOTE-IS-HURT-ONCE", "CENOTE-IS-LOST-EVERYWHERE");
    std::fs::write(u.s.path("own/hurt"), content(hurt)).unwrap();
    std::fs::write(u.s.path("own/lost"), content(lost)).unwrap();
    u.does("cat hurt >mnt/hurt; mkdir mnt/dir; cat lost >mnt/dir/lost");
    u.ok(&["zpool", "export", "tank"]);
    // Some disk has data of the one, the others what makes up for it; of the other file all
    // data columns go, more than there is parity.
    assert!(disks.iter().any(|d| deface(d, hurt.as_bytes()) > 3), "{layout}");
    let places: usize = disks.iter().map(|d| deface(d, lost.as_bytes())).sum();
    assert!(places > 70, "{layout}: {places}");
    let import = ["zpool", "import", "-d", &u.s.text("disks"), "tank"];
    u.ok(&import);
    u.does("cmp hurt mnt/hurt");
    assert!(u.sh("cat mnt/dir/lost").err.contains("Input/output error"), "{layout}");
    let status = u.ok(&["zpool", "status", "-v", "tank"]);
    assert!(status.contains("ZFS-8000-8A"), "{status}");
    let list = format!("following files:\n\n        {mnt}/dir/lost\n");
    assert!(status.ends_with(&list), "{status}");
    u.does("rm mnt/dir/lost");
    u.ok(&["zpool", "export", "tank"]);
    // Nothing of it is wrong on the disks any more.
    u.ok(&import);
    u.does("cmp hurt mnt/hurt");
    let status = u.ok(&["zpool", "status", "-v", "tank"]);
    assert!(status.contains("\n state: ONLINE\n"), "{status}");
    assert!(status.ends_with("errors: No known data errors\n"), "{status}");
    let rows: Vec<&str> = status.lines().filter(|l| l.contains("/disks/d")).collect();
    let clean = |l: &&str| l.split_whitespace().skip(2).take(3).all(|n| n == "0");
    assert!(rows.len() == count && rows.iter().all(clean), "{status}");
    u.judge();
}

#[test]
fn damage_on_draid() {
    damage_on_parity("draid1:2d:5c:1s", 5);
}

#[test]
fn damage_on_raidz3() {
    damage_on_parity("raidz3", 8);
}

/// Runs a program as the ordinary user.
fn as_user(program: &Path, args: &[&str], runtime: &Path) -> Said {
    let mut command = Command::new(program);
    command.args(args).env("CENOTE_RUNTIME_DIR", runtime).uid(USER).gid(USER);
    said(&command.output().unwrap())
}

#[test]
fn an_ordinary_user_mounts_a_pool() {
    if !can_try("mounts of an ordinary user") {
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

/// What the user did: gave a pool in files of their own a cache device, as the manual says.
#[test]
fn cache_devices_of_an_ordinary_user() {
    if !can_try("an ordinary user's cache devices") {
        return;
    }
    let u = User::new("cachedev");
    let (disk, disks) = (u.s.text("disks/disk"), u.s.text("disks"));
    let cache = u.s.text("disks/cache");
    std::fs::File::create(&cache).unwrap().set_len(96 << 20).unwrap();
    chown(&cache, Some(1000), Some(1000)).unwrap();
    u.ok(&["zpool", "create", "-m", &u.s.text("own/mnt"), "tank", &disk]);
    u.ok(&["zpool", "add", "tank", "cache", &cache]);
    let line = || {
        let status = u.ok(&["zpool", "status", "-P", "tank"]);
        let found = status.lines().find(|l| l.contains(&cache)).unwrap_or_default();
        found.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line(), format!("{cache} ONLINE 0 0 0"));
    assert!(u.ok(&["zpool", "iostat", "-v", "tank"]).contains("cache"));
    // The content comes through the mount, whatever the device does.
    u.does("head -c 20000000 /dev/urandom >mnt/data; sha256sum mnt/data >sum");
    let again = || {
        u.ok(&["zpool", "export", "tank"]);
        u.ok(&["zpool", "import", "-d", &disks, "tank"]);
        u.does("sha256sum -c --quiet sum");
    };
    u.ok(&["zpool", "offline", "-t", "tank", &cache]);
    assert_eq!(line(), format!("{cache} OFFLINE 0 0 0"));
    again();
    assert_eq!(line(), format!("{cache} ONLINE 0 0 0"));
    u.ok(&["zpool", "offline", "tank", &cache]);
    again();
    assert_eq!(line(), format!("{cache} OFFLINE 0 0 0"));
    u.ok(&["zpool", "clear", "tank"]);
    assert_eq!(line(), format!("{cache} OFFLINE 0 0 0"));
    u.ok(&["zpool", "online", "tank", &cache]);
    again();
    assert_eq!(line(), format!("{cache} ONLINE 0 0 0"));
    // Other devices, and none.
    let told = u.fail(&["zpool", "offline", "tank", &disk]);
    assert_eq!(told, format!("cannot offline {disk}: no valid replicas\n"));
    let told = u.fail(&["zpool", "offline", "tank", "none"]);
    assert_eq!(told, "cannot offline none: no such device in pool\n");
    let told = u.fail(&["zpool", "online", "tank", "none"]);
    assert_eq!(told, "couldn't find device \"none\" in pool \"tank\"\n");
    u.ok(&["zpool", "remove", "tank", &cache]);
    assert_eq!(line(), "");
    u.does("sha256sum -c --quiet sum");
    u.judge();
}

/// What the user did: kept a state of a pool in files of their own, returned to it, and gave its
/// free space back.
#[test]
fn a_checkpoint_and_a_trim_of_an_ordinary_user() {
    if !can_try("an ordinary user's checkpoint") {
        return;
    }
    let u = User::new("checkpoint");
    let (disk, disks) = (u.s.text("disks/disk"), u.s.text("disks"));
    u.ok(&["zpool", "create", "-m", "none", "tank", &disk]);
    u.ok(&["zpool", "checkpoint", "tank"]);
    u.ok(&["zfs", "create", "-o", "mountpoint=none", "tank/new"]);
    u.ok(&["zpool", "initialize", "-w", "tank"]);
    u.ok(&["zpool", "trim", "-w", "tank"]);
    let status = u.ok(&["zpool", "status", "-i", "-t", "tank"]);
    assert!(status.contains("(100% initialized, completed") && status.contains("(100% trimmed"));
    u.ok(&["zpool", "export", "tank"]);
    u.ok(&["zpool", "import", "-d", &disks, "--rewind-to-checkpoint", "tank"]);
    assert_eq!(u.ok(&["zfs", "list", "-Ho", "name"]), "tank\n");
    u.ok(&["zpool", "checkpoint", "tank"]);
    u.ok(&["zpool", "checkpoint", "-d", "-w", "tank"]);
    u.judge();
}

/// What the user did: looked after a pool of their own: it was scrubbed, a device was attached,
/// replaced, taken offline and back, a spare stepped in, and the pool was split.
#[test]
fn the_devices_of_an_ordinary_user() {
    if !can_try("an ordinary user's devices") {
        return;
    }
    let u = User::new("care");
    let disk = |i: usize| {
        let path = u.s.path(&format!("disks/d{i}"));
        std::fs::File::create(&path).unwrap().set_len(96 << 20).unwrap();
        chown(&path, Some(1000), Some(1000)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let d: Vec<String> = (0..5).map(disk).collect();
    let status = || u.ok(&["zpool", "status", "tank"]);
    u.ok(&["zpool", "create", "-m", &u.s.text("own/mnt"), "tank", &d[0]]);
    u.does("head -c 9000000 /dev/urandom >mnt/data; sha256sum mnt/data >sum");
    u.ok(&["zpool", "attach", "-w", "tank", &d[0], &d[1]]);
    u.ok(&["zpool", "scrub", "-w", "tank"]);
    assert!(status().contains("scrub repaired 0B") && status().contains("mirror-0"));
    u.ok(&["zpool", "replace", "-w", "tank", &d[0], &d[2]]);
    u.ok(&["zpool", "offline", "tank", &d[1]]);
    u.does("cp mnt/data mnt/again; sha256sum -c --quiet sum");
    u.ok(&["zpool", "online", "-e", "tank", &d[1]]);
    u.ok(&["zpool", "wait", "-t", "resilver", "tank"]);
    u.ok(&["zpool", "add", "tank", "spare", &d[3]]);
    u.ok(&["zpool", "offline", "-f", "tank", &d[1]]);
    common::eventually("the spare steps in", || status().contains("INUSE"));
    u.ok(&["zpool", "wait", "-t", "resilver", "tank"]);
    u.ok(&["zpool", "detach", "tank", &d[1]]);
    assert!(!status().contains("spare"), "{}", status());
    u.ok(&["zpool", "reopen", "tank"]);
    u.ok(&["zpool", "clear", "tank"]);
    u.ok(&["zpool", "resilver", "tank"]);
    u.ok(&["zpool", "wait", "tank"]);
    assert!(u.ok(&["zpool", "events", "-H", "tank"]).contains("vdev_spare"));
    u.ok(&["zpool", "split", "tank", "half"]);
    u.does("sha256sum -c --quiet sum; cmp mnt/data mnt/again");
    // A device of root's.
    let foreign = disk(5);
    chown(&foreign, Some(0), Some(0)).unwrap();
    std::fs::set_permissions(&foreign, std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    for args in [
        &["zpool", "attach", "tank", &d[2], &foreign][..],
        &["zpool", "replace", "tank", &d[2], &foreign],
        &["zpool", "add", "tank", "spare", &foreign],
        &["zpool", "labelclear", &foreign],
    ] {
        let told = u.fail(args);
        assert!(told.contains(&foreign) && told.contains("ermission denied"), "{args:?}: {told}");
    }
    std::fs::remove_file(&foreign).unwrap();
    u.judge();
}
