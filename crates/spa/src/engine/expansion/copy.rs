//! Copying: one step of the thread of an expansion.
//!
//! # Theory
//! A step locks a range of the linear space, raises *copied* over it, takes the used ranges in it,
//! copies and flushes them. In this order: what is allocated later is written to both places
//! (`vdev`, module `reflow`), and what was allocated before is in the used ranges. Used is what
//! is not allocatable: also space that was freed and to which the last uberblock may refer.

use std::sync::atomic::Ordering::Relaxed;

use base::{Result, VdevId};
use dmu::OutagePolicy;
use metaslab::{MetaslabFree, UsedSpace};
use vdev::{Reflow, Tree};

use super::super::Writer;
use super::{Expanding, ExpansionStep, ExpansionTuning, Stage, WAIT};

/// The part of the linear space that a step works on.
struct ReflowStep {
    vdev: VdevId,
    from: u64,
    to: u64,
    /// Bytes of a new row.
    row: u64,
}

/// The first sector that may not be copied while operations use the offset `safe`.
fn limit(safe: u64, width: u64, ashift: u32) -> u64 {
    let (u, old) = (safe >> ashift, width - 1);
    (u + u / old).saturating_sub(old) << ashift
}

impl Writer {
    pub(super) fn copy_some_rows(&self, vdev: VdevId) -> ExpansionStep {
        let tuning = *self.expansion.tuning.lock();
        let tree = self.zio.tree();
        let (done, recorded, safe, end, width, ashift, copied) = {
            let state = self.expansion.state.lock();
            let Some(now) = state.as_ref() else { return ExpansionStep::More };
            (now.done, now.recorded, now.safe, now.end, now.width, now.ashift, now.copied)
        };
        let most = limit(safe, width, ashift).min(end);
        let hold = self.expansion.plants.hold_after.load(Relaxed);
        let paused =
            (tuning.pause > 0 && copied >= tuning.pause) || (hold > 0 && copied >= hold - 1);
        if done >= most || (paused && done > recorded) {
            return match (done > recorded, done >= end) {
                (true, _) => self.wait_recorded(done),
                (false, true) => self.finish_expansion(vdev),
                (false, false) => ExpansionStep::Wait,
            };
        }
        if paused {
            return ExpansionStep::Wait;
        }
        let all = self.space.metaslabs(vdev).unwrap_or_default();
        let Some(ms) = all.iter().find(|ms| ms.seg.end() > done) else {
            return ExpansionStep::Wait;
        };
        let row = width << ashift;
        let step = ReflowStep { vdev, from: done, to: most.min(ms.seg.end()), row };
        match self.copy_step(&tree, ms, step, &tuning) {
            Ok(Some((to, bytes))) => {
                if let Some(now) = self.expansion.state.lock().as_mut() {
                    now.done = to;
                    now.copied = now.copied.saturating_add(bytes);
                }
                ExpansionStep::More
            }
            Ok(None) => ExpansionStep::More,
            Err(_) => ExpansionStep::Wait,
        }
    }

    /// Has all operations use the offset of the last uberblock.
    ///
    /// # Errors
    /// `Bug` if the vdev is not being expanded.
    pub(super) fn follow_recorded(&self) -> Result<()> {
        let _one = self.expansion.following.lock();
        let (vdev, recorded) = {
            let state = self.expansion.state.lock();
            let ahead = |now: &&Expanding| now.stage == Stage::Copying && now.recorded > now.safe;
            match state.as_ref().filter(ahead) {
                Some(now) => (now.vdev, now.recorded),
                None => return Ok(()),
            }
        };
        let view = Reflow { offset: recorded, scratch_valid: false };
        self.zio.tree().advance_reflow(vdev, view)?;
        if let Some(now) = self.expansion.state.lock().as_mut() {
            now.safe = now.safe.max(recorded);
        }
        Ok(())
    }

    /// Requests a txg, and waits for it or for something else.
    fn wait_recorded(&self, done: u64) -> ExpansionStep {
        let open = self.txgs.open_txg();
        self.txgs.dirty(open, 0);
        self.txgs.kick(open);
        let mut state = self.expansion.state.lock();
        let waits = state.as_ref().is_some_and(|now| now.recorded < done);
        if waits && !self.expansion.stopping.load(Relaxed) {
            self.expansion.changed.wait_timeout(&mut state, WAIT);
        }
        ExpansionStep::More
    }

    /// Copies what is used in a part of a metaslab; up to where, and how many bytes. `None` if the
    /// metaslab was unloaded meanwhile.
    fn copy_step(
        &self,
        tree: &Tree,
        ms: &MetaslabFree,
        mut step: ReflowStep,
        tuning: &ExpansionTuning,
    ) -> Result<Option<(u64, u64)>> {
        let empty = |ms: &MetaslabFree| !ms.was_used && ms.free == ms.seg.len;
        let copy = tuning.copy.clamp(1 << 16, 1 << 28);
        if !empty(ms) {
            self.space_io.load(ms.key, OutagePolicy::WaitPerFailmode)?;
            match self.space.used_ranges(ms.key, step.from, copy)? {
                UsedSpace::NotLoaded => return Ok(None),
                UsedSpace::Ranges(_, end) => step.to = step.to.min(end.max(step.from + step.row)),
            }
        }
        step.to = step.to.min(ms.seg.end());
        let session = self.hold_session();
        let lock = tree.lock_range(&session, step.vdev, (step.from, step.to));
        tree.set_reflow_copied(step.vdev, step.to)?;
        let mut done = self.copy_locked(tree, ms, &step, tuning);
        // A leaf that joined or left meanwhile may lack the copies, and no DTL would say so.
        if !self.zio.tree().is_whole(step.vdev) {
            done = Ok(None);
        }
        if !matches!(done, Ok(Some(_))) {
            // Nobody relies on the new places.
            tree.set_reflow_copied(step.vdev, step.from)?;
        }
        drop(lock);
        Ok(done?.map(|bytes| (step.to, bytes)))
    }

    fn copy_locked(
        &self,
        tree: &Tree,
        ms: &MetaslabFree,
        step: &ReflowStep,
        tuning: &ExpansionTuning,
    ) -> Result<Option<u64>> {
        let now = self.space.metaslabs(step.vdev)?;
        let untouched = |now: &&MetaslabFree| now.key == ms.key && !now.was_used;
        if now.iter().find(untouched).is_some_and(|now| now.free == now.seg.len) {
            return Ok(Some(0));
        }
        let gap = tuning.rows.saturating_mul(step.row);
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut from = step.from;
        while from < step.to {
            let found = self.space.used_ranges(ms.key, from, step.to - from)?;
            let UsedSpace::Ranges(found, end) = found else { return Ok(None) };
            for seg in found {
                let (start, stop) = (seg.start.max(step.from), seg.end().min(step.to));
                match ranges.last_mut() {
                    _ if start >= stop => {}
                    Some(last) if start <= last.1.saturating_add(gap) => last.1 = last.1.max(stop),
                    _ => ranges.push((start, stop)),
                }
            }
            from = end.max(from + 1);
        }
        if self.expansion.plants.skipped_row.load(Relaxed) {
            ranges.iter_mut().for_each(|r| r.1 = r.1.saturating_sub(step.row).max(r.0));
        }
        if ranges.is_empty() {
            return Ok(Some(0));
        }
        tree.copy_reflow(step.vdev, &ranges).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No copy reaches the old place of a row that ends behind the offset in use, and some sector
    /// can always be copied behind the scratch area.
    #[test]
    fn copies_stay_away_from_rows_at_the_old_place() {
        for width in 3..=20u64 {
            let old = width - 1;
            for u in (old * old)..2000 {
                let most = limit(u, width, 0);
                assert!(most > u || u < old * width, "width {width}, offset {u}");
                for x in 0..most {
                    // The sector whose old place is the new place of `x`.
                    let (child, row) = (x % width, x / width);
                    let overwritten = (child < old).then_some(row * old + child);
                    assert!(overwritten.is_none_or(|y| y + old <= u), "{width} {u} {x}");
                }
            }
        }
    }
}
