//! Clones where space is short: a clone takes only the room of its pointers, which a full pool or
//! a quota may not have. Then both files have what they had, and the clone what was cloned.

use super::*;
use zpl::rw::Falloc;

const BLOCK: u64 = 16 << 10;

/// Fills a pool with a file that grows by `step` bytes, up to the first refusal.
fn fill(rig: &PosixFixture, step: usize) -> ObjectId {
    let file = rig.file(rig.root(), "filler");
    let mut at = 0;
    loop {
        match rig.fs.write(&Caller::root(), file, WritePosition::Offset(at), &noise(at, step)) {
            Ok(done) => at += done.bytes,
            Err(e) => break assert_eq!(e.kind(), ErrorKind::NoSpace),
        }
    }
    rig.sync();
    file
}

/// Clones `from` into new files until the pool refuses; returns them, with the bytes that each has.
fn clone_all(rig: &PosixFixture, from: ObjectId, most: usize) -> Vec<(ObjectId, u64)> {
    let by = Caller::root();
    let mut made = Vec::new();
    while made.len() < most {
        let to = match rig.fs.make(
            &by,
            rig.root(),
            format!("c{}", made.len()).as_bytes(),
            &New::file(0o644),
        ) {
            Ok(made) => made.id,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::NoSpace);
                break;
            }
        };
        match rig.fs.clone_range(&by, (&rig.fs, from, 0), (to, 0), u64::MAX) {
            Ok(n) => made.push((to, n)),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
                made.push((to, 0));
                break;
            }
        }
    }
    made
}

/// A pool without space, whole or in fragments, clones or refuses; the txgs are written, and every
/// file has its content.
#[test]
fn clones_in_a_full_pool_are_whole_or_refused() {
    let cases = [(false, 0u64), (true, 1)];
    testkit::side_by_side(&cases, |&(fragmented, seed)| {
        let name = format!("full-clones-{seed}");
        let rig =
            PosixFixture::with(&name, 64 * MB, 5000, &[("recordsize", BLOCK), ("compression", 2)]);
        let by = Caller::root();
        let from = rig.file(rig.root(), "from");
        rig.write(from, 0, &noise(7, 150 * BLOCK as usize + 100));
        rig.sync();
        let wanted = rig.read(from);
        let filler = fill(&rig, 128 << 10);
        if fragmented {
            // Every second block of the filler is free, and then taken by records of 2 KiB.
            let blocks = rig.attrs(filler).size / BLOCK;
            for n in (0..blocks).step_by(2) {
                rig.fs.allocate(&by, filler, Falloc::PunchHole, n * BLOCK, BLOCK).unwrap();
            }
            rig.sync();
            rig.set(&[("recordsize", 2048)]);
            let small = rig.file(rig.root(), "small");
            let mut at = 0;
            while let Ok(done) =
                rig.fs.write(&by, small, WritePosition::Offset(at), &noise(at, 32 << 10))
            {
                at += done.bytes;
            }
            rig.sync();
        }
        let made = clone_all(&rig, from, 60);
        rig.sync();
        assert!(rig.read(from) == wanted);
        for (id, bytes) in &made {
            assert!(rig.read(*id) == wanted[..*bytes as usize], "{name}");
        }
        // Whatever was cloned can be deleted, in the full pool, and gives nothing back before the
        // last of them.
        let rig = rig.again();
        for n in 0..made.len() {
            rig.fs.unlink(&by, rig.root(), format!("c{n}").as_bytes()).unwrap();
        }
        rig.fs.unlink(&by, rig.root(), b"filler").unwrap();
        rig.fs.empty_delete_queue().unwrap();
        for _ in 0..4 {
            rig.pool.writer().unwrap().touch();
            rig.sync();
        }
        assert_eq!(rig.pool.writer().unwrap().clone_tally(), (0, 0));
        assert!(rig.read(from) == wanted);
        rig.end();
    });
}

/// A clone is charged like a written file: by `quota`, `refquota`, and the quotas of users.
#[test]
fn quotas_count_clones_as_written_bytes() {
    let rig = PosixFixture::with(
        "clone-quotas",
        96 * MB,
        5000,
        &[("recordsize", BLOCK), ("compression", 2)],
    );
    let by = Caller::root();
    let from = rig.file(rig.root(), "from");
    rig.write(from, 0, &noise(7, 4 << 20));
    rig.sync();
    let sized = |name: &str| match rig.pool.dataset(DATASET).unwrap().prop(name).unwrap() {
        Some(value) => match value.value {
            PropData::Num(n) => n,
            other => panic!("{name}: {other:?}"),
        },
        None => panic!("no {name}"),
    };
    let before = sized("referenced");
    let whole = rig.file(rig.root(), "whole");
    let cloned = rig.fs.clone_range(&by, (&rig.fs, from, 0), (whole, 0), u64::MAX).unwrap();
    assert_eq!(cloned, 4 << 20);
    rig.sync();
    let grown = sized("referenced") - before;
    assert!((4 << 20..(4 << 20) + (512 << 10)).contains(&grown), "{grown}");
    for quota in ["quota", "refquota"] {
        rig.set(&[(quota, sized("used") + (2 << 20))]);
        let over = rig.file(rig.root(), quota);
        let mut done = 0;
        let refused = loop {
            match rig.fs.clone_range(&by, (&rig.fs, from, done), (over, done), 64 * BLOCK) {
                Ok(n) => done += n,
                Err(e) => break e,
            }
            rig.sync();
            assert!(done < 4 << 20, "{quota} stops nothing");
        };
        assert_eq!(refused.kind(), ErrorKind::Quota, "{quota}: {refused}");
        assert!(rig.read(over) == rig.read(from)[..done as usize], "{quota}");
        // A copy meets the same limit.
        let copy = rig.fs.copy_range(&by, (from, done), (over, done), 4 << 20);
        assert!(copy.is_err() || copy.unwrap() < (4 << 20) - done, "{quota}");
        rig.set(&[(quota, 0)]);
        rig.fs.unlink(&by, rig.root(), quota.as_bytes()).unwrap();
        rig.sync();
    }
    rig.end();
}
