//! Advice on pools: what slows a pool down or endangers it, and what to do (`zpool advise`).
//!
//! # Theory
//! The caller gathers [`PoolFacts`]: figures of one pool from its state, properties and
//! counters. Each rule (`rules`) is a pure function from the facts to [`Advice`]. Counters run
//! since the import, so a rule that uses them waits until there are enough
//! ([`rules::ENOUGH_REQUESTS`]) and says nothing before.
//!
//! # Invariants
//! * A rule reads nothing but the facts, and no fact makes it panic: figures may come from a
//!   damaged pool.
//! * [`advise`] returns advice in the order of [`Rule`], the most urgent first.
//!
//! # What is absent
//! Log space maps: the counters of `POOL/log_spacemaps` are not kept yet.

mod rules;
#[cfg(test)]
mod tests;

use spa::status::VdevClass;

pub use rules::advise;

/// The rules, in the order of urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Files are damaged.
    DataErrors,
    /// A device had errors.
    DeviceErrors,
    /// The pool is nearly full.
    Capacity,
    /// One top-level vdev is nearly full, and others are not.
    FullVdev,
    /// Vdevs of one kind are unequally full.
    UnevenVdevs,
    /// A device is slower than its siblings.
    SlowDevice,
    /// The free space is fragmented.
    Fragmentation,
    /// Blocks are scattered over gang members.
    Ganging,
    /// Txgs take long to be written.
    LongTxgs,
    /// Sectors of the pool are smaller than those of the device.
    SectorSize,
    /// Synchronous writes without a log device.
    NoLogDevice,
    /// Records are much larger than the writes, and are read to be changed.
    RecordSize,
    /// The cache does not hold the metadata.
    CacheSize,
    /// A cache device is missing where it would serve many reads, or serves hardly any.
    CacheDevice,
    /// Data is not compressed.
    Compression,
    /// Each access is recorded.
    AccessTime,
    /// The pool has features that are not enabled.
    Features,
}

impl Rule {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Rule::DataErrors => "data_errors",
            Rule::DeviceErrors => "device_errors",
            Rule::Capacity => "capacity",
            Rule::FullVdev => "full_vdev",
            Rule::UnevenVdevs => "uneven_vdevs",
            Rule::SlowDevice => "slow_device",
            Rule::Fragmentation => "fragmentation",
            Rule::Ganging => "ganging",
            Rule::LongTxgs => "long_txgs",
            Rule::SectorSize => "sector_size",
            Rule::NoLogDevice => "no_log_device",
            Rule::RecordSize => "record_size",
            Rule::CacheSize => "cache_size",
            Rule::CacheDevice => "cache_device",
            Rule::Compression => "compression",
            Rule::AccessTime => "access_time",
            Rule::Features => "features",
        }
    }
}

/// A figure that advice rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// A number without a unit.
    Count(u64),
    /// Bytes.
    Bytes(u64),
    /// Percent.
    Percent(u64),
    /// Nanoseconds.
    Time(u64),
}

/// One piece of advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The rule.
    pub rule: Rule,
    /// The dataset, vdev or pool that it is about.
    pub about: String,
    /// What hurts, as a sentence; `{}` stands for the figure.
    pub problem: String,
    /// The figure.
    pub figure: Figure,
    /// What to expect from following the advice, as a sentence.
    pub gain: String,
    /// The command to run; empty if no command helps.
    pub command: String,
}

/// Figures of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolFacts {
    /// Its name.
    pub name: String,
    /// Bytes of its normal vdevs, parity included.
    pub size: u64,
    /// Bytes of that in use.
    pub allocated: u64,
    /// Fragmentation of the free space, percent; `None` if unknown.
    pub fragmentation: Option<u64>,
    /// Files and blocks known to be damaged.
    pub data_errors: u64,
    /// Features that could be enabled and are not.
    pub disabled_features: bool,
    /// Top-level vdevs of all classes, and cache devices.
    pub vdevs: Vec<TopFacts>,
    /// Its datasets.
    pub datasets: Vec<DatasetFacts>,
    /// Blocks written since the import.
    pub blocks: u64,
    /// Those of them that became gangs.
    pub gang_blocks: u64,
    /// How long the last txgs were being written, nanoseconds.
    pub sync_times: Vec<u64>,
    /// The cache, which all pools share.
    pub cache: CacheFacts,
}

/// A top-level vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopFacts {
    /// Name as in `zpool status`.
    pub name: String,
    /// Allocation class.
    pub class: VdevClass,
    /// Bytes, parity included.
    pub size: u64,
    /// Bytes in use.
    pub allocated: u64,
    /// log2 of its sectors in bytes.
    pub ashift: u32,
    /// The devices below it.
    pub leaves: Vec<DeviceFacts>,
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Name as in `zpool status`.
    pub name: String,
    /// Bytes of its physical sectors; `None` if unknown.
    pub sector: Option<u64>,
    /// Failed reads since the import or `zpool clear`.
    pub read_errors: u64,
    /// Failed writes, likewise.
    pub write_errors: u64,
    /// Wrong checksums, likewise.
    pub checksum_errors: u64,
    /// Times that the device took for reads and writes, by log2 of nanoseconds.
    pub latency: Vec<u64>,
}

/// A file system or volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatasetFacts {
    /// Its name.
    pub name: String,
    /// `mountpoint`, if it is mounted somewhere.
    pub mountpoint: Option<String>,
    /// Bytes that it refers to.
    pub referenced: u64,
    /// `recordsize`, bytes; 0 for volumes.
    pub record_size: u64,
    /// `atime` is on and `relatime` off.
    pub every_access: bool,
    /// That is inherited, so the advice is for a dataset above.
    pub access_inherited: bool,
    /// `compression` is off.
    pub uncompressed: bool,
    /// That is inherited.
    pub compression_inherited: bool,
    /// Calls that wrote, since the dataset was opened.
    pub writes: u64,
    /// Bytes that they wrote.
    pub written: u64,
    /// Blocks that were read because a write changed a part of them.
    pub read_modify_writes: u64,
    /// Commits of its intent log: `fsync` and synchronous writes.
    pub commits: u64,
    /// Bytes that these put into the intent log.
    pub logged: u64,
}

/// The cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheFacts {
    /// Bytes in use.
    pub size: u64,
    /// Bytes that it may use.
    pub max: u64,
    /// Requests for metadata that it answered.
    pub metadata_hits: u64,
    /// Requests for metadata that went to devices.
    pub metadata_misses: u64,
    /// Requests for data that it answered.
    pub data_hits: u64,
    /// Requests for data that went to devices.
    pub data_misses: u64,
    /// Requests that memory did not answer and cache devices did.
    pub device_hits: u64,
    /// Requests that memory did not answer, and cache devices did not either.
    pub device_misses: u64,
    /// Memory of the index of cache devices, bytes.
    pub device_index: u64,
    /// Expected share of data that memory alone answers, percent; `None` if unknown.
    pub expected: Option<u64>,
    /// The same with a cache device: its size as a multiple of `max`, and percent.
    pub expected_with_device: Vec<(u64, u64)>,
}
