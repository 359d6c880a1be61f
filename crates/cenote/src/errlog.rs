//! Data errors of a pool by dataset and file, for `zpool status -v` (chapter 04 §18).
//!
//! # Theory
//! There are two sources: the error log that the pool stores, which a scrub of OpenZFS
//! wrote, and the blocks that could not be read since the import ([`zio::ErrorLog`]). An
//! entry names a block of one object set. The damage is in every snapshot with the same
//! block, so the head and all its snapshots are searched for the block of that birth. If
//! the file was overwritten or destroyed, none of them has it. The entry is then dropped.
//!
//! # Invariants
//! * The list is bounded: by the entries of the logs, and by [`SNAPSHOTS_MAX`].
//! * If data cannot be read while the list is made, the entry is kept, by object id.
//! * A suspended pool is not read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::limits::PATH_DEPTH_MAX;
use base::{Error, ErrorKind, ObjectId, Result};
use dmu::{Access, Io, Objset};
use dsl::{DslDataset, DslDir};
use ondisk::dnode::OBJECT_SHIFT_MAX;
use zio::{ERRORS_MAX, ErrorEntry};
use zpl::FileSystem;

use crate::dataset::{Dataset, DatasetKind};
use crate::pool::Pool;

/// Snapshots of one dataset that are searched for a damaged block.
const SNAPSHOTS_MAX: usize = 256;
/// Entries of a directory that are searched for a file's name.
const NAMES_MAX: usize = 1 << 17;
/// Reads of the stored logs while txgs replace them.
const READ_ATTEMPTS: usize = 8;
/// Reads that make no entries of their own in the error log.
const LOOK: Io = Io { access: Access::Prescient, ..Io::WAIT };

/// A permanent error of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataError {
    /// The file system, volume or snapshot; `None` for the pool's own metadata, and for
    /// datasets without a known name.
    pub dataset: Option<String>,
    /// It is a file system, not a snapshot: it may be mounted.
    pub mountable: bool,
    /// The object set: the dataset's object, or 0 for the pool's own metadata.
    pub objset: u64,
    /// The object.
    pub object: u64,
    /// Path of the file from the root of its file system, with a leading `/`; `None` if the
    /// object is no file or its path is unknown.
    pub path: Option<Vec<u8>>,
}

/// An entry and the datasets that have its block.
struct Located {
    holders: Vec<Dataset>,
    entry: ErrorEntry,
}

impl Pool {
    /// All known permanent errors: the stored error log, and errors of readers since the
    /// import. Paths are looked up.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub fn data_errors(&self) -> Result<Vec<DataError>> {
        let mut files: BTreeMap<u64, Option<Arc<FileSystem>>> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let mut out = Vec::new();
        for Located { holders, entry } in self.located()? {
            if holders.is_empty() && seen.insert((entry.objset, entry.object)) {
                let (objset, object) = (entry.objset, entry.object);
                out.push(DataError { dataset: None, mountable: false, objset, object, path: None });
            }
            for dataset in holders {
                let (objset, object) = (dataset.object(), entry.object);
                if out.len() >= ERRORS_MAX || !seen.insert((objset, object)) {
                    continue;
                }
                let fs = files.entry(objset).or_insert_with(|| dataset.read_fs().ok());
                let path = fs.as_ref().and_then(|fs| path_of(fs, ObjectId(object)).ok().flatten());
                let mountable = dataset.kind() == DatasetKind::Filesystem;
                let dataset = Some(dataset.name().to_owned());
                out.push(DataError { dataset, mountable, objset, object, path });
            }
        }
        Ok(out)
    }

    /// The entries of all error logs, in memory and stored.
    pub(crate) fn known_errors(&self) -> Result<Vec<ErrorEntry>> {
        let mut all = self.spa().zio().errors().entries();
        all.extend(self.stored_errors()?);
        Ok(all)
    }

    /// The number of objects with known permanent errors.
    pub(crate) fn error_count(&self) -> Result<u64> {
        let mut seen = BTreeSet::new();
        for Located { holders, entry } in self.located()? {
            if holders.is_empty() {
                seen.insert((entry.objset, entry.object));
            }
            seen.extend(holders.iter().map(|d| (d.object(), entry.object)));
        }
        Ok(seen.len() as u64)
    }

    /// The entries of both logs that still apply.
    fn located(&self) -> Result<Vec<Located>> {
        let log = self.spa().zio().errors();
        let mut out = Vec::new();
        if self.is_suspended() {
            let entries = log.entries().into_iter();
            return Ok(entries.map(|entry| Located { holders: Vec::new(), entry }).collect());
        }
        let mut open = BTreeMap::new();
        for entry in log.entries() {
            match self.locate(&entry, &mut open) {
                Some(holders) => out.push(Located { holders, entry }),
                None => log.remove(&entry),
            }
        }
        for entry in self.stored_errors()? {
            if let Some(holders) = self.locate(&entry, &mut open) {
                out.push(Located { holders, entry });
            }
        }
        Ok(out)
    }

    /// The datasets with the block of an entry: none if that is unknown, or the entry is
    /// the MOS's. `None` if no dataset has it any more.
    fn locate(
        &self,
        entry: &ErrorEntry,
        open: &mut BTreeMap<u64, Option<Arc<Objset>>>,
    ) -> Option<Vec<Dataset>> {
        if entry.objset == 0 {
            return holds(self.spa().mos().objset(), entry).then(Vec::new);
        }
        let candidates = match self.candidates(entry) {
            Ok(candidates) => candidates,
            // Destroyed since.
            Err(e) if e.kind() == ErrorKind::NotFound => return None,
            Err(_) => return Some(Vec::new()),
        };
        let mut has = |dataset: &Dataset| {
            let os = open.entry(dataset.object()).or_insert_with(|| dataset.objset().ok());
            os.as_ref().is_none_or(|os| holds(os, entry))
        };
        let holders: Vec<Dataset> = candidates.into_iter().filter(|d| has(d)).collect();
        (!holders.is_empty()).then_some(holders)
    }

    /// The head of an entry, and its snapshots.
    fn candidates(&self, entry: &ErrorEntry) -> Result<Vec<Dataset>> {
        let no_dataset = || Error::not_found("no such dataset");
        let mos = self.spa().mos();
        let phys = match DslDataset::read_phys(mos, entry.objset) {
            // The object id may have been reused for something else.
            Err(e) if e.kind() == ErrorKind::Corrupt => return Err(no_dataset()),
            other => other?,
        };
        let name = DslDir::name_of(mos, phys.dir_obj, self.name())?.ok_or_else(no_dataset)?;
        let head = self.dataset(&name)?;
        let mut all = head.snapshots()?;
        all.retain(|s| s.createtxg() >= entry.birth);
        all.truncate(SNAPSHOTS_MAX);
        all.insert(0, head);
        if entry.birth == 0 {
            all.retain(|d| d.object() == entry.objset);
        }
        Ok(all)
    }

    /// The error logs that the pool stores.
    fn stored_errors(&self) -> Result<Vec<ErrorEntry>> {
        for _ in 1..READ_ATTEMPTS {
            match self.read_stored_errors() {
                // A txg that replaces a log frees its objects while they are read.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                other => return other,
            }
        }
        self.read_stored_errors()
    }

    fn read_stored_errors(&self) -> Result<Vec<ErrorEntry>> {
        let mos = self.spa().mos();
        let by_head = self.core.features()?.is_active("com.delphix:head_errlog");
        let mut out = Vec::new();
        for log in ["errlog_last", "errlog_scrub"] {
            let top = mos.zap_entries(mos.lookup(log)?.unwrap_or(0))?;
            if !by_head {
                out.extend(top.iter().filter_map(|e| parse_plain(&e.name)));
                continue;
            }
            for head in top {
                let Some(objset) = numbers::<1>(&head.name).map(|[n]| n) else { continue };
                let Some(zap) = head.value.as_u64() else { continue };
                let entries = mos.zap_entries(zap)?;
                out.extend(entries.iter().filter_map(|e| parse_by_head(objset, &e.name)));
            }
        }
        out.truncate(ERRORS_MAX);
        Ok(out)
    }
}

/// Hexadecimal numbers with colons between them.
fn numbers<const N: usize>(name: &[u8]) -> Option<[u64; N]> {
    let text = std::str::from_utf8(name).ok()?;
    let words: Option<Vec<u64>> =
        text.split(':').map(|w| u64::from_str_radix(w, 16).ok()).collect();
    words?.try_into().ok()
}

fn parse_plain(name: &[u8]) -> Option<ErrorEntry> {
    let [objset, object, level, blkid] = numbers(name)?;
    let level = u8::try_from(level).ok()?;
    Some(ErrorEntry { objset, object, level, blkid, birth: 0 })
}

fn parse_by_head(objset: u64, name: &[u8]) -> Option<ErrorEntry> {
    let [object, level, blkid, birth] = numbers(name)?;
    let level = u8::try_from(level).ok()?;
    Some(ErrorEntry { objset, object, level, blkid, birth })
}

/// Whether an object set still has the block of an entry; true if it cannot be read.
fn holds(os: &Arc<Objset>, entry: &ErrorEntry) -> bool {
    let object = match entry.object {
        0 => Ok(os.meta_object()),
        id if id >> OBJECT_SHIFT_MAX != 0 => {
            os.special(id as i64).ok_or_else(|| Error::not_found("no such object"))
        }
        id => os.object(ObjectId(id), LOOK),
    };
    match object.and_then(|o| o.block_pointer(entry.level, entry.blkid, LOOK)) {
        Ok(bp) if bp.is_hole() => false,
        Ok(bp) => entry.birth == 0 || bp.allocation_birth().0 == entry.birth,
        Err(e) => e.kind() != ErrorKind::NotFound,
    }
}

/// The path of a file; `None` if it has none.
fn path_of(fs: &FileSystem, id: ObjectId) -> Result<Option<Vec<u8>>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut at = id;
    while at != fs.root() {
        if names.len() >= PATH_DEPTH_MAX {
            return Ok(None);
        }
        let parent = fs.attrs(at, LOOK)?.parent;
        let Some(name) = name_in(fs, parent, at)? else { return Ok(None) };
        names.push(name);
        at = parent;
    }
    let mut path = Vec::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    Ok(Some(if path.is_empty() { b"/".to_vec() } else { path }))
}

fn name_in(fs: &FileSystem, dir: ObjectId, id: ObjectId) -> Result<Option<Vec<u8>>> {
    let (mut cookie, mut left) = (0, NAMES_MAX);
    loop {
        let page = fs.readdir(dir, cookie, LOOK)?;
        let plain = |e: &&zpl::DirEntry| !matches!(e.name.as_slice(), b"." | b"..");
        if let Some(entry) = page.entries.iter().filter(plain).find(|e| e.id == id) {
            return Ok(Some(entry.name.clone()));
        }
        left = left.saturating_sub(page.entries.len().max(1));
        match page.next {
            Some(next) if left > 0 => cookie = next,
            _ => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_stored_entries() {
        let entry = |birth| ErrorEntry { objset: 0x36, object: 0x1f, level: 1, blkid: 10, birth };
        assert_eq!(parse_plain(b"36:1f:1:a"), Some(entry(0)));
        assert_eq!(parse_by_head(0x36, b"1f:1:a:9"), Some(entry(9)));
        for odd in [&b"36:1f:1"[..], b"36:1f:1:a:9", b"", b"x:1:2:3", b"1:2:100:3", b"\xff"] {
            assert_eq!(parse_plain(odd), None);
        }
    }
}
