//! The space map updates of a pass for one metaslab (chapter 05 §4.3, §5.2, §5.3).
//!
//! # Theory
//! `Metaslab::prepare_write` and `Metaslab::prepare_flush` return what to append to the
//! metaslab's own map and to the txg's log. The caller writes it and calls
//! `Metaslab::written`, which makes it the current state. Meanwhile the data being
//! written is in `PendingWrite`, so that other threads may allocate.

use base::rt::atomic::Ordering;

use base::{Error, Result, Txg, VdevId};
use ondisk::spacemap::{self, Encoder, HISTOGRAM_SIZE, Kind};

use crate::range_tree::{Histogram, RangeTree, Seg};
use crate::slab::{Metaslab, not_loaded};
use crate::{MsKey, Plant};

/// Condense a map that exceeds this percentage of its optimal size (§5.3).
const CONDENSE_PERCENT: u64 = 200;
/// A map this short is never condensed merely because the metaslab is full.
const CONDENSE_LENGTH_MIN: u64 = 64;

/// Properties of the pool that determine how maps are written.
#[derive(Clone, Copy, Debug)]
pub struct MapFacts {
    /// Feature log_spacemap is enabled: changes go to the txg's log.
    pub logs: bool,
    /// Feature spacemap_v2 is active: two-word entries exist.
    pub v2: bool,
    /// Feature spacemap_histogram is active: maps have the long header.
    pub long_header: bool,
    /// Bytes of a data block of a metaslab's map.
    pub block_size: u64,
}

/// Ranges to append under one debug entry with the txg. Not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Whether they are allocated or freed.
    pub kind: Kind,
    /// Ascending.
    pub segs: Vec<Seg>,
}

impl Batch {
    /// Adds the batch to an append.
    ///
    /// # Errors
    /// As [`Encoder::push`].
    pub fn encode(&self, out: &mut Encoder, vdev: VdevId, pass: u32, txg: Txg) -> Result<()> {
        out.mark(self.kind, pass, txg);
        self.segs.iter().try_for_each(|seg| {
            out.push(spacemap::Range { kind: self.kind, offset: seg.start, len: seg.len, vdev })
        })
    }
}

/// What a pass writes of one metaslab. [`crate::Space::written`] must follow.
#[derive(Clone, Debug)]
pub struct MapWrite {
    /// The metaslab.
    pub key: MsKey,
    /// First byte of the metaslab, and its size; the map's entries are relative to it.
    pub seg: Seg,
    /// log2 of the unit of its map.
    pub shift: u32,
    /// The map's object; 0 if it must be created and its object id stored in the
    /// metaslab array.
    pub object: u64,
    /// Bytes of the map before the write.
    pub length: u64,
    /// The map is condensed: empty it first (chapter 05 §2.6, §5.3).
    pub truncate: bool,
    /// For its own map, in this order.
    pub own: Vec<Batch>,
    /// For the txg's log, in this order, with the vdev's id.
    pub log: Vec<Batch>,
    /// The header's `alloc` after the write.
    pub alloc: i64,
    /// The header's histogram after the write. The header is always stored.
    pub histogram: [u64; HISTOGRAM_SIZE],
    /// The new word of the array of unflushed txgs, if it changes.
    pub unflushed_txg: Option<Txg>,
}

/// Data that is being written.
#[derive(Debug)]
pub(crate) struct PendingWrite {
    pub(crate) alloc: RangeTree,
    pub(crate) free: RangeTree,
    logs: bool,
    /// The own map is emptied first.
    pub(crate) truncates: bool,
    /// The unflushed changes are written to the own map.
    flushes: bool,
    own_changes: bool,
    own_alloc: u64,
    histogram: [u64; HISTOGRAM_SIZE],
    unflushed_txg: Txg,
    logged_in: Txg,
    long_header: bool,
}

fn batch(out: &mut Vec<Batch>, kind: Kind, segs: Vec<Seg>) {
    if !segs.is_empty() {
        out.push(Batch { kind, segs });
    }
}

/// Bytes of the optimal map of a free set (chapter 05 §2.6).
fn optimal_length(histogram: &Histogram, shift: u32, facts: &MapFacts) -> u64 {
    let shift = shift as usize;
    let cost = |class: usize| -> u64 {
        let over = |limit: usize, cost: u64| match class.saturating_sub(limit).min(40) {
            0 => cost,
            n => cost << n,
        };
        match facts.v2 {
            _ if class <= shift + 14 => 8,
            true => over(shift + 35, 16),
            false => over(shift + 15, 8),
        }
    };
    let sum = histogram.iter().enumerate().filter(|&(_, &n)| n > 0);
    let sum = sum.fold(0u64, |sum, (class, &n)| sum.saturating_add(cost(class).saturating_mul(n)));
    // Padding and debug entries: one word each for every block.
    sum.saturating_add((sum / facts.block_size.max(16) + 1) * 8)
}

fn fold(into: &mut [u64; HISTOGRAM_SIZE], tree: &RangeTree, shift: u32) {
    for (class, &n) in tree.histogram().iter().enumerate().filter(|&(_, &n)| n > 0) {
        let class = class.saturating_sub(shift as usize);
        let (bucket, times) = (class.min(HISTOGRAM_SIZE - 1), class.saturating_sub(31));
        into[bucket] = into[bucket].saturating_add(n << times);
    }
}

impl Metaslab {
    /// The histogram to store, without the space that this pass frees (§2.5).
    pub(crate) fn known_histogram(&self) -> [u64; HISTOGRAM_SIZE] {
        let Some(tree) = &self.allocatable else { return self.histogram };
        let mut out = [0; HISTOGRAM_SIZE];
        for set in [tree, &self.freed, &self.held, &self.defer[0], &self.defer[1]] {
            fold(&mut out, set, self.shift);
        }
        out
    }

    /// Whether the map should be condensed by §5.3.
    fn should_condense(&self, facts: &MapFacts) -> bool {
        let Some(free) = &self.allocatable else { return false };
        let optimal = optimal_length(&free.histogram(), self.shift, facts);
        let large = 4 * facts.block_size.max(1 << self.shift);
        let upgrade = facts.long_header && !self.long_header;
        let wasteful = self.length >= optimal.saturating_mul(CONDENSE_PERCENT) / 100;
        // All space freed in this txg was allocated by the map that is replaced.
        self.freed.is_empty()
            && self.object != 0
            && (upgrade
                || (free.is_empty() && self.length > CONDENSE_LENGTH_MIN)
                || (wasteful && self.length > large))
    }

    /// A map of the space that is allocated as of the previous txg: space allocated but
    /// not written counts as free.
    fn condensed(&self) -> Result<(Vec<Batch>, u64)> {
        let free = self.allocatable.as_ref().ok_or_else(|| not_loaded(self.id))?;
        let mut rest = RangeTree::new();
        for set in self.defer.iter().chain([&self.held]).chain(&self.allocating) {
            set.iter().try_for_each(|s| rest.add(s.start, s.len))?;
        }
        let own_alloc = self.size.checked_sub(free.space() + rest.space());
        let own_alloc = own_alloc.ok_or_else(|| Error::bug("more is free than there is"))?;
        let mut out = Vec::new();
        batch(&mut out, Kind::Alloc, vec![Seg { start: self.start, len: self.size }]);
        batch(&mut out, Kind::Free, free.segs());
        batch(&mut out, Kind::Free, rest.segs());
        Ok((out, own_alloc))
    }

    fn map_write(&self, vdev: VdevId) -> MapWrite {
        MapWrite {
            key: MsKey { vdev, ms: self.id },
            seg: Seg { start: self.start, len: self.size },
            shift: self.shift,
            object: self.object,
            length: self.length,
            truncate: false,
            own: Vec::new(),
            log: Vec::new(),
            alloc: 0,
            histogram: [0; HISTOGRAM_SIZE],
            unflushed_txg: None,
        }
    }

    /// Verifies what is about to be written: ranges that are whole units of this metaslab,
    /// ascending and apart, and a header that says how much they allocate in all. The
    /// decoder and the loading of the map verify the same afterwards.
    fn verify(&self, write: &MapWrite) -> Result<()> {
        let unit = (1u64 << self.shift) - 1;
        let whole = |batch: &Batch| {
            let mut end = self.start;
            batch.segs.iter().all(|seg| {
                let apart = seg.start >= end && (seg.start | seg.len) & unit == 0;
                end = seg.start + seg.len;
                apart && seg.len > 0 && self.inside(seg.start, seg.len)
            })
        };
        let mut balance = if write.truncate { 0 } else { i128::from(self.own_alloc) };
        for batch in &write.own {
            let bytes: i128 = batch.segs.iter().map(|seg| i128::from(seg.len)).sum();
            balance += if batch.kind == Kind::Alloc { bytes } else { -bytes };
        }
        // The stored histogram of a metaslab that is not loaded is not verified.
        let counted = || write.histogram.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
        let fits = self.allocatable.is_none() || counted() <= self.size >> self.shift;
        if write.own.iter().chain(&write.log).all(whole)
            && balance == i128::from(write.alloc)
            && balance <= i128::from(self.size)
            && fits
        {
            return Ok(());
        }
        Err(base::bug!("a space map that must not be written: metaslab {}, {write:?}", self.id))
    }

    fn begin(&mut self, mut write: MapWrite, mut pending: PendingWrite) -> Result<MapWrite> {
        write.truncate = pending.truncates;
        write.alloc = i64::try_from(pending.own_alloc).unwrap_or(i64::MAX);
        write.histogram = pending.histogram;
        let changed = pending.unflushed_txg != self.unflushed_txg;
        write.unflushed_txg = changed.then_some(pending.unflushed_txg);
        pending.own_changes = pending.truncates || !write.own.is_empty();
        self.verify(&write)?;
        self.pending = Some(Box::new(pending));
        Ok(write)
    }

    fn pending(&self, facts: &MapFacts) -> Result<PendingWrite> {
        if self.pending.is_some() {
            return Err(base::bug!("metaslab {} is being written already", self.id));
        }
        Ok(PendingWrite {
            alloc: RangeTree::new(),
            free: RangeTree::new(),
            logs: facts.logs,
            truncates: false,
            flushes: false,
            own_changes: false,
            own_alloc: self.own_alloc,
            histogram: self.known_histogram(),
            unflushed_txg: self.unflushed_txg,
            logged_in: self.logged_in,
            long_header: self.long_header,
        })
    }

    /// What this pass writes, if anything (§5.2, §4.3(3)).
    pub(crate) fn prepare_write(
        &mut self,
        vdev: VdevId,
        txg: Txg,
        pass: u32,
        facts: &MapFacts,
        plant: &Plant,
    ) -> Result<Option<MapWrite>> {
        let slot = (txg.0 & 3) as usize;
        if self.allocating[slot].is_empty() && self.freeing.is_empty() {
            return Ok(None);
        }
        let mut p = self.pending(facts)?;
        let mut write = self.map_write(vdev);
        p.long_header |= self.object == 0;
        if pass == 1 && self.should_condense(facts) {
            (write.own, p.own_alloc) = self.condensed()?;
            (p.truncates, p.flushes) = (true, true);
            p.long_header = facts.long_header;
        }
        p.alloc = std::mem::take(&mut self.allocating[slot]);
        p.free = std::mem::take(&mut self.freeing);
        fold(&mut p.histogram, &p.free, self.shift);
        let out = if facts.logs { &mut write.log } else { &mut write.own };
        batch(out, Kind::Alloc, p.alloc.segs());
        batch(out, Kind::Free, p.free.segs());
        if facts.logs {
            // Not once this txg's log has entries: an earlier pass may have freed space
            // that an earlier log allocated, and both must be replayed then.
            let first = self.logged_in != txg;
            let nothing = self.unflushed_allocs.is_empty() && self.unflushed_frees.is_empty();
            if (nothing && first) || p.flushes || self.unflushed_txg == Txg::ZERO {
                p.unflushed_txg = txg;
            }
            p.logged_in = txg;
        } else {
            let sum = (p.own_alloc + p.alloc.space()).checked_sub(p.free.space());
            p.own_alloc = sum.ok_or_else(|| Error::corrupt("more is freed than allocated"))?;
        }
        let mut write = self.begin(write, p)?;
        if plant.lose_alloc_entry.load(Ordering::Relaxed) {
            let out = if facts.logs { &mut write.log } else { &mut write.own };
            let allocs = out.iter_mut().rfind(|batch| batch.kind == Kind::Alloc);
            allocs.and_then(|batch| batch.segs.pop());
        }
        Ok(Some(write))
    }

    /// What a flush in `txg` writes (§4.3(2)); `None` if the metaslab was already
    /// flushed in `txg`.
    pub(crate) fn prepare_flush(
        &mut self,
        vdev: VdevId,
        txg: Txg,
        facts: &MapFacts,
    ) -> Result<Option<MapWrite>> {
        if self.unflushed_txg == Txg::ZERO || self.unflushed_txg >= txg {
            return Ok(None);
        }
        let mut p = self.pending(facts)?;
        let mut write = self.map_write(vdev);
        (p.flushes, p.unflushed_txg) = (true, txg);
        p.long_header |= self.object == 0;
        let nothing = self.unflushed_allocs.is_empty() && self.unflushed_frees.is_empty();
        if !nothing && self.should_condense(facts) {
            (write.own, p.own_alloc) = self.condensed()?;
            p.truncates = true;
            p.long_header = facts.long_header;
        } else {
            batch(&mut write.own, Kind::Alloc, self.unflushed_allocs.segs());
            batch(&mut write.own, Kind::Free, self.unflushed_frees.segs());
            let sum = (self.own_alloc + self.unflushed_allocs.space())
                .checked_sub(self.unflushed_frees.space());
            p.own_alloc = sum.ok_or_else(|| Error::corrupt("more is freed than allocated"))?;
        }
        self.begin(write, p).map(Some)
    }

    /// Reports that the prepared data is written; the own map is `object`, of `length`
    /// bytes. Returns the bytes that it allocated and freed.
    pub(crate) fn written(
        &mut self,
        object: u64,
        length: u64,
        plant: &Plant,
    ) -> Result<(u64, u64)> {
        let bug = || base::bug!("a metaslab was written without being prepared");
        let mut p = *self.pending.take().ok_or_else(bug)?;
        if p.own_changes || object != self.object || length != self.length {
            self.generation += 1;
        }
        (self.object, self.length) = (object, length);
        (self.own_alloc, self.histogram) = (p.own_alloc, p.histogram);
        (self.unflushed_txg, self.long_header) = (p.unflushed_txg, p.long_header);
        self.logged_in = p.logged_in;
        if p.flushes {
            self.unflushed_allocs.clear();
            self.unflushed_frees.clear();
        }
        if p.logs {
            let (allocs, frees) = (&mut self.unflushed_allocs, &mut self.unflushed_frees);
            p.alloc.iter().try_for_each(|s| allocs.remove_xor_add(frees, s.start, s.len))?;
            p.free.iter().try_for_each(|s| frees.remove_xor_add(allocs, s.start, s.len))?;
        }
        let bytes = (p.alloc.space(), p.free.space());
        let reuse = plant.reuse_same_group.load(Ordering::Relaxed);
        match &mut self.allocatable {
            Some(free) if reuse => p.free.vacate(free)?,
            _ => p.free.vacate(&mut self.freed)?,
        }
        if !self.adds_up() {
            return Err(base::bug!("metaslab {} does not add up", self.id));
        }
        Ok(bytes)
    }

    /// The planted bug `reuse_before_commit`; see [`Plant`].
    pub(crate) fn reuse_early(&mut self) -> Result<u64> {
        let Some(free) = &mut self.allocatable else { return Ok(0) };
        let mut early = std::mem::take(&mut self.freed);
        let bytes = early.space();
        early.vacate(free)?;
        Ok(bytes)
    }

    /// Approximate memory of the unflushed sets, bytes.
    pub(crate) fn unflushed_memory(&self) -> u64 {
        (self.unflushed_allocs.len() + self.unflushed_frees.len()) as u64 * 48
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::MsDesc;

    fn metaslab() -> Metaslab {
        let seg = Seg { start: 1 << 20, len: 1 << 20 };
        let mut slab = Metaslab::new(1, seg, 9, 0, &MsDesc::default()).unwrap();
        slab.allocatable = Some(RangeTree::new());
        slab.own_alloc = 4096;
        slab
    }

    /// The changes of a map, and what its header would say.
    fn is_refused(own: &[(Kind, u64, u64)], alloc: i64, truncate: bool) -> bool {
        let slab = metaslab();
        let mut write = slab.map_write(VdevId(0));
        for &(kind, start, len) in own {
            batch(&mut write.own, kind, vec![Seg { start, len }]);
        }
        (write.alloc, write.truncate) = (alloc, truncate);
        base::bug::is_met(|| slab.verify(&write))
    }

    #[test]
    fn a_map_that_does_not_balance_is_not_written() {
        use Kind::{Alloc, Free};
        let at = 1 << 20;
        assert!(!is_refused(&[(Alloc, at, 512), (Free, at + 4096, 1024)], 3584, false));
        assert!(is_refused(&[(Alloc, at, 512), (Free, at + 4096, 1024)], 4096, false));
        assert!(!is_refused(&[(Alloc, at, 1 << 20), (Free, at, 512)], (1 << 20) - 512, true));
        assert!(is_refused(&[(Alloc, at, 1 << 20)], 4096 + (1 << 20), false), "more than it has");
        // Outside, and parts of a sector.
        assert!(is_refused(&[(Alloc, at - 512, 512)], 4608, false));
        assert!(is_refused(&[(Alloc, at, 100)], 4196, false));
        let slab = metaslab();
        let mut write = slab.map_write(VdevId(0));
        let twice = vec![Seg { start: at, len: 1024 }, Seg { start: at + 512, len: 512 }];
        batch(&mut write.log, Kind::Alloc, twice);
        write.alloc = 4096;
        assert!(base::bug::is_met(|| slab.verify(&write)), "one range twice");
    }

    #[test]
    fn only_allocated_ranges_are_written() {
        let mut slab = metaslab();
        let at = 1 << 20;
        assert!(slab.is_allocated(at, 1 << 20));
        assert!(!slab.is_allocated(at - 512, 512) && !slab.is_allocated(at + (1 << 20), 512));
        slab.allocatable.as_mut().unwrap().add(at, 512).unwrap();
        slab.freed.add(at + 1024, 512).unwrap();
        slab.defer[1].add(at + 2048, 512).unwrap();
        slab.held.add(at + 3072, 512).unwrap();
        slab.freeing.add(at + 4096, 512).unwrap();
        for i in 0..10 {
            assert_eq!(slab.is_allocated(at + i * 512, 512), i % 2 == 1 || i > 8, "{i}");
        }
        assert!(!slab.is_allocated(at + 512, 1024), "its second half is free");
    }
}
