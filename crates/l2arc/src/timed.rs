//! Operations of a cache device that are given up when it does not answer.
//!
//! A reader must never wait for a cache device longer than the pool would take. So each
//! operation is submitted, and its result awaited for a limited time. An operation that was
//! given up owns its buffers and ends whenever the device answers; until then the device
//! counts as silent and is not used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use base::rt::{self, Condvar, Mutex};
use base::{Error, ErrorKind, Result};
use device::{Completion, Device, Io, Op};

/// A batch in flight.
#[derive(Default)]
struct Batch {
    state: Mutex<BatchState>,
    changed: Condvar,
}

#[derive(Default)]
struct BatchState {
    done: Vec<(usize, Completion)>,
    given_up: bool,
}

/// Counts operations that were given up and have not ended.
pub(crate) type Abandoned = Arc<AtomicU64>;

/// The obligation to report an operation; it reports also if the device drops it.
struct AwaitedOp {
    batch: Arc<Batch>,
    abandoned: Abandoned,
    at: usize,
    sent: bool,
}

impl AwaitedOp {
    fn send(&mut self, completion: Completion) {
        self.sent = true;
        let mut state = self.batch.state.lock();
        if state.given_up {
            self.abandoned.fetch_sub(1, SeqCst);
            return;
        }
        state.done.push((self.at, completion));
        drop(state);
        self.batch.changed.notify_all();
    }
}

impl Drop for AwaitedOp {
    fn drop(&mut self) {
        if !self.sent {
            let result = Err(Error::bug("a device dropped an operation without completing it"));
            self.send(Completion { io: Io::Flush, result });
        }
    }
}

/// Does a batch and waits for at most `limit`; the results are in order. `Io` with the
/// message "does not answer" if the time ran out.
pub(crate) fn run(
    device: &dyn Device,
    ios: Vec<Io>,
    limit: Duration,
    abandoned: &Abandoned,
) -> Result<Vec<Completion>> {
    let batch = Arc::new(Batch::default());
    let count = ios.len();
    let op = |(at, io)| {
        let (batch, abandoned) = (Arc::clone(&batch), Arc::clone(abandoned));
        let mut report = AwaitedOp { batch, abandoned, at, sent: false };
        Op::new(io, move |completion| report.send(completion))
    };
    let began = rt::now();
    device.submit(ios.into_iter().enumerate().map(op).collect());
    let mut state = batch.state.lock();
    while state.done.len() < count {
        let left = limit.saturating_sub(began.elapsed());
        if left.is_zero() {
            state.given_up = true;
            abandoned.fetch_add((count - state.done.len()) as u64, SeqCst);
            return Err(Error::new(ErrorKind::Io, "the device does not answer"));
        }
        batch.changed.wait_timeout(&mut state, left);
    }
    let mut done = std::mem::take(&mut state.done);
    drop(state);
    done.sort_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, completion)| completion).collect())
}
