//! Prefetch, observed from outside: blocks are in memory before a reader requests them, and
//! the counters show why.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::sync::Arc;
use std::time::Duration;

use base::rt;
use cenote::inspect::dmu::{PrefetchMode, Zfetch};
use cenote::inspect::ondisk;
use cenote::inspect::zio::prefetch::Tunable;
use cenote::{Engine, ErrorKind, File, FileSystem, Io, ObjectId};
use testkit::{Golden, ManifestEntry, Scratch, engine, golden, import_from, readonly};

const POOL: &str = "clonedblk";
/// A read of the pool that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(20);

struct PrefetchFixture {
    engine: Arc<Engine>,
    fs: Arc<FileSystem>,
    golden: Golden,
    _pool: Arc<cenote::Pool>,
    _scratch: Scratch,
}

fn setup() -> Option<PrefetchFixture> {
    let golden = golden(POOL)?;
    let scratch = Scratch::new("prefetch");
    golden.unpack(scratch.path());
    let engine = engine();
    let pool = import_from(&engine, scratch.path(), &readonly()).unwrap();
    let fs = pool.dataset(POOL).unwrap().open_fs().unwrap();
    engine.drop_cache();
    Some(PrefetchFixture { engine, fs, golden, _pool: pool, _scratch: scratch })
}

impl PrefetchFixture {
    fn entries(&self) -> Vec<ManifestEntry> {
        self.golden.manifests().into_iter().find(|m| m.0 == POOL).unwrap().1
    }

    /// The file with the most blocks that need a read, and how many.
    fn large_file(&self) -> (ObjectId, File, u64) {
        let files = self.entries().into_iter().filter(|e| e.path().contains(&b'/'));
        let blocks = |e: &ManifestEntry| {
            let file = self.fs.open_file(ObjectId(e.ino), Io::WAIT).ok()?;
            let stored = |b: &u64| {
                let bp = file.object().block_pointer(0, *b, Io::WAIT).unwrap();
                matches!(bp, ondisk::BlkPtr::Block(_))
            };
            Some(((0..1000).take_while(stored).count() as u64, e.ino))
        };
        let (blocks, ino) = files.filter_map(|e| blocks(&e)).max().unwrap();
        assert!(blocks >= 8, "the fixture has a file of many blocks, but {blocks}");
        self.engine.drop_cache();
        (ObjectId(ino), self.fs.open_file(ObjectId(ino), Io::WAIT).unwrap(), blocks)
    }

    /// Waits until no prefetch is in flight.
    fn settle(&self) {
        let start = rt::now();
        while self.engine.prefetch().stats().io_active > 0 {
            assert!(start.elapsed() < PATIENCE, "reads ahead do not end");
            rt::sleep(Duration::from_millis(1));
        }
    }
}

/// How many of the reads found their block in memory.
fn found(s: &PrefetchFixture, file: &File, blocks: impl Iterator<Item = u64>) -> (u64, u64) {
    let (mut n, mut hits, bs) = (0, 0, file.object().block_size());
    for block in blocks {
        n += 1;
        match file.borrow(block * bs, 1, Io::MEMORY) {
            Ok(_) => hits += 1,
            Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
        }
        file.borrow(block * bs, 1, Io::WAIT).unwrap();
        s.settle();
    }
    (hits, n)
}

#[test]
fn forward_backward_and_strided_readers_find_their_blocks() {
    let Some(s) = setup() else { return };
    let (id, first, blocks) = s.large_file();
    let (hits, n) = found(&s, &first, 0..blocks);
    assert!(hits + 2 >= n, "forward: {hits} of {n}");
    for (name, order) in [
        ("backward", (0..blocks).rev().collect::<Vec<_>>()),
        ("every other", (0..blocks).step_by(2).collect()),
    ] {
        s.engine.drop_cache();
        let file = s.fs.open_file(id, Io::WAIT).unwrap();
        let (hits, n) = found(&s, &file, order.into_iter());
        assert!(hits + 3 >= n && hits > 0, "{name}: {hits} of {n}");
    }
    drop(first);
    let stats = s.engine.prefetch().stats();
    assert!(stats.hits > 0 && stats.io_issued > 0 && stats.io_active == 0, "{stats:?}");

    s.engine.prefetch().set(Tunable::Disable, 1).unwrap();
    s.engine.drop_cache();
    let file = s.fs.open_file(id, Io::WAIT).unwrap();
    assert_eq!(found(&s, &file, 0..blocks).0, 0, "nothing is read ahead when it is off");
}

#[test]
fn listing_a_directory_reads_its_dnodes() {
    let Some(s) = setup() else { return };
    let dir = s.fs.walk(b"bigdir", Io::WAIT).unwrap();
    let children: Vec<u64> =
        s.entries().iter().filter(|e| e.path().starts_with(b"bigdir/")).map(|e| e.ino).collect();
    assert!(children.len() > 100);
    for off in [false, true] {
        s.engine.prefetch().set(Tunable::Disable, u64::from(off)).unwrap();
        s.engine.drop_cache();
        s.fs.objset().drop_dnodes();
        let mut cookie = Some(0);
        while let Some(at) = cookie {
            cookie = s.fs.readdir(dir, at, Io::WAIT).unwrap().next;
            s.settle();
        }
        let known = children.iter().filter(|id| s.fs.attrs(ObjectId(**id), Io::MEMORY).is_ok());
        let known = known.count();
        if off {
            assert!(known < children.len() / 2, "{known}: the test shows nothing");
        } else {
            assert_eq!(known, children.len(), "all are in memory");
        }
    }
}

#[test]
fn looking_up_names_in_order_reads_what_follows() {
    let Some(s) = setup() else { return };
    let dir = s.fs.walk(b"bigdir", Io::WAIT).unwrap();
    let mut names = Vec::new();
    let mut cookie = Some(0);
    while let Some(at) = cookie {
        let page = s.fs.readdir(dir, at, Io::WAIT).unwrap();
        names.extend(
            page.entries.into_iter().map(|e| (e.name, e.id)).skip_while(|e| e.0[0] == b'.'),
        );
        cookie = page.next;
    }
    s.settle();
    s.engine.drop_cache();
    s.fs.objset().drop_dnodes();
    // What is tested: the walk is found out again after its progress was forgotten, which is
    // kept for a second.
    rt::sleep(Duration::from_millis(1100));
    for (name, id) in &names[..6] {
        assert_eq!(s.fs.lookup(dir, name, Io::WAIT).unwrap().id, *id);
    }
    s.settle();
    let known = names.iter().filter(|n| s.fs.attrs(n.1, Io::MEMORY).is_ok()).count();
    assert!(known * 10 >= names.len() * 8, "{known} of {}", names.len());
}

/// A reader that becomes sequential after very many random reads is followed, also when the
/// prefetched blocks are in memory.
#[test]
fn a_stream_after_random_reads() {
    let Some(s) = setup() else { return };
    let id = s.fs.walk(b"sparse/b", Io::WAIT).unwrap();
    let object = s.fs.open_file(id, Io::WAIT).unwrap().object().clone();
    let (blocks, bs) = (object.dnode().max_blkid, object.block_size());
    let zfetch = Zfetch::new(Arc::clone(s.engine.prefetch()), PrefetchMode::All);
    for i in 0..1000u64 {
        let block = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % blocks;
        zfetch.advance(&object, block * bs, 1, false, false);
    }
    let before = s.engine.prefetch().stats();
    assert!(before.misses > 64 && before.hits == 0, "{before:?}");
    for block in 0..100 {
        zfetch.advance(&object, (blocks / 2 + block) * bs, 1, block < 4, false);
        s.settle();
    }
    drop(zfetch);
    s.settle();
    let after = s.engine.prefetch().stats();
    assert!(after.hits >= 96 && after.io_issued > 100, "{after:?}");
}
