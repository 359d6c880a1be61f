//! Requests of a resilver, from changes of the vdev tree to the scan.
//!
//! # Theory
//! A leaf that misses txgs and can be written gets every block that is born from now on,
//! but some blocks of txgs that are open now may have been submitted on the tree before. Their
//! births are in its DTL (module `topology`). A scan that begins in a later txg than all
//! of these sees every block that the leaf misses. So a request is due in the txg after the
//! one that is open when it is made, and the sync thread goes from txg to txg until then.
//!
//! While a vdev is rebuilt sequentially, requests wait for its end: the rebuild may make them
//! unnecessary, and a resilver would count as complete what the rebuild still copies.
//!
//! # Invariants
//! * A request is not lost while the pool is open: it stays until it is taken. The next import
//!   makes it again, because the DTL is on disk.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use base::Txg;
use ondisk::scan::ScanFunc;

use super::Writer;

/// The first txg in which the requested resilver may begin; 0 without a request.
#[derive(Debug, Default)]
pub(super) struct ResilverRequest(AtomicU64);

impl Writer {
    /// Requests a resilver of all leaves that miss txgs and can be written.
    pub fn request_resilver(&self) {
        let open = self.txgs.open_txg();
        self.resilver_request.0.fetch_max(open.next().0, AcqRel);
        self.txgs.dirty(open, 0);
        self.txgs.kick(open);
    }

    /// Requests a resilver if there is such a leaf.
    pub(crate) fn request_resilver_if_needed(&self) {
        if self.zio.tree().nodes().any(|(_, node)| node.is_behind()) {
            self.request_resilver();
        }
    }

    /// Whether a resilver runs, or was requested.
    pub(super) fn is_resilver_due(&self) -> bool {
        self.resilver_waits(Txg::ZERO) || self.running_scan() == Some(ScanFunc::Resilver)
    }

    /// Whether a resilver was requested and cannot begin before the txg after this one.
    pub(super) fn resilver_waits(&self, txg: Txg) -> bool {
        self.resilver_request.0.load(Acquire) > txg.0
    }

    /// Takes the request, if there is one and it is due in the txg that is being written. The
    /// scan calls it in syncing context.
    pub fn take_resilver_request(&self) -> bool {
        let syncing = self.txgs.synced_txg().next().0;
        let wanted = self.resilver_request.0.load(Acquire);
        let due = wanted != 0 && wanted <= syncing && !self.is_rebuilding();
        // A request that was made meanwhile stays.
        due && self.resilver_request.0.compare_exchange(wanted, 0, AcqRel, Acquire).is_ok()
    }
}
