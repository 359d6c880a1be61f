//! One kind's blocks in a partition: the policy, where each block is, and queues.

use std::collections::VecDeque;

use crate::PolicyKind;
use crate::policy::{Id, Kind, Policy};

/// Room that others needed is given back to a policy by 1/16384 at a time.
const LATELY_SHIFT: u32 = 14;
/// Of the blocks that a policy forgot, one in eight is remembered for the division: a
/// kind that has little of the cache would forget its loops before they come round.
pub(super) const FAR_SHIFT: u32 = 3;

/// The queue that a block is in, apart from the policies' lists.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum In {
    #[default]
    None,
    /// Prefetched and not read.
    Fresh,
    /// In the same queue: given to somebody who keeps it, here for a moment longer, so
    /// that a prefetcher that lags behind its reader does not read it again.
    Passed,
    /// Decompressed beside its stored form.
    Front,
    /// Forgotten by its policy.
    Far,
}

/// Where a block's slot is, and what else it is part of.
#[derive(Clone, Copy, Default)]
pub(super) struct At {
    pub(super) slot: u32,
    pub(super) stripe: u16,
    pub(super) queue: In,
    /// The front was used since it was looked at last.
    pub(super) used: bool,
    /// Its ticket and its bytes in that queue.
    pub(super) ticket: u32,
    pub(super) bytes: u32,
    /// Pages of fronts dropped before this one's was; 0 if it never was.
    pub(super) dropped: u32,
    /// Bytes that the policy charged for it last.
    pub(super) size: u32,
}

impl At {
    pub(super) fn ticket_in(&self, queue: In) -> u32 {
        if self.queue == queue { self.ticket } else { 0 }
    }

    /// Its ticket among unread prefetches and blocks passed on.
    pub(super) fn waiting(&self) -> u32 {
        if matches!(self.queue, In::Fresh | In::Passed) { self.ticket } else { 0 }
    }

    pub(super) fn leave(&mut self) {
        (self.queue, self.ticket, self.bytes) = (In::None, 0, 0);
    }
}

/// The most that something took lately: up at once, down slowly. A policy whose target
/// moves up and down with every block of others loses what it had learned.
#[derive(Clone, Copy, Default)]
pub(super) struct Lately(pub(super) u64);

impl Lately {
    pub(super) fn follow(&mut self, now: u64) -> u64 {
        self.0 -= self.0.saturating_sub(now) >> LATELY_SHIFT;
        self.0 = self.0.max(now);
        self.0
    }
}

/// One kind's blocks.
pub(super) struct Line {
    pub(super) policy: Box<dyn Policy>,
    pub(super) at: Vec<At>,
    pub(super) free: Vec<Id>,
    /// Bytes resident.
    pub(super) lately: Lately,
    /// Forgotten blocks, a sample.
    pub(super) far: Queue,
    /// Ghost hits since the division was settled: bytes.
    pub(super) ghost_hits: u64,
}

impl Line {
    pub(super) fn new(kind: PolicyKind, target: u64) -> Line {
        let policy = crate::policy::make(kind, target);
        Line {
            policy,
            at: Vec::new(),
            free: Vec::new(),
            lately: Lately::default(),
            far: Queue::default(),
            ghost_hits: 0,
        }
    }

    pub(super) fn alloc(&mut self, stripe: u32, slot: u32) -> Id {
        let at = At { stripe: stripe as u16, slot, ..At::default() };
        if let Some(id) = self.free.pop() {
            self.at[id as usize] = at;
            return id;
        }
        self.at.push(at);
        (self.at.len() - 1) as Id
    }
}

impl Line {
    /// Bytes that the queue of the forgotten stands for.
    pub(super) fn far_bytes(&self) -> u64 {
        self.far.bytes << FAR_SHIFT
    }

    pub(super) fn take_far(&mut self, id: Id) -> bool {
        let at = &mut self.at[id as usize];
        if at.queue != In::Far {
            return false;
        }
        self.far.bytes -= u64::from(at.bytes);
        self.far.live -= 1;
        at.leave();
        true
    }

    /// A block that was long forgotten is back: for the division, a ghost hit.
    pub(super) fn return_from_far(&mut self, id: Id) -> bool {
        let bytes = u64::from(self.at[id as usize].bytes);
        let was = self.take_far(id);
        if was {
            self.ghost_hits += bytes << FAR_SHIFT;
        }
        was
    }
}

/// A queue whose entries go stale instead of being taken out of the middle.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) entries: VecDeque<(Kind, Id, u32)>,
    pub(super) tickets: u32,
    pub(super) bytes: u64,
    pub(super) live: usize,
}

impl Queue {
    pub(super) fn push(&mut self, kind: Kind, id: Id) -> u32 {
        self.tickets = self.tickets.wrapping_add(1).max(1);
        self.entries.push_back((kind, id, self.tickets));
        self.tickets
    }

    pub(super) fn tidy(&mut self, alive: impl Fn(Kind, Id, u32) -> bool) {
        if self.entries.len() > 2 * self.live + 64 {
            self.entries.retain(|e| alive(e.0, e.1, e.2));
        }
    }
}
