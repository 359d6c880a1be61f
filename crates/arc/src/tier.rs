//! The second tier's place: cache devices, when they come.
//!
//! # Theory
//! A second tier holds, on a device, stored blocks that the first one evicted or is
//! about to. It is asked before the pool is read, told when a block dies, and never
//! the only place of anything: whatever it answers is verified like bytes from a
//! disk, and it may forget at any time.

use base::Buf;

use crate::Kind;
use crate::stats::SecondTierStats;

/// A larger, slower cache behind the first one.
pub trait SecondTier<K>: Send + Sync {
    /// The block's bytes as stored, if they are there; they are not yet verified.
    fn read(&self, key: &K) -> Option<Buf>;
    /// A block that is about to leave the first tier, as stored.
    fn offer(&self, key: &K, kind: Kind, stored: &Buf);
    /// The block was freed.
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
    fn offer(&self, _: &K, _: Kind, _: &Buf) {}
    fn forget(&self, _: &K) {}
    fn stats(&self) -> SecondTierStats {
        SecondTierStats::default()
    }
}
