//! The live progress of a RAID-Z expansion, and the copying of its sectors (chapter 08 §E.3 to
//! E.5).
//!
//! # Theory
//! An expansion moves sector *x* of the vdev's linear space from child *x mod o*, row *x / o*, to
//! child *x mod n*, row *x / n*, where *n* = *o* + 1. Sectors are moved in ascending order. Three
//! offsets tell how far it is, *view* ≤ *durable* ≤ *copied*:
//! * *durable* is in an uberblock: after a crash, rows that end at or below it are read at the
//!   new place, and others at the old one.
//! * *view* is what reads and writes use for the same decision. It follows *durable*, because
//!   operations in flight may use an older value.
//! * *copied*: below it sectors were copied, or are being copied.
//!
//! A write puts each row where a read with the same *view* finds it. Of a row at the old place it
//! puts the sectors below *copied* at the new place, too: nobody will copy them again, and when
//! *durable* has passed the row it is read there. A sector at or above *copied* will be copied
//! from the old place. A step that raises *copied* locks the range (`range_lock`): no write of it
//! is in flight while it is copied, and one that is planned afterwards sees the new value.
//!
//! The new place of sector *x* is the old place of sector *y* = *x* − ⌊*x* / *n*⌋. The copier stays
//! below *u* + ⌊*u* / *o*⌋ − *o* for *u* = *view*, so *y* ≤ *u* − *o*. A row that is read at the old
//! place ends above *u*, and so begins above *u* − *o*: no copy reaches it. The same is true for
//! the rows that an import after a crash reads at the old place, because *view* ≤ *durable*.
//!
//! When *view* rises, operations that use the old value may still be in flight. Each of them
//! holds a [`ReflowUse`]; [`Tree::advance_reflow`] returns when those of the old value have
//! ended. Nothing is copied over their places before.
//!
//! # Invariants
//! * An operation uses one value of *view* for everything that it reads and remembers.
//! * A thread that holds a [`ReflowUse`] waits for devices only, not for a locked range.
//!
//! Lock order: `inner` is a leaf lock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use base::rt::{Callback, Condvar, Mutex, oneshot};
use base::{Buf, BufMut, Error, ErrorKind, Guid, Result, Txg, VdevId};

use crate::RebuildSession;
use crate::map::{BOOT_SIZE, RaidzGeometry};
use crate::plan::{LeafRange, PlanMode, PlanShape, Planner};
use crate::queue::{WritePriority, WriteRequest};
use crate::range_lock::LockedRanges;
use crate::read::{CellBytes, Priority, ReadReport};
use crate::report::ReportKind;
use crate::solve::Solver;
use crate::spec::{Reflow, VdevKind};
use crate::tree::{Geometry, LABEL_START, LiveState, Node, NodeId, Tree};
use crate::write_plan::WritePlan;

/// Bytes of the linear space that one operation of each child copies.
const CHUNK: u64 = 8 << 20;
/// Device offset of the scratch area: behind the first two labels.
const SCRATCH_START: u64 = LABEL_START - BOOT_SIZE;

/// Where the rows of an expanding vdev are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Decides which rows are at the new place.
    pub(crate) view: Reflow,
    /// Linear byte offset: sectors below are, or will be, at the new place as well.
    pub(crate) copied: u64,
}

#[derive(Default)]
struct ReflowInner {
    placement: Placement,
    /// Changes of the view; its last bit selects the counter of users.
    epoch: u64,
    users: [u64; 2],
}

/// The progress of a vdev's expansion, shared by all snapshots.
#[derive(Default)]
pub(crate) struct ReflowState {
    inner: Mutex<ReflowInner>,
    changed: Condvar,
}

impl ReflowState {
    /// Sets the progress, when no operation uses it.
    pub(crate) fn reset(&self, view: Reflow) {
        self.inner.lock().placement = Placement { view, copied: view.offset };
    }
}

/// An operation on an expanding vdev.
pub(crate) struct ReflowUse {
    live: Arc<LiveState>,
    side: usize,
    pub(crate) placement: Placement,
}

impl ReflowUse {
    pub(crate) fn begin(live: &Arc<LiveState>) -> ReflowUse {
        let mut inner = live.reflow.inner.lock();
        let side = (inner.epoch & 1) as usize;
        inner.users[side] += 1;
        let placement = inner.placement;
        drop(inner);
        ReflowUse { live: Arc::clone(live), side, placement }
    }
}

impl Drop for ReflowUse {
    fn drop(&mut self) {
        let mut inner = self.live.reflow.inner.lock();
        inner.users[self.side] -= 1;
        if inner.users[self.side] == 0 {
            self.live.reflow.changed.notify_all();
        }
    }
}

/// The views of the expanding vdevs that one operation reads; they hold until it ends.
#[derive(Default)]
pub(crate) struct Views(RefCell<Vec<(NodeId, ReflowUse)>>);

impl Views {
    /// The view of a vdev; `None` unless it is being expanded.
    pub(crate) fn of(&self, id: NodeId, node: &Node) -> Option<Reflow> {
        if !is_expanding(node) {
            return None;
        }
        let mut all = self.0.borrow_mut();
        if let Some((_, found)) = all.iter().find(|(at, _)| *at == id) {
            return Some(found.placement.view);
        }
        let found = ReflowUse::begin(&node.live);
        let view = found.placement.view;
        all.push((id, found));
        Some(view)
    }
}

/// Whether a vdev is a raidz that is being expanded.
pub(crate) fn is_expanding(node: &Node) -> bool {
    matches!(&node.geometry, Geometry::Raidz(raidz) if raidz.reflow.is_some())
}

/// The rows of a child that sectors from `from` to `end` have in a vdev of this width.
fn rows_on(child: u64, from: u64, end: u64, width: u64) -> (u64, u64) {
    let row = |sector: u64| sector.saturating_sub(child).div_ceil(width);
    (row(from), row(end.max(from)))
}

/// Consecutive rows of one child.
struct ChildRows {
    child: u32,
    /// Byte offset in the child's allocatable area.
    offset: u64,
    data: Buf,
}

fn lost() -> Error {
    Error::new(ErrorKind::Io, "a device of the vdev that is being expanded cannot be used")
}

impl Tree {
    /// Whether a vdev's blocks are being moved by an expansion.
    pub fn is_expanding(&self, vdev: VdevId) -> bool {
        self.top(vdev).is_ok_and(is_expanding)
    }

    /// Sets the progress of the expansion under way, when nothing was read or written yet.
    pub fn reset_reflow(&self, view: Reflow) {
        for (_, node) in self.nodes().filter(|(_, node)| is_expanding(node)) {
            node.live.reflow.reset(view);
        }
    }

    fn expanding(&self, vdev: VdevId) -> Result<(NodeId, &RaidzGeometry)> {
        let id = self.top_node(vdev)?;
        match &self.node(id).geometry {
            Geometry::Raidz(raidz) if raidz.reflow.is_some() => Ok((id, raidz)),
            _ => Err(base::bug!("vdev {vdev} is not being expanded")),
        }
    }

    fn leaves_of(&self, vdev: VdevId) -> impl Iterator<Item = &Node> {
        self.leaves().map(|(_, node)| node).filter(move |node| node.top() == vdev)
    }

    /// Whether each leaf of a vdev has everything and can be written.
    pub fn is_whole(&self, vdev: VdevId) -> bool {
        let whole = |node: &Node| node.writable().is_some() && node.dtl().is_empty();
        self.top(vdev).is_ok() && self.leaves_of(vdev).all(whole)
    }

    /// Whether all children of a vdev are leaves.
    pub fn has_plain_children(&self, vdev: VdevId) -> bool {
        self.top(vdev).is_ok_and(|top| {
            top.children().iter().all(|child| self.node(*child).kind().is_device())
        })
    }

    /// Raises the offset below which writes put sectors at the new place, too, or takes it back.
    /// The caller holds the lock of the range between the old value and the new one.
    ///
    /// # Errors
    /// `Bug` for a vdev that is not being expanded.
    pub fn set_reflow_copied(&self, vdev: VdevId, copied: u64) -> Result<()> {
        let (id, _) = self.expanding(vdev)?;
        self.node(id).live.reflow.inner.lock().placement.copied = copied;
        Ok(())
    }

    /// Has operations find rows by `view` from now on, and waits for those that use the old one.
    /// One thread at a time may call it. It must hold no operation of its own.
    ///
    /// # Errors
    /// `Bug` for a vdev that is not being expanded.
    pub fn advance_reflow(&self, vdev: VdevId, view: Reflow) -> Result<()> {
        let (id, _) = self.expanding(vdev)?;
        let state = &self.node(id).live.reflow;
        let mut inner = state.inner.lock();
        let old = (inner.epoch & 1) as usize;
        inner.epoch += 1;
        inner.placement.view = view;
        inner.placement.copied = inner.placement.copied.max(view.offset);
        while inner.users[old] > 0 {
            state.changed.wait(&mut inner);
        }
        Ok(())
    }

    /// Locks a range of a vdev, offset and end, against writes of blocks.
    pub fn lock_range(
        &self,
        session: &RebuildSession,
        vdev: VdevId,
        range: (u64, u64),
    ) -> LockedRanges {
        session.lock(vdev, vec![range])
    }

    /// Reads sectors from `from` to `end` at the old place, and puts them in the order of the new
    /// one.
    fn gather(
        &self,
        id: NodeId,
        raidz: &RaidzGeometry,
        ranges: &[(u64, u64)],
    ) -> Result<Vec<ChildRows>> {
        let (new, shift) = (u64::from(raidz.width), raidz.ashift);
        let old = new - 1;
        let children = self.node(id).children();
        let views = Views::default();
        let mut planner = Planner::new(self, PlanMode::Quick, &views);
        let mut sources: Vec<Vec<(u64, u64, Option<PlanShape>)>> = Vec::with_capacity(ranges.len());
        for &(from, end) in ranges {
            let mut of_range = Vec::with_capacity(old as usize);
            for child in 0..old {
                let (first, last) = rows_on(child, from, end, old);
                let node = children.get(child as usize).copied().ok_or_else(lost)?;
                let shape = match first < last {
                    true => Some(planner.child(node, first << shift, (last - first) << shift)?),
                    false => None,
                };
                of_range.push((first, last, shape));
            }
            sources.push(of_range);
        }
        let mut known = CellBytes::new();
        self.fetch(&planner.cells, Priority::Rebuild, &mut known, &mut ReadReport::default());
        let cells: Vec<Option<Buf>> =
            planner.cells.iter().map(|cell| known.get(cell).cloned().flatten()).collect();
        drop(known);
        let solver = Solver { cells: &cells, stale: false, exhaustive: false };
        let mut out = Vec::new();
        for (&(from, end), of_range) in ranges.iter().zip(&sources) {
            let mut columns = Vec::with_capacity(of_range.len());
            for (first, last, shape) in of_range {
                let len = (last - first) << shift;
                let bytes = shape.as_ref().map(|shape| {
                    let found = solver.each(shape, len, &mut |_| true);
                    found.filter(|found| found.len() as u64 == len).ok_or_else(lost)
                });
                columns.push((*first, bytes.transpose()?));
            }
            for child in 0..new {
                let (first, last) = rows_on(child, from, end, new);
                if first >= last {
                    continue;
                }
                let sector = 1usize << shift;
                let mut data = BufMut::alloc((last - first) as usize * sector);
                for (row, place) in (first..last).zip(data.chunks_exact_mut(sector)) {
                    let x = row * new + child;
                    let source = columns.get((x % old) as usize);
                    let bytes = source.and_then(|(first, bytes)| {
                        let at = (x / old).checked_sub(*first)? as usize * sector;
                        bytes.as_ref()?.get(at..at + sector)
                    });
                    let bytes = bytes.ok_or_else(|| base::bug!("sector {x} was not read"))?;
                    place.copy_from_slice(bytes);
                }
                let (child, offset) = (child as u32, first << shift);
                out.push(ChildRows { child, offset, data: data.freeze() });
            }
        }
        Ok(out)
    }

    /// Copies ranges of an expanding vdev, ascending offsets and ends in bytes, to the new place,
    /// and flushes all its leaves. Returns the bytes of the ranges.
    ///
    /// The caller has locked the ranges, and has raised *copied* over them; their new places
    /// are free by the rule of the module head.
    ///
    /// # Errors
    /// `Io` if some leaf did not give or take everything: then nothing is known to be at the new
    /// place.
    pub fn copy_reflow(&self, vdev: VdevId, ranges: &[(u64, u64)]) -> Result<u64> {
        let (id, raidz) = self.expanding(vdev)?;
        let shift = raidz.ashift;
        let chunk = (CHUNK >> shift).max(1);
        let (mut todo, mut bytes) = (Vec::new(), 0);
        for &(from, end) in ranges {
            let (mut at, last) = (from >> shift, end >> shift);
            bytes += end.saturating_sub(from);
            while at < last {
                let to = last.min(at + chunk);
                todo.push((at, to));
                at = to;
            }
        }
        let rows = self.gather(id, raidz, &todo)?;
        let children = self.node(id).children();
        let mut placed = Vec::with_capacity(rows.len());
        for row in rows {
            let child = children.get(row.child as usize).copied().ok_or_else(lost)?;
            placed.push((child, row.offset, row.data));
        }
        let plan = WritePlan::raw(self, placed)?;
        if !plan.dead.is_empty() {
            return Err(lost());
        }
        let mut by_leaf: BTreeMap<NodeId, Vec<WriteRequest>> = BTreeMap::new();
        let mut pending = Vec::with_capacity(plan.pieces.len());
        for piece in plan.pieces {
            let (sender, end) = oneshot::<Result<()>>();
            pending.push((piece.leaf, (piece.offset, piece.len), end));
            by_leaf.entry(piece.leaf).or_default().push(WriteRequest {
                offset: piece.offset,
                len: piece.len,
                bufs: piece.bufs,
                priority: WritePriority::Rebuild,
                optional: false,
                done: Callback::new(move |result| sender.send(result)),
            });
        }
        for (leaf, batch) in by_leaf {
            match self.node(leaf).writable() {
                Some((_, queue)) => queue.submit(batch),
                // Dropping a request reports that it was not made.
                None => drop(batch),
            }
        }
        let mut failed = None;
        for (leaf, at, end) in pending {
            if let Err(e) = end.wait().flatten() {
                self.count_error(self.node(leaf), ReportKind::Write, at, e.kind());
                failed = Some(e);
            }
        }
        failed.map_or(Ok(()), Err)?;
        self.flush_whole(vdev)?;
        Ok(bytes)
    }

    /// Flushes all leaves of a vdev; what they have taken so far is durable.
    ///
    /// # Errors
    /// `Io` if some leaf is not open, or does not flush.
    pub fn flush_whole(&self, vdev: VdevId) -> Result<()> {
        let results = self.flush_completed(&[vdev]);
        if results.len() != self.leaves_of(vdev).count() {
            return Err(lost());
        }
        results.into_iter().try_for_each(|(_, result)| result)
    }

    /// Bytes of the linear space whose new place on each child is as large as the scratch area.
    ///
    /// # Errors
    /// `Bug` for a vdev that is not being expanded.
    pub fn scratch_end(&self, vdev: VdevId) -> Result<u64> {
        let (_, raidz) = self.expanding(vdev)?;
        Ok((BOOT_SIZE >> raidz.ashift << raidz.ashift) * u64::from(raidz.width))
    }

    /// Reads the sectors before [`Tree::scratch_end`], and returns what each child has of them at
    /// the new place.
    ///
    /// # Errors
    /// `Io`.
    pub fn read_first_rows(&self, vdev: VdevId) -> Result<Vec<Option<Buf>>> {
        let (id, raidz) = self.expanding(vdev)?;
        let end = self.scratch_end(vdev)? >> raidz.ashift;
        let rows = self.gather(id, raidz, &[(0, end)])?;
        Ok(rows.into_iter().map(|rows| Some(rows.data)).collect())
    }

    /// Reads the scratch area of each child; `None` for one that cannot be read.
    ///
    /// # Errors
    /// `Bug` for a vdev that is not being expanded.
    pub fn read_scratch(&self, vdev: VdevId) -> Result<Vec<Option<Buf>>> {
        let (id, raidz) = self.expanding(vdev)?;
        let len = BOOT_SIZE >> raidz.ashift << raidz.ashift;
        let children = self.node(id).children();
        let cell = |&leaf: &NodeId| (LeafRange { leaf, offset: SCRATCH_START, len }, false);
        let cells: Vec<(LeafRange, bool)> = children.iter().map(cell).collect();
        let read = self.make_reads(&cells, Priority::Rebuild);
        Ok(read.into_iter().map(Result::ok).collect())
    }

    /// Writes the first rows of each child that has any, to the scratch area or to their place,
    /// and flushes. Returns the leaves that do not have them.
    ///
    /// # Errors
    /// `Bug` for rows of another vdev.
    pub fn write_first_rows(
        &self,
        vdev: VdevId,
        rows: &[Option<Buf>],
        scratch: bool,
    ) -> Result<Vec<Guid>> {
        let (id, _) = self.expanding(vdev)?;
        let guids: Vec<Guid> =
            self.node(id).children().iter().map(|child| self.node(*child).guid()).collect();
        if guids.len() != rows.len() || !self.has_plain_children(vdev) {
            return Err(base::bug!("rows of another vdev"));
        }
        let offset = if scratch { SCRATCH_START } else { LABEL_START };
        let of = |(guid, row): (&Guid, &Option<Buf>)| Some((*guid, offset, row.clone()?));
        let writes = guids.iter().zip(rows).filter_map(of).collect();
        let mut good: Vec<Guid> = Vec::new();
        for (guid, result) in self.write_leaves(writes) {
            good.extend(result.is_ok().then_some(guid));
        }
        let flushed = self.flush_completed(&[vdev]);
        good.retain(|guid| flushed.iter().any(|(leaf, done)| leaf == guid && done.is_ok()));
        Ok(guids.into_iter().filter(|guid| !good.contains(guid)).collect())
    }

    /// A successor of this snapshot in which the expansion of a vdev has ended, with the first
    /// births of each width. The caller has set the view behind everything.
    ///
    /// # Errors
    /// `Bug` for a vdev that is not being expanded.
    pub fn with_expanded(&self, vdev: VdevId, expand_txgs: &[Txg]) -> Result<Arc<Tree>> {
        let (id, raidz) = self.expanding(vdev)?;
        let mut tree = self.same();
        let node = &mut tree.nodes[id.0 as usize];
        let expand_txgs = expand_txgs.to_vec();
        node.geometry = Geometry::Raidz(RaidzGeometry {
            expand_txgs: expand_txgs.clone(),
            reflow: None,
            ..raidz.clone()
        });
        let nparity = raidz.nparity as u8;
        node.spec.kind = VdevKind::Raidz { nparity, expand_txgs, reflow: None };
        Ok(Arc::new(tree))
    }
}
