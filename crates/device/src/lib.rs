//! Leaf devices: submit a batch of operations, be called when each completes.
//!
//! # Theory
//! An [`Op`] owns its buffers and a completion. [`Device::submit`] takes a batch;
//! completions come late, in any order, on any thread, exactly once. Nothing here
//! assumes a file descriptor: [`Caps`] says what a device can do, and an object
//! store or a simulator fits behind the same trait.
//!
//! * [`FileDevice`]: a regular file or block device, O_DIRECT where accepted,
//!   locked against a second opening, driven by an [`Engine`]: io_uring, or a pool
//!   of threads calling pread and pwrite.
//! * [`MemDevice`]: a vector, for tests. [`FaultDevice`]: wraps another device and
//!   damages what it returns, deterministically. [`SimDevice`]: forgets in a crash
//!   what was not flushed; see [`sim`]. [`CutDevice`]: can be given up while it is silent.
//!
//! A caller that has to wait anyway uses [`read_blocking`], [`submit_and_wait`] or
//! [`execute`]; these let a file device serve one operation in the calling thread,
//! which costs no context switch but the device's own.
//!
//! # Invariants
//! * Reads are whole: a short read, or one past the end, is an error.
//! * A completion never runs under a lock of this crate.
//! * No operation is forgotten: an engine that shuts down finishes what it took.
//!
//! Lock order: engine queues are leaf locks.

mod cutoff;
mod engine;
mod fault;
mod file;
mod mem;
mod op;
mod pool;
pub mod sim;
mod stats;
mod uring;

pub use cutoff::{CutDevice, Cutoff, Watch};
pub use engine::{Engine, EngineKind};
pub use fault::{Fault, FaultDevice};
pub use file::{FileDevice, Lock, OpenOptions};
pub use mem::MemDevice;
pub use op::{
    Caps, Completion, Device, Done, FlushCost, Io, Op, execute, read_blocking, submit_and_wait,
};
pub use sim::{SimDevice, SimDisks};
pub use stats::{DeviceStats, StatsSnapshot};
