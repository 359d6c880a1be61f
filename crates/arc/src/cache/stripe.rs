//! One stripe of the directory: keys, buffers, and the log of hits.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use base::Buf;
use base::rt::atomic::{AtomicBool, Ordering::Relaxed};
use base::rt::{Condvar, Mutex};
use hashbrown::HashTable;

use super::core::Incoming;
use super::{Ask, Found, Hasher, SlotRef};
use crate::policy::{Id, Kind};
use crate::stats::{Accesses, HitForms, PrefetchCounts};
use crate::{Access, Copies};

/// Hits that may wait before the policy hears of them.
pub(super) const LOG_MAX: usize = 32;
/// Uses of a block while fewer others than this part of the stripe's blocks were used
/// count as one: a reader that goes through a block in small steps, or a walk through a
/// directory whose files share a block, has used it once.
/// Such uses tell nothing about what to keep, for what was used so lately stays anyway
/// (the correlated references of LRU-k and 2Q).
const CORRELATED_SHIFT: u32 = 5;
const CORRELATED_MIN: u32 = 4;
/// When twice as many uses have counted as there are blocks, and none moved in, their
/// order is known well enough: one in so many is told until the next one moves in.
const QUIET_PART: u32 = 16;
/// A block in use all the while counts again after this many such parts.
const CORRELATED_PARTS: u32 = 8;
/// A block whose decompressed form was missed twice within 1/16 of the stripe's
/// blocks is worth having it.
const FRONT_WINDOW_SHIFT: u32 = 4;
const FRONT_WINDOW_MIN: u32 = 4;

/// A stripe gives out this many stamps (as a shift) before they would be another's.
const STAMP_SHIFT: u32 = 48;

/// A reader's duty, shared with those who wait for it.
#[derive(Default)]
pub(super) struct Pending {
    done: Mutex<bool>,
    wake: Condvar,
    /// Somebody waits who did not guess.
    pub(super) demanded: AtomicBool,
    /// The block was freed meanwhile: do not keep it.
    pub(super) cancelled: AtomicBool,
}

impl Pending {
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

/// A directory entry. What a hit looks at comes first, in one cache line.
#[repr(C)]
pub(super) struct Slot<K> {
    /// Given once in the life of the cache: tells what a slot holds from what it held.
    pub(super) stamp: u64,
    /// Decompressed; empty if it is not at hand.
    pub(super) whole: Buf,
    pub(super) id: Id,
    /// The stripe's count of uses that counted, when one of this block's did last, and
    /// when it was used last.
    seq: u32,
    used: u32,
    /// The upper half of the key's hash, for the what-if estimator.
    mark: u32,
    pub(super) kind: Kind,
    /// There is a stored form.
    packed: bool,
    /// Prefetched and not used yet: by whom.
    pub(super) fresh: Option<Access>,
    pub(super) tag: u8,
    pub(super) lsize: u32,
    /// When the decompressed form was missed last, as `seq`.
    front_seq: u32,
    /// As on the device, when that is smaller; else empty.
    pub(super) stored: Buf,
    pub(super) key: K,
}

impl<K> Slot<K> {
    pub(super) fn resident(&self) -> bool {
        !self.whole.is_empty() || !self.stored.is_empty()
    }

    /// A reader has one of its buffers.
    pub(super) fn held(&self) -> bool {
        self.stored.is_shared() || self.whole.is_shared()
    }

    /// Memory of the form that the policy charges.
    pub(super) fn charged(&self) -> usize {
        if self.stored.is_empty() { self.whole.footprint() } else { self.stored.footprint() }
    }

    /// Memory of a decompressed form beside the stored one.
    pub(super) fn front(&self) -> usize {
        if self.stored.is_empty() { 0 } else { self.whole.footprint() }
    }
}

/// What a hit tells the policy.
#[derive(Clone, Copy)]
pub(super) struct Touch {
    pub(super) id: Id,
    pub(super) kind: Kind,
    /// First use after a prefetch.
    pub(super) first: bool,
    /// A use that counts; else only its front is told.
    pub(super) counts: bool,
    /// The decompressed form was there / was missed.
    pub(super) front: Option<bool>,
}

/// Counters of one stripe.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    /// By kind, then demand or prefetch.
    pub(super) access: [[Accesses; 2]; 2],
    pub(super) forms: HitForms,
    pub(super) predictive: PrefetchCounts,
    pub(super) prescient: PrefetchCounts,
    pub(super) deleted: u64,
    pub(super) log_skipped: u64,
    pub(super) log_busy: u64,
}

impl Counts {
    pub(super) fn class(&mut self, kind: Kind, access: Access) -> &mut Accesses {
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

pub(super) struct Stripe<K> {
    table: HashTable<u32>,
    pub(super) slots: Vec<Slot<K>>,
    free: Vec<u32>,
    filling: Vec<(K, Access, Arc<Pending>)>,
    pub(super) log: Vec<Touch>,
    pub(super) counts: Counts,
    /// By kind: uses that counted, and blocks known.
    seq: [u32; 2],
    known: [u32; 2],
    /// By kind: uses that counted since a block moved in.
    quiet: [u32; 2],
    stamps: u64,
}

impl<K: Copy + Eq + Hash> Stripe<K> {
    /// Stripe number `n` of the cache: its stamps are no other stripe's.
    pub(super) fn new(n: u32) -> Self {
        Stripe {
            table: HashTable::new(),
            slots: Vec::new(),
            free: Vec::new(),
            filling: Vec::new(),
            log: Vec::with_capacity(LOG_MAX),
            counts: Counts::default(),
            seq: [0; 2],
            known: [0; 2],
            quiet: [0; 2],
            stamps: u64::from(n) << STAMP_SHIFT,
        }
    }

    pub(super) fn find(&self, hash: u64, key: &K) -> Option<u32> {
        self.table.find(hash, |&i| self.slots[i as usize].key == *key).copied()
    }

    /// What the what-if estimator knows the block in slot `i` by.
    pub(super) fn mark(&self, i: u32) -> u64 {
        u64::from(self.slots[i as usize].mark) << 32
    }

    /// The slot that a reference names, if it still holds the same block.
    pub(super) fn at(&self, slot: SlotRef) -> Option<u32> {
        let held = self.slots.get(slot.slot as usize)?;
        (held.stamp == slot.stamp && held.resident()).then_some(slot.slot)
    }

    /// A new entry without buffers; `key` must not be known.
    pub(super) fn add(&mut self, hash: u64, hasher: &Hasher, key: K, kind: Kind) -> u32 {
        self.stamps += 1;
        let slot = Slot {
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

    /// A block moves in: the slot's earlier references are void from now on.
    pub(super) fn fill(&mut self, i: u32, block: Incoming, fresh: Option<Access>) {
        self.stamps += 1;
        let slot = &mut self.slots[i as usize];
        (slot.stored, slot.whole, slot.fresh) = (block.stored, block.whole, fresh);
        (slot.lsize, slot.tag) = (block.lsize, block.tag);
        slot.packed = !slot.stored.is_empty();
        self.quiet = [0; 2];
        let seq = &mut self.seq[slot.kind as usize];
        *seq = seq.wrapping_add(1);
        (slot.stamp, slot.seq, slot.used) = (self.stamps, *seq, *seq);
    }

    /// The buffers go, the entry stays.
    pub(super) fn empty(&mut self, i: u32) {
        self.stamps += 1;
        let slot = &mut self.slots[i as usize];
        (slot.stored, slot.whole, slot.fresh) = (Buf::default(), Buf::default(), None);
        (slot.packed, slot.stamp) = (false, self.stamps);
    }

    /// The entry goes.
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

    /// Everything goes but the reads under way, which will not be kept.
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

    /// A lookup found slot `i` resident.
    pub(super) fn hit(&mut self, stripe: u32, i: u32, ask: Ask) -> Found {
        let counts = &mut self.counts;
        let slot = &mut self.slots[i as usize];
        let (blocks, seq) = (self.known[slot.kind as usize], self.seq[slot.kind as usize]);
        let window = (blocks >> FRONT_WINDOW_SHIFT).max(FRONT_WINDOW_MIN);
        let together = (blocks >> CORRELATED_SHIFT).max(CORRELATED_MIN);
        counts.class(slot.kind, ask.access).hits += 1;
        let at = SlotRef { stripe, slot: i, stamp: slot.stamp };
        let mut touch =
            Touch { id: slot.id, kind: slot.kind, first: false, counts: false, front: None };
        let found = if slot.whole.is_empty() {
            let again = seq.wrapping_sub(slot.front_seq) < window;
            slot.front_seq = seq;
            touch.front = Some(false);
            counts.forms.decompressed += 1;
            let (lsize, tag) = (slot.lsize, slot.tag);
            Found::Stored { at, stored: slot.stored.clone(), lsize, tag, again }
        } else {
            touch.front = slot.packed.then_some(true);
            match ask.copies {
                Copies::No => counts.forms.borrowed += 1,
                Copies::Yes => counts.forms.copied += 1,
            }
            Found::Whole { at, whole: slot.whole.clone() }
        };
        if ask.access != Access::Demand {
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

    /// Joins the read of `key` that is under way.
    pub(super) fn join(&mut self, key: &K, kind: Kind, access: Access) -> Option<Arc<Pending>> {
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
    pub(super) fn begin(&mut self, key: K, kind: Kind, access: Access) -> Arc<Pending> {
        self.counts.class(kind, access).misses += 1;
        if let Some(c) = self.counts.prefetch(access) {
            c.issued += 1;
        }
        let pending = Arc::new(Pending::default());
        pending.demanded.store(access == Access::Demand, Relaxed);
        self.filling.push((key, access, Arc::clone(&pending)));
        pending
    }

    /// The read of a key has ended.
    pub(super) fn end(&mut self, key: &K) {
        self.filling.retain(|f| f.0 != *key);
    }

    /// The block that is being read was freed.
    pub(super) fn cancel(&mut self, key: &K) {
        if let Some(f) = self.filling.iter().find(|f| f.0 == *key) {
            f.2.cancelled.store(true, Relaxed);
        }
    }
}
