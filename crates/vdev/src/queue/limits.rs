//! What may be with a device at once: the limits, and what they come to at a moment.
//!
//! # Theory
//! Each class has a least and a largest number of operations with the device (chapter 10
//! §11.2). What the largest comes to depends on the moment ([`QueueLimits::caps`]):
//!
//! * Writes of groups go from their least to their largest as dirty data grows between two
//!   percentages of its limit, so that a little to write disturbs little, and much is
//!   written as fast as it can be. They have the largest when somebody waits for a group, and
//!   where they disturb nobody: no read or write that somebody waited for was on the device
//!   for [`QUIET`] of them (a departure).
//! * Where log blocks are written, few bytes of a group are with the device at a time, in
//!   small operations, unless somebody waits for the group, too (a departure): a device that
//!   always has as much as it can take serves a flush when it pleases. (On one, two writes of
//!   128 KiB at a time had 1.5 GB/s, and beside them a flush took thrice its time alone; two
//!   of 1 MiB had 3.1 GB/s, and a flush took a tenth of a second.)
//! * Background reading (scrub) has at most its least while somebody else is at work, and
//!   less if the others are not served ([`Courtesy`]).
//! * Unless fixed, the largest is what the device was found to gain by ([`super::depth`]).
//!
//! Departures: merging has one limit, not a smaller one for devices without seeks, which
//! gain by large writes as well; removal, initialising, trim and rebuild have no class, for
//! nothing here makes such operations yet.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::depth::Depths;
use crate::iostat::IoClass;

/// The classes.
pub(super) const CLASSES: usize = IoClass::ALL.len();

/// Operations of a class with a device at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassLimits {
    /// So many go before anything of a lesser class.
    pub min: u32,
    /// At most.
    pub max: u32,
}

const fn class(min: u32, max: u32) -> ClassLimits {
    ClassLimits { min, max }
}

/// How deep and how large a leaf's operations may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// In the order of [`IoClass::ALL`].
    pub classes: [ClassLimits; CLASSES],
    /// Operations with a device at once, of all classes.
    pub max_active: u32,
    /// The largest number of a class follows what the device gains by it, unless it was
    /// set to another than its default.
    pub adaptive: bool,
    /// Percent of the limit of dirty data up to which writes of groups have their least.
    pub dirty_min_percent: u32,
    /// Percent from which on they have their largest.
    pub dirty_max_percent: u32,
    /// Bytes of one merged operation; a larger request is not split.
    pub aggregation_limit: u64,
    /// Unwanted bytes between reads that are merged, where nobody waits for them.
    pub read_gap_limit: u64,
    /// Background operations give way to the others.
    pub courteous: bool,
    /// Background operations without any other between, before they have their largest.
    pub nia_delay: u32,
    /// Background operations for one of the others.
    pub nia_credit: u32,
    /// Bytes of writes in a leaf's queue, from which on submitters wait.
    pub in_flight_max: u64,
}

/// Chapter 10 §11.2.
const DEFAULTS: [ClassLimits; CLASSES] =
    [class(10, 10), class(10, 10), class(1, 3), class(2, 10), class(1, 3)];

impl QueueLimits {
    /// For a tool that has a pool for itself, whose checks are all that is done.
    pub fn for_checks() -> QueueLimits {
        let mut limits = QueueLimits { courteous: false, ..QueueLimits::default() };
        limits.classes[IoClass::Scrub as usize] = class(64, 64);
        limits
    }
}

impl Default for QueueLimits {
    fn default() -> Self {
        QueueLimits {
            classes: DEFAULTS,
            max_active: 1000,
            adaptive: true,
            dirty_min_percent: 30,
            dirty_max_percent: 60,
            aggregation_limit: 1 << 20,
            read_gap_limit: 32 << 10,
            courteous: true,
            nia_delay: 5,
            nia_credit: 5,
            in_flight_max: 64 << 20,
        }
    }
}

/// How much waits to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteLoad {
    /// Dirty data, percent of its limit.
    pub dirty_percent: u32,
    /// Somebody waits for a group.
    pub awaited: bool,
}

impl WriteLoad {
    /// Where nobody tells.
    const FULL: WriteLoad = WriteLoad { dirty_percent: 100, awaited: true };
}

/// Tells the load; takes no lock.
type Gauge = Box<dyn Fn() -> WriteLoad + Send + Sync>;

/// The limits in force, shared by the snapshots of one pool.
pub(crate) struct Tuning {
    classes: [AtomicU64; CLASSES],
    max_active: AtomicU64,
    adaptive: AtomicU64,
    courteous: AtomicU64,
    dirty: AtomicU64,
    aggregation: AtomicU64,
    gap: AtomicU64,
    nia: AtomicU64,
    in_flight: AtomicU64,
    gauge: OnceLock<Gauge>,
    /// When the last log block came, whatever the leaf: nanoseconds of [`base::rt::uptime`], 0
    /// if none did.
    logged: AtomicU64,
}

/// Two numbers in one cell, so that they are changed together.
fn pair(a: u32, b: u32) -> u64 {
    u64::from(a) << 32 | u64::from(b)
}

fn unpair(both: u64) -> (u32, u32) {
    ((both >> 32) as u32, both as u32)
}

impl Default for Tuning {
    fn default() -> Self {
        let cell = AtomicU64::default;
        let tuning = Tuning {
            classes: Default::default(),
            max_active: cell(),
            adaptive: cell(),
            courteous: cell(),
            dirty: cell(),
            aggregation: cell(),
            gap: cell(),
            nia: cell(),
            in_flight: cell(),
            gauge: OnceLock::new(),
            logged: cell(),
        };
        tuning.set(QueueLimits::default());
        tuning
    }
}

impl Tuning {
    pub(crate) fn get(&self) -> QueueLimits {
        let (dirty_min_percent, dirty_max_percent) = unpair(self.dirty.load(Relaxed));
        let (nia_delay, nia_credit) = unpair(self.nia.load(Relaxed));
        QueueLimits {
            classes: std::array::from_fn(|i| {
                let (min, max) = unpair(self.classes[i].load(Relaxed));
                class(min.max(1), max.max(1))
            }),
            max_active: (self.max_active.load(Relaxed) as u32).max(1),
            adaptive: self.adaptive.load(Relaxed) != 0,
            courteous: self.courteous.load(Relaxed) != 0,
            dirty_min_percent,
            dirty_max_percent,
            aggregation_limit: self.aggregation.load(Relaxed),
            read_gap_limit: self.gap.load(Relaxed),
            nia_delay,
            nia_credit,
            in_flight_max: self.in_flight.load(Relaxed),
        }
    }

    pub(crate) fn set(&self, limits: QueueLimits) {
        for (cell, class) in self.classes.iter().zip(limits.classes) {
            cell.store(pair(class.min, class.max), Relaxed);
        }
        self.max_active.store(limits.max_active.into(), Relaxed);
        self.adaptive.store(limits.adaptive.into(), Relaxed);
        self.courteous.store(limits.courteous.into(), Relaxed);
        self.dirty.store(pair(limits.dirty_min_percent, limits.dirty_max_percent), Relaxed);
        self.aggregation.store(limits.aggregation_limit, Relaxed);
        self.gap.store(limits.read_gap_limit, Relaxed);
        self.nia.store(pair(limits.nia_delay, limits.nia_credit), Relaxed);
        self.in_flight.store(limits.in_flight_max, Relaxed);
    }

    /// From now on the load is known; the first who tells it stays.
    pub(crate) fn set_gauge(&self, gauge: Gauge) {
        let _ = self.gauge.set(gauge);
    }

    pub(super) fn load(&self) -> WriteLoad {
        self.gauge.get().map_or(WriteLoad::FULL, |gauge| gauge())
    }

    /// A log block came, at that [`base::rt::uptime`].
    pub(super) fn log_came(&self, at: Duration) {
        self.logged.store(nanos(at).max(1), Relaxed);
    }

    /// Whether log blocks are written, and groups may go slower for them.
    pub(crate) fn log_goes_first(&self, now: Duration) -> bool {
        let logged = self.logged.load(Relaxed);
        if logged == 0 || nanos(now).saturating_sub(logged) > nanos(LOGGING) {
            return false;
        }
        let load = self.load();
        !load.awaited && load.dirty_percent < unpair(self.dirty.load(Relaxed)).1
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What background operations may do beside others (chapter 10 §11.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Courtesy {
    /// Operations with the device that are not in the background.
    others: u32,
    /// Background operations that may go before one of the others is over.
    credit: u32,
    /// Background operations that ended since there was another.
    alone: u32,
}

fn background(class: usize) -> bool {
    class == IoClass::Scrub as usize
}

impl Courtesy {
    pub(super) fn begin(&mut self, class: usize) {
        if !background(class) {
            self.others += 1;
            if self.others == 1 {
                self.credit = 1;
            }
        } else if self.others > 0 {
            self.credit = self.credit.saturating_sub(1);
        }
    }

    pub(super) fn end(&mut self, class: usize, limits: &QueueLimits) {
        if !background(class) {
            self.others -= 1;
            self.credit = limits.nia_credit;
            self.alone = 0;
        } else if self.others == 0 {
            self.alone = self.alone.saturating_add(1);
        }
    }

    fn of(&self, limits: &QueueLimits, own: ClassLimits, most: u32) -> ClassLimits {
        let least = own.min;
        if !limits.courteous {
            class(least.min(most), most)
        } else if self.others > 0 {
            let both = self.credit.min(least);
            class(both, both)
        } else if self.alone < limits.nia_delay {
            class(least.max(1), least.max(1))
        } else {
            class(least.min(most), most)
        }
    }
}

/// Asynchronous writes after which a device counts as used by nobody who waits.
pub(super) const QUIET: u32 = 8;

/// How long after a log block more of them are expected.
pub(super) const LOGGING: Duration = Duration::from_millis(100);
/// Beside log blocks: bytes of one write that nobody waits for, and of those before the last.
const BESIDE_LOG: u64 = 128 << 10;

/// Who would be disturbed by writes that nobody waits for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Guests {
    /// Somebody waits for reads of the device now.
    pub(super) reading: bool,
    /// Counts down from [`QUIET`].
    pub(super) recent: u32,
    /// A log block was written within [`LOGGING`].
    pub(super) logging: bool,
}

/// What the limits come to now.
pub(super) struct Caps {
    pub(super) classes: [ClassLimits; CLASSES],
    /// Asynchronous writes beyond this number may be with the device only as long as they
    /// are less than the bytes beside it: many small ones gain by depth, large ones would
    /// only delay reads.
    pub(super) deep: (usize, u64),
    /// Bytes of one merged asynchronous write.
    pub(super) merged: u64,
}

impl QueueLimits {
    /// Whether the largest number of a class is what its device gains by.
    pub(super) fn adapts(&self, class: usize) -> bool {
        // Log blocks are few, and who writes labels waits for all of them.
        self.adaptive
            && class != IoClass::SyncWrite as usize
            && self.classes[class].max == DEFAULTS[class].max
    }

    /// The limits at a moment.
    pub(super) fn caps(
        &self,
        load: impl Fn() -> WriteLoad,
        depths: &Depths,
        courtesy: &Courtesy,
        guests: Guests,
    ) -> Caps {
        let writes = IoClass::AsyncWrite as usize;
        let (mut deep, mut merged) = ((usize::MAX, u64::MAX), self.aggregation_limit);
        let classes = std::array::from_fn(|i| {
            let own = self.classes[i];
            let mut most = own.max;
            if self.adapts(i) {
                most = depths.limit(i) as u32;
                if i == writes {
                    let usual = own.max.min(most);
                    let bytes = self.aggregation_limit.saturating_mul(usual.into());
                    deep = (usual as usize, bytes);
                    most = if guests.reading { usual } else { most };
                }
            }
            match i {
                _ if background(i) => courtesy.of(self, own, most),
                _ if i == writes => {
                    let disturbs = guests.recent > 0 || guests.logging;
                    let load = if disturbs { load() } else { WriteLoad::FULL };
                    let most = self.by_dirty(own.min, most, load);
                    let least = if guests.logging && self.adapts(i) && !load.awaited {
                        deep = (1, BESIDE_LOG);
                        merged = merged.min(BESIDE_LOG);
                        1
                    } else {
                        own.min
                    };
                    class(least.min(most), most)
                }
                _ => class(own.min.min(most), most),
            }
        });
        Caps { classes, deep, merged }
    }

    /// Between the least and the largest, by dirty data.
    fn by_dirty(&self, min: u32, max: u32, load: WriteLoad) -> u32 {
        let (from, to) = (self.dirty_min_percent, self.dirty_max_percent);
        let min = min.min(max);
        if load.awaited || load.dirty_percent >= to {
            max
        } else if load.dirty_percent <= from {
            min
        } else {
            min + (u64::from(max - min) * u64::from(load.dirty_percent - from)
                / u64::from(to - from)) as u32
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(dirty_percent: u32, awaited: bool) -> WriteLoad {
        WriteLoad { dirty_percent, awaited }
    }

    #[test]
    fn what_was_set_is_in_force() {
        let tuning = Tuning::default();
        assert_eq!(tuning.get(), QueueLimits::default());
        let mut limits = QueueLimits { adaptive: false, nia_credit: 7, ..QueueLimits::default() };
        limits.classes[2] = class(4, 9);
        tuning.set(limits);
        assert_eq!(tuning.get(), limits);
        limits.classes[2] = class(0, 0);
        tuning.set(limits);
        assert_eq!(tuning.get().classes[2], class(1, 1), "none at all would never end");
    }

    #[test]
    fn writes_follow_dirty_data() {
        let limits = QueueLimits { adaptive: false, ..QueueLimits::default() };
        let most = |load| {
            let guests = Guests { recent: 1, ..Guests::default() };
            limits.caps(|| load, &Depths::default(), &Courtesy::default(), guests).classes[3].max
        };
        let at = |percent| most(load(percent, false));
        assert_eq!([0, 30, 45, 59, 60, 200].map(at), [2, 2, 6, 9, 10, 10]);
        assert_eq!(most(load(0, true)), 10);
        let nobody = limits.caps(
            || load(0, false),
            &Depths::default(),
            &Courtesy::default(),
            Guests::default(),
        );
        assert_eq!(nobody.classes[3].max, 10, "there is nobody to disturb");
        let odd = QueueLimits { dirty_min_percent: 80, dirty_max_percent: 20, ..limits };
        assert_eq!(
            [odd.by_dirty(2, 10, load(50, false)), odd.by_dirty(5, 3, load(0, false))],
            [10, 3]
        );
    }

    #[test]
    fn groups_make_way_for_the_log_while_they_may() {
        let load = std::sync::Arc::new(AtomicU64::new(0));
        let told = std::sync::Arc::clone(&load);
        let tuning = Tuning::default();
        tuning.set_gauge(Box::new(move || {
            let (dirty_percent, awaited) = unpair(told.load(Relaxed));
            WriteLoad { dirty_percent, awaited: awaited != 0 }
        }));
        let (early, late) = (Duration::from_secs(7), Duration::from_secs(7) + LOGGING);
        assert!(!tuning.log_goes_first(early), "there is no log");
        tuning.log_came(early);
        assert!(tuning.log_goes_first(early) && tuning.log_goes_first(late));
        for (dirty, awaited) in [(0, 1), (60, 0)] {
            load.store(pair(dirty, awaited), Relaxed);
            assert!(!tuning.log_goes_first(early));
        }
        load.store(pair(59, 0), Relaxed);
        assert!(tuning.log_goes_first(late));
        assert!(!tuning.log_goes_first(late + Duration::from_nanos(1)), "it was long ago");
    }

    #[test]
    fn the_background_gives_way() {
        let limits = QueueLimits { adaptive: false, ..QueueLimits::default() };
        let scrub = IoClass::Scrub as usize;
        let mut courtesy = Courtesy::default();
        let of = |c: &Courtesy| {
            limits.caps(|| WriteLoad::FULL, &Depths::default(), c, Guests::default()).classes[scrub]
        };
        assert_eq!(of(&courtesy), class(1, 1));
        for _ in 0..limits.nia_delay {
            courtesy.begin(scrub);
            courtesy.end(scrub, &limits);
        }
        assert_eq!(of(&courtesy), class(1, 3), "nobody else was there for a while");
        courtesy.begin(0);
        assert_eq!(of(&courtesy), class(1, 1));
        courtesy.begin(scrub);
        assert_eq!(of(&courtesy), class(0, 0), "one was enough");
        courtesy.begin(1);
        courtesy.end(1, &limits);
        assert_eq!(of(&courtesy), class(1, 1));
        courtesy.end(0, &limits);
        courtesy.end(scrub, &limits);
        assert_eq!(of(&courtesy), class(1, 1), "the delay begins anew");
        let own = QueueLimits::for_checks();
        let caps = own.caps(|| WriteLoad::FULL, &Depths::default(), &courtesy, Guests::default());
        assert_eq!(caps.classes[scrub], class(64, 64), "unless there are no others");
    }

    #[test]
    fn little_is_written_beside_the_log() {
        let limits = QueueLimits::default();
        let at = |limits: &QueueLimits, load, logging| {
            let guests = Guests { logging, ..Guests::default() };
            let caps = limits.caps(|| load, &Depths::default(), &Courtesy::default(), guests);
            (caps.deep, caps.classes[3].min, caps.merged)
        };
        let much = load(100, false);
        assert_eq!(at(&limits, much, true), ((1, 128 << 10), 1, 128 << 10));
        let alone = at(&limits, much, false);
        assert!(alone.0.1 > 1 << 20 && alone.1 == 2 && alone.2 == 1 << 20);
        assert_eq!(at(&limits, load(100, true), true), alone, "somebody waits for the group");
        let mut fixed = limits;
        fixed.classes[3].max = 4;
        assert_eq!(at(&fixed, much, true), at(&fixed, much, false), "as it was set");
    }

    #[test]
    fn a_class_that_was_set_is_fixed() {
        let mut limits = QueueLimits::default();
        assert!(limits.adapts(0) && !limits.adapts(1));
        limits.classes[0].max = 11;
        assert!(!limits.adapts(0) && limits.adapts(2));
        limits.adaptive = false;
        assert!(!limits.adapts(2));
    }
}
