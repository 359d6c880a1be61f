//! State shared by all prefetchers of one engine: tunables, counters, and the limit on
//! read-ahead bytes in flight.
//!
//! # Theory
//! A guess must never cost more than it can gain. So all read-ahead of all pools
//! together uses at most 1/16 of the block cache's target while it is in flight: each
//! read holds a [`Permit`]. Reads that a caller certainly needs require none.
//!
//! # Departures from OpenZFS
//! * A stream is read at most 8 MiB ahead, as in OpenZFS until 2.1. With 16 MiB and
//!   more, read-ahead that waited for a free thread came later than its reader, which
//!   had read the blocks itself, and a cold file was read 1.8 times.
//! * In OpenZFS the limit is a number of requests, derived from the largest target
//!   size; here it is a number of bytes and follows the current target.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::{Error, Result};

use crate::Zio;

/// The fraction of the cache's target that read-ahead in flight may use (1/16).
const SHARE: u64 = 16;
/// Read-ahead of up to this many bytes is always allowed.
const LEAST: u64 = 1 << 20;

/// The tunables (chapter 10 §6.2); [`Prefetch::get`] returns the current value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tunable {
    /// 1 = predict nothing.
    Disable,
    /// Streams remembered for one open file.
    MaxStreams,
    /// Bytes up to which a stream's look-ahead doubles.
    MinDistance,
    /// Most bytes of data read ahead of a stream.
    MaxDistance,
    /// Most bytes of data whose level-1 blocks are read ahead.
    MaxIdistance,
    /// Bytes by which accesses of one stream may overtake each other.
    MaxReorder,
    /// Seconds without a hit before a stream may be replaced.
    MinSecReap,
    /// Seconds without a hit before a stream ends.
    MaxSecReap,
    /// A stream may leave out 1/2^n of its blocks.
    HoleShift,
}

/// A tunable's name, meaning and range.
#[derive(Clone, Copy, Debug)]
pub struct TunableInfo {
    /// Which one.
    pub tunable: Tunable,
    /// Its name on Linux.
    pub name: &'static str,
    /// What it does.
    pub help: &'static str,
    /// Default value.
    pub default: u64,
    /// Least value.
    pub min: u64,
    /// Largest value.
    pub max: u64,
}

const fn info(
    tunable: Tunable,
    name: &'static str,
    help: &'static str,
    default: u64,
    min: u64,
    max: u64,
) -> TunableInfo {
    TunableInfo { tunable, name, help, default, min, max }
}

/// Every tunable, in the order of [`Tunable`].
pub const TUNABLES: [TunableInfo; 9] = [
    info(Tunable::Disable, "zfs_prefetch_disable", "1 = no reads ahead on a guess", 0, 0, 1),
    info(Tunable::MaxStreams, "zfetch_max_streams", "streams a file", 8, 1, 64),
    info(
        Tunable::MinDistance,
        "zfetch_min_distance",
        "bytes up to which the look-ahead doubles",
        4 << 20,
        0,
        1 << 30,
    ),
    info(
        Tunable::MaxDistance,
        "zfetch_max_distance",
        "most bytes read ahead of a stream",
        8 << 20,
        0,
        1 << 30,
    ),
    info(
        Tunable::MaxIdistance,
        "zfetch_max_idistance",
        "most bytes whose indirect blocks are read ahead",
        128 << 20,
        0,
        1 << 30,
    ),
    info(
        Tunable::MaxReorder,
        "zfetch_max_reorder",
        "bytes by which accesses may overtake each other",
        16 << 20,
        0,
        1 << 30,
    ),
    info(
        Tunable::MinSecReap,
        "zfetch_min_sec_reap",
        "seconds before an idle stream may be replaced",
        1,
        0,
        3600,
    ),
    info(
        Tunable::MaxSecReap,
        "zfetch_max_sec_reap",
        "seconds before an idle stream ends",
        2,
        0,
        3600,
    ),
    info(
        Tunable::HoleShift,
        "zfetch_hole_shift",
        "a stream may leave out 1/2^n of its blocks",
        2,
        0,
        63,
    ),
];

/// The counters of `zfetchstats` (chapter 10 §6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZfetchStats {
    /// Accesses at the position that a stream expected.
    pub hits: u64,
    /// Accesses a little ahead of a stream.
    pub future: u64,
    /// Accesses ahead of a stream that continued it across holes.
    pub stride: u64,
    /// Accesses a little behind a stream.
    pub past: u64,
    /// Accesses near no stream.
    pub misses: u64,
    /// Streams that could not be created because all slots were taken.
    pub max_streams: u64,
    /// Reads ahead that were started.
    pub io_issued: u64,
    /// Read-ahead operations in flight.
    pub io_active: u64,
}

/// Tunables and counters of all prefetchers of one engine.
#[derive(Debug)]
pub struct Prefetch {
    values: [AtomicU64; TUNABLES.len()],
    generation: AtomicU64,
    hits: AtomicU64,
    future: AtomicU64,
    stride: AtomicU64,
    past: AtomicU64,
    misses: AtomicU64,
    max_streams: AtomicU64,
    io_issued: AtomicU64,
    io_active: AtomicU64,
    in_flight: AtomicU64,
}

impl Default for Prefetch {
    fn default() -> Self {
        Prefetch {
            values: std::array::from_fn(|i| AtomicU64::new(TUNABLES[i].default)),
            generation: AtomicU64::new(1),
            hits: AtomicU64::default(),
            future: AtomicU64::default(),
            stride: AtomicU64::default(),
            past: AtomicU64::default(),
            misses: AtomicU64::default(),
            max_streams: AtomicU64::default(),
            io_issued: AtomicU64::default(),
            io_active: AtomicU64::default(),
            in_flight: AtomicU64::default(),
        }
    }
}

impl Prefetch {
    /// Default tunables, counters at zero.
    pub fn new() -> Arc<Prefetch> {
        Arc::default()
    }

    /// A tunable's value.
    pub fn get(&self, tunable: Tunable) -> u64 {
        self.values[tunable as usize].load(Relaxed)
    }

    /// Sets a tunable; readers notice at their next access.
    ///
    /// # Errors
    /// `Invalid` for a value out of its range.
    pub fn set(&self, tunable: Tunable, value: u64) -> Result<()> {
        let info = &TUNABLES[tunable as usize];
        if !(info.min..=info.max).contains(&value) {
            return Err(Error::invalid(format!(
                "{} must lie between {} and {}",
                info.name, info.min, info.max
            )));
        }
        self.values[tunable as usize].store(value, Relaxed);
        self.generation.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Changes with every [`Prefetch::set`]; never 0.
    pub fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// The counters.
    pub fn stats(&self) -> ZfetchStats {
        ZfetchStats {
            hits: self.hits.load(Relaxed),
            future: self.future.load(Relaxed),
            stride: self.stride.load(Relaxed),
            past: self.past.load(Relaxed),
            misses: self.misses.load(Relaxed),
            max_streams: self.max_streams.load(Relaxed),
            io_issued: self.io_issued.load(Relaxed),
            io_active: self.io_active.load(Relaxed),
        }
    }

    /// Adds the counts of a prefetcher and the reads that it started; reads in flight
    /// are counted by the permits.
    pub fn count(&self, n: &ZfetchStats) {
        let pairs = [
            (&self.hits, n.hits),
            (&self.future, n.future),
            (&self.stride, n.stride),
            (&self.past, n.past),
            (&self.misses, n.misses),
            (&self.max_streams, n.max_streams),
            (&self.io_issued, n.io_issued),
        ];
        for (counter, n) in pairs.into_iter().filter(|p| p.1 > 0) {
            counter.fetch_add(n, Relaxed);
        }
    }

    /// Permission to read `bytes` ahead while at most `limit` bytes are in flight. One
    /// read is always allowed, so that the largest blocks are, too.
    pub fn permit(self: &Arc<Self>, bytes: u64, limit: u64) -> Option<Permit> {
        let fits = |now: u64| now.checked_add(bytes).filter(|sum| now == 0 || *sum <= limit);
        self.in_flight.fetch_update(Relaxed, Relaxed, fits).ok()?;
        self.io_active.fetch_add(1, Relaxed);
        Some(Permit { shared: Arc::clone(self), bytes })
    }
}

/// Represents one read-ahead in flight; dropped when it ends.
#[derive(Debug)]
pub struct Permit {
    shared: Arc<Prefetch>,
    bytes: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.in_flight.fetch_sub(self.bytes, Relaxed);
        self.shared.io_active.fetch_sub(1, Relaxed);
    }
}

impl Zio {
    /// The state that this pool's prefetchers share with the engine's other pools.
    pub fn prefetch(&self) -> Arc<Prefetch> {
        Arc::clone(&self.prefetch.read())
    }

    /// Connects the pool to the shared state of an engine; running read-ahead keeps the
    /// state with which it began.
    pub fn set_prefetch(&self, shared: Arc<Prefetch>) {
        *self.prefetch.write() = shared;
    }

    /// Bytes of read-ahead that may be in flight.
    pub fn read_ahead_limit(&self) -> u64 {
        (self.cache.target() / SHARE).max(LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_tunables_is_in_order_and_in_range() {
        let shared = Prefetch::new();
        for (i, t) in TUNABLES.iter().enumerate() {
            assert_eq!(t.tunable as usize, i, "{}", t.name);
            assert_eq!(shared.get(t.tunable), t.default);
            let before = shared.generation();
            assert!(shared.set(t.tunable, t.max + 1).is_err());
            assert_eq!((shared.get(t.tunable), shared.generation()), (t.default, before));
            shared.set(t.tunable, t.max).unwrap();
            assert_eq!(shared.get(t.tunable), t.max);
            assert_ne!(shared.generation(), before);
        }
    }

    #[test]
    fn bytes_in_flight_are_bounded_and_come_back() {
        let shared = Prefetch::new();
        let large = shared.permit(16 << 20, 1 << 20).unwrap();
        assert!(shared.permit(1, 1 << 20).is_none());
        drop(large);
        let held: Vec<_> = (0..8).map(|_| shared.permit(128 << 10, 1 << 20).unwrap()).collect();
        assert!(shared.permit(1, 1 << 20).is_none());
        assert!(shared.permit(u64::MAX, u64::MAX).is_none());
        assert_eq!(shared.stats().io_active, 8);
        drop(held);
        assert!(shared.permit(1, 1 << 20).is_some());
        assert_eq!(shared.stats(), ZfetchStats::default());
    }
}
