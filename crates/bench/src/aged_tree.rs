//! Trees of files that are changed and read by path: a file system of the library, or a mounted
//! directory.
//!
//! Paths are relative to the tree's root, with `/` between names and no empty names.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Error, ErrorKind, ObjectId, Result};
use cenote::files::{Caller, FileType as FileKind, New, Rename, Rewrite, WritePosition};
use cenote::layout::{LayoutScore, LayoutWalk};
use cenote::{FileSystem, Io};

/// Maximum depth of directories.
const DEPTH_MAX: usize = 64;
/// Attempts to write before the lack of space is final.
const ATTEMPTS: u32 = 100;
/// Most blocks of a file of which the layout is taken.
const BLOCKS_MAX: u64 = 1 << 24;

/// What a walk calls for each file: path and size.
pub(super) type OnFile<'a, E> = dyn FnMut(&str, u64) -> std::result::Result<(), E> + 'a;

/// A tree of files.
pub(super) trait AgedTree {
    /// Makes a file, and the directories above it, and writes its whole content.
    ///
    /// # Errors
    /// `Exists`; those of writing.
    fn write_new(&self, path: &str, data: &[u8]) -> Result<()>;

    /// Writes at offsets of an existing file.
    ///
    /// # Errors
    /// `NotFound`; those of writing.
    fn overwrite(&self, path: &str, writes: &mut dyn Iterator<Item = (u64, &[u8])>) -> Result<()>;

    /// Writes the blocks of a file again, as `zfs rewrite` does; false if it cannot.
    ///
    /// # Errors
    /// `NotFound`; those of writing.
    fn rewrite_in_place(&self, _path: &str) -> Result<bool> {
        Ok(false)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// `NotFound`; those of writing.
    fn remove(&self, path: &str) -> Result<()>;

    /// Renames a file; one that has the new name is replaced. Makes the directories above it.
    ///
    /// # Errors
    /// `NotFound`; those of writing.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Lists every directory, reads the attributes of every entry, and calls `each` for the
    /// files, in the order of the directories. Returns the number of entries.
    ///
    /// # Errors
    /// Those of reading, and of `each`.
    fn walk(&self, each: &mut OnFile<'_, Error>) -> Result<u64>;

    /// Reads a file from begin to end with reads of the buffer's size, and calls `each` for each
    /// piece. Returns the bytes read.
    ///
    /// # Errors
    /// `NotFound`; those of reading, and of `each`.
    fn read(
        &self,
        path: &str,
        buffer: &mut [u8],
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<u64>;

    /// Waits until everything written is on the devices.
    ///
    /// # Errors
    /// Those of the devices.
    fn sync(&self) -> Result<()>;
}

/// The name and the directory of a path.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Writes a file anew: as `zfs rewrite` does where the tree can, elsewhere into another file that
/// replaces it.
///
/// # Errors
/// Those of reading and writing; then the file is as it was.
pub(super) fn rewrite_file(tree: &dyn AgedTree, path: &str, buffer: &mut [u8]) -> Result<()> {
    if tree.rewrite_in_place(path)? {
        return Ok(());
    }
    let temporary = format!("{path}.rewrite");
    let mut at = 0;
    tree.write_new(&temporary, &[])?;
    let copied = tree.read(path, buffer, &mut |piece| {
        tree.overwrite(&temporary, &mut std::iter::once((at, piece)))?;
        at += piece.len() as u64;
        Ok(())
    });
    copied.and_then(|_| tree.rename(&temporary, path)).inspect_err(|_| {
        // The first error is the one that matters.
        let _left = tree.remove(&temporary);
    })
}

/// A file system of a pool in this process.
pub(super) struct PoolTree {
    fs: Arc<FileSystem>,
    sync: Box<dyn Fn() -> Result<()>>,
}

impl PoolTree {
    /// The tree of a file system; `sync` writes its pool's open txg.
    pub(super) fn new(fs: Arc<FileSystem>, sync: Box<dyn Fn() -> Result<()>>) -> PoolTree {
        PoolTree { fs, sync }
    }

    fn dir(&self, path: &str) -> Result<ObjectId> {
        match self.fs.walk(path.as_bytes(), Io::WAIT) {
            Err(e) if e.kind() == ErrorKind::NotFound && !path.is_empty() => {}
            found => return found,
        }
        let (parent, name) = split(path);
        let parent = self.dir(parent)?;
        let made = self.fs.make(&Caller::root(), parent, name.as_bytes(), &New::dir(0o755))?;
        Ok(made.id)
    }

    /// Repeats a change that found no space: what was freed is available some txgs later.
    fn retry<T>(&self, change: impl Fn() -> Result<T>) -> Result<T> {
        let mut left = ATTEMPTS;
        loop {
            match change() {
                Err(e) if e.kind() == ErrorKind::NoSpace && left > 0 => {
                    left -= 1;
                    (self.sync)()?;
                }
                done => return done,
            }
        }
    }

    fn write_at(&self, id: ObjectId, mut at: u64, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            let position = WritePosition::Offset(at);
            let done = self.retry(|| self.fs.write(&Caller::root(), id, position, data))?;
            let bytes = usize::try_from(done.bytes).unwrap_or(data.len());
            data = data.get(bytes..).unwrap_or_default();
            at += done.bytes;
        }
        Ok(())
    }

    /// The layout of all files, each for itself, and of the walk over the whole tree, as on disk.
    ///
    /// # Errors
    /// Those of reading.
    pub(super) fn layout(&self) -> Result<(LayoutScore, LayoutScore)> {
        let (mut files, mut tree) = (LayoutScore::default(), LayoutWalk::default());
        self.walk_ids(&mut |_, _, id| {
            let object = self.fs.objset().object(id, Io::WAIT)?;
            let mut file = LayoutWalk::default();
            file.object(&object, BLOCKS_MAX, Io::WAIT)?;
            files.merge(&file.score());
            tree.object(&object, BLOCKS_MAX, Io::WAIT).map(drop)
        })?;
        Ok((files, tree.score()))
    }

    fn walk_ids(&self, each: &mut dyn FnMut(&str, u64, ObjectId) -> Result<()>) -> Result<u64> {
        let mut entries = 0;
        let mut todo = vec![(String::new(), self.fs.root(), 0)];
        while let Some((path, dir, depth)) = todo.pop() {
            let mut cookie = 0;
            loop {
                let page = self.fs.readdir(dir, cookie, Io::WAIT)?;
                for entry in &page.entries {
                    if matches!(entry.name.as_slice(), b"." | b"..") {
                        continue;
                    }
                    let attrs = self.fs.attrs(entry.id, Io::WAIT)?;
                    entries += 1;
                    let Ok(name) = std::str::from_utf8(&entry.name) else { continue };
                    let below =
                        if path.is_empty() { name.into() } else { format!("{path}/{name}") };
                    match attrs.kind {
                        FileKind::Dir if depth < DEPTH_MAX => {
                            todo.push((below, entry.id, depth + 1));
                        }
                        FileKind::Regular => each(&below, attrs.size, entry.id)?,
                        _ => {}
                    }
                }
                match page.next {
                    Some(next) => cookie = next,
                    None => break,
                }
            }
        }
        Ok(entries)
    }
}

impl AgedTree for PoolTree {
    fn write_new(&self, path: &str, data: &[u8]) -> Result<()> {
        let (dir, name) = split(path);
        let dir = self.retry(|| self.dir(dir))?;
        let make = || self.fs.make(&Caller::root(), dir, name.as_bytes(), &New::file(0o644));
        let id = self.retry(make)?.id;
        self.write_at(id, 0, data)
    }

    fn overwrite(&self, path: &str, writes: &mut dyn Iterator<Item = (u64, &[u8])>) -> Result<()> {
        let id = self.fs.walk(path.as_bytes(), Io::WAIT)?;
        for (at, data) in writes {
            self.write_at(id, at, data)?;
        }
        Ok(())
    }

    fn rewrite_in_place(&self, path: &str) -> Result<bool> {
        let id = self.fs.walk(path.as_bytes(), Io::WAIT)?;
        let mut next = Some(0);
        while let Some(at) = next {
            let piece = || self.fs.rewrite(id, at..u64::MAX, Rewrite::default());
            next = self.retry(piece)?.next;
        }
        Ok(true)
    }

    fn remove(&self, path: &str) -> Result<()> {
        let (dir, name) = split(path);
        let dir = self.fs.walk(dir.as_bytes(), Io::WAIT)?;
        self.fs.unlink(&Caller::root(), dir, name.as_bytes()).map(drop)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let ((old, from), (new, to)) = (split(from), split(to));
        let old = self.fs.walk(old.as_bytes(), Io::WAIT)?;
        let new = self.dir(new)?;
        let (from, to) = ((old, from.as_bytes()), (new, to.as_bytes()));
        self.retry(|| self.fs.rename(&Caller::root(), from, to, Rename::Plain))
    }

    fn walk(&self, each: &mut OnFile<'_, Error>) -> Result<u64> {
        self.walk_ids(&mut |path, size, _| each(path, size))
    }

    fn read(
        &self,
        path: &str,
        buffer: &mut [u8],
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<u64> {
        let id = self.fs.walk(path.as_bytes(), Io::WAIT)?;
        let file = self.fs.open_file(id, Io::WAIT)?;
        let mut at = 0;
        loop {
            match file.read_at(at, buffer, Io::WAIT)? {
                0 => return Ok(at),
                n => {
                    each(&buffer[..n])?;
                    at += n as u64;
                }
            }
        }
    }

    fn sync(&self) -> Result<()> {
        (self.sync)()
    }
}

/// A directory of a mounted file system.
pub(super) struct HostTree {
    root: PathBuf,
}

fn failed(what: &str, path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |e| Error::io(format!("cannot {what}"), e).on_path(path.to_string_lossy())
}

impl HostTree {
    /// The tree of an existing directory.
    pub(super) fn new(root: PathBuf) -> HostTree {
        HostTree { root }
    }

    /// The path of a file, with the directories above it made.
    fn with_parents(&self, path: &str) -> Result<PathBuf> {
        let full = self.root.join(path);
        let dir = self.root.join(split(path).0);
        std::fs::create_dir_all(&dir).map_err(failed("make a directory", &dir))?;
        Ok(full)
    }
}

impl AgedTree for HostTree {
    fn write_new(&self, path: &str, data: &[u8]) -> Result<()> {
        let path = self.with_parents(path)?;
        let file = File::create_new(&path).map_err(failed("make", &path))?;
        file.write_all_at(data, 0).map_err(failed("write", &path))
    }

    fn overwrite(&self, path: &str, writes: &mut dyn Iterator<Item = (u64, &[u8])>) -> Result<()> {
        let path = self.root.join(path);
        let file = OpenOptions::new().write(true).open(&path).map_err(failed("open", &path))?;
        for (at, data) in writes {
            file.write_all_at(data, at).map_err(failed("write", &path))?;
        }
        Ok(())
    }

    fn remove(&self, path: &str) -> Result<()> {
        let path = self.root.join(path);
        std::fs::remove_file(&path).map_err(failed("remove", &path))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.root.join(from), self.with_parents(to)?);
        std::fs::rename(&from, &to).map_err(failed("rename", &from))
    }

    fn walk(&self, each: &mut OnFile<'_, Error>) -> Result<u64> {
        let mut entries = 0;
        let mut todo = vec![(String::new(), 0)];
        while let Some((path, depth)) = todo.pop() {
            let dir = self.root.join(&path);
            for entry in std::fs::read_dir(&dir).map_err(failed("list", &dir))? {
                let entry = entry.map_err(failed("list", &dir))?;
                let attrs = entry.metadata().map_err(failed("look at", &dir))?;
                entries += 1;
                let name = entry.file_name();
                let Some(name) = name.to_str() else { continue };
                let below = if path.is_empty() { name.into() } else { format!("{path}/{name}") };
                if attrs.is_dir() && depth < DEPTH_MAX {
                    todo.push((below, depth + 1));
                } else if attrs.is_file() {
                    each(&below, attrs.len())?;
                }
            }
        }
        Ok(entries)
    }

    fn read(
        &self,
        path: &str,
        buffer: &mut [u8],
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<u64> {
        let path = self.root.join(path);
        let mut file = File::open(&path).map_err(failed("open", &path))?;
        let mut all = 0;
        loop {
            match file.read(buffer).map_err(failed("read", &path))? {
                0 => return Ok(all),
                n => {
                    each(&buffer[..n])?;
                    all += n as u64;
                }
            }
        }
    }

    fn sync(&self) -> Result<()> {
        let dir = File::open(&self.root).map_err(failed("open", &self.root))?;
        rustix::fs::syncfs(&dir).map_err(|e| failed("sync", &self.root)(e.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(tree: &dyn AgedTree, path: &str) -> Vec<u8> {
        let mut out = Vec::new();
        let mut add = |piece: &[u8]| {
            out.extend_from_slice(piece);
            Ok(())
        };
        tree.read(path, &mut [0; 3], &mut add).unwrap();
        out
    }

    #[test]
    fn a_directory_is_changed_by_path() {
        let scratch = testkit::Scratch::new("aged-tree");
        let tree = HostTree::new(scratch.path().to_owned());
        tree.write_new("a/b/c", b"0123456789").unwrap();
        assert!(tree.write_new("a/b/c", b"").is_err());
        tree.overwrite("a/b/c", &mut [(2, &b"xy"[..]), (9, b"z")].into_iter()).unwrap();
        rewrite_file(&tree, "a/b/c", &mut [0; 4]).unwrap();
        assert_eq!(content(&tree, "a/b/c"), b"01xy45678z");
        tree.write_new("d", b"one").unwrap();
        tree.rename("d", "e/f").unwrap();
        tree.sync().unwrap();
        let mut seen = Vec::new();
        let mut note = |path: &str, size| {
            seen.push((path.to_owned(), size));
            Ok(())
        };
        assert_eq!(tree.walk(&mut note).unwrap(), 5);
        seen.sort();
        assert_eq!(seen, [("a/b/c".to_owned(), 10), ("e/f".to_owned(), 3)]);
        tree.remove("e/f").unwrap();
        assert!(tree.remove("e/f").is_err());
        // A rewrite that fails leaves nothing behind.
        assert!(rewrite_file(&tree, "missing", &mut [0; 4]).is_err());
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 2);
    }
}
