//! `zpool rebalance`, as an administrator sees it.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, clippy::panic)]

mod common;

use common::Sandbox;

fn disk(s: &Sandbox, name: &str) -> String {
    let path = s.path(name);
    std::fs::File::create(&path).unwrap().set_len(512 << 20).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn vdevs_become_equally_full() {
    let s = Sandbox::new("rebalance");
    let (one, two, three) = (disk(&s, "one"), disk(&s, "two"), disk(&s, "three"));
    s.ok(&["zpool", "create", "-O", "mountpoint=none", "tank", &one]);
    s.ok(&["zfs", "create", "-V", "16M", "-o", "volblocksize=8K", "-s", "tank/vol"]);
    s.ok(&["zfs", "snapshot", "tank/vol@a"]);
    // What is wrong is refused.
    for (words, text) in [
        (&["zpool", "rebalance"][..], "missing pool name argument"),
        (&["zpool", "rebalance", "-s", "-p", "tank"], "-s and -p are mutually exclusive"),
        (&["zpool", "rebalance", "-s", "-w", "tank"], "cannot be used with other options"),
        (&["zpool", "rebalance", "-n", "-w", "tank"], "-n and -w are mutually exclusive"),
        (&["zpool", "rebalance", "tank", "tank/vol"], "too many arguments"),
        (
            &["zpool", "rebalance", "--special", "--from-special", "tank"],
            "--special and --from-special are mutually exclusive",
        ),
    ] {
        let refused = s.fail(2, words);
        assert!(refused.contains(text), "{words:?}: {refused}");
    }
    assert_eq!(s.fail(1, &["zpool", "rebalance", "none"]), "cannot open 'none': no such pool\n");
    let refused = s.fail(1, &["zpool", "rebalance", "tank"]);
    assert_eq!(refused, "cannot rebalance 'tank': only one top-level vdev takes data\n");
    let refused = s.fail(1, &["zpool", "rebalance", "-n", "--special", "tank"]);
    assert!(refused.starts_with("cannot rebalance 'tank': the pool has no special"), "{refused}");
    let refused = s.fail(1, &["zpool", "rebalance", "-p", "tank"]);
    assert_eq!(refused, "cannot pause rebalancing 'tank': there is no active rebalance\n");
    assert!(!s.ok(&["zpool", "status", "tank"]).contains("rebalance:"));
    s.ok(&["zpool", "add", "tank", &two]);
    let plan = s.ok(&["zpool", "rebalance", "-n", "tank"]);
    assert!(plan.contains("two: 0% in use") && plan.contains("to move: "), "{plan}");
    // A pool with a checkpoint stays as it is.
    s.ok(&["zpool", "checkpoint", "tank"]);
    let refused = s.fail(1, &["zpool", "rebalance", "tank"]);
    assert!(refused.starts_with("cannot rebalance 'tank': "), "{refused}");
    s.ok(&["zpool", "checkpoint", "-d", "-w", "tank"]);
    // It runs, ends, and is remembered.
    s.ok(&["zpool", "rebalance", "-w", "tank"]);
    s.ok(&["zpool", "wait", "-t", "rebalance", "tank"]);
    let status = s.ok(&["zpool", "status", "tank"]);
    assert!(status.contains("rebalance: rebalanced "), "{status}");
    let json = s.ok(&["zpool", "status", "-j", "tank"]);
    assert!(json.contains("\"rebalance_stats\"") && json.contains("\"EMPTIER\""), "{json}");
    let refused = s.fail(1, &["zpool", "defrag", "-s", "tank"]);
    assert!(refused.contains("there is no active defragmentation"), "{refused}");
    // Metadata goes to special vdevs, and back.
    s.ok(&["zpool", "add", "-f", "tank", "special", &three]);
    s.ok(&["zpool", "rebalance", "-w", "--special", "tank"]);
    let status = s.ok(&["zpool", "status", "tank"]);
    assert!(status.contains("rebalance: moved to special vdevs: "), "{status}");
    let plan = s.ok(&["zpool", "rebalance", "-n", "--from-special", "tank"]);
    assert!(plan.starts_with("metadata: ") && !plan.starts_with("metadata: 0B"), "{plan}");
    s.ok(&["zpool", "rebalance", "-w", "--from-special", "tank"]);
    let status = s.ok(&["zpool", "status", "tank"]);
    assert!(status.contains("rebalance: moved from special vdevs: "), "{status}");
    let history = s.ok(&["zpool", "history", "tank"]);
    assert!(history.contains("zpool rebalance -w --special tank"), "{history}");
    let dir = s.path("").to_str().unwrap().to_owned();
    s.ok(&["zpool", "export", "tank"]);
    s.ok(&["zpool", "import", "-d", &dir, "-N", "tank"]);
    assert!(s.ok(&["zpool", "status", "tank"]).contains("rebalance: moved from"));
}
