//! The adaptive replacement cache: blocks under an opaque key, within a target size.
//!
//! # Theory
//! [`policy`] decides what stays, as pure state machines over numbered blocks;
//! [`Cache`] holds the buffers, stripes the directory so that a hit takes no lock
//! that all cores share, and makes sure that a block is read once however many
//! threads miss it. [`balance`] divides the room between data and metadata,
//! [`config`] has what may be set, [`stats`] what is counted, [`tier`] the place of
//! cache devices to come. The head of [`cache`] has invariants and lock order.
//!
//! Dirty data never lives here (decision 5): what lies above tells how much memory
//! it takes ([`Cache::reserve`]), and hands blocks over once they are written.

pub mod balance;
pub mod cache;
pub mod config;
pub mod policy;
pub mod pressure;
pub mod stats;
pub mod tier;
pub mod whatif;

pub use cache::{Ask, Block, Cache, Fill, Found, Lookup, SlotRef};
pub use config::{Config, PolicyKind};
pub use policy::Kind;
pub use pressure::{MemorySample, Pressure};
pub use stats::ArcStats;
pub use tier::{NoSecondTier, SecondTier};

/// Who looks a block up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Access {
    /// Somebody who waits for it.
    #[default]
    Demand,
    /// A prefetcher that guesses.
    Prefetch,
    /// A prefetcher that knows.
    Prescient,
}

/// What becomes of the bytes of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Copies {
    /// The reader uses the cache's own buffer.
    #[default]
    No,
    /// The reader copies them into a buffer of its own.
    Yes,
}
