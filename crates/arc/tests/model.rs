//! The cache under the shuttle scheduler, which tries many interleavings of its
//! threads: `RUSTFLAGS="--cfg shuttle" cargo test -p arc --test model`. Without the
//! flag this file is empty.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use arc::{Access, Block, Cache, CacheKind, Lookup, LookupRequest, ResidentBlock, SlotRef};
use base::rt::atomic::{AtomicU32, Ordering::Relaxed};
use base::rt::{self, Mutex};
use base::{Buf, BufMut};

/// Interleavings tried for each model.
const RUNS: usize = 2000;

fn block(len: usize, byte: u8) -> Buf {
    let mut buf = BufMut::alloc(len);
    buf.fill(byte);
    buf.freeze()
}

fn threads(n: u8, f: impl Fn(u8) + Send + Sync + 'static) {
    let f = Arc::new(f);
    let start = |i| {
        let f = Arc::clone(&f);
        rt::spawn("model", move || f(i)).unwrap()
    };
    let all: Vec<_> = (0..n).map(start).collect();
    for thread in all {
        assert!(thread.join().is_some());
    }
}

fn bytes_of(found: ResidentBlock) -> Buf {
    match found {
        ResidentBlock::Whole { whole, .. } => whole,
        ResidentBlock::Stored { stored, .. } => stored,
    }
}

/// The accounts must balance whatever happened.
fn settled<K: Copy + Eq + std::hash::Hash>(cache: &Cache<K>) {
    let s = cache.arc_stats();
    assert_eq!(s.data_size + s.metadata_size + s.hdr_size, s.size);
    assert_eq!(s.mru.size() + s.mfu.size() + s.uncached.size(), s.compressed_size);
    assert!(s.size <= s.c + s.held_data + s.held_metadata, "{} > {}", s.size, s.c);
}

#[test]
fn a_block_is_read_once_and_every_reader_gets_it() {
    let model = || {
        let cache = Arc::new(Cache::<u64>::of(1 << 20).unwrap());
        let reads = Arc::new(AtomicU32::new(0));
        let (c, r) = (Arc::clone(&cache), Arc::clone(&reads));
        threads(3, move |_| {
            let fill = || {
                r.fetch_add(1, Relaxed);
                Ok(block(4096, 7))
            };
            assert_eq!(c.get(1, CacheKind::Data, fill).unwrap()[0], 7);
        });
        assert_eq!(reads.load(Relaxed), 1);
        settled(&cache);
    };
    shuttle::check_random(model, RUNS);
}

#[test]
fn a_reader_that_fails_leaves_the_others_to_try() {
    let model = || {
        let cache = Arc::new(Cache::<u64>::of(1 << 20).unwrap());
        let c = Arc::clone(&cache);
        threads(3, move |i| {
            let fill = || {
                if i == 0 { Err(base::Error::corrupt("bad")) } else { Ok(block(512, 9)) }
            };
            let got = c.get(1, CacheKind::Metadata, fill);
            assert!(i == 0 || got.unwrap()[0] == 9);
        });
        settled(&cache);
    };
    shuttle::check_random(model, RUNS);
}

/// A block freed while a reader reads it is not kept.
#[test]
fn a_freed_block_does_not_come_back() {
    let model = || {
        let cache = Arc::new(Cache::<u64>::of(1 << 20).unwrap());
        let (began, freed) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (c, b, f) = (Arc::clone(&cache), Arc::clone(&began), Arc::clone(&freed));
        threads(3, move |i| {
            if i == 0 {
                let seen = b.load(Relaxed);
                c.remove(&5);
                f.store(seen, Relaxed);
                return;
            }
            if let Lookup::Miss(ticket) = c.lookup(5, LookupRequest::demand(CacheKind::Data)) {
                b.store(u32::from(i), Relaxed);
                (0..8).for_each(|_| rt::sleep(Duration::ZERO));
                let after = f.load(Relaxed) == u32::from(i);
                let kept = ticket.complete(Block::plain(block(4096, 5)));
                assert!(!after || kept.is_none(), "begun before, ended after: kept");
            }
        });
        settled(&cache);
    };
    shuttle::check_random(model, RUNS);
}

/// An address is freed and reused while readers hold references to its slot: they see
/// the old block or nothing, never the new one.
#[test]
fn references_survive_the_reuse_of_an_address() {
    type Key = (u64, u64);
    let model = || {
        let cache = Arc::new(Cache::<Key>::of(1 << 20).unwrap());
        let hint: Arc<Mutex<Option<(u64, SlotRef)>>> = Arc::default();
        let birth = Arc::new(AtomicU32::new(1));
        let (c, h, b) = (Arc::clone(&cache), Arc::clone(&hint), Arc::clone(&birth));
        threads(3, move |i| {
            let request = LookupRequest::demand(CacheKind::Data);
            if i == 0 {
                for new in 2..4u64 {
                    c.remove(&(1, new - 1));
                    c.insert((1, new), CacheKind::Data, Block::plain(block(512, new as u8)));
                    b.store(new as u32, Relaxed);
                }
                return;
            }
            for _ in 0..2 {
                let hinted = *h.lock();
                if let Some((birth, at)) = hinted
                    && let Some(found) = c.peek_at(at, request)
                {
                    assert_eq!(bytes_of(found)[0], birth as u8);
                }
                let now = u64::from(b.load(Relaxed));
                match c.lookup((1, now), request) {
                    Lookup::Hit(found) => {
                        let at = found.slot();
                        assert_eq!(bytes_of(found)[0], now as u8);
                        *h.lock() = Some((now, at));
                    }
                    Lookup::Miss(ticket) => {
                        ticket.complete(Block::plain(block(512, now as u8)));
                    }
                }
            }
        });
        settled(&cache);
    };
    shuttle::check_random(model, RUNS);
}

/// All operations at once in a cache that is too small.
#[test]
fn eviction_beside_hits_fronts_prefetch_and_tuning() {
    const BIG: usize = 256 << 10;
    let model = || {
        let cache = Arc::new(Cache::<u64>::of(1 << 20).unwrap());
        let c = Arc::clone(&cache);
        threads(3, move |i| {
            for n in 0..5u64 {
                let key = (n * 3 + u64::from(i) * 2) % 7;
                let access = if n == 3 { Access::Prefetch } else { Access::Demand };
                let request = LookupRequest { access, ..LookupRequest::demand(CacheKind::Data) };
                match c.lookup(key, request) {
                    Lookup::Hit(ResidentBlock::Whole { whole, .. }) => {
                        assert_eq!(whole[9], key as u8)
                    }
                    Lookup::Hit(ResidentBlock::Stored { at, stored, .. }) => {
                        assert_eq!(stored[9], key as u8);
                        c.install(at, block(BIG, key as u8), Duration::ZERO);
                    }
                    Lookup::Miss(ticket) => {
                        let stored = (key % 2 == 0).then(|| block(BIG / 4, key as u8));
                        let whole = block(BIG, key as u8);
                        ticket.complete(Block { stored, whole, ..Block::default() });
                    }
                }
                match (i, n) {
                    (1, 2) => c.hand_over(&key),
                    (2, 3) => drop(c.set_target(1 << 19)),
                    (2, 4) => c.clear(),
                    _ => {}
                }
            }
        });
        settled(&cache);
    };
    shuttle::check_random(model, RUNS);
}

/// A thread claims several blocks at once, fills some and drops the others, while readers read
/// all of them and one is freed: every reader gets every block, and nobody waits for ever.
#[test]
fn blocks_claimed_together_beside_readers() {
    let model = || {
        let cache = Arc::new(Cache::<u64>::of(1 << 20).unwrap());
        let c = Arc::clone(&cache);
        threads(3, move |i| {
            let ahead = LookupRequest {
                access: Access::Prefetch,
                ..LookupRequest::demand(CacheKind::Data)
            };
            if i == 2 {
                return c.remove(&1);
            }
            if i == 0 {
                let claims: Vec<_> =
                    (0..3).filter_map(|key| Some((key, c.claim(key, ahead)?))).collect();
                for (key, claim) in claims {
                    if key != 2 {
                        claim.complete(Block::plain(block(512, key as u8)));
                    }
                }
                return;
            }
            for key in (0..3).rev() {
                let got = c.get(key, CacheKind::Data, || Ok(block(512, key as u8)));
                assert_eq!(got.unwrap()[0], key as u8);
            }
        });
        settled(&cache);
    };
    shuttle::check_random(model, RUNS);
}
