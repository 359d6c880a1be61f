//! The first phase of a scan: block pointers are gathered from the trees.
//!
//! # Theory
//! The datasets are visited in the order of chapter 04 §17.2: the MOS, the pool's empty
//! origin, and then along the graph, each dataset after the snapshot before it. Each is walked
//! in a fixed order ([`dmu::walk_in_order`]), in slices. A slice walks the tree of an announced
//! txg T or of a later one. So everything it meets was in use in T, and [`super::queue`]
//! knows what was freed since.
//!
//! A block of metadata may be freed and overwritten while a slice walks towards it. Then it
//! cannot be read, which is no damage. So after an error the slice tests whether space freed
//! after T may have been given away ([`metaslab::Space::hold`]). If so, it stops, and the next
//! slice begins there with a later tree.
//!
//! Changes of the dataset graph are events. The sync thread applies each to the position when
//! the change is in the MOS. A slice that ends applies those that came since it began to the
//! position that it has reached ([`super::ScanRun::events`]).
//!
//! # Invariants
//! * A dataset that is walked to its end is followed by those that come after it in the MOS as
//!   of the slice's begin or later, changed by the events since. A slice may read a change of
//!   which the event is still to come; for all but an exchange of heads, which nothing makes
//!   yet, that leads to a second visit at worst.
//! * A block that cannot be read in the walk is itself in the queue, where its copies are
//!   verified. What is below it cannot be scanned; the scan is incomplete then.

use std::sync::Arc;
use std::time::Duration;

use base::rt::Instant;
use base::{Buf, Error, ErrorKind, Result, Txg};
use dmu::traverse::Bookmark;
use dmu::{OnError, OrderedWalk, WalkVisitor, walk_in_order};
use dsl::DslDir;
use dsl::write::scan::{NO_DATASET, ScanPosition};
use dsl::write::{MosRead, links};
use ondisk::dslphys::{BookmarkPlace, DslDatasetPhys};
use ondisk::scan::{Scan, ScanFunc};
use ondisk::zil::{LogPtr, Record, ZilHeader};
use ondisk::{BlkPtr, ObjsetPhys};
use vdev::{Tree, TxgRanges};
use zio::{Access, ErrorEntry, Io};

use super::queue::{QueuedAddress, ScanBlock};
use super::{ScanLimits, Writer};
use crate::audit::log::{LogVisitor, log_header, walk_log};

/// Entries that are added to the queue at once.
const CHUNK: usize = 512;
/// Reads of metadata in flight.
const READS: usize = 16;
/// How the walk reads: past the cache, with the priority of read-ahead.
const READ: Io = Io { access: Access::Prescient, ..Io::SCAN };

/// What a slice found.
#[derive(Debug, Default)]
pub(super) struct Slice {
    /// The position that it has reached.
    pub(super) position: Option<ScanPosition>,
    /// Bytes of the devices that it met.
    pub(super) examined: u64,
    /// Those that need not be read.
    pub(super) skipped: u64,
    /// Metadata that cannot be read, but by no fault of a device.
    pub(super) errors: Vec<ErrorEntry>,
    /// Something could not be walked.
    pub(super) incomplete: bool,
    /// The dataset does not exist in this txg: an event is under way.
    pub(super) no_dataset: bool,
}

/// Gathers the pointers of one slice.
struct Gatherer<'a> {
    writer: &'a Writer,
    /// The number of the scan.
    serial: u64,
    since: Txg,
    /// What was written later is on all leaves.
    max_txg: Txg,
    /// Of a snapshot: what was born later came from a change since the slice began. A block that moved was
    /// written later, and belongs to the snapshot by its birth.
    max_birth: Txg,
    /// For a resilver: what is missing somewhere on each vdev.
    partial: Option<&'a [TxgRanges]>,
    /// For a resilver of a pool with removed vdevs: its tree.
    removed: Option<Arc<Tree>>,
    limits: ScanLimits,
    began: Instant,
    left: usize,
    found: Vec<QueuedAddress>,
    slice: Slice,
}

fn asize_of(block: &ondisk::blkptr::Block) -> u64 {
    block.dvas().map(|dva| dva.asize.0).sum()
}

impl Gatherer<'_> {
    fn is_wanted(&self, block: &ondisk::blkptr::Block) -> bool {
        let Some(partial) = self.partial else { return true };
        let birth = block.effective_physical_birth();
        let misses =
            |vdev: u32, birth| partial.get(vdev as usize).is_some_and(|t| t.contains(birth));
        // The members of a gang may be on any vdev.
        if block.is_gang() {
            return self.removed.is_some() || (0..partial.len() as u32).any(|v| misses(v, birth));
        }
        let Some(tree) = &self.removed else {
            return block.dvas().any(|dva| misses(dva.vdev.0, birth));
        };
        // The copies of blocks on removed vdevs have births of their own.
        block.dvas().any(|dva| match tree.pieces(dva.vdev, dva.offset, dva.asize.0, birth) {
            Ok(pieces) => pieces.iter().any(|p| misses(p.vdev.0, p.birth.unwrap_or(birth))),
            Err(_) => true,
        })
    }

    fn note(&mut self, bp: &BlkPtr, at: Bookmark, log: Option<Box<LogPtr>>) {
        let BlkPtr::Block(block) = bp else { return };
        let late = block.effective_physical_birth() > self.max_txg;
        if late || bp.allocation_birth() > self.max_birth {
            return;
        }
        let asize = asize_of(block);
        self.slice.examined += asize;
        self.left = self.left.saturating_sub(1);
        if !self.is_wanted(block) || self.writer.plants.scan.skips(block) {
            self.slice.skipped += asize;
            return;
        }
        let block = Arc::new(ScanBlock { block: *block, at, log });
        for (i, dva) in block.block.dvas().enumerate() {
            self.found.push(QueuedAddress { block: Arc::clone(&block), dva, first: i == 0 });
        }
        if self.found.len() >= CHUNK {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let scans = &self.writer.scans;
        self.slice.skipped += scans.queue.add(self.serial, self.found.drain(..));
        scans.queue.wait_for_room(|| scans.is_interrupted());
    }
}

fn entry_of(at: Bookmark, birth: Txg) -> Option<ErrorEntry> {
    let level = u8::try_from(at.level).ok()?;
    let Bookmark { objset, object, blkid, .. } = at;
    Some(ErrorEntry { objset, object, level, blkid, birth: birth.0 })
}

impl WalkVisitor for Gatherer<'_> {
    fn visit(&mut self, bp: &BlkPtr, at: Bookmark) {
        self.note(bp, at, None);
    }

    fn unreadable(&mut self, error: Error, at: Bookmark) -> OnError {
        if !self.writer.is_still_of(self.since) {
            return OnError::Stop;
        }
        self.slice.incomplete = true;
        // The queue finds what is the matter with the copies. A block that is right and makes
        // no sense is found here only.
        if error.kind() == ErrorKind::Corrupt {
            self.slice.errors.extend(entry_of(at, Txg::ZERO));
        }
        OnError::Skip
    }

    fn interrupted(&mut self) -> bool {
        self.writer.scans.is_interrupted()
    }

    fn stop(&mut self) -> bool {
        let queue = &self.writer.scans.queue;
        self.left == 0
            || self.began.elapsed() > self.limits.slice
            || self.writer.scans.is_interrupted()
            || (self.found.is_empty() && queue.is_full())
    }
}

/// Collects the blocks of an intent log that is not in use.
struct GathersLog<'a, 'b> {
    to: &'a mut Gatherer<'b>,
    claimed: bool,
    objset: u64,
    /// The block that is about to be read: it may never have been written.
    next: Option<LogPtr>,
}

impl GathersLog<'_, '_> {
    fn at(&self, blkid: u64) -> Bookmark {
        Bookmark { objset: self.objset, object: 0, level: -2, blkid }
    }

    fn confirm(&mut self) {
        if let Some(ptr) = self.next.take() {
            let at = self.at(ptr.seq());
            self.to.note(&ptr.bp, at, Some(Box::new(ptr)));
        }
    }
}

impl LogVisitor for GathersLog<'_, '_> {
    fn block(&mut self, ptr: &LogPtr) -> Result<bool> {
        self.confirm();
        if !self.claimed && ptr.bp.birth() > self.to.since {
            return Ok(false);
        }
        self.next = Some(*ptr);
        Ok(true)
    }

    fn record(&mut self, record: &Record<'_>, _encrypted: bool) -> Result<()> {
        self.confirm();
        let Ok(pointers) = record.pointers() else { return Ok(()) };
        for bp in pointers.flatten() {
            let at = self.at(record.header.seq);
            self.to.note(&bp, at, None);
        }
        Ok(())
    }
}

impl Writer {
    /// Whether no space that was freed after a txg can have been given away by now.
    pub(super) fn is_still_of(&self, since: Txg) -> bool {
        let is = self.space.hold(since);
        if is {
            self.space.end_hold();
        }
        is
    }

    /// Walks on from a position for one slice, in the tree of `since` or a later one.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub(super) fn gather(
        &self,
        serial: u64,
        scan: &Scan,
        from: &ScanPosition,
        since: Txg,
        limits: &ScanLimits,
    ) -> Result<Slice> {
        let partial = match scan.func {
            ScanFunc::Resilver => Some(self.partial_txgs()),
            _ => None,
        };
        let tree = self.zio.tree();
        let removed = (partial.is_some() && tree.has_removed()).then_some(tree);
        let mut gatherer = Gatherer {
            writer: self,
            serial,
            since,
            max_txg: scan.max_txg,
            max_birth: Txg::MAX,
            partial: partial.as_deref(),
            removed,
            limits: limits.clone(),
            began: base::rt::now(),
            left: limits.slice_blocks,
            found: Vec::new(),
            slice: Slice::default(),
        };
        let done = self.gather_with(&mut gatherer, scan, from);
        gatherer.flush();
        done.map(|position| Slice { position: Some(position), ..gatherer.slice })
    }

    fn gather_with(
        &self,
        to: &mut Gatherer<'_>,
        scan: &Scan,
        from: &ScanPosition,
    ) -> Result<ScanPosition> {
        let mut position = from.clone();
        while !position.is_end() && !to.stop() {
            if position.bookmark.objset == NO_DATASET {
                let Some((&next, _)) = position.queue.first_key_value() else { break };
                position.queue.remove(&next);
                position.bookmark = ScanPosition::first_of(next);
            }
            let visited = match position.bookmark.objset {
                0 => self.gather_mos(to, scan, &mut position),
                dataset => self.gather_dataset(to, scan, dataset, &mut position),
            };
            match visited {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    to.slice.no_dataset = true;
                    break;
                }
                Err(_) if self.txgs.suspended().is_some() || !self.is_still_of(to.since) => break,
                // The MOS is damaged: what is below it cannot be scanned.
                Err(_) => {
                    to.slice.incomplete = true;
                    let at = Bookmark {
                        objset: 0,
                        object: position.bookmark.objset,
                        level: 0,
                        blkid: 0,
                    };
                    to.slice.errors.extend(entry_of(at, Txg::ZERO));
                    position.bookmark = ScanPosition::first_of(NO_DATASET);
                }
            }
        }
        Ok(position)
    }

    /// False if the walk stopped; the position is changed to the place.
    fn walk(
        &self,
        to: &mut Gatherer<'_>,
        root: &BlkPtr,
        min_txg: Txg,
        position: &mut ScanPosition,
    ) -> bool {
        let read = |bp: &BlkPtr, dnodes: bool| -> Result<Buf> {
            if dnodes { self.zio.read_dnodes(bp, READ) } else { self.zio.read(bp, READ) }
        };
        let BookmarkPlace { objset, object, level, blkid } = position.bookmark;
        let level = i8::try_from(level).unwrap_or(0);
        let from = Bookmark { objset, object, level, blkid };
        let what = OrderedWalk { objset, root, from, min_txg, threads: READS, read: &read };
        let Some(at) = walk_in_order(&what, to) else { return true };
        let at = self.plants.scan.one_too_far(at);
        let Bookmark { object, level, blkid, .. } = at;
        position.bookmark = BookmarkPlace { objset, object, level: level.into(), blkid };
        false
    }

    fn gather_mos(
        &self,
        to: &mut Gatherer<'_>,
        scan: &Scan,
        position: &mut ScanPosition,
    ) -> Result<bool> {
        let root = self.published.read().uberblock.root_bp;
        if !self.walk(to, &root, scan.min_txg, position) {
            return Ok(false);
        }
        position.bookmark = ScanPosition::first_of(NO_DATASET);
        for dataset in self.first_datasets()? {
            position.queue.insert(dataset, Txg::ZERO);
        }
        Ok(true)
    }

    /// The datasets from which all others follow: the pool's empty origin; in a pool too old
    /// to have one, the first of each directory.
    fn first_datasets(&self) -> Result<Vec<u64>> {
        let _names = self.names();
        let root = DslDir::root(&self.mos, &self.name)?;
        let origin = root.child("$ORIGIN")?.map(|dir| dir.head()).transpose()?.flatten();
        if let Some(head) = origin {
            return Ok(vec![head.phys().prev_snap_obj]);
        }
        let mut first = Vec::new();
        let mut dirs = vec![root];
        while let Some(dir) = dirs.pop() {
            dirs.extend(dir.children()?);
            let Some(head) = dir.head()? else { continue };
            let (mut at, mut phys) = (head.object(), *head.phys());
            let mos: &dyn MosRead = &self.mos;
            while phys.prev_snap_obj != 0 {
                let before = mos.dataset(phys.prev_snap_obj)?;
                if before.dir_obj != phys.dir_obj {
                    break;
                }
                (at, phys) = (phys.prev_snap_obj, before);
            }
            if phys.prev_snap_obj == 0 {
                first.push(at);
            }
        }
        Ok(first)
    }

    fn gather_dataset(
        &self,
        to: &mut Gatherer<'_>,
        scan: &Scan,
        dataset: u64,
        position: &mut ScanPosition,
    ) -> Result<bool> {
        let gone = |e: Error| match e.kind() {
            // The object id may have been given to something else.
            ErrorKind::Corrupt if self.zio.tree().root().readable() => {
                Error::not_found("the dataset was destroyed").caused_by(e)
            }
            _ => e,
        };
        let mos: &dyn MosRead = &self.mos;
        let phys = mos.dataset(dataset).map_err(gone)?;
        let min_txg = scan.min_txg.max(phys.prev_snap_txg);
        to.max_birth = if phys.num_children > 0 { phys.creation_txg } else { Txg::MAX };
        let is_first = position.bookmark == ScanPosition::first_of(dataset);
        if is_first && phys.num_children == 0 {
            self.gather_log(to, dataset, &phys);
        }
        let done = phys.bp.is_hole() || self.walk(to, &phys.bp, min_txg, position);
        to.max_birth = Txg::MAX;
        if !done {
            return Ok(false);
        }
        // What follows now is what the events since the slice began lead to as well.
        let phys = mos.dataset(dataset).map_err(gone)?;
        position.bookmark = ScanPosition::first_of(NO_DATASET);
        let clones = {
            // Pools older than version 11 have no list of them: the directories lead to them.
            let _names = self.names();
            links::clones_of(mos, dataset, &phys)?
        };
        let next = Some(phys.next_snap_obj).filter(|&next| next != 0);
        for next in next.into_iter().chain(clones) {
            // Nothing follows a head, and each snapshot is younger than the one before it. So
            // the graph of a damaged pool leads to an end, too.
            match mos.dataset(next) {
                Ok(n) if n.num_children > 0 && n.creation_txg <= phys.creation_txg => {
                    to.slice.incomplete = true;
                }
                // It may be destroyed just now, which is an event.
                _ => {
                    position.queue.insert(next, phys.creation_txg);
                }
            }
        }
        Ok(true)
    }

    /// The blocks of a log that nobody writes.
    fn gather_log(&self, to: &mut Gatherer<'_>, head: u64, phys: &DslDatasetPhys) {
        if self.log_in_use(head).is_some() || phys.bp.is_hole() {
            return;
        }
        let header = || -> Result<ZilHeader> {
            let root = self.zio.read(&phys.bp, READ)?;
            log_header(&ObjsetPhys::parse(&root, phys.bp.endian())?)
        };
        // An unreadable object set is found by the walk.
        let Ok(header) = header() else { return };
        let claimed = header.claim_txg != Txg::ZERO;
        let mut visitor = GathersLog { to, claimed, objset: head, next: None };
        // The end of a chain looks like damage.
        let _ = walk_log(&self.zio, &header, &mut visitor);
    }

    /// For each top-level vdev the txgs that some leaf below it misses.
    fn partial_txgs(&self) -> Vec<TxgRanges> {
        let tree = self.zio.tree();
        let last = tree.top_ids().map(|id| id.0).max().unwrap_or(0);
        (0..=last).map(|id| tree.partial(base::VdevId(id)).unwrap_or_default()).collect()
    }
}

/// Time that a slice takes at most.
pub(super) const SLICE: Duration = Duration::from_millis(1000);
