//! The queue of a leaf: operations by class, sorted, merged, and limited in depth.
//!
//! # Theory
//! Every operation belongs to a class ([`IoClass`]), and each class has a minimum and a
//! maximum number of operations in the device (`limits`). Classes below their minimum
//! are served first, in rotation. Then come classes below their maximum, in the order
//! of their urgency (chapter 10 §11.2). So an operation that a caller waits for never
//! waits behind a mass of writes, and no class starves.
//!
//! The device is swept: waiting requests are taken in the order of offsets, and
//! requests that arrive meanwhile belong to the next sweep, unless they touch a taken
//! request and are merged with it. So a device that is slower than its writers gets few
//! large writes in the order of its sectors. (An elevator that also takes new requests
//! ahead of it never turns back under a stream of ascending writes: stragglers fill the
//! queue and nothing merges.) There is no queue thread. The thread that submits or
//! completes a request sends what the limits allow (`LeafQueue::pump`), one thread at a
//! time, so a device that completes at once does not recurse. A read that need not wait
//! is made by its caller (`reads`), and so is a single write whose submitter waits for
//! it. Handing it to another thread and back would cost two context switches, each a
//! tenth of the time of a flash device's flush.
//!
//! An optional request asks for zeros that no reader uses (raidz skip sectors). It is
//! written only between two other requests, which it joins to one operation, and is
//! dropped otherwise. If a merged operation fails, its parts are retried one by one, so
//! that one bad sector costs one request.
//!
//! # Invariants
//! * The ranges of writes that are ready or in flight are disjoint. A write that
//!   overlaps one of them, or an earlier held write, is held until those have ended:
//!   the last write submitted is the last one written. Reads are not ordered relative
//!   to writes, because nothing is read while it is written (`write`).
//! * Each request is completed exactly once, without a lock held. A request that leaves
//!   the queue without being written ([`QueueState::leave`]) becomes a [`RequestCallback`] that the
//!   caller owns, and a [`RequestCallback`] that is dropped reports an error
//!   (`base::rt::Callback`).
//! * The queue holds at most `in_flight_max` bytes of writes, twice as many with
//!   synchronous ones, or one submission.
//! * If no thread pumps and a request is ready, an operation is in flight, and its
//!   completion pumps. This holds because the minimum of some ready class is 1; the
//!   background class is the exception, but only while other operations are in flight.
//!
//! Departure: synchronous writes are taken by offset, too; the sweeps bound their wait.
//!
//! Lock order: `state` is a leaf lock.

mod depth;
mod limits;
mod reads;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::rt::{self, Callback, Condvar, Instant, Mutex, MutexGuard};
use base::{Buf, BufMut, Error, ErrorKind, Guid, Result};
use device::{Completion, Device, Io, Op};

use crate::iostat::IoClass;
use crate::report::{LeafReport, ReportKind};
use crate::tree::LiveState;
use depth::Depths;
pub(crate) use limits::{BESIDE_OTHERS, Tuning};
use limits::{BackgroundThrottle, CLASSES, Caps, Foreground, LOGGING, QUIET};
pub use limits::{ClassLimits, QueueLimits, WriteLoad};
pub(crate) use reads::{ReadAdmission, ReadPermit};
use reads::{ReadRun, Reads, WaitingRead};

/// The reason of a write (chapter 02 §14).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WritePriority {
    /// As [`WritePriority::SyncWrite`], for a caller that waits only for what it
    /// submits, so that it can make the write itself (log blocks).
    Awaited,
    /// A caller waits: labels, the metadata of a txg in its last passes.
    SyncWrite,
    /// A write of a transaction group.
    #[default]
    AsyncWrite,
    /// Not a write: the range is discarded.
    Trim,
    /// A pattern for free space.
    Initializing,
    /// Of a sequential rebuild.
    Rebuild,
}

/// Buffers of one merged operation; well below the kernel's 1024.
const BUFS_MAX: usize = 256;
/// The class whose depth is also bounded in bytes.
const ASYNC_WRITE: usize = IoClass::AsyncWrite as usize;
const SYNC_READ: usize = IoClass::SyncRead as usize;
const SYNC_WRITE: usize = IoClass::SyncWrite as usize;

/// Reports once how a request ended, at the latest when it is dropped; must not block.
pub(crate) type RequestCallback = Callback<Result<()>>;

/// A write of `bufs`, one after the other, at an offset of the device; a discard has none.
pub(crate) struct WriteRequest {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) bufs: Vec<Buf>,
    pub(crate) priority: WritePriority,
    /// Zeros that serve only to merge their neighbours.
    pub(crate) optional: bool,
    pub(crate) done: RequestCallback,
}

impl WriteRequest {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    fn overlaps(&self, other: &WriteRequest) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }

    fn class(&self) -> usize {
        IoClass::from(self.priority) as usize
    }

    fn weight(&self) -> u64 {
        if self.priority == WritePriority::Trim { 0 } else { self.len }
    }
}

struct Queued {
    request: WriteRequest,
    /// The time of arrival.
    since: Instant,
    /// The sweep in which it is served.
    sweep: u64,
    /// Part of a merged operation that failed, so it is retried by itself.
    alone: bool,
    /// The epoch of its submission, for [`LeafQueue::drain`].
    epoch: u64,
}

#[derive(Default)]
struct QueueState {
    /// By offset.
    ready: [BTreeMap<u64, Queued>; CLASSES],
    /// In the device: first byte, end.
    flying: BTreeMap<u64, u64>,
    /// Requests that wait for an overlapping request, in order.
    held: VecDeque<Queued>,
    reads: Reads,
    active: [usize; CLASSES],
    /// The class that was last served because it was below its minimum.
    last: usize,
    background_throttle: BackgroundThrottle,
    depths: Depths,
    /// Asynchronous writes until the device counts as free of operations that they
    /// would delay.
    recent: u32,
    /// The time of the last log block.
    logged: Option<Instant>,
    /// Bytes in flight.
    flying_bytes: u64,
    /// Ready requests by (sweep, offset).
    order: [BTreeSet<(u64, u64)>; CLASSES],
    /// The current sweep of each class.
    sweep: [u64; CLASSES],
    /// Bytes of all requests in the queue.
    bytes: u64,
    /// Requests of each epoch that have not ended; the last entry is the current epoch.
    open: VecDeque<usize>,
    first_epoch: u64,
    pumping: bool,
    /// Threads that wait on `changed`.
    waiting: usize,
}

/// The requests of one device operation.
struct WriteRun {
    start: u64,
    end: u64,
    class: usize,
    /// The time at which it was sent to the device.
    began: Instant,
    parts: Vec<Queued>,
}

/// Bytes that an operation moves.
fn flying_bytes(class: usize, start: u64, end: u64) -> u64 {
    if class == IoClass::Trim as usize { 0 } else { end - start }
}

impl QueueState {
    fn epoch(&self) -> u64 {
        self.first_epoch + self.open.len() as u64 - 1
    }

    /// Whether the range overlaps a ready or flying one. These are disjoint, so in each
    /// set only the last one that starts before the range's end can overlap.
    fn conflicts(&self, request: &WriteRequest) -> bool {
        let (from, end) = (request.offset, request.end());
        let ready = |set: &BTreeMap<u64, Queued>| {
            set.range(..end).next_back().is_some_and(|(_, q)| q.request.end() > from)
        };
        self.ready.iter().any(ready)
            || self.flying.range(..end).next_back().is_some_and(|(_, &e)| e > from)
    }

    /// Makes a request ready for the next sweep.
    fn insert(&mut self, mut queued: Queued) {
        let (class, offset) = (queued.request.class(), queued.request.offset);
        queued.sweep = self.sweep[class] + 1;
        self.order[class].insert((queued.sweep, offset));
        self.ready[class].insert(offset, queued);
    }

    fn admit(&mut self, request: WriteRequest, since: Instant) {
        let blocked =
            self.conflicts(&request) || self.held.iter().any(|h| h.request.overlaps(&request));
        self.bytes += request.weight();
        if request.priority == WritePriority::Awaited {
            self.logged = Some(since);
        }
        let epoch = self.epoch();
        if let Some(count) = self.open.back_mut() {
            *count += 1;
        }
        // Discards are as large as they should be.
        let alone = request.priority == WritePriority::Trim;
        let queued = Queued { request, since, sweep: 0, alone, epoch };
        if blocked {
            self.held.push_back(queued);
        } else {
            self.insert(queued);
        }
    }

    /// Makes the held requests ready that no longer overlap an earlier one.
    fn release(&mut self) {
        for queued in std::mem::take(&mut self.held) {
            let earlier = self.held.iter().any(|h| h.request.overlaps(&queued.request));
            if earlier || self.conflicts(&queued.request) {
                self.held.push_back(queued);
            } else {
                self.insert(queued);
            }
        }
    }

    /// Removes a request from the queue.
    fn leave(&mut self, queued: Queued, out: &mut Vec<RequestCallback>) {
        self.bytes -= queued.request.weight();
        if let Some(count) = self.open.get_mut((queued.epoch - self.first_epoch) as usize) {
            *count -= 1;
        }
        self.close_epochs();
        out.push(queued.request.done);
    }

    /// Drops epochs that have no open requests.
    fn close_epochs(&mut self) {
        while self.open.len() > 1 && self.open.front() == Some(&0) {
            self.open.pop_front();
            self.first_epoch += 1;
        }
    }

    /// The next operation of a class, merged up to `most` bytes. Requests that are not
    /// worth writing leave the queue through `dropped`; the caller completes them
    /// without the lock.
    fn next_run(
        &mut self,
        class: usize,
        most: u64,
        dropped: &mut Vec<RequestCallback>,
    ) -> Option<WriteRun> {
        loop {
            let &(sweep, offset) = self.order[class].first()?;
            self.sweep[class] = self.sweep[class].max(sweep);
            let mut parts = VecDeque::from([self.take(class, offset)?]);
            self.extend(class, most, &mut parts);
            let mut left = false;
            while let Some(last) = parts.pop_back_if(|last| last.request.optional) {
                self.leave(last, dropped);
                left = true;
            }
            while let Some(first) = parts.pop_front_if(|first| first.request.optional) {
                self.leave(first, dropped);
                left = true;
            }
            let range = parts.front().zip(parts.back());
            let range = range.map(|(first, last)| (first.request.offset, last.request.end()));
            if let Some((start, end)) = range {
                self.flying.insert(start, end);
                self.flying_bytes += flying_bytes(class, start, end);
                self.begin(class);
            }
            // Not before the others count as flying.
            if left {
                self.release();
            }
            if let Some((start, end)) = range {
                let began = rt::now();
                return Some(WriteRun { start, end, class, began, parts: parts.into() });
            }
        }
    }

    /// Adds the adjacent requests, behind and before, up to `most` bytes.
    fn extend(&mut self, class: usize, most: u64, parts: &mut VecDeque<Queued>) {
        let only = &parts[0];
        if only.alone {
            return;
        }
        let (mut start, mut end) = (only.request.offset, only.request.end());
        let mut bufs = only.request.bufs.len();
        let fits = |next: &Queued, len: u64, bufs: usize| {
            !next.alone
                && len + next.request.len <= most
                && bufs + next.request.bufs.len() <= BUFS_MAX
        };
        while let Some(next) = self.ready[class].get(&end)
            && fits(next, end - start, bufs)
            && let Some(next) = self.take(class, end)
        {
            end = next.request.end();
            bufs += next.request.bufs.len();
            parts.push_back(next);
        }
        while let Some((&at, next)) = self.ready[class].range(..start).next_back()
            && next.request.end() == start
            && fits(next, end - start, bufs)
            && let Some(next) = self.take(class, at)
        {
            start = at;
            bufs += next.request.bufs.len();
            parts.push_front(next);
        }
    }

    fn take(&mut self, class: usize, offset: u64) -> Option<Queued> {
        let queued = self.ready[class].remove(&offset)?;
        self.order[class].remove(&(queued.sweep, offset));
        Some(queued)
    }

    /// Counts an operation as sent to the device.
    fn begin(&mut self, class: usize) {
        self.active[class] += 1;
        self.background_throttle.begin(class);
        match class {
            SYNC_READ | SYNC_WRITE => self.recent = QUIET,
            ASYNC_WRITE => self.recent = self.recent.saturating_sub(1),
            _ => {}
        }
    }

    /// Counts an operation as ended.
    fn end(&mut self, class: usize, bytes: u64, limits: &QueueLimits, clock: u64) {
        self.active[class] -= 1;
        self.background_throttle.end(class, limits);
        let full = self.active[class] + 1 >= self.depths.limit(class);
        let waiting = if full { self.waiting(class) } else { 0 };
        let now = std::time::Duration::from_nanos(clock);
        self.depths.done(class, bytes, waiting, limits.adapts(class), now);
    }

    fn waiting(&self, class: usize) -> usize {
        self.ready[class].len() + self.reads.waiting(class)
    }

    fn nothing_waits(&self) -> bool {
        self.ready.iter().all(BTreeMap::is_empty) && !self.reads.any()
    }

    /// The limits in force now.
    fn caps(&self, limits: &QueueLimits, tuning: &Tuning) -> Caps {
        let reading = self.active[SYNC_READ] > 0 || self.reads.waiting(SYNC_READ) > 0;
        let logging = self.logged.is_some_and(|at| at.elapsed() < LOGGING);
        let foreground = Foreground { reading, recent: self.recent, logging };
        limits.caps(|| tuning.load(), &self.depths, &self.background_throttle, foreground)
    }

    /// Whether one more operation of a class may be sent to the device.
    fn has_room(&self, class: usize, caps: &Caps) -> bool {
        let (active, (shallow, bytes)) = (self.active[class], caps.deep);
        active < caps.classes[class].max as usize
            && (class != ASYNC_WRITE || active < shallow || self.flying_bytes < bytes)
    }

    /// Chooses the class to serve next.
    fn choose(&mut self, limits: &QueueLimits, caps: &Caps) -> Option<usize> {
        if self.active.iter().sum::<usize>() >= limits.max_active as usize {
            return None;
        }
        let least = |class: &usize| {
            self.waiting(*class) > 0 && self.active[*class] < caps.classes[*class].min as usize
        };
        if let Some(class) = (1..=CLASSES).map(|i| (self.last + i) % CLASSES).find(least) {
            self.last = class;
            return Some(class);
        }
        (0..CLASSES).find(|&class| self.waiting(class) > 0 && self.has_room(class, caps))
    }

    fn pick(&mut self, tuning: &Tuning, dropped: &mut Vec<RequestCallback>) -> Picked {
        let (limits, mut picked) = (tuning.get(), Picked::default());
        loop {
            let caps = self.caps(&limits, tuning);
            let Some(class) = self.choose(&limits, &caps) else { break };
            let most = caps.merged_max(class, &limits);
            let gap = limits.gap(class, self.depths.seeks);
            if let Some(run) = self.reads.next(class, (most, gap), rt::now()) {
                self.begin(class);
                picked.reads.push(run);
            } else {
                picked.writes.extend(self.next_run(class, most, dropped));
            }
        }
        picked
    }
}

/// The operations to send to the device next.
#[derive(Default)]
struct Picked {
    writes: Vec<WriteRun>,
    reads: Vec<ReadRun>,
}

impl Picked {
    fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.reads.is_empty()
    }
}

/// The queue of one leaf. It outlives the snapshots that share it by its device.
pub(crate) struct LeafQueue {
    device: Arc<dyn Device>,
    /// The leaf.
    guid: Guid,
    live: Arc<LiveState>,
    tuning: Arc<Tuning>,
    state: Mutex<QueueState>,
    /// Start of the time scale of [`Depths`].
    epoch: Instant,
    /// Signalled when bytes left the queue or an epoch ended.
    changed: Condvar,
}

impl LeafQueue {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        guid: Guid,
        live: Arc<LiveState>,
        tuning: Arc<Tuning>,
    ) -> Arc<LeafQueue> {
        let depths = Depths::new(device.caps().rotational == Some(true));
        let state = QueueState { open: VecDeque::from([0]), depths, ..QueueState::default() };
        let (state, changed, epoch) = (Mutex::new(state), Condvar::new(), rt::now());
        Arc::new(LeafQueue { device, guid, live, tuning, state, epoch, changed })
    }

    /// Whether this is the queue of `device`.
    pub(crate) fn is_of(&self, device: &Arc<dyn Device>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.device), Arc::as_ptr(device))
    }

    /// Queues requests; waits while the queue is full. Must not be called from a
    /// completion.
    pub(crate) fn submit(self: &Arc<Self>, batch: Vec<WriteRequest>) {
        let len: u64 = batch.iter().map(WriteRequest::weight).sum();
        let mut state = self.state.lock();
        let mut max = self.tuning.get().in_flight_max;
        if batch.iter().all(|r| r.class() == SYNC_WRITE) {
            // The caller waits, so it must not queue behind writes that no caller waits
            // for.
            max = max.saturating_mul(2);
        }
        while state.bytes > 0 && state.bytes.saturating_add(len) > max {
            self.wait(&mut state);
        }
        let now = rt::now();
        if batch.iter().any(|r| r.priority == WritePriority::Awaited) {
            self.tuning.record_log_block(rt::uptime());
        }
        let alone = |one: &WriteRequest| one.priority == WritePriority::Awaited && !one.optional;
        let by_caller =
            matches!(&batch[..], [one] if alone(one)) && self.is_free(&state, SYNC_WRITE);
        for request in batch {
            state.admit(request, now);
        }
        // A request that overlaps another one is held, and then nothing is ready.
        let mut dropped = Vec::new();
        let run = match by_caller {
            true => state.next_run(SYNC_WRITE, self.tuning.get().aggregation_limit, &mut dropped),
            false => None,
        };
        let Some(run) = run else { return self.pump_on(state, dropped) };
        drop(state);
        dropped.into_iter().for_each(|done| done.call(Ok(())));
        let Op { io, done } = self.operation(run);
        done(self.device.run(io));
    }

    /// Whether one more operation of a class may be sent at once without overtaking
    /// another one.
    fn is_free(&self, state: &QueueState, class: usize) -> bool {
        let limits = self.tuning.get();
        let caps = state.caps(&limits, &self.tuning);
        state.waiting(class) == 0
            && state.has_room(class, &caps)
            && state.active.iter().sum::<usize>() < limits.max_active as usize
    }

    /// Waits until all requests submitted before this call have ended.
    pub(crate) fn drain(&self) {
        let mut state = self.state.lock();
        let mine = state.epoch();
        state.open.push_back(0);
        state.close_epochs();
        while state.first_epoch <= mine {
            self.wait(&mut state);
        }
    }

    fn wait(&self, state: &mut MutexGuard<'_, QueueState>) {
        state.waiting += 1;
        self.changed.wait(state);
        state.waiting -= 1;
    }

    /// Requests a read for a caller that waits for it. If the read cannot be made at
    /// once, the operation that is in its way pumps the queue when it ends.
    pub(crate) fn request_read(
        self: &Arc<Self>,
        class: IoClass,
        offset: u64,
        len: u64,
    ) -> ReadAdmission {
        let (class, began) = (class as usize, rt::now());
        self.live.in_flight.fetch_add(1, Relaxed);
        let mut state = self.state.lock();
        if self.is_free(&state, class) {
            state.begin(class);
            drop(state);
            return ReadAdmission::Go(ReadPermit {
                queue: Arc::clone(self),
                class,
                len,
                began,
                over: false,
            });
        }
        let slot = state.reads.add(class, offset, len, began);
        ReadAdmission::Wait(WaitingRead { slot, offset, len })
    }

    /// Counts and reports an operation that took too long.
    fn note_slow(&self, (offset, len): (u64, u64), took: std::time::Duration) {
        if self.tuning.is_slow(took) {
            let (guid, kind, error) = (self.guid, ReportKind::Slow, ErrorKind::Io);
            let report = LeafReport { guid, kind, offset, len, error, took };
            self.live.count(&self.tuning, report);
        }
    }

    /// Ends a read that its caller made.
    fn read_over(self: &Arc<Self>, permit: &ReadPermit, ok: bool, merged: bool) {
        self.live.in_flight.fetch_sub(1, Relaxed);
        let now = rt::now();
        let class = IoClass::ALL[permit.class];
        let took = now.since(permit.began);
        self.note_slow((0, permit.len), took);
        if ok {
            self.live.io.done(class, permit.len, merged, took);
            self.live.io.waited(class, std::time::Duration::ZERO, took);
        }
        let mut state = self.state.lock();
        state.end(permit.class, permit.len, &self.tuning.get(), self.clock(now));
        self.pump(state);
    }

    fn clock(&self, now: Instant) -> u64 {
        u64::try_from(now.since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Sends to the device what the limits allow.
    fn pump<'a>(self: &'a Arc<Self>, state: MutexGuard<'a, QueueState>) {
        self.pump_on(state, Vec::new());
    }

    /// As [`LeafQueue::pump`]; `dones` have left the queue and are completed here.
    fn pump_on<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, QueueState>,
        mut dones: Vec<RequestCallback>,
    ) {
        if state.pumping {
            // The pumping thread checks again before it leaves.
            drop(state);
            return dones.into_iter().for_each(|done| done.call(Ok(())));
        }
        state.pumping = true;
        loop {
            let picked = match state.nothing_waits() {
                true => Picked::default(),
                false => state.pick(&self.tuning, &mut dones),
            };
            if picked.is_empty() && dones.is_empty() {
                state.pumping = false;
                return;
            }
            let waiting = state.waiting > 0;
            drop(state);
            let reads = picked.reads.into_iter().map(|run| self.reading(run));
            let ops = reads.chain(picked.writes.into_iter().map(|run| self.operation(run)));
            let ops: Vec<Op> = ops.collect();
            if !ops.is_empty() {
                self.device.submit(ops);
            }
            if !dones.is_empty() {
                if waiting {
                    self.changed.notify_all();
                }
                std::mem::take(&mut dones).into_iter().for_each(|done| done.call(Ok(())));
            }
            state = self.state.lock();
        }
    }

    fn reading(self: &Arc<Self>, run: ReadRun) -> Op {
        let io = Io::read(run.start, (run.end - run.start) as usize);
        let mut flight = InFlight::new(self, Flying::Read(run));
        Op::new(io, move |completion: Completion| flight.read(completion.into_read()))
    }

    /// Ends a read that was sent from the queue. The readers may close the device as soon as
    /// they have their bytes, so the queue is let go of before.
    fn finish_read(self: Arc<Self>, run: ReadRun, result: Result<BufMut>) {
        let now = rt::now();
        let (bytes, merged) = (run.end - run.start, run.parts.len() > 1);
        let class = IoClass::ALL[run.class];
        self.note_slow((run.start, bytes), now.since(run.began));
        if result.is_ok() {
            self.live.io.done(class, bytes, merged, now.since(run.began));
            for part in &run.parts {
                let (queued, total) = reads::times(&run, part, now);
                self.live.io.waited(class, queued, total);
            }
        }
        let mut state = self.state.lock();
        let mut completed = Vec::new();
        if result.is_err() && merged {
            for mut part in run.parts {
                part.alone = true;
                state.reads.insert(part);
            }
        } else {
            completed = run.parts;
        }
        state.end(run.class, bytes, &self.tuning.get(), self.clock(now));
        self.pump(state);
        self.live.in_flight.fetch_sub(completed.len() as u32, Relaxed);
        drop(self);
        match result.map(BufMut::freeze) {
            Ok(whole) => {
                completed
                    .into_iter()
                    .for_each(|part| part.slot.send((Ok(whole.clone()), run.start)));
            }
            // The operation had one part.
            Err(error) => {
                if let Some(part) = completed.pop() {
                    part.slot.send((Err(error), run.start));
                }
            }
        }
    }

    fn operation(self: &Arc<Self>, mut run: WriteRun) -> Op {
        self.live.in_flight.fetch_add(1, Relaxed);
        let bufs = match &mut run.parts[..] {
            [one] => std::mem::take(&mut one.request.bufs),
            // Keeps the buffers, in case the parts have to be written one by one.
            parts => parts.iter().flat_map(|p| p.request.bufs.iter().cloned()).collect(),
        };
        let (offset, len) = (run.start, run.end - run.start);
        let trims = run.class == IoClass::Trim as usize;
        let io = if trims { Io::Trim { offset, len } } else { Io::Write { offset, bufs } };
        let mut flight = InFlight::new(self, Flying::Write(run));
        Op::new(io, move |completion: Completion| {
            flight.write(completion.result.map(drop));
        })
    }

    /// Counts a completed operation and the waiting times of its requests.
    fn count(&self, run: &WriteRun) {
        let (now, io) = (rt::now(), &self.live.io);
        let Some(first) = run.parts.first() else { return };
        let (bytes, merged) = (run.end - run.start, run.parts.len() > 1);
        self.note_slow((run.start, bytes), now.since(run.began));
        io.done(first.request.priority, bytes, merged, now.since(run.began));
        for part in run.parts.iter().filter(|part| !part.request.optional) {
            io.waited(part.request.priority, run.began.since(part.since), now.since(part.since));
        }
    }

    /// Waiting requests and operations in the device, by class.
    pub(crate) fn depths(&self) -> [(u64, u64); CLASSES] {
        let state = self.state.lock();
        std::array::from_fn(|class| {
            let held = state.held.iter().filter(|q| q.request.class() == class).count();
            let pending = state.ready[class].len() + state.reads.waiting(class) + held;
            (pending as u64, state.active[class] as u64)
        })
    }

    /// The maximum depths by class in force, ignoring momentary limits.
    pub(crate) fn settled(&self) -> [usize; CLASSES] {
        let limits = self.tuning.get();
        let found = self.state.lock().depths.settled();
        std::array::from_fn(|class| match limits.adapts(class) {
            true => found[class],
            false => limits.classes[class].max as usize,
        })
    }

    /// Ends an operation. The queue is let go of before the callers get their answers, as in
    /// [`LeafQueue::finish_read`].
    fn finish(self: Arc<Self>, run: WriteRun, result: Result<()>) {
        self.live.in_flight.fetch_sub(1, Relaxed);
        if result.is_ok() {
            self.count(&run);
        }
        let mut dones = Vec::with_capacity(run.parts.len());
        let mut state = self.state.lock();
        if let Some(end) = state.flying.remove(&run.start) {
            state.flying_bytes -= flying_bytes(run.class, run.start, end);
        }
        state.end(run.class, run.end - run.start, &self.tuning.get(), self.clock(rt::now()));
        if result.is_err() && run.parts.len() > 1 {
            for mut part in run.parts {
                part.alone = true;
                state.insert(part);
            }
        } else {
            run.parts.into_iter().for_each(|part| state.leave(part, &mut dones));
        }
        state.release();
        let waiting = state.waiting > 0;
        self.pump(state);
        if waiting {
            self.changed.notify_all();
        }
        drop(self);
        match (result, dones.pop()) {
            (Ok(()), last) => dones.into_iter().chain(last).for_each(|done| done.call(Ok(()))),
            // The operation had one part.
            (error, Some(done)) => done.call(error),
            (Err(_), None) => {}
        }
    }
}

enum Flying {
    Write(WriteRun),
    Read(ReadRun),
}

/// Ends its run even if the device drops the operation.
struct InFlight(Option<(Arc<LeafQueue>, Flying)>);

impl InFlight {
    fn new(queue: &Arc<LeafQueue>, run: Flying) -> InFlight {
        InFlight(Some((Arc::clone(queue), run)))
    }

    fn write(&mut self, result: Result<()>) {
        if let Some((queue, Flying::Write(run))) = self.0.take() {
            queue.finish(run, result);
        }
    }

    fn read(&mut self, result: Result<BufMut>) {
        if let Some((queue, Flying::Read(run))) = self.0.take() {
            queue.finish_read(run, result);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let lost = || Error::bug("a device dropped an operation without completing it");
        match &self.0 {
            Some((_, Flying::Write(_))) => self.write(Err(lost())),
            Some((_, Flying::Read(_))) => self.read(Err(lost())),
            None => {}
        }
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
