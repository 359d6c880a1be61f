//! Choosing the uberblock to open a pool from (chapter 01 §3.1).

use std::cmp::Ordering;

use base::{Error, Guid, Result, Txg};
use ondisk::uberblock::Uberblock;

/// An uberblock and the leaf it was found on.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The uberblock.
    pub uberblock: Uberblock,
    /// The leaf whose label belongs to it.
    pub leaf: Guid,
}

/// The best uberblock no newer than `limit`.
///
/// # Errors
/// `Missing` when there is none; `Unsupported` when the limit would undo progress of a
/// RAID-Z expansion.
pub fn choose(all: impl IntoIterator<Item = (Guid, Uberblock)>, limit: Txg) -> Result<Chosen> {
    let (mut latest, mut best): (Option<Uberblock>, Option<Chosen>) = (None, None);
    for (leaf, ub) in all {
        if latest.as_ref().is_none_or(|l| ub.compare(l) == Ordering::Greater) {
            latest = Some(ub.clone());
        }
        let better = |b: &Chosen| ub.compare(&b.uberblock) == Ordering::Greater;
        if ub.txg <= limit && best.as_ref().is_none_or(better) {
            best = Some(Chosen { uberblock: ub, leaf });
        }
    }
    match (best, latest) {
        (Some(best), Some(latest)) if best.uberblock.txg != Txg::ZERO => {
            if best.uberblock.raidz_reflow_info != latest.raidz_reflow_info {
                return Err(Error::unsupported(
                    "cannot rewind across the progress of a raidz expansion",
                ));
            }
            Ok(best)
        }
        (None, Some(latest)) => Err(Error::new(
            base::ErrorKind::DevicesMissing,
            format!(
                "no uberblock at or before transaction group {limit}; the newest is {}",
                latest.txg
            ),
        )),
        _ => Err(Error::new(base::ErrorKind::DevicesMissing, "no valid uberblock on any device")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ondisk::{BlkPtr, Endian};

    fn ub(txg: u64, timestamp: u64, reflow: u64) -> Uberblock {
        Uberblock {
            version: 5000,
            txg: Txg(txg),
            guid_sum: 0,
            timestamp,
            root_bp: BlkPtr::default(),
            software_version: 5000,
            mmp: None,
            checkpoint_txg: Txg(0),
            raidz_reflow_info: reflow,
            endian: Endian::Little,
        }
    }

    #[test]
    fn newest_txg_then_newest_time_within_the_limit() {
        let all = || vec![(Guid(1), ub(5, 9, 0)), (Guid(2), ub(7, 1, 0)), (Guid(3), ub(7, 2, 0))];
        assert_eq!(choose(all(), Txg::MAX).unwrap().leaf, Guid(3));
        assert_eq!(choose(all(), Txg(6)).unwrap().leaf, Guid(1));
        assert!(choose(all(), Txg(4)).is_err());
        assert!(choose(vec![(Guid(1), ub(0, 0, 0))], Txg::MAX).is_err());
        assert!(choose(vec![(Guid(1), ub(5, 0, 0)), (Guid(1), ub(6, 0, 1))], Txg(5)).is_err());
    }
}
