//! `cenote clone`: a copy of a file that shares the blocks of the original.
//!
//! # Theory
//! The mount of both files does the work: the command asks it to copy the file within itself
//! (`copy_file_range(2)`), and the mount shares whole blocks that are on disk, and copies the
//! rest. So nothing passes through this process, and the caller's own rights decide. `cp` does
//! the same by itself. The ioctl by which other tools clone (FICLONE) does not reach a file system
//! in user space.
//!
//! The target is a new file, and it is removed if the copy cannot be completed. Nothing is made
//! if the target would be in another file system than the original, or if that is in none that
//! Cenote has mounted: a copy there would share nothing.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::Result;
use ui::Exit;

/// Bytes that are asked for at once: an interrupt ends the command after so many.
const PIECE: usize = 1 << 30;
/// The type of file systems in user space (`statfs(2)`).
const FUSE_MAGIC: u64 = 0x6573_5546;

/// `cenote clone FILE TARGET`
pub(crate) fn main(argv: &[OsString]) -> Result<Exit> {
    let misuse = |why: Option<&str>| Ok(commands::misuse("cenote", "clone", why));
    let parsed = match commands::find("cenote", "clone").parse(argv) {
        Ok(parsed) => parsed,
        Err(bad) => return misuse(bad.message().as_deref()),
    };
    let [source, target] = parsed.args.as_slice() else {
        return misuse(Some("a file and a target are needed"));
    };
    let (source, mut target) = (PathBuf::from(source), PathBuf::from(target));
    if let (true, Some(name)) = (target.is_dir(), source.file_name()) {
        target.push(name);
    }
    match clone(&source, &target) {
        Ok(()) => Ok(Exit::OK),
        Err(why) => {
            let (source, target) = (source.display(), target.display());
            ui::err(&format!("cannot clone '{source}' to '{target}': {why}"));
            Ok(Exit::FAILURE)
        }
    }
}

fn clone(source: &Path, target: &Path) -> std::result::Result<(), String> {
    let text = |e: io::Error| e.to_string();
    // A pipe without a writer must not stop the command.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let from = OpenOptions::new().read(true).custom_flags(nonblocking).open(source);
    let from = from.map_err(text)?;
    let found = from.metadata().map_err(text)?;
    if !found.is_file() {
        return Err("not a regular file".to_owned());
    }
    let system = rustix::fs::fstatfs(&from).map_err(|e| text(e.into()))?;
    let parent = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let above = std::fs::metadata(parent).map_err(text)?;
    if system.f_type as u64 != FUSE_MAGIC || above.dev() != found.dev() {
        return Err("blocks are shared within one file system that cenote has mounted".to_owned());
    }
    let mode = found.mode() & 0o777;
    let to = OpenOptions::new().write(true).create_new(true).mode(mode).open(target);
    let done = copy(&from, &to.map_err(text)?).map_err(text);
    if done.is_err() {
        // What could not be completed is no copy.
        let _left = std::fs::remove_file(target);
    }
    done
}

fn copy(from: &File, to: &File) -> io::Result<()> {
    loop {
        match rustix::fs::copy_file_range(from, None, to, None, PIECE) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
