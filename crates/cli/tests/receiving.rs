//! `zfs receive` as users and scripts call it.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod common;

use std::io::Write;
use std::process::{Command, Stdio};

use common::{Said, Sandbox, can_mount, eventually, is_alive, judge, new_pool, said};
use testkit::golden_streams;

/// Runs a command with this standard input.
fn fed(s: &Sandbox, args: &[&str], input: &[u8]) -> Said {
    let mut command = s.command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    // A command that refuses need not read.
    let _refused = pipe.write_all(input);
    drop(pipe);
    said(&child.wait_with_output().unwrap())
}

fn received(s: &Sandbox, args: &[&str], input: &[u8]) -> String {
    let said = fed(s, &[&["zfs", "receive"], args].concat(), input);
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{args:?}");
    said.out
}

fn refused(s: &Sandbox, args: &[&str], input: &[u8], message: &str) {
    let said = fed(s, &[&["zfs", "receive"], args].concat(), input);
    assert_eq!((said.code, said.err.as_str()), (1, message), "{args:?}");
}

fn sent(s: &Sandbox, args: &[&str]) -> Vec<u8> {
    let out = s.run(&[&["zfs", "send"], args].concat());
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

/// A pool with `tank/src@a` and `tank/src@b`, nothing mounted.
fn pool(s: &Sandbox) {
    new_pool(s, 512, &["-O", "canmount=off"]);
    s.ok(&["zfs", "create", "-o", "canmount=noauto", "tank/src"]);
    s.ok(&["zfs", "snapshot", "tank/src@a"]);
    s.ok(&["zfs", "set", "user:note=one", "tank/src"]);
    s.ok(&["zfs", "snapshot", "tank/src@b"]);
}

#[test]
fn streams_become_snapshots() {
    let s = Sandbox::new("receive-streams");
    pool(&s);
    let a = sent(&s, &["tank/src@a"]);
    let b = sent(&s, &["-i", "@a", "tank/src@b"]);
    let out = received(&s, &["-nv", "tank/x"], &a);
    assert_eq!(out, "would receive full stream of tank/src@a into tank/x@a\n");
    s.fail(1, &["zfs", "list", "tank/x"]);
    let out = received(&s, &["-uv", "-o", "compression=zstd", "tank/x"], &a);
    let (first, second) = out.split_once('\n').unwrap();
    assert_eq!(first, "receiving full stream of tank/src@a into tank/x@a");
    assert!(second.starts_with("received ") && second.contains(" stream in "), "{second}");
    assert!(second.ends_with("/sec)\n"), "{second}");
    assert_eq!(
        s.ok(&["zfs", "get", "-Ho", "value,source", "compression", "tank/x"]),
        "zstd\tlocal\n"
    );
    received(&s, &["tank/x"], &b);
    let guid = |name: &str| s.ok(&["zfs", "get", "-Hpo", "value", "guid,creation", name]);
    assert_eq!(guid("tank/src@b"), guid("tank/x@b"));
    // Below a file system, by the sender's names; missing datasets between are made.
    s.ok(&["zfs", "create", "-o", "canmount=off", "tank/in"]);
    received(&s, &["-u", "-d", "tank/in"], &a);
    received(&s, &["-u", "-e", "tank/in"], &sent(&s, &["tank/x@a"]));
    s.ok(&["zfs", "list", "tank/in/src@a", "tank/in/x@a"]);
    judge(&s);
}

#[test]
fn refusals_in_the_words_of_openzfs() {
    let s = Sandbox::new("receive-refusals");
    pool(&s);
    let a = sent(&s, &["tank/src@a"]);
    let b = sent(&s, &["-i", "@a", "tank/src@b"]);
    let new = "cannot receive new filesystem stream";
    let incremental = "cannot receive incremental stream";
    refused(&s, &["tank/src"], &a, &format!("{new}: destination 'tank/src@a' exists\n"));
    refused(
        &s,
        &["tank/src@new"],
        &a,
        &format!("{new}: destination 'tank/src' exists\nmust specify -F to overwrite it\n"),
    );
    refused(
        &s,
        &["-F", "tank/src@new"],
        &a,
        &format!(
            "{new}: destination has snapshots (eg. tank/src@a)\nmust destroy them to overwrite it\n"
        ),
    );
    refused(&s, &["tank/y"], &b, &format!("{incremental}: destination 'tank/y' does not exist\n"));
    refused(&s, &["nosuch/y"], &a, "cannot receive: destination 'nosuch/y' does not exist\n");
    refused(&s, &["tank/y"], b"", "cannot receive: failed to read from stream\n");
    let garbage = vec![7; 1000];
    let magic = "cannot receive: invalid stream (bad magic number)\n";
    refused(&s, &["tank/y"], &garbage, magic);
    let cut = &a[..a.len() - 400];
    let incomplete = format!("{new}: checksum mismatch or incomplete stream\n");
    refused(&s, &["tank/y"], cut, &incomplete);
    let mut flipped = a.clone();
    flipped[2000] ^= 1;
    refused(&s, &["tank/y"], &flipped, &incomplete);
    s.fail(1, &["zfs", "list", "tank/y"]);
    // Resumable: what came is kept.
    let said = fed(&s, &["zfs", "receive", "-s", "tank/y"], cut);
    let token = s.ok(&["zfs", "get", "-Ho", "value", "receive_resume_token", "tank/y"]);
    assert!(token.starts_with("1-"), "{token}");
    assert_eq!(
        said.err,
        format!(
            "{new}: checksum mismatch or incomplete stream.\nPartially received snapshot is \
             saved.\nA resuming stream can be generated on the sending system by running:\n    \
             zfs send -t {token}"
        )
    );
    refused(
        &s,
        &["tank/y"],
        &a,
        &format!(
            "{new}: destination tank/y contains partially-complete state from \"zfs receive -s\".\n"
        ),
    );
    s.ok(&["zfs", "receive", "-A", "tank/y"]);
    s.fail(1, &["zfs", "list", "tank/y"]);
    let why = "'tank/src' does not have any resumable receive state to abort\n";
    assert_eq!(s.fail(1, &["zfs", "receive", "-A", "tank/src"]), why);
    for args in
        [&[][..], &["-d", "-e", "tank"], &["a", "b"], &["-Q", "tank/y"], &["-A", "-v", "tank/y"]]
    {
        let err = s.fail(2, &[&["zfs", "receive"], args].concat());
        assert!(err.contains("usage:"), "{args:?}: {err}");
    }
    let absent = format!("{new}: destination 'tank/y@a' does not exist\n");
    refused(&s, &["-c", "tank/y"], &a, &absent);
    judge(&s);
}

/// A mounted file system shows the new state; its files are those of the golden stream.
#[test]
fn a_mounted_file_system() {
    if !can_mount("a mounted file system that is received into") {
        return;
    }
    let s = Sandbox::new("receive-mounted");
    new_pool(&s, 512, &[]);
    s.ok(&["zfs", "create", "tank/src"]);
    let file = |fs: &str, name: &str| s.path("mnt").join(fs).join(name);
    std::fs::write(file("src", "old"), "first").unwrap();
    s.ok(&["zfs", "snapshot", "tank/src@a"]);
    std::fs::write(file("src", "old"), "second").unwrap();
    std::fs::write(file("src", "new"), "new").unwrap();
    s.ok(&["zfs", "snapshot", "tank/src@b"]);
    let a = sent(&s, &["tank/src@a"]);
    received(&s, &["tank/dst"], &a);
    assert_eq!(std::fs::read_to_string(file("dst", "old")).unwrap(), "first");
    let b = sent(&s, &["-i", "@a", "tank/src@b"]);
    received(&s, &["-F", "tank/dst"], &b);
    assert_eq!(std::fs::read_to_string(file("dst", "old")).unwrap(), "second");
    assert_eq!(std::fs::read_to_string(file("dst", "new")).unwrap(), "new");
    let snapdir = file("dst", ".zfs/snapshot/a/old");
    assert_eq!(std::fs::read_to_string(snapdir).unwrap(), "first");
    // Not mounted with -u.
    received(&s, &["-u", "tank/quiet"], &a);
    assert!(!file("quiet", "old").exists());
    if let Some((_, full)) = golden_streams().iter().find(|(name, _)| name == "I13") {
        // An incremental package without its base.
        let said = fed(&s, &["zfs", "receive", "tank/dst"], full);
        assert_eq!(said.code, 1);
    }
    judge(&s);
}

/// The stream stops in its middle while its sender lives: the receive waits, and ends when the
/// command, or the daemon, is killed.
#[test]
fn a_client_or_the_daemon_dies() {
    let s = Sandbox::new("receive-dies");
    pool(&s);
    let a = sent(&s, &["tank/src@a"]);
    let begin = |target: &str| {
        let mut command = s.command(&["zfs", "receive", target]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(&a[..a.len() - 100]).unwrap();
        pipe.flush().unwrap();
        eventually("the receive has begun", || s.say(&["zfs", "list", target]).code == 0);
        (child, pipe)
    };
    let (mut child, _pipe) = begin("tank/y");
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("what was received is gone", || s.say(&["zfs", "list", "tank/y"]).code == 1);
    let (child, _pipe) = begin("tank/z");
    let pid = s.pid();
    let killed = Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    assert!(killed.success());
    let said = said(&child.wait_with_output().unwrap());
    assert_eq!(said.code, 1, "{said:?}");
    eventually("the daemon is dead", || !is_alive(pid));
    // The next daemon imports the pool as it was before.
    eventually("what was received is gone", || s.say(&["zfs", "list", "tank/z"]).code == 1);
    assert_eq!(s.ok(&["zfs", "list", "-Ho", "name"]), "tank\ntank/src\n");
    received(&s, &["-u", "tank/z"], &a);
    judge(&s);
}

/// What a clone has changed is withheld from the stream; the dataset that lacks it is mounted by
/// force only.
#[test]
fn redacted_streams() {
    if !can_mount("redacted streams") {
        return;
    }
    let s = Sandbox::new("receive-redacted");
    let root = s.text("mnt");
    new_pool(&s, 512, &["-O", &format!("mountpoint={root}")]);
    s.ok(&["zfs", "create", "-o", "recordsize=4K", "tank/src"]);
    std::fs::write(s.path("mnt/src/open"), vec![b'o'; 8192]).unwrap();
    std::fs::write(s.path("mnt/src/secret"), vec![b's'; 8192]).unwrap();
    s.ok(&["zfs", "snapshot", "tank/src@a"]);
    s.ok(&["zfs", "clone", "tank/src@a", "tank/public"]);
    std::fs::remove_file(s.path("mnt/public/secret")).unwrap();
    s.ok(&["zfs", "snapshot", "tank/public@r"]);
    s.fail(2, &["zfs", "redact", "tank/src@a", "book"]);
    s.ok(&["zfs", "redact", "tank/src@a", "book", "tank/public@r"]);
    let guid = s.ok(&["zfs", "get", "-Hpo", "value", "guid", "tank/public@r"]);
    let snaps = s.ok(&["zfs", "get", "-Ho", "value", "redact_snaps", "tank/src#book"]);
    assert_eq!(snaps, guid);
    let err = s.fail(1, &["zfs", "redact", "tank/src@a", "book", "tank/public@r"]);
    assert_eq!(err, "cannot redact snapshot 'tank/src@a': bookmark exists\n");
    s.fail(2, &["zfs", "send", "--redact", "book", "-R", "tank/src@a"]);
    let stream = sent(&s, &["--redact", "book", "tank/src@a"]);
    let size = s.ok(&["zfs", "send", "-nvP", "--redact", "book", "tank/src@a"]);
    assert!(size.ends_with(&format!("size\t{}\n", stream.len())), "{size}");
    received(&s, &["tank/copy"], &stream);
    assert_eq!(s.ok(&["zfs", "get", "-Ho", "value", "mounted", "tank/copy"]), "no\n");
    assert_eq!(s.ok(&["zfs", "get", "-Ho", "value", "redact_snaps", "tank/copy"]), guid);
    let err = s.fail(1, &["zfs", "mount", "tank/copy"]);
    assert!(err.starts_with("cannot mount 'tank/copy': dataset is redacted"), "{err}");
    s.ok(&["zfs", "mount", "-f", "tank/copy"]);
    assert_eq!(std::fs::read(s.path("mnt/copy/open")).unwrap(), vec![b'o'; 8192]);
    let e = std::fs::read(s.path("mnt/copy/secret")).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(5), "{e}");
    // The clone comes on top of it.
    let clone = sent(&s, &["-i", "tank/src#book", "tank/public@r"]);
    received(&s, &["-o", "origin=tank/copy@a", "tank/copy2"], &clone);
    assert!(!s.path("mnt/copy2/secret").exists());
    assert_eq!(std::fs::read(s.path("mnt/copy2/open")).unwrap(), vec![b'o'; 8192]);
    judge(&s);
}

/// An encrypted dataset is received without its key, and repaired from the same stream.
#[test]
fn raw_and_corrective_streams() {
    let streams = golden_streams();
    let Some((_, raw)) = streams.iter().find(|(name, _)| name == "raw-full") else { return };
    let s = Sandbox::new("receive-raw");
    pool(&s);
    let place = "keylocation=file:///nowhere";
    received(&s, &["-o", place, "tank/x"], raw);
    let get = |props: &str| s.ok(&["zfs", "get", "-Ho", "value", props, "tank/x"]);
    assert_eq!(
        get("encryption,keylocation,keyformat,keystatus,encryptionroot,mounted"),
        "aes-256-gcm\nfile:///nowhere\npassphrase\nunavailable\ntank/x\nno\n"
    );
    let new = "cannot receive new filesystem stream";
    let words = "cannot be set or excluded for raw streams.";
    for args in [&["-o", "encryption=on", "tank/y"][..], &["-x", "encryption", "tank/y"]] {
        refused(&s, args, raw, &format!("{new}: encryption property 'encryption' {words}\n"));
    }
    let a = sent(&s, &["tank/src@a"]);
    refused(&s, &["tank/x/y"], &a, &format!("{new}: inherited key must be loaded\n"));
    received(&s, &["-u", "-o", "encryption=off", "tank/x/y"], &a);
    let out = received(&s, &["-c", "-v", "tank/x"], raw);
    let begins = "receiving corrective full stream of crypt2/aes-256-gcm@one into tank/x@one\n";
    assert!(out.starts_with(begins) && out.ends_with("\ncorrected 0 blocks, 0B\n"), "{out}");
    refused(
        &s,
        &["-c", "tank/src@a"],
        raw,
        &format!("{new}: the stream is not one of snapshot 'tank/src@a'\n"),
    );
    for args in [&["-c", "-F", "tank/x"][..], &["-c", "-o", "quota=1G", "tank/x"]] {
        let said = fed(&s, &[&["zfs", "receive"], args].concat(), raw);
        assert!(said.code == 2 && said.err.contains("usage:"), "{said:?}");
    }
    judge(&s);
}
