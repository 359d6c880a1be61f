//! A file system that costs nothing: it states the limit of the transport itself.
//!
//! One file of a chosen length lies in the root. Reads answer with zero bytes
//! that are always the same memory, writes are dropped. What remains of the time
//! of a read is the kernel, the session and the copy to the reader. Files that are made
//! are there as long as the kernel remembers them; nothing is kept of them here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::Buf;
use base::limits::BUF_SIZE_MAX;

use crate::errno::{Errno, Result};
use crate::fs::{BlockingMode, DirSink, Filesystem, Request};
use crate::types::*;

/// The file's name.
pub const FILE_NAME: &str = "null";
const FILE_ID: u64 = 2;

/// The file system; see the module.
#[derive(Clone, Debug)]
pub struct NullFs {
    size: u64,
    ttl: Duration,
    /// The last node that was given out.
    last: Arc<AtomicU64>,
}

impl NullFs {
    /// With a file of `size` bytes.
    pub fn new(size: u64) -> NullFs {
        NullFs { size, ttl: FOREVER, last: Arc::new(AtomicU64::new(FILE_ID)) }
    }

    /// Lets the kernel believe attributes and names only for `ttl`; with zero each
    /// `stat` is a request.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Duration) -> NullFs {
        self.ttl = ttl;
        self
    }

    fn attr(&self, node: u64) -> Result<Attr> {
        let common = Attr { ino: node, nlink: 1, blksize: 128 << 10, ..Attr::default() };
        match node {
            ROOT_ID => Ok(Attr { mode: 0o040_755, nlink: 2, ..common }),
            FILE_ID => {
                Ok(Attr { mode: 0o100_666, size: self.size, blocks: self.size / 512, ..common })
            }
            n if n <= self.last.load(Relaxed) => Ok(Attr { mode: 0o100_644, ..common }),
            _ => Err(Errno::ESTALE),
        }
    }

    fn entry(&self, node: u64) -> Result<LookupEntry> {
        let attr = self.attr(node)?;
        Ok(LookupEntry { node, generation: 0, attr, entry_ttl: self.ttl, attr_ttl: self.ttl })
    }
}

impl Filesystem for NullFs {
    fn lookup(
        &self,
        _: &Request,
        _: BlockingMode,
        parent: u64,
        name: &[u8],
    ) -> Result<LookupEntry> {
        match (parent, name) {
            (ROOT_ID, n) if n == FILE_NAME.as_bytes() => self.entry(FILE_ID),
            (_, b"." | b"..") => self.entry(ROOT_ID),
            _ => Err(Errno::ENOENT),
        }
    }

    fn getattr(
        &self,
        _: &Request,
        _: BlockingMode,
        node: u64,
        _: Option<u64>,
    ) -> Result<(Attr, Duration)> {
        Ok((self.attr(node)?, self.ttl))
    }

    fn setattr(&self, _: &Request, node: u64, _: &SetAttr) -> Result<(Attr, Duration)> {
        Ok((self.attr(node)?, self.ttl))
    }

    fn open(&self, _: &Request, _: BlockingMode, node: u64, _: u32) -> Result<Opened> {
        self.attr(node)?;
        Ok(Opened { keep_cache: true, parallel_direct_writes: true, ..Opened::default() })
    }

    fn create(
        &self,
        _: &Request,
        _: u64,
        _: &[u8],
        _: &NewNode,
        _: u32,
    ) -> Result<(LookupEntry, Opened)> {
        let node = self.last.fetch_add(1, Relaxed) + 1;
        let entry = LookupEntry { entry_ttl: FOREVER, attr_ttl: FOREVER, ..self.entry(node)? };
        // What suits a writer of small files: no page cache, no FLUSH at close.
        Ok((entry, Opened { direct_io: true, no_flush: true, ..Opened::default() }))
    }

    fn unlink(&self, _: &Request, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn read(&self, _: &Request, _: BlockingMode, args: &ReadArgs) -> Result<Data> {
        let left = self.attr(args.node)?.size.saturating_sub(args.offset);
        let len = usize::try_from(left.min(u64::from(args.size))).map_err(|_| Errno::EINVAL)?;
        Ok(Buf::zeros(len.min(BUF_SIZE_MAX)).into())
    }

    fn write(&self, _: &Request, args: &WriteArgs, data: Buf) -> Result<u32> {
        self.attr(args.node)?;
        u32::try_from(data.len()).map_err(|_| Errno::EINVAL)
    }

    fn fsync(&self, _: &Request, _: u64, _: u64, _: bool) -> Result<()> {
        Ok(())
    }

    fn readdir(
        &self,
        _: &Request,
        _: BlockingMode,
        _: u64,
        _: u64,
        offset: u64,
        sink: &mut DirSink,
    ) -> Result<()> {
        let names: [(u64, &[u8]); 3] =
            [(ROOT_ID, b"."), (ROOT_ID, b".."), (FILE_ID, FILE_NAME.as_bytes())];
        for (next, (ino, name)) in (1..).zip(names) {
            if next > offset && !sink.add(ino, next, self.attr(ino)?.mode, name) {
                break;
            }
        }
        Ok(())
    }

    fn statfs(&self, _: &Request, _: BlockingMode, _: u64) -> Result<Statfs> {
        Ok(Statfs { files: 2, bsize: 128 << 10, frsize: 512, namelen: 255, ..Statfs::default() })
    }
}
