//! S3-FIFO (Yang et al., SOSP 2023): a tenth for the small queue, a ghost queue
//! as long as the main one, two bits of frequency.

use super::{Links, Rival, RivalList};

#[derive(Clone, Copy, PartialEq)]
enum S3FifoState {
    Unknown,
    Small,
    Main,
    Ghost,
}

pub(crate) struct S3Fifo {
    is: Vec<S3FifoState>,
    uses: Vec<u8>,
    links: Links,
    small: RivalList,
    main: RivalList,
    ghost: RivalList,
    small_max: usize,
    size: usize,
}

impl S3Fifo {
    pub(crate) fn new(size: usize, keys: usize) -> S3Fifo {
        S3Fifo {
            is: vec![S3FifoState::Unknown; keys],
            uses: vec![0; keys],
            links: Links::new(keys),
            small: RivalList::EMPTY,
            main: RivalList::EMPTY,
            ghost: RivalList::EMPTY,
            small_max: (size / 10).max(1),
            size,
        }
    }

    fn evict(&mut self) {
        while self.small.len + self.main.len >= self.size {
            if self.small.len >= self.small_max || self.main.len == 0 {
                self.evict_small();
            } else {
                self.evict_main();
            }
        }
    }

    fn evict_small(&mut self) {
        while let Some(old) = self.links.pop(&mut self.small) {
            let at = old as usize;
            if self.uses[at] > 1 {
                self.uses[at] = 0;
                self.is[at] = S3FifoState::Main;
                self.links.push(&mut self.main, old);
                continue;
            }
            self.is[at] = S3FifoState::Ghost;
            self.links.push(&mut self.ghost, old);
            if self.ghost.len > (self.size - self.small_max.min(self.size - 1))
                && let Some(last) = self.links.pop(&mut self.ghost)
            {
                self.is[last as usize] = S3FifoState::Unknown;
            }
            return;
        }
    }

    fn evict_main(&mut self) {
        while let Some(old) = self.links.pop(&mut self.main) {
            let at = old as usize;
            if self.uses[at] == 0 {
                self.is[at] = S3FifoState::Unknown;
                return;
            }
            self.uses[at] -= 1;
            self.links.push(&mut self.main, old);
        }
    }
}

impl Rival for S3Fifo {
    fn access(&mut self, key: u32) -> bool {
        let at = key as usize;
        match self.is[at] {
            S3FifoState::Small | S3FifoState::Main => {
                self.uses[at] = (self.uses[at] + 1).min(3);
                return true;
            }
            S3FifoState::Ghost => {
                self.links.unlink(&mut self.ghost, key);
                self.is[at] = S3FifoState::Unknown;
                self.evict();
                self.is[at] = S3FifoState::Main;
                self.links.push(&mut self.main, key);
            }
            S3FifoState::Unknown => {
                self.evict();
                self.is[at] = S3FifoState::Small;
                self.links.push(&mut self.small, key);
            }
        }
        self.uses[at] = 0;
        false
    }
}
