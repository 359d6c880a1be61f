//! The error scrub: the blocks of the stored error log are read again (chapter 04 §17.5).
//!
//! # Theory
//! Each entry of the log of known errors names a block of a head. The head and its snapshots
//! are searched for it. What is found goes through the queue, like blocks of a scrub, so it is
//! repaired where that has become possible, for instance because a device is back. Entries
//! whose blocks are right now, or that no dataset has any more, are removed.
//!
//! # Invariants
//! * An error scrub and a scan never run at the same time: they share the queue.
//! * An error scrub that a crash interrupts changes nothing; the next import forgets it.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use dmu::traverse::Bookmark;
use dmu::{Io, Objset};
use dsl::write::MosRead;
use dsl::write::errlog::{self, LostBlock, StoredLog};
use dsl::write::scan as stored;
use ondisk::BlkPtr;
use ondisk::dnode::OBJECT_SHIFT_MAX;
use ondisk::scan::{ErrorScrub, ScanFunc, ScanState};
use zio::Access;

use super::super::TaskCx;
use super::super::errlog::lost_block;
use super::Writer;
use super::queue::{QueuedAddress, ScanBlock};

/// Snapshots of one head that are searched for a block.
const SNAPSHOTS_MAX: usize = 256;
/// Reads that make no entries of their own in the error log.
const LOOK: Io = Io { access: Access::Prescient, ..Io::WAIT };

/// The state of the error scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ErrorScrubbing {
    /// There is none.
    #[default]
    None,
    /// It may begin with the tree of this txg; the time of the request, and its number.
    Wanted(Txg, u64, u64),
    /// The thread reads.
    Running,
}

impl Writer {
    /// Whether an error scrub runs.
    pub(in super::super) fn is_error_scrubbing(&self) -> bool {
        *self.scans.error_scrub.lock() != ErrorScrubbing::None
    }

    pub(super) fn check_error_scrub(&self) -> Result<()> {
        match self.is_error_scrubbing() {
            true => {
                let text = "currently error scrubbing; use 'zpool scrub -s' to cancel error scrub";
                Err(Error::new(ErrorKind::Busy, text))
            }
            false => Ok(()),
        }
    }

    /// Notes that the error scrub begins; the thread continues.
    pub(super) fn begin_error_scrub(&self, cx: &TaskCx<'_>) -> Result<()> {
        let (start_time, txg) = (cx.cx.now.0, cx.cx.txg);
        let entries = errlog::entries(cx.read(), StoredLog::Last)?;
        let scrub = ErrorScrub {
            func: ScanFunc::ErrorScrub,
            state: ScanState::ErrorScrubbing,
            cursor: 0,
            start_time,
            end_time: 0,
            to_examine: entries.len() as u64,
            examined: 0,
            errors: 0,
            paused: false,
        };
        stored::store_error_scrub(cx.cx, &scrub)?;
        let serial = self.scans.queue.open();
        *self.scans.error_scrub.lock() = ErrorScrubbing::Wanted(txg, start_time, serial);
        Ok(())
    }

    /// Performs the error scrub, if one is wanted; false if a later txg must be announced
    /// first.
    pub(super) fn scrub_errors(&self) -> bool {
        let (first, start_time, serial) = match *self.scans.error_scrub.lock() {
            ErrorScrubbing::Wanted(first, start, serial) => (first, start, serial),
            _ => return true,
        };
        let Some(since) = self.zio.healing_since().filter(|&since| since >= first) else {
            return false;
        };
        *self.scans.error_scrub.lock() = ErrorScrubbing::Running;
        self.scans.queue.begin_slice(since);
        let mos: &dyn MosRead = &self.mos;
        let known = errlog::entries(mos, StoredLog::Last).unwrap_or_default();
        let mut unknown = BTreeSet::new();
        for block in &known {
            match self.pointers_of(block) {
                Ok(found) => {
                    let entries = found.iter().flat_map(|bp| entries_of(bp, block));
                    self.scans.queue.add(serial, entries.collect::<Vec<_>>().into_iter());
                }
                // It cannot be told whether the block is right.
                Err(_) => {
                    unknown.insert(*block);
                }
            }
        }
        self.scans.queue.end_slice();
        let issued = self.issue(true);
        let complete = self.scans.queue.is_empty();
        self.scans.queue.close();
        let lost: Vec<LostBlock> = issued.lost.iter().map(lost_block).collect();
        let is_lost = |block: &LostBlock| {
            unknown.contains(block)
                || lost.iter().any(|l| {
                    (l.objset, l.object, l.level, l.blkid)
                        == (block.objset, block.object, block.level, block.blkid)
                })
        };
        let fixed = if complete && issued.unnamed == 0 {
            known.iter().filter(|block| !is_lost(block)).copied().collect()
        } else {
            Vec::new()
        };
        self.end_error_scrub(start_time, known.len() as u64, fixed);
        *self.scans.error_scrub.lock() = ErrorScrubbing::None;
        true
    }

    fn end_error_scrub(&self, start_time: u64, examined: u64, fixed: Vec<LostBlock>) {
        let errors = examined - fixed.len() as u64;
        for entry in self.zio.errors().entries() {
            if fixed.contains(&lost_block(&entry)) {
                self.zio.errors().remove(&entry);
            }
        }
        let act = move |cx: &mut TaskCx<'_>, ()| {
            for block in &fixed {
                errlog::remove(cx.cx, StoredLog::Last, block)?;
            }
            let scrub = ErrorScrub {
                func: ScanFunc::ErrorScrub,
                state: ScanState::Finished,
                cursor: 0,
                start_time,
                end_time: cx.cx.now.0,
                to_examine: examined,
                examined,
                errors,
                paused: false,
            };
            stored::store_error_scrub(cx.cx, &scrub)
        };
        // A pool that is closed or given up keeps its entries.
        let _ = self.sync_task(|_| Ok(()), act);
    }

    /// The pointers to the block of an entry, in the head and its snapshots.
    fn pointers_of(&self, block: &LostBlock) -> Result<Vec<BlkPtr>> {
        if block.objset == 0 {
            return Ok(pointer_in(self.mos.objset(), block)?.into_iter().collect());
        }
        let mos: &dyn MosRead = &self.mos;
        let mut found = Vec::new();
        let mut dataset = block.objset;
        for _ in 0..SNAPSHOTS_MAX {
            let phys = match mos.dataset(dataset) {
                // It was destroyed.
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => break,
                other => other?,
            };
            if !phys.bp.is_hole() {
                let os = Objset::open(Arc::clone(&self.zio), dataset, phys.bp, LOOK)?;
                found.extend(pointer_in(&os, block)?);
            }
            let older = phys.prev_snap_txg.0 < block.birth || phys.prev_snap_obj == 0;
            if older || (block.birth == 0 && dataset == block.objset) {
                break;
            }
            dataset = phys.prev_snap_obj;
        }
        Ok(found)
    }
}

/// The pointer to the block of an entry; `None` if the object set does not have the block.
fn pointer_in(os: &Arc<Objset>, block: &LostBlock) -> Result<Option<BlkPtr>> {
    let Ok(level) = u8::try_from(block.level) else { return Ok(None) };
    let object = match block.object {
        0 => Ok(os.meta_object()),
        id if id >> OBJECT_SHIFT_MAX != 0 => match os.special(id as i64) {
            Some(object) => Ok(object),
            None => return Ok(None),
        },
        id => os.object(ObjectId(id), LOOK),
    };
    let bp = match object.and_then(|o| o.block_pointer(level, block.blkid, LOOK)) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let same = block.birth == 0 || bp.allocation_birth().0 == block.birth;
    Ok(Some(bp).filter(|bp| bp.as_block().is_some() && same))
}

fn entries_of(bp: &BlkPtr, lost: &LostBlock) -> Vec<QueuedAddress> {
    let Some(block) = bp.as_block() else { return Vec::new() };
    let at = Bookmark {
        objset: lost.objset,
        object: lost.object,
        level: i8::try_from(lost.level).unwrap_or(0),
        blkid: lost.blkid,
    };
    let block = Arc::new(ScanBlock { block: *block, at, log: None });
    let entry = |(i, dva)| QueuedAddress { block: Arc::clone(&block), dva, first: i == 0 };
    block.block.dvas().enumerate().map(entry).collect()
}
