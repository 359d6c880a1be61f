//! The sequence of a pool's device reads or writes, and the time that a disk with arms would need
//! for it.
//!
//! # Theory
//! A [`DeviceTrace`] puts a device above each device of a pool. That device notes offset and
//! length of each operation of one kind in the order of submission, and passes it on. Nothing is
//! stored per operation: counters and the modelled time grow as operations pass.
//!
//! The model is a disk that serves these operations one by one in that order, without sorting
//! them:
//! 150 MB/s for data; a seek of 2 ms to a neighbouring track, growing with the square root of
//! the distance to 15 ms for a full stroke; and half a rotation at 7200 rpm, 4.2 ms, after each
//! seek. A gap of up to [`NEAR`] bytes forwards passes below the head at the rate of data; the
//! same distance backwards costs half a rotation. Longer jumps are seeks. Operations of the other
//! kind cost nothing.
//!
//! Lock order: an arm's lock is a leaf.

use std::path::Path;
use std::sync::Arc;

use base::rt::Mutex;
use cenote::DeviceWrapper;
use cenote::inspect::device::{Caps, Completion, Device, DeviceStats, Io, Op};

/// Bytes of a jump that is no seek.
pub(super) const NEAR: u64 = 1 << 20;
/// Bytes that the modelled disk transfers a second.
const RATE: f64 = 150e6;
/// Seconds of the shortest and the longest seek.
const SEEK: (f64, f64) = (0.002, 0.015);
/// Seconds of half a rotation.
const HALF_ROTATION: f64 = 0.0042;

/// The counters of one traced device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ArmCounters {
    /// Operations submitted.
    pub(super) ops: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// Operations that begin where the last one of the device ended.
    pub(super) sequential: u64,
    /// Jumps of more than [`NEAR`] bytes from the end of one operation to the begin of the next.
    pub(super) seeks: u64,
    /// Seconds that the modelled disk needs.
    pub(super) busy: f64,
}

impl ArmCounters {
    /// The share of operations that begin where the last one ended, 0 to 1; `None` without
    /// operations.
    pub(super) fn sequential_share(&self) -> Option<f64> {
        (self.ops > 0).then(|| self.sequential as f64 / self.ops as f64)
    }
}

/// One modelled disk.
#[derive(Debug)]
struct DiskArm {
    size: u64,
    /// Where the last operation ended.
    head: u64,
    counters: ArmCounters,
}

impl DiskArm {
    fn new(size: u64) -> DiskArm {
        DiskArm { size, head: 0, counters: ArmCounters::default() }
    }

    fn serve(&mut self, offset: u64, len: u64) {
        let distance = offset.abs_diff(self.head);
        let c = &mut self.counters;
        c.busy += match distance {
            0 => {
                c.sequential += 1;
                0.0
            }
            d if d > NEAR => {
                c.seeks += 1;
                let stroke = (d as f64 / self.size.max(1) as f64).min(1.0);
                SEEK.0 + (SEEK.1 - SEEK.0) * stroke.sqrt() + HALF_ROTATION
            }
            d if offset > self.head => d as f64 / RATE,
            _ => HALF_ROTATION,
        };
        c.ops += 1;
        c.bytes += len;
        c.busy += len as f64 / RATE;
        self.head = offset.saturating_add(len);
    }
}

/// The kind of operations that a trace notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TracedOps {
    Reads,
    Writes,
}

impl TracedOps {
    fn has(self, io: &Io) -> bool {
        match self {
            TracedOps::Reads => matches!(io, Io::Read { .. }),
            TracedOps::Writes => matches!(io, Io::Write { .. }),
        }
    }
}

/// The traced devices of a pool, in the order in which they were opened.
#[derive(Clone)]
pub(super) struct DeviceTrace {
    kind: TracedOps,
    arms: Arc<Mutex<Vec<Arc<Mutex<DiskArm>>>>>,
}

impl DeviceTrace {
    /// A trace without devices.
    pub(super) fn new(kind: TracedOps) -> DeviceTrace {
        DeviceTrace { kind, arms: Arc::default() }
    }

    /// A wrapper that adds each device to this trace.
    pub(super) fn wrapper(&self) -> DeviceWrapper {
        let trace = self.clone();
        DeviceWrapper::new(move |below| {
            let arm = Arc::new(Mutex::new(DiskArm::new(below.size())));
            trace.arms.lock().push(Arc::clone(&arm));
            Arc::new(TracedDevice { below, kind: trace.kind, arm })
        })
    }

    /// The counters of all devices.
    pub(super) fn snapshot(&self) -> TraceSnapshot {
        TraceSnapshot(self.arms.lock().iter().map(|arm| arm.lock().counters).collect())
    }
}

/// The counters of all devices at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct TraceSnapshot(Vec<ArmCounters>);

impl TraceSnapshot {
    /// The sums of what was counted since `before`, an earlier snapshot. The disks work in
    /// parallel: `busy` is that of the slowest.
    pub(super) fn since(&self, before: &TraceSnapshot) -> ArmCounters {
        let mut sum = ArmCounters::default();
        for (i, now) in self.0.iter().enumerate() {
            let then = before.0.get(i).copied().unwrap_or_default();
            sum.ops += now.ops - then.ops;
            sum.bytes += now.bytes - then.bytes;
            sum.sequential += now.sequential - then.sequential;
            sum.seeks += now.seeks - then.seeks;
            sum.busy = sum.busy.max(now.busy - then.busy);
        }
        sum
    }
}

/// A device that notes its operations of one kind.
struct TracedDevice {
    below: Arc<dyn Device>,
    kind: TracedOps,
    arm: Arc<Mutex<DiskArm>>,
}

impl TracedDevice {
    fn note<'a>(&self, ops: impl Iterator<Item = &'a Io>) {
        let mut noted = ops.filter(|io| self.kind.has(io)).peekable();
        if noted.peek().is_some() {
            let mut arm = self.arm.lock();
            noted.for_each(|io| arm.serve(io.offset(), io.len()));
        }
    }
}

impl Device for TracedDevice {
    fn caps(&self) -> &Caps {
        self.below.caps()
    }

    fn size(&self) -> u64 {
        self.below.size()
    }

    fn submit(&self, batch: Vec<Op>) {
        self.note(batch.iter().map(|op| &op.io));
        self.below.submit(batch);
    }

    fn describe(&self) -> String {
        self.below.describe()
    }

    fn stats(&self) -> &DeviceStats {
        self.below.stats()
    }

    fn is_at(&self, path: &Path) -> bool {
        self.below.is_at(path)
    }

    fn run(&self, io: Io) -> Completion {
        self.note(std::iter::once(&io));
        self.below.run(io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_sequence_costs_the_transfer_alone() {
        let mut arm = DiskArm::new(GIB);
        (0..100).for_each(|n| arm.serve(n << 20, 1 << 20));
        assert_eq!((arm.counters.ops, arm.counters.seeks), (100, 0));
        assert_eq!((arm.counters.sequential, arm.counters.sequential_share()), (100, Some(1.0)));
        assert_eq!(ArmCounters::default().sequential_share(), None);
        assert!((arm.counters.busy - (100 << 20) as f64 / RATE).abs() < 1e-9);
    }

    #[test]
    fn jumps_cost_by_distance_and_direction() {
        let cost = |from: u64, to: u64| {
            let mut arm = DiskArm::new(GIB);
            arm.head = from;
            arm.serve(to, 0);
            (arm.counters.seeks, arm.counters.busy)
        };
        assert_eq!(cost(0, NEAR), (0, NEAR as f64 / RATE));
        assert_eq!(cost(NEAR, 0), (0, HALF_ROTATION));
        assert_eq!(cost(0, GIB), (1, SEEK.1 + HALF_ROTATION));
        let (seeks, quarter) = cost(GIB / 2, GIB / 4);
        assert_eq!(seeks, 1);
        assert!((quarter - (0.0085 + HALF_ROTATION)).abs() < 1e-9, "{quarter}");
    }

    #[test]
    fn the_slowest_of_several_disks_counts() {
        let arm =
            |ops, busy| ArmCounters { ops, bytes: ops << 12, sequential: ops, seeks: ops, busy };
        let before = TraceSnapshot(vec![arm(1, 1.0)]);
        let after = TraceSnapshot(vec![arm(3, 1.5), arm(4, 2.0)]);
        assert_eq!(after.since(&before), ArmCounters { bytes: 6 << 12, ..arm(6, 2.0) });
    }
}
