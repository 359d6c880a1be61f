//! The end of a removal: the vdev becomes an indirect one, or the removal is canceled.
//!
//! # Theory
//! Both are one txg, and nothing of the removal is left to be written when it runs: the thread
//! begins no step, and the txgs of earlier steps are not later than this one.
//!
//! A removal that is canceled frees the copies of what is still allocated on the vdev: blocks that
//! were freed meanwhile have freed theirs.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{Dva, Error, ErrorKind, Guid, ObjectId, Result, VdevId};
use device::Device;
use dmu::OutagePolicy;
use dsl::write::store::DIRECTORY;
use dsl::write::{features, remap};
use metaslab::UsedSpace;
use nvlist::NvList;
use ondisk::config::{IndirectKeys, LeafState, Top, VdevConfig, VdevType};
use ondisk::removal::JobState;

use super::super::Writer;
use super::super::maps::{UNFLUSHED, VdevObjects, free_map};
use super::super::tasks::{Command, TaskCx};
use super::super::topology::TreeChange;
use super::sync::store;
use super::{DEVICE_REMOVAL, Evacuation, RemovalStep};
use crate::obsolete::{MAP_KEY, PRECISE_KEY};
use crate::write::labels;

fn not_active() -> Error {
    Error::not_found("there is no device removal in progress")
}

/// The vdev that stays in the configuration for a removed one.
fn indirect(top: &VdevConfig, guid: Guid) -> VdevConfig {
    let space = top.top.clone().unwrap_or_default();
    VdevConfig {
        kind: VdevType::Indirect,
        id: top.id,
        guid,
        path: None,
        devid: None,
        phys_path: None,
        whole_disk: Some(false),
        create_txg: top.create_txg,
        orig_guid: None,
        raidz: None,
        draid: None,
        dspare: None,
        top: Some(Top { metaslab_array: 0, removing: false, non_allocating: true, ..space }),
        leaf: LeafState::default(),
        root_zap: None,
        children: Vec::new(),
        raw: NvList::new(),
    }
}

impl TaskCx<'_> {
    /// Whether everything of a removal is in the txg that is being written, or before.
    fn check_removal_settled(&self, vdev: VdevId) -> Result<Top> {
        let state = self.writer.removal.state.lock();
        let evac = state.as_ref().filter(|evac| evac.vdev == vdev).ok_or_else(not_active)?;
        if evac.busy || !evac.copied.is_empty() {
            return Err(Error::busy("a step of the removal is under way"));
        }
        drop(state);
        let tops = &self.state.config.vdev_tree.children;
        let top = tops.iter().find(|v| v.id == vdev.0).and_then(|v| v.top.clone());
        top.ok_or_else(not_active)
    }

    fn take_removal(&self) -> Result<Evacuation> {
        let mut state = self.writer.removal.state.lock();
        self.writer.removal.active.store(false, Relaxed);
        self.writer.removal.changed.notify_all();
        state.take().ok_or_else(|| base::bug!("a removal that has ended"))
    }

    /// Turns the vdev into an indirect one.
    fn complete_removal(&mut self, vdev: VdevId, objects: &VdevObjects) -> Result<()> {
        let writer = self.writer;
        self.log_removal("completed", vdev)?;
        let mut evac = self.take_removal()?;
        let tops = &self.state.config.vdev_tree.children;
        let top = tops.iter().find(|v| v.id == vdev.0).cloned();
        let top = top.ok_or_else(|| base::bug!("the vdev {vdev} is gone"))?;
        self.top_leaves_rebuild(vdev)?;
        self.drop_space(&top, objects)?;
        if let Some(zap) = top.top.as_ref().and_then(|space| space.zap)
            && self.read().number(zap.0, UNFLUSHED)?.is_some()
        {
            self.cx.mos.zap_remove(zap.0, UNFLUSHED.as_bytes())?;
        }
        evac.record.state = JobState::Finished;
        evac.record.end_time = self.cx.now.0;
        evac.record.prev_indirect = Some(vdev);
        store(self.sync, &evac.record)?;
        self.move_directory()?;
        let guid = Guid(base::rt::random_u64()?.max(1));
        let config = self.config();
        if let Some(place) = config.vdev_tree.children.iter_mut().find(|v| v.id == vdev.0) {
            *place = indirect(&top, guid);
        }
        let map = Arc::new(evac.map);
        // The vdev is there: the configuration has it.
        let ready = |tree: &vdev::Tree| drop(tree.set_indirect(vdev, Arc::clone(&map)));
        self.publish(TreeChange::default(), &ready)?;
        writer.removed.any.store(true, Relaxed);
        writer.space.abandon_vdev(vdev)?;
        self.state.missed.retain(|(guid, _)| top.find(*guid).is_none());
        writer.ledger.set_leaving(None);
        Ok(())
    }

    /// Rewrites the object directory. An import reads it before it knows the mapping, and its
    /// blocks that no change has reached since may be on the vdev. (The configuration object, which
    /// is read then, too, is written whole in this txg.)
    fn move_directory(&self) -> Result<()> {
        let os = self.mos().objset();
        for blkid in 0..self.read().info(DIRECTORY)?.blocks {
            os.edit_block(self.tx, ObjectId(DIRECTORY), blkid, &mut |_| Ok(()))?;
        }
        Ok(())
    }

    /// Frees the copies and the objects of a removal; the vdev is used as before.
    fn undo_removal(&mut self, vdev: VdevId) -> Result<()> {
        let writer = self.writer;
        self.log_removal("canceled", vdev)?;
        let mut evac = self.take_removal()?;
        let copies = writer.live_copies(&evac)?;
        copies.into_iter().try_for_each(|copy| writer.space.free(self.cx.txg, copy))?;
        let os = self.mos().objset();
        os.free_object(self.tx, evac.mapping)?;
        os.free_object(self.tx, evac.births)?;
        let mut uncounted = 0;
        if let Some(counts) = evac.header.counts {
            os.free_object(self.tx, counts)?;
            uncounted += 1;
        }
        let tops = &mut self.config().vdev_tree.children;
        let top = tops.iter_mut().find(|v| v.id == vdev.0).and_then(|v| v.top.as_mut());
        let top = top.ok_or_else(|| base::bug!("the vdev {vdev} is gone"))?;
        (top.non_allocating, top.removing) = (false, false);
        top.indirect = IndirectKeys::default();
        let zap = top.zap;
        writer.removed.forget_freed(vdev);
        if let Some(map) = writer.removed.maps.lock().remove(&vdev) {
            free_map(self.sync, map.object)?;
            uncounted += 1;
        }
        for key in [MAP_KEY, PRECISE_KEY] {
            let Some(ObjectId(zap)) = zap else { continue };
            if self.read().number(zap, key)?.is_some() {
                self.cx.mos.zap_remove(zap, key.as_bytes())?;
                uncounted += i64::from(key == PRECISE_KEY);
            }
        }
        if features::is_enabled(self.read(), remap::OBSOLETE_COUNTS)? {
            features::add(self.cx, remap::OBSOLETE_COUNTS, -uncounted)?;
        }
        features::add(self.cx, DEVICE_REMOVAL, -1)?;
        evac.record.state = JobState::Canceled;
        evac.record.end_time = self.cx.now.0;
        store(self.sync, &evac.record)?;
        writer.ledger.set_leaving(None);
        writer.space.set_allocating(vdev, true)
    }
}

impl Writer {
    /// The copies of what is allocated on the vdev.
    fn live_copies(&self, evac: &Evacuation) -> Result<Vec<Dva>> {
        let mut out = Vec::new();
        for ms in self.space.metaslabs(evac.vdev)? {
            let (mut from, end) = (ms.seg.start, ms.seg.end().min(evac.header.max_offset));
            if !ms.was_used && ms.free == ms.seg.len {
                continue;
            }
            while from < end {
                self.space_io.load(ms.key, OutagePolicy::WaitAlways)?;
                let UsedSpace::Ranges(live, to) =
                    self.space.live_ranges(ms.key, from, ms.seg.len)?
                else {
                    continue;
                };
                for seg in live {
                    let copies = evac.copies(seg.start, seg.end().min(end))?;
                    out.extend(copies.into_iter().map(|(_, copy)| copy));
                }
                from = to.max(from + 1);
            }
        }
        Ok(out)
    }

    /// Lets the thread begin no step, and waits for the end of the one under way; false if
    /// there is no removal.
    fn halt_removal(&self) -> bool {
        let mut state = self.removal.state.lock();
        loop {
            let Some(evac) = state.as_mut() else { return false };
            evac.ending = true;
            if !evac.busy {
                return true;
            }
            self.removal.changed.wait_timeout(&mut state, super::WAIT);
        }
    }

    /// The thread goes on.
    fn continue_removal(&self) {
        if let Some(evac) = self.removal.state.lock().as_mut() {
            evac.ending = false;
        }
        self.removal.changed.notify_all();
    }

    /// Everything was copied: the thread ends the removal.
    pub(super) fn finish_removal(&self, vdev: VdevId) -> RemovalStep {
        if !self.halt_removal() {
            return RemovalStep::More;
        }
        let config = self.published().config;
        let top = config.vdev_tree.children.iter().find(|v| v.id == vdev.0).cloned();
        let tree = self.zio.tree();
        let leaves = top.iter().flat_map(|top| top.leaves());
        let devices: Vec<Arc<dyn Device>> =
            leaves.filter_map(|leaf| tree.find(leaf.guid)?.device().cloned()).collect();
        drop(tree);
        let check = move |cx: &mut TaskCx<'_>| {
            let space = cx.check_removal_settled(vdev)?;
            cx.objects_of(&space)
        };
        let act =
            move |cx: &mut TaskCx<'_>, objects: VdevObjects| cx.complete_removal(vdev, &objects);
        self.removal.wiping.store(true, Relaxed);
        let done = self.sync_task(check, act);
        if done.is_ok() {
            // A missing device has no label to wipe.
            let _wiped = devices.iter().map(|d| labels::clear(&**d)).filter(Result::is_ok).count();
        }
        self.removal.wiping.store(false, Relaxed);
        if done.is_err() {
            self.continue_removal();
            return RemovalStep::Wait;
        }
        let mut values = NvList::new();
        values.add_u64("vdev_guid", top.map_or(0, |top| top.guid.0));
        self.sysevent("vdev_remove_dev", &values);
        self.request_resilver_if_needed();
        RemovalStep::More
    }

    /// The removal cannot go on: the thread cancels it.
    pub(super) fn give_up_removal(&self, why: &Error) -> RemovalStep {
        let Some((vdev, _)) = self.removal() else { return RemovalStep::More };
        if !self.halt_removal() {
            return RemovalStep::More;
        }
        let text = format!("{} vdev {vdev}: {}", self.name(), why.message());
        let check = move |cx: &mut TaskCx<'_>| cx.check_removal_settled(vdev).map(drop);
        let act = move |cx: &mut TaskCx<'_>, ()| {
            cx.log_internal("vdev remove aborted", None, &text)?;
            cx.undo_removal(vdev)
        };
        match self.sync_task(check, act) {
            Ok(_) => {
                self.cancel_event(why.message());
                RemovalStep::More
            }
            Err(_) => {
                self.continue_removal();
                RemovalStep::Wait
            }
        }
    }

    fn cancel_event(&self, why: &str) {
        let mut values = NvList::new();
        values.add_str("reason", why);
        self.sysevent("vdev_remove_cancel", &values);
        self.request_resilver_if_needed();
    }

    /// Cancels the removal under way (`zpool remove -s`): the vdev is used as before.
    ///
    /// # Errors
    /// `NotFound` if there is none; those of a suspension.
    pub fn cancel_removal(&self, command: Option<Command>) -> Result<()> {
        let (vdev, _) = self.removal().ok_or_else(not_active)?;
        self.check_running()?;
        if !self.halt_removal() {
            return Err(not_active());
        }
        let check = move |cx: &mut TaskCx<'_>| cx.check_removal_settled(vdev).map(drop);
        let act = move |cx: &mut TaskCx<'_>, ()| {
            cx.undo_removal(vdev)?;
            command.map_or(Ok(()), |c| cx.log_command(&c))
        };
        let done = self.sync_task(check, act);
        if done.as_ref().is_err_and(|e| e.kind() != ErrorKind::NotFound) {
            self.continue_removal();
        }
        done?;
        self.cancel_event("canceled by the administrator");
        Ok(())
    }
}
