//! Changing attributes: `setattr` (chapter 06 §5, §11.5, §15).

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::Tx;
use ondisk::acl::Ace;
use ondisk::sa::ZplAttr;
use ondisk::znode::{FileType, Time, ZFS_APPENDONLY, ZFS_IMMUTABLE, ZFS_PROJID};

use super::data::set_ids;
use super::journal::{AttrRecord, Record};
use super::make::DNODE_BLOCK;
use super::node::{AttrOp, FileNode, Patch};
use super::quota::QuotaOwner;
use super::record_attrs::{DACL_FLAGS, Dacl, RecordAttrs};
use super::types::{Caller, FILE_SIZE_MAX, RwProps, SETTABLE_FLAGS, SetAttrs, SetTime};
use super::types::{denied, too_large};
use super::xattr::Edit;
use crate::attrs::Attrs;
use crate::fs::FileSystem;

const S_ISGID: u32 = 0o2000;
/// The new owner and group, if they change.
fn owners(set: &SetAttrs, record_attrs: &RecordAttrs) -> (Option<u64>, Option<u64>) {
    (record_attrs.owner.or(set.uid.map(u64::from)), record_attrs.group.or(set.gid.map(u64::from)))
}

/// A project id that is never valid.
const PROJECT_INVALID: u32 = u32::MAX;

impl FileSystem {
    /// Changes attributes, all of them in one txg. Set-id bits are cleared by POSIX's rules
    /// as Linux applies them: with a new owner or group of anything but a directory, unless
    /// `mode` says otherwise; and with a new size. A change of the mode makes the ZFS ACL
    /// trivial, and a POSIX ACL is adapted to it.
    ///
    /// # Errors
    /// `NotFound`; `NotPermitted` by flags, or when flags need privileges; `Invalid` for a
    /// size of anything but a regular file (`IsDir` for a directory); `TooLarge`;
    /// `Unsupported` for projects where there are none; `Quota` for the new owner's;
    /// `NoSpace`; `ReadOnly`.
    pub fn set_attrs(&self, by: &Caller, id: ObjectId, set: &SetAttrs) -> Result<Attrs> {
        self.set_attrs_of(by, id, set, &RecordAttrs::default())?;
        self.commit_if_sync_always(by, id)?;
        self.attrs(id, self.io())
    }

    /// The same, with the data that only a log record has.
    pub(crate) fn set_attrs_of(
        &self,
        by: &Caller,
        id: ObjectId,
        set: &SetAttrs,
        record_attrs: &RecordAttrs,
    ) -> Result<()> {
        let (rw, props) = self.rw()?;
        let _lock = rw.locks.exclusive(id);
        let node = self.node(id)?;
        self.check_set(by, &node, set)?;
        let now = rw.host.now();
        let (mode, patch) = self.changes(by, &node, (set, record_attrs), now);
        let mut edit = Edit::new(self, node)?;
        edit.patch = patch;
        edit.attr_record =
            Record::of(set, mode, &edit.node, now).map_or(AttrRecord::Nothing, AttrRecord::Attrs);
        if let Some(mode) = mode {
            self.change_mode(&mut edit, mode, &props)?;
        }
        if let Some(project) = set.project {
            self.change_project(&mut edit, project)?;
        }
        if let Some(stamp) = &record_attrs.scanstamp {
            edit.set_scanstamp(self, stamp)?;
        }
        let (uid, gid) = owners(set, record_attrs);
        if uid.is_some() || gid.is_some() {
            edit.own_hidden(self, uid, gid)?;
        }
        match set.size.filter(|size| *size != edit.node.attrs.size) {
            None => edit.commit(self, &props),
            Some(size) => self.set_size(edit, size, &props),
        }
    }

    fn check_set(&self, by: &Caller, node: &FileNode, set: &SetAttrs) -> Result<()> {
        let flags = self.enforced_flags(node);
        let other = set.mode.is_some()
            || set.uid.is_some()
            || set.gid.is_some()
            || set.size.is_some()
            || set.mtime.is_some()
            || set.project.is_some();
        if flags & ZFS_IMMUTABLE != 0 && other {
            return Err(denied("the file is immutable").in_object(node.id));
        }
        if flags & ZFS_APPENDONLY != 0 && set.size.is_some() {
            return Err(denied("the file is only appended to").in_object(node.id));
        }
        if let Some(wanted) = set.flags {
            let guarded = ZFS_IMMUTABLE | ZFS_APPENDONLY;
            if (wanted ^ node.attrs.pflags) & guarded != 0 && !by.privileged {
                return Err(denied("these flags need privileges").in_object(node.id));
            }
        }
        if let Some(size) = set.size {
            match node.attrs.kind {
                FileType::Regular => {}
                FileType::Dir => {
                    return Err(Error::new(ErrorKind::IsDir, "is a directory").in_object(node.id));
                }
                _ => return Err(Error::invalid("not a regular file").in_object(node.id)),
            }
            if size > FILE_SIZE_MAX {
                return Err(too_large(node.id));
            }
            if size > node.attrs.size {
                self.check_quota(node)?;
            }
        }
        let moved = |new: Option<u32>, old: u64| new.filter(|n| u64::from(*n) != old);
        let uid = moved(set.uid, node.attrs.owner_fuid);
        let gid = moved(set.gid, node.attrs.group_fuid);
        if uid.is_some() || gid.is_some() {
            let own = QuotaOwner::of(&node.attrs);
            // Ids that stay the same are charged already.
            self.check_moved_quota(uid, gid, &own)?;
        }
        Ok(())
    }

    /// The new mode, if it changes, and the other changes in place.
    fn changes(
        &self,
        by: &Caller,
        node: &FileNode,
        (set, record_attrs): (&SetAttrs, &RecordAttrs),
        now: Time,
    ) -> (Option<u32>, Patch) {
        let old = node.attrs.mode & 0o7777;
        let mut patch = Patch::new();
        let mut mode = set.mode.map(|m| m & 0o7777);
        let (uid, gid) = owners(set, record_attrs);
        let owner = uid.is_some() || gid.is_some();
        let is_dir = node.attrs.kind == FileType::Dir;
        let group = set.gid.unwrap_or(node.attrs.gid);
        match &mut mode {
            Some(mode) if *mode & S_ISGID != 0 && !by.privileged && !by.in_group(group) => {
                *mode &= !S_ISGID;
            }
            Some(_) => {}
            None if owner && !is_dir && set_ids(old) != 0 => mode = Some(old & !set_ids(old)),
            None if set.size.is_some() && !by.privileged && set_ids(old) != 0 => {
                mode = Some(old & !set_ids(old));
            }
            None => {}
        }
        if let Some(uid) = uid {
            patch.push(ZplAttr::Uid, AttrOp::Set(uid));
        }
        if let Some(gid) = gid {
            patch.push(ZplAttr::Gid, AttrOp::Set(gid));
        }
        if let Some(crtime) = record_attrs.crtime {
            patch.push(ZplAttr::Crtime, AttrOp::Time(crtime));
        }
        let time = |t| match t {
            SetTime::Set(time) => time,
            SetTime::Now => now,
        };
        if let Some(atime) = set.atime {
            patch.push(ZplAttr::Atime, AttrOp::Time(time(atime)));
        }
        let mtime = set.mtime.map(time).or(set.size.map(|_| now));
        if let Some(mtime) = mtime {
            patch = patch.modified(mtime);
        }
        let ancient = self.props().version < 3;
        let (which, values) = match set.flags {
            _ if ancient => (0, 0),
            Some(flags) => (SETTABLE_FLAGS, flags & SETTABLE_FLAGS),
            None => record_attrs.flags,
        };
        if which != 0 {
            patch.push(ZplAttr::Flags, AttrOp::AndNot(which));
            patch.push(ZplAttr::Flags, AttrOp::Or(values));
        }
        let ctime = set.ctime.unwrap_or(now);
        if set.flags.is_some() || which != 0 {
            // ARCHIVE is set as requested.
            patch.push(ZplAttr::Ctime, AttrOp::Time(ctime));
        } else {
            patch = patch.changed(ctime);
        }
        // Also if nothing changes: the ACL is made equivalent to the mode.
        (mode.filter(|m| *m != old || set.mode.is_some()), patch)
    }

    /// Sets the new mode, the equivalent trivial ACL, and the POSIX ACL.
    pub(crate) fn change_mode(&self, edit: &mut Edit, mode: u32, props: &RwProps) -> Result<()> {
        let is_dir = edit.node.attrs.kind == FileType::Dir;
        let full = u64::from(edit.node.attrs.mode & !0o7777 | mode);
        edit.patch.push(ZplAttr::Mode, AttrOp::Set(full));
        if (mode ^ edit.node.attrs.mode) & 0o777 == 0 {
            return Ok(());
        }
        let dacl = Dacl::of_mode(full, is_dir);
        edit.patch.push(ZplAttr::Flags, AttrOp::AndNot(DACL_FLAGS));
        edit.patch.push(ZplAttr::Flags, AttrOp::Or(dacl.flags));
        edit.set_acl(self, dacl.aces)?;
        // A log has a separate record for it.
        if self.is_replaying() { Ok(()) } else { edit.chmod_posix(self, mode, props) }
    }

    /// Sets a ZFS ACL from a log record; the mode follows from it (§11.5).
    ///
    /// # Errors
    /// `NotFound`; `TooLarge` for one that does not fit; those of reading and of space.
    pub(crate) fn set_logged_acl(&self, id: ObjectId, aces: &[Ace], flags: u64) -> Result<()> {
        let (rw, props) = self.rw()?;
        let _lock = rw.locks.exclusive(id);
        let node = self.node(id)?;
        let attrs = &node.attrs;
        let owners = (attrs.owner_fuid, attrs.group_fuid);
        let is_dir = attrs.kind == FileType::Dir;
        let dacl = Dacl::explicit(aces, flags, u64::from(attrs.mode), owners, is_dir);
        let mut edit = Edit::new(self, node)?;
        edit.patch = Patch::new()
            .changed(rw.host.now())
            .and(ZplAttr::Mode, AttrOp::Set(dacl.mode))
            .and(ZplAttr::Flags, AttrOp::AndNot(DACL_FLAGS))
            .and(ZplAttr::Flags, AttrOp::Or(dacl.flags));
        edit.attr_record = AttrRecord::Xattrs;
        edit.set_acl(self, dacl.aces)?;
        edit.commit(self, &props)
    }

    /// The project of a regular file or directory.
    fn change_project(&self, edit: &mut Edit, project: u32) -> Result<()> {
        let id = edit.node.id;
        let none = || Error::unsupported("there are no projects here").in_object(id);
        if !self.os().props()?.count_projects || edit.node.legacy {
            return Err(none());
        }
        if project == PROJECT_INVALID
            || !matches!(edit.node.attrs.kind, FileType::Regular | FileType::Dir)
        {
            return Err(Error::invalid("this cannot have such a project").in_object(id));
        }
        if u64::from(project) != edit.node.attrs.project {
            self.check_project_quota(u64::from(project))?;
        }
        edit.set_project(self, u64::from(project))?;
        edit.patch.push(ZplAttr::Flags, AttrOp::Or(ZFS_PROJID));
        Ok(())
    }

    fn set_size(&self, edit: Edit, size: u64, props: &RwProps) -> Result<()> {
        let ready = edit.prepare(self, props)?;
        let (node, patch, cost) = (ready.node(), ready.patch(), ready.cost(self)? + DNODE_BLOCK);
        let also = |tx: &Tx, patch: Patch| ready.apply(self, tx, patch);
        self.resize(node, size, props, patch, also, cost)
    }
}
