//! Attaching and replacing: a leaf gets company (chapter 01 §1, §4.3; chapter 05 §8).
//!
//! # Theory
//! The new leaf joins the mirror, `replacing` or `spare` vdev of the old one, or a new one is
//! put in the old leaf's place. It misses everything that was born before ([4, T + 3), see the
//! module head above), and a resilver is requested, or a sequential rebuild begins in the same
//! txg (`vdev_rebuild`).
//!
//! A spare keeps the guid of the pool's list, so that it can be told to be in use. Its label
//! becomes that of a member in the txg that takes it: until then it stays the label of a spare,
//! also after a crash.
//!
//! # Invariants
//! * The new leaf's DTL is set before any reader sees the leaf.
//! * The new leaf can hold what its vdev has allocated and may allocate: it has at least the
//!   vdev's minimum size.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{Error, Guid, Result, Txg, VdevId};
use device::Device;
use nvlist::{NvList, NvStr};
use ondisk::config::{PoolConfig, VdevConfig, VdevType};
use ondisk::label::{leaf_asize, usable_size};
use vdev::TxgRanges;

use super::super::Writer;
use super::super::pools::Devices;
use super::super::tasks::{Command, TaskCx};
use super::{TreeChange, edit, no_such_device};
use crate::write::config::{PoolFacts, has_labels, initial};
use crate::write::labels;
use crate::write::topology::LeafFacts;

/// The first txg of a pool.
const TXG_INITIAL: Txg = Txg(4);
/// Txgs that may be open, quiescing or syncing.
const TXGS_ALIVE: u64 = 3;
const DRAID_ROW: u64 = 16 << 20;
const DRAID_RESERVED: u64 = 32 << 20;

/// What a new leaf is to the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMode {
    /// One more copy.
    Attach,
    /// Its successor, or a spare in its place.
    Replace,
}

/// A leaf that is to be attached.
pub struct NewMember {
    /// Its configuration; a spare has that of the pool's list.
    pub vdev: VdevConfig,
    /// Its device; `None` for a distributed spare.
    pub device: Option<Arc<dyn Device>>,
    /// Size and sectors of the device.
    pub facts: Option<LeafFacts>,
    /// The requested sector shift.
    pub ashift: Option<u32>,
    /// It is rebuilt sequentially, not resilvered.
    pub sequential: bool,
}

/// Where a new leaf goes.
struct AttachPlan {
    kind: VdevType,
    /// The guid of the vdev that holds both, if it has to be made.
    above: Guid,
}

pub(in super::super) fn name_of(vdev: &VdevConfig) -> String {
    let path = vdev.path.as_ref().and_then(|p| p.to_str());
    path.map_or_else(|| vdev.guid.to_string(), str::to_owned)
}

/// Bytes that a vdev needs for its data, so that its top-level vdev keeps its metaslabs
/// (chapter 01 §1).
pub(super) fn least_asize(root: &VdevConfig, guid: Guid) -> u64 {
    let Some(mut at) = edit::top_of(root, guid) else { return 0 };
    let Some(top) = &at.top else { return 0 };
    let shift = top.metaslab_shift.min(63);
    let mut least = top.asize >> shift << shift;
    while at.guid != guid {
        let children = at.children.len().max(1) as u64;
        least = match (&at.draid, at.kind) {
            (Some(draid), _) => {
                let disks = children.saturating_sub(draid.nspares.into()).max(1);
                let rows = least.div_ceil(disks).div_ceil(DRAID_ROW);
                rows.saturating_mul(DRAID_ROW).saturating_add(DRAID_RESERVED)
            }
            // A child that is being attached adds no space yet.
            (_, VdevType::Raidz) => {
                let expanding = at.raidz.as_ref().is_some_and(|raidz| raidz.expanding);
                least.div_ceil((children - u64::from(expanding)).max(1))
            }
            _ => least,
        };
        let Some(below) = at.children.iter().find(|c| c.find(guid).is_some()) else { break };
        at = below;
    }
    least
}

/// Whether the request is possible, and what it makes.
fn plan(root: &VdevConfig, old: Guid, new: &NewMember, mode: AttachMode) -> Result<VdevType> {
    let leaf = root.find(old).ok_or_else(no_such_device)?;
    let top = edit::top_of(root, old).ok_or_else(no_such_device)?;
    let (parent, _) = edit::parent_of(root, old).ok_or_else(no_such_device)?;
    let space = top.top.clone().unwrap_or_default();
    let alone = || Error::unsupported("can only attach to mirrors and top-level disks");
    if !leaf.kind.is_leaf() {
        return Err(match mode {
            AttachMode::Attach => alone(),
            AttachMode::Replace => Error::unsupported("can only replace devices"),
        });
    }
    let kind = match mode {
        AttachMode::Attach if matches!(parent.kind, VdevType::Root | VdevType::Mirror) => {
            VdevType::Mirror
        }
        AttachMode::Attach => return Err(alone()),
        AttachMode::Replace if new.vdev.leaf.is_spare => VdevType::Spare,
        AttachMode::Replace => VdevType::Replacing,
    };
    if kind == VdevType::Spare && space.is_log {
        return Err(Error::unsupported("cannot replace a log with a spare"));
    }
    // A spare in use is replaced by spares alone, and its original by other devices alone.
    if parent.kind == VdevType::Spare
        && mode == AttachMode::Replace
        && leaf.leaf.is_spare != new.vdev.leaf.is_spare
    {
        return Err(Error::unsupported("cannot replace a replacing device"));
    }
    if let Some(dspare) = &new.vdev.dspare
        && (dspare.top_guid != top.guid || leaf.kind == VdevType::DraidSpare)
    {
        let text = "a distributed spare can only replace a device of its own dRAID vdev";
        return Err(Error::unsupported(text));
    }
    if root.children.iter().any(|top| top.top.as_ref().is_some_and(|t| t.removing)) {
        return Err(Error::busy("device removal in progress"));
    }
    if root.find(new.vdev.guid).is_some() {
        return Err(Error::busy(format!("{} is busy", name_of(&new.vdev))));
    }
    if let Some(facts) = &new.facts {
        let has = leaf_asize(usable_size(facts.size)).unwrap_or(0);
        if has < least_asize(root, old) {
            return Err(Error::invalid("device is too small"));
        }
        if facts.logical_shift > space.ashift || new.ashift.is_some_and(|a| a > space.ashift) {
            return Err(Error::invalid(
                "new device has a different optimal sector size; use the option '-o ashift=N' to \
                 override the optimal size",
            ));
        }
    }
    Ok(kind)
}

/// Writes the first labels of a device that a future configuration has.
pub(in super::super) fn label_new(future: &PoolConfig, new: &NewMember, txg: Txg) -> Result<()> {
    let Some(device) = &new.device else { return Ok(()) };
    let guid = new.vdev.guid;
    let top = edit::top_of(&future.vdev_tree, guid).ok_or_else(no_such_device)?;
    let list = initial(&PoolFacts::of(future), top, txg);
    let list = list.into_iter().find(|(leaf, _)| *leaf == guid && has_labels(&new.vdev));
    let (_, list) = list.ok_or_else(|| base::bug!("a new leaf without a label"))?;
    labels::init(&**device, &list).map_err(|e| e.on_vdev(guid))
}

/// All births before a txg that begins after `now` is synced: what a leaf misses that is new
/// in the txg `now`.
pub(in super::super) fn everything_before(now: Txg) -> TxgRanges {
    TxgRanges::new(vec![(TXG_INITIAL, Txg(now.0.saturating_add(TXGS_ALIVE - 1)))])
}

impl TaskCx<'_> {
    fn attach(
        &mut self,
        old: Guid,
        mut new: NewMember,
        mode: AttachMode,
        plan: &AttachPlan,
    ) -> Result<()> {
        let txg = self.cx.txg;
        let (guid, sequential) = (new.vdev.guid, new.sequential);
        new.vdev.create_txg = txg;
        let text = {
            let root = &mut self.config().vdev_tree;
            let leaf = edit::find_mut(root, old).ok_or_else(no_such_device)?;
            let words = match (plan.kind, mode) {
                (VdevType::Spare, _) => ("spare in", "for"),
                (_, AttachMode::Replace) => ("replace", "for"),
                (_, AttachMode::Attach) => ("attach", "to"),
            };
            let (was, is) = (name_of(leaf), name_of(&new.vdev));
            // The successor has the path now.
            if mode == AttachMode::Replace && leaf.path == new.vdev.path {
                leaf.path = Some(NvStr::new(format!("{was}/old").as_bytes())?);
            }
            edit::attach(root, old, plan.kind, plan.above, new.vdev);
            format!("{} vdev={is} {} vdev={was}", words.0, words.1)
        };
        let mut missing = everything_before(txg);
        if self.writer.plants.topology.short_dtl.load(Relaxed) {
            missing.remove_range(txg, Txg::MAX);
        }
        self.state.missed.push((guid, missing.clone()));
        let devices: Devices = new.device.map(|device| (guid, device)).into_iter().collect();
        self.publish(TreeChange { devices: Some(&devices), ..TreeChange::default() }, &|tree| {
            tree.set_dtl(guid, missing.clone());
        })?;
        if sequential {
            let top = edit::top_of(&self.state.config.vdev_tree, guid).map(|top| VdevId(top.id));
            self.begin_rebuild(top.ok_or_else(no_such_device)?)?;
        }
        self.log_internal("vdev attach", None, &text)
    }
}

impl Writer {
    /// Attaches a device to another one: as a further copy, as its successor, or as a spare in
    /// its place. The caller has checked that nothing else uses the device. The resilver is
    /// requested; at its end the predecessor leaves ([`Writer::topology_settled`]).
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, `Unsupported` for a place where it cannot be, `Busy`,
    /// `Invalid` for a device that is too small or has too large sectors; those of the device
    /// and of a suspension.
    pub fn attach(
        &self,
        old: Guid,
        new: NewMember,
        mode: AttachMode,
        command: Option<Command>,
    ) -> Result<()> {
        let raidz = |v: &VdevConfig| v.kind == VdevType::Raidz;
        if mode == AttachMode::Attach
            && self.published().config.vdev_tree.find(old).is_some_and(raidz)
        {
            return self.expand_raidz(old, new, command);
        }
        let sequential = new.sequential;
        let mut new = new;
        if new.vdev.leaf.is_spare {
            // The list's own keys (`ashift`) are none of a member.
            new.vdev.raw = NvList::new();
        }
        let now = self.published().config;
        let above = self.unused_guid(&now.vdev_tree, new.vdev.guid)?;
        let kind = plan(&now.vdev_tree, old, &new, mode)?;
        // Before anything is written to the new device.
        self.checkpoint.refuse_any()?;
        let top = edit::top_of(&now.vdev_tree, old).ok_or_else(no_such_device)?;
        self.check_rebuild(&self.mos, top.kind, sequential)?;
        if !new.vdev.leaf.is_spare {
            let mut future = (*now).clone();
            edit::attach(&mut future.vdev_tree, old, kind, above, new.vdev.clone());
            label_new(&future, &new, self.txgs.open_txg())?;
        }
        let check = move |cx: &mut TaskCx<'_>| {
            let root = &cx.state.config.vdev_tree;
            let kind = plan(root, old, &new, mode)?;
            let top = edit::top_of(root, old).ok_or_else(no_such_device)?;
            cx.writer.check_rebuild(cx.read(), top.kind, new.sequential)?;
            cx.check_no_checkpoint()?;
            Ok((AttachPlan { kind, above }, new))
        };
        let act = move |cx: &mut TaskCx<'_>, (plan, new): (AttachPlan, NewMember)| {
            cx.attach(old, new, mode, &plan)?;
            command.map_or(Ok(()), |c| cx.log_command(&c))
        };
        self.sync_task(check, act)?;
        if !sequential {
            self.request_resilver();
        }
        Ok(())
    }

    /// A guid that no vdev of the pool has, nor `other`.
    fn unused_guid(&self, root: &VdevConfig, other: Guid) -> Result<Guid> {
        for salt in 0..=root.walk().count() as u64 + 1 {
            let guid = Guid(base::rt::random_u64()?.wrapping_add(salt));
            if guid.0 != 0 && guid != other && root.find(guid).is_none() {
                return Ok(guid);
            }
        }
        Err(base::bug!("no unused guid was found"))
    }
}
