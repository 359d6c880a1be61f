//! One dedup table of a pool that is open for writing: its entries in memory, its logs and
//! its ZAPs. The parent module has the theory.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use base::{Error, ObjectId, Result};
use codec::checksum::Checksum;
use dmu::{ObjectSpec, zaps};
use dsl::Mos;
use dsl::write::features;
use dsl::write::store::DIRECTORY;
use ondisk::blkptr::{BlkPtr, Block};
use ondisk::ddt::{
    Class, Entry, Key, LOG_BLOCK, LOG_RECORD_SIZE, LogHeader, LogRecord, Phys, STATISTICS_KEY,
    StatBucket, contribution, directory_key, log_key, statistics_words, zap_key,
};
use ondisk::zap::{FLAG_HASH64, FLAG_PRE_HASHED_KEY, FLAG_UINT64_KEY, ZapValue};
use ondisk::{ObjType, ddt};

use super::super::Writer;
use super::super::sync::SyncPass;
use super::Identity;
use super::filter::TableFilter;
use crate::dedup::{
    CLASSES, DedupHistogram, FAST_DEDUP, FLAT_AND_LOG, Held, HeldEntries, LOG_ENTRIES_MAX,
    LoadedTable, VERSION, decode, empty_log, empty_statistics, in_table, key_of, open_log,
    read_log,
};

/// log2 of the blocks of an entry ZAP (chapter 08 §B.2).
const ZAP_SHIFT: u8 = 15;
/// Txgs after which the roles of the logs swap.
const TXGS_MAX: u64 = 8;
/// A txg flushes one part in so many of a log, so that a log is flushed in as many txgs.
const SHARE: usize = 100;
/// The fewest entries that a txg flushes.
const FLUSHED_MIN: usize = 1000;
/// Entries of the active log from which on logs are flushed completely.
const ACTIVE_MAX: usize = LOG_ENTRIES_MAX / 4;
/// Bytes that an entry takes on disk, with its part of the ZAP and of the copies, in a table that
/// is too small to tell.
const ENTRY_BYTES: u64 = 512;
/// Entries from which on a table can tell.
const ENTRIES_MIN: u64 = 1024;
/// Records of a log block.
const PER_BLOCK: usize = LOG_BLOCK as usize / LOG_RECORD_SIZE;

/// The ZAP of each class.
pub(super) type Zaps = [Option<u64>; CLASSES];

/// A log and its header.
struct LiveLog {
    object: u64,
    header: LogHeader,
    /// The header is newer than on disk.
    changed: bool,
}

/// The logs of a fast table.
struct Logs {
    active: LiveLog,
    flushing: LiveLog,
    /// Entries that the flushing log had as it became that.
    begun_with: usize,
}

/// A table.
pub(super) struct LiveTable {
    checksum: Checksum,
    /// It has flat entries and logs.
    fast: bool,
    /// The directory of a fast table, once it was stored.
    directory: Option<u64>,
    zaps: Zaps,
    statistics: [Box<DedupHistogram>; CLASSES],
    /// ZAPs and statistics that this txg changed.
    touched: [bool; CLASSES],
    logs: Option<Logs>,
    /// Entries that changed since the active log was begun, or in a legacy table since the last
    /// txg.
    active: HeldEntries,
    /// Those of them that the active log does not have.
    unlogged: BTreeSet<Key>,
    /// Entries that the flushing log still has to flush.
    flushing: HeldEntries,
    /// Entries of both without references.
    dead: usize,
    /// Entries of both that no ZAP has, and those that came into a ZAP with the last txg.
    new: usize,
    added: usize,
    /// Deflated bytes of blocks, and of these times the references, by which the newest states of
    /// the entries in memory exceed those that the ZAPs have.
    newer: [i128; 2],
    /// Bytes that the ZAPs took on disk at the last txg, and an entry in them, about.
    used: u64,
    each: u64,
    /// The keys that the ZAPs have.
    filter: TableFilter,
    /// All of it is gone.
    gone: bool,
}

/// Notes when an entry that had `before` references came into its class.
pub(super) fn note_class(entry: &mut Entry, before: u64, now: u64) {
    let after = entry.total_refcnt();
    if let Entry::Flat(flat) = entry
        && after > 0
        && (before == 0 || Class::of_count(after) != Class::of_count(before))
    {
        flat.class_start = now;
    }
}

fn is_dead(held: &Held) -> bool {
    held.entry.total_refcnt() == 0
}

fn is_new(held: &Held) -> bool {
    held.stored.is_none()
}

/// The deflated bytes of a block.
pub(super) type Deflated<'a> = &'a dyn Fn(&Block) -> u64;

/// The state of an entry that the ZAPs have.
pub(super) fn find_stored(mos: &Mos, zaps: &Zaps, fast: bool, key: &Key) -> Result<Option<Held>> {
    for (class, zap) in Class::ALL.into_iter().zip(zaps) {
        let Some(zap) = *zap else { continue };
        if let Some(value) = mos.zap(zap)?.lookup_words(&key.to_words())? {
            let entry = decode(&value, fast).map_err(|e| in_table(e, zap))?;
            return Ok(Some(Held { entry, stored: Some(class) }));
        }
    }
    Ok(None)
}

impl LiveTable {
    /// A table without entries; `filter`: bytes that its filter may take.
    pub(super) fn new(checksum: Checksum, fast: bool, filter: usize) -> LiveTable {
        LiveTable {
            checksum,
            fast,
            directory: None,
            zaps: [None; CLASSES],
            statistics: [(); CLASSES].map(|()| empty_statistics()),
            touched: [false; CLASSES],
            logs: None,
            active: HeldEntries::new(),
            unlogged: BTreeSet::new(),
            flushing: HeldEntries::new(),
            dead: 0,
            new: 0,
            added: 0,
            newer: [0; 2],
            used: 0,
            each: ENTRY_BYTES,
            filter: TableFilter::new(filter, true),
            gone: false,
        }
    }

    /// The table of an imported pool; `room`: the most entries of its logs; `filter` as for
    /// [`LiveTable::new`].
    ///
    /// # Errors
    /// Those of reading the logs; `Corrupt`, `Limit`.
    pub(super) fn load(
        mos: &Mos,
        loaded: LoadedTable,
        room: usize,
        filter: usize,
        deflated: Deflated<'_>,
    ) -> Result<LiveTable> {
        let LoadedTable { objects, statistics, logs } = loaded;
        let mut table = LiveTable {
            directory: objects.directory,
            zaps: objects.zaps,
            statistics,
            filter: TableFilter::new(filter, objects.zaps.iter().all(Option::is_none)),
            ..LiveTable::new(objects.checksum, objects.directory.is_some(), filter)
        };
        table.measure(mos)?;
        let Some([active, flushing]) = logs else { return Ok(table) };
        for ((object, _), to) in [(active, &mut table.active), (flushing, &mut table.flushing)] {
            let log = open_log(mos, object)?;
            read_log(mos, &log, room, to).map_err(|e| in_table(e, object))?;
        }
        let newer = &table.active;
        table.flushing.retain(|key, _| !newer.contains_key(key));
        if table.logged() > room {
            return Err(Error::limit("the dedup logs have too many entries"));
        }
        let all = || table.active.values().chain(table.flushing.values());
        let (dead, new) =
            (all().filter(|h| is_dead(h)).count(), all().filter(|h| is_new(h)).count());
        (table.dead, table.new) = (dead, new);
        // A shared entry that the ZAP has, too, is looked up with its flush at the latest.
        for (key, held) in table.active.iter().chain(&table.flushing) {
            let mut before = held.entry.clone();
            match held.stored {
                None => before.phys_mut().iter_mut().for_each(|phys| phys.refcnt = 0),
                Some(Class::Unique) => {
                    before.phys_mut().iter_mut().for_each(|phys| phys.refcnt = 1);
                }
                Some(_) => continue,
            }
            let (from, to) = (
                table.bytes_of(*key, &before, deflated),
                table.bytes_of(*key, &held.entry, deflated),
            );
            table.newer = [table.newer[0] + to[0] - from[0], table.newer[1] + to[1] - from[1]];
        }
        let live = |(object, header)| LiveLog { object, header, changed: false };
        let begun_with = table.flushing.len();
        table.logs = Some(Logs { active: live(active), flushing: live(flushing), begun_with });
        Ok(table)
    }

    /// Entries in the logs.
    pub(super) fn logged(&self) -> usize {
        self.active.len() + self.flushing.len()
    }

    /// Entries without references that are not flushed.
    pub(super) fn dead(&self) -> usize {
        self.dead
    }

    /// Deflated bytes of an entry's blocks, and of these times their references.
    fn bytes_of(&self, key: Key, entry: &Entry, deflated: Deflated<'_>) -> [i128; 2] {
        let part = contribution(self.checksum, key, entry, deflated);
        part.map_or([0; 2], |(_, part)| [part.blocks[3].into(), part.referenced[3].into()])
    }

    /// Notes that the newest state of an entry is another one, or that the ZAP has it.
    fn note_newer(&mut self, key: Key, from: &Entry, to: &Entry, deflated: Deflated<'_>) {
        let (from, to) = (self.bytes_of(key, from, deflated), self.bytes_of(key, to, deflated));
        for (sum, (from, to)) in self.newer.iter_mut().zip(from.into_iter().zip(to)) {
            *sum += to - from;
        }
        if self.logged() == 0 {
            self.newer = [0; 2];
        }
    }

    /// Deflated bytes of the blocks, and those that their other references save, by the newest
    /// states of the entries.
    pub(super) fn tally(&self) -> (u64, u64) {
        let (sum, [blocks, referenced]) = (self.sum(), self.newer);
        let used = i128::from(sum.blocks[3]) + blocks;
        let all = i128::from(sum.referenced[3]) + referenced;
        let bytes = |n: i128| u64::try_from(n.max(0)).unwrap_or(u64::MAX);
        (bytes(used), bytes(all - used))
    }

    /// Notes the bytes that the ZAPs took on disk before this txg.
    fn measure(&mut self, mos: &Mos) -> Result<()> {
        self.used = 0;
        for zap in self.zaps.iter().flatten() {
            self.used = self.used.saturating_add(mos.object(*zap)?.dnode().used);
        }
        self.each = match self.sum().blocks[0] {
            entries @ ENTRIES_MIN.. if self.used > 0 => self.used / entries,
            _ => ENTRY_BYTES,
        };
        Ok(())
    }

    /// Bytes that the table takes on disk, with those that its new entries will take, about.
    pub(super) fn size(&self) -> u64 {
        let more = self.new.saturating_add(self.added) as u64;
        self.used.saturating_add(self.each.saturating_mul(more))
    }

    /// Whether nothing is left of it.
    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    /// The sum of the statistics.
    pub(super) fn sum(&self) -> StatBucket {
        let mut sum = StatBucket::default();
        self.statistics.iter().flat_map(|of| of.iter()).for_each(|bucket| sum.add(bucket));
        sum
    }

    /// The ZAP of a class.
    pub(super) fn zap_of(&self, class: Class) -> Option<u64> {
        self.zaps.get(usize::from(class.code())).copied().flatten()
    }

    /// Whether it has flat entries.
    pub(super) fn is_fast(&self) -> bool {
        self.fast
    }

    /// Its ZAPs.
    pub(super) fn zaps(&self) -> Zaps {
        self.zaps
    }

    /// The state of an entry that is not in a ZAP.
    pub(super) fn held(&self, key: &Key) -> Option<&Held> {
        self.active.get(key).or_else(|| self.flushing.get(key))
    }

    /// Whether a ZAP may have an entry.
    pub(super) fn may_store(&self, key: &Key) -> bool {
        self.filter.may_have(key)
    }

    /// The newest state of an entry.
    fn find(&self, mos: &Mos, key: &Key) -> Result<Option<Held>> {
        match self.held(key) {
            Some(held) => Ok(Some(held.clone())),
            None if !self.may_store(key) => Ok(None),
            None => find_stored(mos, &self.zaps, self.fast, key),
        }
    }

    /// Makes `held` the newest state of an entry, which was `before`.
    pub(super) fn put(&mut self, key: Key, before: &Entry, held: Held, deflated: Deflated<'_>) {
        let after = held.entry.clone();
        self.dead += usize::from(is_dead(&held));
        self.new += usize::from(is_new(&held));
        let older = [self.flushing.remove(&key), self.active.insert(key, held)];
        for held in older.iter().flatten() {
            self.forget(held);
        }
        self.unlogged.insert(key);
        self.note_newer(key, before, &after, deflated);
    }

    /// Whether the flushing log has the newest state of an entry.
    pub(super) fn is_flushing(&self, key: &Key) -> bool {
        self.flushing.contains_key(key)
    }

    /// Planted bug: what changed in an entry is not appended to the active log.
    pub(super) fn forget_change(&mut self, key: &Key) {
        self.unlogged.remove(key);
    }

    /// Takes an entry that is not in memory any more out of the counts.
    fn forget(&mut self, held: &Held) {
        self.dead = self.dead.saturating_sub(usize::from(is_dead(held)));
        self.new = self.new.saturating_sub(usize::from(is_new(held)));
    }

    /// Takes away `dead` pointers to the physical block that `of` identifies; false if no entry
    /// counts them. `now`: seconds since 1970.
    ///
    /// # Errors
    /// Those of reading the MOS; `Corrupt` for an entry that counts fewer.
    pub(super) fn drop_refs(
        &mut self,
        mos: &Mos,
        of: &Identity,
        dead: u64,
        now: u64,
        deflated: Deflated<'_>,
    ) -> Result<bool> {
        let few = || Error::corrupt("a dedup entry counts fewer references than there were");
        let change = |count: u64| count.checked_sub(dead).ok_or_else(few);
        self.change_refs(mos, of, now, deflated, change)
    }

    /// Counts `more` pointers to a block; false if no entry counts it.
    ///
    /// # Errors
    /// Those of reading the MOS; `Corrupt` for an entry that counts too many.
    pub(super) fn add_refs(
        &mut self,
        mos: &Mos,
        of: &Identity,
        more: u64,
        now: u64,
        deflated: Deflated<'_>,
    ) -> Result<bool> {
        let many = || Error::corrupt("a dedup entry counts too many references");
        let change = |count: u64| count.checked_add(more).ok_or_else(many);
        self.change_refs(mos, of, now, deflated, change)
    }

    /// Changes the count of the physical block that counts a pointer; false if none does.
    fn change_refs(
        &mut self,
        mos: &Mos,
        of: &Identity,
        now: u64,
        deflated: Deflated<'_>,
        change: impl FnOnce(u64) -> Result<u64>,
    ) -> Result<bool> {
        let Some(mut held) = self.find(mos, &of.key)? else { return Ok(false) };
        let first = |phys: &Phys| {
            let dva = phys.addresses(of.key.is_encrypted()).next();
            dva.is_some_and(|dva| {
                (dva.vdev.0, dva.offset) == (of.vdev, of.offset) && phys.matches(dva, of.birth)
            })
        };
        let old = held.entry.clone();
        let before = old.total_refcnt();
        let Some(phys) = held.entry.phys_mut().iter_mut().find(|phys| first(phys)) else {
            return Ok(false);
        };
        phys.refcnt = change(phys.refcnt)?;
        note_class(&mut held.entry, before, now);
        self.put(of.key, &old, held, deflated);
        Ok(true)
    }

    /// Stores what changed, and flushes a share of the logs, or all of them.
    ///
    /// # Errors
    /// Those of the MOS and of freeing; `Corrupt`.
    pub(super) fn store(
        &mut self,
        writer: &Writer,
        sync: &SyncPass<'_>,
        flush_all: bool,
        fruitless: u64,
    ) -> Result<()> {
        self.added = 0;
        match self.fast {
            false => {
                self.unlogged.clear();
                let all = std::mem::take(&mut self.active);
                (self.dead, self.new) = (0, 0);
                all.into_iter().try_for_each(|(key, held)| self.flush(writer, sync, key, held))?;
            }
            true => {
                self.append(writer, sync)?;
                self.flush_logs(writer, sync, flush_all)?;
                self.store_headers(sync)?;
            }
        }
        self.store_statistics(sync)?;
        self.remove_empty(sync)?;
        self.measure(sync.mos)?;
        if self.scan_keys(sync.mos, fruitless).is_err() {
            self.filter.fail();
        }
        Ok(())
    }

    /// Reads a part of the ZAPs for a filter that is being made.
    fn scan_keys(&mut self, mos: &Mos, fruitless: u64) -> Result<()> {
        let mut left = self.filter.part(self.sum().blocks[0], fruitless);
        while left > 0
            && let Some((class, at)) = self.filter.position()
        {
            let Some(zap) = self.zap_of(class) else {
                self.filter.found(&[], None);
                continue;
            };
            let (entries, next) = mos.zap(zap)?.list_from(at, usize::MAX)?;
            let keys = entries.iter().map(|entry| key_of(&entry.name));
            let keys = keys.collect::<Result<Vec<Key>>>()?;
            self.filter.found(&keys, next);
            // A pointer without entries costs something, too.
            left = left.saturating_sub(keys.len().max(1) as u64);
        }
        Ok(())
    }

    /// Appends the entries that changed to the active log, in new blocks.
    fn append(&mut self, writer: &Writer, sync: &SyncPass<'_>) -> Result<()> {
        let keys = std::mem::take(&mut self.unlogged);
        if keys.is_empty() || writer.dedup.plants.lost_records.take(Relaxed) {
            return Ok(());
        }
        let directory = match self.directory {
            Some(directory) => directory,
            None => self.create_directory(sync)?,
        };
        let logs = match &mut self.logs {
            Some(logs) => logs,
            None => self.logs.insert(Logs::create(self.checksum, sync, directory)?),
        };
        let record = |key: &Key| match self.active.get(key) {
            Some(Held { entry: Entry::Flat(entry), stored }) => {
                Some(LogRecord { key: *key, entry: *entry, stored: *stored })
            }
            _ => None,
        };
        let records: Vec<LogRecord> = keys.iter().filter_map(record).collect();
        let log = &mut logs.active;
        for part in records.chunks(PER_BLOCK) {
            let blkid = log.header.length / LOG_BLOCK;
            sync.cx.mos.edit_block(log.object, blkid, &mut |data| {
                data.fill(0);
                for (to, record) in data.chunks_exact_mut(LOG_RECORD_SIZE).zip(part) {
                    to.copy_from_slice(&record.encode());
                }
                Ok(())
            })?;
            log.header.length += LOG_BLOCK;
            log.changed = true;
        }
        Ok(())
    }

    /// Flushes a share of the flushing log, or everything; swaps the logs when one is empty and
    /// the other is due.
    fn flush_logs(&mut self, writer: &Writer, sync: &SyncPass<'_>, flush_all: bool) -> Result<()> {
        let all = flush_all || self.active.len() >= ACTIVE_MAX;
        let begun_with = self.logs.as_ref().map_or(0, |logs| logs.begun_with);
        let plants = &writer.dedup.plants;
        let least = match plants.flushed.load(Relaxed) {
            0 => FLUSHED_MIN,
            tested => usize::try_from(tested).unwrap_or(FLUSHED_MIN),
        };
        let txgs_max = match plants.log_txgs.load(Relaxed) {
            0 => TXGS_MAX,
            tested => tested,
        };
        let mut budget = if all { usize::MAX } else { least.max(begun_with / SHARE) };
        loop {
            while budget > 0
                && let Some((key, held)) = self.flushing.pop_first()
            {
                budget -= 1;
                self.forget(&held);
                self.flush(writer, sync, key, held)?;
                if let Some(logs) = &mut self.logs {
                    logs.flushing.header.checkpoint = Some(key);
                    logs.flushing.changed = true;
                }
            }
            if !self.flushing.is_empty() {
                return Ok(());
            }
            let Some(logs) = &mut self.logs else { return Ok(()) };
            logs.flushing.truncate(sync)?;
            // Without entries of its own the flushing log's dead ones are in the active one.
            let age = sync.txg.0.saturating_sub(logs.active.header.first_txg.0);
            let is_due = all || age >= txgs_max || self.dead > 0;
            if self.active.is_empty() {
                // Its entries were flushed from the other log, or it is new.
                logs.active.truncate(sync)?;
                return Ok(());
            }
            if !is_due {
                return Ok(());
            }
            std::mem::swap(&mut logs.active, &mut logs.flushing);
            std::mem::swap(&mut self.active, &mut self.flushing);
            logs.begun_with = self.flushing.len();
            let length = logs.flushing.header.length;
            let middle = self.flushing.keys().nth(self.flushing.len() / 2);
            let old = middle.filter(|_| plants.old_checkpoint.load(Relaxed)).copied();
            logs.flushing.header = LogHeader {
                length,
                checkpoint: old,
                ..empty_log(true, logs.flushing.header.first_txg)
            };
            logs.active.header = empty_log(false, sync.txg);
            (logs.active.changed, logs.flushing.changed) = (true, true);
            if !all {
                return Ok(());
            }
        }
    }

    fn store_headers(&mut self, sync: &SyncPass<'_>) -> Result<()> {
        let Some(Logs { active, flushing, .. }) = &mut self.logs else { return Ok(()) };
        for log in [active, flushing] {
            if std::mem::take(&mut log.changed) {
                sync.cx.mos.set_bonus(log.object, &log.header.encode())?;
            }
        }
        Ok(())
    }

    /// Moves an entry into the ZAP of its class, or removes it and frees its block.
    fn flush(&mut self, writer: &Writer, sync: &SyncPass<'_>, key: Key, held: Held) -> Result<()> {
        let (os, words) = (sync.mos.objset(), key.to_words());
        let Held { mut entry, stored } = held;
        let deflated = |block: &Block| sync.cx.ratios.used(block);
        let mut in_zap = entry.clone();
        in_zap.phys_mut().iter_mut().for_each(|phys| phys.refcnt = 0);
        let mut old = None;
        if let Some(class) = stored
            && let Some(zap) = self.zap_of(class)
            && let Some(value) = zaps::lookup_words(os, sync.tx, ObjectId(zap), &words)?
        {
            let before = decode(&value, self.fast).map_err(|e| in_table(e, zap))?;
            if !writer.dedup.plants.kept_statistics.take(Relaxed) {
                self.count(sync, class, key, &before, StatBucket::subtract);
            }
            if before.total_refcnt() > entry.total_refcnt()
                && entry.total_refcnt() > 0
                && writer.dedup.plants.stale_flush.take(Relaxed)
            {
                self.count(sync, class, key, &before, StatBucket::add);
                return Ok(());
            }
            old = Some((class, zap));
            in_zap = before;
        }
        self.note_newer(key, &entry, &in_zap, &deflated);
        let total = entry.total_refcnt();
        let obsolete = matches!(entry, Entry::Legacy(_));
        for (i, phys) in entry.phys_mut().iter_mut().enumerate() {
            // The obsolete extra copy of a legacy entry is not counted; it goes with the others.
            let extra = obsolete && i == 0 && total > 0;
            if phys.refcnt > 0 || extra {
                continue;
            }
            if let Some(block) = key.block(self.checksum, phys)
                && !writer.dedup.plants.kept_space.take(Relaxed)
            {
                writer.free_space(sync.txg, &BlkPtr::Block(block))?;
            }
            *phys = Phys::default();
        }
        if total == 0 && old.is_some() && writer.dedup.plants.kept_entry.take(Relaxed) {
            return Ok(());
        }
        let class = (total > 0).then(|| Class::of_count(total));
        if let Some((before, zap)) = old.filter(|(before, _)| Some(*before) != class) {
            self.touch(before);
            zaps::remove_words(os, sync.tx, ObjectId(zap), &words)?;
        }
        let Some(class) = class else { return Ok(()) };
        self.added += usize::from(stored.is_none());
        let zap = match self.zap_of(class) {
            Some(zap) => zap,
            None => self.create_zap(sync, class)?,
        };
        let large = || base::bug!("a dedup entry that is no value");
        let value = ZapValue::from_bytes(&entry.encode()).ok_or_else(large)?;
        if !writer.dedup.plants.unfiltered_key.take(Relaxed) {
            self.filter.add(&key);
        }
        zaps::update_words(os, sync.tx, ObjectId(zap), &words, &value)?;
        self.count(sync, class, key, &entry, StatBucket::add);
        Ok(())
    }

    fn touch(&mut self, class: Class) {
        if let Some(touched) = self.touched.get_mut(usize::from(class.code())) {
            *touched = true;
        }
    }

    /// Changes the statistics of a class by an entry.
    pub(super) fn count(
        &mut self,
        sync: &SyncPass<'_>,
        class: Class,
        key: Key,
        entry: &Entry,
        change: fn(&mut StatBucket, &StatBucket),
    ) {
        self.touch(class);
        let deflated = |block: &Block| sync.cx.ratios.used(block);
        let part = contribution(self.checksum, key, entry, &deflated);
        let of = self.statistics.get_mut(usize::from(class.code()));
        if let (Some((bucket, part)), Some(of)) = (part, of)
            && let Some(bucket) = of.get_mut(bucket)
        {
            change(bucket, &part);
        }
    }

    /// The ZAP with the names of the table's objects.
    fn names(&self) -> u64 {
        self.directory.unwrap_or(DIRECTORY)
    }

    fn create_directory(&mut self, sync: &SyncPass<'_>) -> Result<u64> {
        let directory = sync.cx.new_zap(ObjType::OTN_ZAP_METADATA, 0)?;
        sync.cx.put_number(directory, "version", VERSION)?;
        sync.cx.put_number(directory, "flags", FLAT_AND_LOG)?;
        sync.cx.put_number(DIRECTORY, &directory_key(self.checksum), directory)?;
        features::add(sync.cx, FAST_DEDUP, 1)?;
        self.directory = Some(directory);
        Ok(directory)
    }

    fn create_zap(&mut self, sync: &SyncPass<'_>, class: Class) -> Result<u64> {
        let spec = ObjectSpec {
            object_type: ObjType::DDT_ZAP,
            block_size: 1 << ZAP_SHIFT,
            indirect_shift: ZAP_SHIFT,
            ..ObjectSpec::default()
        };
        let os = sync.mos.objset();
        let object = os.allocate(sync.tx, &spec)?;
        let hashed = if self.checksum == Checksum::Edonr { 0 } else { FLAG_PRE_HASHED_KEY };
        zaps::init_as(os, sync.tx, object, FLAG_HASH64 | FLAG_UINT64_KEY | hashed)?;
        sync.cx.put_number(self.names(), &zap_key(self.checksum, class), object.0)?;
        if let Some(zap) = self.zaps.get_mut(usize::from(class.code())) {
            *zap = Some(object.0);
        }
        self.touch(class);
        Ok(object.0)
    }

    fn store_statistics(&mut self, sync: &SyncPass<'_>) -> Result<()> {
        if self.touched == [false; CLASSES] {
            return Ok(());
        }
        let zap = match sync.cx.read().directory(STATISTICS_KEY)? {
            Some(zap) => zap,
            None => {
                let zap = sync.cx.new_zap(ObjType::DDT_STATS, 0)?;
                sync.cx.put_number(DIRECTORY, STATISTICS_KEY, zap)?;
                zap
            }
        };
        for (class, of) in Class::ALL.into_iter().zip(&self.statistics) {
            if self.touched.get(usize::from(class.code())) == Some(&true) {
                let large = || base::bug!("dedup statistics that are no value");
                let value = ZapValue::from_u64s(&statistics_words(of)).ok_or_else(large)?;
                let name = zap_key(self.checksum, class);
                sync.cx.mos.zap_update(zap, name.as_bytes(), &value)?;
            }
        }
        Ok(())
    }

    /// Removes ZAPs without entries, and a table without anything.
    fn remove_empty(&mut self, sync: &SyncPass<'_>) -> Result<()> {
        let mos = sync.cx.mos;
        let touched = std::mem::take(&mut self.touched);
        for (class, _) in Class::ALL.into_iter().zip(touched).filter(|(_, touched)| *touched) {
            let Some(zap) = self.zap_of(class) else { continue };
            if zaps::len(sync.mos.objset(), sync.tx, ObjectId(zap))? > 0 {
                continue;
            }
            let name = zap_key(self.checksum, class);
            mos.free_object(zap)?;
            mos.zap_remove(self.names(), name.as_bytes())?;
            let statistics = sync.cx.read().required(STATISTICS_KEY)?;
            mos.zap_remove(statistics, name.as_bytes())?;
            let at = usize::from(class.code());
            if let (Some(zap), Some(of)) = (self.zaps.get_mut(at), self.statistics.get_mut(at)) {
                *zap = None;
                **of = [StatBucket::default(); ddt::STAT_BUCKETS];
            }
        }
        if self.zaps.iter().any(Option::is_some) {
            return Ok(());
        }
        self.filter.clear();
        if self.logged() > 0 {
            return Ok(());
        }
        self.gone = true;
        let Some(directory) = self.directory else { return Ok(()) };
        if let Some(logs) = self.logs.take() {
            mos.free_object(logs.active.object)?;
            mos.free_object(logs.flushing.object)?;
        }
        mos.free_object(directory)?;
        mos.zap_remove(DIRECTORY, directory_key(self.checksum).as_bytes())?;
        features::add(sync.cx, FAST_DEDUP, -1)?;
        Ok(())
    }
}

impl Logs {
    /// New logs, in the table's directory.
    fn create(checksum: Checksum, sync: &SyncPass<'_>, directory: u64) -> Result<Logs> {
        let create = |which: u8, header: LogHeader| {
            let spec = ObjectSpec {
                object_type: ObjType::OTN_UINT64_METADATA,
                block_size: LOG_BLOCK as u32,
                bonus_type: ObjType::OTN_UINT64_METADATA,
                bonus: header.encode().to_vec(),
                ..ObjectSpec::default()
            };
            let object = sync.mos.objset().allocate(sync.tx, &spec)?.0;
            sync.cx.put_number(directory, &log_key(checksum, which), object)?;
            Ok(LiveLog { object, header, changed: false })
        };
        let active = create(0, empty_log(false, sync.txg))?;
        let flushing = create(1, empty_log(true, sync.txg))?;
        Ok(Logs { active, flushing, begun_with: 0 })
    }
}

impl LiveLog {
    /// Makes it empty.
    fn truncate(&mut self, sync: &SyncPass<'_>) -> Result<()> {
        if self.header.length > 0 {
            sync.cx.mos.free_from(self.object, 0)?;
            let LogHeader { flushing, first_txg, .. } = self.header;
            self.header = empty_log(flushing, first_txg);
            self.changed = true;
        }
        Ok(())
    }
}
