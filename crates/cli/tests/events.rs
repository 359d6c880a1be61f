//! Stories of events: what happened to pools, the programs that follow it, and devices that
//! fail too often.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;

use common::{Sandbox, can_mount, eventually, judge_disks};

/// Files of 128 MiB in the sandbox's `disks`.
fn files(s: &Sandbox, count: usize) -> Vec<String> {
    let dir = s.dir("disks");
    let one = |n: usize| {
        let path: PathBuf = dir.join(format!("d{n}"));
        std::fs::File::create(&path).unwrap().set_len(128 << 20).unwrap();
        path.to_str().unwrap().to_owned()
    };
    (0..count).map(one).collect()
}

/// The classes of a listing, without their first parts.
fn classes(listing: &str) -> Vec<&str> {
    listing.lines().filter_map(|l| l.rsplit_once('.').map(|(_, class)| class)).collect()
}

/// Creates, exports, imports and clears, then asks what happened: everything is there in its
/// order, for one pool or for all, and can be forgotten.
#[test]
fn what_happened_is_listed() {
    let s = Sandbox::new("events-list");
    let disks = files(&s, 3);
    s.ok(&["zpool", "create", "-m", "none", "tank", "mirror", &disks[0], &disks[1]]);
    s.ok(&["zpool", "create", "-m", "none", "other", &disks[2]]);
    s.ok(&["zpool", "clear", "tank"]);
    s.ok(&["zpool", "export", "tank"]);
    s.ok(&["zpool", "import", "-d", &s.text("disks"), "tank"]);
    let listing = s.ok(&["zpool", "events", "tank"]);
    assert!(listing.starts_with("TIME                           CLASS\n"), "{listing}");
    let seen: Vec<&str> = classes(&listing).into_iter().filter(|c| *c != "history_event").collect();
    assert_eq!(seen, ["pool_import", "pool_create", "vdev_clear", "pool_export", "pool_import"]);
    let other = s.ok(&["zpool", "events", "-H", "other"]);
    assert!(!other.contains("TIME") && other.lines().all(|l| l.contains('\t')), "{other}");
    let values = s.ok(&["zpool", "events", "-v", "tank"]);
    for line in [
        "        class = \"sysevent.fs.zfs.vdev_clear\"",
        "        pool = \"tank\"",
        "        eid = 0x1",
    ] {
        assert!(values.lines().any(|l| l == line), "{line}\n{values}");
    }
    assert!(values.contains("        vdev_type = \"root\"\n"), "{values}");
    assert!(values.contains("        history_command = \"zpool clear tank\"\n"), "{values}");
    let cleared = s.ok(&["zpool", "events", "-c"]);
    assert!(cleared.starts_with("cleared ") && !cleared.starts_with("cleared 0"), "{cleared}");
    assert_eq!(s.ok(&["zpool", "events", "-H"]), "");
    assert_eq!(s.ok(&["zpool", "events", "-c"]), "cleared 0 events\n");
    s.fail(2, &["zpool", "events", "tank", "other"]);
    s.fail(2, &["zpool", "events", "-c", "tank"]);
    s.ok(&["daemon", "stop"]);
}

/// A follower gets an event that happens after it started.
#[test]
fn a_follower_sees_what_comes() {
    use std::io::{BufRead, BufReader};
    let s = Sandbox::new("events-follow");
    let disk = &files(&s, 1)[0];
    s.ok(&["zpool", "create", "-m", "none", "tank", disk]);
    s.ok(&["zpool", "events", "-c"]);
    let mut follower = s.command(&["zpool", "events", "-Hf"]);
    let mut follower = follower.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    s.ok(&["zpool", "reguid", "tank"]);
    loop {
        let line = lines.next().expect("the follower ended").unwrap();
        if line.ends_with("\tsysevent.fs.zfs.pool_reguid") {
            break;
        }
    }
    follower.kill().unwrap();
    follower.wait().unwrap();
    s.ok(&["daemon", "stop"]);
}

/// An administrator's program runs on the events that its name chooses; one that other users
/// could have changed does not.
#[test]
fn zedlets_run_on_their_events() {
    let s = Sandbox::new("events-zedlets");
    let (disk, zed, out) = (&files(&s, 1)[0], s.dir("zed.d"), s.text("out"));
    std::fs::set_permissions(&zed, std::fs::Permissions::from_mode(0o755)).unwrap();
    let zedlet = |name: &str, mode: u32| {
        let body = format!("#!/bin/sh\necho {name} $ZEVENT_POOL $ZEVENT_SUBCLASS >>{out}\n");
        std::fs::write(zed.join(name), body).unwrap();
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(zed.join(name), mode).unwrap();
    };
    zedlet("pool_reguid-a.sh", 0o755);
    zedlet("pool_reguid-b.sh", 0o777);
    zedlet("pool_destroy-c.sh", 0o700);
    let mut start = s.command(&["daemon", "start"]);
    assert!(start.env("CENOTE_ZEDLETS", &zed).status().unwrap().success());
    s.ok(&["zpool", "create", "-m", "none", "tank", disk]);
    s.ok(&["zpool", "reguid", "tank"]);
    s.ok(&["zpool", "destroy", "tank"]);
    let text = || std::fs::read_to_string(&out).unwrap_or_default();
    eventually("a zedlet did not run", || text().contains("pool_destroy-c.sh"));
    assert_eq!(text(), "pool_reguid-a.sh tank pool_reguid\npool_destroy-c.sh tank pool_destroy\n");
    s.ok(&["daemon", "stop"]);
}

/// A disk that returns wrong bytes again and again: after as many errors as its property
/// says, the daemon calls it degraded and says so in `status` and `events`; the files are
/// right all the time. `zpool clear` gives it another chance.
#[test]
fn a_disk_with_too_many_checksum_errors_is_degraded() {
    if !can_mount("checksum errors") {
        return;
    }
    let s = Sandbox::new("events-diagnosis");
    let disks = files(&s, 2);
    let mountpoint = format!("mountpoint={}", s.text("mnt"));
    // Each read goes to the disks.
    let create = ["zpool", "create", "-O", &mountpoint, "-O", "primarycache=metadata"];
    let plain = ["-O", "compression=off", "-O", "recordsize=4k"];
    s.ok(&[&create[..], &plain, &["tank", "mirror", &disks[0], &disks[1]]].concat());
    let content: Vec<u8> = b"CENOTE-VICTIM-".iter().copied().cycle().take(400_000).collect();
    std::fs::write(s.path("mnt/file"), &content).unwrap();
    let get = ["zpool", "get", "-H", "-o", "value,source", "checksum_n", "tank", &disks[1]];
    assert_eq!(s.ok(&get), "-\tdefault\n");
    s.ok(&["zpool", "set", "checksum_n=5", "tank", &disks[1]]);
    assert_eq!(s.ok(&get), "5\tlocal\n");
    let refused = s.fail(1, &["zpool", "set", "checksum_n=many", "tank", &disks[1]]);
    assert!(refused.contains("bad numeric value 'many'"), "{refused}");
    s.ok(&["zpool", "export", "tank"]);
    let mut bytes = std::fs::read(&disks[1]).unwrap();
    for block in bytes.chunks_mut(4096).filter(|b| b.windows(14).any(|w| w == b"CENOTE-VICTIM-")) {
        block[64..128].fill(0xa5);
    }
    std::fs::write(&disks[1], bytes).unwrap();
    s.ok(&["zpool", "import", "-d", &s.text("disks"), "tank"]);
    let state = |word: &str| {
        let status = s.ok(&["zpool", "status", "tank"]);
        let line = status.lines().find(|l| l.contains(&disks[1])).unwrap().to_owned();
        line.contains(word)
    };
    // The mirror's other side serves some of the reads.
    eventually("the disk is not degraded", || {
        rustix::fs::fadvise(
            std::fs::File::open(s.path("mnt/file")).unwrap(),
            0,
            None,
            rustix::fs::Advice::DontNeed,
        )
        .unwrap();
        assert!(std::fs::read(s.path("mnt/file")).unwrap() == content);
        state("DEGRADED")
    });
    assert!(state("too many errors"));
    let events = s.ok(&["zpool", "events", "-v", "tank"]);
    assert!(events.matches("ereport.fs.zfs.checksum\"").count() >= 5, "{events}");
    assert!(events.contains("        vdev_state = \"DEGRADED\" (0x6)"), "{events}");
    s.ok(&["zpool", "clear", "tank", &disks[1]]);
    assert!(state("ONLINE"));
    s.ok(&["zpool", "export", "tank"]);
    judge_disks(&s);
    s.ok(&["daemon", "stop"]);
}
