//! Modes, owners, times, flags, projects and accounting by owner.

use base::ErrorKind;
use dmu::Io;
use ondisk::znode::{ZFS_APPENDONLY, ZFS_IMMUTABLE, ZFS_PROJINHERIT};
use zpl::rw::{Caller, Falloc, Groups, New, Rename, SetAttrs, SetTime, WritePosition};
use zpl::{Attrs, SpaceKind, Time};

use super::{MB, PosixFixture, kind, noise};

fn root() -> Caller {
    Caller::root()
}

fn user(uid: u32) -> Caller {
    let groups = Groups::Known(vec![500, 501]);
    Caller { uid, gid: 100, groups, umask: 0o022, ..Caller::default() }
}

const NONE: SetAttrs = SetAttrs {
    mode: None,
    uid: None,
    gid: None,
    size: None,
    atime: None,
    mtime: None,
    ctime: None,
    flags: None,
    project: None,
};

fn later(new: Time, old: Time) -> bool {
    (new.seconds, new.nanoseconds) > (old.seconds, old.nanoseconds)
}

fn perm(a: &Attrs) -> u32 {
    a.mode & 0o7777
}

#[test]
fn owners_and_modes_of_new_files() {
    let rig = PosixFixture::new("owners", 128 * MB);
    let fs = &rig.fs;
    let new = |by: &Caller, dir, name: &str, new: &New<'_>| {
        fs.make(by, dir, name.as_bytes(), new).unwrap()
    };
    let a = new(&user(7), rig.root(), "a", &New::file(0o6777));
    assert_eq!((a.uid, a.gid, perm(&a)), (7, 100, 0o6755));
    let d = new(&root(), rig.root(), "d", &New::dir(0o1777));
    assert_eq!(perm(&d), 0o1777);
    let set = SetAttrs { mode: Some(0o2775), gid: Some(501), ..NONE };
    fs.set_attrs(&root(), d.id, &set).unwrap();
    let b = new(&user(7), d.id, "b", &New::file(0o2777));
    assert_eq!((b.gid, perm(&b)), (501, 0o2755), "a member may");
    fs.set_attrs(&root(), d.id, &SetAttrs { gid: Some(900), mode: Some(0o2775), ..NONE }).unwrap();
    let c = new(&user(7), d.id, "c", &New::file(0o2777));
    assert_eq!((c.gid, perm(&c)), (900, 0o755), "a stranger does not get the bit");
    let e = new(&user(7), d.id, "e", &New::dir(0o777));
    assert_eq!((e.gid, perm(&e)), (900, 0o2755), "directories hand it on");
    let t = fs.make_unlinked(&user(7), d.id, 0o666).unwrap();
    assert_eq!((t.nlink, t.gid, perm(&t)), (0, 900, 0o644));
    rig.finish();
}

/// The attributes returned for a new plain file are computed, not read: they must be those
/// that a read returns.
#[test]
fn returned_attributes_are_those_of_a_read() {
    for (version, props) in [
        (5000, &[][..]),
        (5000, &[("dnodesize", 16 << 10), ("recordsize", 512)]),
        (5000, &[("xattr", 1), ("acltype", 1)]),
        (15, &[]),
    ] {
        let rig = PosixFixture::with("told", 128 * MB, version, props);
        let fs = &rig.fs;
        let d = rig.dir(rig.root(), "d");
        let told = |by: &Caller, name: &str, new: &New<'_>| {
            let made = fs.make(by, d, name.as_bytes(), new).unwrap();
            assert_eq!(made, rig.attrs(made.id), "{version} {props:?} {name}");
        };
        for step in 0..4 {
            for (who, by) in [("root", root()), ("user", user(7))] {
                told(&by, &format!("{step}{who}"), &New::file(0o6666));
                told(&by, &format!("{step}{who}-dir"), &New::dir(0o777));
                told(&by, &format!("{step}{who}-link"), &New::symlink(b"target"));
            }
            let set = match step {
                0 => SetAttrs { mode: Some(0o2777), gid: Some(501), ..NONE },
                1 => SetAttrs { uid: Some(1 << 31), ..NONE },
                _ if version == 5000 => {
                    let flags = Some(rig.attrs(d).pflags | ZFS_PROJINHERIT);
                    SetAttrs { flags, project: Some(77), ..NONE }
                }
                _ => NONE,
            };
            fs.set_attrs(&root(), d, &set).unwrap();
        }
        rig.finish();
    }
}

#[test]
fn set_id_bits_go() {
    let rig = PosixFixture::new("setid", 128 * MB);
    let fs = &rig.fs;
    let f = rig.file(rig.root(), "f");
    let mode = |m| fs.set_attrs(&root(), f, &SetAttrs { mode: Some(m), ..NONE }).unwrap();
    let now = || perm(&rig.attrs(f));
    mode(0o6755);
    fs.write(&root(), f, WritePosition::End, b"x").unwrap();
    assert_eq!(now(), 0o6755, "root keeps them");
    fs.write(&user(0), f, WritePosition::End, b"x").unwrap();
    assert_eq!(now(), 0o755);
    mode(0o2745);
    fs.write(&user(7), f, WritePosition::Offset(0), b"x").unwrap();
    assert_eq!(now(), 0o2745, "without group execution it means locking");
    for step in 0..3 {
        mode(0o6777);
        match step {
            0 => fs.allocate(&user(7), f, Falloc::PunchHole, 0, 1).unwrap(),
            1 => drop(fs.set_attrs(&user(7), f, &SetAttrs { size: Some(1), ..NONE }).unwrap()),
            _ => drop(fs.set_attrs(&root(), f, &SetAttrs { uid: Some(9), ..NONE }).unwrap()),
        }
        assert_eq!(now(), 0o777, "step {step}");
    }
    let set = SetAttrs { mode: Some(0o2777), gid: Some(999), ..NONE };
    assert_eq!(perm(&fs.set_attrs(&user(7), f, &set).unwrap()), 0o777);
    assert_eq!(perm(&fs.set_attrs(&root(), f, &set).unwrap()), 0o2777);
    let d = rig.dir(rig.root(), "d");
    fs.set_attrs(&root(), d, &SetAttrs { mode: Some(0o6755), ..NONE }).unwrap();
    fs.set_attrs(&root(), d, &SetAttrs { uid: Some(9), gid: Some(9), ..NONE }).unwrap();
    assert_eq!(perm(&rig.attrs(d)), 0o6755, "directories keep them");
    rig.finish();
}

#[test]
fn times_are_kept() {
    let rig = PosixFixture::with("times", 128 * MB, 5000, &[("relatime", 0)]);
    let fs = &rig.fs;
    let (d, f) = (rig.dir(rig.root(), "d"), rig.file(rig.root(), "f"));
    let time = |seconds, nanoseconds| Time { seconds, nanoseconds };
    let set = SetAttrs {
        atime: Some(SetTime::Set(time(-5, 17))),
        mtime: Some(SetTime::Set(time(1 << 33, 999_999_999))),
        ..NONE
    };
    let before = rig.attrs(f);
    let a = fs.set_attrs(&root(), f, &set).unwrap();
    assert_eq!((a.atime, a.mtime), (time(-5, 17), time(1 << 33, 999_999_999)));
    assert!(later(a.ctime, before.ctime) && a.crtime == before.crtime);
    let a = fs.set_attrs(&root(), f, &SetAttrs { atime: Some(SetTime::Now), ..NONE }).unwrap();
    assert!(later(a.atime, before.atime) && a.mtime == time(1 << 33, 999_999_999));
    // Each of these calls changes a directory.
    let mut last = rig.attrs(d).mtime;
    let mut changed = |what: &str| {
        let now = rig.attrs(d);
        assert!(later(now.mtime, last) && now.ctime == now.mtime, "{what}");
        last = now.mtime;
    };
    fs.make(&root(), d, b"x", &New::file(0o644)).unwrap();
    changed("make");
    fs.link(&root(), f, d, b"y").unwrap();
    changed("link");
    fs.rename(&root(), (d, b"y"), (d, b"z"), Rename::Plain).unwrap();
    changed("rename");
    fs.unlink(&root(), d, b"z").unwrap();
    changed("unlink");
    // Access times: in memory, then stored with the next change.
    fs.hold(f).unwrap();
    let old = rig.attrs(f);
    fs.accessed(f);
    let new = rig.attrs(f);
    assert!(later(new.atime, old.atime) && new.ctime == old.ctime);
    fs.release(f).unwrap();
    assert_eq!(rig.attrs(f).atime, new.atime);
    fs.accessed(d);
    let of_dir = rig.attrs(d).atime;
    let rig = rig.again();
    assert_eq!((rig.attrs(f).atime, rig.attrs(d).atime), (new.atime, of_dir));
    // Relative: only the first access after a change.
    rig.set(&[("relatime", 1)]);
    rig.write(f, 0, b"x");
    rig.fs.accessed(f);
    let first = rig.attrs(f).atime;
    assert!(later(first, new.atime));
    rig.fs.accessed(f);
    assert_eq!(rig.attrs(f).atime, first);
    rig.set(&[("atime", 0)]);
    rig.write(f, 0, b"x");
    rig.fs.accessed(f);
    assert_eq!(rig.attrs(f).atime, first);
    rig.finish();
}

#[test]
fn flags_apply_to_all_callers() {
    let rig = PosixFixture::new("flags", 128 * MB);
    let fs = &rig.fs;
    let (d, f) = (rig.dir(rig.root(), "d"), rig.file(rig.root(), "f"));
    let flag = |id, flags| fs.set_attrs(&root(), id, &SetAttrs { flags: Some(flags), ..NONE });
    let denied = |r: base::Result<()>| assert_eq!(kind(r), ErrorKind::NotPermitted);
    let to = |set: SetAttrs| fs.set_attrs(&root(), f, &set).map(drop);
    flag(f, ZFS_IMMUTABLE).unwrap();
    denied(fs.write(&root(), f, WritePosition::End, b"x").map(drop));
    denied(to(SetAttrs { size: Some(0), ..NONE }));
    denied(to(SetAttrs { mode: Some(0), ..NONE }));
    denied(fs.unlink(&root(), rig.root(), b"f").map(drop));
    denied(fs.link(&root(), f, d, b"f").map(drop));
    denied(fs.rename(&root(), (rig.root(), b"f"), (d, b"f"), Rename::Plain));
    denied(fs.set_attrs(&user(0), f, &SetAttrs { flags: Some(0), ..NONE }).map(drop));
    flag(f, ZFS_APPENDONLY).unwrap();
    fs.write(&root(), f, WritePosition::End, b"x").unwrap();
    denied(fs.write(&root(), f, WritePosition::Offset(0), b"x").map(drop));
    denied(to(SetAttrs { size: Some(0), ..NONE }));
    flag(d, ZFS_IMMUTABLE).unwrap();
    denied(fs.make(&root(), d, b"x", &New::file(0)).map(drop));
    flag(d, 0).unwrap();
    flag(f, 0).unwrap();
    fs.unlink(&root(), rig.root(), b"f").unwrap();
    rig.finish();
}

#[test]
fn projects_are_inherited() {
    let rig = PosixFixture::new("projects", 128 * MB);
    let fs = &rig.fs;
    let (d, f) = (rig.dir(rig.root(), "d"), rig.file(rig.root(), "f"));
    let set = SetAttrs { project: Some(42), flags: Some(ZFS_PROJINHERIT), ..NONE };
    assert_eq!(fs.set_attrs(&root(), d, &set).unwrap().project, 42);
    let g = rig.file(d, "g");
    let e = rig.dir(d, "e");
    assert_eq!((rig.attrs(g).project, rig.attrs(e).project), (42, 42));
    assert!(rig.attrs(e).pflags & ZFS_PROJINHERIT != 0);
    let into = fs.rename(&root(), (rig.root(), b"f"), (d, b"f"), Rename::Plain);
    assert_eq!(kind(into), ErrorKind::CrossDevice);
    assert_eq!(kind(fs.link(&root(), f, d, b"f").map(drop)), ErrorKind::CrossDevice);
    fs.set_attrs(&root(), f, &SetAttrs { project: Some(42), ..NONE }).unwrap();
    fs.rename(&root(), (rig.root(), b"f"), (d, b"f"), Rename::Plain).unwrap();
    rig.finish();
}

/// The accounts agree with a walk.
fn check_accounts(rig: &PosixFixture) {
    rig.sync();
    rig.sync();
    let mut todo = vec![rig.root()];
    let mut sums = std::collections::BTreeMap::<(u8, u64), (u64, u64)>::new();
    let mut seen = std::collections::BTreeSet::new();
    while let Some(id) = todo.pop() {
        if !seen.insert(id) {
            continue;
        }
        let object = rig.fs.objset().object(id, Io::WAIT).unwrap();
        let used = object.dnode().used + u64::from(object.dnode().slots) * 512;
        let a = rig.attrs(id);
        for key in [(0, a.owner_fuid), (1, a.group_fuid), (2, a.project)] {
            let sum = sums.entry(key).or_default();
            *sum = (sum.0 + used, sum.1 + 1);
        }
        if a.kind == zpl::FileType::Dir {
            let child = |n: &String| rig.fs.lookup(id, n.as_bytes(), Io::WAIT).unwrap().id;
            todo.extend(rig.list(id).iter().map(child));
        }
        todo.extend(rig.fs.xattr_directory(id, Io::WAIT).unwrap());
        if a.pflags & ondisk::znode::ZFS_XATTR != 0 && a.kind == zpl::FileType::Dir {
            let zap = dmu::Zap::open(object, Io::WAIT).unwrap();
            zap.for_each(|e| {
                todo.push(base::ObjectId(e.value.first_u64().unwrap() & ((1 << 48) - 1)));
                Ok(())
            })
            .unwrap();
        }
    }
    for (n, of) in [SpaceKind::User, SpaceKind::Group, SpaceKind::Project].into_iter().enumerate() {
        let accounts = rig.fs.userspace(of, Io::WAIT).unwrap();
        for account in &accounts {
            let want = sums.remove(&(n as u8, account.id)).unwrap_or_default();
            let (mut used, mut objects) = (account.used, account.objects);
            if account.id == 0 {
                // Root also owns the tables, which no walk over names finds.
                assert!(used >= want.0 && objects >= want.1, "{of:?}");
                (used, objects) = want;
            }
            assert_eq!((used, objects), want, "{of:?} {}", account.id);
        }
    }
    assert!(sums.is_empty(), "not accounted: {sums:?}");
}

#[test]
fn what_is_used_is_accounted() {
    let rig = PosixFixture::new("accounts", 256 * MB);
    let fs = &rig.fs;
    for uid in 1..5u32 {
        let by = user(uid);
        let dir = fs.make(&by, rig.root(), format!("d{uid}").as_bytes(), &New::dir(0o755)).unwrap();
        for n in 0..10u64 {
            let f = fs.make(&by, dir.id, format!("f{n}").as_bytes(), &New::file(0o644)).unwrap().id;
            rig.write(f, 0, &noise(n, (n * 20_000) as usize));
            let set = SetAttrs { project: Some(n as u32 % 3 * 10), gid: Some(uid % 2), ..NONE };
            fs.set_attrs(&root(), f, &set).unwrap();
        }
        fs.make(&by, dir.id, b"s", &New::symlink(&[b's'; 600])).unwrap();
    }
    rig.set(&[("xattr", 1)]);
    let f = rig.fs.walk(b"d3/f7", Io::WAIT).unwrap();
    fs.set_xattr(&root(), f, b"user.big", &noise(3, 50_000), zpl::rw::SetHow::Any).unwrap();
    check_accounts(&rig);
    let dir = fs.walk(b"d1", Io::WAIT).unwrap();
    for n in 0..5 {
        fs.unlink(&root(), dir, format!("f{n}").as_bytes()).unwrap();
    }
    let set = SetAttrs { uid: Some(77), project: Some(5), ..NONE };
    fs.set_attrs(&root(), f, &set).unwrap();
    fs.set_attrs(&root(), dir, &SetAttrs { gid: Some(8), ..NONE }).unwrap();
    rig.resize(fs.walk(b"d2/f9", Io::WAIT).unwrap(), 3);
    check_accounts(&rig);
    let rig = rig.again();
    check_accounts(&rig);
    rig.finish();
}
