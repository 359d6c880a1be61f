//! Tunables by their usual names (chapter 09 §9).
//!
//! # Theory
//! One table ([`TUNABLES`]) has every tunable with an effect: its name on Linux, its
//! description, its range and default, how to read it and how to set it. FreeBSD's names
//! follow from Linux's by rule, in their present form (`vfs.zfs.arc.max`) and the previous
//! one (`vfs.zfs.arc_max`). A value is a number; some numbers have words (`on`, `arc`).
//! Changes take effect at once and last as long as the engine.
//!
//! # Invariants
//! * A value outside its range, or inconsistent with others, is refused and changes
//!   nothing.
//! * 0 for `zfs_arc_max` and `zfs_arc_min` selects the machine's default, as in OpenZFS.
//!   Reading them back gives 0 then, [`Tunable::in_effect`] the bytes.
//!
//! Lock order: `Engine::automatic` → the engine's configuration.

mod cloning;
mod names;
mod scans;
mod space;
mod text;
mod txgs;

use std::path::Path;

use arc::MemorySample;
use arc::config::ARC_MIN_FLOOR;
use arc::{Config, PolicyKind};
use base::{Error, Result};
use dsl::props::nicenum;
use l2arc::{L2Policy, Tunables as L2Tunables};
use vdev::IoClass;
use zio::prefetch::{TUNABLES as ZFETCH, Tunable as Zfetch};

pub use names::freebsd_names;

use crate::engine::Engine;

/// The bounds of the cache that follow the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Automatic {
    pub(crate) max: bool,
    pub(crate) min: bool,
}

/// The unit of a tunable's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes; suffixes are accepted.
    Bytes,
    /// Seconds.
    Seconds,
    /// Percent.
    Percent,
    /// An exponent of 2.
    Shift,
    /// A count.
    Count,
    /// A choice: the words for 0, 1, ...
    Choice(&'static [&'static str]),
}

/// One tunable.
pub struct Tunable {
    /// Linux's name.
    pub name: &'static str,
    /// Its description.
    pub what: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// Whether 0 stands for the machine's default.
    pub automatic: bool,
    default: u64,
    range: fn() -> (u64, u64),
    get: fn(&Engine) -> u64,
    set: fn(&Engine, u64) -> Result<()>,
    in_effect: fn(&Engine) -> u64,
}

impl std::fmt::Debug for Tunable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tunable").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The least size that follows from a largest one (chapter 10 §2.1): a 32nd of
/// memory and at least 32 MiB, but never more than half of the largest.
pub(crate) fn automatic_min(arc_max: u64, memory: Option<&MemorySample>) -> u64 {
    let min = memory.map_or(0, |m| m.total / 32).max(32 << 20);
    min.min(arc_max / 2).max(ARC_MIN_FLOOR).min(arc_max)
}

fn memory_bound() -> u64 {
    crate::memory::probe(Path::new("/")).0.map_or(1 << 46, |m| m.total)
}

fn set_arc_max(engine: &Engine, value: u64) -> Result<()> {
    let mut automatic = engine.automatic.lock();
    let mut config = engine.arc_config();
    let memory = engine.memory_now();
    let usual = arc::pressure::default_sizes(memory.as_ref()).1;
    config.arc_max = if value == 0 { usual } else { value };
    if automatic.min {
        config.arc_min = automatic_min(config.arc_max, memory.as_ref());
    } else if config.arc_max < config.arc_min {
        return Err(Error::invalid(format!(
            "zfs_arc_max must not be less than zfs_arc_min, which is {}",
            nicenum(config.arc_min)
        )));
    }
    engine.configure(config)?;
    automatic.max = value == 0;
    Ok(())
}

fn set_arc_min(engine: &Engine, value: u64) -> Result<()> {
    let mut automatic = engine.automatic.lock();
    let mut config = engine.arc_config();
    config.arc_min = if value == 0 {
        automatic_min(config.arc_max, engine.memory_now().as_ref())
    } else {
        value
    };
    if config.arc_min > config.arc_max {
        return Err(Error::invalid(format!(
            "zfs_arc_min must not be more than zfs_arc_max, which is {}",
            nicenum(config.arc_max)
        )));
    }
    engine.configure(config)?;
    automatic.min = value == 0;
    Ok(())
}

fn change(engine: &Engine, f: impl FnOnce(&mut Config)) -> Result<()> {
    // Serialises concurrent changes, so that none is lost.
    let _one = engine.automatic.lock();
    let mut config = engine.arc_config();
    f(&mut config);
    engine.configure(config)
}

/// A number that the table's range keeps within 32 bits.
fn small(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

const OFF_ON: &[&str] = &["off", "on"];
const POLICIES: &[&str] = &["default", "arc"];
const L2_POLICIES: &[&str] = &["default", "openzfs"];

/// A tunable of the prefetcher, with the text of its own table.
const fn zfetch(
    which: Zfetch,
    unit: Unit,
    range: fn() -> (u64, u64),
    get: fn(&Engine) -> u64,
    set: fn(&Engine, u64) -> Result<()>,
) -> Tunable {
    let info = &ZFETCH[which as usize];
    Tunable {
        name: info.name,
        what: info.help,
        unit,
        automatic: false,
        default: info.default,
        range,
        get,
        set,
        in_effect: get,
    }
}

macro_rules! zfetch {
    ($which:ident, $unit:expr) => {
        zfetch(
            Zfetch::$which,
            $unit,
            || {
                let info = &ZFETCH[Zfetch::$which as usize];
                (info.min, info.max)
            },
            |e| e.prefetch().get(Zfetch::$which),
            |e, n| e.prefetch().set(Zfetch::$which, n),
        )
    };
}

/// A tunable of the write throttle, of the device queues, or of cache devices.
const fn writing(
    name: &'static str,
    what: &'static str,
    unit: Unit,
    default: u64,
    range: fn() -> (u64, u64),
    get: fn(&Engine) -> u64,
    set: fn(&Engine, u64) -> Result<()>,
) -> Tunable {
    Tunable { name, what, unit, automatic: false, default, range, get, set, in_effect: get }
}

/// The minimum or maximum of operations of a class in flight on one device.
macro_rules! active {
    ($class:ident, $which:ident, $name:expr, $default:expr, $what:expr) => {
        writing(
            $name,
            $what,
            Unit::Count,
            $default,
            || (1, 1000),
            |e| e.queue_limits().classes[IoClass::$class as usize].$which.into(),
            |e, n| e.set_queue_limits(|l| l.classes[IoClass::$class as usize].$which = small(n)),
        )
    };
}
use active;

/// A tunable of cache devices.
macro_rules! l2arc {
    ($name:expr, $what:expr, $unit:expr, $default:expr, $range:expr, $get:expr, $set:expr) => {
        writing(
            $name,
            $what,
            $unit,
            $default,
            $range,
            |e| {
                let get: fn(&L2Tunables) -> u64 = $get;
                get(&e.second_level().tunables())
            },
            |e, n| {
                let set: fn(&mut L2Tunables, u64) = $set;
                let _one = e.automatic.lock();
                let mut tunables = e.second_level().tunables();
                set(&mut tunables, n);
                e.second_level().set_tunables(tunables);
                Ok(())
            },
        )
    };
}

/// Every tunable, by name.
pub static TUNABLES: [Tunable; 97] = [
    l2arc!(
        "l2arc_exclude_special",
        "do not write blocks of special vdevs to cache devices",
        Unit::Choice(OFF_ON),
        0,
        || (0, 1),
        |t| t.exclude_special.into(),
        |t, n| t.exclude_special = n != 0
    ),
    l2arc!(
        "l2arc_feed_again",
        "write to cache devices sooner when much waits to be written",
        Unit::Choice(OFF_ON),
        1,
        || (0, 1),
        |t| t.feed_again.into(),
        |t, n| t.feed_again = n != 0
    ),
    l2arc!(
        "l2arc_feed_min_ms",
        "least pause between writes to cache devices, milliseconds",
        Unit::Count,
        200,
        || (1, 3_600_000),
        |t| t.feed_min_ms,
        |t, n| t.feed_min_ms = n
    ),
    l2arc!(
        "l2arc_feed_secs",
        "usual pause between writes to cache devices",
        Unit::Seconds,
        1,
        || (1, 3600),
        |t| t.feed_secs,
        |t, n| t.feed_secs = n
    ),
    l2arc!(
        "l2arc_headroom",
        "bytes considered for a turn's write to a cache device, as a multiple of it; 0: no limit",
        Unit::Count,
        8,
        || (0, 1 << 20),
        |t| t.headroom,
        |t, n| t.headroom = n
    ),
    l2arc!(
        "l2arc_meta_percent",
        "largest share of the cache for the index of cache devices",
        Unit::Percent,
        33,
        || (1, 100),
        |t| t.meta_percent,
        |t, n| t.meta_percent = n
    ),
    l2arc!(
        "l2arc_mfuonly",
        "1: cache devices get only blocks used again; 2: and all metadata",
        Unit::Count,
        0,
        || (0, 2),
        |t| t.mfuonly,
        |t, n| t.mfuonly = n
    ),
    l2arc!(
        "l2arc_noprefetch",
        "cache devices get no blocks that were prefetched and not used",
        Unit::Choice(OFF_ON),
        1,
        || (0, 1),
        |t| t.noprefetch.into(),
        |t, n| t.noprefetch = n != 0
    ),
    l2arc!(
        "l2arc_norw",
        "do not read from a cache device while it is written",
        Unit::Choice(OFF_ON),
        0,
        || (0, 1),
        |t| t.norw.into(),
        |t, n| t.norw = n != 0
    ),
    l2arc!(
        "l2arc_policy",
        "blocks for cache devices: those that came back, or, as in OpenZFS, all that leave memory",
        Unit::Choice(L2_POLICIES),
        0,
        || (0, 1),
        |t| t.policy as u64,
        |t, n| t.policy = if n == 1 { L2Policy::Openzfs } else { L2Policy::Default }
    ),
    l2arc!(
        "l2arc_rebuild_blocks_min_l2size",
        "cache devices that end before this do not keep their content",
        Unit::Bytes,
        1 << 30,
        || (0, 1 << 60),
        |t| t.rebuild_min,
        |t, n| t.rebuild_min = n
    ),
    l2arc!(
        "l2arc_rebuild_enabled",
        "restore the content of cache devices at import",
        Unit::Choice(OFF_ON),
        1,
        || (0, 1),
        |t| t.rebuild_enabled.into(),
        |t, n| t.rebuild_enabled = n != 0
    ),
    l2arc!(
        "l2arc_trim_ahead",
        "trim cache devices ahead of the writes, by this share of a turn",
        Unit::Percent,
        0,
        || (0, 100_000),
        |t| t.trim_ahead,
        |t, n| t.trim_ahead = n
    ),
    l2arc!(
        "l2arc_write_boost",
        "more bytes in a turn while a cache device is filled for the first time",
        Unit::Bytes,
        32 << 20,
        || (0, 1 << 40),
        |t| t.write_boost,
        |t, n| t.write_boost = n
    ),
    l2arc!(
        "l2arc_write_max",
        "bytes written to a cache device in a turn",
        Unit::Bytes,
        32 << 20,
        || (1 << 20, 1 << 40),
        |t| t.write_max,
        |t, n| t.write_max = n
    ),
    space::EXPAND_MAX_COPY,
    space::EXPAND_MAX_REFLOW,
    space::AGGREGATE_ROWS,
    scans::OUTLIER_CHECK_INTERVAL,
    scans::OUTLIER_INSENSITIVITY,
    scans::READ_SIT_OUT_SECS,
    zfetch!(HoleShift, Unit::Shift),
    zfetch!(MaxDistance, Unit::Bytes),
    zfetch!(MaxIdistance, Unit::Bytes),
    zfetch!(MaxReorder, Unit::Bytes),
    zfetch!(MaxSecReap, Unit::Seconds),
    zfetch!(MaxStreams, Unit::Count),
    zfetch!(MinDistance, Unit::Bytes),
    zfetch!(MinSecReap, Unit::Seconds),
    Tunable {
        name: "zfs_arc_grow_retry",
        what: "time without growth of the cache after it had to shrink",
        unit: Unit::Seconds,
        automatic: false,
        default: 5,
        range: || (1, 3600),
        get: |e| e.arc_config().grow_retry.into(),
        set: |e, n| change(e, |c| c.grow_retry = small(n)),
        in_effect: |e| e.arc_config().grow_retry.into(),
    },
    Tunable {
        name: "zfs_arc_max",
        what: "largest target size of the cache",
        unit: Unit::Bytes,
        automatic: true,
        default: 0,
        range: || (ARC_MIN_FLOOR, memory_bound()),
        get: |e| if e.automatic.lock().max { 0 } else { e.arc_config().arc_max },
        set: set_arc_max,
        in_effect: |e| e.arc_config().arc_max,
    },
    Tunable {
        name: "zfs_arc_meta_balance",
        what: "weight of metadata found missing against data found missing: more keeps more metadata",
        unit: Unit::Percent,
        automatic: false,
        default: 500,
        range: || (1, 10_000),
        get: |e| e.arc_config().meta_balance.into(),
        set: |e, n| change(e, |c| c.meta_balance = small(n)),
        in_effect: |e| e.arc_config().meta_balance.into(),
    },
    Tunable {
        name: "zfs_arc_min",
        what: "least target size of the cache, below which memory pressure does not push it",
        unit: Unit::Bytes,
        automatic: true,
        default: 0,
        range: || (ARC_MIN_FLOOR, memory_bound()),
        get: |e| if e.automatic.lock().min { 0 } else { e.arc_config().arc_min },
        set: set_arc_min,
        in_effect: |e| e.arc_config().arc_min,
    },
    Tunable {
        name: "zfs_arc_no_grow_shift",
        what: "the cache does not grow while less memory is free than its target / 2^n",
        unit: Unit::Shift,
        automatic: false,
        default: 5,
        range: || (1, 16),
        get: |e| e.arc_config().no_grow_shift.into(),
        set: |e, n| change(e, |c| c.no_grow_shift = small(n)),
        in_effect: |e| e.arc_config().no_grow_shift.into(),
    },
    Tunable {
        name: "zfs_arc_policy",
        what: "the replacement policy: Cenote's own, or ARC as published",
        unit: Unit::Choice(POLICIES),
        automatic: false,
        default: 0,
        range: || (0, 1),
        get: |e| u64::from(e.arc_config().policy == PolicyKind::Arc),
        set: |e, n| {
            let policy = if n == 1 { PolicyKind::Arc } else { PolicyKind::Default };
            change(e, |c| c.policy = policy)
        },
        in_effect: |e| u64::from(e.arc_config().policy == PolicyKind::Arc),
    },
    Tunable {
        name: "zfs_arc_shrink_shift",
        what: "a shrink takes the cache's target / 2^n",
        unit: Unit::Shift,
        automatic: false,
        default: 5,
        range: || (1, 16),
        get: |e| e.arc_config().shrink_shift.into(),
        set: |e, n| change(e, |c| c.shrink_shift = small(n)),
        in_effect: |e| e.arc_config().shrink_shift.into(),
    },
    Tunable {
        name: "zfs_arc_sys_free",
        what: "memory that the cache leaves free",
        unit: Unit::Bytes,
        automatic: true,
        default: 0,
        range: || (1 << 20, memory_bound() / 2),
        get: |e| e.arc_config().sys_free,
        set: |e, n| change(e, |c| c.sys_free = n),
        in_effect: |e| match e.arc_config().sys_free {
            0 => e.arc_stats().sys_free,
            n => n,
        },
    },
    cloning::ENABLED,
    cloning::WAIT_DIRTY,
    writing(
        "zfs_checksum_events_per_second",
        "events of wrong checksums and of failed operations in a second, for each pool and kind; 0: no limit",
        Unit::Count,
        20,
        || (0, u32::MAX.into()),
        |e| e.event_limits().checksum(),
        |e, n| e.event_limits().set_checksum(n),
    ),
    Tunable {
        name: "zfs_compressed_arc_enabled",
        what: "blocks stay in the cache as they are stored, and are decompressed on use",
        unit: Unit::Choice(OFF_ON),
        automatic: false,
        default: 1,
        range: || (0, 1),
        get: |e| e.arc_config().compressed.into(),
        set: |e, n| change(e, |c| c.compressed = n != 0),
        in_effect: |e| e.arc_config().compressed.into(),
    },
    space::CONDENSE_OBSOLETE_PCT,
    space::CONDENSE_ENABLE,
    space::CONDENSE_MAX_OBSOLETE,
    space::CONDENSE_MIN_MAPPING,
    writing(
        "zfs_delay_max_ns",
        "longest delay of one write near the limit of dirty data, nanoseconds",
        Unit::Count,
        100_000_000,
        || (0, 10_000_000_000),
        |e| e.write_limits().delay_max_ns,
        |e, n| e.set_write_limits(|l| l.delay_max_ns = n),
    ),
    writing(
        "zfs_delay_min_dirty_percent",
        "part of the limit of dirty data above which writes are delayed",
        Unit::Percent,
        60,
        || (0, 100),
        |e| e.write_limits().delay_min_dirty_percent,
        |e, n| e.set_write_limits(|l| l.delay_min_dirty_percent = n),
    ),
    writing(
        "zfs_delay_scale",
        "delay of a write half way to the limit of dirty data, nanoseconds",
        Unit::Count,
        500_000,
        || (0, 10_000_000_000),
        |e| e.write_limits().delay_scale_ns,
        |e, n| e.set_write_limits(|l| l.delay_scale_ns = n),
    ),
    Tunable {
        name: "zfs_dirty_data_max",
        what: "dirty data of a pool at which writes wait",
        unit: Unit::Bytes,
        automatic: true,
        default: 0,
        range: || (txg::DIRTY_DATA_MIN, memory_bound() / 2),
        get: |e| if e.dirty_is_automatic() { 0 } else { e.write_limits().dirty_data_max },
        set: |e, n| e.set_dirty_data_max(n),
        in_effect: |e| e.write_limits().dirty_data_max,
    },
    writing(
        "zfs_dirty_data_sync_percent",
        "part of the limit of dirty data that starts the sync of a txg",
        Unit::Percent,
        20,
        || (1, 100),
        |e| e.write_limits().dirty_sync_percent,
        |e, n| e.set_write_limits(|l| l.dirty_sync_percent = n),
    ),
    writing(
        "zfs_immediate_write_sz",
        "size of a write from which on the intent log has pointers to its blocks, not its data",
        Unit::Bytes,
        zil::IMMEDIATE_WRITE,
        || (512, 16 << 20),
        |_| zil::immediate_write(),
        |_, n| {
            zil::set_immediate_write(n);
            Ok(())
        },
    ),
    space::INITIALIZE_CHUNK_SIZE,
    space::INITIALIZE_VALUE,
    zfetch!(Disable, Unit::Choice(OFF_ON)),
    scans::REBUILD_MAX_SEGMENT,
    scans::REBUILD_SCRUB_ENABLED,
    scans::REBUILD_VDEV_LIMIT,
    space::REMOVAL_IGNORE_ERRORS,
    space::REMOVE_MAX_SEGMENT,
    scans::RESILVER_DEFER_PERCENT,
    scans::RESILVER_DISABLE_DEFER,
    space::SCRUB_AFTER_EXPAND,
    writing(
        "zfs_slow_io_events_per_second",
        "events of slow operations in a second, for each pool; 0: no limit",
        Unit::Count,
        20,
        || (0, u32::MAX.into()),
        |e| e.event_limits().slow_io(),
        |e, n| e.event_limits().set_slow_io(n),
    ),
    space::DISCARD_MEMORY_LIMIT,
    space::TRIM_EXTENT_BYTES_MAX,
    space::TRIM_EXTENT_BYTES_MIN,
    space::TRIM_METASLAB_SKIP,
    space::TRIM_QUEUE_LIMIT,
    space::TRIM_TXG_BATCH,
    txgs::HISTORY,
    txgs::TIMEOUT,
    writing(
        "zfs_vdev_adaptive_depth",
        "the number of operations of a class in flight on a device adapts to its throughput, if max_active has its default",
        Unit::Choice(OFF_ON),
        1,
        || (0, 1),
        |e| e.queue_limits().adaptive.into(),
        |e, n| e.set_queue_limits(|l| l.adaptive = n != 0),
    ),
    writing(
        "zfs_vdev_aggregation_limit",
        "largest operation made by merging adjacent ones",
        Unit::Bytes,
        1 << 20,
        || (4096, 16 << 20),
        |e| e.queue_limits().aggregation_limit,
        |e, n| e.set_queue_limits(|l| l.aggregation_limit = n),
    ),
    active!(
        AsyncRead,
        max,
        "zfs_vdev_async_read_max_active",
        3,
        "maximum of prefetch reads in flight on one device"
    ),
    active!(
        AsyncRead,
        min,
        "zfs_vdev_async_read_min_active",
        1,
        "prefetch reads served before classes of lower priority"
    ),
    writing(
        "zfs_vdev_async_write_active_max_dirty_percent",
        "part of the limit of dirty data at which the async writes of a txg reach their maximum",
        Unit::Percent,
        60,
        || (0, 100),
        |e| e.queue_limits().dirty_max_percent.into(),
        |e, n| e.set_queue_limits(|l| l.dirty_max_percent = small(n)),
    ),
    writing(
        "zfs_vdev_async_write_active_min_dirty_percent",
        "part of the limit of dirty data up to which the async writes of a txg have their minimum",
        Unit::Percent,
        30,
        || (0, 100),
        |e| e.queue_limits().dirty_min_percent.into(),
        |e, n| e.set_queue_limits(|l| l.dirty_min_percent = small(n)),
    ),
    active!(
        AsyncWrite,
        max,
        "zfs_vdev_async_write_max_active",
        10,
        "maximum of async writes in flight on one device"
    ),
    active!(
        AsyncWrite,
        min,
        "zfs_vdev_async_write_min_active",
        2,
        "async writes in flight on one device while little is dirty"
    ),
    space::INITIALIZING_MAX_ACTIVE,
    space::INITIALIZING_MIN_ACTIVE,
    writing(
        "zfs_vdev_max_active",
        "operations of all classes in flight on one device",
        Unit::Count,
        1000,
        || (1, 10_000),
        |e| e.queue_limits().max_active.into(),
        |e, n| e.set_queue_limits(|l| l.max_active = small(n)),
    ),
    writing(
        "zfs_vdev_nia_credit",
        "background operations in flight beside each other operation",
        Unit::Count,
        5,
        || (0, 1000),
        |e| e.queue_limits().nia_credit.into(),
        |e, n| e.set_queue_limits(|l| l.nia_credit = small(n)),
    ),
    writing(
        "zfs_vdev_nia_delay",
        "consecutive background operations before they reach their maximum",
        Unit::Count,
        5,
        || (0, 1000),
        |e| e.queue_limits().nia_delay.into(),
        |e, n| e.set_queue_limits(|l| l.nia_delay = small(n)),
    ),
    writing(
        "zfs_vdev_read_gap_limit",
        "unwanted bytes between reads that are merged, if they are not synchronous",
        Unit::Bytes,
        32 << 10,
        || (0, 16 << 20),
        |e| e.queue_limits().read_gap_limit,
        |e, n| e.set_queue_limits(|l| l.read_gap_limit = n),
    ),
    scans::REBUILD_MAX_ACTIVE,
    scans::REBUILD_MIN_ACTIVE,
    scans::SCRUB_MAX_ACTIVE,
    scans::SCRUB_MIN_ACTIVE,
    active!(
        SyncRead,
        max,
        "zfs_vdev_sync_read_max_active",
        10,
        "maximum of synchronous reads in flight on one device"
    ),
    active!(
        SyncRead,
        min,
        "zfs_vdev_sync_read_min_active",
        10,
        "synchronous reads served before classes of lower priority"
    ),
    active!(
        SyncWrite,
        max,
        "zfs_vdev_sync_write_max_active",
        10,
        "maximum of synchronous writes in flight on one device"
    ),
    active!(
        SyncWrite,
        min,
        "zfs_vdev_sync_write_min_active",
        10,
        "synchronous writes served before classes of lower priority"
    ),
    space::TRIM_MAX_ACTIVE,
    space::TRIM_MIN_ACTIVE,
    writing(
        "zfs_zevent_len_max",
        "events that are kept",
        Unit::Count,
        zevent::LENGTH_DEFAULT as u64,
        || (0, 1 << 16),
        |e| e.events().length() as u64,
        |e, n| {
            e.events().set_length(usize::try_from(n).unwrap_or(usize::MAX));
            Ok(())
        },
    ),
    writing(
        "zio_slow_io_ms",
        "an operation that takes longer is a slow one, milliseconds",
        Unit::Count,
        30_000,
        || (1, 86_400_000),
        |e| e.queue_limits().slow_ms,
        |e, n| e.set_queue_limits(|l| l.slow_ms = n),
    ),
];

/// A tunable by any of its names.
///
/// # Errors
/// `NotFound`, with the name.
pub fn find(name: &str) -> Result<&'static Tunable> {
    let is = |t: &&Tunable| t.name == name || freebsd_names(t.name).iter().any(|n| n == name);
    TUNABLES.iter().find(is).ok_or_else(|| {
        let shown: String = name.chars().take(80).collect();
        Error::not_found(format!("there is no tunable '{shown}': 'cenote tune list' has them"))
    })
}

impl Tunable {
    /// Its value; 0 where it follows the machine.
    pub fn get(&self, engine: &Engine) -> u64 {
        (self.get)(engine)
    }

    /// The value in effect.
    pub fn in_effect(&self, engine: &Engine) -> u64 {
        (self.in_effect)(engine)
    }

    /// The default value.
    pub fn default_value(&self) -> u64 {
        self.default
    }

    /// Least and largest value, without 0 for automatic.
    pub fn range(&self) -> (u64, u64) {
        (self.range)()
    }
}

#[cfg(test)]
#[path = "tune_tests.rs"]
mod tests;
