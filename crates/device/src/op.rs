//! Operations, completions and the device trait.
//!
//! **Invariant:** every `Op` handed to a device is completed exactly once. If a buggy
//! device drops an operation, the waiting helpers return an error instead of hanging.

use std::sync::Arc;
use std::time::Duration;

use base::rt::{self, Instant, OneShot};
use base::{Buf, BufMut, Error, Result};

use crate::stats::DeviceStats;

/// How much a flush of the write cache costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushCost {
    /// Nothing: the device has no volatile cache.
    Free,
    /// Some microseconds, or unknown.
    Cheap,
    /// About one rotation or one flash program.
    Costly,
}

/// What a device can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Smallest addressable unit in bytes, a power of two. Offset and length of writes
    /// must be multiples of it; reads may have any offset and length.
    pub logical_sector: u32,
    /// Size in bytes at which the device works best (its physical sector).
    pub preferred: u32,
    /// Seeks cost time; `None` if unknown.
    pub rotational: Option<bool>,
    /// [`Io::Trim`] does something.
    pub trim: bool,
    /// Bytes can be overwritten in place (false: append-only stores).
    pub overwrite: bool,
    /// Opened for writing.
    pub writable: bool,
    /// The operating system's cache is bypassed (O_DIRECT is in force).
    pub direct: bool,
    /// Cost of [`Io::Flush`].
    pub flush: FlushCost,
}

/// An operation of a device; owns its buffers. Offsets and lengths are in bytes.
#[derive(Debug)]
pub enum Io {
    /// Fill the whole of `buf` from `offset`.
    Read {
        /// First byte.
        offset: u64,
        /// The buffer to fill; its length is the length of the read.
        buf: BufMut,
    },
    /// Write `bufs` one after the other from `offset`.
    Write {
        /// First byte.
        offset: u64,
        /// Gathered in order.
        bufs: Vec<Buf>,
    },
    /// Make every write completed before this was submitted durable.
    Flush,
    /// Discard the range: it holds no data that is still needed.
    Trim {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

impl Io {
    /// A read of `len` bytes into a fresh buffer.
    pub fn read(offset: u64, len: usize) -> Io {
        Io::Read { offset, buf: BufMut::alloc(len) }
    }

    /// Bytes read, written or trimmed.
    pub fn len(&self) -> u64 {
        match self {
            Io::Read { buf, .. } => buf.len() as u64,
            Io::Write { bufs, .. } => bufs.iter().map(|b| b.len() as u64).sum(),
            Io::Flush => 0,
            Io::Trim { len, .. } => *len,
        }
    }

    /// Whether [`Io::len`] is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// First byte; 0 for a flush.
    pub fn offset(&self) -> u64 {
        match self {
            Io::Read { offset, .. } | Io::Write { offset, .. } | Io::Trim { offset, .. } => *offset,
            Io::Flush => 0,
        }
    }

    /// Checks the range against a device of `size` bytes, and that a write is
    /// permitted.
    pub(crate) fn check(&self, size: u64, writable: bool) -> Result<()> {
        let inside = self.offset().checked_add(self.len()).is_some_and(|end| end <= size);
        if !inside {
            return Err(Error::invalid(format!(
                "{} bytes at offset {} reach past the device's end at {size}",
                self.len(),
                self.offset()
            ))
            .with_kind(base::ErrorKind::Io));
        }
        if !writable && matches!(self, Io::Write { .. } | Io::Trim { .. }) {
            return Err(Error::new(base::ErrorKind::ReadOnly, "the device was opened read-only"));
        }
        Ok(())
    }
}

/// The outcome of an operation; returns its buffers.
#[derive(Debug)]
pub struct Completion {
    /// The operation's buffers. After a failed read their content is unspecified.
    pub io: Io,
    /// Bytes transferred, always all of them, or the error.
    pub result: Result<usize>,
}

impl Completion {
    /// The buffer of a read.
    ///
    /// # Errors
    /// The error of the operation.
    pub fn into_read(self) -> Result<BufMut> {
        self.result?;
        match self.io {
            Io::Read { buf, .. } => Ok(buf),
            _ => Err(Error::bug("a device answered a read with another operation")),
        }
    }
}

/// Called once, on any thread, when the operation has ended. It must not block.
pub type CompletionFn = Box<dyn FnOnce(Completion) + Send>;

/// An operation and its completion.
pub struct Op {
    /// The operation.
    pub io: Io,
    /// Called when the operation has ended.
    pub done: CompletionFn,
}

impl Op {
    /// An operation that calls `done` when it ends.
    pub fn new(io: Io, done: impl FnOnce(Completion) + Send + 'static) -> Op {
        Op { io, done: Box::new(done) }
    }

    /// Ends the operation.
    pub fn complete(self, result: Result<usize>) {
        (self.done)(Completion { io: self.io, result });
    }
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.io.fmt(f)
    }
}

/// A leaf device.
pub trait Device: Send + Sync {
    /// The capabilities of the device.
    fn caps(&self) -> &Caps;

    /// Size in bytes.
    fn size(&self) -> u64;

    /// Reads the size again, because the device may have grown, and returns it; from then on
    /// it is the one in force. A device that shrank keeps its size.
    ///
    /// # Errors
    /// Those of asking for it.
    fn refresh_size(&self) -> Result<u64> {
        Ok(self.size())
    }

    /// Submits a batch. Blocks only while the engine's queue is full, and never when
    /// called from a completion.
    fn submit(&self, batch: Vec<Op>);

    /// A description for people: path or name, and how it is opened.
    fn describe(&self) -> String;

    /// The device's counters.
    fn stats(&self) -> &DeviceStats;

    /// Whether this path refers to the device; true if that cannot be determined.
    fn is_at(&self, _path: &std::path::Path) -> bool {
        true
    }

    /// Does one operation and waits for it. Devices that can do it in the calling
    /// thread override this.
    fn run(&self, io: Io) -> Completion {
        let slot = Arc::new(OneShot::new());
        self.submit(vec![waited_op(io, &slot)]);
        slot.wait().0
    }
}

/// A completion and the time at which it arrived.
type TimedCompletion = (Completion, Instant);

/// Sets the slot even if the device drops the operation.
struct Waiter(Option<Arc<OneShot<TimedCompletion>>>);

impl Waiter {
    fn set(mut self, completion: Completion) {
        if let Some(slot) = self.0.take() {
            slot.set((completion, rt::now()));
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            let result = Err(Error::bug("a device dropped an operation without completing it"));
            slot.set((Completion { io: Io::Flush, result }, rt::now()));
        }
    }
}

fn waited_op(io: Io, slot: &Arc<OneShot<TimedCompletion>>) -> Op {
    let waiter = Waiter(Some(Arc::clone(slot)));
    Op::new(io, move |completion| waiter.set(completion))
}

/// Reads `len` bytes at `offset` and waits.
///
/// The error of the device; `Io` past its end.
/// The device's; `Io` past its end.
pub fn read_blocking(dev: &dyn Device, offset: u64, len: usize) -> Result<BufMut> {
    if len > base::limits::BUF_SIZE_MAX {
        return Err(Error::limit(format!("a read of {len} bytes exceeds the limit")));
    }
    dev.run(Io::read(offset, len)).into_read()
}

/// Does a batch on one device and waits for all of it; results in order.
pub fn submit_and_wait(dev: &dyn Device, batch: Vec<Io>) -> Vec<Completion> {
    let mut batch = batch;
    let Some(last) = batch.pop() else { return Vec::new() };
    let slots: Vec<_> = batch.iter().map(|_| Arc::new(OneShot::new())).collect();
    if !batch.is_empty() {
        dev.submit(batch.into_iter().zip(&slots).map(|(io, s)| waited_op(io, s)).collect());
    }
    // The caller waits in any case, so it does the last operation itself.
    let last = dev.run(last);
    slots.iter().map(|s| s.wait().0).chain(std::iter::once(last)).collect()
}

/// Does operations on several devices concurrently and waits for all. Returns the
/// results in order, each with the duration of its operation.
pub fn execute(batch: Vec<(Arc<dyn Device>, Io)>) -> Vec<(Completion, Duration)> {
    let began = rt::now();
    let mut batch = batch;
    let Some((last_dev, last)) = batch.pop() else { return Vec::new() };
    let mut slots = Vec::with_capacity(batch.len());
    let mut per_device: Vec<(Arc<dyn Device>, Vec<Op>)> = Vec::new();
    for (dev, io) in batch {
        let slot = Arc::new(OneShot::new());
        let op = waited_op(io, &slot);
        slots.push(slot);
        match per_device.iter_mut().find(|(d, _)| Arc::ptr_eq(d, &dev)) {
            Some((_, ops)) => ops.push(op),
            None => per_device.push((dev, vec![op])),
        }
    }
    for (dev, ops) in per_device {
        dev.submit(ops);
    }
    let last = (last_dev.run(last), rt::now());
    let ended = slots.iter().map(|s| s.wait()).chain(std::iter::once(last));
    ended.map(|(completion, at)| (completion, at.since(began))).collect()
}
