//! Creating directories and datasets (chapter 04 §2, §4.2).
//!
//! # Theory
//! Every dataset is formally a clone: an ordinary one is a clone of `$ORIGIN@$ORIGIN`,
//! which has no blocks. So one procedure makes both. Only pools older than version 11 have
//! datasets without an origin ([`super::links`]). A new ordinary dataset has no object
//! set yet. The caller writes one in the same txg and accounts for it with a
//! [`super::Delta`], which also stores its root.

use base::limits::DATASET_DEPTH_MAX;
use base::{Error, ErrorKind, Result, Txg};
use ondisk::ObjType;
use ondisk::dslphys::{
    DD_FLAG_USED_BREAKDOWN, DS_FLAG_CI_DATASET, DS_FLAG_INCONSISTENT, DS_FLAG_UNIQUE_ACCURATE,
    DslDatasetPhys, DslDirPhys,
};
use ondisk::normalize::TOUPPER;

use super::links::{DIR_CLONES, NEXT_CLONES};
use super::livelist;
use super::store::DIRECTORY;
use super::{NewObject, SMALL_BLOCK, SyncCx, counts, crypt, deadlist, encode_dataset, features};

/// First txg of a pool.
pub const TXG_INITIAL: Txg = Txg(4);
/// First version of pools whose directories say what their space is used for.
const VERSION_BREAKDOWN: u64 = 13;
/// Bits of the ids for statfs.
const FSID_BITS: u32 = 56;

/// Parameters of a new dataset.
#[derive(Clone, Copy, Debug)]
pub struct NewDataset<'a> {
    /// The last component of its name.
    pub name: &'a str,
    /// Snapshot names are looked up without regard to case.
    pub case_insensitive: bool,
    /// The snapshot to clone.
    pub origin: Option<u64>,
}

/// The objects of a new dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    /// Its directory.
    pub dir: u64,
    /// Its head.
    pub head: u64,
}

/// Checks one component of a dataset's, snapshot's or bookmark's name (§19).
///
/// # Errors
/// `Invalid`, `NameTooLong`.
pub fn check_component(name: &str) -> Result<()> {
    if name.len() > base::limits::DATASET_NAME_MAX {
        return Err(Error::new(ErrorKind::NameTooLong, "the name is too long"));
    }
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"_.: -%".contains(&b);
    if name.is_empty() || name == "." || name == ".." || !name.bytes().all(fine) {
        return Err(Error::invalid(format!("{name:?} cannot be part of a dataset's name")));
    }
    Ok(())
}

/// Whether a dataset can be created below the directory `parent`. The caller must check
/// that the parent is a file system, and the limits and the full name.
///
/// # Errors
/// `Invalid`, `NameTooLong`, `Exists`, `Limit`; `Unsupported` for clones of encrypted snapshots;
/// those of reading.
pub fn check(cx: &SyncCx<'_>, parent: u64, new: &NewDataset<'_>) -> Result<()> {
    check_received(cx, parent, new)?;
    let Some(origin) = new.origin else { return Ok(()) };
    if crypt::key_object(cx.read(), cx.dataset(origin)?.dir_obj)?.is_some() {
        return Err(Error::unsupported("encrypted datasets cannot be cloned"));
    }
    Ok(())
}

/// As [`check`], for a dataset whose content a raw stream brings.
///
/// # Errors
/// `Invalid`, `NameTooLong`, `Exists`, `Limit`; those of reading.
pub fn check_received(cx: &SyncCx<'_>, parent: u64, new: &NewDataset<'_>) -> Result<()> {
    check_component(new.name)?;
    let above = cx.dir(parent)?;
    if cx.mos.zap_lookup(above.child_dir_zapobj, new.name.as_bytes())?.is_some() {
        return Err(Error::new(ErrorKind::Exists, "the dataset exists"));
    }
    let (mut depth, mut at) = (1, above.parent_obj);
    while at != 0 {
        depth += 1;
        if depth >= DATASET_DEPTH_MAX {
            return Err(Error::limit("datasets nested too deep"));
        }
        at = cx.dir(at)?.parent_obj;
    }
    let Some(origin) = new.origin else { return Ok(()) };
    let snap = cx.dataset(origin)?;
    if !snap.is_snapshot() || snap.is_inconsistent() {
        return Err(Error::invalid("only a complete snapshot can be cloned"));
    }
    Ok(())
}

/// Makes a directory below `parent` (0: the root directory, without a name).
///
/// # Errors
/// Those of the store.
pub(crate) fn directory(cx: &SyncCx<'_>, parent: u64, name: &str) -> Result<u64> {
    let bonus = DslDirPhys::default().encode().to_vec();
    let object = NewObject::plain(ObjType::DSL_DIR, SMALL_BLOCK);
    let dir = cx.mos.allocate(&object.with_bonus(ObjType::DSL_DIR, bonus))?;
    if parent == 0 {
        cx.put_number(DIRECTORY, "root_dataset", dir)?;
    } else {
        cx.put_number(cx.dir(parent)?.child_dir_zapobj, name, dir)?;
    }
    let phys = DslDirPhys {
        creation_time: cx.now.0,
        parent_obj: parent,
        props_zapobj: cx.new_zap(ObjType::DSL_PROPS, 0)?,
        child_dir_zapobj: cx.new_zap(ObjType::DSL_DIR_CHILD_MAP, 0)?,
        flags: if cx.version >= VERSION_BREAKDOWN { DD_FLAG_USED_BREAKDOWN } else { 0 },
        ..DslDirPhys::default()
    };
    cx.put_dir(dir, &phys)?;
    Ok(dir)
}

/// Allocates a dataset object with new identities.
pub(crate) fn dataset_object(cx: &SyncCx<'_>, phys: DslDatasetPhys) -> Result<u64> {
    let phys = DslDatasetPhys {
        creation_time: cx.now.0,
        fsid_guid: (cx.identity() & ((1 << FSID_BITS) - 1)).max(1),
        guid: cx.identity(),
        ..phys
    };
    let object = NewObject::plain(ObjType::DSL_DATASET, SMALL_BLOCK);
    cx.mos.allocate(&object.with_bonus(ObjType::DSL_DATASET, encode_dataset(&phys)?))
}

/// The creation txg of datasets made now: 1 stands for the pool's first.
fn creation_txg(cx: &SyncCx<'_>) -> Txg {
    if cx.txg == TXG_INITIAL { Txg(1) } else { cx.txg }
}

/// Makes the head of directory `dir`; without `origin`, that of `$ORIGIN` itself, or of an
/// ordinary dataset of a pool older than version 11.
pub(crate) fn head(
    cx: &SyncCx<'_>,
    dir: u64,
    origin: Option<u64>,
    case_insensitive: bool,
) -> Result<u64> {
    let mut flags = DS_FLAG_UNIQUE_ACCURATE;
    if case_insensitive {
        flags |= DS_FLAG_CI_DATASET;
    }
    let mut phys = DslDatasetPhys {
        dir_obj: dir,
        snapnames_zapobj: cx.new_zap(ObjType::DSL_DS_SNAP_MAP, TOUPPER)?,
        creation_txg: creation_txg(cx),
        flags,
        ..DslDatasetPhys::default()
    };
    let Some(origin) = origin else {
        phys.deadlist_obj = deadlist::create(cx)?;
        let head = dataset_object(cx, phys)?;
        cx.edit_dir(dir, |d| d.head_dataset_obj = head)?;
        return Ok(head);
    };
    let snap = cx.dataset(origin)?;
    let above = cx.dir(snap.dir_obj)?;
    let model = cx.dataset(above.head_dataset_obj)?;
    phys.prev_snap_obj = origin;
    phys.prev_snap_txg = snap.creation_txg;
    phys.referenced_bytes = snap.referenced_bytes;
    phys.compressed_bytes = snap.compressed_bytes;
    phys.uncompressed_bytes = snap.uncompressed_bytes;
    phys.bp = snap.bp;
    phys.flags |= snap.flags & (DS_FLAG_INCONSISTENT | DS_FLAG_CI_DATASET);
    phys.deadlist_obj = deadlist::clone_keys(cx, &model, snap.creation_txg.0)?;
    let head = dataset_object(cx, phys)?;
    features::copy(cx, origin, head)?;
    let next_clones = if cx.keeps_clones() {
        cx.link_in(snap.next_clones_obj, NEXT_CLONES, head)?
    } else {
        snap.next_clones_obj
    };
    cx.edit_dataset(origin, |s| {
        s.num_children = s.num_children.saturating_add(1);
        s.next_clones_obj = next_clones;
    })?;
    if cx.has_lists()? {
        let clones = cx.link_in(above.clones, DIR_CLONES, head)?;
        cx.edit_dir(snap.dir_obj, |d| d.clones = clones)?;
    }
    cx.edit_dir(dir, |d| {
        d.origin_obj = origin;
        d.head_dataset_obj = head;
    })?;
    Ok(head)
}

/// Creates a dataset below the directory `parent`. One that is no clone needs an object set
/// in this very txg. A clone has its origin's object set; if that has an intent log, the
/// caller writes it again without the log.
///
/// # Errors
/// As [`check`]; those of the store.
pub fn dataset(cx: &SyncCx<'_>, parent: u64, new: &NewDataset<'_>) -> Result<Created> {
    check(cx, parent, new)?;
    received(cx, parent, new)
}

/// As [`dataset`], for a dataset whose content a raw stream brings: a clone shares the keys of its
/// origin.
///
/// # Errors
/// As [`check_received`]; those of the store.
pub fn received(cx: &SyncCx<'_>, parent: u64, new: &NewDataset<'_>) -> Result<Created> {
    check_received(cx, parent, new)?;
    let shared = new.origin;
    let origin = match new.origin {
        Some(origin) => Some(origin),
        None => cx.origin_of_all()?,
    };
    let dir = directory(cx, parent, new.name)?;
    if let Some(origin) = shared {
        crypt::share(cx, dir, cx.dataset(origin)?.dir_obj)?;
    }
    counts::filesystems(cx, parent, 1)?;
    let head = head(cx, dir, origin, new.case_insensitive)?;
    if new.origin.is_some() {
        livelist::create(cx, dir)?;
    }
    counts::begin(cx, dir)?;
    Ok(Created { dir, head })
}
