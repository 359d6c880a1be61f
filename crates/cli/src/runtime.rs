//! The runtime directory: where the daemon's socket, lock, log and lists lie.
//!
//! `$CENOTE_RUNTIME_DIR`, else `/run/cenote` for root, else
//! `$XDG_RUNTIME_DIR/cenote`. Two daemons with different directories live side
//! by side; two with the same one cannot (the lock file). The list of imported pools lies
//! in `$CENOTE_STATE_DIR` if that is set, so that it can outlive the system.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};
use rustix::fs::FlockOperation;
use rustix::process::geteuid;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A runtime directory.
#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    dir: PathBuf,
    /// Where the list of pools lies.
    state: PathBuf,
}

fn choose(own: Option<OsString>, xdg: Option<OsString>, root: bool) -> Option<PathBuf> {
    let set = |v: Option<OsString>| v.filter(|v| !v.is_empty()).map(PathBuf::from);
    match set(own) {
        Some(dir) => Some(dir),
        None if root => Some(PathBuf::from("/run/cenote")),
        None => set(xdg).map(|d| d.join("cenote")),
    }
}

impl Runtime {
    /// The directory that the environment names. It need not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the environment names none.
    pub(crate) fn from_env() -> Result<Runtime> {
        let var = std::env::var_os;
        let dir = choose(var("CENOTE_RUNTIME_DIR"), var("XDG_RUNTIME_DIR"), geteuid().is_root())
            .ok_or_else(|| {
                Error::invalid("no runtime directory: set CENOTE_RUNTIME_DIR or XDG_RUNTIME_DIR")
            })?;
        let dir = std::path::absolute(&dir).map_err(|e| Error::io("bad runtime directory", e))?;
        let state = match var("CENOTE_STATE_DIR").filter(|v| !v.is_empty()) {
            Some(state) => {
                std::path::absolute(&state).map_err(|e| Error::io("bad state directory", e))?
            }
            None => dir.clone(),
        };
        Ok(Runtime { dir, state })
    }

    /// A directory of the caller's choice.
    #[cfg(test)]
    pub(crate) fn at(dir: impl Into<PathBuf>) -> Runtime {
        let dir = dir.into();
        Runtime { state: dir.clone(), dir }
    }

    /// The directory itself.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
    /// The daemon's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("socket")
    }
    /// The daemon's log.
    pub(crate) fn log(&self) -> PathBuf {
        self.dir.join("daemon.log")
    }
    /// The list of imported pools.
    pub(crate) fn pools(&self) -> PathBuf {
        self.state.join("pools.json")
    }
    /// The list of mounts, to be cleaned after a daemon was killed.
    pub(crate) fn mounts(&self) -> PathBuf {
        self.dir.join("mounts.json")
    }
    /// Where kstats appear as files: what Linux has below `/proc/spl`.
    pub(crate) fn kstats(&self) -> PathBuf {
        self.dir.join("proc/spl/kstat/zfs")
    }
    /// Where volumes appear as files.
    pub(crate) fn volumes(&self) -> PathBuf {
        self.dir.join("volumes")
    }

    /// Makes the directories if need be, for their owner alone.
    ///
    /// # Errors
    /// The directory is another user's, or cannot be made.
    pub(crate) fn create(&self) -> Result<()> {
        private(&self.state)?;
        private(&self.dir)
    }

    /// Takes the daemon's lock; it holds as long as the file lives.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if another daemon has it.
    pub(crate) fn lock(&self) -> Result<File> {
        let path = self.dir.join("lock");
        let io = |e| Error::io("cannot open the lock file", e).on_path(path.display().to_string());
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(io)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Error::busy(format!("a daemon is already running in {}", self.dir.display()))
        })?;
        let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        written.map_err(io)?;
        Ok(file)
    }
}

/// A directory for its owner alone.
fn private(dir: &Path) -> Result<()> {
    let place = || dir.display().to_string();
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|e| Error::io("cannot make the runtime directory", e).on_path(place()))?;
    let meta = fs::metadata(dir)
        .map_err(|e| Error::io("cannot look at the runtime directory", e).on_path(place()))?;
    if meta.uid() != geteuid().as_raw() {
        return Err(
            Error::permission("the runtime directory belongs to another user").on_path(place())
        );
    }
    Ok(())
}

/// Reads a list; a file that is not there is an empty one.
///
/// # Errors
/// The file is no list of ours.
pub(crate) fn load<T: DeserializeOwned + Default>(path: &Path) -> Result<T> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(T::default()),
        Err(e) => return Err(Error::io("cannot read", e).on_path(path.display().to_string())),
    };
    serde_json::from_slice(&text).map_err(|e| {
        Error::new(ErrorKind::Corrupt, "not a list of ours")
            .on_path(path.display().to_string())
            .caused_by(e)
    })
}

/// Replaces a list, atomically.
///
/// # Errors
/// The file system's.
pub(crate) fn store<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let io = |e| Error::io("cannot write", e).on_path(path.display().to_string());
    let temp = path.with_extension("new");
    let text = serde_json::to_vec_pretty(value)
        .map_err(|e| Error::invalid("a list cannot be encoded").caused_by(e))?;
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&temp)
        .map_err(io)?;
    file.write_all(&text).and_then(|()| file.sync_all()).map_err(io)?;
    fs::rename(&temp, path).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_chooses() {
        let s = |v: &str| Some(OsString::from(v));
        assert_eq!(choose(s("/a"), s("/x"), true), Some("/a".into()));
        assert_eq!(choose(s(""), s("/x"), true), Some("/run/cenote".into()));
        assert_eq!(choose(None, s("/x"), false), Some("/x/cenote".into()));
        assert_eq!(choose(None, None, false), None);
    }

    #[test]
    fn one_daemon_a_directory_and_lists_survive() {
        let dir = std::env::temp_dir().join(format!("cenote-rt-{}", std::process::id()));
        let rt = Runtime::at(&dir);
        rt.create().unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        let held = rt.lock().unwrap();
        assert_eq!(rt.lock().unwrap_err().kind(), ErrorKind::Busy);
        drop(held);
        rt.lock().unwrap();
        assert_eq!(load::<Vec<String>>(&rt.pools()).unwrap(), Vec::<String>::new());
        store(&rt.pools(), &vec!["tank"]).unwrap();
        assert_eq!(load::<Vec<String>>(&rt.pools()).unwrap(), ["tank"]);
        fs::write(rt.pools(), "{").unwrap();
        assert_eq!(load::<Vec<String>>(&rt.pools()).unwrap_err().kind(), ErrorKind::Corrupt);
        fs::remove_dir_all(&dir).unwrap();
    }
}
