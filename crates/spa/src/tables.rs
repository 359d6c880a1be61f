//! The pool's reference tables: dedup (chapter 08 §B) and block cloning (§C).

use std::collections::BTreeMap;

use base::{Error, Result, VdevId};
use ondisk::brt::BrtVdev;
use ondisk::ddt::{Entry, Key, STATISTICS_KEY, StatBucket, parse_statistics};

use crate::dedup::{self, HeldEntries};
use crate::import::Spa;

/// References beyond the first, by byte offset on the vdev.
pub(crate) type CloneCounts = BTreeMap<u64, u64>;

impl Spa {
    /// The block reference tables, by vdev.
    ///
    /// # Errors
    /// Those of reading the MOS; `Corrupt`.
    pub fn clone_tables(&self) -> Result<Vec<(VdevId, BrtVdev)>> {
        let mut out = Vec::new();
        for (vdev, object) in crate::block_refs::objects(self.mos())? {
            let handle = self.mos().object(object)?;
            out.push((vdev, BrtVdev::parse(&handle.dnode().bonus, handle.dnode().endian)?));
        }
        Ok(out)
    }

    /// The extra references of one vdev's cloned blocks.
    ///
    /// # Errors
    /// Those of reading the table; `Corrupt`.
    pub fn clone_counts(&self, table: &BrtVdev) -> Result<CloneCounts> {
        let mut counts = CloneCounts::new();
        for entry in self.mos().zap_entries(table.entries.0)? {
            // A name of one word.
            let offset = entry.name.as_slice().try_into().map(u64::from_be_bytes);
            let offset = offset.map_err(|_| {
                Error::corrupt("an entry of the block reference table is for no place")
            })?;
            let count = crate::block_refs::count_of(&entry.value)?;
            if counts.insert(offset, count).is_some() {
                return Err(Error::corrupt("a block reference table has a place twice"));
            }
        }
        Ok(counts)
    }

    /// Bytes that the dedup tables take on disk.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn dedup_table_size(&self) -> Result<u64> {
        let tables = dedup::find(self.mos())?;
        tables
            .iter()
            .flat_map(|t| t.zaps)
            .flatten()
            .try_fold(0u64, |sum, zap| Ok(sum.saturating_add(self.mos().object(zap)?.dnode().used)))
    }

    /// Every dedup entry, by the id of the checksum function and its key; those of the logs
    /// override older ones.
    ///
    /// # Errors
    /// Those of reading the tables; `Corrupt`.
    pub fn dedup_entries(&self) -> Result<BTreeMap<(u8, Key), Entry>> {
        let mut out = BTreeMap::new();
        for table in dedup::find(self.mos())? {
            let id = table.checksum.id();
            for zap in table.zaps.iter().flatten() {
                for entry in self.mos().zap_entries(*zap)? {
                    let value = dedup::decode(&entry.value, table.directory.is_some())?;
                    out.insert((id, dedup::key_of(&entry.name)?), value);
                }
            }
            let held = self.dedup_logs(&table)?;
            out.extend(held.into_iter().map(|(key, held)| ((id, key), held.entry)));
        }
        Ok(out)
    }

    /// The entries of a table's logs.
    pub(crate) fn dedup_logs(&self, table: &dedup::TableObjects) -> Result<HeldEntries> {
        let mut held = HeldEntries::new();
        let logs = table.logs.iter().flatten();
        let logs = logs.map(|log| dedup::open_log(self.mos(), *log)).collect::<Result<Vec<_>>>()?;
        let (flushing, active): (Vec<_>, Vec<_>) =
            logs.into_iter().partition(|(header, _)| header.flushing);
        // The active log has the newer entries.
        for log in flushing.iter().chain(&active) {
            dedup::read_log(self.mos(), log, usize::MAX, &mut held)?;
        }
        Ok(held)
    }

    /// Totals of the stored statistics: blocks, and blocks times references.
    ///
    /// # Errors
    /// Those of reading the MOS; `Corrupt`.
    pub fn dedup_statistics(&self) -> Result<StatBucket> {
        let mut sum = StatBucket::default();
        let Some(object) = self.mos().lookup(STATISTICS_KEY)? else { return Ok(sum) };
        for entry in self.mos().zap_entries(object)? {
            let words = entry
                .value
                .u64s()
                .ok_or_else(|| Error::corrupt("dedup statistics are not numbers"))?;
            parse_statistics(&words)?.iter().for_each(|bucket| sum.add(bucket));
        }
        Ok(sum)
    }
}
