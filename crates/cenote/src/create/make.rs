//! Creating pools, and changing them as a whole.
//!
//! # Theory
//! A new pool is written by a temporary writer, which ends when the pool is on disk. Then
//! the pool is imported like any other. So its state in use was read back from disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Error, Guid, Result, Txg};
use device::{Device, FileDevice, OpenOptions};
use dsl::stored::Stored;
use ondisk::config::VdevConfig;
use ondisk::features::by_name;
use ondisk::objset::ObjsetType;
use spa::LeafLabels;
use spa::engine::create::{CreateSpec, create};
use spa::engine::{Command, Devices, PoolChange, WriterOptions, init_aux_labels};
use spa::write::inuse::OpenPool;
use spa::write::topology::{BuildOptions, Built, LeafFacts, build};
use spa::{ImportOptions, Search};

use super::{AddRequest, CreateRequest, NewVdev, PoolSetting};
use crate::changes::{command, filesystem, process_owner, split_for_life};
use crate::engine::Engine;
use crate::opening::{Opening, PoolLeaves, Reserved};
use crate::pool::Pool;

/// The txg in which a new pool's devices are created.
const FIRST_TXG: Txg = Txg(4);
/// The version of pools with features.
const VERSION: u64 = 5000;

/// The state of a spare in its label (chapter 01 §4.6).
const SPARE: u64 = 3;

/// An open device: for examination, and for use in the pool.
pub(crate) struct OpenDevice {
    file: Arc<FileDevice>,
    leaf: Arc<dyn Device>,
}

/// Open devices by path.
pub(crate) struct OpenDevices(BTreeMap<PathBuf, OpenDevice>);

impl OpenDevices {
    pub(crate) fn of(vdevs: &[NewVdev], leaves: &PoolLeaves) -> Result<OpenDevices> {
        let mut open = BTreeMap::new();
        for path in vdevs.iter().flat_map(NewVdev::paths) {
            let engine = Some(Arc::clone(leaves.engine()));
            let options = OpenOptions { write: true, engine, ..OpenOptions::default() };
            let watch = leaves.watch(path)?;
            let file = Arc::new(FileDevice::open(path, &options)?);
            drop(watch);
            let leaf = leaves.wrap(Arc::clone(&file), path);
            open.insert(path.to_path_buf(), OpenDevice { file, leaf });
        }
        Ok(OpenDevices(open))
    }

    pub(crate) fn facts(&self, path: &Path) -> Result<LeafFacts> {
        let device = self.0.get(path).ok_or_else(|| Error::bug("a device that is not open"))?;
        Ok(LeafFacts::of(&*device.leaf, device.file.is_block_device()))
    }

    /// The device at a path.
    pub(crate) fn device(&self, path: &Path) -> Option<Arc<dyn Device>> {
        self.0.get(path).map(|open| Arc::clone(&open.leaf))
    }

    /// Gives spares that other pools have as well the guid by which those know them (chapter 01
    /// §4.7).
    ///
    /// # Errors
    /// `Busy` in OpenZFS's words for a spare that the pool itself has, by its guid `own`.
    fn share_spares(&self, built: &mut Built, pools: &[OpenPool], own: Option<Guid>) -> Result<()> {
        for spare in &mut built.spares {
            let path = spare.path.as_ref().and_then(|p| p.to_str()).unwrap_or_default();
            let Some(open) = self.0.get(Path::new(path)) else { continue };
            let labels = LeafLabels::read(&*open.leaf)?;
            let Some((label, _)) = labels.discovery_config() else { continue };
            let guid = label.u64("guid").map(Guid).filter(|_| label.u64("state") == Some(SPARE));
            let Some(guid) = guid else { continue };
            let mut holders = pools.iter().filter(|pool| pool.spares.contains(&guid)).peekable();
            if holders.peek().is_none() {
                continue;
            }
            if holders.any(|pool| Some(pool.guid) == own) {
                return Err(Error::busy(
                    "one or more vdevs refer to the same device, or one of\nthe devices is part of \
                     an active md or lvm device",
                ));
            }
            spare.guid = guid;
        }
        Ok(())
    }

    fn by_guid(&self, built: &Built) -> Devices {
        let tops = built.tops.iter().flat_map(|(top, _)| top.leaves());
        let all = tops.chain(&built.spares).chain(&built.caches);
        let device = |leaf: &VdevConfig| -> Option<(Guid, Arc<dyn Device>)> {
            let path = Path::new(leaf.path.as_ref()?.to_str()?);
            Some((leaf.guid, Arc::clone(&self.0.get(path)?.leaf)))
        };
        all.filter_map(device).collect()
    }
}

fn max_ashift(built: &Built) -> u32 {
    let shifts = built.tops.iter().filter_map(|(top, _)| Some(top.top.as_ref()?.ashift));
    shifts.max().unwrap_or(9)
}

/// Properties in a new pool's ZAP.
fn pool_props(settings: &[PoolSetting]) -> Vec<(String, Stored)> {
    let one = |setting: &PoolSetting| match setting {
        PoolSetting::Stored(name, n) => Some(((*name).to_owned(), Stored::Number(*n))),
        PoolSetting::User(name, text) if !text.is_empty() => {
            Some((name.clone(), Stored::Text(text.clone())))
        }
        _ => None,
    };
    settings.iter().filter_map(one).collect()
}

fn comment(setting: &PoolSetting) -> Option<String> {
    match setting {
        PoolSetting::Comment(text) if !text.is_empty() => Some(text.clone()),
        _ => None,
    }
}

fn compatibility(setting: &PoolSetting) -> Option<String> {
    match setting {
        PoolSetting::Compatibility(text) if !text.is_empty() => Some(text.clone()),
        _ => None,
    }
}

impl Engine {
    /// Writes the requested pool, and imports it. All checks that need no write access were
    /// made before.
    pub(super) fn make_pool(
        &self,
        request: &CreateRequest,
        opening: &Arc<Opening>,
        reserved: Reserved,
    ) -> Result<Arc<Pool>> {
        let version = request.version;
        let features = version == VERSION;
        let (uid, gid) = process_owner();
        let plain = zpl::NewFs {
            version: zpl::create::version_for(version),
            uid,
            gid,
            count_owners: zpl::create::version_for(version) > 3,
            count_objects: features,
            count_projects: features,
            ..zpl::NewFs::default()
        };
        let (new, root_props) = split_for_life(&request.fs_settings, plain)?;
        let open = OpenDevices::of(&request.vdevs, &self.leaves_for(opening)?)?;
        let options = BuildOptions { ashift: request.ashift(), first_id: 0, create_txg: FIRST_TXG };
        let mut built = build(&request.vdevs, options, [], &|path: &Path| open.facts(path))?;
        open.share_spares(&mut built, &self.open_pools(), None)?;
        let devices = open.by_guid(&built);
        init_aux_labels(&built, &devices)?;
        let settings = &request.settings;
        let spec = CreateSpec {
            name: request.name.clone(),
            version,
            tops: built.tops.clone(),
            devices,
            features: request.features.clone(),
            pool_props: pool_props(settings),
            root_props,
            comment: settings.iter().find_map(comment),
            compatibility: settings.iter().find_map(compatibility),
            hostid: spa::own_hostid(),
            hostname: spa::own_hostname(),
            root: filesystem(new),
            root_kind: ObjsetType::Zfs,
            options: WriterOptions { max_ashift: max_ashift(&built), ..WriterOptions::default() },
        };
        let writer = create(spec, self.block_cache())?;
        let line = request.command.clone().map(Command::new);
        let (spares, caches) = (built.spares, built.caches);
        let task = move |cx: &mut spa::engine::TaskCx<'_>, ()| {
            cx.log_internal("create", None, &format!("pool version {version}; Cenote"))?;
            cx.add_aux("spares", &spares)?;
            cx.add_aux("l2cache", &caches)?;
            line.map_or(Ok(()), |line| cx.log_command(&line))
        };
        let guid = writer.published().config.pool_guid;
        let done = writer.sync_task(|_| Ok(()), task);
        writer.stop();
        drop((writer, open));
        done?;
        let pool = self.import_new(request, guid, opening, reserved)?;
        pool.sysevent("pool_create", &nvlist::NvList::new());
        Ok(pool)
    }

    fn import_new(
        &self,
        request: &CreateRequest,
        guid: Guid,
        opening: &Arc<Opening>,
        reserved: Reserved,
    ) -> Result<Arc<Pool>> {
        let paths = request.vdevs.iter().flat_map(NewVdev::paths).map(Path::to_path_buf).collect();
        let found = self.discover(&Search { paths, ..Search::default() })?;
        let found = found.pools.into_iter().find(|p| p.guid == guid);
        let found = found.ok_or_else(|| Error::not_found("the new pool cannot be found"))?;
        let options = ImportOptions {
            // The pool was created here, whatever the host name is.
            force: true,
            altroot: request.altroot.clone(),
            new_name: request.temporary_name.clone(),
            temporary_name: request.temporary_name.is_some(),
            ..ImportOptions::default()
        };
        self.import_reserved(&found, &options, opening, reserved)
    }

    /// Adds the requested vdevs, which were checked before.
    pub(super) fn grow_pool(&self, pool: &Pool, request: &AddRequest) -> Result<()> {
        let writer = pool.writer()?;
        let open = OpenDevices::of(&request.vdevs, &pool.core.leaves)?;
        let now = writer.published().config;
        let children = &now.vdev_tree.children;
        let first_id =
            u32::try_from(children.len()).map_err(|_| Error::limit("too many top-level vdevs"))?;
        let mut taken = Vec::new();
        spa::specs::for_each(&now.vdev_tree, &mut |v| taken.push(v.guid));
        let create_txg = writer.txgs().open_txg();
        // The property is for vdevs to come; 0 leaves it to the devices.
        let ashift = match (request.ashift, pool.stored("ashift")?) {
            (None, Some(crate::PropData::Num(n))) => u32::try_from(n).ok().filter(|&n| n != 0),
            (asked, _) => asked,
        };
        let options = BuildOptions { ashift, first_id, create_txg };
        let mut built = build(&request.vdevs, options, taken, &|path: &Path| open.facts(path))?;
        open.share_spares(&mut built, &self.open_pools(), Some(pool.guid()))?;
        let devices = open.by_guid(&built);
        let open = |vdev: &VdevConfig| Some((vdev.clone(), Arc::clone(devices.get(&vdev.guid)?)));
        let caches: Vec<_> = built.caches.iter().filter_map(open).collect();
        let new: Vec<Guid> = built.tops.iter().map(|top| top.0.guid).collect();
        writer.add_vdevs(built, devices, command(request.command.as_deref()))?;
        new.into_iter().for_each(|guid| pool.vdev_event("vdev_add", guid));
        self.add_caches(pool, &caches)
    }
}

/// The change of the engine's that a setting is, if it is one that every pool may have.
pub(crate) fn change_of(setting: &PoolSetting) -> Option<PoolChange> {
    Some(match setting {
        PoolSetting::Stored(name, n) => {
            PoolChange::Prop((*name).to_owned(), Some(Stored::Number(*n)))
        }
        PoolSetting::User(name, text) => {
            let value = (!text.is_empty()).then(|| Stored::Text(text.clone()));
            PoolChange::Prop(name.clone(), value)
        }
        PoolSetting::Bootfs(name) => PoolChange::Bootfs(name.clone()),
        PoolSetting::Comment(text) => PoolChange::Comment(text.clone()),
        PoolSetting::Compatibility(text) => PoolChange::Compatibility(text.clone()),
        PoolSetting::Feature(..)
        | PoolSetting::Version(_)
        | PoolSetting::Altroot(_)
        | PoolSetting::Cachefile(_)
        | PoolSetting::TemporaryName(_)
        | PoolSetting::NoEffect(_) => return None,
    })
}

impl Pool {
    /// Gives the pool the guid, or a random one.
    pub(super) fn change_guid(&self, guid: Option<Guid>, line: Option<&str>) -> Result<()> {
        let guid = match guid {
            Some(guid) if guid.0 == 0 => return Err(Error::invalid("a pool's guid is not 0")),
            Some(guid) => guid,
            None => Guid(base::rt::random_u64()?.max(1)),
        };
        self.writer()?.reguid(guid, command(line))?;
        self.sysevent("pool_reguid", &nvlist::NvList::new());
        Ok(())
    }

    /// Applies a checked setting.
    pub(super) fn apply(&self, setting: &PoolSetting, line: Option<&str>) -> Result<()> {
        let writer = self.writer()?;
        match setting {
            PoolSetting::Feature(name, true) => {
                let feature = by_name(name)
                    .ok_or_else(|| Error::invalid(format!("feature '{name}' unsupported")))?;
                if !self.requested_features()?.has(name) {
                    return Err(Error::invalid(format!(
                        "feature '{name}' is not in the sets of property 'compatibility'"
                    )));
                }
                return writer.enable_features(vec![feature], command(line));
            }
            PoolSetting::Version(version) => {
                return writer.upgrade(*version, Vec::new(), command(line));
            }
            _ => {}
        }
        // Others are kept by the front end while the pool is imported.
        change_of(setting).map_or(Ok(()), |change| writer.set_pool(vec![change], command(line)))
    }

    /// Adds a command to the pool's history.
    ///
    /// # Errors
    /// `ReadOnly` for a pool imported read-only; `Io` when the pool is suspended.
    pub fn log_command(&self, line: &str) -> Result<()> {
        self.writer()?.log_command(Command::new(line))
    }

    /// Marks the pool destroyed.
    pub(super) fn destroy_with(&self, line: Option<&str>) -> Result<()> {
        if let Some(line) = line {
            self.writer()?.log_command(Command::new(line))?;
        }
        self.destroy()
    }
}
