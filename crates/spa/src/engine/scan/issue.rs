//! The second phase of a scan: blocks are read in device order, and repaired.
//!
//! # Theory
//! Threads take batches of neighbours from the queue, beside a slice that gathers
//! ([`Writer::gather_beside_reads`]) or alone ([`Writer::issue`]). A batch is read with one call of
//! [`vdev::Tree::scan`], which makes one operation of what lies together on a leaf, and
//! compares every copy and every column. What is wrong is written at the end of the batch with
//! one call of [`vdev::Tree::repair`].
//!
//! Reading needs no precaution: the bytes of a block that was freed meanwhile are wrong, and
//! nobody minds. Before wrong bytes are counted, repaired or reported, it must be certain that
//! the block is still in use, and that it stays so until the repair is written. The argument is
//! that of `zio`'s healing: the last announced txg T is loaded, then the queue is asked whether
//! the block was freed up to now, and then its metaslab is pinned, unless space freed after T
//! may have been given away there. So the block was in use in T and its space belongs to no
//! other block until the pin ends.
//!
//! If nothing can be read at an address, the content from another address of the block is
//! written there: also to leaves that missed the block's txg, because all of them may have.
//!
//! # Invariants
//! * A block is lost only if no address of it can be read while it is in use.
//! * At most [`BATCH_BYTES`] bytes of content are in memory for each thread, and as many bytes
//!   of parity and copies as the vdevs make of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::rt::Mutex;
use base::{Buf, Dva, Guid, Result, Txg};
use ondisk::zil::LogBlock;
use vdev::{BadCopy, MovedRepair, ReadOutcome, ReadReq, Repaired, Tree};
use zio::ErrorEntry;

use super::super::heal::PinnedMetaslabs;
use super::Writer;
use super::gather::Slice;
use super::queue::{GatheringEnd, PlaceRun, QueuedAddress, ScanBlock};

/// Bytes of content in one batch.
const BATCH_BYTES: u64 = 4 << 20;
/// Blocks in one batch.
const BATCH_BLOCKS: usize = 1024;
/// Threads for each top-level vdev, and in all.
const THREADS_VDEV: usize = 4;
const THREADS_MAX: usize = 16;
/// Attempts to pin a block while txgs end.
const PIN_ATTEMPTS: usize = 8;

/// What the second phase did.
#[derive(Debug, Default)]
pub(super) struct Issued {
    /// Bytes of the devices that were read, or need not be read any more.
    pub(super) bytes: u64,
    /// Bytes written.
    pub(super) repaired: u64,
    /// By leaf.
    pub(super) by_leaf: BTreeMap<Guid, u64>,
    /// Blocks without a readable address.
    pub(super) lost: Vec<ErrorEntry>,
    /// Blocks that are lost and have no bookmark in an error log, or could not be examined.
    pub(super) unnamed: u64,
}

/// Repairs of one batch, with the pins that keep their space.
#[derive(Default)]
struct Repairs {
    bad: Vec<(BadCopy, Txg)>,
    /// Blocks of a vdev that is being expanded.
    moved: Vec<MovedRepair>,
    pins: Vec<PinnedMetaslabs>,
}

impl Repairs {
    /// Adds copies of the block at an address, with its birth. On a removed vdev the births are
    /// those of its copies. If a block was copied in several txgs, each copy gets all of them,
    /// so that a leaf that cannot be repaired goes on to miss them.
    fn add(&mut self, tree: &Tree, (dva, birth): (Dva, Txg), data: Option<Buf>, bad: Vec<BadCopy>) {
        if tree.is_expanding(dva.vdev) {
            // Without its content nothing can be written.
            let (vdev, offset) = (dva.vdev, dva.offset);
            self.moved.extend(data.map(|data| MovedRepair { vdev, offset, data, birth, bad }));
            return;
        }
        let pieces = tree.pieces(dva.vdev, dva.offset, dva.asize.0, birth).unwrap_or_default();
        let births: BTreeSet<Txg> = pieces.iter().filter_map(|piece| piece.birth).collect();
        for copy in bad {
            self.bad.extend(births.iter().map(|birth| (copy.clone(), *birth)));
        }
    }
}

fn error_entry(block: &ScanBlock) -> Option<ErrorEntry> {
    let level = u8::try_from(block.at.level).ok()?;
    let dmu::traverse::Bookmark { objset, object, blkid, .. } = block.at;
    Some(ErrorEntry { objset, object, level, blkid, birth: block.block.head.birth.0 })
}

impl Writer {
    /// Reads and repairs what waits: everything, or the largest runs. Returns early if the
    /// scan is to stop.
    pub(super) fn issue(&self, all: bool) -> Issued {
        let mut by_vdev: BTreeMap<u32, Vec<PlaceRun>> = BTreeMap::new();
        for run in self.scans.queue.runs(all) {
            by_vdev.entry(run.vdev).or_default().push(run);
        }
        let lists: Vec<Mutex<Vec<PlaceRun>>> = by_vdev
            .into_values()
            .map(|mut runs| {
                runs.reverse();
                Mutex::new(runs)
            })
            .collect();
        let done = Mutex::new(Issued::default());
        let threads = (lists.len() * THREADS_VDEV).min(THREADS_MAX);
        if threads > 0 {
            base::rt::fan_out(threads, |i| {
                // Each thread begins at a list of its own, and helps with the others then.
                for n in 0..lists.len() {
                    if let Some(list) = lists.get((i + n) % lists.len()) {
                        self.issue_list(list, &done);
                    }
                }
            });
        }
        done.into_inner()
    }

    /// Gathers one slice, while other threads read the largest runs of what waits.
    pub(super) fn gather_beside_reads(
        &self,
        gather: impl Fn() -> Result<Slice> + Sync,
    ) -> (Result<Slice>, Issued) {
        let queue = &self.scans.queue;
        let done = Mutex::new(Issued::default());
        let slice = Mutex::new(None);
        let threads = (self.zio.tree().top_ids().count() * THREADS_VDEV).min(THREADS_MAX);
        queue.begin_gathering();
        base::rt::fan_out(1 + threads, |i| {
            if i == 0 {
                // Also when it unwinds: the readers wait for it.
                let _end = GatheringEnd(queue);
                *slice.lock() = Some(gather());
                return;
            }
            let _reader = queue.begin_reader();
            while !self.scans.is_interrupted() {
                let Some(batch) = queue.next_batch(BATCH_BLOCKS, BATCH_BYTES) else { return };
                self.issue_batch(&batch, &done);
                queue.done(&batch);
            }
        });
        let slice = slice.into_inner();
        let slice = slice.unwrap_or_else(|| Err(base::bug!("a slice was not gathered")));
        (slice, done.into_inner())
    }

    fn issue_list(&self, list: &Mutex<Vec<PlaceRun>>, done: &Mutex<Issued>) {
        while !self.scans.is_interrupted() {
            let batch = {
                let mut runs = list.lock();
                let Some(run) = runs.last_mut() else { return };
                let batch = self.scans.queue.take(run, BATCH_BLOCKS, BATCH_BYTES);
                if !self.scans.queue.has(run) {
                    runs.pop();
                }
                batch
            };
            if !batch.is_empty() {
                self.issue_batch(&batch, done);
                self.scans.queue.done(&batch);
            }
        }
    }

    fn issue_batch(&self, batch: &[QueuedAddress], done: &Mutex<Issued>) {
        let tree = self.zio.tree();
        let plain: Vec<&QueuedAddress> = batch.iter().filter(|e| !e.dva.gang).collect();
        let reqs: Vec<ReadReq> =
            plain.iter().map(|e| self.zio.scan_request(&e.block.block, e.dva)).collect();
        let right =
            |i: usize, bytes: &[u8]| plain.get(i).is_some_and(|e| self.accepts(&e.block, bytes));
        let outcomes = tree.scan(&reqs, &right);
        let mut issued = Issued::default();
        let mut repairs = Repairs::default();
        for (entry, outcome) in plain.into_iter().zip(outcomes) {
            self.judge(&tree, entry, outcome, &mut repairs, &mut issued);
        }
        for entry in batch.iter().filter(|e| e.dva.gang) {
            self.issue_gang(&tree, entry, &mut repairs, &mut issued);
        }
        if !repairs.bad.is_empty() || !repairs.moved.is_empty() {
            // The tree may have changed since the blocks were read.
            let tree = self.zio.tree();
            let mut repaired = tree.repair_moved(&repairs.moved);
            repaired.add(tree.repair(&repairs.bad));
            issued.add_repaired(repaired);
        }
        drop(repairs);
        issued.bytes += batch.iter().map(|e| e.dva.asize.0).sum::<u64>();
        done.lock().add(issued);
    }

    fn accepts(&self, block: &ScanBlock, bytes: &[u8]) -> bool {
        match &block.log {
            Some(ptr) => LogBlock::parse(bytes, ptr).is_ok(),
            None => self.zio.is_right(&block.block, bytes),
        }
    }

    /// Pins an address of an entry that is being read; `None` if the block is freed, or may
    /// be.
    fn pin_entry(&self, entry: &QueuedAddress, dva: Dva) -> Option<PinnedMetaslabs> {
        for _ in 0..PIN_ATTEMPTS {
            // In this order: see the module head.
            let since = self.zio.healing_since()?;
            if !self.scans.queue.is_in_use(entry.dva) {
                return None;
            }
            if let Ok(pin) = PinnedMetaslabs::new(&self.space, &self.zio.tree(), dva, since) {
                match pin {
                    Some(pin) => return Some(pin),
                    // A txg has ended and is about to be announced.
                    None => self.scans.wait_announced(since),
                }
            } else {
                return None;
            }
        }
        None
    }

    /// Handles what was found at a plain address.
    fn judge(
        &self,
        tree: &Arc<Tree>,
        entry: &QueuedAddress,
        outcome: ReadOutcome,
        repairs: &mut Repairs,
        issued: &mut Issued,
    ) {
        let clean = outcome.data.is_ok() && outcome.report.bad.is_empty();
        if clean {
            return;
        }
        let birth = entry.block.block.effective_physical_birth();
        let Some(pin) = self.pin_entry(entry, entry.dva) else {
            self.note_unpinned(entry, issued);
            return;
        };
        if let Ok(data) = outcome.data {
            tree.count_damage(&outcome.report.bad);
            repairs.add(tree, (entry.dva, birth), Some(data), outcome.report.bad);
            repairs.pins.push(pin);
            return;
        }
        // Again, now that the space is known to be the block's; this counts the errors.
        let mut req = self.zio.scan_request(&entry.block.block, entry.dva);
        req.speculative = entry.block.log.is_some();
        let accepts = |_: usize, bytes: &[u8]| self.accepts(&entry.block, bytes);
        let again = |req: ReadReq| self.zio.tree().scan(&[req], &accepts).pop();
        let Some(second) = again(req) else { return };
        if let Ok(data) = second.data {
            repairs.add(tree, (entry.dva, birth), Some(data), second.report.bad);
            repairs.pins.push(pin);
            return;
        }
        let block = &entry.block.block;
        let copy = match entry.block.log {
            None => self.zio.read_physical(block).ok(),
            Some(_) => None,
        };
        let Some(good) = copy else {
            // Reported once, for the first address.
            if entry.first {
                self.note_lost(&entry.block, issued);
            }
            return;
        };
        let at = entry.dva;
        if let Ok(repaired) = self.zio.tree().repair_whole(at.vdev, at.offset, &good, birth) {
            issued.add_repaired(repaired);
        }
        // Copies that could not be written.
        req.speculative = true;
        match again(req) {
            Some(ReadOutcome { data: Ok(data), report }) => {
                repairs.add(tree, (entry.dva, birth), Some(data), report.bad);
                repairs.pins.push(pin);
            }
            _ => issued.unnamed += 1,
        }
    }

    /// A block with damage could not be pinned. If it was freed, that is no damage.
    fn note_unpinned(&self, entry: &QueuedAddress, issued: &mut Issued) {
        if self.scans.queue.is_in_use(entry.dva) && self.zio.healing_since().is_some() {
            issued.unnamed += 1;
        }
    }

    fn note_lost(&self, block: &ScanBlock, issued: &mut Issued) {
        match error_entry(block) {
            Some(entry) => issued.lost.push(entry),
            None => issued.unnamed += 1,
        }
    }

    fn issue_gang(
        &self,
        tree: &Arc<Tree>,
        entry: &QueuedAddress,
        repairs: &mut Repairs,
        issued: &mut Issued,
    ) {
        let block = &entry.block.block;
        match self.zio.scan_gang(block, entry.dva) {
            Ok(pieces) => {
                for piece in pieces {
                    let bad = piece.outcome.report.bad;
                    let broken = piece.outcome.data.is_err();
                    if bad.is_empty() && !broken {
                        continue;
                    }
                    let Some(pin) = self.pin_entry(entry, piece.dva) else {
                        self.note_unpinned(entry, issued);
                        continue;
                    };
                    match piece.other.filter(|_| broken) {
                        Some(good) => {
                            let at = piece.dva;
                            match tree.repair_whole(at.vdev, at.offset, &good, piece.birth) {
                                Ok(repaired) => issued.add_repaired(repaired),
                                Err(_) => issued.unnamed += 1,
                            }
                        }
                        None => tree.count_damage(&bad),
                    }
                    let data = piece.outcome.data.ok();
                    repairs.add(tree, (piece.dva, piece.birth), data, bad);
                    repairs.pins.push(pin);
                }
            }
            Err(_) => {
                let Some(_pin) = self.pin_entry(entry, entry.dva) else {
                    self.note_unpinned(entry, issued);
                    return;
                };
                match self.zio.scan_gang(block, entry.dva) {
                    Ok(_) => {}
                    Err(_) if self.zio.read_physical(block).is_ok() => issued.unnamed += 1,
                    Err(_) if entry.first => self.note_lost(&entry.block, issued),
                    Err(_) => {}
                }
            }
        }
    }
}

impl Issued {
    fn add_repaired(&mut self, repaired: Repaired) {
        self.repaired += repaired.total();
        for (leaf, bytes) in repaired.bytes {
            *self.by_leaf.entry(leaf).or_default() += bytes;
        }
    }

    fn add(&mut self, other: Issued) {
        self.bytes += other.bytes;
        self.repaired += other.repaired;
        for (leaf, bytes) in other.by_leaf {
            *self.by_leaf.entry(leaf).or_default() += bytes;
        }
        self.lost.extend(other.lost);
        self.unnamed += other.unnamed;
    }
}
