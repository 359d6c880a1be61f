//! The uberblock that ends a txg (chapter 01 §3).

use base::Txg;
use ondisk::uberblock::{Mmp, Uberblock, VERSION_FEATURES};
use ondisk::{BlkPtr, Endian};

/// The txg of a new pool's first uberblock in memory; the first one synced is the next
/// (chapter 01 §5.4).
pub(crate) const INITIAL_TXG: Txg = Txg(3);

/// The fields of the multihost property, while it is on (chapter 01 §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multihost {
    /// Nanoseconds between heartbeats, averaged.
    pub delay: u64,
    /// `zfs_multihost_interval` in milliseconds.
    pub interval_ms: u32,
    /// `zfs_multihost_fail_intervals`.
    pub fail_intervals: u16,
}

impl Multihost {
    fn fields(self) -> Mmp {
        // A delay of zero would mean that multihost is off.
        let config = Mmp::pack_config(self.interval_ms, 0, self.fail_intervals);
        Mmp { delay: self.delay.max(1), config }
    }
}

/// An uberblock of `txg` without root: the content of a fresh device's ring (txg 0,
/// chapter 01 §2.2), and the initial one of a new pool.
pub fn template(version: u64, txg: Txg) -> Uberblock {
    Uberblock {
        version,
        txg,
        guid_sum: 0,
        timestamp: 0,
        root_bp: BlkPtr::default(),
        software_version: VERSION_FEATURES,
        mmp: Some(Mmp::default()),
        checkpoint_txg: Txg::ZERO,
        raidz_reflow_info: 0,
        endian: Endian::Little,
    }
}

/// The result of a txg's sync.
#[derive(Clone, Debug)]
pub struct Synced {
    /// The txg.
    pub txg: Txg,
    /// The MOS's object set block.
    pub root_bp: BlkPtr,
    /// Sum of the guids in the MOS configuration of this txg.
    pub guid_sum: u64,
    /// Seconds since 1970.
    pub now: u64,
    /// While the multihost property is on.
    pub multihost: Option<Multihost>,
}

/// The uberblock to write after `previous`. The pool's version and the progress of an
/// expansion are carried over; code that changes them does so afterwards. The time never
/// runs backwards: of two uberblocks of one txg the later one wins.
pub fn next(previous: &Uberblock, synced: &Synced) -> Uberblock {
    Uberblock {
        version: previous.version,
        txg: synced.txg,
        guid_sum: synced.guid_sum,
        timestamp: synced.now.max(previous.timestamp),
        root_bp: synced.root_bp,
        software_version: VERSION_FEATURES,
        mmp: Some(synced.multihost.map(Multihost::fields).unwrap_or_default()),
        checkpoint_txg: Txg::ZERO,
        raidz_reflow_info: previous.raidz_reflow_info,
        endian: Endian::Little,
    }
}

/// Whether txg `uberblock.txg` must be committed at all (chapter 01 §3): its MOS was
/// rewritten, a configuration is dirty, or multihost is on.
pub(crate) fn is_needed(uberblock: &Uberblock, config_dirty: bool) -> bool {
    uberblock.root_bp.birth() == uberblock.txg || config_dirty || uberblock.is_multihost()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_carried_over_and_what_is_not() {
        let previous = Uberblock {
            version: 28,
            timestamp: 1000,
            checkpoint_txg: Txg(7),
            raidz_reflow_info: 1 << 55 | 9,
            ..template(28, Txg(8))
        };
        let mut synced = Synced {
            txg: Txg(9),
            root_bp: BlkPtr::default(),
            guid_sum: 5,
            now: 990,
            multihost: None,
        };
        let ub = next(&previous, &synced);
        assert_eq!((ub.version, ub.software_version, ub.txg), (28, 5000, Txg(9)));
        assert_eq!((ub.checkpoint_txg, ub.raidz_reflow_info), (Txg::ZERO, 1 << 55 | 9));
        assert_eq!((ub.timestamp, ub.guid_sum), (1000, 5), "time does not run backwards");
        assert_eq!(ub.mmp, Some(Mmp { delay: 0, config: 0 }));
        assert!(ub.compare(&previous).is_gt());
        assert!(!is_needed(&ub, false) && is_needed(&ub, true));

        synced.multihost =
            Some(Multihost { delay: 250_000_000, interval_ms: 1000, fail_intervals: 10 });
        let mmp = next(&previous, &synced).mmp.unwrap();
        assert_eq!((mmp.delay, mmp.config & 7), (250_000_000, 7));
        assert_eq!(mmp.sequence(), Some(0));
        assert!(is_needed(&next(&previous, &synced), false));
    }
}
