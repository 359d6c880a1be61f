//! The adaptive replacement cache: bytes under an opaque key, within a limit.
//!
//! # Theory
//! [`policy`] is the published ARC as a pure state machine over keys and sizes;
//! [`Cache`] shards it, holds the buffers, and makes sure that a block is read
//! once however many threads miss it at the same time: the first gets a
//! [`Fill`] ticket, the others wait for it.
//!
//! # Invariants
//! * A key is resident (with its buffer), being filled (with one ticket), or absent.
//! * The sizes charged to a shard are the buffers' footprints, so the limit
//!   bounds memory, not payload.
//! * A ticket dropped without a buffer leaves no trace, and every waiter retries.
//!
//! Lock order: a shard's lock is a leaf; no fill runs under it.

pub mod cache;
pub mod policy;
pub mod whatif;

pub use cache::{Cache, CacheStats, Fill, Lookup};
pub use policy::Kind;
