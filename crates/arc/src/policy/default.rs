//! The default policy: follows ARC, LIRS or LRU, whichever performs best at the time.
//!
//! # Theory
//! Shadow directories of the cache's own size see every use and determine what each
//! policy would hold: ARC ([`super::reference`]), LIRS ([`super::lirs`]), and LRU,
//! which is the top of LIRS's stack. One of them leads. The cache's victims are the
//! blocks that the leader drops, if they are resident; otherwise resident blocks that
//! the leader does not hold, the least recently used first. So a change of the leader
//! causes no reads: the content converges as blocks are inserted anyway.
//!
//! A shadow becomes the leader when it has had more hits than the leader by a margin
//! ([`Default::required_lead`]), counted without ever going below zero (a CUSUM test). The
//! margin is a few hits while little is known, and a share of the cache later, because
//! a change costs reading the blocks that differ. It doubles whenever the cache had
//! fewer hits since the last change than the former leader would have had, and halves
//! when the change has paid.
//!
//! LIRS leads at first: on a loop larger than the cache every pass counts, and its
//! first content is as good as any. If another shadow takes the lead before there were
//! significant hits, the resident blocks were inserted in the order of arrival alone,
//! and are as likely to be needed again as those that the new leader wants. Such a cold
//! content is kept: newly inserted blocks are evicted first, until the leader is ahead
//! by a whole cache. (On a file read forward and then backward, this saves a pass.)
//!
//! # Invariants
//! * A resident block is on the list of its class (the shadows that held it when it was
//!   last settled), or in transit.
//! * A known block is resident, or held or remembered by a shadow, or on the list of
//!   orphans until `forget` has returned it.

use super::slab::{BlockList, NIL, NodeSlab};
use super::{Id, Policy, PolicyState, lirs, reference};

/// The family of links for really resident blocks and for orphans.
const REAL: usize = 3;

/// The class of blocks that were inserted while a cold content is kept.
const IN_TRANSIT: usize = 8;

/// Blocks in transit have 1/100 of the target.
const TRANSIT_SHARE: u64 = 100;
/// The order of victims while blocks in transit have at most that share.
const ORDER_LATE: [usize; 9] = [1, 2, 3, 4, 0, 5, 6, 7, 8];

// Tag in that family: a class plus one, or one of these.
const TRANSIT: u8 = 9;
const GHOST: u8 = 10;
const ORPHAN: u8 = 11;
const WHERE: u8 = 15;
/// Used again since it became known.
const AGAIN: u8 = 16;

/// Fewer hits than this are not significant.
const COLD_HITS: u64 = 16;
/// Largest margin in hits, before doubling.
const REQUIRED_LEAD_MAX: u32 = 1024;
/// Most doublings of the margin.
const DOUBLED_MAX: u32 = 6;

/// A shadow directory; as a bit of a class it means that the shadow holds the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leader {
    Arc = 1,
    Lirs = 2,
    Lru = 4,
}

impl Leader {
    /// As an index: 0, 1, 2.
    fn index(self) -> usize {
        self as usize >> 1
    }
}

/// The default policy.
pub struct Default {
    slab: NodeSlab<4>,
    arc: reference::ArcDirectory,
    lirs: lirs::LirsDirectory,
    /// Resident blocks, by the set of shadows that hold them (bits of [`Leader`]).
    classes: [BlockList; 9],
    orphans: BlockList,
    /// Bytes by state, `Mru` to `MfuGhost`.
    bytes: [u64; 4],
    c: u64,
    leader: Leader,
    /// The previous leader.
    last: Leader,
    /// How many more hits than the leader each shadow had; never below zero.
    behind: [u32; 3],
    /// Hits since the leader changed: of the shadows, and real ones.
    tenure: [u32; 4],
    /// Uses since the leader changed.
    uses: u32,
    /// Hits since the start.
    hits: u64,
    switches: u64,
    /// Doublings of the margin.
    doubled: u32,
    /// A cold content is being kept.
    cold: bool,
    /// The block that the leader dropped last.
    out: Id,
}

impl Default {
    /// An empty cache of `bytes`.
    pub fn new(bytes: u64) -> Self {
        Default {
            slab: NodeSlab::new(),
            arc: reference::ArcDirectory::new(bytes),
            lirs: lirs::LirsDirectory::new(bytes),
            classes: [BlockList::EMPTY; 9],
            orphans: BlockList::EMPTY,
            bytes: [0; 4],
            c: bytes,
            leader: Leader::Lirs,
            last: Leader::Lirs,
            behind: [0; 3],
            tenure: [0; 4],
            uses: 0,
            hits: 0,
            switches: 0,
            doubled: 0,
            cold: false,
            out: NIL,
        }
    }

    /// Number of leader changes so far.
    pub fn switches(&self) -> u64 {
        self.switches
    }

    fn wanted_by(&self, id: Id) -> u8 {
        let arc = u8::from(reference::ArcDirectory::is_resident(&self.slab, id));
        let lirs = u8::from(lirs::LirsDirectory::is_resident(&self.slab, id));
        let lru = u8::from(lirs::LirsDirectory::is_recent(&self.slab, id));
        arc * Leader::Arc as u8 + lirs * Leader::Lirs as u8 + lru * Leader::Lru as u8
    }

    /// The state of a block with this tag, as an index of `bytes`.
    fn index(tag: u8) -> Option<usize> {
        let again = usize::from(tag & AGAIN != 0);
        match tag & WHERE {
            0 => None,
            GHOST | ORPHAN => Some(2 + again),
            _ => Some(again),
        }
    }

    fn is_resident(tag: u8) -> bool {
        (1..=9).contains(&(tag & WHERE))
    }

    /// Changes the tag and the sums by state. The block must be on no list of this
    /// family, and is put on the list of its tag.
    fn list_by_tag(&mut self, id: Id, tag: u8) {
        let size = u64::from(self.slab.size(id));
        self.slab.set_tag(REAL, id, tag);
        if let Some(at) = Self::index(tag) {
            self.bytes[at] += size;
        }
        match tag & WHERE {
            0 | GHOST => {}
            ORPHAN => self.slab.push_head(REAL, &mut self.orphans, id),
            class => {
                self.slab.push_head(REAL, &mut self.classes[usize::from(class - 1)], id);
            }
        }
    }

    /// Takes the block off its list; returns its tag.
    fn take(&mut self, id: Id) -> u8 {
        let tag = self.slab.tag(REAL, id);
        if let Some(at) = Self::index(tag) {
            self.bytes[at] -= u64::from(self.slab.size(id));
        }
        match tag & WHERE {
            0 | GHOST => {}
            ORPHAN => self.slab.unlink(REAL, &mut self.orphans, id),
            class => self.slab.unlink(REAL, &mut self.classes[usize::from(class - 1)], id),
        }
        if tag != 0 {
            self.slab.set_tag(REAL, id, 0);
        }
        tag
    }

    /// Updates a block that a shadow dropped.
    fn settle(&mut self, id: Id) {
        let tag = self.slab.tag(REAL, id);
        if Self::is_resident(tag) {
            let class = self.wanted_by(id) + 1;
            if tag & WHERE != class && tag & WHERE != TRANSIT {
                self.take(id);
                self.list_by_tag(id, tag & !WHERE | class);
            }
        } else if tag & WHERE == GHOST && !self.is_remembered(id) {
            self.take(id);
            self.list_by_tag(id, tag & !WHERE | ORPHAN);
        }
    }

    fn is_remembered(&self, id: Id) -> bool {
        self.slab.tag(reference::ARC, id) != 0 || lirs::LirsDirectory::is_known(&self.slab, id)
    }

    /// Shrinks both shadows to the target and to the bytes that they may remember.
    fn trim(&mut self, newest: Id) {
        while let Some(id) = self.arc.evict(&mut self.slab, &mut |_| false) {
            self.note_out(Leader::Arc, id);
            self.settle(id);
        }
        while let Some(id) = self.arc.forget(&mut self.slab) {
            self.settle(id);
        }
        while let Some(id) = self.lirs.age(&mut self.slab) {
            self.note_out(Leader::Lru, id);
            self.settle(id);
        }
        while let Some(id) = self.lirs.evict(&mut self.slab, newest) {
            self.note_out(Leader::Lirs, id);
            self.settle(id);
        }
        while let Some(id) = self.lirs.forget(&mut self.slab) {
            self.settle(id);
        }
    }

    fn note_out(&mut self, shadow: Leader, id: Id) {
        if shadow == self.leader {
            self.out = id;
        }
    }

    /// Applies a use to the shadows; `real` if it was a hit.
    fn refer(&mut self, id: Id, real: bool) {
        let held_by = self.wanted_by(id);
        self.judge(held_by, real);
        if held_by & Leader::Arc as u8 != 0 {
            self.arc.hit(&mut self.slab, id);
        } else {
            self.arc.admit(&mut self.slab, id);
        }
        if held_by & Leader::Lirs as u8 != 0 {
            self.lirs.hit(&mut self.slab, id);
        } else {
            self.lirs.admit(&mut self.slab, id);
        }
        self.trim(id);
    }

    /// Counts a use, and changes the leader if that is due.
    fn judge(&mut self, held_by: u8, real: bool) {
        let led = held_by & self.leader as u8 != 0;
        self.tenure[3] = self.tenure[3].saturating_add(u32::from(real));
        self.hits += u64::from(real);
        self.uses = self.uses.saturating_add(1);
        let required_lead = self.required_lead();
        let mut next = None;
        for shadow in [Leader::Lirs, Leader::Arc, Leader::Lru] {
            let hit = held_by & shadow as u8 != 0;
            let tenure = &mut self.tenure[shadow.index()];
            *tenure = tenure.saturating_add(u32::from(hit));
            let behind = &mut self.behind[shadow.index()];
            if hit && !led {
                *behind = behind.saturating_add(1);
                next = if *behind > required_lead { Some(shadow) } else { next };
            } else if led && !hit {
                *behind = behind.saturating_sub(1);
            }
        }
        if let Some(mut next) = next {
            // If ARC and LRU are both about to lead, ARC is preferred once it has any
            // history.
            if next == Leader::Lru
                && self.hits >= COLD_HITS
                && self.leader != Leader::Arc
                && self.behind[Leader::Arc.index()] > required_lead / 2
            {
                next = Leader::Arc;
            }
            self.follow(next);
        }
        if self.cold && led && !real {
            // A cold content is kept for runs of repeated uses, not for a single hit.
            // When the leader is ahead by a whole cache, it need not spare that content
            // any more.
            let hits = self.tenure[self.leader.index()];
            let ahead = hits.saturating_sub(self.tenure[3]);
            self.cold = ahead < self.blocks() && hits >= self.uses / 2;
        }
    }

    fn follow(&mut self, next: Leader) {
        let [lost, best] =
            [self.tenure[self.last.index()], *self.tenure[..3].iter().max().unwrap_or(&0)];
        if lost > self.tenure[3] {
            self.doubled = (self.doubled + 1).min(DOUBLED_MAX);
        } else if best.saturating_sub(self.tenure[3]) <= 2 * self.required_lead() {
            self.doubled = self.doubled.saturating_sub(1);
        }
        self.cold = self.hits < COLD_HITS;
        self.last = std::mem::replace(&mut self.leader, next);
        self.behind = [0; 3];
        self.tenure = [0; 4];
        self.uses = 0;
        self.switches += 1;
    }

    /// The number of hits by which another shadow must be ahead to become the leader.
    fn required_lead(&self) -> u32 {
        let full = (8 + (self.blocks() / 40).min(REQUIRED_LEAD_MAX)) << self.doubled;
        full.min(4 + u32::try_from(self.hits / 16).unwrap_or(u32::MAX - 4))
    }

    /// Number of resident blocks.
    fn blocks(&self) -> u32 {
        self.classes.iter().map(|l| l.blocks).sum()
    }

    /// Removes the block from the cache.
    fn expel(&mut self, id: Id) -> Id {
        let tag = self.take(id);
        if self.is_remembered(id) {
            self.list_by_tag(id, tag & !WHERE | GHOST);
        }
        id
    }

    fn holds(&self, shadow: Leader, id: Id) -> bool {
        self.wanted_by(id) & shadow as u8 != 0
    }
}

impl Policy for Default {
    fn set_target(&mut self, bytes: u64) {
        self.c = bytes;
        self.arc.set_target(bytes);
        self.lirs.set_target(bytes);
        self.trim(NIL);
    }

    fn target(&self) -> u64 {
        self.c
    }

    fn hit(&mut self, id: Id) {
        let tag = self.slab.tag(REAL, id);
        if !Self::is_resident(tag) {
            return;
        }
        self.refer(id, true);
        self.take(id);
        self.list_by_tag(id, (self.wanted_by(id) + 1) | AGAIN);
    }

    fn admit(&mut self, id: Id, size: u32) -> PolicyState {
        self.slab.touch(id);
        let was = self.state(id);
        self.resize(id, size);
        let tag = self.take(id);
        self.refer(id, false);
        let again = if tag == 0 { 0 } else { AGAIN };
        let wanted = self.wanted_by(id);
        let class = if self.cold { TRANSIT } else { wanted + 1 };
        self.list_by_tag(id, class | again);
        was
    }

    fn remember(&mut self, id: Id, size: u32) {
        self.slab.touch(id);
        self.resize(id, size);
        let tag = self.take(id);
        self.arc.remember(&mut self.slab, id);
        self.lirs.remember(&mut self.slab, id);
        let again = if tag == 0 { 0 } else { AGAIN };
        self.list_by_tag(id, GHOST | again);
        self.trim(NIL);
        self.settle(id);
    }

    fn resize(&mut self, id: Id, size: u32) {
        self.arc.resize(&self.slab, id, size);
        self.lirs.resize(&self.slab, id, size);
        let tag = self.slab.tag(REAL, id);
        let old = u64::from(self.slab.size(id));
        let change = |bytes: &mut u64| *bytes = *bytes - old + u64::from(size);
        if let Some(at) = Self::index(tag) {
            change(&mut self.bytes[at]);
        }
        match tag & WHERE {
            0 | GHOST => {}
            ORPHAN => change(&mut self.orphans.bytes),
            class => change(&mut self.classes[usize::from(class - 1)].bytes),
        }
        self.slab.set_size(id, size);
    }

    fn evict(&mut self, held: &mut dyn FnMut(Id) -> bool) -> Option<Id> {
        if self.resident() <= self.c {
            return None;
        }
        let out = std::mem::replace(&mut self.out, NIL);
        if out != NIL
            && Self::is_resident(self.slab.tag(REAL, out))
            && !self.holds(self.leader, out)
            && !held(out)
        {
            return Some(self.expel(out));
        }
        let transit_full = self.classes[IN_TRANSIT].bytes > self.c / TRANSIT_SHARE;
        // After blocks in transit: blocks held by no shadow, by others, by the leader.
        let order: [usize; 9] = match self.leader {
            Leader::Arc => [8, 0, 2, 4, 6, 1, 3, 5, 7],
            Leader::Lirs => [8, 0, 4, 1, 5, 2, 6, 3, 7],
            Leader::Lru => [8, 0, 1, 2, 3, 4, 5, 6, 7],
        };
        let order = if transit_full { order } else { ORDER_LATE.map(|n| order[n]) };
        for class in order {
            if let Some(id) = self.slab.victim(REAL, &mut self.classes[class], held) {
                return Some(self.expel(id));
            }
        }
        None
    }

    fn forget(&mut self) -> Option<Id> {
        let id = self.orphans.tail;
        if id == NIL {
            return None;
        }
        self.take(id);
        Some(id)
    }

    fn remove(&mut self, id: Id) {
        self.take(id);
        self.arc.remove(&mut self.slab, id);
        if lirs::LirsDirectory::is_known(&self.slab, id) {
            self.lirs.remove(&mut self.slab, id);
        }
        self.trim(NIL);
    }

    fn state(&self, id: Id) -> PolicyState {
        match Self::index(self.slab.tag(REAL, id)) {
            None => PolicyState::Unknown,
            Some(n) => {
                [PolicyState::Mru, PolicyState::Mfu, PolicyState::MruGhost, PolicyState::MfuGhost]
                    [n & 3]
            }
        }
    }

    fn bytes(&self, state: PolicyState) -> u64 {
        match state {
            PolicyState::Mru => self.bytes[0],
            PolicyState::Mfu => self.bytes[1],
            PolicyState::MruGhost => self.bytes[2],
            PolicyState::MfuGhost => self.bytes[3],
            PolicyState::Unknown => 0,
        }
    }

    fn mru_target(&self) -> u64 {
        match self.leader {
            Leader::Arc => self.arc.mru_target(),
            Leader::Lirs => self.lirs.hir_target(),
            Leader::Lru => self.c,
        }
    }

    fn overhead(&self) -> u64 {
        self.slab.bytes()
    }
}
