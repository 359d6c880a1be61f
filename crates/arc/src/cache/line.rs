//! The blocks of one kind in a partition: the policy, the position of each block, and
//! queues.

use std::collections::VecDeque;

use crate::PolicyKind;
use crate::policy::{CacheKind, Id, Policy};

/// Each time, 1/16384 of the space that others needed is returned to a policy.
const LATELY_SHIFT: u32 = 14;
/// One in eight of the blocks that a policy forgot is remembered for the division. A
/// kind with little of the cache would otherwise forget its loops before they repeat.
pub(super) const FAR_SHIFT: u32 = 3;

/// The queue that contains a block, apart from the policies' lists.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum QueueMembership {
    #[default]
    None,
    /// Prefetched and not read.
    Fresh,
    /// In the same queue: a layer above keeps the block. It stays here a little longer,
    /// so that a prefetcher that is behind its reader does not read it again.
    Passed,
    /// Decompressed beside its stored form.
    Front,
    /// Forgotten by its policy (a far ghost).
    Far,
}

/// The position of a block's slot, and its queue membership.
#[derive(Clone, Copy, Default)]
pub(super) struct BlockPosition {
    pub(super) slot: u32,
    pub(super) stripe: u16,
    pub(super) queue: QueueMembership,
    /// The front was used since the last scan.
    pub(super) used: bool,
    /// The block's ticket and bytes in that queue.
    pub(super) ticket: u32,
    pub(super) bytes: u32,
    /// Pages of fronts dropped before this block's front was dropped; 0 if it never
    /// was.
    pub(super) dropped: u32,
    /// Bytes that the policy charged last.
    pub(super) size: u32,
}

impl BlockPosition {
    pub(super) fn ticket_in(&self, queue: QueueMembership) -> u32 {
        if self.queue == queue { self.ticket } else { 0 }
    }

    /// The block's ticket among unread prefetches and blocks kept above.
    pub(super) fn waiting(&self) -> u32 {
        if matches!(self.queue, QueueMembership::Fresh | QueueMembership::Passed) {
            self.ticket
        } else {
            0
        }
    }

    pub(super) fn leave(&mut self) {
        (self.queue, self.ticket, self.bytes) = (QueueMembership::None, 0, 0);
    }
}

/// A maximum that rises at once and decays slowly. A policy whose target moves up and
/// down with every block of other kinds would lose what it had learned.
#[derive(Clone, Copy, Default)]
pub(super) struct DecayingMax(pub(super) u64);

impl DecayingMax {
    pub(super) fn follow(&mut self, now: u64) -> u64 {
        self.0 -= self.0.saturating_sub(now) >> LATELY_SHIFT;
        self.0 = self.0.max(now);
        self.0
    }
}

/// The blocks of one kind.
pub(super) struct KindBlocks {
    pub(super) policy: Box<dyn Policy>,
    pub(super) at: Vec<BlockPosition>,
    pub(super) free: Vec<Id>,
    /// Resident bytes.
    pub(super) recent_max: DecayingMax,
    /// Far ghosts: a sample of the forgotten blocks.
    pub(super) far: TicketQueue,
    /// Bytes of ghost hits since the division was settled.
    pub(super) ghost_hits: u64,
}

impl KindBlocks {
    pub(super) fn new(kind: PolicyKind, target: u64) -> KindBlocks {
        let policy = crate::policy::make(kind, target);
        KindBlocks {
            policy,
            at: Vec::new(),
            free: Vec::new(),
            recent_max: DecayingMax::default(),
            far: TicketQueue::default(),
            ghost_hits: 0,
        }
    }

    pub(super) fn alloc(&mut self, stripe: u32, slot: u32) -> Id {
        let at = BlockPosition { stripe: stripe as u16, slot, ..BlockPosition::default() };
        if let Some(id) = self.free.pop() {
            self.at[id as usize] = at;
            return id;
        }
        self.at.push(at);
        (self.at.len() - 1) as Id
    }
}

impl KindBlocks {
    /// Bytes of blocks that the sampled far ghosts represent.
    pub(super) fn far_bytes(&self) -> u64 {
        self.far.bytes << FAR_SHIFT
    }

    pub(super) fn take_far(&mut self, id: Id) -> bool {
        let at = &mut self.at[id as usize];
        if at.queue != QueueMembership::Far {
            return false;
        }
        self.far.bytes -= u64::from(at.bytes);
        self.far.live -= 1;
        at.leave();
        true
    }

    /// Handles a hit on a far ghost; for the division it counts as a ghost hit.
    pub(super) fn return_from_far(&mut self, id: Id) -> bool {
        let bytes = u64::from(self.at[id as usize].bytes);
        let was = self.take_far(id);
        if was {
            self.ghost_hits += bytes << FAR_SHIFT;
        }
        was
    }
}

/// A queue in which entries become stale instead of being removed from the middle.
#[derive(Default)]
pub(super) struct TicketQueue {
    pub(super) entries: VecDeque<(CacheKind, Id, u32)>,
    pub(super) tickets: u32,
    pub(super) bytes: u64,
    pub(super) live: usize,
}

impl TicketQueue {
    pub(super) fn push(&mut self, kind: CacheKind, id: Id) -> u32 {
        self.tickets = self.tickets.wrapping_add(1).max(1);
        self.entries.push_back((kind, id, self.tickets));
        self.tickets
    }

    pub(super) fn tidy(&mut self, alive: impl Fn(CacheKind, Id, u32) -> bool) {
        if self.entries.len() > 2 * self.live + 64 {
            self.entries.retain(|e| alive(e.0, e.1, e.2));
        }
    }
}
