//! LIRS (Jiang and Zhang, SIGMETRICS 2002), for blocks of varying size.
//!
//! # Theory
//! A block's inter-reference recency is the amount of other data used between its last
//! two uses. Blocks with the lowest recency (LIR) keep most of the cache; the others
//! (HIR) pass through a short queue. The stack holds LIR blocks and all blocks used
//! since the oldest of them, resident or not. A HIR block that is used again while it
//! is on the stack has a lower recency than that oldest LIR block, and the two exchange
//! their roles. On a loop larger than the cache, where recency alone never hits, the
//! LIR blocks stay.
//!
//! # Departures from the paper
//! * Shares are bytes. A newcomer larger than the HIR share demotes LIR blocks instead
//!   of being evicted again at once.
//! * Blocks on the stack that are not resident are bounded to one and a quarter times
//!   the target; the one that was evicted longest ago is forgotten first.
//!
//! # Invariants
//! The oldest block on the stack is LIR. LIR blocks are on the stack, and resident HIR
//! blocks are on the queue. Other blocks are only on the stack and in the list of
//! evicted ones.

use super::Id;
use super::slab::{BlockList, NIL, NodeSlab};

/// The family of links of the stack.
pub(super) const STACK: usize = 1;
/// The family of links of the queue and of the list of evicted blocks.
pub(super) const QUEUE: usize = 2;

/// HIR blocks have 1/100 of the target.
const HIR_SHARE: u64 = 100;
/// Bytes remembered without being resident: the target plus 1/4 of it. More would help
/// loops little, and each entry costs memory that could hold blocks.
const REMEMBERED_PART: u64 = 4;

// Tag in the stack's family: the block's role, and whether it is on the stack.
const LIR: u8 = 1;
const HIR: u8 = 2;
const GONE: u8 = 3;
const ON_STACK: u8 = 4;
/// Among the newest blocks of the stack that together fill the target: LRU would hold
/// it.
const RECENT: u8 = 8;
const WHAT: u8 = 3;

pub(super) struct LirsDirectory {
    stack: BlockList,
    queue: BlockList,
    gone: BlockList,
    lir: u64,
    c: u64,
    /// Bytes of the `RECENT` blocks, and the oldest of them.
    recent: u64,
    mark: Id,
}

impl LirsDirectory {
    pub(super) const fn new(c: u64) -> Self {
        let (stack, queue, gone) = (BlockList::EMPTY, BlockList::EMPTY, BlockList::EMPTY);
        LirsDirectory { stack, queue, gone, lir: 0, c, recent: 0, mark: NIL }
    }

    pub(super) fn set_target(&mut self, c: u64) {
        self.c = c;
    }

    pub(super) fn is_resident<const F: usize>(slab: &NodeSlab<F>, id: Id) -> bool {
        matches!(slab.tag(STACK, id) & WHAT, LIR | HIR)
    }

    pub(super) fn is_known<const F: usize>(slab: &NodeSlab<F>, id: Id) -> bool {
        slab.tag(STACK, id) != 0
    }

    /// Whether LRU would hold it.
    pub(super) fn is_recent<const F: usize>(slab: &NodeSlab<F>, id: Id) -> bool {
        slab.tag(STACK, id) & RECENT != 0
    }

    /// While the `RECENT` blocks exceed the target, the next one to lose that mark.
    pub(super) fn age<const F: usize>(&mut self, slab: &mut NodeSlab<F>) -> Option<Id> {
        if self.recent <= self.c || self.mark == NIL {
            return None;
        }
        let id = self.mark;
        self.unmark(slab, id);
        Some(id)
    }

    fn unmark<const F: usize>(&mut self, slab: &mut NodeSlab<F>, id: Id) {
        let tag = slab.tag(STACK, id);
        if tag & RECENT != 0 {
            slab.set_tag(STACK, id, tag & !RECENT);
            self.recent -= u64::from(slab.size(id));
            if self.mark == id {
                self.mark = slab.newer(STACK, id);
            }
        }
    }

    /// Makes the block the stack's newest, with role `what`.
    fn top<const F: usize>(&mut self, slab: &mut NodeSlab<F>, id: Id, what: u8) {
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

    /// Removes the block from the stack and gives it role `what`.
    fn off_stack<const F: usize>(&mut self, slab: &mut NodeSlab<F>, id: Id, what: u8) {
        self.unmark(slab, id);
        slab.unlink(STACK, &mut self.stack, id);
        slab.set_tag(STACK, id, what);
    }

    /// Target bytes of HIR blocks.
    pub(super) fn hir_target(&self) -> u64 {
        (self.c / HIR_SHARE).max(1)
    }

    /// Handles a use of a block that is resident here. Calls `out` for blocks that are
    /// no longer remembered.
    pub(super) fn hit<const F: usize>(&mut self, slab: &mut NodeSlab<F>, id: Id) {
        let tag = slab.tag(STACK, id);
        if tag & WHAT == LIR {
            let oldest = self.stack.tail == id;
            self.top(slab, id, LIR);
            if oldest {
                self.prune(slab);
            }
        } else if tag & ON_STACK != 0 {
            self.top(slab, id, HIR);
            slab.unlink(QUEUE, &mut self.queue, id);
            self.promote(slab, id);
        } else {
            self.top(slab, id, HIR);
            slab.renew(QUEUE, &mut self.queue, id);
        }
    }

    /// Inserts a block that is not resident here; its size is already set.
    pub(super) fn admit<const F: usize>(&mut self, slab: &mut NodeSlab<F>, id: Id) {
        let tag = slab.tag(STACK, id);
        if tag & WHAT == GONE {
            slab.unlink(QUEUE, &mut self.gone, id);
        }
        if tag & ON_STACK != 0 {
            self.top(slab, id, HIR);
            self.promote(slab, id);
            return;
        }
        self.top(slab, id, HIR);
        let size = u64::from(slab.size(id));
        let room = self.lir + size <= self.c - self.hir_target().min(self.c);
        if room {
            self.top(slab, id, LIR);
            self.lir += size;
        } else {
            slab.push_head(QUEUE, &mut self.queue, id);
        }
    }

    /// Makes the block LIR, which is newest on the stack and in no other list; demotes
    /// the oldest LIR blocks as needed.
    fn promote<const F: usize>(&mut self, slab: &mut NodeSlab<F>, id: Id) {
        self.top(slab, id, LIR);
        self.lir += u64::from(slab.size(id));
        while self.lir > self.c - self.hir_target().min(self.c) && self.stack.tail != id {
            self.demote(slab);
        }
        self.prune(slab);
    }

    /// Makes the oldest LIR block the newest of the queue.
    fn demote<const F: usize>(&mut self, slab: &mut NodeSlab<F>) {
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

    /// Removes HIR blocks older than the oldest LIR block from the stack. Non-resident
    /// ones stay known as the oldest of the evicted blocks until they are forgotten.
    fn prune<const F: usize>(&mut self, slab: &mut NodeSlab<F>) {
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

    /// While more than the target is resident, the next block to evict. This is `keep`
    /// only if no other block is left.
    pub(super) fn evict<const F: usize>(&mut self, slab: &mut NodeSlab<F>, keep: Id) -> Option<Id> {
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
    pub(super) fn forget<const F: usize>(&mut self, slab: &mut NodeSlab<F>) -> Option<Id> {
        let id = self.gone.tail;
        let off_stack = id != NIL && slab.tag(STACK, id) & ON_STACK == 0;
        if !off_stack && self.gone.bytes <= self.c.saturating_add(self.c / REMEMBERED_PART) {
            return None;
        }
        self.remove(slab, id);
        Some(id)
    }

    /// Adds the block as evicted, or makes it the newest of the evicted ones.
    pub(super) fn remember<const F: usize>(&mut self, slab: &mut NodeSlab<F>, id: Id) {
        self.remove(slab, id);
        self.top(slab, id, GONE);
        slab.push_head(QUEUE, &mut self.gone, id);
        self.prune(slab);
    }

    pub(super) fn resize<const F: usize>(&mut self, slab: &NodeSlab<F>, id: Id, size: u32) {
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

    pub(super) fn remove<const F: usize>(&mut self, slab: &mut NodeSlab<F>, id: Id) {
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
