//! Nodes, names and bytes in memory; what may be done with them the kernel has checked.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::rt::Mutex;
use fuse::{
    Attr, Data, DirSink, Errno, FOREVER, LookupEntry, NewNode, ROOT_ID, Request, Result, SetAttr,
    SetTime, Timestamp,
};

pub(crate) const S_IFMT: u32 = 0o170_000;
pub(crate) const S_IFDIR: u32 = 0o040_000;
pub(crate) const S_IFREG: u32 = 0o100_000;
const S_ISUID: u32 = 0o4_000;
const S_ISGID: u32 = 0o2_000;
const S_IXGRP: u32 = 0o010;
/// How long a mount has the kernel believe what is not on disk as it is.
const UNSETTLED_TTL: Duration = Duration::from_secs(2);
/// Longest file: one mistaken offset must not take all memory.
const FILE_MAX: u64 = 8 << 30;
/// Cookie of `..`; those of names follow.
const COOKIE_PARENT: u64 = 2;

pub(crate) fn now() -> Timestamp {
    let time = base::rt::wall_clock();
    Timestamp { sec: time.as_secs().cast_signed(), nsec: time.subsec_nanos() }
}

/// A file's bytes.
#[derive(Default)]
pub(crate) struct FileContent {
    bytes: Mutex<Vec<u8>>,
    /// Their number, readable while they are copied.
    size: AtomicU64,
}

impl FileContent {
    /// Makes room up to `end`, with zeros from where it ended up to `from`.
    fn reach(bytes: &mut Vec<u8>, from: usize, end: usize) -> Result<()> {
        let more = end.saturating_sub(bytes.len());
        bytes.try_reserve(more).map_err(|_| Errno::ENOSPC)?;
        if bytes.len() < from {
            bytes.resize(from, 0);
        }
        Ok(())
    }

    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset.saturating_add(data.len() as u64);
        let (at, end) = (in_memory(offset)?, in_memory(end)?);
        let mut bytes = self.bytes.lock();
        FileContent::reach(&mut bytes, at, end)?;
        let (over, behind) = data.split_at(data.len().min(bytes.len() - at));
        if let Some(slot) = bytes.get_mut(at..at + over.len()) {
            slot.copy_from_slice(over);
        }
        // What is new is not written twice.
        bytes.extend_from_slice(behind);
        self.size.store(bytes.len() as u64, Relaxed);
        Ok(())
    }

    pub(crate) fn resize(&self, size: u64) -> Result<()> {
        let len = in_memory(size)?;
        let mut bytes = self.bytes.lock();
        FileContent::reach(&mut bytes, len, len)?;
        bytes.truncate(len);
        self.size.store(size, Relaxed);
        Ok(())
    }

    pub(crate) fn read(&self, offset: u64, size: u32) -> Data {
        let bytes = self.bytes.lock();
        let at = bytes.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
        let rest = &bytes[at..];
        Data::copy_of(&rest[..rest.len().min(size as usize)])
    }
}

/// A place in a file, if it may be that long.
fn in_memory(at: u64) -> Result<usize> {
    usize::try_from(at).ok().filter(|_| at <= FILE_MAX).ok_or(Errno::EFBIG)
}

/// A directory's names.
pub(crate) struct DirEntries {
    parent: u64,
    /// Cookie and node.
    names: HashMap<Arc<[u8]>, (u64, u64)>,
    /// By cookie, in the order in which they came.
    order: BTreeMap<u64, (Arc<[u8]>, u64)>,
    last: u64,
}

impl DirEntries {
    pub(crate) fn new(parent: u64) -> DirEntries {
        DirEntries { parent, names: HashMap::new(), order: BTreeMap::new(), last: COOKIE_PARENT }
    }
}

pub(crate) enum InodeKind {
    File(Arc<FileContent>),
    DirEntries(DirEntries),
    Link(Data),
    /// A device, a pipe, a socket.
    Special,
}

pub(crate) struct Inode {
    /// Its size is that of the content, if there is any.
    pub(crate) attr: Attr,
    pub(crate) born: Timestamp,
    /// How many the kernel counts.
    pub(crate) lookups: Cell<u64>,
    pub(crate) body: InodeKind,
}

impl Inode {
    pub(crate) fn dir(&self) -> Result<&DirEntries> {
        if let InodeKind::DirEntries(dir) = &self.body { Ok(dir) } else { Err(Errno::ENOTDIR) }
    }

    pub(crate) fn dir_mut(&mut self) -> Result<&mut DirEntries> {
        if let InodeKind::DirEntries(dir) = &mut self.body { Ok(dir) } else { Err(Errno::ENOTDIR) }
    }

    pub(crate) fn is_dir(&self) -> bool {
        matches!(self.body, InodeKind::DirEntries(_))
    }

    pub(crate) fn attr(&self) -> Attr {
        let size = match &self.body {
            InodeKind::File(content) => content.size.load(Relaxed),
            _ => self.attr.size,
        };
        Attr { size, blocks: size.div_ceil(512), ..self.attr }
    }

    /// How long the attributes may be believed, as a mount says. Set-id bits go with direct
    /// writes, of which the kernel does not see it.
    pub(crate) fn attr_ttl(&self, settles: i64) -> Duration {
        let set_id = self.is_file() && self.attr.mode & (S_ISUID | S_ISGID) != 0;
        match settles {
            _ if set_id => Duration::ZERO,
            1.. if now().sec - self.attr.ctime.sec < settles => UNSETTLED_TTL,
            _ => FOREVER,
        }
    }

    fn is_file(&self) -> bool {
        matches!(self.body, InodeKind::File(_))
    }

    /// Its content changed, or its names.
    pub(crate) fn changed(&mut self, at: Timestamp) {
        (self.attr.mtime, self.attr.ctime) = (at, at);
    }

    pub(crate) fn drop_set_ids(&mut self) {
        if self.is_file() {
            let group = if self.attr.mode & S_IXGRP != 0 { S_ISGID } else { 0 };
            self.attr.mode &= !(S_ISUID | group);
        }
    }

    pub(crate) fn set(&mut self, set: &SetAttr) {
        let now = now();
        let time = |t| if let SetTime::At(t) = t { t } else { now };
        if set.kill_suidgid || set.uid.is_some() || set.gid.is_some() {
            self.drop_set_ids();
        }
        if set.size.is_some() {
            self.attr.mtime = now;
        }
        let attr = &mut self.attr;
        attr.mode = set.mode.map_or(attr.mode, |m| attr.mode & S_IFMT | m & 0o7777);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        attr.ctime = set.ctime.unwrap_or(now);
    }
}

/// All nodes by number.
pub(crate) struct InodeTable {
    pub(crate) nodes: HashMap<u64, Inode>,
    /// The last number that was given out.
    last: u64,
    /// Seconds after a change in which a mount would not have it on disk.
    pub(crate) settles: i64,
}

impl InodeTable {
    /// With a root directory.
    pub(crate) fn new(settles: i64) -> InodeTable {
        let born = now();
        let attr = Attr { ino: ROOT_ID, mode: S_IFDIR | 0o755, nlink: 2, ..Attr::default() };
        let attr = Attr { atime: born, mtime: born, ctime: born, blksize: 512, ..attr };
        let root = Inode {
            attr,
            born,
            lookups: Cell::new(1),
            body: InodeKind::DirEntries(DirEntries::new(ROOT_ID)),
        };
        InodeTable { nodes: HashMap::from([(ROOT_ID, root)]), last: ROOT_ID, settles }
    }

    pub(crate) fn node(&self, id: u64) -> Result<&Inode> {
        self.nodes.get(&id).ok_or(Errno::ESTALE)
    }

    pub(crate) fn node_mut(&mut self, id: u64) -> Result<&mut Inode> {
        self.nodes.get_mut(&id).ok_or(Errno::ESTALE)
    }

    pub(crate) fn content(&self, id: u64) -> Result<Arc<FileContent>> {
        match &self.node(id)?.body {
            InodeKind::File(content) => Ok(Arc::clone(content)),
            InodeKind::DirEntries(_) => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        }
    }

    /// An entry for the kernel, not yet counted.
    fn entry(&self, id: u64) -> Result<LookupEntry> {
        let node = self.node(id)?;
        let (attr, attr_ttl) = (node.attr(), node.attr_ttl(self.settles));
        Ok(LookupEntry { node: id, generation: 0, attr, entry_ttl: FOREVER, attr_ttl })
    }

    fn count(&self, id: u64) {
        if let Some(node) = self.nodes.get(&id) {
            node.lookups.set(node.lookups.get() + 1);
        }
    }

    pub(crate) fn give(&self, id: u64) -> Result<LookupEntry> {
        let entry = self.entry(id)?;
        self.count(id);
        Ok(entry)
    }

    pub(crate) fn find(&self, parent: u64, name: &[u8]) -> Result<u64> {
        let node = self.node(parent)?;
        match name {
            // Of files, too: so the kernel looks for a node of which it has the number alone.
            b"." => Ok(parent),
            b".." => Ok(node.dir()?.parent),
            _ => node.dir()?.names.get(name).map(|found| found.1).ok_or(Errno::ENOENT),
        }
    }

    pub(crate) fn put_name(
        &mut self,
        parent: u64,
        name: &[u8],
        id: u64,
        is_dir: bool,
    ) -> Result<()> {
        let node = self.node_mut(parent)?;
        let dir = node.dir_mut()?;
        if dir.names.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        dir.last += 1;
        let name: Arc<[u8]> = name.into();
        dir.order.insert(dir.last, (Arc::clone(&name), id));
        dir.names.insert(name, (dir.last, id));
        node.attr.size += 1;
        node.attr.nlink += u32::from(is_dir);
        node.changed(now());
        Ok(())
    }

    fn take_name(&mut self, parent: u64, name: &[u8], is_dir: bool) -> Result<()> {
        let node = self.node_mut(parent)?;
        let dir = node.dir_mut()?;
        let (cookie, _) = dir.names.remove(name).ok_or(Errno::ENOENT)?;
        dir.order.remove(&cookie);
        node.attr.size -= 1;
        node.attr.nlink -= u32::from(is_dir);
        node.changed(now());
        Ok(())
    }

    pub(crate) fn make(
        &mut self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new: &NewNode,
        body: InodeKind,
    ) -> Result<LookupEntry> {
        let (above, id, born) = (self.node(parent)?.attr, self.last + 1, now());
        let mut node = Inode { attr: Attr::default(), born, lookups: Cell::new(1), body };
        let is_dir = node.is_dir();
        self.put_name(parent, name, id, is_dir)?;
        self.last = id;
        let inherits = above.mode & S_ISGID != 0;
        node.attr = Attr {
            ino: id,
            size: if let InodeKind::Link(target) = &node.body { target.len() as u64 } else { 0 },
            atime: born,
            mtime: born,
            ctime: born,
            mode: new.mode & !new.umask | if inherits && is_dir { S_ISGID } else { 0 },
            nlink: if is_dir { 2 } else { 1 },
            uid: req.uid,
            gid: if inherits { above.gid } else { req.gid },
            rdev: new.rdev,
            blksize: 128 << 10,
            ..Attr::default()
        };
        self.nodes.insert(id, node);
        self.entry(id)
    }

    pub(crate) fn make_file(
        &mut self,
        req: &Request,
        parent: u64,
        name: &[u8],
        new: &NewNode,
    ) -> Result<LookupEntry> {
        let body = match new.mode & S_IFMT {
            S_IFREG => InodeKind::File(Arc::default()),
            _ => InodeKind::Special,
        };
        self.make(req, parent, name, new, body)
    }

    pub(crate) fn remove(&mut self, parent: u64, name: &[u8], is_dir: bool) -> Result<()> {
        let id = self.find(parent, name)?;
        match &self.node(id)?.body {
            InodeKind::DirEntries(_) if !is_dir => return Err(Errno::EISDIR),
            InodeKind::DirEntries(dir) if !dir.names.is_empty() => return Err(Errno::ENOTEMPTY),
            InodeKind::DirEntries(_) => {}
            _ if is_dir => return Err(Errno::ENOTDIR),
            _ => {}
        }
        self.take_name(parent, name, is_dir)?;
        let node = self.node_mut(id)?;
        node.attr.nlink = if is_dir { 0 } else { node.attr.nlink.saturating_sub(1) };
        node.attr.ctime = now();
        self.bury(id);
        Ok(())
    }

    /// Removes a node that has neither a name nor a lookup.
    pub(crate) fn bury(&mut self, id: u64) {
        let ends = |node: &Inode| node.attr.nlink == 0 && node.lookups.get() == 0;
        if self.nodes.get(&id).is_some_and(ends) {
            self.nodes.remove(&id);
        }
    }

    pub(crate) fn rename(
        &mut self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        replace: bool,
    ) -> Result<()> {
        let id = self.find(from.0, from.1)?;
        let is_dir = self.node(id)?.is_dir();
        match self.find(to.0, to.1) {
            Ok(_) if !replace => return Err(Errno::EEXIST),
            Ok(old) if old == id => return Ok(()),
            Ok(_) => self.remove(to.0, to.1, is_dir)?,
            Err(Errno::ENOENT) => {}
            Err(e) => return Err(e),
        }
        self.take_name(from.0, from.1, is_dir)?;
        self.put_name(to.0, to.1, id, is_dir)?;
        let node = self.node_mut(id)?;
        node.attr.ctime = now();
        if let InodeKind::DirEntries(dir) = &mut node.body {
            dir.parent = to.0;
        }
        Ok(())
    }

    pub(crate) fn list(&self, id: u64, offset: u64, sink: &mut DirSink, plus: bool) -> Result<()> {
        let dir = self.node(id)?.dir()?;
        let dots: [(u64, u64, &[u8]); 2] = [(1, id, b"."), (COOKIE_PARENT, dir.parent, b"..")];
        for (cookie, ino, name) in dots {
            if cookie > offset && !sink.add(ino, cookie, S_IFDIR, name) {
                return Ok(());
            }
        }
        let behind = offset.saturating_add(1);
        for (&cookie, (name, child)) in dir.order.range(behind..) {
            let entry = self.entry(*child)?;
            let added = match plus {
                true => sink.add_plus(&entry, cookie, name),
                false => sink.add(entry.attr.ino, cookie, entry.attr.mode, name),
            };
            if !added {
                return Ok(());
            }
            if plus {
                self.count(*child);
            }
        }
        Ok(())
    }
}
