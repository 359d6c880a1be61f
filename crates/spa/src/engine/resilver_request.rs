//! Requests of a resilver, from changes of the vdev tree to the scan, and deferred resilvers
//! (chapter 04 §14.2, feature resilver_defer).
//!
//! # Theory
//! A leaf that misses txgs and can be written gets every block that is born from now on,
//! but some blocks of txgs that are open now may have been submitted on the tree before. Their
//! births are in its DTL (module `topology`). A scan that begins in a later txg than all
//! of these sees every block that the leaf misses. So a request is due in the txg after the
//! one that is open when it is made, and the sync thread goes from txg to txg until then.
//!
//! *A resilver runs already.* It completes the leaves that were there when it began. A leaf
//! that joined or returned later is *late*: blocks were read without it. Without feature
//! resilver_defer the resilver begins again, for all. With it the late leaves are *deferred*:
//! the resilver that runs ends as it would have ended, and writes nothing to them, and the next
//! one begins then. A resilver that has hardly begun begins again nevertheless
//! (`zfs_resilver_defer_percent`), because that is cheaper than a second one. `zpool resilver`
//! always begins again.
//!
//! # States of a leaf
//! ```text
//! behind -- a resilver begins --> covered -- it ends --> complete
//! behind -- a request while a resilver runs --> deferred -- the next one begins --> covered
//! ```
//! A deferred leaf has a flag in the MOS configuration, and the feature is active while there
//! is such a leaf: other implementations know then that a DTL waits for a resilver that has
//! not begun. [`Writer::sync_deferral`] keeps the two in step whenever the configuration is
//! written, also when a deferred leaf is detached.
//!
//! # Crash argument
//! Flag, feature and scan are of one txg. After a crash or an import the resilver goes on
//! without the deferred leaves, whose DTLs say what they miss. If it had ended, the DTLs ask for
//! the next one. The flag is no more than a hint what need not be repaired now.
//!
//! While a vdev is rebuilt sequentially, requests wait for its end: the rebuild may make them
//! unnecessary, and a resilver would count as complete what the rebuild still copies. They wait
//! for the end of a vdev's removal, too: until then no pointer leads to the copies that a leaf
//! missed.
//!
//! # Invariants
//! * A request is not lost while the pool is open: it stays until it is taken. The next import
//!   makes it again, because the DTL is on disk.
//! * A deferred leaf forgets nothing when the scan ends: it is not among the scan's leaves.
//! * No leaf is deferred when a resilver begins.
//!
//! Lock order: both locks are leaves.

use base::rt::Mutex;
use base::{Guid, Result, Txg};
use dsl::write::features;
use ondisk::config::VdevConfig;
use ondisk::scan::ScanFunc;

use super::sync::SyncPass;
use super::tasks::TaskCx;
use super::topology::find_mut;
use super::{SyncState, Writer};

/// The feature's guid.
pub(super) const RESILVER_DEFER: &str = "com.datto:resilver_defer";

/// Tunables of resilvers (chapter 09 §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResilverTuning {
    /// `zfs_resilver_disable_defer`: a running resilver begins again, whatever features the
    /// pool has.
    pub disable_defer: bool,
    /// `zfs_resilver_defer_percent`: a resilver that has read less than this share begins
    /// again.
    pub defer_percent: u64,
}

impl Default for ResilverTuning {
    fn default() -> Self {
        ResilverTuning { disable_defer: false, defer_percent: 10 }
    }
}

/// What is wanted of the resilver that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ResilverWish {
    /// That leaves are repaired, by the one that runs or by the next one.
    Repair,
    /// That all leaves are repaired from the beginning.
    Restart,
}

/// The request of a resilver.
#[derive(Debug, Default)]
pub(super) struct ResilverRequest {
    /// The first txg in which it may begin, and what it is to do.
    wanted: Mutex<Option<(Txg, ResilverWish)>>,
    tuning: Mutex<ResilverTuning>,
}

fn any_deferred(root: &VdevConfig) -> bool {
    root.walk().any(|vdev| vdev.leaf.resilver_deferred)
}

impl Writer {
    /// Sets the tunables of resilvers.
    pub fn set_resilver_tuning(&self, tuning: ResilverTuning) {
        *self.resilver_request.tuning.lock() = tuning;
    }

    /// The tunables of resilvers.
    pub fn resilver_tuning(&self) -> ResilverTuning {
        *self.resilver_request.tuning.lock()
    }

    /// Requests a resilver of all leaves that miss txgs and can be written.
    pub fn request_resilver(&self) {
        self.wish_resilver(ResilverWish::Repair);
    }

    /// Requests a resilver; one that runs begins again if the wish says so.
    pub(super) fn wish_resilver(&self, wish: ResilverWish) {
        let open = self.txgs.open_txg();
        {
            let mut wanted = self.resilver_request.wanted.lock();
            let (due, more) = wanted.unwrap_or((Txg::ZERO, wish));
            *wanted = Some((due.max(open.next()), more.max(wish)));
        }
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
        self.resilver_request.wanted.lock().is_some_and(|(due, _)| due > txg)
    }

    /// Whether a resilver begins by itself: it was requested, or leaves are deferred. Not while
    /// the pool is suspended. A caller that also asks for the running scan asks this first.
    pub fn resilver_is_pending(&self) -> bool {
        let requested = self.resilver_request.wanted.lock().is_some();
        let tree = self.zio.tree();
        let mut deferred = tree.nodes().filter(|(_, node)| node.is_deferred() && node.is_behind());
        (requested || deferred.next().is_some()) && !self.zio.is_suspended()
    }

    /// The request, if there is one and it is due in the txg that is being written. The scan
    /// calls it in syncing context. It stays until [`Writer::forget_resilver_request`].
    pub(super) fn due_resilver_request(&self) -> Option<(Txg, ResilverWish)> {
        if self.is_rebuilding() || self.removal.is_active() {
            return None;
        }
        let syncing = self.txgs.synced_txg().next();
        self.resilver_request.wanted.lock().filter(|(due, _)| *due <= syncing)
    }

    /// Forgets a request that was taken, unless a later one has joined it.
    pub(super) fn forget_resilver_request(&self, taken: (Txg, ResilverWish)) {
        self.resilver_request.wanted.lock().take_if(|wanted| *wanted == taken);
    }

    /// Whether late leaves wait for the end of a resilver that has read `percent` of what it
    /// reads; otherwise it begins again.
    pub(super) fn defers_resilvers(&self, cx: &TaskCx<'_>, percent: u64) -> Result<bool> {
        let tuning = self.resilver_tuning();
        let allowed = !tuning.disable_defer && percent >= tuning.defer_percent;
        Ok(allowed && features::is_enabled(cx.read(), RESILVER_DEFER)?)
    }

    /// Whether the resilver of some leaf of the configuration is deferred.
    pub(super) fn has_deferred(&self, cx: &TaskCx<'_>) -> bool {
        any_deferred(&cx.state.config.vdev_tree)
    }

    /// Brings the feature's count in step with the configuration, before that is written.
    pub(super) fn sync_deferral(&self, state: &SyncState, sync: &SyncPass<'_>) -> Result<()> {
        let wanted = u64::from(any_deferred(&state.config.vdev_tree));
        match features::count(sync.cx.read(), RESILVER_DEFER)? {
            Some(count) if count != wanted => features::set_count(sync.cx, RESILVER_DEFER, wanted),
            _ => Ok(()),
        }
    }
}

impl TaskCx<'_> {
    /// Defers the resilver of these leaves.
    pub(super) fn defer_resilver(&mut self, leaves: &[Guid]) {
        let tree = self.writer.zio.tree();
        for &guid in leaves {
            if let Some(vdev) = find_mut(&mut self.config().vdev_tree, guid) {
                vdev.leaf.resilver_deferred = true;
            }
            tree.set_deferred(guid, true);
        }
    }

    /// No resilver is deferred any more: one begins.
    pub(super) fn end_deferral(&mut self) {
        let root = &self.state.config.vdev_tree;
        let deferred = |vdev: &&VdevConfig| vdev.leaf.resilver_deferred;
        let leaves: Vec<Guid> = root.walk().filter(deferred).map(|vdev| vdev.guid).collect();
        let tree = self.writer.zio.tree();
        for guid in leaves {
            if let Some(vdev) = find_mut(&mut self.config().vdev_tree, guid) {
                vdev.leaf.resilver_deferred = false;
            }
            tree.set_deferred(guid, false);
        }
    }
}
