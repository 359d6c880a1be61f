//! Runs every corpus file, and mutations of each, through the fuzzers' entry point with a fixed
//! amount of work.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::path::Path;

/// Mutations of each corpus file.
const MUTATIONS: u64 = 300;

/// A small generator with a fixed seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

#[test]
fn corpus_and_its_mutations_pass() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/stream");
    let mut files: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let seed = std::fs::read(&file).unwrap();
        stream::fuzzing::fuzz_stream(&seed);
        assert!(stream::fuzzing::with_sums(&seed) == seed, "{}", file.display());
        let mut random = Random(seed.len() as u64);
        for _ in 0..MUTATIONS {
            let mut bytes = seed.clone();
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len());
                match random.below(4) {
                    0 | 1 => bytes[at] ^= 1 << random.below(8),
                    2 => bytes[at] = random.next() as u8,
                    _ => bytes.truncate(at.max(1)),
                }
            }
            stream::fuzzing::fuzz_stream(&bytes);
            stream::fuzzing::fuzz_stream(&stream::fuzzing::with_sums(&bytes));
        }
    }
}
