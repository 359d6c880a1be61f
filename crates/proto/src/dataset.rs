//! Requests that create and change datasets.

use serde::{Deserialize, Serialize};

use crate::AllowArgs;

/// Datasets and snapshots in one request.
pub const TARGETS_MAX: usize = 65_536;

/// The properties of a new volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeArgs {
    /// Bytes, as the user wrote them.
    pub size: String,
    /// Bytes of a block, as the user wrote them.
    pub block_size: Option<String>,
    /// Reserve nothing.
    pub sparse: bool,
}

/// A new file system or volume. Properties are sent as the user wrote them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewDatasetArgs {
    /// Its full name.
    pub name: String,
    /// Set for a volume.
    pub volume: Option<VolumeArgs>,
    /// Create missing parents; no error if the dataset exists.
    pub parents: bool,
    /// Do not mount it.
    pub no_mount: bool,
    /// Only check the request.
    pub dry_run: bool,
    /// Properties.
    pub props: Vec<(String, String)>,
    /// The command, for the pool's history.
    pub command: String,
}

/// Datasets to destroy: a file system or volume, or snapshots `FS@a,b%c`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestroyArgs {
    /// The operand, as the user wrote it.
    pub target: String,
    /// With all descendants; of snapshots, those with the same names in descendants.
    pub recursive: bool,
    /// With clones, too.
    pub clones: bool,
    /// Destroy snapshots that are in use when they are released.
    pub defer: bool,
    /// Unmount what is in use.
    pub force: bool,
    /// Only report what would be destroyed.
    pub dry_run: bool,
    /// Report the bytes that the snapshots free, too.
    pub sizes: bool,
    /// The command, for the pool's history.
    pub command: String,
}

/// Snapshots to take in one txg.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotArgs {
    /// Their full names.
    pub names: Vec<String>,
    /// Of all descendants, too.
    pub recursive: bool,
    /// User properties.
    pub props: Vec<(String, String)>,
    /// The command, for the pool's history.
    pub command: String,
}

/// A change of properties.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Assign {
    /// Set these values, as the user wrote them.
    Set(Vec<(String, String)>),
    /// Return to the inherited value.
    Inherit(String),
    /// Return to the received value.
    Revert(String),
}

/// A change of properties of some datasets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PropsArgs {
    /// Their full names.
    pub names: Vec<String>,
    /// The change.
    pub assign: Assign,
    /// For all descendants, too.
    pub recursive: bool,
    /// Leave mounts where they are.
    pub no_remount: bool,
    /// The command, for the pool's history.
    pub command: String,
}

/// A clone of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneArgs {
    /// The snapshot's full name.
    pub snapshot: String,
    /// The clone's full name.
    pub name: String,
    /// Create missing parents; no error if the clone exists.
    pub parents: bool,
    /// Do not mount it.
    pub no_mount: bool,
    /// Properties, as the user wrote them.
    pub props: Vec<(String, String)>,
    /// The command, for the pool's history.
    pub command: String,
}

/// A bookmark of a snapshot or of another bookmark.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BookmarkArgs {
    /// Full name of the snapshot or bookmark.
    pub source: String,
    /// Full name of the new bookmark.
    pub name: String,
    /// The command, for the pool's history.
    pub command: String,
}

/// A redaction bookmark of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedactArgs {
    /// Full name of the snapshot.
    pub snapshot: String,
    /// Name of the bookmark, without dataset.
    pub bookmark: String,
    /// Full names of the redaction snapshots.
    pub redactions: Vec<String>,
    /// The command, for the pool's history.
    pub command: String,
}

/// A file system, volume or snapshot to rename.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenameArgs {
    /// Its full name.
    pub from: String,
    /// The new full name.
    pub to: String,
    /// Create missing parents.
    pub parents: bool,
    /// Leave mounts where they are.
    pub no_remount: bool,
    /// The snapshots of the same name of all descendants, too.
    pub recursive: bool,
    /// Unmount what is in use.
    pub force: bool,
    /// The command, for the pool's history.
    pub command: String,
}

/// A dataset that returns to a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollbackArgs {
    /// The snapshot's full name.
    pub snapshot: String,
    /// Destroy newer snapshots and bookmarks.
    pub recursive: bool,
    /// And their clones.
    pub clones: bool,
    /// Unmount clones that are in use.
    pub force: bool,
    /// The command, for the pool's history.
    pub command: String,
}

/// A clone to promote.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromoteArgs {
    /// Its full name.
    pub name: String,
    /// The command, for the pool's history.
    pub command: String,
}

/// Snapshots to hold or to release.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldArgs {
    /// The tag.
    pub tag: String,
    /// Full names of the snapshots.
    pub snapshots: Vec<String>,
    /// The snapshots of the same names of all descendants, too.
    pub recursive: bool,
    /// The command, for the pool's history.
    pub command: String,
}

/// A held snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldSnapshot {
    /// Its full name.
    pub name: String,
    /// Tags, with the times since when they hold it: seconds since 1970.
    pub tags: Vec<(String, u64)>,
}

/// A change of datasets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DatasetChange {
    /// Create one.
    Create(NewDatasetArgs),
    /// Destroy some. Answered with [`super::Reply::Destroyed`].
    Destroy(DestroyArgs),
    /// Take snapshots.
    Snapshot(SnapshotArgs),
    /// Change properties.
    Props(PropsArgs),
    /// Clone a snapshot.
    Clone(CloneArgs),
    /// Make a bookmark.
    Bookmark(BookmarkArgs),
    /// Make a redaction bookmark.
    Redact(RedactArgs),
    /// Hold snapshots.
    Hold(HoldArgs),
    /// Release snapshots.
    Release(HoldArgs),
    /// Rename a dataset or snapshot.
    Rename(RenameArgs),
    /// Return to a snapshot.
    Rollback(RollbackArgs),
    /// Promote a clone.
    Promote(PromoteArgs),
    /// Delegate permissions.
    Allow(AllowArgs),
    /// Take permissions back.
    Unallow(AllowArgs),
}

impl DatasetChange {
    /// The datasets, or snapshots of them, that it names.
    pub fn datasets(&self) -> Vec<&str> {
        match self {
            DatasetChange::Create(args) => vec![&args.name],
            DatasetChange::Destroy(args) => vec![&args.target],
            DatasetChange::Snapshot(args) => args.names.iter().map(String::as_str).collect(),
            DatasetChange::Props(args) => args.names.iter().map(String::as_str).collect(),
            DatasetChange::Clone(args) => vec![&args.snapshot, &args.name],
            DatasetChange::Bookmark(args) => vec![&args.source, &args.name],
            DatasetChange::Redact(args) => vec![&args.snapshot],
            DatasetChange::Rename(args) => vec![&args.from, &args.to],
            DatasetChange::Rollback(args) => vec![&args.snapshot],
            DatasetChange::Promote(args) => vec![&args.name],
            DatasetChange::Allow(args) | DatasetChange::Unallow(args) => vec![&args.dataset],
            DatasetChange::Hold(args) | DatasetChange::Release(args) => {
                args.snapshots.iter().map(String::as_str).collect()
            }
        }
    }
}
