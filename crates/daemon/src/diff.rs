//! `zfs diff` (chapter 09 §3.5).
//!
//! # Theory
//! The present content of a file system is compared as of a snapshot that is taken for it and
//! destroyed afterwards, as in OpenZFS. It can be seen meanwhile, and stays if the daemon is
//! killed; its name tells what it was for.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Error, ErrorKind, Result};
use cenote::files::FileType;
use cenote::props::PropData;
use cenote::{Dataset, DatasetKind, DiffChange, DiffEntry, Pool};
use proto::{DiffArgs, DiffKind, DiffRecord, Reply};

use super::access::Caller;
use super::datasets::cannot;
use super::handle::RowListener;
use super::remount;
use super::sending::Chunks;
use super::state::DaemonState;

/// Numbers of temporary snapshots.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A snapshot that is destroyed with this value.
struct Temporary<'a> {
    state: &'a DaemonState,
    pool: Arc<Pool>,
    name: String,
}

impl<'a> Temporary<'a> {
    fn take(
        state: &'a DaemonState,
        pool: &Arc<Pool>,
        fs: &str,
        to: &mut dyn RowListener,
    ) -> Result<Temporary<'a>> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{fs}@zfs-diff-{}-{number}", std::process::id());
        let _turn = state.changing(std::iter::once(fs), "file systems are compared", to)?;
        pool.snapshot(std::slice::from_ref(&name), &[], None)?;
        remount::snapshots_changed(state, std::slice::from_ref(&name));
        Ok(Temporary { state, pool: Arc::clone(pool), name })
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        let names = std::slice::from_ref(&self.name);
        // A clone or hold made of it meanwhile keeps it until that is gone.
        if let Err(e) = self.pool.destroy_snapshots(names, true, None) {
            ui::err(&format!("the snapshot {} stays: {e}", self.name));
        }
        remount::snapshots_changed(self.state, names);
    }
}

fn kind(of: FileType) -> DiffKind {
    match of {
        FileType::Dir => DiffKind::Directory,
        FileType::Block => DiffKind::BlockDevice,
        FileType::Char => DiffKind::CharDevice,
        FileType::Symlink => DiffKind::Symlink,
        FileType::Fifo => DiffKind::Fifo,
        FileType::Socket => DiffKind::Socket,
        FileType::Regular | FileType::Unknown => DiffKind::File,
    }
}

/// The directory before all paths: where the file system is mounted, or would be.
fn prefix(state: &DaemonState, pool: &Pool, fs: &str) -> Result<Vec<u8>> {
    let mounted = state.mounts().into_iter().find(|m| m.dataset == fs).map(|m| m.mountpoint);
    let place = match mounted {
        Some(place) => place,
        None => match pool.dataset(fs)?.prop("mountpoint")?.map(|v| v.value) {
            Some(PropData::Str(place)) if Path::new(&place).is_absolute() => place,
            _ => String::new(),
        },
    };
    Ok(place.trim_end_matches('/').as_bytes().to_vec())
}

fn record(entry: DiffEntry, prefix: &[u8]) -> DiffRecord {
    let whole = |path: Vec<u8>| [prefix, &path].concat();
    let (change, links) = match entry.change {
        DiffChange::Added => ('+', 0),
        DiffChange::Removed => ('-', 0),
        DiffChange::Modified { links } => ('M', links),
        DiffChange::Renamed => ('R', 0),
    };
    DiffRecord {
        change,
        kind: kind(entry.kind),
        links,
        ctime: entry.ctime,
        path: whole(entry.path),
        new_path: entry.new_path.map(whole),
    }
}

/// Serves the command: frames of records.
///
/// # Errors
/// The whole message for the user.
pub(super) fn diff(
    state: &DaemonState,
    args: &DiffArgs,
    by: &Caller,
    to: &mut dyn RowListener,
) -> Result<Reply> {
    let (name, fs) = (args.from.as_str(), args.from.split('@').next().unwrap_or(&args.from));
    let target = args.to.as_deref().unwrap_or(fs);
    let fail = |e: Error| match e.kind() {
        ErrorKind::CrossDevice => {
            let text = "not an earlier snapshot from the same fs";
            cannot("cannot diff", target, &Error::new(e.kind(), text))
        }
        ErrorKind::Locked => {
            cannot("cannot diff", target, &Error::new(e.kind(), "dataset key must be loaded"))
        }
        _ => cannot("cannot diff", target, &e),
    };
    let (pool, from) = state.open(name)?;
    let (other, later) = state.open(target)?;
    if other.guid() != pool.guid() {
        return Err(fail(Error::invalid("operation crosses datasets or pools")));
    }
    if from.kind() != DatasetKind::Snapshot {
        let text = "missing '@' delimiter in snapshot name";
        return Err(cannot("cannot open", name, &Error::invalid(text)));
    }
    if !matches!(later.kind(), DatasetKind::Snapshot | DatasetKind::Filesystem) {
        let text = "operation not applicable to datasets of this type";
        return Err(cannot("cannot open", target, &Error::invalid(text)));
    }
    by.require(&pool, name, &["diff"]).map_err(fail)?;
    by.require(&pool, target, &["diff"]).map_err(fail)?;
    let of = target.split('@').next().unwrap_or(target);
    let prefix = prefix(state, &pool, of).map_err(fail)?;
    let is_live = later.kind() == DatasetKind::Filesystem && !pool.is_readonly();
    let temporary = match is_live {
        // What cannot be compared needs no snapshot.
        true => {
            later.is_later_than(&from).map_err(fail)?;
            Some(Temporary::take(state, &pool, target, to).map_err(fail)?)
        }
        false => None,
    };
    let later: Dataset = match &temporary {
        Some(snapshot) => pool.dataset(&snapshot.name).map_err(fail)?,
        None => later,
    };
    let mut output = Chunks::new(to);
    let visit = &mut |entry: DiffEntry| {
        let bytes = record(entry, &prefix).encode();
        output.write_all(&bytes).map_err(|e| Error::io("the client has disconnected", e))
    };
    later.diff(&from, visit).map_err(fail)?;
    output.flush().map_err(|e| fail(Error::io("the client has disconnected", e)))?;
    Ok(Reply::Done)
}
