//! Counted references: dedup tables and block reference tables (chapter 08 §B.3, §C.2).
//!
//! Both tables are read before the walk; during the walk only atomic counters change.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::{Dva, Result, VdevId};
use ondisk::blkptr::Block;

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

/// All references counted by tables.
#[derive(Default)]
pub struct References {
    dedup: HashMap<(u32, u64, u64), Dedup>,
    clones: HashMap<(u32, u64), Cloned>,
    /// Addresses of dedup entries without references that were not yet freed.
    pub dead: Vec<Dva>,
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
                out.clones.insert((vdev.0, offset), Cloned { extra, seen: AtomicU64::new(0) });
            }
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
