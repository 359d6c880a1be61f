//! Reports of errors and slow operations of leaves, one by one, besides the counters.
//!
//! # Theory
//! The counters of a vdev say how many errors there were. An administrator, and the rules that
//! fault a device, need each of them as well: which device, where, when. The layer above sets a
//! function that is called with each ([`Tree::set_reporter`]); it must not block, and it bounds
//! how much it passes on.
//!
//! # Invariants
//! * An error is counted even if nobody wants reports.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use base::{ErrorKind, Guid};

use crate::queue::Tuning;
use crate::tree::{LiveState, Node, Tree};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReportKind {
    /// A read failed.
    Read,
    /// A write or flush failed.
    Write,
    /// The bytes were wrong.
    Checksum,
    /// An operation took longer than [`crate::QueueLimits::slow_ms`].
    Slow,
    /// It is much slower than its siblings, and sits out of reads from now on.
    SitOut,
}

/// An error or slow operation of a leaf (or of a top-level vdev, where the leaf with the wrong
/// bytes cannot be told).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafReport {
    /// The vdev.
    pub guid: Guid,
    /// What happened.
    pub kind: ReportKind,
    /// Where on the device, bytes; 0 for a flush.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// The kind of the error.
    pub error: ErrorKind,
    /// How long it took, if it was slow; the mean of its reads, if it sits out.
    pub took: Duration,
}

/// Called with each report; must not block.
pub type Reporter = Box<dyn Fn(&LeafReport) + Send + Sync>;

impl LiveState {
    /// Counts an error, and reports it.
    pub(crate) fn count(&self, tuning: &Tuning, report: LeafReport) {
        let counter = match report.kind {
            ReportKind::Read => Some(&self.read_errors),
            ReportKind::Write => Some(&self.write_errors),
            ReportKind::Checksum => Some(&self.cksum_errors),
            ReportKind::Slow => Some(&self.slow),
            ReportKind::SitOut => None,
        };
        if let Some(counter) = counter {
            counter.fetch_add(1, Relaxed);
        }
        tuning.report(&report);
    }
}

impl Node {
    /// Operations that took longer than [`crate::QueueLimits::slow_ms`].
    pub fn slow(&self) -> u64 {
        self.live.slow.load(Relaxed)
    }
}

impl Tree {
    /// Sets the function that is called with each error of a leaf of this snapshot and later
    /// ones; only the first call has an effect.
    pub fn set_reporter(&self, reporter: Reporter) {
        self.tuning.set_reporter(reporter);
    }

    /// Counts an error of a vdev, and reports it.
    pub(crate) fn count_error(
        &self,
        node: &Node,
        kind: ReportKind,
        (offset, len): (u64, u64),
        error: ErrorKind,
    ) {
        let took = Duration::ZERO;
        let report = LeafReport { guid: node.guid(), kind, offset, len, error, took };
        node.live.count(&self.tuning, report);
    }
}
