//! Expansion of a raidz vdev by one child: its sectors are moved to rows that are one sector wider
//! (chapter 08 §E).
//!
//! # Theory
//! No block is read as such, and no parity is computed: sector *x* of the vdev's linear space moves
//! from child *x mod o*, row *x / o*, to child *x mod n*, row *x / n*, with *n* = *o* + 1. What
//! reads and writes do meanwhile is in `vdev` (module `reflow`). Here is what happens when:
//!
//! 1. *Begin* (`begin`). One txg A adds the child to the configuration, with `raidz_expanding`, and
//!    counts the feature. Nothing is moved; all rows are at the old place.
//! 2. *Scratch phase* (`scratch`). The first new rows lie on the old places of the very sectors
//!    that they hold. So they are written to the boot area of each child first.
//! 3. *Copying* (`copy`). A thread copies what is not allocatable, in ascending order, and flushes
//!    after each step. A step never reaches the old places of rows that the last durable
//!    uberblock, or any operation in flight, takes for being there. So it has to wait for txgs; a
//!    txg that it waits for is requested. Each txg's uberblock has the offset up to which
//!    everything is copied and flushed.
//! 4. *End* (`end`). When the offset in the uberblock is the end of the metaslabs, one txg T ends
//!    the expansion: blocks born from T + 3 on have the new width. Then the vdev grows, and
//!    a scrub begins.
//!
//! # What the uberblock says
//! | phase | state | offset | rows below the offset are read | other rows |
//! |---|---|---|---|---|
//! | 1, 2 until the scratch area is whole | 0 | 0 | – | old place |
//! | 2, scratch area whole | 1 | its end *E* | scratch area | old place |
//! | 2, first rows written | 2 | *E* | new place | old place |
//! | an import found state 1 and wrote them | 3 | *E* | new place | old place |
//! | 3 | 4 | what was copied | new place | old place |
//! | T | 0 | 0 | everything at the new place | – |
//!
//! The uberblocks of phase 2 repeat the txg that was synced last, one second later each. That of
//! state 1 is put into the slot before, so that either it or the one it repeats is whole.
//!
//! # Crash argument
//! *Phase 2.* Until the uberblock of state 1 is on a device, only boot areas were written. From
//! then on the scratch area is what an import reads; it was flushed before, and is not written
//! again. The first rows are written over, which no row at the old place touches: those begin
//! at or behind byte *E / o* of their child. State 2 follows when they are flushed. Writes of
//! blocks before *E* wait all the time, also those of intent logs: so what is at the scratch area
//! does not grow old.
//!
//! *Phase 3.* Let *u* be the offset of the uberblock that an import finds. Rows that end at or
//! below *u* were copied and flushed before it was written, and each block in them is newer than
//! the copy and was written to the new place, or is older and was copied. Rows that end above *u*
//! are untouched at the old place: copies stay away from it, until a later uberblock is
//! durable. What is copied is all that was not allocatable at that time. Space that was
//! allocatable is referred to by no uberblock that may be found with an offset behind it, but for
//! blocks that were allocated since, and those are written to both places.
//!
//! *Phase 4.* The configuration of T and the uberblock without offset are one txg. The tree
//! in memory changes when T is durable, and before T + 3 is opened: until then the last rows are
//! written to both places.
//!
//! # Devices that fail
//! Sectors have no births, so what a leaf did not get of a copy is in no DTL. The thread
//! works only while every leaf of the vdev is open and misses nothing. A step that some leaf did
//! not take, or did not flush, counts for nothing and is repeated: its sources are whole.
//! A resilver begins when the copies that count are in an uberblock and known to all operations,
//! so it finds each block in one place. In phase 2, after state 1, there is no way back: a leaf that does not take the first rows
//! misses everything from then on, and gets it by a resilver.
//!
//! # Invariants
//! * `done` ≥ `recorded` ≥ `safe`: copied and flushed; in a durable uberblock; known to all
//!   operations.
//! * No trim and no initialization works on a vdev that is being expanded.
//! * Nothing is moved while an older snapshot of the tree, without the expansion, is in use.
//!
//! # Departures from OpenZFS
//! * Frees are deferred as always: what is not allocatable is copied.
//! * Allocation from the metaslab that is being copied goes on.
//!
//! Lock order: the pool's `state` → `session` → range locks of `vdev`; `state` → `following`. `state`
//! here is a leaf lock.

mod begin;
mod copy;
mod end;
mod scratch;
mod sync;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::planted::{BugSwitch, TestValue};
use base::rt::{Condvar, JoinHandle, Mutex, spawn};
use base::{Error, Result, Txg, VdevId};
use dsl::Mos;
use ondisk::config::VdevConfig;
use ondisk::uberblock::ScratchState;
use vdev::{RebuildSession, Reflow};

use super::Writer;

/// Feature of pools with a vdev that was expanded.
const FEATURE: &str = "org.openzfs:raidz_expansion";
/// Keys of the vdev's ZAP.
const STATE: &str = "org.openzfs:raidz_expand_state";
const START: &str = "org.openzfs:raidz_expand_start_time";
const END: &str = "org.openzfs:raidz_expand_end_time";
const COPIED: &str = "org.openzfs:raidz_expand_bytes_copied";
/// In OpenZFS's words.
pub(super) const IN_PROGRESS: &str = "raidz expansion in progress";
/// Between two looks at what must change first.
const WAIT: Duration = Duration::from_millis(500);

/// Tunables of expansions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpansionTuning {
    /// `raidz_expand_max_copy_bytes`: bytes that one step copies.
    pub copy: u64,
    /// `raidz_expand_max_reflow_bytes`: bytes after which copying pauses; 0: none.
    pub pause: u64,
    /// `raidz_io_aggregate_rows`: free rows between two ranges that are copied with them.
    pub rows: u64,
    /// `zfs_scrub_after_expand`.
    pub scrub: bool,
}

impl Default for ExpansionTuning {
    fn default() -> Self {
        ExpansionTuning { copy: 16 << 20, pause: 0, rows: 4, scrub: true }
    }
}

/// Planted bugs of expansions ([`base::planted`]).
#[derive(Debug, Default)]
pub struct ExpansionPlants {
    /// The last row of each range is not copied.
    pub skipped_row: BugSwitch,
    /// The uberblock's offset is one row ahead of what was copied.
    pub row_ahead: BugSwitch,
    /// Nothing is moved, and the scratch phase does not begin. Not a bug.
    pub hold_before: BugSwitch,
    /// One more than the bytes after which the thread waits; 0: none. Not a bug.
    pub hold_after: TestValue,
}

/// The progress of an expansion, as the commands show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpansionProgress {
    /// The vdev.
    pub vdev: VdevId,
    /// Linear offset up to which everything is at its new place, by the last uberblock.
    pub offset: u64,
    /// Linear offset at which it ends.
    pub end: u64,
    /// Bytes copied.
    pub copied: u64,
    /// Seconds since 1970.
    pub start: u64,
    /// It waits until all devices of the vdev are whole.
    pub waiting: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing is moved yet.
    Scratch,
    Copying,
    /// A txg that ends it is being written.
    Ending,
}

/// The expansion under way.
struct Expanding {
    vdev: VdevId,
    /// Children, the new one included.
    width: u64,
    ashift: u32,
    /// End of the metaslabs.
    end: u64,
    stage: Stage,
    /// The last snapshot without the expansion has ended.
    alone: bool,
    done: u64,
    recorded: u64,
    safe: u64,
    /// The offset of the txg that is being written.
    writing: Option<u64>,
    copied: u64,
    start: u64,
    /// The births of each width, when it has ended.
    expand_txgs: Vec<Txg>,
}

/// The expansion of a pool.
#[derive(Default)]
pub(super) struct RaidzExpansion {
    state: Mutex<Option<Expanding>>,
    changed: Condvar,
    /// There is one.
    active: AtomicBool,
    /// A vdev whose expansion has ended, and that has not grown yet.
    ended: Mutex<Option<VdevId>>,
    stopping: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Held while operations are told of a new offset.
    following: Mutex<()>,
    /// Has writes of blocks register.
    session: Mutex<Option<Arc<RebuildSession>>>,
    tuning: Mutex<ExpansionTuning>,
    plants: ExpansionPlants,
}

impl RaidzExpansion {
    /// Whether a vdev is being expanded.
    pub(super) fn is_active(&self) -> bool {
        self.active.load(Relaxed)
    }

    fn has_thread_work(&self) -> bool {
        self.is_active() || self.ended.lock().is_some()
    }

    /// Ends the thread and waits for it, unless the pool is suspended: then it ends when it can.
    pub(super) fn stop(&self, wait: bool) {
        self.stopping.store(true, Relaxed);
        self.notify();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|_| wait) {
            thread.join();
        }
    }

    /// Takes a stop back.
    pub(super) fn allow(&self) {
        self.stopping.store(false, Relaxed);
    }

    fn notify(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    /// Waits for a change.
    fn pause(&self) {
        let mut state = self.state.lock();
        if !self.stopping.load(Relaxed) {
            self.changed.wait_timeout(&mut state, WAIT);
        }
    }

    fn set(&self, expanding: Option<Expanding>) {
        let mut state = self.state.lock();
        self.active.store(expanding.is_some(), Relaxed);
        *state = expanding;
        self.changed.notify_all();
    }
}

/// What the thread does next.
enum ExpansionStep {
    More,
    /// Something must change first.
    Wait,
    End,
}

/// The body of the thread.
fn expansion_thread(weak: &Weak<Writer>, expansion: &RaidzExpansion) {
    loop {
        let Some(writer) = weak.upgrade() else { return };
        let step = writer.expansion_step();
        // The pool may be closed meanwhile.
        drop(writer);
        match step {
            ExpansionStep::More => {}
            ExpansionStep::Wait => expansion.pause(),
            ExpansionStep::End => return,
        }
    }
}

/// The raidz vdev that is being expanded.
fn expanding_top(root: &VdevConfig) -> Option<&VdevConfig> {
    root.children.iter().find(|top| top.raidz.as_ref().is_some_and(|raidz| raidz.expanding))
}

/// The end of the metaslabs of a top-level vdev.
fn metaslabs_end(top: &VdevConfig) -> u64 {
    let Some(space) = &top.top else { return 0 };
    space.asize.checked_shr(space.metaslab_shift).unwrap_or(0) << space.metaslab_shift.min(63)
}

impl Writer {
    /// Sets the tunables of expansions, from the next step on.
    pub fn set_expansion_tuning(&self, tuning: ExpansionTuning) {
        *self.expansion.tuning.lock() = tuning;
        self.expansion.notify();
    }

    /// Planted bugs of expansions.
    pub fn expansion_plants(&self) -> &ExpansionPlants {
        &self.expansion.plants
    }

    /// The expansion under way.
    pub fn expansion(&self) -> Option<ExpansionProgress> {
        let state = self.expansion.state.lock();
        let now = state.as_ref()?;
        let (vdev, offset, end) = (now.vdev, now.recorded, now.end);
        let (copied, start) = (now.copied, now.start);
        drop(state);
        let waiting = !self.zio.tree().is_whole(vdev);
        Some(ExpansionProgress { vdev, offset, end, copied, start, waiting })
    }

    /// Takes over an expansion that was under way when the pool was last in use. Nothing was
    /// written yet since.
    ///
    /// # Errors
    /// `Corrupt` for impossible records; `ReadOnly` if the scratch area is needed and cannot be
    /// read; those of reading the MOS and of the devices.
    pub(crate) fn load_expansion(&self, mos: &Mos) -> Result<()> {
        let published = self.published();
        let Some(top) = expanding_top(&published.config.vdev_tree) else { return Ok(()) };
        let vdev = VdevId(top.id);
        let space = top.top.clone().unwrap_or_default();
        let reflow = published.uberblock.reflow()?;
        let end = metaslabs_end(top);
        if reflow.offset > end || !reflow.offset.is_multiple_of(1 << space.ashift) {
            return Err(Error::corrupt("the progress of an expansion is outside its vdev"));
        }
        let (mut copied, mut start) = (0, 0);
        if let Some(zap) = space.zap.filter(|zap| zap.0 != 0) {
            let zap = mos.zap(zap.0)?;
            copied = zap.lookup_u64(COPIED)?.unwrap_or(0);
            start = zap.lookup_u64(START)?.unwrap_or(0);
        }
        if reflow.scratch == ScratchState::Valid {
            self.restore_first_rows(vdev, reflow.offset)?;
        }
        let tree = self.zio.tree();
        tree.reset_reflow(Reflow { offset: reflow.offset, scratch_valid: false });
        self.hold_session();
        self.expansion.set(Some(Expanding {
            vdev,
            width: top.children.len() as u64,
            ashift: space.ashift,
            end,
            stage: if reflow.offset == 0 { Stage::Scratch } else { Stage::Copying },
            alone: false,
            done: reflow.offset,
            recorded: reflow.offset,
            safe: reflow.offset,
            writing: None,
            copied,
            start,
            expand_txgs: Vec::new(),
        }));
        Ok(())
    }

    /// Has writes of blocks register as long as the expansion lasts. The caller holds none.
    fn hold_session(&self) -> Arc<RebuildSession> {
        let mut session = self.expansion.session.lock();
        let session = session.get_or_insert_with(|| Arc::new(self.zio.tree().begin_rebuild()));
        Arc::clone(session)
    }

    /// Starts the thread of an expansion that has none.
    pub(crate) fn wake_expansion(&self) {
        let mut thread = self.expansion.thread.lock();
        if thread.is_some()
            || !self.expansion.has_thread_work()
            || self.expansion.stopping.load(Relaxed)
        {
            return;
        }
        let weak = self.me.get().cloned().unwrap_or_default();
        let expansion = Arc::clone(&self.expansion);
        // Without a thread the next txg tries again.
        *thread = spawn("raidz_expand", move || expansion_thread(&weak, &expansion)).ok();
    }

    /// One step; whether there is more to do.
    fn expansion_step(&self) -> ExpansionStep {
        if self.expansion.stopping.load(Relaxed) {
            return ExpansionStep::End;
        }
        let ended = *self.expansion.ended.lock();
        if let Some(vdev) = ended {
            return self.after_expansion(vdev);
        }
        let (vdev, stage, alone) = {
            let state = self.expansion.state.lock();
            let Some(now) = state.as_ref() else {
                drop(state);
                *self.expansion.thread.lock() = None;
                return ExpansionStep::End;
            };
            (now.vdev, now.stage, now.alone)
        };
        if self.txgs.suspended().is_some() || self.follow_recorded().is_err() {
            return ExpansionStep::Wait;
        }
        let tree = self.zio.tree();
        if !tree.is_whole(vdev) {
            return ExpansionStep::Wait;
        }
        if !alone {
            if !tree.is_oldest_within(WAIT) {
                return ExpansionStep::More;
            }
            if let Some(now) = self.expansion.state.lock().as_mut() {
                now.alone = true;
            }
        }
        drop(tree);
        match stage {
            Stage::Scratch if self.expansion.plants.hold_before.load(Relaxed) => {
                ExpansionStep::Wait
            }
            Stage::Scratch => self.scratch_phase(vdev),
            Stage::Copying => self.copy_some_rows(vdev),
            Stage::Ending => ExpansionStep::Wait,
        }
    }
}
