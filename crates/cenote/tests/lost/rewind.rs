//! Going back, to read and to go on from there.

use super::*;
use testkit::Disk;

fn as_of(txg: Txg) -> ImportOptions {
    ImportOptions { txg: Some(txg), ..writing() }
}

fn newest(dir: &Path) -> Txg {
    let disk = Disk::new(dir.join("d0"));
    disk.uberblocks().iter().map(|u| u.2.txg).max().unwrap()
}

/// Three states: two files; one of them removed; a third one made.
fn story(rig: &LostPool) -> Txg {
    rig.write("kept", 1, 2 * MB);
    let before = rig.write("precious", 2, MB);
    rig.remove("precious");
    before
}

const BEFORE: &[(&str, u64, u64)] = &[("kept", 1, 2 * MB), ("precious", 2, MB)];
const AFTER: &[(&str, u64, u64)] = &[("kept", 1, 2 * MB)];

/// A user removes a file, notices, exports the pool at once, and reads the file from an
/// earlier group.
#[test]
fn a_removed_file_is_read_from_an_earlier_group() {
    let rig = LostPool::new("undelete", Shape::Mirror, 9);
    let before = story(&rig);
    let down = rig.export();
    assert_eq!(down.content(&testkit::readonly()), files(AFTER));
    let engine = testkit::engine();
    let found = testkit::discover(&engine, down.dir());
    let list = engine.look_back(&found[0]).unwrap();
    let past = list.iter().find(|p| p.txg == before).unwrap();
    assert!(past.whole.is_ok() && past.timestamp > 0, "{past:?}");
    assert!(list.windows(2).all(|w| w[0].txg > w[1].txg));
    drop(engine);
    let old = ImportOptions { readonly: true, ..as_of(before) };
    assert_eq!(down.content(&old), files(BEFORE));
    assert_eq!(down.content(&testkit::readonly()), files(AFTER));
}

/// The pool goes on from the earlier group. The discarded groups are gone from the rings,
/// no number is used twice, and `-n` told before what it would cost.
#[test]
fn a_pool_goes_on_from_an_earlier_group() {
    let shapes = [
        (Shape::Single, 9),
        (Shape::Mirror, 12),
        (Shape::Raidz(1, 3), 9),
        (Shape::Raidz(2, 5), 12),
        (Shape::Draid, 12),
    ];
    let all: Vec<_> = shapes.into_iter().enumerate().collect();
    testkit::side_by_side(&all, |&(i, (shape, ashift))| {
        let rig = LostPool::new(&format!("goes-on-{i}"), shape, ashift);
        let before = story(&rig);
        rig.write("future", 3, MB);
        let down = rig.crash();
        let future = newest(down.dir());
        let dry = ImportOptions { dry_run: true, ..as_of(before) };
        let told = *down.import(&dry).unwrap().pool.spa().rewind().unwrap();
        assert_eq!((told.from, told.to), (future, before), "{shape:?}");
        assert_eq!((told.lost, told.damaged), (Some(MB), 0), "{shape:?}");
        assert_eq!(newest(down.dir()), future, "-n writes nothing");

        let rig = down.up(&as_of(before));
        assert_eq!(content(&rig.pool), files(BEFORE));
        rig.write("new", 4, MB);
        let down = rig.crash();
        for disk in 0..shape.disks() {
            let disk = Disk::new(down.dir().join(format!("d{disk}")));
            let all = disk.uberblocks();
            let stale = |txg: Txg| before < txg && txg.0 < future.0 + 1000;
            assert!(!all.iter().any(|u| stale(u.2.txg)), "{shape:?}: {all:?}");
        }
        let due = [BEFORE, &[("new", 4, MB)]].concat();
        assert_eq!(down.content(&testkit::readonly()), files(&due));
        let down = down.up(&writing()).export();
        assert_eq!(down.content(&testkit::readonly()), files(&due));
        down.judge();
    });
}

/// A disk of a mirror was in a drawer while the pool was rewound. It still has the discarded
/// groups; the pool must not follow it.
#[test]
fn a_disk_that_was_absent_does_not_bring_the_future_back() {
    let rig = LostPool::new("absent", Shape::Mirror, 9);
    let before = story(&rig);
    rig.write("future", 3, MB);
    let down = rig.crash();
    let drawer = Scratch::new("lost-drawer");
    std::fs::rename(down.dir().join("d1"), drawer.path().join("d1")).unwrap();
    let rig = down.up(&as_of(before));
    assert_eq!(content(&rig.pool), files(BEFORE));
    let down = rig.crash();
    std::fs::rename(drawer.path().join("d1"), down.dir().join("d1")).unwrap();
    assert_eq!(down.content(&testkit::readonly()), files(BEFORE));
    let rig = down.up(&writing());
    assert_eq!(content(&rig.pool), files(BEFORE));
    rig.write("new", 4, MB);
    let due = [BEFORE, &[("new", 4, MB)]].concat();
    assert_eq!(rig.crash().content(&testkit::readonly()), files(&due));
}

/// What was promised by fsync after the group that is gone back to belongs to the future.
#[test]
fn logs_of_the_future_are_dropped() {
    let rig = LostPool::new("logs", Shape::Single, 9);
    rig.write("kept", 1, 2 * MB);
    let fs = rig.fs();
    let id = fs.lookup(fs.root(), b"kept", Io::WAIT).unwrap().id;
    // A log that has blocks already when the group ends.
    fs.write(&Caller::root(), id, At::Offset(0), &noise(1, 4096)).unwrap();
    fs.fsync(id).unwrap();
    let before = rig.sync();
    fs.write(&Caller::root(), id, At::Offset(0), &noise(9, 8192)).unwrap();
    fs.fsync(id).unwrap();
    drop(fs);
    rig.write("future", 3, MB);
    let down = rig.crash();
    let rig = down.up(&as_of(before));
    assert_eq!(content(&rig.pool), files(AFTER));
    let down = rig.crash();
    let rig = down.up(&writing());
    assert_eq!(content(&rig.pool), files(AFTER));
    let down = rig.export();
    assert_eq!(down.content(&testkit::readonly()), files(AFTER));
    down.judge();
}

/// An old group whose metadata was overwritten is not gone on from; what is left of it can
/// still be read.
#[test]
fn a_group_that_is_not_whole_is_only_read() {
    let rig = LostPool::new("not-whole", Shape::Single, 9);
    let before = story(&rig);
    // Space is used again after some groups.
    for i in 0..6 {
        rig.write("busy", i, 30 * MB);
        rig.remove("busy");
    }
    let down = rig.crash();
    let disk = Disk::new(down.dir().join("d0"));
    let all = disk.uberblocks();
    let old = all.iter().find(|u| u.2.txg == before).expect("the ring holds it").2.clone();
    let newest = newest(down.dir());
    let root = old.root_bp.as_block().unwrap().dva();
    disk.write(root.offset + testkit::disk::DATA_START, &noise(7, 512));
    for dva in old.root_bp.as_block().unwrap().dvas() {
        disk.write(dva.offset + testkit::disk::DATA_START, &noise(7, 512));
    }
    let refusal = down.import(&as_of(before)).err().unwrap();
    assert!(
        matches!(refusal.kind(), cenote::ErrorKind::Checksum | cenote::ErrorKind::Corrupt),
        "{refusal}"
    );
    assert_eq!(super::rewind::newest(down.dir()), newest, "a refusal writes nothing");
    assert_eq!(down.content(&testkit::readonly()), files(AFTER));
}
