use std::collections::HashMap;

use base::rt::atomic::AtomicU32;
use base::{BufMut, Error};
use proptest::prelude::*;

use super::*;
use crate::PolicyKind;

const MIB: u64 = 1 << 20;

fn cache(c: u64) -> Cache<u64> {
    Cache::new(Config::sized(MIB, c), c).unwrap()
}

fn block(len: usize, byte: u8) -> Buf {
    let mut b = BufMut::alloc(len);
    b.fill(byte);
    b.freeze()
}

fn byte_of(key: u64) -> u8 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Reads `key`; returns whether it was in memory. The content must belong to the key.
fn read(cache: &Cache<u64>, key: u64, kind: CacheKind, access: Access, len: usize) -> bool {
    let request = LookupRequest { kind, access, copies: Copies::No, keep: true };
    match cache.lookup(key, request) {
        Lookup::Hit(ResidentBlock::Whole { whole, .. }) => {
            assert!(whole.len() == len && whole[len / 2] == byte_of(key));
            true
        }
        Lookup::Hit(ResidentBlock::Stored { at, stored, again, .. }) => {
            assert!(stored[0] == byte_of(key));
            if cache.wants_front(at, again) {
                cache.install(at, block(len, byte_of(key)), Duration::from_micros(20));
            }
            true
        }
        Lookup::Miss(ticket) => {
            ticket.complete(Block::plain(block(len, byte_of(key))));
            false
        }
    }
}

fn data(cache: &Cache<u64>, key: u64) -> bool {
    read(cache, key, CacheKind::Data, Access::Demand, 8192)
}

fn hits(n: impl Iterator<Item = bool>) -> f64 {
    let (mut hit, mut all) = (0u32, 0u32);
    for h in n {
        (hit, all) = (hit + u32::from(h), all + 1);
    }
    f64::from(hit) / f64::from(all.max(1))
}

fn fits(cache: &Cache<u64>) {
    let stats = cache.arc_stats();
    assert!(stats.size <= stats.c, "{} of {}", stats.size, stats.c);
    let bytes = stats.data_size + stats.metadata_size + stats.hdr_size + stats.anon.size();
    assert_eq!(bytes, stats.size);
    assert_eq!(stats.compressed_size + stats.overhead_size, stats.data_size + stats.metadata_size);
    let lists = stats.mru.size() + stats.mfu.size() + stats.uncached.size();
    assert_eq!(lists, stats.compressed_size);
}

#[test]
fn blocks_inserted_together_are_there() {
    let cache = cache(16 * MIB);
    for round in 0..4 {
        let keys = round * 100..round * 100 + 200;
        let kind = |key| if key % 3 == 0 { CacheKind::Metadata } else { CacheKind::Data };
        let blocks = keys.clone().map(|key| {
            // Every key except the first hundred replaces one.
            (key, kind(key), Block::plain(block(8192, byte_of(key))))
        });
        cache.insert_all(blocks.collect());
        fits(&cache);
        for key in keys {
            assert!(read(&cache, key, kind(key), Access::Demand, 8192), "{key}");
        }
    }
    cache.insert_all(Vec::new());
    // More than fits.
    let many =
        (1000..6000).map(|key| (key, CacheKind::Data, Block::plain(block(8192, byte_of(key)))));
    cache.insert_all(many.collect());
    fits(&cache);
    let there =
        |key| matches!(cache.lookup(key, LookupRequest::demand(CacheKind::Data)), Lookup::Hit(_));
    assert!(hits((1000..6000).map(there)) > 0.2);
}

#[test]
fn many_threads_missing_one_key_read_it_once() {
    // In virtual time: all are there before the read ends.
    let run = base::rt::sim::run(1, missing_threads);
    assert_eq!(run.outcome, base::rt::sim::Outcome::Done(()));
}

fn missing_threads() {
    let cache = cache(MIB);
    let reads = AtomicU32::new(0);
    base::rt::fan_out(16, |_| {
        let buf = cache.get(7u64, CacheKind::Data, || {
            reads.fetch_add(1, Relaxed);
            base::rt::sleep(Duration::from_millis(20));
            Ok(block(4096, 7))
        });
        assert_eq!(buf.unwrap()[0], 7);
    });
    assert_eq!(reads.load(Relaxed), 1);
    let stats = cache.arc_stats();
    assert_eq!(stats.demand_data.misses, 1);
    // A thread that had to wait looks again, and hits.
    assert_eq!(stats.demand_data.hits, 15);
    assert!(stats.demand_data.iohits <= 15);
}

#[test]
fn a_failed_fill_leaves_the_next_reader_to_try() {
    let cache = cache(MIB);
    assert!(cache.get(1, CacheKind::Data, || Err(Error::corrupt("bad"))).is_err());
    let request = LookupRequest::demand(CacheKind::Data);
    assert!(cache.peek(&1, request).is_none());
    assert_eq!(cache.get(1, CacheKind::Data, || Ok(block(512, 3))).unwrap()[0], 3);
    assert!(
        matches!(cache.peek(&1, request), Some(ResidentBlock::Whole { whole, .. }) if whole[0] == 3)
    );
    cache.remove(&1);
    assert!(cache.peek(&1, request).is_none());
}

/// A cache of 64 MiB in eight shards of 8 MiB never held a 16 MiB block, so each small
/// read of such a record decompressed all of it again.
#[test]
fn a_small_cache_holds_the_largest_blocks() {
    let cache = cache(66 << 20);
    for key in 0..3u64 {
        cache.get(key, CacheKind::Data, || Ok(block(16 << 20, 1))).unwrap();
    }
    let there = |key| cache.peek(&key, LookupRequest::demand(CacheKind::Data)).is_some();
    assert!((0..3).all(there));
}

#[test]
fn the_target_holds_and_moves_by_a_byte_or_by_half() {
    let cache = cache(4 * MIB);
    for key in 0..2000 {
        data(&cache, key);
        assert!(cache.size() <= 4 * MIB);
    }
    fits(&cache);
    cache.configure(Config { arc_max: 4 * MIB - 1, ..cache.config() }).unwrap();
    assert_eq!(cache.target(), 4 * MIB - 1);
    fits(&cache);
    let before = cache.size();
    cache.configure(Config { arc_max: 2 * MIB, ..cache.config() }).unwrap();
    fits(&cache);
    assert!(cache.size() <= 2 * MIB && cache.size() < before);
    assert!(cache.configure(Config { arc_max: MIB / 2, ..cache.config() }).is_err());
    cache.configure(Config { arc_max: 8 * MIB, ..cache.config() }).unwrap();
    for key in 0..2000 {
        data(&cache, key);
    }
    assert!(cache.target() > 7 * MIB, "the target grows with use: {}", cache.target());
    cache.clear();
    assert_eq!(cache.arc_stats().hash_elements, 0);
    fits(&cache);
}

/// A block freed while it was being read was inserted into the cache again, and would
/// have been served under its key for ever.
#[test]
fn a_block_freed_while_it_is_read_is_not_kept() {
    let cache = cache(MIB);
    let request = LookupRequest::demand(CacheKind::Data);
    let Lookup::Miss(ticket) = cache.lookup(5, request) else { panic!("nothing is there") };
    cache.remove(&5);
    assert!(ticket.complete(Block::plain(block(4096, 1))).is_none());
    assert!(cache.peek(&5, request).is_none());
    fits(&cache);
}

#[test]
fn a_reference_never_leads_to_another_block() {
    let cache = cache(MIB);
    let request = LookupRequest::demand(CacheKind::Data);
    let mut refs = Vec::new();
    for key in 0..3000u64 {
        if let Lookup::Miss(ticket) = cache.lookup(key, request) {
            refs.push((key, ticket.complete(Block::plain(block(4096, byte_of(key)))).unwrap()));
        }
        if key % 7 == 0 {
            cache.remove(&(key / 2));
        }
    }
    let mut live = 0;
    for (key, at) in refs {
        if let Some(ResidentBlock::Whole { whole, .. }) = cache.peek_at(at, request) {
            assert_eq!(whole[9], byte_of(key));
            live += 1;
        }
    }
    assert!(live > 100, "{live} references are live");
    assert!(cache.peek_at(SlotRef { stripe: u32::MAX, slot: 0, stamp: 1 }, request).is_none());
}

#[test]
fn blocks_held_by_readers_are_skipped_and_counted() {
    let cache = cache(2 * MIB);
    let held: Vec<Buf> = (0..50)
        .map(|k| cache.get(k, CacheKind::Data, || Ok(block(8192, byte_of(k)))).unwrap())
        .collect();
    for key in 1000..3000 {
        data(&cache, key);
    }
    let stats = cache.arc_stats();
    assert_eq!(stats.held_data, 50 * 8192);
    assert!(stats.evict_skip > 0);
    let evictable = stats.mru.evictable_data + stats.mfu.evictable_data;
    assert_eq!(evictable, stats.data_size - stats.held_data);
    assert!((0..50).all(|k| data(&cache, k)), "none of them left");
    drop(held);
    fits(&cache);
}

/// Test T1 of chapter 10 §9.
#[test]
fn a_scan_does_not_flush_what_is_used() {
    for policy in [PolicyKind::Default, PolicyKind::Arc] {
        let config = Config { policy, ..Config::sized(MIB, 8 * MIB) };
        let cache = Cache::new(config, 8 * MIB).unwrap();
        for _ in 0..4 {
            (0..450).for_each(|key| {
                data(&cache, key);
            });
        }
        (10_000..14_000).for_each(|key| {
            data(&cache, key);
        });
        let kept = hits((0..450).map(|key| data(&cache, key)));
        assert!(kept >= 0.9, "{policy:?} kept {kept}");
    }
}

/// Test T4 of chapter 10 §9, and its mirror image.
#[test]
fn neither_kind_starves_the_other() {
    for kind in [CacheKind::Metadata, CacheKind::Data] {
        let other = if kind == CacheKind::Data { CacheKind::Metadata } else { CacheKind::Data };
        let cache = cache(8 * MIB);
        let mut kept = 0.0;
        for _ in 0..6 {
            let mut seen = Vec::new();
            for key in 0..2000u64 {
                read(&cache, key, kind, Access::Demand, 8192);
                if key % 4 == 0 {
                    seen.push(read(&cache, (1 << 32) + key % 100, other, Access::Demand, 8192));
                }
            }
            kept = hits(seen.into_iter());
        }
        assert!(kept > 0.5, "of {other:?} beside {kind:?}: {kept}");
    }
}

#[test]
fn a_metadata_loop_wins_over_a_stream_of_data() {
    let cache = cache(16 * MIB);
    let mut stream = 1u64 << 40;
    for pass in 0..6 {
        let hit = hits((0..2800u64).map(|key| {
            for _ in 0..2 {
                stream += 1;
                read(&cache, stream, CacheKind::Data, Access::Demand, 8192);
            }
            read(&cache, key, CacheKind::Metadata, Access::Demand, 8192)
        }));
        assert!(pass == 0 || hit > 0.6, "hits on metadata: {hit} in pass {pass}");
    }
}

#[test]
fn unread_prefetches_do_not_displace_what_is_used() {
    let cache = cache(8 * MIB);
    for _ in 0..3 {
        (0..700).for_each(|key| {
            data(&cache, key);
        });
    }
    for key in 10_000..20_000 {
        read(&cache, key, CacheKind::Data, Access::Prefetch, 8192);
    }
    let kept = hits((0..700).map(|key| data(&cache, key)));
    assert!(kept >= 0.95, "kept {kept}");
    let stats = cache.arc_stats();
    assert!(stats.uncached.size() <= MIB / 8, "waste shrinks their share");
    assert_eq!(stats.predictive.issued, 10_000);
    // Blocks that are read soon after they were prefetched are all there, and count
    // once.
    let used = hits((30_000..30_500).flat_map(|key| {
        read(&cache, key, CacheKind::Data, Access::Prefetch, 8192);
        (key >= 30_008).then(|| data(&cache, key - 8))
    }));
    assert!(used > 0.99, "{used}");
    assert!(cache.arc_stats().predictive.demand_hits >= 480);
    fits(&cache);
}

fn compressed(cache: &Cache<u64>, key: u64) -> Option<bool> {
    match cache.lookup(key, LookupRequest::demand(CacheKind::Data)) {
        Lookup::Hit(ResidentBlock::Whole { .. }) => Some(true),
        Lookup::Hit(ResidentBlock::Stored { at, again, .. }) => {
            if cache.wants_front(at, again) {
                cache.install(at, block(128 << 10, byte_of(key)), Duration::from_micros(40));
            }
            Some(false)
        }
        Lookup::Miss(ticket) => {
            let stored = Some(block(32 << 10, byte_of(key)));
            let whole = block(128 << 10, byte_of(key));
            ticket.complete(Block { stored, whole, ..Block::default() });
            None
        }
    }
}

#[test]
fn the_decompressed_front_takes_the_room_that_it_is_worth() {
    let cache = cache(64 * MIB);
    // 16 MiB as stored, 64 MiB decompressed: with 300 hot blocks of 512.
    let mut front = 0.0;
    for _ in 0..30 {
        front = hits((0..300).filter_map(|key| compressed(&cache, key)));
        fits(&cache);
    }
    assert!(front > 0.95, "of a set that fits, {front} came decompressed");
    // A set of 1.5 times the cache as stored: no front is worth a miss.
    let mut missed = 0.0;
    for _ in 0..12 {
        missed = hits((10_000..11_800).map(|key| compressed(&cache, key).is_none()));
        fits(&cache);
    }
    assert!(missed < 0.55, "misses: {missed}");
}

#[test]
fn blocks_of_the_page_cache_are_remembered_and_kept_on_return() {
    let cache = cache(4 * MIB);
    let pass = |key| match cache.lookup(key, LookupRequest::demand(CacheKind::Data)) {
        Lookup::Hit(_) => true,
        Lookup::Miss(ticket) => {
            ticket.complete(Block { remember: true, ..Block::plain(block(8192, 1)) });
            false
        }
    };
    assert!((0..100).all(|key| !pass(key)));
    let there = cache.arc_stats().data_size;
    assert!(there <= 4 * MIB / 32, "held twice for a moment only: {there}");
    assert!((1000..1100).all(|key| !pass(key)), "others come behind them");
    assert!((0..100).all(|key| !pass(key)), "the kernel lost them");
    assert!((0..100).all(pass), "so they are kept here");
    fits(&cache);
}

#[test]
fn a_handed_over_block_keeps_only_its_stored_form() {
    let cache = cache(8 * MIB);
    (0..50).for_each(|key| {
        data(&cache, key);
        cache.hand_over(&key);
    });
    assert_eq!(cache.arc_stats().data_size, 0);
    assert!((0..50).all(|key| !data(&cache, key)), "remembered, not held");
    (0..50).for_each(|key| cache.hand_over(&key));
    let stayed = hits((0..50).map(|key| data(&cache, key)));
    assert!(stayed > 0.9, "of what came back, {stayed} stayed");
    compressed(&cache, 1000);
    cache.hand_over(&1000);
    assert_eq!(compressed(&cache, 1000), Some(false), "the stored form is there");
    cache.hand_over(&77_777);
    fits(&cache);
}

#[test]
fn small_blocks_do_not_take_more_than_is_counted() {
    // Chapter 10 §9, T6: the directory is part of the size.
    let cache = cache(4 * MIB);
    for key in 0..20_000 {
        read(&cache, key, CacheKind::Data, Access::Demand, 512);
    }
    let stats = cache.arc_stats();
    assert!(stats.hdr_size > stats.data_size / 8);
    fits(&cache);
}

#[test]
fn dirty_data_above_squeezes_the_cache_and_gives_way() {
    let cache = cache(8 * MIB);
    (0..2000).for_each(|key| {
        data(&cache, key);
    });
    cache.reserve(4 * MIB);
    assert!(cache.size() <= 8 * MIB && cache.arc_stats().data_size < 4 * MIB);
    cache.release(4 * MIB);
    (0..2000).for_each(|key| {
        data(&cache, key);
    });
    assert!(cache.arc_stats().data_size > 6 * MIB);
}

#[test]
fn threads_beside_each_other_keep_the_books() {
    let cache = cache(4 * MIB);
    base::rt::fan_out(4, |n| {
        let mut x = 0x1234_5678_9abc_def1u64.wrapping_mul(n as u64 + 1);
        for i in 0..20_000u64 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let key = (x >> 20) % if x & 1 == 0 { 300 } else { 5000 };
            let kind = if key.is_multiple_of(5) { CacheKind::Metadata } else { CacheKind::Data };
            let access = if x & 14 == 2 { Access::Prefetch } else { Access::Demand };
            read(&cache, key, kind, access, 4096);
            match i % 1000 {
                3 => cache.remove(&key),
                500 => drop(cache.set_target(2 * MIB + (x >> 40) % (2 * MIB))),
                700 if n == 0 => drop(cache.arc_stats()),
                _ => {}
            }
        }
    });
    cache.set_target(4 * MIB);
    fits(&cache);
    let all = cache.arc_stats().all();
    assert_eq!(all.hits + all.misses, 80_000, "every lookup was one or the other");
}

fn ahead(kind: CacheKind) -> LookupRequest {
    LookupRequest { access: Access::Prefetch, ..LookupRequest::demand(kind) }
}

#[test]
fn only_a_block_that_is_absent_and_unread_can_be_claimed() {
    let cache = cache(4 * MIB);
    data(&cache, 1);
    assert!(cache.claim(1, ahead(CacheKind::Data)).is_none(), "resident");
    let claims: Vec<_> = (1..9).filter_map(|k| cache.claim(k, ahead(CacheKind::Data))).collect();
    assert_eq!(claims.len(), 7);
    assert!((2..9).all(|key| cache.claim(key, ahead(CacheKind::Data)).is_none()), "being read");
    assert!(cache.peek(&2, LookupRequest::demand(CacheKind::Data)).is_none());
    for (key, claim) in (2..).zip(claims) {
        match key {
            4 => drop(claim),
            5 => {
                cache.remove(&5);
                let kept = claim.complete(Block::plain(block(8192, byte_of(5))));
                assert!(kept.is_none(), "freed while it was read");
            }
            _ => drop(claim.complete(Block::plain(block(8192, byte_of(key))))),
        }
    }
    let there: Vec<bool> = (1..9).map(|key| data(&cache, key)).collect();
    assert_eq!(there, [true, true, true, false, false, true, true, true]);
    let stats = cache.arc_stats();
    assert_eq!((stats.prefetch_data.misses, stats.prefetch_data.iohits), (7, 7));
    fits(&cache);
}

#[test]
fn the_room_for_unread_prefetches_follows_their_use() {
    let cache = cache(64 * MIB);
    let first = cache.unread_room();
    assert_eq!(first, 2 * MIB);
    let ahead = |keys: std::ops::Range<u64>| {
        for key in keys {
            read(&cache, key, CacheKind::Data, Access::Prefetch, 8192);
        }
    };
    // A reader that is 1 MiB behind.
    for at in (0..4096).step_by(128) {
        ahead(at..at + 128);
        assert!((at..at + 128).all(|key| data(&cache, key)), "nothing was dropped");
    }
    assert_eq!(cache.unread_room(), 8 * MIB, "useful");
    ahead(10_000..20_000);
    assert_eq!(cache.unread_room(), MIB, "wasted");
    cache.clear();
    assert_eq!(cache.unread_room(), first);
}

/// One thread claims many blocks and fills all but one; readers wait for each, and read the
/// one that was dropped.
#[test]
fn readers_wait_for_claimed_blocks() {
    let run = base::rt::sim::run(1, claimed_blocks);
    assert_eq!(run.outcome, base::rt::sim::Outcome::Done(()));
}

fn claimed_blocks() {
    let cache = cache(4 * MIB);
    let (claimed, read) = (AtomicBool::new(false), AtomicU32::new(0));
    base::rt::fan_out(4, |n| {
        if n == 0 {
            let claim = |key| cache.claim(key, ahead(CacheKind::Data));
            let claims: Vec<_> = (0..16).filter_map(claim).collect();
            assert_eq!(claims.len(), 16);
            claimed.store(true, Relaxed);
            base::rt::sleep(Duration::from_millis(20));
            for (key, claim) in (0u64..).zip(claims) {
                if key != 9 {
                    claim.complete(Block::plain(block(8192, byte_of(key))));
                }
                base::rt::sleep(Duration::from_millis(1));
            }
            return;
        }
        while !claimed.load(Relaxed) {
            base::rt::sleep(Duration::from_millis(1));
        }
        for key in 0..16 {
            read.fetch_add(u32::from(!data(&cache, key)), Relaxed);
        }
    });
    assert_eq!(read.load(Relaxed), 1, "the block that was dropped, once");
    fits(&cache);
}

/// Claims for more than fits: blocks that come are kept as far as there is room.
#[test]
fn claims_do_not_take_room() {
    let cache = cache(MIB);
    let claims: Vec<_> =
        (0..1000).filter_map(|key| cache.claim(key, ahead(CacheKind::Data))).collect();
    assert_eq!(claims.len(), 1000);
    for (key, claim) in (0u64..).zip(claims) {
        claim.complete(Block::plain(block(8192, byte_of(key))));
        fits(&cache);
    }
}

#[derive(Clone, Debug)]
enum CacheOp {
    Read(u64, bool, u8),
    Prefetch(u64),
    Compressed(u64),
    Remove(u64),
    Write(u64),
    Target(u64),
    Hold(u64),
    Release,
}

fn ops() -> impl Strategy<Value = Vec<CacheOp>> {
    let key = 0u64..90;
    let op = prop_oneof![
        8 => (key.clone(), any::<bool>(), 0u8..5).prop_map(|(k, m, s)| CacheOp::Read(k, m, s)),
        2 => key.clone().prop_map(CacheOp::Prefetch),
        3 => (90u64..140).prop_map(CacheOp::Compressed),
        1 => key.clone().prop_map(CacheOp::Remove),
        1 => key.clone().prop_map(CacheOp::Write),
        1 => (MIB..4 * MIB).prop_map(CacheOp::Target),
        1 => key.prop_map(CacheOp::Hold),
        1 => Just(CacheOp::Release),
    ];
    prop::collection::vec(op, 1..500)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Compares with a map of the current content of each key.
    #[test]
    fn the_cache_returns_the_inserted_content(ops in ops(), arc in any::<bool>()) {
        let policy = if arc { PolicyKind::Arc } else { PolicyKind::Default };
        let config = Config { policy, ..Config::sized(MIB, 4 * MIB) };
        let cache: Cache<(u64, u64)> = Cache::new(config, 2 * MIB).unwrap();
        // A rewritten block gets a newer birth, and with it another key.
        let mut births: HashMap<u64, u64> = HashMap::new();
        let mut held = Vec::new();
        let byte = |k: u64, b: u64| (k * 31 + b * 7) as u8;
        for op in ops {
            match op {
                CacheOp::Read(k, meta, size) => {
                    let birth = *births.entry(k).or_default();
                    let kind = if meta && k % 2 == 0 { CacheKind::Metadata } else { CacheKind::Data };
                    let len = 4096usize << size;
                    let fill = || Ok(block(len, byte(k, birth)));
                    let buf = cache.get((k, birth), kind, fill).unwrap();
                    prop_assert_eq!(buf[buf.len() - 1], byte(k, birth));
                }
                CacheOp::Prefetch(k) => {
                    let birth = *births.entry(k).or_default();
                    let request = LookupRequest { access: Access::Prefetch, ..LookupRequest::demand(CacheKind::Data) };
                    if let Lookup::Miss(ticket) = cache.lookup((k, birth), request) {
                        ticket.complete(Block::plain(block(8192, byte(k, birth))));
                    }
                }
                CacheOp::Compressed(k) => {
                    match cache.lookup((k, 0), LookupRequest::demand(CacheKind::Data)) {
                        Lookup::Hit(ResidentBlock::Whole { whole, .. }) => {
                            prop_assert!(whole.len() == 65_536 && whole[0] == byte(k, 0));
                        }
                        Lookup::Hit(ResidentBlock::Stored { at, stored, again, .. }) => {
                            prop_assert!(stored.len() == 9000 && stored[0] == byte(k, 1));
                            if cache.wants_front(at, again) {
                                cache.install(at, block(65_536, byte(k, 0)), Duration::from_micros(9));
                            }
                        }
                        Lookup::Miss(ticket) => {
                            let stored = Some(block(9000, byte(k, 1)));
                            let whole = block(65_536, byte(k, 0));
                            ticket.complete(Block { stored, whole, remember: k % 3 == 0, tag: 1, ..Block::default() });
                        }
                    }
                }
                CacheOp::Remove(k) => {
                    let birth = births.get(&k).copied().unwrap_or(0);
                    cache.remove(&(k, birth));
                    prop_assert!(cache.peek(&(k, birth), LookupRequest::demand(CacheKind::Data)).is_none());
                    births.insert(k, birth + 1);
                }
                CacheOp::Write(k) => {
                    let birth = births.get(&k).copied().unwrap_or(0) + 1;
                    cache.remove(&(k, birth - 1));
                    cache.insert((k, birth), CacheKind::Data, Block::plain(block(4096, byte(k, birth))));
                    births.insert(k, birth);
                }
                CacheOp::Target(c) => drop(cache.set_target(c)),
                CacheOp::Hold(k) => {
                    let birth = births.get(&k).copied().unwrap_or(0);
                    if let Some(ResidentBlock::Whole { whole, .. }) =
                        cache.peek(&(k, birth), LookupRequest::demand(CacheKind::Data))
                    {
                        held.push((k, birth, whole));
                    }
                }
                CacheOp::Release => held.clear(),
            }
            for (k, birth, buf) in &held {
                prop_assert_eq!(buf[0], byte(*k, *birth));
            }
            let stats = cache.arc_stats();
            let held_now = stats.held_data + stats.held_metadata;
            prop_assert!(stats.size <= stats.c + held_now, "{} > {}", stats.size, stats.c);
            let parts = stats.data_size + stats.metadata_size + stats.hdr_size;
            prop_assert_eq!(parts, stats.size);
        }
    }
}
