//! Reports on dedup tables (chapter 08 §B, chapter 09 §4.3 and §8.3), and their prefetch.
//!
//! # Theory
//! What a report says is that of the ZAPs and their statistics. Entries that are only in a log of
//! a fast table count with the log.
//!
//! # Hostile tables
//! Holes of a ZAP's object are skipped, and no more than [`BLOCKS_MAX`] of its blocks are visited.

use std::collections::BTreeMap;

use base::{Dva, Result};
use codec::checksum::Checksum;
use dmu::{Access, Io};
use dsl::write::MosRead;
use ondisk::BlkPtr;
use ondisk::blkptr::Block;
use ondisk::ddt::{Class, Entry, Key, LogHeader, STATISTICS_KEY, StatBucket, contribution};
use ondisk::zap::{COOKIE_END, Cursor};

use crate::dedup::{self, DedupHistogram, TableObjects, decode, in_table, key_of};
use crate::import::Spa;

/// Blocks that are requested ahead of the one that is waited for.
const AHEAD: u64 = 256;
/// Blocks of one ZAP that are visited: 512 GiB.
const BLOCKS_MAX: u64 = 1 << 24;

/// The entries of one class of a table.
#[derive(Clone, Debug)]
pub struct DedupClass {
    /// The class.
    pub class: Class,
    /// The ZAP.
    pub object: u64,
    /// Entries.
    pub entries: u64,
    /// Bytes that the ZAP takes on disk.
    pub on_disk: u64,
    /// Bytes of its blocks in memory.
    pub in_core: u64,
    /// Buckets by log2 of the references.
    pub histogram: Box<DedupHistogram>,
}

/// A log of a fast table.
#[derive(Clone, Debug)]
pub struct DedupLog {
    /// 0 or 1.
    pub number: u8,
    /// Its object.
    pub object: u64,
    /// Its header.
    pub header: LogHeader,
    /// Entries that are not flushed, by key, and the class of the ZAP that has an older state.
    pub entries: Vec<(Key, Entry, Option<Class>)>,
}

/// A table.
#[derive(Clone, Debug)]
pub struct DedupTable {
    /// Its checksum function.
    pub checksum: Checksum,
    /// The directory of a fast table.
    pub directory: Option<u64>,
    /// The version of a fast table; 0 for a legacy one.
    pub version: u64,
    /// The flags of a fast table: 1 flat entries, 2 logs.
    pub flags: u64,
    /// Its classes.
    pub classes: Vec<DedupClass>,
    /// Its logs.
    pub logs: Vec<DedupLog>,
}

impl Spa {
    /// The dedup tables.
    ///
    /// # Errors
    /// Those of reading the MOS; `Corrupt`.
    pub fn dedup_tables(&self) -> Result<Vec<DedupTable>> {
        let mos: &dyn MosRead = self.mos();
        let statistics = mos.directory(STATISTICS_KEY)?;
        let table = |objects: &TableObjects| {
            let TableObjects { checksum, directory, .. } = *objects;
            let number = |name: &str| match directory {
                Some(directory) => Ok(mos.number(directory, name)?.unwrap_or(0)),
                None => Ok(0),
            };
            let (version, flags) = (number("version")?, number("flags")?);
            let classes = self.dedup_classes(objects, statistics)?;
            let logs = self.dedup_log_reports(objects)?;
            Ok(DedupTable { checksum, directory, version, flags, classes, logs })
        };
        dedup::find(self.mos())?.iter().map(table).collect()
    }

    fn dedup_classes(
        &self,
        objects: &TableObjects,
        statistics: Option<u64>,
    ) -> Result<Vec<DedupClass>> {
        let mut out = Vec::new();
        for (class, zap) in Class::ALL.into_iter().zip(objects.zaps) {
            let Some(object) = zap else { continue };
            let zap = self.mos().zap(object)?;
            let entries = zap.fat_header()?.map_or(0, |header| header.num_entries);
            let dnode = zap.object().dnode();
            let histogram = dedup::statistics(self.mos(), statistics, objects.checksum, class)?;
            let blocks = dnode.blkptrs.iter().map(BlkPtr::fill).fold(0, u64::saturating_add);
            let in_core = u64::from(dnode.data_block_size).saturating_mul(blocks);
            out.push(DedupClass {
                class,
                object,
                entries,
                on_disk: dnode.used,
                in_core,
                histogram,
            });
        }
        Ok(out)
    }

    fn dedup_log_reports(&self, objects: &TableObjects) -> Result<Vec<DedupLog>> {
        let mut out = Vec::new();
        for (object, number) in objects.logs.into_iter().zip(0..) {
            let Some(object) = object else { continue };
            let log = dedup::open_log(self.mos(), object)?;
            let mut held = dedup::HeldEntries::new();
            dedup::read_log(self.mos(), &log, dedup::LOG_ENTRIES_MAX, &mut held)
                .map_err(|e| in_table(e, object))?;
            let entries = held.into_iter().map(|(key, held)| (key, held.entry, held.stored));
            let entries = entries.collect();
            out.push(DedupLog { number, object, header: log.0, entries });
        }
        Ok(out)
    }

    /// Calls `f` with the entries of a class, in the order of its ZAP, and the cookies behind them.
    ///
    /// # Errors
    /// Those of reading it; `Corrupt`; those of `f`.
    pub fn for_each_dedup_entry(
        &self,
        table: &DedupTable,
        class: &DedupClass,
        mut f: impl FnMut(u64, Key, Entry) -> Result<()>,
    ) -> Result<()> {
        let fast = table.directory.is_some();
        let zap = self.mos().zap(class.object)?;
        let bits = zap.hash_bits()?;
        zap.for_each(|entry| {
            let value = decode(&entry.value, fast).map_err(|e| in_table(e, class.object))?;
            let behind = Cursor::after(entry.hash, entry.cd, bits);
            let index = behind.map_or(COOKIE_END, |cursor| cursor.cookie(bits));
            f(index, key_of(&entry.name)?, value)
        })
    }

    /// The bucket and the part of the statistics that an entry makes, as of an audit; `None`
    /// without references.
    pub fn dedup_contribution(
        &self,
        table: &DedupTable,
        key: Key,
        entry: &Entry,
    ) -> Option<(usize, StatBucket)> {
        let tree = self.zio().tree();
        let ratio = |vdev| match self.deflate() {
            true => tree.deflate_ratio(vdev).unwrap_or(512),
            false => 512,
        };
        let deflated = |block: &Block| {
            let one = |dva: Dva| (dva.asize.0 >> 9).saturating_mul(ratio(dva.vdev));
            block.dvas().map(one).fold(0, u64::saturating_add)
        };
        contribution(table.checksum, key, entry, &deflated)
    }

    /// The statistics of a table with those of the entries in its logs.
    pub fn dedup_histogram(&self, table: &DedupTable) -> Box<DedupHistogram> {
        let mut all = dedup::empty_statistics();
        for class in &table.classes {
            all.iter_mut().zip(class.histogram.iter()).for_each(|(to, from)| to.add(from));
        }
        for (key, entry, _) in table.logs.iter().flat_map(|log| &log.entries) {
            if let Some((bucket, part)) = self.dedup_contribution(table, *key, entry)
                && let Some(bucket) = all.get_mut(bucket)
            {
                bucket.add(&part);
            }
        }
        all
    }

    /// Deflated bytes of deduplicated blocks, and bytes that their other references save: those
    /// of the statistics, and what only the logs know.
    ///
    /// # Errors
    /// Those of reading the MOS; `Corrupt`.
    pub fn dedup_tally(&self) -> Result<(u64, u64)> {
        let sums = self.dedup_statistics()?;
        let (mut used, mut all) = (i128::from(sums.blocks[3]), i128::from(sums.referenced[3]));
        for table in self.dedup_tables()? {
            let (active, flushing): (Vec<_>, Vec<_>) =
                table.logs.iter().partition(|log| !log.header.flushing);
            let newest: BTreeMap<Key, _> = flushing
                .iter()
                .chain(&active)
                .flat_map(|log| &log.entries)
                .map(|(key, entry, stored)| (*key, (entry, *stored)))
                .collect();
            for (key, (entry, stored)) in newest {
                let zap = stored.and_then(|of| table.classes.iter().find(|c| c.class == of));
                let before = match zap {
                    None => None,
                    Some(class) => self.mos().zap(class.object)?.lookup_words(&key.to_words())?,
                };
                let before = before.map(|value| decode(&value, true)).transpose()?;
                let part = |entry: &Entry| match self.dedup_contribution(&table, key, entry) {
                    Some((_, part)) => (i128::from(part.blocks[3]), part.referenced[3].into()),
                    None => (0, 0),
                };
                let ((blocks, referenced), old) =
                    (part(entry), before.as_ref().map_or((0, 0), part));
                (used, all) = (used + blocks - old.0, all + referenced - old.1);
            }
        }
        let bytes = |n: i128| u64::try_from(n.max(0)).unwrap_or(u64::MAX);
        Ok((bytes(used), bytes(all - used)))
    }

    /// Bytes of the blocks of the ZAPs that are in the cache.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn dedup_cached(&self) -> Result<u64> {
        let io = Io { access: Access::Prefetch, ..Io::MEMORY };
        let mut bytes = 0u64;
        self.for_each_dedup_zap(|object| {
            // Blocks below one indirect block of the lowest level.
            let span = 1u64 << object.dnode().indirect_shift.saturating_sub(7).min(32);
            let mut at = 0;
            for _ in 0..BLOCKS_MAX {
                match object.next_data_block(at, io) {
                    Ok(Some(blkid)) => {
                        if object.read_part(blkid, 0..0, io).is_ok() {
                            bytes = bytes.saturating_add(object.block_size());
                        }
                        at = blkid + 1;
                    }
                    Ok(None) => break,
                    // The indirect block is not in memory, so its blocks hardly are.
                    Err(_) => at = (at / span + 1).saturating_mul(span),
                }
                if at > object.dnode().max_blkid {
                    break;
                }
            }
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Reads the ZAPs of all tables into the cache.
    ///
    /// # Errors
    /// Those of reading.
    pub fn prefetch_dedup(&self) -> Result<()> {
        let io = Io { access: Access::Prescient, ..self.mos().io() };
        self.for_each_dedup_zap(|object| {
            let size = object.block_size();
            let (mut at, mut requested) = (0, 0);
            for _ in 0..BLOCKS_MAX {
                let Some(blkid) = object.next_data_block(at, io)? else { break };
                if blkid >= requested {
                    object.prefetch(blkid.saturating_mul(size), AHEAD * size, io);
                    requested = blkid.saturating_add(AHEAD);
                }
                object.read_part(blkid, 0..0, io)?;
                at = blkid + 1;
            }
            Ok(())
        })
    }

    fn for_each_dedup_zap(&self, mut f: impl FnMut(dmu::Object) -> Result<()>) -> Result<()> {
        for table in dedup::find(self.mos())? {
            for zap in table.zaps.into_iter().flatten() {
                f(self.mos().object(zap)?).map_err(|e| in_table(e, zap))?;
            }
        }
        Ok(())
    }
}
