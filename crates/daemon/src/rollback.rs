//! `zfs rollback` (chapter 09 §3).
//!
//! # Theory
//! What would be lost besides the dataset's own changes is determined first, and refused
//! unless the options include it. A mounted file system is unmounted before anything changes and
//! mounted again in the end, with those that are mounted inside of it. Those inside must not be
//! in use. The file system itself may be: its open files end with errors, as their content is
//! given up.
//!
//! # Departures from OpenZFS
//! * Open files and working directories of the file system end. In OpenZFS those of files
//!   that the snapshot has, too, go on.

use std::path::PathBuf;

use base::{Error, ErrorKind, Result};
use cenote::{Dataset, DatasetKind, Pool};
use proto::{DestroyArgs, Reply, RollbackArgs};

use super::access::Caller;
use super::datasets::{cannot, command};
use super::destroy;
use super::mounts::UnmountReason;
use super::remount;
use super::state::{DaemonState, Listener};

/// What is newer than a snapshot: names, oldest first.
#[derive(Default)]
struct Newer {
    snapshots: Vec<String>,
    bookmarks: Vec<String>,
    clones: Vec<String>,
}

impl Newer {
    fn than(dataset: &Dataset, snapshot: &Dataset) -> Result<Newer> {
        let mut newer = Newer::default();
        for other in dataset.snapshots()? {
            if other.createtxg() > snapshot.createtxg() {
                newer.clones.extend(destroy::clone_names(&other)?);
                newer.snapshots.push(other.name().to_owned());
            }
        }
        for mark in dataset.bookmarks()? {
            if mark.createtxg() > snapshot.createtxg() {
                newer.bookmarks.push(mark.name().to_owned());
            }
        }
        Ok(newer)
    }

    /// Refuses what the options do not include.
    fn check(&self, args: &RollbackArgs) -> Result<()> {
        let refuse = |why: &str, hint: &str, names: &[&String]| {
            let list: Vec<&str> = names.iter().map(|n| n.as_str()).collect();
            let text = format!(
                "cannot rollback to '{}': {why}\nuse '{hint}:\n{}",
                args.snapshot,
                list.join("\n")
            );
            Err(Error::new(ErrorKind::Exists, text))
        };
        let all: Vec<&String> = self.snapshots.iter().chain(&self.bookmarks).collect();
        if !all.is_empty() && !args.recursive && !args.clones {
            let hint = "-r' to force deletion of the following snapshots and bookmarks";
            return refuse("more recent snapshots or bookmarks exist", hint, &all);
        }
        if !self.clones.is_empty() && !args.clones {
            let hint = "-R' to force deletion of the following clones and dependents";
            let clones: Vec<&String> = self.clones.iter().collect();
            return refuse("clones of previous snapshots exist", hint, &clones);
        }
        Ok(())
    }

    /// Destroys all of it; with `dry_run` it only checks that nothing prevents that.
    fn destroy(
        &self,
        state: &DaemonState,
        pool: &Pool,
        args: &RollbackArgs,
        dry_run: bool,
        by: &Caller,
        to: &mut dyn Listener,
    ) -> Result<()> {
        let fail = |e: Error| cannot("cannot rollback", &args.snapshot, &e);
        if !self.snapshots.is_empty() {
            let short = self.snapshots.iter().filter_map(|n| n.split_once('@').map(|n| n.1));
            let list = short.collect::<Vec<_>>().join(",");
            let fs = args.snapshot.split('@').next().unwrap_or_default();
            let doomed = DestroyArgs {
                target: format!("{fs}@{list}"),
                clones: args.clones,
                force: args.force,
                dry_run,
                ..DestroyArgs::default()
            };
            destroy::destroy(state, &doomed, by, to)?;
        }
        for name in &self.bookmarks {
            by.require(pool, name, &["destroy"]).map_err(fail)?;
        }
        if !self.bookmarks.is_empty() && !dry_run {
            pool.destroy_bookmarks(&self.bookmarks, None).map_err(fail)?;
        }
        Ok(())
    }
}

/// Serves the command.
///
/// # Errors
/// The whole message for the user; an empty one if everything was reported already.
pub(super) fn rollback(
    state: &DaemonState,
    args: &RollbackArgs,
    by: &Caller,
    to: &mut dyn Listener,
) -> Result<Reply> {
    let name = args.snapshot.as_str();
    let fail = |e: Error| cannot("cannot rollback", name, &e);
    let (pool, snapshot) = state.open(name)?;
    if snapshot.kind() != DatasetKind::Snapshot {
        let text = "missing '@' delimiter in snapshot name";
        return Err(cannot("cannot open", name, &Error::invalid(text)));
    }
    let fs = name.split('@').next().unwrap_or(name);
    let dataset = pool.dataset(fs).map_err(fail)?;
    let newer = Newer::than(&dataset, &snapshot).map_err(fail)?;
    newer.check(args)?;
    pool.writer().map_err(fail)?;
    by.require(&pool, fs, &["rollback", "mount"]).map_err(fail)?;
    let acting = by.acting(&pool);
    newer.destroy(state, &acting, args, true, by, to)?;
    let affected = mounted_inside(state, fs);
    by.require_fixed_mounts(state, |n| affected.iter().any(|name| name == n))?;
    let unmounted = unmount(state, fs, args.force, to);
    let done = match &unmounted {
        Ok(_) => newer
            .destroy(state, &acting, args, false, by, to)
            .and_then(|()| acting.rollback(name, command(&args.command)).map_err(fail)),
        Err((e, _)) => Err(Error::new(e.kind(), e.message())),
    };
    let (Ok(list) | Err((_, list))) = unmounted;
    remount::put_back(state, &pool, &list, to);
    if dataset.kind() == DatasetKind::Volume {
        state.show_volumes(&pool, to);
    }
    done.map(|()| Reply::Done)
}

/// Datasets with their mountpoints.
pub(super) type Unmounted = Vec<(String, PathBuf)>;

/// A dataset that is mounted, and those that are mounted inside of it.
pub(super) fn mounted_inside(state: &DaemonState, fs: &str) -> Vec<String> {
    let Some((_, at, _)) = state.mounted_below(|n| n == fs).pop() else { return Vec::new() };
    let mut all = state.mounted_below(|_| true);
    all.retain(|(_, below, _)| below.starts_with(&at));
    all.into_iter().map(|(name, ..)| name).collect()
}

/// Unmounts a dataset and what is mounted inside of it. If that fails, the error comes with
/// those that were unmounted already.
pub(super) fn unmount(
    state: &DaemonState,
    fs: &str,
    force: bool,
    to: &mut dyn Listener,
) -> std::result::Result<Unmounted, (Error, Unmounted)> {
    let Some((_, at, _)) = state.mounted_below(|n| n == fs).pop() else { return Ok(Vec::new()) };
    let mut nested = state.mounted_below(|n| n != fs);
    nested.retain(|(_, below, _)| below.starts_with(&at));
    let mut list: Unmounted = nested.into_iter().map(|(name, at, _)| (name, at)).collect();
    let inside = |n: &str| list.iter().any(|(name, _)| name == n);
    if !state.unmount_where(inside, UnmountReason::Requested, force, to) {
        list.retain(|(name, _)| !state.is_mounted(name));
        return Err((Error::busy(String::new()), list));
    }
    list.push((fs.to_owned(), at));
    // Its users lose what they have open in any case.
    let itself = |n: &str| n == fs;
    if !state.unmount_where(itself, UnmountReason::Requested, true, to) {
        list.retain(|(name, _)| !state.is_mounted(name));
        return Err((Error::busy(String::new()), list));
    }
    Ok(list)
}
