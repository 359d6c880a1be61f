//! Tunables of scrubs and resilvers.

use vdev::IoClass;

use super::{OFF_ON, Tunable, Unit, active, small, writing};

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
