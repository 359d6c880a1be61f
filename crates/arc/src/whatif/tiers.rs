//! Miniature cache devices behind a miniature cache.
//!
//! # Theory
//! A cache device is a ring: what is written pushes out what was written first. A block is
//! written when it leaves memory, if it came back from there or from the history of the
//! blocks that left, or as long as the ring was not filled once: the default rule of the
//! crate `l2arc`. The history here is exact and the ring has no padding, log blocks or
//! limit on writes, so the estimate is what the rule can give, not what a slow or small
//! device achieves.
//!
//! # Invariants
//! A ring and each generation of its history have no more blocks than its multiple of the
//! miniature cache.

use std::collections::{HashSet, VecDeque};

type Hashes = HashSet<u64, foldhash::fast::FixedState>;

fn hashes() -> Hashes {
    Hashes::with_hasher(foldhash::fast::FixedState::with_seed(7))
}

/// Least blocks of a generation of the history.
const REACH_MIN: usize = 64;

/// A miniature cache device.
pub(super) struct MiniDevice {
    /// Bytes, as a multiple of the cache before it.
    pub(super) multiple: f64,
    capacity: u64,
    /// Hashes and bytes, the oldest first.
    ring: VecDeque<(u64, u32)>,
    members: Hashes,
    bytes: u64,
    filled: bool,
    left: [Hashes; 2],
    /// Misses of the cache that it would have served.
    pub(super) hits: f64,
}

impl MiniDevice {
    pub(super) fn new(multiple: f64) -> MiniDevice {
        MiniDevice {
            multiple,
            capacity: 0,
            ring: VecDeque::new(),
            members: hashes(),
            bytes: 0,
            filled: false,
            left: [hashes(), hashes()],
            hits: 0.0,
        }
    }

    /// Sets the size to its multiple of a cache of `bytes`.
    pub(super) fn resize(&mut self, bytes: f64) {
        self.capacity = (bytes * self.multiple) as u64;
        self.fit();
    }

    fn fit(&mut self) {
        while self.bytes > self.capacity {
            let Some((hash, size)) = self.ring.pop_front() else { break };
            self.members.remove(&hash);
            self.bytes -= u64::from(size);
            self.filled = true;
        }
    }

    /// A block that the cache does not have is read.
    pub(super) fn read(&mut self, hash: u64) {
        self.hits += f64::from(u8::from(self.members.contains(&hash)));
    }

    /// A block leaves the cache. `returned`: the cache knew it when it was read.
    pub(super) fn offer(&mut self, hash: u64, size: u32, returned: bool) {
        if self.members.contains(&hash) {
            return;
        }
        let [now, before] = &mut self.left;
        let known = now.contains(&hash) || before.contains(&hash);
        now.insert(hash);
        if now.len() >= self.ring.len().max(REACH_MIN) {
            before.clear();
            self.left.swap(0, 1);
        }
        if (known || returned || !self.filled) && u64::from(size) <= self.capacity {
            self.ring.push_back((hash, size));
            self.members.insert(hash);
            self.bytes += u64::from(size);
            self.fit();
        }
    }

    /// Drops all blocks whose hash is not below the bound, and half the hits.
    pub(super) fn halve(&mut self, below: u64) {
        self.ring.retain(|(hash, _)| *hash < below);
        self.members.retain(|hash| *hash < below);
        self.left.iter_mut().for_each(|left| left.retain(|hash| *hash < below));
        self.bytes = self.ring.iter().map(|(_, size)| u64::from(*size)).sum();
        self.hits /= 2.0;
    }

    /// Memory in bytes.
    pub(super) fn memory(&self) -> u64 {
        let sets = self.members.capacity() + self.left.iter().map(HashSet::capacity).sum::<usize>();
        // A slot of a set has eight bytes and one of control, and an eighth is always free.
        let own = self.ring.capacity() * size_of::<(u64, u32)>() + sets * 9 * 8 / 7;
        (own + size_of::<MiniDevice>()) as u64
    }
}
