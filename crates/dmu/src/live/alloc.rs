//! Object ids: allocation, claiming a given one, freeing (chapter 03 §4).
//!
//! A slot that a txg freed is reused only after a later txg began a search from the start,
//! and never before the freeing txg is on disk: while a handle exists for an object id, the
//! id is taken.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use base::{Error, ErrorKind, ObjectId, Result};
use ondisk::ObjType;
use ondisk::dnode::{DNODE_SIZE, DNODES_PER_BLOCK, Dnode, OBJECT_SHIFT_MAX};
use ondisk::objset::ObjsetType;
use zio::Io;

use super::handle::{DnodeHead, ObjectHandle, Spill, TxgSlot, slot_of};
use crate::objset::Objset;
use crate::tx::Tx;

/// Objects freed before the search for free ids restarts at the beginning.
const RESCAN: u64 = 131_072;
/// The same in the MOS, where space maps and lists are created and freed often.
const RESCAN_MOS: u64 = 64;

/// Shape of a new object.
#[derive(Clone, Debug)]
pub struct ObjectSpec {
    /// Its type.
    pub object_type: ObjType,
    /// Bytes of a data block; 0 means 512.
    pub block_size: u32,
    /// log2 of an indirect block; 0 means 17.
    pub indirect_shift: u8,
    /// Type of the bonus.
    pub bonus_type: ObjType,
    /// The bonus.
    pub bonus: Vec<u8>,
    /// 512-byte slots of the dnode; 0 means 1.
    pub slots: u8,
}

impl Default for ObjectSpec {
    fn default() -> Self {
        ObjectSpec {
            object_type: ObjType::NONE,
            block_size: 0,
            indirect_shift: 0,
            bonus_type: ObjType::NONE,
            bonus: Vec::new(),
            slots: 0,
        }
    }
}

impl ObjectSpec {
    pub(crate) fn head(&self) -> Result<DnodeHead> {
        let slots = self.slots.max(1);
        let size = usize::from(slots) * DNODE_SIZE;
        let block_size = if self.block_size == 0 { 512 } else { self.block_size };
        let fits = self.bonus.len() <= size - 64 - 128
            && slots <= 32
            && matches!(self.indirect_shift, 0 | 12..=17)
            && block_size.is_multiple_of(512)
            && block_size <= super::BLOCK_MAX
            && self.object_type != ObjType::NONE;
        if !fits {
            return Err(Error::invalid("no object has this shape"));
        }
        // Chapter 03 §2.3.
        let nblkptr = if self.bonus_type == ObjType::SA {
            1
        } else {
            (1 + ((size - 64 - 128 - self.bonus.len()) >> 7)).min(3)
        };
        Ok(DnodeHead {
            allocated: true,
            fresh: false,
            leaks_unreadable: false,
            object_type: self.object_type,
            bonus_type: self.bonus_type,
            bonus: self.bonus.clone(),
            block_size,
            indirect_shift: if self.indirect_shift == 0 { 17 } else { self.indirect_shift },
            checksum: 0,
            compression: 0,
            slots,
            nblkptr: nblkptr as u8,
            levels: 1,
            max_blkid: 0,
            spill: Spill::Keep,
            area: None,
        })
    }
}

/// The position of the search for free object ids.
#[derive(Default)]
pub(crate) struct Cursor {
    started: bool,
    next: u64,
    freed: u64,
    /// Taken slots of the block that `next` is in, one bit each.
    pub(crate) block: Option<(u64, u32)>,
}

pub(crate) fn mask(from: u64, slots: u8) -> u32 {
    (((1u64 << slots) - 1) << from) as u32
}

impl Objset {
    /// Allocates an object.
    ///
    /// # Errors
    /// `Invalid` for an impossible shape, `NoSpace` when no object id is left, those of
    /// reading dnode blocks.
    pub fn allocate(self: &Arc<Self>, tx: &Tx, spec: &ObjectSpec) -> Result<ObjectId> {
        let head = spec.head()?;
        let live = self.live()?;
        let mut cursor = live.cursor.lock();
        self.start(&mut cursor, tx.io());
        loop {
            let slots = u64::from(head.slots);
            let (blkid, at) = (cursor.next / DNODES_PER_BLOCK, cursor.next % DNODES_PER_BLOCK);
            if cursor.next >> OBJECT_SHIFT_MAX != 0 {
                return Err(Error::new(ErrorKind::NoSpace, "no object number is left"));
            }
            let taken = match cursor.block {
                Some((b, taken)) if b == blkid => taken,
                _ => self.taken(blkid, tx.io())?,
            };
            cursor.block = Some((blkid, taken));
            let free = (at..=DNODES_PER_BLOCK.saturating_sub(slots))
                .find(|&i| taken & mask(i, head.slots) == 0);
            let Some(slot) = free else {
                cursor.next = (blkid + 1) * DNODES_PER_BLOCK;
                continue;
            };
            cursor.block = Some((blkid, taken | mask(slot, head.slots)));
            cursor.next = blkid * DNODES_PER_BLOCK + slot + slots;
            let id = ObjectId(blkid * DNODES_PER_BLOCK + slot);
            self.begin_object(tx, id, head)?;
            return Ok(id);
        }
    }

    /// Allocates an object with a given id.
    ///
    /// # Errors
    /// `Exists` when the id is taken; otherwise as [`Objset::allocate`].
    pub fn claim(self: &Arc<Self>, tx: &Tx, id: ObjectId, spec: &ObjectSpec) -> Result<()> {
        let head = spec.head()?;
        let mut cursor = self.live()?.cursor.lock();
        let special = id.0 >> OBJECT_SHIFT_MAX != 0;
        if id.0 == 0 {
            return Err(Error::new(ErrorKind::Exists, "object 0 is the meta-dnode"));
        }
        if !special {
            let (blkid, at) = (id.0 / DNODES_PER_BLOCK, id.0 % DNODES_PER_BLOCK);
            if at + u64::from(head.slots) > DNODES_PER_BLOCK {
                return Err(Error::invalid("a dnode must not cross its block").in_object(id));
            }
            if self.taken(blkid, tx.io())? & mask(at, head.slots) != 0 {
                return Err(Error::new(ErrorKind::Exists, "the object exists").in_object(id));
            }
            if let Some((b, taken)) = &mut cursor.block
                && *b == blkid
            {
                *taken |= mask(at, head.slots);
            }
        }
        self.begin_object(tx, id, head)
    }

    fn begin_object(self: &Arc<Self>, tx: &Tx, id: ObjectId, head: DnodeHead) -> Result<()> {
        let live = self.live()?;
        let txg = tx.txg();
        let mut stripe = live.stripe(id.0).lock();
        live.check_there()?;
        if stripe.contains_key(&id.0) {
            return Err(base::bug!("a free object number has a dirty object").in_object(id));
        }
        let handle = ObjectHandle::new(None);
        handle.state.lock().slots[slot_of(txg)] = Some(Box::new(TxgSlot::new(txg, head)));
        stripe.insert(id.0, Arc::new(handle));
        live.handles.fetch_add(1, SeqCst);
        drop(stripe);
        live.dirty_objects.lock().entry(txg).or_default().insert(id.0);
        Ok(())
    }

    /// Frees an object with all its blocks.
    ///
    /// # Errors
    /// `NotFound`, and those of reading its dnode.
    pub fn free_object(self: &Arc<Self>, tx: &Tx, id: ObjectId) -> Result<()> {
        self.free_object_as(tx, id, false)
    }

    /// As [`Objset::free_object`], for damaged objects: the space below an indirect block
    /// of the object that cannot be read is leaked instead of freed.
    ///
    /// # Errors
    /// As [`Objset::free_object`].
    pub fn free_damaged_object(self: &Arc<Self>, tx: &Tx, id: ObjectId) -> Result<()> {
        self.free_object_as(tx, id, true)
    }

    fn free_object_as(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        leaks_unreadable: bool,
    ) -> Result<()> {
        self.change_blocks(tx, id, |inner| {
            let delta = inner.free(tx.txg(), 0, u64::MAX, true)?;
            inner.change(tx.txg(), |head| {
                head.allocated = false;
                head.leaks_unreadable = leaks_unreadable;
            })?;
            Ok(delta)
        })
        .map_err(|e| e.in_object(id))?;
        self.live()?.cursor.lock().freed += 1;
        Ok(())
    }

    /// Sets where the search begins. The ids of a small object set are not reused while its
    /// meta-dnode has one block (§4.3). A large one is searched for free ids only after
    /// objects were freed.
    fn start(self: &Arc<Self>, cursor: &mut Cursor, io: Io) {
        let mos = self.kind() == ObjsetType::Meta;
        let last = self.on_disk().meta.max_blkid;
        let rescan = cursor.freed >= if mos { RESCAN_MOS } else { RESCAN };
        if cursor.started && !(rescan && (mos || last > 0)) {
            return;
        }
        let again = cursor.started;
        *cursor = Cursor { started: true, next: 1, freed: 0, block: None };
        if !mos && !again {
            cursor.next = (last * DNODES_PER_BLOCK).max(1);
        }
        if !mos
            && last == 0
            && let Ok(taken) = self.taken(0, io)
        {
            cursor.next = u64::from(32 - taken.leading_zeros()).max(1);
        }
    }

    /// Slots of a dnode block that are taken, on disk or by objects not yet on disk.
    pub(crate) fn taken(self: &Arc<Self>, blkid: u64, io: Io) -> Result<u32> {
        let first = blkid * DNODES_PER_BLOCK;
        // Id 0 is the meta-dnode.
        let mut taken = u32::from(blkid == 0);
        // Memory is examined first: an object that is published in between is then found on
        // disk.
        let live = self.live()?;
        for slot in 0..DNODES_PER_BLOCK {
            if let Some(handle) = live.find(ObjectId(first + slot)) {
                let inner = handle.state.lock();
                let own = inner.disk.as_ref().map_or(1, |d| d.slots);
                let slots = inner.filled_slots().map(|s| s.head.slots).fold(own, u8::max);
                taken |= mask(slot, slots.min((DNODES_PER_BLOCK - slot) as u8));
            }
        }
        let meta = self.meta_object();
        if blkid <= meta.dnode().max_blkid {
            let block = meta.read_block(blkid, io)?;
            let mut slot = 0;
            while slot < DNODES_PER_BLOCK {
                let bytes = block.get(slot as usize * DNODE_SIZE..).unwrap_or_default();
                let slots = Dnode::peek_slots(bytes).unwrap_or(0);
                taken |= mask(slot, slots.min((DNODES_PER_BLOCK - slot) as u8));
                slot += u64::from(slots.max(1));
            }
        }
        Ok(taken)
    }
}
