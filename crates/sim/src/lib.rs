//! The simulator: the production engine under a seeded scheduler on simulated disks.
//!
//! # Theory
//! A run makes a pool and does a seeded sequence of operations on it, from several
//! threads, with syncs racing with writes. The disks record every write and flush. Then
//! the power fails after every event of the record, and each time what is left of the
//! disks is imported as after a real crash: the pool must hold exactly what all
//! operations of the groups up to its uberblock's make, no synced group may be missing,
//! every block must be readable, none allocated twice, none leaked, and all sums of the
//! DSL must hold.
//!
//! # Invariants
//! * A [`Setup`] decides everything: the same setup gives the same schedule, log and
//!   images, so that a failure is found again by the command that it names.
//! * Nothing is compared with what the engine says of itself: the [`model`] is fed by
//!   what was asked for and by the number of the group it went into.
//!
//! # Departures
//! Where a mishap of the disks leaves nothing to make it up with (a write that went
//! astray on a single disk), what cannot be told from an older pool is not asked for.
//! Threads share two objects; all others belong to one thread, so that the order of
//! operations is known without asking the engine.
//!
//! Lock order: an object's own → the engine's; the model's are leaves.

pub mod again;
pub mod back;
mod campaign;
pub mod check;
pub mod driver;
mod everywhere;
mod fs;
pub mod image;
pub mod logs;
pub mod memo;
pub mod mishap;
pub mod model;
pub mod ops;
mod over;
pub mod pool;
pub mod posix;
pub mod run;
pub mod setup;
pub mod short;
pub mod shrink;

pub use campaign::{Campaign, Totals};
pub use run::{CrashTally, Failure, Recorded, record, run};
pub use setup::{DiskFault, Layout, PlantedBug, Setup, Workload};
