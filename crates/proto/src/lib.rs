//! The protocol between commands and the daemon, the commands' side of it ([`client`]), and the
//! directory that both use ([`runtime`]).
//!
//! # Theory
//! A Unix socket carries frames: a length (4 bytes, little-endian), then that many bytes of
//! JSON, one message. Both sides first send a [`Hello`]; versions must be equal, because both
//! sides are one binary. The client then sends one request after the other. The daemon answers
//! each with any number of [`Reply::Rows`] and [`Reply::Progress`] and one final reply. A
//! client that closes its socket cancels the request.
//!
//! # Invariants
//! * No frame exceeds `FRAME_MAX`, no request [`REQUEST_MAX`]; a longer one ends the connection
//!   before memory is allocated for it.
//! * Values are sent raw, as in `cenote::props`; the command that prints them adds words and
//!   units.
//!
//! # What it must not know
//! The output of commands, and how the daemon serves a request.

mod change;
pub mod client;
mod dataset;
mod delegation;
mod diff;
mod events;
mod owners;
mod pool;
mod receiving;
pub mod runtime;
mod sending;
mod space_map;
mod stats;

use std::io::{Read, Write};
use std::path::PathBuf;

use base::{Error, Result};
use cenote::props::{PropData, PropValue, Source};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use change::{
    AddArgs, AttachArgs, AttachDevice, Change, CreateArgs, DEVICES_MAX, DefragArgs, DefragPlan,
    Force, HISTORY_MAX, HistoryEvent, HistoryRecord, JobAction, NewKind, NewVdev, PruneArgs,
    RebalanceArgs, RebalancePlan, RebalancedVdev, ScanCommand, ShrinkArgs, SplitArgs, SplitReport,
};
pub use dataset::{
    Assign, BookmarkArgs, CloneArgs, DatasetChange, DestroyArgs, HeldSnapshot, HoldArgs,
    NewDatasetArgs, PromoteArgs, PropsArgs, RedactArgs, RenameArgs, RollbackArgs, SnapshotArgs,
    TARGETS_MAX, VolumeArgs,
};
pub use delegation::{AllowArgs, DelegatedAt, PermissionEntry, PermissionHolder};
pub use diff::{DiffArgs, DiffKind, DiffRecord};
pub use events::{EVENTS_PAGE, EventInfo, EventsPage};
pub use owners::{OWNERS_PAGE, OwnerKind, OwnerUsage};
pub use pool::{
    Checkpoint, ClassIo, DedupReport, Defrag, ErrorScrub, Expand, ImportCandidate, LeafJob,
    MoveKind, Pool, RebuildScan, Removal, Scan, Vdev, VdevHealth, VdevIoCounts, VdevRole,
};
pub use receiving::{ClientInput, INPUT_MAX, ReceiveArgs, ReceiveNaming, receive_input};
pub use sending::{Frame, PackageArgs, SendArgs, SendSize, receive_frame, send_bytes};
pub use space_map::{MetaslabSpace, SpaceMap, VdevSpaceMap};
pub use stats::{BATCH_MAX, Stat, TunableInfo, WhatIf};

/// Version of the protocol.
pub const VERSION: u32 = 17;
/// Largest frame in bytes.
const FRAME_MAX: usize = 32 << 20;
/// Largest request in bytes: names of [`TARGETS_MAX`] datasets, up to the length of a command
/// line.
pub const REQUEST_MAX: usize = 8 << 20;
/// Rows in one [`Reply::Rows`].
pub const ROWS_MAX: usize = 256;

/// The first message of each side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`].
    pub protocol: u32,
    /// The program's version, for messages.
    pub program: String,
    /// Process id.
    pub pid: u32,
}

impl Hello {
    /// The hello of this program.
    pub fn ours() -> Hello {
        Hello {
            protocol: VERSION,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
        }
    }
}

/// Where to search for pools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchArgs {
    /// Directories and files, absolute; empty: the default device directories.
    pub paths: Vec<PathBuf>,
    /// Search for destroyed pools instead.
    pub destroyed: bool,
}

/// An import.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportArgs {
    /// Where to search.
    pub search: SearchArgs,
    /// The pool's guid, from discovery.
    pub guid: u64,
    /// Its name on disk, for messages.
    pub name: String,
    /// Never write to the pool.
    pub readonly: bool,
    /// Ignore that another system had it imported.
    pub force: bool,
    /// Rewind by a few txgs if the newest is damaged.
    pub rewind: bool,
    /// With `rewind`: only report whether it would work.
    pub dry_run: bool,
    /// With `rewind`: as many txgs as necessary.
    pub extreme: bool,
    /// Open the pool as of this txg.
    pub txg: Option<u64>,
    /// Rebuild the space maps.
    #[serde(default)]
    pub rebuild_space: bool,
    /// Go back to the checkpoint.
    #[serde(default)]
    pub checkpoint: bool,
    /// Import without missing log devices.
    pub missing_log: bool,
    /// Prefix of all mountpoints.
    pub altroot: Option<PathBuf>,
    /// Another name.
    pub new_name: Option<String>,
    /// `new_name` lasts until the export.
    #[serde(default)]
    pub temporary_name: bool,
    /// Mount nothing.
    pub no_mount: bool,
    /// Mount options, each a list with commas.
    #[serde(default)]
    pub mount_options: Vec<String>,
}

/// Types of datasets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DatasetType {
    /// A file system.
    Filesystem,
    /// A volume.
    Volume,
    /// A snapshot of either.
    Snapshot,
    /// A bookmark of either.
    Bookmark,
}

/// The datasets and properties to list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListArgs {
    /// Names; empty: everything.
    pub roots: Vec<String>,
    /// Levels below the roots; `None`: all.
    pub depth: Option<u32>,
    /// Types to list; if empty, those that `zfs list` shows by default.
    pub types: Vec<DatasetType>,
    /// Properties to list; `None`: all that apply.
    pub props: Option<Vec<String>>,
    /// A root that is named is listed whatever its type.
    pub named_any_kind: bool,
}

/// One mount or unmount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountArgs {
    /// Dataset or, for unmount, mountpoint; `None`: all.
    pub target: Option<String>,
    /// Include everything below it.
    pub recursive: bool,
    /// Mount over a directory that is not empty; unmount even if busy.
    pub force: bool,
    /// Mount options.
    pub options: Vec<String>,
    /// A dataset with `mountpoint=legacy` is mounted at this directory.
    #[serde(default)]
    pub at: Option<PathBuf>,
    /// Ignore unknown options.
    #[serde(default)]
    pub lax: bool,
    /// Mount a dataset although a redacted stream left out a part of it.
    #[serde(default)]
    pub redacted: bool,
}

/// A client's request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The daemon's state.
    Status,
    /// Unmount and export everything and end.
    Stop {
        /// Even if mounts are busy.
        force: bool,
    },
    /// Pools that can be imported.
    Discover(SearchArgs),
    /// Import one.
    Import(Box<ImportArgs>),
    /// Export one.
    Export {
        /// Its name.
        name: String,
        /// Even if mounts are busy.
        force: bool,
    },
    /// Names of the imported pools.
    PoolNames,
    /// State of one pool.
    PoolStatus {
        /// Its name.
        name: String,
        /// Include the paths of damaged files.
        verbose: bool,
    },
    /// The dedup tables of one pool.
    DedupReport {
        /// Its name.
        name: String,
    },
    /// Properties of one pool.
    PoolProps {
        /// Its name.
        name: String,
        /// Their names; `None`: all.
        props: Option<Vec<String>>,
    },
    /// The space of one pool, metaslab by metaslab.
    SpaceMap {
        /// Its name.
        name: String,
        /// Metaslabs to skip, from [`SpaceMap::next`].
        from: u64,
    },
    /// Datasets with properties, as rows.
    Datasets(ListArgs),
    /// What is mounted.
    Mounts,
    /// Mount.
    Mount(MountArgs),
    /// Unmount.
    Unmount(MountArgs),
    /// Paths of the kstats.
    KstatNames,
    /// The kstats with these paths, if they exist; [`BATCH_MAX`] at most.
    Kstats {
        /// Paths as in the reply to [`Request::KstatNames`].
        paths: Vec<String>,
    },
    /// Tunables by any of their names; all if there is no name.
    Tunables {
        /// The names.
        names: Vec<String>,
    },
    /// Set a tunable.
    Tune {
        /// Any of its names.
        name: String,
        /// The value, as the user wrote it.
        value: String,
    },
    /// The cache's expected hit ratios at other sizes.
    WhatIf,
    /// Create a pool.
    Create(Box<CreateArgs>),
    /// Add vdevs to one.
    Add(Box<AddArgs>),
    /// Change a pool.
    Change {
        /// Its name.
        pool: String,
        /// The change.
        change: Change,
        /// The command, for the pool's history.
        command: String,
    },
    /// Create or change datasets.
    ChangeDatasets(Box<DatasetChange>),
    /// Who holds snapshots.
    Holds {
        /// Full names of snapshots.
        snapshots: Vec<String>,
        /// The snapshots of the same names of all descendants, too.
        recursive: bool,
    },
    /// The permissions delegated at a dataset and at those above it.
    Permissions {
        /// Full name of a file system or volume.
        dataset: String,
    },
    /// What the users, groups or projects of a file system or snapshot of one use.
    OwnerSpace {
        /// Its full name.
        dataset: String,
        /// Which of them.
        kind: OwnerKind,
        /// The last id that the client has; `None` begins.
        after: Option<u64>,
    },
    /// Clear the labels of a device that is in no imported pool.
    LabelClear {
        /// Its absolute path.
        path: PathBuf,
        /// Even if a pool that is not imported here may use it.
        force: bool,
    },
    /// Events of all pools after one of these ids.
    Events {
        /// The last event that the client has; 0 is before the first one.
        after: u64,
        /// How long to wait for one if there is none, milliseconds.
        wait_ms: u64,
    },
    /// Forget all events.
    ClearEvents,
    /// The properties that are set on the vdevs of a pool.
    VdevProps {
        /// Its name.
        name: String,
    },
    /// Send a stream: frames of bytes, then [`Reply::Done`]; or, of a dry run,
    /// [`Reply::SendSizes`].
    Send(Box<SendArgs>),
    /// What changed in a file system: frames of bytes with [`DiffRecord`]s, then
    /// [`Reply::Done`].
    Diff(DiffArgs),
    /// Receive a stream: the daemon asks for it with [`Reply::MoreInput`].
    Receive(Box<ReceiveArgs>),
    /// The history of a pool.
    History {
        /// Its name.
        name: String,
        /// Number of records to skip.
        from: u64,
    },
}

/// The value of a property.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PropertyValue {
    /// No value.
    None,
    /// A number.
    Num(u64),
    /// Text.
    Str(String),
}

/// The source of a property's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// The property cannot be set.
    None,
    /// It is not set.
    Default,
    /// It is set on this dataset.
    Local,
    /// The mount options determine it.
    Temporary,
    /// It is inherited from an ancestor.
    Inherited(String),
    /// It was received in a stream.
    Received,
}

/// A property with its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PropertyEntry {
    /// The value in effect.
    pub value: PropertyValue,
    /// Its source.
    pub source: Origin,
    /// The value that was received in a stream.
    pub received: Option<PropertyValue>,
}

impl From<&PropData> for PropertyValue {
    fn from(d: &PropData) -> PropertyValue {
        match d {
            PropData::None => PropertyValue::None,
            PropData::Num(n) => PropertyValue::Num(*n),
            PropData::Str(s) => PropertyValue::Str(s.clone()),
        }
    }
}

impl From<&PropertyValue> for PropData {
    fn from(d: &PropertyValue) -> PropData {
        match d {
            PropertyValue::None => PropData::None,
            PropertyValue::Num(n) => PropData::Num(*n),
            PropertyValue::Str(s) => PropData::Str(s.clone()),
        }
    }
}

impl From<&PropValue> for PropertyEntry {
    fn from(v: &PropValue) -> PropertyEntry {
        let source = match &v.source {
            Source::None => Origin::None,
            Source::Default => Origin::Default,
            Source::Local => Origin::Local,
            Source::Temporary => Origin::Temporary,
            Source::Inherited(from) => Origin::Inherited(from.clone()),
            Source::Received => Origin::Received,
        };
        let received = v.received.as_ref().map(PropertyValue::from);
        PropertyEntry { value: (&v.value).into(), source, received }
    }
}

impl PropertyEntry {
    /// An entry for a value that cannot be set.
    pub fn fact(value: PropertyValue) -> PropertyEntry {
        PropertyEntry { value, source: Origin::None, received: None }
    }
}

/// A dataset in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetRow {
    /// Full name.
    pub name: String,
    /// Its type.
    pub kind: DatasetType,
    /// The txg of its creation, which orders snapshots.
    pub createtxg: u64,
    /// The requested properties that apply, in order.
    pub props: Vec<(String, PropertyEntry)>,
}

impl DatasetRow {
    /// The property, if it applies.
    pub fn prop(&self, name: &str) -> Option<&PropertyEntry> {
        self.props.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }
}

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mounted {
    /// Dataset.
    pub dataset: String,
    /// Its mountpoint.
    pub mountpoint: String,
}

/// The daemon's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// Process id.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime: u64,
    /// Imported pools.
    pub pools: Vec<String>,
    /// Mounts.
    pub mounts: u64,
    /// The directory of volumes.
    pub volumes: Option<PathBuf>,
    /// The socket at which volumes are network block devices.
    pub nbd: Option<PathBuf>,
    /// Its clients.
    pub nbd_clients: usize,
    /// The directory of kstats.
    pub kstats: Option<PathBuf>,
}

/// A message of the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// Some of the datasets; more may follow.
    Rows(Vec<DatasetRow>),
    /// Long work makes progress: description, units done, units in all.
    Progress(String, u64, u64),
    /// A message for standard error; the request continues, and the command will fail.
    Problem(String),
    /// A message for standard error; nothing failed.
    Remark(String),
    /// A line for standard output; the request continues.
    Line(String),
    /// The daemon waits for the next bytes of the client's input.
    MoreInput,
    /// Success without a result.
    Done,
    /// The sizes of the substreams of a stream that was not sent.
    SendSizes {
        /// The streams, in order.
        sizes: Vec<SendSize>,
        /// Snapshots that are left out because they do not exist.
        skipped: Vec<String>,
    },
    /// Success with a list of names.
    Names(Vec<String>),
    /// Answer to [`Request::Import`]: the pool's name, and lines for standard output.
    Imported(String, Vec<String>),
    /// Answer to [`Change::EstimateRemoval`]: bytes of memory for the mapping.
    RemovalMemory(u64),
    /// Answer to [`Change::EstimateShrink`]: bytes that would move.
    ToMove(u64),
    /// What a defragmentation would do.
    DefragPlan(DefragPlan),
    /// What a rebalance would do.
    RebalancePlan(RebalancePlan),
    /// Answer to [`Change::Upgrade`].
    Upgraded {
        /// The version before.
        from: u64,
        /// The version now.
        to: u64,
        /// The features that were enabled.
        features: Vec<String>,
    },
    /// Answer to [`Change::Split`].
    Split(Box<SplitReport>),
    /// Answer to [`Request::Status`].
    Status(DaemonStatus),
    /// Answer to [`Request::Discover`]: pools, and files that could not be read.
    Found(Vec<ImportCandidate>, Vec<String>),
    /// Answer to [`Request::PoolStatus`].
    Pool(Box<Pool>),
    /// Answer to [`Request::DedupReport`].
    Dedup(Box<DedupReport>),
    /// Answer to [`Request::PoolProps`].
    Props(Vec<(String, PropertyEntry)>),
    /// Answer to [`Request::SpaceMap`]: [`space_map::METASLABS_PAGE`] metaslabs at most.
    SpaceMap(Box<SpaceMap>),
    /// Answer to [`Request::Mounts`].
    Mounts(Vec<Mounted>),
    /// Answer to [`Request::Kstats`].
    Kstats(Vec<Stat>),
    /// Answer to [`Request::Tunables`] and [`Request::Tune`].
    Tunables(Vec<TunableInfo>),
    /// Answer to [`Request::WhatIf`]; empty while there are no measurements.
    WhatIf {
        /// Other sizes of the cache.
        sizes: Vec<WhatIf>,
        /// The present size with a cache device: `multiple` is that of the device.
        devices: Vec<WhatIf>,
    },
    /// Answer to [`Request::LabelClear`]: whether there were labels.
    Truth(bool),
    /// Answer to [`Request::History`]: [`HISTORY_MAX`] records at most, and whether
    /// there are more.
    History(Vec<HistoryRecord>, bool),
    /// Answer to [`Request::VdevProps`]: guids of vdevs, and names and values of properties.
    VdevProps(Vec<(u64, Vec<(String, String)>)>),
    /// Answer to [`Request::Holds`].
    Holds(Vec<HeldSnapshot>),
    /// Answer to [`Request::Permissions`]: the dataset first; those without permissions are
    /// left out.
    Permissions(Vec<DelegatedAt>),
    /// Answer to [`Request::OwnerSpace`].
    OwnerSpace {
        /// By ascending id, [`OWNERS_PAGE`] at most.
        rows: Vec<OwnerUsage>,
        /// Whether objects are counted.
        counts_objects: bool,
        /// Whether there are more.
        more: bool,
    },
    /// Answer to [`Request::Events`].
    Events(EventsPage),
    /// Answer to [`Request::ClearEvents`]: how many there were.
    Count(u64),
    /// The destroyed datasets (or those that would be destroyed), in order, and the bytes that
    /// snapshots free.
    Destroyed(Vec<String>, u64),
    /// The request failed, with the command's message for standard error.
    Failed(String),
}

/// Writes one message.
///
/// # Errors
/// [`base::ErrorKind::Limit`] if it is too long; the socket's errors.
pub fn send<T: Serialize>(mut to: impl Write, message: &T) -> Result<()> {
    let body = serde_json::to_vec(message)
        .map_err(|e| Error::invalid("a message cannot be encoded").caused_by(e))?;
    if body.len() > FRAME_MAX {
        return Err(Error::limit(format!("a message of {} bytes is too long", body.len())));
    }
    let mut frame = Vec::with_capacity(4 + body.len());
    frame.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    frame.extend_from_slice(&body);
    to.write_all(&frame).map_err(|e| Error::io("cannot send to the other side", e))
}

/// Whether an error is a timeout of the socket.
pub(crate) fn timed_out(e: &Error) -> bool {
    let source = std::error::Error::source(e).and_then(|s| s.downcast_ref::<std::io::Error>());
    source.is_some_and(|s| s.kind() == std::io::ErrorKind::WouldBlock)
}

/// Reads one message; `None` when the other side closed the connection.
///
/// # Errors
/// [`base::ErrorKind::Limit`] for a frame that is too long, [`base::ErrorKind::Corrupt`] for
/// one that is not a message, the socket's errors.
pub fn receive<T: DeserializeOwned>(mut from: impl Read) -> Result<Option<T>> {
    match receive_frame(&mut from)? {
        None => Ok(None),
        Some(Frame::Message(body)) => decode(&body).map(Some),
        Some(Frame::Bytes(_)) => Err(Error::corrupt("bytes of a stream instead of a message")),
    }
}

/// Parses a message from a whole frame.
///
/// # Errors
/// [`base::ErrorKind::Corrupt`] for bytes that are not a message.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    serde_json::from_slice(body)
        .map_err(|e| Error::corrupt("the other side sent no message of ours").caused_by(e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn data() -> impl Strategy<Value = PropertyValue> {
        prop_oneof![
            Just(PropertyValue::None),
            any::<u64>().prop_map(PropertyValue::Num),
            ".*".prop_map(PropertyValue::Str)
        ]
    }
    fn row() -> impl Strategy<Value = DatasetRow> {
        let source = prop_oneof![
            Just(Origin::None),
            Just(Origin::Local),
            Just(Origin::Temporary),
            ".*".prop_map(Origin::Inherited)
        ];
        let value = (data(), source, prop::option::of(data()))
            .prop_map(|(value, source, received)| PropertyEntry { value, source, received });
        (".*", any::<u64>(), prop::collection::vec((".*", value), 0..5)).prop_map(
            |(name, createtxg, props)| DatasetRow {
                name,
                kind: DatasetType::Snapshot,
                createtxg,
                props,
            },
        )
    }

    proptest! {
        #[test]
        fn messages_survive_the_wire(rows in prop::collection::vec(row(), 0..5), paths in prop::collection::vec("/.*", 0..4)) {
            let mut wire = Vec::new();
            let args = ImportArgs {
                search: SearchArgs { paths: paths.into_iter().map(PathBuf::from).collect(), destroyed: true },
                guid: u64::MAX,
                txg: Some(7),
                ..ImportArgs::default()
            };
            let request = Request::Import(Box::new(args));
            let reply = Reply::Rows(rows);
            send(&mut wire, &request).unwrap();
            send(&mut wire, &reply).unwrap();
            let mut from = &wire[..];
            prop_assert_eq!(receive::<Request>(&mut from).unwrap(), Some(request));
            prop_assert_eq!(receive::<Reply>(&mut from).unwrap(), Some(reply));
            prop_assert_eq!(receive::<Reply>(&mut from).unwrap(), None);
        }

        #[test]
        fn garbage_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Some(request)) = receive::<Request>(&bytes[..]) {
                let mut wire = Vec::new();
                send(&mut wire, &request).unwrap();
            }
        }

        #[test]
        fn every_cut_is_noticed(cut in 1usize..40) {
            let mut wire = Vec::new();
            send(&mut wire, &Hello::ours()).unwrap();
            let cut = cut.min(wire.len() - 1);
            prop_assert!(receive::<Hello>(&wire[..cut]).is_err());
        }
    }

    #[test]
    fn a_frame_too_long_is_refused_before_it_is_read() {
        let wire = u32::MAX.to_le_bytes();
        assert_eq!(receive::<Hello>(&wire[..]).unwrap_err().kind(), base::ErrorKind::Limit);
    }
}
