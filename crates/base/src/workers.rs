//! A small pool of threads for short background jobs.
//!
//! # Theory
//! Jobs are hints (read-ahead, for example). When the queue is full, a job is refused,
//! and only time is lost. Threads start with the first job. They end when the pool is
//! dropped, after their current jobs.
//!
//! Lock order: the queue's lock is a leaf; no job runs under it.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::rt::{Condvar, Mutex, spawn};

type BackgroundJob = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<BackgroundJob>,
    idle: usize,
    threads: usize,
    stop: bool,
}

#[derive(Default)]
struct WorkerState {
    queue: Mutex<JobQueue>,
    ready: Condvar,
}

/// A bounded pool of background threads.
pub struct Workers {
    shared: Arc<WorkerState>,
    name: &'static str,
    threads_max: usize,
    jobs_max: usize,
}

impl Workers {
    /// A pool of at most `threads_max` threads and `jobs_max` waiting jobs; no
    /// thread runs yet.
    pub fn new(name: &'static str, threads_max: usize, jobs_max: usize) -> Workers {
        Workers { shared: Arc::default(), name, threads_max: threads_max.max(1), jobs_max }
    }

    /// Queues a job; false if the queue is full or no thread can be created.
    pub fn try_submit(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let mut queue = self.shared.queue.lock();
        if queue.jobs.len() >= self.jobs_max {
            return false;
        }
        queue.jobs.push_back(Box::new(job));
        if queue.jobs.len() > queue.idle && queue.threads < self.threads_max {
            let shared = Arc::clone(&self.shared);
            queue.threads += 1;
            if spawn(self.name, move || work(&shared)).is_err() {
                queue.threads -= 1;
                if queue.threads == 0 {
                    queue.jobs.clear();
                    return false;
                }
            }
        }
        drop(queue);
        self.shared.ready.notify_one();
        true
    }
}

impl Drop for Workers {
    /// Signals the threads to end. Does not wait, because the last owner may be one of
    /// them.
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.stop = true;
        let jobs = std::mem::take(&mut queue.jobs);
        drop(queue);
        self.shared.ready.notify_all();
        drop(jobs);
    }
}

fn work(shared: &WorkerState) {
    let mut queue = shared.queue.lock();
    loop {
        if queue.stop {
            return;
        }
        match queue.jobs.pop_front() {
            Some(job) => {
                drop(queue);
                job();
                queue = shared.queue.lock();
            }
            None => {
                queue.idle += 1;
                shared.ready.wait(&mut queue);
                queue.idle -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::OneShot;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    #[test]
    fn jobs_run_and_a_full_queue_refuses() {
        let gate = Arc::new(OneShot::new());
        let pool = Workers::new("test", 1, 2);
        let (started, opened) = (Arc::new(OneShot::new()), Arc::clone(&gate));
        let running = Arc::clone(&started);
        assert!(pool.try_submit(move || {
            running.set(());
            opened.wait();
        }));
        started.wait();
        let done = Arc::new(AtomicUsize::new(0));
        let last = Arc::new(OneShot::new());
        let (count, end) = (Arc::clone(&done), Arc::clone(&last));
        assert!(pool.try_submit(move || {
            count.fetch_add(1, SeqCst);
        }));
        let count = Arc::clone(&done);
        assert!(pool.try_submit(move || {
            count.fetch_add(1, SeqCst);
            end.set(());
        }));
        assert!(!pool.try_submit(|| {}));
        gate.set(());
        last.wait();
        assert_eq!(done.load(SeqCst), 2);
    }
}
