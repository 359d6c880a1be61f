//! Blocks that are written before their group: what an intent log refers to.
//!
//! # Theory
//! A large write that somebody waits for need not go to the devices twice, into the log and
//! then to its place. Its block gets its place, in the group in which it is dirty, and is
//! written there at once; the log's record has the pointer. When the group is written the
//! pointer is put into the tree, and the block is not written again: the record's block *is*
//! the file's. That holds as long as the content is the very buffer that was written: the
//! slot keeps a reference to it, and who changes a block that is shared gets a copy, so the
//! buffer tells. If the block was changed, freed or truncated away since, its early pointer
//! is *wasted*: the group that allocated it frees it. (It cannot be rewritten in place: a
//! record refers to it.)
//!
//! # States
//! An early block is *placed* (allocated, noted in the slot, on its way), *written*
//! ([`Early::wait`]), and then *kept* or *wasted* when its group is frozen. One whose write
//! failed, or whose [`Early`] is dropped before [`Early::keep`], is wasted at once.
//!
//! # Invariants
//! * The caller holds the group from before [`Objset::early`] until [`Early::wait`] has
//!   returned: so its sync neither misses a place that was allocated, nor relies on bytes
//!   that are under way.
//! * Each place that was allocated is in exactly one of: a slot's `early`, a slot's
//!   `wasted`, what [`Objset::abandon`] returned. All three are accounted for in the
//!   group of the allocation: as the file's block (born), or as a free.
//! * Only blocks that are dirty in that very group: what an older group has alone is on its
//!   way already, and the record carries its bytes instead.
//!
//! # After a crash
//! If the group was not committed its space maps do not know the place; whoever imports the
//! pool claims it for the record, before anything is allocated. If the group was committed
//! the block is the file's, or free, and records of that group are not looked at.
//!
//! # Departures from OpenZFS
//! * A block that is dirty in a closed group alone is not written a second time elsewhere.
//! * Holes and embedded blocks are not early: writing them costs nothing. Gangs are not made.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Buf, Lsize, ObjectId, Result, Txg, VdevId};
use ondisk::blkptr::{Head as BpHead, Hole};
use ondisk::{BlkPtr, ObjType};
use zio::{Outcome, Write, WriteProps, Writes};

use super::handle::slot_of;
use super::policy::BlockKind;
use super::waves::hint;
use crate::objset::Objset;

/// Early blocks of one commit, under way.
pub struct Early {
    os: Arc<Objset>,
    txg: Txg,
    writes: Writes,
    placed: Vec<(ObjectId, u64, BlkPtr)>,
    vdevs: BTreeSet<VdevId>,
    kept: bool,
}

/// A block as it is now, to be written.
struct Snapshot {
    content: Buf,
    object_type: ObjType,
    checksum: u8,
    compression: u8,
}

impl Objset {
    /// Begins to write blocks of group `txg`, which the caller holds.
    pub fn early(self: &Arc<Self>, txg: Txg) -> Early {
        let writes = Writes::fail_fast(self.zio());
        let (os, placed, vdevs) = (Arc::clone(self), Vec::new(), BTreeSet::new());
        Early { os, txg, writes, placed, vdevs, kept: false }
    }
}

impl Early {
    /// The size of an object's blocks in the group; `None` if the group does not change it.
    pub fn block_size(&self, id: ObjectId) -> Option<u64> {
        let handle = self.os.live_part()?.find(id)?;
        let inner = handle.state.lock();
        let slot = inner.slots[slot_of(self.txg)].as_ref().filter(|s| s.txg == self.txg)?;
        slot.head.allocated.then_some(u64::from(slot.head.block_size))
    }

    /// Begins to write a block to its place: its pointer, or `None` where that is not to be
    /// done (it is not dirty in the group, is under way already, or finds no place).
    ///
    /// # Errors
    /// `Bug`, for what the pipeline does not accept.
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
            in_place: false,
            gangs: None,
            hint: hint(self.os.id(), id.0, 0, blkid),
            cache: self.os.props()?.cache_data,
        };
        let zio = Arc::clone(self.os.zio());
        let Ok(placed) = zio.place(zio.prepare(&write)?) else { return Ok(None) };
        let bp = placed.bp;
        match placed.outcome {
            Outcome::New => {}
            Outcome::Embedded => return Ok(Some(bp)),
            Outcome::Hole => {
                // Who replays it must know how much is zeros.
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

    /// The block's content, if it is dirty in the group and not under way.
    fn look(&self, id: ObjectId, blkid: u64) -> Option<Snapshot> {
        let handle = self.os.live_part()?.find(id)?;
        let mut inner = handle.state.lock();
        let slot = inner.slots[slot_of(self.txg)].as_mut().filter(|s| s.txg == self.txg)?;
        if slot.frozen || !slot.head.allocated || slot.early.contains_key(&blkid) {
            return None;
        }
        let content = slot.data.get_mut(blkid)?.shown();
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
        Ok(self.os.props()?.for_block(&kind, true))
    }

    /// Notes the place in the slot: as the block's, or as wasted if it changed meanwhile.
    /// False if the object or its dataset is gone.
    fn note(&self, id: ObjectId, blkid: u64, content: &Buf, bp: &BlkPtr) -> bool {
        let Some(handle) = self.os.live_part().and_then(|live| live.find(id)) else { return false };
        let mut inner = handle.state.lock();
        if inner.dead {
            return false;
        }
        let slot = inner.slots[slot_of(self.txg)].as_mut();
        let Some(slot) = slot.filter(|s| s.txg == self.txg && !s.frozen) else { return false };
        let same = slot.data.get_mut(blkid).is_some_and(|c| same_buffer(&c.shown(), content));
        if same && slot.head.allocated && !slot.early.contains_key(&blkid) {
            slot.early.insert(blkid, Written { bp: *bp, content: content.clone() });
        } else {
            slot.wasted.push(*bp);
        }
        true
    }

    /// Waits until the devices have taken all blocks; the vdevs to be flushed.
    ///
    /// # Errors
    /// When a block is not written well enough to be read.
    pub fn wait(&mut self) -> Result<Vec<VdevId>> {
        let lost = self.writes.wait();
        if let Some(first) = lost.into_iter().find(|l| !l.readable) {
            // Nobody relies on it.
            self.os.zio().tree().clear_missing(self.txg);
            return Err(first.error);
        }
        Ok(self.vdevs.iter().copied().collect())
    }

    /// The blocks are written and flushed: the group will not write them again.
    pub fn keep(mut self) {
        self.kept = true;
    }

    fn waste(&mut self) {
        let Some(live) = self.os.live_part() else { return };
        for (id, blkid, bp) in self.placed.drain(..) {
            let Some(handle) = live.find(id) else { continue };
            let mut inner = handle.state.lock();
            let slot = inner.slots[slot_of(self.txg)].as_mut().filter(|s| s.txg == self.txg);
            // Another one may have come after it was changed.
            if let Some(slot) = slot
                && slot.early.get(&blkid).is_some_and(|w| w.bp == bp)
            {
                slot.disturb(blkid);
            }
        }
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        if !self.kept {
            // Nothing is under way when the caller lets the group go.
            let _lost = self.writes.wait();
            self.waste();
        }
    }
}

/// A block that is written already.
pub(crate) struct Written {
    pub(crate) bp: BlkPtr,
    /// What was written: whoever changes the block copies it, for it is shared here.
    content: Buf,
}

impl Written {
    pub(crate) fn is_of(&self, content: &Buf) -> bool {
        same_buffer(&self.content, content)
    }
}

fn same_buffer(a: &Buf, b: &Buf) -> bool {
    a.len() == b.len() && std::ptr::eq(a.as_ptr(), b.as_ptr())
}
