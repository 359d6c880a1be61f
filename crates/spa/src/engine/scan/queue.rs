//! The blocks that a scan has gathered and not read yet, by place.
//!
//! # Theory
//! The queue is sorted by vdev and offset, so that reads are in device order. Its memory is
//! bounded ([`ScanQueue::is_full`]). When it is full, the largest runs of neighbours are read
//! ([`ScanQueue::runs`]); small ones wait until later blocks join them.
//!
//! A block may be freed while it waits, and its space be given to another block, whose bytes
//! would look like damage. So each free removes the block from the queue. A block may as well
//! be freed between the txg T whose tree is walked and the moment when it is added. So the
//! frees of all txgs after T are kept, and a block among them is not added.
//!
//! A block that is being read stays known until its repairs are written
//! ([`ScanQueue::is_in_use`]): a block with wrong bytes that was freed meanwhile is no damage.
//! The end of a scan forgets these blocks, because frees are not reported any more.
//!
//! The thread may still gather for a scan that was replaced by another one meanwhile. The frees
//! of that time are not known, so what it adds is left out: each scan opens the queue under a
//! number of its own.
//!
//! # Invariants
//! * While a scan runs, each block in the queue was in use when the last announced txg ended
//!   (`zio::Zio::announce`), or is removed before the next one is announced.
//! * The frees of a txg are forgotten when no slice walks an older tree.
//!
//! Lock order: the queue's lock is a leaf.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use base::rt::Mutex;
use base::{Dva, Txg};
use dmu::traverse::Bookmark;
use ondisk::blkptr::Block;
use ondisk::zil::LogPtr;

/// Bytes of memory that one address takes in the queue, besides its block.
const ENTRY_BYTES: usize = 96;
/// Bytes between two blocks that still belong to one run.
const RUN_GAP: u64 = 2 << 20;

/// Vdev and offset.
pub(super) type Place = (u32, u64);

pub(super) fn place_of(dva: Dva) -> Place {
    (dva.vdev.0, dva.offset)
}

/// A block to verify.
#[derive(Debug)]
pub(super) struct ScanBlock {
    pub(super) block: Block,
    /// Where it was met first.
    pub(super) at: Bookmark,
    /// A block of an intent log is verified by this.
    pub(super) log: Option<Box<LogPtr>>,
}

/// One address of a block.
#[derive(Clone, Debug)]
pub(super) struct QueuedAddress {
    pub(super) block: Arc<ScanBlock>,
    pub(super) dva: Dva,
    /// It is the block's first address.
    pub(super) first: bool,
}

/// Neighbours on a vdev: the first and the last offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlaceRun {
    pub(super) vdev: u32,
    pub(super) first: u64,
    pub(super) last: u64,
}

#[derive(Default)]
struct Waiting {
    entries: BTreeMap<Place, QueuedAddress>,
    /// Being read.
    issuing: BTreeSet<Place>,
    /// Frees of the txgs after the tree that is walked.
    freed: BTreeMap<Txg, HashSet<Place>>,
    /// The txg of that tree.
    walked: Option<Txg>,
    /// Bytes of the devices that waited and were freed since the last call of
    /// [`ScanQueue::take_dropped`].
    dropped: u64,
    memory: usize,
    /// The number of the scan that may add.
    serial: u64,
}

/// The queue of a pool.
pub(super) struct ScanQueue {
    /// Frees are reported.
    active: AtomicBool,
    waiting: Mutex<Waiting>,
    /// Bytes of memory.
    limit: AtomicUsize,
}

fn memory_of(entry: &QueuedAddress) -> usize {
    ENTRY_BYTES + if entry.first { size_of::<ScanBlock>() } else { 0 }
}

impl ScanQueue {
    pub(super) fn new(limit: usize) -> ScanQueue {
        let (active, waiting) = (AtomicBool::new(false), Mutex::default());
        ScanQueue { active, waiting, limit: AtomicUsize::new(limit) }
    }

    pub(super) fn set_limit(&self, bytes: usize) {
        self.limit.store(bytes, Relaxed);
    }

    /// From now on frees are noted. What is added must come from trees of later txgs than the
    /// one that is being written. Returns the number with which the new scan adds.
    pub(super) fn open(&self) -> u64 {
        self.active.store(true, Relaxed);
        let mut waiting = self.waiting.lock();
        waiting.serial += 1;
        waiting.serial
    }

    /// Forgets everything; nothing is added until the queue is opened again.
    pub(super) fn close(&self) {
        self.active.store(false, Relaxed);
        let mut waiting = self.waiting.lock();
        *waiting = Waiting { serial: waiting.serial + 1, ..Waiting::default() };
    }

    /// A block was freed in the txg that is being written.
    pub(super) fn freed(&self, txg: Txg, block: &Block) {
        if !self.active.load(Relaxed) {
            return;
        }
        let mut waiting = self.waiting.lock();
        for dva in block.dvas() {
            let place = place_of(dva);
            if let Some(entry) = waiting.entries.remove(&place) {
                waiting.memory -= memory_of(&entry);
                waiting.dropped += entry.dva.asize.0;
            }
            waiting.issuing.remove(&place);
            waiting.freed.entry(txg).or_default().insert(place);
        }
    }

    /// A txg was announced: its frees are complete.
    pub(super) fn announced(&self, txg: Txg) {
        if self.active.load(Relaxed) {
            let mut waiting = self.waiting.lock();
            let keep_after = waiting.walked.map_or(txg, |walked| walked.min(txg));
            waiting.freed.retain(|&of, _| of > keep_after);
        }
    }

    /// The tree of this txg, which was announced, or of a later one is walked from now on.
    pub(super) fn begin_slice(&self, since: Txg) {
        let mut waiting = self.waiting.lock();
        waiting.walked = Some(since);
        waiting.freed.retain(|&of, _| of > since);
    }

    pub(super) fn end_slice(&self) {
        self.waiting.lock().walked = None;
    }

    /// Adds addresses that the walk of a scan met, except those freed since the txg of its tree;
    /// nothing if that scan is over. Returns the bytes on the devices that were not added because they are freed, or wait
    /// already.
    pub(super) fn add(&self, serial: u64, found: impl Iterator<Item = QueuedAddress>) -> u64 {
        let mut waiting = self.waiting.lock();
        if waiting.serial != serial {
            return 0;
        }
        let mut left_out = 0;
        for entry in found {
            let place = place_of(entry.dva);
            let known = waiting.entries.contains_key(&place)
                || waiting.freed.values().any(|places| places.contains(&place));
            if known {
                left_out += entry.dva.asize.0;
                continue;
            }
            waiting.memory += memory_of(&entry);
            waiting.entries.insert(place, entry);
        }
        left_out
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.lock().memory >= self.limit.load(Relaxed)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.lock().entries.is_empty()
    }

    /// Bytes of memory in use.
    pub(super) fn memory(&self) -> usize {
        self.waiting.lock().memory
    }

    /// Bytes of the devices that were freed while they waited, since the last call.
    pub(super) fn take_dropped(&self) -> u64 {
        std::mem::take(&mut self.waiting.lock().dropped)
    }

    /// The runs to read, in order: all of them, or the largest ones that free an eighth of the
    /// memory.
    pub(super) fn runs(&self, all: bool) -> Vec<PlaceRun> {
        let waiting = self.waiting.lock();
        let mut runs: Vec<(PlaceRun, u64, usize)> = Vec::new();
        let mut end = 0;
        for (&(vdev, offset), entry) in &waiting.entries {
            let asize = entry.dva.asize.0;
            match runs.last_mut() {
                Some((run, bytes, memory))
                    if run.vdev == vdev && offset <= u64::saturating_add(end, RUN_GAP) =>
                {
                    run.last = offset;
                    *bytes += asize;
                    *memory += memory_of(entry);
                }
                _ => {
                    let run = PlaceRun { vdev, first: offset, last: offset };
                    runs.push((run, asize, memory_of(entry)));
                }
            }
            end = offset.saturating_add(asize);
        }
        if !all {
            runs.sort_by_key(|run| std::cmp::Reverse(run.1));
            let mut wanted = self.limit.load(Relaxed) / 8;
            let few = runs.iter().take_while(|run| {
                let more = wanted > 0;
                wanted = wanted.saturating_sub(run.2);
                more
            });
            let few = few.count();
            runs.truncate(few);
            runs.sort_by_key(|run| (run.0.vdev, run.0.first));
        }
        runs.into_iter().map(|run| run.0).collect()
    }

    /// Takes the next entries of a run to read, at most `count` and about `bytes` bytes of
    /// content. The caller calls [`ScanQueue::done`] with them.
    pub(super) fn take(&self, run: &mut PlaceRun, count: usize, bytes: u64) -> Vec<QueuedAddress> {
        let mut waiting = self.waiting.lock();
        let range = (Included((run.vdev, run.first)), Included((run.vdev, run.last)));
        let mut left = bytes;
        let mut places = Vec::new();
        for (&place, entry) in waiting.entries.range(range).take(count) {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(entry.block.block.psize.0);
            places.push(place);
        }
        let mut taken = Vec::with_capacity(places.len());
        for place in places {
            if let Some(entry) = waiting.entries.remove(&place) {
                waiting.memory -= memory_of(&entry);
                waiting.issuing.insert(place);
                taken.push(entry);
            }
            run.first = place.1.saturating_add(1);
        }
        taken
    }

    /// Whether an entry that was taken is not freed yet.
    pub(super) fn is_in_use(&self, dva: Dva) -> bool {
        self.waiting.lock().issuing.contains(&place_of(dva))
    }

    /// The entries were read.
    pub(super) fn done(&self, entries: &[QueuedAddress]) {
        let mut waiting = self.waiting.lock();
        for entry in entries {
            waiting.issuing.remove(&place_of(entry.dva));
        }
    }

    /// Whether a run has entries left.
    pub(super) fn has(&self, run: &PlaceRun) -> bool {
        let waiting = self.waiting.lock();
        let end = Excluded((run.vdev, run.last.saturating_add(1)));
        let range = (Included((run.vdev, run.first)), end);
        run.first <= run.last && waiting.entries.range(range).next().is_some()
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
