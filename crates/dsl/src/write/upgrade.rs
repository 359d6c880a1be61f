//! Newer versions of a pool (chapter 04 §1, §14.4).
//!
//! # Theory
//! Most versions up to 5000 only allow what older software does not know. Three of them also need
//! objects in the MOS:
//!
//! * Version 11 has `$ORIGIN@$ORIGIN`, from which all datasets descend, and each snapshot's set
//!   of the oldest datasets of its clones. An ordinary dataset gets its place behind that
//!   snapshot: the oldest of its directory has no previous one so far.
//! * Version 26 has the list of blocks to be freed, the directory `$FREE` that is charged for
//!   them, and in each directory the set of the heads that were cloned from its snapshots.
//!   Deadlists keep their plain form until their datasets are destroyed (`deadlist` has both);
//!   those made from now on have keys. The list of deferred frees keeps its short header.
//! * Version 5000 has the tables of features, which are empty at first, and the salt of
//!   checksums.
//!
//! [`plan`] looks at the pool and refuses what cannot be done; [`apply`] makes all objects in one
//! txg, in which the caller changes the version. So a crash leaves the pool as it was, or the new
//! version with all that it needs.

use base::{Error, ObjectId, Result, Txg};
use ondisk::ObjType;
use ondisk::uberblock::VERSION_FEATURES;
use ondisk::zap::ZapValue;

use super::links::{self, DIR_CLONES, NEXT_CLONES, ORIGIN};
use super::store::DIRECTORY;
use super::{FREE_LIST, MosRead, SyncCx, accounting, bpobj, create, initial};

/// Version from which on all datasets descend from one snapshot.
pub(super) const VERSION_ORIGIN: u64 = 11;
/// Version from which on destroyed datasets are freed in the background.
pub(super) const VERSION_LISTS: u64 = 26;
/// The tables of features: counts by their kind, and descriptions.
const TABLES: [&str; 3] = ["features_for_read", "features_for_write", "feature_descriptions"];

/// Creation txg of `$ORIGIN@$ORIGIN`, whenever it is made.
pub(super) const ORIGIN_TXG: Txg = Txg(1);

/// What the way from one version to another needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionSteps {
    /// For version 11: the oldest dataset of each directory, and the snapshot that it was cloned
    /// from, if it was.
    origins: Option<Vec<Oldest>>,
    /// For version 26: each directory with a head that was cloned from one of its snapshots.
    /// `None` is `$ORIGIN`'s, if this upgrade makes it.
    lists: Option<Vec<(Option<u64>, u64)>>,
    /// For version 5000.
    features: bool,
}

/// The oldest dataset of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Oldest {
    dir: u64,
    dataset: u64,
    /// The snapshot before it; `None` for an ordinary dataset.
    origin: Option<u64>,
}

/// Finds what the way from version `from` to `to` needs.
///
/// # Errors
/// `Corrupt` for a graph of datasets in which clones cannot be found; those of reading.
pub fn plan(mos: &dyn MosRead, from: u64, to: u64) -> Result<VersionSteps> {
    let crosses = |version: u64| from < version && version <= to;
    let origins = crosses(VERSION_ORIGIN).then(|| oldest(mos)).transpose()?;
    let lists = crosses(VERSION_LISTS).then(|| clones(mos, origins.is_some())).transpose()?;
    Ok(VersionSteps { origins, lists, features: crosses(VERSION_FEATURES) })
}

/// The oldest datasets of all directories of a pool without `$ORIGIN`.
fn oldest(mos: &dyn MosRead) -> Result<Vec<Oldest>> {
    if accounting::find_special_dir(mos, ORIGIN)?.is_some() {
        return Err(Error::corrupt("a pool of version 10 has an origin of all datasets"));
    }
    let mut out = Vec::new();
    for (dir, phys) in links::directories(mos)? {
        if phys.head_dataset_obj == 0 {
            continue;
        }
        let own = links::chain(mos, phys.head_dataset_obj, phys.origin_obj)?;
        let nothing = || Error::corrupt("a dataset is its own origin").in_object(ObjectId(dir));
        let dataset = own.last().copied().ok_or_else(nothing)?;
        let origin = Some(phys.origin_obj).filter(|origin| *origin != 0);
        out.push(Oldest { dir, dataset, origin });
    }
    Ok(out)
}

/// The directories of origins, each with the head of a dataset that comes from it. Ordinary
/// datasets come from `$ORIGIN`, which may not be there yet.
fn clones(mos: &dyn MosRead, makes_origin: bool) -> Result<Vec<(Option<u64>, u64)>> {
    let special = match makes_origin {
        true => None,
        false => Some(accounting::special_dir(mos, ORIGIN)?),
    };
    let mut out = Vec::new();
    for (at, dir) in links::directories(mos)? {
        match (dir.head_dataset_obj, dir.origin_obj) {
            (0, _) => {}
            (_, 0) if Some(at) == special => {}
            (head, 0) if makes_origin => out.push((None, head)),
            (_, 0) => {
                let e = Error::corrupt("a dataset comes from no snapshot");
                return Err(e.in_object(ObjectId(at)));
            }
            (head, origin) => out.push((Some(mos.dataset(origin)?.dir_obj), head)),
        }
    }
    Ok(out)
}

/// Gives all datasets an origin, and the origins of clones their sets. Returns the directory of
/// `$ORIGIN`.
fn make_origin(cx: &SyncCx<'_>, oldest: &[Oldest]) -> Result<u64> {
    let (origin_dir, all) = initial::origin(cx, cx.read().required("root_dataset")?)?;
    for at in oldest {
        if at.origin.is_none() {
            cx.edit_dir(at.dir, |d| d.origin_obj = all)?;
            cx.edit_dataset(at.dataset, |ds| {
                ds.prev_snap_obj = all;
                ds.prev_snap_txg = ORIGIN_TXG;
            })?;
            cx.edit_dataset(all, |o| o.num_children = o.num_children.saturating_add(1))?;
        }
        let origin = at.origin.unwrap_or(all);
        let set = cx.link_in(cx.dataset(origin)?.next_clones_obj, NEXT_CLONES, at.dataset)?;
        cx.edit_dataset(origin, |o| o.next_clones_obj = set)?;
    }
    Ok(origin_dir)
}

/// Makes what a plan found, with the pool's salt.
///
/// # Errors
/// Those of the store.
pub fn apply(cx: &SyncCx<'_>, steps: &VersionSteps, salt: &[u8; 32]) -> Result<()> {
    let made = steps.origins.as_ref().map(|oldest| make_origin(cx, oldest)).transpose()?;
    if let Some(clones) = &steps.lists {
        create::directory(cx, cx.read().required("root_dataset")?, "$FREE")?;
        let list = bpobj::create(cx, bpobj::BLOCK, 0)?;
        cx.put_number(DIRECTORY, FREE_LIST, list)?;
        for &(dir, head) in clones {
            let unknown = || base::bug!("clones of an origin that is not there");
            let dir = dir.or(made).ok_or_else(unknown)?;
            let set = cx.link_in(cx.dir(dir)?.clones, DIR_CLONES, head)?;
            cx.edit_dir(dir, |d| d.clones = set)?;
        }
    }
    if steps.features {
        make_tables(cx)?;
        put_salt(cx, salt)?;
    }
    Ok(())
}

/// Makes the tables of features.
pub(super) fn make_tables(cx: &SyncCx<'_>) -> Result<()> {
    TABLES.into_iter().try_for_each(|name| {
        let zap = cx.new_zap(ObjType::OTN_ZAP_METADATA, 0)?;
        cx.put_number(DIRECTORY, name, zap)
    })
}

pub(super) fn put_salt(cx: &SyncCx<'_>, salt: &[u8; 32]) -> Result<()> {
    let salt = ZapValue { int_size: 1, num: 32, data: salt.to_vec() };
    cx.mos.zap_update(DIRECTORY, b"org.illumos:checksum_salt", &salt)
}
