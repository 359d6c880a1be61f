//! The built program with a runtime directory of its own.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use testkit::{Need, Scratch};

/// A runtime directory and room for disks and mounts; the daemon ends with it.
pub(crate) struct Sandbox {
    scratch: Scratch,
}

/// What a command said and how it ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Sandbox {
    pub(crate) fn new(name: &str) -> Sandbox {
        Sandbox { scratch: Scratch::new(name) }
    }

    /// A path below the sandbox.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// As [`Sandbox::path`], the directory made.
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        let dir = self.path(name);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// As [`Sandbox::path`], as text.
    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// The program, about to run.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cenote"));
        command.args(args).env("CENOTE_RUNTIME_DIR", self.path("run")).env("TZ", "UTC");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs it and tells what it said.
    pub(crate) fn say(&self, args: &[&str]) -> Said {
        said(&self.run(args))
    }

    /// Runs it; it must succeed. Its output.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let said = self.say(args);
        assert_eq!(said.code, 0, "{args:?}: {}", said.err);
        said.out
    }

    /// Runs it; it must fail with `code`. Its message.
    pub(crate) fn fail(&self, code: i32, args: &[&str]) -> String {
        let said = self.say(args);
        assert_eq!(said.code, code, "{args:?}: {said:?}");
        said.err
    }

    /// The daemon's process.
    pub(crate) fn pid(&self) -> i32 {
        let status = self.ok(&["daemon", "status"]);
        let line = status.lines().find_map(|l| l.trim().strip_prefix("pid: ")).unwrap();
        line.parse().unwrap()
    }

    /// Mount points of this sandbox.
    pub(crate) fn mounts(&self) -> Vec<String> {
        mounts_below(self.scratch.path())
    }

    /// Stops the daemon; nothing of it may be left.
    pub(crate) fn stop(&self) {
        let pid = self.pid();
        self.ok(&["daemon", "stop"]);
        // The lock that `stop` waits for is let go just before the end.
        eventually("the daemon still runs", || !is_alive(pid));
        assert_eq!(self.mounts(), Vec::<String>::new());
        assert!(!self.path("run/socket").exists());
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if self.path("run").exists() {
            let _stopped = self.run(&["daemon", "stop", "-f"]);
        }
        // Of a daemon that was killed, by a test that failed then.
        for dead in self.mounts().iter().rev() {
            let _gone = Command::new("umount").args(["-l", dead]).output();
        }
    }
}

pub(crate) fn said(out: &Output) -> Said {
    Said {
        code: out.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&out.stdout).into_owned(),
        err: String::from_utf8_lossy(&out.stderr).into_owned(),
    }
}

/// Waits until something is so, a minute at most.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Mount points below a directory, blanks and such as `mountinfo` writes them.
pub(crate) fn mounts_below(dir: &Path) -> Vec<String> {
    let dir = format!("{}/", dir.to_str().unwrap());
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table.lines().filter_map(|l| l.split(' ').nth(4));
    points.filter(|p| p.starts_with(&dir)).map(str::to_owned).collect()
}

/// Whether a process runs; one that only waits to be reaped does not.
pub(crate) fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|t| !t.contains(") Z "))
}

/// Whether file systems can be mounted and read whatever their files' modes.
pub(crate) fn can_mount(what: &str) -> bool {
    if !Path::new("/dev/fuse").exists() {
        testkit::skip(Need::Fuse, &format!("{what}: /dev/fuse is absent"));
        return false;
    }
    is_root(what)
}

/// Whether the tests run as root.
pub(crate) fn is_root(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        testkit::skip(Need::Root, &format!("{what}: needs root"));
    }
    root
}

/// A pool `tank` in a sparse file, its root file system mounted at `mnt`.
pub(crate) fn new_pool(s: &Sandbox, mib: u64, options: &[&str]) {
    let disk = s.dir("disks").join("disk");
    std::fs::File::create(&disk).unwrap().set_len(mib << 20).unwrap();
    let (mountpoint, disk) = (format!("mountpoint={}", s.text("mnt")), disk.to_str().unwrap());
    let args = [&["zpool", "create", "-O", &mountpoint], options, &["tank", disk]].concat();
    s.ok(&args);
}

/// Exports pool `tank`, stops the daemon, and has OpenZFS's `zdb` look at every block.
pub(crate) fn judge(s: &Sandbox) {
    s.ok(&["zpool", "export", "tank"]);
    s.stop();
    judge_disks(s);
}

/// As [`judge`], of a pool that nobody has open.
pub(crate) fn judge_disks(s: &Sandbox) {
    // `make test` has a quicker one in its PATH, which users need not have such directories in.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let Some(zdb) = dirs.map(|dir| dir.join("zdb")).find(|zdb| zdb.is_file()) else {
        testkit::skip(Need::Zdb, "OpenZFS's zdb is not installed");
        return;
    };
    let out = Command::new(zdb).args(["-e", "-p", &s.text("disks"), "-bcc", "tank"]).output();
    let said = said(&out.unwrap());
    assert_eq!(said.code, 0, "{}\n{}", said.out, said.err);
    assert!(said.out.contains("No leaks (block sum matches space maps exactly)"), "{}", said.out);
    println!("JUDGED by zdb -e -bcc");
}
