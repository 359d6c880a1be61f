//! Clean-up of temporary directories and mounts when a bench ends, also by a signal.
//!
//! The first signal is a request: the bench checks [`interrupted`] between reads and returns.
//! If it does not return in time, the watching thread cleans up and ends the process.
//!
//! Lock order: `LEFT` is a leaf.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use base::rt::{self, Mutex};
use base::{Error, Result};
use cenote::Dataset;
use mount::{FuseMounter, MountOptions, MountedFs};
use rustix::fs::{Mode, mkdir};
use ui::Exit;
use ui::signals::Signals;

/// Exit code of a program that a signal ended, as in shells.
pub(super) const INTERRUPTED: Exit = Exit(130);
/// How long a bench may take to end after a signal.
const END_TIMEOUT: Duration = Duration::from_secs(5);

static STOP: AtomicBool = AtomicBool::new(false);
static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

#[derive(Clone, Debug, PartialEq, Eq)]
enum Left {
    Directory(PathBuf),
    File(PathBuf),
    Mount(PathBuf),
}

impl Left {
    /// Removes it, as far as possible.
    fn remove(&self) {
        let _gone = match self {
            Left::Directory(path) => std::fs::remove_dir_all(path).is_ok(),
            Left::File(path) => std::fs::remove_file(path).is_ok(),
            Left::Mount(path) => {
                let options = fuse::UnmountOptions { lazy: true, force: false };
                fuse::unmount(path, options).is_ok()
            }
        };
    }
}

/// Whether a signal has requested the bench's end.
pub(super) fn interrupted() -> bool {
    STOP.load(Relaxed)
}

/// Handles signals from now on.
///
/// # Errors
/// Signals cannot be blocked, or no thread can be had.
pub(super) fn watch() -> Result<()> {
    let signals = Signals::block()?;
    rt::spawn("signals", move || {
        signals.wait_and(|| STOP.store(true, Relaxed));
        rt::sleep(END_TIMEOUT);
        let left = std::mem::take(&mut *LEFT.lock());
        // Mounts first, because a directory below one cannot be removed.
        for mount in left.iter().filter(|l| matches!(l, Left::Mount(_))) {
            mount.remove();
        }
        for other in left.iter().filter(|l| !matches!(l, Left::Mount(_))) {
            other.remove();
        }
        std::process::exit(i32::from(INTERRUPTED.0));
    })?;
    Ok(())
}

fn forget(left: &Left) {
    LEFT.lock().retain(|l| l != left);
}

/// A temporary directory, removed when dropped.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// A new one below `parent`.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn new(parent: &Path) -> Result<Scratch> {
        let name = format!("cenote-bench-{}-{:x}", std::process::id(), rt::random_u64()?);
        let path = std::path::absolute(parent).map_err(|e| Error::io("bad directory", e))?;
        let path = path.join(name);
        let failed = |e: rustix::io::Errno| {
            Error::io("cannot make a directory", e.into()).on_path(path.to_string_lossy())
        };
        mkdir(&path, Mode::RWXU).map_err(failed)?;
        LEFT.lock().push(Left::Directory(path.clone()));
        Ok(Scratch(path))
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Keeps the directory.
    pub(super) fn keep(self) -> PathBuf {
        forget(&Left::Directory(self.0.clone()));
        let path = self.0.clone();
        std::mem::forget(self);
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let left = Left::Directory(self.0.clone());
        left.remove();
        forget(&left);
    }
}

/// A temporary file in another directory, removed when dropped.
pub(super) struct ScratchFile(PathBuf);

impl ScratchFile {
    /// Registers a path for removal; the file may be made later.
    pub(super) fn new(path: PathBuf) -> ScratchFile {
        LEFT.lock().push(Left::File(path.clone()));
        ScratchFile(path)
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        let left = Left::File(self.0.clone());
        left.remove();
        forget(&left);
    }
}

/// A dataset mounted in this process.
pub(super) struct Mounted {
    session: Option<std::sync::Arc<dyn MountedFs>>,
    at: Scratch,
}

impl Mounted {
    /// Mounts it below `parent`.
    ///
    /// # Errors
    /// The kernel or the helper refuses.
    pub(super) fn new(dataset: &Dataset, parent: &Path, direct_io: bool) -> Result<Mounted> {
        let at = Scratch::new(parent)?;
        let options = MountOptions { direct_io, ..MountOptions::default() };
        let session = FuseMounter::default().mount(dataset, at.path(), &options)?;
        LEFT.lock().push(Left::Mount(at.path().to_owned()));
        Ok(Mounted { session: Some(session), at })
    }

    /// Where.
    pub(super) fn path(&self) -> &Path {
        self.at.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let _gone = session.unmount(true);
        }
        forget(&Left::Mount(self.at.path().to_owned()));
    }
}
