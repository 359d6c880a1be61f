//! The daemon's life, with a runtime directory of its own: started on demand,
//! alone in its directory, deaf to garbage, gone when told, back after a kill.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output};

struct Sandbox {
    dir: PathBuf,
}

impl Sandbox {
    fn new(name: &str) -> Sandbox {
        let dir = std::env::temp_dir().join(format!("cenote-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Sandbox { dir }
    }

    fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_cenote"))
            .args(args)
            .env("CENOTE_RUNTIME_DIR", self.dir.join("run"))
            .output()
            .unwrap()
    }

    fn ok(&self, args: &[&str]) -> String {
        let out = self.run(args);
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{args:?}: {err}");
        String::from_utf8(out.stdout).unwrap()
    }

    fn pid(&self) -> i32 {
        let status = self.ok(&["daemon", "status"]);
        let line = status.lines().find_map(|l| l.trim().strip_prefix("pid: ")).unwrap();
        line.parse().unwrap()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _stopped = self.run(&["daemon", "stop", "-f"]);
        let _gone = std::fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn life_cycle() {
    let s = Sandbox::new("life");
    assert_eq!(s.run(&["daemon", "status"]).status.code(), Some(1));
    // Looking needs no daemon.
    assert_eq!(s.ok(&["zpool", "list"]), "no pools available\n");
    assert!(!s.dir.join("run/socket").exists());

    assert!(s.ok(&["daemon", "start"]).starts_with("cenote daemon started, pid "));
    let mode = std::fs::metadata(s.dir.join("run/socket")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(s.ok(&["daemon", "start"]).starts_with("cenote daemon already running, pid "));
    let second = s.run(&["daemon", "start", "--foreground"]);
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("already running"));

    // A killed daemon leaves its socket; the next start takes over.
    let pid = s.pid();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    while std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
        .is_ok_and(|t| !t.contains(") Z "))
    {
        std::thread::yield_now();
    }
    assert!(s.ok(&["daemon", "start"]).starts_with("cenote daemon started, pid "));
    assert_ne!(s.pid(), pid.as_raw_nonzero().get());
    s.ok(&["daemon", "stop"]);
    assert!(!s.dir.join("run/socket").exists());
    assert_eq!(s.run(&["daemon", "status"]).status.code(), Some(1));
}

#[test]
fn garbage_ends_a_connection_and_nothing_else() {
    let s = Sandbox::new("garbage");
    s.ok(&["daemon", "start"]);
    for garbage in [&b"\xff\xff\xff\xff"[..], b"\x05\0\0\0hello", b"\x02\0\0\0{}", b"\x01"] {
        let mut stream = UnixStream::connect(s.dir.join("run/socket")).unwrap();
        stream.write_all(garbage).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // Closed, perhaps with a reset, and without a word.
        let _ended = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    }
    assert!(s.pid() > 0);
}

#[test]
fn misuse_exits_with_2_and_failure_with_1() {
    let s = Sandbox::new("codes");
    let code = |args: &[&str]| s.run(args).status.code().unwrap();
    for args in [
        &["zfs"][..],
        &["zfs", "lst"],
        &["zfs", "list", "-z"],
        &["zfs", "list", "-o", "nope"],
        &["zfs", "get"],
        &["zfs", "get", "-?"],
        &["zpool", "get"],
        &["zpool", "list", "tank", "0"],
        &["zpool", "export"],
        &["zfs", "unmount"],
        &["nothing"],
        &[],
    ] {
        assert_eq!(code(args), 2, "{args:?}");
    }
    for args in [
        &["zfs", "list", "nope"][..],
        &["zpool", "status", "nope"],
        &["zpool", "get", "all", "nope"],
        &["zfs", "mount", "nope"],
        &["zfs", "create", "tank/x"],
    ] {
        assert_eq!(code(args), 1, "{args:?}");
    }
    let err = |args: &[&str]| String::from_utf8(s.run(args).stderr).unwrap();
    assert_eq!(err(&["zfs", "list", "tank/x"]), "cannot open 'tank/x': dataset does not exist\n");
    assert_eq!(err(&["zpool", "status", "tank"]), "cannot open 'tank': no such pool\n");
    assert_eq!(
        err(&["zpool", "get", "all", "tank"]),
        "Cannot get properties of tank: no such pool available.\n"
    );
    assert!(err(&["zfs", "list", "-z"]).starts_with("invalid option 'z'\nusage:\n\tlist "));
    assert!(err(&["zfs", "list", "-o"]).starts_with("missing argument for 'o' option\n"));
    assert_eq!(code(&["zfs", "list", "-H"]), 0);
    assert_eq!(code(&["zpool", "status"]), 0);
    assert_eq!(code(&["zfs", "version"]), 0);
}

/// With the golden pools at hand: everything through the daemon and the kernel.
#[test]
fn a_pool_is_imported_mounted_and_exported() {
    let Some(pools) = std::env::var_os("CENOTE_POOLS") else {
        println!("CENOTE_POOLS names no directory with a pool: skipped");
        return;
    };
    let s = Sandbox::new("import");
    let (disks, root) = (pools.to_str().unwrap().to_owned(), s.dir.join("mnt"));
    let root = root.to_str().unwrap();
    s.ok(&["zpool", "import", "-d", &disks, "-R", root, "-o", "readonly=on", "-a"]);
    let names = s.ok(&["zpool", "list", "-Ho", "name"]);
    assert!(!names.is_empty());
    let mounts = s.ok(&["zfs", "mount"]);
    for line in mounts.lines() {
        let at = line.split_whitespace().nth(1).unwrap();
        assert!(at.starts_with(root));
        std::fs::read_dir(at).unwrap().for_each(|e| drop(e.unwrap()));
        std::fs::read_dir(format!("{at}/.zfs/snapshot")).unwrap();
    }
    s.ok(&["zpool", "export", "-a"]);
    assert_eq!(s.ok(&["zpool", "list"]), "no pools available\n");
    assert_eq!(s.ok(&["zfs", "mount"]), "");
}
