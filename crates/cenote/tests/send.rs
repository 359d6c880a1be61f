//! Streams of golden pools, byte for byte those that OpenZFS sent.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use cenote::stream::{ResumeToken, Spill, StreamReader, StreamRecord, StreamWriter, WriteEmbedded};
use cenote::{ErrorKind, PackageOptions, Pool, SendOptions, stream};
use testkit::{Scratch, engine, golden, golden_streams, import_from, readonly};

const PLAIN: SendOptions =
    SendOptions { large_blocks: false, embedded: false, compressed: false, raw: false };
const ALL: SendOptions =
    SendOptions { large_blocks: true, embedded: true, compressed: true, ..PLAIN };
const RAW: SendOptions = SendOptions { raw: true, ..ALL };

fn sent(pool: &Pool, name: &str, from: Option<&str>, options: SendOptions) -> Vec<u8> {
    let mut out = Vec::new();
    let from = from.map(|from| pool.dataset(from).unwrap());
    let dataset = pool.dataset(name).unwrap();
    dataset.send(from.as_ref(), options, &mut out, &mut |_| true).unwrap();
    out
}

/// A stream whose embedded spill blocks are ordinary ones (chapter 07 §8.5): OpenZFS sends these
/// as data at an offset that no block has, Cenote does not.
fn with_spill_records(bytes: &[u8]) -> Vec<u8> {
    let mut reader = StreamReader::new(bytes);
    let mut writer = StreamWriter::new(Vec::new());
    while let Some(read) = reader.next_record().unwrap() {
        let (mut record, mut payload) = (read.record, read.payload.to_vec());
        if let StreamRecord::WriteEmbedded(of) = record
            && of.is_spill()
        {
            let mut plain = vec![0; of.logical_size as usize];
            let packed = &payload[..of.physical_size as usize];
            codec::compress::decompress(of.compression, packed, &mut plain).unwrap();
            let WriteEmbedded { object, length, to_guid, .. } = of;
            record = StreamRecord::Spill(Spill { object, length, to_guid, ..Spill::default() });
            payload = plain;
        }
        writer.write(&record, &payload).unwrap();
    }
    writer.into_inner()
}

/// Where two streams differ, record by record.
fn difference(ours: &[u8], theirs: &[u8]) -> String {
    let text = |bytes: &[u8]| {
        let mut out = Vec::new();
        let options = stream::DumpOptions { records: true, ..Default::default() };
        stream::Dump::run(bytes, &mut out, options).unwrap();
        String::from_utf8(out).unwrap()
    };
    let (ours, theirs) = (text(ours), text(theirs));
    let pairs = ours.lines().zip(theirs.lines()).enumerate();
    let first = pairs.into_iter().find(|(_, (a, b))| a != b);
    format!("{first:?} of {} and {} lines", ours.lines().count(), theirs.lines().count())
}

/// Streams with their pools, what they send, and how.
const GOLDEN: [(&str, &str, &str, Option<&str>, SendOptions); 10] = [
    ("full", "snaps", "snaps/promoted@one", None, PLAIN),
    ("incr", "snaps", "snaps/promoted@two", Some("snaps/promoted@one"), PLAIN),
    ("full-cLe", "snaps", "snaps/promoted@one", None, ALL),
    ("frommark", "snaps", "snaps/promoted@three", Some("snaps/promoted#mark"), PLAIN),
    ("large-Lec", "streams", "streams/large@a", None, ALL),
    ("large-plain", "streams", "streams/large@a", None, PLAIN),
    ("volume", "streams", "streams/vol@a", None, PLAIN),
    ("raw-full", "crypt2", "crypt2/aes-256-gcm@one", None, RAW),
    ("raw-incr", "crypt2", "crypt2/aes-256-gcm@two", Some("crypt2/aes-256-gcm@one"), RAW),
    ("clone-from-origin", "streams", "streams/t/cl@3", Some("streams/t/y@1"), PLAIN),
];

#[test]
fn streams_are_those_of_openzfs() {
    let streams = golden_streams();
    let mut compared = 0;
    for (stream, pool, name, from, options) in GOLDEN {
        let Some((_, theirs)) = streams.iter().find(|(known, _)| known == stream) else { continue };
        let Some(of) = golden(pool) else { continue };
        let scratch = Scratch::new(&format!("send-{stream}"));
        of.unpack(scratch.path());
        let engine = engine();
        let pool = import_from(&engine, scratch.path(), &readonly()).unwrap();
        let ours = sent(&pool, name, from, options);
        let theirs = with_spill_records(theirs);
        assert!(ours == theirs, "{stream}: {}", difference(&ours, &theirs));
        let dataset = pool.dataset(name).unwrap();
        let from = from.map(|from| pool.dataset(from).unwrap());
        assert_eq!(dataset.send_size(from.as_ref(), options).unwrap(), ours.len() as u64);
        println!("COMPARED the stream {stream}: {} bytes", ours.len());
        compared += 1;
    }
    assert!(compared >= 2, "{compared} streams");
}

/// The guids and names in the record of a package are those of the pool, so only equal bytes
/// count.
#[test]
fn packages_are_those_of_openzfs() {
    let package = |recursive, intermediate, props| PackageOptions {
        recursive,
        intermediate,
        props,
        ..PackageOptions::default()
    };
    let all = [
        // Those that were made later are left out.
        (
            "R1",
            "streams/t@1",
            None,
            PackageOptions { skip_missing: true, ..package(true, false, false) },
        ),
        ("RI13", "streams/t@3", Some("streams/t@1"), package(true, true, false)),
        ("I13", "streams/t/y@3", Some("streams/t/y@1"), package(false, true, false)),
        ("props", "streams/t/y@3", None, package(false, false, true)),
    ];
    let Some(of) = golden("streams") else { return };
    let scratch = Scratch::new("send-packages");
    of.unpack(scratch.path());
    let engine = engine();
    let pool = import_from(&engine, scratch.path(), &readonly()).unwrap();
    let streams = golden_streams();
    for (stream, name, from, package) in all {
        let Some((_, theirs)) = streams.iter().find(|(known, _)| known == stream) else { continue };
        let (snapshot, from) =
            (pool.dataset(name).unwrap(), from.map(|from| pool.dataset(from).unwrap()));
        let plan = snapshot.plan_send(from.as_ref(), &package).unwrap();
        let (mut ours, mut last) = (Vec::new(), (0, 0));
        let sent = plan.send(PLAIN, &mut ours, &mut |step, bytes| {
            assert!(step > last.0 || (step == last.0 && bytes > last.1));
            last = (step, bytes);
            true
        });
        sent.unwrap();
        assert!(ours == *theirs, "{stream}: {}", difference(&ours, theirs));
        assert_eq!(last.0 + 1, plan.steps.len());
        let sum: u64 = plan.sizes(PLAIN).unwrap().iter().sum();
        assert!(sum < ours.len() as u64, "{stream}");
        println!("COMPARED the package {stream}: {} bytes", ours.len());
    }
    // A clone whose origin is not in the package is sent whole.
    let clone = pool.dataset("streams/t/cl@3").unwrap();
    let plan = clone.plan_send(None, &package(true, false, false)).unwrap();
    let steps: Vec<_> = plan.steps.iter().map(|(from, to)| (from.is_none(), to.name())).collect();
    assert_eq!(steps, [(true, "streams/t/cl@3")]);
    // The datasets below that were made later lack the first snapshot.
    let first = pool.dataset("streams/t@2").unwrap();
    let Err(e) = first.plan_send(None, &package(true, false, false)) else { panic!("sent") };
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
    let skipping = PackageOptions { skip_missing: true, ..package(true, false, false) };
    let plan = first.plan_send(None, &skipping).unwrap();
    assert_eq!(plan.skipped, ["streams/t/cl@2"]);
    let sent = |name| plan.steps.iter().filter(|(_, to)| to.name().starts_with(name)).count();
    assert_eq!((plan.steps.len(), sent("streams/t@"), sent("streams/t/y@")), (5, 2, 2));
    let without = PackageOptions { exclude: vec!["streams/t/cl".to_owned()], ..skipping };
    let plan = first.plan_send(None, &without).unwrap();
    assert_eq!((plan.skipped.len(), plan.steps.len()), (0, 5));
}

/// The tokens of the datasets of golden pool `partial`, as OpenZFS shows them.
const TOKENS: [(&str, &str); 2] = [
    (
        "newfs",
        "1-b17d636d5-b8-789c636064000310a500c4ec50360710e72765a52697303084419460caa7a515a79630c001489e0d493ea9b224b5184827f06ec3aabf243fbd343385814165fd3f5196f98f5f6920c97382e5f312735319180a128b4a321373f48b8b921df2f352c1660100550118e5",
    ),
    (
        "dst",
        "1-f45e71733-e0-789c636064000310a501c49c50360710a715e5e7a69766a6304081cafa7fa22cf31fbf5200b2d991d4e52765a5269730304c6682a8c3904f4b2b4e2d01c944c0e5d990e4932a4b528b81b4c5a928acfa4bf221ae5871623ac369edd49d1a48f29c60f9bcc4dc54068682c4a292ccc41cfde2a2648792f27cb059005ed7217f",
    ),
];

/// Receives that OpenZFS interrupted: the streams for their tokens.
#[test]
fn resumed_streams_are_those_of_openzfs() {
    let Some(of) = golden("partial") else { return };
    let scratch = Scratch::new("send-resumed");
    of.unpack(scratch.path());
    let engine = engine();
    let pool = import_from(&engine, scratch.path(), &readonly()).unwrap();
    let streams = golden_streams();
    for (dataset, text) in TOKENS {
        let token = ResumeToken::decode(text).unwrap();
        let resumed = pool.resume_send(&token).unwrap();
        let mut ours = Vec::new();
        resumed.send(&mut ours, &mut |_| true).unwrap();
        assert_eq!(resumed.size().unwrap(), ours.len() as u64);
        let name = format!("resume-{dataset}");
        let Some((_, theirs)) = streams.iter().find(|(known, _)| *known == name) else { continue };
        assert!(ours == *theirs, "{name}: {}", difference(&ours, theirs));
        println!("COMPARED the stream {name}: {} bytes", ours.len());
        // What a token names is gone, or another.
        let refused = |token: ResumeToken, kind| match pool.resume_send(&token) {
            Ok(_) => panic!("resumed"),
            Err(e) => assert_eq!(e.kind(), kind, "{e}"),
        };
        let gone = ResumeToken { to_name: "partial/src@none".to_owned(), ..token.clone() };
        refused(gone, ErrorKind::NotFound);
        refused(ResumeToken { to_guid: 7, ..token.clone() }, ErrorKind::Invalid);
        refused(ResumeToken { from_guid: Some(7), ..token.clone() }, ErrorKind::NotFound);
        refused(ResumeToken { redact_snaps: Some(vec![7]), ..token }, ErrorKind::NotFound);
    }
}

#[test]
fn sources_that_are_none() {
    let scratch = Scratch::new("send-sources");
    let Some(of) = golden("snaps") else { return };
    of.unpack(scratch.path());
    let engine = engine();
    let pool = import_from(&engine, scratch.path(), &readonly()).unwrap();
    let refused = |name: &str, from: &str| {
        let (dataset, from) = (pool.dataset(name).unwrap(), pool.dataset(from).unwrap());
        let mut out = Vec::new();
        let e = dataset.send(Some(&from), PLAIN, &mut out, &mut |_| true).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::CrossDevice, "{name} from {}: {e}", from.name());
        assert_eq!(out, b"");
    };
    refused("snaps/promoted@one", "snaps/promoted@two");
    refused("snaps/promoted@one", "snaps/promoted@one");
    // The caller ends it, or its output does.
    let dataset = pool.dataset("snaps/promoted@one").unwrap();
    let mut out = Vec::new();
    let e = dataset.send(None, ALL, &mut out, &mut |bytes| bytes < 100_000).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Interrupted);
    assert!((100_000..20_000_000).contains(&out.len()));
    let mut short = std::io::Cursor::new(vec![0; 50_000]);
    let mut full: &mut [u8] = short.get_mut();
    let e = dataset.send(None, ALL, &mut full, &mut |_| true).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io, "{e}");
}
