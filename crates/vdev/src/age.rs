//! The ages of a pool's snapshots: whether a snapshot is the oldest one that is in use.
//!
//! # Theory
//! An expansion may move the blocks of a vdev only when no thread plans reads or writes on a
//! snapshot that does not know of the expansion. Each snapshot has a number, and the numbers of
//! those that exist are in one set. A snapshot that is waited for ends with its last user.
//!
//! Lock order: `state` is a leaf lock.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base::rt::{Condvar, Mutex};

use crate::tree::Tree;

#[derive(Default)]
struct AgeState {
    last: u64,
    alive: BTreeSet<u64>,
}

#[derive(Default)]
struct TreeAges {
    state: Mutex<AgeState>,
    changed: Condvar,
}

/// The number of a snapshot.
pub(crate) struct TreeAge {
    number: u64,
    ages: Arc<TreeAges>,
}

impl Default for TreeAge {
    fn default() -> TreeAge {
        TreeAge::of(Arc::default())
    }
}

impl TreeAge {
    fn of(ages: Arc<TreeAges>) -> TreeAge {
        let mut state = ages.state.lock();
        state.last += 1;
        let number = state.last;
        state.alive.insert(number);
        drop(state);
        TreeAge { number, ages }
    }

    /// The number of a new snapshot.
    pub(crate) fn next(&self) -> TreeAge {
        TreeAge::of(Arc::clone(&self.ages))
    }
}

impl Drop for TreeAge {
    fn drop(&mut self) {
        self.ages.state.lock().alive.remove(&self.number);
        self.ages.changed.notify_all();
    }
}

impl Tree {
    /// Whether no older snapshot of the pool is in use; waits for that at most so long.
    pub fn is_oldest_within(&self, time: Duration) -> bool {
        let TreeAge { number, ages } = &self.age;
        let is_oldest = |state: &AgeState| state.alive.first().is_none_or(|first| first >= number);
        let mut state = ages.state.lock();
        if !is_oldest(&state) {
            ages.changed.wait_timeout(&mut state, time);
        }
        is_oldest(&state)
    }
}
