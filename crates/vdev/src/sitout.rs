//! A leaf of RAID-Z or dRAID that is persistently slower than the others sits out of reads
//! (chapter 02 §14; properties `autosit` and `sit_out`).
//!
//! # Theory
//! A read of a parity vdev ends with its slowest column. While a leaf sits out, its columns
//! of ordinary reads are computed from parity, as far as enough other columns can be read. Scrubs
//! and resilvers read all leaves as ever.
//!
//! Detection is on by request (`autosit` of the top-level vdev). At most once in each interval
//! a read compares the children of the vdev: the mean time that reads took in the device since
//! the last comparison. A leaf is an outlier if its mean lies beyond
//!
//! ```text
//! Q3 + insensitivity * max(Q3 - Q1, Q3 / 25)
//! ```
//!
//! of the quartiles Q1 and Q3 of the *other* children's means: with equal devices and the
//! default of 50, three times the others. Each comparison that finds the leaf an outlier adds
//! one to its score, and each other one takes one off; at [`SCORE_MAX`] the leaf sits out. After
//! [`SitOutLimits::secs`] it is read again, with a score of zero.
//!
//! # States
//! ```text
//! read -- score reaches its maximum, sit_out=on --> sits out
//! sits out -- the time is over, sit_out=off --> read
//! ```
//!
//! # Invariants
//! * At most as many leaves of a vdev sit out by themselves as it has parity columns.
//! * No block is unreadable because a leaf sits out: the leaf is read if the others do not
//!   suffice.
//! * Only leaves that are children of a parity vdev sit out.
//!
//! # Departures from OpenZFS
//! * The comparison is this one. OpenZFS needs at least five children, here three suffice.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::{Error, ErrorKind, Guid, Result};

use crate::report::{LeafReport, ReportKind};
use crate::spec::VdevKind;
use crate::tree::{Node, NodeId, Tree};

/// Comparisons, more than others, that find a leaf an outlier before it sits out.
const SCORE_MAX: u32 = 10;
/// Reads of a child that make a mean; fewer wait for the next comparison.
const READS_MIN: u64 = 4;
/// Other children with a mean that a comparison needs.
const OTHERS_MIN: usize = 2;

/// When leaves sit out, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SitOutLimits {
    /// Seconds for which a leaf sits out; 0: none does (`vdev_read_sit_out_secs`).
    pub secs: u64,
    /// Milliseconds between two comparisons (`vdev_raidz_outlier_check_interval_ms`).
    pub check_ms: u64,
    /// How far from the others a leaf must be (`vdev_raidz_outlier_insensitivity`).
    pub insensitivity: u64,
}

impl Default for SitOutLimits {
    fn default() -> Self {
        SitOutLimits { secs: 600, check_ms: 1000, insensitivity: 50 }
    }
}

/// The limits in force.
#[derive(Debug)]
pub(crate) struct SitOutTuning {
    secs: AtomicU64,
    check_ms: AtomicU64,
    insensitivity: AtomicU64,
}

impl Default for SitOutTuning {
    fn default() -> Self {
        let SitOutLimits { secs, check_ms, insensitivity } = SitOutLimits::default();
        SitOutTuning {
            secs: AtomicU64::new(secs),
            check_ms: AtomicU64::new(check_ms),
            insensitivity: AtomicU64::new(insensitivity),
        }
    }
}

impl SitOutTuning {
    pub(crate) fn get(&self) -> SitOutLimits {
        SitOutLimits {
            secs: self.secs.load(Relaxed),
            check_ms: self.check_ms.load(Relaxed),
            insensitivity: self.insensitivity.load(Relaxed),
        }
    }

    pub(crate) fn set(&self, limits: SitOutLimits) {
        self.secs.store(limits.secs, Relaxed);
        self.check_ms.store(limits.check_ms, Relaxed);
        self.insensitivity.store(limits.insensitivity, Relaxed);
    }
}

/// What a vdev remembers of it. Times are nanoseconds of [`base::rt::uptime`].
#[derive(Debug, Default)]
pub(crate) struct SitOutState {
    /// A top-level vdev compares its children.
    autosit: AtomicBool,
    /// The time of the last comparison.
    checked: AtomicU64,
    /// The end of the time for which a leaf sits out; 0 if it does not.
    until: AtomicU64,
    score: AtomicU32,
    /// Reads of a leaf up to the last comparison, and their time in the device.
    reads: AtomicU64,
    time: AtomicU64,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn now() -> u64 {
    nanos(base::rt::uptime())
}

/// The first and third quartile; 0 of none.
fn quartiles(mut all: Vec<u64>) -> (u64, u64) {
    all.sort_unstable();
    let last = all.len().saturating_sub(1);
    // The nearest one.
    let of = |quarter: usize| all.get((last * quarter + 2) / 4).copied().unwrap_or(0);
    (of(1), of(3))
}

/// Whether a mean is that of an outlier among these others.
fn is_outlier(mean: u64, others: Vec<u64>, insensitivity: u64) -> bool {
    if others.len() < OTHERS_MIN {
        return false;
    }
    let (q1, q3) = quartiles(others);
    let spread = (q3 - q1).max(q3 / 25);
    mean > q3.saturating_add(spread.saturating_mul(insensitivity))
}

impl Node {
    /// Whether it sits out of reads now.
    pub fn sits_out(&self) -> bool {
        let until = self.live.sit_out.until.load(Relaxed);
        until != 0 && now() < until
    }

    /// Whether slow children of it are to sit out by themselves.
    pub fn has_autosit(&self) -> bool {
        self.live.sit_out.autosit.load(Relaxed)
    }

    fn parity(&self) -> Option<usize> {
        match self.kind() {
            VdevKind::Raidz { nparity, .. } => Some(usize::from(*nparity)),
            VdevKind::Draid(params) => Some(params.nparity as usize),
            _ => None,
        }
    }
}

fn wrong_type(guid: Guid) -> Error {
    Error::unsupported("operation not supported on this type of vdev").on_vdev(guid)
}

impl Tree {
    /// Sets the limits of this snapshot and later ones.
    pub fn set_sit_out_limits(&self, limits: SitOutLimits) {
        self.tuning.sit_out.set(limits);
    }

    /// Has slow children of a parity vdev sit out by themselves, or not.
    ///
    /// # Errors
    /// `NotFound`; `Unsupported` for other vdevs.
    pub fn set_autosit(&self, guid: Guid, on: bool) -> Result<()> {
        let id = self.find_id(guid)?;
        let node = self.node(id);
        if node.parity().is_none() {
            return Err(wrong_type(guid));
        }
        node.live.sit_out.autosit.store(on, Relaxed);
        Ok(())
    }

    /// Has a leaf of a parity vdev sit out from now on, for as long as the limits say, or ends
    /// that.
    ///
    /// # Errors
    /// `NotFound`; `Unsupported` for other vdevs.
    pub fn set_sit_out(&self, guid: Guid, on: bool) -> Result<()> {
        let node = self.node(self.find_id(guid)?);
        let in_parity = node.parent().is_some_and(|p| self.node(p).parity().is_some());
        if !in_parity || !node.kind().is_device() {
            return Err(wrong_type(guid));
        }
        if on {
            self.begin_sit_out(node)
        } else {
            node.live.sit_out.until.store(0, Relaxed)
        }
        Ok(())
    }

    fn find_id(&self, guid: Guid) -> Result<NodeId> {
        let found = self.by_guid.get(&guid).copied();
        found.ok_or_else(|| Error::not_found("no such device in pool").on_vdev(guid))
    }

    fn begin_sit_out(&self, node: &Node) {
        let time = Duration::from_secs(self.tuning.sit_out.get().secs);
        let state = &node.live.sit_out;
        state.score.store(0, Relaxed);
        state.until.store(now().saturating_add(nanos(time)), Relaxed);
    }

    /// After a read: compares the children of a parity vdev, if that is due.
    pub(crate) fn compare_children(&self, top: NodeId) {
        let node = self.node(top);
        let state = &node.live.sit_out;
        if !state.autosit.load(Relaxed) {
            return;
        }
        let Some(parity) = node.parity() else { return };
        let limits = self.tuning.sit_out.get();
        let (now, last) = (now(), state.checked.load(Relaxed));
        let interval = nanos(Duration::from_millis(limits.check_ms));
        let waits = limits.secs == 0 || (last != 0 && now.saturating_sub(last) < interval);
        // One of several readers compares.
        if waits || state.checked.compare_exchange(last, now.max(1), Relaxed, Relaxed).is_err() {
            return;
        }
        let leaves = node.children().iter().map(|&child| self.node(child));
        let leaves: Vec<&Node> = leaves.filter(|n| n.kind().is_device() && n.readable()).collect();
        let mut sitting = leaves.iter().filter(|leaf| leaf.sits_out()).count();
        let ready: Vec<&Node> =
            leaves.into_iter().filter(|leaf| leaf.new_reads().0 >= READS_MIN).collect();
        if ready.len() <= OTHERS_MIN {
            return;
        }
        let means: Vec<(&Node, u64)> =
            ready.into_iter().map(|leaf| (leaf, leaf.take_mean_read_time())).collect();
        for (i, &(leaf, mean)) in means.iter().enumerate() {
            let others = means.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, m)| m.1);
            let score = &leaf.live.sit_out.score;
            if !is_outlier(mean, others.collect(), limits.insensitivity) {
                score.store(score.load(Relaxed).saturating_sub(1), Relaxed);
            } else if score.load(Relaxed) + 1 < SCORE_MAX {
                score.fetch_add(1, Relaxed);
            } else if sitting < parity {
                sitting += 1;
                self.begin_sit_out(leaf);
                let took = Duration::from_nanos(mean);
                let (guid, kind) = (leaf.guid(), ReportKind::SitOut);
                let error = ErrorKind::Busy;
                self.tuning.report(&LeafReport { guid, kind, offset: 0, len: 0, error, took });
            }
        }
    }
}

impl Node {
    /// The leaf's reads since the last comparison with it, and their time.
    fn new_reads(&self) -> (u64, u64) {
        let (reads, time) = self.live.io.reads();
        let state = &self.live.sit_out;
        let count = reads.saturating_sub(state.reads.load(Relaxed));
        (count, time.saturating_sub(state.time.load(Relaxed)))
    }

    /// Their mean time; the next ones are those after them.
    fn take_mean_read_time(&self) -> u64 {
        let (reads, time) = self.live.io.reads();
        let (count, spent) = self.new_reads();
        self.live.sit_out.reads.store(reads, Relaxed);
        self.live.sit_out.time.store(time, Relaxed);
        spent.checked_div(count).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outliers() {
        assert!(!is_outlier(1_000_000, vec![1], 50), "too few others");
        assert!(is_outlier(301, vec![100, 100], 50) && !is_outlier(300, vec![100, 100], 50));
        assert!(is_outlier(121, vec![100; 7], 5) && !is_outlier(120, vec![100; 7], 5));
        // Others that differ among each other hide much.
        assert!(!is_outlier(2000, vec![100, 100, 140, 150, 150], 50));
        // A second slow one does not hide the first.
        assert!(is_outlier(1000, vec![100, 101, 100, 102, 1000], 50));
        assert!(!is_outlier(u64::MAX, vec![1, u64::MAX], u64::MAX));
        assert!(!is_outlier(0, vec![0, 0], 50));
    }
}
