//! Changing the vdev tree while the pool is used: offline and online, attach, detach, replace,
//! spares, expansion (chapter 01 §1, §4; chapter 05 §8; chapter 09 §4).
//!
//! # Theory
//! Each change is a sync task. In the txg T that the sync thread writes, it edits the
//! configuration, builds a new [`vdev::Tree`] from it and publishes that tree. The same txg
//! writes the configuration object, the labels of all leaves and the uberblock with the new
//! guid sum. New leaves get labels of txg 0 before.
//!
//! *DTLs.* A write is planned on the tree that is published when it is submitted, and every
//! leaf of that tree that does not get its part has the block's birth added to its missing
//! txgs. The sync thread stores them in the txg that commits the block (`config`). So a leaf
//! that is out of use misses exactly the births of the blocks written meanwhile.
//!
//! A new leaf has nothing: its DTL is [4, T + 3). While the sync thread writes T, at most T + 1
//! and T + 2 are open or quiescing. So every write that was planned on an older tree has a
//! birth of at most T + 2. Hence each block is on the new leaf or its birth is in the leaf's
//! DTL, and no stale byte is ever taken for a good one. The DTL is set before the tree is
//! published. The resilver begins after T + 2 (`resilver_request`), so it sees all of these
//! blocks.
//!
//! *Leaves that leave.* A leaf whose bytes are needed stays: [`required`] computes from the
//! DTLs which txgs the top-level vdev would lack without it. A write that failed on
//! its neighbour could still count as written because this leaf took it. Therefore a leaf that
//! is detached is first taken out of use, in memory only, and the txgs that are open at that
//! time are synced: all writes that were planned with it are over then. Then its neighbours'
//! DTLs are judged, and one txg removes it.
//!
//! *Interior vdevs.* Attaching to a leaf puts a new mirror, `replacing` or `spare` vdev in its
//! place. An interior vdev with one child left is replaced by this child. A child that becomes
//! a top-level vdev takes over the guid of its mirror (chapter 01 §4.4): otherwise a device
//! that was absent meanwhile would look like another top-level vdev. Its own guid stays in its
//! label as `orig_guid` until the next import.
//!
//! # Crash argument
//! Before the uberblock of T is on a device, the MOS configuration is the old one. The odd
//! labels are still old; the even ones may be new, but identify the same leaves: by guid, by
//! `top_guid`, or by `orig_guid`. A new leaf is not in the old configuration. From the
//! uberblock of T on, the new configuration is complete, with the new leaf's DTL in it. A leaf
//! that left has its labels wiped after T is durable; before, its guid is in no configuration.
//!
//! # States of a leaf
//! ```text
//! in use -- offline, fault, write errors --> out of use -- online, clear --> in use, behind
//! new ----- attach, replace, spare ------------------------------------> in use, behind
//! in use, behind -- resilver ends --> in use
//! ```
//! A leaf that is behind is written at once and read only for births that it does not miss.
//! States that are not in the configuration (temporarily offline, faulted by errors,
//! unavailable) are in the published tree, and each change carries them over
//! ([`TreeChange`]).
//!
//! # Invariants
//! * A request that is refused changes nothing. Labels of txg 0 on a device that was to be
//!   added belong to no pool.
//! * Every leaf of the configuration has a node in the published tree, and the other way round.
//!
//! # Departures from OpenZFS
//! * A device that the pool cannot spare is not faulted: OpenZFS marks it degraded.
//!
//! Lock order: none of its own; tasks run with `state` and `names` held.

mod attach;
mod detach;
mod edit;
pub(crate) mod expand;
mod leaving;
mod settle;
mod spares;
mod split;
mod state;

use std::sync::Arc;

use base::planted::BugSwitch;
use base::{Error, Guid, Result, Txg, VdevId};
use ondisk::config::VdevConfig;
use vdev::{Aux, LeafSpec, Node, Persistent, Spec, State, Tree, TxgRanges, VdevKind, Verdict};

use super::config::is_concrete;
use super::open::class_for;
use super::pools::Devices;
use super::tasks::TaskCx;
use crate::specs::{self, Extra};

pub use attach::{AttachMode, NewMember};
pub(super) use attach::{everything_before, label_new, name_of};
pub(super) use edit::{find_mut, top_of};
pub(crate) use split::split_tree;
pub use split::{SplitDevice, leaves_to_split};
pub(super) use state::TopologyState;
pub use state::{Offline, OfflineMode};

/// Planted bugs ([`base::planted`]).
#[derive(Debug, Default)]
pub struct TopologyPlants {
    /// A new leaf does not miss what was planned before the txg that attaches it.
    pub short_dtl: BugSwitch,
    /// What leaves miss is not stored.
    pub lost_dtl: BugSwitch,
    /// The first of the txgs that a leaf misses is not stored.
    pub forgotten_range: BugSwitch,
}

/// How a new tree differs from the published one, besides the configuration.
#[derive(Clone, Copy, Default)]
pub(super) struct TreeChange<'a> {
    /// Open devices of leaves that are new or return.
    pub(super) devices: Option<&'a Devices>,
    /// Leaves whose present state is not carried over.
    pub(super) forget: &'a [Guid],
    /// Leaves that are taken offline or faulted in memory alone.
    pub(super) mark: &'a [(Guid, State)],
    /// A leaf whose device could not be opened, and why.
    pub(super) failed: Option<&'a (Guid, Error)>,
    /// A leaf that gets another guid: the former one and the new one.
    pub(super) renamed: Option<(Guid, Guid)>,
}

fn for_each_spec(spec: &mut Spec, f: &mut impl FnMut(&mut Spec)) {
    f(spec);
    spec.children.iter_mut().for_each(|child| for_each_spec(child, f));
}

impl TaskCx<'_> {
    /// The tree of the current configuration: with the devices that are open, and `devices`
    /// for new leaves. Each vdev keeps its class, which only its ZAP records.
    ///
    /// # Errors
    /// `Corrupt` for a configuration that makes no tree.
    pub(super) fn changed_tree(&self, devices: &Devices) -> Result<Arc<Tree>> {
        self.tree_with(TreeChange { devices: Some(devices), ..TreeChange::default() })
    }

    /// As [`TaskCx::changed_tree`], with changes of the states of leaves.
    ///
    /// # Errors
    /// As there.
    pub(super) fn tree_with(&self, change: TreeChange<'_>) -> Result<Arc<Tree>> {
        self.tree_over(&self.writer.zio.tree(), change)
    }

    /// The tree of the current configuration with these changes, as a successor of `old`.
    fn tree_over(&self, old: &Tree, change: TreeChange<'_>) -> Result<Arc<Tree>> {
        let mut spec = specs::trusted(&self.state.config.vdev_tree, Extra::default())?;
        for (top, spec) in self.state.config.vdev_tree.children.iter().zip(&mut spec.children) {
            let id = VdevId(top.id);
            // A new vdev without a bias has the class of the configuration.
            let bias = self.state.new_vdevs.get(&id).copied().flatten();
            if (old.top(id).is_ok() || bias.is_some()) && is_concrete(top) {
                spec.class = class_for(old, &self.state.new_vdevs, id)?;
            }
        }
        // Until the txg that ends it is durable, an expansion goes on in memory.
        if let Some((id, expand_txgs)) = self.writer.ending_expansion()
            && let Some(top) = spec.children.iter_mut().find(|top| top.id == u64::from(id.0))
            && let VdevKind::Raidz { expand_txgs: known, reflow, .. } = &mut top.kind
            && *known == expand_txgs
        {
            known.pop();
            *reflow = Some(vdev::Reflow::default());
        }
        let new_device = |guid: Guid| change.devices.and_then(|d| d.get(&guid)).cloned();
        let before = self.writer.published().config;
        // The guid that a leaf had before.
        let former = |guid: Guid| match change.renamed {
            Some((from, to)) if to == guid => from,
            _ => guid,
        };
        let known = |guid: Guid| old.find(former(guid)).filter(|node| node.is_leaf());
        let kept = |guid: Guid| {
            let same = known(guid).filter(|_| new_device(guid).is_none());
            same.filter(|_| !change.forget.contains(&guid))
        };
        for_each_spec(&mut spec, &mut |leaf: &mut Spec| {
            if let Some(node) = kept(leaf.guid) {
                let (was, now) = (node.persistent(), &mut leaf.persistent);
                now.offline |= was.offline;
                now.faulted |= was.faulted;
                now.external |= was.external;
                // Where the import found it, unless this change moves it.
                let path = |root: &VdevConfig, guid| root.find(guid).and_then(|v| v.path.clone());
                if node.device().is_some()
                    && path(&before.vdev_tree, former(leaf.guid))
                        == path(&self.state.config.vdev_tree, leaf.guid)
                {
                    leaf.path = node.path().map(str::to_owned);
                }
            }
            // `zpool clear` came first; the configuration follows in the next txg.
            if self.writer.topology.is_repaired(leaf.guid) {
                let offline = leaf.persistent.offline;
                leaf.persistent = Persistent { offline, ..Persistent::default() };
            }
            match change.mark.iter().find(|(guid, _)| *guid == leaf.guid).map(|m| m.1) {
                Some(State::Faulted) => {
                    (leaf.persistent.faulted, leaf.persistent.external) = (true, true);
                }
                Some(_) => leaf.persistent.offline = true,
                None => {}
            }
        });
        let open = |leaf: &LeafSpec| {
            if let Some((_, why)) = change.failed.filter(|(guid, _)| *guid == leaf.guid) {
                return Err(Error::new(why.kind(), why.message()));
            }
            let device = new_device(leaf.guid)
                .or_else(|| known(leaf.guid).and_then(|node| node.device().cloned()));
            device.ok_or_else(|| Error::not_found("no such device"))
        };
        let tree = Tree::build_from(Some(old), &spec, &open)?;
        if let Some((from, to)) = change.renamed
            && let Some(was) = old.find(from)
        {
            tree.set_dtl(to, TxgRanges::clone(&was.dtl()));
            tree.set_deferred(to, was.is_deferred());
        }
        let states = |(_, node): (_, &Node)| {
            let was = kept(node.guid()).filter(|was| was.state() != State::Online)?;
            let closed = node.persistent().keeps_closed() || was.persistent().keeps_closed();
            let (state, aux) = (was.state(), was.aux().clone());
            // What the configuration says, the tree has already.
            let carried = !closed && *was.aux() != Aux::Persistent;
            (carried && node.is_leaf()).then_some(Verdict { guid: node.guid(), state, aux })
        };
        let verdicts: Vec<Verdict> = tree.nodes().filter_map(states).collect();
        Ok(if verdicts.is_empty() { tree } else { tree.with_verdicts(&verdicts) })
    }

    /// Publishes the tree of the current configuration with these changes; `ready` is called
    /// with it before. Other threads may publish trees at the same time: the result is based on
    /// the last one.
    ///
    /// # Errors
    /// As [`TaskCx::changed_tree`].
    pub(super) fn publish(
        &mut self,
        change: TreeChange<'_>,
        ready: &dyn Fn(&Tree),
    ) -> Result<Arc<Tree>> {
        loop {
            let old = self.writer.zio.tree();
            let tree = self.tree_over(&old, change)?;
            ready(&tree);
            if self.writer.replace_tree(&old, Arc::clone(&tree)) {
                self.writer.space_io.forget_limits();
                return Ok(tree);
            }
        }
    }
}

/// The txgs that at least `k` of the sets contain.
pub(super) fn at_least(k: usize, sets: &[TxgRanges]) -> TxgRanges {
    let ranges = || sets.iter().flat_map(|set| set.ranges());
    let mut edges: Vec<(u64, i32)> = ranges().map(|r| (r.0.0, 1)).collect();
    // A set that ends with the last txg has no end.
    edges.extend(ranges().filter_map(|r| Some((r.1.0.checked_add(1)?, -1))));
    edges.sort_unstable_by_key(|&(at, step)| (at, -step));
    let (mut depth, mut since, mut out) = (0i64, None, Vec::new());
    for (at, step) in edges {
        depth += i64::from(step);
        let inside = depth >= k as i64;
        match since {
            None if inside => since = Some(at),
            Some(start) if !inside => {
                out.push((Txg(start), Txg(at - 1)));
                since = None;
            }
            _ => {}
        }
    }
    out.extend(since.map(|start| (Txg(start), Txg::MAX)));
    TxgRanges::new(out)
}

/// The txgs of which a vdev cannot give all data, without the leaf `without`.
fn lacking(tree: &Tree, node: &Node, without: Option<Guid>) -> TxgRanges {
    let all = || TxgRanges::new(vec![(Txg::ZERO, Txg::MAX)]);
    let tolerated = match node.kind() {
        VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => {
            node.children().len().saturating_sub(1)
        }
        VdevKind::Raidz { nparity, .. } => usize::from(*nparity),
        VdevKind::Draid(params) => params.nparity as usize,
        VdevKind::Root => 0,
        VdevKind::Hole | VdevKind::Indirect => return TxgRanges::default(),
        VdevKind::Disk | VdevKind::File | VdevKind::DraidSpare { .. } | VdevKind::Missing => {
            let usable = node.readable() && Some(node.guid()) != without;
            return if usable { TxgRanges::clone(&node.dtl()) } else { all() };
        }
    };
    let sets: Vec<TxgRanges> =
        node.children().iter().map(|&c| lacking(tree, tree.node(c), without)).collect();
    at_least(tolerated + 1, &sets)
}

/// Whether some data is on no other leaf, or cannot be computed from others.
pub(super) fn required(tree: &Tree, guid: Guid) -> bool {
    let top = tree.find(guid).and_then(|node| tree.top(node.top()).ok());
    top.is_some_and(|top| !lacking(tree, top, Some(guid)).ranges().is_empty())
}

/// A leaf or other vdev that the pool does not have.
pub(super) fn no_such_device() -> Error {
    Error::not_found("no such device in pool")
}

pub(super) fn no_replicas() -> Error {
    Error::busy("no valid replicas")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[(u64, u64)]) -> TxgRanges {
        TxgRanges::new(ranges.iter().map(|&(a, b)| (Txg(a), Txg(b))).collect())
    }

    #[test]
    fn sets_are_counted() {
        let sets = [set(&[(4, 9), (20, 30)]), set(&[(8, 22)]), set(&[(9, 9), (22, u64::MAX)])];
        assert_eq!(at_least(1, &sets), set(&[(4, u64::MAX)]));
        assert_eq!(at_least(2, &sets), set(&[(8, 9), (20, 30)]));
        assert_eq!(at_least(3, &sets), set(&[(9, 9), (22, 22)]));
        assert_eq!(at_least(4, &sets), set(&[]));
        let touching = [set(&[(1, 5)]), set(&[(6, 8)])];
        assert_eq!(at_least(1, &touching), set(&[(1, 8)]));
        assert_eq!(at_least(2, &touching), set(&[]));
    }
}
