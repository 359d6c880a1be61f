//! Metaslabs that are excluded from allocation while their free space is discarded or
//! overwritten.
//!
//! # Theory
//! The owner of an [`Exclusion`] may discard or overwrite the allocatable ranges of its
//! metaslab: nothing is allocated there until the exclusion is dropped. At most
//! [`EXCLUDED_MAX`] metaslabs of a vdev are excluded at once (chapter 05 §3.2). Even so they may
//! be those with the last free space, and a txg that finds no space fails. So an allocation
//! that finds none waits for the end of all exclusions, and tries again before new ones begin
//! ([`Exclusions::wait_for_end`]).
//!
//! # Invariants
//! * An owner waits for nothing but its devices, so every exclusion ends.
//! * While an allocation waits, or tries again, no exclusion begins.
//!
//! Lock order: `state` is a leaf lock; it is not held while the metaslab is excluded.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::rt::{Condvar, Mutex};
use base::{Result, VdevId};
use metaslab::{MsKey, Space};

/// Metaslabs of a vdev that are excluded at once.
const EXCLUDED_MAX: usize = 3;

#[derive(Default)]
struct ExclusionState {
    by_vdev: BTreeMap<VdevId, usize>,
    /// Allocations that wait or try again.
    waiting: usize,
}

/// The exclusions of a pool.
#[derive(Default)]
pub(crate) struct Exclusions {
    state: Mutex<ExclusionState>,
    changed: Condvar,
}

/// A metaslab from which nothing is allocated as long as this exists.
pub(super) struct Exclusion {
    all: Arc<Exclusions>,
    space: Arc<Space>,
    key: MsKey,
}

/// The right to allocate once more after a wait; no exclusion begins as long as it exists.
pub(super) struct Retry<'a>(&'a Exclusions);

impl Exclusions {
    /// Excludes a metaslab; waits while too many of its vdev are excluded, or an allocation
    /// needs space.
    ///
    /// # Errors
    /// `Bug` if there is no such metaslab.
    pub(super) fn exclude(self: &Arc<Self>, space: &Arc<Space>, key: MsKey) -> Result<Exclusion> {
        let mut state = self.state.lock();
        while state.waiting > 0
            || state.by_vdev.get(&key.vdev).is_some_and(|count| *count >= EXCLUDED_MAX)
        {
            self.changed.wait(&mut state);
        }
        *state.by_vdev.entry(key.vdev).or_default() += 1;
        drop(state);
        let (all, space) = (Arc::clone(self), Arc::clone(space));
        // Its drop allows allocation again, also when this fails: excluding nests.
        space.disable(key, true)?;
        Ok(Exclusion { all, space, key })
    }

    /// Waits until no metaslab is excluded; `None` if none was.
    pub(super) fn wait_for_end(&self) -> Option<Retry<'_>> {
        let mut state = self.state.lock();
        if state.by_vdev.is_empty() {
            return None;
        }
        state.waiting += 1;
        while !state.by_vdev.is_empty() {
            self.changed.wait(&mut state);
        }
        Some(Retry(self))
    }
}

impl Drop for Exclusion {
    fn drop(&mut self) {
        // It existed when it was excluded. Its vdev may have left the pool since.
        let _gone = self.space.disable(self.key, false);
        let mut state = self.all.state.lock();
        if let Some(count) = state.by_vdev.get_mut(&self.key.vdev) {
            *count -= 1;
            if *count == 0 {
                state.by_vdev.remove(&self.key.vdev);
            }
        }
        drop(state);
        self.all.changed.notify_all();
    }
}

impl Drop for Retry<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.waiting -= 1;
        drop(state);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Arc<Space> {
        let space = Space::new(1);
        let desc = metaslab::VdevDesc {
            asize: 8 << 24,
            ashift: 9,
            ms_shift: 24,
            allocating: true,
            data_disks: 1,
            metaslabs: vec![metaslab::MsDesc::default(); 8],
            ..metaslab::VdevDesc::default()
        };
        space.add_vdev(&desc, None).unwrap();
        Arc::new(space)
    }

    fn key(ms: u64) -> MsKey {
        MsKey { vdev: VdevId(0), ms }
    }

    /// An allocation that finds no space waits for the exclusions, and the next one begins only
    /// after it has tried again.
    #[test]
    fn an_allocation_waits_for_exclusions_and_comes_before_new_ones() {
        let run = base::rt::sim::run(7, || {
            let (all, space) = (Arc::new(Exclusions::default()), space());
            assert!(all.wait_for_end().is_none());
            let first = all.exclude(&space, key(0)).unwrap();
            let second = all.exclude(&space, key(1)).unwrap();
            let order: Arc<Mutex<Vec<&str>>> = Arc::default();
            let waiter = {
                let (all, order) = (Arc::clone(&all), Arc::clone(&order));
                base::rt::spawn("allocation", move || {
                    let retry = all.wait_for_end();
                    assert!(retry.is_some());
                    order.lock().push("allocated");
                    drop(retry);
                })
                .unwrap()
            };
            while all.state.lock().waiting == 0 {
                base::rt::sleep(std::time::Duration::from_millis(1));
            }
            let next = {
                let (all, order, space) =
                    (Arc::clone(&all), Arc::clone(&order), Arc::clone(&space));
                base::rt::spawn("discard", move || {
                    let third = all.exclude(&space, key(2)).unwrap();
                    order.lock().push("excluded");
                    drop(third);
                })
                .unwrap()
            };
            drop(first);
            assert!(order.lock().is_empty());
            drop(second);
            waiter.join();
            next.join();
            assert_eq!(*order.lock(), ["allocated", "excluded"]);
        });
        assert!(matches!(run.outcome, base::rt::sim::Outcome::Done(())));
    }
}
