//! Counters of a log, and of all logs of the process (chapter 10 §10.7).

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::rt::Mutex;

/// Record types, 0 to 24.
pub(crate) const TYPES: usize = 25;
/// Number of powers of two in a histogram, of bytes or of nanoseconds.
pub(crate) const POWERS: usize = 40;
/// Buckets for the number of commits that shared a batch: 1, 2, 3 to 4, and so on by
/// powers of two.
pub(crate) const SHARING_BUCKETS: usize = 12;
/// Most sets of threads for which shared batches are counted.
const CALLER_SETS_MAX: usize = 256;
/// Most threads of such a set that are recorded.
const CALLERS_MAX: usize = 16;

/// Blocks on vdevs of one kind.
#[derive(Debug, Default)]
pub struct Blocks {
    /// Blocks (`count`).
    pub count: AtomicU64,
    /// Bytes of records in them (`bytes`).
    pub used: AtomicU64,
    /// Bytes written (`write`).
    pub written: AtomicU64,
    /// Bytes of the blocks (`alloc`).
    pub allocated: AtomicU64,
}

/// Counters of a log.
#[derive(Debug)]
pub struct Stats {
    /// Commits requested (`zil_commit_count`).
    pub commits: AtomicU64,
    /// Batches written (`zil_commit_writer_count`).
    pub batches: AtomicU64,
    /// Commits that waited for a txg (`zil_commit_stall_count`).
    pub stalls: AtomicU64,
    /// Batches that could not be written (`zil_commit_error_count`).
    pub errors: AtomicU64,
    /// Records written (`zil_itx_count`).
    pub records: AtomicU64,
    /// Writes recorded by pointers, and their bytes (`zil_itx_indirect_*`).
    pub indirect: [AtomicU64; 2],
    /// Writes whose data was copied when written, and their bytes (`zil_itx_copied_*`).
    pub copied: [AtomicU64; 2],
    /// Writes whose data was fetched at the commit, and their bytes
    /// (`zil_itx_needcopy_*`).
    pub fetched: [AtomicU64; 2],
    /// Blocks on ordinary vdevs (`zil_itx_metaslab_normal_*`).
    pub normal: Blocks,
    /// Blocks on log vdevs (`zil_itx_metaslab_slog_*`).
    pub slog: Blocks,
    /// Records by type.
    pub by_type: [AtomicU64; TYPES],
    /// Blocks by log2 of their size, rounded up.
    pub by_size: [AtomicU64; POWERS],
    /// Commits by log2 of their duration in nanoseconds, rounded down.
    pub latency: [AtomicU64; POWERS],
    /// Batches by log2 of the number of their commits, rounded up.
    pub company: [AtomicU64; SHARING_BUCKETS],
    /// Batches by the threads whose commits they served.
    by_callers: Mutex<BTreeMap<Vec<u32>, u64>>,
}

impl Default for Stats {
    fn default() -> Stats {
        Stats {
            commits: AtomicU64::default(),
            batches: AtomicU64::default(),
            stalls: AtomicU64::default(),
            errors: AtomicU64::default(),
            records: AtomicU64::default(),
            indirect: Default::default(),
            copied: Default::default(),
            fetched: Default::default(),
            normal: Blocks::default(),
            slog: Blocks::default(),
            by_type: std::array::from_fn(|_| AtomicU64::new(0)),
            by_size: std::array::from_fn(|_| AtomicU64::new(0)),
            latency: std::array::from_fn(|_| AtomicU64::new(0)),
            company: Default::default(),
            by_callers: Mutex::default(),
        }
    }
}

/// The sums of all logs of this process, including destroyed ones.
pub fn totals() -> &'static Stats {
    static TOTALS: LazyLock<Stats> = LazyLock::new(Stats::default);
    &TOTALS
}

/// Adds to a counter.
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}

fn up(n: u64) -> usize {
    n.max(1).next_power_of_two().ilog2() as usize
}

impl Stats {
    /// Applies `f` to these counters and to the totals.
    pub(crate) fn both(&self, f: impl Fn(&Stats)) {
        f(self);
        f(totals());
    }

    pub(crate) fn block(&self, used: u64, written: u64, size: u64, slog: bool) {
        let of = if slog { &self.slog } else { &self.normal };
        of.count.fetch_add(1, Relaxed);
        of.used.fetch_add(used, Relaxed);
        of.written.fetch_add(written, Relaxed);
        of.allocated.fetch_add(size, Relaxed);
        self.by_size[up(size).min(POWERS - 1)].fetch_add(1, Relaxed);
    }

    pub(crate) fn took(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.latency[(nanos.ilog2() as usize).min(POWERS - 1)].fetch_add(1, Relaxed);
    }

    pub(crate) fn shared_by(&self, callers: usize) {
        self.company[up(callers as u64).min(SHARING_BUCKETS - 1)].fetch_add(1, Relaxed);
    }

    /// Only for a single log: its lock must not be shared by runs of the simulator.
    pub(crate) fn count_callers(&self, callers: &[u32]) {
        let mut members: Vec<u32> = callers.iter().copied().filter(|c| *c != 0).collect();
        members.sort_unstable();
        members.dedup();
        members.truncate(CALLERS_MAX);
        if members.is_empty() {
            return;
        }
        let mut all = self.by_callers.lock();
        if all.len() < CALLER_SETS_MAX || all.contains_key(&members) {
            *all.entry(members).or_default() += 1;
        }
    }

    /// How often which threads shared a batch, as far as they are known.
    pub fn shared(&self) -> BTreeMap<Vec<u32>, u64> {
        self.by_callers.lock().clone()
    }

    /// Number of blocks written.
    pub fn blocks(&self) -> u64 {
        self.normal.count.load(Relaxed) + self.slog.count.load(Relaxed)
    }

    /// Bytes of these blocks.
    pub fn allocated(&self) -> u64 {
        self.normal.allocated.load(Relaxed) + self.slog.allocated.load(Relaxed)
    }

    /// The counters by the names of the kstat `zil` (chapter 09 §6.1), in its order.
    pub fn named(&self) -> [(&'static str, u64); 21] {
        let n = |n: &AtomicU64| n.load(Relaxed);
        let [indirect, indirect_bytes] = &self.indirect;
        let [copied, copied_bytes] = &self.copied;
        let [fetched, fetched_bytes] = &self.fetched;
        let (normal, slog) = (&self.normal, &self.slog);
        [
            ("zil_commit_count", n(&self.commits)),
            ("zil_commit_writer_count", n(&self.batches)),
            ("zil_commit_error_count", n(&self.errors)),
            ("zil_commit_stall_count", n(&self.stalls)),
            ("zil_commit_suspend_count", 0),
            ("zil_commit_crash_count", 0),
            ("zil_itx_count", n(&self.records)),
            ("zil_itx_indirect_count", n(indirect)),
            ("zil_itx_indirect_bytes", n(indirect_bytes)),
            ("zil_itx_copied_count", n(copied)),
            ("zil_itx_copied_bytes", n(copied_bytes)),
            ("zil_itx_needcopy_count", n(fetched)),
            ("zil_itx_needcopy_bytes", n(fetched_bytes)),
            ("zil_itx_metaslab_normal_count", n(&normal.count)),
            ("zil_itx_metaslab_normal_bytes", n(&normal.used)),
            ("zil_itx_metaslab_normal_write", n(&normal.written)),
            ("zil_itx_metaslab_normal_alloc", n(&normal.allocated)),
            ("zil_itx_metaslab_slog_count", n(&slog.count)),
            ("zil_itx_metaslab_slog_bytes", n(&slog.used)),
            ("zil_itx_metaslab_slog_write", n(&slog.written)),
            ("zil_itx_metaslab_slog_alloc", n(&slog.allocated)),
        ]
    }

    /// Counters that the kstat `zil` does not have, for `cenote trace zil`: records by
    /// type, sizes of blocks, durations of commits, and number of commits in a batch.
    pub fn traced(&self) -> Vec<(String, u64)> {
        let lists: [(&str, &[AtomicU64]); 4] = [
            ("type", &self.by_type),
            ("size", &self.by_size),
            ("latency", &self.latency),
            ("company", &self.company),
        ];
        let mut out = Vec::new();
        for (name, list) in lists {
            let counted = list.iter().enumerate().map(|(i, n)| (i, n.load(Relaxed)));
            let seen = counted.filter(|(_, n)| *n > 0);
            out.extend(seen.map(|(i, n)| (format!("{name}_{i}"), n)));
        }
        for (members, n) in self.shared() {
            let members: Vec<String> = members.iter().map(u32::to_string).collect();
            out.push((format!("shared_{}", members.join("+")), n));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_named() {
        let stats = Stats::default();
        stats.block(300, 4096, 4096, false);
        stats.block(5000, 8192, 8192, true);
        stats.took(Duration::from_nanos(1500));
        for company in [&[7, 9, 7][..], &[0]] {
            stats.shared_by(company.len());
            stats.count_callers(company);
        }
        assert_eq!((stats.blocks(), stats.allocated()), (2, 12288));
        let traced: BTreeMap<String, u64> = stats.traced().into_iter().collect();
        let wanted = ["company_0", "company_2", "latency_10", "shared_7+9", "size_12", "size_13"];
        assert_eq!(traced.keys().map(String::as_str).collect::<Vec<_>>(), wanted);
        let named = stats.named();
        let of = |name: &str| named.iter().find(|(n, _)| *n == name).unwrap().1;
        assert_eq!(of("zil_itx_metaslab_normal_write"), 4096);
        assert_eq!(of("zil_itx_metaslab_slog_bytes"), 5000);
    }

    #[test]
    fn sets_of_callers_are_bounded() {
        let stats = Stats::default();
        for i in 1..2000 {
            stats.count_callers(&[i]);
        }
        assert_eq!(stats.shared().len(), CALLER_SETS_MAX);
        stats.count_callers(&(1..100).collect::<Vec<_>>());
        assert!(stats.shared().keys().all(|k| k.len() <= CALLERS_MAX));
    }
}
