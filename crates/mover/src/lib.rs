//! Moving blocks while snapshots stay shared: which blocks, and in what order.
//!
//! # Theory
//! [`spa::engine::Writer::relocate`] moves a batch of blocks within one txg, with everything that
//! points at them, and has the argument why that is sound. This crate is above it and decides
//! *what* moves:
//! 1. [`find()`] walks all datasets, each block of pointers once, and notes the blocks that are wanted
//!    with their positions.
//! 2. [`empty`] cuts what was found into batches, in the order in which the blocks are to lie, and
//!    moves one after the other: all blocks of a metaslab.
//! 3. [`job`] is the work in the background, with its record in the pool.
//! 4. [`defrag`] chooses the work of `zpool defrag`: files by their layout ([`layout`]) and
//!    metaslabs by their fragmentation.
//! 5. [`balance`] chooses that of `zpool rebalance`: vdevs get equal shares; [`special`] that of its
//!    options: blocks change to the special class, and back.
//! 6. [`evacuate`] empties a whole vdev, so that it can leave the pool: `zpool remove` of a raidz.
//!
//! What was found is a hint. A block may have died, or been moved with another batch, before its
//! turn comes: a batch verifies each pointer by place and birth.
//!
//! # Progress
//! Each block that was found is given to one batch, and leaves the list. A block that a batch
//! keeps is not wanted again. The walk is repeated for what was written meanwhile, a bounded
//! number of times. So the work ends whatever others write.
//!
//! # Invariants
//! * Nothing here writes to a pool; only batches do.

pub mod balance;
mod batch;
pub mod defrag;
pub mod empty;
pub mod evacuate;
pub mod find;
pub mod job;
pub mod layout;
pub mod special;

pub use batch::MoveLimits;
pub use empty::{EmptyReport, empty_metaslab};
pub use find::{FindFlow, FoundBlocks, find, find_in};
