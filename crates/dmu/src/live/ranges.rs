//! Ranges of block ids that a txg freed.

use std::collections::BTreeMap;

/// Disjoint ranges `[start, end)`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockRanges(BTreeMap<u64, u64>);

impl BlockRanges {
    pub(crate) fn add(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start, end);
        if start >= end {
            return;
        }
        // Ranges that overlap or touch are merged.
        while let Some((&s, &e)) = self.0.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.0.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.0.insert(start, end);
    }

    pub(crate) fn contains(&self, at: u64) -> bool {
        self.0.range(..=at).next_back().is_some_and(|(_, &end)| at < end)
    }

    /// The end of the range that contains `at`; `at` if none does.
    pub(crate) fn end_of(&self, at: u64) -> u64 {
        self.0.range(..=at).next_back().map_or(at, |(_, &end)| end.max(at))
    }

    /// The first block id at or after `from` that is in a range.
    pub(crate) fn next(&self, from: u64) -> Option<u64> {
        if self.contains(from) {
            return Some(from);
        }
        self.0.range(from..).next().map(|(&start, _)| start)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(&s, &e)| (s, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Against a set of numbers.
        #[test]
        fn ranges_are_sets(adds in prop::collection::vec((0u64..60, 0u64..12), 0..30)) {
            let (mut ranges, mut naive) = (BlockRanges::default(), BTreeSet::new());
            for (start, len) in adds {
                ranges.add(start, start + len);
                naive.extend(start..start + len);
            }
            for at in 0..80 {
                prop_assert_eq!(ranges.contains(at), naive.contains(&at));
                prop_assert_eq!(ranges.next(at), naive.range(at..).next().copied());
                let end = (at..).find(|n| !naive.contains(n));
                prop_assert_eq!(Some(ranges.end_of(at)), end);
            }
            let all: Vec<(u64, u64)> = ranges.iter().collect();
            prop_assert!(all.windows(2).all(|w| w[0].1 < w[1].0));
            prop_assert_eq!(all.iter().map(|(s, e)| e - s).sum::<u64>(), naive.len() as u64);
        }
    }
}
