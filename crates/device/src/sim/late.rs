//! Completions that come late: a thread of the disks' that ends when it is idle.

use std::sync::Arc;
use std::time::Duration;

use base::Result;
use base::rt::sim::Rng;
use base::rt::{self, Condvar, Instant, Mutex};

use super::Shared;
use super::state::Ticket;
use crate::op::Op;

/// How long the thread waits for more before it ends.
const IDLE: Duration = Duration::from_secs(1);

struct Waiting {
    due: Instant,
    disk: usize,
    ticket: Result<Ticket>,
    op: Op,
}

struct Queue {
    waiting: Vec<Waiting>,
    running: bool,
    rng: Rng,
}

/// Operations on their way back.
pub(super) struct Line {
    queue: Mutex<Queue>,
    more: Condvar,
}

impl Line {
    pub(super) fn new(seed: u64) -> Line {
        let queue = Queue { waiting: Vec::new(), running: false, rng: Rng::stream(seed, 11) };
        Line { queue: Mutex::new(queue), more: Condvar::new() }
    }

    /// A latency.
    pub(super) fn draw(&self, min: Duration, max: Duration) -> Duration {
        let span = u64::try_from(max.saturating_sub(min).as_nanos()).unwrap_or(u64::MAX);
        min + Duration::from_nanos(self.queue.lock().rng.below(span.saturating_add(1)))
    }
}

/// Lets `op` end after a time drawn between the two.
pub(super) fn queue(
    shared: &Arc<Shared>,
    disk: usize,
    ticket: Result<Ticket>,
    op: Op,
    (min, max): (Duration, Duration),
) {
    let line = &shared.line;
    let wait = line.draw(min, max);
    let mut queue = line.queue.lock();
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
    line.more.notify_one();
}

fn end(shared: &Shared, mut one: Waiting) {
    let result = shared.finish(one.disk, one.ticket, &mut one.op.io);
    one.op.complete(result);
}

/// Resets the queue when the thread ends, also when its world does.
struct Running<'a>(&'a Line);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.running = false;
        let lost = std::mem::take(&mut queue.waiting);
        drop(queue);
        drop(lost);
    }
}

fn serve(shared: &Arc<Shared>) {
    let line = &shared.line;
    let _running = Running(line);
    let mut queue = line.queue.lock();
    loop {
        let now = rt::now();
        let next = queue.waiting.iter().enumerate().min_by_key(|(i, w)| (w.due, *i));
        match next.map(|(i, w)| (i, w.due)) {
            Some((i, due)) if due <= now => {
                let one = queue.waiting.remove(i);
                drop(queue);
                end(shared, one);
                queue = line.queue.lock();
            }
            Some((_, due)) => {
                line.more.wait_timeout(&mut queue, due.since(now));
            }
            None => {
                let idle = line.more.wait_timeout(&mut queue, IDLE);
                if idle && queue.waiting.is_empty() {
                    // Under the lock: who comes next must find it gone.
                    queue.running = false;
                    return;
                }
            }
        }
    }
}
