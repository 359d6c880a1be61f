//! Writing: blocks, label areas, flushes, and the record of what each leaf missed.
//!
//! # Theory
//! [`Tree::write`] plans the pieces of a block (`place`), computes parity in the
//! caller's thread, and adds the pieces to the queues of the leaves. The last
//! completion decides the result: a mirror needs one child, a code word all but
//! `nparity` of its columns. A leaf that did not get its piece, because it failed or
//! cannot be written, has the block's birth added to its missing txgs (chapter 05 §8)
//! before the result is reported.
//!
//! No block is read while it is in a queue. The layer above guarantees this: it puts
//! the blocks it writes into the cache, and waits for the writes of a txg before it
//! commits the pointers. So reads need not search the queues.
//!
//! # Invariants
//! * Each write is reported exactly once, also one that could not be planned.
//! * [`Tree::flush`] covers every write that was submitted before it.
//!
//! Lock order: an open write's `outcome` is a leaf lock; the report runs without it.

use std::sync::Arc;
use std::sync::atomic::Ordering::AcqRel;
use std::time::Duration;

use base::rt::atomic::AtomicUsize;
use base::rt::{self, Callback, Lost, Mutex, oneshot};
use base::{Asize, Buf, Dva, Error, ErrorKind, Guid, Result, Txg, VdevId};
use device::{Device, Io};

use crate::iostat::IoClass;
use crate::queue::{LeafQueue, QueueLimits, WriteLoad, WritePriority, WriteRequest};
use crate::range_lock::WriteTicket;
use crate::reflow::ReflowUse;
use crate::report::{LeafReport, ReportKind};
use crate::tree::{Node, NodeId, Tree};
use crate::write_plan::{Need, WritePlan};

/// Number of write errors at which a leaf is reported as failing.
pub const FAILING_WRITE_ERRORS: u64 = 10;

/// While log blocks have precedence, a thread that writes txgs keeps a core for at most
/// this time.
const SLICE: Duration = Duration::from_micros(100);

/// A write request.
#[derive(Clone, Debug)]
pub struct WriteReq {
    /// Top-level vdev.
    pub vdev: VdevId,
    /// Byte offset in its allocatable area.
    pub offset: u64,
    /// The block as stored: psize bytes, at most 16 MiB; zeros fill its last sector.
    pub data: Buf,
    /// The block's physical birth.
    pub birth: Txg,
    /// The reason.
    pub priority: WritePriority,
}

impl Lost for WriteReport {
    fn lost() -> Self {
        WriteReport { result: Lost::lost(), failed: Vec::new() }
    }
}

/// The outcome of a write.
#[derive(Debug)]
pub struct WriteReport {
    /// `Ok` if enough copies or columns hold the block.
    pub result: Result<()>,
    /// Leaves that do not hold their part, each once.
    pub failed: Vec<Guid>,
}

/// Called once with the outcome of a write; must not block.
pub type WriteCallback = Callback<WriteReport>;

/// A write in flight.
struct OpenWrite {
    tree: Arc<Tree>,
    address: Dva,
    birth: Txg,
    /// Ends with the last piece.
    _ticket: WriteTicket,
    /// As long as pieces are in flight to old places of an expanding vdev.
    _moving: Option<ReflowUse>,
    need: Need,
    /// For each piece: its leaf, and the distributed spares through which it is
    /// reached.
    leaves: Vec<(NodeId, Vec<NodeId>)>,
    outcome: Mutex<PieceOutcome>,
    /// Pieces that have not ended, plus one for the submitter.
    left: AtomicUsize,
}

#[derive(Default)]
struct PieceOutcome {
    lost: Vec<u32>,
    failed: Vec<NodeId>,
    error: Option<Error>,
    report: Option<WriteCallback>,
}

impl OpenWrite {
    /// Ends a piece.
    fn piece(&self, index: usize, optional: bool, result: Result<()>) {
        if let (Err(error), Some((leaf, through))) = (result, self.leaves.get(index)) {
            let (node, at) = (self.tree.node(*leaf), (self.address.offset, self.address.asize.0));
            self.tree.count_error(node, ReportKind::Write, at, error.kind());
            if !optional {
                let mut outcome = self.outcome.lock();
                outcome.lost.push(index as u32);
                outcome.failed.push(*leaf);
                outcome.failed.extend_from_slice(through);
                let guid = self.tree.node(*leaf).guid();
                outcome.error.get_or_insert_with(|| error.on_vdev(guid));
            }
        }
        self.over();
    }

    fn over(&self) {
        if self.left.fetch_sub(1, AcqRel) == 1 {
            self.judge();
        }
    }

    fn judge(&self) {
        let mut outcome = std::mem::take(&mut *self.outcome.lock());
        outcome.lost.sort_unstable();
        outcome.failed.sort_unstable();
        outcome.failed.dedup();
        let nodes = outcome.failed.iter().map(|&id| self.tree.node(id));
        let failed: Vec<Guid> = nodes
            .inspect(|node| node.live.missing.add(self.birth))
            .map(Node::guid)
            .filter(|guid| *guid != Guid(0))
            .collect();
        let result = if self.need.fulfilled(&|index| outcome.lost.binary_search(&index).is_ok()) {
            Ok(())
        } else {
            let none = || {
                Error::new(
                    ErrorKind::Io,
                    "too few devices of the vdev can be written; \
                     bring them back and clear the pool",
                )
            };
            Err(outcome.error.unwrap_or_else(none).at_dva(self.address))
        };
        if let Some(report) = outcome.report {
            report.call(WriteReport { result, failed });
        }
    }
}

impl Tree {
    /// Writes a block. Computes parity in the calling thread and waits while a leaf's
    /// queue is full, so it must not be called from a completion. `done` is called
    /// once, on any thread, possibly before this returns; it must not block.
    ///
    /// Errors in the report: `Io` and other errors of devices if too few of them hold
    /// the block; `Corrupt` for an impossible address or size; `Invalid` for a vdev
    /// that was removed.
    pub fn write(self: &Arc<Self>, req: WriteReq, done: impl FnOnce(WriteReport) + Send + 'static) {
        self.write_all(vec![(req, Callback::new(done))]);
    }

    /// As [`Tree::write`], for several blocks: requests that touch on a leaf become one
    /// operation, even while its queue is empty.
    pub fn write_all(self: &Arc<Self>, writes: Vec<(WriteReq, WriteCallback)>) {
        let (mut requests, mut opened) = (Vec::new(), Vec::with_capacity(writes.len()));
        // All ranges before the first plan: who has planned a write on an expanding vdev waits
        // for no range.
        let tickets: Vec<WriteTicket> = writes
            .iter()
            .map(|(req, _)| self.write_ticket(req.vdev, req.offset, &req.data, req.birth))
            .collect();
        for ((req, done), ticket) in writes.into_iter().zip(tickets) {
            opened.extend(self.open(req, done, ticket, &mut requests));
        }
        self.enqueue(requests);
        opened.iter().for_each(|open| open.over());
    }

    /// Registers a write of a block; waits while its range is locked.
    pub(crate) fn write_ticket(
        &self,
        vdev: VdevId,
        offset: u64,
        data: &Buf,
        birth: Txg,
    ) -> WriteTicket {
        let len = data.len() as u64;
        let sectors = match self.top(vdev) {
            Ok(top) => top.asize_of(len.max(1), birth),
            Err(_) => len,
        };
        self.locks.write(vdev, offset, sectors)
    }

    /// Plans a write and adds its requests to `requests`.
    fn open(
        self: &Arc<Self>,
        req: WriteReq,
        done: WriteCallback,
        ticket: WriteTicket,
        requests: &mut Vec<(NodeId, WriteRequest)>,
    ) -> Option<Arc<OpenWrite>> {
        let asize = Asize(req.data.len() as u64);
        let address = Dva { vdev: req.vdev, offset: req.offset, asize, gang: false };
        let plan = match WritePlan::new(self, req.vdev, req.offset, &req.data, req.birth) {
            Ok(plan) => plan,
            Err(error) => {
                done.call(WriteReport { result: Err(error.at_dva(address)), failed: Vec::new() });
                return None;
            }
        };
        let WritePlan { need, pieces, dead, moving } = plan;
        let mut leaves = Vec::with_capacity(pieces.len());
        let mut places = Vec::with_capacity(pieces.len());
        for mut piece in pieces {
            leaves.push((piece.leaf, std::mem::take(&mut piece.through)));
            places.push(piece);
        }
        let outcome = PieceOutcome { failed: dead, report: Some(done), ..PieceOutcome::default() };
        let open = Arc::new(OpenWrite {
            tree: Arc::clone(self),
            address,
            birth: req.birth,
            _ticket: ticket,
            _moving: moving,
            need,
            left: AtomicUsize::new(places.len() + 1),
            leaves,
            outcome: Mutex::new(outcome),
        });
        for (index, piece) in places.into_iter().enumerate() {
            let (open, optional) = (Arc::clone(&open), piece.optional);
            let request = WriteRequest {
                offset: piece.offset,
                len: piece.len,
                bufs: piece.bufs,
                priority: req.priority,
                optional,
                done: Callback::new(move |result| open.piece(index, optional, result)),
            };
            requests.push((piece.leaf, request));
        }
        Some(open)
    }

    /// Adds requests to the queues of their leaves, all those of one leaf together.
    fn enqueue(&self, mut requests: Vec<(NodeId, WriteRequest)>) {
        requests.sort_by_key(|r| r.0);
        // The caller makes at most one write itself, and last, when the others are in
        // flight. Zeros for raidz's skip sectors are not worth a write of their own.
        let own =
            |r: &(NodeId, WriteRequest)| r.1.priority == WritePriority::Awaited && !r.1.optional;
        if let Some(leaf) = requests.iter().rev().find(|r| own(r)).map(|r| r.0) {
            requests.sort_by_key(|r| (r.0 == leaf, r.0));
        }
        let last = requests.iter().rposition(own);
        for (index, (_, request)) in requests.iter_mut().enumerate() {
            if request.priority == WritePriority::Awaited && Some(index) != last {
                request.priority = WritePriority::SyncWrite;
            }
        }
        let mut requests = requests.into_iter().peekable();
        while let Some((leaf, first)) = requests.next() {
            let mut batch = vec![first];
            while let Some((_, request)) = requests.next_if(|r| r.0 == leaf) {
                batch.push(request);
            }
            match self.node(leaf).writable() {
                Some((_, queue)) => queue.submit(batch),
                None => batch.into_iter().for_each(|r| r.done.call(Err(closed()))),
            }
        }
    }

    /// Writes outside the allocatable area (labels), at device offsets of leaves, all
    /// concurrently; waits. Results are in order. These writes belong to no txg: a
    /// failure counts as a write error, but no txg becomes missing.
    ///
    /// Errors: `NotFound` if there is no such leaf, `Io` if it cannot be written, and
    /// the device's own errors.
    pub fn write_leaves(&self, writes: Vec<(Guid, u64, Buf)>) -> Vec<(Guid, Result<()>)> {
        let mut requests = Vec::with_capacity(writes.len());
        let mut slots = Vec::with_capacity(writes.len());
        for (guid, offset, data) in writes {
            let (slot, end) = oneshot::<Result<()>>();
            slots.push((guid, end));
            match self.leaf(guid) {
                Err(error) => slot.send(Err(error)),
                Ok(_) if data.is_empty() => slot.send(Ok(())),
                Ok((id, live)) => {
                    let (tuning, len) = (Arc::clone(&self.tuning), data.len() as u64);
                    let request = WriteRequest {
                        offset,
                        len,
                        bufs: vec![data],
                        priority: WritePriority::SyncWrite,
                        optional: false,
                        done: Callback::new(move |result: Result<()>| {
                            if let Err(e) = &result {
                                let kind = ReportKind::Write;
                                let (error, took) = (e.kind(), Duration::ZERO);
                                let report = LeafReport { guid, kind, offset, len, error, took };
                                live.count(&tuning, report);
                            }
                            slot.send(result.map_err(|e| e.on_vdev(guid)));
                        }),
                    };
                    requests.push((id, request));
                }
            }
        }
        self.enqueue(requests);
        slots.into_iter().map(|(guid, end)| (guid, end.wait().flatten())).collect()
    }

    fn leaf(&self, guid: Guid) -> Result<(NodeId, Arc<crate::tree::LiveState>)> {
        match self.leaves().find(|(_, node)| node.guid() == guid) {
            None => Err(Error::not_found("there is no such leaf").on_vdev(guid)),
            Some((id, node)) if node.writable().is_some() => Ok((id, Arc::clone(&node.live))),
            Some(_) => Err(closed().on_vdev(guid)),
        }
    }

    /// Flushes the write caches of all writable leaves of these top-level vdevs,
    /// concurrently, after all writes submitted to them before this call; waits. A
    /// failure counts as a write error.
    pub fn flush(&self, tops: &[VdevId]) -> Vec<(Guid, Result<()>)> {
        self.flush_leaves(tops, true)
    }

    /// As [`Tree::flush`], but covers only what the devices have already completed: it
    /// does not wait for the queues. For a caller whose own writes have ended while
    /// other writes continue.
    pub fn flush_completed(&self, tops: &[VdevId]) -> Vec<(Guid, Result<()>)> {
        self.flush_leaves(tops, false)
    }

    fn flush_leaves(&self, tops: &[VdevId], drain: bool) -> Vec<(Guid, Result<()>)> {
        let leaves: Vec<(&Node, &Arc<dyn Device>, &Arc<LeafQueue>)> = self
            .leaves()
            .filter(|(_, node)| tops.contains(&node.top()))
            .filter_map(|(_, node)| node.writable().map(|(device, queue)| (node, device, queue)))
            .collect();
        if drain {
            leaves.iter().for_each(|(_, _, queue)| queue.drain());
        }
        let batch = leaves.iter().map(|(_, device, _)| (Arc::clone(device), Io::Flush)).collect();
        let results = device::execute(batch);
        let judge = |((node, _, _), (done, _)): (&(&Node, _, _), (device::Completion, _))| {
            let result = done.result.map(drop).map_err(|e| e.on_vdev(node.guid()));
            if let Err(e) = &result {
                self.count_error(node, ReportKind::Write, (0, 0), e.kind());
            }
            (node.guid(), result)
        };
        leaves.iter().zip(results).map(judge).collect()
    }

    /// Records that a leaf lacks data of a txg (for example because its flush failed);
    /// false if there is no such vdev.
    pub fn add_missing(&self, guid: Guid, txg: Txg) -> bool {
        let node = self.find(guid);
        if let Some(node) = node {
            node.live.missing.add(txg);
        }
        node.is_some()
    }

    /// Records that all writes of a txg to leaves without redundancy have reached them,
    /// some after a retry, so these leaves miss nothing of it.
    pub fn clear_missing(&self, txg: Txg) {
        let tops = self.leaves().filter(|(_, n)| n.parent().is_some_and(|p| p.0 == 0));
        tops.for_each(|(_, node)| node.live.missing.remove(txg));
    }

    /// Leaves with [`FAILING_WRITE_ERRORS`] write errors or more since they were
    /// cleared. Nothing is done about them here.
    pub fn failing(&self) -> Vec<Guid> {
        let bad = self.leaves().filter(|(_, n)| n.errors().write >= FAILING_WRITE_ERRORS);
        bad.map(|(_, n)| n.guid()).collect()
    }

    /// The limits of the queues of the leaves.
    pub fn queue_limits(&self) -> QueueLimits {
        self.tuning.get()
    }

    /// Sets the limits for this snapshot and later ones.
    pub fn set_queue_limits(&self, limits: QueueLimits) {
        self.tuning.set(limits);
    }

    /// Yields the core to threads that write log blocks. The writer of a txg calls it
    /// between one block and the next. It yields only while log blocks are written, no
    /// thread waits for the txg, and dirty data is not near its limit. Without it, a
    /// woken thread does not always preempt a thread of higher niceness at once but
    /// waits for the end of its time slice, which is many times the duration of a log
    /// block's write.
    pub fn yield_to_log_writes(&self) {
        if self.tuning.log_has_precedence(rt::uptime()) {
            rt::yield_core(SLICE);
        }
    }

    /// Sets the gauge that reports how much data waits to be written; the depth of a
    /// txg's writes depends on it. The gauge must take no lock. Only the first call has
    /// an effect.
    pub fn set_write_gauge(&self, gauge: impl Fn() -> WriteLoad + Send + Sync + 'static) {
        self.tuning.set_gauge(Box::new(gauge));
    }

    /// For each open leaf, the largest number of operations of each class that are sent
    /// to its device at once: the configured limit, or the depth that was found by
    /// trials.
    pub fn queue_depths(&self) -> Vec<(Guid, [(IoClass, usize); IoClass::ALL.len()])> {
        let open = self.leaves().filter_map(|(_, n)| Some((n.guid(), n.queue.as_ref()?)));
        open.map(|(guid, queue)| {
            let depths = queue.settled();
            (guid, IoClass::ALL.map(|class| (class, depths[class as usize])))
        })
        .collect()
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Io, "the device is not open for writing")
}
