//! Exchanging the content of two heads, and returning a head to its newest snapshot
//! (chapter 04 §10.4).
//!
//! # Theory
//! A rollback clones the snapshot, exchanges the clone's content with that of the head, and
//! destroys the clone, which has the discarded content by then. So its blocks are freed as
//! those of any destroyed dataset: in the background, resumed after a crash. All of it is in
//! one txg; no state in between is ever on disk.
//!
//! # Scans and background frees
//! Bookmark and queue of a running scan follow the content (§17.3): the exchange and the
//! destruction are events of their own ([`super::scan`]).
//!
//! # Invariants
//! * The head keeps its identity: object, guid, creation, names of snapshots, bookmarks.

use base::{Error, ErrorKind, Result};
use ondisk::dslphys::UsedKind;

use super::accounting::{diduse, transfer};
use super::trees::Trees;
use super::{SyncCx, Usage, bookmark, counts, create, deadlist, destroy, features, links};
use super::{livelist, props, remap, scan};

/// Name of the directory that exists within the txg of a rollback only.
const CLONE_NAME: &str = "%rollback";

/// Whether a head can return to its newest snapshot `snap` now. The caller checks the space
/// that its refreservation needs, and refquota.
///
/// # Errors
/// `Exists` when there are newer snapshots or bookmarks; `Invalid` for other datasets;
/// `WouldBlock` when it must wait for a later txg; `Unsupported` for encrypted datasets;
/// those of reading.
pub fn check(cx: &SyncCx<'_>, head: u64, snap: u64) -> Result<()> {
    let mos = cx.read();
    let (ds, s) = (mos.dataset(head)?, mos.dataset(snap)?);
    let is_own = s.dir_obj == ds.dir_obj && !links::is_pool_origin(mos, snap, &s)?;
    if ds.is_snapshot() || !s.is_snapshot() || !is_own {
        return Err(Error::invalid("a dataset returns to a snapshot of its own"));
    }
    if s.is_inconsistent() {
        return Err(Error::invalid("the snapshot is incomplete"));
    }
    let newer = bookmark::of_head(mos, head)?;
    let newer = newer.iter().any(|mark| mark.phys.creation_txg > s.creation_txg);
    if ds.prev_snap_obj != snap || newer {
        let text = "more recent snapshots or bookmarks exist";
        return Err(Error::new(ErrorKind::Exists, text));
    }
    if ds.prev_snap_txg >= cx.txg {
        let text = "the snapshot was taken in this txg";
        return Err(Error::new(ErrorKind::WouldBlock, text));
    }
    if mos.attribute(ds.dir_obj, "com.datto:crypto_key_obj")?.is_some() {
        return Err(Error::unsupported("encrypted datasets cannot be rolled back"));
    }
    if mos.number(mos.dir(ds.dir_obj)?.child_dir_zapobj, CLONE_NAME)?.is_some() {
        return Err(Error::corrupt("an earlier rollback was not completed"));
    }
    Ok(())
}

/// Returns a head, which was synced in this txg, to its newest snapshot. The blocks of its
/// intent log were freed before. If the snapshot's object set has an intent log, the caller
/// writes it again without the log.
///
/// # Errors
/// As [`check`]; those of the store and of walking the tree.
pub fn rollback(cx: &SyncCx<'_>, head: u64, snap: u64, trees: &dyn Trees) -> Result<()> {
    check(cx, head, snap)?;
    let above = cx.dataset(head)?.dir_obj;
    let dir = create::directory(cx, above, CLONE_NAME)?;
    counts::filesystems(cx, above, 1)?;
    let clone = create::head(cx, dir, Some(snap), false)?;
    swap(cx, head, clone)?;
    if cx.is_planted(|p| &p.kept_blocks) {
        cx.edit_dataset(clone, |k| k.prev_snap_txg = cx.txg)?;
    }
    destroy::head(cx, clone, trees)
}

/// Exchanges the content of head `head` with that of `clone`, whose directory is a child of
/// the head's, which has no snapshots and no refreservation, and which is a clone of the
/// head's previous snapshot.
///
/// # Errors
/// `Bug` unless that is so; those of the store.
pub fn swap(cx: &SyncCx<'_>, head: u64, clone: u64) -> Result<()> {
    let (d, k) = (cx.dataset(head)?, cx.dataset(clone)?);
    if d.prev_snap_obj != k.prev_snap_obj || cx.dir(k.dir_obj)?.parent_obj != d.dir_obj {
        return Err(base::bug!("the content of datasets that are not related is exchanged"));
    }
    let refreserved = props::refreservation(cx.read(), d.dir_obj)?;
    let since = links::origin_txg(cx.read(), cx.dir(d.dir_obj)?.origin_obj)?;
    let dead = |list| deadlist::total(cx.read(), list);
    let dead_since = |list| deadlist::range(cx, list, since.0, u64::MAX);
    let of = |p: &ondisk::dslphys::DslDatasetPhys| {
        Usage::of(p.referenced_bytes, p.compressed_bytes, p.uncompressed_bytes)
    };
    let gained = of(&k) + dead(k.deadlist_obj)? - of(&d) - dead(d.deadlist_obj)?;
    let to_snapshots = dead_since(k.deadlist_obj)?.used - dead_since(d.deadlist_obj)?.used;

    features::exchange(cx, head, clone)?;
    exchange_remap(cx, head, clone)?;
    if !cx.is_planted(|p| &p.kept_livelist) {
        livelist::discard(cx, d.dir_obj)?;
    }
    livelist::discard(cx, k.dir_obj)?;
    let (mut new_d, mut new_k) = (cx.dataset(head)?, cx.dataset(clone)?);
    for (to, from) in [(&mut new_d, &k), (&mut new_k, &d)] {
        to.bp = from.bp;
        to.referenced_bytes = from.referenced_bytes;
        to.compressed_bytes = from.compressed_bytes;
        to.uncompressed_bytes = from.uncompressed_bytes;
        to.unique_bytes = from.unique_bytes;
        to.deadlist_obj = from.deadlist_obj;
    }
    cx.put_dataset(head, &new_d)?;
    cx.put_dataset(clone, &new_k)?;
    let before = match d.prev_snap_obj {
        0 => None,
        before => Some(cx.dataset(before)?),
    };
    if let Some(before) = before.filter(|before| before.next_snap_obj == head) {
        let only = deadlist::range(cx, k.deadlist_obj, before.prev_snap_txg.0, u64::MAX)?;
        cx.edit_dataset(d.prev_snap_obj, |p| p.unique_bytes = only.used as u64)?;
    }
    diduse(cx, d.dir_obj, UsedKind::Head, gained)?;
    diduse(cx, k.dir_obj, UsedKind::Head, -gained)?;
    transfer(cx, d.dir_obj, to_snapshots, UsedKind::Head, UsedKind::Snap)?;
    let covered = |unique: u64| refreserved.min(unique) as i64;
    let reserved = covered(d.unique_bytes).wrapping_sub(covered(k.unique_bytes));
    diduse(cx, d.dir_obj, UsedKind::RefReservation, Usage::bytes(reserved))?;
    let freed = deadlist::total(cx.read(), k.deadlist_obj)?.space();
    bookmark::edit_fbn(cx, head, &mut |phys| {
        let counts = phys.creation_txg >= d.prev_snap_txg;
        if counts {
            phys.fbn = freed;
        }
        Ok(counts)
    })?;
    scan::swapped(cx, head, clone)
}

/// Exchanges the lists of obsolete segments (chapter 08).
fn exchange_remap(cx: &SyncCx<'_>, a: u64, b: u64) -> Result<()> {
    let (of_a, of_b) = (cx.read().attribute(a, remap::KEY)?, cx.read().attribute(b, remap::KEY)?);
    for (object, had, gets) in [(a, &of_a, &of_b), (b, &of_b, &of_a)] {
        match gets {
            Some(value) => features::set_attribute(cx, object, remap::KEY, value)?,
            None if had.is_some() => cx.mos.zap_remove(object, remap::KEY.as_bytes())?,
            None => {}
        }
    }
    Ok(())
}
