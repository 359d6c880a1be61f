//! What `zdb -i` prints of an intent log that nobody replayed, against what OpenZFS's `zdb`
//! prints of the same disks; byte for byte, at each level of detail. What differs, and why:
//! * Values of extended attributes that do not end with a new line, or cannot be printed: here
//!   they are on a line of their own, and escaped. (There are none in this log.)
//! * The names of a rename that leaves a whiteout: `zdb` prints bytes of the whiteout's number.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, clippy::panic)]

mod common;

use std::process::Command;

use cenote::create::{
    CreateRequest, FeatureSet, FeatureWishes, Force, NewKind, NewVdev, features_to_enable,
};
use cenote::inspect::{ondisk, zpl};
use cenote::{FileSystem, ObjectId, PropData};
use common::{Sandbox, said};
use zpl::rw::{At, Caller, Falloc, New, Rename, SetAttrs, SetHow, SetTime};

const DATASET: &str = "tank/fs";

/// Some of everything that is logged; what is asked for first makes the log.
fn work(fs: &FileSystem) {
    let (by, root) = (Caller::root(), fs.root());
    let file = |name: &str| fs.make(&by, root, name.as_bytes(), &New::file(0o644)).unwrap().id;
    let write = |id: ObjectId, at: u64, data: &[u8]| {
        fs.write(&by, id, At::Offset(at), data).unwrap();
    };
    let first = file("first");
    fs.fsync(first).unwrap();
    let noise: Vec<u8> =
        (0..300_000u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
    write(first, 0, b"copied");
    write(first, 10_000, &noise[..9000]);
    // By its blocks, one of them twice.
    write(first, 131_072, &noise[..262_144]);
    write(first, 20_000, b"between");
    write(first, 131_072 + 10, &noise[..70_000]);
    let dir = fs.make(&by, root, b"dir", &New::dir(0o755)).unwrap().id;
    fs.make(&by, dir, b"link", &New::symlink(b"../first")).unwrap();
    fs.link(&by, first, dir, b"second").unwrap();
    fs.rename(&by, (dir, b"second"), (root, b"third"), Rename::Plain).unwrap();
    fs.rename(&by, (root, b"third"), (dir, b"link"), Rename::Exchange).unwrap();
    file("moves");
    fs.rename(&by, (root, b"moves"), (dir, b"moved"), Rename::Whiteout).unwrap();
    fs.unlink(&by, dir, b"moved").unwrap();
    fs.make(&by, root, b"gone", &New::dir(0o700)).unwrap();
    fs.rmdir(&by, root, b"gone").unwrap();
    let sized = SetAttrs { size: Some(200_001), ..SetAttrs::default() };
    fs.set_attrs(&by, first, &sized).unwrap();
    fs.allocate(&by, first, Falloc::PunchHole, 5000, 100_000).unwrap();
    let time = zpl::Time { seconds: 1_000_000_000, nanoseconds: 5 };
    let set = SetAttrs {
        mode: Some(0o600),
        uid: Some(12),
        gid: Some(13),
        mtime: Some(SetTime::Set(time)),
        flags: Some(ondisk::znode::ZFS_NODUMP),
        project: Some(4),
        ..SetAttrs::default()
    };
    fs.set_attrs(&by, first, &set).unwrap();
    fs.set_xattr(&by, first, b"user.text", b"plain text\n", SetHow::Any).unwrap();
    fs.set_xattr(&by, first, b"user.lines", b"two\nlines\n", SetHow::Any).unwrap();
    fs.remove_xattr(&by, first, b"user.text").unwrap();
    // Too large for the system attributes.
    fs.set_xattr(&by, first, b"user.large", &noise[..40_000], SetHow::Any).unwrap();
    // By blocks: one twice, one from its middle on, one without anything in it.
    let large = file("large");
    write(large, 0, &noise[..262_144]);
    write(large, 131_072 + 5, &noise[7..100_000]);
    write(large, 3 * 131_072 + 7, &noise[100..120_000]);
    write(large, 5 * 131_072, &vec![0; 131_072]);
    fs.fsync(large).unwrap();
    fs.fsync(first).unwrap();
}

/// The names that `zdb` should have printed of the whiteout.
fn named(text: &str) -> String {
    let mut since = None;
    let line = |line: &str| {
        since = if line.contains("TX_RENAME_WHITEOUT ") { Some(0) } else { since.map(|n| n + 1) };
        let names = since == Some(2) && line.starts_with("\t\t\tsrc ");
        if names { "\t\t\tsrc moves tgt moved".to_owned() } else { line.to_owned() }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_log_that_waits_is_told_in_the_same_words() {
    let s = Sandbox::new("log-outputs");
    let (disks, cut) = (s.dir("disks"), s.dir("cut"));
    std::fs::File::create(disks.join("d0")).unwrap().set_len(128 << 20).unwrap();
    let features = features_to_enable(&FeatureWishes::default(), &FeatureSet::all()).unwrap().0;
    let request = CreateRequest {
        name: "tank".into(),
        temporary_name: None,
        vdevs: vec![NewVdev::new(NewKind::File(disks.join("d0")))],
        force: Force { in_use: true, replication: true, ashift: true },
        dry_run: false,
        version: 5000,
        features,
        settings: Vec::new(),
        fs_settings: Vec::new(),
        altroot: None,
        command: None,
    };
    let engine = testkit::engine();
    let pool = engine.create_pool(&request).unwrap().unwrap();
    let props = vec![("acltype".to_owned(), PropData::Num(1))];
    pool.create_filesystem(DATASET, &props, None).unwrap();
    // No group comes unless somebody waits for it.
    cenote::tune::find("zfs_txg_timeout").unwrap().set(&engine, "3600").unwrap();
    let fs = pool.dataset(DATASET).unwrap().open_fs().unwrap();
    work(&fs);
    testkit::copy_file(&disks.join("d0"), &cut.join("d0"));
    drop(fs);
    pool.export().unwrap();
    let cut = cut.to_str().unwrap();
    let mut different = Vec::new();
    for level in ["-iv", "-ivv", "-ivvv", "-ivvvv", "-ivvvvv", "-ii"] {
        let args = ["-e", "-p", cut, level, DATASET];
        let Ok(theirs) = Command::new("zdb").args(args).env("TZ", "UTC").output() else {
            println!("SKIPPED: OpenZFS's zdb is not installed");
            return;
        };
        let ours = said(&s.run(&[&["zdb"], &args[..]].concat()));
        let theirs = said(&theirs);
        let log = |text: &str| text.find("ZIL header").map(|at| text[at..].trim_end().to_owned());
        let (ours, theirs) = (log(&ours.out), log(&theirs.out));
        assert!(theirs.is_some(), "{level}");
        let (ours, theirs) = (ours.unwrap_or_default(), named(&theirs.unwrap_or_default()));
        let pairs = ours.lines().zip(theirs.lines()).enumerate();
        let other = pairs.filter(|(_, (a, b))| a != b);
        different.extend(other.map(|(i, (a, b))| format!("{level}, line {i}: {a:?}, not {b:?}")));
        if ours.lines().count() != theirs.lines().count() {
            different.push(format!("{level}: other lines: {ours}\n{theirs}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}
