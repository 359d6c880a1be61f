//! Published policies, over the dense keys of a trace and pages of one size, each as in its
//! paper. They store no data and are charged no memory.

mod lirs;
mod lru;
mod min;
mod s3fifo;
mod sieve;
mod twoq;
mod wtinylfu;

pub(crate) use lirs::Lirs;
pub(crate) use lru::Lru;
pub(crate) use min::Min;
pub(crate) use s3fifo::S3Fifo;
pub(crate) use sieve::Sieve;
pub(crate) use twoq::TwoQ;
pub(crate) use wtinylfu::WTinyLfu;

/// A simulated cache.
pub(crate) trait Rival {
    /// One reference; true for a hit.
    fn access(&mut self, key: u32) -> bool;
}

const NIL: u32 = u32::MAX;

/// Links for lists over keys; a key is on at most one list of a set.
pub(crate) struct Links {
    newer: Vec<u32>,
    older: Vec<u32>,
}

/// One list; new keys are at the head.
#[derive(Clone, Copy)]
pub(crate) struct RivalList {
    head: u32,
    tail: u32,
    len: usize,
}

impl RivalList {
    const EMPTY: RivalList = RivalList { head: NIL, tail: NIL, len: 0 };
}

impl Links {
    fn new(keys: usize) -> Links {
        Links { newer: vec![NIL; keys], older: vec![NIL; keys] }
    }

    fn push(&mut self, list: &mut RivalList, key: u32) {
        let old = list.head;
        self.newer[key as usize] = NIL;
        self.older[key as usize] = old;
        if old == NIL {
            list.tail = key;
        } else {
            self.newer[old as usize] = key;
        }
        list.head = key;
        list.len += 1;
    }

    fn unlink(&mut self, list: &mut RivalList, key: u32) {
        let (newer, older) = (self.newer[key as usize], self.older[key as usize]);
        if newer == NIL {
            list.head = older;
        } else {
            self.older[newer as usize] = older;
        }
        if older == NIL {
            list.tail = newer;
        } else {
            self.newer[older as usize] = newer;
        }
        list.len -= 1;
    }

    fn renew(&mut self, list: &mut RivalList, key: u32) {
        self.unlink(list, key);
        self.push(list, key);
    }

    /// Removes the oldest key.
    fn pop(&mut self, list: &mut RivalList) -> Option<u32> {
        let key = list.tail;
        (key != NIL).then(|| {
            self.unlink(list, key);
            key
        })
    }
}
