//! Tunables of the txgs themselves.

use super::{Tunable, Unit, writing};

pub(super) const HISTORY: Tunable = writing(
    "zfs_txg_history",
    "number of txgs whose times are kept",
    Unit::Count,
    100,
    || (0, txg::TXG_HISTORY_MAX),
    |e| e.write_limits().txg_history,
    |e, n| e.set_write_limits(|l| l.txg_history = n),
);

pub(super) const TIMEOUT: Tunable = writing(
    "zfs_txg_timeout",
    "longest time between the syncs of two txgs",
    Unit::Seconds,
    5,
    || (1, 3600),
    |e| e.write_limits().timeout_s,
    |e, n| e.set_write_limits(|l| l.timeout_s = n),
);
