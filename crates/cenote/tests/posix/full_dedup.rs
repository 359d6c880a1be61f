//! Deduplication where space is short: a duplicate takes no room for its blocks, the tables do.
//! A write is refused or whole, every txg is written, and all of it can be freed.

use super::dedup::{BLOCK, settle, single, tally};
use super::*;
use zpl::rw::Falloc;

/// Blocks of the file that is written again and again.
const COUNT: u64 = 150;

/// Writes up to the first refusal; the bytes that the file has.
fn write_all(rig: &PosixFixture, file: ObjectId, data: impl Fn(u64) -> Option<Vec<u8>>) -> u64 {
    let mut at = 0;
    while let Some(data) = data(at) {
        match rig.fs.write(&Caller::root(), file, WritePosition::Offset(at), &data) {
            Ok(done) => at += done.bytes,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
                break;
            }
        }
    }
    at
}

/// A pool without space, whole or in fragments, with both forms of tables: duplicates of what is
/// there, overwrites that give each block another hash, and the end of all.
#[test]
fn duplicates_in_a_full_pool_are_whole_or_refused() {
    let cases = [(false, false), (false, true), (true, false), (true, true)];
    testkit::side_by_side(&cases, |&(fast, fragmented)| {
        let what = format!("fast: {fast}, fragmented: {fragmented}");
        let rig = single(&format!("full-{fragmented}"), fast);
        let by = Caller::root();
        let wanted = noise(7, (COUNT * BLOCK) as usize);
        let from = rig.file(rig.root(), "from");
        rig.write(from, 0, &wanted);
        rig.sync();
        let filler = rig.file(rig.root(), "filler");
        let step = if fragmented { BLOCK as usize } else { 128 << 10 };
        write_all(&rig, filler, |at| Some(noise(1 << 40 | at, step)));
        rig.sync();
        if fragmented {
            // Every second block of the filler is free, and then taken by records of 2 KiB.
            let blocks = rig.attrs(filler).size / BLOCK;
            for n in (0..blocks).step_by(2) {
                rig.fs.allocate(&by, filler, Falloc::PunchHole, n * BLOCK, BLOCK).unwrap();
            }
            settle(&rig);
            rig.set(&[("recordsize", 2048)]);
            let small = rig.file(rig.root(), "small");
            write_all(&rig, small, |at| Some(noise(1 << 41 | at, 32 << 10)));
            rig.sync();
            rig.set(&[("recordsize", BLOCK)]);
        }
        let mut made = Vec::new();
        for n in 0..40 {
            let Ok(file) =
                rig.fs.make(&by, rig.root(), format!("twin{n}").as_bytes(), &New::file(0o644))
            else {
                break;
            };
            let part = |at: u64| wanted.get(at as usize..).filter(|rest| !rest.is_empty());
            let bytes = write_all(&rig, file.id, |at| part(at).map(<[u8]>::to_vec));
            made.push((file.id, bytes));
            if bytes < wanted.len() as u64 {
                break;
            }
            rig.sync();
        }
        rig.sync();
        println!("{what}: {} twins, {:?} saved", made.len(), tally(&rig));
        let check = |rig: &PosixFixture| {
            assert!(rig.read(from) == wanted, "{what}");
            for (id, bytes) in &made {
                assert!(rig.read(*id) == wanted[..*bytes as usize], "{what}");
            }
        };
        check(&rig);
        let rig = rig.again();
        check(&rig);
        // What is overwritten needs a place, and an entry of its own.
        let mut other = rig.read(from);
        for n in (0..COUNT).step_by(3) {
            let new = noise(1 << 42 | n, BLOCK as usize);
            match rig.fs.write(&by, from, WritePosition::Offset(n * BLOCK), &new) {
                Ok(done) => {
                    let at = (n * BLOCK) as usize;
                    let bytes = done.bytes as usize;
                    other[at..at + bytes].copy_from_slice(&new[..bytes]);
                }
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::NoSpace, "{what}: {e}");
                    break;
                }
            }
        }
        rig.sync();
        assert!(rig.read(from) == other, "{what}");
        for (id, bytes) in &made {
            assert!(rig.read(*id) == wanted[..*bytes as usize], "{what}");
        }
        // Whatever was written can be deleted in the full pool, duplicates first.
        let rig = rig.again();
        for n in 0..made.len() {
            rig.fs.unlink(&by, rig.root(), format!("twin{n}").as_bytes()).unwrap();
            rig.sync();
        }
        assert!(rig.read(from) == other, "{what}");
        rig.fs.unlink(&by, rig.root(), b"filler").unwrap();
        rig.fs.empty_delete_queue().unwrap();
        settle(&rig);
        assert_eq!(tally(&rig).1, 0, "{what}");
        // There is room again.
        let last = rig.file(rig.root(), "last");
        let bytes = write_all(&rig, last, |at| {
            wanted.get(at as usize..).filter(|rest| !rest.is_empty()).map(<[u8]>::to_vec)
        });
        assert_eq!(bytes, wanted.len() as u64, "{what}");
        rig.finish();
    });
}
