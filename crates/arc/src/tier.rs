//! The interface of a second tier: a cache behind the first one, on devices (`l2arc`).
//!
//! # Theory
//! A second tier is offered each block that leaves the first one, as it is stored. It is
//! searched by the layer that reads the pool, before the pool is read, and notified when a
//! block is freed. It is never the only location of a block: everything that it returns is
//! verified like bytes from a disk, and it may drop blocks at any time.

use base::Buf;

use crate::CacheKind;
use crate::stats::SecondTierStats;

/// What a second tier may do with a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierUse {
    /// It may keep the block.
    pub eligible: bool,
    /// The block is encrypted or authenticated.
    pub protected: bool,
    /// The block is a gang block.
    pub gang: bool,
}

/// A block that leaves the first tier.
#[derive(Debug)]
pub struct LeavingBlock<'a, K> {
    /// Its key.
    pub key: &'a K,
    /// Its kind.
    pub kind: CacheKind,
    /// What the second tier may do with it.
    pub usage: TierUse,
    /// Its bytes as on the pool.
    pub stored: &'a Buf,
    /// Logical bytes.
    pub lsize: u32,
    /// [`crate::Block::tag`].
    pub tag: u8,
    /// It was used again since it became known.
    pub again: bool,
    /// It was known to have left before when it was read: it came back.
    pub returned: bool,
    /// It was prefetched and never used.
    pub prefetched: bool,
}

/// What became of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// The second tier has the block, or is going to write it.
    Cached,
    /// It could have kept the block, but does not.
    Eligible,
    /// It may not keep the block.
    Ineligible,
}

/// A larger, slower cache behind the first one.
pub trait SecondTier<K>: Send + Sync {
    /// Offers a block that leaves the first tier. Called under locks of the cache: it must
    /// neither wait nor call the cache.
    fn offer(&self, block: &LeavingBlock<'_, K>) -> Offered;
    /// Removes a block that was freed.
    fn forget(&self, key: &K);
    /// Memory of its directory and of blocks that wait to be written, bytes. It counts
    /// towards the cache's size.
    fn memory(&self) -> u64;
    /// Its counters.
    fn stats(&self) -> SecondTierStats;
}

/// No second tier.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSecondTier;

impl<K> SecondTier<K> for NoSecondTier {
    fn offer(&self, _: &LeavingBlock<'_, K>) -> Offered {
        Offered::Ineligible
    }
    fn forget(&self, _: &K) {}
    fn memory(&self) -> u64 {
        0
    }
    fn stats(&self) -> SecondTierStats {
        SecondTierStats::default()
    }
}
