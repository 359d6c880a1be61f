//! `zpool defrag`, as an administrator sees it.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, clippy::panic)]

mod common;

use common::Sandbox;

#[test]
fn files_of_a_pool_are_laid_out() {
    let s = Sandbox::new("defrag");
    let disk = s.path("disk");
    std::fs::File::create(&disk).unwrap().set_len(512 << 20).unwrap();
    let disk = disk.to_str().unwrap();
    s.ok(&["zpool", "create", "-O", "mountpoint=none", "tank", disk]);
    s.ok(&["zfs", "create", "-V", "16M", "-o", "volblocksize=8K", "-s", "tank/vol"]);
    s.ok(&["zfs", "snapshot", "tank/vol@a"]);
    let plan = s.ok(&["zpool", "defrag", "-n", "tank"]);
    assert!(plan.starts_with("layout score of all files: 1.000\nfiles to lay out: 0, "), "{plan}");
    // What is wrong is refused.
    for (words, text) in [
        (&["zpool", "defrag"][..], "missing pool name argument"),
        (&["zpool", "defrag", "-s", "-p", "tank"], "-s and -p are mutually exclusive"),
        (&["zpool", "defrag", "-s", "-w", "tank"], "cannot be used with -s or -p"),
        (&["zpool", "defrag", "-n", "-w", "tank"], "-n and -w are mutually exclusive"),
        (&["zpool", "defrag", "-l", "2", "tank"], "invalid layout score '2'"),
        (&["zpool", "defrag", "-p", "tank", "tank/vol"], "too many arguments"),
        (&["zpool", "defrag", "tank", "other"], "'other' is not a dataset of pool 'tank'"),
    ] {
        let refused = s.fail(2, words);
        assert!(refused.contains(text), "{words:?}: {refused}");
    }
    assert_eq!(s.fail(1, &["zpool", "defrag", "none"]), "cannot open 'none': no such pool\n");
    let refused = s.fail(1, &["zpool", "defrag", "tank", "tank/none"]);
    assert_eq!(refused, "cannot defragment 'tank': dataset does not exist\n");
    let refused = s.fail(1, &["zpool", "defrag", "-p", "tank"]);
    let none = "there is no active defragmentation";
    assert_eq!(refused, format!("cannot pause defragmenting 'tank': {none}\n"));
    let refused = s.fail(1, &["zpool", "defrag", "-s", "tank"]);
    assert_eq!(refused, format!("cannot cancel defragmenting 'tank': {none}\n"));
    assert!(!s.ok(&["zpool", "status", "tank"]).contains("defrag:"));
    // A pool with a checkpoint stays as it is.
    s.ok(&["zpool", "checkpoint", "tank"]);
    let refused = s.fail(1, &["zpool", "defrag", "tank"]);
    assert!(refused.starts_with("cannot defragment 'tank': "), "{refused}");
    s.ok(&["zpool", "checkpoint", "-d", "-w", "tank"]);
    // It runs, ends, and is remembered.
    s.ok(&["zpool", "defrag", "-w", "-l", "0.9", "tank", "tank/vol"]);
    s.ok(&["zpool", "wait", "-t", "defrag", "tank"]);
    let status = s.ok(&["zpool", "status", "tank"]);
    assert!(status.contains("defrag: defragmented 0B in 00:00:0"), "{status}");
    let json = s.ok(&["zpool", "status", "-j", "tank"]);
    assert!(json.contains("\"defrag_stats\"") && json.contains("\"FINISHED\""), "{json}");
    let history = s.ok(&["zpool", "history", "tank"]);
    assert!(history.contains("zpool defrag -w -l 0.9 tank tank/vol"), "{history}");
    let dir = s.path("").to_str().unwrap().to_owned();
    s.ok(&["zpool", "export", "tank"]);
    s.ok(&["zpool", "import", "-d", &dir, "-N", "tank"]);
    assert!(s.ok(&["zpool", "status", "tank"]).contains("defrag: defragmented"));
}

/// The mapping of a removed device is erased, and `zpool status` tells no more of the removal.
#[test]
fn mappings_are_erased() {
    let s = Sandbox::new("unmap");
    let paths: Vec<String> = (0..2)
        .map(|n| {
            let disk = s.path(&format!("disk{n}"));
            std::fs::File::create(&disk).unwrap().set_len(512 << 20).unwrap();
            disk.to_str().unwrap().to_owned()
        })
        .collect();
    s.ok(&["zpool", "create", "-O", "mountpoint=none", "tank", &paths[0], &paths[1]]);
    s.ok(&["zfs", "create", "-V", "16M", "tank/vol"]);
    s.ok(&["zfs", "snapshot", "tank/vol@a"]);
    let refused = s.fail(1, &["zpool", "defrag", "--unmap", "tank"]);
    let none = "the pool has no removed devices with a mapping";
    let cannot = "cannot erase the mappings of removed devices in 'tank'";
    assert_eq!(refused, format!("{cannot}: {none}\n"));
    for (words, text) in [
        (&["zpool", "defrag", "--unmap"][..], "missing pool name argument"),
        (&["zpool", "defrag", "--unmap", "-s", "tank"], "--unmap goes with -n or -w alone"),
        (&["zpool", "defrag", "--unmap", "-l", "1", "tank"], "--unmap goes with -n or -w alone"),
        (&["zpool", "defrag", "--unmap", "-n", "-w", "tank"], "-n and -w are mutually exclusive"),
        (&["zpool", "defrag", "--unmap", "tank", "tank/vol"], "too many arguments"),
    ] {
        let refused = s.fail(2, words);
        assert!(refused.contains(text), "{words:?}: {refused}");
    }
    s.ok(&["zpool", "remove", "-w", "tank", &paths[0]]);
    assert!(s.ok(&["zpool", "status", "tank"]).contains("removed device mappings"));
    let plan = s.ok(&["zpool", "defrag", "--unmap", "-n", "tank"]);
    let text = "Data that will be moved to erase the mappings of removed devices: ";
    assert!(plan.starts_with(text), "{plan}");
    s.ok(&["zpool", "defrag", "--unmap", "-w", "tank"]);
    let status = s.ok(&["zpool", "status", "tank"]);
    let done = "defrag: erased the mappings of removed devices: moved ";
    assert!(status.contains(done) && !status.contains("remove:"), "{status}");
    let json = s.ok(&["zpool", "status", "-j", "tank"]);
    assert!(json.contains("\"UNMAP\"") && json.contains("\"FINISHED\""), "{json}");
    let dir = s.path("").to_str().unwrap().to_owned();
    s.ok(&["zpool", "export", "tank"]);
    s.ok(&["zpool", "import", "-d", &dir, "-N", "tank"]);
    assert!(s.ok(&["zpool", "status", "tank"]).contains(done));
}
