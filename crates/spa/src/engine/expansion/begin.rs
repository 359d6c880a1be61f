//! The begin of an expansion: what is refused, and the txg that adds the child.

use base::{Error, Guid, Result, VdevId};
use dsl::write::features;
use nvlist::NvList;
use ondisk::config::{VdevConfig, VdevType};
use ondisk::label::{BOOT_SIZE, leaf_asize, usable_size};
use ondisk::zap::ZapValue;

use super::super::Writer;
use super::super::pools::Devices;
use super::super::tasks::{Command, TaskCx};
use super::super::topology::{NewMember, TreeChange, find_mut, label_new, name_of, top_of};
use super::{
    COPIED, END, Expanding, FEATURE, IN_PROGRESS, START, STATE, Stage, expanding_top, metaslabs_end,
};

/// In OpenZFS's words.
const NOT_ENABLED: &str =
    "raidz_expansion feature must be enabled in order to attach a device to raidz";
/// Most children of a raidz.
const CHILDREN_MAX: usize = 255;

/// Whether the configuration admits the expansion of a raidz vdev; its id.
fn plan(root: &VdevConfig, guid: Guid, new: &NewMember) -> Result<VdevId> {
    let top = top_of(root, guid).filter(|top| top.guid == guid);
    let top = top.filter(|top| top.kind == VdevType::Raidz);
    let top = top.ok_or_else(|| Error::not_found("no such device in pool"))?;
    let space = top.top.clone().unwrap_or_default();
    if root.children.iter().any(|top| top.top.as_ref().is_some_and(|t| t.removing)) {
        return Err(Error::busy("device removal in progress"));
    }
    if expanding_top(root).is_some() {
        return Err(Error::busy(IN_PROGRESS));
    }
    if root.find(new.vdev.guid).is_some() {
        return Err(Error::busy(format!("{} is busy", name_of(&new.vdev))));
    }
    let width = top.children.len();
    let sector = 1u64.checked_shl(space.ashift).unwrap_or(u64::MAX);
    if width >= CHILDREN_MAX || (width as u64 + 1).saturating_mul(sector) > BOOT_SIZE {
        return Err(Error::unsupported("the raidz vdev cannot have more children"));
    }
    // A device that is being replaced, or a spare in use.
    if !top.children.iter().all(|child| child.kind.is_leaf()) {
        return Err(Error::busy("a device of the raidz vdev is being replaced"));
    }
    let facts = new.facts.as_ref().ok_or_else(|| base::bug!("a new child without a device"))?;
    let has = leaf_asize(usable_size(facts.size)).unwrap_or(0);
    if has < space.asize.div_ceil(width.max(1) as u64) {
        return Err(Error::invalid("device is too small"));
    }
    if facts.logical_shift > space.ashift || new.ashift.is_some_and(|a| a > space.ashift) {
        return Err(Error::invalid(
            "new device has a different optimal sector size; use the option '-o ashift=N' to \
             override the optimal size",
        ));
    }
    Ok(VdevId(top.id))
}

impl TaskCx<'_> {
    fn check_expansion(&self, guid: Guid, new: &NewMember) -> Result<VdevId> {
        let id = plan(&self.state.config.vdev_tree, guid, new)?;
        if !features::is_enabled(self.read(), FEATURE)? {
            return Err(Error::unsupported(NOT_ENABLED));
        }
        self.check_no_checkpoint()?;
        let writer = self.writer;
        let healthy = writer.zio.tree().is_whole(id) && !writer.is_resilver_due();
        if !healthy || writer.expansion.has_thread_work() {
            return Err(Error::busy("the raidz vdev is not healthy, or is being resilvered"));
        }
        Ok(id)
    }

    fn begin_expansion(&mut self, id: VdevId, mut new: NewMember) -> Result<()> {
        let (txg, start) = (self.cx.txg, self.cx.now.0);
        let guid = new.vdev.guid;
        new.vdev.create_txg = txg;
        let root = &mut self.config().vdev_tree;
        let top = root.children.iter().find(|top| top.id == id.0).map(|top| top.guid);
        let top = top.and_then(|guid| find_mut(root, guid));
        let top = top.ok_or_else(|| base::bug!("the raidz vdev is gone"))?;
        new.vdev.id = top.children.len() as u32;
        top.children.push(new.vdev);
        if let Some(raidz) = &mut top.raidz {
            raidz.expanding = true;
        }
        let (width, end) = (top.children.len(), metaslabs_end(top));
        let ashift = top.top.as_ref().map_or(0, |space| space.ashift);
        features::add(self.cx, FEATURE, 1)?;
        if let Some(zap) = self.sync.top_zap(id) {
            for key in [END, COPIED] {
                if self.read().number(zap, key)?.is_some() {
                    self.cx.mos.zap_remove(zap, key.as_bytes())?;
                }
            }
            for (key, value) in [(STATE, 1), (START, start)] {
                self.cx.mos.zap_update(zap, key.as_bytes(), &ZapValue::from_u64(value))?;
            }
        }
        let devices: Devices = new.device.map(|device| (guid, device)).into_iter().collect();
        self.publish(TreeChange { devices: Some(&devices), ..TreeChange::default() }, &|_| {})?;
        self.writer.expansion.set(Some(Expanding {
            vdev: id,
            width: width as u64,
            ashift,
            end,
            stage: Stage::Scratch,
            alone: false,
            done: 0,
            recorded: 0,
            safe: 0,
            writing: None,
            copied: 0,
            start,
            expand_txgs: Vec::new(),
        }));
        let text = format!("{} vdev {id} new width {width}", self.writer.name());
        self.log_internal("raidz vdev expansion started", None, &text)
    }
}

impl Writer {
    /// Adds a child to a raidz vdev (`zpool attach POOL raidzN-M DEVICE`). The caller has checked
    /// that nothing else uses the device. Returns when the expansion has begun.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, `Unsupported`, `Busy`, `Invalid` for a device that is too
    /// small or has too large sectors; those of the device and of a suspension.
    pub fn expand_raidz(
        &self,
        raidz: Guid,
        mut new: NewMember,
        command: Option<Command>,
    ) -> Result<()> {
        // The list's own keys are none of a member.
        new.vdev.raw = NvList::new();
        let now = self.published().config;
        plan(&now.vdev_tree, raidz, &new)?;
        if !features::is_enabled(&self.mos, FEATURE)? {
            return Err(Error::unsupported(NOT_ENABLED));
        }
        self.check_rebuild(&self.mos, VdevType::Raidz, new.sequential)?;
        // Before anything is written to the new device.
        self.checkpoint.refuse_any()?;
        let mut future = (*now).clone();
        if let Some(top) = find_mut(&mut future.vdev_tree, raidz) {
            let mut child = new.vdev.clone();
            child.id = top.children.len() as u32;
            top.children.push(child);
        }
        label_new(&future, &new, self.txgs.open_txg())?;
        let check = move |cx: &mut TaskCx<'_>| Ok((cx.check_expansion(raidz, &new)?, new));
        let act = move |cx: &mut TaskCx<'_>, (id, new): (VdevId, NewMember)| {
            cx.begin_expansion(id, new)?;
            command.map_or(Ok(()), |c| cx.log_command(&c))
        };
        self.sync_task(check, act)?;
        self.wake_expansion();
        Ok(())
    }
}
