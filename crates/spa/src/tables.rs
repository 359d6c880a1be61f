//! The pool's reference tables: dedup (chapter 08 §B) and block cloning (§C).

use std::collections::BTreeMap;

use base::{Error, Result, VdevId};
use dmu::{Io, Zap};
use ondisk::brt::BrtVdev;
use ondisk::ddt::{
    CHECKSUMS, Class, Entry, Key, LogHeader, LogRecords, STATISTICS_KEY, StatBucket, directory_key,
    log_key, parse_statistics, zap_key,
};

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

    /// Every dedup table: its name and the form of its entries.
    fn dedup_zaps(&self) -> Result<Vec<DedupZap>> {
        let directory = self.mos().directory()?;
        let mut out = Vec::new();
        for checksum in CHECKSUMS {
            let fdt = directory.lookup_u64(&directory_key(checksum))?;
            let own = fdt.map(|object| self.mos().zap(object)).transpose()?;
            let flat = own.is_some();
            let from: &Zap = own.as_ref().unwrap_or(&directory);
            for class in Class::ALL {
                let name = zap_key(checksum, class);
                if let Some(object) = from.lookup_u64(&name)? {
                    out.push(DedupZap { object, flat, log: false });
                }
            }
            for log in [0, 1].into_iter().filter(|_| flat) {
                let name = log_key(checksum, log);
                if let Some(object) = from.lookup_u64(&name)? {
                    out.push(DedupZap { object, flat, log: true });
                }
            }
        }
        Ok(out)
    }

    /// Bytes that the dedup tables take on disk.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn dedup_table_size(&self) -> Result<u64> {
        let tables = self.dedup_zaps()?;
        tables.iter().filter(|t| !t.log).try_fold(0u64, |sum, t| {
            Ok(sum.saturating_add(self.mos().object(t.object)?.dnode().used))
        })
    }

    /// Every dedup entry, those in the logs last: they override earlier ones.
    ///
    /// # Errors
    /// Those of reading the tables; `Corrupt`.
    pub fn dedup_entries(&self) -> Result<BTreeMap<[u64; 5], Entry>> {
        let mut out = BTreeMap::new();
        let tables = self.dedup_zaps()?;
        for table in tables.iter().filter(|t| !t.log) {
            for entry in self.mos().zap_entries(table.object)? {
                let words: Vec<u64> =
                    entry.name.as_chunks().0.iter().map(|w| u64::from_be_bytes(*w)).collect();
                let key = words.first_chunk().copied();
                let (Some(key), Some(value)) = (key, entry.value.as_bytes()) else {
                    return Err(Error::corrupt("dedup entry of an odd shape"));
                };
                out.insert(key, Entry::decode(value, table.flat)?);
            }
        }
        let mut logs = Vec::new();
        for table in tables.iter().filter(|t| t.log) {
            let object = self.mos().object(table.object)?;
            let header = LogHeader::parse(&object.dnode().bonus, object.dnode().endian)?;
            logs.push((header, object));
        }
        // The active log has the newer entries.
        logs.sort_by_key(|(header, _)| !header.flushing);
        for (header, object) in logs {
            let capacity = (object.dnode().max_blkid + 1).saturating_mul(object.block_size());
            if header.length > capacity {
                return Err(Error::corrupt("dedup log is longer than its object"));
            }
            for blkid in 0..header.length.div_ceil(object.block_size()) {
                let (block, endian) = object.read_written(blkid, Io::WAIT)?;
                for record in LogRecords::new(&block, endian) {
                    let record = record?;
                    if !header.is_flushed(&record.key) {
                        out.insert(Key::to_words(record.key), Entry::Flat(record.entry));
                    }
                }
            }
        }
        Ok(out)
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
            for bucket in parse_statistics(&words)? {
                for i in 0..4 {
                    sum.blocks[i] = sum.blocks[i].saturating_add(bucket.blocks[i]);
                    sum.referenced[i] = sum.referenced[i].saturating_add(bucket.referenced[i]);
                }
            }
        }
        Ok(sum)
    }
}

struct DedupZap {
    object: u64,
    flat: bool,
    log: bool,
}
