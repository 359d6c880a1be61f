//! Limits of users, groups and projects; accounting is in [`super::attrs`].

use base::{ErrorKind, ObjectId};
use dmu::Io;
use ondisk::znode::ZFS_PROJINHERIT;
use zpl::SpaceKind;
use zpl::rw::{Caller, New, SetAttrs, WritePosition};

use super::{MB, PosixFixture, kind, noise};

fn user(uid: u32, gid: u32) -> Caller {
    Caller { uid, gid, privileged: false, ..Caller::default() }
}

/// Writes files of 1 MiB until one is refused: their number, and the reason.
fn fill(rig: &PosixFixture, by: &Caller, dir: ObjectId, from: u64) -> (u64, ErrorKind) {
    for n in from..from + 100 {
        // The accounts are those of synced txgs.
        rig.sync();
        let id = match rig.fs.make(by, dir, format!("f{n}").as_bytes(), &New::file(0o644)) {
            Ok(made) => made.id,
            Err(e) => return (n - from, e.kind()),
        };
        if let Err(e) = rig.fs.write(by, id, WritePosition::End, &noise(n, MB as usize)) {
            return (n - from, e.kind());
        }
    }
    unreachable!("the quota does not bind")
}

#[test]
fn limits_bind_whom_they_are_for() {
    let rig = PosixFixture::new("quotas", 512 * MB);
    let (fs, top) = (&rig.fs, rig.root());
    fs.set_quota(SpaceKind::User, 7, false, 4 * MB).unwrap();
    fs.set_quota(SpaceKind::Group, 70, false, 6 * MB).unwrap();
    fs.set_quota(SpaceKind::Project, 42, false, 3 * MB).unwrap();
    let dirs: Vec<_> = (0..4).map(|n| rig.dir(top, &format!("d{n}"))).collect();
    let set = SetAttrs { project: Some(42), flags: Some(ZFS_PROJINHERIT), ..SetAttrs::default() };
    fs.set_attrs(&Caller::root(), dirs[2], &set).unwrap();
    assert_eq!(fill(&rig, &user(7, 1), dirs[0], 0), (4, ErrorKind::Quota));
    assert_eq!(fill(&rig, &user(8, 70), dirs[1], 0), (6, ErrorKind::Quota));
    assert_eq!(fill(&rig, &user(9, 1), dirs[2], 0), (3, ErrorKind::Quota));
    // Other owners are not affected.
    let other = fs.make(&user(8, 1), dirs[3], b"other", &New::file(0o644)).unwrap().id;
    fs.write(&user(8, 1), other, WritePosition::End, &noise(1, MB as usize)).unwrap();
    let own = SetAttrs { uid: Some(7), ..SetAttrs::default() };
    assert_eq!(kind(fs.set_attrs(&Caller::root(), other, &own)), ErrorKind::Quota);
    let set = SetAttrs { project: Some(42), ..SetAttrs::default() };
    assert_eq!(kind(fs.set_attrs(&Caller::root(), other, &set)), ErrorKind::Quota);
    // Freed space can be written again, and the limit persists over an import.
    fs.unlink(&user(7, 1), dirs[0], b"f1").unwrap();
    let rig = rig.again();
    assert_eq!(fill(&rig, &user(7, 1), dirs[0], 50), (1, ErrorKind::Quota));
    let entry = |of, id| {
        let all = rig.fs.userspace(of, Io::WAIT).unwrap();
        all.into_iter().find(|e| e.id == id).unwrap()
    };
    assert_eq!(entry(SpaceKind::User, 7).quota, 4 * MB);
    assert!((4 * MB..5 * MB).contains(&entry(SpaceKind::User, 7).used));
    rig.fs.set_quota(SpaceKind::User, 7, false, 0).unwrap();
    rig.fs.set_quota(SpaceKind::User, 8, false, 0).unwrap();
    let id = rig.fs.walk(b"d0/f0", Io::WAIT).unwrap();
    rig.fs.write(&user(7, 1), id, WritePosition::End, b"more").unwrap();
    assert_eq!(entry(SpaceKind::User, 7).quota, 0);
    rig.finish();
}

#[test]
fn objects_are_counted_too() {
    let rig = PosixFixture::new("object-quotas", 128 * MB);
    let fs = &rig.fs;
    for (of, id) in [(SpaceKind::User, 7), (SpaceKind::Group, 70), (SpaceKind::Project, 0)] {
        fs.set_quota(of, id, true, 5).unwrap();
        let mut made = 0;
        let why = loop {
            rig.sync();
            let by = if of == SpaceKind::Group { user(8, 70) } else { user(7, 1) };
            let name = format!("{of:?}{made}");
            match fs.make(&by, rig.root(), name.as_bytes(), &New::file(0o644)) {
                Ok(_) => made += 1,
                Err(e) => break e.kind(),
            }
        };
        // Project 0 is charged for the other files.
        let due = if of == SpaceKind::Project { 0 } else { 5 };
        assert_eq!((made, why), (due, ErrorKind::Quota), "{of:?}");
        fs.set_quota(of, id, true, 0).unwrap();
    }
    rig.finish();
    // Without accounts there are no limits.
    let rig = PosixFixture::with("no-accounts", 128 * MB, 15, &[]);
    let none = rig.fs.set_quota(SpaceKind::Project, 1, false, 1);
    assert_eq!(kind(none), ErrorKind::Unsupported);
    rig.finish();
}
