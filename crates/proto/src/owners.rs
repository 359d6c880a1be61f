//! What users, groups and projects use.

use serde::{Deserialize, Serialize};

/// Accounts in one reply.
pub const OWNERS_PAGE: usize = 65_536;

/// The kind of an account's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OwnerKind {
    /// Users.
    User,
    /// Groups.
    Group,
    /// Projects.
    Project,
}

/// One account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerUsage {
    /// User, group or project; of other domains than POSIX with the domain's index in the upper
    /// half.
    pub id: u64,
    /// Bytes used.
    pub used: u64,
    /// Limit in bytes; 0 is none.
    pub quota: u64,
    /// Objects used.
    pub objects: u64,
    /// Limit in objects; 0 is none.
    pub object_quota: u64,
}
