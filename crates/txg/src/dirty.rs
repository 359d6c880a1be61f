//! Counters of dirty bytes, for each txg and in total.

use base::rt::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use crate::{TXG_SLOTS, slot};

#[derive(Debug, Default)]
struct DirtySlot {
    bytes: AtomicU64,
    /// Something changed, possibly without dirty bytes.
    touched: AtomicBool,
}

/// The counters. The total is raised before the txg's counter and lowered after it, so
/// that it is never below the sum.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    total: AtomicU64,
    slots: [DirtySlot; TXG_SLOTS],
}

/// The result of an addition.
pub(crate) struct Added {
    /// It was the txg's first.
    pub(crate) first: bool,
    /// The txg's bytes before it.
    pub(crate) before: u64,
}

impl Dirty {
    pub(crate) fn add(&self, txg: u64, bytes: u64) -> Added {
        let group = &self.slots[slot(txg)];
        self.total.fetch_add(bytes, SeqCst);
        let before = group.bytes.fetch_add(bytes, SeqCst);
        let first = !group.touched.load(SeqCst) && !group.touched.swap(true, SeqCst);
        Added { first, before }
    }

    /// Subtracts bytes from a txg, at most as many as it has.
    pub(crate) fn sub(&self, txg: u64, bytes: u64) {
        let group = &self.slots[slot(txg)].bytes;
        let take = |have: u64| Some(have - have.min(bytes));
        if let Ok(had) = group.fetch_update(SeqCst, SeqCst, take) {
            self.total.fetch_sub(had.min(bytes), SeqCst);
        }
    }

    /// Resets the counter of a txg.
    pub(crate) fn clear(&self, txg: u64) {
        let group = &self.slots[slot(txg)];
        self.total.fetch_sub(group.bytes.swap(0, SeqCst), SeqCst);
        group.touched.store(false, SeqCst);
    }

    pub(crate) fn touched(&self, txg: u64) -> bool {
        self.slots[slot(txg)].touched.load(SeqCst)
    }

    pub(crate) fn of(&self, txg: u64) -> u64 {
        self.slots[slot(txg)].bytes.load(SeqCst)
    }

    pub(crate) fn total(&self) -> u64 {
        self.total.load(SeqCst)
    }
}
