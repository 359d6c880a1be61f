//! Requests that create and change pools.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::VdevRole;

/// Devices in one request.
pub const DEVICES_MAX: usize = 16_384;
/// History records in one reply.
pub const HISTORY_MAX: usize = 4096;

/// The type of a new vdev.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewKind {
    /// A regular file, by absolute path.
    File(PathBuf),
    /// A block device, by absolute path.
    Disk(PathBuf),
    /// Copies.
    Mirror,
    /// Parity over rows, with the number of parity columns.
    Raidz(u32),
    /// Parity over permuted groups: parity, data columns, distributed spares.
    Draid(u32, Option<u32>, u32),
}

/// A new vdev.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewVdev {
    /// Its type.
    pub kind: NewKind,
    /// Its role in the pool.
    pub class: VdevRole,
    /// Its devices.
    pub children: Vec<NewVdev>,
}

/// Checks to override.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Force {
    /// Devices that another pool or program may use.
    pub in_use: bool,
    /// Redundancy that does not match.
    pub replication: bool,
    /// Sector sizes that do not match.
    pub ashift: bool,
}

impl Force {
    /// All or nothing.
    pub fn all(on: bool) -> Force {
        Force { in_use: on, replication: on, ashift: on }
    }
}

/// A new pool. Properties are sent as the user wrote them, and checked by both sides.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateArgs {
    /// Its name.
    pub name: String,
    /// Its devices.
    pub vdevs: Vec<NewVdev>,
    /// Checks to override.
    pub force: Force,
    /// Only check the request.
    pub dry_run: bool,
    /// Short names of the features to enable, in order.
    pub features: Vec<String>,
    /// Pool properties.
    pub props: Vec<(String, String)>,
    /// Properties of the root file system.
    pub fs_props: Vec<(String, String)>,
    /// The command, for the pool's history.
    pub command: String,
}

/// Vdevs to add to a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddArgs {
    /// The pool.
    pub name: String,
    /// The devices.
    pub vdevs: Vec<NewVdev>,
    /// Checks to override.
    pub force: Force,
    /// Only check the request.
    pub dry_run: bool,
    /// log2 of their sectors.
    pub ashift: Option<u32>,
    /// The command, for the pool's history.
    pub command: String,
}

/// A change to an imported pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Destroy it, even if mounts are busy.
    Destroy {
        /// Unmount by force.
        force: bool,
    },
    /// Sync the pool.
    Sync,
    /// Set another guid, or a random one.
    Reguid(Option<u64>),
    /// Set a property: name and value as the user wrote them.
    Set(String, String),
    /// Set a property of a vdev: its name, the property and the value.
    SetVdev(String, String, String),
    /// Bring it to this version; `None`: to version 5000, with all features that are requested.
    Upgrade(Option<u64>),
    /// Clear the errors of all devices or of one, and use them again.
    Clear(Option<String>),
    /// Remove a device; what is on a data vdev is copied to the others in the background.
    Remove(String),
    /// What the removal of a device would take; nothing is changed.
    EstimateRemoval(String),
    /// Cancel the removal under way.
    CancelRemoval,
    /// Take a device offline.
    Offline {
        /// The device.
        device: String,
        /// Only until the pool is exported.
        temporary: bool,
        /// Fault it instead, so that a spare may replace it.
        fault: bool,
    },
    /// Take a device back into use.
    Online {
        /// The device.
        device: String,
        /// Let its vdev use what its devices gained.
        expand: bool,
    },
    /// Attach a device to another one, or replace it.
    Attach(Box<AttachArgs>),
    /// Detach a device from its mirror.
    Detach(String),
    /// Open missing devices again.
    Reopen,
    /// Split it in two.
    Split(Box<SplitArgs>),
    /// Begin, pause, continue or stop a scrub, or begin a resilver.
    Scan(ScanCommand),
    /// Take a checkpoint.
    Checkpoint,
    /// Discard the checkpoint.
    DiscardCheckpoint,
    /// Start, suspend or end a trim of devices; of all that do it, if none is named.
    Trim(JobAction, Vec<String>),
    /// Likewise an initialization.
    Initialize(JobAction, Vec<String>),
    /// Prune the fast dedup tables.
    PruneDedup(PruneArgs),
    /// Read the dedup tables into the cache.
    PrefetchDedup,
    /// Begin or continue a defragmentation.
    Defrag(DefragArgs),
    /// What a defragmentation would do; nothing is changed.
    EstimateDefrag(DefragArgs),
    /// Move all blocks that pointers find by the mappings of removed devices.
    Unmap,
    /// What would move then; nothing is changed.
    EstimateUnmap,
    /// Pause the defragmentation.
    PauseDefrag,
    /// Stop the defragmentation.
    CancelDefrag,
    /// Begin or continue a rebalance.
    Rebalance(RebalanceArgs),
    /// What a rebalance would do; nothing is changed.
    EstimateRebalance(RebalanceArgs),
    /// Pause the rebalance.
    PauseRebalance,
    /// Stop the rebalance.
    CancelRebalance,
    /// Make a top-level vdev smaller.
    Shrink(ShrinkArgs),
    /// What would move then; nothing is changed.
    EstimateShrink(ShrinkArgs),
    /// Cancel the shrinking under way.
    CancelShrink,
}

/// What a rebalance moves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RebalanceArgs {
    /// Blocks, from fuller vdevs to emptier ones.
    #[default]
    Vdevs,
    /// What the special class takes, to special vdevs.
    ToSpecial,
    /// Everything on special vdevs, to normal ones.
    FromSpecial,
}

/// What a rebalance would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RebalancePlan {
    /// The vdevs that can exchange blocks.
    Vdevs(Vec<RebalancedVdev>),
    /// The blocks that are to change their class.
    Special {
        /// Bytes of metadata.
        metadata: u64,
        /// Bytes of data blocks.
        data: u64,
        /// Bytes that move as far as there is room.
        to_move: u64,
        /// Blocks that are never moved.
        immovable: u64,
    },
}

/// A vdev before and after a rebalance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebalancedVdev {
    /// Its name, as `zpool status` shows it.
    pub name: String,
    /// Bytes, parity included.
    pub capacity: u64,
    /// Bytes in use.
    pub used: u64,
    /// Bytes in use afterwards.
    pub after: u64,
}

/// What is to become smaller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShrinkArgs {
    /// The top-level vdev.
    pub vdev: String,
    /// The new size of each of its devices, in bytes.
    pub size: u64,
}

/// What is to be defragmented.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefragArgs {
    /// Files with a lower layout score are laid out, in thousandths; `None`: the default.
    pub target: Option<u64>,
    /// The datasets; none: all, and the free space.
    pub datasets: Vec<String>,
}

/// What a defragmentation would do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefragPlan {
    /// Layout score of all files, in thousandths.
    pub score: u64,
    /// Files with a lower score than the target.
    pub files: u64,
    /// Their layout score, in thousandths.
    pub file_score: u64,
    /// Their bytes.
    pub file_bytes: u64,
    /// Metaslabs that would be emptied.
    pub metaslabs: u64,
    /// Bytes in these.
    pub metaslab_bytes: u64,
    /// Bytes of free space in small pieces in these.
    pub scattered: u64,
}

/// Dedup entries of blocks with one reference that are to be pruned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PruneArgs {
    /// Those that are at least so many days old.
    Days(u64),
    /// This share of them in percent, the oldest first.
    Percent(u8),
}

/// A pool of mirrors that is split in two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitArgs {
    /// The new pool's name.
    pub new_name: String,
    /// Its devices; of each mirror without one the last.
    pub devices: Vec<String>,
    /// Its properties.
    pub props: Vec<(String, String)>,
    /// Import it below this directory.
    pub altroot: Option<PathBuf>,
    /// Only check the request.
    pub dry_run: bool,
}

/// The new pool of a split.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitReport {
    /// Guids and paths of its devices, in the order of its vdevs.
    pub devices: Vec<(u64, PathBuf)>,
    /// What its import has to say.
    pub lines: Vec<String>,
}

/// A device that joins a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttachDevice {
    /// A file or block device.
    Path(NewKind),
    /// A spare of the pool, by its name.
    Spare(String),
}

/// A device that is attached to another one, or replaces it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachArgs {
    /// The device of the pool.
    pub old: String,
    /// The new one; `None` is another device at the same path.
    pub new: Option<AttachDevice>,
    /// It replaces the old one.
    pub replace: bool,
    /// It is rebuilt sequentially, not resilvered.
    pub sequential: bool,
    /// Even if the new one seems to be in use.
    pub force: bool,
    /// log2 of the sectors of the new one.
    pub ashift: Option<u32>,
}

/// What is requested of a pool's scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScanCommand {
    /// Begin a scrub, or continue a paused one.
    Scrub,
    /// Begin a scrub of what was born since the last one.
    ScrubFromLast,
    /// Begin an error scrub, or continue a paused one.
    ScrubErrors,
    /// Pause the scrub or error scrub.
    Pause,
    /// Stop the scrub or error scrub.
    Stop,
    /// Begin a resilver.
    Resilver,
}

/// What to do with the work on the free space of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobAction {
    /// Start it, or continue it where it was suspended.
    Start {
        /// Bytes a second; 0 is no limit.
        rate: u64,
        /// With secure discards.
        secure: bool,
    },
    /// Give it up.
    Cancel,
    /// Interrupt it.
    Suspend,
    /// Forget that it ever ran.
    Forget,
}

/// A record of a pool's history.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryRecord {
    /// Seconds since 1970.
    pub time: u64,
    /// The event.
    pub event: HistoryEvent,
    /// User id.
    pub who: Option<u64>,
    /// Host.
    pub host: Option<String>,
    /// Zone.
    pub zone: Option<String>,
}

/// An event in a pool's history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HistoryEvent {
    /// A command.
    Command(String),
    /// An internal event.
    Internal {
        /// Transaction group.
        txg: u64,
        /// Its name.
        name: String,
        /// Dataset and its object id.
        dataset: Option<(String, u64)>,
        /// Further text.
        text: String,
    },
    /// An internal event with a numeric code, as in old pools.
    Numbered {
        /// Transaction group.
        txg: u64,
        /// Its code.
        event: u64,
        /// Further text.
        text: String,
    },
    /// A request to the kernel: name, then input, output and error as printed.
    Ioctl {
        /// Its name.
        name: String,
        /// Its arguments.
        input: Option<String>,
        /// Its results.
        output: Option<String>,
        /// Its failure.
        errno: Option<i64>,
    },
    /// Another event, as printed.
    Unknown(String),
}

impl Default for HistoryEvent {
    fn default() -> HistoryEvent {
        HistoryEvent::Unknown(String::new())
    }
}
