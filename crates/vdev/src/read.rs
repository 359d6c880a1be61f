//! Reading: plan, one batch of leaf operations, verification, list of copies to repair.
//!
//! # Theory
//! The quick plan costs what an undamaged read costs. If its result is not accepted,
//! everything is read (known bytes are not read again) and the solver searches.
//! Afterwards the bytes of every leaf are compared with the accepted content, so
//! exactly the wrong ones are counted.
//!
//! Neighbouring cells of one leaf become one operation, also across gaps, which are
//! small if a caller waits for it. If that operation fails, the cells are read one by
//! one, so that one bad sector costs one sector. Each operation passes through its
//! leaf's queue. Of the operations that need not wait there, this thread makes the last
//! one itself, while the device's engine makes the others.

use std::collections::HashMap;
use std::sync::Arc;

use base::limits::BLOCK_SIZE_MAX;
use base::rt::{Sender, oneshot};
use base::{Buf, BufMut, Error, ErrorKind, Guid, Psize, Result, Txg, VdevId};
use device::{Device, Io, Op};

use crate::iostat::IoClass;
use crate::map::whole_sectors;
use crate::plan::{LeafRange, PlanMode, PlanShape, Planner};
use crate::queue::{BESIDE_OTHERS, ReadAdmission, ReadPermit};
use crate::reflow::Views;
use crate::report::ReportKind;
use crate::solve::{Solver, WrongCell, audit};
use crate::tree::{NodeId, Tree};

/// The reason of a read (chapter 02 §14); it selects the queue class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Priority {
    /// A caller waits.
    #[default]
    SyncRead,
    /// Prefetch.
    AsyncRead,
    /// Scrub or resilver.
    Scrub,
    /// Sequential rebuild.
    Rebuild,
}

/// A read request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadReq {
    /// Top-level vdev.
    pub vdev: VdevId,
    /// Byte offset in its allocatable area.
    pub offset: u64,
    /// Bytes of the block as stored; any length up to 16 MiB.
    pub psize: Psize,
    /// The block's effective physical birth.
    pub birth: Txg,
    /// The reason.
    pub priority: Priority,
    /// The caller does not know whether there is a block (the end of a log chain):
    /// wrong bytes are not counted as an error of a device.
    pub speculative: bool,
    /// Parity was never written (checksum "noparity"): do not compare it.
    pub no_parity: bool,
    /// Wrong bytes of the block were met already: every copy is read and compared at once, so
    /// that they are counted and reported.
    pub suspect: bool,
}

impl ReadReq {
    /// An ordinary read.
    pub fn new(vdev: VdevId, offset: u64, psize: Psize, birth: Txg) -> ReadReq {
        ReadReq {
            vdev,
            offset,
            psize,
            birth,
            priority: Priority::SyncRead,
            speculative: false,
            no_parity: false,
            suspect: false,
        }
    }

    /// With another priority.
    #[must_use]
    pub fn with_priority(mut self, priority: Priority) -> ReadReq {
        self.priority = priority;
        self
    }
}

/// What was wrong with the bytes of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BadKind {
    /// The read failed.
    Io,
    /// The bytes differ from the accepted content.
    Checksum,
    /// They differ, or were not read, because the leaf missed the block's transaction group.
    Stale,
}

/// Bytes of a leaf that should be rewritten.
#[derive(Clone, Debug)]
pub struct BadCopy {
    /// The leaf in the tree that was read.
    pub leaf: NodeId,
    /// Its guid.
    pub guid: Guid,
    /// Offset of `good` on the device, bytes.
    pub offset: u64,
    /// What was wrong.
    pub kind: BadKind,
    /// The right bytes.
    pub good: Buf,
}

/// What a read found out about the leaves.
#[derive(Clone, Debug, Default)]
pub struct ReadReport {
    /// Copies to rewrite; empty if the read failed.
    pub bad: Vec<BadCopy>,
    /// Leaf operations executed.
    pub ios: usize,
    /// The first plan did not suffice.
    pub searched: bool,
}

impl ReadReport {
    /// Whether some leaf that did not miss the txg has wrong bytes of the block, or
    /// none.
    pub fn needs_healing(&self) -> bool {
        self.bad.iter().any(|bad| bad.kind != BadKind::Stale)
    }
}

/// A read's result and report.
#[derive(Debug)]
pub struct ReadOutcome {
    /// The block, `psize` long, or the error.
    pub data: Result<Buf>,
    /// What was found out about the leaves.
    pub report: ReadReport,
}

type ReadSlot = Sender<Result<BufMut>>;

/// Sends a result even if the device drops the operation.
struct ReadCompletion(Option<(ReadSlot, ReadPermit, bool)>);

impl ReadCompletion {
    fn complete(mut self, result: Result<BufMut>) {
        if let Some((slot, permit, merged)) = self.0.take() {
            permit.end(result.is_ok(), merged);
            slot.send(result);
        }
    }
}

impl Drop for ReadCompletion {
    fn drop(&mut self) {
        if let Some((slot, permit, _)) = self.0.take() {
            drop(permit);
            slot.send(Err(Error::bug("a device dropped a read without completing it")));
        }
    }
}

/// Leaf bytes by cell; `None` if the read failed.
pub(crate) type CellBytes = HashMap<LeafRange, Option<Buf>>;

/// One attempt to read a block.
#[derive(Clone, Copy)]
struct Round {
    mode: PlanMode,
    /// Leaves that missed the block's txg are not read.
    fresh_only: bool,
}

impl Round {
    const QUICK: Round = Round { mode: PlanMode::Quick, fresh_only: false };
    const ALL: Round = Round { mode: PlanMode::All, fresh_only: false };
}

/// The cells of a plan that a round reads.
fn fresh(planner: &Planner<'_>, fresh_only: bool) -> Vec<LeafRange> {
    let mut skipped = planner.stale.iter().copied().filter(|_| fresh_only).peekable();
    let cells = planner.cells.iter().enumerate();
    // Both lists are in the order of the indices.
    cells.filter(|(index, _)| skipped.next_if_eq(index).is_none()).map(|(_, c)| *c).collect()
}

fn at_address(error: Error, req: &ReadReq) -> Error {
    let asize = base::Asize(req.psize.0);
    error.at_dva(base::Dva { vdev: req.vdev, offset: req.offset, asize, gang: false })
}

impl Tree {
    /// Reads a block and waits. `verify` judges candidates (`psize` bytes each) and may
    /// be called many times.
    ///
    /// # Errors
    /// `Corrupt` for an impossible address, `Checksum` if no combination of readable
    /// bytes was accepted, `Io` if too little could be read, `Missing` if a removed
    /// vdev's mapping is not loaded.
    pub fn read(&self, req: &ReadReq, verify: &dyn Fn(&[u8]) -> bool) -> Result<Buf> {
        self.read_verbose(req, verify).data
    }

    /// As [`Tree::read`], and reports which copies were bad.
    pub fn read_verbose(&self, req: &ReadReq, verify: &dyn Fn(&[u8]) -> bool) -> ReadOutcome {
        const ROUNDS: [Round; 2] = [Round::QUICK, Round::ALL];
        let rounds = if req.suspect { &ROUNDS[1..] } else { &ROUNDS[..] };
        let outcome = self.read_by(req, verify, rounds);
        if let Ok(top) = self.top_node(req.vdev) {
            self.compare_children(top);
        }
        outcome
    }

    /// Reads every copy and every parity column of a block and compares them all
    /// with the content that `verify` accepts (scrub, `zdb -cc`).
    pub fn scrub(&self, req: &ReadReq, verify: &dyn Fn(&[u8]) -> bool) -> ReadOutcome {
        self.read_by(req, verify, &[Round::ALL])
    }

    /// As [`Tree::scrub`], for several blocks whose leaf operations are made together:
    /// neighbours become one operation. `verify` gets the index of a request. Leaves that
    /// missed a block's txg are not read, unless the block cannot be had without them; all
    /// their bytes of it are reported as [`BadKind::Stale`]. The outcomes are in the order of
    /// the requests.
    pub fn scan(
        &self,
        reqs: &[ReadReq],
        verify: &dyn Fn(usize, &[u8]) -> bool,
    ) -> Vec<ReadOutcome> {
        const ROUNDS: [Round; 2] = [Round { fresh_only: true, ..Round::ALL }, Round::ALL];
        let (mut known, views) = (CellBytes::new(), Views::default());
        let mut together = Vec::new();
        for req in reqs {
            let mut planner = Planner::new(self, PlanMode::All, &views);
            let len = self.top(req.vdev).and_then(|top| whole_sectors(req.psize.0, top.ashift()));
            // A request that cannot be planned gets its error below.
            let planned = len.and_then(|len| planner.top(req.vdev, req.offset, len, req.birth));
            if planned.is_ok() {
                together.extend(fresh(&planner, true));
            }
        }
        self.fetch(&together, Priority::Scrub, &mut known, &mut ReadReport::default());
        let of = |(index, req): (usize, &ReadReq)| {
            let mut report = ReadReport::default();
            let accept = |bytes: &[u8]| verify(index, bytes);
            let data = self.attempts(req, &accept, &ROUNDS, (&mut known, &views), &mut report);
            ReadOutcome { data: data.map_err(|e| at_address(e, req)), report }
        };
        reqs.iter().enumerate().map(of).collect()
    }

    fn read_by(
        &self,
        req: &ReadReq,
        verify: &dyn Fn(&[u8]) -> bool,
        rounds: &[Round],
    ) -> ReadOutcome {
        let mut report = ReadReport::default();
        let (mut known, views) = (CellBytes::new(), Views::default());
        let data = self.attempts(req, verify, rounds, (&mut known, &views), &mut report);
        ReadOutcome { data: data.map_err(|e| at_address(e, req)), report }
    }

    fn attempts(
        &self,
        req: &ReadReq,
        verify: &dyn Fn(&[u8]) -> bool,
        rounds: &[Round],
        (known, views): (&mut CellBytes, &Views),
        report: &mut ReadReport,
    ) -> Result<Buf> {
        let ashift = self.top(req.vdev)?.ashift();
        let len = whole_sectors(req.psize.0, ashift)?;
        let psize = req.psize.0 as usize;
        let mut verified = 0usize;
        for &Round { mode, fresh_only } in rounds {
            let mut planner = Planner::new(self, mode, views);
            let shape = planner.top(req.vdev, req.offset, len, req.birth)?;
            self.fetch(&fresh(&planner, fresh_only), req.priority, known, report);
            let plan = planner.cells;
            let cells: Vec<Option<Buf>> =
                plan.iter().map(|cell| known.get(cell).cloned().flatten()).collect();
            report.searched |= mode == PlanMode::All && rounds[0].mode == PlanMode::Quick;
            let mut accept = |buf: &Buf| {
                verified += 1;
                buf.get(..psize).is_some_and(verify)
            };
            let mut found = None;
            let stale: &[bool] = if shape.any_stale() { &[false, true] } else { &[false] };
            for &stale in stale {
                let solver = Solver { cells: &cells, stale, exhaustive: mode == PlanMode::All };
                found = solver.each(&shape, len, &mut accept);
                if found.is_some() {
                    break;
                }
            }
            if let Some(block) = found {
                // A quick plan without failures contains no contradiction.
                if mode == PlanMode::All || cells.iter().any(Option::is_none) {
                    self.judge(req, &shape, &plan, &cells, &block, report);
                }
                return Ok(block.slice(0..psize));
            }
            if mode == PlanMode::All && !fresh_only {
                self.blame(req, &shape, &plan, &cells, verified > 0);
            }
        }
        Err(if verified > 0 {
            Error::checksum("no copy of the block has the right checksum")
        } else {
            Error::new(ErrorKind::Io, "too few devices of the vdev could be read")
        })
    }

    /// Reads the cells, except those already known, into `known`.
    pub(crate) fn fetch(
        &self,
        plan: &[LeafRange],
        why: Priority,
        known: &mut CellBytes,
        report: &mut ReadReport,
    ) {
        let mut wanted: Vec<LeafRange> =
            plan.iter().filter(|c| !known.contains_key(c)).copied().collect();
        wanted.sort_unstable();
        wanted.dedup();
        let limit = self.tuning.get().read_gap_limit;
        // The leaf's queue merges the pieces of a scrub's reads as far as others permit, over gaps
        // that the device reads faster than it begins an operation.
        let (most, limit) = match why {
            Priority::Scrub => (BESIDE_OTHERS, 0),
            _ => (BLOCK_SIZE_MAX, limit),
        };
        let mut groups: Vec<(LeafRange, Vec<LeafRange>)> = Vec::new();
        for cell in wanted {
            let end = cell.offset.saturating_add(cell.len);
            // A waiting caller gets at most as many extra bytes as it requested.
            let gap = if why == Priority::SyncRead { limit.min(cell.len) } else { limit };
            if let Some((whole, members)) = groups.last_mut()
                && whole.leaf == cell.leaf
                && cell.offset <= whole.offset.saturating_add(whole.len).saturating_add(gap)
                && end - whole.offset <= most
            {
                whole.len = whole.len.max(end - whole.offset);
                members.push(cell);
            } else {
                groups.push((cell, vec![cell]));
            }
        }
        let mut retry = Vec::new();
        let wholes: Vec<(LeafRange, bool)> = groups.iter().map(|g| (g.0, g.1.len() > 1)).collect();
        for ((whole, members), buf) in
            groups.into_iter().zip(self.read_leaves(&wholes, why, report))
        {
            match buf {
                None if members.len() > 1 => retry.extend(members.into_iter().map(|c| (c, false))),
                buf => {
                    for cell in members {
                        let from = (cell.offset - whole.offset) as usize;
                        let part = buf.as_ref().map(|b| b.slice(from..from + cell.len as usize));
                        known.insert(cell, part);
                    }
                }
            }
        }
        for ((cell, _), buf) in retry.iter().zip(self.read_leaves(&retry, why, report)) {
            known.insert(*cell, buf);
        }
    }

    /// One batch of leaf reads, each for one cell or for neighbours; counts failures.
    fn read_leaves(
        &self,
        cells: &[(LeafRange, bool)],
        why: Priority,
        report: &mut ReadReport,
    ) -> Vec<Option<Buf>> {
        let results = cells.iter().zip(self.make_reads(cells, why));
        let counted = results.map(|(&(cell, _), result)| {
            let node = self.node(cell.leaf);
            report.ios += usize::from(node.device.is_some() && node.queue.is_some());
            let at = (cell.offset, cell.len);
            result.map_err(|e| self.count_error(node, ReportKind::Read, at, e.kind())).ok()
        });
        counted.collect()
    }

    /// One batch of leaf reads, each for one cell or for neighbours.
    pub(crate) fn make_reads(
        &self,
        cells: &[(LeafRange, bool)],
        why: Priority,
    ) -> Vec<Result<Buf>> {
        let mut out: Vec<Option<Result<Buf>>> = cells.iter().map(|_| None).collect();
        let (mut own, mut waiting) = (Vec::new(), Vec::new());
        for (index, (cell, merged)) in cells.iter().enumerate() {
            let node = self.node(cell.leaf);
            let Some((device, queue)) = node.device.as_ref().zip(node.queue.as_ref()) else {
                continue;
            };
            match queue.request_read(IoClass::from(why), cell.offset, cell.len) {
                ReadAdmission::Go(permit) => own.push((index, device, permit, *merged)),
                ReadAdmission::Wait(slot) => waiting.push((index, slot)),
            }
        }
        let last = own.pop();
        let mut sent = Vec::with_capacity(own.len());
        let mut batches: Vec<(&Arc<dyn Device>, Vec<Op>)> = Vec::new();
        for (index, device, permit, merged) in own {
            let (sender, slot) = oneshot();
            let landing = ReadCompletion(Some((sender, permit, merged)));
            let io = Io::read(cells[index].0.offset, cells[index].0.len as usize);
            let op = Op::new(io, move |done| landing.complete(done.into_read()));
            sent.push((index, slot));
            match batches.iter_mut().find(|b| Arc::ptr_eq(b.0, device)) {
                Some(batch) => batch.1.push(op),
                None => batches.push((device, vec![op])),
            }
        }
        batches.into_iter().for_each(|(device, ops)| device.submit(ops));
        if let Some((index, device, permit, merged)) = last {
            let cell = &cells[index].0;
            let result = device.run(Io::read(cell.offset, cell.len as usize)).into_read();
            permit.end(result.is_ok(), merged);
            out[index] = Some(result.map(BufMut::freeze));
        }
        for (index, slot) in sent {
            out[index] = Some(slot.wait().flatten().map(BufMut::freeze));
        }
        for (index, slot) in waiting {
            out[index] = Some(slot.wait());
        }
        let absent = || Err(Error::new(ErrorKind::DevicesMissing, "the device is absent"));
        out.into_iter().map(|result| result.unwrap_or_else(absent)).collect()
    }

    /// The block was accepted: counts and lists the leaves whose bytes were wrong.
    fn judge(
        &self,
        req: &ReadReq,
        shape: &PlanShape,
        plan: &[LeafRange],
        cells: &[Option<Buf>],
        block: &Buf,
        report: &mut ReadReport,
    ) {
        // A single cell that was accepted as it is: nothing to compare.
        if let PlanShape::Cell { .. } = shape {
            return;
        }
        let mut wrong: Vec<WrongCell> = Vec::new();
        audit(shape, cells, block, !req.no_parity, &mut wrong);
        for w in wrong {
            let Some(cell) = plan.get(w.cell) else { continue };
            let node = self.node(cell.leaf);
            let kind = match (w.differs, w.stale) {
                (_, true) => BadKind::Stale,
                (false, false) => BadKind::Io,
                (true, false) => BadKind::Checksum,
            };
            if kind == BadKind::Checksum && !req.speculative {
                let at = (cell.offset, cell.len);
                self.count_error(node, ReportKind::Checksum, at, ErrorKind::Checksum);
            }
            let (leaf, guid) = (cell.leaf, node.guid());
            report.bad.push(BadCopy { leaf, guid, offset: cell.offset, kind, good: w.good });
        }
    }

    /// Nothing was accepted: counts the error where it can be attributed.
    fn blame(
        &self,
        req: &ReadReq,
        shape: &PlanShape,
        plan: &[LeafRange],
        cells: &[Option<Buf>],
        verified: bool,
    ) {
        if req.speculative || !verified {
            return;
        }
        // Every copy of a plain or mirrored block is wrong. For other blocks the wrong
        // column or piece cannot be determined.
        if let Some(copies) = shape.copies() {
            for index in copies {
                if let (Some(cell), Some(Some(_))) = (plan.get(index), cells.get(index)) {
                    let (node, at) = (self.node(cell.leaf), (cell.offset, cell.len));
                    self.count_error(node, ReportKind::Checksum, at, ErrorKind::Checksum);
                }
            }
        } else if let Ok(top) = self.top(req.vdev) {
            let at = (req.offset, req.psize.0);
            self.count_error(top, ReportKind::Checksum, at, ErrorKind::Checksum);
        }
    }
}
