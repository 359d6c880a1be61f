//! Volumes as read-only files: `POOL/path/of/volume` below one directory, served
//! by one mount for all pools.
//!
//! Lock order: `Tree` is a leaf lock; the engine is not called under it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::Result;
use base::rt::{Mutex, RwLock};
use cenote::props::PropData;
use cenote::{DatasetKind, Pool, Volume};
use fuse::{
    Attr, Config, Data, DirSink, Entry, Errno, Filesystem, Mode, ROOT_ID, ReadArgs, Request,
    Session, Statfs, Timestamp, UnmountOptions, Whence,
};
use rustix::process::{getegid, geteuid};

/// Pools come and go: names are asked for again after this.
const TTL: Duration = Duration::from_secs(1);

type Answer<T> = std::result::Result<T, Errno>;

enum What {
    Dir(BTreeMap<Vec<u8>, u64>),
    File(Arc<Volume>),
}

struct Place {
    parent: u64,
    what: What,
    time: Timestamp,
}

/// The directories and files, by node number. Numbers are not used again.
struct Tree {
    places: BTreeMap<u64, Place>,
    next: u64,
}

impl Tree {
    fn new() -> Tree {
        let root =
            Place { parent: ROOT_ID, what: What::Dir(BTreeMap::new()), time: Timestamp::default() };
        Tree { places: BTreeMap::from([(ROOT_ID, root)]), next: ROOT_ID + 1 }
    }

    /// The child of that name, made by `make` if there is none.
    fn child(&mut self, parent: u64, name: &[u8], make: impl FnOnce() -> Place) -> Option<u64> {
        let next = self.next;
        let Some(Place { what: What::Dir(children), .. }) = self.places.get_mut(&parent) else {
            return None;
        };
        let id = *children.entry(name.to_vec()).or_insert(next);
        if id == next {
            self.next += 1;
            self.places.insert(id, make());
        }
        Some(id)
    }

    /// Adds a file; a volume below a volume has no place.
    fn add(&mut self, name: &str, volume: Arc<Volume>, time: Timestamp) {
        let (dirs, last) = name.rsplit_once('/').unwrap_or(("", name));
        let mut at = ROOT_ID;
        for part in dirs.split('/').filter(|p| !p.is_empty()) {
            let make = || Place { parent: at, what: What::Dir(BTreeMap::new()), time };
            match self.child(at, part.as_bytes(), make) {
                Some(id) => at = id,
                None => return,
            }
        }
        self.child(at, last.as_bytes(), || Place { parent: at, what: What::File(volume), time });
    }

    /// Removes what is below a name of the root.
    fn remove(&mut self, name: &str) {
        let Some(Place { what: What::Dir(children), .. }) = self.places.get_mut(&ROOT_ID) else {
            return;
        };
        let mut todo: Vec<u64> = children.remove(name.as_bytes()).into_iter().collect();
        while let Some(id) = todo.pop() {
            if let Some(Place { what: What::Dir(children), .. }) = self.places.remove(&id) {
                todo.extend(children.values());
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.places.len() == 1
    }
}

struct VolumeFs(Arc<RwLock<Tree>>);

fn attr(id: u64, place: &Place) -> Attr {
    let common = Attr {
        ino: id,
        atime: place.time,
        mtime: place.time,
        ctime: place.time,
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        ..Attr::default()
    };
    match &place.what {
        What::Dir(children) => {
            Attr { mode: 0o040_555, nlink: 2, size: children.len() as u64, blksize: 4096, ..common }
        }
        What::File(volume) => Attr {
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
    fn volume(&self, id: u64) -> Answer<Arc<Volume>> {
        match self.0.read().places.get(&id).map(|p| &p.what) {
            Some(What::File(volume)) => Ok(Arc::clone(volume)),
            Some(What::Dir(_)) => Err(Errno::EISDIR),
            None => Err(Errno::ESTALE),
        }
    }
}

impl Filesystem for VolumeFs {
    fn lookup(&self, _: &Request, _: Mode, parent: u64, name: &[u8]) -> Answer<Entry> {
        let tree = self.0.read();
        let place = tree.places.get(&parent).ok_or(Errno::ESTALE)?;
        let id = match (name, &place.what) {
            (b".", _) => Some(parent),
            (b"..", _) => Some(place.parent),
            (_, What::Dir(children)) => children.get(name).copied(),
            (_, What::File(_)) => return Err(Errno::ENOTDIR),
        };
        let Some((id, place)) = id.and_then(|id| Some((id, tree.places.get(&id)?))) else {
            return Ok(Entry::negative(TTL));
        };
        let attr = attr(id, place);
        Ok(Entry { node: id, generation: 0, attr, entry_ttl: TTL, attr_ttl: TTL })
    }

    fn getattr(&self, _: &Request, _: Mode, node: u64, _: Option<u64>) -> Answer<(Attr, Duration)> {
        let tree = self.0.read();
        Ok((attr(node, tree.places.get(&node).ok_or(Errno::ESTALE)?), TTL))
    }

    fn read(&self, _: &Request, mode: Mode, args: &ReadArgs) -> Answer<Data> {
        let len = usize::try_from(args.size).unwrap_or(usize::MAX);
        Ok(self.volume(args.node)?.read(args.offset, len, super::io(mode))?.into())
    }

    fn readdir(
        &self,
        _: &Request,
        _: Mode,
        node: u64,
        _: u64,
        offset: u64,
        sink: &mut DirSink,
    ) -> Answer<()> {
        let tree = self.0.read();
        let place = tree.places.get(&node).ok_or(Errno::ESTALE)?;
        let What::Dir(children) = &place.what else { return Err(Errno::ENOTDIR) };
        let dots: [(&[u8], u64); 2] = [(b".", node), (b"..", place.parent)];
        let all = dots.into_iter().chain(children.iter().map(|(n, id)| (n.as_slice(), *id)));
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        for (next, (name, id)) in (offset.saturating_add(1)..).zip(all.skip(skip)) {
            let mode = tree.places.get(&id).map_or(0, |p| attr(id, p).mode);
            if !sink.add(id, next, mode, name) {
                break;
            }
        }
        Ok(())
    }

    fn statfs(&self, _: &Request, _: Mode, _: u64) -> Answer<Statfs> {
        Ok(Statfs { bsize: 4096, frsize: 512, namelen: 255, ..Statfs::default() })
    }

    fn listxattr(&self, _: &Request, _: Mode, _: u64, _: u32) -> Answer<Data> {
        Ok(Data::empty())
    }

    fn lseek(
        &self,
        _: &Request,
        mode: Mode,
        node: u64,
        _: u64,
        offset: u64,
        whence: Whence,
    ) -> Answer<u64> {
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
    tree: Arc<RwLock<Tree>>,
    session: Mutex<Option<Session>>,
}

impl Volumes {
    /// Nothing yet; files will appear in `dir`.
    pub fn new(dir: PathBuf) -> Volumes {
        Volumes { dir, tree: Arc::new(RwLock::new(Tree::new())), session: Mutex::new(None) }
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
        let config = Config { on_request: cenote::wait_for_resume, ..Config::default() };
        *session = Some(Session::mount(Arc::new(fs), &self.dir, &options, &config)?);
        Ok(())
    }

    /// Removes a pool's volumes; with the last one the mount goes.
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
            // A user may keep the directory: it goes with the last one.
            if session.unmount(UnmountOptions { lazy: true, force: false }).is_ok() {
                let _gone = std::fs::remove_dir(&self.dir);
            }
        }
    }
}
