//! `cp`: out of a pool into the running system, as faithfully as that allows:
//! modes, owners (as root), times with nanoseconds, extended attributes,
//! symbolic links, devices (as root), hard links, holes.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, ObjectId, Result};
use cenote::files::{Attrs, FileType as FileKind, Time};
use cenote::{FileSystem, Io};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use rustix::process::geteuid;
use ui::progress::Progress;

use super::cat::{Bytes, FileBytes, Piece, stream};
use super::{DEPTH_MAX, Operand, OperandTarget, entries, is_dir, too_deep};

/// `cp SOURCE TARGET`; false if something could not be copied.
pub(super) fn cp(source: &Operand, target: &Path, recursive: bool, many: bool) -> Result<bool> {
    if target.as_os_str().is_empty() {
        return Err(Error::invalid("missing target"));
    }
    let into = std::fs::metadata(target).is_ok_and(|m| m.is_dir());
    if many && !into {
        return Err(Error::new(ErrorKind::NotDir, "several sources need a directory as target"));
    }
    let to = if into { target.join(OsStr::from_bytes(&source.name)) } else { target.to_owned() };
    match &source.content {
        OperandTarget::Volume(volume) => {
            let mut copier = Copier::new(None);
            copier.bytes(&**volume, &to, 0o600)?;
            Ok(copier.fine)
        }
        OperandTarget::File(fs, id) => {
            let attrs = fs.attrs(*id, Io::WAIT)?;
            if is_dir(&attrs) && !recursive {
                return Err(Error::new(ErrorKind::IsDir, "is a directory: use -r"));
            }
            let mut copier = Copier::new(Some(fs));
            copier.tree(&attrs, &to)?;
            Ok(copier.fine)
        }
    }
}

struct Copier<'a> {
    fs: Option<&'a FileSystem>,
    /// The first copy of each file with several names.
    links: HashMap<ObjectId, PathBuf>,
    root: bool,
    fine: bool,
}

fn io(doing: &str, path: &Path, e: impl Into<std::io::Error>) -> Error {
    Error::io(doing, e.into()).on_path(path.display().to_string())
}

fn timespec(t: Time) -> Timespec {
    let nsec = t.nanoseconds.min(999_999_999);
    Timespec { tv_sec: t.seconds, tv_nsec: i64::try_from(nsec).unwrap_or(0) }
}

impl<'a> Copier<'a> {
    fn new(fs: Option<&'a FileSystem>) -> Copier<'a> {
        Copier { fs, links: HashMap::new(), root: geteuid().is_root(), fine: true }
    }

    /// Copies a file, or a directory with everything below it. A directory's attributes are set
    /// when its content is complete, because its own mode may forbid writing, and writing
    /// changes its times.
    fn tree(&mut self, attrs: &Attrs, to: &Path) -> Result<()> {
        let fs = self.fs.ok_or_else(|| Error::bug("a tree without a file system"))?;
        if !is_dir(attrs) {
            return self.one(fs, attrs, to);
        }
        let mut dirs: Vec<(Attrs, PathBuf)> = Vec::new();
        let mut todo = vec![(*attrs, to.to_owned(), 0)];
        while let Some((attrs, to, depth)) = todo.pop() {
            match std::fs::create_dir(&to) {
                Ok(()) => dirs.push((attrs, to.clone())),
                // Copies into an existing directory, but never through a link.
                Err(_) if std::fs::symlink_metadata(&to).is_ok_and(|m| m.is_dir()) => {
                    dirs.push((attrs, to.clone()));
                }
                Err(e) => return Err(io("cannot make a directory", &to, e)),
            }
            for (name, id) in entries(fs, attrs.id)? {
                let below = to.join(OsStr::from_bytes(&name));
                let done = fs.attrs(id, Io::WAIT).and_then(|a| {
                    if !is_dir(&a) {
                        return self.one(fs, &a, &below);
                    }
                    if depth >= DEPTH_MAX {
                        return Err(too_deep());
                    }
                    todo.push((a, below.clone(), depth + 1));
                    Ok(())
                });
                if let Err(e) = done {
                    self.complain(&below, &e);
                }
            }
        }
        for (attrs, to) in dirs.into_iter().rev() {
            self.set_attributes(fs, &attrs, &to);
        }
        Ok(())
    }

    fn complain(&mut self, at: &Path, e: &Error) {
        ui::err(&format!("cp: {}: {e}", at.display()));
        self.fine = false;
    }

    /// Copies one file that is no directory.
    fn one(&mut self, fs: &FileSystem, attrs: &Attrs, to: &Path) -> Result<()> {
        if attrs.nlink > 1 {
            if let Some(first) = self.links.get(&attrs.id) {
                return std::fs::hard_link(first, to).map_err(|e| io("cannot link", to, e));
            }
            self.links.insert(attrs.id, to.to_owned());
        }
        match attrs.kind {
            FileKind::Regular => {
                let bytes = FileBytes { fs, id: attrs.id, size: attrs.size };
                self.bytes(&bytes, to, 0o600)?;
            }
            FileKind::Symlink => {
                let target = fs.readlink(attrs.id, Io::WAIT)?;
                std::os::unix::fs::symlink(OsStr::from_bytes(&target), to)
                    .map_err(|e| io("cannot make a symbolic link", to, e))?;
            }
            FileKind::Fifo | FileKind::Socket | FileKind::Char | FileKind::Block => {
                let device = attrs.device.map_or(0, |d| d.linux_dev());
                let kind = match attrs.kind {
                    FileKind::Fifo => FileType::Fifo,
                    FileKind::Socket => FileType::Socket,
                    FileKind::Char => FileType::CharacterDevice,
                    _ => FileType::BlockDevice,
                };
                rustix::fs::mknodat(CWD, to, kind, Mode::from_raw_mode(0o600), device)
                    .map_err(|e| io("cannot make a special file", to, e))?;
            }
            FileKind::Dir | FileKind::Unknown => {
                return Err(Error::unsupported("a file of unknown kind"));
            }
        }
        self.set_attributes(fs, attrs, to);
        Ok(())
    }

    /// Writes bytes, leaving holes where the source has them.
    fn bytes(&mut self, source: &dyn Bytes, to: &Path, mode: u32) -> Result<()> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .custom_flags(libc::O_NOFOLLOW)
            .open(to)
            .map_err(|e| io("cannot create", to, e))?;
        let label = to.file_name().unwrap_or(to.as_os_str()).to_string_lossy();
        let mut progress = Progress::new(label, Some(source.size()));
        stream(source, &mut |offset, piece| {
            if let Piece::Data(bufs) = piece {
                let mut at = offset;
                for buf in &bufs {
                    write_sparse(&file, buf, at).map_err(|e| io("cannot write", to, e))?;
                    at += buf.len() as u64;
                }
                progress.at(at);
            }
            Ok(())
        })?;
        file.set_len(source.size()).map_err(|e| io("cannot set the length", to, e))
    }

    /// Sets attributes; those that the running system refuses are reported and skipped.
    fn set_attributes(&mut self, fs: &FileSystem, attrs: &Attrs, to: &Path) {
        let link = attrs.kind == FileKind::Symlink;
        if let Err(e) = self.xattrs(fs, attrs, to) {
            self.complain(to, &e);
        }
        if self.root {
            use rustix::fs::{Gid, Uid};
            let (uid, gid) = (Uid::from_raw(attrs.uid), Gid::from_raw(attrs.gid));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            if let Err(e) = rustix::fs::chownat(CWD, to, Some(uid), Some(gid), flags) {
                self.complain(to, &io("cannot set the owner", to, e));
            }
        }
        if !link {
            // After the owner, because chown removes set-id bits. A set-id bit of another user
            // must not become ours.
            let keep = if self.root { 0o7777 } else { 0o1777 };
            let mode = Mode::from_raw_mode(attrs.mode & keep);
            if let Err(e) = rustix::fs::chmodat(CWD, to, mode, AtFlags::empty()) {
                self.complain(to, &io("cannot set the mode", to, e));
            }
        }
        let times = Timestamps {
            last_access: timespec(attrs.atime),
            last_modification: timespec(attrs.mtime),
        };
        if let Err(e) = rustix::fs::utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW) {
            self.complain(to, &io("cannot set the times", to, e));
        }
    }

    fn xattrs(&mut self, fs: &FileSystem, attrs: &Attrs, to: &Path) -> Result<()> {
        if !attrs.may_have_xattrs {
            return Ok(());
        }
        for name in fs.list_xattrs(attrs.id, Io::WAIT)? {
            let Some(value) = fs.get_xattr(attrs.id, &name, Io::WAIT)? else { continue };
            let set = rustix::fs::lsetxattr(to, name.as_slice(), &value, XattrFlags::empty());
            match set {
                Ok(()) => {}
                // Ordinary users may not set these anywhere.
                Err(_) if !self.root && !name.starts_with(b"user.") => {}
                Err(e) => {
                    let name = String::from_utf8_lossy(&name).into_owned();
                    let doing = format!("cannot set the extended attribute {name}");
                    self.complain(to, &io(&doing, to, e));
                }
            }
        }
        Ok(())
    }
}

/// Writes a buffer except for whole pages of zeros: the file was empty before.
fn write_sparse(file: &File, buf: &[u8], offset: u64) -> std::io::Result<()> {
    const PAGE: usize = 64 << 10;
    let mut start = 0;
    let mut at = 0;
    while at < buf.len() {
        let end = (at + PAGE).min(buf.len());
        if codec::compress::is_zero(&buf[at..end]) {
            if start < at {
                file.write_all_at(&buf[start..at], offset + start as u64)?;
            }
            start = end;
        }
        at = end;
    }
    if start < buf.len() {
        file.write_all_at(&buf[start..], offset + start as u64)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Sparse or not, the bytes are the same.
        #[test]
        fn sparse_writes_keep_the_bytes(runs in prop::collection::vec((any::<bool>(), 1usize..200_000), 1..6)) {
            let mut bytes = Vec::new();
            for (data, len) in runs {
                bytes.resize(bytes.len() + len, u8::from(data) * 7);
            }
            let path = std::env::temp_dir().join(format!("cenote-sparse-{}", std::process::id()));
            let file = File::create(&path).unwrap();
            write_sparse(&file, &bytes, 0).unwrap();
            file.set_len(bytes.len() as u64).unwrap();
            let back = std::fs::read(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            prop_assert!(back == bytes);
        }
    }
}
