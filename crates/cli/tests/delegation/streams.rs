//! Streams that users send and receive.

use super::*;

/// Streams that users send and receive.
#[test]
fn streams_of_users() {
    if !is_root("streams of users") {
        return;
    }
    let u = prepared("delegation-streams");
    u.s.ok(&["zfs", "snapshot", "tank/a@t"]);
    let send = |args: &[&str]| u.fed_as(USER, &[&["zfs", "send"], args].concat(), b"");
    let refused = |said: &Said, start: &str| {
        let whole = said.code == 1 && said.err.ends_with(": permission denied\n");
        assert!(whole && said.err.starts_with(start), "{said:?}");
    };
    refused(&send(&["tank/a@s"]).0, "cannot send 'tank/a@s'");
    // Streams of encrypted datasets alone, which this one is not.
    u.allow("send:encrypted");
    refused(&send(&["-w", "tank/a@s"]).0, "cannot send 'tank/a@s'");
    u.unallow();
    u.allow("send:raw");
    refused(&send(&["tank/a@s"]).0, "cannot send 'tank/a@s'");
    assert_eq!(send(&["-w", "tank/a@s"]).0.code, 0);
    u.unallow();
    u.allow("send");
    let (said, full) = send(&["tank/a@s"]);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let (_, incremental) = send(&["-i", "@s", "tank/a@t"]);
    u.unallow();
    let before = u.state();
    let receive = |args: &[&str], input: &[u8]| {
        u.fed_as(USER, &[&["zfs", "receive"], args].concat(), input).0
    };
    let new = "cannot receive new filesystem stream";
    // A command, the stream, and what it needs. Each alone is too little.
    let cases: [(&[&str], &[u8], &str); 6] = [
        (&["tank/n"], &full, "receive,create,mount"),
        (&["-o", "compression=off", "tank/n"], &full, "receive,create,mount,compression"),
        (&["-x", "quota", "tank/n"], &full, "receive,create,mount,quota"),
        (&["-o", "com.example:x=1", "tank/n"], &full, "receive,create,mount,userprop"),
        (&["tank/n"], &full, "receive:append,create,mount"),
        (&["-d", "tank/clone"], &full, "receive,create,mount"),
    ];
    for (args, stream, needs) in cases {
        let all: Vec<&str> = needs.split(',').collect();
        for lacking in 0..all.len() {
            let mut some = all.clone();
            some.remove(lacking);
            u.allow(&some.join(","));
            let said = receive(args, stream);
            assert!(said.code == 1 && said.err.contains("permission denied"), "{args:?}: {said:?}");
            u.unallow();
            assert_eq!(u.state(), before, "{args:?}");
        }
        u.allow(needs);
        let said = receive(args, stream);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{args:?}");
        u.unallow();
        u.s.ok(&["zfs", "destroy", "-r", if args[0] == "-d" { "tank/clone/a" } else { "tank/n" }]);
        assert_eq!(u.state(), before, "{args:?}");
    }
    refused(&receive(&["tank/n"], &full), new);
    // Into what is there: what was changed is given up only with `rollback`.
    u.allow("receive,create,mount");
    assert_eq!(receive(&["tank/n"], &full).code, 0);
    u.unallow();
    let into = "cannot receive incremental stream";
    refused(&receive(&["tank/n"], &incremental), into);
    u.allow("receive:append,create,mount,rollback");
    refused(&receive(&["-F", "tank/n"], &incremental), into);
    u.unallow();
    u.allow("receive,create,mount");
    refused(&receive(&["-F", "tank/n"], &incremental), into);
    u.unallow();
    u.allow("receive,create,mount,rollback");
    let said = receive(&["-F", "tank/n"], &incremental);
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    // A snapshot is repaired, and what an interrupted receive left is discarded.
    assert_eq!(receive(&["-c", "tank/n"], &incremental).code, 0);
    u.unallow();
    let said = receive(&["-c", "tank/n"], &incremental);
    assert!(said.code == 1 && said.err.contains("permission denied"), "{said:?}");
    u.allow("receive,create,mount");
    let said = receive(&["-s", "tank/cut"], &full[..full.len() / 2]);
    assert_eq!(said.code, 1, "{said:?}");
    u.unallow();
    refused(&receive(&["-A", "tank/cut"], b""), "cannot abort receive into 'tank/cut'");
    u.allow("destroy,mount");
    assert_eq!(receive(&["-A", "tank/cut"], b"").code, 0);
    u.unallow();
    u.s.fail(1, &["zfs", "list", "tank/cut"]);
    // The creator gets the create-time permissions, and is in the history.
    u.s.ok(&["zfs", "allow", "-c", "snapshot", "tank"]);
    u.allow("receive,create,mount");
    assert_eq!(receive(&["tank/mine"], &full).code, 0);
    u.user_ok(&["zfs", "snapshot", "tank/mine@now"]);
    let history = u.s.ok(&["zpool", "history", "-l", "tank"]);
    let theirs = history
        .lines()
        .any(|line| line.contains("zfs receive tank/mine") && line.contains("[user 1000 "));
    assert!(theirs, "{history}");
    judge(&u.s);
}
