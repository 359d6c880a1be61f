//! Delegated permissions: what users other than root may do (chapter 04 §13, chapter 09 §3.7).
//!
//! # Theory
//! The library stores permissions and tells which of them a user has. It does not enforce
//! them: who has a [`Pool`] may do everything with it. A front end that serves other users
//! asks [`Pool::permissions_for`] before it acts for them, and then acts through
//! [`Pool::acting_for`], so that the history and the new datasets have the right user.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Error, Result};
use dsl::props::{self, Attr, PropData, Types};
use dsl::write::delegation;
use spa::engine::{Command, PermissionChange};

pub use dsl::write::delegation::{DelegatedEntry, GrantPlace, Grantee, Reach, Subject};

use crate::changes;
use crate::dataset::{Dataset, DatasetKind};
use crate::pool::Pool;

/// Permissions that are no properties, in the order of OpenZFS's manual (chapter 09 §3.7).
const PERMISSIONS: [&str; 34] = [
    "allow",
    "bookmark",
    "change-key",
    "clone",
    "create",
    "destroy",
    "diff",
    "hold",
    "load-key",
    "mount",
    "promote",
    "receive",
    "receive:append",
    "release",
    "rename",
    "rollback",
    "send",
    "send:encrypted",
    "send:raw",
    "share",
    "snapshot",
    "groupobjquota",
    "groupobjused",
    "groupquota",
    "groupused",
    "projectobjquota",
    "projectobjused",
    "projectquota",
    "projectused",
    "userobjquota",
    "userobjused",
    "userprop",
    "userquota",
    "userused",
];

/// The user for whom a pool is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actor {
    /// User id: recorded in the history, and the owner of new file systems.
    pub uid: u32,
    /// The group of new file systems.
    pub gid: u32,
}

/// The permissions that one dataset's table has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegated {
    /// The file system or volume.
    pub dataset: String,
    /// Its entries.
    pub entries: Vec<DelegatedEntry>,
}

/// Whether a permission of this name can be delegated.
pub fn is_permission(name: &str) -> bool {
    let is_settable = |p: &props::Prop| {
        p.attr != Attr::ReadOnly && p.visible && p.types.intersects(Types::F.with(Types::V))
    };
    permissions().any(|p| p == name) || props::dataset_prop(name).is_some_and(is_settable)
}

/// The permissions that are no properties.
pub fn permissions() -> impl Iterator<Item = &'static str> {
    PERMISSIONS.into_iter()
}

/// The permission that setting a property needs.
pub fn permission_to_set(prop: &str) -> &str {
    if props::is_user_prop(prop) {
        return "userprop";
    }
    match prop.split_once('@') {
        Some((word, _)) if props::is_space_prop(prop) => word,
        _ => prop,
    }
}

impl Pool {
    /// A handle through which the pool is changed for a user: the history names them, new
    /// file systems belong to them, and they get the create-time permissions of the datasets
    /// above. Whether they may do it is the caller's business.
    #[must_use]
    pub fn acting_for(&self, actor: Actor) -> Pool {
        Pool { core: Arc::clone(&self.core), actor: Some(actor) }
    }

    /// The record for the pool's history.
    pub(crate) fn command(&self, line: Option<&str>) -> Option<Command> {
        match self.actor {
            None => changes::command(line),
            Some(actor) => Some(Command {
                text: line.unwrap_or_default().to_owned(),
                uid: u64::from(actor.uid),
            }),
        }
    }

    /// User and group of new file systems.
    pub(crate) fn owner_of_new(&self) -> (u64, u64) {
        match self.actor {
            Some(actor) => (actor.uid.into(), actor.gid.into()),
            None => changes::process_owner(),
        }
    }

    /// Delegates permissions: all of them or none.
    ///
    /// # Errors
    /// In OpenZFS's words: `NotFound`; `Invalid` for names; `Unsupported` in pools before
    /// version 8; `NoSpace`; `Corrupt` for a damaged table; `ReadOnly`; that of a suspension.
    pub fn allow(&self, changes: &[PermissionChange], command_line: Option<&str>) -> Result<()> {
        let names = changes.iter().flat_map(|c| c.permissions.iter().flatten());
        for name in names.filter(|name| !name.starts_with('@')) {
            if !is_permission(name) {
                return Err(Error::invalid("invalid permission"));
            }
        }
        self.writer()?.allow(changes, self.command(command_line))
    }

    /// Takes permissions back: all of them or none. What is not there is no error.
    ///
    /// # Errors
    /// As [`Pool::allow`].
    pub fn unallow(&self, changes: &[PermissionChange], command_line: Option<&str>) -> Result<()> {
        self.writer()?.unallow(changes, self.command(command_line))
    }

    /// Whether the pool's property `delegation` lets users other than root do anything.
    ///
    /// # Errors
    /// Those of reading.
    pub fn delegates(&self) -> Result<bool> {
        Ok(self.prop("delegation")?.is_none_or(|v| v.value != PropData::Num(0)))
    }

    /// What a user may do at a file system or volume, at snapshots of it, or below it: names
    /// of permissions and of the sets that they came from. Nothing while [`Pool::delegates`]
    /// is false.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt`; `Limit`; those of reading.
    pub fn permissions_for(
        &self,
        dataset: &str,
        place: GrantPlace,
        who: Subject<'_>,
    ) -> Result<BTreeSet<String>> {
        if !self.delegates()? {
            return Ok(BTreeSet::new());
        }
        let dataset = self.dataset(dataset)?;
        let _names = self.core.names();
        delegation::effective(self.core.spa.mos(), dataset.directory(), place, who)
    }

    /// The permissions that a set has where it is used at a dataset, with its own name.
    ///
    /// # Errors
    /// As [`Pool::permissions_for`].
    pub fn permission_set(&self, dataset: &str, set: &str) -> Result<BTreeSet<String>> {
        let dataset = self.dataset(dataset)?;
        let _names = self.core.names();
        delegation::set_members(self.core.spa.mos(), dataset.directory(), set)
    }
}

impl Dataset {
    /// The permissions delegated at this file system or volume, then those at the datasets
    /// above it; those without any are left out.
    ///
    /// # Errors
    /// `Invalid` for snapshots and bookmarks; `Limit`; those of reading.
    pub fn delegated(&self) -> Result<Vec<Delegated>> {
        if matches!(self.kind(), DatasetKind::Snapshot | DatasetKind::Bookmark) {
            let text = "operation not applicable to datasets of this type";
            return Err(Error::invalid(text).in_dataset(self.name()));
        }
        let _names = self.core().names();
        let mut out = Vec::new();
        for (name, dir) in self.directories_up() {
            let entries = delegation::entries(self.core().spa.mos(), dir)?;
            let entries: Vec<DelegatedEntry> =
                entries.into_iter().filter(|e| !e.permissions.is_empty()).collect();
            if !entries.is_empty() {
                out.push(Delegated { dataset: name, entries });
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_permissions() {
        for good in ["create", "receive:append", "compression", "volsize", "userprop", "utf8only"] {
            assert!(is_permission(good), "{good}");
        }
        for bad in ["", "used", "subcommand", "iscsioptions", "com.example:x", "@set", "foo"] {
            assert!(!is_permission(bad), "{bad}");
        }
        assert_eq!(permission_to_set("com.example:x"), "userprop");
        assert_eq!(permission_to_set("userobjquota@7"), "userobjquota");
        assert_eq!(permission_to_set("quota"), "quota");
    }
}
