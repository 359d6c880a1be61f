//! Builds complete, correct pool images in bulk: one file vdev, one file system, one
//! transaction group.
//!
//! # Theory
//! The data that a benchmark reads must exist before it starts, and be cheap to create.
//! Nothing is ever rewritten here, so transactions or a real allocator are unnecessary.
//! Blocks are written in order of arrival, each pool structure is written once, when
//! everything below it is known, and the labels are written last.
//!
//! # Invariants
//! * An image that [`Builder::finish`] completed is an exported pool without errors in
//!   every check of OpenZFS's `zdb` and of Cenote. An image that it did not complete has no
//!   label and is no pool.
//! * The same calls with the same [`PoolSpec`] give the same image, except for the path in
//!   the labels.
//! * File data is never in memory as a whole.
//!
//! # Departures
//! Compressible data is not embedded in pointers, and blocks of zeros become holes also
//! where compression is off. Blocks of the MOS are stored uncompressed, so that their sizes
//! do not depend on their own content.

mod fs;
mod label;
mod mos;
mod space;
mod store;
mod tree;
mod znode;

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::limits::{FILE_NAME_MAX, LEAF_SIZE_MIN, PATH_DEPTH_MAX};
use base::{Error, ErrorKind, Result, Txg, rt};
use ondisk::label::{leaf_asize, usable_size};
use ondisk::znode::{DirEntry, FileType};

use fs::{DnodeArea, Fs, ROOT};
use space::BumpSpace;
use store::WritePipeline;
use znode::{S_IFDIR, S_IFREG, Znode};

/// The txg of all births: a pool's first (chapter 04 §0).
const TXG: Txg = Txg(4);
/// Largest record.
const RECORD_MAX: u32 = 16 << 20;

/// Parameters of the pool.
#[derive(Clone, Debug)]
pub struct PoolSpec {
    /// Its name.
    pub name: String,
    /// Bytes of the image; it is sparse, so that a large one costs nothing.
    pub size: u64,
    /// log2 of the sector, 9 to 16.
    pub ashift: u32,
    /// Seed of guids and hash salts. Pools that are to be imported side by side need
    /// different seeds.
    pub seed: u64,
    /// Creation time of everything, seconds since 1970.
    pub time: u64,
}

impl PoolSpec {
    /// A pool of `size` bytes with sectors of 4 KiB, created now.
    pub fn new(name: &str, size: u64) -> PoolSpec {
        let time = rt::wall_clock().as_secs();
        let seed = name.bytes().fold(0, |seed, byte| mix(seed, u64::from(byte)));
        PoolSpec { name: name.to_owned(), size, ashift: 12, seed, time }
    }

    fn check(&self) -> Result<()> {
        let letter = self.name.starts_with(|c: char| c.is_ascii_alphabetic());
        let rest = |c: char| c.is_ascii_alphanumeric() || "_-.: ".contains(c);
        let reserved = ["mirror", "raidz", "draid", "spare"];
        let taken = self.name == "log" || reserved.iter().any(|r| self.name.starts_with(r));
        if !letter || !self.name.chars().all(rest) || self.name.len() > 239 || taken {
            return Err(Error::invalid(format!("'{}' cannot be a pool's name", self.name)));
        }
        if !(9..=16).contains(&self.ashift) {
            return Err(Error::invalid("ashift must be 9 to 16"));
        }
        if !(LEAF_SIZE_MIN..1 << 60).contains(&self.size) {
            return Err(Error::invalid("a pool needs at least 64 MiB, and less than 1 EiB"));
        }
        Ok(())
    }
}

/// Compression of file data. Metadata is always compressed with LZ4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Compression {
    /// Not at all.
    Off,
    /// LZ4, where it saves an eighth.
    #[default]
    Lz4,
}

/// Parameters of a file.
#[derive(Clone, Debug)]
pub struct FileSpec {
    /// Bytes.
    pub size: u64,
    /// Bytes of a block: a power of two, 512 to 16 MiB.
    pub recordsize: u32,
    /// Of its data.
    pub compression: Compression,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time, seconds since 1970.
    pub mtime: u64,
}

impl FileSpec {
    /// A file of `size` bytes in records of 128 KiB, compressed, owned by root, mode 644,
    /// from 1970.
    pub fn new(size: u64) -> FileSpec {
        FileSpec {
            size,
            recordsize: 128 << 10,
            compression: Compression::Lz4,
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime: 0,
        }
    }

    fn check(&self) -> Result<()> {
        if !self.recordsize.is_power_of_two() || !(512..=RECORD_MAX).contains(&self.recordsize) {
            return Err(Error::invalid("a record is a power of two, 512 bytes to 16 MiB"));
        }
        if self.size > i64::MAX as u64 {
            return Err(Error::invalid("a file has less than 8 EiB"));
        }
        Ok(())
    }
}

struct OpenDir {
    object: u64,
    parent: u64,
    subdirs: u64,
    names: HashMap<Box<[u8]>, u64>,
}

/// Builds one image. After an error the image cannot be completed.
pub struct Builder {
    spec: PoolSpec,
    path: PathBuf,
    file: Arc<File>,
    fs: Fs,
    dirs: Vec<OpenDir>,
    /// Index in `dirs` by object.
    index: HashMap<u64, usize>,
    failed: bool,
}

/// A pseudo-random number that depends on a seed and another number.
pub(crate) fn mix(seed: u64, n: u64) -> u64 {
    let mut z = (seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > FILE_NAME_MAX {
        return Err(Error::new(ErrorKind::NameTooLong, "a file's name has at most 255 bytes"));
    }
    if name == b"." || name == b".." || name.contains(&0) {
        return Err(Error::invalid("this cannot be a file's name"));
    }
    Ok(())
}

impl Builder {
    /// Starts an image at `path`; an existing file is replaced.
    ///
    /// # Errors
    /// `Invalid` for an impossible [`PoolSpec`], and the file's.
    pub fn create(path: &Path, spec: &PoolSpec) -> Result<Builder> {
        spec.check()?;
        let failed = |e| Error::io("cannot create the image", e).on_path(path.to_string_lossy());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let file = Arc::new(options.open(path).map_err(failed)?);
        file.set_len(spec.size).map_err(failed)?;
        let path = path.canonicalize().map_err(failed)?;
        let asize = leaf_asize(usable_size(spec.size))
            .ok_or_else(|| Error::invalid("the image is too small"))?;
        let space = BumpSpace::new(asize, spec.ashift);
        let pipe = WritePipeline::start(Arc::clone(&file), space, TXG)?;
        let fs = Fs::new(pipe, TXG, spec.seed)?;
        let root = OpenDir { object: ROOT, parent: ROOT, subdirs: 0, names: HashMap::new() };
        Ok(Builder {
            spec: spec.clone(),
            path,
            file,
            fs,
            dirs: vec![root],
            index: HashMap::from([(ROOT, 0)]),
            failed: false,
        })
    }

    /// Adds a file; directories on its path are created as necessary. `content` is called
    /// for each block in order, with the block's offset in the file, and fills the part of
    /// it that is within the file's size.
    ///
    /// # Errors
    /// `Exists`, `NotDir`, `NameTooLong` and `Invalid` for an invalid path, `NoSpace`, and
    /// the image file's.
    pub fn file(
        &mut self,
        path: &str,
        spec: &FileSpec,
        content: &mut dyn FnMut(u64, &mut [u8]),
    ) -> Result<()> {
        spec.check()?;
        let path = path.trim_matches('/');
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        if name.is_empty() {
            return Err(Error::invalid("a file needs a name"));
        }
        check_name(name.as_bytes())?;
        let at = self.make_dirs(parent)?;
        if self.dirs[at].names.contains_key(name.as_bytes()) {
            return Err(Error::new(ErrorKind::Exists, format!("/{path} exists")));
        }
        let object = self.fs.number(DnodeArea::File);
        let entry = DirEntry { object, file_type: FileType::Regular };
        let dir = &mut self.dirs[at];
        dir.names.insert(name.as_bytes().into(), entry.encode());
        let znode = Znode {
            mode: S_IFREG | u64::from(spec.mode & 0o7777),
            size: spec.size,
            uid: spec.uid.into(),
            gid: spec.gid.into(),
            parent: dir.object,
            links: 1,
            mtime: spec.mtime,
            crtime: self.spec.time,
        };
        let done = self.fs.file(object, znode, spec.recordsize, spec.compression, content);
        self.failed |= done.is_err();
        done
    }

    /// Adds a directory, and those on its path; an existing one is unchanged.
    ///
    /// # Errors
    /// `NotDir`, `NameTooLong` and `Invalid` for an invalid path.
    pub fn dir(&mut self, path: &str) -> Result<()> {
        self.make_dirs(path).map(|_| ())
    }

    fn make_dirs(&mut self, path: &str) -> Result<usize> {
        let mut at = 0;
        for (depth, name) in path.split('/').filter(|n| !n.is_empty()).enumerate() {
            if depth >= PATH_DEPTH_MAX {
                return Err(Error::limit("the path is too deep"));
            }
            at = match self.dirs[at].names.get(name.as_bytes()) {
                Some(&entry) => {
                    let object = DirEntry::decode(entry).object;
                    let found = self.index.get(&object).copied();
                    found.ok_or_else(|| {
                        Error::new(ErrorKind::NotDir, format!("{name} in /{path} is a file"))
                    })?
                }
                None => self.make_dir(at, name.as_bytes())?,
            };
        }
        Ok(at)
    }

    fn make_dir(&mut self, parent: usize, name: &[u8]) -> Result<usize> {
        check_name(name)?;
        let object = self.fs.number(DnodeArea::Dir);
        let entry = DirEntry { object, file_type: FileType::Dir };
        let above = &mut self.dirs[parent];
        above.names.insert(name.into(), entry.encode());
        above.subdirs += 1;
        let parent = above.object;
        let at = self.dirs.len();
        self.dirs.push(OpenDir { object, parent, subdirs: 0, names: HashMap::new() });
        self.index.insert(object, at);
        Ok(at)
    }

    /// Writes directories, the pool's own structures and the labels, and waits
    /// until all of it is on stable storage.
    ///
    /// # Errors
    /// `NoSpace`, `Invalid` after an earlier error, and the file's.
    pub fn finish(mut self) -> Result<()> {
        if self.failed {
            return Err(Error::invalid("the image is incomplete: a file could not be written"));
        }
        for dir in std::mem::take(&mut self.dirs) {
            let znode = Znode {
                mode: S_IFDIR | 0o755,
                size: dir.names.len() as u64 + 2,
                uid: 0,
                gid: 0,
                parent: dir.parent,
                links: dir.subdirs + 2,
                mtime: self.spec.time,
                crtime: self.spec.time,
            };
            self.fs.dir(dir.object, znode, &dir.names)?;
        }
        let root_bp = self.fs.finish()?;
        let pool = mos::MosInput {
            spec: &self.spec,
            path: &self.path,
            root_bp,
            totals: self.fs.totals,
            large_blocks: self.fs.large_blocks,
        };
        let written = mos::build(&pool, self.fs.space())?;
        for (offsets, bytes) in &written.blocks {
            for &offset in offsets {
                store::write_at(&self.file, bytes, offset)?;
            }
        }
        // The blocks that an uberblock refers to must be durable before it.
        let sync = |e| Error::io("cannot flush the image", e);
        self.file.sync_all().map_err(sync)?;
        label::write(&self.file, &pool, &written)?;
        self.file.sync_all().map_err(sync)
    }
}
