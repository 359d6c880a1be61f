//! Delegated permissions: `zfs allow`, `zfs unallow`, and what other users may do with root's
//! pools.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

#[path = "../common/mod.rs"]
mod common;

mod streams;

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::{Said, Sandbox, can_mount, is_root, judge, new_pool, said};
use testkit::golden;

/// The ordinary user, and one who was granted nothing.
const USER: u32 = 1000;
const OTHER: u32 = 65534;

/// Root's daemon with a pool, and a program that other users can run.
struct SharedDaemon {
    s: Sandbox,
    program: PathBuf,
}

impl SharedDaemon {
    fn new(name: &str) -> SharedDaemon {
        let s = Sandbox::new(name);
        let program = s.path("cenote");
        std::fs::copy(env!("CARGO_BIN_EXE_cenote"), &program).unwrap();
        SharedDaemon { s, program }
    }

    /// Runs the program as a user, with root's runtime directory.
    fn as_user(&self, uid: u32, args: &[&str]) -> Said {
        let mut command = Command::new(&self.program);
        command.args(args).env("CENOTE_RUNTIME_DIR", self.s.path("run")).env("TZ", "UTC");
        command.uid(uid).gid(uid).current_dir("/");
        said(&command.output().unwrap())
    }

    /// The same, with this standard input; its standard output as it is.
    fn fed_as(&self, uid: u32, args: &[&str], input: &[u8]) -> (Said, Vec<u8>) {
        let mut command = Command::new(&self.program);
        command.args(args).env("CENOTE_RUNTIME_DIR", self.s.path("run")).env("TZ", "UTC");
        command.uid(uid).gid(uid).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        // A command that refuses need not read.
        let _refused = pipe.write_all(input);
        drop(pipe);
        let output = child.wait_with_output().unwrap();
        (said(&output), output.stdout)
    }

    /// It must succeed without a word.
    fn user_ok(&self, args: &[&str]) -> String {
        let said = self.as_user(USER, args);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{args:?}");
        said.out
    }

    /// It must be refused; its message.
    fn user_fails(&self, args: &[&str]) -> String {
        let said = self.as_user(USER, args);
        assert_eq!(said.code, 1, "{args:?}: {said:?}");
        said.err
    }

    /// Grants permissions at the pool's root.
    fn allow(&self, permissions: &str) {
        self.s.ok(&["zfs", "allow", "-u", "1000", permissions, "tank"]);
    }

    fn unallow(&self) {
        self.s.ok(&["zfs", "unallow", "-u", "1000", "tank"]);
        assert_eq!(self.s.ok(&["zfs", "allow", "tank"]), "");
    }

    /// All datasets, with some of their properties.
    fn state(&self) -> String {
        let columns = "name,type,origin,quota,compression,userrefs,volsize,com.example:x";
        self.s.ok(&["zfs", "list", "-Hp", "-t", "all", "-o", columns])
    }
}

/// A command of an ordinary user, what it needs, and how root undoes it.
struct TriedCommand {
    args: &'static [&'static str],
    /// Its message without the permissions.
    refused: &'static str,
    /// Separated by commas.
    needs: &'static str,
    before: &'static [&'static [&'static str]],
    after: &'static [&'static [&'static str]],
}

const fn row(
    args: &'static [&'static str],
    refused: &'static str,
    needs: &'static str,
) -> TriedCommand {
    TriedCommand { args, refused, needs, before: &[], after: &[] }
}

impl TriedCommand {
    const fn before(self, before: &'static [&'static [&'static str]]) -> TriedCommand {
        TriedCommand { before, ..self }
    }
    const fn after(self, after: &'static [&'static [&'static str]]) -> TriedCommand {
        TriedCommand { after, ..self }
    }
}

const ROWS: &[TriedCommand] = &[
    row(&["zfs", "snapshot", "tank/a@n"], "cannot create snapshot 'tank/a@n'", "snapshot")
        .after(&[&["zfs", "destroy", "tank/a@n"]]),
    row(
        &["zfs", "snapshot", "-o", "com.example:x=1", "tank/a@n"],
        "cannot create snapshot 'tank/a@n'",
        "snapshot,userprop",
    )
    .after(&[&["zfs", "destroy", "tank/a@n"]]),
    row(&["zfs", "destroy", "tank/a@d"], "cannot destroy snapshot 'tank/a@d'", "destroy,mount")
        .before(&[&["zfs", "snapshot", "tank/a@d"]]),
    row(&["zfs", "destroy", "tank/a#d"], "cannot destroy bookmark 'tank/a#d'", "destroy")
        .before(&[&["zfs", "bookmark", "tank/a@s", "tank/a#d"]]),
    row(&["zfs", "destroy", "-r", "tank/a/d"], "cannot destroy 'tank/a/d'", "destroy,mount")
        .before(&[&["zfs", "create", "tank/a/d"]]),
    row(&["zfs", "create", "tank/a/n"], "cannot create 'tank/a/n'", "create,mount")
        .after(&[&["zfs", "destroy", "tank/a/n"]]),
    row(
        &["zfs", "create", "-o", "quota=64M", "-o", "com.example:x=1", "tank/a/n"],
        "cannot create 'tank/a/n'",
        "create,mount,quota,userprop",
    )
    .after(&[&["zfs", "destroy", "tank/a/n"]]),
    row(&["zfs", "create", "-p", "tank/a/n/m"], "cannot create 'tank/a/n/m'", "create,mount")
        .after(&[&["zfs", "destroy", "-r", "tank/a/n"]]),
    row(&["zfs", "create", "-sV", "16M", "tank/a/v"], "cannot create 'tank/a/v'", "create,mount")
        .after(&[&["zfs", "destroy", "tank/a/v"]]),
    row(
        &["zfs", "create", "-V", "16M", "tank/a/v"],
        "cannot create 'tank/a/v'",
        "create,mount,refreservation",
    )
    .after(&[&["zfs", "destroy", "tank/a/v"]]),
    row(&["zfs", "clone", "tank/a@s", "tank/n"], "cannot create 'tank/n'", "clone,create,mount")
        .after(&[&["zfs", "destroy", "tank/n"]]),
    row(&["zfs", "promote", "tank/clone"], "cannot promote 'tank/clone'", "promote,mount")
        .after(&[&["zfs", "promote", "tank/a"]]),
    row(
        &["zfs", "rename", "tank/a/b", "tank/n"],
        "cannot rename 'tank/a/b'",
        "rename,create,mount",
    )
    .after(&[&["zfs", "rename", "tank/n", "tank/a/b"]]),
    row(
        &["zfs", "rename", "tank/a@s", "tank/a@n"],
        "cannot rename 'tank/a@s'",
        "rename,create,mount",
    )
    .after(&[&["zfs", "rename", "tank/a@n", "tank/a@s"]]),
    row(&["zfs", "rollback", "tank/a@s"], "cannot rollback 'tank/a@s'", "rollback,mount"),
    row(
        &["zfs", "rollback", "-r", "tank/a/b@one"],
        "cannot rollback 'tank/a/b@one'",
        "rollback,mount,destroy",
    )
    .before(&[&["zfs", "snapshot", "tank/a/b@one"], &["zfs", "snapshot", "tank/a/b@two"]])
    .after(&[&["zfs", "destroy", "tank/a/b@one"]]),
    row(&["zfs", "hold", "mine", "tank/a@s"], "cannot hold snapshot 'tank/a@s'", "hold")
        .after(&[&["zfs", "release", "mine", "tank/a@s"]]),
    row(
        &["zfs", "release", "mine", "tank/a@s"],
        "cannot release hold from snapshot 'tank/a@s'",
        "release",
    )
    .before(&[&["zfs", "hold", "mine", "tank/a@s"]]),
    row(
        &["zfs", "bookmark", "tank/a@s", "tank/a#n"],
        "cannot create bookmark 'tank/a#n'",
        "bookmark",
    )
    .after(&[&["zfs", "destroy", "tank/a#n"]]),
    row(&["zfs", "set", "quota=64M", "tank/a"], "cannot set property for 'tank/a'", "quota")
        .after(&[&["zfs", "set", "quota=none", "tank/a"]]),
    row(
        &["zfs", "set", "compression=off", "com.example:x=1", "tank/a"],
        "cannot set property for 'tank/a'",
        "compression,userprop",
    )
    .after(&[
        &["zfs", "inherit", "compression", "tank/a"],
        &["zfs", "inherit", "com.example:x", "tank/a"],
    ]),
    row(
        &["zfs", "set", "com.example:x=1", "tank/a@s"],
        "cannot set property for 'tank/a@s'",
        "userprop",
    )
    .after(&[&["zfs", "inherit", "com.example:x", "tank/a@s"]]),
    row(
        &["zfs", "set", "userquota@1=64M", "tank/a"],
        "cannot set property for 'tank/a'",
        "userquota",
    )
    .after(&[&["zfs", "set", "userquota@1=none", "tank/a"]]),
    row(
        &["zfs", "inherit", "compression", "tank/a"],
        "cannot inherit property for 'tank/a'",
        "compression",
    ),
    row(
        &["zfs", "set", "mountpoint=/nowhere", "tank/a"],
        "cannot set property for 'tank/a'",
        "mountpoint",
    )
    .after(&[&["zfs", "inherit", "mountpoint", "tank/a"]]),
    row(
        &["zfs", "allow", "-u", "7", "send,hold", "tank/a"],
        "cannot set permissions on 'tank/a'",
        "allow,send,hold",
    )
    .after(&[&["zfs", "unallow", "-u", "7", "tank/a"]]),
    row(
        &["zfs", "unallow", "-u", "7", "tank/a"],
        "cannot set permissions on 'tank/a'",
        "allow,send",
    )
    .before(&[&["zfs", "allow", "-u", "7", "send", "tank/a"]])
    .after(&[&["zfs", "unallow", "-u", "7", "tank/a"]]),
    row(&["zfs", "send", "-n", "-v", "tank/a@s"], "cannot send 'tank/a@s'", "send"),
    row(&["zfs", "diff", "tank/a@s"], "cannot diff 'tank/a'", "diff"),
    row(
        &["zfs", "redact", "tank/a@s", "left-out", "tank/clone@r"],
        "cannot redact snapshot 'tank/a@s'",
        "bookmark",
    )
    .before(&[&["zfs", "snapshot", "tank/clone@r"]])
    .after(&[&["zfs", "destroy", "tank/a#left-out"], &["zfs", "destroy", "tank/clone@r"]]),
];

/// What only root may do, whatever was delegated.
const NEVER: &[(&[&str], &str)] = &[
    (&["zfs", "mount", "tank/a"], "cannot mount 'tank/a'"),
    (&["zfs", "mount", "-a"], "cannot mount"),
    (&["zfs", "unmount", "-a"], "cannot unmount"),
    (&["zpool", "scrub", "tank"], "cannot scrub tank"),
    (&["zpool", "resilver", "tank"], "cannot scrub tank"),
    (&["zpool", "defrag", "tank"], "cannot defragment 'tank'"),
    (&["zpool", "defrag", "-n", "tank"], "cannot defragment 'tank'"),
    (
        &["zpool", "defrag", "--unmap", "tank"],
        "cannot erase the mappings of removed devices in 'tank'",
    ),
    (&["zpool", "defrag", "-p", "tank"], "cannot pause defragmenting 'tank'"),
    (&["zpool", "defrag", "-s", "tank"], "cannot cancel defragmenting 'tank'"),
    (&["zpool", "rebalance", "tank"], "cannot rebalance 'tank'"),
    (&["zpool", "rebalance", "-n", "tank"], "cannot rebalance 'tank'"),
    (&["zpool", "rebalance", "-p", "tank"], "cannot pause rebalancing 'tank'"),
    (&["zpool", "rebalance", "-s", "tank"], "cannot cancel rebalancing 'tank'"),
    (&["zpool", "destroy", "tank"], "cannot destroy 'tank'"),
    (&["zpool", "export", "tank"], "cannot export 'tank'"),
    (&["zpool", "sync", "tank"], "sync 'tank' failed"),
    (&["zpool", "reguid", "tank"], "cannot reguid 'tank'"),
    (&["zpool", "set", "comment=x", "tank"], "cannot set property for 'tank'"),
    (&["zpool", "upgrade", "tank"], "cannot upgrade 'tank'"),
    (&["zpool", "clear", "tank"], "cannot clear errors for tank"),
    (&["zpool", "attach", "tank", "raidz1-0", "/etc/passwd"], "cannot attach device to tank"),
    (&["zpool", "remove", "tank", "raidz1-0"], "cannot remove device from tank"),
    (&["zpool", "shrink", "tank", "raidz1-0", "1G"], "cannot shrink device of tank"),
    (&["zpool", "shrink", "-s", "tank"], "cannot cancel shrinking on tank"),
    (&["zpool", "detach", "tank", "raidz1-0"], "cannot detach device from tank"),
    (&["zpool", "reopen", "tank"], "cannot reopen 'tank'"),
    (&["zpool", "checkpoint", "tank"], "cannot checkpoint 'tank'"),
    (&["zpool", "trim", "tank"], "cannot trim 'tank'"),
    (&["zpool", "initialize", "tank"], "cannot initialize 'tank'"),
    (&["zpool", "ddtprune", "-p", "50", "tank"], "cannot prune dedup table on 'tank'"),
    (&["zpool", "prefetch", "-t", "ddt", "tank"], "cannot prefetch ddt in 'tank'"),
    (&["zpool", "history", "tank"], "cannot get history for 'tank'"),
    (&["zpool", "events"], ""),
    (&["zpool", "map", "tank"], ""),
    (&["daemon", "stop"], ""),
    (&["tune", "zfs_arc_max=1G"], ""),
];

/// What OpenZFS shows to every user.
const ALWAYS: &[&[&str]] = &[
    &["zfs", "list", "-t", "all"],
    &["zfs", "get", "all", "tank/a"],
    &["zfs", "mount"],
    &["zfs", "holds", "tank/a@s"],
    &["zfs", "allow", "tank/a"],
    &["zfs", "userspace", "tank/a"],
    &["zfs", "upgrade"],
    &["zpool", "list"],
    &["zpool", "get", "all", "tank"],
    &["zpool", "status", "-v", "tank"],
    &["zpool", "status", "-D", "tank"],
    &["zpool", "iostat"],
    &["zpool", "upgrade"],
    &["zpool", "wait", "-t", "scrub", "tank"],
];

/// Options, kind and disks of pools.
const SHAPES: [(&[&str], &[&str], usize); 3] = [
    (&["-o", "ashift=12"], &[], 1),
    (&["-o", "ashift=9"], &["raidz1"], 3),
    (&["-o", "ashift=12"], &["draid1:2d:5c:1s"], 5),
];

/// A pool with a snapshot, a clone and a child, and nothing mounted.
fn prepared(name: &str) -> SharedDaemon {
    let u = SharedDaemon::new(name);
    // A pool of another kind for each test.
    let shape = name.len() % SHAPES.len();
    let (options, kind, count) = SHAPES[shape];
    let disks: Vec<String> = (0..count)
        .map(|i| {
            let disk = u.s.dir("disks").join(format!("disk{i}"));
            std::fs::File::create(&disk).unwrap().set_len(192 << 20).unwrap();
            disk.to_str().unwrap().to_owned()
        })
        .collect();
    let disks: Vec<&str> = disks.iter().map(String::as_str).collect();
    let create = ["zpool", "create", "-O", "mountpoint=none"];
    u.s.ok(&[&create[..], options, &["tank"], kind, &disks].concat());
    u.s.ok(&["zfs", "create", "-p", "tank/a/b"]);
    u.s.ok(&["zfs", "snapshot", "tank/a@s"]);
    u.s.ok(&["zfs", "clone", "tank/a@s", "tank/clone"]);
    u
}

/// Every command is refused to a user without permissions, and changes nothing; with all but
/// one of the permissions that it needs it is still refused; with all of them it works.
#[test]
fn users_may_do_what_they_were_allowed() {
    if !is_root("delegation") {
        return;
    }
    let u = prepared("delegation");
    let before = u.state();
    let denied = |said: &Said, refused: &str| {
        let whole = format!("{refused}: permission denied\n");
        let first = said.err.lines().next().unwrap_or_default();
        said.code == 1 && (said.err == whole || format!("{first}\n") == whole)
    };
    for row in ROWS {
        row.before.iter().for_each(|args| drop(u.s.ok(args)));
        let prepared = u.state();
        let needs: Vec<&str> = row.needs.split(',').collect();
        for lacking in 0..needs.len() {
            let mut some = needs.clone();
            let without = some.remove(lacking);
            if !some.is_empty() {
                u.allow(&some.join(","));
            }
            let said = u.as_user(USER, row.args);
            // A part of a command may have a message of its own.
            let fits = denied(&said, row.refused) || said.err.ends_with(": permission denied\n");
            assert!(fits, "{:?} without {without}: {said:?}", row.args);
            if some.is_empty() {
                assert!(denied(&said, row.refused), "{:?}: {said:?}", row.args);
            } else {
                u.unallow();
            }
        }
        let said = u.as_user(OTHER, row.args);
        assert!(said.code == 1 && said.err.contains("permission denied"), "{said:?}");
        assert_eq!(u.state(), prepared, "{:?} changed something", row.args);
        u.allow(row.needs);
        let said = u.as_user(USER, row.args);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{:?}", row.args);
        u.unallow();
        row.after.iter().for_each(|args| drop(u.s.ok(args)));
        assert_eq!(u.state(), before, "{:?} is not undone", row.args);
    }
    let history = u.s.ok(&["zpool", "history", "-l", "tank"]);
    let by_user =
        |text: &str| history.lines().any(|l| l.contains(text) && l.contains("[user 1000 "));
    assert!(by_user("zfs snapshot tank/a@n"), "{history}");
    let everything = ROWS.iter().flat_map(|row| row.needs.split(',')).collect::<BTreeSet<_>>();
    u.allow(&everything.into_iter().collect::<Vec<_>>().join(","));
    for (args, refused) in NEVER {
        let said = u.as_user(USER, args);
        assert!(said.code == 1 && said.err.contains("permission denied"), "{args:?}: {said:?}");
        assert!(said.err.starts_with(refused), "{args:?}: {said:?}");
    }
    assert_eq!(u.state(), before);
    u.s.ok(&["zfs", "unallow", "-u", "1000", "tank"]);
    for args in ALWAYS {
        let said = u.as_user(OTHER, args);
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{args:?}");
        assert_eq!(said.out.is_empty(), u.s.ok(args).is_empty(), "{args:?}");
    }
    judge(&u.s);
}

/// Every command of the tables is tried by the test above, or is no matter of permissions.
#[test]
fn every_command_is_tried() {
    let rows = ROWS.iter().map(|row| row.args);
    let tried: BTreeSet<(&str, &str)> = rows
        .chain(NEVER.iter().map(|row| row.0))
        .chain(ALWAYS.iter().copied())
        .filter(|args| args.len() > 1)
        .map(|args| (args[0], args[1]))
        .collect();
    // Those that change devices go through the same request as those that are tried; imports
    // and new pools are a matter of the user's own daemon; files are the kernel's to guard.
    let others = [
        ("zpool", "add replace offline online split labelclear advise"),
        ("zpool", "create import version help"),
        ("zfs", "project rewrite version groupspace projectspace receive"),
    ];
    let others: BTreeSet<(&str, &str)> =
        others.iter().flat_map(|(p, list)| list.split(' ').map(|c| (*p, c))).collect();
    for program in ["zpool", "zfs"] {
        for command in commands::of(program) {
            let name = (program, command.name);
            assert!(tried.contains(&name) || others.contains(&name), "{name:?} is not tried");
        }
    }
}

/// Local, descendent and create-time permissions, sets, groups and everyone.
#[test]
fn forms_of_permissions() {
    if !is_root("forms of delegation") {
        return;
    }
    let u = prepared("delegation-forms");
    let may = |of: &str| {
        let snap = format!("{of}@may");
        let said = u.as_user(USER, &["zfs", "snapshot", &snap]);
        if said.code == 0 {
            u.s.ok(&["zfs", "destroy", &snap]);
        }
        said.code == 0
    };
    let at = || [may("tank"), may("tank/a"), may("tank/a/b"), may("tank/clone")];
    let none = [false; 4];
    assert_eq!(at(), none);
    for (form, wanted) in [
        (&["-l", "-u", "1000"][..], [false, true, false, false]),
        (&["-d", "-u", "1000"], [false, false, true, false]),
        (&["-ld", "-u", "1000"], [false, true, true, false]),
        (&["-g", "1000"], [false, true, true, false]),
        (&["-l", "everyone"], [false, true, false, false]),
        (&["-d", "-e"], [false, false, true, false]),
        (&["-u", "7"], none),
        (&["-g", "7"], none),
        (&["-c"], none),
    ] {
        u.s.ok(&[&["zfs", "allow"], form, &["snapshot", "tank/a"]].concat());
        assert_eq!(at(), wanted, "{form:?}");
        u.s.ok(&[&["zfs", "unallow"], form, &["snapshot", "tank/a"]].concat());
        assert_eq!(at(), none, "{form:?}");
        assert_eq!(u.s.ok(&["zfs", "allow", "tank/a"]), "");
    }
    // Sets are looked up when they are used: those of the dataset and of all above.
    u.s.ok(&["zfs", "allow", "-u", "1000", "@makers", "tank/a"]);
    assert_eq!(at(), none);
    u.s.ok(&["zfs", "allow", "-s", "@makers", "@inner", "tank"]);
    assert_eq!(at(), none, "a set without permissions");
    u.s.ok(&["zfs", "allow", "-s", "@inner", "snapshot,hold", "tank"]);
    assert_eq!(at(), [false, true, true, false]);
    let told = u.s.ok(&["zfs", "allow", "tank/a"]);
    assert_eq!(
        told,
        "---- Permissions on tank/a -------------------------------------------\n\
         Local+Descendent permissions:\n\tuser (unknown: 1000) @makers\n\
         ---- Permissions on tank ---------------------------------------------\n\
         Permission sets:\n\t@inner hold,snapshot\n\t@makers @inner\n"
            .replace("(unknown: 1000)", &user_name())
    );
    u.s.ok(&["zfs", "unallow", "-s", "@inner", "snapshot", "tank"]);
    assert_eq!(at(), none);
    u.s.ok(&["zfs", "allow", "-s", "@inner", "snapshot", "tank"]);
    assert_eq!(at(), [false, true, true, false]);
    // The whole pool can be closed to others.
    u.s.ok(&["zpool", "set", "delegation=off", "tank"]);
    assert_eq!(
        u.user_fails(&["zfs", "snapshot", "tank/a@x"]),
        "cannot create snapshot 'tank/a@x': delegated administration is disabled on pool\n"
    );
    u.s.ok(&["zpool", "set", "delegation=on", "tank"]);
    assert!(may("tank/a"));
    // All at once, below too.
    u.s.ok(&["zfs", "allow", "-u", "1000", "snapshot", "tank/a/b"]);
    u.s.ok(&["zfs", "unallow", "-r", "-u", "1000", "tank"]);
    u.s.ok(&["zfs", "unallow", "-r", "-s", "@inner", "tank"]);
    u.s.ok(&["zfs", "unallow", "-s", "@makers", "tank"]);
    assert_eq!(at(), none);
    assert_eq!(u.s.ok(&["zfs", "allow", "tank/a/b"]), "");
    // Create-time permissions go to the creator of a dataset, for that dataset.
    u.s.ok(&["zfs", "allow", "-u", "1000", "create,mount", "tank/a"]);
    u.s.ok(&["zfs", "allow", "-c", "destroy,snapshot,mount", "tank"]);
    u.user_ok(&["zfs", "create", "tank/a/mine"]);
    u.s.ok(&["zfs", "create", "tank/a/roots"]);
    assert!(may("tank/a/mine") && !may("tank/a/roots") && !may("tank/a"));
    assert!(!u.s.ok(&["zfs", "allow", "tank/a/roots"]).contains("permissions on tank/a/roots"));
    let told = u.s.ok(&["zfs", "allow", "tank/a/mine"]);
    let mine = format!(
        "---- Permissions on tank/a/mine --------------------------------------\n\
         Local permissions:\n\tuser {} destroy,mount,snapshot\n",
        user_name()
    );
    assert!(told.starts_with(&mine), "{told}");
    u.user_fails(&["zfs", "destroy", "tank/a/roots"]);
    u.user_ok(&["zfs", "destroy", "tank/a/mine"]);
    // What a user passes on is what they have.
    u.s.ok(&["zfs", "allow", "-l", "-u", "1000", "allow,snapshot,hold", "tank/a"]);
    u.user_ok(&["zfs", "allow", "-l", "-u", "65534", "hold", "tank/a"]);
    u.user_ok(&["zfs", "unallow", "-l", "-u", "65534", "tank/a"]);
    let denied = "cannot set permissions on 'tank/a': permission denied\n";
    for args in [
        &["zfs", "allow", "-u", "65534", "hold", "tank/a"][..],
        &["zfs", "allow", "-l", "-u", "65534", "destroy", "tank/a"],
        &["zfs", "allow", "-s", "@x", "hold", "tank/a"],
        &["zfs", "unallow", "-l", "-u", "1000", "destroy", "tank/a"],
        &["zfs", "allow", "-c", "hold", "tank/a"],
    ] {
        assert_eq!(u.user_fails(args), denied, "{args:?}");
    }
    judge(&u.s);
}

/// How `zfs allow` names the user.
fn user_name() -> String {
    let names = cenote::accounts::AccountNames::users();
    names.name(USER.into()).map_or_else(|| "(unknown: 1000)".to_owned(), str::to_owned)
}

/// Groups that are not the user's first one.
#[test]
fn all_groups_count() {
    if !is_root("groups") || !testkit::has_program(testkit::Need::Programs, "setpriv", "groups") {
        return;
    }
    let u = prepared("delegation-groups");
    u.s.ok(&["zfs", "allow", "-g", "2345", "snapshot", "tank"]);
    let run = |groups: &str, snap: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "1000", "--regid", "1000", "--groups", groups]);
        command.arg(&u.program).args(["zfs", "snapshot", snap]);
        command.env("CENOTE_RUNTIME_DIR", u.s.path("run"));
        said(&command.output().unwrap())
    };
    assert_eq!(
        run("2344,2346", "tank@n").err,
        "cannot create snapshot 'tank@n': permission denied\n"
    );
    let said = run("2344,2345,2346", "tank@n");
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let many: Vec<String> = (3000..3200).map(|g| g.to_string()).collect();
    let said = run(&format!("{},2345", many.join(",")), "tank@m");
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    judge(&u.s);
}

/// A file system that a user made is theirs and is mounted by root alone. The user who may mount
/// it unmounts it.
#[test]
fn mounts_stay_roots() {
    if !can_mount("delegation of mounts") {
        return;
    }
    let u = SharedDaemon::new("delegation-mounts");
    new_pool(&u.s, 256, &[]);
    u.s.ok(&["zfs", "create", "tank/home"]);
    u.allow("create,mount,destroy,mountpoint,canmount,rename,rollback,snapshot,readonly,setuid");
    let said = u.as_user(USER, &["zfs", "create", "tank/home/mine"]);
    let text = "filesystem successfully created, but it may only be mounted by root\n";
    assert_eq!((said.code, said.err.as_str()), (1, text));
    assert_eq!(u.s.ok(&["zfs", "get", "-Ho", "value", "mounted", "tank/home/mine"]), "no\n");
    let denied = |args: &[&str]| {
        let told = u.user_fails(args);
        assert!(told.ends_with(": permission denied\n"), "{args:?}: {told}");
    };
    denied(&["zfs", "mount", "tank/home/mine"]);
    u.s.ok(&["zfs", "mount", "tank/home/mine"]);
    let at = u.s.path("mnt/home/mine");
    let owner = std::fs::metadata(&at).unwrap();
    assert_eq!((owner.uid(), owner.gid()), (USER, USER));
    // Nothing of a mounted file system moves for a user, and nothing is mounted.
    denied(&["zfs", "set", "mountpoint=/etc", "tank/home/mine"]);
    denied(&["zfs", "set", "canmount=off", "tank/home/mine"]);
    denied(&["zfs", "rename", "tank/home/mine", "tank/home/yours"]);
    assert_eq!(u.s.mounts().iter().filter(|m| m.ends_with("/mine")).count(), 1);
    u.user_ok(&["zfs", "set", "-u", "mountpoint=/nowhere/at/all", "tank/home/mine"]);
    u.s.ok(&["zfs", "inherit", "mountpoint", "tank/home/mine"]);
    // A rollback keeps the mount where it was.
    std::fs::write(at.join("file"), "old").unwrap();
    u.user_ok(&["zfs", "snapshot", "tank/home/mine@s"]);
    std::fs::write(at.join("file"), "new").unwrap();
    u.user_ok(&["zfs", "rollback", "tank/home/mine@s"]);
    assert_eq!(std::fs::read_to_string(at.join("file")).unwrap(), "old");
    // A place that a user can move is not touched for them.
    let home = u.s.path("mnt/home");
    std::os::unix::fs::chown(&home, Some(USER), Some(USER)).unwrap();
    let stays = format!("cannot unmount '{}': permission denied\n", at.display());
    for args in [
        &["zfs", "unmount", "tank/home/mine"][..],
        &["zfs", "rollback", "tank/home/mine@s"],
        &["zfs", "set", "readonly=on", "tank/home/mine"],
        &["zfs", "destroy", "-r", "tank/home/mine"],
    ] {
        assert_eq!(u.user_fails(args), stays, "{args:?}");
    }
    std::os::unix::fs::chown(&home, Some(0), Some(0)).unwrap();
    u.user_ok(&["zfs", "unmount", "tank/home/mine"]);
    u.user_ok(&["zfs", "set", "mountpoint=none", "tank/home/mine"]);
    u.user_ok(&["zfs", "rename", "tank/home/mine", "tank/home/yours"]);
    u.user_ok(&["zfs", "destroy", "-r", "tank/home/yours"]);
    judge(&u.s);
}

/// The accounts of others are not shown to everyone.
#[test]
fn accounts_are_private() {
    if !can_mount("accounts of users") {
        return;
    }
    let u = SharedDaemon::new("delegation-space");
    new_pool(&u.s, 256, &["-O", "compression=off"]);
    for (name, uid) in [("a", USER), ("b", OTHER), ("c", 0)] {
        let file = u.s.path("mnt").join(name);
        std::fs::write(&file, vec![1; 200_000]).unwrap();
        std::os::unix::fs::chown(&file, Some(uid), Some(uid)).unwrap();
    }
    u.s.ok(&["zpool", "sync", "tank"]);
    let names = |text: String| {
        text.lines().map(|l| l.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let args = ["zfs", "userspace", "-Hnp", "-o", "name,used", "tank"];
    assert_eq!(names(u.s.ok(&args)), ["0", "1000", "65534"]);
    assert_eq!(names(u.user_ok(&args)), ["1000"]);
    let groups = ["zfs", "groupspace", "-Hnp", "-o", "name", "tank"];
    assert_eq!(names(u.user_ok(&groups)), ["1000"]);
    assert_eq!(u.user_ok(&["zfs", "projectspace", "-H", "tank"]), "");
    let get = |uid: u32, prop: &str| {
        u.as_user(uid, &["zfs", "get", "-Hpo", "value", prop, "tank"]).out.trim().to_owned()
    };
    let own: u64 = get(USER, "userused@1000").parse().unwrap();
    assert!(own > 190_000, "{own}");
    assert_eq!((get(USER, "userused@0"), get(USER, "userquota@0")), ("-".into(), "-".into()));
    u.allow("userused");
    assert!(get(USER, "userused@0").parse::<u64>().unwrap() > 190_000);
    assert_eq!(get(USER, "userquota@0"), "-");
    assert_eq!(names(u.user_ok(&args)), ["0", "1000", "65534"]);
    judge(&u.s);
}

/// What OpenZFS wrote is listed as OpenZFS lists it, and is changed.
#[test]
fn the_golden_pool() {
    let Some(pool) = golden("delegated") else { return };
    let s = Sandbox::new("delegation-golden");
    pool.unpack(&s.dir("disks"));
    let dir = s.text("disks");
    let import = |options: &[&str]| {
        s.ok(&[&["zpool", "import", "-N", "-f", "-d", &dir][..], options, &["delegated", "tank"]]
            .concat())
    };
    let list = |names: [&str; 3]| names.map(|name| s.ok(&["zfs", "allow", name])).concat();
    // The user may have a name here.
    let wanted = pool.text("allow.txt").unwrap().replace("(unknown: 1000)", &user_name());
    s.ok(&["zpool", "import", "-N", "-f", "-o", "readonly=on", "-d", &dir, "delegated"]);
    assert_eq!(list(["delegated", "delegated/a", "delegated/a/b"]), wanted);
    let told = s.fail(1, &["zfs", "allow", "-e", "send", "delegated"]);
    assert_eq!(told, "cannot set permissions on 'delegated': pool is read-only\n");
    s.ok(&["zpool", "export", "delegated"]);
    import(&[]);
    let mine = || list(["tank", "tank/a", "tank/a/b"]);
    s.ok(&["zfs", "allow", "-ld", "1000", "hold", "tank/a"]);
    s.ok(&["zfs", "allow", "-s", "@new", "hold,@mine", "tank"]);
    let more = mine();
    assert!(
        more.contains("\tuser (unknown: 1000) create,destroy,hold,mount,snapshot\n")
            || more
                .contains(&format!("\tuser {} create,destroy,hold,mount,snapshot\n", user_name())),
        "{more}"
    );
    assert!(more.contains("\t@mine clone,promote,rename\n\t@new @mine,hold\n"), "{more}");
    s.ok(&["zfs", "unallow", "-u", "1000", "hold", "tank/a"]);
    s.ok(&["zfs", "unallow", "-s", "@new", "tank"]);
    // Exactly as it was, but for the pool's name.
    let renamed = |text: &str| {
        let lines = text.lines().map(|l| match l.strip_prefix("---- Permissions on delegated") {
            Some(rest) => {
                let name = rest.trim_end_matches('-').trim_end();
                format!("{:-<70}", format!("---- Permissions on tank{name} "))
            }
            None => l.to_owned(),
        });
        lines.map(|l| l + "\n").collect::<String>()
    };
    assert_eq!(mine(), renamed(&wanted));
    s.ok(&["zpool", "export", "tank"]);
    s.ok(&["zpool", "import", "-N", "-d", &dir, "tank"]);
    assert_eq!(mine(), renamed(&wanted));
    for form in [&["-u", "1000"][..], &["-u", "1001"], &["-u", "1002"], &["-e"], &["-c"]] {
        s.ok(&[&["zfs", "unallow", "-r"][..], form, &["tank"]].concat());
    }
    s.ok(&["zfs", "unallow", "-g", "users", "tank"]);
    s.ok(&["zfs", "unallow", "-s", "@mine", "tank"]);
    assert_eq!(mine(), "");
    s.ok(&["zpool", "export", "tank"]);
    s.stop();
    common::judge_disks(&s);
}

/// The shared socket is root's, and is switched off by the environment.
#[test]
fn the_shared_socket() {
    if !is_root("the shared socket") {
        return;
    }
    let u = prepared("delegation-socket");
    let socket = u.s.path("run.socket");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o666);
    let mode = |name: &str| std::fs::metadata(u.s.path(name)).unwrap().permissions().mode();
    assert_eq!((mode("run") & 0o066, mode("run/socket") & 0o777), (0, 0o600));
    u.user_ok(&["zpool", "list"]);
    u.s.ok(&["zpool", "export", "tank"]);
    u.s.stop();
    assert!(!socket.exists());
    let told = u.user_fails(&["zpool", "list"]);
    assert!(told.contains("ermission denied"), "{told}");
    let mut start = u.s.command(&["daemon", "start"]);
    assert!(start.env("CENOTE_USERS", "off").status().unwrap().success());
    assert!(!socket.exists());
    let told = u.user_fails(&["zpool", "list"]);
    assert!(told.contains("cannot reach the daemon"), "{told}");
    u.s.stop();
}
