//! The configuration of pools and vdevs (chapter 01 §4), typed and checked.
//!
//! # Theory
//! A pool's structure is stored several times: each member's label holds its own
//! top-level vdev, the MOS holds the whole tree, the cache file a copy of that. All are
//! name/value lists; [`PoolConfig`] and [`VdevConfig`] are their checked form. Each
//! node keeps the list from which it was parsed ([`VdevConfig::raw`]), so that writing
//! it back preserves unknown pairs in place.
//!
//! # Invariants
//! * The tree is at most `VDEV_DEPTH_MAX` deep and has at most `VDEV_COUNT_MAX`
//!   nodes; a child's id is its position.
//! * Layout numbers are safe for arithmetic: parity 1 to 3, enough children, ashift 9
//!   to 16, shifts and sizes within 63 bits.
//! * Only leaves have no children; `root` is only at the top, `hole` and `indirect`
//!   only directly below it.

use base::limits::VDEV_COUNT_MAX;
use base::{Error, Guid, ObjectId, Result, Txg};
use nvlist::{NvList, NvStr};

pub mod vdev;

pub use vdev::{Draid, Dspare, IndirectKeys, LeafState, Raidz, Top, VdevConfig, VdevType};

/// State of a pool, as stored (chapter 01 §4.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolState {
    /// In use, or not cleanly exported.
    Active,
    /// Exported.
    Exported,
    /// Destroyed.
    Destroyed,
    /// Label of an unused hot spare.
    Spare,
    /// Label of a cache device.
    L2cache,
}

impl PoolState {
    /// From its code; `None` for those never on disk.
    pub fn from_code(code: u64) -> Option<PoolState> {
        Some(match code {
            0 => PoolState::Active,
            1 => PoolState::Exported,
            2 => PoolState::Destroyed,
            3 => PoolState::Spare,
            4 => PoolState::L2cache,
            _ => return None,
        })
    }

    /// Its code.
    pub fn code(self) -> u64 {
        match self {
            PoolState::Active => 0,
            PoolState::Exported => 1,
            PoolState::Destroyed => 2,
            PoolState::Spare => 3,
            PoolState::L2cache => 4,
        }
    }
}

/// The part of a configuration that is only in a member's label (chapter 01 §4.1).
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Guid of this leaf.
    pub guid: Guid,
    /// Guid of the top-level vdev that it belongs to.
    pub top_guid: Guid,
    /// It is a hot spare in use.
    pub is_spare: bool,
    /// It belongs to a log vdev.
    pub is_log: bool,
    /// Txg in which it was initialised, in labels that were never committed.
    pub create_txg: Txg,
}

/// A pool's configuration, from a member's label or from the MOS.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolConfig {
    /// Pool version: 1 to 28, or 5000.
    pub version: u64,
    /// Pool name.
    pub name: String,
    /// Active, exported or destroyed.
    pub state: PoolState,
    /// Txg in which it was written; zero in a label that was never committed.
    pub txg: Txg,
    /// Guid of the pool, and of its root vdev.
    pub pool_guid: Guid,
    /// Code of a known kind of damage; 0 for none.
    pub errata: u64,
    /// Host that last opened the pool; 0 for none.
    pub hostid: u64,
    /// That host's name.
    pub hostname: Option<NvStr>,
    /// The `comment` property.
    pub comment: Option<NvStr>,
    /// The `compatibility` property.
    pub compatibility: Option<NvStr>,
    /// Number of top-level ids, holes included.
    pub vdev_children: Option<u32>,
    /// Ids of top-level holes, ascending.
    pub hole_array: Vec<u32>,
    /// Guid of the original pool while a mirror is being split.
    pub split_guid: Option<Guid>,
    /// The part that only a member's label has.
    pub member: Option<Member>,
    /// The top-level vdev (label) or the root (MOS).
    pub vdev_tree: VdevConfig,
    /// Active features that are needed to read the MOS.
    pub features_for_read: Vec<String>,
    /// Each vdev has its own ZAP (MOS only).
    pub has_per_vdev_zaps: bool,
    /// The list from which this was parsed, without the tree.
    pub raw: NvList,
}

/// A label of an unused spare or of a cache device (chapter 01 §4.7).
#[derive(Clone, Debug, PartialEq)]
pub struct AuxConfig {
    /// Pool version.
    pub version: u64,
    /// [`PoolState::Spare`] or [`PoolState::L2cache`].
    pub state: PoolState,
    /// Guid of the device.
    pub guid: Guid,
    /// log2 of its sector; cache devices only.
    pub ashift: Option<u32>,
    /// Last known path.
    pub path: Option<NvStr>,
}

/// Either kind of label.
#[derive(Clone, Debug, PartialEq)]
pub enum LabelConfig {
    /// A member of a pool.
    Member(Box<PoolConfig>),
    /// An unused spare or a cache device.
    Aux(AuxConfig),
}

impl LabelConfig {
    /// Reads a label's list.
    ///
    /// # Errors
    /// `Corrupt` if a required key is missing or a value impossible,
    /// `Unsupported` for a pool version or vdev type from the future.
    pub fn parse(list: &NvList) -> Result<LabelConfig> {
        let state = state_of(list)?;
        if !matches!(state, PoolState::Spare | PoolState::L2cache) {
            return Ok(LabelConfig::Member(Box::new(PoolConfig::from_label(list)?)));
        }
        let ashift = list.u64("ashift").map(vdev::checked_ashift).transpose()?;
        Ok(LabelConfig::Aux(AuxConfig {
            version: version_of(list)?,
            state,
            guid: guid_of(list, "guid")?,
            ashift,
            path: list.string("path").cloned(),
        }))
    }
}

impl AuxConfig {
    /// The list to write into the label.
    pub fn to_nvlist(&self) -> NvList {
        let mut list = NvList::new();
        list.add_u64("version", self.version)
            .add_u64("state", self.state.code())
            .add_u64("guid", self.guid.0);
        if let Some(ashift) = self.ashift {
            list.add_u64("ashift", u64::from(ashift));
        }
        if let Some(path) = &self.path {
            list.insert("path", path.clone());
        }
        list
    }
}

fn version_of(list: &NvList) -> Result<u64> {
    let version = list.need_u64("version")?;
    if version != 5000 && !(1..=28).contains(&version) {
        return Err(Error::unsupported(format!("pool version {version} is unknown")));
    }
    Ok(version)
}

fn state_of(list: &NvList) -> Result<PoolState> {
    let code = list.need_u64("state")?;
    PoolState::from_code(code)
        .ok_or_else(|| Error::corrupt(format!("a label with the pool state {code}")))
}

fn guid_of(list: &NvList, key: &str) -> Result<Guid> {
    match list.need_u64(key)? {
        0 => Err(Error::corrupt(format!("the configuration's \"{key}\" is zero"))),
        guid => Ok(Guid(guid)),
    }
}

fn id32(value: u64, what: &str) -> Result<u32> {
    u32::try_from(value)
        .ok()
        .filter(|&v| v as usize <= VDEV_COUNT_MAX)
        .ok_or_else(|| Error::limit(format!("the configuration's {what} is too large")))
}

impl PoolConfig {
    /// From a member's label.
    ///
    /// # Errors
    /// As [`LabelConfig::parse`].
    pub fn from_label(list: &NvList) -> Result<PoolConfig> {
        let member = Member {
            guid: guid_of(list, "guid")?,
            top_guid: guid_of(list, "top_guid")?,
            is_spare: list.u64("is_spare").unwrap_or(0) != 0,
            is_log: list.u64("is_log").unwrap_or(0) != 0,
            create_txg: Txg(list.u64("create_txg").unwrap_or(0)),
        };
        let tree = VdevConfig::parse_top(list.need_list("vdev_tree")?)?;
        Self::common(list, Some(member), tree)
    }

    /// From the MOS's `config` object, the cache file, or an importer.
    ///
    /// # Errors
    /// As [`LabelConfig::parse`]; also if the root's guid is not the pool's.
    pub fn from_mos(list: &NvList) -> Result<PoolConfig> {
        let tree = VdevConfig::parse_root(list.need_list("vdev_tree")?)?;
        let config = Self::common(list, None, tree)?;
        if config.vdev_tree.guid != config.pool_guid {
            return Err(Error::corrupt("the root vdev's guid is not the pool's"));
        }
        let children = config.vdev_tree.children.len();
        if config.vdev_children.is_some_and(|n| n as usize != children) {
            return Err(Error::corrupt("the configuration counts its top-level vdevs wrongly"));
        }
        Ok(config)
    }

    fn common(list: &NvList, member: Option<Member>, vdev_tree: VdevConfig) -> Result<PoolConfig> {
        let vdev_children =
            list.u64("vdev_children").map(|n| id32(n, "number of vdevs")).transpose()?;
        let mut hole_array = Vec::new();
        for &id in list.u64s("hole_array").unwrap_or_default() {
            let id = id32(id, "hole id")?;
            let known = vdev_children.is_none_or(|n| id < n);
            if !known || hole_array.last().is_some_and(|&last| id <= last) {
                return Err(Error::corrupt("the configuration's list of holes is wrong"));
            }
            hole_array.push(id);
        }
        let features_for_read = list
            .list("features_for_read")
            .map(|f| f.iter().map(|(name, _)| name.to_string()).collect())
            .unwrap_or_default();
        let name = list.need_str("name")?;
        if name.is_empty() || name.len() > base::limits::DATASET_NAME_MAX {
            return Err(Error::corrupt("the configuration's pool name has an impossible length"));
        }
        let mut raw = list.clone();
        // The position of the tree is kept; its content is `vdev_tree`.
        raw.insert("vdev_tree", NvList::new());
        Ok(PoolConfig {
            version: version_of(list)?,
            name: name.to_owned(),
            state: state_of(list)?,
            txg: Txg(list.need_u64("txg")?),
            pool_guid: guid_of(list, "pool_guid")?,
            errata: list.u64("errata").unwrap_or(0),
            hostid: list.u64("hostid").unwrap_or(0),
            hostname: list.string("hostname").cloned(),
            comment: list.string("comment").cloned(),
            compatibility: list.string("compatibility").cloned(),
            vdev_children,
            hole_array,
            split_guid: list.u64("split_guid").map(Guid),
            member,
            vdev_tree,
            features_for_read,
            has_per_vdev_zaps: list.flag("com.delphix:has_per_vdev_zaps"),
            raw,
        })
    }

    /// The list to write; unknown keys of [`PoolConfig::raw`] stay.
    pub fn to_nvlist(&self) -> NvList {
        let mut list = self.raw.clone();
        list.add_u64("version", self.version)
            .add_str("name", &self.name)
            .add_u64("state", self.state.code())
            .add_u64("txg", self.txg.0)
            .add_u64("pool_guid", self.pool_guid.0)
            .add_u64("errata", self.errata);
        let mut keys = Keys(&mut list);
        keys.number("hostid", self.hostid);
        keys.string("hostname", &self.hostname);
        keys.string("comment", &self.comment);
        keys.string("compatibility", &self.compatibility);
        keys.flag("com.delphix:has_per_vdev_zaps", self.has_per_vdev_zaps);
        if let Some(m) = &self.member {
            keys.number("top_guid", m.top_guid.0);
            keys.number("guid", m.guid.0);
            keys.number("is_spare", u64::from(m.is_spare));
            keys.number("is_log", u64::from(m.is_log));
            keys.number("create_txg", m.create_txg.0);
        }
        keys.numbers("hole_array", self.hole_array.iter().map(|&id| u64::from(id)).collect());
        if let Some(n) = self.vdev_children {
            list.add_u64("vdev_children", u64::from(n));
        }
        Keys(&mut list).number("split_guid", self.split_guid.map_or(0, |g| g.0));
        list.add_list("vdev_tree", self.vdev_tree.to_nvlist());
        if self.version == crate::uberblock::VERSION_FEATURES || !self.features_for_read.is_empty()
        {
            let mut features = NvList::new();
            self.features_for_read.iter().for_each(|name| {
                features.add_flag(name);
            });
            list.add_list("features_for_read", features);
        }
        list
    }

    /// Sum of the guids of the whole tree, to be compared with the uberblock's
    /// (chapter 01 §4.4). Meaningful for a MOS configuration.
    pub fn guid_sum(&self) -> u64 {
        self.vdev_tree.guid_sum()
    }
}

/// The devices in the MOS's `spares` or `l2cache` object; `key` is that name
/// (chapter 01 §4.7).
///
/// # Errors
/// As [`LabelConfig::parse`].
pub fn parse_aux_list(list: &NvList, key: &str) -> Result<Vec<VdevConfig>> {
    let devices = list.lists(key).unwrap_or_default();
    if devices.len() > VDEV_COUNT_MAX {
        return Err(Error::limit("too many spare or cache devices"));
    }
    devices.iter().map(VdevConfig::parse_aux).collect()
}

/// Omits keys that are zero or false, but keeps an explicit zero that was present
/// before.
struct Keys<'a>(&'a mut NvList);

impl Keys<'_> {
    fn number(&mut self, key: &str, value: u64) {
        if value != 0 {
            self.0.add_u64(key, value);
        } else if self.0.u64(key).is_some_and(|old| old != 0) {
            self.0.remove(key);
        }
    }

    fn object(&mut self, key: &str, value: Option<ObjectId>) {
        self.number(key, value.map_or(0, |o| o.0));
    }

    fn flag(&mut self, key: &str, value: bool) {
        if value {
            self.0.add_flag(key);
        } else {
            self.0.remove(key);
        }
    }

    fn string(&mut self, key: &str, value: &Option<NvStr>) {
        match value {
            Some(s) => {
                self.0.insert(key, s.clone());
            }
            None => {
                self.0.remove(key);
            }
        }
    }

    fn numbers(&mut self, key: &str, value: Vec<u64>) {
        if !value.is_empty() {
            self.0.insert(key, value);
        } else if self.0.u64s(key).is_some_and(|old| !old.is_empty()) {
            self.0.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
