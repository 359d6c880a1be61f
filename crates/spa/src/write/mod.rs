//! What a writer of pools does outside the space that it allocates from: shaping
//! new vdevs, labels, uberblocks, and the commit that ends every group.
//!
//! # Theory
//! * [`topology`] turns a request (`mirror a b log c`) into checked vdev
//!   configurations. [`admit`](admit::admit) asks first what OpenZFS would do only
//!   with `-f`: [`replication`] that does not match, devices that are [`inuse`].
//! * [`config`] builds the list that each leaf's label holds; [`labels`] writes and
//!   clears whole labels outside groups, on devices that no committed pool has yet.
//! * [`commit`] makes a group durable. It alone touches labels of open pools.
//!
//! # Invariants
//! * Nothing here allocates pool space or knows objects.
//! * A label's `txg` is never newer than the uberblock that relies on it, but in
//!   two of a leaf's four labels while a commit is under way (chapter 01 §6).
//!
//! Lock order: none; every function works on what it is given.

pub mod admit;
pub mod commit;
pub mod config;
pub mod inuse;
pub mod labels;
pub mod replication;
mod signatures;
pub mod topology;
pub mod uberblock;
