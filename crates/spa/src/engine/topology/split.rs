//! Splitting: a device of each mirror leaves the pool and becomes another pool
//! (`zpool split`, chapter 09 §4).
//!
//! # Theory
//! 1. The chosen leaves are taken out of use in one txg T, and their devices are closed. When
//!    the txgs that were open then are over, nothing writes to them any more. Each mirror's other
//!    leaves miss nothing that they have. On the chosen devices the newest uberblock is that of
//!    the txg before T: they are what a crash before T would have left of them, and each of
//!    them missed nothing.
//! 2. That state is opened with a configuration in which each leaf is a top-level vdev of the
//!    new pool, and is written ([`crate::split`]): labels, configuration and uberblock in the
//!    order of any commit.
//! 3. The pool detaches the leaves.
//!
//! # Crash argument
//! Before the commit of step 2 the leaves are members of the pool that were away; they return
//! with the next import, and miss what was written meanwhile. After it they belong to the new
//! pool, whose labels have another pool guid: an import of the old one finds them missing, and
//! the user detaches them. During the commit they may be neither for the moment: some labels
//! are of the new pool, the uberblock is still the old one's. The old pool has all data then,
//! and such a device can be attached to it again.
//!
//! # Invariants
//! * A device is written by one of the two pools at any time.

use std::path::PathBuf;
use std::sync::Arc;

use base::{Error, Guid, Result};
use device::Device;
use ondisk::config::{VdevConfig, VdevType};
use vdev::State;

use super::super::Writer;
use super::super::config::is_concrete;
use super::super::tasks::{Command, TaskCx};
use super::{TreeChange, edit, no_such_device, required};

/// A device that was split off: nothing writes to it.
pub struct SplitDevice {
    /// The guid of its leaf.
    pub guid: Guid,
    /// Where it is.
    pub path: PathBuf,
    /// The device.
    pub device: Arc<dyn Device>,
}

fn not_mirrors() -> Error {
    Error::invalid("Source pool must be composed only of mirrors")
}

/// Whether a top-level vdev has data that a split takes along.
fn is_split(top: &VdevConfig) -> bool {
    is_concrete(top) && !top.top.as_ref().is_some_and(|t| t.is_log)
}

/// The leaves that a split takes: those that are named, and of each other mirror the last one.
///
/// # Errors
/// In OpenZFS's words: `Invalid` for a pool that does not consist of mirrors, and for two
/// devices of one mirror; `NotFound`.
pub fn leaves_to_split(root: &VdevConfig, named: &[Guid]) -> Result<Vec<Guid>> {
    let mut chosen = Vec::new();
    let mut left = named.to_vec();
    for top in root.children.iter().filter(|top| is_split(top)) {
        if top.kind != VdevType::Mirror {
            return Err(not_mirrors());
        }
        let own: Vec<Guid> =
            left.extract_if(.., |guid| top.children.iter().any(|c| c.guid == *guid)).collect();
        let leaf = match own.as_slice() {
            [] => top.children.last().map(|child| child.guid),
            [one] => Some(*one),
            _ => return Err(Error::invalid("invalid vdev configuration")),
        };
        let leaf = leaf.and_then(|guid| top.find(guid)).ok_or_else(no_such_device)?;
        // Below a mirror there may be a replacement or a spare.
        if !leaf.kind.is_leaf() {
            return Err(Error::busy("pool is busy"));
        }
        chosen.push(leaf.guid);
    }
    match left.is_empty() {
        true if chosen.is_empty() => Err(not_mirrors()),
        true => Ok(chosen),
        false => Err(no_such_device()),
    }
}

/// The tree of the new pool: each chosen leaf in the place of its mirror.
pub(crate) fn split_tree(root: &VdevConfig, leaves: &[Guid], pool: Guid) -> Result<VdevConfig> {
    let mut out = root.clone();
    out.guid = pool;
    for top in out.children.iter_mut().filter(|top| is_split(top)) {
        let gone: Vec<Guid> =
            top.children.iter().map(|c| c.guid).filter(|guid| !leaves.contains(guid)).collect();
        edit::reduce_top(top, &gone).ok_or_else(not_mirrors)?;
    }
    Ok(out)
}

fn check(cx: &TaskCx<'_>, leaves: &[Guid]) -> Result<()> {
    let root = &cx.state.config.vdev_tree;
    if leaves_to_split(root, leaves)? != leaves {
        return Err(Error::busy("pool is busy"));
    }
    cx.check_no_checkpoint()?;
    if root.children.iter().any(|top| top.top.as_ref().is_some_and(|t| t.removing)) {
        return Err(Error::busy("device removal is in progress"));
    }
    let tree = cx.writer.zio().tree();
    for guid in leaves {
        let node = tree.find(*guid).ok_or_else(no_such_device)?;
        if node.state() != State::Online {
            return Err(Error::busy("one or more devices is currently unavailable"));
        }
        if node.is_behind() || required(&tree, *guid) {
            return Err(Error::busy("pool is busy"));
        }
    }
    Ok(())
}

impl Writer {
    /// Takes the leaves out of use; returns their devices, which are silent then.
    ///
    /// # Errors
    /// Those of [`leaves_to_split`]; `Busy` for a leaf that is missing, misses something, or has
    /// the only copy of something, for a pool with a checkpoint or a removal in progress; those
    /// of a suspension.
    pub fn begin_split(&self, leaves: &[Guid]) -> Result<Vec<SplitDevice>> {
        self.check_running()?;
        // What was promised to callers goes along.
        self.sync()?;
        let (guids, mine) = (leaves.to_vec(), leaves.to_vec());
        let act = move |cx: &mut TaskCx<'_>, ()| {
            let tree = cx.writer.zio.tree();
            let mut devices = Vec::new();
            for guid in &guids {
                let node = tree.find(*guid).ok_or_else(no_such_device)?;
                let device = node.device().cloned().ok_or_else(no_such_device)?;
                let path = PathBuf::from(node.path().unwrap_or_default());
                devices.push(SplitDevice { guid: *guid, path, device });
            }
            let mark: Vec<_> = guids.iter().map(|guid| (*guid, State::Offline)).collect();
            cx.publish(TreeChange { mark: &mark, ..TreeChange::default() }, &|_| {})?;
            Ok(devices)
        };
        let (devices, _) = self.sync_task(move |cx| check(cx, &mine), act)?;
        match self.wait_for_writes() {
            Ok(()) => Ok(devices),
            Err(e) => {
                self.cancel_split(&devices);
                Err(e)
            }
        }
    }

    /// Takes the leaves back into use, as far as they still belong to this pool.
    pub fn cancel_split(&self, devices: &[SplitDevice]) {
        for device in devices {
            let source =
                crate::leaves::Known(vec![(device.path.clone(), Arc::clone(&device.device))]);
            let _unusable = self.online(device.guid, &source, None);
        }
    }

    /// Detaches the leaves, which belong to another pool now.
    ///
    /// # Errors
    /// Those of a suspension.
    pub fn end_split(&self, leaves: &[Guid], command: Option<Command>) -> Result<()> {
        let _alone = self.topology.detaching.lock();
        let leaves = leaves.to_vec();
        let there = |cx: &mut TaskCx<'_>| {
            Ok(cx.state.config.vdev_tree.leaves().map(|l| l.guid).collect::<Vec<_>>())
        };
        let act = move |cx: &mut TaskCx<'_>, there: Vec<Guid>| {
            for guid in leaves.into_iter().filter(|guid| there.contains(guid)) {
                cx.detach(guid)?;
            }
            command.map_or(Ok(()), |c| cx.log_command(&c))
        };
        self.sync_task(there, act).map(drop)
    }

    /// Makes a pool that was just split off complete: frees the objects of the leaves that it
    /// does not have, its lists of spares and cache devices, and its logs.
    ///
    /// # Errors
    /// Those of a suspension.
    pub(crate) fn complete_split(&self, former: VdevConfig) -> Result<()> {
        let act = move |cx: &mut TaskCx<'_>, ()| {
            let root = cx.state.config.vdev_tree.clone();
            for leaf in former.leaves().filter(|leaf| root.find(leaf.guid).is_none()) {
                cx.drop_leaf(leaf)?;
            }
            for key in ["spares", "l2cache"] {
                cx.drop_aux_list(key)?;
            }
            cx.log_internal("split", None, "new pool")
        };
        self.sync_task(|_| Ok(()), act)?;
        let config = self.published().config;
        let is_log = |top: &&VdevConfig| top.top.as_ref().is_some_and(|t| t.is_log);
        for log in config.vdev_tree.children.iter().filter(is_log) {
            self.remove_log(log.guid, None)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::topology::plain_node;
    use base::Txg;
    use ondisk::config::Top;

    fn pool(kinds: &[VdevType]) -> VdevConfig {
        let mut root = plain_node(VdevType::Root, Guid(1), Txg(4));
        for (id, kind) in (0..).zip(kinds) {
            let mut top = plain_node(*kind, Guid(10 * (u64::from(id) + 1)), Txg(4));
            top.id = id;
            top.top = Some(Top { ashift: 9, metaslab_array: 7, ..Top::default() });
            for n in 0..2 {
                let mut leaf = plain_node(VdevType::File, Guid(top.guid.0 + n + 1), Txg(4));
                leaf.id = n as u32;
                top.children.push(leaf);
            }
            root.children.push(top);
        }
        root
    }

    fn guids(list: &[u64]) -> Vec<Guid> {
        list.iter().map(|&g| Guid(g)).collect()
    }

    #[test]
    fn the_last_device_of_each_mirror_is_taken_unless_another_is_named() {
        let root = pool(&[VdevType::Mirror, VdevType::Mirror]);
        let taken = |named: &[u64]| leaves_to_split(&root, &guids(named));
        assert_eq!(taken(&[]).unwrap(), guids(&[12, 22]));
        assert_eq!(taken(&[21]).unwrap(), guids(&[12, 21]));
        assert_eq!(taken(&[22, 11]).unwrap(), guids(&[11, 22]));
        assert_eq!(taken(&[11, 12]).unwrap_err().message(), "invalid vdev configuration");
        assert_eq!(taken(&[99]).unwrap_err().message(), "no such device in pool");
        let mixed = pool(&[VdevType::Mirror, VdevType::Raidz]);
        let words = "Source pool must be composed only of mirrors";
        assert_eq!(leaves_to_split(&mixed, &[]).unwrap_err().message(), words);
    }

    #[test]
    fn each_leaf_takes_the_place_of_its_mirror() {
        let mut root = pool(&[VdevType::Mirror, VdevType::Mirror]);
        root.children[0].children[1].leaf.offline = true;
        let new = split_tree(&root, &guids(&[12, 21]), Guid(77)).unwrap();
        let tops: Vec<_> = new.children.iter().map(|t| (t.guid.0, t.id, t.kind)).collect();
        assert_eq!(tops, [(12, 0, VdevType::File), (21, 1, VdevType::File)]);
        assert!(new.children.iter().all(|t| t.top.as_ref().unwrap().metaslab_array == 7));
        assert!(!new.children[0].leaf.offline && new.children[0].orig_guid.is_none());
        assert_eq!(new.guid_sum(), 77 + 12 + 21);
    }
}
