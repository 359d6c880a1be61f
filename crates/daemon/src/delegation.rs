//! `zfs allow` and `zfs unallow` (chapter 09 §3.7).
//!
//! # Invariants
//! * A user passes on, or takes back, only permissions that they have there themselves, and
//!   needs the permission `allow` for it.

use std::collections::BTreeSet;

use base::{Error, Result};
use cenote::delegation::{DelegatedEntry, GrantPlace, Grantee, Reach};
use cenote::{Dataset, DatasetKind, PermissionChange, Pool};
use proto::{AllowArgs, DelegatedAt, PermissionEntry, PermissionHolder, Reply, TARGETS_MAX};

use super::access::Caller;
use super::datasets::{cannot, command, subtree, too_many};
use super::state::DaemonState;

fn holder(from: &PermissionHolder) -> Grantee {
    match from {
        PermissionHolder::User(id) => Grantee::User(*id),
        PermissionHolder::Group(id) => Grantee::Group(*id),
        PermissionHolder::Everyone => Grantee::Everyone,
        PermissionHolder::CreateTime => Grantee::CreateTime,
        PermissionHolder::Set(name) => Grantee::Set(name.clone()),
    }
}

fn entry(from: &DelegatedEntry) -> PermissionEntry {
    let holder = match &from.holder {
        Grantee::User(id) => PermissionHolder::User(*id),
        Grantee::Group(id) => PermissionHolder::Group(*id),
        Grantee::Everyone => PermissionHolder::Everyone,
        Grantee::CreateTime => PermissionHolder::CreateTime,
        Grantee::Set(name) => PermissionHolder::Set(name.clone()),
    };
    PermissionEntry {
        holder,
        local: from.reach == Reach::Local,
        descendent: from.reach == Reach::Descendent,
        permissions: from.permissions.iter().cloned().collect(),
    }
}

/// A file system or volume by its name.
fn open(state: &DaemonState, name: &str) -> Result<(std::sync::Arc<Pool>, Dataset)> {
    let (pool, dataset) = state.open(name)?;
    match dataset.kind() {
        DatasetKind::Filesystem | DatasetKind::Volume => Ok((pool, dataset)),
        DatasetKind::Snapshot | DatasetKind::Bookmark => {
            let text = "operation not applicable to datasets of this type";
            Err(cannot("cannot open", name, &Error::invalid(text)))
        }
    }
}

/// Serves `zfs allow DATASET`.
///
/// # Errors
/// The whole message for the user.
pub(super) fn show(state: &DaemonState, name: &str) -> Result<Reply> {
    let (_, dataset) = open(state, name)?;
    let all = dataset.delegated().map_err(|e| cannot("cannot get permissions on", name, &e))?;
    let one = |at: cenote::delegation::Delegated| DelegatedAt {
        dataset: at.dataset,
        entries: at.entries.iter().map(entry).collect(),
    };
    Ok(Reply::Permissions(all.into_iter().map(one).collect()))
}

/// The reaches of a change for a holder.
fn reaches(holder: &Grantee, args: &AllowArgs) -> Vec<Reach> {
    match (holder, args.local, args.descendent) {
        (Grantee::CreateTime | Grantee::Set(_), ..) => vec![Reach::Unspecified],
        (_, true, false) => vec![Reach::Local],
        (_, false, true) => vec![Reach::Descendent],
        _ => vec![Reach::Local, Reach::Descendent],
    }
}

/// Refuses a change of permissions that the user does not have.
fn check(pool: &Pool, change: &PermissionChange, dataset: &Dataset, by: &Caller) -> Result<()> {
    if by.is_owner() {
        return Ok(());
    }
    let name = change.dataset.as_str();
    by.require(pool, name, &["allow"])?;
    let listed = |e: &&DelegatedEntry| e.holder == change.holder && e.reach == change.reach;
    let names: BTreeSet<String> = match &change.permissions {
        Some(names) => names.clone(),
        // All that the holder has here.
        None => {
            let here = dataset.delegated()?.into_iter().filter(|at| at.dataset == name);
            let entries = here.flat_map(|at| at.entries).collect::<Vec<_>>();
            entries.iter().filter(listed).flat_map(|e| e.permissions.clone()).collect()
        }
    };
    let mut wanted = BTreeSet::new();
    for name_or_set in &names {
        match name_or_set.starts_with('@') {
            true => wanted.extend(pool.permission_set(name, name_or_set)?),
            false => {
                wanted.insert(name_or_set.clone());
            }
        }
    }
    wanted.retain(|name| !name.starts_with('@'));
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let places: &[GrantPlace] = match (&change.holder, change.reach) {
        (Grantee::Set(_), _) => &[GrantPlace::Dataset, GrantPlace::Below],
        (_, Reach::Local) => &[GrantPlace::Dataset],
        (_, Reach::Descendent | Reach::Unspecified) => &[GrantPlace::Below],
    };
    places.iter().try_for_each(|place| by.require_at(pool, name, *place, &wanted))
}

/// Serves the commands that change permissions.
///
/// # Errors
/// The whole message for the user.
pub(super) fn change(
    state: &DaemonState,
    args: &AllowArgs,
    grant: bool,
    by: &Caller,
) -> Result<Reply> {
    let name = args.dataset.as_str();
    let fail = |e: Error| cannot("cannot set permissions on", name, &e);
    let names = args.permissions.as_ref().map_or(0, Vec::len);
    if args.holders.len().max(names) > TARGETS_MAX {
        return Err(too_many());
    }
    let (pool, dataset) = open(state, name)?;
    let all = match args.recursive && !grant {
        true => subtree(&dataset).map_err(fail)?,
        false => vec![dataset],
    };
    if all.len().saturating_mul(args.holders.len()) > TARGETS_MAX {
        return Err(too_many());
    }
    let permissions: Option<BTreeSet<String>> =
        args.permissions.as_ref().map(|list| list.iter().cloned().collect());
    let mut changes = Vec::new();
    for dataset in &all {
        for holder in args.holders.iter().map(holder) {
            for reach in reaches(&holder, args) {
                let change = PermissionChange {
                    dataset: dataset.name().to_owned(),
                    holder: holder.clone(),
                    reach,
                    permissions: permissions.clone(),
                };
                check(&pool, &change, dataset, by).map_err(fail)?;
                changes.push(change);
            }
        }
    }
    pool.writer().map_err(fail)?;
    let (acting, line) = (by.acting(&pool), command(&args.command));
    match grant {
        true => acting.allow(&changes, line),
        false => acting.unallow(&changes, line),
    }
    .map_err(fail)?;
    Ok(Reply::Done)
}
