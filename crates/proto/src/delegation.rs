//! Requests about delegated permissions.

use serde::{Deserialize, Serialize};

/// Who holds permissions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PermissionHolder {
    /// A user.
    User(u64),
    /// The members of a group.
    Group(u64),
    /// All users.
    Everyone,
    /// The user who creates a dataset, for that dataset.
    CreateTime,
    /// A set; its name begins with `@`.
    Set(String),
}

/// Permissions of a holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionEntry {
    /// Who holds them.
    pub holder: PermissionHolder,
    /// For the dataset itself.
    pub local: bool,
    /// For the datasets below.
    pub descendent: bool,
    /// Names of permissions and sets, in order.
    pub permissions: Vec<String>,
}

/// The permissions delegated at one dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelegatedAt {
    /// Its full name.
    pub dataset: String,
    /// Entries, each for one reach.
    pub entries: Vec<PermissionEntry>,
}

/// Permissions to delegate, or to take back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllowArgs {
    /// Full name of a file system or volume.
    pub dataset: String,
    /// Whose permissions.
    pub holders: Vec<PermissionHolder>,
    /// For the dataset itself.
    pub local: bool,
    /// For the datasets below.
    pub descendent: bool,
    /// Names of permissions and sets; `None`: all, to be taken back.
    pub permissions: Option<Vec<String>>,
    /// Take them back at all datasets below, too.
    pub recursive: bool,
    /// The command, for the pool's history.
    pub command: String,
}
