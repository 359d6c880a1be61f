//! Mutexes, condition variables and readers-writer locks.
//!
//! Each operation first checks whether its thread belongs to a simulated run (one
//! relaxed load in production). In a run a lock is only ever *tried*: a thread that
//! finds it taken passes the baton on, so no member of a run waits in the operating
//! system while it holds the baton.

use std::any::type_name;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{PoisonError, TryLockError, TryLockResult};
use std::time::Duration;

use super::lockdep::{self, LockClass};
use super::sim::{self, Kind, Member};
use super::{sys, watch};

/// The result of a try, poisoned or not.
fn tried<G>(result: TryLockResult<G>) -> Option<G> {
    match result {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(p)) => Some(p.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Address of a lock or condition. It identifies the lock while a thread holds it or
/// waits for it.
fn address<T: ?Sized>(of: &T) -> usize {
    std::ptr::from_ref(of).cast::<()>() as usize
}

/// A mutual-exclusion lock. Debug builds check the order in which locks are taken
/// (`rt::lockdep`).
#[derive(Debug)]
pub struct Mutex<T: ?Sized> {
    class: LockClass,
    real: sys::Mutex<T>,
}

impl<T: Default> Default for Mutex<T> {
    #[track_caller]
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

/// Exclusive access to what a [`Mutex`] protects.
pub struct MutexGuard<'a, T: ?Sized> {
    inner: Option<sys::MutexGuard<'a, T>>,
    lock: &'a Mutex<T>,
}

impl<T> Mutex<T> {
    /// A lock around `value`.
    #[track_caller]
    pub const fn new(value: T) -> Self {
        Mutex { class: LockClass::new(), real: sys::Mutex::new(value) }
    }
    /// Takes the value out.
    pub fn into_inner(self) -> T {
        self.real.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.class.before_wait(type_name::<T>());
        if let Some(me) = sim::member() {
            return self.lock_in_run(&me, Location::caller());
        }
        let inner = tried(self.real.try_lock()).unwrap_or_else(|| self.queue());
        self.guard(inner)
    }
    /// Takes the lock if it is free.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let me = sim::member();
        if let Some(me) = &me {
            me.point(Kind::TryLock, Location::caller());
        }
        let inner = tried(self.real.try_lock())?;
        if let Some(me) = &me {
            me.took(address(&self.real));
        }
        Some(self.guard(inner))
    }
    /// Access through an exclusive reference, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.real.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn guard<'a>(&'a self, inner: sys::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.class.acquired(type_name::<T>(), address(&self.real));
        MutexGuard { inner: Some(inner), lock: self }
    }

    #[cold]
    fn queue(&self) -> sys::MutexGuard<'_, T> {
        watch::contended(|| tried(self.real.try_lock()))
            .unwrap_or_else(|| self.real.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[cold]
    fn lock_in_run(&self, me: &Member, at: &'static Location<'static>) -> MutexGuard<'_, T> {
        me.point(Kind::Lock, at);
        let inner = me.acquire(address(&self.real), at, || tried(self.real.try_lock()));
        self.guard(inner)
    }
}

const GUARD: &str = "a guard is empty only inside Condvar::wait";

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect(GUARD)
    }
}
impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect(GUARD)
    }
}
impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        lockdep::released(address(&self.lock.real));
        if let Some(me) = sim::member()
            && let Some(inner) = self.inner.take()
        {
            drop(inner);
            me.unlocked(address(&self.lock.real), false);
        }
    }
}

/// A condition variable for [`Mutex`].
///
/// The notifying thread changes the awaited state under the lock. A notification
/// without waiters makes no system call.
#[derive(Default, Debug)]
pub struct Condvar {
    real: sys::Condvar,
    /// Incremented under the lock, before it is released. A thread that takes the lock
    /// later and then notifies sees all waiters.
    waiters: AtomicUsize,
}

impl Condvar {
    /// A condition without waiters.
    pub const fn new() -> Self {
        Condvar { real: sys::Condvar::new(), waiters: AtomicUsize::new(0) }
    }
    /// Releases the lock, sleeps until notified, and takes the lock again.
    #[track_caller]
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(me) = sim::member() {
            self.wait_in_run(&me, guard, None, Location::caller());
            return;
        }
        watch::may_sleep();
        let inner = guard.inner.take().expect(GUARD);
        self.waiters.fetch_add(1, Relaxed);
        guard.inner = Some(self.real.wait(inner).unwrap_or_else(PoisonError::into_inner));
        self.waiters.fetch_sub(1, Relaxed);
    }
    /// As [`Condvar::wait`], but waits at most `timeout`; returns true if the time ran
    /// out.
    #[track_caller]
    pub fn wait_timeout<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> bool {
        if let Some(me) = sim::member() {
            return self.wait_in_run(&me, guard, Some(timeout), Location::caller());
        }
        watch::may_sleep();
        let inner = guard.inner.take().expect(GUARD);
        self.waiters.fetch_add(1, Relaxed);
        let (inner, result) =
            self.real.wait_timeout(inner, timeout).unwrap_or_else(PoisonError::into_inner);
        self.waiters.fetch_sub(1, Relaxed);
        guard.inner = Some(inner);
        result.timed_out()
    }
    /// Wakes one waiter.
    #[track_caller]
    pub fn notify_one(&self) {
        if let Some(me) = sim::member() {
            return me.notify(address(self), false, Location::caller());
        }
        if self.waiters.load(Relaxed) > 0 {
            self.real.notify_one();
        }
    }
    /// Wakes every waiter.
    #[track_caller]
    pub fn notify_all(&self) {
        if let Some(me) = sim::member() {
            return me.notify(address(self), true, Location::caller());
        }
        if self.waiters.load(Relaxed) > 0 {
            self.real.notify_all();
        }
    }

    #[cold]
    fn wait_in_run<T>(
        &self,
        me: &Member,
        guard: &mut MutexGuard<'_, T>,
        timeout: Option<Duration>,
        at: &'static Location<'static>,
    ) -> bool {
        me.count(Kind::Wait, at);
        let (real, lock) = (&guard.lock.real, address(&guard.lock.real));
        drop(guard.inner.take().expect(GUARD));
        me.release(lock, false);
        let timed_out = me.wait(address(self), timeout, at);
        // Also when the run has ended meanwhile: unwinding code may dereference the
        // guard.
        guard.inner = Some(me.reacquire(lock, at, || tried(real.try_lock())));
        me.check();
        timed_out
    }
}

/// A readers-writer lock.
#[derive(Debug)]
pub struct RwLock<T: ?Sized> {
    class: LockClass,
    real: sys::RwLock<T>,
}

impl<T: Default> Default for RwLock<T> {
    #[track_caller]
    fn default() -> Self {
        RwLock::new(T::default())
    }
}

/// Shared access to what an [`RwLock`] protects.
pub struct ReadGuard<'a, T: ?Sized> {
    inner: Option<sys::RwLockReadGuard<'a, T>>,
    lock: &'a RwLock<T>,
}
/// Exclusive access to what an [`RwLock`] protects.
pub struct WriteGuard<'a, T: ?Sized> {
    inner: Option<sys::RwLockWriteGuard<'a, T>>,
    lock: &'a RwLock<T>,
}

impl<T> RwLock<T> {
    /// A lock around `value`.
    #[track_caller]
    pub const fn new(value: T) -> Self {
        RwLock { class: LockClass::new(), real: sys::RwLock::new(value) }
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits for shared access.
    #[track_caller]
    pub fn read(&self) -> ReadGuard<'_, T> {
        self.class.before_wait(type_name::<T>());
        if let Some(me) = sim::member() {
            return self.read_in_run(&me, Location::caller());
        }
        let inner = tried(self.real.try_read()).unwrap_or_else(|| self.queue_read());
        self.shared(inner)
    }
    /// Waits for exclusive access.
    #[track_caller]
    pub fn write(&self) -> WriteGuard<'_, T> {
        self.class.before_wait(type_name::<T>());
        if let Some(me) = sim::member() {
            return self.write_in_run(&me, Location::caller());
        }
        let inner = tried(self.real.try_write()).unwrap_or_else(|| self.queue_write());
        self.exclusive(inner)
    }

    fn shared<'a>(&'a self, inner: sys::RwLockReadGuard<'a, T>) -> ReadGuard<'a, T> {
        self.class.acquired(type_name::<T>(), address(&self.real));
        ReadGuard { inner: Some(inner), lock: self }
    }

    fn exclusive<'a>(&'a self, inner: sys::RwLockWriteGuard<'a, T>) -> WriteGuard<'a, T> {
        self.class.acquired(type_name::<T>(), address(&self.real));
        WriteGuard { inner: Some(inner), lock: self }
    }

    #[cold]
    fn queue_read(&self) -> sys::RwLockReadGuard<'_, T> {
        watch::contended(|| tried(self.real.try_read()))
            .unwrap_or_else(|| self.real.read().unwrap_or_else(PoisonError::into_inner))
    }

    #[cold]
    fn queue_write(&self) -> sys::RwLockWriteGuard<'_, T> {
        watch::contended(|| tried(self.real.try_write()))
            .unwrap_or_else(|| self.real.write().unwrap_or_else(PoisonError::into_inner))
    }

    #[cold]
    fn read_in_run(&self, me: &Member, at: &'static Location<'static>) -> ReadGuard<'_, T> {
        me.point(Kind::Read, at);
        let inner = me.acquire(address(&self.real), at, || tried(self.real.try_read()));
        self.shared(inner)
    }

    #[cold]
    fn write_in_run(&self, me: &Member, at: &'static Location<'static>) -> WriteGuard<'_, T> {
        me.point(Kind::Write, at);
        let inner = me.acquire(address(&self.real), at, || tried(self.real.try_write()));
        self.exclusive(inner)
    }
}

const ACCESS: &str = "access ends only when the guard is dropped";

impl<T: ?Sized> Deref for ReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect(ACCESS)
    }
}
impl<T: ?Sized> Deref for WriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect(ACCESS)
    }
}
impl<T: ?Sized> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect(ACCESS)
    }
}
impl<T: ?Sized> Drop for ReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        lockdep::released(address(&self.lock.real));
        if let Some(me) = sim::member()
            && let Some(inner) = self.inner.take()
        {
            drop(inner);
            me.unlocked(address(&self.lock.real), true);
        }
    }
}
impl<T: ?Sized> Drop for WriteGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        lockdep::released(address(&self.lock.real));
        if let Some(me) = sim::member()
            && let Some(inner) = self.inner.take()
        {
            drop(inner);
            me.unlocked(address(&self.lock.real), true);
        }
    }
}
