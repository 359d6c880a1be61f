//! The FUSE operations of a tree: each calls its member's, and translates ids in both
//! directions.

use std::time::Duration;

use base::Buf;
use fuse::{
    Attr, BlockingMode, CopyRange, Data, DirSink, Errno, Filesystem, IoctlArgs, Lock, LockArgs,
    LookupEntry, Negotiated, NewNode, Opened, ROOT_ID, ReadArgs, ReleaseArgs, Request, SetAttr,
    Statfs, Statx, Whence, WriteArgs,
};

use super::tree::MountTree;
use super::xattrs::ACL_NAMES;
use super::zfs::FsResult;

const O_ACCMODE: u32 = 0o3;

impl Filesystem for MountTree {
    fn init(&self, negotiated: &Negotiated) {
        self.set_negotiated(negotiated);
    }

    fn destroy(&self) {
        self.end();
    }

    fn interrupt(&self, unique: u64) {
        self.all().iter().filter_map(|m| m.fs()).for_each(|fs| fs.interrupt(unique));
    }

    fn lookup(
        &self,
        req: &Request,
        mode: BlockingMode,
        parent: u64,
        name: &[u8],
    ) -> FsResult<LookupEntry> {
        let at = self.at(parent)?;
        let found = at.fs.lookup(req, mode, at.node, name)?;
        self.entry(mode, &at, found)
    }

    fn forget(&self, node: u64, count: u64) {
        MountTree::forget(self, node, count);
    }

    fn getattr(
        &self,
        req: &Request,
        mode: BlockingMode,
        node: u64,
        handle: Option<u64>,
    ) -> FsResult<(Attr, Duration)> {
        let at = self.at(node)?;
        let (attr, ttl) = at.fs.getattr(req, mode, at.node, handle)?;
        Ok((at.attr(attr), ttl))
    }

    fn statx(&self, req: &Request, mode: BlockingMode, node: u64, mask: u32) -> FsResult<Statx> {
        let at = self.at(node)?;
        let all = at.fs.statx(req, mode, at.node, mask)?;
        Ok(Statx { attr: at.attr(all.attr), ..all })
    }

    fn setattr(&self, req: &Request, node: u64, set: &SetAttr) -> FsResult<(Attr, Duration)> {
        let at = self.at(node)?;
        let (attr, ttl) = at.fs.setattr(req, at.node, set)?;
        Ok((at.attr(attr), ttl))
    }

    fn readlink(&self, req: &Request, mode: BlockingMode, node: u64) -> FsResult<Data> {
        let at = self.at(node)?;
        at.fs.readlink(req, mode, at.node)
    }

    fn symlink(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        target: &[u8],
    ) -> FsResult<LookupEntry> {
        let at = self.at(parent)?;
        at.made(at.fs.symlink(req, at.node, name, target)?)
    }

    fn mknod(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new: &NewNode,
    ) -> FsResult<LookupEntry> {
        let at = self.at(parent)?;
        at.made(at.fs.mknod(req, at.node, name, new)?)
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new: &NewNode,
    ) -> FsResult<LookupEntry> {
        let at = self.at(parent)?;
        at.made(at.fs.mkdir(req, at.node, name, new)?)
    }

    fn unlink(&self, req: &Request, parent: u64, name: &[u8]) -> FsResult<()> {
        let at = self.at(parent)?;
        at.fs.unlink(req, at.node, name)
    }

    fn rmdir(&self, req: &Request, parent: u64, name: &[u8]) -> FsResult<()> {
        let at = self.at(parent)?;
        self.check_free(&at, name)?;
        at.fs.rmdir(req, at.node, name)
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
        let (from, to) = (self.at(parent)?, self.at(new_parent)?);
        from.same(&to)?;
        self.check_free(&from, name)?;
        self.check_free(&to, new_name)?;
        from.fs.rename(req, from.node, name, to.node, new_name, flags)
    }

    fn link(&self, req: &Request, node: u64, parent: u64, name: &[u8]) -> FsResult<LookupEntry> {
        let (from, to) = (self.at(node)?, self.at(parent)?);
        from.same(&to)?;
        to.made(to.fs.link(req, from.node, to.node, name)?)
    }

    fn open(&self, req: &Request, mode: BlockingMode, node: u64, flags: u32) -> FsResult<Opened> {
        let at = self.at(node)?;
        // The kernel does so itself if the mount is read-only.
        if flags & O_ACCMODE != 0 {
            at.fs.check_writable()?;
        }
        let opened = at.fs.open(req, mode, at.node, flags)?;
        at.opened();
        Ok(opened)
    }

    fn create(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new: &NewNode,
        flags: u32,
    ) -> FsResult<(LookupEntry, Opened)> {
        let at = self.at(parent)?;
        let (entry, opened) = at.fs.create(req, at.node, name, new, flags)?;
        at.opened();
        Ok((at.made(entry)?, opened))
    }

    fn tmpfile(
        &self,
        req: &Request,
        parent: u64,
        new: &NewNode,
        flags: u32,
    ) -> FsResult<(LookupEntry, Opened)> {
        let at = self.at(parent)?;
        let (entry, opened) = at.fs.tmpfile(req, at.node, new, flags)?;
        at.opened();
        Ok((at.made(entry)?, opened))
    }

    fn read(&self, req: &Request, mode: BlockingMode, args: &ReadArgs) -> FsResult<Data> {
        let at = self.at(args.node)?;
        at.fs.read(req, mode, &ReadArgs { node: at.node, ..*args })
    }

    fn write(&self, req: &Request, args: &WriteArgs, data: Buf) -> FsResult<u32> {
        let at = self.at(args.node)?;
        at.fs.write(req, &WriteArgs { node: at.node, ..*args }, data)
    }

    fn flush(&self, req: &Request, node: u64, handle: u64, lock_owner: u64) -> FsResult<()> {
        let at = self.at(node)?;
        at.fs.flush(req, at.node, handle, lock_owner)
    }

    fn release(&self, req: &Request, args: &ReleaseArgs) -> FsResult<()> {
        let at = self.at(args.node)?;
        let done = at.fs.release(req, &ReleaseArgs { node: at.node, ..*args });
        MountTree::released(&at);
        done
    }

    fn fsync(&self, req: &Request, node: u64, handle: u64, data_only: bool) -> FsResult<()> {
        let at = self.at(node)?;
        at.fs.fsync(req, at.node, handle, data_only)
    }

    fn opendir(
        &self,
        req: &Request,
        mode: BlockingMode,
        node: u64,
        flags: u32,
    ) -> FsResult<Opened> {
        let at = self.at(node)?;
        at.fs.opendir(req, mode, at.node, flags)
    }

    fn readdir(
        &self,
        req: &Request,
        mode: BlockingMode,
        node: u64,
        handle: u64,
        offset: u64,
        sink: &mut DirSink,
    ) -> FsResult<()> {
        let at = self.at(node)?;
        sink.show_as(at.outward());
        at.fs.readdir(req, mode, at.node, handle, offset, sink)
    }

    fn readdirplus(
        &self,
        req: &Request,
        mode: BlockingMode,
        node: u64,
        handle: u64,
        offset: u64,
        sink: &mut DirSink,
    ) -> FsResult<()> {
        let at = self.at(node)?;
        sink.show_as(at.outward());
        at.fs.readdirplus(req, mode, at.node, handle, offset, sink)
    }

    fn releasedir(&self, req: &Request, args: &ReleaseArgs) -> FsResult<()> {
        let at = self.at(args.node)?;
        at.fs.releasedir(req, &ReleaseArgs { node: at.node, ..*args })
    }

    fn fsyncdir(&self, req: &Request, node: u64, handle: u64, data_only: bool) -> FsResult<()> {
        let at = self.at(node)?;
        at.fs.fsyncdir(req, at.node, handle, data_only)
    }

    fn syncfs(&self, req: &Request, _: u64) -> FsResult<()> {
        let all = self.all().into_iter().filter_map(|m| m.fs());
        all.map(|fs| fs.syncfs(req, ROOT_ID)).fold(Ok(()), Result::and)
    }

    fn statfs(&self, req: &Request, mode: BlockingMode, node: u64) -> FsResult<Statfs> {
        let at = self.at(node)?;
        at.fs.statfs(req, mode, at.node)
    }

    fn getxattr(
        &self,
        req: &Request,
        mode: BlockingMode,
        node: u64,
        name: &[u8],
        size: u32,
    ) -> FsResult<Data> {
        let at = self.at(node)?;
        let value = at.fs.getxattr(req, mode, at.node, name, size);
        match value {
            // The kernel requests ACLs from all members if the topmost dataset has ACLs.
            Err(Errno::EOPNOTSUPP) if self.acls && ACL_NAMES.contains(&name) => Err(Errno::ENODATA),
            other => other,
        }
    }

    fn listxattr(&self, req: &Request, mode: BlockingMode, node: u64, size: u32) -> FsResult<Data> {
        let at = self.at(node)?;
        at.fs.listxattr(req, mode, at.node, size)
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
        let at = self.at(node)?;
        at.fs.setxattr(req, at.node, name, value, flags, acl_kill_sgid)
    }

    fn removexattr(&self, req: &Request, node: u64, name: &[u8]) -> FsResult<()> {
        let at = self.at(node)?;
        at.fs.removexattr(req, at.node, name)
    }

    fn access(&self, req: &Request, mode: BlockingMode, node: u64, mask: u32) -> FsResult<()> {
        let at = self.at(node)?;
        at.fs.access(req, mode, at.node, mask)
    }

    fn getlk(&self, req: &Request, args: &LockArgs) -> FsResult<Lock> {
        let at = self.at(args.node)?;
        at.fs.getlk(req, &LockArgs { node: at.node, ..*args })
    }

    fn setlk(&self, req: &Request, args: &LockArgs) -> FsResult<()> {
        let at = self.at(args.node)?;
        at.fs.setlk(req, &LockArgs { node: at.node, ..*args })
    }

    fn ioctl(&self, req: &Request, args: &IoctlArgs<'_>) -> FsResult<(i32, Data)> {
        let at = self.at(args.node)?;
        at.fs.ioctl(req, &IoctlArgs { node: at.node, ..*args })
    }

    fn poll(&self, req: &Request, node: u64, handle: u64, events: u32) -> FsResult<u32> {
        let at = self.at(node)?;
        at.fs.poll(req, at.node, handle, events)
    }

    fn fallocate(
        &self,
        req: &Request,
        node: u64,
        handle: u64,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> FsResult<()> {
        let at = self.at(node)?;
        at.fs.fallocate(req, at.node, handle, offset, length, mode)
    }

    fn lseek(
        &self,
        req: &Request,
        mode: BlockingMode,
        node: u64,
        handle: u64,
        offset: u64,
        whence: Whence,
    ) -> FsResult<u64> {
        let at = self.at(node)?;
        at.fs.lseek(req, mode, at.node, handle, offset, whence)
    }

    fn copy_file_range(&self, req: &Request, range: &CopyRange) -> FsResult<u64> {
        let (from, to) = (self.at(range.node_in)?, self.at(range.node_out)?);
        from.same(&to)?;
        let range = CopyRange { node_in: from.node, node_out: to.node, ..*range };
        from.fs.copy_file_range(req, &range)
    }

    fn bmap(&self, req: &Request, node: u64, block: u64, blocksize: u32) -> FsResult<u64> {
        let at = self.at(node)?;
        at.fs.bmap(req, at.node, block, blocksize)
    }
}
