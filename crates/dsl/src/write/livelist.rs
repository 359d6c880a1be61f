//! Livelists: the blocks that a clone has and its origin has not (chapter 04 §10.2).
//!
//! # Theory
//! A clone's livelist is a log of the clone's head. A block that is born is an ALLOC entry, its
//! death a FREE entry. The blocks that were allocated and not freed are those that the head has
//! beyond its origin, whatever snapshots the clone itself has. So a destroyed clone is freed
//! from its list, without a walk of its tree.
//!
//! The list has the form of a deadlist: the sublist with key k has the entries of blocks born
//! after k and up to the next key. So both entries of a block are in one sublist, and each
//! sublist can be freed by itself. A sublist that exceeds [`SUBLIST_MAX`] entries is closed:
//! the txg that wrote it becomes the next key. Blocks of this txg, also those of a later write
//! of the head in it, are not born after the key. Closed sublists grow by at most one FREE for
//! each ALLOC. Whenever one is closed, the first two closed neighbours whose live blocks fit
//! into one sublist are joined, and pairs of entries drop out.
//!
//! A list is worth its space while the clone shares most blocks with its origin. It is dropped
//! for good when the shared part becomes small, and when the head gets another origin or
//! content: by promotion, rollback and receive.
//!
//! # Deletion
//! The list of a destroyed clone is queued in the object directory. Each txg frees whole
//! sublists, the newest first, until its budget is used up. `$FREE` shrinks by a sublist's
//! totals when it is freed, so a crash leaves a shorter list with the right charge.
//!
//! # Memory
//! A txg's entries are collected until its head is written, as those of deadlists are: the
//! blocks that one txg changes. Joining and deleting count the FREEs of one sublist, and
//! joining keeps the live blocks of two, which fit into one.
//!
//! # Invariants
//! * In a sublist the ALLOC of a block precedes its FREE, because the births of a txg are
//!   stored before the deaths.
//! * The totals of a list, FREEs subtracted, are those of the HEAD part of the clone's
//!   directory ([`super::check()`]).

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use base::planted::TestValue;
use base::{ErrorKind, Result};
use ondisk::bpobj::{BpobjEntry, BpobjPhys};
use ondisk::dslphys::{DslDirPhys, UsedKind};
use ondisk::zap::ZapValue;
use ondisk::{BlkPtr, ObjType};

use super::background::Progress;
use super::features::{self, LIVELIST};
use super::store::DIRECTORY;
use super::{LineagePlants, MosRead, SyncCx, Usage, bpobj, deadlist};

/// Entries above which a sublist is closed.
const SUBLIST_MAX: u64 = 100_000;
/// A list is dropped when its clone shares less than this part of its blocks, percent.
const SHARED_MIN: u64 = 76;
/// Blocks added to a list at once.
const BATCH: usize = 1024;
/// Key of a clone's livelist in its directory.
const KEY: &str = "com.delphix:livelist";
/// Name of the queue of lists to be deleted in the object directory.
pub(crate) const QUEUE: &str = "com.delphix:deleted_clones";

/// The livelist of a directory's head.
///
/// # Errors
/// Those of reading.
pub(crate) fn of_dir(mos: &dyn MosRead, dir: u64) -> Result<Option<u64>> {
    mos.attribute_u64(dir, KEY)
}

/// The lists that are being deleted.
///
/// # Errors
/// Those of reading.
pub(crate) fn queued(mos: &dyn MosRead) -> Result<Vec<u64>> {
    let Some(queue) = mos.directory(QUEUE)? else { return Ok(Vec::new()) };
    Ok(mos.numbers(queue)?.into_iter().map(|(_, list)| list).collect())
}

/// Gives the directory of a new clone an empty livelist, if the feature is enabled.
///
/// # Errors
/// Those of the store.
pub(crate) fn create(cx: &SyncCx<'_>, dir: u64) -> Result<()> {
    if !features::is_enabled(cx.read(), LIVELIST)? || !cx.has_lists()? {
        return Ok(());
    }
    features::add(cx, LIVELIST, 1)?;
    let list = deadlist::create(cx)?;
    features::set_attribute(cx, dir, KEY, &ZapValue::from_u64(list))
}

/// Frees the livelist of a clone that goes on without one.
///
/// # Errors
/// Those of the store.
pub(crate) fn discard(cx: &SyncCx<'_>, dir: u64) -> Result<()> {
    let Some(list) = of_dir(cx.read(), dir)? else { return Ok(()) };
    deadlist::free(cx, list)?;
    cx.mos.zap_remove(dir, KEY.as_bytes())?;
    features::add(cx, LIVELIST, -1)?;
    Ok(())
}

/// Whether a block belongs in a livelist.
pub(crate) fn lists(bp: &BlkPtr) -> bool {
    bp.as_block().is_some()
}

/// Adds what a txg's write of the head changed to its list, or drops the list if the clone
/// shares too little now. The sums of the dataset and its directory are current.
///
/// # Errors
/// Those of the store.
pub(crate) fn record(
    cx: &SyncCx<'_>,
    dir: u64,
    referenced: u64,
    born: &[BpobjEntry],
    killed: &[BpobjEntry],
) -> Result<()> {
    let Some(list) = of_dir(cx.read(), dir)? else { return Ok(()) };
    if shared(&cx.dir(dir)?, referenced) < limit(cx, SHARED_MIN, |p| &p.shared_min) {
        return discard(cx, dir);
    }
    if deadlist::keys(cx.read(), list)?.is_empty() {
        deadlist::add_key(cx, list, cx.txg.0.saturating_sub(1))?;
    }
    deadlist::insert(cx, list, born)?;
    let killed = match killed.split_first() {
        Some((_, rest)) if cx.is_planted(|p| &p.lost_entry) => rest,
        _ => killed,
    };
    deadlist::insert(cx, list, killed)?;
    let newest = deadlist::keys(cx.read(), list)?.pop_last();
    let Some((key, newest)) = newest else { return Ok(()) };
    let max = limit(cx, SUBLIST_MAX, |p| &p.sublist_max);
    if key < cx.txg.0 && bpobj::header(cx.read(), newest)?.num_blkptrs > max {
        deadlist::add_key(cx, list, cx.txg.0)?;
        join_closed(cx, list, max)?;
    }
    Ok(())
}

/// A limit, or the one of a test.
fn limit(cx: &SyncCx<'_>, own: u64, of: impl Fn(&LineagePlants) -> &TestValue) -> u64 {
    let tested = cx.plants.map_or(0, |plants| of(plants).load(Relaxed));
    tested.checked_sub(1).unwrap_or(own)
}

/// The part of its blocks that a clone shares, percent.
fn shared(dir: &DslDirPhys, referenced: u64) -> u64 {
    let own = dir.used_breakdown[UsedKind::Head as usize];
    let shared = u128::from(referenced.saturating_sub(own)) * 100;
    u64::try_from(shared / u128::from(referenced.max(1))).unwrap_or(0)
}

/// Joins the first two closed neighbours whose live blocks fit into one sublist.
fn join_closed(cx: &SyncCx<'_>, list: u64, max: u64) -> Result<()> {
    let mut closed: Vec<(u64, u64)> = deadlist::keys(cx.read(), list)?.into_iter().collect();
    closed.pop();
    // Each FREE has an ALLOC.
    let live = |h: &BpobjPhys| h.num_blkptrs.saturating_sub(h.num_freed.saturating_mul(2));
    for pair in closed.windows(2) {
        let [(key, a), (next, b)] = *pair else { continue };
        let (first, second) = (bpobj::header(cx.read(), a)?, bpobj::header(cx.read(), b)?);
        let all = first.num_blkptrs.saturating_add(second.num_blkptrs);
        let nested = first.num_subobjs.saturating_add(second.num_subobjs) > 0;
        // Lists of other writers may be longer than ours get.
        let fits = live(&first).saturating_add(live(&second)) <= max;
        if nested || !fits || all > max.saturating_mul(5) {
            continue;
        }
        let before = bpobj::usage(cx.read(), a)? + bpobj::usage(cx.read(), b)?;
        let none = || base::bug!("one list was wanted");
        let joined = bpobj::create_empties(cx, 1)?.pop().ok_or_else(none)?;
        deadlist::set_list(cx, list, key, joined)?;
        deadlist::drop_key(cx, list, next)?;
        let (mut batch, mut after) = (Vec::with_capacity(BATCH), Usage::default());
        let mut target = None;
        let mut store = |batch: &mut Vec<BpobjEntry>| -> Result<()> {
            if batch.is_empty() {
                return Ok(());
            }
            let to = match target {
                Some(to) => to,
                None => {
                    bpobj::release(cx, joined)?;
                    let new = bpobj::create(cx, bpobj::BLOCK, 0)?;
                    deadlist::set_list(cx, list, key, new)?;
                    *target.insert(new)
                }
            };
            after += bpobj::append(cx, to, batch)?;
            batch.clear();
            Ok(())
        };
        for sub in [a, b] {
            for_each_live(cx.read(), sub, &mut |entry| {
                batch.push(*entry);
                if batch.len() == BATCH { store(&mut batch) } else { Ok(()) }
            })?;
        }
        store(&mut batch)?;
        bpobj::release(cx, a)?;
        bpobj::release(cx, b)?;
        return deadlist::change_total(cx, list, after - before);
    }
    Ok(())
}

/// Calls `f` with the ALLOC of each block of a sublist that is not freed.
///
/// # Errors
/// Those of reading and of `f`; none of `f` if the list cannot be read.
pub(crate) fn for_each_live(
    mos: &dyn MosRead,
    sub: u64,
    f: &mut dyn FnMut(&BpobjEntry) -> Result<()>,
) -> Result<()> {
    let mut freed = freed(mos, sub)?;
    bpobj::for_each(mos, sub, &mut |entry| match place(&entry.bp) {
        Some(place) if !entry.freed => match freed.get_mut(&place) {
            Some(left) if *left > 0 => {
                *left -= 1;
                Ok(())
            }
            _ => f(entry),
        },
        _ => Ok(()),
    })
}

/// How often each address is freed in a sublist.
fn freed(mos: &dyn MosRead, sub: u64) -> Result<HashMap<(u32, u64), u32>> {
    let mut freed: HashMap<(u32, u64), u32> = HashMap::new();
    bpobj::for_each(mos, sub, &mut |entry| {
        if let Some(place) = place(&entry.bp).filter(|_| entry.freed) {
            let count = freed.entry(place).or_default();
            *count = count.saturating_add(1);
        }
        Ok(())
    })?;
    Ok(freed)
}

/// The address by which ALLOC and FREE are matched.
pub(crate) fn place(bp: &BlkPtr) -> Option<(u32, u64)> {
    bp.as_block().map(|b| (b.dva().vdev.0, b.dva().offset))
}

/// The livelist from which a head without snapshots and children can be freed, with its sizes:
/// the list's sums are those of what the head occupies.
///
/// # Errors
/// Those of reading.
pub(crate) fn usable(mos: &dyn MosRead, dir: u64) -> Result<Option<(u64, Usage)>> {
    let Some(list) = of_dir(mos, dir)? else { return Ok(None) };
    let (phys, usage) = (mos.dir(dir)?, deadlist::total(mos, list)?);
    let own = phys.used_breakdown[UsedKind::Head as usize];
    let fits = (usage.used as u64, usage.comp as u64) == (own, phys.compressed_bytes);
    Ok(fits.then_some((list, usage)))
}

/// Takes the list from its directory, whose head is being destroyed, and queues it for
/// deletion. The feature counts it until it is deleted.
///
/// # Errors
/// Those of the store.
pub(crate) fn queue(cx: &SyncCx<'_>, dir: u64, list: u64) -> Result<()> {
    cx.mos.zap_remove(dir, KEY.as_bytes())?;
    let queue = cx.read().directory(QUEUE)?.unwrap_or(0);
    let zap = cx.link_in(queue, ObjType::OTN_ZAP_METADATA, list)?;
    if queue == 0 {
        cx.put_number(DIRECTORY, QUEUE, zap)?;
    }
    Ok(())
}

/// Frees sublists of queued lists through `free`, while the budget of blocks is not used up.
///
/// # Errors
/// Those of the store and of `free`.
pub(crate) fn step(
    cx: &SyncCx<'_>,
    budget: &mut u64,
    out: &mut Progress,
    free: &mut dyn FnMut(&BlkPtr) -> Result<()>,
) -> Result<()> {
    let Some(queue) = cx.read().directory(QUEUE)? else { return Ok(()) };
    let mut lists = queued(cx.read())?;
    while let Some(&list) = lists.last() {
        let Some((key, sub)) = deadlist::keys(cx.read(), list)?.pop_last() else {
            deadlist::free(cx, list)?;
            cx.unlink(queue, list)?;
            features::add(cx, LIVELIST, -1)?;
            lists.pop();
            continue;
        };
        if *budget == 0 {
            out.more = true;
            return Ok(());
        }
        let usage = bpobj::usage(cx.read(), sub)?;
        let forgets = cx.is_planted(|p| &p.ignored_frees);
        let mut blocks = 0u64;
        let mut one = |entry: &BpobjEntry| {
            blocks += 1;
            free(&entry.bp)
        };
        let done = match forgets {
            true => bpobj::for_each(cx.read(), sub, &mut |entry| match entry.freed {
                true => Ok(()),
                false => one(entry),
            }),
            false => for_each_live(cx.read(), sub, &mut one),
        };
        match done {
            // An unreadable list stays, like an unreadable tree.
            Err(e) if blocks == 0 && e.kind() != ErrorKind::Bug => {
                (out.more, out.stuck) = (true, Some(e));
                return Ok(());
            }
            done => done?,
        }
        deadlist::drop_key(cx, list, key)?;
        bpobj::release(cx, sub)?;
        deadlist::change_total(cx, list, -usage)?;
        out.usage += usage;
        out.blocks += blocks;
        // A sublist of any size is progress.
        *budget = budget.saturating_sub(blocks.max(1));
    }
    cx.mos.zap_remove(DIRECTORY, QUEUE.as_bytes())?;
    cx.mos.free_object(queue)
}
