//! Which blocks that leave the first tier are worth a write to the second.
//!
//! # Theory
//! OpenZFS writes whatever is about to leave memory. A scan larger than memory then writes
//! all of itself to the device, and pushes out what is used again; the device wears for
//! blocks that nobody reads twice.
//!
//! The default rule writes a block only when it has *come back*: it left the first tier
//! once, was read again, and now leaves for the second time. Its reuse distance is then
//! known to be larger than memory, which is exactly the reuse that a second tier serves. A
//! block that is read once, or whose uses all lie within memory, is never written. Two
//! sources know of returns: the first tier's ghost lists (a ghost hit when the block was
//! inserted), and beyond their reach a history of the blocks that left, two generations of
//! bits, with a reach of one to two times the number of blocks that the device holds. A
//! block that returns later than that would not have survived on the device either.
//!
//! While the ring is being filled for the first time there is nothing to push out, and the
//! writes are bounded by one device size in its life. So everything is admitted then, and a
//! loop is served from its second pass on. The tables of docs/cache.md compare the rules.
//!
//! # Invariants
//! * Memory is bounded by [`HISTORY_BITS_MAX`] bits in each generation.

/// The rule by which blocks are written (`l2arc_policy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum L2Policy {
    /// Blocks that came back; everything while the ring is filled for the first time.
    #[default]
    Default,
    /// Every eligible block.
    Openzfs,
}

/// Most bits of one generation of the history: 128 MiB.
pub(crate) const HISTORY_BITS_MAX: u64 = 1 << 30;
/// Bits for each block of a generation, of which two are set.
const BITS_EACH: u64 = 8;
const BLOCKS_MIN: u64 = 1 << 10;

/// A set of the blocks that left the first tier recently; it may err on the side of
/// "known" for about one block in twenty.
pub struct ReturnHistory {
    /// The present generation and the previous one.
    bits: [Vec<u64>; 2],
    noted: u64,
    /// Blocks in one generation.
    reach: u64,
}

impl ReturnHistory {
    /// A history of `blocks` to twice as many.
    pub fn new(blocks: u64) -> ReturnHistory {
        let reach = blocks.clamp(BLOCKS_MIN, HISTORY_BITS_MAX / BITS_EACH).next_power_of_two();
        let words = (reach * BITS_EACH / 64) as usize;
        ReturnHistory { bits: [vec![0; words], vec![0; words]], noted: 0, reach }
    }

    /// Adapts the reach to a number of blocks; a change by a factor of less than four keeps
    /// everything as it is, a larger one forgets.
    pub fn follow(&mut self, blocks: u64) {
        let wanted = blocks.clamp(BLOCKS_MIN, HISTORY_BITS_MAX / BITS_EACH).next_power_of_two();
        if wanted >= 4 * self.reach || 4 * wanted <= self.reach {
            *self = ReturnHistory::new(blocks);
        }
    }

    /// Memory, bytes.
    pub fn memory(&self) -> u64 {
        self.bits.iter().map(|b| b.len() as u64 * 8).sum()
    }

    /// Notes that a block leaves, by a hash of its identity. True if it is known to have
    /// left before.
    pub fn note(&mut self, hash: u64) -> bool {
        let mask = self.reach * BITS_EACH - 1;
        let places = [hash & mask, (hash >> 32 ^ hash << 17) & mask];
        let has =
            |bits: &[u64]| places.iter().all(|p| bits[(p >> 6) as usize] >> (p & 63) & 1 == 1);
        let [now, before] = &mut self.bits;
        let in_now = has(now);
        let known = in_now || has(before);
        for p in places {
            now[(p >> 6) as usize] |= 1 << (p & 63);
        }
        self.noted += u64::from(!in_now);
        if self.noted >= self.reach {
            self.noted = 0;
            self.bits.swap(0, 1);
            self.bits[0].fill(0);
        }
        known
    }
}

/// The decision for each block that leaves the first tier.
pub struct Admission {
    policy: L2Policy,
    history: ReturnHistory,
}

impl Admission {
    /// Decides by this rule for devices that hold about `blocks`.
    pub fn new(policy: L2Policy, blocks: u64) -> Admission {
        Admission { policy, history: ReturnHistory::new(blocks) }
    }

    /// Follows a change of the rule, and of the number of blocks that the devices hold.
    pub fn follow(&mut self, policy: L2Policy, blocks: u64) {
        self.policy = policy;
        self.history.follow(blocks);
    }

    /// Whether a block that leaves is to be written. `returned`: the first tier knows that
    /// it had left before. `filling`: the ring is filled for the first time.
    pub fn wants(&mut self, hash: u64, returned: bool, filling: bool) -> bool {
        match self.policy {
            L2Policy::Openzfs => true,
            L2Policy::Default => self.history.note(hash) || returned || filling,
        }
    }

    /// Memory, bytes.
    pub fn memory(&self) -> u64 {
        self.history.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::BuildHasher;

    fn hash(n: u64) -> u64 {
        foldhash::quality::FixedState::with_seed(3).hash_one(n)
    }

    #[test]
    fn a_scan_is_not_admitted_and_a_loop_is() {
        let mut rule = Admission::new(L2Policy::Default, 4096);
        let scan = (0..4000).filter(|&n| rule.wants(hash(n), false, false)).count();
        assert!(scan < 200, "{scan} of 4000 are taken for known");
        assert!((0..4000).all(|n| rule.wants(hash(n), false, false)), "the second pass");
        assert!(rule.wants(hash(1 << 40), true, false) && rule.wants(hash(1 << 41), false, true));
        let mut all = Admission::new(L2Policy::Openzfs, 4096);
        assert!((0..4000).all(|n| all.wants(hash(n), false, false)));
    }

    #[test]
    fn the_history_forgets_and_keeps_its_size() {
        let mut history = ReturnHistory::new(4096);
        let memory = history.memory();
        assert_eq!(memory, 2 * 4096);
        history.note(hash(0));
        for n in 1..20_000 {
            history.note(hash(n));
        }
        let known = (0..1000).filter(|&n| history.note(hash(n))).count();
        assert!(known < 150, "{known} of 1000 old blocks are known");
        history.follow(5000);
        assert_eq!(history.memory(), memory);
        history.follow(1 << 20);
        assert_eq!(history.memory(), 2 << 20);
        history.follow(u64::MAX);
        assert_eq!(history.memory(), 2 * HISTORY_BITS_MAX / 8);
    }
}
