//! The kstats as a directory in the layout of `/proc/spl/kstat/zfs`, mounted below the runtime
//! directory, for tools that read files: `node_exporter --path.procfs=$RUNTIME/proc`.
//!
//! # Theory
//! As in procfs, a file has size 0 until it is opened. Its text is made at the open and stays
//! the same for that handle. While no file is open, only the ids of the nodes that the kernel
//! knows are kept.
//!
//! Lock order: `KstatNodes` and `open` are leaf locks; the registry is not called under them.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::rt::{Mutex, RwLock};
use base::{Buf, BufMut, Error, Result};
use cenote::kstat::{Node, Registry, text};
use fuse::{
    Attr, BlockingMode, Config, Data, DirSink, Errno, Filesystem, LookupEntry, Opened, ROOT_ID,
    ReadArgs, ReleaseArgs, Request, Session, Statfs, Timestamp, UnmountOptions,
};
use rustix::process::{getegid, geteuid};

use super::zfs::FsResult;

/// Disables the directory if its value is `off`.
const ENV: &str = "CENOTE_KSTAT";
/// Files open at one time.
const OPEN_MAX: usize = 4096;
/// Names are not cached, because they change with the imported pools.
const TTL: Duration = Duration::ZERO;

/// Paths by node id and back. An id is not reused.
struct KstatNodes {
    paths: HashMap<u64, String>,
    ids: HashMap<String, u64>,
    next: u64,
}

impl KstatNodes {
    fn id(&mut self, path: &str) -> u64 {
        if path.is_empty() {
            return ROOT_ID;
        }
        if let Some(&id) = self.ids.get(path) {
            return id;
        }
        let id = self.next;
        self.next += 1;
        self.ids.insert(path.to_owned(), id);
        self.paths.insert(id, path.to_owned());
        id
    }

    fn path(&self, id: u64) -> Option<String> {
        if id == ROOT_ID { Some(String::new()) } else { self.paths.get(&id).cloned() }
    }
}

struct KstatFs {
    registry: Arc<Registry>,
    nodes: RwLock<KstatNodes>,
    open: Mutex<BTreeMap<u64, Buf>>,
    handles: AtomicU64,
    since: Timestamp,
}

impl KstatFs {
    fn new(registry: Arc<Registry>) -> KstatFs {
        let now = base::rt::wall_clock();
        KstatFs {
            registry,
            nodes: RwLock::new(KstatNodes {
                paths: HashMap::new(),
                ids: HashMap::new(),
                next: ROOT_ID + 1,
            }),
            open: Mutex::new(BTreeMap::new()),
            handles: AtomicU64::new(1),
            since: Timestamp { sec: i64::try_from(now.as_secs()).unwrap_or(0), nsec: 0 },
        }
    }

    /// The path of a node, if it still exists.
    fn path(&self, id: u64) -> FsResult<(String, Node)> {
        let path = self.nodes.read().path(id).ok_or(Errno::ESTALE)?;
        let node = self.registry.node(&path).ok_or(Errno::ENOENT)?;
        Ok((path, node))
    }

    fn attr(&self, id: u64, node: Node) -> Attr {
        let common = Attr {
            ino: id,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            blksize: 4096,
            ..Attr::default()
        };
        match node {
            Node::Dir => Attr { mode: 0o040_555, nlink: 2, ..common },
            Node::File => Attr { mode: 0o100_444, nlink: 1, ..common },
        }
    }
}

fn joined(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

/// The bytes in a buffer of the transport.
fn buffer(bytes: &[u8]) -> Buf {
    let mut buf = BufMut::alloc(bytes.len());
    buf.copy_from_slice(bytes);
    buf.freeze()
}

impl Filesystem for KstatFs {
    fn lookup(&self, _: &Request, _: BlockingMode, dir: u64, name: &[u8]) -> FsResult<LookupEntry> {
        let (path, node) = self.path(dir)?;
        if node != Node::Dir {
            return Err(Errno::ENOTDIR);
        }
        let found = match name {
            b"." => path,
            b".." => parent(&path).to_owned(),
            name => match std::str::from_utf8(name) {
                Ok(name) => joined(&path, name),
                Err(_) => return Ok(LookupEntry::negative(TTL)),
            },
        };
        let Some(node) = self.registry.node(&found) else { return Ok(LookupEntry::negative(TTL)) };
        let id = self.nodes.write().id(&found);
        let attr = self.attr(id, node);
        Ok(LookupEntry { node: id, generation: 0, attr, entry_ttl: TTL, attr_ttl: TTL })
    }

    fn forget(&self, id: u64, _: u64) {
        // A path that still exists keeps its id.
        if matches!(self.path(id), Err(e) if e == Errno::ENOENT) {
            let mut nodes = self.nodes.write();
            if let Some(path) = nodes.paths.remove(&id) {
                nodes.ids.remove(&path);
            }
        }
    }

    fn getattr(
        &self,
        _: &Request,
        _: BlockingMode,
        id: u64,
        _: Option<u64>,
    ) -> FsResult<(Attr, Duration)> {
        let (_, node) = self.path(id)?;
        Ok((self.attr(id, node), TTL))
    }

    fn open(&self, _: &Request, _: BlockingMode, id: u64, _: u32) -> FsResult<Opened> {
        let (path, node) = self.path(id)?;
        if node == Node::Dir {
            return Err(Errno::EISDIR);
        }
        let kstat = self.registry.get(&path).ok_or(Errno::ENOENT)?;
        let bytes = buffer(text::render(&kstat).as_bytes());
        let handle = self.handles.fetch_add(1, Relaxed);
        let mut open = self.open.lock();
        if open.len() >= OPEN_MAX {
            return Err(Errno::ENOMEM);
        }
        open.insert(handle, bytes);
        Ok(Opened { direct_io: true, no_flush: true, ..Opened::new(handle) })
    }

    fn read(&self, _: &Request, _: BlockingMode, args: &ReadArgs) -> FsResult<Data> {
        let open = self.open.lock();
        let bytes = open.get(&args.handle).ok_or(Errno::EBADF)?;
        let from = usize::try_from(args.offset).unwrap_or(usize::MAX).min(bytes.len());
        let size = usize::try_from(args.size).unwrap_or(usize::MAX);
        let end = from.saturating_add(size).min(bytes.len());
        Ok(bytes.slice(from..end).into())
    }

    fn release(&self, _: &Request, args: &ReleaseArgs) -> FsResult<()> {
        self.open.lock().remove(&args.handle);
        Ok(())
    }

    /// Without this call the kernel keeps listings, and does not see what comes and goes.
    fn opendir(&self, _: &Request, _: BlockingMode, _: u64, _: u32) -> FsResult<Opened> {
        Ok(Opened::default())
    }

    fn readdir(
        &self,
        _: &Request,
        _: BlockingMode,
        id: u64,
        _: u64,
        offset: u64,
        sink: &mut DirSink,
    ) -> FsResult<()> {
        let (path, node) = self.path(id)?;
        if node != Node::Dir {
            return Err(Errno::ENOTDIR);
        }
        let dots = [(".", path.clone()), ("..", parent(&path).to_owned())];
        let dots = dots.map(|(name, path)| (name.to_owned(), path, Node::Dir));
        let below = self.registry.list(&path).into_iter();
        let below = below.map(|(name, node)| (name.clone(), joined(&path, &name), node));
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let all = dots.into_iter().chain(below).skip(skip);
        for (next, (name, path, node)) in (offset.saturating_add(1)..).zip(all) {
            let id = self.nodes.write().id(&path);
            if !sink.add(id, next, self.attr(id, node).mode, name.as_bytes()) {
                break;
            }
        }
        Ok(())
    }

    fn statfs(&self, _: &Request, _: BlockingMode, _: u64) -> FsResult<Statfs> {
        Ok(Statfs { bsize: 4096, frsize: 4096, namelen: 255, ..Statfs::default() })
    }

    fn listxattr(&self, _: &Request, _: BlockingMode, _: u64, _: u32) -> FsResult<Data> {
        Ok(Data::empty())
    }
}

/// The mount of the kstats.
pub struct KstatMount {
    session: Session,
    dir: PathBuf,
    runtime: PathBuf,
}

/// Lets other users pass through the directories that lead to the mount; other files in the
/// runtime directory have modes of their own.
fn allow_traversal(runtime: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(runtime)?.permissions().mode();
    std::fs::set_permissions(runtime, std::fs::Permissions::from_mode(mode & 0o7777 | 0o011))
}

impl KstatMount {
    /// Mounts at `dir`, below the runtime directory `runtime`. `None` where the
    /// environment forbids it.
    ///
    /// # Errors
    /// There is no FUSE, or the kernel refuses.
    pub fn make(
        registry: &Arc<Registry>,
        runtime: &Path,
        dir: PathBuf,
    ) -> Result<Option<KstatMount>> {
        if std::env::var_os(ENV).is_some_and(|v| v == "off") {
            return Ok(None);
        }
        std::fs::create_dir_all(&dir)
            .map_err(|e| Error::io("cannot make the directory of kstats", e))?;
        let options = super::shown_options("cenote-kstat");
        let fs = Arc::new(KstatFs::new(Arc::clone(registry)));
        let config = Config { export: false, ..Config::default() };
        let session = Session::mount(fs, &dir, &options, &config)?;
        if geteuid().is_root() {
            allow_traversal(runtime)
                .map_err(|e| Error::io("cannot open the runtime directory to others", e))?;
        }
        Ok(Some(KstatMount { session, dir, runtime: runtime.to_owned() }))
    }

    /// The mountpoint.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Ends the mount; open files of it stay usable.
    pub fn end(self) {
        if self.session.unmount(UnmountOptions { lazy: true, force: false }).is_ok() {
            let ours = |d: &&Path| d.starts_with(&self.runtime) && **d != self.runtime;
            for dir in self.dir.ancestors().take_while(ours) {
                let _gone = std::fs::remove_dir(dir);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote::kstat::Kstat;

    fn fs() -> (KstatFs, Arc<u64>) {
        let registry = Arc::new(Registry::new());
        let owner = Arc::new(7u64);
        registry.register("tank/objset-0x1", &owner, |n| Kstat::numbers([("reads", *n)])).unwrap();
        registry.register_static("arcstats", || Kstat::numbers([("hits", 1)])).unwrap();
        (KstatFs::new(registry), owner)
    }

    fn read(fs: &KstatFs, handle: u64, offset: u64, size: u32) -> Vec<u8> {
        let args = ReadArgs { node: 0, handle, offset, size, flags: 0, lock_owner: None };
        let data = fs.read(&Request::default(), BlockingMode::Blocking, &args).unwrap();
        data.bufs().iter().flat_map(|b| b.to_vec()).collect()
    }

    #[test]
    fn an_open_file_keeps_its_text_and_a_pool_is_removed() {
        let (fs, owner) = fs();
        let req = Request::default();
        let tank = fs.lookup(&req, BlockingMode::Blocking, ROOT_ID, b"tank").unwrap();
        assert_eq!(tank.attr.mode, 0o040_555);
        let file = fs.lookup(&req, BlockingMode::Blocking, tank.node, b"objset-0x1").unwrap();
        assert_eq!((file.attr.mode, file.attr.size), (0o100_444, 0));
        let up = fs.lookup(&req, BlockingMode::Blocking, tank.node, b"..").unwrap();
        assert_eq!(up.node, ROOT_ID);
        let opened = fs.open(&req, BlockingMode::Blocking, file.node, 0).unwrap();
        assert!(opened.direct_io);
        drop(owner);
        let text = String::from_utf8(read(&fs, opened.handle, 0, 4096)).unwrap();
        assert!(text.ends_with("reads                           4    7\n"), "{text}");
        assert_eq!(read(&fs, opened.handle, text.len() as u64 - 2, 4096), b"7\n");
        assert!(read(&fs, opened.handle, u64::MAX, 4096).is_empty());
        let gone = fs.open(&req, BlockingMode::Blocking, file.node, 0).unwrap_err();
        assert_eq!(gone, Errno::ENOENT);
        let args = ReleaseArgs { node: 0, handle: opened.handle, flags: 0, flock_unlock: None };
        fs.release(&req, &args).unwrap();
        assert!(fs.open.lock().is_empty());
        // A node that the kernel forgets and that is gone is forgotten here, too.
        fs.forget(file.node, 1);
        fs.forget(tank.node, 1);
        fs.forget(ROOT_ID, 1);
        assert!(fs.nodes.read().paths.is_empty() && fs.nodes.read().ids.is_empty());
        assert_eq!(fs.lookup(&req, BlockingMode::Blocking, ROOT_ID, b"\xff").unwrap().node, 0);
    }
}
