//! The default policy: the better of ARC and LIRS, whichever that is at the moment.
//!
//! # Theory
//! Two shadow directories of the cache's own size, ARC ([`super::reference`]) and
//! LIRS ([`super::lirs`]), see every use and decide what each would hold. The one
//! that would have missed less lately leads, and the cache's victims are resident
//! blocks that the leader does not hold: first those that neither holds, then those
//! that only the other one holds, the least recently used first. So after a change
//! of leader nothing is read again for its own sake: the content converges while
//! blocks come in anyway, and a block that the new leader wants stays if it is
//! there.
//!
//! # Invariants
//! * A resident block is on the list of its class: held by ARC, by LIRS, by both,
//!   by neither.
//! * A known block is resident, or held or remembered by a shadow, or on the list
//!   of orphans until `forget` has named it.

use super::slab::{List, NIL, Slab};
use super::{Id, Policy, State, lirs, reference};

/// The family of links of what is really resident, and of orphans.
const REAL: usize = 3;

// Tag of that family: a class plus one, or ...
const GHOST: u8 = 5;
const ORPHAN: u8 = 6;
const WHERE: u8 = 7;
/// Used again since it became known.
const AGAIN: u8 = 8;

/// A shadow directory; as a bit of a class, that it holds the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leader {
    Arc = 1,
    Lirs = 2,
}

/// The default policy.
pub struct Default {
    slab: Slab<4>,
    arc: reference::Directory,
    lirs: lirs::Directory,
    /// Resident blocks by which shadows hold them (bits of [`Leader`]).
    classes: [List; 4],
    orphans: List,
    /// Bytes by state, `Mru` to `MfuGhost`.
    bytes: [u64; 4],
    c: u64,
    leader: Leader,
    /// How many more hits the other shadow had lately; never below zero.
    behind: u32,
    switches: u64,
}

impl Default {
    /// An empty cache of `bytes`.
    pub fn new(bytes: u64) -> Self {
        Default {
            slab: Slab::new(),
            arc: reference::Directory::new(bytes),
            lirs: lirs::Directory::new(bytes),
            classes: [List::EMPTY; 4],
            orphans: List::EMPTY,
            bytes: [0; 4],
            c: bytes,
            leader: Leader::Lirs,
            behind: 0,
            switches: 0,
        }
    }

    /// Changes of leader so far.
    pub fn switches(&self) -> u64 {
        self.switches
    }

    fn wanted_by(&self, id: Id) -> u8 {
        let arc = u8::from(reference::Directory::is_resident(&self.slab, id));
        let lirs = u8::from(lirs::Directory::is_resident(&self.slab, id));
        arc * Leader::Arc as u8 + lirs * Leader::Lirs as u8
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
        (1..=4).contains(&(tag & WHERE))
    }

    /// Changes the tag and the sums by state. The block is on no list of this family
    /// before, and is put on the one that its tag says.
    fn place(&mut self, id: Id, tag: u8) {
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

    /// A shadow let go of the block.
    fn settle(&mut self, id: Id) {
        let tag = self.slab.tag(REAL, id);
        if Self::is_resident(tag) {
            let class = self.wanted_by(id) + 1;
            if tag & WHERE != class {
                self.take(id);
                self.place(id, tag & !WHERE | class);
            }
        } else if tag & WHERE == GHOST && !self.is_remembered(id) {
            self.take(id);
            self.place(id, tag & !WHERE | ORPHAN);
        }
    }

    fn is_remembered(&self, id: Id) -> bool {
        self.slab.tag(reference::ARC, id) != 0 || lirs::Directory::is_known(&self.slab, id)
    }

    /// Both shadows shrink to the target and to what they may remember.
    fn trim(&mut self, newest: Id) {
        while let Some(id) = self.arc.evict(&mut self.slab, &mut |_| false) {
            self.settle(id);
        }
        while let Some(id) = self.arc.forget(&mut self.slab) {
            self.settle(id);
        }
        while let Some(id) = self.lirs.evict(&mut self.slab, newest) {
            self.settle(id);
        }
        while let Some(id) = self.lirs.forget(&mut self.slab) {
            self.settle(id);
        }
    }

    /// Shows a use to the shadows.
    fn refer(&mut self, id: Id) {
        let wanted = self.wanted_by(id);
        self.judge(wanted);
        let (arc, lirs) = (wanted & Leader::Arc as u8 != 0, wanted & Leader::Lirs as u8 != 0);
        if arc {
            self.arc.hit(&mut self.slab, id);
        } else {
            self.arc.admit(&mut self.slab, id);
        }
        if lirs {
            self.lirs.hit(&mut self.slab, id);
        } else {
            self.lirs.admit(&mut self.slab, id);
        }
        self.trim(id);
    }

    /// Follows the leader.
    fn judge(&mut self, wanted: u8) {
        let other = 3 - self.leader as u8;
        if wanted == other {
            self.behind += 1;
            if self.behind > self.patience() {
                self.leader = if self.leader == Leader::Arc { Leader::Lirs } else { Leader::Arc };
                self.behind = 0;
                self.switches += 1;
            }
        } else if wanted == self.leader as u8 {
            self.behind = self.behind.saturating_sub(1);
        }
    }

    fn patience(&self) -> u32 {
        16
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
        self.refer(id);
        self.take(id);
        self.place(id, (self.wanted_by(id) + 1) | AGAIN);
    }

    fn admit(&mut self, id: Id, size: u32) -> State {
        self.slab.touch(id);
        let was = self.state(id);
        self.resize(id, size);
        let tag = self.take(id);
        self.refer(id);
        let again = if tag == 0 { 0 } else { AGAIN };
        self.place(id, (self.wanted_by(id) + 1) | again);
        was
    }

    fn remember(&mut self, id: Id, size: u32) {
        self.slab.touch(id);
        self.resize(id, size);
        let tag = self.take(id);
        self.arc.remember(&mut self.slab, id);
        self.lirs.remember(&mut self.slab, id);
        let again = if tag == 0 { 0 } else { AGAIN };
        self.place(id, GHOST | again);
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
        let leader = self.leader as usize;
        for class in [0, 3 - leader, leader, 3] {
            if let Some(id) = self.slab.victim(REAL, &mut self.classes[class], held) {
                let tag = self.take(id);
                if self.is_remembered(id) {
                    self.place(id, tag & !WHERE | GHOST);
                }
                return Some(id);
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
        if lirs::Directory::is_known(&self.slab, id) {
            self.lirs.remove(&mut self.slab, id);
        }
        self.trim(NIL);
    }

    fn state(&self, id: Id) -> State {
        match Self::index(self.slab.tag(REAL, id)) {
            None => State::Unknown,
            Some(n) => [State::Mru, State::Mfu, State::MruGhost, State::MfuGhost][n & 3],
        }
    }

    fn bytes(&self, state: State) -> u64 {
        match state {
            State::Mru => self.bytes[0],
            State::Mfu => self.bytes[1],
            State::MruGhost => self.bytes[2],
            State::MfuGhost => self.bytes[3],
            State::Unknown => 0,
        }
    }

    fn mru_target(&self) -> u64 {
        match self.leader {
            Leader::Arc => self.arc.mru_target(),
            Leader::Lirs => self.lirs.hir_target(),
        }
    }

    fn overhead(&self) -> u64 {
        self.slab.bytes()
    }
}
