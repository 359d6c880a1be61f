//! Condensing the mapping of a removed vdev (chapter 08 §D.4).
//!
//! # Theory
//! The mapping of a removed vdev is in memory and has an entry for each segment that was copied.
//! When enough of it is obsolete, it is replaced by one without the entries that nothing needs:
//! 1. *Begin.* The obsolete map is put aside: the vdev's ZAP does not have it any more, so
//!    later frees go to a new one. An empty new mapping is made, with counts. The record
//!    `com.delphix:condensing_indirect` refers to both.
//! 2. *Count.* The counts of the old mapping and the map that was put aside give the obsolete
//!    bytes of each entry. Both do not change any more, so this is done in memory, some
//!    blocks in each txg.
//! 3. *Copy.* The entries that are not wholly obsolete are appended to the new mapping, with
//!    their obsolete bytes as their counts, some in each txg.
//! 4. *End.* With the last entry, the configuration refers to the new mapping; the old one,
//!    its counts, the map that was put aside and the record go.
//!
//! Until the end the old mapping is in use. An entry that is left out was obsolete before the
//! begin, so no pointer leads to it, in this txg or a later one.
//!
//! # Crash argument
//! Each step is in a txg. After a crash step 2 is repeated from the same records, and gives the
//! same counts; so the entries that the new mapping has must be the first of those to
//! be copied, also if OpenZFS copied them. If they are not, or the records cannot be read, the
//! condensing is left as it is: nothing needs its end.
//!
//! # Invariants
//! * At most one mapping is condensed at a time, and none is begun while there is a
//!   checkpoint.
//! * obsolete_counts counts the counts of the new mapping, and the map that was put aside.
//!
//! # Departures from OpenZFS
//! The sync thread does all the work, in portions.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{Error, ErrorKind, ObjectId, Result, VdevId};
use dmu::ObjectSpec;
use dsl::Mos;
use dsl::write::store::DIRECTORY;
use dsl::write::{MosRead, features, remap};
use ondisk::ObjType;
use ondisk::config::PoolConfig;
use ondisk::removal::{MAPPING_ENTRY_SIZE, MappingEntry, MappingHeader};
use ondisk::spacemap::{Entries, Header, Params};
use ondisk::zap::ZapValue;
use vdev::{IndirectEntry, IndirectMap};

use super::maps::{LOG_BLOCK, free_map};
use super::obsolete::{ObsoleteMap, geometry};
use super::sync::SyncPass;
use super::{SyncState, Writer};
use crate::indirect;
use crate::obsolete::{
    CONDENSING_KEY, CondenseRecord, Counts, MAP_KEY, is_kept, is_space_map, mapping_header,
    removed_vdevs,
};

/// Entries copied by a txg.
const ENTRIES_AT_ONCE: usize = 64 << 10;
/// Blocks of the map that was put aside, read by a txg.
const BLOCKS_AT_ONCE: u64 = 64;

/// A mapping that is being condensed.
pub(super) struct Condensing {
    record: CondenseRecord,
    old: Arc<IndirectMap>,
    /// Entries of the new mapping.
    copied: Vec<IndirectEntry>,
    /// The new mapping's.
    header: MappingHeader,
    step: CondenseStep,
}

enum CondenseStep {
    /// The next block of the map that was put aside.
    Count(Counts, u64),
    /// The next entry of the old mapping.
    Copy(Counts, usize),
    /// Its records contradict each other.
    Stuck,
}

/// Whether an error says that what was read is wrong.
fn is_damage(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Checksum | ErrorKind::NotFound)
}

fn contradiction() -> Error {
    Error::corrupt("a condensed mapping has not the entries of the old one")
}

/// The entry as it is stored.
pub(super) fn encoded(entry: &IndirectEntry) -> [u8; MAPPING_ENTRY_SIZE] {
    let asize = base::Asize(entry.len);
    let dest = base::Dva { vdev: entry.dst_vdev, offset: entry.dst_offset, asize, gang: false };
    MappingEntry { source: entry.src, dest }.encode()
}

impl Condensing {
    /// The condensing of a record, from its beginning.
    fn of(record: CondenseRecord, old: Arc<IndirectMap>, mos: &Mos) -> Result<Condensing> {
        let header = mapping_header(mos, record.next)?;
        // What is not of these types may be something else's.
        let is = |object, due| Ok::<_, Error>(MosRead::info(mos, object)?.object_type == due);
        let words = is(record.next, ObjType::OTN_UINT64_METADATA)?;
        let counts = header.counts.map_or(Ok(true), |o| is(o.0, ObjType::OTN_UINT32_METADATA))?;
        if !words || !counts {
            return Err(contradiction());
        }
        let copied = indirect::load(mos, Some(record.next), None)?.entries().to_vec();
        Ok(Condensing { record, old, copied, header, step: CondenseStep::Stuck })
    }

    /// The vdev whose mapping it is.
    pub(super) fn vdev(&self) -> VdevId {
        self.record.vdev
    }

    fn is_stuck(&self) -> bool {
        matches!(self.step, CondenseStep::Stuck)
    }

    /// Reads some of the map that was put aside.
    fn count(
        &self,
        sync: &SyncPass<'_>,
        state: &SyncState,
        mut counts: Counts,
        next: u64,
    ) -> Result<CondenseStep> {
        let mut blkid = next;
        if self.record.aside != 0 {
            let handle = sync.mos.object(self.record.aside)?;
            let info = sync.cx.read().info(self.record.aside)?;
            let length = Header::parse(&info.bonus, info.endian)?.length;
            let size = handle.block_size().max(8);
            let params = Params::obsolete(geometry(&state.config, self.record.vdev)?.asize);
            let blocks = length.div_ceil(size);
            while blkid < blocks {
                if blkid == next + BLOCKS_AT_ONCE {
                    return Ok(CondenseStep::Count(counts, blkid));
                }
                let (block, endian) = handle.read_written(blkid, sync.mos.io())?;
                let here = usize::try_from((length - blkid * size).min(size)).unwrap_or(0);
                let bytes = block.get(..here).unwrap_or_default();
                for range in Entries::new(bytes, endian, params).ranges() {
                    let range = range?;
                    counts.add(&self.old, range.offset, range.len)?;
                }
                blkid += 1;
            }
        }
        let at = self.position(&counts)?;
        Ok(CondenseStep::Copy(counts, at))
    }

    /// The entry behind those that were copied before the pool was opened.
    fn position(&self, counts: &Counts) -> Result<usize> {
        let mut copied = self.copied.iter();
        let Some(mut due) = copied.next() else { return Ok(0) };
        let entries = self.old.entries().iter().enumerate();
        for (at, entry) in entries.filter(|(at, entry)| is_kept(counts, *at, entry)) {
            if entry != due {
                break;
            }
            match copied.next() {
                Some(next) => due = next,
                None => return Ok(at + 1),
            }
        }
        Err(contradiction())
    }
}

impl Writer {
    /// Continues what another writer, or this one before a crash, has begun.
    ///
    /// # Errors
    /// Those of reading, if the records are not damaged.
    pub(super) fn resume_condensing(&self, mos: &Mos, config: &PoolConfig) -> Result<()> {
        let begin = || -> Result<Option<Condensing>> {
            let Some(record) = CondenseRecord::stored(mos)? else { return Ok(None) };
            let gone = || Error::corrupt("the mapping that is condensed is of no removed vdev");
            let old = self.zio.tree().indirect(record.vdev).ok_or_else(gone)?;
            let map = removed_vdevs(config).find(|v| v.id == record.vdev.0);
            let keys = map.and_then(|v| v.top.as_ref()).map(|top| &top.indirect);
            let mapping = keys.and_then(|keys| keys.mapping).ok_or_else(gone)?;
            let maps = self.removed.maps.lock().clone();
            let aside = record.aside;
            let is_aside = aside == 0
                || (is_space_map(mos, aside)? && maps.values().all(|map| map.object != aside));
            let header = mapping_header(mos, mapping.0)?;
            let counts = Counts::load(mos, &header, &old)?;
            let mut work = Condensing::of(record, old, mos)?;
            let shared = work.header.counts.is_some() && work.header.counts == header.counts;
            if mapping.0 == record.next || shared || !is_aside {
                return Err(contradiction());
            }
            work.step = CondenseStep::Count(counts, 0);
            Ok(Some(work))
        };
        match begin() {
            Ok(work) => *self.removed.condensing.lock() = work,
            // Nothing needs its end; the audit reports it.
            Err(e) if is_damage(&e) => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Whether the next txg has mappings to condense.
    pub(super) fn is_condensing(&self) -> bool {
        self.removed.condensing.lock().as_ref().is_some_and(|work| !work.is_stuck())
    }

    /// Condenses some of a mapping, if one is worth it; whether there is more to do.
    pub(super) fn condense_some(&self, state: &mut SyncState, sync: &SyncPass<'_>) -> Result<bool> {
        let under_way = self.removed.condensing.lock().take();
        let work = match under_way {
            Some(work) => Some(work),
            None => self.begin_condensing(state, sync)?,
        };
        let Some(mut work) = work else { return Ok(false) };
        let step = std::mem::replace(&mut work.step, CondenseStep::Stuck);
        work.step = match step {
            CondenseStep::Stuck => CondenseStep::Stuck,
            CondenseStep::Count(counts, blkid) => match work.count(sync, state, counts, blkid) {
                Err(e) if is_damage(&e) => CondenseStep::Stuck,
                step => step?,
            },
            CondenseStep::Copy(counts, at) => {
                let at = self.copy_entries(sync, &mut work, &counts, at)?;
                if at == work.old.entries().len() {
                    self.end_condensing(state, sync, &work, &counts)?;
                    return Ok(false);
                }
                CondenseStep::Copy(counts, at)
            }
        };
        let more = !work.is_stuck();
        *self.removed.condensing.lock() = Some(work);
        Ok(more)
    }

    /// The vdev whose mapping is worth condensing.
    fn worth_condensing(&self) -> Option<(VdevId, ObsoleteMap)> {
        let tuning = self.jobs.tuning();
        let tree = self.zio.tree();
        let worth = |(vdev, map): &(VdevId, ObsoleteMap)| {
            let Some(mapping) = tree.indirect(*vdev) else { return false };
            let size = (mapping.entries().len() * MAPPING_ENTRY_SIZE) as u64;
            let percent = map.obsolete.saturating_mul(100).checked_div(mapping.mapped());
            let percent = percent.unwrap_or(0);
            map.obsolete > 0
                && (map.length >= tuning.condense_map_max
                    || (size > tuning.condense_mapping_min && percent >= tuning.condense_percent))
        };
        if !tuning.condense {
            return None;
        }
        self.removed.maps.lock().iter().map(|(vdev, map)| (*vdev, *map)).find(worth)
    }

    /// Whether there is room for a new mapping, which is as long as the old one at most, and its
    /// counts, in three copies, twice: no transaction reserves it.
    fn has_room(&self, old: &IndirectMap) -> bool {
        let size = old.entries().len() as u64 * (MAPPING_ENTRY_SIZE as u64 + 4);
        self.ledger.allocatable_now(false) / 6 > size
    }

    fn begin_condensing(
        &self,
        state: &SyncState,
        sync: &SyncPass<'_>,
    ) -> Result<Option<Condensing>> {
        if self.checkpoint.has() || self.checkpoint.is_discarding() {
            return Ok(None);
        }
        let Some((vdev, map)) = self.worth_condensing() else { return Ok(None) };
        // One that could not be continued stays where it is.
        if sync.cx.read().zap_lookup(DIRECTORY, CONDENSING_KEY.as_bytes())?.is_some() {
            return Ok(None);
        }
        let (Some(old), Some(zap)) = (self.zio.tree().indirect(vdev), sync.top_zap(vdev)) else {
            return Ok(None);
        };
        if !self.has_room(&old) {
            return Ok(None);
        }
        let mapping = geometry(&state.config, vdev)?.indirect.mapping;
        let Some(mapping) = mapping.filter(|o| o.0 != 0) else { return Ok(None) };
        let header = mapping_header(sync.cx.read(), mapping.0)?;
        let counts = match Counts::load(sync.mos, &header, &old) {
            Err(e) if is_damage(&e) => return Ok(None),
            counts => counts?,
        };
        sync.cx.mos.zap_remove(zap, MAP_KEY.as_bytes())?;
        self.removed.maps.lock().remove(&vdev);
        let os = sync.mos.objset();
        let array = |object_type| ObjectSpec {
            object_type,
            block_size: LOG_BLOCK,
            ..ObjectSpec::default()
        };
        let next_counts = os.allocate(sync.tx, &array(ObjType::OTN_UINT32_METADATA))?;
        let header = MappingHeader { counts: Some(next_counts), ..MappingHeader::default() };
        let next = os.allocate(
            sync.tx,
            &ObjectSpec {
                bonus_type: ObjType::OTN_UINT64_METADATA,
                bonus: header.encode().to_vec(),
                ..array(ObjType::OTN_UINT64_METADATA)
            },
        )?;
        features::add(sync.cx, remap::OBSOLETE_COUNTS, 1)?;
        let record = CondenseRecord { vdev, aside: map.object, next: next.0 };
        let words = [u64::from(vdev.0), record.aside, record.next];
        let value = ZapValue::from_u64s(&words).ok_or_else(|| base::bug!("three numbers"))?;
        sync.cx.mos.zap_update(DIRECTORY, CONDENSING_KEY.as_bytes(), &value)?;
        let step = CondenseStep::Count(counts, 0);
        Ok(Some(Condensing { record, old, copied: Vec::new(), header, step }))
    }

    /// Copies some entries from `at` on; returns the next one.
    fn copy_entries(
        &self,
        sync: &SyncPass<'_>,
        work: &mut Condensing,
        counts: &Counts,
        at: usize,
    ) -> Result<usize> {
        let plants = &self.removed.plants;
        let tested = plants.condensed_at_once.load(Relaxed);
        let most = tested.checked_sub(1).map_or(ENTRIES_AT_ONCE, |n| n as usize);
        let all = work.old.entries();
        let end = at.saturating_add(most).min(all.len());
        let (mut entries, mut obsolete) = (Vec::new(), Vec::new());
        let mut header = work.header;
        for (at, entry) in all.iter().enumerate().take(end).skip(at) {
            let count = counts.of(at);
            let is_lost = || count > 0 && plants.lost_entry.load(Relaxed);
            if !is_kept(counts, at, entry) || is_lost() {
                continue;
            }
            entries.extend(encoded(entry));
            let count = if plants.lost_counts.load(Relaxed) { 0 } else { count };
            obsolete.extend(count.to_le_bytes());
            header.num_entries += 1;
            header.bytes_mapped = header.bytes_mapped.saturating_add(entry.len);
            header.max_offset = entry.src.saturating_add(entry.len);
        }
        let os = sync.mos.objset();
        let before = work.header.num_entries;
        if !entries.is_empty() {
            let to = before * MAPPING_ENTRY_SIZE as u64;
            os.write(sync.tx, ObjectId(work.record.next), to, &entries)?;
            if let Some(object) = header.counts {
                os.write(sync.tx, object, before * 4, &obsolete)?;
            }
            work.header = header;
            sync.cx.mos.set_bonus(work.record.next, &header.encode())?;
        }
        Ok(end)
    }

    /// Takes the new mapping into use.
    fn end_condensing(
        &self,
        state: &mut SyncState,
        sync: &SyncPass<'_>,
        work: &Condensing,
        counts: &Counts,
    ) -> Result<()> {
        let CondenseRecord { vdev, aside, next } = work.record;
        let os = sync.mos.objset();
        let tops = &mut state.config.vdev_tree.children;
        let top = tops.iter_mut().find(|v| v.id == vdev.0).and_then(|v| v.top.as_mut());
        let top = top.ok_or_else(|| base::bug!("the condensed vdev {vdev} is gone"))?;
        let before = top.indirect.mapping.replace(ObjectId(next));
        let mut freed = 0;
        if let Some(old) = before {
            let counts = mapping_header(sync.cx.read(), old.0)?.counts;
            os.free_object(sync.tx, old)?;
            if let Some(counts) = counts {
                os.free_object(sync.tx, counts)?;
                freed += 1;
            }
        }
        if aside != 0 {
            free_map(sync, aside)?;
            freed += 1;
        }
        sync.cx.mos.zap_remove(DIRECTORY, CONDENSING_KEY.as_bytes())?;
        if features::is_enabled(sync.cx.read(), remap::OBSOLETE_COUNTS)? {
            features::add(sync.cx, remap::OBSOLETE_COUNTS, -freed)?;
        }
        state.dirty = true;
        let kept = |at: usize| work.old.entries().get(at).is_some_and(|e| is_kept(counts, at, e));
        self.zio.tree().set_indirect(vdev, Arc::new(work.old.filtered(kept)))
    }
}
