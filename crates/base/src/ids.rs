//! Maps by number: objects, requests.
//!
//! # Theory
//! Maps by object number are asked a dozen times in each call, and the standard library's
//! hash costs more than all else of a look. Here a number is multiplied with a constant and
//! both halves of the product are folded, twice: once leaves rows of numbers with a common
//! step too few different low bits. Numbers may come from a hostile image, so a secret drawn
//! once a process goes in before each.
//!
//! Files made one after the other have numbers in a row, and in a large table each would be a
//! miss of the processor's caches. So the numbers of a run of [`NEAR`] share what is folded,
//! and their places in it go into the lowest bits, by which a table has them beside each
//! other, and into the highest, by which it tells them apart.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

/// Odd, half of its bits set (2^64 divided by the golden ratio).
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Numbers in a run that lie beside each other in a map. Who shares numbers out among several
/// maps gives each whole runs.
pub const NEAR: u64 = 8;

/// A map by numbers.
pub type IdMap<K, V> = HashMap<K, V, IdState>;

/// Makes the hashers of one process.
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
        IdHasher { secret: self.0, state: self.0, place: 0 }
    }
}

/// Hashes numbers.
#[derive(Clone, Copy, Debug)]
pub struct IdHasher {
    secret: u64,
    state: u64,
    /// The last number's place in its run.
    place: u64,
}

fn fold(number: u64) -> u64 {
    let product = u128::from(number) * u128::from(FACTOR);
    product as u64 ^ (product >> 64) as u64
}

impl Hasher for IdHasher {
    fn write_u64(&mut self, number: u64) {
        // The place of the number before goes where this one's run has no bits.
        self.state = fold(self.state ^ self.place.rotate_right(NEAR.ilog2()) ^ (number / NEAR));
        self.place = number % NEAR;
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn finish(&self) -> u64 {
        // A table's index is in the low bits, and its tag in the seven highest.
        fold(self.state ^ self.secret) ^ self.place ^ self.place << 57
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Numbers in a row and in steps of each power of two: a table's low bits and its seven
    /// high ones differ as much as those of chance. Folded once, those in steps of 2^17 had
    /// two thirds of that.
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

    /// Of a run each number has its own place beside the others', and its own tag.
    #[test]
    fn a_run_lies_together() {
        let state = IdState(0x1234_5678_9abc_def0);
        for run in 0..1000 * NEAR {
            let hashes = |of: fn(u64) -> u64| -> HashSet<u64> {
                (0..NEAR).map(|n| of(state.hash_one(run * NEAR + n))).collect()
            };
            assert_eq!(hashes(|h| h & (0xffff_ffff / NEAR * NEAR)).len(), 1);
            assert_eq!(hashes(|h| h % NEAR).len(), 8);
            assert_eq!(hashes(|h| h >> 57).len(), 8);
        }
    }

    #[test]
    fn a_map_finds_what_is_in_it() {
        let mut map = IdMap::default();
        for n in 0..10_000u64 {
            assert_eq!(map.insert(n * 32, n), None);
        }
        assert!((0..10_000u64).all(|n| map.get(&(n * 32)) == Some(&n)));
        assert_eq!(map.get(&1), None);
    }
}
