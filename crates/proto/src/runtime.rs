//! The runtime directory with the daemon's socket, lock, log and lists.
//!
//! It is `$CENOTE_RUNTIME_DIR`, else `/run/cenote` for root, else `$XDG_RUNTIME_DIR/cenote`,
//! else `/run/user/UID/cenote` if that directory is the user's own, else `/tmp/cenote-UID`. Any
//! user can make a name in `/tmp` first. So the path must be a directory, no link, owned by the
//! user and closed to others; else it is refused (`private`). No other user can replace it
//! then, because `/tmp` is sticky. Two daemons with different directories run side by side; two
//! with the same one cannot (the lock file). The list of imported pools is in
//! `$CENOTE_STATE_DIR` if that is set, so that it can survive a restart of the system.

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
pub struct Runtime {
    dir: PathBuf,
    /// The directory of the list of pools.
    state: PathBuf,
    /// For an ordinary user who named no directory: the socket of root's daemon.
    system: Option<PathBuf>,
}

/// Root's directory, unless its environment names another one.
const SYSTEM: &str = "/run/cenote";

/// The socket for other users of the daemon with this directory.
fn shared_socket(dir: &Path) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(".socket");
    PathBuf::from(name)
}

fn choose(
    own: Option<OsString>,
    xdg: Option<OsString>,
    uid: u32,
    is_own: impl Fn(&Path) -> bool,
) -> PathBuf {
    let set = |v: Option<OsString>| v.filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(dir) = set(own) {
        return dir;
    }
    if uid == 0 {
        return PathBuf::from(SYSTEM);
    }
    let run = PathBuf::from(format!("/run/user/{uid}"));
    match set(xdg).or_else(|| Some(run).filter(|run| is_own(run))) {
        Some(dir) => dir.join("cenote"),
        None => PathBuf::from(format!("/tmp/cenote-{uid}")),
    }
}

/// Whether the path is a directory, not a link to one, owned by the user and closed to others.
fn is_private(dir: &Path) -> bool {
    fs::symlink_metadata(dir).is_ok_and(|meta| {
        meta.is_dir() && meta.uid() == geteuid().as_raw() && meta.mode() & 0o077 == 0
    })
}

impl Runtime {
    /// The directory that the environment names, or the user's own. It need not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a name that is not absolute; `Permission` for a directory
    /// below `/tmp` that another user made.
    pub fn from_env() -> Result<Runtime> {
        let var = std::env::var_os;
        let uid = geteuid().as_raw();
        let dir = choose(var("CENOTE_RUNTIME_DIR"), var("XDG_RUNTIME_DIR"), uid, is_private);
        if dir.parent() == Some(Path::new("/tmp")) && fs::symlink_metadata(&dir).is_ok() {
            private(&dir)?;
        }
        let dir = std::path::absolute(&dir).map_err(|e| Error::io("bad runtime directory", e))?;
        let state = match var("CENOTE_STATE_DIR").filter(|v| !v.is_empty()) {
            Some(state) => {
                std::path::absolute(&state).map_err(|e| Error::io("bad state directory", e))?
            }
            None => dir.clone(),
        };
        let named = var("CENOTE_RUNTIME_DIR").is_some_and(|v| !v.is_empty());
        let system = (uid != 0 && !named).then(|| shared_socket(Path::new(SYSTEM)));
        Ok(Runtime { dir, state, system })
    }

    /// A directory of the caller's choice.
    #[cfg(test)]
    fn at(dir: impl Into<PathBuf>) -> Runtime {
        let dir = dir.into();
        Runtime { state: dir.clone(), dir, system: None }
    }

    /// The directory itself.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
    /// The daemon's socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("socket")
    }
    /// The socket of a root daemon for other users. It lies beside the directory, which is
    /// closed to them.
    pub fn shared_socket(&self) -> PathBuf {
        shared_socket(&self.dir)
    }
    /// The socket of root's daemon, for an ordinary user who named no directory.
    pub fn system_socket(&self) -> Option<&Path> {
        self.system.as_deref()
    }
    /// The daemon's log.
    pub fn log(&self) -> PathBuf {
        self.dir.join("daemon.log")
    }
    /// The list of imported pools.
    pub fn pools(&self) -> PathBuf {
        self.state.join("pools.json")
    }
    /// The list of mounts, for cleaning up after a daemon was killed.
    pub fn mounts(&self) -> PathBuf {
        self.dir.join("mounts.json")
    }
    /// The list of directories made as mountpoints.
    pub fn made_dirs(&self) -> PathBuf {
        self.state.join("directories.json")
    }
    /// The directory of kstats as files: the counterpart of Linux's `/proc/spl`.
    pub fn kstats(&self) -> PathBuf {
        self.dir.join("proc/spl/kstat/zfs")
    }
    /// The socket at which volumes are network block devices.
    pub fn nbd(&self) -> PathBuf {
        self.dir.join("nbd")
    }
    /// The directory of volumes as files.
    pub fn volumes(&self) -> PathBuf {
        self.dir.join("volumes")
    }

    /// Makes the missing directories, closed to other users.
    ///
    /// # Errors
    /// The directory is another user's, or cannot be made.
    pub fn create(&self) -> Result<()> {
        private(&self.state)?;
        private(&self.dir)
    }

    /// The process that took the daemon's lock last.
    pub fn holder(&self) -> Option<u32> {
        fs::read_to_string(self.dir.join("lock")).ok()?.trim().parse().ok()
    }

    /// Takes the daemon's lock, which is held until the file is closed.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if another daemon has it.
    pub fn lock(&self) -> Result<File> {
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

/// Makes a missing directory, closed to other users. A directory below `/tmp` must not have
/// been made by another user.
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
    if dir.starts_with("/tmp/") && dir.parent() == Some(Path::new("/tmp")) && !is_private(dir) {
        let text = "the runtime directory is a link, or open to other users; remove it, or set \
                    CENOTE_RUNTIME_DIR";
        return Err(Error::permission(text).on_path(place()));
    }
    Ok(())
}

/// Reads a list; a missing file is an empty list.
///
/// # Errors
/// The file is no list of ours.
pub fn load<T: DeserializeOwned + Default>(path: &Path) -> Result<T> {
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
pub fn store<T: Serialize>(path: &Path, value: &T) -> Result<()> {
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
        let (yes, no) = (|_: &Path| true, |_: &Path| false);
        assert_eq!(choose(s("/a"), s("/x"), 0, no), Path::new("/a"));
        assert_eq!(choose(s(""), s("/x"), 0, no), Path::new("/run/cenote"));
        assert_eq!(choose(None, s("/x"), 1000, no), Path::new("/x/cenote"));
        assert_eq!(choose(None, None, 1000, yes), Path::new("/run/user/1000/cenote"));
        assert_eq!(choose(None, s(""), 1000, no), Path::new("/tmp/cenote-1000"));
    }

    /// Another user made the directory in `/tmp` first, and the daemon would have used it.
    #[test]
    fn a_directory_in_tmp_is_the_users_own() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = PathBuf::from(format!("/tmp/cenote-own-{}", std::process::id()));
        private(&dir).unwrap();
        private(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(private(&dir).unwrap_err().kind(), ErrorKind::Permission);
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        let link = dir.with_extension("link");
        symlink(&dir, &link).unwrap();
        assert_eq!(private(&link).unwrap_err().kind(), ErrorKind::Permission);
        fs::remove_file(&link).unwrap();
        fs::remove_dir(&dir).unwrap();
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
