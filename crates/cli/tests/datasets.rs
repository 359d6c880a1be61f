//! Datasets made, changed and destroyed through the daemon, with their mounts; the pool
//! is judged by OpenZFS's `zdb` each time. The words are those of chapter 09.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Sandbox, can_mount, judge, new_pool};

/// Where a dataset is mounted and with which options, by the kernel.
fn mounted(dataset: &str, s: &Sandbox) -> Option<(String, String)> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let inside = s.text("");
    table.lines().find_map(|line| {
        let f: Vec<&str> = line.split(' ').collect();
        let dash = f.iter().position(|w| *w == "-")?;
        let mine = f.get(dash + 2) == Some(&dataset) && f[4].starts_with(&inside);
        mine.then(|| (f[4].to_owned(), f[5].to_owned()))
    })
}

fn names(s: &Sandbox, types: &str) -> Vec<String> {
    let out = s.ok(&["zfs", "list", "-rHo", "name", "-t", types, "tank"]);
    out.lines().map(str::to_owned).collect()
}

fn value(s: &Sandbox, property: &str, dataset: &str) -> String {
    s.ok(&["zfs", "get", "-Hpo", "value,source", property, dataset]).trim().replace('\t', " ")
}

#[test]
fn datasets_are_made() {
    if !can_mount("datasets are made") {
        return;
    }
    let s = Sandbox::new("zfscreate");
    new_pool(&s, 256, &["-O", "canmount=off"]);
    let zfs = |args: &[&str]| s.ok(&[&["zfs"], args].concat());
    let no = |args: &[&str]| s.fail(1, &[&["zfs"], args].concat());
    assert_eq!(zfs(&["create", "-o", "compression=off", "-o", "a:b=c", "tank/a"]), "");
    assert_eq!(value(&s, "compression", "tank/a"), "off local");
    assert_eq!(value(&s, "a:b", "tank/a"), "c local");
    assert_eq!(mounted("tank/a", &s).unwrap().0, s.text("mnt/a"));
    assert_eq!(no(&["create", "tank/a"]), "cannot create 'tank/a': dataset already exists\n");
    assert_eq!(zfs(&["create", "-p", "tank/a"]), "");
    assert_eq!(no(&["create", "tank/x/y"]), "cannot create 'tank/x/y': parent does not exist\n");
    assert_eq!(no(&["create", "nope/y"]), "cannot create 'nope/y': no such pool 'nope'\n");
    assert_eq!(
        no(&["create", "tank/a*"]),
        "cannot create 'tank/a*': invalid character '*' in name\n"
    );
    assert_eq!(
        no(&["create", "-o", "used=1", "tank/u"]),
        "cannot create 'tank/u': 'used' is readonly\n"
    );
    assert_eq!(
        no(&["create", "-o", "a:b=1", "-o", "a:b=2", "tank/u"]),
        "property 'a:b' specified multiple times\n"
    );
    assert_eq!(
        zfs(&["create", "-nv", "-o", "atime=off", "tank/u"]),
        "would create tank/u\n\tatime=off\n"
    );
    assert!(!names(&s, "fs").contains(&"tank/u".to_owned()));
    zfs(&["create", "-u", "tank/u"]);
    assert_eq!(mounted("tank/u", &s), None);
    zfs(&["create", "-p", "-o", "canmount=off", "tank/p/q/r"]);
    assert!(mounted("tank/p/q", &s).is_some() && mounted("tank/p/q/r", &s).is_none());

    zfs(&["create", "-V", "10M", "-b", "8k", "tank/v"]);
    zfs(&["create", "-s", "-V", "10000", "tank/sparse"]);
    assert_eq!(value(&s, "volsize", "tank/v"), "10485760 local");
    assert_eq!(value(&s, "volsize", "tank/sparse"), "16384 local", "rounded up to a block");
    assert_eq!(value(&s, "refreservation", "tank/sparse"), "0 default");
    assert_ne!(value(&s, "refreservation", "tank/v"), "0 default");
    assert!(s.path("run/volumes/tank/v").exists());
    assert_eq!(
        no(&["create", "-V", "1X", "tank/w"]),
        "cannot create 'tank/w': bad volume size '1X': invalid numeric suffix 'X'\n"
    );
    // The reservation follows the size.
    let reserved = value(&s, "refreservation", "tank/v");
    zfs(&["set", "volsize=20M", "tank/v"]);
    assert_eq!(value(&s, "volsize", "tank/v"), "20971520 local");
    assert_ne!(value(&s, "refreservation", "tank/v"), reserved);
    zfs(&["set", "volsize=10M", "tank/v"]);
    assert_eq!(value(&s, "refreservation", "tank/v"), reserved);
    zfs(&["set", "refreservation=none", "tank/v"]);
    zfs(&["set", "refreservation=auto", "tank/v"]);
    assert_eq!(value(&s, "refreservation", "tank/v"), reserved);
    assert_eq!(
        no(&["set", "volsize=10000", "tank/v"]),
        "cannot set property for 'tank/v': 'volsize' must be a multiple of volume block size\n"
    );
    let text = s.fail(2, &["zfs", "create", "-s", "tank/f"]);
    assert!(text.starts_with("'-s' and '-b' can only be used when creating a volume\nusage:\n"));
    let history = s.ok(&["zpool", "history", "tank"]);
    assert!(history.contains(" zfs create -o compression=off -o a:b=c tank/a\n"), "{history}");
    assert!(!history.contains("-nv"), "{history}");
    judge(&s);
}

#[test]
fn datasets_go() {
    if !can_mount("datasets go") {
        return;
    }
    let s = Sandbox::new("zfsdestroy");
    new_pool(&s, 256, &["-O", "canmount=off"]);
    let zfs = |args: &[&str]| s.ok(&[&["zfs"], args].concat());
    let no = |args: &[&str]| s.fail(1, &[&["zfs"], args].concat());
    zfs(&["create", "-p", "tank/a/b"]);
    for snap in ["one", "two", "three", "four"] {
        zfs(&["snapshot", "-r", &format!("tank/a@{snap}")]);
    }
    assert_eq!(
        no(&["snapshot", "tank/a@one"]),
        "cannot create snapshot 'tank/a@one': dataset already exists\n"
    );
    let both = no(&["snapshot", "tank/a@five", "tank/a/b@two"]);
    assert_eq!(
        both,
        "cannot create snapshot 'tank/a/b@two': dataset already exists\nno snapshots were created\n"
    );
    assert!(!names(&s, "snap").contains(&"tank/a@five".to_owned()), "all or none");
    assert_eq!(
        no(&["destroy", "tank"]).lines().next().unwrap(),
        "cannot destroy 'tank': operation does not apply to pools"
    );
    let children = no(&["destroy", "tank/a/b"]);
    assert_eq!(
        children,
        "cannot destroy 'tank/a/b': filesystem has children\nuse '-r' to destroy the following \
         datasets:\ntank/a/b@one\ntank/a/b@two\ntank/a/b@three\ntank/a/b@four\n"
    );
    assert_eq!(
        no(&["destroy", "tank/a@nope"]),
        "could not find any snapshots to destroy; check snapshot names.\n"
    );
    assert_eq!(no(&["destroy", "tank/nope"]), "cannot open 'tank/nope': dataset does not exist\n");
    assert_eq!(
        zfs(&["destroy", "-nv", "tank/a@two%three,one"]),
        "would destroy tank/a@one\nwould destroy tank/a@two\nwould destroy tank/a@three\nwould \
         reclaim 0B\n"
    );
    assert_eq!(
        zfs(&["destroy", "-rp", "tank/a@one"]),
        "destroy\ttank/a@one\ndestroy\ttank/a/b@one\nreclaim\t0\n"
    );
    zfs(&["destroy", "tank/a@%two"]);
    assert_eq!(names(&s, "snap").len(), 5);

    // A mount in use stops everything before anything is destroyed.
    let busy = std::fs::File::open(s.path("mnt/a/b")).unwrap();
    let told = no(&["destroy", "-r", "tank/a"]);
    assert_eq!(told, format!("cannot unmount '{}': pool or dataset is busy\n", s.text("mnt/a/b")));
    assert_eq!(names(&s, "fs").len(), 3);
    drop(busy);
    assert_eq!(zfs(&["destroy", "-rv", "tank/a"]).lines().last(), Some("will destroy tank/a"));
    assert_eq!(names(&s, "all"), ["tank"]);
    assert_eq!(mounted("tank/a", &s), None);
    judge(&s);
}

#[test]
fn properties_move_mounts() {
    if !can_mount("properties move mounts") {
        return;
    }
    let s = Sandbox::new("zfsset");
    new_pool(&s, 256, &["-O", "canmount=off"]);
    let zfs = |args: &[&str]| s.ok(&[&["zfs"], args].concat());
    let no = |args: &[&str]| s.fail(1, &[&["zfs"], args].concat());
    zfs(&["create", "tank/a"]);
    let at = || mounted("tank/a", &s).map(|m| m.0);
    let option = |word: &str| mounted("tank/a", &s).unwrap().1.split(',').any(|o| o == word);
    let other = s.text("other");
    let to_other = format!("mountpoint={other}");

    let busy = std::fs::File::open(s.path("mnt/a")).unwrap();
    let told = no(&["set", &to_other, "tank/a"]);
    assert_eq!(told, format!("cannot unmount '{}': pool or dataset is busy\n", s.text("mnt/a")));
    assert_eq!(
        value(&s, "mountpoint", "tank/a"),
        format!("{} inherited from tank", s.text("mnt/a"))
    );
    drop(busy);
    zfs(&["set", &to_other, "tank/a"]);
    assert_eq!(at(), Some(other.clone()));
    zfs(&["inherit", "mountpoint", "tank/a"]);
    assert_eq!(at(), Some(s.text("mnt/a")));
    zfs(&["set", "-u", &to_other, "tank/a"]);
    assert_eq!(at(), Some(s.text("mnt/a")), "-u leaves the mount alone");
    zfs(&["inherit", "mountpoint", "tank/a"]);

    assert!(!option("noexec") && !option("nosuid") && !option("nodev"));
    // In use or not: the mount stays and changes.
    let held = std::fs::File::open(s.path("mnt/a")).unwrap();
    zfs(&["set", "exec=off", "setuid=off", "devices=off", "tank"]);
    assert!(option("noexec") && option("nosuid") && option("nodev"), "{:?}", mounted("tank/a", &s));
    zfs(&["set", "exec=on", "tank/a"]);
    assert!(!option("noexec") && option("nosuid"));
    zfs(&["inherit", "-r", "exec", "tank"]);
    zfs(&["inherit", "setuid", "tank"]);
    assert!(!option("noexec") && !option("nosuid") && option("nodev"));
    assert_eq!(value(&s, "exec", "tank/a"), "on default");
    drop(held);

    zfs(&["set", "canmount=noauto", "tank/a"]);
    assert!(at().is_some());
    zfs(&["set", "canmount=off", "tank/a"]);
    assert_eq!(at(), None);
    zfs(&["canmount=on", "tank/a"]);
    assert!(at().is_some());
    // Snapshots appear and go beneath the mount.
    let inside = || {
        let list = std::fs::read_dir(s.path("mnt/a/.zfs/snapshot")).unwrap();
        let mut names: Vec<String> =
            list.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert!(inside().is_empty() && !s.path("mnt/a/.zfs/snapshot/one").exists());
    zfs(&["snapshot", "tank/a@one", "tank@one"]);
    assert_eq!(inside(), ["one"]);
    assert!(s.path("mnt/a/.zfs/snapshot/one").exists());
    zfs(&["destroy", "tank/a@one"]);
    assert!(inside().is_empty() && !s.path("mnt/a/.zfs/snapshot/one").exists());
    judge(&s);
}

#[test]
fn refusals_of_properties() {
    if !can_mount("refusals of properties") {
        return;
    }
    let s = Sandbox::new("zfsrefuse");
    new_pool(&s, 256, &["-O", "canmount=off"]);
    s.ok(&["zfs", "create", "tank/a"]);
    s.ok(&["zfs", "create", "-sV", "1M", "tank/v"]);
    s.ok(&["zfs", "snapshot", "tank/a@s"]);
    for (property, dataset, why) in [
        ("foo=1", "tank/a", "invalid property 'foo'"),
        ("used=1", "tank/a", "'used' is readonly"),
        ("copies=4", "tank/a", "'copies' must be one of '1 | 2 | 3'"),
        ("quota=1K", "tank", "size is less than current used or reserved space"),
        ("quota=0", "tank", "use 'none' to disable quota/refquota"),
        ("quota=1G", "tank/v", "'quota' does not apply to datasets of this type"),
        ("atime=off", "tank/a@s", "this property can not be modified for snapshots"),
        ("casesensitivity=mixed", "tank/a", "'casesensitivity' is readonly"),
        ("version=4", "tank/a", "Can not downgrade; already at version 5"),
        ("recordsize=100", "tank/a", "'recordsize' must be power of 2 from 512B to 16M"),
    ] {
        let told = s.fail(1, &["zfs", "set", property, dataset]);
        assert_eq!(told, format!("cannot set property for '{dataset}': {why}\n"));
    }
    s.ok(&["zfs", "set", "a:b=1", "c:d=2", "tank/a", "tank/a@s"]);
    assert_eq!(value(&s, "a:b", "tank/a@s"), "1 local");
    s.ok(&["zfs", "inherit", "a:b", "tank/a@s"]);
    assert_eq!(value(&s, "a:b", "tank/a@s"), "1 inherited from tank/a");
    for (property, why) in [
        ("used", "used property is read-only\n"),
        ("quota", "'quota' property cannot be inherited\nuse 'zfs set quota=none' to clear\n"),
    ] {
        assert_eq!(s.fail(1, &["zfs", "inherit", property, "tank/a"]), why);
    }
    for (args, first) in [
        (&["set", "tank/a"][..], "missing property=value argument(s)"),
        (&["set", "a:b=1"], "missing dataset name(s)"),
        (&["set", "a:b=1", "tank/a", "c:d=1"], "invalid argument order"),
        (&["destroy"], "missing dataset argument"),
        (&["snapshot"], "missing snapshot argument"),
        (&["create"], "missing filesystem argument"),
        (&["inherit", "atime"], "missing dataset argument"),
    ] {
        let told = s.fail(2, &[&["zfs"], args].concat());
        assert_eq!(told.lines().next(), Some(first), "{args:?}");
    }
    let text = s.fail(2, &["zfs", "program", "tank/a@s"]);
    assert!(text.starts_with("unrecognized command 'program'\n"), "{text}");
    judge(&s);
}

#[test]
fn snapshots_are_cloned_bookmarked_and_held() {
    if !can_mount("snapshots are cloned") {
        return;
    }
    let s = Sandbox::new("zfsclone");
    new_pool(&s, 256, &["-O", "canmount=off"]);
    let zfs = |args: &[&str]| s.ok(&[&["zfs"], args].concat());
    let no = |args: &[&str]| s.fail(1, &[&["zfs"], args].concat());
    zfs(&["create", "-p", "tank/a/b"]);
    std::fs::write(s.path("mnt/a/file"), "first").unwrap();
    zfs(&["snapshot", "-r", "tank/a@s"]);
    std::fs::write(s.path("mnt/a/file"), "second").unwrap();

    assert_eq!(zfs(&["clone", "-o", "atime=off", "tank/a@s", "tank/c"]), "");
    assert_eq!(mounted("tank/c", &s).unwrap().0, s.text("mnt/c"));
    assert_eq!(std::fs::read_to_string(s.path("mnt/c/file")).unwrap(), "first");
    std::fs::write(s.path("mnt/c/file"), "third").unwrap();
    assert_eq!(value(&s, "origin", "tank/c"), "tank/a@s -");
    assert_eq!(value(&s, "clones", "tank/a@s"), "tank/c -");
    assert_eq!(value(&s, "atime", "tank/c"), "off local");
    zfs(&["clone", "-pu", "tank/a/b@s", "tank/p/q/c"]);
    assert!(mounted("tank/p/q", &s).is_some() && mounted("tank/p/q/c", &s).is_none());
    assert_eq!(zfs(&["clone", "-p", "tank/a@s", "tank/c"]), "");
    assert_eq!(
        no(&["clone", "tank/a@s", "tank/c"]),
        "cannot create 'tank/c': dataset already exists\n"
    );
    assert_eq!(
        no(&["clone", "tank/a@s", "tank/x/y"]),
        "cannot create 'tank/x/y': parent does not exist\n"
    );
    assert_eq!(
        no(&["clone", "tank/a@no", "tank/d"]),
        "cannot open 'tank/a@no': dataset does not exist\n"
    );
    assert_eq!(
        no(&["clone", "tank/a", "tank/d"]),
        "cannot open 'tank/a': missing '@' delimiter in snapshot name\n"
    );
    assert_eq!(
        no(&["clone", "-o", "casesensitivity=mixed", "tank/a@s", "tank/d"]),
        "cannot create 'tank/d': 'casesensitivity' is readonly\n"
    );
    assert!(s.fail(2, &["zfs", "clone", "tank/a@s"]).starts_with("missing target dataset"));
    assert_eq!(
        no(&["destroy", "tank/a@s"]),
        "cannot destroy snapshot tank/a@s: snapshot is cloned\n"
    );

    zfs(&["bookmark", "tank/a@s", "#m"]);
    zfs(&["bookmark", "tank/a#m", "tank/a#n"]);
    assert_eq!(names(&s, "bookmark"), ["tank/a#m", "tank/a#n"]);
    assert_eq!(
        no(&["bookmark", "tank/a@s", "tank/a#m"]),
        "cannot create bookmark 'tank/a#m': bookmark exists\n"
    );
    assert_eq!(
        no(&["bookmark", "tank/a", "tank/a#k"]),
        "cannot create bookmark 'tank/a#k': invalid source name 'tank/a': must contain a '@' or \
         '#'\n"
    );
    zfs(&["destroy", "tank/a#n"]);
    assert_eq!(no(&["destroy", "tank/a#n"]), "bookmark 'tank/a#n' does not exist.\n");

    zfs(&["hold", "-r", "keep", "tank/a@s"]);
    zfs(&["hold", "also", "tank/a@s"]);
    let held = zfs(&["holds", "-rH", "tank/a@s"]);
    let tags: Vec<Vec<&str>> = held.lines().map(|l| l.split('\t').take(2).collect()).collect();
    assert_eq!(tags, [["tank/a@s", "also"], ["tank/a@s", "keep"], ["tank/a/b@s", "keep"]]);
    let seconds = zfs(&["holds", "-Hp", "tank/a/b@s"]);
    assert!(seconds.trim().rsplit('\t').next().unwrap().parse::<u64>().unwrap() > 1_600_000_000);
    assert!(zfs(&["holds", "tank/a@s"]).starts_with("NAME      TAG   TIMESTAMP\n"));
    assert_eq!(
        no(&["hold", "keep", "tank/a@s"]),
        "cannot hold snapshot 'tank/a@s': tag already exists on this dataset\n"
    );
    assert_eq!(
        no(&["release", "nobody", "tank/a@s"]),
        "cannot release hold from snapshot 'tank/a@s': no such tag on this dataset\n"
    );
    assert!(
        s.fail(2, &["zfs", "hold", ".x", "tank/a@s"]).starts_with("tag may not start with '.'")
    );
    assert_eq!(no(&["holds", "tank/a"]), "'tank/a' is not a snapshot\n");
    let said = s.say(&["zfs", "holds", "tank/a@none"]);
    assert!(said.code == 1 && said.out.is_empty() && !said.err.is_empty(), "{said:?}");
    assert_eq!(
        no(&["destroy", "tank/a@s"]),
        "cannot destroy snapshot tank/a@s: it's being held. Run 'zfs holds -r tank/a@s' to see \
         holders.\n"
    );
    zfs(&["destroy", "-d", "tank/a@s"]);
    assert_eq!(value(&s, "defer_destroy,userrefs", "tank/a@s"), "on -\n2 -");
    zfs(&["release", "-r", "keep", "tank/a@s"]);
    zfs(&["release", "also", "tank/a@s"]);
    assert!(names(&s, "snap").contains(&"tank/a@s".to_owned()), "the clone needs it");
    zfs(&["destroy", "tank/c"]);
    assert_eq!(names(&s, "snap"), ["tank/a/b@s"]);
    assert!(!s.path("mnt/a/.zfs/snapshot/s").exists());
    assert_eq!(std::fs::read_to_string(s.path("mnt/a/file")).unwrap(), "second");
    let history = s.ok(&["zpool", "history", "tank"]);
    for line in ["zfs hold -r keep tank/a@s", "zfs clone -o atime=off tank/a@s tank/c"] {
        assert_eq!(history.matches(&format!(" {line}\n")).count(), 1, "{history}");
    }
    judge(&s);
}

#[test]
fn datasets_are_renamed() {
    if !can_mount("datasets are renamed") {
        return;
    }
    let s = Sandbox::new("zfsrename");
    new_pool(&s, 256, &["-O", "canmount=off"]);
    let zfs = |args: &[&str]| s.ok(&[&["zfs"], args].concat());
    let no = |args: &[&str]| s.fail(1, &[&["zfs"], args].concat());
    zfs(&["create", "-p", "tank/a/b"]);
    let own = s.text("own");
    zfs(&["create", "-o", &format!("mountpoint={own}"), "tank/a/own"]);
    zfs(&["create", "-V", "10M", "tank/a/v"]);
    std::fs::write(s.path("mnt/a/b/file"), "x").unwrap();
    zfs(&["snapshot", "-r", "tank/a@s"]);
    zfs(&["rename", "tank/a", "tank/n"]);
    let at = |name: &str| mounted(name, &s).map(|m| m.0);
    assert_eq!((at("tank/a"), at("tank/n/b")), (None, Some(s.text("mnt/n/b"))));
    assert_eq!(at("tank/n/own"), Some(own.clone()));
    assert_eq!(std::fs::read_to_string(s.path("mnt/n/b/file")).unwrap(), "x");
    assert!(!s.path("mnt/a").exists());
    assert!(s.path("run/volumes/tank/n/v").exists() && !s.path("run/volumes/tank/a").exists());
    zfs(&["rename", "-p", "tank/n/b", "tank/p/q/b"]);
    assert_eq!(at("tank/p/q/b"), Some(s.text("mnt/p/q/b")));

    // A mount in use stops it, and all are mounted as before.
    let busy = std::fs::File::open(s.path("mnt/p/q/b/file")).unwrap();
    let told = no(&["rename", "tank/p", "tank/z"]);
    assert_eq!(
        told,
        format!("cannot unmount '{}': pool or dataset is busy\n", s.text("mnt/p/q/b"))
    );
    assert_eq!(at("tank/p/q"), Some(s.text("mnt/p/q")));
    // With -u the mounts stay, and go on.
    zfs(&["rename", "-u", "tank/p", "tank/z"]);
    assert_eq!(std::fs::read_to_string(s.path("mnt/p/q/b/file")).unwrap(), "x");
    std::fs::write(s.path("mnt/p/q/b/more"), "y").unwrap();
    assert_eq!(value(&s, "mounted", "tank/z/q/b"), "yes -");
    assert!(s.path("mnt/p/q/b/.zfs/snapshot/s/file").exists());
    zfs(&["snapshot", "tank/z/q/b@t"]);
    assert!(s.path("mnt/p/q/b/.zfs/snapshot/t/more").exists());
    drop(busy);
    zfs(&["unmount", "tank/z/q/b"]);
    zfs(&["mount", "tank/z/q/b"]);
    assert_eq!(at("tank/z/q/b"), Some(s.text("mnt/z/q/b")));

    zfs(&["rename", "tank/z/q/b@t", "@u"]);
    assert!(s.path("mnt/z/q/b/.zfs/snapshot/u/more").exists());
    assert!(!s.path("mnt/z/q/b/.zfs/snapshot/t").exists());
    zfs(&["rename", "-r", "tank/n@s", "tank/n@old"]);
    assert_eq!(
        names(&s, "snap"),
        ["tank/n@old", "tank/n/own@old", "tank/n/v@old", "tank/z/q/b@s", "tank/z/q/b@u"]
    );
    zfs(&["snapshot", "tank/n/v@s"]);
    assert_eq!(
        no(&["rename", "-r", "tank/n@old", "s"]),
        "cannot rename 'tank/n@old': a child dataset already has a snapshot with the new name\n"
    );
    for (args, why) in [
        (["tank/n", "tank/z"], "cannot rename 'tank/n': dataset already exists\n"),
        (["tank/n", "tank/x/y"], "cannot create 'tank/x/y': parent does not exist\n"),
        (["tank/n", "other/n"], "cannot rename to 'other/n': datasets must be within same pool\n"),
        (
            ["tank/n", "tank/n/x"],
            "cannot rename to 'tank/n/x': New dataset name cannot be a descendant of current \
             dataset name\n",
        ),
        (
            ["tank/n@old", "tank/z@old"],
            "cannot rename to 'tank/z@old': snapshots must be part of same dataset\n",
        ),
        (["tank/no", "tank/x"], "cannot open 'tank/no': dataset does not exist\n"),
    ] {
        assert_eq!(no(&["rename", args[0], args[1]]), why);
    }
    assert!(s.fail(2, &["zfs", "rename", "tank/n"]).starts_with("missing target dataset"));
    judge(&s);
}

#[test]
fn datasets_return_to_snapshots() {
    if !can_mount("datasets return to snapshots") {
        return;
    }
    let s = Sandbox::new("zfsrollback");
    new_pool(&s, 256, &["-O", "canmount=off"]);
    let zfs = |args: &[&str]| s.ok(&[&["zfs"], args].concat());
    let no = |args: &[&str]| s.fail(1, &[&["zfs"], args].concat());
    zfs(&["create", "-p", "tank/a/b"]);
    let file = s.path("mnt/a/file");
    std::fs::write(&file, "first").unwrap();
    zfs(&["snapshot", "tank/a@one"]);
    std::fs::write(&file, "second").unwrap();
    std::fs::write(s.path("mnt/a/new"), "new").unwrap();
    zfs(&["rollback", "tank/a@one"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "first");
    assert!(!s.path("mnt/a/new").exists());
    assert!(mounted("tank/a/b", &s).is_some());
    zfs(&["snapshot", "tank/a@two"]);
    zfs(&["bookmark", "tank/a@two", "#mark"]);
    zfs(&["clone", "tank/a@two", "tank/c"]);
    assert_eq!(
        no(&["rollback", "tank/a@one"]),
        "cannot rollback to 'tank/a@one': more recent snapshots or bookmarks exist\nuse '-r' to \
         force deletion of the following snapshots and bookmarks:\ntank/a@two\ntank/a#mark\n"
    );
    assert_eq!(
        no(&["rollback", "-r", "tank/a@one"]),
        "cannot rollback to 'tank/a@one': clones of previous snapshots exist\nuse '-R' to force \
         deletion of the following clones and dependents:\ntank/c\n"
    );
    assert_eq!(no(&["rollback", "tank/a@no"]), "cannot open 'tank/a@no': dataset does not exist\n");
    zfs(&["hold", "keep", "tank/a@two"]);
    let mut kept = std::fs::OpenOptions::new().append(true).open(&file).unwrap();
    assert!(no(&["rollback", "-R", "tank/a@one"]).contains("it's being held"));
    std::io::Write::write_all(&mut kept, b"!").unwrap();
    drop(kept);
    zfs(&["release", "keep", "tank/a@two"]);
    // What is open ends with errors, and the file system goes on.
    let mut open = std::fs::OpenOptions::new().append(true).open(&file).unwrap();
    zfs(&["rollback", "-R", "tank/a@one"]);
    assert!(std::io::Write::write_all(&mut open, b"more").is_err());
    drop(open);
    assert_eq!(names(&s, "all"), ["tank", "tank/a", "tank/a@one", "tank/a/b"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "first");
    // A mount inside of it that is in use stops it.
    let busy = std::fs::File::open(s.path("mnt/a/b")).unwrap();
    std::fs::write(&file, "third").unwrap();
    assert_eq!(
        no(&["rollback", "tank/a@one"]),
        format!("cannot unmount '{}': pool or dataset is busy\n", s.text("mnt/a/b"))
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "third");
    drop(busy);
    zfs(&["rollback", "tank/a@one"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "first");
    let history = s.ok(&["zpool", "history", "tank"]);
    assert_eq!(history.matches("zfs rollback").count(), 3, "{history}");
    judge(&s);
}

#[test]
fn clones_are_promoted() {
    if !can_mount("clones are promoted") {
        return;
    }
    let s = Sandbox::new("zfspromote");
    new_pool(&s, 256, &["-O", "canmount=off"]);
    let zfs = |args: &[&str]| s.ok(&[&["zfs"], args].concat());
    let no = |args: &[&str]| s.fail(1, &[&["zfs"], args].concat());
    zfs(&["create", "tank/a"]);
    std::fs::write(s.path("mnt/a/file"), "first").unwrap();
    zfs(&["snapshot", "tank/a@s"]);
    zfs(&["clone", "tank/a@s", "tank/c"]);
    zfs(&["snapshot", "tank/c@s"]);
    assert!(s.path("mnt/a/.zfs/snapshot/s/file").exists());
    assert_eq!(
        no(&["promote", "tank/c"]),
        "cannot promote 'tank/c': conflicting snapshot 's' from parent 'tank/a@s'\n"
    );
    assert_eq!(no(&["promote", "tank/a"]), "cannot promote 'tank/a': not a cloned filesystem\n");
    assert_eq!(
        no(&["promote", "tank/c@s"]),
        "cannot open 'tank/c@s': operation not applicable to datasets of this type\n"
    );
    zfs(&["rename", "tank/c@s", "tank/c@late"]);
    zfs(&["promote", "tank/c"]);
    assert_eq!(names(&s, "snap"), ["tank/c@s", "tank/c@late"]);
    assert_eq!(value(&s, "origin", "tank/a"), "tank/c@s -");
    assert_eq!(std::fs::read_to_string(s.path("mnt/c/.zfs/snapshot/s/file")).unwrap(), "first");
    assert!(!s.path("mnt/a/.zfs/snapshot/s").exists());
    std::fs::write(s.path("mnt/a/file"), "second").unwrap();
    assert_eq!(std::fs::read_to_string(s.path("mnt/c/file")).unwrap(), "first");
    zfs(&["destroy", "tank/a"]);

    // Snapshots are made, renamed and destroyed as directories.
    let snapdir = s.path("mnt/c/.zfs/snapshot");
    std::fs::create_dir(snapdir.join("dir")).unwrap();
    assert!(names(&s, "snap").contains(&"tank/c@dir".to_owned()));
    assert_eq!(std::fs::read_to_string(snapdir.join("dir/file")).unwrap(), "first");
    let open = std::fs::File::open(snapdir.join("dir/file")).unwrap();
    std::fs::rename(snapdir.join("dir"), snapdir.join("moved")).unwrap();
    assert!(names(&s, "snap").contains(&"tank/c@moved".to_owned()));
    assert!(!snapdir.join("dir").exists());
    assert_eq!(std::io::read_to_string(open).unwrap(), "first");
    let errno = |r: std::io::Result<()>| r.unwrap_err().raw_os_error();
    assert_eq!(errno(std::fs::create_dir(snapdir.join("moved"))), Some(17));
    assert_eq!(errno(std::fs::rename(snapdir.join("moved"), snapdir.join("late"))), Some(17));
    zfs(&["hold", "keep", "tank/c@moved"]);
    assert_eq!(errno(std::fs::remove_dir(snapdir.join("moved"))), Some(16));
    zfs(&["release", "keep", "tank/c@moved"]);
    std::fs::remove_dir(snapdir.join("moved")).unwrap();
    assert_eq!(names(&s, "snap"), ["tank/c@s", "tank/c@late"]);
    assert_eq!(std::fs::read_to_string(s.path("mnt/c/file")).unwrap(), "first");
    judge(&s);
}
