//! The stored error logs of a pool that is written (chapter 04 §18).
//!
//! # Theory
//! Readers note blocks that they cannot read in memory ([`zio::ErrorLog`]). Each txg stores
//! those that it finds there as known errors. A scrub stores what it finds in a log of its own,
//! which replaces the known errors when it ends. What readers have noted before is forgotten
//! then as well: the scrub has read it again.
//!
//! Lock order: `stored` is a leaf.

use std::collections::BTreeSet;

use base::Result;
use base::rt::Mutex;
use dsl::write::SyncCx;
use dsl::write::errlog::{self, LostBlock, StoredLog};
use ondisk::scan::ScanFunc;
use zio::ErrorEntry;

use super::Writer;

/// Entries of the log in memory that are stored already.
#[derive(Debug, Default)]
pub(super) struct StoredErrors(Mutex<BTreeSet<ErrorEntry>>);

/// The log in which a scan notes what it finds.
pub(super) fn log_of(func: ScanFunc) -> StoredLog {
    if func == ScanFunc::Scrub { StoredLog::Scrub } else { StoredLog::Last }
}

pub(super) fn lost_block(entry: &ErrorEntry) -> LostBlock {
    let ErrorEntry { objset, object, level, blkid, birth } = *entry;
    LostBlock { objset, object, level: level.into(), blkid, birth }
}

/// Adds blocks to a stored log.
///
/// # Errors
/// Those of the store.
pub(super) fn add(cx: &SyncCx<'_>, log: StoredLog, lost: &[ErrorEntry]) -> Result<()> {
    let lost: Vec<LostBlock> = lost.iter().map(lost_block).collect();
    errlog::add(cx, log, &lost)
}

impl Writer {
    /// Stores the errors that readers noted.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn store_errors(&self, cx: &SyncCx<'_>) -> Result<()> {
        if self.zio.errors().is_empty() {
            return Ok(());
        }
        let noted = self.zio.errors().entries();
        let new: Vec<ErrorEntry> = {
            let mut stored = self.stored_errors.0.lock();
            stored.retain(|entry| noted.binary_search(entry).is_ok());
            noted.into_iter().filter(|entry| stored.insert(*entry)).collect()
        };
        add(cx, StoredLog::Last, &new)
    }

    /// A scrub has ended: its errors replace the known ones.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) fn rotate_errors(&self, cx: &SyncCx<'_>) -> Result<()> {
        let stored = std::mem::take(&mut *self.stored_errors.0.lock());
        stored.iter().for_each(|entry| self.zio.errors().remove(entry));
        errlog::rotate(cx)
    }
}
