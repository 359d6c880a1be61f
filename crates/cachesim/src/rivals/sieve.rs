//! SIEVE (Zhang et al., NSDI 2024).

use super::{Links, NIL, Rival, RivalList};

pub(crate) struct Sieve {
    held: Vec<bool>,
    visited: Vec<bool>,
    links: Links,
    list: RivalList,
    hand: u32,
    size: usize,
}

impl Sieve {
    pub(crate) fn new(size: usize, keys: usize) -> Sieve {
        Sieve {
            held: vec![false; keys],
            visited: vec![false; keys],
            links: Links::new(keys),
            list: RivalList::EMPTY,
            hand: NIL,
            size,
        }
    }

    fn evict(&mut self) {
        let mut at = if self.hand == NIL { self.list.tail } else { self.hand };
        while at != NIL && self.visited[at as usize] {
            self.visited[at as usize] = false;
            at = self.links.newer[at as usize];
            if at == NIL {
                at = self.list.tail;
            }
        }
        if at != NIL {
            self.hand = self.links.newer[at as usize];
            self.links.unlink(&mut self.list, at);
            self.held[at as usize] = false;
        }
    }
}

impl Rival for Sieve {
    fn access(&mut self, key: u32) -> bool {
        if self.held[key as usize] {
            self.visited[key as usize] = true;
            return true;
        }
        if self.list.len >= self.size {
            self.evict();
        }
        self.links.push(&mut self.list, key);
        self.held[key as usize] = true;
        self.visited[key as usize] = false;
        false
    }
}
