//! A table that leads from an object's block directly to its slot in the cache.
//!
//! # Theory
//! A read of a block that is in memory should not walk indirect blocks. For (object
//! set, object, block), this table holds the slot where the block was last found: a few
//! words for each entry, in sets of two, overwritten freely. A hint may be stale at any
//! time. The cache then does not recognise the stamp, and the reader walks the indirect
//! blocks.
//!
//! # Invariants
//! * A hint is recorded only by a reader that resolved the block pointer, so a live
//!   slot in a hint is a block to which the pointer led. A thread that changes the
//!   pointer removes the hint first and raises [`Hints::epoch`], so that a reader that
//!   resolved the old pointer meanwhile records nothing.
//! * Entries are protected by a sequence lock: the first word is 0 while the others
//!   change, and must be the same before and after they are read. If the same block is
//!   recorded twice in between, slot and stamp may come from two recordings; stamps are
//!   unique, so the cache rejects that pair.
//!
//! No locks.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use arc::SlotRef;

/// Bytes of cache for each table entry.
const BYTES_PER_ENTRY: u64 = 4096;
const ENTRIES_MIN: u64 = 1 << 8;
const ENTRIES_MAX: u64 = 1 << 20;
const WAYS: usize = 2;
const EPOCHS: usize = 64;
const OBJECT_BITS: u32 = 48;
const BLOCK_BITS: u32 = 56;
const OBJSET_BITS: u32 = 24;

/// A block of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectBlock {
    /// [`crate::Zio::next_objset`].
    pub objset: u32,
    /// Object id.
    pub object: u64,
    /// Data block id.
    pub blkid: u64,
}

#[derive(Default)]
#[repr(align(32))]
struct HintEntry([AtomicU64; 4]);

/// The table of hints.
pub struct Hints {
    entries: Box<[HintEntry]>,
    epochs: [AtomicU64; EPOCHS],
}

impl ObjectBlock {
    /// Two words that identify the block uniquely; `None` for ids beyond the format's
    /// range.
    fn words(self) -> Option<(u64, u64)> {
        // Plus one, so that the first word is never 0.
        let objset = u64::from(self.objset) + 1;
        let fits = objset >> OBJSET_BITS == 0
            && self.object >> OBJECT_BITS == 0
            && self.blkid >> BLOCK_BITS == 0;
        let low = objset & 0xffff;
        let (a, b) = (self.object << 16 | low, self.blkid << 8 | objset >> 16);
        (fits && a != 0).then_some((a, b))
    }
}

impl Hints {
    /// A table sized for a cache of `bytes` bytes.
    pub(crate) fn for_cache(bytes: u64) -> Hints {
        let n = (bytes / BYTES_PER_ENTRY).clamp(ENTRIES_MIN, ENTRIES_MAX).next_power_of_two();
        Hints {
            entries: (0..n).map(|_| HintEntry::default()).collect(),
            epochs: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    fn set(&self, (a, b): (u64, u64)) -> &[HintEntry] {
        let mix = (a ^ b.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let sets = self.entries.len() / WAYS;
        let at = ((u128::from(mix) * sets as u128) >> 64) as usize * WAYS;
        &self.entries[at..at + WAYS]
    }

    /// The slot where `key` was last found.
    pub fn get(&self, key: ObjectBlock) -> Option<SlotRef> {
        let (a, b) = key.words()?;
        self.set((a, b)).iter().find_map(|e| {
            let [tag, block, slot, stamp] = &e.0;
            if tag.load(Ordering::Acquire) != a {
                return None;
            }
            let (block, slot, stamp) = (
                block.load(Ordering::Relaxed),
                slot.load(Ordering::Relaxed),
                stamp.load(Ordering::Relaxed),
            );
            fence(Ordering::Acquire);
            let same = tag.load(Ordering::Relaxed) == a && block == b;
            same.then_some(SlotRef { stripe: (slot >> 32) as u32, slot: slot as u32, stamp })
        })
    }

    /// A counter of pointer changes around `key`. Read it before resolving the
    /// pointer, and pass it to [`Hints::put`].
    pub fn epoch(&self, key: ObjectBlock) -> u64 {
        self.epoch_of(key).load(Ordering::Acquire)
    }

    fn epoch_of(&self, key: ObjectBlock) -> &AtomicU64 {
        let mix = (key.object ^ u64::from(key.objset) << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.epochs[(mix >> 58) as usize]
    }

    /// Records where `key` was found, unless a pointer around it has changed since
    /// `epoch`.
    pub fn put(&self, key: ObjectBlock, at: SlotRef, epoch: u64) {
        let Some((a, b)) = key.words() else { return };
        let set = self.set((a, b));
        let is = |e: &&HintEntry| {
            e.0[0].load(Ordering::Relaxed) == a && e.0[1].load(Ordering::Relaxed) == b
        };
        // The choice of the replaced entry is practically random.
        let other = &set[at.stamp as usize % WAYS];
        let empty = set.iter().find(|e| e.0[0].load(Ordering::Relaxed) == 0);
        let entry = set.iter().find(is).or(empty).unwrap_or(other);
        let [tag, block, slot, stamp] = &entry.0;
        // A concurrent writer of this entry wins or loses completely: the tag decides.
        tag.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        block.store(b, Ordering::Relaxed);
        slot.store(u64::from(at.stripe) << 32 | u64::from(at.slot), Ordering::Relaxed);
        stamp.store(at.stamp, Ordering::Relaxed);
        tag.store(a, Ordering::Release);
        if self.epoch(key) != epoch {
            tag.store(0, Ordering::Release);
        }
    }

    /// Removes the hint of `key`, whose pointer is about to change.
    pub fn forget(&self, key: ObjectBlock) {
        self.epoch_of(key).fetch_add(1, Ordering::AcqRel);
        let Some((a, b)) = key.words() else { return };
        for entry in self.set((a, b)) {
            if entry.0[0].load(Ordering::Acquire) == a && entry.0[1].load(Ordering::Relaxed) == b {
                entry.0[0].store(0, Ordering::Release);
            }
        }
    }

    /// As [`Hints::forget`], for the blocks from `first` up to block id `past`.
    pub fn forget_range(&self, first: ObjectBlock, past: u64) {
        let count = past.saturating_sub(first.blkid);
        if count < self.entries.len() as u64 {
            return (first.blkid..past)
                .for_each(|blkid| self.forget(ObjectBlock { blkid, ..first }));
        }
        self.epoch_of(first).fetch_add(1, Ordering::AcqRel);
        let Some((a, b)) = ObjectBlock { blkid: 0, ..first }.words() else { return };
        let blocks = first.blkid..past;
        for entry in &self.entries {
            let [tag, block, ..] = &entry.0;
            let is = |at: u64| at & 0xff == b && blocks.contains(&(at >> 8));
            if tag.load(Ordering::Acquire) == a && is(block.load(Ordering::Relaxed)) {
                tag.store(0, Ordering::Release);
            }
        }
    }

    /// Memory of the table, bytes.
    pub fn footprint(&self) -> u64 {
        size_of_val(&*self.entries) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(objset: u32, object: u64, blkid: u64) -> ObjectBlock {
        ObjectBlock { objset, object, blkid }
    }

    #[test]
    fn hints_belong_to_their_block() {
        let hints = Hints::for_cache(64 << 20);
        let mut kept = 0;
        for n in 0..4000u64 {
            let p = key(n as u32 % 70_000, n % 97, n);
            let at = SlotRef { stripe: n as u32 % 7, slot: n as u32, stamp: n + 1 };
            hints.put(p, at, hints.epoch(p));
        }
        for n in 0..4000u64 {
            let p = key(n as u32 % 70_000, n % 97, n);
            if let Some(at) = hints.get(p) {
                assert_eq!((at.slot, at.stamp), (n as u32, n + 1));
                kept += 1;
            }
            assert!(hints.get(key(n as u32 % 70_000, n % 97, n + 4000)).is_none());
        }
        assert!(kept > 3500, "{kept}");
        assert!(hints.get(key(u32::MAX, 1, 1)).is_none());
        assert!(hints.get(key(0, 1 << 50, 1)).is_none());
    }

    #[test]
    fn ranges_are_forgotten() {
        for (first, past) in [(0, u64::MAX), (100, 110), (90, 1 << 40)] {
            let hints = Hints::for_cache(1 << 20);
            for n in 0..120u64 {
                for object in [7, 8] {
                    let p = key(70_000, object, n);
                    let at = SlotRef { stripe: 0, slot: n as u32, stamp: n + 1 };
                    hints.put(p, at, hints.epoch(p));
                }
            }
            let (p, known) = (key(70_000, 7, first), |o, n| hints.get(key(70_000, o, n)));
            let before: Vec<u64> = (0..120).filter(|&n| known(7, n).is_some()).collect();
            let other = (0..120).filter(|&n| known(8, n).is_some()).count();
            let epoch = hints.epoch(p);
            hints.forget_range(p, past);
            assert!(hints.epoch(p) > epoch && before.len() > 40 && other > 40);
            for n in before {
                assert_eq!(known(7, n).is_none(), (first..past).contains(&n), "{n}");
            }
            assert_eq!((0..120).filter(|&n| known(8, n).is_some()).count(), other);
        }
    }

    #[test]
    fn a_pointer_that_changed_meanwhile_records_nothing() {
        let hints = Hints::for_cache(1 << 20);
        let (p, at) = (key(1, 2, 3), SlotRef { stripe: 0, slot: 9, stamp: 4 });
        let before = hints.epoch(p);
        hints.put(p, at, before);
        assert_eq!(hints.get(p), Some(at));
        hints.forget(p);
        assert_eq!(hints.get(p), None);
        hints.put(p, at, before);
        assert_eq!(hints.get(p), None);
    }
}
