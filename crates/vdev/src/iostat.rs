//! What a leaf did: operations and bytes, by the reason they were made.
//!
//! # Theory
//! An operation is counted once, when the device has done it well: a read of
//! neighbouring pieces or a merged write is one operation of all its bytes, as the
//! device saw it. What failed is in the error counters. Interior vdevs have no
//! counters; theirs are the sums of their leaves'.
//!
//! A place counts for one leaf, and what is known of an operation when it ends (its
//! class, bytes, whether it was merged) arrives at [`IoStats::done`] alone: latencies
//! and histograms of sizes belong there, too.
//!
//! # Invariants
//! * Counters only grow; they belong to a vdev, not to a snapshot, and last as long as
//!   the pool is open. `zpool clear` leaves them alone.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::rt::{self, Instant};

use crate::queue::WritePriority;
use crate::read::Priority;
use crate::tree::{NodeId, Tree};

/// Why an operation was made: the classes of OpenZFS's queues (chapter 02 §14).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoClass {
    /// Somebody waits for the bytes.
    SyncRead,
    /// Somebody waits until they are written.
    SyncWrite,
    /// Read ahead.
    AsyncRead,
    /// A transaction group's.
    AsyncWrite,
    /// Scrub or resilver.
    Scrub,
}

impl IoClass {
    /// All of them, in the order of [`IoCounts::by_class`].
    pub const ALL: [IoClass; 5] = [
        IoClass::SyncRead,
        IoClass::SyncWrite,
        IoClass::AsyncRead,
        IoClass::AsyncWrite,
        IoClass::Scrub,
    ];

    /// Whether it writes.
    pub fn is_write(self) -> bool {
        matches!(self, IoClass::SyncWrite | IoClass::AsyncWrite)
    }
}

impl From<Priority> for IoClass {
    fn from(priority: Priority) -> IoClass {
        match priority {
            Priority::SyncRead => IoClass::SyncRead,
            Priority::AsyncRead => IoClass::AsyncRead,
            Priority::Scrub => IoClass::Scrub,
        }
    }
}

impl From<WritePriority> for IoClass {
    fn from(priority: WritePriority) -> IoClass {
        match priority {
            WritePriority::SyncWrite => IoClass::SyncWrite,
            WritePriority::AsyncWrite => IoClass::AsyncWrite,
        }
    }
}

/// Operations and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCount {
    /// Operations that the device did.
    pub ops: u64,
    /// Bytes of them.
    pub bytes: u64,
}

impl IoCount {
    fn add(&mut self, other: IoCount) {
        self.ops = self.ops.wrapping_add(other.ops);
        self.bytes = self.bytes.wrapping_add(other.bytes);
    }
}

/// A vdev's counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    /// In the order of [`IoClass::ALL`].
    pub by_class: [IoCount; IoClass::ALL.len()],
}

impl IoCounts {
    fn sum(&self, wanted: impl Fn(IoClass) -> bool) -> IoCount {
        let mut sum = IoCount::default();
        let classes = IoClass::ALL.iter().zip(&self.by_class);
        classes.filter(|(class, _)| wanted(**class)).for_each(|(_, count)| sum.add(*count));
        sum
    }

    /// All reads.
    pub fn reads(&self) -> IoCount {
        self.sum(|class| !class.is_write())
    }

    /// All writes.
    pub fn writes(&self) -> IoCount {
        self.sum(IoClass::is_write)
    }

    /// Adds another vdev's.
    pub fn add(&mut self, other: &IoCounts) {
        self.by_class.iter_mut().zip(&other.by_class).for_each(|(to, from)| to.add(*from));
    }
}

#[derive(Default)]
struct Cell {
    ops: AtomicU64,
    bytes: AtomicU64,
}

/// One leaf's counters.
pub(crate) struct IoStats {
    cells: [Cell; IoClass::ALL.len()],
    since: Instant,
}

impl Default for IoStats {
    fn default() -> IoStats {
        IoStats { cells: Default::default(), since: rt::now() }
    }
}

impl IoStats {
    /// The device did an operation of so many bytes.
    pub(crate) fn done(&self, class: impl Into<IoClass>, bytes: u64) {
        let cell = &self.cells[class.into() as usize];
        cell.ops.fetch_add(1, Relaxed);
        cell.bytes.fetch_add(bytes, Relaxed);
    }

    /// The counters now.
    pub(crate) fn get(&self) -> IoCounts {
        let read =
            |cell: &Cell| IoCount { ops: cell.ops.load(Relaxed), bytes: cell.bytes.load(Relaxed) };
        IoCounts { by_class: std::array::from_fn(|i| read(&self.cells[i])) }
    }
}

impl Tree {
    /// What a vdev and all below it did since [`Tree::io_age`].
    pub fn io(&self, id: NodeId) -> IoCounts {
        let node = self.node(id);
        let mut sum = node.live.io.get();
        node.children.iter().for_each(|&child| sum.add(&self.io(child)));
        sum
    }

    /// How long that has been counted: since the pool was opened, or the vdev joined it.
    pub fn io_age(&self, id: NodeId) -> Duration {
        let node = self.node(id);
        let below = node.children.iter().map(|&child| self.io_age(child));
        below.fold(node.live.io.since.elapsed(), Duration::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_in_their_places() {
        for (i, class) in IoClass::ALL.iter().enumerate() {
            assert_eq!(*class as usize, i);
        }
    }

    #[test]
    fn reads_and_writes_are_told_apart_and_summed() {
        let stats = IoStats::default();
        stats.done(Priority::SyncRead, 512);
        stats.done(Priority::AsyncRead, 1024);
        stats.done(Priority::Scrub, 2048);
        stats.done(WritePriority::SyncWrite, 4096);
        stats.done(WritePriority::AsyncWrite, 8192);
        let mut counts = stats.get();
        assert_eq!(counts.reads(), IoCount { ops: 3, bytes: 3584 });
        assert_eq!(counts.writes(), IoCount { ops: 2, bytes: 12_288 });
        counts.add(&stats.get());
        assert_eq!(counts.reads(), IoCount { ops: 6, bytes: 7168 });
    }
}
