//! A lock on ranges of one object.
//!
//! # Theory
//! Holders of disjoint ranges proceed together; an exclusive holder is alone. A thread that
//! waits for exclusion keeps new ranges from being granted, so that a stream of writers does
//! not starve it.
//!
//! The lock is usually held across I/O. A thread holds at most one range of an object at a
//! time.

use std::ops::Range;

use crate::rt::{Condvar, Mutex};

#[derive(Debug, Default)]
struct RangeLockState {
    exclusive: bool,
    /// Threads that wait for exclusion.
    waiting: usize,
    ranges: Vec<Range<u64>>,
}

/// The lock (see the module head).
#[derive(Debug, Default)]
pub struct RangeLock {
    state: Mutex<RangeLockState>,
    freed: Condvar,
}

impl RangeLock {
    /// Waits for the range, or with `None` for exclusion. [`RangeLock::release`] ends it.
    pub fn acquire(&self, range: Option<&Range<u64>>) {
        let mut state = self.state.lock();
        let Some(range) = range else {
            state.waiting += 1;
            while state.exclusive || !state.ranges.is_empty() {
                self.freed.wait(&mut state);
            }
            state.waiting -= 1;
            state.exclusive = true;
            return;
        };
        let meets = |r: &Range<u64>| r.start < range.end && range.start < r.end;
        while state.exclusive || state.waiting > 0 || state.ranges.iter().any(meets) {
            self.freed.wait(&mut state);
        }
        state.ranges.push(range.clone());
    }

    /// Ends an [`RangeLock::acquire`] with the same argument.
    pub fn release(&self, range: Option<&Range<u64>>) {
        let mut state = self.state.lock();
        match range {
            None => state.exclusive = false,
            Some(range) => {
                if let Some(at) = state.ranges.iter().position(|r| r == range) {
                    state.ranges.swap_remove(at);
                }
            }
        }
        self.freed.notify_all();
    }

    /// Locks a range until the guard is dropped.
    pub fn range(&self, range: Range<u64>) -> RangeLockGuard<'_> {
        self.acquire(Some(&range));
        RangeLockGuard { lock: self, range: Some(range) }
    }

    /// Locks the whole object until the guard is dropped.
    pub fn exclusive(&self) -> RangeLockGuard<'_> {
        self.acquire(None);
        RangeLockGuard { lock: self, range: None }
    }
}

/// A held [`RangeLock`].
#[derive(Debug)]
pub struct RangeLockGuard<'a> {
    lock: &'a RangeLock,
    range: Option<Range<u64>>,
}

impl Drop for RangeLockGuard<'_> {
    fn drop(&mut self) {
        self.lock.release(self.range.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::atomic::{AtomicUsize, Ordering::SeqCst};

    #[test]
    fn disjoint_ranges_are_held_together_and_others_are_not() {
        let lock = RangeLock::default();
        let first = lock.range(0..10);
        let second = lock.range(10..20);
        assert_eq!(lock.state.lock().ranges.len(), 2);
        drop((first, second));
        let cells: [AtomicUsize; 16] = std::array::from_fn(|_| AtomicUsize::new(0));
        crate::rt::fan_out(4, |i| {
            for round in 0..2_000usize {
                let from = (round * 5 + i * 3) % 13;
                let alone = (round + i).is_multiple_of(11);
                let range = if alone { 0..16 } else { from..from + 3 };
                let held = match alone {
                    true => lock.exclusive(),
                    false => lock.range(range.start as u64..range.end as u64),
                };
                for cell in &cells[range.clone()] {
                    assert_eq!(cell.fetch_add(1, SeqCst), 0);
                }
                for cell in &cells[range] {
                    cell.fetch_sub(1, SeqCst);
                }
                drop(held);
            }
        });
        assert!(lock.state.lock().ranges.is_empty());
    }
}
