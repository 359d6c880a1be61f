//! Taking snapshots (chapter 04 §7).
//!
//! # Theory
//! A snapshot takes over the head's root and deadlist. The head gets a new deadlist with
//! the same keys and one more. Nothing else is written, whatever the dataset's size.
//!
//! # Invariants
//! * The head was synced in this txg and does not change in it any more.

use base::{Error, ErrorKind, Result, Txg};
use ondisk::dslphys::{DS_FLAG_CI_DATASET, DS_FLAG_UNIQUE_ACCURATE, DslDatasetPhys, UsedKind};
use ondisk::zap::ZapValue;

use super::features::{self, BOOKMARK_V2};
use super::scan::ScanEvent;
use super::{
    SyncCx, Usage, accounting, bookmark, counts, create, deadlist, links, props, remap, scan,
};

/// Key of the identity of an encrypted snapshot's initialisation vectors.
const IVSET: &str = "com.datto:ivset_guid";

/// The snapshot of `head` by this name.
///
/// # Errors
/// Those of reading.
pub fn find(cx: &SyncCx<'_>, head: &DslDatasetPhys, name: &str) -> Result<Option<u64>> {
    let zap = head.snapnames_zapobj;
    let value = if head.flags & DS_FLAG_CI_DATASET != 0 {
        cx.mos.zap_lookup_folded(zap, name.as_bytes())?.map(|(_, value)| value)
    } else {
        cx.mos.zap_lookup(zap, name.as_bytes())?
    };
    let odd = || Error::corrupt("a snapshot is not a number");
    value.map(|v| v.as_u64().ok_or_else(odd)).transpose()
}

/// Whether a snapshot can be taken now. The caller checks space and limits: the smaller of
/// the head's unique bytes and its refreservation must be available.
///
/// # Errors
/// `Exists`, `Invalid`, `NameTooLong`; `WouldBlock` when it must wait for a later txg;
/// those of reading.
pub fn check(cx: &SyncCx<'_>, head: u64, name: &str) -> Result<()> {
    create::check_component(name)?;
    let ds = cx.dataset(head)?;
    if ds.is_snapshot() || ds.is_inconsistent() {
        return Err(Error::invalid("this dataset cannot have snapshots"));
    }
    if find(cx, &ds, name)?.is_some() {
        return Err(Error::new(ErrorKind::Exists, "the snapshot exists"));
    }
    if ds.prev_snap_txg >= cx.txg {
        let e = "the dataset has a snapshot of this txg already";
        return Err(Error::new(ErrorKind::WouldBlock, e));
    }
    Ok(())
}

/// Takes a snapshot of `head`; returns its object.
///
/// # Errors
/// As [`check`]; those of the store.
pub fn take(cx: &SyncCx<'_>, head: u64, name: &str) -> Result<u64> {
    check(cx, head, name)?;
    let dir = cx.dataset(head)?.dir_obj;
    counts::snapshots(cx, dir, 1)?;
    let snapshot = take_at(cx, head, name, cx.txg)?;
    links::snapshots_changed(cx, dir)?;
    Ok(snapshot)
}

/// The same, without checks, with the creation txg `txg`.
pub(crate) fn take_at(cx: &SyncCx<'_>, head: u64, name: &str, txg: Txg) -> Result<u64> {
    let before = cx.dataset(head)?;
    let snapshot = create::dataset_object(
        cx,
        DslDatasetPhys {
            next_snap_obj: head,
            snapnames_zapobj: 0,
            num_children: 1,
            creation_txg: txg,
            unique_bytes: 0,
            ..before
        },
    )?;
    features::copy(cx, head, snapshot)?;
    if before.prev_snap_obj != 0 {
        replace_next(cx, before.prev_snap_obj, head, snapshot)?;
    }
    let reserved = props::refreservation(cx.read(), before.dir_obj)?;
    let reserved = Usage::bytes(before.unique_bytes.min(reserved) as i64);
    accounting::diduse(cx, before.dir_obj, UsedKind::RefReservation, reserved)?;
    let deadlist = deadlist::clone_keys(cx, &before, u64::MAX)?;
    deadlist::add_key(cx, deadlist, before.prev_snap_txg.0)?;
    for mark in bookmark::with_fbn(cx.read(), head)? {
        if mark.phys.creation_txg > before.prev_snap_txg {
            deadlist::add_key(cx, deadlist, mark.phys.creation_txg.0)?;
        }
    }
    move_attributes(cx, head, snapshot, before.dir_obj)?;
    cx.edit_dataset(head, |ds| {
        ds.prev_snap_obj = snapshot;
        ds.prev_snap_txg = txg;
        ds.unique_bytes = 0;
        ds.deadlist_obj = deadlist;
        ds.flags |= DS_FLAG_UNIQUE_ACCURATE;
    })?;
    cx.put_number(before.snapnames_zapobj, name, snapshot)?;
    scan::changed(cx, ScanEvent::Snapshotted(head, snapshot))?;
    Ok(snapshot)
}

/// In the snapshot `prev`, replaces the next dataset `old` by `new`.
pub(crate) fn replace_next(cx: &SyncCx<'_>, prev: u64, old: u64, new: u64) -> Result<()> {
    let phys = cx.dataset(prev)?;
    if phys.next_snap_obj == old {
        return cx.edit_dataset(prev, |p| p.next_snap_obj = new);
    }
    if !cx.keeps_clones() {
        return Ok(());
    }
    cx.unlink(phys.next_clones_obj, old)?;
    cx.link(phys.next_clones_obj, new)
}

/// Moves the attributes that belong to the snapshot from now on.
fn move_attributes(cx: &SyncCx<'_>, head: u64, snapshot: u64, dir: u64) -> Result<()> {
    if let Some(value) = cx.read().attribute(head, remap::KEY)? {
        cx.mos.zap_remove(head, remap::KEY.as_bytes())?;
        features::set_attribute(cx, snapshot, remap::KEY, &value)?;
    }
    let encrypted = cx.read().attribute(dir, "com.datto:crypto_key_obj")?.is_some();
    if encrypted && features::is_enabled(cx.read(), BOOKMARK_V2)? {
        let guid = (cx.identity() & ((1 << 56) - 1)).max(1);
        features::set_attribute(cx, snapshot, IVSET, &ZapValue::from_u64(guid))?;
    }
    Ok(())
}
