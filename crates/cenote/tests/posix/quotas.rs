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

/// Kinds of vdevs as `widths` counts them, and sector shifts: a mirror, raidz1 of 5, raidz2
/// of 4, draid1.
const KINDS: [(usize, u64); 5] = [(22, 9), (22, 12), (2, 12), (8, 9), (20, 12)];
/// Bytes of a write: in these small pools the worst case of a longer one does not fit.
const STEP: usize = 256 << 10;

/// Story: each file system had a meter of its own, so what others had written since the last
/// txg took space that was reserved.
#[test]
fn a_reservation_is_kept_from_the_writers_of_other_datasets() {
    std::thread::scope(|scope| {
        for (which, ashift) in KINDS {
            scope.spawn(move || reservation_is_kept(which, ashift));
        }
    });
}

fn reservation_is_kept(which: usize, ashift: u64) {
    let (rig, name, _) = super::widths::make("kept", which, ashift).unwrap();
    let room = rig.pool.dataset("tank").unwrap().available().unwrap();
    let reserved = room / 2 / MB * MB;
    let set = super::numbers(&[("reservation", reserved)]);
    rig.pool.create_filesystem("tank/kept", &set, None).unwrap();
    let other = rig.file(rig.root(), "other");
    // No txg is requested in between.
    let mut at = 0;
    let why = loop {
        let data = noise(at, STEP);
        match rig.fs.write(&Caller::root(), other, WritePosition::Offset(at), &data) {
            Ok(done) => at += done.bytes,
            Err(e) => break e.kind(),
        }
        assert!(at <= room, "{name}: {at} of {room}");
    };
    assert_eq!(why, ErrorKind::NoSpace, "{name}");
    assert!(at + reserved <= room, "{name}: {at} of {room} bytes, {reserved} are reserved");
    let fs = rig.pool.dataset("tank/kept").unwrap().open_fs().unwrap();
    let file = fs.make(&Caller::root(), fs.root(), b"f", &New::file(0o644)).unwrap().id;
    // Metadata takes a part; on draid each of its blocks takes a whole stripe, and what the
    // last txgs freed is not reusable yet.
    let mine = if which == 20 { reserved / 2 } else { reserved - reserved / 50 - MB };
    let mut done = 0;
    while done < mine {
        let (at, data) = (WritePosition::Offset(done), noise(done, STEP));
        let wrote = fs.write(&Caller::root(), file, at, &data);
        done += wrote.unwrap_or_else(|e| panic!("{name}: {e} at {done} of {reserved}")).bytes;
    }
    fs.sync_all().unwrap();
    drop(fs);
    rig.end();
}

/// The dataset's quota, in both forms, for writers that do not wait for txgs.
#[test]
fn quotas_of_datasets_bind_at_once() {
    std::thread::scope(|scope| {
        for (i, (which, ashift)) in KINDS.into_iter().enumerate() {
            let quota = ["quota", "refquota"][i % 2];
            scope.spawn(move || quota_binds(quota, which, ashift));
        }
    });
}

fn quota_binds(quota: &str, which: usize, ashift: u64) {
    let (rig, name, _) = super::widths::make(quota, which, ashift).unwrap();
    rig.set(&[(quota, 8 * MB)]);
    // A file made after the first writes might be refused already.
    let files: Vec<_> = (0..4).map(|n| rig.file(rig.root(), &format!("f{n}"))).collect();
    std::thread::scope(|scope| {
        for (writer, file) in (0u64..).zip(files) {
            let fs = &rig.fs;
            scope.spawn(move || {
                let why = (0..64).find_map(|n| {
                    let data = noise(n * 4 + writer, 128 << 10);
                    fs.write(&Caller::root(), file, WritePosition::End, &data).err()
                });
                assert_eq!(why.map(|e| e.kind()), Some(ErrorKind::Quota));
            });
        }
    });
    rig.sync();
    // What the quota counts is what is left of it.
    let left = rig.pool.dataset(super::DATASET).unwrap().available().unwrap();
    let over = rig.fs.space().unwrap();
    assert_eq!(over.available, left, "{name}, {quota}");
    let referenced = over.total - over.available;
    assert!(referenced < 8 * MB + MB / 2, "{name}, {quota}: {referenced}");
    let used = 8 * MB - left;
    assert!(used > 7 * MB, "{name}, {quota}: {used}");
    rig.end();
}
