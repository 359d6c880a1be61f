//! From scanned labels to pools (chapter 01 §8.1, steps 5 to 9).

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use base::{Guid, Txg};
use ondisk::config::{LabelConfig, PoolConfig, PoolState, VdevConfig};

use crate::discover::Candidate;

pub use crate::status::ImportReason;

/// One place where a leaf was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The path.
    pub path: PathBuf,
    /// Group of the newest label there.
    pub txg: Txg,
    /// Group of the newest uberblock there.
    pub synced: Txg,
    /// Labels that agree.
    pub labels: usize,
    /// Position in the scan.
    pub order: usize,
    /// It is a block device.
    pub block_device: bool,
}

/// Where each leaf was found, best place first.
pub type Places = HashMap<Guid, Vec<Place>>;

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
    /// Host that had it last; 0 is none.
    pub hostid: u64,
    /// That host's name.
    pub hostname: Option<String>,
    /// The pool's comment.
    pub comment: Option<String>,
    /// Newest group in any label.
    pub txg: Txg,
    /// Top-level vdevs by id, as far as labels of them were found.
    pub tops: BTreeMap<u32, VdevConfig>,
    /// Number of top-level ids.
    pub vdev_children: u32,
    /// Ids that are holes.
    pub holes: Vec<u32>,
    /// Where the leaves are, spares and cache devices of any pool included.
    pub places: Places,
    /// Where members of each top-level vdev are: a leaf that took the place of
    /// its mirror goes by the mirror's guid.
    pub top_places: Places,
}

/// Groups candidates into pools.
pub(crate) fn assemble(candidates: Vec<Candidate>, destroyed: bool) -> Vec<FoundPool> {
    let (mut places, mut top_places) = (Places::new(), Places::new());
    let mut pools: BTreeMap<Guid, Vec<&PoolConfig>> = BTreeMap::new();
    for c in &candidates {
        let place = Place {
            path: c.path.clone(),
            txg: c.txg,
            synced: c.synced,
            labels: c.labels,
            order: c.order,
            block_device: c.block_device,
        };
        places.entry(c.guid).or_default().push(place.clone());
        if let LabelConfig::Member(pool) = &c.config {
            if let Some(member) = &pool.member {
                top_places.entry(member.top_guid).or_default().push(place);
            }
            pools.entry(pool.pool_guid).or_default().push(pool);
        }
    }
    let wanted = |p: &FoundPool| destroyed == (p.state == PoolState::Destroyed);
    let mut out: Vec<FoundPool> = pools
        .into_iter()
        .map(|(guid, labels)| one_pool(guid, &labels, &places, &top_places))
        .filter(wanted)
        .collect();
    out.sort_by(|a, b| (&a.name, a.guid.0).cmp(&(&b.name, b.guid.0)));
    out
}

fn one_pool(guid: Guid, labels: &[&PoolConfig], places: &Places, top_places: &Places) -> FoundPool {
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
        // A stale label may claim an id that another vdev has now.
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
        places: sorted(places),
        top_places: sorted(top_places),
    }
}

/// Best place first: newest label, newest uberblock, most labels, scan order.
fn sorted(places: &Places) -> Places {
    let mut places = places.clone();
    for list in places.values_mut() {
        list.sort_by(|a, b| {
            (b.txg, b.synced, b.labels, a.order).cmp(&(a.txg, a.synced, a.labels, b.order))
        });
    }
    places
}

/// The place to use for a leaf: among the newest, the one its label names.
pub fn place_for<'a>(places: &'a Places, guid: Guid, recorded: Option<&Path>) -> Option<&'a Place> {
    let list = places.get(&guid)?;
    let newest = list.first()?;
    list.iter()
        .take_while(|p| (p.txg, p.synced) == (newest.txg, newest.synced))
        .find(|p| Some(p.path.as_path()) == recorded)
        .or(Some(newest))
}

/// Puts the paths at which leaves were found in place of those that the
/// configuration recorded (chapter 01 §8.1, step 8).
pub(crate) fn fix_paths(spec: &mut vdev::Spec, places: &Places) {
    let recorded = spec.path.as_ref().map(PathBuf::from);
    if let Some(place) = place_for(places, spec.guid, recorded.as_deref()) {
        spec.path = Some(place.path.to_string_lossy().into_owned());
    }
    spec.children.iter_mut().for_each(|child| fix_paths(child, places));
}
