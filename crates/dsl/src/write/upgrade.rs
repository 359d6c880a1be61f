//! Newer versions of a pool (chapter 04 §1, §14.4).
//!
//! # Theory
//! Most versions up to 5000 only allow what older software does not know. Two of them also need
//! objects in the MOS:
//!
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

use std::collections::BTreeSet;

use base::{Error, ObjectId, Result};
use ondisk::ObjType;
use ondisk::uberblock::VERSION_FEATURES;
use ondisk::zap::ZapValue;

use super::links::DIR_CLONES;
use super::store::DIRECTORY;
use super::{FREE_LIST, MosRead, SyncCx, accounting, bpobj, create};

/// Version from which on destroyed datasets are freed in the background.
pub(super) const VERSION_LISTS: u64 = 26;
/// The tables of features: counts by their kind, and descriptions.
const TABLES: [&str; 3] = ["features_for_read", "features_for_write", "feature_descriptions"];

/// What the way from one version to another needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionSteps {
    /// For version 26: each directory with a head that was cloned from one of its snapshots.
    lists: Option<Vec<(u64, u64)>>,
    /// For version 5000.
    features: bool,
}

/// Finds what the way from version `from` to `to` needs.
///
/// # Errors
/// `Corrupt` for a graph of datasets in which clones cannot be found; those of reading.
pub fn plan(mos: &dyn MosRead, from: u64, to: u64) -> Result<VersionSteps> {
    let crosses = |version: u64| from < version && version <= to;
    let lists = crosses(VERSION_LISTS).then(|| clones(mos)).transpose()?;
    Ok(VersionSteps { lists, features: crosses(VERSION_FEATURES) })
}

/// The directories of origins, each with the head of a dataset that comes from it. Ordinary
/// datasets come from `$ORIGIN`.
fn clones(mos: &dyn MosRead) -> Result<Vec<(u64, u64)>> {
    let special = accounting::special_dir(mos, "$ORIGIN")?;
    let (mut out, mut seen) = (Vec::new(), BTreeSet::new());
    let mut left = vec![mos.required("root_dataset")?];
    while let Some(at) = left.pop() {
        if !seen.insert(at) {
            let e = Error::corrupt("a directory of datasets is in two places");
            return Err(e.in_object(ObjectId(at)));
        }
        let dir = mos.dir(at)?;
        match (dir.head_dataset_obj, dir.origin_obj) {
            (0, _) => {}
            (_, 0) if at == special => {}
            (_, 0) => {
                let e = Error::corrupt("a dataset comes from no snapshot");
                return Err(e.in_object(ObjectId(at)));
            }
            (head, origin) => out.push((mos.dataset(origin)?.dir_obj, head)),
        }
        left.extend(mos.numbers(dir.child_dir_zapobj)?.into_iter().map(|(_, child)| child));
    }
    Ok(out)
}

/// Makes what a plan found, with the pool's salt.
///
/// # Errors
/// Those of the store.
pub fn apply(cx: &SyncCx<'_>, steps: &VersionSteps, salt: &[u8; 32]) -> Result<()> {
    if let Some(clones) = &steps.lists {
        create::directory(cx, cx.read().required("root_dataset")?, "$FREE")?;
        let list = bpobj::create(cx, bpobj::BLOCK, 0)?;
        cx.put_number(DIRECTORY, FREE_LIST, list)?;
        for &(dir, head) in clones {
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
