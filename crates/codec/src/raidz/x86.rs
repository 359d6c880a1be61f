//! RAID-Z vectors for x86-64: SSSE3, AVX2, AVX-512BW and GFNI.
//!
//! # Theory
//! Doubling is a shift with a conditional XOR of 0x1d: by compare and mask, or, with
//! GFNI, by one multiplication with an 8 x 8 bit matrix, which also implements every
//! other constant. Without GFNI a constant is two 16-entry tables, one for each nibble,
//! looked up by a byte shuffle.

use std::arch::x86_64::*;

use super::Raidz;
use super::gf;
use super::kernel::{ByteRange, GenerateJob, Rebuild, Vector, generate, rebuild};

/// For each constant, its products with all low and all high nibbles.
static NIBBLES: [[[u8; 16]; 2]; 256] = {
    let mut tables = [[[0; 16]; 2]; 256];
    let mut i = 0;
    while i < 256 * 32 {
        let (c, high, n) = (i / 32, i / 16 % 2, i % 16);
        tables[c][high][n] = gf::mul(c as u8, (n as u8) << (4 * high));
        i += 1;
    }
    tables
};

fn nibble_tables(c: u8) -> &'static [[u8; 16]; 2] {
    &NIBBLES[usize::from(c)]
}

/// For each constant, [`bit_matrix`].
static MATRICES: [u64; 256] = {
    let mut table = [0; 256];
    let mut c = 0;
    while c < 256 {
        table[c] = bit_matrix(c as u8);
        c += 1;
    }
    table
};

/// Multiplication by `c` as the bit matrix of `gf2p8affineqb`: byte `7 - i` holds
/// the input bits that output bit `i` sums.
const fn bit_matrix(c: u8) -> u64 {
    let mut matrix = 0u64;
    let mut input = 0;
    while input < 8 {
        let product = gf::mul(c, 1 << input);
        let mut output = 0;
        while output < 8 {
            if product >> output & 1 != 0 {
                matrix |= 1 << ((7 - output) * 8 + input);
            }
            output += 1;
        }
        input += 1;
    }
    matrix
}

const TIMES_2: i64 = bit_matrix(2) as i64;
const TIMES_4: i64 = bit_matrix(4) as i64;

#[derive(Clone, Copy)]
struct Ssse3(__m128i);
#[derive(Clone, Copy)]
struct Avx2(__m256i);
#[derive(Clone, Copy)]
struct Avx512(__m512i);
#[derive(Clone, Copy)]
struct Gfni256(__m256i);
#[derive(Clone, Copy)]
struct Gfni512(__m512i);

macro_rules! plain {
    ($bytes:literal, $load:ident, $store:ident, $zero:ident, $xor:ident) => {
        const BYTES: usize = $bytes;
        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: BYTES valid bytes, any alignment.
            unsafe { Self($load(from.cast())) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut u8) {
            // SAFETY: BYTES valid bytes, any alignment.
            unsafe { $store(to.cast(), self.0) }
        }
        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: the instruction set is enabled.
            unsafe { Self($zero()) }
        }
        #[inline(always)]
        unsafe fn xor(self, other: Self) -> Self {
            // SAFETY: the instruction set is enabled.
            unsafe { Self($xor(self.0, other.0)) }
        }
    };
}

impl Ssse3 {
    /// # Safety
    /// SSSE3 is enabled.
    #[inline(always)]
    unsafe fn double(x: __m128i) -> __m128i {
        // SAFETY: SSSE3 is enabled.
        unsafe {
            let high = _mm_cmpgt_epi8(_mm_setzero_si128(), x);
            _mm_xor_si128(_mm_add_epi8(x, x), _mm_and_si128(high, _mm_set1_epi8(0x1d)))
        }
    }
}

impl Vector for Ssse3 {
    plain!(16, _mm_loadu_si128, _mm_storeu_si128, _mm_setzero_si128, _mm_xor_si128);
    type Factor = [__m128i; 2];
    #[inline(always)]
    unsafe fn mul2_xor(self, d: Self) -> Self {
        // SAFETY: SSSE3 is enabled.
        unsafe { Self(_mm_xor_si128(Self::double(self.0), d.0)) }
    }
    #[inline(always)]
    unsafe fn mul4_xor(self, d: Self) -> Self {
        // SAFETY: SSSE3 is enabled.
        unsafe { Self(_mm_xor_si128(Self::double(Self::double(self.0)), d.0)) }
    }
    #[inline(always)]
    unsafe fn factor(c: u8) -> Self::Factor {
        nibble_tables(c).each_ref().map(|t| {
            // SAFETY: the table is 16 bytes; the instruction set is enabled.
            unsafe { _mm_loadu_si128(t.as_ptr().cast()) }
        })
    }
    #[inline(always)]
    unsafe fn mul(self, [low, high]: Self::Factor) -> Self {
        // SAFETY: SSSE3 is enabled.
        unsafe {
            let mask = _mm_set1_epi8(0x0f);
            let l = _mm_shuffle_epi8(low, _mm_and_si128(self.0, mask));
            let h = _mm_shuffle_epi8(high, _mm_and_si128(_mm_srli_epi16::<4>(self.0), mask));
            Self(_mm_xor_si128(l, h))
        }
    }
}

impl Avx2 {
    /// # Safety
    /// AVX2 is enabled.
    #[inline(always)]
    unsafe fn double(x: __m256i) -> __m256i {
        // SAFETY: AVX2 is enabled.
        unsafe {
            let high = _mm256_cmpgt_epi8(_mm256_setzero_si256(), x);
            let poly = _mm256_and_si256(high, _mm256_set1_epi8(0x1d));
            _mm256_xor_si256(_mm256_add_epi8(x, x), poly)
        }
    }
}

impl Vector for Avx2 {
    plain!(32, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_setzero_si256, _mm256_xor_si256);
    type Factor = [__m256i; 2];
    #[inline(always)]
    unsafe fn mul2_xor(self, d: Self) -> Self {
        // SAFETY: AVX2 is enabled.
        unsafe { Self(_mm256_xor_si256(Self::double(self.0), d.0)) }
    }
    #[inline(always)]
    unsafe fn mul4_xor(self, d: Self) -> Self {
        // SAFETY: AVX2 is enabled.
        unsafe { Self(_mm256_xor_si256(Self::double(Self::double(self.0)), d.0)) }
    }
    #[inline(always)]
    unsafe fn factor(c: u8) -> Self::Factor {
        nibble_tables(c).each_ref().map(|t| {
            // SAFETY: the table is 16 bytes; the instruction set is enabled.
            unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(t.as_ptr().cast())) }
        })
    }
    #[inline(always)]
    unsafe fn mul(self, [low, high]: Self::Factor) -> Self {
        // SAFETY: AVX2 is enabled.
        unsafe {
            let mask = _mm256_set1_epi8(0x0f);
            let l = _mm256_shuffle_epi8(low, _mm256_and_si256(self.0, mask));
            let nibbles = _mm256_and_si256(_mm256_srli_epi16::<4>(self.0), mask);
            Self(_mm256_xor_si256(l, _mm256_shuffle_epi8(high, nibbles)))
        }
    }
}

/// The truth table of a three-way XOR.
const XOR3: i32 = 0x96;

impl Avx512 {
    /// The value that XOR adds to `x + x` to give `2 * x`.
    ///
    /// # Safety
    /// AVX-512BW is enabled.
    #[inline(always)]
    unsafe fn carry(x: __m512i) -> __m512i {
        // SAFETY: AVX-512BW is enabled.
        unsafe { _mm512_maskz_mov_epi8(_mm512_movepi8_mask(x), _mm512_set1_epi8(0x1d)) }
    }
}

impl Vector for Avx512 {
    plain!(64, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_setzero_si512, _mm512_xor_si512);
    type Factor = [__m512i; 2];
    #[inline(always)]
    unsafe fn mul2_xor(self, d: Self) -> Self {
        // SAFETY: AVX-512BW is enabled.
        unsafe {
            let twice = _mm512_add_epi8(self.0, self.0);
            Self(_mm512_ternarylogic_epi64::<XOR3>(twice, Self::carry(self.0), d.0))
        }
    }
    #[inline(always)]
    unsafe fn mul4_xor(self, d: Self) -> Self {
        // SAFETY: AVX-512BW is enabled.
        unsafe { self.mul2_xor(Self(_mm512_setzero_si512())).mul2_xor(d) }
    }
    #[inline(always)]
    unsafe fn factor(c: u8) -> Self::Factor {
        nibble_tables(c).each_ref().map(|t| {
            // SAFETY: the table is 16 bytes; the instruction set is enabled.
            unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(t.as_ptr().cast())) }
        })
    }
    #[inline(always)]
    unsafe fn mul(self, [low, high]: Self::Factor) -> Self {
        // SAFETY: AVX-512BW is enabled.
        unsafe {
            let mask = _mm512_set1_epi8(0x0f);
            let l = _mm512_shuffle_epi8(low, _mm512_and_si512(self.0, mask));
            let nibbles = _mm512_and_si512(_mm512_srli_epi16::<4>(self.0), mask);
            Self(_mm512_xor_si512(l, _mm512_shuffle_epi8(high, nibbles)))
        }
    }
}

macro_rules! gfni {
    ($affine:ident, $set1:ident, $xor:ident, $register:ty) => {
        type Factor = $register;
        #[inline(always)]
        unsafe fn mul2_xor(self, d: Self) -> Self {
            // SAFETY: the instruction set is enabled.
            unsafe { Self($xor($affine::<0>(self.0, $set1(TIMES_2)), d.0)) }
        }
        #[inline(always)]
        unsafe fn mul4_xor(self, d: Self) -> Self {
            // SAFETY: the instruction set is enabled.
            unsafe { Self($xor($affine::<0>(self.0, $set1(TIMES_4)), d.0)) }
        }
        #[inline(always)]
        unsafe fn factor(c: u8) -> Self::Factor {
            // SAFETY: the instruction set is enabled.
            unsafe { $set1(MATRICES[usize::from(c)] as i64) }
        }
        #[inline(always)]
        unsafe fn mul(self, factor: Self::Factor) -> Self {
            // SAFETY: the instruction set is enabled.
            unsafe { Self($affine::<0>(self.0, factor)) }
        }
    };
}

impl Vector for Gfni256 {
    plain!(32, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_setzero_si256, _mm256_xor_si256);
    gfni!(_mm256_gf2p8affine_epi64_epi8, _mm256_set1_epi64x, _mm256_xor_si256, __m256i);
}

impl Vector for Gfni512 {
    plain!(64, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_setzero_si512, _mm512_xor_si512);
    gfni!(_mm512_gf2p8affine_epi64_epi8, _mm512_set1_epi64, _mm512_xor_si512, __m512i);
}

macro_rules! implementation {
    ($static:ident, $name:literal, $vector:ty, $features:literal, [$($feature:tt),*],
     $gen:tt, $rec:tt) => {
        pub(crate) static $static: Raidz = {
            fn available() -> bool {
                true $(&& is_x86_feature_detected!($feature))*
            }
            /// # Safety
            /// The processor has the instruction set, and `job` is valid over the range.
            #[target_feature(enable = $features)]
            unsafe fn gen_all(job: &GenerateJob<'_>, range: ByteRange) {
                // SAFETY: guaranteed by the caller; the instruction set is enabled
                // here.
                unsafe { implementation!(@ generate, $vector, $gen)(job, range) }
            }
            /// # Safety
            /// As `gen_all`.
            #[target_feature(enable = $features)]
            unsafe fn rec_all(job: &Rebuild<'_>, range: ByteRange) {
                // SAFETY: guaranteed by the caller; the instruction set is enabled
                // here.
                unsafe { implementation!(@ rebuild, $vector, $rec)(job, range) }
            }
            Raidz { name: $name, available, generate: gen_all, rebuild: rec_all }
        };
    };
    (@ $f:ident, $vector:ty, ($a:literal, $b:literal, $c:literal)) => { $f::<$vector, $a, $b, $c> };
}

implementation!(SSSE3, "ssse3", Ssse3, "ssse3", ["ssse3"], (4, 4, 2), (4, 2, 2));
implementation!(AVX2, "avx2", Avx2, "avx2", ["avx2"], (4, 4, 2), (4, 2, 2));
implementation!(
    AVX512BW,
    "avx512bw",
    Avx512,
    "avx512f,avx512bw",
    ["avx512f", "avx512bw"],
    (4, 4, 4),
    (4, 4, 2)
);
implementation!(GFNI, "gfni", Gfni256, "avx2,gfni", ["avx2", "gfni"], (4, 4, 4), (4, 2, 2));
implementation!(
    GFNI512,
    "gfni512",
    Gfni512,
    "avx512f,avx512bw,gfni",
    ["avx512f", "avx512bw", "gfni"],
    (4, 4, 4),
    (4, 4, 2)
);
