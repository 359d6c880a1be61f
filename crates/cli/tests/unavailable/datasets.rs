//! Commands about datasets and volumes on a suspended pool: each says so at once and changes
//! nothing, whatever `failmode` is. The command that met the suspension has the pool's lock.

use std::fs::File;
use std::io::Write;
use std::process::Stdio;

use super::common::{Sandbox, can_mount, eventually as wait_for};
use super::{Tmpfs, ok, say};

#[test]
fn datasets_of_a_suspended_pool() {
    if !can_mount("a full backing store") {
        return;
    }
    let s = Sandbox::new("datasets-suspended");
    let disks = Tmpfs::new("datasets-suspended-disks", 60);
    let well = s.text("well");
    File::create(&well).unwrap().set_len(96 << 20).unwrap();
    for mode in ["wait", "continue"] {
        let (disk, failmode) = (disks.text(mode), format!("failmode={mode}"));
        File::create(&disk).unwrap().set_len(96 << 20).unwrap();
        let mountpoint = format!("mountpoint={}", s.text(&format!("mnt-{mode}")));
        ok(&s, &["zpool", "create", "-o", &failmode, "-O", &mountpoint, mode, &disk]);
        let own = |name: &str| format!("{mode}/{name}");
        ok(&s, &["zfs", "create", &own("a")]);
        ok(&s, &["zfs", "create", "-s", "-V", "8M", &own("v")]);
        ok(&s, &["zfs", "snapshot", &own("a@s"), &own("v@s")]);
        ok(&s, &["zfs", "hold", "kept", &own("v@s")]);
        ok(&s, &["zfs", "clone", &own("a@s"), &own("c")]);
        std::fs::write(s.path(&format!("mnt-{mode}/a/file")), "content").unwrap();
        ok(&s, &["zpool", "sync", mode]);
    }
    let mut filler = File::create(disks.text("filler")).unwrap();
    while filler.write_all(&[1; 65536]).is_ok() {}
    let mut changes = Vec::new();
    for mode in ["wait", "continue"] {
        // A change that finds no room.
        let mut change = s.command(&["zfs", "create", &format!("{mode}/fs")]);
        change.stdout(Stdio::null()).stderr(Stdio::null());
        let change = std::thread::spawn(move || change.status().unwrap().code());
        let health = || ok(&s, &["zpool", "list", "-H", "-o", "health", mode]);
        wait_for("it is not suspended", || health() == "SUSPENDED\n");
        if mode == "continue" {
            wait_for("the change waits", || change.is_finished());
        }
        let why = "pool I/O is currently suspended";
        let refused = [
            ("snapshot P/a@new", "cannot create snapshot 'P/a@new'"),
            ("snapshot -r P@new", "cannot create snapshot 'P@new'"),
            ("create P/new", "cannot create 'P/new'"),
            ("create -V 8M P/new", "cannot create 'P/new'"),
            ("clone P/a@s P/new", "cannot create 'P/new'"),
            ("promote P/c", "cannot promote 'P/c'"),
            ("rollback P/a@s", "cannot rollback 'P/a@s'"),
            ("rollback P/v@s", "cannot rollback 'P/v@s'"),
            ("rename P/a P/b", "cannot rename 'P/a'"),
            ("rename P/a@s P/a@t", "cannot rename 'P/a@s'"),
            ("hold tag P/a@s", "cannot hold snapshot 'P/a@s'"),
            ("release kept P/v@s", "cannot release hold from snapshot 'P/v@s'"),
            ("bookmark P/a@s P/a#b", "cannot create bookmark 'P/a#b'"),
            ("redact P/a@s b P/c", "cannot redact snapshot 'P/a@s'"),
            ("destroy P/c", "cannot destroy 'P/c'"),
            ("destroy -R P/a", "cannot destroy 'P/a'"),
            ("destroy -d P/a@s", "cannot destroy snapshot P/a@s"),
            ("destroy -r P/v", "cannot destroy 'P/v'"),
            ("set volsize=16M P/v", "cannot set property for 'P/v'"),
            ("set quota=1G P/a", "cannot set property for 'P/a'"),
            ("inherit compression P/a", "cannot inherit property for 'P/a'"),
        ];
        for (line, words) in refused {
            let line = line.replace('P', mode);
            let args: Vec<&str> = std::iter::once("zfs").chain(line.split(' ')).collect();
            let said = say(&s, &args);
            let none = if line.contains("-r ") && line.contains('@') {
                "no snapshots were created\n"
            } else {
                ""
            };
            let due = format!("{}: {why}\n{none}", words.replace('P', mode));
            assert!(said.code == 1 && said.err == due, "{mode}: {line}: {said:?}");
        }
        // What only asks is answered, and the datasets are mounted as before.
        let names = ok(&s, &["zfs", "list", "-H", "-t", "all", "-o", "name", "-r", mode]);
        let due = ["", "/a", "/a@s", "/c", "/v", "/v@s"].map(|n| format!("{mode}{n}"));
        // The one that waits for its txg may be seen.
        let waits_for_its_txg = format!("{mode}/fs");
        let names: Vec<&str> = names.lines().filter(|n| *n != waits_for_its_txg).collect();
        assert_eq!(names, due);
        ok(&s, &["zfs", "get", "-H", "all", &format!("{mode}/a")]);
        ok(&s, &["zfs", "holds", &format!("{mode}/v@s")]);
        let mounted = format!("mnt-{mode}/a/file");
        assert_eq!(std::fs::read(s.path(&mounted)).unwrap(), b"content");
        if mode == "wait" {
            // It needs the lock that the change holds.
            let said = say(&s, &["zfs", "unmount", "wait/c"]);
            assert_eq!(said.err, format!("cannot unmount 'wait/c': {why}\n"));
            assert!(!change.is_finished(), "it does not wait");
        }
        changes.push(change);
    }
    // Of several datasets, those of other pools are changed.
    ok(&s, &["zpool", "create", "-O", "mountpoint=none", "well", &well]);
    let said = say(&s, &["zfs", "set", "quota=1G", "wait/a", "well"]);
    let due = "cannot set property for 'wait/a': pool I/O is currently suspended\n";
    assert_eq!((said.code, said.err.as_str()), (1, due));
    assert_eq!(ok(&s, &["zfs", "get", "-Hp", "-o", "value", "quota", "well"]), "1073741824\n");
    for mode in ["wait", "continue"] {
        ok(&s, &["zpool", "export", "-f", mode]);
    }
    for change in changes {
        assert_eq!(change.join().unwrap(), Some(1));
    }
    ok(&s, &["daemon", "stop", "-f"]);
}
