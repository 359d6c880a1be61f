//! W-TinyLFU (Einziger, Friedman, Manes, ACM TOS 2017): a window of 1 %, a main
//! part with four fifths protected, frequencies in a count-min sketch of 4-bit
//! counters, halved every ten times the cache's size.

use super::{Links, Rival, RivalList};

#[derive(Clone, Copy, PartialEq)]
enum TinyLfuState {
    Unknown,
    Window,
    Probation,
    Protected,
}

/// Count-min, four rows.
struct Sketch {
    rows: [Vec<u8>; 4],
    mask: u64,
    additions: usize,
    period: usize,
}

impl Sketch {
    fn new(size: usize) -> Sketch {
        let width = (size * 4).next_power_of_two().max(64);
        let rows = std::array::from_fn(|_| vec![0; width]);
        Sketch { rows, mask: width as u64 - 1, additions: 0, period: size.max(1) * 10 }
    }

    fn slot(&self, row: usize, key: u32) -> usize {
        const SEEDS: [u64; 4] = [
            0x9e37_79b9_7f4a_7c15,
            0xc2b2_ae3d_27d4_eb4f,
            0x1656_67b1_9e37_79f9,
            0x85eb_ca77_c2b2_ae63,
        ];
        let mixed = (u64::from(key) + 1).wrapping_mul(SEEDS[row]);
        ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 24 & self.mask) as usize
    }

    fn add(&mut self, key: u32) {
        for row in 0..4 {
            let at = self.slot(row, key);
            self.rows[row][at] = (self.rows[row][at] + 1).min(15);
        }
        self.additions += 1;
        if self.additions >= self.period {
            self.additions /= 2;
            self.rows.iter_mut().flatten().for_each(|n| *n /= 2);
        }
    }

    fn estimate(&self, key: u32) -> u8 {
        (0..4).map(|row| self.rows[row][self.slot(row, key)]).min().unwrap_or(0)
    }
}

pub(crate) struct WTinyLfu {
    is: Vec<TinyLfuState>,
    links: Links,
    window: RivalList,
    probation: RivalList,
    protected: RivalList,
    sketch: Sketch,
    window_max: usize,
    protected_max: usize,
    size: usize,
}

impl WTinyLfu {
    pub(crate) fn new(size: usize, keys: usize) -> WTinyLfu {
        let window_max = (size / 100).max(1);
        WTinyLfu {
            is: vec![TinyLfuState::Unknown; keys],
            links: Links::new(keys),
            window: RivalList::EMPTY,
            probation: RivalList::EMPTY,
            protected: RivalList::EMPTY,
            sketch: Sketch::new(size),
            window_max,
            protected_max: size.saturating_sub(window_max) * 4 / 5,
            size,
        }
    }

    /// The window's oldest block competes for admission to the main part.
    fn overflow(&mut self) {
        let Some(candidate) = self.links.pop(&mut self.window) else { return };
        let victim = self.probation.tail;
        let main = self.probation.len + self.protected.len;
        if main + self.window_max < self.size {
            self.is[candidate as usize] = TinyLfuState::Probation;
            self.links.push(&mut self.probation, candidate);
        } else if victim != super::NIL
            && self.sketch.estimate(candidate) > self.sketch.estimate(victim)
        {
            self.links.unlink(&mut self.probation, victim);
            self.is[victim as usize] = TinyLfuState::Unknown;
            self.is[candidate as usize] = TinyLfuState::Probation;
            self.links.push(&mut self.probation, candidate);
        } else {
            self.is[candidate as usize] = TinyLfuState::Unknown;
        }
    }
}

impl Rival for WTinyLfu {
    fn access(&mut self, key: u32) -> bool {
        self.sketch.add(key);
        match self.is[key as usize] {
            TinyLfuState::Window => self.links.renew(&mut self.window, key),
            TinyLfuState::Protected => self.links.renew(&mut self.protected, key),
            TinyLfuState::Probation => {
                self.links.unlink(&mut self.probation, key);
                self.is[key as usize] = TinyLfuState::Protected;
                self.links.push(&mut self.protected, key);
                if self.protected.len > self.protected_max
                    && let Some(old) = self.links.pop(&mut self.protected)
                {
                    self.is[old as usize] = TinyLfuState::Probation;
                    self.links.push(&mut self.probation, old);
                }
            }
            TinyLfuState::Unknown => {
                self.is[key as usize] = TinyLfuState::Window;
                self.links.push(&mut self.window, key);
                if self.window.len > self.window_max {
                    self.overflow();
                }
                return false;
            }
        }
        true
    }
}
