//! Memory pressure: when the target shrinks, by how much, and when it may grow.
//!
//! # Theory
//! [`Pressure`] is a pure state machine over samples of the machine's memory
//! ([`MemorySample`]) and a clock. An amount of memory is to stay free ([`sys_free`]).
//! What is missing from it is the *deficit*. The target shrinks by the deficit at once,
//! but by at least 1/2^`shrink_shift` of itself, and never below `arc_min`. After that
//! it does not grow for `grow_retry` seconds, nor while less than 1/2^`no_grow_shift`
//! of it is free beyond the amount that is to stay free.
//!
//! Freed memory takes a moment to appear in the system's counters, and samples may come
//! faster than that. So each deficit is answered once: for [`SETTLE`] after a shrink,
//! only the part that exceeds the answered deficit counts. However many samples report
//! one shortage, the target shrinks by that shortage.
//!
//! A system may stall for memory before its counters show a shortage. When the share of
//! time in which tasks stalled exceeds [`STALL_PERCENT`] and little memory is free, the
//! target shrinks by one step.
//!
//! # Invariants
//! * [`Action::ShrinkTo`] is below the present target and not below `arc_min`.
//! * Within [`SETTLE`] the target shrinks by no more than the largest deficit plus two
//!   minimum steps.
//!
//! # Departures from OpenZFS (chapter 10 §4)
//! * `sys_free` is computed from the memory of the control group that is short, not
//!   always from the machine's memory, so that a small group in a large machine can use
//!   its memory.
//! * Available memory is the kernel's own estimate (or a control group's limit minus
//!   its use, without inactive file pages) instead of free and inactive file pages.
//! * The step is 1/2^5 of the target instead of 1/2^7 of what is above `arc_min`, and
//!   the deficit is not added to it.
//! * Stalls (PSI) count.

use std::time::Duration;

use crate::config::{ARC_MIN_FLOOR, Config};

/// How long the effect of a shrink may take to appear.
pub(crate) const SETTLE: Duration = Duration::from_secs(1);
/// Percent of an interval in which some task stalled for memory; more means pressure.
pub(crate) const STALL_PERCENT: u64 = 10;
/// Largest target if the machine's memory cannot be read, bytes.
pub const FALLBACK_ARC_MAX: u64 = 256 << 20;
/// Smallest default of `arc_min`, bytes (chapter 10 §2.1).
const DEFAULT_MIN: u64 = 32 << 20;

/// The state of the machine's memory at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemorySample {
    /// The machine's memory or the smallest limit on this process, bytes.
    pub total: u64,
    /// Available memory of the tightest source, bytes; negative above a soft limit.
    pub available: i64,
    /// Total memory of that source, bytes.
    pub scope: u64,
    /// Total time in which some task stalled for memory, microseconds; never decreases.
    pub psi_some_us: u64,
    /// Total time in which all tasks stalled at once.
    pub psi_full_us: u64,
    /// The tightest source, for messages.
    pub source: String,
}

/// Memory to leave free out of `total` bytes (chapter 10 §4: three watermarks and 1/32
/// of memory).
pub fn sys_free(total: u64) -> u64 {
    let watermark_kib = ((total >> 10).saturating_mul(16)).isqrt().clamp(128, 256 << 10);
    3 * (watermark_kib * 1024 * 5 / 2) + total / 32
}

/// Initial `(arc_min, arc_max, c)`: at most half of memory, at first an eighth; for
/// `None`, memory cannot be read.
pub fn default_sizes(sample: Option<&MemorySample>) -> (u64, u64, u64) {
    let total = sample.map_or(2 * FALLBACK_ARC_MAX, |s| s.total);
    let arc_max = (total / 2).max(ARC_MIN_FLOOR);
    let arc_min = (total / 32).max(DEFAULT_MIN).min(arc_max);
    (arc_min, arc_max, (total / 8).clamp(arc_min, arc_max))
}

/// What the cache is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Keep,
    /// The target may grow again.
    Grow,
    /// The target must not grow.
    NoGrow,
    /// The target becomes this, and must not grow.
    ShrinkTo(u64),
}

/// The values of the last step, as the statistics show them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Memory of the machine or the smallest limit, bytes.
    pub all: u64,
    /// Available memory, bytes, without any deduction.
    pub free: u64,
    /// Available memory minus `sys_free`; negative when memory is to be returned.
    pub available: i64,
    /// Memory that is to stay free, bytes.
    pub sys_free: u64,
    /// The deficit, bytes.
    pub need_free: u64,
    /// Growth is forbidden.
    pub no_grow: bool,
    /// Shrinks so far.
    pub shrinks: u64,
}

#[derive(Clone, Copy, Debug)]
struct Shrink {
    at: Duration,
    /// The deficit that it answered, bytes.
    answered: u64,
}

/// The state machine.
#[derive(Debug)]
pub struct Pressure {
    config: Config,
    status: Status,
    last: Option<Shrink>,
    stalls: Option<(Duration, u64)>,
}

impl Pressure {
    /// No pressure yet.
    pub fn new(config: Config) -> Pressure {
        Pressure { config, status: Status::default(), last: None, stalls: None }
    }

    /// Changes the tunables, from the next step on.
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// The values of the last step.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Evaluates a sample, with the cache's size and target in bytes. `now` must not
    /// decrease.
    pub fn step(&mut self, now: Duration, sample: &MemorySample, size: u64, c: u64) -> Action {
        let stalling = self.stalling(now, sample.psi_some_us);
        let sys_free = match self.config.sys_free {
            0 => sys_free(sample.scope),
            set => set,
        };
        let available = sample.available.saturating_sub_unsigned(sys_free);
        let deficit = if available < 0 { available.unsigned_abs() } else { 0 };
        let scarce = available < i64::try_from(c >> self.config.no_grow_shift).unwrap_or(i64::MAX);
        let target = self.target(now, deficit, stalling && scarce, size, c);
        if target.is_some() {
            let answered = deficit.max(self.answered(now));
            self.last = Some(Shrink { at: now, answered });
            self.status.shrinks += 1;
        }
        let retry = Duration::from_secs(u64::from(self.config.grow_retry));
        let waits = self.last.is_some_and(|s| now.saturating_sub(s.at) < retry);
        let before = self.status.no_grow;
        self.status = Status {
            all: sample.total,
            free: u64::try_from(sample.available).unwrap_or(0),
            available,
            sys_free,
            need_free: deficit,
            no_grow: scarce || waits,
            shrinks: self.status.shrinks,
        };
        match (target, before, self.status.no_grow) {
            (Some(target), _, _) => Action::ShrinkTo(target),
            (None, false, true) => Action::NoGrow,
            (None, true, false) => Action::Grow,
            _ => Action::Keep,
        }
    }

    /// The deficit that a recent shrink already answers.
    fn answered(&self, now: Duration) -> u64 {
        let fresh = self.last.filter(|s| now.saturating_sub(s.at) < SETTLE);
        fresh.map_or(0, |s| s.answered)
    }

    /// The new target, if the target is to shrink.
    fn target(&self, now: Duration, deficit: u64, stalls: bool, size: u64, c: u64) -> Option<u64> {
        let settling = self.last.is_some_and(|s| now.saturating_sub(s.at) < SETTLE);
        let step = c >> self.config.shrink_shift;
        let new = deficit.saturating_sub(self.answered(now));
        let by = if settling {
            // Not for a few more bytes.
            if new <= step {
                return None;
            }
            new
        } else if deficit > 0 || stalls {
            // Bytes above the target are already being evicted.
            new.saturating_sub(size.saturating_sub(c)).max(step)
        } else {
            return None;
        };
        // A target above the size must first come down to it before anything is freed.
        let base = c.min(size.max(self.config.arc_min));
        let target = base.saturating_sub(by).max(self.config.arc_min);
        (target < c).then_some(target)
    }

    /// Whether some task stalled for more than [`STALL_PERCENT`] of the time since the
    /// last sample.
    fn stalling(&mut self, now: Duration, some_us: u64) -> bool {
        let Some((at, before)) = self.stalls.replace((now, some_us)) else { return false };
        let passed = u64::try_from(now.saturating_sub(at).as_micros()).unwrap_or(u64::MAX);
        let stalled = some_us.saturating_sub(before);
        passed > 0 && stalled.saturating_mul(100) > passed.saturating_mul(STALL_PERCENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;
    const TICK: Duration = Duration::from_millis(200);

    /// A machine with a cache whose evictions appear in the next sample.
    struct MemoryModel {
        pressure: Pressure,
        now: Duration,
        total: u64,
        /// Memory used by other processes.
        others: u64,
        psi: u64,
        size: u64,
        c: u64,
        may_grow: bool,
        shrinks: u32,
    }

    impl MemoryModel {
        fn new() -> MemoryModel {
            let config = Config::sized(GIB / 4, 8 * GIB);
            MemoryModel {
                pressure: Pressure::new(config),
                now: Duration::from_secs(1000),
                total: 16 * GIB,
                others: 6 * GIB,
                psi: 0,
                size: 8 * GIB,
                c: 8 * GIB,
                may_grow: true,
                shrinks: 0,
            }
        }

        fn sample(&self) -> MemorySample {
            MemorySample {
                total: self.total,
                available: self.total as i64 - (self.others + self.size) as i64,
                scope: self.total,
                psi_some_us: self.psi,
                psi_full_us: 0,
                source: String::new(),
            }
        }

        fn step(&mut self, passes: Duration) -> Action {
            self.now += passes;
            let sample = self.sample();
            let action = self.pressure.step(self.now, &sample, self.size, self.c);
            // The cache performs the last action only after this sample.
            self.size = self.size.min(self.c);
            match action {
                Action::ShrinkTo(c) => {
                    assert!(c < self.c && c >= GIB / 4, "{c} of {}", self.c);
                    self.c = c;
                    self.may_grow = false;
                    self.shrinks += 1;
                }
                Action::Grow => self.may_grow = true,
                Action::NoGrow => self.may_grow = false,
                Action::Keep => {}
            }
            assert_eq!(self.may_grow, !self.pressure.status().no_grow);
            if self.may_grow && self.size + (32 << 20) >= self.c {
                self.c = (self.c + self.c / 64).min(8 * GIB);
                self.size = self.c;
            }
            action
        }
    }

    #[test]
    fn the_formula_of_the_specification() {
        // w = sqrt(16 * 16 Mi) KiB = 16 MiB, times 2.5.
        assert_eq!(sys_free(16 * GIB), 3 * (40 << 20) + GIB / 2);
        assert_eq!(sys_free(0), 3 * 320 * 1024);
        assert!(sys_free(u64::MAX) > u64::MAX / 32);
    }

    #[test]
    fn sizes_to_start_with() {
        let sizes = |total| {
            let sample = MemorySample { total, ..MemorySample::default() };
            default_sizes(Some(&sample))
        };
        assert_eq!(sizes(16 * GIB), (GIB / 2, 8 * GIB, 2 * GIB));
        assert_eq!(sizes(GIB / 4), (32 << 20, 128 << 20, 32 << 20));
        assert_eq!(sizes(16 << 20), (8 << 20, 8 << 20, 8 << 20));
        assert_eq!(sizes(0), (ARC_MIN_FLOOR, ARC_MIN_FLOOR, ARC_MIN_FLOOR));
        assert_eq!(default_sizes(None), (32 << 20, 256 << 20, 64 << 20));
        for total in [0, 1, 1 << 20, 1 << 33, u64::MAX] {
            let (min, max, c) = sizes(total);
            Config::sized(min, max).check().unwrap();
            assert!(min <= c && c <= max);
        }
    }

    #[test]
    fn pulses_are_answered_and_the_target_recovers() {
        let mut w = MemoryModel::new();
        for _ in 0..20 {
            // For a second, another process needs a quarter of the target.
            let before = w.c;
            let pulse = w.c / 4;
            w.others += pulse + 2 * GIB;
            for _ in 0..5 {
                w.step(TICK);
            }
            let status = w.pressure.status();
            assert!(status.available >= 0, "memory was not given back: {status:?}");
            w.others -= pulse + 2 * GIB;
            assert!(w.c + w.c / 8 + pulse + GIB >= before, "{} after {before}", w.c);
            let low = w.c;
            for _ in 0..45 {
                w.step(TICK);
            }
            assert!(w.c > low || w.c == 8 * GIB, "no recovery from {low}");
        }
        assert!(w.c >= 5 * GIB, "worn down to {}", w.c);
        assert_eq!(w.shrinks, 20, "one shrink a pulse");
    }

    #[test]
    fn a_steady_deficit_leads_to_the_least_size() {
        let mut w = MemoryModel::new();
        w.others = 20 * GIB;
        for _ in 0..50 {
            w.step(TICK);
        }
        assert_eq!(w.c, GIB / 4);
        assert_eq!(w.step(TICK), Action::Keep, "nothing is left to give");
        w.others = GIB;
        let mut first = None;
        for i in 0..100 {
            if w.step(TICK) == Action::Grow {
                first.get_or_insert(i);
            }
        }
        assert!(first.is_some() && w.c > GIB / 2, "growth afterwards");
    }

    #[test]
    fn a_flood_of_samples_is_one_shortage() {
        let mut w = MemoryModel::new();
        w.others += 2 * GIB;
        let sample = w.sample();
        let available = sample.available - sys_free(16 * GIB) as i64;
        let (mut c, mut steps) = (8 * GIB, 0);
        for i in 0..900u64 {
            let now = w.now + Duration::from_millis(i);
            if let Action::ShrinkTo(to) = w.pressure.step(now, &sample, 8 * GIB, c) {
                c = to;
                steps += 1;
            }
        }
        assert_eq!((steps, c), (1, 8 * GIB - available.unsigned_abs()));
    }

    #[test]
    fn a_shortage_that_gets_worse_is_answered_at_once() {
        let mut w = MemoryModel::new();
        w.others += 3 * GIB;
        assert!(matches!(w.step(TICK), Action::ShrinkTo(_)));
        let first = w.c;
        w.others += 2 * GIB;
        w.size = 8 * GIB;
        assert_eq!(w.step(TICK), Action::ShrinkTo(first - 2 * GIB));
    }

    #[test]
    fn stalls_count_only_where_memory_is_scarce() {
        let mut w = MemoryModel::new();
        w.others = 8 * GIB - sys_free(16 * GIB) - (100 << 20);
        w.step(TICK);
        assert!(w.pressure.status().no_grow && w.shrinks == 0);
        w.psi += 19_000;
        assert_eq!(w.step(TICK), Action::Keep, "9.5 % of the time");
        w.psi += 21_000;
        assert_eq!(w.step(TICK), Action::ShrinkTo(8 * GIB - GIB / 4));
        w.now += Duration::from_secs(20);
        w.others = 0;
        w.psi += 10_000_000;
        assert!(!matches!(w.step(TICK), Action::ShrinkTo(_)));
        w.psi += 10_000_000;
        assert!(!matches!(w.step(TICK), Action::ShrinkTo(_)));
    }

    #[test]
    fn no_growth_for_a_while_after_a_shrink() {
        let mut w = MemoryModel::new();
        w.others += 4 * GIB;
        w.step(TICK);
        let at = w.now;
        w.others = 0;
        while w.step(TICK) != Action::Grow {
            assert!(w.now < at + Duration::from_secs(6));
        }
        assert!(w.now >= at + Duration::from_secs(5));
    }

    #[test]
    fn a_target_above_the_size_comes_down_to_it() {
        let mut w = MemoryModel::new();
        w.size = GIB;
        w.others = 16 * GIB;
        let Action::ShrinkTo(c) = w.step(TICK) else { panic!("no shrink") };
        assert_eq!(c, GIB / 4);
        let mut w = MemoryModel::new();
        w.size = 2 * GIB;
        w.others = 14 * GIB - sys_free(16 * GIB) + (1 << 20);
        assert_eq!(w.step(TICK), Action::ShrinkTo(2 * GIB - GIB / 4));
    }

    proptest! {
        /// For any samples: no panic, no target out of bounds, and within the settling
        /// time no more is given up than the worst shortage and two steps.
        #[test]
        fn any_samples(
            samples in prop::collection::vec(
                (0u64..700, any::<i64>(), any::<u64>(), any::<u64>(), any::<bool>()), 1..200),
        ) {
            let config = Config::sized(GIB, 8 * GIB);
            let mut p = Pressure::new(config);
            let (mut now, mut c) = (Duration::from_secs(10), 8 * GIB);
            let mut log: Vec<(Duration, u64, u64)> = Vec::new();
            for (ms, available, scope, psi, modest) in samples {
                now += Duration::from_millis(ms);
                let available = if modest { available % (4 * GIB as i64) } else { available };
                let scope = if modest { scope % (64 * GIB) } else { scope };
                let sample = MemorySample {
                    total: scope, available, scope, psi_some_us: psi, ..MemorySample::default()
                };
                let before = c;
                if let Action::ShrinkTo(to) = p.step(now, &sample, 8 * GIB, c) {
                    prop_assert!(to < c && to >= GIB);
                    c = to;
                }
                log.push((now, before - c, p.status().need_free));
                let recent = log.iter().filter(|l| now.saturating_sub(l.0) < SETTLE);
                let (given, worst) = recent.fold((0, 0), |s: (u64, u64), l| (s.0 + l.1, s.1.max(l.2)));
                prop_assert!(u128::from(given) <= u128::from(worst) + u128::from(GIB / 2) + 1);
                if c == GIB && ms % 7 == 0 {
                    (c, log) = (8 * GIB, Vec::new());
                }
            }
        }
    }
}
