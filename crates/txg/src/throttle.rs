//! The turnstile at the limit for dirty data: who came first passes first.
//!
//! Each writer that waits has a condition of its own; room wakes the one at the front,
//! which wakes the next when it goes. Who comes while others wait queues behind them,
//! even if there is room by now.
//!
//! A waiter counts itself before it looks for room, and room is made before waiters are
//! counted, both sequentially consistent: one of them sees the other.

use std::collections::VecDeque;
use std::sync::Arc;

use base::rt::atomic::{AtomicU64, Ordering::SeqCst};
use base::rt::{Condvar, Mutex};
use kstat::Counter;

use crate::limits::wakeup;

/// How often writers were held back.
#[derive(Debug, Default)]
pub struct ThrottleStats {
    /// Delayed on the curve (`dmu_tx_dirty_delay`).
    pub dirty_delay: Counter,
    /// Stopped at the limit (`dmu_tx_dirty_over_max`).
    pub dirty_over_max: Counter,
    /// Nanoseconds slept on the curve.
    pub delay_ns: Counter,
}

/// The queue, and the time until which the curve has sent writers to sleep.
#[derive(Default)]
pub(crate) struct Turnstile {
    waiting: AtomicU64,
    queue: Mutex<VecDeque<Arc<Condvar>>>,
    last_wakeup: AtomicU64,
}

impl Turnstile {
    /// How many wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(SeqCst)
    }

    /// Whether somebody waits.
    pub(crate) fn crowded(&self) -> bool {
        self.waiting() > 0
    }

    /// Waits for its turn and for room; false if `refused` came first.
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

    /// There is room.
    pub(crate) fn wake(&self) {
        if self.crowded()
            && let Some(front) = self.queue.lock().front()
        {
            front.notify_one();
        }
    }

    /// Something else changed that all should look at.
    pub(crate) fn wake_all(&self) {
        self.queue.lock().iter().for_each(|waiter| waiter.notify_one());
    }

    /// Takes the next place on the curve: when a transaction that began at `start` goes on.
    pub(crate) fn book(&self, start: u64, delay: u64) -> u64 {
        let book = |last: u64| Some(wakeup(start, last, delay));
        let last = self.last_wakeup.fetch_update(SeqCst, SeqCst, book);
        wakeup(start, last.unwrap_or(start), delay)
    }
}
