//! Walking the chain of an intent log (chapter 06 §19.3) without changing it.

use std::collections::HashSet;

use base::{Buf, Result, Txg};
use ondisk::BlkPtr;
use ondisk::objset::ObjsetPhys;
use ondisk::zil::{LogBlock, LogPtr, Record, ZilHeader};
use vdev::ReadReq;
use zio::Zio;

/// Maximum number of blocks of one chain, which ends a forged chain.
const BLOCKS_MAX: usize = 1 << 20;

/// Receives the blocks and records of a chain.
pub trait LogVisitor {
    /// A block of the chain, before it is read. False ends the walk.
    ///
    /// # Errors
    /// Any error ends the walk.
    fn block(&mut self, ptr: &LogPtr) -> Result<bool>;

    /// A record.
    ///
    /// # Errors
    /// Any error ends the walk.
    fn record(&mut self, _record: &Record<'_>, _encrypted: bool) -> Result<()> {
        Ok(())
    }

    /// Whether records are wanted; if not they are not parsed.
    fn wants_records(&self) -> bool {
        true
    }
}

/// Reads and verifies one block of a chain. `None` where the chain ends: only reading shows
/// whether the next block was ever written.
pub(crate) fn read_log_block(zio: &Zio, ptr: &LogPtr) -> Option<Buf> {
    let BlkPtr::Block(block) = &ptr.bp else { return None };
    let dva = block.dva();
    if dva.gang {
        return None;
    }
    let birth = block.effective_physical_birth();
    let mut req = ReadReq::new(dva.vdev, dva.offset, block.psize, birth);
    req.speculative = true;
    zio.tree().read(&req, &|bytes| LogBlock::parse(bytes, ptr).is_ok()).ok()
}

/// The log header of an object set.
///
/// # Errors
/// `Corrupt`.
pub fn log_header(phys: &ObjsetPhys) -> Result<ZilHeader> {
    ZilHeader::parse(&phys.zil_header, phys.endian)
}

/// Walks a chain from its header, as far as it was claimed.
///
/// # Errors
/// Those of the visitor. Unreadable blocks and damaged records end the walk.
pub fn walk_log(zio: &Zio, header: &ZilHeader, visitor: &mut impl LogVisitor) -> Result<()> {
    let (block_limit, record_limit) = (header.block_limit(), header.record_limit());
    let mut ptr = header.log;
    let (mut max_block, mut max_record) = (0, 0);
    for _ in 0..BLOCKS_MAX {
        if ptr.is_end() || ptr.seq() > block_limit || !visitor.block(&ptr)? {
            return Ok(());
        }
        max_block = max_block.max(ptr.seq());
        if max_record == record_limit && max_block == block_limit {
            return Ok(());
        }
        let Some(bytes) = read_log_block(zio, &ptr) else { return Ok(()) };
        let Ok(block) = LogBlock::parse(&bytes, &ptr) else { return Ok(()) };
        if visitor.wants_records() {
            for record in block.records() {
                let Ok(record) = record else { return Ok(()) };
                if record.header.seq > record_limit {
                    return Ok(());
                }
                visitor.record(&record, block.encrypted)?;
                max_record = record.header.seq;
            }
        }
        ptr = block.next;
    }
    Ok(())
}

/// The allocated blocks of a log (chapter 06 §21).
pub(crate) struct Kept<'a, F> {
    header: &'a ZilHeader,
    /// Txg of the uberblock.
    last_synced: Txg,
    f: F,
    /// Addresses visited: a pointer may occur twice in a chain.
    met: HashSet<(u32, u64)>,
    /// An unclaimed chain continues with a block of a txg that is not on disk.
    pub(crate) leads_on: bool,
}

impl<'a, F: FnMut(&BlkPtr, bool) -> Result<()>> Kept<'a, F> {
    /// `f` is called with each block, and whether it belongs to the chain.
    pub(crate) fn new(header: &'a ZilHeader, last_synced: Txg, f: F) -> Kept<'a, F> {
        Kept { header, last_synced, f, met: HashSet::new(), leads_on: false }
    }
}

impl<F: FnMut(&BlkPtr, bool) -> Result<()>> LogVisitor for Kept<'_, F> {
    fn block(&mut self, ptr: &LogPtr) -> Result<bool> {
        let claimed = self.header.claim_txg != Txg::ZERO;
        if !claimed && ptr.bp.birth() > self.last_synced {
            self.leads_on = true;
            return Ok(false);
        }
        if let BlkPtr::Block(block) = &ptr.bp
            && self.met.insert((block.dva().vdev.0, block.dva().offset))
        {
            (self.f)(&ptr.bp, true)?;
        }
        Ok(true)
    }

    fn wants_records(&self) -> bool {
        self.header.claim_txg != Txg::ZERO
    }

    fn record(&mut self, record: &Record<'_>, _encrypted: bool) -> Result<()> {
        // A damaged record ends a replay, but not the walk of its chain.
        let Ok(pointers) = record.pointers() else { return Ok(()) };
        let clone = record.header.txtype == 24;
        for bp in pointers.flatten() {
            let BlkPtr::Block(block) = &bp else { continue };
            if !clone && block.head.birth < self.header.claim_txg {
                continue;
            }
            if clone || self.met.insert((block.dva().vdev.0, block.dva().offset)) {
                (self.f)(&bp, false)?;
            }
        }
        Ok(())
    }
}
