//! The metaslabs of one top-level vdev, and the choice among them (§12.2).

use base::rt::Mutex;
use base::rt::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use base::{Error, Result, Txg, VdevId};

use crate::range_tree::Seg;
use crate::slab::Metaslab;
use crate::uses::{Claim, ClaimFacts, MetaslabUse, USES, UseClaims};
use crate::{SpaceClass, Totals, VdevDesc};

/// No metaslab.
const NONE: usize = usize::MAX;
/// Candidates that one allocation tries, unless it tries hard.
const TRIES: usize = 100;
/// A loaded metaslab with a free range this large, or this many times the block, is
/// used even if an unloaded one is better.
const GOOD_ENOUGH: u64 = 1 << 20;
const GOOD_ENOUGH_TIMES: u64 = 16;
/// Size classes by which an unloaded metaslab must be better than a loaded one.
const LOAD_PENALTY: u32 = 2;

/// Bytes of a block of small data for which metaslabs are loaded ahead.
const SMALL_BLOCK: u64 = 8 << 10;

/// Bytes in free ranges are known by the ranges' size class, from 2^9 to 2^17.
const RANGE_CLASSES: std::ops::RangeInclusive<u32> = 9..=17;
const RANGE_CLASS_COUNT: usize = 9;

/// An ordinary vdev with more metaslabs than this reserves one for intent logs
/// (`zfs_embedded_slog_min_ms`).
const EMBEDDED_LOG_MIN: usize = 64;

/// Why a vdev could not allocate.
pub(crate) enum Refusal {
    /// This metaslab must be loaded first.
    Load(usize),
    /// It has no room.
    Full,
}

/// Data for the choice of a metaslab, readable without its lock. They are hints: the
/// lock holder decides.
#[derive(Debug, Default)]
struct Hints {
    loaded: AtomicBool,
    /// Loaded, or loadable without reading.
    readable: AtomicBool,
    usable: AtomicBool,
    /// The largest free range of a loaded metaslab; otherwise an upper bound of it.
    largest: AtomicU64,
    /// Number of ranges in the size class of the largest.
    count: AtomicU64,
    free: AtomicU64,
    /// Bytes in free ranges of at least each of [`RANGE_CLASSES`], estimated from below.
    in_ranges: [AtomicU64; RANGE_CLASS_COUNT],
    unflushed_txg: AtomicU64,
}

impl Hints {
    /// Bytes in free ranges of at least about `size` bytes.
    fn in_ranges(&self, size: u64) -> u64 {
        let class = size.checked_ilog2().unwrap_or(0);
        let i = class.clamp(*RANGE_CLASSES.start(), *RANGE_CLASSES.end()) - RANGE_CLASSES.start();
        self.in_ranges[i as usize].load(Ordering::Relaxed)
    }
}

/// A metaslab with its lock and its hints.
#[derive(Debug)]
pub(crate) struct LockedMetaslab {
    ms: Mutex<Metaslab>,
    hints: Hints,
}

impl LockedMetaslab {
    pub(crate) fn new(ms: Metaslab) -> LockedMetaslab {
        let slab = LockedMetaslab { ms: Mutex::new(ms), hints: Hints::default() };
        slab.change(|_| ());
        slab
    }

    /// Access that leaves the hints accurate enough.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Metaslab) -> R) -> R {
        f(&mut self.ms.lock())
    }

    /// Access that changes the data behind the hints.
    pub(crate) fn change<R>(&self, f: impl FnOnce(&mut Metaslab) -> R) -> R {
        let mut ms = self.ms.lock();
        let out = f(&mut ms);
        self.publish(&mut ms);
        out
    }

    fn publish(&self, ms: &mut Metaslab) {
        let hints = &self.hints;
        let virgin = ms.is_virgin();
        let (largest, count) = match &mut ms.allocatable {
            Some(tree) => {
                let largest = tree.largest_indexed();
                let class = largest.checked_ilog2().unwrap_or(0) as usize;
                (largest, tree.histogram()[class])
            }
            None if virgin => (ms.size, 1),
            None => from_histogram(ms),
        };
        hints.readable.store(ms.is_loaded() || ms.is_virgin(), Ordering::Relaxed);
        hints.loaded.store(ms.is_loaded(), Ordering::Relaxed);
        hints.usable.store(ms.usable(), Ordering::Relaxed);
        hints.largest.store(largest, Ordering::Relaxed);
        hints.count.store(count, Ordering::Relaxed);
        let free = ms.free_space();
        hints.free.store(free, Ordering::Relaxed);
        let sums = bytes_in_ranges(ms, virgin);
        hints.in_ranges.iter().zip(sums).for_each(|(to, n)| to.store(n, Ordering::Relaxed));
        hints.unflushed_txg.store(ms.unflushed_txg.0, Ordering::Relaxed);
    }

    pub(crate) fn unflushed_txg(&self) -> Txg {
        Txg(self.hints.unflushed_txg.load(Ordering::Relaxed))
    }
}

/// An upper bound of the largest free range, from the stored histogram, or from the
/// free bytes where there is none.
fn from_histogram(ms: &Metaslab) -> (u64, u64) {
    let top = ms.histogram.iter().enumerate().rfind(|&(_, &n)| n > 0);
    let free = ms.free_space();
    match top {
        // Adjacent ranges that were counted separately, and the folding of the last
        // bucket, can make the largest range larger than this. A wrong bound costs a
        // load or a missed allocation.
        Some((31, &n)) => (free, n),
        Some((i, &n)) => {
            let above = 1u64.checked_shl(i as u32 + 1 + ms.shift).unwrap_or(u64::MAX);
            (free.min(above - 1), n)
        }
        None if ms.long_header && ms.object != 0 && ms.length > 0 => (free.min(1 << ms.shift), 0),
        None => (free, 0),
    }
}

/// Bytes in free ranges of at least each of [`RANGE_CLASSES`].
fn bytes_in_ranges(ms: &Metaslab, virgin: bool) -> [u64; RANGE_CLASS_COUNT] {
    let free = ms.free_space();
    if virgin && !ms.is_loaded() {
        return [free; RANGE_CLASS_COUNT];
    }
    let bytes = |class: u32, n: u64| n.checked_shl(class).unwrap_or(u64::MAX);
    let mut by_class = [0u64; 64];
    match &ms.allocatable {
        Some(tree) => {
            let counts = tree.histogram();
            by_class.iter_mut().zip(0..).zip(counts).for_each(|((b, i), n)| *b = bytes(i, n));
        }
        None => {
            for (i, n) in (ms.shift..64).zip(ms.histogram) {
                by_class[i as usize] = if n > free >> i { free } else { bytes(i, n) };
            }
        }
    }
    let from = |class: u32| {
        let sum = by_class.iter().skip(class as usize).fold(0, |s: u64, b| s.saturating_add(*b));
        sum.min(free)
    };
    let mut out = [0; RANGE_CLASS_COUNT];
    out.iter_mut().zip(RANGE_CLASSES).for_each(|(to, class)| *to = from(class));
    out
}

fn with(list: &[usize], one: usize) -> Vec<usize> {
    list.iter().copied().chain([one]).collect()
}

/// Bytes by state, kept for all metaslabs of the vdev together.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) allocated: AtomicU64,
    pub(crate) deferred: AtomicU64,
    pub(crate) reserved: AtomicU64,
}

/// The metaslabs of a top-level vdev.
#[derive(Debug)]
pub(crate) struct MetaslabGroup {
    pub(crate) vdev: VdevId,
    pub(crate) class: SpaceClass,
    pub(crate) ashift: u32,
    ms_shift: u32,
    align: u64,
    pub(crate) data_disks: u64,
    pub(crate) allocating: AtomicBool,
    pub(crate) slabs: Vec<LockedMetaslab>,
    /// Metaslabs that are in use: for each use those of streams and copies; the last entry is
    /// for the metaslab kept for intent logs.
    active: Vec<AtomicUsize>,
    claims: UseClaims,
    /// Metaslabs to which small data moved since the last txg ended, and in the txg before.
    swept: [AtomicUsize; 2],
    /// The metaslab reserved for intent logs ([`MetaslabGroup::keep_for_logs`]).
    kept: Option<usize>,
    pub(crate) capacity: u64,
    pub(crate) counters: Counters,
    /// Bytes to allocate before the rotor moves on.
    pub(crate) aliquot: AtomicU64,
}

impl MetaslabGroup {
    /// # Errors
    /// `Corrupt` for impossible geometry, or more metaslabs than space.
    pub(crate) fn new(desc: &VdevDesc, slots: usize) -> Result<MetaslabGroup> {
        let bad = || Error::corrupt(format!("vdev {} has impossible metaslabs", desc.vdev));
        let align = desc.align.max(1);
        let shift_fits = (desc.ashift..=62).contains(&desc.ms_shift) && desc.ashift >= 9;
        if !shift_fits || (desc.asize >> desc.ms_shift) < desc.metaslabs.len() as u64 {
            return Err(bad());
        }
        let mut group = MetaslabGroup {
            vdev: desc.vdev,
            class: desc.class,
            ashift: desc.ashift,
            ms_shift: desc.ms_shift,
            align,
            data_disks: desc.data_disks.max(1),
            allocating: AtomicBool::new(desc.allocating),
            slabs: Vec::with_capacity(desc.metaslabs.len()),
            active: (0..=slots * USES).map(|_| AtomicUsize::new(NONE)).collect(),
            claims: UseClaims::default(),
            swept: Default::default(),
            kept: None,
            capacity: 0,
            counters: Counters::default(),
            aliquot: AtomicU64::new(crate::rotor::ALIQUOT),
        };
        if align >= 1 << desc.ms_shift {
            return Err(bad());
        }
        group.grow(&desc.metaslabs, None)?;
        Ok(group)
    }

    /// Reserves the emptiest metaslab for intent logs, if there are enough (§12.1).
    /// Other blocks are written to it only when nothing else is left.
    pub(crate) fn keep_for_logs(&mut self) {
        if self.class == SpaceClass::Normal && self.slabs.len() > EMBEDDED_LOG_MIN {
            let free = |i: &usize| self.slabs[*i].hints.free.load(Ordering::Relaxed);
            // The first of the emptiest ones.
            self.kept = (0..self.slabs.len()).rev().max_by_key(free);
        }
    }

    /// Appends metaslabs.
    pub(crate) fn grow(&mut self, descs: &[crate::MsDesc], fresh: Option<Txg>) -> Result<()> {
        for desc in descs {
            let id = self.slabs.len() as u64;
            let bad = || Error::corrupt(format!("vdev {} is impossibly large", self.vdev));
            let from = id.checked_mul(1 << self.ms_shift).ok_or_else(bad)?;
            let start = from.checked_next_multiple_of(self.align).ok_or_else(bad)?;
            let end = from.checked_add(1 << self.ms_shift).ok_or_else(bad)?;
            let room = end.checked_sub(start).ok_or_else(bad)?;
            let seg = Seg { start, len: room / self.align * self.align };
            if seg.len == 0 {
                return Err(bad());
            }
            let mut ms = Metaslab::new(id, seg, self.ashift, self.align, desc)?;
            ms.fresh = fresh;
            self.capacity += ms.size;
            self.counters.allocated.fetch_add(ms.allocated(), Ordering::Relaxed);
            self.slabs.push(LockedMetaslab::new(ms));
        }
        self.claims.grow(self.slabs.len());
        Ok(())
    }

    /// Cuts off the metaslabs from `count` on, which are empty.
    pub(crate) fn shrink(&mut self, count: usize) {
        for i in count..self.slabs.len() {
            self.release_active(i);
        }
        for slab in self.slabs.drain(count.min(self.slabs.len())..) {
            self.capacity -= slab.with(|ms| ms.size);
        }
        self.claims.grow(self.slabs.len());
        if self.kept.is_some_and(|kept| kept >= count) {
            self.kept = None;
            self.keep_for_logs();
        }
    }

    /// The metaslab that contains the whole range.
    ///
    /// # Errors
    /// `Corrupt` if there is none, or the range does not consist of whole sectors.
    pub(crate) fn slab_of(&self, offset: u64, len: u64) -> Result<&LockedMetaslab> {
        let bad = || {
            Error::corrupt(format!(
                "space at vdev {} {offset:#x}, {len:#x} bytes, is not of one metaslab",
                self.vdev
            ))
        };
        let slab = usize::try_from(offset >> self.ms_shift).ok().and_then(|i| self.slabs.get(i));
        let slab = slab.ok_or_else(bad)?;
        let sectors = (offset | len).is_multiple_of(1 << self.ashift);
        if !sectors || !slab.with(|ms| ms.inside(offset, len)) {
            return Err(bad());
        }
        Ok(slab)
    }

    /// The index of the metaslab that contains an offset.
    pub(crate) fn ms_of(&self, offset: u64) -> u64 {
        offset >> self.ms_shift
    }

    pub(crate) fn totals(&self) -> Totals {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Totals {
            capacity: self.capacity,
            allocated: get(&self.counters.allocated),
            deferred: get(&self.counters.deferred),
            reserved: get(&self.counters.reserved),
        }
    }

    /// Allocates from one metaslab; with `sweep`, behind the last block of its size alone.
    fn try_slab(&self, i: usize, size: u64, txg: Txg, sweep: bool) -> Option<(u64, bool)> {
        let slab = self.slabs.get(i)?;
        let mut ms = slab.ms.lock();
        if !ms.usable() {
            return None;
        }
        if !ms.is_loaded() && ms.is_virgin() {
            // Everything is free, so nothing has to be read. If logs contradict this,
            // it stays unloaded, and the caller handles that.
            ms.load_virgin().ok()?;
            slab.publish(&mut ms);
        }
        let got = if sweep { ms.allocate_behind(size, txg) } else { ms.allocate(size, txg) };
        if got.is_none() && ms.is_loaded() {
            slab.publish(&mut ms);
        }
        got
    }

    /// Maps a use, stream and copy to a slot: a small vdev has few metaslabs to spread over.
    pub(crate) fn slot(
        &self,
        purpose: MetaslabUse,
        stream: usize,
        copy: usize,
        streams: usize,
    ) -> usize {
        let wanted = if copy == 0 { stream } else { streams + copy - 1 };
        let within = if wanted * 3 < self.slabs.len() { wanted } else { 0 };
        purpose as usize * (self.active.len() / USES) + within
    }

    /// Allocates `size` bytes for an intent log block: from the reserved metaslab, if
    /// it has room.
    pub(crate) fn allocate_log(
        &self,
        slot: usize,
        size: u64,
        txg: Txg,
        not: &[usize],
        hard: bool,
    ) -> Result<(u64, bool), Refusal> {
        let Some(kept) = self.kept.filter(|k| !not.contains(k)) else {
            return self.allocate(MetaslabUse::Metadata, slot, size, txg, not, hard);
        };
        let hints = &self.slabs[kept].hints;
        if hints.usable.load(Ordering::Relaxed) && !hints.readable.load(Ordering::Relaxed) {
            return Err(Refusal::Load(kept));
        }
        match self.try_slab(kept, size, txg, false) {
            Some(got) => Ok(got),
            None => {
                let not = with(not, kept);
                self.allocate_among(MetaslabUse::Metadata, slot, size, txg, &not, hard)
            }
        }
    }

    /// As [`MetaslabGroup::allocate_among`], but uses the metaslab reserved for logs last.
    pub(crate) fn allocate(
        &self,
        purpose: MetaslabUse,
        slot: usize,
        size: u64,
        txg: Txg,
        not: &[usize],
        hard: bool,
    ) -> Result<(u64, bool), Refusal> {
        let Some(kept) = self.kept.filter(|k| !not.contains(k)) else {
            return self.allocate_among(purpose, slot, size, txg, not, hard);
        };
        match self.allocate_among(purpose, slot, size, txg, &with(not, kept), hard) {
            Err(Refusal::Full) => {
                let last = self.active.len() - 1;
                let others: Vec<usize> = (0..self.slabs.len()).filter(|i| *i != kept).collect();
                self.allocate_among(purpose, last, size, txg, &others, hard)
            }
            other => other,
        }
    }

    /// Allocates `size` bytes from the slot's metaslab or the next best, except `not`.
    /// Returns the offset and whether this is the metaslab's first allocation of the
    /// txg.
    fn allocate_among(
        &self,
        purpose: MetaslabUse,
        slot: usize,
        size: u64,
        txg: Txg,
        not: &[usize],
        hard: bool,
    ) -> Result<(u64, bool), Refusal> {
        let small = purpose == MetaslabUse::SmallData;
        let active = &self.active[slot];
        let now = active.load(Ordering::Relaxed);
        if now != NONE
            && !not.contains(&now)
            && let Some(got) = self.try_slab(now, size, txg, small)
        {
            self.claims.allocated(purpose, size);
            return Ok(got);
        }
        let limit = if hard { usize::MAX } else { TRIES };
        // Small data sweeps through metaslabs. If none has room behind its cursor, or all are
        // claimed, holes before the cursors are filled.
        for sweep in [true, false] {
            if sweep != small && sweep {
                continue;
            }
            let mut tried: Vec<usize> = not.to_vec();
            if sweep || !small {
                tried.push(now);
            }
            for _ in 0..limit {
                let Some((best, readable)) = self.choose(purpose, slot, size, &tried, hard) else {
                    break;
                };
                if !readable {
                    return Err(Refusal::Load(best));
                }
                if sweep {
                    self.slabs[best].with(|ms| ms.cursors.rewind(size));
                }
                if let Some(got) = self.try_slab(best, size, txg, sweep) {
                    active.store(best, Ordering::Relaxed);
                    self.swept[0].fetch_add(usize::from(sweep), Ordering::Relaxed);
                    self.claims.allocated(purpose, size);
                    return Ok(got);
                }
                tried.push(best);
            }
        }
        Err(Refusal::Full)
    }

    /// The best metaslab not yet tried, and whether it can be used at once.
    fn choose(
        &self,
        purpose: MetaslabUse,
        slot: usize,
        size: u64,
        tried: &[usize],
        hard: bool,
    ) -> Option<(usize, bool)> {
        let others: Vec<usize> = self
            .active
            .iter()
            .enumerate()
            .filter(|&(s, _)| s != slot)
            .map(|(_, a)| a.load(Ordering::Relaxed))
            .collect();
        let small = purpose == MetaslabUse::SmallData;
        let mut best = None;
        for (i, slab) in self.slabs.iter().enumerate() {
            let h = &slab.hints;
            let largest = h.largest.load(Ordering::Relaxed);
            let loaded = h.loaded.load(Ordering::Relaxed);
            let room = if hard && !loaded { h.free.load(Ordering::Relaxed) } else { largest };
            if room < size || !h.usable.load(Ordering::Relaxed) || tried.contains(&i) {
                continue;
            }
            let readable = h.readable.load(Ordering::Relaxed);
            // Another stream's metaslab is used only if there is no other.
            let alone = !others.contains(&i);
            let claim = std::cmp::Reverse(self.claims.of(i, purpose));
            let score = if small {
                // The one with the most room: its holes are the densest.
                let room = h.in_ranges(size).max(1);
                let room = if readable { room + room / 4 } else { room };
                // About equal ones are used in the order of their addresses.
                let step = room.ilog2().saturating_sub(2);
                (claim, false, alone, room >> step << step, 0)
            } else {
                let enough = GOOD_ENOUGH.max(size.saturating_mul(GOOD_ENOUGH_TIMES));
                let class = largest.checked_ilog2().unwrap_or(0);
                let class = if readable { class + LOAD_PENALTY } else { class };
                let count = h.count.load(Ordering::Relaxed);
                (claim, loaded && alone && largest >= enough, alone, u64::from(class), count)
            };
            if best.is_none_or(|(s, _, _)| score > s) {
                best = Some((score, i, readable));
            }
        }
        best.map(|(_, i, readable)| (i, readable))
    }

    /// The unloaded metaslabs among those to which small data moves next ([`Space::preloads`]).
    ///
    /// [`Space::preloads`]: crate::Space::preloads
    pub(crate) fn next_unloaded(&self, most: usize) -> Vec<usize> {
        let swept = self.swept[1].load(Ordering::Relaxed);
        let count = (swept + swept / 2).min(most);
        if count == 0 || !self.allocating.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let room = |i: usize| {
            let h = &self.slabs[i].hints;
            let own = self.claims.of(i, MetaslabUse::SmallData) == Claim::Own;
            let may = own && h.usable.load(Ordering::Relaxed) && self.kept != Some(i);
            let room = h.in_ranges(SMALL_BLOCK);
            (may && room > 0).then_some((room, i))
        };
        let mut next: Vec<(u64, usize)> = (0..self.slabs.len()).filter_map(room).collect();
        next.sort_unstable_by(|a, b| b.cmp(a));
        next.truncate(count);
        next.retain(|&(_, i)| !self.slabs[i].hints.readable.load(Ordering::Relaxed));
        next.into_iter().map(|(_, i)| i).collect()
    }

    /// Clears the list of active metaslabs, after a change of their states.
    pub(crate) fn release_active(&self, i: usize) {
        for slot in &self.active {
            let _ = slot.compare_exchange(i, NONE, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_active(&self, i: usize) -> bool {
        self.active.iter().any(|slot| slot.load(Ordering::Relaxed) == i)
    }

    /// At the end of a txg: adjusts the claims, and deactivates a metaslab that has become much
    /// worse than another loaded one. A sweep of small data goes on.
    pub(crate) fn refresh_active(&self) {
        let swept = self.swept[0].swap(0, Ordering::Relaxed);
        self.swept[1].store(swept, Ordering::Relaxed);
        let slots = self.active.len() / USES;
        for (s, slot) in self.active.iter().enumerate().skip(slots) {
            let now = slot.load(Ordering::Relaxed);
            let Some(slab) = self.slabs.get(now) else { continue };
            let class = |slab: &LockedMetaslab| {
                slab.hints.largest.load(Ordering::Relaxed).checked_ilog2().unwrap_or(0)
            };
            slab.change(|_| ());
            let purpose = if s / slots == MetaslabUse::LargeData as usize {
                MetaslabUse::LargeData
            } else {
                MetaslabUse::Metadata
            };
            if self.claims.of(now, purpose) == Claim::Other {
                slot.store(NONE, Ordering::Relaxed);
                continue;
            }
            let not: Vec<usize> = [now].into_iter().chain(self.kept).collect();
            if let Some((better, true)) = self.choose(purpose, s, GOOD_ENOUGH, &not, false)
                && self.claims.of(better, purpose) <= self.claims.of(now, purpose)
                && class(&self.slabs[better]) > class(slab) + LOAD_PENALTY
                && !self.is_active(better)
            {
                slot.store(better, Ordering::Relaxed);
            }
        }
        if self.class == SpaceClass::Normal {
            // A sweep is not interrupted.
            let swept: Vec<usize> =
                self.active[..slots].iter().map(|a| a.load(Ordering::Relaxed)).collect();
            let facts = |(i, slab): (usize, &LockedMetaslab)| {
                let h = &slab.hints;
                let usable = h.usable.load(Ordering::Relaxed);
                let of = |purpose: MetaslabUse| h.in_ranges(purpose.range_min());
                ClaimFacts {
                    usable: usable && self.kept != Some(i) && !swept.contains(&i),
                    free: h.free.load(Ordering::Relaxed),
                    in_ranges: [of(MetaslabUse::Metadata), of(MetaslabUse::LargeData)],
                }
            };
            let facts: Vec<ClaimFacts> = self.slabs.iter().enumerate().map(facts).collect();
            self.claims.rebalance(&facts);
        }
    }
}
