//! The FUSE operations of a dataset: reading ones are implemented here, changing ones call
//! [`super::write`].

use std::time::Duration;

use base::Buf;
use cenote::files::Whence;
use fuse::{
    Attr, BlockingMode, CopyRange, Data, DirSink, Errno, FOREVER, Filesystem, IoctlArgs,
    LookupEntry, Negotiated, NewNode, Opened, ReadArgs, ReleaseArgs, Request, SetAttr, Statfs,
    Statx, WriteArgs,
};

use super::io;
use super::node::NodeTarget;
use super::write::stale;
use super::zfs::{FsResult, ZfsMount, stamp, totals_now};

/// File attributes that are reported, and their bits in `statx`.
const STATX_FLAGS: [(u64, u64); 3] = [(IMMUTABLE, 0x10), (APPEND_ONLY, 0x20), (NO_DUMP, 0x40)];
use cenote::files::{
    ZFS_APPENDONLY as APPEND_ONLY, ZFS_IMMUTABLE as IMMUTABLE, ZFS_NODUMP as NO_DUMP,
};

impl Filesystem for ZfsMount {
    fn init(&self, negotiated: &Negotiated) {
        self.set_negotiated(negotiated);
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
        let attr = match self.node(node)? {
            NodeTarget::Object(space, id) => {
                let fs = self.space(space)?;
                match fs.attrs(id, io(mode)).map_err(stale) {
                    Ok(attrs) => self.object_attr(space, &fs, &attrs),
                    Err(e) => self.gone.get(node).filter(|_| e == Errno::ESTALE).ok_or(e)?,
                }
            }
            other => self.control_entry(other, mode)?.attr,
        };
        Ok((attr, self.attr_ttl(&attr)))
    }

    fn statx(&self, _: &Request, mode: BlockingMode, node: u64, _: u32) -> FsResult<Statx> {
        let (space, id) = match self.node(node)? {
            NodeTarget::Object(space, id) => (space, id),
            other => {
                let attr = self.control_entry(other, mode)?.attr;
                return Ok(Statx { attr, attr_ttl: FOREVER, ..Statx::default() });
            }
        };
        let fs = self.space(space)?;
        let attrs = match fs.attrs(id, io(mode)).map_err(stale) {
            Ok(attrs) => attrs,
            Err(e) => {
                let attr = self.gone.get(node).filter(|_| e == Errno::ESTALE).ok_or(e)?;
                return Ok(Statx { attr, attr_ttl: FOREVER, ..Statx::default() });
            }
        };
        let attr = self.object_attr(space, &fs, &attrs);
        let bits =
            |on: u64| STATX_FLAGS.iter().filter(|f| on & f.0 != 0).fold(0, |all, f| all | f.1);
        Ok(Statx {
            attr,
            btime: Some(stamp(attrs.crtime)),
            attributes: bits(attrs.pflags),
            attributes_mask: bits(u64::MAX),
            attr_ttl: self.attr_ttl(&attr),
        })
    }

    fn setattr(&self, req: &Request, node: u64, set: &SetAttr) -> FsResult<(Attr, Duration)> {
        self.change_attrs(req, node, set)
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
        self.make_link(req, parent, name, target)
    }

    fn mknod(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new: &NewNode,
    ) -> FsResult<LookupEntry> {
        self.make(req, parent, name, new)
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new: &NewNode,
    ) -> FsResult<LookupEntry> {
        self.make_dir(req, parent, name, new)
    }

    fn unlink(&self, req: &Request, parent: u64, name: &[u8]) -> FsResult<()> {
        self.remove(req, parent, name, false)
    }

    fn rmdir(&self, req: &Request, parent: u64, name: &[u8]) -> FsResult<()> {
        self.remove(req, parent, name, true)
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
        self.move_name(req, (parent, name), (new_parent, new_name), flags)
    }

    fn link(&self, req: &Request, node: u64, parent: u64, name: &[u8]) -> FsResult<LookupEntry> {
        self.link_name(req, node, parent, name)
    }

    fn open(&self, _: &Request, _: BlockingMode, node: u64, flags: u32) -> FsResult<Opened> {
        self.open_file(node, flags)
    }

    fn create(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new: &NewNode,
        flags: u32,
    ) -> FsResult<(LookupEntry, Opened)> {
        self.create_file(req, parent, name, new, flags)
    }

    fn tmpfile(
        &self,
        req: &Request,
        parent: u64,
        new: &NewNode,
        flags: u32,
    ) -> FsResult<(LookupEntry, Opened)> {
        self.create_unlinked(req, parent, new, flags)
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
        self.close_file(args.node)
    }

    fn fsync(&self, req: &Request, node: u64, _: u64, _: bool) -> FsResult<()> {
        self.sync_object(req, node)
    }

    fn fsyncdir(&self, req: &Request, node: u64, _: u64, _: bool) -> FsResult<()> {
        self.sync_object(req, node)
    }

    fn syncfs(&self, _: &Request, _: u64) -> FsResult<()> {
        self.sync_all()
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
        self.read_xattr(mode, node, name)
    }

    fn listxattr(&self, req: &Request, mode: BlockingMode, node: u64, _: u32) -> FsResult<Data> {
        self.list_xattrs(req, mode, node)
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
        self.put_xattr(req, node, name, value, flags, acl_kill_sgid)
    }

    fn removexattr(&self, req: &Request, node: u64, name: &[u8]) -> FsResult<()> {
        self.drop_xattr(req, node, name)
    }

    fn ioctl(&self, req: &Request, args: &IoctlArgs<'_>) -> FsResult<(i32, Data)> {
        self.control(req, args)
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
        self.allocate(req, node, offset, length, mode)
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
        self.copy(req, range)
    }
}
