//! Crashes at many points on several threads, up to the first that leaves something wrong.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use base::Txg;
use base::rt::{Mutex, fan_out};
use device::sim::crash_seeds;
use zio::BlockCache;

use crate::pool::CACHE;

/// Where to crash, and how.
pub(crate) struct CrashPoints {
    /// Events after which the power fails.
    pub(crate) points: Vec<u64>,
    /// The run's seed.
    pub(crate) seed: u64,
    /// Ways to crash at each point, beside all that is not flushed lost and all of it kept.
    pub(crate) more: u64,
    /// Threads that look.
    pub(crate) threads: usize,
}

/// What was found.
#[derive(Default)]
pub(crate) struct CrashFindings {
    /// Images judged.
    pub(crate) images: u64,
    /// Groups found in them.
    pub(crate) groups: u64,
    /// Event and seed of the first crash that left something wrong, and what.
    pub(crate) wrong: Option<(u64, u64, String)>,
}

impl CrashPoints {
    /// Calls `crash` with an event, a seed and the thread's cache for each; it tells the group
    /// that it found.
    pub(crate) fn visit(
        &self,
        crash: impl Fn(u64, u64, &Arc<BlockCache>) -> Result<Option<Txg>, String> + Sync,
    ) -> CrashFindings {
        let (next, images, stop) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let (wrong, groups) = (Mutex::new(None), Mutex::new(BTreeSet::new()));
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
                        Ok(txg) => groups.lock().extend(txg),
                        Err(what) => fail(event, seed, what),
                    }
                }
            }
        });
        let (images, groups) = (images.into_inner(), groups.into_inner().len() as u64);
        CrashFindings { images, groups, wrong: wrong.into_inner() }
    }
}
