//! Commands about datasets and volumes on a suspended pool: each says so at once and changes
//! nothing, whatever `failmode` is.

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
    for mode in ["wait", "continue"] {
        // A change that finds no room.
        let mut change = s.command(&["zfs", "create", &format!("{mode}/fs")]);
        let mut change = change.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let health = || ok(&s, &["zpool", "list", "-H", "-o", "health", mode]);
        wait_for("it is not suspended", || health() == "SUSPENDED\n");
        let _ended = change.kill();
        change.wait().unwrap();
        let refused = [
            ("snapshot P/a@new", "cannot create snapshot 'P/a@new'"),
            ("snapshot -r P@new", "cannot create snapshot 'P@new'"),
            ("create P/new", "cannot create 'P/new'"),
            ("create -V 8M P/new", "cannot create 'P/new'"),
            ("clone P/a@s P/new", "cannot create 'P/new'"),
            ("promote P/c", "cannot promote 'P/c'"),
            ("rollback P/a@s", "cannot rollback to 'P/a@s'"),
            ("rollback P/v@s", "cannot rollback to 'P/v@s'"),
            ("rename P/a P/b", "cannot rename 'P/a'"),
            ("rename P/a@s P/a@t", "cannot rename 'P/a@s'"),
            ("hold tag P/a@s", "cannot hold snapshot 'P/a@s'"),
            ("release kept P/v@s", "cannot release hold from snapshot 'P/v@s'"),
            ("bookmark P/a@s P/a#b", "cannot create bookmark 'P/a#b'"),
            ("destroy P/c", "cannot destroy 'P/c'"),
            ("destroy -R P/a", "cannot destroy"),
            ("destroy -d P/a@s", "cannot destroy snapshot P/a@s"),
            ("destroy -r P/v", "cannot destroy"),
            ("set volsize=16M P/v", "cannot set property for 'P/v'"),
            ("set quota=1G P/a", "cannot set property for 'P/a'"),
            ("inherit quota P/a", "cannot inherit quota for 'P/a'"),
        ];
        for (line, words) in refused {
            let line = line.replace('P', mode);
            let args: Vec<&str> = std::iter::once("zfs").chain(line.split(' ')).collect();
            let said = say(&s, &args);
            let words = words.replace('P', mode);
            let why = "pool I/O is currently suspended\n";
            let fits = said.err.starts_with(&words) && said.err.ends_with(why);
            assert!(said.code == 1 && fits, "{mode}: {line}: {said:?}");
        }
        // What only asks is answered, and the datasets are mounted as before.
        let names = ok(&s, &["zfs", "list", "-H", "-t", "all", "-o", "name", "-r", mode]);
        let due = ["", "/a", "/a@s", "/c", "/v", "/v@s"].map(|n| format!("{mode}{n}"));
        assert_eq!(names.lines().collect::<Vec<_>>(), due);
        ok(&s, &["zfs", "get", "-H", "all", &format!("{mode}/a")]);
        ok(&s, &["zfs", "holds", &format!("{mode}/v@s")]);
        let mounted = format!("mnt-{mode}/a/file");
        assert_eq!(std::fs::read(s.path(&mounted)).unwrap(), b"content");
    }
    for mode in ["wait", "continue"] {
        ok(&s, &["zpool", "export", "-f", mode]);
    }
    ok(&s, &["daemon", "stop", "-f"]);
}
