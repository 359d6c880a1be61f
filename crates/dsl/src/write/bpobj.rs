//! Lists of block pointers: adding to them, joining and consuming them (chapter 04 §6.1 to
//! §6.3).
//!
//! # Theory
//! A list is an array of pointers and a list of further lists. Joining moves the pointers
//! of a short list and the sublist ids of a shallow one, so lists stay flat however often
//! they are merged (§6.2).
//!
//! # Invariants
//! * The totals of a list include its sublists.
//! * The shared empty list never has entries. The count of feature empty_bpobj is the
//!   number of references to it.

use base::{Error, ObjectId, Result};
use ondisk::ObjType;
use ondisk::blkptr::{BLKPTR_SIZE, BlkPtr};
use ondisk::bpobj::{BPOBJ_SIZE, BPOBJ_SIZE_V1, BPOBJ_SIZE_V2, BpobjEntry, BpobjPhys, subobj_nth};

use super::features::{self, EMPTY_BPOBJ, LIVELIST};
use super::store::DIRECTORY;
use super::usage::add;
use super::{MosRead, NewObject, SyncCx, Usage};

/// Bytes of a block of a list.
pub const BLOCK: u32 = 128 << 10;
/// Lists nested in lists; deeper ones are refused.
const DEPTH_MAX: usize = 8;
/// Name of the shared empty list in the object directory.
const EMPTY: &str = "empty_bpobj";

/// The header of a list.
///
/// # Errors
/// `Corrupt` when the object is none; those of reading it.
pub fn header(mos: &dyn MosRead, object: u64) -> Result<BpobjPhys> {
    let info = mos.info(object)?;
    if info.bonus_type != ObjType::BPOBJ_HDR {
        let e = Error::corrupt("object is not a list of block pointers");
        return Err(e.in_object(ObjectId(object)));
    }
    BpobjPhys::parse(&info.bonus, info.endian).map_err(|e| e.in_object(ObjectId(object)))
}

/// The list of blocks whose frees wait for the next txg (chapter 05 §9.2): its object and its
/// header; `None` if there is no such list. Pools without log space maps use it, and frees of
/// blocks that a later txg clones. Its bytes are allocated and belong to no dataset.
///
/// # Errors
/// Those of reading; `Corrupt` if it is no such list.
pub fn deferred(mos: &dyn MosRead) -> Result<Option<(u64, BpobjPhys)>> {
    let list = match mos.directory("sync_bplist") {
        // The MOS of a pool that is being created.
        Err(e) if e.kind() == base::ErrorKind::NotFound => None,
        other => other?,
    };
    list.map(|list| Ok((list, header(mos, list)?))).transpose()
}

/// Sizes of everything in a list.
///
/// # Errors
/// As [`header`].
pub fn usage(mos: &dyn MosRead, object: u64) -> Result<Usage> {
    header(mos, object).map(|h| usage_of(&h))
}

fn usage_of(h: &BpobjPhys) -> Usage {
    Usage::of(h.bytes, h.comp, h.uncomp)
}

/// Makes a list; `compression` is its dnode's.
///
/// # Errors
/// Those of the store.
pub fn create(cx: &SyncCx<'_>, block_size: u32, compression: u8) -> Result<u64> {
    let livelists = features::is_active(cx.read(), LIVELIST)?;
    let size = if livelists { BPOBJ_SIZE } else { BPOBJ_SIZE_V2 };
    create_sized(cx, block_size, compression, size)
}

/// Makes a list without room for lists in it, as pools older than version 26 have it.
///
/// # Errors
/// Those of the store.
pub(crate) fn create_plain(cx: &SyncCx<'_>, block_size: u32, compression: u8) -> Result<u64> {
    create_sized(cx, block_size, compression, BPOBJ_SIZE_V1)
}

fn create_sized(cx: &SyncCx<'_>, block_size: u32, compression: u8, size: usize) -> Result<u64> {
    let bonus = BpobjPhys { size, ..BpobjPhys::default() }.encode();
    let object = NewObject { compression, ..NewObject::plain(ObjType::BPOBJ, block_size) };
    cx.mos.allocate(&object.with_bonus(ObjType::BPOBJ_HDR, bonus))
}

/// Empty lists: references to the shared one if the pool has it. As many as a dataset has
/// snapshots are made at once, so the count of references changes once for all.
///
/// # Errors
/// Those of the store.
pub(crate) fn create_empties(cx: &SyncCx<'_>, count: usize) -> Result<Vec<u64>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if !features::is_enabled(cx.read(), EMPTY_BPOBJ)? {
        return (0..count).map(|_| create(cx, BLOCK, 0)).collect();
    }
    let shared = match cx.read().directory(EMPTY)? {
        Some(object) => object,
        None => {
            let object = create(cx, BLOCK, 0)?;
            cx.put_number(DIRECTORY, EMPTY, object)?;
            object
        }
    };
    features::add(cx, EMPTY_BPOBJ, i64::try_from(count).unwrap_or(i64::MAX))?;
    Ok(vec![shared; count])
}

/// The shared empty list, if the pool has one.
///
/// # Errors
/// Those of reading.
pub(crate) fn shared_empty(mos: &dyn MosRead) -> Result<Option<u64>> {
    mos.directory(EMPTY)
}

/// Whether `object` is the shared empty list.
///
/// # Errors
/// Those of reading.
pub(crate) fn is_shared_empty(mos: &dyn MosRead, object: u64) -> Result<bool> {
    Ok(shared_empty(mos)? == Some(object))
}

/// Drops references to the shared empty list.
///
/// # Errors
/// Those of the store.
pub(crate) fn drop_shared(cx: &SyncCx<'_>, references: u64) -> Result<()> {
    if references == 0 {
        return Ok(());
    }
    let by = i64::try_from(references).unwrap_or(i64::MAX);
    if features::add(cx, EMPTY_BPOBJ, -by)? == 0
        && let Some(object) = cx.read().directory(EMPTY)?
    {
        cx.mos.zap_remove(DIRECTORY, EMPTY.as_bytes())?;
        cx.mos.free_object(object)?;
    }
    Ok(())
}

/// Releases a list: drops the reference if it is the shared one, else frees it with its
/// sublists. The blocks in it are not freed.
///
/// # Errors
/// Those of the store; `Corrupt`, `Limit`.
pub fn release(cx: &SyncCx<'_>, object: u64) -> Result<()> {
    if is_shared_empty(cx.read(), object)? { drop_shared(cx, 1) } else { free_at(cx, object, 0) }
}

fn free_at(cx: &SyncCx<'_>, object: u64, depth: usize) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(Error::limit("lists of block pointers nested too deep"));
    }
    let phys = header(cx.read(), object)?;
    for sub in sublists(cx.read(), object, &phys)? {
        free_at(cx, sub, depth + 1)?;
    }
    if phys.subobjs != 0 {
        cx.mos.free_object(phys.subobjs)?;
    }
    cx.mos.free_object(object)
}

/// A count beyond the object's blocks would loop over zeros.
fn check_length(mos: &dyn MosRead, object: u64, count: u64, size: u64) -> Result<u64> {
    let info = mos.info(object)?;
    if count.saturating_mul(size) > info.blocks.saturating_mul(info.block_size) {
        let e = Error::corrupt("list is longer than its object");
        return Err(e.in_object(ObjectId(object)));
    }
    let per_block = info.block_size / size;
    if per_block == 0 {
        return Err(Error::corrupt("list with blocks too small").in_object(ObjectId(object)));
    }
    Ok(per_block)
}

/// Object ids of the sublists of a list.
///
/// # Errors
/// Those of reading; `Corrupt`.
pub(crate) fn sublists(mos: &dyn MosRead, object: u64, phys: &BpobjPhys) -> Result<Vec<u64>> {
    if phys.subobjs == 0 || phys.num_subobjs == 0 {
        return Ok(Vec::new());
    }
    let per_block = check_length(mos, phys.subobjs, phys.num_subobjs, 8)?;
    let mut out = Vec::new();
    for blkid in 0..phys.num_subobjs.div_ceil(per_block) {
        let (block, endian) = mos.read_block(phys.subobjs, blkid)?;
        let here = per_block.min(phys.num_subobjs - blkid * per_block);
        for i in 0..here as usize {
            out.push(super::in_object(subobj_nth(&block, i, endian), object)?);
        }
    }
    Ok(out)
}

/// The list's own entries in block `blkid`.
fn entries_in(mos: &dyn MosRead, object: u64, blkid: u64, count: u64) -> Result<Vec<BpobjEntry>> {
    let (block, endian) = mos.read_block(object, blkid)?;
    let entries = (0..count as usize).map(|i| BpobjEntry::parse_nth(&block, i, endian));
    super::in_object(entries.collect(), object)
}

/// Calls `f` with every entry of a list and of the lists in it.
///
/// # Errors
/// Those of reading, `Corrupt`, `Limit`, and those of `f`.
pub fn for_each(
    mos: &dyn MosRead,
    object: u64,
    f: &mut dyn FnMut(&BpobjEntry) -> Result<()>,
) -> Result<()> {
    for_each_at(mos, object, 0, &mut std::collections::HashSet::new(), f)
}

fn for_each_at(
    mos: &dyn MosRead,
    object: u64,
    depth: usize,
    seen: &mut std::collections::HashSet<u64>,
    f: &mut dyn FnMut(&BpobjEntry) -> Result<()>,
) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(Error::limit("lists of block pointers nested too deep"));
    }
    if !seen.insert(object) {
        let e = Error::corrupt("a list of block pointers appears twice");
        return Err(e.in_object(ObjectId(object)));
    }
    let phys = header(mos, object)?;
    let per_block = check_length(mos, object, phys.num_blkptrs, BLKPTR_SIZE as u64)?;
    for blkid in 0..phys.num_blkptrs.div_ceil(per_block) {
        let here = per_block.min(phys.num_blkptrs - blkid * per_block);
        entries_in(mos, object, blkid, here)?.iter().try_for_each(&mut *f)?;
    }
    for sub in sublists(mos, object, &phys)? {
        for_each_at(mos, sub, depth + 1, seen, f)?;
    }
    Ok(())
}

/// The stored form of an entry (§6.1): without checksum and fill, an embedded pointer
/// without its payload.
fn stored(entry: &BpobjEntry) -> Result<[u8; BLKPTR_SIZE]> {
    let mut bp = entry.bp;
    if let BlkPtr::Block(b) = &mut bp {
        if !b.dedup {
            b.words = [0; 4];
        }
        b.fill = 0;
    }
    let mut raw = bp
        .encode()
        .filter(|_| !bp.is_hole())
        .ok_or_else(|| base::bug!("neither holes nor redacted blocks are listed"))?;
    if matches!(bp, BlkPtr::Embedded(_)) {
        for (i, word) in raw.chunks_exact_mut(8).enumerate() {
            if i != 6 && i != 10 {
                word.fill(0);
            }
        }
    }
    if entry.freed {
        raw[0x58] |= 1;
    }
    Ok(raw)
}

/// Adds entries to a list; returns their sizes.
///
/// # Errors
/// Those of the store; `Bug` for holes and redacted blocks.
pub fn append(cx: &SyncCx<'_>, object: u64, entries: &[BpobjEntry]) -> Result<Usage> {
    if entries.is_empty() {
        return Ok(Usage::default());
    }
    let mut phys = header(cx.read(), object)?;
    let mut total = Usage::default();
    for entry in entries {
        let one = cx.ratios.space_of(&entry.bp);
        total += if entry.freed { -one } else { one };
    }
    append_own(cx, object, &mut phys, entries)?;
    change_totals(&mut phys, total);
    cx.mos.set_bonus(object, &phys.encode())?;
    Ok(total)
}

fn change_totals(phys: &mut BpobjPhys, by: Usage) {
    add(&mut phys.bytes, by.used);
    add(&mut phys.comp, by.comp);
    add(&mut phys.uncomp, by.uncomp);
}

/// Writes entries behind the last one; changes counts but no totals.
fn append_own(
    cx: &SyncCx<'_>,
    object: u64,
    phys: &mut BpobjPhys,
    entries: &[BpobjEntry],
) -> Result<()> {
    let per_block = (cx.mos.info(object)?.block_size / BLKPTR_SIZE as u64).max(1);
    let mut rest = entries;
    while !rest.is_empty() {
        let (blkid, slot) = (phys.num_blkptrs / per_block, phys.num_blkptrs % per_block);
        let take = rest.len().min((per_block - slot) as usize);
        let (now, later) = rest.split_at(take);
        cx.mos.edit_block(object, blkid, &mut |block| {
            let room = block.get_mut(slot as usize * BLKPTR_SIZE..).unwrap_or_default();
            for (to, entry) in room.chunks_exact_mut(BLKPTR_SIZE).zip(now) {
                to.copy_from_slice(&stored(entry)?);
            }
            Ok(())
        })?;
        phys.num_blkptrs += take as u64;
        phys.num_freed += now.iter().filter(|e| e.freed).count() as u64;
        rest = later;
    }
    Ok(())
}

fn append_sublists(cx: &SyncCx<'_>, phys: &mut BpobjPhys, subs: &[u64]) -> Result<()> {
    if phys.subobjs == 0 {
        phys.subobjs = cx.mos.allocate(&NewObject::plain(ObjType::BPOBJ_SUBOBJ, BLOCK))?;
        phys.num_subobjs = 0;
    }
    let per_block = (cx.mos.info(phys.subobjs)?.block_size / 8).max(1);
    let mut rest = subs;
    while !rest.is_empty() {
        let (blkid, slot) = (phys.num_subobjs / per_block, phys.num_subobjs % per_block);
        let take = rest.len().min((per_block - slot) as usize);
        let (now, later) = rest.split_at(take);
        cx.mos.edit_block(phys.subobjs, blkid, &mut |block| {
            let room = block.get_mut(slot as usize * 8..).unwrap_or_default();
            for (to, sub) in room.chunks_exact_mut(8).zip(now) {
                to.copy_from_slice(&sub.to_le_bytes());
            }
            Ok(())
        })?;
        phys.num_subobjs += take as u64;
        rest = later;
    }
    Ok(())
}

/// Makes the list `sub` a sublist of the list `object` (§6.2). `sub` no longer exists as an
/// independent list afterwards.
///
/// # Errors
/// Those of the store; `Unsupported` when `object` has the form without sublists.
pub(crate) fn add_sublist(cx: &SyncCx<'_>, object: u64, sub: u64) -> Result<()> {
    if is_shared_empty(cx.read(), sub)? {
        return drop_shared(cx, 1);
    }
    let mut inner = header(cx.read(), sub)?;
    if inner.is_empty() {
        return release(cx, sub);
    }
    let mut outer = header(cx.read(), object)?;
    if outer.size < BPOBJ_SIZE_V2 || object == sub {
        let e = Error::unsupported("the list of block pointers has an old form");
        return Err(e.in_object(ObjectId(object)));
    }
    let (total, mut moved) = (usage_of(&inner), Usage::default());
    let info = cx.mos.info(sub)?;
    let lists = sublists(cx.read(), sub, &inner)?;
    if inner.subobjs != 0 && lists.len() <= BLOCK as usize / 8 {
        for &list in &lists {
            moved += usage(cx.read(), list)?;
        }
        append_sublists(cx, &mut outer, &lists)?;
        cx.mos.free_object(inner.subobjs)?;
        (inner.subobjs, inner.num_subobjs) = (0, 0);
    }
    let own = inner.num_blkptrs;
    if inner.subobjs == 0 && own <= info.block_size / BLKPTR_SIZE as u64 {
        if own > 0 {
            let entries = entries_in(cx.read(), sub, 0, own)?;
            append_own(cx, object, &mut outer, &entries)?;
        }
        cx.mos.free_object(sub)?;
    } else {
        // The content of the moved lists now counts only in the outer list.
        change_totals(&mut inner, -moved);
        cx.mos.set_bonus(sub, &inner.encode())?;
        append_sublists(cx, &mut outer, &[sub])?;
    }
    change_totals(&mut outer, total);
    cx.mos.set_bonus(object, &outer.encode())
}

/// Keeps the entries of a list for which `keep` returns true; returns the sizes of the
/// others.
///
/// # Errors
/// Those of the store and of `keep`, after which the txg cannot be committed; `Unsupported`
/// for a list with sublists; `Corrupt`.
pub fn retain(
    cx: &SyncCx<'_>,
    object: u64,
    keep: &mut dyn FnMut(&BpobjEntry) -> Result<bool>,
) -> Result<Usage> {
    let phys = header(cx.read(), object)?;
    if phys.num_subobjs != 0 {
        let e = Error::unsupported("the list of block pointers contains others");
        return Err(e.in_object(ObjectId(object)));
    }
    let per_block = check_length(cx.read(), object, phys.num_blkptrs, BLKPTR_SIZE as u64)?;
    let mut kept = BpobjPhys { num_blkptrs: 0, num_freed: 0, ..phys };
    let mut removed = Usage::default();
    for blkid in 0..phys.num_blkptrs.div_ceil(per_block) {
        let here = per_block.min(phys.num_blkptrs - blkid * per_block);
        let mut stay = Vec::new();
        // Kept entries are written where they were read, or before.
        for entry in entries_in(cx.read(), object, blkid, here)? {
            if keep(&entry)? {
                stay.push(entry);
            } else {
                let one = cx.ratios.space_of(&entry.bp);
                removed += if entry.freed { -one } else { one };
            }
        }
        append_own(cx, object, &mut kept, &stay)?;
    }
    if kept.num_blkptrs < phys.num_blkptrs {
        let keep = kept.num_blkptrs.div_ceil(per_block);
        cx.mos.free_from(object, keep * per_block * BLKPTR_SIZE as u64)?;
    }
    change_totals(&mut kept, -removed);
    cx.mos.set_bonus(object, &kept.encode())?;
    Ok(removed)
}

/// The entries that [`consume`] took out of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consumed {
    /// Entries.
    pub entries: u64,
    /// Their sizes.
    pub usage: Usage,
}

/// Takes at most `budget` entries out of a list, newest first, and passes each to `f`.
/// Empty sublists are freed.
///
/// # Errors
/// Those of the store and of `f`, after which the txg cannot be committed; `Corrupt`,
/// `Limit`.
pub fn consume(
    cx: &SyncCx<'_>,
    object: u64,
    budget: u64,
    f: &mut dyn FnMut(&BpobjEntry) -> Result<()>,
) -> Result<Consumed> {
    let mut left = budget;
    let usage = consume_at(cx, object, 0, &mut left, f)?;
    Ok(Consumed { entries: budget - left, usage })
}

fn consume_at(
    cx: &SyncCx<'_>,
    object: u64,
    depth: usize,
    budget: &mut u64,
    f: &mut dyn FnMut(&BpobjEntry) -> Result<()>,
) -> Result<Usage> {
    if depth > DEPTH_MAX {
        return Err(Error::limit("lists of block pointers nested too deep"));
    }
    let mut phys = header(cx.read(), object)?;
    let mut taken = consume_own(cx, object, &mut phys, budget, f)?;
    while *budget > 0 && phys.num_subobjs > 0 {
        taken += consume_last_sublist(cx, &mut phys, depth, budget, f)?;
    }
    change_totals(&mut phys, -taken);
    cx.mos.set_bonus(object, &phys.encode())?;
    Ok(taken)
}

fn consume_own(
    cx: &SyncCx<'_>,
    object: u64,
    phys: &mut BpobjPhys,
    budget: &mut u64,
    f: &mut dyn FnMut(&BpobjEntry) -> Result<()>,
) -> Result<Usage> {
    let per_block = check_length(cx.read(), object, phys.num_blkptrs, BLKPTR_SIZE as u64)?;
    let before = phys.num_blkptrs;
    let mut taken = Usage::default();
    while *budget > 0 && phys.num_blkptrs > 0 {
        let blkid = (phys.num_blkptrs - 1) / per_block;
        let entries = entries_in(cx.read(), object, blkid, phys.num_blkptrs - blkid * per_block)?;
        for entry in entries.iter().rev().take(usize::try_from(*budget).unwrap_or(usize::MAX)) {
            f(entry)?;
            *budget -= 1;
            let one = cx.ratios.space_of(&entry.bp);
            taken += if entry.freed { -one } else { one };
            phys.num_blkptrs -= 1;
            phys.num_freed -= u64::from(entry.freed && phys.num_freed > 0);
        }
    }
    if phys.num_blkptrs < before {
        let keep = phys.num_blkptrs.div_ceil(per_block);
        cx.mos.free_from(object, keep * per_block * BLKPTR_SIZE as u64)?;
    }
    Ok(taken)
}

fn consume_last_sublist(
    cx: &SyncCx<'_>,
    phys: &mut BpobjPhys,
    depth: usize,
    budget: &mut u64,
    f: &mut dyn FnMut(&BpobjEntry) -> Result<()>,
) -> Result<Usage> {
    let per_block = check_length(cx.read(), phys.subobjs, phys.num_subobjs, 8)?;
    let last = phys.num_subobjs - 1;
    let (block, endian) = cx.mos.read_block(phys.subobjs, last / per_block)?;
    let sub = subobj_nth(&block, (last % per_block) as usize, endian)?;
    let taken = consume_at(cx, sub, depth + 1, budget, f)?;
    if header(cx.read(), sub)?.is_empty() {
        free_at(cx, sub, depth + 1)?;
        phys.num_subobjs = last;
        if last == 0 {
            cx.mos.free_object(phys.subobjs)?;
            phys.subobjs = 0;
        }
    }
    Ok(taken)
}
