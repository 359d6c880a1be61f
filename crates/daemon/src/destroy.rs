//! `zfs destroy`: which datasets it destroys, and in which order (chapter 09 §3).
//!
//! # Invariants
//! * The whole set of datasets is determined before any of them is destroyed. Mounted ones are
//!   unmounted first, and a mount in use aborts the command.
//! * A volume, or a snapshot of one, that a program has open is not destroyed.
//!
//! # Departures from OpenZFS
//! * Clones are destroyed before the datasets that they depend on, each subtree by itself.

use std::collections::BTreeSet;

use base::limits::DATASET_DEPTH_MAX;
use base::{Error, ErrorKind, Result};
use cenote::props::PropData;
use cenote::{Dataset, DatasetKind, Pool};
use proto::{DestroyArgs, Reply, TARGETS_MAX};

use super::access::Caller;
use super::datasets::{cannot, command, subtree};
use super::mounts::UnmountReason;
use super::remount;
use super::state::{DaemonState, Listener};

/// The datasets that a command destroys.
#[derive(Default)]
struct DestroyPlan {
    /// Roots of subtrees, in the order of their destruction.
    roots: Vec<String>,
    /// Snapshots of datasets that stay.
    snapshots: Vec<String>,
    /// All names, in the order in which they are reported.
    names: Vec<String>,
}

impl DestroyPlan {
    /// Whether a dataset is destroyed.
    fn includes(&self, name: &str) -> bool {
        self.roots.iter().any(|root| remount::inside(name, root))
    }
}

/// Serves the command.
///
/// # Errors
/// The whole message for the user; an empty one if everything was reported already.
pub(super) fn destroy(
    state: &DaemonState,
    args: &DestroyArgs,
    by: &Caller,
    to: &mut dyn Listener,
) -> Result<Reply> {
    let target = args.target.as_str();
    let (plan, reclaim, pool) = match target.split_once('@') {
        Some((fs, list)) => {
            let (pool, dataset) = state.open(fs)?;
            let (plan, reclaim) = of_snapshots(&pool, &dataset, list, args)?;
            (plan, reclaim, pool)
        }
        None if target.contains('#') => {
            return destroy_bookmark(state, args, by);
        }
        None => {
            if args.defer {
                let text = format!(
                    "cannot destroy '{target}': operation not applicable to \
                     datasets of this type"
                );
                return Err(Error::invalid(text));
            }
            let (pool, dataset) = state.open(target)?;
            (of_dataset(&pool, &dataset, args)?, 0, pool)
        }
    };
    for name in plan.names.iter().chain(&plan.roots) {
        let may = by.require(&pool, name, &["destroy", "mount"]);
        let action = if name.contains('@') { "cannot destroy snapshot" } else { "cannot destroy" };
        may.map_err(|e| cannot(action, name, &e))?;
    }
    if !args.dry_run {
        let fail = |e: Error| cannot("cannot destroy", target, &e);
        pool.writer().map_err(fail)?;
        if let Some(open) = state.open_volume_of(&plan.names) {
            let action =
                if open.contains('@') { "cannot destroy snapshot" } else { "cannot destroy" };
            return Err(cannot(action, open, &Error::busy("dataset is busy")));
        }
        by.require_fixed_mounts(state, |name| plan.includes(name))?;
        unmount(state, &plan, args.force, to)?;
        let deferred = deferred_origins(&plan, &pool);
        carry_out(&by.acting(&pool), &plan, args)?;
        remount::snapshots_changed(state, &plan.names);
        remount::snapshots_changed(state, &deferred);
        let is_volume = |n: &String| !n.contains('@') || state.is_shown_volume(n);
        if plan.names.iter().any(is_volume) {
            state.show_volumes(&pool, to);
        }
    }
    Ok(Reply::Destroyed(plan.names, reclaim))
}

fn destroy_bookmark(state: &DaemonState, args: &DestroyArgs, by: &Caller) -> Result<Reply> {
    let name = args.target.as_str();
    let fail = |e: Error| cannot("cannot destroy bookmark", name, &e);
    let missing = || Error::not_found(format!("bookmark '{name}' does not exist."));
    let fs = name.split('#').next().unwrap_or(name);
    let (pool, _) = state.open(fs)?;
    match pool.dataset(name) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Err(missing()),
        other => other.map_err(fail)?,
    };
    by.require(&pool, name, &["destroy"]).map_err(fail)?;
    if !args.dry_run {
        by.acting(&pool)
            .destroy_bookmarks(&[name.to_owned()], command(&args.command))
            .map_err(fail)?;
    }
    Ok(Reply::Destroyed(Vec::new(), 0))
}

/// Snapshots whose destruction was deferred until their last clone among these is gone.
fn deferred_origins(plan: &DestroyPlan, pool: &Pool) -> Vec<String> {
    let origin = |name: &String| {
        let dataset = pool.dataset(name).ok()?;
        match dataset.prop("origin").ok()??.value {
            PropData::Str(origin) => Some(origin),
            _ => None,
        }
    };
    let deferred = |name: &String| {
        let value = pool.dataset(name).and_then(|s| s.prop("defer_destroy"));
        matches!(value, Ok(Some(v)) if v.value == PropData::Num(1))
    };
    let heads = plan.names.iter().filter(|n| !n.contains('@'));
    heads.filter_map(origin).filter(deferred).collect()
}

/// The plan for a file system or volume, with what the options include.
fn of_dataset(pool: &Pool, dataset: &Dataset, args: &DestroyArgs) -> Result<DestroyPlan> {
    let name = dataset.name();
    let fail = |e: Error| cannot("cannot destroy", name, &e);
    let is_root = !name.contains('/');
    let recursive = args.recursive || args.clones;
    if is_root && !recursive {
        return Err(Error::invalid(format!(
            "cannot destroy '{name}': operation does not apply to pools\nuse 'zfs destroy -r \
             {name}' to destroy all datasets in the pool\nuse 'zpool destroy {name}' to destroy \
             the pool itself"
        )));
    }
    let below = subtree(dataset).map_err(fail)?;
    let mut depend: Vec<String> = Vec::new();
    for d in &below {
        let snaps = d.snapshots().map_err(fail)?;
        depend.extend(snaps.iter().map(|s| s.name().to_owned()));
        if d.name() != name {
            depend.push(d.name().to_owned());
        }
    }
    if !recursive && !depend.is_empty() {
        let word = if dataset.kind() == DatasetKind::Volume { "volume" } else { "filesystem" };
        return Err(Error::new(
            ErrorKind::Exists,
            format!(
                "cannot destroy '{name}': {word} has children\nuse '-r' to destroy the following \
             datasets:\n{}",
                depend.join("\n")
            ),
        ));
    }
    let mut plan = DestroyPlan::default();
    let clones = clones_outside(pool, &below, name, args.clones).map_err(fail)?;
    if !clones.is_empty() && !args.clones {
        let text = format!(
            "cannot destroy '{name}': filesystem has dependent clones\nuse '-R' to destroy the \
             following datasets:\n{}",
            clones.join("\n")
        );
        return Err(Error::new(ErrorKind::Exists, text));
    }
    for clone in clones {
        let clone = pool.dataset(&clone).map_err(fail)?;
        list_names(&clone, true, &mut plan.names).map_err(fail)?;
        plan.roots.push(clone.name().to_owned());
    }
    list_names(dataset, !is_root, &mut plan.names).map_err(fail)?;
    if is_root {
        let children = dataset.children().map_err(fail)?;
        plan.roots.extend(children.iter().map(|c| c.name().to_owned()));
        let own = dataset.snapshots().map_err(fail)?;
        plan.snapshots.extend(own.iter().map(|s| s.name().to_owned()));
    } else {
        plan.roots.push(name.to_owned());
    }
    Ok(plan)
}

/// Adds names in the order in which they are reported: children, snapshots, the dataset itself.
fn list_names(dataset: &Dataset, itself: bool, out: &mut Vec<String>) -> Result<()> {
    let mut all = subtree(dataset)?;
    all.reverse();
    for d in all {
        out.extend(d.snapshots()?.iter().map(|s| s.name().to_owned()));
        if itself || d.name() != dataset.name() {
            out.push(d.name().to_owned());
        }
        if out.len() > TARGETS_MAX {
            return Err(Error::limit("argument list too long"));
        }
    }
    Ok(())
}

pub(super) fn clone_names(snapshot: &Dataset) -> Result<Vec<String>> {
    Ok(match snapshot.prop("clones")?.map(|v| v.value) {
        Some(PropData::Str(list)) => list.split(',').map(str::to_owned).collect(),
        _ => Vec::new(),
    })
}

/// Clones of these datasets' snapshots that are not below `root`, in the order in which they
/// can be destroyed; with `deep` also the clones of those.
fn clones_outside(pool: &Pool, all: &[Dataset], root: &str, deep: bool) -> Result<Vec<String>> {
    let below = format!("{root}/");
    let mut out: Vec<String> = Vec::new();
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let mut todo: Vec<Dataset> = all.to_vec();
    let mut steps = 0;
    while let Some(dataset) = todo.pop() {
        steps += 1;
        if steps > TARGETS_MAX * DATASET_DEPTH_MAX {
            return Err(Error::limit("too many clones"));
        }
        for snapshot in dataset.snapshots()? {
            for clone in clone_names(&snapshot)? {
                if clone == root || clone.starts_with(&below) || !seen.insert(clone.clone()) {
                    continue;
                }
                if deep {
                    todo.extend(subtree(&pool.dataset(&clone)?)?);
                }
                out.push(clone);
            }
        }
    }
    // A clone's own clones were found after it, and must be destroyed before it.
    out.reverse();
    Ok(out)
}

/// The snapshots of one dataset that a list names (`a,b%c,%d`), oldest first.
fn named(dataset: &Dataset, list: &str) -> Result<Vec<Dataset>> {
    let all = dataset.snapshots()?;
    let last = |s: &Dataset| s.name().split_once('@').map_or("", |n| n.1).to_owned();
    let place = |name: &str| all.iter().position(|s| last(s) == name);
    let mut wanted = BTreeSet::new();
    for part in list.split(',') {
        match part.split_once('%') {
            None => wanted.extend(place(part)),
            Some((from, until)) => {
                let missing = |n: &str| {
                    let text = format!("could not find snapshot '{}@{n}'", dataset.name());
                    Error::not_found(text)
                };
                let first = match from {
                    "" => 0,
                    name => place(name).ok_or_else(|| missing(name))?,
                };
                let end = match until {
                    "" => all.len(),
                    name => place(name).ok_or_else(|| missing(name))? + 1,
                };
                wanted.extend(first..end);
            }
        }
    }
    Ok(wanted.into_iter().filter_map(|i| all.get(i).cloned()).collect())
}

/// The plan for snapshots, with the bytes that they free if these are wanted.
fn of_snapshots(
    pool: &Pool,
    dataset: &Dataset,
    list: &str,
    args: &DestroyArgs,
) -> Result<(DestroyPlan, u64)> {
    let fail = |e: Error| cannot("cannot destroy", &args.target, &e);
    let deep = args.recursive || args.clones;
    let of = if deep { subtree(dataset).map_err(fail)? } else { vec![dataset.clone()] };
    let mut plan = DestroyPlan::default();
    let mut reclaim = 0u64;
    for d in &of {
        let snaps = match named(d, list) {
            // A range need not exist in every descendant.
            Err(e) if e.kind() == ErrorKind::NotFound && d.name() != dataset.name() => continue,
            other => other.map_err(fail)?,
        };
        for snap in &snaps {
            check_snapshot(pool, snap, args, &mut plan)?;
            plan.names.push(snap.name().to_owned());
            plan.snapshots.push(snap.name().to_owned());
        }
        // It takes time that grows with the square of the number of snapshots.
        if args.sizes {
            reclaim = reclaim.saturating_add(d.reclaimable(&snaps).map_err(fail)?);
        }
    }
    if plan.snapshots.is_empty() {
        let text = "could not find any snapshots to destroy; check snapshot names.";
        return Err(Error::not_found(text));
    }
    Ok((plan, reclaim))
}

/// Fails if holds or clones prevent the destruction and the options do not override them.
fn check_snapshot(
    pool: &Pool,
    snap: &Dataset,
    args: &DestroyArgs,
    plan: &mut DestroyPlan,
) -> Result<()> {
    let name = snap.name();
    let fail = |e: Error| cannot("cannot destroy snapshot", name, &e);
    let holds = match snap.prop("userrefs").map_err(fail)?.map(|v| v.value) {
        Some(PropData::Num(n)) => n,
        _ => 0,
    };
    if holds > 0 && !args.defer {
        return Err(Error::busy(format!(
            "cannot destroy snapshot {name}: it's being held. Run 'zfs holds -r {name}' to see \
             holders."
        )));
    }
    let clones = clone_names(snap).map_err(fail)?;
    if clones.is_empty() || args.defer && !args.clones {
        return Ok(());
    }
    if !args.clones {
        let text = format!("cannot destroy snapshot {name}: snapshot is cloned");
        return Err(Error::new(ErrorKind::Exists, text));
    }
    for clone in clones {
        let clone = pool.dataset(&clone).map_err(fail)?;
        let below = subtree(&clone).map_err(fail)?;
        let further = clones_outside(pool, &below, clone.name(), true).map_err(fail)?;
        for root in further.into_iter().chain([clone.name().to_owned()]) {
            if !plan.roots.contains(&root) {
                list_names(&pool.dataset(&root).map_err(fail)?, true, &mut plan.names)
                    .map_err(fail)?;
                plan.roots.push(root);
            }
        }
    }
    Ok(())
}

/// Unmounts the datasets of the plan.
fn unmount(
    state: &DaemonState,
    plan: &DestroyPlan,
    force: bool,
    to: &mut dyn Listener,
) -> Result<()> {
    match state.unmount_where(|name| plan.includes(name), UnmountReason::Destroyed, force, to) {
        true => Ok(()),
        false => Err(Error::busy(String::new())),
    }
}

fn carry_out(pool: &Pool, plan: &DestroyPlan, args: &DestroyArgs) -> Result<()> {
    let mut log = command(&args.command);
    for root in &plan.roots {
        let fail = |e: Error| cannot("cannot destroy", root, &e);
        pool.destroy_dataset(root, true, log.take()).map_err(fail)?;
    }
    if plan.snapshots.is_empty() {
        return Ok(());
    }
    let fail = |e: Error| match (&e.location().dataset, e.kind()) {
        (Some(name), ErrorKind::Exists) => {
            Error::new(e.kind(), format!("cannot destroy snapshot {name}: snapshot is cloned"))
        }
        (Some(name), _) => {
            Error::new(e.kind(), format!("cannot destroy snapshot {name}: {}", e.message()))
        }
        _ => cannot("cannot destroy", &args.target, &e),
    };
    pool.destroy_snapshots(&plan.snapshots, args.defer, log).map_err(fail)
}
