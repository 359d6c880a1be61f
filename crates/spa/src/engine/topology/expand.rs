//! Growing: a top-level vdev uses what its devices gained (chapter 01 §1).
//!
//! # Theory
//! A vdev's size is the one in the configuration. It grows on request (`zpool online -e`) and,
//! with property `autoexpand`, when a larger device has replaced the last small one. One txg
//! writes the new size, with the labels at the new ends of the devices. The
//! new metaslabs are used when it is durable.
//!
//! # Invariants
//! * A size grows by whole metaslabs, and never shrinks.
//! * The tree with the new size is published before its space can be allocated.
//! * The rings of the labels at the new ends have the uberblocks of the first label, or nothing.

use std::sync::Arc;

use base::{Guid, Result, VdevId};
use dsl::write::MosRead;
use ondisk::config::PoolConfig;
use vdev::{NodeId, Tree};

use super::super::Writer;
use super::super::config::is_concrete;
use super::super::tasks::{Command, TaskCx};
use super::{TreeChange, edit, no_such_device};
use crate::write::labels;

/// The node of a top-level vdev.
fn top_node(tree: &Tree, id: VdevId) -> Option<NodeId> {
    let guid = tree.top(id).ok()?.guid();
    tree.nodes().find(|(_, node)| node.guid() == guid).map(|(id, _)| id)
}

/// Bytes that a top-level vdev could grow by: whole metaslabs.
pub(crate) fn could_grow(tree: &Tree, id: VdevId, asize: u64, ms_shift: u32) -> u64 {
    // What has no place yet cannot be moved.
    if tree.is_expanding(id) {
        return 0;
    }
    let available = top_node(tree, id).and_then(|node| tree.available(node)).unwrap_or(0);
    let whole = |bytes: u64| bytes.checked_shr(ms_shift).unwrap_or(0) << ms_shift.min(63);
    whole(available).saturating_sub(whole(asize))
}

impl TaskCx<'_> {
    /// Grows a top-level vdev to what its devices have; false if they have no more.
    pub(in super::super) fn expand_top(&mut self, id: VdevId) -> Result<bool> {
        let tree = self.writer.zio.tree();
        let tops = &self.state.config.vdev_tree.children;
        let Some(top) = tops.iter().find(|v| v.id == id.0).cloned() else { return Ok(false) };
        let Some(space) = top.top.filter(|s| s.metaslab_shift != 0 && !s.removing) else {
            return Ok(false);
        };
        let grown = could_grow(&tree, id, space.asize, space.metaslab_shift);
        let available = top_node(&tree, id).and_then(|node| tree.available(node));
        let (Some(asize), true) = (available, grown > 0) else { return Ok(false) };
        if let Some(top) = edit::find_mut(&mut self.config().vdev_tree, top.guid)
            && let Some(space) = &mut top.top
        {
            space.asize = asize;
        }
        self.publish(TreeChange::default(), &|_| {})?;
        self.writer.space.grow_vdev(id, grown >> space.metaslab_shift, self.cx.txg)?;
        Ok(true)
    }
}

impl Writer {
    /// Lets the vdev of a leaf use what its devices gained (`zpool online -e`).
    ///
    /// # Errors
    /// `NotFound`; those of a suspension.
    pub fn expand(&self, leaf: Guid, command: Option<Command>) -> Result<()> {
        let config = Arc::clone(&self.published.read().config);
        let top = edit::top_of(&config.vdev_tree, leaf).ok_or_else(no_such_device)?;
        let id = VdevId(top.id);
        let guids: Vec<Guid> = top.leaves().map(|l| l.guid).collect();
        let act = move |cx: &mut TaskCx<'_>, ()| {
            let tree = cx.writer.zio.tree();
            for node in guids.iter().filter_map(|guid| tree.find(*guid)) {
                let Some(device) = node.device() else { continue };
                let before = device.size();
                // The labels of this txg are written to the new end.
                if device.refresh_size().is_ok_and(|now| now > before) {
                    cx.config();
                    // Without them the first labels are enough.
                    let _unwritten = labels::copy_rings(&**device, node.ashift());
                }
            }
            cx.expand_top(id)?;
            command.map_or(Ok(()), |c| cx.log_command(&c))
        };
        self.sync_task(|_| Ok(()), act).map(|_| ())
    }

    /// Whether a property of the pool, as stored, is on.
    pub fn pool_flag(&self, name: &str) -> bool {
        let mos: &dyn MosRead = &self.mos;
        let zap = mos.directory("pool_props").ok().flatten();
        zap.is_some_and(|zap| mos.number(zap, name).is_ok_and(|v| v == Some(1)))
    }

    /// The vdevs whose devices have more than they use, and the bytes that they could grow by.
    pub fn growth(&self) -> Vec<(VdevId, u64)> {
        let config = Arc::clone(&self.published.read().config);
        let tree = self.zio.tree();
        let tops = config.vdev_tree.children.iter().filter(|v| is_concrete(v));
        let grows = tops.filter_map(|v| {
            let (id, space) = (VdevId(v.id), v.top.as_ref()?);
            let shift = Some(space.metaslab_shift).filter(|shift| *shift != 0)?;
            Some((id, could_grow(&tree, id, space.asize, shift))).filter(|(_, more)| *more > 0)
        });
        grows.collect()
    }

    /// Whether some vdev's devices have room for more metaslabs.
    pub(super) fn may_expand(&self, config: &PoolConfig) -> bool {
        !self.growing(config).is_empty()
    }

    fn growing(&self, config: &PoolConfig) -> Vec<VdevId> {
        let tree = self.zio.tree();
        let grows = |v: &&ondisk::config::VdevConfig| {
            let space = v.top.as_ref().filter(|s| s.metaslab_shift != 0 && !s.removing);
            let more = |s: &ondisk::config::Top| {
                could_grow(&tree, VdevId(v.id), s.asize, s.metaslab_shift)
            };
            is_concrete(v) && space.is_some_and(|s| more(s) > 0)
        };
        config.vdev_tree.children.iter().filter(grows).map(|v| VdevId(v.id)).collect()
    }

    /// Grows all vdevs whose devices have more, if the pool wants it.
    pub(super) fn expand_automatically(&self) {
        let config = Arc::clone(&self.published.read().config);
        let ids = self.growing(&config);
        if ids.is_empty() || !self.pool_flag("autoexpand") {
            return;
        }
        let act = move |cx: &mut TaskCx<'_>, ()| {
            ids.iter().try_for_each(|id| cx.expand_top(*id).map(drop))
        };
        // A pool that is suspended or closed grows another time.
        let _not_now = self.sync_task(|_| Ok(()), act);
    }
}
