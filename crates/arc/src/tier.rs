//! The interface of a second tier: cache devices, which do not exist yet.
//!
//! # Theory
//! A second tier holds, on a device, stored blocks that the first tier evicted or is
//! about to evict. It is queried before the pool is read and notified when a block is
//! freed. It is never the only location of a block: everything it returns is verified
//! like bytes from a disk, and it may drop blocks at any time.

use base::Buf;

use crate::CacheKind;
use crate::stats::SecondTierStats;

/// A larger, slower cache behind the first one.
pub trait SecondTier<K>: Send + Sync {
    /// The block's bytes as stored, if it has them; they are not yet verified.
    fn read(&self, key: &K) -> Option<Buf>;
    /// Offers a block, as stored, that is about to leave the first tier.
    fn offer(&self, key: &K, kind: CacheKind, stored: &Buf);
    /// Removes a block that was freed.
    fn forget(&self, key: &K);
    /// Its counters.
    fn stats(&self) -> SecondTierStats;
}

/// No second tier.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSecondTier;

impl<K> SecondTier<K> for NoSecondTier {
    fn read(&self, _: &K) -> Option<Buf> {
        None
    }
    fn offer(&self, _: &K, _: CacheKind, _: &Buf) {}
    fn forget(&self, _: &K) {}
    fn stats(&self) -> SecondTierStats {
        SecondTierStats::default()
    }
}
