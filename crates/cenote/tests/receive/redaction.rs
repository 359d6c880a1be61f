//! Redaction: the list of OpenZFS's redaction bookmark and its stream are made again, and datasets
//! that lack blocks are received, refused, and completed.

use std::collections::BTreeMap;

use cenote::inspect::dmu::Io;
use cenote::stream::{StreamReader, StreamRecord};
use cenote::{ErrorKind, NewObject, ObjectId, Pool, PropData, ReceiveOptions, Result, SendOptions};
use testkit::golden_streams;

use super::{ALL, LARGE, PLAIN, TestPool, assert_same, kinds, noise, sent, writing};

const BLOCK: usize = 8192;

fn redacted(pool: &Pool, name: &str, from: Option<&str>, mark: &str, how: SendOptions) -> Vec<u8> {
    let (mut out, of) = (Vec::new(), pool.dataset(name).unwrap());
    let from = from.map(|from| pool.dataset(from).unwrap());
    let mark = pool.dataset(mark).unwrap();
    of.send_redacted(from.as_ref(), &mark, how, &mut out, &mut |_| true).unwrap();
    let size = of.redacted_size(from.as_ref(), &mark, how).unwrap();
    assert_eq!(
        size,
        out.len() as u64,
        "{name} from {from:?}",
        from = from.map(|f| f.name().to_owned())
    );
    out
}

fn prop(pool: &Pool, name: &str, prop: &str) -> Option<PropData> {
    pool.dataset(name).unwrap().prop(prop).unwrap().map(|value| value.value)
}

/// Where two streams differ, record by record.
fn difference(ours: &[u8], theirs: &[u8]) -> String {
    let text = |bytes: &[u8]| {
        let mut out = Vec::new();
        let options = cenote::stream::DumpOptions { records: true, ..Default::default() };
        cenote::stream::Dump::run(bytes, &mut out, options).unwrap();
        String::from_utf8(out).unwrap()
    };
    let (ours, theirs) = (text(ours), text(theirs));
    let pairs = ours.lines().zip(theirs.lines()).enumerate();
    let first = pairs.into_iter().find(|(_, (a, b))| a != b);
    format!("{first:?} of {} and {} lines", ours.lines().count(), theirs.lines().count())
}

/// The redacted stream of a golden pool is OpenZFS's byte for byte, from its bookmark and from one
/// that is made here.
#[test]
fn the_redacted_stream_of_openzfs() {
    let streams = golden_streams();
    let Some((_, theirs)) = streams.iter().find(|(name, _)| name == "redacted") else { return };
    let Some(of) = TestPool::golden_with("bookmarked", &writing()) else { return };
    let (snapshot, mark) = ("bookmarked/fs@b", "bookmarked/fs#redbook");
    let ours = redacted(&of.pool, snapshot, None, mark, PLAIN);
    assert!(ours == *theirs, "{}", difference(&ours, theirs));
    println!("COMPARED the stream redacted: {} bytes", ours.len());
    let snaps = prop(&of.pool, mark, "redact_snaps");
    let Some(PropData::Str(guid)) = &snaps else { panic!("{snaps:?}") };
    // The snapshot by which it was redacted.
    let mut by: Vec<String> = Vec::new();
    let mut todo = vec![of.pool.root().unwrap()];
    while let Some(fs) = todo.pop() {
        todo.extend(fs.children().unwrap());
        let snaps = fs.snapshots().unwrap().into_iter();
        by.extend(snaps.filter(|s| s.guid().to_string() == *guid).map(|s| s.name().to_owned()));
    }
    if by.is_empty() {
        println!("SKIPPED: the redaction snapshot is gone");
        return;
    }
    of.pool.redact(snapshot, "again", &by, None).unwrap();
    let again = redacted(&of.pool, snapshot, None, "bookmarked/fs#again", PLAIN);
    // OpenZFS lists holes without a birth as well, of files that the clone did not change.
    let content = |stream: &[u8]| {
        let mut list = super::hostile::pieces(stream);
        list.retain(|(record, _)| {
            !matches!(
                record,
                StreamRecord::Free(_) | StreamRecord::Redact(_) | StreamRecord::End(_)
            )
        });
        list
    };
    assert!(content(&again) == content(theirs), "{}", difference(&again, theirs));
    assert_eq!(prop(&of.pool, "bookmarked/fs#again", "redact_snaps"), snaps);
    of.pool.destroy_bookmarks(&["bookmarked/fs#again".to_owned()], None).unwrap();
    // `zdb -dddd` of a pool with a redaction bookmark does not end, also of one by OpenZFS.
    of.judged();
}

/// A pool with `tank/src@a` of two files, two clones that change some of it, with snapshots
/// `tank/one@r` and `tank/two@r`, and `tank/src@b`.
fn source(name: &str) -> (TestPool, Vec<ObjectId>) {
    let of = TestPool::new(name);
    of.pool.create_filesystem("tank/src", &[], None).unwrap();
    let rw = of.pool.dataset("tank/src").unwrap().open_rw().unwrap();
    let file = |seed: u64, blocks: usize| {
        let id = rw.create(&NewObject { block_size: Some(BLOCK as u32) }).unwrap();
        rw.write(id, 0, &noise(seed, blocks * BLOCK)).unwrap();
        id
    };
    // One with indirect blocks, a small one, and one that a clone removes.
    let ids = vec![file(1, 1200), file(2, 8), file(3, 4)];
    of.snapshot("tank/src@a");
    for (clone, first) in [("tank/one", 3), ("tank/two", 5)] {
        of.pool.clone_snapshot("tank/src@a", clone, &[], None).unwrap();
        let rw = of.pool.dataset(clone).unwrap().open_rw().unwrap();
        // Blocks 3 to 7, and 5 to 9: both have 5, 6 and 7.
        rw.write(ids[0], first * BLOCK as u64, &noise(9, 5 * BLOCK)).unwrap();
        rw.write(ids[0], 1100 * BLOCK as u64, &noise(8, BLOCK)).unwrap();
        rw.remove(ids[2]).unwrap();
        if clone == "tank/one" {
            rw.write(ids[1], 0, &noise(7, BLOCK)).unwrap();
        }
        of.snapshot(&format!("{clone}@r"));
    }
    rw.write(ids[1], 5 * BLOCK as u64, &noise(6, BLOCK)).unwrap();
    of.snapshot("tank/src@b");
    (of, ids)
}

/// The blocks that a stream leaves out, by object.
fn left_out(stream: &[u8]) -> BTreeMap<u64, Vec<u64>> {
    let (mut reader, mut out) = (StreamReader::new(stream), BTreeMap::<u64, Vec<u64>>::new());
    while let Some(read) = reader.next_record().unwrap() {
        if let StreamRecord::Redact(of) = read.record {
            let block = BLOCK as u64;
            let (first, last) = (of.offset / block, (of.offset + of.length) / block);
            out.entry(of.object).or_default().extend(first..last);
        }
    }
    out
}

fn read(pool: &Pool, name: &str, id: ObjectId, block: u64) -> Result<Vec<u8>> {
    let os = pool.dataset(name)?.open_fs()?;
    let object = os.objset().object(id, Io::WAIT)?;
    object.read_block(block, Io::WAIT).map(|buf| buf.to_vec())
}

#[test]
fn what_all_snapshots_changed_is_left_out() {
    let (of, ids) = source("redact-src");
    let both = ["tank/one@r".to_owned(), "tank/two@r".to_owned()];
    of.pool.redact("tank/src@a", "both", &both, None).unwrap();
    of.pool.redact("tank/src@a", "first", &both[..1], None).unwrap();
    of.pool.redact("tank/src@a", "none", &[], None).unwrap();
    let send = |mark: &str| redacted(&of.pool, "tank/src@a", None, mark, ALL);
    let first = left_out(&send("tank/src#first"));
    assert_eq!(first[&ids[0].0], [3, 4, 5, 6, 7, 1100]);
    assert_eq!(first[&ids[1].0], [0]);
    let stream = send("tank/src#both");
    let lacks = left_out(&stream);
    let due = [(ids[0].0, vec![5, 6, 7, 1100]), (ids[2].0, vec![0, 1, 2, 3])];
    assert_eq!(lacks, BTreeMap::from(due));
    assert_eq!(left_out(&send("tank/src#none")), BTreeMap::new());
    // What is refused.
    let refused = |mark: &str, redactions: &[&str], kind: ErrorKind| {
        let list: Vec<String> = redactions.iter().map(|name| (*name).to_owned()).collect();
        let e = of.pool.redact("tank/src@a", mark, &list, None).unwrap_err();
        assert_eq!(e.kind(), kind, "{mark}, {redactions:?}: {e}");
    };
    refused("both", &["tank/one@r"], ErrorKind::Exists);
    refused("x", &["tank/src@a"], ErrorKind::Invalid);
    refused("x", &["tank/one@none"], ErrorKind::NotFound);
    let mark = of.pool.dataset("tank/src#both").unwrap();
    let b = of.pool.dataset("tank/src@b").unwrap();
    let e = b.send_redacted(None, &mark, ALL, &mut Vec::new(), &mut |_| true).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
    drop((mark, b));
    // The list goes with the bookmark.
    of.pool.destroy_bookmarks(&["tank/src#first".to_owned()], None).unwrap();
    of.judged();
}

/// A dataset without some of its blocks is received into pools of every kind, interrupted and
/// resumed on the way; what completes it is received, everything else refused.
#[test]
fn redacted_datasets() {
    let (of, ids) = source("redacted-src");
    let both = ["tank/one@r".to_owned(), "tank/two@r".to_owned()];
    of.pool.redact("tank/src@a", "both", &both, None).unwrap();
    let stream = redacted(&of.pool, "tank/src@a", None, "tank/src#both", ALL);
    let plain = sent(&of.pool, "tank/src@b", Some("tank/src@a"), ALL);
    let whole = sent(&of.pool, "tank/src@b", Some("tank/src#both"), ALL);
    let clone = sent(&of.pool, "tank/one@r", Some("tank/src#both"), ALL);
    let mut cases: Vec<_> =
        kinds().into_iter().flat_map(|kind| [(kind.clone(), 9), (kind, 12)]).collect();
    if std::env::var_os("CENOTE_NIGHTLY").is_none() {
        // The first kind and the last one; all of them at night.
        cases = cases.first().into_iter().chain(cases.last()).cloned().collect();
    }
    testkit::side_by_side(&cases, |((name, kind, width), ashift)| {
        let label = format!("redacted-{name}{ashift}");
        let mut to = TestPool::of(&label, kind.clone(), *width, *ashift);
        let resumable = ReceiveOptions { resumable: true, ..ReceiveOptions::default() };
        let half = &stream[..stream.len() / 2];
        to.receive_with("tank/copy", &resumable, half).unwrap_err();
        to = to.crashed();
        let token = to.pool.dataset("tank/copy").unwrap().resume_token().unwrap().unwrap();
        let resumed = of.pool.resume_send(&token).unwrap();
        let mut rest = Vec::new();
        resumed.send(&mut rest, &mut |_| true).unwrap();
        to.receive_with("tank/copy", &resumable, &rest).unwrap();
        let guids = prop(&of.pool, "tank/src#both", "redact_snaps");
        for name in ["tank/copy", "tank/copy@a"] {
            assert_eq!(prop(&to.pool, name, "redact_snaps"), guids, "{name}");
            assert_eq!(prop(&to.pool, name, "redacted"), Some(PropData::Num(1)));
        }
        for block in [0, 4, 5, 6, 7, 8, 1099, 1100, 1101] {
            let ours = read(&to.pool, "tank/copy@a", ids[0], block);
            match [5, 6, 7, 1100].contains(&block) {
                true => assert_eq!(ours.unwrap_err().kind(), ErrorKind::Io, "block {block}"),
                false => {
                    let theirs = read(&of.pool, "tank/src@a", ids[0], block).unwrap();
                    assert!(ours.unwrap() == theirs, "block {block}");
                }
            }
        }
        // Its own stream lacks them as well.
        let own = sent(&to.pool, "tank/copy@a", None, ALL);
        assert_eq!(left_out(&own), left_out(&stream));
        to.receive("tank/again", &own).unwrap();
        assert_eq!(prop(&to.pool, "tank/again@a", "redact_snaps"), guids);
        to.pool.destroy_dataset("tank/again", true, None).unwrap();
        // It lacks what this stream takes for granted.
        let e = to.receive("tank/copy", &plain).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
        // The clone, by which it was redacted, brings the blocks that it still has.
        let origin =
            ReceiveOptions { origin: Some("tank/copy@a".to_owned()), ..ReceiveOptions::default() };
        to.receive_with("tank/one", &origin, &clone).unwrap();
        assert_same((&of.pool, "tank/one@r"), (&to.pool, "tank/one@r"));
        assert_eq!(prop(&to.pool, "tank/one@r", "redacted"), Some(PropData::Num(0)));
        to = to.crashed();
        to.receive("tank/copy", &whole).unwrap();
        assert_same((&of.pool, "tank/src@b"), (&to.pool, "tank/copy@b"));
        assert_eq!(prop(&to.pool, "tank/copy", "redacted"), Some(PropData::Num(0)));
        assert_eq!(prop(&to.pool, "tank/copy@a", "redacted"), Some(PropData::Num(1)));
        to.pool.destroy_dataset("tank/one", true, None).unwrap();
        to.examined();
    });
}

/// Records of redaction in a stream that is not redacted, or for parts of blocks.
#[test]
fn redact_records_that_are_refused() {
    use super::hostile::{assembled, pieces};
    let (of, ids) = source("redact-odd-src");
    of.pool.redact("tank/src@a", "both", &["tank/one@r".to_owned()], None).unwrap();
    let to = TestPool::new("redact-odd");
    let plain = sent(&of.pool, "tank/src@a", None, LARGE);
    let stream = redacted(&of.pool, "tank/src@a", None, "tank/src#both", LARGE);
    let record = |offset: u64, length: u64| {
        let free = cenote::stream::Free { object: ids[0].0, offset, length, to_guid: 0 };
        (StreamRecord::Redact(free), Vec::new())
    };
    let block = BLOCK as u64;
    for (base, piece) in [
        (&plain, record(0, block)),
        (&stream, record(100, block)),
        (&stream, record(0, block + 100)),
        (&stream, record(0, u64::MAX)),
        (&stream, record(u64::MAX - block + 1, block)),
    ] {
        let mut list = pieces(base);
        let at = list.len() - 1;
        list.insert(at, piece);
        let before = to.datasets();
        let e = to.receive("tank/new", &assembled(&list)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
        assert_eq!(to.datasets(), before);
    }
    to.judged();
}
