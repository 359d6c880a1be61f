//! Tests of the tables and worked examples of chapter 02 §10 and chapter 08 §E.3.

use super::*;

fn raidz(ashift: u32, n: u32, p: u32) -> RaidzGeometry {
    RaidzGeometry { ashift, nparity: p, width: n, expand_txgs: vec![], reflow: None }
}

/// (n, p, asize in sectors of 1, 2, 3, 4, 8, 16 sectors, 128 KiB, 1 MiB, ratio).
type AsizeRow = (u32, u32, [u64; 8], u64);

const SECTOR_512: [AsizeRow; 13] = [
    (2, 1, [2, 4, 6, 8, 16, 32, 512, 4096], 256),
    (3, 1, [2, 4, 6, 6, 12, 24, 384, 3072], 341),
    (4, 1, [2, 4, 4, 6, 12, 22, 342, 2732], 383),
    (5, 1, [2, 4, 4, 6, 10, 20, 320, 2560], 409),
    (6, 1, [2, 4, 4, 6, 10, 20, 308, 2458], 425),
    (9, 1, [2, 4, 4, 6, 10, 18, 288, 2304], 455),
    (4, 2, [3, 6, 9, 9, 18, 33, 513, 4098], 255),
    (6, 2, [3, 6, 6, 6, 12, 24, 384, 3072], 341),
    (8, 2, [3, 6, 6, 6, 12, 24, 342, 2733], 383),
    (10, 2, [3, 6, 6, 6, 12, 21, 321, 2562], 408),
    (5, 3, [4, 8, 12, 12, 20, 40, 640, 5120], 204),
    (7, 3, [4, 8, 8, 8, 16, 28, 448, 3584], 292),
    (11, 3, [4, 8, 8, 8, 12, 24, 352, 2816], 372),
];

const SECTOR_4096: [AsizeRow; 13] = [
    (2, 1, [2, 4, 6, 8, 16, 32, 64, 512], 256),
    (3, 1, [2, 4, 6, 6, 12, 24, 48, 384], 341),
    (4, 1, [2, 4, 4, 6, 12, 22, 44, 342], 372),
    (5, 1, [2, 4, 4, 6, 10, 20, 40, 320], 409),
    (6, 1, [2, 4, 4, 6, 10, 20, 40, 308], 409),
    (9, 1, [2, 4, 4, 6, 10, 18, 36, 288], 455),
    (4, 2, [3, 6, 9, 9, 18, 33, 66, 513], 248),
    (6, 2, [3, 6, 6, 6, 12, 24, 48, 384], 341),
    (8, 2, [3, 6, 6, 6, 12, 24, 45, 342], 364),
    (10, 2, [3, 6, 6, 6, 12, 21, 42, 321], 390),
    (5, 3, [4, 8, 12, 12, 20, 40, 80, 640], 204),
    (7, 3, [4, 8, 8, 8, 16, 28, 56, 448], 292),
    (11, 3, [4, 8, 8, 8, 12, 24, 44, 352], 372),
];

#[test]
fn allocated_sizes_and_ratios() {
    for (ashift, table) in [(9, SECTOR_512), (12, SECTOR_4096)] {
        for (n, p, sectors, ratio) in table {
            let g = raidz(ashift, n, p);
            let sizes = [1, 2, 3, 4, 8, 16].map(|s| s << ashift);
            for (psize, expected) in sizes.into_iter().chain([128 << 10, 1 << 20]).zip(sectors) {
                let asize = g.asize(psize, Txg(5));
                assert_eq!(asize >> ashift, expected, "n {n} p {p} psize {psize}");
            }
            assert_eq!(131_072 / (g.asize(131_072, Txg(0)) >> 9), ratio);
        }
    }
}

/// (child, offset, stored, start, len) of each column of the only stripe.
fn columns(g: &RaidzGeometry, offset: u64, psize: u64) -> Vec<(u32, u64, u64, u64, u64)> {
    let map = g.map(offset, psize, Txg(9)).unwrap();
    assert_eq!(map.stripes.len(), 1);
    let column = |c: &Col| (c.child.unwrap(), c.offset, c.stored, c.start, c.len);
    map.stripes[0].cols.iter().map(column).collect()
}

#[test]
fn column_maps_of_the_chapter() {
    assert_eq!(
        columns(&raidz(9, 5, 1), 0x3000, 2560),
        [
            (4, 0x800, 1024, 0, 0),
            (0, 0xa00, 1024, 0, 1024),
            (1, 0xa00, 512, 1024, 512),
            (2, 0xa00, 512, 1536, 512),
            (3, 0xa00, 512, 2048, 512),
        ]
    );
    assert_eq!(
        columns(&raidz(9, 5, 1), 0x10_3000, 2560),
        [
            (3, 0x33c00, 1024, 0, 0),
            (2, 0x33c00, 1024, 0, 1024),
            (4, 0x33c00, 512, 1024, 512),
            (0, 0x33e00, 512, 1536, 512),
            (1, 0x33e00, 512, 2048, 512),
        ]
    );
    assert_eq!(
        columns(&raidz(12, 6, 2), 0x9000, 20480),
        [
            (3, 0x1000, 8192, 0, 0),
            (4, 0x1000, 8192, 0, 0),
            (5, 0x1000, 8192, 0, 8192),
            (0, 0x2000, 4096, 8192, 4096),
            (1, 0x2000, 4096, 12288, 4096),
            (2, 0x2000, 4096, 16384, 4096),
        ]
    );
    assert_eq!(
        columns(&raidz(12, 4, 1), 0x7000, 4096),
        [(3, 0x1000, 4096, 0, 0), (0, 0x2000, 4096, 0, 4096)]
    );
    assert_eq!(
        columns(&raidz(12, 7, 3), 0x11000, 16384),
        [
            (3, 0x2000, 4096, 0, 0),
            (4, 0x2000, 4096, 0, 0),
            (5, 0x2000, 4096, 0, 0),
            (6, 0x2000, 4096, 0, 4096),
            (0, 0x3000, 4096, 4096, 4096),
            (1, 0x3000, 4096, 8192, 4096),
            (2, 0x3000, 4096, 12288, 4096),
        ]
    );
}

/// (child, offset, data sector).
type MapCell = (Option<u32>, u64, Option<u64>);

/// Cells by row. Child `None` means absent, sector `None` means parity.
fn cells(g: &RaidzGeometry, offset: u64, psize: u64) -> Vec<Vec<MapCell>> {
    let map = g.map(offset, psize, Txg(9)).unwrap();
    let cell = |c: &Col| {
        let sector = (c.len > 0).then_some(c.start >> g.ashift);
        (c.child, if c.child.is_some() { c.offset } else { 0 }, sector)
    };
    map.stripes.iter().map(|s| s.cols.iter().map(cell).collect()).collect()
}

#[test]
fn row_maps_after_an_expansion() {
    let g = RaidzGeometry { expand_txgs: vec![Txg(10)], ..raidz(9, 5, 1) };
    assert_eq!((g.logical_width(Txg(9)), g.logical_width(Txg(10))), (4, 5));
    assert_eq!(
        cells(&g, 0x3000, 2560),
        [
            vec![
                (Some(4), 0x800, None),
                (Some(0), 0xa00, Some(0)),
                (Some(1), 0xa00, Some(2)),
                (Some(2), 0xa00, Some(4)),
            ],
            vec![
                (Some(3), 0xa00, None),
                (Some(4), 0xa00, Some(1)),
                (Some(0), 0xc00, Some(3)),
                (None, 0, None),
            ],
        ]
    );
    // Chapter 08 §E.3.
    let g = RaidzGeometry { expand_txgs: vec![Txg(10)], ..raidz(12, 4, 1) };
    let content = |rows: Vec<Vec<MapCell>>| {
        let present = |row: Vec<_>| row.into_iter().filter(|c: &MapCell| c.0.is_some());
        rows.into_iter().map(|r| present(r).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    assert_eq!(
        content(cells(&g, 0x5a000, 20480)),
        [
            vec![
                (Some(2), 0x16000, None),
                (Some(3), 0x16000, Some(0)),
                (Some(0), 0x17000, Some(3))
            ],
            vec![
                (Some(1), 0x17000, None),
                (Some(2), 0x17000, Some(1)),
                (Some(3), 0x17000, Some(4))
            ],
            vec![(Some(0), 0x18000, None), (Some(1), 0x18000, Some(2))],
        ]
    );
}

#[test]
fn rows_move_while_expanding() {
    let reflow = |offset, scratch_valid| RaidzGeometry {
        reflow: Some(Reflow { offset, scratch_valid }),
        ..raidz(9, 5, 1)
    };
    // b = 24, rows end at sectors 28 and 32.
    let places = |g: RaidzGeometry| {
        let map = g.map(0x3000, 2560, Txg(9)).unwrap();
        let first =
            |s: &ParityStripe| (s.cols[0].child.unwrap(), s.cols[0].offset, s.cols[0].scratch);
        map.stripes.iter().map(first).collect::<Vec<_>>()
    };
    let (old, new) =
        ([(0, 0xc00, false), (0, 0xe00, false)], [(4, 0x800, false), (3, 0xa00, false)]);
    assert_eq!(places(reflow(27 << 9, false)), old);
    assert_eq!(places(reflow(28 << 9, false)), [new[0], old[1]]);
    assert_eq!(places(reflow(32 << 9, false)), new);
    assert_eq!(places(reflow(32 << 9, true)), new.map(|(c, o, _)| (c, o, true)));
}

#[test]
fn every_map_partitions_its_block() {
    for (n, p) in [(2, 1), (3, 1), (5, 2), (7, 3), (12, 3)] {
        for history in [vec![], vec![Txg(10)]] {
            if n - history.len() as u32 <= p {
                continue;
            }
            let g = RaidzGeometry { expand_txgs: history, ..raidz(9, n, p) };
            for s in 1..64u64 {
                let map = g.map(0x10_0000 + s * 512 * 6, s << 9, Txg(9)).unwrap();
                let mut parts: Vec<(u64, u64)> = map
                    .stripes
                    .iter()
                    .flat_map(|s| s.cols.iter().filter(|c| c.len > 0).map(|c| (c.start, c.len)))
                    .collect();
                parts.sort_unstable();
                let mut end = 0;
                for (start, len) in parts {
                    assert_eq!(start, end);
                    end += len;
                }
                assert_eq!(end, s << 9);
                for stripe in &map.stripes {
                    let mut used: Vec<u32> = stripe.cols.iter().filter_map(|c| c.child).collect();
                    let before = used.len();
                    used.sort_unstable();
                    used.dedup();
                    assert_eq!(used.len(), before, "a child appears once in a stripe");
                }
            }
        }
    }
}

#[test]
fn impossible_addresses_are_refused() {
    let g = raidz(12, 4, 1);
    assert!(g.map(0x800, 4096, Txg(1)).is_err());
    assert!(g.map(u64::MAX - 4095, 4096, Txg(1)).is_err());
    assert!(whole_sectors(0, 9).is_err());
    assert!(whole_sectors(BLOCK_SIZE_MAX + 1, 9).is_err());
    assert_eq!(whole_sectors(513, 9).unwrap(), 1024);
}
