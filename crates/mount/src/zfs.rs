//! A dataset as a FUSE file system: its nodes, and what the kernel may cache.
//!
//! # Theory
//! A mounted file system changes only through its mount, because the daemon is the pool's only
//! writer and a dataset is mounted once. So the kernel may cache names and attributes until it
//! changes them itself, and keep pages of files beyond their close. It is notified of changes
//! by other means (snapshots, properties, rollback). Two things it may not cache for long. The
//! space that an object takes is known only when its txg is on disk, so attributes of dirty
//! objects expire. If different spellings of a name are equal (case, normalisation), the kernel
//! would not notice that a cached name was removed under another spelling; in such file systems
//! names expire at once.
//!
//! Each reading operation is tried from memory first, and only then waits for devices (decision
//! 7); changing operations ([`super::write`]) may wait at once.
//!
//! A node is an object ([`super::node`]), so the kernel's lookups need no count here.
//! Generations distinguish successive uses of one object id: the kernel drops an inode whose
//! generation has changed. Open files are held in the file system, so that a file without a
//! name lives as long as it is open.
//!
//! `.zfs/snapshot/NAME` is the snapshot's own file system, opened when its name is first looked
//! up and kept as long as the mount and the snapshot exist. It is found by name even if
//! `snapdir=hidden` keeps it out of listings. Beneath `.zfs` only the set of snapshots can be
//! changed ([`super::snapdir`]).
//!
//! # The kernel's write-back cache
//! It is off. With it, the kernel would be responsible for sizes and times while pages are
//! dirty: `ENOSPC` and `EDQUOT` come only after the writer has ended, a snapshot lacks data
//! that was written before it, and times of change are the kernel's. Writes of mapped pages are
//! late all the same, as in every file system; `fsync` and `msync` send them first.
//!
//! Files that are open for writing alone bypass the page cache, if the kernel drops cached
//! pages after each such write (protocol 7.41). They cannot be mapped, a written page need not
//! be copied twice, and the kernel does not request `security.capability` before the first
//! write of each file; every such write removes it here. Files that are open for synchronous
//! writes bypass the cache, too, for reads as well: their data and the wait for it are then one
//! request.
//!
//! # Departures from OpenZFS
//! Snapshots are part of the dataset's mount instead of mounts of their own: they share its
//! device number. `syncfs` and `sync` do not reach a FUSE server that is not virtiofs: the data
//! becomes durable with the next txg.
//!
//! Lock order: `ZfsMount::spaces` and `ZfsMount::dataset` are leaves; the engine is not called
//! under them.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64};
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

use super::node::{CTL_INO, NodeTarget, SHARES_INO, SNAPDIR_INO, SNAPROOT_INO, SPACES_MAX};
use super::pages::Pages;
use super::removed_dirs::RemovedDirs;
use super::{OUTAGE, io};
use crate::MountOptions;

const CTL_NAME: &[u8] = b".zfs";
const SNAPDIR_NAME: &[u8] = b"snapshot";
const SHARES_NAME: &[u8] = b"shares";
/// The cookie after `..` in a root directory; the file system leaves it free for `.zfs`.
const COOKIE_CTL: u64 = 2;
const COOKIE_BEHIND_CTL: u64 = 3;
const S_IFDIR: u32 = 0o040_000;
/// Unit of space in `statfs`.
const FRAGMENT: u64 = 512;

pub(super) type FsResult<T> = std::result::Result<T, Errno>;

/// The file systems of one mount: index 0 is the dataset, others are snapshots.
struct Spaces {
    /// With the object set's id; `None` for a snapshot that was destroyed.
    list: Vec<Option<(Arc<FileSystem>, u64)>>,
    by_name: HashMap<Vec<u8>, u16>,
}

/// The snapshots by name, with their creation times.
type Snapshots = Arc<Vec<(Vec<u8>, Timestamp)>>;

/// How access times are updated.
#[derive(Clone, Copy)]
struct Access {
    /// The rule of the mount options; `None`: as the properties say.
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
    /// Under its present name.
    dataset: RwLock<Dataset>,
    /// The handle for requests.
    fs: Arc<FileSystem>,
    spaces: RwLock<Spaces>,
    /// Cached until they change; with the number of changes.
    snapshots: RwLock<(Option<Snapshots>, u64)>,
    /// Of a file system that is read-only for good.
    pub(super) totals: Statfs,
    /// The file system can be changed if the options permit it.
    pub(super) writable: bool,
    /// Names are equal only if their bytes are.
    pub(super) exact: bool,
    /// `readonly`, by the property or the mount's options.
    read_only: AtomicBool,
    /// How access times are updated.
    access: RwLock<Access>,
    visible: AtomicBool,
    has_ctl: AtomicBool,
    notifier: OnceLock<Notifier>,
    /// Second of the latest `zfs rewrite`, which leaves times as they are.
    rewritten: AtomicI64,
    /// All files bypass the kernel's page cache.
    direct_io: bool,
    /// POSIX ACLs were negotiated with the kernel.
    posix_acl: bool,
    /// Handles for writing alone bypass the page cache.
    pub(super) direct_writes: AtomicBool,
    /// The kernel checks that a caller may change flags.
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

/// `statfs` of a file system that changes.
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

/// How long the kernel may cache attributes of a dirty object.
const DIRTY_TTL: Duration = Duration::from_secs(2);
/// Of `open(2)`.
const O_DIRECT: u32 = rustix::fs::OFlags::DIRECT.bits();

/// Seconds after a change in which its txg may not be on disk yet.
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
        // The kernel's page cache keeps what was read, unless files bypass it.
        fs.set_drop_behind(!options.direct_io);
        let waiting = fs.with_outage(OUTAGE);
        Ok(ZfsMount {
            dataset: RwLock::new(dataset.clone()),
            totals: totals(dataset, &fs)?,
            spaces: RwLock::new(Spaces {
                list: vec![Some((Arc::clone(&waiting), dataset.object()))],
                by_name: HashMap::new(),
            }),
            fs: waiting,
            writable,
            exact,
            read_only: AtomicBool::new(options.read_only),
            access: RwLock::new(Access::of(options)),
            snapshots: RwLock::new((None, 0)),
            visible: AtomicBool::new(options.snapdir_visible),
            has_ctl: AtomicBool::new(!options.snapdir_disabled),
            notifier: OnceLock::new(),
            rewritten: AtomicI64::new(i64::MIN),
            direct_io: options.direct_io,
            posix_acl: options.posix_acl,
            direct_writes: AtomicBool::new(false),
            checks_flags: AtomicBool::new(false),
            gone: RemovedDirs::default(),
            pages: Arc::default(),
        })
    }

    /// Sets the notifier, through which the kernel is notified.
    pub(super) fn attach(&self, notifier: Notifier) {
        let _attached_once = self.notifier.set(notifier);
    }

    /// Applies changed options that are not flags of the kernel.
    pub(super) fn follow(&self, options: &MountOptions) {
        self.read_only.store(options.read_only, Relaxed);
        *self.access.write() = Access::of(options);
        self.visible.store(options.snapdir_visible, Relaxed);
        self.has_ctl.store(!options.snapdir_disabled, Relaxed);
        self.notify_kernel(|n| n.inval_entry(fuse::ROOT_ID, CTL_NAME));
        self.notify_kernel(|n| n.inval_inode(fuse::ROOT_ID, 0, 0));
    }

    /// Its dataset has another name.
    pub(super) fn renamed(&self, dataset: &Dataset) {
        *self.dataset.write() = dataset.clone();
        self.forget_snapshots(&[]);
    }

    pub(super) fn dataset(&self) -> Dataset {
        self.dataset.read().clone()
    }

    /// A snapshot has another name; its file system stays open.
    pub(super) fn move_snapshot(&self, old: &[u8], new: &[u8]) {
        self.forget_snapshots(&[]);
        let mut spaces = self.spaces.write();
        if let Some(space) = spaces.by_name.remove(old) {
            spaces.by_name.insert(new.to_vec(), space);
        }
    }

    /// Forgets the list of snapshots, and the file systems of those with these names.
    pub(super) fn forget_snapshots(&self, names: &[&[u8]]) {
        {
            let mut known = self.snapshots.write();
            *known = (None, known.1 + 1);
        }
        let mut spaces = self.spaces.write();
        for name in names {
            if let Some(space) = spaces.by_name.remove(*name)
                && let Some(slot) = spaces.list.get_mut(usize::from(space))
            {
                *slot = None;
            }
        }
    }

    /// Forgets the snapshots with these names, here and in the kernel. Files of a destroyed
    /// snapshot are stale.
    pub(super) fn snapshots_changed(&self, names: &[&str]) {
        self.forget_snapshots(&names.iter().map(|n| n.as_bytes()).collect::<Vec<_>>());
        let Some(snapdir) = NodeTarget::Snapdir.id(self.root()) else { return };
        for name in names {
            self.notify_kernel(|n| n.inval_entry(snapdir, name.as_bytes()));
        }
        self.notify_kernel(|n| n.inval_inode(snapdir, 0, 0));
    }

    /// Sends a notification. An error is ignored: the kernel has nothing cached to invalidate.
    fn notify_kernel(&self, what: impl FnOnce(&Notifier) -> fuse::Result<()>) {
        if let Some(notifier) = self.notifier.get() {
            let _unmounted = what(notifier);
        }
    }

    /// Notifies the kernel that attributes of a node changed by other means.
    pub(super) fn attrs_changed(&self, node: u64) {
        self.notify_kernel(|n| n.inval_inode(node, -1, 0));
    }

    /// Whether the kernel checks that a caller may change a file's flags.
    pub(super) fn kernel_checks_flags(&self) -> bool {
        self.checks_flags.load(Relaxed)
    }

    /// Records that a file will be read, open with these flags.
    pub(super) fn reads(&self, node: u64, flags: u32) {
        if self.writable && !self.direct_io && flags & O_DIRECT == 0 {
            self.pages.mark_read(node);
        }
    }

    /// A range of a file was written, and the writer has no answer yet. Other handles that
    /// bypass the cache are for synchronous writes: the kernel drops their pages itself.
    pub(super) fn wrote(&self, args: &WriteArgs, len: usize) {
        if args.flags & O_DIRECT != 0 && !self.direct_io {
            self.pages.invalidate_written(self.notifier.get(), args.node, args.offset, len);
        }
    }

    /// Records a read of a file or directory.
    pub(super) fn accessed(&self, node: u64, is_dir: bool) {
        let Ok(NodeTarget::Object(0, id)) = self.node(node) else { return };
        let access = *self.access.read();
        if self.check_writable().is_ok() && !(is_dir && access.not_of_dirs) {
            self.fs.accessed_as(id, access.rule);
        }
    }

    /// Whether every access updates the access time, however soon after another.
    pub(super) fn counts_each_access(&self) -> bool {
        let rule = self.access.read().rule;
        self.writable && self.fs.counts_each_access(rule)
    }

    /// Records a listing of a directory; a listing in several parts counts once.
    pub(super) fn listed(&self, node: u64, offset: u64) {
        if offset == 0 {
            self.accessed(node, true);
        }
    }

    /// The file system itself.
    pub(super) fn fs(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    /// Whether POSIX ACLs are on.
    pub(super) fn has_acls(&self) -> bool {
        self.posix_acl
    }

    /// Whether all files bypass the kernel's page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.direct_io
    }

    /// Fails if the file system cannot be changed now.
    pub(super) fn check_writable(&self) -> FsResult<()> {
        if self.writable && !self.read_only.load(Relaxed) { Ok(()) } else { Err(Errno::EROFS) }
    }

    /// How long the kernel may cache attributes. The space taken is that of synced txgs. A
    /// write of another user removes a file's set-id bits, and after direct writes the kernel
    /// does not see that.
    pub(super) fn attr_ttl(&self, attr: &Attr) -> Duration {
        let set_id = attr.mode & S_IFMT == S_IFREG && attr.mode & SET_ID != 0;
        match self.writable {
            true if set_id => Duration::ZERO,
            true if self.is_unsettled(attr) => DIRTY_TTL,
            _ => FOREVER,
        }
    }

    /// Whether the space taken may change when a txg is synced, or has changed since these
    /// attributes were read.
    fn is_unsettled(&self, attr: &Attr) -> bool {
        let now = base::rt::wall_clock().as_secs().cast_signed();
        let id = ObjectId(attr.ino);
        let fresh = |second: i64| (now - FRESH..=now).contains(&second);
        (fresh(attr.ctime.sec) || fresh(self.rewritten.load(Relaxed)))
            && (self.fs.is_dirty(id)
                || self.fs.attrs(id, Io::MEMORY).map_or(true, |a| a.blocks != attr.blocks))
    }

    /// Records that the blocks of a file moved though its times did not change: the kernel may
    /// have cached the space that it takes for good.
    pub(super) fn forget_blocks(&self, node: u64) {
        self.rewritten.store(base::rt::wall_clock().as_secs().cast_signed(), Relaxed);
        if let Some(notifier) = self.notifier.get() {
            // A negative offset keeps the file's pages.
            let _unknown = notifier.inval_inode(node, -1, 0);
        }
    }

    /// The entry of an object of the dataset with these attributes.
    pub(super) fn own_entry(&self, attrs: &Attrs) -> FsResult<LookupEntry> {
        let node = NodeTarget::Object(0, attrs.id).id(self.root()).ok_or(Errno::EIO)?;
        let attr = attr(attrs);
        let entry_ttl = if self.exact { FOREVER } else { Duration::ZERO };
        let attr_ttl = self.attr_ttl(&attr);
        Ok(LookupEntry { node, generation: attrs.generation, attr, entry_ttl, attr_ttl })
    }

    /// The object of a node, if it can be changed.
    pub(super) fn changeable(&self, node: u64) -> FsResult<ObjectId> {
        match self.node(node)? {
            NodeTarget::Object(0, id) => self.check_writable().map(|()| id),
            _ => Err(Errno::EROFS),
        }
    }

    /// The directory of a node, if a name can be made or removed in it.
    pub(super) fn changeable_name(&self, node: u64, name: &[u8]) -> FsResult<ObjectId> {
        let dir = self.changeable(node)?;
        if dir == self.root() && name == CTL_NAME && self.has_ctl() {
            return Err(Errno::EEXIST);
        }
        Ok(dir)
    }

    /// Whether calls may be waiting for devices that do not answer.
    pub(super) fn is_suspended(&self) -> bool {
        self.dataset.read().is_suspended()
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

    /// The snapshots by name, with their creation times; read again after a change.
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
        for snapshot in self.dataset().now_with(OUTAGE)?.snapshots()? {
            let Some((_, name)) = snapshot.name().split_once('@') else { continue };
            let sec = number(&snapshot, "creation").unwrap_or(0);
            let time = Timestamp { sec: i64::try_from(sec).unwrap_or(0), nsec: 0 };
            list.push((name.as_bytes().to_vec(), time));
        }
        let list = Arc::new(list);
        let mut known = self.snapshots.write();
        // The list may be outdated if a snapshot was made or destroyed meanwhile; then it is
        // not cached.
        if known.1 == changes {
            known.0 = Some(Arc::clone(&list));
        }
        Ok(list)
    }

    /// The file system of a snapshot; opens it if necessary.
    fn snapshot(&self, name: &[u8], mode: BlockingMode) -> FsResult<u16> {
        if let Some(&space) = self.spaces.read().by_name.get(name) {
            return Ok(space);
        }
        if mode == BlockingMode::NonBlocking {
            return Err(Errno::WOULD_BLOCK);
        }
        let text = std::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
        let snapshot = self
            .dataset()
            .now_with(OUTAGE)?
            .snapshot(text)
            .map_err(absent)?
            .ok_or(Errno::ENOENT)?;
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

    /// The id of a file system's object set.
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

/// Lists directories that are not objects; the offset is the position in the list.
fn fixed<'a>(sink: &mut DirSink, offset: u64, names: impl Iterator<Item = (u64, &'a [u8])>) {
    let skip = usize::try_from(offset).unwrap_or(usize::MAX);
    for (next, (ino, name)) in (offset.saturating_add(1)..).zip(names.skip(skip)) {
        if !sink.add(ino, next, S_IFDIR, name) {
            return;
        }
    }
}

/// The errno for an error about a snapshot: a missing one is no error of the pool.
fn absent(e: base::Error) -> Errno {
    match e.kind() {
        ErrorKind::NotFound | ErrorKind::Invalid | ErrorKind::NameTooLong => Errno::ENOENT,
        _ => e.into(),
    }
}

/// State of one directory listing.
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
                // A cookie that does not advance would loop for ever.
                Some(next) if next != cookie => cookie = next,
                _ => return Ok(()),
            }
        }
    }

    fn add_ctl(&self, sink: &mut DirSink) -> bool {
        sink.add(CTL_INO, COOKIE_BEHIND_CTL, S_IFDIR, CTL_NAME)
    }

    fn add(&self, e: &DirEntry, sink: &mut DirSink) -> FsResult<bool> {
        // The kernel fails the whole listing for one invalid name.
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
            // The name is listed even if its object is damaged.
            Err(_) => Ok(sink.add(e.id.0, e.next_cookie, mode, &e.name)),
        }
    }
}
