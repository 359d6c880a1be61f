//! Leaf devices. A caller submits a batch of operations, and each calls its completion
//! when it ends.
//!
//! # Theory
//! An [`Op`] owns its buffers and a completion. [`Device::submit`] takes a batch.
//! Completions run later, in any order, on any thread, exactly once. Nothing here
//! assumes a file descriptor: [`Caps`] describes what a device can do, so that an
//! object store or a simulator can implement the same trait.
//!
//! * [`FileDevice`]: a regular file or block device, O_DIRECT where accepted, locked
//!   against a second opening, driven by an [`Engine`]: io_uring, or a pool of threads
//!   that call pread and pwrite.
//! * [`MemDevice`]: a vector, for tests. [`FaultDevice`]: wraps another device and
//!   damages what it returns, deterministically. [`SimDevice`]: loses unflushed data in
//!   a crash; see [`sim`]. [`CutDevice`]: can be cut off while it does not answer.
//!
//! A caller that has to wait anyway uses [`read_blocking`], [`submit_and_wait`] or
//! [`execute`]. These let a file device do one operation in the calling thread, which
//! costs no context switch except the device's own.
//!
//! # Invariants
//! * Reads are whole: a short read, or one past the end, is an error.
//! * A completion never runs under a lock of this crate.
//! * No operation is lost: an engine that shuts down finishes all accepted operations.
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
    Caps, Completion, CompletionFn, Device, FlushCost, Io, Op, execute, read_blocking,
    submit_and_wait,
};
pub use sim::{SimDevice, SimDisks};
pub use stats::{DeviceStats, StatsSnapshot};
