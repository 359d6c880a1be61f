//! Dirty bytes, by group and in all.

use base::rt::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use crate::{TXG_SLOTS, slot};

#[derive(Debug, Default)]
struct Slot {
    bytes: AtomicU64,
    /// Something changed, if only a thing that counts no bytes.
    touched: AtomicBool,
}

/// The counters. The total is raised before and lowered after the group's, so that it is
/// never below the sum.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    total: AtomicU64,
    slots: [Slot; TXG_SLOTS],
}

/// What an addition did.
pub(crate) struct Added {
    /// It was the group's first.
    pub(crate) first: bool,
    /// The group's bytes before it.
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

    /// Takes bytes off a group, as many as it has.
    pub(crate) fn sub(&self, txg: u64, bytes: u64) {
        let group = &self.slots[slot(txg)].bytes;
        let take = |have: u64| Some(have - have.min(bytes));
        if let Ok(had) = group.fetch_update(SeqCst, SeqCst, take) {
            self.total.fetch_sub(had.min(bytes), SeqCst);
        }
    }

    /// Forgets what is left of a group.
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
