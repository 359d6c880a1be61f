//! Lists of block pointers waiting to be freed (chapter 04 §6.1, §9.4).

use std::collections::HashSet;

use base::{Error, ObjectId, Result};
use ondisk::BlkPtr;
use ondisk::blkptr::BLKPTR_SIZE;
use ondisk::bpobj::{BpobjEntry, BpobjPhys, subobj_nth};
use ondisk::objtype::ObjType;

use crate::mos::Mos;

/// Lists nested in lists; deeper ones are refused.
const DEPTH_MAX: usize = 8;

/// The header of a list.
///
/// # Errors
/// `Corrupt` when the object is none; those of reading it.
pub fn header(mos: &Mos, object: u64) -> Result<BpobjPhys> {
    let handle = mos.object(object)?;
    let dnode = handle.dnode();
    if dnode.bonus_type != ObjType::BPOBJ_HDR {
        return Err(Error::corrupt("object is not a list of block pointers").in_object(handle.id()));
    }
    BpobjPhys::parse(&dnode.bonus, dnode.endian)
}

/// Calls `f` with every block pointer of the list and of the lists in it.
///
/// # Errors
/// Those of reading, `Corrupt`, `Limit`, and those of `f`.
pub fn for_each(
    mos: &Mos,
    object: u64,
    f: &mut impl FnMut(&BpobjEntry) -> Result<()>,
) -> Result<()> {
    for_each_at(mos, object, &mut HashSet::new(), 0, f)
}

fn for_each_at(
    mos: &Mos,
    object: u64,
    seen: &mut HashSet<u64>,
    depth: usize,
    f: &mut impl FnMut(&BpobjEntry) -> Result<()>,
) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(Error::limit("lists of block pointers nested too deep"));
    }
    // Each list belongs to one other list. Lists that share one, or contain themselves,
    // could make the walk endless in practice.
    if !seen.insert(object) {
        return Err(
            Error::corrupt("a list of block pointers appears twice").in_object(ObjectId(object))
        );
    }
    let phys = header(mos, object)?;
    let list = mos.object(object)?;
    check_length(&list, phys.num_blkptrs, BLKPTR_SIZE as u64)?;
    let per_block = list.block_size() / BLKPTR_SIZE as u64;
    let mut left = phys.num_blkptrs;
    let mut blkid = 0;
    while left > 0 {
        let (block, endian) = list.read_written(blkid, mos.io())?;
        let here = left.min(per_block);
        for i in 0..here as usize {
            f(&BpobjEntry::parse_nth(&block, i, endian).map_err(|e| e.in_object(list.id()))?)?;
        }
        left -= here;
        blkid += 1;
    }
    if phys.subobjs == 0 {
        return Ok(());
    }
    let subs = mos.object(phys.subobjs)?;
    check_length(&subs, phys.num_subobjs, 8)?;
    let per_block = subs.block_size() / 8;
    for index in 0..phys.num_subobjs {
        let blkid = index / per_block;
        let (block, endian) = subs.read_written(blkid, mos.io())?;
        let sub = subobj_nth(&block, (index % per_block) as usize, endian)?;
        for_each_at(mos, sub, seen, depth + 1, f)?;
    }
    Ok(())
}

/// A count beyond the object's blocks would loop over zeros.
fn check_length(object: &dmu::Object, count: u64, size: u64) -> Result<()> {
    let bytes = (object.dnode().max_blkid + 1).saturating_mul(object.block_size());
    if count.saturating_mul(size) > bytes {
        return Err(Error::corrupt("list is longer than its object").in_object(object.id()));
    }
    Ok(())
}

/// Roots of object sets that are being destroyed asynchronously: the entries of
/// a bptree (chapter 04 §9.4), with the birth below which blocks stay.
///
/// # Errors
/// Those of reading, or `Corrupt`.
pub fn bptree_roots(mos: &Mos, object: u64) -> Result<Vec<(BlkPtr, base::Txg)>> {
    use ondisk::dslphys::{BPTREE_ENTRY_SIZE, BptreeEntry, BptreePhys};
    let handle = mos.object(object)?;
    let dnode = handle.dnode();
    let phys = BptreePhys::parse(&dnode.bonus, dnode.endian)?;
    let mut out = Vec::new();
    if phys.end.saturating_sub(phys.begin) > 1 << 20 {
        return Err(Error::limit("too many destroyed datasets in the list"));
    }
    for index in phys.begin..phys.end {
        let at = BptreePhys::entry_offset(index)
            .ok_or_else(|| Error::corrupt("bptree entry out of range"))?;
        let mut bytes = [0; BPTREE_ENTRY_SIZE];
        handle.read_into(at, &mut bytes, mos.io())?;
        let endian = handle.block_endian(at / handle.block_size(), mos.io())?;
        let entry = BptreeEntry::parse(&bytes, endian)?;
        out.push((entry.bp, entry.birth_txg));
    }
    Ok(out)
}
