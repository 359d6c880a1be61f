//! The adaptive replacement cache: blocks under an opaque key, within a target size.
//!
//! # Theory
//! [`policy`] contains the replacement policies, as pure state machines over numbered
//! blocks. [`Cache`] holds the buffers, stripes the directory so that a hit takes no
//! lock that all cores share, and ensures that a block is read once, however many
//! threads miss it. [`balance`] divides the space between data and metadata, [`config`]
//! has the tunables, [`stats`] the counters, and [`tier`] is the interface to cache
//! devices. The head of [`cache`] has invariants and lock order.
//!
//! Dirty data is never in the cache (decision 5): the layers above report how much
//! memory it uses ([`Cache::reserve`]), and insert blocks once they are written.

pub mod balance;
pub mod cache;
pub mod config;
pub mod policy;
pub mod pressure;
pub mod stats;
pub mod tier;
pub mod whatif;

pub use cache::{Block, Cache, Fill, Lookup, LookupRequest, ResidentBlock, SlotRef};
pub use config::{Config, PolicyKind};
pub use policy::CacheKind;
pub use pressure::{MemorySample, Pressure};
pub use stats::ArcStats;
pub use tier::{NoSecondTier, SecondTier, TierUse};

/// The kind of access in a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Access {
    /// A reader that waits for the block.
    #[default]
    Demand,
    /// A prefetcher that predicts.
    Prefetch,
    /// A prefetcher whose blocks are certainly needed.
    Prescient,
}

/// What the reader does with the bytes of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Copies {
    /// The reader uses the cache's own buffer.
    #[default]
    No,
    /// The reader copies them into a buffer of its own.
    Yes,
}
