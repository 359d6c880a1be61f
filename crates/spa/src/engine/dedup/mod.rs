//! Dedup tables: what frees and writes of deduplicated blocks do (chapter 08 §B). `share` has
//! the writes.
//!
//! # Theory
//! A block pointer with the D bit is one of several that lead to one block. The table of its
//! checksum function has an entry for the block, found by checksum and sizes, which counts
//! the pointers. A pointer that dies takes one away; the space is freed when none is left. A
//! pointer that no entry matches, by first address and physical birth, belongs to a block
//! whose entry was pruned, and frees the space as one without the bit does.
//!
//! Every free of the engine passes [`Writer::free`], on the sync thread. A pointer with the bit
//! waits there, because a look-up may read a device, and because a batch that is sorted by key
//! reads each leaf of a ZAP once. [`Writer::settle_dedup`] lowers the counts *in memory*: the
//! newest state of an entry is in the first of these places that has one. A filter in memory
//! (`filter`) tells of most keys that the last one does not have them.
//!
//! 1. `active`: entries that changed since the active log was begun;
//! 2. `flushing`: entries of the flushing log that are not in the ZAPs yet;
//! 3. the ZAP of its class.
//!
//! [`Writer::store_dedup`], once in each txg, makes the changes durable (`table`). A legacy
//! table has no logs: all of `active` goes into the ZAPs. A fast table appends the entries
//! that changed to its active log, in whole new blocks. Then it *flushes* a share of the
//! flushing log, in the order of the keys, which is that of the ZAPs' leaves: the next piece of
//! the ZAPs changes, instead of leaves everywhere. An empty flushing log is truncated, and the
//! roles *swap* if the active log is old or large.
//!
//! An entry moves to another class with its flush, so ZAPs and statistics have its state as of
//! then; the log has the newer one. The flush of an entry without references frees its space.
//! Such an entry keeps space from use, and OpenZFS's `zdb` would take the space for leaked. So
//! the roles swap at once when there is one, and txgs follow each other until it is flushed. An
//! export flushes everything.
//!
//! # Crash argument
//! Tables, logs and statistics are in the MOS. The txg in which a pointer is gone has the lower
//! count, in a log or a ZAP. The txg that removes an entry has its space free. A crash between
//! two txgs leaves one of them whole. An import reads the logs, and continues behind the
//! checkpoint key.
//!
//! # Why the passes end
//! Deduplicated blocks are never metadata of the pool, so only pass 1 frees them. Its end stores
//! all changes of tables, before the space maps of the pass are written (`sync`).
//!
//! # Clones
//! A clone of a block with the D bit is one more pointer of its entry, if the entry still counts
//! the block, and otherwise one of the block reference table (chapter 08 §C.2). It is noted like
//! every clone, and counted when its txg begins (`block_refs`). A pointer that dies while a later
//! txg has a note of its block is not counted, but *deferred* to the next txg, which processes it
//! after its own notes: the count cannot reach zero, and the space cannot be freed, before the
//! clone is counted.
//!
//! # Quota
//! A table that takes as much space as `dedup_table_quota` permits gets no new entries: blocks
//! that no table has are ordinary ones. Those that it has are shared and freed as before. What
//! counts is the space of the ZAPs of all tables, legacy and fast, at the last txg, and an
//! estimate for entries that no ZAP has yet. With `auto`, which is the default, the quota is the
//! capacity of the vdevs of the dedup class; without such vdevs there is none.
//!
//! # Checkpoint
//! An entry's block is freed as one that was born in its physical birth, so the checkpoint
//! keeps what it needs, whichever pointer was the last.
//!
//! # Invariants
//! * No txg is committed while a free waits.
//! * A key is in at most one of `active` and `flushing`.
//! * After each txg the statistics are the sums of the entries in the ZAPs. What reports and space
//!   accounting use (`LiveTable::tally`) also has the newest states that are only in logs.
//! * A ZAP without entries does not exist; nor does a fast table without entries, and the
//!   feature counts the others.
//!
//! # Memory
//! A batch of dead pointers (8 MiB), and some 200 bytes for each entry in the logs. Logs are
//! flushed completely when the active one has [`LOG_ENTRIES_MAX`] / 4 entries. A legacy table's
//! changes of one txg are in memory, and dirty in its ZAPs. The filter of a table takes at most a
//! sixteenth of the cache's largest size, twice that while it is made anew.
//!
//! # Hostile tables
//! [`crate::dedup::load`] refuses tables that cannot be changed. A count that is too low
//! for the pointers that die, or an address outside all vdevs, fails the txg, as a space map
//! that contradicts a free does. One that is too high leaks the block. The audit reports
//! both. Sums in statistics neither overflow nor fall below zero.
//!
//! # Departures from OpenZFS
//! The share of a log that a txg flushes depends on its length alone, not on time. A block that
//! wants more copies than the flat entry has is an ordinary one, instead of extending it.
//!
//! Lock order: `waiting` and `placed` are leaves. `tables` is held by the sync thread while it
//! looks entries up in the MOS, and never while it frees or changes anything.

mod filter;
mod prune;
mod share;
mod table;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use base::planted::{BugSwitch, TestValue};
use base::rt::Mutex;
use base::{Buf, Dva, Result, Txg};
use dsl::write::MosRead;
use metaslab::SpaceClass;
use ondisk::BlkPtr;
use ondisk::blkptr::Block;
use ondisk::ddt::Key;

use super::Writer;
use super::sync::SyncPass;
use crate::dedup::{self, LOG_ENTRIES_MAX};
pub use prune::PruneAmount;
pub(super) use share::WriterDedup;
use table::LiveTable;

/// Dead pointers that wait before they are counted in the middle of a txg.
const BATCH: usize = 1 << 16;

/// Planted bugs ([`base::planted`]).
#[derive(Debug, Default)]
pub struct DedupPlants {
    /// A pointer that dies frees its block, whatever the table counts.
    pub no_table: BugSwitch,
    /// One dead pointer is not counted.
    pub lost_decrement: BugSwitch,
    /// The entries that one txg changed are not appended to the log.
    pub lost_records: BugSwitch,
    /// An entry that is flushed is not taken out of the statistics.
    pub kept_statistics: BugSwitch,
    /// An entry without references is removed, and its space stays allocated.
    pub kept_space: BugSwitch,
    /// One more reference to a block that is shared is not counted.
    pub lost_increment: BugSwitch,
    /// The flush of one entry that lost references leaves the older count in the ZAP.
    pub stale_flush: BugSwitch,
    /// An entry without references frees its block, and stays in the ZAP.
    pub kept_entry: BugSwitch,
    /// A pointer that dies while its entry is in the flushing log is not noted in the other one.
    pub unlogged_decrement: BugSwitch,
    /// Logs that swap their roles get a checkpoint in the middle, as if one had stayed.
    pub old_checkpoint: BugSwitch,
    /// A key that comes into a ZAP is not noted in the filter.
    pub unfiltered_key: BugSwitch,
    /// An entry stays whose block is freed in the txg that wrote it.
    pub kept_newborn: BugSwitch,
    /// Dead pointers that are counted at once; 0: the own number. Not a bug.
    pub batch: TestValue,
    /// Entries that a txg flushes at least; 0: the own number. Not a bug.
    pub flushed: TestValue,
    /// Txgs after which the roles of the logs swap; 0: the own number. Not a bug.
    pub log_txgs: TestValue,
}

/// The tables of a pool that is open for writing.
#[derive(Default)]
pub(super) struct Dedup {
    /// Bits of the ids of checksum functions that have a table.
    with_table: AtomicU32,
    /// Dead pointers with the D bit.
    waiting: Mutex<Vec<BlkPtr>>,
    /// Those of blocks that a later txg clones: the next txg frees them.
    deferred: Mutex<Vec<BlkPtr>>,
    tables: Mutex<BTreeMap<u8, LiveTable>>,
    /// New tables are fast ones.
    fast: AtomicBool,
    /// Content of blocks that may not have been submitted.
    placed: Mutex<BTreeMap<(u8, Key), Buf>>,
    /// Entries without references that are not flushed.
    dead: AtomicU64,
    /// Look-ups of writes that read ZAPs and found nothing, and those of them that the last txg
    /// knew of.
    fruitless: [AtomicU64; 2],
    /// The next txg flushes the logs completely.
    flush_all: AtomicBool,
    /// Entries are being pruned.
    pruning: AtomicBool,
    /// Property `dedup_table_quota`, inverted, so that 0 is `auto`.
    quota: AtomicU64,
    /// Bytes that the tables may take, inverted, so that 0 is no limit.
    limit: AtomicU64,
    /// Bytes that they take.
    size: AtomicU64,
    /// Bytes of deduplicated blocks, and bytes that their other references save.
    used: AtomicU64,
    saved: AtomicU64,
    pub(super) plants: DedupPlants,
}

/// What identifies the entry that counts a pointer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Identity {
    checksum: u8,
    key: Key,
    vdev: u32,
    offset: u64,
    birth: Txg,
}

impl Identity {
    fn of(block: &Block) -> Identity {
        let Dva { vdev, offset, .. } = block.dva();
        let birth = block.effective_physical_birth();
        Identity { checksum: block.checksum, key: Key::of(block), vdev: vdev.0, offset, birth }
    }
}

impl Dedup {
    /// Takes a dead pointer, if a table may count it; the caller must free the block otherwise.
    pub(super) fn take(&self, bp: &BlkPtr) -> bool {
        let BlkPtr::Block(block) = bp else { return false };
        let bit = 1u32.checked_shl(u32::from(block.checksum)).unwrap_or(0);
        if !block.dedup || self.with_table.load(Relaxed) & bit == 0 {
            return false;
        }
        if self.plants.no_table.load(Relaxed) {
            return false;
        }
        self.waiting.lock().push(*bp);
        true
    }

    /// Whether new tables are fast ones.
    pub(super) fn set_fast(&self, fast: bool) {
        self.fast.store(fast, Relaxed);
    }

    /// Whether so many pointers wait that they should be counted at once.
    pub(super) fn is_full(&self) -> bool {
        let most = match self.plants.batch.load(Relaxed) {
            0 => BATCH,
            tested => usize::try_from(tested).unwrap_or(BATCH),
        };
        self.waiting.lock().len() >= most
    }

    /// Whether frees wait to be counted.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.lock().is_empty()
    }

    /// Whether the next txg has something to do here.
    pub(super) fn has_work(&self) -> bool {
        self.dead.load(Relaxed) > 0 || self.has_waiting()
    }

    /// Takes the dead pointers that are deferred to the next txg.
    pub(super) fn take_deferred(&self) -> Vec<BlkPtr> {
        std::mem::take(&mut *self.deferred.lock())
    }

    /// Bytes of deduplicated blocks, and bytes that their other references save, deflated.
    pub(super) fn tally(&self) -> (u64, u64) {
        (self.used.load(Relaxed), self.saved.load(Relaxed))
    }

    /// Takes the state of the tables for readers.
    fn publish(&self, tables: &BTreeMap<u8, LiveTable>) {
        let bits = tables.keys().filter_map(|id| 1u32.checked_shl(u32::from(*id)));
        self.with_table.store(bits.fold(0, |all, bit| all | bit), Relaxed);
        let dead = tables.values().map(LiveTable::dead).sum::<usize>();
        self.dead.store(dead as u64, Relaxed);
        let (mut used, mut saved) = (0u64, 0u64);
        for (of_table, saves) in tables.values().map(LiveTable::tally) {
            used = used.saturating_add(of_table);
            saved = saved.saturating_add(saves);
        }
        self.used.store(used, Relaxed);
        self.saved.store(saved, Relaxed);
        self.publish_size(tables);
    }

    fn publish_size(&self, tables: &BTreeMap<u8, LiveTable>) {
        let size = tables.values().map(LiveTable::size).fold(0, u64::saturating_add);
        self.size.store(size, Relaxed);
    }

    /// Whether the tables take as much space as they may.
    fn is_over_quota(&self) -> bool {
        self.size.load(Relaxed) >= !self.limit.load(Relaxed)
    }
}

impl Writer {
    /// Takes over the dedup tables of an imported pool, and reads their logs.
    ///
    /// # Errors
    /// `ReadOnly` when they cannot be changed; those of reading the MOS.
    pub(crate) fn load_dedup(&self, mos: &dsl::Mos) -> Result<()> {
        let tree = self.zio.tree();
        let deflated = |block: &Block| self.deflated_block(&tree, block);
        let load = || -> Result<BTreeMap<u8, LiveTable>> {
            let mut tables = BTreeMap::new();
            let mut room = LOG_ENTRIES_MAX;
            for loaded in dedup::load(mos)? {
                let id = loaded.objects.checksum.id();
                let filter = self.dedup_filter_budget();
                let table = LiveTable::load(mos, loaded, room, filter, &deflated)?;
                room = room.saturating_sub(table.logged());
                tables.insert(id, table);
            }
            Ok(tables)
        };
        let tables = load().map_err(dedup::damaged)?;
        self.dedup.publish(&tables);
        self.ledger.set_deduplicated(self.dedup.tally().1);
        *self.dedup.tables.lock() = tables;
        self.follow_dedup_quota(mos)
    }

    /// Applies property `dedup_table_quota` from now on.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub(crate) fn follow_dedup_quota(&self, mos: &dyn MosRead) -> Result<()> {
        let zap = mos.directory("pool_props")?;
        let quota = zap.map(|zap| mos.number(zap, "dedup_table_quota")).transpose()?.flatten();
        self.dedup.quota.store(!quota.unwrap_or(u64::MAX), Relaxed);
        self.limit_dedup();
        Ok(())
    }

    /// Bytes that the tables take on disk, about, and bytes that they may take.
    pub fn dedup_limits(&self) -> (u64, u64) {
        (self.dedup.size.load(Relaxed), !self.dedup.limit.load(Relaxed))
    }

    /// Bytes that the filter of a table may take.
    fn dedup_filter_budget(&self) -> usize {
        filter::budget(self.zio.cache().config().arc_max)
    }

    /// Sets the limit that the quota means with the present vdevs.
    fn limit_dedup(&self) {
        let limit = match !self.dedup.quota.load(Relaxed) {
            0 => u64::MAX,
            u64::MAX => match self.dedup_class_capacity() {
                0 => u64::MAX,
                capacity => capacity,
            },
            bytes => bytes,
        };
        self.dedup.limit.store(!limit, Relaxed);
    }

    /// Deflated bytes of the vdevs of the dedup class.
    fn dedup_class_capacity(&self) -> u64 {
        let tree = self.zio.tree();
        let of_class = self.space.vdevs().into_iter().filter(|(_, c)| *c == SpaceClass::Dedup);
        let bytes = of_class.map(|(vdev, _)| {
            let capacity = self.space.vdev_totals(vdev).map_or(0, |totals| totals.capacity);
            self.ledger.deflated(&tree, vdev, capacity)
        });
        bytes.fold(0, u64::saturating_add)
    }

    /// Planted bugs of the dedup tables.
    pub fn dedup_plants(&self) -> &DedupPlants {
        &self.dedup.plants
    }

    /// Look-ups of writes that read ZAPs of the tables and found nothing there, since the import.
    pub fn dedup_fruitless(&self) -> u64 {
        self.dedup.fruitless[0].load(Relaxed)
    }

    /// Bytes of deduplicated blocks, and bytes that deduplication saves, as of the last txg
    /// written.
    pub fn dedup_tally(&self) -> (u64, u64) {
        self.dedup.tally()
    }

    /// The bytes that a block counts in space accounting.
    fn deflated_block(&self, tree: &vdev::Tree, block: &Block) -> u64 {
        let bytes = block.dvas().map(|dva| self.ledger.deflated(tree, dva.vdev, dva.asize.0));
        bytes.fold(0, u64::saturating_add)
    }

    /// Counts the dead pointers that wait, and frees the blocks that no table counts.
    ///
    /// # Errors
    /// Those of reading tables and of freeing; `Corrupt`. The txg cannot be committed then.
    pub(super) fn settle_dedup(&self, txg: Txg) -> Result<()> {
        let identity = |bp: &BlkPtr| bp.as_block().map(Identity::of);
        self.dedup.placed.lock().clear();
        let mut waiting = std::mem::take(&mut *self.dedup.waiting.lock());
        if waiting.is_empty() {
            return Ok(());
        }
        waiting.sort_by_cached_key(identity);
        let mos = self.mos.for_sync();
        let now = base::rt::wall_clock().as_secs();
        let tree = self.zio.tree();
        let deflated = |block: &Block| self.deflated_block(&tree, block);
        let mut uncounted = Vec::new();
        let mut tables = self.dedup.tables.lock();
        for pointers in waiting.chunk_by(|a, b| identity(a) == identity(b)) {
            let Some(of) = pointers.first().and_then(identity) else { continue };
            if pointers.first().is_some_and(|bp| self.block_refs.is_awaited(bp)) {
                let kept = pointers.iter().filter(|bp| !self.block_refs.loses(bp));
                let kept: Vec<BlkPtr> = kept.copied().collect();
                self.dedup.deferred.lock().extend(kept);
                continue;
            }
            let lost = u64::from(self.dedup.plants.lost_decrement.take(Relaxed));
            let dead = (pointers.len() as u64).saturating_sub(lost);
            let counted = match tables.get_mut(&of.checksum) {
                Some(_) if of.birth == txg && self.dedup.plants.kept_newborn.load(Relaxed) => true,
                Some(table) => {
                    let lost = table.is_flushing(&of.key)
                        && self.dedup.plants.unlogged_decrement.load(Relaxed);
                    let counted = table.drop_refs(&mos, &of, dead, now, &deflated)?;
                    if lost {
                        table.forget_change(&of.key);
                    }
                    counted
                }
                None => false,
            };
            if !counted {
                uncounted.extend_from_slice(pointers);
            }
        }
        drop(tables);
        // A block whose entry was pruned may have been cloned since.
        let free = |bp: &BlkPtr| match self.block_refs.take(bp) {
            true => Ok(()),
            false => self.free_space(txg, bp),
        };
        uncounted.iter().try_for_each(free)
    }

    /// Counts the clones of a block in its entry; false if none counts the block.
    ///
    /// # Errors
    /// Those of reading the tables; `Corrupt`.
    pub(super) fn count_deduplicated(&self, block: &Block, clones: u64) -> Result<bool> {
        if !block.dedup {
            return Ok(false);
        }
        let of = Identity::of(block);
        let tree = self.zio.tree();
        let deflated = |block: &Block| self.deflated_block(&tree, block);
        let now = base::rt::wall_clock().as_secs();
        let mos = self.mos.for_sync();
        match self.dedup.tables.lock().get_mut(&of.checksum) {
            Some(table) => table.add_refs(&mos, &of, clones, now, &deflated),
            None => Ok(false),
        }
    }

    /// Stores what changed in the tables, at the end of pass 1, and flushes a share of the
    /// logs, or all of them.
    ///
    /// # Errors
    /// Those of the MOS and of freeing; `Corrupt`. The txg cannot be committed then.
    pub(super) fn store_dedup(&self, sync: &SyncPass<'_>, flush_all: bool) -> Result<()> {
        self.settle_dedup(sync.txg)?;
        // Nothing is looked up meanwhile.
        let mut tables = std::mem::take(&mut *self.dedup.tables.lock());
        let flush_all = self.dedup.flush_all.swap(false, Relaxed) || flush_all;
        let [fruitless, known] = &self.dedup.fruitless;
        let fruitless = fruitless.load(Relaxed);
        let fruitless = fruitless.saturating_sub(known.swap(fruitless, Relaxed));
        for table in tables.values_mut() {
            table.store(self, sync, flush_all, fruitless)?;
        }
        self.limit_dedup();
        tables.retain(|_, table| !table.is_gone());
        self.dedup.publish(&tables);
        self.ledger.set_deduplicated(self.dedup.tally().1);
        *self.dedup.tables.lock() = tables;
        Ok(())
    }
}
