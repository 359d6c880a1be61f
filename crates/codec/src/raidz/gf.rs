//! Arithmetic in GF(2^8) with polynomial 0x11d and generator 2 (chapter 02 §10.4), on
//! single values: for coefficients, not for data.

const POLY: u8 = 0x1d;

/// `2 * x`.
pub const fn mul2(x: u8) -> u8 {
    (x << 1) ^ if x & 0x80 != 0 { POLY } else { 0 }
}

/// Powers of 2, repeated twice, so that two logarithms can be added without reduction.
const EXP: [u8; 510] = {
    let mut table = [0; 510];
    let mut x = 1;
    let mut i = 0;
    while i < 510 {
        table[i] = x;
        x = mul2(x);
        i += 1;
    }
    table
};

/// Logarithms to base 2; that of 0 is unused.
const LOG: [u8; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 255 {
        table[EXP[i] as usize] = i as u8;
        i += 1;
    }
    table
};

/// `x * y`.
pub(crate) const fn mul(x: u8, y: u8) -> u8 {
    if x == 0 || y == 0 { 0 } else { EXP[LOG[x as usize] as usize + LOG[y as usize] as usize] }
}

/// `x` to the power `n`.
pub const fn pow(x: u8, n: usize) -> u8 {
    match (x, n) {
        (_, 0) => 1,
        (0, _) => 0,
        // The group has order 255.
        _ => EXP[LOG[x as usize] as usize * (n % 255) % 255],
    }
}

/// `1 / x`; 0 for 0.
pub(crate) const fn inverse(x: u8) -> u8 {
    if x == 0 { 0 } else { pow(x, 254) }
}

/// The solution of up to three unknown columns from as many parity rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Solution {
    /// Which of P, Q, R are used: bits 0 to 2.
    pub rows: u8,
    /// `matrix[x][r]`: unknown `x` is the sum over rows `r` (0 P, 1 Q, 2 R) of
    /// this times the row's syndrome. Zero for unused rows.
    pub matrix: [[u8; 3]; 3],
}

/// Chooses the first available parity rows and inverts their coefficients for the
/// `unknown` columns out of `count`. `None` if there are too few rows (or the
/// matrix is singular, which does not happen below 252 columns).
pub fn solve(unknown: &[usize], available: [bool; 3], count: usize) -> Option<Solution> {
    let n = unknown.len();
    let mut chosen = [0usize; 3];
    let mut found = 0;
    for (row, _) in available.iter().enumerate().filter(|(_, a)| **a).take(n) {
        *chosen.get_mut(found)? = row;
        found += 1;
    }
    if found < n || n > 3 {
        return None;
    }
    // Gauss-Jordan on [coefficients | identity].
    let mut m = [[0u8; 6]; 3];
    for (i, (line, row)) in m.iter_mut().zip(chosen).enumerate().take(n) {
        for (cell, &x) in line.iter_mut().zip(unknown) {
            *cell = pow(1 << row, count.checked_sub(1)?.checked_sub(x)?);
        }
        line[3 + i] = 1;
    }
    for i in 0..n {
        let pivot = (i..n).find(|&r| m[r][i] != 0)?;
        m.swap(i, pivot);
        let factor = inverse(m[i][i]);
        m[i] = m[i].map(|c| mul(c, factor));
        for r in 0..n {
            if r != i {
                let factor = m[r][i];
                let line = m[i];
                for (c, l) in m[r].iter_mut().zip(line) {
                    *c ^= mul(factor, l);
                }
            }
        }
    }
    let mut solution = Solution { rows: 0, matrix: [[0; 3]; 3] };
    for (i, &row) in chosen.iter().enumerate().take(n) {
        solution.rows |= 1 << row;
        for (line, from) in solution.matrix.iter_mut().zip(m).take(n) {
            line[row] = from[3 + i];
        }
    }
    Some(solution)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplication from its definition, without tables.
    fn slow_mul(mut x: u8, y: u8) -> u8 {
        let mut sum = 0;
        for bit in 0..8 {
            if y >> bit & 1 != 0 {
                sum ^= x;
            }
            x = mul2(x);
        }
        sum
    }

    #[test]
    fn field_laws() {
        for (x, y) in (0..=u16::MAX).map(|i| (i as u8, (i >> 8) as u8)) {
            assert_eq!(mul(x, y), slow_mul(x, y));
        }
        for x in 0..=255u8 {
            assert_eq!(mul(x, 2), mul2(x));
            assert_eq!(mul(x, inverse(x)), u8::from(x != 0));
            for y in [3, 29, 200] {
                assert_eq!(mul(x, y), mul(y, x));
                assert_eq!(mul(x, y ^ 7), mul(x, y) ^ mul(x, 7));
            }
        }
        assert_eq!(pow(2, 8), 0x1d);
        assert_eq!(pow(2, 255), 1);
    }

    /// Every choice of unknowns and rows has a solution up to the column limit.
    #[test]
    fn always_invertible() {
        for count in [1usize, 2, 3, 9, 64, crate::raidz::DATA_COLUMNS_MAX] {
            let step = 1 + count / 20;
            for x in (0..count).step_by(step) {
                for y in (x + 1..count).step_by(step) {
                    for z in (y + 1..count).step_by(step) {
                        assert!(solve(&[x, y, z], [true; 3], count).is_some());
                    }
                    for missing in 0..3 {
                        let rows = std::array::from_fn(|i| i != missing);
                        assert!(solve(&[x, y], rows, count).is_some());
                    }
                }
            }
        }
        assert_eq!(solve(&[0, 1], [true, false, false], 4), None);
    }
}
