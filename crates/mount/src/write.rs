//! Operations that change a mounted dataset.
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
use std::time::Duration;

use base::{ErrorKind, ObjectId};
use cenote::OutagePolicy;
use cenote::files::{
    Attrs, Caller, Device, Falloc, FileType as FileKind, Groups, New, Rename, SetAttrs, SetTime,
    Time, WritePosition,
};
use fuse::{
    Attr, CopyRange, Errno, LookupEntry, Negotiated, NewNode, Opened, Request, SetAttr, Timestamp,
    WriteArgs,
};

use super::WAIT;
use super::node::NodeTarget;
use super::xattrs::status_of;
use super::zfs::{FsResult, ZfsMount, attr};

use cenote::files::{ZFS_APPENDONLY, ZFS_IMMUTABLE};

const O_ACCMODE: u32 = 0o3;
const O_WRONLY: u32 = 0o1;
const O_RDWR: u32 = 0o2;
/// Minor version of kernels that drop cached pages after a direct write.
const COHERENT_MINOR: u32 = 41;
/// Minor version from which every kernel checks that a caller may change flags.
const CHECKED_MINOR: u32 = 34;
/// Handle of a file whose writes bypass the page cache.
const DIRECT: u64 = 1;
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o010;
const O_APPEND: u32 = rustix::fs::OFlags::APPEND.bits();
/// A part of `O_SYNC`, too.
const O_DSYNC: u32 = rustix::fs::OFlags::DSYNC.bits();
/// Flags of `renameat2` and `fallocate`.
const RENAME: [(u32, Rename); 4] =
    [(0, Rename::Plain), (1, Rename::NoReplace), (2, Rename::Exchange), (4, Rename::Whiteout)];
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;
const CAPABILITY: &[u8] = b"security.capability";

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

fn device(rdev: u32) -> Device {
    Device { major: rdev >> 8 & 0xfff, minor: rdev & 0xff | rdev >> 12 & 0xf_ff00 }
}

fn time(t: Timestamp) -> Time {
    Time { seconds: t.sec, nanoseconds: u64::from(t.nsec) }
}

fn set_time(t: fuse::SetTime) -> SetTime {
    match t {
        fuse::SetTime::Now => SetTime::Now,
        fuse::SetTime::At(t) => SetTime::Set(time(t)),
    }
}

impl ZfsMount {
    fn own(&self, node: u64) -> Option<ObjectId> {
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

    /// Records what was negotiated with the kernel.
    pub(super) fn set_negotiated(&self, negotiated: &Negotiated) {
        self.direct_writes.store(negotiated.minor >= COHERENT_MINOR, Relaxed);
        self.checks_flags.store(negotiated.minor >= CHECKED_MINOR, Relaxed);
    }

    fn opened(&self, flags: u32) -> Opened {
        let around = match flags & O_ACCMODE {
            O_WRONLY => true,
            // One request carries the data and waits for its commit; through the page cache the
            // kernel sends two.
            O_RDWR => flags & O_DSYNC != 0,
            _ => false,
        };
        let direct = around && self.direct_writes.load(Relaxed);
        Opened {
            handle: if direct { DIRECT } else { 0 },
            direct_io: direct || self.is_direct(),
            // The file system does not see reads that the kernel serves from its pages.
            keep_cache: !self.is_direct() && !self.counts_each_access(),
            no_flush: true,
            // Without this a write is atomic for other callers, however many requests it takes.
            parallel_direct_writes: self.is_direct(),
            ..Opened::default()
        }
    }

    pub(super) fn open_file(&self, node: u64, flags: u32) -> FsResult<Opened> {
        if !self.writable && !self.is_direct() {
            // No object has to be held, no access time is updated, and no option depends on the
            // open. After this answer the kernel opens files without a request, and a small
            // file costs one request instead of three.
            return Err(Errno::ENOSYS);
        }
        match self.own(node) {
            Some(id) => {
                self.check_open(id, flags)?;
                self.fs().hold(id).map_err(stale)?;
            }
            None if flags & O_ACCMODE != 0 => return Err(Errno::EROFS),
            None => {}
        }
        Ok(self.opened(flags))
    }

    /// The check that the kernel makes at `open` if it knows a file's flags; here it does not.
    fn check_open(&self, id: ObjectId, flags: u32) -> FsResult<()> {
        if flags & O_ACCMODE == 0 {
            return Ok(());
        }
        let pflags = self.fs().attrs(id, WAIT).map_err(stale)?.pflags;
        let whole = pflags & ZFS_APPENDONLY != 0 && flags & O_APPEND == 0;
        if pflags & ZFS_IMMUTABLE != 0 || whole { Err(Errno::EPERM) } else { Ok(()) }
    }

    fn release_file(&self, id: ObjectId) {
        if let Err(e) = self.fs().release(id) {
            // The object stays in the delete queue.
            ui::err(&format!("a closed file is left for the next mount: {e}"));
        }
    }

    pub(super) fn close_file(&self, node: u64) -> FsResult<()> {
        if let Some(id) = self.own(node) {
            self.release_file(id);
        }
        Ok(())
    }

    fn new_entry(&self, attrs: &Attrs) -> FsResult<LookupEntry> {
        self.own_entry(attrs)
    }

    pub(super) fn make(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new: &NewNode,
    ) -> FsResult<LookupEntry> {
        let dir = self.changeable_name(parent, name)?;
        let kind = FileKind::from_nibble(u64::from(new.mode >> 12 & 0xf));
        if kind == FileKind::Unknown {
            return Err(Errno::EINVAL);
        }
        let new_file = New { kind, mode: new.mode, device: device(new.rdev), target: b"" };
        let attrs = self.fs().make(&caller(req, new.umask), dir, name, &new_file)?;
        self.new_entry(&attrs)
    }

    pub(super) fn make_dir(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new: &NewNode,
    ) -> FsResult<LookupEntry> {
        let dir = self.changeable_name(parent, name)?;
        let attrs = self.fs().make(&caller(req, new.umask), dir, name, &New::dir(new.mode))?;
        self.new_entry(&attrs)
    }

    pub(super) fn make_link(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        target: &[u8],
    ) -> FsResult<LookupEntry> {
        let dir = self.changeable_name(parent, name)?;
        let attrs = self.fs().make(&caller(req, 0), dir, name, &New::symlink(target))?;
        self.new_entry(&attrs)
    }

    pub(super) fn create_file(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new: &NewNode,
        flags: u32,
    ) -> FsResult<(LookupEntry, Opened)> {
        let dir = self.changeable_name(parent, name)?;
        let attrs = self.fs().make(&caller(req, new.umask), dir, name, &New::file(new.mode))?;
        self.fs().hold(attrs.id).map_err(stale)?;
        Ok((self.new_entry(&attrs)?, self.opened(flags)))
    }

    pub(super) fn create_unlinked(
        &self,
        req: &Request,
        parent: u64,
        new: &NewNode,
        flags: u32,
    ) -> FsResult<(LookupEntry, Opened)> {
        let dir = self.changeable(parent)?;
        let attrs = self.fs().make_unlinked(&caller(req, new.umask), dir, new.mode)?;
        Ok((self.new_entry(&attrs)?, self.opened(flags)))
    }

    pub(super) fn remove(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        is_dir: bool,
    ) -> FsResult<()> {
        let dir = self.changeable(parent)?;
        let by = caller(req, 0);
        match is_dir {
            true => self.ending(dir, name, || self.fs().rmdir(&by, dir, name))?,
            false => self.fs().unlink(&by, dir, name)?,
        };
        Ok(())
    }

    /// Runs `f`, which may remove the directory of a name; keeps the attributes that `fstat`
    /// reports afterwards.
    fn ending<T>(
        &self,
        parent: ObjectId,
        name: &[u8],
        remove: impl FnOnce() -> base::Result<T>,
    ) -> base::Result<T> {
        let found = self.fs().lookup(parent, name, WAIT).ok();
        let dir = found.filter(|f| f.kind == FileKind::Dir);
        let node = dir.as_ref().and_then(|f| NodeTarget::Object(0, f.id).id(self.fs().root()));
        let attrs = dir.and_then(|f| self.fs().attrs(f.id, WAIT).ok());
        if let (Some(node), Some(attrs)) = (node, attrs) {
            self.gone.put(node, attr(&attrs));
            return remove().inspect_err(|_| self.gone.take(node));
        }
        remove()
    }

    pub(super) fn move_name(
        &self,
        req: &Request,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
    ) -> FsResult<()> {
        let how = RENAME.iter().find(|r| r.0 == flags).map(|r| r.1).ok_or(Errno::EINVAL)?;
        let old = (self.changeable(from.0)?, from.1);
        let new = (self.changeable_name(to.0, to.1)?, to.1);
        let by = caller(req, 0);
        Ok(self.ending(new.0, new.1, || self.fs().rename(&by, old, new, how))?)
    }

    pub(super) fn link_name(
        &self,
        req: &Request,
        node: u64,
        parent: u64,
        name: &[u8],
    ) -> FsResult<LookupEntry> {
        let id = self.changeable(node)?;
        let dir = self.changeable_name(parent, name)?;
        let attrs = self.fs().link(&caller(req, 0), id, dir, name)?;
        self.new_entry(&attrs)
    }

    pub(super) fn write_file(&self, req: &Request, args: &WriteArgs, data: &[u8]) -> FsResult<u32> {
        let id = self.changeable(args.node)?;
        let by = writer(req, args.kill_suidgid);
        let fs = self.fs();
        let done = match args.kill_suidgid || args.handle == DIRECT {
            true => fs.write_without_xattr(&by, id, args.offset, data, CAPABILITY),
            false => fs.write(&by, id, WritePosition::Offset(args.offset), data),
        };
        let done = done.map_err(stale)?;
        // The kernel sends an `fsync` by itself only if it writes through its pages.
        if args.flags & O_DSYNC != 0 && (args.handle == DIRECT || self.is_direct()) {
            fs.fsync_for(id, req.pid).map_err(stale)?;
        }
        Ok(u32::try_from(done.bytes).unwrap_or(u32::MAX))
    }

    /// Removes a file's capabilities when a caller without the right to keep them changes it.
    fn drop_capability(&self, req: &Request, id: ObjectId) -> FsResult<()> {
        let attrs = self.fs().attrs(id, WAIT).map_err(stale)?;
        if !attrs.may_have_xattrs {
            return Ok(());
        }
        self.fs().drop_xattr(&caller(req, 0), id, CAPABILITY).map_err(stale)
    }

    /// Removes set-id bits as a write does. For `fallocate` the kernel leaves that to the
    /// server, and does not say which callers may keep them.
    fn drop_set_ids(&self, req: &Request, id: ObjectId) -> FsResult<()> {
        if req.uid == 0 {
            return Ok(());
        }
        self.drop_capability(req, id)?;
        let attrs = self.fs().attrs(id, WAIT).map_err(stale)?;
        let keeps_group = attrs.mode & S_IXGRP == 0 && caller(req, 0).in_group(attrs.gid);
        let drop = S_ISUID | if keeps_group { 0 } else { S_ISGID };
        if attrs.kind != FileKind::Regular || attrs.mode & drop == 0 {
            return Ok(());
        }
        let set = SetAttrs { mode: Some(attrs.mode & !drop), ..SetAttrs::default() };
        self.fs().set_attrs(&writer(req, false), id, &set).map_err(stale)?;
        Ok(())
    }

    /// Changes attributes. A new owner removes set-id bits in the same call, and so does new
    /// content if the caller may not keep them; capabilities are removed before.
    fn set(&self, req: &Request, id: ObjectId, set: &SetAttrs, kill: bool) -> FsResult<Attrs> {
        if kill || set.uid.is_some() || set.gid.is_some() {
            self.drop_capability(req, id)?;
        }
        self.fs().set_attrs(&writer(req, kill), id, set).map_err(stale)
    }

    pub(super) fn change_attrs(
        &self,
        req: &Request,
        node: u64,
        set: &SetAttr,
    ) -> FsResult<(Attr, Duration)> {
        let id = self.changeable(node)?;
        let changes = SetAttrs {
            mode: set.mode.map(|m| m & 0o7777),
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: set.atime.map(set_time),
            mtime: set.mtime.map(set_time),
            ctime: set.ctime.map(time),
            ..SetAttrs::default()
        };
        let attrs = self.set(req, id, &changes, set.kill_suidgid)?;
        let attr = attr(&attrs);
        Ok((attr, self.attr_ttl(&attr)))
    }

    pub(super) fn allocate(
        &self,
        req: &Request,
        node: u64,
        offset: u64,
        len: u64,
        mode: u32,
    ) -> FsResult<()> {
        let id = self.changeable(node)?;
        self.drop_set_ids(req, id)?;
        let what = match mode {
            m if m == PUNCH_HOLE | KEEP_SIZE => Falloc::PunchHole,
            ZERO_RANGE => Falloc::ZeroRange { keep_size: false },
            m if m == ZERO_RANGE | KEEP_SIZE => Falloc::ZeroRange { keep_size: true },
            0 | KEEP_SIZE => return self.reserve(req, id, offset, len, mode == 0),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        self.fs().allocate(&caller(req, 0), id, what, offset, len).map_err(stale)
    }

    /// Checks for free space and sets the file's size. Space cannot be reserved in a file
    /// system that writes every block to a new location.
    fn reserve(
        &self,
        req: &Request,
        id: ObjectId,
        offset: u64,
        len: u64,
        grow: bool,
    ) -> FsResult<()> {
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        let now = self.fs().attrs(id, WAIT).map_err(stale)?;
        if now.kind != FileKind::Regular {
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

    pub(super) fn copy(&self, req: &Request, range: &CopyRange) -> FsResult<u64> {
        if range.flags != 0 {
            return Err(Errno::EINVAL);
        }
        let to = (self.changeable(range.node_out)?, range.offset_out);
        // The kernel itself copies from a snapshot.
        let from = (self.own(range.node_in).ok_or(Errno::EXDEV)?, range.offset_in);
        let by = writer(req, req.uid != 0);
        self.fs().copy_range(&by, from, to, range.len).map_err(stale)
    }

    pub(super) fn sync_object(&self, req: &Request, node: u64) -> FsResult<()> {
        match self.own(node) {
            Some(id) => Ok(self.fs().fsync_for(id, req.pid).map_err(stale)?),
            None => Ok(()),
        }
    }

    pub(super) fn sync_all(&self) -> FsResult<()> {
        if self.writable {
            self.fs().sync_all()?;
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
