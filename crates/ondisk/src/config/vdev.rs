//! One node of the vdev tree (chapter 01 §4.2, §4.3; chapter 02 §11.1).

use base::limits::{VDEV_COUNT_MAX, VDEV_DEPTH_MAX};
use base::{Error, Guid, ObjectId, Result, Txg};
use nvlist::{NvList, NvStr};

use super::Keys;

const RESILVER_DEFERRED: &str = "com.datto:resilver_defer";

/// Kinds of vdevs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VdevType {
    /// The top of the tree.
    Root,
    /// A block device.
    Disk,
    /// A file.
    File,
    /// A mirror: all children hold the same data.
    Mirror,
    /// A mirror of an old and a new device.
    Replacing,
    /// A mirror of a failed device and its spare.
    Spare,
    /// Parity over whole rows.
    Raidz,
    /// Parity over permuted groups with distributed spares.
    Draid,
    /// A distributed spare of a dRAID.
    DraidSpare,
    /// A placeholder of an importer.
    Missing,
    /// A removed log vdev.
    Hole,
    /// A removed data vdev, remapped.
    Indirect,
}

const NAMES: [(VdevType, &str); 12] = [
    (VdevType::Root, "root"),
    (VdevType::Disk, "disk"),
    (VdevType::File, "file"),
    (VdevType::Mirror, "mirror"),
    (VdevType::Replacing, "replacing"),
    (VdevType::Spare, "spare"),
    (VdevType::Raidz, "raidz"),
    (VdevType::Draid, "draid"),
    (VdevType::DraidSpare, "dspare"),
    (VdevType::Missing, "missing"),
    (VdevType::Hole, "hole"),
    (VdevType::Indirect, "indirect"),
];

impl VdevType {
    /// From the stored name.
    pub fn from_name(name: &str) -> Option<VdevType> {
        NAMES.iter().find(|(_, n)| *n == name).map(|(t, _)| *t)
    }

    /// The stored name.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(t, _)| *t == self).map_or("", |(_, n)| n)
    }

    /// Whether it has its own device, real or distributed.
    pub fn is_leaf(self) -> bool {
        matches!(self, VdevType::Disk | VdevType::File | VdevType::DraidSpare)
    }

    /// Whether it has space that can be read: not a hole, placeholder or removed vdev.
    pub fn is_concrete(self) -> bool {
        !matches!(self, VdevType::Missing | VdevType::Hole | VdevType::Indirect)
    }

    /// Whether its children are copies of each other.
    pub fn is_mirror_like(self) -> bool {
        matches!(self, VdevType::Mirror | VdevType::Replacing | VdevType::Spare)
    }
}

/// Additional fields of a RAID-Z.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raidz {
    /// Parity columns, 1 to 3.
    pub nparity: u32,
    /// An expansion is running; the new child is among the children.
    pub expanding: bool,
    /// First txg of each increase of the width by one, ascending.
    pub expand_txgs: Vec<Txg>,
}

/// Additional fields of a dRAID (chapter 02 §11.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draid {
    /// Parity columns of a group, 1 to 3.
    pub nparity: u32,
    /// Data columns of a group.
    pub ndata: u32,
    /// Distributed spares, 0 to 100.
    pub nspares: u32,
    /// Groups in one slice.
    pub ngroups: u32,
    /// Children of one failure group; only with failure domains (2.4+).
    pub nchildren: Option<u32>,
}

/// Additional fields of a distributed spare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dspare {
    /// Guid of the dRAID it belongs to.
    pub top_guid: Guid,
    /// Index among its spares.
    pub spare_id: u32,
}

/// Objects of a vdev that is or was being removed (chapter 08 §D.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndirectKeys {
    /// Mapping object.
    pub mapping: Option<ObjectId>,
    /// Births object.
    pub births: Option<ObjectId>,
    /// The vdev removed before this one.
    pub prev: Option<u32>,
}

/// Additional fields of a top-level vdev.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Top {
    /// MOS object with the space maps' object ids; zero before the first sync.
    pub metaslab_array: u64,
    /// log2 of a metaslab's bytes; zero before the first sync.
    pub metaslab_shift: u32,
    /// log2 of a sector; zero only for holes and placeholders.
    pub ashift: u32,
    /// Allocatable bytes.
    pub asize: u64,
    /// It holds intent logs.
    pub is_log: bool,
    /// No new allocations are made from it.
    pub non_allocating: bool,
    /// It is being removed.
    pub removing: bool,
    /// Removal's objects.
    pub indirect: IndirectKeys,
    /// Its ZAP (MOS only).
    pub zap: Option<ObjectId>,
}

/// Persistent state of a leaf.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeafState {
    /// Space map of the txgs that it misses.
    pub dtl: Option<ObjectId>,
    /// It was missing when the pool was last opened.
    pub not_present: bool,
    /// Taken offline.
    pub offline: bool,
    /// Faulted.
    pub faulted: bool,
    /// Degraded.
    pub degraded: bool,
    /// Physically removed.
    pub removed: bool,
    /// Why it is faulted: `external` or `err_exceeded`.
    pub aux_state: Option<NvStr>,
    /// It is a hot spare in use.
    pub is_spare: bool,
    /// Detach the spare when the resilver is done.
    pub unspare: bool,
    /// A resilver resumes from here.
    pub resilver_txg: Txg,
    /// A sequential rebuild resumes from here.
    pub rebuild_txg: Txg,
    /// Its resilver waits for the end of the one that runs (MOS only, feature
    /// resilver_defer).
    pub resilver_deferred: bool,
    /// Its ZAP (MOS only).
    pub zap: Option<ObjectId>,
}

/// A checked node of the vdev tree.
#[derive(Clone, Debug, PartialEq)]
pub struct VdevConfig {
    /// Kind.
    pub kind: VdevType,
    /// Position among the parent's children.
    pub id: u32,
    /// Unique id; zero for holes and placeholders.
    pub guid: Guid,
    /// Path of a leaf.
    pub path: Option<NvStr>,
    /// Persistent device id of a leaf.
    pub devid: Option<NvStr>,
    /// Physical path of a leaf.
    pub phys_path: Option<NvStr>,
    /// The whole disk belongs to the pool; `None` if unknown.
    pub whole_disk: Option<bool>,
    /// Txg of creation.
    pub create_txg: Txg,
    /// Guid before a split.
    pub orig_guid: Option<Guid>,
    /// RAID-Z only.
    pub raidz: Option<Raidz>,
    /// dRAID only.
    pub draid: Option<Draid>,
    /// Distributed spare only.
    pub dspare: Option<Dspare>,
    /// Top-level vdevs only.
    pub top: Option<Top>,
    /// Persistent state; default on interior nodes.
    pub leaf: LeafState,
    /// The root's ZAP (MOS only, feature vdev_zaps_v2).
    pub root_zap: Option<ObjectId>,
    /// Children in the order of their ids.
    pub children: Vec<VdevConfig>,
    /// The list from which this was parsed, without the children's content.
    pub raw: NvList,
}

/// The position of a node in the tree.
#[derive(Clone, Copy, PartialEq)]
enum Rank {
    Root,
    Top,
    Inner,
    /// In a list of spares or cache devices.
    Aux,
}

fn corrupt(what: &str) -> Error {
    Error::corrupt(format!("invalid vdev configuration: {what}"))
}

pub(super) fn checked_ashift(ashift: u64) -> Result<u32> {
    u32::try_from(ashift)
        .ok()
        .filter(|a| (9..=16).contains(a))
        .ok_or_else(|| corrupt("ashift is not 9 to 16"))
}

/// The most metaslabs of one vdev that can be represented; the policy makes far fewer.
const METASLABS_MAX: u64 = 1 << 24;
/// Most children of a RAID-Z or dRAID group.
const PARITY_CHILDREN_MAX: usize = 255;
const DRAID_SPARES_MAX: u32 = 100;

impl VdevConfig {
    /// Reads a label's `vdev_tree`: a top-level vdev.
    ///
    /// # Errors
    /// `Corrupt` for an impossible configuration, `Limit` for one too large,
    /// `Unsupported` for an unknown type.
    pub(crate) fn parse_top(list: &NvList) -> Result<VdevConfig> {
        parse_node(list, Rank::Top, None, 1, &mut 0)
    }

    /// Reads the MOS's `vdev_tree`: the root.
    ///
    /// # Errors
    /// As [`VdevConfig::parse_top`].
    pub fn parse_root(list: &NvList) -> Result<VdevConfig> {
        parse_node(list, Rank::Root, Some(0), 0, &mut 0)
    }

    /// Reads an element of the lists of spares and cache devices.
    ///
    /// # Errors
    /// As [`VdevConfig::parse_top`].
    pub(crate) fn parse_aux(list: &NvList) -> Result<VdevConfig> {
        parse_node(list, Rank::Aux, None, 1, &mut 0)
    }

    /// Sum of the guids of this node and all below, modulo 2^64.
    pub fn guid_sum(&self) -> u64 {
        self.children.iter().fold(self.guid.0, |sum, c| sum.wrapping_add(c.guid_sum()))
    }

    /// This node and all below, parents first.
    pub fn walk(&self) -> impl Iterator<Item = &VdevConfig> {
        let mut stack = vec![self];
        std::iter::from_fn(move || {
            let node = stack.pop()?;
            stack.extend(node.children.iter().rev());
            Some(node)
        })
    }

    /// The devices below (or this one).
    pub fn leaves(&self) -> impl Iterator<Item = &VdevConfig> {
        self.walk().filter(|v| v.kind.is_leaf())
    }

    /// The node of this guid.
    pub fn find(&self, guid: Guid) -> Option<&VdevConfig> {
        self.walk().find(|v| v.guid == guid)
    }

    /// Parity columns; zero without parity.
    pub fn nparity(&self) -> u32 {
        let raidz = self.raidz.as_ref().map(|r| r.nparity);
        raidz.or(self.draid.as_ref().map(|d| d.nparity)).unwrap_or(0)
    }

    /// The list to write; unknown keys of [`VdevConfig::raw`] stay.
    pub fn to_nvlist(&self) -> NvList {
        let mut list = self.raw.clone();
        list.add_str("type", self.kind.name());
        if self.raw.contains("id") || self.raw.is_empty() {
            list.add_u64("id", u64::from(self.id));
        }
        list.add_u64("guid", self.guid.0);
        let mut keys = Keys(&mut list);
        keys.string("path", &self.path);
        keys.string("devid", &self.devid);
        keys.string("phys_path", &self.phys_path);
        if let Some(whole) = self.whole_disk {
            keys.0.add_u64("whole_disk", u64::from(whole));
        }
        self.leaf_keys(&mut keys);
        self.layout_keys(&mut keys);
        if let Some(top) = &self.top {
            top_keys(top, &mut keys);
        }
        keys.number("create_txg", self.create_txg.0);
        keys.number("orig_guid", self.orig_guid.map_or(0, |g| g.0));
        keys.object("com.klarasystems:vdev_zap_root", self.root_zap);
        if self.kind == VdevType::Hole {
            list.add_u64("is_hole", 1);
        }
        let children: Vec<NvList> = self.children.iter().map(VdevConfig::to_nvlist).collect();
        if self.raw.contains("children") || !children.is_empty() {
            list.add_lists("children", children);
        }
        list
    }

    fn leaf_keys(&self, keys: &mut Keys<'_>) {
        let leaf = &self.leaf;
        keys.number("not_present", leaf.not_present.into());
        keys.number("is_spare", leaf.is_spare.into());
        keys.object("DTL", leaf.dtl);
        keys.number("offline", leaf.offline.into());
        keys.number("faulted", leaf.faulted.into());
        keys.number("degraded", leaf.degraded.into());
        keys.number("removed", leaf.removed.into());
        keys.string("aux_state", &leaf.aux_state);
        keys.number("unspare", leaf.unspare.into());
        keys.number("resilver_txg", leaf.resilver_txg.0);
        keys.number("rebuild_txg", leaf.rebuild_txg.0);
        keys.object("com.delphix:vdev_zap_leaf", leaf.zap);
        keys.flag(RESILVER_DEFERRED, leaf.resilver_deferred);
    }

    fn layout_keys(&self, keys: &mut Keys<'_>) {
        if let Some(r) = &self.raidz {
            keys.number("nparity", r.nparity.into());
            keys.flag("raidz_expanding", r.expanding);
            keys.numbers("raidz_expand_txgs", r.expand_txgs.iter().map(|t| t.0).collect());
        }
        if let Some(d) = &self.draid {
            keys.number("nparity", d.nparity.into());
            keys.number("draid_ndata", d.ndata.into());
            keys.0.add_u64("draid_nspares", d.nspares.into());
            keys.number("draid_ngroups", d.ngroups.into());
            keys.number("draid_nchildren", d.nchildren.unwrap_or(0).into());
        }
        if let Some(d) = &self.dspare {
            keys.number("top_guid", d.top_guid.0);
            keys.0.add_u64("spareid", d.spare_id.into());
        }
    }
}

fn top_keys(top: &Top, keys: &mut Keys<'_>) {
    keys.0
        .add_u64("metaslab_array", top.metaslab_array)
        .add_u64("metaslab_shift", top.metaslab_shift.into())
        .add_u64("ashift", top.ashift.into())
        .add_u64("asize", top.asize)
        .add_u64("is_log", top.is_log.into());
    keys.number("non_allocating", top.non_allocating.into());
    keys.number("removing", top.removing.into());
    keys.object("com.delphix:indirect_object", top.indirect.mapping);
    keys.object("com.delphix:indirect_births", top.indirect.births);
    match top.indirect.prev {
        Some(prev) => keys.0.add_u64("com.delphix:prev_indirect_vdev", prev.into()),
        None => {
            keys.0.remove("com.delphix:prev_indirect_vdev");
            &mut *keys.0
        }
    };
    keys.object("com.delphix:vdev_zap_top", top.zap);
}

fn object(list: &NvList, key: &str) -> Option<ObjectId> {
    list.u64(key).filter(|&o| o != 0).map(ObjectId)
}

fn truth(list: &NvList, key: &str) -> bool {
    list.u64(key).is_some_and(|v| v != 0)
}

fn small(list: &NvList, key: &str, range: std::ops::RangeInclusive<u32>) -> Result<u32> {
    u32::try_from(list.need_u64(key)?)
        .ok()
        .filter(|v| range.contains(v))
        .ok_or_else(|| corrupt(&format!("{key} is out of range")))
}

fn parse_node(
    list: &NvList,
    rank: Rank,
    position: Option<u64>,
    depth: usize,
    count: &mut usize,
) -> Result<VdevConfig> {
    *count += 1;
    if depth > VDEV_DEPTH_MAX || *count > VDEV_COUNT_MAX {
        return Err(Error::limit("the vdev tree is too deep or too large"));
    }
    let name = list.need_str("type")?;
    let kind = VdevType::from_name(name)
        .ok_or_else(|| Error::unsupported(format!("vdev type \"{name}\" is unknown")))?;
    let fits = match kind {
        VdevType::Root => rank == Rank::Root,
        VdevType::Hole | VdevType::Indirect => rank == Rank::Top,
        VdevType::Missing => matches!(rank, Rank::Top | Rank::Inner),
        _ => rank != Rank::Root && (rank != Rank::Aux || kind.is_leaf()),
    };
    if !fits {
        return Err(corrupt("a vdev of this type cannot be here"));
    }
    let id = match rank {
        Rank::Aux => 0,
        _ => list.need_u64("id")?,
    };
    if position.is_some_and(|p| p != id) {
        return Err(corrupt("a vdev's id is not its position"));
    }
    let id = super::id32(id, "vdev id")?;
    let guid = Guid(list.u64("guid").unwrap_or(0));
    if guid.0 == 0 && !matches!(kind, VdevType::Hole | VdevType::Missing) {
        return Err(corrupt("a vdev without guid"));
    }
    let children = parse_children(list, kind, rank, depth, count)?;
    let raidz = (kind == VdevType::Raidz).then(|| parse_raidz(list, children.len())).transpose()?;
    let draid = (kind == VdevType::Draid).then(|| parse_draid(list, children.len())).transpose()?;
    let dspare = (kind == VdevType::DraidSpare).then(|| parse_dspare(list)).transpose()?;
    let top = (rank == Rank::Top).then(|| parse_top_keys(list, kind)).transpose()?;
    let mut raw = list.clone();
    if raw.contains("children") {
        raw.add_lists("children", Vec::new());
    }
    Ok(VdevConfig {
        kind,
        id,
        guid,
        path: list.string("path").cloned(),
        devid: list.string("devid").cloned(),
        phys_path: list.string("phys_path").cloned(),
        whole_disk: list.u64("whole_disk").map(|v| v != 0),
        create_txg: Txg(list.u64("create_txg").unwrap_or(0)),
        orig_guid: list.u64("orig_guid").filter(|&g| g != 0).map(Guid),
        raidz,
        draid,
        dspare,
        top,
        leaf: parse_leaf(list),
        root_zap: object(list, "com.klarasystems:vdev_zap_root"),
        children,
        raw,
    })
}

fn parse_children(
    list: &NvList,
    kind: VdevType,
    rank: Rank,
    depth: usize,
    count: &mut usize,
) -> Result<Vec<VdevConfig>> {
    let lists = list.lists("children").unwrap_or_default();
    let interior = kind == VdevType::Root
        || kind.is_mirror_like()
        || matches!(kind, VdevType::Raidz | VdevType::Draid);
    if interior == lists.is_empty() && kind != VdevType::Root {
        return Err(corrupt(if interior { "no children" } else { "a leaf with children" }));
    }
    let below = if rank == Rank::Root { Rank::Top } else { Rank::Inner };
    lists
        .iter()
        .zip(0u64..)
        .map(|(child, i)| parse_node(child, below, Some(i), depth + 1, count))
        .collect()
}

fn parse_raidz(list: &NvList, children: usize) -> Result<Raidz> {
    let nparity = small(list, "nparity", 1..=3)?;
    let expanding = list.flag("raidz_expanding");
    let expand_txgs: Vec<Txg> =
        list.u64s("raidz_expand_txgs").unwrap_or_default().iter().map(|&t| Txg(t)).collect();
    if !expand_txgs.is_sorted() {
        return Err(corrupt("raidz_expand_txgs do not ascend"));
    }
    let grown = expand_txgs.len() + usize::from(expanding);
    let original = children.saturating_sub(grown);
    if original < nparity as usize + 1 || children > PARITY_CHILDREN_MAX {
        return Err(corrupt("the number of children does not fit the parity"));
    }
    Ok(Raidz { nparity, expanding, expand_txgs })
}

fn parse_draid(list: &NvList, children: usize) -> Result<Draid> {
    let most = PARITY_CHILDREN_MAX as u32;
    let nchildren = match list.u64("draid_nchildren") {
        Some(_) => Some(small(list, "draid_nchildren", 2..=most)?),
        None => None,
    };
    let draid = Draid {
        nparity: small(list, "nparity", 1..=3)?,
        ndata: small(list, "draid_ndata", 1..=most)?,
        nspares: small(list, "draid_nspares", 0..=DRAID_SPARES_MAX)?,
        // gw * G is a multiple of ndisks, and G the smallest such: G <= ndisks.
        ngroups: small(list, "draid_ngroups", 1..=VDEV_COUNT_MAX as u32)?,
        nchildren,
    };
    let width = draid.ndata + draid.nparity;
    let group_children = nchildren.map_or(children, |c| c as usize);
    let ok = (2..=PARITY_CHILDREN_MAX).contains(&group_children)
        && children.is_multiple_of(group_children)
        && children >= (width + draid.nspares) as usize;
    let disks = (children as u64).checked_sub(u64::from(draid.nspares)).filter(|&d| d > 0);
    let whole = disks
        .is_some_and(|disks| (u64::from(draid.ngroups) * u64::from(width)).is_multiple_of(disks));
    if !ok || !whole {
        return Err(corrupt("the dRAID parameters contradict each other"));
    }
    Ok(draid)
}

fn parse_dspare(list: &NvList) -> Result<Dspare> {
    Ok(Dspare {
        top_guid: Guid(list.need_u64("top_guid")?),
        spare_id: small(list, "spareid", 0..=DRAID_SPARES_MAX - 1)?,
    })
}

fn parse_top_keys(list: &NvList, kind: VdevType) -> Result<Top> {
    let number = |key: &str| list.u64(key).unwrap_or(0);
    let ashift = match (kind, number("ashift")) {
        (VdevType::Hole | VdevType::Missing, 0) => 0,
        (_, a) => checked_ashift(a)?,
    };
    let shift = number("metaslab_shift");
    let asize = number("asize");
    // A metaslab is at least a sector; 63 bits hold every offset of a DVA.
    let metaslabs = match shift {
        0 => Some(0),
        s if s >= u64::from(ashift) && s < 63 => Some(asize >> s),
        _ => None,
    };
    if metaslabs.is_none_or(|n| n > METASLABS_MAX) || asize >> 63 != 0 {
        return Err(corrupt("impossible metaslabs"));
    }
    let prev = list
        .u64("com.delphix:prev_indirect_vdev")
        .filter(|&id| id != u64::MAX)
        .map(|id| super::id32(id, "previous indirect vdev"))
        .transpose()?;
    Ok(Top {
        metaslab_array: number("metaslab_array"),
        metaslab_shift: shift as u32,
        ashift,
        asize,
        is_log: truth(list, "is_log"),
        non_allocating: truth(list, "non_allocating"),
        removing: truth(list, "removing"),
        indirect: IndirectKeys {
            mapping: object(list, "com.delphix:indirect_object"),
            births: object(list, "com.delphix:indirect_births"),
            prev,
        },
        zap: object(list, "com.delphix:vdev_zap_top"),
    })
}

fn parse_leaf(list: &NvList) -> LeafState {
    let txg = |key: &str| Txg(list.u64(key).unwrap_or(0));
    LeafState {
        dtl: object(list, "DTL"),
        not_present: truth(list, "not_present"),
        offline: truth(list, "offline"),
        faulted: truth(list, "faulted"),
        degraded: truth(list, "degraded"),
        removed: truth(list, "removed"),
        aux_state: list.string("aux_state").cloned(),
        is_spare: truth(list, "is_spare"),
        unspare: truth(list, "unspare"),
        resilver_txg: txg("resilver_txg"),
        rebuild_txg: txg("rebuild_txg"),
        resilver_deferred: list.contains(RESILVER_DEFERRED),
        zap: object(list, "com.delphix:vdev_zap_leaf"),
    }
}
