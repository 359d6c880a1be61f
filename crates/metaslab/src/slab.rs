//! One metaslab: its sets of ranges, and the operations that move a range from one set
//! to the next (chapter 05 §5.1, §5.4, §6).
//!
//! # States of a range
//! *allocatable* → `allocating[T]` (allocated in txg T) → *allocated* (written by a
//! pass of T; in no set) → `freeing` (freed in this pass) → `freed` (the free is
//! written) → `defer[T mod 2]` (T's uberblock is durable) → *allocatable*, two txgs
//! later. `pending` holds the ranges that a pass is about to write. While a metaslab is
//! pinned ([`crate::Space::pin`], [`crate::Space::hold`]), `held` comes between `defer` and *allocatable*.
//!
//! # Invariants
//! * The metaslab's own space map up to `length`, changed by the unflushed sets, is the
//!   state after the last write of a pass; `allocated()` bytes of it are allocated.
//! * In a loaded metaslab, *allocatable*, `allocating`, `pending`'s allocations,
//!   `defer`, `held` and `freed` are disjoint, and together they are the space that is
//!   not allocated ([`Metaslab::check`]).
//! * Only a loaded metaslab has unwritten allocations.

use base::{Error, ErrorKind, Result, Txg};
use ondisk::spacemap::{self, HISTOGRAM_SIZE, Kind};

use crate::fit::Cursors;
use crate::range_tree::{RangeTree, Seg};
use crate::sync::PendingWrite;

/// Ranges below this size are indexed only when first needed (chapter 05 §12.5).
pub(crate) const INDEX_MIN: u64 = 1 << 14;

/// The description of a metaslab when the pool is opened.
#[derive(Clone, Debug, Default)]
pub struct MsDesc {
    /// Object id of its space map; 0 if it has none.
    pub object: u64,
    /// The space map's header; the default if it has none.
    pub header: spacemap::Header,
    /// First txg that its own map does not cover; zero if it never had logged changes
    /// (chapter 05 §4.1).
    pub unflushed_txg: Txg,
}

/// A metaslab of a top-level vdev.
#[derive(Debug)]
pub struct Metaslab {
    /// Its index within the vdev.
    pub(crate) id: u64,
    /// First byte in the vdev; a multiple of `align`.
    pub(crate) start: u64,
    /// Bytes.
    pub(crate) size: u64,
    /// log2 of the unit of its map.
    pub(crate) shift: u32,
    /// Allocated offsets are multiples of this.
    pub(crate) align: u64,
    pub(crate) object: u64,
    /// Bytes of its own space map.
    pub(crate) length: u64,
    /// Bytes that are allocated according to its own space map.
    pub(crate) own_alloc: u64,
    pub(crate) histogram: [u64; HISTOGRAM_SIZE],
    /// The stored map has the long header.
    pub(crate) long_header: bool,
    /// Incremented with every change of its own map.
    pub(crate) generation: u64,
    pub(crate) unflushed_txg: Txg,
    /// Last txg whose log has entries of it.
    pub(crate) logged_in: Txg,
    pub(crate) unflushed_allocs: RangeTree,
    pub(crate) unflushed_frees: RangeTree,
    /// `None` if the metaslab is not loaded.
    pub(crate) allocatable: Option<RangeTree>,
    pub(crate) allocating: [RangeTree; 4],
    pub(crate) freeing: RangeTree,
    pub(crate) freed: RangeTree,
    pub(crate) defer: [RangeTree; 2],
    /// Due to become allocatable, but pinned.
    pub(crate) held: RangeTree,
    /// Ranges that became allocatable recently, if they are collected.
    pub(crate) recent: Option<RangeTree>,
    /// Ranges that were allocated recently, if they are noted.
    pub(crate) noted: Option<RangeTree>,
    /// Number of pins, which keep ranges from becoming allocatable.
    pub(crate) pins: u32,
    /// The last txg after which ranges may have become allocatable.
    pub(crate) released: Txg,
    pub(crate) pending: Option<Box<PendingWrite>>,
    /// Created in this txg: unusable until that has synced.
    pub(crate) fresh: Option<Txg>,
    /// Number of requests not to allocate from it.
    pub(crate) disabled: u32,
    pub(crate) cursors: Cursors,
    /// Last txg that allocated from it.
    pub(crate) used_in: Txg,
}

impl Metaslab {
    /// # Errors
    /// `Corrupt` if the header cannot be of a metaslab of this size.
    pub(crate) fn new(
        id: u64,
        seg: Seg,
        shift: u32,
        align: u64,
        desc: &MsDesc,
    ) -> Result<Metaslab> {
        let own_alloc = u64::try_from(desc.header.alloc).unwrap_or(u64::MAX);
        if own_alloc > seg.len || (desc.object == 0 && desc.header.length != 0) {
            return Err(Error::corrupt(format!("metaslab {id}'s space map has an odd header")));
        }
        Ok(Metaslab {
            id,
            start: seg.start,
            size: seg.len,
            shift,
            align,
            object: desc.object,
            length: desc.header.length,
            own_alloc,
            histogram: desc.header.histogram.unwrap_or_default(),
            long_header: desc.object == 0 || desc.header.histogram.is_some(),
            generation: 0,
            unflushed_txg: desc.unflushed_txg,
            logged_in: Txg::ZERO,
            unflushed_allocs: RangeTree::new(),
            unflushed_frees: RangeTree::new(),
            allocatable: None,
            allocating: Default::default(),
            freeing: RangeTree::new(),
            freed: RangeTree::new(),
            defer: Default::default(),
            held: RangeTree::new(),
            recent: None,
            noted: None,
            pins: 0,
            released: Txg::ZERO,
            pending: None,
            fresh: None,
            disabled: 0,
            cursors: Cursors::default(),
            used_in: Txg::ZERO,
        })
    }

    /// Bytes allocated as of the last write of a pass (chapter 05 §5.1).
    pub(crate) fn allocated(&self) -> u64 {
        (self.own_alloc + self.unflushed_allocs.space())
            .saturating_sub(self.unflushed_frees.space())
    }

    /// Bytes freed that are not yet allocatable.
    pub(crate) fn deferred(&self) -> u64 {
        let waiting = self.defer.iter().chain([&self.held]);
        self.freed.space() + waiting.map(RangeTree::space).sum::<u64>()
    }

    /// Bytes allocated whose write is not complete.
    pub(crate) fn reserved(&self) -> u64 {
        let pending = self.pending.as_ref().map_or(0, |p| p.alloc.space());
        pending + self.allocating.iter().map(RangeTree::space).sum::<u64>()
    }

    /// Bytes that can be allocated now, or could be if it were loaded.
    pub(crate) fn free_space(&self) -> u64 {
        let taken = self.allocated() + self.deferred() + self.reserved();
        self.size.saturating_sub(taken)
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.allocatable.is_some()
    }

    /// Whether nothing is recorded about it: all free, and nothing to read.
    pub(crate) fn is_virgin(&self) -> bool {
        self.length == 0 && self.own_alloc == 0
    }

    /// Whether allocation is allowed at all.
    pub(crate) fn usable(&self) -> bool {
        let condensing = self.pending.as_ref().is_some_and(|p| p.truncates);
        self.disabled == 0 && self.fresh.is_none() && !condensing
    }

    fn slot(txg: Txg) -> usize {
        (txg.0 & 3) as usize
    }

    pub(crate) fn inside(&self, start: u64, len: u64) -> bool {
        let end = start.checked_add(len).filter(|_| len > 0);
        start >= self.start && end.is_some_and(|e| e <= self.start + self.size)
    }

    /// Allocates `size` bytes for `txg`. Returns the offset, and whether it is the
    /// first allocation of `txg` that is not yet written.
    pub(crate) fn allocate(&mut self, size: u64, txg: Txg) -> Option<(u64, bool)> {
        let at = self.pick(size)?;
        self.take_found(at, size, txg)
    }

    /// As [`Metaslab::allocate`], but only behind the last block of this size.
    pub(crate) fn allocate_behind(&mut self, size: u64, txg: Txg) -> Option<(u64, bool)> {
        let at = self.pick_behind(size)?;
        self.take_found(at, size, txg)
    }

    fn take_found(&mut self, at: u64, size: u64, txg: Txg) -> Option<(u64, bool)> {
        let first = self.take(at, size, txg);
        debug_assert!(first.is_ok(), "a range that was found cannot be taken: {first:?}");
        first.ok().map(|first| (at, first))
    }

    /// Moves a range from *allocatable* to `txg`'s set; returns whether that set was
    /// empty.
    fn take(&mut self, at: u64, size: u64, txg: Txg) -> Result<bool> {
        let tree = self.allocatable.as_mut().ok_or_else(|| not_loaded(self.id))?;
        tree.remove(at, size)?;
        let set = &mut self.allocating[Self::slot(txg)];
        let first = set.is_empty();
        set.add(at, size)?;
        self.used_in = self.used_in.max(txg);
        self.uncollect(at, size);
        self.note_allocated(at, size);
        Ok(first)
    }

    /// Marks a given range allocated in `txg`; returns whether it is the first in this
    /// txg.
    pub(crate) fn claim(&mut self, at: u64, size: u64, txg: Txg) -> Result<bool> {
        self.take(at, size, txg)
    }

    /// Whether a range was allocated in `txg` and no pass has taken it since.
    pub(crate) fn is_allocating(&self, at: u64, size: u64, txg: Txg) -> bool {
        self.allocating[Self::slot(txg)].contains(at, size)
    }

    /// Undoes an allocation of `txg` that was never written.
    pub(crate) fn unallocate(&mut self, at: u64, size: u64, txg: Txg) -> Result<()> {
        let tree = self.allocatable.as_mut().ok_or_else(|| not_loaded(self.id))?;
        self.allocating[Self::slot(txg)].remove(at, size)?;
        tree.add(at, size)
    }

    /// Frees a range in the current pass; returns whether it is the first.
    ///
    /// # Errors
    /// `Corrupt` if part of it is free, is already freed, or belongs to a later txg.
    pub(crate) fn free(&mut self, at: u64, size: u64, txg: Txg) -> Result<bool> {
        let twice = || {
            Error::corrupt(format!(
                "space at {at:#x}, {size:#x} bytes, is to be freed, but part of it is free"
            ))
        };
        let pending = self.pending.as_ref().map(|p| &p.free);
        // Without the free ranges, only the unflushed ones can be checked. With them,
        // those must not be checked, because a block may be allocated again and freed
        // before the pass of its txg records it.
        let unflushed = (!self.is_loaded()).then_some(&self.unflushed_frees);
        let later = self.allocating.iter().enumerate().filter(|&(i, _)| i != Self::slot(txg));
        let freed = [&self.freeing, &self.freed, &self.held]
            .into_iter()
            .chain(&self.defer)
            .chain(&self.allocatable)
            .chain(unflushed)
            .chain(later.map(|(_, set)| set))
            .chain(pending);
        let busy = self.freeing.space() + pending.map_or(0, RangeTree::space);
        let known = self.allocated() + self.reserved();
        if freed.into_iter().any(|set| set.overlaps(at, size)) || busy + size > known {
            return Err(twice());
        }
        let first = self.freeing.is_empty();
        self.freeing.add(at, size)?;
        Ok(first)
    }

    /// The free ranges that result from a map's entries, before deferral.
    ///
    /// # Errors
    /// `Corrupt` if the entries allocate allocated space, free free space, or do not
    /// sum up to `alloc` bytes; and the errors of the entries.
    pub(crate) fn replay(
        seg: Seg,
        alloc: u64,
        entries: impl IntoIterator<Item = Result<spacemap::Range>>,
    ) -> Result<RangeTree> {
        let mut free = RangeTree::new();
        free.add(seg.start, seg.len)?;
        for entry in entries {
            let entry = entry?;
            if entry.offset < seg.start || entry.offset.saturating_add(entry.len) > seg.end() {
                return Err(Error::corrupt("a space map's entry is of another metaslab"));
            }
            match entry.kind {
                Kind::Alloc => free.remove(entry.offset, entry.len)?,
                Kind::Free => free.add(entry.offset, entry.len)?,
            }
        }
        if seg.len - free.space() != alloc {
            return Err(Error::corrupt("a space map's entries do not add up to its header"));
        }
        Ok(free)
    }

    /// Loads the metaslab, given the free space of its own map (chapter 05 §5.4).
    ///
    /// # Errors
    /// `Corrupt` if the unflushed or deferred sets contradict the map.
    pub(crate) fn load(&mut self, own_free: &RangeTree) -> Result<()> {
        if self.is_loaded() {
            return Ok(());
        }
        let mut free = RangeTree::indexed(INDEX_MIN);
        own_free.iter().try_for_each(|s| free.add(s.start, s.len))?;
        self.unflushed_allocs.iter().try_for_each(|s| free.remove(s.start, s.len))?;
        self.unflushed_frees.iter().try_for_each(|s| free.add(s.start, s.len))?;
        for set in self.defer.iter().chain([&self.freed, &self.held]) {
            set.iter().try_for_each(|s| free.remove(s.start, s.len))?;
        }
        let allocated = self.allocated();
        if self.size - free.space() != allocated + self.deferred() {
            return Err(Error::corrupt(format!("metaslab {}'s space does not add up", self.id)));
        }
        if self.freeing.iter().any(|s| free.overlaps(s.start, s.len)) {
            return Err(Error::corrupt(format!("metaslab {} frees free space", self.id)));
        }
        self.allocatable = Some(free);
        self.cursors = Cursors::default();
        Ok(())
    }

    /// Loads a metaslab about which nothing is recorded.
    pub(crate) fn load_virgin(&mut self) -> Result<()> {
        let mut all = RangeTree::new();
        all.add(self.start, self.size)?;
        self.load(&all)
    }

    /// Drops the free ranges, if nothing depends on them.
    pub(crate) fn unload(&mut self) -> bool {
        let idle = self.reserved() == 0 && self.pending.is_none() && self.freeing.is_empty();
        if idle && self.is_loaded() {
            // The known sizes stay, for the choice of metaslabs.
            self.histogram = self.known_histogram();
            self.allocatable = None;
        }
        idle
    }

    /// Applies an entry of a log, at import (chapter 05 §4.5).
    pub(crate) fn replay_log(&mut self, kind: Kind, at: u64, len: u64) -> Result<()> {
        let (to, from) = match kind {
            Kind::Alloc => (&mut self.unflushed_allocs, &mut self.unflushed_frees),
            Kind::Free => (&mut self.unflushed_frees, &mut self.unflushed_allocs),
        };
        to.remove_xor_add(from, at, len)?;
        let sum = self.own_alloc + self.unflushed_allocs.space();
        if self.unflushed_frees.space() > sum || self.allocated() > self.size {
            return Err(Error::corrupt("the logs free or allocate more than there is"));
        }
        Ok(())
    }

    /// Handles the durability of `txg`'s uberblock (chapter 05 §6). Returns the bytes
    /// that became allocatable, and whether the next txg must call it again. `hold` keeps
    /// everything from becoming allocatable, as a pin does.
    pub(crate) fn synced(&mut self, txg: Txg, defer: bool, hold: bool) -> Result<(u64, bool)> {
        self.fresh = self.fresh.filter(|&t| t > txg);
        self.released = txg;
        let slot = (txg.0 & 1) as usize;
        let mut release = vec![std::mem::take(&mut self.defer[slot])];
        let freed = std::mem::take(&mut self.freed);
        if defer {
            self.defer[slot] = freed;
        } else {
            release.push(freed);
        }
        if self.pins > 0 || hold {
            for mut set in release.drain(..) {
                set.vacate(&mut self.held)?;
            }
        } else {
            release.push(std::mem::take(&mut self.held));
        }
        let mut bytes = 0;
        for mut set in release {
            bytes += set.space();
            self.collect(&set);
            if let Some(free) = &mut self.allocatable {
                set.vacate(free)?;
            }
        }
        Ok((bytes, self.defer.iter().chain([&self.held]).any(|d| !d.is_empty())))
    }

    /// [`crate::Space::is_allocated`].
    pub(crate) fn is_allocated(&self, start: u64, len: u64) -> bool {
        let free = self.allocatable.iter().chain(&self.defer);
        let mut free = free.chain([&self.freeing, &self.freed, &self.held]);
        self.inside(start, len) && !free.any(|set| set.overlaps(start, len))
    }

    /// Verifies the invariants of the module's head.
    ///
    /// # Errors
    /// `Bug` if one does not hold.
    pub fn check(&self) -> Result<()> {
        let bug = |why: String| Err(Error::bug(format!("metaslab {}: {why}", self.id)));
        let pending = self.pending.as_ref();
        let mut all = RangeTree::new();
        let sets = self.allocating.iter().chain(&self.defer).chain([&self.freed, &self.held]);
        for set in sets.chain(&self.allocatable).chain(pending.map(|p| &p.alloc)) {
            set.check()?;
            for seg in set.iter() {
                if !self.inside(seg.start, seg.len) {
                    return bug(format!("{seg:?} lies outside"));
                }
                all.add(seg.start, seg.len).map_err(|e| e.with_kind(ErrorKind::Bug))?;
            }
        }
        let not_allocated = self.size - self.allocated().min(self.size);
        if self.is_loaded() && all.space() != not_allocated {
            let sum = all.space();
            return bug(format!("the sets sum up to {sum:#x}, not to {not_allocated:#x}"));
        }
        if !self.is_loaded() && self.reserved() > 0 {
            return bug("allocations without being loaded".into());
        }
        let frees = &self.unflushed_frees;
        if self.unflushed_allocs.iter().any(|s| frees.overlaps(s.start, s.len)) {
            return bug("the unflushed sets overlap".into());
        }
        Ok(())
    }

    /// Checks only the equation of chapter 05 §5.1; fast.
    pub(crate) fn adds_up(&self) -> bool {
        let free = match &self.allocatable {
            Some(tree) => tree.space(),
            None => return true,
        };
        self.size == self.allocated() + self.deferred() + self.reserved() + free
    }
}

pub(crate) fn not_loaded(id: u64) -> Error {
    base::bug!("metaslab {id} is used but not loaded")
}
