//! The state of a pool that is open or was found: its vdevs, their counters, and scans and
//! other work in flight.

use std::path::PathBuf;

use cenote::{VdevClass, VdevState};
use serde::{Deserialize, Serialize};

/// The role of a vdev in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum VdevRole {
    /// Ordinary storage.
    Normal,
    /// Dedup table.
    Dedup,
    /// Metadata and small blocks.
    Special,
    /// Intent log.
    Log,
    /// Second-tier cache.
    Cache,
    /// Hot spare.
    Spare,
}

impl From<VdevClass> for VdevRole {
    fn from(class: VdevClass) -> VdevRole {
        match class {
            VdevClass::Normal => VdevRole::Normal,
            VdevClass::Dedup => VdevRole::Dedup,
            VdevClass::Special => VdevRole::Special,
            VdevClass::Log => VdevRole::Log,
            VdevClass::Cache => VdevRole::Cache,
            VdevClass::Spare => VdevRole::Spare,
        }
    }
}

impl From<VdevRole> for VdevClass {
    fn from(role: VdevRole) -> VdevClass {
        match role {
            VdevRole::Normal => VdevClass::Normal,
            VdevRole::Dedup => VdevClass::Dedup,
            VdevRole::Special => VdevClass::Special,
            VdevRole::Log => VdevClass::Log,
            VdevRole::Cache => VdevClass::Cache,
            VdevRole::Spare => VdevClass::Spare,
        }
    }
}

/// A vdev's state, as in the printed words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum VdevHealth {
    /// It works.
    Online,
    /// It works with less redundancy.
    Degraded,
    /// It has too many errors, or is corrupt.
    Faulted,
    /// Taken out by the administrator.
    Offline,
    /// It was removed while in use.
    Removed,
    /// It cannot be opened.
    Unavail,
}

impl VdevHealth {
    /// The word in tables.
    pub fn word(self) -> &'static str {
        match self {
            VdevHealth::Online => "ONLINE",
            VdevHealth::Degraded => "DEGRADED",
            VdevHealth::Faulted => "FAULTED",
            VdevHealth::Offline => "OFFLINE",
            VdevHealth::Removed => "REMOVED",
            VdevHealth::Unavail => "UNAVAIL",
        }
    }
}

impl From<VdevState> for VdevHealth {
    fn from(state: VdevState) -> VdevHealth {
        match state {
            VdevState::Online => VdevHealth::Online,
            VdevState::Degraded => VdevHealth::Degraded,
            VdevState::Faulted => VdevHealth::Faulted,
            VdevState::Offline => VdevHealth::Offline,
            VdevState::Removed => VdevHealth::Removed,
            VdevState::Unavail => VdevHealth::Unavail,
        }
    }
}

impl From<VdevHealth> for VdevState {
    fn from(health: VdevHealth) -> VdevState {
        match health {
            VdevHealth::Online => VdevState::Online,
            VdevHealth::Degraded => VdevState::Degraded,
            VdevHealth::Faulted => VdevState::Faulted,
            VdevHealth::Offline => VdevState::Offline,
            VdevHealth::Removed => VdevState::Removed,
            VdevHealth::Unavail => VdevState::Unavail,
        }
    }
}

/// Counters of a vdev's I/O.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VdevIoCounts {
    /// Nanoseconds over which they were counted.
    pub age: u64,
    /// Read operations.
    pub reads: u64,
    /// Write operations.
    pub writes: u64,
    /// Bytes read.
    pub nread: u64,
    /// Bytes written.
    pub nwritten: u64,
}

/// Histograms of one class of operations, in powers of two of nanoseconds and of bytes, without
/// the zeros at their ends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassIo {
    /// Times that requests waited in the queue.
    pub queued: Vec<u64>,
    /// Times that the device took.
    pub disk: Vec<u64>,
    /// Total times of requests.
    pub total: Vec<u64>,
    /// Sizes of operations that serve one request.
    pub single: Vec<u64>,
    /// Sizes of operations merged from several requests.
    pub merged: Vec<u64>,
    /// Requests that are queued.
    pub pending: u64,
    /// Operations in flight.
    pub active: u64,
}

/// Work on the free space of a leaf that was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafJob {
    /// 1 active, 2 canceled, 3 suspended, 4 complete.
    pub state: u8,
    /// When it was started, suspended or ended last, in seconds since 1970.
    pub time: u64,
    /// Bytes done.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// The checkpoint of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// It is being discarded.
    pub discarding: bool,
    /// When it was taken, in seconds since 1970; 0 while it is discarded.
    pub taken: u64,
    /// Bytes that it keeps, or that are still to be freed.
    pub space: u64,
}

/// A vdev and its children.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vdev {
    /// Guid.
    pub guid: u64,
    /// `root`, `mirror`, `raidz1`, `file`, `disk`, `spare`, `indirect`, ...
    pub kind: String,
    /// Name for display; a leaf's is its full path.
    pub name: String,
    /// A leaf's path.
    pub path: Option<PathBuf>,
    /// Index among its siblings.
    pub id: u64,
    /// Class.
    pub class: VdevRole,
    /// State.
    pub state: VdevHealth,
    /// The text after the counters.
    pub aux: Option<String>,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed writes.
    pub write_errors: u64,
    /// Failed checksums.
    pub checksum_errors: u64,
    /// Slow operations.
    pub slow_ios: u64,
    /// A leaf that is too slow for reads now.
    #[serde(default)]
    pub sits_out: bool,
    /// I/O of the vdev and all its descendants.
    #[serde(default)]
    pub io: VdevIoCounts,
    /// Histograms of that I/O: sync reads, sync writes, async reads, async writes, scrub,
    /// trim, initializing.
    #[serde(default)]
    pub io_classes: Vec<ClassIo>,
    /// Opened with O_DIRECT.
    pub direct_io: bool,
    /// Bytes for allocation.
    pub size: u64,
    /// Bytes allocated.
    pub allocated: u64,
    /// Bytes that files can take in `size`.
    #[serde(default)]
    pub def_space: u64,
    /// Percent.
    pub fragmentation: Option<u64>,
    /// Bytes that expansion would add.
    pub expandsize: u64,
    /// Bytes of a top-level vdev that only the checkpoint keeps.
    #[serde(default)]
    pub checkpoint: u64,
    /// A leaf's device discards.
    #[serde(default)]
    pub can_discard: bool,
    /// A leaf's resilver waits for the running one to end.
    #[serde(default)]
    pub deferred: bool,
    /// The last trim of a leaf.
    #[serde(default)]
    pub trim: Option<LeafJob>,
    /// The last initialization of a leaf.
    #[serde(default)]
    pub initialize: Option<LeafJob>,
    /// A leaf's physical bytes.
    pub psize: u64,
    /// Bytes of it that can be allocated.
    pub asize: u64,
    /// log2 of its sectors.
    pub ashift: u32,
    /// Parity columns.
    pub nparity: u32,
    /// Its children.
    pub children: Vec<Vdev>,
}

/// A scrub or resilver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scan {
    /// A resilver, not a scrub.
    pub resilver: bool,
    /// 1 running, 2 finished, 3 canceled.
    pub state: u8,
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds since 1970.
    pub end: u64,
    /// Bytes repaired or resilvered.
    pub processed: u64,
    /// Errors that could not be repaired.
    pub errors: u64,
    /// Bytes in all.
    pub to_examine: u64,
    /// Bytes scanned.
    pub examined: u64,
    /// Bytes issued.
    pub issued: u64,
    /// Bytes skipped.
    pub skipped: u64,
    /// Start of a pause, or 0.
    pub paused: u64,
    /// Seconds since 1970 when it was begun or resumed; 0 if unknown.
    #[serde(default)]
    pub pass_start: u64,
    /// Seconds of pauses since then.
    #[serde(default)]
    pub spent_paused: u64,
    /// Seconds for which the scan has run since it was begun or resumed; 0 if unknown.
    pub pass_seconds: u64,
    /// Bytes scanned in that time.
    pub pass_examined: u64,
    /// Bytes issued in that time.
    pub pass_issued: u64,
}

/// The sequential rebuild of a top-level vdev.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebuildScan {
    /// The name of the vdev.
    pub name: String,
    /// 1 running, 2 canceled, 3 complete.
    pub state: u8,
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds since 1970.
    pub end: u64,
    /// Milliseconds for which it has run.
    pub time_ms: u64,
    /// Bytes in all.
    pub estimated: u64,
    /// Bytes looked at.
    pub scanned: u64,
    /// Bytes copied.
    pub issued: u64,
    /// Bytes written to leaves.
    pub rebuilt: u64,
    /// Pieces that could not be copied.
    pub errors: u64,
    /// Milliseconds for which it has run since the import; 0 if it does not run.
    pub pass_ms: u64,
    /// Bytes looked at in that time.
    pub pass_scanned: u64,
    /// Bytes copied in that time.
    pub pass_issued: u64,
}

/// A scrub of the blocks of the error log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorScrub {
    /// 1 running, 2 finished, 3 canceled.
    pub state: u8,
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds since 1970.
    pub end: u64,
    /// Blocks in all.
    pub to_examine: u64,
    /// Blocks that were read.
    pub examined: u64,
    /// Blocks that are lost as before.
    pub errors: u64,
    /// Start of a pause, or 0.
    pub paused: u64,
}

/// The removal of a top-level vdev.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// 1 running, 2 finished, 3 canceled.
    pub state: u8,
    /// Index of the vdev.
    pub vdev: u64,
    /// Its name, while it exists.
    pub name: String,
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds since 1970.
    pub end: u64,
    /// Bytes copied.
    pub copied: u64,
    /// Bytes to copy.
    pub to_copy: u64,
    /// Bytes of memory for its mapping.
    pub mapping_memory: u64,
    /// Why it waits, or why it could not go on.
    #[serde(default)]
    pub why: Option<String>,
    /// Not the vdev leaves, but its end: it is shrunk.
    #[serde(default)]
    pub shrinks: bool,
}

/// The expansion of a raidz vdev.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expand {
    /// 1 running, 2 finished.
    pub state: u8,
    /// The vdev's name.
    pub name: String,
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds since 1970.
    pub end: u64,
    /// Bytes copied.
    pub copied: u64,
    /// Bytes to copy.
    pub to_copy: u64,
}

/// What a job that moves blocks is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoveKind {
    /// A defragmentation.
    #[default]
    Defrag,
    /// Vdevs get equal shares of what is used.
    Rebalance,
    /// Blocks go to the special class.
    ToSpecial,
    /// Blocks leave the special class.
    FromSpecial,
    /// Blocks leave the mappings of removed devices.
    Unmap,
}

impl MoveKind {
    /// Whether it is a rebalance.
    pub fn is_rebalance(self) -> bool {
        !matches!(self, MoveKind::Defrag | MoveKind::Unmap)
    }
}

/// A defragmentation or a rebalance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Defrag {
    /// What it is.
    #[serde(default)]
    pub kind: MoveKind,
    /// 1 running, 2 finished, 3 canceled, 4 paused, 5 failed.
    pub state: u8,
    /// Seconds since 1970.
    pub start: u64,
    /// When it ended or was paused, seconds since 1970.
    pub end: u64,
    /// Bytes moved.
    pub moved: u64,
    /// Bytes to move, once they were estimated.
    pub to_move: Option<u64>,
    /// Bytes of blocks of pointers that were rewritten.
    pub metadata: u64,
    /// Files that were laid out.
    pub files: u64,
    /// Metaslabs that were emptied.
    pub metaslabs: u64,
    /// Blocks that stay.
    pub kept: u64,
    /// Layout score of the files that were looked at, before and after, in thousandths.
    pub scores: Option<(u64, u64)>,
    /// Why it waits.
    pub waiting: Option<String>,
}

/// The dedup tables of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DedupReport {
    /// Entries.
    pub entries: u64,
    /// Bytes that they take on disk.
    pub on_disk: u64,
    /// Bytes that they take in memory.
    pub in_core: u64,
    /// Bytes of the tables that are in the cache.
    pub cached: u64,
    /// Buckets by log2 of the references: blocks, their logical, physical and allocated bytes,
    /// and the same values times the references.
    pub histogram: Vec<[u64; 8]>,
}

/// A pool's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Name.
    pub name: String,
    /// Guid.
    pub guid: u64,
    /// The last txg that was synced; 0 if unknown.
    #[serde(default)]
    pub txg: u64,
    /// State of the whole pool.
    pub health: VdevHealth,
    /// I/O is suspended.
    pub suspended: bool,
    /// The operation that is in progress on the whole pool, shown instead of its health:
    /// `IMPORTING`.
    #[serde(default)]
    pub doing: Option<String>,
    /// The tree of vdevs.
    pub root: Vdev,
    /// Number of data errors.
    pub error_count: u64,
    /// Their locations, as `status -v` prints them.
    pub errors: Vec<String>,
    /// Last scrub or resilver.
    pub scan: Option<Scan>,
    /// A resilver begins by itself, in one of the next txgs or after the one that runs.
    #[serde(default)]
    pub resilver_pending: bool,
    /// Last sequential rebuild of each top-level vdev.
    pub rebuilds: Vec<RebuildScan>,
    /// Last error scrub since the last scrub began.
    #[serde(default)]
    pub error_scrub: Option<ErrorScrub>,
    /// Last removal.
    pub removal: Option<Removal>,
    /// Last expansion.
    pub expand: Option<Expand>,
    /// Last defragmentation or rebalance.
    #[serde(default)]
    pub defrag: Option<Defrag>,
    /// The checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// Features that the pool has not enabled.
    pub disabled_features: bool,
}

/// A pool that can be imported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportCandidate {
    /// Name.
    pub name: String,
    /// Guid.
    pub guid: u64,
    /// Marked destroyed.
    pub destroyed: bool,
    /// Another system had it imported and did not export it.
    pub foreign: bool,
    /// The host that had it imported.
    pub hostname: Option<String>,
    /// The id of that host.
    pub hostid: Option<u64>,
    /// When it was last written, in seconds since 1970.
    pub last_accessed: Option<u64>,
    /// The administrator's comment.
    pub comment: Option<String>,
    /// State of the whole pool.
    pub health: VdevHealth,
    /// Unsupported features: name, description, whether a read-only import works.
    pub unsupported: Vec<(String, String, bool)>,
    /// The tree of vdevs.
    pub root: Vdev,
    /// The reason why the pool cannot be examined, although it may be intact.
    #[serde(default)]
    pub held_up: Option<String>,
    /// The name by which this daemon imported it when it started.
    #[serde(default)]
    pub imported: Option<String>,
}
