//! The trait that a file system implements.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Buf, BufMut};

pub use crate::abi::request::Opcode;
use crate::abi::structs::DirentHead;
use crate::abi::{Sink, Wire};
use crate::errno::{Errno, Result};
use crate::types::*;

/// Whether an operation may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockingMode {
    /// Answer from memory or return [`Errno::WOULD_BLOCK`].
    NonBlocking,
    /// Wait for devices as needed: the thread is replaced while it sleeps.
    Blocking,
}

/// What every request carries.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The kernel's number for it, unique on this mount.
    pub unique: u64,
    /// The caller's file system user id.
    pub uid: u32,
    /// The caller's file system group id.
    pub gid: u32,
    /// The caller's process id; 0 for the kernel itself.
    pub pid: u32,
    pub(crate) cancel: Option<Arc<AtomicBool>>,
}

impl Request {
    /// Whether the caller got a signal while waiting. A file system acts on it
    /// only where POSIX has the call interruptible (waits for locks): a signal
    /// that a runtime sends to its own threads must not fail a read.
    pub fn interrupted(&self) -> bool {
        self.cancel.as_ref().is_some_and(|flag| flag.load(Ordering::Acquire))
    }
}

/// What was agreed with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Minor protocol version in use (major is 7).
    pub minor: u32,
    /// INIT flags in use, `flags2` in the upper half.
    pub flags: u64,
    /// Most bytes in one read or write.
    pub max_transfer: u32,
    /// Most bytes the kernel reads ahead by itself.
    pub max_readahead: u32,
    /// Most requests in the background (reads ahead, direct I/O) at once.
    pub max_background: u16,
}

/// How a file system that is part of a larger one shows in that: what the larger one makes of
/// inode numbers and entries on their way to the kernel.
pub trait Outward: Send + Sync {
    /// The inode number shown.
    fn ino(&self, ino: u64) -> u64;
    /// The node's number; `None` if the kernel cannot have it.
    fn node(&self, node: u64) -> Option<u64>;
    /// The entry shown in listings; `None`: the name alone.
    fn entry(&self, entry: &LookupEntry) -> Option<LookupEntry>;
    /// An entry of [`Outward::entry`] is in a listing: a lookup of its node counts.
    fn granted(&self, node: u64);
}

/// A directory listing being built.
///
/// Entries accepted are delivered, even if the call then fails: its error shows
/// at the next call, which begins behind the last entry accepted.
pub struct DirSink {
    out: BufMut,
    used: usize,
    plus: bool,
    granted: Vec<u64>,
    outward: Option<Arc<dyn Outward>>,
}

impl std::fmt::Debug for DirSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirSink").field("used", &self.used).finish_non_exhaustive()
    }
}

impl Sink for DirSink {
    fn bytes(&mut self, bytes: &[u8]) {
        let end = self.used + bytes.len();
        if let Some(slot) = self.out.get_mut(self.used..end) {
            slot.copy_from_slice(bytes);
            self.used = end;
        }
    }
}

impl DirSink {
    /// Longest name that a listing holds (`FUSE_NAME_MAX` of the kernels before 6.16).
    const NAME_MAX: usize = 1024;

    pub(crate) fn new(size: usize, plus: bool) -> DirSink {
        DirSink { out: BufMut::alloc(size), used: 0, plus, granted: Vec::new(), outward: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// From now on entries are shown as `outward` has them.
    pub fn show_as(&mut self, outward: Arc<dyn Outward>) {
        self.outward = Some(outward);
    }

    /// The listing, and the nodes whose lookup it counts.
    pub(crate) fn finish(self) -> (Data, Vec<u64>) {
        let DirSink { mut out, used, granted, .. } = self;
        out.truncate(used);
        (out.freeze().into(), granted)
    }

    fn fits(&self, name: &[u8]) -> bool {
        let head =
            DirentHead::SIZE + if self.plus { crate::abi::structs::EntryOut::SIZE } else { 0 };
        let size = (head + name.len()).next_multiple_of(8);
        self.out.len() - self.used >= size
    }

    fn dirent(&mut self, ino: u64, next: u64, mode: u32, name: &[u8]) {
        // Bounded by NAME_MAX: `add` and `add_plus` checked it.
        let namelen = name.len() as u32;
        let kind = (mode & crate::abi::consts::S_IFMT) >> 12;
        DirentHead { ino, off: next, namelen, kind }.put(self);
        self.bytes(name);
        let pad = self.used.next_multiple_of(8) - self.used;
        self.bytes(&[0; 8][..pad]);
    }

    /// Adds a name to a plain listing. `next` is the offset from which the
    /// listing goes on behind it; `mode` gives the file type. False, and nothing
    /// added, when the kernel's buffer is full.
    ///
    /// A name that is empty or too long to be listed is passed over.
    pub fn add(&mut self, ino: u64, next: u64, mode: u32, name: &[u8]) -> bool {
        let ino = self.outward.as_ref().map_or(ino, |o| o.ino(ino));
        self.put(ino, next, mode, name)
    }

    fn put(&mut self, ino: u64, next: u64, mode: u32, name: &[u8]) -> bool {
        if name.is_empty() || name.len() > Self::NAME_MAX {
            return true;
        }
        if self.plus {
            // No lookup: the kernel takes the name and type alone.
            let attr = Attr { ino, mode, ..Attr::default() };
            return self.put_plus(
                &LookupEntry { attr, ..LookupEntry::negative(Duration::ZERO) },
                next,
                name,
            );
        }
        if !self.fits(name) {
            return false;
        }
        self.dirent(ino, next, mode, name);
        true
    }

    /// Adds a name with its entry to a listing with attributes; it counts as a
    /// lookup of `entry.node` when true is returned. `.` and `..` go through
    /// [`DirSink::add`].
    pub fn add_plus(&mut self, entry: &LookupEntry, next: u64, name: &[u8]) -> bool {
        if name.is_empty() || name.len() > Self::NAME_MAX {
            return true;
        }
        if !self.plus {
            return self.add(entry.attr.ino, next, entry.attr.mode, name);
        }
        let shown = match &self.outward {
            Some(outward) => match outward.entry(entry) {
                Some(shown) => shown,
                None => return self.add(entry.attr.ino, next, entry.attr.mode, name),
            },
            None => *entry,
        };
        let entry = &shown;
        if !self.put_plus(entry, next, name) {
            return false;
        }
        if entry.node != 0 {
            self.granted.push(entry.node);
            if let Some(outward) = &self.outward {
                outward.granted(entry.node);
            }
        }
        true
    }

    fn put_plus(&mut self, entry: &LookupEntry, next: u64, name: &[u8]) -> bool {
        if !self.fits(name) {
            return false;
        }
        entry.to_wire().put(self);
        self.dirent(entry.attr.ino, next, entry.attr.mode, name);
        true
    }
}

/// A file system, called by a [`Session`](crate::Session) from many threads at once.
///
/// Nodes are known by numbers of the file system's choice, given out by lookup
/// and creation; the root is [`ROOT_ID`]. Operations with a [`BlockingMode`] are called
/// with [`BlockingMode::NonBlocking`] first and must not sleep then. The others may sleep, as may
/// those called again with [`BlockingMode::Blocking`].
///
/// Names are bytes, checked to hold neither NUL nor `/`. Defaults answer `ENOSYS`
/// where the kernel then does without the operation, and `EROFS` where it would
/// change the file system. Beware of two of the former: `ENOSYS` from `fsync` or
/// `flush` makes the kernel report success ever after.
#[allow(unused_variables, reason = "defaults ignore their arguments")]
pub trait Filesystem: Send + Sync + 'static {
    /// Called once, before any other operation.
    fn init(&self, negotiated: &Negotiated) {}

    /// Called once, after the last operation has returned.
    fn destroy(&self) {}

    /// A request being served got a signal; see [`Request::interrupted`]. Called
    /// to wake the sleeper.
    fn interrupt(&self, unique: u64) {}

    /// Finds `name` in a directory.
    fn lookup(
        &self,
        req: &Request,
        mode: BlockingMode,
        parent: u64,
        name: &[u8],
    ) -> Result<LookupEntry> {
        Err(Errno::ENOENT)
    }

    /// Takes back `count` lookups of a node.
    fn forget(&self, node: u64, count: u64) {}

    /// Attributes, and how long they may be believed.
    fn getattr(
        &self,
        req: &Request,
        mode: BlockingMode,
        node: u64,
        handle: Option<u64>,
    ) -> Result<(Attr, Duration)> {
        Err(Errno::ENOSYS)
    }

    /// As `getattr`, for `statx(2)`; `ENOSYS` makes the kernel use `getattr`.
    fn statx(&self, req: &Request, mode: BlockingMode, node: u64, mask: u32) -> Result<Statx> {
        Err(Errno::ENOSYS)
    }

    /// Changes attributes and returns the new ones.
    fn setattr(&self, req: &Request, node: u64, set: &SetAttr) -> Result<(Attr, Duration)> {
        Err(Errno::EROFS)
    }

    /// A symbolic link's target.
    fn readlink(&self, req: &Request, mode: BlockingMode, node: u64) -> Result<Data> {
        Err(Errno::EINVAL)
    }

    /// Makes a symbolic link.
    fn symlink(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        target: &[u8],
    ) -> Result<LookupEntry> {
        Err(Errno::EROFS)
    }

    /// Makes a file that is neither directory nor link.
    fn mknod(&self, req: &Request, parent: u64, name: &[u8], new: &NewNode) -> Result<LookupEntry> {
        Err(Errno::EROFS)
    }

    /// Makes a directory.
    fn mkdir(&self, req: &Request, parent: u64, name: &[u8], new: &NewNode) -> Result<LookupEntry> {
        Err(Errno::EROFS)
    }

    /// Removes a name of a file.
    fn unlink(&self, req: &Request, parent: u64, name: &[u8]) -> Result<()> {
        Err(Errno::EROFS)
    }

    /// Removes an empty directory.
    fn rmdir(&self, req: &Request, parent: u64, name: &[u8]) -> Result<()> {
        Err(Errno::EROFS)
    }

    /// Renames; `flags` are those of `renameat2(2)`.
    fn rename(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        Err(Errno::EROFS)
    }

    /// Gives a node another name.
    fn link(&self, req: &Request, node: u64, parent: u64, name: &[u8]) -> Result<LookupEntry> {
        Err(Errno::EROFS)
    }

    /// Opens a file; `flags` are those of `open(2)`. `ENOSYS` makes the kernel
    /// open files by itself, keeping their cache, and never ask again.
    fn open(&self, req: &Request, mode: BlockingMode, node: u64, flags: u32) -> Result<Opened> {
        Err(Errno::ENOSYS)
    }

    /// Makes and opens a file; `ENOSYS` makes the kernel use `mknod` and `open`.
    fn create(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new: &NewNode,
        flags: u32,
    ) -> Result<(LookupEntry, Opened)> {
        Err(Errno::EROFS)
    }

    /// Makes and opens a file without a name.
    fn tmpfile(
        &self,
        req: &Request,
        parent: u64,
        new: &NewNode,
        flags: u32,
    ) -> Result<(LookupEntry, Opened)> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Reads. Fewer bytes than asked for mean the end of the file.
    fn read(&self, req: &Request, mode: BlockingMode, args: &ReadArgs) -> Result<Data> {
        Err(Errno::EIO)
    }

    /// Writes, and returns how many bytes of `data` were taken.
    fn write(&self, req: &Request, args: &WriteArgs, data: Buf) -> Result<u32> {
        Err(Errno::EROFS)
    }

    /// A descriptor of an open file is being closed.
    fn flush(&self, req: &Request, node: u64, handle: u64, lock_owner: u64) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// The last descriptor of an open file was closed. The answer is ignored.
    fn release(&self, req: &Request, args: &ReleaseArgs) -> Result<()> {
        Ok(())
    }

    /// Makes a file's changes durable.
    fn fsync(&self, req: &Request, node: u64, handle: u64, data_only: bool) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Opens a directory; `ENOSYS` as for [`Filesystem::open`]. The kernel then also caches
    /// listings, and sees no change that it did not make itself.
    fn opendir(&self, req: &Request, mode: BlockingMode, node: u64, flags: u32) -> Result<Opened> {
        Err(Errno::ENOSYS)
    }

    /// Lists names from `offset` (0, or a `next` given before) with
    /// [`DirSink::add`] until it is full or the directory ends.
    fn readdir(
        &self,
        req: &Request,
        mode: BlockingMode,
        node: u64,
        handle: u64,
        offset: u64,
        sink: &mut DirSink,
    ) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// As `readdir`, with entries and [`DirSink::add_plus`].
    fn readdirplus(
        &self,
        req: &Request,
        mode: BlockingMode,
        node: u64,
        handle: u64,
        offset: u64,
        sink: &mut DirSink,
    ) -> Result<()> {
        self.readdir(req, mode, node, handle, offset, sink)
    }

    /// The last descriptor of an open directory was closed.
    fn releasedir(&self, req: &Request, args: &ReleaseArgs) -> Result<()> {
        Ok(())
    }

    /// Makes a directory's changes durable.
    fn fsyncdir(&self, req: &Request, node: u64, handle: u64, data_only: bool) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Makes everything durable (`syncfs(2)`).
    fn syncfs(&self, req: &Request, node: u64) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// File system totals.
    fn statfs(&self, req: &Request, mode: BlockingMode, node: u64) -> Result<Statfs> {
        Err(Errno::ENOSYS)
    }

    /// An extended attribute's value; `ENODATA` if there is none. `size` is the
    /// room the caller has, 0 if it asks for the length alone: a longer value may
    /// be returned, the session answers `ERANGE`.
    fn getxattr(
        &self,
        req: &Request,
        mode: BlockingMode,
        node: u64,
        name: &[u8],
        size: u32,
    ) -> Result<Data> {
        Err(Errno::ENOSYS)
    }

    /// Names of extended attributes, each followed by a NUL; `size` as in `getxattr`.
    fn listxattr(&self, req: &Request, mode: BlockingMode, node: u64, size: u32) -> Result<Data> {
        Err(Errno::ENOSYS)
    }

    /// Sets an extended attribute; `flags` are those of `setxattr(2)`.
    /// `acl_kill_sgid`: an access ACL is set by someone outside the group.
    fn setxattr(
        &self,
        req: &Request,
        node: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
        acl_kill_sgid: bool,
    ) -> Result<()> {
        Err(Errno::EROFS)
    }

    /// Removes an extended attribute.
    fn removexattr(&self, req: &Request, node: u64, name: &[u8]) -> Result<()> {
        Err(Errno::EROFS)
    }

    /// Checks access; not called under `default_permissions`.
    fn access(&self, req: &Request, mode: BlockingMode, node: u64, mask: u32) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// The lock in the way of `args.lock`, or its kind changed to `F_UNLCK`.
    fn getlk(&self, req: &Request, args: &LockArgs) -> Result<Lock> {
        Err(Errno::ENOSYS)
    }

    /// Sets or drops a lock. One that waits has a thread of its own.
    fn setlk(&self, req: &Request, args: &LockArgs) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// The ioctl's result and the bytes to copy out.
    fn ioctl(&self, req: &Request, args: &IoctlArgs<'_>) -> Result<(i32, Data)> {
        Err(Errno::ENOTTY)
    }

    /// Ready events of `events`; `ENOSYS` means always ready.
    fn poll(&self, req: &Request, node: u64, handle: u64, events: u32) -> Result<u32> {
        Err(Errno::ENOSYS)
    }

    /// Reserves or frees space; `mode` is that of `fallocate(2)`.
    fn fallocate(
        &self,
        req: &Request,
        node: u64,
        handle: u64,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// Finds data or a hole at or after `offset`; `ENXIO` beyond the end.
    fn lseek(
        &self,
        req: &Request,
        mode: BlockingMode,
        node: u64,
        handle: u64,
        offset: u64,
        whence: Whence,
    ) -> Result<u64> {
        Err(Errno::ENOSYS)
    }

    /// Copies between files, and returns how many bytes.
    fn copy_file_range(&self, req: &Request, range: &CopyRange) -> Result<u64> {
        Err(Errno::ENOSYS)
    }

    /// A file block's place on the device; there is none behind a user-space file system.
    fn bmap(&self, req: &Request, node: u64, block: u64, blocksize: u32) -> Result<u64> {
        Err(Errno::ENOSYS)
    }
}

/// Whether an operation takes a [`BlockingMode`].
pub(crate) fn has_mode(op: Opcode) -> bool {
    use Opcode::*;
    matches!(
        op,
        Lookup
            | Getattr
            | Statx
            | Readlink
            | Open
            | Read
            | Opendir
            | Readdir
            | Readdirplus
            | Statfs
            | Getxattr
            | Listxattr
            | Access
            | Lseek
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_fills_and_aligns() {
        let mut sink = DirSink::new(70, false);
        assert!(sink.add(1, 1, 0o040_755, b"a"));
        assert!(sink.add(2, 2, 0o100_644, b"12345678"));
        assert!(!sink.add(3, 3, 0, b"c"));
        let (data, granted) = sink.finish();
        assert!(granted.is_empty());
        assert_eq!(data.len(), 64);
        let bytes = data.bufs()[0].to_vec();
        let mut rest = &bytes[..];
        let head = DirentHead::take(&mut rest).unwrap();
        assert_eq!(head, DirentHead { ino: 1, off: 1, namelen: 1, kind: 4 });
    }

    #[test]
    fn lookups_are_counted_only_for_nodes_delivered() {
        let mut sink = DirSink::new(2 * 160, true);
        let entry = |node| LookupEntry { node, ..LookupEntry::negative(Duration::ZERO) };
        assert!(sink.add(1, 1, 0o040_755, b"."));
        assert!(sink.add_plus(&entry(7), 2, b"seven"));
        assert!(!sink.add_plus(&entry(8), 3, b"eight"));
        assert_eq!(sink.finish().1, [7]);
    }
}
