//! Requests that create and change datasets.

use serde::{Deserialize, Serialize};

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
}

impl DatasetChange {
    /// The datasets, or snapshots of them, that it names.
    pub fn datasets(&self) -> Vec<&str> {
        match self {
            DatasetChange::Create(args) => vec![&args.name],
            DatasetChange::Destroy(args) => vec![&args.target],
            DatasetChange::Snapshot(args) => args.names.iter().map(String::as_str).collect(),
            DatasetChange::Props(args) => args.names.iter().map(String::as_str).collect(),
        }
    }
}
