//! Counters of a leaf: operations and bytes, by the reason they were made.
//!
//! # Theory
//! An operation is counted once, when the device has completed it without error. A read
//! of neighbouring pieces and a merged write are one operation of all its bytes, as the
//! device saw it. Failed operations are in the error counters. Interior vdevs have no
//! counters of their own; theirs are the sums over their leaves.
//!
//! All counting for one leaf happens in two functions. [`IoStats::done`] gets what is
//! known when an operation ends (its class, bytes, time in the device, whether it was
//! merged), and [`IoStats::waited`] gets the waiting time of each of its requests.
//! Times and sizes are kept as histograms by powers of two (chapter 09 §4.5), from
//! which averages are derived as well.
//!
//! # Invariants
//! * Counters only grow. They belong to a vdev, not to a snapshot, and last as long as
//!   the pool is open. `zpool clear` does not reset them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::rt::{self, Instant};

use crate::queue::WritePriority;
use crate::read::Priority;
use crate::tree::{NodeId, Tree};

/// Why an operation was made: the classes of OpenZFS's queues (chapter 02 §14).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoClass {
    /// A read whose caller waits for the bytes.
    SyncRead,
    /// A write whose caller waits until it is done.
    SyncWrite,
    /// Read-ahead.
    AsyncRead,
    /// A write of a transaction group.
    AsyncWrite,
    /// Scrub or resilver.
    Scrub,
    /// A discard of free space.
    Trim,
    /// A pattern written to free space.
    Initializing,
    /// A read of a sequential rebuild.
    RebuildRead,
    /// A write of a sequential rebuild. Both have the tunables of the class "rebuild".
    RebuildWrite,
}

impl IoClass {
    /// All classes, in the order of [`IoCounts::by_class`].
    pub const ALL: [IoClass; 9] = [
        IoClass::SyncRead,
        IoClass::SyncWrite,
        IoClass::AsyncRead,
        IoClass::AsyncWrite,
        IoClass::Scrub,
        IoClass::Trim,
        IoClass::Initializing,
        IoClass::RebuildRead,
        IoClass::RebuildWrite,
    ];

    /// Whether operations of the class are writes.
    pub(crate) fn is_write(self) -> bool {
        matches!(
            self,
            IoClass::SyncWrite
                | IoClass::AsyncWrite
                | IoClass::Initializing
                | IoClass::RebuildWrite
        )
    }

    /// Whether operations of the class are reads.
    fn is_read(self) -> bool {
        !self.is_write() && self != IoClass::Trim
    }
}

impl From<Priority> for IoClass {
    fn from(priority: Priority) -> IoClass {
        match priority {
            Priority::SyncRead => IoClass::SyncRead,
            Priority::AsyncRead => IoClass::AsyncRead,
            Priority::Scrub => IoClass::Scrub,
            Priority::Rebuild => IoClass::RebuildRead,
        }
    }
}

impl From<WritePriority> for IoClass {
    fn from(priority: WritePriority) -> IoClass {
        match priority {
            WritePriority::Awaited | WritePriority::SyncWrite => IoClass::SyncWrite,
            WritePriority::AsyncWrite => IoClass::AsyncWrite,
            WritePriority::Trim => IoClass::Trim,
            WritePriority::Initializing => IoClass::Initializing,
            WritePriority::Rebuild => IoClass::RebuildWrite,
        }
    }
}

/// Operations and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCount {
    /// Operations that the device completed.
    pub ops: u64,
    /// Their bytes.
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
        self.sum(IoClass::is_read)
    }

    /// All writes.
    pub fn writes(&self) -> IoCount {
        self.sum(IoClass::is_write)
    }

    /// What happened since `earlier` counters of the same vdevs; 0 where they began anew.
    #[must_use]
    pub fn since(&self, earlier: &IoCounts) -> IoCounts {
        let mut since = *self;
        for (now, then) in since.by_class.iter_mut().zip(&earlier.by_class) {
            now.ops = now.ops.saturating_sub(then.ops);
            now.bytes = now.bytes.saturating_sub(then.bytes);
        }
        since
    }

    /// Adds another vdev's counters.
    pub fn add(&mut self, other: &IoCounts) {
        self.by_class.iter_mut().zip(&other.by_class).for_each(|(to, from)| to.add(*from));
    }
}

/// Number of time buckets. Bucket j counts times of 2^j to 2^(j+1) - 1 nanoseconds; the
/// first also counts zero, and the last all longer times.
pub(crate) const TIME_BUCKETS: usize = 37;
/// Number of size buckets. Bucket j counts operations of 2^j to 2^(j+1) - 1 bytes.
pub(crate) const SIZE_BUCKETS: usize = 25;

/// Histograms of the operations of one class, and the operations in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassDetail {
    /// Time for which requests waited before the device had them.
    pub queued: [u64; TIME_BUCKETS],
    /// Time for which operations were in the device.
    pub disk: [u64; TIME_BUCKETS],
    /// Time from the arrival of a request to its end.
    pub total: [u64; TIME_BUCKETS],
    /// Sizes of operations with a single request.
    pub single: [u64; SIZE_BUCKETS],
    /// Sizes of operations merged from several requests.
    pub merged: [u64; SIZE_BUCKETS],
    /// Requests that are waiting now.
    pub pending: u64,
    /// Operations in the device now.
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

/// The details of all classes, in the order of [`IoClass::ALL`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoDetail {
    /// By class.
    pub by_class: [ClassDetail; IoClass::ALL.len()],
}

impl IoDetail {
    /// Adds another vdev's counts.
    pub fn add(&mut self, other: &IoDetail) {
        self.by_class.iter_mut().zip(&other.by_class).for_each(|(to, from)| to.add(from));
    }
}

/// A histogram by powers of two.
struct AtomicHistogram<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for AtomicHistogram<N> {
    fn default() -> Self {
        AtomicHistogram(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const N: usize> AtomicHistogram<N> {
    fn count(&self, value: u64) {
        let bucket = value.checked_ilog2().unwrap_or(0) as usize;
        self.0[bucket.min(N - 1)].fetch_add(1, Relaxed);
    }

    fn get(&self) -> [u64; N] {
        std::array::from_fn(|i| self.0[i].load(Relaxed))
    }
}

#[derive(Default)]
struct ClassCounters {
    ops: AtomicU64,
    bytes: AtomicU64,
    queued: AtomicHistogram<TIME_BUCKETS>,
    disk: AtomicHistogram<TIME_BUCKETS>,
    total: AtomicHistogram<TIME_BUCKETS>,
    single: AtomicHistogram<SIZE_BUCKETS>,
    merged: AtomicHistogram<SIZE_BUCKETS>,
}

impl ClassCounters {
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
    classes: [ClassCounters; IoClass::ALL.len()],
    /// Reads, without scans, and their nanoseconds in the device.
    reads: AtomicU64,
    read_time: AtomicU64,
    since: Instant,
}

impl Default for IoStats {
    fn default() -> IoStats {
        IoStats {
            classes: Default::default(),
            reads: AtomicU64::new(0),
            read_time: AtomicU64::new(0),
            since: rt::now(),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl IoStats {
    /// Counts an operation that the device completed: its bytes, its time in the
    /// device, and whether it was merged from several requests.
    pub(crate) fn done(&self, class: impl Into<IoClass>, bytes: u64, merged: bool, disk: Duration) {
        let class = class.into();
        if matches!(class, IoClass::SyncRead | IoClass::AsyncRead) {
            self.reads.fetch_add(1, Relaxed);
            self.read_time.fetch_add(nanos(disk), Relaxed);
        }
        let cell = &self.classes[class as usize];
        cell.ops.fetch_add(1, Relaxed);
        cell.bytes.fetch_add(bytes, Relaxed);
        cell.disk.count(nanos(disk));
        if merged { &cell.merged } else { &cell.single }.count(bytes);
    }

    /// Counts a completed request: how long it waited before the device had it, and how
    /// long it took in total.
    pub(crate) fn waited(&self, class: impl Into<IoClass>, queued: Duration, total: Duration) {
        let cell = &self.classes[class.into() as usize];
        cell.queued.count(nanos(queued));
        cell.total.count(nanos(total));
    }

    /// Reads, without scans, and their nanoseconds in the device.
    pub(crate) fn reads(&self) -> (u64, u64) {
        (self.reads.load(Relaxed), self.read_time.load(Relaxed))
    }

    /// The histograms so far.
    pub(crate) fn detail(&self) -> IoDetail {
        IoDetail { by_class: std::array::from_fn(|i| self.classes[i].detail()) }
    }

    /// The current counters.
    pub(crate) fn get(&self) -> IoCounts {
        let read = |cell: &ClassCounters| IoCount {
            ops: cell.ops.load(Relaxed),
            bytes: cell.bytes.load(Relaxed),
        };
        IoCounts { by_class: std::array::from_fn(|i| read(&self.classes[i])) }
    }
}

impl Tree {
    /// Operations of a vdev and everything below it since [`Tree::io_age`].
    pub fn io(&self, id: NodeId) -> IoCounts {
        let node = self.node(id);
        let mut sum = node.live.io.get();
        node.children.iter().for_each(|&child| sum.add(&self.io(child)));
        sum
    }

    /// Histograms of these operations, and the operations in flight.
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

    /// How long operations have been counted: since the pool was opened, or since the
    /// vdev joined it.
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
    fn classes_are_in_order() {
        for (i, class) in IoClass::ALL.iter().enumerate() {
            assert_eq!(*class as usize, i);
        }
    }

    #[test]
    fn reads_and_writes_are_separate_and_summed() {
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
