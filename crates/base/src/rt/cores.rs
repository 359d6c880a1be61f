//! Threads that keep themselves on one core, or let others go first.
//!
//! What such a thread starts is not to stay there with it, though threads inherit the
//! cores they may use: [`super::spawn`] and [`super::fan_out`] give theirs back to them.
//! Niceness is inherited, too: threads of a [`super::fan_out`] do the caller's own work and
//! keep it, those of [`super::spawn`] may serve others as long as they live, and get their
//! place back.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use rustix::process::nice;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Result;

std::thread_local! {
    /// The cores that this thread might use before it stayed on one.
    static HOME: RefCell<Option<CpuSet>> = const { RefCell::new(None) };
    /// How much nicer this thread made itself.
    static WAY: Cell<i32> = const { Cell::new(0) };
    /// When it last offered its core, as [`super::uptime`].
    static OFFERED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Keeps the calling thread on one core; false where it may not be there. Nothing in a
/// simulated run.
pub fn stay_on(core: usize) -> bool {
    if core >= CpuSet::MAX_CPU || super::sim::member().is_some() {
        return false;
    }
    let stay = |home: &mut Option<CpuSet>| {
        let all = match home {
            Some(all) => *all,
            None => sched_getaffinity(None).ok()?,
        };
        let mut one = CpuSet::new();
        one.set(core);
        if !all.is_set(core) || sched_setaffinity(None, &one).is_err() {
            return None;
        }
        *home = Some(all);
        Some(())
    };
    HOME.try_with(|home| stay(&mut home.borrow_mut())).is_ok_and(|stays| stays.is_some())
}

/// Lets other threads go first from now on: the calling one is `steps` nicer, and helps
/// itself with such. Nothing in a simulated run, nor where the process may not give back to
/// those that it starts what they would inherit.
///
/// # Errors
/// When no thread can be had to see whether it may.
pub fn give_way(steps: u8) -> Result<()> {
    let may_return = || nice(1).is_ok() && nice(-1).is_ok();
    if super::sim::member().is_none()
        && super::spawn("nice", may_return)?.join() == Some(true)
        && nice(steps.into()).is_ok()
    {
        WAY.set(WAY.get() + i32::from(steps));
    }
    Ok(())
}

/// Offers the core to threads that could run, once in `slice`: the scheduler counts it as a
/// slice of its own, however short the thread had the core. Nothing in a simulated run.
pub fn offer_core(slice: Duration) {
    if super::sim::member().is_some() {
        return;
    }
    let now = super::uptime();
    let due = |last: &Cell<Duration>| now.saturating_sub(last.get()) >= slice;
    if OFFERED.try_with(due).unwrap_or(false) {
        rustix::thread::sched_yield();
        let _ending = OFFERED.try_with(|last| last.set(super::uptime()));
    }
}

/// How much nicer the calling thread made itself.
pub(super) fn way() -> i32 {
    WAY.try_with(Cell::get).unwrap_or(0)
}

/// Takes the place back that the thread which started this one gave away.
pub(super) fn take_back(way: i32) {
    if way != 0 {
        // It was tried before that way was given.
        let _refused = nice(-way);
    }
}

/// What threads that the calling one starts are to [`go`] to.
pub(super) fn home() -> Option<CpuSet> {
    HOME.try_with(|home| *home.borrow()).ok()?
}

/// Cores that were allowed before are refused only if they went away meanwhile.
pub(super) fn go(all: CpuSet) {
    let _refused = sched_setaffinity(None, &all);
}

#[cfg(test)]
mod tests {
    use super::super::{Mutex, fan_out, spawn};
    use super::*;

    fn count() -> u32 {
        sched_getaffinity(None).unwrap().count()
    }

    /// A pool's worker that the sync thread happened to start was as nice as it for good, and
    /// served everybody's reads so.
    #[test]
    fn who_gives_way_does_so_with_its_helpers_alone() {
        let niceness = || nice(0).unwrap();
        let test = move || {
            let before = niceness();
            if before > 18 || nice(1).is_err() || nice(-1).is_err() {
                give_way(1).unwrap();
                eprintln!("SKIPPED: niceness that may be given back");
                return assert_eq!(way(), 0);
            }
            give_way(1).unwrap();
            assert_eq!((niceness(), way()), (before + 1, 1));
            assert_eq!(spawn("started", niceness).unwrap().join(), Some(before));
            let helpers = Mutex::new([0; 3]);
            fan_out(3, |i| helpers.lock()[i] = niceness());
            assert_eq!(helpers.into_inner(), [before + 1; 3]);
        };
        assert!(spawn("gives-way", test).unwrap().join().is_some());
    }

    #[test]
    fn who_stays_on_a_core_keeps_nobody_else_there() {
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
        // Not on the thread of the test, which others may use after it.
        assert!(spawn("stays", test).unwrap().join().is_some());
    }
}
