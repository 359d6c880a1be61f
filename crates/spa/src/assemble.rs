//! From scanned labels to pools (chapter 01 §8.1, steps 5 to 9).

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use base::{Guid, Txg};
use ondisk::config::{LabelConfig, PoolConfig, PoolState, VdevConfig};

use crate::discover::Candidate;

pub use crate::status::ImportReason;

/// One path at which a leaf was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafLocation {
    /// The path.
    pub path: PathBuf,
    /// Txg of the newest label there.
    pub txg: Txg,
    /// Txg of the newest uberblock there.
    pub synced: Txg,
    /// Number of its labels that agree.
    pub labels: usize,
    /// Position in the scan.
    pub order: usize,
    /// It is a block device.
    pub block_device: bool,
}

/// The locations of each leaf, the best first.
pub(crate) type LeafLocations = HashMap<Guid, Vec<LeafLocation>>;

/// A pool assembled from labels alone; nothing in it is trusted.
#[derive(Clone, Debug)]
pub struct FoundPool {
    /// Name in its labels.
    pub name: String,
    /// The pool's guid.
    pub guid: Guid,
    /// Active, exported or destroyed.
    pub state: PoolState,
    /// Pool version.
    pub version: u64,
    /// Id of the host that last used it; 0 is none.
    pub hostid: u64,
    /// That host's name.
    pub hostname: Option<String>,
    /// The pool's comment.
    pub comment: Option<String>,
    /// Newest txg in any label.
    pub txg: Txg,
    /// Top-level vdevs by id, as far as their labels were found.
    pub tops: BTreeMap<u32, VdevConfig>,
    /// Number of top-level ids.
    pub vdev_children: u32,
    /// Ids that are holes.
    pub holes: Vec<u32>,
    /// The locations of the leaves, including spares and cache devices of any pool.
    pub locations: LeafLocations,
    /// The locations of members of each top-level vdev. A leaf that replaced its mirror is
    /// listed under the mirror's guid.
    pub top_locations: LeafLocations,
}

/// Groups candidates into pools.
pub(crate) fn assemble(candidates: Vec<Candidate>, destroyed: bool) -> Vec<FoundPool> {
    let (mut locations, mut top_locations) = (LeafLocations::new(), LeafLocations::new());
    let mut pools: BTreeMap<Guid, Vec<&PoolConfig>> = BTreeMap::new();
    for c in &candidates {
        let place = LeafLocation {
            path: c.path.clone(),
            txg: c.txg,
            synced: c.synced,
            labels: c.labels,
            order: c.order,
            block_device: c.block_device,
        };
        locations.entry(c.guid).or_default().push(place.clone());
        if let LabelConfig::Member(pool) = &c.config {
            if let Some(member) = &pool.member {
                top_locations.entry(member.top_guid).or_default().push(place);
            }
            pools.entry(pool.pool_guid).or_default().push(pool);
        }
    }
    let wanted = |p: &FoundPool| destroyed == (p.state == PoolState::Destroyed);
    let mut out: Vec<FoundPool> = pools
        .into_iter()
        .map(|(guid, labels)| one_pool(guid, &labels, &locations, &top_locations))
        .filter(wanted)
        .collect();
    out.sort_by(|a, b| (&a.name, a.guid.0).cmp(&(&b.name, b.guid.0)));
    out
}

fn one_pool(
    guid: Guid,
    labels: &[&PoolConfig],
    locations: &LeafLocations,
    top_locations: &LeafLocations,
) -> FoundPool {
    let mut best: BTreeMap<Guid, &PoolConfig> = BTreeMap::new();
    let mut newest = labels[0];
    for &label in labels {
        if label.txg > newest.txg {
            newest = label;
        }
        let Some(member) = &label.member else { continue };
        let slot = best.entry(member.top_guid).or_insert(label);
        if label.txg > slot.txg {
            *slot = label;
        }
    }
    let count = newest.vdev_children.unwrap_or(0);
    let mut tops = BTreeMap::new();
    let mut chosen: BTreeMap<u32, Txg> = BTreeMap::new();
    for label in best.values() {
        let id = label.vdev_tree.id;
        // A stale label may claim an id that now belongs to another vdev.
        let stale = chosen.get(&id).is_some_and(|&txg| txg >= label.txg);
        if (newest.vdev_children.is_none() || id < count) && !stale {
            chosen.insert(id, label.txg);
            tops.insert(id, label.vdev_tree.clone());
        }
    }
    let highest = tops.keys().next_back().map_or(0, |id| id + 1);
    FoundPool {
        name: newest.name.clone(),
        guid,
        state: newest.state,
        version: newest.version,
        hostid: newest.hostid,
        hostname: newest.hostname.as_ref().and_then(|s| s.to_str()).map(str::to_owned),
        comment: newest.comment.as_ref().and_then(|s| s.to_str()).map(str::to_owned),
        txg: newest.txg,
        vdev_children: if count == 0 { highest } else { count },
        holes: newest.hole_array.clone(),
        tops,
        locations: sorted(locations),
        top_locations: sorted(top_locations),
    }
}

/// The best location first: newest label, newest uberblock, most labels, scan order.
fn sorted(locations: &LeafLocations) -> LeafLocations {
    let mut locations = locations.clone();
    for list in locations.values_mut() {
        list.sort_by(|a, b| {
            (b.txg, b.synced, b.labels, a.order).cmp(&(a.txg, a.synced, a.labels, b.order))
        });
    }
    locations
}

/// The location to use for a leaf: among the newest, the one that its label names.
pub(crate) fn location_for<'a>(
    locations: &'a LeafLocations,
    guid: Guid,
    recorded: Option<&Path>,
) -> Option<&'a LeafLocation> {
    let list = locations.get(&guid)?;
    let newest = list.first()?;
    list.iter()
        .take_while(|p| (p.txg, p.synced) == (newest.txg, newest.synced))
        .find(|p| Some(p.path.as_path()) == recorded)
        .or(Some(newest))
}

/// Replaces the paths that the configuration recorded by those at which the leaves were
/// found (chapter 01 §8.1, step 8).
pub(crate) fn fix_paths(spec: &mut vdev::Spec, locations: &LeafLocations) {
    let recorded = spec.path.as_ref().map(PathBuf::from);
    if let Some(place) = location_for(locations, spec.guid, recorded.as_deref()) {
        spec.path = Some(place.path.to_string_lossy().into_owned());
    }
    spec.children.iter_mut().for_each(|child| fix_paths(child, locations));
}
