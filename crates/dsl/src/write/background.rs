//! Freeing of destroyed datasets, a portion in each txg (chapter 04 §9.2 to §9.4).
//!
//! # Theory
//! The blocks in `free_bpobj` are freed first, then the trees of destroyed datasets, then the
//! livelists of destroyed clones ([`super::livelist`]). The
//! remainder is charged to `$FREE`. The position where freeing of a tree stopped is stored
//! with it in the same txg, so that no block is freed twice.
//!
//! # Departures from OpenZFS
//! The chapter leaves open whether the block at a stored position was freed. In Cenote it
//! was. Taking over a tree from a writer with the other convention leaks that one block,
//! which is the safe side.

use base::{Error, ObjectId, Result, Txg};
use ondisk::dslphys::{BPTREE_ENTRY_SIZE, BookmarkPlace, BptreeEntry, BptreePhys, DslDirPhys};
use ondisk::{BlkPtr, Endian, ObjType};

use super::accounting::{free_changed, special_dir};
use super::bpobj::{self, BLOCK};
use super::features::{self, ASYNC_DESTROY};
use super::store::DIRECTORY;
use super::trees::{Trees, Walked};
use super::usage::add;
use super::{FREE_LIST, MosRead, NewObject, SyncCx, Usage, links, livelist};

/// Name of the list of trees in the object directory.
const BPTREE: &str = "bptree_obj";
/// Birth limit that marks an entry as finished.
const DONE: Txg = Txg::MAX;

/// The blocks that one txg freed.
#[derive(Debug, Default)]
pub struct Progress {
    /// Blocks.
    pub blocks: u64,
    /// Their sizes.
    pub usage: Usage,
    /// More blocks are waiting.
    pub more: bool,
    /// No blocks are waiting, but this remains charged to `$FREE`: another writer leaked
    /// it.
    pub residue: Usage,
    /// Why freeing is stuck: part of a tree cannot be read.
    pub stuck: Option<Error>,
}

/// The header of the list of trees.
///
/// # Errors
/// `Corrupt`; those of reading.
pub(crate) fn bptree_header(mos: &dyn MosRead, object: u64) -> Result<BptreePhys> {
    let info = mos.info(object)?;
    BptreePhys::parse(&info.bonus, info.endian).map_err(|e| e.in_object(ObjectId(object)))
}

/// Appends a tree of `usage` bytes to the list of trees to free (§9.4).
///
/// # Errors
/// Those of the store.
pub(crate) fn add_tree(cx: &SyncCx<'_>, entry: &BptreeEntry, usage: Usage) -> Result<()> {
    let object = match cx.read().directory(BPTREE)? {
        Some(object) => object,
        None => {
            let kind = ObjType::OTN_UINT64_METADATA;
            let bonus = BptreePhys::default().encode().to_vec();
            let object = NewObject::plain(kind, BLOCK).with_bonus(kind, bonus);
            let object = cx.mos.allocate(&object)?;
            cx.put_number(DIRECTORY, BPTREE, object)?;
            features::add(cx, ASYNC_DESTROY, 1)?;
            object
        }
    };
    let mut phys = bptree_header(cx.read(), object)?;
    put_entry(cx, object, phys.end, entry)?;
    phys.end += 1;
    change_totals(&mut phys, usage);
    cx.mos.set_bonus(object, &phys.encode())
}

fn change_totals(phys: &mut BptreePhys, by: Usage) {
    add(&mut phys.bytes, by.used);
    add(&mut phys.comp, by.comp);
    add(&mut phys.uncomp, by.uncomp);
}

/// The pieces of an entry: block, offset in it, bytes. Entries straddle blocks.
fn pieces(mos: &dyn MosRead, object: u64, index: u64) -> Result<Vec<(u64, usize, usize)>> {
    let block = mos.info(object)?.block_size.max(1);
    let mut at = BptreePhys::entry_offset(index)
        .ok_or_else(|| Error::corrupt("bptree entry out of range"))?;
    let mut left = BPTREE_ENTRY_SIZE as u64;
    let mut out = Vec::new();
    while left > 0 {
        let take = left.min(block - at % block);
        out.push((at / block, (at % block) as usize, take as usize));
        at += take;
        left -= take;
    }
    Ok(out)
}

fn put_entry(cx: &SyncCx<'_>, object: u64, index: u64, entry: &BptreeEntry) -> Result<()> {
    let raw = entry.encode().ok_or_else(|| base::bug!("a destroyed tree cannot be stored"))?;
    let mut rest = &raw[..];
    for (blkid, offset, take) in pieces(cx.read(), object, index)? {
        let (now, later) = rest.split_at(take);
        cx.mos.edit_block(object, blkid, &mut |data| {
            if let Some(to) = data.get_mut(offset..offset + take) {
                to.copy_from_slice(now);
            }
            Ok(())
        })?;
        rest = later;
    }
    Ok(())
}

/// An entry of the list of trees.
///
/// # Errors
/// `Corrupt`; those of reading.
pub(crate) fn bptree_entry(mos: &dyn MosRead, object: u64, index: u64) -> Result<BptreeEntry> {
    let mut raw = Vec::with_capacity(BPTREE_ENTRY_SIZE);
    for (blkid, offset, take) in pieces(mos, object, index)? {
        let (data, endian) = mos.read_block(object, blkid)?;
        let piece = data.get(offset..offset + take);
        let piece = piece.ok_or_else(|| Error::corrupt("bptree block too short"))?;
        // The two halves of an entry may have been written in different byte orders.
        match endian {
            Endian::Little => raw.extend_from_slice(piece),
            Endian::Big => {
                raw.extend(piece.chunks_exact(8).flat_map(|w| w.iter().rev().copied()));
            }
        }
    }
    BptreeEntry::parse(&raw, Endian::Little).map_err(|e| e.in_object(ObjectId(object)))
}

/// Frees about `budget` waiting blocks through `free`, and subtracts them from the budget.
/// Only the last sublist of a livelist may exceed it.
///
/// # Errors
/// Those of the store and of `free`; `Corrupt`.
pub fn step(
    cx: &SyncCx<'_>,
    trees: &dyn Trees,
    budget: &mut u64,
    free: &mut dyn FnMut(&BlkPtr) -> Result<()>,
) -> Result<Progress> {
    let before = *budget;
    let mut out = Progress::default();
    let Some(list) = cx.read().directory(FREE_LIST)? else { return Ok(out) };
    if !links::list_is_empty(cx.read(), list)? {
        let done = bpobj::consume(cx, list, *budget, &mut |entry| free(&entry.bp))?;
        out.usage += done.usage;
        *budget -= done.entries;
    }
    if links::list_is_empty(cx.read(), list)? {
        if let Some(object) = cx.read().directory(BPTREE)? {
            free_trees(cx, trees, object, budget, &mut out, free)?;
        }
    } else {
        out.more = true;
    }
    out.blocks = before - *budget;
    livelist::step(cx, budget, &mut out, free)?;
    free_changed(cx, -out.usage)?;
    if !out.more {
        let rest: DslDirPhys = cx.dir(special_dir(cx.read(), "$FREE")?)?;
        out.residue = Usage::of(rest.used_bytes, rest.compressed_bytes, rest.uncompressed_bytes);
    }
    Ok(out)
}

fn free_trees(
    cx: &SyncCx<'_>,
    trees: &dyn Trees,
    object: u64,
    left: &mut u64,
    out: &mut Progress,
    free: &mut dyn FnMut(&BlkPtr) -> Result<()>,
) -> Result<()> {
    let mut phys = bptree_header(cx.read(), object)?;
    let mut freed = Usage::default();
    while phys.begin < phys.end && *left > 0 {
        let mut entry = bptree_entry(cx.read(), object, phys.begin)?;
        if entry.birth_txg == DONE {
            phys.begin += 1;
            continue;
        }
        let after = entry.bookmark;
        let resumes = (after != BookmarkPlace::default()).then_some(&after);
        let mut failed = None;
        let walked = trees.walk(&entry.bp, entry.birth_txg, resumes, &mut |bp, at| {
            if let Err(e) = free(bp) {
                failed = Some(e);
                return false;
            }
            freed += cx.ratios.space_of(bp);
            entry.bookmark = at;
            *left -= 1;
            *left > 0
        });
        if let Some(e) = failed {
            return Err(e);
        }
        match walked {
            Walked::All => {
                phys.begin += 1;
                continue;
            }
            Walked::Stopped => {}
            Walked::Failed(e) => out.stuck = Some(e),
        }
        put_entry(cx, object, phys.begin, &entry)?;
        break;
    }
    change_totals(&mut phys, -freed);
    out.usage += freed;
    if phys.begin < phys.end {
        out.more = true;
        return cx.mos.set_bonus(object, &phys.encode());
    }
    cx.mos.zap_remove(DIRECTORY, BPTREE.as_bytes())?;
    cx.mos.free_object(object)?;
    features::set_count(cx, ASYNC_DESTROY, 0)
}
