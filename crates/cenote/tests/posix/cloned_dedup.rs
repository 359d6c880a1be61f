//! Clones of deduplicated blocks: their entry counts them, as long as there is one, and the
//! block reference table otherwise (chapter 08 §C.2).

use cenote::PruneRequest;
use spa::audit::AuditOptions;

use super::dedup::{BLOCK, allocated, settle, single, tally};
use super::log::cut;
use super::records::replayed;
use super::shared::freed_before_its_clone;
use super::*;

/// Blocks of a file.
const COUNT: u64 = 40;

fn make(rig: &PosixFixture, name: &str, seed: u64) -> ObjectId {
    let file = rig.file(rig.root(), name);
    rig.write(file, 0, &noise(seed, (COUNT * BLOCK) as usize));
    file
}

fn clone(rig: &PosixFixture, from: ObjectId, name: &str) -> ObjectId {
    let to = rig.file(rig.root(), name);
    let done = rig.fs.clone_range(&Caller::root(), (&rig.fs, from, 0), (to, 0), u64::MAX);
    assert_eq!(done.unwrap(), COUNT * BLOCK, "{name}");
    to
}

fn remove(rig: &PosixFixture, name: &str) {
    rig.fs.unlink(&Caller::root(), rig.root(), name.as_bytes()).unwrap();
}

/// Bytes that cloning saves, as the block reference table has it.
fn cloned(rig: &PosixFixture) -> u64 {
    rig.pool.writer().unwrap().clone_tally().1
}

fn is_whole(scratch: &Scratch, what: &str) {
    let pool = import_from(&testkit::engine(), scratch.path(), &testkit::readonly()).unwrap();
    let report = pool.spa().audit(AuditOptions::default(), &()).unwrap();
    assert!(report.is_clean() && report.leaked == 0, "{what}: {:?}", report.problems);
}

/// `copy_file_range` of a deduplicated file wrote all of its blocks, each of which was looked up
/// and found again; now each entry counts one pointer more. The pointers die in any order.
#[test]
fn clones_of_deduplicated_blocks_are_counted_by_their_entries() {
    let orders = [["a", "b", "c"], ["c", "a", "b"], ["b", "c", "a"]];
    let cases: Vec<_> = orders.iter().flat_map(|o| [(o, false), (o, true)]).collect();
    testkit::side_by_side(&cases, |&(order, fast)| {
        let what = format!("{order:?}, fast: {fast}");
        let rig = single(&format!("clones-{}", order.concat()), fast);
        let wanted = noise(1, (COUNT * BLOCK) as usize);
        let a = make(&rig, "a", 1);
        rig.sync();
        let before = allocated(&rig);
        let b = clone(&rig, a, "b");
        let c = rig.file(rig.root(), "c");
        let copied = rig.fs.copy_range(&Caller::root(), (a, 0), (c, 0), u64::MAX).unwrap();
        assert_eq!(copied, COUNT * BLOCK);
        rig.sync();
        assert!(allocated(&rig) - before < COUNT * BLOCK / 4, "{what}: it was copied");
        assert_eq!((tally(&rig).1, cloned(&rig)), (2 * COUNT * BLOCK, 0), "{what}");
        is_whole(&cut(&rig, &format!("dedup-clones-{}-{fast}", order.concat())), &what);
        let rig = rig.again();
        assert_eq!(tally(&rig).1, 2 * COUNT * BLOCK, "{what}");
        for (n, name) in order.iter().enumerate() {
            remove(&rig, name);
            if n == 1 {
                // An equal file, in the txg in which the last but one goes.
                make(&rig, "equal", 1);
            }
            settle(&rig);
            let left: Vec<_> = order.iter().skip(n + 1).collect();
            for id in left.iter().map(|name| rig.fs.lookup(rig.root(), name.as_bytes(), Io::WAIT)) {
                assert!(rig.read(id.unwrap().id) == wanted, "{what}");
            }
            let entries = left.len() as u64 + u64::from(n > 0);
            assert_eq!(tally(&rig).1, (entries - 1) * COUNT * BLOCK, "{what}: {n}");
        }
        let _gone = (b, c);
        let equal = rig.fs.lookup(rig.root(), b"equal", Io::WAIT).unwrap().id;
        assert!(rig.read(equal) == wanted, "{what}");
        remove(&rig, "equal");
        settle(&rig);
        assert_eq!(tally(&rig), (0, 0), "{what}");
        rig.finish();
    });
}

/// Some entries of a file were pruned: those blocks are counted by the block reference table. What
/// is cloned and overwritten in one txg leaves no count.
#[test]
fn pruned_and_counted_blocks_of_one_file_are_cloned() {
    let rig = single("clones-pruned", true);
    let a = make(&rig, "a", 1);
    rig.sync();
    assert_eq!(rig.pool.prune_dedup(PruneRequest::Percent(50), None).unwrap(), COUNT / 2);
    settle(&rig);
    clone(&rig, a, "b");
    clone(&rig, a, "c");
    rig.sync();
    let half = COUNT / 2 * BLOCK;
    assert_eq!((tally(&rig).1, cloned(&rig)), (2 * half, 2 * half));
    // The entries that are left have other pointers now.
    assert_eq!(rig.pool.prune_dedup(PruneRequest::Percent(100), None).unwrap(), 0);
    let brief = clone(&rig, a, "brief");
    rig.write(brief, 0, &noise(2, (COUNT * BLOCK) as usize));
    remove(&rig, "brief");
    settle(&rig);
    assert_eq!((tally(&rig).1, cloned(&rig)), (2 * half, 2 * half));
    let rig = rig.again();
    remove(&rig, "c");
    settle(&rig);
    remove(&rig, "a");
    settle(&rig);
    assert_eq!((tally(&rig).1, cloned(&rig)), (0, 0));
    let b = rig.fs.lookup(rig.root(), b"b", Io::WAIT).unwrap().id;
    assert!(rig.read(b) == noise(1, (COUNT * BLOCK) as usize));
    // One pointer each: half of them can be pruned, with the table itself.
    assert_eq!(rig.pool.prune_dedup(PruneRequest::Percent(100), None).unwrap(), COUNT / 2);
    settle(&rig);
    clone(&rig, b, "d");
    rig.sync();
    assert_eq!((tally(&rig).1, cloned(&rig)), (0, 2 * half));
    ["b", "d"].iter().for_each(|name| remove(&rig, name));
    settle(&rig);
    rig.finish();
}

/// The source dies in the txg before that of the clone: its pointer is deferred, or the entry
/// would have been removed, and the block freed, before the clone is counted.
#[test]
fn a_deduplicated_block_that_is_freed_before_its_clone_is_written() {
    let (rig, crashed, to) = freed_before_its_clone("dedup-late", false, 1);
    is_whole(&crashed, "before the clone");
    let block = 16 << 10;
    let (theirs, own) = (noise(1, 3 * block), noise(2, 3 * block));
    replayed(&crashed, |fs| assert!(read(fs, to) == own));
    is_whole(&crashed, "after a power cut");
    settle(&rig);
    let wanted = [&theirs[..block], &own[block..2 * block], &theirs[2 * block..]].concat();
    assert!(rig.read(to) == wanted);
    let (_, saved) = tally(&rig);
    assert_eq!((saved, cloned(&rig)), (0, 0), "the clone has the blocks alone");
    rig.finish();
    // The audit would see a pointer that is not deferred.
    let (_rig, crashed, _) = freed_before_its_clone("dedup-forgotten", true, 1);
    let pool = import_from(&testkit::engine(), crashed.path(), &testkit::readonly()).unwrap();
    let report = pool.spa().audit(AuditOptions::default(), &()).unwrap();
    assert!(!report.is_clean() || report.leaked > 0, "{report:?}");
}

/// A clone of deduplicated blocks that an `fsync` made durable is claimed as a clone.
#[test]
fn a_log_with_clones_of_deduplicated_blocks_is_replayed() {
    testkit::side_by_side(&[false, true], |&fast| {
        let rig = single("clones-log", fast);
        let a = make(&rig, "a", 1);
        rig.sync();
        let b = clone(&rig, a, "b");
        rig.fs.fsync(b).unwrap();
        let crashed = cut(&rig, &format!("clones-log-{fast}"));
        drop(rig);
        let engine = testkit::engine();
        let pool = super::log::import_with(&engine, &crashed, false).unwrap();
        assert_eq!(pool.read_only_because(), None);
        let fs = open(&pool);
        let again = PosixFixture { scratch: crashed, engine, pool, fs };
        again.sync();
        let found = again.fs.lookup(again.root(), b"b", Io::WAIT).unwrap().id;
        assert!(again.read(found) == noise(1, (COUNT * BLOCK) as usize), "{fast}");
        settle(&again);
        assert_eq!((tally(&again).1, cloned(&again)), (COUNT * BLOCK, 0), "{fast}");
        ["a", "b"].iter().for_each(|name| remove(&again, name));
        settle(&again);
        assert_eq!(tally(&again), (0, 0), "{fast}");
        again.finish();
    });
}
