//! Volumes as read-only files: `POOL/path/of/volume` below one directory, served by one mount
//! for all pools.
//!
//! Lock order: `VolumeTree` is a leaf lock; the engine is not called under it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::Result;
use base::rt::{Mutex, RwLock};
use cenote::props::PropData;
use cenote::{DatasetKind, Pool, Volume};
use fuse::{
    Attr, BlockingMode, Config, Data, DirSink, Errno, Filesystem, LookupEntry, ROOT_ID, ReadArgs,
    Request, Session, Statfs, Timestamp, UnmountOptions, Whence,
};
use rustix::process::{getegid, geteuid};

use super::zfs::FsResult;

/// Names expire after this time, because pools are imported and exported.
const TTL: Duration = Duration::from_secs(1);

enum VolumeNodeKind {
    Dir(BTreeMap<Vec<u8>, u64>),
    File(Arc<Volume>),
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

    /// Adds a file; a volume below another volume is not shown.
    fn add(&mut self, name: &str, volume: Arc<Volume>, time: Timestamp) {
        let (dirs, last) = name.rsplit_once('/').unwrap_or(("", name));
        let mut at = ROOT_ID;
        for part in dirs.split('/').filter(|p| !p.is_empty()) {
            let make =
                || VolumeNode { parent: at, kind: VolumeNodeKind::Dir(BTreeMap::new()), time };
            match self.child(at, part.as_bytes(), make) {
                Some(id) => at = id,
                None => return,
            }
        }
        self.child(at, last.as_bytes(), || VolumeNode {
            parent: at,
            kind: VolumeNodeKind::File(volume),
            time,
        });
    }

    /// Removes everything below a name in the root.
    fn remove(&mut self, name: &str) {
        let Some(VolumeNode { kind: VolumeNodeKind::Dir(children), .. }) =
            self.nodes.get_mut(&ROOT_ID)
        else {
            return;
        };
        let mut todo: Vec<u64> = children.remove(name.as_bytes()).into_iter().collect();
        while let Some(id) = todo.pop() {
            if let Some(VolumeNode { kind: VolumeNodeKind::Dir(children), .. }) =
                self.nodes.remove(&id)
            {
                todo.extend(children.values());
            }
        }
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
        VolumeNodeKind::File(volume) => Attr {
            mode: 0o100_440,
            nlink: 1,
            size: volume.size(),
            blocks: volume.size() / 512,
            blksize: u32::try_from(volume.block_size()).unwrap_or(4096),
            ..common
        },
    }
}

impl VolumeFs {
    fn volume(&self, id: u64) -> FsResult<Arc<Volume>> {
        match self.0.read().nodes.get(&id).map(|p| &p.kind) {
            Some(VolumeNodeKind::File(volume)) => Ok(Arc::clone(volume)),
            Some(VolumeNodeKind::Dir(_)) => Err(Errno::EISDIR),
            None => Err(Errno::ESTALE),
        }
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

    fn read(&self, _: &Request, mode: BlockingMode, args: &ReadArgs) -> FsResult<Data> {
        let len = usize::try_from(args.size).unwrap_or(usize::MAX);
        Ok(self.volume(args.node)?.read(args.offset, len, super::io(mode))?.into())
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

    /// Adds a pool's volumes.
    ///
    /// # Errors
    /// The pool cannot be read, or the mount cannot be made.
    pub fn add(&self, pool: &Pool) -> Result<()> {
        let mut found = Vec::new();
        pool.for_each_dataset(&mut |dataset| {
            if dataset.kind() == DatasetKind::Volume && !dataset.is_locked() {
                let sec = match dataset.prop("creation")?.map(|v| v.value) {
                    Some(PropData::Num(n)) => i64::try_from(n).unwrap_or(0),
                    _ => 0,
                };
                let time = Timestamp { sec, nsec: 0 };
                found.push((dataset.name().to_owned(), dataset.open_volume()?, time));
            }
            Ok(())
        })?;
        if found.is_empty() {
            return Ok(());
        }
        let mut tree = self.tree.write();
        for (name, volume, time) in found {
            // A pool may be imported under another name.
            tree.add(&name, volume, time);
        }
        drop(tree);
        self.mount()
    }

    fn mount(&self) -> Result<()> {
        let mut session = self.session.lock();
        if session.as_ref().is_some_and(Session::is_running) {
            return Ok(());
        }
        std::fs::create_dir_all(&self.dir)
            .map_err(|e| base::Error::io("cannot make the directory of volumes", e))?;
        let options = super::shown_options("cenote-volumes");
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
