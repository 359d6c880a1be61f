//! Earlier states of a pool by the program: `cenote uberblocks`, `ls`, `cat` and `cp` with
//! `-T`, and `zpool import` with `-T`, `-F` and `-n` (docs/recovery.md).

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Sandbox, can_mount, judge, new_pool};
use testkit::Disk;

const LEN: usize = 1 << 20;

fn content(of: u8) -> Vec<u8> {
    (0..LEN).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ of).collect()
}

/// The groups that the program lists: number, time, state.
fn groups(s: &Sandbox) -> Vec<(u64, u64, String)> {
    let text = s.ok(&["uberblocks", "-Hp", "-d", &s.text("disks"), "tank"]);
    let row = |line: &str| {
        let f: Vec<&str> = line.split('\t').collect();
        (f[0].parse().unwrap(), f[1].parse().unwrap(), f[2].to_owned())
    };
    text.lines().map(row).collect()
}

/// A pool with `kept`, from which `precious` was removed; the last group that has both. The
/// pool is exported.
fn removed(s: &Sandbox) -> u64 {
    new_pool(s, 128, &["-O", "compression=off"]);
    std::fs::write(s.path("mnt/kept"), content(1)).unwrap();
    std::fs::write(s.path("mnt/precious"), content(2)).unwrap();
    s.ok(&["zpool", "sync", "tank"]);
    // Of a pool that is imported, too.
    let before = groups(s)[0].0;
    std::fs::remove_file(s.path("mnt/precious")).unwrap();
    s.ok(&["zpool", "sync", "tank"]);
    std::fs::write(s.path("mnt/new"), content(3)).unwrap();
    s.ok(&["zpool", "export", "tank"]);
    before
}

/// A user removed a file, and reads it as of a moment before.
#[test]
fn a_removed_file_is_read_as_of_then() {
    if !can_mount("earlier states") {
        return;
    }
    let s = Sandbox::new("lookback-read");
    let before = removed(&s);
    let (dir, then) = (s.text("disks"), before.to_string());
    let image = std::fs::read(s.path("disks/disk")).unwrap();

    let list = groups(&s);
    assert!(list.windows(2).all(|w| w[0].0 > w[1].0 && w[0].1 >= w[1].1), "{list:?}");
    let (_, time, state) = list.iter().find(|g| g.0 == before).unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(now.as_secs() - time < 600 && state == "whole", "{list:?}");
    let text = s.ok(&["uberblocks", "-d", &dir, "tank"]);
    let mut lines = text.lines();
    let words: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(words, ["TXG", "TIME", "STATE"]);
    let row = lines.find(|l| l.split_whitespace().next() == Some(&then)).unwrap();
    let f: Vec<&str> = row.split_whitespace().collect();
    // A date, a time of day, and the state.
    assert!(f[1].len() == 10 && f[2].len() == 8 && f[3..] == ["whole"], "{row}");

    let at = |command: &[&str], txg: &str, operands: &[&str]| {
        s.ok(&[command, &["-d", &dir, "-T", txg], operands].concat())
    };
    assert_eq!(at(&["ls"], &then, &["tank:/"]), "kept\nprecious\n");
    assert_eq!(s.ok(&["ls", "-d", &dir, "tank:/"]), "kept\nnew\n");
    assert!(at(&["ls", "-l"], &then, &["tank:/precious"]).contains(&LEN.to_string()));
    let cat = s.run(&["cat", "-d", &dir, "-T", &then, "tank:/precious"]);
    assert!(cat.status.success() && cat.stdout == content(2));
    let target = s.dir("saved");
    at(&["cp"], &then, &["tank:/precious", target.to_str().unwrap()]);
    assert!(std::fs::read(target.join("precious")).unwrap() == content(2));
    let tree = s.path("tree").to_str().unwrap().to_owned();
    at(&["cp", "-r"], &then, &["tank:/", &tree]);
    assert!(std::fs::read(s.path("tree/precious")).unwrap() == content(2));
    // It is not in the newest state, and there is no group 1 any more.
    let said = s.fail(1, &["cat", "-d", &dir, "tank:/precious"]);
    assert!(said.contains("tank:/precious"), "{said}");
    for args in [
        &["cat", "-d", &dir, "-T", "1", "tank:/kept"][..],
        &["ls", "-d", &dir, "-T", "1", "tank:/"],
    ] {
        let said = s.fail(1, args);
        assert!(said.contains("group 1"), "{said}");
    }
    assert!(s.fail(2, &["ls", "-T", "x", "tank:/"]).starts_with("invalid txg value\n"));
    let said = s.fail(1, &["uberblocks", "-d", &dir, "nosuch"]);
    assert!(said.contains("no pool 'nosuch' found"), "{said}");
    assert!(image == std::fs::read(s.path("disks/disk")).unwrap(), "looking writes nothing");
}

/// The same, and the pool goes on from there.
#[test]
fn a_pool_goes_back() {
    if !can_mount("earlier states") {
        return;
    }
    let s = Sandbox::new("lookback-import");
    let before = removed(&s);
    let (dir, then) = (s.text("disks"), before.to_string());
    let image = || std::fs::read(s.path("disks/disk")).unwrap();
    let untouched = image();
    let import = |options: &[&str]| {
        let args = [&["zpool", "import", "-d", &dir], options, &["tank"]].concat();
        args.into_iter().map(str::to_owned).collect::<Vec<String>>()
    };
    let ok = |args: Vec<String>| s.ok(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let fail = |code: i32, args: Vec<String>| {
        s.fail(code, &args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let names = || {
        let all = std::fs::read_dir(s.path("mnt")).unwrap();
        let mut names: Vec<String> =
            all.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };

    // What it would do, and what that would cost.
    let told = ok(import(&["-T", &then, "-n"]));
    assert!(told.starts_with("Would be able to return tank to its state as of "), "{told}");
    let cost = told.lines().nth(1).unwrap();
    assert!(cost.starts_with("Would discard approximately "), "{told}");
    assert!(cost.ends_with(" seconds of transactions: 1M written to files and volumes."), "{told}");
    assert_eq!(
        ok(import(&["-F", "-n"])),
        "Would be able to return tank to its last consistent state.\n"
    );
    // Of what there is not, nothing is done.
    let refused = fail(1, import(&["-T", "1"]));
    assert!(refused.starts_with("cannot import 'tank': "), "{refused}");
    assert!(refused.contains("group 1"), "{refused}");
    let misuse = fail(2, import(&["-T", "yesterday"]));
    assert!(misuse.starts_with("invalid txg value\nusage:\n"), "{misuse}");
    assert!(fail(2, import(&["-n"])).contains("-n or -X only meaningful with -F"));
    assert_eq!(s.ok(&["zpool", "list"]), "no pools available\n");
    assert!(untouched == image(), "nothing was to be written");

    // To read: nothing is discarded.
    ok(import(&["-T", &then, "-o", "readonly=on"]));
    assert_eq!(names(), ["kept", "precious"]);
    assert!(std::fs::write(s.path("mnt/more"), "x").is_err());
    s.ok(&["zpool", "export", "tank"]);
    assert!(untouched == image(), "a pool that is read is not written");
    ok(import(&["-o", "readonly=on"]));
    assert_eq!(names(), ["kept", "new"]);
    s.ok(&["zpool", "export", "tank"]);

    // A group that is damaged is listed as such and refused; another one was not asked for.
    let disk = Disk::new(s.path("disks/disk"));
    let old = groups(&s).into_iter().find(|g| g.2 == "whole" && g.0 < before).unwrap();
    let root = disk.uberblocks().into_iter().find(|u| u.2.txg.0 == old.0).unwrap().2.root_bp;
    for dva in root.as_block().unwrap().dvas() {
        disk.write(dva.offset + testkit::disk::DATA_START, &[0xa5; 512]);
    }
    let state = groups(&s).into_iter().find(|g| g.0 == old.0).unwrap().2;
    assert!(state.starts_with("damaged: "), "{state}");
    let spoilt = image();
    let refused = fail(1, import(&["-T", &old.0.to_string()]));
    assert!(refused.starts_with("cannot import 'tank': "), "{refused}");
    assert!(spoilt == image(), "a refusal writes nothing");

    // For writing.
    let told = ok(import(&["-T", &then]));
    assert!(told.starts_with("Returned tank to its state as of "), "{told}");
    assert!(told.contains("\nDiscarded approximately "), "{told}");
    assert_eq!(names(), ["kept", "precious"]);
    std::fs::write(s.path("mnt/other"), content(4)).unwrap();
    s.ok(&["zpool", "export", "tank"]);
    let list = groups(&s);
    assert!(list.iter().all(|g| g.0 <= before || g.0 > before + 1000), "{list:?}");
    ok(import(&[]));
    assert_eq!(names(), ["kept", "other", "precious"]);
    for (name, of) in [("kept", 1), ("precious", 2), ("other", 4)] {
        assert!(std::fs::read(s.path("mnt").join(name)).unwrap() == content(of), "{name}");
    }
    judge(&s);
}
