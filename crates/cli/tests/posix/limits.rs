//! Full pools and quotas: what is refused, and that removing always works.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use super::{World, noise};

/// Writes noise until it is refused: the error and how many bytes came in.
fn fill(path: &Path, seed: u64) -> (i32, u64) {
    let bytes = noise(seed, 1 << 20);
    let mut file = match File::create(path) {
        Ok(file) => file,
        Err(e) => return (e.raw_os_error().unwrap(), 0),
    };
    let mut total = 0;
    loop {
        match file.write(&bytes) {
            Ok(n) => total += n as u64,
            Err(e) => return (e.raw_os_error().unwrap(), total),
        }
        assert!(total < 1 << 31, "nothing ever stops");
    }
}

#[test]
fn a_full_pool() {
    let Some(w) = World::new("full", 96, &["-O", "compression=off"]) else { return };
    super::put(&w.path("kept"), b"kept");
    for round in 0..3 {
        let (error, total) = fill(&w.path("big"), round);
        assert_eq!(error, libc::ENOSPC, "round {round}");
        assert!(total > 20 << 20, "round {round}: {total} bytes only");
        // Down to the last block, then nothing new.
        let mut more = 0;
        let mut small = Vec::new();
        while more < 10_000 {
            let path = w.path(&format!("small-{more}"));
            match std::fs::write(&path, noise(more, 3000)) {
                Ok(()) => small.push(path),
                Err(e) => {
                    assert_eq!(e.raw_os_error(), Some(libc::ENOSPC));
                    let _maybe_made = std::fs::remove_file(&path);
                    File::open(w.path("")).unwrap().sync_all().unwrap();
                    break;
                }
            }
            more += 1;
        }
        assert!(more < 10_000, "never full");
        let stat = rustix::fs::statvfs(w.path("")).unwrap();
        let left = stat.f_bavail * stat.f_frsize;
        assert!(left < 12 << 20, "{left} bytes are left");
        assert_eq!(std::fs::read(w.path("kept")).unwrap(), b"kept");
        // Making room needs no room: names go, and a file gets shorter.
        if round == 1 {
            let file = File::options().write(true).open(w.path("big")).unwrap();
            file.set_len(100).unwrap();
            file.sync_all().unwrap();
        }
        std::fs::remove_file(w.path("big")).unwrap();
        for path in small {
            std::fs::remove_file(path).unwrap();
        }
        // Who writes right afterwards waits for what was freed.
        std::fs::write(w.path("tick"), noise(round, 1 << 20)).unwrap();
        std::fs::remove_file(w.path("tick")).unwrap();
        File::open(w.path("")).unwrap().sync_all().unwrap();
    }
    w.end();
}

#[test]
fn quotas() {
    let Some(w) = World::new("quota", 512, &["-O", "compression=off"]) else { return };
    for (name, property) in [("q", "quota=24M"), ("r", "refquota=24M")] {
        let dataset = format!("tank/{name}");
        w.zfs(&["create", "-o", property, &dataset]);
        let stat = || {
            let s = rustix::fs::statvfs(w.path(name)).unwrap();
            (s.f_blocks * s.f_frsize) >> 20
        };
        assert!((22..=24).contains(&stat()), "{property}: {} MiB", stat());
        let big = w.path(name).join("big");
        let (error, total) = fill(&big, 9);
        assert_eq!(error, libc::EDQUOT, "{property}");
        assert!((20 << 20..=25 << 20).contains(&total), "{property}: {total}");
        std::fs::remove_file(&big).unwrap();
        super::put(&w.path(name).join("tick"), b"x");
        let (error, again) = fill(&big, 10);
        assert!(error == libc::EDQUOT && again > 20 << 20, "{property}: {error} {again}");
        // More is allowed at once; others never were bound.
        let (what, _) = property.split_once('=').unwrap();
        w.zfs(&["set", &format!("{what}=none"), &dataset]);
        super::put(&w.path(name).join("more"), &noise(3, 2 << 20));
        std::fs::remove_file(&big).unwrap();
    }
    super::put(&w.path("beside"), &noise(5, 30 << 20));
    // What is not there cannot be set aside.
    for args in [&["-V", "10G", "tank/v"][..], &["-o", "reservation=10G", "tank/v"]] {
        let said = w.s.fail(1, &[&["zfs", "create"], args].concat());
        assert_eq!(said, "cannot create 'tank/v': out of space\n");
    }
    w.zfs(&["create", "-s", "-V", "10G", "tank/v"]);
    let said = w.s.fail(1, &["zfs", "create", "tank/a%"]);
    assert_eq!(said, "cannot create 'tank/a%': invalid character '%' in name\n");
    w.end();
}

/// The limit of all users without one: it binds, an owner's own goes before it, it can be
/// given at creation, is in the file system after an import, and can be taken away.
#[test]
fn default_quotas_of_owners() {
    const USER: u32 = 65534;
    let Some(w) = World::new("default-quota", 256, &["-O", "compression=off"]) else { return };
    w.zfs(&["create", "-o", "defaultuserobjquota=20", "tank/made"]);
    let get = |what: &str, of: &str| w.zfs(&["get", "-Hp", "-o", "value", what, of]);
    assert_eq!(get("defaultuserobjquota", "tank/made"), "20\n");
    let dir = w.path("dir");
    std::fs::create_dir(&dir).unwrap();
    std::os::unix::fs::chown(&dir, Some(USER), Some(USER)).unwrap();
    w.zfs(&["set", "defaultuserquota=6M", "tank"]);
    let write = |n: u64| {
        let to = format!("of={}/{n}", dir.display());
        let args = ["if=/dev/urandom", "bs=64k", "count=16", "conv=fsync", "status=none", &to];
        let said = super::run("dd", &args, Some(USER));
        w.s.ok(&["zpool", "sync", "tank"]);
        said
    };
    let fill = |from: u64| (from..from + 20).take_while(|n| write(*n).code == 0).count();
    let first = fill(0);
    assert!((4..=7).contains(&first), "{first}");
    w.zfs(&["set", "userquota@65534=10M", "tank"]);
    assert!((3..=5).contains(&fill(100)));
    w.zfs(&["set", "userquota@65534=none", "tank"]);
    assert_ne!(write(200).code, 0);
    w.s.ok(&["zpool", "export", "tank"]);
    w.s.ok(&["zpool", "import", "-d", &w.s.text("disks"), "tank"]);
    assert_eq!(get("defaultuserquota", "tank"), format!("{}\n", 6 << 20));
    assert_ne!(write(201).code, 0);
    w.zfs(&["set", "defaultuserquota=none", "tank"]);
    assert_eq!(w.zfs(&["get", "-H", "-o", "value", "defaultuserquota", "tank"]), "none\n");
    assert_eq!(write(202).code, 0);
    w.end();
}

/// An owner's limit is set, reached by that owner alone, and taken away.
#[test]
fn quotas_of_owners() {
    const USER: u32 = 65534;
    let Some(w) = World::new("owners", 256, &["-O", "compression=off"]) else { return };
    let dir = w.path("dir");
    std::fs::create_dir(&dir).unwrap();
    std::os::unix::fs::chown(&dir, Some(USER), Some(USER)).unwrap();
    let set = |what: &str| w.zfs(&["set", what, "tank"]);
    let get = |what: &str| w.zfs(&["get", "-Hp", "-o", "value", what, "tank"]).trim().to_owned();
    set("userquota@65534=8M");
    assert_eq!(get("userquota@65534"), (8 << 20).to_string());
    // The account is that of the last groups: one file of 1 MiB in each.
    let write = |n: u64| {
        let to = format!("of={}/{n}", dir.display());
        let args = ["if=/dev/urandom", "bs=64k", "count=16", "conv=fsync", "status=none", &to];
        let said = super::run("dd", &args, Some(USER));
        w.s.ok(&["zpool", "sync", "tank"]);
        said
    };
    let first = (0..20).find(|&n| write(n).code != 0).expect("there is no limit");
    assert!((7..=12).contains(&first), "{first} MiB");
    assert!(write(first).err.contains("Disk quota exceeded"), "{:?}", write(first));
    assert!(get("userused@65534").parse::<u64>().unwrap() >= 8 << 20);
    super::put(&w.path("root's"), &noise(1, 4 << 20));
    // Removing works, and makes room.
    for n in 0..4 {
        std::fs::remove_file(dir.join(n.to_string())).unwrap();
    }
    w.s.ok(&["zpool", "sync", "tank"]);
    assert_eq!(write(0).code, 0);
    set("userquota@65534=none");
    assert_eq!(get("userquota@65534"), "0");
    assert!((30..40).all(|n| write(n).code == 0));
    set("userobjquota@65534=5");
    w.s.ok(&["zpool", "sync", "tank"]);
    assert!(write(50).err.contains("Disk quota exceeded"));
    w.end();
}
