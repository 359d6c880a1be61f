//! What an administrator meets when something is wrong: the message, and the exit
//! code (1: it failed, 2: the command line is wrong).

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, clippy::panic)]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use cenote::PoolState;
use common::{Sandbox, can_mount, is_root, said};
use testkit::{Disk, copy_file, golden, leave_old_scrub};

/// A sandbox with a golden pool's disks in `disks`.
fn with(pool: &str, name: &str) -> Option<(Sandbox, Vec<PathBuf>)> {
    let pool = golden(pool)?;
    let s = Sandbox::new(name);
    let disks = pool.unpack(&s.dir("disks"));
    Some((s, disks))
}

/// `zpool import -d DISKS ...`
fn import<'a>(disks: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    [&["zpool", "import", "-d", disks], rest].concat()
}

#[test]
fn nothing_to_import() {
    let Some((s, _)) = with("kitchen", "nothing") else { return };
    let (nope, disks) = (s.text("nope"), s.text("disks"));
    let told = s.fail(1, &["zpool", "import", "-d", &nope]);
    let wanted =
        format!("{nope}: cannot open: No such file or directory\nno pools available to import\n");
    assert_eq!(told, wanted);
    let said = s.say(&["zpool", "import", "-d", s.dir("empty").to_str().unwrap()]);
    assert_eq!((said.code, said.err.as_str()), (0, "no pools available to import\n"));
    let told = s.fail(1, &import(&disks, &["nosuch"]));
    assert_eq!(told, "cannot import 'nosuch': no such pool available\n");
    assert_eq!(s.fail(1, &import(&disks, &["12345"])), told.replace("nosuch", "12345"));
}

#[test]
fn a_name_that_is_taken() {
    let Some((s, _)) = with("kitchen", "taken") else { return };
    let Some(other) = golden("clonedblk") else { return };
    other.unpack(&s.dir("other"));
    let (disks, others) = (s.text("disks"), s.text("other"));
    s.ok(&import(&disks, &["-N", "-o", "readonly=on", "kitchen"]));
    let taken = "cannot import 'kitchen': a pool with that name already exists\nuse the form \
                 'zpool import <pool | id> <newpool>' to give it a new name\n";
    // It is imported already; and another pool cannot have its name.
    assert_eq!(s.fail(1, &import(&disks, &["kitchen"])), taken);
    assert_eq!(s.fail(1, &import(&others, &["clonedblk", "kitchen"])), taken);
    // What is imported is not offered.
    let said = s.say(&import(&disks, &[]));
    assert_eq!((said.code, said.err.as_str()), (0, "no pools available to import\n"));
    s.ok(&import(&others, &["-N", "-o", "readonly=on", "clonedblk", "pantry"]));
    assert_eq!(s.ok(&["zpool", "list", "-Ho", "name"]), "kitchen\npantry\n");
    assert_eq!(s.fail(1, &["zpool", "status", "clonedblk"]), NO_CLONEDBLK);
}

const NO_CLONEDBLK: &str = "cannot open 'clonedblk': no such pool\n";

#[test]
fn two_pools_of_one_name() {
    let Some((s, _)) = with("clonedblk", "twins") else { return };
    let Some(other) = golden("dedup") else { return };
    let from = other.unpack(&s.dir("other"));
    let twin = Disk::new(s.path("disks/twin.img"));
    copy_file(&from[0], &twin.path);
    twin.edit_labels(|l| {
        l.add_str("name", "clonedblk");
    });
    let disks = s.text("disks");
    let told = s.fail(1, &import(&disks, &["clonedblk"]));
    let wanted = "cannot import 'clonedblk': more than one matching pool\nimport by numeric ID \
                  instead\n";
    assert_eq!(told, wanted);
    let list = s.ok(&import(&disks, &[]));
    let ids: Vec<&str> = list.lines().filter_map(|l| l.trim().strip_prefix("id: ")).collect();
    assert_eq!(ids.len(), 2, "{list}");
    s.ok(&import(&disks, &["-N", "-o", "readonly=on", ids[0]]));
    s.ok(&import(&disks, &["-N", "-o", "readonly=on", ids[1], "second"]));
    assert_eq!(s.ok(&["zpool", "list", "-Ho", "name"]), "clonedblk\nsecond\n");
}

#[test]
fn a_foreign_pool() {
    let Some((s, disks)) = with("clonedblk", "foreign") else { return };
    let disk = Disk::new(&disks[0]);
    disk.edit_labels(|l| {
        l.add_u64("state", PoolState::Active.code());
        l.add_u64("hostid", 0xdead_beef);
        l.add_str("hostname", "elsewhere");
    });
    let last = disk.uberblocks().into_iter().map(|u| u.2).max_by(|a, b| a.compare(b)).unwrap();
    let date = |format: &str| {
        let at = format!("@{}", last.timestamp);
        let out = std::process::Command::new("date").args(["-u", "-d", &at, format]).output();
        String::from_utf8(out.unwrap().stdout).unwrap().trim_end().to_owned()
    };
    let dir = s.text("disks");
    let told = s.fail(1, &import(&dir, &["-N", "clonedblk"]));
    let wanted = format!(
        "cannot import 'clonedblk': pool was previously in use from another system.\nLast \
         accessed by elsewhere (hostid=deadbeef) at {}\nThe pool can be imported, use 'zpool \
         import -f' to import the pool.\n",
        date("+%a %b %e %H:%M:%S %Y")
    );
    assert_eq!(told, wanted);
    let list = s.ok(&import(&dir, &[]));
    assert!(list.contains("\nstatus: The pool was last accessed by another system.\n"), "{list}");
    assert!(list.contains("identifier and\n\tthe '-f' flag.\n"), "{list}");
    s.ok(&import(&dir, &["-N", "-f", "-o", "readonly=on", "clonedblk"]));
}

#[test]
fn unknown_features() {
    let Some((s, disks)) = with("clonedblk", "features") else { return };
    Disk::new(&disks[0]).edit_labels(|l| {
        let mut features = l.list("features_for_read").unwrap().clone();
        features.add_flag("com.example:unknown");
        l.add_list("features_for_read", features);
    });
    let dir = s.text("disks");
    let told = s.fail(1, &import(&dir, &["-f", "clonedblk"]));
    assert!(told.starts_with("cannot import 'clonedblk': "), "{told}");
    assert!(told.contains("com.example:unknown"), "{told}");
    let list = s.ok(&import(&dir, &[]));
    assert!(list.contains("feature(s) not supported on this system:\n\tcom.example:unknown"));
}

#[test]
fn missing_devices() {
    let Some((s, disks)) = with("graidz1w3", "missing") else { return };
    std::fs::remove_file(&disks[0]).unwrap();
    std::fs::remove_file(&disks[1]).unwrap();
    let dir = s.text("disks");
    let said = s.say(&import(&dir, &["graidz1w3"]));
    let first = "cannot import 'graidz1w3': one or more devices is currently unavailable\nconfig:\
                 \n\n\tgraidz1w3 ";
    assert_eq!(said.code, 1);
    assert!(said.err.starts_with(first), "{}", said.err);
    let rows: Vec<String> = said.err.lines().skip(3).map(squeezed).collect();
    assert_eq!(rows[0], "graidz1w3 UNAVAIL");
    assert_eq!(rows[1], "raidz1-0 UNAVAIL insufficient replicas");
    assert!(rows[2].ends_with("disk1.img UNAVAIL cannot open"), "{rows:?}");
    assert!(rows[3].ends_with("disk2.img UNAVAIL cannot open"), "{rows:?}");
    assert_eq!(rows[4], format!("{} ONLINE", disks[2].display()));
    let list = s.ok(&import(&dir, &[]));
    assert!(list.contains("Attach the missing\n\tdevices and try again.\n"), "{list}");
}

fn squeezed(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn options_that_are_refused() {
    let Some((s, _)) = with("snaps", "options") else { return };
    leave_old_scrub(&s.path("disks"));
    let dir = s.text("disks");
    let refuse = |code, rest: &[&str]| {
        let told = s.fail(code, &import(&dir, rest));
        told.lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(
        refuse(1, &["-c", "/etc/zfs/zpool.cache", "snaps"]),
        "cannot run 'zpool import' with -c: the use of cache files is not supported by this version \
         of Cenote"
    );
    // This one cannot be written, and says so; it is imported all the same.
    let said = s.say(&import(&dir, &["-N", "-f", "-o", "readonly=off", "snaps"]));
    assert_eq!(said.code, 0, "a script took the pool for one that is not imported");
    let told = said.err;
    assert!(told.contains("'snaps' is imported read-only: "), "{told}");
    s.ok(&["zpool", "export", "snaps"]);
    assert_eq!(
        refuse(2, &["-R", "here", "snaps"]),
        "bad alternate root 'here': must be an absolute path"
    );
    assert_eq!(refuse(2, &["-o", "x=y", "snaps"]), "property 'x' is not valid at import");
    assert_eq!(refuse(2, &["-z"]), "invalid option 'z'");
    assert_eq!(refuse(2, &["-a", "snaps"]), "too many arguments");
    assert_eq!(refuse(2, &["-n", "snaps"]), "-n or -X only meaningful with -F");
    for command in [&["zpool", "list"][..], &["zpool", "get", "all"]] {
        let wanted = "'--json-int' only works with '-j'\nusage:\n";
        let told = s.fail(2, &[command, &["--json-int"]].concat());
        assert!(told.starts_with(wanted), "{told}");
    }
}

#[test]
fn without_a_daemon() {
    let s = Sandbox::new("nodaemon");
    let none = s.say(&["daemon", "status"]);
    assert_eq!(none.code, 1);
    assert_eq!(none.out, format!("no daemon is running in {}\n", s.text("run")));
    assert_eq!(s.fail(0, &["daemon", "stop"]), "no daemon is running\n");
    assert_eq!(s.fail(1, &["zpool", "export", "x"]), "cannot open 'x': no such pool\n");
    assert_eq!(s.fail(1, &["zfs", "mount", "x"]), "cannot open 'x': dataset does not exist\n");
    assert_eq!(s.fail(1, &["zfs", "unmount", "/x"]), "cannot unmount '/x': not a mountpoint\n");
    assert_eq!(s.fail(1, &["zfs", "get", "all", "x"]), "cannot open 'x': dataset does not exist\n");
    // None of them started one.
    assert!(!s.path("run").exists());
}

#[test]
fn mounting_and_unmounting() {
    if !can_mount("messages of mounting") {
        return;
    }
    let Some((s, _)) = with("snaps", "mounting") else { return };
    let (dir, root) = (s.text("disks"), s.text("mnt"));
    s.ok(&import(&dir, &["-o", "readonly=on", "-R", &root, "snaps"]));
    let again = s.fail(1, &["zfs", "mount", "snaps"]);
    assert_eq!(again, "cannot mount 'snaps': filesystem already mounted\n");
    let nowhere = s.fail(1, &["zfs", "mount", "snaps/none"]);
    assert_eq!(nowhere, "cannot open 'snaps/none': dataset does not exist\n");
    let kind = s.fail(1, &["zfs", "mount", "snaps@all"]);
    assert_eq!(
        kind,
        "cannot open 'snaps@all': operation not applicable to datasets of this type\n"
    );
    s.ok(&["zfs", "unmount", "snaps/fs"]);
    let twice = s.fail(1, &["zfs", "unmount", "snaps/fs"]);
    assert_eq!(twice, "cannot unmount 'snaps/fs': not currently mounted\n");
    let rw = s.fail(1, &["zfs", "mount", "-o", "rw", "snaps/fs"]);
    assert_eq!(rw, "cannot mount 'snaps/fs': the pool is imported read-only\n");
    let odd = s.fail(1, &["zfs", "mount", "-o", "ro,odd", "snaps/fs"]);
    assert_eq!(odd, "cannot mount 'snaps/fs': invalid mount option 'odd'\n");
    s.ok(&["zfs", "mount", "-o", "noexec,nosuid", "snaps/fs"]);
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let at = format!("{root}/snaps/fs");
    let line = table.lines().find(|l| l.split(' ').nth(1) == Some(&at)).unwrap();
    let flags: Vec<&str> = line.split(' ').nth(3).unwrap().split(',').collect();
    for flag in ["ro", "noexec", "nosuid"] {
        assert!(flags.contains(&flag), "{line}");
    }

    // A file open inside keeps it from being unmounted, but not with force.
    let open = std::fs::File::open(format!("{at}/.")).unwrap();
    let busy = s.fail(1, &["zpool", "export", "snaps"]);
    let wanted = format!(
        "cannot unmount '{at}': pool or dataset is busy\ncannot export 'snaps': pool is busy\n"
    );
    assert_eq!(busy, wanted);
    s.ok(&["zpool", "export", "-f", "snaps"]);
    drop(open);
    s.stop();
}

/// Mountpoints inside another file system that lacks their directories and is
/// read-only: each is told, the rest goes on, and the pool stays imported.
#[test]
fn mountpoints_that_cannot_be_made() {
    if !can_mount("mountpoints that cannot be made") {
        return;
    }
    let Some((s, _)) = with("kitchen", "nested") else { return };
    let Some(other) = golden("snaps") else { return };
    other.unpack(&s.dir("other"));
    let (disks, others) = (s.text("disks"), s.text("other"));
    s.ok(&import(&disks, &["-o", "readonly=on", "-R", &s.text("mnt"), "kitchen"]));
    let inside = s.text("mnt/kitchen");
    let told = s.fail(1, &import(&others, &["-o", "readonly=on", "-R", &inside, "snaps"]));
    let told: Vec<&str> = told.lines().collect();
    let wanted: Vec<String> = ["", "/fs", "/promoted", "/renamed"]
        .map(|d| {
            format!(
                "cannot mount '{inside}/snaps{d}': failed to create mountpoint: Read-only file \
                 system"
            )
        })
        .to_vec();
    assert_eq!(told, wanted);
    assert_eq!(s.ok(&["zpool", "list", "-Ho", "name"]), "kitchen\nsnaps\n");
    assert_eq!(s.ok(&["zfs", "mount"]).lines().count(), 1);
    s.ok(&["zpool", "export", "-a"]);
    s.stop();
}

/// An ordinary user is told which devices cannot be opened, and is not served by
/// root's daemon.
#[test]
fn permission_denied() {
    if !is_root("messages about permissions") {
        return;
    }
    let Some((s, disks)) = with("clonedblk", "denied") else { return };
    let mode = |m| std::fs::Permissions::from_mode(m);
    std::fs::set_permissions(&disks[0], mode(0o600)).unwrap();
    let dir = s.text("disks");
    // The program lies where an ordinary user need not be able to look.
    let program = s.path("cenote");
    std::fs::copy(env!("CARGO_BIN_EXE_cenote"), &program).unwrap();
    let own = s.dir("own");
    std::os::unix::fs::chown(&own, Some(65534), Some(65534)).unwrap();
    let run = |args: &[&str], runtime: PathBuf| {
        let mut command = std::process::Command::new(&program);
        command.args(args).env("CENOTE_RUNTIME_DIR", runtime);
        command.uid(65534).gid(65534);
        loop {
            match command.output() {
                Ok(out) => break said(&out),
                // Another test's child still holds the copy open for writing.
                Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => {}
                Err(e) => panic!("{e}"),
            }
        }
    };
    let told = run(&import(&dir, &["clonedblk"]), own.join("run"));
    assert_eq!(told.code, 1, "{told:?}");
    let denied =
        format!("{}: permission denied; run as its owner or as root\n", disks[0].display());
    let wanted = format!("{denied}cannot import 'clonedblk': no such pool available\n");
    assert_eq!(told.err, wanted);
    run(&["daemon", "stop"], own.join("run"));

    s.ok(&import(&dir, &["-N", "-o", "readonly=on", "clonedblk"]));
    // Other users see root's pools, and change nothing.
    let told = run(&["zpool", "list", "-Ho", "name"], s.path("run"));
    assert_eq!((told.code, told.out.as_str()), (0, "clonedblk\n"), "{told:?}");
    let told = run(&["zpool", "export", "clonedblk"], s.path("run"));
    let denied = "cannot export 'clonedblk': permission denied\n";
    assert_eq!((told.code, told.err.as_str()), (1, denied));
}

/// The commands that look after devices: wrong pools, devices and options. None of them changes
/// anything.
#[test]
fn pools_and_devices_that_are_not_there() {
    let s = Sandbox::new("care");
    let file = |name: &str, mib: u64| {
        let path = s.dir("disks").join(name);
        std::fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (d0, d1, d2, tiny) = (file("d0", 96), file("d1", 96), file("d2", 96), file("tiny", 20));
    let (dir, none) = (s.dir("dir").to_str().unwrap().to_owned(), s.text("none"));
    s.ok(&["zpool", "create", "-m", "none", "tank", "mirror", &d0, &d1]);
    let before = s.ok(&["zpool", "status", "-P", "tank"]);
    let named = |text: &str| {
        let names = [("{d0}", &d0), ("{d2}", &d2), ("{tiny}", &tiny), ("{dir}", &dir)];
        let names = names.into_iter().chain([("{none}", &none)]);
        names.fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    };
    let cases: [(i32, &str, &str); 48] = [
        (1, "scrub nosuch", "cannot open 'nosuch': no such pool"),
        (1, "scrub -w nosuch", "cannot open 'nosuch': no such pool"),
        (1, "scrub -s tank", "cannot cancel scrubbing tank: there is no active scrub"),
        (1, "scrub -p tank", "cannot pause scrubbing tank: there is no active scrub"),
        (2, "scrub", "missing pool name argument"),
        (2, "scrub -s -p tank", "invalid option combination: -s and -p are mutually exclusive"),
        (2, "scrub -e -C tank", "invalid option combination: -e and -C are mutually exclusive"),
        (1, "resilver nosuch", "cannot open 'nosuch': no such pool"),
        (1, "attach nosuch {d0} {d2}", "cannot open 'nosuch': no such pool"),
        (1, "attach tank {none} {d2}", "cannot attach {d2} to {none}: no such device in pool"),
        (1, "attach tank {d0} {none}", "cannot resolve path '{none}'"),
        (1, "attach tank {d0} {dir}", "cannot use '{dir}': must be a block device or regular file"),
        (1, "attach tank {d0} {tiny}", "cannot attach {tiny} to {d0}: too small: "),
        (
            1,
            "attach tank mirror-0 {d2}",
            "cannot attach {d2} to mirror-0: can only attach to mirrors and top-level disks",
        ),
        (
            1,
            "attach -o ashift=99 tank {d0} {d2}",
            "invalid 'ashift=99' property: only values between 9 and 16 are allowed.",
        ),
        (1, "replace nosuch {d0} {d2}", "cannot open 'nosuch': no such pool"),
        (1, "replace tank {none}", "cannot replace {none} with {none}: no such device in pool"),
        (1, "replace tank {d0} {none}", "cannot resolve path '{none}'"),
        (1, "replace tank {d0} {tiny}", "cannot replace {d0} with {tiny}: too small: "),
        (1, "replace tank mirror-0 {d2}", "cannot replace mirror-0 with {d2}: can only replace"),
        (2, "replace tank {d0} {d2} {d2}", "too many arguments"),
        (1, "detach tank {none}", "cannot detach {none}: no such device in pool"),
        (1, "detach nosuch {d0}", "cannot open 'nosuch': no such pool"),
        (1, "offline tank {none}", "cannot offline {none}: no such device in pool"),
        (1, "offline nosuch {d0}", "cannot open 'nosuch': no such pool"),
        (2, "offline tank", "missing device name"),
        (1, "online tank {none}", "couldn't find device \"{none}\" in pool \"tank\""),
        (
            1,
            "online -e tank mirror-0",
            "cannot online mirror-0: operation not supported on this type of pool",
        ),
        (1, "split tank half {none}", "Unable to split tank: no such device in pool"),
        (1, "split nosuch half", "cannot open 'nosuch': no such pool"),
        (1, "split tank tank", "Unable to split tank: pool already exists"),
        (2, "split tank", "Missing new pool name"),
        (1, "checkpoint nosuch", "cannot open 'nosuch': no such pool"),
        (1, "checkpoint -d tank", "cannot discard checkpoint in 'tank': checkpoint does not exist"),
        (1, "trim nosuch", "cannot open 'nosuch': no such pool"),
        (1, "trim tank {none}", "cannot trim '{none}': no such device in pool"),
        (2, "trim -r x tank", "invalid value for rate 'x': bad numeric value 'x'"),
        (1, "initialize nosuch", "cannot open 'nosuch': no such pool"),
        (1, "initialize tank {none}", "cannot initialize '{none}': no such device in pool"),
        (2, "wait -t nosuch tank", "invalid activity 'nosuch'"),
        (1, "wait nosuch", "cannot open 'nosuch': no such pool"),
        (1, "reopen nosuch", "cannot open 'nosuch': no such pool"),
        (1, "clear tank {none}", "cannot clear errors for {none}: no such device in pool"),
        (1, "labelclear {none}", "failed to open {none}: No such file or directory"),
        (1, "labelclear -f {d0}", "{d0} is a member (ACTIVE) of pool \"tank\""),
        (1, "add tank spare {none}", "cannot resolve path '{none}'"),
        (1, "remove tank {none}", "cannot remove {none}: no such device in pool"),
        (
            1,
            "set checksum_n=5 tank {none}",
            "cannot set property for '{none}' on 'tank': no such device in pool",
        ),
    ];
    for (code, line, words) in cases {
        let words = named(words);
        let line = named(line);
        let args: Vec<&str> = ["zpool"].into_iter().chain(line.split(' ')).collect();
        let told = s.fail(code, &args);
        assert!(told.starts_with(&words), "{line}: {told}");
    }
    assert_eq!(s.ok(&["zpool", "status", "-P", "tank"]), before);
    assert!(std::fs::read(&d2).unwrap().iter().all(|byte| *byte == 0), "a device was written");
    s.ok(&["zpool", "destroy", "tank"]);
    s.ok(&["daemon", "stop"]);
}

#[test]
fn the_simulator_and_its_arguments() {
    let s = Sandbox::new("simulator");
    for (args, told) in [
        (vec!["--runs", "none"], "invalid value 'none' of '--runs': it is a number from 1 on\n"),
        (vec!["--runs", "0"], "invalid value '0' of '--runs': it is a number from 1 on\n"),
        (vec!["--seed", "-1"], "invalid value '-1' of '--seed': it is a number\n"),
        (vec!["--threads=65"], "invalid value '65' of '--threads': it is a number from 1 to 64\n"),
        (vec!["--keep", "1,x"], "invalid value 'x' of '--keep': it is a number\n"),
        (vec!["--crash", "7:"], "invalid value '' of '--crash': it is a number\n"),
        (vec!["--vdevs", "five"], "invalid value 'five' of '--vdevs': there is no such name\n"),
        (vec!["--workload", "x"], "invalid value 'x' of '--workload': there is no such name\n"),
        (vec!["--dir", "d"], "'--dir' goes with '--crash'\n"),
        (vec!["--nope"], "invalid option '--nope'\n"),
        (vec!["tank"], "unexpected argument 'tank'\n"),
    ] {
        let said = s.fail(2, &[vec!["sim"], args].concat());
        let usage = said.strip_prefix(told).unwrap_or_else(|| panic!("{said}"));
        assert!(usage.starts_with("usage: cenote sim "), "{said}");
    }
    assert!(s.ok(&["sim", "--help"]).starts_with("usage: cenote sim "));
    let short = ["sim", "--workload", "short", "--vdevs", "single", "--every", "40"];
    let ok = s.ok(&short);
    assert!(ok.starts_with("1 runs, ") && ok.ends_with(" images a second\n"), "{ok}");
    for workload in ["posix", "logs"] {
        let run = ["sim", "--workload", workload, "--vdevs", "single", "--every", "60"];
        assert!(s.ok(&run).starts_with("1 runs, "), "{workload}");
        let fixed = s.fail(2, &["sim", "--workload", workload, "--fault", "drop"]);
        assert!(fixed.contains("'--fault' does not go with"), "{fixed}");
    }
    let early = s.fail(2, &["sim", "--workload", "posix", "--seed", "2", "--crash", "1"]);
    let start = early.lines().next().unwrap().strip_prefix("the run begins with event ").unwrap();
    let crash = s.ok(&["sim", "--workload", "posix", "--seed", "2", "--crash", start]);
    assert!(crash.contains("is whole\n"), "{crash}");
    // A bug is found, shown with its seed and shortest sequence, and found again by the
    // command that is shown.
    let bug = ["sim", "--seed", "1", "--workload", "churn", "--plant", "lose-entry"];
    let told = s.fail(1, &bug);
    let again = told.lines().last().and_then(|l| l.strip_prefix("  again: cenote ")).unwrap();
    let words: Vec<&str> = again.split(' ').collect();
    assert!(told.starts_with("seed 1: ") && again.contains(" --keep "), "{told}");
    let what = told.lines().next().unwrap().strip_prefix("seed 1: ").unwrap();
    assert_eq!(s.fail(1, &words), format!("{what}\n"));
}
