//! Changing attributes: `setattr` (chapter 06 §5, §11.5, §15).

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::{Io, Tx};
use ondisk::acl::Ace;
use ondisk::sa::ZplAttr;
use ondisk::znode::{FileType, Time, ZFS_APPENDONLY, ZFS_IMMUTABLE, ZFS_PROJID};

use super::data::set_ids;
use super::given::{DACL_FLAGS, Dacl, Given};
use super::journal::{Record, Said};
use super::make::DNODE_BLOCK;
use super::node::{Do, Node, Patch};
use super::quota::Owner;
use super::types::{Caller, FILE_SIZE_MAX, RwProps, SETTABLE_FLAGS, SetAttrs, SetTime};
use super::types::{denied, too_large};
use super::xattr::Edit;
use crate::attrs::Attrs;
use crate::fs::FileSystem;

const S_ISGID: u32 = 0o2000;
/// The new owner and group, if there are.
fn owners(set: &SetAttrs, given: &Given) -> (Option<u64>, Option<u64>) {
    (given.owner.or(set.uid.map(u64::from)), given.group.or(set.gid.map(u64::from)))
}

/// A project that nothing can have.
const PROJECT_INVALID: u32 = u32::MAX;

impl FileSystem {
    /// Changes attributes, all of them in one group. Set-id bits go by POSIX's rules as
    /// Linux has them: with the owner or the group of anything but a directory, unless
    /// `mode` says otherwise; and with the size. A change of the mode makes the ZFS ACL
    /// trivial, and a POSIX ACL follows it.
    ///
    /// # Errors
    /// `NotFound`; `NotPermitted` by flags, or when flags need privileges; `Invalid` for a
    /// size of what is no regular file (`IsDir`); `TooLarge`; `Unsupported` for projects
    /// where there are none; `Quota` for the new owner's; `NoSpace`; `ReadOnly`.
    pub fn set_attrs(&self, by: &Caller, id: ObjectId, set: &SetAttrs) -> Result<Attrs> {
        self.set_attrs_of(by, id, set, &Given::default())?;
        self.promise(id)?;
        self.attrs(id, Io::WAIT)
    }

    /// The same, and what only a record tells.
    pub(crate) fn set_attrs_of(
        &self,
        by: &Caller,
        id: ObjectId,
        set: &SetAttrs,
        given: &Given,
    ) -> Result<()> {
        let (rw, props) = self.rw()?;
        let _lock = rw.locks.exclusive(id);
        let node = self.node(id)?;
        self.check_set(by, &node, set)?;
        let now = rw.host.now();
        let (mode, patch) = self.changes(by, &node, (set, given), now);
        let mut edit = Edit::new(self, node)?;
        edit.patch = patch;
        edit.said = Record::of(set, mode, &edit.node, now).map_or(Said::Nothing, Said::Attrs);
        if let Some(mode) = mode {
            self.change_mode(&mut edit, mode, &props)?;
        }
        if let Some(project) = set.project {
            self.change_project(&mut edit, project)?;
        }
        if let Some(stamp) = &given.scanstamp {
            edit.set_scanstamp(self, stamp)?;
        }
        let (uid, gid) = owners(set, given);
        if uid.is_some() || gid.is_some() {
            edit.own_hidden(self, uid, gid)?;
        }
        match set.size.filter(|size| *size != edit.node.attrs.size) {
            None => edit.commit(self, &props),
            Some(size) => self.set_size(edit, size, &props),
        }
    }

    fn check_set(&self, by: &Caller, node: &Node, set: &SetAttrs) -> Result<()> {
        let flags = self.guards(node);
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
            let own = Owner::of(&node.attrs);
            // Whoever stays is charged already.
            self.check_moved_quota(uid, gid, &own)?;
        }
        Ok(())
    }

    /// The new mode, if it changes, and what else changes in place.
    fn changes(
        &self,
        by: &Caller,
        node: &Node,
        (set, given): (&SetAttrs, &Given),
        now: Time,
    ) -> (Option<u32>, Patch) {
        let old = node.attrs.mode & 0o7777;
        let mut patch = Patch::new();
        let mut mode = set.mode.map(|m| m & 0o7777);
        let (uid, gid) = owners(set, given);
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
            patch.push(ZplAttr::Uid, Do::Set(uid));
        }
        if let Some(gid) = gid {
            patch.push(ZplAttr::Gid, Do::Set(gid));
        }
        if let Some(crtime) = given.crtime {
            patch.push(ZplAttr::Crtime, Do::Time(crtime));
        }
        let time = |t| match t {
            SetTime::Set(time) => time,
            SetTime::Now => now,
        };
        if let Some(atime) = set.atime {
            patch.push(ZplAttr::Atime, Do::Time(time(atime)));
        }
        let mtime = set.mtime.map(time).or(set.size.map(|_| now));
        if let Some(mtime) = mtime {
            patch = patch.modified(mtime);
        }
        let ancient = self.props().version < 3;
        let (which, values) = match set.flags {
            _ if ancient => (0, 0),
            Some(flags) => (SETTABLE_FLAGS, flags & SETTABLE_FLAGS),
            None => given.flags,
        };
        if which != 0 {
            patch.push(ZplAttr::Flags, Do::AndNot(which));
            patch.push(ZplAttr::Flags, Do::Or(values));
        }
        let ctime = set.ctime.unwrap_or(now);
        if set.flags.is_some() || which != 0 {
            // ARCHIVE is what was asked for.
            patch.push(ZplAttr::Ctime, Do::Time(ctime));
        } else {
            patch = patch.changed(ctime);
        }
        // Also where nothing changes: the ACL is what the mode says.
        (mode.filter(|m| *m != old || set.mode.is_some()), patch)
    }

    /// The new mode, the trivial ACL that says the same, and the POSIX ACL.
    pub(crate) fn change_mode(&self, edit: &mut Edit, mode: u32, props: &RwProps) -> Result<()> {
        let is_dir = edit.node.attrs.kind == FileType::Dir;
        let full = u64::from(edit.node.attrs.mode & !0o7777 | mode);
        edit.patch.push(ZplAttr::Mode, Do::Set(full));
        if (mode ^ edit.node.attrs.mode) & 0o777 == 0 {
            return Ok(());
        }
        let dacl = Dacl::of_mode(full, is_dir);
        edit.patch.push(ZplAttr::Flags, Do::AndNot(DACL_FLAGS));
        edit.patch.push(ZplAttr::Flags, Do::Or(dacl.flags));
        edit.set_acl(self, dacl.aces)?;
        // In a log that is a record of its own.
        if self.is_replaying() { Ok(()) } else { edit.chmod_posix(self, mode, props) }
    }

    /// Sets a ZFS ACL as a record of the log tells; the mode follows from it (§11.5).
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
        let dacl = Dacl::given(aces, flags, u64::from(attrs.mode), owners, is_dir);
        let mut edit = Edit::new(self, node)?;
        edit.patch = Patch::new()
            .changed(rw.host.now())
            .and(ZplAttr::Mode, Do::Set(dacl.mode))
            .and(ZplAttr::Flags, Do::AndNot(DACL_FLAGS))
            .and(ZplAttr::Flags, Do::Or(dacl.flags));
        edit.said = Said::Xattrs;
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
        edit.patch.push(ZplAttr::Flags, Do::Or(ZFS_PROJID));
        Ok(())
    }

    fn set_size(&self, edit: Edit, size: u64, props: &RwProps) -> Result<()> {
        let ready = edit.prepare(self, props)?;
        let (node, patch, cost) = (ready.node(), ready.patch(), ready.cost(self)? + DNODE_BLOCK);
        let also = |tx: &Tx, patch: Patch| ready.apply(self, tx, patch);
        self.resize(node, size, props, patch, also, cost)
    }
}
