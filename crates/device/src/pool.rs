//! The blocking engine: a pool of threads that call pread and pwrite.
//!
//! # Theory
//! A thread is started when work waits and no thread is idle, up to the depth. The
//! queue is bounded, except that for discards. A submitter waits while it is full, unless the
//! submitter is one of the pool's threads (a completion that submits more operations), because
//! that would deadlock.
//!
//! # Invariants
//! * A queued job is always done, also while the engine shuts down: threads exit only
//!   when the queue is empty.
//! * If no thread can be started, the submitter does the work itself.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use base::rt::{self, Condvar, Mutex};

use crate::engine::IoJob;
use crate::file::perform;

thread_local! {
    static WORKER: Cell<bool> = const { Cell::new(false) };
}

struct PoolQueue {
    queue: VecDeque<IoJob>,
    idle: usize,
    threads: usize,
    stopping: bool,
}

struct PoolShared {
    state: Mutex<PoolQueue>,
    work: Condvar,
    room: Condvar,
    max_threads: usize,
    max_queue: usize,
}

pub(crate) struct ThreadPool(Arc<PoolShared>);

impl ThreadPool {
    pub(crate) fn new(depth: usize) -> ThreadPool {
        ThreadPool::with_queue(depth, depth * 4)
    }

    /// With a queue that no submitter waits for.
    pub(crate) fn unbounded(depth: usize) -> ThreadPool {
        ThreadPool::with_queue(depth, usize::MAX)
    }

    fn with_queue(depth: usize, max_queue: usize) -> ThreadPool {
        ThreadPool(Arc::new(PoolShared {
            state: Mutex::new(PoolQueue {
                queue: VecDeque::new(),
                idle: 0,
                threads: 0,
                stopping: false,
            }),
            work: Condvar::new(),
            room: Condvar::new(),
            max_threads: depth,
            max_queue,
        }))
    }

    pub(crate) fn submit(&self, jobs: Vec<IoJob>) {
        for job in jobs {
            if let Some(job) = self.enqueue(job) {
                serve(job);
            }
        }
    }

    /// Queues the job, or returns it if no thread will ever take it.
    fn enqueue(&self, job: IoJob) -> Option<IoJob> {
        let shared = &self.0;
        let mut state = shared.state.lock();
        while state.queue.len() >= shared.max_queue && !WORKER.get() {
            shared.room.wait(&mut state);
        }
        if state.idle <= state.queue.len() && state.threads < shared.max_threads {
            let worker = Arc::clone(shared);
            if rt::spawn("device-io", move || work(&worker)).is_ok() {
                state.threads += 1;
            } else if state.threads == 0 {
                return Some(job);
            }
        }
        state.queue.push_back(job);
        drop(state);
        shared.work.notify_one();
        None
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.0.state.lock().stopping = true;
        self.0.work.notify_all();
    }
}

fn serve(mut job: IoJob) {
    job.target.stats.begin();
    let result = perform(&job.target, &mut job.op.io, job.need);
    job.target.stats.leave();
    job.finish(result);
}

fn work(shared: &PoolShared) {
    WORKER.set(true);
    let mut state = shared.state.lock();
    loop {
        if let Some(job) = state.queue.pop_front() {
            drop(state);
            shared.room.notify_one();
            serve(job);
            state = shared.state.lock();
        } else if state.stopping {
            state.threads -= 1;
            return;
        } else {
            state.idle += 1;
            shared.work.wait(&mut state);
            state.idle -= 1;
        }
    }
}
