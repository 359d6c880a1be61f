//! Tests of the examples in chapter 02 §11.

use super::*;

const PARAMS: DraidParams =
    DraidParams { ndata: 4, nparity: 2, nspares: 2, ngroups: 3, failure_group: 0 };

fn geometry() -> DraidGeometry {
    DraidGeometry::new(&PARAMS, 11, 12).unwrap()
}

#[test]
fn every_table_has_its_checksum() {
    for children in 2..=255 {
        Permutations::generate(children).unwrap();
    }
    assert!(Permutations::generate(1).is_err());
    assert!(Permutations::generate(256).is_err());
}

#[test]
fn first_rows_of_the_tables() {
    let rows = |children: usize, count: usize| {
        let table = Permutations::generate(children).unwrap().table;
        table.chunks(children).take(count).map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    let two: String = rows(2, 8).iter().map(|r| format!("{}{} ", r[0], r[1])).collect();
    assert_eq!(two.trim(), "01 01 01 01 01 10 01 10");
    assert_eq!(rows(3, 4), [vec![1, 2, 0], vec![2, 1, 0], vec![0, 2, 1], vec![1, 0, 2]]);
    assert_eq!(
        rows(11, 2),
        [vec![7, 8, 10, 6, 0, 2, 4, 3, 9, 5, 1], vec![3, 8, 2, 9, 0, 5, 6, 10, 1, 7, 4]]
    );
}

/// (child, offset, stored, data bytes) by column.
fn stripe(stripe: &ParityStripe) -> Vec<(u32, u64, u64, u64)> {
    stripe.cols.iter().map(|c| (c.child.unwrap(), c.offset, c.stored, c.len)).collect()
}

#[test]
fn maps_of_the_chapter() {
    let g = geometry();
    let map = g.map(0, 4096).unwrap();
    let row = |child, len| (child, 0, 4096, len);
    assert_eq!(map.stripes.len(), 1);
    assert_eq!(
        stripe(&map.stripes[0]),
        [row(7, 0), row(8, 0), row(10, 4096), row(6, 0), row(0, 0), row(2, 0)]
    );
    let map = g.map(0x600_0000, 16384).unwrap();
    assert_eq!(
        stripe(&map.stripes[0]),
        [
            (4, 0, 4096, 0),
            (3, 0, 4096, 0),
            (9, 0, 4096, 4096),
            (7, 0x100_0000, 4096, 4096),
            (8, 0x100_0000, 4096, 4096),
            (10, 0x100_0000, 4096, 4096),
        ]
    );
    let map = g.map(0x1201_8000, 20480).unwrap();
    let row = |child, len| (child, 0x200_4000, 8192, len);
    assert_eq!(
        stripe(&map.stripes[0]),
        [row(8, 0), row(9, 0), row(0, 8192), row(7, 4096), row(1, 4096), row(3, 4096)]
    );
    let map = g.map(0x5ff_a000, 32768).unwrap();
    assert_eq!(map.stripes.len(), 2);
    let first: Vec<u32> = stripe(&map.stripes[0]).iter().map(|c| c.0).collect();
    assert_eq!(first, [7, 8, 10, 6, 0, 2]);
    assert!(map.stripes[0].cols.iter().all(|c| c.offset == 0xff_f000));
    let second: Vec<(u32, u64)> = stripe(&map.stripes[1]).iter().map(|c| (c.0, c.1)).collect();
    let high = 0x100_0000;
    assert_eq!(second, [(4, 0), (3, 0), (9, 0), (7, high), (8, high), (10, high)]);
    assert_eq!(map.stripes[1].cols[2].start, 16384);
}

#[test]
fn sizes_of_the_chapter() {
    let g = geometry();
    assert_eq!(g.vdev_asize(263_716_864), 1_912_602_624);
    assert_eq!(g.asize(1), 6 << 12);
    assert_eq!(g.asize(16384), 6 << 12);
    assert_eq!(g.asize(16385), 12 << 12);
    assert_eq!(g.psize_of(12 << 12), 32768);
}

#[test]
fn spares_are_the_positions_behind_the_data() {
    let g = geometry();
    let slice = 2 * ROW;
    // Permutation 0 is row 0 unshifted: its last entries are 5 and 1.
    assert_eq!(g.spare_child(0, 0), Some((1, slice)));
    assert_eq!(g.spare_child(1, 5), Some((5, slice - 5)));
    // Permutation 1 is row 0 shifted by one.
    assert_eq!(g.spare_child(0, slice), Some((2, slice)));
    assert_eq!(g.spare_child(2, 0), None);
    assert_eq!(g.spare_child(u32::MAX, 0), None);
}

#[test]
fn no_data_lies_on_a_spare() {
    let g = geometry();
    for group in 0..40 {
        let map = g.map(group * g.group_size() + 0x6000, 16384).unwrap();
        for col in &map.stripes[0].cols {
            for spare in 0..2 {
                let (child, _) = g.spare_child(spare, col.offset).unwrap();
                assert_ne!(Some(child), col.child);
            }
        }
    }
}

#[test]
fn impossible_parameters_are_refused() {
    let check = |f: &dyn Fn(&mut DraidParams)| {
        let mut params = PARAMS;
        f(&mut params);
        params.check(11, 12)
    };
    assert!(check(&|_| ()).is_ok());
    assert!(check(&|p| p.ndata = 0).is_err());
    assert!(check(&|p| p.ndata = 8).is_err());
    assert!(check(&|p| p.nparity = 4).is_err());
    assert!(check(&|p| p.ngroups = 0).is_err());
    assert!(check(&|p| p.ngroups = 2).is_err());
    assert!(check(&|p| p.nspares = u32::MAX).is_err());
    let refused = check(&|p| p.failure_group = 5).unwrap_err();
    assert_eq!(refused.kind(), base::ErrorKind::Unsupported);
}
