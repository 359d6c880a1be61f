//! Damaged and hostile streams: an error, and the pool as it was.

use std::io::Read;

use cenote::stream::{Free, FreeObjects, Object, StreamReader, StreamRecord, StreamWriter, Write};
use cenote::{ErrorKind, NewObject, PropData};
use testkit::Rng;

use super::{ALL, TestPool, assert_same, noise, sent};

/// A record with its payload.
pub(crate) type StreamPiece = (StreamRecord, Vec<u8>);

/// The records of a stream.
pub(crate) fn pieces(stream: &[u8]) -> Vec<StreamPiece> {
    let mut reader = StreamReader::new(stream);
    let mut out = Vec::new();
    while let Some(read) = reader.next_record().unwrap() {
        out.push((read.record, read.payload.to_vec()));
    }
    out
}

/// A stream of these records, with right sums.
pub(crate) fn assembled(pieces: &[StreamPiece]) -> Vec<u8> {
    let mut writer = StreamWriter::new(Vec::new());
    for (record, payload) in pieces {
        writer.write(record, payload).unwrap();
    }
    writer.into_inner()
}

/// A file system with files of all kinds, and a snapshot of it that a later one follows.
fn source(name: &str) -> TestPool {
    let of = TestPool::new(name);
    let props =
        [("dnodesize".to_owned(), PropData::Num(1)), ("recordsize".into(), PropData::Num(8192))];
    of.pool.create_filesystem("tank/src", &props, None).unwrap();
    let rw = of.pool.dataset("tank/src").unwrap().open_rw().unwrap();
    let ids: Vec<_> = (0..12).map(|_| rw.create(&NewObject::default()).unwrap()).collect();
    for (i, &id) in ids.iter().enumerate() {
        rw.write(id, 0, &noise(i as u64, 3000 * (i + 1))).unwrap();
        rw.write(id, 200_000, &[7; 9000]).unwrap();
    }
    of.snapshot("tank/src@a");
    rw.remove(ids[3]).unwrap();
    rw.truncate(ids[4], 5000).unwrap();
    rw.punch(ids[5], 0, 10_000).unwrap();
    for &id in &ids[6..] {
        rw.write(id, 4000, &noise(99, 20_000)).unwrap();
    }
    rw.create(&NewObject { block_size: Some(131_072) }).unwrap();
    of.snapshot("tank/src@b");
    of
}

/// The stream of a small file system, an incremental one after it, and a pool that has the first
/// as `tank/base` and, besides, `tank/other`.
fn stage(name: &str) -> (Vec<u8>, Vec<u8>, TestPool, TestPool) {
    let of = source(&format!("{name}-src"));
    let full = sent(&of.pool, "tank/src@a", None, ALL);
    let incremental = sent(&of.pool, "tank/src@b", Some("tank/src@a"), ALL);
    let to = TestPool::new(name);
    to.receive("tank/base", &full).unwrap();
    (full, incremental, of, to)
}

/// Receives what must be refused; nothing changes.
fn refused(to: &TestPool, target: &str, stream: &[u8], what: &str) -> ErrorKind {
    let before = to.datasets();
    let e = to.receive(target, stream).err().unwrap_or_else(|| panic!("{what} was received"));
    assert!(!matches!(e.kind(), ErrorKind::Bug | ErrorKind::Io), "{what}: {e}");
    assert_eq!(to.datasets(), before, "{what}: {e}");
    e.kind()
}

#[test]
fn cut_off_at_any_record_and_byte() {
    let (full, incremental, of, to) = stage("cut");
    let mut rng = Rng::new(5);
    for (stream, target) in [(&full, "tank/new"), (&incremental, "tank/base")] {
        let mut ends = Vec::new();
        let mut reader = StreamReader::new(stream.as_slice());
        while let Some(read) = reader.next_record().unwrap() {
            ends.push(read.offset as usize);
        }
        let some = ends.iter().step_by(1 + ends.len() / 25).copied();
        let random: Vec<usize> = (0..15).map(|_| rng.index(stream.len())).collect();
        for at in some.chain(random).chain([0, 1, stream.len() - 1]) {
            let kind = refused(&to, target, &stream[..at], &format!("{target} cut at {at}"));
            assert_eq!(kind, ErrorKind::Interrupted);
        }
    }
    to.receive("tank/base", &incremental).unwrap();
    assert_same((&of.pool, "tank/src@b"), (&to.pool, "tank/base@b"));
    to.judged();
}

#[test]
fn flipped_bits() {
    let (full, incremental, _of, to) = stage("flip");
    let mut rng = Rng::new(6);
    for (stream, target) in [(&full, "tank/new"), (&incremental, "tank/base")] {
        for _ in 0..40 {
            let mut bad = stream.clone();
            let at = rng.index(bad.len());
            bad[at] ^= 1 << rng.below(8);
            refused(&to, target, &bad, &format!("{target} flipped at {at}"));
        }
    }
    to.judged();
}

/// Something else for a number in a record.
fn odd(rng: &mut Rng) -> u64 {
    const ODD: [u64; 16] = [
        0,
        1,
        2,
        3,
        31,
        32,
        511,
        512,
        1 << 17,
        1 << 24,
        1 << 32,
        (1 << 48) - 1,
        1 << 48,
        1 << 63,
        u64::MAX - 511,
        u64::MAX,
    ];
    match rng.below(4) {
        0 => rng.number() >> rng.below(64),
        _ => ODD[rng.index(ODD.len())],
    }
}

/// Changes one field of a record.
fn twist(record: &mut StreamRecord, rng: &mut Rng) {
    let n = odd(rng);
    let which = rng.below(9);
    match record {
        StreamRecord::Begin(r) => match which {
            0 => r.version_info = n,
            1 => r.objset_type = n as u32,
            2 => r.flags = n as u32,
            3 => r.from_guid = n,
            4 => r.creation_time = n,
            _ => r.version_info ^= 1 << (2 + rng.below(40)),
        },
        StreamRecord::Object(r) => match which {
            0 => r.object = n,
            1 => r.object_type = n as u32,
            2 => r.bonus_type = n as u32,
            3 => r.block_size = n as u32,
            4 => r.bonus_len = n as u32,
            5 => r.checksum = n as u8,
            6 => r.compress = n as u8,
            7 => r.slots = n as u8,
            _ => r.flags = n as u8,
        },
        StreamRecord::FreeObjects(r) => match which & 1 {
            0 => r.first = n,
            _ => r.count = n,
        },
        StreamRecord::Write(r) => match which {
            0 => r.object = n,
            1 => r.object_type = n as u32,
            2 | 3 => r.offset = n,
            4 => r.logical_size = n,
            5 => r.compression = n as u8,
            6 => r.compressed_size = n,
            _ => r.checksum_type = n as u8,
        },
        StreamRecord::Free(r) | StreamRecord::Redact(r) => match which % 3 {
            0 => r.object = n,
            1 => r.offset = n,
            _ => r.length = n,
        },
        StreamRecord::Spill(r) => match which % 3 {
            0 => r.object = n,
            1 => r.length = n,
            _ => r.flags = n as u8,
        },
        StreamRecord::WriteEmbedded(r) => match which {
            0 => r.object = n,
            1 => r.offset = n,
            2 => r.length = n,
            3 => r.compression = n as u8,
            4 => r.embedded_type = n as u8,
            5 => r.logical_size = n as u32,
            _ => r.physical_size = n as u32,
        },
        StreamRecord::End(_) | StreamRecord::WriteByRef(_) | StreamRecord::ObjectRange(_) => {}
    }
}

/// Records with other fields, in another order, and repeated, all with right sums. What is
/// refused changes nothing; whatever is received, the pool stays sound.
#[test]
fn twisted_records() {
    let (full, incremental, _of, to) = stage("twist");
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let mut rng = Rng::new(7);
    for n in 0..if nightly { 5000 } else { 120 } {
        let (stream, target) = match n & 1 {
            0 => (&full, "tank/new"),
            _ => (&incremental, "tank/base"),
        };
        let mut list = pieces(stream);
        let (first, last) = (1, list.len() - 1);
        for _ in 0..1 + rng.below(3) {
            let (a, b) = (first + rng.index(last - first), first + rng.index(last - first));
            match rng.below(8) {
                0 => list.swap(a, b),
                1 => list.insert(b, list[a].clone()),
                2 => drop(list.remove(a)),
                3 => {
                    let size = list[b].1.len();
                    let payload = &mut list[a].1;
                    let noise = noise(n, payload.len().min(size));
                    payload[..noise.len()].copy_from_slice(&noise);
                }
                4 => twist(&mut list[0].0, &mut rng),
                _ => twist(&mut list[a].0, &mut rng),
            }
            if list.len() <= last {
                break;
            }
        }
        let mut writer = StreamWriter::new(Vec::new());
        let mut legible = true;
        for (record, payload) in &mut list {
            match record.payload_len() {
                // Length and type that no reader accepts.
                Err(_) => legible = false,
                Ok(len) => payload.resize(len, 0x5a),
            }
            legible = legible && writer.write(record, payload).is_ok();
        }
        let bytes = writer.into_inner();
        if !legible {
            continue;
        }
        let before = to.datasets();
        match to.receive(target, &bytes) {
            Err(e) => {
                assert!(!matches!(e.kind(), ErrorKind::Bug | ErrorKind::Io), "{n}: {e}");
                assert_eq!(to.datasets(), before, "{n}: {e}");
            }
            Ok(got) => {
                for received in got {
                    to.pool
                        .destroy_snapshots(std::slice::from_ref(&received.snapshot), false, None)
                        .unwrap();
                }
                if n & 1 == 0 {
                    to.pool.destroy_dataset("tank/new", false, None).unwrap();
                } else {
                    to.pool.rollback("tank/base@a", None).unwrap();
                }
            }
        }
    }
    to.pool.writer().unwrap().sync().unwrap();
    to.judged();
}

/// Lengths that a header claims and that never come.
#[test]
fn lengths_that_lie() {
    let (full, _, _of, to) = stage("lengths");
    let list = pieces(&full);
    for size in [1u64 << 24, 1 << 40, u64::MAX, u64::MAX - 7] {
        let at = list.iter().position(|(r, _)| matches!(r, StreamRecord::Write(_))).unwrap();
        let mut bytes = assembled(&list[..at]);
        let StreamRecord::Write(write) = list[at].0 else { panic!() };
        let record = Write { logical_size: size, compression: 0, compressed_size: 0, ..write };
        let order = cenote::inspect::ondisk::Endian::Little;
        bytes.extend_from_slice(&StreamRecord::Write(record).encode(order));
        bytes.extend_from_slice(&[1; 100]);
        refused(&to, "tank/new", &bytes, &format!("{size} bytes"));
    }
    to.judged();
}

/// Records that say nothing, and objects and blocks far apart: memory and time are bounded.
#[test]
fn many_records_of_nothing() {
    let (full, _, _of, to) = stage("nothing");
    let list = pieces(&full);
    let (begin, end) = (list[0].clone(), list.last().unwrap().clone());
    let object = list.iter().find_map(|(r, payload)| match r {
        StreamRecord::Object(o) if o.object > 100 || o.block_size == 8192 => {
            Some((*o, payload.clone()))
        }
        _ => None,
    });
    let (object, bonus) = object.unwrap();
    let mut nothing = vec![begin.clone()];
    for n in 0..100_000u64 {
        let free = FreeObjects { first: n % 1000, count: 0, to_guid: object.to_guid };
        nothing.push((StreamRecord::FreeObjects(free), Vec::new()));
    }
    nothing.push(end.clone());
    to.receive("tank/nothing", &assembled(&nothing)).unwrap();
    let mut sparse = vec![begin];
    for n in 0..300u64 {
        let record = Object { object: 1 + (n << 36), ..object };
        sparse.push((StreamRecord::Object(record), bonus.clone()));
        let write = Write {
            object: record.object,
            object_type: record.object_type,
            offset: (n << 40) * u64::from(record.block_size),
            logical_size: record.block_size.into(),
            to_guid: record.to_guid,
            checksum_type: 2,
            ..Write::default()
        };
        sparse.push((StreamRecord::Write(write), vec![1; record.block_size as usize]));
    }
    sparse.push(end);
    to.receive("tank/sparse", &assembled(&sparse)).unwrap();
    to.judged();
}

/// A beginning, and then a piece again and again. Its records have no sums, as those of old
/// senders.
struct Repeated<'a> {
    begin: &'a [u8],
    piece: Vec<u8>,
    at: usize,
    left: u64,
}

impl Read for Repeated<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if !self.begin.is_empty() {
            return self.begin.read(out);
        }
        if self.at == self.piece.len() {
            (self.at, self.left) = (0, self.left.saturating_sub(1));
        }
        if self.left == 0 {
            return Ok(0);
        }
        let n = out.len().min(self.piece.len() - self.at);
        out[..n].copy_from_slice(&self.piece[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

/// A number of the kernel's about this process, bytes.
fn memory(label: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(label)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// In a process of its own, so that no other test's memory counts.
const ALONE: &str = "CENOTE_TEST_ALONE";

/// A million records (fewer but at night) that say nothing, or the same again: the memory is bounded, and the dataset is
/// as it was when they end in the middle.
#[test]
fn a_million_records_of_nothing() {
    if std::env::var_os(ALONE).is_none() {
        let test = "hostile::a_million_records_of_nothing";
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let out = command.args([test, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned()
            + &String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let (full, _, _of, to) = stage("million");
    let nightly = std::env::var_os("CENOTE_NIGHTLY").is_some();
    let list = pieces(&full);
    let begin = assembled(&list[..1]);
    let found = |wanted: fn(&StreamRecord) -> bool| {
        list.iter().find(|(record, _)| wanted(record)).unwrap().clone()
    };
    let (StreamRecord::Write(first), _) = found(|record| matches!(record, StreamRecord::Write(_)))
    else {
        panic!()
    };
    let is = |record: &StreamRecord| matches!(record, StreamRecord::Object(of) if of.object == first.object);
    let (object, bonus) = list.iter().find(|(record, _)| is(record)).unwrap().clone();
    let StreamRecord::Object(of) = object else { panic!() };
    let write = Write {
        object: of.object,
        object_type: of.object_type,
        logical_size: 512,
        to_guid: of.to_guid,
        checksum_type: 2,
        ..Write::default()
    };
    let none = |first: u64, count: u64| FreeObjects { first, count, to_guid: of.to_guid };
    let free = Free { object: of.object, offset: 0, length: 0, to_guid: of.to_guid };
    let order = cenote::inspect::ondisk::Endian::Little;
    let header = |record: StreamRecord| record.encode(order).to_vec();
    let object = [header(object), bonus].concat();
    let million = if nightly { 1_000_000 } else { 100_000 };
    let some = if nightly { million } else { 4_000 };
    let cases = [
        ("FREEOBJECTS of none", Vec::new(), header(StreamRecord::FreeObjects(none(7, 0))), million),
        ("OBJECT", Vec::new(), object.clone(), some),
        ("FREE", object.clone(), header(StreamRecord::Free(free)), some),
        (
            "WRITE",
            object.clone(),
            [header(StreamRecord::Write(write)), vec![1; 512]].concat(),
            some,
        ),
        (
            "FREEOBJECTS of one",
            object.clone(),
            header(StreamRecord::FreeObjects(none(of.object - 1, 1))),
            some,
        ),
    ];
    for (what, first, piece, count) in cases {
        let (before, base) = (to.datasets(), memory("VmRSS:"));
        let begin = [begin.clone(), first].concat();
        let mut input = Repeated { begin: &begin, piece, at: 0, left: count };
        let (names, options) = (cenote::ReceiveNames::Whole, cenote::ReceiveOptions::default());
        let e = to.pool.receive("tank/new", names, &options, &mut input).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Interrupted, "{what}: {e}");
        assert_eq!(to.datasets(), before, "{what}");
        let grown = memory("VmHWM:").saturating_sub(base);
        assert!(grown < 64 << 20, "{what}: {} MiB more", grown >> 20);
        println!("MEMORY {what}: {count} records, {} MiB more", grown >> 20);
    }
    to.judged();
}

/// The streams with which the fuzzers begin, and mutations of them whose sums are right again:
/// nothing but an error, or a sound pool.
#[test]
fn the_corpus_of_the_fuzzers() {
    let to = TestPool::new("corpus");
    let dir = testkit::fixtures().join("../../fuzz/corpus/stream");
    let mut files: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    let mutations = if std::env::var_os("CENOTE_NIGHTLY").is_some() { 5000 } else { 8 };
    let mut rng = Rng::new(31);
    let (mut taken, mut refused) = (0, 0);
    for file in files {
        let seed = std::fs::read(&file).unwrap();
        for n in 0..mutations {
            let mut bytes = seed.clone();
            for _ in 0..if n == 0 { 0 } else { 1 + rng.below(4) } {
                // Headers more often than payloads.
                let at = rng.index(bytes.len()) / 8 * 8 + rng.index(8);
                let Some(byte) = bytes.get_mut(at) else { continue };
                match rng.below(3) {
                    0 => *byte ^= 1 << rng.below(8),
                    1 => *byte = [0, 1, 0x7f, 0x80, 0xff][rng.index(5)],
                    _ => *byte = rng.number() as u8,
                }
            }
            let bytes = cenote::stream::fuzzing::with_sums(&bytes);
            let before = to.datasets();
            match to.receive("tank/new", &bytes) {
                Ok(_) => {
                    to.pool.destroy_dataset("tank/new", true, None).unwrap();
                    taken += 1;
                }
                Err(e) => {
                    let odd = matches!(e.kind(), ErrorKind::Bug | ErrorKind::Io);
                    assert!(!odd, "{}, {n}: {e}", file.display());
                    // Of a package, the substreams before were received.
                    if file.ends_with("package") && to.pool.dataset("tank/new").is_ok() {
                        to.pool.destroy_dataset("tank/new", true, None).unwrap();
                    }
                    let after = to.datasets();
                    assert_eq!(after.len(), before.len(), "{}, {n}: {e}", file.display());
                    refused += 1;
                }
            }
        }
    }
    println!("CORPUS: {taken} streams received, {refused} refused");
    to.pool.writer().unwrap().sync().unwrap();
    to.judged();
}
