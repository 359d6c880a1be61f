//! Blocks that were copied to other places: the pointers to them that the meta object set has.
//!
//! # Theory
//! These are the roots of heads and snapshots, the entries of deadlists, and those of livelists.
//! A deadlist's entry is what is freed when the last snapshot that has the block is
//! destroyed, so it must lead to where the block is then. It is changed in its place: neither
//! the order of a list nor any sum depends on addresses.
//!
//! A livelist matches the birth and the death of a block by its address alone. An entry that
//! gets an address at which the clone has freed another block, later in the list, would be taken for
//! that one. So the list is dropped, as writers may do at any time (chapter 04 §10.2).
//!
//! # Invariants
//! * Sizes, births and the number of addresses of a pointer stay, so all sums do.

use std::collections::{BTreeSet, HashSet};

use base::{Error, Result};
use ondisk::BlkPtr;
use ondisk::blkptr::{BLKPTR_SIZE, Block, relocate_pointer};
use ondisk::endian::Endian;

use super::{MosRead, SyncCx, bpobj, deadlist, livelist};

/// Where the block of a pointer is now; `None` if it has not moved.
pub type Relocation<'a> = &'a dyn Fn(&Block) -> Option<Block>;

/// Head or snapshot `dataset` has its root at another place.
///
/// # Errors
/// Those of the store.
pub fn set_root(cx: &SyncCx<'_>, dataset: u64, root: &BlkPtr) -> Result<()> {
    cx.edit_dataset(dataset, |ds| ds.bp = *root)
}

/// A head or snapshot, and what can be relocated of it.
#[derive(Clone, Debug)]
pub struct RelocatableDataset {
    /// Its object.
    pub object: u64,
    /// Its root.
    pub root: BlkPtr,
    /// It is a head.
    pub is_head: bool,
    /// Its directory.
    pub dir: u64,
    /// The directory whose head it descends from, through origins: datasets share blocks with
    /// those of the same lineage alone.
    pub lineage: u64,
    /// Creation of the previous snapshot, which has all older blocks.
    pub prev_txg: base::Txg,
    /// It is partially received.
    pub is_incomplete: bool,
}

/// All heads and snapshots of a pool; hidden ones, too.
///
/// # Errors
/// Those of reading; `Corrupt` for datasets that refer to each other in a circle.
pub fn datasets(mos: &dyn MosRead) -> Result<Vec<RelocatableDataset>> {
    let root = mos.directory("root_dataset")?;
    let root = root.ok_or_else(|| Error::corrupt("the pool has no root dataset"))?;
    let (mut dirs, mut seen, mut work) = (Vec::new(), BTreeSet::new(), vec![root]);
    while let Some(dir) = work.pop() {
        if !seen.insert(dir) {
            return Err(Error::corrupt("a directory of datasets appears twice"));
        }
        dirs.push(dir);
        let children = mos.dir(dir)?.child_dir_zapobj;
        if children != 0 {
            work.extend(mos.numbers(children)?.into_iter().map(|(_, child)| child));
        }
    }
    let mut out = Vec::new();
    for dir in dirs {
        let head = mos.dir(dir)?.head_dataset_obj;
        if head == 0 {
            continue;
        }
        let lineage = lineage_of(mos, dir)?;
        let (mut at, mut seen) = (head, HashSet::new());
        while at != 0 {
            if !seen.insert(at) {
                return Err(Error::corrupt("a dataset comes before itself"));
            }
            let ds = mos.dataset(at)?;
            if at != head && ds.dir_obj != dir {
                break;
            }
            out.push(RelocatableDataset {
                object: at,
                root: ds.bp,
                is_head: at == head,
                dir,
                lineage,
                prev_txg: ds.prev_snap_txg,
                is_incomplete: ds.is_inconsistent(),
            });
            at = ds.prev_snap_obj;
        }
    }
    Ok(out)
}

fn lineage_of(mos: &dyn MosRead, dir: u64) -> Result<u64> {
    let (mut at, mut seen) = (dir, HashSet::new());
    loop {
        if !seen.insert(at) {
            return Err(Error::corrupt("a clone is its own origin"));
        }
        let origin = mos.dir(at)?.origin_obj;
        if origin == 0 {
            return Ok(at);
        }
        let snap = mos.dataset(origin)?;
        // Only `$ORIGIN@$ORIGIN` has no previous snapshot, and it has no content.
        if snap.prev_snap_obj == 0 {
            return Ok(at);
        }
        at = snap.dir_obj;
    }
}

/// Switches the entries of a dataset's deadlist; returns how many.
///
/// # Errors
/// Those of the store; `Corrupt`, `Limit`.
pub fn switch_deadlist(cx: &SyncCx<'_>, dataset: u64, to: Relocation<'_>) -> Result<u64> {
    let list = cx.dataset(dataset)?.deadlist_obj;
    if list == 0 {
        return Ok(0);
    }
    let mut seen = HashSet::new();
    if deadlist::is_plain(cx.read(), list)? {
        return switch_list(cx, list, to, &mut seen);
    }
    let shared = bpobj::shared_empty(cx.read())?;
    let lists = deadlist::keys(cx.read(), list)?.into_values();
    lists
        .filter(|list| shared != Some(*list))
        .map(|list| switch_list(cx, list, to, &mut seen))
        .sum()
}

/// Switches the entries of a list and of the lists in it.
fn switch_list(
    cx: &SyncCx<'_>,
    object: u64,
    to: Relocation<'_>,
    seen: &mut HashSet<u64>,
) -> Result<u64> {
    if !seen.insert(object) {
        return Err(Error::corrupt("a list of block pointers appears twice"));
    }
    let phys = bpobj::header(cx.read(), object)?;
    let info = cx.read().info(object)?;
    let per_block = (info.block_size / BLKPTR_SIZE as u64).max(1);
    let blocks = phys.num_blkptrs.div_ceil(per_block);
    if blocks > info.blocks {
        return Err(Error::corrupt("list is longer than its object"));
    }
    let mut switched = 0;
    for blkid in 0..blocks {
        let here = per_block.min(phys.num_blkptrs - blkid * per_block);
        let (block, endian) = cx.read().read_block(object, blkid)?;
        let mut moved = Vec::new();
        for i in 0..here as usize {
            let entry = ondisk::bpobj::BpobjEntry::parse_nth(&block, i, endian)?;
            if let Some(now) = entry.bp.as_block().and_then(to) {
                moved.push((i, now));
            }
        }
        if moved.is_empty() {
            continue;
        }
        switched += moved.len() as u64;
        // An edited block is little endian.
        cx.mos.edit_block(object, blkid, &mut |block| {
            moved.iter().try_for_each(|(i, now)| {
                let entry = block.get_mut(i * BLKPTR_SIZE..).unwrap_or_default();
                relocate_pointer(entry, Endian::Little, now)
            })
        })?;
    }
    for sub in bpobj::sublists(cx.read(), object, &phys)? {
        switched += switch_list(cx, sub, to, seen)?;
    }
    Ok(switched)
}

/// Drops the livelist of a directory's head, if it has one.
///
/// # Errors
/// Those of the store.
pub fn drop_livelist(cx: &SyncCx<'_>, dir: u64) -> Result<()> {
    livelist::discard(cx, dir)
}
