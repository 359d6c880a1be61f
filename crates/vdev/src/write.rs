//! Writing: blocks, label areas, flushes; which leaves missed what.
//!
//! # Theory
//! [`Tree::write`] plans the pieces of a block (`place`), computing parity in the
//! caller's thread, and hands them to the leaves' queues. The last completion judges:
//! a mirror needs one child, a code word all but `nparity` of its columns. Whatever
//! leaf did not get its piece, because it failed or cannot be written, has the
//! block's birth added to its missing groups (chapter 05 §8) before anybody is told.
//!
//! Nothing reads a block while it is in a queue, by construction: the layer above puts
//! what it writes into the cache, and waits for a group's writes before it commits
//! the pointers. So reads do not look into the queues.
//!
//! # Invariants
//! * Each write is reported exactly once; so is one that could not be planned.
//! * [`Tree::flush`] covers every write that was submitted before it.
//!
//! Lock order: an open write's `outcome` is a leaf lock; its report runs without it.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::time::Duration;

use base::rt::atomic::AtomicUsize;
use base::rt::{self, Callback, Lost, Mutex, oneshot};
use base::{Asize, Buf, Dva, Error, ErrorKind, Guid, Result, Txg, VdevId};
use device::{Device, Io};

use crate::iostat::IoClass;
use crate::place::{Need, Plan};
use crate::queue::{Queue, QueueLimits, Request, WriteLoad, WritePriority};
use crate::tree::{Aux, Node, NodeId, State, Tree, TxgRanges, Verdict};

/// Write errors from which on a leaf is reported as failing.
pub const FAILING_WRITE_ERRORS: u64 = 10;

/// Where log blocks go first, who writes groups has a core for so long at once.
const SLICE: Duration = Duration::from_micros(100);

/// What to write.
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
    /// Why.
    pub priority: WritePriority,
}

impl Lost for WriteReport {
    fn lost() -> Self {
        WriteReport { result: Lost::lost(), failed: Vec::new() }
    }
}

/// How a write ended.
#[derive(Debug)]
pub struct WriteReport {
    /// Well if enough copies or columns hold the block.
    pub result: Result<()>,
    /// Leaves that do not hold what they should, each once.
    pub failed: Vec<Guid>,
}

/// Told once how a write ended; must not block.
pub type Tell = Callback<WriteReport>;

/// A write under way.
struct Open {
    tree: Arc<Tree>,
    address: Dva,
    birth: Txg,
    need: Need,
    /// Of each piece: its leaf, and the distributed spares that lead there.
    leaves: Vec<(NodeId, Vec<NodeId>)>,
    outcome: Mutex<Outcome>,
    /// Pieces that are not over, and one for the submitter.
    left: AtomicUsize,
}

#[derive(Default)]
struct Outcome {
    lost: Vec<u32>,
    failed: Vec<NodeId>,
    error: Option<Error>,
    tell: Option<Tell>,
}

impl Open {
    /// A piece is over.
    fn piece(&self, index: usize, optional: bool, result: Result<()>) {
        if let (Err(error), Some((leaf, through))) = (result, self.leaves.get(index)) {
            self.tree.node(*leaf).live.write_errors.fetch_add(1, Relaxed);
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
            .inspect(|node| node.live.add_missing(self.birth))
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
        if let Some(tell) = outcome.tell {
            tell.call(WriteReport { result, failed });
        }
    }
}

impl Tree {
    /// Writes a block. Computes parity in the calling thread, and waits while a leaf's
    /// queue is full; so it must not be called from a completion. `done` is called
    /// once, on any thread, perhaps before this returns; it must not block.
    ///
    /// The report's errors: `Io` and other errors of devices if too few of them hold the
    /// block; `Corrupt` for an impossible address or size; `Invalid` for a vdev that
    /// was removed; `Unsupported` while a raidz expansion runs.
    pub fn write(self: &Arc<Self>, req: WriteReq, done: impl FnOnce(WriteReport) + Send + 'static) {
        self.write_all(vec![(req, Callback::new(done))]);
    }

    /// The same for several blocks: what touches on a leaf becomes one operation, even while
    /// its queue is empty.
    pub fn write_all(self: &Arc<Self>, writes: Vec<(WriteReq, Tell)>) {
        let (mut requests, mut opened) = (Vec::new(), Vec::with_capacity(writes.len()));
        for (req, done) in writes {
            opened.extend(self.open(req, done, &mut requests));
        }
        self.enqueue(requests);
        opened.iter().for_each(|open| open.over());
    }

    /// Plans a write; its requests are added to `requests`.
    fn open(
        self: &Arc<Self>,
        req: WriteReq,
        done: Tell,
        requests: &mut Vec<(NodeId, Request)>,
    ) -> Option<Arc<Open>> {
        let asize = Asize(req.data.len() as u64);
        let address = Dva { vdev: req.vdev, offset: req.offset, asize, gang: false };
        let plan = match Plan::new(self, req.vdev, req.offset, &req.data, req.birth) {
            Ok(plan) => plan,
            Err(error) => {
                done.call(WriteReport { result: Err(error.at_dva(address)), failed: Vec::new() });
                return None;
            }
        };
        let Plan { need, pieces, dead } = plan;
        let mut leaves = Vec::with_capacity(pieces.len());
        let mut places = Vec::with_capacity(pieces.len());
        for mut piece in pieces {
            leaves.push((piece.leaf, std::mem::take(&mut piece.through)));
            places.push(piece);
        }
        let outcome = Outcome { failed: dead, tell: Some(done), ..Outcome::default() };
        let open = Arc::new(Open {
            tree: Arc::clone(self),
            address,
            birth: req.birth,
            need,
            left: AtomicUsize::new(places.len() + 1),
            leaves,
            outcome: Mutex::new(outcome),
        });
        for (index, piece) in places.into_iter().enumerate() {
            let (open, optional) = (Arc::clone(&open), piece.optional);
            let request = Request {
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

    /// Hands requests to their leaves, those of one leaf together.
    fn enqueue(&self, mut requests: Vec<(NodeId, Request)>) {
        requests.sort_by_key(|r| r.0);
        // The caller makes one write itself, at most, and last: the others are under way then.
        // Zeros for raidz's skip sectors are nothing to make alone.
        let own = |r: &(NodeId, Request)| r.1.priority == WritePriority::Awaited && !r.1.optional;
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

    /// Writes outside the allocatable area (labels): device bytes of leaves, all at
    /// once; waits. Results in order. They are no part of a group: a failure counts as a
    /// write error, but nothing is missing.
    ///
    /// Errors: `NotFound` if there is no such leaf, `Io` if it cannot be written, and the
    /// device's.
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
                    let request = Request {
                        offset,
                        len: data.len() as u64,
                        bufs: vec![data],
                        priority: WritePriority::SyncWrite,
                        optional: false,
                        done: Callback::new(move |result: Result<()>| {
                            if result.is_err() {
                                live.write_errors.fetch_add(1, Relaxed);
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

    fn leaf(&self, guid: Guid) -> Result<(NodeId, Arc<crate::tree::Live>)> {
        match self.leaves().find(|(_, node)| node.guid() == guid) {
            None => Err(Error::not_found("there is no such leaf").on_vdev(guid)),
            Some((id, node)) if node.writable().is_some() => Ok((id, Arc::clone(&node.live))),
            Some(_) => Err(closed().on_vdev(guid)),
        }
    }

    /// Flushes the write caches of all writable leaves of these top-level vdevs, all
    /// at once, after what was submitted to them before this call; waits. A failure
    /// counts as a write error.
    pub fn flush(&self, tops: &[VdevId]) -> Vec<(Guid, Result<()>)> {
        self.flush_leaves(tops, true)
    }

    /// As [`Tree::flush`], of what the devices have taken by now: it waits for nothing that is
    /// still in a queue. For who knows that his writes are over, while others go on.
    pub fn flush_taken(&self, tops: &[VdevId]) -> Vec<(Guid, Result<()>)> {
        self.flush_leaves(tops, false)
    }

    fn flush_leaves(&self, tops: &[VdevId], drain: bool) -> Vec<(Guid, Result<()>)> {
        let leaves: Vec<(&Node, &Arc<dyn Device>, &Arc<Queue>)> = self
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
            if result.is_err() {
                node.live.write_errors.fetch_add(1, Relaxed);
            }
            (node.guid(), result)
        };
        leaves.iter().zip(results).map(judge).collect()
    }

    /// Notes that a leaf lacks something of a group (its flush failed, say); false if
    /// there is no such vdev.
    pub fn add_missing(&self, guid: Guid, txg: Txg) -> bool {
        let node = self.find(guid);
        if let Some(node) = node {
            node.live.add_missing(txg);
        }
        node.is_some()
    }

    /// A new snapshot in which leaves of redundant vdevs that miss groups are degraded.
    pub fn with_outdated(self: &Arc<Self>) -> Arc<Tree> {
        let behind = |n: &&Node| {
            let redundant = n.parent.is_some_and(|p| p.0 != 0);
            redundant && n.state == State::Online && !n.dtl().ranges().is_empty()
        };
        let verdict =
            |n: &Node| Verdict { guid: n.guid(), state: State::Degraded, aux: Aux::OutOfDate };
        let verdicts: Vec<Verdict> =
            self.leaves().map(|(_, n)| n).filter(behind).map(verdict).collect();
        if verdicts.is_empty() { Arc::clone(self) } else { self.with_verdicts(&verdicts) }
    }

    /// Everything that a group wrote to leaves without redundancy has reached them after
    /// all, some of it when it was sent again: they miss nothing of it.
    pub fn arrived(&self, txg: Txg) {
        let tops = self.leaves().filter(|(_, n)| n.parent().is_some_and(|p| p.0 == 0));
        tops.for_each(|(_, node)| node.live.remove_missing(txg));
    }

    /// The missing groups of each leaf that lacks more than when this was called last.
    pub fn take_missing(&self) -> Vec<(Guid, TxgRanges)> {
        let grown = |(_, node): (NodeId, &Node)| {
            let ranges = node.live.take_missing()?;
            Some((node.guid(), TxgRanges::clone(&ranges)))
        };
        self.nodes().filter_map(grown).collect()
    }

    /// Leaves with [`FAILING_WRITE_ERRORS`] write errors or more since they were cleared.
    /// Nothing is done about them here.
    pub fn failing(&self) -> Vec<Guid> {
        let bad = self.leaves().filter(|(_, n)| n.errors().write >= FAILING_WRITE_ERRORS);
        bad.map(|(_, n)| n.guid()).collect()
    }

    /// The limits of the leaves' queues.
    pub fn queue_limits(&self) -> QueueLimits {
        self.tuning.get()
    }

    /// Sets the limits, for later snapshots, too, from now on.
    pub fn set_queue_limits(&self, limits: QueueLimits) {
        self.tuning.set(limits);
    }

    /// Called by who writes a group, between one block and the next: others may have the
    /// core while log blocks are written, and nobody waits for the group nor dirty data is
    /// near its limit. Who is woken does not always take the core from a nicer thread at
    /// once, but waits out its slice: many times a log block's time.
    pub fn make_way(&self) {
        if self.tuning.log_goes_first(rt::uptime()) {
            rt::yield_core(SLICE);
        }
    }

    /// From now on `gauge` tells how much waits to be written, on which the depth of a
    /// group's writes depends; it must take no lock. The first who tells it stays.
    pub fn set_write_gauge(&self, gauge: impl Fn() -> WriteLoad + Send + Sync + 'static) {
        self.tuning.set_gauge(Box::new(gauge));
    }

    /// For each open leaf the largest number of operations of each class that go to its
    /// device at once: as limited, or as found by what the device gains.
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
