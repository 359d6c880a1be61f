//! Stories of devices: attached, replaced, taken offline, split off; and a spare that steps in.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Sandbox, eventually, judge_disks};

/// Files of 128 MiB in a directory of the sandbox.
fn files(s: &Sandbox, dir: &str, count: usize) -> Vec<String> {
    let dir = s.dir(dir);
    let one = |n: usize| {
        let path = dir.join(format!("d{n}"));
        std::fs::File::create(&path).unwrap().set_len(128 << 20).unwrap();
        path.to_str().unwrap().to_owned()
    };
    (0..count).map(one).collect()
}

/// A pool of mirrors is split: first as a plan, then in earnest; both halves are whole.
#[test]
fn a_pool_is_split() {
    let s = Sandbox::new("devices-split");
    let d = files(&s, "disks", 4);
    s.ok(&[
        "zpool", "create", "-m", "none", "tank", "mirror", &d[0], &d[1], "mirror", &d[2], &d[3],
    ]);
    let plan = s.ok(&["zpool", "split", "-n", "tank", "new"]);
    let layout = format!("\tnew\n\t  {}\n\t  {}\n", d[1], d[3]);
    assert_eq!(plan, format!("would create 'new' with the following layout:\n\n{layout}"));
    let plan = s.ok(&["zpool", "split", "-nP", "tank", "new", &d[2]]);
    assert!(plan.contains(&format!("\t  {}\n\t  {}\n", d[1], d[2])), "{plan}");
    let taken = s.fail(1, &["zpool", "split", "tank", "tank"]);
    assert_eq!(taken, "Unable to split tank: pool already exists\n");
    let usage = s.fail(2, &["zpool", "split", "tank"]);
    assert!(usage.starts_with("Missing new pool name\n"), "{usage}");
    s.ok(&["zpool", "split", "-o", "comment=half", "tank", "new"]);
    assert_eq!(s.ok(&["zpool", "list", "-H", "-o", "name"]), "tank\n");
    let again = s.fail(1, &["zpool", "split", "tank", "more"]);
    let words = "Unable to split tank: Source pool must be composed only of mirrors\n";
    assert_eq!(again, words);
    let history = s.ok(&["zpool", "history", "tank"]);
    assert!(history.contains("zpool split -o comment=half tank new"), "{history}");
    // Each half is imported by itself.
    let halves = s.dir("halves");
    for path in [&d[1], &d[3]] {
        let name = std::path::Path::new(path).file_name().unwrap();
        std::fs::rename(path, halves.join(name)).unwrap();
    }
    s.ok(&["zpool", "export", "tank"]);
    judge_disks(&s);
    s.ok(&["zpool", "import", "-d", &s.text("halves"), "new"]);
    assert_eq!(s.ok(&["zpool", "get", "-H", "-o", "value", "comment", "new"]), "half\n");
    s.ok(&["daemon", "stop"]);
}

/// A faulted device's spare steps in by itself, and goes back when the device is cleared. What
/// cannot be is refused in OpenZFS's words.
#[test]
fn a_spare_steps_in() {
    let s = Sandbox::new("devices-spare");
    let d = files(&s, "disks", 4);
    s.ok(&["zpool", "create", "-m", "none", "tank", "mirror", &d[0], &d[1], "spare", &d[2]]);
    let refused = |args: &[&str], words: String| assert_eq!(s.fail(1, args), words);
    let spare = format!("cannot offline {}: device is reserved as a hot spare\n", d[2]);
    refused(&["zpool", "offline", "tank", &d[2]], spare);
    // No spare takes the place of a device that was only taken offline.
    s.ok(&["zpool", "offline", "tank", &d[0]]);
    let last = format!("cannot offline {}: no valid replicas\n", d[1]);
    refused(&["zpool", "offline", "tank", &d[1]], last);
    refused(
        &["zpool", "detach", "tank", &d[1]],
        format!("cannot detach {}: no valid replicas\n", d[1]),
    );
    refused(
        &["zpool", "detach", "tank", "x"],
        "cannot detach x: no such device in pool\n".to_owned(),
    );
    s.ok(&["zpool", "online", "tank", &d[0]]);
    s.ok(&["zpool", "offline", "-f", "tank", &d[0]]);
    let status = || s.ok(&["zpool", "status", "tank"]);
    eventually("the spare steps in", || status().contains("INUSE"));
    let shown = status();
    assert!(shown.contains("spare-0") && shown.contains("currently in use"), "{shown}");
    assert!(shown.contains("external device fault"), "{shown}");
    let removed = s.fail(1, &["zpool", "remove", "tank", &d[2]]);
    assert!(removed.contains("Pool busy; removal may already be in progress"), "{removed}");
    s.ok(&["zpool", "export", "tank"]);
    judge_disks(&s);
    s.ok(&["daemon", "stop"]);
}

/// The command lines of attaching and replacing.
#[test]
fn devices_are_attached_and_replaced() {
    let s = Sandbox::new("devices-attach");
    let d = files(&s, "disks", 3);
    s.ok(&["zpool", "create", "-m", "none", "tank", &d[0]]);
    for (args, words) in [
        (vec!["zpool", "attach"], "missing pool name argument\n"),
        (vec!["zpool", "attach", "tank"], "missing <device> specification\n"),
        (vec!["zpool", "attach", "tank", &d[0]], "missing <new_device> specification\n"),
        (vec!["zpool", "replace", "tank"], "missing <device> specification\n"),
        (vec!["zpool", "detach", "tank"], "missing <device> specification\n"),
    ] {
        let text = s.fail(2, &args);
        assert!(text.starts_with(words), "{args:?}: {text}");
    }
    s.ok(&["zpool", "attach", "tank", &d[0], &d[1]]);
    let active = s.fail(1, &["zpool", "attach", "tank", &d[0], &d[1]]);
    assert!(active.contains(&format!("{} is part of active pool 'tank'", d[1])), "{active}");
    let shown = s.ok(&["zpool", "status", "tank"]);
    assert!(shown.contains("mirror-0") && shown.contains("d1"), "{shown}");
    s.ok(&["zpool", "replace", "tank", &d[1], &d[2]]);
    let shown = s.ok(&["zpool", "status", "tank"]);
    assert!(shown.contains("replacing-1"), "{shown}");
    // The replacement is called off.
    s.ok(&["zpool", "detach", "tank", &d[2]]);
    let shown = s.ok(&["zpool", "status", "tank"]);
    assert!(!shown.contains("replacing") && !shown.contains("d2"), "{shown}");
    let seen = s.ok(&["zpool", "events", "-H", "tank"]);
    for class in ["sysevent.fs.zfs.vdev_attach", "sysevent.fs.zfs.vdev_remove"] {
        assert!(seen.contains(class), "{class}: {seen}");
    }
    s.ok(&["zpool", "export", "tank"]);
    judge_disks(&s);
    s.ok(&["daemon", "stop"]);
}

/// Sequential resilvers from the command line: progress, the scrub that follows, refusals.
#[test]
fn devices_are_attached_sequentially() {
    let s = Sandbox::new("devices-sequential");
    let d = files(&s, "disks", 7);
    s.ok(&["zpool", "create", "-m", "none", "tank", &d[0]]);
    s.ok(&["zpool", "attach", "-s", "-w", "tank", &d[0], &d[1]]);
    s.ok(&["zpool", "wait", "-t", "resilver,scrub", "tank"]);
    let shown = s.ok(&["zpool", "status", "tank"]);
    let scrub = shown.find("  scan: scrub repaired 0B in ").unwrap();
    let resilver = shown.find("  scan: resilvered (mirror-0) ").unwrap();
    assert!(scrub < resilver && !shown.contains("status:"), "{shown}");
    let json = s.ok(&["zpool", "status", "-jp", "tank"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let scan = &json["pools"]["tank"]["scan_stats"];
    let rebuild = &scan["rebuild_stats"]["mirror-0"];
    assert_eq!((&scan["function"], &rebuild["state"]), (&"SCRUB".into(), &"COMPLETE".into()));
    assert_eq!(rebuild["errors"], "0");
    let number = |key: &str| rebuild[key].as_str().unwrap().parse::<u64>().unwrap();
    assert!(number("start_time") <= number("end_time") && number("bytes_rebuilt") > 0, "{rebuild}");
    assert!(number("bytes_issued") <= number("bytes_scanned"), "{rebuild}");
    s.ok(&["zpool", "replace", "-sw", "tank", &d[1], &d[2]]);
    let shown = s.ok(&["zpool", "status", "tank"]);
    assert!(shown.contains("with 0 errors on") && !shown.contains("d1"), "{shown}");
    let history = s.ok(&["zpool", "history", "-i", "tank"]);
    for what in ["started", "complete"] {
        let line = |l: &str| l.contains(" rebuild vdev_id=0 vdev_guid=") && l.ends_with(what);
        assert_eq!(history.lines().filter(|l| line(l)).count(), 2, "{history}");
    }
    assert!(history.contains("zpool attach -s -w tank"), "{history}");
    let seen = s.ok(&["zpool", "events", "-Hv", "tank"]);
    assert!(seen.contains("resilver_finish") && seen.contains("\"sequential\""), "{seen}");
    let feature = ["zpool", "get", "-H", "-o", "value", "feature@device_rebuild", "tank"];
    assert_eq!(s.ok(&feature), "enabled\n");
    s.ok(&["zpool", "create", "-m", "none", "raid", "raidz", &d[3], &d[4], &d[5]]);
    let refused = s.fail(1, &["zpool", "replace", "-s", "raid", &d[3], &d[6]]);
    let words = "only mirror and dRAID vdevs support sequential reconstruction";
    assert_eq!(refused, format!("cannot replace {} with {}: {words}\n", d[3], d[6]));
    s.ok(&["zpool", "destroy", "raid"]);
    s.ok(&["zpool", "create", "-o", "feature@device_rebuild=disabled", "raid", &d[3]]);
    let refused = s.fail(1, &["zpool", "attach", "-s", "raid", &d[3], &d[6]]);
    let words = "device_rebuild feature must be enabled in order to use sequential reconstruction";
    assert_eq!(refused, format!("cannot attach {} to {}: {words}\n", d[6], d[3]));
    s.ok(&["zpool", "destroy", "raid"]);
    s.ok(&["zpool", "export", "tank"]);
    judge_disks(&s);
    s.ok(&["daemon", "stop"]);
}

/// The lines about the devices of a status, with the last parts of paths, and without widths.
fn devices_of(status: &str) -> Vec<String> {
    let lines = status.lines().skip_while(|l| *l != "config:").skip(2);
    let last = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
    let line = |l: &str| {
        let indent = l.len() - l.trim_start().len();
        let words: Vec<String> = l.split_whitespace().map(last).collect();
        format!("{indent} {}", words.join(" "))
    };
    lines.take_while(|l| !l.starts_with("errors:")).map(line).collect()
}

/// What OpenZFS left in the middle is shown as OpenZFS shows it.
#[test]
fn the_devices_of_pools_that_openzfs_left_half_done() {
    for name in ["replacing", "hotspare", "outdated", "dspared"] {
        let Some(pool) = testkit::golden(name) else {
            testkit::skip(testkit::Need::Shared, name);
            continue;
        };
        let s = Sandbox::new(&format!("devices-{name}"));
        pool.unpack(&s.dir("disks"));
        let disks = s.text("disks");
        s.ok(&["zpool", "import", "-N", "-f", "-o", "readonly=on", "-d", &disks, name]);
        let (found, wanted) = (s.ok(&["zpool", "status", name]), pool.text("status.txt").unwrap());
        assert_eq!(devices_of(&found), devices_of(&wanted), "{name}");
        if name == "dspared" && ui::time::strftime("%Z", 0) == "UTC" {
            let scans = |text: &str| -> Vec<String> {
                text.lines().filter(|l| l.contains("scan:")).map(str::to_owned).collect()
            };
            assert_eq!(scans(&found), scans(&wanted));
        }
        s.ok(&["daemon", "stop"]);
    }
}

/// `-w` returns when the work is over, `zpool wait` too; `split -R` imports the new pool below the
/// directory.
#[test]
fn work_is_waited_for() {
    let s = Sandbox::new("devices-waits");
    let d = files(&s, "disks", 4);
    let elsewhere = files(&s, "others", 1).remove(0);
    s.ok(&["zpool", "create", "-O", "mountpoint=none", "tank", &d[0]]);
    let over = |what: &str, wanted: &[&str], gone: &[&str]| {
        let text = s.ok(&["zpool", "status", "-it", "tank"]);
        assert!(wanted.iter().all(|w| text.contains(w)), "{what}: {text}");
        let busy = ["in progress", "replacing-", "resilvering)", "started at"];
        assert!(busy.iter().chain(gone).all(|w| !text.contains(w)), "{what}: {text}");
    };
    s.ok(&["zpool", "attach", "-w", "tank", &d[0], &d[1]]);
    over("attach -w", &["mirror-0", "  scan: resilvered ", &d[1]], &[]);
    s.ok(&["zpool", "replace", "-w", "tank", &d[1], &elsewhere]);
    over("replace -w", &["  scan: resilvered ", &elsewhere], &[&d[1]]);
    s.ok(&["zpool", "replace", "tank", &elsewhere, &d[2]]);
    s.ok(&["zpool", "wait", "-t", "replace", "tank"]);
    over("wait -t replace", &["  scan: resilvered ", &d[2]], &[&elsewhere]);
    s.ok(&["zpool", "scrub", "-w", "tank"]);
    over("scrub -w", &["  scan: scrub repaired 0B in "], &[]);
    s.ok(&["zpool", "initialize", "-w", "tank", &d[0]]);
    over("initialize -w", &["(100% initialized, completed at"], &[]);
    let can_trim = !s.ok(&["zpool", "status", "-t", "tank"]).contains("(trim unsupported)");
    if can_trim {
        s.ok(&["zpool", "trim", "-w", "tank"]);
        over("trim -w", &["(100% trimmed, completed at"], &["untrimmed"]);
    }
    let root = s.text("alt");
    s.ok(&["zpool", "split", "-R", &root, "tank", "half"]);
    assert_eq!(s.ok(&["zpool", "list", "-H", "-o", "name"]), "half\ntank\n");
    assert_eq!(
        s.ok(&["zpool", "get", "-H", "-o", "value", "altroot", "half"]),
        format!("{root}\n")
    );
    assert_eq!(s.ok(&["zpool", "get", "-H", "-o", "value", "altroot", "tank"]), "-\n");
    let half = s.ok(&["zpool", "status", "half"]);
    assert!(half.contains(&d[2]) && half.contains("No known data errors"), "{half}");
    s.ok(&["zpool", "scrub", "-w", "half"]);
    s.ok(&["zpool", "export", "-a"]);
    judge_disks(&s);
    s.ok(&["daemon", "stop"]);
}
