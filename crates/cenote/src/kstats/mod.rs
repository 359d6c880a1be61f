//! The kstats of an engine: the files of `/proc/spl/kstat/zfs` (chapter 09 §6), made from
//! the cache's and the pools' counters when they are read.
//!
//! # Departures
//! `qat` is absent (no such hardware is used), as are files that OpenZFS itself dropped.
//! `cenote_arc` is added: how hits were served, and bytes held. Writing to a file clears
//! nothing.

mod arcstats;
mod bench;
mod report;
mod tables;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use base::rt::{self, Mutex};
use kstat::{IoCounters, Kstat, KstatBody, Value};
use spa::status::VdevState;

use crate::engine::Engine;
use crate::pool::PoolCore;

pub use arc::whatif::Point as WhatIfPoint;
pub use report::{ArcReport, L2Report, Share};
pub use zio::prefetch::ZfetchStats;

fn zfetchstats(z: ZfetchStats) -> Kstat {
    Kstat::numbers([
        ("hits", z.hits),
        ("future", z.future),
        ("stride", z.stride),
        ("past", z.past),
        ("misses", z.misses),
        ("max_streams", z.max_streams),
        ("io_issued", z.io_issued),
        ("io_active", z.io_active),
    ])
}

/// Registers the kstats that do not depend on pools.
pub(crate) fn register_engine(engine: &Arc<Engine>) -> base::Result<()> {
    let registry = engine.kstats();
    registry.register("arcstats", engine, |e| arcstats::arcstats(&e.arc_stats()))?;
    registry.register("cenote_arc", engine, |e| arcstats::own(&e.arc_stats()))?;
    registry.register("zfetchstats", engine, |e| zfetchstats(e.zfetch_stats()))?;
    registry.register_static("abdstats", tables::abdstats)?;
    registry.register_static("dbufstats", tables::dbufstats)?;
    registry
        .register_static("dbufs", || Kstat::new("misc", KstatBody::Text(tables::DBUFS.into())))?;
    for (file, list) in tables::FILES {
        registry.register_static(file, move || tables::zeros(list))?;
    }
    registry.register_static("cenote_bugs", || {
        Kstat::numbers([("impossible_states_met", base::bug::count())])
    })?;
    registry.register_static("zil", || Kstat::numbers(zil::totals().named()))?;
    registry.register_static("fletcher_4_bench", bench::fletcher4)?;
    registry.register_static("chksum_bench", bench::chksum)?;
    registry.register_static("vdev_raidz_bench", bench::raidz)?;
    let started = rt::wall_clock().as_secs();
    registry.register_static("dbgmsg", move || {
        let version = env!("CARGO_PKG_VERSION");
        let text =
            format!("timestamp    message\n{started:<12} cenote {version}: engine started\n");
        Kstat::new("misc", KstatBody::Text(text))
    })
}

/// The word in `<pool>/state` (chapter 09 §4.3).
fn state_word(state: VdevState) -> &'static str {
    match state {
        VdevState::Online => "ONLINE",
        VdevState::Degraded => "DEGRADED",
        VdevState::Faulted => "FAULTED",
        VdevState::Offline => "OFFLINE",
        VdevState::Removed => "REMOVED",
        VdevState::Unavail => "UNAVAIL",
    }
}

/// Checksums with deduplication tables, and the tables' object names in the MOS.
const DDT_CHECKSUMS: [&str; 5] = ["sha256", "sha512", "skein", "edonr", "blake3"];

const DDT: &str = "lookup lookup_new lookup_existing lookup_live_hit lookup_live_wait \
                   lookup_live_miss lookup_log_hit lookup_log_active_hit lookup_log_flushing_hit \
                   lookup_log_miss lookup_stored_hit lookup_stored_miss log_active_entries \
                   log_flushing_entries";

fn ddt_stats() -> Kstat {
    let mut kstat = tables::zeros(DDT);
    if let KstatBody::Named(rows) = &mut kstat.body {
        for name in ["log_ingest_rate", "log_flush_rate", "log_flush_time_rate"] {
            rows.push((name.into(), Value::U32(0)));
        }
    }
    kstat
}

fn has_ddt(core: &PoolCore, checksum: &str) -> bool {
    let suffixes = ["", "-zap-unique", "-zap-duplicate", "-zap-ditto"];
    let object = |suffix: &&str| core.spa.mos().lookup(&format!("DDT-{checksum}{suffix}"));
    suffixes.iter().any(|s| matches!(object(s), Ok(Some(_))))
}

/// Registers an imported pool's files. A name that cannot be a directory's, or a
/// full registry, leaves the pool without kstats.
pub(crate) fn register_pool(core: &Arc<PoolCore>) -> base::Result<()> {
    let Some(registry) = &core.kstats else { return Ok(()) };
    let name = core.spa.name();
    let text = |text: String| Kstat::new("misc", KstatBody::Text(text));
    registry.register(&format!("{name}/state"), core, move |core| {
        let suspended = core.writer.as_ref().is_some_and(|w| w.txgs().suspended().is_some());
        let word = match suspended {
            true => "SUSPENDED",
            false => state_word(core.spa.vdev_status().state()),
        };
        text(format!("{word}\n"))
    })?;
    registry.register(&format!("{name}/guid"), core, move |core| {
        text(format!("{}\n", core.config().pool_guid.0))
    })?;
    for (file, list) in tables::POOL_FILES {
        registry.register(&format!("{name}/{file}"), core, move |_| tables::zeros(list))?;
    }
    for (file, heading) in tables::POOL_LISTS {
        let heading = format!("{heading}\n");
        registry.register(&format!("{name}/{file}"), core, move |_| text(heading.clone()))?;
    }
    registry.register(&format!("{name}/txgs"), core, move |core| text(txgs(core)))?;
    registry.register(&format!("{name}/cenote_zil"), core, cenote_zil)?;
    registry.register(&format!("{name}/cenote_heal"), core, cenote_heal)?;
    registry.register(&format!("{name}/cenote_alloc"), core, cenote_alloc)?;
    let none = |_: &PoolCore| Kstat::numbers([]);
    registry.register(&format!("{name}/dmu_tx_assign"), core, none)?;
    for checksum in DDT_CHECKSUMS.iter().filter(|c| has_ddt(core, c)) {
        registry.register(&format!("{name}/ddt_stats_{checksum}"), core, |_| ddt_stats())?;
    }
    Ok(())
}

/// The last txgs, `zfs_txg_history` of them, and the living ones (chapter 09 §6).
fn txgs(core: &PoolCore) -> String {
    let mut out = tables::TXGS.to_owned();
    let history = core.writer.as_ref().map(|w| w.txgs().history()).unwrap_or_default();
    for r in history {
        let (io, state) = (r.io, r.state.letter());
        let _never_fails = writeln!(
            out,
            "{:<8} {:<16} {state:<5} {:<12} {:<12} {:<12} {:<8} {:<8} {:<12} {:<12} {:<12} {:<12}",
            r.txg,
            r.birth,
            r.ndirty,
            io.nread,
            io.nwritten,
            io.reads,
            io.writes,
            r.otime,
            r.qtime,
            r.wtime,
            r.stime
        );
    }
    out
}

/// Blocks that were allocated.
fn cenote_alloc(core: &PoolCore) -> Kstat {
    let (blocks, gangs) = core.spa.zio().placed_counts();
    Kstat::numbers([("blocks", blocks), ("gang_blocks", gangs)])
}

/// Repairs by reads that found wrong bytes.
fn cenote_heal(core: &PoolCore) -> Kstat {
    let counts = core.spa.zio().heal_counts();
    let numbers = [
        ("found", counts.found),
        ("healed", counts.healed),
        ("healed_bytes", counts.bytes),
        ("failed", counts.failed),
        ("skipped", counts.skipped),
    ];
    Kstat::named(numbers.into_iter().map(|(name, n)| (name.into(), Value::U64(n))).collect())
}

/// Activity of all logs of a pool, for `cenote trace zil`.
fn cenote_zil(core: &PoolCore) -> Kstat {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    let logs = core.writer.as_ref().map(|w| w.all_logs()).unwrap_or_default();
    for log in logs.values() {
        let stats = log.stats();
        let number = |n: &AtomicU64| n.load(Relaxed);
        let own = [
            ("commits", number(&stats.commits)),
            ("batches", number(&stats.batches)),
            ("stalls", number(&stats.stalls)),
            ("records", number(&stats.records)),
            ("blocks", stats.blocks()),
        ];
        let own = own.into_iter().map(|(name, n)| (name.to_owned(), n));
        own.chain(stats.traced()).for_each(|(name, n)| *sums.entry(name).or_default() += n);
    }
    Kstat::named(sums.into_iter().map(|(name, n)| (name.into(), Value::U64(n))).collect())
}

fn objset(name: &str, io: &IoCounters, log: Option<&zil::Log>, modified: u64) -> Kstat {
    let mut rows = vec![("dataset_name".into(), Value::Str(name.to_owned()))];
    for (name, n) in [
        ("writes", io.writes.get()),
        ("nwritten", io.nwritten.get()),
        ("reads", io.reads.get()),
        ("nread", io.nread.get()),
        ("nunlinks", 0),
        ("nunlinked", 0),
    ] {
        rows.push((name.into(), Value::U64(n)));
    }
    let none = zil::Stats::default();
    let counters = log.map_or(&none, zil::Log::stats).named();
    rows.extend(counters.map(|(name, n)| (name.into(), Value::U64(n))));
    rows.push(("cenote_read_modify_writes".into(), Value::U64(modified)));
    Kstat::new("dataset", KstatBody::Named(rows))
}

/// Counters of an open dataset, shown under its present name.
pub(crate) struct DatasetCounters {
    counters: Weak<IoCounters>,
    name: Arc<Mutex<String>>,
}

/// The counters of a dataset that is being opened: those of its other users, or new ones,
/// which are then shown as `<pool>/objset-0x…` as long as the dataset is open.
pub(crate) fn dataset_counters(
    core: &PoolCore,
    object: u64,
    name: &str,
) -> Option<Arc<IoCounters>> {
    let registry = core.kstats.as_ref()?;
    let mut all = core.counters.lock();
    all.retain(|_, c| c.counters.strong_count() > 0);
    if let Some(counters) = all.get(&object).and_then(|c| c.counters.upgrade()) {
        return Some(counters);
    }
    let counters = Arc::new(IoCounters::default());
    let path = format!("{}/objset-0x{object:x}", core.spa.name());
    let current = Arc::new(Mutex::new(name.to_owned()));
    let shown = Arc::clone(&current);
    let writer = core.writer.as_ref().map(Arc::downgrade);
    let show = move |io: &IoCounters| {
        let writer = writer.as_ref().and_then(std::sync::Weak::upgrade);
        let log = writer.as_ref().and_then(|w| w.log_in_use(object));
        let head = writer.and_then(|w| w.head_in_use(object));
        let name = shown.lock().clone();
        objset(&name, io, log.as_deref(), head.map_or(0, |os| os.read_modify_writes()))
    };
    // A full registry costs the kstat, not the dataset.
    registry.register(&path, &counters, show).ok()?;
    let name = current;
    all.insert(object, DatasetCounters { counters: Arc::downgrade(&counters), name });
    Some(counters)
}

/// The datasets from `from` on were renamed.
pub(crate) fn renamed(core: &PoolCore, from: &str, to: &str) {
    for dataset in core.counters.lock().values() {
        let mut name = dataset.name.lock();
        let below = name.strip_prefix(from).filter(|b| b.is_empty() || b.starts_with('/'));
        if let Some(new) = below.map(|below| format!("{to}{below}")) {
            *name = new;
        }
    }
}
