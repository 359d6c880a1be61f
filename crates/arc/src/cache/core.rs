//! The core of a partition: policies, unread prefetches, decompressed fronts, and
//! eviction.
//!
//! Everything here runs under the partition's core lock; stripes are locked one at a
//! time below it.

use std::hash::{BuildHasher, Hash};

use base::Buf;
use base::rt::Mutex;
use base::rt::atomic::{AtomicU64, Ordering::Relaxed};

use super::Hasher;
use super::line::{
    BlockPosition, DecayingMax, FAR_SHIFT, KindBlocks, QueueMembership, TicketQueue,
};
use super::stripe::{CacheSlot, CacheStripe, Touch};
use crate::balance::{Division, Pushes};
use crate::policy::{CacheKind, Id, PolicyState};
use crate::stats::{EvictedToTier, StateBytes};
use crate::tier::{LeavingBlock, Offered, SecondTier, TierUse};
use crate::{Access, PolicyKind};

/// Unread prefetches may use between 1/64 and 1/8 of a partition; initially 1/32.
const FRESH_MIN_SHIFT: u32 = 6;
/// A cache that could not evict enough tries again when it has grown by this share.
const STUCK_SHIFT: u32 = 8;
const FRESH_MAX_SHIFT: u32 = 3;
const FRESH_START_SHIFT: u32 = 5;
/// Decompressed fronts start at 1/16 of a partition. Their share moves by 1/256 if one
/// side is worth twice the other, because every move costs the other side the blocks it
/// had there.
const FRONT_START_SHIFT: u32 = 4;
const FRONT_STEP_SHIFT: u32 = 8;
const FRONT_MIN_SHIFT: u32 = 6;
/// A front that is needed again within 1/8 of the partition's bytes was dropped too
/// early.
const FRONT_NEAR_SHIFT: u32 = 3;
/// The division is settled each time 1/64 of the partition has been replaced.
const SETTLE_SHIFT: u32 = 6;
const PAGE_SHIFT: u32 = 12;
/// Each kind remembers ghosts for up to twice the partition's bytes.
const FAR_REACH_SHIFT: u32 = 1;
/// Directory memory of a block: slot, table entry and position.
const fn entry_bytes<K>() -> u64 {
    (size_of::<CacheSlot<K>>() + size_of::<BlockPosition>() + 8) as u64
}

/// Bytes that unread prefetches may use at first, of a partition's target.
pub(super) fn unread_room_at_first(c: u64) -> u64 {
    c >> FRESH_START_SHIFT
}

/// Counters of a core.
#[derive(Clone, Copy, Default)]
pub(super) struct CoreCounts {
    /// Hits and ghost hits by list: MRU, MFU.
    pub(super) hits: [u64; 2],
    pub(super) ghosts: [u64; 2],
    pub(super) evict_skip: u64,
    pub(super) evict_not_enough: u64,
    pub(super) evicted: u64,
    /// Logical bytes that left, by what the second tier did with them.
    pub(super) evicted_to: EvictedToTier,
}

pub(super) struct CacheCore {
    lines: [KindBlocks; 2],
    fresh: TicketQueue,
    fresh_share: u64,
    /// Size at which nothing more could be evicted; 0 if everything fits.
    stuck: u64,
    front: TicketQueue,
    front_target: u64,
    /// Recent maximum of the bytes of fronts and unread prefetches.
    reserve: DecayingMax,
    front_dropped: u64,
    front_near: u64,
    ghosts_seen: u64,
    turned: u64,
    /// Bytes of the charged form, of fronts and of logical content.
    raw: [u64; 2],
    fronts: [u64; 2],
    logical: u64,
    c: u64,
    pub(super) counts: CoreCounts,
}

/// A block that is being inserted.
pub(super) struct Incoming {
    pub(super) stored: Buf,
    pub(super) whole: Buf,
    pub(super) lsize: u32,
    pub(super) tag: u8,
    pub(super) access: Access,
    /// A layer above keeps the block.
    pub(super) remember: bool,
    pub(super) usage: TierUse,
}

impl CacheCore {
    pub(super) fn new(kind: PolicyKind, c: u64) -> CacheCore {
        CacheCore {
            lines: [KindBlocks::new(kind, c), KindBlocks::new(kind, c)],
            fresh: TicketQueue::default(),
            fresh_share: unread_room_at_first(c),
            stuck: 0,
            front: TicketQueue::default(),
            front_target: c >> FRONT_START_SHIFT,
            reserve: DecayingMax::default(),
            front_dropped: 0,
            front_near: 0,
            ghosts_seen: 0,
            turned: 0,
            raw: [0; 2],
            fronts: [0; 2],
            logical: 0,
            c,
            counts: CoreCounts::default(),
        }
    }

    fn set_c(&mut self, c: u64) {
        let scale =
            |x: u64, old: u64| (u128::from(x) * u128::from(c) / u128::from(old.max(1))) as u64;
        self.fresh_share = scale(self.fresh_share, self.c);
        self.front_target = scale(self.front_target, self.c);
        self.reserve.0 = scale(self.reserve.0, self.c);
        self.c = c;
    }

    /// All memory of the partition, bytes.
    pub(super) fn size<K>(&self) -> u64 {
        self.raw.iter().sum::<u64>() + self.front.bytes + self.header::<K>()
    }

    /// Number of known blocks.
    pub(super) fn entries(&self) -> u64 {
        self.lines.iter().map(|l| (l.at.len() - l.free.len()) as u64).sum()
    }

    /// Directory and policy memory, bytes.
    pub(super) fn header<K>(&self) -> u64 {
        let policies: u64 = self.lines.iter().map(|l| l.policy.overhead()).sum();
        self.entries() * entry_bytes::<K>() + policies
    }

    /// Bytes of decompressed copies beside stored ones.
    pub(super) fn fronts(&self) -> u64 {
        self.front.bytes
    }

    /// Resident bytes in both forms: data, metadata.
    pub(super) fn held_bytes(&self) -> [u64; 2] {
        [self.raw[0] + self.fronts[0], self.raw[1] + self.fronts[1]]
    }

    /// Logical bytes of resident blocks.
    pub(super) fn logical(&self) -> u64 {
        self.logical
    }

    /// Sets the partition's target to `c`.
    pub(super) fn set_c_if(&mut self, c: u64) {
        if c != self.c {
            self.set_c(c);
        }
    }

    /// Resets the partition to empty.
    pub(super) fn reset(&mut self, kind: PolicyKind, c: u64) {
        let counts = self.counts;
        *self = CacheCore { counts, ..CacheCore::new(kind, c) };
    }

    /// Bytes that were prefetched and not yet read.
    pub(super) fn unread(&self) -> u64 {
        self.fresh.bytes
    }

    /// Bytes that unread prefetches may use; beyond, the oldest are dropped.
    pub(super) fn unread_room(&self) -> u64 {
        self.fresh_share
    }

    /// Whether another decompressed form fits without displacing anything.
    pub(super) fn front_has_room<K>(&self) -> bool {
        let slack = self.c >> FRONT_MIN_SHIFT;
        self.front.bytes + slack < self.front_target || self.size::<K>() + slack < self.c
    }

    pub(super) fn state_bytes(&self, state: PolicyState) -> StateBytes {
        let of = |kind: CacheKind| self.lines[kind as usize].policy.bytes(state);
        StateBytes {
            data: of(CacheKind::Data),
            metadata: of(CacheKind::Metadata),
            ..StateBytes::default()
        }
    }

    /// The MRU target and the target of a kind's policy.
    pub(super) fn targets(&self, kind: CacheKind) -> (u64, u64) {
        let policy = &self.lines[kind as usize].policy;
        (policy.mru_target(), policy.target())
    }

    /// Applies a stripe's log of hits to the policies.
    pub(super) fn drain<K>(&mut self, stripe: &mut CacheStripe<K>) {
        for i in 0..stripe.log.len() {
            self.touch(stripe.log[i]);
        }
        stripe.log.clear();
    }

    fn touch(&mut self, touch: Touch) {
        let line = &mut self.lines[touch.kind as usize];
        let Some(at) = line.at.get_mut(touch.id as usize) else { return };
        match touch.front {
            Some(true) => at.used = true,
            Some(false) if at.dropped != 0 => {
                let now = (self.front_dropped >> PAGE_SHIFT) as u32;
                let since = u64::from(now.wrapping_sub(at.dropped)) << PAGE_SHIFT;
                self.front_near += u64::from(since < self.c >> FRONT_NEAR_SHIFT);
            }
            _ => {}
        }
        if touch.first {
            self.first_use(touch.kind, touch.id);
        }
        if touch.first || !touch.counts {
            return;
        }
        let line = &mut self.lines[touch.kind as usize];
        match line.policy.state(touch.id) {
            PolicyState::Mru => self.counts.hits[0] += 1,
            PolicyState::Mfu => self.counts.hits[1] += 1,
            _ => return,
        }
        line.policy.hit(touch.id);
    }

    /// First read of a prefetched block, which becomes a block like any other.
    fn first_use(&mut self, kind: CacheKind, id: Id) {
        let line = &mut self.lines[kind as usize];
        let at = &mut line.at[id as usize];
        if at.queue != QueueMembership::Fresh {
            return;
        }
        let size = at.bytes;
        at.leave();
        self.fresh.bytes -= u64::from(size);
        self.fresh.live -= 1;
        // The prefetch was useful: the next ones may use a little more space.
        self.fresh_share = (self.fresh_share + u64::from(size)).min(self.c >> FRESH_MAX_SHIFT);
        self.admit(kind, id, size);
    }

    /// Enters a block into its policy; true if the policy remembered it.
    fn admit(&mut self, kind: CacheKind, id: Id, size: u32) -> bool {
        let line = &mut self.lines[kind as usize];
        let was = line.policy.admit(id, size);
        let list = match was {
            PolicyState::MruGhost => 0,
            PolicyState::MfuGhost => 1,
            _ => return false,
        };
        line.ghost_hits += u64::from(size);
        self.ghosts_seen += 1;
        self.counts.ghosts[list] += 1;
        true
    }

    /// Inserts a block into slot `i`, which is not resident.
    pub(super) fn put<K: Copy + Eq + Hash>(
        &mut self,
        stripe: &mut CacheStripe<K>,
        index: u32,
        i: u32,
        block: Incoming,
    ) {
        let kind = stripe.slots[i as usize].kind;
        let line = &mut self.lines[kind as usize];
        if stripe.slots[i as usize].id == Id::MAX {
            stripe.slots[i as usize].id = line.alloc(index, i);
        }
        let id = stripe.slots[i as usize].id;
        let from_far = line.return_from_far(id);
        self.ghosts_seen += u64::from(from_far) << FAR_SHIFT;
        let known = line.policy.state(id) != PolicyState::Unknown;
        let form = if block.stored.is_empty() { &block.whole } else { &block.stored };
        let size = u32::try_from(form.footprint().max(1)).unwrap_or(u32::MAX);
        self.turned += u64::from(size);
        line.at[id as usize].size = size;
        let passed = block.remember && !known;
        self.raw[kind as usize] += u64::from(size);
        self.logical += u64::from(block.lsize);
        let front = if block.stored.is_empty() { 0 } else { block.whole.footprint() };
        let fresh = (block.access != Access::Demand).then_some(block.access);
        stripe.fill(i, block, fresh);
        stripe.slots[i as usize].returned = from_far;
        if fresh.is_some() || passed {
            // Its decompressed form, if any, is kept only once a reader requests it.
            if front > 0 {
                stripe.slots[i as usize].whole = Buf::default();
            }
            let ticket = self.fresh.push(kind, id);
            let at = &mut self.lines[kind as usize].at[id as usize];
            let queue = if passed { QueueMembership::Passed } else { QueueMembership::Fresh };
            (at.queue, at.ticket, at.bytes) = (queue, ticket, size);
            self.fresh.bytes += u64::from(size);
            self.fresh.live += 1;
        } else {
            stripe.slots[i as usize].returned |= self.admit(kind, id, size);
            if front > 0 {
                self.put_front(kind, id, front);
            }
        }
    }

    fn put_front(&mut self, kind: CacheKind, id: Id, bytes: usize) {
        let ticket = self.front.push(kind, id);
        let at = &mut self.lines[kind as usize].at[id as usize];
        (at.queue, at.ticket, at.bytes) = (QueueMembership::Front, ticket, bytes as u32);
        at.used = false;
        self.front.bytes += bytes as u64;
        self.fronts[kind as usize] += bytes as u64;
        self.front.live += 1;
        self.turned += bytes as u64 / 4;
    }

    /// Adds the decompressed form to slot `i`.
    pub(super) fn install<K: Copy + Eq + Hash>(
        &mut self,
        stripe: &mut CacheStripe<K>,
        i: u32,
        whole: Buf,
    ) {
        let slot = &mut stripe.slots[i as usize];
        let (kind, id) = (slot.kind, slot.id);
        let at = &self.lines[kind as usize].at[id as usize];
        if !slot.whole.is_empty() || slot.stored.is_empty() || at.queue != QueueMembership::None {
            return;
        }
        let bytes = whole.footprint();
        slot.whole = whole;
        self.put_front(kind, id, bytes);
    }

    fn take_front(&mut self, kind: CacheKind, id: Id) {
        let at = &mut self.lines[kind as usize].at[id as usize];
        if at.queue == QueueMembership::Front {
            self.front.bytes -= u64::from(at.bytes);
            self.fronts[kind as usize] -= u64::from(at.bytes);
            self.front.live -= 1;
            at.leave();
        }
    }

    fn take_fresh(&mut self, kind: CacheKind, id: Id) {
        let at = &mut self.lines[kind as usize].at[id as usize];
        if matches!(at.queue, QueueMembership::Fresh | QueueMembership::Passed) {
            self.fresh.bytes -= u64::from(at.bytes);
            self.fresh.live -= 1;
            at.leave();
        }
    }

    /// Subtracts the buffers of a slot that are about to be dropped.
    fn uncharge<K>(&mut self, slot: &CacheSlot<K>) {
        if slot.resident() {
            self.raw[slot.kind as usize] -= slot.charged() as u64;
            self.logical -= u64::from(slot.lsize);
        }
    }

    /// Removes the block in slot `i` permanently.
    pub(super) fn remove<K: Copy + Eq + Hash>(
        &mut self,
        stripe: &mut CacheStripe<K>,
        hasher: &Hasher,
        i: u32,
    ) {
        let (kind, id) = (stripe.slots[i as usize].kind, stripe.slots[i as usize].id);
        if id != Id::MAX {
            self.uncharge(&stripe.slots[i as usize]);
            self.take_fresh(kind, id);
            self.take_front(kind, id);
            let line = &mut self.lines[kind as usize];
            line.take_far(id);
            line.policy.remove(id);
            line.free.push(id);
        }
        stripe.delete(hasher, i);
    }

    /// Drops the logical form of slot `i`; without a stored form, only a ghost of the
    /// block remains. A block that was evicted and read again stays, because it is
    /// needed here.
    pub(super) fn hand_over<K: Copy + Eq + Hash>(
        &mut self,
        tier: &dyn SecondTier<K>,
        stripe: &mut CacheStripe<K>,
        i: u32,
    ) {
        let slot = &stripe.slots[i as usize];
        let (kind, id) = (slot.kind, slot.id);
        let state = self.lines[kind as usize].policy.state(id);
        if !slot.resident() || matches!(state, PolicyState::Mfu) {
            return;
        }
        if !slot.stored.is_empty() {
            self.take_front(kind, id);
            stripe.slots[i as usize].whole = Buf::default();
            return;
        }
        let size = u32::try_from(slot.charged()).unwrap_or(u32::MAX);
        self.offer(tier, slot, false, false);
        self.uncharge(slot);
        self.take_fresh(kind, id);
        stripe.empty(i);
        let policy = &mut self.lines[kind as usize].policy;
        policy.remove(id);
        policy.remember(id, size);
    }

    /// As [`CacheCore::make_room`], but after a call that found too few evictable bytes it
    /// waits until the cache has grown by a further share: blocks that are being
    /// written are held for long.
    pub(super) fn make_room_unless_stuck<K: Copy + Eq + Hash>(
        &mut self,
        context: &CoreContext<'_, K>,
    ) {
        let size = self.size::<K>();
        if self.stuck > 0 && size > self.c && size < self.stuck + (self.c >> STUCK_SHIFT) {
            return;
        }
        self.make_room(context);
        let size = self.size::<K>();
        self.stuck = if size > self.c { size } else { 0 };
    }

    /// Evicts until the partition fits its target, and settles the division if that is
    /// due.
    pub(super) fn make_room<K: Copy + Eq + Hash>(&mut self, context: &CoreContext<'_, K>) {
        self.settle(context);
        self.drop_unread(context, self.fresh_share);
        let over = |core: &CacheCore| core.size::<K>().saturating_sub(core.c);
        let excess = self.front.bytes.saturating_sub(self.front_target);
        if over(self) > 0 && excess > 0 {
            let keep = self.front.bytes - excess.min(over(self));
            self.drop_fronts(context, keep);
        }
        self.retarget(context);
        for kind in [CacheKind::Metadata, CacheKind::Data] {
            self.evict(context, kind);
        }
        if over(self) > 0 {
            let keep = self.front.bytes.saturating_sub(over(self));
            self.drop_fronts(context, keep);
        }
        if over(self) > 0 {
            self.drop_unread(context, 0);
        }
        if over(self) > self.c >> 4 {
            self.counts.evict_not_enough += 1;
        }
    }

    /// Divides the space for stored blocks between the kinds.
    fn retarget<K>(&mut self, context: &CoreContext<'_, K>) {
        let now = self.front.bytes.min(self.front_target) + self.fresh.bytes;
        let other = self.reserve.follow(now) + self.header::<K>();
        let left = self.c.saturating_sub(other).max(self.c >> 4);
        let meta = context.meta_of(left);
        let mut recent_max = |kind: CacheKind| {
            let line = &mut self.lines[kind as usize];
            line.recent_max.follow(line.policy.resident())
        };
        let (data_now, meta_now) = (recent_max(CacheKind::Data), recent_max(CacheKind::Metadata));
        let data_target = (left - meta).max(left.saturating_sub(meta_now));
        let meta_target = meta.max(left.saturating_sub(data_now));
        for (line, target) in self.lines.iter_mut().zip([data_target, meta_target]) {
            let now = line.policy.target();
            let small = now.abs_diff(target) < self.c >> 4;
            if !small || line.policy.resident() > target {
                line.policy.set_target(target);
            }
        }
    }

    fn evict<K: Copy + Eq + Hash>(&mut self, context: &CoreContext<'_, K>, kind: CacheKind) {
        loop {
            let KindBlocks { policy, at, .. } = &mut self.lines[kind as usize];
            let skipped = &mut self.counts.evict_skip;
            let mut held = |id: Id| {
                let at = at[id as usize];
                let held = context.stripe(at.stripe).lock().slots[at.slot as usize].held();
                *skipped += u64::from(held);
                held
            };
            let Some(id) = policy.evict(&mut held) else { break };
            self.evicted(context, kind, id);
        }
        while let Some(id) = self.lines[kind as usize].policy.forget() {
            self.forgotten(context, kind, id);
        }
        self.trim_far(context, kind);
    }

    /// Drops the buffers of block `id`, which the policy evicted.
    fn evicted<K: Copy + Eq + Hash>(
        &mut self,
        context: &CoreContext<'_, K>,
        kind: CacheKind,
        id: Id,
    ) {
        let at = self.lines[kind as usize].at[id as usize];
        let mut stripe = context.stripe(at.stripe).lock();
        self.drain(&mut stripe);
        let slot = &stripe.slots[at.slot as usize];
        let bytes = slot.charged() as u64;
        let again = self.lines[kind as usize].policy.state(id) == PolicyState::MfuGhost;
        self.offer(context.tier, slot, again, false);
        self.uncharge(slot);
        self.counts.evicted += bytes;
        self.take_front(kind, id);
        stripe.empty(at.slot);
        if self.lines[kind as usize].policy.state(id) == PolicyState::Unknown {
            self.move_to_far(context, &mut stripe, kind, id, bytes as u32);
        }
    }

    /// Offers a block that leaves to the second tier.
    fn offer<K>(
        &mut self,
        tier: &dyn SecondTier<K>,
        slot: &CacheSlot<K>,
        again: bool,
        prefetched: bool,
    ) {
        let stored = if slot.stored.is_empty() { &slot.whole } else { &slot.stored };
        let again = again || slot.returned;
        let offered = tier.offer(&LeavingBlock {
            key: &slot.key,
            kind: slot.kind,
            usage: slot.usage(),
            stored,
            lsize: slot.lsize,
            tag: slot.tag,
            again,
            returned: slot.returned,
            prefetched,
        });
        let to = &mut self.counts.evicted_to;
        let sum = match offered {
            Offered::Cached => &mut to.cached,
            Offered::Eligible => &mut to.eligible[usize::from(again)],
            Offered::Ineligible => &mut to.ineligible,
        };
        *sum += u64::from(slot.lsize);
    }

    /// Handles a block `id` that the policy forgot; unread prefetched ones stay without
    /// it.
    fn forgotten<K: Copy + Eq + Hash>(
        &mut self,
        context: &CoreContext<'_, K>,
        kind: CacheKind,
        id: Id,
    ) {
        let at = self.lines[kind as usize].at[id as usize];
        if !matches!(at.queue, QueueMembership::Fresh | QueueMembership::Passed) {
            let mut stripe = context.stripe(at.stripe).lock();
            let bytes = at.size;
            self.move_to_far(context, &mut stripe, kind, id, bytes);
        }
    }

    /// Removes a block that no policy knows; if it belongs to the sample, it becomes a
    /// far ghost.
    fn move_to_far<K: Copy + Eq + Hash>(
        &mut self,
        context: &CoreContext<'_, K>,
        stripe: &mut CacheStripe<K>,
        kind: CacheKind,
        id: Id,
        bytes: u32,
    ) {
        let line = &mut self.lines[kind as usize];
        let slot = line.at[id as usize].slot;
        let sampled = context.hasher.hash_one(stripe.slots[slot as usize].key) >> 16 & 7 == 0;
        if sampled && bytes > 0 {
            let ticket = line.far.push(kind, id);
            let at = &mut line.at[id as usize];
            (at.queue, at.ticket, at.bytes) = (QueueMembership::Far, ticket, bytes);
            line.far.bytes += u64::from(bytes);
            line.far.live += 1;
        } else {
            line.free.push(id);
            stripe.delete(context.hasher, slot);
        }
    }

    /// Drops the oldest far ghosts beyond the reach.
    fn trim_far<K: Copy + Eq + Hash>(&mut self, context: &CoreContext<'_, K>, kind: CacheKind) {
        let line = &mut self.lines[kind as usize];
        let known = line.policy.resident()
            + line.policy.bytes(PolicyState::MruGhost)
            + line.policy.bytes(PolicyState::MfuGhost);
        let most = (self.c << FAR_REACH_SHIFT).saturating_sub(known);
        while line.far_bytes() > most {
            let Some((_, id, ticket)) = line.far.entries.pop_front() else { break };
            if line.at[id as usize].ticket_in(QueueMembership::Far) == ticket {
                line.take_far(id);
                line.free.push(id);
                let at = line.at[id as usize];
                context.stripe(at.stripe).lock().delete(context.hasher, at.slot);
            }
        }
        let KindBlocks { far, at, .. } = line;
        far.tidy(|_, id, t| at[id as usize].ticket_in(QueueMembership::Far) == t);
    }

    /// Drops the oldest unread prefetches beyond `keep` bytes. They were not used, so
    /// later ones get less space. Blocks that a layer above keeps are remembered as
    /// ghosts.
    fn drop_unread<K: Copy + Eq + Hash>(&mut self, context: &CoreContext<'_, K>, keep: u64) {
        while self.fresh.bytes > keep {
            let Some((kind, id, ticket)) = self.fresh.entries.pop_front() else { break };
            let at = self.lines[kind as usize].at[id as usize];
            if at.waiting() != ticket {
                continue;
            }
            let mut stripe = context.stripe(at.stripe).lock();
            self.drain(&mut stripe);
            if self.lines[kind as usize].at[id as usize].waiting() != ticket {
                continue;
            }
            let slot = &stripe.slots[at.slot as usize];
            let bytes = slot.charged() as u64;
            self.offer(context.tier, slot, false, at.queue == QueueMembership::Fresh);
            self.uncharge(slot);
            self.counts.evicted += bytes;
            self.take_fresh(kind, id);
            stripe.empty(at.slot);
            if at.queue == QueueMembership::Passed {
                self.lines[kind as usize].policy.remember(id, at.size);
                continue;
            }
            let least = self.c >> FRESH_MIN_SHIFT;
            self.fresh_share = self.fresh_share.saturating_sub(bytes / 2).max(least);
            if self.lines[kind as usize].policy.state(id) == PolicyState::Unknown {
                self.move_to_far(context, &mut stripe, kind, id, 0);
            }
        }
        let lines = &self.lines;
        self.fresh.tidy(|k, id, t| lines[k as usize].at[id as usize].waiting() == t);
    }

    /// Drops decompressed forms, first those not used since the last scan.
    fn drop_fronts<K: Copy + Eq + Hash>(&mut self, context: &CoreContext<'_, K>, keep: u64) {
        // At most two rounds: the first one may only clear marks.
        let mut rounds = 2 * self.front.entries.len() + 1;
        while self.front.bytes > keep && rounds > 0 {
            rounds -= 1;
            let Some((kind, id, ticket)) = self.front.entries.pop_front() else { break };
            let at = &mut self.lines[kind as usize].at[id as usize];
            if at.ticket_in(QueueMembership::Front) != ticket {
                continue;
            }
            if std::mem::take(&mut at.used) {
                self.front.entries.push_back((kind, id, ticket));
                continue;
            }
            let (stripe, slot, bytes) = (at.stripe, at.slot, u64::from(at.bytes));
            self.front_dropped += bytes;
            at.dropped = ((self.front_dropped >> PAGE_SHIFT) as u32).max(1);
            self.take_front(kind, id);
            context.stripe(stripe).lock().slots[slot as usize].whole = Buf::default();
        }
        let lines = &self.lines;
        self.front.tidy(|k, id, t| {
            lines[k as usize].at[id as usize].ticket_in(QueueMembership::Front) == t
        });
    }

    /// Lets ghost hits move the division, and adapts the fronts' share to the time that
    /// a larger one would have saved.
    fn settle<K>(&mut self, context: &CoreContext<'_, K>) {
        if self.turned < self.c >> SETTLE_SHIFT {
            return;
        }
        self.turned = 0;
        let pushes = |l: &mut KindBlocks| Pushes {
            hits: std::mem::take(&mut l.ghost_hits),
            ghosts: l.policy.bytes(PolicyState::MruGhost)
                + l.policy.bytes(PolicyState::MfuGhost)
                + l.far_bytes(),
        };
        let [data, metadata] = &mut self.lines;
        let (data, metadata) = (pushes(data), pushes(metadata));
        context.settle(data, metadata);
        let (near, ghosts) = (self.front_near, self.ghosts_seen);
        (self.front_near, self.ghosts_seen) = (0, 0);
        // Time saved for each byte, by a larger share for fronts and by a larger share
        // for the rest. Ghosts of a scan are never read again, so the number of ghosts
        // alone says nothing about the usefulness of the others.
        let near_bytes = self.c >> FRONT_NEAR_SHIFT;
        let reach = (data.ghosts + metadata.ghosts).clamp(near_bytes, 2 * near_bytes);
        let front = u128::from(near) * u128::from(context.expand_ns) * u128::from(reach);
        let rest = u128::from(ghosts)
            * u128::from(context.fill_ns)
            * u128::from(self.c >> FRONT_NEAR_SHIFT);
        let step = self.c >> FRONT_STEP_SHIFT;
        if front > 2 * rest {
            self.front_target += step;
        } else if rest > 2 * front {
            self.front_target = self.front_target.saturating_sub(step);
        }
        let least = self.c >> FRONT_MIN_SHIFT;
        self.front_target = self.front_target.clamp(least, self.c - (self.c >> 3));
    }
}

/// What a core needs from the cache.
pub(super) struct CoreContext<'a, K> {
    /// The partition's stripes.
    pub(super) stripes: &'a [Mutex<CacheStripe<K>>],
    pub(super) hasher: &'a Hasher,
    pub(super) division: &'a Mutex<Division>,
    /// Metadata's share in the division, in units of 2^-32.
    pub(super) meta: &'a AtomicU64,
    pub(super) tier: &'a dyn SecondTier<K>,
    pub(super) balance: u32,
    /// Average duration of reading a block and of decompressing it.
    pub(super) fill_ns: u64,
    pub(super) expand_ns: u64,
}

impl<K> CoreContext<'_, K> {
    fn stripe(&self, i: u16) -> &Mutex<CacheStripe<K>> {
        &self.stripes[i as usize]
    }

    /// Metadata's share of `bytes`.
    fn meta_of(&self, bytes: u64) -> u64 {
        ((u128::from(bytes) * u128::from(self.meta.load(Relaxed))) >> 32) as u64
    }

    fn settle(&self, data: Pushes, metadata: Pushes) {
        let mut division = self.division.lock();
        division.settle(data, metadata, self.balance);
        self.meta.store(division.meta(), Relaxed);
    }
}
