//! Tunables of space that is given back: discards of checkpoints, trims, initializations.

use spa::engine::{ExpansionTuning, FreeSpaceTuning};
use vdev::IoClass;

use super::{OFF_ON, Tunable, Unit, active, small, writing};

macro_rules! free_space {
    ($name:expr, $what:expr, $unit:expr, $default:expr, $range:expr, $get:expr, $set:expr) => {
        writing(
            $name,
            $what,
            $unit,
            $default,
            $range,
            |e| {
                let get: fn(&FreeSpaceTuning) -> u64 = $get;
                get(&e.free_space_tuning())
            },
            |e, n| {
                let set: fn(&mut FreeSpaceTuning, u64) = $set;
                e.set_free_space_tuning(|t| set(t, n));
                Ok(())
            },
        )
    };
}

macro_rules! expansion {
    ($name:expr, $what:expr, $unit:expr, $default:expr, $range:expr, $get:expr, $set:expr) => {
        writing(
            $name,
            $what,
            $unit,
            $default,
            $range,
            |e| {
                let get: fn(&ExpansionTuning) -> u64 = $get;
                get(&e.expansion_tuning())
            },
            |e, n| {
                let set: fn(&mut ExpansionTuning, u64) = $set;
                e.set_expansion_tuning(|t| set(t, n));
                Ok(())
            },
        )
    };
}

pub(super) const EXPAND_MAX_COPY: Tunable = expansion!(
    "raidz_expand_max_copy_bytes",
    "bytes that one step of the expansion of a raidz vdev copies",
    Unit::Bytes,
    16 << 20,
    || (64 << 10, 256 << 20),
    |t| t.copy,
    |t, n| t.copy = n
);
pub(super) const EXPAND_MAX_REFLOW: Tunable = expansion!(
    "raidz_expand_max_reflow_bytes",
    "copied bytes after which the expansion of a raidz vdev pauses; 0: none",
    Unit::Bytes,
    0,
    || (0, u64::MAX),
    |t| t.pause,
    |t, n| t.pause = n
);
pub(super) const AGGREGATE_ROWS: Tunable = expansion!(
    "raidz_io_aggregate_rows",
    "free rows that an expansion copies to make one operation of two",
    Unit::Count,
    4,
    || (0, 1 << 20),
    |t| t.rows,
    |t, n| t.rows = n
);
pub(super) const SCRUB_AFTER_EXPAND: Tunable = expansion!(
    "zfs_scrub_after_expand",
    "a scrub follows the expansion of a raidz vdev",
    Unit::Choice(OFF_ON),
    1,
    || (0, 1),
    |t| t.scrub.into(),
    |t, n| t.scrub = n != 0
);
pub(super) const INITIALIZE_CHUNK_SIZE: Tunable = free_space!(
    "zfs_initialize_chunk_size",
    "bytes of one write of an initialization",
    Unit::Bytes,
    1 << 20,
    || (4 << 10, 16 << 20),
    |t| t.chunk,
    |t, n| t.chunk = n
);
pub(super) const INITIALIZE_VALUE: Tunable = free_space!(
    "zfs_initialize_value",
    "the word that an initialization writes",
    Unit::Count,
    0xdead_beef_dead_beee,
    || (0, u64::MAX),
    |t| t.pattern,
    |t, n| t.pattern = n
);
pub(super) const DISCARD_MEMORY_LIMIT: Tunable = free_space!(
    "zfs_spa_discard_memory_limit",
    "memory for the ranges of a checkpoint that one txg frees",
    Unit::Bytes,
    16 << 20,
    || (1 << 10, 1 << 30),
    |t| t.discard_memory,
    |t, n| t.discard_memory = n
);
pub(super) const CONDENSE_ENABLE: Tunable = free_space!(
    "zfs_condense_indirect_vdevs_enable",
    "condense the mappings of removed vdevs",
    Unit::Choice(OFF_ON),
    1,
    || (0, 1),
    |t| t.condense.into(),
    |t, n| t.condense = n != 0
);
pub(super) const CONDENSE_OBSOLETE_PCT: Tunable = free_space!(
    "zfs_condense_indirect_obsolete_pct",
    "part of a mapping that became obsolete at which it is condensed",
    Unit::Percent,
    25,
    || (0, 100),
    |t| t.condense_percent,
    |t, n| t.condense_percent = n
);
pub(super) const CONDENSE_MAX_OBSOLETE: Tunable = free_space!(
    "zfs_condense_max_obsolete_bytes",
    "length of an obsolete map at which its vdev's mapping is condensed",
    Unit::Bytes,
    1 << 30,
    || (4 << 10, 1 << 40),
    |t| t.condense_map_max,
    |t, n| t.condense_map_max = n
);
pub(super) const CONDENSE_MIN_MAPPING: Tunable = free_space!(
    "zfs_condense_min_mapping_bytes",
    "mappings of removed vdevs that take less stay as they are",
    Unit::Bytes,
    128 << 10,
    || (0, 1 << 40),
    |t| t.condense_mapping_min,
    |t, n| t.condense_mapping_min = n
);
pub(super) const REMOVE_MAX_SEGMENT: Tunable = writing(
    "zfs_remove_max_segment",
    "largest piece that the removal of a device copies as one",
    Unit::Bytes,
    16 << 20,
    || (4 << 10, 16 << 20),
    |e| e.removal_tuning().segment,
    |e, n| {
        e.set_removal_tuning(|t| t.segment = n);
        Ok(())
    },
);
pub(super) const REMOVAL_IGNORE_ERRORS: Tunable = writing(
    "zfs_removal_ignore_errors",
    "the removal of a device goes on after bytes that cannot be read",
    Unit::Choice(OFF_ON),
    0,
    || (0, 1),
    |e| e.removal_tuning().ignore_errors.into(),
    |e, n| {
        e.set_removal_tuning(|t| t.ignore_errors = n != 0);
        Ok(())
    },
);
pub(super) const TRIM_EXTENT_BYTES_MAX: Tunable = free_space!(
    "zfs_trim_extent_bytes_max",
    "larger ranges are trimmed in parts",
    Unit::Bytes,
    128 << 20,
    || (1 << 20, 1 << 40),
    |t| t.trim_max,
    |t, n| t.trim_max = n
);
pub(super) const TRIM_EXTENT_BYTES_MIN: Tunable = free_space!(
    "zfs_trim_extent_bytes_min",
    "smaller ranges are not trimmed",
    Unit::Bytes,
    32 << 10,
    || (512, 1 << 30),
    |t| t.trim_min,
    |t, n| t.trim_min = n
);
pub(super) const TRIM_METASLAB_SKIP: Tunable = free_space!(
    "zfs_trim_metaslab_skip",
    "do not trim metaslabs that were never used",
    Unit::Choice(OFF_ON),
    0,
    || (0, 1),
    |t| t.trim_skip.into(),
    |t, n| t.trim_skip = n != 0
);
pub(super) const TRIM_QUEUE_LIMIT: Tunable = free_space!(
    "zfs_trim_queue_limit",
    "discards that a trim queues at a device at once",
    Unit::Count,
    10,
    || (1, 1 << 20),
    |t| t.trim_queue,
    |t, n| t.trim_queue = n
);
pub(super) const TRIM_TXG_BATCH: Tunable = free_space!(
    "zfs_trim_txg_batch",
    "txgs over which autotrim collects freed space",
    Unit::Count,
    32,
    || (1, 1 << 10),
    |t| t.trim_batch,
    |t, n| t.trim_batch = n
);
pub(super) const INITIALIZING_MAX_ACTIVE: Tunable = active!(
    Initializing,
    max,
    "zfs_vdev_initializing_max_active",
    1,
    "maximum of writes of initializations in flight on one device"
);
pub(super) const INITIALIZING_MIN_ACTIVE: Tunable = active!(
    Initializing,
    min,
    "zfs_vdev_initializing_min_active",
    1,
    "writes of initializations in flight on one device beside other operations"
);
pub(super) const TRIM_MAX_ACTIVE: Tunable = active!(
    Trim,
    max,
    "zfs_vdev_trim_max_active",
    2,
    "maximum of discards in flight on one device"
);
pub(super) const TRIM_MIN_ACTIVE: Tunable = active!(
    Trim,
    min,
    "zfs_vdev_trim_min_active",
    1,
    "discards in flight on one device beside other operations"
);
