//! All space of a pool: classes, vdevs, metaslabs, and the interface for the sync
//! thread.

use std::collections::{BTreeMap, BTreeSet};

use base::rt::atomic::{AtomicBool, AtomicU64, Ordering};
use base::rt::{Mutex, ReadGuard, RwLock};
use base::{Dva, Error, Result, Txg, VdevId};
use ondisk::spacemap;

use crate::group::{LockedMetaslab, MetaslabGroup};
use crate::range_tree::{RangeTree, Seg};
use crate::rotor::VdevRing;
use crate::slab::Metaslab;
use crate::sync::{MapFacts, MapWrite};
use crate::{
    CLASSES, ForceGanging, Fragmentation, FreeHistogram, MetaslabStatus, MsKey, Plant, SpaceClass,
    Totals, VdevDesc,
};

/// The vdevs, in classes.
#[derive(Debug)]
pub(crate) struct SpaceLayout {
    pub(crate) groups: Vec<MetaslabGroup>,
    index: BTreeMap<VdevId, usize>,
    rings: [VdevRing; 4],
}

impl SpaceLayout {
    pub(crate) fn ring(&self, class: SpaceClass) -> &VdevRing {
        &self.rings[class as usize]
    }

    /// # Errors
    /// `Corrupt` if there is no such vdev: addresses come from disks.
    pub(crate) fn group(&self, vdev: VdevId) -> Result<&MetaslabGroup> {
        let group = self.index.get(&vdev).and_then(|&i| self.groups.get(i));
        group.ok_or_else(|| Error::corrupt(format!("vdev {vdev} has no space to give or take")))
    }

    pub(crate) fn slab(&self, key: MsKey) -> Result<(&MetaslabGroup, &LockedMetaslab)> {
        let group = self.group(key.vdev)?;
        let slab = usize::try_from(key.ms).ok().and_then(|i| group.slabs.get(i));
        // A vdev may have shrunk since.
        let none = || Error::not_found(format!("vdev {} has no metaslab {}", key.vdev, key.ms));
        Ok((group, slab.ok_or_else(none)?))
    }

    /// Every metaslab with its key.
    pub(crate) fn slabs(&self) -> impl Iterator<Item = (MsKey, &LockedMetaslab)> {
        self.groups.iter().flat_map(|g| {
            let key = |i: usize| MsKey { vdev: g.vdev, ms: i as u64 };
            g.slabs.iter().enumerate().map(move |(i, s)| (key(i), s))
        })
    }
}

/// What to read to load a metaslab ([`Space::load_plan`]).
#[derive(Clone, Copy, Debug)]
pub struct LoadPlan {
    /// The metaslab.
    pub key: MsKey,
    /// Its space map's object; 0 if there is nothing to read.
    pub object: u64,
    /// Bytes of the map that are valid.
    pub length: u64,
    /// First byte of the metaslab, and bytes.
    pub seg: Seg,
    /// log2 of the unit of its map.
    pub shift: u32,
    alloc: u64,
    generation: u64,
}

/// Which part of the metaslabs is in memory ([`Space::loaded`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadedMetaslabs {
    /// Metaslabs of all vdevs.
    pub all: usize,
    /// Those that are loaded.
    pub loaded: usize,
    /// Free ranges of the loaded ones.
    pub ranges: usize,
}

/// The space of a pool. The head of the crate has theory and lock order.
#[derive(Debug)]
pub struct Space {
    layout: RwLock<SpaceLayout>,
    /// Metaslabs with something to write, by txg.
    dirty: [Mutex<BTreeSet<MsKey>>; 4],
    /// Metaslabs to process when the txg has synced.
    done: Mutex<BTreeSet<MsKey>>,
    streams: usize,
    synced: AtomicU64,
    /// The txg of the last call of [`Space::synced`], set when the call begins.
    releasing: AtomicU64,
    /// Number of holds on all metaslabs.
    holds: AtomicU64,
    /// The last call of [`Space::synced`] met a hold.
    held_back: AtomicBool,
    /// New metaslabs collect the ranges that become allocatable.
    pub(crate) collecting: AtomicBool,
    /// Test instruments; all off.
    pub plant: Plant,
    /// A test instrument; off.
    pub force_ganging: ForceGanging,
}

impl Space {
    /// A pool without vdevs. Writers spread over `streams` metaslabs of a vdev; at
    /// least 1.
    pub fn new(streams: usize) -> Space {
        let streams = streams.clamp(1, 64);
        let rings = CLASSES.map(|class| VdevRing::new(streams, class == SpaceClass::Log));
        Space {
            layout: RwLock::new(SpaceLayout { groups: Vec::new(), index: BTreeMap::new(), rings }),
            dirty: Default::default(),
            done: Mutex::new(BTreeSet::new()),
            streams,
            synced: AtomicU64::new(0),
            releasing: AtomicU64::new(0),
            holds: AtomicU64::new(0),
            held_back: AtomicBool::new(false),
            collecting: AtomicBool::new(false),
            plant: Plant::default(),
            force_ganging: ForceGanging::default(),
        }
    }

    pub(crate) fn layout(&self) -> ReadGuard<'_, SpaceLayout> {
        self.layout.read()
    }

    pub(crate) fn streams(&self) -> usize {
        self.streams
    }

    pub(crate) fn stream(&self, hint: u64) -> usize {
        (hint % self.streams as u64) as usize
    }

    pub(crate) fn note_dirty(&self, txg: Txg, key: MsKey) {
        self.dirty[(txg.0 & 3) as usize].lock().insert(key);
    }

    pub(crate) fn is_clean(&self, txg: Txg) -> bool {
        self.dirty[(txg.0 & 3) as usize].lock().is_empty()
    }

    /// Adds a top-level vdev. `created` is the txg that creates it, if it is new:
    /// nothing is allocated from it until that txg has synced.
    ///
    /// # Errors
    /// `Corrupt` for impossible geometry, `Exists` if the vdev was already added.
    pub fn add_vdev(&self, desc: &VdevDesc, created: Option<Txg>) -> Result<()> {
        let mut group = MetaslabGroup::new(
            &VdevDesc { metaslabs: Vec::new(), ..desc.clone() },
            self.streams + 2,
        )?;
        if (desc.asize >> desc.ms_shift) < desc.metaslabs.len() as u64 {
            return Err(Error::corrupt(format!("vdev {} is too small", desc.vdev)));
        }
        group.grow(&desc.metaslabs, created)?;
        group.keep_for_logs();
        if self.collecting.load(Ordering::Relaxed) {
            let collect = |ms: &mut Metaslab| ms.recent = Some(RangeTree::new());
            group.slabs.iter().for_each(|slab| slab.with(collect));
        }
        let mut layout = self.layout.write();
        if layout.index.contains_key(&desc.vdev) {
            let why = format!("vdev {} has its space already", desc.vdev);
            return Err(Error::new(base::ErrorKind::Exists, why));
        }
        let i = layout.groups.len();
        layout.index.insert(desc.vdev, i);
        layout.rings[desc.class as usize].members.push(i);
        let count = group.slabs.len() as u64;
        layout.groups.push(group);
        layout.rings[desc.class as usize].balance(&layout.groups);
        self.note_fresh(desc.vdev, 0..count, created);
        Ok(())
    }

    /// Appends metaslabs to a vdev that grows. They are used when `created` is durable.
    ///
    /// # Errors
    /// `Corrupt` if there is no such vdev, or it would be impossibly large.
    pub fn grow_vdev(&self, vdev: VdevId, count: u64, created: Txg) -> Result<()> {
        let mut layout = self.layout.write();
        let layout = &mut *layout;
        let group = layout.index.get(&vdev).and_then(|&i| layout.groups.get_mut(i));
        let none = || Error::corrupt(format!("vdev {vdev} has no space that could grow"));
        let group = group.ok_or_else(none)?;
        let first = group.slabs.len() as u64;
        let count = usize::try_from(count).map_err(|_| none())?;
        group.grow(&vec![crate::MsDesc::default(); count], Some(created))?;
        let class = group.class;
        layout.rings[class as usize].balance(&layout.groups);
        self.note_fresh(vdev, first..first + count as u64, Some(created));
        Ok(())
    }

    /// Cuts off the metaslabs of a vdev from `count` on.
    ///
    /// # Errors
    /// `Busy` if something in them is allocated, deferred or in flight, `Corrupt` if there is
    /// no such vdev, or none of its metaslabs would be left.
    pub fn shrink_vdev(&self, vdev: VdevId, count: u64) -> Result<()> {
        if self.left_from(vdev, count)? > 0 {
            return Err(Error::busy(format!("the end of vdev {vdev} still holds something")));
        }
        let mut layout = self.layout.write();
        let layout = &mut *layout;
        let group = layout.index.get(&vdev).and_then(|&i| layout.groups.get_mut(i));
        let none = || Error::corrupt(format!("vdev {vdev} has no space that could shrink"));
        let group = group.ok_or_else(none)?;
        let count = usize::try_from(count).ok().filter(|n| *n > 0).ok_or_else(none)?;
        group.shrink(count);
        let class = group.class;
        layout.rings[class as usize].balance(&layout.groups);
        for set in self.dirty.iter().chain([&self.done]) {
            set.lock().retain(|key| key.vdev != vdev || key.ms < count as u64);
        }
        Ok(())
    }

    /// Bytes of a vdev's metaslabs from one on that are allocated, were freed and are not free
    /// yet, or are about to be allocated.
    ///
    /// # Errors
    /// `Corrupt` if there is no such vdev.
    pub fn left_from(&self, vdev: VdevId, first: u64) -> Result<u64> {
        let layout = self.layout();
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let left = |ms: &mut Metaslab| ms.allocated() + ms.deferred() + ms.reserved();
        let slabs = layout.group(vdev)?.slabs.iter().skip(first);
        Ok(slabs.map(|slab| slab.with(left)).fold(0, u64::saturating_add))
    }

    /// Removes a vdev that leaves the pool.
    ///
    /// # Errors
    /// `Busy` if something on it is allocated, deferred or in flight, `Corrupt` if
    /// there is no such vdev.
    pub fn remove_vdev(&self, vdev: VdevId) -> Result<()> {
        let totals = self.layout().group(vdev)?.totals();
        if totals.allocated + totals.deferred + totals.reserved > 0 {
            return Err(Error::busy(format!("vdev {vdev} still holds something")));
        }
        self.abandon_vdev(vdev)
    }

    /// As [`Space::remove_vdev`], whatever is on it: its blocks have copies elsewhere.
    ///
    /// # Errors
    /// `Corrupt` if there is no such vdev.
    pub fn abandon_vdev(&self, vdev: VdevId) -> Result<()> {
        let mut layout = self.layout.write();
        layout.group(vdev)?;
        let gone = layout.index.remove(&vdev);
        for ring in &mut layout.rings {
            ring.members.retain(|&i| Some(i) != gone);
        }
        // The entry in the list stays, so that others keep their index.
        if let Some(group) = gone.and_then(|i| layout.groups.get_mut(i)) {
            group.slabs = Vec::new();
        }
        for set in self.dirty.iter().chain([&self.done]) {
            set.lock().retain(|key| key.vdev != vdev);
        }
        Ok(())
    }

    fn note_fresh(&self, vdev: VdevId, range: std::ops::Range<u64>, created: Option<Txg>) {
        if created.is_some() {
            self.done.lock().extend(range.map(|ms| MsKey { vdev, ms }));
        }
    }

    /// Sets whether space may be allocated from a vdev; freeing is always possible.
    ///
    /// # Errors
    /// `Corrupt` if there is no such vdev.
    pub fn set_allocating(&self, vdev: VdevId, allocating: bool) -> Result<()> {
        let layout = self.layout();
        layout.group(vdev)?.allocating.store(allocating, Ordering::Relaxed);
        Ok(())
    }

    /// Excludes a metaslab from allocation, or allows it again; calls nest.
    ///
    /// # Errors
    /// `NotFound` if it does not exist.
    pub fn disable(&self, key: MsKey, disable: bool) -> Result<()> {
        let layout = self.layout();
        let (group, slab) = layout.slab(key)?;
        slab.change(|ms| {
            let n = ms.disabled;
            ms.disabled = if disable { n + 1 } else { n.saturating_sub(1) };
        });
        group.release_active(key.ms as usize);
        Ok(())
    }

    /// The newest txg whose frees were processed ([`Space::synced`]).
    pub fn synced_txg(&self) -> Txg {
        Txg(self.synced.load(Ordering::Acquire))
    }

    /// Pins the metaslab with this offset: until [`Space::unpin`], space freed in it
    /// does not become allocatable. Returns false, without a pin, if space freed after
    /// txg `since` may already have become allocatable.
    ///
    /// So for a block that txg `since` references, and that was born in it or before:
    /// from then until `unpin`, no other block is at its address, although the block
    /// may be freed.
    ///
    /// # Errors
    /// `Corrupt` if there is no such address.
    pub fn pin(&self, vdev: VdevId, offset: u64, since: Txg) -> Result<bool> {
        let layout = self.layout();
        let group = layout.group(vdev)?;
        let slab = group.slab_of(offset, 1 << group.ashift)?;
        Ok(slab.with(|ms| {
            let in_time = ms.released <= since;
            ms.pins += u32::from(in_time);
            in_time
        }))
    }

    /// Removes a pin; the next txg that ends releases the space that was held back.
    pub fn unpin(&self, vdev: VdevId, offset: u64) {
        let layout = self.layout();
        let slab = layout.group(vdev).and_then(|group| group.slab_of(offset, 1 << group.ashift));
        if let Ok(slab) = slab {
            slab.with(|ms| ms.pins = ms.pins.saturating_sub(1));
        }
    }

    /// Pins all metaslabs at once, as [`Space::pin`] does one, until [`Space::end_hold`].
    /// Returns false, without a hold, if space freed after txg `since` may already have
    /// become allocatable. Holds nest. A hold that lasts uses up the free space, so the
    /// caller ends it after a second at the latest, and takes another one only after a txg
    /// has ended without it ([`Space::is_held_back`]).
    pub fn hold(&self, since: Txg) -> bool {
        // `synced` stores its txg before it looks for holds, and this call looks for the txg
        // after it has stored the hold: at least one of them sees the other.
        self.holds.fetch_add(1, Ordering::SeqCst);
        let in_time = self.releasing.load(Ordering::SeqCst) <= since.0;
        if !in_time {
            self.end_hold();
        }
        in_time
    }

    /// Ends a hold; the next txg that ends releases the space that was held back.
    pub fn end_hold(&self) {
        self.holds.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether the last txg that ended released no space because of a hold.
    pub fn is_held_back(&self) -> bool {
        self.held_back.load(Ordering::Relaxed)
    }

    /// What must be read to load a metaslab; `None` if it is loaded.
    ///
    /// # Errors
    /// `NotFound` if it does not exist.
    pub fn load_plan(&self, key: MsKey) -> Result<Option<LoadPlan>> {
        let layout = self.layout();
        let (_, slab) = layout.slab(key)?;
        Ok(slab.with(|ms| {
            (!ms.is_loaded()).then_some(LoadPlan {
                key,
                object: ms.object,
                length: ms.length,
                seg: Seg { start: ms.start, len: ms.size },
                shift: ms.shift,
                alloc: ms.own_alloc,
                generation: ms.generation,
            })
        }))
    }

    /// Loads a metaslab, given the entries in the first `length` bytes of its map.
    ///
    /// # Errors
    /// `Corrupt` if entries and header contradict each other or the logs; nothing can
    /// be allocated there then ([`Space::disable`]). `Busy` if the map changed
    /// meanwhile: make a new plan. Also the errors of the entries.
    pub fn load(
        &self,
        plan: &LoadPlan,
        entries: impl IntoIterator<Item = Result<spacemap::Range>>,
    ) -> Result<()> {
        // Without the lock, because this takes long.
        let free = Metaslab::replay(plan.seg, plan.alloc, entries);
        let layout = self.layout();
        let (_, slab) = layout.slab(plan.key)?;
        slab.change(|ms| {
            if ms.is_loaded() {
                return Ok(());
            }
            if ms.generation != plan.generation {
                return Err(Error::busy("a space map changed while it was read"));
            }
            ms.load(&free?)?;
            ms.used_in = Txg(self.synced.load(Ordering::Relaxed));
            Ok(())
        })
    }

    /// The space map of every metaslab that has one: its object, and its length in bytes.
    pub fn maps(&self) -> Vec<(MsKey, u64, u64)> {
        let layout = self.layout();
        let all = layout.slabs().map(|(key, slab)| {
            let (object, length) = slab.with(|ms| (ms.object, ms.length));
            (key, object, length)
        });
        all.filter(|&(_, object, _)| object != 0).collect()
    }

    /// Unloads metaslabs from which nothing was allocated for `idle` txgs, and, as long as the
    /// loaded ones have more than `ranges_max` free ranges together, those that were used
    /// longest ago; returns their number.
    pub fn unload_idle(&self, txg: Txg, idle: u64, ranges_max: usize) -> usize {
        let layout = self.layout();
        let mut loaded: Vec<(Txg, usize, &MetaslabGroup, usize)> = Vec::new();
        for group in &layout.groups {
            for (i, slab) in group.slabs.iter().enumerate() {
                let facts = |ms: &mut Metaslab| {
                    ms.allocatable.as_ref().map(|tree| (ms.used_in, tree.len()))
                };
                if let Some((used_in, ranges)) = slab.with(facts) {
                    loaded.push((used_in, ranges, group, i));
                }
            }
        }
        let mut ranges: usize = loaded.iter().map(|l| l.1).sum();
        loaded.sort_unstable_by_key(|l| l.0);
        let mut count = 0;
        for (used_in, own, group, i) in loaded {
            if used_in.0 + idle >= txg.0 && ranges <= ranges_max {
                break;
            }
            if !group.is_active(i) && group.slabs[i].change(Metaslab::unload) {
                count += 1;
                ranges -= own;
            }
        }
        count
    }

    /// How many metaslabs there are, how many of them are loaded, and the free ranges that
    /// these have in memory.
    pub fn loaded(&self) -> LoadedMetaslabs {
        let layout = self.layout();
        let mut sum = LoadedMetaslabs::default();
        for (_, slab) in layout.slabs() {
            sum.all += 1;
            if let Some(ranges) = slab.with(|ms| ms.allocatable.as_ref().map(RangeTree::len)) {
                sum.loaded += 1;
                sum.ranges += ranges;
            }
        }
        sum
    }

    /// Metaslabs that the next txg will probably need, and that are not loaded: those to which
    /// small data moves next, half as many again as it used in the last txg, at most `most` for
    /// a vdev.
    pub fn preloads(&self, most: usize) -> Vec<MsKey> {
        let layout = self.layout();
        let of = |group: &MetaslabGroup| {
            let key = |i: usize| MsKey { vdev: group.vdev, ms: i as u64 };
            group.next_unloaded(most).into_iter().map(key).collect::<Vec<_>>()
        };
        layout.groups.iter().filter(|g| g.class != SpaceClass::Log).flat_map(of).collect()
    }

    /// Applies an entry of the log of txg `log`, at import, in order of txgs and
    /// entries. Entries of vdevs that do not exist, or that the metaslab's own map
    /// covers, have no effect (chapter 05 §4.5). Must be called before anything is
    /// loaded or allocated.
    ///
    /// # Errors
    /// `Corrupt` if it contradicts earlier entries.
    pub fn replay_log(&self, log: Txg, entry: &spacemap::Range) -> Result<()> {
        let layout = self.layout();
        let Ok(group) = layout.group(entry.vdev) else { return Ok(()) };
        let slab = group.slab_of(entry.offset, entry.len)?;
        if slab.unflushed_txg() == Txg::ZERO || log < slab.unflushed_txg() {
            return Ok(());
        }
        let (before, after) = slab.change(|ms| {
            let before = ms.allocated();
            ms.replay_log(entry.kind, entry.offset, entry.len)?;
            Ok::<_, Error>((before, ms.allocated()))
        })?;
        let allocated = &group.counters.allocated;
        allocated.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        Ok(())
    }

    /// Frees space in the txg that is being synced; one of its passes records that.
    ///
    /// # Errors
    /// `Corrupt` if part of it is free or already freed, or if it is not whole sectors
    /// of one metaslab: the pool is damaged, and nothing changed.
    pub fn free(&self, txg: Txg, dva: Dva) -> Result<()> {
        let layout = self.layout();
        let group = layout.group(dva.vdev).map_err(|e| e.at_dva(dva))?;
        let (at, size) = (dva.offset, dva.asize.0);
        let slab = group.slab_of(at, size).map_err(|e| e.at_dva(dva))?;
        if slab.with(|ms| ms.free(at, size, txg)).map_err(|e| e.at_dva(dva))? {
            self.note_dirty(txg, MsKey { vdev: dva.vdev, ms: group.ms_of(at) });
        }
        Ok(())
    }

    /// The metaslab that a range of whole sectors lies in; `None` if no metaslab has all of it.
    pub fn key_of(&self, dva: Dva) -> Option<MsKey> {
        let layout = self.layout();
        let group = layout.group(dva.vdev).ok()?;
        group.slab_of(dva.offset, dva.asize.0).ok()?;
        Some(MsKey { vdev: dva.vdev, ms: group.ms_of(dva.offset) })
    }

    /// Whether no byte of the range could be given to another block: it lies inside one
    /// metaslab, and is neither free nor about to become free. Of a metaslab that is not
    /// loaded only the latter is known.
    pub fn is_allocated(&self, dva: Dva) -> bool {
        let layout = self.layout();
        let Ok(group) = layout.group(dva.vdev) else { return false };
        let (at, size) = (dva.offset, dva.asize.0);
        group.slab_of(at, size).is_ok_and(|slab| slab.with(|ms| ms.is_allocated(at, size)))
    }

    /// The metaslabs that have something to write in this pass of `txg`, ascending.
    /// Each must be passed to [`Space::prepare_write`].
    pub fn take_dirty(&self, txg: Txg) -> Vec<MsKey> {
        std::mem::take(&mut *self.dirty[(txg.0 & 3) as usize].lock()).into_iter().collect()
    }

    /// What to write of a dirty metaslab in this pass; `None` if nothing is left.
    /// [`Space::written`] must follow before the next preparation.
    ///
    /// # Errors
    /// `Bug` if the calls are out of order, `Corrupt` if the sets contradict each
    /// other.
    pub fn prepare_write(
        &self,
        key: MsKey,
        txg: Txg,
        pass: u32,
        facts: &MapFacts,
    ) -> Result<Option<MapWrite>> {
        let layout = self.layout();
        let (_, slab) = layout.slab(key)?;
        slab.change(|ms| ms.prepare_write(key.vdev, txg, pass, facts, &self.plant))
    }

    /// Whether a metaslab has logged changes, which a flush writes to its own map. Without any,
    /// a flush changes its unflushed txg alone, and needs no free ranges in memory.
    ///
    /// # Errors
    /// `Bug` if there is no such metaslab.
    pub fn has_logged_changes(&self, key: MsKey) -> Result<bool> {
        let layout = self.layout();
        let (_, slab) = layout.slab(key)?;
        Ok(slab.with(|ms| ms.unflushed_memory() > 0))
    }

    /// What a flush in `txg` writes of a metaslab ([`Space::choose_flushes`]); `None`
    /// if it needs no flush. [`Space::written`] must follow.
    ///
    /// # Errors
    /// As [`Space::prepare_write`].
    pub fn prepare_flush(
        &self,
        key: MsKey,
        txg: Txg,
        facts: &MapFacts,
    ) -> Result<Option<MapWrite>> {
        let layout = self.layout();
        let (_, slab) = layout.slab(key)?;
        slab.change(|ms| ms.prepare_flush(key.vdev, txg, facts))
    }

    /// Reports that the prepared data is in the caches of the MOS. The metaslab's own
    /// map is `object` with `length` bytes, changed or not.
    ///
    /// # Errors
    /// As [`Space::prepare_write`].
    pub fn written(&self, key: MsKey, object: u64, length: u64) -> Result<()> {
        let layout = self.layout();
        let (group, slab) = layout.slab(key)?;
        let (bytes, deferred) = slab.change(|ms| {
            let before = ms.deferred();
            let bytes = ms.written(object, length, &self.plant)?;
            Ok::<_, Error>((bytes, ms.deferred() - before))
        })?;
        let c = &group.counters;
        c.reserved.fetch_sub(bytes.0, Ordering::Relaxed);
        c.allocated.fetch_add(bytes.0.wrapping_sub(bytes.1), Ordering::Relaxed);
        c.deferred.fetch_add(deferred, Ordering::Relaxed);
        self.done.lock().insert(key);
        Ok(())
    }

    /// Must be called when all of `txg` is written, right before its uberblock. Does
    /// nothing except with a planted bug ([`Plant::reuse_before_commit`]).
    ///
    /// # Errors
    /// `Corrupt` if the sets contradict each other.
    pub fn before_commit(&self, _txg: Txg) -> Result<()> {
        if !self.plant.reuse_before_commit.load(Ordering::Relaxed) {
            return Ok(());
        }
        let layout = self.layout();
        for key in self.done.lock().iter() {
            let (group, slab) = layout.slab(*key)?;
            let early = slab.change(Metaslab::reuse_early)?;
            group.counters.deferred.fetch_sub(early, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Must be called when `txg`'s uberblock is durable, for empty txgs too: moves
    /// freed space to its next state (chapter 05 §6). Without `defer`, space freed in
    /// `txg` is allocatable at once. Returns the metaslabs that still defer space;
    /// [`Space::synced`] of the next txg processes them.
    ///
    /// # Errors
    /// `Corrupt` if the sets contradict each other.
    pub fn synced(&self, txg: Txg, defer: bool) -> Result<Vec<MsKey>> {
        self.releasing.fetch_max(txg.0, Ordering::SeqCst);
        let hold = self.holds.load(Ordering::SeqCst) > 0;
        let layout = self.layout();
        let done = std::mem::take(&mut *self.done.lock());
        self.held_back.store(hold && !done.is_empty(), Ordering::Relaxed);
        let mut stay = Vec::new();
        for key in done {
            let (group, slab) = layout.slab(key)?;
            let (released, more, fresh) = slab.change(|ms| {
                let (released, more) = ms.synced(txg, defer, hold)?;
                Ok::<_, Error>((released, more, ms.fresh.is_some()))
            })?;
            group.counters.deferred.fetch_sub(released, Ordering::Relaxed);
            if more || fresh {
                stay.push(key);
            }
        }
        self.done.lock().extend(stay.iter().copied());
        self.synced.fetch_max(txg.0, Ordering::Release);
        layout.groups.iter().for_each(MetaslabGroup::refresh_active);
        layout.rings.iter().for_each(|ring| ring.balance(&layout.groups));
        Ok(stay)
    }

    /// Sums of one vdev.
    ///
    /// # Errors
    /// `Corrupt` if there is no such vdev.
    pub fn vdev_totals(&self, vdev: VdevId) -> Result<Totals> {
        self.layout().group(vdev).map(MetaslabGroup::totals)
    }

    /// The metaslabs of a vdev, ascending.
    ///
    /// # Errors
    /// `Corrupt` if there is no such vdev.
    pub fn metaslab_status(&self, vdev: VdevId) -> Result<Vec<MetaslabStatus>> {
        let layout = self.layout();
        let of = |slab: &LockedMetaslab| slab.with(|ms| ms.status());
        Ok(layout.group(vdev)?.slabs.iter().map(of).collect())
    }

    /// Free segments by size of each metaslab of a vdev, ascending: as they are now where they are
    /// in memory, and otherwise as stored (§2.5). `None` if they are not known.
    ///
    /// # Errors
    /// `Corrupt` if there is no such vdev.
    pub fn free_histograms(&self, vdev: VdevId) -> Result<Vec<Option<FreeHistogram>>> {
        let layout = self.layout();
        let of = |slab: &LockedMetaslab| {
            slab.with(|ms| {
                let known = ms.is_loaded() || (ms.object != 0 && ms.long_header);
                known.then(|| ms.known_histogram())
            })
        };
        Ok(layout.group(vdev)?.slabs.iter().map(of).collect())
    }

    /// Whether space may be allocated from a vdev.
    pub fn is_allocating(&self, vdev: VdevId) -> bool {
        self.layout().group(vdev).is_ok_and(|g| g.allocating.load(Ordering::Relaxed))
    }

    /// Sums of the vdevs of one class from which space may be allocated.
    pub fn allocating_totals(&self, class: SpaceClass) -> Totals {
        let layout = self.layout();
        let groups = layout.ring(class).members.iter().map(|&i| &layout.groups[i]);
        let groups = groups.filter(|g| g.allocating.load(Ordering::Relaxed));
        groups.fold(Totals::default(), |sum, g| sum.plus(&g.totals()))
    }

    /// Sums of one class.
    pub fn class_totals(&self, class: SpaceClass) -> Totals {
        let layout = self.layout();
        let groups = layout.ring(class).members.iter().map(|&i| &layout.groups[i]);
        groups.fold(Totals::default(), |sum, g| sum.plus(&g.totals()))
    }

    /// The vdevs with their classes, ascending.
    pub fn vdevs(&self) -> Vec<(VdevId, SpaceClass)> {
        let layout = self.layout();
        layout.index.iter().map(|(&v, &i)| (v, layout.groups[i].class)).collect()
    }

    /// The fragmentation of a vdev's free space (§12.3).
    ///
    /// # Errors
    /// `Corrupt` if there is no such vdev.
    pub fn fragmentation(&self, vdev: VdevId) -> Result<Fragmentation> {
        let layout = self.layout();
        let group = layout.group(vdev)?;
        Ok(Fragmentation::of_group(group.slabs.iter().map(|slab| {
            slab.with(|ms| {
                let free = ms.size - ms.allocated().min(ms.size);
                let valid = ms.object == 0 || ms.long_header;
                let Fragmentation(percent) = Fragmentation::of_histogram(&ms.histogram, ms.shift);
                (free, percent.filter(|_| valid))
            })
        })))
    }

    /// The recorded words of one metaslab: map object, its length, unflushed txg.
    ///
    /// # Errors
    /// `NotFound` if it does not exist.
    pub fn facts(&self, key: MsKey) -> Result<(u64, u64, Txg)> {
        let layout = self.layout();
        let (_, slab) = layout.slab(key)?;
        Ok(slab.with(|ms| (ms.object, ms.length, ms.unflushed_txg)))
    }

    /// Verifies every metaslab and the sums over them. Slow; for tests and the
    /// simulator, while no allocation runs.
    ///
    /// # Errors
    /// `Bug` if an invariant does not hold.
    pub fn check(&self) -> Result<()> {
        let layout = self.layout();
        for group in &layout.groups {
            let mut sum = Totals::default();
            for slab in &group.slabs {
                slab.with(|ms| {
                    ms.check()?;
                    sum = sum.plus(&Totals {
                        capacity: ms.size,
                        allocated: ms.allocated(),
                        deferred: ms.deferred(),
                        reserved: ms.reserved(),
                    });
                    Ok::<_, Error>(())
                })?;
            }
            if sum != group.totals() {
                let why = format!("vdev {}: {:?} is not {sum:?}", group.vdev, group.totals());
                return Err(Error::bug(why));
            }
        }
        Ok(())
    }
}
