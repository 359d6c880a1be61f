//! The blocks that a scan has gathered and not read yet, by place.
//!
//! # Theory
//! The queue is sorted by vdev and offset, so that reads are in device order. Its memory is
//! bounded ([`ScanQueue::is_full`]). When it is full, the largest runs of neighbours are read
//! ([`ScanQueue::runs`]); small ones wait until later blocks join them.
//!
//! Gathering and reading go on side by side. While a slice gathers, reader threads take batches
//! of the largest runs as soon as the queue is half full ([`ScanQueue::next_batch`]). The
//! gathering thread waits for them when it is full ([`ScanQueue::wait_for_room`]). So the
//! devices have work while metadata is read.
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
//! * A thread waits for room only while there is a reader, and a reader waits for blocks only
//!   while a slice gathers. The end of either wakes the other.
//!
//! Lock order: the queue's lock is a leaf.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use base::rt::{Condvar, Mutex};
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
    /// A slice gathers, and readers may wait for what it adds.
    gathering: bool,
    /// ScanReader threads beside it.
    readers: usize,
    /// What they read next: for each vdev the runs in reverse order.
    next_runs: BTreeMap<u32, Vec<PlaceRun>>,
    /// The vdev of the last batch.
    last_vdev: u32,
}

/// The queue of a pool.
pub(super) struct ScanQueue {
    /// Frees are reported.
    active: AtomicBool,
    waiting: Mutex<Waiting>,
    /// Signalled when readers have work, and when a slice has gathered.
    filled: Condvar,
    /// Signalled when there is room, and when a reader ends.
    drained: Condvar,
    /// Bytes of memory.
    limit: AtomicUsize,
}

fn memory_of(entry: &QueuedAddress) -> usize {
    ENTRY_BYTES + if entry.first { size_of::<ScanBlock>() } else { 0 }
}

impl ScanQueue {
    pub(super) fn new(limit: usize) -> ScanQueue {
        ScanQueue {
            active: AtomicBool::new(false),
            waiting: Mutex::default(),
            filled: Condvar::new(),
            drained: Condvar::new(),
            limit: AtomicUsize::new(limit),
        }
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
        let Waiting { serial, gathering, readers, .. } = *waiting;
        *waiting = Waiting { serial: serial + 1, gathering, readers, ..Waiting::default() };
        self.drained.notify_all();
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
                || waiting.issuing.contains(&place)
                || waiting.freed.values().any(|places| places.contains(&place));
            if known {
                left_out += entry.dva.asize.0;
                continue;
            }
            waiting.memory += memory_of(&entry);
            waiting.entries.insert(place, entry);
        }
        if waiting.gathering && waiting.memory >= self.limit.load(Relaxed) / 2 {
            self.filled.notify_all();
        }
        left_out
    }

    /// A slice begins to gather, with readers beside it. [`GatheringEnd`] ends it.
    pub(super) fn begin_gathering(&self) {
        self.waiting.lock().gathering = true;
    }

    /// A reader begins; it ends when the value is dropped.
    pub(super) fn begin_reader(&self) -> ScanReader<'_> {
        self.waiting.lock().readers += 1;
        ScanReader(self)
    }

    /// The next entries for a reader, at most `count` and about `bytes` bytes of content.
    /// Waits until the queue is half full; `None` when the slice has gathered. The caller calls
    /// [`ScanQueue::done`] with them.
    pub(super) fn next_batch(&self, count: usize, bytes: u64) -> Option<Vec<QueuedAddress>> {
        let mut waiting = self.waiting.lock();
        loop {
            let limit = self.limit.load(Relaxed);
            if !waiting.gathering {
                return None;
            }
            if waiting.next_runs.is_empty() && waiting.memory >= limit / 2 {
                for run in waiting.largest_runs(limit / 8).into_iter().rev() {
                    waiting.next_runs.entry(run.vdev).or_default().push(run);
                }
            }
            if waiting.next_runs.is_empty() {
                self.filled.wait(&mut waiting);
                continue;
            }
            let batch = waiting.take_next(count, bytes);
            if !batch.is_empty() {
                self.drained.notify_all();
                return Some(batch);
            }
        }
    }

    /// Waits while the queue is full and readers empty it.
    pub(super) fn wait_for_room(&self, interrupted: impl Fn() -> bool) {
        let mut waiting = self.waiting.lock();
        while waiting.memory >= self.limit.load(Relaxed) && waiting.readers > 0 && !interrupted() {
            self.drained.wait(&mut waiting);
        }
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
        match all {
            true => waiting.runs().into_iter().map(|run| run.at).collect(),
            false => waiting.largest_runs(self.limit.load(Relaxed) / 8),
        }
    }

    /// Takes the next entries of a run to read, at most `count` and about `bytes` bytes of
    /// content. The caller calls [`ScanQueue::done`] with them.
    pub(super) fn take(&self, run: &mut PlaceRun, count: usize, bytes: u64) -> Vec<QueuedAddress> {
        self.waiting.lock().take(run, count, bytes)
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
        self.waiting.lock().has(run)
    }
}

/// The end of gathering, when it is dropped: readers get nothing more.
pub(super) struct GatheringEnd<'a>(pub(super) &'a ScanQueue);

impl Drop for GatheringEnd<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.lock();
        waiting.gathering = false;
        waiting.next_runs.clear();
        self.0.filled.notify_all();
    }
}

/// A thread that reads beside a slice.
pub(super) struct ScanReader<'a>(&'a ScanQueue);

impl Drop for ScanReader<'_> {
    fn drop(&mut self) {
        self.0.waiting.lock().readers -= 1;
        self.0.drained.notify_all();
    }
}

/// A run, and what it has.
struct MeasuredRun {
    at: PlaceRun,
    /// Bytes on the device.
    asize: u64,
    /// Bytes of the queue's memory.
    memory: usize,
}

impl Waiting {
    /// All runs, in order.
    fn runs(&self) -> Vec<MeasuredRun> {
        let mut runs: Vec<MeasuredRun> = Vec::new();
        let mut end = 0;
        for (&(vdev, offset), entry) in &self.entries {
            let (asize, memory) = (entry.dva.asize.0, memory_of(entry));
            match runs.last_mut() {
                Some(run) if run.at.vdev == vdev && offset <= u64::saturating_add(end, RUN_GAP) => {
                    run.at.last = offset;
                    run.asize += asize;
                    run.memory += memory;
                }
                _ => {
                    let at = PlaceRun { vdev, first: offset, last: offset };
                    runs.push(MeasuredRun { at, asize, memory });
                }
            }
            end = offset.saturating_add(asize);
        }
        runs
    }

    /// The largest runs that free this many bytes of memory, in order.
    fn largest_runs(&self, mut wanted: usize) -> Vec<PlaceRun> {
        let mut runs = self.runs();
        runs.sort_by_key(|run| std::cmp::Reverse(run.asize));
        let few = runs.iter().take_while(|run| {
            let more = wanted > 0;
            wanted = wanted.saturating_sub(run.memory);
            more
        });
        let few = few.count();
        runs.truncate(few);
        runs.sort_by_key(|run| (run.at.vdev, run.at.first));
        runs.into_iter().map(|run| run.at).collect()
    }

    fn take(&mut self, run: &mut PlaceRun, count: usize, bytes: u64) -> Vec<QueuedAddress> {
        let range = (Included((run.vdev, run.first)), Included((run.vdev, run.last)));
        let mut left = bytes;
        let mut places = Vec::new();
        for (&place, entry) in self.entries.range(range).take(count) {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(entry.block.block.psize.0);
            places.push(place);
        }
        let mut taken = Vec::with_capacity(places.len());
        for place in places {
            if let Some(entry) = self.entries.remove(&place) {
                self.memory -= memory_of(&entry);
                self.issuing.insert(place);
                taken.push(entry);
            }
            run.first = place.1.saturating_add(1);
        }
        taken
    }

    fn has(&self, run: &PlaceRun) -> bool {
        let end = Excluded((run.vdev, run.last.saturating_add(1)));
        let range = (Included((run.vdev, run.first)), end);
        run.first <= run.last && self.entries.range(range).next().is_some()
    }

    /// Takes a batch from the next vdev's runs; nothing if what was there is freed.
    fn take_next(&mut self, count: usize, bytes: u64) -> Vec<QueuedAddress> {
        let after = self.next_runs.range(self.last_vdev.saturating_add(1)..).next();
        let Some(vdev) = after.or(self.next_runs.first_key_value()).map(|(&vdev, _)| vdev) else {
            return Vec::new();
        };
        self.last_vdev = vdev;
        let Some(mut runs) = self.next_runs.remove(&vdev) else { return Vec::new() };
        let mut taken = Vec::new();
        if let Some(run) = runs.last_mut() {
            taken = self.take(run, count, bytes);
            if !self.has(run) {
                runs.pop();
            }
        }
        if !runs.is_empty() {
            self.next_runs.insert(vdev, runs);
        }
        taken
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
