//! Simulated disks as the leaves of a pool.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Error, Result, Txg};
use device::Device;
use device::sim::{Image, SimDisks};
use ondisk::config::VdevType;
use spa::engine::Writer;
use spa::engine::create::{CreateSpec, create};
use spa::write::topology::{BuildOptions, LeafFacts, NewKind, NewVdev, Role, build};
use spa::{FoundPool, ImportOptions, Leaves, OpenLeaf, Purpose, Search, Spa};
use zio::BlockCache;

use crate::image::{BadSectors, ImageDevice, Tap};
use crate::setup::{Layout, Setup, Workload};

/// The pool's name.
pub const POOL: &str = "sim";
/// Bytes of block cache for a pool.
pub(crate) const CACHE: u64 = 64 << 20;

/// Disks by the paths in the labels.
pub struct SimLeaves {
    devices: BTreeMap<PathBuf, Arc<dyn Device>>,
}

impl SimLeaves {
    /// Images for reading, except those in `without` and the bad sectors; `tap` records
    /// every read.
    pub(crate) fn of_images(
        images: &[Image],
        without: &[usize],
        bad: Option<BadSectors>,
        tap: &Arc<Tap>,
    ) -> SimLeaves {
        let mut devices: BTreeMap<PathBuf, Arc<dyn Device>> = BTreeMap::new();
        for (disk, image) in images.iter().enumerate() {
            if !without.contains(&disk) {
                let device = ImageDevice::new(disk, image.clone(), Arc::clone(tap), bad);
                devices.insert(path_of(disk), Arc::new(device));
            }
        }
        SimLeaves { devices }
    }

    /// All disks except those in `without`.
    pub fn new(disks: &SimDisks, without: &[usize]) -> SimLeaves {
        let mut devices: BTreeMap<PathBuf, Arc<dyn Device>> = BTreeMap::new();
        for device in disks.devices() {
            if !without.contains(&device.disk()) {
                devices.insert(path_of(device.disk()), device);
            }
        }
        SimLeaves { devices }
    }
}

impl Leaves for SimLeaves {
    fn list(&self) -> Option<Vec<PathBuf>> {
        Some(self.devices.keys().cloned().collect())
    }

    fn open(&self, path: &Path, _purpose: Purpose) -> Result<OpenLeaf> {
        let device = self.devices.get(path).cloned();
        let device = device.ok_or_else(|| Error::not_found("no such simulated disk"))?;
        Ok(OpenLeaf { device, block_device: false })
    }
}

pub(crate) fn path_of(disk: usize) -> PathBuf {
    PathBuf::from(format!("/simulated/disk-{disk}"))
}

fn vdevs(layout: Layout) -> Vec<NewVdev> {
    let leaves: Vec<NewVdev> =
        (0..layout.disks()).map(|i| NewVdev::new(NewKind::File(path_of(i)))).collect();
    match layout {
        Layout::Single | Layout::Stripe => leaves,
        Layout::Mirror => vec![NewVdev::new(NewKind::Mirror).with_children(leaves)],
        Layout::Raidz => vec![NewVdev::new(NewKind::Raidz { nparity: 1 }).with_children(leaves)],
        Layout::Raidz2 => vec![NewVdev::new(NewKind::Raidz { nparity: 2 }).with_children(leaves)],
        Layout::Classes => {
            let pair = |two: &[NewVdev]| NewVdev::new(NewKind::Mirror).with_children(two.to_vec());
            let roles = [Role::Data, Role::Special, Role::Log];
            let tops = leaves.chunks(2).zip(roles);
            tops.map(|(two, role)| pair(two).for_role(role)).collect()
        }
        Layout::Wide(nparity, _) => {
            let kind = NewKind::Raidz { nparity: nparity.into() };
            vec![NewVdev::new(kind).with_children(leaves)]
        }
        Layout::Draid => {
            let kind = NewKind::Draid { nparity: 2, ndata: Some(3), nspares: 1 };
            vec![NewVdev::new(kind).with_children(leaves)]
        }
        Layout::Mirrors => {
            let pair = |two: &[NewVdev]| NewVdev::new(NewKind::Mirror).with_children(two.to_vec());
            leaves.chunks(2).map(pair).collect()
        }
        Layout::Mixed => {
            let of = |kind, leaves: &[NewVdev]| NewVdev::new(kind).with_children(leaves.to_vec());
            let parity = of(NewKind::Raidz { nparity: 1 }, &leaves[2..7]);
            vec![of(NewKind::Mirror, &leaves[..2]), parity, leaves[7].clone()]
        }
    }
}

/// Creates the pool of a setup on blank disks.
///
/// # Errors
/// Those of creating it.
pub fn make(setup: &Setup, disks: &SimDisks) -> Result<Arc<Writer>> {
    make_with(setup, disks, &Arc::new(BlockCache::of(CACHE)?))
}

/// As [`make`], with this block cache. Disks beyond those of the layout are left alone.
pub(crate) fn make_with(
    setup: &Setup,
    disks: &SimDisks,
    cache: &Arc<BlockCache>,
) -> Result<Arc<Writer>> {
    let leaves = SimLeaves::new(disks, &[]);
    let facts = |path: &Path| Ok(LeafFacts::of(&*leaves.open(path, Purpose::Write)?.device, false));
    let options = BuildOptions {
        create_txg: Txg(4),
        ashift: Some(setup.ashift()),
        ..BuildOptions::default()
    };
    let mut built = build(&vdevs(setup.layout), options, [], &facts)?;
    for (top, _) in &mut built.tops {
        let copies = top.kind == VdevType::Mirror;
        let parts = if copies { 1 } else { top.leaves().count() as u64 };
        // A dRAID's rows are large already.
        let space = setup.space().filter(|_| setup.layout != Layout::Draid);
        if let (Some((bytes, shift)), Some(space)) = (space, &mut top.top) {
            space.asize = space.asize.min(bytes * parts.max(1));
            space.metaslab_shift = shift;
        }
    }
    let mut devices = BTreeMap::new();
    for (top, _) in &built.tops {
        for leaf in top.leaves() {
            let path = leaf.path.as_ref().and_then(|p| p.to_str());
            let path = path.ok_or_else(|| Error::bug("a leaf without a path"))?;
            devices.insert(leaf.guid, leaves.open(Path::new(path), Purpose::Write)?.device);
        }
    }
    let mut spec = CreateSpec::new(POOL, built.tops, devices);
    spec.options = setup.writer();
    // Counts are bytes in some pools, and numbers in others.
    let cloning = matches!(setup.workload, Workload::BlockClones | Workload::BlockSharing);
    let bytes = cloning && setup.seed.is_multiple_of(2);
    spec.features.retain(|f| !bytes || f.guid != "com.truenas:block_cloning_endian");
    // zdb 2.3 can count both together only where counts are bytes and no entry is in a log.
    let legacy = setup.workload.has_dedup() && setup.seed % 4 == if cloning { 2 } else { 1 };
    spec.features.retain(|f| !legacy || f.guid != "com.klarasystems:fast_dedup");
    create(spec, cache)
}

/// Searches for the pool among `leaves`; `None` if no label has it.
///
/// # Errors
/// Those of the search.
pub fn find(leaves: &SimLeaves) -> Result<Option<FoundPool>> {
    let found = spa::discover_in(&Search::default(), leaves)?;
    Ok(found.pools.into_iter().find(|p| p.name == POOL))
}

/// Imports the pool to read it, no newer than txg `limit`.
///
/// # Errors
/// Those of the import.
pub fn import(
    leaves: &SimLeaves,
    found: &FoundPool,
    cache: &Arc<BlockCache>,
    limit: Option<Txg>,
) -> Result<Spa> {
    let options =
        ImportOptions { readonly: true, force: true, txg: limit, ..ImportOptions::default() };
    Spa::open_in(found, &options, cache, leaves).map_err(|failure| failure.error)
}
