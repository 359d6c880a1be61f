//! Directories: looking up a name, listing, walking a path.
//!
//! # Theory
//! A cookie is a position in the directory's ZAP, in the order of hashes (chapter 06 §7.4).
//! It stays valid while entries are added and removed, and needs no state between calls. 0
//! is `.`, 1 is `..`, 2 is left for `.zfs`.

use std::sync::atomic::Ordering::SeqCst;

use base::limits::PATH_DEPTH_MAX;
use base::{Error, ErrorKind, ObjectId, Result};
use dmu::zfetch::{clock, prefetch_leaves};
use dmu::{Io, Match, Object, Zap, ZapEntry};
use ondisk::objtype::ObjType;
use ondisk::zap::{COOKIE_END, Cursor};
use ondisk::znode::{self, FileType};

use crate::fs::FileSystem;
use crate::master::CaseSensitivity;

const COOKIE_DOT: u64 = 0;
const COOKIE_DOTDOT: u64 = 1;
/// Behind `..`: cookies from here up to [`COOKIE_RESERVED_MAX`] mean the ZAP's start.
const COOKIE_FIRST: u64 = 2;
const COOKIE_RESERVED_MAX: u64 = 3;
/// Empty leaves passed in one call; a sane directory merges them.
const EMPTY_STEPS_MAX: usize = 1 << 16;
/// Entries whose dnodes are prefetched for look-ups in order.
const AHEAD_OF_LOOKUPS: usize = 256;

/// The object that a name refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupResult {
    /// The object.
    pub id: ObjectId,
    /// Its kind as the entry has it; unknown in version 1.
    pub kind: FileType,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name, as bytes.
    pub name: Vec<u8>,
    /// The object.
    pub id: ObjectId,
    /// Its kind; unknown in version 1.
    pub kind: FileType,
    /// Cookie to continue behind this entry.
    pub next_cookie: u64,
}

/// Some entries of a directory, in the order of cookies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirPage {
    /// The entries.
    pub entries: Vec<DirEntry>,
    /// Cookie to continue; `None` at the end.
    pub next: Option<u64>,
}

impl DirPage {
    /// Whether this is the last page.
    pub fn is_last(&self) -> bool {
        self.next.is_none()
    }
}

/// The object and kind in a directory's value (chapter 06 §7.1).
fn decode(value: u64) -> Option<LookupResult> {
    let entry = znode::DirEntry::decode(value);
    (entry.object != 0)
        .then_some(LookupResult { id: ObjectId(entry.object), kind: entry.file_type })
}

/// Whether a name is valid in a directory. A forged one must not mislead a program that
/// copies the tree.
fn is_plain_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&0) && !name.contains(&b'/')
}

pub(crate) fn found(entry: &ZapEntry) -> Result<LookupResult> {
    let value = entry.value.first_u64().and_then(decode);
    value.ok_or_else(|| Error::corrupt("directory entry without an object"))
}

impl FileSystem {
    /// The object, if it is a directory.
    pub(crate) fn directory(&self, id: ObjectId, io: Io) -> Result<Object> {
        let object = self.object(id, io)?;
        match object.object_type() {
            ObjType::DIRECTORY_CONTENTS => Ok(object),
            ObjType::PLAIN_FILE_CONTENTS => {
                Err(Error::new(ErrorKind::NotDir, "not a directory").in_object(id))
            }
            _ => Err(Error::not_found("the object is not a file").in_object(id)),
        }
    }

    /// The object that `name` refers to in `dir`. `.` and `..` are handled; the root is its
    /// own parent. Names compare as the file system's properties define.
    ///
    /// # Errors
    /// `NotFound`; `NotDir`; `NameTooLong`; `Invalid` for an empty name or one with NUL or
    /// `/`; `NotUnicode` where the file system demands UTF-8; those of reading.
    pub fn lookup(&self, dir: ObjectId, name: &[u8], io: Io) -> Result<LookupResult> {
        self.read_consistent(dir, io, || self.lookup_now(dir, name, io))
    }

    fn lookup_now(&self, dir: ObjectId, name: &[u8], io: Io) -> Result<LookupResult> {
        let object = self.directory(dir, io)?;
        match name {
            b"." => return Ok(LookupResult { id: dir, kind: FileType::Dir }),
            b".." => {
                let id = self.attrs_of(&object, io)?.parent;
                return Ok(LookupResult { id, kind: FileType::Dir });
            }
            _ => {}
        }
        self.check_name(name)?;
        match self.find_in(object, name, io)? {
            Some(found) => Ok(found),
            None => Err(Error::not_found("no such file").in_object(dir)),
        }
    }

    /// The entry in an object that is known to be a directory.
    pub(crate) fn find_in(&self, dir: Object, name: &[u8], io: Io) -> Result<Option<LookupResult>> {
        let id = dir.id();
        let zap = Zap::open(dir, io)?;
        let mixed = self.props().case == CaseSensitivity::Mixed;
        let how = Match::of_directory(zap.normflags()?, mixed, false);
        let entry = zap.lookup_as(name, how)?;
        if let Some(entry) = &entry {
            // An error of this prefetch is ignored: the later read reports it.
            let _ = self.name_found(&zap, entry);
        }
        entry.as_ref().map(found).transpose().map_err(|e| e.in_object(id))
    }

    /// The stored entry that a name matches.
    pub(crate) fn entry_in(&self, dir: Object, name: &[u8], io: Io) -> Result<Option<ZapEntry>> {
        let zap = Zap::open(dir, io)?;
        let mixed = self.props().case == CaseSensitivity::Mixed;
        zap.lookup_as(name, Match::of_directory(zap.normflags()?, mixed, self.ignores_case(mixed)))
    }

    /// Whether a record of a case-insensitive call is being replayed, in a file system
    /// where the case matters.
    fn ignores_case(&self, mixed: bool) -> bool {
        mixed && self.rw_part().is_some_and(|rw| rw.ignores_case.load(SeqCst))
    }

    pub(crate) fn check_name(&self, name: &[u8]) -> Result<()> {
        if name.len() > self.name_max() {
            return Err(Error::new(ErrorKind::NameTooLong, "the name is too long"));
        }
        if !is_plain_name(name) {
            return Err(Error::invalid("a name is not empty and holds no NUL or slash"));
        }
        if self.props().utf8only && std::str::from_utf8(name).is_err() {
            let text = "names in this file system are UTF-8";
            return Err(Error::new(ErrorKind::NotUnicode, text));
        }
        Ok(())
    }

    /// The entries from `cookie` on (0 = from the start): about one ZAP leaf of them, so
    /// that a directory of any size can be listed. An empty page that is not the last is
    /// possible.
    ///
    /// # Errors
    /// `NotDir`, `Corrupt`, those of reading.
    pub fn readdir(&self, dir: ObjectId, cookie: u64, io: Io) -> Result<DirPage> {
        self.read_consistent(dir, io, || self.readdir_now(dir, cookie, io))
    }

    fn readdir_now(&self, dir: ObjectId, cookie: u64, io: Io) -> Result<DirPage> {
        let object = self.directory(dir, io)?;
        let mut page = DirPage::default();
        let dot = |name: &[u8], id, next_cookie| DirEntry {
            name: name.to_vec(),
            id,
            kind: FileType::Dir,
            next_cookie,
        };
        if cookie == COOKIE_DOT {
            page.entries.push(dot(b".", dir, COOKIE_DOTDOT));
        }
        if cookie <= COOKIE_DOTDOT {
            let parent = self.attrs_of(&object, io)?.parent;
            page.entries.push(dot(b"..", parent, COOKIE_FIRST));
        }
        let zap = Zap::open(object, io)?;
        let bits = zap.hash_bits()?;
        let from = match cookie {
            0..=COOKIE_RESERVED_MAX => Some(Cursor::default()),
            _ => Cursor::from_cookie(cookie, bits),
        };
        let Some(from) = from else { return Ok(page) };
        page.next = list(&zap, from, bits, &mut page.entries).map_err(|e| e.in_object(dir))?;
        let next = page.next.and_then(|cookie| Cursor::from_cookie(cookie, bits));
        self.page_listed(&zap, cookie, &page, next);
        Ok(page)
    }

    /// Prefetches after a page: its entries' dnodes, and the next leaves.
    fn page_listed(&self, zap: &Zap, cookie: u64, page: &DirPage, next: Option<Cursor>) {
        if !self.zfetch().metadata() {
            return;
        }
        let dir = zap.object().id();
        if self.walks().page(clock(), dir.0, cookie) {
            self.objset().prefetch_dnodes(page.entries.iter().map(|e| e.id));
        }
        if let Some(next) = next {
            prefetch_leaves(self.walks(), zap, next.hash);
        }
    }

    /// Prefetches for look-ups that follow the order of a listing.
    fn name_found(&self, zap: &Zap, entry: &ZapEntry) -> Result<()> {
        let dir = zap.object().id().0;
        if !self.zfetch().metadata()
            || !self.walks().looked_up(clock(), dir, entry.hash, zap.leaf_span()?)
        {
            return Ok(());
        }
        let here = Cursor { hash: entry.hash, cd: entry.cd };
        let (batch, next) = zap.list_from(here, AHEAD_OF_LOOKUPS)?;
        self.walks().warmed(clock(), dir, next.map_or(u64::MAX, |n| n.hash));
        let ids = batch.iter().filter_map(|e| found(e).ok()).map(|f| f.id);
        self.objset().prefetch_dnodes(ids);
        if let Some(next) = next {
            prefetch_leaves(self.walks(), zap, next.hash);
        }
        Ok(())
    }

    /// Resolves a path of names from the root. Symbolic links are not followed:
    /// one that is not the last component is `NotDir`.
    ///
    /// # Errors
    /// Those of [`FileSystem::lookup`]; `NameTooLong` for more than
    /// [`PATH_DEPTH_MAX`] components.
    pub fn walk(&self, path: &[u8], io: Io) -> Result<ObjectId> {
        let mut at = self.root();
        for (depth, name) in path.split(|b| *b == b'/').filter(|n| !n.is_empty()).enumerate() {
            if depth >= PATH_DEPTH_MAX {
                return Err(Error::new(ErrorKind::NameTooLong, "the path is too deep"));
            }
            at = self.lookup(at, name, io)?.id;
        }
        Ok(at)
    }
}

/// Appends entries from `from` on; returns the cookie to continue with.
fn list(zap: &Zap, from: Cursor, bits: u32, out: &mut Vec<DirEntry>) -> Result<Option<u64>> {
    let mut cursor = from;
    for _ in 0..EMPTY_STEPS_MAX {
        let (batch, next) = zap.list_from(cursor, usize::MAX)?;
        out.reserve(batch.len());
        let any = !batch.is_empty();
        for e in batch {
            if !is_plain_name(&e.name) {
                return Err(Error::corrupt("directory entry with an impossible name"));
            }
            let LookupResult { id, kind } = found(&e)?;
            let next_cookie =
                Cursor::after(e.hash, e.cd, bits).map_or(COOKIE_END, |c| c.cookie(bits));
            out.push(DirEntry { name: e.name, id, kind, next_cookie });
        }
        let Some(next) = next else { return Ok(None) };
        let cookie = next.cookie(bits);
        // A cookie has fewer bits than a cursor, so it is checked that it leads forward.
        let resumed = Cursor::from_cookie(cookie, bits).map(|c| (c.hash, c.cd));
        if resumed.is_some_and(|c| c <= (from.hash, from.cd)) {
            return Err(Error::corrupt("directory whose positions do not ascend"));
        }
        // A reserved cookie would restart the listing.
        if any && cookie > COOKIE_RESERVED_MAX {
            return Ok(Some(cookie));
        }
        cursor = next;
    }
    Err(Error::corrupt("directory of empty leaves"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_specification() {
        let file = decode(0x8000_0000_0000_0080).unwrap();
        assert_eq!((file.id, file.kind), (ObjectId(128), FileType::Regular));
        let dir = decode(0x4000_0000_0000_0002).unwrap();
        assert_eq!((dir.id, dir.kind), (ObjectId(2), FileType::Dir));
        assert_eq!(decode(7).unwrap().kind, FileType::Unknown);
        assert_eq!(decode(0x8fff_0000_0000_0001).unwrap().id, ObjectId(1));
        assert_eq!(decode(0x8000_0000_0000_0000), None);
    }

    #[test]
    fn names_that_no_directory_has() {
        for name in ["", ".", "..", "a/b", "/", "a\0"] {
            assert!(!is_plain_name(name.as_bytes()), "{name:?}");
        }
        assert!(is_plain_name(b"...") && is_plain_name(b"a\n") && is_plain_name(&[0xff; 255]));
    }
}
