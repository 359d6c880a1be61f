//! The begin of a removal: what is refused, passivation, and the txg that makes its objects.

use std::collections::BTreeMap;

use base::{Error, ErrorKind, Guid, ObjectId, Result, VdevId};
use dmu::{ObjectSpec, OutagePolicy};
use dsl::write::{features, remap};
use metaslab::{RangeTree, UsedSpace};
use ondisk::ObjType;
use ondisk::config::{IndirectKeys, PoolConfig, VdevConfig, VdevType};
use ondisk::removal::{JobState, MAPPING_ENTRY_SIZE, MappingHeader, Removing};
use ondisk::zap::ZapValue;
use vdev::{AllocClass, IndirectMap};

use super::super::Writer;
use super::super::config::is_concrete;
use super::super::job_record::{JobKind, JobState as LeafJobState};
use super::super::maps::LOG_BLOCK;
use super::super::tasks::{Command, TaskCx};
use super::sync::{encode_header, store};
use super::{DEVICE_REMOVAL, Evacuation, copy, stored};
use crate::obsolete::PRECISE_KEY;

/// Txgs that are synced before the first step: every allocation on the vdev is written then.
const TXGS_BEFORE: usize = 2;

/// In OpenZFS's words.
const UPGRADE: &str = "pool must be upgraded to support this operation";
const NOT_SUPPORTED: &str = "operation not supported on this type of pool";
const BUSY: &str = "Pool busy; removal may already be in progress";
const ODD_CONFIG: &str = "invalid config; all top-level vdevs must have the same sector size and \
                          not be raidz.";

/// What a removal would take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovalEstimate {
    /// Bytes to copy.
    pub to_copy: u64,
    /// Bytes of memory for the mapping.
    pub memory: u64,
}

/// The top-level vdev of this guid, or the one whose only device has it.
fn top_named(config: &PoolConfig, guid: Guid) -> Result<&VdevConfig> {
    let top = config.vdev_tree.children.iter().find(|v| v.find(guid).is_some());
    let top = top.ok_or_else(|| Error::not_found("no such device in pool"))?;
    match top.guid == guid {
        true => Ok(top),
        false => Err(Error::unsupported(NOT_SUPPORTED)),
    }
}

fn has_parity(vdev: &VdevConfig) -> bool {
    matches!(vdev.kind, VdevType::Raidz | VdevType::Draid)
}

/// What the vdevs of the pool must be like.
fn check_config(config: &PoolConfig, top: &VdevConfig) -> Result<()> {
    let odd = || Error::invalid(ODD_CONFIG);
    let concrete = || config.vdev_tree.children.iter().filter(|v| is_concrete(v));
    let shift = |v: &VdevConfig| v.top.as_ref().map(|t| t.ashift);
    let is_log = |v: &&VdevConfig| v.top.as_ref().is_some_and(|t| t.is_log);
    if concrete().any(has_parity)
        || concrete().filter(|v| !is_log(v)).any(|v| shift(v) != shift(top))
    {
        return Err(odd());
    }
    let leaves = top.kind.is_leaf() || top.kind == VdevType::Mirror;
    match leaves && top.children.iter().all(|child| child.kind.is_leaf()) {
        true => Ok(()),
        // A device is being replaced.
        false => Err(Error::busy(BUSY)),
    }
}

impl TaskCx<'_> {
    /// Whether a top-level vdev can be removed now.
    fn check_removal(&self, guid: Guid) -> Result<VdevId> {
        let config = &self.state.config;
        let top = top_named(config, guid)?;
        let space = top.top.clone().unwrap_or_default();
        let id = VdevId(top.id);
        if !features::is_enabled(self.read(), DEVICE_REMOVAL)? {
            return Err(Error::unsupported(UPGRADE));
        }
        if !is_concrete(top) || space.is_log || space.zap.is_none_or(|zap| zap.0 == 0) {
            return Err(Error::unsupported(NOT_SUPPORTED));
        }
        self.check_no_checkpoint()?;
        let writer = self.writer;
        if writer.removal.is_active() || writer.is_resilver_due() || writer.is_rebuilding() {
            return Err(Error::busy(BUSY));
        }
        check_config(config, top)?;
        let tree = writer.zio.tree();
        let behind = tree.nodes().any(|(_, node)| node.top() == id && !node.dtl().is_empty());
        if !copy::has_source(&tree, id) || behind {
            return Err(Error::busy(BUSY));
        }
        let is_active = |leaf: &VdevConfig| {
            [JobKind::Trim, JobKind::Initialize].iter().any(|kind| {
                writer.job_status(leaf.guid, *kind).record.state == LeafJobState::Active
            })
        };
        if top.leaves().any(is_active) {
            return Err(Error::busy("device is currently being initialized or trimmed"));
        }
        writer.check_room_for(id)?;
        Ok(id)
    }

    fn begin_removal(&mut self, vdev: VdevId) -> Result<()> {
        let (writer, now) = (self.writer, self.cx.now.0);
        let os = self.mos().objset();
        let array = |object_type| ObjectSpec {
            object_type,
            block_size: LOG_BLOCK,
            ..ObjectSpec::default()
        };
        let counted = features::is_enabled(self.read(), remap::OBSOLETE_COUNTS)?;
        let counts = match counted {
            true => Some(os.allocate(self.tx, &array(ObjType::OTN_UINT32_METADATA))?),
            false => None,
        };
        let header = MappingHeader { counts, ..MappingHeader::default() };
        let words = |bonus: Vec<u8>| ObjectSpec {
            bonus_type: ObjType::OTN_UINT64_METADATA,
            bonus,
            ..array(ObjType::OTN_UINT64_METADATA)
        };
        let mapping = os.allocate(self.tx, &words(encode_header(&header)))?;
        let births = os.allocate(self.tx, &words(0u64.to_le_bytes().to_vec()))?;
        features::add(self.cx, DEVICE_REMOVAL, 1)?;
        let prev = stored(self.read())?.and_then(|record| record.prev_indirect);
        let keys = IndirectKeys {
            mapping: Some(mapping),
            births: Some(births),
            prev: prev.map(|vdev| vdev.0),
        };
        let zap = self.mark_leaving(vdev, keys)?;
        if counted {
            let one = ZapValue::from_u64(1);
            self.cx.mos.zap_update(zap, PRECISE_KEY.as_bytes(), &one)?;
            // The counts, and the promise that they are exact.
            features::add(self.cx, remap::OBSOLETE_COUNTS, 2)?;
        }
        let record = Removing {
            state: JobState::Scanning,
            vdev: Some(vdev),
            prev_indirect: prev,
            start_time: now,
            end_time: 0,
            to_copy: writer.space.vdev_totals(vdev)?.allocated,
            copied: 0,
        };
        store(self.sync, &record)?;
        writer.removal.set(Some(Evacuation {
            vdev,
            record,
            mapping,
            births,
            births_count: 0,
            header,
            map: IndirectMap::default(),
            copied: BTreeMap::new(),
            next: 0,
            busy: false,
            freed: RangeTree::new(),
            ending: false,
            failures: 0,
        }));
        writer.note_to_copy();
        self.log_removal("started", vdev)
    }

    /// Marks a vdev as being removed; returns its ZAP.
    fn mark_leaving(&mut self, vdev: VdevId, keys: IndirectKeys) -> Result<u64> {
        let tops = &mut self.config().vdev_tree.children;
        let top = tops.iter_mut().find(|v| v.id == vdev.0).and_then(|v| v.top.as_mut());
        let top = top.ok_or_else(|| base::bug!("the vdev {vdev} is gone"))?;
        (top.non_allocating, top.removing, top.indirect) = (true, true, keys);
        top.zap.map(|zap: ObjectId| zap.0).ok_or_else(|| base::bug!("a vdev without a ZAP"))
    }

    /// Adds a step of a removal to the history.
    pub(super) fn log_removal(&self, what: &str, vdev: VdevId) -> Result<()> {
        let top = self.state.config.vdev_tree.children.iter().find(|v| v.id == vdev.0);
        let path = top.and_then(|top| top.leaves().next()?.path.as_ref()?.to_str());
        let name = path.or(top.map(|top| top.kind.name())).unwrap_or_default();
        let text = format!("{} vdev {vdev} {name}", self.writer.name());
        self.log_internal(&format!("vdev remove {what}"), None, &text)
    }
}

impl Writer {
    /// Fails if the other vdevs have no room for what is on this one.
    pub(in super::super) fn check_room_for(&self, vdev: VdevId) -> Result<()> {
        let on_it = self.space.vdev_totals(vdev)?;
        let mut free = self.allocatable(false);
        let normal = self.zio.tree().top(vdev)?.class() == AllocClass::Normal;
        if normal && self.space.is_allocating(vdev) {
            free = free.saturating_sub(on_it.capacity.saturating_sub(on_it.allocated));
        }
        match on_it.allocated < free {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::NoSpace, "out of space")),
        }
    }

    /// Begins the removal of a data vdev, whose guid this is; it goes on in the background.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`; `Unsupported` for pools without feature device_removal,
    /// and for what is no top-level vdev with data; `Invalid` for a pool with RAID-Z, or with
    /// sectors of several sizes; `Busy` while there is a checkpoint, another removal, a
    /// resilver, or when the vdev lacks something; `NoSpace`; those of a suspension.
    pub fn begin_vdev_removal(&self, guid: Guid, command: Option<Command>) -> Result<()> {
        let (id, _) = self.sync_task(move |cx| cx.check_removal(guid), |_, id| Ok(id))?;
        let before = self.space.is_allocating(id);
        self.space.set_allocating(id, false)?;
        let begun = self.passivated().and_then(|()| {
            let check = move |cx: &mut TaskCx<'_>| cx.check_removal(guid);
            let act = move |cx: &mut TaskCx<'_>, id: VdevId| {
                cx.begin_removal(id)?;
                command.map_or(Ok(()), |c| cx.log_command(&c))
            };
            self.sync_task(check, act).map(drop)
        });
        if begun.is_err() {
            // Another call may have begun the removal of the same vdev.
            if self.removal().is_none_or(|(vdev, _)| vdev != id) {
                let _again = self.space.set_allocating(id, before);
            }
            return begun;
        }
        self.wake_removal();
        Ok(())
    }

    /// Waits until everything that was allocated so far is written.
    pub(in super::super) fn passivated(&self) -> Result<()> {
        let ended = self.close_logs();
        self.reopen_logs();
        ended?;
        self.end_idle_logs()?;
        for _ in 0..TXGS_BEFORE {
            self.touch();
            self.sync()?;
        }
        Ok(())
    }

    /// What the removal of a vdev would take, as of now (`zpool remove -n`).
    ///
    /// # Errors
    /// As for [`Writer::begin_vdev_removal`]; those of reading space maps.
    pub fn estimate_removal(&self, guid: Guid) -> Result<RemovalEstimate> {
        let (id, _) = self.sync_task(move |cx| cx.check_removal(guid), |_, id| Ok(id))?;
        let segment = self.removal.tuning.lock().segment.max(1);
        let mut estimate = RemovalEstimate::default();
        for ms in self.space.metaslabs(id)? {
            if !ms.was_used && ms.free == ms.seg.len {
                continue;
            }
            let mut from = ms.seg.start;
            while from < ms.seg.end() {
                self.space_io.load(ms.key, OutagePolicy::WaitPerFailmode)?;
                let UsedSpace::Ranges(ranges, end) =
                    self.space.live_ranges(ms.key, from, ms.seg.len)?
                else {
                    continue;
                };
                for range in ranges {
                    estimate.to_copy += range.len;
                    estimate.memory += range.len.div_ceil(segment) * MAPPING_ENTRY_SIZE as u64;
                }
                from = end.max(from + 1);
            }
        }
        Ok(estimate)
    }
}
