//! Creating a pool (chapter 04 §15, chapter 01 §5.4).
//!
//! # Theory
//! The devices first get labels of txg 0, which are not valid for a pool. Then a writer is
//! started over an empty MOS, and one sync task fills it. Its txg is the pool's first, and
//! its uberblock makes the pool valid.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::rt::random_bytes;
use base::{Error, Guid, Result, Txg, VdevId};
use device::Device;
use dmu::{Objset, ObjsetProps, Tx};
use dsl::Mos;
use dsl::stored::Stored;
use dsl::write::initial::{self, Initial, NewPool};
use dsl::write::props::{self, Change, Target};
use nvlist::{NvList, NvStr};
use ondisk::config::{PoolConfig, PoolState, VdevConfig, VdevType};
use ondisk::features::Feature;
use ondisk::objset::ObjsetType;
use ondisk::uberblock::VERSION_FEATURES;
use vdev::{LeafSpec, Tree};
use zio::{BlockCache, Zio};

use super::{Parts, Writer, WriterOptions, assemble, objset_props};
use crate::specs::{self, Extra};
use crate::write::config::{PoolFacts, initial as initial_labels};
use crate::write::labels;
use crate::write::topology::{Role, plain_node};
use crate::write::uberblock::{INITIAL_TXG, template};

/// The txg in which a pool is created.
const FIRST_TXG: Txg = Txg(4);
/// Version from which on RAID-Z has up to three parity columns.
const VERSION_RAIDZ3: u64 = 17;

/// Fills the root dataset's object set.
pub(crate) type RootContent = Box<dyn FnOnce(&Arc<Objset>, &Tx) -> Result<()> + Send>;

/// Parameters of a new pool.
pub struct CreateSpec {
    /// Its name.
    pub name: String,
    /// Its version: 10 to 28 without features, or 5000.
    pub version: u64,
    /// Top-level vdevs in order, with their roles.
    pub tops: Vec<(VdevConfig, Role)>,
    /// Devices by leaf.
    pub devices: BTreeMap<Guid, Arc<dyn Device>>,
    /// Features to enable, with those that they depend on first.
    pub features: Vec<&'static Feature>,
    /// Numeric and text properties of the pool's ZAP.
    pub pool_props: Vec<(String, Stored)>,
    /// Properties of the root dataset.
    pub root_props: Vec<(String, Stored)>,
    /// Property `comment`.
    pub comment: Option<String>,
    /// Property `compatibility`.
    pub compatibility: Option<String>,
    /// This host.
    pub hostid: u64,
    /// This host.
    pub hostname: Option<String>,
    /// The initial content of the root dataset.
    pub root: RootContent,
    /// Kind of the root dataset: a file system, except in tests.
    pub root_kind: ObjsetType,
    /// Options of the writer.
    pub options: WriterOptions,
}

impl CreateSpec {
    /// A pool of this build's version and features, with an empty root file system and
    /// defaults otherwise.
    pub fn new(
        name: &str,
        tops: Vec<(VdevConfig, Role)>,
        devices: BTreeMap<Guid, Arc<dyn Device>>,
    ) -> CreateSpec {
        CreateSpec {
            name: name.to_owned(),
            version: ondisk::uberblock::VERSION_FEATURES,
            tops,
            devices,
            features: dsl::write::features::maintained().collect(),
            pool_props: Vec::new(),
            root_props: Vec::new(),
            comment: None,
            compatibility: None,
            hostid: 0,
            hostname: None,
            root: Box::new(|_, _| Ok(())),
            root_kind: ObjsetType::Zfs,
            options: WriterOptions::default(),
        }
    }
}

fn text(s: &Option<String>) -> Result<Option<NvStr>> {
    s.as_deref().map(|s| NvStr::new(s.as_bytes())).transpose()
}

fn config_of(spec: &CreateSpec) -> Result<PoolConfig> {
    let guid = base::rt::random_u64()?.max(1);
    let mut root = plain_node(VdevType::Root, Guid(guid), Txg::ZERO);
    root.children = spec.tops.iter().map(|(top, _)| top.clone()).collect();
    Ok(PoolConfig {
        version: spec.version,
        name: spec.name.clone(),
        state: PoolState::Active,
        txg: Txg::ZERO,
        pool_guid: Guid(guid),
        errata: 0,
        hostid: spec.hostid,
        hostname: text(&spec.hostname)?,
        comment: text(&spec.comment)?,
        compatibility: text(&spec.compatibility)?,
        vdev_children: u32::try_from(root.children.len()).ok(),
        hole_array: Vec::new(),
        split_guid: None,
        member: None,
        vdev_tree: root,
        features_for_read: Vec::new(),
        has_per_vdev_zaps: false,
        raw: NvList::new(),
    })
}

/// Labels of txg 0 on every device (chapter 01 §5.4).
fn init_labels(spec: &CreateSpec, config: &PoolConfig) -> Result<()> {
    let facts = PoolFacts::of(config);
    for top in &config.vdev_tree.children {
        for (guid, list) in initial_labels(&facts, top, FIRST_TXG) {
            let device = spec
                .devices
                .get(&guid)
                .ok_or_else(|| base::bug!("a new vdev without its device").on_vdev(guid))?;
            labels::init(&**device, &list)?;
        }
    }
    Ok(())
}

/// Checks what a pool without features cannot have.
fn check_version(spec: &CreateSpec) -> Result<()> {
    if spec.version == VERSION_FEATURES {
        return Ok(());
    }
    if !crate::VERSIONS_WRITTEN.contains(&spec.version) {
        let text = format!("pools of version {} cannot be made", spec.version);
        return Err(Error::unsupported(text));
    }
    if !spec.features.is_empty() {
        return Err(Error::invalid("features need a pool of version 5000"));
    }
    let mut tops = spec.tops.iter();
    if tops.any(|(top, role)| {
        top.kind == VdevType::Draid || !matches!(role.allocation_bias(), None | Some("log"))
    }) {
        return Err(Error::unsupported("pool must be upgraded to support these vdevs"));
    }
    let triple = |v: &VdevConfig| v.raidz.as_ref().is_some_and(|r| r.nparity > 2);
    if spec.version < VERSION_RAIDZ3 && spec.tops.iter().any(|(top, _)| triple(top)) {
        return Err(Error::unsupported("pool must be upgraded to support these vdevs"));
    }
    Ok(())
}

/// Creates the pool. It is on disk when this returns, and its writer still runs.
///
/// # Errors
/// Those of the devices; `Invalid` and the like for impossible parameters.
pub fn create(spec: CreateSpec, cache: &Arc<BlockCache>) -> Result<Arc<Writer>> {
    check_version(&spec)?;
    let config = config_of(&spec)?;
    init_labels(&spec, &config)?;
    let tree_spec = specs::trusted(&config.vdev_tree, Extra::default())?;
    let open = |leaf: &LeafSpec| {
        let device = spec.devices.get(&leaf.guid).cloned();
        device.ok_or_else(|| Error::not_found("no such device"))
    };
    let tree = Tree::build(&tree_spec, &open)?;
    let zio = Arc::new(Zio::new(tree, Arc::clone(cache)));
    let count_owners = spec.version >= crate::VERSION_OWNERS;
    let props = ObjsetProps { count_owners, ..ObjsetProps::mos() };
    let mos = Objset::create(Arc::clone(&zio), 0, ObjsetType::Meta, props);
    let mos = Mos::new(mos)?;
    let roles = spec.tops.iter().map(|(top, role)| (VdevId(top.id), role.allocation_bias()));
    let parts = Parts {
        zio,
        mos,
        name: config.name.clone(),
        config,
        uberblock: template(spec.version, INITIAL_TXG),
        space: None,
        roles: roles.collect(),
    };
    let writer = assemble(parts, spec.options.clone())?;
    // The creator of a pool gets an error instead of a suspension.
    writer.txgs.set_failmode(txg::FailMode::Continue);
    writer.start()?;
    writer.fill(spec)?;
    Ok(writer)
}

impl Writer {
    fn fill(self: &Arc<Self>, spec: CreateSpec) -> Result<Initial> {
        let mut salt = [0; 32];
        random_bytes(&mut salt)?;
        self.zio.set_salt(&salt);
        let capacity = self.space.class_totals(metaslab::SpaceClass::Normal).capacity;
        let CreateSpec { version, features, pool_props, root_props, root, root_kind, .. } = spec;
        let zio = Arc::clone(&self.zio);
        let act = move |cx: &mut super::TaskCx<'_>, ()| {
            let borrowed: Vec<(&str, Stored)> =
                pool_props.iter().map(|(n, v)| (n.as_str(), v.clone())).collect();
            let pool = NewPool {
                version,
                features: &features,
                dspace: capacity,
                salt,
                pool_props: &borrowed,
            };
            let made = initial::create(cx.cx, &pool)?;
            for (name, value) in &root_props {
                let change = Change::Set(value.clone());
                props::change(cx.cx, Target::Dir(made.root_dir), name, &change)?;
            }
            let flags = cx.flags()?;
            let known: BTreeMap<&str, u64> = root_props
                .iter()
                .filter_map(|(name, value)| match value {
                    Stored::Number(n) => Some((name.as_str(), *n)),
                    Stored::Text(_) => None,
                })
                .collect();
            let props = objset_props(&flags, &|name| Ok(known.get(name).copied()))?;
            let os = Objset::create(zio, made.root_head, root_kind, props);
            root(&os, cx.tx)?;
            cx.mark_accounting(made.root_head, &os)?;
            cx.add_head(made.root_head, os);
            cx.config();
            Ok(made)
        };
        Ok(self.sync_task(|_| Ok(()), act)?.0)
    }
}
