use std::os::unix::fs::PermissionsExt;

use cenote::zevent::NvList;

use super::*;

fn event(class: &str) -> PoolEvent {
    let mut values = NvList::new();
    values.add_str("pool", "tank").add_u64("pool_guid", 0xabc).add_u64("vdev_state", 5);
    values.insert("bad-ranges", Value::Uint32Array(vec![3, 4]));
    PoolEvent { eid: 9, time: (1_700_000_000, 42), class: class.to_owned(), values }
}

/// A directory of its own with one zedlet, which writes its environment to `out`.
fn with_zedlet(name: &str, mode: u32, body: &str) -> (PathBuf, PathBuf) {
    let dir = std::env::temp_dir().join(format!("zedlets-{name}-{}", std::process::id()));
    let _old = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    (dir, path)
}

#[test]
fn names_choose_events_by_class_subclass_or_all() {
    let finish = event("sysevent.fs.zfs.scrub_finish");
    for name in ["scrub_finish-notify.sh", "all-syslog.sh", "sysevent.fs.zfs.scrub_finish.x"] {
        assert!(wants(name, &finish), "{name}");
    }
    for name in ["scrub_finishing.sh", "scrub.sh", "allsorts.sh", "scrub_finish", "all"] {
        assert!(!wants(name, &finish), "{name}");
    }
}

#[test]
fn the_environment_tells_of_the_event_and_of_nothing_else() {
    let out = std::env::temp_dir().join(format!("zedlet-env-{}", std::process::id()));
    let (dir, path) =
        with_zedlet("statechange-test.sh", 0o755, &format!("env > {}", out.display()));
    let event = event("resource.fs.zfs.statechange");
    let found = zedlets(&dir, &event).unwrap();
    assert_eq!(found, [path]);
    run(&found, &environment(&event, &dir, Path::new("/opt/bin/cenote")), TIME_MAX);
    let text = std::fs::read_to_string(&out).unwrap();
    for line in [
        "ZEVENT_EID=9",
        "ZEVENT_CLASS=resource.fs.zfs.statechange",
        "ZEVENT_SUBCLASS=statechange",
        "ZEVENT_TIME=1700000000 42",
        "ZEVENT_POOL=tank",
        "ZEVENT_POOL_GUID=0x0000000000000ABC",
        "ZEVENT_VDEV_STATE=5",
        "ZEVENT_VDEV_STATE_STR=FAULTED",
        "ZEVENT_BAD_RANGES=3 4",
        "CENOTE=/opt/bin/cenote",
        "ZPOOL=/opt/bin/cenote",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is missing from\n{text}");
    }
    assert!(!text.contains("CARGO"), "{text}");
    std::fs::remove_file(&out).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn files_that_others_can_change_are_not_run() {
    let event = event("sysevent.fs.zfs.pool_import");
    for mode in [0o775, 0o757, 0o644] {
        let (dir, _) = with_zedlet("pool_import-x.sh", mode, "true");
        assert!(zedlets(&dir, &event).unwrap().is_empty(), "{mode:o}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
    let (dir, _) = with_zedlet("pool_import-y.sh", 0o755, "true");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(zedlets(&dir, &event).is_err());
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(zedlets(&dir, &event).unwrap().is_empty(), "no directory");
}

#[test]
fn a_zedlet_that_hangs_is_killed_with_its_children() {
    let out = std::env::temp_dir().join(format!("zedlet-hang-{}", std::process::id()));
    let body = format!("sleep 1000 & echo $! > {}; wait", out.display());
    let (dir, path) = with_zedlet("all-hang.sh", 0o755, &body);
    // On a busy machine the shell may be killed before it has started its child.
    let child = [1, 4, 16, 60].into_iter().find_map(|seconds| {
        run(std::slice::from_ref(&path), &BTreeMap::new(), Duration::from_secs(seconds));
        std::fs::read_to_string(&out).ok()?.trim().parse::<u32>().ok()
    });
    let child = child.expect("the zedlet started its child");
    // The child is gone, or a zombie that init has not collected yet.
    let lives = || {
        let state = std::fs::read_to_string(format!("/proc/{child}/stat"));
        state.is_ok_and(|state| !state.contains(") Z"))
    };
    let begin = rt::now();
    while lives() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{child} lives");
        rt::sleep(Duration::from_millis(10));
    }
    std::fs::remove_file(&out).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn the_thread_follows_the_log_and_ends_with_it() {
    let out = std::env::temp_dir().join(format!("zedlet-follow-{}", std::process::id()));
    let body = format!("echo \"$ZEVENT_SUBCLASS\" >> {}", out.display());
    let (dir, _) = with_zedlet("all-follow.sh", 0o755, &body);
    let log = Arc::new(EventLog::default());
    log.post("sysevent.fs.zfs.before_the_start", NvList::new());
    start(Arc::clone(&log), dir.clone(), PathBuf::from("/x")).unwrap();
    for class in ["sysevent.fs.zfs.scrub_start", "sysevent.fs.zfs.scrub_finish"] {
        log.post(class, NvList::new());
    }
    let begin = rt::now();
    while std::fs::read_to_string(&out).unwrap_or_default().lines().count() < 2 {
        assert!(begin.elapsed() < Duration::from_secs(60), "the zedlet did not run");
        rt::sleep(Duration::from_millis(10));
    }
    log.close();
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "scrub_start\nscrub_finish\n");
    std::fs::remove_file(&out).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}
