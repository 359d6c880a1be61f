//! Space accounting of directories (chapter 04 §5.1, §5.5).
//!
//! # Theory
//! A directory's space is the sum of five parts. It charges its parent with the larger of
//! its space and its reservation. So a change propagates upwards as far as it makes a
//! difference, and each level splits it between its children's use and their reservations.
//!
//! # Invariants
//! * The parts add up to the whole. A parent's part for children is the sum of their
//!   totals; its part for reservations is the sum of their unused reservations.

use base::limits::DATASET_DEPTH_MAX;
use base::{Error, ObjectId, Result};
use ondisk::dslphys::{DD_FLAG_USED_BREAKDOWN, DslDirPhys, UsedKind};

use super::usage::add;
use super::{MosRead, SyncCx, Usage};

/// By how much the larger of `used` and `floor` grows when `used` grows by `by`.
pub(crate) fn growth_above(used: u64, floor: u64, by: i64) -> i64 {
    let after = used.wrapping_add_signed(by).max(floor);
    after.wrapping_sub(used.max(floor)) as i64
}

fn charge(dir: &mut DslDirPhys, usage: Usage) {
    add(&mut dir.used_bytes, usage.used);
    add(&mut dir.compressed_bytes, usage.comp);
    add(&mut dir.uncompressed_bytes, usage.uncomp);
}

/// Adds to a part of the used space. Directories that old pools made have no parts.
fn add_to(phys: &mut DslDirPhys, kind: UsedKind, bytes: i64) {
    if phys.flags & DD_FLAG_USED_BREAKDOWN != 0 {
        add(&mut phys.used_breakdown[kind as usize], bytes);
    }
}

/// Charges a directory, and all above it, with `usage` in part `kind`.
///
/// # Errors
/// Those of the store; `Corrupt` for a directory below itself.
pub(crate) fn diduse(cx: &SyncCx<'_>, dir: u64, kind: UsedKind, usage: Usage) -> Result<()> {
    if usage.is_zero() {
        return Ok(());
    }
    let mut phys = cx.dir(dir)?;
    let above = growth_above(phys.used_bytes, phys.reserved, usage.used);
    charge(&mut phys, usage);
    add_to(&mut phys, kind, usage.used);
    cx.put_dir(dir, &phys)?;
    diduse_above(cx, phys.parent_obj, Usage { used: above, ..usage }, usage.used)
}

/// Charges a directory, and all above it, with `usage`. The part `new` grows by `to_new`;
/// the part `old` shrinks by the remainder.
///
/// # Errors
/// As [`diduse`].
pub(crate) fn diduse_transfer(
    cx: &SyncCx<'_>,
    dir: u64,
    usage: Usage,
    to_new: i64,
    old: UsedKind,
    new: UsedKind,
) -> Result<()> {
    let mut phys = cx.dir(dir)?;
    let above = transfer_one(&mut phys, usage, to_new, old, new);
    cx.put_dir(dir, &phys)?;
    diduse_above(cx, phys.parent_obj, Usage { used: above, ..usage }, usage.used)
}

fn transfer_one(
    phys: &mut DslDirPhys,
    usage: Usage,
    to_new: i64,
    old: UsedKind,
    new: UsedKind,
) -> i64 {
    let above = growth_above(phys.used_bytes, phys.reserved, usage.used);
    charge(phys, usage);
    add_to(phys, old, usage.used.wrapping_sub(to_new));
    add_to(phys, new, to_new);
    above
}

/// The same for `dir` and all above it, between children and their reservations.
fn diduse_above(cx: &SyncCx<'_>, dir: u64, usage: Usage, to_new: i64) -> Result<()> {
    let (mut dir, mut usage, mut to_new) = (dir, usage, to_new);
    for _ in 0..=DATASET_DEPTH_MAX {
        if dir == 0 || (usage.is_zero() && to_new == 0) {
            return Ok(());
        }
        let mut phys = cx.dir(dir)?;
        let (old, new) = (UsedKind::ChildReservation, UsedKind::Child);
        let above = transfer_one(&mut phys, usage, to_new, old, new);
        cx.put_dir(dir, &phys)?;
        to_new = usage.used;
        usage.used = above;
        dir = phys.parent_obj;
    }
    if dir == 0 {
        return Ok(());
    }
    Err(Error::corrupt("a dataset directory is below itself").in_object(ObjectId(dir)))
}

/// Moves bytes from one part of a directory to another.
///
/// # Errors
/// Those of the store.
pub fn transfer(cx: &SyncCx<'_>, dir: u64, bytes: i64, old: UsedKind, new: UsedKind) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    cx.edit_dir(dir, |phys| {
        add_to(phys, old, bytes.wrapping_neg());
        add_to(phys, new, bytes);
    })
}

/// The object of one of the pool's own directories: `$MOS`, `$FREE`, `$ORIGIN`, `$LEAK`.
///
/// # Errors
/// Those of reading; `Corrupt` when it is missing.
pub(crate) fn special_dir(mos: &dyn MosRead, name: &str) -> Result<u64> {
    find_special_dir(mos, name)?.ok_or_else(|| Error::corrupt(format!("the pool has no {name}")))
}

/// As [`special_dir`], for one that old pools do not have.
///
/// # Errors
/// Those of reading.
pub(super) fn find_special_dir(mos: &dyn MosRead, name: &str) -> Result<Option<u64>> {
    let root = mos.dir(mos.required("root_dataset")?)?;
    mos.number(root.child_dir_zapobj, name)
}

/// Charges `$MOS` with the growth of the MOS's blocks (chapter 05 §9.3).
///
/// # Errors
/// As [`diduse`].
pub fn mos_changed(cx: &SyncCx<'_>, by: Usage) -> Result<()> {
    if by.is_zero() {
        return Ok(());
    }
    diduse(cx, special_dir(cx.read(), "$MOS")?, UsedKind::Head, by)
}

/// Charges `$FREE` with blocks that wait to be freed.
///
/// # Errors
/// As [`diduse`].
pub(crate) fn free_changed(cx: &SyncCx<'_>, by: Usage) -> Result<()> {
    if by.is_zero() {
        return Ok(());
    }
    diduse(cx, special_dir(cx.read(), "$FREE")?, UsedKind::Head, by)
}

/// Sets a directory's reservation and charges its parent (§5.5).
///
/// # Errors
/// As [`diduse`].
pub(crate) fn set_reservation(cx: &SyncCx<'_>, dir: u64, bytes: u64) -> Result<()> {
    let mut phys = cx.dir(dir)?;
    let by = phys.used_bytes.max(bytes).wrapping_sub(phys.used_bytes.max(phys.reserved)) as i64;
    phys.reserved = bytes;
    cx.put_dir(dir, &phys)?;
    if phys.parent_obj == 0 {
        return Ok(());
    }
    diduse(cx, phys.parent_obj, UsedKind::ChildReservation, Usage::bytes(by))
}

/// Accounts for a head whose refreservation changes from `old` to `new` (§5.5).
///
/// # Errors
/// As [`diduse`].
pub(crate) fn refreservation_changed(cx: &SyncCx<'_>, dir: u64, old: u64, new: u64) -> Result<()> {
    let head = cx.dir(dir)?.head_dataset_obj;
    if head == 0 {
        return Ok(());
    }
    let unique = cx.dataset(head)?.unique_bytes;
    let by = unique.max(new).wrapping_sub(unique.max(old)) as i64;
    diduse(cx, dir, UsedKind::RefReservation, Usage::bytes(by))
}
