//! The content of simulated volumes: which operation each sector may be from.
//!
//! # Theory
//! Operations of a generation are numbered, and come one after the other. A crash leaves a
//! number of them for certain: those whose txgs are on disk, and those that were acknowledged.
//! Each later one may be there, in part, too. So a sector has the value that the certain
//! operations give it, or that of a later one in whose range it is.
//!
//! Later operations come back by the log, which has them in order. A record may bring content
//! of operations behind it early, but only in blocks of its own range. So if a block that only
//! one of the later operations touches has something of that one, all before it are there.

use std::collections::BTreeMap;
use std::ops::Range;

use base::Txg;

/// Bytes of a sector.
pub(crate) const SECTOR: u64 = 512;

/// The number of a generation of content.
pub(crate) type GenerationId = usize;

/// What an operation does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Writes sectors.
    Write(Range<u64>),
    /// Makes sectors zero.
    Zero(Range<u64>),
    /// Changes the size in sectors; those behind a smaller one become zero.
    Size(u64),
}

/// An operation of a generation.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) effect: Effect,
    /// The txgs of its first and last transaction; the last is `Txg::MAX` if it failed half way.
    pub(crate) first: Txg,
    pub(crate) last: Txg,
}

/// A sector's content: 0, or one more than the number of the operation, with its generation.
pub(crate) type SectorOrigin = (u32, u32);

/// Content that is all zero.
pub(crate) const ZERO: SectorOrigin = (0, 0);

/// The origin of what an operation writes.
pub(crate) fn origin(generation: GenerationId, number: usize) -> SectorOrigin {
    (generation as u32, number as u32 + 1)
}

/// The bytes of a sector at this place.
pub(crate) fn bytes(from: SectorOrigin, sector: u64) -> [u8; SECTOR as usize] {
    let mut out = [0; SECTOR as usize];
    if from == ZERO {
        return out;
    }
    let mut word = (u64::from(from.0) << 32 | u64::from(from.1))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ sector.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    for (at, chunk) in out.chunks_exact_mut(8).enumerate() {
        word = word.rotate_left(23).wrapping_mul(0x94d0_49bb_1331_11eb) ^ at as u64;
        // Some blocks are compressed, and others not.
        let word = if from.1.is_multiple_of(3) { word & 0xff } else { word };
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    out[..4].copy_from_slice(&from.0.to_le_bytes());
    out[4..8].copy_from_slice(&from.1.to_le_bytes());
    out
}

/// The origin of a sector's bytes; `None` if no operation wrote them at this place.
pub(crate) fn origin_of(data: &[u8], sector: u64) -> Option<SectorOrigin> {
    let word = |at: usize| data.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let from = (word(0)?, word(4)?);
    let from = if data.iter().all(|b| *b == 0) { ZERO } else { from };
    (bytes(from, sector)[..] == *data).then_some(from)
}

/// The content of a volume: its size and where its sectors are from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VolumeContent {
    /// Sectors.
    pub(crate) size: u64,
    /// The origins of all sectors that are not zero.
    pub(crate) sectors: BTreeMap<u64, SectorOrigin>,
}

impl VolumeContent {
    fn get(&self, sector: u64) -> SectorOrigin {
        self.sectors.get(&sector).copied().unwrap_or(ZERO)
    }

    fn zero(&mut self, range: Range<u64>) {
        let gone: Vec<u64> = self.sectors.range(range).map(|(at, _)| *at).collect();
        for at in gone {
            self.sectors.remove(&at);
        }
    }

    fn apply(&mut self, effect: &Effect, from: SectorOrigin) {
        match effect {
            Effect::Write(range) => {
                self.sectors.extend(range.clone().map(|at| (at, from)));
            }
            Effect::Zero(range) => self.zero(range.clone()),
            Effect::Size(size) => {
                self.size = *size;
                self.zero(*size..u64::MAX);
            }
        }
    }
}

/// What a generation may have after a crash.
pub(crate) struct Possible<'a> {
    pub(crate) generation: GenerationId,
    /// The content at its beginning.
    pub(crate) base: VolumeContent,
    pub(crate) operations: &'a [Operation],
    /// The txg on disk.
    pub(crate) txg: Txg,
    /// Operations that were acknowledged; `None` without a log: what is not in the txg cannot
    /// be there.
    pub(crate) acknowledged: Option<usize>,
    /// Sectors of a block.
    pub(crate) block: u64,
}

impl Possible<'_> {
    /// The number of operations that are there for certain.
    fn certain(&self) -> usize {
        let on_disk = self.operations.iter().take_while(|op| op.last <= self.txg).count();
        on_disk.max(self.acknowledged.unwrap_or(0))
    }

    /// The operations that may be there in addition, with their numbers.
    fn later(&self, certain: usize) -> impl Iterator<Item = (usize, &Operation)> {
        let begun = |op: &Operation| self.acknowledged.is_some() || op.first <= self.txg;
        self.operations.iter().enumerate().skip(certain).filter(move |(_, op)| begun(op))
    }

    /// The content that the first `count` operations give. Sizes are in txgs, never in logs.
    pub(crate) fn content(&self, count: usize) -> VolumeContent {
        let mut out = self.base.clone();
        for (number, op) in self.operations.iter().enumerate().take(count) {
            out.apply(&op.effect, origin(self.generation, number));
        }
        let mut done = self.operations.iter().rev().filter(|op| op.last <= self.txg);
        let size = done.find_map(|op| match op.effect {
            Effect::Size(size) => Some(size),
            _ => None,
        });
        out.size = size.unwrap_or(self.base.size);
        out
    }

    /// The content of its txg, if no operation is only partly in it.
    pub(crate) fn exact(&self) -> VolumeContent {
        self.content(self.certain())
    }

    /// Compares what was found.
    ///
    /// # Errors
    /// The difference.
    pub(crate) fn compare(&self, found: &VolumeContent) -> Result<(), String> {
        let mut certain = self.certain();
        let least = self.content(certain);
        if found.size != least.size {
            return Err(format!("{} sectors, not {}", found.size, least.size));
        }
        if self.acknowledged.is_some() {
            certain = certain.max(self.begun(found, &least, certain));
        }
        let due = self.content(certain);
        let mut also: BTreeMap<u64, Vec<SectorOrigin>> = BTreeMap::new();
        let mut zeros: Vec<Range<u64>> = Vec::new();
        for (number, op) in self.later(certain) {
            match &op.effect {
                Effect::Write(range) => {
                    let from = origin(self.generation, number);
                    range.clone().for_each(|at| also.entry(at).or_default().push(from));
                }
                Effect::Zero(range) => zeros.push(range.clone()),
                Effect::Size(size) => zeros.push(*size..u64::MAX),
            }
        }
        for at in 0..found.size {
            let has = found.get(at);
            let is_later = also.get(&at).is_some_and(|list| list.contains(&has));
            let is_zeroed = has == ZERO && zeros.iter().any(|range| range.contains(&at));
            if has != due.get(at) && !is_later && !is_zeroed {
                return Err(format!(
                    "sector {at} is from {has:?}, not {:?}; of generation {}, {certain} of {} \
                     operations are there for certain, {:?} were acknowledged; txg {}",
                    due.get(at),
                    self.generation,
                    self.operations.len(),
                    self.acknowledged,
                    self.txg,
                ));
            }
        }
        Ok(())
    }

    /// The number of operations before the last one that certainly came back by the log.
    fn begun(&self, found: &VolumeContent, least: &VolumeContent, certain: usize) -> usize {
        let blocks = |range: &Range<u64>| range.start / self.block..range.end.div_ceil(self.block);
        let mut touched: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
        for (number, op) in self.later(certain) {
            let range = match &op.effect {
                Effect::Write(range) | Effect::Zero(range) => blocks(range),
                Effect::Size(size) => blocks(&(*size..found.size.max(*size))),
            };
            for block in range {
                let entry = touched.entry(block).or_insert((0, number));
                entry.0 += 1;
            }
        }
        let shows = |block: u64, number: usize| {
            (block * self.block..(block + 1) * self.block).any(|at| {
                match &self.operations[number].effect {
                    Effect::Write(range) => {
                        range.contains(&at) && found.get(at) == origin(self.generation, number)
                    }
                    Effect::Zero(range) => {
                        range.contains(&at) && found.get(at) == ZERO && least.get(at) != ZERO
                    }
                    Effect::Size(_) => false,
                }
            })
        };
        let alone = touched.into_iter().filter(|(_, (count, _))| *count == 1);
        let there = alone.filter(|(block, (_, number))| shows(*block, *number));
        there.map(|(_, (_, number))| number).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn possible(operations: &[Operation], txg: u64, acknowledged: Option<usize>) -> Possible<'_> {
        let base = VolumeContent { size: 64, ..VolumeContent::default() };
        Possible { generation: 1, base, operations, txg: Txg(txg), acknowledged, block: 8 }
    }

    fn op(effect: Effect, txg: u64) -> Operation {
        Operation { effect, first: Txg(txg), last: Txg(txg) }
    }

    #[test]
    fn sectors_tell_where_they_are_from() {
        for from in [ZERO, (1, 1), (7, 300)] {
            let mut data = bytes(from, 9);
            assert_eq!(origin_of(&data, 9), Some(from));
            assert_eq!(origin_of(&data, 10).is_some(), from == ZERO);
            data[100] ^= 1;
            assert_eq!(origin_of(&data, 9), None);
        }
    }

    #[test]
    fn what_is_missing_or_out_of_order_is_found() {
        let ops = [
            op(Effect::Write(0..16), 10),
            op(Effect::Zero(8..16), 11),
            op(Effect::Write(8..12), 12),
            op(Effect::Write(40..48), 12),
        ];
        let state = |count: usize| possible(&ops, 12, None).content(count);
        let fits = |txg, acknowledged, found: &VolumeContent| {
            possible(&ops, txg, acknowledged).compare(found).is_ok()
        };
        // On disk alone.
        assert!(fits(9, None, &state(0)) && fits(10, None, &state(1)) && fits(12, None, &state(4)));
        assert!(!fits(10, None, &state(0)) && !fits(10, None, &state(2)), "another txg");
        // With a log.
        for there in 2..=4 {
            assert!(fits(10, Some(2), &state(there)), "{there}");
        }
        assert!(!fits(10, Some(2), &state(1)), "an acknowledged discard is missing");
        assert!(!fits(10, Some(3), &state(2)), "an acknowledged write is missing");
        // A discard that is replayed over a later write.
        let mut late = state(4);
        late.zero(8..16);
        assert!(!fits(10, Some(4), &late));
        // The fourth without the third.
        let mut odd = state(2);
        odd.apply(&ops[3].effect, origin(1, 3));
        assert!(!fits(10, Some(2), &odd));
        // A part of the last one.
        let mut part = state(3);
        part.sectors.insert(41, origin(1, 3));
        assert!(fits(10, Some(2), &part) && !fits(12, Some(2), &part));
        // Another generation's.
        let mut stale = state(4);
        stale.sectors.insert(50, (0, 1));
        assert!(!fits(12, Some(4), &stale));
    }

    #[test]
    fn sizes_follow_the_txgs() {
        let ops =
            [op(Effect::Write(0..64), 10), op(Effect::Size(32), 11), op(Effect::Size(48), 12)];
        for (txg, size, count) in [(10, 64, 64), (11, 32, 32), (12, 48, 32)] {
            let exact = possible(&ops, txg, Some(0)).exact();
            assert_eq!((exact.size, exact.sectors.len()), (size, count));
            possible(&ops, txg, Some(0)).compare(&exact).unwrap();
        }
    }
}
