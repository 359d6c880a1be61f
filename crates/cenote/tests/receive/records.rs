//! Single records: streams of the other byte order, objects that become others, blocks that are
//! kept as they came.

use cenote::inspect::ondisk::{Endian, ObjType, objtype::Byteswap, zap};
use cenote::stream::{
    FreeObjects, Object, StreamRecord, StreamWriter, Write, WriteEmbedded, begin_flags,
};
use cenote::{ErrorKind, NewObject, PropData, ReceiveOptions, SendOptions};
use testkit::golden_streams;

use super::hostile::{StreamPiece, assembled, pieces};
use super::{ALL, LARGE, TestPool, assert_same, content, noise, sent};

/// The same stream as a big-endian host would send it.
fn swapped(stream: &[u8]) -> Vec<u8> {
    let mut writer = StreamWriter::with_order(Vec::new(), Endian::Big);
    for (record, mut payload) in pieces(stream) {
        let of = match record {
            StreamRecord::Object(r) => r.bonus_type,
            StreamRecord::Write(r) => r.object_type,
            _ => 25,
        };
        match ObjType(of as u8).byteswap() {
            Byteswap::Zap => zap::byteswap(&mut payload, Endian::Little).unwrap(),
            Byteswap::Uint64 => payload.chunks_exact_mut(8).for_each(<[u8]>::reverse),
            _ => {}
        }
        writer.write(&record, &payload).unwrap();
    }
    writer.into_inner()
}

#[test]
fn the_other_byte_order() {
    let streams = golden_streams();
    let Some((_, full)) = streams.iter().find(|(name, _)| name == "full") else { return };
    let to = TestPool::new("swapped");
    to.receive("tank/little", full).unwrap();
    to.receive("tank/big", &swapped(full)).unwrap();
    assert_same((&to.pool, "tank/little@one"), (&to.pool, "tank/big@one"));
    to.examined();
}

/// Blocks in every form come as they were stored, in pools with other properties.
#[test]
fn blocks_are_kept_as_they_came() {
    for ashift in [9, 12] {
        let of = TestPool::of(&format!("kept-src{ashift}"), None, 1, 9);
        let to = TestPool::of(&format!("kept{ashift}"), None, 1, ashift);
        to.pool
            .create_filesystem("tank/plain", &[("compression".into(), PropData::Num(2))], None)
            .unwrap();
        for (name, compression) in
            [("lz4", 15), ("zstd", 16), ("gzip", 10), ("zle", 14), ("lzjb", 3)]
        {
            let fs = format!("tank/{name}");
            let props = [("compression".to_owned(), PropData::Num(compression))];
            of.pool.create_filesystem(&fs, &props, None).unwrap();
            let rw = of.pool.dataset(&fs).unwrap().open_rw().unwrap();
            for (i, size) in [512u32, 4096, 16384, 131_072, 1 << 20].into_iter().enumerate() {
                let id = rw.create(&NewObject { block_size: Some(size) }).unwrap();
                // Half of it compresses, a third fits into a pointer.
                let half: Vec<u8> =
                    (0..3 * size).map(|n| if n & 64 == 0 { 0 } else { n as u8 }).collect();
                rw.write(id, 0, &half).unwrap();
                rw.write(id, 4 * u64::from(size), &vec![b'x'; size as usize]).unwrap();
                rw.write(id, 6 * u64::from(size), &noise(i as u64, size as usize)).unwrap();
            }
            of.snapshot(&format!("{fs}@a"));
            for bits in 0..8 {
                let how = SendOptions {
                    large_blocks: bits & 1 != 0,
                    embedded: bits & 2 != 0,
                    compressed: bits & 4 != 0,
                    raw: false,
                };
                let stream = sent(&of.pool, &format!("{fs}@a"), None, how);
                let target = format!("tank/plain/{name}{bits}");
                to.receive(&target, &stream).unwrap();
                let copy = format!("{target}@a");
                if how.large_blocks {
                    assert_same((&of.pool, &format!("{fs}@a")), (&to.pool, &copy));
                }
                if ashift == 9 && how == ALL {
                    // Uncompressed here, but not what came compressed: the stream is the same.
                    let strip = |bytes: &[u8]| -> Vec<(StreamRecord, Vec<u8>)> {
                        let mut list = pieces(bytes);
                        list.remove(0);
                        list.retain(
                            |(r, _)| !matches!(r, StreamRecord::Write(w) if w.compression == 0),
                        );
                        list.retain(|(r, _)| !matches!(r, StreamRecord::Write(w) if ObjType(w.object_type as u8).is_metadata()));
                        list.retain(|(r, _)| !matches!(r, StreamRecord::End(_)));
                        list
                    };
                    let again = sent(&to.pool, &copy, None, ALL);
                    let (a, b) = (strip(&stream), strip(&again));
                    let packed = |list: &[StreamPiece]| {
                        list.iter()
                            .filter(|(r, _)| {
                                matches!(r, StreamRecord::Write(_) | StreamRecord::WriteEmbedded(_))
                            })
                            .count()
                    };
                    assert!(packed(&a) > 3, "{name}");
                    assert_eq!(packed(&a), packed(&b), "{name}");
                }
            }
        }
        to.examined();
    }
}

/// Builds streams by hand.
struct Builder {
    list: Vec<StreamPiece>,
}

impl Builder {
    fn of(stream: &[u8]) -> Builder {
        Builder { list: pieces(stream) }
    }

    fn insert(&mut self, record: StreamRecord, payload: Vec<u8>) {
        let at = self.list.len() - 1;
        self.list.insert(at, (record, payload));
    }

    /// A file of one block.
    fn file(&mut self, id: u64, slots: u8, block: u32, seed: u64) {
        let object = Object {
            object: id,
            object_type: 0x80,
            bonus_type: 0xc3,
            block_size: block,
            bonus_len: 8,
            slots,
            ..Object::default()
        };
        self.insert(StreamRecord::Object(object), vec![seed as u8; 8]);
        let write = Write {
            object: id,
            object_type: 0x80,
            logical_size: block.into(),
            checksum_type: 2,
            ..Write::default()
        };
        self.insert(StreamRecord::Write(write), noise(seed, block as usize));
    }

    fn free(&mut self, first: u64, count: u64) {
        self.insert(StreamRecord::FreeObjects(FreeObjects { first, count, to_guid: 0 }), vec![]);
    }

    fn end(self) -> Vec<u8> {
        assembled(&self.list)
    }
}

/// Numbers are reused with other types, sizes and slots, within one stream and across streams.
#[test]
fn objects_become_others() {
    let of = TestPool::new("become-src");
    let props = [("dnodesize".to_owned(), PropData::Num(1))];
    of.pool.create_filesystem("tank/src", &props, None).unwrap();
    let rw = of.pool.dataset("tank/src").unwrap().open_rw().unwrap();
    rw.create(&NewObject::default()).unwrap();
    of.snapshot("tank/src@a");
    of.snapshot("tank/src@b");
    of.snapshot("tank/src@c");
    let to = TestPool::new("become");
    let mut first = Builder::of(&sent(&of.pool, "tank/src@a", None, LARGE));
    for (id, slots, block) in
        [(320, 1, 512), (321, 1, 512), (322, 1, 1024), (324, 4, 4096), (328, 1, 512)]
    {
        first.file(id, slots, block, id);
    }
    let first = first.end();
    to.receive("tank/x", &first).unwrap();
    let mut second = Builder::of(&sent(&of.pool, "tank/src@b", Some("tank/src@a"), LARGE));
    // A larger dnode over two objects, a smaller one, another block size, and a number that was
    // freed by this very stream.
    second.file(320, 3, 8192, 1);
    second.file(324, 1, 512, 2);
    second.file(325, 1, 512, 3);
    second.free(328, 1);
    second.file(328, 2, 131_072, 4);
    to.receive("tank/x", &second.end()).unwrap();
    let got = content(&to.pool, "tank/x@b");
    let shape = |id: u64| got.get(&id).map(|of| (of.0.slots, of.0.block_size, of.2.len()));
    assert_eq!(shape(320), Some((3, 8192, 1)));
    assert_eq!((shape(321), shape(322)), (None, None));
    assert_eq!(shape(324), Some((1, 512, 1)));
    assert_eq!(shape(325), Some((1, 512, 1)));
    assert_eq!(shape(328), Some((2, 131_072, 1)));
    assert_eq!(got[&328].1, [4; 8]);
    // What is in the middle of a dnode is no object.
    let mut third = Builder::of(&sent(&of.pool, "tank/src@c", Some("tank/src@b"), LARGE));
    third.file(321, 1, 512, 9);
    let before = to.datasets();
    let e = to.receive("tank/x", &third.end()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
    assert_eq!(to.datasets(), before);
    to.examined();
}

/// Types that the pool interprets, and writes to nothing, are refused.
#[test]
fn records_that_are_refused() {
    let of = TestPool::new("refused-src");
    of.pool.create_filesystem("tank/src", &[], None).unwrap();
    of.snapshot("tank/src@a");
    let to = TestPool::new("refused");
    let full = sent(&of.pool, "tank/src@a", None, ALL);
    let refused = |record: StreamRecord, payload: Vec<u8>| {
        let mut builder = Builder::of(&full);
        builder.file(1000, 1, 512, 1);
        builder.insert(record, payload);
        let before = to.datasets();
        let e = to.receive("tank/x", &builder.end()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{record:?}: {e}");
        assert_eq!(to.datasets(), before);
    };
    for object_type in [9, 10, 11, 54, 200_000] {
        let object = Object { object: 1001, object_type, block_size: 512, ..Object::default() };
        refused(StreamRecord::Object(object), vec![]);
    }
    let write = Write {
        object: 1001,
        object_type: 0x80,
        logical_size: 512,
        checksum_type: 2,
        ..Write::default()
    };
    refused(StreamRecord::Write(write), vec![1; 512]);
    // Out of order.
    refused(StreamRecord::Write(Write { object: 999, ..write }), vec![1; 512]);
    // Not what it says.
    let packed = Write { object: 1000, compression: 15, compressed_size: 256, ..write };
    refused(StreamRecord::Write(packed), vec![0xff; 256]);
    let embedded = WriteEmbedded {
        object: 1000,
        length: 512,
        compression: 15,
        logical_size: 512,
        physical_size: 40,
        ..WriteEmbedded::default()
    };
    refused(StreamRecord::WriteEmbedded(embedded), vec![0xff; 40]);
    refused(
        StreamRecord::WriteEmbedded(WriteEmbedded { embedded_type: 1, ..embedded }),
        vec![0; 40],
    );
    // A stream whose records about free numbers are incomplete cannot become a clone.
    let mut list = pieces(&full);
    let StreamRecord::Begin(begin) = &mut list[0].0 else { panic!() };
    begin.flags &= !begin_flags::FREE_RECORDS;
    to.receive("tank/o", &full).unwrap();
    let options = ReceiveOptions { origin: Some("tank/o@a".into()), ..ReceiveOptions::default() };
    let e = to.receive_with("tank/x", &options, &assembled(&list)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
    to.examined();
}
