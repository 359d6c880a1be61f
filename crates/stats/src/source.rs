//! The source of statistics.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use base::{Error, Result};
use cenote::kstat::{self, Kstat};
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{BATCH_MAX, Reply, Request};

/// Environment variable: a directory of kstats to read instead of the daemon's.
const ENV: &str = "CENOTE_KSTAT_DIR";
/// Maximum number of files read in a directory.
const FILES_MAX: usize = 1 << 16;

/// The source of statistics.
pub(crate) enum StatSource {
    /// The daemon.
    Daemon(Box<Client>),
    /// A directory such as `/proc/spl/kstat/zfs`.
    Dir(PathBuf),
}

/// The daemon's reply has an unexpected type.
fn unexpected_reply() -> Error {
    Error::corrupt("the daemon answered something else")
}

/// The daemon, if one runs or has pools to import.
///
/// # Errors
/// There is none.
pub(crate) fn daemon() -> Result<Client> {
    Client::connect_for_query(&Runtime::from_env()?)?
        .ok_or_else(|| Error::invalid("no daemon is running: import a pool first"))
}

impl StatSource {
    /// Opens the directory that is given or named by the environment; else the daemon.
    ///
    /// # Errors
    /// There is no such directory, or no daemon.
    pub(crate) fn open(path: Option<String>) -> Result<StatSource> {
        let named = path.map(PathBuf::from);
        let env = || std::env::var_os(ENV).filter(|v| !v.is_empty()).map(PathBuf::from);
        match named.or_else(env) {
            None => Ok(StatSource::Daemon(Box::new(daemon()?))),
            Some(dir) if dir.is_dir() => Ok(StatSource::Dir(dir)),
            Some(dir) => Err(Error::not_found(format!("{}: no such directory", dir.display()))),
        }
    }

    /// The paths of all kstats, sorted.
    ///
    /// # Errors
    /// The connection's or the file system's.
    pub(crate) fn names(&mut self) -> Result<Vec<String>> {
        match self {
            StatSource::Daemon(client) => match client.request(&Request::KstatNames)? {
                Reply::Names(names) => Ok(names),
                _ => Err(unexpected_reply()),
            },
            StatSource::Dir(dir) => names_below(dir),
        }
    }

    /// The kstats at these paths, if they exist.
    ///
    /// # Errors
    /// The connection's, or a file that is no kstat.
    pub(crate) fn read(&mut self, paths: &[String]) -> Result<Vec<(String, Kstat)>> {
        let mut out = Vec::new();
        match self {
            StatSource::Daemon(client) => {
                for batch in paths.chunks(BATCH_MAX) {
                    match client.request(&Request::Kstats { paths: batch.to_vec() })? {
                        Reply::Kstats(stats) => {
                            out.extend(stats.into_iter().map(proto::Stat::into_kstat));
                        }
                        _ => return Err(unexpected_reply()),
                    }
                }
            }
            StatSource::Dir(dir) => {
                for path in paths {
                    if let Some(kstat) = read_file(&dir.join(path))? {
                        out.push((path.clone(), kstat));
                    }
                }
            }
        }
        Ok(out)
    }

    /// One kstat.
    ///
    /// # Errors
    /// As [`StatSource::read`].
    pub(crate) fn get(&mut self, path: &str) -> Result<Option<Kstat>> {
        Ok(self.read(&[path.to_owned()])?.pop().map(|(_, k)| k))
    }

    /// `arcstats`, which must exist.
    ///
    /// # Errors
    /// It is missing; else as for [`StatSource::read`].
    pub(crate) fn arcstats(&mut self) -> Result<Kstat> {
        let missing = || Error::not_found("there is no arcstats: is this a directory of kstats?");
        self.get("arcstats")?.ok_or_else(missing)
    }
}

/// Files in a directory and in its subdirectories, which stand for pools.
fn names_below(dir: &Path) -> Result<Vec<String>> {
    let mut out = Vec::new();
    let mut todo = vec![(dir.to_owned(), String::new())];
    while let Some((at, prefix)) = todo.pop() {
        let io = |e| Error::io("cannot read", e).on_path(at.display().to_string());
        for entry in std::fs::read_dir(&at).map_err(io)? {
            let entry = entry.map_err(io)?;
            // A name that is not UTF-8 is not a kstat's.
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = format!("{prefix}{name}");
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && prefix.is_empty() => {
                    todo.push((entry.path(), format!("{path}/")));
                }
                Ok(kind) if kind.is_file() => out.push(path),
                _ => {}
            }
            if out.len() + todo.len() > FILES_MAX {
                return Err(Error::limit(format!("more than {FILES_MAX} files")));
            }
        }
    }
    out.sort();
    Ok(out)
}

fn read_file(path: &Path) -> Result<Option<Kstat>> {
    let place = || path.display().to_string();
    let io = |e| Error::io("cannot read", e).on_path(place());
    // Does not block if the path is a pipe.
    let open = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file: File = match open {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io(e)),
    };
    if !file.metadata().map_err(io)?.is_file() {
        return Err(Error::invalid("not a regular file").on_path(place()));
    }
    let mut bytes = Vec::new();
    file.take(kstat::text::FILE_MAX as u64 + 1).read_to_end(&mut bytes).map_err(io)?;
    kstat::text::parse(&String::from_utf8_lossy(&bytes)).map(Some).map_err(|e| e.on_path(place()))
}
