//! Records that Cenote does not write: those of FreeBSD and illumos. They are put into a
//! live log by hand, the pool's file is copied as a power cut would leave it, imported, and
//! its log replayed.

use super::log::{cut, essence, import_with, log_of, quiet, replay_some, synced};
use super::*;
use ondisk::acl::{
    ACE_ALLOW, ACE_DENY, ACE_EVERYONE, ACE_FILE_INHERIT, ACE_IDENTIFIER_GROUP, ACE_OWNER, Ace,
};
use ondisk::fuid::Fuid;
use ondisk::zil::{Create, LogBlock, LoggedAcl, RecordBody, SetAttr, Xvattr, encode_acl, seal};
use ondisk::znode::{self, ZFS_ACL_PROTECTED, ZFS_ACL_TRIVIAL, ZFS_INHERIT_ACE};
use spa::audit::log::{LogVisitor, log_header, walk_log};
use zpl::{FileType, Time};

/// Offset of the data area on the pool's only device.
pub(super) const LABELS: u64 = 4 << 20;
const BORN: [u64; 2] = [1_000_000_000, 5];

/// A pool whose log is in use, and a first file.
pub(super) fn ready(name: &str, props: &[(&str, u64)]) -> (PosixFixture, ObjectId) {
    let rig = PosixFixture::with(name, 192 * MB, 5000, props);
    quiet(&rig.pool);
    let first = rig.file(rig.root(), "first");
    rig.fs.fsync(first).unwrap();
    (rig, first)
}

/// Adds records to the log, and writes them to the devices without a txg. The live file
/// system is not changed.
pub(super) fn plant(rig: &PosixFixture, records: &[(u8, RecordBody<'_>)]) {
    let log = log_of(&rig.pool);
    let before = synced(&rig.pool);
    let tx = rig.pool.writer().unwrap().begin_wait(0, false).unwrap();
    for (kind, body) in records {
        log.name(tx.txg(), *kind, body, None);
    }
    drop(tx);
    log.commit(&*rig.fs, None, 0).unwrap();
    assert_eq!(synced(&rig.pool), before, "the records waited for a txg");
}

/// The blocks of a log, and where they are in the device's file.
#[derive(Default)]
struct Chain(Vec<(ondisk::zil::LogPtr, u64)>);

impl LogVisitor for Chain {
    fn block(&mut self, ptr: &ondisk::zil::LogPtr) -> base::Result<bool> {
        let at = ptr.bp.as_block().map_or(0, |b| LABELS + b.dva().offset);
        self.0.push((*ptr, at));
        Ok(true)
    }
}

/// Calls `change` for records of the log in a copy of the pool; `rig` is unchanged since
/// the cut.
pub(super) fn forge(rig: &PosixFixture, scratch: &Scratch, change: impl Fn(u8, &mut [u8])) {
    use std::os::unix::fs::FileExt;
    let os = rig.pool.writer().unwrap().read_dataset(DATASET).unwrap();
    let mut chain = Chain::default();
    walk_log(os.zio(), &log_header(&os.phys()).unwrap(), &mut chain).unwrap();
    let path = scratch.path().join("d0");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    for (ptr, at) in chain.0 {
        let mut block = vec![0; ptr.bp.as_block().unwrap().psize.0 as usize];
        file.read_exact_at(&mut block, at).unwrap();
        let Ok(parsed) = LogBlock::parse(&block, &ptr) else { break };
        let (next, used) = (parsed.next, parsed.records.len());
        let sizes: Vec<usize> = parsed.records().map(|r| r.unwrap().bytes.len()).collect();
        let mut from = ondisk::zil::CHAIN_SIZE;
        for len in sizes {
            let record = &mut block[from..from + len];
            change(record[0], record);
            from += len;
        }
        seal(&mut block, used, &ptr, &next).unwrap();
        file.write_all_at(&block, at).unwrap();
    }
}

pub(super) fn word(record: &mut [u8], at: usize, value: u64) {
    record[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

pub(super) fn import(engine: &Engine, scratch: &Scratch) -> Arc<Pool> {
    let pool = import_with(engine, scratch, false).unwrap();
    assert_eq!(pool.read_only_because(), None);
    pool
}

/// Imports a copy after a power cut, calls `f` with the file system, and checks the pool
/// afterwards.
pub(super) fn replayed(scratch: &Scratch, f: impl FnOnce(&FileSystem)) {
    let engine = testkit::engine();
    let pool = import(&engine, scratch);
    pool.dataset(DATASET).unwrap().check_writable().unwrap();
    let fs = open(&pool);
    f(&fs);
    drop(fs);
    pool.export().unwrap();
    drop(pool);
    judge_with(&engine, scratch);
}

/// The replay is refused, and nothing is lost: the file system is as the last txg left it,
/// and the log still exists.
fn refused(scratch: &Scratch, wanted: &[super::log::Essence]) {
    let engine = testkit::engine();
    // The second time it is claimed already.
    for _ in 0..2 {
        let pool = import(&engine, scratch);
        let dataset = pool.dataset(DATASET).unwrap();
        assert_eq!(kind(dataset.check_writable()), ErrorKind::ReadOnly);
        assert_eq!(essence(&dataset.open_fs().unwrap()), wanted);
        pool.export().unwrap();
    }
    let texts = zdb_texts(scratch, &[&["-bcc", "tank"], &["-i", DATASET]]);
    let [space, log] = &texts[..] else { return };
    assert!(space.contains("No leaks"), "{space}");
    assert!(!log.contains("claim_txg 0,"), "{log}");
}

fn ace(kind: u16, flags: u16, mask: u32, who: u64) -> Ace {
    let object_types = (5..=8).contains(&kind).then_some([0x33; 32]);
    Ace { kind, flags, mask, who, object_types }
}

/// Entries of every kind, two of foreign ids.
fn list() -> LoggedAcl {
    let aces = vec![
        ace(ACE_DENY, 0, 0x20, 1 << 31 | 7),
        ace(ACE_ALLOW, ACE_IDENTIFIER_GROUP | ACE_FILE_INHERIT, 0x3, 100),
        ace(5, 0, 0x1, 1 << 31 | 8),
        ace(ACE_ALLOW, ACE_OWNER, 0x1e01bf, 0),
        ace(ACE_ALLOW, ACE_EVERYONE, 0x21, 0),
    ];
    LoggedAcl { aces, fuids: vec![1 << 32 | 70, 2 << 32 | 80] }
}

fn acl_body<'a>(object: ObjectId, acl: &'a (ondisk::zil::AclInfo, Vec<u8>)) -> RecordBody<'a> {
    let domains =
        if acl.0.fuids > 0 { vec![&b"S-1-5-21-1"[..], b"S-1-5-21-2"] } else { Vec::new() };
    RecordBody::Acl { object, info: acl.0, aces: &acl.1, domains }
}

fn create<'a>(dir: ObjectId, object: u64, mode: u64, name: &'a [u8]) -> Create<'a> {
    Create {
        directory: dir,
        object: ObjectId(object),
        dnode_slots: 1,
        mode,
        uid: 3,
        gid: 4,
        generation: 99,
        crtime: BORN,
        rdev: 0,
        xvattr: None,
        acl: None,
        domains: Vec::new(),
        name,
        target: None,
    }
}

/// Compares with the list, in a file system with these domains.
fn is_list(fs: &FileSystem, id: ObjectId) {
    let aces = fs.dacl(id, Io::WAIT).unwrap();
    let plain: Vec<Ace> = list().aces.iter().map(|a| Ace { who: 0, ..*a }).collect();
    assert_eq!(aces.iter().map(|a| Ace { who: 0, ..*a }).collect::<Vec<_>>(), plain);
    let table = fs.fuid_domains(Io::WAIT).unwrap();
    let who = |i: usize| (table.domain(Fuid(aces[i].who)), Fuid(aces[i].who).rid());
    assert_eq!(who(0), (Some(&b"S-1-5-21-1"[..]), 70));
    assert_eq!((aces[1].who, who(2)), (100, (Some(&b"S-1-5-21-2"[..]), 80)));
    let attrs = fs.attrs(id, Io::WAIT).unwrap();
    assert_eq!(attrs.mode & 0o777, 0o755);
    let flags = ZFS_ACL_TRIVIAL | ZFS_ACL_PROTECTED | ZFS_INHERIT_ACE | znode::ZFS_ACL_OBJ_ACE;
    let inherits = if attrs.kind == FileType::Dir { ZFS_INHERIT_ACE } else { 0 };
    let wanted = ZFS_ACL_PROTECTED | znode::ZFS_ACL_OBJ_ACE | inherits;
    assert_eq!(attrs.pflags & (flags | znode::ZFS_NO_EXECS_DENIED), wanted);
}

#[test]
fn acls_of_other_systems_are_replayed() {
    // With system attributes, and with the structure before them.
    let versions = [("acl", &[][..]), ("acl-old", &[("version", 4)])];
    testkit::side_by_side(&versions, |&(name, props)| {
        let (rig, first) = ready(name, props);
        let (root, fs) = (rig.root(), &rig.fs);
        let dir = rig.dir(root, "dir");
        let old = rig.file(root, "old");
        let gone = rig.file(root, "gone");
        rig.sync();
        fs.unlink(&Caller::root(), root, b"gone").unwrap();
        let acl = encode_acl(&list(), 2);
        // Too many for a structure of 264 bytes, and for a dnode.
        let many: Vec<Ace> = (0..200).map(|i| ace(ACE_ALLOW, 0, 0x1, 1000 + i)).collect();
        let many = encode_acl(&LoggedAcl { aces: many, fuids: Vec::new() }, 0);
        let few = [ace(ACE_ALLOW, ACE_OWNER, 0x3, 0), ace(ACE_ALLOW, 0, 0x1, 5)];
        let few = encode_acl(&LoggedAcl { aces: few.to_vec(), fuids: Vec::new() }, 0);
        let with = |c: Create<'static>| Create {
            acl: Some((acl.0, &acl.1)),
            domains: vec![b"S-1-5-21-1", b"S-1-5-21-2"],
            ..c
        };
        plant(
            &rig,
            &[
                (13, acl_body(first, &acl)),
                (13, acl_body(dir, &many)),
                (13, acl_body(dir, &acl)),
                (13, acl_body(gone, &acl)),
                (12, acl_body(old, &many)),
                (14, RecordBody::Create(with(create(root, 500, 0o100_600, b"file")))),
                (17, RecordBody::Create(with(create(dir, 501, 0o40_700, b"sub")))),
                // By a foreign owner.
                (
                    1,
                    RecordBody::Create(Create {
                        uid: 2 << 32 | 9,
                        domains: vec![b"other", b"S-1-5-21-2"],
                        ..create(dir, 502, 0o100_644, b"foreign")
                    }),
                ),
                (12, acl_body(ObjectId(502), &few)),
                (
                    11,
                    RecordBody::SetAttr(SetAttr {
                        object: first,
                        mask: 0x4,
                        mode: 0,
                        uid: 0,
                        gid: 1 << 32 | 11,
                        size: 0,
                        atime: [0; 2],
                        mtime: [0; 2],
                        xvattr: None,
                        domains: vec![b"S-1-5-21-1"],
                    }),
                ),
            ],
        );
        // The mask is Linux's: group.
        let scratch = cut(&rig, name);
        let steps = cut(&rig, &format!("{name}-steps"));
        let check = |fs: &FileSystem| {
            is_list(fs, first);
            is_list(fs, dir);
            let attrs = fs.attrs(old, Io::WAIT).unwrap();
            assert_eq!(fs.dacl(old, Io::WAIT).unwrap().len(), 200);
            assert_eq!((attrs.mode & 0o777, attrs.pflags & ZFS_ACL_TRIVIAL), (0, 0));
            for (path, at, size) in [("file", root, 0), ("sub", dir, 2)] {
                let id = fs.lookup(at, path.as_bytes(), Io::WAIT).unwrap().id;
                is_list(fs, id);
                let a = fs.attrs(id, Io::WAIT).unwrap();
                assert_eq!((a.uid, a.gid, a.size, a.generation), (3, 4, size, 99));
                assert_eq!(a.crtime, Time { seconds: 1_000_000_000, nanoseconds: 5 });
            }
            let table = fs.fuid_domains(Io::WAIT).unwrap();
            let owner = fs.attrs(ObjectId(502), Io::WAIT).unwrap().owner_fuid;
            assert_eq!((table.domain(Fuid(owner)), owner as u32), (Some(&b"S-1-5-21-2"[..]), 9));
            assert_eq!(table.iter().count(), 3);
            assert_eq!(fs.dacl(ObjectId(502), Io::WAIT).unwrap().len(), 2);
            assert_eq!(fs.attrs(ObjectId(502), Io::WAIT).unwrap().mode & 0o777, 0o600);
            let group = fs.attrs(first, Io::WAIT).unwrap().group_fuid;
            assert_eq!((table.domain(Fuid(group)), group as u32), (Some(&b"S-1-5-21-1"[..]), 11));
        };
        replayed(&scratch, check);
        step_by_step(&steps, name);
        replayed(&steps, check);
        rig.finish();
    });
}

/// Replays one more record each time, followed by a power cut; every other time with a txg
/// on disk.
pub(super) fn step_by_step(scratch: &Scratch, name: &str) {
    let engine = testkit::engine();
    for round in 0..40 {
        let pool = import(&engine, scratch);
        quiet(&pool);
        let left = replay_some(&pool, 2, round % 2 == 0) > 0;
        let copy = Scratch::new(&format!("posix-step-{name}"));
        testkit::copy_file(&scratch.path().join("d0"), &copy.path().join("d0"));
        drop(pool);
        testkit::copy_file(&copy.path().join("d0"), &scratch.path().join("d0"));
        if !left {
            return assert!(round > 1, "there was nothing to replay");
        }
    }
    panic!("the replay does not get on");
}

fn xvattr(asked: u32, values: u64) -> Xvattr {
    let mut scanstamp = [0x5a; 32];
    if asked & ondisk::zil::XAT_PROJID != 0 {
        scanstamp = [0; 32];
        scanstamp[0] = 77;
    }
    Xvattr { requested: [asked, 0, 0], values, crtime: [12, 34], scanstamp }
}

#[test]
fn attributes_beyond_posix_are_replayed() {
    let versions = [("xvattr", &[][..]), ("xvattr-old", &[("version", 4)])];
    testkit::side_by_side(&versions, |&(name, props)| {
        let (rig, first) = ready(name, props);
        let root = rig.root();
        rig.write(first, 0, b"content");
        rig.sync();
        let modern = props.is_empty();
        // Creation time, archive, system, read-only, stamp, generation, offline.
        let asked = 0x1 | 0x2 | 0x4 | 0x8 | 0x1000 | 0x4000 | 0x8000;
        let new = |asked, values, c: Create<'static>| {
            RecordBody::Create(Create { xvattr: Some(xvattr(asked, values)), ..c })
        };
        let acl = encode_acl(&list(), 2);
        let project = if modern { 0x4_0000 } else { 0 };
        let set = |object, xvattr| {
            RecordBody::SetAttr(SetAttr {
                object,
                mask: 0x1_0000,
                mode: 0,
                uid: 0,
                gid: 0,
                size: 0,
                atime: [0; 2],
                mtime: [0; 2],
                xvattr: Some(xvattr),
                domains: Vec::new(),
            })
        };
        let data = RecordBody::Write(ondisk::zil::Write {
            object: ObjectId(600),
            offset: 0,
            length: 5,
            block: None,
            data: Some(b"after"),
        });
        let with_attributes = Create {
            acl: Some((acl.0, &acl.1)),
            domains: vec![b"S-1-5-21-1", b"S-1-5-21-2"],
            xvattr: Some(xvattr(0x2 | 0x10 | project, 0x10)),
            ..create(root, 602, 0o40_700, b"both")
        };
        plant(
            &rig,
            &[
                (15, new(asked, 0x4 | 0x8 | 0x8000, create(root, 600, 0o100_644, b"file"))),
                // A read-only flag does not prevent it.
                (9, data),
                (18, new(0x20 | 0x40, 0x60, create(root, 601, 0o40_755, b"dir"))),
                // Nor does an immutable directory.
                (1, RecordBody::Create(create(ObjectId(601), 603, 0o100_644, b"inside"))),
                (19, RecordBody::Create(with_attributes)),
                (11, set(first, xvattr(0x1 | 0x200 | 0x400 | 0x1000, 0x80 | 0x400))),
                (5, RecordBody::Remove { directory: ObjectId(601), name: b"inside" }),
                (
                    16,
                    RecordBody::Create(Create {
                        acl: Some((acl.0, &acl.1)),
                        domains: vec![b"S-1-5-21-1", b"S-1-5-21-2"],
                        xvattr: Some(xvattr(0x1 | 0x1000, 0)),
                        ..create(ObjectId(601), 604, 0o100_600, b"all")
                    }),
                ),
            ],
        );
        let scratch = cut(&rig, name);
        let steps = cut(&rig, &format!("{name}-steps"));
        let check = |fs: &FileSystem| {
            let at = |id| fs.attrs(ObjectId(id), Io::WAIT).unwrap();
            let born = Time { seconds: 12, nanoseconds: 34 };
            let file = at(600);
            let flags = znode::ZFS_SYSTEM | znode::ZFS_READONLY | znode::ZFS_OFFLINE;
            assert_eq!(file.pflags & (flags | znode::ZFS_HIDDEN), flags);
            assert_eq!((file.crtime, file.size), (born, 5));
            assert_eq!(fs.scanstamp(ObjectId(600), Io::WAIT).unwrap(), Some([0x5a; 32]));
            assert_eq!(read(fs, ObjectId(600)), b"after");
            let dir = at(601);
            let flags = znode::ZFS_NOUNLINK | znode::ZFS_IMMUTABLE;
            assert_eq!((dir.pflags & flags, dir.size), (flags, 3));
            assert_eq!(super::list(fs, ObjectId(601)), ["all"]);
            is_list(fs, ObjectId(602));
            let both = at(602);
            assert_eq!(both.pflags & (znode::ZFS_HIDDEN | znode::ZFS_ARCHIVE), znode::ZFS_HIDDEN);
            assert_eq!(both.project, if modern { 77 } else { 0 });
            is_list(fs, ObjectId(604));
            assert_eq!(at(604).crtime, born);
            assert_eq!(fs.scanstamp(ObjectId(604), Io::WAIT).unwrap(), Some([0x5a; 32]));
            let first = at(first.0);
            let flags = znode::ZFS_OPAQUE | znode::ZFS_AV_QUARANTINED;
            assert_eq!(first.pflags & (flags | znode::ZFS_APPENDONLY), flags);
            assert_eq!(first.crtime, born);
            assert_eq!(fs.scanstamp(first.id, Io::WAIT).unwrap(), Some([0x5a; 32]));
            assert_eq!(read(fs, first.id), b"content");
        };
        replayed(&scratch, check);
        step_by_step(&steps, name);
        replayed(&steps, check);
        rig.finish();
    });
}

/// Story: a directory became immutable, and then not, and a file was made in it. The log
/// had the first change, because of an fsync, and the file, but not the change in between.
/// The replay ended there because of the directory's flag, and the dataset stayed
/// read-only.
#[test]
fn flags_out_of_order_with_names_do_not_end_a_replay() {
    let (rig, _) = ready("flags-order", &[]);
    let (by, fs) = (Caller::root(), &rig.fs);
    let dir = rig.dir(rig.root(), "dir");
    rig.sync();
    let flags = |flags| SetAttrs { flags: Some(flags), ..SetAttrs::default() };
    fs.set_attrs(&by, dir, &flags(znode::ZFS_IMMUTABLE)).unwrap();
    fs.fsync(dir).unwrap();
    fs.set_attrs(&by, dir, &flags(0)).unwrap();
    let file = rig.file(dir, "file");
    rig.write(file, 0, b"promised");
    fs.fsync(file).unwrap();
    let scratch = cut(&rig, "flags-order");
    replayed(&scratch, |fs| {
        let found = fs.lookup(dir, b"file", Io::WAIT).unwrap().id;
        assert_eq!(read(fs, found), b"promised");
    });
    rig.finish();
}

/// Story: a project's quota was full when the log was replayed. A file that had been
/// assigned to the project before was refused, and with it the rest of the log.
#[test]
fn quotas_do_not_end_a_replay() {
    let (rig, first) = ready("quota-order", &[]);
    let (by, fs) = (Caller::root(), &rig.fs);
    let full = rig.file(rig.root(), "full");
    rig.write(full, 0, &noise(3, 300_000));
    let own = SetAttrs { uid: Some(12), project: Some(9), ..SetAttrs::default() };
    fs.set_attrs(&by, full, &own).unwrap();
    rig.sync();
    fs.set_attrs(&by, first, &own).unwrap();
    fs.fsync(first).unwrap();
    let scratch = cut(&rig, "quota-order");
    {
        // The quota is set in the txg of the claim, as if it had existed before.
        let engine = testkit::engine();
        let pool = import(&engine, &scratch);
        let writer = Arc::clone(pool.writer().unwrap());
        let os = writer.read_dataset(DATASET).unwrap();
        let log = writer.log(&os).unwrap().unwrap();
        assert!(log.is_replaying());
        let fs = super::log::by_hand(&pool, &os, &log);
        for (of, id) in [(zpl::SpaceKind::User, 12), (zpl::SpaceKind::Project, 9)] {
            fs.set_quota(of, id, false, 1000).unwrap();
        }
        writer.sync().unwrap();
        drop(fs);
        pool.export().unwrap();
    }
    replayed(&scratch, |fs| {
        let attrs = fs.attrs(first, Io::WAIT).unwrap();
        assert_eq!((attrs.uid, attrs.project), (12, 9));
    });
    rig.finish();
}

#[test]
fn a_request_that_ignored_case_finds_its_name() {
    let (rig, _) = ready("case", &[("casesensitivity", 2)]);
    let root = rig.root();
    rig.file(root, "Gone");
    rig.file(root, "GONE-not");
    rig.sync();
    plant(&rig, &[(5, RecordBody::Remove { directory: root, name: b"gONE" })]);
    let plain = cut(&rig, "case-plain");
    let scratch = cut(&rig, "case");
    forge(&rig, &scratch, |kind, record| {
        if kind == 5 {
            record[7] |= 0x80;
        }
    });
    let wanted = essence(&rig.fs);
    replayed(&scratch, |fs| assert_eq!(super::list(fs, root), ["GONE-not", "first"]));
    // A case-sensitive record finds no file.
    refused(&plain, &wanted);
    rig.finish();
}

#[test]
fn what_is_malformed_is_left_alone() {
    let (rig, first) = ready("hostile", &[]);
    rig.sync();
    let wanted = essence(&rig.fs);
    let acl = encode_acl(&list(), 2);
    let root = rig.root();
    let new = Create { xvattr: Some(xvattr(0x2, 0)), ..create(root, 700, 0o100_644, b"new") };
    plant(&rig, &[(13, acl_body(first, &acl)), (15, RecordBody::Create(new))]);
    type Change = fn(u8, &mut [u8]);
    let changes: [(&str, Change); 10] = [
        ("no entries", |kind, r| {
            if kind == 13 {
                word(r, 40, 0)
            }
        }),
        ("entries without end", |kind, r| {
            if kind == 13 {
                word(r, 40, u64::MAX)
            }
        }),
        ("too many entries", |kind, r| {
            if kind == 13 {
                word(r, 40, 1 << 20)
            }
        }),
        ("domains without end", |kind, r| {
            if kind == 13 {
                word(r, 48, u64::MAX)
            }
        }),
        ("no domains", |kind, r| {
            if kind == 13 {
                word(r, 48, 0)
            }
        }),
        ("ids without end", |kind, r| {
            if kind == 13 {
                word(r, 56, u64::MAX / 8)
            }
        }),
        ("an id too few", |kind, r| {
            if kind == 13 {
                word(r, 56, 1)
            }
        }),
        ("bytes without end", |kind, r| {
            if kind == 13 {
                word(r, 64, u64::MAX)
            }
        }),
        ("unknown attributes", |kind, r| {
            if kind == 15 {
                r[104 + 6] = 0xff
            }
        }),
        ("more words of attributes", |kind, r| {
            if kind == 15 {
                r[104] = 200
            }
        }),
    ];
    let one = |(what, change): &(&str, Change)| {
        println!("{what}");
        let scratch = cut(&rig, "hostile");
        forge(&rig, &scratch, change);
        refused(&scratch, &wanted);
    };
    testkit::side_by_side(&changes, one);
    // A record of a missing object is skipped, whatever its content.
    let scratch = cut(&rig, "hostile-none");
    forge(&rig, &scratch, |kind, r| {
        if kind == 13 {
            word(r, 32, 1 << 40)
        }
    });
    replayed(&scratch, |fs| assert_eq!(super::list(fs, root), ["first", "new"]));
    // An object that is no file.
    let scratch = cut(&rig, "hostile-table");
    forge(&rig, &scratch, |kind, r| {
        if kind == 13 {
            word(r, 32, 1)
        }
    });
    replayed(&scratch, |fs| assert_eq!(super::list(fs, root), ["first", "new"]));
    rig.finish();
}
