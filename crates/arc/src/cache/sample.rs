//! Feeds the what-if estimator at a cost of at most one percent.
//!
//! # Theory
//! References that pass the estimator's filter are recorded, at about [`RECORD_NS`]
//! each. In a small cache the samples are most of all references. Therefore recording
//! is active for a window of [`WINDOW`] references, and then pauses for a hundred times
//! the cost of the window. During the pause the miniature caches do not change, and
//! neither does the reference count that they use.
//!
//! Lock order: the sampler's lock comes before a core's and a stripe's. On paths where
//! a reader waits for a block, it is only tried.

use std::sync::Arc;
use std::time::Duration;

use base::rt::atomic::{AtomicBool, Ordering::Relaxed};
use base::rt::{Instant, Mutex};

use crate::PolicyKind;
use crate::policy::CacheKind;
use crate::whatif::{Filter, Point, WhatIf};

/// Records in a window.
const WINDOW: u32 = 16_384;
/// Upper estimate of the cost of a record.
const RECORD_NS: u64 = 1000;
/// Length of the pause, in multiples of the cost.
const REST: u64 = 100;
/// Number of records between two updates of the sizes.
const SIZES_EVERY: u32 = 2048;

struct SamplerState {
    what_if: WhatIf,
    /// Records left in this window.
    left: u32,
    /// When the window began, or when the next one may begin.
    until: Option<Instant>,
    /// References by kind: in past windows, and at the start of this one.
    seen: [u64; 2],
    began: [u64; 2],
}

pub(super) struct Sampler {
    on: AtomicBool,
    filter: Arc<Filter>,
    state: Mutex<SamplerState>,
}

impl SamplerState {
    /// References during the windows so far, out of `all` references.
    fn seen(&self, all: [u64; 2]) -> [u64; 2] {
        [0, 1].map(|k| self.seen[k] + all[k].saturating_sub(self.began[k]))
    }
}

impl Sampler {
    pub(super) fn new(kind: PolicyKind) -> Sampler {
        let what_if = WhatIf::new(kind);
        let filter = what_if.filter();
        let state =
            SamplerState { what_if, left: WINDOW, until: None, seen: [0; 2], began: [0; 2] };
        Sampler { on: AtomicBool::new(true), filter, state: Mutex::new(state) }
    }

    /// Whether [`Sampler::record`] needs this reference.
    pub(super) fn wants(&self, kind: CacheKind, hash: u64) -> bool {
        self.on.load(Relaxed) && self.filter.wants(kind, hash)
    }

    /// Records a reference; `all` counts references by kind, `sizes` returns the bytes
    /// of the cache for each kind.
    pub(super) fn record(
        &self,
        kind: CacheKind,
        hash: u64,
        size: u32,
        all: impl Fn() -> [u64; 2],
        sizes: impl Fn() -> [u64; 2],
    ) {
        // Another thread may have used up the window after this one saw it open.
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

    /// Begins a window if the pause is over; called from time to time.
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

    /// Sets the estimator's first sizes; nothing is recorded before.
    pub(super) fn start(&self, sizes: [u64; 2]) {
        let mut state = self.state.lock();
        let seen = state.seen;
        state.what_if.set_size(sizes, seen);
    }

    /// The estimates for other sizes, and for cache devices.
    pub(super) fn curves(&self, all: impl Fn() -> [u64; 2]) -> [Vec<Point>; 2] {
        let state = self.state.lock();
        let seen = if self.on.load(Relaxed) { state.seen(all()) } else { state.seen };
        [state.what_if.curve(seen), state.what_if.devices(seen)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cenote bench cached` panicked in CI: a thread had seen that a reference was to
    /// be recorded, and when it got the lock, another one had recorded the window's
    /// last.
    #[test]
    fn a_record_after_the_end_of_the_window_is_dropped() {
        let sampler = Sampler::new(PolicyKind::Default);
        let record = || sampler.record(CacheKind::Data, 1, 1, || [1, 0], || [1 << 20; 2]);
        for _ in 0..=WINDOW {
            record();
        }
        assert!(!sampler.on.load(Relaxed));
        assert_eq!(sampler.state.lock().left, 0);
    }
}
