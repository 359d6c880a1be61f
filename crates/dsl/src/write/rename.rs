//! Renaming directories and snapshots (chapter 04 §10.5).
//!
//! # Theory
//! A directory's name is the key of its entry in its parent, and a snapshot's that in its
//! head. So a rename edits entries. A directory that gets another parent takes its space and
//! its counts along.
//!
//! # Scans and background frees
//! Both know objects, not names.

use std::collections::BTreeSet;

use base::limits::DATASET_DEPTH_MAX;
use base::{Error, ErrorKind, ObjectId, Result};
use ondisk::dslphys::UsedKind;

use super::accounting::diduse;
use super::{MosRead, SyncCx, Usage, counts, create, links, snapshot};

/// Whether the directory `dir` can be called `name` below `parent`. The caller checks that
/// the parent is a file system, space, limits, and the lengths of full names below.
///
/// # Errors
/// `Invalid` for the root, and below itself; `Exists`; `NameTooLong`; `Limit` when nested
/// too deep; those of reading.
pub fn check_dir(cx: &SyncCx<'_>, dir: u64, parent: u64, name: &str) -> Result<()> {
    create::check_component(name)?;
    let mos = cx.read();
    if mos.dir(dir)?.parent_obj == 0 {
        return Err(Error::invalid("the root of a pool has the pool's name"));
    }
    let above = ancestors(mos, parent)?;
    if above.contains(&dir) {
        return Err(Error::invalid("a dataset cannot be moved below itself"));
    }
    if mos.number(mos.dir(parent)?.child_dir_zapobj, name)?.is_some() {
        return Err(Error::new(ErrorKind::Exists, "the dataset exists"));
    }
    if above.len() + height(mos, dir)? >= DATASET_DEPTH_MAX {
        return Err(Error::limit("datasets nested too deep"));
    }
    Ok(())
}

/// A directory and all above it.
///
/// # Errors
/// Those of reading; `Corrupt` for a directory below itself.
pub fn ancestors(mos: &dyn MosRead, dir: u64) -> Result<Vec<u64>> {
    let (mut out, mut at) = (Vec::new(), dir);
    while at != 0 {
        if out.len() > DATASET_DEPTH_MAX {
            let e = Error::corrupt("a dataset directory is below itself");
            return Err(e.in_object(ObjectId(dir)));
        }
        out.push(at);
        at = mos.dir(at)?.parent_obj;
    }
    Ok(out)
}

/// Levels of a subtree, at least 1.
fn height(mos: &dyn MosRead, dir: u64) -> Result<usize> {
    let (mut levels, mut row, mut seen) = (0, vec![dir], BTreeSet::new());
    while !row.is_empty() {
        levels += 1;
        let mut below = Vec::new();
        for dir in row {
            if levels > DATASET_DEPTH_MAX || !seen.insert(dir) {
                return Err(Error::limit("datasets nested too deep"));
            }
            let children = mos.numbers(mos.dir(dir)?.child_dir_zapobj)?;
            below.extend(children.into_iter().map(|(_, child)| child));
        }
        row = below;
    }
    Ok(levels)
}

/// Moves the directory `dir` below `parent`, under `name`.
///
/// # Errors
/// As [`check_dir`]; those of the store.
pub fn dir(cx: &SyncCx<'_>, dir: u64, parent: u64, name: &str) -> Result<()> {
    check_dir(cx, dir, parent, name)?;
    let phys = cx.dir(dir)?;
    let from = phys.parent_obj;
    let names = cx.dir(from)?.child_dir_zapobj;
    let old = cx.read().numbers(names)?.into_iter().find(|(_, object)| *object == dir);
    let (old, _) = old.ok_or_else(|| Error::corrupt("a dataset has no name"))?;
    cx.mos.zap_remove(names, old.as_bytes())?;
    cx.put_number(cx.dir(parent)?.child_dir_zapobj, name, dir)?;
    if from == parent {
        return Ok(());
    }
    counts::moved(cx, dir, from, parent)?;
    let used = Usage::of(phys.used_bytes, phys.compressed_bytes, phys.uncompressed_bytes);
    let unused = phys.reserved.saturating_sub(phys.used_bytes);
    let unused = Usage::bytes(i64::try_from(unused).unwrap_or(i64::MAX));
    diduse(cx, from, UsedKind::Child, -used)?;
    diduse(cx, from, UsedKind::ChildReservation, -unused)?;
    diduse(cx, parent, UsedKind::Child, used)?;
    diduse(cx, parent, UsedKind::ChildReservation, unused)?;
    cx.edit_dir(dir, |d| d.parent_obj = parent)
}

/// Whether a snapshot of `head` can be renamed.
///
/// # Errors
/// `NotFound`; `Exists`; `Invalid`, `NameTooLong`; those of reading.
pub fn check_snapshot(cx: &SyncCx<'_>, head: u64, from: &str, to: &str) -> Result<()> {
    create::check_component(to)?;
    let ds = cx.dataset(head)?;
    let missing = || Error::not_found("there is no such snapshot");
    let snap = snapshot::find(cx, &ds, from)?.ok_or_else(missing)?;
    match snapshot::find(cx, &ds, to)? {
        // Only its case changes.
        Some(object) if object == snap && from != to => Ok(()),
        Some(_) => Err(Error::new(ErrorKind::Exists, "the snapshot exists")),
        None => Ok(()),
    }
}

/// Renames a snapshot of `head`; returns its object.
///
/// # Errors
/// As [`check_snapshot`]; those of the store.
pub fn snapshot(cx: &SyncCx<'_>, head: u64, from: &str, to: &str) -> Result<u64> {
    check_snapshot(cx, head, from, to)?;
    let ds = cx.dataset(head)?;
    let missing = || Error::not_found("there is no such snapshot");
    let snap = snapshot::find(cx, &ds, from)?.ok_or_else(missing)?;
    let names = cx.read().numbers(ds.snapnames_zapobj)?;
    let (stored, _) = names.into_iter().find(|(_, object)| *object == snap).ok_or_else(missing)?;
    cx.mos.zap_remove(ds.snapnames_zapobj, stored.as_bytes())?;
    cx.put_number(ds.snapnames_zapobj, to, snap)?;
    let tags = cx.dataset(snap)?.userrefs_obj;
    if tags != 0 && cx.is_planted(|p| &p.dropped_holds) {
        cx.edit_dataset(snap, |s| s.userrefs_obj = 0)?;
        cx.mos.free_object(tags)?;
    }
    links::snapshots_changed(cx, ds.dir_obj)?;
    Ok(snap)
}
