//! The metaslabs of one top-level vdev, and the choice among them (§12.2).

use base::rt::Mutex;
use base::rt::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use base::{Error, Result, Txg, VdevId};

use crate::range_tree::Seg;
use crate::slab::Metaslab;
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
    unflushed_txg: AtomicU64,
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
        hints.free.store(ms.free_space(), Ordering::Relaxed);
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
    /// Metaslabs used by streams and copies; the last entry is for intent logs.
    active: Vec<AtomicUsize>,
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
            active: (0..=slots).map(|_| AtomicUsize::new(NONE)).collect(),
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
        Ok(())
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

    fn try_slab(&self, i: usize, size: u64, txg: Txg) -> Option<(u64, bool)> {
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
        let got = ms.allocate(size, txg);
        if got.is_none() && ms.is_loaded() {
            slab.publish(&mut ms);
        }
        got
    }

    /// Maps a stream and copy to a slot: a small vdev has few metaslabs to spread over.
    pub(crate) fn slot(&self, stream: usize, copy: usize, streams: usize) -> usize {
        let wanted = if copy == 0 { stream } else { streams + copy - 1 };
        if wanted * 3 < self.slabs.len() { wanted } else { 0 }
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
            return self.allocate(slot, size, txg, not, hard);
        };
        let hints = &self.slabs[kept].hints;
        if hints.usable.load(Ordering::Relaxed) && !hints.readable.load(Ordering::Relaxed) {
            return Err(Refusal::Load(kept));
        }
        match self.try_slab(kept, size, txg) {
            Some(got) => Ok(got),
            None => self.allocate_among(slot, size, txg, &with(not, kept), hard),
        }
    }

    /// As [`MetaslabGroup::allocate_among`], but uses the metaslab reserved for logs last.
    pub(crate) fn allocate(
        &self,
        slot: usize,
        size: u64,
        txg: Txg,
        not: &[usize],
        hard: bool,
    ) -> Result<(u64, bool), Refusal> {
        let Some(kept) = self.kept.filter(|k| !not.contains(k)) else {
            return self.allocate_among(slot, size, txg, not, hard);
        };
        match self.allocate_among(slot, size, txg, &with(not, kept), hard) {
            Err(Refusal::Full) => {
                let last = self.active.len() - 1;
                let others: Vec<usize> = (0..self.slabs.len()).filter(|i| *i != kept).collect();
                self.allocate_among(last, size, txg, &others, hard)
            }
            other => other,
        }
    }

    /// Allocates `size` bytes from the slot's metaslab or the next best, except `not`.
    /// Returns the offset and whether this is the metaslab's first allocation of the
    /// txg.
    fn allocate_among(
        &self,
        slot: usize,
        size: u64,
        txg: Txg,
        not: &[usize],
        hard: bool,
    ) -> Result<(u64, bool), Refusal> {
        let active = &self.active[slot];
        let now = active.load(Ordering::Relaxed);
        if now != NONE
            && !not.contains(&now)
            && let Some(got) = self.try_slab(now, size, txg)
        {
            return Ok(got);
        }
        let mut tried: Vec<usize> = not.to_vec();
        tried.push(now);
        let limit = if hard { usize::MAX } else { TRIES };
        for _ in 0..limit {
            let Some((best, readable)) = self.choose(slot, size, &tried, hard) else { break };
            if !readable {
                return Err(Refusal::Load(best));
            }
            if let Some(got) = self.try_slab(best, size, txg) {
                active.store(best, Ordering::Relaxed);
                return Ok(got);
            }
            tried.push(best);
        }
        Err(Refusal::Full)
    }

    /// The best metaslab not yet tried, and whether it can be used at once.
    fn choose(&self, slot: usize, size: u64, tried: &[usize], hard: bool) -> Option<(usize, bool)> {
        let others: Vec<usize> = self
            .active
            .iter()
            .enumerate()
            .filter(|&(s, _)| s != slot)
            .map(|(_, a)| a.load(Ordering::Relaxed))
            .collect();
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
            let enough = GOOD_ENOUGH.max(size.saturating_mul(GOOD_ENOUGH_TIMES));
            let class = largest.checked_ilog2().unwrap_or(0);
            let class = if readable { class + LOAD_PENALTY } else { class };
            let count = h.count.load(Ordering::Relaxed);
            // Another stream's metaslab is used only if there is no other.
            let alone = !others.contains(&i);
            let score = (loaded && alone && largest >= enough, alone, class, count);
            if best.is_none_or(|(s, _, _)| score > s) {
                best = Some((score, i, readable));
            }
        }
        best.map(|(_, i, readable)| (i, readable))
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

    /// At the end of a txg: deactivates a metaslab that has become much worse than
    /// another loaded one.
    pub(crate) fn refresh_active(&self) {
        for (s, slot) in self.active.iter().enumerate() {
            let now = slot.load(Ordering::Relaxed);
            let Some(slab) = self.slabs.get(now) else { continue };
            let class = |slab: &LockedMetaslab| {
                slab.hints.largest.load(Ordering::Relaxed).checked_ilog2().unwrap_or(0)
            };
            slab.change(|_| ());
            let not: Vec<usize> = [now].into_iter().chain(self.kept).collect();
            if let Some((better, true)) = self.choose(s, GOOD_ENOUGH, &not, false)
                && class(&self.slabs[better]) > class(slab) + LOAD_PENALTY
                && !self.is_active(better)
            {
                slot.store(better, Ordering::Relaxed);
            }
        }
    }
}
