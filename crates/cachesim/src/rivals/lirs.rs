//! LIRS (Jiang and Zhang, SIGMETRICS 2002): 1 % for HIR blocks, and at most
//! twice the cache remembered without being resident.

use super::{Links, List, NIL, Rival};

#[derive(Clone, Copy, PartialEq)]
enum Is {
    Unknown,
    Lir,
    Hir,
    Gone,
}

pub(crate) struct Lirs {
    is: Vec<Is>,
    on_stack: Vec<bool>,
    stack_links: Links,
    stack: List,
    queue_links: Links,
    queue: List,
    gone: List,
    lir: usize,
    lir_max: usize,
    size: usize,
}

impl Lirs {
    pub(crate) fn new(size: usize, keys: usize) -> Lirs {
        let hir = (size / 100).max(1);
        Lirs {
            is: vec![Is::Unknown; keys],
            on_stack: vec![false; keys],
            stack_links: Links::new(keys),
            stack: List::EMPTY,
            queue_links: Links::new(keys),
            queue: List::EMPTY,
            gone: List::EMPTY,
            lir: 0,
            lir_max: size.saturating_sub(hir),
            size,
        }
    }

    fn to_top(&mut self, key: u32) {
        if self.on_stack[key as usize] {
            self.stack_links.unlink(&mut self.stack, key);
        }
        self.stack_links.push(&mut self.stack, key);
        self.on_stack[key as usize] = true;
    }

    fn prune(&mut self) {
        while self.stack.tail != NIL && self.is[self.stack.tail as usize] != Is::Lir {
            let key = self.stack.tail;
            self.drop_from_stack(key);
        }
    }

    fn drop_from_stack(&mut self, key: u32) {
        self.stack_links.unlink(&mut self.stack, key);
        self.on_stack[key as usize] = false;
        if self.is[key as usize] == Is::Gone {
            self.queue_links.unlink(&mut self.gone, key);
            self.is[key as usize] = Is::Unknown;
        }
    }

    fn make_lir(&mut self, key: u32) {
        self.is[key as usize] = Is::Lir;
        self.lir += 1;
        while self.lir > self.lir_max.max(1) {
            let old = self.stack.tail;
            self.stack_links.unlink(&mut self.stack, old);
            self.on_stack[old as usize] = false;
            self.is[old as usize] = Is::Hir;
            self.queue_links.push(&mut self.queue, old);
            self.lir -= 1;
            self.prune();
        }
    }

    fn evict(&mut self) {
        if let Some(old) = self.queue_links.pop(&mut self.queue) {
            if self.on_stack[old as usize] {
                self.is[old as usize] = Is::Gone;
                self.queue_links.push(&mut self.gone, old);
            } else {
                self.is[old as usize] = Is::Unknown;
            }
        }
    }
}

impl Rival for Lirs {
    fn access(&mut self, key: u32) -> bool {
        let at = key as usize;
        match self.is[at] {
            Is::Lir => {
                self.to_top(key);
                self.prune();
                true
            }
            Is::Hir => {
                if self.on_stack[at] {
                    self.to_top(key);
                    self.queue_links.unlink(&mut self.queue, key);
                    self.make_lir(key);
                    self.prune();
                } else {
                    self.to_top(key);
                    self.queue_links.renew(&mut self.queue, key);
                }
                true
            }
            was @ (Is::Gone | Is::Unknown) => {
                if self.lir + self.queue.len >= self.size {
                    self.evict();
                }
                self.to_top(key);
                if was == Is::Gone {
                    self.queue_links.unlink(&mut self.gone, key);
                    self.make_lir(key);
                    self.prune();
                } else if self.lir < self.lir_max {
                    self.make_lir(key);
                } else {
                    self.is[at] = Is::Hir;
                    self.queue_links.push(&mut self.queue, key);
                }
                if self.gone.len > 2 * self.size {
                    let old = self.gone.tail;
                    self.drop_from_stack(old);
                }
                false
            }
        }
    }
}
