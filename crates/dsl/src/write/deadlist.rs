//! Deadlists: the blocks to which a dataset's previous snapshot refers and the dataset does
//! not any more (chapter 04 §6.4).
//!
//! # Theory
//! A ZAP maps a txg to a list of block pointers. The entry with key k holds the blocks born
//! after k and up to the next key. The keys of a head are the creation txgs of the
//! snapshots before the previous one. So destroying a snapshot moves and frees whole lists
//! without examining a block.
//!
//! Before version 26 a deadlist is one plain list, and every birth must be examined instead
//! of the keys. Datasets of upgraded pools may still have such deadlists. The functions
//! here accept both forms; a plain list has no keys.
//!
//! Destroying many snapshots, one after the other, uses the same few deadlists again and again.
//! So a txg keeps the keys of those that it used last in memory; every change of a key in
//! here changes them, too.
//!
//! # Invariants
//! * The header's totals are the sums over all lists.
//! * An entry without blocks refers to the shared empty list if the pool has one.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{Error, ObjectId, Result};
use ondisk::ObjType;
use ondisk::bpobj::BpobjEntry;
use ondisk::dslphys::{DeadlistPhys, DslDatasetPhys};

use super::{MosRead, NewObject, SMALL_BLOCK, SyncCx, Usage, birth, bpobj};

/// Blocks added to a list at once.
const BATCH: usize = 1024;
/// Deadlists whose keys a txg keeps in memory.
const CACHED: usize = 4;

/// Keys of deadlists, that of the last use at the end.
pub(super) type KeyCache = RefCell<Vec<(u64, Rc<BTreeMap<u64, u64>>)>>;

/// Whether a deadlist is a plain list, without keys.
///
/// # Errors
/// Those of reading.
pub fn is_plain(mos: &dyn MosRead, object: u64) -> Result<bool> {
    Ok(mos.info(object)?.bonus_type == ObjType::BPOBJ_HDR)
}

/// Makes a deadlist without keys: a plain list in pools older than version 26.
///
/// # Errors
/// Those of the store.
pub fn create(cx: &SyncCx<'_>) -> Result<u64> {
    if !cx.has_lists()? {
        return bpobj::create_plain(cx, bpobj::BLOCK, 0);
    }
    let bonus = DeadlistPhys::default().encode().to_vec();
    let object = NewObject::plain(ObjType::DEADLIST, SMALL_BLOCK);
    let id = cx.mos.allocate(&object.with_bonus(ObjType::DEADLIST_HDR, bonus))?;
    cx.mos.zap_init(id, 0)?;
    forget(cx, id);
    Ok(id)
}

/// As [`keys`], from memory if they are there.
fn keys_in(cx: &SyncCx<'_>, object: u64) -> Result<Rc<BTreeMap<u64, u64>>> {
    let mut cache = cx.deadlist_keys.borrow_mut();
    let found = match cache.iter().position(|(cached, _)| *cached == object) {
        Some(at) => cache.remove(at).1,
        None => Rc::new(keys(cx.read(), object)?),
    };
    if cache.len() == CACHED {
        cache.remove(0);
    }
    cache.push((object, Rc::clone(&found)));
    Ok(found)
}

/// Changes the keys in memory, if they are there.
fn change_keys(cx: &SyncCx<'_>, object: u64, change: impl FnOnce(&mut BTreeMap<u64, u64>)) {
    let mut cache = cx.deadlist_keys.borrow_mut();
    if let Some((_, keys)) = cache.iter_mut().find(|(cached, _)| *cached == object) {
        change(Rc::make_mut(keys));
    }
}

/// Drops the keys of an object that is freed or new.
fn forget(cx: &SyncCx<'_>, object: u64) {
    cx.deadlist_keys.borrow_mut().retain(|(cached, _)| *cached != object);
}

fn check_form(mos: &dyn MosRead, object: u64) -> Result<DeadlistPhys> {
    let info = mos.info(object)?;
    match info.bonus_type {
        ObjType::DEADLIST_HDR => DeadlistPhys::parse(&info.bonus, info.endian),
        ObjType::BPOBJ_HDR => Err(Error::bug("a plain deadlist has no keys")),
        _ => Err(Error::corrupt("object is not a deadlist")),
    }
    .map_err(|e| e.in_object(ObjectId(object)))
}

/// Sizes of everything in a deadlist.
///
/// # Errors
/// Those of reading.
pub fn total(mos: &dyn MosRead, object: u64) -> Result<Usage> {
    if is_plain(mos, object)? {
        return bpobj::usage(mos, object);
    }
    check_form(mos, object).map(|h| Usage::of(h.used, h.comp, h.uncomp))
}

/// Changes the header's totals.
///
/// # Errors
/// Those of the store.
pub(crate) fn change_total(cx: &SyncCx<'_>, object: u64, by: Usage) -> Result<()> {
    if by.is_zero() {
        return Ok(());
    }
    set_total(cx, object, total(cx.read(), object)? + by)
}

fn set_total(cx: &SyncCx<'_>, object: u64, total: Usage) -> Result<()> {
    let s = total.space();
    let phys = DeadlistPhys { used: s.used, comp: s.comp, uncomp: s.uncomp };
    cx.mos.set_bonus(object, &phys.encode())
}

/// Keys and their lists.
///
/// # Errors
/// Those of reading; `Corrupt`; `Bug` for a plain list.
pub fn keys(mos: &dyn MosRead, object: u64) -> Result<BTreeMap<u64, u64>> {
    check_form(mos, object)?;
    let odd = || Error::corrupt("a deadlist's entry is not a number").in_object(ObjectId(object));
    let entries = mos.zap_entries(object)?.into_iter().map(|(name, list)| {
        let key = str::from_utf8(&name).ok().and_then(|name| u64::from_str_radix(name, 16).ok());
        key.zip(list.as_u64()).ok_or_else(odd)
    });
    entries.collect()
}

/// Sets the list of a key.
///
/// # Errors
/// Those of the store.
pub(crate) fn set_list(cx: &SyncCx<'_>, object: u64, key: u64, list: u64) -> Result<()> {
    cx.put_number(object, &format!("{key:x}"), list)?;
    change_keys(cx, object, |keys| {
        keys.insert(key, list);
    });
    Ok(())
}

/// Removes a key; its list is the caller's.
///
/// # Errors
/// Those of the store.
pub(crate) fn drop_key(cx: &SyncCx<'_>, object: u64, key: u64) -> Result<()> {
    cx.mos.zap_remove(object, format!("{key:x}").as_bytes())?;
    change_keys(cx, object, |keys| {
        keys.remove(&key);
    });
    Ok(())
}

/// Adds a key with an empty list, unless it exists.
///
/// # Errors
/// Those of the store.
pub(crate) fn add_key(cx: &SyncCx<'_>, object: u64, key: u64) -> Result<()> {
    if is_plain(cx.read(), object)? || keys_in(cx, object)?.contains_key(&key) {
        return Ok(());
    }
    let lists = bpobj::create_empties(cx, 1)?;
    lists.into_iter().try_for_each(|list| set_list(cx, object, key, list))
}

/// Joins `list` to the entry at `key`, which now refers to the list `present`.
fn join(cx: &SyncCx<'_>, object: u64, key: u64, present: u64, list: u64) -> Result<()> {
    if present != list && bpobj::is_shared_empty(cx.read(), present)? {
        bpobj::release(cx, present)?;
        set_list(cx, object, key, list)
    } else {
        bpobj::add_sublist(cx, present, list)
    }
}

/// Removes a key; its blocks are added to the entry before. No effect if there is no such
/// key.
///
/// # Errors
/// `Corrupt` when there is no smaller key; those of the store.
pub(crate) fn remove_key(cx: &SyncCx<'_>, object: u64, key: u64) -> Result<()> {
    if is_plain(cx.read(), object)? {
        return Ok(());
    }
    let keys = keys_in(cx, object)?;
    let Some(&list) = keys.get(&key) else { return Ok(()) };
    let (&before, &present) = keys
        .range(..key)
        .next_back()
        .ok_or_else(|| Error::corrupt("a deadlist lacks key 0").in_object(ObjectId(object)))?;
    drop(keys);
    drop_key(cx, object, key)?;
    join(cx, object, before, present, list)
}

/// Keys that the deadlist of a dataset must have (§6.4), without those for bookmarks.
///
/// # Errors
/// Those of reading; `Corrupt` when a dataset comes before itself.
fn due_keys(mos: &dyn MosRead, ds: &DslDatasetPhys) -> Result<BTreeSet<u64>> {
    let (mut keys, mut seen, mut at) = (BTreeSet::new(), BTreeSet::new(), ds.prev_snap_obj);
    while at != 0 {
        if !seen.insert(at) {
            return Err(Error::corrupt("a dataset comes before itself").in_object(ObjectId(at)));
        }
        let prev = mos.dataset(at)?;
        keys.insert(prev.prev_snap_txg.0);
        at = prev.prev_snap_obj;
    }
    Ok(keys)
}

/// Makes a deadlist with the keys of `ds`'s deadlist below `max`, all empty.
///
/// # Errors
/// Those of the store.
pub(crate) fn clone_keys(cx: &SyncCx<'_>, ds: &DslDatasetPhys, max: u64) -> Result<u64> {
    let copy = create(cx)?;
    if !cx.has_lists()? {
        return Ok(copy);
    }
    let wanted: BTreeSet<u64> = if is_plain(cx.read(), ds.deadlist_obj)? {
        due_keys(cx.read(), ds)?
    } else {
        keys_in(cx, ds.deadlist_obj)?.keys().copied().collect()
    };
    let wanted: Vec<u64> = wanted.range(..max).copied().collect();
    let lists = bpobj::create_empties(cx, wanted.len())?;
    for (key, list) in wanted.into_iter().zip(lists) {
        set_list(cx, copy, key, list)?;
    }
    Ok(copy)
}

/// Adds the blocks of a plain list to a deadlist.
fn insert_all(cx: &SyncCx<'_>, object: u64, list: u64) -> Result<()> {
    let mut batch = Vec::with_capacity(BATCH);
    bpobj::for_each(cx.read(), list, &mut |entry| {
        batch.push(*entry);
        if batch.len() == BATCH {
            insert(cx, object, &batch)?;
            batch.clear();
        }
        Ok(())
    })?;
    insert(cx, object, &batch)
}

/// Moves everything in `source` to `object`, and frees the object `source`. The work is
/// proportional to the keys of both.
///
/// # Errors
/// `Corrupt` when no entry fits a key; those of the store.
pub fn merge(cx: &SyncCx<'_>, object: u64, source: u64) -> Result<()> {
    if is_plain(cx.read(), source)? {
        insert_all(cx, object, source)?;
        return free(cx, source);
    }
    if is_plain(cx.read(), object)? {
        let lists = keys_in(cx, source)?;
        lists.values().try_for_each(|&list| insert_all(cx, object, list))?;
        return free(cx, source);
    }
    let (present, lists) = (keys_in(cx, object)?, keys_in(cx, source)?);
    let shared = bpobj::shared_empty(cx.read())?;
    let (mut moved, mut references, mut adopted) = (Usage::default(), 0u64, BTreeMap::new());
    for (&key, &list) in lists.iter() {
        if shared == Some(list) {
            references += 1;
            continue;
        }
        let (&to, &into) = present.range(..=key).next_back().ok_or_else(|| {
            Error::corrupt("a deadlist has no key so small").in_object(ObjectId(object))
        })?;
        moved += bpobj::usage(cx.read(), list)?;
        match adopted.get(&to) {
            Some(&into) => bpobj::add_sublist(cx, into, list)?,
            None if shared == Some(into) => {
                references += 1;
                adopted.insert(to, list);
            }
            None => bpobj::add_sublist(cx, into, list)?,
        }
    }
    drop((present, lists));
    adopted.into_iter().try_for_each(|(key, list)| set_list(cx, object, key, list))?;
    change_total(cx, object, moved)?;
    bpobj::drop_shared(cx, references)?;
    forget(cx, source);
    cx.mos.free_object(source)
}

/// Moves the entries with keys from `from` on to the list `list`; returns their sizes.
///
/// # Errors
/// Those of the store.
pub(crate) fn move_from(cx: &SyncCx<'_>, object: u64, list: u64, from: u64) -> Result<Usage> {
    if is_plain(cx.read(), object)? {
        let mut batch = Vec::with_capacity(BATCH);
        let moved = bpobj::retain(cx, object, &mut |entry| {
            let stays = birth(&entry.bp).0 <= from;
            if !stays {
                batch.push(*entry);
            }
            if batch.len() == BATCH {
                bpobj::append(cx, list, &batch)?;
                batch.clear();
            }
            Ok(stays)
        })?;
        bpobj::append(cx, list, &batch)?;
        return Ok(moved);
    }
    let mut moved = Usage::default();
    let ours: Vec<(u64, u64)> =
        keys_in(cx, object)?.range(from..).map(|(key, list)| (*key, *list)).collect();
    for (key, entry) in ours {
        moved += bpobj::usage(cx.read(), entry)?;
        drop_key(cx, object, key)?;
        bpobj::add_sublist(cx, list, entry)?;
    }
    change_total(cx, object, -moved)?;
    Ok(moved)
}

/// Frees the blocks born after `from` in a plain deadlist; returns their sizes.
///
/// # Errors
/// Those of the store.
pub fn free_from(cx: &SyncCx<'_>, object: u64, from: u64) -> Result<Usage> {
    bpobj::retain(cx, object, &mut |entry| {
        let stays = birth(&entry.bp).0 <= from;
        if !stays {
            cx.free(&entry.bp)?;
        }
        Ok(stays)
    })
}

/// Sizes of dead blocks born after `a` and up to `b`; exact if both are keys or `b`
/// is beyond all (§6.4).
///
/// # Errors
/// Those of reading.
pub fn range(cx: &SyncCx<'_>, object: u64, a: u64, b: u64) -> Result<Usage> {
    let mos = cx.read();
    if a >= b {
        return Ok(Usage::default());
    }
    if is_plain(mos, object)? {
        let mut sum = Usage::default();
        bpobj::for_each(mos, object, &mut |entry| {
            let born = birth(&entry.bp).0;
            if a < born && born <= b {
                sum += cx.ratios.space_of(&entry.bp);
            }
            Ok(())
        })?;
        return Ok(sum);
    }
    let keys = keys_in(cx, object)?;
    keys.range(a..b).map(|(_, &list)| bpobj::usage(mos, list)).sum()
}

/// Adds blocks, each to the entry of its birth.
///
/// # Errors
/// `Corrupt` when there is no key below a birth; those of the store.
pub fn insert(cx: &SyncCx<'_>, object: u64, entries: &[BpobjEntry]) -> Result<()> {
    if is_plain(cx.read(), object)? {
        return bpobj::append(cx, object, entries).map(|_| ());
    }
    let keys = keys_in(cx, object)?;
    let mut by_key: BTreeMap<u64, Vec<BpobjEntry>> = BTreeMap::new();
    for entry in entries {
        let (&key, _) = keys.range(..birth(&entry.bp).0).next_back().ok_or_else(|| {
            Error::corrupt("a deadlist has no key so small").in_object(ObjectId(object))
        })?;
        by_key.entry(key).or_default().push(*entry);
    }
    let mut sum = Usage::default();
    for (key, entries) in by_key {
        let Some(&list) = keys.get(&key) else { continue };
        let mut list = list;
        if bpobj::is_shared_empty(cx.read(), list)? {
            bpobj::release(cx, list)?;
            list = bpobj::create(cx, bpobj::BLOCK, 0)?;
            set_list(cx, object, key, list)?;
        }
        sum += bpobj::append(cx, list, &entries)?;
    }
    change_total(cx, object, sum)
}

/// Frees a deadlist; the blocks in it are not freed.
///
/// # Errors
/// Those of the store.
pub fn free(cx: &SyncCx<'_>, object: u64) -> Result<()> {
    if is_plain(cx.read(), object)? {
        return bpobj::release(cx, object);
    }
    let shared = bpobj::shared_empty(cx.read())?;
    let (empty, own): (Vec<u64>, Vec<u64>) =
        keys_in(cx, object)?.values().copied().partition(|list| shared == Some(*list));
    own.into_iter().try_for_each(|list| bpobj::release(cx, list))?;
    bpobj::drop_shared(cx, empty.len() as u64)?;
    forget(cx, object);
    cx.mos.free_object(object)
}
