//! Many threads, one order.
//!
//! # Theory
//! A wave of blocks is compressed by many threads at once, yet gets its places in the
//! blocks' order: each job waits for its turn. A turn is a [`Ticket`], which passes
//! on when it is dropped, used or not, so that a job that fails, or panics, holds
//! nobody up.
//!
//! # Invariants
//! * Turns are taken in the order of their numbers, one at a time.
//! * In [`parallel_in_order`], jobs are begun in order too, so the job whose turn it is
//!   has a thread.
//!
//! Lock order: a leaf; no job runs under it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use base::rt::{Condvar, Mutex, fan_out};
use base::{Error, Result};

/// Fewer jobs than this for each thread are not worth starting it.
const JOBS_PER_THREAD: usize = 4;
/// A thread takes its turn for some jobs at once, where there are many: handing a turn
/// over costs as much as a small block.
const CHUNK_MAX: usize = 16;
/// So many times at least.
const CHUNKS_PER_THREAD: usize = 8;

#[derive(Default)]
struct Order {
    next: u64,
    /// Turns ahead that nobody will take.
    passed: BTreeSet<u64>,
    sleepers: usize,
}

/// Lets jobs pass in the order of their numbers, from 0.
#[derive(Default)]
pub struct Turnstile {
    order: Mutex<Order>,
    moved: Condvar,
}

/// The duty to take a turn, or to pass it on.
pub struct Ticket<'a> {
    turnstile: &'a Turnstile,
    n: u64,
}

impl Turnstile {
    /// Job 0 is next.
    pub fn new() -> Turnstile {
        Turnstile::default()
    }

    /// Job `n`'s turn; there must be one for every number.
    pub fn ticket(&self, n: u64) -> Ticket<'_> {
        Ticket { turnstile: self, n }
    }

    /// Waits for job `n`'s turn and runs `f` in it.
    pub fn turn<T>(&self, n: u64, f: impl FnOnce() -> T) -> T {
        self.ticket(n).enter(f)
    }

    fn pass(&self, n: u64) {
        let mut order = self.order.lock();
        if n < order.next {
            return;
        }
        order.passed.insert(n);
        loop {
            let next = order.next;
            if !order.passed.remove(&next) {
                break;
            }
            order.next += 1;
        }
        let wake = order.sleepers > 0;
        drop(order);
        if wake {
            self.moved.notify_all();
        }
    }
}

impl Ticket<'_> {
    /// Waits for the turn, runs `f`, and passes on.
    pub fn enter<T>(self, f: impl FnOnce() -> T) -> T {
        let mut order = self.turnstile.order.lock();
        while order.next < self.n {
            order.sleepers += 1;
            self.turnstile.moved.wait(&mut order);
            order.sleepers -= 1;
        }
        drop(order);
        f()
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.turnstile.pass(self.n);
    }
}

/// Runs jobs `0..jobs`, each through `prepare`, `place` and `submit`, on up to `threads`
/// threads: `place` in the order of the jobs and one at a time, the others at
/// once. Few jobs run on the calling thread.
///
/// # Errors
/// That of the first job, by number, which failed. Jobs before it end as usual; if it failed
/// before it was submitted, none after it is placed.
pub fn parallel_in_order<P: Send, Q: Send>(
    threads: usize,
    jobs: usize,
    prepare: impl Fn(usize) -> Result<P> + Sync,
    place: impl Fn(usize, P) -> Result<Q> + Sync,
    submit: impl Fn(usize, Q) -> Result<()> + Sync,
) -> Result<()> {
    let all = |first: usize, placed: Vec<Q>| {
        let one = |(i, q)| submit(i, q).map_err(|e| (i, e));
        // Those behind one that failed are submitted all the same.
        let mut failed = (first..).zip(placed).filter_map(|job| one(job).err());
        let first = failed.next();
        failed.for_each(drop);
        first.map_or(Ok(()), Err)
    };
    chunks_in_order(threads, jobs, CHUNK_MAX, prepare, place, all)
}

/// As [`parallel_in_order`], with up to `chunk_max` jobs at a time: `submit` gets the first
/// one's number and what of them was placed, in order. It tells which failed.
///
/// # Errors
/// As [`parallel_in_order`].
pub fn chunks_in_order<P: Send, Q: Send>(
    threads: usize,
    jobs: usize,
    chunk_max: usize,
    prepare: impl Fn(usize) -> Result<P> + Sync,
    place: impl Fn(usize, P) -> Result<Q> + Sync,
    submit: impl Fn(usize, Vec<Q>) -> std::result::Result<(), (usize, Error)> + Sync,
) -> Result<()> {
    let threads = threads.min(jobs / JOBS_PER_THREAD).max(1);
    let turnstile = Turnstile::new();
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
            let turn = next.fetch_add(1, Relaxed);
            let range = turn * chunk..jobs.min((turn + 1) * chunk);
            if range.is_empty() {
                return;
            }
            let ticket = turnstile.ticket(turn as u64);
            let first = range.start;
            let prepared: Vec<Result<P>> = range.map(&prepare).collect();
            let placed = ticket.enter(|| {
                let mut placed = Vec::with_capacity(prepared.len());
                // A job before these may have failed in its turn, just now.
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
    fn turns_are_in_order_and_failures_pass_theirs_on() {
        for threads in [1, 2, 7] {
            let seen = Mutex::new(Vec::new());
            let turnstile = Turnstile::new();
            let next = AtomicUsize::new(0);
            fan_out(threads, |_| {
                loop {
                    let n = next.fetch_add(1, Relaxed) as u64;
                    if n >= 500 {
                        return;
                    }
                    let ticket = turnstile.ticket(n);
                    if n % 7 == 3 {
                        continue; // dropped without a turn
                    }
                    ticket.enter(|| seen.lock().push(n));
                }
            });
            let expected: Vec<u64> = (0..500).filter(|n| n % 7 != 3).collect();
            assert_eq!(*seen.lock(), expected);
        }
    }

    #[test]
    fn a_panic_in_a_turn_holds_nobody_up() {
        let turnstile = Turnstile::new();
        let run = std::panic::AssertUnwindSafe(|| {
            turnstile.turn(0, || std::panic::resume_unwind(Box::new(())))
        });
        assert!(std::panic::catch_unwind(run).is_err());
        assert_eq!(turnstile.turn(1, || 5), 5);
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
    fn the_first_error_is_told_and_nothing_after_it_is_placed() {
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
