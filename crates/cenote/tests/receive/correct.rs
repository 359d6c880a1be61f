//! Corrective receives: damaged blocks of a snapshot are repaired from a stream of it.

use cenote::inspect::dmu::{Io, Objset};
use cenote::inspect::ondisk::blkptr::Block;
use cenote::inspect::vdev::{WritePriority, WriteReq};
use cenote::stream::{StreamRecord, Write};
use cenote::{
    CorrectedBlocks, ErrorKind, NewObject, ObjectId, Pool, PropData, ReceiveOptions, Result,
    SendOptions,
};
use std::sync::Arc;
use testkit::{Rng, side_by_side};

use super::hostile::{assembled, pieces};
use super::made::{made, some_objects};
use super::{ALL, LARGE, PLAIN, TestPool, content, kinds, noise, sent, text};

/// The object set of a snapshot, as it is stored.
fn objset(pool: &Pool, name: &str) -> Arc<Objset> {
    let mut found = None;
    pool.spa()
        .root_dir()
        .unwrap()
        .walk_all(&mut |dir| {
            if let Some(head) = dir.head()? {
                for snap in head.snapshots()? {
                    if snap.name() == name {
                        let zio = Arc::clone(pool.spa().zio());
                        let (id, bp) = (snap.object(), snap.phys().bp);
                        found = Some(Objset::open_stored(zio, id, bp, Io::WAIT)?);
                    }
                }
            }
            Ok(())
        })
        .unwrap();
    found.unwrap()
}

/// The data blocks of a snapshot's plain objects, with object and number, that were born after
/// a txg.
fn blocks(pool: &Pool, name: &str, after: u64) -> Vec<(u64, u64, Block)> {
    let os = objset(pool, name);
    let (mut out, mut at) = (Vec::new(), ObjectId(0));
    while let Some(id) = os.next_object(at, Io::WAIT).unwrap() {
        at = id;
        let object = os.object(id, Io::WAIT).unwrap();
        if object.object_type().is_metadata() {
            continue;
        }
        for blkid in 0..=object.dnode().max_blkid {
            let bp = object.block_pointer(0, blkid, Io::WAIT).unwrap();
            if let Some(block) = bp.as_block().filter(|block| block.head.birth.0 > after) {
                out.push((id.0, blkid, *block));
            }
        }
    }
    out
}

/// Overwrites all copies of a block with noise.
fn spoil(pool: &Pool, block: &Block) {
    let tree = pool.spa().zio().tree();
    for dva in block.dvas() {
        let data = base::BufMut::copy_of(&noise(dva.offset, block.psize.0 as usize)).freeze();
        let req = WriteReq {
            vdev: dva.vdev,
            offset: dva.offset,
            data,
            birth: block.effective_physical_birth(),
            priority: WritePriority::SyncWrite,
        };
        let (send, receive) = std::sync::mpsc::channel();
        tree.write(req, move |report| send.send(report.result.is_ok()).unwrap());
        assert!(receive.recv().unwrap());
    }
    let tops: Vec<_> = tree.top_ids().collect();
    tree.flush(&tops);
}

fn corrected(pool: &Pool, target: &str, stream: &[u8]) -> Result<CorrectedBlocks> {
    let options = ReceiveOptions { correct: true, ..ReceiveOptions::default() };
    let names = cenote::ReceiveNames::Whole;
    let got = pool.receive(target, names, &options, stream)?;
    Ok(got[0].corrected.unwrap())
}

/// A pool with `tank/src@a` and `@b`, compressed by several functions.
fn source(
    name: &str,
    kind: Option<cenote::create::NewKind>,
    width: usize,
    ashift: u64,
) -> TestPool {
    let of = TestPool::of(name, kind, width, ashift);
    // zstd-7: its level is in no block pointer.
    let props = [("compression".to_owned(), PropData::Num(16 | 7 << 7))];
    of.pool.create_filesystem("tank/src", &props, None).unwrap();
    let rw = of.pool.dataset("tank/src").unwrap().open_rw().unwrap();
    let mut rng = Rng::new(5);
    let mut content = |n: usize| -> Vec<u8> {
        (0..n).map(|i| if i % 64 < 40 { (i / 64) as u8 } else { rng.number() as u8 }).collect()
    };
    for (size, blocks) in [(16_384, 8), (131_072, 3), (4096, 5)] {
        let id = rw.create(&NewObject { block_size: Some(size) }).unwrap();
        for block in 0..blocks {
            rw.write(id, block * u64::from(size), &content(size as usize)).unwrap();
        }
        // What does not compress.
        rw.write(id, blocks * u64::from(size), &noise(blocks, size as usize)).unwrap();
    }
    of.snapshot("tank/src@a");
    let id = rw.create(&NewObject { block_size: Some(16_384) }).unwrap();
    rw.write(id, 0, &content(50_000)).unwrap();
    of.snapshot("tank/src@b");
    of
}

#[test]
fn damaged_blocks_are_repaired() {
    let mut cases: Vec<_> =
        kinds().into_iter().flat_map(|kind| [(9, kind.clone()), (12, kind)]).collect();
    if std::env::var_os("CENOTE_NIGHTLY").is_none() {
        cases = vec![cases[1].clone(), cases[2].clone(), cases[7].clone()];
    }
    side_by_side(&cases, |(ashift, (name, kind, width))| {
        let mut of = source(&format!("correct-{name}-{ashift}"), kind.clone(), *width, *ashift);
        let full = |options: SendOptions| sent(&of.pool, "tank/src@a", None, options);
        let streams = [full(PLAIN), full(LARGE), full(ALL)];
        let incremental = sent(&of.pool, "tank/src@b", Some("tank/src@a"), ALL);
        let good = content(&of.pool, "tank/src@b");
        for (n, stream) in streams.iter().enumerate() {
            let all = blocks(&of.pool, "tank/src@a", 0);
            let some: Vec<_> = all.iter().skip(n).step_by(2).collect();
            assert!(some.len() > 5);
            some.iter().for_each(|(_, _, block)| spoil(&of.pool, block));
            // With an empty cache.
            of = of.crashed();
            let snapshot = of.pool.dataset("tank/src@a").unwrap();
            let mut sink = Vec::new();
            let read = snapshot.send(None, LARGE, &mut sink, &mut |_| true);
            assert_eq!(read.unwrap_err().kind(), ErrorKind::Checksum, "{name}");
            let os = objset(&of.pool, "tank/src@a");
            for (id, blkid, _) in &some {
                let object = os.object(ObjectId(*id), Io::WAIT).unwrap();
                assert!(object.read_block(*blkid, Io::WAIT).is_err());
            }
            assert!(!of.pool.data_errors().unwrap().is_empty());
            let done = corrected(&of.pool, "tank/src@a", stream).unwrap();
            assert_eq!(done.blocks, some.len() as u64, "{name} {n}");
            assert_eq!(done.bytes, some.iter().map(|(.., b)| b.psize.0).sum::<u64>());
            assert_eq!(of.pool.data_errors().unwrap(), [], "{name} {n}");
            // Once more: there is nothing to do.
            let again = corrected(&of.pool, "tank/src", stream).unwrap();
            assert_eq!(again, CorrectedBlocks::default());
        }
        let birth = of.pool.dataset("tank/src@a").unwrap().createtxg();
        let new = blocks(&of.pool, "tank/src@b", birth);
        assert!(!new.is_empty());
        new.iter().for_each(|(_, _, block)| spoil(&of.pool, block));
        let done = corrected(&of.pool, "tank/src@b", &incremental).unwrap();
        assert_eq!(done.blocks, new.len() as u64, "{name}");
        let of = of.crashed();
        assert!(content(&of.pool, "tank/src@b") == good, "{name}");
        of.judged();
    });
}

/// Streams of something else, and streams that lie: nothing is written.
#[test]
fn what_cannot_be_corrected() {
    let of = source("correct-refused", None, 1, 12);
    let a = sent(&of.pool, "tank/src@a", None, ALL);
    let b = sent(&of.pool, "tank/src@b", None, ALL);
    let refused = |target: &str, stream: &[u8], kind: ErrorKind, words: &str| {
        let e = corrected(&of.pool, target, stream).unwrap_err();
        assert_eq!(e.kind(), kind, "{e}");
        assert!(text(&e).contains(words), "{words}: {e}");
    };
    let none = "destination 'tank/none@a' does not exist";
    refused("tank/none", &a, ErrorKind::NotFound, none);
    refused("tank/src@b", &a, ErrorKind::Invalid, "the stream is not one of snapshot 'tank/src@b'");
    refused("tank/src@a", &b, ErrorKind::Invalid, "not one of snapshot");
    refused("tank/src@a", &a[..a.len() - 1000], ErrorKind::Interrupted, "incomplete");
    of.receive("tank/made", &made((11, 111), None, &some_objects())).unwrap();
    // A stream of other content under the same guid.
    let all = blocks(&of.pool, "tank/src@a", 0);
    let mut list = pieces(&a);
    for (record, payload) in &mut list {
        if let StreamRecord::Write(Write { object, .. }) = record
            && *object == all[0].0
        {
            payload.fill(7);
        }
    }
    spoil(&of.pool, &all[0].2);
    let words = "corrective receive was not able to reconstruct the data needed for healing.";
    refused("tank/src@a", &assembled(&list), ErrorKind::Checksum, words);
    let zio = of.pool.spa().zio();
    assert!(zio.read_physical(&all[0].2).is_err() && zio.read_physical(&all[1].2).is_ok());
    assert_eq!(corrected(&of.pool, "tank/src@a", &a).unwrap().blocks, 1);
    of.judged();
}

/// Encrypted blocks are repaired from raw streams, without the key.
#[test]
fn encrypted_blocks_are_repaired() {
    let to = TestPool::of("correct-raw", Some(cenote::create::NewKind::Mirror), 2, 12);
    let full = made((11, 111), None, &some_objects());
    to.receive("tank/made", &full).unwrap();
    let all = blocks(&to.pool, "tank/made@s", 0);
    assert!(all.len() > 30);
    all.iter().for_each(|(_, _, block)| spoil(&to.pool, block));
    let plain = source("correct-raw-plain", None, 1, 12);
    let a = sent(&plain.pool, "tank/src@a", None, ALL);
    let mut list = pieces(&a);
    let StreamRecord::Begin(begin) = &mut list[0].0 else { panic!() };
    begin.to_guid = 11;
    let e = corrected(&to.pool, "tank/made@s", &assembled(&list)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Locked, "{e}");
    assert!(text(&e).contains("key must be loaded to do a non-raw corrective recv"), "{e}");
    let done = corrected(&to.pool, "tank/made@s", &full).unwrap();
    assert_eq!(done.blocks, all.len() as u64);
    to.judged();
}
