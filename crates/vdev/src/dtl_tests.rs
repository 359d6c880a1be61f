use std::collections::BTreeSet;

use base::Txg;
use proptest::prelude::*;

use super::TxgRanges;

#[test]
fn ranges_of_txgs() {
    let r = TxgRanges::new(vec![
        (Txg(9), Txg(12)),
        (Txg(3), Txg(5)),
        (Txg(6), Txg(7)),
        (Txg(8), Txg(2)),
    ]);
    assert_eq!(r.ranges(), [(Txg(3), Txg(7)), (Txg(9), Txg(12))]);
    for (txg, inside) in [(2, false), (3, true), (7, true), (8, false), (12, true), (13, false)] {
        assert_eq!(r.contains(Txg(txg)), inside, "{txg}");
    }
}

#[test]
fn txgs_are_removed_from_ranges() {
    let all = TxgRanges::new(vec![(Txg(3), Txg(6)), (Txg(9), Txg(9))]);
    let without = |txg| {
        let mut set = all.clone();
        set.remove(Txg(txg));
        set.ranges().iter().map(|r| (r.0.0, r.1.0)).collect::<Vec<_>>()
    };
    assert_eq!(without(3), [(4, 6), (9, 9)]);
    assert_eq!(without(5), [(3, 4), (6, 6), (9, 9)]);
    assert_eq!(without(6), [(3, 5), (9, 9)]);
    assert_eq!(without(9), [(3, 6)]);
    for none in [2, 7, 10] {
        assert_eq!(without(none), [(3, 6), (9, 9)]);
    }
}

#[derive(Clone, Debug)]
enum DtlOp {
    Insert(u64),
    Remove(u64),
    InsertRange(u64, u64),
    RemoveRange(u64, u64),
    Union(Vec<(u64, u64)>),
}

fn op() -> impl Strategy<Value = DtlOp> {
    let txg = || 0u64..40;
    prop_oneof![
        txg().prop_map(DtlOp::Insert),
        txg().prop_map(DtlOp::Remove),
        (txg(), txg()).prop_map(|(a, b)| DtlOp::InsertRange(a, b)),
        (txg(), txg()).prop_map(|(a, b)| DtlOp::RemoveRange(a, b)),
        prop::collection::vec((txg(), txg()), 0..4).prop_map(DtlOp::Union),
    ]
}

proptest! {
    #[test]
    fn ranges_are_a_set(ops in prop::collection::vec(op(), 0..40)) {
        let mut ranges = TxgRanges::default();
        let mut set = BTreeSet::new();
        for op in ops {
            match op {
                DtlOp::Insert(a) => prop_assert_eq!(ranges.insert(Txg(a)), set.insert(a)),
                DtlOp::Remove(a) => {
                    ranges.remove(Txg(a));
                    set.remove(&a);
                }
                DtlOp::InsertRange(a, b) => {
                    ranges.insert_range(Txg(a), Txg(b));
                    set.extend(a..=b);
                }
                DtlOp::RemoveRange(a, b) => {
                    ranges.remove_range(Txg(a), Txg(b));
                    set.retain(|t| !(a..=b).contains(t));
                }
                DtlOp::Union(all) => {
                    let other = all.iter().map(|&(a, b)| (Txg(a), Txg(b))).collect();
                    ranges.union(&TxgRanges::new(other));
                    all.iter().for_each(|&(a, b)| set.extend(a..=b));
                }
            }
            for txg in 0..42 {
                prop_assert_eq!(ranges.contains(Txg(txg)), set.contains(&txg), "{}", txg);
            }
            prop_assert_eq!(ranges.first().map(|t| t.0), set.first().copied());
            prop_assert_eq!(ranges.last().map(|t| t.0), set.last().copied());
            prop_assert_eq!(ranges.is_empty(), set.is_empty());
            let joined = ranges.ranges().windows(2).all(|w| w[0].1.0 + 1 < w[1].0.0);
            prop_assert!(joined, "adjacent ranges are joined");
        }
    }
}
