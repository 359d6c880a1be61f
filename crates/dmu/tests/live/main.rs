//! Writable object sets against simple models: their content, in memory and on disk, after
//! any changes in any txg.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    missing_docs,
    unreachable_pub,
    reason = "tests fail by panicking"
)]

mod accounting;
mod edges;
mod example;
mod model;
mod random;
mod threads;
mod walk;
mod world;
