//! Intent logs without records are kept until their dataset changes.

use super::log::{cut, import_with};
use super::*;
use zpl::rw::WritePosition;

fn number(pool: &Pool, name: &str, prop: &str) -> String {
    let ds = pool.dataset(name).unwrap();
    format!("{:?}", ds.prop(prop).unwrap().unwrap().value)
}

fn state(pool: &Pool) -> Vec<String> {
    let head = ["written", "referenced"].map(|p| number(pool, DATASET, p));
    let snap = ["used", "referenced"].map(|p| number(pool, &format!("{DATASET}@s"), p));
    head.into_iter().chain(snap).collect()
}

/// A pool after a power cut, whose dataset has the stub of a log and a snapshot of all its
/// blocks.
fn left_behind(name: &str) -> (Scratch, Vec<String>) {
    let rig = PosixFixture::new(&format!("idle-{name}"), 128 * MB);
    let file = rig.file(rig.root(), "f");
    for i in 0..4 {
        rig.write(file, i * 5000, &[i as u8; 5000]);
        rig.fs.fsync(file).unwrap();
    }
    rig.sync();
    rig.pool.snapshot(&[format!("{DATASET}@s")], &[], None).unwrap();
    rig.sync();
    let before = state(&rig.pool);
    let scratch = cut(&rig, name);
    rig.finish();
    (scratch, before)
}

fn judged(engine: &Engine, scratch: &Scratch) {
    judge(engine, scratch);
    let texts = zdb_texts(scratch, &[&["-bcc", "tank"]]);
    assert!(texts.iter().all(|space| space.contains("No leaks")), "{texts:?}");
}

/// Story: an import raised `written` and the snapshot's `used` by a block each.
#[test]
fn an_idle_log_stays_as_long_as_nothing_changes() {
    let (scratch, before) = left_behind("stays");
    let engine = testkit::engine();
    for round in 0..2 {
        let pool = import_with(&engine, &scratch, false).unwrap();
        let writer = Arc::clone(pool.writer().unwrap());
        let fs = open(&pool);
        fs.empty_delete_queue().unwrap();
        for _ in 0..3 {
            writer.touch();
            writer.sync().unwrap();
        }
        assert_eq!(state(&pool), before, "import {round}");
        fs.sync_all().unwrap();
        drop((fs, writer));
        pool.export().unwrap();
        drop(pool);
        judged(&engine, &scratch);
    }
}

/// The log ends with the first change, with a snapshot of the dataset, or with the dataset;
/// no space leaks.
#[test]
fn an_idle_log_ends_with_what_changes_its_dataset() {
    let (scratch, _) = left_behind("ends");
    testkit::side_by_side(&[0, 1, 2, 3, 4], |&change| {
        // All are called `tank`, and an engine has one pool of a name.
        let engine = testkit::engine();
        let copy = Scratch::new(&format!("posix-idle-change{change}"));
        testkit::copy_file(&scratch.path().join("d0"), &copy.path().join("d0"));
        let pool = import_with(&engine, &copy, false).unwrap();
        match change {
            // A new chain begins.
            0 | 1 => {
                let fs = open(&pool);
                let made = fs.make(&Caller::root(), fs.root(), b"new", &New::file(0o644)).unwrap();
                if change == 0 {
                    fs.fsync(made.id).unwrap();
                }
                drop(fs);
            }
            2 => pool.snapshot(&[format!("{DATASET}@t")], &[], None).unwrap(),
            // Both in one txg.
            3 => {
                let fs = open(&pool);
                fs.make(&Caller::root(), fs.root(), b"new", &New::file(0o644)).unwrap();
                pool.snapshot(&[format!("{DATASET}@t")], &[], None).unwrap();
                fs.make(&Caller::root(), fs.root(), b"newer", &New::file(0o644)).unwrap();
                drop(fs);
            }
            _ => pool.destroy_dataset(DATASET, true, None).unwrap(),
        }
        pool.writer().unwrap().sync().unwrap();
        // The power fails once more, and then the pool is exported.
        let again = Scratch::new(&format!("posix-idle-again{change}"));
        testkit::copy_file(&copy.path().join("d0"), &again.path().join("d0"));
        pool.export().unwrap();
        drop(pool);
        judged(&engine, &copy);
        let pool = import_with(&engine, &again, false).unwrap();
        pool.writer().unwrap().sync().unwrap();
        pool.export().unwrap();
        drop(pool);
        judged(&engine, &again);
    });
}

/// A log vdev that holds logs without records, as an import finds them, is removed: the logs
/// end, the pool goes on, and nothing leaks.
#[test]
fn a_log_vdev_with_an_idle_log_is_removed() {
    let rig = super::slog::rig("idle", |s| super::slog::leaf(s, "l0"));
    let file = rig.file(rig.root(), "f");
    for i in 0..4 {
        rig.write(file, i * 5000, &[i as u8; 5000]);
        rig.fs.fsync(file).unwrap();
    }
    rig.sync();
    let scratch = super::slog::cut(&rig, "idle", &[]);
    rig.finish();
    let engine = testkit::engine();
    let pool = import_with(&engine, &scratch, false).unwrap();
    let allocated = || {
        let vdevs = pool.spa().load_space().unwrap().vdevs;
        vdevs[1].metaslabs.iter().map(|m| m.allocated()).sum::<u64>()
    };
    assert!(allocated() > 0, "the log vdev holds nothing");
    pool.remove_vdev("l0", None).unwrap();
    std::fs::remove_file(scratch.path().join("l0")).unwrap();
    let fs = open(&pool);
    let id = fs.lookup(fs.root(), b"f", Io::WAIT).unwrap().id;
    fs.write(&Caller::root(), id, WritePosition::Offset(0), b"without").unwrap();
    fs.fsync(id).unwrap();
    drop(fs);
    pool.export().unwrap();
    drop(pool);
    judged(&engine, &scratch);
    // It is whole without the device.
    let pool = import_with(&engine, &scratch, false).unwrap();
    let fs = open(&pool);
    let id = fs.lookup(fs.root(), b"f", Io::WAIT).unwrap().id;
    assert_eq!(fs.attrs(id, Io::WAIT).unwrap().size, 20_000);
    drop(fs);
    pool.export().unwrap();
}
