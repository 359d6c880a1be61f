//! Hash maps keyed by id: object ids, request ids.
//!
//! # Theory
//! A call looks up maps by object id a dozen times, and the standard library's hash
//! would cost more than the rest of a lookup. Here an id is multiplied by a constant
//! and both halves of the product are folded, twice: after a single fold, sequences of
//! ids with a common step have too few different low bits. Ids may come from a hostile
//! image, so each hash starts with a secret that is drawn once for each process.
//!
//! Files created one after the other have consecutive ids, and in a large table each id
//! would cost a miss of the processor's caches. Therefore the ids of a run of
//! [`ID_RUN`] share the folded value. The position of the id within its run is added to
//! the lowest bits, which place the ids of a run in adjacent buckets of the table, and
//! to the highest bits, which distinguish them there.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

/// Odd, with half of its bits set (2^64 divided by the golden ratio).
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Ids in an aligned run that hash to adjacent buckets of a map. Code that distributes
/// ids over several maps gives each map whole runs.
pub const ID_RUN: u64 = 8;

/// A hash map keyed by ids.
pub type IdMap<K, V> = HashMap<K, V, IdState>;

/// Builds the hashers of one process.
#[derive(Clone, Copy, Debug)]
pub struct IdState(u64);

impl Default for IdState {
    fn default() -> IdState {
        static SECRET: OnceLock<u64> = OnceLock::new();
        IdState(*SECRET.get_or_init(|| RandomState::new().hash_one(FACTOR)))
    }
}

impl BuildHasher for IdState {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher { secret: self.0, state: self.0, position: 0 }
    }
}

/// Hashes ids.
#[derive(Clone, Copy, Debug)]
pub struct IdHasher {
    secret: u64,
    state: u64,
    /// Position of the last id within its run.
    position: u64,
}

fn fold(id: u64) -> u64 {
    let product = u128::from(id) * u128::from(FACTOR);
    product as u64 ^ (product >> 64) as u64
}

impl Hasher for IdHasher {
    fn write_u64(&mut self, id: u64) {
        // The position of the previous id is moved to bits that this id's run number
        // does not use.
        self.state = fold(self.state ^ self.position.rotate_right(ID_RUN.ilog2()) ^ (id / ID_RUN));
        self.position = id % ID_RUN;
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn finish(&self) -> u64 {
        // A table takes its index from the low bits and its tag from the seven highest.
        fold(self.state ^ self.secret) ^ self.position ^ self.position << 57
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Consecutive ids, and ids in steps of each power of two: the low bits and the
    /// seven high bits differ as much as those of random numbers. With a single fold,
    /// ids in steps of 2^17 had two thirds of that.
    #[test]
    fn numbers_spread() {
        let state = IdState(0x1234_5678_9abc_def0);
        for shift in 0..52 {
            let hashes: Vec<u64> = (0..4096u64).map(|n| state.hash_one(n << shift)).collect();
            let low: HashSet<u64> = hashes.iter().map(|h| h & 4095).collect();
            let high: HashSet<u64> = hashes.iter().map(|h| h >> 57).collect();
            // 4,096 balls in as many urns leave about 2,589 with one.
            assert!(low.len() > 2300, "{shift}: {}", low.len());
            assert!(high.len() > 100, "{shift}: {}", high.len());
        }
    }

    /// The ids of a run have adjacent positions, each its own, and different tags.
    #[test]
    fn the_ids_of_a_run_are_adjacent() {
        let state = IdState(0x1234_5678_9abc_def0);
        for run in 0..1000 * ID_RUN {
            let hashes = |of: fn(u64) -> u64| -> HashSet<u64> {
                (0..ID_RUN).map(|n| of(state.hash_one(run * ID_RUN + n))).collect()
            };
            assert_eq!(hashes(|h| h & (0xffff_ffff / ID_RUN * ID_RUN)).len(), 1);
            assert_eq!(hashes(|h| h % ID_RUN).len(), 8);
            assert_eq!(hashes(|h| h >> 57).len(), 8);
        }
    }

    #[test]
    fn a_map_finds_its_entries() {
        let mut map = IdMap::default();
        for n in 0..10_000u64 {
            assert_eq!(map.insert(n * 32, n), None);
        }
        assert!((0..10_000u64).all(|n| map.get(&(n * 32)) == Some(&n)));
        assert_eq!(map.get(&1), None);
    }
}
