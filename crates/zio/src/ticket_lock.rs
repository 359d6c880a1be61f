//! A ticket lock: many threads enter a section in the order of their numbers.
//!
//! # Theory
//! A wave of blocks is compressed by many threads concurrently, but its addresses are
//! allocated in the order of the blocks: each job waits for its number. The right to
//! enter is a [`Ticket`]. Dropping it passes the lock to the next number, whether the
//! section was entered or not, so that a job that fails or panics delays no other.
//!
//! # Invariants
//! * Jobs enter in the order of their numbers, one at a time.
//! * [`chunks_in_order`] also starts jobs in order, so the job that may enter next
//!   always has a thread.
//!
//! Lock order: a leaf; no job runs under its lock.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use base::rt::{Condvar, Mutex, fan_out};
use base::{Error, Result};

/// With fewer jobs than this for each thread, the thread is not worth starting.
const JOBS_PER_THREAD: usize = 4;
/// Minimum number of times that each thread enters.
const CHUNKS_PER_THREAD: usize = 8;

#[derive(Default)]
struct Order {
    next: u64,
    /// Later numbers that were already passed on.
    done: BTreeSet<u64>,
    sleepers: usize,
}

/// Lets jobs enter in the order of their numbers, starting with 0.
#[derive(Default)]
pub struct TicketLock {
    order: Mutex<Order>,
    advanced: Condvar,
}

/// The obligation to enter, or to pass the lock on.
pub struct Ticket<'a> {
    ticket_lock: &'a TicketLock,
    n: u64,
}

impl TicketLock {
    /// A lock that job 0 enters first.
    pub fn new() -> TicketLock {
        TicketLock::default()
    }

    /// The ticket of job `n`; every number must be taken exactly once.
    pub fn ticket(&self, n: u64) -> Ticket<'_> {
        Ticket { ticket_lock: self, n }
    }

    fn pass(&self, n: u64) {
        let mut order = self.order.lock();
        if n < order.next {
            return;
        }
        order.done.insert(n);
        loop {
            let next = order.next;
            if !order.done.remove(&next) {
                break;
            }
            order.next += 1;
        }
        let wake = order.sleepers > 0;
        drop(order);
        if wake {
            self.advanced.notify_all();
        }
    }
}

impl Ticket<'_> {
    /// Waits until the job may enter, runs `f`, and passes the lock on.
    pub fn run<T>(self, f: impl FnOnce() -> T) -> T {
        let mut order = self.ticket_lock.order.lock();
        while order.next < self.n {
            order.sleepers += 1;
            self.ticket_lock.advanced.wait(&mut order);
            order.sleepers -= 1;
        }
        drop(order);
        f()
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.ticket_lock.pass(self.n);
    }
}

/// Runs jobs `0..jobs`, each through `prepare` and `place`, in chunks of up to `chunk_max`
/// jobs, on up to `threads` threads. `place` runs in the order of the jobs and one at a time,
/// the other steps run concurrently. `submit` gets the number of the first job of a chunk and
/// its placed results, in order, and returns the number of the job that failed. Few jobs run
/// on the calling thread.
///
/// # Errors
/// The error of the failed job with the lowest number. Jobs before it end as usual; if
/// it failed before it was submitted, no later job is placed.
pub fn chunks_in_order<P: Send, Q: Send>(
    threads: usize,
    jobs: usize,
    chunk_max: usize,
    prepare: impl Fn(usize) -> Result<P> + Sync,
    place: impl Fn(usize, P) -> Result<Q> + Sync,
    submit: impl Fn(usize, Vec<Q>) -> std::result::Result<(), (usize, Error)> + Sync,
) -> Result<()> {
    let threads = threads.min(jobs / JOBS_PER_THREAD).max(1);
    let ticket_lock = TicketLock::new();
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let failed = Mutex::new(None);
    let fail = |i: usize, e| {
        stop.store(true, Relaxed);
        let mut first = failed.lock();
        if first.as_ref().is_none_or(|(n, _)| i < *n) {
            *first = Some((i, e));
        }
    };
    let chunk = (jobs / (threads * CHUNKS_PER_THREAD)).clamp(1, chunk_max.max(1));
    let run = |_| {
        while !stop.load(Relaxed) {
            let number = next.fetch_add(1, Relaxed);
            let range = number * chunk..jobs.min((number + 1) * chunk);
            if range.is_empty() {
                return;
            }
            let ticket = ticket_lock.ticket(number as u64);
            let first = range.start;
            let prepared: Vec<Result<P>> = range.map(&prepare).collect();
            let placed = ticket.run(|| {
                let mut placed = Vec::with_capacity(prepared.len());
                // An earlier job may have failed in its section just now.
                if failed.lock().as_ref().is_some_and(|(n, _)| *n < first) {
                    return placed;
                }
                for (i, p) in (first..).zip(prepared) {
                    match p.and_then(|p| place(i, p)) {
                        Ok(q) => placed.push(q),
                        Err(e) => {
                            fail(i, e);
                            break;
                        }
                    }
                }
                placed
            });
            if let Err((i, e)) = submit(first, placed) {
                fail(i, e);
            }
        }
    };
    if threads == 1 {
        run(0);
    } else {
        fan_out(threads, run);
    }
    failed.into_inner().map_or(Ok(()), |(_, e)| Err(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_enter_in_order_and_failures_pass_the_lock_on() {
        for threads in [1, 2, 7] {
            let seen = Mutex::new(Vec::new());
            let ticket_lock = TicketLock::new();
            let next = AtomicUsize::new(0);
            fan_out(threads, |_| {
                loop {
                    let n = next.fetch_add(1, Relaxed) as u64;
                    if n >= 500 {
                        return;
                    }
                    let ticket = ticket_lock.ticket(n);
                    if n % 7 == 3 {
                        continue; // dropped without entering
                    }
                    ticket.run(|| seen.lock().push(n));
                }
            });
            let expected: Vec<u64> = (0..500).filter(|n| n % 7 != 3).collect();
            assert_eq!(*seen.lock(), expected);
        }
    }

    #[test]
    fn a_panic_delays_no_other_job() {
        let ticket_lock = TicketLock::new();
        let run = std::panic::AssertUnwindSafe(|| {
            ticket_lock.ticket(0).run(|| std::panic::resume_unwind(Box::new(())))
        });
        assert!(std::panic::catch_unwind(run).is_err());
        assert_eq!(ticket_lock.ticket(1).run(|| 5), 5);
    }

    /// [`chunks_in_order`] with a `submit` of one job. Jobs behind a failed one are submitted
    /// nevertheless.
    fn parallel_in_order<P: Send, Q: Send>(
        threads: usize,
        jobs: usize,
        prepare: impl Fn(usize) -> Result<P> + Sync,
        place: impl Fn(usize, P) -> Result<Q> + Sync,
        submit: impl Fn(usize, Q) -> Result<()> + Sync,
    ) -> Result<()> {
        let all = |first: usize, placed: Vec<Q>| {
            let one = |(i, q)| submit(i, q).map_err(|e| (i, e));
            let failed: Vec<_> = (first..).zip(placed).filter_map(|job| one(job).err()).collect();
            failed.into_iter().next().map_or(Ok(()), Err)
        };
        chunks_in_order(threads, jobs, 16, prepare, place, all)
    }

    #[test]
    fn jobs_are_placed_in_order_and_each_is_submitted() {
        for (threads, jobs) in [(1, 9), (4, 3), (4, 16), (3, 1000)] {
            let (order, sum) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
            let run = parallel_in_order(
                threads,
                jobs,
                |i| Ok(i * 2),
                |i, p| {
                    order.lock().push(i);
                    Ok(p + 1)
                },
                |i, q| {
                    assert_eq!(q, 2 * i + 1);
                    sum.fetch_add(q, Relaxed);
                    Ok(())
                },
            );
            run.unwrap();
            assert_eq!(*order.lock(), (0..jobs).collect::<Vec<_>>());
            assert_eq!(sum.load(Relaxed), jobs * jobs);
        }
    }

    #[test]
    fn the_first_error_is_returned_and_nothing_after_it_is_placed() {
        for threads in [1, 4] {
            for stage in 0..3 {
                let placed = Mutex::new(Vec::new());
                let fail_at = |i: usize, s| {
                    let error = || Error::invalid(format!("job {i}"));
                    if i == 40 && s == stage { Err(error()) } else { Ok(i) }
                };
                let run = parallel_in_order(
                    threads,
                    200,
                    |i| fail_at(i, 0),
                    |i, _| {
                        fail_at(i, 1)?;
                        placed.lock().push(i);
                        Ok(())
                    },
                    |i, ()| fail_at(i, 2).map(|_| ()),
                );
                assert_eq!(run.unwrap_err().message(), "job 40");
                let placed = placed.lock();
                assert_eq!(placed[..40], (0..40).collect::<Vec<_>>());
                if stage < 2 {
                    assert_eq!(placed.len(), 40);
                }
            }
        }
    }
}
