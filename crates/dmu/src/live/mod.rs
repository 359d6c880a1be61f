//! The writable side of an object set: dirty objects, and the calls that change them.
//!
//! # Theory
//! Clean state lives on disk and in the cache; what groups changed and is not on disk
//! yet lives here (decision 5). A `handle::Handle` exists for each dirty object and
//! holds one slot for each group that changed it: the dnode as the group leaves it,
//! the blocks it wrote, the ranges it freed. A read asks the slots, newest first, and
//! then the disk. While a group is written its blocks are frozen; a newer write
//! copies. When the group is on disk ([`crate::live::Pending::publish`]) the new dnode
//! takes the old one's place and the slot goes; with the last slot the handle goes.
//!
//! Transactions of two groups may change one object at a time, in either order. What
//! the older group does is done to what the newer one made of it as well, so that the
//! last call wins, whatever its group. Only the block size must not be changed by one
//! group while an older one still writes behind block 0.
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
mod blocks;
pub(crate) mod early;
pub(crate) mod handle;
pub(crate) mod policy;
mod publish;
mod ranges;
pub(crate) mod sync;
mod waves;
pub(crate) mod work;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use base::ids::{ID_RUN, IdMap};
use base::rt::{Mutex, RwLock};
use base::{Buf, BufMut, Error, ErrorKind, ObjectId, Result, Txg};
use ondisk::{BlkPtr, Dnode, Endian, ObjType};
use zio::Io;

use alloc::Cursor;
pub use alloc::ObjectSpec;
pub use early::Early;
use handle::{Delta, Dirty, Handle, Head, Inner, Slot, Spill, slot_of};
pub use policy::{ObjsetProps, RedundantMetadata};
pub use publish::Pending;
pub use sync::{Events, SyncCtx};

use crate::objset::Objset;
use crate::tx::{Dirt, Tx};

const STRIPES: usize = 32;
/// Largest data block of an object (chapter 03 §3.2).
const BLOCK_MAX: u32 = 16 << 20;

/// What makes an object set writable.
pub(crate) struct Live {
    stripes: [Mutex<IdMap<u64, Arc<Handle>>>; STRIPES],
    /// Which objects each group changed.
    groups: Mutex<BTreeMap<Txg, BTreeSet<u64>>>,
    /// Handles there are; reads skip the table while there are none.
    handles: AtomicUsize,
    /// Counts publications.
    published: AtomicU64,
    /// The group that was written and not published; 0 = none.
    unpublished: AtomicU64,
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
            unpublished: AtomicU64::new(0),
            cursor: Mutex::default(),
            props: RwLock::new(Arc::new(props)),
            zil_header: Mutex::default(),
            flags: Mutex::default(),
            gone: std::sync::atomic::AtomicBool::new(false),
            plant_wrong_group: std::sync::atomic::AtomicBool::new(false),
        }
    }

    fn stripe(&self, id: u64) -> &Mutex<IdMap<u64, Arc<Handle>>> {
        let run = id / ID_RUN;
        &self.stripes[(run.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59) as usize % STRIPES]
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
        let mut inner = handle.state.lock();
        inner.block(Txg::MAX, blkid, range)
    }

    /// Whether a dirty object has a spill block.
    pub(crate) fn has_spill(&self, id: ObjectId) -> Option<bool> {
        let handle = self.find(id)?;
        let inner = handle.state.lock();
        (!inner.dead).then(|| inner.has_spill(Txg::MAX))
    }

    /// The spill block's content in the newest group: `None` if none changed it.
    pub(crate) fn spill(&self, id: ObjectId) -> Option<Option<Buf>> {
        let handle = self.find(id)?;
        let inner = handle.state.lock();
        match inner.spill(Txg::MAX)? {
            Spill::Keep => None,
            Spill::Set(buf) => Some(Some(buf.clone())),
            Spill::Remove => Some(None),
        }
    }

    /// A header of the intent log waits for the next group once this one was written.
    pub(crate) fn is_dirty(&self, txg: Txg) -> bool {
        self.groups.lock().get(&txg).is_some_and(|g| !g.is_empty())
            || self.unpublished.load(SeqCst) == 0
                && (self.zil_header.lock().is_some() || self.flags.lock().is_some())
    }

    /// Drops a handle that nothing came of.
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
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(SeqCst)
    }

    fn check_there(&self) -> Result<()> {
        if self.is_gone() {
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

    /// Whether unwritten groups changed an object.
    pub fn is_object_dirty(&self, id: ObjectId) -> bool {
        self.live_part().is_some_and(|l| l.find(id).is_some())
    }

    /// Test instrument: the next block that is dirtied goes into the group after its
    /// transaction's. The simulator must notice.
    #[doc(hidden)]
    pub fn plant_wrong_group(&self) {
        if let Some(live) = self.live_part() {
            live.plant_wrong_group.store(true, SeqCst);
        }
    }

    /// Finds or makes the handle of an object and does `f` with it, in group `txg`.
    fn with<R>(
        self: &Arc<Self>,
        txg: Txg,
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
            inner.shown = None;
            let at = slot_of(txg);
            let had = inner.slots[at].is_some();
            let out = f(&mut inner);
            // Also what failed half-way is in the group.
            if !had && inner.slots[at].is_some() {
                live.groups.lock().entry(txg).or_default().insert(id.0);
            }
            if out.is_err() && inner.is_clean() {
                drop(inner);
                live.drop_clean(id);
            }
            return out;
        }
    }

    /// As [`Objset::with`], for what changes blocks.
    fn change_blocks(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        f: impl FnOnce(&mut Inner) -> Result<Delta>,
    ) -> Result<()> {
        self.with(tx.txg(), id, |inner| {
            let delta = f(inner)?;
            self.count(inner, tx, &delta);
            Ok(())
        })
    }

    /// Tells the cache and the throttle. The handle is held: otherwise who frees the
    /// blocks at once might do so first.
    fn count(&self, inner: &mut Inner, tx: &Tx, delta: &Delta) {
        if tx.dirt().is_none()
            && let Ok(slot) = inner.slot(tx.txg())
        {
            slot.untold += delta.own;
        }
        if let Some(dirt) = tx.dirt() {
            self.tell_need(inner, tx.txg(), delta, &**dirt);
        }
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

    /// Tells how much space the groups will need.
    fn tell_need(&self, inner: &Inner, txg: Txg, delta: &Delta, dirt: &dyn Dirt) {
        let (Ok(live), Some(slot)) = (self.live(), inner.newest(txg)) else { return };
        let metadata = u8::from(slot.head.object_type.is_metadata());
        let copies = (live.props.read().copies + metadata).min(3);
        let own = [(txg, delta.own, delta.nodes)];
        let newer = delta.newer.iter().map(|&(txg, bytes)| (txg, bytes, slot.head.levels));
        for (txg, bytes, nodes) in own.into_iter().chain(newer) {
            match bytes {
                1.. => dirt.place(txg, bytes.unsigned_abs(), copies, nodes),
                0 => {}
                _ => dirt.unplace(txg, bytes.unsigned_abs()),
            }
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

    /// The newest header of an object, as `f` sees it.
    pub(crate) fn head<R>(
        self: &Arc<Self>,
        tx: &Tx,
        id: ObjectId,
        f: impl Fn(&Head) -> R,
    ) -> Result<R> {
        let gone = || Error::not_found("no such object").in_object(id);
        let mut disk = None;
        if let Some(handle) = self.live()?.find(id) {
            let inner = handle.state.lock();
            if let Some(slot) = inner.newest(tx.txg()) {
                return slot.head.allocated.then(|| f(&slot.head)).ok_or_else(gone);
            }
            disk.clone_from(&inner.disk);
        }
        if disk.is_none() {
            disk = self.disk_dnode(id, Io::WAIT)?;
        }
        let dn = disk.ok_or_else(gone)?;
        Ok(f(&Head::of(&dn).map_err(|e| e.in_object(id))?))
    }

    /// How often a dirty object's content was changed, and what [`Objset::keep`] kept if it
    /// is of that content; it is gone then.
    pub(crate) fn recall<T: 'static>(&self, id: ObjectId) -> (u64, Option<T>) {
        let Some(handle) = self.live().ok().and_then(|live| live.find(id)) else {
            return (0, None);
        };
        let mut inner = handle.state.lock();
        let changes = inner.changes;
        let memo = inner.memo.take().filter(|(at, _)| *at == changes);
        (changes, memo.and_then(|(_, memo)| memo.downcast().ok()).map(|memo| *memo))
    }

    /// Keeps with a dirty object what was made of its content after so many changes, as
    /// long as there are no others.
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
        self.with(tx.txg(), id, |inner| {
            inner.slot(tx.txg())?;
            for slot in inner.from(tx.txg()) {
                slot.head.check_bonus(bonus.len(), inner.has_spill(slot.txg))?;
            }
            inner.change(tx.txg(), |head| head.bonus = bonus.to_vec())
        })
        .map_err(|e| e.in_object(id))
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
        change: impl FnMut(&mut Head),
    ) -> Result<()> {
        let changed = self.with(tx.txg(), id, |inner| inner.change(tx.txg(), change));
        changed.map_err(|e| e.in_object(id))
    }

    /// Changes the object's type ("zapify", chapter 04 §0).
    ///
    /// # Errors
    /// `NotFound`.
    pub fn set_object_type(self: &Arc<Self>, tx: &Tx, id: ObjectId, to: ObjType) -> Result<()> {
        self.change(tx, id, |head| head.object_type = to)
    }

    /// Changes the type of the bonus.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn set_bonus_type(self: &Arc<Self>, tx: &Tx, id: ObjectId, to: ObjType) -> Result<()> {
        self.change(tx, id, |head| head.bonus_type = to)
    }

    /// Changes how data is compressed, 0 = as the dataset says.
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
        let spill = content.map_or(Spill::Remove, |c| Spill::Set(Buf::copy_of(c)));
        self.with(tx.txg(), id, |inner| {
            inner.slot(tx.txg())?;
            for Slot { head, .. } in inner.from(tx.txg()) {
                head.check_bonus(head.bonus.len(), content.is_some())?;
            }
            inner.change(tx.txg(), |head| head.spill = spill.clone())
        })
        .map_err(|e| e.in_object(id))
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
    /// fails with `NotFound`. Bytes that were dirty, by group; and blocks that were written
    /// early: who calls frees each of them in the group of its birth.
    pub fn abandon(&self) -> (BTreeMap<Txg, u64>, Vec<BlkPtr>) {
        let (mut out, mut written) = (BTreeMap::new(), Vec::new());
        let Some(live) = self.live_part() else { return (out, written) };
        live.gone.store(true, SeqCst);
        for stripe in &live.stripes {
            let handles: Vec<_> = stripe.lock().drain().map(|(_, handle)| handle).collect();
            live.handles.fetch_sub(handles.len(), SeqCst);
            for handle in handles {
                let mut inner = handle.state.lock();
                (inner.dead, inner.shown) = (true, None);
                for mut slot in inner.slots.iter_mut().filter_map(Option::take) {
                    written.append(&mut slot.wasted);
                    written.extend(slot.early.into_values().map(|w| w.bp));
                    *out.entry(slot.txg).or_default() += slot.bytes;
                }
            }
        }
        live.groups.lock().clear();
        *live.zil_header.lock() = None;
        *live.flags.lock() = None;
        self.zio().cache().release(out.values().sum());
        (out, written)
    }
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
