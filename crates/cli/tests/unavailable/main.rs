//! Pools whose backing store is full, silent or gone, and everything else meanwhile: the
//! matrix of docs/compatibility.md ("What an unavailable pool may hold up"). Each command has
//! a time limit, generous where the machine is busy; a command that does not end fails.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;

mod care;
mod cells;
mod datasets;
mod features;
mod forged;
mod moves;

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Said, Sandbox, can_mount, eventually as wait_for, is_alive, said};
use rustix::process::{Pid, Signal, kill_process};
use testkit::Scratch;

/// A command that has not ended then hangs.
const LIMIT: Duration = Duration::from_secs(60);

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Runs a command, which must end. What it said.
fn ends(mut command: Command, what: &str) -> Said {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > LIMIT {
            let _gone = child.kill();
            panic!("{what} hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("{:>6} ms  {what}", begin.elapsed().as_millis());
    said(&child.wait_with_output().unwrap())
}

fn say(s: &Sandbox, args: &[&str]) -> Said {
    ends(s.command(args), &args.join(" "))
}

fn ok(s: &Sandbox, args: &[&str]) -> String {
    let said = say(s, args);
    assert_eq!(said.code, 0, "{args:?}: {}", said.err);
    said.out
}

/// A pool in a sparse file.
fn create(s: &Sandbox, name: &str, disk: &str, mib: u64) {
    File::create(disk).unwrap().set_len(mib << 20).unwrap();
    let mountpoint = format!("mountpoint={}", s.text(&format!("mnt-{name}")));
    ok(s, &["zpool", "create", "-O", &mountpoint, name, disk]);
}

/// Everything that a pool which is not `sick` must allow, and what concerns all pools.
fn the_rest_lives(s: &Sandbox, sick: &str) {
    let names = ok(s, &["zpool", "list", "-H", "-o", "name"]);
    assert!(names.contains("well"), "{names}");
    let health = ok(s, &["zpool", "list", "-H", "-o", "health", "well"]);
    assert_eq!(health, "ONLINE\n");
    ok(s, &["zpool", "status"]);
    ok(s, &["zpool", "status", sick]);
    // The sick pool's datasets may be missing, with a word.
    let listed = say(s, &["zfs", "list", "-H", "-o", "name"]).out;
    assert!(listed.contains("well"), "{listed}");
    ok(s, &["daemon", "status"]);
    let file = s.path("mnt-well").join("file");
    std::fs::write(&file, b"written meanwhile").unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), b"written meanwhile");
    rustix::fs::statvfs(s.path("mnt-well")).unwrap();
    ok(s, &["zpool", "sync", "well"]);
    ok(s, &["zfs", "create", "well/fs"]);
    ok(s, &["zfs", "unmount", "well/fs"]);
    ok(s, &["zfs", "mount", "well/fs"]);
    ok(s, &["zfs", "destroy", "well/fs"]);
    let other = s.dir("others").join("other");
    create(s, "other", other.to_str().unwrap(), 64);
    ok(s, &["zpool", "destroy", "other"]);
    ok(s, &["zpool", "export", "well"]);
    ok(s, &["zpool", "import", "-d", &s.text("wells"), "well"]);
}

fn well(s: &Sandbox) {
    let disk = s.dir("wells").join("well");
    create(s, "well", disk.to_str().unwrap(), 96);
}

/// A file system in memory for disks.
struct Tmpfs(Scratch);

impl Tmpfs {
    fn new(name: &str, mib: u64) -> Tmpfs {
        let dir = Scratch::new(name);
        let tmpfs = Tmpfs(dir);
        tmpfs.mount(&format!("size={mib}m"));
        tmpfs
    }

    fn mount(&self, options: &str) {
        let at = self.0.path().to_str().unwrap();
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", options, "none", at]).status();
        assert!(done.unwrap().success());
    }

    fn resize(&self, mib: u64) {
        self.mount(&format!("remount,size={mib}m"));
    }

    fn text(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// An import whose first group cannot be written. A sparse image of 200 MB on a tmpfs of 80 MB:
/// the pool was created and exported, the tmpfs filled; `zpool import` never returned, the
/// pool was in no list, `clear` said "no such pool"; other pools could be neither created nor
/// imported nor exported, and the daemon took no end. Now the command says that the pool
/// waits, everything else goes on, and `clear` has the import finished once there is room.
#[test]
fn an_import_with_a_full_backing_store() {
    if !can_mount("a full backing store") {
        return;
    }
    let s = Sandbox::new("unavailable-full");
    let disks = Tmpfs::new("unavailable-disks", 80);
    well(&s);
    create(&s, "sick", &disks.text("sick"), 200);
    let kept = s.path("mnt-sick").join("kept");
    std::fs::write(&kept, b"kept").unwrap();
    ok(&s, &["zpool", "export", "sick"]);
    let mut filler = File::create(disks.text("filler")).unwrap();
    while filler.write_all(&[1; 65536]).is_ok() {}
    let import = ["zpool", "import", "-d", &disks.text("sick"), "sick"];
    let said = say(&s, &import);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.err.contains("pool I/O is currently suspended"), "{said:?}");
    assert!(ok(&s, &["zpool", "status", "sick"]).contains("state: SUSPENDED"));
    // A command that needs a txg says so at once.
    for words in [
        &["checkpoint"][..],
        &["checkpoint", "-d"],
        &["trim"],
        &["trim", "-s"],
        &["initialize"],
        &["initialize", "-c"],
    ] {
        let said = say(&s, &[&["zpool"], words, &["sick"]].concat());
        let told = said.err.ends_with("pool I/O is currently suspended\n");
        assert!(said.code == 1 && told, "{words:?}: {said:?}");
    }
    the_rest_lives(&s, "sick");
    // Given up: nothing was written, and it can be imported again, as often as one likes.
    ok(&s, &["zpool", "export", "-f", "sick"]);
    assert!(!ok(&s, &["zpool", "list"]).contains("sick"));
    assert_eq!(say(&s, &import).code, 1);
    let stop = say(&s, &["daemon", "stop"]);
    assert!(stop.code == 1 && stop.err.contains("suspended"), "{stop:?}");
    std::fs::remove_file(disks.text("filler")).unwrap();
    drop(filler);
    disks.resize(300);
    ok(&s, &["zpool", "clear", "sick"]);
    wait_for("the import is never finished", || kept.exists());
    assert_eq!(std::fs::read(&kept).unwrap(), b"kept");
    wait_for("it is not mounted", || {
        ok(&s, &["zpool", "list", "-H", "-o", "health", "sick"]) == "ONLINE\n"
    });
    ok(&s, &["zpool", "export", "sick"]);
    ok(&s, &["daemon", "stop", "-f"]);
}

/// The same, and the system goes down: the signal ends the daemon.
#[test]
fn a_signal_with_a_suspended_import() {
    if !can_mount("a full backing store") {
        return;
    }
    let s = Sandbox::new("unavailable-signal");
    let disks = Tmpfs::new("unavailable-signal-disks", 80);
    well(&s);
    create(&s, "sick", &disks.text("sick"), 200);
    ok(&s, &["zpool", "export", "sick"]);
    let mut filler = File::create(disks.text("filler")).unwrap();
    while filler.write_all(&[1; 65536]).is_ok() {}
    assert_eq!(say(&s, &["zpool", "import", "-d", &disks.text("sick"), "sick"]).code, 1);
    let pid = s.pid();
    signal(pid, Signal::TERM);
    wait_for("the signal does not end it", || !is_alive(pid));
    // The healthy pool is back with the next daemon.
    assert_eq!(ok(&s, &["zpool", "list", "-H", "-o", "name,health"]), "well\tONLINE\n");
    ok(&s, &["daemon", "stop"]);
}

/// A pool whose disk is a file in another daemon's pool. That daemon can be stopped (its
/// mount, and so the disk, does not answer) and killed.
struct Outer {
    outer: Sandbox,
    pid: i32,
    disk: String,
}

impl Outer {
    fn new(name: &str) -> Outer {
        let outer = Sandbox::new(name);
        let disk = outer.dir("disks").join("disk");
        create(&outer, "below", disk.to_str().unwrap(), 256);
        let (pid, disk) = (outer.pid(), outer.text("mnt-below/sick"));
        Outer { outer, pid, disk }
    }

    /// Another file of its pool.
    fn at(&self, name: &str) -> String {
        self.outer.text(&format!("mnt-below/{name}"))
    }

    /// Returns when every thread has stopped: the signal is first one thread's, and until that
    /// one is scheduled the others serve. (An `fsync` was answered 5 ms after the signal.)
    fn stop(&self) {
        signal(self.pid, Signal::STOP);
        wait_for("a thread does not stop", || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap();
            tasks.map(|t| t.unwrap().path().join("stat")).all(|stat| {
                // The state follows the name, which is in parentheses.
                let text = std::fs::read_to_string(stat).unwrap();
                text.rsplit(')').next().unwrap().trim_start().starts_with('T')
            })
        });
    }

    fn go_on(&self) {
        signal(self.pid, Signal::CONT);
    }
}

impl Drop for Outer {
    fn drop(&mut self) {
        if is_alive(self.pid) {
            self.go_on();
        }
        let _ends = &self.outer;
    }
}

/// Waits until an operation has waited for the device so long that listings tell.
fn told_of_silence(s: &Sandbox) {
    wait_for("nothing tells of the silent device", || {
        let status = say(s, &["zpool", "status", "sick"]);
        assert_eq!(status.code, 0, "{status:?}");
        status.err.contains("has not answered")
    });
}

/// A disk on a FUSE server that was stopped: nothing that concerns other pools waits for it,
/// listings tell which device is silent, force takes the pool away, and what was synced is
/// there when the server goes on.
#[test]
fn a_device_that_does_not_answer() {
    if !can_mount("a silent device") {
        return;
    }
    let below = Outer::new("silent-below");
    let s = Sandbox::new("silent");
    well(&s);
    create(&s, "sick", &below.disk, 96);
    let kept = s.path("mnt-sick").join("kept");
    let mut file = File::create(&kept).unwrap();
    file.write_all(b"kept").and_then(|()| file.sync_all()).unwrap();
    drop(file);
    ok(&s, &["zpool", "sync", "sick"]);
    below.stop();
    // A program writes: now operations wait for the device.
    let dir = s.path("mnt-sick");
    let writer = std::thread::spawn(move || {
        File::create(dir.join("late"))
            .and_then(|mut f| f.write_all(b"late").and_then(|()| f.sync_all()))
    });
    let mut sync = s.command(&["zpool", "sync", "sick"]).spawn().unwrap();
    told_of_silence(&s);
    the_rest_lives(&s, "sick");
    // An interrupted command is gone at once.
    sync.kill().unwrap();
    sync.wait().unwrap();
    ok(&s, &["zpool", "export", "-f", "sick"]);
    assert_eq!(ok(&s, &["zpool", "list", "-H", "-o", "name"]), "well\n");
    wait_for("the writer still waits", || writer.is_finished());
    assert!(writer.join().unwrap().is_err());
    // An import meets the same device: interrupted, it leaves nothing behind.
    let mut import = s.command(&["zpool", "import", "-d", &below.disk, "sick"]).spawn().unwrap();
    the_rest_lives(&s, "well");
    import.kill().unwrap();
    import.wait().unwrap();
    below.go_on();
    let import = ["zpool", "import", "-d", &below.disk, "sick"];
    wait_for("it cannot be imported", || say(&s, &import).code == 0);
    assert_eq!(std::fs::read(&kept).unwrap(), b"kept");
    ok(&s, &["zpool", "export", "sick"]);
    ok(&s, &["daemon", "stop"]);
}

/// A daemon that holds such a pool ends, told by a signal or by `daemon stop -f`: its lock is
/// free, its other pools are closed in order, and its successor starts.
#[test]
fn a_daemon_ends_whatever_its_devices_do() {
    if !can_mount("a silent device") {
        return;
    }
    for by_signal in [true, false] {
        let below = Outer::new(&format!("ends-below-{by_signal}"));
        let s = Sandbox::new(&format!("ends-{by_signal}"));
        well(&s);
        create(&s, "sick", &below.disk, 96);
        std::fs::write(s.path("mnt-well").join("file"), b"file").unwrap();
        // The sync below has something to write.
        std::fs::write(s.path("mnt-sick").join("late"), b"late").unwrap();
        below.stop();
        let mut sync = s.command(&["zpool", "sync", "sick"]).spawn().unwrap();
        told_of_silence(&s);
        if by_signal {
            signal(s.pid(), Signal::TERM);
            wait_for("it does not end", || !s.path("run/socket").exists());
        } else {
            ok(&s, &["daemon", "stop", "-f"]);
        }
        sync.wait().unwrap();
        let said = say(&s, &["daemon", "start"]);
        assert!(said.out.starts_with("cenote daemon started"), "{said:?}");
        if by_signal {
            // The silent pool is in nobody's way.
            let list = ok(&s, &["zpool", "list", "-H", "-o", "name,health"]);
            assert!(list.contains("well\tONLINE\n"), "{list}");
        } else {
            ok(&s, &["zpool", "import", "-d", &s.text("wells"), "well"]);
        }
        assert_eq!(std::fs::read(s.path("mnt-well").join("file")).unwrap(), b"file");
        ok(&s, &["daemon", "stop", "-f"]);
        below.go_on();
    }
}

/// A daemon was stopped; its clients waited for its hello without limit.
#[test]
fn a_daemon_that_does_not_answer() {
    let s = Sandbox::new("stopped");
    s.ok(&["daemon", "start"]);
    let pid = s.pid();
    signal(pid, Signal::STOP);
    let said = say(&s, &["zpool", "list"]);
    signal(pid, Signal::CONT);
    let line = format!("the daemon, process {pid}, does not answer\n");
    assert_eq!((said.code, said.err), (1, line));
    s.stop();
}

/// `daemon start --metrics` with a daemon running said that all was well, and did nothing.
#[test]
fn metrics_of_a_running_daemon() {
    let s = Sandbox::new("late-metrics");
    s.ok(&["daemon", "start"]);
    let err = s.fail(1, &["daemon", "start", "--metrics", "127.0.0.1:0"]);
    assert!(err.contains("--metrics has no effect"), "{err}");
    s.stop();
}

/// A pool that another daemon has open looked damaged: UNAVAIL, all devices missing.
#[test]
fn a_pool_in_use_elsewhere() {
    if !can_mount("a pool in use") {
        return;
    }
    let (s, other) = (Sandbox::new("in-use"), Sandbox::new("in-use-other"));
    well(&other);
    let dir = other.text("wells");
    let listed = ok(&s, &["zpool", "import", "-d", &dir]);
    let holder = format!("it is in use by process {} (", other.pid());
    assert!(listed.contains(&holder) && listed.contains("Nothing is wrong"), "{listed}");
    let said = say(&s, &["zpool", "import", "-d", &dir, "well"]);
    assert!(said.code == 1 && said.err.contains(&holder), "{said:?}");
    ok(&other, &["zpool", "export", "well"]);
    ok(&s, &["zpool", "import", "-d", &dir, "well"]);
    ok(&s, &["zpool", "export", "well"]);
    s.stop();
    other.stop();
}

/// A daemon was killed, and the next `zpool import` said "already exists": the new daemon had
/// imported the pool by itself a moment before.
#[test]
fn an_import_after_a_crash() {
    if !can_mount("an import after a crash") {
        return;
    }
    let s = Sandbox::new("again");
    well(&s);
    let pid = s.pid();
    signal(pid, Signal::KILL);
    wait_for("it is not killed", || !is_alive(pid));
    let said = say(&s, &["zpool", "import", "-d", &s.text("wells"), "well"]);
    let line = "'well' is imported: the daemon did so when it started\n";
    assert_eq!((said.code, said.err.as_str()), (0, line));
    // One that was imported by a command is not to be had, as with OpenZFS.
    ok(&s, &["zpool", "export", "well"]);
    ok(&s, &["zpool", "import", "-d", &s.text("wells"), "well"]);
    let said = say(&s, &["zpool", "import", "-d", &s.text("wells"), "well"]);
    assert!(said.code == 1 && said.err.contains("already exists"), "{said:?}");
    ok(&s, &["zpool", "export", "well"]);
    s.stop();
}

/// Without XDG_RUNTIME_DIR every command of an ordinary user failed.
#[test]
fn a_user_without_a_runtime_directory() {
    if !can_mount("an ordinary user") {
        return;
    }
    let s = Sandbox::new("no-xdg");
    let program = s.path("cenote");
    std::fs::copy(env!("CARGO_BIN_EXE_cenote"), &program).unwrap();
    // A user that nobody is.
    let user = 61_000 + std::process::id() % 1000;
    let run = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.args(args).env_remove("XDG_RUNTIME_DIR").env_remove("CENOTE_RUNTIME_DIR");
        command.env_remove("CENOTE_STATE_DIR").current_dir("/").uid(user).gid(user);
        ends(command, &args.join(" "))
    };
    let dir = format!("/tmp/cenote-{user}");
    assert_eq!(run(&["zpool", "list"]).out, "no pools available\n");
    let started = run(&["daemon", "start"]);
    assert!(started.code == 0 && Path::new(&dir).join("socket").exists(), "{started:?}");
    assert_eq!(run(&["daemon", "stop"]).code, 0);
    std::fs::remove_dir_all(&dir).unwrap();
    // Another user's directory of that name is not taken.
    std::fs::create_dir(&dir).unwrap();
    let refused = run(&["zpool", "list"]);
    std::fs::remove_dir(&dir).unwrap();
    assert!(refused.code == 1 && refused.err.contains("another user"), "{refused:?}");
}
