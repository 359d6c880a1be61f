//! Runs every corpus file, and 2000 seeded mutations of each, through its entry point,
//! as the fuzzers do, but with a fixed amount of work and a stable compiler.

use std::path::Path;

use ondisk::{fuzzing, fuzzing2};

/// Mutations of each corpus file.
const MUTATIONS: u64 = 2000;

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

/// Values with which lengths and counts often fail.
const EVIL: [u64; 8] = [0, 1, 7, 0x7f, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(6) {
            0 | 1 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
            2 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = random.next() as u8;
                }
            }
            3 => {
                let value = EVIL[random.below(EVIL.len())];
                let wide = [1, 2, 4, 8][random.below(4)];
                let raw = if random.below(2) == 0 {
                    value.to_le_bytes()[..wide].to_vec()
                } else {
                    value.to_be_bytes()[8 - wide..].to_vec()
                };
                let at = at & !(wide - 1);
                bytes.iter_mut().skip(at).zip(raw).for_each(|(to, from)| *to = from);
            }
            4 => {
                // Words from another position in the same file.
                let from = random.below(bytes.len()) & !3;
                let piece: Vec<u8> =
                    bytes.iter().skip(from).take(4 << random.below(4)).copied().collect();
                bytes.iter_mut().skip(at & !3).zip(piece).for_each(|(to, from)| *to = from);
            }
            _ => bytes.truncate(at),
        }
    }
}

#[test]
fn corpus_and_its_mutations_pass() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let others: [(&str, fuzzing::Target); 5] = [
        ("zap", fuzzing2::fuzz_zap),
        ("sa", fuzzing2::fuzz_sa),
        ("dslphys", fuzzing2::fuzz_dslphys),
        ("normalize", fuzzing2::fuzz_normalize),
        ("xattr", fuzzing2::fuzz_xattr),
    ];
    for (name, target) in fuzzing::TARGETS.into_iter().chain(others) {
        let mut files: Vec<_> = std::fs::read_dir(root.join(name))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        assert!(!files.is_empty(), "no corpus for {name}");
        for file in files {
            let seed = std::fs::read(&file).unwrap();
            target(&seed);
            let mut random = Random(seed.len() as u64);
            for _ in 0..MUTATIONS {
                let mut bytes = seed.clone();
                mutate(&mut bytes, &mut random);
                target(&bytes);
            }
        }
    }
}
