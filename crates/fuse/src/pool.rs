//! The workers: threads that may sleep.
//!
//! # Theory
//! A receiving thread hands over what it cannot answer from memory. Threads are
//! started when work waits and nobody is idle, up to a limit as wide as the
//! devices' queues, and end after a while without work. The queue is bounded in
//! requests and in bytes; a receiving thread that finds it full waits, and so
//! the kernel's callers do.
//!
//! Waits for locks have a thread each, outside the limit: the request that
//! drops the lock must always find a worker.
//!
//! An interrupt may overtake its request between two receiving threads; such a
//! number is remembered and meets the request when it is handed over.
//!
//! # Invariants
//! * Every task handed over runs exactly once, also while the pool closes.
//! * A task's cancel flag is registered from before it is queued until it ends.
//!
//! Lock order: `state` is a leaf lock; tasks run and threads start outside it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::ids::IdMap;
use base::rt::{Condvar, Mutex};

/// What a worker runs; the flag says that the caller got a signal.
pub(crate) type Task = Box<dyn FnOnce(&Arc<AtomicBool>) + Send>;

const IDLE: Duration = Duration::from_secs(10);
/// Interrupts remembered that met no request (most come too late).
const EARLY_MAX: usize = 256;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) threads: usize,
    pub(crate) waiters: usize,
    pub(crate) requests: usize,
    pub(crate) bytes: usize,
    pub(crate) on_thread: fn(),
}

struct Job {
    unique: u64,
    bytes: usize,
    cancel: Arc<AtomicBool>,
    task: Task,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    queued_bytes: usize,
    threads: usize,
    idle: usize,
    waiters: usize,
    inflight: IdMap<u64, Arc<AtomicBool>>,
    early: VecDeque<u64>,
    closed: bool,
}

struct Shared {
    limits: Limits,
    state: Mutex<State>,
    work: Condvar,
    space: Condvar,
    ended: Condvar,
}

/// A pool of workers.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Shared>);

impl State {
    fn register(&mut self, unique: u64) -> Arc<AtomicBool> {
        let known = self.early.iter().position(|&u| u == unique);
        if let Some(at) = known {
            self.early.remove(at);
        }
        let cancel = Arc::new(AtomicBool::new(known.is_some() || self.closed));
        self.inflight.insert(unique, Arc::clone(&cancel));
        cancel
    }
}

impl Pool {
    pub(crate) fn new(limits: Limits) -> Pool {
        Pool(Arc::new(Shared {
            limits,
            state: Mutex::new(State::default()),
            work: Condvar::new(),
            space: Condvar::new(),
            ended: Condvar::new(),
        }))
    }

    /// A request that its receiver serves: its cancel flag.
    pub(crate) fn begin(&self, unique: u64) -> Arc<AtomicBool> {
        self.0.state.lock().register(unique)
    }

    /// The end of what [`Pool::begin`] began.
    pub(crate) fn ended(&self, unique: u64) {
        self.0.state.lock().inflight.remove(&unique);
    }

    /// Hands over a task that holds `bytes` of memory, waiting for space.
    pub(crate) fn submit(&self, unique: u64, bytes: usize, task: Task) {
        let shared = &self.0;
        let mut state = shared.state.lock();
        while !state.closed
            && (state.queue.len() >= shared.limits.requests
                || (!state.queue.is_empty() && state.queued_bytes + bytes > shared.limits.bytes))
        {
            shared.space.wait(&mut state);
        }
        let cancel = state.register(unique);
        state.queue.push_back(Job { unique, bytes, cancel, task });
        state.queued_bytes += bytes;
        if state.idle >= state.queue.len() || state.threads >= shared.limits.threads {
            drop(state);
            shared.work.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let pool = self.clone();
        if base::rt::spawn("fuse-worker", move || pool.worker()).is_err() {
            let mut state = shared.state.lock();
            state.threads -= 1;
            let alone = state.threads == 0;
            drop(state);
            if alone {
                // No thread to be had: slow service is better than none.
                self.run_one();
            }
        }
    }

    /// Hands over a task that may wait for another request.
    ///
    /// # Errors
    /// Gives the task back when there are too many already, or no thread.
    pub(crate) fn submit_waiter(&self, unique: u64, task: Task) -> Result<(), Task> {
        let mut state = self.0.state.lock();
        if state.waiters >= self.0.limits.waiters {
            return Err(task);
        }
        state.waiters += 1;
        let cancel = state.register(unique);
        drop(state);
        let pool = self.clone();
        let slot = Arc::new(Mutex::new(Some(task)));
        let inner = Arc::clone(&slot);
        let spawned = base::rt::spawn("fuse-lock", move || {
            let task = inner.lock().take();
            if let Some(task) = task {
                task(&cancel);
            }
            pool.waiter_ended(unique);
        });
        if spawned.is_ok() {
            return Ok(());
        }
        self.waiter_ended(unique);
        let task = slot.lock().take();
        task.map_or(Ok(()), Err)
    }

    fn waiter_ended(&self, unique: u64) {
        let mut state = self.0.state.lock();
        state.waiters -= 1;
        state.inflight.remove(&unique);
        drop(state);
        self.0.ended.notify_all();
    }

    /// Flags a request as interrupted; false if it is not known (yet).
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        let mut state = self.0.state.lock();
        if let Some(flag) = state.inflight.get(&unique) {
            flag.store(true, Ordering::Release);
            return true;
        }
        if state.early.len() >= EARLY_MAX {
            state.early.pop_front();
        }
        state.early.push_back(unique);
        false
    }

    /// Lets nobody wait any more: flags everything as interrupted, also what comes later, and
    /// returns the numbers. Nothing the second time.
    pub(crate) fn close(&self) -> Vec<u64> {
        let mut state = self.0.state.lock();
        if std::mem::replace(&mut state.closed, true) {
            return Vec::new();
        }
        let uniques = state.inflight.keys().copied().collect();
        for flag in state.inflight.values() {
            flag.store(true, Ordering::Release);
        }
        drop(state);
        self.0.work.notify_all();
        self.0.space.notify_all();
        uniques
    }

    /// Waits until every task has run and every thread has ended. After `close`.
    pub(crate) fn join(&self) {
        while self.run_one() {}
        let mut state = self.0.state.lock();
        while state.threads + state.waiters > 0 {
            self.0.ended.wait(&mut state);
        }
    }

    fn run_one(&self) -> bool {
        let job = {
            let mut state = self.0.state.lock();
            self.next(&mut state)
        };
        job.map(|job| self.run(job)).is_some()
    }

    fn next(&self, state: &mut State) -> Option<Job> {
        let job = state.queue.pop_front()?;
        state.queued_bytes -= job.bytes;
        self.0.space.notify_one();
        Some(job)
    }

    fn run(&self, job: Job) {
        (job.task)(&job.cancel);
        self.0.state.lock().inflight.remove(&job.unique);
    }

    /// To be called first on a thread that serves requests.
    pub(crate) fn begin_thread(&self) {
        (self.0.limits.on_thread)();
    }

    fn worker(&self) {
        self.begin_thread();
        let mut state = self.0.state.lock();
        loop {
            if let Some(job) = self.next(&mut state) {
                drop(state);
                self.run(job);
                state = self.0.state.lock();
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let timed_out = self.0.work.wait_timeout(&mut state, IDLE);
            state.idle -= 1;
            if timed_out && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        drop(state);
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::rt::OneShot;
    use std::sync::atomic::AtomicUsize;

    fn pool(threads: usize, requests: usize, bytes: usize) -> Pool {
        Pool::new(Limits { threads, waiters: 2, requests, bytes, on_thread: || {} })
    }

    #[test]
    fn every_task_runs_once_and_no_more_threads_than_allowed() {
        let pool = pool(4, 8, 1000);
        let ran = Arc::new(AtomicUsize::new(0));
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for i in 0..500 {
            let (ran, now, most) = (ran.clone(), now.clone(), most.clone());
            let task = move |_: &Arc<AtomicBool>| {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::yield_now();
                now.fetch_sub(1, Ordering::SeqCst);
                ran.fetch_add(1, Ordering::SeqCst);
            };
            pool.submit(i, 300, Box::new(task));
        }
        pool.close();
        pool.join();
        assert_eq!(ran.load(Ordering::SeqCst), 500);
        // The closing thread helps.
        assert!(most.load(Ordering::SeqCst) <= 5);
    }

    #[test]
    fn an_early_interrupt_meets_its_request() {
        let pool = pool(1, 8, 1000);
        assert!(!pool.interrupt(7));
        let seen = Arc::new(OneShot::new());
        for unique in [7, 8] {
            let shot = Arc::clone(&seen);
            pool.submit(
                unique,
                0,
                Box::new(move |cancel| {
                    if cancel.load(Ordering::Acquire) {
                        shot.set(unique);
                    }
                }),
            );
        }
        assert_eq!(seen.wait(), 7);
        pool.close();
        pool.join();
    }

    #[test]
    fn waiters_are_limited_and_closing_ends_them() {
        let pool = pool(1, 8, 1000);
        let wait = || -> Task {
            Box::new(|cancel| {
                while !cancel.load(Ordering::Acquire) {
                    base::rt::sleep(Duration::from_millis(1));
                }
            })
        };
        assert!(pool.submit_waiter(1, wait()).is_ok());
        assert!(pool.submit_waiter(2, wait()).is_ok());
        assert!(pool.submit_waiter(3, wait()).is_err());
        let mut uniques = pool.close();
        uniques.sort_unstable();
        assert_eq!(uniques, [1, 2]);
        pool.join();
    }
}
