//! The livelists of clones, compared with their trees (chapter 04 §10.2).
//!
//! # Theory
//! What a livelist has allocated and not freed are the blocks of the clone's head that were
//! born after its origin. A walk of the head from that txg on finds them, too. Both sides must
//! have the same number of blocks, bytes on disk and compressed bytes.
//!
//! # Invariants
//! * Only pools whose blocks are all readable are compared: blocks below an unreadable one are
//!   not found.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::{Result, Txg};
use dmu::traverse::{Bookmark, Flow, Options as WalkOptions, Visitor, traverse};
use dsl::DslDataset;
use dsl::write::MosRead;
use ondisk::BlkPtr;

use super::walk::WALK_IO;
use super::{AuditOptions, Problem, Report, live_blocks};
use crate::import::Spa;

/// Blocks, with their bytes on disk and their compressed bytes.
#[derive(Debug, Default)]
struct Sum([AtomicU64; 3]);

impl Sum {
    fn add(&self, bp: &BlkPtr) {
        let Some(block) = bp.as_block() else { return };
        let asize = block.dvas().map(|dva| dva.asize.0).fold(0u64, u64::wrapping_add);
        for (sum, n) in self.0.iter().zip([1, asize, block.psize.0]) {
            sum.fetch_add(n, Relaxed);
        }
    }

    fn get(&self) -> [u64; 3] {
        self.0.each_ref().map(|n| n.load(Relaxed))
    }
}

impl Visitor for Sum {
    fn visit(&self, bp: &BlkPtr, _at: Bookmark) -> Result<Flow> {
        self.add(bp);
        Ok(Flow::Descend)
    }
}

/// Adds the livelists that are wrong to the report.
///
/// # Errors
/// Those of reading the MOS and the clones.
pub(super) fn check(spa: &Spa, options: AuditOptions, report: &mut Report) -> Result<()> {
    let mos: &dyn MosRead = spa.mos();
    for job in spa.datasets()?.into_iter().filter(|job| job.head) {
        let dir = DslDataset::read_phys(spa.mos(), job.object)?.dir_obj;
        let Some(list) = mos.attribute_u64(dir, "com.delphix:livelist")? else { continue };
        let (listed, walked) = (Sum::default(), Sum::default());
        for (_, sublist) in mos.numbers(list)? {
            live_blocks(spa, sublist)?.iter().for_each(|bp| listed.add(bp));
        }
        let origin = match mos.dir(dir)?.origin_obj {
            0 => Txg::ZERO,
            origin => mos.dataset(origin)?.creation_txg,
        };
        let how = WalkOptions { min_txg: origin, threads: options.threads, io: WALK_IO };
        traverse(spa.zio(), job.object, &job.bp, &walked, how)?;
        if listed.get() != walked.get() {
            report.problems.push(Problem::Livelist(dir, listed.get(), walked.get()));
        }
    }
    Ok(())
}
