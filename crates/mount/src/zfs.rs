//! A dataset as a FUSE file system: what is where, and what the kernel may believe.
//!
//! # Theory
//! Nobody changes a mounted file system but through its mount: the daemon is the pool's
//! only writer, and a dataset is mounted once. So the kernel may believe names and
//! attributes until it changes them itself, and keep pages of files over their opening;
//! what happens behind its back (snapshots that come and go, properties, rollback) it is
//! told. Two things it may not believe for long. Space taken is known when a group is on
//! disk: attributes of what is still to be written are asked for again. And where names of
//! different bytes are one (case, normalisation), it would not see that one it
//! remembers went under another spelling: there it asks each time.
//!
//! Each reading operation is tried from memory first, and only then waits for devices
//! (decision 7); changing operations ([`super::write`]) may wait at once.
//!
//! A node is an object ([`super::node`]): the kernel's lookups need no count here. That
//! a number may be used again is what generations are for: the kernel gives up an inode
//! whose generation is another now. What is open is held in the file system, so that a
//! file without a name lives as long as somebody has it open.
//!
//! `.zfs/snapshot/NAME` is the snapshot's own file system, opened when its name
//! is first looked up and kept as long as the mount and the snapshot live. It is found by
//! name even where `snapdir=hidden` keeps it out of listings. Nothing can be changed
//! beneath `.zfs`.
//!
//! # The kernel's write-back cache
//! is off. It would have the kernel answer for sizes and times while pages are dirty:
//! `ENOSPC` and `EDQUOT` come only when the writer is gone, a snapshot lacks what was
//! written before it, and times of change are the kernel's. Writes of mapped pages are
//! late even so, as on every file system; `fsync` and `msync` bring them here first.
//!
//! What is open for writing alone passes the page cache by where the kernel drops what the
//! cache holds behind each write (protocol 7.41): nobody can map it, a written page need not
//! be copied twice, and the kernel does not ask for `security.capability` before the first
//! write of each file; that goes here then, whoever writes. So does what is open for
//! synchronous writes, reading too: its data and the wait for them are one request then.
//!
//! # Departures from OpenZFS
//! Snapshots are part of the dataset's mount instead of mounts of their own: they
//! share its device number. `syncfs` and `sync` do not reach a FUSE server that is not
//! virtiofs: what they should make durable is so with the next group.
//!
//! Lock order: `ZfsMount::spaces` is a leaf; the engine is not called under it.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::rt::RwLock;
use base::{ErrorKind, ObjectId, Result};
use cenote::files::{Atime, Attrs, CaseSensitivity, DirEntry};
use cenote::props::PropData;
use cenote::{Dataset, FileSystem, Io};
use fuse::{
    Attr, BlockingMode, DirSink, Errno, FOREVER, LookupEntry, Notifier, Statfs, Timestamp,
    WriteArgs,
};

use super::io;
use super::node::{CTL_INO, NodeTarget, SHARES_INO, SNAPDIR_INO, SNAPROOT_INO, SPACES_MAX};
use super::pages::Pages;
use super::removed_dirs::RemovedDirs;
use crate::MountOptions;

const CTL_NAME: &[u8] = b".zfs";
const SNAPDIR_NAME: &[u8] = b"snapshot";
const SHARES_NAME: &[u8] = b"shares";
/// Behind `..` in a root directory; the file system leaves it for `.zfs`.
const COOKIE_CTL: u64 = 2;
const COOKIE_BEHIND_CTL: u64 = 3;
const S_IFDIR: u32 = 0o040_000;
/// Unit of space in `statfs`.
const FRAGMENT: u64 = 512;

pub(super) type FsResult<T> = std::result::Result<T, Errno>;

/// The file systems of one mount: index 0 is the dataset, others are snapshots.
struct Spaces {
    /// With the object set's number; `None` where a snapshot was that is gone.
    list: Vec<Option<(Arc<FileSystem>, u64)>>,
    by_name: HashMap<Vec<u8>, u16>,
}

/// The snapshots by name, with their creation.
type Snapshots = Arc<Vec<(Vec<u8>, Timestamp)>>;

/// How a mount's access times are kept.
#[derive(Clone, Copy)]
struct Access {
    /// If not as the properties say.
    rule: Option<Atime>,
    not_of_dirs: bool,
}

impl Access {
    fn of(options: &MountOptions) -> Access {
        Access { rule: options.atime, not_of_dirs: options.nodiratime }
    }
}

/// A mounted dataset.
pub(super) struct ZfsMount {
    dataset: Dataset,
    fs: Arc<FileSystem>,
    spaces: RwLock<Spaces>,
    /// Until they change, and how often they did.
    snapshots: RwLock<(Option<Snapshots>, u64)>,
    /// Of a file system that does not change.
    pub(super) totals: Statfs,
    /// Changes are possible, options permitting.
    pub(super) writable: bool,
    /// Names are exactly their bytes.
    pub(super) exact: bool,
    /// `readonly`, by the property or the mount's options.
    read_only: AtomicBool,
    /// How access times are kept.
    access: RwLock<Access>,
    visible: AtomicBool,
    has_ctl: AtomicBool,
    notifier: OnceLock<Notifier>,
    /// The kernel's page cache is passed by.
    direct_io: bool,
    /// The kernel was told of POSIX ACLs.
    posix_acl: bool,
    /// Handles for writing alone pass the page cache by.
    pub(super) direct_writes: AtomicBool,
    /// The kernel has checked whether a caller may change flags.
    pub(super) checks_flags: AtomicBool,
    pub(super) gone: RemovedDirs,
    pages: Arc<Pages>,
}

fn number(dataset: &Dataset, name: &str) -> Result<u64> {
    Ok(match dataset.prop(name)?.map(|v| v.value) {
        Some(PropData::Num(n)) => n,
        _ => 0,
    })
}

/// Of a file system that changes.
pub(super) fn totals_now(fs: &FileSystem) -> Result<Statfs> {
    let space = fs.space()?;
    Ok(Statfs {
        blocks: space.total / FRAGMENT,
        bfree: space.available / FRAGMENT,
        bavail: space.available / FRAGMENT,
        files: space.objects.saturating_add(space.free_objects),
        ffree: space.free_objects,
        bsize: 128 << 10,
        namelen: u32::try_from(fs.name_max()).unwrap_or(255),
        frsize: 512,
    })
}

fn totals(dataset: &Dataset, fs: &FileSystem) -> Result<Statfs> {
    let available = number(dataset, "available")? / FRAGMENT;
    let referenced = number(dataset, "referenced")? / FRAGMENT;
    Ok(Statfs {
        blocks: referenced.saturating_add(available),
        bfree: available,
        bavail: available,
        files: fs.object_count().saturating_add(available),
        ffree: available,
        bsize: 128 << 10,
        namelen: u32::try_from(fs.name_max()).unwrap_or(255),
        frsize: 512,
    })
}

pub(super) fn stamp(t: cenote::files::Time) -> Timestamp {
    let nsec = t.nanoseconds.min(999_999_999);
    Timestamp { sec: t.seconds, nsec: u32::try_from(nsec).unwrap_or(0) }
}

pub(super) fn attr(a: &Attrs) -> Attr {
    let rdev = a.device.map_or(0, |d| d.linux_dev());
    Attr {
        ino: a.id.0,
        size: a.size,
        blocks: a.blocks,
        atime: stamp(a.atime),
        mtime: stamp(a.mtime),
        ctime: stamp(a.ctime),
        mode: a.mode,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: u32::try_from(rdev).unwrap_or(0),
        blksize: a.block_size,
    }
}

fn entry(node: u64, generation: u64, attr: Attr) -> LookupEntry {
    LookupEntry { node, generation, attr, entry_ttl: FOREVER, attr_ttl: FOREVER }
}

/// Of `st_mode`.
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const SET_ID: u32 = 0o6_000;

/// How long attributes may be believed of what is not on disk as it is.
const DIRTY_TTL: Duration = Duration::from_secs(2);
/// Of `open(2)`.
const O_DIRECT: u32 = rustix::fs::OFlags::DIRECT.bits();

/// Seconds after a change in which a group may not yet be on disk.
const FRESH: i64 = 30;

impl ZfsMount {
    /// Opens a dataset for mounting.
    ///
    /// # Errors
    /// The file system cannot be opened.
    pub(super) fn new(dataset: &Dataset, options: &MountOptions) -> Result<ZfsMount> {
        let writable = dataset.check_writable().is_ok();
        let fs = dataset.open_fs()?;
        let props = fs.props();
        let exact = props.case == CaseSensitivity::Sensitive && props.normalization == 0;
        // The kernel's page cache holds what was read, unless it is passed by.
        fs.set_drop_behind(!options.direct_io);
        Ok(ZfsMount {
            dataset: dataset.clone(),
            totals: totals(dataset, &fs)?,
            spaces: RwLock::new(Spaces {
                list: vec![Some((Arc::clone(&fs), dataset.object()))],
                by_name: HashMap::new(),
            }),
            fs,
            writable,
            exact,
            read_only: AtomicBool::new(options.read_only),
            access: RwLock::new(Access::of(options)),
            snapshots: RwLock::new((None, 0)),
            visible: AtomicBool::new(options.snapdir_visible),
            has_ctl: AtomicBool::new(!options.snapdir_disabled),
            notifier: OnceLock::new(),
            direct_io: options.direct_io,
            posix_acl: options.posix_acl,
            direct_writes: AtomicBool::new(false),
            checks_flags: AtomicBool::new(false),
            gone: RemovedDirs::default(),
            pages: Arc::default(),
        })
    }

    /// Tells how to tell the kernel something.
    pub(super) fn attach(&self, notifier: Notifier) {
        let _attached_once = self.notifier.set(notifier);
    }

    /// Options changed that are no flags of the kernel's.
    pub(super) fn follow(&self, options: &MountOptions) {
        self.read_only.store(options.read_only, Relaxed);
        *self.access.write() = Access::of(options);
        self.visible.store(options.snapdir_visible, Relaxed);
        self.has_ctl.store(!options.snapdir_disabled, Relaxed);
        self.notify_kernel(|n| n.inval_entry(fuse::ROOT_ID, CTL_NAME));
        self.notify_kernel(|n| n.inval_inode(fuse::ROOT_ID, 0, 0));
    }

    /// Snapshots of these names came or went: what was known of them is forgotten, here
    /// and in the kernel. Files of one that is gone are stale.
    pub(super) fn snapshots_changed(&self, names: &[&str]) {
        {
            let mut known = self.snapshots.write();
            *known = (None, known.1 + 1);
        }
        {
            let mut spaces = self.spaces.write();
            for name in names {
                if let Some(space) = spaces.by_name.remove(name.as_bytes())
                    && let Some(slot) = spaces.list.get_mut(usize::from(space))
                {
                    *slot = None;
                }
            }
        }
        let Some(snapdir) = NodeTarget::Snapdir.id(self.root()) else { return };
        for name in names {
            self.notify_kernel(|n| n.inval_entry(snapdir, name.as_bytes()));
        }
        self.notify_kernel(|n| n.inval_inode(snapdir, 0, 0));
    }

    /// An invalidation; a kernel that knows nothing of it needs none.
    fn notify_kernel(&self, what: impl FnOnce(&Notifier) -> fuse::Result<()>) {
        if let Some(notifier) = self.notifier.get() {
            let _unmounted = what(notifier);
        }
    }

    /// Attributes of a node changed in a way that the kernel does not see.
    pub(super) fn attrs_changed(&self, node: u64) {
        self.notify_kernel(|n| n.inval_inode(node, -1, 0));
    }

    /// Whether the kernel has checked that a caller may change a file's flags.
    pub(super) fn kernel_checks_flags(&self) -> bool {
        self.checks_flags.load(Relaxed)
    }

    /// A file is about to be read, open with these flags.
    pub(super) fn reads(&self, node: u64, flags: u32) {
        if self.writable && !self.direct_io && flags & O_DIRECT == 0 {
            self.pages.mark_read(node);
        }
    }

    /// A range of a file was written, and the writer has no answer yet. Other handles that
    /// pass the cache by are written synchronously: the kernel drops what it holds itself.
    pub(super) fn wrote(&self, args: &WriteArgs, len: usize) {
        if args.flags & O_DIRECT != 0 && !self.direct_io {
            self.pages.invalidate_written(self.notifier.get(), args.node, args.offset, len);
        }
    }

    /// A file or a directory was read.
    pub(super) fn accessed(&self, node: u64, is_dir: bool) {
        let Ok(NodeTarget::Object(0, id)) = self.node(node) else { return };
        let access = *self.access.read();
        if self.check_writable().is_ok() && !(is_dir && access.not_of_dirs) {
            self.fs.accessed_as(id, access.rule);
        }
    }

    /// Whether every access counts, however soon after another.
    pub(super) fn counts_each_access(&self) -> bool {
        let rule = self.access.read().rule;
        self.writable && self.fs.counts_each_access(rule)
    }

    /// Part of a directory was listed: each listing counts once.
    pub(super) fn listed(&self, node: u64, offset: u64) {
        if offset == 0 {
            self.accessed(node, true);
        }
    }

    /// The file system itself.
    pub(super) fn fs(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    /// Whether there are POSIX ACLs.
    pub(super) fn has_acls(&self) -> bool {
        self.posix_acl
    }

    /// The kernel's page cache is passed by.
    pub(super) fn is_direct(&self) -> bool {
        self.direct_io
    }

    /// Whether something can be changed now.
    pub(super) fn check_writable(&self) -> FsResult<()> {
        if self.writable && !self.read_only.load(Relaxed) { Ok(()) } else { Err(Errno::EROFS) }
    }

    /// How long attributes may be believed: the space taken is that of synced groups. A
    /// file's set-id bits go when somebody else writes to it, and of direct writes the
    /// kernel does not see that they went.
    pub(super) fn attr_ttl(&self, attr: &Attr) -> Duration {
        let set_id = attr.mode & S_IFMT == S_IFREG && attr.mode & SET_ID != 0;
        match self.writable {
            true if set_id => Duration::ZERO,
            true if self.is_unsettled(attr) => DIRTY_TTL,
            _ => FOREVER,
        }
    }

    /// Whether the space taken may be another when a group is on disk, or since these
    /// attributes were read.
    fn is_unsettled(&self, attr: &Attr) -> bool {
        let now = base::rt::wall_clock().as_secs().cast_signed();
        let id = ObjectId(attr.ino);
        (now - FRESH..=now).contains(&attr.ctime.sec)
            && (self.fs.is_dirty(id)
                || self.fs.attrs(id, Io::MEMORY).map_or(true, |a| a.blocks != attr.blocks))
    }

    /// The entry of an object of the dataset, whose attributes are these.
    pub(super) fn own_entry(&self, attrs: &Attrs) -> FsResult<LookupEntry> {
        let node = NodeTarget::Object(0, attrs.id).id(self.root()).ok_or(Errno::EIO)?;
        let attr = attr(attrs);
        let entry_ttl = if self.exact { FOREVER } else { Duration::ZERO };
        let attr_ttl = self.attr_ttl(&attr);
        Ok(LookupEntry { node, generation: attrs.generation, attr, entry_ttl, attr_ttl })
    }

    /// The object of a node that can be changed.
    pub(super) fn changeable(&self, node: u64) -> FsResult<ObjectId> {
        match self.node(node)? {
            NodeTarget::Object(0, id) => self.check_writable().map(|()| id),
            _ => Err(Errno::EROFS),
        }
    }

    /// A directory in which a name can be made or removed.
    pub(super) fn changeable_name(&self, node: u64, name: &[u8]) -> FsResult<ObjectId> {
        let dir = self.changeable(node)?;
        if dir == self.root() && name == CTL_NAME && self.has_ctl() {
            return Err(Errno::EEXIST);
        }
        Ok(dir)
    }

    /// Whether calls may be waiting for devices that are gone.
    pub(super) fn is_suspended(&self) -> bool {
        self.dataset.is_suspended()
    }

    pub(super) fn root(&self) -> ObjectId {
        self.fs.root()
    }

    pub(super) fn node(&self, id: u64) -> FsResult<NodeTarget> {
        NodeTarget::from_id(id, self.root()).ok_or(Errno::ESTALE)
    }

    pub(super) fn space(&self, space: u16) -> FsResult<Arc<FileSystem>> {
        if space == 0 {
            return Ok(Arc::clone(&self.fs));
        }
        let spaces = self.spaces.read();
        let known = spaces.list.get(usize::from(space)).and_then(Option::as_ref);
        known.map(|s| Arc::clone(&s.0)).ok_or(Errno::ESTALE)
    }

    /// An object and the file system it is in.
    pub(super) fn object(
        &self,
        id: u64,
        otherwise: Errno,
    ) -> FsResult<(Arc<FileSystem>, ObjectId)> {
        match self.node(id)? {
            NodeTarget::Object(space, object) => Ok((self.space(space)?, object)),
            NodeTarget::Control | NodeTarget::Snapdir | NodeTarget::Shares => Err(otherwise),
        }
    }

    /// The snapshots by name, with their creation; read when they changed.
    pub(super) fn snapshots(&self, mode: BlockingMode) -> FsResult<Snapshots> {
        let changes = {
            let known = self.snapshots.read();
            if let Some(list) = &known.0 {
                return Ok(Arc::clone(list));
            }
            known.1
        };
        if mode == BlockingMode::NonBlocking {
            return Err(Errno::WOULD_BLOCK);
        }
        let mut list = Vec::new();
        for snapshot in self.dataset.now()?.snapshots()? {
            let Some((_, name)) = snapshot.name().split_once('@') else { continue };
            let sec = number(&snapshot, "creation").unwrap_or(0);
            let time = Timestamp { sec: i64::try_from(sec).unwrap_or(0), nsec: 0 };
            list.push((name.as_bytes().to_vec(), time));
        }
        let list = Arc::new(list);
        let mut known = self.snapshots.write();
        // One that came or went meanwhile may be missing in the list, or still be there.
        if known.1 == changes {
            known.0 = Some(Arc::clone(&list));
        }
        Ok(list)
    }

    /// The file system of a snapshot, opened if it was not yet.
    fn snapshot(&self, name: &[u8], mode: BlockingMode) -> FsResult<u16> {
        if let Some(&space) = self.spaces.read().by_name.get(name) {
            return Ok(space);
        }
        if mode == BlockingMode::NonBlocking {
            return Err(Errno::WOULD_BLOCK);
        }
        let text = std::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        let snapshot = self.dataset.now()?.snapshot(text).map_err(absent)?.ok_or(Errno::ENOENT)?;
        let fs = snapshot.open_fs()?;
        fs.set_drop_behind(!self.direct_io);
        let mut spaces = self.spaces.write();
        if let Some(&space) = spaces.by_name.get(name) {
            return Ok(space);
        }
        let space = u16::try_from(spaces.list.len()).map_err(|_| Errno::ENOMEM)?;
        if spaces.list.len() >= SPACES_MAX {
            return Err(Errno::ENOMEM);
        }
        spaces.list.push(Some((fs, snapshot.object())));
        spaces.by_name.insert(name.to_vec(), space);
        Ok(space)
    }

    fn has_ctl(&self) -> bool {
        self.has_ctl.load(Relaxed)
    }

    /// An object's attributes as they show in this mount.
    pub(super) fn object_attr(&self, space: u16, fs: &FileSystem, a: &Attrs) -> Attr {
        let mut out = attr(a);
        if space != 0 && a.id == fs.root() {
            let set = self.set_of(space);
            out.ino = SNAPROOT_INO.saturating_sub(set);
        }
        out
    }

    /// The number of a file system's object set.
    fn set_of(&self, space: u16) -> u64 {
        let spaces = self.spaces.read();
        spaces.list.get(usize::from(space)).and_then(Option::as_ref).map_or(0, |s| s.1)
    }

    fn object_entry(
        &self,
        space: u16,
        fs: &FileSystem,
        id: ObjectId,
        io: Io,
    ) -> FsResult<LookupEntry> {
        let attrs = fs.attrs(id, io)?;
        if space == 0 {
            return self.own_entry(&attrs);
        }
        let node = NodeTarget::Object(space, id).id(self.root()).ok_or(Errno::EIO)?;
        Ok(entry(node, attrs.generation, self.object_attr(space, fs, &attrs)))
    }

    /// Attributes of `.zfs` or a directory in it.
    fn control_attr(&self, ino: u64, links: u32) -> Attr {
        let time = self
            .snapshots
            .read()
            .0
            .as_ref()
            .and_then(|l| l.last().map(|s| s.1))
            .unwrap_or_default();
        Attr {
            ino,
            size: u64::from(links),
            mode: S_IFDIR | 0o555,
            nlink: links,
            atime: time,
            mtime: time,
            ctime: time,
            blksize: 512,
            ..Attr::default()
        }
    }

    pub(super) fn control_entry(
        &self,
        node: NodeTarget,
        mode: BlockingMode,
    ) -> FsResult<LookupEntry> {
        let attr = match node {
            NodeTarget::Snapdir => {
                let count = u32::try_from(self.snapshots(mode)?.len()).unwrap_or(u32::MAX);
                self.control_attr(SNAPDIR_INO, count.saturating_add(2))
            }
            NodeTarget::Shares => self.control_attr(SHARES_INO, 2),
            _ => self.control_attr(CTL_INO, 4),
        };
        Ok(entry(node.id(self.root()).ok_or(Errno::EIO)?, 0, attr))
    }

    pub(super) fn find(
        &self,
        mode: BlockingMode,
        parent: u64,
        name: &[u8],
    ) -> FsResult<LookupEntry> {
        let root = self.root();
        match (self.node(parent)?, name) {
            (node @ (NodeTarget::Control | NodeTarget::Snapdir | NodeTarget::Shares), b".") => {
                self.control_entry(node, mode)
            }
            (NodeTarget::Control, b"..") => self.object_entry(0, &self.fs, root, io(mode)),
            (NodeTarget::Control, SNAPDIR_NAME) => self.control_entry(NodeTarget::Snapdir, mode),
            (NodeTarget::Control, SHARES_NAME) => self.control_entry(NodeTarget::Shares, mode),
            (NodeTarget::Snapdir | NodeTarget::Shares, b"..") => {
                self.control_entry(NodeTarget::Control, mode)
            }
            (NodeTarget::Control | NodeTarget::Shares, _) => Err(Errno::ENOENT),
            (NodeTarget::Snapdir, name) => {
                let space = self.snapshot(name, mode)?;
                let fs = self.space(space)?;
                self.object_entry(space, &fs, fs.root(), io(mode))
            }
            (NodeTarget::Object(0, id), CTL_NAME) if id == root && self.has_ctl() => {
                self.control_entry(NodeTarget::Control, mode)
            }
            (NodeTarget::Object(space, id), name) => {
                let fs = self.space(space)?;
                match name {
                    b"." => return self.object_entry(space, &fs, id, io(mode)),
                    b".." if space != 0 && id == fs.root() => {
                        return self.control_entry(NodeTarget::Snapdir, mode);
                    }
                    _ => {}
                }
                let found = fs.lookup(id, name, io(mode))?;
                self.object_entry(space, &fs, found.id, io(mode))
            }
        }
    }

    pub(super) fn list(
        &self,
        mode: BlockingMode,
        node: u64,
        offset: u64,
        sink: &mut DirSink,
        plus: bool,
    ) -> FsResult<()> {
        match self.node(node)? {
            NodeTarget::Object(space, id) => {
                let fs = self.space(space)?;
                let is_root = space == 0 && id == self.root();
                let ctl = is_root && self.visible.load(Relaxed) && self.has_ctl();
                Listing { mount: self, fs: &fs, space, mode, plus, ctl }.run(id, offset, sink)
            }
            NodeTarget::Control => {
                let names: [(u64, &[u8]); 4] = [
                    (CTL_INO, b"."),
                    (self.root().0, b".."),
                    (SNAPDIR_INO, SNAPDIR_NAME),
                    (SHARES_INO, SHARES_NAME),
                ];
                fixed(sink, offset, names.into_iter());
                Ok(())
            }
            NodeTarget::Shares => {
                let dots: [(u64, &[u8]); 2] = [(SHARES_INO, b"."), (CTL_INO, b"..")];
                fixed(sink, offset, dots.into_iter());
                Ok(())
            }
            NodeTarget::Snapdir => {
                let dots: [(u64, &[u8]); 2] = [(SNAPDIR_INO, b"."), (CTL_INO, b"..")];
                let list = self.snapshots(mode)?;
                let names = list.iter().map(|s| (SNAPDIR_INO, s.0.as_slice()));
                fixed(sink, offset, dots.into_iter().chain(names));
                Ok(())
            }
        }
    }
}

/// A list of directories that are no objects, offset being the place in it.
fn fixed<'a>(sink: &mut DirSink, offset: u64, names: impl Iterator<Item = (u64, &'a [u8])>) {
    let skip = usize::try_from(offset).unwrap_or(usize::MAX);
    for (next, (ino, name)) in (offset.saturating_add(1)..).zip(names.skip(skip)) {
        if !sink.add(ino, next, S_IFDIR, name) {
            return;
        }
    }
}

/// A snapshot that does not exist is no error of the pool's.
fn absent(e: base::Error) -> Errno {
    match e.kind() {
        ErrorKind::NotFound | ErrorKind::Invalid | ErrorKind::NameTooLong => Errno::ENOENT,
        _ => e.into(),
    }
}

/// One listing of a directory.
struct Listing<'a> {
    mount: &'a ZfsMount,
    fs: &'a FileSystem,
    space: u16,
    mode: BlockingMode,
    plus: bool,
    /// `.zfs` is listed.
    ctl: bool,
}

impl Listing<'_> {
    fn run(&self, id: ObjectId, offset: u64, sink: &mut DirSink) -> FsResult<()> {
        let mut cookie = offset;
        if self.ctl && cookie == COOKIE_CTL {
            if !self.add_ctl(sink) {
                return Ok(());
            }
            cookie = COOKIE_BEHIND_CTL;
        }
        loop {
            let page = self.fs.readdir(id, cookie, io(self.mode))?;
            for e in &page.entries {
                if !self.add(e, sink)? {
                    return Ok(());
                }
                if self.ctl && e.name == b".." && !self.add_ctl(sink) {
                    return Ok(());
                }
            }
            match page.next {
                // A cookie that does not move on would never end.
                Some(next) if next != cookie => cookie = next,
                _ => return Ok(()),
            }
        }
    }

    fn add_ctl(&self, sink: &mut DirSink) -> bool {
        sink.add(CTL_INO, COOKIE_BEHIND_CTL, S_IFDIR, CTL_NAME)
    }

    fn add(&self, e: &DirEntry, sink: &mut DirSink) -> FsResult<bool> {
        // The kernel would fail the whole listing for one impossible name.
        if e.name.is_empty() || e.name.contains(&b'/') || e.name.contains(&0) {
            return Ok(true);
        }
        let mode = u32::try_from(e.kind.nibble()).unwrap_or(0) << 12;
        let dot = e.name == b"." || e.name == b"..";
        if dot || !self.plus {
            return Ok(sink.add(e.id.0, e.next_cookie, mode, &e.name));
        }
        match self.mount.object_entry(self.space, self.fs, e.id, io(self.mode)) {
            Ok(entry) => Ok(sink.add_plus(&entry, e.next_cookie, &e.name)),
            Err(Errno::WOULD_BLOCK) => Err(Errno::WOULD_BLOCK),
            // The name is there even if what it names is damaged.
            Err(_) => Ok(sink.add(e.id.0, e.next_cookie, mode, &e.name)),
        }
    }
}
