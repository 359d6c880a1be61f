//! The error logs: blocks with lost content, as the pool stores them (chapter 04 §18).
//!
//! # Theory
//! There are two logs. *Last* has the errors that are known, *scrub* those that the running
//! scrub has found. At the end of a scrub the second one replaces the first one: an error that
//! the scrub did not find again is gone.
//!
//! A log has one of two forms. The old one names object set, object, level and block. With
//! feature `head_errlog` active there is a ZAP for each head, whose names have the block's
//! birth in place of the object set: so one entry stands for a head and all its snapshots with
//! the block.
//!
//! # Invariants
//! * A log has at most [`ENTRIES_MAX`] entries of this program; later ones are left out.
//! * An object that a damaged log names is only freed if it is a log.

use base::{Result, Txg};
use ondisk::ObjType;
use ondisk::zap::ZapValue;

use super::store::{DIRECTORY, MosRead};
use super::{SyncCx, features};

/// Entries of one log.
pub const ENTRIES_MAX: usize = 65_536;
const HEAD_ERRLOG: &str = "com.delphix:head_errlog";

/// One of the two logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredLog {
    /// Known errors.
    Last,
    /// Errors found by the running scrub.
    Scrub,
}

impl StoredLog {
    /// The name in the MOS directory.
    pub fn name(self) -> &'static str {
        match self {
            StoredLog::Last => "errlog_last",
            StoredLog::Scrub => "errlog_scrub",
        }
    }
}

/// A block with lost content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LostBlock {
    /// The dataset in which it was met; 0 is the MOS.
    pub objset: u64,
    /// Object.
    pub object: u64,
    /// Level.
    pub level: u64,
    /// Block.
    pub blkid: u64,
    /// Its birth; 0 if unknown.
    pub birth: u64,
}

/// Whether logs have the form by heads.
///
/// # Errors
/// Those of reading the MOS.
pub fn is_by_head(mos: &dyn MosRead) -> Result<bool> {
    features::is_active(mos, HEAD_ERRLOG)
}

fn value() -> Result<ZapValue> {
    ZapValue::from_bytes(&[0]).ok_or_else(|| base::bug!("a NUL is a value"))
}

/// The head of a dataset's directory; 0 for the MOS and for what is no dataset any more.
fn head_of(cx: &SyncCx<'_>, dataset: u64) -> u64 {
    let dir = || cx.dir(cx.dataset(dataset)?.dir_obj);
    if dataset == 0 { 0 } else { dir().map_or(0, |dir| dir.head_dataset_obj) }
}

/// Adds blocks to a log.
///
/// # Errors
/// Those of the store.
pub fn add(cx: &SyncCx<'_>, log: StoredLog, lost: &[LostBlock]) -> Result<()> {
    if lost.is_empty() {
        return Ok(());
    }
    let by_head = is_by_head(cx.read())?;
    let top = log_object(cx, log)?;
    for block in lost {
        add_one(cx, top, by_head, block)?;
    }
    Ok(())
}

fn log_object(cx: &SyncCx<'_>, log: StoredLog) -> Result<u64> {
    if let Some(top) = cx.read().directory(log.name())?.filter(|&top| top != 0) {
        return Ok(top);
    }
    let top = cx.new_zap(ObjType::ERROR_LOG, 0)?;
    cx.put_number(DIRECTORY, log.name(), top)?;
    Ok(top)
}

fn add_one(cx: &SyncCx<'_>, top: u64, by_head: bool, block: &LostBlock) -> Result<()> {
    let LostBlock { objset, object, level, blkid, birth } = *block;
    if !by_head {
        let name = format!("{objset:x}:{object:x}:{level:x}:{blkid:x}");
        return put(cx, top, &name);
    }
    let head = head_of(cx, objset);
    if head == 0 && objset != 0 {
        // The dataset is gone, and its errors with it.
        return Ok(());
    }
    let key = format!("{head:x}");
    let zap = match cx.read().number(top, &key)? {
        Some(zap) => zap,
        None => {
            let zap = cx.new_zap(ObjType::ERROR_LOG, 0)?;
            cx.put_number(top, &key, zap)?;
            zap
        }
    };
    put(cx, zap, &format!("{object:x}:{level:x}:{blkid:x}:{birth:x}"))
}

fn put(cx: &SyncCx<'_>, zap: u64, name: &str) -> Result<()> {
    if cx.read().zap_entries(zap)?.len() < ENTRIES_MAX {
        cx.mos.zap_update(zap, name.as_bytes(), &value()?)?;
    }
    Ok(())
}

/// Hexadecimal numbers with colons between them.
pub fn numbers<const N: usize>(name: &[u8]) -> Option<[u64; N]> {
    let text = std::str::from_utf8(name).ok()?;
    let words: Option<Vec<u64>> =
        text.split(':').map(|w| u64::from_str_radix(w, 16).ok()).collect();
    words?.try_into().ok()
}

/// Frees a log.
fn clear(cx: &SyncCx<'_>, log: StoredLog) -> Result<()> {
    let Some(top) = cx.read().directory(log.name())?.filter(|&top| top != 0) else {
        return Ok(());
    };
    cx.put_number(DIRECTORY, log.name(), 0)?;
    free(cx, top, is_by_head(cx.read())?)
}

fn is_log(cx: &SyncCx<'_>, object: u64) -> bool {
    cx.read().info(object).is_ok_and(|info| info.object_type == ObjType::ERROR_LOG)
}

fn free(cx: &SyncCx<'_>, top: u64, by_head: bool) -> Result<()> {
    if !is_log(cx, top) {
        return Ok(());
    }
    let heads = if by_head { cx.read().zap_entries(top)? } else { Vec::new() };
    for zap in heads.into_iter().filter_map(|(_, zap)| zap.as_u64()) {
        if zap != top && is_log(cx, zap) {
            cx.mos.free_object(zap)?;
        }
    }
    cx.mos.free_object(top)
}

/// A scrub begins: what an earlier one had found before it was stopped is found again.
///
/// # Errors
/// Those of the store.
pub fn begin_scrub(cx: &SyncCx<'_>) -> Result<()> {
    clear(cx, StoredLog::Scrub)
}

/// A scrub has ended: its errors replace the known ones.
///
/// # Errors
/// Those of the store.
pub fn rotate(cx: &SyncCx<'_>) -> Result<()> {
    clear(cx, StoredLog::Last)?;
    let found = cx.read().directory(StoredLog::Scrub.name())?.unwrap_or(0);
    if found != 0 {
        cx.put_number(DIRECTORY, StoredLog::Last.name(), found)?;
        cx.put_number(DIRECTORY, StoredLog::Scrub.name(), 0)?;
    }
    Ok(())
}

/// Removes an entry of a log, if it is there.
///
/// # Errors
/// Those of the store.
pub fn remove(cx: &SyncCx<'_>, log: StoredLog, block: &LostBlock) -> Result<bool> {
    let top = cx.read().directory(log.name())?.unwrap_or(0);
    if top == 0 {
        return Ok(false);
    }
    let LostBlock { objset, object, level, blkid, birth } = *block;
    if !is_by_head(cx.read())? {
        return cx.remove_if_present(top, &format!("{objset:x}:{object:x}:{level:x}:{blkid:x}"));
    }
    // The entries of a head that was destroyed have its number.
    let head = Some(head_of(cx, objset)).filter(|&head| head != 0).unwrap_or(objset);
    let Some(zap) = cx.read().number(top, &format!("{head:x}"))? else { return Ok(false) };
    cx.remove_if_present(zap, &format!("{object:x}:{level:x}:{blkid:x}:{birth:x}"))
}

/// A clone was promoted: entries of blocks born up to the branch move from the head that had
/// the shared snapshots to the clone's.
///
/// # Errors
/// Those of the store.
pub(crate) fn promoted(cx: &SyncCx<'_>, from: u64, to: u64, branch: Txg) -> Result<()> {
    if !is_by_head(cx.read())? {
        return Ok(());
    }
    for log in [StoredLog::Last, StoredLog::Scrub] {
        let top = cx.read().directory(log.name())?.unwrap_or(0);
        let old = if top == 0 { None } else { cx.read().number(top, &format!("{from:x}"))? };
        let Some(old) = old.filter(|&old| is_log(cx, old)) else { continue };
        let all = cx.read().zap_entries(old)?;
        for (name, _) in &all {
            let Some([object, level, blkid, birth]) = numbers(name) else { continue };
            if birth != 0 && birth <= branch.0 {
                let block = LostBlock { objset: to, object, level, blkid, birth };
                add_one(cx, top, true, &block)?;
                cx.mos.zap_remove(old, name)?;
            }
        }
        if cx.read().zap_entries(old)?.is_empty() {
            cx.unlink(top, from)?;
            cx.mos.free_object(old)?;
        }
    }
    Ok(())
}

/// All entries of a log; those by heads have the head as their object set.
///
/// # Errors
/// Those of reading the MOS.
pub fn entries(mos: &dyn MosRead, log: StoredLog) -> Result<Vec<LostBlock>> {
    let top = mos.directory(log.name())?.unwrap_or(0);
    let mut out = Vec::new();
    if top == 0 {
        return Ok(out);
    }
    let all = mos.zap_entries(top)?;
    if !is_by_head(mos)? {
        let plain = all.iter().filter_map(|(name, _)| numbers(name));
        out.extend(plain.map(|[objset, object, level, blkid]| LostBlock {
            objset,
            object,
            level,
            blkid,
            birth: 0,
        }));
        return Ok(out);
    }
    for (name, zap) in all {
        let (Some([objset]), Some(zap)) = (numbers::<1>(&name), zap.as_u64()) else { continue };
        let blocks = mos.zap_entries(zap)?;
        let blocks = blocks.iter().filter_map(|(name, _)| numbers(name));
        out.extend(blocks.map(|[object, level, blkid, birth]| LostBlock {
            objset,
            object,
            level,
            blkid,
            birth,
        }));
    }
    out.truncate(ENTRIES_MAX);
    Ok(out)
}
