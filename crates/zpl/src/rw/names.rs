//! Entries of directories: adding and removing links.

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::zaps::ObjectStore;
use dmu::{Tx, Zap, ZapLimits, ZapMut};
use ondisk::sa::ZplAttr;
use ondisk::zap::Cursor;
use ondisk::znode::{
    FileType, ZFS_APPENDONLY, ZFS_IMMUTABLE, ZFS_NOUNLINK, ZFS_PROJINHERIT, ZFS_XATTR,
};

use super::make::{DNODE_BLOCK, entry_cost};
use super::node::{AttrOp, FileNode, Patch};
use super::queue::UnlinkOutcome;
use super::types::{Caller, denied, exists};
use crate::attrs::Attrs;
use crate::dir::found;
use crate::fs::FileSystem;

/// Links that a file may have (chapter 06 §5.1).
const LINKS_MAX: u32 = i32::MAX as u32;
/// Consecutive pointers without a leaf, in a directory that should be empty.
const EMPTY_STEPS: usize = 1 << 20;

/// An entry as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NameEntry {
    pub(crate) name: Vec<u8>,
    pub(crate) id: ObjectId,
}

impl FileSystem {
    /// The entry that a name matches.
    pub(crate) fn entry(&self, dir: ObjectId, name: &[u8]) -> Result<Option<NameEntry>> {
        let entry = self.read_consistent(dir, self.io(), || {
            self.entry_in(self.directory(dir, self.io())?, name, self.io())
        })?;
        let Some(entry) = entry else { return Ok(None) };
        let id = found(&entry).map_err(|e| e.in_object(dir))?.id;
        Ok(Some(NameEntry { name: entry.name, id }))
    }

    /// The entry, which must exist.
    pub(crate) fn need_entry(&self, dir: ObjectId, name: &[u8]) -> Result<NameEntry> {
        let none = || Error::not_found("no such file").in_object(dir);
        self.entry(dir, name)?.ok_or_else(none)
    }

    fn in_zap<R>(
        &self,
        tx: &Tx,
        dir: ObjectId,
        f: impl FnOnce(ZapMut<'_, ObjectStore<'_>>) -> Result<R>,
    ) -> Result<R> {
        let limits = ZapLimits { name_max: self.name_max(), ..ZapLimits::default() };
        let _turn = self.rw_always()?.seqlock.write(dir);
        self.touch(tx, dir);
        let store = ObjectStore::new(self.os(), tx, dir);
        f(ZapMut::with_limits(&store, limits)).map_err(|e| e.in_object(dir))
    }

    pub(crate) fn add_entry(
        &self,
        tx: &Tx,
        dir: ObjectId,
        name: &[u8],
        id: ObjectId,
        kind: FileType,
    ) -> Result<()> {
        self.in_zap(tx, dir, |zap| zap.add(name, &self.entry_value(id, kind)))
    }

    /// Makes an entry refer to another object.
    pub(crate) fn set_entry(
        &self,
        tx: &Tx,
        dir: ObjectId,
        name: &[u8],
        id: ObjectId,
        kind: FileType,
    ) -> Result<()> {
        self.in_zap(tx, dir, |zap| zap.update(name, &self.entry_value(id, kind)))
    }

    /// Removes the entry of exactly this name.
    pub(crate) fn remove_entry(&self, tx: &Tx, dir: ObjectId, name: &[u8]) -> Result<()> {
        self.in_zap(tx, dir, |zap| zap.remove(name))
    }

    /// Replaces the entry `from` by the entry `to` in the same directory, in one step.
    pub(crate) fn move_entry(
        &self,
        tx: &Tx,
        dir: ObjectId,
        from: &[u8],
        to: &[u8],
        replaced: Option<&[u8]>,
        moved: (ObjectId, FileType),
    ) -> Result<()> {
        self.in_zap(tx, dir, |zap| {
            let value = self.entry_value(moved.0, moved.1);
            match replaced {
                Some(old) if old == to => zap.update(to, &value)?,
                _ => zap.add(to, &value)?,
            }
            if let Some(old) = replaced.filter(|old| *old != to) {
                zap.remove(old)?;
            }
            zap.remove(from)
        })
    }

    /// Whether a directory has entries.
    pub(crate) fn is_empty(&self, dir: &FileNode) -> Result<bool> {
        let zap = Zap::open(dir.object.clone(), self.io())?;
        if let Some(header) = zap.fat_header()? {
            return Ok(header.num_entries == 0);
        }
        let mut cursor = Some(Cursor::default());
        for _ in 0..EMPTY_STEPS {
            let Some(at) = cursor else { return Ok(true) };
            let (batch, next) = zap.list_from(at, 1)?;
            if !batch.is_empty() {
                return Ok(false);
            }
            cursor = next;
        }
        Err(Error::corrupt("a directory of empty leaves").in_object(dir.id))
    }

    /// Whether `node` may get one more link (a name, or a subdirectory).
    pub(crate) fn check_links(&self, node: &FileNode) -> Result<()> {
        if node.attrs.nlink >= LINKS_MAX {
            let text = "the file has as many links as it can";
            return Err(Error::new(ErrorKind::TooManyLinks, text).in_object(node.id));
        }
        Ok(())
    }

    /// Whether the flags allow removing a name of `node` from `dir`.
    pub(crate) fn check_removal(&self, dir: &FileNode, node: &FileNode) -> Result<()> {
        if self.enforced_flags(dir) & ZFS_APPENDONLY != 0 {
            return Err(denied("entries of the directory are only added").in_object(dir.id));
        }
        if self.enforced_flags(node) & (ZFS_IMMUTABLE | ZFS_APPENDONLY | ZFS_NOUNLINK) != 0 {
            return Err(denied("the file's flags forbid it").in_object(node.id));
        }
        Ok(())
    }

    /// Whether the projects allow the file below `dir` (§7.3).
    pub(crate) fn check_project(&self, dir: &FileNode, node: &FileNode) -> Result<()> {
        let other = dir.attrs.project != node.attrs.project;
        if self.enforced_flags(dir) & ZFS_PROJINHERIT != 0 && other {
            let text = "the directory is of another project";
            return Err(Error::new(ErrorKind::CrossDevice, text).in_object(dir.id));
        }
        Ok(())
    }

    /// Gives a file one more name. One made by [`FileSystem::make_unlinked`] is removed
    /// from the delete queue.
    ///
    /// # Errors
    /// As [`FileSystem::make`]; `NotPermitted` for directories and by flags; `NotFound` for
    /// a file that was removed; `TooManyLinks`; `CrossDevice` into another project.
    pub fn link(&self, by: &Caller, id: ObjectId, dir: ObjectId, name: &[u8]) -> Result<Attrs> {
        let (rw, _) = self.rw()?;
        self.check_name(name)?;
        let _locks = rw.locks.all(&[id, dir]);
        let (parent, node) = (self.parent(dir)?, self.node(id)?);
        if node.attrs.kind == FileType::Dir {
            return Err(denied("a directory has one name").in_object(id));
        }
        if self.enforced_flags(&node) & (ZFS_IMMUTABLE | ZFS_APPENDONLY) != 0 {
            return Err(denied("the file's flags forbid it").in_object(id));
        }
        if node.attrs.pflags & ZFS_XATTR != 0 {
            return Err(Error::invalid("an extended attribute").in_object(id));
        }
        self.check_links(&node)?;
        self.check_project(&parent, &node)?;
        if self.entry(dir, name)?.is_some() {
            return Err(exists().in_object(dir));
        }
        let unnamed = node.attrs.nlink == 0;
        if unnamed && rw.holds.lock().orphans.get(&id.0) != Some(&true) {
            return Err(Error::not_found("the file was removed").in_object(id));
        }
        let _queue = unnamed.then(|| rw.queue.lock());
        let now = rw.host.now();
        let queue = if unnamed { self.queue_cost()? } else { 0 };
        let tx = self.begin_tx(entry_cost(&parent.object) + 2 * DNODE_BLOCK + queue, false)?;
        self.add_entry(&tx, dir, name, id, node.attrs.kind)?;
        if unnamed {
            self.dequeue(&tx, id)?;
            rw.holds.lock().orphans.remove(&id.0);
        }
        let patch = Patch::new()
            .changed(now)
            .and(ZplAttr::Links, AttrOp::Add(1))
            .and(ZplAttr::Parent, AttrOp::Set(dir.0));
        self.patch(&tx, &node, &patch)?;
        let patch = Patch::new().modified(now).and(ZplAttr::Size, AttrOp::Add(1));
        self.patch(&tx, &parent, &patch)?;
        self.log_linked(&tx, dir, id, name, unnamed);
        drop(tx);
        drop(_queue);
        drop(_locks);
        self.commit_if_sync_always(by, id)?;
        self.attrs(id, self.io())
    }

    /// Removes a name of anything but a directory. If it was the last name and the file is
    /// not held, the file is freed. Returns the object that the name referred to.
    ///
    /// # Errors
    /// `NotFound`; `NotDir`; `IsDir`; `NotPermitted` by flags; `ReadOnly`; those of
    /// reading. Space is not needed.
    pub fn unlink(&self, by: &Caller, dir: ObjectId, name: &[u8]) -> Result<ObjectId> {
        self.remove(by, dir, name, false)
    }

    /// Removes an empty directory; returns its object.
    ///
    /// # Errors
    /// As [`FileSystem::unlink`], `NotDir` for anything but a directory, `NotEmpty`.
    pub fn rmdir(&self, by: &Caller, dir: ObjectId, name: &[u8]) -> Result<ObjectId> {
        self.remove(by, dir, name, true)
    }

    fn remove(&self, by: &Caller, dir: ObjectId, name: &[u8], want_dir: bool) -> Result<ObjectId> {
        let (rw, _) = self.rw()?;
        self.check_name(name)?;
        loop {
            let entry = self.need_entry(dir, name)?;
            let locks = rw.locks.all(&[dir, entry.id]);
            if self.need_entry(dir, name)? != entry {
                continue;
            }
            let queued = self.remove_entry_of(dir, &entry, want_dir)?;
            drop(locks);
            self.finish_unlink(entry.id, queued)?;
            self.commit_if_sync_always(by, dir)?;
            return Ok(entry.id);
        }
    }

    /// Removes an entry whose directory and object are locked. Returns whether the object
    /// was put on the delete queue.
    fn remove_entry_of(&self, dir: ObjectId, entry: &NameEntry, want_dir: bool) -> Result<bool> {
        let rw = self.rw_always()?;
        let (parent, node) = (self.parent(dir)?, self.node(entry.id)?);
        self.check_kind(&node, want_dir)?;
        self.check_removal(&parent, &node)?;
        let unlink_outcome = self.unlink_outcome(&node)?;
        let now = rw.host.now();
        let cost = entry_cost(&parent.object) + DNODE_BLOCK + self.unlink_cost(&unlink_outcome)?;
        let tx = self.begin_tx(cost, true)?;
        self.remove_entry(&tx, dir, &entry.name)?;
        let mut patch = Patch::new().modified(now).and(ZplAttr::Size, AttrOp::Add(-1));
        if want_dir {
            patch.push(ZplAttr::Links, AttrOp::Add(-1));
        }
        self.patch(&tx, &parent, &patch)?;
        self.apply_unlink(&tx, &node, &unlink_outcome, now)?;
        self.log_removed(
            &tx,
            dir,
            &entry.name,
            want_dir,
            (!matches!(unlink_outcome, UnlinkOutcome::Stays)).then_some(node.id),
        );
        Ok(matches!(unlink_outcome, UnlinkOutcome::Queued(_)))
    }

    /// Whether the object is of the kind that the call removes.
    pub(crate) fn check_kind(&self, node: &FileNode, want_dir: bool) -> Result<()> {
        let is_dir = node.attrs.kind == FileType::Dir;
        match (is_dir, want_dir) {
            (true, false) => Err(Error::new(ErrorKind::IsDir, "is a directory").in_object(node.id)),
            (false, true) => {
                Err(Error::new(ErrorKind::NotDir, "not a directory").in_object(node.id))
            }
            (true, true) if !self.is_empty(node)? => {
                Err(Error::new(ErrorKind::NotEmpty, "directory not empty").in_object(node.id))
            }
            _ => Ok(()),
        }
    }
}
