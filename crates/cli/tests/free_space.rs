//! Stories of space that is kept and given back: `zpool checkpoint`, `trim`, `initialize`.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod common;

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use common::{Sandbox, eventually, is_alive, is_root, judge_disks};

const NONE: [&str; 2] = ["-o", "mountpoint=none"];

/// Files of 128 MiB in the sandbox's `disks`.
fn files(s: &Sandbox, count: usize) -> Vec<String> {
    let dir = s.dir("disks");
    let one = |n: usize| {
        let path = dir.join(format!("d{n}"));
        std::fs::File::create(&path).unwrap().set_len(128 << 20).unwrap();
        path.to_str().unwrap().to_owned()
    };
    (0..count).map(one).collect()
}

fn line(s: &Sandbox, what: &str) -> Option<String> {
    let status = s.ok(&["zpool", "status", "tank"]);
    status.lines().find(|l| l.starts_with(what)).map(str::to_owned)
}

fn names(s: &Sandbox) -> Vec<String> {
    s.ok(&["zfs", "list", "-Ho", "name"]).lines().map(str::to_owned).collect()
}

/// A checkpoint is taken before a risky change, the change regretted, and the pool returned to
/// the checkpoint; a restart of the daemon does not return it once more.
#[test]
fn a_pool_returns_to_its_checkpoint() {
    let s = Sandbox::new("checkpoint");
    let disks = files(&s, 3);
    let dir = s.text("disks");
    s.ok(&[
        "zpool", "create", "-m", "none", "tank", "mirror", &disks[0], &disks[1], "log", &disks[2],
    ]);
    s.ok(&[&["zfs", "create"][..], &NONE, &["tank/old"]].concat());
    let missing = "cannot discard checkpoint in 'tank': checkpoint does not exist\n";
    assert_eq!(s.fail(1, &["zpool", "checkpoint", "-d", "tank"]), missing);
    let misuse = s.fail(2, &["zpool", "checkpoint", "-w", "tank"]);
    assert!(misuse.starts_with("--wait only valid when --discard also specified\n"), "{misuse}");
    assert_eq!(s.ok(&["zpool", "checkpoint", "tank"]), "");
    let again = "cannot checkpoint 'tank': checkpoint exists\n";
    assert_eq!(s.fail(1, &["zpool", "checkpoint", "tank"]), again);
    s.ok(&["zfs", "destroy", "tank/old"]);
    s.ok(&[&["zfs", "create"][..], &NONE, &["tank/new"]].concat());
    s.ok(&["zpool", "sync", "tank"]);
    let shown = line(&s, "checkpoint: ").unwrap();
    assert!(shown.starts_with("checkpoint: created "), "{shown}");
    let kept = s.ok(&["zpool", "list", "-Hpo", "checkpoint", "tank"]);
    assert!(kept.trim().parse::<u64>().unwrap() > 0, "{kept}");
    assert!(shown.contains(", consumes ") && !shown.contains("consumes 0B"), "{shown}");
    for args in [&["zpool", "remove", "tank", &disks[2]][..], &["zpool", "reguid", "tank"]] {
        let err = s.fail(1, args);
        assert!(err.ends_with(": checkpoint exists\n"), "{args:?}: {err}");
    }
    // First only looked at.
    s.ok(&["zpool", "export", "tank"]);
    let back = "--rewind-to-checkpoint";
    s.ok(&["zpool", "import", "-d", &dir, "-o", "readonly=on", back, "tank"]);
    assert_eq!(names(&s), ["tank", "tank/old"]);
    s.ok(&["zpool", "export", "tank"]);
    s.ok(&["zpool", "import", "-d", &dir, "tank"]);
    assert_eq!(names(&s), ["tank", "tank/new"]);
    s.ok(&["zpool", "export", "tank"]);
    let both = s.fail(2, &["zpool", "import", "-d", &dir, back, "-F", "tank"]);
    assert!(both.starts_with("--rewind-to-checkpoint cannot be combined"), "{both}");
    s.ok(&["zpool", "import", "-d", &dir, back, "tank"]);
    assert_eq!(names(&s), ["tank", "tank/old"]);
    assert_eq!(line(&s, "checkpoint: "), None);
    assert_eq!(s.ok(&["zpool", "list", "-Ho", "checkpoint", "tank"]), "-\n");
    // The next one is not returned to by itself.
    s.ok(&["zpool", "checkpoint", "tank"]);
    s.ok(&[&["zfs", "create"][..], &NONE, &["tank/later"]].concat());
    let pid = s.pid();
    let process = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    eventually("it is not killed", || !is_alive(pid));
    s.ok(&["daemon", "start"]);
    eventually("the pool is not back", || names(&s).len() == 3);
    assert_eq!(names(&s), ["tank", "tank/later", "tank/old"]);
    s.ok(&["zfs", "destroy", "tank/old"]);
    s.ok(&["zpool", "checkpoint", "-d", "-w", "tank"]);
    assert_eq!(line(&s, "checkpoint: "), None);
    s.ok(&["zpool", "wait", "-t", "discard", "tank"]);
    let history = s.ok(&["zpool", "history", "tank"]);
    assert!(history.contains(" zpool checkpoint -d -w tank\n"), "{history}");
    s.ok(&["zpool", "export", "tank"]);
    let none = s.fail(1, &["zpool", "import", "-d", &dir, back, "tank"]);
    assert!(none.starts_with("cannot import 'tank': checkpoint does not exist\n"), "{none}");
    judge_disks(&s);
}

fn remarks(s: &Sandbox) -> Vec<String> {
    let status = s.ok(&["zpool", "status", "-it", "tank"]);
    let rows = status.lines().filter(|l| l.contains("/d") || l.contains("loop"));
    rows.map(|l| l.split_once("     0     0     0").unwrap().1.to_owned()).collect()
}

/// Devices are initialized and trimmed; progress is shown, survives an export, and is waited for.
#[test]
fn devices_are_initialized_and_trimmed() {
    let s = Sandbox::new("trim");
    let disks = files(&s, 2);
    s.ok(&["zpool", "create", "-m", "none", "tank", "mirror", &disks[0], &disks[1]]);
    assert_eq!(remarks(&s), ["  (uninitialized)  (untrimmed)"; 2]);
    let none = |verb: &str, disk: &str, what: &str| format!("cannot {verb} '{disk}': {what}\n");
    assert_eq!(
        s.fail(1, &["zpool", "trim", "-s", "tank", &disks[0]]),
        none("suspend trimming", &disks[0], "there is no active trim")
    );
    assert_eq!(
        s.fail(1, &["zpool", "trim", "-d", "tank", &disks[0]]),
        none("trim", &disks[0], "trim operations are not supported by this device")
    );
    assert_eq!(
        s.fail(1, &["zpool", "initialize", "tank", "nosuch"]),
        none("initialize", "nosuch", "no such device in pool")
    );
    let occupied = |n: usize| std::fs::metadata(&disks[n]).unwrap().blocks() * 512;
    s.ok(&["zpool", "initialize", "-w", "tank", &disks[0]]);
    assert!(occupied(0) > 100 << 20 && occupied(1) < 50 << 20, "one was written");
    let shown = remarks(&s);
    assert!(shown[0].starts_with("  (100% initialized, completed at "), "{shown:?}");
    assert!(shown[1].starts_with("  (uninitialized)"), "{shown:?}");
    s.ok(&["zpool", "initialize", "-u", "tank"]);
    assert!(remarks(&s)[0].starts_with("  (uninitialized)"));
    // So slowly that it does not end.
    s.ok(&["zpool", "trim", "-r", "1M", "tank", &disks[0]]);
    assert_eq!(
        s.fail(1, &["zpool", "trim", "tank", &disks[0]]),
        none("trim", &disks[0], "currently trimming")
    );
    let status = s.ok(&["zpool", "status", "tank"]);
    assert!(status.contains(&format!("{}  ONLINE       0     0     0  (trimming)\n", disks[0])));
    s.ok(&["zpool", "export", "tank"]);
    s.ok(&["zpool", "import", "-d", &s.text("disks"), "tank"]);
    assert!(remarks(&s)[0].contains("% trimmed, started at "), "it goes on");
    s.ok(&["zpool", "trim", "-s", "tank"]);
    assert!(remarks(&s)[0].contains("% trimmed, suspended, started at "));
    s.ok(&["zpool", "trim", "-w", "tank"]);
    let shown = remarks(&s);
    assert!(shown.iter().all(|r| r.contains("  (100% trimmed, completed at ")), "{shown:?}");
    assert!(occupied(0) < 50 << 20, "{}", occupied(0));
    s.ok(&["zpool", "wait", "-t", "trim,initialize", "tank"]);
    s.ok(&["zpool", "set", "autotrim=on", "tank"]);
    assert_eq!(s.ok(&["zpool", "get", "-Ho", "value", "autotrim", "tank"]), "on\n");
    let events = s.ok(&["zpool", "events", "-H", "tank"]);
    for what in ["trim_start", "trim_suspend", "trim_resume", "trim_finish"] {
        assert!(events.contains(&format!("sysevent.fs.zfs.{what}\n")), "{what}: {events}");
    }
    let history = s.ok(&["zpool", "history", "tank"]);
    assert_eq!(history.matches(" zpool trim -w tank\n").count(), 1, "{history}");
    s.ok(&["zpool", "export", "tank"]);
    judge_disks(&s);
}

/// A loop device over a file; it goes with the value.
struct Loop(String);

impl Loop {
    fn over(file: &str) -> Option<Loop> {
        let out = Command::new("losetup").args(["-f", "--show", file]).output().ok()?;
        let name = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        (out.status.success() && name.starts_with("/dev/loop")).then_some(Loop(name))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _gone = Command::new("losetup").args(["-d", &self.0]).output();
    }
}

/// A block device gets discards, which leave holes in the file below it.
#[test]
fn a_block_device_is_trimmed() {
    if !is_root("loop devices are root's") {
        return;
    }
    let s = Sandbox::new("trim-loop");
    let disks = files(&s, 1);
    let Some(device) = Loop::over(&disks[0]) else {
        return testkit::skip(testkit::Need::Root, "there are no loop devices");
    };
    s.ok(&["zpool", "create", "-f", "-m", "none", "tank", &device.0]);
    s.ok(&["zpool", "initialize", "-w", "tank"]);
    let occupied = || std::fs::metadata(&disks[0]).unwrap().blocks() * 512;
    assert!(occupied() > 100 << 20, "{}", occupied());
    s.ok(&["zpool", "trim", "-w", "tank"]);
    assert!(remarks(&s)[0].contains("  (100% trimmed, completed at "), "{:?}", remarks(&s));
    assert!(occupied() < 50 << 20, "{}", occupied());
    s.ok(&["zpool", "export", "tank"]);
    judge_disks(&s);
}
