//! Changes of datasets in suspended pools are refused, before they wait for anything.
//!
//! # Theory
//! A change that meets a suspension waits for its txg, as `failmode` says, and holds its pool's
//! lock meanwhile. So a later change must not wait for that lock: it would wait for the end of
//! the suspension with it. It is refused twice: here, before it takes the lock, and in
//! [`super::registry::Slot::lock_pool`], if the pool is suspended while it waits for the lock.
//! It is refused before it looks at a dataset or unmounts one, because that may need the
//! devices, too.
//!
//! A command that names several datasets is served for those in other pools, if OpenZFS serves
//! each name by itself. A dry run changes nothing; it is refused only if the lock is not free.
//!
//! # Invariants
//! * What is refused here has changed nothing: neither the pool nor a mount.

use base::{Error, ErrorKind};
use proto::{Assign, DatasetChange};

use super::state::{DaemonState, Listener, pool_name};

/// Why nothing of a suspended pool can be changed (EAGAIN; chapter 09 §1.2).
pub(super) fn error() -> Error {
    Error::new(ErrorKind::Io, "pool I/O is currently suspended")
}

/// An error of [`super::registry::Slot::lock_pool`] as the user's whole message.
pub(super) fn in_message(verb: &str, name: &str, e: Error) -> Error {
    match e.kind() {
        ErrorKind::Io => super::state::cannot(verb, name, &e),
        _ => e,
    }
}

/// The beginning of the message about a change that failed.
fn cannot(change: &DatasetChange) -> String {
    let of_dataset = |name: &str| match name {
        name if name.contains('@') => format!("cannot destroy snapshot {name}"),
        name if name.contains('#') => format!("cannot destroy bookmark '{name}'"),
        name => format!("cannot destroy '{name}'"),
    };
    let action = match change {
        DatasetChange::Destroy(args) => return of_dataset(&args.target),
        DatasetChange::Clone(args) => return format!("cannot create '{}'", args.name),
        DatasetChange::Bookmark(args) => {
            return format!("cannot create bookmark '{}'", args.name);
        }
        DatasetChange::Create(_) => "cannot create",
        DatasetChange::Snapshot(_) => "cannot create snapshot",
        DatasetChange::Props(args) => match args.assign {
            Assign::Set(_) => "cannot set property for",
            Assign::Inherit(_) | Assign::Revert(_) => "cannot inherit property for",
        },
        DatasetChange::Redact(_) => "cannot redact snapshot",
        DatasetChange::Hold(_) => "cannot hold snapshot",
        DatasetChange::Release(_) => "cannot release hold from snapshot",
        DatasetChange::Rename(_) => "cannot rename",
        DatasetChange::Rollback(_) => "cannot rollback",
        DatasetChange::Promote(_) => "cannot promote",
        DatasetChange::Allow(_) | DatasetChange::Unallow(_) => "cannot set permissions on",
    };
    let names = change.datasets();
    format!("{action} '{}'", names.first().copied().unwrap_or_default())
}

/// The user's whole message for a change that got [`error`].
pub(super) fn refusal(change: &DatasetChange) -> Error {
    let why = error();
    let none = match change {
        DatasetChange::Snapshot(args) if args.recursive || args.names.len() > 1 => {
            "\nno snapshots were created"
        }
        _ => "",
    };
    Error::new(why.kind(), format!("{}: {}{none}", cannot(change), why.message()))
}

fn is_dry_run(change: &DatasetChange) -> bool {
    match change {
        DatasetChange::Create(args) => args.dry_run,
        DatasetChange::Destroy(args) => args.dry_run,
        _ => false,
    }
}

/// The names of a change that is made name by name.
fn single_names(change: &mut DatasetChange) -> Option<&mut Vec<String>> {
    match change {
        DatasetChange::Props(args) => Some(&mut args.names),
        DatasetChange::Hold(args) | DatasetChange::Release(args) => Some(&mut args.snapshots),
        _ => None,
    }
}

/// The part of a change that can be made now. What it leaves out was reported.
///
/// # Errors
/// The whole message for the user, if nothing can be done.
pub(super) fn without(
    state: &DaemonState,
    change: &DatasetChange,
    to: &mut dyn Listener,
) -> base::Result<DatasetChange> {
    let slot = |name: &str| state.registry().get(pool_name(name));
    let suspended = |name: &str| slot(name).is_some_and(|slot| slot.is_suspended());
    let mut left = change.clone();
    if is_dry_run(change) || !change.datasets().into_iter().any(suspended) {
        return Ok(left);
    }
    let Some(names) = single_names(&mut left) else { return Err(refusal(change)) };
    let all = std::mem::take(names);
    let (refused, served): (Vec<String>, Vec<String>) = all.into_iter().partition(|n| suspended(n));
    for name in refused {
        let mut one = change.clone();
        if let Some(names) = single_names(&mut one) {
            *names = vec![name];
        }
        to.problem(refusal(&one).message().to_owned());
    }
    match single_names(&mut left) {
        Some(names) if !served.is_empty() => *names = served,
        // Each was reported.
        _ => return Err(Error::new(ErrorKind::Io, "")),
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use proto::{DestroyArgs, HoldArgs, PropsArgs, SnapshotArgs};

    use super::*;

    #[test]
    fn the_words_of_refusals() {
        let why = "pool I/O is currently suspended";
        let said = |change: DatasetChange| refusal(&change).message().to_owned();
        let destroy = |target: &str| {
            let target = target.to_owned();
            said(DatasetChange::Destroy(DestroyArgs { target, ..DestroyArgs::default() }))
        };
        assert_eq!(destroy("p/a"), format!("cannot destroy 'p/a': {why}"));
        assert_eq!(destroy("p/a@s,t"), format!("cannot destroy snapshot p/a@s,t: {why}"));
        assert_eq!(destroy("p/a#b"), format!("cannot destroy bookmark 'p/a#b': {why}"));
        let snapshot = |names: &[&str]| {
            let names = names.iter().map(|&n| n.to_owned()).collect();
            said(DatasetChange::Snapshot(SnapshotArgs { names, ..SnapshotArgs::default() }))
        };
        let one = format!("cannot create snapshot 'p/a@s': {why}");
        assert_eq!(snapshot(&["p/a@s"]), one);
        assert_eq!(snapshot(&["p/a@s", "p/b@s"]), format!("{one}\nno snapshots were created"));
        let snapshots = vec!["p@s".to_owned()];
        let hold = HoldArgs { snapshots, ..HoldArgs::default() };
        assert_eq!(said(DatasetChange::Hold(hold)), format!("cannot hold snapshot 'p@s': {why}"));
        let props = PropsArgs {
            names: vec!["p".to_owned()],
            assign: Assign::Inherit("quota".to_owned()),
            recursive: false,
            no_remount: false,
            command: String::new(),
        };
        let inherit = format!("cannot inherit property for 'p': {why}");
        assert_eq!(said(DatasetChange::Props(props)), inherit);
    }
}
