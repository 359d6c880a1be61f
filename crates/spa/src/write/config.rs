//! The configuration list in a member's label (chapter 01 §4.1).
//!
//! # Invariants
//! * Keys that belong into the MOS alone (vdev ZAPs, `resilver_defer`) are left out.
//! * Only leaves with a device of their own have labels: distributed spares do not.

use base::{Guid, Txg};
use nvlist::{NvList, NvStr};
use ondisk::config::{AuxConfig, Member, PoolConfig, PoolState, VdevConfig, VdevType};
use ondisk::uberblock::VERSION_FEATURES;

/// The fields that are the same in every label of a pool.
#[derive(Clone, Debug)]
pub struct PoolFacts {
    /// Pool version: 1 to 28, or 5000.
    pub version: u64,
    /// Pool name.
    pub name: String,
    /// Active, exported or destroyed.
    pub state: PoolState,
    /// Txg of the commit; zero in labels that no txg committed yet.
    pub txg: Txg,
    /// Guid of the pool.
    pub pool_guid: Guid,
    /// Code of a known defect; 0 is none.
    pub errata: u64,
    /// This host's id; 0 is none.
    pub hostid: u64,
    /// This host's name.
    pub hostname: Option<NvStr>,
    /// The `comment` property.
    pub comment: Option<NvStr>,
    /// The `compatibility` property.
    pub compatibility: Option<NvStr>,
    /// Number of top-level ids, holes included.
    pub vdev_children: u32,
    /// Ids of top-level holes, ascending.
    pub hole_array: Vec<u32>,
    /// Guid of the original pool while a mirror is being split.
    pub split_guid: Option<Guid>,
    /// Active features that are needed to read the MOS (chapter 01 §4.5).
    pub features_for_read: Vec<String>,
}

impl PoolFacts {
    /// From the MOS configuration. `features_for_read` of the configuration is copied.
    pub fn of(config: &PoolConfig) -> PoolFacts {
        let tops = &config.vdev_tree.children;
        let holes = tops.iter().filter(|t| t.kind == VdevType::Hole);
        PoolFacts {
            version: config.version,
            name: config.name.clone(),
            state: config.state,
            txg: config.txg,
            pool_guid: config.pool_guid,
            errata: config.errata,
            hostid: config.hostid,
            hostname: config.hostname.clone(),
            comment: config.comment.clone(),
            compatibility: config.compatibility.clone(),
            vdev_children: u32::try_from(tops.len()).unwrap_or(u32::MAX),
            hole_array: holes.map(|t| t.id).collect(),
            split_guid: config.split_guid,
            features_for_read: config.features_for_read.clone(),
        }
    }
}

/// A vdev with a device of its own, and so with labels.
pub(crate) fn has_labels(vdev: &VdevConfig) -> bool {
    matches!(vdev.kind, VdevType::Disk | VdevType::File)
}

/// The label list of each leaf of `top` that has labels.
pub fn members(pool: &PoolFacts, top: &VdevConfig) -> Vec<(Guid, NvList)> {
    let tree = for_label(top);
    let leaves = top.leaves().filter(|l| has_labels(l));
    leaves.map(|leaf| (leaf.guid, member(pool, &tree, leaf))).collect()
}

/// As [`members`], for devices that are not committed yet (chapter 01 §5.4): txg 0, and the
/// txg of their creation.
pub fn initial(pool: &PoolFacts, top: &VdevConfig, create_txg: Txg) -> Vec<(Guid, NvList)> {
    let pool = PoolFacts { txg: Txg::ZERO, ..pool.clone() };
    let mut lists = members(&pool, top);
    for (_, list) in &mut lists {
        list.add_u64("create_txg", create_txg.0);
    }
    lists
}

fn member(pool: &PoolFacts, tree: &VdevConfig, leaf: &VdevConfig) -> NvList {
    let is_log = tree.top.as_ref().is_some_and(|t| t.is_log);
    PoolConfig {
        version: pool.version,
        name: pool.name.clone(),
        state: pool.state,
        txg: pool.txg,
        pool_guid: pool.pool_guid,
        errata: pool.errata,
        hostid: pool.hostid,
        hostname: pool.hostname.clone(),
        comment: pool.comment.clone(),
        compatibility: pool.compatibility.clone(),
        vdev_children: Some(pool.vdev_children),
        hole_array: pool.hole_array.clone(),
        split_guid: pool.split_guid,
        member: Some(Member {
            guid: leaf.guid,
            top_guid: tree.guid,
            is_spare: leaf.leaf.is_spare,
            is_log,
            create_txg: Txg::ZERO,
        }),
        vdev_tree: tree.clone(),
        features_for_read: pool.features_for_read.clone(),
        has_per_vdev_zaps: false,
        raw: NvList::new(),
    }
    .to_nvlist()
}

/// The tree without the keys that only the MOS has.
fn for_label(vdev: &VdevConfig) -> VdevConfig {
    let mut out = vdev.clone();
    strip(&mut out);
    out
}

fn strip(vdev: &mut VdevConfig) {
    vdev.root_zap = None;
    (vdev.leaf.zap, vdev.leaf.resilver_deferred) = (None, false);
    if let Some(top) = &mut vdev.top {
        top.zap = None;
    }
    vdev.children.iter_mut().for_each(strip);
}

/// The label list of an unused spare or a cache device (chapter 01 §4.7).
/// `ashift` is written for cache devices only.
pub fn aux(state: PoolState, vdev: &VdevConfig) -> NvList {
    let ashift = vdev.raw.u64("ashift").and_then(|a| u32::try_from(a).ok());
    AuxConfig {
        version: VERSION_FEATURES,
        state,
        guid: vdev.guid,
        ashift: ashift.filter(|_| state == PoolState::L2cache),
        path: vdev.path.clone(),
    }
    .to_nvlist()
}
