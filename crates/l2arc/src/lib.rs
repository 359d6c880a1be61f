//! The second tier of the block cache: cache devices (chapter 08 §G, chapter 10 §8).
//!
//! # Theory
//! A cache device is a ring of blocks, stored exactly as on the pool's disks: compressed
//! blocks compressed, encrypted ones encrypted. When a block leaves the first tier,
//! [`SecondLevel`] is offered it and decides ([`admission`]) whether it is worth a write.
//! Blocks that are wait in a small queue ([`feed`]), where readers find them, until the
//! pool's feed thread writes them to a device in one batch, at most `l2arc_write_max` bytes
//! a turn. The ring evicts what it overwrites. A reader that misses the first tier looks
//! here before it reads the pool.
//!
//! Nothing on a cache device is trusted. The reader verifies each block with the checksum
//! of its block pointer. A wrong one, an error, or a device that does not answer is a miss:
//! it is counted, and the pool is read.
//!
//! The content survives the pool's export and crashes of the machine ([`CacheDevice`]):
//! behind every few blocks a log block records their identities, log blocks are chained, and
//! the device header leads to the newest. [`CacheDevice::rebuild`] follows the chain and
//! restores the index. The format is OpenZFS's, in both directions.
//!
//! # Invariants
//! * A block is only returned for the identity under which it was offered, and then
//!   verified by the caller; so a lying device costs time, never a wrong byte.
//! * No error of a cache device reaches a reader, and no reader waits for one longer than
//!   [`READ_LIMIT`].
//! * Memory: at most 48 bytes for each block on a device, and a queue of at most 1/32 of
//!   the first tier. The rebuild and the feed stop at `l2arc_meta_percent`.
//! * A block that was freed is not returned any more.
//!
//! # Crash argument
//! Log blocks and header refer only to what was written before them, but nothing is
//! flushed. After a crash each of them may be missing, old or torn. A log block is used
//! only with the checksum in its pointer, the header only with its own, and each block only
//! with that of its block pointer. So whatever subset of the writes is on the device, the
//! rebuild finds a part of what was cached, and of what it finds the readers discard what
//! is not as it was.
//!
//! # Departures from OpenZFS
//! * Blocks are taken when they leave the first tier, not by scanning the tails of its
//!   lists ahead of eviction: a queue in memory covers the time until they are written.
//!   `l2arc_headroom` bounds the bytes that are considered in a turn.
//! * The default rule of admission.
//! * Blocks without a checksum are not cached, because nothing would tell what a device
//!   lost or made up from their content.
//!
//! Lock order: a pool's `feeding` → a device's writer → its index; a pool's list of devices →
//! a device's index. All others are leaves. `feeding` and the writer are held during
//! operations of a device; only the feed and the rebuild take them.

pub mod admission;
mod device;
pub mod feed;
mod index;
mod level;
mod rebuild;
mod timed;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use admission::{Admission, L2Policy};
pub use device::{CacheBugs, CacheDevice, DeviceSpec, Health};
pub use feed::{CachePool, Geometry};
pub use index::{BlockId, CachedBlock, IndexSums, RECORDS_MAX, RingIndex};
pub use level::{PoolBlock, SecondLevel, Tunables};
pub use rebuild::RebuildEnd;

/// How long a reader waits for a cache device.
pub const READ_LIMIT: Duration = Duration::from_secs(1);
/// How long the feed waits for one batch of writes.
pub(crate) const WRITE_LIMIT: Duration = Duration::from_secs(10);
