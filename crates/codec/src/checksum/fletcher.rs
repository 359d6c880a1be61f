//! Fletcher-2 and fletcher-4 (chapter 02 §5.1, §5.2, §5.9).
//!
//! # Theory
//! Both are iterated running sums modulo 2^64. Sums over adjacent ranges combine
//! ([`Fletcher4::combine`]), and sums over the `k` interleaved lanes of a vector
//! register fold into the sum over all words. With `n` the distance of a word from
//! the end (its weight in `b`), word `j` of lane `l` has `n = k*m - l`, and the
//! weights `n`, `n(n+1)/2`, `n(n+1)(n+2)/6` of `b`, `c`, `d` are linear in the same
//! polynomials of `m`, which are what each lane has summed.
//!
//! # Invariants
//! Every implementation accepts every length and alignment and equals [`SCALAR`].

use super::Words;

/// One implementation of all four fletcher functions.
pub struct Fletcher {
    /// For `cenote bench codecs` and tests.
    pub name: &'static str,
    /// Whether this processor can run it.
    pub available: fn() -> bool,
    pub(crate) fletcher2: fn(&[u8]) -> Words,
    pub(crate) fletcher2_swapped: fn(&[u8]) -> Words,
    pub(crate) fletcher4: fn(&[u8]) -> Words,
    pub(crate) fletcher4_swapped: fn(&[u8]) -> Words,
}

impl Fletcher {
    /// Fletcher-2 by this implementation.
    ///
    /// # Panics
    /// If the processor cannot run it.
    pub fn fletcher2(&self, data: &[u8], swapped: bool) -> Words {
        assert!((self.available)(), "{} is not available here", self.name);
        if swapped { (self.fletcher2_swapped)(data) } else { (self.fletcher2)(data) }
    }

    /// Fletcher-4 by this implementation.
    ///
    /// # Panics
    /// If the processor cannot run it.
    pub fn fletcher4(&self, data: &[u8], swapped: bool) -> Words {
        assert!((self.available)(), "{} is not available here", self.name);
        if swapped { (self.fletcher4_swapped)(data) } else { (self.fletcher4)(data) }
    }
}

fn always() -> bool {
    true
}

/// The reference.
pub(crate) static SCALAR: Fletcher = Fletcher {
    name: "scalar",
    available: always,
    fletcher2: |d| scalar2(d, [0; 4], u64::from_le_bytes),
    fletcher2_swapped: |d| scalar2(d, [0; 4], u64::from_be_bytes),
    fletcher4: |d| scalar4(d, [0; 4], u32::from_le_bytes),
    fletcher4_swapped: |d| scalar4(d, [0; 4], u32::from_be_bytes),
};

/// Every implementation built for this architecture, available or not.
pub(crate) static IMPLEMENTATIONS: &[&Fletcher] = &[
    &SCALAR,
    #[cfg(target_arch = "x86_64")]
    &super::fletcher_x86::SSSE3,
    #[cfg(target_arch = "x86_64")]
    &super::fletcher_x86::AVX2,
    #[cfg(target_arch = "x86_64")]
    &super::fletcher_x86::AVX512,
];

/// Continues fletcher-2 from `from`; a tail below 16 bytes is ignored.
#[inline(always)]
pub(crate) fn scalar2(data: &[u8], from: Words, read: fn([u8; 8]) -> u64) -> Words {
    let [mut a0, mut a1, mut b0, mut b1] = from;
    for pair in data.as_chunks::<16>().0 {
        let [x, y] = [0, 8].map(|i| read(std::array::from_fn(|k| pair[i + k])));
        a0 = a0.wrapping_add(x);
        a1 = a1.wrapping_add(y);
        b0 = b0.wrapping_add(a0);
        b1 = b1.wrapping_add(a1);
    }
    [a0, a1, b0, b1]
}

/// Continues fletcher-4 from `from`; a tail below 4 bytes is ignored.
#[inline(always)]
pub(crate) fn scalar4(data: &[u8], from: Words, read: fn([u8; 4]) -> u32) -> Words {
    let [mut a, mut b, mut c, mut d] = from;
    for word in data.as_chunks::<4>().0 {
        a = a.wrapping_add(u64::from(read(*word)));
        b = b.wrapping_add(a);
        c = c.wrapping_add(b);
        d = d.wrapping_add(c);
    }
    [a, b, c, d]
}

/// Folds the sums of `k` interleaved fletcher-4 lanes into the sum of all words.
pub(crate) fn fold4(lanes: &[Words]) -> Words {
    let k = lanes.len() as i64;
    let mut out = [0u64; 4];
    let term = |coefficient: i64, sum: u64| (coefficient as u64).wrapping_mul(sum);
    for (l, &[a, b, c, d]) in (0i64..).zip(lanes) {
        let parts = [
            [1, 0, 0, 0],
            [-l, k, 0, 0],
            [l * (l - 1) / 2, k * (1 - k) / 2 - k * l, k * k, 0],
            [
                -l * (l - 1) * (l - 2) / 6,
                (k * k * k + 3 * k * k * l + 3 * k * l * l - 3 * k * k - 6 * k * l + 2 * k) / 6,
                k * k * (1 - k - l),
                k * k * k,
            ],
        ];
        for (o, p) in out.iter_mut().zip(parts) {
            for (coefficient, sum) in p.into_iter().zip([a, b, c, d]) {
                *o = o.wrapping_add(term(coefficient, sum));
            }
        }
    }
    out
}

/// Folds `k` interleaved fletcher-2 lanes, each `(a0, a1, b0, b1)`.
pub(crate) fn fold2(lanes: &[Words]) -> Words {
    let k = lanes.len() as u64;
    let mut out = [0u64; 4];
    for (l, &[a0, a1, b0, b1]) in (0u64..).zip(lanes) {
        let weighted = |b: u64, a: u64| k.wrapping_mul(b).wrapping_sub(l.wrapping_mul(a));
        out[0] = out[0].wrapping_add(a0);
        out[1] = out[1].wrapping_add(a1);
        out[2] = out[2].wrapping_add(weighted(b0, a0));
        out[3] = out[3].wrapping_add(weighted(b1, a1));
    }
    out
}

/// Fletcher-2 of `data` by the best implementation; `swapped`: written on a
/// machine of the other byte order.
pub fn fletcher2(data: &[u8], swapped: bool) -> Words {
    let best = crate::cpu::fletcher2();
    // The selection holds available implementations only.
    if swapped { (best.fletcher2_swapped)(data) } else { (best.fletcher2)(data) }
}

/// Fletcher-4 of `data` by the best implementation; `swapped` as in [`fletcher2`].
pub fn fletcher4(data: &[u8], swapped: bool) -> Words {
    let best = crate::cpu::fletcher4();
    if swapped { (best.fletcher4_swapped)(data) } else { (best.fletcher4)(data) }
}

/// A fletcher-4 sum that can be extended: for streams, and to combine sums of separate
/// ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fletcher4 {
    /// The current sum.
    pub words: Words,
}

impl Fletcher4 {
    /// The sum over nothing.
    pub fn new() -> Fletcher4 {
        Fletcher4::default()
    }

    /// Appends `data`, whose length must be a multiple of 4 (a tail is ignored).
    pub fn update(&mut self, data: &[u8], swapped: bool) {
        let next = Fletcher4 { words: fletcher4(data, swapped) };
        *self = self.combine(&next, data.len() as u64);
    }

    /// The sum over this range followed by a second one of `second_bytes` bytes
    /// whose own sum is `second` (chapter 02 §5.2).
    #[must_use]
    pub fn combine(&self, second: &Fletcher4, second_bytes: u64) -> Fletcher4 {
        let [a1, b1, c1, d1] = self.words;
        let [a2, b2, c2, d2] = second.words;
        let n = u128::from(second_bytes / 4);
        // n is below 2^62, so n(n+1) fits in 128 bits; the next product need not.
        let n2 = n * (n + 1) / 2;
        // One of n, n+1, n+2 is a multiple of 3; if not in n2, then n+2 is.
        let n3 = match n2 % 3 {
            0 => (n2 / 3).wrapping_mul(n + 2),
            _ => (n + 2).div_euclid(3).wrapping_mul(n2),
        };
        let [n, n2, n3] = [n as u64, n2 as u64, n3 as u64];
        let sum = |parts: [(u64, u64); 3]| {
            parts.into_iter().fold(0u64, |s, (x, y)| s.wrapping_add(x.wrapping_mul(y)))
        };
        let words = [
            a1.wrapping_add(a2),
            b1.wrapping_add(b2).wrapping_add(n.wrapping_mul(a1)),
            c1.wrapping_add(c2).wrapping_add(sum([(n, b1), (n2, a1), (0, 0)])),
            d1.wrapping_add(d2).wrapping_add(sum([(n, c1), (n2, b1), (n3, a1)])),
        ];
        Fletcher4 { words }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut x = seed | 1;
        (0..len)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                (x >> 32) as u8
            })
            .collect()
    }

    proptest! {
        #[test]
        fn implementations_equal_scalar(len in 0usize..5000, skip in 0usize..70, seed: u64) {
            let buf = noise(len + skip, seed);
            let data = &buf[skip..];
            for imp in IMPLEMENTATIONS.iter().filter(|i| (i.available)()) {
                for swapped in [false, true] {
                    prop_assert_eq!(imp.fletcher4(data, swapped), SCALAR.fletcher4(data, swapped), "{} 4", imp.name);
                    prop_assert_eq!(imp.fletcher2(data, swapped), SCALAR.fletcher2(data, swapped), "{} 2", imp.name);
                }
            }
        }

        #[test]
        fn pieces_combine(cuts in proptest::collection::vec(0usize..300, 0..6), seed: u64) {
            let total: usize = cuts.iter().sum::<usize>() * 4;
            let data = noise(total, seed);
            let mut sum = Fletcher4::new();
            let mut rest = &data[..];
            for cut in cuts {
                let (piece, after) = rest.split_at(cut * 4);
                sum.update(piece, false);
                rest = after;
            }
            prop_assert_eq!(sum.words, SCALAR.fletcher4(&data, false));
        }
    }

    /// The largest words over a megabyte, so that every sum overflows.
    #[test]
    fn saturated_input() {
        let data = vec![0xff; 1 << 20];
        for imp in IMPLEMENTATIONS.iter().filter(|i| (i.available)()) {
            assert_eq!(imp.fletcher4(&data, false), SCALAR.fletcher4(&data, false));
            assert_eq!(imp.fletcher2(&data, true), SCALAR.fletcher2(&data, true));
        }
    }

    /// A length whose n(n+1)(n+2) exceeds 64 bits many times over.
    #[test]
    fn combine_is_exact_for_huge_ranges() {
        let one = Fletcher4 { words: [1, 0, 0, 0] };
        let n = (1u128 << 40) + 1;
        let c = one.combine(&Fletcher4::new(), 4 * n as u64).words;
        // The same polynomial computed differently: divide the factors that are
        // divisible.
        let (x, y, z) = (n, n + 1, n + 2);
        let (y, d) = (y / 2, 3);
        let want = [x, y, z].iter().fold((1u64, d), |(p, d), f| {
            if d == 3 && f % 3 == 0 {
                (p.wrapping_mul((f / 3) as u64), 1)
            } else {
                (p.wrapping_mul(*f as u64), d)
            }
        });
        assert_eq!(want.1, 1);
        assert_eq!(c[3], want.0);
    }
}
