//! The table of blocks in flight: submitted, but not yet on all their devices.
//!
//! # Theory
//! The cache gets a block when it is submitted, and may drop it before a device has it.
//! A read would then find the old content of the address. This table holds the bytes
//! until the last write has ended. A reader that misses the cache searches it before
//! reading from a device. In a pool that is only read, one load shows that it is empty.
//!
//! Lock order: a shard's lock is a leaf.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use base::Buf;
use base::rt::Mutex;

use crate::BlockKey;

const SHARDS: usize = 16;

#[derive(Clone, Default)]
struct InFlightEntry {
    stamp: u64,
    /// As on disk, the whole block.
    stored: Option<Buf>,
    /// The gang header at the key's address.
    header: Option<Buf>,
}

/// The table of blocks in flight.
#[derive(Default)]
pub(crate) struct InFlightBlocks {
    shards: [Mutex<HashMap<BlockKey, InFlightEntry>>; SHARDS],
    entries: AtomicUsize,
    stamps: AtomicU64,
}

impl InFlightBlocks {
    fn shard(&self, key: &BlockKey) -> &Mutex<HashMap<BlockKey, InFlightEntry>> {
        let mix = (key.offset >> 9 ^ u64::from(key.vdev) << 40 ^ key.birth << 20)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mix >> 60) as usize % SHARDS]
    }

    /// A unique stamp for one submission.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamps.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Adds a block's bytes; a later submission of the same key replaces the entry.
    pub(crate) fn put_stored(&self, key: BlockKey, stamp: u64, stored: Buf) {
        self.change(key, stamp, |e| e.stored = Some(stored));
    }

    /// Adds a gang header.
    pub(crate) fn put_header(&self, key: BlockKey, stamp: u64, header: Buf) {
        self.change(key, stamp, |e| e.header = Some(header));
    }

    fn change(&self, key: BlockKey, stamp: u64, f: impl FnOnce(&mut InFlightEntry)) {
        let mut shard = self.shard(&key).lock();
        let before = shard.len();
        let entry = shard.entry(key).or_default();
        if entry.stamp != stamp {
            *entry = InFlightEntry { stamp, ..InFlightEntry::default() };
        }
        f(entry);
        if shard.len() > before {
            self.entries.fetch_add(1, Ordering::Release);
        }
    }

    /// Removes the entry after the writes of `stamp` have ended.
    pub(crate) fn remove(&self, key: &BlockKey, stamp: u64) {
        let mut shard = self.shard(key).lock();
        if shard.get(key).is_some_and(|e| e.stamp == stamp) {
            shard.remove(key);
            self.entries.fetch_sub(1, Ordering::Release);
        }
    }

    fn get(&self, key: &BlockKey) -> Option<InFlightEntry> {
        if self.entries.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.shard(key).lock().get(key).cloned()
    }

    /// A block's bytes as they will be on disk.
    pub(crate) fn stored(&self, key: &BlockKey) -> Option<Buf> {
        self.get(key)?.stored
    }

    /// The gang header that will be at the key's address.
    pub(crate) fn header(&self, key: &BlockKey) -> Option<Buf> {
        self.get(key)?.header
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().len()).sum()
    }
}
