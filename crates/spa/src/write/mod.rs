//! The parts of writing a pool outside the space that it allocates from: configurations of
//! new vdevs, labels, uberblocks, and the commit that ends every txg.
//!
//! # Theory
//! * [`topology`] turns a request (`mirror a b log c`) into validated vdev configurations.
//!   [`admit`](admit::admit) first checks for what OpenZFS would do only with `-f`:
//!   mismatched [`replication`], devices that are [`inuse`].
//! * [`config`] builds the list in each leaf's label; [`labels`] writes and clears whole
//!   labels outside txgs, on devices that no committed pool has yet.
//! * [`commit`] makes a txg durable. Only this module touches labels of open pools.
//!
//! # Invariants
//! * Nothing here allocates pool space or accesses objects.
//! * A label's `txg` is never newer than the uberblock that depends on it, except in two of
//!   a leaf's four labels during a commit (chapter 01 §6).
//!
//! Lock order: no locks; every function works on its arguments.

pub mod admit;
pub mod commit;
pub mod config;
pub mod inuse;
pub mod labels;
pub mod replication;
mod signatures;
pub mod topology;
pub mod uberblock;
