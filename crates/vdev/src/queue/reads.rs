//! Reads that wait in a leaf's queue.
//!
//! # Theory
//! Who reads waits for the bytes, so a read that may go at once is made by who asks for
//! it, in its own thread ([`Asked::Go`]): an idle queue costs two locks. What has to wait
//! is sent by whoever makes room, merged with its neighbours of the same class, and the
//! waiters copy their parts out of the whole, which is shared by none of them afterwards.
//! Reads that somebody waits for go in the order in which they came and are merged where
//! they touch, so they never read what nobody asked for; the others go in sweeps over the
//! device, and over gaps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::rt::{Instant, Receiver, Sender, oneshot};
use base::{Buf, BufMut, Error, Result};

use super::Queue;
use super::limits::{CLASSES, QueueLimits};
use crate::iostat::IoClass;

/// How a read ended: the bytes of a whole operation.
pub(super) type Ended = Result<Buf>;

/// A read that waits.
pub(super) struct Reader {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) class: usize,
    pub(super) since: Instant,
    /// Its place in the order of its class.
    turn: (u64, u64),
    /// Part of a merged operation that failed.
    pub(super) alone: bool,
    pub(super) slot: Sender<(Ended, u64)>,
}

impl Reader {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// The reads of one class.
#[derive(Default)]
struct Lane {
    /// By offset and number.
    ready: BTreeMap<(u64, u64), Reader>,
    /// The same by turn and number; offsets lead back.
    order: BTreeSet<(u64, u64, u64, u64)>,
    /// The sweep that the class is at.
    sweep: u64,
}

/// All reads that wait.
#[derive(Default)]
pub(super) struct Reads {
    lanes: [Lane; CLASSES],
    number: u64,
}

/// Reads that become one operation.
pub(super) struct ReadRun {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) class: usize,
    pub(super) began: Instant,
    pub(super) parts: Vec<Reader>,
}

impl Reads {
    pub(super) fn waiting(&self, class: usize) -> usize {
        self.lanes[class].ready.len()
    }

    pub(super) fn any(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.ready.is_empty())
    }

    /// A read waits from now on; what fulfils it.
    pub(super) fn add(
        &mut self,
        class: usize,
        offset: u64,
        len: u64,
        since: Instant,
    ) -> Receiver<(Ended, u64)> {
        let (slot, own) = oneshot();
        self.insert(Reader { offset, len, class, since, turn: (0, 0), alone: false, slot });
        own
    }

    pub(super) fn insert(&mut self, mut reader: Reader) {
        self.number += 1;
        let lane = &mut self.lanes[reader.class];
        let fifo = reader.class == IoClass::SyncRead as usize;
        reader.turn = if fifo { (0, self.number) } else { (lane.sweep + 1, reader.offset) };
        lane.order.insert((reader.turn.0, reader.turn.1, reader.offset, self.number));
        lane.ready.insert((reader.offset, self.number), reader);
    }

    /// The next operation of a class.
    pub(super) fn next(
        &mut self,
        class: usize,
        limits: &QueueLimits,
        now: Instant,
    ) -> Option<ReadRun> {
        let lane = &mut self.lanes[class];
        let &(sweep, _, offset, number) = lane.order.first()?;
        lane.sweep = lane.sweep.max(sweep);
        let first = lane.take((offset, number))?;
        let gap = if class == IoClass::SyncRead as usize { 0 } else { limits.read_gap_limit };
        let (mut start, mut end) = (first.offset, first.end());
        let alone = first.alone;
        let mut parts = vec![first];
        while !alone && let Some((key, next)) = lane.ready.range((offset, number)..).next() {
            let to = next.end().max(end);
            if next.alone
                || next.offset > end.saturating_add(gap)
                || to - start > limits.aggregation_limit
            {
                break;
            }
            let key = *key;
            end = to;
            parts.extend(lane.take(key));
        }
        while !alone && let Some((key, before)) = lane.ready.range(..(offset, number)).next_back() {
            let from = before.offset.min(start);
            if before.alone
                || before.end().saturating_add(gap) < start
                || end - from > limits.aggregation_limit
            {
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
    fn take(&mut self, key: (u64, u64)) -> Option<Reader> {
        let reader = self.ready.remove(&key)?;
        self.order.remove(&(reader.turn.0, reader.turn.1, key.0, key.1));
        Some(reader)
    }
}

/// The answer to who wants to read.
pub(crate) enum Asked {
    /// It is the caller's to read, now, and to say when it did.
    Go(Turn),
    /// Somebody will.
    Wait(Waiting),
}

/// The right to have one read with the device.
pub(crate) struct Turn {
    pub(super) queue: Arc<Queue>,
    pub(super) class: usize,
    pub(super) len: u64,
    pub(super) began: Instant,
    pub(super) over: bool,
}

impl Turn {
    /// The read is over; `merged`: it was for several pieces of one block.
    pub(crate) fn end(mut self, ok: bool, merged: bool) {
        self.over = true;
        self.queue.read_over(&self, ok, merged);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.over {
            self.queue.read_over(self, false, false);
        }
    }
}

/// A read that somebody else makes.
pub(crate) struct Waiting {
    pub(super) slot: Receiver<(Ended, u64)>,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Waiting {
    /// The bytes, when they are there.
    pub(crate) fn wait(self) -> Result<Buf> {
        let (whole, start) = self.slot.wait()?;
        let whole = whole?;
        if whole.len() as u64 == self.len {
            return Ok(whole);
        }
        let from = (self.offset - start) as usize;
        let part = whole.get(from..from + self.len as usize);
        let part = part.ok_or_else(|| Error::bug("a merged read lacks a part"))?;
        // A slice would keep the whole in memory as long as the part is cached.
        let mut own = BufMut::alloc(part.len());
        own.copy_from_slice(part);
        Ok(own.freeze())
    }
}

/// How long a part waited, and took in all.
pub(super) fn times(run: &ReadRun, part: &Reader, now: Instant) -> (Duration, Duration) {
    (run.began.since(part.since), now.since(part.since))
}
