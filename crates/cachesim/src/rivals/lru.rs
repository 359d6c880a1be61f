//! Least recently used.

use super::{Links, Rival, RivalList};

pub(crate) struct Lru {
    links: Links,
    list: RivalList,
    held: Vec<bool>,
    size: usize,
}

impl Lru {
    pub(crate) fn new(size: usize, keys: usize) -> Lru {
        Lru { links: Links::new(keys), list: RivalList::EMPTY, held: vec![false; keys], size }
    }
}

impl Rival for Lru {
    fn access(&mut self, key: u32) -> bool {
        if self.held[key as usize] {
            self.links.renew(&mut self.list, key);
            return true;
        }
        if self.list.len >= self.size
            && let Some(old) = self.links.pop(&mut self.list)
        {
            self.held[old as usize] = false;
        }
        self.links.push(&mut self.list, key);
        self.held[key as usize] = true;
        false
    }
}
