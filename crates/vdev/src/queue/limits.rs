//! Limits on the operations in a device, and their values at a given moment.
//!
//! # Theory
//! Each class has a minimum and a maximum number of operations in the device (chapter
//! 10 §11.2). The effective maximum depends on the moment ([`QueueLimits::caps`]):
//!
//! * Writes of txgs rise from their minimum to their maximum as dirty data grows
//!   between two percentages of its limit. So small amounts of writes disturb readers
//!   little, and large amounts are written as fast as possible. They also have the
//!   maximum when a thread waits for a txg, and when they disturb no other operation:
//!   no read or write with a waiting caller was in the device during the last [`QUIET`]
//!   of them (a departure).
//! * While log blocks are written, few bytes of a txg are in the device at a time, in
//!   small operations, unless a thread waits for the txg (a departure). A device that
//!   always has as many operations as it accepts serves a flush at an arbitrary time.
//!   (On one device, two writes of 128 KiB at a time reached 1.5 GB/s, and a flush
//!   beside them took three times as long as alone; two writes of 1 MiB reached 3.1
//!   GB/s, and a flush took a tenth of a second.)
//! * Background operations (scrub, initializing, rebuild) have at most their minimum while other
//!   classes are active, and less if the others are not served ([`BackgroundThrottle`]). Their
//!   reads are merged less then (a departure): a read that a caller waits for comes behind 128
//!   KiB and not behind several MiB.
//! * Unless fixed, the maximum is the depth from which the device was found to gain
//!   ([`super::depth`]).
//!
//! Departures: merging has one limit, without a smaller one for devices without seeks,
//! because these gain from large writes as well. Removal has no class, because nothing here
//! makes such operations yet. The class of rebuilds is two, for reads and for writes, each with
//! its limits: a leaf is read or written by a rebuild, but for those with distributed spares.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::depth::Depths;
use crate::iostat::IoClass;
use crate::report::{LeafReport, Reporter};
use crate::sitout::SitOutTuning;

/// Number of classes.
pub(super) const CLASSES: usize = IoClass::ALL.len();

/// Limits on the operations of a class in a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassLimits {
    /// This many are served before any operation of a less urgent class.
    pub min: u32,
    /// The most at once.
    pub max: u32,
}

const fn class(min: u32, max: u32) -> ClassLimits {
    ClassLimits { min, max }
}

/// Limits on the depth and size of a leaf's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// In the order of [`IoClass::ALL`].
    pub classes: [ClassLimits; CLASSES],
    /// Operations of all classes in a device at once.
    pub max_active: u32,
    /// The maximum of a class adapts to the device, unless it was set to a value other
    /// than its default.
    pub adaptive: bool,
    /// Percent of the dirty data limit up to which writes of txgs have their minimum.
    pub dirty_min_percent: u32,
    /// Percent from which on they have their maximum.
    pub dirty_max_percent: u32,
    /// Bytes of one merged operation; a larger single request is not split.
    pub aggregation_limit: u64,
    /// Unwanted bytes between merged reads that no caller waits for.
    pub read_gap_limit: u64,
    /// Background operations yield to the others.
    pub background_yields: bool,
    /// Background operations in a row, without any other, before they have their
    /// maximum.
    pub nia_delay: u32,
    /// Background operations allowed for each of the others.
    pub nia_credit: u32,
    /// Bytes of writes in a leaf's queue at which submitters start to wait.
    pub in_flight_max: u64,
    /// An operation that takes longer counts as slow, milliseconds.
    pub slow_ms: u64,
}

/// The defaults of chapter 10 §11.2.
const DEFAULTS: [ClassLimits; CLASSES] = [
    class(10, 10),
    class(10, 10),
    class(1, 3),
    class(2, 10),
    class(1, 3),
    class(1, 2),
    class(1, 1),
    class(1, 3),
    class(1, 3),
];

/// Unwanted bytes that a scrub reads between two blocks on a device without seeks. A pool whose
/// files were overwritten at random has as many gaps as blocks: with `read_gap_limit` a scrub
/// read twice the bytes, at the device's full rate.
const SCRUB_GAP: u64 = 8 << 10;

impl QueueLimits {
    /// Unwanted bytes between merged reads of a class, by whether the device seeks.
    pub(super) fn gap(&self, class: usize, seeks: bool) -> u64 {
        match class == IoClass::Scrub as usize && !seeks {
            true => self.read_gap_limit.min(SCRUB_GAP),
            false => self.read_gap_limit,
        }
    }

    /// For a tool that has exclusive use of a pool and only checks it.
    pub fn for_checks() -> QueueLimits {
        let mut limits = QueueLimits { background_yields: false, ..QueueLimits::default() };
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
            background_yields: true,
            nia_delay: 5,
            nia_credit: 5,
            in_flight_max: 64 << 20,
            slow_ms: 30_000,
        }
    }
}

/// How much data waits to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteLoad {
    /// Dirty data in percent of its limit.
    pub dirty_percent: u32,
    /// A thread waits for a txg.
    pub awaited: bool,
}

impl WriteLoad {
    /// The load that is assumed without a gauge.
    const FULL: WriteLoad = WriteLoad { dirty_percent: 100, awaited: true };
}

/// Returns the load; takes no lock.
type Gauge = Box<dyn Fn() -> WriteLoad + Send + Sync>;

/// The limits in force, shared by the snapshots of one pool.
pub(crate) struct Tuning {
    classes: [AtomicU64; CLASSES],
    max_active: AtomicU64,
    adaptive: AtomicU64,
    background_yields: AtomicU64,
    dirty: AtomicU64,
    aggregation: AtomicU64,
    gap: AtomicU64,
    nia: AtomicU64,
    in_flight: AtomicU64,
    slow_ms: AtomicU64,
    gauge: OnceLock<Gauge>,
    reporter: OnceLock<Reporter>,
    /// When slow leaves sit out of reads.
    pub(crate) sit_out: SitOutTuning,
    /// Time of the last log block on any leaf, in nanoseconds of [`base::rt::uptime`];
    /// 0 if there was none.
    logged: AtomicU64,
}

/// Packs two numbers into one cell, so that they change together.
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
            background_yields: cell(),
            dirty: cell(),
            aggregation: cell(),
            gap: cell(),
            nia: cell(),
            in_flight: cell(),
            slow_ms: cell(),
            gauge: OnceLock::new(),
            reporter: OnceLock::new(),
            sit_out: SitOutTuning::default(),
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
            background_yields: self.background_yields.load(Relaxed) != 0,
            dirty_min_percent,
            dirty_max_percent,
            aggregation_limit: self.aggregation.load(Relaxed),
            read_gap_limit: self.gap.load(Relaxed),
            nia_delay,
            nia_credit,
            in_flight_max: self.in_flight.load(Relaxed),
            slow_ms: self.slow_ms.load(Relaxed),
        }
    }

    pub(crate) fn set(&self, limits: QueueLimits) {
        for (cell, class) in self.classes.iter().zip(limits.classes) {
            cell.store(pair(class.min, class.max), Relaxed);
        }
        self.max_active.store(limits.max_active.into(), Relaxed);
        self.adaptive.store(limits.adaptive.into(), Relaxed);
        self.background_yields.store(limits.background_yields.into(), Relaxed);
        self.dirty.store(pair(limits.dirty_min_percent, limits.dirty_max_percent), Relaxed);
        self.aggregation.store(limits.aggregation_limit, Relaxed);
        self.gap.store(limits.read_gap_limit, Relaxed);
        self.nia.store(pair(limits.nia_delay, limits.nia_credit), Relaxed);
        self.in_flight.store(limits.in_flight_max, Relaxed);
        self.slow_ms.store(limits.slow_ms, Relaxed);
    }

    /// Sets the source of the load; only the first call has an effect.
    pub(crate) fn set_gauge(&self, gauge: Gauge) {
        let _ = self.gauge.set(gauge);
    }

    /// Whether an operation that took this long is a slow one.
    pub(crate) fn is_slow(&self, took: Duration) -> bool {
        took >= Duration::from_millis(self.slow_ms.load(Relaxed))
    }

    /// Sets what is called with each error of a leaf; only the first call has an effect.
    pub(crate) fn set_reporter(&self, reporter: Reporter) {
        let _ = self.reporter.set(reporter);
    }

    /// Reports an error or a slow operation of a leaf.
    pub(crate) fn report(&self, report: &LeafReport) {
        if let Some(reporter) = self.reporter.get() {
            reporter(report);
        }
    }

    pub(super) fn load(&self) -> WriteLoad {
        self.gauge.get().map_or(WriteLoad::FULL, |gauge| gauge())
    }

    /// Records a log block at that [`base::rt::uptime`].
    pub(super) fn record_log_block(&self, at: Duration) {
        self.logged.store(nanos(at).max(1), Relaxed);
    }

    /// Whether log blocks are being written and txgs may be slowed down for them.
    pub(crate) fn log_has_precedence(&self, now: Duration) -> bool {
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

/// How many background operations may run beside others (chapter 10 §11.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BackgroundThrottle {
    /// Operations in the device that are not background operations.
    others: u32,
    /// Background operations that may start before one of the others ends.
    credit: u32,
    /// Background operations that ended since the last other operation.
    alone: u32,
}

fn background(class: usize) -> bool {
    [IoClass::Scrub, IoClass::Initializing, IoClass::RebuildRead, IoClass::RebuildWrite]
        .into_iter()
        .any(|background| background as usize == class)
}

impl BackgroundThrottle {
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

    /// Whether background operations need not care for others.
    fn is_alone(&self, limits: &QueueLimits) -> bool {
        !limits.background_yields || (self.others == 0 && self.alone >= limits.nia_delay)
    }

    fn of(&self, limits: &QueueLimits, own: ClassLimits, most: u32) -> ClassLimits {
        let least = own.min;
        if !limits.background_yields {
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

/// Asynchronous writes after which a device counts as having no waiting callers.
pub(super) const QUIET: u32 = 8;

/// How long after a log block more of them are expected.
pub(super) const LOGGING: Duration = Duration::from_millis(100);
/// While log blocks are written: bytes of one asynchronous write, and of the writes in
/// flight before the last one.
const WITH_LOG: u64 = 128 << 10;

/// Bytes of one merged background read while other operations are served, or were a moment ago:
/// these wait for it.
pub(crate) const BESIDE_OTHERS: u64 = 128 << 10;

/// The operations that asynchronous writes would delay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Foreground {
    /// A caller waits for reads of the device now.
    pub(super) reading: bool,
    /// Counts down from [`QUIET`].
    pub(super) recent: u32,
    /// A log block was written within [`LOGGING`].
    pub(super) logging: bool,
}

/// The limits in force at a moment.
pub(super) struct Caps {
    pub(super) classes: [ClassLimits; CLASSES],
    /// Number of asynchronous writes, and bytes. More writes than this number may be in
    /// the device only while their bytes stay below this bound: many small writes gain
    /// by depth, large ones would only delay reads.
    pub(super) deep: (usize, u64),
    /// Bytes of one merged asynchronous write.
    pub(super) merged: u64,
    /// Bytes of one merged background read.
    pub(super) background: u64,
}

impl Caps {
    /// Bytes of one merged operation of a class.
    pub(super) fn merged_max(&self, class: usize, limits: &QueueLimits) -> u64 {
        match class {
            _ if background(class) => self.background,
            _ if class == IoClass::AsyncWrite as usize => self.merged,
            _ => limits.aggregation_limit,
        }
    }
}

impl QueueLimits {
    /// Whether the maximum of a class adapts to its device.
    pub(super) fn adapts(&self, class: usize) -> bool {
        // Log blocks are few, and the writer of labels waits for all of them.
        let adapts = class != IoClass::SyncWrite as usize && class < IoClass::Trim as usize;
        self.adaptive && adapts && self.classes[class].max == DEFAULTS[class].max
    }

    /// The limits at a moment.
    pub(super) fn caps(
        &self,
        load: impl Fn() -> WriteLoad,
        depths: &Depths,
        background_throttle: &BackgroundThrottle,
        foreground: Foreground,
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
                    most = if foreground.reading { usual } else { most };
                }
            }
            match i {
                _ if background(i) => background_throttle.of(self, own, most),
                _ if i == writes => {
                    let disturbs = foreground.recent > 0 || foreground.logging;
                    let load = if disturbs { load() } else { WriteLoad::FULL };
                    let most = self.by_dirty(own.min, most, load);
                    let least = if foreground.logging && self.adapts(i) && !load.awaited {
                        deep = (1, WITH_LOG);
                        merged = merged.min(WITH_LOG);
                        1
                    } else {
                        own.min
                    };
                    class(least.min(most), most)
                }
                _ => class(own.min.min(most), most),
            }
        });
        let background = match background_throttle.is_alone(self) {
            true => self.aggregation_limit,
            false => self.aggregation_limit.min(BESIDE_OTHERS),
        };
        Caps { classes, deep, merged, background }
    }

    /// A value between minimum and maximum that follows dirty data.
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
    fn set_values_are_in_force() {
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
            let foreground = Foreground { recent: 1, ..Foreground::default() };
            limits
                .caps(|| load, &Depths::default(), &BackgroundThrottle::default(), foreground)
                .classes[3]
                .max
        };
        let at = |percent| most(load(percent, false));
        assert_eq!([0, 30, 45, 59, 60, 200].map(at), [2, 2, 6, 9, 10, 10]);
        assert_eq!(most(load(0, true)), 10);
        let quiet = limits.caps(
            || load(0, false),
            &Depths::default(),
            &BackgroundThrottle::default(),
            Foreground::default(),
        );
        assert_eq!(quiet.classes[3].max, 10, "no other operation is disturbed");
        let odd = QueueLimits { dirty_min_percent: 80, dirty_max_percent: 20, ..limits };
        assert_eq!(
            [odd.by_dirty(2, 10, load(50, false)), odd.by_dirty(5, 3, load(0, false))],
            [10, 3]
        );
    }

    #[test]
    fn txg_writes_yield_to_the_log() {
        let load = std::sync::Arc::new(AtomicU64::new(0));
        let reported = std::sync::Arc::clone(&load);
        let tuning = Tuning::default();
        tuning.set_gauge(Box::new(move || {
            let (dirty_percent, awaited) = unpair(reported.load(Relaxed));
            WriteLoad { dirty_percent, awaited: awaited != 0 }
        }));
        let (early, late) = (Duration::from_secs(7), Duration::from_secs(7) + LOGGING);
        assert!(!tuning.log_has_precedence(early), "there is no log");
        tuning.record_log_block(early);
        assert!(tuning.log_has_precedence(early) && tuning.log_has_precedence(late));
        for (dirty, awaited) in [(0, 1), (60, 0)] {
            load.store(pair(dirty, awaited), Relaxed);
            assert!(!tuning.log_has_precedence(early));
        }
        load.store(pair(59, 0), Relaxed);
        assert!(tuning.log_has_precedence(late));
        assert!(!tuning.log_has_precedence(late + Duration::from_nanos(1)), "it was long ago");
    }

    #[test]
    fn background_operations_yield() {
        let limits = QueueLimits { adaptive: false, ..QueueLimits::default() };
        let scrub = IoClass::Scrub as usize;
        let mut background_throttle = BackgroundThrottle::default();
        let caps = |c: &BackgroundThrottle| {
            limits.caps(|| WriteLoad::FULL, &Depths::default(), c, Foreground::default())
        };
        let of = |c: &BackgroundThrottle| caps(c).classes[scrub];
        let merged = |c: &BackgroundThrottle| caps(c).background;
        assert_eq!(merged(&background_throttle), BESIDE_OTHERS);
        assert_eq!(of(&background_throttle), class(1, 1));
        for _ in 0..limits.nia_delay {
            background_throttle.begin(scrub);
            background_throttle.end(scrub, &limits);
        }
        assert_eq!(
            of(&background_throttle),
            class(1, 3),
            "there was no other operation for a while"
        );
        assert_eq!(merged(&background_throttle), limits.aggregation_limit);
        background_throttle.begin(0);
        assert_eq!(merged(&background_throttle), BESIDE_OTHERS);
        assert_eq!(of(&background_throttle), class(1, 1));
        background_throttle.begin(scrub);
        assert_eq!(of(&background_throttle), class(0, 0), "one was enough");
        background_throttle.begin(1);
        background_throttle.end(1, &limits);
        assert_eq!(of(&background_throttle), class(1, 1));
        background_throttle.end(0, &limits);
        background_throttle.end(scrub, &limits);
        assert_eq!(of(&background_throttle), class(1, 1), "the delay begins anew");
        let own = QueueLimits::for_checks();
        let caps = own.caps(
            || WriteLoad::FULL,
            &Depths::default(),
            &background_throttle,
            Foreground::default(),
        );
        assert_eq!(caps.classes[scrub], class(64, 64), "unless there are no others");
    }

    #[test]
    fn little_is_written_beside_the_log() {
        let limits = QueueLimits::default();
        let at = |limits: &QueueLimits, load, logging| {
            let foreground = Foreground { logging, ..Foreground::default() };
            let caps = limits.caps(
                || load,
                &Depths::default(),
                &BackgroundThrottle::default(),
                foreground,
            );
            (caps.deep, caps.classes[3].min, caps.merged)
        };
        let much = load(100, false);
        assert_eq!(at(&limits, much, true), ((1, 128 << 10), 1, 128 << 10));
        let alone = at(&limits, much, false);
        assert!(alone.0.1 > 1 << 20 && alone.1 == 2 && alone.2 == 1 << 20);
        assert_eq!(at(&limits, load(100, true), true), alone, "a thread waits for the txg");
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
