//! Sequential rebuild: a new leaf of a mirror or dRAID gets everything that is in use, in the
//! order of the device, without a look at the blocks (chapter 05 §3.1, §8).
//!
//! # Theory
//! A rebuild belongs to a top-level vdev. Its record is in the ZAP of that vdev, and feature
//! `device_rebuild` counts the active ones. A thread of low priority goes over the metaslabs in
//! order. One step of it takes some of a metaslab's used ranges (`metaslab::used`), and
//! [`vdev::Tree::rebuild`] copies them from leaves that miss nothing to those that miss
//! something. Then the offset moves behind them; each txg stores it. At the end the leaves forget
//! what they missed before the rebuild began, and a scrub verifies all checksums, because a
//! rebuild cannot.
//!
//! # States
//! ```text
//! (none) -- attach -s --> active -- all metaslabs --> complete -- scrub
//!   active -- another leaf is behind --> active, from offset 0
//!   active -- its leaf is detached; no leaf to copy from --> canceled
//! ```
//! Sync tasks and [`Writer::sync_rebuilds`] change the state; the thread only asks for it
//! ([`Wish`]). What a rebuild cannot copy, a resilver does: it is requested when the rebuild is
//! canceled because too few leaves are complete, when it ended with errors, and when leaves
//! still miss txgs after it. While a rebuild is active, no scan runs: a scrub is canceled when it
//! begins, and refused meanwhile; a resilver waits.
//!
//! # Why a leaf lacks nothing afterwards
//! Let M be the record's `max_txg`: leaves miss births before M when the rebuild begins, and
//! every txg that is open then is before M. The first step comes when the txg M - 1 is on disk.
//! * A block that was born before M is allocated at the step that comes to its place, or
//!   is freed. If it is allocated, the step copies it. Its content is on the source: the block
//!   was written before M - 1 was on disk. (A block of an intent log may be written later; see
//!   the next case.)
//! * A block that is written later reaches the leaf by itself, because the leaf is in the
//!   published tree. If that fails, its birth is added to what the leaf misses; a
//!   birth of M or later stays there.
//! * A copy and a write of the same place exclude each other (`vdev::range_lock`), so no copy
//!   puts old bytes over new ones: not when a block is rewritten in a later pass of its
//!   txg, when space is freed and used again, or when an intent log writes a block that it
//!   allocated long before.
//!
//! A leaf that was absent for a moment has lacked writes, and copies. Such a leaf
//! restarts the rebuild when it is back. Across imports, this is seen as in a scan: each txg
//! that is written meanwhile is added to what an absent leaf misses, and is not before M.
//!
//! # Crash argument
//! The offset that txg T stores covers steps that took their ranges, and whose writes ended,
//! before T was written; its commit flushes all vdevs before its first uberblock. A block to
//! which T's tree refers, before that offset, was used at its step, or written later: a txg that
//! frees it comes after T, and so after the step. So the argument above holds for the tree of
//! each uberblock with the offset that it stores. The end of the rebuild, the new missing txgs and
//! the begin of the scrub are in one txg.
//!
//! # Invariants
//! * Missing txgs are forgotten only when every metaslab was copied without an error, and of
//!   leaves that were there from the (last) begin of the rebuild on and missed nothing since.
//! * A rebuild holds at most [`RebuildTuning::limit`] bytes of content, and what
//!   its vdev makes of it.
//!
//! # Departures from OpenZFS
//! * Metaslabs are not disabled while they are copied, so that a full pool can be written.
//! * What is allocated while the rebuild runs is not copied, so that a silently damaged source
//!   does not replace the good copy on the new leaf. After an import this is not known any more.
//! * A metaslab with a damaged space map is copied as a whole.
//!
//! Lock order: `state`, then nothing; it is not held during I/O or a wait for a txg. `threads`
//! before `state`.

mod record;
mod sync;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::planted::{BugSwitch, TestValue};
use base::rt::{Condvar, JoinHandle, Mutex, raise_niceness, spawn};
use base::{Guid, Result, Txg, VdevId};
use dmu::OutagePolicy;
use dsl::write::MosRead;
use metaslab::{MetaslabFree, MsKey, Seg, UsedSpace};
use vdev::{RebuildSession, ScanLeaves, Tree};

use super::Writer;

pub(crate) use record::stored_rebuilds;
pub use record::{RebuildRecord, RebuildState};

/// The nice value of a rebuild's thread, relative to threads with waiting callers.
const NICE: u8 = 15;
/// Bytes of a step, at least and at most: writes of blocks may wait for it.
const STEP: (u64, u64) = (64 << 10, 16 << 20);
/// A stored record ends with a txg that is at most so many after the one that stores it.
const TXGS_BEHIND: u64 = 4;
/// How long the thread waits for a change before it looks again.
const WAIT: Duration = Duration::from_secs(1);

/// Tunables of rebuilds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuildTuning {
    /// `zfs_rebuild_max_segment`: bytes of one piece.
    pub segment: u64,
    /// `zfs_rebuild_vdev_limit`: bytes in one step, at most.
    pub limit: u64,
    /// `zfs_rebuild_scrub_enabled`: a scrub follows.
    pub scrub: bool,
}

impl Default for RebuildTuning {
    fn default() -> Self {
        RebuildTuning { segment: 1 << 20, limit: 64 << 20, scrub: true }
    }
}

/// Planted bugs of rebuilds ([`base::planted`]).
#[derive(Debug, Default)]
pub struct RebuildPlants {
    /// The last metaslab is left out, though the leaves forget what they missed in it.
    pub skip_last: BugSwitch,
    /// A metaslab in four is left out.
    pub skip_some: BugSwitch,
    /// The stored offset is one step ahead of the copies.
    pub offset_ahead: BugSwitch,
    /// Rebuilds wait when they come to this offset; 0: none. Not a bug.
    pub hold_at: TestValue,
}

/// A rebuild, for `zpool status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuildProgress {
    /// As it is stored, with the present numbers.
    pub record: RebuildRecord,
    /// Milliseconds for which it runs since the import; 0 if it does not run.
    pub pass_ms: u64,
    /// Bytes looked at in that time.
    pub pass_scanned: u64,
    /// Bytes copied in that time.
    pub pass_issued: u64,
}

/// What the thread wants of the sync thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// Everything was copied.
    Complete,
    /// Other leaves are behind than when it began.
    Restart,
    /// It cannot go on.
    Cancel,
}

#[derive(Default)]
struct VdevRebuild {
    record: RebuildRecord,
    /// Must be stored.
    dirty: bool,
    /// Incremented with each restart.
    run: u64,
    /// The leaves that can be complete at the end.
    leaves: ScanLeaves,
    wish: Option<Wish>,
    /// A thread works on it.
    threaded: bool,
    /// The record when the pool was opened or the rebuild began, and when that was.
    pass: Option<(RebuildRecord, base::rt::Instant)>,
}

impl VdevRebuild {
    fn is_active(&self) -> bool {
        self.record.state == RebuildState::Active
    }
}

/// The rebuilds of a pool, by top-level vdev.
#[derive(Default)]
pub(super) struct Rebuilds {
    state: Mutex<BTreeMap<VdevId, VdevRebuild>>,
    /// Something changed for the threads.
    changed: Condvar,
    stopping: AtomicBool,
    threads: Mutex<BTreeMap<VdevId, JoinHandle<()>>>,
    tuning: Mutex<RebuildTuning>,
    /// A scrub is to follow.
    scrub: AtomicBool,
    /// A rebuild ended in the txg that is being written.
    ended: AtomicBool,
}

impl Rebuilds {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Whether a rebuild is active.
    pub(super) fn is_active(&self) -> bool {
        self.state.lock().values().any(VdevRebuild::is_active)
    }

    /// Whether the next txg stores something.
    pub(super) fn has_work(&self) -> bool {
        self.state.lock().values().any(|r| r.dirty || r.wish.is_some())
    }

    /// Ends all threads and waits for them, unless the pool is suspended: then they end when
    /// they can.
    pub(super) fn stop(&self, wait: bool) {
        self.stopping.store(true, Relaxed);
        {
            let _state = self.state.lock();
            self.changed.notify_all();
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        if wait {
            threads.into_values().for_each(|thread| {
                let _ended = thread.join();
            });
        }
    }

    /// Takes a stop back.
    pub(super) fn allow(&self) {
        self.stopping.store(false, Relaxed);
    }

    /// Waits for a change.
    fn pause(&self) {
        let mut state = self.state.lock();
        if !self.is_stopping() {
            self.changed.wait_timeout(&mut state, WAIT);
        }
    }

    fn change(&self, vdev: VdevId, run: u64, f: impl FnOnce(&mut VdevRebuild)) {
        let mut state = self.state.lock();
        if let Some(rebuild) = state.get_mut(&vdev).filter(|r| r.run == run && r.is_active()) {
            f(rebuild);
        }
    }
}

/// What a thread keeps between its steps.
#[derive(Default)]
struct RebuildCursor {
    run: u64,
    session: Option<RebuildSession>,
    since: Option<base::rt::Instant>,
}

/// What the thread does next.
enum RebuildStep {
    More,
    /// Something must change first.
    Wait,
    End,
}

/// The body of a rebuild's thread.
fn rebuild_thread(weak: &Weak<Writer>, rebuilds: &Arc<Rebuilds>, vdev: VdevId) {
    // An error only means that other threads wait longer.
    let _as_before = raise_niceness(NICE);
    let mut cursor = RebuildCursor::default();
    loop {
        let Some(writer) = weak.upgrade() else { return };
        let step = writer.rebuild_step(vdev, &mut cursor);
        // The pool may be closed meanwhile.
        drop(writer);
        match step {
            RebuildStep::More => {}
            RebuildStep::Wait => {
                // It may last, and writes need not register until then.
                (cursor.session, cursor.since) = (None, None);
                rebuilds.pause();
            }
            RebuildStep::End => return,
        }
    }
}

/// The part of a metaslab that a step copies, and the offset behind it.
type Portion = (Vec<(u64, u64)>, u64);

impl Writer {
    /// Sets the tunables of rebuilds, from the next step on.
    pub fn set_rebuild_tuning(&self, tuning: RebuildTuning) {
        *self.rebuilds.tuning.lock() = tuning;
    }

    /// The tunables of rebuilds.
    pub fn rebuild_tuning(&self) -> RebuildTuning {
        *self.rebuilds.tuning.lock()
    }

    /// Whether some vdev is being rebuilt sequentially.
    pub fn is_rebuilding(&self) -> bool {
        self.rebuilds.is_active()
    }

    /// Whether a leaf's top-level vdev is being rebuilt.
    pub fn is_being_rebuilt(&self, leaf: Guid) -> bool {
        let tree = self.zio.tree();
        let top = tree.find(leaf).map(vdev::Node::top);
        let state = self.rebuilds.state.lock();
        top.and_then(|top| state.get(&top)).is_some_and(VdevRebuild::is_active)
    }

    /// The last or current rebuild of each top-level vdev that had one.
    pub fn rebuilds(&self) -> Vec<(VdevId, RebuildProgress)> {
        let state = self.rebuilds.state.lock();
        let known = state.iter().filter(|(_, r)| r.record.state != RebuildState::None);
        let progress = |r: &VdevRebuild| {
            let pass = r.pass.filter(|_| r.is_active());
            let since = |of: fn(&RebuildRecord) -> u64| {
                pass.map_or(0, |(before, _)| of(&r.record).saturating_sub(of(&before)))
            };
            let ms = |at: base::rt::Instant| u64::try_from(at.elapsed().as_millis());
            RebuildProgress {
                record: r.record,
                pass_ms: pass.map_or(0, |(_, at)| ms(at).unwrap_or(u64::MAX).max(1)),
                pass_scanned: since(|r| r.scanned),
                pass_issued: since(|r| r.issued),
            }
        };
        known.map(|(vdev, r)| (*vdev, progress(r))).collect()
    }

    /// Reads the rebuilds of an imported pool; their threads start with
    /// [`Writer::wake_rebuilds`].
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub(crate) fn load_rebuilds(&self, mos: &dyn MosRead) -> Result<()> {
        let (tree, newest) = (self.zio.tree(), self.published().uberblock.txg);
        for (vdev, record) in stored_rebuilds(mos, &self.published().config)? {
            // A leaf that was away for a part of it misses a later txg.
            let mut leaves = tree.begin_leaves(vdev);
            let last = |guid| tree.find(guid).and_then(|node| node.dtl().last());
            leaves.retain(|guid| last(guid).is_none_or(|last| last < record.max_txg));
            let pass = Some((record, base::rt::now()));
            // What no rebuild stores.
            let asize = tree.top(vdev).map_or(0, |top| top.asize());
            let odd = record.last_offset > asize || record.max_txg.0 > newest.0 + TXGS_BEHIND;
            let wish = (odd && record.state == RebuildState::Active).then_some(Wish::Restart);
            let rebuild =
                VdevRebuild { record, leaves, wish, pass, run: 1, ..VdevRebuild::default() };
            self.rebuilds.state.lock().insert(vdev, rebuild);
        }
        Ok(())
    }

    /// Starts the threads of active rebuilds that have none.
    pub(crate) fn wake_rebuilds(&self) {
        let mut threads = self.rebuilds.threads.lock();
        let mut state = self.rebuilds.state.lock();
        self.rebuilds.changed.notify_all();
        if self.rebuilds.is_stopping() {
            return;
        }
        for (&vdev, rebuild) in state.iter_mut().filter(|(_, r)| r.is_active() && !r.threaded) {
            let weak = self.me.get().cloned().unwrap_or_default();
            let rebuilds = Arc::clone(&self.rebuilds);
            let run = move || rebuild_thread(&weak, &rebuilds, vdev);
            // Without a thread the next txg tries again. One that has ended needs no joining.
            if let Ok(thread) = spawn("vdev_rebuild", run) {
                rebuild.threaded = true;
                threads.insert(vdev, thread);
            }
        }
    }

    /// Asks the sync thread for a change.
    fn wish(&self, vdev: VdevId, run: u64, wish: Wish) -> RebuildStep {
        self.rebuilds.change(vdev, run, |rebuild| rebuild.wish = Some(wish));
        let open = self.txgs.open_txg();
        self.txgs.dirty(open, 0);
        self.txgs.kick(open);
        RebuildStep::Wait
    }

    fn rebuild_step(&self, vdev: VdevId, cursor: &mut RebuildCursor) -> RebuildStep {
        let (record, run, leaves) = {
            let mut state = self.rebuilds.state.lock();
            let Some(rebuild) = state.get_mut(&vdev) else { return RebuildStep::End };
            if !rebuild.is_active() || self.rebuilds.is_stopping() {
                rebuild.threaded = false;
                return RebuildStep::End;
            }
            if rebuild.wish.is_some() {
                return RebuildStep::Wait;
            }
            (rebuild.record, rebuild.run, rebuild.leaves.clone())
        };
        let hold = self.plants.rebuild.hold_at.load(Relaxed);
        if self.txgs.suspended().is_some() || (hold > 0 && record.last_offset >= hold) {
            return RebuildStep::Wait;
        }
        if self.txgs.synced_txg().next() < record.max_txg {
            // An error is that of a suspension, or the pool closes.
            return match self.sync() {
                Ok(_) => RebuildStep::More,
                Err(_) => RebuildStep::Wait,
            };
        }
        let tree = self.zio.tree();
        let Ok(top) = tree.top(vdev) else { return self.wish(vdev, run, Wish::Cancel) };
        if cursor.run != run {
            *cursor = RebuildCursor { run, ..RebuildCursor::default() };
            // They only save copies.
            let _noted = self.space.note_allocations(vdev, true);
        }
        let behind = tree.behind(vdev);
        if behind.iter().any(|guid| !leaves.has(&tree, *guid)) {
            return self.wish(vdev, run, Wish::Restart);
        }
        if behind.is_empty() && tree.partial(vdev).is_ok_and(|missing| !missing.is_empty()) {
            // Its leaf is absent.
            return RebuildStep::Wait;
        }
        let all = self.space.metaslabs(vdev).unwrap_or_default();
        let left = all.iter().position(|ms| ms.seg.end() > record.last_offset);
        let Some((at, ms)) = left.and_then(|at| Some((at, all.get(at)?))) else {
            return self.wish(vdev, run, Wish::Complete);
        };
        let tuning = self.rebuild_tuning();
        let began = *cursor.since.get_or_insert_with(base::rt::now);
        let plants = &self.plants.rebuild;
        let skipped = (plants.skip_last.load(Relaxed) && at + 1 == all.len())
            || (plants.skip_some.load(Relaxed) && at % 4 == 1);
        let portion = match skipped {
            true => Some((Vec::new(), ms.seg.end())),
            false => self.portion(ms, record.last_offset, &tuning),
        };
        let Some((ranges, end)) = portion else { return RebuildStep::More };
        if plants.offset_ahead.load(Relaxed) {
            self.rebuilds.change(vdev, run, |rebuild| {
                (rebuild.record.last_offset, rebuild.dirty) = (end, true);
            });
            let _stored = self.sync();
        }
        let session = cursor.session.get_or_insert_with(|| tree.begin_rebuild());
        let Ok(done) = tree.rebuild(session, vdev, &ranges, tuning.segment) else {
            return self.wish(vdev, run, Wish::Cancel);
        };
        if done.without_source > 0 && top.readable() {
            return self.wish(vdev, run, Wish::Cancel);
        }
        let now = self.zio.tree();
        let same = now.top(vdev).is_ok_and(vdev::Node::readable) && now.behind(vdev) == behind;
        if done.without_source > 0 || (done.failed > 0 && !same) {
            // Once more, when it is decided what becomes of the leaf.
            return RebuildStep::Wait;
        }
        let Ok(hold) = self.txgs.hold() else { return RebuildStep::Wait };
        let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(0);
        if took > 0 {
            cursor.since = Some(base::rt::now());
        }
        self.rebuilds.change(vdev, run, |rebuild| {
            let record = &mut rebuild.record;
            record.last_offset = record.last_offset.max(end);
            record.scanned += ranges.iter().map(|(_, len)| len).sum::<u64>();
            record.issued += done.issued;
            record.rebuilt += done.total();
            record.errors += done.failed;
            record.scan_time_ms += took;
            rebuild.dirty = true;
        });
        self.txgs.dirty(hold.txg(), 0);
        RebuildStep::More
    }

    /// What a step copies of a metaslab; `None` if it was unloaded meanwhile.
    fn portion(&self, ms: &MetaslabFree, from: u64, tuning: &RebuildTuning) -> Option<Portion> {
        let MetaslabFree { key, seg, free, was_used } = *ms;
        // What is allocated and not written yet is on the leaves.
        if !was_used && free == seg.len {
            return Some((Vec::new(), seg.end()));
        }
        let limit = tuning.limit.clamp(STEP.0, STEP.1);
        let whole = |seg: Seg| (seg.start, seg.len);
        match self.used_ranges(key, from, limit) {
            Ok(UsedSpace::Ranges(ranges, end)) => {
                Some((ranges.into_iter().map(whole).collect(), end.max(seg.start)))
            }
            Ok(UsedSpace::NotLoaded) => None,
            // Nobody knows what is used.
            Err(_) => {
                let tree = self.zio.tree();
                let unit = tree.min_alloc(key.vdev).map_or(1, |unit| unit.0.max(1));
                let start = from.max(seg.start).next_multiple_of(unit);
                let len = limit.min(seg.end().saturating_sub(start)) / unit * unit;
                match len {
                    0 => Some((Vec::new(), seg.end())),
                    _ => Some((vec![(start, len)], start + len)),
                }
            }
        }
    }

    fn used_ranges(&self, key: MsKey, from: u64, most: u64) -> Result<UsedSpace> {
        self.space_io.load(key, OutagePolicy::WaitPerFailmode)?;
        self.space.used_ranges(key, from, most)
    }
}

/// The first and the last txg that some leaf of a vdev misses.
fn last_missing(tree: &Tree, vdev: VdevId) -> Option<(Txg, Txg)> {
    let missing = tree.partial(vdev).ok()?;
    missing.first().zip(missing.last())
}
