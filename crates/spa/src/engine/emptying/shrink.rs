//! A top-level vdev becomes smaller: its last metaslabs are emptied and cut off, so that smaller
//! devices can replace its own.
//!
//! # Theory
//! The size of a vdev is the one in the configuration, whatever its devices have (chapter 01 §1), so
//! a smaller one is legal for any implementation. What must hold when it is written:
//! * nothing is allocated in the metaslabs that go, no free there is deferred;
//! * no log space map has an entry of theirs, because an import applies each entry to the metaslab
//!   that has its offset. So all logged changes are flushed after the range became empty, and the
//!   cut waits until the oldest log is younger than that;
//! * no mapping of a removed vdev leads there.
//!
//! One txg frees their space maps, clears their words in the arrays, and writes the new size. The
//! labels at the ends of the devices stay where they are.
//!
//! # Crash argument
//! The txg is whole or not there. Labels that have the smaller size before the txg is durable are
//! harmless: the configuration in the MOS decides.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{Error, ErrorKind, Guid, Result, Txg, VdevId};
use metaslab::{MsKey, Space};
use ondisk::config::{VdevConfig, VdevType};
use ondisk::label::{leaf_asize, usable_size};
use vdev::AllocClass;

use super::super::Writer;
use super::super::config::is_concrete;
use super::super::ledger::Ledger;
use super::super::tasks::TaskCx;
use super::super::topology::{TreeChange, find_mut};
use super::EmptyRange;

/// The smallest device (chapter 01 §1).
const DEVICE_MIN: u64 = 64 << 20;
/// Txgs after which no log is older than the end of the last change.
const FLUSH_TXGS: u32 = 12;

/// What a vdev is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShrinkPlan {
    /// What is emptied.
    pub range: EmptyRange,
    /// Metaslabs that stay.
    pub metaslabs: u64,
    /// The new size of the vdev.
    pub asize: u64,
}

/// Metaslabs from which nothing is allocated as long as this lives.
pub struct ExcludedSpace {
    space: Arc<Space>,
    ledger: Arc<Ledger>,
    keys: Vec<MsKey>,
}

impl Drop for ExcludedSpace {
    fn drop(&mut self) {
        // They may have been cut off.
        let there = |key: &&MsKey| {
            let all = self.space.metaslabs(key.vdev).unwrap_or_default();
            key.ms < all.len() as u64
        };
        if self.keys.last().iter().all(there) {
            for &key in &self.keys {
                let _there = self.space.disable(key, false);
            }
        }
        self.ledger.set_excluded(0, 0);
    }
}

impl std::fmt::Debug for ExcludedSpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ExcludedSpace").field(&self.keys.len()).finish()
    }
}

fn plan_of(top: &VdevConfig, size: u64) -> Option<ShrinkPlan> {
    let space = top.top.as_ref()?;
    let leaf = leaf_asize(usable_size(size))?;
    let width = if top.kind == VdevType::Raidz { top.children.len() as u64 } else { 1 };
    let asize = leaf.checked_mul(width)?;
    let metaslabs = asize.checked_shr(space.metaslab_shift)?;
    let from = metaslabs.checked_shl(space.metaslab_shift)?;
    let range = EmptyRange { vdev: VdevId(top.id), from, to: u64::MAX };
    Some(ShrinkPlan { range, metaslabs, asize })
}

impl Writer {
    /// What shrinking a top-level vdev to devices of `size` bytes would cut off; `None` if it is
    /// that small already. Without `room` also if there is too little space for what is in it.
    ///
    /// # Errors
    /// `NotFound`; `Unsupported` for what has no space of its own, log vdevs and dRAID; `Invalid`
    /// for an impossible size, and while property autoexpand is on; `NoSpace`; `Busy` as
    /// [`Writer::check_relocation`], and while devices are replaced, rebuilt, initialized or
    /// trimmed.
    pub fn check_shrink(&self, guid: Guid, size: u64, room: bool) -> Result<Option<ShrinkPlan>> {
        let config = self.published().config;
        let top = config.vdev_tree.children.iter().find(|v| v.find(guid).is_some());
        let top = top.ok_or_else(|| Error::not_found("no such device in pool"))?;
        let space = top.top.clone().unwrap_or_default();
        if top.guid != guid || !is_concrete(top) || space.is_log || space.metaslab_shift == 0 {
            return Err(Error::unsupported("operation not supported on this type of vdev"));
        }
        if top.kind == VdevType::Draid {
            return Err(Error::unsupported("a dRAID cannot be shrunk"));
        }
        if self.pool_flag("autoexpand") {
            return Err(Error::invalid("property autoexpand is on: the vdev would grow again"));
        }
        let plan = plan_of(top, size).filter(|plan| size >= DEVICE_MIN && plan.metaslabs > 0);
        let plan = plan.ok_or_else(|| Error::invalid("the size is too small"))?;
        let now = space.asize.checked_shr(space.metaslab_shift).unwrap_or(0);
        if plan.metaslabs > now {
            return Err(Error::invalid("the vdev is smaller than that"));
        }
        if plan.metaslabs == now {
            return Ok(None);
        }
        self.check_emptying(top)?;
        let tree = self.zio.tree();
        let leads_there = |id: VdevId| {
            let map = tree.indirect(id);
            map.is_some_and(|map| {
                map.entries().iter().any(|entry| {
                    let end = entry.dst_offset.saturating_add(entry.len);
                    entry.dst_vdev == plan.range.vdev && end > plan.range.from
                })
            })
        };
        if tree.top_ids().any(leads_there) {
            return Err(Error::unsupported("blocks of a removed device are at its end"));
        }
        drop(tree);
        if room {
            self.check_shrink_room(&plan)?;
        }
        Ok(Some(plan))
    }

    /// Fails if there is no room for what is in the range.
    fn check_shrink_room(&self, plan: &ShrinkPlan) -> Result<()> {
        let allocated = self.emptying_allocated(plan.range)?;
        let (mut free, mut cut) = (0u64, 0u64);
        for vdev in self.same_kind(plan.range.vdev).into_iter().chain([plan.range.vdev]) {
            for ms in self.space.metaslabs(vdev)? {
                let leaves = vdev == plan.range.vdev && ms.seg.start >= plan.range.from;
                let sum = if leaves { &mut cut } else { &mut free };
                *sum = sum.saturating_add(if leaves { ms.seg.len } else { ms.free });
            }
        }
        let normal = self.zio.tree().top(plan.range.vdev)?.class() == AllocClass::Normal;
        match allocated < free && (!normal || cut < self.allocatable(false)) {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::NoSpace, "out of space")),
        }
    }

    /// Excludes the end of a vdev from allocation. When this returns, everything that was
    /// allocated there is on its devices, and no intent log continues there.
    ///
    /// # Errors
    /// `Corrupt` if there is no such vdev; those of a suspension.
    pub fn exclude_range(&self, range: EmptyRange) -> Result<ExcludedSpace> {
        let mut excluded = ExcludedSpace {
            space: Arc::clone(&self.space),
            ledger: Arc::clone(&self.ledger),
            keys: Vec::new(),
        };
        for ms in self.space.metaslabs(range.vdev)? {
            if ms.seg.start >= range.from {
                self.space.disable(ms.key, true)?;
                excluded.keys.push(ms.key);
            }
        }
        self.note_emptying(range)?;
        self.passivated()?;
        Ok(excluded)
    }

    /// Cuts off the empty end of a vdev. Nothing is allocated there meanwhile
    /// ([`Writer::exclude_range`]).
    ///
    /// # Errors
    /// As [`Writer::check_shrink`]; `Busy` if something is there; those of a suspension.
    pub fn end_shrink(&self, guid: Guid, size: u64) -> Result<()> {
        let Some(plan) = self.check_shrink(guid, size, false)? else { return Ok(()) };
        let check = move |cx: &mut TaskCx<'_>| match cx.writer.emptying_left(plan.range)? {
            0 => Ok(()),
            _ => Err(Error::busy("the end of the vdev is not empty")),
        };
        let flush = |cx: &mut TaskCx<'_>, ()| {
            cx.state.flush_all = !cx.writer.plants.emptying.unflushed_cut.load(Relaxed);
            Ok(cx.cx.txg)
        };
        let (empty_since, _) = self.sync_task(check, flush)?;
        for _ in 0..FLUSH_TXGS {
            if self.cut(guid, size, empty_since)? {
                return Ok(());
            }
        }
        Err(Error::busy("changes of the end of the vdev are still logged"))
    }

    /// The txg that makes it smaller; false if a log is too old.
    fn cut(&self, guid: Guid, size: u64, empty_since: Txg) -> Result<bool> {
        let check = move |cx: &mut TaskCx<'_>| {
            let plan = cx.writer.check_shrink(guid, size, false)?;
            let plan = plan.ok_or_else(|| Error::busy("it was shrunk meanwhile"))?;
            match cx.writer.emptying_left(plan.range)? {
                0 => Ok(plan),
                _ => Err(Error::busy("the end of the vdev is not empty")),
            }
        };
        let act = move |cx: &mut TaskCx<'_>, plan: ShrinkPlan| {
            let oldest = cx.state.maps.oldest_log();
            let planted = cx.writer.plants.emptying.unflushed_cut.load(Relaxed);
            if oldest.is_some_and(|log| log < empty_since) && !planted {
                cx.state.flush_all = true;
                return Ok(false);
            }
            let vdev = plan.range.vdev;
            let past = cx.writer.space.metaslabs(vdev)?.len() as u64;
            cx.cut_maps(vdev, plan.metaslabs, past)?;
            let top = find_mut(&mut cx.config().vdev_tree, guid);
            if let Some(space) = top.and_then(|top| top.top.as_mut()) {
                space.asize = plan.asize;
            }
            cx.publish(TreeChange::default(), &|_| {})?;
            cx.writer.space.shrink_vdev(vdev, plan.metaslabs)?;
            let text = format!("{} vdev {vdev} to {} bytes", cx.writer.name(), plan.asize);
            cx.log_internal("vdev shrink", None, &text)?;
            Ok(true)
        };
        self.sync_task(check, act).map(|(done, _)| done)
    }
}
