//! What `zpool create` and its kin say before anything is written: devices in use,
//! dry runs, labels, history. The words were recorded from OpenZFS 2.3.2.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, clippy::panic)]

mod common;

use std::path::PathBuf;

use common::{Sandbox, judge, said};
use testkit::golden;

const MAY: &str = "invalid vdev specification\nuse '-f' to override the following errors:\n";
const MUST: &str = "invalid vdev specification\nthe following errors must be manually repaired:\n";

/// Files of 128 MiB, or of the MiB behind the name.
fn files(s: &Sandbox, names: &[&str]) -> Vec<String> {
    let one = |name: &&str| {
        let path = s.path(name);
        let digits: String = name.chars().filter(char::is_ascii_digit).collect();
        let mib: u64 = digits.parse().unwrap_or(128);
        std::fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
        path.to_str().unwrap().to_owned()
    };
    names.iter().map(one).collect()
}

fn kitchen(name: &str) -> Option<(Sandbox, Vec<PathBuf>)> {
    let pool = golden("kitchen")?;
    let s = Sandbox::new(name);
    let disks = pool.unpack(&s.dir("disks"));
    Some((s, disks))
}

#[test]
fn dry_runs() {
    let s = Sandbox::new("dryrun");
    let f = files(&s, &["a", "b", "c", "far160", "small32"]);
    let (a, b, c, far) = (&*f[0], &*f[1], &*f[2], &*f[3]);
    let head = "would create 'tank' with the following layout:\n\n\ttank\n";
    assert_eq!(
        s.ok(&["zpool", "create", "-n", "tank", "mirror", a, b, "log", c]),
        format!("{head}\t  mirror\n\t    {a}\n\t    {b}\n\tlogs\n\t  {c}\n")
    );
    assert_eq!(
        s.fail(1, &["zpool", "create", "-n", "tank", "mirror", a, far]),
        format!("{MAY}mirror contains devices of different sizes\n")
    );
    assert_eq!(
        s.ok(&["zpool", "create", "-nf", "tank", "mirror", a, far]),
        format!("{head}\t  mirror\n\t    {a}\n\t    {far}\n")
    );
    assert_eq!(
        s.fail(1, &["zpool", "create", "-n", "tank", a, "mirror", b, c]),
        format!("{MAY}mismatched replication level: both file and mirror vdevs are present\n")
    );
    assert_eq!(
        s.fail(1, &["zpool", "create", "-n", "tank", "log", a]),
        format!("{MAY}at least one general top-level vdev must be specified\n")
    );
    assert_eq!(
        s.fail(1, &["zpool", "create", "-n", "tank", a, a]),
        "cannot create 'tank': one or more vdevs refer to the same device, or one of\nthe devices \
         is part of an active md or lvm device\n"
    );
    assert_eq!(
        s.fail(1, &["zpool", "create", "-n", "tank", "/no/such"]),
        "cannot resolve path '/no/such'\n"
    );
    let full = s.dir("full");
    std::fs::write(full.join("x"), "x").unwrap();
    let full = full.to_str().unwrap();
    assert_eq!(
        s.fail(1, &["zpool", "create", "-n", "-m", full, "tank", a]),
        format!(
            "mountpoint '{full}' exists and is not empty\nuse '-m' option to provide a different \
             default\n"
        )
    );
}

#[test]
fn usage() {
    let s = Sandbox::new("createusage");
    let create = "usage:\n\tcreate [-fnd] [-o property=value] ... \n\t    \
                  [-O file-system-property=value] ... \n\t    [-m mountpoint] [-R root] <pool> \
                  <vdev> ...\n";
    for (args, text) in [
        (&["create", "-n"][..], format!("missing pool name argument\n{create}")),
        (&["create", "tank"], format!("missing vdev specification\n{create}")),
        (&["create", "-x", "tank"], format!("invalid option 'x'\n{create}")),
        (&["create", "-o"], format!("missing argument for 'o' option\n{create}")),
        (&["destroy"], "missing pool argument\nusage:\n\tdestroy [-f] <pool>\n".to_owned()),
        (&["destroy", "a", "b"], "too many arguments\nusage:\n\tdestroy [-f] <pool>\n".to_owned()),
        (
            &["reguid", "-g", "x", "live"],
            "invalid GUID: x\nusage:\n\treguid [-g guid] <pool>\n".to_owned(),
        ),
        (&["labelclear"], "missing vdev name\nusage:\n\tlabelclear [-f] <vdev>\n".to_owned()),
        (&["sync", "-x"], "invalid option 'x'\nusage:\n\tsync [pool] ...\n".to_owned()),
        (
            &["wait"],
            "missing 'pool' argument\nusage:\n\twait [-Hp] [-T d|u] [-t <activity>[,...]] <pool> \
             [interval]\n"
                .to_owned(),
        ),
    ] {
        let args = [&["zpool"], args].concat();
        assert_eq!(s.fail(2, &args), text, "{args:?}");
    }
    for (args, code, text) in [
        (&["add", "nope", "/a"][..], 1, "cannot open 'nope': no such pool\n"),
        (&["destroy", "nope"], 1, "cannot open 'nope': no such pool\n"),
        (&["set", "comment=x", "nope"], 22, "cannot open 'nope': is not a pool\n"),
        (&["comment=x", "nope"], 22, "cannot open 'nope': is not a pool\n"),
        (&["history", "nope"], 1, "cannot open 'nope': no such pool\n"),
        (&["wait", "nope"], 1, "cannot open 'nope': no such pool\n"),
        (&["labelclear", "/no/x"], 1, "failed to open /no/x: No such file or directory\n"),
        (
            &["labelclear", "nope"],
            1,
            "failed to find device nope, try specifying absolute path instead\n",
        ),
    ] {
        assert_eq!(s.fail(code, &[&["zpool"], args].concat()), text, "{args:?}");
    }
}

#[test]
fn devices_in_use() {
    let Some((s, disks)) = kitchen("inuse") else { return };
    let d = |n: usize| disks[n - 1].to_str().unwrap().to_owned();
    let (d1, spare, cache) = (d(1), d(7), d(6));
    let try_ = |options: &str, words: &[&str]| {
        s.say(&[&["zpool", "create", options, "tank"], words].concat()).err
    };
    let exported = format!("{MAY}{d1} is part of exported pool 'kitchen'\n");
    assert_eq!(try_("-n", &[&d1]), exported);
    assert_eq!(try_("-nf", &[&d1]), "");
    assert_eq!(try_("-n", &[&spare]), "", "nobody has its pool");
    let clear = |options: &[&str], disk: &str| {
        let said = s.say(&[&["zpool", "labelclear"], options, &[disk]].concat());
        (said.code, said.err)
    };
    assert_eq!(
        clear(&[], &d1),
        (
            1,
            format!(
                "use '-f' to override the following error:\n{d1} is a member of exported pool \
                 \"kitchen\"\n"
            )
        )
    );
    let disks = s.text("disks");
    s.ok(&["zpool", "import", "-d", &disks, "-N", "-o", "readonly=on", "kitchen"]);
    let active = format!("{d1} is part of active pool 'kitchen'\n");
    assert_eq!(try_("-n", &[&d1]), format!("{MAY}{active}"));
    assert_eq!(try_("-nf", &[&d1]), format!("{MUST}{active}"));
    let reserved = format!("{spare} is reserved as a hot spare for pool kitchen\n");
    assert_eq!(try_("-nf", &[&spare]), format!("{MUST}{reserved}"));
    let f = files(&s, &["a"]);
    assert_eq!(try_("-n", &[&f[0], "spare", &spare]), "", "spares may be shared");
    assert_eq!(try_("-nf", &[&cache]), format!("{MUST}{cache} is part of active pool 'kitchen'\n"));
    for options in [&[][..], &["-f"]] {
        let member = format!("{d1} is a member (ACTIVE) of pool \"kitchen\"\n");
        assert_eq!(clear(options, &d1), (1, member));
    }
    assert_eq!(
        s.fail(1, &["zpool", "create", "-n", "kitchen", &f[0]]),
        "cannot create 'kitchen': pool already exists\n"
    );
    assert_eq!(
        s.fail(1, &["zpool", "destroy", "kitchen"]),
        "cannot destroy 'kitchen': pool is read-only\n"
    );
    assert_eq!(
        s.fail(1, &["zpool", "set", "comment=x", "kitchen"]),
        "cannot set property for 'kitchen': pool is read-only\n"
    );
    assert_eq!(s.ok(&["zpool", "wait", "kitchen"]), "");
}

#[test]
fn labels_are_cleared() {
    let Some((s, disks)) = kitchen("labelclear") else { return };
    let first = disks[0].to_str().unwrap().to_owned();
    s.ok(&["zpool", "labelclear", "-f", &first]);
    let again = s.say(&["zpool", "labelclear", "-f", &first]);
    assert_eq!((again.code, again.err), (255, format!("failed to clear label for {first}\n")));
    // The pool does without one side of a mirror.
    let found = s.ok(&["zpool", "import", "-d", &s.text("disks")]);
    assert!(found.contains(" state: DEGRADED\n") && found.contains("UNAVAIL"), "{found}");
}

#[test]
fn history_of_a_pool() {
    let Some((s, _)) = kitchen("history") else { return };
    let disks = s.text("disks");
    s.ok(&["zpool", "import", "-d", &disks, "-N", "-o", "readonly=on", "kitchen"]);
    let plain = s.ok(&["zpool", "history"]);
    let mut lines = plain.lines();
    assert_eq!(lines.next(), Some("History for 'kitchen':"));
    let first = lines.next().unwrap();
    assert!(first[19..].starts_with(" zpool create "), "{first}");
    assert!(plain.ends_with("\n\n") && !plain.contains("[txg:"));
    let long = s.ok(&["zpool", "history", "-l", "kitchen"]);
    assert!(long.lines().nth(1).unwrap().ends_with(" [user 0 (root) on guest:linux]"), "{long}");
    let all = s.ok(&["zpool", "history", "-i", "kitchen"]);
    assert!(all.contains("[txg:4] create pool version 5000; "), "{all}");
    // The same records as zdb tells.
    let zdb = said(&s.run(&["zdb", "-e", "-p", &disks, "-h", "kitchen"])).out;
    let commands = plain.lines().filter(|l| l.contains(" zpool ") || l.contains(" zfs "));
    for command in commands {
        assert!(zdb.contains(command), "{command}");
    }
}

#[test]
fn log_vdevs_come_and_go() {
    let s = Sandbox::new("logvdevs");
    let f = files(&s, &["a", "l", "m", "n"]);
    let (a, l, m, n) = (&*f[0], &*f[1], &*f[2], &*f[3]);
    s.ok(&["zpool", "create", "-O", "canmount=off", "tank", a, "log", l]);
    assert!(s.ok(&["zpool", "status", "tank"]).contains("logs"));
    s.ok(&["zpool", "add", "tank", "log", "mirror", m, n]);
    let status = s.ok(&["zpool", "status", "tank"]);
    assert!(status.contains("mirror-2") && status.contains("logs"), "{status}");
    assert_eq!(
        s.fail(1, &["zpool", "remove", "tank", a]),
        format!("cannot remove {a}: out of space\n")
    );
    assert_eq!(
        s.fail(1, &["zpool", "remove", "tank", "none"]),
        "cannot remove none: no such device in pool\n"
    );
    s.ok(&["zpool", "remove", "tank", "mirror-2", l]);
    let status = s.ok(&["zpool", "status", "tank"]);
    assert!(!status.contains("logs") && !status.contains("hole"), "{status}");
    // Nobody uses the devices any more, and the pool does without them.
    std::fs::remove_file(l).unwrap();
    s.ok(&["zpool", "create", "-O", "canmount=off", "other", m]);
    let dir = s.path("").to_str().unwrap().to_owned();
    s.ok(&["zpool", "export", "tank"]);
    s.ok(&["zpool", "import", "-d", &dir, "-N", "tank"]);
    s.ok(&["zpool", "add", "tank", "log", n]);
    assert!(s.ok(&["zpool", "status", "tank"]).contains("ONLINE"));
    // What logs did: nothing yet.
    let heading = "    time     cc     ic    idc    idb    iic    iib   imnc   imnw   imsc   imsw";
    let text = s.ok(&["zilstat", "-g"]);
    assert_eq!(text.lines().next(), Some(heading), "{text}");
    assert!(s.ok(&["trace", "zil", "tank", "0.05"]).contains("commits 0, batches 0"));
    assert!(s.fail(1, &["trace", "zil", "nopool", "0.05"]).contains("no pool 'nopool'"));
}

/// What the user did: created pools of an old version, and with fewer features, and upgraded them.
#[test]
fn pools_are_upgraded() {
    let s = Sandbox::new("upgrade");
    s.dir("disks");
    let f = files(&s, &["disks/old", "plain"]);
    let create = ["zpool", "create", "-O", "mountpoint=none"];
    s.ok(&[&create[..], &["-o", "version=28", "tank", &f[0]]].concat());
    s.ok(&[&create[..], &["-d", "-o", "compatibility=compat-2018", "plain", &f[1]]].concat());
    let first = "This system supports ZFS pool feature flags.\n\n";
    let upgrade = |args: &[&str]| {
        let out = s.ok(&[&["zpool", "upgrade"], args].concat());
        out.strip_prefix(first).unwrap().to_owned()
    };
    let listed = upgrade(&[]);
    assert!(listed.contains("\nVER  POOL\n---  ------------\n28   tank\n\n"), "{listed}");
    let plain = "\nPOOL  FEATURE\n---------------\nplain\n      async_destroy\n      empty_bpobj\n";
    assert!(listed.contains(plain) && !listed.contains("blake3"), "{listed}");
    let same = "Pool 'tank' is already formatted using version 28.\n";
    assert_eq!(upgrade(&["-V", "28", "tank"]), same);
    let newer = "Pool 'tank' is already formatted using more current version '28'.\n";
    assert_eq!(upgrade(&["-V", "20", "tank"]), newer);
    assert_eq!(
        s.fail(1, &["zpool", "set", "version=20", "tank"]),
        "cannot set property for 'tank': a pool's version only grows\n"
    );
    assert_eq!(
        s.fail(1, &["zpool", "set", "feature@blake3=enabled", "tank"]),
        "cannot set property for 'tank': the pool has no feature flags\n"
    );
    s.ok(&["zpool", "set", "compatibility=legacy", "tank"]);
    assert!(upgrade(&["tank"]).contains("upgrade not performed"));
    s.ok(&["zpool", "set", "compatibility=openzfs-2.0-linux", "tank"]);
    let upgraded = upgrade(&["tank"]);
    let begin = "Successfully upgraded 'tank' from version 28 to feature flags.\nEnabled the \
                 following features on 'tank':\n  async_destroy\n  empty_bpobj\n";
    assert!(upgraded.starts_with(begin) && upgraded.ends_with("  zstd_compress\n\n"), "{upgraded}");
    let feature = |name: &str, pool: &str| {
        let name = format!("feature@{name}");
        s.ok(&["zpool", "get", "-Ho", "value", &name, pool])
    };
    assert_eq!(feature("lz4_compress", "tank"), "active\n");
    assert_eq!(feature("blake3", "tank"), "disabled\n");
    let full = "Pool 'tank' already has all supported and requested features enabled.\n";
    assert_eq!(upgrade(&["tank"]), full);
    assert_eq!(
        s.fail(1, &["zpool", "set", "feature@blake3=enabled", "tank"]),
        "cannot set property for 'tank': feature 'blake3' is not in the sets of property \
         'compatibility'\n"
    );
    s.ok(&["zpool", "set", "compatibility=off", "tank"]);
    s.ok(&["zpool", "set", "feature@blake3=enabled", "tank"]);
    assert_eq!(feature("blake3", "tank"), "enabled\n");
    assert_eq!(
        s.fail(1, &["zpool", "set", "feature@draid_failure_domains=enabled", "tank"]),
        "cannot set property for 'tank': feature 'draid_failure_domains' cannot be enabled: this version \
         of Cenote does not write its data\n"
    );
    let both = upgrade(&["-a"]);
    let of = |pool: &str| format!("Enabled the following features on '{pool}':\n");
    assert!(both.contains(&of("tank")) && both.contains(&of("plain")), "{both}");
    assert!(!both.contains("blake3"), "it was enabled before, or is not requested: {both}");
    assert_eq!(feature("blake3", "plain"), "disabled\n");
    assert!(upgrade(&["-a"]).starts_with("All pools are already formatted using feature flags.\n"));
    assert!(upgrade(&[]).ends_with("all supported and requested features enabled.\n"));
    assert_eq!(s.ok(&["zpool", "get", "-Ho", "value", "version", "tank"]), "-\n");
    let history = s.ok(&["zpool", "history", "tank"]);
    assert_eq!(history.matches("zpool upgrade tank\n").count(), 1, "{history}");
    for (args, message) in [
        (&["-v", "-a"][..], "-v option is incompatible with other arguments"),
        (&["-a", "tank"], "-a option should not be used along with a pool name"),
        (&["-V", "29", "tank"], "invalid version '29'"),
        (&["-V", "28"], "missing pool name"),
    ] {
        let told = s.fail(2, &[&["zpool", "upgrade"], args].concat());
        assert!(told.starts_with(&format!("{message}\nusage:\n")), "{told}");
    }
    let missing = s.fail(1, &["zpool", "upgrade", "nosuch"]);
    assert_eq!(missing, "cannot open 'nosuch': no such pool\n");
    s.ok(&["zfs", "create", "tank/new"]);
    s.ok(&["zpool", "export", "plain"]);
    judge(&s);
}
