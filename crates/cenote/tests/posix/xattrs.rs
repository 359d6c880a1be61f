//! Extended attributes in both forms, and POSIX ACLs.

use std::collections::BTreeMap;

use base::{ErrorKind, ObjectId};
use dmu::Io;
use testkit::Rng;
use zpl::rw::{Caller, New, SetAttrs, SetHow};

use super::{MB, PosixFixture, kind, noise};

fn root() -> Caller {
    Caller::root()
}

fn check(rig: &PosixFixture, id: ObjectId, model: &BTreeMap<String, Vec<u8>>) {
    let mut names = rig.fs.list_xattrs(id, Io::WAIT).unwrap();
    names.sort();
    let names: Vec<_> = names.into_iter().map(|n| String::from_utf8(n).unwrap()).collect();
    assert_eq!(names, model.keys().cloned().collect::<Vec<_>>());
    for (name, value) in model {
        let got = rig.fs.get_xattr(id, name.as_bytes(), Io::WAIT).unwrap().unwrap();
        assert!(got == *value, "{name}");
    }
}

#[test]
fn both_forms_hold_what_they_are_given() {
    let rig = PosixFixture::new("xattrs", 256 * MB);
    let mut models = BTreeMap::new();
    for form in [1u64, 2] {
        rig.set(&[("xattr", form)]);
        let f = rig.file(rig.root(), &format!("f{form}"));
        let set = |name: &str, value: &[u8], how| {
            rig.fs.set_xattr(&root(), f, name.as_bytes(), value, how)
        };
        let mut model = BTreeMap::new();
        for (name, len) in [
            ("user.small", 3),
            ("user.empty", 0),
            ("security.a", 60),
            ("trusted.b", 200),
            ("user.spill", 3000),
            ("user.most", 32_768),
            ("user.above", 32_769),
            ("user.max", 65_536),
            ("user.more", 30_000),
        ] {
            let value = noise(len as u64, len);
            set(name, &value, SetHow::Create).unwrap();
            model.insert(name.to_owned(), value);
            check(&rig, f, &model);
        }
        assert_eq!(kind(set("user.small", b"x", SetHow::Create)), ErrorKind::Exists);
        assert_eq!(kind(set("user.none", b"x", SetHow::Replace)), ErrorKind::NoAttribute);
        assert_eq!(kind(set("user.large", &[0; 65_537], SetHow::Any)), ErrorKind::TooLarge);
        let none = rig.fs.remove_xattr(&root(), f, b"user.none");
        assert_eq!(kind(none), ErrorKind::NoAttribute);
        for (name, len) in [("user.small", 5000), ("user.max", 10), ("user.most", 40_000)] {
            let value = noise(len as u64 + 1, len);
            set(name, &value, SetHow::Replace).unwrap();
            model.insert(name.to_owned(), value);
            check(&rig, f, &model);
        }
        let owner = SetAttrs { uid: Some(12), gid: Some(13), ..SetAttrs::default() };
        rig.fs.set_attrs(&root(), f, &owner).unwrap();
        if let Some(dir) = rig.fs.xattr_directory(f, Io::WAIT).unwrap() {
            assert_eq!((rig.attrs(dir).uid, rig.attrs(dir).gid), (12, 13));
        }
        for name in ["user.spill", "user.above", "user.more", "user.small"] {
            rig.fs.remove_xattr(&root(), f, name.as_bytes()).unwrap();
            model.remove(name);
            check(&rig, f, &model);
        }
        models.insert(f, model);
    }
    rig.set(&[("xattr", 0)]);
    let off = rig.fs.set_xattr(&root(), rig.root(), b"user.x", b"", SetHow::Any);
    assert_eq!(kind(off), ErrorKind::Unsupported);
    let rig = rig.again();
    for (id, model) in &models {
        check(&rig, *id, model);
    }
    let names = [&b"f1"[..], b"f2"];
    for name in names {
        rig.fs.unlink(&root(), rig.root(), name).unwrap();
    }
    rig.finish();
}

#[test]
fn a_thousand_changes_with_the_form_changing() {
    let rig = PosixFixture::new("xattr-random", 256 * MB);
    let mut rng = Rng::new(11);
    let files: Vec<_> = (0..4).map(|i| rig.file(rig.root(), &format!("f{i}"))).collect();
    let mut models = vec![BTreeMap::<String, Vec<u8>>::new(); 4];
    for step in 0..1000u64 {
        if step % 50 == 0 {
            rig.set(&[("xattr", 1 + rng.below(2))]);
        }
        let n = rng.index(4);
        let name = format!("user.{}", "n".repeat(1 + rng.index(12)));
        if rng.below(3) == 0 {
            let had = models[n].remove(&name).is_some();
            let done = rig.fs.remove_xattr(&root(), files[n], name.as_bytes());
            assert_eq!(done.is_ok(), had);
        } else {
            let len = match rng.below(10) {
                0 => rng.below(65_537),
                1..3 => rng.below(4000),
                _ => rng.below(100),
            };
            let value = noise(step, len as usize);
            rig.fs.set_xattr(&root(), files[n], name.as_bytes(), &value, SetHow::Any).unwrap();
            models[n].insert(name, value);
        }
        if step % 7 == 0 {
            let mode = SetAttrs { mode: Some(0o600 + rng.below(64) as u32), ..SetAttrs::default() };
            rig.fs.set_attrs(&root(), files[n], &mode).unwrap();
        }
        check(&rig, files[n], &models[n]);
    }
    let rig = rig.again();
    for (id, model) in files.iter().zip(&models) {
        check(&rig, *id, model);
    }
    rig.finish();
}

/// Linux's format: (tag, permissions, id) each.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(perm.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

const NO_ID: u32 = u32::MAX;
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

#[test]
fn acls_and_modes_agree() {
    for form in [1, 2] {
        let rig = PosixFixture::with("acls", 128 * MB, 5000, &[("xattr", form)]);
        let fs = &rig.fs;
        let (d, f) = (rig.dir(rig.root(), "d"), rig.file(rig.root(), "f"));
        let full = acl(&[
            (1, 7, NO_ID),
            (2, 5, 1001),
            (4, 5, NO_ID),
            (8, 4, 1002),
            (16, 7, NO_ID),
            (32, 0, NO_ID),
        ]);
        let set =
            |id, name: &[u8], value: &[u8]| fs.set_xattr(&root(), id, name, value, SetHow::Any);
        let get = |id, name: &[u8]| fs.get_xattr(id, name, Io::WAIT).unwrap();
        assert_eq!(kind(set(f, ACCESS, &full)), ErrorKind::Unsupported, "acltype=off");
        rig.set(&[("acltype", 1)]);
        set(f, ACCESS, &full).unwrap();
        assert_eq!(rig.attrs(f).mode & 0o7777, 0o770);
        assert_eq!(get(f, ACCESS).unwrap(), full);
        // The mask follows chmod; the group's own entry does not.
        let mode = SetAttrs { mode: Some(0o4751), ..SetAttrs::default() };
        fs.set_attrs(&root(), f, &mode).unwrap();
        let after = get(f, ACCESS).unwrap();
        assert_eq!(after[4 + 4 * 8 + 2], 5, "mask");
        assert_eq!(after[4 + 5 * 8 + 2], 1, "other");
        assert_eq!(after[4 + 2 * 8 + 2], 5, "group");
        // An ACL equivalent to a mode is stored as the mode.
        let plain = acl(&[(1, 6, NO_ID), (4, 4, NO_ID), (32, 4, NO_ID)]);
        set(f, ACCESS, &plain).unwrap();
        assert_eq!((get(f, ACCESS), rig.attrs(f).mode & 0o7777), (None, 0o4644));
        assert_eq!(kind(set(f, DEFAULT, &full)), ErrorKind::Permission);
        for bad in [
            &full[..full.len() - 1],
            &acl(&[(1, 7, NO_ID), (2, 7, 5), (4, 7, NO_ID), (32, 0, NO_ID)]),
        ] {
            assert_eq!(kind(set(f, ACCESS, bad)), ErrorKind::Invalid);
        }
        set(d, DEFAULT, &full).unwrap();
        assert_eq!(rig.attrs(d).mode & 0o7777, 0o755, "a default ACL is for others");
        let by = Caller { umask: 0o077, ..root() };
        let g = fs.make(&by, d, b"g", &New::file(0o666)).unwrap();
        assert_eq!(g.mode & 0o777, 0o660, "the umask does not count");
        let inherited = get(g.id, ACCESS).unwrap();
        assert_eq!(inherited[4 + 2], 6, "no more than requested");
        assert_eq!(inherited[4 + 4 * 8 + 2], 6);
        assert_eq!(get(g.id, DEFAULT), None);
        let e = fs.make(&by, d, b"e", &New::dir(0o777)).unwrap();
        assert_eq!((get(e.id, DEFAULT), e.mode & 0o777), (Some(full.clone()), 0o770));
        let s = fs.make(&by, d, b"s", &New::symlink(b"x")).unwrap();
        assert!(fs.list_xattrs(s.id, Io::WAIT).unwrap().is_empty());
        let rig = rig.again();
        assert_eq!(rig.fs.get_xattr(g.id, ACCESS, Io::WAIT).unwrap().unwrap(), inherited);
        rig.fs.remove_xattr(&root(), d, DEFAULT).unwrap();
        let h = rig.fs.make(&by, d, b"h", &New::file(0o666)).unwrap();
        assert_eq!(h.mode & 0o777, 0o600);
        rig.finish();
    }
}

#[test]
fn dnodes_of_more_slots_keep_them_inside() {
    let rig = PosixFixture::with("slots", 128 * MB, 5000, &[("dnodesize", 1)]);
    let f = rig.file(rig.root(), "f");
    let slots = rig.fs.objset().object(f, Io::WAIT).unwrap().dnode().slots;
    assert_eq!(slots, 2);
    rig.fs.set_xattr(&root(), f, b"user.x", &noise(1, 500), SetHow::Any).unwrap();
    assert!(!rig.fs.objset().object(f, Io::WAIT).unwrap().has_spill(Io::WAIT).unwrap());
    rig.set(&[("dnodesize", 16 << 10)]);
    for n in 0..40 {
        let g = rig.file(rig.root(), &format!("g{n}"));
        rig.fs.set_xattr(&root(), g, b"user.x", &noise(1, 12_000), SetHow::Any).unwrap();
    }
    let rig = rig.again();
    for n in (0..40).step_by(2) {
        rig.fs.unlink(&root(), rig.root(), format!("g{n}").as_bytes()).unwrap();
    }
    rig.set(&[("dnodesize", 0)]);
    for n in 0..300 {
        rig.file(rig.root(), &format!("h{n}"));
    }
    rig.finish();
}

/// Story: through a mount, each write that bypasses the kernel's page cache removes the
/// file's capabilities. With `xattr=off` there was no way to remove them, and a file with
/// any attribute could not be written.
#[test]
fn writes_that_shed_an_attribute() {
    for form in [1, 2] {
        let rig = PosixFixture::with("drop_xattr", 128 * MB, 5000, &[("xattr", form)]);
        let (fs, f) = (&rig.fs, rig.file(rig.root(), "f"));
        let (name, other) = (b"security.capability", b"user.stays");
        let drop_xattr = |at: u64, data: &[u8]| {
            let done = fs.write_without_xattr(&root(), f, at, data, name).unwrap();
            assert_eq!(done.bytes, data.len() as u64);
        };
        drop_xattr(0, b"bare");
        for attr in [&name[..], other] {
            fs.set_xattr(&root(), f, attr, b"1", SetHow::Any).unwrap();
        }
        // A write of several pieces removes the attribute once, before the first piece.
        drop_xattr(4, &noise(3, 3 << 20));
        let there = |attr: &[u8]| fs.get_xattr(f, attr, Io::WAIT).unwrap().is_some();
        assert!(!there(name) && there(other));
        fs.set_xattr(&root(), f, name, b"1", SetHow::Any).unwrap();
        rig.set(&[("xattr", 0)]);
        drop_xattr(0, b"hidden");
        rig.set(&[("xattr", form)]);
        assert!(there(name), "it was invisible");
        fs.drop_xattr(&root(), f, name).unwrap();
        fs.drop_xattr(&root(), f, name).unwrap();
        assert!(!there(name) && there(other));
        assert_eq!(&rig.read(f)[..8], &[&b"hidden"[..], &noise(3, 4)[2..]].concat()[..]);
        rig.finish();
    }
}
