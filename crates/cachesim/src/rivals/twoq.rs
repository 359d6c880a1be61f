//! 2Q, full version (Johnson and Shasha, VLDB 1994): Kin a quarter of the cache,
//! Kout half of it.

use super::{Links, List, Rival};

#[derive(Clone, Copy, PartialEq)]
enum Is {
    Unknown,
    In,
    Out,
    Main,
}

pub(crate) struct TwoQ {
    is: Vec<Is>,
    links: Links,
    a1in: List,
    a1out: List,
    am: List,
    size: usize,
}

impl TwoQ {
    pub(crate) fn new(size: usize, keys: usize) -> TwoQ {
        let links = Links::new(keys);
        let (a1in, a1out, am) = (List::EMPTY, List::EMPTY, List::EMPTY);
        TwoQ { is: vec![Is::Unknown; keys], links, a1in, a1out, am, size }
    }

    fn reclaim(&mut self) {
        if self.a1in.len + self.am.len < self.size {
            return;
        }
        if self.a1in.len > (self.size / 4).max(1) || self.am.len == 0 {
            if let Some(old) = self.links.pop(&mut self.a1in) {
                self.is[old as usize] = Is::Out;
                self.links.push(&mut self.a1out, old);
            }
            if self.a1out.len > (self.size / 2).max(1)
                && let Some(old) = self.links.pop(&mut self.a1out)
            {
                self.is[old as usize] = Is::Unknown;
            }
        } else if let Some(old) = self.links.pop(&mut self.am) {
            self.is[old as usize] = Is::Unknown;
        }
    }
}

impl Rival for TwoQ {
    fn access(&mut self, key: u32) -> bool {
        match self.is[key as usize] {
            Is::Main => {
                self.links.renew(&mut self.am, key);
                true
            }
            Is::In => true,
            Is::Out => {
                self.links.unlink(&mut self.a1out, key);
                self.reclaim();
                self.is[key as usize] = Is::Main;
                self.links.push(&mut self.am, key);
                false
            }
            Is::Unknown => {
                self.reclaim();
                self.is[key as usize] = Is::In;
                self.links.push(&mut self.a1in, key);
                false
            }
        }
    }
}
