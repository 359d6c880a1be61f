//! Early blocks: file blocks that an intent log commit writes before their txg.
//!
//! # Theory
//! A large synchronous write need not be written twice, first into the log and then to its
//! final address. Its block gets its final address, in the txg in which it is dirty, and is
//! written there at once. The log record carries the block pointer. When the txg is written
//! the pointer is put into the tree and the block is not written again: the record's block
//! *is* the file's block. That holds as long as the content is the very buffer that was
//! written. The slot keeps a reference to the buffer, and a change of a shared buffer
//! copies it, so comparing buffers detects changes. If the block was changed, freed or
//! truncated away since, its early pointer is *wasted*: the txg that allocated it frees it.
//! (It cannot be rewritten in place, because a record refers to it.)
//!
//! # States
//! An early block is *placed* (allocated, noted in the slot, in flight), *written*
//! ([`Early::wait`]), and then *kept* or *wasted* when its txg is frozen. One whose write
//! failed, or whose [`Early`] is dropped before [`Early::keep`], is wasted at once.
//!
//! # Invariants
//! * The caller holds the txg from before [`Objset::early`] until [`Early::wait`] has
//!   returned. So the sync of the txg neither misses an allocated address nor relies on
//!   bytes that are in flight.
//! * Each allocated address is in exactly one of: a slot's `early`, a slot's `wasted`, the
//!   result of [`Objset::abandon`]. All three are accounted for in the txg of the
//!   allocation: as the file's block (born), or as a free.
//! * Only blocks that are dirty in that very txg are written early. A block that is dirty
//!   only in an older txg is being written already, and the record carries its bytes
//!   instead.
//!
//! # After a crash
//! If the txg was not committed, its space maps do not have the address. The import claims
//! it for the record before anything is allocated. If the txg was committed, the block
//! belongs to the file or is free, and records of that txg are ignored.
//!
//! # Departures from OpenZFS
//! * A block that is dirty only in a closed txg is not written a second time elsewhere.
//! * Holes and embedded blocks are not early: writing them costs nothing. Gang blocks are
//!   not made.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Buf, Lsize, ObjectId, Result, Txg, VdevId};
use ondisk::blkptr::{Head as BpHead, Hole};
use ondisk::{BlkPtr, ObjType};
use zio::{BlockChange, DedupMode, OutagePolicy, Outcome, Write, WriteProps, Writes};

use super::handle::slot_of;
use super::policy::BlockKind;
use super::waves::hint;
use crate::objset::Objset;

/// Early blocks of one commit, in flight.
pub struct Early {
    os: Arc<Objset>,
    txg: Txg,
    writes: Writes,
    outage: OutagePolicy,
    placed: Vec<(ObjectId, u64, BlkPtr)>,
    vdevs: BTreeSet<VdevId>,
    kept: bool,
}

/// The current content of a block, to be written.
struct Snapshot {
    content: Buf,
    object_type: ObjType,
    checksum: u8,
    compression: u8,
}

impl Objset {
    /// Begins to write blocks of `txg`, on which the caller has a hold. `outage` says what
    /// to do if a space map must be read and its devices are absent.
    pub fn early(self: &Arc<Self>, txg: Txg, outage: OutagePolicy) -> Early {
        let writes = Writes::fail_fast(self.zio());
        let (os, placed, vdevs) = (Arc::clone(self), Vec::new(), BTreeSet::new());
        Early { os, txg, writes, outage, placed, vdevs, kept: false }
    }
}

impl Early {
    /// The size of an object's blocks in the txg; `None` if the txg does not change it.
    pub fn block_size(&self, id: ObjectId) -> Option<u64> {
        let handle = self.os.live_part()?.find(id)?;
        let inner = handle.state.lock();
        let slot = inner.slots[slot_of(self.txg)].as_ref().filter(|s| s.txg == self.txg)?;
        slot.head.allocated.then_some(u64::from(slot.head.block_size))
    }

    /// Begins to write a block to its final address and returns the pointer. `None` if the
    /// block cannot be early: it is not dirty in the txg, is in flight already, or no space
    /// is found.
    ///
    /// # Errors
    /// `Bug`, if the pipeline rejects the write.
    pub fn block(&mut self, id: ObjectId, blkid: u64) -> Result<Option<BlkPtr>> {
        let Some(found) = self.look(id, blkid) else { return Ok(None) };
        let props = self.props(&found)?;
        let size = found.content.len() as u64;
        let write = Write {
            object_type: found.object_type,
            level: 0,
            data: &found.content,
            fill: 1,
            txg: self.txg,
            props: &props,
            old: &BlkPtr::default(),
            change: BlockChange::Content,
            in_place: false,
            gangs: None,
            hint: hint(self.os.id(), id.0, 0, blkid),
            packed: None,
            seal: None,
            in_run: false,
            cache: self.os.props()?.keeps(false),
            outage: self.outage,
        };
        let zio = Arc::clone(self.os.zio());
        let Ok(placed) = zio.place(zio.prepare(&write)?) else { return Ok(None) };
        let bp = placed.bp;
        match placed.outcome {
            Outcome::New => {}
            Outcome::Embedded => return Ok(Some(bp)),
            Outcome::Hole => {
                // A replay must know how many of the bytes are zeros.
                let (object_type, lsize) = (found.object_type, Lsize(size));
                let head = BpHead { object_type, level: 0, lsize, birth: self.txg };
                return Ok(Some(BlkPtr::Hole(Hole { head })));
            }
            _ => {
                zio.unplace(placed);
                return Ok(None);
            }
        }
        if !self.note(id, blkid, &found.content, &bp) {
            zio.unplace(placed);
            return Ok(None);
        }
        self.placed.push((id, blkid, bp));
        if let BlkPtr::Block(block) = &bp {
            self.vdevs.extend(block.dvas().map(|dva| dva.vdev));
        }
        zio.submit(placed, &self.writes);
        Ok(Some(bp))
    }

    /// The block's content, if it is dirty in the txg and not in flight.
    fn look(&self, id: ObjectId, blkid: u64) -> Option<Snapshot> {
        let handle = self.os.live_part()?.find(id)?;
        let mut inner = handle.state.lock();
        let slot = inner.slots[slot_of(self.txg)].as_mut().filter(|s| s.txg == self.txg)?;
        if slot.frozen || !slot.head.allocated || slot.early.contains_key(&blkid) {
            return None;
        }
        let content = slot.data.get_mut(blkid).filter(|c| c.cloned().is_none())?.share();
        // An older group's block that has not grown with its file.
        if content.len() != slot.head.block_size as usize {
            return None;
        }
        let head = &slot.head;
        let (checksum, compression) = (head.checksum, head.compression);
        Some(Snapshot { content, object_type: head.object_type, checksum, compression })
    }

    fn props(&self, found: &Snapshot) -> Result<WriteProps> {
        let kind = BlockKind {
            object_type: found.object_type,
            level: 0,
            spill: false,
            size: found.content.len() as u64,
            checksum: found.checksum,
            compression: found.compression,
        };
        // The tables are changed by txgs.
        let dedup = DedupMode::Off;
        Ok(WriteProps { dedup, ..self.os.props()?.for_block(&kind, true) })
    }

    /// Notes the pointer in the slot: as the block's, or as wasted if the block changed
    /// meanwhile. False if the object or its dataset was freed.
    fn note(&self, id: ObjectId, blkid: u64, content: &Buf, bp: &BlkPtr) -> bool {
        let Some(handle) = self.os.live_part().and_then(|live| live.find(id)) else { return false };
        let mut inner = handle.state.lock();
        if inner.dead {
            return false;
        }
        let slot = inner.slots[slot_of(self.txg)].as_mut();
        let Some(slot) = slot.filter(|s| s.txg == self.txg && !s.frozen) else { return false };
        let same = slot.data.get_mut(blkid).is_some_and(|c| same_buffer(&c.share(), content));
        if same && slot.head.allocated && !slot.early.contains_key(&blkid) {
            slot.early.insert(blkid, EarlyBlock { bp: *bp, content: content.clone() });
        } else {
            slot.wasted.push(*bp);
        }
        true
    }

    /// Waits until the devices have taken all blocks. Returns the vdevs to be flushed.
    ///
    /// # Errors
    /// When a block is not written well enough to be read.
    pub fn wait(&mut self) -> Result<Vec<VdevId>> {
        let lost = self.writes.wait();
        if let Some(first) = lost.into_iter().find(|l| !l.readable) {
            // The caller does not use the blocks after an error.
            self.os.zio().tree().clear_missing(self.txg);
            return Err(first.error);
        }
        Ok(self.vdevs.iter().copied().collect())
    }

    /// The blocks are written and flushed: the txg will not write them again.
    pub fn keep(mut self) {
        self.kept = true;
    }

    fn waste(&mut self) {
        let Some(live) = self.os.live_part() else { return };
        for (id, blkid, bp) in self.placed.drain(..) {
            let Some(handle) = live.find(id) else { continue };
            let mut inner = handle.state.lock();
            let slot = inner.slots[slot_of(self.txg)].as_mut().filter(|s| s.txg == self.txg);
            // The block may have changed since, and have another early pointer.
            if let Some(slot) = slot
                && slot.early.get(&blkid).is_some_and(|w| w.bp == bp)
            {
                slot.invalidate_early(blkid);
            }
        }
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        if !self.kept {
            // No write may be in flight when the caller releases the txg.
            let _lost = self.writes.wait();
            self.waste();
        }
    }
}

/// A block that is written already.
pub(crate) struct EarlyBlock {
    pub(crate) bp: BlkPtr,
    /// The buffer that was written. It is shared here, so a change of the block copies it.
    content: Buf,
}

impl EarlyBlock {
    pub(crate) fn is_of(&self, content: &Buf) -> bool {
        same_buffer(&self.content, content)
    }
}

fn same_buffer(a: &Buf, b: &Buf) -> bool {
    a.len() == b.len() && std::ptr::eq(a.as_ptr(), b.as_ptr())
}
