//! A daemon with few file descriptors.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, clippy::panic)]

mod common;

use std::process::Command;

use common::{Sandbox, can_mount, judge};

/// Starts a daemon that may have so many descriptors.
fn start(s: &Sandbox, limit: u32) {
    let script = format!("ulimit -n {limit}; exec \"$0\" daemon start");
    let out = Command::new("/bin/sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_cenote")])
        .env("CENOTE_RUNTIME_DIR", s.path("run"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
}

fn descriptors(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn threads(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count()
}

/// With `ulimit -n 256` and 24 datasets all descriptors were used up; export then said "not
/// mounted (or hidden under another mount)" of each mount, and nothing could be done.
#[test]
fn few_descriptors_are_enough_for_many_mounts() {
    if !can_mount("descriptors") {
        return;
    }
    let s = Sandbox::new("descriptors");
    start(&s, 256);
    common::new_pool(&s, 256, &[]);
    let (before, had) = (descriptors(s.pid()), threads(s.pid()));
    for n in 0..24 {
        s.ok(&["zfs", "create", &format!("tank/d{n}")]);
    }
    assert_eq!(s.mounts().iter().filter(|m| m.contains("/mnt/d")).count(), 24);
    let now = descriptors(s.pid());
    assert!(now <= before + 24 + 8, "{before} descriptors became {now}");
    let now = threads(s.pid());
    // Threads that serve all mounts come and go with the load; none belongs to a mount.
    assert!(now < had + 24, "{had} threads became {now}");
    std::fs::write(s.path("mnt/d7/file"), b"x").unwrap();
    judge(&s);
}

/// The last descriptors are for unmounting: a mount is refused before they are gone.
#[test]
fn mounts_are_refused_before_descriptors_run_out() {
    if !can_mount("descriptors") {
        return;
    }
    let s = Sandbox::new("descriptors-out");
    start(&s, 112);
    common::new_pool(&s, 256, &[]);
    let mut refused = None;
    for n in 0..112 {
        let said = s.say(&["zfs", "create", &format!("tank/d{n}")]);
        // The dataset is there all the same.
        if !said.err.is_empty() {
            refused = Some(said);
            break;
        }
    }
    let said = refused.expect("as many mounts as descriptors");
    assert!(said.err.contains("too many open files"), "{said:?}");
    assert!(s.mounts().len() > 8);
    assert!(s.ok(&["zfs", "list", "-H", "tank"]).starts_with("tank\t"));
    judge(&s);
}
