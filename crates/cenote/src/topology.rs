//! Changing the devices of an imported pool: attach, detach, replace, offline, online, spares.
//!
//! # Theory
//! The engine of `spa` makes a change in a txg (`spa::engine`, module `topology`). Here a device
//! is found by its name, examined, and opened before; and it is decided which spare steps in for
//! a device that failed ([`Engine::call_spares`]).
//!
//! # Invariants
//! * A device that something else uses is not opened for writing.
//! * A spare that one imported pool uses is used by no other.
//!
//! Lock order: none of its own.

use std::path::Path;
use std::sync::Arc;

use base::{Error, ErrorKind, Guid, Result};
use ondisk::config::{VdevConfig, VdevType};
use spa::engine::{AttachMode, NewMember, Offline, Writer};
use spa::leaves::{Leaves, Purpose};
use spa::status::{VdevClass, VdevState, VdevStatus};
use spa::write::admit::{ExaminedDevice, Force, admit};
use spa::write::inuse;
use spa::write::topology::build_member;

use crate::changes::command;
use crate::create::make::OpenDevices;
use crate::create::{NewKind, NewVdev};
use crate::engine::Engine;
use crate::outage::is_called;
use crate::pool::Pool;

/// The remark at a spare that its own pool uses.
pub(crate) const IN_USE: &str = "currently in use";

/// A device that joins a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewDevice {
    /// A file or block device.
    Path(NewKind),
    /// A spare of the pool, by its name.
    Spare(String),
}

/// A request to attach a device to another one.
#[derive(Clone, Debug)]
pub struct AttachRequest {
    /// The device of the pool.
    pub old: String,
    /// The new one; `None` is another device at the same path.
    pub new: Option<NewDevice>,
    /// What the new one becomes.
    pub mode: AttachMode,
    /// It is rebuilt sequentially, not resilvered.
    pub sequential: bool,
    /// Even if the new device seems to be in use.
    pub force: bool,
    /// log2 of the sectors of the new device.
    pub ashift: Option<u32>,
    /// The command, for the pool's history; `None` logs nothing.
    pub command: Option<String>,
}

fn no_such_device() -> Error {
    Error::not_found("no such device in pool")
}

fn path_of(vdev: &VdevConfig) -> &str {
    vdev.path.as_ref().and_then(|p| p.to_str()).unwrap_or_default()
}

impl Pool {
    /// The member of this name.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for a spare that is not in use and for a cache device, in
    /// OpenZFS's words.
    pub(crate) fn member_named(&self, name: &str) -> Result<Guid> {
        self.vdev_named(name).map_err(|e| {
            let aux = crate::pool::aux_devices(self.spa());
            match aux.iter().find(|v| is_called(v, name)).map(|v| v.class) {
                Some(VdevClass::Spare) => Error::invalid("device is reserved as a hot spare"),
                Some(VdevClass::Cache) => Error::invalid("device is in use as a cache"),
                _ => e,
            }
        })
    }

    /// The spare of this name, and whether the pool uses it.
    fn spare_named(&self, name: &str) -> Result<(VdevConfig, bool)> {
        let named = |spare: &VdevConfig| {
            let status = VdevStatus {
                guid: spare.guid,
                name: path_of(spare).to_owned(),
                path: Some(path_of(spare).into()),
                ..VdevStatus::default()
            };
            is_called(&status, name)
        };
        let spares = self.writer()?.spares()?;
        spares.into_iter().find(|(spare, _)| named(spare)).ok_or_else(no_such_device)
    }

    /// Whether property `autoreplace` is on.
    fn replaces_automatically(&self) -> bool {
        self.writer().is_ok_and(|writer| writer.pool_flag("autoreplace"))
    }

    /// Detaches a device from its mirror, `replacing` or `spare` vdev.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, `Unsupported` for a vdev elsewhere, `Busy` when data is
    /// on no other device; `ReadOnly`; that of a suspension.
    pub fn detach_vdev(&self, device: &str, line: Option<&str>) -> Result<()> {
        let guid = self.member_named(device)?;
        self.writer()?.detach(guid, command(line))?;
        self.vdev_event("vdev_remove", guid);
        Ok(())
    }
}

impl Engine {
    /// Attaches a device to a device of the pool: as a further copy, as its successor, or as
    /// the spare in its place.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`; `Invalid` for a device that may not be used or is too
    /// small; `Unsupported` for a place where it cannot be; `Busy`; `ReadOnly`; that of a
    /// suspension; the devices'.
    pub fn attach(&self, pool: &Pool, request: &AttachRequest) -> Result<()> {
        let writer = pool.writer()?;
        // Before the new device is opened and gets labels.
        writer.check_running()?;
        let old = pool.member_named(&request.old)?;
        let spare = match &request.new {
            Some(NewDevice::Spare(name)) => Some(pool.spare_named(name)?),
            _ => None,
        };
        if let Some((spare, used)) = spare {
            if used || self.spare_user(pool, spare.guid).is_some() {
                return Err(Error::busy(format!("{} is busy", path_of(&spare))));
            }
            if request.mode == AttachMode::Attach {
                let line = inuse::InUse::Spare(pool.name().to_owned());
                return Err(Error::invalid(line.line(Path::new(path_of(&spare)))));
            }
            let line = request.command.as_deref();
            return self.attach_spare(pool, old, spare, request.sequential, line);
        }
        let kind = match &request.new {
            Some(NewDevice::Path(kind)) => kind.clone(),
            _ => same_place(writer, old)?,
        };
        let vdev = NewVdev::new(kind);
        let (open, devices) = (self.open_pools(), self.devices()?);
        let look =
            |path: &Path| -> Result<ExaminedDevice> { inuse::examine(path, &devices, &open) };
        let force = Force { in_use: request.force, ..Force::default() };
        admit(std::slice::from_ref(&vdev), None, force, &look)?;
        let opened = OpenDevices::of(std::slice::from_ref(&vdev), &pool.core.leaves)?;
        let config = writer.published().config;
        let mut taken = Vec::new();
        spa::specs::for_each(&config.vdev_tree, &mut |v| taken.push(v.guid));
        let facts = |path: &Path| opened.facts(path);
        let (member, facts) = build_member(&vdev, writer.txgs().open_txg(), taken, &facts)?;
        let device = opened.device(Path::new(path_of(&member)));
        let (facts, ashift, sequential) = (Some(facts), request.ashift, request.sequential);
        let new = NewMember { vdev: member, device, facts, ashift, sequential };
        let guid = new.vdev.guid;
        writer.attach(old, new, request.mode, command(request.command.as_deref()))?;
        pool.vdev_event("vdev_attach", guid);
        Ok(())
    }

    /// Puts a spare in the place of a device.
    fn attach_spare(
        &self,
        pool: &Pool,
        old: Guid,
        spare: VdevConfig,
        sequential: bool,
        line: Option<&str>,
    ) -> Result<()> {
        let writer = pool.writer()?;
        let distributed = spare.kind == VdevType::DraidSpare;
        let opened = match distributed {
            true => None,
            false => {
                Some(spa::spares::open(&spare, pool.guid(), &pool.core.leaves, Purpose::Write)?)
            }
        };
        let (device, facts) = opened.map(|o| (o.device, o.facts)).unzip();
        let new = NewMember { vdev: spare, device, facts, ashift: None, sequential };
        let guid = new.vdev.guid;
        writer.attach(old, new, AttachMode::Replace, command(line))?;
        pool.vdev_event("vdev_spare", guid);
        Ok(())
    }

    /// The other imported pool that uses a spare.
    fn spare_user(&self, pool: &Pool, spare: Guid) -> Option<String> {
        let uses = |p: &Arc<Pool>| {
            p.guid() != pool.guid()
                && p.core.config().vdev_tree.leaves().any(|leaf| leaf.guid == spare)
        };
        self.imported().iter().find(|p| uses(p)).map(|p| p.name().to_owned())
    }

    /// Takes a device out of use (`zpool offline`). A cache device is closed until
    /// [`Engine::online`]; with `temporary`, or until the next import.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`; `Busy` when data is on no other device; `Unsupported`
    /// for a vdev that is no device; `Invalid` for an unused spare; `ReadOnly`; that of a
    /// suspension.
    pub fn offline(
        &self,
        pool: &Pool,
        device: &str,
        how: Offline,
        line: Option<&str>,
    ) -> Result<()> {
        if self.offline_cache(pool, device, how.temporary, line)? {
            return Ok(());
        }
        let guid = pool.member_named(device)?;
        pool.writer()?.offline(guid, how, command(line))
    }

    /// Takes a device back into use (`zpool online [-e]`). With `expand`, or with property
    /// `autoexpand`, its vdev uses what its devices gained. A suspended pool goes on, as with
    /// [`Engine::clear`].
    ///
    /// # Errors
    /// As [`Engine::offline`].
    pub fn online(
        &self,
        pool: &Pool,
        device: &str,
        expand: bool,
        line: Option<&str>,
    ) -> Result<()> {
        if self.online_cache(pool, device, line)? {
            return Ok(());
        }
        if pool.is_suspended() {
            return self.clear(pool, Some(device), line);
        }
        let guid = pool.member_named(device)?;
        let writer = pool.writer()?;
        writer.online(guid, &pool.core.leaves, command(line))?;
        pool.vdev_event("vdev_online", guid);
        match expand || writer.pool_flag("autoexpand") {
            true => writer.expand(guid, None),
            false => Ok(()),
        }
    }

    /// Opens all devices again that are missing (`zpool reopen`).
    ///
    /// # Errors
    /// `ReadOnly`; `Io` when too few devices are present.
    pub fn reopen(&self, pool: &Pool) -> Result<()> {
        pool.writer()?.reopen_missing(&pool.core.leaves)
    }

    /// Completes the status of a pool's spares: those that another pool uses.
    pub fn describe_spares(&self, pool: &Pool, aux: &mut [VdevStatus]) {
        let unused = |v: &&mut VdevStatus| v.class == VdevClass::Spare && v.aux.is_none();
        for spare in aux.iter_mut().filter(unused) {
            if let Some(user) = self.spare_user(pool, spare.guid) {
                spare.aux = Some(format!("in use by pool '{user}'"));
            }
        }
    }

    /// Looks after the devices of all imported pools: devices that are there again are taken
    /// back; with property `autoreplace`, a blank device at the place of a missing one replaces
    /// it; and spares step in for devices that failed ([`Engine::call_spares`]). A caller that
    /// looks after pools calls it after each change of a device, and every few seconds while
    /// devices are missing.
    pub fn look_after_devices(&self) -> LookedAfter {
        let mut out = LookedAfter::default();
        for pool in self.imported() {
            let Ok(writer) = pool.writer() else { continue };
            if pool.is_suspended() {
                continue;
            }
            for (guid, path) in missing(writer) {
                out.missing = true;
                match self.at_the_place(&pool, guid, &path) {
                    Place::Itself if is_back(writer, &pool, guid) => {
                        out.lines.push(format!("pool '{}': {path} is there again", pool.name()));
                    }
                    Place::Blank if pool.replaces_automatically() => {
                        let request = AttachRequest {
                            old: guid.0.to_string(),
                            new: None,
                            mode: AttachMode::Replace,
                            sequential: false,
                            force: false,
                            ashift: None,
                            command: None,
                        };
                        if self.attach(&pool, &request).is_ok() {
                            let line = format!("pool '{}': {path} is replaced", pool.name());
                            out.lines.push(line);
                        }
                    }
                    _ => {}
                }
            }
        }
        out.lines.extend(self.call_spares());
        out
    }

    /// What is at the place of a missing device.
    fn at_the_place(&self, pool: &Pool, guid: Guid, path: &str) -> Place {
        let Ok(opened) = pool.core.leaves.open(Path::new(path), Purpose::Probe) else {
            return Place::Other;
        };
        let Ok(labels) = spa::LeafLabels::read(&*opened.device) else { return Place::Other };
        let Some((label, _)) = labels.discovery_config() else {
            let used = inuse::inspect(&*opened.device, opened.block_device, &self.open_pools());
            return if used.is_ok_and(|used| used.is_empty()) {
                Place::Blank
            } else {
                Place::Other
            };
        };
        let own = label.u64("pool_guid") == Some(pool.guid().0);
        if own && label.u64("guid") == Some(guid.0) { Place::Itself } else { Place::Other }
    }

    /// Puts spares in the places of devices that are faulted, missing or removed, in all
    /// imported pools; returns what was done, a line for each. A caller that looks after pools
    /// calls it every few seconds.
    pub fn call_spares(&self) -> Vec<String> {
        let mut done = Vec::new();
        for pool in self.imported() {
            let Ok(writer) = pool.writer() else { continue };
            if pool.is_suspended() {
                continue;
            }
            let needy = in_need(writer);
            if needy.is_empty() {
                pool.core.spares_tried.lock().clear();
            }
            for guid in needy {
                done.extend(self.call_spare_for(&pool, guid));
            }
        }
        done
    }

    fn call_spare_for(&self, pool: &Pool, leaf: Guid) -> Option<String> {
        let writer = pool.writer().ok()?;
        let config = writer.published().config;
        let top = config.vdev_tree.children.iter().find(|top| top.find(leaf).is_some())?;
        let mut spares = writer.spares().ok()?;
        spares.retain(|(spare, used)| !used && self.spare_user(pool, spare.guid).is_none());
        // A distributed spare of the vdev is the fastest.
        let own = |spare: &VdevConfig| {
            spare.dspare.as_ref().is_none_or(|dspare| dspare.top_guid != top.guid)
        };
        spares.sort_by_key(|(spare, _)| own(spare));
        spares.into_iter().find_map(|(spare, _)| {
            let (name, tried) = (path_of(&spare).to_owned(), (leaf, spare.guid));
            if pool.core.spares_tried.lock().contains(&tried) {
                return None;
            }
            // As OpenZFS's agent does; beside a rebuild nothing else is possible.
            let sequential = spare.kind == VdevType::DraidSpare || writer.is_rebuilding();
            let attach =
                |sequential| self.attach_spare(pool, leaf, spare.clone(), sequential, None);
            // Without the feature, or while a resilver runs, a resilver does it.
            let attached = match attach(sequential) {
                Err(e) if sequential && e.kind() != ErrorKind::Io => attach(false),
                other => other,
            };
            match attached {
                Ok(()) => {
                    let old = config.vdev_tree.find(leaf).map_or("", path_of);
                    Some(format!("pool '{}': spare {name} replaces {old}", pool.name()))
                }
                Err(e) => {
                    // A spare that does not fit is not tried again for this device.
                    if e.kind() != ErrorKind::Io && !writer.is_rebuilding() {
                        pool.core.spares_tried.lock().insert(tried);
                    }
                    None
                }
            }
        })
    }
}

/// What was done for the devices of pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookedAfter {
    /// What was done, a line for each.
    pub lines: Vec<String>,
    /// Devices were missing.
    pub missing: bool,
}

/// What is at the place of a missing device.
enum Place {
    /// The device itself.
    Itself,
    /// A device without content.
    Blank,
    /// Nothing, or something else.
    Other,
}

/// Takes a device back that is there again; false if it is not as the pool left it.
fn is_back(writer: &Writer, pool: &Pool, guid: Guid) -> bool {
    let opened = writer.reopen_missing(&pool.core.leaves).is_ok();
    opened && writer.zio().tree().find(guid).is_some_and(|node| node.readable())
}

/// Guids and paths of the devices that are missing.
fn missing(writer: &Writer) -> Vec<(Guid, String)> {
    let tree = writer.zio().tree();
    let gone = |state| matches!(state, VdevState::Unavail | VdevState::Removed);
    let leaves = tree.leaves().map(|(_, node)| node).filter(|node| gone(node.state()));
    leaves.filter_map(|node| Some((node.guid(), node.path()?.to_owned()))).collect()
}

/// The leaves that need a spare and have none that works.
fn in_need(writer: &Writer) -> Vec<Guid> {
    let (tree, config) = (writer.zio().tree(), writer.published().config);
    let works = |vdev: &VdevConfig| tree.find(vdev.guid).is_some_and(|node| node.readable());
    let failed = |leaf: &&VdevConfig| {
        let state = tree.find(leaf.guid).map(|node| node.state());
        matches!(state, Some(VdevState::Faulted | VdevState::Unavail | VdevState::Removed))
    };
    let mut out = Vec::new();
    for top in &config.vdev_tree.children {
        if top.top.as_ref().is_some_and(|t| t.is_log) {
            continue;
        }
        for leaf in top.leaves().filter(|l| l.kind != VdevType::DraidSpare).filter(failed) {
            let parent =
                config.vdev_tree.walk().find(|v| v.children.iter().any(|c| c.guid == leaf.guid));
            let covered = parent.is_some_and(|parent| {
                matches!(parent.kind, VdevType::Spare | VdevType::Replacing)
                    && parent.children.iter().any(works)
            });
            if !covered {
                out.push(leaf.guid);
            }
        }
    }
    out
}

/// The file or device at the path of a leaf.
fn same_place(writer: &Writer, old: Guid) -> Result<NewKind> {
    let config = writer.published().config;
    let leaf = config.vdev_tree.find(old).ok_or_else(no_such_device)?;
    let path = path_of(leaf).into();
    match leaf.kind {
        VdevType::File => Ok(NewKind::File(path)),
        VdevType::Disk => Ok(NewKind::Disk(path)),
        _ => Err(Error::unsupported("can only replace devices")),
    }
}
