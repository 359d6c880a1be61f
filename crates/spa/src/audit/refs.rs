//! Counted references: dedup tables and block reference tables (chapter 08 §B.3, §C.2).
//!
//! Both tables are read before the walk; during the walk only atomic counters change. After
//! it, each entry is compared with the pointers that were found, and each block reference
//! table's header and counters with its entries.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::{Dva, Result, VdevId};
use dsl::write::{MosRead, features};
use ondisk::blkptr::Block;

use crate::block_refs::{self, BLOCK_CLONING, RefTable};

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
    dedup: HashMap<(u32, u64, u64), Dedup>,
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
        for (key, entry) in spa.dedup_entries()? {
            let [a, b, c, d, prop] = key;
            let key = ondisk::ddt::Key::from_words([a, b, c, d, prop]);
            for phys in entry.phys() {
                let addresses: Vec<Dva> = phys.addresses(key.is_encrypted()).collect();
                let Some(first) = addresses.first() else { continue };
                let place = (first.vdev.0, first.offset, phys.birth.0);
                if phys.refcnt == 0 {
                    out.dead.extend(addresses);
                    continue;
                }
                let entry = Dedup { addresses, count: phys.refcnt, seen: AtomicU64::new(0) };
                out.dedup.insert(place, entry);
            }
        }
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
            let place = (first.vdev.0, first.offset, block.effective_physical_birth().0);
            if let Some(entry) = self.dedup.get(&place) {
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
        let dedup = self.dedup.iter().map(|(&(vdev, offset, _), e)| Mismatch {
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
}
