//! What a leaf did: operations and bytes, by the reason they were made.
//!
//! # Theory
//! An operation is counted once, when the device has done it well: a read of
//! neighbouring pieces or a merged write is one operation of all its bytes, as the
//! device saw it. What failed is in the error counters. Interior vdevs have no
//! counters; theirs are the sums of their leaves'.
//!
//! A place counts for one leaf. What is known of an operation when it ends (its class,
//! bytes, time with the device, whether it was merged) arrives at [`IoStats::done`] alone,
//! and what each of its requests waited at [`IoStats::waited`]. Times and sizes are kept as
//! histograms by powers of two (chapter 09 §4.5), from which averages are told, too.
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
            WritePriority::Awaited | WritePriority::SyncWrite => IoClass::SyncWrite,
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

/// Buckets of times: number j counts what took 2^j to 2^(j+1) - 1 nanoseconds, the first
/// also what took none, the last also all that took longer.
pub const TIME_BUCKETS: usize = 37;
/// Buckets of sizes: number j counts operations of 2^j to 2^(j+1) - 1 bytes.
pub const SIZE_BUCKETS: usize = 25;

/// How operations of one class went, and what is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassDetail {
    /// Time that requests waited before the device had them.
    pub queued: [u64; TIME_BUCKETS],
    /// Time that operations were with the device.
    pub disk: [u64; TIME_BUCKETS],
    /// Time that requests took in all.
    pub total: [u64; TIME_BUCKETS],
    /// Sizes of operations that served one request.
    pub single: [u64; SIZE_BUCKETS],
    /// Sizes of operations that were merged of several.
    pub merged: [u64; SIZE_BUCKETS],
    /// Requests that wait now.
    pub pending: u64,
    /// Operations that are with the device now.
    pub active: u64,
}

impl Default for ClassDetail {
    fn default() -> ClassDetail {
        ClassDetail {
            queued: [0; TIME_BUCKETS],
            disk: [0; TIME_BUCKETS],
            total: [0; TIME_BUCKETS],
            single: [0; SIZE_BUCKETS],
            merged: [0; SIZE_BUCKETS],
            pending: 0,
            active: 0,
        }
    }
}

impl ClassDetail {
    fn add(&mut self, other: &ClassDetail) {
        let sum = |to: &mut [u64], from: &[u64]| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = to.wrapping_add(*from));
        };
        sum(&mut self.queued, &other.queued);
        sum(&mut self.disk, &other.disk);
        sum(&mut self.total, &other.total);
        sum(&mut self.single, &other.single);
        sum(&mut self.merged, &other.merged);
        self.pending += other.pending;
        self.active += other.active;
    }
}

/// The same for all classes, in the order of [`IoClass::ALL`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoDetail {
    /// By class.
    pub by_class: [ClassDetail; IoClass::ALL.len()],
}

impl IoDetail {
    /// Adds another vdev's.
    pub fn add(&mut self, other: &IoDetail) {
        self.by_class.iter_mut().zip(&other.by_class).for_each(|(to, from)| to.add(from));
    }
}

/// Counts by powers of two.
struct Histogram<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Histogram(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const N: usize> Histogram<N> {
    fn count(&self, value: u64) {
        let bucket = value.checked_ilog2().unwrap_or(0) as usize;
        self.0[bucket.min(N - 1)].fetch_add(1, Relaxed);
    }

    fn get(&self) -> [u64; N] {
        std::array::from_fn(|i| self.0[i].load(Relaxed))
    }
}

#[derive(Default)]
struct Cell {
    ops: AtomicU64,
    bytes: AtomicU64,
    queued: Histogram<TIME_BUCKETS>,
    disk: Histogram<TIME_BUCKETS>,
    total: Histogram<TIME_BUCKETS>,
    single: Histogram<SIZE_BUCKETS>,
    merged: Histogram<SIZE_BUCKETS>,
}

impl Cell {
    fn detail(&self) -> ClassDetail {
        ClassDetail {
            queued: self.queued.get(),
            disk: self.disk.get(),
            total: self.total.get(),
            single: self.single.get(),
            merged: self.merged.get(),
            pending: 0,
            active: 0,
        }
    }
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

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl IoStats {
    /// The device did an operation of so many bytes in that time, merged of several
    /// requests or not.
    pub(crate) fn done(&self, class: impl Into<IoClass>, bytes: u64, merged: bool, disk: Duration) {
        let cell = &self.cells[class.into() as usize];
        cell.ops.fetch_add(1, Relaxed);
        cell.bytes.fetch_add(bytes, Relaxed);
        cell.disk.count(nanos(disk));
        if merged { &cell.merged } else { &cell.single }.count(bytes);
    }

    /// A request that was done had waited so long before the device had it, and took so
    /// long in all.
    pub(crate) fn waited(&self, class: impl Into<IoClass>, queued: Duration, total: Duration) {
        let cell = &self.cells[class.into() as usize];
        cell.queued.count(nanos(queued));
        cell.total.count(nanos(total));
    }

    /// How operations went so far.
    pub(crate) fn detail(&self) -> IoDetail {
        IoDetail { by_class: std::array::from_fn(|i| self.cells[i].detail()) }
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

    /// How that went, and what is under way.
    pub fn io_detail(&self, id: NodeId) -> IoDetail {
        let node = self.node(id);
        let mut sum = node.live.io.detail();
        if let Some(queue) = &node.queue {
            for (class, (pending, active)) in sum.by_class.iter_mut().zip(queue.depths()) {
                class.pending += pending;
                class.active += active;
            }
        }
        node.children.iter().for_each(|&child| sum.add(&self.io_detail(child)));
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
        let time = Duration::from_micros(1);
        stats.done(Priority::SyncRead, 512, false, time);
        stats.done(Priority::AsyncRead, 1024, false, time);
        stats.done(Priority::Scrub, 2048, true, time);
        stats.done(WritePriority::SyncWrite, 4096, false, time);
        stats.done(WritePriority::AsyncWrite, 8192, true, time);
        let mut counts = stats.get();
        assert_eq!(counts.reads(), IoCount { ops: 3, bytes: 3584 });
        assert_eq!(counts.writes(), IoCount { ops: 2, bytes: 12_288 });
        counts.add(&stats.get());
        assert_eq!(counts.reads(), IoCount { ops: 6, bytes: 7168 });
    }

    #[test]
    fn times_and_sizes_fall_into_their_buckets() {
        let stats = IoStats::default();
        let class = IoClass::SyncRead as usize;
        for (nanos, bucket) in [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (1023, 9), (1024, 10)] {
            let before = stats.detail().by_class[class].disk[bucket];
            stats.done(Priority::SyncRead, 512, false, Duration::from_nanos(nanos));
            assert_eq!(stats.detail().by_class[class].disk[bucket], before + 1, "{nanos} ns");
        }
        stats.waited(Priority::SyncRead, Duration::ZERO, Duration::from_secs(1000));
        stats.done(WritePriority::AsyncWrite, u64::MAX, true, Duration::MAX);
        let detail = stats.detail();
        assert_eq!((detail.by_class[class].queued[0], detail.by_class[class].total[36]), (1, 1));
        assert_eq!(detail.by_class[class].single[9], 7);
        let writes = &detail.by_class[IoClass::AsyncWrite as usize];
        assert_eq!((writes.merged[SIZE_BUCKETS - 1], writes.disk[36]), (1, 1));
        let mut twice = detail.clone();
        twice.add(&detail);
        assert_eq!(twice.by_class[class].single[9], 14);
    }
}
