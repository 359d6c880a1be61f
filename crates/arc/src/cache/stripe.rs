//! One stripe of the directory: keys, buffers, and the log of hits.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use base::Buf;
use base::rt::atomic::{AtomicBool, Ordering::Relaxed};
use base::rt::{Condvar, Mutex};
use hashbrown::HashTable;

use super::core::Incoming;
use super::{Hasher, LookupRequest, ResidentBlock, SlotRef};
use crate::policy::{CacheKind, Id};
use crate::stats::{Accesses, HitForms, PrefetchCounts};
use crate::tier::TierUse;
use crate::{Access, Copies};

/// Hits that may wait in the log before they are applied to the policy.
pub(super) const LOG_MAX: usize = 32;
/// Uses of a block count as one as long as fewer than this fraction of the stripe's
/// blocks were used in between. A reader that reads a block in small steps has used it
/// once, and so has a walk through a directory whose files share a block. Such uses
/// give no information about what to keep, because a block used so recently stays
/// anyway (the correlated references of LRU-k and 2Q).
const CORRELATED_SHIFT: u32 = 5;
const CORRELATED_MIN: u32 = 4;
/// When twice as many uses have been counted as there are blocks, and no block was
/// inserted, the order of the blocks is known well enough. Then only one use in this
/// many is logged until the next insertion.
const QUIET_PART: u32 = 16;
/// A block that is in continuous use counts again after this many such fractions.
const CORRELATED_PARTS: u32 = 8;
/// A decompressed form is worth keeping if it was missed twice within 1/16 of the
/// stripe's blocks.
const FRONT_WINDOW_SHIFT: u32 = 4;
const FRONT_WINDOW_MIN: u32 = 4;

/// A stripe can make this many stamps (as a shift) before they would collide with
/// another stripe's.
const STAMP_SHIFT: u32 = 48;

/// A read in progress, shared by its reader and the threads that wait for it.
#[derive(Default)]
pub(super) struct PendingRead {
    done: Mutex<bool>,
    wake: Condvar,
    /// A demand reader waits, not only prefetchers.
    pub(super) demanded: AtomicBool,
    /// The block was freed meanwhile: do not keep it.
    pub(super) cancelled: AtomicBool,
}

impl PendingRead {
    pub(super) fn finish(&self) {
        *self.done.lock() = true;
        self.wake.notify_all();
    }

    pub(super) fn wait(&self) {
        let mut done = self.done.lock();
        while !*done {
            self.wake.wait(&mut done);
        }
    }
}

/// A directory entry. The fields that a hit uses come first, in one cache line.
#[repr(C)]
pub(super) struct CacheSlot<K> {
    /// Unique during the life of the cache: distinguishes the present block from
    /// earlier ones.
    pub(super) stamp: u64,
    /// The decompressed form; empty if it is not kept.
    pub(super) whole: Buf,
    pub(super) id: Id,
    /// The stripe's count of counted uses at this block's last counted use, and at its
    /// last use of any sort.
    seq: u32,
    used: u32,
    /// The upper half of the key's hash, for the what-if estimator.
    mark: u32,
    pub(super) kind: CacheKind,
    /// There is a stored form.
    packed: bool,
    /// Prefetched and not yet used, and by which kind of access.
    pub(super) fresh: Option<Access>,
    pub(super) tag: u8,
    /// What the second tier may do with the block: [`TierUse`], packed.
    usage: u8,
    /// The block was known to have been here before when it was inserted.
    pub(super) returned: bool,
    pub(super) lsize: u32,
    /// The stripe's count when the decompressed form was last missed, as `seq`.
    front_seq: u32,
    /// The form on the device, if it is smaller; otherwise empty.
    pub(super) stored: Buf,
    pub(super) key: K,
}

impl<K> CacheSlot<K> {
    pub(super) fn usage(&self) -> TierUse {
        let has = |bit: u8| self.usage & bit != 0;
        TierUse { eligible: has(1), protected: has(2), gang: has(4) }
    }

    pub(super) fn resident(&self) -> bool {
        !self.whole.is_empty() || !self.stored.is_empty()
    }

    /// Whether a reader has one of its buffers.
    pub(super) fn held(&self) -> bool {
        self.stored.is_shared() || self.whole.is_shared()
    }

    /// Memory of the form that is charged to the policy.
    pub(super) fn charged(&self) -> usize {
        if self.stored.is_empty() { self.whole.footprint() } else { self.stored.footprint() }
    }

    /// Memory of a decompressed form beside the stored one.
    pub(super) fn front(&self) -> usize {
        if self.stored.is_empty() { 0 } else { self.whole.footprint() }
    }
}

/// A hit, as it is logged for the policy.
#[derive(Clone, Copy)]
pub(super) struct Touch {
    pub(super) id: Id,
    pub(super) kind: CacheKind,
    /// First use after a prefetch.
    pub(super) first: bool,
    /// The use counts; otherwise only the front is updated.
    pub(super) counts: bool,
    /// Whether the decompressed form was present or missed.
    pub(super) front: Option<bool>,
}

/// Counters of one stripe.
#[derive(Clone, Copy, Default)]
pub(super) struct StripeCounts {
    /// By kind, then demand or prefetch.
    pub(super) access: [[Accesses; 2]; 2],
    pub(super) forms: HitForms,
    pub(super) predictive: PrefetchCounts,
    pub(super) prescient: PrefetchCounts,
    pub(super) deleted: u64,
    pub(super) log_skipped: u64,
    pub(super) log_busy: u64,
}

impl StripeCounts {
    pub(super) fn class(&mut self, kind: CacheKind, access: Access) -> &mut Accesses {
        &mut self.access[kind as usize][usize::from(access != Access::Demand)]
    }

    fn prefetch(&mut self, access: Access) -> Option<&mut PrefetchCounts> {
        match access {
            Access::Demand => None,
            Access::Prefetch => Some(&mut self.predictive),
            Access::Prescient => Some(&mut self.prescient),
        }
    }
}

pub(super) struct CacheStripe<K> {
    table: HashTable<u32>,
    pub(super) slots: Vec<CacheSlot<K>>,
    free: Vec<u32>,
    filling: Vec<(K, Access, Arc<PendingRead>)>,
    pub(super) log: Vec<Touch>,
    pub(super) counts: StripeCounts,
    /// By kind: counted uses, and known blocks.
    seq: [u32; 2],
    known: [u32; 2],
    /// By kind: counted uses since the last insertion.
    quiet: [u32; 2],
    stamps: u64,
}

impl<K: Copy + Eq + Hash> CacheStripe<K> {
    /// Stripe number `n` of the cache; its stamps are disjoint from those of other
    /// stripes.
    pub(super) fn new(n: u32) -> Self {
        CacheStripe {
            table: HashTable::new(),
            slots: Vec::new(),
            free: Vec::new(),
            filling: Vec::new(),
            log: Vec::with_capacity(LOG_MAX),
            counts: StripeCounts::default(),
            seq: [0; 2],
            known: [0; 2],
            quiet: [0; 2],
            stamps: u64::from(n) << STAMP_SHIFT,
        }
    }

    pub(super) fn find(&self, hash: u64, key: &K) -> Option<u32> {
        self.table.find(hash, |&i| self.slots[i as usize].key == *key).copied()
    }

    /// The what-if estimator's identifier of the block in slot `i`.
    pub(super) fn mark(&self, i: u32) -> u64 {
        u64::from(self.slots[i as usize].mark) << 32
    }

    /// The slot of a reference, if it still holds the same block.
    pub(super) fn at(&self, slot: SlotRef) -> Option<u32> {
        let held = self.slots.get(slot.slot as usize)?;
        (held.stamp == slot.stamp && held.resident()).then_some(slot.slot)
    }

    /// Adds an entry without buffers; `key` must not be known.
    pub(super) fn add(&mut self, hash: u64, hasher: &Hasher, key: K, kind: CacheKind) -> u32 {
        self.stamps += 1;
        let slot = CacheSlot {
            key,
            stamp: self.stamps,
            stored: Buf::default(),
            whole: Buf::default(),
            lsize: 0,
            id: Id::MAX,
            seq: self.seq[kind as usize],
            used: self.seq[kind as usize],
            front_seq: self.seq[kind as usize].wrapping_sub(u32::MAX / 2),
            kind,
            tag: 0,
            packed: false,
            usage: 0,
            returned: false,
            mark: (hash >> 32) as u32,
            fresh: None,
        };
        let i = match self.free.pop() {
            Some(i) => {
                self.slots[i as usize] = slot;
                i
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        };
        self.known[kind as usize] += 1;
        let slots = &self.slots;
        self.table.insert_unique(hash, i, |&j| hasher.hash_one(slots[j as usize].key));
        i
    }

    /// Puts a block into a slot; earlier references to the slot become invalid.
    pub(super) fn fill(&mut self, i: u32, block: Incoming, fresh: Option<Access>) {
        self.stamps += 1;
        let slot = &mut self.slots[i as usize];
        (slot.stored, slot.whole, slot.fresh) = (block.stored, block.whole, fresh);
        (slot.lsize, slot.tag) = (block.lsize, block.tag);
        let TierUse { eligible, protected, gang } = block.usage;
        slot.usage = u8::from(eligible) | u8::from(protected) << 1 | u8::from(gang) << 2;
        slot.returned = false;
        slot.packed = !slot.stored.is_empty();
        self.quiet = [0; 2];
        let seq = &mut self.seq[slot.kind as usize];
        *seq = seq.wrapping_add(1);
        (slot.stamp, slot.seq, slot.used) = (self.stamps, *seq, *seq);
    }

    /// Drops the buffers; the entry stays.
    pub(super) fn empty(&mut self, i: u32) {
        self.stamps += 1;
        let slot = &mut self.slots[i as usize];
        (slot.stored, slot.whole, slot.fresh) = (Buf::default(), Buf::default(), None);
        (slot.packed, slot.stamp) = (false, self.stamps);
    }

    /// Removes the entry.
    pub(super) fn delete(&mut self, hasher: &Hasher, i: u32) {
        self.empty(i);
        let hash = hasher.hash_one(self.slots[i as usize].key);
        if let Ok(entry) = self.table.find_entry(hash, |&j| j == i) {
            entry.remove();
            self.known[self.slots[i as usize].kind as usize] -= 1;
            self.free.push(i);
            self.counts.deleted += 1;
        }
    }

    /// Removes everything except reads in flight, whose results will not be kept.
    pub(super) fn clear(&mut self) {
        self.table.clear();
        self.slots.clear();
        self.free.clear();
        self.log.clear();
        self.known = [0; 2];
        for (_, _, pending) in &self.filling {
            pending.cancelled.store(true, Relaxed);
        }
    }

    /// Handles a lookup that found slot `i` resident.
    pub(super) fn hit(&mut self, stripe: u32, i: u32, request: LookupRequest) -> ResidentBlock {
        let counts = &mut self.counts;
        let slot = &mut self.slots[i as usize];
        let (blocks, seq) = (self.known[slot.kind as usize], self.seq[slot.kind as usize]);
        let window = (blocks >> FRONT_WINDOW_SHIFT).max(FRONT_WINDOW_MIN);
        let together = (blocks >> CORRELATED_SHIFT).max(CORRELATED_MIN);
        counts.class(slot.kind, request.access).hits += 1;
        let at = SlotRef { stripe, slot: i, stamp: slot.stamp };
        let mut touch =
            Touch { id: slot.id, kind: slot.kind, first: false, counts: false, front: None };
        let found = if slot.whole.is_empty() {
            let again = seq.wrapping_sub(slot.front_seq) < window;
            slot.front_seq = seq;
            touch.front = Some(false);
            counts.forms.decompressed += 1;
            let (lsize, tag) = (slot.lsize, slot.tag);
            ResidentBlock::Stored { at, stored: slot.stored.clone(), lsize, tag, again }
        } else {
            touch.front = slot.packed.then_some(true);
            match request.copies {
                Copies::No => counts.forms.borrowed += 1,
                Copies::Yes => counts.forms.copied += 1,
            }
            ResidentBlock::Whole { at, whole: slot.whole.clone() }
        };
        if request.access != Access::Demand || !request.keep {
            return found;
        }
        if let Some(by) = slot.fresh.take() {
            if let Some(c) = counts.prefetch(by) {
                c.demand_hits += 1;
            }
            touch.first = true;
        }
        let again = seq.wrapping_sub(slot.used) >= together;
        slot.used = seq;
        if touch.first || again || seq.wrapping_sub(slot.seq) >= CORRELATED_PARTS * together {
            slot.seq = seq.wrapping_add(1);
            self.seq[slot.kind as usize] = slot.seq;
            let quiet = &mut self.quiet[slot.kind as usize];
            *quiet = quiet.saturating_add(1);
            touch.counts = touch.first || *quiet <= 2 * blocks || quiet.is_multiple_of(QUIET_PART);
        }
        if touch.counts || touch.front == Some(false) {
            self.remember(touch);
        }
        found
    }

    fn remember(&mut self, touch: Touch) {
        if self.log.len() < LOG_MAX * 2 || touch.first {
            self.log.push(touch);
        } else {
            self.counts.log_skipped += 1;
        }
    }

    /// Joins the read of `key` that is in flight.
    pub(super) fn join(
        &mut self,
        key: &K,
        kind: CacheKind,
        access: Access,
    ) -> Option<Arc<PendingRead>> {
        let (_, by, pending) = self.filling.iter().find(|f| f.0 == *key)?;
        let (by, pending) = (*by, Arc::clone(pending));
        self.counts.class(kind, access).iohits += 1;
        if access == Access::Demand
            && !pending.demanded.swap(true, Relaxed)
            && let Some(c) = self.counts.prefetch(by)
        {
            c.demand_iohits += 1;
        }
        Some(pending)
    }

    /// Begins the read of a key.
    pub(super) fn begin(&mut self, key: K, kind: CacheKind, access: Access) -> Arc<PendingRead> {
        self.counts.class(kind, access).misses += 1;
        if let Some(c) = self.counts.prefetch(access) {
            c.issued += 1;
        }
        let pending = Arc::new(PendingRead::default());
        pending.demanded.store(access == Access::Demand, Relaxed);
        self.filling.push((key, access, Arc::clone(&pending)));
        pending
    }

    /// The read of a key has ended.
    pub(super) fn end(&mut self, key: &K) {
        self.filling.retain(|f| f.0 != *key);
    }

    /// Marks the read of a freed block, so that its result is not kept.
    pub(super) fn cancel(&mut self, key: &K) {
        if let Some(f) = self.filling.iter().find(|f| f.0 == *key) {
            f.2.cancelled.store(true, Relaxed);
        }
    }
}
