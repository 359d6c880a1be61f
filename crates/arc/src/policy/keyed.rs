//! ARC as published (Megiddo and Modha, FAST 2003), for blocks of varying size.
//!
//! # Theory
//! Resident blocks are on T1 (seen once) or T2 (seen again); B1 and B2 remember
//! what was evicted from each. A hit in B1 says that T1 was too small and raises
//! its target `p`; a hit in B2 lowers it. Sizes are bytes instead of pages: `p`
//! moves by the size of the block that was hit, scaled by the ghosts' ratio.
//!
//! # Departures from the paper
//! * |T1|+|B1| ≤ c and the total ≤ 2c are kept in bytes, so an insertion may
//!   evict several blocks.
//! * A held block cannot be evicted: the caller says which are held.
//!
//! # Invariants
//! T1 ∪ T2 ≤ c after [`Arc::make_room`] unless everything is held; a key is on
//! at most one list; 0 ≤ p ≤ c.

use std::collections::HashMap;
use std::hash::Hash;

/// The four lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListId {
    /// Resident, seen once.
    Mru,
    /// Resident, seen again.
    Mfu,
    /// Evicted from `Mru`.
    MruGhost,
    /// Evicted from `Mfu`.
    MfuGhost,
}

const NIL: u32 = u32::MAX;

struct Node<K> {
    key: K,
    size: usize,
    list: ListId,
    prev: u32,
    next: u32,
}

#[derive(Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
    bytes: usize,
}

/// The state machine: keys and sizes in, evictions out.
pub struct Arc<K> {
    nodes: Vec<Node<K>>,
    free: Vec<u32>,
    index: HashMap<K, u32>,
    lists: [List; 4],
    /// Target size of the cache, bytes.
    c: usize,
    /// Target size of `Mru`, bytes.
    p: usize,
}

impl<K: Copy + Eq + Hash> Arc<K> {
    /// An empty cache of `c` bytes.
    pub fn new(c: usize) -> Self {
        let list = List { head: NIL, tail: NIL, bytes: 0 };
        Arc {
            nodes: Vec::new(),
            free: Vec::new(),
            index: HashMap::new(),
            lists: [list; 4],
            c,
            p: 0,
        }
    }

    /// Bytes on a list.
    pub fn bytes(&self, list: ListId) -> usize {
        self.lists[list as usize].bytes
    }

    /// Bytes resident.
    pub fn resident(&self) -> usize {
        self.bytes(ListId::Mru) + self.bytes(ListId::Mfu)
    }

    /// Target size, bytes.
    pub fn target(&self) -> usize {
        self.c
    }

    /// Target size of the MRU list, bytes.
    pub fn mru_target(&self) -> usize {
        self.p
    }

    /// Changes the target size; the caller then calls [`Arc::make_room`].
    pub fn set_target(&mut self, c: usize) {
        self.c = c;
        self.p = self.p.min(c);
    }

    /// Which list a key is on.
    pub fn list_of(&self, key: &K) -> Option<ListId> {
        self.index.get(key).map(|&i| self.nodes[i as usize].list)
    }

    /// A resident block was used: it moves to the head of MFU.
    pub fn touch(&mut self, key: &K) {
        if let Some(&i) = self.index.get(key)
            && matches!(self.nodes[i as usize].list, ListId::Mru | ListId::Mfu)
        {
            self.unlink(i);
            self.link(i, ListId::Mfu);
        }
    }

    /// A block became resident; `key` must not be resident already. Ghost hits
    /// adapt `p`. Follow with [`Arc::make_room`]. Returns the ghost list that was hit.
    pub fn insert(&mut self, key: K, size: usize) -> Option<ListId> {
        let ghost = self.index.get(&key).copied();
        let Some(i) = ghost else {
            let i = self.alloc(key, size);
            self.index.insert(key, i);
            self.link(i, ListId::Mru);
            return None;
        };
        let list = self.nodes[i as usize].list;
        let (b1, b2) = (self.bytes(ListId::MruGhost).max(1), self.bytes(ListId::MfuGhost).max(1));
        match list {
            ListId::MruGhost => {
                let step = size.saturating_mul((b2 / b1).max(1));
                self.p = self.p.saturating_add(step).min(self.c);
            }
            ListId::MfuGhost => {
                let step = size.saturating_mul((b1 / b2).max(1));
                self.p = self.p.saturating_sub(step);
            }
            ListId::Mru | ListId::Mfu => {}
        }
        self.unlink(i);
        self.nodes[i as usize].size = size;
        self.link(i, ListId::Mfu);
        matches!(list, ListId::MruGhost | ListId::MfuGhost).then_some(list)
    }

    /// Evicts until the resident bytes fit the target, calling `evict` for each
    /// victim; blocks for which `held` is true are passed over.
    pub fn make_room(&mut self, held: impl Fn(&K) -> bool, mut evict: impl FnMut(K)) {
        while self.resident() > self.c {
            let over = self.bytes(ListId::Mru) > self.p;
            let first = if over { ListId::Mru } else { ListId::Mfu };
            let second = if over { ListId::Mfu } else { ListId::Mru };
            let Some(i) = self.victim(first, &held).or_else(|| self.victim(second, &held)) else {
                break;
            };
            let key = self.nodes[i as usize].key;
            let ghost = match self.nodes[i as usize].list {
                ListId::Mru => ListId::MruGhost,
                _ => ListId::MfuGhost,
            };
            self.unlink(i);
            self.link(i, ghost);
            evict(key);
        }
        self.trim_ghosts();
    }

    /// Forgets a key, resident or ghost.
    pub fn remove(&mut self, key: &K) {
        if let Some(i) = self.index.remove(key) {
            self.unlink(i);
            self.free.push(i);
        }
    }

    /// Keys on a list, most recent first (tests and statistics).
    pub fn keys(&self, list: ListId) -> Vec<K> {
        let mut out = Vec::new();
        let mut at = self.lists[list as usize].head;
        while at != NIL {
            out.push(self.nodes[at as usize].key);
            at = self.nodes[at as usize].next;
        }
        out
    }

    fn trim_ghosts(&mut self) {
        let l1 = |a: &Self| a.bytes(ListId::Mru) + a.bytes(ListId::MruGhost);
        while l1(self) > self.c && self.lists[ListId::MruGhost as usize].tail != NIL {
            self.drop_tail(ListId::MruGhost);
        }
        let all = |a: &Self| l1(a) + a.bytes(ListId::Mfu) + a.bytes(ListId::MfuGhost);
        while all(self) > self.c.saturating_mul(2)
            && self.lists[ListId::MfuGhost as usize].tail != NIL
        {
            self.drop_tail(ListId::MfuGhost);
        }
    }

    fn drop_tail(&mut self, list: ListId) {
        let key = self.nodes[self.lists[list as usize].tail as usize].key;
        self.remove(&key);
    }

    /// The least recent block of a list that is not held; looks at no more than
    /// a few held ones, so that eviction stays short.
    fn victim(&self, list: ListId, held: &impl Fn(&K) -> bool) -> Option<u32> {
        let mut at = self.lists[list as usize].tail;
        for _ in 0..64 {
            if at == NIL {
                return None;
            }
            if !held(&self.nodes[at as usize].key) {
                return Some(at);
            }
            at = self.nodes[at as usize].prev;
        }
        None
    }

    fn alloc(&mut self, key: K, size: usize) -> u32 {
        let node = Node { key, size, list: ListId::Mru, prev: NIL, next: NIL };
        if let Some(i) = self.free.pop() {
            self.nodes[i as usize] = node;
            return i;
        }
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    fn link(&mut self, i: u32, list: ListId) {
        let l = &mut self.lists[list as usize];
        let old = std::mem::replace(&mut l.head, i);
        if l.tail == NIL {
            l.tail = i;
        }
        let node = &mut self.nodes[i as usize];
        l.bytes += node.size;
        (node.list, node.prev, node.next) = (list, NIL, old);
        if old != NIL {
            self.nodes[old as usize].prev = i;
        }
    }

    fn unlink(&mut self, i: u32) {
        let (list, prev, next, size) = {
            let n = &self.nodes[i as usize];
            (n.list, n.prev, n.next, n.size)
        };
        let l = &mut self.lists[list as usize];
        l.bytes -= size;
        if prev == NIL {
            l.head = next;
        } else {
            self.nodes[prev as usize].next = next;
        }
        let l = &mut self.lists[list as usize];
        if next == NIL {
            l.tail = prev;
        } else {
            self.nodes[next as usize].prev = prev;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn access(arc: &mut Arc<u32>, resident: &mut HashSet<u32>, key: u32, size: usize) -> bool {
        let hit = resident.contains(&key);
        if hit {
            arc.touch(&key);
        } else {
            arc.insert(key, size);
            resident.insert(key);
        }
        arc.make_room(|_| false, |k| assert!(resident.remove(&k)));
        hit
    }

    #[test]
    fn a_scan_does_not_evict_what_is_used_again() {
        let (mut arc, mut resident) = (Arc::new(100), HashSet::new());
        for _ in 0..3 {
            for key in 0..50 {
                access(&mut arc, &mut resident, key, 1);
            }
        }
        for key in 1000..2000 {
            access(&mut arc, &mut resident, key, 1);
        }
        let kept = (0..50).filter(|k| resident.contains(k)).count();
        assert!(kept >= 49, "{kept} of 50 survive the scan");
    }

    #[test]
    fn held_blocks_are_passed_over() {
        let (mut arc, mut resident) = (Arc::new(3), HashSet::new());
        for key in 0..3 {
            access(&mut arc, &mut resident, key, 1);
        }
        arc.insert(9, 1);
        let mut out = Vec::new();
        arc.make_room(|k| *k == 0, |k| out.push(k));
        assert_eq!(out, [1]);
    }

    proptest! {
        #[test]
        fn lists_and_model_agree(
            ops in prop::collection::vec((0u32..60, 1usize..9), 1..600), c in 1usize..120,
        ) {
            let (mut arc, mut resident) = (Arc::new(c), HashSet::new());
            for (n, (key, size)) in ops.into_iter().enumerate() {
                access(&mut arc, &mut resident, key, size);
                if n % 97 == 96 {
                    arc.set_target(c / 2 + 1);
                    arc.make_room(|_| false, |k| assert!(resident.remove(&k)));
                }
                prop_assert!(arc.resident() <= arc.target() && arc.mru_target() <= arc.target());
                let listed: HashSet<u32> =
                    arc.keys(ListId::Mru).into_iter().chain(arc.keys(ListId::Mfu)).collect();
                prop_assert_eq!(&listed, &resident);
                let ghosts = arc.bytes(ListId::MruGhost) + arc.bytes(ListId::MfuGhost);
                prop_assert!(arc.resident() + ghosts <= 2 * c.max(arc.target()) + 9);
            }
        }
    }
}
