//! The sharded cache: buffers under keys, one reader per miss.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use base::rt::{Condvar, Mutex};
use base::{Buf, Result};

use crate::policy::{self, Kind, ListId};

/// Least size of a shard: four blocks of 16 MiB.
const SHARD_MIN: usize = 64 << 20;
/// Free arena memory kept for re-use before pages go back to the system.
const FREE_WARM_MAX: usize = 16 << 20;

enum Slot {
    Resident(Buf),
    Filling(Arc<Pending>),
}

#[derive(Default)]
struct Pending {
    done: Mutex<bool>,
    wake: Condvar,
}

struct Shard<K> {
    slots: HashMap<K, Slot>,
    policy: policy::Arc<K>,
}

/// Counters since the cache was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Lookups answered from memory, data.
    pub data_hits: u64,
    /// Lookups that had to read, data.
    pub data_misses: u64,
    /// Lookups answered from memory, metadata.
    pub metadata_hits: u64,
    /// Lookups that had to read, metadata.
    pub metadata_misses: u64,
    /// Misses on blocks evicted from the MRU list a short while ago.
    pub mru_ghost_hits: u64,
    /// Misses on blocks evicted from the MFU list a short while ago.
    pub mfu_ghost_hits: u64,
    /// Bytes resident.
    pub size: u64,
    /// Target size, bytes.
    pub target: u64,
}

#[derive(Default)]
struct Counters {
    hits: [AtomicU64; 2],
    misses: [AtomicU64; 2],
    ghosts: [AtomicU64; 2],
}

/// A cache of immutable buffers within a byte limit.
pub struct Cache<K> {
    shards: Vec<Mutex<Shard<K>>>,
    hasher: RandomState,
    counters: Counters,
    limit: AtomicUsize,
}

/// What [`Cache::lookup`] found.
pub enum Lookup<'a, K: Copy + Eq + Hash> {
    /// The buffer.
    Hit(Buf),
    /// Nothing: the caller reads the block and gives it to the ticket.
    Miss(Fill<'a, K>),
}

/// The duty to fill one key; dropping it lets another reader try.
pub struct Fill<'a, K: Copy + Eq + Hash> {
    cache: &'a Cache<K>,
    key: K,
    pending: Option<Arc<Pending>>,
}

impl<K: Copy + Eq + Hash> Cache<K> {
    /// A cache of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        // A shard must have room for several of the largest blocks, or it would
        // evict each as soon as it came in.
        let room = (limit / SHARD_MIN).max(1);
        let most = (base::rt::parallelism() * 4).next_power_of_two().clamp(4, 64);
        let shards = if room >= most { most } else { (room + 1).next_power_of_two() / 2 };
        let per_shard = limit / shards;
        Cache {
            shards: (0..shards)
                .map(|_| {
                    Mutex::new(Shard { slots: HashMap::new(), policy: policy::Arc::new(per_shard) })
                })
                .collect(),
            hasher: RandomState::new(),
            counters: Counters::default(),
            limit: AtomicUsize::new(limit),
        }
    }

    fn shard(&self, key: &K) -> &Mutex<Shard<K>> {
        let hash = self.hasher.hash_one(key);
        // The high bits: the shard's own map uses the low ones.
        &self.shards[(hash >> 40) as usize & (self.shards.len() - 1)]
    }

    /// The byte limit.
    pub fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    /// Changes the byte limit, at once.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Relaxed);
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.policy.set_target(limit / self.shards.len());
            shard.evict();
        }
        base::buf::trim(FREE_WARM_MAX.min(limit));
    }

    /// The buffer if it is in memory; never waits for a reader.
    pub fn peek(&self, key: &K, kind: Kind) -> Option<Buf> {
        let mut shard = self.shard(key).lock();
        let Some(Slot::Resident(buf)) = shard.slots.get(key) else { return None };
        let buf = buf.clone();
        shard.policy.touch(key);
        self.counters.hits[kind as usize].fetch_add(1, Relaxed);
        Some(buf)
    }

    /// The buffer, or the duty to read it. Waits while another thread reads it.
    pub fn lookup(&self, key: K, kind: Kind) -> Lookup<'_, K> {
        loop {
            let pending = {
                let mut shard = self.shard(&key).lock();
                let shard = &mut *shard;
                match shard.slots.entry(key) {
                    Entry::Occupied(slot) => match slot.get() {
                        Slot::Resident(buf) => {
                            shard.policy.touch(&key);
                            self.counters.hits[kind as usize].fetch_add(1, Relaxed);
                            return Lookup::Hit(buf.clone());
                        }
                        Slot::Filling(pending) => Arc::clone(pending),
                    },
                    Entry::Vacant(slot) => {
                        let pending = Arc::new(Pending::default());
                        slot.insert(Slot::Filling(Arc::clone(&pending)));
                        self.counters.misses[kind as usize].fetch_add(1, Relaxed);
                        return Lookup::Miss(Fill { cache: self, key, pending: Some(pending) });
                    }
                }
            };
            let mut done = pending.done.lock();
            while !*done {
                pending.wake.wait(&mut done);
            }
        }
    }

    /// The buffer, read by `fill` if it is not in memory.
    ///
    /// # Errors
    /// Those of `fill`.
    pub fn get(&self, key: K, kind: Kind, fill: impl FnOnce() -> Result<Buf>) -> Result<Buf> {
        match self.lookup(key, kind) {
            Lookup::Hit(buf) => Ok(buf),
            Lookup::Miss(ticket) => {
                let buf = fill()?;
                ticket.complete(buf.clone());
                Ok(buf)
            }
        }
    }

    /// Forgets a key (its block was freed or proved wrong).
    pub fn remove(&self, key: &K) {
        let mut shard = self.shard(key).lock();
        if matches!(shard.slots.get(key), Some(Slot::Resident(_))) {
            shard.slots.remove(key);
        }
        shard.policy.remove(key);
    }

    /// Forgets everything that is resident.
    pub fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let target = shard.policy.target();
            shard.slots.retain(|_, s| matches!(s, Slot::Filling(_)));
            shard.policy = policy::Arc::new(target);
        }
        base::buf::trim(0);
    }

    /// Counters and sizes.
    pub fn stats(&self) -> CacheStats {
        let size = self.shards.iter().map(|s| s.lock().policy.resident() as u64).sum();
        let get = |c: &[AtomicU64; 2], i: usize| c[i].load(Relaxed);
        let c = &self.counters;
        CacheStats {
            data_hits: get(&c.hits, Kind::Data as usize),
            data_misses: get(&c.misses, Kind::Data as usize),
            metadata_hits: get(&c.hits, Kind::Metadata as usize),
            metadata_misses: get(&c.misses, Kind::Metadata as usize),
            mru_ghost_hits: get(&c.ghosts, 0),
            mfu_ghost_hits: get(&c.ghosts, 1),
            size,
            target: self.limit() as u64,
        }
    }
}

impl<K: Copy + Eq + Hash> Shard<K> {
    fn evict(&mut self) {
        let slots = &mut self.slots;
        let mut victims = Vec::new();
        self.policy.make_room(|_| false, |key| victims.push(key));
        for key in victims {
            slots.remove(&key);
        }
    }
}

impl<K: Copy + Eq + Hash> Fill<'_, K> {
    /// Makes the buffer resident and wakes the waiters.
    pub fn complete(mut self, buf: Buf) {
        let Some(pending) = self.pending.take() else { return };
        {
            let mut shard = self.cache.shard(&self.key).lock();
            let size = buf.footprint().max(1);
            shard.slots.insert(self.key, Slot::Resident(buf));
            match shard.policy.insert(self.key, size) {
                Some(ListId::MruGhost) => self.cache.counters.ghosts[0].fetch_add(1, Relaxed),
                Some(ListId::MfuGhost) => self.cache.counters.ghosts[1].fetch_add(1, Relaxed),
                _ => 0,
            };
            shard.evict();
        }
        if base::buf::stats().free_warm > 2 * FREE_WARM_MAX {
            base::buf::trim(FREE_WARM_MAX);
        }
        pending.finish();
    }
}

impl Pending {
    fn finish(&self) {
        *self.done.lock() = true;
        self.wake.notify_all();
    }
}

impl<K: Copy + Eq + Hash> Drop for Fill<'_, K> {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.cache.shard(&self.key).lock().slots.remove(&self.key);
            pending.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Error;
    use std::sync::atomic::AtomicU32;

    fn block(byte: u8) -> Buf {
        let mut b = base::BufMut::alloc(4096);
        b.fill(byte);
        b.freeze()
    }

    #[test]
    fn many_threads_missing_one_key_read_it_once() {
        let cache = Cache::new(1 << 20);
        let reads = AtomicU32::new(0);
        base::rt::fan_out(16, |_| {
            let buf = cache.get(7u64, Kind::Data, || {
                reads.fetch_add(1, Relaxed);
                base::rt::sleep(std::time::Duration::from_millis(20));
                Ok(block(7))
            });
            assert_eq!(buf.unwrap()[0], 7);
        });
        assert_eq!(reads.load(Relaxed), 1);
        assert_eq!(cache.stats().data_misses, 1);
        assert_eq!(cache.stats().data_hits, 15);
    }

    #[test]
    fn a_failed_fill_leaves_the_next_reader_to_try() {
        let cache: Cache<u64> = Cache::new(1 << 20);
        assert!(cache.get(1, Kind::Data, || Err(Error::corrupt("bad"))).is_err());
        assert!(cache.peek(&1, Kind::Data).is_none());
        assert_eq!(cache.get(1, Kind::Data, || Ok(block(3))).unwrap()[0], 3);
        assert_eq!(cache.peek(&1, Kind::Data).unwrap()[0], 3);
        cache.remove(&1);
        assert!(cache.peek(&1, Kind::Data).is_none());
    }

    /// A cache of 64 MiB in eight shards of 8 MiB never held a 16 MiB block: each
    /// small read of such a record decompressed all of it again.
    #[test]
    fn a_small_cache_holds_the_largest_blocks() {
        let cache = Cache::new(64 << 20);
        for key in 0..3u64 {
            let big = || Ok(base::BufMut::alloc(16 << 20).freeze());
            cache.get(key, Kind::Data, big).unwrap();
        }
        assert!((0..3).all(|key| cache.peek(&key, Kind::Data).is_some()));
        assert_eq!(Cache::<u64>::new(1 << 20).shards.len(), 1);
        assert_eq!(Cache::<u64>::new(200 << 20).shards.len(), 2);
        assert!(Cache::<u64>::new(16 << 30).shards.len() >= 4);
    }

    #[test]
    fn the_limit_holds_and_can_shrink() {
        let cache = Cache::new(1 << 20);
        for key in 0..2000u64 {
            cache.get(key, Kind::Data, || Ok(block(key as u8))).unwrap();
            assert!(cache.stats().size <= 1 << 20);
        }
        cache.set_limit(1 << 18);
        assert!(cache.stats().size <= 1 << 18);
        cache.clear();
        assert_eq!(cache.stats().size, 0);
    }
}
