//! Core affinity and niceness of threads.
//!
//! Threads inherit the set of allowed cores from the thread that starts them. A thread
//! that pinned itself to one core must not pin its children too, so [`super::spawn`]
//! and [`super::fan_out`] restore the original set in new threads. Niceness is
//! inherited as well. Threads of a [`super::fan_out`] do the caller's own work and keep
//! its niceness. Threads of [`super::spawn`] may serve other callers for their whole
//! life, so their niceness is restored.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use rustix::process::nice;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Result;

std::thread_local! {
    /// The cores that this thread was allowed to use before it was pinned.
    static ORIGINAL_CORES: RefCell<Option<CpuSet>> = const { RefCell::new(None) };
    /// By how much this thread raised its niceness.
    static ADDED_NICENESS: Cell<i32> = const { Cell::new(0) };
    /// Time of the last yield, as [`super::uptime`].
    static LAST_YIELD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Pins the calling thread to one core; returns false if the core is not allowed. Does
/// nothing in a simulated run.
pub fn stay_on(core: usize) -> bool {
    if core >= CpuSet::MAX_CPU || super::sim::member().is_some() {
        return false;
    }
    let stay = |original_cores: &mut Option<CpuSet>| {
        let all = match original_cores {
            Some(all) => *all,
            None => sched_getaffinity(None).ok()?,
        };
        let mut one = CpuSet::new();
        one.set(core);
        if !all.is_set(core) || sched_setaffinity(None, &one).is_err() {
            return None;
        }
        *original_cores = Some(all);
        Some(())
    };
    ORIGINAL_CORES
        .try_with(|original_cores| stay(&mut original_cores.borrow_mut()))
        .is_ok_and(|stays| stays.is_some())
}

/// Raises the niceness of the calling thread, and of its fan-out helpers, by `steps`
/// from now on. Does nothing in a simulated run, or if the process may not lower
/// niceness again, because threads that it starts would then keep the raised value.
///
/// # Errors
/// When the thread that tests whether niceness can be lowered cannot be started.
pub fn raise_niceness(steps: u8) -> Result<()> {
    let may_return = || nice(1).is_ok() && nice(-1).is_ok();
    if super::sim::member().is_none()
        && super::spawn("nice", may_return)?.join() == Some(true)
        && nice(steps.into()).is_ok()
    {
        ADDED_NICENESS.set(ADDED_NICENESS.get() + i32::from(steps));
    }
    Ok(())
}

/// Yields the core to other runnable threads, at most once in `slice`. The scheduler
/// counts a yield as a whole time slice, even if the thread had the core only briefly.
/// Does nothing in a simulated run.
pub fn yield_core(slice: Duration) {
    if super::sim::member().is_some() {
        return;
    }
    let now = super::uptime();
    let due = |last: &Cell<Duration>| now.saturating_sub(last.get()) >= slice;
    if LAST_YIELD.try_with(due).unwrap_or(false) {
        rustix::thread::sched_yield();
        let _ending = LAST_YIELD.try_with(|last| last.set(super::uptime()));
    }
}

/// By how much the calling thread raised its niceness.
pub(super) fn added_niceness() -> i32 {
    ADDED_NICENESS.try_with(Cell::get).unwrap_or(0)
}

/// Undoes the niceness that this thread inherited from the thread that started it.
pub(super) fn restore_niceness(added_niceness: i32) {
    if added_niceness != 0 {
        // Lowering it was tested before the niceness was raised.
        let _refused = nice(-added_niceness);
    }
}

/// The core set that new threads of the calling thread get (see [`set_cores`]).
pub(super) fn original_cores() -> Option<CpuSet> {
    ORIGINAL_CORES.try_with(|original_cores| *original_cores.borrow()).ok()?
}

/// Cores that were allowed before are refused only if they disappeared meanwhile.
pub(super) fn set_cores(all: CpuSet) {
    let _refused = sched_setaffinity(None, &all);
}

#[cfg(test)]
#[path = "../../../testkit/src/need.rs"]
mod need;

#[cfg(test)]
mod tests {
    use super::super::{Mutex, fan_out, spawn};
    use super::need::{Need, skip};
    use super::*;

    fn count() -> u32 {
        sched_getaffinity(None).unwrap().count()
    }

    /// A worker of a pool that was started by the sync thread inherited its niceness
    /// for good, and served all readers with it.
    #[test]
    fn niceness_extends_to_fan_out_helpers_only() {
        let niceness = || nice(0).unwrap();
        let test = move || {
            let before = niceness();
            if before > 18 || nice(1).is_err() || nice(-1).is_err() {
                raise_niceness(1).unwrap();
                skip(Need::Root, "niceness that may be given back");
                return assert_eq!(added_niceness(), 0);
            }
            raise_niceness(1).unwrap();
            assert_eq!((niceness(), added_niceness()), (before + 1, 1));
            assert_eq!(spawn("started", niceness).unwrap().join(), Some(before));
            let helpers = Mutex::new([0; 3]);
            fan_out(3, |i| helpers.lock()[i] = niceness());
            assert_eq!(helpers.into_inner(), [before + 1; 3]);
        };
        assert!(spawn("gives-way", test).unwrap().join().is_some());
    }

    #[test]
    fn pinning_does_not_extend_to_other_threads() {
        let test = || {
            let all = sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU).find(|&core| all.is_set(core)).unwrap();
            assert!(!stay_on(CpuSet::MAX_CPU));
            assert!(stay_on(first) && stay_on(first));
            assert_eq!(count(), 1);
            assert_eq!(spawn("started", count).unwrap().join(), Some(all.count()));
            let counts = Mutex::new([0; 3]);
            fan_out(3, |i| counts.lock()[i] = count());
            assert_eq!(counts.into_inner(), [1, all.count(), all.count()]);
        };
        // On a separate thread, because other tests may run on the test's thread later.
        assert!(spawn("stays", test).unwrap().join().is_some());
    }
}
