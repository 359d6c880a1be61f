//! Removal of a top-level vdev that holds data: its blocks are copied to the other vdevs, and a
//! mapping leads from their old addresses to the new ones (chapter 08 §D).
//!
//! # Theory
//! No pointer is changed: pointers go on to name the removed vdev, and its mapping translates the
//! address at each read and free (`obsolete`). So a removal needs no look at the blocks. It
//! copies what the space maps say is allocated.
//!
//! 1. *Passivation.* Nothing is allocated from the vdev any more. Intent logs end their chains,
//!    because the next block of a chain is allocated long before it is written. The txgs that
//!    are open then are synced: everything that is allocated on the vdev is on its devices.
//! 2. *Begin.* One txg makes the mapping, the list of births, and the record
//!    `com.delphix:removing`, and marks the vdev as being removed.
//! 3. *Copying.* A thread (`copy`) goes over the metaslabs in ascending order. A step holds the
//!    open txg T, takes some live ranges, allocates their copies in T, and writes them. The sync
//!    thread appends their entries to the mapping when it writes T (`sync`), before it frees
//!    anything of T.
//! 4. *End.* When nothing is left, one txg turns the vdev into an indirect one, which has the
//!    mapping, and frees its space maps and ZAPs (`end`). Then its labels are wiped.
//!
//! Until the end every read goes to the old place. The copies exist for the mapping alone.
//!
//! # Frees meanwhile
//! A block on the vdev is freed at its old place in any case: the space maps of the vdev always
//! tell what is needed of it. What happens to the copy depends on where the block lies:
//! * Below the end of the mapping: the copy is freed, too, and the range is obsolete.
//! * Between that and what the thread has taken: the range is noted. The txg that appends the
//!   entries frees its copy at once.
//! * Behind: there is no copy, and none will be made.
//!
//! The choice of what to copy and a free exclude each other (`state`), so each block is in one
//! of the three places.
//!
//! # Crash argument
//! The entries that T appends, the space maps in which their copies are allocated, and the
//! copies' bytes are durable with T's uberblock, or none of them is: copies are written before T
//! is quiesced, and its commit flushes all vdevs. An import continues behind the last entry. What
//! a lost step copied was allocated in a txg that never was. The end is one txg as well: before it,
//! the old devices are needed and complete; after it, nothing refers to them.
//!
//! # Invariants
//! * The allocated bytes of the vdev below the end of the mapping are those of the entries that
//!   are not obsolete. Each has exactly one copy, allocated on a vdev that is not removed.
//! * `map` and `header` are those of the txg that is being written; entries of later txgs
//!   wait in `copied`.
//! * One step has at most [`RemovalTuning::limit`] bytes in memory.
//!
//! # Departures from OpenZFS
//! * Free gaps between blocks are not copied: each entry is wholly allocated when it is made.
//! * The copies in a mirror are compared. If they differ, a scrub would know the right one, and the
//!   removal does not: it is canceled (unless `zfs_removal_ignore_errors` is set).
//! * The labels of removed devices are wiped.
//!
//! Lock order: `state`, then locks of `metaslab`. It is not held during I/O, a wait for a txg, or
//! a change of the MOS.

mod begin;
mod copy;
mod end;
mod sync;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::planted::{BugSwitch, TestValue};
use base::rt::{Condvar, JoinHandle, Mutex, spawn};
use base::{Asize, Dva, Error, ObjectId, Result, Txg, VdevId};
use dsl::Mos;
use dsl::write::MosRead;
use metaslab::RangeTree;
use ondisk::config::PoolConfig;
use ondisk::removal::{JobState, MappingHeader, Removing};
use vdev::{IndirectEntry, IndirectMap};

use super::Writer;
use crate::indirect;
use crate::obsolete::mapping_header;

pub use begin::RemovalEstimate;
pub(super) use sync::store as store_record;

/// Feature of pools with removed vdevs.
pub(super) const DEVICE_REMOVAL: &str = "com.delphix:device_removal";
/// The record of the last removal, in the MOS directory.
pub(super) const REMOVING: &str = "com.delphix:removing";
/// Between two looks at what must change first.
const WAIT: Duration = Duration::from_millis(500);

/// Tunables of removals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovalTuning {
    /// `zfs_remove_max_segment`: bytes of one entry, at most 16 MiB.
    pub segment: u64,
    /// Bytes copied in one step.
    pub limit: u64,
    /// `zfs_removal_ignore_errors`: go on after bytes that cannot be read, and copies that differ.
    pub ignore_errors: bool,
}

impl Default for RemovalTuning {
    fn default() -> Self {
        RemovalTuning { segment: 16 << 20, limit: 16 << 20, ignore_errors: false }
    }
}

/// Planted bugs of removals ([`base::planted`]).
#[derive(Debug, Default)]
pub struct RemovalPlants {
    /// The last entry of each txg is not stored.
    pub lost_entry: BugSwitch,
    /// The copy of a block that is freed between step and txg is not freed.
    pub forgotten_free: BugSwitch,
    /// An entry's copies are one sector off.
    pub off_by_one: BugSwitch,
    /// Space is copied that was freed and is not allocatable yet.
    pub deferred_frees: BugSwitch,
    /// One more than the bytes after which the thread waits; 0: none. Not a bug.
    pub hold_after: TestValue,
}

/// What a txg copied.
#[derive(Default)]
struct CopiedSegments {
    entries: Vec<IndirectEntry>,
    bytes: u64,
}

/// The removal under way.
struct Evacuation {
    vdev: VdevId,
    record: Removing,
    mapping: ObjectId,
    births: ObjectId,
    /// Entries of the list of births.
    births_count: u64,
    header: MappingHeader,
    map: IndirectMap,
    /// Copied in txgs that are not written yet.
    copied: BTreeMap<Txg, CopiedSegments>,
    /// Everything before was copied, is being copied, or was free.
    next: u64,
    /// The thread is copying.
    busy: bool,
    /// Freed between the end of the mapping and `next`.
    freed: RangeTree,
    /// It is to be canceled, or its end is under way: the thread begins no step.
    ending: bool,
    /// Steps in a row that found no space, or could not write.
    failures: u32,
}

/// The removal of a pool.
#[derive(Default)]
pub(super) struct DeviceRemoval {
    state: Mutex<Option<Evacuation>>,
    changed: Condvar,
    /// There is one.
    active: AtomicBool,
    stopping: AtomicBool,
    /// Its end is under way: the labels of the devices may be there.
    wiping: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
    tuning: Mutex<RemovalTuning>,
    plants: RemovalPlants,
}

impl DeviceRemoval {
    /// Whether a vdev is being removed.
    pub(super) fn is_active(&self) -> bool {
        self.active.load(Relaxed)
    }

    /// Whether a txg has entries to store.
    pub(super) fn has_work(&self, txg: Txg) -> bool {
        let state = self.state.lock();
        state.as_ref().is_some_and(|evac| evac.copied.keys().any(|at| *at <= txg))
    }

    /// Ends the thread and waits for it, unless the pool is suspended: then it ends when it can.
    pub(super) fn stop(&self, wait: bool) {
        self.stopping.store(true, Relaxed);
        {
            let _state = self.state.lock();
            self.changed.notify_all();
        }
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|_| wait) {
            thread.join();
        }
    }

    /// Takes a stop back.
    pub(super) fn allow(&self) {
        self.stopping.store(false, Relaxed);
    }

    /// Waits for a change.
    fn pause(&self) {
        let mut state = self.state.lock();
        if !self.stopping.load(Relaxed) {
            self.changed.wait_timeout(&mut state, WAIT);
        }
    }

    fn set(&self, evacuation: Option<Evacuation>) {
        let mut state = self.state.lock();
        self.active.store(evacuation.is_some(), Relaxed);
        *state = evacuation;
        self.changed.notify_all();
    }
}

/// The stored record of the last removal.
///
/// # Errors
/// `Corrupt` for a record of another form; those of reading.
pub(crate) fn stored(mos: &dyn MosRead) -> Result<Option<Removing>> {
    let value = mos.zap_lookup(dsl::write::store::DIRECTORY, REMOVING.as_bytes())?;
    let Some(words) = value.and_then(|value| value.u64s()) else { return Ok(None) };
    let odd = || Error::corrupt("the record of a removal is too short");
    Removing::from_words(words.first_chunk().ok_or_else(odd)?).map(Some)
}

/// What the thread does next.
enum RemovalStep {
    More,
    /// Something must change first.
    Wait,
    End,
}

/// The body of the thread.
fn removal_thread(weak: &Weak<Writer>, removal: &DeviceRemoval) {
    loop {
        let Some(writer) = weak.upgrade() else { return };
        let step = writer.removal_step();
        // The pool may be closed meanwhile.
        drop(writer);
        match step {
            RemovalStep::More => {}
            RemovalStep::Wait => removal.pause(),
            RemovalStep::End => return,
        }
    }
}

impl Writer {
    /// Sets the tunables of removals, from the next step on.
    pub fn set_removal_tuning(&self, tuning: RemovalTuning) {
        *self.removal.tuning.lock() = tuning;
    }

    /// Planted bugs of removals.
    pub fn removal_plants(&self) -> &RemovalPlants {
        &self.removal.plants
    }

    /// The vdev that is being removed, and the record of its removal.
    pub fn removal(&self) -> Option<(VdevId, Removing)> {
        self.removal.state.lock().as_ref().map(|evac| (evac.vdev, evac.record))
    }

    /// Whether a removal is ending, and labels of its devices may still be there.
    pub fn removal_is_ending(&self) -> bool {
        self.removal.wiping.load(Relaxed)
    }

    /// Takes over a removal that was under way when the pool was last in use.
    ///
    /// # Errors
    /// `Corrupt` for impossible records; those of reading the MOS.
    pub(crate) fn load_removal(&self, mos: &Mos) -> Result<()> {
        let config: Arc<PoolConfig> = Arc::clone(&self.published.read().config);
        let tops = &config.vdev_tree.children;
        let Some(top) = tops.iter().find(|v| v.top.as_ref().is_some_and(|t| t.removing)) else {
            return Ok(());
        };
        let odd = || Error::corrupt("the records of a removal contradict each other");
        let vdev = VdevId(top.id);
        let record = stored(mos)?.filter(|r| r.state == JobState::Scanning);
        let record = record.filter(|r| r.vdev == Some(vdev)).ok_or_else(odd)?;
        let keys = top.top.as_ref().map(|t| t.indirect.clone()).unwrap_or_default();
        let (mapping, births) = keys.mapping.zip(keys.births).ok_or_else(odd)?;
        let header = mapping_header(mos, mapping.0)?;
        let map = indirect::load(mos, Some(mapping.0), Some(births.0))?;
        let end = map.entries().last().map_or(0, |last| last.src + last.len);
        let asize = top.top.as_ref().map_or(0, |t| t.asize);
        let tree = self.zio.tree();
        let is_place = |e: &IndirectEntry| {
            let end = e.dst_offset.saturating_add(e.len);
            let has_room = tree.top(e.dst_vdev).is_ok_and(|to| end <= to.asize());
            e.dst_vdev != vdev && tree.indirect(e.dst_vdev).is_none() && has_room
        };
        let wrong = !map.entries().iter().all(is_place);
        if header.max_offset < end || header.max_offset > asize || wrong {
            return Err(odd());
        }
        let info = MosRead::info(mos, births.0)?;
        let births_count = info.endian.u64(&info.bonus, 0).unwrap_or(0);
        self.removal.set(Some(Evacuation {
            vdev,
            record,
            mapping,
            births,
            births_count,
            header,
            map,
            copied: BTreeMap::new(),
            next: header.max_offset,
            busy: false,
            freed: RangeTree::new(),
            ending: false,
            failures: 0,
        }));
        self.note_to_copy();
        Ok(())
    }

    /// Starts the thread of a removal that has none.
    pub(crate) fn wake_removal(&self) {
        let mut thread = self.removal.thread.lock();
        if thread.is_some() || !self.removal.is_active() || self.removal.stopping.load(Relaxed) {
            return;
        }
        let weak = self.me.get().cloned().unwrap_or_default();
        let removal = Arc::clone(&self.removal);
        // Without a thread the next txg tries again.
        *thread = spawn("device_removal", move || removal_thread(&weak, &removal)).ok();
    }

    /// Tells the ledger how much is still to be copied.
    fn note_to_copy(&self) {
        let state = self.removal.state.lock();
        let left = state.as_ref().map(|evac| {
            let all = self.space.vdev_totals(evac.vdev).unwrap_or_default();
            (evac.vdev, all.allocated.saturating_sub(evac.done()))
        });
        self.ledger.set_leaving(left);
    }

    /// Frees an address on the vdev that is being removed; false if it is on another one.
    pub(super) fn free_leaving(&self, txg: Txg, dva: Dva) -> Result<bool> {
        let copies = {
            let mut state = self.removal.state.lock();
            let Some(evac) = state.as_mut().filter(|evac| evac.vdev == dva.vdev) else {
                return Ok(false);
            };
            let end = dva.offset.saturating_add(dva.asize.0);
            let mapped = evac.header.max_offset;
            let copies = evac.copies(dva.offset, end.min(mapped)).map_err(|e| e.at_dva(dva))?;
            self.space.free(txg, dva)?;
            let (from, to) = (dva.offset.max(mapped), end.min(evac.next));
            if from < to {
                evac.freed.add(from, to - from).map_err(|e| e.at_dva(dva))?;
            }
            copies
        };
        self.free_copies(txg, dva.vdev, copies)?;
        Ok(true)
    }

    /// Frees copies, and notes that their sources are obsolete.
    fn free_copies(&self, txg: Txg, vdev: VdevId, copies: Vec<(u64, Dva)>) -> Result<()> {
        for (source, copy) in copies {
            self.removed.note(vdev, source, copy.asize.0)?;
            self.space.free(txg, copy)?;
        }
        Ok(())
    }
}

impl Evacuation {
    /// Bytes that were copied, also in txgs that are not written yet.
    fn done(&self) -> u64 {
        let waiting: u64 = self.copied.values().map(|txg| txg.bytes).sum();
        self.map.mapped().saturating_add(waiting)
    }

    /// The copies of a range below the end of the mapping, with their sources.
    fn copies(&self, from: u64, to: u64) -> Result<Vec<(u64, Dva)>> {
        if from >= to {
            return Ok(Vec::new());
        }
        let parts = self.map.segments(from, to - from)?;
        let copy = |part: vdev::Segment| {
            let asize = Asize(part.len);
            let dva = Dva { vdev: part.vdev, offset: part.offset, asize, gang: false };
            (from + part.start, dva)
        };
        Ok(parts.into_iter().map(copy).collect())
    }
}
