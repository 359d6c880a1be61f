//! `zpool advise`: a pool with planted conditions, and one without.

#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::io::{Seek, Write};

use common::{Sandbox, can_mount, new_pool};
use serde_json::Value;

fn rules(s: &Sandbox) -> Vec<(String, String, String)> {
    let json: Value = serde_json::from_str(&s.ok(&["zpool", "advise", "-jp", "tank"])).unwrap();
    assert_eq!(json["output_version"]["command"], "zpool advise");
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let list = json["pools"]["tank"]["advice"].as_array().unwrap();
    list.iter().map(|a| (text(&a["rule"]), text(&a["about"]), text(&a["command"]))).collect()
}

#[test]
fn a_clean_pool_and_unknown_names() {
    if !can_mount("zpool advise") {
        return;
    }
    let s = Sandbox::new("advise-clean");
    assert_eq!(s.ok(&["zpool", "advise"]), "no pools available\n");
    new_pool(&s, 128, &[]);
    assert_eq!(
        s.ok(&["zpool", "advise"]),
        "   pool:  tank\n advice:  none; nothing hurts this pool\n"
    );
    assert_eq!(rules(&s), []);
    let said = s.say(&["zpool", "advise", "other", "tank"]);
    assert_eq!((said.code, &*said.err), (1, "cannot open 'other': no such pool\n"));
    assert!(said.out.contains("nothing hurts this pool"));
    s.fail(2, &["zpool", "advise", "-x"]);
    s.stop();
}

#[test]
fn planted_conditions_are_found() {
    if !can_mount("zpool advise") {
        return;
    }
    let s = Sandbox::new("advise-planted");
    let options = ["-O", "compression=off", "-O", "relatime=off"];
    new_pool(&s, 256, &options);
    s.ok(&["zfs", "create", "tank/below"]);
    std::fs::write(s.path("mnt/data"), vec![1; 40 << 20]).unwrap();
    // Pages of a database: 4 KiB at random places of records of 128 KiB, synchronously.
    let mut file = std::fs::OpenOptions::new().write(true).open(s.path("mnt/data")).unwrap();
    s.ok(&["zpool", "sync"]);
    for i in 0..1100u64 {
        file.seek(std::io::SeekFrom::Start((i * 7919 % 320) << 17 | 4096)).unwrap();
        file.write_all(&[i as u8; 4096]).unwrap();
        file.sync_all().unwrap();
        if i % 200 == 0 {
            s.ok(&["zpool", "sync"]);
        }
    }
    s.ok(&["zpool", "sync"]);
    let found = rules(&s);
    let due = [
        ("compression", "tank", "zfs set compression=on tank"),
        ("access_time", "tank", "zfs set relatime=on tank"),
    ];
    for (rule, about, command) in due {
        let due = (rule.to_owned(), about.to_owned(), command.to_owned());
        assert!(found.contains(&due), "{rule}: {found:?}");
    }
    let text = s.ok(&["zpool", "advise", "tank"]);
    // Lines are as wide as a terminal.
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in [
        "are stored without compression.",
        "run: zfs set relatime=on tank",
        "in 2 file systems (atime=on, relatime=off).",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // What the rules about use rest on is counted.
    let paths = s.ok(&["kstat", "-p", "-m", "zfs"]);
    assert!(paths.contains("cenote_read_modify_writes"), "{paths}");
    s.ok(&["zfs", "inherit", "relatime", "tank"]);
    assert!(!rules(&s).iter().any(|(rule, ..)| rule == "access_time"));
    drop(file);
    s.ok(&["zpool", "export", "tank"]);
    s.stop();
}
