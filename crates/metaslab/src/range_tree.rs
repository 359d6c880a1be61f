//! Sets of bytes as disjoint ranges, ordered by offset and optionally indexed by size.
//!
//! # Invariants
//! * Ranges are disjoint, not empty, never adjacent (neighbours merge), and end
//!   at or below `u64::MAX`.
//! * With an index, every range of at least its `min` bytes is indexed, and the
//!   histogram counts every range. Smaller ranges are indexed when they are first
//!   needed, because most searches are for larger ones, and fragmented space consists
//!   mostly of small ranges.

use std::collections::{BTreeMap, BTreeSet};

use base::{Error, Result};

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seg {
    /// First byte.
    pub start: u64,
    /// Bytes; not zero.
    pub len: u64,
}

impl Seg {
    /// The end of the range.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// Counts of ranges by size class: entry `i` has those of `2^i ..= 2^(i+1)-1` bytes.
pub type Histogram = [u64; 64];

#[derive(Clone, Debug)]
struct Index {
    by_size: BTreeSet<(u64, u64)>,
    min: u64,
    histogram: Histogram,
}

/// Disjoint ranges. The head of the module has the invariants.
#[derive(Clone, Debug, Default)]
pub struct RangeTree {
    /// First byte to end.
    by_start: BTreeMap<u64, u64>,
    space: u64,
    index: Option<Box<Index>>,
}

fn class(len: u64) -> usize {
    len.checked_ilog2().unwrap_or(0) as usize
}

fn end_of(start: u64, len: u64) -> Result<u64> {
    match start.checked_add(len) {
        Some(end) if len > 0 => Ok(end),
        _ => Err(Error::corrupt("a range of space is empty or overflows")),
    }
}

impl RangeTree {
    /// An empty set that cannot be searched by size.
    pub fn new() -> RangeTree {
        RangeTree::default()
    }

    /// An empty set with an index of ranges of at least `min` bytes.
    pub fn indexed(min: u64) -> RangeTree {
        let index = Index { by_size: BTreeSet::new(), min, histogram: [0; 64] };
        RangeTree { index: Some(Box::new(index)), ..RangeTree::default() }
    }

    fn count(&mut self, start: u64, end: u64) {
        if let Some(index) = &mut self.index {
            let len = end - start;
            index.histogram[class(len)] += 1;
            if len >= index.min {
                index.by_size.insert((len, start));
            }
        }
    }

    fn uncount(&mut self, start: u64, end: u64) {
        if let Some(index) = &mut self.index {
            let len = end - start;
            index.histogram[class(len)] -= 1;
            if len >= index.min {
                index.by_size.remove(&(len, start));
            }
        }
    }

    fn insert(&mut self, start: u64, end: u64) {
        self.by_start.insert(start, end);
        self.count(start, end);
    }

    fn take(&mut self, start: u64, end: u64) {
        self.by_start.remove(&start);
        self.uncount(start, end);
    }

    /// The range with the largest start at or below `at`.
    fn at_or_before(&self, at: u64) -> Option<(u64, u64)> {
        self.by_start.range(..=at).next_back().map(|(&s, &e)| (s, e))
    }

    /// Adds a range.
    ///
    /// # Errors
    /// `Corrupt` if part of the range is already in the set or it is not a valid range;
    /// nothing is changed then.
    pub fn add(&mut self, start: u64, len: u64) -> Result<()> {
        let end = end_of(start, len)?;
        let before = self.at_or_before(start);
        if before.is_some_and(|(_, e)| e > start) {
            return Err(overlap(start, len));
        }
        let after = self.by_start.range(start..).next().map(|(&s, &e)| (s, e));
        if after.is_some_and(|(s, _)| s < end) {
            return Err(overlap(start, len));
        }
        let (mut from, mut to) = (start, end);
        if let Some((s, e)) = after.filter(|&(s, _)| s == end) {
            self.take(s, e);
            to = e;
        }
        if let Some((s, e)) = before.filter(|&(_, e)| e == start) {
            self.uncount(s, e);
            from = s;
        }
        self.insert(from, to);
        self.space += len;
        Ok(())
    }

    /// Removes a range.
    ///
    /// # Errors
    /// `Corrupt` if part of the range is not in the set or it is not a valid range;
    /// nothing is changed then.
    pub fn remove(&mut self, start: u64, len: u64) -> Result<()> {
        let end = end_of(start, len)?;
        let Some((s, e)) = self.at_or_before(start).filter(|&(_, e)| e >= end) else {
            return Err(Error::corrupt(format!(
                "space at {start:#x}, {len:#x} bytes, is not where it should be"
            )));
        };
        if s < start {
            self.uncount(s, e);
            self.insert(s, start);
        } else {
            self.take(s, e);
        }
        if end < e {
            self.insert(end, e);
        }
        self.space -= len;
        Ok(())
    }

    /// Removes the parts of a range that are in the set, and returns them.
    ///
    /// # Errors
    /// `Corrupt` for a range that overflows.
    pub fn clear_range(&mut self, start: u64, len: u64) -> Result<Vec<Seg>> {
        let end = end_of(start, len)?;
        let first = self.at_or_before(start).filter(|&(_, e)| e > start).map_or(start, |(s, _)| s);
        let parts: Vec<Seg> = self
            .by_start
            .range(first..end)
            .map(|(&s, &e)| (s.max(start), e.min(end)))
            .map(|(s, e)| Seg { start: s, len: e - s })
            .collect();
        for part in &parts {
            self.remove(part.start, part.len)?;
        }
        Ok(parts)
    }

    /// Adds a range by the rule of chapter 05 §4.3(4): the parts that are in `other`
    /// are removed from it, and only the rest is added to this set.
    ///
    /// # Errors
    /// `Corrupt` if part of the rest is already in this set; both sets may have changed
    /// then.
    pub(crate) fn remove_xor_add(
        &mut self,
        other: &mut RangeTree,
        start: u64,
        len: u64,
    ) -> Result<()> {
        let end = end_of(start, len)?;
        let mut at = start;
        for part in other.clear_range(start, len)? {
            if part.start > at {
                self.add(at, part.start - at)?;
            }
            at = part.end();
        }
        if at < end {
            self.add(at, end - at)?;
        }
        Ok(())
    }

    /// Whether the whole range is in the set.
    pub fn contains(&self, start: u64, len: u64) -> bool {
        let Ok(end) = end_of(start, len) else { return false };
        self.at_or_before(start).is_some_and(|(_, e)| e >= end)
    }

    /// Whether any byte of the range is in the set.
    pub fn overlaps(&self, start: u64, len: u64) -> bool {
        let end = start.saturating_add(len);
        len > 0 && self.by_start.range(..end).next_back().is_some_and(|(_, &e)| e > start)
    }

    /// The ranges in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Seg> + '_ {
        self.by_start.iter().map(|(&s, &e)| Seg { start: s, len: e - s })
    }

    /// The ranges in ascending order, as a list.
    pub(crate) fn segs(&self) -> Vec<Seg> {
        self.iter().collect()
    }

    /// Total bytes.
    pub fn space(&self) -> u64 {
        self.space
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.by_start.len()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// Bytes of the largest range; zero if empty.
    pub fn largest(&self) -> u64 {
        let indexed = self.index.as_ref().and_then(|i| i.by_size.last()).map(|&(len, _)| len);
        indexed.unwrap_or_else(|| self.iter().map(|s| s.len).max().unwrap_or(0))
    }

    /// As [`RangeTree::largest`], but extends the index so that the next call is fast.
    pub(crate) fn largest_indexed(&mut self) -> u64 {
        if self.index.as_ref().is_some_and(|i| i.by_size.is_empty()) && !self.is_empty() {
            self.index_from(0);
        }
        self.largest()
    }

    /// Ranges by size class.
    pub fn histogram(&self) -> Histogram {
        if let Some(index) = &self.index {
            return index.histogram;
        }
        let mut histogram = [0; 64];
        self.iter().for_each(|s| histogram[class(s.len)] += 1);
        histogram
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.by_start.clear();
        self.space = 0;
        if let Some(index) = &mut self.index {
            index.by_size.clear();
            index.histogram = [0; 64];
        }
    }

    /// Removes everything and returns it.
    pub fn drain(&mut self) -> Vec<Seg> {
        let segs = self.segs();
        self.clear();
        segs
    }

    /// Moves everything into another set.
    ///
    /// # Errors
    /// `Corrupt` if part of it is already there; earlier ranges have been moved then.
    pub(crate) fn vacate(&mut self, into: &mut RangeTree) -> Result<()> {
        if into.is_empty() && into.index.is_none() && self.index.is_none() {
            std::mem::swap(self, into);
            return Ok(());
        }
        self.drain().into_iter().try_for_each(|s| into.add(s.start, s.len))
    }

    fn index_from(&mut self, min: u64) {
        if let Some(index) = &mut self.index {
            index.min = min;
            index.by_size = self
                .by_start
                .iter()
                .map(|(&s, &e)| (e - s, s))
                .filter(|&(len, _)| len >= min)
                .collect();
        }
    }

    /// Ranges of at least `size` bytes in ascending order of size, then of offset;
    /// extends the index to small ranges if needed. Empty without an index.
    pub fn by_size(&mut self, size: u64) -> impl DoubleEndedIterator<Item = Seg> + '_ {
        if self.index.as_ref().is_some_and(|i| size < i.min) {
            self.index_from(0);
        }
        let ranges = self.index.as_ref().map(|i| i.by_size.range((size, 0)..));
        ranges.into_iter().flatten().map(|&(len, start)| Seg { start, len })
    }

    /// The ranges from `at` on in ascending order; the first is cut if it starts
    /// before.
    pub fn from(&self, at: u64) -> impl Iterator<Item = Seg> + '_ {
        let cut = self.at_or_before(at).filter(|&(s, e)| s < at && e > at);
        let cut = cut.map(|(_, e)| Seg { start: at, len: e - at });
        let rest = self.by_start.range(at..).map(|(&s, &e)| Seg { start: s, len: e - s });
        cut.into_iter().chain(rest)
    }

    /// Verifies the invariants of the module's head.
    ///
    /// # Errors
    /// `Bug` if one does not hold.
    pub fn check(&self) -> Result<()> {
        let bug = |why: &str| Err(Error::bug(format!("a range tree is wrong: {why}")));
        let mut last = None;
        for seg in self.iter() {
            if seg.len == 0 || last.is_some_and(|end| seg.start <= end) {
                return bug("ranges touch");
            }
            last = Some(seg.end());
        }
        if self.iter().map(|s| s.len).sum::<u64>() != self.space {
            return bug("its size");
        }
        let Some(index) = &self.index else { return Ok(()) };
        let mut histogram = [0; 64];
        self.iter().for_each(|s| histogram[class(s.len)] += 1);
        let large: BTreeSet<_> =
            self.iter().filter(|s| s.len >= index.min).map(|s| (s.len, s.start)).collect();
        if histogram != index.histogram || large != index.by_size {
            return bug("its index");
        }
        Ok(())
    }
}

fn overlap(start: u64, len: u64) -> Error {
    Error::corrupt(format!("space at {start:#x}, {len:#x} bytes, is there twice"))
}

#[cfg(test)]
mod tests;
