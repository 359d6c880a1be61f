//! Reads that wait in a leaf's queue.
//!
//! # Theory
//! The caller of a read waits for the bytes, so a read that need not wait is made by
//! its caller, in its own thread ([`ReadAdmission::Go`]): on an idle queue it costs two locks.
//! A read that has to wait is sent by the thread that makes room, merged with its
//! neighbours of the same class. The waiting callers copy their parts out of the buffer
//! of the merged read and do not keep it. Synchronous reads are sent in the order of
//! their arrival and merged only where they touch, so they never read bytes that were
//! not requested. The others are sent in sweeps over the device and may be merged
//! across gaps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::rt::{Instant, Receiver, Sender, oneshot};
use base::{Buf, BufMut, Result};

use super::LeafQueue;
use super::limits::CLASSES;
use crate::iostat::IoClass;

/// The result of an operation: the bytes of the whole operation.
pub(super) type ReadResult = Result<Buf>;

/// A read that waits in the queue.
pub(super) struct QueuedRead {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) class: usize,
    pub(super) since: Instant,
    /// Its sort key within its class.
    order_key: (u64, u64),
    /// Part of a merged operation that failed, so it is retried by itself.
    pub(super) alone: bool,
    pub(super) slot: Sender<(ReadResult, u64)>,
}

impl QueuedRead {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// The reads of one class.
#[derive(Default)]
struct Lane {
    /// By offset and sequence number.
    ready: BTreeMap<(u64, u64), QueuedRead>,
    /// The same reads by sort key and sequence number, with their offsets.
    order: BTreeSet<(u64, u64, u64, u64)>,
    /// The current sweep of the class.
    sweep: u64,
}

/// All reads that wait in the queue.
#[derive(Default)]
pub(super) struct Reads {
    lanes: [Lane; CLASSES],
    number: u64,
}

/// Reads that are merged into one operation.
pub(super) struct ReadRun {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) class: usize,
    pub(super) began: Instant,
    pub(super) parts: Vec<QueuedRead>,
}

impl Reads {
    pub(super) fn waiting(&self, class: usize) -> usize {
        self.lanes[class].ready.len()
    }

    pub(super) fn any(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.ready.is_empty())
    }

    /// Adds a read to the queue; returns the receiver of its result.
    pub(super) fn add(
        &mut self,
        class: usize,
        offset: u64,
        len: u64,
        since: Instant,
    ) -> Receiver<(ReadResult, u64)> {
        let (slot, own) = oneshot();
        self.insert(QueuedRead {
            offset,
            len,
            class,
            since,
            order_key: (0, 0),
            alone: false,
            slot,
        });
        own
    }

    pub(super) fn insert(&mut self, mut reader: QueuedRead) {
        self.number += 1;
        let lane = &mut self.lanes[reader.class];
        let fifo = reader.class == IoClass::SyncRead as usize;
        reader.order_key = if fifo { (0, self.number) } else { (lane.sweep + 1, reader.offset) };
        lane.order.insert((reader.order_key.0, reader.order_key.1, reader.offset, self.number));
        lane.ready.insert((reader.offset, self.number), reader);
    }

    /// The next operation of a class, merged up to `most` bytes, over gaps of up to `gap`.
    pub(super) fn next(
        &mut self,
        class: usize,
        (most, gap): (u64, u64),
        now: Instant,
    ) -> Option<ReadRun> {
        let lane = &mut self.lanes[class];
        let &(sweep, _, offset, number) = lane.order.first()?;
        lane.sweep = lane.sweep.max(sweep);
        let first = lane.take((offset, number))?;
        let gap = if class == IoClass::SyncRead as usize { 0 } else { gap };
        let (mut start, mut end) = (first.offset, first.end());
        let alone = first.alone;
        let mut parts = vec![first];
        while !alone && let Some((key, next)) = lane.ready.range((offset, number)..).next() {
            let to = next.end().max(end);
            if next.alone || next.offset > end.saturating_add(gap) || to - start > most {
                break;
            }
            let key = *key;
            end = to;
            parts.extend(lane.take(key));
        }
        while !alone && let Some((key, before)) = lane.ready.range(..(offset, number)).next_back() {
            let from = before.offset.min(start);
            if before.alone || before.end().saturating_add(gap) < start || end - from > most {
                break;
            }
            let key = *key;
            (start, end) = (from, end.max(before.end()));
            parts.extend(lane.take(key));
        }
        Some(ReadRun { start, end, class, began: now, parts })
    }
}

impl Lane {
    fn take(&mut self, key: (u64, u64)) -> Option<QueuedRead> {
        let reader = self.ready.remove(&key)?;
        self.order.remove(&(reader.order_key.0, reader.order_key.1, key.0, key.1));
        Some(reader)
    }
}

/// The queue's answer to a read request.
pub(crate) enum ReadAdmission {
    /// The caller makes the read now and reports its end.
    Go(ReadPermit),
    /// The read waits in the queue and another thread makes it.
    Wait(WaitingRead),
}

/// Permission to have one read in the device.
pub(crate) struct ReadPermit {
    pub(super) queue: Arc<LeafQueue>,
    pub(super) class: usize,
    pub(super) len: u64,
    pub(super) began: Instant,
    pub(super) over: bool,
}

impl ReadPermit {
    /// Ends the read; `merged` if it served several pieces of one block.
    pub(crate) fn end(mut self, ok: bool, merged: bool) {
        self.over = true;
        self.queue.read_over(&self, ok, merged);
    }
}

impl Drop for ReadPermit {
    fn drop(&mut self) {
        if !self.over {
            self.queue.read_over(self, false, false);
        }
    }
}

/// A read that another thread makes.
pub(crate) struct WaitingRead {
    pub(super) slot: Receiver<(ReadResult, u64)>,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl WaitingRead {
    /// Waits for the bytes.
    pub(crate) fn wait(self) -> Result<Buf> {
        let (whole, start) = self.slot.wait()?;
        let whole = whole?;
        if whole.len() as u64 == self.len {
            return Ok(whole);
        }
        let from = (self.offset - start) as usize;
        let part = whole.get(from..from + self.len as usize);
        let part = part.ok_or_else(|| base::bug!("a merged read lacks a part"))?;
        // A slice would keep the whole buffer in memory as long as the part is cached.
        let mut own = BufMut::alloc(part.len());
        own.copy_from_slice(part);
        Ok(own.freeze())
    }
}

/// How long a part waited, and how long it took in total.
pub(super) fn times(run: &ReadRun, part: &QueuedRead, now: Instant) -> (Duration, Duration) {
    (run.began.since(part.since), now.since(part.since))
}
