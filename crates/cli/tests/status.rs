//! Stories of `zpool status`: as JSON, with the columns of scripts, and of error scrubs.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Sandbox, judge_disks, said};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;

/// A pool of a mirror, a log device, a cache device and a spare.
fn pool(s: &Sandbox) -> Vec<String> {
    let dir = s.dir("disks");
    let one = |n: usize| {
        let path = dir.join(format!("d{n}"));
        std::fs::File::create(&path).unwrap().set_len(128 << 20).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let d: Vec<String> = (0..5).map(one).collect();
    let [a, b, log, cache, spare] = [0, 1, 2, 3, 4].map(|n| d[n].as_str());
    let vdevs = ["mirror", a, b, "log", log, "cache", cache, "spare", spare];
    s.ok(&[&["zpool", "create", "-O", "mountpoint=none", "tank"][..], &vdevs].concat());
    d
}

fn json(s: &Sandbox, args: &[&str]) -> Value {
    let text = s.ok(&[&["zpool", "status"], args].concat());
    assert_eq!(text.lines().count(), 1, "{text}");
    let output: Value = serde_json::from_str(&text).unwrap();
    let command = serde_json::json!({"command": "zpool status", "vers_major": 0, "vers_minor": 1});
    assert_eq!(output["output_version"], command);
    output["pools"].clone()
}

/// Each flag says the same in both forms, and an error scrub is in both.
#[test]
fn json_says_what_the_text_says() {
    let s = Sandbox::new("status-json");
    let d = pool(&s);
    let tank = json(&s, &["-j"])["tank"].clone();
    assert_eq!((&tank["name"], &tank["state"]), (&"tank".into(), &"ONLINE".into()));
    let guid = s.ok(&["zpool", "get", "-Hpo", "value", "guid", "tank"]).trim().to_owned();
    assert_eq!(tank["pool_guid"], guid);
    assert_eq!((&tank["spa_version"], &tank["zpl_version"]), (&"5000".into(), &"5".into()));
    assert!(tank["txg"].as_str().unwrap().parse::<u64>().unwrap() > 3, "{tank}");
    let mirror = &tank["vdevs"]["tank"]["vdevs"]["mirror-0"];
    assert_eq!((&mirror["vdev_type"], &mirror["class"]), (&"mirror".into(), &"normal".into()));
    assert_eq!(mirror["vdevs"].as_object().unwrap().len(), 2);
    assert_eq!(mirror["vdevs"][&d[0]]["path"], d[0].as_str());
    assert_eq!(tank["logs"][&d[2]]["class"], "log");
    assert_eq!(tank["l2cache"][&d[3]]["class"], "l2cache");
    assert_eq!(tank["spares"][&d[4]]["state"], "AVAIL");
    assert_eq!(tank["error_count"], "0");
    assert_eq!(tank.get("scan_stats"), None, "nothing was scanned");

    // Numbers, exact and as numbers.
    let exact = json(&s, &["-jp"])["tank"]["vdevs"]["tank"]["total_space"].clone();
    let size = s.ok(&["zpool", "get", "-Hpo", "value", "size", "tank"]).trim().to_owned();
    assert_eq!(exact, size);
    let ints = json(&s, &["-j", "--json-int", "--json-pool-key-guid"]);
    let tank = &ints[&guid];
    assert_eq!(tank["vdevs"]["tank"]["total_space"].to_string(), size);
    assert_eq!(tank["pool_guid"].to_string(), guid);
    // A list's vdevs have the table's columns.
    let list = s.ok(&["zpool", "list", "-v", "-j", "--json-int", "-o", "name,size,health"]);
    let list: Value = serde_json::from_str(&list).unwrap();
    let tank = &list["pools"]["tank"];
    let mirror = &tank["vdevs"]["mirror-0"];
    assert_eq!(tank["properties"]["size"]["value"].to_string(), size, "{tank}");
    assert_eq!((&mirror["vdev_type"], &mirror["class"]), (&"mirror".into(), &"normal".into()));
    assert_eq!(mirror["properties"]["size"]["value"].to_string(), size, "{tank}");
    let leaf = &mirror["vdevs"][&d[0]];
    assert_eq!((&leaf["path"], &leaf["state"]), (&d[0].as_str().into(), &"ONLINE".into()));
    assert_eq!(leaf["properties"].as_object().unwrap().len(), 2);
    assert_eq!(tank["spares"][&d[4]]["properties"]["health"]["value"], "AVAIL");
    assert!(tank["logs"][&d[2]].is_object() && tank["l2cache"][&d[3]].is_object(), "{tank}");
    let flat = json(&s, &["-j", "--json-flat-vdevs", "-sit"])["tank"].clone();
    let all = flat["vdevs"].as_object().unwrap();
    assert_eq!(all.len(), 7, "{flat}");
    assert_eq!(
        (&all["mirror-0"]["parent"], &all[&d[1]]["parent"]),
        (&"tank".into(), &"mirror-0".into())
    );
    assert_eq!((&all[&d[2]]["parent"], flat.get("logs")), (&"tank".into(), None));
    assert_eq!(
        (&all[&d[1]]["slow_ios"], &all[&d[1]]["init_state"]),
        (&"0".into(), &"UNINITIALIZED".into())
    );
    assert!(all[&d[1]].get("trim_state").is_some() && all["mirror-0"].get("trim_state").is_none());
    let usage = s.fail(2, &["zpool", "status", "--json-int"]);
    assert!(usage.starts_with("'--json-int' only works with '-j'\n"), "{usage}");

    // What is not well.
    assert_eq!(json(&s, &["-jx"]), serde_json::json!({}));
    let only = json(&s, &["-je"])["tank"].clone();
    assert_eq!(only["vdevs"]["tank"]["vdevs"], serde_json::json!({}), "{only}");
    s.ok(&["zpool", "offline", "tank", &d[1]]);
    let tank = json(&s, &["-jxe"])["tank"].clone();
    let mirror = &tank["vdevs"]["tank"]["vdevs"]["mirror-0"];
    assert_eq!((&tank["state"], &mirror["state"]), (&"DEGRADED".into(), &"DEGRADED".into()));
    assert_eq!(mirror["vdevs"].as_object().unwrap().keys().collect::<Vec<_>>(), [&d[1]]);
    assert_eq!(mirror["vdevs"][&d[1]]["state"], "OFFLINE");
    let text = s.ok(&["zpool", "status", "tank"]);
    let status = tank["status"].as_str().unwrap();
    assert!(text.contains(&format!("status: {status}\naction: ")), "{text}");
    s.ok(&["zpool", "online", "tank", &d[1]]);
    s.ok(&["zpool", "wait", "tank"]);

    // Scrubs.
    s.ok(&["zpool", "scrub", "-w", "tank"]);
    let scan = json(&s, &["-j"])["tank"]["scan_stats"].clone();
    assert_eq!((&scan["function"], &scan["state"]), (&"SCRUB".into(), &"FINISHED".into()));
    assert_eq!((&scan["errors"], scan.get("err_scrub_state")), (&"0".into(), None));
    s.ok(&["zpool", "scrub", "-e", "-w", "tank"]);
    let text = s.ok(&["zpool", "status", "tank"]);
    assert!(text.contains("\n scrub: scrubbed 0 error blocks in 0 days 00:00:"), "{text}");
    assert!(!text.contains("  scan: "), "{text}");
    let scan = json(&s, &["-j"])["tank"]["scan_stats"].clone();
    assert_eq!(
        (&scan["function"], &scan["err_scrub_state"]),
        (&"SCRUB".into(), &"FINISHED".into())
    );
    assert_eq!(scan["err_scrub_examined"], "0");
    let refused = s.fail(1, &["zpool", "scrub", "-s", "tank"]);
    assert_eq!(refused, "cannot cancel scrubbing tank: there is no active scrub\n");
    s.ok(&["zpool", "wait", "-t", "scrub", "tank"]);
    s.ok(&["zpool", "scrub", "-w", "tank"]);
    let text = s.ok(&["zpool", "status", "tank"]);
    assert!(text.contains("  scan: scrub repaired") && !text.contains(" scrub: "), "{text}");
    s.ok(&["zpool", "export", "tank"]);
    s.stop();
    judge_disks(&s);
}

/// Scripts of the search path add columns, in both forms; for root on request only.
#[test]
fn scripts_add_columns() {
    let s = Sandbox::new("status-scripts");
    let d = pool(&s);
    let scripts = s.dir("scripts");
    let script = |name: &str, text: &str| {
        let path = scripts.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    };
    script("disk", "echo base=$(basename $VDEV_PATH) && echo pool=$POOL_NAME");
    script("fails", "echo cannot look; echo a=1");
    let run = |as_root: bool, args: &[&str]| {
        let mut command = s.command(&[&["zpool", "status"], args].concat());
        command.env("ZPOOL_SCRIPTS_PATH", &scripts);
        command.env_remove("ZPOOL_SCRIPTS_AS_ROOT");
        if as_root {
            command.env("ZPOOL_SCRIPTS_AS_ROOT", "1");
        }
        said(&command.output().unwrap())
    };
    if common::is_root("scripts as root") {
        let root = run(false, &["-c", "disk", "tank"]);
        let words = "Can't run -c with root privileges unless ZPOOL_SCRIPTS_AS_ROOT is set.\n";
        assert_eq!((root.code, root.err.as_str(), root.out.as_str()), (1, words, ""));
    }
    let list = run(true, &["-c"]);
    assert_eq!(list.out, "Available 'zpool status -c' commands:\n\tdisk\n\tfails\n");
    let text = run(true, &["-c", "disk,fails", "tank"]).out;
    let line = |name: &str| text.lines().find(|l| l.trim_start().starts_with(name)).unwrap();
    assert!(line("NAME").ends_with("CKSUM  base  pool  "), "{text}");
    assert!(line(&d[1]).ends_with("0  d1    tank  cannot look"), "{text}");
    assert!(line(&d[4]).ends_with("  d4    tank  cannot look"), "{text}");
    assert!(line("mirror-0").ends_with("     0     0     0"), "{text}");
    let output: Value = serde_json::from_str(&run(true, &["-j", "-c", "disk,fails"]).out).unwrap();
    let mirror = &output["pools"]["tank"]["vdevs"]["tank"]["vdevs"]["mirror-0"];
    assert_eq!(mirror["vdevs"][&d[0]]["base"], "d0");
    assert_eq!(mirror.get("base"), None);
    for (bad, why) in [("../disk", "not the name of a script"), ("nosuch", "it is not in the")] {
        let refused = run(true, &["-c", bad, "tank"]);
        assert!(refused.code == 1 && refused.err.contains(why), "{}", refused.err);
    }
    s.ok(&["zpool", "export", "tank"]);
    s.stop();
    judge_disks(&s);
}
