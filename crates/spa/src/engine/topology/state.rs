//! Leaves that leave and return: offline, fault, online.
//!
//! # Invariants
//! * A leaf whose data is nowhere else stays in use.
//! * A leaf that is offline or faulted on request is closed.

use std::sync::{Arc, OnceLock, Weak};

use base::rt::{JoinHandle, Mutex};
use base::{Error, Guid, Result};
use device::Device;
use nvlist::NvStr;
use ondisk::config::VdevType;
use vdev::{LeafSpec, Node, State};

use super::super::Writer;
use super::super::pools::Devices;
use super::super::tasks::{Command, TaskCx};
use super::settle::Settling;
use super::{TreeChange, edit, no_replicas, no_such_device, required};
use crate::leaves::Leaves;
use crate::specs::AUX_EXTERNAL;

/// State of changes of the tree, beside the configuration.
#[derive(Default)]
pub(crate) struct TopologyState {
    writer: OnceLock<Weak<Writer>>,
    /// Leaves that `zpool clear` repaired: their flags in the configuration go with the next
    /// txg.
    pub(super) repaired: Mutex<Vec<Guid>>,
    /// Held while a leaf is detached.
    pub(super) detaching: Mutex<()>,
    /// A thread completes replacements and spares.
    pub(super) settling: Mutex<Settling>,
    /// That thread.
    pub(super) settler: Mutex<Option<JoinHandle<()>>>,
}

impl TopologyState {
    pub(crate) fn set_writer(&self, writer: &Arc<Writer>) {
        let _set_once = self.writer.set(Arc::downgrade(writer));
    }

    /// Whether flags are to be cleared in the configuration.
    pub(in crate::engine) fn has_repaired(&self) -> bool {
        !self.repaired.lock().is_empty()
    }

    /// Whether the flags of a leaf are to be cleared in the configuration.
    pub(super) fn is_repaired(&self, leaf: Guid) -> bool {
        self.repaired.lock().contains(&leaf)
    }

    /// Notes leaves whose flags are to be cleared in the configuration.
    pub(in crate::engine) fn note_repaired(&self, leaves: Vec<Guid>) {
        self.repaired.lock().extend(leaves);
    }

    /// The writer, for threads of its own.
    pub(super) fn writer(&self) -> Option<Arc<Writer>> {
        self.writer.get()?.upgrade()
    }
}

/// What happens to a leaf that is taken out of use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OfflineMode {
    /// It is offline.
    #[default]
    Offline,
    /// It is faulted, so that a spare may replace it.
    Fault,
}

/// How a leaf is taken out of use (`zpool offline [-t] [-f]`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offline {
    /// Its state from now on.
    pub mode: OfflineMode,
    /// Only until the pool is exported.
    pub temporary: bool,
}

fn not_supported() -> Error {
    Error::unsupported("operation not supported on this type of pool")
}

/// A device of its own that is a member of the pool.
fn check_leaf(cx: &TaskCx<'_>, guid: Guid) -> Result<()> {
    let leaf = cx.state.config.vdev_tree.find(guid).ok_or_else(no_such_device)?;
    if !matches!(leaf.kind, VdevType::Disk | VdevType::File) {
        return Err(not_supported());
    }
    Ok(())
}

impl TaskCx<'_> {
    fn take_offline(&mut self, guid: Guid, how: Offline) -> Result<()> {
        let state = match how.mode {
            OfflineMode::Offline => State::Offline,
            OfflineMode::Fault => State::Faulted,
        };
        if !how.temporary {
            let external = NvStr::new(AUX_EXTERNAL)?;
            let leaf = edit::find_mut(&mut self.config().vdev_tree, guid);
            let leaf = &mut leaf.ok_or_else(no_such_device)?.leaf;
            match how.mode {
                OfflineMode::Offline => leaf.offline = true,
                OfflineMode::Fault => {
                    (leaf.faulted, leaf.degraded) = (true, false);
                    leaf.aux_state = Some(external);
                }
            }
            leaf.unspare = false;
        }
        let mark = [(guid, state)];
        let mark = if how.temporary { &mark[..] } else { &[] };
        self.publish(TreeChange { mark, ..TreeChange::default() }, &|_| {}).map(drop)
    }

    /// Clears the flags that keep a leaf out of use. An original whose spare stands in for
    /// it releases the spare when its resilver is done.
    pub(super) fn clear_flags(&mut self, guid: Guid) {
        let tree = &mut self.config().vdev_tree;
        let spared = edit::parent_of(tree, guid)
            .is_some_and(|(parent, at)| parent.kind == VdevType::Spare && at == 0);
        if let Some(vdev) = edit::find_mut(tree, guid) {
            let leaf = &mut vdev.leaf;
            (leaf.offline, leaf.faulted, leaf.degraded) = (false, false, false);
            (leaf.removed, leaf.not_present, leaf.aux_state) = (false, false, None);
            leaf.unspare |= spared;
        }
    }

    /// Clears the flags of leaves that `zpool clear` repaired while the configuration could
    /// not be changed.
    pub(in crate::engine) fn clear_repaired(&mut self) {
        let repaired = std::mem::take(&mut *self.writer.topology.repaired.lock());
        for guid in repaired {
            self.clear_flags(guid);
        }
    }
}

impl Writer {
    /// Takes a leaf out of use. It misses the txgs that are written meanwhile.
    ///
    /// # Errors
    /// `NotFound`; `Unsupported` for a vdev that is no device; `Busy` when data is on no
    /// other device; those of a suspension.
    pub fn offline(&self, guid: Guid, how: Offline, command: Option<Command>) -> Result<()> {
        let check = move |cx: &mut TaskCx<'_>| {
            check_leaf(cx, guid)?;
            let tree = cx.writer.zio.tree();
            let out = tree.find(guid).is_some_and(|node| node.state() == State::Offline);
            if !out && required(&tree, guid) { Err(no_replicas()) } else { Ok(()) }
        };
        let act = move |cx: &mut TaskCx<'_>, ()| {
            cx.take_offline(guid, how)?;
            command.map_or(Ok(()), |c| cx.log_command(&c))
        };
        self.sync_task(check, act).map(|_| ())
    }

    /// Takes a leaf back into use: it is written from now on, and read for what it does not
    /// miss; a resilver is requested. A device that cannot be opened makes the leaf
    /// unavailable, which is no error.
    ///
    /// # Errors
    /// `NotFound`; `Unsupported` for a vdev that is no device; those of a suspension.
    pub fn online(&self, guid: Guid, source: &dyn Leaves, command: Option<Command>) -> Result<()> {
        let opened = self.open_again(guid, source)?;
        let check = move |cx: &mut TaskCx<'_>| check_leaf(cx, guid);
        let act = move |cx: &mut TaskCx<'_>, ()| {
            cx.clear_flags(guid);
            let (mut devices, mut failed) = (Devices::new(), None);
            match opened {
                Ok(device) => drop(devices.insert(guid, device)),
                Err(e) => failed = Some((guid, e)),
            }
            let back = cx.writer.zio.tree().find(guid).is_some_and(|node| !node.readable());
            let change = TreeChange {
                devices: Some(&devices),
                forget: &[guid],
                failed: failed.as_ref(),
                ..TreeChange::default()
            };
            cx.publish(change, &|tree| {
                if let Some(node) = tree.find(guid).filter(|_| back) {
                    node.clear_errors();
                }
            })?;
            command.map_or(Ok(()), |c| cx.log_command(&c))
        };
        self.sync_task(check, act)?;
        self.request_resilver_if_needed();
        // A leaf that missed nothing needs its spare no longer.
        self.topology_settled();
        Ok(())
    }

    /// The device of a leaf, opened unless it is open and in use; the inner result is that
    /// of opening it.
    fn open_again(
        &self,
        guid: Guid,
        source: &dyn Leaves,
    ) -> Result<std::result::Result<Arc<dyn Device>, Error>> {
        let old = self.zio.tree();
        let node = old.find(guid).ok_or_else(no_such_device)?;
        if !node.kind().is_device() {
            return Err(not_supported());
        }
        // A device in use stays so, whatever its labels say while they are written.
        if let Some(device) = node.device().filter(|_| node.readable()) {
            return Ok(Ok(Arc::clone(device)));
        }
        let spec = leaf_spec(node);
        Ok(self.reopen_leaf(&old, &spec, node.device(), source))
    }
}

/// What is needed to open a leaf of the published tree again.
pub(super) fn leaf_spec(node: &Node) -> LeafSpec {
    LeafSpec {
        guid: node.guid(),
        kind: node.kind().clone(),
        path: node.path().map(str::to_owned),
        top: node.top(),
        ashift: node.ashift(),
    }
}
