//! Blocks move while others change the pool (`spa::engine`, `relocation`).
//!
//! # Theory
//! Threads work on lineages of datasets, as in [`crate::Workload::Lineage`], and empty metaslabs
//! in between. A move changes nothing that the model knows. The audit of each crash finds a
//! pointer to an old place, and the comparison with the model a tree that was switched to the
//! wrong one.

use std::sync::atomic::Ordering::Relaxed;

use base::{ErrorKind, Result};
use metaslab::MsKey;
use mover::{MoveLimits, empty_metaslab};

use crate::driver::Driver;
use crate::setup::Setup;

/// Space that a pool keeps back, bytes. Of so small a pool it would be half, and batches take
/// a part of it.
const SLOP: u64 = 4 << 20;

/// Leaves room for batches.
pub(crate) fn tune(_setup: &Setup, driver: &Driver) {
    driver.writer.plants.slop.store(SLOP, Relaxed);
}

impl Driver {
    /// Empties a metaslab that has data, in small batches.
    pub(crate) fn empty_some(&self, seed: u32) -> Result<()> {
        let space = self.writer.space();
        let mut used: Vec<MsKey> = Vec::new();
        for (vdev, _) in space.vdevs() {
            let all = space.metaslabs(vdev)?;
            used.extend(all.iter().filter(|ms| ms.free < ms.seg.len).map(|ms| ms.key));
        }
        used.sort_unstable();
        let Some(&key) = used.get(seed as usize % used.len().max(1)) else { return Ok(()) };
        let limits = MoveLimits {
            batch_bytes: (16 << 10) << (seed % 5 * 2),
            batch_blocks: 1 + seed as usize / 5 % 60,
        };
        match empty_metaslab(&self.writer, key, &limits) {
            Ok(report) => {
                if report.moved > 0 {
                    self.done.lock().insert("move blocks");
                }
                Ok(())
            }
            // A dataset is in use, a device is away, or there is no room.
            Err(e) if matches!(e.kind(), ErrorKind::Busy | ErrorKind::NoSpace) => Ok(()),
            Err(e) => Err(e),
        }
    }
}
