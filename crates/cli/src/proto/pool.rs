//! A pool as it is found or open: its vdevs, their counters, and work under way.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A vdev's class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Class {
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
pub(crate) enum State {
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

impl State {
    /// The word in tables.
    pub(crate) fn word(self) -> &'static str {
        match self {
            State::Online => "ONLINE",
            State::Degraded => "DEGRADED",
            State::Faulted => "FAULTED",
            State::Offline => "OFFLINE",
            State::Removed => "REMOVED",
            State::Unavail => "UNAVAIL",
        }
    }
}

/// What a vdev did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Nanoseconds in which it did that.
    pub(crate) age: u64,
    /// Operations that read.
    pub(crate) reads: u64,
    /// Operations that wrote.
    pub(crate) writes: u64,
    /// Bytes read.
    pub(crate) nread: u64,
    /// Bytes written.
    pub(crate) nwritten: u64,
}

/// How operations of one class went: histograms by powers of two, of nanoseconds and of
/// bytes, without the zeros at their ends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClassIo {
    /// Times that requests waited before the device had them.
    pub(crate) queued: Vec<u64>,
    /// Times that operations were with the device.
    pub(crate) disk: Vec<u64>,
    /// Times that requests took in all.
    pub(crate) total: Vec<u64>,
    /// Sizes of operations for one request.
    pub(crate) single: Vec<u64>,
    /// Sizes of operations merged of several.
    pub(crate) merged: Vec<u64>,
    /// Requests that wait.
    pub(crate) pending: u64,
    /// Operations with the device.
    pub(crate) active: u64,
}

/// One vdev and what is below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Vdev {
    /// Guid.
    pub(crate) guid: u64,
    /// `root`, `mirror`, `raidz1`, `file`, `disk`, `spare`, `indirect`, ...
    pub(crate) kind: String,
    /// Name for display; a leaf's is its full path.
    pub(crate) name: String,
    /// A leaf's path.
    pub(crate) path: Option<PathBuf>,
    /// Index among its siblings.
    pub(crate) id: u64,
    /// Class.
    pub(crate) class: Class,
    /// State.
    pub(crate) state: State,
    /// Remark behind the counters.
    pub(crate) aux: Option<String>,
    /// Failed reads.
    pub(crate) read_errors: u64,
    /// Failed writes.
    pub(crate) write_errors: u64,
    /// Failed checksums.
    pub(crate) checksum_errors: u64,
    /// Slow operations.
    pub(crate) slow_ios: u64,
    /// What it and all below it did.
    #[serde(default)]
    pub(crate) io: Done,
    /// How that went: sync reads, sync writes, async reads, async writes, scrub.
    #[serde(default)]
    pub(crate) io_classes: Vec<ClassIo>,
    /// Opened with O_DIRECT.
    pub(crate) direct_io: bool,
    /// Bytes for allocation.
    pub(crate) size: u64,
    /// Bytes allocated.
    pub(crate) allocated: u64,
    /// Percent.
    pub(crate) fragmentation: Option<u64>,
    /// Bytes to be had by expansion.
    pub(crate) expandsize: u64,
    /// A leaf's physical bytes.
    pub(crate) psize: u64,
    /// Bytes of it that can be allocated.
    pub(crate) asize: u64,
    /// log2 of its sectors.
    pub(crate) ashift: u32,
    /// Parity columns.
    pub(crate) nparity: u32,
    /// Below.
    pub(crate) children: Vec<Vdev>,
}

/// A scrub or resilver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Scan {
    /// A resilver, not a scrub.
    pub(crate) resilver: bool,
    /// 1 running, 2 finished, 3 canceled.
    pub(crate) state: u8,
    /// Seconds since 1970.
    pub(crate) start: u64,
    /// Seconds since 1970.
    pub(crate) end: u64,
    /// Bytes repaired or resilvered.
    pub(crate) processed: u64,
    /// Errors that stayed.
    pub(crate) errors: u64,
    /// Bytes in all.
    pub(crate) to_examine: u64,
    /// Bytes scanned.
    pub(crate) examined: u64,
    /// Bytes issued.
    pub(crate) issued: u64,
    /// Bytes skipped.
    pub(crate) skipped: u64,
    /// Start of a pause, or 0.
    pub(crate) paused: u64,
}

/// A removal of a top-level vdev.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Removal {
    /// 1 running, 2 finished, 3 canceled.
    pub(crate) state: u8,
    /// Index of the vdev.
    pub(crate) vdev: u64,
    /// Its name, while it exists.
    pub(crate) name: String,
    /// Seconds since 1970.
    pub(crate) start: u64,
    /// Seconds since 1970.
    pub(crate) end: u64,
    /// Bytes copied.
    pub(crate) copied: u64,
    /// Bytes to copy.
    pub(crate) to_copy: u64,
    /// Bytes of memory its mapping takes.
    pub(crate) mapping_memory: u64,
}

/// An expansion of a raidz vdev.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Expand {
    /// 1 running, 2 finished.
    pub(crate) state: u8,
    /// The vdev's name.
    pub(crate) name: String,
    /// Seconds since 1970.
    pub(crate) start: u64,
    /// Seconds since 1970.
    pub(crate) end: u64,
    /// Bytes copied.
    pub(crate) copied: u64,
    /// Bytes to copy.
    pub(crate) to_copy: u64,
}

/// A pool's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pool {
    /// Name.
    pub(crate) name: String,
    /// Guid.
    pub(crate) guid: u64,
    /// State of the whole.
    pub(crate) health: State,
    /// I/O is suspended.
    pub(crate) suspended: bool,
    /// What is done to the pool as a whole, instead of its health: `IMPORTING`.
    #[serde(default)]
    pub(crate) doing: Option<String>,
    /// The tree.
    pub(crate) root: Vdev,
    /// Data errors known.
    pub(crate) error_count: u64,
    /// Where they are, as `status -v` prints them.
    pub(crate) errors: Vec<String>,
    /// Last scrub or resilver.
    pub(crate) scan: Option<Scan>,
    /// Last removal.
    pub(crate) removal: Option<Removal>,
    /// Last expansion.
    pub(crate) expand: Option<Expand>,
    /// Checkpoint: creation in seconds, bytes.
    pub(crate) checkpoint: Option<(u64, u64)>,
    /// Features that the pool has not enabled.
    pub(crate) disabled_features: bool,
}

/// A pool that could be imported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Name.
    pub(crate) name: String,
    /// Guid.
    pub(crate) guid: u64,
    /// Marked destroyed.
    pub(crate) destroyed: bool,
    /// Another system had it and did not export it.
    pub(crate) foreign: bool,
    /// Who had it.
    pub(crate) hostname: Option<String>,
    /// Who had it.
    pub(crate) hostid: Option<u64>,
    /// When it was last written, in seconds since 1970.
    pub(crate) last_accessed: Option<u64>,
    /// The administrator's comment.
    pub(crate) comment: Option<String>,
    /// State of the whole.
    pub(crate) health: State,
    /// Features lacking: name, description, whether a read-only import works.
    pub(crate) unsupported: Vec<(String, String, bool)>,
    /// The tree.
    pub(crate) root: Vdev,
    /// Why it cannot be looked at although nothing need be wrong with it.
    #[serde(default)]
    pub(crate) held_up: Option<String>,
    /// The name by which this daemon imported it when it started.
    #[serde(default)]
    pub(crate) imported: Option<String>,
}
