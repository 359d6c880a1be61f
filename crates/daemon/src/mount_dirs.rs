//! Directories that file systems are mounted on.
//!
//! # Theory
//! Missing directories of a mountpoint are made when something is mounted there, and are
//! recorded. A directory that was made here is removed again when it is empty and nothing is
//! mounted on it. Directories that existed before stay. The list outlives the daemon; it is
//! stored next to the list of pools.
//!
//! A directory inside a mounted dataset is content of that dataset. Exporting and importing
//! must not change content, so such a directory stays when the dataset on it is only unmounted.
//! It is removed when that dataset is destroyed or gets another mountpoint.
//!
//! Lock order: `saving` → `made`; no directory is accessed under them.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, Metadata};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use base::rt::Mutex;
use base::{Error, ErrorKind, Result};
use proto::runtime;
use rustix::fs::Access;
use rustix::process::geteuid;

/// Directories that are recorded; those beyond are never removed.
const MADE_MAX: usize = 65_536;
/// Of `st_mode`.
const S_ISVTX: u32 = 0o1000;

/// The directories that were made here.
pub(super) struct MountDirs {
    made: Mutex<BTreeSet<PathBuf>>,
    /// Held while the list is written.
    saving: Mutex<()>,
    file: PathBuf,
}

impl MountDirs {
    /// Loads the list from `file`.
    pub(super) fn new(file: PathBuf) -> MountDirs {
        let made = runtime::load(&file).unwrap_or_else(|e| {
            ui::err(&format!("the list of directories is begun anew: {e}"));
            BTreeSet::new()
        });
        MountDirs { made: Mutex::new(made), saving: Mutex::new(()), file }
    }

    fn save(&self) {
        let _one_at_a_time = self.saving.lock();
        let made = self.made.lock().clone();
        if let Err(e) = runtime::store(&self.file, &made) {
            ui::err(&format!("cannot write the list of directories: {e}"));
        }
    }

    /// Makes the directory to mount on, with its missing parents.
    ///
    /// # Errors
    /// It cannot be made, or the path is not a directory; `NotEmpty` if it is not empty and
    /// `overlay` is off.
    pub(super) fn prepare(&self, at: &Path, overlay: bool) -> Result<()> {
        let failed = |e: std::io::Error| {
            let read_only = e.kind() == std::io::ErrorKind::ReadOnlyFilesystem;
            let e = Error::io("failed to create mountpoint", e);
            if read_only { e.with_kind(ErrorKind::ReadOnly) } else { e }
        };
        let mut missing = Vec::new();
        let mut found = at;
        while let Err(e) = std::fs::metadata(found) {
            match (e.kind(), found.parent()) {
                (std::io::ErrorKind::NotFound, Some(_)) => missing.push(found),
                _ => return Err(failed(e)),
            }
            found = found.parent().unwrap_or(found);
        }
        let mut new = false;
        let mut done = Ok(());
        for dir in missing.into_iter().rev() {
            match DirBuilder::new().mode(0o755).create(dir) {
                Ok(()) => {
                    let mut made = self.made.lock();
                    new |= made.len() < MADE_MAX && made.insert(dir.to_owned());
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => {
                    done = Err(failed(e));
                    break;
                }
            }
        }
        if new {
            self.save();
        }
        done?;
        // The kernel's error for a path that is not a directory.
        let entries = std::fs::read_dir(at);
        if !overlay {
            let mut entries = entries.map_err(|e| Error::io("cannot look at it", e))?;
            if entries.next().is_some() {
                return Err(Error::new(ErrorKind::NotEmpty, "directory is not empty"));
            }
        }
        Ok(())
    }

    /// Removes `at`, on which nothing is mounted any more, and its parents, if they were made
    /// here, are empty, and `may_go` allows it.
    pub(super) fn leave(&self, at: &Path, may_go: impl Fn(&Path) -> bool) {
        let mut changed = false;
        for dir in at.ancestors() {
            let ours = self.made.lock().contains(dir);
            if !ours || !may_go(dir) {
                break;
            }
            match std::fs::remove_dir(dir) {
                Ok(()) => {}
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                // It is in use or not empty; it may be removed later.
                Err(_) => break,
            }
            changed |= self.made.lock().remove(dir);
        }
        if changed {
            self.save();
        }
    }
}

/// Checks that this process can make the missing part of a directory and mount something there.
///
/// # Errors
/// The system's text for the reason why it cannot.
pub(super) fn check(at: &Path) -> std::result::Result<(), String> {
    if geteuid().is_root() {
        return Ok(());
    }
    let mut found = at;
    let meta = loop {
        match (std::fs::metadata(found), found.parent()) {
            (Ok(meta), _) => break meta,
            (Err(e), Some(parent)) if e.kind() == std::io::ErrorKind::NotFound => found = parent,
            (Err(e), _) => return Err(words(&e)),
        }
    };
    if !meta.is_dir() {
        return Err("Not a directory".to_owned());
    }
    let may = rustix::fs::access(found, Access::WRITE_OK | Access::EXEC_OK);
    may.map_err(|e| words(&e.into()))?;
    if found == at && !may_cover(&meta) {
        return Err("Operation not permitted".to_owned());
    }
    Ok(())
}

/// Whether `fusermount3` accepts the directory: it mounts an ordinary user's file system on a
/// directory with the sticky bit only if the directory is that user's.
fn may_cover(dir: &Metadata) -> bool {
    dir.mode() & S_ISVTX == 0 || dir.uid() == geteuid().as_raw()
}

/// The system's text for an error, without the number.
fn words(e: &std::io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let dir = std::env::temp_dir().join(format!("cenote-{name}-{}", std::process::id()));
            std::fs::create_dir(&dir).unwrap();
            Dir(dir)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _gone = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn made_directories_are_removed_and_others_stay() {
        let dir = Dir::new("places");
        let list = dir.0.join("list");
        let mount_dirs = MountDirs::new(list.clone());
        let (a, b, c) = (dir.0.join("x/y/a"), dir.0.join("x/b"), dir.0.join("x/y/a/c"));
        mount_dirs.prepare(&a, true).unwrap();
        mount_dirs.prepare(&b, true).unwrap();
        mount_dirs.prepare(&c, true).unwrap();
        let all = |_: &Path| true;
        // Inside another dataset: it stays for now.
        mount_dirs.leave(&c, |d| !d.starts_with(&a) || d == a);
        assert!(c.exists());
        // The next daemon has the same list.
        let mount_dirs = MountDirs::new(list);
        mount_dirs.leave(&c, |d| d.starts_with(&a) && d != a);
        assert!(!c.exists() && a.exists());
        mount_dirs.leave(&a, all);
        assert!(!dir.0.join("x/y").exists() && b.exists());
        std::fs::write(b.join("file"), "").unwrap();
        mount_dirs.leave(&b, all);
        assert!(b.exists(), "something is in it");
        std::fs::remove_file(b.join("file")).unwrap();
        mount_dirs.leave(&b, all);
        assert!(!dir.0.join("x").exists() && dir.0.exists());
        assert_eq!(mount_dirs.made.lock().len(), 0);
        let old = dir.0.join("old");
        std::fs::create_dir(&old).unwrap();
        mount_dirs.prepare(&old, true).unwrap();
        mount_dirs.leave(&old, all);
        assert!(old.exists(), "it was there before");
    }

    #[test]
    fn failures_are_reported() {
        let dir = Dir::new("places-not");
        let mount_dirs = MountDirs::new(dir.0.join("list"));
        let file = dir.0.join("file");
        std::fs::write(&file, "").unwrap();
        assert!(mount_dirs.prepare(&file.join("x"), true).is_err());
        std::fs::create_dir(dir.0.join("full")).unwrap();
        std::fs::write(dir.0.join("full/x"), "").unwrap();
        let e = mount_dirs.prepare(&dir.0.join("full"), false).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotEmpty);
        if !geteuid().is_root() {
            assert_eq!(check(Path::new("/no/such")), Err("Permission denied".to_owned()));
            assert_eq!(check(&file), Err("Not a directory".to_owned()));
        }
        assert_eq!(check(&dir.0.join("a/b")), Ok(()));
    }
}
