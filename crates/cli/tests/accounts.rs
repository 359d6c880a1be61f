//! Accounts of owners, projects of files, differences and versions, through the commands.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod common;

use std::os::unix::fs::chown;
use std::path::Path;

use common::{Sandbox, can_mount, judge, new_pool};
use testkit::golden;

/// An administrator looks which users fill a file system.
#[test]
fn what_owners_use() {
    if !can_mount("accounts") {
        return;
    }
    let s = Sandbox::new("accounts");
    new_pool(&s, 256, &["-O", "compression=off"]);
    for (name, uid, gid, size) in
        [("a", 4001, 4101, 300_000), ("b", 4002, 4101, 100_000), ("c", 4002, 4102, 1)]
    {
        let file = s.path("mnt").join(name);
        std::fs::write(&file, vec![1; size]).unwrap();
        chown(&file, Some(uid), Some(gid)).unwrap();
    }
    s.ok(&["zfs", "set", "userquota@4001=1M", "groupobjquota@4101=9", "tank"]);
    s.ok(&["zfs", "set", "userquota@4009=64M", "tank"]);
    s.ok(&["zpool", "sync", "tank"]);
    let get = |prop: &str| s.ok(&["zfs", "get", "-Hpo", "value", prop, "tank"]).trim().to_owned();
    let users = s.ok(&["zfs", "userspace", "-Hpn", "tank"]);
    let rows: Vec<Vec<&str>> = users.lines().map(|l| l.split('\t').collect()).collect();
    assert_eq!(rows.iter().map(|r| r[1]).collect::<Vec<_>>(), ["0", "4001", "4002", "4009"]);
    assert!(rows.iter().all(|r| r.len() == 6 && r[0] == "POSIX User"), "{users}");
    assert_eq!(rows[1][2], get("userused@4001"));
    assert_eq!(rows[2][4], get("userobjused@4002"));
    assert_eq!((rows[1][3], rows[2][3], rows[3][2]), ("1048576", "0", "0"));
    let text = s.ok(&["zfs", "userspace", "tank"]);
    let mut lines = text.lines();
    assert!(lines.next().unwrap().starts_with("TYPE        NAME"), "{text}");
    assert!(text.contains("POSIX User  root"), "{text}");
    assert!(lines.all(|l| l.ends_with("none")), "{text}");
    // Groups, sorted and with chosen columns; a snapshot, and a path.
    let sorted = ["zfs", "groupspace", "-Hn", "-S", "used", "-o", "name,objquota", "tank"];
    assert_eq!(s.ok(&sorted), "4101\t9\n4102\tnone\n0\tnone\n");
    s.ok(&["zfs", "snapshot", "tank@s"]);
    std::fs::remove_file(s.path("mnt/a")).unwrap();
    s.ok(&["zpool", "sync", "tank"]);
    assert_eq!(s.ok(&["zfs", "userspace", "-Hpn", "tank@s"]), users);
    let path = s.text("mnt");
    let now = s.ok(&["zfs", "userspace", "-Hpn", "-o", "name,used", &path]);
    assert!(now.contains("4001\t0\n"), "{now}");
    let all = s.ok(&["zfs", "userspace", "-Hn", "-t", "all", "-o", "type,name", "tank@s"]);
    assert!(all.ends_with("POSIX Group\t0\nPOSIX Group\t4101\nPOSIX Group\t4102\n"), "{all}");
    // Wrong arguments.
    for (args, message) in [
        (&["zfs", "userspace", "-o", "bad", "tank"][..], "invalid type 'bad' for -o option"),
        (&["zfs", "userspace", "-s", "bad", "tank"], "invalid field 'bad' for -s option"),
        (&["zfs", "groupspace", "-t", "bad", "tank"], "invalid type 'bad' for -t option"),
    ] {
        assert_eq!(s.fail(255, args), format!("{message}\n"));
    }
    assert!(s.fail(2, &["zfs", "userspace"]).starts_with("missing dataset name\nusage:"));
    let told = s.fail(1, &["zfs", "userspace", "tank/none"]);
    assert_eq!(told, "cannot open 'tank/none': dataset does not exist\n");
    s.ok(&["zfs", "create", "-sV", "16M", "tank/v"]);
    let told = s.fail(1, &["zfs", "userspace", "tank/v"]);
    let text = "operation not applicable to datasets of this type";
    assert_eq!(told, format!("cannot get used/quota for 'tank/v': {text}\n"));
    judge(&s);
}

/// What the user did: gave a directory a project, with a quota for it.
#[test]
fn projects_of_files() {
    if !can_mount("projects") {
        return;
    }
    let s = Sandbox::new("projects");
    new_pool(&s, 256, &["-O", "compression=off"]);
    // The root directory of a pool that OpenZFS made has no project, of ours it may.
    s.ok(&["zfs", "create", "tank/fs"]);
    let at = s.path("mnt/fs");
    std::fs::create_dir_all(at.join("d/e")).unwrap();
    for name in ["d/f", "d/e/g", "h"] {
        std::fs::write(at.join(name), "x").unwrap();
    }
    std::os::unix::fs::symlink("f", at.join("d/link")).unwrap();
    let (d, root) = (at.join("d").to_str().unwrap().to_owned(), at.to_str().unwrap().to_owned());
    assert_eq!(s.ok(&["zfs", "project", "-d", &d]), format!("    0 - {d}\n"));
    s.ok(&["zfs", "project", "-p", "7", "-rs", &d]);
    let list = format!("    7 P {d}/e\n    7 P {d}/e/g\n    7 P {d}/f\n");
    let mut lines: Vec<String> =
        s.ok(&["zfs", "project", "-r", &d]).lines().map(|l| format!("{l}\n")).collect();
    lines.sort();
    assert_eq!(lines.concat(), list);
    assert_eq!(s.ok(&["zfs", "project", &root]), format!("    7 P {d}\n    0 - {root}/h\n"));
    std::fs::write(Path::new(&d).join("new"), vec![1; 100_000]).unwrap();
    s.ok(&["zpool", "sync", "tank"]);
    let space = s.ok(&["zfs", "projectspace", "-Hp", "tank/fs"]);
    let rows: Vec<Vec<&str>> = space.lines().map(|l| l.split('\t').collect()).collect();
    assert_eq!(
        rows.iter().map(|r| (r[0], r[1])).collect::<Vec<_>>(),
        [("Project", "0"), ("Project", "7")]
    );
    assert_eq!(rows[1][4], "5");
    assert_eq!(s.ok(&["zfs", "project", "-c", "-r", &d]), "");
    s.ok(&["zfs", "project", "-p", "9", &format!("{d}/f")]);
    s.ok(&["zfs", "project", "-C", "-k", &format!("{d}/e/g")]);
    let told = s.ok(&["zfs", "project", "-c", "-r", &d]);
    assert_eq!(
        told,
        format!(
            "{d}/f - project ID is not set properly (9/7)\n{d}/e/g - project inherit flag is not set\n"
        )
    );
    let told = s.ok(&["zfs", "project", "-c0r", "-p", "7", &d]);
    assert_eq!(told, format!("{d}/f\0{d}/e/g\0"));
    s.ok(&["zfs", "project", "-Cr", &d]);
    assert_eq!(s.ok(&["zfs", "project", "-d", &d]), format!("    0 - {d}\n"));
    // The quota binds the writer.
    s.ok(&["zfs", "project", "-sp", "7", &d]);
    s.ok(&["zfs", "set", "projectquota@7=1M", "tank/fs"]);
    let full =
        |n: usize| std::fs::write(Path::new(&d).join(format!("big{n}")), vec![n as u8; 700_000]);
    let mut refused = None;
    for n in 0..20 {
        if let Err(e) = full(n) {
            refused = e.raw_os_error();
            break;
        }
        s.ok(&["zpool", "sync", "tank"]);
    }
    assert_eq!(refused, Some(122), "EDQUOT");
    assert!(s.fail(1, &["zfs", "project", "/nowhere"]).contains("failed to open '/nowhere'"));
    assert!(s.fail(2, &["zfs", "project"]).starts_with("missing file or directory target(s)\n"));
    assert!(s.fail(2, &["zfs", "project", "-p", "x", &d]).starts_with("invalid project id 'x'\n"));
    judge(&s);
}

/// What the user did: looked what changed since a snapshot.
#[test]
fn differences() {
    if !can_mount("differences") {
        return;
    }
    let s = Sandbox::new("differences");
    new_pool(&s, 256, &[]);
    let mnt = s.path("mnt");
    for name in ["kept", "gone", "old name", "changed"] {
        std::fs::write(mnt.join(name), "x").unwrap();
    }
    std::fs::create_dir(mnt.join("d")).unwrap();
    s.ok(&["zfs", "snapshot", "tank@a"]);
    std::fs::remove_file(mnt.join("gone")).unwrap();
    std::fs::rename(mnt.join("old name"), mnt.join("näher")).unwrap();
    std::fs::write(mnt.join("changed"), "more").unwrap();
    std::fs::hard_link(mnt.join("kept"), mnt.join("d/kept too")).unwrap();
    std::os::unix::fs::symlink("kept", mnt.join("link")).unwrap();
    let m = mnt.to_str().unwrap();
    let sorted = |text: String| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let wanted = [
        format!("+\t@\t{m}/link"),
        format!("-\tF\t{m}/gone"),
        format!("M\t/\t{m}/"),
        format!("M\t/\t{m}/d"),
        format!("M\tF\t{m}/changed"),
        format!("M\tF\t{m}/d/kept\\0040too\t(+1)"),
        format!("R\tF\t{m}/old\\0040name -> {m}/n\\0303\\0244her"),
    ];
    assert_eq!(sorted(s.ok(&["zfs", "diff", "-F", "tank@a"])), wanted);
    assert_eq!(sorted(s.ok(&["zfs", "diff", "-F", "tank@a", "tank"])), wanted);
    // Nothing is left of how it was found out.
    assert_eq!(s.ok(&["zfs", "list", "-Ht", "snapshot", "-o", "name"]), "tank@a\n");
    s.ok(&["zfs", "snapshot", "tank@b"]);
    assert_eq!(sorted(s.ok(&["zfs", "diff", "-F", "tank@a", "@b"])), wanted);
    let raw = s.ok(&["zfs", "diff", "-Hh", "tank@a", "tank@b"]);
    assert!(raw.contains(&format!("R\t{m}/old name\t{m}/näher\n")), "{raw}");
    let timed = s.ok(&["zfs", "diff", "-t", "tank@a", "tank@b"]);
    assert!(timed.lines().all(|l| l.find('.') == Some(10) && l.find('\t') == Some(20)), "{timed}");
    assert_eq!(s.ok(&["zfs", "diff", "tank@b"]), "");
    // Refusals.
    let not = "not an earlier snapshot from the same fs";
    for (args, message) in [
        (&["tank@b", "tank@a"][..], format!("cannot diff 'tank@a': {not}")),
        (&["tank@none"], "cannot open 'tank@none': dataset does not exist".to_owned()),
        (&["tank"], "cannot open 'tank': missing '@' delimiter in snapshot name".to_owned()),
    ] {
        assert_eq!(s.fail(1, &[&["zfs", "diff"], args].concat()), format!("{message}\n"));
    }
    let told = s.fail(2, &["zfs", "diff"]);
    assert!(told.starts_with("must provide at least one snapshot name\nusage:\n"), "{told}");
    // A pool that is imported read-only is compared without a snapshot.
    s.ok(&["zpool", "export", "tank"]);
    s.ok(&["zpool", "import", "-N", "-o", "readonly=on", "-d", &s.text("disks"), "tank"]);
    assert_eq!(sorted(s.ok(&["zfs", "diff", "-F", "tank@a"])), wanted);
    judge(&s);
}

/// Snapshots that OpenZFS took.
#[test]
fn differences_of_a_golden_pool() {
    let Some(pool) = golden("snaps") else { return };
    let s = Sandbox::new("differences-golden");
    pool.unpack(&s.dir("disks"));
    s.ok(&["zpool", "import", "-N", "-f", "-o", "readonly=on", "-d", &s.text("disks"), "snaps"]);
    let list = s.ok(&["zfs", "list", "-Ht", "snapshot", "-s", "createtxg", "-o", "name"]);
    let mut compared = 0;
    for from in list.lines() {
        let fs = from.split('@').next().unwrap();
        let later = list.lines().skip_while(|n| *n != from).skip(1);
        for to in later.filter(|n| n.split('@').next() == Some(fs)) {
            s.ok(&["zfs", "diff", "-FH", from, to]);
            compared += 1;
        }
        let head = s.say(&["zfs", "diff", "-FH", from, fs]);
        assert!(head.code == 0 || head.err.contains("not applicable"), "{head:?}");
    }
    assert!(compared > 0, "{list}");
}

/// Old versions of file systems are listed and brought up to date.
#[test]
fn versions_of_file_systems() {
    if !can_mount("versions") {
        return;
    }
    let s = Sandbox::new("versions");
    new_pool(&s, 256, &[]);
    let head = "This system is currently running ZFS filesystem version 5.\n\n";
    let current = format!("{head}All filesystems are formatted with the current version.\n");
    assert_eq!(s.ok(&["zfs", "upgrade"]), current);
    assert!(s.ok(&["zfs", "upgrade", "-v"]).contains("\n 5   System attributes\n"));
    s.ok(&["zfs", "create", "-o", "version=4", "tank/old"]);
    s.ok(&["zfs", "create", "-o", "version=4", "tank/old/er"]);
    let file = s.path("mnt/old/file");
    std::fs::write(&file, "of version 4").unwrap();
    let listed = s.ok(&["zfs", "upgrade"]);
    assert!(listed.ends_with("\n 4   tank/old\n 4   tank/old/er\n"), "{listed}");
    let told = s.fail(1, &["zfs", "upgrade", "-V", "4", "tank"]);
    assert_eq!(told, "tank: can not be downgraded; it is already at version 5\n");
    assert_eq!(s.ok(&["zfs", "upgrade", "tank/old/er"]), "1 filesystems upgraded\n");
    assert_eq!(
        s.ok(&["zfs", "upgrade", "-a"]),
        "1 filesystems upgraded\n2 filesystems already at this version\n"
    );
    assert_eq!(s.ok(&["zfs", "upgrade"]), current);
    assert_eq!(s.ok(&["zfs", "get", "-Ho", "value", "version", "tank/old"]), "5\n");
    assert_eq!(
        s.fail(1, &["zfs", "set", "version=4", "tank/old"]),
        "cannot set property for 'tank/old': Can not downgrade; already at version 5\n"
    );
    // In use, and opened again: old files and new ones.
    std::fs::write(s.path("mnt/old/mounted"), "still").unwrap();
    s.ok(&["zfs", "unmount", "tank/old/er"]);
    s.ok(&["zfs", "unmount", "tank/old"]);
    s.ok(&["zfs", "mount", "-a"]);
    std::fs::write(s.path("mnt/old/new"), "of version 5").unwrap();
    for (name, content) in [("file", "of version 4"), ("mounted", "still"), ("new", "of version 5")]
    {
        assert_eq!(std::fs::read_to_string(s.path("mnt/old").join(name)).unwrap(), content);
    }
    std::fs::write(&file, "changed").unwrap();
    let history = s.ok(&["zpool", "history", "tank"]);
    assert!(history.contains("zfs upgrade tank/old/er\n"), "{history}");
    for (args, message) in [
        (&["-v", "-a"][..], "invalid options combination"),
        (&["-a", "tank"], "too many arguments"),
        (&["-r"], "missing filesystem argument"),
        (&["-V", "6", "tank"], "invalid version '6'"),
    ] {
        let told = s.fail(2, &[&["zfs", "upgrade"], args].concat());
        assert!(told.starts_with(&format!("{message}\nusage:\n")), "{told}");
    }
    judge(&s);
}

/// What a script did: read pools as JSON.
#[test]
fn pools_as_json() {
    let s = Sandbox::new("json");
    let disk = s.dir("disks").join("disk");
    std::fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    let disk = disk.to_str().unwrap();
    let value = |args: &[&str]| {
        let text = s.ok(args);
        assert_eq!(text.lines().count(), 1, "{text}");
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    assert_eq!(s.ok(&["zfs", "mount", "-j"]), "");
    s.ok(&["zpool", "create", "-O", "mountpoint=none", "tank", disk]);
    s.ok(&["zpool", "set", "comment=a \"b\"", "tank"]);
    let guid = s.ok(&["zpool", "get", "-Ho", "value", "guid", "tank"]).trim().to_owned();
    let list = value(&["zpool", "list", "-j"]);
    assert_eq!(list["output_version"]["command"], "zpool list");
    let tank = &list["pools"]["tank"];
    assert_eq!((&tank["type"], &tank["state"]), (&"POOL".into(), &"ONLINE".into()));
    assert_eq!(tank["pool_guid"], guid.as_str());
    let size = s.ok(&["zpool", "list", "-Ho", "size"]);
    assert_eq!(tank["properties"]["size"]["value"], size.trim());
    assert_eq!(tank["properties"]["size"]["source"]["type"], "NONE");
    assert_eq!(tank["properties"].get("name"), None);
    let exact =
        value(&["zpool", "list", "-j", "--json-int", "--json-pool-key-guid", "-o", "size,health"]);
    let size: u64 = s.ok(&["zpool", "list", "-Hpo", "size"]).trim().parse().unwrap();
    let props = &exact["pools"][&guid]["properties"];
    assert_eq!(
        (&props["size"]["value"], &props["health"]["value"]),
        (&size.into(), &"ONLINE".into())
    );
    let get = value(&["zpool", "get", "-j", "comment,ashift", "tank"]);
    let comment = &get["pools"]["tank"]["properties"]["comment"];
    assert_eq!(
        (&comment["value"], &comment["source"]["type"]),
        (&"a \"b\"".into(), &"LOCAL".into())
    );
    let all = value(&["zpool", "get", "-j", "all"]);
    assert_eq!(all["pools"]["tank"]["properties"]["feature@async_destroy"]["value"], "enabled");
    let vdev = value(&["zpool", "get", "-j", "ashift,state", "tank", disk]);
    assert_eq!(vdev["pool"]["name"], "tank");
    let vdev = &vdev["vdevs"][disk];
    assert_eq!(
        (&vdev["type"], &vdev["properties"]["state"]["value"]),
        (&"VDEV".into(), &"ONLINE".into())
    );
    s.ok(&["zpool", "export", "tank"]);
    assert_eq!(value(&["zpool", "list", "-j"])["pools"], serde_json::json!({}));
    let said = s.say(&["zpool", "list", "-j", "none"]);
    assert_eq!((said.code, said.err.as_str()), (1, "cannot open 'none': no such pool\n"));
}

/// File systems of pools that did not account space to owners begin with that at their upgrade,
/// with all objects that are there, mounted or not.
#[test]
fn accounting_begins_with_an_upgrade() {
    if !can_mount("old versions") {
        return;
    }
    testkit::side_by_side(&[(11, "4"), (14, "5")], |&(pool, to)| {
        let s = Sandbox::new(&format!("versions-{pool}"));
        new_pool(&s, 256, &["-o", &format!("version={pool}")]);
        assert_eq!(s.ok(&["zfs", "get", "-Ho", "value", "version", "tank"]), "3\n");
        s.ok(&["zfs", "create", "tank/fs"]);
        for i in 0..700 {
            let path = s.path(&format!("mnt/fs/file-{i}"));
            std::fs::write(&path, vec![i as u8; 100 * i]).unwrap();
            if i % 2 == 1 {
                std::os::unix::fs::chown(&path, Some(7), Some(8)).unwrap();
            }
        }
        s.ok(&["zfs", "snapshot", "tank/fs@old"]);
        let with_prop = s.say(&["zfs", "snapshot", "-o", "a:b=c", "tank/fs@prop"]);
        assert_eq!(with_prop.code == 0, pool >= 12, "{}", with_prop.err);
        s.ok(&["zfs", "clone", "tank/fs@old", "tank/clone"]);
        s.ok(&["zfs", "promote", "tank/clone"]);
        let used = s.ok(&["zfs", "get", "-Hpo", "value", "usedbysnapshots", "tank/clone"]);
        assert_eq!(used == "-\n", pool < 13, "{used}");
        let early = s.fail(1, &["zfs", "upgrade", "-V", to, "tank/fs"]);
        assert!(early.contains("pool must be upgraded"), "{early}");
        s.ok(&["zpool", "upgrade", "-V", "28", "tank"]);
        s.ok(&["zfs", "unmount", "tank/clone"]);
        s.ok(&["zfs", "upgrade", "-V", to, "-a"]);
        assert_eq!(s.ok(&["zfs", "get", "-Ho", "value", "version", "tank/fs"]), format!("{to}\n"));
        std::fs::remove_file(s.path("mnt/fs/file-3")).unwrap();
        s.ok(&["zfs", "mount", "tank/clone"]);
        s.ok(&["zpool", "sync", "tank"]);
        for (name, files) in [("tank/fs", 349), ("tank/clone", 350)] {
            let rows = s.ok(&["zfs", "userspace", "-Hpn", "-o", "name,used", name]);
            let of = |id: &str| -> u64 {
                let row = rows.lines().find_map(|l| l.strip_prefix(&format!("{id}\t")));
                row.unwrap_or_else(|| panic!("{rows}")).parse().unwrap()
            };
            let dir = s.path("mnt").join(name.strip_prefix("tank/").unwrap());
            let mut bytes = [0, 0];
            let mut count = 0;
            for entry in std::fs::read_dir(&dir).unwrap() {
                use std::os::unix::fs::MetadataExt;
                let of = entry.unwrap().metadata().unwrap();
                count += u64::from(of.uid() == 7);
                bytes[usize::from(of.uid() == 7)] += of.blocks() * 512;
            }
            assert_eq!(count, files, "{name}");
            assert_eq!(of("7"), bytes[1], "{name}: {rows}");
            assert!(of("0") > bytes[0], "{name}: {rows}");
        }
        judge(&s);
    });
}
