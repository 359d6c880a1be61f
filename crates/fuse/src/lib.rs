//! FUSE: an own, small implementation of the kernel's protocol.
//!
//! # Map
//! `abi` has the protocol's structures and parses requests · [`Filesystem`] is
//! what a file system implements, with the types beside it · `dispatch` turns
//! one request into calls and a reply · `transport` carries messages ·
//! `receivers` has the threads of all mounts · [`Session`] puts them together · `inflight`
//! lists what can be interrupted · `mount` and `mountinfo` attach it to the tree of files,
//! `holders` finds other namespaces that show it · `control` calls a file system's own ioctl · [`null`] states the transport's own speed ·
//! [`CpuLatencyQos`] keeps cores awake while requests come thick.
//!
//! # Theory
//! One set of threads serves all mounts of a process, each request on the thread that read
//! it; a thread that is about to sleep has another one take its place. So a hit costs no
//! hand-over, and 64 misses are 64 requests at the devices.
//!
//! # Departures
//! Own, not a library: the kernel's newer transport over io_uring is beside
//! the classic one, behind the same trait. No splice, no passthrough,
//! no DAX, no CUSE.
//!
//! Nothing here knows of ZFS.

// A front end: system calls and threads of its own are its business.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod abi;
mod config;
mod control;
mod descriptors;
mod dispatch;
mod errno;
mod fs;
#[cfg(test)]
mod fuzz;
mod holders;
mod inflight;
mod latency;
mod mount;
mod mountinfo;
mod notify;
pub mod null;
mod receivers;
mod session;
mod transport;
mod types;
mod uring;

pub use config::{Config, DataInvalidation};
pub use control::{control, control_one_way, exchange_opcode};
pub use descriptors::{RESERVE, raise_limit};
pub use errno::{Errno, Result};
pub use fs::{BlockingMode, DirSink, Filesystem, Negotiated, Opcode, Outward, Request};

pub use holders::Holder;
pub use latency::CpuLatencyQos;
pub use mount::{Kept, MountOptions, UnmountOptions, unmount};
pub use mountinfo::{MountEntry, fuse_mounts, is_stale};
pub use notify::Notifier;
pub use session::Session;
pub use transport::{Channel, DevTransport, Queue, Transport};
pub use types::*;
pub use uring::UringTransport;
