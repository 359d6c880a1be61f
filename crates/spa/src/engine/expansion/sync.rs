//! The part of an expansion that a txg writes: its progress.

use std::sync::atomic::Ordering::Relaxed;

use base::{Result, Txg};
use ondisk::uberblock::{ScratchState, Uberblock};
use ondisk::zap::ZapValue;
use vdev::Reflow;

use super::super::Writer;
use super::super::sync::SyncPass;
use super::scratch::word;
use super::{COPIED, Stage};

impl Writer {
    /// Whether a txg has progress to record.
    pub(in super::super) fn expansion_has_work(&self) -> bool {
        let state = self.expansion.state.lock();
        state.as_ref().is_some_and(|now| now.done > now.recorded)
    }

    /// Decides up to where the txg's uberblock says that everything is copied, and stores how
    /// many bytes that was.
    ///
    /// # Errors
    /// Those of the store.
    pub(in super::super) fn sync_expansion(&self, sync: &SyncPass<'_>) -> Result<()> {
        let (vdev, copied) = {
            let mut state = self.expansion.state.lock();
            let Some(now) = state.as_mut().filter(|now| now.stage == Stage::Copying) else {
                return Ok(());
            };
            let progress = now.done > now.recorded;
            now.writing = Some(now.done);
            if !progress {
                return Ok(());
            }
            (now.vdev, now.copied)
        };
        let Some(zap) = sync.top_zap(vdev) else { return Ok(()) };
        sync.cx.mos.zap_update(zap, COPIED.as_bytes(), &ZapValue::from_u64(copied))
    }

    /// Puts the progress into the txg's uberblock.
    pub(in super::super) fn mark_expansion(&self, uberblock: &mut Uberblock) {
        let state = self.expansion.state.lock();
        let Some(now) = state.as_ref() else { return };
        match now.stage {
            Stage::Scratch => {}
            Stage::Copying => {
                let mut offset = now.writing.unwrap_or(now.recorded);
                if self.expansion.plants.row_ahead.load(Relaxed) {
                    offset = (offset + (now.width << now.ashift)).min(now.end);
                }
                uberblock.raidz_reflow_info = word(ScratchState::InvalidSyncedReflow, offset);
            }
            Stage::Ending => uberblock.raidz_reflow_info = 0,
        }
    }

    /// The txg is durable.
    pub(in super::super) fn expansion_recorded(&self) {
        let mut state = self.expansion.state.lock();
        let Some(now) = state.as_mut() else { return };
        if let Some(offset) = now.writing.take() {
            now.recorded = now.recorded.max(offset);
        }
        self.expansion.changed.notify_all();
    }

    /// After the txg that ended the expansion, and before the next one is over: the tree in memory
    /// follows.
    ///
    /// # Errors
    /// `Bug` if the vdev is not being expanded.
    pub(in super::super) fn follow_ended_expansion(&self) -> Result<()> {
        let (vdev, expand_txgs) = {
            let state = self.expansion.state.lock();
            let Some(now) = state.as_ref() else { return Ok(()) };
            let (vdev, stage, expand_txgs) = (now.vdev, now.stage, now.expand_txgs.clone());
            drop(state);
            if stage != Stage::Ending {
                // Before a resilver: it finds each block in one place.
                let waits = !self.zio.tree().is_whole(vdev);
                return if waits { self.follow_recorded() } else { Ok(()) };
            }
            (vdev, expand_txgs)
        };
        let _one = self.expansion.following.lock();
        let everything = Reflow { offset: u64::MAX, scratch_valid: false };
        loop {
            let old = self.zio.tree();
            old.advance_reflow(vdev, everything)?;
            let tree = old.with_expanded(vdev, &expand_txgs)?;
            if self.replace_tree(&old, tree) {
                break;
            }
        }
        self.space_io.forget_limits();
        *self.expansion.ended.lock() = Some(vdev);
        self.expansion.set(None);
        *self.expansion.session.lock() = None;
        Ok(())
    }

    /// The births of each width of a vdev whose expansion ends with the txg being written: in
    /// memory it lasts until that txg is durable.
    pub(in super::super) fn ending_expansion(&self) -> Option<(base::VdevId, Vec<Txg>)> {
        let state = self.expansion.state.lock();
        let now = state.as_ref().filter(|now| now.stage == Stage::Ending)?;
        Some((now.vdev, now.expand_txgs.clone()))
    }
}
