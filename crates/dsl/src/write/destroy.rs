//! Destroying snapshots, heads and their directories (chapter 04 §8, §9.1).
//!
//! # Theory
//! A snapshot's destruction moves whole lists. Blocks to which only the snapshot referred
//! are added to `free_bpobj`; the rest of its deadlist is added to the next dataset's.
//! Pools older than version 26 have no such list. There all births in the deadlist are
//! examined, and the blocks are freed in this txg.
//!
//! A clone with a livelist is freed from it ([`super::livelist`]), if the list's sums are
//! those of the clone. Otherwise a head's blocks are found by walking its tree. With feature async_destroy the tree is
//! put on a list (a bptree) that [`super::background`] processes over as many txgs as
//! necessary: constant work now, and a crash loses nothing. Without the feature the whole
//! tree is walked in this txg. Its blocks are put into `free_bpobj`, or freed at once if
//! the pool has none. That is atomic, too, and only old pools bear its cost. The tree is
//! walked twice, so that an unreadable tree is detected before anything is changed.
//!
//! # Departures from OpenZFS
//! * Without async_destroy, OpenZFS marks the dataset and deletes file by file.

use base::{Error, ErrorKind, Result, Txg};
use ondisk::bpobj::BpobjEntry;
use ondisk::dslphys::{
    BOOKMARK_SNAPSHOT_EXISTS, BookmarkPlace, BptreeEntry, DslDatasetPhys, DslDirPhys, UsedKind,
};

use super::accounting::{diduse, free_changed};
use super::features::{self, ASYNC_DESTROY};
use super::scan::ScanEvent;
use super::trees::{Trees, Walked};
use super::{
    FREE_LIST, MosRead, SyncCx, Usage, accounting, background, bookmark, bpobj, counts, deadlist,
    links, livelist, props, remap, scan, snapshot, usage,
};

/// Blocks added to a list at once.
const BATCH: usize = 1024;
/// Name of the temporary holds in the object directory.
const TEMPORARY: &str = "tmp_userrefs";

/// Whether a snapshot can be destroyed now.
///
/// # Errors
/// `Busy` when it is held; `Exists` when it has clones; `Invalid` for a head.
pub fn check_snapshot(mos: &dyn MosRead, snap: u64) -> Result<()> {
    let s = mos.dataset(snap)?;
    if !s.is_snapshot() || links::is_pool_origin(mos, snap, &s)? {
        return Err(Error::invalid("this is no snapshot that can be destroyed"));
    }
    if !holds(mos, &s)?.is_empty() {
        return Err(Error::busy("the snapshot is held"));
    }
    if s.num_children > 1 {
        return Err(Error::new(ErrorKind::Exists, "the snapshot has clones"));
    }
    remap::check(mos, s.next_snap_obj)
}

/// Tags that hold a snapshot, with the times since when (Unix seconds).
///
/// # Errors
/// Those of reading.
pub fn holds(mos: &dyn MosRead, s: &DslDatasetPhys) -> Result<Vec<(String, u64)>> {
    mos.numbers(s.userrefs_obj)
}

/// Destroys a snapshot. With `defer`, one that is held or has clones is marked instead; it
/// is destroyed together with the last of them. Returns whether it was destroyed.
///
/// # Errors
/// As [`check_snapshot`]; those of the store.
pub fn snapshot(cx: &SyncCx<'_>, snap: u64, defer: bool) -> Result<bool> {
    named_snapshot(cx, snap, None, defer)
}

/// As [`snapshot()`], with the snapshot's name, if the caller knows it: a search for it takes
/// time proportional to the number of the dataset's snapshots.
///
/// # Errors
/// As [`snapshot()`].
pub fn named_snapshot(cx: &SyncCx<'_>, snap: u64, name: Option<&str>, defer: bool) -> Result<bool> {
    let s = cx.dataset(snap)?;
    let kept = s.num_children > 1 || !holds(cx.read(), &s)?.is_empty();
    if defer && kept && !links::is_pool_origin(cx.read(), snap, &s)? {
        let flag = ondisk::dslphys::DS_FLAG_DEFER_DESTROY;
        cx.edit_dataset(snap, |s| s.flags |= flag)?;
        return Ok(false);
    }
    check_snapshot(cx.read(), snap)?;
    snapshot_unchecked(cx, snap, &s, name)?;
    Ok(true)
}

fn snapshot_unchecked(
    cx: &SyncCx<'_>,
    snap: u64,
    s: &DslDatasetPhys,
    name: Option<&str>,
) -> Result<()> {
    let (next_obj, dir) = (s.next_snap_obj, s.dir_obj);
    scan::changed(cx, ScanEvent::SnapshotDestroyed(snap, next_obj))?;
    let head = cx.dir(dir)?.head_dataset_obj;
    let old_next = cx.dataset(next_obj)?;
    let list = old_next.deadlist_obj;
    let keep_key = bookmarks_at(cx, head, s, list)?;
    features::deactivate_all(cx, snap)?;

    // The first snapshot of a dataset has none before it in pools older than version 11.
    let before = match s.prev_snap_obj {
        0 => None,
        before => Some(cx.dataset(before)?),
    };
    if before.is_some() {
        snapshot::replace_next(cx, s.prev_snap_obj, snap, next_obj)?;
    }
    cx.edit_dataset(next_obj, |n| {
        n.prev_snap_obj = s.prev_snap_obj;
        n.prev_snap_txg = s.prev_snap_txg;
    })?;
    if let Some(p) = before.filter(|p| p.next_snap_obj == snap) {
        let more = deadlist::range(cx, list, p.prev_snap_txg.0, s.prev_snap_txg.0)?;
        cx.edit_dataset(s.prev_snap_obj, |p| usage::add(&mut p.unique_bytes, more.used))?;
    }
    let destroyed = deadlist::range(cx, list, s.prev_snap_txg.0, u64::MAX)?;
    diduse(cx, dir, UsedKind::Snap, -destroyed)?;
    if let Some(free_bpobj) = cx.read().directory(FREE_LIST)? {
        deadlist::move_from(cx, list, free_bpobj, s.prev_snap_txg.0)?;
        free_changed(cx, destroyed)?;
    } else {
        deadlist::free_from(cx, list, s.prev_snap_txg.0)?;
    }
    deadlist::merge(cx, list, s.deadlist_obj)?;
    remap::snapshot_destroyed(cx, snap, next_obj, s.prev_snap_txg)?;
    if !keep_key {
        links::remove_key_from_clones(cx, dir, s.creation_txg)?;
    }
    if old_next.is_snapshot() {
        let after = cx.dataset(old_next.next_snap_obj)?.deadlist_obj;
        let more = deadlist::range(cx, after, s.prev_snap_txg.0, s.creation_txg.0)?;
        cx.edit_dataset(next_obj, |n| usage::add(&mut n.unique_bytes, more.used))?;
        if !keep_key {
            let list = cx.dataset(head)?.deadlist_obj;
            deadlist::remove_key(cx, list, s.creation_txg.0)?;
        }
    } else {
        recompute_unique(cx, next_obj)?;
    }
    free_snapshot(cx, snap, s, head, name)
}

/// Updates the bookmarks of a snapshot that is being destroyed, and those before it (§8,
/// step 1). Returns whether its txg stays a key of deadlists.
fn bookmarks_at(cx: &SyncCx<'_>, head: u64, s: &DslDatasetPhys, next_list: u64) -> Result<bool> {
    let mut keep_key = false;
    bookmark::edit_fbn(cx, head, &mut |phys| {
        if phys.creation_txg == s.creation_txg {
            keep_key = true;
            phys.flags &= !BOOKMARK_SNAPSHOT_EXISTS;
            return Ok(true);
        }
        if phys.creation_txg >= s.prev_snap_txg && phys.creation_txg < s.creation_txg {
            let freed = deadlist::range(cx, next_list, 0, phys.creation_txg.0)?;
            bookmark::add_fbn(phys, freed);
            return Ok(true);
        }
        Ok(false)
    })?;
    Ok(keep_key)
}

/// Unique bytes of a head, by the formula of §5.4.
pub(crate) fn unique_of_head(mos: &dyn MosRead, ds: &DslDatasetPhys) -> Result<u64> {
    let before = match ds.prev_snap_obj {
        0 => 0,
        prev => mos.dataset(prev)?.referenced_bytes,
    };
    let dead = deadlist::total(mos, ds.deadlist_obj)?.used as u64;
    Ok(ds.referenced_bytes.wrapping_sub(before.wrapping_sub(dead)))
}

fn recompute_unique(cx: &SyncCx<'_>, head: u64) -> Result<()> {
    let ds = cx.dataset(head)?;
    let (old, new) = (ds.unique_bytes, unique_of_head(cx.read(), &ds)?);
    cx.edit_dataset(head, |ds| ds.unique_bytes = new)?;
    let reserved = props::refreservation(cx.read(), ds.dir_obj)?;
    if old < reserved {
        let covered = new.wrapping_sub(old).min(reserved - old);
        let change = Usage::bytes((covered as i64).wrapping_neg());
        diduse(cx, ds.dir_obj, UsedKind::RefReservation, change)?;
    }
    Ok(())
}

fn free_snapshot(
    cx: &SyncCx<'_>,
    snap: u64,
    s: &DslDatasetPhys,
    head: u64,
    name: Option<&str>,
) -> Result<()> {
    let names = cx.dataset(head)?.snapnames_zapobj;
    let known = match name {
        Some(name) if cx.read().number(names, name)? == Some(snap) => Some(name),
        _ => None,
    };
    let name = match known {
        Some(name) => name.as_bytes().to_vec(),
        None => {
            let all = cx.mos.zap_entries(names)?;
            let mine = all.into_iter().find(|(_, v)| v.as_u64() == Some(snap));
            mine.ok_or_else(|| Error::corrupt("a snapshot has no name"))?.0
        }
    };
    cx.mos.zap_remove(names, &name)?;
    counts::snapshots(cx, s.dir_obj, -1)?;
    links::snapshots_changed(cx, s.dir_obj)?;
    props::clear_bootfs(cx, snap)?;
    for zap in [s.next_clones_obj, s.props_obj, s.userrefs_obj] {
        if zap != 0 {
            cx.mos.free_object(zap)?;
        }
    }
    features::free_zapified(cx, snap)
}

/// Whether a head can be destroyed now.
///
/// # Errors
/// `Busy` while it has snapshots; `Exists` while there are datasets below; `Invalid`
/// for a snapshot and the pool's own datasets.
pub fn check_head(mos: &dyn MosRead, head: u64) -> Result<()> {
    let ds = mos.dataset(head)?;
    let dir = mos.dir(ds.dir_obj)?;
    let without_origin = ds.prev_snap_obj == 0 && links::origin_snapshot(mos)?.is_some();
    if ds.is_snapshot() || without_origin || dir.parent_obj == 0 {
        return Err(Error::invalid("this is no dataset that can be destroyed"));
    }
    if !mos.numbers(ds.snapnames_zapobj)?.is_empty() {
        return Err(Error::busy("the dataset has snapshots"));
    }
    if !mos.numbers(dir.child_dir_zapobj)?.is_empty() {
        return Err(Error::new(ErrorKind::Exists, "the dataset has children"));
    }
    Ok(())
}

/// Destroys a head and its directory. The blocks of its intent log were freed before.
///
/// # Errors
/// As [`check_head`]; those of the store and of walking the tree.
pub fn head(cx: &SyncCx<'_>, head: u64, trees: &dyn Trees) -> Result<()> {
    check_head(cx.read(), head)?;
    let ds = cx.dataset(head)?;
    let live = livelist::usable(cx.read(), ds.dir_obj)?;
    let later = features::is_enabled(cx.read(), ASYNC_DESTROY)?;
    if !later && live.is_none() {
        // This walk only detects unreadable blocks.
        walk(trees, &ds, &mut |_| Ok(()))?;
    }
    scan::changed(cx, ScanEvent::HeadDestroyed(head))?;
    let reserved = props::refreservation(cx.read(), ds.dir_obj)?;
    accounting::refreservation_changed(cx, ds.dir_obj, reserved, 0)?;
    features::deactivate_all(cx, head)?;
    leave_origin(cx, head, &ds)?;
    deadlist::free(cx, ds.deadlist_obj)?;
    remap::head_destroyed(cx, head)?;
    let dir = cx.dir(ds.dir_obj)?;
    let all = Usage::of(dir.used_bytes, dir.compressed_bytes, dir.uncompressed_bytes);
    if let Some((list, usage)) = live {
        livelist::queue(cx, ds.dir_obj, list)?;
        free_changed(cx, usage)?;
    } else if later {
        let frees_origin = cx.is_planted(|p| &p.freed_origin);
        let entry = BptreeEntry {
            bp: ds.bp,
            birth_txg: if frees_origin { Txg::ZERO } else { ds.prev_snap_txg },
            bookmark: BookmarkPlace::default(),
        };
        background::add_tree(cx, &entry, all)?;
        free_changed(cx, all)?;
    } else {
        list_tree(cx, trees, &ds)?;
    }
    livelist::discard(cx, ds.dir_obj)?;
    diduse(cx, ds.dir_obj, UsedKind::Head, -all)?;
    forget_head(cx, head, &ds)?;
    destroy_dir(cx, ds.dir_obj)?;
    if ds.prev_snap_obj == 0 {
        return Ok(());
    }
    let origin = cx.dataset(ds.prev_snap_obj)?;
    if origin.is_defer_destroy()
        && origin.num_children == 1
        && holds(cx.read(), &origin)?.is_empty()
        && !cx.is_planted(|p| &p.forgotten_deferral)
    {
        snapshot_unchecked(cx, ds.prev_snap_obj, &origin, None)?;
    }
    Ok(())
}

/// Walks all of a head's own blocks.
fn walk(
    trees: &dyn Trees,
    ds: &DslDatasetPhys,
    f: &mut dyn FnMut(&ondisk::BlkPtr) -> Result<()>,
) -> Result<()> {
    let mut failed = None;
    let walked = trees.walk(&ds.bp, ds.prev_snap_txg, None, &mut |bp, _| match f(bp) {
        Ok(()) => true,
        Err(e) => {
            failed = Some(e);
            false
        }
    });
    match (walked, failed) {
        (Walked::Failed(e), _) | (_, Some(e)) => Err(e),
        (Walked::All | Walked::Stopped, None) => Ok(()),
    }
}

/// Puts all of a head's own blocks into `free_bpobj`, or frees them.
fn list_tree(cx: &SyncCx<'_>, trees: &dyn Trees, ds: &DslDatasetPhys) -> Result<()> {
    let Some(list) = cx.read().directory(FREE_LIST)? else {
        return walk(trees, ds, &mut |bp| cx.free(bp));
    };
    let (mut batch, mut listed) = (Vec::with_capacity(BATCH), Usage::default());
    walk(trees, ds, &mut |bp| {
        batch.push(BpobjEntry { bp: *bp, freed: false });
        if batch.len() == BATCH {
            listed += bpobj::append(cx, list, &batch)?;
            batch.clear();
        }
        Ok(())
    })?;
    listed += bpobj::append(cx, list, &batch)?;
    free_changed(cx, listed)
}

/// Removes a head from the clones of the snapshot that it was cloned from.
fn leave_origin(cx: &SyncCx<'_>, head: u64, ds: &DslDatasetPhys) -> Result<()> {
    if ds.prev_snap_obj == 0 {
        return Ok(());
    }
    let origin = cx.dataset(ds.prev_snap_obj)?;
    if cx.keeps_clones() {
        cx.unlink(origin.next_clones_obj, head)?;
    }
    cx.edit_dataset(ds.prev_snap_obj, |o| o.num_children = o.num_children.saturating_sub(1))?;
    match cx.dir(origin.dir_obj)?.clones {
        // Pools older than version 26 have no such set.
        0 => Ok(()),
        clones => cx.unlink(clones, head),
    }
}

/// Frees the head's object and the objects that belong to it.
fn forget_head(cx: &SyncCx<'_>, head: u64, ds: &DslDatasetPhys) -> Result<()> {
    cx.edit_dir(ds.dir_obj, |d| d.head_dataset_obj = 0)?;
    cx.mos.free_object(ds.snapnames_zapobj)?;
    bookmark::destroy_all(cx, head)?;
    props::clear_bootfs(cx, head)?;
    forget_errors(cx, head)?;
    features::free_zapified(cx, head)
}

/// Deletes a head's error logs (§18).
fn forget_errors(cx: &SyncCx<'_>, head: u64) -> Result<()> {
    if !features::is_active(cx.read(), "com.delphix:head_errlog")? {
        return Ok(());
    }
    for name in ["errlog_last", "errlog_scrub"] {
        let log = cx.read().directory(name)?.unwrap_or(0);
        if log == 0 {
            continue;
        }
        if let Some(own) = cx.read().number(log, &format!("{head:x}"))? {
            cx.unlink(log, head)?;
            cx.mos.free_object(own)?;
        }
    }
    Ok(())
}

fn destroy_dir(cx: &SyncCx<'_>, object: u64) -> Result<()> {
    accounting::set_reservation(cx, object, 0)?;
    let dir = cx.dir(object)?;
    counts::filesystems(cx, dir.parent_obj, -1)?;
    release_key(cx, object)?;
    free_permissions(cx, &dir)?;
    for zap in [dir.child_dir_zapobj, dir.props_zapobj, dir.clones] {
        if zap != 0 {
            cx.mos.free_object(zap)?;
        }
    }
    let names = cx.dir(dir.parent_obj)?.child_dir_zapobj;
    let all = cx.mos.zap_entries(names)?;
    let mine = all.into_iter().find(|(_, v)| v.as_u64() == Some(object));
    let (name, _) = mine.ok_or_else(|| Error::corrupt("a dataset has no name"))?;
    cx.mos.zap_remove(names, &name)?;
    features::free_zapified(cx, object)
}

/// Drops the reference to an encryption key (chapter 08).
fn release_key(cx: &SyncCx<'_>, dir: u64) -> Result<()> {
    const COUNT: &str = "DSL_CRYPTO_REFCOUNT";
    let Some(key) = cx.read().attribute_u64(dir, "com.datto:crypto_key_obj")? else {
        return Ok(());
    };
    match cx.read().number(key, COUNT)?.unwrap_or(1) {
        0 | 1 => cx.mos.free_object(key),
        n => cx.put_number(key, COUNT, n - 1),
    }
}

fn free_permissions(cx: &SyncCx<'_>, dir: &DslDirPhys) -> Result<()> {
    if dir.deleg_zapobj == 0 {
        return Ok(());
    }
    for (_, jump) in cx.read().numbers(dir.deleg_zapobj)? {
        cx.mos.free_object(jump)?;
    }
    cx.mos.free_object(dir.deleg_zapobj)
}

/// Releases the holds of programs that ended with the pool's last import (§11.1, temporary
/// holds). Entries that name no hold are dropped.
///
/// # Errors
/// Those of the store.
pub fn release_temporary(cx: &SyncCx<'_>) -> Result<()> {
    let Some(zap) = cx.read().directory(TEMPORARY)?.filter(|zap| *zap != 0) else { return Ok(()) };
    for (name, _) in cx.read().zap_entries(zap)? {
        let text = String::from_utf8_lossy(&name).into_owned();
        let held = text.split_once('-').and_then(|(object, tag)| {
            u64::from_str_radix(object, 16).ok().map(|object| (object, tag))
        });
        if let Some((object, tag)) = held
            && cx.dataset(object).is_ok_and(|s| s.is_snapshot())
        {
            match release(cx, object, tag) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        cx.mos.zap_remove(zap, &name)?;
    }
    Ok(())
}

/// Holds a snapshot under a tag (§11.1).
///
/// # Errors
/// `Exists`, `Invalid`, `NameTooLong`; those of the store.
pub fn hold(cx: &SyncCx<'_>, snap: u64, tag: &str) -> Result<()> {
    let mut s = cx.dataset(snap)?;
    if !s.is_snapshot() || tag.is_empty() {
        return Err(Error::invalid("only snapshots are held, and by a tag"));
    }
    if tag.len() > base::limits::DATASET_NAME_MAX {
        return Err(Error::new(ErrorKind::NameTooLong, "a tag has at most 255 bytes"));
    }
    if s.userrefs_obj == 0 {
        s.userrefs_obj = cx.new_zap(ondisk::ObjType(41), 0)?;
        cx.put_dataset(snap, &s)?;
    } else if cx.mos.zap_lookup(s.userrefs_obj, tag.as_bytes())?.is_some() {
        return Err(Error::new(ErrorKind::Exists, "the snapshot is held by this tag"));
    }
    cx.put_number(s.userrefs_obj, tag, cx.now.0)
}

/// Releases a hold. A snapshot marked for destruction is destroyed with its last hold
/// (§11.2). Returns whether it was destroyed.
///
/// # Errors
/// `NotFound`; those of the store.
pub fn release(cx: &SyncCx<'_>, snap: u64, tag: &str) -> Result<bool> {
    let s = cx.dataset(snap)?;
    if s.userrefs_obj == 0 || !cx.remove_if_present(s.userrefs_obj, tag)? {
        return Err(Error::not_found("the snapshot is not held by this tag"));
    }
    let destroyed = s.is_defer_destroy() && s.num_children == 1 && holds(cx.read(), &s)?.is_empty();
    if destroyed {
        snapshot_unchecked(cx, snap, &s, None)?;
    }
    Ok(destroyed)
}
