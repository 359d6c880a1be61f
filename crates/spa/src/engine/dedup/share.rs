//! Writes of deduplicated blocks: the pool's tables as [`zio::DedupTables`].
//!
//! # Theory
//! `zio::dedup` has the protocol. A look-up takes the newest state of the entry, as a free does
//! (parent module). Only look-ups of [`DedupTables::find`] run beside each other; no entry
//! changes while one reads a ZAP and then changes the entry, because calls that change
//! entries follow each other, and the sync thread counts dead pointers between the waves.
//!
//! A legacy entry has a physical block for each number of copies. A flat one has one: a block
//! that wants more copies than it has is written as an ordinary one.
//!
//! An entry without references that is not flushed yet still has its space, so it may be
//! shared again.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use base::{Buf, Dva, Error, Result};
use codec::checksum::Checksum;
use ondisk::blkptr::Block;
use ondisk::ddt::{CHECKSUMS, Entry, Flat, Key, Legacy, Phys};
use zio::{DedupMatch, DedupTables};

use super::super::Writer;
use super::table::{LiveTable, find_stored, note_class};
use crate::dedup::Held;

/// [`DedupTables`] of a pool open for writing.
pub(in super::super) struct WriterDedup(pub(in super::super) Weak<Writer>);

/// Addresses of a physical block.
fn addresses(key: Key, phys: &Phys) -> usize {
    phys.addresses(key.is_encrypted()).count()
}

/// The physical block that a writer of so many copies shares; `None` if the entry can have none.
fn of_copies(entry: &mut Entry, copies: u8) -> Option<&mut Phys> {
    match entry {
        Entry::Legacy(legacy) => legacy.phys.get_mut(usize::from(copies)),
        Entry::Flat(flat) => Some(&mut flat.phys),
    }
}

impl WriterDedup {
    fn writer(&self) -> Result<Arc<Writer>> {
        self.0.upgrade().ok_or_else(|| Error::bug("a block of a closed pool is written"))
    }
}

impl DedupTables for WriterDedup {
    fn find(&self, block: &Block, copies: u8) -> Result<DedupMatch> {
        self.writer()?.find_equal(block, copies)
    }

    fn share(&self, block: &Block, copies: u8) -> Result<()> {
        let writer = self.writer()?;
        if writer.dedup.plants.lost_increment.take(Relaxed) {
            return Ok(());
        }
        writer.change_entry(block, copies, |phys| {
            let many = || Error::corrupt("a dedup entry counts too many references");
            phys.refcnt = phys.refcnt.checked_add(1).ok_or_else(many)?;
            Ok(())
        })
    }

    fn insert(&self, block: &Block, copies: u8, stored: Option<Buf>) -> Result<()> {
        let writer = self.writer()?;
        if let Some(stored) = stored {
            writer.dedup.placed.lock().insert((block.checksum, Key::of(block)), stored);
        }
        let dvas: Vec<Dva> = block.dvas().collect();
        writer.change_entry(block, copies, |phys| {
            *phys = Phys::new(&dvas, block.effective_physical_birth());
            Ok(())
        })
    }
}

impl Writer {
    /// The newest state of an entry.
    fn entry_of(&self, checksum: u8, key: &Key) -> Result<Option<Held>> {
        let (zaps, fast) = {
            let tables = self.dedup.tables.lock();
            let Some(table) = tables.get(&checksum) else { return Ok(None) };
            if let Some(held) = table.held(key) {
                return Ok(Some(held.clone()));
            }
            if !table.may_store(key) {
                return Ok(None);
            }
            (table.zaps(), table.is_fast())
        };
        let found = find_stored(&self.mos.for_sync(), &zaps, fast, key)?;
        if found.is_none() {
            self.dedup.fruitless[0].fetch_add(1, Relaxed);
        }
        Ok(found)
    }

    fn find_equal(&self, block: &Block, copies: u8) -> Result<DedupMatch> {
        let checksum = Checksum::from_id(block.checksum).filter(|c| CHECKSUMS.contains(c));
        let Some(checksum) = checksum else { return Ok(DedupMatch::Refused) };
        let key = Key::of(block);
        let Some(mut held) = self.entry_of(block.checksum, &key)? else {
            return Ok(match self.dedup.is_over_quota() {
                true => DedupMatch::Refused,
                false => DedupMatch::Absent,
            });
        };
        let flat = matches!(held.entry, Entry::Flat(_));
        let Some(phys) = of_copies(&mut held.entry, copies) else {
            return Ok(DedupMatch::Refused);
        };
        let Some(there) = key.block(checksum, phys) else {
            return Ok(if flat { DedupMatch::Refused } else { DedupMatch::Absent });
        };
        if addresses(key, phys) < usize::from(copies) {
            return Ok(DedupMatch::Refused);
        }
        let stored = self.dedup.placed.lock().get(&(block.checksum, key)).cloned();
        Ok(DedupMatch::Found { block: there, stored })
    }

    /// Changes the physical block for `copies`, in an entry that is made if there is none.
    fn change_entry(
        &self,
        block: &Block,
        copies: u8,
        change: impl FnOnce(&mut Phys) -> Result<()>,
    ) -> Result<()> {
        let key = Key::of(block);
        let held = self.entry_of(block.checksum, &key)?;
        let mut tables = self.dedup.tables.lock();
        let checksum = Checksum::from_id(block.checksum);
        let checksum = checksum.ok_or_else(|| base::bug!("a block without a checksum"))?;
        let fast = self.dedup.fast.load(Relaxed);
        let table = tables
            .entry(block.checksum)
            .or_insert_with(|| LiveTable::new(checksum, fast, self.dedup_filter_budget()));
        let new = || match table.is_fast() {
            true => Entry::Flat(Flat::default()),
            false => Entry::Legacy(Box::<Legacy>::default()),
        };
        let mut held = held.unwrap_or_else(|| Held { entry: new(), stored: None });
        let old = held.entry.clone();
        let before = old.total_refcnt();
        let phys = of_copies(&mut held.entry, copies);
        change(phys.ok_or_else(|| base::bug!("a block with too many copies"))?)?;
        note_class(&mut held.entry, before, base::rt::wall_clock().as_secs());
        let is_new = held.stored.is_none() && table.held(&key).is_none();
        let tree = self.zio.tree();
        table.put(key, &old, held, &|block| self.deflated_block(&tree, block));
        if is_new {
            self.dedup.publish_size(&tables);
        }
        let bit = 1u32.checked_shl(u32::from(block.checksum)).unwrap_or(0);
        self.dedup.with_table.fetch_or(bit, Relaxed);
        Ok(())
    }
}
