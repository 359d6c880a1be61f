//! Dirty buffers: what was written and is not yet on a device.
//!
//! # Theory
//! Clean blocks live in the cache; dirty ones live here (decision 5). A dbuf holds
//! one record for each of the four transaction-group slots. A write goes to the
//! record of its group: made from the newest older one, or from the block on disk, if
//! there is none yet. While a group syncs, its records are frozen: a newer write to
//! the same block copies. A read sees the newest record, whatever its group's state.
//! When a group's record has been written, it goes; with the last one the dbuf goes,
//! and the cache has the block under its new address.
//!
//! # Invariants
//! * A slot holds a record of one group only; the group four later may begin only
//!   when it is gone.
//! * A frozen record never changes, whoever still writes.
//! * The memory of all records is reserved with the cache: both together stay within
//!   its target.
//!
//! # Departures from OpenZFS
//! A dbuf without dirty records does not exist: the hints of `zio` lead to clean
//! blocks. So there is no dbuf cache to starve or to pin what the ARC would evict.
//!
//! Lock order: a stripe's lock is held over the edit of its buffer, and over the
//! reading of a base only by the closure that the caller gave; the cache is told
//! after it was given back.

use std::collections::BTreeMap;
use std::collections::hash_map::{Entry, HashMap};

use base::rt::Mutex;
use base::{Buf, BufMut, Error, ObjectId, Result, Txg};

/// Groups that may have dirty data at a time: open, quiescing, syncing, and one to
/// spare (chapter 05).
pub const TXG_SLOTS: usize = 4;
const STRIPES: usize = 32;

/// A block of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DbufId {
    /// Its object.
    pub object: ObjectId,
    /// 0 for data.
    pub level: u8,
    /// Its number at that level.
    pub blkid: u64,
}

/// What a group makes of a block.
enum Content {
    Open(BufMut),
    Frozen(Buf),
    /// The group freed it.
    Hole,
}

struct Record {
    txg: Txg,
    content: Content,
}

#[derive(Default)]
struct Dbuf {
    slots: [Option<Record>; TXG_SLOTS],
}

/// What the newest group made of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dirty {
    /// These bytes.
    Data(Buf),
    /// Nothing: it reads as zeros.
    Hole,
}

/// The dirty buffers of an object set.
#[derive(Default)]
pub struct Dbufs {
    stripes: [Mutex<HashMap<DbufId, Dbuf>>; STRIPES],
    /// Which blocks each group dirtied.
    groups: Mutex<BTreeMap<Txg, Vec<DbufId>>>,
}

fn slot_of(txg: Txg) -> usize {
    txg.0 as usize % TXG_SLOTS
}

impl Record {
    /// The content to read now; an open one is copied, for it may change.
    fn read(&self) -> Dirty {
        match &self.content {
            Content::Open(buf) => Dirty::Data(Buf::copy_of(buf)),
            Content::Frozen(buf) => Dirty::Data(buf.clone()),
            Content::Hole => Dirty::Hole,
        }
    }

    fn footprint(&self) -> u64 {
        match &self.content {
            Content::Open(buf) => buf.footprint() as u64,
            Content::Frozen(buf) => buf.footprint() as u64,
            Content::Hole => 0,
        }
    }
}

impl Dbuf {
    /// The newest record of a group up to `txg`.
    fn newest(&self, txg: Txg) -> Option<&Record> {
        self.slots.iter().flatten().filter(|r| r.txg <= txg).max_by_key(|r| r.txg)
    }

    /// The record of `txg`, if there is one.
    fn own(&mut self, txg: Txg) -> Result<&mut Option<Record>> {
        let slot = &mut self.slots[slot_of(txg)];
        match slot {
            Some(r) if r.txg != txg => Err(Error::bug("a group begins before its slot is free")),
            _ => Ok(slot),
        }
    }
}

impl Dbufs {
    fn stripe(&self, id: DbufId) -> &Mutex<HashMap<DbufId, Dbuf>> {
        let mix = (id.object.0 ^ id.blkid.rotate_left(17) ^ u64::from(id.level) << 59)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.stripes[(mix >> 59) as usize]
    }

    /// What the newest group made of a block; `None` if no group did anything.
    pub fn read(&self, id: DbufId) -> Option<Dirty> {
        let stripe = self.stripe(id).lock();
        stripe.get(&id)?.newest(Txg(u64::MAX)).map(Record::read)
    }

    /// Changes `size` bytes of a block in group `txg`. `base` gives what is on disk, and
    /// is asked only if no group has touched the block; `None` from it means that all
    /// of the block is overwritten. Returns the bytes of memory that this took, to be
    /// reserved with the cache.
    ///
    /// # Errors
    /// Those of `base`; `Invalid` if the group's record is frozen already.
    pub fn write(
        &self,
        txg: Txg,
        id: DbufId,
        size: usize,
        base: impl FnOnce() -> Result<Option<Buf>>,
        edit: impl FnOnce(&mut [u8]),
    ) -> Result<u64> {
        let mut stripe = self.stripe(id).lock();
        if !stripe.get(&id).is_some_and(|d| d.newest(txg).is_some()) {
            drop(stripe);
            // Reading may wait: nothing is held meanwhile.
            let mut fresh = BufMut::zeroed(size);
            if let Some(old) = base()? {
                let n = old.len().min(size);
                fresh[..n].copy_from_slice(&old[..n]);
            }
            stripe = self.stripe(id).lock();
            // Somebody else may have begun the record meanwhile: then theirs counts.
            if !stripe.get(&id).is_some_and(|d| d.newest(txg).is_some()) {
                edit(&mut fresh);
                return self.begin(&mut stripe, txg, id, Content::Open(fresh));
            }
        }
        let Some(dbuf) = stripe.get_mut(&id) else { return Err(Error::bug("a dbuf vanished")) };
        match dbuf.own(txg)? {
            Some(Record { content: Content::Open(buf), .. }) => {
                edit(buf);
                return Ok(0);
            }
            Some(Record { content: Content::Frozen(_), .. }) => {
                return Err(Error::invalid("the group is being written already"));
            }
            _ => {}
        }
        let mut copy = BufMut::zeroed(size);
        if let Some(Dirty::Data(old)) = dbuf.newest(txg).map(Record::read) {
            let n = old.len().min(size);
            copy[..n].copy_from_slice(&old[..n]);
        }
        edit(&mut copy);
        self.begin(&mut stripe, txg, id, Content::Open(copy))
    }

    /// Frees a block in group `txg`: it reads as zeros. Returns the bytes of memory
    /// that this gave back.
    ///
    /// # Errors
    /// `Invalid` if the group's record is frozen already.
    pub fn free(&self, txg: Txg, id: DbufId) -> Result<u64> {
        let mut stripe = self.stripe(id).lock();
        if let Some(dbuf) = stripe.get_mut(&id)
            && let Some(record) = dbuf.own(txg)?
        {
            if matches!(record.content, Content::Frozen(_)) {
                return Err(Error::invalid("the group is being written already"));
            }
            let gone = record.footprint();
            record.content = Content::Hole;
            return Ok(gone);
        }
        self.begin(&mut stripe, txg, id, Content::Hole)?;
        Ok(0)
    }

    fn begin(
        &self,
        stripe: &mut HashMap<DbufId, Dbuf>,
        txg: Txg,
        id: DbufId,
        content: Content,
    ) -> Result<u64> {
        let record = Record { txg, content };
        let took = record.footprint();
        *stripe.entry(id).or_default().own(txg)? = Some(record);
        self.groups.lock().entry(txg).or_default().push(id);
        Ok(took)
    }

    /// Freezes group `txg`: what it dirtied, in the order of the objects' blocks.
    pub fn freeze(&self, txg: Txg) -> Vec<(DbufId, Dirty)> {
        let mut ids = self.groups.lock().get(&txg).cloned().unwrap_or_default();
        ids.sort_unstable();
        ids.dedup();
        let frozen = ids.into_iter().filter_map(|id| {
            let mut stripe = self.stripe(id).lock();
            let record = stripe.get_mut(&id)?.slots[slot_of(txg)].as_mut()?;
            let content = std::mem::replace(&mut record.content, Content::Hole);
            record.content = match content {
                Content::Open(buf) => Content::Frozen(buf.freeze()),
                other => other,
            };
            (record.txg == txg).then(|| (id, record.read()))
        });
        frozen.collect()
    }

    /// Group `txg` is on disk: its records go. Returns the bytes of memory given back.
    pub fn synced(&self, txg: Txg) -> u64 {
        let ids = self.groups.lock().remove(&txg).unwrap_or_default();
        let mut gone = 0;
        for id in ids {
            let mut stripe = self.stripe(id).lock();
            let Entry::Occupied(mut entry) = stripe.entry(id) else { continue };
            let slot = &mut entry.get_mut().slots[slot_of(txg)];
            if slot.as_ref().is_some_and(|r| r.txg == txg) {
                gone += slot.take().map_or(0, |r| r.footprint());
            }
            if entry.get().slots.iter().all(Option::is_none) {
                entry.remove();
            }
        }
        gone
    }

    /// Whether anything is dirty.
    pub fn is_clean(&self) -> bool {
        self.groups.lock().is_empty()
    }
}

#[cfg(test)]
mod tests;
