//! The writable side of an object set: dirty objects, and the calls that change them.
//!
//! # Theory
//! Clean state lives on disk and in the cache; what groups changed and is not on disk
//! yet lives here (decision 5). A [`handle::Handle`] exists for each dirty object and
//! holds one slot for each group that changed it: the dnode as the group leaves it,
//! the blocks it wrote, the ranges it freed. A read asks the slots, newest first, and
//! then the disk. While a group is written its blocks are frozen; a newer write
//! copies. When the group is on disk ([`crate::live::Pending::publish`]) the new dnode
//! takes the old one's place and the slot goes; with the last slot the handle goes.
//!
//! Transactions of two groups may change one object at a time, in either order. What
//! the older group does is done to what the newer one made of it as well, so that the
//! last call wins, whatever its group.
//!
//! # Invariants
//! * A slot belongs to one group; the group four later begins only when it is gone.
//! * Frozen content never changes. A handle without slots does not exist.
//! * A reader never meets a block whose dirty content is gone and whose pointer is still
//!   the old one: pointers are published first, and their hints forgotten before.
//! * Memory of dirty blocks is reserved with the cache: both together stay within
//!   its target.
//!
//! # Departures from OpenZFS
//! A dbuf without dirty data does not exist: the hints of `zio` lead to clean
//! blocks. So there is no dbuf cache to starve, or to pin what the ARC would evict.
//!
//! Lock order: the allocation cursor (over reads of dnode blocks) → a stripe of the
//! table → a handle → the list of a group's objects. No I/O under the last three.

pub(crate) mod account;
mod alloc;
pub(crate) mod handle;
pub(crate) mod policy;
mod publish;
mod ranges;
pub(crate) mod sync;
mod waves;
pub(crate) mod work;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use base::rt::{Mutex, RwLock};
use base::{Buf, BufMut, Error, ErrorKind, ObjectId, Result, Txg};
use ondisk::dnode::DNODE_SIZE;
use ondisk::{Dnode, Endian, ObjType};
use zio::Io;

use alloc::Cursor;
pub use alloc::ObjectSpec;
use handle::{Content, Dirty, Handle, Head, Inner, Spill};
pub use policy::{ObjsetProps, RedundantMetadata};
pub use publish::Pending;
pub use sync::{Events, SyncCtx};

use crate::objset::Objset;
use crate::tx::Tx;

const STRIPES: usize = 32;
/// Largest data block of an object (chapter 03 §3.2).
const BLOCK_MAX: u32 = 16 << 20;

/// What makes an object set writable.
pub(crate) struct Live {
    stripes: [Mutex<HashMap<u64, Arc<Handle>>>; STRIPES],
    /// Which objects each group changed.
    groups: Mutex<BTreeMap<Txg, BTreeSet<u64>>>,
    /// Handles there are; reads skip the table while there are none.
    handles: AtomicUsize,
    /// Counts publications.
    published: AtomicU64,
    cursor: Mutex<Cursor>,
    props: RwLock<Arc<ObjsetProps>>,
    /// Intent log header that a group wants on disk.
    zil_header: Mutex<Option<[u8; ondisk::objset::ZIL_HEADER_SIZE]>>,
    /// Flags of the object set that the next written group is to have.
    flags: Mutex<Option<u64>>,
    /// The dataset was destroyed: nothing changes any more.
    gone: std::sync::atomic::AtomicBool,
    /// Test instrument: the next block dirtied goes to the group after.
    plant_wrong_group: std::sync::atomic::AtomicBool,
}

impl Live {
    pub(crate) fn new(props: ObjsetProps) -> Live {
        Live {
            stripes: std::array::from_fn(|_| Mutex::default()),
            groups: Mutex::default(),
            handles: AtomicUsize::new(0),
            published: AtomicU64::new(0),
            cursor: Mutex::default(),
            props: RwLock::new(Arc::new(props)),
            zil_header: Mutex::default(),
            flags: Mutex::default(),
            gone: std::sync::atomic::AtomicBool::new(false),
            plant_wrong_group: std::sync::atomic::AtomicBool::new(false),
        }
    }

    fn stripe(&self, id: u64) -> &Mutex<HashMap<u64, Arc<Handle>>> {
        &self.stripes[(id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59) as usize % STRIPES]
    }

    pub(crate) fn find(&self, id: ObjectId) -> Option<Arc<Handle>> {
        if self.handles.load(SeqCst) == 0 {
            return None;
        }
        self.stripe(id.0).lock().get(&id.0).cloned()
    }

    /// What unwritten groups made of a block.
    pub(crate) fn block(&self, id: ObjectId, blkid: u64, range: Range<usize>) -> Option<Dirty> {
        let handle = self.find(id)?;
        let inner = handle.state.lock();
        inner.block(Txg::MAX, blkid, range)
    }

    /// The spill block's content in the newest group: `None` if none changed it.
    pub(crate) fn spill(&self, id: ObjectId) -> Option<Option<Buf>> {
        let handle = self.find(id)?;
        let inner = handle.state.lock();
        let mut slots: Vec<_> = inner.slots.iter().flatten().collect();
        slots.sort_unstable_by_key(|s| std::cmp::Reverse(s.txg));
        slots.into_iter().find_map(|s| match &s.head.spill {
            Spill::Keep => None,
            Spill::Set(buf) => Some(Some(buf.clone())),
            Spill::Remove => Some(None),
        })
    }

    pub(crate) fn is_dirty(&self, txg: Txg) -> bool {
        self.groups.lock().get(&txg).is_some_and(|g| !g.is_empty())
            || self.zil_header.lock().is_some()
            || self.flags.lock().is_some()
    }

    fn check_there(&self) -> Result<()> {
        if self.gone.load(SeqCst) {
            return Err(Error::not_found("dataset does not exist"));
        }
        Ok(())
    }

    pub(crate) fn props(&self) -> Arc<ObjsetProps> {
        Arc::clone(&self.props.read())
    }
}

/// The dnode that readers see: `head` over the tree on disk.
pub(crate) fn merged(head: &Head, disk: Option<&Dnode>, flags: u8) -> Dnode {
    let holes = || vec![ondisk::BlkPtr::default(); usize::from(head.nblkptr)];
    Dnode {
        object_type: head.object_type,
        indirect_shift: head.indirect_shift,
        levels: disk.map_or(1, |d| d.levels),
        bonus_type: head.bonus_type,
        checksum: head.checksum,
        compression: head.compression,
        flags,
        data_block_size: head.block_size,
        slots: head.slots,
        max_blkid: head.max_blkid,
        used: disk.map_or(0, |d| d.used),
        endian: Endian::Little,
        blkptrs: disk.map_or_else(holes, |d| d.blkptrs.clone()),
        bonus: head.bonus.clone(),
        spill: disk.and_then(|d| d.spill),
    }
}

impl Objset {
    fn live(&self) -> Result<&Live> {
        self.live_part()
            .ok_or_else(|| Error::new(ErrorKind::ReadOnly, "the dataset is open for reading only"))
    }

    /// How blocks written from now on are stored.
    ///
    /// # Errors
    /// `ReadOnly` when the object set is not open for writing.
    pub fn set_props(&self, props: ObjsetProps) -> Result<()> {
        *self.live()?.props.write() = Arc::new(props);
        Ok(())
    }

    /// How blocks written from now on are stored.
    ///
    /// # Errors
    /// `ReadOnly` when the object set is not open for writing.
    pub fn props(&self) -> Result<Arc<ObjsetProps>> {
        Ok(self.live()?.props())
    }

    /// Whether group `txg` has something to write here.
    pub fn is_dirty(&self, txg: Txg) -> bool {
        self.live_part().is_some_and(|l| l.is_dirty(txg))
    }

    /// Test instrument: the next block that is dirtied goes into the group after its
    /// transaction's. The simulator must notice.
    #[doc(hidden)]
    pub fn plant_wrong_group(&self) {
        if let Some(live) = self.live_part() {
            live.plant_wrong_group.store(true, SeqCst);
        }
    }

    /// Finds or makes the handle of an object and does `f` with it.
    fn with<R>(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        f: impl FnOnce(&mut Inner) -> Result<R>,
    ) -> Result<R> {
        let live = self.live()?;
        loop {
            let handle = match live.find(id) {
                Some(handle) => handle,
                None => self.new_handle(live, id)?,
            };
            let mut inner = handle.state.lock();
            live.check_there()?;
            if inner.dead {
                continue;
            }
            let out = f(&mut inner)?;
            let mut groups = live.groups.lock();
            groups.entry(tx.txg()).or_default().insert(id.0);
            return Ok(out);
        }
    }

    fn new_handle(self: &Arc<Self>, live: &Live, id: ObjectId) -> Result<Arc<Handle>> {
        loop {
            let published = live.published.load(SeqCst);
            let disk = self.disk_dnode(id, Io::WAIT)?;
            let mut stripe = live.stripe(id.0).lock();
            live.check_there()?;
            if let Some(handle) = stripe.get(&id.0) {
                return Ok(Arc::clone(handle));
            }
            // Published meanwhile: what was read may be old.
            if live.published.load(SeqCst) != published {
                continue;
            }
            let handle = Arc::new(Handle::new(disk));
            stripe.insert(id.0, Arc::clone(&handle));
            live.handles.fetch_add(1, SeqCst);
            return Ok(handle);
        }
    }

    /// The newest header of an object.
    pub(crate) fn head(self: &Arc<Self>, tx: &Tx, id: ObjectId) -> Result<Head> {
        let gone = || Error::not_found("no such object").in_object(id);
        if let Some(handle) = self.live()?.find(id) {
            let inner = handle.state.lock();
            if let Some(slot) = inner.newest(tx.txg()) {
                return slot.head.allocated.then(|| slot.head.clone()).ok_or_else(gone);
            }
        }
        let disk = self.disk_dnode(id, Io::WAIT)?;
        disk.map(|dn| Head::of(&dn)).ok_or_else(gone)
    }

    fn took(&self, tx: &Tx, bytes: u64) {
        if bytes > 0 {
            self.zio().cache().reserve(bytes);
            if let Some(dirt) = tx.dirt() {
                dirt.dirty(tx.txg(), bytes);
            }
        }
    }

    /// Writes `data` at byte `offset` of an object, in whole blocks of memory: a block
    /// written in part is read first.
    ///
    /// # Errors
    /// `NotFound`, those of reading, `Invalid` beyond 2^64 bytes.
    pub fn write(self: &Arc<Self>, tx: &Tx, id: ObjectId, offset: u64, data: &[u8]) -> Result<()> {
        let bs = u64::from(self.head(tx, id)?.block_size);
        let end = offset.checked_add(data.len() as u64);
        let end = end.ok_or_else(|| Error::invalid("write past 2^64").in_object(id))?;
        let mut at = offset;
        while at < end {
            let (blkid, skip) = (at / bs, (at % bs) as usize);
            let n = (bs - at % bs).min(end - at) as usize;
            let from = (at - offset) as usize;
            let piece = &data[from..from + n];
            if n as u64 == bs {
                self.put_block(tx, id, blkid, BufMut::copy_of(piece))?;
            } else {
                self.edit_block(tx, id, blkid, &mut |block| {
                    let fits = block.get_mut(skip..skip + n);
                    let part = fits.ok_or_else(|| Error::bug("a block shrank while written"))?;
                    part.copy_from_slice(piece);
                    Ok(())
                })?;
            }
            at += n as u64;
        }
        Ok(())
    }

    /// Replaces a whole data block.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` when `block` is not of the object's block size.
    pub fn put_block(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        blkid: u64,
        block: BufMut,
    ) -> Result<()> {
        let planted = self.planted(tx)?;
        let mut block = Some(block);
        let took = self.with(planted.as_ref().unwrap_or(tx), id, |inner| {
            let block = block.take().ok_or_else(|| Error::bug("a block is put once"))?;
            let txg = planted.as_ref().unwrap_or(tx).txg();
            for newer in inner.slots.iter_mut().flatten().filter(|s| s.txg > txg) {
                if let Some(Content::Open(buf)) = newer.data.get_mut(&blkid)
                    && buf.len() == block.len()
                {
                    buf.copy_from_slice(&block);
                }
            }
            begin_block(inner, txg, blkid, block)
        });
        self.took(tx, took.map_err(|e| e.at_block(0, blkid).in_object(id))?);
        Ok(())
    }

    fn planted(&self, tx: &Tx) -> Result<Option<Tx>> {
        let planted = !tx.is_syncing() && self.live()?.plant_wrong_group.swap(false, SeqCst);
        Ok(planted.then(|| Tx::syncing(tx.txg().next())))
    }

    /// Changes a data block as it is now, in place. `edit` may be called more than once;
    /// what it sees is in little-endian order, whoever wrote it.
    ///
    /// # Errors
    /// `NotFound`, those of reading the block, and those of `edit`; then nothing changed
    /// if `edit` changed nothing.
    pub fn edit_block(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        blkid: u64,
        edit: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let place = |e: Error| e.at_block(0, blkid).in_object(id);
        let txg = tx.txg();
        loop {
            let done = self.with(tx, id, |inner| edit_in_memory(inner, txg, blkid, edit));
            match done.map_err(place)? {
                Some(took) => {
                    self.took(tx, took);
                    return Ok(());
                }
                // Reading may wait: nothing is held meanwhile.
                None => {
                    let base = self.base_block(id, blkid).map_err(place)?;
                    let took = self.with(tx, id, |inner| {
                        let (slot, _) = inner.slot(txg)?;
                        let size = slot.head.block_size as usize;
                        // Somebody else may have begun the block meanwhile: theirs counts.
                        if inner.block(Txg::MAX, blkid, 0..0).is_some() {
                            return Ok(None);
                        }
                        let mut fresh = BufMut::zeroed(size);
                        let n = base.len().min(size);
                        fresh[..n].copy_from_slice(&base[..n]);
                        edit(&mut fresh)?;
                        begin_block(inner, txg, blkid, fresh).map(Some)
                    });
                    if let Some(took) = took.map_err(place)? {
                        self.took(tx, took);
                        return Ok(());
                    }
                }
            }
        }
    }

    /// A block as it is on disk, in little-endian order.
    fn base_block(self: &Arc<Self>, id: ObjectId, blkid: u64) -> Result<Buf> {
        let Some(dn) = self.disk_dnode(id, Io::WAIT)? else { return Ok(Buf::zeros(0)) };
        let object = self.disk_object(id, Arc::clone(&dn));
        if blkid > dn.max_blkid {
            return Ok(Buf::zeros(0));
        }
        let bp = object.disk_pointer(&dn, 0, blkid, Io::WAIT)?;
        if bp.is_hole() {
            return Ok(Buf::zeros(0));
        }
        let buf = self.zio().read(&bp, Io::WAIT)?;
        to_little(dn.object_type, buf, bp.endian())
    }

    /// Frees `len` bytes from `offset` (`u64::MAX`: to the end): whole blocks become
    /// holes, the rest is zeroed (chapter 03 §11).
    ///
    /// # Errors
    /// `NotFound`, and those of reading the blocks at both ends.
    pub fn free_range(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let head = self.head(tx, id)?;
        let bs = u64::from(head.block_size);
        let end = offset.saturating_add(len);
        let to_end = end == u64::MAX || end / bs > head.max_blkid;
        if offset / bs > head.max_blkid || len == 0 {
            return Ok(());
        }
        let first = offset.div_ceil(bs);
        let past = if to_end { head.max_blkid + 1 } else { end / bs };
        if first > end / bs && !to_end {
            // Inside one block.
            return self.zero_part(
                tx,
                id,
                offset / bs,
                (offset % bs) as usize..(end % bs) as usize,
            );
        }
        if !offset.is_multiple_of(bs) {
            self.zero_part(tx, id, offset / bs, (offset % bs) as usize..bs as usize)?;
        }
        if !to_end && !end.is_multiple_of(bs) && end / bs <= head.max_blkid {
            self.zero_part(tx, id, end / bs, 0..(end % bs) as usize)?;
        }
        self.free_blocks(tx, id, first, past, to_end)
    }

    fn zero_part(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        blkid: u64,
        range: Range<usize>,
    ) -> Result<()> {
        // A hole stays a hole.
        let object = self.object(id, Io::WAIT)?;
        if object.is_hole(blkid, Io::WAIT)? {
            return Ok(());
        }
        self.edit_block(tx, id, blkid, &mut |block| {
            let end = range.end.min(block.len());
            block[range.start.min(end)..end].fill(0);
            Ok(())
        })
    }

    /// Frees data blocks `[first, past)`; with `truncate` they were the last ones.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn free_blocks(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        first: u64,
        past: u64,
        truncate: bool,
    ) -> Result<()> {
        let gone = self.with(tx, id, |inner| {
            let mut gone = 0;
            let (slot, _) = inner.slot(tx.txg())?;
            if first < past {
                slot.freed.add(first, past);
                let dropped: Vec<u64> = slot.data.range(first..past).map(|(&b, _)| b).collect();
                for blkid in dropped {
                    gone += slot.data.remove(&blkid).map_or(0, |c| c.len() as u64);
                }
                slot.bytes = slot.bytes.saturating_sub(gone);
            }
            if truncate && first <= slot.head.max_blkid {
                slot.head.max_blkid = first.saturating_sub(1);
            }
            Ok(gone)
        })?;
        self.zio().cache().release(gone);
        if let Some(dirt) = tx.dirt() {
            dirt.clean(tx.txg(), gone);
        }
        Ok(())
    }

    /// Replaces the bonus.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` when it does not fit the dnode.
    pub fn set_bonus(self: &Arc<Self>, tx: &Tx, id: ObjectId, bonus: &[u8]) -> Result<()> {
        let fits = |head: &Head| {
            let room = usize::from(head.slots) * DNODE_SIZE - 64 - 128 * usize::from(head.nblkptr);
            let fits = bonus.len() <= room;
            fits.then_some(()).ok_or_else(|| Error::invalid("the bonus does not fit its dnode"))
        };
        self.change(tx, id, |head| head.bonus = bonus.to_vec(), fits)
    }

    /// Changes the bonus as it is now, whatever group it is of; `edit` is called once for
    /// each group from the transaction's on, and must not make it longer.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn edit_bonus(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        edit: &mut dyn FnMut(&mut Vec<u8>),
    ) -> Result<()> {
        self.change(
            tx,
            id,
            |head| {
                let room = head.bonus.len();
                edit(&mut head.bonus);
                head.bonus.truncate(room);
            },
            |_| Ok(()),
        )
    }

    fn change(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        change: impl FnMut(&mut Head),
        check: impl FnOnce(&Head) -> Result<()>,
    ) -> Result<()> {
        self.with(tx, id, |inner| {
            check(&inner.slot(tx.txg())?.0.head)?;
            inner.change(tx.txg(), change)
        })
        .map_err(|e| e.in_object(id))?;
        Ok(())
    }

    /// Changes the object's type ("zapify", chapter 04 §0).
    ///
    /// # Errors
    /// `NotFound`.
    pub fn set_object_type(self: &Arc<Self>, tx: &Tx, id: ObjectId, to: ObjType) -> Result<()> {
        self.change(tx, id, |head| head.object_type = to, |_| Ok(()))
    }

    /// Changes the type of the bonus.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn set_bonus_type(self: &Arc<Self>, tx: &Tx, id: ObjectId, to: ObjType) -> Result<()> {
        self.change(tx, id, |head| head.bonus_type = to, |_| Ok(()))
    }

    /// Changes how data is compressed, 0 = as the dataset says.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn set_compression(self: &Arc<Self>, tx: &Tx, id: ObjectId, to: u8) -> Result<()> {
        self.change(tx, id, |head| head.compression = to, |_| Ok(()))
    }

    /// Sets or removes the spill block.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for a size that no spill block has.
    pub fn set_spill(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        content: Option<&[u8]>,
    ) -> Result<()> {
        let size = content.map_or(512, <[u8]>::len);
        if size == 0 || !size.is_multiple_of(512) || size > 128 << 10 {
            return Err(Error::invalid("no spill block has this size").in_object(id));
        }
        let spill = content.map_or(Spill::Remove, |c| Spill::Set(Buf::copy_of(c)));
        self.change(tx, id, |head| head.spill = spill.clone(), |_| Ok(()))
    }

    /// Changes the block size of an object that has one block at most; its content
    /// stays, and reads as zeros behind (chapter 03 §3.2). `indirect_shift` 0 keeps it.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` when there are more blocks or the size is impossible,
    /// those of reading block 0.
    pub fn set_block_size(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        size: u32,
        indirect_shift: u8,
    ) -> Result<()> {
        let head = self.head(tx, id)?;
        if head.max_blkid > 0 || size == 0 || !size.is_multiple_of(512) || size > BLOCK_MAX {
            return Err(Error::invalid("the block size cannot be changed so").in_object(id));
        }
        if head.block_size == size && indirect_shift == 0 {
            return Ok(());
        }
        let object = self.object(id, Io::WAIT)?;
        let content = if object.is_hole(0, Io::WAIT)? {
            None
        } else {
            Some(object.read_little(0, Io::WAIT)?)
        };
        self.change(
            tx,
            id,
            |head| {
                head.block_size = size;
                if indirect_shift != 0 && head.levels == 1 {
                    head.indirect_shift = indirect_shift;
                }
            },
            |_| Ok(()),
        )?;
        if let Some(old) = content {
            let mut block = BufMut::zeroed(size as usize);
            let n = old.len().min(size as usize);
            block[..n].copy_from_slice(&old[..n]);
            self.put_block(tx, id, 0, block)?;
        }
        Ok(())
    }

    /// Has the next written group carry this intent log header.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub fn set_zil_header(&self, header: [u8; ondisk::objset::ZIL_HEADER_SIZE]) -> Result<()> {
        *self.live()?.zil_header.lock() = Some(header);
        Ok(())
    }

    /// Has the next written group carry these flags (chapter 03 §5, `os_flags`).
    ///
    /// # Errors
    /// `ReadOnly`.
    pub fn set_flags(&self, flags: u64) -> Result<()> {
        *self.live()?.flags.lock() = Some(flags);
        Ok(())
    }

    /// The object set's flags, as the next written group has them.
    pub fn flags(&self) -> u64 {
        let wanted = self.live_part().and_then(|live| *live.flags.lock());
        wanted.unwrap_or_else(|| self.phys().flags)
    }

    /// The dataset was destroyed: whatever is dirty is forgotten, and every later change
    /// fails with `NotFound`. Bytes that were dirty, by group.
    pub fn abandon(&self) -> BTreeMap<Txg, u64> {
        let mut out = BTreeMap::new();
        let Some(live) = self.live_part() else { return out };
        live.gone.store(true, SeqCst);
        for stripe in &live.stripes {
            let handles: Vec<_> = stripe.lock().drain().map(|(_, handle)| handle).collect();
            live.handles.fetch_sub(handles.len(), SeqCst);
            for handle in handles {
                let mut inner = handle.state.lock();
                inner.dead = true;
                for slot in inner.slots.iter_mut().filter_map(Option::take) {
                    *out.entry(slot.txg).or_default() += slot.bytes;
                }
            }
        }
        live.groups.lock().clear();
        *live.zil_header.lock() = None;
        *live.flags.lock() = None;
        self.zio().cache().release(out.values().sum());
        out
    }
}

/// Edits a block that memory has; `None` if only the disk has it.
fn edit_in_memory(
    inner: &mut Inner,
    txg: Txg,
    blkid: u64,
    edit: &mut dyn FnMut(&mut [u8]) -> Result<()>,
) -> Result<Option<u64>> {
    let (slot, _) = inner.slot(txg)?;
    if !slot.head.allocated {
        return Err(Error::not_found("no such object"));
    }
    let size = slot.head.block_size as usize;
    let took = match slot.data.get_mut(&blkid) {
        Some(Content::Open(buf)) => {
            edit(buf)?;
            0
        }
        Some(Content::Frozen(_)) => return Err(Error::bug("the group is being written already")),
        None => {
            // The newest older state is the base; what newer groups did stays theirs.
            let Some(base) = inner.block(txg, blkid, 0..size) else { return Ok(None) };
            let mut fresh = BufMut::zeroed(size);
            if let Dirty::Data(old) = base {
                fresh[..old.len()].copy_from_slice(&old);
            }
            edit(&mut fresh)?;
            begin_block(inner, txg, blkid, fresh)?
        }
    };
    for newer in inner.slots.iter_mut().flatten().filter(|s| s.txg > txg) {
        if let Some(Content::Open(buf)) = newer.data.get_mut(&blkid) {
            edit(buf)?;
        }
    }
    Ok(Some(took))
}

/// Makes `block` the group's content of a block; the memory that this took.
fn begin_block(inner: &mut Inner, txg: Txg, blkid: u64, block: BufMut) -> Result<u64> {
    let (slot, _) = inner.slot(txg)?;
    if !slot.head.allocated {
        return Err(Error::not_found("no such object"));
    }
    if block.len() != slot.head.block_size as usize {
        return Err(Error::invalid("a block of the wrong size"));
    }
    let size = block.len() as u64;
    let old = slot.data.insert(blkid, Content::Open(block));
    let took = size.saturating_sub(old.map_or(0, |c| c.len() as u64));
    slot.bytes += took;
    slot.head.max_blkid = slot.head.max_blkid.max(blkid);
    for newer in inner.slots.iter_mut().flatten().filter(|s| s.txg > txg) {
        if !newer.freed.contains(blkid) {
            newer.head.max_blkid = newer.head.max_blkid.max(blkid);
        }
    }
    Ok(took)
}

/// Content of a level-0 block in little-endian order.
pub(crate) fn to_little(of: ObjType, buf: Buf, endian: Endian) -> Result<Buf> {
    if endian == Endian::Little {
        return Ok(buf);
    }
    use ondisk::objtype::Byteswap;
    let mut out = BufMut::copy_of(&buf);
    match of.byteswap() {
        Byteswap::Uint8 => {}
        Byteswap::Uint16 => out.chunks_exact_mut(2).for_each(<[u8]>::reverse),
        Byteswap::Uint32 => out.chunks_exact_mut(4).for_each(<[u8]>::reverse),
        Byteswap::Uint64 => out.chunks_exact_mut(8).for_each(<[u8]>::reverse),
        Byteswap::Zap => ondisk::zap::byteswap(&mut out, endian)?,
        _ => return Err(Error::unsupported("changing this object as a big-endian host left it")),
    }
    Ok(out.freeze())
}

/// A bonus in little-endian order.
pub(crate) fn to_little_bonus(dn: &Dnode) -> Result<Vec<u8>> {
    Ok(to_little(dn.bonus_type, Buf::copy_of(&dn.bonus), dn.endian)?.to_vec())
}
