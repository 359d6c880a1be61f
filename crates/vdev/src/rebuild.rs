//! Rebuilding leaves sequentially: ranges of a top-level vdev are copied to the leaves that lack
//! something, without a look at the blocks in them.
//!
//! # Theory
//! A rebuild knows no births and no checksums. So it takes a leaf that misses any txg as one
//! that has nothing, and reads only from the others ([`UNKNOWN_BIRTH`]). A range of a mirror is
//! on each leaf at the same offset. In a dRAID, parity is computed row by row: sector *n* of a
//! parity column depends on sector *n* of the data columns alone, and allocations are whole
//! rows. So a range of whole rows is laid out and reconstructed like one large block, wherever
//! the blocks in it begin and end. (The parity of RAID-Z depends on the blocks, so it cannot be
//! rebuilt like this.) Ranges of which no leaf lacks its part cost nothing.
//!
//! What was read is not verified: parity that is not needed is not even read, because space
//! that is allocated and not yet written has none. A scrub follows.
//!
//! The caller holds a [`RebuildSession`], so writes of blocks wait while their range is copied
//! (`range_lock`).
//!
//! # Invariants
//! * Only leaves that miss something are written, and nothing is read from these.
//! * A range that could not be copied to a leaf that can be written is reported.
//! * At most the bytes of the ranges of one call are in memory, times the columns that are read.

use std::collections::BTreeMap;
use std::collections::HashMap;

use base::rt::{Callback, Receiver, oneshot};
use base::{Buf, Error, Guid, Result, Txg, VdevId};

use crate::plan::{LeafRange, PlanMode, PlanShape, Planner};
use crate::queue::{WritePriority, WriteRequest};
use crate::range_lock::RebuildSession;
use crate::read::{Priority, ReadReport};
use crate::reflow::Views;
use crate::report::ReportKind;
use crate::solve::{Solver, audit};
use crate::spec::VdevKind;
use crate::tree::{Geometry, Node, NodeId, Tree};

/// Stands for the birth of a range: a leaf that misses anything lacks it. No block has it.
pub(crate) const UNKNOWN_BIRTH: Txg = Txg::ZERO;
/// Bytes of a piece at most, and at least.
const PIECES: (u64, u64) = (16 << 10, 16 << 20);

/// The result of copying some ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebuildReport {
    /// Bytes of the ranges of which some leaf lacked its part.
    pub issued: u64,
    /// Bytes written, by leaf.
    pub written: BTreeMap<Guid, u64>,
    /// Pieces that could not be read, or not written to some leaf.
    pub failed: u64,
    /// Pieces for which too few leaves are there that miss nothing.
    pub without_source: u64,
}

impl RebuildReport {
    /// Bytes written to all leaves.
    pub fn total(&self) -> u64 {
        self.written.values().sum()
    }
}

/// One piece that is copied.
struct CopyPiece {
    shape: PlanShape,
    cells: Vec<LeafRange>,
    stale: Vec<usize>,
    /// Bytes of content.
    len: u64,
}

impl PlanShape {
    /// Whether the content can be had if all that is read is right.
    fn has_source(&self) -> bool {
        match self {
            PlanShape::Dead | PlanShape::Cell { stale: true, .. } => false,
            PlanShape::Cell { .. } => true,
            PlanShape::Mirror(children) => children.iter().any(PlanShape::has_source),
            PlanShape::Split(parts) => parts.iter().all(|(_, _, part)| part.has_source()),
            PlanShape::Raid { map, cols } => cols.iter().zip(&map.stripes).all(|(cols, stripe)| {
                let there =
                    |shape: &Option<PlanShape>| shape.as_ref().is_some_and(Self::has_source);
                let (parity, data) = cols.split_at(map.nparity.min(cols.len()));
                let stored = stripe.cols.iter().skip(map.nparity).map(|col| col.len > 0);
                let missing = data.iter().zip(stored).filter(|(s, stored)| *stored && !there(s));
                missing.count() <= parity.iter().filter(|shape| there(shape)).count()
            }),
        }
    }
}

/// Pieces of a range: content offsets, content bytes, and bytes of the vdev.
fn pieces(top: &Node, (offset, len): (u64, u64), most: u64) -> Result<Vec<(u64, u64, u64)>> {
    let sector = 1u64 << top.ashift();
    let end = offset.checked_add(len).filter(|end| *end <= top.asize());
    let end = end.ok_or_else(|| Error::corrupt("a range to rebuild is outside its vdev"))?;
    let mut out = Vec::new();
    let mut at = offset;
    while at < end {
        let (size, content) = match &top.geometry {
            Geometry::Draid(draid) => {
                let stripe = draid.asize(1);
                let group = draid.group_size() - at % draid.group_size();
                let size = (end - at).min(group).min(most.max(stripe) / stripe * stripe);
                (size, draid.psize_of(size))
            }
            _ => {
                let size = (end - at).min(most.max(sector) & !(sector - 1));
                (size, size)
            }
        };
        if content == 0 || !at.is_multiple_of(sector) || !size.is_multiple_of(sector) {
            return Err(Error::corrupt("a range to rebuild is not whole"));
        }
        out.push((at, content, size));
        at += size;
    }
    Ok(out)
}

impl Tree {
    /// Prepares writes of blocks for a rebuild, which copies ranges as long as the session
    /// exists. Waits for the writes in flight, so the caller must hold none.
    pub fn begin_rebuild(&self) -> RebuildSession {
        self.locks.begin()
    }

    /// Whether the leaves of a top-level vdev can be rebuilt sequentially: a mirror, a dRAID, or
    /// a single device with its successor.
    pub fn can_rebuild(&self, vdev: VdevId) -> bool {
        let plain = |node: &Node| {
            matches!(
                node.kind(),
                VdevKind::Mirror
                    | VdevKind::Replacing
                    | VdevKind::Spare
                    | VdevKind::Disk
                    | VdevKind::File
                    | VdevKind::Draid(_)
            )
        };
        self.top(vdev).is_ok_and(plain)
    }

    /// The leaves of a top-level vdev that can be written and miss something.
    pub fn behind(&self, vdev: VdevId) -> Vec<Guid> {
        let behind = |node: &&Node| node.top() == vdev && node.is_behind();
        self.nodes().map(|(_, node)| node).filter(behind).map(Node::guid).collect()
    }

    /// Copies ranges of a top-level vdev, ascending offsets and lengths, to the leaves that miss
    /// something, in pieces of about `most` bytes; waits. Errors of leaves are counted and
    /// reported.
    ///
    /// # Errors
    /// `Unsupported` for a vdev that cannot be rebuilt; `Corrupt` for ranges where none can be.
    pub fn rebuild(
        &self,
        session: &RebuildSession,
        vdev: VdevId,
        ranges: &[(u64, u64)],
        most: u64,
    ) -> Result<RebuildReport> {
        if !self.can_rebuild(vdev) {
            return Err(Error::unsupported(
                "only mirror and dRAID vdevs support sequential reconstruction",
            ));
        }
        let top = self.top(vdev)?;
        let most = most.clamp(PIECES.0, PIECES.1);
        let (mut todo, mut report) = (Vec::new(), RebuildReport::default());
        let views = Views::default();
        let mut locked = Vec::with_capacity(ranges.len());
        for &range in ranges {
            for (offset, len, asize) in pieces(top, range, most)? {
                let mut planner = Planner::new(self, PlanMode::Rebuild, &views);
                let shape = planner.top(vdev, offset, len, UNKNOWN_BIRTH)?;
                if planner.stale.is_empty() {
                    continue;
                }
                report.issued += asize;
                if !shape.has_source() {
                    report.without_source += 1;
                    continue;
                }
                locked.push((offset, offset + asize));
                let (cells, stale) = (planner.cells, planner.stale);
                todo.push(CopyPiece { shape, cells, stale, len });
            }
        }
        if todo.is_empty() {
            return Ok(report);
        }
        let guard = session.lock(vdev, locked);
        self.copy(&todo, &mut report);
        drop(guard);
        Ok(report)
    }

    fn copy(&self, todo: &[CopyPiece], report: &mut RebuildReport) {
        let mut known = HashMap::new();
        let mut wanted = Vec::new();
        for piece in todo {
            let mut stale = piece.stale.iter().copied().peekable();
            let fresh = |(i, _): &(usize, &LeafRange)| stale.next_if_eq(i).is_none();
            wanted.extend(piece.cells.iter().enumerate().filter(fresh).map(|(_, cell)| *cell));
        }
        self.fetch(&wanted, Priority::Rebuild, &mut known, &mut ReadReport::default());
        let mut by_leaf: BTreeMap<NodeId, Vec<WriteRequest>> = BTreeMap::new();
        let mut pending: Vec<(LeafRange, Receiver<Result<()>>)> = Vec::new();
        for piece in todo {
            let cells: Vec<Option<Buf>> =
                piece.cells.iter().map(|cell| known.get(cell).cloned().flatten()).collect();
            let solver = Solver { cells: &cells, stale: false, exhaustive: false };
            let Some(content) = solver.each(&piece.shape, piece.len, &mut |_| true) else {
                report.failed += 1;
                continue;
            };
            let mut wrong = Vec::new();
            audit(&piece.shape, &cells, &content, true, &mut wrong);
            for cell in wrong.into_iter().filter(|wrong| wrong.stale) {
                let Some(range) = piece.cells.get(cell.cell).copied() else { continue };
                let (sender, end) = oneshot::<Result<()>>();
                by_leaf.entry(range.leaf).or_default().push(WriteRequest {
                    offset: range.offset,
                    len: cell.good.len() as u64,
                    bufs: vec![cell.good],
                    priority: WritePriority::Rebuild,
                    optional: false,
                    done: Callback::new(move |result| sender.send(result)),
                });
                pending.push((range, end));
            }
        }
        drop(known);
        for (leaf, batch) in by_leaf {
            match self.node(leaf).writable() {
                Some((_, queue)) => queue.submit(batch),
                // Dropping a request reports that it was not made.
                None => drop(batch),
            }
        }
        for (range, end) in pending {
            let node = self.node(range.leaf);
            match end.wait().flatten() {
                Ok(()) => {
                    *report.written.entry(node.guid()).or_default() += range.len;
                }
                Err(e) => {
                    let at = (range.offset, range.len);
                    self.count_error(node, ReportKind::Write, at, e.kind());
                    report.failed += 1;
                }
            }
        }
    }
}
