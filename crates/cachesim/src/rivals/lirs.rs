//! LIRS (Jiang and Zhang, SIGMETRICS 2002): 1 % for HIR blocks, and at most twice the
//! cache's size of non-resident keys.

use super::{Links, NIL, Rival, RivalList};

#[derive(Clone, Copy, PartialEq)]
enum LirsState {
    Unknown,
    Lir,
    Hir,
    Gone,
}

pub(crate) struct Lirs {
    is: Vec<LirsState>,
    on_stack: Vec<bool>,
    stack_links: Links,
    stack: RivalList,
    queue_links: Links,
    queue: RivalList,
    nonresident: RivalList,
    lir: usize,
    lir_max: usize,
    size: usize,
}

impl Lirs {
    pub(crate) fn new(size: usize, keys: usize) -> Lirs {
        let hir = (size / 100).max(1);
        Lirs {
            is: vec![LirsState::Unknown; keys],
            on_stack: vec![false; keys],
            stack_links: Links::new(keys),
            stack: RivalList::EMPTY,
            queue_links: Links::new(keys),
            queue: RivalList::EMPTY,
            nonresident: RivalList::EMPTY,
            lir: 0,
            lir_max: size.saturating_sub(hir),
            size,
        }
    }

    fn top(&mut self, key: u32) {
        if self.on_stack[key as usize] {
            self.stack_links.unlink(&mut self.stack, key);
        }
        self.stack_links.push(&mut self.stack, key);
        self.on_stack[key as usize] = true;
    }

    fn prune(&mut self) {
        while self.stack.tail != NIL && self.is[self.stack.tail as usize] != LirsState::Lir {
            let key = self.stack.tail;
            self.drop_from_stack(key);
        }
    }

    fn drop_from_stack(&mut self, key: u32) {
        self.stack_links.unlink(&mut self.stack, key);
        self.on_stack[key as usize] = false;
        if self.is[key as usize] == LirsState::Gone {
            self.queue_links.unlink(&mut self.nonresident, key);
            self.is[key as usize] = LirsState::Unknown;
        }
    }

    fn make_lir(&mut self, key: u32) {
        self.is[key as usize] = LirsState::Lir;
        self.lir += 1;
        while self.lir > self.lir_max.max(1) {
            let old = self.stack.tail;
            self.stack_links.unlink(&mut self.stack, old);
            self.on_stack[old as usize] = false;
            self.is[old as usize] = LirsState::Hir;
            self.queue_links.push(&mut self.queue, old);
            self.lir -= 1;
            self.prune();
        }
    }

    fn evict(&mut self) {
        if let Some(old) = self.queue_links.pop(&mut self.queue) {
            if self.on_stack[old as usize] {
                self.is[old as usize] = LirsState::Gone;
                self.queue_links.push(&mut self.nonresident, old);
            } else {
                self.is[old as usize] = LirsState::Unknown;
            }
        }
    }
}

impl Rival for Lirs {
    fn access(&mut self, key: u32) -> bool {
        let at = key as usize;
        match self.is[at] {
            LirsState::Lir => {
                self.top(key);
                self.prune();
                true
            }
            LirsState::Hir => {
                if self.on_stack[at] {
                    self.top(key);
                    self.queue_links.unlink(&mut self.queue, key);
                    self.make_lir(key);
                    self.prune();
                } else {
                    self.top(key);
                    self.queue_links.renew(&mut self.queue, key);
                }
                true
            }
            was @ (LirsState::Gone | LirsState::Unknown) => {
                if self.lir + self.queue.len >= self.size {
                    self.evict();
                }
                self.top(key);
                if was == LirsState::Gone {
                    self.queue_links.unlink(&mut self.nonresident, key);
                    self.make_lir(key);
                    self.prune();
                } else if self.lir < self.lir_max {
                    self.make_lir(key);
                } else {
                    self.is[at] = LirsState::Hir;
                    self.queue_links.push(&mut self.queue, key);
                }
                if self.nonresident.len > 2 * self.size {
                    let old = self.nonresident.tail;
                    self.drop_from_stack(old);
                }
                false
            }
        }
    }
}
