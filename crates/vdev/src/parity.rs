//! Filling in a stripe's missing columns (chapter 02 §10.5).
//!
//! # Theory
//! With the missing columns taken as zero, each parity row differs from the stored
//! one by its syndrome; the missing columns solve a square system over GF(2^8)
//! whose rows are (1), (2^(m-1-i)), (4^(m-1-i)).

use base::BufMut;

/// x times y in GF(2^8), polynomial 0x11d.
const fn mul(mut x: u8, mut y: u8) -> u8 {
    let mut product = 0;
    while y != 0 {
        if y & 1 != 0 {
            product ^= x;
        }
        x = mul2(x);
        y >>= 1;
    }
    product
}

const fn mul2(x: u8) -> u8 {
    (x << 1) ^ if x & 0x80 != 0 { 0x1d } else { 0 }
}

fn pow(base: u8, exponent: usize) -> u8 {
    (0..exponent).fold(1, |x, _| mul(x, base))
}

/// The inverse: x^254.
fn inverse(x: u8) -> u8 {
    pow(x, 254)
}

/// Parity of data columns, in order; shorter columns count as extended with zeros.
/// All parity columns are equally long.
pub(crate) fn generate(parity: &mut [&mut [u8]], data: &[&[u8]]) {
    for (row, out) in parity.iter_mut().enumerate() {
        out.fill(0);
        for column in data {
            for _ in 0..row {
                out.iter_mut().for_each(|x| *x = mul2(*x));
            }
            out.iter_mut().zip(*column).for_each(|(x, d)| *x ^= d);
        }
    }
}

/// The missing data columns (`None`), each `colsize` long, from as many parity
/// columns (row, bytes). `None` if there are fewer.
pub(crate) fn recover(
    parity: &[(usize, &[u8])],
    data: &[Option<&[u8]>],
    colsize: usize,
) -> Option<Vec<(usize, BufMut)>> {
    let missing: Vec<usize> =
        data.iter().enumerate().filter(|(_, d)| d.is_none()).map(|(i, _)| i).collect();
    let count = missing.len();
    if count == 0 {
        return Some(Vec::new());
    }
    let used = parity.get(..count)?;
    let present: Vec<&[u8]> = data.iter().map(|d| d.unwrap_or(&[])).collect();
    let rows = used.iter().map(|p| p.0).max()? + 1;
    let mut computed: Vec<BufMut> = (0..rows).map(|_| BufMut::alloc(colsize)).collect();
    let mut slices: Vec<&mut [u8]> = computed.iter_mut().map(|b| &mut b[..]).collect();
    generate(&mut slices, &present);
    for (row, stored) in used {
        computed[*row].iter_mut().zip(*stored).for_each(|(x, s)| *x ^= s);
    }
    let exponent = |column: usize| data.len() - 1 - column;
    let matrix: Vec<Vec<u8>> = used
        .iter()
        .map(|(row, _)| missing.iter().map(|&i| pow(pow(2, *row), exponent(i))).collect())
        .collect();
    let inverted = invert(matrix)?;
    let mut out = Vec::with_capacity(count);
    for (x, &column) in missing.iter().enumerate() {
        let mut buf = BufMut::zeroed(colsize);
        for (j, (row, _)) in used.iter().enumerate() {
            let factor = inverted[x][j];
            let table: Vec<u8> = (0..=255).map(|v| mul(v, factor)).collect();
            buf.iter_mut()
                .zip(computed[*row].iter())
                .for_each(|(b, s)| *b ^= table[usize::from(*s)]);
        }
        out.push((column, buf));
    }
    Some(out)
}

/// Gauss-Jordan; `None` if singular.
fn invert(mut a: Vec<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
    let n = a.len();
    let mut b: Vec<Vec<u8>> = (0..n).map(|i| (0..n).map(|j| u8::from(i == j)).collect()).collect();
    for i in 0..n {
        let pivot = (i..n).find(|&r| a[r][i] != 0)?;
        a.swap(i, pivot);
        b.swap(i, pivot);
        let scale = inverse(a[i][i]);
        for matrix in [&mut a, &mut b] {
            matrix[i].iter_mut().for_each(|x| *x = mul(*x, scale));
        }
        for r in (0..n).filter(|&r| r != i) {
            let factor = a[r][i];
            for matrix in [&mut a, &mut b] {
                let pivot_row = matrix[i].clone();
                matrix[r].iter_mut().zip(pivot_row).for_each(|(x, p)| *x ^= mul(p, factor));
            }
        }
    }
    Some(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chapters_parity_vector() {
        let full: [&[u8]; 3] =
            [&[0x01, 0x80, 0xff, 0x10], &[0x02, 0x40, 0x0f, 0x20], &[0x04, 0xc0, 0xf0, 0x30]];
        let short: [&[u8]; 3] = [full[0], &full[1][..2], &full[2][..2]];
        let expected: [(&[&[u8]; 3], [[u8; 4]; 3]); 2] = [
            (&full, [[7, 0, 0, 0], [0x04, 0x7a, 0x35, 0x30], [0x1c, 0x35, 0x87, 0xad]]),
            (&short, [[7, 0, 0xff, 0x10], [0x04, 0x7a, 0xdb, 0x40], [0x1c, 0x35, 0x4b, 0x1d]]),
        ];
        for (data, parities) in expected {
            let (mut p, mut q, mut r) = ([9; 4], [9; 4], [9; 4]);
            generate(&mut [&mut p, &mut q, &mut r], data);
            assert_eq!([p, q, r], parities);
        }
    }

    #[test]
    fn every_choice_of_parity_recovers_every_loss() {
        let data: Vec<Vec<u8>> =
            (0..9u8).map(|i| (0..16).map(|j| i.wrapping_mul(37) ^ (j * 11)).collect()).collect();
        let slices: Vec<&[u8]> = data.iter().map(|d| &d[..]).collect();
        let mut parity = vec![vec![0; 16]; 3];
        let mut out: Vec<&mut [u8]> = parity.iter_mut().map(|p| &mut p[..]).collect();
        generate(&mut out, &slices);
        for lost in 1u32..1 << 9 {
            for rows in 1u32..1 << 3 {
                if lost.count_ones() != rows.count_ones() {
                    continue;
                }
                let kept: Vec<Option<&[u8]>> =
                    (0..9).map(|i| (lost >> i & 1 == 0).then_some(slices[i])).collect();
                let have: Vec<(usize, &[u8])> =
                    (0..3).filter(|r| rows >> r & 1 == 1).map(|r| (r, &parity[r][..])).collect();
                for (column, bytes) in recover(&have, &kept, 16).unwrap() {
                    assert_eq!(&bytes[..], slices[column], "lost {lost:b} rows {rows:b}");
                }
            }
        }
    }
}
