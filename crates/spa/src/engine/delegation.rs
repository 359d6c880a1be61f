//! Changes of delegated permissions (chapter 04 §13).
//!
//! # Theory
//! All changes of one request are made in one txg, or none: a reader never sees permissions of
//! half a command.

use std::collections::BTreeSet;

use base::{Error, ErrorKind, Result};
use dsl::write::delegation::{self, DelegatedEntry, Grantee, Reach};

use super::Writer;
use super::datasets::{check_name, log};
use super::tasks::{Command, TaskCx};

/// First pool version with delegated permissions.
const DELEGATION_VERSION: u64 = 8;

/// What to change of the permissions of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermissionChange {
    /// Full name of a file system or volume.
    pub dataset: String,
    /// Whose permissions.
    pub holder: Grantee,
    /// For which datasets.
    pub reach: Reach,
    /// Names of permissions and sets; `None`, which only a removal may have, is all of them.
    pub permissions: Option<BTreeSet<String>>,
}

impl Writer {
    /// Delegates permissions.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`, `Invalid` and `NameTooLong` for names, `NoSpace`,
    /// `Unsupported` in old pools, `Corrupt` for a damaged table; those of a suspension.
    pub fn allow(&self, changes: &[PermissionChange], command: Option<Command>) -> Result<()> {
        self.change_permissions(changes, true, command)
    }

    /// Takes permissions back. What is not there is no error.
    ///
    /// # Errors
    /// As [`Writer::allow`].
    pub fn unallow(&self, changes: &[PermissionChange], command: Option<Command>) -> Result<()> {
        self.change_permissions(changes, false, command)
    }

    fn change_permissions(
        &self,
        changes: &[PermissionChange],
        grant: bool,
        command: Option<Command>,
    ) -> Result<()> {
        changes.iter().try_for_each(|c| check_name(&c.dataset))?;
        let changes = changes.to_vec();
        let check = move |cx: &mut TaskCx<'_>| {
            if cx.state.config.version < DELEGATION_VERSION {
                return Err(Error::unsupported("pool must be upgraded"));
            }
            if grant && cx.writer.allocatable(false) == 0 {
                return Err(Error::new(ErrorKind::NoSpace, "out of space"));
            }
            let mut found = Vec::with_capacity(changes.len());
            for change in changes {
                let fail = |e: Error| e.in_dataset(change.dataset.as_str());
                let dir = cx.dir(&change.dataset)?;
                let names = change.permissions.iter().flatten();
                if grant && change.permissions.is_none() {
                    return Err(fail(Error::invalid("no permissions specified")));
                }
                delegation::check(cx.read(), dir, &change.holder, names).map_err(fail)?;
                found.push((dir, change));
            }
            Ok(found)
        };
        let act = move |cx: &mut TaskCx<'_>, found: Vec<(u64, PermissionChange)>| {
            for (dir, change) in found {
                let PermissionChange { dataset, holder, reach, permissions } = change;
                let head = cx.read().dir(dir)?.head_dataset_obj;
                // As OpenZFS: a record for each permission.
                let key = |sets| delegation::key(&holder, reach, sets);
                let one = |name: &String| format!("{} {name}", key(name.starts_with('@')));
                let mut texts: Vec<String> = permissions.iter().flatten().map(one).collect();
                if permissions.is_none() {
                    texts.push(key(false));
                }
                match permissions {
                    Some(permissions) if grant => {
                        let entry = DelegatedEntry { holder, reach, permissions };
                        delegation::allow(cx.cx, dir, &entry)?;
                    }
                    permissions => {
                        delegation::unallow(cx.cx, dir, (&holder, reach), permissions.as_ref())?;
                    }
                }
                let event = if grant { "permission update" } else { "permission remove" };
                for text in texts {
                    cx.log_internal(event, Some((&dataset, head)), &text)?;
                }
            }
            log(cx, command.as_ref())
        };
        self.sync_task(check, act).map(|_| ())
    }
}
