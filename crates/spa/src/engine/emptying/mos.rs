//! The meta object set leaves a range of a vdev.
//!
//! # Theory
//! A task walks the MOS as the last txg left it, in a fixed order, from the place where the task
//! of an earlier txg stopped ([`dmu::walk_in_order`]). Only the sync thread changes the MOS, and
//! the task is part of its work, so no pointer that it meets is out of date. Each block with
//! an address in the range is made dirty, by something below it that is written with it:
//! * a data block by itself ([`dmu::Objset::touch_block`]);
//! * an indirect block by the first data block below it; one that has holes alone is freed;
//! * a block of dnodes, and what is above it, by the first dnode in it;
//! * a spill block by setting it again.
//!
//! The txg then writes these blocks like all others of the MOS, to where it may allocate; that is
//! not in the range. The block of the object set itself is new in each txg.
//!
//! # Progress
//! A task looks at [`VISITS_MAX`] pointers and makes [`BYTES_MAX`] bytes dirty, at most. Nothing is
//! allocated in the range, so each walk leaves fewer blocks of the MOS in it, and one that
//! finds none is the last.

use std::sync::atomic::Ordering::Relaxed;

use base::{Buf, Error, ErrorKind, ObjectId, Result};
use dmu::traverse::{Bookmark, ROOT_LEVEL, SPILL_BLKID};
use dmu::{Io, ObjectSpec, OnError, OrderedWalk, WalkVisitor, walk_in_order};
use ondisk::blkptr::Block;
use ondisk::dnode::{DNODES_PER_BLOCK, OBJECT_SHIFT_MAX};
use ondisk::{BlkPtr, ObjType};

use super::super::Writer;
use super::super::tasks::TaskCx;
use super::EmptyRange;

/// Pointers that one txg looks at.
const VISITS_MAX: usize = 32 << 10;
/// Bytes of data blocks that one txg makes dirty.
const BYTES_MAX: u64 = 16 << 20;
/// Reads in flight.
const READS: usize = 8;

/// Where a walk continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MosPlace(Bookmark);

/// What one txg did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MosStep {
    /// Where the walk continues; `None` at its end.
    pub next: Option<MosPlace>,
    /// Blocks in the range.
    pub found: u64,
    /// Their allocated bytes.
    pub bytes: u64,
    /// Blocks that could not be read, or written anew.
    pub failed: u64,
}

struct MosVisitor {
    range: EmptyRange,
    /// Gangs that are older may have members in the range.
    gangs_before: base::Txg,
    found: Vec<(Bookmark, Block)>,
    visits: usize,
    bytes: u64,
    unreadable: u64,
}

impl WalkVisitor for MosVisitor {
    fn visit(&mut self, bp: &BlkPtr, at: Bookmark) {
        self.visits += 1;
        let BlkPtr::Block(block) = bp else { return };
        let gang = block.is_gang() && block.effective_physical_birth() <= self.gangs_before;
        // Every txg that changes something writes the root.
        if at.level != ROOT_LEVEL && (gang || self.range.touches(block)) {
            self.bytes = self.bytes.saturating_add(block.head.lsize.0);
            self.found.push((at, *block));
        }
    }

    fn unreadable(&mut self, _error: Error, _at: Bookmark) -> OnError {
        self.unreadable += 1;
        OnError::Skip
    }

    fn stop(&mut self) -> bool {
        self.visits >= VISITS_MAX || self.bytes >= BYTES_MAX
    }
}

impl Writer {
    /// Writes some blocks of the MOS that are in a range anew, in one txg: those from `from` on.
    /// Gangs born up to `gangs_before` count as if they were in it. The caller has seen to it that
    /// nothing is allocated in the range.
    ///
    /// # Errors
    /// Those of a suspension.
    pub fn evacuate_mos(
        &self,
        range: EmptyRange,
        gangs_before: base::Txg,
        from: Option<MosPlace>,
    ) -> Result<MosStep> {
        let act = move |cx: &mut TaskCx<'_>, ()| cx.evacuate_mos(range, gangs_before, from);
        self.sync_task(|_| Ok(()), act).map(|(step, _)| step)
    }
}

impl TaskCx<'_> {
    fn evacuate_mos(
        &mut self,
        range: EmptyRange,
        gangs_before: base::Txg,
        from: Option<MosPlace>,
    ) -> Result<MosStep> {
        let zio = &self.writer.zio;
        let read = |bp: &BlkPtr, dnodes: bool| -> Result<Buf> {
            if dnodes { zio.read_dnodes(bp, Io::SYNC) } else { zio.read(bp, Io::SYNC) }
        };
        let root = self.mos().objset().root_bp();
        let first = Bookmark { objset: 0, object: 0, level: 0, blkid: 0 };
        let what = OrderedWalk {
            objset: 0,
            root: &root,
            from: from.map_or(first, |MosPlace(at)| at),
            min_txg: base::Txg::ZERO,
            threads: READS,
            read: &read,
        };
        let mut visitor = MosVisitor {
            range,
            gangs_before,
            found: Vec::new(),
            visits: 0,
            bytes: 0,
            unreadable: 0,
        };
        let next = walk_in_order(&what, &mut visitor).map(MosPlace);
        let mut step = MosStep {
            next,
            found: visitor.found.len() as u64,
            bytes: 0,
            failed: visitor.unreadable,
        };
        let mut skipped = self.writer.plants.emptying.left_mos_block.load(Relaxed);
        for (at, block) in &visitor.found {
            step.bytes += block.dvas().map(|dva| dva.asize.0).sum::<u64>();
            if std::mem::take(&mut skipped) {
                continue;
            }
            match self.rewrite_mos_block(*at) {
                Ok(()) => {}
                // An earlier task of the txg freed the object.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) if e.kind() == ErrorKind::Bug => return Err(e),
                Err(_) => step.failed += 1,
            }
        }
        Ok(step)
    }

    /// Makes the block at a position dirty.
    fn rewrite_mos_block(&self, at: Bookmark) -> Result<()> {
        let Bookmark { object, level, blkid, .. } = at;
        let (os, id) = (self.mos().objset(), ObjectId(object));
        if object >> OBJECT_SHIFT_MAX != 0 {
            return Err(Error::unsupported("the MOS has no accounting"));
        }
        if object == 0 {
            return self.rewrite_dnodes(level, blkid);
        }
        if blkid == SPILL_BLKID {
            let Some((content, endian)) = self.mos().object(object)?.spill(self.mos().io())? else {
                return Ok(());
            };
            // Words of the other order would have to be turned.
            if endian != ondisk::Endian::Little {
                return Err(Error::unsupported("a spill block of the other byte order"));
            }
            return os.set_spill(self.tx, id, Some(&content));
        }
        let Some(level) = u32::try_from(level).ok().filter(|level| *level > 0) else {
            return os.touch_block(self.tx, id, blkid);
        };
        let handle = self.mos().object(object)?;
        let (first, past) = below(blkid, handle.dnode().epb_shift(), level)?;
        match handle.next_data_block(first, self.mos().io())?.filter(|block| *block < past) {
            Some(block) => os.touch_block(self.tx, id, block),
            None => os.free_blocks(self.tx, id, first, past, false),
        }
    }

    /// Makes a block of the meta-dnode dirty.
    fn rewrite_dnodes(&self, level: i8, blkid: u64) -> Result<()> {
        let (os, io) = (self.mos().objset(), self.mos().io());
        let shift = os.meta_object().dnode().epb_shift();
        let (first, past) = below(blkid, shift, u32::try_from(level).unwrap_or(0))?;
        let (first, past) =
            (first.saturating_mul(DNODES_PER_BLOCK), past.saturating_mul(DNODES_PER_BLOCK));
        let mut after = ObjectId(first.saturating_sub(1));
        while let Some(id) = os.next_object(after, io)?.filter(|id| id.0 < past) {
            match os.touch(self.tx, id) {
                // This txg freed it.
                Err(e) if e.kind() == ErrorKind::NotFound => after = id,
                other => return other,
            }
        }
        // No object is left in it: one that comes and goes writes it.
        let id = ObjectId(first.max(1));
        let spec = ObjectSpec {
            object_type: ObjType::OTN_UINT64_METADATA,
            block_size: 512,
            ..ObjectSpec::default()
        };
        match os.claim(self.tx, id, &spec) {
            Ok(()) => os.free_object(self.tx, id),
            // The txg has made it anew.
            Err(e) if e.kind() == ErrorKind::Exists => Ok(()),
            Err(e) => Err(e),
        }
    }
}

/// The first block of the lowest level below a block, and the first one behind it.
fn below(blkid: u64, epb_shift: u32, level: u32) -> Result<(u64, u64)> {
    let odd = || Error::corrupt("a block that cannot be in the tree of its object");
    let shift = epb_shift.checked_mul(level).filter(|shift| *shift < 64).ok_or_else(odd)?;
    let first = blkid.checked_shl(shift).filter(|first| first >> shift == blkid);
    let first = first.ok_or_else(odd)?;
    Ok((first, first.saturating_add(1 << shift)))
}
