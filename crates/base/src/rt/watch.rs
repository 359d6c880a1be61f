//! Hooks that run before a thread sleeps.
//!
//! A server that keeps few threads awake must wake another one as soon as one of them
//! sleeps. Such a thread registers a hook ([`before_sleep`]). The hook runs before the
//! thread waits for a condition, for a thread's end or for time to pass, before it
//! queues for a lock that stayed taken while it spun, and where code declares that the
//! operating system may block it ([`may_sleep`]). Threads without a hook pay for one
//! check of a thread-local cell, and only where they sleep.

use std::cell::RefCell;
use std::rc::Rc;

/// Number of checks of a taken lock before its thread counts as asleep. A lock that is
/// released within these checks has a holder that is awake.
const SPINS: u32 = 64;

std::thread_local! {
    static HOOK: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
}

/// Registers a hook that is called on this thread each time before it sleeps, until the
/// thread ends, after the hooks registered earlier. The hook must not sleep itself,
/// except for locks that are held briefly.
pub fn before_sleep(hook: impl Fn() + 'static) {
    // A thread that is ending has no hook any more.
    let _ended = HOOK.try_with(|registered| {
        let earlier = registered.take();
        registered.replace(Some(match earlier {
            None => Rc::new(hook),
            Some(earlier) => Rc::new(move || {
                earlier();
                hook();
            }),
        }))
    });
}

fn hook() -> Option<Rc<dyn Fn()>> {
    HOOK.try_with(|registered| registered.try_borrow().ok()?.clone()).ok()?
}

/// Call this before the operating system may block the thread, for example in a disk's
/// flush.
pub fn may_sleep() {
    if let Some(hook) = hook() {
        hook();
    }
}

/// Tries a taken lock a few more times before the thread queues for it; returns the
/// lock if a try succeeds.
#[cold]
pub(super) fn contended<G>(mut attempt: impl FnMut() -> Option<G>) -> Option<G> {
    let hook = hook()?;
    for _ in 0..SPINS {
        std::hint::spin_loop();
        if let Some(guard) = attempt() {
            return Some(guard);
        }
    }
    hook();
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
    fn the_hook_runs_before_sleep_and_not_for_a_free_lock() {
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

    /// Queues for a lock that another thread holds until this thread's hook has run.
    fn queues(take: impl Fn() + Send + 'static, hold: impl FnOnce(&dyn Fn()) + Send + 'static) {
        let test = move || {
            let hook = Arc::new(AtomicBool::new(false));
            let seen = Arc::clone(&hook);
            before_sleep(move || hook.store(true, SeqCst));
            let wait = Arc::clone(&seen);
            let until_hook_ran = move || {
                while !wait.load(SeqCst) {
                    sleep(Duration::from_millis(1));
                }
            };
            let holder = spawn("holds", move || hold(&until_hook_ran)).unwrap();
            // The lock is free until the holder takes it.
            while !seen.load(SeqCst) {
                take();
            }
            holder.join();
        };
        assert!(spawn("watched", test).unwrap().join().is_some());
    }

    #[test]
    fn the_hook_runs_when_a_lock_stays_taken() {
        let lock = Arc::new(Mutex::new(()));
        let held = Arc::clone(&lock);
        queues(
            move || drop(lock.lock()),
            move |until_hook_ran| {
                let _held = held.lock();
                until_hook_ran();
            },
        );
        for exclusive in [false, true] {
            let lock = Arc::new(RwLock::new(()));
            let held = Arc::clone(&lock);
            queues(
                move || if exclusive { drop(lock.write()) } else { drop(lock.read()) },
                move |until_hook_ran| {
                    let _held = held.write();
                    until_hook_ran();
                },
            );
        }
    }
}
