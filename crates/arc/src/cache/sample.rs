//! Feeds the what-if estimator without costing more than a hundredth.
//!
//! # Theory
//! A reference that the estimator's filter wants is recorded, at about
//! [`RECORD_NS`] each. In a small cache the samples are most of all references; so
//! recording goes on for a window of [`WINDOW`] references, and then rests for a
//! hundred times what that cost. The miniature caches stand still meanwhile, and so
//! does the count of references that they go by.
//!
//! Lock order: the sampler's lock comes before a core's and a stripe's; it is tried,
//! never waited for, where somebody waits for a block.

use std::sync::Arc;
use std::time::Duration;

use base::rt::atomic::{AtomicBool, Ordering::Relaxed};
use base::rt::{Instant, Mutex};

use crate::PolicyKind;
use crate::policy::Kind;
use crate::whatif::{Filter, Point, WhatIf};

/// Records of a window.
const WINDOW: u32 = 16_384;
/// What a record costs, generously.
const RECORD_NS: u64 = 1000;
/// Rest for so many times the cost.
const REST: u64 = 100;
/// The sizes are looked at again after so many records.
const SIZES_EVERY: u32 = 2048;

struct State {
    what_if: WhatIf,
    /// Records left in this window.
    left: u32,
    /// When it began, or when the next may.
    until: Option<Instant>,
    /// References by kind: in windows that ended, and when this one began.
    seen: [u64; 2],
    began: [u64; 2],
}

pub(super) struct Sampler {
    on: AtomicBool,
    filter: Arc<Filter>,
    state: Mutex<State>,
}

impl State {
    /// References of the windows so far, of `all` there were.
    fn seen(&self, all: [u64; 2]) -> [u64; 2] {
        [0, 1].map(|k| self.seen[k] + all[k].saturating_sub(self.began[k]))
    }
}

impl Sampler {
    pub(super) fn new(kind: PolicyKind) -> Sampler {
        let what_if = WhatIf::new(kind);
        let filter = what_if.filter();
        let state = State { what_if, left: WINDOW, until: None, seen: [0; 2], began: [0; 2] };
        Sampler { on: AtomicBool::new(true), filter, state: Mutex::new(state) }
    }

    /// Whether [`Sampler::record`] wants a reference.
    pub(super) fn wants(&self, kind: Kind, hash: u64) -> bool {
        self.on.load(Relaxed) && self.filter.wants(kind, hash)
    }

    /// Records a reference; `all` counts references by kind, `sizes` gives the bytes
    /// that the cache has for each kind.
    pub(super) fn record(
        &self,
        kind: Kind,
        hash: u64,
        size: u32,
        all: impl Fn() -> [u64; 2],
        sizes: impl Fn() -> [u64; 2],
    ) {
        // Who saw the window open may come when another thread has taken the last of it.
        let Some(mut state) = self.state.try_lock().filter(|s| s.left > 0) else { return };
        let all = all();
        let seen = state.seen(all);
        if state.left.is_multiple_of(SIZES_EVERY) {
            state.what_if.set_size(sizes(), seen);
        }
        state.what_if.record(hash, kind, size.max(1), seen[kind as usize]);
        state.left -= 1;
        if state.left == 0 {
            state.seen = seen;
            state.until = Some(base::rt::now());
            self.on.store(false, Relaxed);
        }
    }

    /// Begins a window if the rest is over; call it now and then.
    pub(super) fn resume(&self, all: impl Fn() -> [u64; 2], sizes: impl Fn() -> [u64; 2]) {
        if self.on.load(Relaxed) {
            return;
        }
        let Some(mut state) = self.state.try_lock() else { return };
        let rest = Duration::from_nanos(u64::from(WINDOW) * RECORD_NS * REST);
        if state.until.is_some_and(|t| t.elapsed() < rest) {
            return;
        }
        state.began = all();
        state.left = WINDOW;
        let seen = state.seen;
        state.what_if.set_size(sizes(), seen);
        self.on.store(true, Relaxed);
    }

    /// Gives the estimator its first sizes; nothing is wanted before.
    pub(super) fn start(&self, sizes: [u64; 2]) {
        let mut state = self.state.lock();
        let seen = state.seen;
        state.what_if.set_size(sizes, seen);
    }

    pub(super) fn curve(&self, all: impl Fn() -> [u64; 2]) -> Vec<Point> {
        let state = self.state.lock();
        let seen = if self.on.load(Relaxed) { state.seen(all()) } else { state.seen };
        state.what_if.curve(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cenote bench cached` panicked in CI: a thread had seen that a reference was wanted,
    /// and when it got the lock, another one had recorded the window's last.
    #[test]
    fn who_comes_when_the_window_is_over_records_nothing() {
        let sampler = Sampler::new(PolicyKind::Default);
        let record = || sampler.record(Kind::Data, 1, 1, || [1, 0], || [1 << 20; 2]);
        for _ in 0..=WINDOW {
            record();
        }
        assert!(!sampler.on.load(Relaxed));
        assert_eq!(sampler.state.lock().left, 0);
    }
}
