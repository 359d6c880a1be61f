//! The loops of RAID-Z parity, generic over a vector type.
//!
//! # Theory
//! A strip of `U` vectors of each parity row is kept in registers while all data
//! columns are processed, so every data byte is loaded once and every parity byte
//! stored once. `ROWS` (bits P, Q, R) and whether columns may be absent are known at
//! compile time, so each case is a separate straight loop.
//!
//! # Invariants
//! Kernels do not check their jobs; the safe functions of the parent module do.

// Indices run over registers and over several arrays at once.
#![allow(clippy::needless_range_loop)]

use super::Raidz;
use super::gf::Solution;

/// Byte positions to process.
#[derive(Clone, Copy)]
pub(crate) struct ByteRange {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Parity to compute.
pub(crate) struct GenerateJob<'a> {
    /// P, Q, R; null rows are not computed. Valid for writes in the range.
    pub(crate) rows: [*mut u8; 3],
    /// Data columns in order; null columns are zero. Valid for reads in the range.
    pub(crate) columns: &'a [*const u8],
}

/// Data to recompute.
pub(crate) struct Rebuild<'a> {
    /// The stored P, Q, R; null where missing.
    pub(crate) stored: [*const u8; 3],
    /// Data columns in order, null where missing or ended.
    pub(crate) columns: &'a [*const u8],
    /// Destinations of the unknown columns.
    pub(crate) out: [*mut u8; 3],
    /// Number of valid entries of `out`, 1 to 3.
    pub(crate) unknowns: usize,
    /// Rows to use and their coefficients.
    pub(crate) solution: &'a Solution,
}

/// A vector of bytes in GF(2^8).
///
/// # Safety
/// Methods may be called only where the instruction set of the type is enabled;
/// `load` and `store` need `BYTES` valid bytes.
pub(crate) trait Vector: Copy {
    const BYTES: usize;
    /// A prepared constant factor.
    type Factor: Copy;
    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    unsafe fn zero() -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    /// `2 * self + d`.
    unsafe fn mul2_xor(self, d: Self) -> Self;
    /// `4 * self + d`.
    unsafe fn mul4_xor(self, d: Self) -> Self;
    unsafe fn factor(c: u8) -> Self::Factor;
    unsafe fn mul(self, factor: Self::Factor) -> Self;
}

const P: u8 = 1;
const Q: u8 = 2;
const R: u8 = 4;

/// Rows `ROWS` of one strip at `at`, in registers.
///
/// # Safety
/// As [`Vector`]; the job's columns are valid for `U * BYTES` bytes at `at`.
#[inline(always)]
unsafe fn strip<V: Vector, const U: usize, const ROWS: u8, const HOLES: bool>(
    columns: &[*const u8],
    at: usize,
) -> [[V; U]; 3] {
    // SAFETY: the caller guarantees that every load is valid.
    unsafe {
        let mut rows = [[V::zero(); U]; 3];
        for &column in columns {
            if HOLES && column.is_null() {
                for u in 0..U {
                    let zero = V::zero();
                    if ROWS & Q != 0 {
                        rows[1][u] = rows[1][u].mul2_xor(zero);
                    }
                    if ROWS & R != 0 {
                        rows[2][u] = rows[2][u].mul4_xor(zero);
                    }
                }
                continue;
            }
            let from = column.add(at);
            for u in 0..U {
                let d = V::load(from.add(u * V::BYTES));
                if ROWS & P != 0 {
                    rows[0][u] = rows[0][u].xor(d);
                }
                if ROWS & Q != 0 {
                    rows[1][u] = rows[1][u].mul2_xor(d);
                }
                if ROWS & R != 0 {
                    rows[2][u] = rows[2][u].mul4_xor(d);
                }
            }
        }
        rows
    }
}

/// # Safety
/// As [`strip`], and rows in `ROWS` are valid for writes.
#[inline(always)]
unsafe fn generate_run<V: Vector, const U: usize, const ROWS: u8, const HOLES: bool>(
    job: &GenerateJob<'_>,
    mut at: usize,
    end: usize,
) -> usize {
    while end - at >= U * V::BYTES {
        // SAFETY: the strip lies inside the range.
        unsafe {
            let rows = strip::<V, U, ROWS, HOLES>(job.columns, at);
            for r in 0..3 {
                if ROWS >> r & 1 != 0 {
                    for u in 0..U {
                        rows[r][u].store(job.rows[r].add(at + u * V::BYTES));
                    }
                }
            }
        }
        at += U * V::BYTES;
    }
    at
}

/// The rows `ROWS` of a range.
///
/// # Safety
/// As [`generate`].
#[inline(always)]
unsafe fn generate_rows<V: Vector, const U: usize, const ROWS: u8>(
    job: &GenerateJob<'_>,
    range: ByteRange,
) {
    let ByteRange { start, end } = range;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let at = if job.columns.iter().any(|c| c.is_null()) {
            let at = generate_run::<V, U, ROWS, true>(job, start, end);
            generate_run::<V, 1, ROWS, true>(job, at, end)
        } else {
            let at = generate_run::<V, U, ROWS, false>(job, start, end);
            generate_run::<V, 1, ROWS, false>(job, at, end)
        };
        generate_run::<u8, 1, ROWS, true>(job, at, end);
    }
}

/// Every row set; `U1`, `U2`, `U3` vectors per strip for one, two, three rows.
///
/// # Safety
/// The instruction set of `V` is enabled, and `job` is valid over the range.
#[inline(always)]
pub(crate) unsafe fn generate<V: Vector, const U1: usize, const U2: usize, const U3: usize>(
    job: &GenerateJob<'_>,
    range: ByteRange,
) {
    let [p, q, r] = job.rows.map(|row| u8::from(!row.is_null()));
    // SAFETY: guaranteed by the caller.
    unsafe {
        match p | q << 1 | r << 2 {
            1 => generate_rows::<V, U1, 1>(job, range),
            2 => generate_rows::<V, U1, 2>(job, range),
            3 => generate_rows::<V, U2, 3>(job, range),
            4 => generate_rows::<V, U1, 4>(job, range),
            5 => generate_rows::<V, U2, 5>(job, range),
            6 => generate_rows::<V, U2, 6>(job, range),
            7 => generate_rows::<V, U3, 7>(job, range),
            _ => {}
        }
    }
}

/// # Safety
/// As [`generate`], for a rebuild.
#[inline(always)]
unsafe fn rebuild_run<V: Vector, const U: usize, const ROWS: u8>(
    job: &Rebuild<'_>,
    mut at: usize,
    end: usize,
) -> usize {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let factors = job.solution.matrix.map(|line| line.map(|c| V::factor(c)));
        while end - at >= U * V::BYTES {
            let mut rows = strip::<V, U, ROWS, true>(job.columns, at);
            for r in 0..3 {
                if ROWS >> r & 1 != 0 {
                    for u in 0..U {
                        let stored = V::load(job.stored[r].add(at + u * V::BYTES));
                        rows[r][u] = rows[r][u].xor(stored);
                    }
                }
            }
            for x in 0..job.unknowns {
                for u in 0..U {
                    let mut sum = V::zero();
                    for r in 0..3 {
                        if ROWS >> r & 1 == 0 {
                            continue;
                        }
                        // A single unknown from P needs no multiplication.
                        let term =
                            if ROWS == P { rows[r][u] } else { rows[r][u].mul(factors[x][r]) };
                        sum = sum.xor(term);
                    }
                    sum.store(job.out[x].add(at + u * V::BYTES));
                }
            }
            at += U * V::BYTES;
        }
    }
    at
}

/// The columns of a range, from the rows `ROWS`.
///
/// # Safety
/// As [`rebuild`].
#[inline(always)]
unsafe fn rebuild_rows<V: Vector, const U: usize, const ROWS: u8>(
    job: &Rebuild<'_>,
    range: ByteRange,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let at = rebuild_run::<V, U, ROWS>(job, range.start, range.end);
        let at = rebuild_run::<V, 1, ROWS>(job, at, range.end);
        rebuild_run::<u8, 1, ROWS>(job, at, range.end);
    }
}

/// # Safety
/// The instruction set of `V` is enabled, and `job` is valid over the range.
#[inline(always)]
pub(crate) unsafe fn rebuild<V: Vector, const U1: usize, const U2: usize, const U3: usize>(
    job: &Rebuild<'_>,
    range: ByteRange,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match job.solution.rows {
            1 => rebuild_rows::<V, U1, 1>(job, range),
            2 => rebuild_rows::<V, U1, 2>(job, range),
            3 => rebuild_rows::<V, U2, 3>(job, range),
            4 => rebuild_rows::<V, U1, 4>(job, range),
            5 => rebuild_rows::<V, U2, 5>(job, range),
            6 => rebuild_rows::<V, U2, 6>(job, range),
            7 => rebuild_rows::<V, U3, 7>(job, range),
            _ => {}
        }
    }
}

/// Single bytes, for the tails.
impl Vector for u8 {
    const BYTES: usize = 1;
    type Factor = u8;
    #[inline(always)]
    unsafe fn load(from: *const u8) -> u8 {
        // SAFETY: one valid byte.
        unsafe { *from }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: one valid byte.
        unsafe { *to = self }
    }
    #[inline(always)]
    unsafe fn zero() -> u8 {
        0
    }
    #[inline(always)]
    unsafe fn xor(self, other: u8) -> u8 {
        self ^ other
    }
    #[inline(always)]
    unsafe fn mul2_xor(self, d: u8) -> u8 {
        super::gf::mul2(self) ^ d
    }
    #[inline(always)]
    unsafe fn mul4_xor(self, d: u8) -> u8 {
        super::gf::mul2(super::gf::mul2(self)) ^ d
    }
    #[inline(always)]
    unsafe fn factor(c: u8) -> u8 {
        c
    }
    #[inline(always)]
    unsafe fn mul(self, factor: u8) -> u8 {
        super::gf::mul(self, factor)
    }
}

const LOW: u64 = 0x0101_0101_0101_0101;

#[inline(always)]
fn double(x: u64) -> u64 {
    let high = x >> 7 & LOW;
    ((x & (LOW * 0x7f)) << 1) ^ (high * 0x1d)
}

/// Eight bytes in a machine word, for every processor.
impl Vector for u64 {
    const BYTES: usize = 8;
    type Factor = u8;
    #[inline(always)]
    unsafe fn load(from: *const u8) -> u64 {
        // SAFETY: eight valid bytes, any alignment.
        unsafe { from.cast::<u64>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: eight valid bytes, any alignment.
        unsafe { to.cast::<u64>().write_unaligned(self) }
    }
    #[inline(always)]
    unsafe fn zero() -> u64 {
        0
    }
    #[inline(always)]
    unsafe fn xor(self, other: u64) -> u64 {
        self ^ other
    }
    #[inline(always)]
    unsafe fn mul2_xor(self, d: u64) -> u64 {
        double(self) ^ d
    }
    #[inline(always)]
    unsafe fn mul4_xor(self, d: u64) -> u64 {
        double(double(self)) ^ d
    }
    #[inline(always)]
    unsafe fn factor(c: u8) -> u8 {
        c
    }
    #[inline(always)]
    unsafe fn mul(self, factor: u8) -> u64 {
        let (mut x, mut c, mut sum) = (self, factor, 0);
        while c != 0 {
            if c & 1 != 0 {
                sum ^= x;
            }
            x = double(x);
            c >>= 1;
        }
        sum
    }
}

fn always() -> bool {
    true
}

/// # Safety
/// `job` is valid over the range.
unsafe fn scalar_generate(job: &GenerateJob<'_>, range: ByteRange) {
    // SAFETY: guaranteed by the caller; no special instructions.
    unsafe { generate::<u64, 4, 4, 2>(job, range) }
}

/// # Safety
/// `job` is valid over the range.
unsafe fn scalar_rebuild(job: &Rebuild<'_>, range: ByteRange) {
    // SAFETY: guaranteed by the caller; no special instructions.
    unsafe { rebuild::<u64, 4, 2, 2>(job, range) }
}

/// Machine words.
pub(crate) static SCALAR: Raidz =
    Raidz { name: "scalar", available: always, generate: scalar_generate, rebuild: scalar_rebuild };
