//! Links between clones and the snapshots that they were cloned from (chapter 04 §10.1).
//!
//! # Theory
//! From version 11 on every dataset descends from `$ORIGIN@$ORIGIN`, and each snapshot has the
//! set of the oldest datasets of its clones (`next_clones`). In pools of version 10 a dataset's
//! first snapshot has no previous one, a directory that is no clone has no origin, and of the
//! clones of a snapshot only the number is kept (`num_children`). There they are found by a walk
//! over all directories, which only snapshots with clones need ([`clones_of`]).

use std::collections::{BTreeSet, HashSet};

use base::{Error, ObjectId, Result, Txg};
use ondisk::ObjType;
use ondisk::dslphys::{DslDatasetPhys, DslDirPhys};
use ondisk::zap::ZapValue;

use super::features::{self, EXTENSIBLE_DATASET};
use super::{MosRead, SyncCx, accounting, bpobj, deadlist};

/// Type of the set of a snapshot's clones.
pub(crate) const NEXT_CLONES: ObjType = ObjType(37);
/// Type of the set of heads cloned from a directory's snapshots.
pub(crate) const DIR_CLONES: ObjType = ObjType(52);
/// Key of the time when a dataset's set of snapshots last changed.
const SNAPSHOTS_CHANGED: &str = "com.ixsystems:snapshots_changed";
/// Name of the directory and of the snapshot that every dataset descends from.
pub(super) const ORIGIN: &str = "$ORIGIN";

/// `$ORIGIN@$ORIGIN`, the snapshot that every dataset descends from; `None` in pools older than
/// version 11.
///
/// # Errors
/// Those of reading; `Corrupt` when the directory has no snapshot.
pub fn origin_snapshot(mos: &dyn MosRead) -> Result<Option<u64>> {
    let Some(dir) = accounting::find_special_dir(mos, ORIGIN)? else { return Ok(None) };
    match mos.dataset(mos.dir(dir)?.head_dataset_obj)?.prev_snap_obj {
        0 => Err(Error::corrupt("the pool has no origin snapshot")),
        object => Ok(Some(object)),
    }
}

/// Whether the snapshot `object` is `$ORIGIN@$ORIGIN`.
///
/// # Errors
/// As [`origin_snapshot`].
pub fn is_pool_origin(mos: &dyn MosRead, object: u64, snap: &DslDatasetPhys) -> Result<bool> {
    // The first snapshots of datasets have none before them either, in old pools.
    Ok(snap.prev_snap_obj == 0 && origin_snapshot(mos)? == Some(object))
}

/// Whether the head of a directory was cloned from a snapshot of another dataset.
///
/// # Errors
/// Those of reading.
pub fn is_clone(mos: &dyn MosRead, dir: &DslDirPhys) -> Result<bool> {
    if dir.origin_obj == 0 {
        return Ok(false);
    }
    Ok(!is_pool_origin(mos, dir.origin_obj, &mos.dataset(dir.origin_obj)?)?)
}

/// The oldest dataset of each clone of a snapshot, a snapshot itself or a head.
///
/// # Errors
/// Those of reading; `Corrupt` for a graph of datasets without end.
pub fn clones_of(mos: &dyn MosRead, object: u64, snap: &DslDatasetPhys) -> Result<Vec<u64>> {
    let listed = mos.numbers(snap.next_clones_obj)?;
    if snap.next_clones_obj != 0 || snap.num_children < 2 || origin_snapshot(mos)?.is_some() {
        return Ok(listed.into_iter().map(|(_, next)| next).collect());
    }
    let mut out = Vec::new();
    for (_, dir) in directories(mos)? {
        if dir.origin_obj == object && dir.head_dataset_obj != 0 {
            out.extend(chain(mos, dir.head_dataset_obj, object)?.last());
        }
    }
    Ok(out)
}

/// All directories with their objects, parents before children.
///
/// # Errors
/// Those of reading; `Corrupt` for a directory in two places.
pub(super) fn directories(mos: &dyn MosRead) -> Result<Vec<(u64, DslDirPhys)>> {
    let (mut out, mut seen) = (Vec::new(), BTreeSet::new());
    let mut left = vec![mos.required("root_dataset")?];
    while let Some(at) = left.pop() {
        if !seen.insert(at) {
            let e = Error::corrupt("a directory of datasets is in two places");
            return Err(e.in_object(ObjectId(at)));
        }
        let dir = mos.dir(at)?;
        left.extend(mos.numbers(dir.child_dir_zapobj)?.into_iter().map(|(_, child)| child));
        out.push((at, dir));
    }
    Ok(out)
}

/// Datasets from `from` back to the one whose previous snapshot is `end`.
///
/// # Errors
/// Those of reading; `Corrupt` when `end` is not before `from`.
pub(super) fn chain(mos: &dyn MosRead, from: u64, end: u64) -> Result<Vec<u64>> {
    let (mut out, mut seen, mut at) = (Vec::new(), BTreeSet::new(), from);
    while at != end {
        if at == 0 || !seen.insert(at) {
            let e = Error::corrupt("a dataset does not descend from its clone's origin");
            return Err(e.in_object(ObjectId(from)));
        }
        out.push(at);
        at = mos.dataset(at)?.prev_snap_obj;
    }
    Ok(out)
}

/// Creation txg of the snapshot that a directory's head was cloned from; 0 for ordinary
/// datasets (chapter 04 §5.4).
///
/// # Errors
/// Those of reading.
pub(crate) fn origin_txg(mos: &dyn MosRead, origin: u64) -> Result<Txg> {
    if origin == 0 {
        return Ok(Txg::ZERO);
    }
    let snap = mos.dataset(origin)?;
    Ok(if is_pool_origin(mos, origin, &snap)? { Txg::ZERO } else { snap.creation_txg })
}

/// Removes a deadlist key from the heads of all clones made after it, and of their clones
/// (§8, step 8).
///
/// # Errors
/// Those of the store; `Corrupt` when clones form a cycle.
pub(crate) fn remove_key_from_clones(cx: &SyncCx<'_>, dir: u64, key: Txg) -> Result<()> {
    let mut seen = HashSet::from([dir]);
    let mut work = vec![dir];
    while let Some(dir) = work.pop() {
        for (_, head) in cx.read().numbers(cx.dir(dir)?.clones)? {
            let clone = cx.dataset(head)?;
            let origin = cx.dir(clone.dir_obj)?.origin_obj;
            if origin_txg(cx.read(), origin)? <= key {
                continue;
            }
            deadlist::remove_key(cx, clone.deadlist_obj, key.0)?;
            if !seen.insert(clone.dir_obj) {
                let e = Error::corrupt("a clone has two origins");
                return Err(e.in_object(ObjectId(head)));
            }
            work.push(clone.dir_obj);
        }
    }
    Ok(())
}

/// Stores the time of a change of a directory's set of snapshots.
///
/// # Errors
/// Those of the store.
pub fn snapshots_changed(cx: &SyncCx<'_>, dir: u64) -> Result<()> {
    if !features::is_enabled(cx.read(), EXTENSIBLE_DATASET)? {
        return Ok(());
    }
    let value = ZapValue::from_u64s(&[cx.now.0, u64::from(cx.now.1)])
        .ok_or_else(|| base::bug!("two numbers are a value"))?;
    features::set_attribute(cx, dir, SNAPSHOTS_CHANGED, &value)
}

/// Whether a list is empty.
///
/// # Errors
/// Those of reading.
pub(crate) fn list_is_empty(mos: &dyn MosRead, list: u64) -> Result<bool> {
    Ok(bpobj::header(mos, list)?.is_empty())
}
