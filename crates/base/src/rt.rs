//! The runtime shim: threads, locks, clock and randomness for every engine crate.
//!
//! **Why:** the simulator must replay the production engine, threads included, from one
//! seed. Therefore the engine does not use `std::thread`, `Instant`, locks or random
//! sources directly (clippy enforces this), but takes them from this module, where they
//! can be replaced. In production they are the standard library's. A thread inside
//! [`sim::run`] gets those of a seeded scheduler with a virtual clock instead. The
//! choice is made for each operation and costs one relaxed load while no run is active.
//! Built with `--cfg shuttle`, they are those of the shuttle scheduler, under which the
//! model tests of small parts run.
//!
//! Locks do not poison. A panic is a bug that unwinds its own request, and code that
//! changes data under a lock makes the change last, so that the data stays consistent.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::panic::Location;
use std::time::Duration;

mod answer;
mod cores;
mod lock;
#[cfg(all(debug_assertions, not(shuttle)))]
mod lockdep;
#[cfg(not(all(debug_assertions, not(shuttle))))]
#[path = "rt/lockdep_off.rs"]
mod lockdep;
pub mod sim;
mod watch;

pub use answer::{Callback, Lost, Receiver, Sender, oneshot};
pub use cores::{raise_niceness, stay_on, yield_core};
pub use lock::{Condvar, Mutex, MutexGuard, ReadGuard, RwLock, WriteGuard};
pub use watch::{before_sleep, may_sleep};

#[cfg(not(shuttle))]
mod sys {
    pub(super) use std::sync::{
        Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic,
    };
    pub(super) use std::thread;
}
#[cfg(shuttle)]
mod sys {
    pub(super) use shuttle::sync::{
        Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic,
    };
    pub(super) use shuttle::thread;
}

/// Atomic values.
pub mod atomic {
    pub use super::sys::atomic::*;
}

/// A lock that no scheduler sees. It is for statics, which outlive a simulated run; no
/// other lock is taken under it.
pub mod plain {
    use std::sync::PoisonError;

    /// A mutual-exclusion lock.
    #[derive(Default, Debug)]
    pub struct Mutex<T>(std::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// A lock around `value`.
        pub const fn new(value: T) -> Self {
            Mutex(std::sync::Mutex::new(value))
        }
        /// Waits for the lock.
        pub fn lock(&self) -> std::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}

/// A handle to wait for a thread's end.
#[derive(Debug)]
pub struct JoinHandle<T>(ThreadHandle<T>);

#[derive(Debug)]
enum ThreadHandle<T> {
    Os(sys::thread::JoinHandle<T>),
    Member(sim::Joinable<T>),
}

impl<T> JoinHandle<T> {
    /// Waits for the thread's end; `None` if it panicked.
    #[track_caller]
    pub fn join(self) -> Option<T> {
        match self.0 {
            ThreadHandle::Os(thread) => {
                may_sleep();
                thread.join().ok()
            }
            ThreadHandle::Member(thread) => thread.join(Location::caller()),
        }
    }
}

/// Starts a named thread.
///
/// # Errors
/// The operating system's error, when no thread can be created.
#[track_caller]
pub fn spawn<T: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> crate::Result<JoinHandle<T>> {
    let failed = |e| crate::Error::io(format!("cannot start thread {name}"), e);
    if let Some(me) = sim::member() {
        let thread = me.spawn(name, f, Location::caller()).map_err(failed)?;
        return Ok(JoinHandle(ThreadHandle::Member(thread)));
    }
    let (original_cores, added_niceness) = (cores::original_cores(), cores::added_niceness());
    let begin = move || {
        if let Some(all) = original_cores {
            cores::set_cores(all);
        }
        cores::restore_niceness(added_niceness);
        f()
    };
    sys::thread::Builder::new()
        .name(name.to_owned())
        .spawn(begin)
        .map(|thread| JoinHandle(ThreadHandle::Os(thread)))
        .map_err(failed)
}

/// Runs `f(0)..f(n-1)` concurrently, `f(0)` on the calling thread and each other one on
/// its own thread, and waits for all. Panics are passed on. If a thread cannot be
/// created, the calling thread runs the remaining calls in order.
#[track_caller]
pub fn fan_out(n: usize, f: impl Fn(usize) + Sync) {
    if n <= 1 {
        if n == 1 {
            f(0);
        }
        return;
    }
    if let Some(me) = sim::member() {
        return me.fan_out(n, &f, Location::caller());
    }
    std::thread::scope(|scope| {
        let f = &f;
        let original_cores = cores::original_cores();
        let begin = move |i| {
            if let Some(all) = original_cores {
                cores::set_cores(all);
            }
            f(i);
        };
        let started = |i: &usize| {
            let i = *i;
            std::thread::Builder::new().spawn_scoped(scope, move || begin(i)).is_ok()
        };
        let left = (1..n).find(|i| !started(i)).unwrap_or(n);
        f(0);
        (left..n).for_each(f);
    });
}

/// Number of threads that can make progress at once on this machine.
pub fn parallelism() -> usize {
    if cfg!(shuttle) {
        return 2;
    }
    if let Some(me) = sim::member() {
        return me.parallelism();
    }
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Index of the calling thread, constant during its lifetime. Threads that start one
/// after another have consecutive indexes. Code that distributes cells among threads
/// selects one by the low bits of this index.
pub fn thread_index() -> usize {
    #[cfg(shuttle)]
    {
        usize::from(sys::thread::current().id())
    }
    #[cfg(not(shuttle))]
    {
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        std::thread_local! {
            static MINE: usize = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        if let Some(me) = sim::member() {
            return me.index();
        }
        // A thread that is ending has no index any more; any value will do for its last
        // calls.
        MINE.try_with(|mine| *mine).unwrap_or(0)
    }
}

/// A point on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(std::time::Instant);

impl Instant {
    /// Time since `earlier`; zero if `earlier` is later than this point.
    pub fn since(self, earlier: Instant) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }
    /// The point this much later.
    #[must_use]
    pub fn after(self, time: Duration) -> Instant {
        Instant(self.0.checked_add(time).unwrap_or(self.0))
    }
    /// Time passed since this point.
    pub fn elapsed(self) -> Duration {
        now().since(self)
    }
}

/// The monotonic clock.
pub fn now() -> Instant {
    if let Some(me) = sim::member() {
        return Instant(me.now());
    }
    Instant(std::time::Instant::now())
}

/// The monotonic clock, measured from a point before the first call; in a simulated
/// run, from its start.
pub fn uptime() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    if let Some(me) = sim::member() {
        return me.uptime();
    }
    START.get_or_init(std::time::Instant::now).elapsed()
}

/// Measures `f` in real time, also in a simulated run. Only for decisions that change
/// the speed of later work and nothing else.
pub fn real_time(f: impl FnOnce()) -> Duration {
    let start = std::time::Instant::now();
    f();
    start.elapsed()
}

/// The wall clock: time since 1970-01-01 UTC.
pub fn wall_clock() -> Duration {
    if let Some(me) = sim::member() {
        return me.wall_clock();
    }
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

/// Sleeps.
#[track_caller]
pub fn sleep(duration: Duration) {
    if let Some(me) = sim::member() {
        return me.sleep(duration, Location::caller());
    }
    may_sleep();
    sys::thread::sleep(duration);
}

/// Waits until `is` is true, checking about once a millisecond; false if it is not after `limit`.
#[track_caller]
pub fn poll(limit: Duration, mut is: impl FnMut() -> bool) -> bool {
    let begin = now();
    loop {
        if is() {
            return true;
        }
        if begin.elapsed() >= limit {
            return false;
        }
        sleep(Duration::from_millis(1));
    }
}

/// Fills `out` from the operating system's random source.
///
/// # Errors
/// When the system has no randomness available.
pub fn random_bytes(out: &mut [u8]) -> crate::Result<()> {
    if cfg!(shuttle) {
        // The same in every run, so that a seed reproduces it.
        out.fill(0x5e);
        return Ok(());
    }
    if let Some(me) = sim::member() {
        me.random(out);
        return Ok(());
    }
    let mut done = 0;
    while done < out.len() {
        let n = rustix::rand::getrandom(&mut out[done..], rustix::rand::GetRandomFlags::empty())
            .map_err(|e| crate::Error::io("cannot get random bytes", e.into()))?;
        done += n;
    }
    Ok(())
}

/// A random number.
///
/// # Errors
/// As [`random_bytes`].
pub fn random_u64() -> crate::Result<u64> {
    let mut bytes = [0; 8];
    random_bytes(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// A value that one thread sets and another waits for. If no thread sets it, the waiter
/// waits for ever ([`oneshot`] is safer).
#[derive(Default, Debug)]
pub struct OneShot<T> {
    slot: Mutex<Option<T>>,
    filled: Condvar,
}

impl<T> OneShot<T> {
    /// An empty slot.
    pub const fn new() -> Self {
        OneShot { slot: Mutex::new(None), filled: Condvar::new() }
    }
    /// Fills the slot and wakes the waiter. The first value wins.
    #[track_caller]
    pub fn set(&self, value: T) {
        self.slot.lock().get_or_insert(value);
        self.filled.notify_all();
    }
    /// Waits for the value and takes it.
    #[track_caller]
    pub fn wait(&self) -> T {
        let mut slot = self.slot.lock();
        loop {
            if let Some(value) = slot.take() {
                return value;
            }
            self.filled.wait(&mut slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_value_crosses_threads() {
        let shot = Arc::new(OneShot::new());
        let other = Arc::clone(&shot);
        let t = spawn("setter", move || other.set(7)).unwrap();
        assert_eq!(shot.wait(), 7);
        assert_eq!(t.join(), Some(()));
    }

    /// The notifying thread has already released the lock.
    #[test]
    fn no_wake_up_is_lost() {
        const ROUNDS: u32 = 20_000;
        let shared = Arc::new((Mutex::new(0u32), Condvar::new()));
        let play = |odd: u32| {
            let shared = Arc::clone(&shared);
            move || {
                for _ in 0..ROUNDS {
                    let mut count = shared.0.lock();
                    while *count % 2 != odd {
                        shared.1.wait(&mut count);
                    }
                    *count += 1;
                    drop(count);
                    shared.1.notify_one();
                }
            }
        };
        let other = spawn("odd", play(1)).unwrap();
        play(0)();
        other.join().unwrap();
        assert_eq!(*shared.0.lock(), 2 * ROUNDS);
    }

    #[test]
    fn a_thread_keeps_its_index() {
        let mine = thread_index();
        let other = spawn("other", || (thread_index(), thread_index())).unwrap();
        let other = other.join().unwrap();
        assert_eq!(other.0, other.1);
        assert_ne!(other.0, mine);
        assert_eq!(thread_index(), mine);
    }

    #[test]
    fn fan_out_runs_each_index_once() {
        let hits = Mutex::new(vec![0; 9]);
        fan_out(9, |i| hits.lock()[i] += 1);
        assert_eq!(hits.into_inner(), vec![1; 9]);
    }

    #[test]
    fn a_panicking_holder_does_not_poison() {
        let m = Arc::new(Mutex::new(1));
        let other = Arc::clone(&m);
        let t = spawn("panics", move || {
            let _g = other.lock();
            std::panic::resume_unwind(Box::new(()));
        })
        .unwrap();
        assert!(t.join().is_none());
        assert_eq!(*m.lock(), 1);
    }
}
