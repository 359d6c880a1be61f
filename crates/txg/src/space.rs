//! Space reservations for txgs that are not on disk yet (chapter 05 §11.4).

use base::Txg;
use base::rt::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use crate::{TXG_SLOTS, slot};

/// `spa_asize_inflation`: (3 parity + 1 data) × 3 copies × 2.
const ASIZE_INFLATION: u64 = 24;

/// The most bytes that `logical` bytes of data can take from the pool, whose largest
/// sector is `2^max_ashift` bytes.
pub fn worst_case_asize(logical: u64, max_ashift: u32) -> u64 {
    if logical == 0 {
        return 0;
    }
    let sector = 1u64.checked_shl(max_ashift).unwrap_or(u64::MAX);
    logical.max(sector).saturating_mul(ASIZE_INFLATION)
}

/// Bytes reserved for the living txgs of a pool or of one dataset directory. The owner
/// decides what the limit is, and whether a refusal is final or is retried in the next
/// txg.
#[derive(Debug, Default)]
pub struct SpaceReservation {
    inflight: AtomicU64,
    slots: [AtomicU64; TXG_SLOTS],
    /// The txg already has the reservation made by [`SpaceReservation::once`].
    once: [AtomicBool; TXG_SLOTS],
    /// Its bytes.
    allowances: [AtomicU64; TXG_SLOTS],
}

impl SpaceReservation {
    /// Without any reservation.
    pub fn new() -> SpaceReservation {
        SpaceReservation::default()
    }

    /// Reserves `bytes` for a txg that the caller holds, if all reservations together
    /// stay within `limit`.
    pub fn try_reserve(&self, txg: Txg, bytes: u64, limit: u64) -> bool {
        self.reserve(txg, bytes, limit).is_some()
    }

    /// As [`SpaceReservation::try_reserve`]; returns the txg's reservation before.
    pub fn reserve(&self, txg: Txg, bytes: u64, limit: u64) -> Option<u64> {
        let more = |had: u64| had.checked_add(bytes).filter(|&sum| sum <= limit);
        self.inflight.fetch_update(SeqCst, SeqCst, more).ok()?;
        Some(self.slots[slot(txg.0)].fetch_add(bytes, SeqCst))
    }

    /// As [`SpaceReservation::reserve`], for a reservation that is mostly released
    /// soon: it may exceed the limit by `over`, but only if all earlier reservations
    /// were below the limit.
    pub fn overdraw(&self, txg: Txg, bytes: u64, limit: u64, over: u64) -> Option<u64> {
        let most = limit.saturating_add(over);
        let more = |had: u64| {
            had.checked_add(bytes).filter(|&sum| sum <= limit || (had < limit && sum <= most))
        };
        self.inflight.fetch_update(SeqCst, SeqCst, more).ok()?;
        Some(self.slots[slot(txg.0)].fetch_add(bytes, SeqCst))
    }

    /// Adds `bytes` to the reservation of a txg that is not on disk, regardless of the
    /// limit, because they are known to be needed. Returns the txg's reservation
    /// before.
    pub fn charge(&self, txg: Txg, bytes: u64) -> u64 {
        self.inflight.fetch_add(bytes, SeqCst);
        self.slots[slot(txg.0)].fetch_add(bytes, SeqCst)
    }

    /// Reserves `bytes` once for a txg that the caller holds; false if they do not fit.
    pub fn once(&self, txg: Txg, bytes: impl FnOnce() -> u64, limit: u64) -> bool {
        let has = &self.once[slot(txg.0)];
        if has.load(SeqCst) {
            return true;
        }
        let bytes = bytes();
        let fits = self.try_reserve(txg, bytes, limit);
        match fits && has.swap(true, SeqCst) {
            true => self.release(txg, bytes),
            false if fits => self.allowances[slot(txg.0)].store(bytes, SeqCst),
            false => {}
        }
        fits
    }

    /// Bytes that [`SpaceReservation::once`] reserved for a txg.
    pub fn allowance(&self, txg: Txg) -> u64 {
        self.allowances[slot(txg.0)].load(SeqCst)
    }

    /// Bytes that [`SpaceReservation::once`] reserved for all txgs that are not on disk. They do
    /// not grow with what writers do.
    pub fn allowances(&self) -> u64 {
        self.allowances.iter().map(|bytes| bytes.load(SeqCst)).fold(0, u64::saturating_add)
    }

    /// Releases reserved bytes of a txg that the caller holds, at most as many as there
    /// are.
    pub fn release(&self, txg: Txg, bytes: u64) {
        let take = |had: u64| Some(had - had.min(bytes));
        if let Ok(had) = self.slots[slot(txg.0)].fetch_update(SeqCst, SeqCst, take) {
            self.inflight.fetch_sub(had.min(bytes), SeqCst);
        }
    }

    /// Clears the reservation of a txg that is on disk, where its space is accounted
    /// for.
    pub fn synced(&self, txg: Txg) {
        self.allowances[slot(txg.0)].store(0, SeqCst);
        self.once[slot(txg.0)].store(false, SeqCst);
        let had = self.slots[slot(txg.0)].swap(0, SeqCst);
        self.inflight.fetch_sub(had, SeqCst);
    }

    /// Bytes reserved for all txgs that are not on disk.
    pub fn inflight(&self) -> u64 {
        self.inflight.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_txg_has_one_allowance() {
        let space = SpaceReservation::new();
        assert!(space.once(Txg(1), || 30, 100) && space.once(Txg(1), || 40, 100));
        assert!(space.once(Txg(2), || 50, 100) && !space.once(Txg(3), || 30, 100));
        let of = [1, 2, 3].map(|txg| space.allowance(Txg(txg)));
        assert_eq!((of, space.allowances(), space.inflight()), ([30, 50, 0], 80, 80));
        space.synced(Txg(1));
        assert_eq!((space.allowances(), space.inflight()), (50, 50));
    }

    #[test]
    fn a_short_reservation_may_overdraw_a_limit_that_is_not_reached() {
        let space = SpaceReservation::new();
        assert_eq!(space.overdraw(Txg(1), 60, 100, 50), Some(0));
        assert_eq!(space.overdraw(Txg(1), 91, 100, 50), None);
        assert_eq!(space.overdraw(Txg(2), 90, 100, 50), Some(0));
        assert_eq!(space.overdraw(Txg(2), 1, 100, 50), None);
        space.release(Txg(2), 90);
        assert_eq!(space.overdraw(Txg(1), 40, 100, 50), Some(60));
        assert_eq!(space.overdraw(Txg(1), 1, 100, 50), None);
        assert_eq!(space.inflight(), 100);
    }
}
