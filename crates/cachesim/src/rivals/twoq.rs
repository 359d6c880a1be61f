//! 2Q, full version (Johnson and Shasha, VLDB 1994): Kin a quarter of the cache,
//! Kout half of it.

use super::{Links, Rival, RivalList};

#[derive(Clone, Copy, PartialEq)]
enum TwoQState {
    Unknown,
    In,
    Out,
    Main,
}

pub(crate) struct TwoQ {
    is: Vec<TwoQState>,
    links: Links,
    a1in: RivalList,
    a1out: RivalList,
    am: RivalList,
    size: usize,
}

impl TwoQ {
    pub(crate) fn new(size: usize, keys: usize) -> TwoQ {
        let links = Links::new(keys);
        let (a1in, a1out, am) = (RivalList::EMPTY, RivalList::EMPTY, RivalList::EMPTY);
        TwoQ { is: vec![TwoQState::Unknown; keys], links, a1in, a1out, am, size }
    }

    fn reclaim(&mut self) {
        if self.a1in.len + self.am.len < self.size {
            return;
        }
        if self.a1in.len > (self.size / 4).max(1) || self.am.len == 0 {
            if let Some(old) = self.links.pop(&mut self.a1in) {
                self.is[old as usize] = TwoQState::Out;
                self.links.push(&mut self.a1out, old);
            }
            if self.a1out.len > (self.size / 2).max(1)
                && let Some(old) = self.links.pop(&mut self.a1out)
            {
                self.is[old as usize] = TwoQState::Unknown;
            }
        } else if let Some(old) = self.links.pop(&mut self.am) {
            self.is[old as usize] = TwoQState::Unknown;
        }
    }
}

impl Rival for TwoQ {
    fn access(&mut self, key: u32) -> bool {
        match self.is[key as usize] {
            TwoQState::Main => {
                self.links.renew(&mut self.am, key);
                true
            }
            TwoQState::In => true,
            TwoQState::Out => {
                self.links.unlink(&mut self.a1out, key);
                self.reclaim();
                self.is[key as usize] = TwoQState::Main;
                self.links.push(&mut self.am, key);
                false
            }
            TwoQState::Unknown => {
                self.reclaim();
                self.is[key as usize] = TwoQState::In;
                self.links.push(&mut self.a1in, key);
                false
            }
        }
    }
}
