//! Delayed completions, run by a thread that ends when it is idle.

use std::sync::Arc;
use std::time::Duration;

use base::Result;
use base::rt::sim::Rng;
use base::rt::{self, Condvar, Instant, Mutex};

use super::SimShared;
use super::state::Ticket;
use crate::op::Op;

/// How long the thread waits for more operations before it ends.
const IDLE: Duration = Duration::from_secs(1);

struct Waiting {
    due: Instant,
    disk: usize,
    ticket: Result<Ticket>,
    op: Op,
}

struct LateQueue {
    waiting: Vec<Waiting>,
    running: bool,
    rng: Rng,
}

/// Operations whose completions are delayed.
pub(super) struct LateCompletions {
    queue: Mutex<LateQueue>,
    more: Condvar,
}

impl LateCompletions {
    pub(super) fn new(seed: u64) -> LateCompletions {
        let queue = LateQueue { waiting: Vec::new(), running: false, rng: Rng::stream(seed, 11) };
        LateCompletions { queue: Mutex::new(queue), more: Condvar::new() }
    }

    /// Draws a latency.
    pub(super) fn draw(&self, min: Duration, max: Duration) -> Duration {
        let span = u64::try_from(max.saturating_sub(min).as_nanos()).unwrap_or(u64::MAX);
        min + Duration::from_nanos(self.queue.lock().rng.below(span.saturating_add(1)))
    }
}

/// Completes `op` after a random time between the two.
pub(super) fn queue(
    shared: &Arc<SimShared>,
    disk: usize,
    ticket: Result<Ticket>,
    op: Op,
    (min, max): (Duration, Duration),
) {
    let late = &shared.late;
    let wait = late.draw(min, max);
    let mut queue = late.queue.lock();
    let due = rt::now().after(wait);
    queue.waiting.push(Waiting { due, disk, ticket, op });
    if !queue.running {
        let own = Arc::clone(shared);
        queue.running = rt::spawn("sim-disks", move || serve(&own)).is_ok();
        if !queue.running {
            let waiting = std::mem::take(&mut queue.waiting);
            drop(queue);
            waiting.into_iter().for_each(|w| end(shared, w));
            return;
        }
    }
    drop(queue);
    late.more.notify_one();
}

fn end(shared: &SimShared, mut one: Waiting) {
    let result = shared.finish(one.disk, one.ticket, &mut one.op.io);
    one.op.complete(result);
}

/// Resets the queue when the thread ends, also when its simulated run ends.
struct Running<'a>(&'a LateCompletions);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.running = false;
        let lost = std::mem::take(&mut queue.waiting);
        drop(queue);
        drop(lost);
    }
}

fn serve(shared: &Arc<SimShared>) {
    let late = &shared.late;
    let _running = Running(late);
    let mut queue = late.queue.lock();
    loop {
        let now = rt::now();
        let next = queue.waiting.iter().enumerate().min_by_key(|(i, w)| (w.due, *i));
        match next.map(|(i, w)| (i, w.due)) {
            Some((i, due)) if due <= now => {
                let one = queue.waiting.remove(i);
                drop(queue);
                end(shared, one);
                queue = late.queue.lock();
            }
            Some((_, due)) => {
                late.more.wait_timeout(&mut queue, due.since(now));
            }
            None => {
                let idle = late.more.wait_timeout(&mut queue, IDLE);
                if idle && queue.waiting.is_empty() {
                    // Under the lock: the next operation must see that the thread has
                    // ended.
                    queue.running = false;
                    return;
                }
            }
        }
    }
}
