//! Writable object sets against naive models: what they hold, in memory and on disk,
//! after whatever was done to them in whatever group.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    missing_docs,
    unreachable_pub,
    reason = "tests fail by panicking"
)]

mod example;
mod model;
mod random;
mod walk;
mod world;
