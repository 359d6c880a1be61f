//! Reading several blocks together, for read-ahead.
//!
//! # Theory
//! Small blocks that lie next to each other cost a device one operation each when they are
//! read one by one, and the operation costs more than the bytes. [`Tree::read_together`]
//! plans all blocks first ([`PlanMode::Quick`], as each would be read by itself), sorts their
//! cells by leaf and offset, and merges those with small gaps between them: parity and skip
//! sectors of raidz and dRAID, or blocks of others. A merged operation has at most
//! `aggregation_limit` bytes, gaps have at most `read_gap_limit`, and at least half of the
//! bytes are wanted. All blocks of a batch are read from the same child of a mirror as long
//! as no other one is more trusted; else neighbours would alternate between the children and
//! nothing would merge.
//!
//! The operations are made in waves of [`WAVE`], those that the first blocks need first. A
//! block is delivered as soon as all its bytes are there and those before it were delivered,
//! so the reader that waits for the first block of a scattered batch waits for one wave.
//!
//! Read-ahead is only a guess, so it decides nothing about damage. A block of which some
//! cell could not be read, whose bytes `verify` refuses, or of which only a leaf that missed
//! its txg has bytes, is delivered as one to be read by itself. The caller does that in the
//! ordinary way ([`Tree::read_verbose`]), which searches, counts the errors and reports what to
//! heal. A block whose bytes were refused is read with [`ReadReq::suspect`]: the other copy of a
//! mirror alone would tell nothing about the wrong one.
//!
//! # Invariants
//! * No error is counted here, so none is counted twice.
//! * Each block is delivered exactly once, in the order of the requests.
//! * The device buffers of a batch have at most twice the bytes of its blocks' cells, and
//!   are freed when the last block that uses them was delivered. What is delivered is a copy,
//!   which keeps none of them in memory.
//!
//! No lock is held here; nothing waits but for the device.

use std::collections::HashMap;

use base::limits::BLOCK_SIZE_MAX;
use base::{Buf, Result};

use crate::map::whole_sectors;
use crate::plan::{LeafRange, PlanMode, PlanShape, Planner};
use crate::read::{Priority, ReadReq};
use crate::reflow::Views;
use crate::solve::Solver;
use crate::tree::{NodeId, Tree};

/// Operations that one batch has in the devices' queues at once.
const WAVE: usize = 16;
/// Blocks of more cells are not read together.
const CELLS_EACH_MAX: usize = 256;

/// Why a block must be read by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadApart {
    /// Some of its bytes were not read.
    Unread,
    /// Its bytes are wrong.
    Refused,
}

/// A block as it is planned.
struct PlannedBlock {
    shape: PlanShape,
    /// Whole sectors, bytes.
    len: u64,
    cells: Vec<LeafRange>,
    /// For each cell, the index of its operation.
    ops: Vec<usize>,
}

/// One operation on a leaf.
struct MergedRead {
    whole: LeafRange,
    /// Bytes of `whole` that are wanted.
    wanted: u64,
    /// The first block that needs it.
    first: usize,
    /// Cells that are taken from it and were not delivered yet.
    users: usize,
    merged: bool,
    bytes: Option<Buf>,
}

impl Tree {
    /// Reads blocks for read-ahead. `verify` judges a candidate (`psize` bytes) for the
    /// request of an index. `deliver` gets each request's index, in order, with the block,
    /// or why it must be read by itself: no error was counted for it.
    pub fn read_together(
        &self,
        reqs: &[ReadReq],
        verify: &dyn Fn(usize, &[u8]) -> bool,
        deliver: &mut dyn FnMut(usize, Result<Buf, ReadApart>),
    ) {
        let (mut chosen, views) = (HashMap::new(), Views::default());
        let planned =
            reqs.iter().map(|req| self.plan_quickly(req, &mut chosen, &views).ok().flatten());
        let mut blocks: Vec<Option<PlannedBlock>> = planned.collect();
        let mut ops = self.merge(&mut blocks);
        let (mut made, mut next) = (0, 0);
        loop {
            while let Some(block) = blocks.get_mut(next)
                && block.as_ref().is_none_or(|b| b.ops.iter().all(|&op| op < made))
            {
                let psize = reqs[next].psize.0 as usize;
                let found = block
                    .take()
                    .ok_or(ReadApart::Unread)
                    .and_then(|b| solve(&b, &mut ops, psize, &|bytes| verify(next, bytes)));
                deliver(next, found);
                next += 1;
            }
            let wave: Vec<(LeafRange, bool)> =
                ops[made..].iter().take(WAVE).map(|op| (op.whole, op.merged)).collect();
            if wave.is_empty() {
                return;
            }
            let results = self.make_reads(&wave, Priority::AsyncRead);
            for (op, result) in ops[made..].iter_mut().zip(results) {
                op.bytes = result.ok();
            }
            made += wave.len();
        }
    }

    /// The quick plan of a block; `None` if it is not one to be read together with others.
    fn plan_quickly(
        &self,
        req: &ReadReq,
        chosen: &mut HashMap<NodeId, NodeId>,
        views: &Views,
    ) -> Result<Option<PlannedBlock>> {
        let len = whole_sectors(req.psize.0, self.top(req.vdev)?.ashift())?;
        let mut planner = Planner::new(self, PlanMode::Quick, views);
        planner.chosen = Some(std::mem::take(chosen));
        let shape = planner.top(req.vdev, req.offset, len, req.birth);
        *chosen = planner.chosen.take().unwrap_or_default();
        let (shape, cells) = (shape?, planner.cells);
        let usable = !shape.any_stale() && !cells.is_empty() && cells.len() <= CELLS_EACH_MAX;
        Ok(usable.then(|| PlannedBlock { shape, len, ops: vec![0; cells.len()], cells }))
    }

    /// Merges the cells of all blocks into operations, in the order of the first block that
    /// needs each.
    fn merge(&self, blocks: &mut [Option<PlannedBlock>]) -> Vec<MergedRead> {
        let limits = self.tuning.get();
        let most = limits.aggregation_limit.min(BLOCK_SIZE_MAX);
        let mut cells: Vec<(LeafRange, usize, usize)> = Vec::new();
        for (block, planned) in blocks.iter().enumerate() {
            let own = planned.iter().flat_map(|b| b.cells.iter().enumerate());
            cells.extend(own.map(|(i, cell)| (*cell, block, i)));
        }
        cells.sort_unstable();
        let mut ops: Vec<MergedRead> = Vec::new();
        // The cells of each operation: block, index of the cell.
        let mut takers: Vec<Vec<(usize, usize)>> = Vec::new();
        for (cell, block, i) in cells {
            let end = cell.offset.saturating_add(cell.len);
            if let Some((op, takers)) = ops.last_mut().zip(takers.last_mut())
                && op.whole.leaf == cell.leaf
            {
                let op_end = op.whole.offset.saturating_add(op.whole.len);
                let new_end = op_end.max(end);
                let len = new_end - op.whole.offset;
                let wanted = op.wanted + (new_end - op_end).min(cell.len);
                let near = cell.offset <= op_end.saturating_add(limits.read_gap_limit);
                if near && len <= most && len <= wanted.saturating_mul(2) {
                    (op.whole.len, op.wanted, op.merged) = (len, wanted, true);
                    op.first = op.first.min(block);
                    op.users += 1;
                    takers.push((block, i));
                    continue;
                }
            }
            let (whole, wanted) = (cell, cell.len);
            ops.push(MergedRead {
                whole,
                wanted,
                first: block,
                users: 1,
                merged: false,
                bytes: None,
            });
            takers.push(vec![(block, i)]);
        }
        let mut order: Vec<(MergedRead, Vec<(usize, usize)>)> =
            ops.into_iter().zip(takers).collect();
        order.sort_by_key(|(op, _)| op.first);
        for (n, (_, takers)) in order.iter().enumerate() {
            for &(block, i) in takers {
                if let Some(at) = blocks[block].as_mut().and_then(|b| b.ops.get_mut(i)) {
                    *at = n;
                }
            }
        }
        order.into_iter().map(|(op, _)| op).collect()
    }
}

/// The content of a block, copied out of the operations' buffers. The buffers lose a user each.
///
/// # Errors
/// Some cell was not read, or the bytes are refused.
fn solve(
    block: &PlannedBlock,
    ops: &mut [MergedRead],
    psize: usize,
    verify: &dyn Fn(&[u8]) -> bool,
) -> Result<Buf, ReadApart> {
    let part = |(cell, &op): (&LeafRange, &usize)| {
        let op = &ops[op];
        let from = (cell.offset - op.whole.offset) as usize;
        Some(op.bytes.as_ref()?.slice(from..from + cell.len as usize))
    };
    let cells: Vec<Option<Buf>> = block.cells.iter().zip(&block.ops).map(part).collect();
    for &op in &block.ops {
        let op = &mut ops[op];
        op.users -= 1;
        if op.users == 0 {
            op.bytes = None;
        }
    }
    if cells.iter().any(Option::is_none) {
        return Err(ReadApart::Unread);
    }
    let solver = Solver { cells: &cells, stale: false, exhaustive: false };
    let mut refused = false;
    let found = solver.each(&block.shape, block.len, &mut |bytes| {
        // The first candidate is the one that an undamaged block has.
        let right = !refused && bytes.get(..psize).is_some_and(verify);
        refused |= !right;
        right
    });
    let bytes = found.as_ref().and_then(|found| found.get(..psize)).ok_or(ReadApart::Refused)?;
    Ok(Buf::copy_of(bytes))
}
