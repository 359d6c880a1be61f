//! Counters for limits on the number of file systems and snapshots (chapter 04 §5.6).
//!
//! # Invariants
//! * If a directory has counters, they are correct, and all directories below have
//!   counters, too.

use base::limits::DATASET_DEPTH_MAX;
use base::{Error, Result};
use ondisk::zap::ZapValue;

use super::features::{self, FILESYSTEM_LIMITS};
use super::{MosRead, SyncCx};

const FILESYSTEMS: &str = "com.joyent:filesystem_count";
const SNAPSHOTS: &str = "com.joyent:snapshot_count";

fn adjust(cx: &SyncCx<'_>, dir: u64, key: &str, by: i64) -> Result<()> {
    let mut at = dir;
    for _ in 0..=DATASET_DEPTH_MAX {
        if at == 0 {
            break;
        }
        let Some(n) = cx.read().attribute_u64(at, key)? else { break };
        cx.put_number(at, key, n.saturating_add_signed(by))?;
        at = cx.dir(at)?.parent_obj;
    }
    Ok(())
}

/// Adds to the count of file systems below `parent`.
///
/// # Errors
/// Those of the store.
pub fn filesystems(cx: &SyncCx<'_>, parent: u64, by: i64) -> Result<()> {
    adjust(cx, parent, FILESYSTEMS, by)
}

/// Adds to the count of snapshots of `dir`.
///
/// # Errors
/// Those of the store.
pub fn snapshots(cx: &SyncCx<'_>, dir: u64, by: i64) -> Result<()> {
    adjust(cx, dir, SNAPSHOTS, by)
}

/// Gives a new directory its counters, if the pool has counters.
///
/// # Errors
/// Those of the store.
pub fn begin(cx: &SyncCx<'_>, dir: u64) -> Result<()> {
    if features::is_active(cx.read(), FILESYSTEM_LIMITS)? {
        put(cx, dir, 0, 0)?;
    }
    Ok(())
}

/// A directory with all below leaves the parent `from` for `to`.
///
/// # Errors
/// Those of the store; `Limit`.
pub(crate) fn moved(cx: &SyncCx<'_>, dir: u64, from: u64, to: u64) -> Result<()> {
    let counted = cx.read().attribute_u64(dir, FILESYSTEMS)?.is_some();
    if !counted && cx.read().attribute_u64(to, FILESYSTEMS)?.is_some() {
        count_below(cx, dir, 0)?;
    }
    let count = |key| cx.read().attribute_u64(dir, key);
    let (Some(below), Some(snaps)) = (count(FILESYSTEMS)?, count(SNAPSHOTS)?) else {
        return Ok(());
    };
    let below = i64::try_from(below).unwrap_or(i64::MAX).saturating_add(1);
    let snaps = i64::try_from(snaps).unwrap_or(i64::MAX);
    filesystems(cx, from, -below)?;
    snapshots(cx, from, -snaps)?;
    filesystems(cx, to, below)?;
    snapshots(cx, to, snaps)
}

fn put(cx: &SyncCx<'_>, dir: u64, filesystems: u64, snapshots: u64) -> Result<()> {
    features::set_attribute(cx, dir, FILESYSTEMS, &ZapValue::from_u64(filesystems))?;
    features::set_attribute(cx, dir, SNAPSHOTS, &ZapValue::from_u64(snapshots))
}

/// Starts counting at `dir` and below, because a limit is set there.
///
/// # Errors
/// Those of the store; `Limit`.
pub fn activate(cx: &SyncCx<'_>, dir: u64) -> Result<()> {
    if !features::is_active(cx.read(), FILESYSTEM_LIMITS)? {
        features::add(cx, FILESYSTEM_LIMITS, 1)?;
    }
    if cx.read().attribute_u64(dir, FILESYSTEMS)?.is_some() {
        return Ok(());
    }
    count_below(cx, dir, 0).map(|_| ())
}

fn count_below(cx: &SyncCx<'_>, dir: u64, depth: usize) -> Result<(u64, u64)> {
    if depth > DATASET_DEPTH_MAX {
        return Err(Error::limit("datasets nested too deep"));
    }
    let phys = cx.dir(dir)?;
    let (mut filesystems, mut snapshots) = (0, own_snapshots(cx.read(), phys.head_dataset_obj)?);
    for (name, child) in cx.read().numbers(phys.child_dir_zapobj)? {
        if !name.starts_with('$') {
            let (f, s) = count_below(cx, child, depth + 1)?;
            filesystems += f + 1;
            snapshots += s;
        }
    }
    put(cx, dir, filesystems, snapshots)?;
    Ok((filesystems, snapshots))
}

fn own_snapshots(mos: &dyn MosRead, head: u64) -> Result<u64> {
    if head == 0 {
        return Ok(0);
    }
    let names = mos.numbers(mos.dataset(head)?.snapnames_zapobj)?;
    Ok(names.iter().filter(|(name, _)| !name.starts_with('%')).count() as u64)
}
