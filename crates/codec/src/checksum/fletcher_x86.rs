//! Fletcher sums by SSSE3, AVX2 and AVX-512BW.
//!
//! # Theory
//! Each 64-bit lane of a register sums its own words; `fold4` and `fold2` join the
//! lanes (see the parent). Fletcher-4 widens 32-bit words on loading; the other
//! byte order costs one shuffle per load.

use std::arch::x86_64::*;

use super::Words;
use super::fletcher::{Fletcher, fold2, fold4, scalar2, scalar4};

/// Transposes `[a, b, c, d]` registers of `K` lanes into words per lane.
fn lanes<const K: usize>(sums: [[u64; K]; 4]) -> [Words; K] {
    std::array::from_fn(|l| sums.map(|register| register[l]))
}

macro_rules! read {
    ($ty:ty, false) => {
        <$ty>::from_le_bytes
    };
    ($ty:ty, true) => {
        <$ty>::from_be_bytes
    };
}

/// One fletcher-4 function: `$k` lanes, `$widen` loads `4 * $k` bytes at a pointer
/// as zero-extended words.
macro_rules! fletcher4 {
    ($name:ident, $features:literal, $k:literal, $zero:ident, $add:ident, $register:ty,
     $swap:tt, |$p:ident| $widen:expr) => {
        fn $name(data: &[u8]) -> Words {
            #[target_feature(enable = $features)]
            fn sums(data: &[[u8; 4 * $k * 4]]) -> Words {
                let [mut a, mut b, mut c, mut d] = [$zero(); 4];
                for chunk in data {
                    for i in 0..4 {
                        let $p = chunk[i * 4 * $k..].as_ptr();
                        // SAFETY: 4 * $k bytes at `i * 4 * $k` are inside the chunk.
                        let words = unsafe { $widen };
                        a = $add(a, words);
                        b = $add(b, a);
                        c = $add(c, b);
                        d = $add(d, c);
                    }
                }
                let sums = [a, b, c, d].map(|r| {
                    // SAFETY: a register of `$k` lanes is as large as `$k` words.
                    unsafe { std::mem::transmute::<$register, [u64; $k]>(r) }
                });
                fold4(&lanes(sums))
            }
            let (chunks, tail) = data.as_chunks::<{ 4 * $k * 4 }>();
            // SAFETY: callers go through an available implementation.
            let head = unsafe { sums(chunks) };
            scalar4(tail, head, read!(u32, $swap))
        }
    };
}

/// One fletcher-2 function: `$k` lanes of pairs, `$load` loads `16 * $k` bytes.
macro_rules! fletcher2 {
    ($name:ident, $features:literal, $k:literal, $zero:ident, $add:ident, $register:ty,
     $swap:tt, |$p:ident| $load:expr) => {
        fn $name(data: &[u8]) -> Words {
            #[target_feature(enable = $features)]
            fn sums(data: &[[u8; 16 * $k * 2]]) -> Words {
                let [mut a, mut b] = [$zero(); 2];
                for chunk in data {
                    for i in 0..2 {
                        let $p = chunk[i * 16 * $k..].as_ptr();
                        // SAFETY: 16 * $k bytes at `i * 16 * $k` are inside the chunk.
                        let words = unsafe { $load };
                        a = $add(a, words);
                        b = $add(b, a);
                    }
                }
                let [a, b] = [a, b].map(|r| {
                    // SAFETY: a register is as large as `2 * $k` words.
                    unsafe { std::mem::transmute::<$register, [[u64; 2]; $k]>(r) }
                });
                let lanes: [Words; $k] =
                    std::array::from_fn(|l| [a[l][0], a[l][1], b[l][0], b[l][1]]);
                fold2(&lanes)
            }
            let (chunks, tail) = data.as_chunks::<{ 16 * $k * 2 }>();
            // SAFETY: callers go through an available implementation.
            let head = unsafe { sums(chunks) };
            scalar2(tail, head, read!(u64, $swap))
        }
    };
}

/// Shuffle that reverses the 4 bytes in the low half of each 64-bit lane (the high
/// half is zero already).
const SWAP4_LOW: [i8; 16] = [3, 2, 1, 0, 4, 5, 6, 7, 11, 10, 9, 8, 12, 13, 14, 15];
/// Shuffle that takes words 0 and 1, reversed and widened with zeros.
const SWAP4_WIDEN: [i8; 16] = [3, 2, 1, 0, -1, -1, -1, -1, 7, 6, 5, 4, -1, -1, -1, -1];
/// Shuffle that reverses each 8 bytes.
const SWAP8: [i8; 16] = [7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8];

#[target_feature(enable = "ssse3")]
#[inline]
fn mask128(m: &[i8; 16]) -> __m128i {
    // SAFETY: 16 bytes are there.
    unsafe { _mm_loadu_si128(m.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn mask256(m: &[i8; 16]) -> __m256i {
    _mm256_broadcastsi128_si256(mask128(m))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn mask512(m: &[i8; 16]) -> __m512i {
    _mm512_broadcast_i32x4(mask128(m))
}

fletcher4!(ssse3_4, "ssse3", 2, _mm_setzero_si128, _mm_add_epi64, __m128i, false, |p| {
    _mm_unpacklo_epi32(_mm_loadl_epi64(p.cast()), _mm_setzero_si128())
});
fletcher4!(ssse3_4s, "ssse3", 2, _mm_setzero_si128, _mm_add_epi64, __m128i, true, |p| {
    _mm_shuffle_epi8(_mm_loadl_epi64(p.cast()), mask128(&SWAP4_WIDEN))
});
fletcher2!(ssse3_2, "ssse3", 1, _mm_setzero_si128, _mm_add_epi64, __m128i, false, |p| {
    _mm_loadu_si128(p.cast())
});
fletcher2!(ssse3_2s, "ssse3", 1, _mm_setzero_si128, _mm_add_epi64, __m128i, true, |p| {
    _mm_shuffle_epi8(_mm_loadu_si128(p.cast()), mask128(&SWAP8))
});

fletcher4!(avx2_4, "avx2", 4, _mm256_setzero_si256, _mm256_add_epi64, __m256i, false, |p| {
    _mm256_cvtepu32_epi64(_mm_loadu_si128(p.cast()))
});
fletcher4!(avx2_4s, "avx2", 4, _mm256_setzero_si256, _mm256_add_epi64, __m256i, true, |p| {
    _mm256_shuffle_epi8(_mm256_cvtepu32_epi64(_mm_loadu_si128(p.cast())), mask256(&SWAP4_LOW))
});
fletcher2!(avx2_2, "avx2", 2, _mm256_setzero_si256, _mm256_add_epi64, __m256i, false, |p| {
    _mm256_loadu_si256(p.cast())
});
fletcher2!(avx2_2s, "avx2", 2, _mm256_setzero_si256, _mm256_add_epi64, __m256i, true, |p| {
    _mm256_shuffle_epi8(_mm256_loadu_si256(p.cast()), mask256(&SWAP8))
});

fletcher4!(
    avx512_4,
    "avx512f,avx512bw",
    8,
    _mm512_setzero_si512,
    _mm512_add_epi64,
    __m512i,
    false,
    |p| _mm512_cvtepu32_epi64(_mm256_loadu_si256(p.cast()))
);
fletcher4!(
    avx512_4s,
    "avx512f,avx512bw",
    8,
    _mm512_setzero_si512,
    _mm512_add_epi64,
    __m512i,
    true,
    |p| _mm512_shuffle_epi8(
        _mm512_cvtepu32_epi64(_mm256_loadu_si256(p.cast())),
        mask512(&SWAP4_LOW)
    )
);
fletcher2!(
    avx512_2,
    "avx512f,avx512bw",
    4,
    _mm512_setzero_si512,
    _mm512_add_epi64,
    __m512i,
    false,
    |p| _mm512_loadu_si512(p.cast())
);
fletcher2!(
    avx512_2s,
    "avx512f,avx512bw",
    4,
    _mm512_setzero_si512,
    _mm512_add_epi64,
    __m512i,
    true,
    |p| _mm512_shuffle_epi8(_mm512_loadu_si512(p.cast()), mask512(&SWAP8))
);

pub(super) static SSSE3: Fletcher = Fletcher {
    name: "ssse3",
    available: || is_x86_feature_detected!("ssse3"),
    fletcher2: ssse3_2,
    fletcher2_swapped: ssse3_2s,
    fletcher4: ssse3_4,
    fletcher4_swapped: ssse3_4s,
};

pub(super) static AVX2: Fletcher = Fletcher {
    name: "avx2",
    available: || is_x86_feature_detected!("avx2"),
    fletcher2: avx2_2,
    fletcher2_swapped: avx2_2s,
    fletcher4: avx2_4,
    fletcher4_swapped: avx2_4s,
};

pub(super) static AVX512: Fletcher = Fletcher {
    name: "avx512bw",
    available: || is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw"),
    fletcher2: avx512_2,
    fletcher2_swapped: avx512_2s,
    fletcher4: avx512_4,
    fletcher4_swapped: avx512_4s,
};
