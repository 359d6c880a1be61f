//! Stories of commands that said what was not so.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use common::{Sandbox, can_mount, judge_disks};

/// Sparse files in the sandbox's `disks`.
fn files(s: &Sandbox, names: &[&str]) -> Vec<String> {
    let dir = s.dir("disks");
    let one = |name: &&str| {
        let path: PathBuf = dir.join(name);
        std::fs::File::create(&path).unwrap().set_len(128 << 20).unwrap();
        path.to_str().unwrap().to_owned()
    };
    names.iter().map(one).collect()
}

/// Overwrites each sector of a disk that holds the words.
fn deface(disk: &str, words: &[u8]) {
    let mut bytes = std::fs::read(disk).unwrap();
    let mut found = 0;
    for at in (0..bytes.len()).step_by(4096) {
        if bytes[at..at + 4096].windows(words.len()).any(|w| w == words) {
            bytes[at + 64..at + 1024].fill(0xa5);
            found += 1;
        }
    }
    assert!(found > 0, "the file's blocks were not found");
    std::fs::write(disk, bytes).unwrap();
}

/// What the user did: `cat` of a file on a damaged disk gave EIO, and `zpool status -v`
/// said "No known data errors", "Applications are unaffected".
#[test]
fn damaged_files_are_listed() {
    if !can_mount("damaged files") {
        return;
    }
    let s = Sandbox::new("honest-damage");
    let disk = &files(&s, &["disk"])[0];
    let mnt = s.text("mnt");
    let mountpoint = format!("mountpoint={mnt}");
    s.ok(&["zpool", "create", "-O", &mountpoint, "-O", "compression=off", "tank", disk]);
    s.ok(&["zfs", "create", "tank/fs"]);
    let content = |words: &str| words.repeat(200_000 / words.len());
    std::fs::create_dir(s.path("mnt/fs/dir")).unwrap();
    std::fs::write(s.path("mnt/fs/dir/victim"), content("CENOTE-VICTIM-ONE")).unwrap();
    std::fs::write(s.path("mnt/fs/other"), content("CENOTE-VICTIM-TWO")).unwrap();
    std::fs::write(s.path("mnt/fs/whole"), content("CENOTE-IS-WHOLE")).unwrap();
    s.ok(&["zfs", "snapshot", "tank/fs@snap"]);
    s.ok(&["zpool", "export", "tank"]);
    deface(disk, b"CENOTE-VICTIM-ONE");
    deface(disk, b"CENOTE-VICTIM-TWO");
    s.ok(&["zpool", "import", "-d", disk, "tank"]);
    let errors = |report: &str| report[report.find("errors: ").unwrap()..].to_owned();
    let none = "errors: No known data errors\n";
    assert_eq!(errors(&s.ok(&["zpool", "status", "-v", "tank"])), none, "nobody has met it");
    for name in ["dir/victim", "other"] {
        let e = std::fs::read(s.path("mnt/fs").join(name)).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(5), "{name}");
    }
    assert!(std::fs::read(s.path("mnt/fs/whole")).is_ok());
    // Two files, each in the file system and in its snapshot.
    let brief = s.ok(&["zpool", "status", "tank"]);
    assert_eq!(errors(&brief), "errors: 4 data errors, use '-v' for a list\n");
    assert!(brief.contains("ZFS-8000-8A") && brief.contains("Applications may be affected"));
    let list = |s: &Sandbox| {
        let report = errors(&s.ok(&["zpool", "status", "-v", "tank"]));
        let head = "errors: Permanent errors have been detected in the following files:\n\n";
        let mut names: Vec<String> =
            report.strip_prefix(head).unwrap().lines().map(|l| l.trim().to_owned()).collect();
        names.sort();
        names
    };
    let at = |name: &str| format!("{mnt}/fs/{name}");
    let wanted = [
        at("dir/victim"),
        at("other"),
        "tank/fs@snap:/dir/victim".into(),
        "tank/fs@snap:/other".into(),
    ];
    let mut wanted = wanted.to_vec();
    wanted.sort();
    assert_eq!(list(&s), wanted);
    assert_eq!(s.ok(&["zpool", "status", "-x"]), brief);
    // `zpool clear` forgets the devices' errors; these files stay as they are.
    s.ok(&["zpool", "clear", "tank"]);
    assert_eq!(list(&s), wanted);
    // What is not mounted is named by its dataset.
    s.ok(&["zfs", "unmount", "tank/fs"]);
    assert!(list(&s).contains(&"tank/fs:/other".to_owned()), "{:?}", list(&s));
    s.ok(&["zfs", "mount", "tank/fs"]);
    // Written anew, the file is whole; the snapshot's is not.
    std::fs::write(s.path("mnt/fs/other"), "short").unwrap();
    s.ok(&["zpool", "sync", "tank"]);
    let left = list(&s);
    assert!(!left.contains(&at("other")) && left.contains(&"tank/fs@snap:/other".to_owned()));
    std::fs::remove_file(s.path("mnt/fs/dir/victim")).unwrap();
    s.ok(&["zfs", "destroy", "tank/fs@snap"]);
    s.ok(&["zpool", "sync", "tank"]);
    assert_eq!(errors(&s.ok(&["zpool", "status", "-v", "tank"])), none);
    s.ok(&["zpool", "export", "tank"]);
    s.stop();
    judge_disks(&s);
}

/// What the user did: set a comment, wrote, added a special vdev, and saw none of it in
/// `zpool get` and `zpool status` before the next import.
#[test]
fn what_changed_shows_at_once() {
    let s = Sandbox::new("honest-stale");
    let disks = files(&s, &["a", "b", "c"]);
    s.ok(&["zpool", "create", "-O", "mountpoint=none", "tank", &disks[0]]);
    let get = |property: &str| s.ok(&["zpool", "get", "-Ho", "value", property, "tank"]);
    assert_eq!(get("comment"), "-\n");
    s.ok(&["zpool", "set", "comment=my pool", "tank"]);
    s.ok(&["zpool", "set", "compatibility=legacy", "tank"]);
    assert_eq!((get("comment"), get("compatibility")), ("my pool\n".into(), "legacy\n".into()));
    s.ok(&["zpool", "set", "compatibility=off", "tank"]);
    let feature = "feature@filesystem_limits";
    assert_eq!(get(feature), "enabled\n");
    s.ok(&["zfs", "set", "snapshot_limit=5", "tank"]);
    assert_eq!(get(feature), "active\n");
    let all = s.ok(&["zpool", "get", "-H", "all", "tank"]);
    assert!(all.contains(&format!("tank\t{feature}\tactive\tlocal\n")), "{all}");
    s.ok(&["zpool", "add", "-f", "tank", "special", &disks[1]]);
    let status = s.ok(&["zpool", "status", "tank"]);
    assert!(status.contains("\tspecial\t\n"), "{status}");
    assert_eq!(get("feature@allocation_classes"), "active\n");
    // The next change of the tree keeps the class.
    s.ok(&["zpool", "add", "-f", "tank", "log", &disks[2]]);
    s.ok(&["zpool", "remove", "tank", &disks[2]]);
    assert!(s.ok(&["zpool", "status", "tank"]).contains("\tspecial\t\n"));
    s.ok(&["zpool", "export", "tank"]);
    s.stop();
    judge_disks(&s);
}

/// What the user did: looked at another user's pool under a temporary name, and found that the
/// pool was called so from then on.
#[test]
fn a_temporary_name_ends_with_the_export() {
    let s = Sandbox::new("honest-names");
    let disks = files(&s, &["a"]);
    let dir = s.text("disks");
    s.ok(&["zpool", "create", "-O", "mountpoint=none", "-t", "short", "tank", &disks[0]]);
    assert_eq!(s.ok(&["zpool", "list", "-Ho", "name"]), "short\n");
    s.ok(&["zfs", "create", "-o", "mountpoint=none", "short/fs"]);
    s.ok(&["zfs", "snapshot", "-r", "short@s"]);
    s.ok(&["zpool", "export", "short"]);
    assert!(s.ok(&["zpool", "import", "-d", &dir]).contains("  pool: tank\n"));
    s.ok(&["zpool", "import", "-d", &dir, "-t", "tank", "other"]);
    assert_eq!(s.ok(&["zfs", "list", "-Ho", "name"]), "other\nother/fs\n");
    s.ok(&["zfs", "create", "-o", "mountpoint=none", "other/fs/more"]);
    s.ok(&["zpool", "set", "comment=x", "other"]);
    s.ok(&["zpool", "export", "other"]);
    assert!(s.ok(&["zpool", "import", "-d", &dir]).contains("pool: tank\n"));
    // Without -t the new name lasts.
    s.ok(&["zpool", "import", "-d", &dir, "tank", "tank"]);
    assert_eq!(s.ok(&["zfs", "list", "-Ho", "name"]), "tank\ntank/fs\ntank/fs/more\n");
    s.ok(&["zpool", "export", "tank"]);
    s.ok(&["zpool", "import", "-d", &dir, "tank", "new"]);
    s.ok(&["zpool", "export", "new"]);
    assert!(s.ok(&["zpool", "import", "-d", &dir]).contains("pool: new\n"));
    s.ok(&["zpool", "import", "-d", &dir, "new", "tank"]);
    s.ok(&["zpool", "export", "tank"]);
    s.stop();
    judge_disks(&s);
}

/// What the user did: `zpool remove tank CACHE`, and read "no such device in pool".
#[test]
fn cache_devices_and_spares_leave() {
    let s = Sandbox::new("honest-aux");
    let d = files(&s, &["a", "b", "c", "d"]);
    let args = ["zpool", "create", "-O", "mountpoint=none", "tank"];
    s.ok(&[&args[..], &[&d[0], "cache", &d[1], "spare", &d[2], &d[3]]].concat());
    let status = || s.ok(&["zpool", "status", "tank"]);
    assert!(status().contains("\tcache\n") && status().contains("\tspares\n"));
    s.ok(&["zpool", "remove", "tank", &d[1]]);
    s.ok(&["zpool", "remove", "tank", "c"]);
    assert!(!status().contains("\tcache\n") && status().contains("\tspares\n"), "{}", status());
    assert!(!status().contains(&d[2]) && status().contains(&d[3]));
    assert!(s.fail(1, &["zpool", "remove", "tank", &d[1]]).contains("no such device in pool"));
    // Both are free for other uses.
    s.ok(&["zpool", "add", "tank", "spare", &d[1]]);
    s.ok(&["zpool", "remove", "tank", &d[1], &d[3]]);
    assert!(!status().contains("\tspares\n"));
    s.ok(&["zpool", "export", "tank"]);
    s.ok(&["zpool", "import", "-d", &s.text("disks"), "tank"]);
    assert!(!status().contains("\tspares\n") && !status().contains("\tcache\n"));
    s.ok(&["zpool", "export", "tank"]);
    s.stop();
    judge_disks(&s);
}

/// What the user did: brought a wiped device online, and nothing was said.
#[test]
fn a_wiped_device_is_not_online() {
    let s = Sandbox::new("honest-online");
    let d = files(&s, &["a", "b"]);
    s.ok(&["zpool", "create", "-O", "mountpoint=none", "tank", "mirror", &d[0], &d[1]]);
    s.ok(&["zpool", "export", "tank"]);
    let wiped = std::fs::File::create(&d[1]).unwrap();
    wiped.set_len(128 << 20).unwrap();
    s.ok(&["zpool", "import", "-d", &d[0], "tank"]);
    let said = s.say(&["zpool", "online", "tank", &d[1]]);
    let warning = format!(
        "warning: device '{}' onlined, but remains in faulted state\nuse 'zpool replace' to \
         replace devices that are no longer present\n",
        d[1]
    );
    // As OpenZFS 2.4.4 has it.
    assert_eq!((said.code, said.out), (0, warning), "{}", said.err);
    assert_eq!(
        s.fail(1, &["zpool", "online", "tank", "nosuch"]),
        "couldn't find device \"nosuch\" in pool \"tank\"\n"
    );
    // A device that is there is taken back without a word.
    assert_eq!(s.ok(&["zpool", "online", "tank", &d[0]]), "");
    // Properties of vdevs: of the device, where all of the pool's were printed.
    let get = |args: &[&str]| s.ok(&[&["zpool", "get", "-H"], args].concat());
    assert_eq!(
        get(&["state,path", "tank", &d[1]]),
        format!("{0}\tstate\tUNAVAIL\t-\n{0}\tpath\t{0}\t-\n", d[1])
    );
    assert!(get(&["all", "tank", "mirror-0"]).lines().all(|l| l.starts_with("mirror-0\t")));
    assert_eq!(get(&["state", "tank", "all-vdevs"]).lines().count(), 4);
    assert!(
        s.fail(2, &["zpool", "get", "size", "tank", "nosuch"]).contains("\tnosuch (unknown)\n")
    );
    s.ok(&["zpool", "export", "tank"]);
}

/// What the user did: gave options, and nothing happened.
#[test]
fn what_is_not_done_is_refused() {
    let s = Sandbox::new("honest-refusals");
    let disks = files(&s, &["a"]);
    s.ok(&["zpool", "create", "-O", "mountpoint=none", "tank", &disks[0]]);
    let not_yet = "is not supported by this version of Cenote";
    for args in [
        &["zpool", "status", "--power"][..],
        &["zpool", "split", "-l", "-R", "/x", "tank", "new"],
        &["zpool", "set", "cachefile=/tmp/x", "tank"],
        &["zpool", "set", "allocating=off", "tank", &disks[0]],
    ] {
        let err = s.fail(1, args);
        assert!(err.contains(not_yet), "{args:?}: {err}");
    }
    // Tools that probe for a command take 2 for its absence, and 1 for its presence.
    for (program, name) in [("zfs", "program"), ("zfs", "nosuch"), ("zpool", "nosuch")] {
        let err = s.fail(2, &[program, name, "x"]);
        assert!(err.starts_with(&format!("unrecognized command '{name}'\n")), "{err}");
        assert_eq!(err.contains(not_yet), name != "nosuch", "{err}");
        assert_eq!(err.contains("usage:"), name == "nosuch", "{err}");
    }
    let json = s.ok(&["zpool", "version", "-j"]);
    assert!(json.starts_with("{\"output_version\":{\"command\":\"zpool version\""), "{json}");
    assert!(json.contains("\"zfs_version\":{\"userland\":\"zfs-cenote-"), "{json}");
    let create = ["zfs", "create", "-o", "mountpoint=none", "-o", "quota=10", "tank/q"];
    assert_eq!(s.fail(1, &create), "cannot create 'tank/q': out of space\n");
    assert_eq!(s.ok(&["zfs", "list", "-Ho", "name"]), "tank\n");
    s.ok(&["zfs", "create", "-o", "mountpoint=none", "-o", "quota=10M", "tank/q"]);
    assert_eq!(s.ok(&["zfs", "get", "-Ho", "value", "quota", "tank/q"]), "10M\n");
    // One line in the history, however many datasets a command changes.
    s.ok(&["zfs", "create", "-o", "mountpoint=none", "tank/r"]);
    s.ok(&["zfs", "inherit", "-r", "atime", "tank"]);
    s.ok(&["zfs", "set", "atime=off", "tank/q", "tank/r"]);
    let history = s.ok(&["zpool", "history", "tank"]);
    assert_eq!(history.matches("zfs inherit -r atime tank\n").count(), 1, "{history}");
    assert_eq!(history.matches("zfs set atime=off tank/q tank/r\n").count(), 1, "{history}");
    // A pool that is imported can be looked at, from the devices that the daemon names.
    let said = s.say(&["zdb", "-d", "tank"]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.contains("Dataset tank/q "), "{}", said.out);
    assert!(said.err.contains("'tank' is imported"), "{}", said.err);
    for name in ["cached", "cache", "sync", "codecs"] {
        assert!(s.ok(&["bench", name, "--help"]).starts_with(&format!("usage: bench {name}")));
    }
    s.ok(&["zpool", "export", "tank"]);
}

/// What zfs-autobackup asked for: `written@` with the full name of a snapshot. It got `-`.
#[test]
fn written_since_a_snapshot_by_its_full_name() {
    let s = Sandbox::new("honest-written");
    let disks = files(&s, &["a"]);
    s.ok(&["zpool", "create", "-O", "mountpoint=none", "tank", &disks[0]]);
    s.ok(&["zfs", "create", "-o", "mountpoint=none", "tank/fs"]);
    s.ok(&["zfs", "snapshot", "tank/fs@a"]);
    s.ok(&["zfs", "snapshot", "tank/fs@b"]);
    let get = |what: &str, of: &str| s.ok(&["zfs", "get", "-Hpo", "value", what, of]);
    assert_eq!(get("written@a", "tank/fs"), get("written@tank/fs@a", "tank/fs"));
    assert_eq!(get("written@tank/fs@a", "tank/fs"), "0\n");
    let whole = s.ok(&["zfs", "get", "-Hp", "written@a,written@c", "tank/fs"]);
    assert_eq!(whole, "tank/fs\twritten@a\t0\tlocal\ntank/fs\twritten@c\t-\t-\n");
    assert_eq!(get("written@tank/fs@a", "tank/fs@b"), "0\n");
    assert_eq!(get("written@tank/fs@b", "tank/fs@a"), "-\n");
    assert_eq!(get("written@tank@a", "tank/fs"), "-\n");
    assert_eq!(get("written@nosuch", "tank/fs"), "-\n");
    if can_mount("what was written and is gone again") {
        let at = format!("mountpoint={}", s.text("mnt"));
        s.ok(&["zfs", "create", "-o", &at, "-o", "compression=off", "tank/m"]);
        s.ok(&["zfs", "snapshot", "tank/m@a"]);
        std::fs::write(s.path("mnt/gone"), vec![1; 2 << 20]).unwrap();
        s.ok(&["zfs", "snapshot", "tank/m@b"]);
        std::fs::remove_file(s.path("mnt/gone")).unwrap();
        std::fs::write(s.path("mnt/stays"), vec![2; 1 << 20]).unwrap();
        s.ok(&["zpool", "sync", "tank"]);
        // OpenZFS counts what is there now and was not then.
        let since_a: u64 = get("written@a", "tank/m").trim_end().parse().unwrap();
        assert!((1 << 20..3 << 19).contains(&since_a), "{since_a}");
    }
    s.ok(&["zpool", "export", "tank"]);
}

/// What the user did: `zfs snapshot -r` past a `snapshot_limit`. It went through, and the
/// next single one was refused with "out of space" and another dataset's name.
#[test]
fn limits_on_snapshots_hold_for_all_of_a_command() {
    let s = Sandbox::new("honest-limits");
    let disks = files(&s, &["a"]);
    s.ok(&["zpool", "create", "-O", "mountpoint=none", "tank", &disks[0]]);
    for name in ["tank/l", "tank/l/a", "tank/l/b"] {
        s.ok(&["zfs", "create", name]);
    }
    s.ok(&["zfs", "set", "snapshot_limit=4", "filesystem_limit=2", "tank/l"]);
    let counts = s.ok(&["zfs", "get", "-H", "filesystem_count,snapshot_count", "tank/l"]);
    assert_eq!(counts, "tank/l\tfilesystem_count\t2\tlocal\ntank/l\tsnapshot_count\t0\tlocal\n");
    s.ok(&["zfs", "snapshot", "-r", "tank/l@1"]);
    assert_eq!(
        s.fail(1, &["zfs", "snapshot", "-r", "tank/l@2"]),
        "cannot create snapshot 'tank/l/b@2': snapshot limit of 'tank/l' is reached (4)\nno \
         snapshots were created\n"
    );
    assert_eq!(s.ok(&["zfs", "list", "-Hrt", "snapshot", "tank"]).lines().count(), 3);
    s.ok(&["zfs", "snapshot", "tank/l/b@2"]);
    assert_eq!(
        s.fail(1, &["zfs", "snapshot", "tank/l/b@3"]),
        "cannot create snapshot 'tank/l/b@3': snapshot limit of 'tank/l' is reached (4)\n"
    );
    assert_eq!(
        s.fail(1, &["zfs", "create", "tank/l/c"]),
        "cannot create 'tank/l/c': filesystem limit of 'tank/l' is reached (2)\n"
    );
    s.ok(&["zfs", "snapshot", "tank@5"]);
    s.ok(&["zpool", "export", "tank"]);
    s.stop();
    judge_disks(&s);
}

/// The error log that a scrub of OpenZFS left in a pool, by path, as OpenZFS printed it.
#[test]
fn the_stored_error_log() {
    let Some(pool) = testkit::golden("errlog") else { return };
    let s = Sandbox::new("honest-errlog");
    pool.unpack(&s.dir("disks"));
    let dir = s.text("disks");
    s.ok(&["zpool", "import", "-N", "-f", "-o", "readonly=on", "-d", &dir, "errlog"]);
    let report = s.ok(&["zpool", "status", "-v", "errlog"]);
    let names = |report: &str| {
        let lines = report.lines().filter_map(|l| l.strip_prefix("        "));
        let mut names: Vec<String> = lines.map(|l| l.trim().to_owned()).collect();
        names.sort();
        names
    };
    // Mounted there, and not here.
    let wanted = pool.text("status.txt").unwrap().replace("/errlog/fs/", "errlog/fs:/");
    assert_eq!(names(&report), names(&wanted), "{report}");
    assert!(report.contains("ZFS-8000-8A"));
    s.ok(&["zpool", "export", "errlog"]);
}

/// What the user did: destroyed the last clone that OpenZFS had given a livelist, and still
/// read `active` for the feature before the next import.
#[test]
fn a_feature_goes_with_its_last_user() {
    let Some(pool) = testkit::golden("snaps") else { return };
    let s = Sandbox::new("honest-livelist");
    pool.unpack(&s.dir("disks"));
    s.ok(&["zpool", "import", "-N", "-f", "-d", &s.text("disks"), "snaps", "tank"]);
    let state = || s.ok(&["zpool", "get", "-Ho", "value", "feature@livelist", "tank"]);
    assert_eq!(state(), "active\n");
    // A clone without a livelist.
    s.ok(&["zfs", "destroy", "-r", "tank/fs"]);
    assert_eq!(state(), "active\n");
    s.ok(&["zfs", "destroy", "-r", "tank/renamed"]);
    // Its blocks are freed from the list first.
    common::eventually("the feature stays active", || state() == "enabled\n");
    let all = s.ok(&["zpool", "get", "-H", "all", "tank"]);
    assert!(all.contains("tank\tfeature@livelist\tenabled\tlocal\n"), "{all}");
    s.ok(&["zpool", "export", "tank"]);
    s.stop();
    judge_disks(&s);
}

/// What the user did: asked a pool of version 23 for objects and projects of owners, which
/// nothing counts there, and read 0 where OpenZFS has `-`.
#[test]
fn what_an_old_pool_does_not_count() {
    let Some(pool) = testkit::golden("fuse23") else { return };
    let s = Sandbox::new("honest-old");
    pool.unpack(&s.dir("disks"));
    let dir = s.text("disks");
    s.ok(&["zpool", "import", "-N", "-f", "-o", "readonly=on", "-d", &dir, "fuse23"]);
    let get = |property: &str, of: &str| s.ok(&["zfs", "get", "-Hpo", "value", property, of]);
    for of in ["fuse23", "fuse23/sub"] {
        for property in [
            "userobjused@0",
            "groupobjused@0",
            "projectused@0",
            "projectobjused@0",
            "userobjquota@0",
            "projectquota@0",
        ] {
            assert_eq!(get(property, of), "-\n", "{property} of {of}");
        }
        // Bytes of users and groups are counted since version 15.
        for property in ["userused@0", "groupused@0"] {
            let bytes: u64 = get(property, of).trim_end().parse().unwrap();
            assert!(bytes > 0, "{property} of {of}");
        }
    }
    s.ok(&["zpool", "export", "fuse23"]);
}

/// What the user did: looked at a mirror with a leaf that had missed writes. `zpool status`
/// had "out of date" beside the leaf for good. Later it had the text of a device with errors,
/// "an attempt was made to correct the error": the import had asked the leaf for blocks before
/// it knew what the leaf had missed, and counted errors.
#[test]
fn an_outdated_leaf_is_resilvered() {
    let s = Sandbox::new("honest-outdated");
    let d = files(&s, &["a", "b"]);
    s.ok(&["zpool", "create", "-O", "mountpoint=none", "tank", "mirror", &d[0], &d[1]]);
    s.ok(&["zpool", "export", "tank"]);
    let away = s.dir("drawer").join("b");
    std::fs::rename(&d[1], &away).unwrap();
    s.ok(&["zpool", "import", "-d", &s.text("disks"), "tank"]);
    s.ok(&["zfs", "create", "tank/fs"]);
    s.ok(&["zpool", "export", "tank"]);
    std::fs::rename(&away, &d[1]).unwrap();
    s.ok(&["zpool", "import", "-d", &s.text("disks"), "tank"]);
    common::eventually("no resilver ends", || {
        s.ok(&["zpool", "status", "tank"]).contains("  scan: resilvered ")
    });
    let status = s.ok(&["zpool", "status", "tank"]);
    assert!(status.starts_with("  pool: tank\n state: ONLINE\n  scan: resilvered "), "{status}");
    assert!(status.contains(" with 0 errors on "), "{status}");
    assert_eq!(status.matches("ONLINE       0     0     0\n").count(), 4, "{status}");
    assert_eq!(s.ok(&["zpool", "status", "-x"]), "all pools are healthy\n");
    s.ok(&["zpool", "export", "tank"]);
    s.stop();
    judge_disks(&s);
}

/// `written#BOOKMARK` and `written@` with the full name of an origin's snapshot.
#[test]
fn written_since_a_bookmark() {
    let s = Sandbox::new("honest-bookmarks");
    let get = |what: &str, of: &str| s.ok(&["zfs", "get", "-Hpo", "value", what, of]);
    let import = |name: &str| {
        let dir = s.text(name);
        s.ok(&["zpool", "import", "-N", "-f", "-o", "readonly=on", "-d", &dir, name]);
    };
    if let Some(pool) = testkit::golden("snaps") {
        pool.unpack(&s.dir("snaps"));
        import("snaps");
        let since = get("written@one", "snaps/promoted");
        assert!(since.trim_end().parse::<u64>().unwrap() > 0, "{since}");
        for what in ["written#mark", "written#snaps/promoted#mark", "written@snaps/promoted@one"] {
            assert_eq!(get(what, "snaps/promoted"), since, "{what}");
        }
        // A clone of the snapshot, by the origin's full name alone.
        let clone = get("written@snaps/promoted@one", "snaps/renamed");
        assert!(clone.trim_end().parse::<u64>().unwrap() > 0, "{clone}");
        assert_eq!(get("written@one", "snaps/renamed"), "-\n");
        assert_eq!(get("written#mark", "snaps/renamed"), "-\n");
        assert_eq!(get("written#nosuch", "snaps/promoted"), "-\n");
        s.ok(&["zpool", "export", "snaps"]);
    }
    // One whose bookmarks have numbers of their own. OpenZFS 2.4.4's module prints these for
    // the pool as it is; its `bookmarks.txt` is of an earlier txg.
    if let Some(pool) = testkit::golden("bookmarked") {
        pool.unpack(&s.dir("bookmarked"));
        import("bookmarked");
        for what in ["written#a", "written#copy", "written#b", "written@a", "written@b"] {
            assert_eq!(get(what, "bookmarked/fs"), "49152\n", "{what}");
        }
        s.ok(&["zpool", "export", "bookmarked"]);
    }
}

/// The layout score of each file follows from the addresses that OpenZFS's zdb lists.
#[test]
fn layout_scores() {
    let Some(pool) = testkit::golden("snaps") else { return };
    let s = Sandbox::new("honest-layout");
    pool.unpack(&s.dir("disks"));
    let disks = s.text("disks");
    let e = s.fail(1, &["zdb", "-e", "-p", &disks, "--layout", "snaps/nosuch"]);
    assert!(e.ends_with("zdb: can't open 'snaps/nosuch': No such file or directory\n"), "{e}");
    for dataset in ["snaps/promoted", "snaps/promoted@one"] {
        let out = s.ok(&["zdb", "-e", "-p", &disks, "--layout", dataset]);
        let rows: Vec<Vec<&str>> = out.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(
            (rows[0].join(" "), rows[1].join(" ")),
            (format!("Dataset {dataset}"), "object blocks score path".to_owned(),)
        );
        let run = Command::new("zdb").args(["-e", "-p", &disks, "-ddddd", dataset]).output();
        let Ok(run) = run else {
            testkit::skip(testkit::Need::Zdb, "zdb is not installed");
            return;
        };
        let (mut scores, mut paths) = (BTreeMap::<u64, (u64, u64, u64)>::new(), BTreeMap::new());
        let (mut object, mut is_file, mut end) = (0, false, None);
        for line in String::from_utf8(run.stdout).unwrap().lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [id, _, _, _, _, _, _, _, .., "file"] if line.contains("ZFS plain file") => {
                    (object, is_file, end) = (id.parse().unwrap(), true, None);
                    scores.insert(object, (0, 0, 0));
                }
                [_, _, _, _, _, _, _, percent, ..] if percent.parse::<f64>().is_ok() => {
                    is_file = false;
                }
                ["path", ..] if is_file => {
                    let path: Vec<&str> = words[1..].to_vec();
                    paths.insert(object, path.join(" "));
                }
                [_, "L0", dva, ..] if is_file && !line.contains("EMBEDDED") => {
                    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
                    let parts: Vec<u64> = dva.split(':').map(hex).collect();
                    let (blocks, steps, follow) = scores.get_mut(&object).unwrap();
                    *blocks += 1;
                    if let Some(end) = end.replace((parts[0], parts[1] + parts[2])) {
                        *steps += 1;
                        *follow += u64::from(end == (parts[0], parts[1]));
                    }
                }
                _ => {}
            }
        }
        assert!(scores.len() > 3 && scores.values().any(|s| s.2 > 0), "{scores:?}");
        let text = |follow: u64, steps: u64| match steps {
            0 => "-".to_owned(),
            _ => format!("{:.3}", follow as f64 / steps as f64),
        };
        let mut all = (0, 0, 0);
        for ((id, (blocks, steps, follow)), row) in scores.iter().zip(&rows[2..]) {
            // One that was removed while it was open has no name.
            let path = paths.get(id).map_or("", String::as_str);
            let wanted = format!("{id} {blocks} {}", text(*follow, *steps));
            assert_eq!(row[..3].join(" "), wanted, "{dataset}");
            // zdb breaks the line where a name does.
            let shown = row[3..].join(" ");
            assert!(shown == path || shown.contains('?'), "{dataset}: {shown}, {path}");
            all = (all.0 + blocks, all.1 + steps, all.2 + follow);
        }
        let last = rows.last().unwrap();
        assert_eq!(last[1..3], [all.0.to_string(), text(all.2, all.1)], "{dataset}");
        assert_eq!(rows.len(), scores.len() + 3);
    }
}
