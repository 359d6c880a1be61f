//! The FUSE operations of a tree: each calls its member's, and translates ids in both
//! directions. Most need the member's node only (`forward!`).

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

/// Operations on one node that need nothing but the member's node: `name(before; node, after)`,
/// and those that make a file (`made`) or have the node in their arguments (`args`).
macro_rules! forward {
    ($($name:ident($($b:ident: $bt:ty),*; $node:ident $(, $a:ident: $at:ty)*) -> $ret:ty;)*) => {$(
        fn $name(&self, $($b: $bt,)* $node: u64 $(, $a: $at)*) -> FsResult<$ret> {
            let at = self.at($node)?;
            at.fs.$name($($b,)* at.node $(, $a)*)
        }
    )*};
    (made $($name:ident($new:ident: $new_t:ty);)*) => {$(
        fn $name(
            &self,
            req: &Request,
            parent: u64,
            name: &[u8],
            $new: $new_t,
        ) -> FsResult<LookupEntry> {
            let at = self.at(parent)?;
            at.made(at.fs.$name(req, at.node, name, $new)?)
        }
    )*};
    (args $($name:ident($($b:ident: $bt:ty),*; $args:ident$(<$life:lifetime>)? $(, $a:ident: $at:ty)*) -> $ret:ty;)*) => {$(
        fn $name(&self, $($b: $bt,)* args: &$args$(<$life>)? $(, $a: $at)*) -> FsResult<$ret> {
            let at = self.at(args.node)?;
            at.fs.$name($($b,)* &$args { node: at.node, ..*args } $(, $a)*)
        }
    )*};
}

impl Filesystem for MountTree {
    forward! {
        readlink(req: &Request, mode: BlockingMode; node) -> Data;
        unlink(req: &Request; parent, name: &[u8]) -> ();
        flush(req: &Request; node, handle: u64, lock_owner: u64) -> ();
        fsync(req: &Request; node, handle: u64, data_only: bool) -> ();
        opendir(req: &Request, mode: BlockingMode; node, flags: u32) -> Opened;
        fsyncdir(req: &Request; node, handle: u64, data_only: bool) -> ();
        statfs(req: &Request, mode: BlockingMode; node) -> Statfs;
        listxattr(req: &Request, mode: BlockingMode; node, size: u32) -> Data;
        setxattr(
            req: &Request; node, name: &[u8], value: &[u8], flags: u32, acl_kill_sgid: bool
        ) -> ();
        removexattr(req: &Request; node, name: &[u8]) -> ();
        access(req: &Request, mode: BlockingMode; node, mask: u32) -> ();
        poll(req: &Request; node, handle: u64, events: u32) -> u32;
        fallocate(req: &Request; node, handle: u64, offset: u64, length: u64, mode: u32) -> ();
        lseek(
            req: &Request, mode: BlockingMode; node, handle: u64, offset: u64, whence: Whence
        ) -> u64;
        bmap(req: &Request; node, block: u64, blocksize: u32) -> u64;
    }
    forward! { made
        symlink(target: &[u8]);
        mknod(new: &NewNode);
        mkdir(new: &NewNode);
    }
    forward! { args
        read(req: &Request, mode: BlockingMode; ReadArgs) -> Data;
        write(req: &Request; WriteArgs, data: Buf) -> u32;
        releasedir(req: &Request; ReleaseArgs) -> ();
        getlk(req: &Request; LockArgs) -> Lock;
        setlk(req: &Request; LockArgs) -> ();
        ioctl(req: &Request; IoctlArgs<'_>) -> (i32, Data);
    }

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

    fn release(&self, req: &Request, args: &ReleaseArgs) -> FsResult<()> {
        let at = self.at(args.node)?;
        let done = at.fs.release(req, &ReleaseArgs { node: at.node, ..*args });
        MountTree::released(&at);
        done
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

    fn syncfs(&self, req: &Request, _: u64) -> FsResult<()> {
        let all = self.all().into_iter().filter_map(|m| m.fs());
        all.map(|fs| fs.syncfs(req, ROOT_ID)).fold(Ok(()), Result::and)
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

    fn copy_file_range(&self, req: &Request, range: &CopyRange) -> FsResult<u64> {
        let (from, to) = (self.at(range.node_in)?, self.at(range.node_out)?);
        let range = CopyRange { node_in: from.node, node_out: to.node, ..*range };
        to.fs.copy_from(req, &from.fs, &range)
    }
}
