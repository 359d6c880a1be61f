//! Removing log vdevs, cache devices and spares (chapter 01 §4.3, §4.7; chapter 05 §4.2).
//!
//! # Theory
//! A log vdev has only blocks of intent logs. When allocation from it is disabled and every
//! chain was ended, it is empty as soon as no frees are deferred any more. Then one txg
//! removes it. Its space maps, arrays, ZAPs and DTLs are freed, and a hole replaces it, so
//! that no other vdev ever gets its id (its entries in log space maps may still exist).
//! After that txg its labels are wiped.
//!
//! Cache devices and unused spares have no data: they are removed from the MOS's list of
//! them, which is freed with its last entry. Their labels stay, because a spare may belong
//! to another pool, too.
//!
//! # Invariants
//! * Until the txg that removes it is on disk, a crash finds the vdev in the pool, without
//!   any data that is needed.
//!
//! # Departures from OpenZFS
//! * The last vdev leaves a hole like any other.
//! * Labels are wiped, where OpenZFS writes labels that belong to no txg.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{Error, Guid, ObjectId, Result, VdevId};
use dsl::write::store::DIRECTORY;
use nvlist::NvList;
use ondisk::config::{Top, VdevConfig, VdevType};

use super::Writer;
use super::config::ZAP_MAP;
use super::maps::VdevObjects;
use super::tasks::{Command, TaskCx};
use super::topology::TreeChange;
use crate::write::labels;

/// Txgs after which everything that was freed is free.
const FREE_TXGS: usize = 12;

/// The vdev that replaces a removed one.
pub(super) fn hole(id: u32) -> VdevConfig {
    VdevConfig {
        kind: VdevType::Hole,
        id,
        guid: Guid(0),
        path: None,
        devid: None,
        phys_path: None,
        whole_disk: Some(false),
        create_txg: base::Txg::ZERO,
        orig_guid: None,
        raidz: None,
        draid: None,
        dspare: None,
        top: Some(Top::default()),
        leaf: ondisk::config::LeafState::default(),
        root_zap: None,
        children: Vec::new(),
        raw: nvlist::NvList::new(),
    }
}

fn in_use() -> Error {
    Error::busy("the log device still holds something: a dataset's log was not replayed")
}

impl TaskCx<'_> {
    pub(super) fn drop_zap(&mut self, map: Option<u64>, zap: Option<ObjectId>) -> Result<()> {
        let Some(zap) = zap.filter(|z| z.0 != 0) else { return Ok(()) };
        if let Some(map) = map {
            self.cx.mos.zap_remove(map, format!("{:x}", zap.0).as_bytes())?;
        }
        self.mos().objset().free_object(self.tx, zap)
    }

    /// Frees all objects of a vdev in the MOS.
    fn drop_objects(&mut self, top: &VdevConfig, objects: &VdevObjects) -> Result<()> {
        self.drop_space(top, objects)?;
        let map = self.read().number(DIRECTORY, ZAP_MAP)?;
        self.drop_zap(map, top.top.as_ref().and_then(|space| space.zap))
    }

    /// Frees the objects of a vdev that only its space and its leaves need.
    pub(super) fn drop_space(&mut self, top: &VdevConfig, objects: &VdevObjects) -> Result<()> {
        let mut maps = std::mem::take(&mut self.state.maps);
        let done = self.writer.forget_maps(self.sync, &mut maps, VdevId(top.id), objects);
        self.state.maps = maps;
        done?;
        let map = self.read().number(DIRECTORY, ZAP_MAP)?;
        for leaf in top.leaves() {
            self.drop_zap(map, leaf.leaf.zap)?;
            if let Some(dtl) = leaf.leaf.dtl.filter(|o| o.0 != 0) {
                super::maps::free_map(self.sync, dtl.0)?;
            }
        }
        Ok(())
    }

    pub(super) fn drop_top(&mut self, id: u32, objects: &VdevObjects) -> Result<()> {
        let top = self.state.config.vdev_tree.children.iter().find(|v| v.id == id);
        let top = &top.ok_or_else(|| base::bug!("a vdev that was removed already"))?.clone();
        self.top_leaves_rebuild(VdevId(id))?;
        self.drop_objects(top, objects)?;
        let config = self.config();
        if let Some(place) = config.vdev_tree.children.iter_mut().find(|v| v.id == id) {
            *place = hole(id);
        }
        self.publish(TreeChange::default(), &|_| {})?;
        let planted = self.writer.plants.emptying.early_hole.load(Relaxed);
        match planted {
            true => self.writer.space.abandon_vdev(VdevId(id))?,
            false => self.writer.space.remove_vdev(VdevId(id))?,
        }
        self.state.missed.retain(|(guid, _)| top.find(*guid).is_none());
        let path = top.leaves().next().and_then(|l| l.path.as_ref()?.to_str());
        let text = format!("{} removed", path.unwrap_or(top.kind.name()));
        self.log_internal("vdev remove", None, &text)
    }
}

/// A list of spares or cache devices, and the one to be removed from it.
pub(super) struct Listed {
    key: &'static str,
    object: ObjectId,
    left: Vec<NvList>,
    path: String,
    /// It is a distributed spare, which belongs to its dRAID.
    distributed: bool,
}

impl TaskCx<'_> {
    /// The list that contains a cache device or spare.
    pub(super) fn listed(&self, guid: Guid) -> Result<Listed> {
        for key in ["l2cache", "spares"] {
            let Some(object) = self.read().directory(key)? else { continue };
            let list = self.mos().packed_nvlist(object)?;
            let all = list.lists(key).unwrap_or_default();
            let (missing, left): (Vec<NvList>, Vec<NvList>) =
                all.iter().cloned().partition(|device| device.u64("guid") == Some(guid.0));
            if let Some(missing) = missing.first() {
                let path = missing.str("path").unwrap_or("an auxiliary device").to_owned();
                let distributed = missing.str("type") == Some(VdevType::DraidSpare.name());
                return Ok(Listed { key, object: ObjectId(object), left, path, distributed });
            }
        }
        Err(Error::not_found("no such device in pool"))
    }

    /// Removes a list of spares or cache devices, if there is one.
    pub(super) fn drop_aux_list(&mut self, key: &str) -> Result<()> {
        let Some(object) = self.read().directory(key)? else { return Ok(()) };
        self.cx.mos.zap_remove(DIRECTORY, key.as_bytes())?;
        self.mos().objset().free_object(self.tx, ObjectId(object))
    }

    pub(super) fn drop_aux(&mut self, listed: Listed) -> Result<()> {
        let Listed { key, object, left, path, .. } = listed;
        if left.is_empty() {
            self.cx.mos.zap_remove(DIRECTORY, key.as_bytes())?;
            self.mos().objset().free_object(self.tx, object)?;
        } else {
            let mut list = NvList::new();
            list.add_lists(key, left);
            self.write_aux(object, &list)?;
        }
        self.config();
        self.log_internal("vdev remove", None, &format!("{path} removed"))
    }
}

/// The key of a device that is offline until it is brought online (chapter 01 §4.3).
const OFFLINE: &str = "offline";

impl TaskCx<'_> {
    /// The list of cache devices with one of them offline or not, and its object.
    fn with_offline(&self, guid: Guid, offline: bool) -> Result<(ObjectId, NvList)> {
        let missing = || Error::not_found("no such device in pool");
        let object = self.read().directory("l2cache")?.ok_or_else(missing)?;
        let list = self.mos().packed_nvlist(object)?;
        let mut devices = list.lists("l2cache").unwrap_or_default().to_vec();
        let found = devices.iter_mut().find(|device| device.u64("guid") == Some(guid.0));
        let device = found.ok_or_else(missing)?;
        if offline {
            device.add_u64(OFFLINE, 1);
        } else {
            device.remove(OFFLINE);
        }
        let mut changed = NvList::new();
        changed.add_lists("l2cache", devices);
        Ok((ObjectId(object), changed))
    }
}

impl Writer {
    /// Records that a cache device is offline, or that it is not any more, for the imports to
    /// come.
    ///
    /// # Errors
    /// `NotFound` for an unknown device; those of a suspension.
    pub fn set_cache_offline(
        &self,
        guid: Guid,
        offline: bool,
        command: Option<Command>,
    ) -> Result<()> {
        let check = move |cx: &mut TaskCx<'_>| cx.with_offline(guid, offline);
        let act = move |cx: &mut TaskCx<'_>, (object, list): (ObjectId, NvList)| {
            cx.write_aux(object, &list)?;
            cx.config();
            command.map_or(Ok(()), |c| cx.log_command(&c))
        };
        self.sync_task(check, act).map(|_| ())
    }

    /// Removes a cache device or a spare.
    ///
    /// # Errors
    /// `NotFound` when it is neither; those of a suspension.
    pub fn remove_aux(&self, guid: Guid, command: Option<Command>) -> Result<()> {
        let check = move |cx: &mut TaskCx<'_>| {
            let listed = cx.listed(guid)?;
            let node = cx.state.config.vdev_tree.find(guid);
            if node.is_some_and(|leaf| leaf.leaf.is_spare) {
                return Err(Error::busy("Pool busy; removal may already be in progress"));
            }
            if listed.distributed {
                return Err(Error::unsupported("operation not supported on this type of vdev"));
            }
            Ok(listed)
        };
        let act = move |cx: &mut TaskCx<'_>, listed: Listed| {
            cx.drop_aux(listed)?;
            command.map_or(Ok(()), |c| cx.log_command(&c))
        };
        self.sync_task(check, act).map(|_| ())
    }

    /// Removes a log vdev; `guid` is its own or that of a device below it. No record is
    /// lost: meanwhile commits use other vdevs, or wait for txgs.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for a vdev that is no log; `Busy` when it has a log that waits
    /// for its replay; those of a suspension.
    pub fn remove_log(&self, guid: Guid, command: Option<Command>) -> Result<()> {
        let config = Arc::clone(&self.published.read().config);
        let top = config.vdev_tree.children.iter().find(|v| v.find(guid).is_some());
        let top = top.ok_or_else(|| Error::not_found("no such device in pool"))?.clone();
        if !top.top.as_ref().is_some_and(|t| t.is_log) {
            return Err(Error::invalid("only log devices can be removed"));
        }
        self.checkpoint.refuse_any()?;
        let id = VdevId(top.id);
        let (tree, leaves): (_, Vec<Guid>) =
            (self.zio.tree(), top.leaves().map(|l| l.guid).collect());
        let devices: Vec<_> =
            leaves.iter().filter_map(|g| tree.find(*g)?.device().cloned()).collect();
        drop(tree);
        self.space.set_allocating(id, false)?;
        let done = self.remove_empty(id, &top, command);
        if done.is_err() {
            let _there = self.space.set_allocating(id, true);
        } else {
            // A missing device has no label to wipe.
            let _wiped = devices.iter().map(|d| labels::clear(&**d)).filter(Result::is_ok).count();
        }
        done
    }

    fn remove_empty(&self, id: VdevId, top: &VdevConfig, command: Option<Command>) -> Result<()> {
        let ended = self.close_logs();
        self.reopen_logs();
        ended?;
        self.end_idle_logs()?;
        let empty = || {
            let totals = self.space.vdev_totals(id)?;
            Ok::<_, Error>(totals.allocated + totals.deferred + totals.reserved == 0)
        };
        for _ in 0..FREE_TXGS {
            if empty()? {
                break;
            }
            self.touch();
            self.sync()?;
        }
        let space = top.top.clone().unwrap_or_default();
        let check = move |cx: &mut TaskCx<'_>| {
            cx.check_no_checkpoint()?;
            let totals = cx.writer.space.vdev_totals(id)?;
            match totals.allocated + totals.deferred + totals.reserved {
                0 => cx.objects_of(&space),
                _ => Err(in_use()),
            }
        };
        let act = move |cx: &mut TaskCx<'_>, objects: VdevObjects| {
            cx.drop_top(id.0, &objects)?;
            command.map_or(Ok(()), |c| cx.log_command(&c))
        };
        self.sync_task(check, act).map(|_| ())
    }
}
