//! A stripe's parity and its missing columns (chapter 02 §10.4, 10.5): an adapter from
//! this crate's stripes to `codec::raidz`.

use base::BufMut;
use codec::raidz::{self, Column};

/// The most data columns of a stripe.
pub(crate) const DATA_COLUMNS_MAX: usize = raidz::DATA_COLUMNS_MAX;

/// Computes the parity of data columns, in order; shorter columns count as extended
/// with zeros. All parity columns are equally long. Returns `None` for an invalid
/// shape.
pub(crate) fn generate(parity: &mut [&mut [u8]], data: &[&[u8]]) -> Option<()> {
    raidz::generate(parity, data).ok()
}

/// Computes the missing data columns (`None`), each `colsize` long, from parity columns
/// (row, bytes). Returns `None` if there are too few parity columns.
pub(crate) fn recover(
    parity: &[(usize, &[u8])],
    data: &[Option<&[u8]>],
    colsize: usize,
) -> Option<Vec<(usize, BufMut)>> {
    let missing: Vec<usize> =
        data.iter().enumerate().filter(|(_, d)| d.is_none()).map(|(i, _)| i).collect();
    if missing.is_empty() {
        return Some(Vec::new());
    }
    let used = parity.get(..missing.len())?;
    let rows = used.iter().map(|p| p.0).max()? + 1;
    let mut found: Vec<BufMut> = missing.iter().map(|_| BufMut::alloc(colsize)).collect();
    // The rows between the used ones are produced as a by-product.
    let mut spare: Vec<BufMut> = (used.len()..rows).map(|_| BufMut::alloc(colsize)).collect();
    let mut spares = spare.iter_mut();
    let mut parity_cols = Vec::with_capacity(rows);
    for row in 0..rows {
        parity_cols.push(match used.iter().find(|u| u.0 == row) {
            Some((_, bytes)) => Column::Present(bytes),
            None => Column::Missing(spares.next()?),
        });
    }
    let mut targets = found.iter_mut();
    let mut data_cols = Vec::with_capacity(data.len());
    for bytes in data {
        data_cols.push(match bytes {
            Some(bytes) => Column::Present(bytes),
            None => Column::Missing(targets.next()?),
        });
    }
    raidz::reconstruct(&mut parity_cols, &mut data_cols).ok()?;
    drop(data_cols);
    Some(missing.into_iter().zip(found).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_chapters_parity_vector() {
        let full: [&[u8]; 3] =
            [&[0x01, 0x80, 0xff, 0x10], &[0x02, 0x40, 0x0f, 0x20], &[0x04, 0xc0, 0xf0, 0x30]];
        let short: [&[u8]; 3] = [full[0], &full[1][..2], &full[2][..2]];
        type Case<'a> = (&'a [&'a [u8]; 3], [[u8; 4]; 3]);
        let expected: [Case<'_>; 2] = [
            (&full, [[7, 0, 0, 0], [0x04, 0x7a, 0x35, 0x30], [0x1c, 0x35, 0x87, 0xad]]),
            (&short, [[7, 0, 0xff, 0x10], [0x04, 0x7a, 0xdb, 0x40], [0x1c, 0x35, 0x4b, 0x1d]]),
        ];
        for (data, parities) in expected {
            let (mut p, mut q, mut r) = ([9; 4], [9; 4], [9; 4]);
            generate(&mut [&mut p, &mut q, &mut r], data).unwrap();
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
        generate(&mut out, &slices).unwrap();
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

    /// The recurrence of the chapter, computed byte by byte.
    fn naive(row: usize, data: &[Vec<u8>], colsize: usize) -> Vec<u8> {
        let mul2 = |x: u8| (x << 1) ^ if x & 0x80 != 0 { 0x1d } else { 0 };
        let step = |x: u8| (0..row).fold(x, |x, _| mul2(x));
        let byte = |i: usize| {
            data.iter().fold(0, |x, column| step(x) ^ column.get(i).copied().unwrap_or(0))
        };
        (0..colsize).map(byte).collect()
    }

    proptest! {
        #[test]
        fn generated_parity_is_the_chapters(
            colsize in 1usize..600,
            cuts in prop::collection::vec((any::<u8>(), 0usize..600), 1..12),
        ) {
            let data: Vec<Vec<u8>> = cuts
                .iter()
                .map(|(seed, cut)| {
                    (0..colsize.min(*cut)).map(|i| seed.wrapping_mul(31) ^ (i * 7) as u8).collect()
                })
                .collect();
            let slices: Vec<&[u8]> = data.iter().map(|d| &d[..]).collect();
            let mut parity = vec![vec![1; colsize]; 3];
            let mut out: Vec<&mut [u8]> = parity.iter_mut().map(|p| &mut p[..]).collect();
            generate(&mut out, &slices).unwrap();
            for (row, bytes) in parity.iter().enumerate() {
                prop_assert_eq!(bytes, &naive(row, &data, colsize));
            }
        }
    }
}
