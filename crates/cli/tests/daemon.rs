//! The daemon's life, with a runtime directory of its own: started on demand,
//! alone in its directory, deaf to garbage, gone when told, back after a kill.

mod common;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use base::rt;
use common::{Sandbox, is_alive};

#[test]
fn life_cycle() {
    let s = Sandbox::new("life");
    assert_eq!(s.run(&["daemon", "status"]).status.code(), Some(1));
    // Looking needs no daemon.
    assert_eq!(s.ok(&["zpool", "list"]), "no pools available\n");
    assert!(!s.path("run/socket").exists());

    assert!(s.ok(&["daemon", "start"]).starts_with("cenote daemon started, pid "));
    let mode = std::fs::metadata(s.path("run/socket")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(s.ok(&["daemon", "start"]).starts_with("cenote daemon already running, pid "));
    let second = s.run(&["daemon", "start", "--foreground"]);
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("already running"));

    // A killed daemon leaves its socket; the next start takes over.
    let pid = s.pid();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    common::eventually("it is not killed", || !is_alive(pid.as_raw_nonzero().get()));
    assert!(s.ok(&["daemon", "start"]).starts_with("cenote daemon started, pid "));
    assert_ne!(s.pid(), pid.as_raw_nonzero().get());
    s.ok(&["daemon", "stop"]);
    assert!(!s.path("run/socket").exists());
    assert_eq!(s.run(&["daemon", "status"]).status.code(), Some(1));
}

/// A daemon was killed and its commands given again at once. The kernel took the process
/// down piece by piece: its socket still took connections, to break them, and its lock was
/// held a little longer than that. The first command was "refused by the daemon", the next
/// found it "already running". Both wait for the end of what is dying.
#[test]
fn a_dying_daemon_is_waited_for() {
    let s = Sandbox::new("dying");
    s.ok(&["daemon", "start"]);
    s.ok(&["daemon", "stop"]);
    let lock = std::fs::File::options().write(true).open(s.path("run/lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let socket = UnixListener::bind(s.path("run/socket")).unwrap();
    // The sleeps are the times that the dying daemon takes for each step.
    let dying = rt::spawn("dying", move || {
        rt::sleep(Duration::from_millis(300));
        socket.set_nonblocking(true).unwrap();
        for _ in 0..300 {
            let _broken = socket.accept();
            rt::sleep(Duration::from_millis(1));
        }
        drop(socket);
        rt::sleep(Duration::from_millis(300));
        drop(lock);
    })
    .unwrap();
    let looked = s.say(&["daemon", "status"]);
    assert!(looked.code == 1 && looked.out.starts_with("no daemon is running"), "{looked:?}");
    assert!(s.ok(&["daemon", "start"]).starts_with("cenote daemon started, pid "));
    dying.join().unwrap();
    assert_eq!(s.ok(&["zpool", "list"]), "no pools available\n");
    s.stop();
}

#[test]
fn garbage_ends_a_connection_and_nothing_else() {
    let s = Sandbox::new("garbage");
    s.ok(&["daemon", "start"]);
    for garbage in [&b"\xff\xff\xff\xff"[..], b"\x05\0\0\0hello", b"\x02\0\0\0{}", b"\x01"] {
        let mut stream = UnixStream::connect(s.path("run/socket")).unwrap();
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
