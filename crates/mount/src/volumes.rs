//! Volumes as files: `POOL/path/of/volume` below one directory, served by one mount for all
//! pools. `losetup` takes them. A volume without `volmode=none` is shown, its snapshots with
//! `snapdev=visible`.
//!
//! # Theory
//! A file behaves like a block device as far as files can: it has a fixed size, `O_TRUNC` does
//! not change it, a write behind the end fails with `ENOSPC`. Files that are open for writing
//! bypass the page cache, so that a volume that is also an NBD export has one content. A file
//! keeps its node as long as its volume exists, whatever else is created or destroyed.
//!
//! Lock order: `VolumeTree` is a leaf lock; the engine is not called under it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use base::rt::{Mutex, RwLock};
use base::{Buf, Result};
use cenote::props::PropData;
use cenote::{Dataset, DatasetKind, Pool, Volume};
use fuse::{
    Attr, BlockingMode, Config, Data, DirSink, Errno, Filesystem, LookupEntry, Opened, ROOT_ID,
    ReadArgs, ReleaseArgs, Request, Session, SetAttr, Statfs, Timestamp, UnmountOptions, Whence,
    WriteArgs,
};
use rustix::process::{getegid, geteuid};

use super::zfs::FsResult;

/// Names expire after this time, because pools are imported and exported.
const TTL: Duration = Duration::from_secs(1);

const O_ACCMODE: u32 = 3;
const O_DSYNC: u32 = 0o10000;
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

enum VolumeNodeKind {
    Dir(BTreeMap<Vec<u8>, u64>),
    File(VolumeFile),
}

/// A volume or a snapshot of one.
#[derive(Clone)]
struct VolumeFile {
    volume: Arc<Volume>,
    /// The object id of its dataset.
    object: u64,
    /// Open descriptors, as far as the kernel reports them.
    opens: Arc<AtomicUsize>,
}

/// A file to be shown.
struct FoundVolume {
    name: String,
    volume: Arc<Volume>,
    object: u64,
    time: Timestamp,
}

struct VolumeNode {
    parent: u64,
    kind: VolumeNodeKind,
    time: Timestamp,
}

/// The directories and files, by node id. Ids are not reused.
struct VolumeTree {
    nodes: BTreeMap<u64, VolumeNode>,
    next: u64,
}

impl VolumeTree {
    fn new() -> VolumeTree {
        let root = VolumeNode {
            parent: ROOT_ID,
            kind: VolumeNodeKind::Dir(BTreeMap::new()),
            time: Timestamp::default(),
        };
        VolumeTree { nodes: BTreeMap::from([(ROOT_ID, root)]), next: ROOT_ID + 1 }
    }

    /// The child with that name; `make` creates a missing one.
    fn child(
        &mut self,
        parent: u64,
        name: &[u8],
        make: impl FnOnce() -> VolumeNode,
    ) -> Option<u64> {
        let next = self.next;
        let Some(VolumeNode { kind: VolumeNodeKind::Dir(children), .. }) =
            self.nodes.get_mut(&parent)
        else {
            return None;
        };
        let id = *children.entry(name.to_vec()).or_insert(next);
        if id == next {
            self.next += 1;
            self.nodes.insert(id, make());
        }
        Some(id)
    }

    /// Adds a file, unless it is there; a volume below another volume is not shown.
    fn add(&mut self, found: FoundVolume) {
        let FoundVolume { name, volume, object, time } = found;
        let (dirs, last) = name.rsplit_once('/').unwrap_or(("", &name));
        let mut at = ROOT_ID;
        for part in dirs.split('/').filter(|p| !p.is_empty()) {
            let make =
                || VolumeNode { parent: at, kind: VolumeNodeKind::Dir(BTreeMap::new()), time };
            match self.child(at, part.as_bytes(), make) {
                Some(id) => at = id,
                None => return,
            }
        }
        let file = VolumeFile { volume, object, opens: Arc::default() };
        let same = |node: &VolumeNode| match &node.kind {
            VolumeNodeKind::File(old) => old.object == object,
            VolumeNodeKind::Dir(_) => false,
        };
        let old = self.children(at).and_then(|c| c.get(last.as_bytes()).copied());
        if old.is_some_and(|id| !self.nodes.get(&id).is_some_and(same)) {
            self.remove_child(at, last.as_bytes());
        }
        let kind = VolumeNodeKind::File(file);
        self.child(at, last.as_bytes(), || VolumeNode { parent: at, kind, time });
    }

    fn children(&self, id: u64) -> Option<&BTreeMap<Vec<u8>, u64>> {
        match &self.nodes.get(&id)?.kind {
            VolumeNodeKind::Dir(children) => Some(children),
            VolumeNodeKind::File(_) => None,
        }
    }

    /// Removes a name, and everything below it.
    fn remove_child(&mut self, parent: u64, name: &[u8]) {
        let Some(VolumeNode { kind: VolumeNodeKind::Dir(children), .. }) =
            self.nodes.get_mut(&parent)
        else {
            return;
        };
        let mut todo: Vec<u64> = children.remove(name).into_iter().collect();
        while let Some(id) = todo.pop() {
            if let Some(VolumeNode { kind: VolumeNodeKind::Dir(children), .. }) =
                self.nodes.remove(&id)
            {
                todo.extend(children.values());
            }
        }
    }

    /// Removes everything below a name in the root.
    fn remove(&mut self, name: &str) {
        self.remove_child(ROOT_ID, name.as_bytes());
    }

    /// Removes the files of a pool that are not in the list, and directories without files.
    fn retain(&mut self, pool: &str, names: &BTreeSet<String>) {
        let Some(root) = self.children(ROOT_ID).and_then(|c| c.get(pool.as_bytes()).copied())
        else {
            return;
        };
        // Parents come before what is in them.
        let mut all = vec![(root, ROOT_ID, pool.to_owned())];
        let mut next = 0;
        while let Some((id, _, name)) = all.get(next).cloned() {
            let below = self.children(id).into_iter().flatten();
            all.extend(
                below.map(|(n, child)| {
                    (*child, id, format!("{name}/{}", String::from_utf8_lossy(n)))
                }),
            );
            next += 1;
        }
        for (id, parent, name) in all.into_iter().rev() {
            let goes = match self.children(id) {
                Some(children) => children.is_empty(),
                None => !names.contains(&name),
            };
            if goes {
                let last = name.rsplit('/').next().unwrap_or(&name);
                self.remove_child(parent, last.as_bytes());
            }
        }
    }

    /// The node with that path.
    fn find(&self, path: &str) -> Option<u64> {
        let below = |at: u64, part: &str| self.children(at)?.get(part.as_bytes()).copied();
        path.split('/').try_fold(ROOT_ID, below)
    }

    /// Whether the file of that path, or one below it, is open.
    fn is_open(&self, path: &str) -> bool {
        let mut todo: Vec<u64> = self.find(path).into_iter().collect();
        while let Some(id) = todo.pop() {
            match self.nodes.get(&id).map(|n| &n.kind) {
                Some(VolumeNodeKind::Dir(children)) => todo.extend(children.values()),
                Some(VolumeNodeKind::File(file)) if file.opens.load(SeqCst) > 0 => return true,
                _ => {}
            }
        }
        false
    }

    fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }
}

struct VolumeFs(Arc<RwLock<VolumeTree>>);

fn attr(id: u64, node: &VolumeNode) -> Attr {
    let common = Attr {
        ino: id,
        atime: node.time,
        mtime: node.time,
        ctime: node.time,
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        ..Attr::default()
    };
    match &node.kind {
        VolumeNodeKind::Dir(children) => {
            Attr { mode: 0o040_555, nlink: 2, size: children.len() as u64, blksize: 4096, ..common }
        }
        VolumeNodeKind::File(VolumeFile { volume, .. }) => Attr {
            mode: if volume.is_writable() { 0o100_640 } else { 0o100_440 },
            nlink: 1,
            size: volume.size(),
            blocks: volume.size() / 512,
            blksize: u32::try_from(volume.block_size()).unwrap_or(4096),
            ..common
        },
    }
}

impl VolumeFs {
    fn file(&self, id: u64) -> FsResult<VolumeFile> {
        match self.0.read().nodes.get(&id).map(|p| &p.kind) {
            Some(VolumeNodeKind::File(file)) => Ok(file.clone()),
            Some(VolumeNodeKind::Dir(_)) => Err(Errno::EISDIR),
            None => Err(Errno::ESTALE),
        }
    }

    fn volume(&self, id: u64) -> FsResult<Arc<Volume>> {
        self.file(id).map(|file| file.volume)
    }
}

impl Filesystem for VolumeFs {
    fn lookup(
        &self,
        _: &Request,
        _: BlockingMode,
        parent: u64,
        name: &[u8],
    ) -> FsResult<LookupEntry> {
        let tree = self.0.read();
        let node = tree.nodes.get(&parent).ok_or(Errno::ESTALE)?;
        let id = match (name, &node.kind) {
            (b".", _) => Some(parent),
            (b"..", _) => Some(node.parent),
            (_, VolumeNodeKind::Dir(children)) => children.get(name).copied(),
            (_, VolumeNodeKind::File(_)) => return Err(Errno::ENOTDIR),
        };
        let Some((id, node)) = id.and_then(|id| Some((id, tree.nodes.get(&id)?))) else {
            return Ok(LookupEntry::negative(TTL));
        };
        let attr = attr(id, node);
        Ok(LookupEntry { node: id, generation: 0, attr, entry_ttl: TTL, attr_ttl: TTL })
    }

    fn getattr(
        &self,
        _: &Request,
        _: BlockingMode,
        node: u64,
        _: Option<u64>,
    ) -> FsResult<(Attr, Duration)> {
        let tree = self.0.read();
        Ok((attr(node, tree.nodes.get(&node).ok_or(Errno::ESTALE)?), TTL))
    }

    fn setattr(&self, _: &Request, node: u64, set: &SetAttr) -> FsResult<(Attr, Duration)> {
        let volume = self.volume(node)?;
        let size = set.size.is_some_and(|size| size != volume.size());
        // Times are not kept, as little as those of a block device's content.
        if size || set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            return Err(Errno::EPERM);
        }
        let tree = self.0.read();
        Ok((attr(node, tree.nodes.get(&node).ok_or(Errno::ESTALE)?), TTL))
    }

    fn open(&self, _: &Request, _: BlockingMode, node: u64, flags: u32) -> FsResult<Opened> {
        let file = self.file(node)?;
        let writes = flags & O_ACCMODE != 0;
        if writes && !file.volume.is_writable() {
            return Err(Errno::EROFS);
        }
        file.opens.fetch_add(1, SeqCst);
        let opened = Opened::new(u64::from(writes));
        Ok(Opened { direct_io: writes, parallel_direct_writes: writes, ..opened })
    }

    fn release(&self, _: &Request, args: &ReleaseArgs) -> FsResult<()> {
        if let Ok(file) = self.file(args.node) {
            file.opens.fetch_sub(1, SeqCst);
        }
        Ok(())
    }

    fn write(&self, req: &Request, args: &WriteArgs, data: Buf) -> FsResult<u32> {
        let volume = self.volume(args.node)?;
        volume.write(args.offset, &data)?;
        if args.flags & O_DSYNC != 0 {
            volume.flush_for(req.pid)?;
        }
        Ok(u32::try_from(data.len()).unwrap_or(u32::MAX))
    }

    fn fsync(&self, req: &Request, node: u64, _: u64, _: bool) -> FsResult<()> {
        Ok(self.volume(node)?.flush_for(req.pid)?)
    }

    fn fallocate(
        &self,
        _: &Request,
        node: u64,
        _: u64,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> FsResult<()> {
        let volume = self.volume(node)?;
        // The size stays in any case: a range may not end behind it.
        match mode & !KEEP_SIZE {
            PUNCH_HOLE | ZERO_RANGE => Ok(volume.zero(offset, length)?),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn read(&self, _: &Request, mode: BlockingMode, args: &ReadArgs) -> FsResult<Data> {
        let len = usize::try_from(args.size).unwrap_or(usize::MAX);
        Ok(self.volume(args.node)?.read(args.offset, len, super::io(mode))?.into())
    }

    /// Without this call the kernel keeps listings, and does not see what comes and goes.
    fn opendir(&self, _: &Request, _: BlockingMode, _: u64, _: u32) -> FsResult<Opened> {
        Ok(Opened::default())
    }

    fn readdir(
        &self,
        _: &Request,
        _: BlockingMode,
        node: u64,
        _: u64,
        offset: u64,
        sink: &mut DirSink,
    ) -> FsResult<()> {
        let tree = self.0.read();
        let entry = tree.nodes.get(&node).ok_or(Errno::ESTALE)?;
        let VolumeNodeKind::Dir(children) = &entry.kind else { return Err(Errno::ENOTDIR) };
        let dots: [(&[u8], u64); 2] = [(b".", node), (b"..", entry.parent)];
        let all = dots.into_iter().chain(children.iter().map(|(n, id)| (n.as_slice(), *id)));
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        for (next, (name, id)) in (offset.saturating_add(1)..).zip(all.skip(skip)) {
            let mode = tree.nodes.get(&id).map_or(0, |p| attr(id, p).mode);
            if !sink.add(id, next, mode, name) {
                break;
            }
        }
        Ok(())
    }

    fn statfs(&self, _: &Request, _: BlockingMode, _: u64) -> FsResult<Statfs> {
        Ok(Statfs { bsize: 4096, frsize: 512, namelen: 255, ..Statfs::default() })
    }

    fn listxattr(&self, _: &Request, _: BlockingMode, _: u64, _: u32) -> FsResult<Data> {
        Ok(Data::empty())
    }

    fn lseek(
        &self,
        _: &Request,
        mode: BlockingMode,
        node: u64,
        _: u64,
        offset: u64,
        whence: Whence,
    ) -> FsResult<u64> {
        let volume = self.volume(node)?;
        let mut at = offset;
        while let Some(extent) = volume.extent(at, super::io(mode))? {
            if extent.data == (whence == Whence::Data) {
                return Ok(at.max(extent.offset));
            }
            at = extent.offset.saturating_add(extent.len.max(1));
        }
        match whence {
            Whence::Hole if offset < volume.size() => Ok(volume.size()),
            _ => Err(Errno::ENXIO),
        }
    }
}

/// A property's number; 0 where it is not set.
fn word(dataset: &Dataset, prop: &str) -> Result<u64> {
    Ok(match dataset.prop(prop)?.map(|v| v.value) {
        Some(PropData::Num(n)) => n,
        _ => 0,
    })
}

/// Whether a volume is accessible, by `volmode`.
///
/// # Errors
/// Those of reading its properties.
pub fn is_shown(volume: &Dataset) -> Result<bool> {
    const NONE: u64 = 3;
    Ok(word(volume, "volmode")? != NONE)
}

/// Whether the snapshots of a volume are, by `snapdev`.
///
/// # Errors
/// Those of reading its properties.
pub fn shows_snapshots(volume: &Dataset) -> Result<bool> {
    Ok(word(volume, "snapdev")? != 0)
}

fn found_volume(dataset: &Dataset) -> Result<FoundVolume> {
    let sec = i64::try_from(word(dataset, "creation")?).unwrap_or(0);
    let (name, object) = (dataset.name().to_owned(), dataset.object());
    let time = Timestamp { sec, nsec: 0 };
    Ok(FoundVolume { name, volume: dataset.open_volume()?, object, time })
}

/// The volumes of all imported pools, and their mount once there is one.
pub struct Volumes {
    dir: PathBuf,
    tree: Arc<RwLock<VolumeTree>>,
    session: Mutex<Option<Session>>,
}

impl Volumes {
    /// No volumes yet; files will appear in `dir`.
    pub fn new(dir: PathBuf) -> Volumes {
        Volumes { dir, tree: Arc::new(RwLock::new(VolumeTree::new())), session: Mutex::new(None) }
    }

    /// Where files are, if there are any.
    pub fn path(&self) -> Option<PathBuf> {
        (!self.tree.read().is_empty()).then(|| self.dir.clone())
    }

    /// Shows a pool's volumes as they are now. Files that stay keep their nodes.
    ///
    /// # Errors
    /// The pool cannot be read, or the mount cannot be made.
    pub fn show(&self, pool: &Pool) -> Result<()> {
        let mut found = Vec::new();
        pool.for_each_dataset(&mut |dataset| {
            if dataset.kind() == DatasetKind::Volume && !dataset.is_locked() && is_shown(&dataset)?
            {
                let snapshots =
                    if shows_snapshots(&dataset)? { dataset.snapshots()? } else { Vec::new() };
                for dataset in std::iter::once(&dataset).chain(&snapshots) {
                    found.push(found_volume(dataset)?);
                }
            }
            Ok(())
        })?;
        let names = found.iter().map(|f| f.name.clone()).collect();
        let mut tree = self.tree.write();
        tree.retain(pool.name(), &names);
        found.into_iter().for_each(|f| tree.add(f));
        let empty = tree.is_empty();
        drop(tree);
        if empty {
            self.end();
            return Ok(());
        }
        self.mount()
    }

    /// Whether there is a file for a dataset of this name.
    pub fn has(&self, name: &str) -> bool {
        let tree = self.tree.read();
        tree.find(name).is_some_and(|id| tree.children(id).is_none())
    }

    /// Whether a file of a pool, or of a volume or snapshot with its full name, is open.
    pub fn are_open(&self, of: &str) -> bool {
        self.tree.read().is_open(of)
    }

    fn mount(&self) -> Result<()> {
        let mut session = self.session.lock();
        if session.as_ref().is_some_and(Session::is_running) {
            return Ok(());
        }
        std::fs::create_dir_all(&self.dir)
            .map_err(|e| base::Error::io("cannot make the directory of volumes", e))?;
        let shown = super::shown_options("cenote-volumes");
        let options = fuse::MountOptions {
            read_only: false,
            nosuid: true,
            nodev: true,
            noexec: true,
            ..shown
        };
        let fs = VolumeFs(Arc::clone(&self.tree));
        *session = Some(Session::mount(Arc::new(fs), &self.dir, &options, &Config::default())?);
        Ok(())
    }

    /// Removes a pool's volumes; the last one ends the mount.
    pub fn remove(&self, pool: &str) {
        let mut tree = self.tree.write();
        tree.remove(pool);
        let empty = tree.is_empty();
        drop(tree);
        if empty {
            self.end();
        }
    }

    /// Ends the mount.
    pub fn end(&self) {
        if let Some(session) = self.session.lock().take() {
            // A process may use the directory: the mount ends when the last user does.
            if session.unmount(UnmountOptions { lazy: true, force: false }).is_ok() {
                let _gone = std::fs::remove_dir(&self.dir);
            }
        }
    }
}
