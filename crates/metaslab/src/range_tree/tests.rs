use proptest::prelude::*;

use super::*;

const SIZE: usize = 96;

#[derive(Clone, Debug)]
enum RangeOp {
    Add(u64, u64),
    Remove(u64, u64),
    Xor(u64, u64),
    Ask(u64, u64),
}

fn op() -> impl Strategy<Value = RangeOp> {
    (0..4, 0..SIZE as u64, 0..24u64).prop_map(|(kind, start, len)| {
        let len = len.min(SIZE as u64 - start);
        match kind {
            0 => RangeOp::Add(start, len),
            1 => RangeOp::Remove(start, len),
            2 => RangeOp::Xor(start, len),
            _ => RangeOp::Ask(start, len),
        }
    })
}

fn runs(map: &[bool]) -> Vec<Seg> {
    let mut out: Vec<Seg> = Vec::new();
    for (i, _) in map.iter().enumerate().filter(|&(_, &set)| set) {
        match out.last_mut() {
            Some(seg) if seg.end() == i as u64 => seg.len += 1,
            _ => out.push(Seg { start: i as u64, len: 1 }),
        }
    }
    out
}

proptest! {
    #[test]
    fn behaves_like_a_bitmap(ops in prop::collection::vec(op(), 1..200), min in 0..12u64) {
        let (mut tree, mut map) = (RangeTree::indexed(min), [false; SIZE]);
        let (mut other, mut other_map) = (RangeTree::new(), [false; SIZE]);
        for op in ops {
            let (RangeOp::Add(start, len) | RangeOp::Remove(start, len)
                | RangeOp::Xor(start, len) | RangeOp::Ask(start, len)) = op;
            let part = start as usize..(start + len) as usize;
            let (all, any) = (map[part.clone()].iter().all(|&b| b), map[part.clone()].contains(&true));
            match op {
                RangeOp::Add(..) => {
                    let done = tree.add(start, len).is_ok();
                    prop_assert_eq!(done, len > 0 && !any);
                    if done { map[part].fill(true); }
                }
                RangeOp::Remove(..) => {
                    let done = tree.remove(start, len).is_ok();
                    prop_assert_eq!(done, len > 0 && all);
                    if done { map[part].fill(false); }
                }
                RangeOp::Xor(..) => {
                    // Only if the rest is not there already.
                    let fine = len > 0 && part.clone().all(|i| !map[i] || other_map[i]);
                    if fine && part.clone().all(|i| !(map[i] && other_map[i])) {
                        tree.remove_xor_add(&mut other, start, len).unwrap();
                        for i in part {
                            if other_map[i] { other_map[i] = false } else { map[i] = true }
                        }
                    } else if len > 0 && !other.overlaps(start, len) && !any {
                        other.add(start, len).unwrap();
                        other_map[part].fill(true);
                    }
                }
                RangeOp::Ask(..) => {
                    prop_assert_eq!(tree.contains(start, len), len > 0 && all);
                    prop_assert_eq!(tree.overlaps(start, len), any);
                    let mut expect = runs(&map[start as usize..]);
                    expect.iter_mut().for_each(|s| s.start += start);
                    prop_assert_eq!(tree.from(start).collect::<Vec<_>>(), expect);
                    let best = tree.by_size(len.max(1)).next();
                    let fits = |s: &&Seg| s.len >= len.max(1);
                    let naive = runs(&map).iter().filter(fits).map(|s| s.len).min();
                    prop_assert_eq!(best.map(|b| b.len), naive);
                }
            }
            tree.check().unwrap();
            other.check().unwrap();
            let expect = runs(&map);
            prop_assert_eq!(tree.largest(), expect.iter().map(|s| s.len).max().unwrap_or(0));
            prop_assert_eq!(tree.segs(), expect);
            prop_assert_eq!(other.segs(), runs(&other_map));
        }
    }

    #[test]
    fn vacating_moves_everything(a in prop::collection::vec((0..50u64, 1..9u64), 0..20), indexed: bool) {
        let mut from = RangeTree::new();
        a.iter().for_each(|&(s, l)| drop(from.add(s, l)));
        let mut into = if indexed { RangeTree::indexed(4) } else { RangeTree::new() };
        into.add(1000, 1).unwrap();
        let mut expect = from.segs();
        expect.push(Seg { start: 1000, len: 1 });
        from.vacate(&mut into).unwrap();
        prop_assert!(from.is_empty() && from.space() == 0);
        prop_assert_eq!(into.segs(), expect);
        into.check().unwrap();
    }
}

#[test]
fn impossible_ranges_are_errors() {
    let mut tree = RangeTree::new();
    assert!(tree.add(u64::MAX, 2).is_err());
    assert!(tree.add(5, 0).is_err());
    assert!(tree.remove(0, 1).is_err());
    tree.add(0, 10).unwrap();
    assert!(tree.add(9, 1).is_err());
    assert!(tree.remove(5, 6).is_err());
    assert_eq!((tree.space(), tree.len()), (10, 1));
}
