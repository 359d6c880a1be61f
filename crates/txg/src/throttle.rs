//! The queue of writers at the limit for dirty data: first come, first served; and the slots in
//! which delayed writers continue ([`DelaySlots`]).
//!
//! Each waiting writer has its own condition. When there is room, the writer at the
//! front is woken, and it wakes the next one when it leaves. A writer that arrives
//! while others wait queues behind them, even if there is room by then.
//!
//! A waiter counts itself before it checks for room, and room is made before waiters
//! are counted. Both are sequentially consistent, so one of them sees the other.

use std::collections::VecDeque;
use std::sync::Arc;

use base::rt::atomic::{AtomicU64, Ordering::SeqCst};
use base::rt::{Condvar, Mutex};
use kstat::Counter;

use crate::limits::wakeup;

/// How often writers were delayed or blocked.
#[derive(Debug, Default)]
pub struct ThrottleStats {
    /// Delayed on the curve (`dmu_tx_dirty_delay`).
    pub dirty_delay: Counter,
    /// Stopped at the limit (`dmu_tx_dirty_over_max`).
    pub dirty_over_max: Counter,
    /// Nanoseconds slept on the curve.
    pub delay_ns: Counter,
}

/// The time until which writers were already delayed on a curve, so that the pool's rate is that
/// of the curve, however many threads write.
#[derive(Default)]
pub(crate) struct DelaySlots {
    last_wakeup: AtomicU64,
}

impl DelaySlots {
    /// Takes the next slot: the time at which a transaction that began at `start` continues.
    pub(crate) fn next(&self, start: u64, delay: u64) -> u64 {
        let next = |last: u64| Some(wakeup(start, last, delay));
        let last = self.last_wakeup.fetch_update(SeqCst, SeqCst, next);
        wakeup(start, last.unwrap_or(start), delay)
    }

    /// Gives all slots back, because the reason for the delays is gone.
    pub(crate) fn reset(&self) {
        self.last_wakeup.store(0, SeqCst);
    }
}

/// The queue.
#[derive(Default)]
pub(crate) struct ThrottleQueue {
    waiting: AtomicU64,
    queue: Mutex<VecDeque<Arc<Condvar>>>,
}

impl ThrottleQueue {
    /// Number of waiting writers.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(SeqCst)
    }

    /// Whether a writer waits.
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting() > 0
    }

    /// Waits until it is at the front and there is room; false if `refused` came first.
    pub(crate) fn pass(&self, room: impl Fn() -> bool, refused: impl Fn() -> bool) -> bool {
        let me = Arc::new(Condvar::new());
        let mut queue = self.queue.lock();
        queue.push_back(Arc::clone(&me));
        self.waiting.fetch_add(1, SeqCst);
        let passed = loop {
            if refused() {
                break false;
            }
            if queue.front().is_some_and(|front| Arc::ptr_eq(front, &me)) && room() {
                break true;
            }
            me.wait(&mut queue);
        };
        queue.retain(|other| !Arc::ptr_eq(other, &me));
        self.waiting.fetch_sub(1, SeqCst);
        if let Some(next) = queue.front() {
            next.notify_one();
        }
        passed
    }

    /// Wakes the first waiter, because there is room.
    pub(crate) fn wake(&self) {
        if self.has_waiters()
            && let Some(front) = self.queue.lock().front()
        {
            front.notify_one();
        }
    }

    /// Wakes all waiters, because other state changed.
    pub(crate) fn wake_all(&self) {
        self.queue.lock().iter().for_each(|waiter| waiter.notify_one());
    }
}
