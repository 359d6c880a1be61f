//! What `zdb -i` prints of an intent log that nobody replayed, against what OpenZFS's `zdb`
//! prints of the same disks; byte for byte, at each level of detail. What differs, and why:
//! * Values of extended attributes that do not end with a new line, or cannot be printed: here
//!   they are on a line of their own, and escaped. (There are none in this log.)
//! * The names of new files with ACLs: `zdb` prints bytes of the ACL's head.
//! * The names of a rename that leaves a whiteout: `zdb` prints bytes of the whiteout's number.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used, clippy::panic)]

mod common;

use std::process::Command;

use cenote::create::{CreateRequest, Force, NewKind, NewVdev};
use cenote::inspect::{ondisk, zpl};
use cenote::{FileSystem, ObjectId, PropData};
use common::{Sandbox, said};
use zpl::rw::{Caller, Falloc, New, Rename, SetAttrs, SetHow, SetTime, WritePosition as At};

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

/// Both programs' words for the log that `work` leaves, where they differ; `mend` undoes what
/// is known to be wrong of OpenZFS's.
fn compared(
    name: &str,
    work: impl FnOnce(&cenote::Pool, &FileSystem),
    mend: impl Fn(&str) -> String,
) -> Vec<String> {
    let s = Sandbox::new(name);
    let (disks, cut) = (s.dir("disks"), s.dir("cut"));
    std::fs::File::create(disks.join("d0")).unwrap().set_len(128 << 20).unwrap();
    let vdevs = vec![NewVdev::new(NewKind::File(disks.join("d0")))];
    let request = CreateRequest { force: Force::ALL, ..CreateRequest::new("tank", vdevs) };
    let engine = testkit::engine();
    let pool = engine.create_pool(&request).unwrap().unwrap();
    let props = vec![("acltype".to_owned(), PropData::Num(1))];
    pool.create_filesystem(DATASET, &props, None).unwrap();
    // No txg is written unless a caller waits for it.
    cenote::tune::find("zfs_txg_timeout").unwrap().set(&engine, "3600").unwrap();
    let fs = pool.dataset(DATASET).unwrap().open_fs().unwrap();
    work(&pool, &fs);
    testkit::copy_file(&disks.join("d0"), &cut.join("d0"));
    drop(fs);
    pool.export().unwrap();
    let cut = cut.to_str().unwrap();
    let mut different = Vec::new();
    for level in ["-iv", "-ivv", "-ivvv", "-ivvvv", "-ivvvvv", "-ii"] {
        let args = ["-e", "-p", cut, level, DATASET];
        let Ok(theirs) = Command::new("zdb").args(args).env("TZ", "UTC").output() else {
            testkit::skip(testkit::Need::Zdb, "OpenZFS's zdb is not installed");
            return Vec::new();
        };
        let ours = said(&s.run(&[&["zdb"], &args[..]].concat()));
        let theirs = said(&theirs);
        let log = |text: &str| text.find("ZIL header").map(|at| text[at..].trim_end().to_owned());
        let (ours, theirs) = (log(&ours.out), log(&theirs.out));
        assert!(theirs.is_some(), "{level}");
        let (ours, theirs) = (ours.unwrap_or_default(), mend(&theirs.unwrap_or_default()));
        let pairs = ours.lines().zip(theirs.lines()).enumerate();
        let other = pairs.filter(|(_, (a, b))| a != b);
        different.extend(other.map(|(i, (a, b))| format!("{level}, line {i}: {a:?}, not {b:?}")));
        if ours.lines().count() != theirs.lines().count() {
            different.push(format!("{level}: other lines: {ours}\n{theirs}"));
        }
    }
    different
}

#[test]
fn a_log_that_waits_is_told_in_the_same_words() {
    let different = compared("log-outputs", |_, fs| work(fs), named);
    assert!(different.is_empty(), "{}", different.join("\n"));
}

/// Names of new files with ACLs, where `zdb` prints the number of the ACL's entries.
fn new_names(text: &str) -> String {
    let mut last = "";
    let line = |line| {
        let kinds = [
            ("TX_CREATE_ACL ", "with-acl"),
            ("TX_CREATE_ACL_ATTR ", "with-both"),
            ("TX_MKDIR_ACL ", "dir-acl"),
            ("TX_MKDIR_ACL_ATTR ", "dir-both"),
        ];
        let name = kinds.iter().find(|(kind, _)| last.contains(kind)).map(|(_, name)| name);
        last = line;
        // Not where no names are told.
        match name.filter(|_| line.starts_with("\t\t\t")) {
            Some(name) => format!("\t\t\t{name}"),
            None => line.to_owned(),
        }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Records that only FreeBSD, illumos, or a clone of blocks write.
fn foreign(pool: &cenote::Pool, fs: &FileSystem) {
    use ondisk::acl::Ace;
    use ondisk::zil::{
        AclInfo, CloneRange, Create, LoggedAcl, RecordBody, SetAttr, Xvattr, encode_acl,
    };
    let by = Caller::root();
    let file = fs.make(&by, fs.root(), b"file", &New::file(0o644)).unwrap().id;
    fs.fsync(file).unwrap();
    fs.write(&by, file, At::Offset(0), &vec![7; 262_144]).unwrap();
    fs.write(&by, file, At::Offset(0), b"not the same").unwrap();
    let writer = pool.writer().unwrap();
    writer.sync().unwrap();
    let os = writer.read_dataset(DATASET).unwrap();
    let log = writer.log(&os).unwrap().unwrap();
    let ace = |flags, who| Ace { kind: 0, flags, mask: 0x21, who, object_types: None };
    let list = LoggedAcl { aces: vec![ace(0x1000, 0), ace(0, 1 << 31)], fuids: vec![1 << 32 | 5] };
    let (info, aces) = encode_acl(&list, 1);
    let plain = encode_acl(&LoggedAcl { fuids: Vec::new(), ..list }, 0);
    let domains = vec![&b"S-1-5-21"[..]];
    let requested = [0x1043, 0, 0];
    let xvattr = Some(Xvattr { requested, values: 0x42, crtime: [9, 8], scanstamp: [0x41; 32] });
    let new = |name, acl: Option<(AclInfo, &'static [u8])>, xvattr| {
        RecordBody::Create(Create {
            directory: fs.root(),
            object: ObjectId(700),
            dnode_slots: 2,
            mode: 0o100_640,
            uid: 1,
            gid: 2,
            generation: 3,
            crtime: [1_000_000_000, 5],
            rdev: 6,
            xvattr,
            acl,
            domains: if acl.is_some() { vec![b"S-1-5-21"] } else { Vec::new() },
            name,
            target: None,
        })
    };
    let leaked: &'static [u8] = Vec::leak(aces.clone());
    let acl = Some((info, leaked));
    let set = |mask, uid| {
        RecordBody::SetAttr(SetAttr {
            object: file,
            mask,
            mode: 0o600,
            uid,
            gid: 4,
            size: 5,
            atime: [1, 2],
            mtime: [3, 4],
            xvattr,
            domains: if uid > 1 << 32 { vec![b"S-1-5-21"] } else { Vec::new() },
        })
    };
    let object = os.object(file, cenote::Io::WAIT).unwrap();
    let pointer = |i| object.block_pointer(0, i, cenote::Io::WAIT).unwrap().encode().unwrap();
    let hole = ondisk::BlkPtr::default().encode().unwrap();
    let raw = [pointer(0), hole, pointer(1)].concat();
    let clone = CloneRange::new(file, (0, 3 * 131_072), 131_072, &raw).unwrap();
    let records: Vec<(u8, RecordBody<'_>)> = vec![
        (12, RecordBody::Acl { object: file, info: plain.0, aces: &plain.1, domains: Vec::new() }),
        (13, RecordBody::Acl { object: file, info, aces: &aces, domains }),
        (14, new(b"with-acl", acl, None)),
        (15, new(b"with-attr", None, xvattr)),
        (16, new(b"with-both", acl, xvattr)),
        (17, new(b"dir-acl", acl, None)),
        (18, new(b"dir-attr", None, xvattr)),
        (19, new(b"dir-both", acl, xvattr)),
        (11, set(0x1_07ce, 3)),
        (11, set(0x1_0004, 1 << 32 | 9)),
        (24, RecordBody::CloneRange(clone)),
    ];
    let tx = writer.begin_wait(0, false).unwrap();
    for (kind, body) in &records {
        log.name(tx.txg(), *kind, body, None);
    }
    drop(tx);
    fs.fsync(file).unwrap();
}

#[test]
fn records_of_other_systems_are_told_in_the_same_words() {
    let different = compared("log-foreign", foreign, new_names);
    assert!(different.is_empty(), "{}", different.join("\n"));
}
