//! LIRS (Jiang and Zhang, SIGMETRICS 2002), for blocks of varying size.
//!
//! # Theory
//! A block's inter-reference recency is how much else was used between its last
//! two uses. Blocks with the lowest (LIR) keep most of the cache; the others (HIR)
//! pass through a short queue. The stack holds LIR blocks and whatever was used
//! since the oldest of them, resident or not: a HIR block that is used again while
//! on the stack has a lower recency than that oldest LIR block, and they change
//! places. On a loop larger than the cache, where recency alone never hits, the
//! LIR blocks stay.
//!
//! # Departures from the paper
//! * Shares are bytes. A newcomer larger than the HIR share makes LIR blocks step
//!   down instead of leaving again at once.
//! * Blocks on the stack that are not resident are bounded to one and
//!   a quarter times the target; the one that left longest ago is forgotten first.
//!
//! # Invariants
//! The oldest block on the stack is LIR; LIR blocks are on the stack; HIR-resident
//! blocks are on the queue; others only on the stack and in the list of those that
//! left.

use super::Id;
use super::slab::{List, NIL, Slab};

/// The family of links of the stack.
pub(super) const STACK: usize = 1;
/// The family of links of the queue and of the list of those that left.
pub(super) const QUEUE: usize = 2;

/// One part of the target that HIR blocks have.
const HIR_SHARE: u64 = 100;
/// Bytes remembered without being resident: the target and this part of it. More
/// serves loops little, and each costs memory that could hold blocks.
const REMEMBERED_PART: u64 = 4;

// Tag of the stack's family: what the block is, and whether the stack has it.
const LIR: u8 = 1;
const HIR: u8 = 2;
const GONE: u8 = 3;
const ON_STACK: u8 = 4;
/// Among the newest blocks of the stack that together fill the target: LRU has it.
const RECENT: u8 = 8;
const WHAT: u8 = 3;

pub(super) struct Directory {
    stack: List,
    queue: List,
    gone: List,
    lir: u64,
    c: u64,
    /// Bytes of the `RECENT` blocks, and the oldest of them.
    recent: u64,
    mark: Id,
}

impl Directory {
    pub(super) const fn new(c: u64) -> Self {
        let (stack, queue, gone) = (List::EMPTY, List::EMPTY, List::EMPTY);
        Directory { stack, queue, gone, lir: 0, c, recent: 0, mark: NIL }
    }

    pub(super) fn set_target(&mut self, c: u64) {
        self.c = c;
    }

    pub(super) fn is_resident<const F: usize>(slab: &Slab<F>, id: Id) -> bool {
        matches!(slab.tag(STACK, id) & WHAT, LIR | HIR)
    }

    pub(super) fn is_known<const F: usize>(slab: &Slab<F>, id: Id) -> bool {
        slab.tag(STACK, id) != 0
    }

    /// Whether LRU would hold it.
    pub(super) fn is_recent<const F: usize>(slab: &Slab<F>, id: Id) -> bool {
        slab.tag(STACK, id) & RECENT != 0
    }

    /// While the `RECENT` blocks exceed the target, the next one to lose that mark.
    pub(super) fn age<const F: usize>(&mut self, slab: &mut Slab<F>) -> Option<Id> {
        if self.recent <= self.c || self.mark == NIL {
            return None;
        }
        let id = self.mark;
        self.unmark(slab, id);
        Some(id)
    }

    fn unmark<const F: usize>(&mut self, slab: &mut Slab<F>, id: Id) {
        let tag = slab.tag(STACK, id);
        if tag & RECENT != 0 {
            slab.set_tag(STACK, id, tag & !RECENT);
            self.recent -= u64::from(slab.size(id));
            if self.mark == id {
                self.mark = slab.newer(STACK, id);
            }
        }
    }

    /// The block becomes the stack's newest, as `what`.
    fn to_top<const F: usize>(&mut self, slab: &mut Slab<F>, id: Id, what: u8) {
        let tag = slab.tag(STACK, id);
        if tag & RECENT == 0 {
            self.recent += u64::from(slab.size(id));
        } else if self.mark == id && self.stack.head != id {
            self.mark = slab.newer(STACK, id);
        }
        if tag & ON_STACK == 0 {
            slab.push_head(STACK, &mut self.stack, id);
        } else {
            slab.renew(STACK, &mut self.stack, id);
        }
        if self.mark == NIL {
            self.mark = id;
        }
        slab.set_tag(STACK, id, what | ON_STACK | RECENT);
    }

    /// The block leaves the stack and is `what` from now on.
    fn off_stack<const F: usize>(&mut self, slab: &mut Slab<F>, id: Id, what: u8) {
        self.unmark(slab, id);
        slab.unlink(STACK, &mut self.stack, id);
        slab.set_tag(STACK, id, what);
    }

    /// Bytes that HIR blocks should have.
    pub(super) fn hir_target(&self) -> u64 {
        (self.c / HIR_SHARE).max(1)
    }

    /// A block that is resident here was used. Calls `out` for blocks that are not
    /// remembered any more.
    pub(super) fn hit<const F: usize>(&mut self, slab: &mut Slab<F>, id: Id) {
        let tag = slab.tag(STACK, id);
        if tag & WHAT == LIR {
            let oldest = self.stack.tail == id;
            self.to_top(slab, id, LIR);
            if oldest {
                self.prune(slab);
            }
        } else if tag & ON_STACK != 0 {
            self.to_top(slab, id, HIR);
            slab.unlink(QUEUE, &mut self.queue, id);
            self.promote(slab, id);
        } else {
            self.to_top(slab, id, HIR);
            slab.renew(QUEUE, &mut self.queue, id);
        }
    }

    /// A block that is not resident here enters; its size is set.
    pub(super) fn admit<const F: usize>(&mut self, slab: &mut Slab<F>, id: Id) {
        let tag = slab.tag(STACK, id);
        if tag & WHAT == GONE {
            slab.unlink(QUEUE, &mut self.gone, id);
        }
        if tag & ON_STACK != 0 {
            self.to_top(slab, id, HIR);
            self.promote(slab, id);
            return;
        }
        self.to_top(slab, id, HIR);
        let size = u64::from(slab.size(id));
        let room = self.lir + size <= self.c - self.hir_target().min(self.c);
        if room {
            self.to_top(slab, id, LIR);
            self.lir += size;
        } else {
            slab.push_head(QUEUE, &mut self.queue, id);
        }
    }

    /// The block, newest on the stack and in no other list, becomes LIR; the oldest
    /// LIR blocks make way.
    fn promote<const F: usize>(&mut self, slab: &mut Slab<F>, id: Id) {
        self.to_top(slab, id, LIR);
        self.lir += u64::from(slab.size(id));
        while self.lir > self.c - self.hir_target().min(self.c) && self.stack.tail != id {
            self.demote(slab);
        }
        self.prune(slab);
    }

    /// The oldest LIR block becomes the newest of the queue.
    fn demote<const F: usize>(&mut self, slab: &mut Slab<F>) {
        self.prune(slab);
        let id = self.stack.tail;
        if id == NIL {
            return;
        }
        self.off_stack(slab, id, HIR);
        self.lir -= u64::from(slab.size(id));
        slab.push_head(QUEUE, &mut self.queue, id);
        self.prune(slab);
    }

    /// HIR blocks older than the oldest LIR block leave the stack. Those that are not
    /// resident stay known, as the oldest of those that left, until forgotten.
    fn prune<const F: usize>(&mut self, slab: &mut Slab<F>) {
        loop {
            let id = self.stack.tail;
            if id == NIL {
                return;
            }
            match slab.tag(STACK, id) & WHAT {
                LIR => return,
                HIR => self.off_stack(slab, id, HIR),
                _ => {
                    self.off_stack(slab, id, GONE);
                    slab.unlink(QUEUE, &mut self.gone, id);
                    slab.push_tail(QUEUE, &mut self.gone, id);
                }
            }
        }
    }

    /// While more than the target is resident, the next block to leave; `keep` is not
    /// it unless it is alone.
    pub(super) fn evict<const F: usize>(&mut self, slab: &mut Slab<F>, keep: Id) -> Option<Id> {
        if self.lir + self.queue.bytes <= self.c {
            return None;
        }
        let mut id = self.queue.tail;
        if id == NIL || (id == keep && self.lir > 0) {
            self.demote(slab);
            id = self.queue.tail;
            if id == keep && self.queue.head != keep {
                id = self.queue.head;
            }
        }
        if id == NIL {
            return None;
        }
        slab.unlink(QUEUE, &mut self.queue, id);
        let tag = slab.tag(STACK, id);
        let on_stack = tag & ON_STACK;
        slab.set_tag(STACK, id, if on_stack == 0 { 0 } else { tag & !WHAT | GONE });
        if on_stack != 0 {
            slab.push_head(QUEUE, &mut self.gone, id);
        }
        Some(id)
    }

    /// The next block to forget.
    pub(super) fn forget<const F: usize>(&mut self, slab: &mut Slab<F>) -> Option<Id> {
        let id = self.gone.tail;
        let off_stack = id != NIL && slab.tag(STACK, id) & ON_STACK == 0;
        if !off_stack && self.gone.bytes <= self.c.saturating_add(self.c / REMEMBERED_PART) {
            return None;
        }
        self.remove(slab, id);
        Some(id)
    }

    /// Enters as one that left, or becomes the newest of these.
    pub(super) fn remember<const F: usize>(&mut self, slab: &mut Slab<F>, id: Id) {
        self.remove(slab, id);
        self.to_top(slab, id, GONE);
        slab.push_head(QUEUE, &mut self.gone, id);
        self.prune(slab);
    }

    pub(super) fn resize<const F: usize>(&mut self, slab: &Slab<F>, id: Id, size: u32) {
        let tag = slab.tag(STACK, id);
        let change = |bytes: &mut u64| {
            *bytes = *bytes - u64::from(slab.size(id)) + u64::from(size);
        };
        if tag & ON_STACK != 0 {
            change(&mut self.stack.bytes);
        }
        if tag & RECENT != 0 {
            change(&mut self.recent);
        }
        match tag & WHAT {
            LIR => change(&mut self.lir),
            HIR => change(&mut self.queue.bytes),
            GONE => change(&mut self.gone.bytes),
            _ => {}
        }
    }

    pub(super) fn remove<const F: usize>(&mut self, slab: &mut Slab<F>, id: Id) {
        let tag = slab.tag(STACK, id);
        if tag & ON_STACK != 0 {
            self.off_stack(slab, id, tag & WHAT);
        }
        match tag & WHAT {
            LIR => self.lir -= u64::from(slab.size(id)),
            HIR => slab.unlink(QUEUE, &mut self.queue, id),
            GONE => slab.unlink(QUEUE, &mut self.gone, id),
            _ => {}
        }
        if tag != 0 {
            slab.set_tag(STACK, id, 0);
            self.prune(slab);
        }
    }
}
