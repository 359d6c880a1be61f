//! `zfs send` as users and scripts call it.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod common;

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use cenote::props::nicebytes;
use common::{Sandbox, eventually};
use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};
use testkit::{Need, golden, golden_streams};

/// The golden pool `snaps`, imported read-only.
fn imported(name: &str) -> Sandbox {
    let s = Sandbox::new(name);
    golden("snaps").unwrap().unpack(&s.dir("disks"));
    let disks = s.text("disks");
    s.ok(&["zpool", "import", "-d", &disks, "-N", "-f", "-o", "readonly=on", "snaps"]);
    s
}

/// What a command writes.
fn sent(s: &Sandbox, args: &[&str]) -> Vec<u8> {
    let out = s.run(&[&["zfs", "send"], args].concat());
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

#[test]
fn streams_and_their_sizes() {
    let s = imported("send-streams");
    let incremental = sent(&s, &["-i", "@one", "snaps/promoted@two"]);
    let streams = golden_streams();
    let theirs = &streams.iter().find(|(name, _)| name == "incr").unwrap().1;
    assert!(incremental == *theirs);
    for from in ["one", "snaps/promoted@one"] {
        assert!(sent(&s, &["-i", from, "snaps/promoted@two"]) == *theirs);
    }
    let marked = sent(&s, &["-i", "#mark", "snaps/promoted@three"]);
    let theirs = &streams.iter().find(|(name, _)| name == "frommark").unwrap().1;
    assert!(marked == *theirs);
    // Sizes are exact.
    let size = s.ok(&["zfs", "send", "-nvP", "-i", "@one", "snaps/promoted@two"]);
    let n = incremental.len();
    assert_eq!(size, format!("incremental\t@one\tsnaps/promoted@two\t{n}\nsize\t{n}\n"));
    let full = sent(&s, &["-Lec", "snaps/promoted@one"]);
    let n = full.len();
    let size = s.ok(&["zfs", "send", "-LecnP", "snaps/promoted@one"]);
    assert_eq!(size, format!("full\tsnaps/promoted@one\t{n}\nsize\t{n}\n"));
    assert_eq!(sent(&s, &["-w", "snaps/promoted@one"]), full);
    let said = s.say(&["zfs", "send", "-nv", "snaps/promoted@one"]);
    assert!(said.out.starts_with("full send of snaps/promoted@one estimated size is "));
    assert!(said.out.contains("\ntotal estimated size is "), "{}", said.out);
    assert_eq!(s.ok(&["zfs", "send", "-n", "snaps/promoted@one"]), "");
    // A package of all between.
    let package = sent(&s, &["-I", "@one", "snaps/promoted@three"]);
    std::fs::write(s.path("package"), &package).unwrap();
    let dump = s.ok(&["zstream", "dump", &s.text("package")]);
    for name in ["@three", "@two"] {
        assert!(dump.contains(&format!("toname = snaps/promoted{name}")), "{dump}");
    }
    // The head of a pool that does not change.
    let head = sent(&s, &["snaps/promoted"]);
    assert!(head[56..].starts_with(b"snaps/promoted@--head--\0"));
    if testkit::has_program(Need::Zdb, "zstream", "streams are not judged") {
        for stream in [&package, &head, &full] {
            std::fs::write(s.path("stream"), stream).unwrap();
            let out = Command::new("zstream").arg("dump").arg(s.path("stream")).output().unwrap();
            let text = String::from_utf8(out.stdout).unwrap();
            assert!(out.status.success() && text.contains(&format!("= {} (", stream.len())));
        }
    }
    s.ok(&["zpool", "export", "snaps"]);
}

/// Both ends of a pseudo-terminal; reading from the first does not wait.
fn pseudo_terminal() -> (File, File) {
    let first = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    unlockpt(&first).unwrap();
    let path = ptsname(&first, Vec::new()).unwrap();
    let second = File::options().write(true).open(path.to_str().unwrap()).unwrap();
    rustix::fs::fcntl_setfl(&first, OFlags::RDWR | OFlags::NONBLOCK).unwrap();
    (first.into(), second)
}

/// What the user did: began a long send at a terminal, and asked `ps` how far it is.
#[test]
fn progress_at_a_terminal() {
    let s = imported("send-terminal");
    let whole = sent(&s, &["-V", "snaps/promoted@one"]);
    let (mut screen, terminal) = pseudo_terminal();
    let mut send = s.command(&["zfs", "send", "-v", "-V", "snaps/promoted@one"]);
    let mut send = send.stdout(Stdio::piped()).stderr(terminal).spawn().unwrap();
    let (mut stream, mut seen) = (send.stdout.take().unwrap(), Vec::new());
    let (mut shown, mut title) = (Vec::new(), String::new());
    let mut look = |shown: &mut Vec<u8>| {
        // Until nothing is there, or no process has the other end.
        let _now = screen.read_to_end(shown);
        String::from_utf8_lossy(shown).into_owned()
    };
    // A reader that is so slow that the send takes seconds.
    eventually("neither bar nor title", || {
        let mut piece = [0; 2048];
        let n = stream.read(&mut piece).unwrap();
        assert!(n > 0, "the stream ended first: {title} {}", look(&mut shown));
        seen.extend(&piece[..n]);
        let name = std::fs::read_to_string(format!("/proc/{}/comm", send.id())).unwrap();
        if name.starts_with("zfs send ") {
            title = name;
        }
        !title.is_empty() && look(&mut shown).contains("\r\x1b[Ksnaps/promoted@one  [")
    });
    let share = title.trim_end().strip_prefix("zfs send ").and_then(|t| t.strip_suffix('%'));
    assert!(share.unwrap().parse::<u32>().unwrap() < 100, "{title}");
    stream.read_to_end(&mut seen).unwrap();
    assert!(send.wait().unwrap().success() && seen == whole);
    let shown = look(&mut shown);
    assert!(shown.starts_with("full send of snaps/promoted@one estimated size is "), "{shown}");
    assert!(shown.contains(&format!(" of {}", nicebytes(whole.len() as u64))), "{shown}");
    assert!(!shown.contains("TIME"), "lines beside the bar: {shown}");
    assert!(shown.ends_with("\r\x1b[K"), "the bar is left: {shown:?}");
    s.ok(&["zpool", "export", "snaps"]);
}

#[test]
fn what_cannot_be_sent() {
    let s = imported("send-refused");
    let cannot = |args: &[&str], message: &str| {
        let said = s.say(&[&["zfs", "send"], args].concat());
        assert_eq!((said.code, said.err.as_str()), (1, message), "{args:?}");
        assert_eq!(said.out, "");
    };
    cannot(
        &["snaps/promoted@nosuch"],
        "cannot open 'snaps/promoted@nosuch': dataset does not exist\n",
    );
    cannot(
        &["-i", "@nosuch", "snaps/promoted@one"],
        "cannot send 'snaps/promoted@one': incremental source (snaps/promoted@nosuch) does not \
         exist\n",
    );
    cannot(
        &["-i", "@two", "snaps/promoted@one"],
        "cannot send 'snaps/promoted@one': not an earlier snapshot from the same fs\n",
    );
    // Tools probe an option with a dataset that does not exist: 1, where 2 means unknown.
    cannot(&["-L", "nosuch"], "cannot open 'nosuch': dataset does not exist\n");
    cannot(
        &["-t", "1-0-0-0"],
        "cannot resume send: resume token is corrupt (payload is not hex-encoded)\n",
    );
    cannot(
        &["-R", "snaps/promoted"],
        "cannot send 'snaps/promoted': only snapshots can be sent with their descendants\n",
    );
    for mark in ["nosuch", "#nosuch", "snaps/promoted#nosuch"] {
        cannot(
            &["--redact", mark, "snaps/promoted@one"],
            "cannot send 'snaps/promoted@one': redaction bookmark (snaps/promoted#nosuch) does \
             not exist\n",
        );
    }
    cannot(
        &["-S", "snaps"],
        "cannot send 'snaps': dataset does not have any resumable receive state\n",
    );
    for args in [
        &[][..],
        &["-x", "a@b"],
        &["a@b", "c@d"],
        &["-i", "a", "-I", "b", "c@d"],
        &["-t", "1-0-0-0", "a@b"],
        &["-t", "1-0-0-0", "-c"],
        &["-s", "a@b"],
        &["-X", "a/c", "a@b"],
        &["-S", "-R", "a"],
        &["-S", "-i", "@b", "a"],
        &["--redact", "b", "-R", "a@b"],
        &["--redact", "b", "-I", "@c", "a@b"],
    ] {
        let err = s.fail(2, &[&["zfs", "send"], args].concat());
        assert!(err.contains("usage:"), "{args:?}: {err}");
    }
    s.ok(&["zpool", "export", "snaps"]);
}

/// Packages, what they leave out, and streams that go on.
#[test]
fn packages_and_tokens() {
    let s = Sandbox::new("send-packages");
    let disks = [s.dir("streams"), s.dir("partial")];
    for (pool, dir) in ["streams", "partial"].iter().zip(&disks) {
        let Some(of) = golden(pool) else { return };
        of.unpack(dir);
        let dir = dir.to_str().unwrap();
        s.ok(&["zpool", "import", "-d", dir, "-N", "-f", "-o", "readonly=on", pool]);
    }
    let streams = golden_streams();
    let golden = |wanted: &str| streams.iter().find(|(name, _)| name == wanted).map(|s| &s.1);
    for (args, name) in [
        (&["-R", "-X", "streams/t/z,streams/t/cl", "streams/t@1"][..], "R1"),
        (&["-R", "-I", "@1", "streams/t@3"], "RI13"),
        (&["-p", "streams/t/y@3"], "props"),
    ] {
        let ours = sent(&s, args);
        assert!(golden(name).is_none_or(|theirs| ours == *theirs), "{args:?}");
    }
    let size = s.ok(&["zfs", "send", "-nvPRI", "@1", "streams/t@3"]);
    assert_eq!(size.lines().count(), 8, "{size}");
    let said = s.say(&["zfs", "send", "-nv", "-R", "streams/t@2"]);
    let missing = "cannot send 'streams/t@2': 'streams/t/cl@2' does not exist\n";
    assert_eq!((said.code, said.err.as_str()), (1, missing));
    let said = s.say(&["zfs", "send", "-nvs", "-R", "streams/t@2"]);
    let missing = "WARNING: could not send streams/t/cl@2: does not exist\n";
    assert_eq!((said.code, said.err.as_str()), (0, missing));
    assert_eq!(said.out.lines().count(), 6, "{}", said.out);
    let said = s.say(&["zfs", "send", "-nv", "-R", "-X", "streams/t/cl,x", "streams/t@2"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    // What `-v` says of a package names each snapshot.
    let token = "1-f45e71733-e0-789c636064000310a501c49c50360710a715e5e7a69766a6304081cafa7fa22cf31fbf5200b2d991d4e52765a5269730304c6682a8c3904f4b2b4e2d01c944c0e5d990e4932a4b528b81b4c5a928acfa4bf221ae5871623ac369edd49d1a48f29c60f9bcc4dc54068682c4a292ccc41cfde2a2648792f27cb059005ed7217f";
    let ours = sent(&s, &["-t", token]);
    assert!(golden("resume-dst").is_none_or(|theirs| ours == *theirs));
    let said = s.ok(&["zfs", "send", "-nvP", "-t", token]);
    assert!(said.starts_with("resume token contents:\nnvlist version: 0\n"), "{said}");
    assert!(said.ends_with(&format!("\nsize\t{}\n", ours.len())), "{said}");
    s.ok(&["zpool", "export", "streams"]);
    s.ok(&["zpool", "export", "partial"]);
}

/// Without the key of an encrypted dataset only a raw stream can be sent.
#[test]
fn raw_streams() {
    let s = Sandbox::new("send-raw");
    let Some(of) = golden("crypt2") else { return };
    of.unpack(&s.dir("disks"));
    let disks = s.text("disks");
    s.ok(&["zpool", "import", "-d", &disks, "-N", "-f", "-o", "readonly=on", "crypt2"]);
    let streams = golden_streams();
    for (args, name) in [
        (&["-w", "crypt2/aes-256-gcm@one"][..], "raw-full"),
        (&["-w", "-i", "@one", "crypt2/aes-256-gcm@two"], "raw-incr"),
    ] {
        let ours = sent(&s, args);
        let theirs = streams.iter().find(|(known, _)| known == name);
        assert!(theirs.is_none_or(|theirs| ours == theirs.1), "{args:?}");
    }
    let said = s.say(&["zfs", "send", "crypt2/aes-256-gcm@one"]);
    let message = "cannot send 'crypt2/aes-256-gcm@one': dataset key must be loaded\n";
    assert_eq!((said.code, said.err.as_str()), (1, message));
    let err = s.fail(1, &["zfs", "send", "-p", "crypt2/aes-256-gcm@one"]);
    assert!(err.contains("may not be sent with properties without the raw flag"), "{err}");
    s.ok(&["zpool", "export", "crypt2"]);
}

/// A reader that ends early ends the stream, and the daemon goes on.
#[test]
fn a_pipe_that_breaks() {
    let s = imported("send-broken");
    for _ in 0..5 {
        let mut command = s.command(&["zfs", "send", "snaps/promoted@one"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut pipe = child.stdout.take().unwrap();
        pipe.read_exact(&mut [0; 4000]).unwrap();
        drop(pipe);
        assert!(!child.wait().unwrap().success());
    }
    let full = sent(&s, &["snaps/promoted@one"]);
    assert_eq!(full.len(), 9_548_208);
    s.ok(&["zpool", "export", "snaps"]);
}
