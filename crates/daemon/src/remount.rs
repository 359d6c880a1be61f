//! Mounts that follow their datasets: properties that say where and how something is
//! mounted, and snapshots that come and go beneath `.zfs`.
//!
//! # Theory
//! Where the place changes, what is mounted there is unmounted first, in use or not
//! decides; afterwards everything that belongs mounted is. Where only the manner
//! changes, the mount stays: the kernel's flags change by a remount, the file system
//! itself hears of the rest. What the kernel settles for the life of a mount (POSIX
//! ACLs) is changed by a new mount if nobody uses the old one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use base::{Error, Result};
use cenote::{Dataset, DatasetKind, Pool};

use super::mounts::{self, MountPlan, UnmountReason};
use super::state::{DaemonState, Listener};

/// Properties that say where and whether.
const PLACE: [&str; 2] = ["mountpoint", "canmount"];
/// Properties that say how.
const MANNER: [&str; 7] = ["readonly", "setuid", "devices", "exec", "snapdir", "acltype", "atime"];

/// Hears nothing: what fails is told in other words.
struct NullListener;

impl Listener for NullListener {
    fn progress(&mut self, _: &str, _: u64, _: u64) {}
    fn problem(&mut self, _: String) {}
    fn remark(&mut self, _: String) {}
    fn is_gone(&self) -> bool {
        false
    }
}

/// What a change of properties does to mounts.
pub(super) struct Remount {
    root: String,
    place: bool,
    manner: bool,
    canmount: bool,
    /// What was unmounted.
    unmounted: Vec<String>,
}

fn inside(name: &str, root: &str) -> bool {
    name.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Remount {
    /// Of a change of the properties named; with `leave` mounts stay where they are.
    ///
    /// # Errors
    /// None yet.
    pub(super) fn new(dataset: &Dataset, changed: &[String], leave: bool) -> Result<Remount> {
        let any = |names: &[&str]| changed.iter().any(|c| names.contains(&c.as_str()));
        let fs = dataset.kind() == DatasetKind::Filesystem;
        Ok(Remount {
            root: dataset.name().to_owned(),
            place: fs && !leave && any(&PLACE),
            manner: fs && any(&MANNER),
            canmount: any(&["canmount"]) && !any(&["mountpoint"]),
            unmounted: Vec::new(),
        })
    }

    /// Unmounts what moves.
    ///
    /// # Errors
    /// Something is in use: an empty message, for it was told.
    pub(super) fn before(&mut self, state: &DaemonState, to: &mut dyn Listener) -> Result<()> {
        // `canmount` concerns the dataset alone, and undoes no mount by itself.
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

    /// Mounts what belongs mounted now, and tells the rest how.
    pub(super) fn after(&mut self, state: &DaemonState, pool: &Arc<Pool>, to: &mut dyn Listener) {
        let Ok(dataset) = pool.dataset(&self.root) else { return };
        if self.place && self.canmount {
            self.after_canmount(state, &dataset, to);
        } else if self.place {
            // Those that were mounted by hand (`noauto`) come back, too.
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

    /// `on` mounts, `off` unmounts, `noauto` leaves everything as it is.
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

/// Tells the mounts of a dataset and what is below it how they are now.
fn follow(state: &DaemonState, pool: &Arc<Pool>, root: &str, to: &mut dyn Listener) {
    for (name, at, fs) in state.mounted_below(|n| inside(n, root)) {
        let options = pool.dataset(&name).and_then(|d| mounts::options(&d));
        let done = options.and_then(|options| fs.remount(&options));
        match done {
            Ok(true) => {}
            // What only a new mount can do, is done if nobody uses the old one.
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

/// Tells the mounts that snapshots of theirs came or went.
pub(super) fn snapshots_changed(state: &DaemonState, names: &[String]) {
    let mut by_dataset: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (fs, snap) in names.iter().filter_map(|n| n.split_once('@')) {
        by_dataset.entry(fs).or_default().push(snap);
    }
    for (name, _, fs) in state.served(|n| by_dataset.contains_key(n)) {
        fs.snapshots_changed(by_dataset.get(name.as_str()).map_or(&[], Vec::as_slice));
    }
}
