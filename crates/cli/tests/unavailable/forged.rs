//! Pools whose metadata lies under valid checksums: whatever block of the pool's own object
//! set it is, the import ends, everything else goes on, and the pool can be taken away.

use std::process::Stdio;

use testkit::Disk;
use testkit::forge::{BlockLocation, Forge, MetadataBlock};

use super::common::{Sandbox, can_mount, is_alive};
use super::{Signal, create, ok, say, signal, the_rest_lives, wait_for, well};

/// The newest group that the labels tell of.
fn newest(disk: &Disk) -> u64 {
    disk.uberblocks().iter().map(|(_, _, ub)| ub.txg.0).max().unwrap()
}

/// Takes a pool with a forged block away, in one of the ways there are.
fn end(s: &Sandbox, way: u32) {
    let pid = s.pid();
    match way % 5 {
        0 => {
            if say(s, &["zpool", "export", "sick"]).code != 0 {
                ok(s, &["zpool", "export", "-f", "sick"]);
            }
        }
        1 => drop(ok(s, &["zpool", "export", "-f", "sick"])),
        2 => {
            let destroy = say(s, &["zpool", "destroy", "-f", "sick"]);
            let left = destroy.code == 1 && destroy.err.contains("left as it was last synced");
            assert!(destroy.code == 0 || left, "{destroy:?}");
        }
        3 => {
            let stop = say(s, &["daemon", "stop"]);
            if stop.code != 0 {
                assert!(stop.code == 1 && stop.err.contains("'sick'"), "{stop:?}");
                ok(s, &["daemon", "stop", "-f"]);
            }
            wait_for("the daemon does not end", || !is_alive(pid));
            ok(s, &["daemon", "start"]);
            ok(s, &["zpool", "import", "-d", &s.text("wells"), "well"]);
        }
        _ => {
            signal(pid, Signal::TERM);
            wait_for("the signal does not end it", || !is_alive(pid));
            // The next daemon imports both.
            ok(s, &["daemon", "start"]);
            wait_for("the healthy pool is not back", || {
                ok(s, &["zpool", "list", "-H", "-o", "name"]).contains("well\n")
            });
            let _absent = say(s, &["zpool", "export", "-f", "sick"]);
        }
    }
}

fn is_suspended(s: &Sandbox) -> bool {
    ok(s, &["zpool", "list", "-H", "-o", "health", "sick"]) == "SUSPENDED\n"
}

/// Uses a pool that was imported. What waits for a suspended pool can be interrupted, or ends
/// with the pool.
fn works(s: &Sandbox) {
    let file = s.path("mnt-sick").join("file");
    let writer = std::thread::spawn(move || file.exists().then(|| std::fs::write(file, [3; 9000])));
    wait_for("the writer hangs", || writer.is_finished() || is_suspended(s));
    let sync = ["zpool", "sync", "sick"];
    for args in [&sync[..], &["zfs", "create", "sick/new"], &sync] {
        let mut command = s.command(args);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for("a command hangs", || child.try_wait().unwrap().is_some() || is_suspended(s));
        let _ended = child.kill();
        child.wait().unwrap();
    }
}

/// A block of the MOS that was wrong and checked made the first group after an import fail; the
/// import never returned, and no other pool could be created, imported or exported.
#[test]
fn a_forged_block_of_each_object() {
    if !can_mount("forged blocks") {
        return;
    }
    let s = Sandbox::new("forged");
    well(&s);
    let disk = s.dir("disks").join("sick");
    let path = disk.to_str().unwrap();
    create(&s, "sick", path, 96);
    for name in ["sick/a", "sick/a/b"] {
        ok(&s, &["zfs", "create", name]);
    }
    std::fs::write(s.path("mnt-sick").join("file"), vec![1; 1 << 20]).unwrap();
    ok(&s, &["zfs", "snapshot", "-r", "sick@one"]);
    std::fs::write(s.path("mnt-sick").join("file"), vec![2; 1 << 20]).unwrap();
    ok(&s, &["zpool", "export", "sick"]);
    let whole = s.path("whole");
    testkit::copy_file(&disk, &whole);

    // Every block of the MOS, but only two of many of one object.
    let mos =
        |n: &MetadataBlock| n.position.objset == 0 && n.position.level >= 0 && n.position.blkid < 2;
    let nodes = Forge::new(&Disk::new(&disk), 0).nodes;
    let places: Vec<BlockLocation> =
        nodes.iter().filter(|n| mos(n)).map(|n| n.position.clone()).collect();
    assert!(places.len() > 20, "{places:?}");
    let (mut refused, mut imported) = (0, 0);
    for place in places {
        testkit::copy_file(&whole, &disk);
        let mut forge = Forge::new(&Disk::new(&disk), 0);
        let id = forge.find(|n| n.position == place).unwrap();
        let size = forge.nodes[id].content.len();
        forge.change(id, vec![0xa5; size]);
        drop(forge);
        let before = newest(&Disk::new(&disk));
        println!("forged: {place:?}");
        let import = say(&s, &["zpool", "import", "-d", path, "sick"]);
        if ok(&s, &["zpool", "list", "-H", "-o", "name"]).contains("sick") {
            imported += 1;
            // Found out since, or not met.
            works(&s);
            if imported == 1 {
                the_rest_lives(&s, "sick");
            }
            end(&s, imported);
        } else {
            refused += 1;
            assert!(import.code == 1 && import.err.contains("cannot import"), "{import:?}");
            assert_eq!(newest(&Disk::new(&disk)), before, "{place:?}");
        }
        assert_eq!(ok(&s, &["zpool", "list", "-H", "-o", "name"]), "well\n", "{place:?}");
    }
    println!("FORGED: {refused} refused, {imported} imported");
    assert!(refused > 3 && imported > 3);
    testkit::copy_file(&whole, &disk);
    ok(&s, &["zpool", "import", "-d", path, "sick"]);
    ok(&s, &["zpool", "export", "sick"]);
    ok(&s, &["daemon", "stop"]);
}
