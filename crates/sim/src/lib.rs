//! The simulator: the production engine under a seeded scheduler on simulated disks.
//!
//! # Theory
//! A run creates a pool and runs a seeded sequence of operations on it, from several
//! threads, with syncs racing with writes. The disks record every write and flush. Then the
//! power fails after every event of the record, and each time the remaining content of the
//! disks is imported as after a real crash. The pool must have exactly the content that all
//! operations of the txgs up to its uberblock's produce. No synced txg may be missing,
//! every block must be readable, none allocated twice, none leaked, and all sums of the DSL
//! must be right.
//!
//! # Invariants
//! * A [`Setup`] decides everything: the same setup gives the same schedule, log and
//!   images, so that the command in a failure's message reproduces it.
//! * Nothing is compared with the engine's own statements: the [`model`] uses only the
//!   requests and the number of the txg of each.
//!
//! # Departures
//! If a mishap of the disks destroys data without redundancy (a misdirected write on a
//! single disk), results that cannot be distinguished from an older pool are accepted.
//! Threads share two objects; all others belong to one thread, so that the order of
//! operations is known without querying the engine.
//!
//! Lock order: an object's own → the engine's; the model's are leaves.

pub mod again;
pub mod back;
mod block_clones;
pub mod cache_mishap;
pub mod caches;
mod campaign;
pub mod check;
mod dedup;
pub mod destruction;
pub mod driver;
mod everywhere;
mod fs;
pub mod image;
mod lineage;
mod log_end;
pub mod logs;
pub mod memo;
pub mod mishap;
pub mod model;
mod moves;
pub mod ops;
mod over;
pub mod pool;
pub mod posix;
pub mod receives;
pub mod run;
pub mod setup;
mod sharing;
pub mod short;
pub mod shrink;
pub mod tree;
pub mod volumes;

pub use campaign::{Campaign, Totals};
pub use run::{CrashTally, Failure, Recorded, record, run};
pub use setup::{DiskFault, Layout, PlantedBug, Setup, Workload};
