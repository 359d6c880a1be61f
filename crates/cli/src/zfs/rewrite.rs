//! `zfs rewrite`: the blocks of files are written again (chapter 09 §3).
//!
//! # Theory
//! The mount of a file does the work, piece by piece (`mount::rewrite`), so the caller's own
//! right to write the file decides, and a command that is interrupted leaves nothing behind.
//! A directory needs `-r`. Below a directory only regular files are rewritten, each once
//! however many names it has, and symbolic links are not followed; an operand may be one.
//! After an error the command goes on with the next file and exits with 1.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::Result;
use cenote::files::Rewrite;
use cenote::props::{nicebytes, parse_size};
use ui::Exit;
use ui::progress::Progress;

use super::{misuse, options};

/// What the command line asks for.
struct Job {
    from: u64,
    to: u64,
    how: Rewrite,
    recursive: bool,
    one_file_system: bool,
    verbose: bool,
    progress: Progress,
    /// Bytes of all files up to the present one.
    done: u64,
    /// Files with several names that were rewritten: device and inode.
    seen: HashSet<(u64, u64)>,
    failed: bool,
}

/// `zfs rewrite ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("rewrite", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    if parsed.args.is_empty() {
        return Ok(misuse("rewrite", Some("missing file or directory target(s)")));
    }
    let number = |letter| parsed.last(letter).map_or(Ok(None), |t| parse_size(&t).map(Some));
    let (from, len) = match (number('o'), number('l')) {
        (Ok(from), Ok(len)) => (from.unwrap_or(0), len),
        (Err(why), _) => return Ok(misuse("rewrite", Some(&format!("invalid offset: {why}")))),
        (_, Err(why)) => return Ok(misuse("rewrite", Some(&format!("invalid length: {why}")))),
    };
    let how = Rewrite { keep_birth: parsed.has('P'), skip_snapshots: parsed.has('S') };
    let paths: Vec<PathBuf> = parsed.args.iter().map(PathBuf::from).collect();
    let to = len.map_or(u64::MAX, |len| from.saturating_add(len));
    let mut job = Job {
        from,
        to,
        how,
        recursive: parsed.has('r'),
        one_file_system: parsed.has('x'),
        verbose: parsed.has('v'),
        progress: Progress::new("rewriting", total(&paths, from, to)),
        done: 0,
        seen: HashSet::new(),
        failed: false,
    };
    for path in &paths {
        job.operand(path);
    }
    job.progress.finish();
    Ok(Exit::failed_if(job.failed))
}

/// Bytes to go through, if the operands are files alone.
fn total(paths: &[PathBuf], from: u64, to: u64) -> Option<u64> {
    let mut sum = 0u64;
    for path in paths {
        let found = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
        sum = sum.saturating_add(found.len().min(to).saturating_sub(from));
    }
    Some(sum)
}

impl Job {
    fn complain(&mut self, path: &Path, why: &str) {
        self.progress.finish();
        ui::err(&format!("cannot rewrite '{}': {why}", path.display()));
        self.failed = true;
    }

    fn operand(&mut self, path: &Path) {
        match std::fs::metadata(path) {
            Err(e) => self.complain(path, &text(&e, self.how)),
            Ok(found) if found.is_dir() && self.recursive => self.below(path, found.dev()),
            Ok(found) if found.is_dir() => self.complain(path, "is a directory; -r is needed"),
            Ok(found) if found.is_file() => self.file(path, &found, true),
            Ok(_) => self.complain(path, "not a regular file or directory"),
        }
    }

    /// Rewrites the files below a directory.
    fn below(&mut self, top: &Path, device: u64) {
        let mut todo = vec![top.to_owned()];
        while let Some(dir) = todo.pop() {
            let entries = std::fs::read_dir(&dir)
                .and_then(|list| list.map(|e| Ok(e?.path())).collect::<io::Result<Vec<_>>>());
            let mut entries = match entries {
                Ok(entries) => entries,
                Err(e) => {
                    self.complain(&dir, &text(&e, self.how));
                    continue;
                }
            };
            entries.sort();
            let mut dirs = Vec::new();
            for path in entries {
                match std::fs::symlink_metadata(&path) {
                    // It was removed meanwhile.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => self.complain(&path, &text(&e, self.how)),
                    Ok(found) if self.one_file_system && found.dev() != device => {}
                    Ok(found) if found.is_dir() && !is_control(&path) => dirs.push(path),
                    Ok(found) if found.is_file() => self.file(&path, &found, false),
                    Ok(_) => {}
                }
            }
            todo.extend(dirs.into_iter().rev());
        }
    }

    fn file(&mut self, path: &Path, found: &Metadata, follow: bool) {
        if found.nlink() > 1 && !self.seen.insert((found.dev(), found.ino())) {
            return;
        }
        let mut rewritten = 0;
        let result = open(path, follow).and_then(|file| self.parts(&file, &mut rewritten));
        self.done += found.len().min(self.to).saturating_sub(self.from);
        match result {
            Ok(()) if self.verbose => ui::out(&format!("{}\n", path.display())),
            Ok(()) => {}
            Err(e) if rewritten > 0 => {
                let so_far = nicebytes(rewritten);
                let why = text(&e, self.how);
                self.complain(path, &format!("{why}; {so_far} of it are rewritten"));
            }
            Err(e) => self.complain(path, &text(&e, self.how)),
        }
    }

    fn parts(&mut self, file: &File, rewritten: &mut u64) -> io::Result<()> {
        let mut next = Some(self.from).filter(|from| *from < self.to);
        while let Some(at) = next {
            let done = mount::rewrite::rewrite_part(file, at, self.to, self.how)?;
            *rewritten += done.bytes;
            // The end may have moved towards the beginning.
            next = done.next.filter(|next| *next > at);
            self.progress.at(self.done + next.unwrap_or(at) - self.from);
        }
        Ok(())
    }
}

/// Opens a file so that the kernel checks the right to write it. An append-only file can be
/// opened for appending alone.
fn open(path: &Path, follow: bool) -> io::Result<File> {
    use rustix::fs::OFlags;
    let follow = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
    let flags = (follow | OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let flags = i32::try_from(flags).unwrap_or(0);
    OpenOptions::new().append(true).custom_flags(flags).open(path)
}

/// Whether this is the control directory of a file system with `snapdir=visible`, below which
/// nothing can be written.
fn is_control(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == ".zfs")
        && path.join("snapshot").is_dir()
        && path.join("shares").is_dir()
}

fn text(e: &io::Error, how: Rewrite) -> String {
    use rustix::io::Errno;
    match Errno::from_io_error(e) {
        Some(Errno::NOSPC) => "out of space".to_owned(),
        Some(Errno::DQUOT) => "quota exceeded".to_owned(),
        Some(Errno::NOTTY) => "not a file of a dataset that Cenote has mounted".to_owned(),
        Some(Errno::OPNOTSUPP) if how.keep_birth => {
            "operation not supported: -P needs the pool's feature 'physical_rewrite' to be \
             enabled (zpool set feature@physical_rewrite=enabled <pool>)"
                .to_owned()
        }
        _ => {
            let text = e.to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            let mut letters = text.chars();
            let first = letters.next().map(|c| c.to_lowercase().to_string()).unwrap_or_default();
            first + letters.as_str()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_named_in_words() {
        let of = |errno: rustix::io::Errno| text(&errno.into(), Rewrite::default());
        assert_eq!(of(rustix::io::Errno::NOSPC), "out of space");
        assert_eq!(of(rustix::io::Errno::ROFS), "read-only file system");
        assert_eq!(of(rustix::io::Errno::IO), "input/output error");
        let keep = Rewrite { keep_birth: true, ..Rewrite::default() };
        let refused = text(&rustix::io::Errno::OPNOTSUPP.into(), keep);
        assert!(refused.contains("'physical_rewrite'"), "{refused}");
    }
}
