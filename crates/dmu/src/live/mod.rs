//! The writable side of an object set: dirty objects, and the calls that change them.
//!
//! # Theory
//! Clean state is on disk and in the cache. Changes of txgs that are not on disk yet are
//! kept here (decision 5). A `handle::ObjectHandle` exists for each dirty object. It has
//! one slot for each txg that changed the object: the dnode as the txg leaves it, the
//! blocks it wrote, the ranges it freed. A read examines the slots, newest first, and then
//! the disk. While a txg is written its blocks are frozen; a newer write copies. When the
//! txg is on disk ([`crate::live::Pending::publish`]) the new dnode replaces the old one
//! and the slot is dropped; the handle is dropped with its last slot.
//!
//! The slot of a block that was cloned from another object has the pointer that the txg will
//! write, and no content (`clone`).
//!
//! A block may be dirty without a change, to be written again at another address
//! ([`Objset::move_block`]). A change of the block in the same txg makes it an ordinary one; a
//! change in an older txg reaches its content, too, and the block still only moves.
//!
//! Transactions of two txgs may change one object at a time, in either order. A change in
//! the older txg is applied to the newer txg's state as well, so that the last call wins,
//! whatever its txg. One exception: no txg may change the block size while an older one
//! still writes behind block 0.
//!
//! # Invariants
//! * A slot belongs to one txg; the txg four later begins only after the slot was dropped.
//! * Frozen content never changes. A handle without slots does not exist.
//! * No reader finds the old pointer of a block whose dirty content was dropped: pointers
//!   are published first, and their hints dropped before.
//! * Memory of dirty blocks is reserved with the cache: both together stay within its
//!   target.
//!
//! # Departures from OpenZFS
//! A dbuf without dirty data does not exist: the hints of `zio` lead to clean blocks. So
//! there is no dbuf cache that could starve, or pin blocks that the ARC would evict.
//!
//! Lock order: the allocation cursor (over reads of dnode blocks) → a stripe of the table →
//! a handle → the list of a txg's objects. No I/O under the last three.

pub(crate) mod account;
mod alloc;
mod blocks;
pub(crate) mod clone;
mod content;
pub(crate) mod early;
pub(crate) mod handle;
pub(crate) mod policy;
mod publish;
mod ranges;
mod receive;
mod relocate;
mod seal;
pub(crate) mod sync;
mod waves;
pub(crate) mod work;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use base::ids::{ID_RUN, IdMap};
use base::planted::BugSwitch;
use base::rt::{Mutex, RwLock};
use base::{Buf, BufMut, Error, ErrorKind, ObjectId, Result, Txg};
use ondisk::{BlkPtr, Dnode, Endian, ObjType};
use zio::Io;

use alloc::Cursor;
pub use alloc::ObjectSpec;
pub use clone::CloneOutcome;
pub use early::Early;
use handle::{Delta, Dirty, DnodeHead, HandleState, ObjectHandle, Spill, TxgSlot, slot_of};
pub use policy::{ObjsetProps, RedundantMetadata};
pub use publish::Pending;
pub use receive::{ObjectShape, Reclaimed};
pub use relocate::RelocatedTree;
pub use seal::{SealedRoot, StoredForm};
pub use sync::{Events, SyncCtx};

use crate::objset::Objset;
use crate::tx::{DirtyMeter, Tx};

const STRIPES: usize = 32;
/// Largest data block of an object (chapter 03 §3.2).
const BLOCK_MAX: u32 = 16 << 20;

/// The writable state of an object set.
pub(crate) struct LiveObjset {
    stripes: [Mutex<IdMap<u64, Arc<ObjectHandle>>>; STRIPES],
    /// The objects that each txg changed.
    dirty_objects: Mutex<BTreeMap<Txg, BTreeSet<u64>>>,
    /// The number of handles; reads skip the table while it is zero.
    handles: AtomicUsize,
    /// Counts publications.
    published: AtomicU64,
    /// The txg that was written and not published; 0 = none.
    unpublished: AtomicU64,
    cursor: Mutex<Cursor>,
    props: RwLock<Arc<ObjsetProps>>,
    /// Of an encrypted dataset whose key is not known.
    sealed: Option<seal::SealedState>,
    /// The intent log header that the next written txg stores.
    zil_header: Mutex<Option<[u8; ondisk::objset::ZIL_HEADER_SIZE]>>,
    /// The flags of the object set that the next written txg stores.
    flags: Mutex<Option<u64>>,
    /// Objects that a txg changes are charged to their owners, although not all are yet.
    accounting: std::sync::atomic::AtomicBool,
    /// The dataset was destroyed: no change is accepted any more.
    destroyed: std::sync::atomic::AtomicBool,
    /// Its blocks cannot be cloned any more (`clone`).
    clones_ended: std::sync::atomic::AtomicBool,
    /// Blocks of data that were read because a write changed a part of them.
    read_modify_writes: AtomicU64,
    /// Test instrument: the next block dirtied is put into the following txg.
    plant_wrong_txg: BugSwitch,
}

impl LiveObjset {
    pub(crate) fn new(props: ObjsetProps) -> LiveObjset {
        LiveObjset {
            stripes: std::array::from_fn(|_| Mutex::default()),
            dirty_objects: Mutex::default(),
            handles: AtomicUsize::new(0),
            published: AtomicU64::new(0),
            unpublished: AtomicU64::new(0),
            cursor: Mutex::default(),
            sealed: props.sealed.then(seal::SealedState::default),
            props: RwLock::new(Arc::new(props)),
            zil_header: Mutex::default(),
            flags: Mutex::default(),
            accounting: std::sync::atomic::AtomicBool::new(false),
            destroyed: std::sync::atomic::AtomicBool::new(false),
            clones_ended: std::sync::atomic::AtomicBool::new(false),
            read_modify_writes: AtomicU64::new(0),
            plant_wrong_txg: BugSwitch::default(),
        }
    }

    fn stripe(&self, id: u64) -> &Mutex<IdMap<u64, Arc<ObjectHandle>>> {
        let run = id / ID_RUN;
        &self.stripes[(run.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59) as usize % STRIPES]
    }

    pub(crate) fn find(&self, id: ObjectId) -> Option<Arc<ObjectHandle>> {
        if self.handles.load(SeqCst) == 0 {
            return None;
        }
        self.stripe(id.0).lock().get(&id.0).cloned()
    }

    /// The state of a block after the unwritten txgs.
    pub(crate) fn block(&self, id: ObjectId, blkid: u64, range: Range<usize>) -> Option<Dirty> {
        let handle = self.find(id)?;
        let mut inner = handle.state.lock();
        inner.block(Txg::MAX, blkid, range)
    }

    /// Whether a dirty object has a spill block.
    pub(crate) fn has_spill(&self, id: ObjectId) -> Option<bool> {
        let handle = self.find(id)?;
        let inner = handle.state.lock();
        (!inner.dead).then(|| inner.has_spill(Txg::MAX))
    }

    /// The spill block's content in the newest txg: `None` if none changed it.
    pub(crate) fn spill(&self, id: ObjectId) -> Option<Option<Buf>> {
        let handle = self.find(id)?;
        let inner = handle.state.lock();
        match inner.spill(Txg::MAX)? {
            Spill::Keep => None,
            Spill::Set(buf) | Spill::Sealed(buf, _) => Some(Some(buf.clone())),
            Spill::Remove => Some(None),
        }
    }

    /// A new intent log header waits for the next txg once this one was written.
    pub(crate) fn is_dirty(&self, txg: Txg) -> bool {
        self.dirty_objects.lock().get(&txg).is_some_and(|g| !g.is_empty())
            || self.unpublished.load(SeqCst) == 0
                && (self.zil_header.lock().is_some() || self.flags.lock().is_some())
    }

    /// Drops a handle without changes.
    fn drop_clean(&self, id: ObjectId) {
        let mut stripe = self.stripe(id.0).lock();
        let Some(handle) = stripe.get(&id.0).cloned() else { return };
        let mut inner = handle.state.lock();
        if inner.is_clean() {
            inner.dead = true;
            stripe.remove(&id.0);
            self.handles.fetch_sub(1, SeqCst);
        }
    }

    /// Whether the dataset was destroyed.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.destroyed.load(SeqCst)
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// The state of a sealed object set.
    ///
    /// # Errors
    /// `Bug` for another one.
    pub(crate) fn sealed_state(&self) -> Result<&seal::SealedState> {
        self.sealed.as_ref().ok_or_else(|| base::bug!("the object set is not sealed"))
    }

    fn check_there(&self) -> Result<()> {
        if self.is_destroyed() {
            return Err(Error::not_found("dataset does not exist"));
        }
        Ok(())
    }

    pub(crate) fn props(&self) -> Arc<ObjsetProps> {
        Arc::clone(&self.props.read())
    }
}

/// The dnode that readers get: `head` over the tree on disk.
pub(crate) fn merged(head: &DnodeHead, disk: Option<&Dnode>, flags: u8) -> Dnode {
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
    fn live(&self) -> Result<&LiveObjset> {
        self.live_part()
            .ok_or_else(|| Error::new(ErrorKind::ReadOnly, "the dataset is open for reading only"))
    }

    /// Sets how blocks written from now on are stored.
    ///
    /// # Errors
    /// `ReadOnly` when the object set is not open for writing.
    pub fn set_props(&self, props: ObjsetProps) -> Result<()> {
        self.set_tiers(props.tiers);
        let live = self.live()?;
        *live.props.write() = Arc::new(ObjsetProps { sealed: live.is_sealed(), ..props });
        Ok(())
    }

    /// How blocks written from now on are stored.
    ///
    /// # Errors
    /// `ReadOnly` when the object set is not open for writing.
    pub fn props(&self) -> Result<Arc<ObjsetProps>> {
        Ok(self.live()?.props())
    }

    /// Blocks of data (not of metadata) that were read because a write changed a part of them,
    /// since the object set was opened.
    pub fn read_modify_writes(&self) -> u64 {
        self.live_part().map_or(0, |live| live.read_modify_writes.load(SeqCst))
    }

    /// Whether `txg` has something to write here.
    pub fn is_dirty(&self, txg: Txg) -> bool {
        self.live_part().is_some_and(|l| l.is_dirty(txg))
    }

    /// Whether unwritten txgs changed an object.
    pub fn is_object_dirty(&self, id: ObjectId) -> bool {
        self.live_part().is_some_and(|l| l.find(id).is_some())
    }

    /// Test instrument: the next block that is dirtied is put into the txg after its
    /// transaction's. The simulator must detect this.
    #[doc(hidden)]
    pub fn plant_wrong_txg(&self) {
        if let Some(live) = self.live_part() {
            live.plant_wrong_txg.store(true, SeqCst);
        }
    }

    /// Finds or makes the handle of an object and calls `f` with it, in the transaction's
    /// txg.
    fn with<R>(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        f: impl FnOnce(&mut HandleState) -> Result<R>,
    ) -> Result<R> {
        let (live, txg) = (self.live()?, tx.txg());
        loop {
            let handle = match live.find(id) {
                Some(handle) => handle,
                None => self.new_handle(live, id, tx.io())?,
            };
            let mut inner = handle.state.lock();
            live.check_there()?;
            if inner.dead {
                continue;
            }
            inner.merged = None;
            let at = slot_of(txg);
            let had = inner.slots[at].is_some();
            let out = f(&mut inner);
            // A change that failed half-way is in the txg as well.
            if !had && inner.slots[at].is_some() {
                live.dirty_objects.lock().entry(txg).or_default().insert(id.0);
                // A change of the dnode alone has no bytes, and must start the txg's timer, too.
                if let Some(dirt) = tx.dirt() {
                    dirt.dirty(txg, 0);
                }
            }
            if out.is_err() && inner.is_clean() {
                drop(inner);
                live.drop_clean(id);
            }
            return out;
        }
    }

    /// As [`Objset::with`], for changes of blocks.
    fn change_blocks(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        f: impl FnOnce(&mut HandleState) -> Result<Delta>,
    ) -> Result<()> {
        self.with(tx, id, |inner| {
            let delta = f(inner)?;
            self.count(inner, tx, &delta);
            Ok(())
        })
    }

    /// Reports the delta to the cache and the throttle. The handle's lock is held, so that
    /// a thread that frees the blocks cannot report first.
    fn count(&self, inner: &mut HandleState, tx: &Tx, delta: &Delta) {
        if tx.dirt().is_none()
            && let Ok(slot) = inner.slot(tx.txg())
        {
            slot.unthrottled += delta.own;
        }
        if let Some(dirt) = tx.dirt() {
            self.report_need(inner, tx.txg(), delta, &**dirt);
        }
        self.count_memory(inner, tx, delta);
    }

    /// As [`Objset::count`], without the space that the txgs will need.
    fn count_memory(&self, inner: &mut HandleState, tx: &Tx, delta: &Delta) {
        self.cancel_clones(inner);
        let own = [(tx.txg(), delta.own)];
        for &(txg, bytes) in own.iter().chain(&delta.newer) {
            let (cache, n) = (self.zio().cache(), bytes.unsigned_abs());
            match bytes {
                0 => continue,
                1.. => cache.reserve(n),
                _ => cache.release(n),
            }
            match tx.dirt() {
                Some(dirt) if bytes > 0 => dirt.dirty(txg, n),
                Some(dirt) => dirt.clean(txg, n),
                None => {}
            }
        }
    }

    /// Reports how much space the txgs will need.
    fn report_need(&self, inner: &HandleState, txg: Txg, delta: &Delta, dirt: &dyn DirtyMeter) {
        let (Ok(live), Some(slot)) = (self.live(), inner.newest(txg)) else { return };
        let metadata = u8::from(slot.head.object_type.is_metadata());
        let copies = (live.props.read().copies + metadata).min(3);
        let own = [(txg, delta.own, delta.nodes)];
        let newer = delta.newer.iter().map(|&(txg, bytes)| (txg, bytes, slot.head.levels));
        for (txg, bytes, nodes) in own.into_iter().chain(newer) {
            match bytes {
                1.. => dirt.plan_write(txg, bytes.unsigned_abs(), copies, nodes),
                0 => {}
                _ => dirt.cancel_write(txg, bytes.unsigned_abs()),
            }
        }
    }

    fn new_handle(
        self: &Arc<Self>,
        live: &LiveObjset,
        id: ObjectId,
        io: Io,
    ) -> Result<Arc<ObjectHandle>> {
        loop {
            let published = live.published.load(SeqCst);
            let disk = self.disk_dnode(id, io)?;
            let mut stripe = live.stripe(id.0).lock();
            live.check_there()?;
            if let Some(handle) = stripe.get(&id.0) {
                return Ok(Arc::clone(handle));
            }
            // A txg was published meanwhile: the dnode just read may be stale.
            if live.published.load(SeqCst) != published {
                continue;
            }
            let handle = Arc::new(ObjectHandle::new(disk));
            stripe.insert(id.0, Arc::clone(&handle));
            live.handles.fetch_add(1, SeqCst);
            return Ok(handle);
        }
    }

    /// Calls `f` with the newest header of an object.
    pub(crate) fn head<R>(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        f: impl Fn(&DnodeHead) -> R,
    ) -> Result<R> {
        let destroyed = || Error::not_found("no such object").in_object(id);
        let mut disk = None;
        if let Some(handle) = self.live()?.find(id) {
            let inner = handle.state.lock();
            if let Some(slot) = inner.newest(tx.txg()) {
                return slot.head.allocated.then(|| f(&slot.head)).ok_or_else(destroyed);
            }
            disk.clone_from(&inner.disk);
        }
        if disk.is_none() {
            disk = self.disk_dnode(id, tx.io())?;
        }
        let dn = disk.ok_or_else(destroyed)?;
        Ok(f(&DnodeHead::of(&dn).map_err(|e| e.in_object(id))?))
    }

    /// The change count of a dirty object's content, and the value that [`Objset::keep`]
    /// stored if it is valid for that content. The stored value is removed.
    pub(crate) fn recall<T: 'static>(&self, id: ObjectId) -> (u64, Option<T>) {
        let Some(handle) = self.live().ok().and_then(|live| live.find(id)) else {
            return (0, None);
        };
        let mut inner = handle.state.lock();
        let changes = inner.changes;
        let memo = inner.memo.take().filter(|(at, _)| *at == changes);
        (changes, memo.and_then(|(_, memo)| memo.downcast().ok()).map(|memo| *memo))
    }

    /// Stores with a dirty object a value derived from its content after `changes` changes.
    /// It stays valid until the next change.
    pub(crate) fn keep<T: Send + 'static>(&self, id: ObjectId, changes: u64, memo: T) {
        if let Some(handle) = self.live().ok().and_then(|live| live.find(id)) {
            let mut inner = handle.state.lock();
            if inner.changes == changes {
                inner.memo = Some((changes, Box::new(memo)));
            }
        }
    }

    /// Replaces the bonus.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` when it does not fit the dnode, beside the spill block's
    /// pointer if there is one.
    pub fn set_bonus(self: &Arc<Self>, tx: &Tx, id: ObjectId, bonus: &[u8]) -> Result<()> {
        self.with(tx, id, |inner| {
            inner.slot(tx.txg())?;
            for slot in inner.from(tx.txg()) {
                slot.head.check_bonus(bonus.len(), inner.has_spill(slot.txg))?;
            }
            inner.change(tx.txg(), |head| head.bonus = bonus.to_vec())
        })
        .map_err(|e| e.in_object(id))
    }

    /// Changes the newest bonus, whichever txg it belongs to. `edit` is called once for
    /// each txg from the transaction's on, and must not make the bonus longer.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn edit_bonus(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        edit: &mut dyn FnMut(&mut Vec<u8>),
    ) -> Result<()> {
        self.change(tx, id, |head| {
            let room = head.bonus.len();
            edit(&mut head.bonus);
            head.bonus.truncate(room);
        })
    }

    fn change(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        change: impl FnMut(&mut DnodeHead),
    ) -> Result<()> {
        let changed = self.with(tx, id, |inner| inner.change(tx.txg(), change));
        changed.map_err(|e| e.in_object(id))
    }

    /// Changes the object's type ("zapify", chapter 04 §0).
    ///
    /// # Errors
    /// `NotFound`.
    pub fn set_object_type(self: &Arc<Self>, tx: &Tx, id: ObjectId, to: ObjType) -> Result<()> {
        self.change(tx, id, |head| head.object_type = to)
    }

    /// Changes how data is compressed; 0 = the dataset's setting.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn set_compression(self: &Arc<Self>, tx: &Tx, id: ObjectId, to: u8) -> Result<()> {
        self.change(tx, id, |head| head.compression = to)
    }

    /// Sets or removes the spill block.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for a size that no spill block has, for zeros alone (they would
    /// become a hole, which a spill block never is: chapter 03 §2.1), and when the bonus
    /// leaves no room for the pointer.
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
        if content.is_some_and(|c| c.iter().all(|&b| b == 0)) {
            return Err(Error::invalid("a spill block of zeros").in_object(id));
        }
        self.live()?.check_plain()?;
        let spill = content.map_or(Spill::Remove, |c| Spill::Set(Buf::copy_of(c)));
        self.with(tx, id, |inner| {
            inner.slot(tx.txg())?;
            for TxgSlot { head, .. } in inner.from(tx.txg()) {
                head.check_bonus(head.bonus.len(), content.is_some())?;
            }
            inner.change(tx.txg(), |head| head.spill = spill.clone())
        })
        .map_err(|e| e.in_object(id))
    }

    /// Makes the next written txg store this intent log header.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub fn set_zil_header(&self, header: [u8; ondisk::objset::ZIL_HEADER_SIZE]) -> Result<()> {
        *self.live()?.zil_header.lock() = Some(header);
        Ok(())
    }

    /// Makes the next written txg store these flags (chapter 03 §5, `os_flags`).
    ///
    /// # Errors
    /// `ReadOnly`.
    pub fn set_flags(&self, flags: u64) -> Result<()> {
        *self.live()?.flags.lock() = Some(flags);
        Ok(())
    }

    /// Charges objects that a txg changes from now on to their owners, in a file system that does
    /// not account for all yet. One of which a part was charged before goes on by itself.
    ///
    /// # Errors
    /// `ReadOnly` for an object set that is not open for writing.
    pub fn start_accounting(&self) -> Result<()> {
        self.live()?.accounting.store(true, SeqCst);
        Ok(())
    }

    /// Whether an object is charged to its owner, on disk.
    ///
    /// # Errors
    /// `NotFound`; those of reading.
    pub fn is_accounted(self: &Arc<Self>, id: ObjectId, io: Io) -> Result<bool> {
        let dnode = self.disk_dnode(id, io)?;
        let dnode = dnode.ok_or_else(|| Error::not_found("no such object").in_object(id))?;
        Ok(dnode.flags & ondisk::dnode::flags::USERUSED_ACCOUNTED != 0)
    }

    /// Writes an object's dnode again, as it is.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn touch(self: &Arc<Self>, tx: &Tx, id: ObjectId) -> Result<()> {
        self.with(tx, id, |inner| inner.change(tx.txg(), |_| {})).map_err(|e| e.in_object(id))
    }

    /// The object set's flags, as the next written txg stores them.
    pub fn flags(&self) -> u64 {
        let wanted = self.live_part().and_then(|live| *live.flags.lock());
        wanted.unwrap_or_else(|| self.phys().flags)
    }

    /// The dataset was destroyed: all dirty state is dropped, and every later change fails
    /// with `NotFound`. Returns the bytes that were dirty, by txg, and the blocks that were
    /// written early. The caller frees each of the latter in the txg of its birth.
    pub fn abandon(&self) -> (BTreeMap<Txg, u64>, Vec<BlkPtr>) {
        let (mut out, mut written) = (BTreeMap::new(), Vec::new());
        let Some(live) = self.live_part() else { return (out, written) };
        live.destroyed.store(true, SeqCst);
        for stripe in &live.stripes {
            let handles: Vec<_> = stripe.lock().drain().map(|(_, handle)| handle).collect();
            live.handles.fetch_sub(handles.len(), SeqCst);
            for handle in handles {
                let mut inner = handle.state.lock();
                (inner.dead, inner.merged) = (true, None);
                for mut slot in inner.slots.iter_mut().filter_map(Option::take) {
                    self.abandon_clones(&mut slot);
                    written.append(&mut slot.wasted);
                    written.extend(slot.early.into_values().map(|w| w.bp));
                    *out.entry(slot.txg).or_default() += slot.bytes;
                }
            }
        }
        live.dirty_objects.lock().clear();
        *live.zil_header.lock() = None;
        *live.flags.lock() = None;
        self.zio().cache().release(out.values().sum());
        (out, written)
    }
}

/// Content of a level-0 block in little-endian order.
///
/// # Errors
/// `Unsupported` for types whose byte order is not converted.
pub fn to_little(of: ObjType, buf: Buf, endian: Endian) -> Result<Buf> {
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
///
/// # Errors
/// As [`to_little`].
pub fn to_little_bonus(dn: &Dnode) -> Result<Vec<u8>> {
    Ok(to_little(dn.bonus_type, Buf::copy_of(&dn.bonus), dn.endian)?.to_vec())
}
