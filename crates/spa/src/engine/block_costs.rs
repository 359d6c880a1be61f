//! What a block may cost on the vdevs of a pool.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::{Psize, Txg, VdevId};
use vdev::Tree;

/// The largest costs of blocks of 2^n bytes on any top-level vdev of the pool.
#[derive(Default)]
pub(super) struct BlockCosts {
    asize: [AtomicU64; 26],
    dsize: [AtomicU64; 26],
    /// Sectors that one sector of data may take.
    pub(super) inflation: AtomicU64,
}

impl BlockCosts {
    fn most(of: &[AtomicU64], bytes: u64) -> u64 {
        let shift = bytes.max(1).next_power_of_two().trailing_zeros() as usize;
        of[shift.min(of.len() - 1)].load(Relaxed).max(bytes)
    }

    /// The largest asize of one block of `bytes`.
    pub(super) fn asize(&self, bytes: u64) -> u64 {
        BlockCosts::most(&self.asize, bytes)
    }

    /// The most that one block of `bytes` adds to the used space of its dataset.
    pub(super) fn dsize(&self, bytes: u64) -> u64 {
        BlockCosts::most(&self.dsize, bytes)
    }

    pub(super) fn update(&self, tree: &Tree, deflates: bool) {
        let asize = |id: VdevId, bytes: u64| Some(tree.asize(id, Psize(bytes), Txg::MAX).ok()?.0);
        let sectors = |id: VdevId| {
            let sector = 1u64 << tree.top(id).ok()?.ashift().min(16);
            Some(asize(id, sector)?.div_ceil(sector))
        };
        let worst = tree.top_ids().filter_map(sectors).max().unwrap_or(4);
        self.inflation.store(worst.max(1), Relaxed);
        for (shift, (most, deflated)) in self.asize.iter().zip(&self.dsize).enumerate() {
            let all = || tree.top_ids().filter_map(|id| Some((id, asize(id, 1 << shift)?)));
            let dsize = |(id, asize): (VdevId, u64)| match deflates {
                true => (asize >> 9) * tree.deflate_ratio(id).unwrap_or(512),
                false => asize,
            };
            most.store(all().map(|(_, asize)| asize).max().unwrap_or(4 << shift), Relaxed);
            deflated.store(all().map(dsize).max().unwrap_or(4 << shift), Relaxed);
        }
    }
}
