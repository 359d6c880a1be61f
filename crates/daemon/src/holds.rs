//! `zfs hold`, `release`, `holds` and `bookmark` (chapter 09 §3).
//!
//! # Invariants
//! * The snapshots of one operand are held or released together, in one txg. An operand that
//!   fails does not stop those after it.

use base::{Error, ErrorKind, Result};
use cenote::{Dataset, DatasetKind, NewBookmark, Pool, SnapshotHold};
use proto::{BookmarkArgs, HeldSnapshot, HoldArgs, RedactArgs, Reply, TARGETS_MAX};

use super::access::Caller;
use super::datasets::{cannot, command, subtree, too_many};
use super::remount;
use super::state::{DaemonState, Listener};

/// Bytes of a tag.
const TAG_MAX: usize = 255;

/// A snapshot and, with `recursive`, those of the same name of all descendants.
fn snapshots(pool: &Pool, name: &str, recursive: bool) -> Result<Vec<Dataset>> {
    let missing = || Error::not_found("dataset does not exist");
    let (fs, snap) = name.split_once('@').ok_or_else(missing)?;
    let root = pool.dataset(fs)?;
    let all = if recursive { subtree(&root)? } else { vec![root] };
    let mut out = Vec::new();
    for dataset in all {
        out.extend(dataset.snapshot(snap)?);
    }
    match out.is_empty() {
        true => Err(missing()),
        false => Ok(out),
    }
}

/// Calls `act` for the snapshots of each operand; failures are reported with `action`.
fn each(
    state: &DaemonState,
    args: &HoldArgs,
    (action, permission): (&str, &str),
    by: &Caller,
    to: &mut dyn Listener,
    mut act: impl FnMut(&Pool, Vec<Dataset>, Option<&str>) -> Result<()>,
) -> Result<Reply> {
    if args.snapshots.len() > TARGETS_MAX {
        return Err(too_many());
    }
    if args.tag.len() > TAG_MAX {
        let e = Error::new(ErrorKind::NameTooLong, format!("{action}: tag too long"));
        return Err(e);
    }
    let mut line = command(&args.command);
    for name in &args.snapshots {
        let fail = |e: Error| {
            let of = e.location().dataset.as_deref().unwrap_or(name);
            Error::new(e.kind(), format!("{action} '{of}': {}", e.message()))
        };
        let mut one = || -> Result<()> {
            let fs = name.split('@').next().unwrap_or(name);
            let (pool, _) = state.open(fs)?;
            let found = snapshots(&pool, name, args.recursive).map_err(fail)?;
            for snapshot in &found {
                let may = by.require(&pool, snapshot.name(), &[permission]);
                may.map_err(|e| cannot(action, snapshot.name(), &e))?;
            }
            pool.writer().map_err(fail)?;
            act(&by.acting(&pool), found, line).map_err(fail)
        };
        match one() {
            Ok(()) => line = None,
            Err(e) => to.problem(e.message().to_owned()),
        }
    }
    Ok(Reply::Done)
}

fn holds_of(found: &[Dataset], tag: &str) -> Vec<SnapshotHold> {
    let one = |s: &Dataset| SnapshotHold { snapshot: s.name().to_owned(), tag: tag.to_owned() };
    found.iter().map(one).collect()
}

/// Serves `zfs hold`.
///
/// # Errors
/// The whole message for the user.
pub(super) fn hold(
    state: &DaemonState,
    args: &HoldArgs,
    by: &Caller,
    to: &mut dyn Listener,
) -> Result<Reply> {
    each(state, args, ("cannot hold snapshot", "hold"), by, to, |pool, found, line| {
        pool.hold(&holds_of(&found, &args.tag), line)
    })
}

/// Serves `zfs release`. With `-r`, snapshots that the tag does not hold are left out, except
/// when it holds none.
///
/// # Errors
/// The whole message for the user.
pub(super) fn release(
    state: &DaemonState,
    args: &HoldArgs,
    by: &Caller,
    to: &mut dyn Listener,
) -> Result<Reply> {
    each(
        state,
        args,
        ("cannot release hold from snapshot", "release"),
        by,
        to,
        |pool, found, line| {
            let mut wanted = Vec::new();
            for snapshot in &found {
                let tags = snapshot.holds()?;
                if !args.recursive || tags.iter().any(|(tag, _)| *tag == args.tag) {
                    wanted.push(snapshot.clone());
                }
            }
            if wanted.is_empty() {
                wanted.extend(found.first().cloned());
            }
            pool.release(&holds_of(&wanted, &args.tag), line)?;
            // Some may have been destroyed with their last hold.
            let names: Vec<String> = wanted.iter().map(|s| s.name().to_owned()).collect();
            let gone: Vec<String> =
                names.into_iter().filter(|n| pool.dataset(n).is_err()).collect();
            remount::snapshots_changed(state, &gone);
            Ok(())
        },
    )
}

/// Serves `zfs holds`.
///
/// # Errors
/// The whole message for the user.
pub(super) fn list(
    state: &DaemonState,
    names: &[String],
    recursive: bool,
    to: &mut dyn Listener,
) -> Result<Reply> {
    if names.len() > TARGETS_MAX {
        return Err(too_many());
    }
    let mut out = Vec::new();
    for name in names {
        let one = || -> Result<Vec<HeldSnapshot>> {
            let (pool, dataset) = state.open(name)?;
            if dataset.kind() != DatasetKind::Snapshot {
                return Err(Error::invalid(format!("'{name}' is not a snapshot")));
            }
            let fail = |e: Error| cannot("cannot open", name, &e);
            let all = snapshots(&pool, name, recursive).map_err(fail)?;
            let held = |s: &Dataset| {
                Ok(HeldSnapshot { name: s.name().to_owned(), tags: s.holds().map_err(fail)? })
            };
            all.iter().map(held).collect()
        };
        match one() {
            Ok(held) => out.extend(held.into_iter().filter(|s| !s.tags.is_empty())),
            Err(e) => to.problem(e.message().to_owned()),
        }
    }
    Ok(Reply::Holds(out))
}

/// Serves `zfs redact`.
///
/// # Errors
/// The whole message for the user.
pub(super) fn redact(state: &DaemonState, args: &RedactArgs, by: &Caller) -> Result<Reply> {
    let name = args.snapshot.as_str();
    let (pool, _) = state.open(name)?;
    let fail = |e: Error| cannot("cannot redact snapshot", name, &e);
    let of = name.split('@').next().unwrap_or_default();
    by.require(&pool, of, &["bookmark"]).map_err(fail)?;
    pool.writer().map_err(fail)?;
    let acting = by.acting(&pool);
    acting.redact(name, &args.bookmark, &args.redactions, command(&args.command)).map_err(fail)?;
    Ok(Reply::Done)
}

/// Serves `zfs bookmark`.
///
/// # Errors
/// The whole message for the user.
pub(super) fn bookmark(state: &DaemonState, args: &BookmarkArgs, by: &Caller) -> Result<Reply> {
    let fail = |e: Error| cannot("cannot create bookmark", &args.name, &e);
    let (pool, _) = state.open(args.source.split(['@', '#']).next().unwrap_or_default())?;
    if super::state::pool_name(&args.name) != pool.name() {
        return Err(fail(Error::invalid("bookmark is in a different pool")));
    }
    let of = args.name.split('#').next().unwrap_or_default();
    by.require(&pool, of, &["bookmark"]).map_err(fail)?;
    pool.writer().map_err(fail)?;
    let new = NewBookmark { source: args.source.clone(), name: args.name.clone() };
    by.acting(&pool).bookmark(&[new], command(&args.command)).map_err(fail)?;
    Ok(Reply::Done)
}
