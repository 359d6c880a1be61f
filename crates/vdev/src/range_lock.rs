//! Range locks between writes of blocks and copies of a rebuild.
//!
//! # Theory
//! A rebuild reads a range from the leaves that have it, and writes it to a leaf that lacks it.
//! A block that is written to the range between the two would be replaced by old bytes on that
//! leaf. So a copy locks its ranges: no write of an overlapping block is in flight meanwhile. A
//! write counts from before it is planned until its last leaf has answered. It waits only for
//! copies of space that is in use, so nearly always for none: new blocks are written to free
//! space.
//!
//! As long as no rebuild runs, writes are only counted. [`RangeLocks::begin`] has later writes
//! register their ranges, and waits for the ones that did not. All snapshots of a tree share
//! the locks, so a write that was planned on an older one counts as well.
//!
//! # Invariants
//! * A range that is locked overlaps no registered write, and no write is unregistered.
//! * A copy waits until no write overlaps any of its ranges, and locks them all at that moment.
//!   Until then it keeps no write waiting. So a thread that holds registered writes while
//!   it waits for another copy does not wait for itself.
//! * The owner of a lock waits for nothing but its devices.
//!
//! Lock order: `state` is a leaf lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::VdevId;
use base::rt::atomic::Ordering::SeqCst;
use base::rt::atomic::{AtomicU64, AtomicUsize};
use base::rt::{Condvar, Mutex};

#[derive(Default)]
struct LockState {
    /// The ends of registered writes, by vdev, offset and number.
    writes: BTreeMap<(VdevId, u64, u64), u64>,
    number: u64,
    locked: Vec<Locked>,
}

/// Ranges of one copy.
struct Locked {
    number: u64,
    vdev: VdevId,
    /// Ascending, offset and end.
    ranges: Vec<(u64, u64)>,
}

/// Whether ascending ranges overlap one from `from` to `end`.
fn overlap(ranges: &[(u64, u64)], from: u64, end: u64) -> bool {
    let next = ranges.partition_point(|(_, e)| *e <= from);
    ranges.get(next).is_some_and(|(start, _)| *start < end)
}

impl LockState {
    fn is_locked(&self, vdev: VdevId, from: u64, end: u64) -> bool {
        self.locked.iter().any(|l| l.vdev == vdev && overlap(&l.ranges, from, end))
    }

    fn is_written(&self, vdev: VdevId, ranges: &[(u64, u64)]) -> bool {
        let of_vdev = self.writes.range((vdev, 0, 0)..=(vdev, u64::MAX, u64::MAX));
        of_vdev.into_iter().any(|(&(_, from, _), &end)| overlap(ranges, from, end))
    }
}

/// The range locks of a pool.
#[derive(Default)]
pub(crate) struct RangeLocks {
    /// Rebuilds that run.
    rebuilds: AtomicUsize,
    /// Writes in flight that are not registered.
    unregistered: AtomicU64,
    state: Mutex<LockState>,
    changed: Condvar,
}

/// A write in flight.
pub(crate) struct WriteTicket {
    locks: Arc<RangeLocks>,
    registered: Option<(VdevId, u64, u64)>,
}

/// Writes register their ranges as long as it exists.
pub struct RebuildSession(Arc<RangeLocks>);

/// Ranges of a vdev that no write of a block reaches as long as this exists.
pub struct LockedRanges {
    locks: Arc<RangeLocks>,
    number: u64,
}

impl RangeLocks {
    /// Begins a write; waits while its range is locked.
    pub(crate) fn write(self: &Arc<Self>, vdev: VdevId, offset: u64, len: u64) -> WriteTicket {
        let locks = Arc::clone(self);
        self.unregistered.fetch_add(1, SeqCst);
        let plain = WriteTicket { locks, registered: None };
        if self.rebuilds.load(SeqCst) == 0 {
            return plain;
        }
        drop(plain);
        let end = offset.saturating_add(len);
        let mut state = self.state.lock();
        while state.is_locked(vdev, offset, end) {
            self.changed.wait(&mut state);
        }
        state.number += 1;
        let key = (vdev, offset, state.number);
        state.writes.insert(key, end);
        drop(state);
        WriteTicket { locks: Arc::clone(self), registered: Some(key) }
    }

    /// Has writes register from now on, and waits for those that did not.
    pub(crate) fn begin(self: &Arc<Self>) -> RebuildSession {
        self.rebuilds.fetch_add(1, SeqCst);
        let session = RebuildSession(Arc::clone(self));
        let mut state = self.state.lock();
        while self.unregistered.load(SeqCst) > 0 {
            self.changed.wait(&mut state);
        }
        drop(state);
        session
    }
}

impl RebuildSession {
    /// Locks ranges of a vdev, ascending offsets and ends; waits for writes that overlap them.
    pub(crate) fn lock(&self, vdev: VdevId, ranges: Vec<(u64, u64)>) -> LockedRanges {
        let locks = &self.0;
        let mut state = locks.state.lock();
        while state.is_written(vdev, &ranges) {
            locks.changed.wait(&mut state);
        }
        state.number += 1;
        let number = state.number;
        state.locked.push(Locked { number, vdev, ranges });
        drop(state);
        LockedRanges { locks: Arc::clone(locks), number }
    }
}

impl Drop for RebuildSession {
    fn drop(&mut self) {
        self.0.rebuilds.fetch_sub(1, SeqCst);
    }
}

impl Drop for WriteTicket {
    fn drop(&mut self) {
        match self.registered {
            Some(key) => {
                self.locks.state.lock().writes.remove(&key);
                self.locks.changed.notify_all();
            }
            None => {
                let last = self.locks.unregistered.fetch_sub(1, SeqCst) == 1;
                // A rebuild that counts the writes after this one sees none of it; another
                // one waits by now, or looks again under the lock.
                if last && self.locks.rebuilds.load(SeqCst) > 0 {
                    drop(self.locks.state.lock());
                    self.locks.changed.notify_all();
                }
            }
        }
    }
}

impl Drop for LockedRanges {
    fn drop(&mut self) {
        self.locks.state.lock().locked.retain(|l| l.number != self.number);
        self.locks.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    const V: VdevId = VdevId(3);

    #[test]
    fn ranges_overlap() {
        let ranges = [(10, 20), (30, 40)];
        for (from, end, want) in
            [(0, 10, false), (0, 11, true), (19, 20, true), (20, 30, false), (25, 31, true)]
        {
            assert_eq!(overlap(&ranges, from, end), want, "{from} {end}");
        }
        assert!(overlap(&ranges, 0, u64::MAX) && !overlap(&ranges, 40, u64::MAX));
    }

    /// Under every schedule that the seeds give: a copy and a write of the same range never
    /// overlap, and all threads end, also one that has two writes at a time.
    #[test]
    fn copies_and_writes_exclude_each_other() {
        for seed in 0..200 {
            let run = base::rt::sim::run(seed, || {
                let locks = Arc::new(RangeLocks::default());
                let (copying, writing) =
                    (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
                let mut threads = Vec::new();
                for n in 0..2u64 {
                    let (locks, copying, writing) =
                        (Arc::clone(&locks), Arc::clone(&copying), Arc::clone(&writing));
                    let writer = move || {
                        for _ in 0..4 {
                            let first = locks.write(V, 100 * n, 10);
                            let second = locks.write(V, 1000, 10);
                            if n == 0 {
                                assert!(!copying.load(Ordering::SeqCst), "a write during a copy");
                                writing.store(true, Ordering::SeqCst);
                                base::rt::sleep(std::time::Duration::from_micros(1));
                                writing.store(false, Ordering::SeqCst);
                            }
                            drop((first, second));
                        }
                    };
                    threads.push(base::rt::spawn("writer", writer).unwrap());
                }
                let session = locks.begin();
                for _ in 0..3 {
                    let locked = session.lock(V, vec![(0, 5), (90, 101), (1009, 2000)]);
                    copying.store(true, Ordering::SeqCst);
                    assert!(!writing.load(Ordering::SeqCst), "a copy during a write");
                    base::rt::sleep(std::time::Duration::from_micros(1));
                    assert!(!writing.load(Ordering::SeqCst), "a copy during a write");
                    copying.store(false, Ordering::SeqCst);
                    drop(locked);
                    let elsewhere = session.lock(VdevId(0), vec![(0, u64::MAX)]);
                    drop(elsewhere);
                }
                drop(session);
                assert!(threads.into_iter().all(|thread| thread.join().is_some()));
                assert!(locks.state.lock().writes.is_empty());
                assert_eq!(locks.unregistered.load(SeqCst), 0);
            });
            assert!(matches!(run.outcome, base::rt::sim::Outcome::Done(())), "seed {seed}");
        }
    }
}
