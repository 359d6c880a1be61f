//! `zfs clone` and `zfs promote` (chapter 09 §3).
//!
//! # Invariants
//! * As in [`super::datasets`]: the pool is changed first, then the mounts.

use base::{Error, ErrorKind, Result};
use cenote::create::{Of, dataset_setting};
use cenote::props::PropData;
use cenote::{Dataset, DatasetKind, Pool};
use proto::{CloneArgs, PromoteArgs, Reply};

use super::access::Caller;
use super::datasets::{
    PROPS_MAX, cannot, check_new_name, command, create_parents, exists, missing_parents, mount_new,
    pool_of, too_many,
};
use super::remount;
use super::state::{DaemonState, Listener};

/// Properties that a clone has from its origin.
const OF_THE_ORIGIN: [&str; 3] = ["version", "volsize", "volblocksize"];

/// The kind of the dataset that a snapshot belongs to.
fn kind_of(pool: &Pool, snapshot: &Dataset) -> Result<Of> {
    let fs = snapshot.name().split('@').next().unwrap_or_default();
    Ok(match pool.dataset(fs)?.kind() {
        DatasetKind::Volume => Of::Volume,
        _ => Of::Filesystem,
    })
}

/// Serves `zfs clone`.
///
/// # Errors
/// The whole message for the user.
pub(super) fn clone(
    state: &DaemonState,
    args: &CloneArgs,
    by: &Caller,
    to: &mut dyn Listener,
) -> Result<Reply> {
    let name = args.name.as_str();
    let fail = |e: Error| cannot("cannot create", name, &e);
    check_new_name(name).map_err(fail)?;
    if args.props.len() > PROPS_MAX {
        return Err(too_many());
    }
    let (pool, snapshot) = state.open(&args.snapshot)?;
    if snapshot.kind() != DatasetKind::Snapshot {
        let text = "missing '@' delimiter in snapshot name";
        return Err(cannot("cannot open", &args.snapshot, &Error::invalid(text)));
    }
    let first = name.split('/').next().unwrap_or(name);
    let no_pool = || Error::not_found(format!("cannot create '{name}': no such pool '{first}'"));
    let target = pool_of(state, name).ok_or_else(no_pool)?;
    if target.guid() != pool.guid() {
        return Err(fail(Error::invalid("source and target pools differ")));
    }
    let of = kind_of(&pool, &snapshot).map_err(fail)?;
    let setting = |(prop, value): &(String, String)| {
        if OF_THE_ORIGIN.contains(&prop.as_str()) {
            return Err(format!("'{prop}' is readonly"));
        }
        dataset_setting(prop, value, of)
    };
    let settings = args.props.iter().map(setting).collect::<Result<Vec<_>, _>>();
    let settings = settings.map_err(|why| fail(Error::invalid(why)))?;
    if exists(&pool, name).map_err(fail)? {
        if args.parents {
            return Ok(Reply::Done);
        }
        return Err(fail(Error::new(ErrorKind::Exists, "dataset already exists")));
    }
    pool.writer().map_err(fail)?;
    let above = missing_parents(&pool, name).map_err(fail)?;
    if !args.parents && !above.is_empty() {
        return Err(fail(Error::not_found("parent does not exist")));
    }
    by.require(&pool, snapshot.name(), &["clone"]).map_err(fail)?;
    by.require_create(&pool, name, &above, &args.props).map_err(fail)?;
    let pool = by.acting(&pool);
    create_parents(state, &pool, &above, by, to).map_err(fail)?;
    let log = command(&args.command);
    let made = pool.clone_snapshot(snapshot.name(), name, &settings, log).map_err(fail)?;
    match made.kind() {
        DatasetKind::Volume => state.show_volumes(&pool, to),
        _ if args.no_mount => {}
        _ => mount_new(state, &made, by, to),
    }
    Ok(Reply::Done)
}

/// The name of the snapshot that a dataset was cloned from.
fn origin_of(dataset: &Dataset) -> Result<Option<String>> {
    Ok(match dataset.prop("origin")?.map(|v| v.value) {
        Some(PropData::Str(name)) => Some(name),
        _ => None,
    })
}

/// Serves `zfs promote`.
///
/// # Errors
/// The whole message for the user.
pub(super) fn promote(state: &DaemonState, args: &PromoteArgs, by: &Caller) -> Result<Reply> {
    let name = args.name.as_str();
    let fail = |e: Error| cannot("cannot promote", name, &e);
    let (pool, clone) = state.open(name)?;
    if !matches!(clone.kind(), DatasetKind::Filesystem | DatasetKind::Volume) {
        let text = "operation not applicable to datasets of this type";
        return Err(cannot("cannot open", name, &Error::invalid(text)));
    }
    let origin = origin_of(&clone).map_err(fail)?;
    let origin = origin.ok_or_else(|| fail(Error::invalid("not a cloned filesystem")))?;
    for name in [name, origin.split('@').next().unwrap_or_default()] {
        by.require(&pool, name, &["promote", "mount"]).map_err(fail)?;
    }
    pool.writer().map_err(fail)?;
    by.acting(&pool).promote(name, command(&args.command)).map_err(|e| {
        let of = e.location().dataset.clone();
        match of.as_deref().and_then(|full| full.split_once('@')) {
            Some((_, snap)) if e.kind() == ErrorKind::Exists => fail(Error::new(
                e.kind(),
                format!("conflicting snapshot '{snap}' from parent '{origin}'"),
            )),
            _ => fail(e),
        }
    })?;
    // The snapshots show in the other file system now.
    let from = origin.split('@').next().unwrap_or(&origin);
    let moved = pool.dataset(name).and_then(|d| d.snapshots()).unwrap_or_default();
    let short = moved.iter().filter_map(|s| s.name().split_once('@').map(|n| n.1));
    let names = short.flat_map(|s| [format!("{from}@{s}"), format!("{name}@{s}")]);
    remount::snapshots_changed(state, &names.collect::<Vec<_>>());
    Ok(Reply::Done)
}
