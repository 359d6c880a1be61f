//! TRIM of the free space of a leaf, and of space that is freed (chapter 05 §3.2).
//!
//! # Theory
//! A *manual* trim is a job of a leaf (`leaf_jobs`): it discards all allocatable ranges, in
//! extents of at least `zfs_trim_extent_bytes_min` and at most `zfs_trim_extent_bytes_max`
//! bytes of the leaf, `zfs_trim_queue_limit` of them at a time.
//!
//! *Autotrim* is the pool's property of that name. While it is on, the metaslabs collect the
//! ranges that become allocatable (`metaslab::trim`), and one thread discards them on all leaves
//! of their vdevs. Each txg it visits the metaslabs with one number modulo
//! `zfs_trim_txg_batch`, so each metaslab is visited once in so many txgs, and its ranges have
//! merged meanwhile. When no txg was written for [`QUIET`], it visits all that collected
//! something, and then waits for a txg. Nothing of it is stored: after an import it begins anew.
//! Ranges are dropped when they are too small, when the device refuses, or when the pool closes.
//!
//! Both touch only allocatable ranges of a metaslab that is excluded from allocation; the
//! heads of `leaf_jobs` and `exclusion` have the argument.
//!
//! Lock order: `Autotrim::state` is a leaf lock.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::rt::{Condvar, JoinHandle, Mutex, spawn};
use base::{Result, Txg, VdevId};
use dmu::OutagePolicy;
use dsl::write::MosRead;
use metaslab::{FreeSpace, MsKey, Seg};

use super::Writer;
use super::leaf_jobs::{FreeSpacePlan, FreeSpaceTuning};

/// After this time without a txg, everything that was collected is discarded.
const QUIET: Duration = Duration::from_secs(60);

/// The plan of a step: with a rate, of as much as a second allows.
pub(super) fn plan(tuning: &FreeSpaceTuning, rate: u64) -> FreeSpacePlan {
    let most = usize::try_from(tuning.trim_queue.max(1)).unwrap_or(usize::MAX);
    let bytes = if rate == 0 { u64::MAX } else { rate.max(tuning.trim_min) & !4095 };
    let bytes = bytes.max(4096);
    FreeSpacePlan {
        limits: (most, bytes),
        sizes: (tuning.trim_min, tuning.trim_max.min(bytes)),
        fill: None,
        ops: Vec::new(),
        end: 0,
        bytes: 0,
    }
}

#[derive(Default)]
struct AutotrimState {
    on: bool,
    stopping: bool,
    /// Txgs that were synced and whose metaslabs are still to be visited.
    synced: Vec<Txg>,
    thread: Option<JoinHandle<()>>,
}

/// Autotrim of a pool.
#[derive(Default)]
pub(crate) struct Autotrim {
    state: Mutex<AutotrimState>,
    changed: Condvar,
}

/// What the thread does next.
enum Visit {
    Txgs(Vec<Txg>),
    All,
    Stop,
}

impl Autotrim {
    /// A txg is on disk.
    pub(super) fn synced(&self, txg: Txg) {
        let mut state = self.state.lock();
        if state.on && state.thread.is_some() {
            state.synced.push(txg);
            drop(state);
            self.changed.notify_all();
        }
    }

    pub(super) fn stop(&self, wait: bool) {
        let mut state = self.state.lock();
        state.stopping = true;
        let thread = state.thread.take();
        drop(state);
        self.changed.notify_all();
        if let Some(thread) = thread.filter(|_| wait) {
            thread.join();
        }
    }

    /// Takes a stop back.
    pub(super) fn allow(&self) {
        let mut state = self.state.lock();
        (state.stopping, state.on) = (false, false);
    }

    /// Waits for a txg; `some` is whether something was collected.
    fn next(&self, some: bool) -> Visit {
        let mut state = self.state.lock();
        loop {
            if state.stopping || !state.on {
                return Visit::Stop;
            }
            if !state.synced.is_empty() {
                return Visit::Txgs(std::mem::take(&mut state.synced));
            }
            if !some {
                self.changed.wait(&mut state);
            } else if self.changed.wait_timeout(&mut state, QUIET) && state.synced.is_empty() {
                return if state.stopping || !state.on { Visit::Stop } else { Visit::All };
            }
        }
    }
}

impl Writer {
    /// Follows property `autotrim`.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub(crate) fn follow_autotrim(&self, mos: &dyn MosRead) -> Result<()> {
        let zap = mos.directory("pool_props")?;
        let on = zap.map(|zap| mos.number(zap, "autotrim")).transpose()?.flatten();
        self.set_autotrim(on.unwrap_or(0) != 0);
        Ok(())
    }

    fn set_autotrim(&self, on: bool) {
        let mut state = self.autotrim.state.lock();
        if state.on == on || state.stopping {
            return;
        }
        state.on = on;
        state.synced.clear();
        let old = state.thread.take();
        drop(state);
        self.autotrim.changed.notify_all();
        if let Some(old) = old {
            old.join();
        }
        self.space.set_collecting(on);
        if on {
            let weak = self.me.get().cloned().unwrap_or_default();
            // Without a thread nothing is trimmed, which the property permits.
            let thread = spawn("vdev_autotrim", move || follow(&weak));
            self.autotrim.state.lock().thread = thread.ok();
        }
    }

    /// Discards what a metaslab collected, on all leaves of its vdev. A leaf that does not
    /// discard, or fails, is left out.
    fn autotrim_metaslab(&self, key: MsKey) -> Result<()> {
        let Some(newest) = self.newest_for_free_space() else { return Ok(()) };
        self.space_io.load(key, OutagePolicy::WaitPerFailmode)?;
        let exclusion = self.space_io.exclusions.exclude(&self.space, key)?;
        // What older uberblocks need is left for a later visit.
        if let FreeSpace::Ranges(ranges) = self.space.take_recent(key, newest)? {
            self.discard(key.vdev, &ranges);
        }
        drop(exclusion);
        Ok(())
    }

    fn discard(&self, vdev: VdevId, ranges: &[Seg]) {
        let (tree, tuning) = (self.zio.tree(), self.jobs.tuning());
        let leaves = tree.leaves().filter(|(_, leaf)| leaf.top() == vdev && leaf.readable());
        for (_, leaf) in leaves.filter(|(_, leaf)| tree.can_discard(leaf.guid())) {
            let mut step = plan(&tuning, 0);
            let mut failed = false;
            for range in ranges {
                let mine = tree.ranges_on(leaf.guid(), range.start, range.len).unwrap_or_default();
                for (at, len) in mine {
                    let mut done = 0;
                    while !failed && !step.add(at + done, len - done) {
                        done = step.end.clamp(at, at + len) - at;
                        let ops = std::mem::replace(&mut step, plan(&tuning, 0)).ops;
                        failed = tree.on_free_space(leaf.guid(), ops).is_err();
                    }
                }
            }
            if !failed && !step.ops.is_empty() {
                // A failed discard costs nothing but the chance.
                let _chance = tree.on_free_space(leaf.guid(), step.ops);
            }
        }
    }
}

/// The body of autotrim's thread.
fn follow(weak: &Weak<Writer>) {
    let mut visited_all = false;
    loop {
        let Some(writer) = weak.upgrade() else { return };
        let (autotrim, space) = (Arc::clone(&writer.autotrim), Arc::clone(&writer.space));
        drop(writer);
        let some = !visited_all && !space.collected().is_empty();
        let visit = autotrim.next(some);
        let Some(writer) = weak.upgrade() else { return };
        visited_all = matches!(visit, Visit::All);
        let batch = writer.jobs.tuning().trim_batch.max(1);
        let due: Option<BTreeSet<u64>> = match visit {
            Visit::Stop => return,
            Visit::All => None,
            Visit::Txgs(txgs) => Some(txgs.into_iter().map(|txg| txg.0 % batch).collect()),
        };
        for key in space.collected() {
            if due.as_ref().is_none_or(|due| due.contains(&(key.ms % batch))) {
                // A metaslab that cannot be loaded is not used any more.
                let _next = writer.autotrim_metaslab(key);
            }
        }
    }
}
