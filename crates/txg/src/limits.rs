//! Limits of dirty data, and the delay derived from them (chapter 05 §10.1).

use base::rt::atomic::{AtomicU64, Ordering::SeqCst};

/// Most lines of history.
pub const TXG_HISTORY_MAX: u64 = 10_000;
/// Smallest `zfs_dirty_data_max`: one block of the largest size.
pub const DIRTY_DATA_MIN: u64 = 16 << 20;
/// Dirty bytes that start a txg's sync if they arrived within half a second. At that
/// rate the devices are the bottleneck. A slower writer would not gain from an early
/// sync: it would only be disturbed, and data that it changes again would be written
/// twice.
pub(crate) const SYNC_STEP: u64 = 64 << 20;
/// This half second, in nanoseconds.
pub(crate) const FAST_STEP_NS: u64 = 500_000_000;
const DIRTY_DATA_MAX_PERCENT: u64 = 10;
const DIRTY_DATA_MAX_MAX: u64 = 4 << 30;

/// The limits that an administrator can set; names are those of the tunables without
/// `zfs_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of dirty data at which writers stop.
    pub dirty_data_max: u64,
    /// Percent of it above which writers are delayed; 100 or more: never.
    pub delay_min_dirty_percent: u64,
    /// The delay half way between these two values, nanoseconds.
    pub delay_scale_ns: u64,
    /// The longest delay of one operation, nanoseconds.
    pub delay_max_ns: u64,
    /// Percent of it that starts a txg's sync; more than 100 counts as 100.
    pub dirty_sync_percent: u64,
    /// Seconds after which dirty data is written.
    pub timeout_s: u64,
    /// Number of synced txgs remembered, at most [`TXG_HISTORY_MAX`].
    pub txg_history: u64,
}

impl Limits {
    /// The defaults on a machine with `bytes` of memory: a tenth of it, at most 4 GiB,
    /// may be dirty.
    pub fn for_memory(bytes: u64) -> Limits {
        let share = bytes / 100 * DIRTY_DATA_MAX_PERCENT;
        let max = DIRTY_DATA_MAX_MAX.min(bytes / 4);
        Limits {
            dirty_data_max: share.min(max).max(DIRTY_DATA_MIN),
            delay_min_dirty_percent: 60,
            delay_scale_ns: 500_000,
            delay_max_ns: 100_000_000,
            dirty_sync_percent: 20,
            timeout_s: 5,
            txg_history: 100,
        }
    }

    /// Dirty bytes above which writers are delayed.
    pub(crate) fn delay_from(&self) -> u64 {
        percent(self.dirty_data_max, self.delay_min_dirty_percent)
    }

    /// Dirty bytes of the open txg at which it syncs when no other txg does; at least
    /// one.
    pub(crate) fn sync_from(&self) -> u64 {
        percent(self.dirty_data_max, self.dirty_sync_percent.min(100)).max(1)
    }

    /// Dirty bytes that also start it if they arrived fast.
    pub(crate) fn sync_step(&self) -> u64 {
        self.sync_from().min(SYNC_STEP)
    }
}

impl Default for Limits {
    /// The limits on a machine with so much memory that the upper bound applies.
    fn default() -> Limits {
        Limits::for_memory(DIRTY_DATA_MAX_MAX * 100 / DIRTY_DATA_MAX_PERCENT)
    }
}

fn percent(of: u64, percent: u64) -> u64 {
    let share = u128::from(of) * u128::from(percent) / 100;
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Nanoseconds by which a transaction is delayed with `dirty` bytes: zero up to the
/// start, then `scale · (dirty − start) / (max − dirty)`, with an upper bound.
pub(crate) fn delay_ns(dirty: u64, limits: &Limits) -> u64 {
    let from = limits.delay_from();
    if dirty <= from && dirty < limits.dirty_data_max {
        return 0;
    }
    if dirty >= limits.dirty_data_max {
        return limits.delay_max_ns;
    }
    let over = u128::from(dirty - from) * u128::from(limits.delay_scale_ns);
    let delay = over / u128::from(limits.dirty_data_max - dirty);
    u64::try_from(delay).unwrap_or(u64::MAX).min(limits.delay_max_ns)
}

/// The time at which a transaction that began at `start` continues, given the time for
/// the last one. So the pool's rate is 1/delay, however many threads write.
pub(crate) fn wakeup(start: u64, last: u64, delay: u64) -> u64 {
    start.max(last).saturating_add(delay)
}

/// The limits in force, which may change while they are used.
pub(crate) struct AtomicLimits {
    values: [AtomicU64; 7],
}

impl AtomicLimits {
    pub(crate) fn new(limits: &Limits) -> AtomicLimits {
        let live = AtomicLimits { values: Default::default() };
        live.set(limits);
        live
    }

    pub(crate) fn set(&self, l: &Limits) {
        let new = [
            l.dirty_data_max.max(1),
            l.delay_min_dirty_percent,
            l.delay_scale_ns,
            l.delay_max_ns,
            l.dirty_sync_percent,
            l.timeout_s,
            l.txg_history.min(TXG_HISTORY_MAX),
        ];
        for (value, new) in self.values.iter().zip(new) {
            value.store(new, SeqCst);
        }
    }

    pub(crate) fn get(&self) -> Limits {
        let at = |i: usize| self.values[i].load(SeqCst);
        Limits {
            dirty_data_max: at(0),
            delay_min_dirty_percent: at(1),
            delay_scale_ns: at(2),
            delay_max_ns: at(3),
            dirty_sync_percent: at(4),
            timeout_s: at(5),
            txg_history: at(6),
        }
    }
}
