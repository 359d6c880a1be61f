//! The contents of a new file system (chapter 06 §3, §4, §14).
//!
//! # Theory
//! Everything is created in one transaction, in an object set that is still empty: the
//! master node with its fixed object id, the tables of system attributes, the delete queue,
//! and the root directory with its attributes in the bonus.
//!
//! # Departures from OpenZFS
//! The table of layouts begins with that of files without optional attributes, as in
//! OpenZFS. The others are added at their first use.

use std::sync::Arc;

use base::{Error, ObjectId, Result};
use dmu::{ObjectSpec, Objset, Tx, zaps};
use ondisk::ObjType;
use ondisk::acl::{Ace, encode_aces, trivial_acl};
use ondisk::objset::{FLAG_PROJECT_ACCOUNTED, FLAG_USER_ACCOUNTED, FLAG_USEROBJ_ACCOUNTED};
use ondisk::sa::{SaTables, ZplAttr, encode_buffer};
use ondisk::zap::ZapValue;
use ondisk::znode::{
    Time, ZFS_ACL_AUTO_INHERIT, ZFS_ACL_TRIVIAL, ZFS_ARCHIVE, ZFS_AV_MODIFIED, ZFS_NO_EXECS_DENIED,
    ZFS_PROJID,
};

use crate::master::{CaseSensitivity, MASTER_NODE, ZPL_VERSION};

/// The first version with ids of owners as they are today.
pub(crate) const ZPL_VERSION_FUID: u64 = 3;
/// The last version whose attributes are in a fixed structure; the first that accounts space to
/// owners.
pub(crate) const ZPL_VERSION_USERSPACE: u64 = 4;
/// Bytes of that structure (chapter 06 §6).
const ZNODE_SIZE: usize = 264;
/// Offsets of its ACL, and of the ACL's entries.
const ZNODE_ACL_AT: usize = 176;
const ZNODE_ACES_AT: usize = 192;

/// The newest version of file systems in a pool of version `pool` (chapter 06 §2).
pub const fn version_for(pool: u64) -> u64 {
    match pool {
        24.. => ZPL_VERSION,
        15.. => ZPL_VERSION_USERSPACE,
        9.. => 3,
        _ => 2,
    }
}

/// Types that have no name of their own in `ondisk`.
pub(crate) const SA_MASTER_NODE: ObjType = ObjType(45);
const SA_REGISTRATION: ObjType = ObjType(46);
const SA_LAYOUTS: ObjType = ObjType(47);
/// Type bits of a directory's mode.
const S_IFDIR: u64 = 0o040_000;
/// The first layout that is stored.
const LAYOUT: u16 = 2;
/// Attributes that OpenZFS 2.3 registers: all but the newest.
const REGISTERED: usize = 22;
/// Flag of a directory's ZAP whose names match regardless of case.
const TOUPPER: u64 = ondisk::normalize::TOUPPER;

/// Properties that are fixed for a file system's lifetime, and those of its root directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewFs {
    /// ZPL version: 5, or 4 in pools older than version 24.
    pub version: u64,
    /// Normalisation of names: 0, 0x10, 0x20, 0x50 or 0x60.
    pub normalization: u64,
    /// Names must be UTF-8; forced by normalisation.
    pub utf8only: bool,
    /// Case of names.
    pub case: CaseSensitivity,
    /// Owner of the root directory.
    pub uid: u64,
    /// Group of the root directory.
    pub gid: u64,
    /// Permissions of the root directory, without type bits.
    pub mode: u64,
    /// All four times of the root directory.
    pub time: Time,
    /// Space is accounted to owners: pools before version 15 cannot.
    pub count_owners: bool,
    /// Feature `userobj_accounting` is enabled: objects are counted.
    pub count_objects: bool,
    /// Feature `project_quota` is enabled: projects are accounted, and the root
    /// directory has one.
    pub count_projects: bool,
}

impl Default for NewFs {
    fn default() -> Self {
        NewFs {
            version: ZPL_VERSION,
            normalization: 0,
            utf8only: false,
            case: CaseSensitivity::Sensitive,
            uid: 0,
            gid: 0,
            mode: 0o755,
            time: Time::default(),
            count_owners: true,
            count_objects: true,
            count_projects: true,
        }
    }
}

impl NewFs {
    /// Whether these properties are valid.
    ///
    /// # Errors
    /// `Unsupported` for versions below 3, `Invalid` for an unknown normalisation.
    pub fn check(&self) -> Result<()> {
        if !(ZPL_VERSION_FUID..=ZPL_VERSION).contains(&self.version) {
            return Err(Error::unsupported(format!(
                "file systems of version {} cannot be made",
                self.version
            )));
        }
        if !matches!(self.normalization, 0 | 0x10 | 0x20 | 0x50 | 0x60) {
            return Err(Error::invalid(format!("unknown normalization {:#x}", self.normalization)));
        }
        Ok(())
    }

    /// Attributes of the root directory in the order of the creation template (§4.5).
    fn layout(&self) -> Vec<ZplAttr> {
        use ZplAttr::{
            Atime, Crtime, Ctime, DaclAces, DaclCount, Flags, Gen, Gid, Links, Mode, Mtime, Parent,
            Projid, Size, Uid,
        };
        let mut attrs =
            vec![Mode, Size, Gen, Uid, Gid, Parent, Flags, Atime, Mtime, Ctime, Crtime, Links];
        attrs.extend(self.count_projects.then_some(Projid));
        attrs.extend([DaclCount, DaclAces]);
        attrs
    }

    /// Bits of `os_flags` (§14).
    fn flags(&self) -> u64 {
        if !self.count_owners {
            return 0;
        }
        let mut flags = FLAG_USER_ACCOUNTED;
        if self.count_objects {
            flags |= FLAG_USEROBJ_ACCOUNTED;
        }
        if self.count_projects {
            flags |= FLAG_PROJECT_ACCOUNTED;
        }
        flags
    }

    /// Mode and flags of the root directory.
    fn root_mode(&self) -> (u64, u64) {
        let mode = S_IFDIR | self.mode & 0o7777;
        let mut pflags = ZFS_ARCHIVE | ZFS_AV_MODIFIED | ZFS_ACL_TRIVIAL | ZFS_ACL_AUTO_INHERIT;
        if mode & 0o111 == 0o111 {
            pflags |= ZFS_NO_EXECS_DENIED;
        }
        if self.count_projects {
            pflags |= ZFS_PROJID;
        }
        (mode, pflags)
    }

    /// The root directory's structure in file systems before version 5.
    fn root_znode(&self, id: ObjectId, txg: base::Txg) -> Result<Vec<u8>> {
        let (mode, pflags) = self.root_mode();
        // Generation, mode, size, parent, links; no xattrs, no device; flags and owners.
        let head = [txg.0, mode, 2, id.0, 2, 0, 0, pflags];
        legacy_znode(self.time, head, [self.uid, self.gid], &trivial_acl(mode, true))
    }

    fn root_bonus(&self, tables: &SaTables, id: ObjectId, txg: base::Txg) -> Result<Vec<u8>> {
        let (mode, pflags) = self.root_mode();
        let acl = trivial_acl(mode, true);
        let words = |list: &[u64]| list.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        let time = words(&[self.time.seconds as u64, self.time.nanoseconds]);
        let value = |attr: &ZplAttr| match attr {
            ZplAttr::Mode => words(&[mode]),
            ZplAttr::Size | ZplAttr::Links => words(&[2]),
            ZplAttr::Gen => words(&[txg.0]),
            ZplAttr::Uid => words(&[self.uid]),
            ZplAttr::Gid => words(&[self.gid]),
            ZplAttr::Parent => words(&[id.0]),
            ZplAttr::Flags => words(&[pflags]),
            ZplAttr::DaclCount => words(&[acl.len() as u64]),
            ZplAttr::DaclAces => encode_aces(&acl),
            ZplAttr::Atime | ZplAttr::Mtime | ZplAttr::Ctime | ZplAttr::Crtime => time.clone(),
            _ => words(&[0]),
        };
        let values: Vec<Vec<u8>> = self.layout().iter().map(value).collect();
        let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
        encode_buffer(tables, LAYOUT, &values)
    }
}

/// A structure of before version 5: all four times, then generation, mode, size, parent,
/// links, hidden directory, device and flags, then owner and group, then the ACL (§6).
///
/// # Errors
/// `Bug` for an ACL that does not fit.
pub(crate) fn legacy_znode(
    time: Time,
    head: [u64; 8],
    owners: [u64; 2],
    acl: &[Ace],
) -> Result<Vec<u8>> {
    let aces = encode_aces(acl);
    let mut out = Vec::with_capacity(ZNODE_SIZE);
    let mut words = |list: &[u64]| out.extend(list.iter().flat_map(|w| w.to_le_bytes()));
    for _ in 0..4 {
        words(&[time.seconds as u64, time.nanoseconds]);
    }
    words(&head);
    words(&owners);
    out.resize(ZNODE_ACL_AT + 8, 0);
    // No object for the ACL; its bytes, version and number of entries.
    out.extend((aces.len() as u32).to_le_bytes());
    out.extend(1u16.to_le_bytes());
    out.extend((acl.len() as u16).to_le_bytes());
    out.extend(&aces);
    if ZNODE_ACES_AT + aces.len() > ZNODE_SIZE {
        return Err(base::bug!("a trivial ACL is too long"));
    }
    out.resize(ZNODE_SIZE, 0);
    Ok(out)
}

fn put(os: &Arc<Objset>, tx: &Tx, zap: ObjectId, name: &str, value: u64) -> Result<()> {
    zaps::add(os, tx, zap, name.as_bytes(), &ZapValue::from_u64(value))
}

/// Fills an empty object set with a new file system. The caller marks the dataset with the
/// features for the accounting that `new` requests.
///
/// # Errors
/// As [`NewFs::check`]; those of the object set.
pub fn fill(os: &Arc<Objset>, tx: &Tx, new: &NewFs) -> Result<()> {
    new.check()?;
    let spec = ObjectSpec { object_type: ObjType::MASTER_NODE, ..ObjectSpec::default() };
    os.claim(tx, MASTER_NODE, &spec)?;
    zaps::init(os, tx, MASTER_NODE, 0)?;
    let case = match new.case {
        CaseSensitivity::Sensitive => 0,
        CaseSensitivity::Insensitive => 1,
        CaseSensitivity::Mixed => 2,
    };
    let utf8only = u64::from(new.utf8only || new.normalization != 0);
    put(os, tx, MASTER_NODE, "normalization", new.normalization)?;
    put(os, tx, MASTER_NODE, "utf8only", utf8only)?;
    put(os, tx, MASTER_NODE, "casesensitivity", case)?;
    put(os, tx, MASTER_NODE, "VERSION", new.version)?;
    let zap =
        |object_type, normflags| zaps::create(os, tx, object_type, ObjType::NONE, &[], normflags);
    let mut sa = None;
    if new.version >= ZPL_VERSION {
        let object = zap(SA_MASTER_NODE, 0)?;
        put(os, tx, MASTER_NODE, "SA_ATTRS", object.0)?;
        sa = Some(object);
    }
    let queue = zap(ObjType::UNLINKED_SET, 0)?;
    put(os, tx, MASTER_NODE, "DELETE_QUEUE", queue.0)?;
    let root = root(os, tx, new)?;
    if let Some(sa) = sa {
        tables(os, tx, sa, new)?;
    }
    put(os, tx, MASTER_NODE, "ROOT", root.0)?;
    os.set_flags(new.flags())
}

fn root(os: &Arc<Objset>, tx: &Tx, new: &NewFs) -> Result<ObjectId> {
    let fold = if new.case == CaseSensitivity::Sensitive { 0 } else { TOUPPER };
    let dir = ObjType::DIRECTORY_CONTENTS;
    if new.version < ZPL_VERSION {
        let bonus = new.root_znode(ObjectId(0), tx.txg())?;
        let id = zaps::create(os, tx, dir, ObjType::ZNODE, &bonus, new.normalization | fold)?;
        os.set_bonus(tx, id, &new.root_znode(id, tx.txg())?)?;
        return Ok(id);
    }
    let mut tables = SaTables::standard();
    let layout: Vec<u16> = new.layout().into_iter().map(|a| a as u16).collect();
    tables.add_layout(LAYOUT, &layout)?;
    // The bonus contains the object's own id, so only its length is computed first.
    let bonus = new.root_bonus(&tables, ObjectId(0), tx.txg())?;
    let id = zaps::create(os, tx, dir, ObjType::SA, &bonus, new.normalization | fold)?;
    os.set_bonus(tx, id, &new.root_bonus(&tables, id, tx.txg())?)?;
    Ok(id)
}

/// The registry of attributes, and the layouts.
///
/// # Errors
/// Those of the object set.
pub(crate) fn tables(os: &Arc<Objset>, tx: &Tx, sa: ObjectId, new: &NewFs) -> Result<()> {
    let registry = zaps::create(os, tx, SA_REGISTRATION, ObjType::NONE, &[], 0)?;
    put(os, tx, sa, "REGISTRY", registry.0)?;
    for attr in SaTables::standard().attrs().take(REGISTERED) {
        let known = attr.known.ok_or_else(|| base::bug!("a standard attribute without name"))?;
        put(os, tx, registry, known.name(), attr.encode())?;
    }
    let layouts = zaps::create(os, tx, SA_LAYOUTS, ObjType::NONE, &[], 0)?;
    put(os, tx, sa, "LAYOUTS", layouts.0)?;
    let numbers: Vec<u16> = new.layout().into_iter().map(|a| a as u16).collect();
    let layout = ZapValue::from_u16s(&numbers).ok_or_else(|| base::bug!("a layout is too long"))?;
    zaps::add(os, tx, layouts, LAYOUT.to_string().as_bytes(), &layout)
}
