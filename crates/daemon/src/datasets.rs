//! Requests that create and change datasets, from the protocol to the engine and the mounts.
//!
//! # Theory
//! Names and values from the socket are checked again. The pool is changed first, then the
//! mounts, so that a crash in between leaves a mount behind but never half a change. Datasets
//! that are destroyed or get another mountpoint are unmounted before that. All of it happens
//! under `DaemonState::changing`.
//!
//! # Invariants
//! * A mounted dataset is where its properties say, or the client got the reason why not.
//! * Messages are OpenZFS's, as whole lines.

use std::sync::Arc;

use base::limits::{DATASET_DEPTH_MAX, DATASET_NAME_MAX};
use base::{Error, ErrorKind, Result};
use cenote::create::{Of, dataset_setting, new_dataset_settings};
use cenote::delegation::{GrantPlace, permission_to_set};
use cenote::props::{PropData, parse_size};
use cenote::{Dataset, DatasetKind, Pool};
use proto::{
    Assign, DatasetChange, NewDatasetArgs, PropsArgs, Reply, SnapshotArgs, TARGETS_MAX, VolumeArgs,
};

use super::access::Caller;
use super::state::{DaemonState, Listener};
use super::{clones, delegation, destroy, holds, remount, rename, rollback, suspended};

/// Properties in one request.
pub(super) const PROPS_MAX: usize = 1024;
/// Block size of a volume whose request has none.
const VOLUME_BLOCK: u64 = 16 << 10;

/// Serves one change.
///
/// # Errors
/// The whole message for the user; an empty one if everything was reported already.
pub(super) fn change(
    state: &DaemonState,
    change: &DatasetChange,
    by: &Caller,
    to: &mut dyn Listener,
) -> Result<Reply> {
    let change = &suspended::without(state, change, to)?;
    let names = change.datasets();
    let turns = state.changing(names.into_iter(), "its datasets are changed", to);
    let _turns = turns.map_err(|e| match e.kind() {
        ErrorKind::Io => suspended::refusal(change),
        _ => e,
    })?;
    match change {
        DatasetChange::Create(args) => create(state, args, by, to),
        DatasetChange::Destroy(args) => destroy::destroy(state, args, by, to),
        DatasetChange::Snapshot(args) => snapshot(state, args, by),
        DatasetChange::Props(args) => props(state, args, by, to),
        DatasetChange::Clone(args) => clones::clone(state, args, by, to),
        DatasetChange::Promote(args) => clones::promote(state, args, by),
        DatasetChange::Rollback(args) => rollback::rollback(state, args, by, to),
        DatasetChange::Rename(args) => rename::rename(state, args, by, to),
        DatasetChange::Bookmark(args) => holds::bookmark(state, args, by),
        DatasetChange::Redact(args) => holds::redact(state, args, by),
        DatasetChange::Hold(args) => holds::hold(state, args, by, to),
        DatasetChange::Release(args) => holds::release(state, args, by, to),
        DatasetChange::Allow(args) => delegation::change(state, args, true, by),
        DatasetChange::Unallow(args) => delegation::change(state, args, false, by),
    }
}

/// The text for a kind of error in dataset operations (chapter 09 §1.2).
pub(super) fn error_text(e: &Error) -> String {
    let plain = match e.kind() {
        ErrorKind::NotFound if e.message().is_empty() => "dataset does not exist",
        ErrorKind::Permission => "permission denied",
        ErrorKind::ReadOnly => "pool is read-only",
        ErrorKind::NameTooLong => "dataset name is too long",
        _ => e.message(),
    };
    plain.to_owned()
}

/// `ACTION 'NAME': why`.
pub(super) fn cannot(action: &str, name: &str, e: &Error) -> Error {
    Error::new(e.kind(), format!("{action} '{name}': {}", error_text(e)))
}

pub(super) fn command(text: &str) -> Option<&str> {
    Some(text).filter(|t| !t.is_empty())
}

pub(super) fn too_many() -> Error {
    Error::limit("argument list too long")
}

/// The pool that a dataset's name begins with.
pub(super) fn pool_of(state: &DaemonState, name: &str) -> Option<Arc<Pool>> {
    let end = name.find(['/', '@', '#']).unwrap_or(name.len());
    state.pool(name.get(..end).unwrap_or(name))
}

/// Whether the dataset exists; an error other than `NotFound` is returned.
pub(super) fn exists(pool: &Pool, name: &str) -> Result<bool> {
    match pool.dataset(name) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

pub(super) fn check_new_name(name: &str) -> Result<()> {
    if name.len() > DATASET_NAME_MAX {
        return Err(Error::new(ErrorKind::NameTooLong, "dataset name is too long"));
    }
    if name.contains(['@', '#']) {
        let c =
            if name.contains('@') { "snapshot delimiter '@'" } else { "bookmark delimiter '#'" };
        return Err(Error::invalid(format!("{c} is not expected here")));
    }
    Ok(())
}

/// Sizes of a new volume: bytes in all, bytes of a block.
fn sizes(volume: &VolumeArgs, props: &[(String, PropData)]) -> Result<(u64, u32)> {
    let bad = |why: String| Error::invalid(why);
    let size = parse_size(&volume.size)
        .map_err(|why| bad(format!("bad volume size '{}': {why}", volume.size)))?;
    let given = props.iter().find(|p| p.0 == "volblocksize").map(|p| &p.1);
    let block = match (&volume.block_size, given) {
        (Some(text), _) => {
            parse_size(text).map_err(|why| bad(format!("bad volume block size '{text}': {why}")))?
        }
        (None, Some(PropData::Num(n))) => *n,
        _ => VOLUME_BLOCK,
    };
    if !block.is_power_of_two() || !(512..=16 << 20).contains(&block) {
        return Err(bad("'volblocksize' must be power of 2 from 512B to 16M".to_owned()));
    }
    let size = size.checked_next_multiple_of(block).filter(|&s| s < 1 << 62);
    let size = size.ok_or_else(|| bad("volume size exceeds limit for this system".to_owned()))?;
    Ok((size, u32::try_from(block).unwrap_or(u32::MAX)))
}

fn create(
    state: &DaemonState,
    args: &NewDatasetArgs,
    by: &Caller,
    to: &mut dyn Listener,
) -> Result<Reply> {
    let name = args.name.as_str();
    let fail = |e: Error| cannot("cannot create", name, &e);
    check_new_name(name).map_err(fail)?;
    if args.props.len() > PROPS_MAX {
        return Err(too_many());
    }
    let of = if args.volume.is_some() { Of::NewVolume } else { Of::NewFilesystem };
    let mut settings =
        new_dataset_settings(&args.props, of).map_err(|why| fail(Error::invalid(why)))?;
    let first = name.split('/').next().unwrap_or(name);
    let no_pool = || Error::not_found(format!("cannot create '{name}': no such pool '{first}'"));
    let pool = pool_of(state, name).ok_or_else(no_pool)?;
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
    let volume = args.volume.as_ref().map(|v| sizes(v, &settings).map(|s| (s, v.sparse)));
    let volume = volume.transpose().map_err(fail)?;
    by.require_create(&pool, name, &above, &args.props).map_err(fail)?;
    if volume.as_ref().is_some_and(|(_, sparse)| !sparse) {
        let parent = above.last().copied().unwrap_or(name);
        let parent = parent.rsplit_once('/').map_or(parent, |(parent, _)| parent);
        by.require_at(&pool, parent, GrantPlace::New, &["refreservation"]).map_err(fail)?;
    }
    if args.dry_run {
        return Ok(Reply::Done);
    }
    let pool = by.acting(&pool);
    create_parents(state, &pool, &above, by, to).map_err(fail)?;
    let log = command(&args.command);
    let made = match volume {
        None => pool.create_filesystem(name, &settings, log).map_err(fail)?,
        Some(((size, block), sparse)) => {
            settings.retain(|(n, _)| n != "volblocksize" && n != "volsize");
            if !sparse && !settings.iter().any(|p| p.0 == "refreservation") {
                let auto = PropData::Num(cenote::REFRESERVATION_AUTO);
                settings.push(("refreservation".to_owned(), auto));
            }
            pool.create_volume(name, size, Some(block), &settings, log).map_err(fail)?
        }
    };
    match made.kind() {
        DatasetKind::Volume => state.show_volumes(&pool, to),
        _ if args.no_mount => {}
        _ => mount_new(state, &made, by, to),
    }
    Ok(Reply::Done)
}

/// The datasets above `name` that do not exist, the deepest first.
///
/// # Errors
/// Those of reading.
pub(super) fn missing_parents<'n>(pool: &Pool, name: &'n str) -> Result<Vec<&'n str>> {
    let mut above = Vec::new();
    let mut at = name;
    while let Some((parent, _)) = at.rsplit_once('/') {
        if exists(pool, parent)? {
            break;
        }
        above.push(parent);
        at = parent;
    }
    Ok(above)
}

/// Creates and mounts missing parents, listed with the deepest first.
///
/// # Errors
/// Those of creating them.
pub(super) fn create_parents(
    state: &DaemonState,
    pool: &Pool,
    above: &[&str],
    by: &Caller,
    to: &mut dyn Listener,
) -> Result<()> {
    for parent in above.iter().rev() {
        let made = pool.create_filesystem(parent, &[], None)?;
        mount_new(state, &made, by, to);
    }
    Ok(())
}

/// Mounts a dataset that was just created. If the mount fails, the dataset stays, and the
/// command fails, as in OpenZFS. Nothing is mounted for other users.
pub(super) fn mount_new(state: &DaemonState, made: &Dataset, by: &Caller, to: &mut dyn Listener) {
    let planned = super::mounts::plan(made, false);
    let done = match planned {
        Ok(Ok(_)) if !by.is_owner() => {
            let text = "filesystem successfully created, but it may only be mounted by root";
            to.problem(text.to_owned());
            return;
        }
        Ok(Ok(plan)) => state.mount_one(&plan, &[], true),
        Ok(Err(_)) => Ok(()),
        Err(e) => Err(cannot("cannot mount", made.name(), &e)),
    };
    if let Err(e) = done {
        to.problem(e.message().to_owned());
        to.problem("filesystem successfully created, but not mounted".to_owned());
    }
}

/// File systems and volumes below a dataset, itself first.
///
/// # Errors
/// Those of reading.
pub(super) fn subtree(root: &Dataset) -> Result<Vec<Dataset>> {
    let mut out = Vec::new();
    let mut todo = vec![(root.clone(), 0)];
    while let Some((dataset, depth)) = todo.pop() {
        if depth > DATASET_DEPTH_MAX || out.len() > TARGETS_MAX {
            return Err(Error::limit("datasets nested too deep"));
        }
        let mut children = dataset.children()?;
        children.reverse();
        todo.extend(children.into_iter().map(|c| (c, depth + 1)));
        out.push(dataset);
    }
    Ok(out)
}

fn snapshot(state: &DaemonState, args: &SnapshotArgs, by: &Caller) -> Result<Reply> {
    if args.names.len() > TARGETS_MAX || args.props.len() > PROPS_MAX {
        return Err(too_many());
    }
    let many = args.recursive || args.names.len() > 1;
    let none = |e: Error| match many {
        true => Error::new(e.kind(), format!("{}\nno snapshots were created", e.message())),
        false => e,
    };
    let mut settings = Vec::new();
    for (prop, value) in &args.props {
        let user = cenote::props::is_user_prop(prop);
        let checked = match user {
            true => dataset_setting(prop, value, Of::Snapshot),
            false => Err("this property can not be modified for snapshots".to_owned()),
        };
        let fail = |why: String| {
            let first = args.names.first().map_or("", |n| n.as_str());
            none(Error::invalid(format!("cannot create snapshot '{first}': {why}")))
        };
        settings.push(checked.map_err(fail)?);
    }
    let mut names: Vec<String> = Vec::new();
    let mut pool: Option<Arc<Pool>> = None;
    for name in &args.names {
        let fail = |e: Error| none(cannot("cannot create snapshot", name, &e));
        let missing = || Error::invalid("missing '@' delimiter in snapshot name");
        let (fs, snap) = name.split_once('@').ok_or_else(missing).map_err(fail)?;
        let (in_pool, dataset) = state.open(fs)?;
        if pool.as_ref().is_some_and(|p| p.guid() != in_pool.guid()) {
            return Err(fail(Error::invalid("operation crosses datasets or pools")));
        }
        pool = Some(in_pool);
        let below = match args.recursive {
            // A dataset whose receive was interrupted cannot be snapshotted (chapter 09 §3).
            true => subtree(&dataset)
                .map_err(fail)?
                .into_iter()
                .filter(|d| !d.is_incomplete())
                .collect(),
            false => vec![dataset],
        };
        names.extend(below.iter().map(|d| format!("{}@{snap}", d.name())));
        if names.len() > TARGETS_MAX {
            return Err(too_many());
        }
    }
    names.sort();
    names.dedup();
    let Some(pool) = pool else { return Ok(Reply::Done) };
    let wanted: &[&str] =
        if settings.is_empty() { &["snapshot"] } else { &["snapshot", "userprop"] };
    for name in &names {
        // The snapshot is made of the dataset: what is allowed for those below does not count.
        let may = by.require(&pool, name.split('@').next().unwrap_or(name), wanted);
        may.map_err(|e| none(cannot("cannot create snapshot", name, &e)))?;
    }
    let pool = by.acting(&pool);
    let failed = |e: Error| {
        let of = e.location().dataset.clone();
        let name = of.as_deref().or(names.first().map(String::as_str)).unwrap_or_default();
        none(cannot("cannot create snapshot", name, &e))
    };
    pool.snapshot(&names, &settings, command(&args.command)).map_err(failed)?;
    remount::snapshots_changed(state, &names);
    state.show_snapshots(&pool, &names);
    Ok(Reply::Done)
}

fn props(
    state: &DaemonState,
    args: &PropsArgs,
    by: &Caller,
    to: &mut dyn Listener,
) -> Result<Reply> {
    if args.names.len() > TARGETS_MAX {
        return Err(too_many());
    }
    // The pool's history gets a command once, however many datasets the command changes.
    let mut line = command(&args.command);
    for name in &args.names {
        let opened = state.open(name);
        let done = opened.and_then(|(pool, dataset)| {
            let all = match (args.recursive, dataset.kind()) {
                (true, DatasetKind::Filesystem | DatasetKind::Volume) => subtree(&dataset)?,
                _ => vec![dataset],
            };
            all.iter().try_for_each(|d| assign(state, (&pool, d), args, &mut line, by, to))
        });
        match done {
            // Each failure was reported; the other datasets are still changed.
            Err(e) if e.message().is_empty() => {}
            Err(e) => to.problem(e.message().to_owned()),
            Ok(()) => {}
        }
    }
    Ok(Reply::Done)
}

fn kind(dataset: &Dataset) -> Of {
    match dataset.kind() {
        DatasetKind::Filesystem => Of::Filesystem,
        DatasetKind::Volume => Of::Volume,
        DatasetKind::Snapshot | DatasetKind::Bookmark => Of::Snapshot,
    }
}

/// Changes the properties of one dataset, and its mounts accordingly. The first success takes
/// the `line` for the pool's history.
fn assign(
    state: &DaemonState,
    (pool, dataset): (&Arc<Pool>, &Dataset),
    args: &PropsArgs,
    line: &mut Option<&str>,
    by: &Caller,
    to: &mut dyn Listener,
) -> Result<()> {
    let name = dataset.name();
    let (action, changed, settings) = match &args.assign {
        Assign::Set(list) => {
            let fail =
                |why: String| Error::invalid(format!("cannot set property for '{name}': {why}"));
            let one = |(n, v): &(String, String)| {
                let setting = dataset_setting(n, v, kind(dataset))?;
                refuse_downgrade(dataset, &setting)?;
                Ok(setting)
            };
            let list: Vec<(String, PropData)> =
                list.iter().map(one).collect::<Result<_, _>>().map_err(fail)?;
            let names: Vec<String> = list.iter().map(|p| p.0.clone()).collect();
            ("cannot set property for", names, list)
        }
        Assign::Inherit(prop) | Assign::Revert(prop) => {
            ("cannot inherit property for", vec![prop.clone()], Vec::new())
        }
    };
    let fail = |e: Error| cannot(action, name, &e);
    let wanted: Vec<&str> = changed.iter().map(|prop| permission_to_set(prop)).collect();
    by.require(pool, name, &wanted).map_err(fail)?;
    pool.writer().map_err(fail)?;
    let mut mounts = remount::Remount::new(dataset, &changed, args.no_remount, by);
    mounts.check(state, by)?;
    let pool = &by.acting(pool);
    mounts.before(state, to)?;
    let log = *line;
    let done = match &args.assign {
        Assign::Set(_) => pool.set_props(name, &settings, log),
        Assign::Inherit(prop) => pool.inherit(name, &[prop], log),
        Assign::Revert(prop) => pool.revert(name, &[prop], log),
    };
    // Datasets that were unmounted are mounted again, at their new mountpoints.
    mounts.after(state, pool, to);
    if changed.iter().any(|p| matches!(p.as_str(), "volmode" | "snapdev")) {
        state.show_volumes(pool, to);
    }
    if done.is_ok() {
        *line = None;
    }
    done.map_err(fail)
}

/// Refuses to give a file system an older version.
fn refuse_downgrade(dataset: &Dataset, (name, value): &(String, PropData)) -> Result<(), String> {
    match name.as_str() {
        "version" => {
            let now = dataset.prop("version").ok().flatten().map(|v| v.value);
            match (now, value) {
                (Some(PropData::Num(now)), PropData::Num(new)) if new < &now => {
                    Err(format!("Can not downgrade; already at version {now}"))
                }
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_volumes() {
        let volume = |size: &str, block: Option<&str>| {
            let block_size = block.map(str::to_owned);
            let volume = VolumeArgs { size: size.to_owned(), block_size, sparse: false };
            sizes(&volume, &[]).map_err(|e| e.message().to_owned())
        };
        assert_eq!(volume("64M", Some("8k")), Ok((64 << 20, 8 << 10)));
        assert_eq!(volume("10000", None), Ok((16 << 10, 16 << 10)));
        assert!(volume("x", None).unwrap_err().starts_with("bad volume size 'x': "));
        assert!(volume("1M", Some("3k")).unwrap_err().contains("power of 2"));
        assert!(volume("8E", None).unwrap_err().contains("exceeds limit"));
    }

    #[test]
    fn names_of_new_datasets() {
        assert!(check_new_name("tank/a").is_ok());
        assert!(check_new_name(&"a".repeat(256)).is_err());
        let e = check_new_name("tank/a@b").unwrap_err();
        assert_eq!(e.message(), "snapshot delimiter '@' is not expected here");
    }
}
