//! Counted references: dedup tables and block reference tables (chapter 08 §B.3, §C.2).
//!
//! Both tables are read before the walk; during the walk only atomic counters change. After
//! it, each entry is compared with the pointers that were found, each block reference table's
//! header and counters with its entries, and the statistics of dedup tables with their stored
//! entries.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::{Dva, Result, VdevId};
use codec::checksum::Checksum;
use dsl::write::{MosRead, features};
use ondisk::blkptr::Block;
use ondisk::ddt::{Class, Key, STATISTICS_KEY, StatBucket, contribution, zap_key};

use crate::block_refs::{self, BLOCK_CLONING, RefTable};
use crate::dedup::{self, TableObjects};
use crate::import::Spa;

/// How a visit of a block relates to the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RefVisit {
    /// In no table: it must be the only visit.
    Only,
    /// The first visit of a block with a dedup entry, which has these addresses.
    FirstDedup(Vec<Dva>),
    /// The first visit of a cloned block.
    FirstClone,
    /// One more reference, counted by a dedup entry.
    AgainDedup,
    /// One more reference, counted by a block reference table.
    AgainClone,
    /// More references than the table counts.
    TooMany,
}

/// What identifies the block of a dedup entry: checksum function, key, first address, physical
/// birth.
type DedupBlock = (u8, Key, u32, u64, u64);

struct Dedup {
    addresses: Vec<Dva>,
    count: u64,
    seen: AtomicU64,
}

struct Cloned {
    extra: u64,
    seen: AtomicU64,
    /// Its deflated bytes, once a pointer was found.
    bytes: AtomicU64,
}

/// A table's count that the walk did not confirm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// It is in a dedup table; otherwise in a block reference table.
    pub dedup: bool,
    /// Vdev of the first address.
    pub vdev: VdevId,
    /// Its offset.
    pub offset: u64,
    /// References that the table counts, the first included.
    pub counted: u64,
    /// References found.
    pub found: u64,
}

/// A dedup table that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedupFault {
    /// The table, or its ZAP.
    pub table: String,
    /// The stored number that is wrong.
    pub what: &'static str,
    /// Its value.
    pub stored: u64,
    /// The value that it should have.
    pub found: u64,
}

/// A block reference table that contradicts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFault {
    /// Its vdev; `None` for the number of tables.
    pub vdev: Option<VdevId>,
    /// The stored number that is wrong.
    pub what: &'static str,
    /// Its value.
    pub stored: u64,
    /// The value that it should have.
    pub found: u64,
}

/// All references counted by tables.
#[derive(Default)]
pub struct References {
    dedup: HashMap<DedupBlock, Dedup>,
    /// Dedup tables that contradict themselves.
    faults: Vec<DedupFault>,
    clones: HashMap<(u32, u64), Cloned>,
    /// Addresses of dedup entries without references that were not yet freed.
    pub dead: Vec<Dva>,
    tables: BTreeMap<VdevId, RefTable>,
    /// The stored number of block reference tables.
    counted_tables: u64,
}

impl References {
    /// Reads the tables.
    ///
    /// # Errors
    /// Those of reading them; `Corrupt`.
    pub fn load(spa: &Spa) -> Result<References> {
        let mut out = References::default();
        for ((checksum, key), entry) in spa.dedup_entries()? {
            for phys in entry.phys() {
                let addresses: Vec<Dva> = phys.addresses(key.is_encrypted()).collect();
                let Some(first) = addresses.first() else {
                    if phys.refcnt > 0 {
                        out.faults.push(DedupFault {
                            table: dedup_name(checksum),
                            what: "references to no address",
                            stored: phys.refcnt,
                            found: 0,
                        });
                    }
                    continue;
                };
                let block = (checksum, key, first.vdev.0, first.offset, phys.birth.0);
                if phys.refcnt == 0 {
                    out.dead.extend(addresses);
                    continue;
                }
                let entry = Dedup { addresses, count: phys.refcnt, seen: AtomicU64::new(0) };
                out.dedup.insert(block, entry);
            }
        }
        out.faults.extend(dedup_faults(spa)?);
        for (vdev, table) in spa.clone_tables()? {
            for (offset, extra) in spa.clone_counts(&table)? {
                let (seen, bytes) = Default::default();
                out.clones.insert((vdev.0, offset), Cloned { extra, seen, bytes });
            }
        }
        out.tables = block_refs::read(spa.mos())?;
        let mos: &dyn MosRead = spa.mos();
        // Pools older than version 5000 have no features.
        if mos.directory("features_for_write")?.is_some() {
            out.counted_tables = features::count(mos, BLOCK_CLONING)?.unwrap_or(0);
        }
        Ok(out)
    }

    /// Counts one more pointer to `block`.
    pub(crate) fn count_visit(&self, block: &Block) -> RefVisit {
        let first = block.dva();
        if block.dedup {
            let birth = block.effective_physical_birth().0;
            let of = (block.checksum, Key::of(block), first.vdev.0, first.offset, birth);
            if let Some(entry) = self.dedup.get(&of) {
                return match entry.seen.fetch_add(1, Relaxed) {
                    0 => RefVisit::FirstDedup(entry.addresses.clone()),
                    n if n < entry.count => RefVisit::AgainDedup,
                    _ => RefVisit::TooMany,
                };
            }
        }
        match self.clones.get(&(first.vdev.0, first.offset)) {
            None => RefVisit::Only,
            Some(entry) => match entry.seen.fetch_add(1, Relaxed) {
                0 => RefVisit::FirstClone,
                n if n <= entry.extra => RefVisit::AgainClone,
                _ => RefVisit::TooMany,
            },
        }
    }

    /// Notes the deflated bytes of a cloned block.
    pub(crate) fn note_bytes(&self, block: &Block, bytes: u64) {
        if let Some(entry) = self.clones.get(&(block.dva().vdev.0, block.dva().offset)) {
            entry.bytes.store(bytes, Relaxed);
        }
    }

    /// Headers and counters of block reference tables that differ from their entries, after a
    /// complete walk.
    pub(crate) fn table_faults(&self) -> Vec<TableFault> {
        let mut out = Vec::new();
        let tables = self.tables.len() as u64;
        if self.counted_tables != tables {
            let (stored, what) = (self.counted_tables, "number of tables");
            out.push(TableFault { vdev: None, what, stored, found: tables });
        }
        for (&vdev, table) in &self.tables {
            let mut counters = vec![0u64; table.counters.len()];
            let (mut entries, mut used, mut saved, mut outside) = (0u64, 0u64, 0u64, 0u64);
            for (&(_, offset), cloned) in self.clones.iter().filter(|((v, _), _)| *v == vdev.0) {
                let bytes = cloned.bytes.load(Relaxed);
                entries += 1;
                used = used.saturating_add(bytes);
                saved = saved.saturating_add(bytes.saturating_mul(cloned.extra));
                match table.range_of(offset).and_then(|range| counters.get_mut(range)) {
                    Some(counter) => *counter += 1,
                    None => outside += 1,
                }
            }
            let wrong = counters
                .iter()
                .zip(&table.counters)
                .filter(|(n, stored)| **n != u64::from(**stored));
            let header = &table.header;
            let facts = [
                ("entries", header.total_count, entries),
                ("bytes of cloned blocks", header.used_space, used),
                ("bytes saved", header.saved_space, saved),
                ("wrong counters", wrong.count() as u64, 0),
                ("entries beyond the counters", outside, 0),
            ];
            let vdev = Some(vdev);
            let facts = facts.into_iter().filter(|(_, stored, found)| stored != found);
            out.extend(facts.map(|(what, stored, found)| TableFault { vdev, what, stored, found }));
        }
        out
    }

    /// Counts that the walk did not confirm.
    pub(crate) fn mismatches(&self) -> Vec<Mismatch> {
        let dedup = self.dedup.iter().map(|(&(_, _, vdev, offset, _), e)| Mismatch {
            dedup: true,
            vdev: VdevId(vdev),
            offset,
            counted: e.count,
            found: e.seen.load(Relaxed),
        });
        let clones = self.clones.iter().map(|(&(vdev, offset), e)| Mismatch {
            dedup: false,
            vdev: VdevId(vdev),
            offset,
            counted: e.extra.saturating_add(1),
            found: e.seen.load(Relaxed),
        });
        let mut out: Vec<_> = dedup.chain(clones).filter(|m| m.counted != m.found).collect();
        out.sort_unstable_by_key(|m| (m.vdev, m.offset));
        out
    }

    /// Dedup tables that contradict themselves.
    pub(crate) fn dedup_faults(&self) -> &[DedupFault] {
        &self.faults
    }
}

fn dedup_name(checksum: u8) -> String {
    let name = Checksum::from_id(checksum).map_or("of an unknown function", Checksum::name);
    format!("DDT-{name}")
}

/// Compares the statistics of each ZAP with its entries, and the count of fast tables with
/// them.
fn dedup_faults(spa: &Spa) -> Result<Vec<DedupFault>> {
    let mos: &dyn MosRead = spa.mos();
    let mut out = Vec::new();
    let tables = dedup::find(spa.mos())?;
    let fast = tables.iter().filter(|table| table.directory.is_some()).count() as u64;
    let counted = dedup::counted(mos)?;
    if counted != fast {
        let table = "fast dedup".to_owned();
        out.push(DedupFault { table, what: "number of tables", stored: counted, found: fast });
    }
    let statistics = mos.directory(STATISTICS_KEY)?;
    for table in &tables {
        for (zap, class) in table.zaps.iter().zip(Class::ALL) {
            let stored = dedup::statistics(mos, statistics, table.checksum, class)?;
            let found = match zap {
                Some(zap) => sums(spa, table, *zap)?,
                None => dedup::empty_statistics(),
            };
            let name = || zap_key(table.checksum, class);
            let values = |of: &StatBucket| of.blocks.into_iter().chain(of.referenced);
            let pairs = stored.iter().flat_map(values).zip(found.iter().flat_map(values));
            if let Some((stored, found)) = pairs.into_iter().find(|(a, b)| a != b) {
                out.push(DedupFault { table: name(), what: "statistics", stored, found });
            }
        }
    }
    Ok(out)
}

/// The statistics that the entries of a ZAP should have.
fn sums(spa: &Spa, table: &TableObjects, zap: u64) -> Result<Box<dedup::DedupHistogram>> {
    let tree = spa.zio().tree();
    let ratio = |vdev| match spa.deflate() {
        true => tree.deflate_ratio(vdev).unwrap_or(512),
        false => 512,
    };
    let deflated = |block: &Block| {
        let one = |dva: Dva| (dva.asize.0 >> 9).saturating_mul(ratio(dva.vdev));
        block.dvas().map(one).fold(0, u64::saturating_add)
    };
    let mut out = dedup::empty_statistics();
    spa.mos().zap(zap)?.for_each(|entry| {
        let value = dedup::decode(&entry.value, table.directory.is_some())?;
        let key = dedup::key_of(&entry.name)?;
        if let Some((bucket, part)) = contribution(table.checksum, key, &value, &deflated)
            && let Some(bucket) = out.get_mut(bucket)
        {
            bucket.add(&part);
        }
        Ok(())
    })?;
    Ok(out)
}
