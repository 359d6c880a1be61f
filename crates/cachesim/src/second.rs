//! A second tier behind the engine's default policy, with either rule of admission.
//!
//! The tier is a ring of pages as on a cache device: what is written pushes out what was
//! written first. A page is written when it leaves the first tier, if the rule admits it and
//! the ring does not have it. The rule is the very state machine of the crate `l2arc`.

use std::collections::VecDeque;
use std::hash::BuildHasher;

use arc::policy::Default as Ours;
use base::Result;
use l2arc::{Admission, L2Policy};

use crate::ReplayOptions;
use crate::sim::{EngineCache, PAGE_BYTES};
use crate::trace::{Trace, stem};

/// The result of a replay with a second tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SecondResult {
    /// Requests.
    pub requests: u64,
    /// Hits of the first tier.
    pub first_hits: u64,
    /// Hits of the second tier.
    pub second_hits: u64,
    /// Pages written to the second tier.
    pub writes: u64,
}

impl SecondResult {
    /// Hits of the second tier over the misses of the first.
    pub fn hit_ratio(&self) -> f64 {
        ratio(self.second_hits, self.requests - self.first_hits)
    }

    /// Hits of the second tier for each page written to it.
    pub fn hits_per_write(&self) -> f64 {
        ratio(self.second_hits, self.writes)
    }
}

fn ratio(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

/// One result with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct SecondRow {
    /// The trace's file name, without directory and compression.
    pub trace: String,
    /// Pages of the first tier.
    pub size: usize,
    /// Pages of the second tier, as a multiple.
    pub times: usize,
    /// The rule of admission.
    pub policy: L2Policy,
    /// The result.
    pub outcome: SecondResult,
}

/// Replays a trace with `size` pages in the first tier and `times` as many in the second.
pub fn simulate_second(policy: L2Policy, trace: &Trace, size: usize, times: usize) -> SecondResult {
    let (size, pages) = (size.max(1), size.max(1) * times.max(1));
    let first = Ours::new(size as u64 * u64::from(PAGE_BYTES));
    let mut first = EngineCache::new(first, trace, true);
    let hasher = foldhash::fast::FixedState::with_seed(1);
    let mut rule = Admission::new(policy, pages as u64);
    let (mut ring, mut on) = (VecDeque::with_capacity(pages), vec![false; trace.keys]);
    let mut out = SecondResult { requests: trace.requests.len() as u64, ..SecondResult::default() };
    for &key in &trace.requests {
        match first.access(key) {
            true => out.first_hits += 1,
            false => out.second_hits += u64::from(on[key as usize]),
        }
        for (key, returned) in first.take_evicted() {
            let filling = out.writes < pages as u64;
            let known = on[key as usize];
            if known || !rule.wants(hasher.hash_one(key), returned, filling) {
                continue;
            }
            if ring.len() == pages
                && let Some(oldest) = ring.pop_front()
            {
                on[oldest as usize] = false;
            }
            ring.push_back(key);
            on[key as usize] = true;
            out.writes += 1;
        }
    }
    out
}

/// Replays every trace at every size with second tiers of these multiples, under both
/// rules.
///
/// # Errors
/// When a trace cannot be read.
pub fn run_second(options: &ReplayOptions, multiples: &[usize]) -> Result<Vec<SecondRow>> {
    let mut rows = Vec::new();
    for path in &options.traces {
        let trace = Trace::read(path, options.format)?;
        for &size in &options.sizes {
            for &times in multiples {
                for policy in [L2Policy::Openzfs, L2Policy::Default] {
                    let outcome = simulate_second(policy, &trace, size, times);
                    rows.push(SecondRow { trace: stem(path), size, times, policy, outcome });
                }
            }
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(requests: Vec<u32>) -> Trace {
        let keys = requests.iter().max().map_or(0, |m| *m as usize + 1);
        Trace { requests, keys }
    }

    #[test]
    fn a_scan_is_written_once_around_the_ring_and_a_loop_is_served() {
        // A loop of 300 pages with a scan of pages that never return in every pass.
        let mut requests = Vec::new();
        for pass in 0..40u32 {
            requests.extend(0..300);
            requests.extend((0..300).map(|n| 1000 + pass * 300 + n));
        }
        let trace = trace(requests);
        let all = simulate_second(L2Policy::Openzfs, &trace, 100, 8);
        let ours = simulate_second(L2Policy::Default, &trace, 100, 8);
        assert!(all.writes > 10_000 && ours.writes < 3_000, "{all:?} {ours:?}");
        assert!(ours.second_hits * 10 > all.second_hits * 9, "{all:?} {ours:?}");
        assert!(ours.hits_per_write() > 3.0 * all.hits_per_write(), "{all:?} {ours:?}");
    }

    #[test]
    fn a_loop_that_fits_is_served_from_its_second_pass_under_both_rules() {
        let trace = trace((0..10).flat_map(|_| 0..700).collect());
        for policy in [L2Policy::Openzfs, L2Policy::Default] {
            let out = simulate_second(policy, &trace, 100, 8);
            assert!(out.first_hits + out.second_hits >= 9 * 700 - 100, "{policy:?} {out:?}");
            assert!(out.writes <= 800, "{policy:?} {out:?}");
        }
    }
}
