//! Objects without names: holds, the delete queue, freeing in bounded transactions
//! (chapter 06 §13).

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use dmu::{Object, Tx, Zap, ZapEntry, zaps};
use ondisk::ObjType;
use ondisk::sa::ZplAttr;
use ondisk::zap::{Cursor, ZapValue};
use ondisk::znode::{FileType, Time, ZFS_XATTR};

use super::make::{DNODE_BLOCK, entry_cost};
use super::node::{AttrOp, FileNode, Patch};
use super::state::Rw;
use crate::dir::found;
use crate::fs::FileSystem;

/// Data blocks that one transaction frees at most: those below 16 lowest indirect blocks of
/// 1024 pointers.
pub(crate) const FREE_BLOCKS: u64 = 16 << 10;
/// Data blocks that one txg frees before a thread that frees more waits for it.
const TXG_BLOCKS: u64 = 256 << 10;
/// Consecutive leaves of a ZAP without an entry.
const EMPTY_STEPS: usize = 1 << 20;

/// The consequence of removing a name of an object.
pub(crate) enum UnlinkOutcome<'a> {
    /// It has other names.
    Stays,
    /// The object is freed at once, because no handle refers to it.
    Goes(#[expect(dead_code, reason = "until its drop")] Dying<'a>),
    /// It is put on the delete queue.
    Queued(#[expect(dead_code, reason = "until its drop")] base::rt::MutexGuard<'a, ()>),
}

/// An object is being freed: new holds fail.
pub(crate) struct Dying<'a> {
    rw: &'a Rw,
    id: ObjectId,
}

impl Drop for Dying<'_> {
    fn drop(&mut self) {
        self.rw.holds.lock().dying.remove(&self.id.0);
    }
}

/// Marks an object as dying unless it is held.
fn mark_dying(rw: &Rw, id: ObjectId) -> Option<Dying<'_>> {
    let mut holds = rw.holds.lock();
    let free = !holds.count.contains_key(&id.0) && holds.dying.insert(id.0);
    // Constructed only if needed: its drop takes the lock that is held here.
    free.then(|| Dying { rw, id })
}

fn key(id: ObjectId) -> Vec<u8> {
    format!("{:x}", id.0).into_bytes()
}

/// Whether one transaction can free the object's blocks along with other changes.
fn is_small(object: &Object) -> bool {
    object.dnode().max_blkid < FREE_BLOCKS
}

impl FileSystem {
    fn queue_id(&self) -> Result<ObjectId> {
        let none = || Error::corrupt("the file system has no delete queue");
        self.props().delete_queue.ok_or_else(none)
    }

    /// Bytes that a change of the queue makes dirty.
    pub(crate) fn queue_cost(&self) -> Result<u64> {
        Ok(entry_cost(&self.object(self.queue_id()?, self.io())?) + DNODE_BLOCK)
    }

    /// Puts an object on the queue; the caller holds its lock and the queue's.
    pub(crate) fn enqueue(&self, tx: &Tx, id: ObjectId) -> Result<()> {
        let queue = self.queue_id()?;
        let _turn = self.rw_always()?.seqlock.write(queue);
        zaps::update(self.os(), tx, queue, &key(id), &ZapValue::from_u64(id.0))
    }

    pub(crate) fn dequeue(&self, tx: &Tx, id: ObjectId) -> Result<()> {
        let queue = self.queue_id()?;
        let _turn = self.rw_always()?.seqlock.write(queue);
        match zaps::remove(self.os(), tx, queue, &key(id)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// The consequence of removing one name of `node`. Determined before the transaction.
    pub(crate) fn unlink_outcome(&self, node: &FileNode) -> Result<UnlinkOutcome<'_>> {
        let rw = self.rw_always()?;
        if node.attrs.kind != FileType::Dir && node.attrs.nlink > 1 {
            return Ok(UnlinkOutcome::Stays);
        }
        let plain = is_small(&node.object) && self.hidden_dir(node)?.is_none();
        if plain && let Some(dying) = mark_dying(rw, node.id) {
            return Ok(UnlinkOutcome::Goes(dying));
        }
        Ok(UnlinkOutcome::Queued(rw.queue.lock()))
    }

    /// Bytes that the removal makes dirty.
    pub(crate) fn unlink_cost(&self, unlink_outcome: &UnlinkOutcome<'_>) -> Result<u64> {
        Ok(DNODE_BLOCK
            + match unlink_outcome {
                UnlinkOutcome::Queued(_) => self.queue_cost()?,
                _ => 0,
            })
    }

    /// Applies it; the caller holds the object's lock.
    pub(crate) fn apply_unlink(
        &self,
        tx: &Tx,
        node: &FileNode,
        unlink_outcome: &UnlinkOutcome<'_>,
        now: Time,
    ) -> Result<()> {
        match unlink_outcome {
            UnlinkOutcome::Stays => {
                let patch = Patch::new().changed(now).and(ZplAttr::Links, AttrOp::Add(-1));
                self.patch(tx, node, &patch)
            }
            UnlinkOutcome::Goes(_) => self.free_now(tx, node),
            UnlinkOutcome::Queued(_) => {
                let patch = Patch::new().changed(now).and(ZplAttr::Links, AttrOp::Set(0));
                self.enqueue(tx, node.id)?;
                self.patch(tx, node, &patch)?;
                self.rw_always()?.holds.lock().orphans.insert(node.id.0, false);
                Ok(())
            }
        }
    }

    /// After the transaction: frees the object if it was queued and is not held.
    pub(crate) fn finish_unlink(&self, id: ObjectId, queued: bool) -> Result<()> {
        if !queued {
            return Ok(());
        }
        let rw = self.rw_always()?;
        match mark_dying(rw, id) {
            Some(_dying) => self.reap(id).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Frees an object and its parts.
    fn free_now(&self, tx: &Tx, node: &FileNode) -> Result<()> {
        let rw = self.rw_always()?;
        let _forgotten = rw.times.take(node.id);
        let _turn = rw.seqlock.write(node.id);
        self.touch(tx, node.id);
        self.os().free_object(tx, node.id)?;
        self.free_external_acl(tx, node)
    }

    /// Frees an object from before version 5 and the object of its ACL.
    pub(crate) fn free_external_acl(&self, tx: &Tx, node: &FileNode) -> Result<()> {
        let acl = self.external_acl(node).ok().flatten();
        // Only the object of an ACL is freed, not an arbitrary one that a damaged structure
        // refers to.
        if let Some(acl) = acl
            && let Ok(object) = self.object(acl, self.io())
            && matches!(object.object_type(), ObjType(18 | 33))
        {
            self.os().free_object(tx, acl)?;
        }
        Ok(())
    }

    /// The hidden directory of a file, if the attribute certainly refers to one.
    ///
    /// # Errors
    /// `Corrupt` when the attribute refers to another object; those of reading.
    pub(crate) fn hidden_dir(&self, node: &FileNode) -> Result<Option<ObjectId>> {
        if !node.attrs.may_have_xattrs {
            return Ok(None);
        }
        let dir = match crate::attrs::legacy(&node.object)? {
            Some(znode) => znode.xattr,
            None => self.u64_attr(&node.object, ZplAttr::Xattr, self.io())?.filter(|x| *x != 0),
        };
        let Some(dir) = dir.map(ObjectId) else { return Ok(None) };
        let attrs = self.attrs_of(&self.directory(dir, self.io())?, self.io())?;
        if attrs.pflags & ZFS_XATTR == 0 || attrs.parent != node.id {
            let text = "the hidden directory belongs to another file";
            return Err(Error::corrupt(text).in_object(node.id));
        }
        Ok(Some(dir))
    }

    /// Counts blocks that a txg frees; waits for the txg when there are many. The caller
    /// must not have a transaction open.
    pub(crate) fn throttle_frees(&self, txg: Txg, blocks: u64) -> Result<()> {
        let rw = self.rw_always()?;
        let full = {
            let mut freeing = rw.freeing.lock();
            if freeing.0 != txg {
                *freeing = (txg, 0);
            }
            freeing.1 += blocks;
            freeing.1 > TXG_BLOCKS
        };
        if full { rw.host.synced(txg) } else { Ok(()) }
    }

    /// Frees data blocks in `[first, past)` of an object whose lock the caller holds,
    /// except the last [`FREE_BLOCKS`]. The caller frees those together with its other
    /// changes.
    ///
    /// # Errors
    /// Those of reading indirect blocks, of beginning transactions, and of waiting.
    pub(crate) fn free_most(&self, id: ObjectId, first: u64, past: u64) -> Result<()> {
        let mut at = first;
        loop {
            let object = self.object(id, self.io())?;
            let past = past.min(object.dnode().max_blkid.saturating_add(1));
            if at >= past || past - at <= FREE_BLOCKS {
                return Ok(());
            }
            let Some(data) = object.next_data_block(at, self.io())?.filter(|b| *b < past) else {
                return Ok(());
            };
            let upto = data.saturating_add(FREE_BLOCKS);
            if upto >= past {
                return Ok(());
            }
            let tx = self.begin_tx(2 * DNODE_BLOCK, true)?;
            self.os().free_blocks(&tx, id, data, upto, false)?;
            self.touch(&tx, id);
            let txg = tx.txg();
            drop(tx);
            self.throttle_frees(txg, FREE_BLOCKS)?;
            at = upto;
        }
    }

    /// Frees a queued object that is not held, with its hidden directory and the files in
    /// it. Returns the number of objects.
    fn reap(&self, id: ObjectId) -> Result<u64> {
        let rw = self.rw_always()?;
        let (mut work, mut freed) = (vec![id], 0);
        while let Some(id) = work.pop() {
            // No other thread has a reference to the objects found through this one.
            let _lock = rw.locks.exclusive(id);
            let node = match self.node(id) {
                Ok(node) => node,
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    self.forget(id)?;
                    continue;
                }
                Err(e) => return Err(e),
            };
            if node.attrs.nlink != 0 || id == self.root() {
                continue;
            }
            let hidden = node.attrs.kind == FileType::Dir && node.attrs.pflags & ZFS_XATTR != 0;
            if hidden {
                self.empty_hidden(&node, &mut work, &mut freed)?;
            } else if node.attrs.kind != FileType::Dir {
                self.free_most(id, 0, u64::MAX)?;
            }
            let inner = self.hidden_dir(&node).ok().flatten();
            let inner = inner.map(|dir| self.node(dir)).transpose()?;
            let _queue = rw.queue.lock();
            let tx = self.begin_tx(4 * DNODE_BLOCK + 2 * self.queue_cost()?, true)?;
            if let Some(inner) = inner {
                self.enqueue(&tx, inner.id)?;
                self.patch(&tx, &inner, &Patch::new().and(ZplAttr::Links, AttrOp::Set(0)))?;
                work.push(inner.id);
            }
            self.dequeue(&tx, id)?;
            self.free_now(&tx, &node)?;
            let txg = tx.txg();
            drop(tx);
            rw.holds.lock().orphans.remove(&id.0);
            freed += 1;
            self.throttle_frees(
                txg,
                node.object.dnode().max_blkid.saturating_add(1).min(FREE_BLOCKS),
            )?;
        }
        Ok(freed)
    }

    /// Removes an entry of the queue whose object does not exist.
    fn forget(&self, id: ObjectId) -> Result<()> {
        let rw = self.rw_always()?;
        let _queue = rw.queue.lock();
        let tx = self.begin_tx(self.queue_cost()?, true)?;
        rw.holds.lock().orphans.remove(&id.0);
        self.dequeue(&tx, id)
    }

    /// Empties a hidden directory on the queue: small files are freed at once, others are
    /// queued.
    fn empty_hidden(
        &self,
        dir: &FileNode,
        work: &mut Vec<ObjectId>,
        freed: &mut u64,
    ) -> Result<()> {
        let rw = self.rw_always()?;
        loop {
            let object = self.object(dir.id, self.io())?;
            let batch = first_entries(&Zap::open(object.clone(), self.io())?)?;
            if batch.is_empty() {
                return Ok(());
            }
            for entry in batch {
                let file = found(&entry).ok().and_then(|f| self.node(f.id).ok());
                let own = |n: &FileNode| {
                    n.attrs.pflags & ZFS_XATTR != 0
                        && n.attrs.parent == dir.id
                        && n.attrs.nlink <= 1
                        && n.attrs.kind != FileType::Dir
                };
                let file = file.filter(own);
                let _queue = rw.queue.lock();
                let cost = 2 * DNODE_BLOCK + entry_cost(&object) + self.queue_cost()?;
                let tx = self.begin_tx(cost, true)?;
                self.remove_entry(&tx, dir.id, &entry.name)?;
                let Some(file) = file else { continue };
                if is_small(&file.object) {
                    self.free_now(&tx, &file)?;
                    *freed += 1;
                } else {
                    self.enqueue(&tx, file.id)?;
                    self.patch(&tx, &file, &Patch::new().and(ZplAttr::Links, AttrOp::Set(0)))?;
                    work.push(file.id);
                }
            }
        }
    }

    /// Keeps an object even if it loses its last name, because it is open.
    ///
    /// # Errors
    /// `NotFound` when it was freed already; those of reading its dnode.
    pub fn hold(&self, id: ObjectId) -> Result<()> {
        let Some(rw) = self.rw_part() else { return Ok(()) };
        {
            let mut holds = rw.holds.lock();
            if holds.dying.contains(&id.0) {
                return Err(Error::not_found("the file was removed").in_object(id));
            }
            *holds.count.entry(id.0).or_default() += 1;
        }
        let there = self.object(id, self.io());
        if there.is_err() {
            unhold(rw, id);
        }
        there.map(|_| ())
    }

    /// Ends a hold. The last release stores the time of access, and frees the object if it
    /// has no name; freeing a large object takes time.
    ///
    /// # Errors
    /// `Invalid` without a hold; those of freeing: then the object stays on the queue.
    pub fn release(&self, id: ObjectId) -> Result<()> {
        let Some(rw) = self.rw_part() else { return Ok(()) };
        let Some(last) = unhold(rw, id) else {
            return Err(Error::invalid("the object is not held").in_object(id));
        };
        if !last {
            return Ok(());
        }
        if rw.holds.lock().orphans.contains_key(&id.0) {
            return self.finish_unlink(id, true);
        }
        self.store_times(&[id])
    }

    /// Frees the objects on the delete queue that are not held; after a mount, those that a
    /// crash left there. Returns the number of objects. Entries without an object are
    /// removed. Entries of an object with names, or of an object that is no file, are left.
    ///
    /// # Errors
    /// `Corrupt` when the queue cannot be read, those of freeing. An object that cannot be
    /// freed does not keep the others from it; the first error is returned in the end.
    pub fn empty_delete_queue(&self) -> Result<u64> {
        let rw = self.rw_always()?;
        let queue = self.queue_id()?;
        let (mut cursor, mut freed, mut first) = (Some(Cursor::default()), 0, None);
        let mut empty = 0;
        while let Some(at) = cursor {
            let (batch, next) = self.read_consistent(queue, self.io(), || {
                Zap::open(self.object(queue, self.io())?, self.io())?.list_from(at, 256)
            })?;
            empty = if batch.is_empty() { empty + 1 } else { 0 };
            if empty > EMPTY_STEPS {
                return Err(Error::corrupt("a queue of empty leaves").in_object(queue));
            }
            for entry in batch {
                let Some(id) = entry.value.first_u64().map(ObjectId) else { continue };
                if key(id) != entry.name {
                    continue;
                }
                let Some(_dying) = mark_dying(rw, id) else { continue };
                match self.reap(id) {
                    Ok(n) => freed += n,
                    Err(e) if e.kind() == ErrorKind::NotFound => {}
                    Err(e) => first = first.or(Some(e)),
                }
            }
            cursor = next;
        }
        first.map_or(Ok(freed), Err)
    }
}

/// Drops one hold. Returns whether it was the last; `None` if there was none.
fn unhold(rw: &Rw, id: ObjectId) -> Option<bool> {
    let mut holds = rw.holds.lock();
    let count = holds.count.get_mut(&id.0)?;
    *count -= 1;
    let last = *count == 0;
    if last {
        holds.count.remove(&id.0);
    }
    Some(last)
}

/// Some entries of a ZAP; none if it is empty.
fn first_entries(zap: &Zap) -> Result<Vec<ZapEntry>> {
    let mut cursor = Some(Cursor::default());
    for _ in 0..EMPTY_STEPS {
        let Some(at) = cursor else { return Ok(Vec::new()) };
        let (batch, next) = zap.list_from(at, 64)?;
        if !batch.is_empty() {
            return Ok(batch);
        }
        cursor = next;
    }
    Err(Error::corrupt("a directory of empty leaves").in_object(zap.object().id()))
}
