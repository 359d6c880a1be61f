//! Files without names, crashes, and full file systems.

use base::{ErrorKind, ObjectId};
use cenote::ImportOptions;
use dmu::Io;
use testkit::{Scratch, copy_file, import_from};
use zpl::rw::{Caller, New, SetHow, WritePosition};

use super::{MB, PosixFixture, judge_with, kind, noise};

fn root() -> Caller {
    Caller::root()
}

/// Imports a copy of the pool as after a crash, and calls `f` with its file system.
fn after_crash(rig: &PosixFixture, f: impl FnOnce(&zpl::FileSystem)) {
    rig.sync();
    let copy = Scratch::new("posix-crash");
    copy_file(&rig.scratch.path().join("d0"), &copy.path().join("d0"));
    let engine = testkit::engine();
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let pool = import_from(&engine, copy.path(), &options).unwrap();
    let fs = pool.dataset(super::DATASET).unwrap().open_fs().unwrap();
    f(&fs);
    drop(fs);
    pool.export().unwrap();
    drop(pool);
    judge_with(&engine, &copy);
}

#[test]
fn open_files_outlive_their_names() {
    let rig = PosixFixture::new("orphans", 256 * MB);
    let (fs, top) = (&rig.fs, rig.root());
    let f = rig.file(top, "f");
    rig.write(f, 0, &noise(1, 3_000_000));
    fs.set_xattr(&root(), f, b"user.a", &noise(2, 60_000), SetHow::Any).unwrap();
    fs.hold(f).unwrap();
    fs.hold(f).unwrap();
    fs.unlink(&root(), top, b"f").unwrap();
    let d = rig.dir(top, "d");
    fs.hold(d).unwrap();
    fs.rmdir(&root(), top, b"d").unwrap();
    let t = fs.make_unlinked(&root(), top, 0o600).unwrap().id;
    fs.hold(t).unwrap();
    rig.write(t, 0, b"temporary");
    let kept = fs.make_unlinked(&root(), top, 0o600).unwrap().id;
    fs.hold(kept).unwrap();
    rig.write(kept, 0, b"kept");
    assert_eq!(fs.empty_delete_queue().unwrap(), 0, "all are held");
    assert_eq!(rig.read(f), noise(1, 3_000_000));
    assert_eq!(rig.attrs(f).nlink, 0);
    assert_eq!(kind(fs.link(&root(), f, top, b"back")), ErrorKind::NotFound);
    assert_eq!(fs.link(&root(), kept, top, b"kept").unwrap().nlink, 1);
    let gone = [f, d, t];
    after_crash(&rig, |fs| {
        // f, its hidden directory and the file in it; d; t.
        assert_eq!(fs.empty_delete_queue().unwrap(), 5);
        assert!(gone.iter().all(|id| fs.attrs(*id, Io::WAIT).is_err()));
        assert_eq!(super::read(fs, kept), b"kept");
        assert_eq!(fs.empty_delete_queue().unwrap(), 0);
    });
    fs.release(f).unwrap();
    assert_eq!(rig.read(f).len(), 3_000_000);
    for id in [f, d, t, kept] {
        fs.release(id).unwrap();
    }
    for id in gone {
        assert_eq!(kind(fs.attrs(id, Io::WAIT)), ErrorKind::NotFound);
        assert_eq!(kind(fs.hold(id)), ErrorKind::NotFound);
    }
    after_crash(&rig, |fs| assert_eq!(fs.empty_delete_queue().unwrap(), 0));
    rig.finish();
}

#[test]
fn freed_files_give_their_space_back() {
    let rig = PosixFixture::with("space", 512 * MB, 5000, &[("recordsize", 4096)]);
    let top = rig.root();
    let used = || {
        (0..3).for_each(|_| rig.sync());
        rig.fs.space().unwrap()
    };
    let before = used();
    // More blocks than one transaction frees.
    let f = rig.file(top, "f");
    for n in 0..80 {
        rig.write(f, n * MB, &noise(n, MB as usize));
    }
    let full = used();
    assert!(full.available + 80 * MB <= before.available);
    rig.resize(f, 3 * MB + 5);
    let cut = used();
    assert!(cut.available >= full.available + 75 * MB);
    assert_eq!(
        rig.read(f)[..3 * MB as usize],
        (0..3).flat_map(|n| noise(n, MB as usize)).collect::<Vec<_>>()
    );
    for n in 0..80 {
        rig.write(f, n * MB, &noise(n, MB as usize));
    }
    rig.fs.unlink(&root(), top, b"f").unwrap();
    let after = used();
    assert!(after.available + MB >= before.available, "{before:?} {after:?}");
    rig.finish();
}

fn fill(rig: &PosixFixture, dir: ObjectId, by: &Caller) -> (usize, ErrorKind) {
    for n in 0..100_000 {
        let made = rig.fs.make(by, dir, format!("f{n}").as_bytes(), &New::file(0o644));
        let id = match made {
            Ok(a) => a.id,
            Err(e) => return (n, e.kind()),
        };
        match rig.fs.write(by, id, WritePosition::End, &noise(n as u64, 1 << 20)) {
            Ok(done) if done.bytes == 1 << 20 => {}
            Ok(_) => {}
            Err(e) => return (n + 1, e.kind()),
        }
    }
    unreachable!("it is full at last")
}

#[test]
fn a_full_pool_can_be_emptied() {
    let rig = PosixFixture::new("full", 96 * MB);
    let d = rig.dir(rig.root(), "d");
    let (count, why) = fill(&rig, d, &root());
    assert_eq!(why, ErrorKind::NoSpace);
    // Half of a small pool is reserved as slop.
    assert!(count > 25, "{count}");
    // Small files until not even these fit.
    let mut small = 0;
    while rig.fs.make(&root(), d, format!("s{small}").as_bytes(), &New::file(0)).is_ok() {
        small += 1;
        assert!(small < 1_000_000);
    }
    rig.sync();
    for n in 0..count {
        rig.fs.unlink(&root(), d, format!("f{n}").as_bytes()).unwrap();
    }
    (0..3).for_each(|_| rig.sync());
    let f = rig.file(d, "again");
    rig.write(f, 0, &noise(1, 10 << 20));
    let rig = rig.again();
    assert_eq!(rig.read(f), noise(1, 10 << 20));
    rig.finish();
}

#[test]
fn quotas_of_datasets_bind() {
    for quota in ["quota", "refquota"] {
        let rig = PosixFixture::new(quota, 256 * MB);
        rig.pool.set_props(super::DATASET, &super::numbers(&[(quota, 20 * MB)]), None).unwrap();
        let d = rig.dir(rig.root(), "d");
        let (count, why) = fill(&rig, d, &root());
        assert_eq!(why, ErrorKind::Quota, "{quota}");
        assert!((18..=20).contains(&count), "{quota}: {count} files");
        assert!(rig.fs.space().unwrap().total <= 20 * MB);
        for n in 0..count {
            rig.fs.unlink(&root(), d, format!("f{n}").as_bytes()).unwrap();
        }
        rig.sync();
        rig.sync();
        let f = rig.file(d, "again");
        rig.write(f, 0, &noise(1, 10 << 20));
        rig.finish();
    }
}

#[test]
fn reservations_are_kept_for_those_who_have_them() {
    let rig = PosixFixture::new("reserved", 320 * MB);
    rig.pool.create_filesystem("tank/other", &[], None).unwrap();
    rig.pool.set_props("tank/other", &super::numbers(&[("reservation", 100 * MB)]), None).unwrap();
    let too_much = super::numbers(&[("reservation", 180 * MB)]);
    assert_eq!(kind(rig.pool.set_props(super::DATASET, &too_much, None)), ErrorKind::NoSpace);
    let d = rig.dir(rig.root(), "d");
    let (count, why) = fill(&rig, d, &root());
    assert_eq!(why, ErrorKind::NoSpace);
    assert!((20..90).contains(&count), "{count}");
    // The reserved space is available to its dataset.
    let other = rig.pool.dataset("tank/other").unwrap().open_fs().unwrap();
    let f = other.make(&root(), other.root(), b"f", &New::file(0o644)).unwrap().id;
    for n in 0..80 {
        let done = other.write(&root(), f, WritePosition::End, &noise(n, 1 << 20)).unwrap();
        assert_eq!(done.bytes, 1 << 20, "MiB {n}");
    }
    drop(other);
    rig.finish();
}

#[test]
fn directories_of_a_hundred_thousand_names() {
    let rig = PosixFixture::new("many", 1024 * MB);
    let d = rig.dir(rig.root(), "d");
    let begun = std::time::Instant::now();
    std::thread::scope(|s| {
        for t in 0..2 {
            let rig = &rig;
            s.spawn(move || {
                for n in 0..50_000 {
                    rig.file(d, &format!("name {t} {n}"));
                }
            });
        }
    });
    let made = begun.elapsed();
    assert_eq!(rig.attrs(d).size, 100_002);
    let names = rig.list(d);
    assert_eq!(names.len(), 100_000);
    let looked = begun.elapsed();
    let rig = rig.again();
    let again = std::time::Instant::now();
    for name in &names[..99_000] {
        rig.fs.unlink(&root(), d, name.as_bytes()).unwrap();
    }
    println!("made {made:?}, listed {:?}, removed {:?}", looked - made, again.elapsed());
    assert_eq!(rig.list(d), names[99_000..]);
    rig.finish();
}

#[test]
fn objects_open_for_reading_stay_what_they_are() {
    // Lookups, lists and stats while names are added and removed.
    let rig = PosixFixture::new("readers", 256 * MB);
    let d = rig.dir(rig.root(), "d");
    for n in 0..500 {
        rig.file(d, &format!("stays{n}"));
    }
    std::thread::scope(|s| {
        for t in 0..2 {
            let rig = &rig;
            s.spawn(move || {
                for n in 0..1500 {
                    let name = format!("comes and goes {t} {n}");
                    let id = rig.file(d, &name);
                    rig.write(id, 0, name.as_bytes());
                    if n % 3 == 0 {
                        rig.fs.unlink(&root(), d, name.as_bytes()).unwrap();
                    }
                }
            });
        }
        for _ in 0..2 {
            s.spawn(|| {
                for round in 0..30 {
                    let names = rig.list(d);
                    let stays = names.iter().filter(|n| n.starts_with("stays")).count();
                    assert_eq!(stays, 500, "round {round}");
                    for n in (0..500).step_by(7) {
                        let name = format!("stays{n}");
                        let found = rig.fs.lookup(d, name.as_bytes(), Io::WAIT).unwrap();
                        assert_eq!(rig.attrs(found.id).nlink, 1);
                    }
                }
            });
        }
    });
    assert_eq!(rig.attrs(d).size as usize, rig.list(d).len() + 2);
    assert_eq!(rig.list(d).len(), 500 + 2000);
    rig.finish();
}
