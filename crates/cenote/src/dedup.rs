//! Dedup tables of an open pool: report, pruning, prefetch (chapter 08 §B, chapter 09 §4.3).

use base::{Error, ErrorKind, Result};
use ondisk::ddt::{STAT_BUCKETS, StatBucket};
use spa::engine::{Command, PruneAmount};

use crate::pool::Pool;

/// Seconds of a day.
const DAY: u64 = 24 * 60 * 60;

/// The entries that [`Pool::prune_dedup`] prunes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PruneRequest {
    /// Those that are at least so many days old.
    Days(u64),
    /// This share of them in percent, the oldest first.
    Percent(u8),
}

/// The dedup tables of a pool together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DedupReport {
    /// Entries.
    pub entries: u64,
    /// Bytes that they take on disk.
    pub on_disk: u64,
    /// Bytes that they take in memory.
    pub in_core: u64,
    /// Bytes of the tables that are in the cache.
    pub cached: u64,
    /// Buckets by log2 of the references.
    pub histogram: [StatBucket; STAT_BUCKETS],
}

impl Pool {
    /// The dedup tables. Entries of logs count beside those of the ZAPs, as in OpenZFS.
    ///
    /// # Errors
    /// Those of reading.
    pub fn dedup_report(&self) -> Result<DedupReport> {
        let spa = &self.core.spa;
        let mut report = DedupReport {
            entries: 0,
            on_disk: 0,
            in_core: 0,
            cached: spa.dedup_cached()?,
            histogram: [StatBucket::default(); STAT_BUCKETS],
        };
        for table in spa.dedup_tables()? {
            for class in &table.classes {
                report.entries = report.entries.saturating_add(class.entries);
                report.on_disk = report.on_disk.saturating_add(class.on_disk);
                report.in_core = report.in_core.saturating_add(class.in_core);
            }
            let in_logs = table.logs.iter().map(|log| log.entries.len() as u64).sum::<u64>();
            report.entries = report.entries.saturating_add(in_logs);
            let all = spa.dedup_histogram(&table);
            report.histogram.iter_mut().zip(all.iter()).for_each(|(to, from)| to.add(from));
        }
        Ok(report)
    }

    /// Prunes entries of blocks with one reference from the fast dedup tables (`zpool
    /// ddtprune`); returns how many went.
    ///
    /// # Errors
    /// `ReadOnly` for a pool imported read-only; `Busy` while entries are pruned already;
    /// `Unsupported` for a pool without fast dedup; `Io` when the pool is suspended.
    pub fn prune_dedup(&self, request: PruneRequest, command: Option<&str>) -> Result<u64> {
        if self.is_readonly() {
            return Err(Error::new(ErrorKind::ReadOnly, "pool is read-only"));
        }
        let amount = match request {
            PruneRequest::Percent(percent) => PruneAmount::Percent(percent),
            PruneRequest::Days(days) => {
                let now = base::rt::wall_clock().as_secs();
                PruneAmount::UpTo(now.saturating_sub(days.saturating_mul(DAY)))
            }
        };
        self.writer()?.prune_dedup(amount, command.map(Command::new))
    }

    /// Reads the dedup tables into the cache (`zpool prefetch -t ddt`).
    ///
    /// # Errors
    /// Those of reading.
    pub fn prefetch_dedup(&self) -> Result<()> {
        self.core.spa.prefetch_dedup()
    }
}
