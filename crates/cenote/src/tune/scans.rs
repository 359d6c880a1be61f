//! Tunables of scrubs, resilvers, sequential rebuilds, and leaves that are too slow.

use spa::engine::RebuildTuning;
use vdev::IoClass;

use super::{OFF_ON, Tunable, Unit, active, small, writing};

pub(super) const READ_SIT_OUT_SECS: Tunable = writing(
    "vdev_read_sit_out_secs",
    "how long a slow device of a raidz or draid sits out of reads, seconds; 0: never",
    Unit::Count,
    600,
    || (0, 86_400_000),
    |e| e.sit_out_limits().secs,
    |e, n| {
        e.set_sit_out_limits(|l| l.secs = n);
        Ok(())
    },
);
pub(super) const OUTLIER_CHECK_INTERVAL: Tunable = writing(
    "vdev_raidz_outlier_check_interval_ms",
    "time between comparisons of the devices of a raidz or draid with autosit, milliseconds",
    Unit::Count,
    1000,
    || (1, 86_400_000),
    |e| e.sit_out_limits().check_ms,
    |e, n| {
        e.set_sit_out_limits(|l| l.check_ms = n);
        Ok(())
    },
);
pub(super) const OUTLIER_INSENSITIVITY: Tunable = writing(
    "vdev_raidz_outlier_insensitivity",
    "how far a device must be from the others to be slow, in their spread",
    Unit::Count,
    50,
    || (1, 1_000_000),
    |e| e.sit_out_limits().insensitivity,
    |e, n| {
        e.set_sit_out_limits(|l| l.insensitivity = n);
        Ok(())
    },
);
pub(super) const RESILVER_DEFER_PERCENT: Tunable = writing(
    "zfs_resilver_defer_percent",
    "a resilver that has read less begins again for another device, instead of deferring it",
    Unit::Percent,
    10,
    || (0, 100),
    |e| e.resilver_tuning().defer_percent,
    |e, n| {
        e.set_resilver_tuning(|t| t.defer_percent = n);
        Ok(())
    },
);
pub(super) const RESILVER_DISABLE_DEFER: Tunable = writing(
    "zfs_resilver_disable_defer",
    "a resilver begins again for another device, whatever features the pool has",
    Unit::Choice(OFF_ON),
    0,
    || (0, 1),
    |e| e.resilver_tuning().disable_defer.into(),
    |e, n| {
        e.set_resilver_tuning(|t| t.disable_defer = n != 0);
        Ok(())
    },
);
macro_rules! rebuild {
    ($name:expr, $what:expr, $unit:expr, $default:expr, $range:expr, $get:expr, $set:expr) => {
        writing(
            $name,
            $what,
            $unit,
            $default,
            $range,
            |e| {
                let get: fn(&RebuildTuning) -> u64 = $get;
                get(&e.rebuild_tuning())
            },
            |e, n| {
                let set: fn(&mut RebuildTuning, u64) = $set;
                e.set_rebuild_tuning(|t| set(t, n));
                Ok(())
            },
        )
    };
}

pub(super) const REBUILD_MAX_SEGMENT: Tunable = rebuild!(
    "zfs_rebuild_max_segment",
    "bytes that a sequential resilver reads at once",
    Unit::Bytes,
    1 << 20,
    || (16 << 10, 16 << 20),
    |t| t.segment,
    |t, n| t.segment = n
);
pub(super) const REBUILD_SCRUB_ENABLED: Tunable = rebuild!(
    "zfs_rebuild_scrub_enabled",
    "a scrub follows a sequential resilver",
    Unit::Choice(OFF_ON),
    1,
    || (0, 1),
    |t| t.scrub.into(),
    |t, n| t.scrub = n != 0
);
pub(super) const REBUILD_VDEV_LIMIT: Tunable = rebuild!(
    "zfs_rebuild_vdev_limit",
    "bytes that a sequential resilver has in flight; at most 16 MiB",
    Unit::Bytes,
    64 << 20,
    || (64 << 10, 1 << 30),
    |t| t.limit,
    |t, n| t.limit = n
);

/// Sets a limit of both classes of rebuilds, reads and writes.
macro_rules! rebuild_active {
    ($which:ident, $name:expr, $default:expr, $what:expr) => {
        writing(
            $name,
            $what,
            Unit::Count,
            $default,
            || (1, 1000),
            |e| e.queue_limits().classes[IoClass::RebuildRead as usize].$which.into(),
            |e, n| {
                e.set_queue_limits(|l| {
                    for class in [IoClass::RebuildRead, IoClass::RebuildWrite] {
                        l.classes[class as usize].$which = small(n);
                    }
                })
            },
        )
    };
}

pub(super) const REBUILD_MAX_ACTIVE: Tunable = rebuild_active!(
    max,
    "zfs_vdev_rebuild_max_active",
    3,
    "maximum of operations of sequential resilvers in flight on one device"
);
pub(super) const REBUILD_MIN_ACTIVE: Tunable = rebuild_active!(
    min,
    "zfs_vdev_rebuild_min_active",
    1,
    "operations of sequential resilvers in flight on one device beside others"
);
pub(super) const SCRUB_MAX_ACTIVE: Tunable = active!(
    Scrub,
    max,
    "zfs_vdev_scrub_max_active",
    3,
    "maximum of scrub reads in flight on one device"
);
pub(super) const SCRUB_MIN_ACTIVE: Tunable = active!(
    Scrub,
    min,
    "zfs_vdev_scrub_min_active",
    1,
    "scrub reads in flight on one device beside other operations"
);
