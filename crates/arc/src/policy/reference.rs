//! ARC as published (Megiddo and Modha, FAST 2003), for blocks of varying size.
//!
//! # Theory
//! Resident blocks are on T1 (used once) or T2 (used again). B1 and B2 remember blocks
//! evicted from each. A hit in B1 means that T1 was too small and raises its target
//! `p`; a hit in B2 lowers it. Sizes are bytes: `p` moves by the block's size times the
//! ratio of the ghosts' bytes, at least one.
//!
//! The paper replaces before it inserts; here a block is admitted first, and victims
//! are requested later. To make the same choices as the paper, a search for a victim
//! excludes the newcomer from |T1| and remembers whether it came from B2 (the case |T1|
//! = p). Case IV A with |T1| = c deletes T1's oldest block without a trace. Here the
//! block moves to B1, is the only one there, and is forgotten by the next trim, which
//! is equivalent.
//!
//! # Departures from the paper
//! * |T1|+|B1| ≤ c and all four ≤ 2c are kept in bytes, so one admission may evict and
//!   forget several blocks.
//! * Held blocks are skipped; if one list has only held blocks, the victim comes from
//!   the other.
//!
//! # Invariants
//! A block is on at most one list; 0 ≤ p ≤ c; T1 ∪ T2 ≤ c after `evict` returned
//! `None`, unless everything else is held; T1 ∪ B1 ≤ max(c, T1) and all ≤ 2c after
//! `forget` returned `None`.

use super::slab::{BlockList, NIL, NodeSlab};
use super::{Id, Policy, PolicyState};

/// The family of links that [`ArcDirectory`] uses.
pub(super) const ARC: usize = 0;

const T1: usize = 0;
const T2: usize = 1;
const B1: usize = 2;
const B2: usize = 3;

/// The lists without their nodes, so that the default policy can keep them with others
/// over the same slab. A block's tag is the number of its list plus one.
pub(super) struct ArcDirectory {
    lists: [BlockList; 4],
    c: u64,
    p: u64,
    /// Bytes of the block admitted last, while it is on T1 and victims are being
    /// chosen.
    newcomer: u64,
    /// That block came from B2.
    from_b2: bool,
}

impl ArcDirectory {
    pub(super) const fn new(c: u64) -> Self {
        ArcDirectory { lists: [BlockList::EMPTY; 4], c, p: 0, newcomer: 0, from_b2: false }
    }

    pub(super) fn set_target(&mut self, c: u64) {
        self.c = c;
        self.p = self.p.min(c);
    }

    pub(super) fn state<const F: usize>(&self, slab: &NodeSlab<F>, id: Id) -> PolicyState {
        match slab.tag(ARC, id) {
            0 => PolicyState::Unknown,
            n => [PolicyState::Mru, PolicyState::Mfu, PolicyState::MruGhost, PolicyState::MfuGhost]
                [usize::from(n - 1) & 3],
        }
    }

    pub(super) fn is_resident<const F: usize>(slab: &NodeSlab<F>, id: Id) -> bool {
        matches!(slab.tag(ARC, id), 1 | 2)
    }

    pub(super) fn bytes(&self, state: PolicyState) -> u64 {
        match state {
            PolicyState::Mru => self.lists[T1].bytes,
            PolicyState::Mfu => self.lists[T2].bytes,
            PolicyState::MruGhost => self.lists[B1].bytes,
            PolicyState::MfuGhost => self.lists[B2].bytes,
            PolicyState::Unknown => 0,
        }
    }

    pub(super) fn mru_target(&self) -> u64 {
        self.p
    }

    fn leave<const F: usize>(&mut self, slab: &mut NodeSlab<F>, id: Id) {
        if let Some(at) = usize::from(slab.tag(ARC, id)).checked_sub(1) {
            slab.unlink(ARC, &mut self.lists[at], id);
            slab.set_tag(ARC, id, 0);
        }
    }

    fn enter<const F: usize>(&mut self, slab: &mut NodeSlab<F>, id: Id, list: usize) {
        slab.push_head(ARC, &mut self.lists[list], id);
        slab.set_tag(ARC, id, list as u8 + 1);
    }

    /// Case I.
    pub(super) fn hit<const F: usize>(&mut self, slab: &mut NodeSlab<F>, id: Id) {
        self.leave(slab, id);
        self.enter(slab, id, T2);
        self.newcomer = 0;
    }

    /// Cases II to IV, without their replacements; the block's size is already set.
    pub(super) fn admit<const F: usize>(&mut self, slab: &mut NodeSlab<F>, id: Id) -> PolicyState {
        let was = self.state(slab, id);
        let size = u64::from(slab.size(id));
        let (b1, b2) = (self.lists[B1].bytes.max(1), self.lists[B2].bytes.max(1));
        let step = |own: u64, other: u64| {
            let scaled = u128::from(size) * u128::from(other) / u128::from(own);
            u64::try_from(scaled).unwrap_or(u64::MAX).max(size)
        };
        match was {
            PolicyState::MruGhost => self.p = self.p.saturating_add(step(b1, b2)).min(self.c),
            PolicyState::MfuGhost => self.p = self.p.saturating_sub(step(b2, b1)),
            PolicyState::Mru | PolicyState::Mfu | PolicyState::Unknown => {}
        }
        self.leave(slab, id);
        let unknown = was == PolicyState::Unknown;
        self.enter(slab, id, if unknown { T1 } else { T2 });
        self.newcomer = if unknown { size } else { 0 };
        self.from_b2 = was == PolicyState::MfuGhost;
        was
    }

    /// Adds the block as evicted, or makes it the newest of its ghosts.
    pub(super) fn remember<const F: usize>(&mut self, slab: &mut NodeSlab<F>, id: Id) {
        let was = self.state(slab, id);
        self.leave(slab, id);
        let frequent = matches!(was, PolicyState::Mfu | PolicyState::MfuGhost);
        self.enter(slab, id, if frequent { B2 } else { B1 });
    }

    /// Accounts for a new size of the block; the slab is changed once all directories
    /// have been updated.
    pub(super) fn resize<const F: usize>(&mut self, slab: &NodeSlab<F>, id: Id, size: u32) {
        if let Some(at) = usize::from(slab.tag(ARC, id)).checked_sub(1) {
            let bytes = &mut self.lists[at].bytes;
            *bytes = *bytes - u64::from(slab.size(id)) + u64::from(size);
        }
    }

    /// REPLACE, while more than the target is resident.
    pub(super) fn evict<const F: usize>(
        &mut self,
        slab: &mut NodeSlab<F>,
        held: &mut dyn FnMut(Id) -> bool,
    ) -> Option<Id> {
        if self.lists[T1].bytes + self.lists[T2].bytes <= self.c {
            self.newcomer = 0;
            self.from_b2 = false;
            return None;
        }
        // |T1| as the paper's REPLACE sees it, without the newcomer.
        let t1 = self.lists[T1].bytes.saturating_sub(self.newcomer);
        let over = t1 > self.p || (self.from_b2 && t1 == self.p);
        let order = if t1 > 0 && over { [T1, T2] } else { [T2, T1] };
        for list in order {
            if let Some(id) = slab.victim(ARC, &mut self.lists[list], held) {
                self.leave(slab, id);
                self.enter(slab, id, if list == T1 { B1 } else { B2 });
                return Some(id);
            }
        }
        None
    }

    /// The trim of the ghosts in case IV.
    pub(super) fn forget<const F: usize>(&mut self, slab: &mut NodeSlab<F>) -> Option<Id> {
        let [t1, t2, b1, b2] = self.lists.map(|l| l.bytes);
        let id = if t1 + b1 > self.c && self.lists[B1].tail != NIL {
            self.lists[B1].tail
        } else if t1 + b1 + t2 + b2 > self.c.saturating_mul(2) {
            [self.lists[B2].tail, self.lists[B1].tail].into_iter().find(|&id| id != NIL)?
        } else {
            return None;
        };
        self.leave(slab, id);
        Some(id)
    }

    pub(super) fn remove<const F: usize>(&mut self, slab: &mut NodeSlab<F>, id: Id) {
        self.leave(slab, id);
    }
}

/// The published ARC.
pub struct Reference {
    slab: NodeSlab<1>,
    dir: ArcDirectory,
}

impl Reference {
    /// An empty cache of `bytes`.
    pub fn new(bytes: u64) -> Self {
        Reference { slab: NodeSlab::new(), dir: ArcDirectory::new(bytes) }
    }
}

impl Policy for Reference {
    fn set_target(&mut self, bytes: u64) {
        self.dir.set_target(bytes);
    }

    fn target(&self) -> u64 {
        self.dir.c
    }

    fn hit(&mut self, id: Id) {
        if ArcDirectory::is_resident(&self.slab, id) {
            self.dir.hit(&mut self.slab, id);
        }
    }

    fn admit(&mut self, id: Id, size: u32) -> PolicyState {
        self.slab.touch(id);
        self.resize(id, size);
        self.dir.admit(&mut self.slab, id)
    }

    fn remember(&mut self, id: Id, size: u32) {
        self.slab.touch(id);
        self.resize(id, size);
        self.dir.remember(&mut self.slab, id);
    }

    fn resize(&mut self, id: Id, size: u32) {
        self.dir.resize(&self.slab, id, size);
        self.slab.set_size(id, size);
    }

    fn evict(&mut self, held: &mut dyn FnMut(Id) -> bool) -> Option<Id> {
        self.dir.evict(&mut self.slab, held)
    }

    fn forget(&mut self) -> Option<Id> {
        self.dir.forget(&mut self.slab)
    }

    fn remove(&mut self, id: Id) {
        self.dir.remove(&mut self.slab, id);
    }

    fn state(&self, id: Id) -> PolicyState {
        self.dir.state(&self.slab, id)
    }

    fn bytes(&self, state: PolicyState) -> u64 {
        self.dir.bytes(state)
    }

    fn mru_target(&self) -> u64 {
        self.dir.mru_target()
    }

    fn overhead(&self) -> u64 {
        self.slab.bytes()
    }
}
