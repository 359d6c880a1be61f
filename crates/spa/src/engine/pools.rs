//! Changing a pool as a whole: vdevs, properties, guid (chapter 01 §4, §5.4;
//! chapter 04 §12.5; chapter 05 §1).
//!
//! # Theory
//! New devices first get labels of txg 0, like those of a new pool. The txg that adds them
//! writes the configuration, their ZAPs and metaslab arrays, and labels with its number.
//! Nothing is allocated from them before it is durable.
//!
//! # Invariants
//! * A refused request leaves at most labels of txg 0 behind, which belong to no pool.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use base::{Error, Guid, ObjectId, Result, Txg, VdevId};
use device::Device;
use dmu::ObjectSpec;
use dsl::stored::Stored;
use dsl::write::store::DIRECTORY;
use dsl::write::{MosRead, Ratios, props};
use metaslab::MsDesc;
use nvlist::{NvList, NvStr};
use ondisk::ObjType;
use ondisk::config::{PoolConfig, PoolState, VdevConfig, VdevType};
use ondisk::zap::ZapValue;
use txg::FailMode;
use vdev::Tree;

use super::open::{class_for, describe};
use super::tasks::{Command, TaskCx};
use super::topology::TreeChange;
use super::{Writer, effective};
use crate::obsolete::removed_vdevs;
use crate::write::config::{PoolFacts, aux, has_labels, initial};
use crate::write::labels;
use crate::write::topology::Built;

/// Block size of the lists of spares and cache devices.
const LIST_BLOCK: u32 = 16 << 10;

/// Devices of new vdevs by leaf.
pub type Devices = BTreeMap<Guid, Arc<dyn Device>>;

/// A change of the pool's own properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolChange {
    /// An entry of the pool's property ZAP; `None` removes it.
    Prop(String, Option<Stored>),
    /// The dataset to boot from, by its full name; empty is none.
    Bootfs(String),
    /// Property `comment`; empty is none.
    Comment(String),
    /// Property `compatibility`; empty is none.
    Compatibility(String),
}

/// Writes the labels of unused spares and of cache devices.
///
/// # Errors
/// Those of the devices; `Bug` for a device that was not given.
pub fn init_aux_labels(built: &Built, devices: &Devices) -> Result<()> {
    let spares = built.spares.iter().map(|v| (v, PoolState::Spare));
    let caches = built.caches.iter().map(|v| (v, PoolState::L2cache));
    for (vdev, state) in spares.chain(caches).filter(|(v, _)| has_labels(v)) {
        let device = devices.get(&vdev.guid);
        let device = device.ok_or_else(|| base::bug!("a new device that is not open"))?;
        labels::init(&**device, &aux(state, vdev))?;
    }
    Ok(())
}

impl TaskCx<'_> {
    /// Adds devices to the list of spares or cache devices (chapter 01 §4.7).
    ///
    /// # Errors
    /// Those of the store.
    pub fn add_aux(&mut self, key: &str, devices: &[VdevConfig]) -> Result<()> {
        if devices.is_empty() {
            return Ok(());
        }
        let os = self.mos().objset();
        let known = self.read().directory(key)?;
        let mut all: Vec<NvList> = match known {
            Some(object) => {
                let list = self.mos().packed_nvlist(object)?;
                list.lists(key).map(<[NvList]>::to_vec).unwrap_or_default()
            }
            None => Vec::new(),
        };
        all.extend(devices.iter().map(VdevConfig::to_nvlist));
        let mut list = NvList::new();
        list.add_lists(key, all);
        let object = match known {
            Some(object) => ObjectId(object),
            None => {
                let object = os.allocate(
                    self.tx,
                    &ObjectSpec {
                        object_type: ObjType::PACKED_NVLIST,
                        block_size: LIST_BLOCK,
                        bonus_type: ObjType::PACKED_NVLIST_SIZE,
                        bonus: vec![0; 8],
                        ..ObjectSpec::default()
                    },
                )?;
                let number = ZapValue::from_u64(object.0);
                self.cx.mos.zap_update(DIRECTORY, key.as_bytes(), &number)?;
                object
            }
        };
        self.write_aux(object, &list)?;
        self.config();
        Ok(())
    }

    /// Writes a list of spares or cache devices.
    pub(super) fn write_aux(&mut self, object: ObjectId, list: &NvList) -> Result<()> {
        let os = self.mos().objset();
        let packed = list.pack_xdr();
        os.write(self.tx, object, 0, &packed)?;
        os.set_bonus(self.tx, object, &(packed.len() as u64).to_le_bytes())
    }

    fn add_top(&mut self, top: &VdevConfig, tree: &Tree) -> Result<()> {
        let id = VdevId(top.id);
        let class = class_for(tree, &self.state.new_vdevs, id)?;
        let mut desc = describe(tree, top, class)?;
        desc.metaslabs.resize((desc.asize >> desc.ms_shift) as usize, MsDesc::default());
        self.writer.space.add_vdev(&desc, Some(self.cx.txg))?;
        let deflate = &mut self.state.deflate;
        deflate.resize(deflate.len().max(id.0 as usize + 1), 512);
        deflate[id.0 as usize] = tree.deflate_ratio(id)?;
        self.state.ratios = Ratios::new(deflate.clone());
        Ok(())
    }

    fn add_all(&mut self, built: &Built, devices: &Devices) -> Result<()> {
        let config = self.config();
        config.vdev_tree.children.extend(built.tops.iter().map(|(top, _)| top.clone()));
        for (top, role) in &built.tops {
            self.state.new_vdevs.insert(VdevId(top.id), role.allocation_bias());
        }
        let tree = self.changed_tree(devices)?;
        for (top, _) in &built.tops {
            self.add_top(top, &tree)?;
        }
        self.publish(TreeChange { devices: Some(devices), ..TreeChange::default() }, &|_| {})?;
        self.add_aux("spares", &built.spares)?;
        self.add_aux("l2cache", &built.caches)?;
        for (top, _) in &built.tops {
            let path = top.leaves().next().and_then(|l| l.path.as_ref()?.to_str());
            let what = path.unwrap_or(top.kind.name());
            self.log_internal("vdev add", None, what)?;
        }
        Ok(())
    }
}

/// Mappings of removed vdevs lead to vdevs without parity.
const NO_PARITY: &str = "invalid config; a pool with removing/removed vdevs does not support \
                         adding raidz or dRAID vdevs";

fn config_text(text: &str) -> Result<Option<NvStr>> {
    if text.is_empty() { Ok(None) } else { NvStr::new(text.as_bytes()).map(Some) }
}

/// The future configuration, for the new labels.
fn grown(config: &PoolConfig, built: &Built) -> PoolConfig {
    let mut config = config.clone();
    config.vdev_tree.children.extend(built.tops.iter().map(|(top, _)| top.clone()));
    config
}

impl Writer {
    /// Applies property `failmode` from now on. If nothing can end a suspension, no caller
    /// waits for its end.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub(crate) fn follow_failmode(&self, mos: &dyn MosRead) -> Result<()> {
        let zap = mos.directory("pool_props")?;
        let mode = zap.map(|zap| mos.number(zap, "failmode")).transpose()?.flatten();
        // A library must not panic on `panic`.
        let waits = mode.unwrap_or(0) == 0 && self.options.resumes;
        self.txgs.set_failmode(if waits { FailMode::Wait } else { FailMode::Continue });
        Ok(())
    }

    /// Adds vdevs, spares and cache devices that were built for this pool's configuration.
    /// The caller checks redundancy and use by others.
    ///
    /// # Errors
    /// `Busy` when the configuration changed since; `Invalid` for RAID-Z and dRAID in a pool
    /// with removed vdevs; those of the devices; those of a suspension.
    pub fn add_vdevs(
        &self,
        built: Built,
        devices: Devices,
        command: Option<Command>,
    ) -> Result<()> {
        let now = self.published().config;
        let has_parity = |top: &VdevConfig| top.raidz.is_some() || top.draid.is_some();
        let leaving = self.removal.is_active() || removed_vdevs(&now).next().is_some();
        if leaving && built.tops.iter().any(|(t, _)| has_parity(t)) {
            return Err(Error::invalid(NO_PARITY));
        }
        let facts = PoolFacts::of(&grown(&now, &built));
        for (top, _) in &built.tops {
            for (guid, list) in initial(&facts, top, self.txgs.open_txg()) {
                let device = devices.get(&guid);
                let device = device.ok_or_else(|| base::bug!("a new device that is not open"))?;
                labels::init(&**device, &list).map_err(|e| e.on_vdev(guid))?;
            }
        }
        init_aux_labels(&built, &devices)?;
        let first = built.tops.first().map(|(top, _)| top.id);
        let check = move |cx: &mut TaskCx<'_>| {
            let next = cx.state.config.vdev_tree.children.len();
            if first.is_some_and(|id| id as usize != next) {
                return Err(Error::busy("the pool's devices changed meanwhile"));
            }
            Ok(())
        };
        let act = move |cx: &mut TaskCx<'_>, ()| {
            let mut built = built;
            for (top, _) in &mut built.tops {
                set_created(top, cx.cx.txg);
            }
            cx.add_all(&built, &devices)?;
            command.map_or(Ok(()), |c| cx.log_command(&c))
        };
        self.sync_task(check, act)?;
        // A new class of vdevs changes where blocks are allocated.
        self.sync_task(|_| Ok(()), |cx, ()| cx.refresh_heads()).map(|_| ())
    }

    /// Gives the pool another guid.
    ///
    /// # Errors
    /// `Busy` with a checkpoint; those of a suspension.
    pub fn reguid(&self, guid: Guid, command: Option<Command>) -> Result<()> {
        let act = move |cx: &mut TaskCx<'_>, ()| {
            let config = cx.config();
            let old = std::mem::replace(&mut config.pool_guid, guid);
            config.vdev_tree.guid = guid;
            let text = format!("old={} new={}", old.0, guid.0);
            cx.log_internal("guid change", None, &text)?;
            command.map_or(Ok(()), |c| cx.log_command(&c))
        };
        self.sync_task(|cx| cx.check_no_checkpoint(), act).map(|_| ())
    }

    /// Changes the pool's own properties.
    ///
    /// # Errors
    /// `NotFound` for a `bootfs` that does not exist; `Invalid`, `NameTooLong`; those of a
    /// suspension.
    pub fn set_pool(&self, changes: Vec<PoolChange>, command: Option<Command>) -> Result<()> {
        let list = changes.clone();
        let check = move |cx: &mut TaskCx<'_>| {
            let mut boot = HashMap::new();
            for change in &list {
                match change {
                    PoolChange::Prop(name, _) => props::check_name(name)?,
                    PoolChange::Bootfs(name) if !name.is_empty() => {
                        let dir = effective::find_dir(cx.read(), cx.writer.name(), name)?;
                        boot.insert(name.clone(), cx.read().dir(dir)?.head_dataset_obj);
                    }
                    PoolChange::Comment(text) | PoolChange::Compatibility(text) => {
                        config_text(text)?;
                    }
                    PoolChange::Bootfs(_) => {}
                }
            }
            Ok(boot)
        };
        let act = move |cx: &mut TaskCx<'_>, boot: HashMap<String, u64>| {
            for change in &changes {
                let text = cx.change_pool(change, &boot)?;
                cx.log_internal("set", None, &text)?;
            }
            cx.writer.follow_failmode(cx.read())?;
            cx.writer.follow_dedup_quota(cx.read())?;
            command.map_or(Ok(()), |c| cx.log_command(&c))
        };
        self.sync_task(check, act)?;
        // With `autoexpand`, vdevs use what their devices have.
        self.topology_settled();
        self.follow_autotrim(&self.mos)
    }
}

fn set_created(vdev: &mut VdevConfig, txg: Txg) {
    if vdev.kind != VdevType::Root {
        vdev.create_txg = txg;
    }
    vdev.children.iter_mut().for_each(|child| set_created(child, txg));
}

impl TaskCx<'_> {
    /// Makes one change; returns its text for the history.
    fn change_pool(&mut self, change: &PoolChange, boot: &HashMap<String, u64>) -> Result<String> {
        Ok(match change {
            PoolChange::Prop(name, value) => {
                props::set_pool(self.cx, name, value.as_ref())?;
                match value {
                    Some(Stored::Number(n)) => format!("{name}={n}"),
                    Some(Stored::Text(t)) => format!("{name}={t}"),
                    None => format!("{name}="),
                }
            }
            PoolChange::Bootfs(name) => {
                let head = boot.get(name).copied().unwrap_or(0);
                props::set_pool(self.cx, "bootfs", Some(&Stored::Number(head)))?;
                format!("bootfs={head}")
            }
            PoolChange::Comment(text) => {
                self.config().comment = config_text(text)?;
                format!("comment={text}")
            }
            PoolChange::Compatibility(text) => {
                self.config().compatibility = config_text(text)?;
                format!("compatibility={text}")
            }
        })
    }
}
