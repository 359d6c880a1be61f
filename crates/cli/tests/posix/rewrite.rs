//! `zfs rewrite` through a mount.

use std::os::unix::fs::{MetadataExt, chown, symlink};

use super::common::eventually;
use super::*;

const PHYSICAL: &str = "feature@physical_rewrite=enabled";

/// Text that compresses to about a half.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let mut out = noise(seed, len);
    out.chunks_mut(64).for_each(|c| c.iter_mut().skip(32).for_each(|b| *b = 7));
    out
}

/// Size and times, in nanoseconds.
fn stamps(path: &Path) -> [i64; 7] {
    let m = std::fs::symlink_metadata(path).unwrap();
    [
        m.size().cast_signed(),
        m.mtime(),
        m.mtime_nsec(),
        m.ctime(),
        m.ctime_nsec(),
        m.atime(),
        m.atime_nsec(),
    ]
}

fn number(w: &World, prop: &str, of: &str) -> u64 {
    w.s.ok(&["zpool", "sync"]);
    w.zfs(&["get", "-Hpo", "value", prop, of]).trim().parse().unwrap()
}

/// An administrator turns compression on and rewrites what was there before.
#[test]
fn old_files_get_the_present_properties() {
    let options = ["-O", "compression=off", "-o", PHYSICAL];
    let Some(w) = World::new("rewrite", 256, &options) else { return };
    std::fs::create_dir_all(w.path("d/e")).unwrap();
    let names = ["a", "d/b", "d/e/c", "d/z"];
    for (i, name) in names.iter().enumerate() {
        put(&w.path(name), &text(i as u64, (i + 1) * 3_000_000));
    }
    std::fs::hard_link(w.path("d/b"), w.path("d/twice")).unwrap();
    symlink(w.path("a"), w.path("d/link")).unwrap();
    run("mkfifo", &[w.path("d/fifo").to_str().unwrap()], None);
    let full = number(&w, "referenced", "tank");
    let before: Vec<_> = names.map(|n| stamps(&w.path(n))).into();
    w.zfs(&["set", "compression=lz4", "tank"]);
    let shown = |name: &str| w.path(name).to_str().unwrap().to_owned();

    // One file, from a byte and so far; nothing is said into a pipe.
    let said = w.s.say(&["zfs", "rewrite", "-o", "1M", "-l", "1M", &shown("a")]);
    assert_eq!((said.code, &*said.out, &*said.err), (0, "", ""));
    let part = full - number(&w, "referenced", "tank");
    assert!((300_000..800_000).contains(&part), "{part}");
    assert_eq!(w.zfs(&["rewrite", "-v", &shown("a")]), format!("{}\n", shown("a")));

    // A directory needs -r. Each file below it is rewritten once.
    let refused = w.s.fail(1, &["zfs", "rewrite", &shown("d"), &shown("none"), &shown("a")]);
    assert_eq!(
        refused,
        format!(
            "cannot rewrite '{}': is a directory; -r is needed\n\
             cannot rewrite '{}': no such file or directory\n",
            shown("d"),
            shown("none")
        )
    );
    let said = w.zfs(&["rewrite", "-rvx", &shown("d")]);
    let due = ["d/b", "d/z", "d/e/c"].map(|n| shown(n) + "\n").concat();
    assert_eq!(said, due);
    let small = number(&w, "referenced", "tank");
    assert!(small < full * 2 / 3, "{small} of {full}");

    // With a snapshot: -S leaves its blocks, -P takes space, too.
    w.zfs(&["snapshot", "tank@s"]);
    let used = number(&w, "used", "tank@s");
    w.zfs(&["rewrite", "-SCr", w.path("").to_str().unwrap()]);
    assert!(number(&w, "used", "tank@s") < used + (1 << 20));
    w.zfs(&["rewrite", "-P", &shown("a")]);
    assert!(number(&w, "used", "tank@s") > used + 1_000_000);
    let feature = w.s.ok(&["zpool", "get", "-Ho", "value", "feature@physical_rewrite", "tank"]);
    assert_eq!(feature.trim(), "active");

    assert_eq!(before, names.map(|n| stamps(&w.path(n))));
    w.again();
    for (i, name) in names.iter().enumerate() {
        assert!(std::fs::read(w.path(name)).unwrap() == text(i as u64, (i + 1) * 3_000_000));
        let of_snapshot = std::fs::read(w.path(&format!(".zfs/snapshot/s/{name}"))).unwrap();
        assert!(of_snapshot == text(i as u64, (i + 1) * 3_000_000));
    }
    // zdb 2.3.2 does not know physical rewrites: it takes such a block, whose logical birth is
    // older than the snapshot, for a block of the snapshot, and does not find it there.
    w.zfs(&["rewrite", &shown("a")]);
    w.end();
}

#[test]
fn refusals_have_reasons() {
    let Some(w) = World::new("rewrite-refused", 128, &[]) else { return };
    put(&w.path("a"), &text(1, 1_000_000));
    let path = w.path("a").to_str().unwrap().to_owned();
    let fails = |args: &[&str]| w.s.fail(1, &[&["zfs", "rewrite"], args].concat());
    // The pool has the default features.
    let text = fails(&["-P", &path]);
    assert!(text.contains("operation not supported: -P needs the pool's feature"), "{text}");
    w.zfs(&["snapshot", "tank@s"]);
    let old = w.path(".zfs/snapshot/s/a").to_str().unwrap().to_owned();
    assert_eq!(fails(&[&old]), format!("cannot rewrite '{old}': read-only file system\n"));
    let outside = w.s.path("disks/disk").to_str().unwrap().to_owned();
    let text = fails(&[&outside]);
    assert!(text.contains("not a file of a dataset that Cenote has mounted"), "{text}");
    let fifo = w.path("fifo").to_str().unwrap().to_owned();
    run("mkfifo", &[&fifo], None);
    assert!(fails(&[&fifo]).contains("not a regular file"));
    w.s.fail(2, &["zfs", "rewrite"]);
    w.s.fail(2, &["zfs", "rewrite", "-o", "5q", &path]);
    w.s.fail(2, &["zfs", "rewrite", "-l", "", &path]);
    // A quota that leaves no room for the new blocks beside the snapshot's.
    w.zfs(&["set", "quota=1M", "tank"]);
    assert!(fails(&[&path]).contains("quota exceeded"));
    w.zfs(&["set", "quota=none", "readonly=on", "tank"]);
    assert!(fails(&[&path]).contains("read-only file system"));
    w.zfs(&["set", "readonly=off", "tank"]);

    // An ordinary user rewrites files that they may write, and no others.
    let program = w.s.path("cenote");
    std::fs::copy(env!("CARGO_BIN_EXE_cenote"), &program).unwrap();
    let program = program.to_str().unwrap();
    let own = w.path("own").to_str().unwrap().to_owned();
    put(&w.path("own"), &noise(2, 500_000));
    chown(&own, Some(1000), Some(1000)).unwrap();
    let said = run(program, &["zfs", "rewrite", "-v", &own, &path], Some(1000));
    assert_eq!((said.code, said.out), (1, format!("{own}\n")));
    assert_eq!(said.err, format!("cannot rewrite '{path}': permission denied\n"));
    w.end();
}

/// A user rewrites a tree that belongs to several: what they may write is rewritten, and of the
/// rest each file is named, as by any program that opens files for writing. Neither owning a
/// file nor being able to read it is enough.
#[test]
fn an_ordinary_user_needs_the_right_to_write() {
    use std::os::unix::fs::PermissionsExt;
    let Some(w) = World::new("rewrite-rights", 128, &["-O", "compression=off"]) else { return };
    // Name, owner, group, mode, and whether user and group 1000 may write it.
    let files = [
        ("group", 0, 1000, 0o664, true),
        ("others", 0, 0, 0o644, false),
        ("own", 1000, 1000, 0o644, true),
        ("own-group-only", 1000, 1000, 0o464, false),
        ("own-locked", 1000, 1000, 0o444, false),
        ("secret", 0, 0, 0o600, false),
        ("world", 0, 0, 0o666, true),
    ];
    let (dir, closed) = (w.path("d"), w.path("d/closed"));
    std::fs::create_dir_all(&closed).unwrap();
    put(&closed.join("inside"), &text(9, 300_000));
    for (i, (name, uid, gid, mode, _)) in files.into_iter().enumerate() {
        let path = dir.join(name);
        put(&path, &text(i as u64, 300_000));
        chown(&path, Some(uid), Some(gid)).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    let before: Vec<_> = files.iter().map(|f| stamps(&dir.join(f.0))).collect();
    w.zfs(&["set", "compression=lz4", "tank"]);
    w.s.ok(&["zpool", "sync"]);
    let blocks = |name: &str| std::fs::metadata(dir.join(name)).unwrap().blocks();
    // The kernel keeps the attributes of a file with unsynced data for a second.
    let all_on_disk = || files.iter().all(|f| blocks(f.0) > 512);
    eventually("files without blocks", all_on_disk);
    let full: Vec<_> = files.iter().map(|f| blocks(f.0)).collect();

    let program = w.s.path("cenote");
    std::fs::copy(env!("CARGO_BIN_EXE_cenote"), &program).unwrap();
    let shown = dir.to_str().unwrap();
    let said = run(program.to_str().unwrap(), &["zfs", "rewrite", "-rv", shown], Some(1000));
    let of =
        |may: bool| files.iter().filter(move |f| f.4 == may).map(|f| format!("{shown}/{}", f.0));
    assert_eq!((said.code, said.out), (1, of(true).map(|path| path + "\n").collect()));
    let denied = of(false).chain([format!("{shown}/closed")]);
    let denied = denied.map(|path| format!("cannot rewrite '{path}': permission denied\n"));
    assert_eq!(said.err, denied.collect::<String>());
    w.s.ok(&["zpool", "sync"]);
    for (&(name, ..), &full) in files.iter().zip(&full).filter(|f| f.0.4) {
        let what = format!("{name}: still more than two thirds of {full}");
        eventually(&what, || blocks(name) < full * 2 / 3);
    }
    for (&(name, ..), &full) in files.iter().zip(&full).filter(|f| !f.0.4) {
        assert_eq!(blocks(name), full, "{name}");
    }
    // Root may write all of them, whatever their modes.
    w.zfs(&["rewrite", "-r", shown]);
    assert_eq!(before, files.iter().map(|f| stamps(&dir.join(f.0))).collect::<Vec<_>>());
    w.end();
}

/// A handle for reading does not suffice, whatever the caller may do besides.
#[test]
fn the_ioctl_wants_a_handle_for_writing() {
    let Some(w) = World::new("rewrite-handle", 96, &[]) else { return };
    put(&w.path("a"), &noise(1, 300_000));
    let opcode = fuse::exchange_opcode(b'Z', 0x57, 48);
    let reading = std::fs::File::open(w.path("a")).unwrap();
    let mut argument = [0; 48];
    argument[8..16].fill(0xff);
    assert_eq!(
        errno(fuse::control(&reading, opcode, &mut argument.clone())),
        rustix::io::Errno::BADF.raw_os_error()
    );
    let writing = std::fs::OpenOptions::new().append(true).open(w.path("a")).unwrap();
    let mut answer = argument;
    fuse::control(&writing, opcode, &mut answer).unwrap();
    assert_eq!(answer[8..16], 3u64.to_ne_bytes());
    // Flags that do not exist.
    argument[16] = 0x80;
    assert_eq!(
        errno(fuse::control(&writing, opcode, &mut argument)),
        rustix::io::Errno::INVAL.raw_os_error()
    );
    drop((reading, writing));
    w.end();
}
