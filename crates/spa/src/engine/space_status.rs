//! The space of a pool that is open for writing, from memory.
//!
//! # Theory
//! The space maps of such a pool change with every txg, and a reader of the MOS that meets
//! two txgs finds maps that were freed, or sums that contradict each other. What the metaslabs
//! know is consistent, and needs no device.

use base::{Error, Result, VdevId};
use dmu::OutagePolicy;
use metaslab::{FreeSizes, MsKey};
use ondisk::spacemap::Header;

use super::Writer;
use super::config::is_concrete;
use crate::space::{Metaslab, PoolSpace, VdevSpace};

impl Writer {
    /// The metaslabs of all vdevs, as of the last pass that was written; without the list of log
    /// space maps.
    ///
    /// # Errors
    /// `Corrupt` for a vdev that left meanwhile.
    pub fn pool_space(&self) -> Result<PoolSpace> {
        let config = self.published().config;
        let tree = self.zio.tree();
        let mut out = PoolSpace::default();
        for top in config.vdev_tree.children.iter().filter(|top| is_concrete(top)) {
            let vdev = VdevId(top.id);
            // It may have left, or is still to come.
            let Ok(metaslabs) = self.space.metaslab_status(vdev) else { continue };
            let Some(space) = &top.top else { continue };
            out.vdevs.push(VdevSpace {
                vdev,
                ashift: space.ashift,
                metaslab_shift: space.metaslab_shift,
                metaslabs: metaslabs.into_iter().enumerate().map(described).collect(),
                class: tree.top(vdev).map(|node| node.class()).unwrap_or_default(),
                deflate: tree.deflate_ratio(vdev).unwrap_or(512),
                checkpoint: self.checkpoint.kept_on(vdev),
            });
        }
        Ok(out)
    }

    /// The ranges of a vdev that can be allocated now, by size: without what was freed in the
    /// last two txgs. Metaslabs that are not loaded are loaded.
    ///
    /// # Errors
    /// `Corrupt` if there is no such vdev, those of reading a space map, `Busy` if a metaslab is
    /// unloaded as often as it is loaded.
    pub fn free_sizes(&self, vdev: VdevId) -> Result<FreeSizes> {
        /// Attempts with a metaslab.
        const LOADS: usize = 8;
        let mut sum = FreeSizes::default();
        for (ms, _) in (0..).zip(self.space.metaslab_status(vdev)?) {
            let key = MsKey { vdev, ms };
            let mut found = self.space.free_sizes(key)?;
            for _ in 0..LOADS {
                if found.is_some() {
                    break;
                }
                self.space_io.load(key, OutagePolicy::WaitPerFailmode)?;
                found = self.space.free_sizes(key)?;
            }
            let found = found.ok_or_else(|| Error::busy("a metaslab is always unloaded"))?;
            sum.merge(&found);
        }
        Ok(sum)
    }
}

fn described((id, ms): (usize, metaslab::MetaslabStatus)) -> Metaslab {
    let alloc = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    Metaslab {
        id: id as u64,
        start: ms.seg.start,
        size: ms.seg.len,
        space_map: ms.object,
        header: Header {
            object: ms.object,
            length: ms.length,
            alloc: alloc(ms.own_allocated),
            histogram: ms.histogram,
        },
        unflushed_txg: ms.unflushed_txg,
        unflushed_alloc: alloc(ms.allocated).saturating_sub(alloc(ms.own_allocated)),
        unflushed_entries: ms.unflushed_ranges,
    }
}
