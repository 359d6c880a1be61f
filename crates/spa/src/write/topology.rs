//! New vdevs: from a request to validated configurations (chapter 01 §1, §4.2, §5.4;
//! chapter 02 §11.1; chapter 05 §1.1).
//!
//! # Invariants
//! * The result of [`build`] parses again: ids are positions, numbers of children fit the
//!   parity, sizes are whole labels.
//! * Guids are unique within one call and never zero.

use std::path::{Path, PathBuf};

use base::limits::{LEAF_SIZE_MIN, VDEV_COUNT_MAX};
use base::{Error, Guid, Result, Txg};
use nvlist::{NvList, NvStr};
use ondisk::config::{Draid, Dspare, LeafState, Raidz, Top, VdevConfig, VdevType};
use ondisk::label::{ASIZE_MIN, LABEL_SIZE, leaf_asize, usable_size};

/// Smallest and largest sector shift of a pool.
pub const ASHIFT_RANGE: std::ops::RangeInclusive<u32> = 9..=16;
/// Largest shift chosen automatically (`zfs_vdev_max_auto_ashift`).
const ASHIFT_AUTO_MAX: u32 = 14;
/// Children of a RAID-Z or dRAID.
const PARITY_CHILDREN_MAX: usize = 255;
const DRAID_SPARES_MAX: u32 = 100;
/// Data columns of a dRAID group unless requested otherwise.
const DRAID_NDATA_DEFAULT: u32 = 8;
/// A dRAID's row on each child, and the bytes unused at each child's end.
const DRAID_ROW: u64 = 16 << 20;
const DRAID_RESERVED: u64 = 32 << 20;

/// The purpose of a top-level vdev, a spare or a cache device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Ordinary storage.
    #[default]
    Data,
    /// Intent logs.
    Log,
    /// Second-level cache.
    Cache,
    /// Hot spare.
    Spare,
    /// Metadata and small blocks.
    Special,
    /// Dedup tables.
    Dedup,
}

impl Role {
    /// The value of the top-level ZAP's `org.zfsonlinux:allocation_bias` (chapter 01 §4.2);
    /// `None` for a role without a bias.
    pub(crate) fn allocation_bias(self) -> Option<&'static str> {
        match self {
            Role::Log => Some("log"),
            Role::Special => Some("special"),
            Role::Dedup => Some("dedup"),
            Role::Data | Role::Cache | Role::Spare => None,
        }
    }

    /// Kept in a list of its own instead of the tree.
    pub(crate) fn is_aux(self) -> bool {
        matches!(self, Role::Cache | Role::Spare)
    }
}

/// The kind of a new vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewKind {
    /// A regular file, by absolute path.
    File(PathBuf),
    /// A block device, by absolute path.
    Disk(PathBuf),
    /// Copies.
    Mirror,
    /// Parity over whole rows.
    Raidz {
        /// 1 to 3.
        nparity: u32,
    },
    /// Parity over permuted groups.
    Draid {
        /// 1 to 3.
        nparity: u32,
        /// Data columns of a group; `None` is up to eight.
        ndata: Option<u32>,
        /// Distributed spares.
        nspares: u32,
    },
}

impl NewKind {
    /// The path of a leaf.
    pub fn path(&self) -> Option<&Path> {
        match self {
            NewKind::File(path) | NewKind::Disk(path) => Some(path),
            _ => None,
        }
    }

    /// The type word of the format.
    pub fn word(&self) -> &'static str {
        match self {
            NewKind::File(_) => "file",
            NewKind::Disk(_) => "disk",
            NewKind::Mirror => "mirror",
            NewKind::Raidz { .. } => "raidz",
            NewKind::Draid { .. } => "draid",
        }
    }
}

/// A requested vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewVdev {
    /// Its kind.
    pub kind: NewKind,
    /// Its purpose; meaningful at the top.
    pub role: Role,
    /// Leaves of an interior vdev.
    pub children: Vec<NewVdev>,
}

impl NewVdev {
    /// A leaf or childless node for ordinary storage.
    pub fn new(kind: NewKind) -> NewVdev {
        NewVdev { kind, role: Role::Data, children: Vec::new() }
    }

    /// With these children.
    #[must_use]
    pub fn with_children(mut self, children: Vec<NewVdev>) -> NewVdev {
        self.children = children;
        self
    }

    /// For this purpose.
    #[must_use]
    pub fn for_role(mut self, role: Role) -> NewVdev {
        self.role = role;
        self
    }

    /// Paths of the leaves, in order.
    pub fn paths(&self) -> Vec<&Path> {
        match self.kind.path() {
            Some(path) => vec![path],
            None => self.children.iter().filter_map(|c| c.kind.path()).collect(),
        }
    }
}

/// The relevant properties of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafFacts {
    /// Bytes.
    pub size: u64,
    /// log2 of the smallest write.
    pub logical_shift: u32,
    /// log2 of the smallest write that the device does not amplify.
    pub physical_shift: u32,
}

impl LeafFacts {
    /// The facts of an open device. Files report 512 bytes, regardless of their file
    /// system's block size (chapter 01 §5.4).
    pub fn of(device: &dyn device::Device, block_device: bool) -> LeafFacts {
        let caps = device.caps();
        let shift = |bytes: u32| bytes.max(512).next_power_of_two().trailing_zeros();
        let (logical_shift, physical_shift) = if block_device {
            (shift(caps.logical_sector), shift(caps.preferred.max(caps.logical_sector)))
        } else {
            (9, 9)
        };
        LeafFacts { size: device.size(), logical_shift, physical_shift }
    }
}

/// Build parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuildOptions {
    /// The `ashift` property; `None` derives it from the devices.
    pub ashift: Option<u32>,
    /// Id of the first new top-level vdev.
    pub first_id: u32,
    /// Txg of their creation.
    pub create_txg: Txg,
}

/// New vdevs, ready to be added to the configuration.
#[derive(Clone, Debug, Default)]
pub struct Built {
    /// Top-level vdevs in order of their ids, with their roles.
    pub tops: Vec<(VdevConfig, Role)>,
    /// Hot spares, for the list in the MOS; the distributed spares of new dRAIDs too.
    pub spares: Vec<VdevConfig>,
    /// Cache devices, for the list in the MOS.
    pub caches: Vec<VdevConfig>,
}

fn bad(what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("invalid vdev specification: {what}"))
}

/// OpenZFS's EOVERFLOW.
fn too_small() -> Error {
    Error::invalid("one or more devices is less than the minimum size (64M)")
}

/// OpenZFS's EDOM.
fn block_size() -> Error {
    Error::invalid("block size out of range or does not match")
}

/// Checks a request's shape: numbers of children, parity, roles. Devices are not examined.
///
/// # Errors
/// `Invalid`, in OpenZFS's words where it has some.
pub fn check_shape(vdevs: &[NewVdev]) -> Result<()> {
    let nodes: usize = vdevs.iter().map(|v| 1 + v.children.len()).sum();
    if nodes > VDEV_COUNT_MAX / 2 {
        return Err(Error::limit("too many devices in one request"));
    }
    for vdev in vdevs {
        if let Some(child) = vdev.children.iter().find(|c| c.kind.path().is_none()) {
            return Err(bad(format!("a {} cannot be inside another vdev", child.kind.word())));
        }
        if vdev.role.is_aux() && vdev.kind.path().is_none() {
            return Err(bad("spares and cache devices are single devices"));
        }
        if vdev.role == Role::Log
            && matches!(vdev.kind, NewKind::Raidz { .. } | NewKind::Draid { .. })
        {
            return Err(bad(format!("unsupported 'log' device: {}", vdev.kind.word())));
        }
        check_children(vdev)?;
    }
    Ok(())
}

fn check_children(vdev: &NewVdev) -> Result<()> {
    let n = vdev.children.len();
    let at_least = |name: String, least: usize| {
        if n < least {
            return Err(bad(format!("{name} requires at least {least} devices")));
        }
        if n > PARITY_CHILDREN_MAX && name != "mirror" {
            return Err(bad(format!("{name} supports no more than {PARITY_CHILDREN_MAX} devices")));
        }
        Ok(())
    };
    let parity = |nparity: u32| {
        if (1..=3).contains(&nparity) { Ok(()) } else { Err(bad("parity is 1 to 3")) }
    };
    match &vdev.kind {
        NewKind::File(path) | NewKind::Disk(path) => {
            if n != 0 {
                return Err(bad("a device with devices inside"));
            }
            if !path.is_absolute() {
                return Err(bad(format!("'{}' is not an absolute path", path.display())));
            }
            Ok(())
        }
        NewKind::Mirror => at_least("mirror".to_owned(), 2),
        NewKind::Raidz { nparity } => {
            parity(*nparity)?;
            at_least(format!("raidz{nparity}"), *nparity as usize + 1)
        }
        NewKind::Draid { nparity, ndata, nspares } => {
            parity(*nparity)?;
            at_least(format!("draid{nparity}"), *nparity as usize + 1)?;
            draid_layout(n, *nparity, *ndata, *nspares).map(drop)
        }
    }
}

/// The stored parameters of a dRAID (chapter 02 §11.1).
///
/// # Errors
/// `Invalid` when there are too few children.
pub fn draid_layout(
    children: usize,
    nparity: u32,
    ndata: Option<u32>,
    nspares: u32,
) -> Result<Draid> {
    let children = u32::try_from(children).unwrap_or(u32::MAX);
    if nspares > DRAID_SPARES_MAX || nspares > children {
        return Err(Error::invalid(format!(
            "invalid number of dRAID spares {nspares}; additional disks would be required"
        )));
    }
    let available = (children - nspares).saturating_sub(nparity);
    if available == 0 {
        return Err(Error::invalid(format!(
            "request number of distributed spares {nspares} and parity level {nparity}\nleaves no \
             disks available for data"
        )));
    }
    let ndata = ndata.unwrap_or(available.min(DRAID_NDATA_DEFAULT));
    if ndata == 0 || ndata > available {
        return Err(Error::invalid(format!(
            "requested number of dRAID data disks per group {ndata} is too high,\nat most \
             {available} disks are available for data"
        )));
    }
    let (width, disks) = (ndata + nparity, children - nspares);
    // The smallest G with G * width a multiple of the disks.
    let ngroups = disks / gcd(disks, width);
    Ok(Draid { nparity, ndata, nspares, ngroups, nchildren: None })
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Allocatable bytes of a vdev whose smallest child has `least` bytes (chapter 01 §1).
fn asize_of(kind: &NewKind, draid: Option<&Draid>, least: u64, children: usize) -> u64 {
    let asize = match (kind, draid) {
        (NewKind::Raidz { .. }, _) => least.saturating_mul(children as u64),
        (_, Some(d)) => {
            let disks = (children as u64).saturating_sub(u64::from(d.nspares));
            let rows = least.saturating_sub(DRAID_RESERVED) / DRAID_ROW * DRAID_ROW;
            let group = u64::from(d.ndata + d.nparity) * DRAID_ROW;
            rows.saturating_mul(disks) / group * group
        }
        _ => least,
    };
    asize / LABEL_SIZE * LABEL_SIZE
}

/// log2 of a metaslab's bytes on a vdev of `asize` bytes (chapter 05 §1.1).
pub fn metaslab_shift(asize: u64) -> u32 {
    const DEFAULT: u32 = 29;
    const MIN: u32 = 24;
    const MAX: u32 = 34;
    const COUNT_LIMIT: u64 = 131_072;
    let bits = |n: u64| u64::BITS - n.leading_zeros();
    let shift = match asize >> DEFAULT {
        0..16 => bits(asize / 16),
        16..=200 => DEFAULT,
        _ => bits(asize / 200),
    };
    if shift < MIN {
        MIN
    } else if shift <= MAX {
        shift
    } else if asize >> MAX > COUNT_LIMIT {
        bits(asize / COUNT_LIMIT)
    } else {
        MAX
    }
}

/// The sector shift of a vdev of these devices (chapter 01 §5.4).
///
/// # Errors
/// `Invalid` when a device cannot write such small sectors, or none of 9 to 16 fits.
pub(crate) fn choose_ashift(requested: Option<u32>, leaves: &[LeafFacts]) -> Result<u32> {
    let logical = leaves.iter().map(|l| l.logical_shift).max().unwrap_or(0);
    let physical = leaves.iter().map(|l| l.physical_shift).max().unwrap_or(0);
    let shift = match requested {
        Some(requested) => requested,
        None if physical <= ASHIFT_AUTO_MAX => logical.max(physical).max(9),
        None => logical.max(9),
    };
    if !ASHIFT_RANGE.contains(&shift) || logical > shift {
        return Err(block_size());
    }
    Ok(shift)
}

/// Source of the facts about devices.
pub(crate) type FactsOf<'a> = &'a dyn Fn(&Path) -> Result<LeafFacts>;

struct TopologyBuilder<'a> {
    options: BuildOptions,
    facts: FactsOf<'a>,
    guids: std::collections::HashSet<u64>,
}

/// Builds configurations with fresh guids. `taken` are guids in use already.
///
/// # Errors
/// `Invalid` in OpenZFS's words; errors of `facts`; of the random source.
pub fn build(
    vdevs: &[NewVdev],
    options: BuildOptions,
    taken: impl IntoIterator<Item = Guid>,
    facts: FactsOf<'_>,
) -> Result<Built> {
    check_shape(vdevs)?;
    if options.ashift.is_some_and(|a| !ASHIFT_RANGE.contains(&a)) {
        return Err(block_size());
    }
    let guids = taken.into_iter().map(|g| g.0).collect();
    let mut builder = TopologyBuilder { options, facts, guids };
    let mut built = Built::default();
    for vdev in vdevs {
        match vdev.role {
            Role::Spare => built.spares.push(builder.aux(vdev)?),
            Role::Cache => built.caches.push(builder.aux(vdev)?),
            role => {
                let id = u32::try_from(built.tops.len())
                    .ok()
                    .and_then(|n| options.first_id.checked_add(n))
                    .filter(|&id| (id as usize) < VDEV_COUNT_MAX)
                    .ok_or_else(|| Error::limit("too many top-level vdevs"))?;
                let mut top = builder.top(vdev, role)?;
                top.id = id;
                builder.distributed_spares(&top, &mut built.spares)?;
                built.tops.push((top, role));
            }
        }
    }
    Ok(built)
}

/// Builds the configuration of one device that joins a vdev of the pool, with a fresh guid that
/// none of `taken` has; and what is known about the device.
///
/// # Errors
/// `Invalid` in OpenZFS's words; errors of `facts`; of the random source.
pub fn build_member(
    vdev: &NewVdev,
    create_txg: Txg,
    taken: impl IntoIterator<Item = Guid>,
    facts: FactsOf<'_>,
) -> Result<(VdevConfig, LeafFacts)> {
    check_shape(std::slice::from_ref(vdev))?;
    let guids = taken.into_iter().map(|g| g.0).collect();
    let options = BuildOptions { create_txg, ..BuildOptions::default() };
    TopologyBuilder { options, facts, guids }.leaf(vdev)
}

/// A node without the fields that depend on its kind.
pub(crate) fn plain_node(kind: VdevType, guid: Guid, create_txg: Txg) -> VdevConfig {
    VdevConfig {
        kind,
        id: 0,
        guid,
        path: None,
        devid: None,
        phys_path: None,
        whole_disk: None,
        create_txg,
        orig_guid: None,
        raidz: None,
        draid: None,
        dspare: None,
        top: None,
        leaf: LeafState::default(),
        root_zap: None,
        children: Vec::new(),
        raw: NvList::new(),
    }
}

impl TopologyBuilder<'_> {
    fn guid(&mut self) -> Result<Guid> {
        // A random source that repeats itself must not make this loop endless.
        for salt in 0..VDEV_COUNT_MAX as u64 {
            let guid = base::rt::random_u64()?.wrapping_add(salt);
            if guid != 0 && self.guids.insert(guid) {
                return Ok(Guid(guid));
            }
        }
        Err(base::bug!("no unused guid was found"))
    }

    fn leaf(&mut self, vdev: &NewVdev) -> Result<(VdevConfig, LeafFacts)> {
        let path = vdev.kind.path().ok_or_else(|| bad("a device without path"))?;
        let facts = (self.facts)(path)?;
        if usable_size(facts.size) < LEAF_SIZE_MIN {
            return Err(too_small());
        }
        let disk = matches!(vdev.kind, NewKind::Disk(_));
        let kind = if disk { VdevType::Disk } else { VdevType::File };
        let mut node = plain_node(kind, self.guid()?, self.options.create_txg);
        node.path = Some(NvStr::new(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()))?);
        node.whole_disk = disk.then_some(false);
        Ok((node, facts))
    }

    fn aux(&mut self, vdev: &NewVdev) -> Result<VdevConfig> {
        let (mut node, facts) = self.leaf(vdev)?;
        // The element's `ashift` travels with its other keys (chapter 01 §4.7).
        let ashift = choose_ashift(self.options.ashift, &[facts])?;
        node.create_txg = Txg::ZERO;
        node.raw.add_u64("ashift", u64::from(ashift));
        if vdev.role == Role::Spare {
            node.leaf.is_spare = true;
        }
        Ok(node)
    }

    /// A dRAID's own spares, in the form of the pool's list (chapter 01 §4.3).
    fn distributed_spares(&mut self, top: &VdevConfig, to: &mut Vec<VdevConfig>) -> Result<()> {
        let Some(draid) = &top.draid else { return Ok(()) };
        for spare_id in 0..draid.nspares {
            let mut node = plain_node(VdevType::DraidSpare, self.guid()?, Txg::ZERO);
            let path = format!("draid{}-{}-{spare_id}", draid.nparity, top.id);
            node.path = Some(NvStr::new(path.as_bytes())?);
            node.dspare = Some(Dspare { top_guid: top.guid, spare_id });
            node.whole_disk = Some(true);
            node.leaf.is_spare = true;
            node.raw.add_u64("ashift", u64::from(top.top.as_ref().map_or(9, |t| t.ashift)));
            to.push(node);
        }
        Ok(())
    }

    fn top(&mut self, vdev: &NewVdev, role: Role) -> Result<VdevConfig> {
        let mut facts = Vec::new();
        let mut node = if vdev.kind.path().is_some() {
            let (node, leaf) = self.leaf(vdev)?;
            facts.push(leaf);
            node
        } else {
            self.interior(vdev, &mut facts)?
        };
        let sizes = facts.iter().filter_map(|f| leaf_asize(usable_size(f.size)));
        let least = sizes.min().unwrap_or(0);
        let asize = asize_of(&vdev.kind, node.draid.as_ref(), least, node.children.len());
        if asize < ASIZE_MIN {
            return Err(too_small());
        }
        node.top = Some(Top {
            metaslab_array: 0,
            metaslab_shift: metaslab_shift(asize),
            ashift: choose_ashift(self.options.ashift, &facts)?,
            asize,
            is_log: role == Role::Log,
            ..Top::default()
        });
        Ok(node)
    }

    fn interior(&mut self, vdev: &NewVdev, facts: &mut Vec<LeafFacts>) -> Result<VdevConfig> {
        let kind = match vdev.kind {
            NewKind::Raidz { .. } => VdevType::Raidz,
            NewKind::Draid { .. } => VdevType::Draid,
            _ => VdevType::Mirror,
        };
        let mut node = plain_node(kind, self.guid()?, self.options.create_txg);
        for (id, child) in (0..).zip(&vdev.children) {
            let (mut child, leaf) = self.leaf(child)?;
            child.id = id;
            facts.push(leaf);
            node.children.push(child);
        }
        match vdev.kind {
            NewKind::Raidz { nparity } => {
                node.raidz = Some(Raidz { nparity, expanding: false, expand_txgs: Vec::new() });
            }
            NewKind::Draid { nparity, ndata, nspares } => {
                node.draid = Some(draid_layout(node.children.len(), nparity, ndata, nspares)?);
            }
            _ => {}
        }
        Ok(node)
    }
}

#[cfg(test)]
mod tests;
