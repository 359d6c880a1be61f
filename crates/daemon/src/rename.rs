//! `zfs rename` (chapter 09 §3).
//!
//! # Theory
//! Mounted file systems are unmounted, the pool is changed, and they are mounted again under
//! their new names, where their properties say. With `-u`, and for mounts made with
//! `mountpoint=legacy`, the mounts stay as they are: a mount finds its dataset by its object,
//! and is told the new name.
//!
//! # Departures from OpenZFS
//! * The kernel's table of mounts shows the old name of a mount that stays.

use std::path::PathBuf;

use base::{Error, ErrorKind, Result};
use cenote::props::PropData;
use cenote::{DatasetKind, Pool};
use proto::{RenameArgs, Reply};

use super::access::Caller;
use super::datasets::{
    cannot, check_new_name, command, create_parents, missing_parents, pool_of, subtree,
};
use super::mounts::UnmountReason;
use super::remount::{self, inside};
use super::state::{DaemonState, Listener};

/// Serves the command.
///
/// # Errors
/// The whole message for the user; an empty one if everything was reported already.
pub(super) fn rename(
    state: &DaemonState,
    args: &RenameArgs,
    by: &Caller,
    to: &mut dyn Listener,
) -> Result<Reply> {
    match args.from.split_once('@') {
        Some((fs, snap)) => rename_snapshot(state, args, (fs, snap), by),
        None => rename_dataset(state, args, by, to),
    }
}

fn rename_snapshot(
    state: &DaemonState,
    args: &RenameArgs,
    (fs, snap): (&str, &str),
    by: &Caller,
) -> Result<Reply> {
    let fail = |e: Error| cannot("cannot rename", &args.from, &e);
    let Some(new) = args.to.strip_prefix(fs).and_then(|rest| rest.strip_prefix('@')) else {
        let text = "snapshots must be part of same dataset";
        return Err(cannot("cannot rename to", &args.to, &Error::invalid(text)));
    };
    let (pool, _) = state.open(&args.from)?;
    let of = pool.dataset(fs).map_err(fail)?;
    let all = if args.recursive { subtree(&of).map_err(fail)? } else { vec![of] };
    for dataset in &all {
        let name = format!("{}@{snap}", dataset.name());
        by.require(&pool, &name, &["rename", "create", "mount"]).map_err(fail)?;
    }
    pool.writer().map_err(fail)?;
    let done =
        by.acting(&pool).rename_snapshot(fs, (snap, new), args.recursive, command(&args.command));
    let renamed = done.map_err(|e| match (args.recursive, e.kind()) {
        (true, ErrorKind::Exists) => {
            let text = "a child dataset already has a snapshot with the new name";
            fail(Error::new(e.kind(), text))
        }
        _ => fail(e),
    })?;
    let names = renamed.iter().flat_map(|fs| [format!("{fs}@{snap}"), format!("{fs}@{new}")]);
    remount::snapshots_changed(state, &names.collect::<Vec<_>>());
    Ok(Reply::Done)
}

/// Whether a file system's mount stays whatever its name is.
fn stays(pool: &Pool, name: &str) -> bool {
    let mountpoint = pool.dataset(name).and_then(|d| d.prop("mountpoint"));
    matches!(mountpoint, Ok(Some(v)) if v.value == PropData::Str("legacy".into()))
}

fn rename_dataset(
    state: &DaemonState,
    args: &RenameArgs,
    by: &Caller,
    to: &mut dyn Listener,
) -> Result<Reply> {
    let (from, new) = (args.from.as_str(), args.to.as_str());
    let fail = |e: Error| cannot("cannot rename", from, &e);
    let fail_to = |why: &str| cannot("cannot rename to", new, &Error::invalid(why));
    let (pool, dataset) = state.open(from)?;
    check_new_name(new).map_err(|e| cannot("cannot rename to", new, &e))?;
    if pool_of(state, new).is_none_or(|other| other.guid() != pool.guid()) || !new.contains('/') {
        return Err(fail_to("datasets must be within same pool"));
    }
    if new != from && inside(new, from) {
        let text = "New dataset name cannot be a descendant of current dataset name";
        return Err(fail_to(text));
    }
    pool.writer().map_err(fail)?;
    let above = missing_parents(&pool, new).map_err(fail)?;
    if !above.is_empty() && !args.parents {
        let e = Error::not_found("parent does not exist");
        return Err(cannot("cannot create", new, &e));
    }
    by.require(&pool, from, &["rename", "mount"]).map_err(fail)?;
    by.require_create(&pool, new, &above, &[]).map_err(fail)?;
    let is_affected = |name: &str| !args.no_remount && inside(name, from) && !stays(&pool, name);
    by.require_unmounted(state, is_affected)?;
    let acting = by.acting(&pool);
    let made = create_parents(state, &acting, &above, by, to);
    made.map_err(|e| cannot("cannot create", new, &e))?;
    let mut mounted: Vec<(String, PathBuf)> = state
        .mounted_below(|n| inside(n, from))
        .into_iter()
        .map(|(name, at, _)| (name, at))
        .collect();
    mounted.retain(|(name, _)| !args.no_remount && !stays(&pool, name));
    let moving = |n: &str| mounted.iter().any(|(name, _)| name == n);
    let unmounted = state.unmount_where(moving, UnmountReason::Moved, args.force, to);
    let done = match unmounted {
        true => acting.rename_dataset(from, new, command(&args.command)).map_err(fail),
        false => Err(Error::busy(String::new())),
    };
    let new_name = |name: &str| {
        let below = name.strip_prefix(from).filter(|_| inside(name, from))?;
        Some(format!("{new}{below}"))
    };
    mounted.retain(|(name, _)| !state.is_mounted(name));
    if done.is_ok() {
        state.renamed(&pool, new_name);
        for (name, _) in &mut mounted {
            *name = new_name(name).unwrap_or_default();
        }
    }
    remount::put_back(state, &pool, &mounted, to);
    done?;
    let volumes = dataset.kind() == DatasetKind::Volume
        || pool.dataset(new).is_ok_and(|d| d.children().is_ok_and(|c| !c.is_empty()));
    if volumes {
        state.show_volumes(&pool, to);
    }
    Ok(Reply::Done)
}
