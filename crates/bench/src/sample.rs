//! Random numbers and data for benches: random offsets, skewed keys, content that compresses or
//! does not, and medians.

/// xorshift64*: fast, and good enough to leave no pattern. Equal seeds give equal sequences, so
/// that phases read the same offsets.
#[derive(Clone, Debug)]
pub(super) struct XorShift(u64);

impl XorShift {
    pub(super) fn new(seed: u64) -> XorShift {
        XorShift(mix(seed).max(1))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`, which is not zero.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Between 0 and 1.
    pub(super) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Keys by rank: the k-th is drawn in proportion to `1 / (k + 1)^skew`.
pub(super) struct Zipf(Vec<f64>);

impl Zipf {
    /// A distribution over `keys` keys, at least one.
    pub(super) fn new(keys: u64, skew: f64) -> Zipf {
        let mut sum = 0.0;
        let weights = (0..keys.max(1)).map(|k| {
            sum += ((k + 1) as f64).powf(-skew);
            sum
        });
        Zipf(weights.collect())
    }

    /// A rank.
    pub(super) fn draw(&self, rng: &mut XorShift) -> u64 {
        let total = self.0.last().copied().unwrap_or(1.0);
        let at = rng.share() * total;
        self.0.partition_point(|&sum| sum <= at).min(self.0.len() - 1) as u64
    }
}

/// Permutes `0..count` so that neighbouring ranks are not adjacent.
pub(super) struct Scatter {
    count: u64,
    step: u64,
}

impl Scatter {
    pub(super) fn new(count: u64) -> Scatter {
        let count = count.max(1);
        // Near the golden ratio, and coprime to the count.
        let mut step = (count as f64 * 0.618_033_988_75) as u64 | 1;
        while gcd(step, count) != 1 {
            step += 2;
        }
        Scatter { count, step }
    }

    pub(super) fn position_of(&self, rank: u64) -> u64 {
        (u128::from(rank) * u128::from(self.step) % u128::from(self.count)) as u64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The content of files.
pub(super) enum SampleContent {
    /// Incompressible.
    Noise(u64),
    /// lz4 compresses it to about a half.
    Half(Vec<u8>),
}

/// Length of the sample from which half-compressible blocks are taken; a prime, so that blocks
/// do not repeat soon.
const SAMPLE: usize = 1_048_573;
/// Bytes between two states of the noise.
const NOISE_STEP: usize = 512;

impl SampleContent {
    pub(super) fn noise(seed: u64) -> SampleContent {
        SampleContent::Noise(seed)
    }

    pub(super) fn half() -> SampleContent {
        SampleContent::Half(codec::bench::sample(SAMPLE))
    }

    /// The bytes at `offset`, a multiple of 512.
    pub(super) fn fill(&self, offset: u64, out: &mut [u8]) {
        match self {
            SampleContent::Noise(seed) => {
                let chunks = (offset / NOISE_STEP as u64..).zip(out.chunks_mut(NOISE_STEP));
                for (n, chunk) in chunks {
                    let mut rng = XorShift::new(seed ^ n);
                    for word in chunk.chunks_mut(8) {
                        word.copy_from_slice(&rng.next().to_le_bytes()[..word.len()]);
                    }
                }
            }
            SampleContent::Half(sample) => {
                let mut from = (offset % SAMPLE as u64) as usize;
                let mut out = out;
                while !out.is_empty() {
                    let n = out.len().min(SAMPLE - from);
                    let (now, rest) = out.split_at_mut(n);
                    now.copy_from_slice(&sample[from..from + n]);
                    (out, from) = (rest, 0);
                }
            }
        }
    }
}

/// The median; `None` without values. Of an even number of values, the mean of the middle two.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[half]),
        _ => Some((sorted[half - 1] + sorted[half]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, f64::NAN, 1.0]), Some(2.5));
        assert_eq!(median([]), None);
    }

    #[test]
    fn zipf_prefers_low_ranks() {
        let (zipf, mut rng) = (Zipf::new(1000, 0.99), XorShift::new(1));
        let mut seen = [0u32; 1000];
        for _ in 0..200_000 {
            seen[zipf.draw(&mut rng) as usize] += 1;
        }
        // The first has 1 in 7.73 of the draws, the tenth a tenth of that.
        assert!((24_000..28_000).contains(&seen[0]), "{}", seen[0]);
        assert!((2_300..3_100).contains(&seen[9]), "{}", seen[9]);
        assert!(seen[990..].iter().sum::<u32>() > 50);
        assert_eq!(Zipf::new(1, 0.99).draw(&mut rng), 0);
    }

    #[test]
    fn scattering_is_a_permutation() {
        for count in [1, 2, 3, 10, 1000, 4096, 9973] {
            let scatter = Scatter::new(count);
            let mut all: Vec<u64> = (0..count).map(|r| scatter.position_of(r)).collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..count), "{count}");
        }
    }

    #[test]
    fn content_is_the_same_in_any_pieces() {
        for content in [SampleContent::noise(7), SampleContent::half()] {
            let mut whole = vec![0; 40_000];
            content.fill(SAMPLE as u64 / 512 * 512 - 1024, &mut whole);
            let mut pieces = vec![0; 40_000];
            for (n, piece) in pieces.chunks_mut(4096).enumerate() {
                content.fill(SAMPLE as u64 / 512 * 512 - 1024 + n as u64 * 4096, piece);
            }
            assert!(whole == pieces);
        }
        let mut block = vec![0; 128 << 10];
        let packed = |block: &[u8]| {
            let mut out = vec![0; block.len() * 2];
            codec::compress::compress(codec::compress::Compression::Lz4, block, &mut out).unwrap()
        };
        SampleContent::half().fill(0, &mut block);
        assert!((40 << 10..100 << 10).contains(&packed(&block)), "{}", packed(&block));
        SampleContent::noise(1).fill(0, &mut block);
        assert!(packed(&block) >= 128 << 10);
    }

    #[test]
    fn random_numbers_stay_below() {
        let mut rng = XorShift::new(0);
        assert!((0..1000).all(|_| rng.below(7) < 7));
        assert_eq!(XorShift::new(5).next(), XorShift::new(5).next());
        assert_ne!(XorShift::new(5).next(), XorShift::new(6).next());
    }
}
