//! Updates of mounts when their datasets change: properties that decide where and how a dataset
//! is mounted, and snapshots shown beneath `.zfs`.
//!
//! # Theory
//! If the mountpoint changes, the dataset is unmounted first, which fails if it is in use.
//! After the change everything that should be mounted is mounted. If only options change, the
//! mount stays: a remount changes the kernel's flags, and the file system itself takes the
//! other options. Options that the kernel fixes for the life of a mount (POSIX ACLs) need a new
//! mount, which is made if the old one is not in use.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use base::{Error, Result};
use cenote::{Dataset, DatasetKind, Pool};

use super::access::Caller;
use super::mounts::{self, MountPlan, UnmountReason};
use super::state::{DaemonState, Listener};

/// Properties that decide where and whether a dataset is mounted.
const MOUNTPOINT_PROPS: [&str; 2] = ["mountpoint", "canmount"];
/// Properties that decide how it is mounted.
const OPTION_PROPS: [&str; 7] =
    ["readonly", "setuid", "devices", "exec", "snapdir", "acltype", "atime"];

/// Discards messages: the caller reports failures in its own words.
struct NullListener;

impl Listener for NullListener {
    fn progress(&mut self, _: &str, _: u64, _: u64) {}
    fn problem(&mut self, _: String) {}
    fn remark(&mut self, _: String) {}
    fn is_gone(&self) -> bool {
        false
    }
}

/// The effects of a change of properties on mounts.
pub(super) struct Remount {
    root: String,
    /// The mountpoint may change.
    moves: bool,
    /// Mounts follow.
    place: bool,
    manner: bool,
    canmount: bool,
    /// Datasets that were unmounted.
    unmounted: Vec<String>,
}

/// Whether a dataset is `root` or below it.
pub(super) fn inside(name: &str, root: &str) -> bool {
    name.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Remount {
    /// The effects of changing the named properties for a user; with `leave` mounts stay where
    /// they are. Nothing is mounted for users other than the daemon's owner.
    pub(super) fn new(dataset: &Dataset, changed: &[String], leave: bool, by: &Caller) -> Remount {
        let any = |names: &[&str]| changed.iter().any(|c| names.contains(&c.as_str()));
        let fs = dataset.kind() == DatasetKind::Filesystem;
        let moves = fs && !leave && any(&MOUNTPOINT_PROPS);
        Remount {
            root: dataset.name().to_owned(),
            moves,
            place: moves && by.is_owner(),
            manner: fs && any(&OPTION_PROPS),
            canmount: any(&["canmount"]) && !any(&["mountpoint"]),
            unmounted: Vec::new(),
        }
    }

    /// Refuses effects on mounts that a user may not have: the daemon does not mount for other
    /// users, and changes options only at places that they cannot move.
    ///
    /// # Errors
    /// `Permission`, with the whole message.
    pub(super) fn check(&self, state: &DaemonState, by: &Caller) -> Result<()> {
        if self.moves {
            by.require_unmounted(state, |name| inside(name, &self.root))?;
        }
        if self.manner {
            by.require_fixed_mounts(state, |name| inside(name, &self.root))?;
        }
        Ok(())
    }

    /// Unmounts the datasets whose mountpoint changes.
    ///
    /// # Errors
    /// A mount is in use; the message is empty, because the failure was reported.
    pub(super) fn before(&mut self, state: &DaemonState, to: &mut dyn Listener) -> Result<()> {
        // `canmount` concerns the dataset alone, and changing it unmounts nothing here.
        if !self.place || self.canmount {
            return Ok(());
        }
        let root = self.root.clone();
        let moving = |name: &str| inside(name, &root);
        self.unmounted = state.mounted_below(moving).into_iter().map(|m| m.0).collect();
        if state.unmount_where(moving, UnmountReason::Moved, false, to) {
            return Ok(());
        }
        Err(Error::busy(String::new()))
    }

    /// Mounts what should be mounted now, and updates the options of the other mounts.
    pub(super) fn after(&mut self, state: &DaemonState, pool: &Arc<Pool>, to: &mut dyn Listener) {
        let Ok(dataset) = pool.dataset(&self.root) else { return };
        if self.place && self.canmount {
            self.after_canmount(state, &dataset, to);
        } else if self.place {
            // Datasets that were mounted by hand (`noauto`) are mounted again, too.
            for name in self.unmounted.iter().rev() {
                mount_again(state, pool, name, to);
            }
            if dataset.kind() == DatasetKind::Filesystem {
                state.mount_below(&dataset, &[], to);
            }
        }
        if self.manner {
            follow(state, pool, &self.root, to);
        }
    }

    /// `on` mounts, `off` unmounts, `noauto` changes nothing.
    fn after_canmount(&self, state: &DaemonState, dataset: &Dataset, to: &mut dyn Listener) {
        match mounts::plan(dataset, false) {
            Ok(Ok(plan)) if !state.is_mounted(dataset.name()) => mount(state, &plan, to),
            Ok(Err(mounts::Refusal::CanmountOff)) => {
                let root = dataset.name().to_owned();
                state.unmount_where(|name| name == root, UnmountReason::Moved, false, to);
            }
            Ok(_) => {}
            Err(e) => to.problem(format!("cannot mount '{}': {e}", dataset.name())),
        }
    }
}

fn mount(state: &DaemonState, plan: &MountPlan, to: &mut dyn Listener) {
    if let Err(e) = state.mount_one(plan, &[], true) {
        to.problem(e.message().to_owned());
    }
}

fn mount_again(state: &DaemonState, pool: &Pool, name: &str, to: &mut dyn Listener) {
    let Ok(dataset) = pool.dataset(name) else { return };
    match mounts::plan(&dataset, true) {
        Ok(Ok(plan)) if !state.is_mounted(name) => mount(state, &plan, to),
        Ok(_) => {}
        Err(e) => to.problem(format!("cannot mount '{name}': {e}")),
    }
}

/// Mounts datasets again that were unmounted for a change, parents first. One with
/// `mountpoint=legacy` returns to the directory where it was.
pub(super) fn put_back(
    state: &DaemonState,
    pool: &Pool,
    unmounted: &[(String, PathBuf)],
    to: &mut dyn Listener,
) {
    let mut list: Vec<&(String, PathBuf)> = unmounted.iter().collect();
    list.sort_by(|a, b| a.1.cmp(&b.1));
    for (name, at) in list {
        let Ok(dataset) = pool.dataset(name) else { continue };
        match mounts::plan_legacy(&dataset, at) {
            Ok(Ok(plan)) => mount(state, &plan, to),
            Ok(Err(_)) => mount_again(state, pool, name, to),
            Err(e) => to.problem(format!("cannot mount '{name}': {e}")),
        }
    }
}

/// Updates the mounts of a dataset and its descendants to the present properties.
fn follow(state: &DaemonState, pool: &Arc<Pool>, root: &str, to: &mut dyn Listener) {
    for (name, at, fs) in state.mounted_below(|n| inside(n, root)) {
        let options = pool.dataset(&name).and_then(|d| mounts::options(&d));
        let done = options.and_then(|options| fs.remount(&options));
        match done {
            Ok(true) => {}
            // Needs a new mount; it is made if the old one is not in use.
            Ok(false) => remount_fully(state, pool, &name, at, to),
            Err(e) => to.problem(format!("cannot remount '{}': {e}", at.display())),
        }
    }
}

fn remount_fully(
    state: &DaemonState,
    pool: &Arc<Pool>,
    name: &str,
    at: PathBuf,
    to: &mut dyn Listener,
) {
    let below = state.mounted_below(|n| inside(n, name) && n != name);
    let mine = |n: &str| n == name;
    let unused = below.is_empty()
        && state.unmount_where(mine, UnmountReason::Requested, false, &mut NullListener);
    if !unused {
        let text = format!("'{}' is in use: the change shows at its next mount", at.display());
        to.remark(text);
        return;
    }
    mount_again(state, pool, name, to);
}

/// Notifies the mounts that their datasets' snapshots changed.
pub(super) fn snapshots_changed(state: &DaemonState, names: &[String]) {
    let mut by_dataset: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (fs, snap) in names.iter().filter_map(|n| n.split_once('@')) {
        by_dataset.entry(fs).or_default().push(snap);
    }
    for (name, _, fs) in state.served(|n| by_dataset.contains_key(n)) {
        fs.snapshots_changed(by_dataset.get(name.as_str()).map_or(&[], Vec::as_slice));
    }
}
