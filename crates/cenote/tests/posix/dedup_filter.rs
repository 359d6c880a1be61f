//! The filter of the keys that a dedup table has: it spares look-ups, and never an entry that
//! is there.

use std::sync::atomic::Ordering::Relaxed;

use super::dedup::{BLOCK, audit_of, settle, single, tally};
use super::log::quiet;
use super::*;

/// Blocks of a file.
const COUNT: u64 = 100;

fn content(seed: u64) -> Vec<u8> {
    noise(seed, (COUNT * BLOCK) as usize)
}

fn write(rig: &PosixFixture, name: &str, seed: u64) {
    let file = rig.file(rig.root(), name);
    rig.write(file, 0, &content(seed));
    rig.sync();
    // The logs of a fast table are flushed.
    settle(rig);
}

fn hasten(rig: &PosixFixture) {
    quiet(&rig.pool);
    rig.pool.writer().unwrap().dedup_plants().log_txgs.store(1, Relaxed);
}

fn fruitless(rig: &PosixFixture) -> u64 {
    rig.pool.writer().unwrap().dedup_fruitless()
}

/// Both forms of tables. A new table has a filter at once, and one that was imported gets one
/// while content is written that it does not have. Blocks that the table has are shared before,
/// meanwhile and afterwards, whether their entries are unique, shared, or were so once.
#[test]
fn new_content_is_not_looked_up() {
    testkit::side_by_side(&[false, true], |&fast| {
        let mut rig = single("filter", fast);
        hasten(&rig);
        for (n, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
            write(&rig, name, n as u64);
        }
        assert!(fruitless(&rig) < 10, "{fast}: {}", fruitless(&rig));
        write(&rig, "a2", 0);
        write(&rig, "b2", 1);
        let (used, saved) = tally(&rig);
        assert_eq!(saved, used / 2, "{fast}");
        rig.fs.unlink(&Caller::root(), rig.root(), b"b2").unwrap();
        rig.fs.unlink(&Caller::root(), rig.root(), b"d").unwrap();
        rig.sync();
        settle(&rig);
        rig = rig.again();
        hasten(&rig);
        let mut before = 0;
        for n in 10..16 {
            let name = format!("new{n}");
            write(&rig, &name, n);
            // In the middle of the making.
            let saved = tally(&rig).1;
            write(&rig, "b3", 1);
            assert!(tally(&rig).1 > saved, "{fast}, {n}");
            for gone in [&name[..], "b3"] {
                rig.fs.unlink(&Caller::root(), rig.root(), gone.as_bytes()).unwrap();
            }
            rig.sync();
            settle(&rig);
            let after = fruitless(&rig);
            match n {
                10 => assert!(after >= COUNT, "{fast}: {after}"),
                15 => assert!(after < before + 10, "{fast}: {after} after {before}"),
                _ => {}
            }
            before = after;
        }
        for (n, name) in ["a3", "b3", "c3"].into_iter().enumerate() {
            let saved = tally(&rig).1;
            write(&rig, name, n as u64);
            assert!(tally(&rig).1 > saved, "{fast}, {name}");
        }
        // One that is not there any more.
        let (used, saved) = tally(&rig);
        write(&rig, "d", 3);
        assert!(tally(&rig).0 > used && tally(&rig).1 == saved, "{fast}");
        rig.end();
    });
}

/// A table without entries in its ZAPs begins anew, with an empty filter.
#[test]
fn a_table_that_was_emptied_has_an_empty_filter() {
    testkit::side_by_side(&[false, true], |&fast| {
        let rig = single("filter-emptied", fast).again();
        hasten(&rig);
        for round in 0..3 {
            write(&rig, "a", round);
            write(&rig, "b", round);
            let (used, saved) = tally(&rig);
            assert_eq!(used, saved, "{fast}, {round}");
            for name in [b"a", b"b"] {
                rig.fs.unlink(&Caller::root(), rig.root(), name).unwrap();
            }
            rig.sync();
            settle(&rig);
        }
        assert!(fruitless(&rig) < 10, "{fast}: {}", fruitless(&rig));
        rig.end();
    });
}

/// A key that is missing in the filter makes a second entry for its content: the audit finds the
/// pointers that no entry counts any more.
#[test]
fn a_forgotten_key_is_found() {
    let cases = [(false, false), (false, true), (true, false), (true, true)];
    testkit::side_by_side(&cases, |&(fast, planted)| {
        let rig = single(&format!("filter-planted-{planted}"), fast);
        hasten(&rig);
        rig.pool.writer().unwrap().dedup_plants().unfiltered_key.store(planted, Relaxed);
        write(&rig, "a", 0);
        write(&rig, "b", 0);
        let report = audit_of(rig);
        assert_eq!(report.is_clean(), !planted, "{fast}: {:?}", report.problems);
    });
}
