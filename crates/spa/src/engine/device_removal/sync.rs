//! The part of a removal that a txg writes: entries, births, the record, and the frees that
//! waited for the entries.

use std::sync::atomic::Ordering::Relaxed;

use base::{Dva, Result};
use dsl::write::store::DIRECTORY;
use ondisk::removal::{BIRTH_ENTRY_SIZE, MAPPING_ENTRY_SIZE, MappingHeader, Removing};
use ondisk::zap::ZapValue;
use vdev::IndirectEntry;

use super::super::Writer;
use super::super::condense::encoded;
use super::super::sync::SyncPass;
use super::{CopiedSegments, REMOVING};

/// Stores the record of a removal.
pub(in super::super) fn store(sync: &SyncPass<'_>, record: &Removing) -> Result<()> {
    let value = ZapValue::from_u64s(&record.words())
        .ok_or_else(|| base::bug!("the record of a removal is too long"))?;
    sync.cx.mos.zap_update(DIRECTORY, REMOVING.as_bytes(), &value)
}

/// The header's bonus buffer: without counts in its old form (chapter 08 §D.2).
pub(super) fn encode_header(header: &MappingHeader) -> Vec<u8> {
    let bytes = header.encode();
    let len = if header.counts.is_some() { 32 } else { 24 };
    bytes.iter().take(len).copied().collect()
}

impl Writer {
    /// Appends what was copied in this txg to the mapping. It comes before all frees of the txg.
    ///
    /// # Errors
    /// Those of the store.
    pub(in super::super) fn sync_removal(&self, sync: &SyncPass<'_>) -> Result<()> {
        let Some(work) = self.take_copied(sync) else { return Ok(()) };
        let Taken { mut entries, bytes, mapping, births, births_count, before, mut record } = work;
        let Some(last) = entries.last().copied() else { return Ok(()) };
        let end = last.src + last.len;
        if self.removal.plants.lost_entry.load(Relaxed) {
            entries.pop();
        }
        let os = sync.mos.objset();
        let stored: Vec<u8> = entries.iter().flat_map(encoded).collect();
        os.write(sync.tx, mapping, before.num_entries * MAPPING_ENTRY_SIZE as u64, &stored)?;
        if let Some(counts) = before.counts {
            os.write(sync.tx, counts, before.num_entries * 4, &vec![0; entries.len() * 4])?;
        }
        let header = MappingHeader {
            max_offset: end,
            bytes_mapped: before.bytes_mapped + entries.iter().map(|e| e.len).sum::<u64>(),
            num_entries: before.num_entries + entries.len() as u64,
            ..before
        };
        sync.cx.mos.set_bonus(mapping.0, &encode_header(&header))?;
        let mut birth = [0; BIRTH_ENTRY_SIZE];
        birth[..8].copy_from_slice(&end.to_le_bytes());
        birth[8..].copy_from_slice(&sync.txg.0.to_le_bytes());
        os.write(sync.tx, births, births_count * BIRTH_ENTRY_SIZE as u64, &birth)?;
        sync.cx.mos.set_bonus(births.0, &(births_count + 1).to_le_bytes())?;
        record.copied = record.copied.saturating_add(bytes);
        store(sync, &record)?;
        let (vdev, copies) = {
            let mut state = self.removal.state.lock();
            let Some(evac) = state.as_mut() else { return Ok(()) };
            evac.map.append(&entries, end, sync.txg)?;
            (evac.header, evac.record, evac.births_count) = (header, record, births_count + 1);
            let freed = evac.freed.clear_range(0, end)?;
            let mut copies: Vec<(u64, Dva)> = Vec::new();
            for seg in freed {
                copies.extend(evac.copies(seg.start, seg.end())?);
            }
            (evac.vdev, copies)
        };
        if !self.removal.plants.forgotten_free.load(Relaxed) {
            self.free_copies(sync.txg, vdev, copies)?;
        }
        self.note_to_copy();
        Ok(())
    }

    fn take_copied(&self, sync: &SyncPass<'_>) -> Option<Taken> {
        let mut state = self.removal.state.lock();
        let evac = state.as_mut()?;
        let mut entries = Vec::new();
        let mut bytes = 0;
        while let Some(first) = evac.copied.first_entry().filter(|first| *first.key() <= sync.txg) {
            let CopiedSegments { entries: more, bytes: size } = first.remove();
            entries.extend(more);
            bytes += size;
        }
        Some(Taken {
            entries,
            bytes,
            mapping: evac.mapping,
            births: evac.births,
            births_count: evac.births_count,
            before: evac.header,
            record: evac.record,
        })
    }
}

/// What a txg appends, and to what.
struct Taken {
    entries: Vec<IndirectEntry>,
    bytes: u64,
    mapping: base::ObjectId,
    births: base::ObjectId,
    births_count: u64,
    before: MappingHeader,
    record: Removing,
}
