//! The second tier of all pools: tunables, counters, and the way from a block's key to its
//! pool's devices.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use arc::stats::SecondTierStats;
use arc::tier::{LeavingBlock, Offered, SecondTier};
use base::rt::{Mutex, RwLock};

use crate::admission::L2Policy;
use crate::device::FeedCounts;
use crate::feed::CachePool;
use crate::index::BlockId;
use crate::rebuild::RebuildEnd;

/// A key of the block cache: a block of a pool.
pub trait PoolBlock: Copy + Eq + Hash {
    /// The load of the pool.
    fn load(&self) -> u32;
    /// The block in its pool.
    fn id(&self) -> BlockId;
}

/// The tunables `l2arc_*` (chapter 10 §8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunables {
    /// The rule of admission (`l2arc_policy`).
    pub policy: L2Policy,
    /// Bytes written in a turn (`l2arc_write_max`).
    pub write_max: u64,
    /// More bytes in a turn, until the ring has been filled once (`l2arc_write_boost`).
    pub write_boost: u64,
    /// Bytes considered in a turn, as a multiple of those written; 0: no limit
    /// (`l2arc_headroom`).
    pub headroom: u64,
    /// Do not write blocks that were prefetched and not used (`l2arc_noprefetch`).
    pub noprefetch: bool,
    /// 1: write only blocks used again; 2: and all metadata (`l2arc_mfuonly`).
    pub mfuonly: u64,
    /// Seconds between turns (`l2arc_feed_secs`).
    pub feed_secs: u64,
    /// Milliseconds between turns when there is much to write (`l2arc_feed_min_ms`).
    pub feed_min_ms: u64,
    /// Shorten the pause when there is much to write (`l2arc_feed_again`).
    pub feed_again: bool,
    /// Do not read from a device while it is written (`l2arc_norw`).
    pub norw: bool,
    /// Restore the content at import (`l2arc_rebuild_enabled`).
    pub rebuild_enabled: bool,
    /// Devices that end before this have no log blocks
    /// (`l2arc_rebuild_blocks_min_l2size`).
    pub rebuild_min: u64,
    /// Trim ahead of the hand, percent of a turn (`l2arc_trim_ahead`).
    pub trim_ahead: u64,
    /// Memory for the index, percent of the first tier (`l2arc_meta_percent`).
    pub meta_percent: u64,
    /// Do not write blocks of special vdevs (`l2arc_exclude_special`).
    pub exclude_special: bool,
}

impl Default for Tunables {
    fn default() -> Tunables {
        Tunables {
            policy: L2Policy::Default,
            write_max: 32 << 20,
            write_boost: 32 << 20,
            headroom: 8,
            noprefetch: true,
            mfuonly: 0,
            feed_secs: 1,
            feed_min_ms: 200,
            feed_again: true,
            norw: false,
            rebuild_enabled: true,
            rebuild_min: ondisk::l2::REBUILD_SIZE_MIN,
            trim_ahead: 0,
            meta_percent: 33,
            exclude_special: false,
        }
    }
}

/// What all pools share.
pub(crate) struct LevelShared {
    pub(crate) tunables: RwLock<Tunables>,
    pub(crate) counters: Mutex<SecondTierStats>,
    /// Bytes of the first tier, to which `meta_percent` and the queues refer.
    first_tier: AtomicU64,
    /// Memory of all indexes, histories and queues.
    pub(crate) memory: AtomicU64,
}

impl LevelShared {
    pub(crate) fn count(&self, f: impl FnOnce(&mut SecondTierStats)) {
        f(&mut self.counters.lock());
    }

    pub(crate) fn first_tier(&self) -> u64 {
        self.first_tier.load(Relaxed)
    }

    /// Most bytes of all indexes.
    pub(crate) fn index_max(&self) -> u64 {
        let percent = self.tunables.read().meta_percent.min(100);
        (u128::from(self.first_tier()) * u128::from(percent) / 100) as u64
    }

    pub(crate) fn count_feed(&self, counts: &FeedCounts) {
        self.count(|c| {
            c.feeds += 1;
            c.write_bytes += counts.bytes;
            c.writes_sent += counts.sent;
            c.writes_error += counts.failed;
            c.writes_done += counts.sent - counts.failed;
            c.log_blk_writes += counts.logs[0];
            c.log_blk_written += counts.logs[1];
        });
    }

    pub(crate) fn count_rebuild(&self, end: &RebuildEnd) {
        self.count(|c| match *end {
            RebuildEnd::NoHeader => c.rebuild_dh_errors += 1,
            RebuildEnd::Unsupported => c.rebuild_unsupported += 1,
            RebuildEnd::Failed => c.rebuild_io_errors += 1,
            RebuildEnd::Done { size, asize, blocks, known, logs, damaged, short, failed } => {
                c.rebuild_success += u64::from(!failed && !short);
                c.rebuild_size += size;
                c.rebuild_asize += asize;
                c.rebuild_bufs += blocks;
                c.rebuild_bufs_precached += known;
                c.rebuild_log_blks += logs;
                c.rebuild_cksum_lb_errors += u64::from(damaged);
                c.rebuild_lowmem += u64::from(short);
                c.rebuild_io_errors += u64::from(failed);
            }
        });
    }
}

/// The second tier of the block cache.
pub struct SecondLevel {
    shared: Arc<LevelShared>,
    pools: RwLock<HashMap<u32, Arc<CachePool>>>,
    /// Number of pools with cache devices; spares a lookup where there are none.
    count: AtomicUsize,
}

impl SecondLevel {
    /// Without any devices, behind a first tier of `first_tier` bytes.
    pub fn new(first_tier: u64) -> Arc<SecondLevel> {
        let shared = LevelShared {
            tunables: RwLock::new(Tunables::default()),
            counters: Mutex::default(),
            first_tier: AtomicU64::new(first_tier),
            memory: AtomicU64::new(0),
        };
        let (pools, count) = (RwLock::new(HashMap::new()), AtomicUsize::new(0));
        Arc::new(SecondLevel { shared: Arc::new(shared), pools, count })
    }

    pub(crate) fn shared(&self) -> &Arc<LevelShared> {
        &self.shared
    }

    /// The tunables.
    pub fn tunables(&self) -> Tunables {
        *self.shared.tunables.read()
    }

    /// Changes the tunables, at once.
    pub fn set_tunables(&self, tunables: Tunables) {
        *self.shared.tunables.write() = tunables;
    }

    /// Follows a change of the first tier's size.
    pub fn set_first_tier(&self, bytes: u64) {
        self.shared.first_tier.store(bytes, Relaxed);
    }

    pub(crate) fn enter(&self, load: u32, pool: Arc<CachePool>) {
        let mut pools = self.pools.write();
        pools.insert(load, pool);
        self.count.store(pools.len(), Relaxed);
    }

    /// Removes a pool that is being closed.
    pub(crate) fn leave(&self, load: u32) {
        let mut pools = self.pools.write();
        pools.remove(&load);
        self.count.store(pools.len(), Relaxed);
    }

    fn pool(&self, load: u32) -> Option<Arc<CachePool>> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        self.pools.read().get(&load).map(Arc::clone)
    }
}

impl<K: PoolBlock> SecondTier<K> for SecondLevel {
    fn offer(&self, block: &LeavingBlock<'_, K>) -> Offered {
        match self.pool(block.key.load()) {
            Some(pool) => pool.offer(block.key.id(), block),
            None => Offered::Ineligible,
        }
    }

    fn forget(&self, key: &K) {
        if let Some(pool) = self.pool(key.load()) {
            pool.forget(&key.id());
        }
    }

    fn memory(&self) -> u64 {
        self.shared.memory.load(Relaxed)
    }

    fn stats(&self) -> SecondTierStats {
        let pools: Vec<Arc<CachePool>> = self.pools.read().values().map(Arc::clone).collect();
        let mut out = *self.shared.counters.lock();
        pools.iter().for_each(|pool| pool.add_stats(&mut out));
        out.hdr_size = self.shared.memory.load(Relaxed).saturating_sub(out.waiting);
        out
    }
}
