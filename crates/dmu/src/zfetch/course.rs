//! The course of a stream through a file, and ranges of blocks along it.
//!
//! A stream counts *units* along its course, from 0 upwards without gaps: blocks from the
//! file's start, blocks from its end, or records of a strided reader. So one state machine
//! ([`super::stream`]) serves all three.

use std::ops::Range;

/// Position of unit *u* of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// Block *u*.
    Up,
    /// Block *last* − *u*.
    Down,
    /// The `len` blocks at `origin` + *u* · `step`.
    Strided { origin: u64, step: i64, len: u64 },
}

/// Blocks at equal distances: `count` runs of `blocks`. The first run begins at `first`,
/// each other one `step` behind the previous; none extends beyond block `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StridedRuns {
    /// First block of the first run.
    pub first: u64,
    /// Blocks of a run.
    pub blocks: u64,
    /// From one run to the next, blocks; negative for backward readers.
    pub step: i64,
    /// Runs.
    pub count: u64,
    /// Blocks of the file.
    pub end: u64,
}

impl StridedRuns {
    /// The runs.
    pub fn runs(self) -> impl Iterator<Item = Range<u64>> {
        (0..self.count).map_while(move |i| {
            let at =
                self.first.checked_add_signed(self.step.checked_mul(i64::try_from(i).ok()?)?)?;
            (at < self.end).then(|| at..at.saturating_add(self.blocks).min(self.end))
        })
    }

    /// The blocks in order.
    pub fn each(self) -> impl Iterator<Item = u64> {
        self.runs().flatten()
    }
}

impl Course {
    /// The units that an access to blocks `[b, e)` of a file of `end` blocks touches.
    pub(super) fn units(self, b: u64, e: u64, end: u64) -> Option<(u64, u64)> {
        match self {
            Course::Up => Some((b, e)),
            Course::Down => Some((end.checked_sub(e)?, end.checked_sub(b)?)),
            Course::Strided { origin, step, len } => {
                let (b, origin) = (i64::try_from(b).ok()?, i64::try_from(origin).ok()?);
                let delta = b.checked_sub(origin)?;
                let unit = u64::try_from(delta / step).ok().filter(|_| delta % step == 0)?;
                (e - b as u64 <= len).then_some((unit, unit + 1))
            }
        }
    }

    /// Units of a file of `end` blocks.
    pub(super) fn total(self, end: u64) -> u64 {
        match self {
            Course::Up | Course::Down => end,
            Course::Strided { origin, step, .. } if step < 0 => origin / step.unsigned_abs() + 1,
            Course::Strided { origin, step, .. } => {
                end.saturating_sub(origin).div_ceil(step.unsigned_abs())
            }
        }
    }

    /// Blocks of a unit.
    pub(super) fn unit(self) -> u64 {
        match self {
            Course::Up | Course::Down => 1,
            Course::Strided { len, .. } => len,
        }
    }

    /// Blocks from one unit to the next.
    pub(super) fn pace(self) -> u64 {
        match self {
            Course::Up | Course::Down => 1,
            Course::Strided { step, .. } => step.unsigned_abs(),
        }
    }

    /// The blocks of units `[from, to)`, in the order of reading.
    pub(super) fn runs_of(self, from: u64, to: u64, end: u64) -> StridedRuns {
        let blocks = to - from;
        match self {
            Course::Up => StridedRuns { first: from, blocks, step: 0, count: 1, end },
            Course::Down => {
                let first = end.saturating_sub(from + 1);
                StridedRuns {
                    first,
                    blocks: 1,
                    step: -1,
                    count: blocks.min(end - from.min(end)),
                    end,
                }
            }
            Course::Strided { origin, step, len } => {
                let first = i64::try_from(from).ok().and_then(|n| step.checked_mul(n));
                match first.and_then(|d| origin.checked_add_signed(d)) {
                    Some(first) => StridedRuns { first, blocks: len, step, count: blocks, end },
                    None => StridedRuns { first: 0, blocks: 0, step: 0, count: 0, end },
                }
            }
        }
    }

    /// The blocks from the lowest to the highest of units `[from, to)`.
    pub(super) fn span(self, from: u64, to: u64, end: u64) -> Range<u64> {
        let (first, last) = (self.runs_of(from, from + 1, end), self.runs_of(to - 1, to, end));
        let low = first.first.min(last.first);
        let high = first.first.max(last.first).saturating_add(self.unit());
        low..high.min(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Each block that is requested for a unit touches that very unit.
        #[test]
        fn units_and_blocks_agree(
            end in 1u64..300, kind in 0..3, origin in 0u64..300, step in -40i64..40, len in 1u64..8,
        ) {
            let course = match kind {
                0 => Course::Up,
                1 => Course::Down,
                _ => {
                    prop_assume!(step.unsigned_abs() > len && origin < end);
                    Course::Strided { origin, step, len }
                }
            };
            let total = course.total(end);
            prop_assert!(total <= end);
            for unit in 0..total {
                let runs: Vec<_> = course.runs_of(unit, unit + 1, end).runs().collect();
                prop_assert_eq!(runs.len(), 1, "unit {}", unit);
                let run = runs[0].clone();
                prop_assert!(run.start < run.end && run.end <= end);
                prop_assert_eq!(course.units(run.start, run.end, end), Some((unit, unit + 1)));
            }
            let all: Vec<u64> = course.runs_of(0, total, end).each().collect();
            let one: Vec<u64> =
                (0..total).flat_map(|u| course.runs_of(u, u + 1, end).each().collect::<Vec<_>>()).collect();
            prop_assert_eq!(&all, &one);
            let span = course.span(0, total, end);
            prop_assert_eq!(Some(span.start), all.iter().copied().min());
            prop_assert_eq!(Some(span.end - 1), all.iter().copied().max());
            // No blocks follow the last unit.
            prop_assert_eq!(course.runs_of(total, total + 9, end).each().count(), 0);
        }
    }
}
