//! Counters of one device, and the queue depth that it reached.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::op::Io;

/// Live counters; cheap enough to be always on.
#[derive(Debug, Default)]
pub struct DeviceStats {
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    trims: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    errors: AtomicU64,
    in_flight: AtomicU64,
    max_in_flight: AtomicU64,
}

/// The counters at one moment. Operations count when they end, errors included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatsSnapshot {
    /// Reads ended.
    pub reads: u64,
    /// Writes ended.
    pub writes: u64,
    /// Flushes ended.
    pub flushes: u64,
    /// Trims ended.
    pub trims: u64,
    /// Bytes read successfully, widening to whole sectors included.
    pub bytes_read: u64,
    /// Bytes written successfully.
    pub bytes_written: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Operations in the kernel now.
    pub in_flight: u64,
    /// The most operations that were in the kernel at once.
    pub max_in_flight: u64,
}

impl DeviceStats {
    /// Counts an operation as submitted to the device.
    pub fn begin(&self) {
        let now = self.in_flight.fetch_add(1, Relaxed) + 1;
        self.max_in_flight.fetch_max(now, Relaxed);
    }

    /// Ends an operation: [`DeviceStats::leave`] and [`DeviceStats::count`] in one.
    pub fn end(&self, io: &Io, ok: bool) {
        self.leave();
        self.count(io, ok);
    }

    /// Removes an operation from the in-flight gauge, before another one takes its
    /// slot.
    pub fn leave(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }

    /// Counts the outcome of an operation.
    pub fn count(&self, io: &Io, ok: bool) {
        let (count, bytes) = match io {
            Io::Read { .. } => (&self.reads, Some(&self.bytes_read)),
            Io::Write { .. } => (&self.writes, Some(&self.bytes_written)),
            Io::Flush => (&self.flushes, None),
            Io::Trim { .. } => (&self.trims, None),
        };
        count.fetch_add(1, Relaxed);
        if ok {
            if let Some(bytes) = bytes {
                bytes.fetch_add(io.len(), Relaxed);
            }
        } else {
            self.errors.fetch_add(1, Relaxed);
        }
    }

    /// Counts an operation that was refused before it reached the device.
    pub fn refused(&self) {
        self.errors.fetch_add(1, Relaxed);
    }

    /// All counters.
    pub fn snapshot(&self) -> StatsSnapshot {
        StatsSnapshot {
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            trims: self.trims.load(Relaxed),
            bytes_read: self.bytes_read.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            errors: self.errors.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
            max_in_flight: self.max_in_flight.load(Relaxed),
        }
    }
}
