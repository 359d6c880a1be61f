//! Crashes at many points on several threads, up to the first with a wrong result.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use base::Txg;
use base::rt::{Mutex, fan_out};
use device::sim::crash_seeds;
use zio::BlockCache;

use crate::pool::CACHE;

/// The crash points, and the ways to crash.
pub(crate) struct CrashPoints {
    /// Events after which the power fails.
    pub(crate) points: Vec<u64>,
    /// The run's seed.
    pub(crate) seed: u64,
    /// Ways to crash at each point, besides losing all unflushed writes and keeping all of
    /// them.
    pub(crate) more: u64,
    /// Threads that judge.
    pub(crate) threads: usize,
}

/// The findings.
#[derive(Default)]
pub(crate) struct CrashFindings {
    /// Images judged.
    pub(crate) images: u64,
    /// Txgs found in them.
    pub(crate) txgs: u64,
    /// Event and seed of the first crash with a wrong result, and the error.
    pub(crate) wrong: Option<(u64, u64, String)>,
}

impl CrashPoints {
    /// Calls `crash` with an event, a seed and the thread's cache for each crash; it
    /// returns the txg found.
    pub(crate) fn visit(
        &self,
        crash: impl Fn(u64, u64, &Arc<BlockCache>) -> Result<Option<Txg>, String> + Sync,
    ) -> CrashFindings {
        let (next, images, stop) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let (wrong, txgs) = (Mutex::new(None), Mutex::new(BTreeSet::new()));
        let fail = |event: u64, seed: u64, what: String| {
            stop.store(true, Relaxed);
            let mut wrong = wrong.lock();
            if wrong.as_ref().is_none_or(|(first, _, _)| event < *first) {
                *wrong = Some((event, seed, what));
            }
        };
        fan_out(self.threads.max(1), |_| {
            let cache = match BlockCache::of(CACHE) {
                Ok(cache) => Arc::new(cache),
                Err(e) => return fail(0, 0, e.to_string()),
            };
            while let Some(&event) = self.points.get(next.fetch_add(1, Relaxed)) {
                for seed in crash_seeds(self.seed, event, self.more) {
                    if stop.load(Relaxed) {
                        return;
                    }
                    images.fetch_add(1, Relaxed);
                    match crash(event, seed, &cache) {
                        Ok(txg) => txgs.lock().extend(txg),
                        Err(what) => fail(event, seed, what),
                    }
                }
            }
        });
        let (images, txgs) = (images.into_inner(), txgs.into_inner().len() as u64);
        CrashFindings { images, txgs, wrong: wrong.into_inner() }
    }
}
