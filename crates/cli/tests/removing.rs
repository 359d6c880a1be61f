//! `zpool remove` of devices with data, as an administrator sees it.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use common::Sandbox;

/// Sparse files, as large as the 128 MiB of slop want them.
fn files(s: &Sandbox, names: &[&str]) -> Vec<String> {
    let make = |name: &&str| {
        let path = s.path(name);
        std::fs::File::create(&path).unwrap().set_len(512 << 20).unwrap();
        path.to_str().unwrap().to_owned()
    };
    names.iter().map(make).collect()
}

#[test]
fn a_device_is_removed() {
    let s = Sandbox::new("removing");
    let f = files(&s, &["a", "b", "c", "d"]);
    let (a, b, c, d) = (&*f[0], &*f[1], &*f[2], &*f[3]);
    s.ok(&["zpool", "create", "-f", "-O", "mountpoint=none", "tank", a, "mirror", b, c]);
    s.ok(&["zfs", "create", "-V", "64M", "-o", "compression=off", "tank/vol"]);
    // What it would take.
    let estimate = s.ok(&["zpool", "remove", "-n", "tank", a]);
    let begin = format!("Memory that will be used after removing {a}: ");
    assert!(estimate.starts_with(&begin), "{estimate}");
    let exact = s.ok(&["zpool", "remove", "-np", "tank", "mirror-1"]);
    let bytes = exact.trim_end().rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    assert!(bytes > 0 && bytes.is_multiple_of(24), "{exact}");
    // What is refused changes nothing.
    let refused = s.fail(1, &["zpool", "remove", "tank", b]);
    assert_eq!(
        refused,
        format!("cannot remove {b}: operation not supported on this type of pool\n")
    );
    let refused = s.fail(1, &["zpool", "remove", "-s", "tank"]);
    assert_eq!(refused, "cannot cancel removal: there is no device removal in progress\n");
    assert!(s.fail(2, &["zpool", "remove", "-s", "tank", a]).contains("too many arguments"));
    assert!(s.fail(2, &["zpool", "remove", "tank"]).contains("missing device"));
    assert!(!s.ok(&["zpool", "status", "tank"]).contains("remove:"));
    // It goes, and the rest stays.
    s.ok(&["zpool", "remove", "-w", "tank", a]);
    let status = s.ok(&["zpool", "status", "tank"]);
    assert!(status.contains("remove: Removal of vdev 0 copied "), "{status}");
    assert!(status.contains("memory used for removed device mappings"), "{status}");
    assert!(!status.contains("indirect") && !status.contains(a), "{status}");
    assert!(
        status.contains("mirror-1") && status.contains("errors: No known data errors"),
        "{status}"
    );
    let history = s.ok(&["zpool", "history", "-i", "tank"]);
    assert!(
        history.contains("vdev remove started") && history.contains("vdev remove completed"),
        "{history}"
    );
    assert!(history.contains(&format!("zpool remove -w tank {a}")), "{history}");
    assert_eq!(
        s.ok(&["zpool", "get", "-Ho", "value", "feature@device_removal", "tank"]),
        "active\n"
    );
    // Its device is free, and RAID-Z does not come in.
    s.ok(&["zpool", "create", "-O", "canmount=off", "other", a]);
    s.ok(&["zpool", "destroy", "other"]);
    let text = s.fail(1, &["zpool", "add", "-f", "tank", "raidz", a, d]);
    assert!(text.contains("invalid config"), "{text}");
    s.ok(&["zpool", "add", "-f", "tank", d]);
    s.ok(&["zpool", "remove", "-w", "tank", "mirror-1"]);
    let status = s.ok(&["zpool", "status", "tank"]);
    assert!(status.contains("remove: Removal of vdev 1 copied ") && status.contains(d), "{status}");
    let dir = s.path("").to_str().unwrap().to_owned();
    s.ok(&["zpool", "export", "tank"]);
    s.ok(&["zpool", "import", "-d", &dir, "-N", "tank"]);
    assert!(s.ok(&["zpool", "status", "tank"]).contains(" state: ONLINE\n"));
}

/// In a pool with raidz the blocks of a vdev move, and no mapping is left.
#[test]
fn a_raidz_is_removed() {
    let s = Sandbox::new("removing-raidz");
    let f = files(&s, &["a", "b", "c", "d", "e", "f"]);
    let [a, b, c, d, e, g] = [0, 1, 2, 3, 4, 5].map(|n| &*f[n]);
    let create = ["zpool", "create", "-f", "-O", "mountpoint=none", "tank"];
    s.ok(&[&create[..], &["raidz", a, b, c, "raidz", d, e, g]].concat());
    s.ok(&["zfs", "create", "-V", "64M", "-o", "compression=off", "tank/vol"]);
    s.ok(&["zfs", "snapshot", "tank/vol@now"]);
    let estimate = s.ok(&["zpool", "remove", "-np", "tank", "raidz1-1"]);
    assert_eq!(estimate, "Memory that will be used after removing raidz1-1: 0\n");
    let refused = s.fail(1, &["zpool", "remove", "tank", d]);
    assert_eq!(
        refused,
        format!("cannot remove {d}: operation not supported on this type of pool\n")
    );
    s.ok(&["zpool", "checkpoint", "tank"]);
    let refused = s.fail(1, &["zpool", "remove", "tank", "raidz1-1"]);
    assert!(refused.contains("cannot remove raidz1-1: ") && refused.contains("checkpoint"));
    s.ok(&["zpool", "checkpoint", "-d", "-w", "tank"]);
    assert!(!s.ok(&["zpool", "status", "tank"]).contains("remove:"));
    // A status is right in each moment, also in the txg that removes it.
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                let said = s.say(&["zpool", "status", "tank"]);
                assert_eq!(said.code, 0, "{said:?}");
            }
        });
        let removed = s.say(&["zpool", "remove", "-w", "tank", "raidz1-1"]);
        over.store(true, Relaxed);
        assert_eq!(removed.code, 0, "{removed:?}");
    });
    let status = s.ok(&["zpool", "status", "tank"]);
    assert!(status.contains("remove: Removal of vdev 1 copied "), "{status}");
    assert!(!status.contains("memory used") && !status.contains("raidz1-1"), "{status}");
    assert!(!status.contains("defrag:") && !status.contains(d), "{status}");
    assert!(status.contains("errors: No known data errors"), "{status}");
    s.ok(&["zpool", "wait", "-t", "remove", "tank"]);
    let history = s.ok(&["zpool", "history", "-i", "tank"]);
    assert!(history.contains("zpool remove -w tank raidz1-1"), "{history}");
    let feature = ["zpool", "get", "-Ho", "value", "feature@device_removal", "tank"];
    assert_eq!(s.ok(&feature), "enabled\n");
    let refused = s.fail(1, &["zpool", "remove", "tank", "raidz1-0"]);
    let text = "cannot remove raidz1-0: no other vdev of the same kind could take its blocks\n";
    assert_eq!(refused, text);
    // Its devices are free.
    s.ok(&["zpool", "create", "-O", "canmount=off", "other", d]);
    s.ok(&["zpool", "destroy", "other"]);
    // One that is canceled stays in use.
    s.ok(&["zpool", "add", "-f", "tank", "raidz", d, e, g]);
    s.ok(&["zpool", "remove", "tank", "raidz1-2"]);
    let again = ["zpool", "remove", "-s", "tank"];
    let canceled = s.run(&again).status.success();
    let status = s.ok(&["zpool", "status", "tank"]);
    let said = match canceled {
        true => "remove: Removal of raidz1-2 canceled on ",
        false => "remove: Removal of vdev 2 copied ",
    };
    assert!(status.contains(said) && !status.contains("non-allocating"), "{status}");
    assert_eq!(status.contains(d), canceled, "{status}");
    let refused = s.fail(1, &again);
    assert_eq!(refused, "cannot cancel removal: there is no device removal in progress\n");
    let dir = s.path("").to_str().unwrap().to_owned();
    s.ok(&["zpool", "export", "tank"]);
    s.ok(&["zpool", "import", "-d", &dir, "-N", "tank"]);
    let status = s.ok(&["zpool", "status", "tank"]);
    assert!(status.contains(" state: ONLINE\n") && status.contains(said), "{status}");
}

/// A vdev shrinks, and a smaller device replaces one of its own.
#[test]
fn a_raidz_shrinks() {
    let s = Sandbox::new("shrinking");
    let f = files(&s, &["a", "b", "c"]);
    let [a, b, c] = [0, 1, 2].map(|n| &*f[n]);
    let small = s.text("small");
    std::fs::File::create(&small).unwrap().set_len(320 << 20).unwrap();
    s.ok(&["zpool", "create", "-f", "-O", "mountpoint=none", "tank", "raidz", a, b, c]);
    s.ok(&["zfs", "create", "-V", "64M", "-o", "compression=off", "tank/vol"]);
    let refused = s.fail(1, &["zpool", "replace", "-f", "tank", a, &small]);
    assert!(refused.contains("too small"), "{refused}");
    let shrink = ["zpool", "shrink", "tank", "raidz1-0"];
    let refused = s.fail(1, &[&shrink[..], &["1G"]].concat());
    assert_eq!(refused, "cannot shrink raidz1-0: the vdev is smaller than that\n");
    assert!(s.fail(2, &shrink).contains("missing size"));
    assert!(s.fail(2, &[&shrink[..], &["big"]].concat()).contains("invalid size 'big'"));
    let none = s.fail(1, &["zpool", "shrink", "-s", "tank"]);
    assert_eq!(none, "cannot cancel shrinking: no vdev is being shrunk\n");
    s.ok(&["zpool", "set", "autoexpand=on", "tank"]);
    let refused = s.fail(1, &[&shrink[..], &["320M"]].concat());
    assert!(refused.contains("property autoexpand is on"), "{refused}");
    s.ok(&["zpool", "set", "autoexpand=off", "tank"]);
    let plan = s.ok(&["zpool", "shrink", "-n", "tank", "raidz1-0", "320M"]);
    assert!(plan.starts_with("Data that will be moved to shrink raidz1-0: "), "{plan}");
    let size = || s.ok(&["zpool", "list", "-Hpo", "size", "tank"]).trim().parse::<u64>().unwrap();
    let more = || s.ok(&["zpool", "get", "-Hpo", "value", "expandsize", "tank", "raidz1-0"]);
    let before = size();
    assert_eq!(more(), "-\n");
    s.ok(&["zpool", "shrink", "-w", "tank", "raidz1-0", "320M"]);
    let status = s.ok(&["zpool", "status", "tank"]);
    assert!(status.contains("shrink: Shrinking of raidz1-0 moved "), "{status}");
    assert!(!status.contains("remove:") && !status.contains("defrag:"), "{status}");
    let after = size();
    assert!(after < before * 3 / 4, "{before} {after}");
    assert_ne!(more(), "-\n");
    s.ok(&["zpool", "replace", "-fw", "tank", a, &small]);
    s.ok(&["zpool", "scrub", "-w", "tank"]);
    let status = s.ok(&["zpool", "status", "tank"]);
    assert!(status.contains(&small) && status.contains("with 0 errors"), "{status}");
    let dir = s.path("").to_str().unwrap().to_owned();
    s.ok(&["zpool", "export", "tank"]);
    s.ok(&["zpool", "import", "-d", &dir, "-N", "tank"]);
    assert_eq!(size(), after);
    // The smallest device limits it.
    s.ok(&["zpool", "online", "-e", "tank", b]);
    assert_eq!(size(), after);
    s.ok(&["zpool", "replace", "-fw", "tank", &small, a]);
    s.ok(&["zpool", "online", "-e", "tank", b]);
    assert_eq!(size(), before);
}
