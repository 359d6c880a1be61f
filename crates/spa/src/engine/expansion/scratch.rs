//! The first rows: the scratch phase, and what an import does after a crash in it.
//!
//! # Theory
//! See the module above. The phase excludes the sync thread: it holds the pool's `state`, so the
//! uberblock that it repeats is the last one.
//!
//! If the uberblock of state 1 could not be written to all devices, it may be on some. Then one of
//! state 0 outranks it, before blocks are written again: else an import would read the scratch
//! area, which does not have those.

use std::sync::atomic::Ordering::Relaxed;

use base::{Buf, Error, ErrorKind, Guid, Result, VdevId};
use ondisk::uberblock::{ScratchState, Uberblock};
use vdev::{Reflow, VdevKind};

use super::super::topology::everything_before;
use super::super::{Published, SyncState, Writer};
use super::{ExpansionStep, Stage};

/// Bits of the state in the uberblock's word (chapter 01 §3).
const STATE_SHIFT: u32 = 55;

/// The uberblock's word.
pub(super) fn word(scratch: ScratchState, offset: u64) -> u64 {
    let state: u64 = match scratch {
        ScratchState::Unused => 0,
        ScratchState::Valid => 1,
        ScratchState::InvalidSynced => 2,
        ScratchState::InvalidSyncedOnImport => 3,
        ScratchState::InvalidSyncedReflow => 4,
    };
    state << STATE_SHIFT | (offset >> 9) & ((1 << STATE_SHIFT) - 1)
}

impl Writer {
    /// Repeats the last uberblock with this progress, one second later, on all vdevs. Waits for
    /// devices that are away. Returns the leaves that failed.
    fn repeat_uberblock(&self, state: &mut SyncState, info: u64) -> Result<Vec<Guid>> {
        let before = &state.uberblock;
        let timestamp = before.timestamp.saturating_add(1);
        let uberblock = Uberblock { timestamp, raidz_reflow_info: info, ..before.clone() };
        let _writing = self.outages.begin_commit(&uberblock);
        let failed = loop {
            match self.commit_again(&state.config, &self.zio.tree(), &uberblock) {
                Ok(failed) => break failed,
                Err(e) if self.zio.wait_for_retry(&e) => {}
                Err(e) => return Err(e),
            }
        };
        state.uberblock = uberblock.clone();
        let config = std::sync::Arc::new(state.config.clone());
        *self.published.write() = Published { config, uberblock };
        Ok(failed)
    }

    /// Moves the first rows.
    pub(super) fn scratch_phase(&self, vdev: VdevId) -> ExpansionStep {
        let tree = self.zio.tree();
        let Ok(end) = tree.scratch_end(vdev) else { return ExpansionStep::Wait };
        if !tree.has_plain_children(vdev) {
            return ExpansionStep::Wait;
        }
        let session = self.hold_session();
        let mut state = self.state.lock();
        if state.failed.is_some() || state.uberblock.txg < self.first_txg {
            return ExpansionStep::Wait;
        }
        let lock = tree.lock_range(&session, vdev, (0, end));
        let Ok(rows) = tree.read_first_rows(vdev) else { return ExpansionStep::Wait };
        let written = tree.write_first_rows(vdev, &rows, true);
        if !written.is_ok_and(|failed| failed.is_empty()) {
            return ExpansionStep::Wait;
        }
        match self.repeat_uberblock(&mut state, word(ScratchState::Valid, end)) {
            Ok(failed) if failed.is_empty() => {}
            // It may be on some devices.
            Ok(_) => {
                return match self.repeat_uberblock(&mut state, 0) {
                    Ok(_) => ExpansionStep::Wait,
                    Err(e) => self.expansion_failed(&mut state, e),
                };
            }
            Err(e) => return self.expansion_failed(&mut state, e),
        }
        let view = |scratch_valid| Reflow { offset: end, scratch_valid };
        let moved = tree
            .advance_reflow(vdev, view(true))
            .and_then(|()| self.put_first_rows(&mut state, vdev, &rows))
            .and_then(|()| {
                let synced = word(ScratchState::InvalidSynced, end);
                self.repeat_uberblock(&mut state, synced).map(drop)
            })
            .and_then(|()| tree.advance_reflow(vdev, view(false)));
        if let Err(e) = moved {
            return self.expansion_failed(&mut state, e);
        }
        if let Some(now) = self.expansion.state.lock().as_mut() {
            (now.done, now.recorded, now.safe) = (end, end, end);
            now.copied = now.copied.saturating_add(end);
            now.stage = Stage::Copying;
        }
        drop(lock);
        ExpansionStep::More
    }

    /// The pool cannot go on: its blocks before the end of the scratch area cannot be written.
    fn expansion_failed(&self, state: &mut SyncState, why: Error) -> ExpansionStep {
        state.failed = Some(format!("the pool is suspended: {why}"));
        self.txgs.suspend(why);
        ExpansionStep::End
    }

    /// Writes the first rows to their place. A leaf that does not take them misses everything.
    fn put_first_rows(
        &self,
        state: &mut SyncState,
        vdev: VdevId,
        rows: &[Option<Buf>],
    ) -> Result<()> {
        loop {
            let tree = self.zio.tree();
            let failed = tree.write_first_rows(vdev, rows, false)?;
            let tolerated = match tree.top(vdev)?.kind() {
                VdevKind::Raidz { nparity, .. } => usize::from(*nparity),
                _ => 0,
            };
            if failed.len() <= tolerated {
                for guid in failed {
                    // The txg after the last one is the first that may be written.
                    let missing = everything_before(state.uberblock.txg.next());
                    tree.set_dtl(guid, missing.clone());
                    state.missed.push((guid, missing));
                }
                return Ok(());
            }
            let text = "too few devices of the vdev that is being expanded can be written";
            let error = Error::new(ErrorKind::Io, text);
            if !self.zio.wait_for_retry(&error) {
                return Err(error);
            }
        }
    }

    /// An import found the scratch area valid: the first rows are written to their place.
    pub(super) fn restore_first_rows(&self, vdev: VdevId, offset: u64) -> Result<()> {
        let tree = self.zio.tree();
        if offset != tree.scratch_end(vdev)? || !tree.has_plain_children(vdev) {
            return Err(Error::corrupt("the scratch area of an expansion has an impossible size"));
        }
        let mut state = self.state.lock();
        let rows = tree.read_scratch(vdev)?;
        if !self.options.lost_scratch.load(Relaxed) {
            self.put_first_rows(&mut state, vdev, &rows)?;
        }
        let info = word(ScratchState::InvalidSyncedOnImport, offset);
        self.repeat_uberblock(&mut state, info).map(drop)
    }
}
