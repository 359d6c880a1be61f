//! Every command, for every kind of trouble, one after the other on the same pool.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use testkit::Rng;

use super::common::{Said, Sandbox, can_mount, is_alive};
use super::{LIMIT, Outer, Signal, Tmpfs, create, ok, say, signal, the_rest_lives, wait_for, well};

/// What happens to the backing store of a pool.
enum Trouble {
    /// It has no room for what the pool writes.
    Full(Tmpfs),
    /// It does not answer: its server is stopped.
    Silent(Outer),
    /// It is not there any more: its server was killed.
    Gone(Outer),
}

impl Trouble {
    fn is_silent(&self) -> bool {
        matches!(self, Trouble::Silent(_))
    }

    /// The path of a disk in the backing store.
    fn disk(&self, name: &str) -> String {
        match self {
            Trouble::Full(tmpfs) => tmpfs.text(name),
            Trouble::Silent(below) | Trouble::Gone(below) => below.at(name),
        }
    }

    fn begin(&self) {
        match self {
            Trouble::Full(tmpfs) => {
                let mut filler = File::create(tmpfs.text("filler")).unwrap();
                while filler.write_all(&[1; 65536]).is_ok() {}
            }
            Trouble::Silent(below) => below.stop(),
            Trouble::Gone(below) => {
                let pid = below.outer.pid();
                signal(pid, Signal::KILL);
                wait_for("the server is not killed", || !is_alive(pid));
            }
        }
    }

    fn end(&self) {
        match self {
            Trouble::Full(tmpfs) => std::fs::remove_file(tmpfs.text("filler")).unwrap(),
            Trouble::Silent(below) => below.go_on(),
            Trouble::Gone(below) => {
                ok(&below.outer, &["daemon", "start"]);
                let disk = self.disk("sick");
                wait_for("the disk does not come back", || Path::new(&disk).exists());
            }
        }
    }
}

/// Starts a command that must wait.
fn waits(s: &Sandbox, args: &[&str]) -> Child {
    let mut command = s.command(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // That it waits is what is tested: one that did not would have ended by then.
    std::thread::sleep(Duration::from_millis(800));
    assert!(child.try_wait().unwrap().is_none(), "{args:?} does not wait");
    child
}

/// Reads the messages of a command until one has these words.
fn wait_for_words(child: &mut Child, words: &str) {
    let mut from = child.stderr.take().unwrap();
    let (to, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut piece) {
            if to.send(String::from_utf8_lossy(&piece[..n]).into_owned()).is_err() {
                return;
            }
        }
    });
    let mut text = String::new();
    while !text.contains(words) {
        let more = said.recv_timeout(LIMIT);
        text.push_str(&more.unwrap_or_else(|e| panic!("{e}: no '{words}' in {text:?}")));
    }
}

/// Interrupts a command that waits; what it has said.
fn interrupt(mut child: Child) -> String {
    child.kill().unwrap();
    let out = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn health(s: &Sandbox) -> String {
    ok(s, &["zpool", "list", "-H", "-o", "health", "sick"])
}

fn refused(said: &Said, why: &str) {
    assert!(said.code == 1 && said.err.contains(why), "{said:?}");
}

fn noise(len: usize) -> Vec<u8> {
    let mut rng = Rng::new(1);
    (0..len / 8).flat_map(|_| rng.number().to_le_bytes()).collect()
}

/// A column of the matrix, from `zpool sync` to an import once the trouble is over.
fn column(name: &str, trouble: &Trouble, failmode: &str) {
    let s = Sandbox::new(&format!("cells-{name}-{failmode}"));
    well(&s);
    create(&s, "sick", &trouble.disk("sick"), 192);
    ok(&s, &["zpool", "set", &format!("failmode={failmode}"), "sick"]);
    ok(&s, &["zfs", "create", "sick/fs"]);
    let kept = s.path("mnt-sick").join("kept");
    std::fs::write(&kept, b"kept").unwrap();
    ok(&s, &["zpool", "sync", "sick"]);
    File::create(trouble.disk("new")).unwrap().set_len(64 << 20).unwrap();
    trouble.begin();
    let writer = write_beside(&s, trouble, "late");
    let may_wait = failmode == "wait" || trouble.is_silent();
    if may_wait {
        interrupt(waits(&s, &["zpool", "sync", "sick"]));
    } else {
        assert_eq!(say(&s, &["zpool", "sync", "sick"]).code, 1);
    }
    if trouble.is_silent() {
        wait_for("nothing tells of the silent device", || {
            say(&s, &["zpool", "status", "sick"]).err.contains("has not answered")
        });
    }
    wait_for("the writer still waits", || may_wait || writer.is_finished());

    // A pool cannot be made there.
    let new = ["zpool", "create", "-m", "none", "new", &trouble.disk("new")];
    if trouble.is_silent() {
        let mut create = s.command(&new);
        let mut create = create.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_words(&mut create, "has not answered for");
        interrupt(create);
    } else {
        assert_eq!(say(&s, &new).code, 1);
    }
    assert!(!ok(&s, &["zpool", "list", "-H", "-o", "name"]).contains("new"));

    // What is in memory is served.
    assert_eq!(std::fs::read(&kept).unwrap(), b"kept");
    rustix::fs::statvfs(s.path("mnt-sick")).unwrap();
    ok(&s, &["zfs", "unmount", "sick/fs"]);
    ok(&s, &["zfs", "mount", "sick/fs"]);
    let listed = say(&s, &["zfs", "list", "-H", "-o", "name"]);
    assert!(listed.out.contains("sick/fs\n") || trouble.is_silent(), "{listed:?}");

    if trouble.is_silent() {
        interrupt(waits(&s, &["zpool", "export", "sick"]));
    } else {
        refused(&say(&s, &["zpool", "export", "sick"]), "pool I/O is currently suspended");
        refused(&say(&s, &["daemon", "stop"]), "'sick'");
    }
    the_rest_lives(&s, "sick");

    refused(&say(&s, &["zpool", "destroy", "-f", "sick"]), "left as it was last synced");
    assert_eq!(ok(&s, &["zpool", "list", "-H", "-o", "name"]), "well\n");
    ends_for(writer);
    trouble.end();
    let import = ["zpool", "import", "-d", &trouble.disk("sick"), "sick"];
    wait_for("it cannot be imported", || say(&s, &import).code == 0);
    assert_eq!(std::fs::read(&kept).unwrap(), b"kept");

    // The same end by force, of the pool and of the daemon.
    trouble.begin();
    let writer = write_beside(&s, trouble, "more");
    ok(&s, &["zpool", "export", "-f", "sick"]);
    assert_eq!(ok(&s, &["zpool", "list", "-H", "-o", "name"]), "well\n");
    ends_for(writer);
    trouble.end();
    wait_for("it cannot be imported", || say(&s, &import).code == 0);
    trouble.begin();
    let writer = write_beside(&s, trouble, "last");
    if trouble.is_silent() {
        interrupt(waits(&s, &["daemon", "stop"]));
    }
    ok(&s, &["daemon", "stop", "-f"]);
    ends_for(writer);
    trouble.end();
    wait_for("it cannot be imported", || say(&s, &import).code == 0);
    assert_eq!(std::fs::read(&kept).unwrap(), b"kept");

    // By a signal; `a_daemon_ends_whatever_its_devices_do` has the silent device.
    if !trouble.is_silent() {
        trouble.begin();
        let writer = write_beside(&s, trouble, "signal");
        let pid = s.pid();
        signal(pid, Signal::TERM);
        wait_for("the signal does not end it", || !is_alive(pid));
        ends_for(writer);
        trouble.end();
        wait_for("it cannot be imported", || say(&s, &import).code == 0);
        assert_eq!(std::fs::read(&kept).unwrap(), b"kept");
    }
    ok(&s, &["zpool", "destroy", "sick"]);
    ok(&s, &["daemon", "stop", "-f"]);
    // A server that was killed may have lost it.
    let _gone = std::fs::remove_file(trouble.disk("new"));
}

/// A program that writes what the device does not take: refused, kept in memory, or waiting.
fn write_beside(s: &Sandbox, trouble: &Trouble, name: &str) -> JoinHandle<std::io::Result<()>> {
    let path = s.path("mnt-sick").join(name);
    let written = path.clone();
    // Memory takes what a silent device is to be given; the file is not busy then.
    let size = if trouble.is_silent() { 4 << 20 } else { 20 << 20 };
    let writer = std::thread::spawn(move || std::fs::write(path, noise(size)));
    if trouble.is_silent() {
        wait_for("the writer waits", || writer.is_finished());
        return writer;
    }
    wait_for("nothing is written", || {
        writer.is_finished()
            || std::fs::metadata(&written).is_ok_and(|m| m.len() > 1 << 20)
            || health(s) == "SUSPENDED\n"
    });
    let mut sync = s.command(&["zpool", "sync", "sick"]).stderr(Stdio::null()).spawn().unwrap();
    wait_for("it is not suspended", || health(s) == "SUSPENDED\n");
    let _ended = sync.kill();
    sync.wait().unwrap();
    writer
}

fn ends_for(writer: JoinHandle<std::io::Result<()>>) {
    wait_for("the writer still waits", || writer.is_finished());
    // An error, or all of it was taken before the trouble was met.
    let _either = writer.join().unwrap();
}

#[test]
fn a_full_backing_store_and_every_command() {
    if can_mount("a full backing store") {
        for failmode in ["wait", "continue"] {
            let disks = Tmpfs::new("cells-disks", 60);
            column("full", &Trouble::Full(disks), failmode);
        }
    }
}

#[test]
fn a_silent_device_and_every_command() {
    if can_mount("a silent device") {
        column("silent", &Trouble::Silent(Outer::new("cells-silent-below")), "wait");
    }
}

#[test]
fn a_device_that_is_gone_and_every_command() {
    if can_mount("a device that is gone") {
        for failmode in ["wait", "continue"] {
            let below = Outer::new(&format!("cells-gone-below-{failmode}"));
            column("gone", &Trouble::Gone(below), failmode);
        }
    }
}
