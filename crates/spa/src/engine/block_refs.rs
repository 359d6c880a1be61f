//! Block reference tables: what frees of cloned blocks do (chapter 08 §C).
//!
//! # Theory
//! Several pointers may lead to one block: its clones, in files of any datasets of the pool.
//! The table of the vdev of the block's first address counts the pointers beyond the first
//! one, by offset. A block that is not in the table has one pointer. A pointer that dies
//! takes one count away, and an entry that has none left is removed. A pointer of a block
//! without an entry frees the space. So the space is freed with the last pointer, and it does
//! not matter which one that is: all have the same addresses, size, checksum and physical
//! birth, and only these matter to the space.
//!
//! Every free of the engine passes [`Writer::free`], on the sync thread: dying blocks of
//! heads, deadlists, destroyed datasets, livelists, lists of deferred frees, logs. Blocks of
//! metadata and indirect blocks are never cloned. Of the others, most are in a range of
//! 16 MiB whose counter is zero, and are freed at once. The rest waits in a list until
//! [`Writer::settle_block_refs`]. There are two reasons to wait. A free happens in the middle
//! of other changes, and a look-up in the table may read a device and changes the MOS. And a
//! list that is sorted by address needs one look-up for a block, however many of its pointers
//! died together.
//!
//! # Clones
//! A clone is noted in open context, for the txg that will write its pointer
//! ([`zio::BlockRefs`]). The first step of that txg counts all its notes: an entry is made or
//! raised, and the first entry of a vdev makes its table. So when the txg writes datasets,
//! every pointer to a cloned block is counted, in whatever order source and clone are
//! written. A note may be cancelled until then. Afterwards, to cancel means to free the
//! pointer in its txg.
//!
//! A note also keeps the block from older txgs, although nothing is counted there yet. This
//! matters when the source's dataset is destroyed, or rolled back, in a txg that was closed
//! already as the clone was made. A pointer whose death would free the space is *deferred*
//! instead while a later txg has a note of the block: it goes on the pool's list of deferred
//! frees (chapter 05 §6), which the next txg processes after it has counted its own notes.
//! There it takes one count away like any other dead pointer, or is deferred again if the note
//! is of a txg later still, or frees the space if the note was cancelled meanwhile.
//!
//! A clone of a deduplicated block is counted by its dedup entry instead, if one still counts the
//! block ([`super::dedup`]).
//!
//! # Intent logs
//! A record of a cloned range in a log that was claimed is a pointer to each of its blocks. The
//! claim notes them like clones of its txg, and the end of the log frees them ([`super::claim`]).
//!
//! # Scans
//! A scrub or resilver visits the datasets in turn. A block that is cloned from a file in front of
//! it to one behind it, and is gone from the first before the scan gets there, would not be
//! visited, and a leaf would forget that it lacks the block. So nothing is cloned while a scan
//! runs or is paused. A scan walks trees of txgs that have all clones noted before it began.
//!
//! # Crash argument
//! The table is in the MOS. The txg in which a pointer is gone has the lower count, and the
//! txg in which the last pointer is gone has the space free. A crash between two txgs leaves
//! one of them whole. A deferred pointer is in the MOS, too: to the counts it is a pointer
//! like those in files. So every txg on disk has as many pointers, on the list and in files, as
//! it counts, and no block is allocated without one. After a crash between the txg that
//! deferred a pointer and the one with the clone there are no notes: the first txg after the
//! import processes the list, finds no entry, and frees the space.
//!
//! # Checkpoint
//! Whether the checkpoint needs a block follows from the physical birth. The pointer that is
//! freed last may be a clone made after the checkpoint, of a block that the checkpoint has.
//!
//! # Invariants
//! * The counters of a table add up to its entries, in memory as on disk, after every
//!   settling.
//! * No txg is committed while a free waits.
//! * Feature `block_cloning` counts the tables. A table without entries does not exist.
//!
//! # Memory
//! Two bytes for each 16 MiB of a vdev with cloned blocks, and the pointers that wait: those
//! of one head's changes, of one task, or of the budget for background frees. Noted clones
//! are counted as dirty memory by the DMU.
//!
//! # Hostile tables
//! A table whose counters contradict its entries makes the pool read-only
//! ([`crate::block_refs::load`]). Sums of bytes are for reports, and never below zero. A count
//! that is no count fails the txg, as a space map that contradicts a free does. A count that
//! is too high leaks the block, and the audit reports that. One that is too low ends in a free
//! of free space, which the metaslab refuses.
//!
//! # Departures from OpenZFS
//! Blocks that may be cloned are decided in the txg that frees them, and take no way through
//! `free_bpobj`.
//!
//! Lock order: `tables`, `waiting` and `noted` are leaves; none is held with another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use base::planted::BugSwitch;
use base::rt::Mutex;
use base::{Error, ObjectId, Result, Txg, VdevId};
use dmu::{ObjectSpec, zaps};
use dsl::Mos;
use dsl::write::features;
use dsl::write::store::DIRECTORY;
use ondisk::blkptr::Block;
use ondisk::brt::{BrtVdev, directory_key};
use ondisk::zap::{FLAG_HASH64, FLAG_UINT64_KEY, ZapValue};
use ondisk::{BlkPtr, ObjType};

use super::sync::SyncPass;
use super::{SyncState, Writer};
use crate::block_refs::{
    BLOCK_CLONING, BLOCK_CLONING_ENDIAN, COUNTER, RANGE_MAX, RefTable, count_of, load,
};

/// log2 of the blocks of the ZAP with the entries (chapter 03 §8).
const ENTRIES_SHIFT: u8 = 13;
/// Bytes of a block of counters.
const COUNTERS_BLOCK: u32 = 32 << 10;

/// Planted bugs ([`base::planted`]).
#[derive(Debug, Default)]
pub struct BlockRefPlants {
    /// A pointer that dies frees its block, cloned or not.
    pub no_table: BugSwitch,
    /// One dead pointer to a cloned block is not counted.
    pub lost_decrement: BugSwitch,
    /// One clone is not counted.
    pub lost_increment: BugSwitch,
    /// A txg counts its clones after it has processed its frees.
    pub counted_late: BugSwitch,
    /// A free that a later txg's clone keeps from its block is not deferred; it uses up the
    /// note of the clone.
    pub dropped_pointer: BugSwitch,
}

/// Clones of one block in one txg.
struct Noted {
    block: Block,
    clones: u64,
}

/// What open transactions announced.
#[derive(Default)]
struct Notes {
    clones: BTreeMap<Txg, BTreeMap<(VdevId, u64), Noted>>,
    /// Pointers that were counted and are not written.
    cancelled: BTreeMap<Txg, Vec<BlkPtr>>,
    /// A scan runs: nothing is cloned.
    stopped: bool,
    /// Relocations that run: nothing is cloned either.
    moving: usize,
}

/// A table, and what of it is newer than on disk.
struct LiveTable {
    table: RefTable,
    /// The header changed.
    changed: bool,
    /// Blocks with changed counters.
    blocks: BTreeSet<u64>,
}

/// The tables of a pool that is open for writing.
#[derive(Default)]
pub(super) struct BlockRefs {
    /// Whether there is a table.
    any: AtomicBool,
    tables: Mutex<BTreeMap<VdevId, LiveTable>>,
    /// Dead pointers to blocks that may be cloned.
    waiting: Mutex<Vec<BlkPtr>>,
    noted: Mutex<Notes>,
    /// Feature `block_cloning` is enabled.
    enabled: AtomicBool,
    /// Bytes of cloned blocks, and bytes that the extra pointers save.
    used: AtomicU64,
    saved: AtomicU64,
    pub(super) plants: BlockRefPlants,
}

impl BlockRefs {
    /// The tables of an imported pool.
    ///
    /// # Errors
    /// Those of reading the MOS; `Corrupt`, `Unsupported`.
    pub(super) fn load(mos: &Mos, enabled: bool) -> Result<BlockRefs> {
        let live = |table| LiveTable { table, changed: false, blocks: BTreeSet::new() };
        let tables = load(mos)?.into_iter().map(|(vdev, table)| (vdev, live(table))).collect();
        let (tables, enabled) = (Mutex::new(tables), AtomicBool::new(enabled));
        let refs = BlockRefs { tables, enabled, ..BlockRefs::default() };
        refs.sum();
        Ok(refs)
    }

    fn sum(&self) {
        let tables = self.tables.lock();
        let all = |of: fn(&RefTable) -> u64| {
            tables.values().fold(0u64, |sum, live| sum.saturating_add(of(&live.table)))
        };
        self.used.store(all(|t| t.header.used_space), Relaxed);
        self.saved.store(all(|t| t.header.saved_space), Relaxed);
        self.any.store(!tables.is_empty(), Relaxed);
    }

    /// Bytes of cloned blocks, and bytes that their extra pointers save, deflated.
    pub(super) fn tally(&self) -> (u64, u64) {
        (self.used.load(Relaxed), self.saved.load(Relaxed))
    }

    /// Whether frees wait to be settled.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.lock().is_empty()
    }

    /// Whether `txg` has something to do here.
    pub(super) fn has_work(&self, txg: Txg) -> bool {
        let notes = self.noted.lock();
        let cancelled = notes.cancelled.range(..=txg).next().is_some();
        let work = cancelled || notes.clones.contains_key(&txg);
        drop(notes);
        work || self.has_waiting()
    }

    /// A scan begins, after which no clone is noted until [`BlockRefs::allow_clones`]. Returns the
    /// last txg with clones that were noted before.
    pub(super) fn stop_clones(&self) -> Option<Txg> {
        let mut notes = self.noted.lock();
        notes.stopped = true;
        notes.clones.keys().next_back().copied()
    }

    /// The scan has ended.
    pub(super) fn allow_clones(&self) {
        self.noted.lock().stopped = false;
    }

    /// Blocks are about to move: no clone is noted until [`BlockRefs::end_move`], because its
    /// pointer would lead to the old place. Returns as [`BlockRefs::stop_clones`].
    pub(super) fn begin_move(&self) -> Option<Txg> {
        let mut notes = self.noted.lock();
        notes.moving += 1;
        notes.clones.keys().next_back().copied()
    }

    /// The blocks have moved.
    pub(super) fn end_move(&self) {
        let mut notes = self.noted.lock();
        notes.moving = notes.moving.saturating_sub(1);
    }

    /// Whether a block may have more than one pointer.
    pub(super) fn may_be_cloned(&self, block: &Block) -> bool {
        self.is_counted((block.dva().vdev, block.dva().offset))
    }

    /// Whether there is a table for a vdev.
    pub(super) fn has_table(&self, vdev: VdevId) -> bool {
        self.tables.lock().contains_key(&vdev)
    }

    /// Whether the block at an address may have more than one pointer.
    pub(super) fn is_counted(&self, at: (VdevId, u64)) -> bool {
        self.any.load(Relaxed) && self.entries_for(at).is_some() || self.is_noted(at)
    }

    /// Whether a clone can be noted now.
    pub(super) fn can_add(&self) -> bool {
        let notes = self.noted.lock();
        self.enabled.load(Relaxed) && !notes.stopped && notes.moving == 0
    }

    /// Whether blocks may be cloned.
    pub(super) fn set_enabled(&self, enabled: bool) {
        self.enabled.store(enabled, Relaxed);
    }

    /// Whether an unwritten txg, later than the one that is written, clones the block.
    fn is_noted(&self, at: (VdevId, u64)) -> bool {
        let late = self.plants.counted_late.load(Relaxed);
        !late && self.noted.lock().clones.values().any(|of| of.contains_key(&at))
    }

    /// Whether an unwritten txg clones the block of a dead pointer.
    pub(super) fn is_awaited(&self, bp: &BlkPtr) -> bool {
        self.is_noted(place(bp))
    }

    /// The planted bug [`BlockRefPlants::dropped_pointer`], of a deduplicated block.
    pub(super) fn loses(&self, bp: &BlkPtr) -> bool {
        self.drop_pointer(place(bp))
    }

    /// The planted bug [`BlockRefPlants::dropped_pointer`].
    fn drop_pointer(&self, at: (VdevId, u64)) -> bool {
        if !self.plants.dropped_pointer.load(Relaxed) {
            return false;
        }
        let mut notes = self.noted.lock();
        let of = notes.clones.values_mut().find(|of| of.contains_key(&at));
        of.is_some_and(|of| take_one(of, at))
    }

    /// Takes a dead pointer, if its block may be cloned; the caller must free the block
    /// otherwise.
    pub(super) fn take(&self, bp: &BlkPtr) -> bool {
        let BlkPtr::Block(block) = bp else { return false };
        let never = block.head.level > 0 || block.head.object_type.is_metadata();
        if never || self.plants.no_table.load(Relaxed) {
            return false;
        }
        let at = place(bp);
        let may = self.any.load(Relaxed) && self.entries_for(at).is_some();
        if may || self.is_noted(at) {
            self.waiting.lock().push(*bp);
            return true;
        }
        false
    }

    /// The entries' ZAP, if a block at this place may have an entry.
    fn entries_for(&self, (vdev, offset): (VdevId, u64)) -> Option<ObjectId> {
        let tables = self.tables.lock();
        let table = &tables.get(&vdev)?.table;
        table.may_have(offset).then_some(table.header.entries)
    }

    /// The entries' ZAP for blocks at this place.
    fn entries_at(&self, (vdev, _): (VdevId, u64)) -> Option<ObjectId> {
        self.tables.lock().get(&vdev).map(|live| live.table.header.entries)
    }

    /// Adds a new table, all of whose counters are to be stored.
    fn insert(&self, vdev: VdevId, table: RefTable) {
        let blocks = (0..(table.header.size * COUNTER).div_ceil(table.block_size)).collect();
        self.tables.lock().insert(vdev, LiveTable { table, changed: true, blocks });
        self.any.store(true, Relaxed);
    }

    /// Extends a table for a vdev of `covered` bytes; false if there is none.
    fn resize(&self, vdev: VdevId, covered: u64) -> bool {
        let mut tables = self.tables.lock();
        let Some(live) = tables.get_mut(&vdev) else { return false };
        let size = covered.div_ceil(live.table.header.range_size);
        if size > live.table.header.size {
            let per_block = live.table.block_size / COUNTER;
            live.blocks.extend(live.table.header.size / per_block..size.div_ceil(per_block));
            live.table.header.size = size;
            live.table.counters.resize(usize::try_from(size).unwrap_or(0), 0);
            live.changed = true;
        }
        true
    }

    /// Accounts for `clones` new pointers to a block of `bytes`; `first`: its entry is new.
    fn added(
        &self,
        (vdev, offset): (VdevId, u64),
        bytes: u64,
        clones: u64,
        first: bool,
    ) -> Result<()> {
        let mut tables = self.tables.lock();
        let none = || base::bug!("a clone of a vdev without a table");
        let live = tables.get_mut(&vdev).ok_or_else(none)?;
        live.changed = true;
        let header = &mut live.table.header;
        header.saved_space = header.saved_space.saturating_add(bytes.saturating_mul(clones));
        if !first {
            return Ok(());
        }
        header.used_space = header.used_space.saturating_add(bytes);
        header.total_count = header.total_count.saturating_add(1);
        let range = live.table.range_of(offset).unwrap_or(usize::MAX);
        let beyond = || Error::corrupt("a block beyond the end of its vdev is cloned");
        let counter = live.table.counters.get_mut(range).ok_or_else(beyond)?;
        *counter = counter.checked_add(1).ok_or_else(beyond)?;
        live.blocks.insert(range as u64 * COUNTER / live.table.block_size);
        Ok(())
    }

    /// Accounts for pointers to a block that died, of which its entry had counted `bytes`
    /// each; `removed`: the entry is gone.
    fn dropped(&self, (vdev, offset): (VdevId, u64), bytes: &[u64], removed: bool) {
        let mut tables = self.tables.lock();
        let Some(live) = tables.get_mut(&vdev) else { return };
        live.changed = true;
        let header = &mut live.table.header;
        for bytes in bytes {
            header.saved_space = header.saved_space.saturating_sub(*bytes);
        }
        if !removed {
            return;
        }
        header.used_space = header.used_space.saturating_sub(bytes.first().copied().unwrap_or(0));
        header.total_count = header.total_count.saturating_sub(1);
        let Some(range) = live.table.range_of(offset) else { return };
        if let Some(counter) = live.table.counters.get_mut(range) {
            *counter = counter.saturating_sub(1);
            live.blocks.insert(range as u64 * COUNTER / live.table.block_size);
        }
    }
}

/// Takes one clone of the block at `at`, if there is one.
fn take_one(of: &mut BTreeMap<(VdevId, u64), Noted>, at: (VdevId, u64)) -> bool {
    let Some(noted) = of.get_mut(&at) else { return false };
    noted.clones = noted.clones.saturating_sub(1);
    if noted.clones == 0 {
        of.remove(&at);
    }
    true
}

impl zio::BlockRefs for BlockRefs {
    fn is_enabled(&self) -> bool {
        self.enabled.load(Relaxed)
    }

    fn add(&self, txg: Txg, block: &Block) -> Result<()> {
        if !self.is_enabled() {
            return Err(Error::unsupported("the pool's feature block_cloning is not enabled"));
        }
        let at = (block.dva().vdev, block.dva().offset);
        let mut notes = self.noted.lock();
        if notes.stopped {
            return Err(Error::unsupported("no block is cloned while a scrub or resilver runs"));
        }
        if notes.moving > 0 {
            return Err(Error::unsupported("no block is cloned while blocks are moved"));
        }
        let of = notes.clones.entry(txg).or_default();
        of.entry(at).or_insert(Noted { block: *block, clones: 0 }).clones += 1;
        Ok(())
    }

    fn cancel(&self, txg: Txg, block: &Block) {
        let at = (block.dva().vdev, block.dva().offset);
        let mut notes = self.noted.lock();
        let noted = notes.clones.get_mut(&txg).is_some_and(|of| take_one(of, at));
        if !noted {
            notes.cancelled.entry(txg).or_default().push(BlkPtr::Block(*block));
        }
    }
}

/// The place by which a table knows a block.
fn place(bp: &BlkPtr) -> (VdevId, u64) {
    bp.as_block().map_or((VdevId(0), 0), |b| (b.dva().vdev, b.dva().offset))
}

/// `count` in the form of pools without feature `block_cloning_endian`.
fn in_bytes(count: u64) -> Result<ZapValue> {
    ZapValue::from_bytes(&count.to_le_bytes()).ok_or_else(|| base::bug!("eight bytes are no value"))
}

/// `count` in the form of `value`.
fn in_form_of(value: &ZapValue, count: u64) -> Result<ZapValue> {
    if value.as_u64().is_some() { Ok(ZapValue::from_u64(count)) } else { in_bytes(count) }
}

impl Writer {
    /// Bytes of cloned blocks, and bytes that cloning saves, as of the last txg written.
    pub fn clone_tally(&self) -> (u64, u64) {
        self.block_refs.tally()
    }

    /// Decides about the dead pointers that wait: lowers counts, frees blocks that have no
    /// pointer left, and stores the tables.
    ///
    /// # Errors
    /// Those of the MOS and of freeing; `Corrupt`. The txg cannot be committed then.
    pub(super) fn settle_block_refs(&self, sync: &SyncPass<'_>) -> Result<()> {
        self.free_cancelled_clones(sync.txg)?;
        self.defer_frees(sync, self.dedup.take_deferred())?;
        let mut waiting = std::mem::take(&mut *self.block_refs.waiting.lock());
        if waiting.is_empty() {
            return Ok(());
        }
        waiting.sort_by_key(place);
        let mut deferred = Vec::new();
        for pointers in waiting.chunk_by(|a, b| place(a) == place(b)) {
            let counted = self.drop_refs(sync, pointers)?;
            for bp in pointers.iter().skip(counted) {
                if self.block_refs.drop_pointer(place(bp)) {
                    continue;
                }
                match self.block_refs.is_noted(place(bp)) {
                    true => deferred.push(*bp),
                    false => self.free_space(sync.txg, bp)?,
                }
            }
        }
        self.defer_frees(sync, deferred)?;
        self.store_block_refs(sync)
    }

    /// Frees the pointers of clones that were counted, and that the txg does not write.
    ///
    /// # Errors
    /// Those of freeing; `Corrupt`. The txg cannot be committed then.
    pub(super) fn free_cancelled_clones(&self, txg: Txg) -> Result<()> {
        let due = {
            let mut notes = self.block_refs.noted.lock();
            let later = notes.cancelled.split_off(&txg.next());
            std::mem::replace(&mut notes.cancelled, later)
        };
        due.values().flatten().try_for_each(|bp| self.free(txg, bp))
    }

    /// Counts the clones that the txg writes; called before anything else of the txg.
    ///
    /// # Errors
    /// Those of the MOS; `Corrupt`. The txg cannot be committed then.
    pub(super) fn count_clones(&self, state: &SyncState, sync: &SyncPass<'_>) -> Result<()> {
        let all = self.block_refs.noted.lock().clones.remove(&sync.txg).unwrap_or_default();
        let mut noted = BTreeMap::new();
        for (at, of) in all {
            let lost =
                u64::from(of.block.dedup && self.block_refs.plants.lost_increment.take(Relaxed));
            if !self.count_deduplicated(&of.block, of.clones - lost)? {
                noted.insert(at, of);
            }
        }
        if noted.is_empty() {
            return Ok(());
        }
        let as_numbers = self.prepare_tables(state, sync, noted.keys().map(|(vdev, _)| *vdev))?;
        let os = sync.mos.objset();
        for (at, Noted { block, clones }) in noted {
            let lost = u64::from(self.block_refs.plants.lost_increment.take(Relaxed));
            let Some(zap) = self.block_refs.entries_at(at).filter(|_| clones > lost) else {
                continue;
            };
            let clones = clones - lost;
            let old = zaps::lookup_words(os, sync.tx, zap, &[at.1])?;
            let count = old.as_ref().map_or(Ok(0), count_of)?.checked_add(clones);
            let count = count.ok_or_else(|| Error::corrupt("a count of references is too high"))?;
            let value = match &old {
                Some(old) => in_form_of(old, count)?,
                None if as_numbers => ZapValue::from_u64(count),
                None => in_bytes(count)?,
            };
            zaps::update_words(os, sync.tx, zap, &[at.1], &value)?;
            let bytes = sync.cx.ratios.space_of(&BlkPtr::Block(block)).used;
            let bytes = u64::try_from(bytes).unwrap_or(0);
            self.block_refs.added(at, bytes, clones, old.is_none())?;
        }
        self.store_block_refs(sync)
    }

    /// Makes tables of these vdevs as large as the vdevs are now, and new ones where there are
    /// none; returns whether counts are stored as numbers.
    fn prepare_tables(
        &self,
        state: &SyncState,
        sync: &SyncPass<'_>,
        vdevs: impl Iterator<Item = VdevId>,
    ) -> Result<bool> {
        let (cx, os) = (sync.cx, sync.mos.objset());
        let endian = features::count(cx.read(), BLOCK_CLONING_ENDIAN)?;
        let active = features::is_active(cx.read(), BLOCK_CLONING)?;
        // It must not become active beside entries in the form of bytes.
        let as_numbers = endian.is_some_and(|uses| uses > 0 || !active);
        for vdev in vdevs.collect::<BTreeSet<VdevId>>() {
            let top = state.config.vdev_tree.children.iter().find(|c| c.id == vdev.0);
            let top = top.and_then(|c| c.top.as_ref());
            let top = top.ok_or_else(|| base::bug!("a clone on a vdev that does not exist"))?;
            let metaslabs = top.asize.checked_shr(top.metaslab_shift).unwrap_or(0);
            let covered = metaslabs.checked_shl(top.metaslab_shift).unwrap_or(0);
            if self.block_refs.resize(vdev, covered) {
                continue;
            }
            let spec = ObjectSpec {
                object_type: ObjType::OTN_ZAP_METADATA,
                block_size: 1 << ENTRIES_SHIFT,
                indirect_shift: ENTRIES_SHIFT,
                ..ObjectSpec::default()
            };
            let entries = os.allocate(sync.tx, &spec)?;
            zaps::init_as(os, sync.tx, entries, FLAG_HASH64 | FLAG_UINT64_KEY)?;
            let header = BrtVdev {
                entries,
                size: covered.div_ceil(RANGE_MAX),
                byteorder: 0,
                total_count: 0,
                range_size: RANGE_MAX,
                used_space: 0,
                saved_space: 0,
            };
            let spec = ObjectSpec {
                object_type: ObjType::OTN_UINT64_METADATA,
                block_size: COUNTERS_BLOCK,
                bonus_type: ObjType::OTN_UINT64_METADATA,
                bonus: header.encode().to_vec(),
                ..ObjectSpec::default()
            };
            let object = os.allocate(sync.tx, &spec)?.0;
            let counters = vec![0; usize::try_from(header.size).unwrap_or(0)];
            let block_size = u64::from(COUNTERS_BLOCK);
            self.block_refs.insert(vdev, RefTable { object, block_size, header, counters });
            let value = ZapValue::from_u64(object);
            cx.mos.zap_update(DIRECTORY, directory_key(vdev).as_bytes(), &value)?;
            features::add(cx, BLOCK_CLONING, 1)?;
            if as_numbers {
                features::add(cx, BLOCK_CLONING_ENDIAN, 1)?;
            }
        }
        Ok(as_numbers)
    }

    /// Lowers the count of a block by its dead pointers; returns how many of them had been
    /// counted.
    fn drop_refs(&self, sync: &SyncPass<'_>, pointers: &[BlkPtr]) -> Result<usize> {
        let Some(first) = pointers.first() else { return Ok(0) };
        let at = place(first);
        let Some(zap) = self.block_refs.entries_for(at) else { return Ok(0) };
        let (os, key) = (sync.mos.objset(), [at.1]);
        let Some(value) = zaps::lookup_words(os, sync.tx, zap, &key)? else { return Ok(0) };
        let count = count_of(&value)?;
        let dead = pointers.len().min(usize::try_from(count).unwrap_or(usize::MAX));
        let lost = usize::from(self.block_refs.plants.lost_decrement.take(Relaxed));
        let left = count - (dead - lost.min(dead)) as u64;
        match left {
            0 => zaps::remove_words(os, sync.tx, zap, &key)?,
            _ => zaps::update_words(os, sync.tx, zap, &key, &in_form_of(&value, left)?)?,
        }
        let bytes = |bp: &BlkPtr| u64::try_from(sync.cx.ratios.space_of(bp).used).unwrap_or(0);
        let bytes: Vec<u64> = pointers.iter().take(dead).map(bytes).collect();
        self.block_refs.dropped(at, &bytes, left == 0);
        Ok(dead)
    }

    /// Stores the changed tables, and removes those without entries.
    fn store_block_refs(&self, sync: &SyncPass<'_>) -> Result<()> {
        let changed: Vec<(VdevId, RefTable, BTreeSet<u64>)> = {
            let mut tables = self.block_refs.tables.lock();
            let changed = tables.iter_mut().filter(|(_, live)| live.changed);
            let changed = changed.map(|(vdev, live)| {
                live.changed = false;
                (*vdev, live.table.clone(), std::mem::take(&mut live.blocks))
            });
            let changed = changed.collect();
            tables.retain(|_, live| live.table.header.total_count > 0);
            changed
        };
        let (cx, mos) = (sync.cx, sync.cx.mos);
        for (vdev, table, blocks) in changed {
            if table.header.total_count == 0 {
                mos.zap_remove(DIRECTORY, directory_key(vdev).as_bytes())?;
                mos.free_object(table.header.entries.0)?;
                mos.free_object(table.object)?;
                features::add(cx, BLOCK_CLONING, -1)?;
                if features::is_active(cx.read(), BLOCK_CLONING_ENDIAN)? {
                    features::add(cx, BLOCK_CLONING_ENDIAN, -1)?;
                }
                continue;
            }
            mos.set_bonus(table.object, &table.header.encode())?;
            for blkid in blocks {
                let per_block = usize::try_from(table.block_size / COUNTER).unwrap_or(1);
                let from = usize::try_from(blkid).unwrap_or(0).saturating_mul(per_block);
                let part = table.counters.iter().skip(from).take(per_block);
                let part: Vec<u8> = part.flat_map(|n| n.to_le_bytes()).collect();
                mos.edit_block(table.object, blkid, &mut |data| {
                    if let Some(to) = data.get_mut(..part.len()) {
                        to.copy_from_slice(&part);
                    }
                    Ok(())
                })?;
            }
        }
        self.block_refs.sum();
        self.ledger.set_cloned(self.block_refs.tally().1);
        Ok(())
    }
}
