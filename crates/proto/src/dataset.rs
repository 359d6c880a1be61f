//! Requests that make and change datasets.

use serde::{Deserialize, Serialize};

/// Datasets and snapshots in one request; more is a mistake.
pub const TARGETS_MAX: usize = 65_536;

/// A new volume's own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeArgs {
    /// Bytes, as the user wrote them.
    pub size: String,
    /// Bytes of a block, as the user wrote them.
    pub block_size: Option<String>,
    /// Reserve nothing.
    pub sparse: bool,
}

/// A new file system or volume. Properties travel as the user wrote them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewDatasetArgs {
    /// Its full name.
    pub name: String,
    /// It is a volume.
    pub volume: Option<VolumeArgs>,
    /// Make what lacks above it; be content if it is there.
    pub parents: bool,
    /// Do not mount it.
    pub no_mount: bool,
    /// Only check.
    pub dry_run: bool,
    /// Properties.
    pub props: Vec<(String, String)>,
    /// The command, for the pool's history.
    pub command: String,
}

/// What to destroy: a file system or volume, or snapshots `FS@a,b%c`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestroyArgs {
    /// As the user named it.
    pub target: String,
    /// With all below; of snapshots, those of that name below.
    pub recursive: bool,
    /// With clones, too.
    pub clones: bool,
    /// Snapshots in use go with their last user.
    pub defer: bool,
    /// Unmount what is in use.
    pub force: bool,
    /// Only tell.
    pub dry_run: bool,
    /// The command, for the pool's history.
    pub command: String,
}

/// Snapshots of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotArgs {
    /// Their full names.
    pub names: Vec<String>,
    /// Of everything below, too.
    pub recursive: bool,
    /// User properties.
    pub props: Vec<(String, String)>,
    /// The command, for the pool's history.
    pub command: String,
}

/// How properties change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Assign {
    /// To these values, as the user wrote them.
    Set(Vec<(String, String)>),
    /// To what is inherited.
    Inherit(String),
    /// To what was received.
    Revert(String),
}

/// Properties of datasets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PropsArgs {
    /// Their full names.
    pub names: Vec<String>,
    /// How.
    pub assign: Assign,
    /// Of everything below, too.
    pub recursive: bool,
    /// Leave mounts where they are.
    pub no_remount: bool,
    /// The command, for the pool's history.
    pub command: String,
}

/// A change of datasets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DatasetChange {
    /// Make one.
    Create(NewDatasetArgs),
    /// Destroy some. Answered with [`super::Reply::Doomed`].
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
