//! Threads that keep themselves on one core, or let others go first.
//!
//! What such a thread starts is not to stay there with it, though threads inherit the
//! cores they may use: [`super::spawn`] and [`super::fan_out`] give theirs back to them.

use std::cell::RefCell;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

std::thread_local! {
    /// The cores that this thread might use before it stayed on one.
    static HOME: RefCell<Option<CpuSet>> = const { RefCell::new(None) };
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

/// Lets other threads go first from now on: the calling one, and those that it starts, are
/// `steps` nicer. Nothing in a simulated run.
pub fn give_way(steps: u8) {
    if super::sim::member().is_none() {
        // Always allowed; where it is not, nobody is worse off than before.
        let _as_before = rustix::process::nice(i32::from(steps));
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

    #[test]
    fn who_gives_way_does_so_with_those_it_starts() {
        let niceness = || rustix::process::nice(0).unwrap();
        let test = move || {
            let before = niceness();
            give_way(1);
            assert_eq!(niceness(), (before + 1).min(19));
            assert_eq!(spawn("started", niceness).unwrap().join(), Some(niceness()));
        };
        assert!(spawn("nice", test).unwrap().join().is_some());
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
