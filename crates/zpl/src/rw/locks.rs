//! Locks of objects against concurrent changes, and seqlocks for readers without locks.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use base::ids::IdMap;
use base::range_lock::RangeLock;
use base::rt::{Mutex, MutexGuard};
use base::{Error, ErrorKind, ObjectId, Result};
use dmu::{Io, Mode};

const STRIPES: usize = 64;
/// How often a reader retries before it excludes writers.
const TRIES: usize = 8;

fn stripe(id: ObjectId) -> usize {
    (id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % STRIPES
}

type LockStripe = Mutex<IdMap<u64, Arc<RangeLock>>>;

/// The locks of objects; one exists while a thread holds it or waits for it.
pub(crate) struct Locks {
    stripes: [LockStripe; STRIPES],
}

impl Default for Locks {
    fn default() -> Self {
        Locks { stripes: std::array::from_fn(|_| Mutex::default()) }
    }
}

/// A held lock: on the whole object, or on a range of a file.
pub(crate) struct ObjectLockGuard<'a> {
    stripe: &'a LockStripe,
    id: ObjectId,
    lock: Arc<RangeLock>,
    range: Option<Range<u64>>,
}

impl Locks {
    fn get(&self, id: ObjectId) -> (&LockStripe, Arc<RangeLock>) {
        let stripe = &self.stripes[stripe(id)];
        let lock = Arc::clone(stripe.lock().entry(id.0).or_default());
        (stripe, lock)
    }

    /// Locks the object exclusively.
    pub(crate) fn exclusive(&self, id: ObjectId) -> ObjectLockGuard<'_> {
        let (stripe, lock) = self.get(id);
        lock.acquire(None);
        ObjectLockGuard { stripe, id, lock, range: None }
    }

    /// Locks several objects exclusively, in ascending order, each once.
    pub(crate) fn all(&self, ids: &[ObjectId]) -> Vec<ObjectLockGuard<'_>> {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().map(|id| self.exclusive(id)).collect()
    }

    /// Locks a range of a file; other ranges can be locked at the same time.
    pub(crate) fn range(&self, id: ObjectId, range: Range<u64>) -> ObjectLockGuard<'_> {
        let (stripe, lock) = self.get(id);
        lock.acquire(Some(&range));
        ObjectLockGuard { stripe, id, lock, range: Some(range) }
    }
}

impl Drop for ObjectLockGuard<'_> {
    fn drop(&mut self) {
        self.lock.release(self.range.as_ref());
        // A thread that waits has a reference, which it took under the stripe's lock.
        let mut stripe = self.stripe.lock();
        if Arc::strong_count(&self.lock) == 2 {
            stripe.remove(&self.id.0);
        }
    }
}

#[derive(Default)]
struct SeqCell {
    version: AtomicU64,
    changing: Mutex<()>,
}

/// Seqlocks for changes of several steps: readers see the state before or after a change.
pub(crate) struct SeqLock {
    cells: [SeqCell; STRIPES],
}

impl Default for SeqLock {
    fn default() -> Self {
        SeqLock { cells: std::array::from_fn(|_| SeqCell::default()) }
    }
}

/// A change of several steps is in progress.
pub(crate) struct SeqWriteGuard<'a> {
    cell: &'a SeqCell,
    _changing: MutexGuard<'a, ()>,
}

impl Drop for SeqWriteGuard<'_> {
    fn drop(&mut self) {
        self.cell.version.fetch_add(1, SeqCst);
    }
}

impl SeqLock {
    /// Begins a change of `id`; a thread has at most one at a time.
    pub(crate) fn write(&self, id: ObjectId) -> SeqWriteGuard<'_> {
        let cell = &self.cells[stripe(id)];
        let changing = cell.changing.lock();
        cell.version.fetch_add(1, SeqCst);
        SeqWriteGuard { cell, _changing: changing }
    }

    /// The result of `f`, which reads `id`: its state before or after any change.
    ///
    /// # Errors
    /// Those of `f`; `WouldBlock` when the call must not wait, and would have to.
    pub(crate) fn read<T>(
        &self,
        id: ObjectId,
        io: Io,
        mut f: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let cell = &self.cells[stripe(id)];
        for _ in 0..TRIES {
            let before = cell.version.load(SeqCst);
            if before.is_multiple_of(2) {
                let out = f();
                if cell.version.load(SeqCst) == before {
                    return out;
                }
            } else if io.mode == Mode::MayWait {
                drop(cell.changing.lock());
            } else {
                break;
            }
        }
        if io.mode != Mode::MayWait {
            return Err(Error::new(ErrorKind::WouldBlock, "the object is being changed"));
        }
        let _alone = cell.changing.lock();
        f()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn ranges_exclude_each_other_and_exclusive_locks() {
        let locks = Locks::default();
        let inside = AtomicUsize::new(0);
        let alone = AtomicUsize::new(0);
        base::rt::fan_out(6, |i| {
            for round in 0..400usize {
                if (round + i).is_multiple_of(7) {
                    let _all = locks.all(&[ObjectId(9), ObjectId(3), ObjectId(9)]);
                    assert_eq!(alone.fetch_add(1, SeqCst), 0);
                    assert_eq!(inside.load(SeqCst), 0);
                    alone.fetch_sub(1, SeqCst);
                } else {
                    let at = (round as u64 * 3) % 10;
                    let _range = locks.range(ObjectId(9), at..at + 4);
                    inside.fetch_add(1, SeqCst);
                    assert_eq!(alone.load(SeqCst), 0);
                    inside.fetch_sub(1, SeqCst);
                }
            }
        });
        assert!(locks.stripes.iter().all(|s| s.lock().is_empty()));
    }

    #[test]
    fn readers_see_no_middle() {
        let seqlock = SeqLock::default();
        let (a, b) = (AtomicU64::new(0), AtomicU64::new(0));
        let id = ObjectId(5);
        base::rt::fan_out(3, |i| {
            for n in 0..3000 {
                if i == 0 {
                    let _turn = seqlock.write(id);
                    a.store(n, SeqCst);
                    b.store(n, SeqCst);
                } else {
                    let io = if i == 1 { Io::WAIT } else { Io::MEMORY };
                    match seqlock.read(id, io, || Ok((a.load(SeqCst), b.load(SeqCst)))) {
                        Ok((a, b)) => assert_eq!(a, b),
                        Err(e) => assert!(i == 2 && e.kind() == ErrorKind::WouldBlock),
                    }
                }
            }
        });
    }
}
