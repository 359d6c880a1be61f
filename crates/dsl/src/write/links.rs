//! Links between clones and the snapshots that they were cloned from (chapter 04 §10.1).

use std::collections::HashSet;

use base::{Error, ObjectId, Result, Txg};
use ondisk::ObjType;
use ondisk::zap::ZapValue;

use super::features::{self, EXTENSIBLE_DATASET};
use super::{MosRead, SyncCx, accounting, bpobj, deadlist};

/// Type of the set of a snapshot's clones.
pub(crate) const NEXT_CLONES: ObjType = ObjType(37);
/// Type of the set of heads cloned from a directory's snapshots.
pub(crate) const DIR_CLONES: ObjType = ObjType(52);
/// Key of the time when a dataset's set of snapshots last changed.
const SNAPSHOTS_CHANGED: &str = "com.ixsystems:snapshots_changed";

/// `$ORIGIN@$ORIGIN`, the snapshot that every dataset descends from.
///
/// # Errors
/// Those of reading; `Corrupt` when it is missing.
pub fn origin_snapshot(mos: &dyn MosRead) -> Result<u64> {
    let dir = mos.dir(accounting::special_dir(mos, "$ORIGIN")?)?;
    match mos.dataset(dir.head_dataset_obj)?.prev_snap_obj {
        0 => Err(Error::corrupt("the pool has no origin snapshot")),
        object => Ok(object),
    }
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
    // Only `$ORIGIN@$ORIGIN` has no previous snapshot.
    Ok(if snap.prev_snap_obj == 0 { Txg::ZERO } else { snap.creation_txg })
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
