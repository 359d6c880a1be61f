//! What an emptied vdev must be like, and the txg that makes a hole of it.

use base::{Error, ErrorKind, Guid, Psize, Result, Txg, VdevId};
use nvlist::NvList;
use ondisk::config::{VdevConfig, VdevType};
use vdev::{Tree, VdevKind};

use super::super::Writer;
use super::super::config::is_concrete;
use super::super::maps::VdevObjects;
use super::super::tasks::TaskCx;
use super::EmptyRange;
use crate::write::labels;

/// In OpenZFS's words.
const NOT_SUPPORTED: &str = "operation not supported on this type of pool";
/// Stored sizes for which two vdevs are compared: all multiples of a sector up to this one.
const COMPARED: u64 = 128 << 10;
const SECTOR: u64 = 512;

/// Whether copies of all blocks of a vdev can be on another one and count the same.
fn is_same_kind(tree: &Tree, a: VdevId, b: VdevId) -> bool {
    let (Ok(one), Ok(other)) = (tree.top(a), tree.top(b)) else { return false };
    let asize = |vdev, psize| tree.asize(vdev, Psize(psize), Txg::MAX).ok();
    one.class() == other.class()
        && one.is_log() == other.is_log()
        && tree.deflate_ratio(a).ok() == tree.deflate_ratio(b).ok()
        && (1..=COMPARED / SECTOR).all(|n| asize(a, n * SECTOR) == asize(b, n * SECTOR))
}

impl Writer {
    /// Whether a vdev of this pool is removed by moving its blocks: there is a raidz or dRAID,
    /// which a removal with a mapping excludes.
    pub fn removal_moves_blocks(&self) -> bool {
        let config = self.published().config;
        let has_parity = |v: &VdevConfig| matches!(v.kind, VdevType::Raidz | VdevType::Draid);
        config.vdev_tree.children.iter().any(|v| is_concrete(v) && has_parity(v))
    }

    /// The top-level vdevs on which blocks of a vdev may be placed.
    pub fn same_kind(&self, vdev: VdevId) -> Vec<VdevId> {
        let tree = self.zio.tree();
        let usable = |id: &VdevId| {
            *id != vdev && self.space.is_allocating(*id) && is_same_kind(&tree, vdev, *id)
        };
        tree.top_ids().filter(usable).collect()
    }

    /// Whether a vdev, whose guid this is, can leave the pool as soon as it is empty; without
    /// `room` also if the others have too little space, because a part has moved already.
    ///
    /// # Errors
    /// `NotFound`; `Unsupported` for what is no vdev with data, and for dRAID and raidz that
    /// were expanded; `Invalid` if no other vdev is of its kind; `NoSpace`; `Busy` as
    /// [`Writer::check_relocation`], and while devices are replaced, rebuilt, initialized or
    /// trimmed.
    pub fn check_emptied_removal(&self, guid: Guid, room: bool) -> Result<VdevId> {
        let config = self.published().config;
        let top = config.vdev_tree.children.iter().find(|v| v.find(guid).is_some());
        let top = top.ok_or_else(|| Error::not_found("no such device in pool"))?;
        let space = top.top.clone().unwrap_or_default();
        let id = VdevId(top.id);
        if top.guid != guid || !is_concrete(top) || space.is_log {
            return Err(Error::unsupported(NOT_SUPPORTED));
        }
        if top.kind == VdevType::Draid {
            return Err(Error::unsupported("blocks are not moved away from dRAID"));
        }
        self.check_emptying(top)?;
        let tree = self.zio.tree();
        if let VdevKind::Raidz { expand_txgs, .. } = tree.top(id)?.kind()
            && !expand_txgs.is_empty()
        {
            return Err(Error::unsupported("a raidz that was expanded cannot be removed"));
        }
        drop(tree);
        if room {
            self.check_same_kind_room(id)?;
        }
        Ok(id)
    }

    /// Fails if the vdevs of the same kind have no room for what is on this one.
    fn check_same_kind_room(&self, id: VdevId) -> Result<()> {
        let others = self.same_kind(id);
        if others.is_empty() {
            let text = "no other vdev of the same kind could take its blocks";
            return Err(Error::invalid(text));
        }
        let free = |vdev: &VdevId| {
            let totals = self.space.vdev_totals(*vdev).unwrap_or_default();
            totals.capacity.saturating_sub(totals.allocated)
        };
        let free = others.iter().map(free).fold(0, u64::saturating_add);
        if self.space.vdev_totals(id)?.allocated >= free {
            let text = "the vdevs of the same kind have too little free space";
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        self.check_room_for(id)
    }

    /// Removes an empty vdev from the pool: one txg makes a hole of it.
    ///
    /// # Errors
    /// As [`Writer::check_emptied_removal`]; `Busy` if something is on it; those of a suspension.
    pub fn end_emptied_removal(&self, guid: Guid) -> Result<()> {
        let id = self.check_emptied_removal(guid, false)?;
        let config = self.published().config;
        let top = config.vdev_tree.children.iter().find(|v| v.id == id.0).cloned();
        let top = top.ok_or_else(|| Error::not_found("no such device in pool"))?;
        let tree = self.zio.tree();
        let leaves = top.leaves().map(|leaf| leaf.guid);
        let devices: Vec<_> =
            leaves.filter_map(|leaf| tree.find(leaf)?.device().cloned()).collect();
        drop(tree);
        let check = move |cx: &mut TaskCx<'_>| {
            let writer = cx.writer;
            writer.check_emptied_removal(guid, false)?;
            let planted =
                writer.plants.emptying.early_hole.load(std::sync::atomic::Ordering::Relaxed);
            if writer.emptying_left(EmptyRange::whole(id))? > 0 && !planted {
                return Err(Error::busy("the vdev is not empty"));
            }
            let tops = &cx.state.config.vdev_tree.children;
            let space = tops.iter().find(|v| v.id == id.0).and_then(|v| v.top.clone());
            let space = space.filter(|space| space.non_allocating);
            cx.objects_of(&space.ok_or_else(|| Error::busy("the vdev is allocated from"))?)
        };
        let act = move |cx: &mut TaskCx<'_>, objects: VdevObjects| {
            cx.drop_top(id.0, &objects)?;
            cx.writer.ledger.set_leaving(None);
            Ok(())
        };
        self.sync_task(check, act)?;
        // A missing device has no label to wipe.
        let _wiped = devices.iter().map(|d| labels::clear(&**d)).filter(Result::is_ok).count();
        let mut values = NvList::new();
        values.add_u64("vdev_guid", guid.0);
        self.sysevent("vdev_remove_dev", &values);
        Ok(())
    }
}
