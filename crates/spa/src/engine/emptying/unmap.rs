//! Erasing the mappings of removed devices: when no pointer names a removed vdev any more, it becomes
//! a hole (chapter 08 §D).
//!
//! # Theory
//! A removed vdev has no space of its own, but a mapping for the pointers that name it. When these
//! blocks have moved ([`super::super::relocation`]), as for the emptying of any vdev, nothing needs
//! the mapping. The proof is in its own records: the bytes of its entries that are not obsolete
//! ([`Writer::mapped_left`]) are those that some pointer still needs, whether it was found or
//! not. That is exact where the vdev says so (`obsolete_counts_are_precise`); other mappings are left
//! alone.
//!
//! The mapping of a vdev that was removed earlier may lead to one that was removed later. So the
//! oldest one goes first, and none goes to which another one leads.
//!
//! # The end
//! One txg frees the mapping, its counts, births, obsolete map and ZAP, takes the vdev out of the
//! chain of removed ones and out of the counts of the features, and leaves a hole. With the
//! last one the record of the last removal goes, too: it would name a vdev that nobody knows.
//!
//! # Crash argument
//! The txg is whole or not there. Before it, the mapping is there and nothing uses it.

use std::sync::atomic::Ordering::Relaxed;

use base::{Error, ObjectId, Result, VdevId};
use dsl::Mos;
use dsl::write::store::DIRECTORY;
use dsl::write::{MosRead, features, remap};
use ondisk::config::{IndirectKeys, PoolConfig, VdevConfig};
use ondisk::removal::{JobState, Removing};

use super::super::Writer;
use super::super::config::ZAP_MAP;
use super::super::device_removal::{DEVICE_REMOVAL, REMOVING, store_record, stored};
use super::super::maps::free_map;
use super::super::removal::hole;
use super::super::tasks::TaskCx;
use super::super::topology::TreeChange;
use crate::obsolete::{Counts, PRECISE_KEY, mapping_header, removed_vdevs};

fn keys_of(vdev: &VdevConfig) -> IndirectKeys {
    vdev.top.as_ref().map(|top| top.indirect.clone()).unwrap_or_default()
}

fn find(config: &PoolConfig, vdev: VdevId) -> Result<&VdevConfig> {
    let found = removed_vdevs(config).find(|v| v.id == vdev.0);
    found.ok_or_else(|| Error::not_found("no such removed device in pool"))
}

impl Writer {
    /// The removed vdevs that have a mapping, those removed first in front.
    pub fn mapped_vdevs(&self) -> Vec<VdevId> {
        let config = self.published().config;
        let mut left: Vec<(u32, Option<u32>)> =
            removed_vdevs(&config).map(|v| (v.id, keys_of(v).prev)).collect();
        let mut out = Vec::with_capacity(left.len());
        // A chain that is damaged has an order, too.
        while !left.is_empty() {
            let is_due = |prev: Option<u32>| left.iter().all(|(id, _)| Some(*id) != prev);
            let at = left.iter().position(|(_, prev)| is_due(*prev)).unwrap_or(0);
            out.push(VdevId(left.remove(at).0));
        }
        out
    }

    /// Whether a vdev was removed and has a mapping.
    pub(super) fn is_mapped(&self, vdev: VdevId) -> bool {
        self.removed.any.load(Relaxed) && self.zio.tree().indirect(vdev).is_some()
    }

    /// Bytes of a mapping that something still needs.
    ///
    /// # Errors
    /// `NotFound` if the vdev was not removed; `Unsupported` if its frees were not recorded; `Busy`
    /// while its mapping is condensed; those of reading the MOS.
    pub fn mapped_left(&self, vdev: VdevId) -> Result<u64> {
        self.mapped_left_in(self.mos(), vdev)
    }

    /// As [`Writer::mapped_left`], with the reads of `mos`.
    fn mapped_left_in(&self, mos: &Mos, vdev: VdevId) -> Result<u64> {
        let map = self.zio.tree().indirect(vdev);
        let map = map.ok_or_else(|| Error::not_found("no such removed device in pool"))?;
        let config = self.published().config;
        let top = find(&config, vdev)?.top.clone().unwrap_or_default();
        let zap = top.zap.filter(|zap| zap.0 != 0);
        let read: &dyn MosRead = mos;
        let precise = match zap {
            Some(zap) => read.number(zap.0, PRECISE_KEY)?.is_some_and(|n| n != 0),
            None => false,
        };
        if !precise {
            let text = "the pool does not record what of a removed device is needed";
            return Err(Error::unsupported(text));
        }
        if self.removed.is_condensed(vdev) {
            return Err(Error::busy("the mapping of a removed device is being condensed"));
        }
        let mut left = map.mapped();
        if let Some(object) = top.indirect.mapping.filter(|o| o.0 != 0) {
            let counts = Counts::load(mos, &mapping_header(read, object.0)?, &map)?;
            left = left.saturating_sub(counts.total());
        }
        let obsolete = self.removed.maps.lock().get(&vdev).map_or(0, |map| map.obsolete);
        Ok(left.saturating_sub(obsolete))
    }

    /// Whether the mappings of removed devices can be erased; the bytes that must move for it.
    ///
    /// # Errors
    /// `Invalid` if there are none; as [`Writer::check_relocation`] and [`Writer::mapped_left`].
    pub fn check_unmap(&self) -> Result<u64> {
        let all = self.mapped_vdevs();
        if all.is_empty() {
            return Err(Error::invalid("the pool has no removed devices with a mapping"));
        }
        self.check_relocation()?;
        self.check_remapped(self.mos())?;
        all.into_iter().map(|vdev| self.mapped_left(vdev)).sum()
    }

    /// Makes a hole of a removed vdev whose mapping nothing needs.
    ///
    /// # Errors
    /// `Busy` if something needs it; `Unsupported` if another mapping leads to it, or it has a table
    /// of clones; as [`Writer::mapped_left`]; those of a suspension.
    pub fn end_unmap(&self, vdev: VdevId) -> Result<()> {
        let check = move |cx: &mut TaskCx<'_>| {
            let writer = cx.writer;
            let planted = writer.plants.emptying.early_hole.load(Relaxed);
            if writer.mapped_left_in(cx.mos(), vdev)? > 0 && !planted {
                return Err(Error::busy("the mapping of the removed device is needed"));
            }
            if writer.block_refs.has_table(vdev) {
                return Err(Error::unsupported("cloned blocks are on the removed device"));
            }
            let tree = writer.zio.tree();
            let leads = |id: VdevId| {
                let map = tree.indirect(id).filter(|_| id != vdev);
                map.is_some_and(|map| map.entries().iter().any(|e| e.dst_vdev == vdev))
            };
            match tree.top_ids().any(leads) {
                true => {
                    Err(Error::unsupported("the mapping of another removed device leads to it"))
                }
                false => Ok(()),
            }
        };
        self.sync_task(check, move |cx: &mut TaskCx<'_>, ()| cx.erase_mapping(vdev)).map(drop)
    }
}

impl TaskCx<'_> {
    fn erase_mapping(&mut self, vdev: VdevId) -> Result<()> {
        let top = find(&self.state.config, vdev)?.clone();
        let (space, keys) = (top.top.clone().unwrap_or_default(), keys_of(&top));
        let mut uncounted = 0;
        if let Some(mapping) = keys.mapping.filter(|o| o.0 != 0) {
            let counts = mapping_header(self.read(), mapping.0)?.counts;
            self.mos().objset().free_object(self.tx, mapping)?;
            if let Some(counts) = counts {
                self.mos().objset().free_object(self.tx, counts)?;
                uncounted += 1;
            }
        }
        if let Some(births) = keys.births.filter(|o| o.0 != 0) {
            self.mos().objset().free_object(self.tx, births)?;
        }
        let obsolete = self.writer.removed.maps.lock().remove(&vdev);
        if let Some(map) = obsolete {
            free_map(self.sync, map.object)?;
            uncounted += 1;
        }
        let zap = space.zap.filter(|zap: &ObjectId| zap.0 != 0);
        if let Some(zap) = zap
            && self.read().number(zap.0, PRECISE_KEY)?.is_some()
        {
            uncounted += 1;
        }
        let map = self.read().number(DIRECTORY, ZAP_MAP)?;
        self.drop_zap(map, zap)?;
        if features::is_enabled(self.read(), remap::OBSOLETE_COUNTS)? {
            features::add(self.cx, remap::OBSOLETE_COUNTS, -uncounted)?;
        }
        features::add(self.cx, DEVICE_REMOVAL, -1)?;
        let config = self.config();
        for other in &mut config.vdev_tree.children {
            let Some(other_space) = other.top.as_mut() else { continue };
            if other_space.indirect.prev == Some(vdev.0) {
                other_space.indirect.prev = keys.prev;
            }
        }
        if let Some(place) = config.vdev_tree.children.iter_mut().find(|v| v.id == vdev.0) {
            *place = hole(vdev.0);
        }
        let others = removed_vdevs(config).next().is_some();
        self.shorten_record(vdev, keys.prev.map(VdevId), others)?;
        self.publish(TreeChange::default(), &|_| {})?;
        self.writer.removed.any.store(others, Relaxed);
        let text = format!("{} vdev {vdev}", self.writer.name());
        self.log_internal("vdev unmap", None, &text)
    }

    /// The record of the last removal no longer names a vdev.
    fn shorten_record(&mut self, vdev: VdevId, before: Option<VdevId>, others: bool) -> Result<()> {
        let Some(mut record) = stored(self.read())? else { return Ok(()) };
        if !others {
            return self.cx.mos.zap_remove(DIRECTORY, REMOVING.as_bytes());
        }
        if record.prev_indirect == Some(vdev) {
            record.prev_indirect = before;
        }
        if record.vdev == Some(vdev) {
            record = Removing {
                state: JobState::None,
                vdev: None,
                start_time: 0,
                end_time: 0,
                to_copy: 0,
                copied: 0,
                ..record
            };
        }
        store_record(self.sync, &record)
    }
}
