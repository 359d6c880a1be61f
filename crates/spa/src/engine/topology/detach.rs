//! Detaching: a leaf leaves its mirror, `replacing` or `spare` vdev for good.
//!
//! # Theory
//! The module head above has the argument: first the leaf is out of use in memory
//! until the txgs that are open then are synced, then the DTLs of its neighbours are judged,
//! then one txg removes it, with its ZAP and DTL. When that is durable, the device's labels are
//! wiped, or become those of an unused spare again.
//!
//! # Invariants
//! * A refusal puts the leaf back into use. It misses what was written meanwhile.
//! * One leaf of the pool is detached at a time.
//!
//! Lock order: `detaching` is taken before any other lock of the pool, and held while txgs are
//! waited for.

use base::{Error, Guid, Result, VdevId};
use device::Device;
use dsl::write::store::DIRECTORY;
use ondisk::config::{PoolState, VdevConfig, VdevType};
use vdev::{Aux, LeafSpec, State, Tree, VdevKind, Verdict};

use super::super::Writer;
use super::super::config::ZAP_MAP;
use super::super::tasks::{Command, TaskCx};
use super::{TreeChange, edit, for_each_spec, no_replicas, no_such_device, required};
use crate::write::config::aux;
use crate::write::labels;

/// Whether a vdev can be detached; the vdev that it leaves.
fn check(cx: &TaskCx<'_>, guid: Guid) -> Result<()> {
    let root = &cx.state.config.vdev_tree;
    let leaf = root.find(guid).filter(|v| v.kind != VdevType::Root).ok_or_else(no_such_device)?;
    let (parent, at) = edit::parent_of(root, guid).ok_or_else(no_such_device)?;
    if !leaf.kind.is_leaf() || !parent.kind.is_mirror_like() {
        return Err(Error::unsupported("only applicable to mirror and replacing vdevs"));
    }
    cx.check_no_checkpoint()?;
    if parent.children.len() < 2 || required(&cx.writer.zio().tree(), guid) {
        return Err(no_replicas());
    }
    // A distributed spare is no place for good: its dRAID needs it back.
    let stays = |v: &VdevConfig| v.leaves().all(|l| l.kind == VdevType::DraidSpare);
    let others = || parent.children.iter().enumerate().filter(|(i, _)| *i != at);
    if parent.kind == VdevType::Spare && others().all(|(_, v)| stays(v)) {
        let text = "a distributed spare cannot become permanent; replace the device instead";
        return Err(Error::unsupported(text));
    }
    Ok(())
}

impl TaskCx<'_> {
    /// Takes a leaf out of use in memory, with its device open.
    fn suspend_leaf(&mut self, guid: Guid) -> Result<()> {
        let now = self.writer.zio.tree();
        let distributed =
            now.find(guid).is_some_and(|node| matches!(node.kind(), VdevKind::DraidSpare { .. }));
        if distributed {
            let mark = [(guid, State::Offline)];
            return self
                .publish(TreeChange { mark: &mark, ..TreeChange::default() }, &|_| {})
                .map(drop);
        }
        let verdict = [Verdict { guid, state: State::Offline, aux: Aux::None }];
        self.writer.change_tree(|now| Some(now.with_verdicts(&verdict)));
        self.writer.space_io.forget_limits();
        Ok(())
    }

    /// Removes a leaf from the configuration; returns its configuration.
    pub(super) fn detach(&mut self, guid: Guid) -> Result<VdevConfig> {
        let old = self.writer.zio.tree();
        let root = &self.state.config.vdev_tree;
        let (parent, at) = edit::parent_of(root, guid).ok_or_else(no_such_device)?;
        let (parent_kind, parent_guid) = (parent.kind, parent.guid);
        let top = edit::top_of(root, guid).map(|top| VdevId(top.id));
        let left: Vec<Guid> =
            parent.children.iter().map(|c| c.guid).filter(|g| *g != guid).collect();
        let is_top = root.children.iter().any(|top| top.guid == parent_guid);
        let original_leaves = parent_kind == VdevType::Spare && at == 0;
        let gone = edit::detach(&mut self.config().vdev_tree, guid).ok_or_else(no_such_device)?;
        // The last child of a top-level vdev has the guid of that vdev now.
        let renamed = match left.as_slice() {
            [one] if is_top => old.find(*one).filter(|node| node.is_leaf()),
            _ => None,
        };
        let renamed = renamed.map(|node| (node.guid(), parent_guid));
        if let [one] = left.as_slice() {
            let one = if is_top { parent_guid } else { *one };
            self.settle_child(one, parent_kind, original_leaves)?;
        }
        self.drop_leaf(&gone)?;
        self.state.missed.retain(|(leaf, _)| *leaf != guid);
        self.publish(TreeChange { renamed, ..TreeChange::default() }, &|_| {})?;
        if let Some(top) = top {
            self.leaf_left_rebuild(top)?;
        }
        let path = gone.path.as_ref().and_then(|p| p.to_str()).unwrap_or_default();
        self.log_internal("detach", None, &format!("vdev={path}"))?;
        Ok(gone)
    }

    /// The last child of a vdev that is no more: a spare whose original left is an ordinary
    /// member; an original whose spare left needs none; a successor below a spare releases it.
    fn settle_child(&mut self, guid: Guid, was: VdevType, original_left: bool) -> Result<()> {
        let tree = &mut self.config().vdev_tree;
        let spared = edit::parent_of(tree, guid)
            .is_some_and(|(parent, at)| parent.kind == VdevType::Spare && at == 0);
        let Some(vdev) = edit::find_mut(tree, guid) else { return Ok(()) };
        if !vdev.kind.is_leaf() {
            return Ok(());
        }
        match was {
            VdevType::Spare => {
                vdev.leaf.unspare = false;
                if original_left && vdev.leaf.is_spare {
                    vdev.leaf.is_spare = false;
                    let listed = vdev.orig_guid.unwrap_or(guid);
                    return self.unlist_spare(listed);
                }
            }
            VdevType::Replacing => vdev.leaf.unspare |= spared,
            _ => {}
        }
        Ok(())
    }

    /// Frees the objects of a leaf that left.
    pub(super) fn drop_leaf(&mut self, leaf: &VdevConfig) -> Result<()> {
        let (zap, dtl) = edit::leaf_objects(leaf);
        let map = self.read().number(DIRECTORY, ZAP_MAP)?;
        self.drop_zap(map, zap)?;
        dtl.map_or(Ok(()), |dtl| super::super::maps::free_map(self.sync, dtl.0))
    }
}

impl Writer {
    /// Detaches a device from its mirror, `replacing` or `spare` vdev (`zpool detach`). Its
    /// labels are wiped; a spare can be used again.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`; `Unsupported` for a vdev elsewhere; `Busy` when data
    /// is on no other device; those of a suspension.
    pub fn detach(&self, guid: Guid, command: Option<Command>) -> Result<()> {
        let _alone = self.topology.detaching.lock();
        let device = self.zio.tree().find(guid).and_then(|node| node.device().cloned());
        let suspended = match self.suspend_leaf(guid) {
            Ok(suspended) => suspended,
            Err(e) => {
                // The pool may have been suspended after the leaf was.
                self.use_again(guid);
                return Err(e);
            }
        };
        let removed = self.wait_for_writes().and_then(|()| {
            self.sync_task(
                move |cx| check(cx, guid),
                move |cx, ()| {
                    let gone = cx.detach(guid)?;
                    command.map_or(Ok(()), |c| cx.log_command(&c))?;
                    Ok(gone)
                },
            )
        });
        match removed {
            Ok((gone, _)) => {
                if let Some(device) = device {
                    release_labels(&gone, &*device);
                }
                Ok(())
            }
            Err(e) => {
                if suspended {
                    self.use_again(guid);
                }
                Err(e)
            }
        }
    }

    /// Takes a leaf out of use; false if it was so already.
    fn suspend_leaf(&self, guid: Guid) -> Result<bool> {
        let in_use = move |cx: &mut TaskCx<'_>| {
            check(cx, guid)?;
            Ok(cx.writer.zio.tree().find(guid).is_some_and(|node| node.readable()))
        };
        let suspend = move |cx: &mut TaskCx<'_>, in_use| {
            if in_use {
                cx.suspend_leaf(guid)?;
            }
            Ok(in_use)
        };
        Ok(self.sync_task(in_use, suspend)?.0)
    }

    /// Waits until every write is over that was planned on a tree before the present one.
    pub(super) fn wait_for_writes(&self) -> Result<()> {
        let open = self.txgs.open_txg();
        self.txgs.dirty(open, 0);
        self.txgs.kick(open);
        self.txgs.wait_synced(open)
    }

    /// Takes a leaf back into use that was to be detached and stays. It does not wait: the pool
    /// may be suspended.
    fn use_again(&self, guid: Guid) {
        self.change_tree(|now| {
            let node = now.find(guid).filter(|node| node.state() == State::Offline)?;
            if !matches!(node.kind(), VdevKind::DraidSpare { .. }) {
                let verdict = Verdict { guid, state: State::Online, aux: Aux::None };
                return (!node.persistent().offline).then(|| now.with_verdicts(&[verdict]));
            }
            // Only detaching takes one offline.
            let mut spec = now.spec();
            for_each_spec(&mut spec, &mut |leaf| leaf.persistent.offline &= leaf.guid != guid);
            let open = |leaf: &LeafSpec| {
                let device = now.find(leaf.guid).and_then(|node| node.device().cloned());
                device.ok_or_else(|| Error::not_found("no such device"))
            };
            Tree::build_from(Some(now), &spec, &open).ok()
        });
        self.request_resilver_if_needed();
    }
}

/// Rewrites the labels of a device that left the pool. A failure only makes the device look
/// like a former member.
fn release_labels(gone: &VdevConfig, device: &dyn Device) {
    let _still_labelled = match gone.leaf.is_spare {
        true => labels::init(device, &aux(PoolState::Spare, gone)),
        false => labels::clear(device).map(drop),
    };
}
