//! Skein-512 v1.3 with 256 bits of output in MAC mode (chapter 02 §5.5).
//!
//! # Theory
//! Skein chains UBI calls of the tweakable cipher Threefish-512: key, configuration,
//! message, output. The first two depend only on the salt: [`Keyed`] holds the chaining
//! value after them. A block's encryption is XORed with its plaintext
//! (Matyas-Meyer-Oseas); the tweak carries the position, type and first/final flags.

type SkeinBlock = [u64; 8];

const TYPE_KEY: u64 = 0;
const TYPE_CONFIG: u64 = 4;
const TYPE_MESSAGE: u64 = 48;
const TYPE_OUTPUT: u64 = 63;
const FIRST: u64 = 1 << 62;
const FINAL: u64 = 1 << 63;
const PARITY: u64 = 0x1bd1_1bda_a9fc_1a22;

macro_rules! mix {
    ($v:ident, $a:literal, $b:literal, $r:literal) => {
        $v[$a] = $v[$a].wrapping_add($v[$b]);
        $v[$b] = $v[$b].rotate_left($r) ^ $v[$a];
    };
}

/// Four rounds; the word permutation is folded into the indices.
macro_rules! rounds {
    ($v:ident, $([$($r:literal),*])*) => { rounds!(@ $v, $($($r),*),*) };
    (@ $v:ident, $a:literal,$b:literal,$c:literal,$d:literal, $e:literal,$f:literal,$g:literal,$h:literal,
       $i:literal,$j:literal,$k:literal,$l:literal, $m:literal,$n:literal,$o:literal,$p:literal) => {
        mix!($v, 0, 1, $a); mix!($v, 2, 3, $b); mix!($v, 4, 5, $c); mix!($v, 6, 7, $d);
        mix!($v, 2, 1, $e); mix!($v, 4, 7, $f); mix!($v, 6, 5, $g); mix!($v, 0, 3, $h);
        mix!($v, 4, 1, $i); mix!($v, 6, 3, $j); mix!($v, 0, 5, $k); mix!($v, 2, 7, $l);
        mix!($v, 6, 1, $m); mix!($v, 0, 7, $n); mix!($v, 2, 5, $o); mix!($v, 4, 3, $p);
    };
}

/// Adds subkey `S`, whose words are taken cyclically from key and tweak.
#[inline(always)]
fn add_subkey<const S: usize>(v: &mut SkeinBlock, key: &[u64; 9], tweak: &[u64; 3]) {
    macro_rules! add {
        ($($i:literal)*) => { $(v[$i] = v[$i].wrapping_add(key[(S + $i) % 9]);)* };
    }
    add!(0 1 2 3 4 5 6 7);
    v[5] = v[5].wrapping_add(tweak[S % 3]);
    v[6] = v[6].wrapping_add(tweak[(S + 1) % 3]);
    v[7] = v[7].wrapping_add(S as u64);
}

/// One block of UBI: `chain` becomes `E(chain, tweak, block) ^ block`.
#[inline(always)]
fn ubi_block(chain: &mut SkeinBlock, block: &[u8; 64], position: u64, flags: u64) {
    let mut plain = [0; 8];
    for (w, bytes) in plain.iter_mut().zip(block.as_chunks::<8>().0) {
        *w = u64::from_le_bytes(*bytes);
    }
    let mut key = [PARITY; 9];
    key[..8].copy_from_slice(chain);
    key[8] = chain.iter().fold(PARITY, |x, k| x ^ k);
    let tweak = [position, flags, position ^ flags];
    let mut v = plain;
    add_subkey::<0>(&mut v, &key, &tweak);
    macro_rules! eight {
        ($($s:literal)*) => {$(
            rounds!(v, [46, 36, 19, 37] [33, 27, 14, 42] [17, 49, 36, 39] [44, 9, 54, 56]);
            add_subkey::<{ 2 * $s + 1 }>(&mut v, &key, &tweak);
            rounds!(v, [39, 30, 34, 24] [13, 50, 10, 17] [25, 29, 39, 43] [8, 35, 56, 22]);
            add_subkey::<{ 2 * $s + 2 }>(&mut v, &key, &tweak);
        )*};
    }
    eight!(0 1 2 3 4 5 6 7 8);
    for i in 0..8 {
        chain[i] = v[i] ^ plain[i];
    }
}

fn ubi(chain: &mut SkeinBlock, data: &[u8], kind: u64) {
    // The last block, full or not, is the one that is flagged and padded.
    let whole = data.len().saturating_sub(1) / 64;
    let (head, tail) = data.split_at(whole * 64);
    let mut flags = (kind << 56) | FIRST;
    let mut position = 0u64;
    for block in head.as_chunks::<64>().0 {
        position += 64;
        ubi_block(chain, block, position, flags);
        flags &= !FIRST;
    }
    let mut last = [0; 64];
    last[..tail.len()].copy_from_slice(tail);
    ubi_block(chain, &last, position + tail.len() as u64, flags | FINAL);
}

/// Skein-512-256 keyed by a pool's salt.
#[derive(Clone)]
pub struct Keyed(SkeinBlock);

impl Keyed {
    /// Absorbs the key and the configuration.
    pub fn new(salt: &[u8; 32]) -> Keyed {
        let mut chain = [0; 8];
        ubi(&mut chain, salt, TYPE_KEY);
        let mut config = [0; 32];
        config[..4].copy_from_slice(b"SHA3");
        config[4] = 1;
        config[8..16].copy_from_slice(&256u64.to_le_bytes());
        ubi(&mut chain, &config, TYPE_CONFIG);
        Keyed(chain)
    }

    /// The 32-byte MAC of `data`.
    pub fn hash(&self, data: &[u8]) -> [u8; 32] {
        let mut chain = self.0;
        ubi(&mut chain, data, TYPE_MESSAGE);
        ubi(&mut chain, &[0; 8], TYPE_OUTPUT);
        let mut out = [0; 32];
        for (bytes, w) in out.as_chunks_mut::<8>().0.iter_mut().zip(chain) {
            *bytes = w.to_le_bytes();
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published unkeyed Skein-512-256 of the empty message; the keyed chain
    /// is covered by the vectors of the parent module.
    #[test]
    fn unkeyed_empty_message() {
        let mut chain = [0; 8];
        let mut config = [0; 32];
        config[..4].copy_from_slice(b"SHA3");
        config[4] = 1;
        config[8..16].copy_from_slice(&256u64.to_le_bytes());
        ubi(&mut chain, &config, TYPE_CONFIG);
        let hex: String = Keyed(chain).hash(b"").iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "39ccc4554a8b31853b9de7a1fe638a24cce6b35a55f2431009e18780335d2621");
    }

    /// Messages around block boundaries differ and do not depend on trailing state.
    #[test]
    fn lengths_are_distinct() {
        let keyed = Keyed::new(&[7; 32]);
        let zeros = [0u8; 200];
        let all: std::collections::HashSet<_> = (0..200).map(|n| keyed.hash(&zeros[..n])).collect();
        assert_eq!(all.len(), 200);
    }
}
