//! What changed in a file system between two snapshots: `zfs diff` (chapter 09 §3.5).
//!
//! # Theory
//! A block pointer has the txg of its block's birth, and a block is born again whenever
//! something below it changes. So a walk through the tree of the later snapshot's meta-dnode
//! that leaves out every block older than the earlier snapshot meets all blocks of dnodes that
//! changed, and no others. Of each such block both versions of each file are compared. A file
//! is the same in both if its object has the same generation; otherwise its number was used
//! again.
//!
//! The path of a file follows its parents up to the root; its name in each of them is found in
//! the directory. The names of a directory are remembered, up to [`NAMES_MAX`] in all, so that
//! many files of one directory cost one reading of it.
//!
//! # Invariants
//! * Nothing older than the earlier snapshot is read of the later one's tree; of directories,
//!   what paths need.
//! * Entries come in the order of object numbers.
//! * A damaged tree ends the walk with an error: levels fall with each step, paths have
//!   [`DEPTH_MAX`] parts.
//!
//! # Departures from OpenZFS
//! * A file that was removed while a program had it open is shown as removed; OpenZFS shows it
//!   as one called `(on_delete_queue)` while it is open.
//! * A file whose directory is not recorded, because it lost one of several links, is shown by
//!   its number, as zdb does. OpenZFS ends with an error.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use dmu::{Io, Objset};
use ondisk::dnode::{DNODE_BLOCK_SIZE, DNODES_PER_BLOCK, Dnode};
use ondisk::{BlkPtr, ObjType};
use zpl::{Attrs, FileSystem, FileType};

use crate::dataset::{Dataset, DatasetKind};

/// Names of directories that are remembered for each snapshot.
const NAMES_MAX: usize = 1 << 18;
/// Directories above each other.
const DEPTH_MAX: usize = 4096;
/// How snapshots are read.
const LOOK: Io = Io::WAIT;

/// How a file changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiffChange {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// Its content, attributes, entries or number of links changed.
    Modified {
        /// Links gained or lost; 0 for directories.
        links: i64,
    },
    /// It has another path.
    Renamed,
}

/// A file that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiffEntry {
    /// How.
    pub change: DiffChange,
    /// Its type.
    pub kind: FileType,
    /// Its path below the root, as it is now; of what is gone or renamed, as it was.
    pub path: Vec<u8>,
    /// The present path of what was renamed.
    pub new_path: Option<Vec<u8>>,
    /// When its attributes changed last: seconds and nanoseconds since 1970.
    pub ctime: (i64, u64),
}

/// One of the two snapshots.
struct Side {
    fs: Arc<FileSystem>,
    /// Names by directory and object.
    names: BTreeMap<u64, BTreeMap<u64, Vec<u8>>>,
    known: usize,
}

impl Side {
    fn new(fs: Arc<FileSystem>) -> Side {
        Side { fs, names: BTreeMap::new(), known: 0 }
    }

    /// A file's attributes; `None` for an object that is none, or no file.
    fn look(&self, id: u64) -> Result<Option<Attrs>> {
        let id = ObjectId(id);
        let found =
            self.fs.objset().object(id, LOOK).and_then(|object| match object.object_type() {
                ObjType::PLAIN_FILE_CONTENTS | ObjType::DIRECTORY_CONTENTS => {
                    self.fs.attrs(id, LOOK).map(Some)
                }
                _ => Ok(None),
            });
        match found {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            other => other,
        }
    }

    /// As [`Side::look`], without what has no name because it was removed while it was open,
    /// and without the extended attributes of such files.
    fn look_named(&self, id: u64) -> Result<Option<Attrs>> {
        let Some(found) = self.look(id)? else { return Ok(None) };
        let mut at = found;
        // An attribute is in a hidden directory, whose parent is the file.
        for _ in 0..2 {
            if !at.is_xattr() {
                break;
            }
            match self.look(at.parent.0)? {
                Some(above) => at = above,
                None => return Ok(None),
            }
        }
        Ok((found.nlink > 0 && at.nlink > 0).then_some(found))
    }

    /// The name of an object in a directory.
    fn name(&mut self, dir: ObjectId, id: ObjectId) -> Result<Option<Vec<u8>>> {
        if !self.names.contains_key(&dir.0) {
            if self.known > NAMES_MAX {
                self.names.clear();
                self.known = 0;
            }
            let (mut all, mut cookie) = (BTreeMap::new(), 0);
            loop {
                let page = match self.fs.readdir(dir, cookie, LOOK) {
                    Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotDir) => {
                        return Ok(None);
                    }
                    other => other?,
                };
                let plain = page.entries.into_iter();
                for entry in plain.filter(|e| !matches!(e.name.as_slice(), b"." | b"..")) {
                    // Too many to remember: this one alone is searched for.
                    if all.len() < NAMES_MAX || entry.id == id {
                        all.entry(entry.id.0).or_insert(entry.name);
                    }
                }
                match page.next {
                    Some(next) if next != cookie => cookie = next,
                    _ => break,
                }
            }
            if all.len() >= NAMES_MAX {
                return Ok(all.remove(&id.0));
            }
            self.known += all.len();
            self.names.insert(dir.0, all);
        }
        Ok(self.names.get(&dir.0).and_then(|all| all.get(&id.0)).cloned())
    }

    /// The path of a file below the root. It begins with the number of the object above whose
    /// name is not known, if there is one.
    fn path(&mut self, attrs: &Attrs) -> Result<Vec<u8>> {
        let (mut names, mut at) = (Vec::new(), *attrs);
        let mut path = Vec::new();
        while at.id != self.fs.root() {
            // The hidden directory of a file's extended attributes has no name.
            let hidden = at.is_xattr() && at.kind == FileType::Dir;
            let name = match hidden {
                _ if names.len() >= DEPTH_MAX => None,
                true => Some(b"<xattrdir>".to_vec()),
                false => self.name(at.parent, at.id)?,
            };
            let (Some(name), Some(above)) = (name, self.look(at.parent.0)?) else {
                path = format!("/???<object#{}>", at.id.0).into_bytes();
                break;
            };
            names.push(name);
            at = above;
        }
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Ok(if path.is_empty() { b"/".to_vec() } else { path })
    }
}

/// The walk over the later snapshot.
struct DiffWalk<'a> {
    from: Side,
    to: Side,
    min_txg: Txg,
    visit: &'a mut dyn FnMut(DiffEntry) -> Result<()>,
}

impl DiffWalk<'_> {
    fn objset(&self) -> &Arc<Objset> {
        self.to.fs.objset()
    }

    fn run(&mut self) -> Result<()> {
        let root = self.objset().root_bp();
        if root.is_hole() || root.birth() <= self.min_txg {
            return Ok(());
        }
        let meta = self.objset().phys().meta_dnode.clone();
        let level = meta.levels.saturating_sub(1);
        for (i, bp) in meta.blkptrs.iter().enumerate() {
            self.block(&meta, bp, level, i as u64)?;
        }
        // What the earlier snapshot has behind the end of the later one.
        let end = meta.max_blkid.saturating_add(1).saturating_mul(DNODES_PER_BLOCK);
        self.gone(end, u64::MAX)
    }

    fn is_new(&self, bp: &BlkPtr) -> bool {
        bp.birth() > self.min_txg || (bp.is_hole() && bp.birth() == Txg::ZERO)
    }

    fn block(&mut self, meta: &Dnode, bp: &BlkPtr, level: u8, blkid: u64) -> Result<()> {
        if !self.is_new(bp) {
            return Ok(());
        }
        let count = 1u64.checked_shl(meta.epb_shift() * u32::from(level)).unwrap_or(u64::MAX);
        let Some(first) = blkid.checked_mul(count) else { return Ok(()) };
        let object = first.saturating_mul(DNODES_PER_BLOCK);
        if first > meta.max_blkid {
            return Ok(());
        }
        if bp.is_hole() {
            let end = first.saturating_add(count).min(meta.max_blkid.saturating_add(1));
            return self.gone(object, end.saturating_mul(DNODES_PER_BLOCK));
        }
        if level == 0 {
            return self.dnodes(bp, object);
        }
        let head = bp.head();
        if head.level != level || head.lsize.0 != meta.block_size(level) {
            let e = Error::corrupt("block pointer of the wrong level or size for its position");
            return Err(e.at_block(level, blkid));
        }
        let block = self.objset().zio().read(bp, LOOK)?;
        let entries = 1usize << meta.epb_shift();
        for i in 0..entries {
            let child = BlkPtr::parse_nth(&block, i, bp.endian())?;
            self.block(meta, &child, level - 1, blkid * entries as u64 + i as u64)?;
        }
        Ok(())
    }

    /// The objects of the earlier snapshot from `first` up to `end`, which the later one lacks.
    fn gone(&mut self, first: u64, end: u64) -> Result<()> {
        let mut at = ObjectId(first.saturating_sub(1));
        while let Some(id) = self.from.fs.objset().next_object(at, LOOK)? {
            if id.0 >= end {
                break;
            }
            self.compare(id.0)?;
            at = id;
        }
        Ok(())
    }

    /// A block of dnodes that changed.
    fn dnodes(&mut self, bp: &BlkPtr, first: u64) -> Result<()> {
        let block = self.objset().zio().read(bp, LOOK)?;
        if block.len() != DNODE_BLOCK_SIZE {
            return Err(Error::corrupt("a block of dnodes has another size"));
        }
        for id in (first..first.saturating_add(DNODES_PER_BLOCK)).filter(|id| *id != 0) {
            self.compare(id)?;
        }
        Ok(())
    }

    /// Whether an object is the same in both, bit by bit.
    fn is_same(&self, id: u64) -> Result<bool> {
        let dnode = |side: &Side| match side.fs.objset().object(ObjectId(id), LOOK) {
            Ok(object) => Ok(Some(object.dnode().clone())),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        };
        Ok(dnode(&self.from)? == dnode(&self.to)?)
    }

    fn compare(&mut self, id: u64) -> Result<()> {
        if self.is_same(id)? {
            return Ok(());
        }
        let (old, new) = (self.from.look_named(id)?, self.to.look_named(id)?);
        match (old, new) {
            (Some(old), Some(new)) if old.generation == new.generation && old.kind == new.kind => {
                self.changed(&old, &new)
            }
            (old, new) => {
                if let Some(old) = old {
                    self.removed(&old)?;
                }
                match new {
                    Some(new) => self.added(&new),
                    None => Ok(()),
                }
            }
        }
    }

    fn tell(
        &mut self,
        change: DiffChange,
        of: &Attrs,
        path: Vec<u8>,
        new_path: Option<Vec<u8>>,
    ) -> Result<()> {
        let ctime = (of.ctime.seconds, of.ctime.nanoseconds);
        (self.visit)(DiffEntry { change, kind: of.kind, path, new_path, ctime })
    }

    fn added(&mut self, new: &Attrs) -> Result<()> {
        let path = self.to.path(new)?;
        self.tell(DiffChange::Added, new, path, None)
    }

    fn removed(&mut self, old: &Attrs) -> Result<()> {
        let path = self.from.path(old)?;
        self.tell(DiffChange::Removed, old, path, None)
    }

    /// A file that both snapshots have.
    fn changed(&mut self, old: &Attrs, new: &Attrs) -> Result<()> {
        let links = match new.kind {
            FileType::Dir => 0,
            _ => i64::from(new.nlink) - i64::from(old.nlink),
        };
        if old.ctime == new.ctime && links == 0 {
            return Ok(());
        }
        let path = self.to.path(new)?;
        if links != 0 {
            return self.tell(DiffChange::Modified { links }, new, path, None);
        }
        let before = self.from.path(old)?;
        match before == path {
            true => self.tell(DiffChange::Modified { links }, new, path, None),
            false => self.tell(DiffChange::Renamed, new, before, Some(path)),
        }
    }
}

impl Dataset {
    /// Calls `visit` for each file that changed since the snapshot `from`, in the order of
    /// object numbers. This is a later snapshot of the same file system, or of a clone of it,
    /// or a file system of a pool that is imported read-only. An error of `visit` ends it.
    ///
    /// # Errors
    /// `CrossDevice` if `from` is no earlier snapshot; `Invalid` for other kinds of datasets;
    /// `Locked`; those of reading and of `visit`.
    pub fn diff(
        &self,
        from: &Dataset,
        visit: &mut dyn FnMut(DiffEntry) -> Result<()>,
    ) -> Result<()> {
        let fail = |e: Error| e.in_dataset(self.name());
        let is_fixed = match self.kind() {
            DatasetKind::Snapshot => true,
            DatasetKind::Filesystem => self.core().writer.is_none(),
            DatasetKind::Volume | DatasetKind::Bookmark => false,
        };
        if from.kind() != DatasetKind::Snapshot || !is_fixed {
            return Err(fail(Error::invalid("only snapshots of file systems can be compared")));
        }
        self.is_later_than(from).map_err(fail)?;
        let (old, new) = (from.read_fs()?, self.read_fs()?);
        let min_txg = Txg(from.createtxg());
        let (from, to) = (Side::new(old), Side::new(new));
        DiffWalk { from, to, min_txg, visit }.run().map_err(fail)
    }
}
