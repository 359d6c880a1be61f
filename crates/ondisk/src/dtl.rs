//! Dirty time logs: the txgs that a leaf may lack (chapter 05 §8).
//!
//! # Theory
//! On disk a DTL is a space map of unit 1 whose "bytes" are txg numbers, with
//! allocations only; in memory it is a sorted set of ranges. The stored form is always
//! rewritten completely.
//!
//! # Invariants
//! The ranges of a [`Dtl`] are sorted, disjoint, not adjacent and not empty, so
//! it has at most as many ranges as the map has entries.

use base::{Result, Txg};

use crate::endian::Endian;
use crate::spacemap::{Encoder, Entries, Kind, Params, Range};

/// A set of transaction groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dtl {
    /// Half-open ranges.
    ranges: Vec<(Txg, Txg)>,
}

impl Dtl {
    /// Reads the space map's bytes, cut to its length.
    ///
    /// # Errors
    /// `Corrupt` if an entry is invalid.
    pub fn parse(bytes: &[u8], endian: Endian) -> Result<Dtl> {
        let mut ranges = Vec::new();
        for range in Entries::new(bytes, endian, Params::dtl()).ranges() {
            let range = range?;
            ranges.push((Txg(range.offset), Txg(range.offset.saturating_add(range.len))));
        }
        Ok(Dtl { ranges: merged(ranges) })
    }

    /// The half-open ranges, ascending.
    pub fn ranges(&self) -> &[(Txg, Txg)] {
        &self.ranges
    }

    /// Whether nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether `txg` may be missing.
    pub fn contains(&self, txg: Txg) -> bool {
        let after = self.ranges.partition_point(|&(start, _)| start <= txg);
        after.checked_sub(1).and_then(|i| self.ranges.get(i)).is_some_and(|&(_, end)| txg < end)
    }

    /// Adds the half-open range; an empty one changes nothing.
    pub fn add(&mut self, start: Txg, end: Txg) {
        if start < end {
            self.ranges.push((start, end));
            self.ranges = merged(std::mem::take(&mut self.ranges));
        }
    }

    /// Removes the half-open range.
    pub fn remove(&mut self, start: Txg, end: Txg) {
        let cut = |&(s, e): &(Txg, Txg)| {
            let pieces = [(s, e.min(start)), (s.max(end), e)];
            let pieces = if start < end { pieces } else { [(s, e), (e, e)] };
            pieces.into_iter().filter(|(s, e)| s < e)
        };
        self.ranges = self.ranges.iter().flat_map(cut).collect();
    }

    /// The words of a map with this set; its debug entries carry `txg` and `pass`.
    ///
    /// # Errors
    /// `Invalid` if a txg exceeds the range of this form of map.
    pub fn encode(&self, block_size: u32, v2: bool, pass: u32, txg: Txg) -> Result<Vec<u8>> {
        let mut encoder = Encoder::new(Params::dtl(), 0, block_size, v2)?;
        if !self.is_empty() {
            encoder.mark(Kind::Alloc, pass, txg);
        }
        for &(start, end) in &self.ranges {
            let (offset, len) = (start.0, end.0.saturating_sub(start.0));
            encoder.push(Range { kind: Kind::Alloc, offset, len, vdev: base::VdevId(0) })?;
        }
        Ok(encoder.finish().0)
    }
}

fn merged(mut ranges: Vec<(Txg, Txg)>) -> Vec<(Txg, Txg)> {
    ranges.sort_unstable();
    let mut out: Vec<(Txg, Txg)> = Vec::with_capacity(ranges.len());
    for (start, end) in ranges {
        match out.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => out.push((start, end)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Compares with the naive model: a set of single txgs.
        #[test]
        fn is_a_set(ops in prop::collection::vec((any::<bool>(), 0u64..200, 0u64..40), 0..30)) {
            let (mut dtl, mut model) = (Dtl::default(), BTreeSet::new());
            for (add, start, len) in ops {
                if add {
                    dtl.add(Txg(start), Txg(start + len));
                    model.extend(start..start + len);
                } else {
                    dtl.remove(Txg(start), Txg(start + len));
                    (start..start + len).for_each(|t| { model.remove(&t); });
                }
            }
            for txg in 0..250 {
                prop_assert_eq!(dtl.contains(Txg(txg)), model.contains(&txg));
            }
            prop_assert!(dtl.ranges().is_sorted_by(|a, b| a.1 < b.0));
            let raw = dtl.encode(4096, true, 1, Txg(9)).unwrap();
            prop_assert_eq!(raw.is_empty(), model.is_empty());
            prop_assert_eq!(Dtl::parse(&raw, Endian::Little).unwrap(), dtl);
        }

        #[test]
        fn hostile_words_never_panic(words in prop::collection::vec(any::<u64>(), 0..40)) {
            let raw: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            if let Ok(dtl) = Dtl::parse(&raw, Endian::Little) {
                prop_assert!(dtl.ranges().len() <= words.len());
            }
        }
    }
}
