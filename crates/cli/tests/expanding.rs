//! `zpool attach POOL raidzN-M DEVICE`, as an administrator sees it.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, clippy::panic)]

mod common;

use std::process::Stdio;

use cenote::create::{CreateRequest, Force, NewKind, NewVdev, PoolSetting};
use cenote::inspect::zpl::rw::{Caller, New, WritePosition};
use common::{Sandbox, eventually, judge_disks};

const DISK: u64 = 256 << 20;
/// Bytes of data in the pool.
const DATA: usize = 24 << 20;

/// A sparse file of the sandbox.
fn disk(s: &Sandbox, name: &str, bytes: u64) -> String {
    let path = s.dir("disks").join(name);
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A pool `tank` of raidz1 over three disks with data, exported.
fn made(s: &Sandbox, ashift: u64, features: bool) {
    let leaf = |n| NewVdev::new(NewKind::File(disk(s, &format!("d{n}"), DISK).into()));
    let raidz =
        NewVdev::new(NewKind::Raidz { nparity: 1 }).with_children((0..3).map(leaf).collect());
    let mut request = CreateRequest {
        force: Force::ALL,
        settings: vec![PoolSetting::Stored("ashift", ashift)],
        ..CreateRequest::new("tank", vec![raidz])
    };
    request.features.retain(|f| features || f.name() != "raidz_expansion");
    let pool = testkit::engine().create_pool(&request).unwrap().unwrap();
    let fs = pool.dataset("tank").unwrap().open_fs().unwrap();
    let by = Caller::root();
    let file = fs.make(&by, fs.root(), b"file", &New::file(0o644)).unwrap().id;
    let mut rng = testkit::Rng::new(7);
    let data: Vec<u8> = (0..DATA / 8).flat_map(|_| rng.number().to_le_bytes()).collect();
    fs.write(&by, file, WritePosition::Offset(0), &data).unwrap();
    drop(fs);
    pool.export().unwrap();
}

fn import(s: &Sandbox) {
    s.ok(&["zpool", "import", "-N", "-d", &s.text("disks"), "tank"]);
}

fn status(s: &Sandbox) -> String {
    s.ok(&["zpool", "status", "tank"])
}

/// The lines about the expansion, the words of the second one split.
fn lines(status: &str) -> Vec<String> {
    let mut lines = status.lines().skip_while(|l| !l.starts_with("expand: "));
    let first = lines.next().map(str::to_owned);
    let second = lines.next().filter(|l| l.starts_with('\t')).unwrap_or_default();
    first.into_iter().chain(second.split_whitespace().map(str::to_owned)).collect()
}

/// Bytes copied, from the report as JSON.
fn copied(s: &Sandbox) -> (u64, String) {
    let json = s.ok(&["zpool", "status", "-jp", "tank"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let stats = &json["pools"]["tank"]["raidz_expand_stats"];
    let number = |key: &str| stats[key].as_str().unwrap_or_default().parse().unwrap_or(0);
    assert!(number("start_time") > 0, "{stats}");
    (number("reflowed"), stats["state"].as_str().unwrap_or_default().to_owned())
}

/// Copying stops after some bytes, or goes on.
fn hold_after(s: &Sandbox, bytes: u64) {
    s.ok(&["tune", &format!("raidz_expand_max_reflow_bytes={bytes}")]);
}

/// What the user did: added a disk to a raidz vdev, looked at it in between, exported the pool,
/// and added another one later.
#[test]
fn a_raidz_vdev_is_expanded() {
    let s = Sandbox::new("expanding");
    made(&s, 12, true);
    let (d3, d4) = (disk(&s, "d3", DISK), disk(&s, "d4", DISK));
    import(&s);
    assert!(!status(&s).contains("expand:"));
    let size = |s: &Sandbox| -> u64 {
        s.ok(&["zpool", "list", "-Hpo", "size", "tank"]).trim().parse().unwrap()
    };
    let before = size(&s);
    s.ok(&["tune", "raidz_expand_max_copy_bytes=1048576"]);
    hold_after(&s, 24 << 20);
    s.ok(&["zpool", "attach", "tank", "raidz1-0", &d3]);
    eventually("blocks move", || copied(&s).0 > 0);
    // In the middle.
    let shown = status(&s);
    let found = lines(&shown);
    assert!(found[0].starts_with("expand: expansion of raidz1-0 in progress since "), "{shown}");
    assert_eq!((found[2].as_str(), found[4].as_str()), ("/", "copied"), "{shown}");
    assert!(found[5] == "at" && found[6].ends_with("/s,") && found[7].ends_with('%'), "{shown}");
    assert_eq!(found[8], "done,", "{shown}");
    assert!(found.ends_with(&["to".to_owned(), "go".to_owned()]), "{shown}");
    assert!(shown.contains("d3") && shown.contains(" state: ONLINE\n"), "{shown}");
    assert!(shown.contains("errors: No known data errors"), "{shown}");
    assert_eq!(copied(&s).1, "SCANNING");
    assert_eq!(size(&s), before, "the space comes at the end");
    let feature = ["zpool", "get", "-Ho", "value", "feature@raidz_expansion", "tank"];
    assert_eq!(s.ok(&feature), "active\n");
    for args in
        [&["zpool", "attach", "tank", "raidz1-0", &d4][..], &["zpool", "checkpoint", "tank"]]
    {
        let text = s.fail(1, args);
        assert!(text.contains("raidz expansion in progress"), "{args:?}: {text}");
    }
    let mut waits = s
        .command(&["zpool", "wait", "-t", "raidz_expand", "tank"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // With an interval each line has what is left.
    let mut shows = s
        .command(&["zpool", "wait", "-Hpt", "raidz_expand", "tank", "0.1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    s.ok(&["zpool", "wait", "-t", "scrub", "tank"]);
    assert!(waits.try_wait().unwrap().is_none(), "the wait ended before the expansion");
    hold_after(&s, 0);
    assert!(waits.wait().unwrap().success());
    assert!(shows.wait().unwrap().success());
    let mut left = String::new();
    std::io::Read::read_to_string(&mut shows.stdout.take().unwrap(), &mut left).unwrap();
    let left: Vec<u64> = left.lines().map(|l| l.parse().unwrap()).collect();
    // What there is to copy grows a little with each txg.
    assert!(left[0] > 0 && left.ends_with(&[0]), "{left:?}");
    // Afterwards.
    let shown = status(&s);
    let found = lines(&shown);
    assert!(found[0].starts_with("expand: expanded raidz1-0 copied "), "{shown}");
    assert!(found[0].contains(" in 00:00:") && found[0].contains(", on "), "{shown}");
    assert_eq!(copied(&s).1, "FINISHED");
    assert!(size(&s) > before + DISK / 2, "{} {before}", size(&s));
    s.ok(&["zpool", "wait", "-t", "scrub", "tank"]);
    assert!(status(&s).contains("scan: scrub repaired 0B in "), "{}", status(&s));
    let history = s.ok(&["zpool", "history", "-i", "tank"]);
    assert!(history.contains(&format!("zpool attach tank raidz1-0 {d3}")), "{history}");
    assert!(history.contains("raidz vdev expansion started"), "{history}");
    assert!(s.ok(&["zpool", "events", "-H", "tank"]).contains("sysevent.fs.zfs.vdev_attach"));
    // Another disk, across an export, and with a wait.
    hold_after(&s, 24 << 20);
    s.ok(&["zpool", "attach", "tank", "raidz1-0", &d4]);
    eventually("blocks move again", || {
        let (bytes, state) = copied(&s);
        state == "SCANNING" && bytes > 0
    });
    let (first, started) = (copied(&s).0, lines(&status(&s))[0].clone());
    s.ok(&["zpool", "export", "tank"]);
    import(&s);
    assert!(copied(&s).0 >= first, "progress was lost");
    assert_eq!(lines(&status(&s))[0], started);
    hold_after(&s, 0);
    s.ok(&["zpool", "wait", "-t", "raidz_expand,scrub", "tank"]);
    assert!(lines(&status(&s))[0].starts_with("expand: expanded raidz1-0 copied "));
    // `-w` waits itself.
    let d5 = disk(&s, "d5", DISK);
    s.ok(&["zpool", "attach", "-w", "tank", "raidz1-0", &d5]);
    assert_eq!(copied(&s).1, "FINISHED");
    s.ok(&["zpool", "wait", "-t", "scrub", "tank"]);
    s.ok(&["zpool", "export", "tank"]);
    import(&s);
    let shown = status(&s);
    assert!(lines(&shown)[0].starts_with("expand: expanded raidz1-0 copied "), "{shown}");
    assert!((0..6).all(|n| shown.contains(&format!("d{n}"))), "{shown}");
    s.ok(&["zpool", "export", "tank"]);
    judge_disks(&s);
    s.stop();
}

fn attach<'a>(words: &[&'a str]) -> Vec<&'a str> {
    ["zpool", "attach"].iter().chain(words).copied().collect()
}

/// What cannot be is refused before anything is written to the new device.
#[test]
fn what_is_no_expansion() {
    let s = Sandbox::new("expanding-refused");
    made(&s, 9, true);
    import(&s);
    let (new, small) = (disk(&s, "new", DISK), disk(&s, "small", DISK / 2));
    for (words, begin) in [
        (&["tank"][..], "missing <device> specification\n"),
        (&["tank", "raidz1-0"], "missing <new_device> specification\n"),
        (&["tank", "raidz1-0", &new, &small], "too many arguments\n"),
        (&["-x", "tank", "raidz1-0", &new], "invalid option 'x'\n"),
    ] {
        let text = s.fail(2, &attach(words));
        assert!(text.starts_with(begin) && text.contains("\tattach [-fsw]"), "{words:?}: {text}");
    }
    let to = |dev: &str, vdev: &str, why: &str| format!("cannot attach {dev} to {vdev}: {why}\n");
    let sequential = "only mirror and dRAID vdevs support sequential reconstruction";
    let sector = "new device has a different optimal sector size; use the option '-o ashift=N' to \
                  override the optimal size";
    for (words, told) in [
        (&["tank", "raidz1-1", &new][..], to(&new, "raidz1-1", "no such device in pool")),
        (&["tank", "raidz2-0", &new], to(&new, "raidz2-0", "no such device in pool")),
        (&["-s", "tank", "raidz1-0", &new], to(&new, "raidz1-0", sequential)),
        (&["-w", "tank", "raidz1-0", &small], to(&small, "raidz1-0", "device is too small")),
        (&["-o", "ashift=12", "tank", "raidz1-0", &new], to(&new, "raidz1-0", sector)),
        (&["nosuch", "raidz1-0", &new], "cannot open 'nosuch': no such pool\n".to_owned()),
    ] {
        assert_eq!(s.fail(1, &attach(words)), told, "{words:?}");
    }
    let d0 = s.text("disks/d0");
    let active = s.fail(1, &attach(&["-f", "tank", "raidz1-0", &d0]));
    assert!(active.contains(&format!("{d0} is part of active pool 'tank'")), "{active}");
    // A child of the vdev is none to attach to, and the vdev is none to replace.
    let child = s.fail(1, &attach(&["tank", &d0, &new]));
    assert!(child.starts_with(&format!("cannot attach {new} to {d0}: ")), "{child}");
    let whole = s.fail(1, &["zpool", "replace", "tank", "raidz1-0", &new]);
    assert!(whole.starts_with(&format!("cannot replace raidz1-0 with {new}: ")), "{whole}");
    // Nothing came of all this.
    for device in [&new, &small] {
        let bytes = std::fs::read(device).unwrap();
        assert!(bytes.iter().all(|&b| b == 0), "{device} was written to");
    }
    assert!(!status(&s).contains("expand:"));
    // A checkpoint.
    s.ok(&["zpool", "checkpoint", "tank"]);
    let text = s.fail(1, &attach(&["tank", "raidz1-0", &new]));
    assert!(text.starts_with(&format!("cannot attach {new} to raidz1-0: ")), "{text}");
    s.ok(&["zpool", "checkpoint", "-d", "-w", "tank"]);
    // A device that is away.
    s.ok(&["zpool", "offline", "tank", &d0]);
    let text = s.fail(1, &attach(&["tank", "raidz1-0", &new]));
    let why = "the raidz vdev is not healthy, or is being resilvered";
    assert_eq!(text, to(&new, "raidz1-0", why));
    s.ok(&["zpool", "online", "tank", &d0]);
    s.ok(&["zpool", "wait", "-t", "resilver", "tank"]);
    // A device of another pool: only with -f.
    s.ok(&["zpool", "create", "-O", "mountpoint=none", "other", &new]);
    s.ok(&["zpool", "export", "other"]);
    let text = s.fail(1, &attach(&["tank", "raidz1-0", &new]));
    assert!(text.contains(&format!("{new} is part of exported pool 'other'")), "{text}");
    s.ok(&attach(&["-f", "-w", "tank", "raidz1-0", &new]));
    assert!(lines(&status(&s))[0].starts_with("expand: expanded raidz1-0 copied "));
    s.ok(&["zpool", "wait", "-t", "scrub", "tank"]);
    s.ok(&["zpool", "export", "tank"]);
    judge_disks(&s);
    s.stop();
}

/// Pools without the feature say which one is missing; enabled, it works.
#[test]
fn without_the_feature() {
    let s = Sandbox::new("expanding-feature");
    made(&s, 12, false);
    import(&s);
    let new = disk(&s, "new", DISK);
    let text = s.fail(1, &["zpool", "attach", "tank", "raidz1-0", &new]);
    let why = "raidz_expansion feature must be enabled in order to attach a device to raidz";
    assert_eq!(text, format!("cannot attach {new} to raidz1-0: {why}\n"));
    assert!(std::fs::read(&new).unwrap().iter().all(|&b| b == 0), "it was written to");
    s.ok(&["zpool", "set", "feature@raidz_expansion=enabled", "tank"]);
    s.ok(&["zpool", "attach", "-w", "tank", "raidz1-0", &new]);
    s.ok(&["zpool", "wait", "-t", "scrub", "tank"]);
    s.ok(&["zpool", "export", "tank"]);
    judge_disks(&s);
    s.stop();
}
