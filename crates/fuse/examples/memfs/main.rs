//! Mounts a file system that keeps everything in memory until it is unmounted:
//! `memfs DIR [--transport dev|uring] [--settles SECONDS]`.
//!
//! # Theory
//! It shows the limit that the transport sets: names, attributes and content are in memory,
//! and a request only looks them up. It is mounted as Cenote mounts a dataset and answers
//! alike (cache lifetimes, handles that bypass the page cache, operations that do not
//! exist), so that programs cause the same requests. The time that a benchmark takes longer
//! on a dataset is Cenote's own work. A mount lets the kernel cache attributes of objects
//! that are not on disk yet only for a short time; here, those that changed in the last
//! seconds. `--settles 0` lets the kernel cache them for ever, as a file system could that
//! knows the space taken at once.
//!
//! Each request is answered by the thread that received it, under one lock. The bytes of a
//! file have a lock of their own, so that a long copy delays no other request.
//!
//! # Invariants
//! * A node exists while it has a name or the kernel remembers it, which it does while a
//!   handle is open. Node ids are never reused.
//! * A directory's cookies only grow: a listing continues where it stopped, whatever was
//!   added or removed.
//!
//! Lock order: `table`, a file's `bytes`.

mod table;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use base::rt::Mutex;
use base::{Buf, Error};
use fuse::{
    Attr, BlockingMode, Config, Data, DevTransport, DirSink, Errno, FOREVER, Filesystem,
    LookupEntry, MountOptions, Negotiated, NewNode, Opened, ReadArgs, Request, Result, Session,
    SetAttr, Statfs, Statx, Transport, UringTransport, WriteArgs,
};

use table::{DirEntries, InodeKind, InodeTable, S_IFDIR, S_IFMT, S_IFREG, now};

const S_IFLNK: u32 = 0o120_000;
const O_ACCMODE: u32 = 0o3;
const O_WRONLY: u32 = 0o1;
const O_RDWR: u32 = 0o2;
const O_DSYNC: u32 = rustix::fs::OFlags::DSYNC.bits();
const RENAME_NOREPLACE: u32 = 1;
/// Minor version of kernels that drop what the page cache holds behind a direct write.
const COHERENT_MINOR: u32 = 41;
/// What a mount has the kernel read ahead, bytes.
const READ_AHEAD: u32 = 4 << 20;
/// Seconds until a mount has a change on disk: the time between two groups.
const SETTLES: i64 = 5;
/// Attributes in which POSIX ACLs come: a dataset has none unless told to.
const ACL_NAMES: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// The file system; see the head of this file.
struct MemFs {
    table: Mutex<InodeTable>,
    /// Handles for writing alone pass the page cache by.
    direct_writes: AtomicBool,
}

impl MemFs {
    fn new(settles: i64) -> MemFs {
        MemFs { table: Mutex::new(InodeTable::new(settles)), direct_writes: AtomicBool::new(false) }
    }

    /// How a dataset's mount opens files.
    fn opened(&self, flags: u32) -> Opened {
        let around = match flags & O_ACCMODE {
            O_WRONLY => true,
            O_RDWR => flags & O_DSYNC != 0,
            _ => false,
        };
        let direct_io = around && self.direct_writes.load(Relaxed);
        Opened { direct_io, keep_cache: true, no_flush: true, ..Opened::default() }
    }
}

impl Filesystem for MemFs {
    fn init(&self, negotiated: &Negotiated) {
        self.direct_writes.store(negotiated.minor >= COHERENT_MINOR, Relaxed);
    }

    fn lookup(
        &self,
        _: &Request,
        _: BlockingMode,
        parent: u64,
        name: &[u8],
    ) -> Result<LookupEntry> {
        let table = self.table.lock();
        match table.find(parent, name) {
            Ok(id) => table.give(id),
            Err(Errno::ENOENT) => Ok(LookupEntry::negative(FOREVER)),
            Err(e) => Err(e),
        }
    }

    fn forget(&self, node: u64, count: u64) {
        let mut table = self.table.lock();
        if let Some(known) = table.nodes.get(&node) {
            known.lookups.set(known.lookups.get().saturating_sub(count));
        }
        table.bury(node);
    }

    fn getattr(
        &self,
        _: &Request,
        _: BlockingMode,
        node: u64,
        _: Option<u64>,
    ) -> Result<(Attr, Duration)> {
        let table = self.table.lock();
        let (node, settles) = (table.node(node)?, table.settles);
        Ok((node.attr(), node.attr_ttl(settles)))
    }

    fn statx(&self, _: &Request, _: BlockingMode, node: u64, _: u32) -> Result<Statx> {
        let table = self.table.lock();
        let (node, settles) = (table.node(node)?, table.settles);
        let (attr, attr_ttl) = (node.attr(), node.attr_ttl(settles));
        Ok(Statx { attr, btime: Some(node.born), attr_ttl, ..Statx::default() })
    }

    fn setattr(&self, _: &Request, node: u64, set: &SetAttr) -> Result<(Attr, Duration)> {
        if let Some(size) = set.size {
            let content = self.table.lock().content(node)?;
            content.resize(size)?;
        }
        let mut table = self.table.lock();
        let settles = table.settles;
        let node = table.node_mut(node)?;
        node.set(set);
        Ok((node.attr(), node.attr_ttl(settles)))
    }

    fn readlink(&self, _: &Request, _: BlockingMode, node: u64) -> Result<Data> {
        match &self.table.lock().node(node)?.body {
            InodeKind::Link(target) => Ok(target.clone()),
            _ => Err(Errno::EINVAL),
        }
    }

    fn symlink(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        target: &[u8],
    ) -> Result<LookupEntry> {
        let new = NewNode { mode: S_IFLNK | 0o777, umask: 0, rdev: 0 };
        self.table.lock().make(req, parent, name, &new, InodeKind::Link(Data::copy_of(target)))
    }

    fn mknod(&self, req: &Request, parent: u64, name: &[u8], new: &NewNode) -> Result<LookupEntry> {
        self.table.lock().make_file(req, parent, name, new)
    }

    fn mkdir(&self, req: &Request, parent: u64, name: &[u8], new: &NewNode) -> Result<LookupEntry> {
        let new = NewNode { mode: new.mode & !S_IFMT | S_IFDIR, ..*new };
        self.table.lock().make(
            req,
            parent,
            name,
            &new,
            InodeKind::DirEntries(DirEntries::new(parent)),
        )
    }

    fn unlink(&self, _: &Request, parent: u64, name: &[u8]) -> Result<()> {
        self.table.lock().remove(parent, name, false)
    }

    fn rmdir(&self, _: &Request, parent: u64, name: &[u8]) -> Result<()> {
        self.table.lock().remove(parent, name, true)
    }

    fn rename(
        &self,
        _: &Request,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        flags: u32,
    ) -> Result<()> {
        if flags & !RENAME_NOREPLACE != 0 {
            return Err(Errno::EINVAL);
        }
        self.table.lock().rename((parent, name), (new_parent, new_name), flags == 0)
    }

    fn link(&self, _: &Request, node: u64, parent: u64, name: &[u8]) -> Result<LookupEntry> {
        let mut table = self.table.lock();
        if table.node(node)?.is_dir() {
            return Err(Errno::EPERM);
        }
        table.put_name(parent, name, node, false)?;
        let linked = table.node_mut(node)?;
        linked.attr.nlink += 1;
        linked.attr.ctime = now();
        table.give(node)
    }

    fn open(&self, _: &Request, _: BlockingMode, node: u64, flags: u32) -> Result<Opened> {
        self.table.lock().node(node)?;
        Ok(self.opened(flags))
    }

    fn create(
        &self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new: &NewNode,
        flags: u32,
    ) -> Result<(LookupEntry, Opened)> {
        let new = NewNode { mode: new.mode & !S_IFMT | S_IFREG, ..*new };
        let entry = self.table.lock().make_file(req, parent, name, &new)?;
        Ok((entry, self.opened(flags)))
    }

    fn read(&self, _: &Request, _: BlockingMode, args: &ReadArgs) -> Result<Data> {
        let content = self.table.lock().content(args.node)?;
        Ok(content.read(args.offset, args.size))
    }

    fn write(&self, _: &Request, args: &WriteArgs, data: Buf) -> Result<u32> {
        let done = u32::try_from(data.len()).map_err(|_| Errno::EINVAL)?;
        let content = {
            let mut table = self.table.lock();
            let node = table.node_mut(args.node)?;
            node.changed(now());
            if args.kill_suidgid {
                node.drop_set_ids();
            }
            table.content(args.node)?
        };
        content.write(args.offset, &data)?;
        Ok(done)
    }

    fn fsync(&self, _: &Request, _: u64, _: u64, _: bool) -> Result<()> {
        Ok(())
    }

    fn fsyncdir(&self, _: &Request, _: u64, _: u64, _: bool) -> Result<()> {
        Ok(())
    }

    fn syncfs(&self, _: &Request, _: u64) -> Result<()> {
        Ok(())
    }

    fn readdir(
        &self,
        _: &Request,
        _: BlockingMode,
        node: u64,
        _: u64,
        offset: u64,
        sink: &mut DirSink,
    ) -> Result<()> {
        self.table.lock().list(node, offset, sink, false)
    }

    fn readdirplus(
        &self,
        _: &Request,
        _: BlockingMode,
        node: u64,
        _: u64,
        offset: u64,
        sink: &mut DirSink,
    ) -> Result<()> {
        self.table.lock().list(node, offset, sink, true)
    }

    fn statfs(&self, _: &Request, _: BlockingMode, _: u64) -> Result<Statfs> {
        let files = self.table.lock().nodes.len() as u64;
        let (blocks, ffree) = (1 << 30, 1 << 30);
        let free = Statfs { blocks, bfree: blocks, bavail: blocks, ffree, ..Statfs::default() };
        Ok(Statfs { files: files + ffree, bsize: 128 << 10, frsize: 512, namelen: 255, ..free })
    }

    fn getxattr(&self, _: &Request, _: BlockingMode, _: u64, name: &[u8], _: u32) -> Result<Data> {
        Err(if ACL_NAMES.contains(&name) { Errno::EOPNOTSUPP } else { Errno::ENODATA })
    }

    fn listxattr(&self, _: &Request, _: BlockingMode, _: u64, _: u32) -> Result<Data> {
        Ok(Data::empty())
    }

    fn setxattr(&self, _: &Request, _: u64, _: &[u8], _: &[u8], _: u32, _: bool) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }

    fn removexattr(&self, _: &Request, _: u64, _: &[u8]) -> Result<()> {
        Err(Errno::ENODATA)
    }
}

fn transport(name: &str) -> base::Result<Box<dyn Transport>> {
    match name {
        "dev" => Ok(Box::new(DevTransport)),
        "uring" if UringTransport::is_available() => Ok(Box::<UringTransport>::default()),
        "uring" => Err(Error::unsupported("io_uring for FUSE is off: enable_uring")),
        _ => Err(Error::invalid("--transport: dev or uring")),
    }
}

/// What was asked for on the command line.
struct MemfsOptions {
    dir: PathBuf,
    transport: Box<dyn Transport>,
    settles: i64,
}

fn wanted(mut args: impl Iterator<Item = String>) -> base::Result<MemfsOptions> {
    let usage = || Error::invalid("usage: memfs DIR [--transport dev|uring] [--settles SECONDS]");
    let dir = PathBuf::from(args.next().ok_or_else(usage)?);
    let mut wanted = MemfsOptions { dir, transport: Box::new(DevTransport), settles: SETTLES };
    while let (Some(option), value) = (args.next(), args.next()) {
        let value = value.ok_or_else(usage)?;
        match option.as_str() {
            "--transport" => wanted.transport = transport(&value)?,
            "--settles" => wanted.settles = value.parse().map_err(|_| usage())?,
            _ => return Err(usage()),
        }
    }
    Ok(wanted)
}

fn main() -> base::Result<()> {
    let MemfsOptions { dir, transport, settles } = wanted(std::env::args().skip(1))?;
    let options = MountOptions {
        fsname: "memory".into(),
        subtype: "cenote-memory".into(),
        allow_other: rustix::process::geteuid().is_root(),
        default_permissions: true,
        ..MountOptions::default()
    };
    // As of a dataset's mount.
    let config = Config {
        max_readahead: READ_AHEAD,
        killpriv_v2: true,
        atomic_o_trunc: false,
        dont_mask: true,
        ..Config::default()
    };
    let fs = Arc::new(MemFs::new(settles));
    let session = Session::mount_by(fs, &dir, &options, &config, &*transport)?;
    session.join();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuse::ROOT_ID;
    use proptest::prelude::*;

    const FILE: NewNode = NewNode { mode: S_IFREG | 0o644, umask: 0o022, rdev: 0 };

    fn create(fs: &MemFs, name: &[u8]) -> u64 {
        fs.create(&Request::default(), ROOT_ID, name, &FILE, O_WRONLY).unwrap().0.node
    }

    fn nodes(fs: &MemFs) -> usize {
        fs.table.lock().nodes.len()
    }

    #[test]
    fn files_without_names_live_until_they_are_forgotten() {
        let (fs, req) = (MemFs::new(0), Request::default());
        let node = create(&fs, b"a");
        fs.link(&req, node, ROOT_ID, b"b").unwrap();
        fs.unlink(&req, ROOT_ID, b"a").unwrap();
        fs.unlink(&req, ROOT_ID, b"b").unwrap();
        assert_eq!(fs.getattr(&req, BlockingMode::Blocking, node, None).unwrap().0.nlink, 0);
        fs.forget(node, 1);
        assert_eq!(nodes(&fs), 2);
        fs.forget(node, 1);
        assert_eq!(nodes(&fs), 1);
        assert_eq!(fs.getattr(&req, BlockingMode::Blocking, node, None), Err(Errno::ESTALE));
    }

    #[test]
    fn a_rename_replaces_what_it_may() {
        let (fs, req) = (MemFs::new(0), Request::default());
        let dir = fs.mkdir(&req, ROOT_ID, b"dir", &FILE).unwrap().node;
        let (a, b) = (create(&fs, b"a"), create(&fs, b"b"));
        let rename = |from: &[u8], to: &[u8], flags| {
            fs.rename(&req, ROOT_ID, from, ROOT_ID, to, flags).map_err(Errno::raw)
        };
        assert_eq!(rename(b"a", b"b", RENAME_NOREPLACE), Err(17));
        assert_eq!(rename(b"a", b"dir", 0), Err(21));
        assert_eq!(rename(b"a", b"b", 0), Ok(()));
        fs.forget(b, 1);
        assert_eq!(nodes(&fs), 3);
        let found = fs.lookup(&req, BlockingMode::Blocking, ROOT_ID, b"b").unwrap();
        assert_eq!((found.node, found.attr.nlink), (a, 1));
        assert_eq!(fs.lookup(&req, BlockingMode::Blocking, ROOT_ID, b"a").unwrap().node, 0);
        fs.rename(&req, ROOT_ID, b"b", dir, b"b", 0).unwrap();
        assert_eq!(fs.rmdir(&req, ROOT_ID, b"dir"), Err(Errno::ENOTEMPTY));
        assert_eq!(fs.table.lock().find(dir, b"..").unwrap(), ROOT_ID);
    }

    proptest! {
        /// Against the naive model: a vector with zeros where nothing was written.
        #[test]
        fn bytes_are_those_written(
            steps in prop::collection::vec(
                (0u64..300, prop::collection::vec(any::<u8>(), 0..80), any::<bool>()),
                0..20,
            ),
        ) {
            let (content, mut model) = (table::FileContent::default(), Vec::new());
            for (at, data, cut) in steps {
                if cut {
                    content.resize(at).unwrap();
                    model.resize(at as usize, 0);
                } else {
                    content.write(at, &data).unwrap();
                    let end = at as usize + data.len();
                    model.resize(model.len().max(end), 0);
                    model[at as usize..end].copy_from_slice(&data);
                }
                let all = content.read(0, 1000);
                let all: Vec<u8> = all.bufs().iter().flat_map(|b| b.to_vec()).collect();
                prop_assert_eq!(&all, &model);
                let part = content.read(at, 7).len();
                prop_assert_eq!(part, model.len().saturating_sub(at as usize).min(7));
            }
            prop_assert_eq!(content.write(u64::MAX, &[1]), Err(Errno::EFBIG));
        }
    }
}
