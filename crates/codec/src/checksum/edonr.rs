//! Edon-R-512, the tweaked variant that ZFS uses (chapter 02 §5.7).
//!
//! # Theory
//! A wide-pipe hash over 128-byte blocks: eight quasigroup products `Q` mix each block
//! into a state of two halves. ZFS hashes `K || data`, where the 128 bytes of `K` come
//! from the pool's salt; that block is absorbed in advance.
//!
//! Departure: none; ZFS's words are the first 32 bytes of the 64-byte digest.

type Half = [u64; 8];

/// A hash in progress, after a multiple of 128 bytes.
#[derive(Clone, Copy)]
struct EdonrState {
    lo: Half,
    hi: Half,
}

const INITIAL: EdonrState = {
    let mut p = [0u64; 16];
    let mut i = 0;
    while i < 16 {
        p[i] = 0x8081_8283_8485_8687 + (i as u64) * 0x0808_0808_0808_0808;
        i += 1;
    }
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, q] = p;
    EdonrState { lo: [a, b, c, d, e, f, g, h], hi: [i, j, k, l, m, n, o, q] }
};

macro_rules! sum {
    ($($x:expr),+) => { 0u64$(.wrapping_add($x))+ };
}

#[inline(always)]
fn quasigroup(x: &Half, y: &Half) -> Half {
    let [x0, x1, x2, x3, x4, x5, x6, x7] = *x;
    let [y0, y1, y2, y3, y4, y5, y6, y7] = *y;
    let s0 = sum!(0xaaaa_aaaa_aaaa_aaaa, x0, x1, x2, x4, x7);
    let s1 = sum!(x0, x1, x3, x4, x7).rotate_left(5);
    let s2 = sum!(x0, x1, x4, x6, x7).rotate_left(15);
    let s3 = sum!(x2, x3, x5, x6, x7).rotate_left(22);
    let s4 = sum!(x1, x2, x3, x5, x6).rotate_left(31);
    let s5 = sum!(x0, x2, x3, x4, x5).rotate_left(40);
    let s6 = sum!(x0, x1, x5, x6, x7).rotate_left(50);
    let s7 = sum!(x2, x3, x4, x5, x6).rotate_left(59);
    let t0 = sum!(0x5555_5555_5555_5555, y0, y1, y2, y5, y7);
    let t1 = sum!(y0, y1, y3, y4, y6).rotate_left(10);
    let t2 = sum!(y0, y1, y2, y3, y5).rotate_left(19);
    let t3 = sum!(y2, y3, y4, y6, y7).rotate_left(29);
    let t4 = sum!(y0, y1, y3, y4, y5).rotate_left(36);
    let t5 = sum!(y2, y4, y5, y6, y7).rotate_left(44);
    let t6 = sum!(y1, y2, y5, y6, y7).rotate_left(48);
    let t7 = sum!(y0, y3, y4, y6, y7).rotate_left(55);
    [
        (s0 ^ s1 ^ s4).wrapping_add(t0 ^ t1 ^ t5),
        (s0 ^ s4 ^ s7).wrapping_add(t2 ^ t6 ^ t7),
        (s1 ^ s6 ^ s7).wrapping_add(t0 ^ t1 ^ t3),
        (s2 ^ s3 ^ s4).wrapping_add(t0 ^ t3 ^ t4),
        (s0 ^ s1 ^ s7).wrapping_add(t1 ^ t2 ^ t5),
        (s3 ^ s5 ^ s6).wrapping_add(t3 ^ t4 ^ t6),
        (s2 ^ s5 ^ s6).wrapping_add(t2 ^ t5 ^ t7),
        (s2 ^ s3 ^ s5).wrapping_add(t4 ^ t6 ^ t7),
    ]
}

fn reversed(v: &Half) -> Half {
    let mut r = *v;
    r.reverse();
    r
}

impl EdonrState {
    fn block(&mut self, block: &[u8; 128]) {
        let mut d = [[0u64; 8]; 2];
        for (w, bytes) in d.as_flattened_mut().iter_mut().zip(block.as_chunks::<8>().0) {
            *w = u64::from_le_bytes(*bytes);
        }
        let [lo, hi] = d;
        let a = quasigroup(&reversed(&hi), &lo);
        let b = quasigroup(&a, &hi);
        let a = quasigroup(&self.hi, &a);
        let b = quasigroup(&a, &b);
        let a = quasigroup(&a, &self.lo);
        let b = quasigroup(&b, &a);
        let a = quasigroup(&reversed(&lo), &a);
        let b = quasigroup(&a, &b);
        for i in 0..8 {
            self.lo[i] ^= hi[i] ^ a[i];
            self.hi[i] ^= lo[i] ^ b[i];
        }
    }

    /// Absorbs the rest of the message and pads; `before` bytes were absorbed already.
    fn finish(mut self, data: &[u8], before: u64) -> [u8; 64] {
        let (blocks, tail) = data.as_chunks::<128>();
        for block in blocks {
            self.block(block);
        }
        let bits = before.wrapping_add(data.len() as u64).wrapping_mul(8);
        let mut last = [[0u8; 128]; 2];
        let flat = last.as_flattened_mut();
        let (head, rest) = flat.split_at_mut(tail.len());
        head.copy_from_slice(tail);
        rest[0] = 0x80;
        let count = if tail.len() < 120 { 1 } else { 2 };
        flat[count * 128 - 8..count * 128].copy_from_slice(&bits.to_le_bytes());
        for block in &last[..count] {
            self.block(block);
        }
        let mut out = [0; 64];
        for (bytes, w) in out.as_chunks_mut::<8>().0.iter_mut().zip(self.hi) {
            *bytes = w.to_le_bytes();
        }
        out
    }
}

/// Plain Edon-R-512 of `data`.
pub(crate) fn edonr512(data: &[u8]) -> [u8; 64] {
    INITIAL.finish(data, 0)
}

/// Edon-R-512 with the 128-byte prefix that a pool's salt gives.
#[derive(Clone)]
pub(crate) struct Prefixed(EdonrState);

impl Prefixed {
    /// Derives and absorbs the prefix `H(salt) || H(H(salt))`.
    pub(crate) fn new(salt: &[u8; 32]) -> Prefixed {
        let h1 = edonr512(salt);
        let h2 = edonr512(&h1);
        let mut key = [0; 128];
        key[..64].copy_from_slice(&h1);
        key[64..].copy_from_slice(&h2);
        let mut state = INITIAL;
        state.block(&key);
        Prefixed(state)
    }

    /// The first 32 bytes of the digest of prefix and `data`.
    pub(crate) fn hash(&self, data: &[u8]) -> [u8; 32] {
        let digest = self.0.finish(data, 128);
        std::array::from_fn(|i| digest[i])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(digest: [u8; 64]) -> String {
        digest.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Chapter 02 §5.7.
    #[test]
    fn vectors() {
        assert_eq!(
            hex(edonr512(b"")),
            "c57f7e17fdc1ce5074cc748c9bd38f9f51ebe88fbe6eda3190c4314cafb1abb2\
             980fac582d6e4ba8c641947d944bc56b74fb15de5546ad4f77934fca00052719"
        );
        assert_eq!(
            hex(edonr512(b"abc")),
            "1b14db155f1d406594b8cef70a4362ec6b5de6a5daf50ec999e987c19d3049e2\
             de5977bb05b1bb220050a1ea5b46a9f1740acafbf6b45032adc90c628372c22b"
        );
    }

    /// The prefix path equals hashing the concatenation, for every padding case.
    #[test]
    fn prefix_is_concatenation() {
        let salt = std::array::from_fn(|i| i as u8);
        let h1 = edonr512(&salt);
        let mut message = h1.to_vec();
        message.extend_from_slice(&edonr512(&h1));
        let prefixed = Prefixed::new(&salt);
        for len in 0..260u32 {
            assert_eq!(prefixed.hash(&message[128..]), edonr512(&message)[..32], "{len}");
            message.push((len * 31) as u8);
        }
    }
}
