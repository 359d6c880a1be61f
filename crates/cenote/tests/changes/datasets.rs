//! Datasets are created, changed and destroyed.

use cenote::{ErrorKind, NewObject, ObjectId, PropData};
use testkit::{engine, import_from};

use crate::{DiskFiles, MB, judge, kind, make, noise, writing, zdb_text};

#[test]
fn datasets_come_and_go() {
    let disks = DiskFiles::new("changes-datasets", 1, 256 * MB);
    let engine = engine();
    let pool = make(&engine, vec![disks.leaf(0)]);
    for name in ["tank/a", "tank/a/b", "tank/a/b/c", "tank/d"] {
        pool.create_filesystem(name, &[], Some(&format!("zfs create {name}"))).unwrap();
    }
    let volume = pool.create_volume("tank/v", 8 * MB, None, &[], None).unwrap();
    let text = |r: cenote::Result<cenote::Dataset>| kind(r.map(|_| ()).unwrap_err());
    assert_eq!(
        text(pool.create_filesystem("tank/a", &[], None)),
        (ErrorKind::Exists, "dataset already exists".into())
    );
    assert_eq!(
        text(pool.create_filesystem("tank/x/y", &[], None)),
        (ErrorKind::NotFound, "parent does not exist".into())
    );
    assert_eq!(
        text(pool.create_filesystem("tank/v/y", &[], None)),
        (ErrorKind::Invalid, "parent is not a filesystem".into())
    );
    let first = noise(1, 3_000_000);
    let objects = pool.dataset("tank/a/b").unwrap().open_rw().unwrap();
    let id = objects.create(&NewObject::default()).unwrap();
    objects.write(id, 0, &first).unwrap();
    let names = ["tank/a@s", "tank/a/b@s", "tank/a/b/c@s"].map(String::from);
    pool.snapshot(&names, &[], None).unwrap();
    assert_eq!(kind(pool.snapshot(&names, &[], None).unwrap_err()).1, "dataset already exists");
    let second = noise(2, 1_000_000);
    objects.write(id, 500_000, &second).unwrap();
    pool.snapshot(&["tank/a/b@t".into()], &[], None).unwrap();
    objects.truncate(id, 700_000).unwrap();
    objects.punch(id, 100, 300_000).unwrap();
    let mut now = first.clone();
    now[500_000..1_500_000].copy_from_slice(&second);
    now.truncate(700_000);
    now[100..300_100].fill(0);
    assert_eq!(objects.read_vec(id, 0, usize::MAX >> 40).unwrap(), now);
    let rw = volume.open_rw().unwrap();
    rw.write(ObjectId(1), 12_345, &first[..100_000]).unwrap();
    assert!(rw.write(ObjectId(1), 8 * MB - 1, b"xy").is_err());
    assert_eq!(
        kind(pool.destroy_dataset("tank/a", false, None).unwrap_err()),
        (ErrorKind::Exists, "filesystem has children".into())
    );
    pool.destroy_snapshots(&["tank/a/b@s".into()], false, None).unwrap();
    pool.export().unwrap();
    drop((objects, rw, volume, pool));
    judge(&engine, &disks.path());

    let pool = import_from(&engine, &disks.path(), &writing()).unwrap();
    let objects = pool.dataset("tank/a/b").unwrap().open_rw().unwrap();
    assert_eq!(objects.read_vec(id, 0, 1 << 24).unwrap(), now);
    // A dataset destroyed while it is open returns `NotFound`.
    let d = pool.dataset("tank/d").unwrap().open_rw().unwrap();
    let lost = d.create(&NewObject::default()).unwrap();
    d.write(lost, 0, &first).unwrap();
    pool.destroy_dataset("tank/d", false, None).unwrap();
    assert_eq!(d.write(lost, 0, &first).unwrap_err().kind(), ErrorKind::NotFound);
    pool.destroy_dataset("tank/a", true, Some("zfs destroy -r tank/a")).unwrap();
    pool.destroy_dataset("tank/v", false, None).unwrap();
    assert_eq!(
        kind(pool.destroy_dataset("tank", true, None).unwrap_err()).1,
        "operation does not apply to pools"
    );
    assert!(pool.root().unwrap().children().unwrap().is_empty());
    pool.export().unwrap();
    drop((objects, d, pool));
    judge(&engine, &disks.path());
}

#[test]
fn a_new_file_system_is_one() {
    let disks = DiskFiles::new("changes-newfs", 1, 128 * MB);
    let engine = engine();
    let pool = make(&engine, vec![disks.leaf(0)]);
    let props = [
        ("casesensitivity".to_owned(), PropData::Num(1)),
        ("normalization".to_owned(), PropData::Num(0x10)),
    ];
    pool.create_filesystem("tank/ci", &props, None).unwrap();
    pool.create_filesystem("tank/ci/below", &[], None).unwrap();
    for name in ["tank", "tank/ci", "tank/ci/below"] {
        let fs = pool.dataset(name).unwrap().open_fs().unwrap();
        let of = fs.props();
        let ci = name != "tank";
        assert_eq!(of.normalization, if ci { 0x10 } else { 0 });
        assert_eq!((of.utf8only, of.version), (ci, 5));
        let root = fs.attrs(fs.root(), cenote::Io::WAIT).unwrap();
        assert_eq!((root.mode, root.nlink, root.size), (0o040_755, 2, 2));
    }
    pool.export().unwrap();
    drop(pool);
    judge(&engine, &disks.path());
    if let Some(text) = zdb_text(&disks.path(), &["-dddd", "tank/ci/below"]) {
        assert!(text.contains("pflags\t840800000144"), "{text}");
        assert!(text.contains("casesensitivity = 1"), "{text}");
    }
}
