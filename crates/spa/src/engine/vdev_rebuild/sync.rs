//! A rebuild in syncing context: its begin, its stored state, and its end.

use std::sync::atomic::Ordering::Relaxed;

use base::{Error, Result, Txg, VdevId};
use dsl::write::{MosRead, features};
use nvlist::NvList;
use ondisk::config::VdevType;
use ondisk::scan::ScanFunc;

use super::super::Writer;
use super::super::tasks::TaskCx;
use super::{RebuildRecord, RebuildState, VdevRebuild, Wish, last_missing};

const FEATURE: &str = "org.openzfs:device_rebuild";
/// Txgs that may be open or quiescing while one is written.
const TXGS_AHEAD: u64 = 2;

impl Writer {
    /// Whether a device of this top-level vdev may be attached sequentially or not.
    ///
    /// # Errors
    /// In OpenZFS's words: `Unsupported` without the feature, and for a vdev whose parity
    /// depends on its blocks; `Busy` while a scan or a rebuild of the other kind is under way.
    pub(in super::super) fn check_rebuild(
        &self,
        mos: &dyn MosRead,
        top: VdevType,
        sequential: bool,
    ) -> Result<()> {
        if !sequential {
            return match self.is_rebuilding() {
                true => Err(Error::busy("currently sequentially resilvering")),
                false => Ok(()),
            };
        }
        if !features::is_enabled(mos, FEATURE)? {
            return Err(Error::unsupported(
                "device_rebuild feature must be enabled in order to use sequential reconstruction",
            ));
        }
        if self.is_resilver_due() && !self.is_rebuilding() {
            return Err(Error::busy("currently resilvering"));
        }
        match top {
            VdevType::Mirror | VdevType::Disk | VdevType::File | VdevType::Draid => Ok(()),
            // In the place of a single device.
            VdevType::Replacing | VdevType::Spare => Ok(()),
            _ => Err(Error::unsupported(
                "only mirror and dRAID vdevs support sequential reconstruction",
            )),
        }
    }
}

impl TaskCx<'_> {
    /// Begins the rebuild of a top-level vdev, or begins it anew, with the published tree.
    pub(in super::super) fn begin_rebuild(&mut self, vdev: VdevId) -> Result<()> {
        let (writer, txg, now) = (self.writer, self.cx.txg, self.cx.now.0);
        let tree = writer.zio.tree();
        let (first, last) = last_missing(&tree, vdev).unwrap_or((txg, txg));
        let open = Txg(txg.0.saturating_add(TXGS_AHEAD));
        let totals = writer.space.vdev_totals(vdev)?;
        let record = RebuildRecord {
            state: RebuildState::Active,
            min_txg: Txg(first.0.saturating_sub(1)),
            max_txg: last.max(open).next(),
            start_time: now,
            estimated: totals.allocated,
            ..RebuildRecord::default()
        };
        let leaves = tree.begin_leaves(vdev);
        let again = {
            let mut state = writer.rebuilds.state.lock();
            let rebuild = state.entry(vdev).or_default();
            let again = rebuild.is_active();
            let pass = Some((record, base::rt::now()));
            let (run, threaded) = (rebuild.run + 1, rebuild.threaded);
            *rebuild =
                VdevRebuild { record, leaves, run, pass, threaded, ..VdevRebuild::default() };
            again
        };
        // The one that follows covers it.
        writer.rebuilds.scrub.store(false, Relaxed);
        if writer.running_scan() == Some(ScanFunc::Scrub) {
            writer.cancel_scan(self.cx)?;
        }
        record.store(self.sync, vdev)?;
        if again {
            return self.log_rebuild(vdev, "reset");
        }
        features::add(self.cx, FEATURE, 1)?;
        self.rebuild_event("start");
        self.log_rebuild(vdev, "started")
    }

    fn log_rebuild(&self, vdev: VdevId, what: &str) -> Result<()> {
        let tree = self.writer.zio.tree();
        let guid = tree.top(vdev).map_or(0, |top| top.guid().0);
        let text = format!("vdev_id={} vdev_guid={guid} {what}", vdev.0);
        self.log_internal("rebuild", None, &text)
    }

    fn rebuild_event(&self, what: &str) {
        let mut values = NvList::new();
        values.add_str("resilver_type", "sequential");
        self.writer.sysevent(&format!("resilver_{what}"), &values);
    }

    /// Ends the rebuild of a vdev, if it is active.
    fn end_rebuild(&mut self, vdev: VdevId, to: RebuildState) -> Result<Option<RebuildRecord>> {
        let (writer, now) = (self.writer, self.cx.now.0);
        let ended = {
            let mut state = writer.rebuilds.state.lock();
            let Some(rebuild) = state.get_mut(&vdev).filter(|r| r.is_active()) else {
                return Ok(None);
            };
            rebuild.record.state = to;
            rebuild.record.end_time = now;
            (rebuild.wish, rebuild.dirty) = (None, false);
            rebuild.record
        };
        ended.store(self.sync, vdev)?;
        features::add(self.cx, FEATURE, -1)?;
        writer.rebuilds.ended.store(true, Relaxed);
        // The vdev may be about to leave the pool.
        let _forgotten = writer.space.note_allocations(vdev, false);
        self.rebuild_event("finish");
        let what = if to == RebuildState::Complete { "complete" } else { "canceled" };
        self.log_rebuild(vdev, what)?;
        Ok(Some(ended))
    }

    /// Everything is copied: the leaves forget what they missed, a scrub follows.
    fn complete_rebuild(&mut self, vdev: VdevId) -> Result<()> {
        let writer = self.writer;
        let leaves = writer.rebuilds.state.lock().get(&vdev).map(|r| r.leaves.clone());
        let Some(ended) = self.end_rebuild(vdev, RebuildState::Complete)? else { return Ok(()) };
        let tree = writer.zio.tree();
        if let Some(mut leaves) = leaves.filter(|_| ended.errors == 0) {
            // A leaf that missed a later txg failed a write or a flush, which copies may have
            // shared.
            let last = |guid| tree.find(guid).and_then(|node| node.dtl().last());
            leaves.retain(|guid| last(guid).is_none_or(|last| last < ended.max_txg));
            tree.excise(&leaves, Txg(ended.max_txg.0.saturating_sub(1)));
        }
        if !tree.behind(vdev).is_empty() {
            writer.request_resilver();
        }
        if writer.rebuild_tuning().scrub {
            writer.rebuilds.scrub.store(true, Relaxed);
        }
        Ok(())
    }

    /// After a leaf left: a rebuild that has no leaf any more is over.
    pub(in super::super) fn leaf_left_rebuild(&mut self, vdev: VdevId) -> Result<()> {
        match self.writer.zio.tree().behind(vdev).is_empty() {
            true => self.end_rebuild(vdev, RebuildState::Canceled).map(drop),
            false => Ok(()),
        }
    }

    /// Before a top-level vdev leaves the pool.
    pub(in super::super) fn top_leaves_rebuild(&mut self, vdev: VdevId) -> Result<()> {
        self.end_rebuild(vdev, RebuildState::Canceled)?;
        self.writer.rebuilds.state.lock().remove(&vdev);
        Ok(())
    }
}

impl Writer {
    /// Brings the stored state up to date.
    ///
    /// # Errors
    /// Those of the store.
    pub(in super::super) fn sync_rebuilds(&self, cx: &mut TaskCx<'_>) -> Result<()> {
        let due: Vec<(VdevId, Option<Wish>, Option<RebuildRecord>)> = {
            let mut state = self.rebuilds.state.lock();
            let take = |(&vdev, r): (&VdevId, &mut VdevRebuild)| {
                let dirty = std::mem::take(&mut r.dirty).then_some(r.record);
                let wish = r.wish.take().filter(|_| r.is_active());
                r.is_active().then_some((vdev, wish, dirty))
            };
            state.iter_mut().filter_map(take).collect()
        };
        for (vdev, wish, dirty) in due {
            self.mark_absent_from_rebuild(vdev, cx.cx.txg);
            match (wish, dirty) {
                (Some(Wish::Complete), _) => cx.complete_rebuild(vdev)?,
                (Some(Wish::Restart), _) => cx.begin_rebuild(vdev)?,
                (Some(Wish::Cancel), _) => {
                    cx.end_rebuild(vdev, RebuildState::Canceled)?;
                    self.request_resilver();
                }
                (None, Some(record)) => record.store(cx.sync, vdev)?,
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// Leaves that cannot be read while their vdev is rebuilt miss copies, and must not count as
    /// complete when the rebuild ends after another import.
    fn mark_absent_from_rebuild(&self, vdev: VdevId, txg: Txg) {
        let tree = self.zio.tree();
        let absent = tree.nodes().map(|(_, node)| node).filter(|node| {
            let below = node.parent().is_some_and(|p| tree.node(p).parent().is_some());
            node.top() == vdev && node.is_leaf() && below && !node.readable()
        });
        for node in absent {
            tree.add_missing(node.guid(), txg.next());
        }
    }

    /// Whether the scrub that follows rebuilds is to begin now.
    pub(in super::super) fn wants_scrub_after_rebuild(&self) -> bool {
        self.rebuilds.scrub.load(Relaxed)
            && !self.rebuilds.is_active()
            && !self.is_resilver_due()
            && self.running_scan().is_none()
            && !self.is_error_scrubbing()
    }

    /// The scrub that follows rebuilds has begun.
    pub(in super::super) fn scrub_after_rebuild_begins(&self) {
        self.rebuilds.scrub.store(false, Relaxed);
    }

    /// After a txg: lets threads go on, and completes the changes of the tree that waited for a
    /// rebuild.
    pub(in super::super) fn after_rebuilds(&self) {
        if self.rebuilds.ended.swap(false, Relaxed) {
            self.topology_settled();
        }
        if self.wants_scrub_after_rebuild() {
            let open = self.txgs.open_txg();
            self.txgs.dirty(open, 0);
            self.txgs.kick(open);
        }
        if !self.opening.load(Relaxed) {
            self.wake_rebuilds();
        }
    }
}
