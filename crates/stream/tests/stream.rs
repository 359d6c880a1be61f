//! Streams against the bytes and the text of OpenZFS: those of chapter 07, and, where they are,
//! the golden streams.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::collections::{HashMap, HashSet};
use std::io::{Cursor, Read};

use base::ErrorKind;
use codec::compress::Compression;
use ondisk::endian::Endian;
use proptest::prelude::*;
use stream::{
    Begin, Dump, DumpOptions, End, Features, Free, FreeObjects, HEADER_SIZE, HeaderKind, Object,
    PackageDataset, PackageHeader, ResumeToken, Selected, StreamReader, StreamRecord, StreamWriter,
    TO_THE_END, Write, WriteByRef, WriteEmbedded,
};

const GUID: u64 = 0x1122_3344_5566_7788;

/// The volume of chapter 07 §17.
fn worked() -> Vec<(StreamRecord, Vec<u8>)> {
    let features = Features::LZ4.with(Features::EMBED_DATA);
    let begin = Begin {
        creation_time: 0x6592_0080,
        objset_type: 3,
        flags: 0xC,
        to_guid: GUID,
        ..Begin::new(HeaderKind::Substream, features, "tank/v@s").unwrap()
    };
    let object = |object, object_type| {
        StreamRecord::Object(Object {
            object,
            object_type,
            block_size: 512,
            slots: 1,
            to_guid: GUID,
            ..Object::default()
        })
    };
    let free =
        |object, offset, length| StreamRecord::Free(Free { object, offset, length, to_guid: GUID });
    let data: Vec<u8> = (0..512u32).map(|i| (7 * i + 3) as u8).collect();
    let mut write = Write {
        object: 1,
        object_type: 23,
        logical_size: 512,
        to_guid: GUID,
        checksum_type: 7,
        key_prop: 0x2_0000_0000,
        ..Write::default()
    };
    let hex = |text: &str| -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
            .collect()
    };
    let words = hex("8040c03f3f000000c08bf392ba0f00000026940b55a60200e0feb0b11c4e5600");
    for (word, bytes) in write.key_checksum.iter_mut().zip(words.chunks(8)) {
        *word = u64::from_le_bytes(bytes.try_into().unwrap());
    }
    let embedded = |object, offset, physical_size| {
        StreamRecord::WriteEmbedded(WriteEmbedded {
            object,
            offset,
            length: 512,
            to_guid: GUID,
            compression: 15,
            logical_size: 512,
            physical_size,
            ..WriteEmbedded::default()
        })
    };
    let mut small = hex("000000105f6f68656c6c0500ffe450656c6c6f68");
    small.resize(24, 0);
    let mut zap =
        hex("000000252103000100338055a10a000f02001d180831004873697a6510000f0200ff8b500000000000");
    zap.resize(48, 0);
    vec![
        (StreamRecord::Begin(begin), vec![]),
        (object(1, 23), vec![]),
        (free(1, 1536, TO_THE_END), vec![]),
        (StreamRecord::Write(write), data),
        (free(1, 512, 512), vec![]),
        (embedded(1, 1024, 20), small),
        (object(2, 24), vec![]),
        (free(2, 512, TO_THE_END), vec![]),
        (embedded(2, 0, 41), zap),
        (free(2, 512, 1024), vec![]),
        (StreamRecord::FreeObjects(FreeObjects { first: 3, count: 29, to_guid: GUID }), vec![]),
        (StreamRecord::End(End { to_guid: GUID, ..End::default() }), vec![]),
    ]
}

fn written(records: &[(StreamRecord, Vec<u8>)], order: Endian) -> Vec<u8> {
    let mut writer = StreamWriter::with_order(Vec::new(), order);
    records.iter().for_each(|(record, payload)| writer.write(record, payload).unwrap());
    writer.into_inner()
}

fn read_all(bytes: &[u8]) -> base::Result<Vec<(StreamRecord, Vec<u8>)>> {
    let mut reader = StreamReader::new(bytes);
    let mut all = Vec::new();
    while let Some(read) = reader.next_record()? {
        all.push((read.record, read.payload.to_vec()));
    }
    Ok(all)
}

#[test]
fn the_worked_substream_has_the_bytes_of_the_chapter() {
    let bytes = written(&worked(), Endian::Little);
    assert_eq!(bytes.len(), 4328);
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(word(16), 0xC0001);
    // The sum before the first record, that before the second, and those of the END.
    assert_eq!(word(312 + 280), 0x3_0719_fb92);
    assert_eq!(word(624 + 280), 0x6_b571_4b77);
    let end = [8, 16, 24, 32].map(|at| word(4016 + at));
    assert_eq!(
        end,
        [0x68_1fe8_6c2e, 0xe094_6703_63a4, 0x0119_5c5a_dcf3_d996, 0xf7ef_c7fc_02af_50a8]
    );
    assert_eq!(word(4016 + 280), 0x6a_e60a_1661);
    // Lengths, and nothing behind the end is read.
    let mut more = bytes.clone();
    more.extend(b"next");
    let mut reader = StreamReader::new(&more[..]);
    let mut count = 0;
    while !(count > 0 && reader.is_complete()) {
        let read = reader.next_record().unwrap().unwrap();
        read.record.check(Features::LZ4.with(Features::EMBED_DATA), 0xC).unwrap();
        count += 1;
    }
    assert_eq!((count, reader.offset()), (12, 4328));
    assert_eq!(reader.into_inner(), b"next");
}

#[test]
fn both_byte_orders_say_the_same() {
    let mut records = worked();
    let big = read_all(&written(&records, Endian::Big)).unwrap();
    let little = read_all(&written(&records, Endian::Little)).unwrap();
    // The sum at the end depends on the order of the words' bytes.
    let (Some((StreamRecord::End(a), _)), Some((StreamRecord::End(b), _))) =
        (big.last(), little.last())
    else {
        panic!("no end")
    };
    assert_ne!(a.checksum, b.checksum);
    records.pop();
    assert_eq!(big[..big.len() - 1], records[..]);
    assert_eq!(little[..little.len() - 1], records[..]);
}

#[test]
fn a_package_is_read_to_its_end() {
    let header = PackageHeader {
        to_snap: "s".into(),
        datasets: vec![(
            0x77,
            PackageDataset {
                name: "tank/v".into(),
                snaps: vec![("s".into(), GUID)],
                snap_props: vec![nvlist::NvList::new()],
                ..PackageDataset::default()
            },
        )],
        ..PackageHeader::default()
    };
    let payload = header.to_list().pack_xdr();
    assert_eq!(PackageHeader::parse(&payload).unwrap(), header);
    let begin = Begin::new(HeaderKind::Package, Features::default(), "tank/v@s").unwrap();
    let mut writer = StreamWriter::new(Vec::new());
    writer.write(&StreamRecord::Begin(begin), &payload).unwrap();
    writer.write(&StreamRecord::End(End::default()), &[]).unwrap();
    for (record, payload) in worked() {
        writer.write(&record, &payload).unwrap();
    }
    writer.finish_package().unwrap();
    let bytes = writer.into_inner();
    assert_eq!(read_all(&bytes).unwrap().len(), 2 + 12 + 1);
    for cut in [1, HEADER_SIZE, HEADER_SIZE + 40, bytes.len() - HEADER_SIZE, bytes.len() - 1] {
        let e = read_all(&bytes[..cut]).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Interrupted, "cut at {cut}: {e}");
    }
    // A copy without changes is the same package.
    let mut out = Vec::new();
    stream::drop_records(&bytes[..], &mut out, &HashSet::new()).unwrap();
    assert_eq!(out, bytes);
}

#[test]
fn what_is_misplaced_is_refused() {
    let records = worked();
    let refused = |records: &[(StreamRecord, Vec<u8>)]| {
        let e = read_all(&written(records, Endian::Little)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
    };
    refused(&records[1..]);
    refused(&[records[0].clone(), records[0].clone()]);
    let end = records.last().unwrap().clone();
    refused(&[end]);
    let package = Begin::new(HeaderKind::Package, Features::default(), "t@s").unwrap();
    refused(&[(StreamRecord::Begin(package), vec![]), records[1].clone()]);
    assert_eq!(read_all(b"").unwrap(), []);
    let long = "x".repeat(256);
    let e = Begin::new(HeaderKind::Substream, Features::default(), &long).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NameTooLong);
}

/// A byte changed in a record is found at that record or, in a BEGIN, at the next one.
#[test]
fn every_changed_byte_is_found() {
    let bytes = written(&worked(), Endian::Little);
    // Stored sums of zero are not compared, so none can become that by one change.
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 0x10;
        assert!(read_all(&bad).is_err(), "byte {at}");
    }
}

#[test]
fn limits_of_records() {
    let all = Features(!Features::RAW.0);
    let raw = Features(u64::MAX);
    let object = Object {
        object: 7,
        object_type: 19,
        bonus_type: 44,
        bonus_len: 168,
        block_size: 131_072,
        slots: 1,
        ..Object::default()
    };
    let fits = |o: Object| StreamRecord::Object(o).check(all, 0xC).is_ok();
    assert!(fits(object));
    assert!(!fits(Object { object: 0, ..object }));
    assert!(!fits(Object { object: 1 << 48, ..object }));
    assert!(!fits(Object { object: (1 << 48) - 1, slots: 2, ..object }));
    assert!(fits(Object { block_size: 16 << 20, ..object }));
    assert!(!fits(Object { block_size: 32 << 20, ..object }));
    assert!(!fits(Object { block_size: 513, ..object }));
    assert!(!fits(Object { block_size: 0, ..object }));
    assert!(!fits(Object { bonus_len: 321, ..object }));
    assert!(fits(Object { bonus_len: 832, slots: 2, ..object }));
    assert!(!fits(Object { bonus_type: 0, ..object }));
    assert!(!fits(Object { slots: 33, ..object }));
    assert!(!fits(Object { levels: 1, ..object }));
    assert!(!fits(Object { flags: 1, ..object }));
    let old = StreamRecord::Object(Object { block_size: 262_144, ..object });
    assert!(old.check(Features::default(), 0xC).is_err());
    assert!(StreamRecord::Object(Object { flags: 4, ..object }).check(all, 0).is_err());
    let shaped =
        Object { raw_bonus_len: 320, indirect_shift: 17, levels: 2, pointers: 1, ..object };
    assert!(StreamRecord::Object(shaped).check(raw, 0xC).is_ok());
    assert!(StreamRecord::Object(Object { pointers: 3, ..shaped }).check(raw, 0xC).is_err());
    assert!(StreamRecord::Object(Object { raw_bonus_len: 321, ..shaped }).check(raw, 0xC).is_err());

    let write = Write { object: 7, object_type: 19, logical_size: 4096, ..Write::default() };
    let fits = |w: Write, f| StreamRecord::Write(w).check(f, 0xC).is_ok();
    assert!(fits(write, Features::default()));
    assert!(!fits(Write { offset: u64::MAX - 10, ..write }, all));
    let packed = Write { compression: 15, compressed_size: 512, ..write };
    assert!(fits(packed, all) && !fits(packed, Features::COMPRESSED));
    assert!(!fits(Write { compressed_size: 4608, ..packed }, all));
    assert!(!fits(Write { compressed_size: 0, ..packed }, all));
    assert!(!fits(Write { compression: 99, ..packed }, all));
    assert!(fits(packed, raw) && !fits(write, raw));
    let len = |w| StreamRecord::Write(w).payload_len();
    assert!(len(Write { logical_size: u64::MAX, ..write }).is_err());
    assert!(len(Write { compressed_size: 514, ..packed }).is_err());

    let embedded = WriteEmbedded {
        object: 7,
        length: 512,
        compression: 15,
        logical_size: 512,
        physical_size: 112,
        ..WriteEmbedded::default()
    };
    let fits = |w, f| StreamRecord::WriteEmbedded(w).check(f, 0xC).is_ok();
    assert!(fits(embedded, all) && !fits(embedded, raw) && !fits(embedded, Features::LZ4));
    assert!(!fits(WriteEmbedded { physical_size: 113, ..embedded }, all));
    assert!(!fits(WriteEmbedded { logical_size: 513, ..embedded }, all));
    assert!(!fits(WriteEmbedded { offset: u64::MAX, ..embedded }, all));
    let spill = WriteEmbedded { offset: 0u64.wrapping_sub(1024), ..embedded };
    assert!(spill.is_spill() && fits(spill, all));
    let free = |offset, length| {
        StreamRecord::Free(Free { object: 1, offset, length, to_guid: 0 }).check(all, 0).is_ok()
    };
    assert!(free(5, TO_THE_END) && free(5, 10) && !free(5, TO_THE_END - 1));
}

#[test]
fn the_worked_token() {
    let text = "1-e83d0507a-e8-789c636064000310a500c4ec50360710e72765a5269740f80cd8e4d3d28a5381f\
                20c0b38e0f26c48f2499525a9c540fa80382756fd25f9e9a599290c0cf3d52cccde94f69c4096e704\
                cbe725e6a632301418ea9739141b324840f5c1dc9b9a9b949a929f0d36971b493c393fb7a028b5b81\
                828050700c4f91c2d";
    let token = ResumeToken::decode(text).unwrap();
    let expected = ResumeToken {
        object: 1,
        offset: 565_248,
        bytes: 595_904,
        to_guid: 0xc88c_75ec_3638_269f,
        to_name: "p1/v@s1".into(),
        embedded: true,
        compressed: true,
        ..ResumeToken::default()
    };
    assert_eq!(token, expected);
    assert_eq!(ResumeToken::decode(&token.encode()).unwrap(), expected);
    let changed = text.replace("63606400", "63606401");
    for bad in ["", "1-", "1-0-0-", "2-e83d0507a-e8-00", "1-x-e8-00", changed.as_str()] {
        let e = ResumeToken::decode(bad).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{bad}: {e}");
    }
}

fn blocks() -> Vec<(StreamRecord, Vec<u8>)> {
    let begin = Begin::new(HeaderKind::Substream, Features::SA_SPILL, "t/f@s").unwrap();
    let mut all = vec![(StreamRecord::Begin(begin), vec![])];
    for i in 0..4u64 {
        let write = Write {
            object: 9,
            object_type: 19,
            offset: i * 4096,
            logical_size: 4096,
            to_guid: 5,
            ..Write::default()
        };
        let data = (0..4096u32).map(|n| if i == 3 { ((n * n) >> 3) as u8 } else { i as u8 });
        all.push((StreamRecord::Write(write), data.collect()));
    }
    all.push((StreamRecord::End(End { to_guid: 5, ..End::default() }), vec![]));
    all
}

#[test]
fn recompressed_and_decompressed() {
    let plain = written(&blocks(), Endian::Little);
    for by in [Compression::Lz4, Compression::Gzip(6), Compression::from_name("zstd").unwrap()] {
        let mut small = Vec::new();
        stream::recompress(&plain[..], &mut small, by).unwrap();
        assert!(small.len() < plain.len() - 8192, "{by:?}");
        let records = read_all(&small).unwrap();
        let StreamRecord::Begin(begin) = records[0].0 else { panic!("no begin") };
        for (record, _) in &records {
            record.check(begin.features(), 0xC).unwrap();
        }
        let mut back = Vec::new();
        stream::recompress(&small[..], &mut back, Compression::Off).unwrap();
        let content = |bytes: &[u8]| {
            let all = read_all(bytes).unwrap();
            all.into_iter().map(|(_, payload)| payload).collect::<Vec<_>>()
        };
        assert_eq!(content(&back), content(&plain));
        // One record alone, and one whose compression is another.
        let at = Selected { object: 9, offset: 4096 };
        let mut failed = Vec::new();
        let mut out = Vec::new();
        let selected = HashMap::from([(at, by)]);
        let n = stream::decompress(&small[..], &mut out, &selected, |s| failed.push(s)).unwrap();
        assert_eq!((n, failed.len()), (1, 0));
        assert_eq!(content(&out)[2], content(&plain)[2]);
        let wrong = HashMap::from([(at, Compression::Lzjb)]);
        let mut out = Vec::new();
        let n = stream::decompress(&small[..], &mut out, &wrong, |s| failed.push(s)).unwrap();
        assert!(n + failed.len() as u64 == 1 && read_all(&out).is_ok());
    }
    let mut raw = blocks();
    raw[0].0 =
        StreamRecord::Begin(Begin::new(HeaderKind::Substream, Features::RAW, "t@s").unwrap());
    let e = stream::recompress(&written(&raw, Endian::Little)[..], Vec::new(), Compression::Lz4);
    assert_eq!(e.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn records_are_dropped_and_references_resolved() {
    let mut records = blocks();
    let last = records.len() - 1;
    let by = WriteByRef {
        object: 11,
        offset: 0,
        length: 4096,
        to_guid: 5,
        ref_guid: 5,
        ref_object: 9,
        ref_offset: 8192,
        ..WriteByRef::default()
    };
    records.insert(last, (StreamRecord::WriteByRef(by), vec![]));
    let bytes = written(&records, Endian::Little);
    let mut out = Vec::new();
    assert_eq!(stream::redup(Cursor::new(&bytes), &mut out).unwrap(), 1);
    let all = read_all(&out).unwrap();
    let (StreamRecord::Write(copied), data) = &all[last] else { panic!("no write") };
    assert_eq!((copied.object, copied.offset), (11, 0));
    assert_eq!(data, &records[3].1);
    let mut out = Vec::new();
    let selected = HashSet::from([Selected { object: 9, offset: 0 }]);
    assert_eq!(stream::drop_records(&bytes[..], &mut out, &selected).unwrap(), 1);
    assert_eq!(read_all(&out).unwrap().len(), records.len() - 1);
    let missing = WriteByRef { ref_guid: 6, ..by };
    records[last] = (StreamRecord::WriteByRef(missing), vec![]);
    let bytes = written(&records, Endian::Little);
    let e = stream::redup(Cursor::new(&bytes), Vec::new()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt);
}

/// Endless zeros behind `header`.
struct Endless<'a>(&'a [u8]);

impl Read for Endless<'_> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let n = self.0.read(to)?;
        if n > 0 {
            return Ok(n);
        }
        to.fill(0);
        Ok(to.len())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Any bytes in place of some of a stream: records or an error, in bounded memory.
    #[test]
    fn hostile_bytes(
        at in 0usize..4328,
        bytes in proptest::collection::vec(any::<u8>(), 1..64),
        sums in any::<bool>(),
    ) {
        let mut stream = written(&worked(), Endian::Little);
        for (i, byte) in bytes.into_iter().enumerate() {
            if let Some(to) = stream.get_mut(at + i) {
                *to = byte;
            }
        }
        let mut reader = StreamReader::new(Endless(&stream));
        if !sums {
            reader = reader.without_sums();
        }
        let mut count = 0;
        while let Ok(Some(read)) = reader.next_record() {
            let _ = read.record.check(Features(u64::MAX), u32::MAX);
            count += 1;
            prop_assert!(count < 100_000);
        }
        let mut out = Vec::new();
        let options = DumpOptions { records: true, data: true, ignores_sums: !sums };
        let _ = Dump::run(&stream[..], &mut out, options);
        let _ = stream::recompress(&stream[..], Vec::new(), Compression::Lz4);
        let _ = stream::redup(Cursor::new(&stream), Vec::new());
    }

    #[test]
    fn headers_are_as_they_were(mut header in proptest::collection::vec(any::<u8>(), HEADER_SIZE), ty in 0u8..11) {
        header[..4].copy_from_slice(&[ty, 0, 0, 0]);
        let header: [u8; HEADER_SIZE] = header.try_into().unwrap();
        let record = StreamRecord::parse(Endian::Little, &header).unwrap();
        for order in [Endian::Little, Endian::Big] {
            prop_assert_eq!(StreamRecord::parse(order, &record.encode(order)).unwrap(), record);
        }
        let _ = record.payload_len();
        let _ = record.check(Features(u64::MAX), u32::MAX);
    }

    #[test]
    fn tokens_are_as_they_were(
        numbers in any::<[u64; 5]>(),
        name in "[a-z/@:.]{1,200}",
        flags in any::<[bool; 4]>(),
        guids in proptest::option::of(proptest::collection::vec(any::<u64>(), 0..4)),
    ) {
        let token = ResumeToken {
            from_guid: flags[0].then_some(numbers[0]),
            object: numbers[1],
            offset: numbers[2],
            bytes: numbers[3],
            to_guid: numbers[4],
            to_name: name,
            large_blocks: flags[0],
            embedded: flags[1],
            compressed: flags[2],
            raw: flags[3],
            redact_snaps: guids.clone(),
            book_redact_snaps: guids,
        };
        prop_assert_eq!(ResumeToken::decode(&token.encode()).unwrap(), token);
    }
}
