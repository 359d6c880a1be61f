//! The FUSE operations of a dataset. What several changing operations share is in
//! [`super::write`], and what concerns extended attributes in [`super::xattrs`].

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use base::Buf;
use cenote::files::{
    Attrs, Falloc, FileType, New, Rename, SetAttrs, SetHow, Whence, WritePosition,
};
use fuse::{
    Attr, BlockingMode, CopyRange, Data, DirSink, Errno, FOREVER, Filesystem, IoctlArgs,
    LookupEntry, Negotiated, NewNode, Opened, ReadArgs, ReleaseArgs, Request, SetAttr, Statfs,
    Statx, WriteArgs,
};

use super::io;
use super::node::NodeTarget;
use super::rewrite;
use super::write::{
    CAPABILITY, CHECKED_MINOR, COHERENT_MINOR, DIRECT, O_ACCMODE, O_DSYNC, caller, device,
    set_time, stale, time, writer,
};
use super::zfs::{FsResult, ZfsMount, attr, stamp, totals_now};

/// Flags of `renameat2`.
const RENAME: [(u32, Rename); 4] =
    [(0, Rename::Plain), (1, Rename::NoReplace), (2, Rename::Exchange), (4, Rename::Whiteout)];
/// Flags of `fallocate`.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;
/// Flags of `setxattr`.
const SET_HOW: [(u32, SetHow); 3] = [(0, SetHow::Any), (1, SetHow::Create), (2, SetHow::Replace)];

/// File attributes that are reported, and their bits in `statx`.
const STATX_FLAGS: [(u64, u64); 3] = [(IMMUTABLE, 0x10), (APPEND_ONLY, 0x20), (NO_DUMP, 0x40)];
use cenote::files::{
    ZFS_APPENDONLY as APPEND_ONLY, ZFS_IMMUTABLE as IMMUTABLE, ZFS_NODUMP as NO_DUMP,
};

impl Filesystem for ZfsMount {
    fn init(&self, negotiated: &Negotiated) {
        self.direct_writes.store(negotiated.minor >= COHERENT_MINOR, Relaxed);
        self.checks_flags.store(negotiated.minor >= CHECKED_MINOR, Relaxed);
    }

    fn lookup(
        &self,
        _: &Request,
        mode: BlockingMode,
        parent: u64,
        name: &[u8],
    ) -> FsResult<LookupEntry> {
        match self.find(mode, parent, name) {
            // A lookup by node alone: the object was removed.
            Err(Errno::ENOENT) if name == b"." => Err(Errno::ESTALE),
            // Only the kernel makes names here, and it updates its cache then; snapshots change
            // by other means.
            Err(Errno::ENOENT)
                if self.exact && !matches!(self.node(parent)?, NodeTarget::Snapdir) =>
            {
                Ok(LookupEntry::negative(FOREVER))
            }
            other => other,
        }
    }

    fn forget(&self, node: u64, _: u64) {
        self.gone.take(node);
    }

    fn getattr(
        &self,
        _: &Request,
        mode: BlockingMode,
        node: u64,
        _: Option<u64>,
    ) -> FsResult<(Attr, Duration)> {
        let (attr, _) = self.attr_of(mode, node)?;
        Ok((attr, self.attr_ttl(&attr)))
    }

    fn statx(&self, _: &Request, mode: BlockingMode, node: u64, _: u32) -> FsResult<Statx> {
        let (attr, attrs) = self.attr_of(mode, node)?;
        let attr_ttl = self.attr_ttl(&attr);
        let Some(attrs) = attrs else { return Ok(Statx { attr, attr_ttl, ..Statx::default() }) };
        let bits =
            |on: u64| STATX_FLAGS.iter().filter(|f| on & f.0 != 0).fold(0, |all, f| all | f.1);
        Ok(Statx {
            attr,
            btime: Some(stamp(attrs.crtime)),
            attributes: bits(attrs.pflags),
            attributes_mask: bits(u64::MAX),
            attr_ttl,
        })
    }

    fn setattr(&self, req: &Request, node: u64, set: &SetAttr) -> FsResult<(Attr, Duration)> {
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
        // A new owner removes set-id bits in the same call, and so does new content if the
        // caller may not keep them; capabilities are removed before.
        if set.kill_suidgid || set.uid.is_some() || set.gid.is_some() {
            self.drop_capability(req, id)?;
        }
        let by = writer(req, set.kill_suidgid);
        let attr = attr(&self.fs().set_attrs(&by, id, &changes).map_err(stale)?);
        Ok((attr, self.attr_ttl(&attr)))
    }

    fn readlink(&self, _: &Request, mode: BlockingMode, node: u64) -> FsResult<Data> {
        let (fs, id) = self.object(node, Errno::EINVAL)?;
        let target = fs.readlink(id, io(mode)).map_err(stale)?;
        Ok(Data::copy_of(&target))
    }

    fn symlink(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        target: &[u8],
    ) -> FsResult<LookupEntry> {
        self.make(&caller(req, 0), parent, name, &New::symlink(target))
    }

    fn mknod(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new: &NewNode,
    ) -> FsResult<LookupEntry> {
        let kind = FileType::from_nibble(u64::from(new.mode >> 12 & 0xf));
        if kind == FileType::Unknown {
            return Err(Errno::EINVAL);
        }
        let file = New { kind, mode: new.mode, device: device(new.rdev), target: b"" };
        self.make(&caller(req, new.umask), parent, name, &file)
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new: &NewNode,
    ) -> FsResult<LookupEntry> {
        if let Some(dataset) = self.snapdir(parent)? {
            return self.take_snapshot(&dataset, parent, name);
        }
        self.make(&caller(req, new.umask), parent, name, &New::dir(new.mode))
    }

    fn unlink(&self, req: &Request, parent: u64, name: &[u8]) -> FsResult<()> {
        let dir = self.changeable(parent)?;
        self.fs().unlink(&caller(req, 0), dir, name)?;
        Ok(())
    }

    fn rmdir(&self, req: &Request, parent: u64, name: &[u8]) -> FsResult<()> {
        if let Some(dataset) = self.snapdir(parent)? {
            return self.destroy_snapshot(&dataset, name);
        }
        let dir = self.changeable(parent)?;
        self.ending(dir, name, || self.fs().rmdir(&caller(req, 0), dir, name))?;
        Ok(())
    }

    fn rename(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
    ) -> FsResult<()> {
        let how = RENAME.iter().find(|r| r.0 == flags).map(|r| r.1).ok_or(Errno::EINVAL)?;
        if let (Some(dataset), true) = (self.snapdir(parent)?, parent == new_parent) {
            return self.rename_snapshot(&dataset, (name, new_name), how);
        }
        let old = (self.changeable(parent)?, name);
        let new = (self.changeable_name(new_parent, new_name)?, new_name);
        let by = caller(req, 0);
        Ok(self.ending(new.0, new.1, || self.fs().rename(&by, old, new, how))?)
    }

    fn link(&self, req: &Request, node: u64, parent: u64, name: &[u8]) -> FsResult<LookupEntry> {
        let id = self.changeable(node)?;
        let dir = self.changeable_name(parent, name)?;
        self.own_entry(&self.fs().link(&caller(req, 0), id, dir, name)?)
    }

    fn open(&self, _: &Request, _: BlockingMode, node: u64, flags: u32) -> FsResult<Opened> {
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

    fn create(
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
        Ok((self.own_entry(&attrs)?, self.opened(flags)))
    }

    fn tmpfile(
        &self,
        req: &Request,
        parent: u64,
        new: &NewNode,
        flags: u32,
    ) -> FsResult<(LookupEntry, Opened)> {
        let dir = self.changeable(parent)?;
        let attrs = self.fs().make_unlinked(&caller(req, new.umask), dir, new.mode)?;
        Ok((self.own_entry(&attrs)?, self.opened(flags)))
    }

    fn read(&self, _: &Request, mode: BlockingMode, args: &ReadArgs) -> FsResult<Data> {
        let (fs, id) = self.object(args.node, Errno::EISDIR)?;
        self.reads(args.node, args.flags);
        let len = usize::try_from(args.size).unwrap_or(usize::MAX);
        let data = fs.read(id, args.offset, len, io(mode)).map_err(stale)?;
        self.accessed(args.node, false);
        Ok(data.into())
    }

    fn write(&self, req: &Request, args: &WriteArgs, data: Buf) -> FsResult<u32> {
        let done = self.write_file(req, args, &data);
        if !args.from_cache {
            self.wrote(args, data.len());
        }
        done
    }

    fn flush(&self, _: &Request, _: u64, _: u64, _: u64) -> FsResult<()> {
        // Written data is in the file system already, so there is never anything to flush.
        Err(Errno::ENOSYS)
    }

    fn release(&self, _: &Request, args: &ReleaseArgs) -> FsResult<()> {
        if let Some(id) = self.own(args.node)
            && let Err(e) = self.fs().release(id)
        {
            // The object stays in the delete queue.
            ui::err(&format!("a closed file is left for the next mount: {e}"));
        }
        Ok(())
    }

    fn fsync(&self, req: &Request, node: u64, _: u64, _: bool) -> FsResult<()> {
        match self.own(node) {
            Some(id) => self.fs().fsync_for(id, req.pid).map_err(stale),
            None => Ok(()),
        }
    }

    fn fsyncdir(&self, req: &Request, node: u64, handle: u64, data_only: bool) -> FsResult<()> {
        self.fsync(req, node, handle, data_only)
    }

    fn syncfs(&self, _: &Request, _: u64) -> FsResult<()> {
        if self.writable {
            self.fs().sync_all()?;
        }
        Ok(())
    }

    fn readdir(
        &self,
        _: &Request,
        mode: BlockingMode,
        node: u64,
        _: u64,
        offset: u64,
        sink: &mut DirSink,
    ) -> FsResult<()> {
        self.list(mode, node, offset, sink, false)?;
        self.listed(node, offset);
        Ok(())
    }

    fn readdirplus(
        &self,
        _: &Request,
        mode: BlockingMode,
        node: u64,
        _: u64,
        offset: u64,
        sink: &mut DirSink,
    ) -> FsResult<()> {
        self.list(mode, node, offset, sink, true)?;
        self.listed(node, offset);
        Ok(())
    }

    fn statfs(&self, _: &Request, mode: BlockingMode, _: u64) -> FsResult<Statfs> {
        match (self.writable, mode) {
            (false, _) => Ok(self.totals),
            (true, BlockingMode::NonBlocking) => Err(Errno::WOULD_BLOCK),
            (true, BlockingMode::Blocking) => Ok(totals_now(self.fs())?),
        }
    }

    fn getxattr(
        &self,
        _: &Request,
        mode: BlockingMode,
        node: u64,
        name: &[u8],
        _: u32,
    ) -> FsResult<Data> {
        self.check_name(name)?;
        let (fs, id) = self.object(node, Errno::ENODATA)?;
        match fs.get_xattr(id, name, io(mode)).map_err(stale)? {
            Some(value) => Ok(Data::copy_of(&value)),
            None => Err(Errno::ENODATA),
        }
    }

    fn listxattr(&self, req: &Request, mode: BlockingMode, node: u64, _: u32) -> FsResult<Data> {
        let NodeTarget::Object(space, id) = self.node(node)? else { return Ok(Data::empty()) };
        let all = self.space(space)?.list_xattrs(id, io(mode)).map_err(stale)?;
        Ok(Data::copy_of(&self.listed_names(req, all)))
    }

    fn setxattr(
        &self,
        req: &Request,
        node: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
        acl_kill_sgid: bool,
    ) -> FsResult<()> {
        self.check_name(name)?;
        let id = self.changeable(node)?;
        let how = SET_HOW.iter().find(|x| x.0 == flags).map(|x| x.1).ok_or(Errno::EINVAL)?;
        let by = writer(req, acl_kill_sgid);
        self.fs().set_xattr(&by, id, name, value, how).map_err(stale)?;
        if acl_kill_sgid { self.drop_sgid(&by, id) } else { Ok(()) }
    }

    fn removexattr(&self, req: &Request, node: u64, name: &[u8]) -> FsResult<()> {
        self.check_name(name)?;
        let id = self.changeable(node)?;
        self.fs().remove_xattr(&caller(req, 0), id, name).map_err(stale)
    }

    fn ioctl(&self, req: &Request, args: &IoctlArgs<'_>) -> FsResult<(i32, Data)> {
        match args.cmd {
            rewrite::OPCODE => self.rewrite(args),
            _ => self.control(req, args),
        }
    }

    fn fallocate(
        &self,
        req: &Request,
        node: u64,
        _: u64,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> FsResult<()> {
        let id = self.changeable(node)?;
        self.drop_set_ids(req, id)?;
        let what = match mode {
            m if m == PUNCH_HOLE | KEEP_SIZE => Falloc::PunchHole,
            ZERO_RANGE => Falloc::ZeroRange { keep_size: false },
            m if m == ZERO_RANGE | KEEP_SIZE => Falloc::ZeroRange { keep_size: true },
            0 | KEEP_SIZE => return self.reserve(req, id, offset, length, mode == 0),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        self.fs().allocate(&caller(req, 0), id, what, offset, length).map_err(stale)
    }

    fn lseek(
        &self,
        _: &Request,
        mode: BlockingMode,
        node: u64,
        _: u64,
        offset: u64,
        whence: fuse::Whence,
    ) -> FsResult<u64> {
        let (fs, id) = self.object(node, Errno::EINVAL)?;
        let whence = match whence {
            fuse::Whence::Data => Whence::Data,
            fuse::Whence::Hole => Whence::Hole,
        };
        fs.seek(id, offset, whence, io(mode)).map_err(stale)
    }

    fn copy_file_range(&self, req: &Request, range: &CopyRange) -> FsResult<u64> {
        self.copy_from(req, self, range)
    }
}

impl ZfsMount {
    /// Copies from a file of `source`, or of a snapshot in it.
    pub(super) fn copy_from(
        &self,
        req: &Request,
        source: &ZfsMount,
        range: &CopyRange,
    ) -> FsResult<u64> {
        if range.flags != 0 {
            return Err(Errno::EINVAL);
        }
        let to = (self.changeable(range.node_out)?, range.offset_out);
        let (fs, id) = source.object(range.node_in, Errno::EINVAL)?;
        let by = writer(req, req.uid != 0);
        let from = (&*fs, id, range.offset_in);
        self.fs().copy_range_from(&by, from, to, range.len).map_err(stale)
    }
}

impl ZfsMount {
    /// The attributes that the kernel is shown for a node, and those of its object, if it has
    /// one. A removed directory shows the attributes that it had last.
    fn attr_of(&self, mode: BlockingMode, node: u64) -> FsResult<(Attr, Option<Attrs>)> {
        let (space, id) = match self.node(node)? {
            NodeTarget::Object(space, id) => (space, id),
            other => return Ok((self.control_entry(other, mode)?.attr, None)),
        };
        let fs = self.space(space)?;
        match fs.attrs(id, io(mode)).map_err(stale) {
            Ok(attrs) => Ok((self.object_attr(space, &fs, &attrs), Some(attrs))),
            Err(e) => {
                let gone = self.gone.get(node).filter(|_| e == Errno::ESTALE);
                Ok((gone.ok_or(e)?, None))
            }
        }
    }

    /// Writes the data of a request; after a synchronous write it is durable.
    fn write_file(&self, req: &Request, args: &WriteArgs, data: &[u8]) -> FsResult<u32> {
        let id = self.changeable(args.node)?;
        let by = writer(req, args.kill_suidgid);
        let fs = self.fs();
        let done = match args.kill_suidgid || args.handle & DIRECT != 0 {
            true => fs.write_without_xattr(&by, id, args.offset, data, CAPABILITY),
            false => fs.write(&by, id, WritePosition::Offset(args.offset), data),
        };
        let done = done.map_err(stale)?;
        // The kernel sends an `fsync` by itself only if it writes through its pages.
        if args.flags & O_DSYNC != 0 && (args.handle & DIRECT != 0 || self.is_direct()) {
            fs.fsync_for(id, req.pid).map_err(stale)?;
        }
        Ok(u32::try_from(done.bytes).unwrap_or(u32::MAX))
    }
}
