//! The error log of a pool: blocks with lost content, as bookmarks (chapter 04 §18).
//!
//! # Theory
//! A block is entered when a reader got an error for it: no copy passed its checksum,
//! no reconstruction did, or the content that passed does not decompress. The pipeline
//! knows only block pointers, so the layer above, which knows the bookmark, makes the
//! entry ([`ErrorLog::add`]). Read-ahead enters nothing; a reader that needs the block
//! will find the error.
//! The log lasts as long as the pool is open. The birth of the block tells whether an
//! The log lasts as long as the pool is open. The birth of the block shows whether an
//! entry is still valid: a block that was overwritten or freed since is no longer
//! damaged.
//! # Invariants
//! * At most [`ERRORS_MAX`] entries, however many errors a hostile pool causes.
//!
//! Lock order: the log's lock is a leaf.

use std::collections::BTreeSet;

use base::rt::Mutex;

/// Entries of one pool's log; later errors are dropped.
pub const ERRORS_MAX: usize = 1024;

/// The bookmark of a block: object set, object, level and block id (chapter 04 §18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorEntry {
    /// Object id of the dataset in the MOS; 0 is the MOS itself.
    pub objset: u64,
    /// Object id.
    pub object: u64,
    /// Level of the block; 0 is data.
    pub level: u8,
    /// Block id within the level.
    pub blkid: u64,
    /// Birth of the unreadable block; 0 if unknown.
    pub birth: u64,
}

/// Blocks that could not be read since the pool was opened.
#[derive(Debug, Default)]
pub struct ErrorLog {
    entries: Mutex<BTreeSet<ErrorEntry>>,
}

impl ErrorLog {
    /// Adds an entry.
    pub fn add(&self, entry: ErrorEntry) {
        let mut entries = self.entries.lock();
        if entries.len() < ERRORS_MAX {
            entries.insert(entry);
        }
    }

    /// Removes an entry that is no longer valid.
    pub fn remove(&self, entry: &ErrorEntry) {
        self.entries.lock().remove(entry);
    }

    /// All entries, in order.
    pub fn entries(&self) -> Vec<ErrorEntry> {
        self.entries.lock().iter().copied().collect()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_bounded_and_has_each_block_once() {
        let log = ErrorLog::default();
        assert!(log.is_empty());
        let at = |blkid| ErrorEntry { objset: 54, object: 2, level: 0, blkid, birth: 9 };
        for blkid in 0..2 * ERRORS_MAX as u64 {
            log.add(at(blkid));
            log.add(at(blkid));
        }
        let entries = log.entries();
        assert_eq!(entries.len(), ERRORS_MAX);
        assert_eq!(entries.first(), Some(&at(0)));
        log.remove(&at(0));
        assert_eq!(log.entries().first(), Some(&at(1)));
    }
}
