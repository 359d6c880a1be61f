//! What a thread does before it sleeps.
//!
//! A server that keeps few threads awake needs another one as soon as one of them sleeps.
//! Such a thread leaves word here ([`before_sleep`]) and is told: before it waits for a
//! condition, for a thread's end or for time to pass, before it queues for a lock that
//! stayed taken while it spun, and where code says that the operating system may keep it
//! ([`may_sleep`]). Threads without word pay one look at a thread-local cell, and only
//! where they sleep.

use std::cell::RefCell;
use std::rc::Rc;

/// Looks at a taken lock before its thread counts as asleep; whoever holds it for so short
/// a time is awake.
const SPINS: u32 = 64;

std::thread_local! {
    static WORD: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
}

/// Has `told` called on this thread each time before it sleeps, until it ends, behind those
/// that it was given before. It must not sleep itself, but for locks that are held briefly.
pub fn before_sleep(told: impl Fn() + 'static) {
    // A thread that ends has no word to leave any more.
    let _ended = WORD.try_with(|word| {
        let earlier = word.take();
        word.replace(Some(match earlier {
            None => Rc::new(told),
            Some(earlier) => Rc::new(move || {
                earlier();
                told();
            }),
        }))
    });
}

fn word() -> Option<Rc<dyn Fn()>> {
    WORD.try_with(|word| word.try_borrow().ok()?.clone()).ok()?
}

/// To be called before the operating system may keep this thread: a disk's flush, say.
pub fn may_sleep() {
    if let Some(told) = word() {
        told();
    }
}

/// Before a lock that somebody holds is queued for: what a few more tries gave.
#[cold]
pub(super) fn contended<G>(mut attempt: impl FnMut() -> Option<G>) -> Option<G> {
    let told = word()?;
    for _ in 0..SPINS {
        std::hint::spin_loop();
        if let Some(guard) = attempt() {
            return Some(guard);
        }
    }
    told();
    None
}

#[cfg(test)]
mod tests {
    use super::super::{Condvar, Mutex, RwLock, sleep, spawn};
    use super::*;
    use std::cell::Cell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::Duration;

    fn counted() -> Rc<Cell<u32>> {
        let times = Rc::new(Cell::new(0));
        let inner = Rc::clone(&times);
        before_sleep(move || inner.set(inner.get() + 1));
        times
    }

    #[test]
    fn a_thread_is_told_before_it_sleeps_and_not_for_a_free_lock() {
        let test = || {
            let times = counted();
            let lock = Mutex::new(());
            let mut guard = lock.lock();
            drop(RwLock::new(()).write());
            drop(RwLock::new(()).read());
            assert_eq!(times.get(), 0);
            Condvar::new().wait_timeout(&mut guard, Duration::from_millis(1));
            assert_eq!(times.get(), 1);
            sleep(Duration::from_millis(1));
            assert_eq!(times.get(), 2);
            spawn("ends", || ()).unwrap().join();
            assert_eq!(times.get(), 3);
            may_sleep();
            assert_eq!(times.get(), 4);
            let more = counted();
            may_sleep();
            assert_eq!((times.get(), more.get()), (5, 1));
        };
        assert!(spawn("watched", test).unwrap().join().is_some());
    }

    /// Queues for a lock that another thread holds until this one was told.
    fn queues(take: impl Fn() + Send + 'static, hold: impl FnOnce(&dyn Fn()) + Send + 'static) {
        let test = move || {
            let told = Arc::new(AtomicBool::new(false));
            let seen = Arc::clone(&told);
            before_sleep(move || told.store(true, SeqCst));
            let wait = Arc::clone(&seen);
            let until_told = move || {
                while !wait.load(SeqCst) {
                    sleep(Duration::from_millis(1));
                }
            };
            let holder = spawn("holds", move || hold(&until_told)).unwrap();
            // Free until the holder has it.
            while !seen.load(SeqCst) {
                take();
            }
            holder.join();
        };
        assert!(spawn("watched", test).unwrap().join().is_some());
    }

    #[test]
    fn a_thread_is_told_when_a_lock_stays_taken() {
        let lock = Arc::new(Mutex::new(()));
        let held = Arc::clone(&lock);
        queues(
            move || drop(lock.lock()),
            move |until_told| {
                let _held = held.lock();
                until_told();
            },
        );
        for exclusive in [false, true] {
            let lock = Arc::new(RwLock::new(()));
            let held = Arc::clone(&lock);
            queues(
                move || if exclusive { drop(lock.write()) } else { drop(lock.read()) },
                move |until_told| {
                    let _held = held.write();
                    until_told();
                },
            );
        }
    }
}
