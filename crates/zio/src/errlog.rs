//! The pool's error log: blocks whose content is lost, as bookmarks (chapter 04 §18).
//!
//! # Theory
//! A block is entered when its reader was told of an error: no copy passed its checksum,
//! no reconstruction did, or what passed does not decompress. The pipeline knows block
//! pointers alone, so the layer above, which knows the bookmark, makes the entry
//! ([`ErrorLog::add`]). Read-ahead enters nothing: whoever needs the block finds out.
//!
//! The log lasts as long as the pool is open. The birth of the block tells whether an
//! entry still holds: a block that was overwritten or freed since is damaged no more.
//!
//! # Invariants
//! * At most [`ERRORS_MAX`] entries, whatever a hostile pool makes its readers meet.
//!
//! Lock order: its lock is a leaf.

use std::collections::BTreeSet;

use base::rt::Mutex;

/// Entries of one pool's log; later errors are dropped.
pub const ERRORS_MAX: usize = 1024;

/// Where a block belongs: object set, object, level and number (chapter 04 §18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorEntry {
    /// The dataset's object in the MOS; 0 is the MOS itself.
    pub objset: u64,
    /// The object.
    pub object: u64,
    /// Level of the block; 0 is data.
    pub level: u8,
    /// Number of the block within its level.
    pub blkid: u64,
    /// Birth of the block that could not be read; 0 if that is not known.
    pub birth: u64,
}

/// Blocks that could not be read since the pool was opened.
#[derive(Debug, Default)]
pub struct ErrorLog {
    entries: Mutex<BTreeSet<ErrorEntry>>,
}

impl ErrorLog {
    /// Enters a block.
    pub fn add(&self, entry: ErrorEntry) {
        let mut entries = self.entries.lock();
        if entries.len() < ERRORS_MAX {
            entries.insert(entry);
        }
    }

    /// Forgets an entry that does not hold any more.
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
