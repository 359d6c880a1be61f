use super::*;
use proptest::prelude::*;

/// Computed byte by byte, as the chapter describes it.
fn naive(parity: usize, data: &[Vec<u8>], len: usize) -> Vec<Vec<u8>> {
    let mut rows = vec![vec![0u8; len]; parity];
    for at in 0..len {
        for column in data {
            let d = column.get(at).copied().unwrap_or(0);
            for (r, row) in rows.iter_mut().enumerate() {
                for _ in 0..r {
                    row[at] = (row[at] << 1) ^ if row[at] & 0x80 != 0 { 0x1d } else { 0 };
                }
                row[at] ^= d;
            }
        }
    }
    rows
}

fn noise(len: usize, seed: &mut u64) -> Vec<u8> {
    (0..len)
        .map(|_| {
            *seed ^= *seed << 13;
            *seed ^= *seed >> 7;
            *seed ^= *seed << 17;
            (*seed >> 24) as u8
        })
        .collect()
}

fn run(imp: &Raidz, parity: usize, data: &[&[u8]], len: usize, skew: usize) -> Vec<Vec<u8>> {
    // Rows at odd addresses, with canaries around.
    let mut rows = vec![vec![0xa5u8; len + 2 * skew + 128]; parity];
    let mut views: Vec<&mut [u8]> = rows.iter_mut().map(|r| &mut r[skew..skew + len]).collect();
    generate_with(imp, &mut views, data).unwrap();
    for row in &rows {
        assert!(row[..skew].iter().chain(&row[skew + len..]).all(|&b| b == 0xa5), "{}", imp.name);
    }
    rows.into_iter().map(|r| r[skew..skew + len].to_vec()).collect()
}

fn available() -> impl Iterator<Item = &'static Raidz> {
    IMPLEMENTATIONS.iter().copied().filter(|i| (i.available)())
}

/// Chapter 02 §10.4.
#[test]
fn vectors() {
    let d0 = [0x01, 0x80, 0xff, 0x10];
    let d1 = [0x02, 0x40, 0x0f, 0x20];
    let d2 = [0x04, 0xc0, 0xf0, 0x30];
    for imp in available() {
        let rows = run(imp, 3, &[&d0, &d1, &d2], 4, 1);
        assert_eq!(rows[0], [0x07, 0x00, 0x00, 0x00]);
        assert_eq!(rows[1], [0x04, 0x7a, 0x35, 0x30]);
        assert_eq!(rows[2], [0x1c, 0x35, 0x87, 0xad]);
        let rows = run(imp, 3, &[&d0, &d1[..2], &d2[..2]], 4, 1);
        assert_eq!(rows[0], [0x07, 0x00, 0xff, 0x10]);
        assert_eq!(rows[1], [0x04, 0x7a, 0xdb, 0x40]);
        assert_eq!(rows[2], [0x1c, 0x35, 0x4b, 0x1d]);
        let one = run(imp, 3, &[&d0], 4, 0);
        assert_eq!(one, [d0, d0, d0]);
    }
}

/// A block with random column lengths; the parity is as long as the longest.
fn block(lens: &[usize], seed: u64) -> (Vec<Vec<u8>>, usize) {
    let mut seed = seed | 1;
    let data: Vec<Vec<u8>> = lens.iter().map(|&l| noise(l, &mut seed)).collect();
    (data, lens.iter().copied().max().unwrap_or(0))
}

/// Reconstructs with every set of at most `parity` missing columns.
fn reconstruct_all(imp: &Raidz, parity: usize, data: &[Vec<u8>], len: usize) {
    let rows = naive(parity, data, len);
    let columns = parity + data.len();
    for set in 1u32..1 << columns {
        if set.count_ones() as usize > parity {
            continue;
        }
        let mut stored: Vec<Vec<u8>> = rows.iter().chain(data).cloned().collect();
        for (c, column) in stored.iter_mut().enumerate() {
            if set >> c & 1 != 0 {
                column.fill(0xee);
            }
        }
        {
            let mut all: Vec<Column<'_>> = stored
                .iter_mut()
                .enumerate()
                .map(|(c, v)| match set >> c & 1 {
                    0 => Column::Present(v),
                    _ => Column::Missing(v),
                })
                .collect();
            let (p, d) = all.split_at_mut(parity);
            reconstruct_with(imp, p, d).unwrap();
        }
        let want: Vec<&Vec<u8>> = rows.iter().chain(data).collect();
        assert!(stored.iter().eq(want), "{} raidz{parity} missing {set:b}", imp.name);
    }
}

/// All combinations of missing columns, with long, short and empty columns.
#[test]
fn every_combination_of_missing_columns() {
    let shapes: [&[usize]; 5] = [
        &[777],
        &[1024, 1024, 512, 512, 512, 512],
        &[600, 88, 600, 0, 601],
        &[64, 64, 64],
        &[1536, 1536, 1536, 1536, 1024, 1024, 1024],
    ];
    for lens in shapes {
        let (data, len) = block(lens, 7);
        for parity in 1..=3 {
            for imp in available() {
                reconstruct_all(imp, parity, &data, len);
            }
        }
    }
}

proptest! {
    #[test]
    fn implementations_equal_the_naive_model(
        lens in proptest::collection::vec(0usize..900, 1..12),
        parity in 1usize..4,
        skew in 0usize..70,
        seed: u64,
    ) {
        let (data, len) = block(&lens, seed);
        let want = naive(parity, &data, len);
        // Columns at odd addresses too.
        let shifted: Vec<Vec<u8>> = data.iter().map(|d| [&vec![0; skew][..], d].concat()).collect();
        let views: Vec<&[u8]> = shifted.iter().map(|d| &d[skew..]).collect();
        for imp in available() {
            prop_assert_eq!(&run(imp, parity, &views, len, skew), &want, "{}", imp.name);
        }
        let rows: Vec<&[u8]> = want.iter().map(|r| &r[..]).collect();
        prop_assert_eq!(check_parity(&rows, &views).unwrap(), 0);
    }

    #[test]
    fn any_missing_set_comes_back(
        lens in proptest::collection::vec(0usize..300, 1..7),
        parity in 1usize..4,
        seed: u64,
    ) {
        let (data, len) = block(&lens, seed);
        for imp in available() {
            reconstruct_all(imp, parity, &data, len);
        }
    }

    #[test]
    fn damaged_parity_is_noticed(at in 0usize..9000, bad in 0usize..3, bit in 0u8..8) {
        let (data, len) = block(&[9000, 9000, 8488], 3);
        let mut rows = naive(3, &data, len);
        rows[bad][at] ^= 1 << bit;
        let rows: Vec<&[u8]> = rows.iter().map(|r| &r[..]).collect();
        let data: Vec<&[u8]> = data.iter().map(|r| &r[..]).collect();
        prop_assert_eq!(check_parity(&rows, &data).unwrap(), 1 << bad);
    }
}

/// The largest column count, where all powers of the generator are in use.
#[test]
fn widest_block() {
    let lens: Vec<usize> = (0..DATA_COLUMNS_MAX).map(|i| if i < 100 { 130 } else { 66 }).collect();
    let (data, len) = block(&lens, 11);
    let want = naive(3, &data, len);
    let views: Vec<&[u8]> = data.iter().map(|d| &d[..]).collect();
    for imp in available() {
        assert_eq!(run(imp, 3, &views, len, 0), want);
        let mut out = [vec![0u8; 130], vec![0u8; 66], vec![0u8; 66]];
        {
            let [a, b, c] = &mut out;
            let mut columns: Vec<Column<'_>> = data.iter().map(|d| Column::Present(d)).collect();
            columns[0] = Column::Missing(a);
            columns[100] = Column::Missing(b);
            columns[251] = Column::Missing(c);
            let mut parity: Vec<Column<'_>> = want.iter().map(|d| Column::Present(d)).collect();
            reconstruct_with(imp, &mut parity, &mut columns).unwrap();
        }
        assert_eq!(out, [&data[0], &data[100], &data[251]].map(Clone::clone), "{}", imp.name);
    }
}

#[test]
fn bad_shapes_are_errors() {
    let mut p = [0u8; 512];
    let mut q = [0u8; 511];
    let d = [1u8; 512];
    let long = [1u8; 513];
    assert!(generate(&mut [], &[&d]).is_err());
    assert!(generate(&mut [&mut p], &[]).is_err());
    assert!(generate(&mut [&mut p], &[&long]).is_err());
    assert!(generate(&mut [&mut p, &mut q], &[&d]).is_err());
    assert!(generate(&mut [&mut p], &[&d[..]; DATA_COLUMNS_MAX + 1]).is_err());
    assert!(check_parity(&[&p[..]; 4], &[&d]).is_err());
    let mut lost = [[0u8; 512]; 2];
    let [a, b] = &mut lost;
    let mut data = [Column::Missing(a), Column::Missing(b), Column::Present(&d)];
    assert!(reconstruct(&mut [Column::Present(&p)], &mut data).is_err());
}
