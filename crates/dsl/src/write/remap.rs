//! Addresses on removed vdevs that datasets need no longer (chapter 08 §D.4).
//!
//! # Theory
//! A pointer to a block on a removed vdev may be changed to the place where the block is now.
//! From then on the dataset does not need the mapping of the old address. If a snapshot
//! still has the old pointer, the old address is noted in the dataset's *remap deadlist*. That
//! is a deadlist of pointers that have nothing but the old address and the block's birth.
//! OpenZFS changes pointers so; Cenote does not, but takes over the lists.
//!
//! A remap deadlist goes the way of the deadlist of blocks. A snapshot takes over that of its
//! head. Let a snapshot S between P and N be destroyed. What N's list has of births after P was
//! needed by S alone: it moves to the pool's list of obsolete addresses, and from there to the
//! obsolete maps of the removed vdevs ([`consume_obsolete`]). The rest of it, and all of S's own
//! list, is needed by P: it is N's list from then on. A head that is destroyed only drops its
//! list, because its snapshots need what is listed.
//!
//! # Invariants
//! * The feature obsolete_counts counts each remap deadlist, and the list of obsolete addresses.
//! * An address is marked obsolete once, when the last snapshot that needed it is gone.

use std::collections::BTreeMap;

use base::{Dva, Result, Txg};
use ondisk::BlkPtr;
use ondisk::blkptr::Block;
use ondisk::zap::ZapValue;

use super::store::DIRECTORY;
use super::{MosRead, SyncCx, bpobj, deadlist, features, links};

/// Key of a dataset's remap deadlist.
pub const KEY: &str = "com.delphix:remap_deadlist";
/// Name of the list of obsolete addresses in the object directory.
pub const OBSOLETE_LIST: &str = "com.delphix:obsolete_bpobj";
/// The feature that counts what is recorded of obsolete addresses.
pub const OBSOLETE_COUNTS: &str = "com.delphix:obsolete_counts";

/// Entries added to a list at once.
const BATCH: usize = 1024;

/// Changes the count of obsolete_counts. A pool that has the lists without the feature is
/// damaged, but its lists are not the worse for that.
fn count(cx: &SyncCx<'_>, by: i64) -> Result<()> {
    if features::is_enabled(cx.read(), OBSOLETE_COUNTS)? {
        features::add(cx, OBSOLETE_COUNTS, by)?;
    }
    Ok(())
}

/// Whether the remap deadlist of a dataset, if it has one, can be taken over.
///
/// # Errors
/// `Corrupt` when it has entries of an unknown form; those of reading.
pub fn check(mos: &dyn MosRead, dataset: u64) -> Result<()> {
    let Some(list) = mos.attribute_u64(dataset, KEY)? else { return Ok(()) };
    for list in deadlist::keys(mos, list)?.into_values() {
        bpobj::for_each(mos, list, &mut |_| Ok(()))?;
    }
    Ok(())
}

/// Frees the remap deadlist of a head that is destroyed.
///
/// # Errors
/// Those of the store.
pub(crate) fn head_destroyed(cx: &SyncCx<'_>, head: u64) -> Result<()> {
    let Some(list) = cx.read().attribute_u64(head, KEY)? else { return Ok(()) };
    deadlist::free(cx, list)?;
    cx.mos.zap_remove(head, KEY.as_bytes())?;
    count(cx, -1)
}

/// Moves the entries of the remap deadlists of a snapshot that is destroyed and of the dataset
/// behind it. `before` is the creation txg of the snapshot before it.
///
/// # Errors
/// Those of the store.
pub(crate) fn snapshot_destroyed(
    cx: &SyncCx<'_>,
    snapshot: u64,
    next: u64,
    before: Txg,
) -> Result<()> {
    let behind = cx.read().attribute_u64(next, KEY)?;
    if let Some(list) = behind {
        let obsolete = obsolete_list(cx)?;
        deadlist::move_from(cx, list, obsolete, before.0)?;
    }
    let Some(own) = cx.read().attribute_u64(snapshot, KEY)? else { return Ok(()) };
    cx.mos.zap_remove(snapshot, KEY.as_bytes())?;
    match behind {
        Some(list) => {
            deadlist::merge(cx, list, own)?;
            count(cx, -1)
        }
        None => features::set_attribute(cx, next, KEY, &ZapValue::from_u64(own)),
    }
}

/// Drops the entries of a dataset's remap deadlist whose blocks were moved, with all their pointers
/// (`moved`), and adds their addresses to `dropped`: no snapshot needs them any more. A list that
/// has become empty is freed.
///
/// # Errors
/// Those of the store; `Corrupt`; `Unsupported` for lists in lists.
pub fn drop_moved(
    cx: &SyncCx<'_>,
    dataset: u64,
    moved: &dyn Fn(&Block) -> bool,
    dropped: &mut Vec<Dva>,
) -> Result<()> {
    let Some(object) = cx.read().attribute_u64(dataset, KEY)? else { return Ok(()) };
    let before = dropped.len();
    let plain = deadlist::is_plain(cx.read(), object)?;
    let lists = match plain {
        true => BTreeMap::from([(0, object)]),
        false => deadlist::keys(cx.read(), object)?,
    };
    let mut left = false;
    for (key, list) in lists {
        let found = dropped.len();
        bpobj::for_each(cx.read(), list, &mut |entry| {
            match entry.bp.as_block().filter(|block| moved(block)) {
                Some(block) => dropped.push(block.dva()),
                None => left = true,
            }
            Ok(())
        })?;
        if dropped.len() == found {
            continue;
        }
        if plain {
            bpobj::retain(cx, list, &mut |entry| Ok(!entry.bp.as_block().is_some_and(moved)))?;
            continue;
        }
        let total = bpobj::usage(cx.read(), list)?;
        let others = list_without(cx, list, moved)?;
        deadlist::set_list(cx, object, key, others)?;
        deadlist::change_total(cx, object, bpobj::usage(cx.read(), others)? + -total)?;
    }
    if !left && dropped.len() > before {
        deadlist::free(cx, object)?;
        cx.mos.zap_remove(dataset, KEY.as_bytes())?;
        count(cx, -1)?;
    }
    Ok(())
}

/// Replaces a list, and the lists in it, by one without the moved blocks.
fn list_without(cx: &SyncCx<'_>, list: u64, moved: &dyn Fn(&Block) -> bool) -> Result<u64> {
    let others = bpobj::create(cx, bpobj::BLOCK, 0)?;
    let mut batch = Vec::with_capacity(BATCH);
    bpobj::for_each(cx.read(), list, &mut |entry| {
        if entry.bp.as_block().is_some_and(moved) {
            return Ok(());
        }
        batch.push(*entry);
        if batch.len() == BATCH {
            bpobj::append(cx, others, &batch)?;
            batch.clear();
        }
        Ok(())
    })?;
    bpobj::append(cx, others, &batch)?;
    bpobj::release(cx, list)?;
    Ok(others)
}

/// The list of obsolete addresses, which is made when it is first needed.
fn obsolete_list(cx: &SyncCx<'_>) -> Result<u64> {
    if let Some(list) = cx.read().directory(OBSOLETE_LIST)? {
        return Ok(list);
    }
    let list = bpobj::create(cx, bpobj::BLOCK, 0)?;
    cx.put_number(DIRECTORY, OBSOLETE_LIST, list)?;
    count(cx, 1)?;
    Ok(list)
}

/// Takes at most `budget` entries from the list of obsolete addresses, and passes them to
/// `mark`; returns how many, and whether there are more. An empty list is freed.
///
/// # Errors
/// Those of the store and of `mark`; `Corrupt`.
pub fn consume_obsolete(
    cx: &SyncCx<'_>,
    budget: u64,
    mark: &mut dyn FnMut(Dva) -> Result<()>,
) -> Result<(u64, bool)> {
    let Some(list) = cx.read().directory(OBSOLETE_LIST)? else { return Ok((0, false)) };
    let mut taken = 0;
    if !links::list_is_empty(cx.read(), list)? {
        let done = bpobj::consume(cx, list, budget, &mut |entry| match &entry.bp {
            BlkPtr::Block(block) => mark(block.dva()),
            BlkPtr::Hole(_) | BlkPtr::Embedded(_) | BlkPtr::Redacted(_) => Ok(()),
        })?;
        taken = done.entries;
    }
    if !links::list_is_empty(cx.read(), list)? {
        return Ok((taken, true));
    }
    cx.mos.zap_remove(DIRECTORY, OBSOLETE_LIST.as_bytes())?;
    bpobj::release(cx, list)?;
    count(cx, -1)?;
    Ok((taken, false))
}
