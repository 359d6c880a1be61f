//! What the operations that change a mounted dataset share ([`super::ops`]).
//!
//! # Theory
//! The kernel has checked permissions (`default_permissions`, and POSIX ACLs if they are on)
//! before it sends a request. A call of the file system is atomic. With each write and
//! truncation the kernel says whether the caller may keep set-id bits
//! (FUSE_HANDLE_KILLPRIV_V2); if not, the bits and `security.capability` are removed here, in
//! the call that changes the file. The umask is part of the request (FUSE_DONT_MASK), because a
//! default ACL replaces it.
//!
//! The kernel chooses the offset of each write, with `O_APPEND` too: it knows the size of every
//! file of this mount and holds the file's lock while it appends. Writes that bypass its cache
//! may run concurrently, if they do not extend the file.
//!
//! # Invariants
//! * An open file is held once for each open, from before the kernel gets the handle until it
//!   releases it.
//! * An error "not found" about a node, not about a name, is `ESTALE`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::{ErrorKind, ObjectId};
use cenote::OutagePolicy;
use cenote::files::{Caller, Device, FileType, Groups, New, SetAttrs, SetTime, Time};
use fuse::{Errno, LookupEntry, Opened, Request, Timestamp};

use super::WAIT;
use super::node::NodeTarget;
use super::xattrs::status_of;
use super::zfs::{FsResult, ZfsMount, attr};

use cenote::files::{ZFS_APPENDONLY, ZFS_IMMUTABLE};

pub(super) const O_ACCMODE: u32 = 0o3;
const O_WRONLY: u32 = 0o1;
const O_RDWR: u32 = 0o2;
/// Minor version of kernels that drop cached pages after a direct write.
pub(super) const COHERENT_MINOR: u32 = 41;
/// Minor version from which every kernel checks that a caller may change flags.
pub(super) const CHECKED_MINOR: u32 = 34;
/// Bit of a handle: the file's writes bypass the page cache.
pub(super) const DIRECT: u64 = 1;
/// Bit of a handle: the file was opened for writing.
pub(super) const FOR_WRITING: u64 = 2;
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o010;
const O_APPEND: u32 = rustix::fs::OFlags::APPEND.bits();
/// A part of `O_SYNC`, too.
pub(super) const O_DSYNC: u32 = rustix::fs::OFlags::DSYNC.bits();
/// The extended attribute with a file's capabilities.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// The errno for an error about a node: a node that is not found is stale.
pub(super) fn stale(e: base::Error) -> Errno {
    match e.kind() {
        ErrorKind::NotFound => Errno::ESTALE,
        kind => kind.into(),
    }
}

/// The supplementary groups of a process.
fn groups_of(pid: u32) -> Vec<u32> {
    let Some(text) = status_of(pid) else { return Vec::new() };
    let line = text.lines().find_map(|l| l.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|g| g.parse().ok()).collect()
}

pub(super) fn caller(req: &Request, umask: u32) -> Caller {
    let pid = req.pid;
    let groups = match pid {
        // The kernel itself, or a process outside of our process namespace.
        0 => Groups::Known(Vec::new()),
        _ => Groups::Lookup(Arc::new(move || groups_of(pid))),
    };
    let (privileged, thread) = (req.uid == 0, req.pid);
    Caller { uid: req.uid, gid: req.gid, groups, umask, privileged, thread }
}

/// As [`caller`]; removes set-id bits if the kernel says so.
pub(super) fn writer(req: &Request, kill: bool) -> Caller {
    Caller { privileged: !kill, ..caller(req, 0) }
}

pub(super) fn device(rdev: u32) -> Device {
    Device { major: rdev >> 8 & 0xfff, minor: rdev & 0xff | rdev >> 12 & 0xf_ff00 }
}

pub(super) fn time(t: Timestamp) -> Time {
    Time { seconds: t.sec, nanoseconds: u64::from(t.nsec) }
}

pub(super) fn set_time(t: fuse::SetTime) -> SetTime {
    match t {
        fuse::SetTime::Now => SetTime::Now,
        fuse::SetTime::At(t) => SetTime::Set(time(t)),
    }
}

impl ZfsMount {
    /// The object of a node, if it is in the dataset itself and that is open for writing.
    pub(super) fn own(&self, node: u64) -> Option<ObjectId> {
        match self.node(node) {
            Ok(NodeTarget::Object(0, id)) if self.writable => Some(id),
            _ => None,
        }
    }

    /// Frees the objects without names that a crash left, in the background.
    pub(super) fn empty_delete_queue(self: &Arc<Self>) {
        if !self.writable {
            return;
        }
        // A background thread must not wait for the pool's resumption.
        let fs = self.fs().with_outage(OutagePolicy::Fail);
        let work = move || match fs.empty_delete_queue() {
            Ok(_) => {}
            // They stay for the next mount.
            Err(e) => ui::err(&format!("files without names are left: {e}")),
        };
        if let Err(e) = base::rt::spawn("delete-queue", work) {
            ui::err(&format!("files without names are left: {e}"));
        }
    }

    /// How the kernel may use a file that is open with these flags.
    pub(super) fn opened(&self, flags: u32) -> Opened {
        let around = match flags & O_ACCMODE {
            O_WRONLY => true,
            // One request carries the data and waits for its commit; through the page cache the
            // kernel sends two.
            O_RDWR => flags & O_DSYNC != 0,
            _ => false,
        };
        let direct = around && self.direct_writes.load(Relaxed);
        Opened {
            handle: if direct { DIRECT } else { 0 }
                | if flags & O_ACCMODE == 0 { 0 } else { FOR_WRITING },
            direct_io: direct || self.is_direct(),
            // The file system does not see reads that the kernel serves from its pages.
            keep_cache: !self.is_direct() && !self.counts_each_access(),
            no_flush: true,
            // Without this a write is atomic for other callers, however many requests it takes.
            parallel_direct_writes: self.is_direct(),
            ..Opened::default()
        }
    }

    /// The check that the kernel makes at `open` if it knows a file's flags; here it does not.
    pub(super) fn check_open(&self, id: ObjectId, flags: u32) -> FsResult<()> {
        if flags & O_ACCMODE == 0 {
            return Ok(());
        }
        let pflags = self.fs().attrs(id, WAIT).map_err(stale)?.pflags;
        let whole = pflags & ZFS_APPENDONLY != 0 && flags & O_APPEND == 0;
        if pflags & ZFS_IMMUTABLE != 0 || whole { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// Makes a file or directory with this name.
    pub(super) fn make(
        &self,
        by: &Caller,
        parent: u64,
        name: &[u8],
        new: &New<'_>,
    ) -> FsResult<LookupEntry> {
        let dir = self.changeable_name(parent, name)?;
        self.own_entry(&self.fs().make(by, dir, name, new)?)
    }

    /// Runs `remove`, which may remove the directory of a name; keeps the attributes that `fstat`
    /// reports afterwards.
    pub(super) fn ending<T>(
        &self,
        parent: ObjectId,
        name: &[u8],
        remove: impl FnOnce() -> base::Result<T>,
    ) -> base::Result<T> {
        let found = self.fs().lookup(parent, name, WAIT).ok();
        let dir = found.filter(|f| f.kind == FileType::Dir);
        let node = dir.as_ref().and_then(|f| NodeTarget::Object(0, f.id).id(self.fs().root()));
        let attrs = dir.and_then(|f| self.fs().attrs(f.id, WAIT).ok());
        if let (Some(node), Some(attrs)) = (node, attrs) {
            self.gone.put(node, attr(&attrs));
            return remove().inspect_err(|_| self.gone.take(node));
        }
        remove()
    }

    /// Removes a file's capabilities when a caller without the right to keep them changes it.
    pub(super) fn drop_capability(&self, req: &Request, id: ObjectId) -> FsResult<()> {
        let attrs = self.fs().attrs(id, WAIT).map_err(stale)?;
        if !attrs.may_have_xattrs {
            return Ok(());
        }
        self.fs().drop_xattr(&caller(req, 0), id, CAPABILITY).map_err(stale)
    }

    /// Removes set-id bits as a write does. For `fallocate` the kernel leaves that to the
    /// server, and does not say which callers may keep them.
    pub(super) fn drop_set_ids(&self, req: &Request, id: ObjectId) -> FsResult<()> {
        if req.uid == 0 {
            return Ok(());
        }
        self.drop_capability(req, id)?;
        let attrs = self.fs().attrs(id, WAIT).map_err(stale)?;
        let keeps_group = attrs.mode & S_IXGRP == 0 && caller(req, 0).in_group(attrs.gid);
        let drop = S_ISUID | if keeps_group { 0 } else { S_ISGID };
        if attrs.kind != FileType::Regular || attrs.mode & drop == 0 {
            return Ok(());
        }
        let set = SetAttrs { mode: Some(attrs.mode & !drop), ..SetAttrs::default() };
        self.fs().set_attrs(&writer(req, false), id, &set).map_err(stale)?;
        Ok(())
    }

    /// Checks for free space and sets the file's size. Space cannot be reserved in a file
    /// system that writes every block to a new location.
    pub(super) fn reserve(
        &self,
        req: &Request,
        id: ObjectId,
        offset: u64,
        len: u64,
        grow: bool,
    ) -> FsResult<()> {
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        let now = self.fs().attrs(id, WAIT).map_err(stale)?;
        if now.kind != FileType::Regular {
            return Err(Errno::EOPNOTSUPP);
        }
        // Metadata takes up to a tenth more.
        if len.saturating_add(len / 10) > self.fs().space()?.available {
            return Err(Errno::ENOSPC);
        }
        if grow && end > now.size {
            let set = SetAttrs { size: Some(end), ..SetAttrs::default() };
            self.fs().set_attrs(&caller(req, 0), id, &set).map_err(stale)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_taken_apart() {
        for (major, minor) in [(0, 0), (8, 1), (0xfff, 0xf_ffff), (259, 300)] {
            let rdev = u32::try_from(Device { major, minor }.linux_dev()).unwrap();
            assert_eq!(device(rdev), Device { major, minor });
        }
    }

    #[test]
    fn our_own_groups_are_found() {
        let mut ours: Vec<u32> =
            rustix::process::getgroups().unwrap().iter().map(|g| g.as_raw()).collect();
        let mut found = groups_of(std::process::id());
        ours.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, ours);
    }
}
