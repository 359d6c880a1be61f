//! A pool as it is found or open: its vdevs, their counters, and work under way.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A vdev's class.
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

/// A vdev's state, by the words that are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum VdevHealth {
    /// Works.
    Online,
    /// Works with less redundancy.
    Degraded,
    /// Too many errors, or corrupt.
    Faulted,
    /// Taken out by the administrator.
    Offline,
    /// Pulled.
    Removed,
    /// Cannot be opened.
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

/// What a vdev did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VdevIoCounts {
    /// Nanoseconds in which it did that.
    pub age: u64,
    /// Operations that read.
    pub reads: u64,
    /// Operations that wrote.
    pub writes: u64,
    /// Bytes read.
    pub nread: u64,
    /// Bytes written.
    pub nwritten: u64,
}

/// How operations of one class went: histograms by powers of two, of nanoseconds and of
/// bytes, without the zeros at their ends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassIo {
    /// Times that requests waited before the device had them.
    pub queued: Vec<u64>,
    /// Times that operations were with the device.
    pub disk: Vec<u64>,
    /// Times that requests took in all.
    pub total: Vec<u64>,
    /// Sizes of operations for one request.
    pub single: Vec<u64>,
    /// Sizes of operations merged of several.
    pub merged: Vec<u64>,
    /// Requests that wait.
    pub pending: u64,
    /// Operations with the device.
    pub active: u64,
}

/// One vdev and what is below it.
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
    /// Remark behind the counters.
    pub aux: Option<String>,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed writes.
    pub write_errors: u64,
    /// Failed checksums.
    pub checksum_errors: u64,
    /// Slow operations.
    pub slow_ios: u64,
    /// What it and all below it did.
    #[serde(default)]
    pub io: VdevIoCounts,
    /// How that went: sync reads, sync writes, async reads, async writes, scrub.
    #[serde(default)]
    pub io_classes: Vec<ClassIo>,
    /// Opened with O_DIRECT.
    pub direct_io: bool,
    /// Bytes for allocation.
    pub size: u64,
    /// Bytes allocated.
    pub allocated: u64,
    /// Percent.
    pub fragmentation: Option<u64>,
    /// Bytes to be had by expansion.
    pub expandsize: u64,
    /// A leaf's physical bytes.
    pub psize: u64,
    /// Bytes of it that can be allocated.
    pub asize: u64,
    /// log2 of its sectors.
    pub ashift: u32,
    /// Parity columns.
    pub nparity: u32,
    /// Below.
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
    /// Errors that stayed.
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
}

/// A removal of a top-level vdev.
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
    /// Bytes of memory its mapping takes.
    pub mapping_memory: u64,
}

/// An expansion of a raidz vdev.
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

/// A pool's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Name.
    pub name: String,
    /// Guid.
    pub guid: u64,
    /// State of the whole.
    pub health: VdevHealth,
    /// I/O is suspended.
    pub suspended: bool,
    /// What is done to the pool as a whole, instead of its health: `IMPORTING`.
    #[serde(default)]
    pub doing: Option<String>,
    /// The tree.
    pub root: Vdev,
    /// Data errors known.
    pub error_count: u64,
    /// Where they are, as `status -v` prints them.
    pub errors: Vec<String>,
    /// Last scrub or resilver.
    pub scan: Option<Scan>,
    /// Last removal.
    pub removal: Option<Removal>,
    /// Last expansion.
    pub expand: Option<Expand>,
    /// Checkpoint: creation in seconds, bytes.
    pub checkpoint: Option<(u64, u64)>,
    /// Features that the pool has not enabled.
    pub disabled_features: bool,
}

/// A pool that could be imported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportCandidate {
    /// Name.
    pub name: String,
    /// Guid.
    pub guid: u64,
    /// Marked destroyed.
    pub destroyed: bool,
    /// Another system had it and did not export it.
    pub foreign: bool,
    /// Who had it.
    pub hostname: Option<String>,
    /// Who had it.
    pub hostid: Option<u64>,
    /// When it was last written, in seconds since 1970.
    pub last_accessed: Option<u64>,
    /// The administrator's comment.
    pub comment: Option<String>,
    /// State of the whole.
    pub health: VdevHealth,
    /// Features lacking: name, description, whether a read-only import works.
    pub unsupported: Vec<(String, String, bool)>,
    /// The tree.
    pub root: Vdev,
    /// Why it cannot be looked at although nothing need be wrong with it.
    #[serde(default)]
    pub held_up: Option<String>,
    /// The name by which this daemon imported it when it started.
    #[serde(default)]
    pub imported: Option<String>,
}
