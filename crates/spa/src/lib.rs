//! Pools: finding their devices, opening them, and their own metadata.
//!
//! # Theory
//! A pool is found in two steps. [`discover()`](discover::discover) reads labels, which are
//! untrusted. It groups devices by pool guid and assembles the tree that the labels of the
//! available devices describe. [`Spa::open`] opens that tree, picks the best uberblock,
//! reads the MOS through it, and replaces the assembled tree by the *trusted* one in the
//! MOS (chapter 01 §8).
//!
//! # Departures from OpenZFS
//! * Label checksums count in discovery, too: a label that does not verify is used only if
//!   the device has none that does.
//! * Of two devices with one guid, the one with the newer label wins; OpenZFS prefers by
//!   the number of labels and the order of the scan.
//!
//! # Invariants
//! * A read-only import writes nothing, not even labels.
//! * A pool without enough devices for correct results is refused, never opened in part.
//! * This crate has no notion of POSIX.
//!
//! Lock order: pool registry → nothing.

pub(crate) mod assemble;
pub mod audit;
pub(crate) mod block_refs;
pub mod cache_devices;
mod checkpoint;
mod dedup;
pub mod dedup_report;
pub mod discover;
pub mod engine;
pub mod history;
pub mod import;
mod indirect;
pub mod labels;
pub mod leaves;
mod multihost;
mod obsolete;
mod opener;
pub mod rebuild;
pub mod rewind;
pub mod space;
pub mod spares;
pub mod specs;
pub mod split;
pub mod status;
pub mod tables;
pub mod uberblocks;
pub mod write;

pub use assemble::{FoundPool, ImportReason};
pub use discover::{Discovery, Search, discover, discover_in};
pub use import::{Beginning, ImportOptions, Spa, own_hostname};
pub use labels::LeafLabels;
pub use leaves::{FileLeaves, Leaves, OpenLeaf, Purpose};
pub use multihost::own_hostid;
pub use rebuild::Rebuilt;
pub use rewind::{Past, Rewind, look_back};
pub use status::{VdevClass, VdevState, VdevStatus};

/// Versions of pools without features that can be written; older ones can only be read.
pub(crate) const VERSIONS_WRITTEN: std::ops::RangeInclusive<u64> = 10..=28;
/// First version of pools that account space to owners.
pub(crate) const VERSION_OWNERS: u64 = 15;
